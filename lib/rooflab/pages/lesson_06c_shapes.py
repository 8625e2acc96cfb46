"""What lesson 06c shows of the source's shapes: every kernel's error there, and its allowances."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.analysis import attention as analysis
from rooflab.pages import Rows
from rooflab.pages.lesson_06c_limits import LEAST_LIMIT
from rooflab.pages.lesson_06c_rounding import HALF
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.studies import attention_work
from rooflab.view import display
from rooflab.words import listed

FP16_SUMS = "3_half2"  # the rung that adds up scores in FP16


class Inputs(NamedTuple):
    """One of the source's shapes with random numbers of the CPU's: exact outputs, their RMS, and the gate's
    limits in units of a row's largest output, for sums of scores in FP32 and in FP16.
    """

    words: str
    shape: study.Shape
    q: Any
    k: Any
    v: Any
    expected: Any
    rms: float
    limits: tuple[float, float]

    def error(self, out: Any) -> float:
        """The largest error of an output as the gate takes it: in units of its row's largest exact output."""
        unit = abs(self.expected).max(axis=-1, keepdims=True)
        return float((abs(out.astype(float) - self.expected) / unit).max())


@functools.cache
def on_cpu() -> tuple[Inputs, ...]:
    """Every shape of the source's, computed here."""
    found = []
    for case in asks.tolerance():
        if case.impl != FP16_SUMS:
            continue
        shape = study.shape_of(case)
        with ops.on("cpu"):
            q, k, v = attention_work.operands(shape)
            expected = attention_work.exact(q, k, v, shape)
            plain = [_half(attention_work.exact(q, k, v, shape, _half, packed)) for packed in (False, True)]
        rms = float(np.sqrt((expected**2).mean()))
        given = Inputs(analysis.in_words(case), shape, q, k, v, expected, rms, (0.0, 0.0))
        first, second = (max(2 * given.error(each), LEAST_LIMIT) for each in plain)
        found.append(given._replace(limits=(first, second)))
    return tuple(found)


def _half(x: Any) -> Any:
    """Numbers rounded to FP16."""
    return x.astype(np.float16).astype(np.float32)


def over_rounding(found: Rows) -> pd.Series:
    """Of each kernel: its error over what rounding the output costs, on the shape where that is most."""
    least = found.groupby("config")["rounding"].transform("max")
    return (found["worst_rms"] / least).groupby(found["impl"]).max()


def source_test(answers: Any, rungs: list[Any]) -> None:
    """Say how far kernels are off on the shapes of the source's tests, with every figure folded."""
    found = answers("tolerance")
    named = list(found["config"].unique())
    over = over_rounding(found)
    order = [name for name in (*rungs, *asks.SDPA) if name in over.index]
    display.say(f"{_off_by(over)} {_allowed(found, order)}")
    items = "\n".join(f"{i}. {name}" for i, name in enumerate(named, 1))
    table = (1e3 * found.set_index(["impl", "config"])["worst_rms"]).unstack()[named].loc[order]
    table.loc["rounding alone"] = 1e3 * found.groupby("config")["rounding"].max()[named]
    table.columns = pd.Index([str(i) for i, _ in enumerate(named, 1)])
    names = {"impl": "Who"} | {name: name for name in table.columns}
    forms = dict.fromkeys(table.columns, "{:.1f}")
    meant = "*8/2 heads*: 8 query heads over 2 heads of keys and values. *Window*: how many keys a query "
    meant += f"sees. *From position 33*: 33 cached tokens come before the first query. {_floor(found)}"
    caption = "Largest error, ‰ of the RMS, by shape; blank where a kernel cannot do the shape"
    parts = [f"{items}\n\n{meant}", (table.rename_axis("impl").reset_index(), names, forms, caption)]
    display.fold_parts("The shapes, and every kernel's error on each", parts)


def _off_by(over: pd.Series) -> str:
    """How far kernels are off beside rounding, the one with FP16 sums named apart."""
    rest = over.drop(FP16_SUMS, errors="ignore")
    text = f"**All kernels{f' but {FP16_SUMS}' if FP16_SUMS in over else ''} "
    text += f"err by at most {rest.max():.1f} times what rounding the output costs**"
    if FP16_SUMS in over:
        text += f" ({FP16_SUMS}, with FP16 sums: {over[FP16_SUMS]:.1f} times)"
    return f"{text}, on every shape. The gate's limits are not recorded for them."


def _allowed(found: Rows, order: list[Any]) -> str:
    """Which kernels exceed each of the source's allowances."""
    worst, said = found.groupby("impl")["worst_rms"].max(), []
    for name, allowed in asks.TOLERANCES.items():
        out = [who for who in order if worst[who] > allowed]
        who = "all" if len(out) == len(order) else listed(out)
        said.append(f"{1e3 * allowed:g} ({name}) is " + (f"exceeded by {who}" if out else "kept by all"))
    return f"Of its allowances, in ‰ of the RMS, {'; '.join(said)}."


def _floor(found: Rows) -> str:
    """What rounding outputs to FP16 alone costs in the source's unit."""
    floor = found["rounding"].max()
    return (
        f"An output {floor / HALF:.1f} times the RMS is off by up to {1e3 * floor:.1f} ‰ of it by rounding "
        "to FP16 alone; the source's outputs are FP32."
    )
