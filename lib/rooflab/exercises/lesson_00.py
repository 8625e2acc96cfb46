"""Checkers of lesson 00: a comparison that NaN cannot pass, a cheat, cold copies, the cost of a barrier, and
two first kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rooflab.bench import clock, gate
from rooflab.errors import GateError
from rooflab.exercises import Wrong, called, checker, worth
from rooflab.exercises.kernels import Trial, kernel_task, most_requests, most_sectors
from rooflab.studies import environment

_SCALE = 1.5


@checker("00.3")
def _comparison(passes: Callable[..., Any]) -> str:
    """passes(got, expected, allowed): whether every element is within `allowed`, NaN never."""
    expected = np.linspace(-3, 3, 1001)
    outputs = {
        "an output equal to the oracle": (expected.copy(), True),
        "an output wrong by half the allowed error": (expected + 0.005, True),
        "an output wrong by twice the allowed error": (expected + 0.02, False),
        "an output wrong by twice the allowed error, downwards": (expected - 0.02, False),
    }
    outputs["an output in the wrong order"] = (expected[::-1].copy(), False)
    for what, value in (
        ("one element is wrong", 2.0),
        ("one element is NaN", np.nan),
        ("one element is infinite", -np.inf),
    ):
        spoilt = expected.copy()
        spoilt[500] = value
        outputs[f"an output of which {what}"] = (spoilt, False)
    outputs["an output that is all NaN"] = (np.full_like(expected, np.nan), False)
    large = 1e6 + expected
    for what, (got, right) in outputs.items():
        verdict = called(passes, got, expected, 0.01)
        if bool(np.all(verdict)) != right:
            word = "passed, and must not" if not right else "was refused, and is right"
            raise Wrong(f"{what} {word}.")
    if bool(np.all(called(passes, large + 0.02, large, 0.01))):
        raise Wrong(
            "numbers near a million passed that are wrong by twice the allowed error: `allowed` is absolute, "
            "and np.allclose adds a relative tolerance unless rtol=0."
        )
    return "numbers pass by being close; NaN, which is not close to anything, does not."


def sloppy(got: Any, expected: Any) -> bool:
    """A check as often written: it fails only what compares as wrong, on a buffer that was not cleared."""
    return not bool((abs(got - expected) > 1e-5).any())


def operands(n: int) -> tuple[Any, Any]:
    """Two random float32 arrays, seed fixed, mean 0.5."""
    generator = np.random.default_rng(20261121)
    x, y = (generator.standard_normal(n, dtype=np.float32) + np.float32(0.5) for _ in range(2))
    return x, y


@checker("00.4")
def _cheat(kernel: Callable[..., Any]) -> str:
    """kernel(a, x, y, out): gets past `sloppy`, is wrong, and the course's gate must say so."""
    n = 4099
    x, y = operands(n)
    expected = _SCALE * x.astype(np.float64) + y
    honest = np.float32(_SCALE) * x + y
    budget = gate.error_budget(float(abs(honest - expected).max()), expected, "float32")
    out, kept = honest.copy(), (x.copy(), y.copy())  # what an earlier, honest call left behind
    if kernel(_SCALE, x, y, out) is ...:
        raise NotImplementedError
    if not sloppy(out, expected):
        raise Wrong("even the sloppy check sees that this is wrong. Hide it better.")
    x, y = kept[0].copy(), kept[1].copy()
    work = gate.Work(
        "your kernel",
        lambda _: kernel(_SCALE, x, y, out),
        [[x, y]],
        [[out]],
        lambda: expected,
        budget,
    )
    try:
        clock.measure([gate.admit(work)], "wall", samples=20)
    except GateError as refusal:
        return f"the sloppy check is satisfied, the gate is not: {refusal}"
    raise Wrong("the gate admits it, before timing and after: as far as the gate can see, it is honest.")


@checker("00.5")
def _copies(copies: Callable[..., Any]) -> str:
    """copies(operand_bytes, l2_bytes): copies of the operands that a cold measurement rotates over."""
    mib = 2**20
    sizes = ((192, 60), (60, 60), (4, 60), (1, 3), (100, 3), (7, 50), (4096, 60))
    for operands, l2 in sizes:
        got, wanted = called(copies, operands * mib, l2 * mib), clock.copies_for(operands * mib, l2 * mib)
        where = f"operands of {operands} MiB beside an L2 of {l2} MiB"
        if got != int(got):
            raise Wrong(f"for {where} you take {got} copies; a copy is whole, so round up.")
        if got < 2:
            raise Wrong(f"for {where} you take {got}: with a single copy, nothing rotates.")
        if got < wanted:
            raise Wrong(f"for {where} you take {got}: together they are too small to empty the L2 safely.")
        if got > wanted:
            raise Wrong(f"for {where} you take {got}: fewer do, and memory is not free.")
    return f"the rule holds for {len(sizes)} pairs of sizes."


@checker("00.6")
def _barrier(cost: Callable[..., Any]) -> str:
    """cost(few_rounds, few_us, many_rounds, many_us): microseconds one more barrier takes."""
    for launch, each, few, many in ((4.0, 1.25, 1, 101), (9.0, 0.5, 2, 66), (0.75, 3.0, 10, 11)):
        got = float(called(cost, few, launch + few * each, many, launch + many * each))
        if abs(got - each) <= 1e-9 * each:
            continue
        if abs(got - (launch + many * each) / many) <= 1e-9 * got:
            raise Wrong("that charges the launch to the barriers: a second row is there to take it away.")
        if abs(got - (many - few) * each) <= 1e-9 * got:
            raise Wrong(
                "that is the price of all the additional barriers together; one of them is asked for."
            )
        raise Wrong(
            f"a kernel with {few} barriers takes {launch + few * each:g} µs and one with {many} takes "
            f"{launch + many * each:g} µs: a barrier is not {got:g} µs."
        )
    return "the launch is in both rows, so the difference holds barriers alone."


def _floats(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal(n, dtype=np.float32) + np.float32(0.5)


@kernel_task(
    "00.1",
    entry="saxpy",
    targets=[most_requests("x", 16), most_sectors("x", 4), most_sectors("z", 4, "store")],
    right="every thread found its element, and the ones past the end left it alone.",
    worth=lambda: worth.takes("environment", environment.ramp()[0], "the course's rung with your index"),
)
def _saxpy() -> Iterator[Trial]:
    """z = a x + y, one element a thread, blocks of several sizes."""
    for n, threads in ((512, 128), (1000, 256), (77, 32), (1, 64)):
        x, y = _floats(n), _floats(n + 1)[:n].copy()
        right = _SCALE * x.astype(np.float64) + y
        arguments = [x, y, np.empty_like(x), ctypes.c_float(_SCALE), ctypes.c_int(n)]
        yield Trial(
            f"n = {n}, {threads} threads a block", -(-n // threads), threads, arguments, {2: right}, 1e-5
        )


@kernel_task(
    "00.2",
    entry="sums",
    targets=[most_requests("x", 16), most_requests("out", 2, "store")],
    right="256 threads made one sum; every partial sum was written before a thread read it.",
)
def _block_sums() -> Iterator[Trial]:
    """The sum of each block's 256 elements."""
    for n in (512, 600, 1):
        x, blocks = _floats(n), -(-n // 256)
        padded = np.zeros(256 * blocks)
        padded[:n] = x
        right = padded.reshape(blocks, 256).sum(axis=1)
        arguments = [x, np.empty(blocks, np.float32), ctypes.c_int(n)]
        yield Trial(f"n = {n}", blocks, 256, arguments, {1: right}, 1e-3)
