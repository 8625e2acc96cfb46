"""What lesson 06c shows of the source's shapes: every kernel's error there, and its allowances."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.pages import Rows
from rooflab.pages.lesson_06c_faults import FP16_SUMS, over_output_rounding
from rooflab.pages.lesson_06c_limits import all_of
from rooflab.pages.lesson_06c_rounding import HALF
from rooflab.studies import attention_checks as asks
from rooflab.view import display
from rooflab.words import listed

_UNJUDGED = (
    "**No verdict of the gate**: its limits above belong to the CPU's random numbers. The kernels had the "
    "GPU's, and only their errors in RMS are recorded, not in each row's largest output."
)
_HISTORY = (
    "**The source's allowances**: SharpInference tests five of these shapes, and later four more, in RMS of "
    "all outputs. It widened its allowance twice, when keys became FP16 and with tensor cores:"
)


def over_rounding(found: Rows) -> pd.Series:
    """Of each kernel: its error over what rounding the output costs, on the shape where that is most."""
    least = found.groupby("config")["rounding"].transform("max")
    return (found["worst_rms"] / least).groupby(found["impl"]).max()


def source_test(answers: Any, rungs: list[Any]) -> None:
    """Say how far kernels are off on the shapes of the source's tests; folded, its allowances, and every
    figure.
    """
    found = answers("tolerance")
    named = list(found["config"].unique())
    over = over_rounding(found)
    order = [name for name in (*rungs, *asks.SDPA) if name in over.index]
    display.say(_off_by(over))
    items = "\n".join(f"{i}. {name}" for i, name in enumerate(named, 1))
    table = (1e3 * found.set_index(["impl", "config"])["worst_rms"]).unstack()[named].loc[order]
    table.columns = pd.Index([str(i) for i, _ in enumerate(named, 1)])
    names = {"impl": "Who"} | {name: name for name in table.columns}
    table = _grouped(table)
    table.loc["rounding alone"] = (1e3 * found.groupby("config")["rounding"].max()[named]).to_numpy()
    forms = dict.fromkeys(table.columns, "{:.2f}")
    meant = "*8/2 heads*: 8 query heads over 2 heads of keys and values. *Window*: how many keys a query "
    meant += "sees. *From position 33*: 33 cached tokens come before the first query."
    caption = "Largest error, ‰ of the RMS, by shape; blank where a kernel cannot do the shape"
    parts = [
        _UNJUDGED,
        _HISTORY,
        _allowed(found, order),
        _floor(found),
        f"{items}\n\n{meant}",
        (table.rename_axis("impl").reset_index(), names, forms, caption),
    ]
    display.fold_parts("The source's allowances, the shapes, and every kernel's error on each", parts)


def _grouped(table: pd.DataFrame) -> pd.DataFrame:
    """Kernels whose printed errors are alike on every shape as one row."""
    printed = table.map(lambda value: f"{value:.2f}").agg(" ".join, axis=1)
    groups = [list(group.index) for _, group in table.groupby(printed, sort=False)]
    kept = table.loc[[who[0] for who in groups]]
    return kept.set_axis([all_of(who).replace("\n", "; ") for who in groups], axis=0)


def _off_by(over: pd.Series) -> str:
    """How far kernels are off beside rounding, the one with FP16 sums named apart, and the smallest fault."""
    rest = over.drop(FP16_SUMS, errors="ignore")
    fault, least, _ = over_output_rounding()
    text = f"**All kernels{f' but {FP16_SUMS}' if FP16_SUMS in over else ''} "
    text += f"err by at most {rest.max():.2f} times what rounding the output costs, the smallest planted "
    text += f"fault by {least:.2f} times or more.**"
    text += "" if rest.max() < least else " Not every kernel errs by less than the fault."
    if FP16_SUMS in over:
        text += f" {FP16_SUMS}, with its FP16 sums, errs by up to {over[FP16_SUMS]:.2f} times"
        text += ": beside rounding the output alone it looks as wrong as the fault, so a limit must know the "
        text += "roundings" if over[FP16_SUMS] >= least else ""
        text += "."
    return text


def _allowed(found: Rows, order: list[Any]) -> tuple[Any, ...]:
    """Which kernels exceed each of the source's allowances, as a table."""
    worst, lines = found.groupby("impl")["worst_rms"].max(), []
    for name, allowed in asks.TOLERANCES.items():
        out = [who for who in order if worst[who] > allowed]
        lines.append((name, f"{1e3 * allowed:g}", "all" if len(out) == len(order) else listed(out) or "none"))
    names = {"for": "Made for", "allowed": "Allowance (‰ of the RMS)", "out": "Exceeded by"}
    return pd.DataFrame(lines, columns=list(names)), names, {}, ""


def _floor(found: Rows) -> str:
    """What rounding outputs to FP16 alone costs in the source's unit."""
    floor = found["rounding"].max()
    return (
        f"The first was made for FP32 outputs: rounding to FP16 alone moves an output of {floor / HALF:.1f} "
        f"times the RMS by up to {1e3 * floor:.1f} ‰ of the RMS."
    )
