"""The numeric suite of the decoder-throughput source (its items D1-D10), and same-again checks, on the CPU.

Every FP32 rung of lesson 03 goes through the ten items as the source words them, with D6's bound beside a
possible one; and the last portable rung of every operator is launched a hundred times, whose results must be
one. `rooflab trace suite` records the values in data/cpu: what held is computed when they are read. The
sources that run are the ones a GPU runs; a GPU's own gates and repeats are in its recording.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError, MissingRecording
from rooflab.ops import Rung, gemv
from rooflab.paths import DATA
from rooflab.records.fingerprint import identity
from rooflab.runtime.nvrtc import portable_headers
from rooflab.verify import mutations, subjects

COLUMNS = ("item", "operator", "rung", "quantity", "value", "bound", "identity")
LARGE = 4096  # of D6, as the source has it
RUNS = 100
Row = tuple[str, float, float]  # quantity, value, bound: it holds if the value is not above


def _product(rung: Rung, a: np.ndarray, x: np.ndarray) -> np.ndarray:
    with ops.on("cpu"):
        return gemv.gemv(a, x, out=np.full(a.shape[1], np.nan, np.float32), rung=rung.name)


def _off(y: np.ndarray, expected: np.ndarray) -> float:
    worst = float(np.abs(y.astype(np.float64) - expected).max())
    return worst if worst == worst else float("inf")


def _random(seed: int, k: int, n: int, low: float = 0.0, high: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if high:
        return (rng.uniform(low, high, s).astype(np.float32) for s in ((k, n), k))  # type: ignore[return-value]
    return rng.standard_normal((k, n)).astype(np.float32), rng.standard_normal(k).astype(np.float32)


def _exact(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ a.astype(np.float64)


def _budget(a: np.ndarray, x: np.ndarray) -> float:
    """What the course's gate allows: twice the error of FP32 sums in the order of k, or one unit."""
    exact, plain = _exact(a, x), np.zeros(a.shape[1], np.float32)
    for row, factor in zip(a, x, strict=True):
        plain += row * factor
    return gate.error_budget(_off(plain, exact), exact, np.float32)


def items(rung: Rung) -> Iterator[tuple[str, Row]]:
    """D1 to D10 of one rung: item and what it found."""

    def of(a: np.ndarray, x: np.ndarray, expected: np.ndarray) -> float:
        return _off(_product(rung, a, x), expected)

    _, x = _random(1, 64, 64)
    yield "D1", ("worst error, identity", of(np.eye(64, dtype=np.float32), x, x), 0.0)
    yield "D2", ("worst error, zeros", of(np.zeros((64, 64), np.float32), x, np.zeros(64)), 0.0)
    whole = np.round(x)
    yield "D3", ("worst error, ones", of(np.ones((64, 64), np.float32), whole, np.full(64, whole.sum())), 0.0)
    small, by = np.arange(32, dtype=np.float32).reshape(4, 8), np.array([1, -2, 3, -4], np.float32)
    yield (
        "D4",
        ("worst error, 4 x 8", of(small, by, small[0] - 2 * small[1] + 3 * small[2] - 4 * small[3]), 0.0),
    )
    a, x = _random(5, 64, 64)
    yield "D5", ("worst error, 64 x 64", of(a, x, _exact(a, x)), 1e-5)
    size = LARGE
    a = (np.arange(size * size, dtype=np.float32) * np.float32(1e-4)).reshape(size, size)
    x = np.arange(size, dtype=np.float32) * np.float32(1e-3)
    found, exact = _product(rung, a, x), _exact(a, x)
    yield "D6", (f"worst error, {size} x {size}", _off(found, exact), 1e-4)
    yield "D6 possible", (f"worst error, {size} x {size}", _off(found, exact), _budget(a, x))
    yield "D6 unit", ("one unit of the largest output", float(np.spacing(np.float32(exact.max()))), 1e-4)
    a, x = _random(7, 96, 64)
    exact = _exact(a, x)
    clear = np.abs(exact) > 1e-3
    wrong = int((np.sign(_product(rung, a, x)) != np.sign(exact))[clear].sum())
    yield "D7", ("wrong signs", wrong, 0.0)
    a, x = _random(8, 96, 64, 1e6, 1e7)
    yield "D8", ("not finite, 1e6 to 1e7", float((~np.isfinite(_product(rung, a, x))).sum()), 0.0)
    a, x = _random(9, 96, 64, 1e-6, 1e-5)
    exact = _exact(a, x)
    yield (
        "D9",
        (
            "worst relative error, 1e-6 to 1e-5",
            float((np.abs(_product(rung, a, x) - exact) / exact).max()),
            1e-5,
        ),
    )
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(1000 + seed)
        a, x = _random(seed, int(rng.integers(1, 90)), 4 * int(rng.integers(1, 40)))
        wrong += not of(a, x, _exact(a, x)) <= 1e-5
    yield "D10", ("wrong of 100 random products", wrong, 0.0)


def again(rung: Rung) -> Iterator[tuple[str, Row]]:
    """Whether anything of a call stays: F2 and F5 of the source's list, and what it calls state isolation."""
    (a, x), (_, other) = _random(1, 96, 64), _random(2, 96, 64)
    first = _product(rung, a, x)
    second = _product(rung, a, other)
    yield "F2", ("worst error after another input", _off(second, _exact(a, other)), _budget(a, other))
    third = _product(rung, a, x)
    yield "F2 back", ("changed bits", float((first != third).sum()), 0.0)
    refused = 0
    wrong: list[Callable[[], Any]] = [
        lambda: _product(rung, a, x[:-1]),
        lambda: _product(rung, a.astype(np.float64), x),
        lambda: _product(rung, a[:, ::2], x),
    ]
    for attempt in wrong:
        try:
            attempt()
        except LaunchError:
            refused += 1
    yield "F5", ("wrong inputs let in, and wrong bits afterwards",
                 float(len(wrong) - refused + (first != _product(rung, a, x)).sum()), 0.0)  # fmt: skip


def repeats(operator: str, rung: Rung) -> Row:
    """Distinct results of RUNS launches on poisoned outputs."""
    subject = subjects.subjects(operator, rung.name)[-1]
    found = set()
    with ops.on("cpu"):
        for _ in range(RUNS):
            for array in subject.work.outputs[0]:
                array.reshape(-1).view(np.uint8).fill(0xA5)
            subject.work.launch(0)
            found.add(hashlib.sha256(b"".join(a.tobytes() for a in subject.work.outputs[0])).hexdigest())
    return f"distinct results of {RUNS} runs, {subject.shape}", float(len(found)), 1.0


def last_portable() -> list[tuple[str, Rung]]:
    """The last rung of every operator that the CPU runs and a subject exists for."""
    return list(
        {
            operator: (operator, rung)
            for operator, rung in subjects.portable()
            if operator in mutations.OPERATORS
        }.values()
    )


def current(rung: Rung) -> str:
    """The identity of a rung's rows: its source with headers, and this suite."""
    text = rung.path.read_text()
    return identity("suite", "\n".join([*portable_headers(text).values(), text]), None)


def make() -> pd.DataFrame:
    """Run everything: COLUMNS."""
    rows = []
    for rung in gemv.LADDERS["gemv"]:
        for item, found in (*items(rung), *again(rung)):
            rows.append((item, "gemv", rung.name, *found, current(rung)))
    for operator, rung in last_portable():
        rows.append(("F1", operator, rung.name, *repeats(operator, rung), current(rung)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def path(root: Path | None = None) -> Path:
    """Where the suite's values are kept."""
    return (root or DATA) / "cpu" / "suite.csv"


def write(root: Path | None = None) -> Path:
    """Run the suite and record it."""
    table, file = make(), path(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False, lineterminator="\n", float_format="%.6g")
    return file


def read(root: Path | None = None) -> pd.DataFrame:
    """The recorded values, COLUMNS; MissingRecording names the command that makes them."""
    file = path(root)
    if not file.is_file():
        raise MissingRecording("The numeric suite is not recorded: `rooflab trace suite` makes it.")
    return pd.read_csv(file, keep_default_na=False)
