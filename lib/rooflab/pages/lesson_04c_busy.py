"""What lesson 04c shows of the units that its kernels keep busy, by the counters."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import studies
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_stops import bound_us
from rooflab.studies import int4 as study
from rooflab.view import display, plot
from rooflab.words import counted, times


def busy_units(here: Lab, shapes: list[Any], gpu: str) -> Rows:
    """Show how busy DRAM, tensor cores and issue slots are; the counters."""
    ((tool, asked, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    wanted = [study.chosen(n, k, b, here.sized) for n, k in shapes for b in (1, 16, 64)]
    wanted = [c for c in wanted if c in asked]
    seen = here.profile("int4", wanted, tool, metrics)
    of = seen["case"].map({c.id: c for c in wanted})
    seen["shape"] = [f"{c.n:,} × {c.k:,}" for c in of]
    seen["batch"] = [c.batch for c in of]
    waits = {"stall_long_scoreboard": "memory", "stall_short_scoreboard": "shared memory"}
    waits |= {"stall_barrier": "barriers", "stall_wait": "the instruction before"}
    waits |= {"stall_math_pipe_throttle": "a busy unit", "stall_mio_throttle": "a full queue"}
    seen["waits"] = [waits[row.astype(float).idxmax()] for _, row in seen[list(waits)].iterrows()]
    numbers = ["dram_pct", "tensor_pct", "issue_active", "occupancy_pct"]
    seen[numbers] = seen[numbers].apply(pd.to_numeric)
    seen["slot"] = 100 * seen["issue_active"]
    names = {"shape": "n × k", "batch": "Tokens", "dram_pct": "DRAM busy %"}
    names |= {"tensor_pct": "Tensor busy %", "slot": "Slots used %"}
    names |= {"waits": "Waits most for"}
    forms = dict.fromkeys((*numbers, "slot"), "{:.0f}")
    most = _most_counted(seen)
    if len(most):
        title = f"How busy each unit is, {most['shape'].iloc[0]}"
        fig, ax = plot.figure("% of its most", title=title, height=1.5 + 0.45 * len(most))
        parts = {"memory (DRAM)": most["dram_pct"], "tensor cores": most["tensor_pct"]}
        parts |= {"issue slots": most["slot"]}
        plot.grouped(ax, [counted(batch, "token") for batch in most["batch"]], parts)
        plot.show(fig, f"{title}, counted by ncu on {gpu}: 100% would be a unit at its limit.")
    display.table(seen, names, forms, f"The same for every shape that was counted on {gpu}", folded=True)
    return seen


def _most_counted(seen: Rows) -> Rows:
    """The rows of the last shape of those that were counted at the most batches, by batch."""
    if seen.empty:
        return seen
    batches = seen.groupby("shape", sort=False)["batch"].count()
    return seen[seen["shape"] == batches.index[batches == batches.max()][-1]].sort_values("batch")


def gap_explained(seen: Rows, one: Rows, here: Lab) -> None:
    """Say how busy the busiest unit is for the fewest and the most tokens, why none is busy all the time, and
    why the tensor cores may be busier for fewer tokens; `one` has the times of the drawn shape.
    """
    text = "Nsight Compute could not count here."
    if len(seen):
        rows = _most_counted(seen)
        few, many = rows.iloc[0], rows.iloc[-1]
        units = {"memory is": many["dram_pct"], "the tensor cores are": many["tensor_pct"]}
        units |= {"the issue slots are": many["slot"]}
        unit, busiest = max(units.items(), key=lambda each: each[1])
        text = f"**At {counted(few['batch'], 'token')} memory is {few['dram_pct']:.0f}% busy"
        if few["batch"] != many["batch"]:
            text += f"; at {many['batch']} {unit} the busiest unit, {busiest:.0f}% of the time"
        text += ".** "
        if busiest < 80:
            text += "A likely reason, not measured: weights must arrive before they are unpacked, and be "
            text += f"unpacked before they are multiplied; at {counted(many['batch'], 'token')} an "
            text += f"SM holds {many['occupancy_pct']:.0f}% of the warps that it could hold, so few others "
            text += "fill the gaps. "
        text += _busier_for_fewer(rows, one, here)
    display.say(text.strip())


def _busier_for_fewer(rows: Rows, one: Rows, here: Lab) -> str:
    """Why the tensor cores are busier for the fewest tokens than for the next ones, where they are and the
    two are different rungs: how long each keeps them busy for a column.
    """
    us = one[one["who"] == "ours"].dropna(subset="median_us").set_index("batch")["median_us"]
    if len(rows) < 2 or one.empty or rows["shape"].iloc[0] != one["shape"].iloc[0]:
        return ""
    found = []
    for at in rows.iloc[:2].itertuples():
        case = study.chosen(int(one["n"].iloc[0]), int(one["k"].iloc[0]), at.batch, here.sized)
        built = study.own_rung(case)[1]
        if at.batch not in us.index or not built.get("TOKENS") or not at.tensor_pct:
            return ""
        number = case.impl.partition("_")[0]
        found.append((number, at.tensor_pct * us[at.batch] / built["TOKENS"], at, built["TOKENS"]))
    (before, long, few, columns), (after, short, more, wide) = found
    if before == after or not few.tensor_pct > more.tensor_pct or not long > short:
        return ""
    text = f"The tensor cores are busier at {counted(few.batch, 'token')} than at {more.batch}, though rung "
    text += f"{before} multiplies by {columns} columns there and rung {after} by {wide}: rung {before} "
    text += "keeps them busy "
    text += f"{times(long / short)} times as long for a column"
    also = " Part of that is one product more, which takes the codes' offset away." * (before in ("8", "9"))
    return f"{text}.{also} "


def worst_uncounted(seen: Rows, one: Rows, read_roof: float, peak: float | None) -> str:
    """Where ours is furthest from its bound on the drawn shape, if nothing was counted there."""
    ours = one[one["who"] == "ours"].dropna(subset="median_us")
    if ours.empty or seen.empty:
        return ""
    least = [bound_us(at.n, at.k, at.batch, "int4_g128", read_roof, peak) for at in ours.itertuples()]
    over = (ours.set_index("batch")["median_us"] / least).sort_values()
    batch = over.index[-1]
    if batch in set(seen.loc[seen["shape"] == ours["shape"].iloc[0], "batch"]):
        return ""
    return (
        f"What holds ours back at {counted(batch, 'token')}, where it is furthest from its bound "
        f"({over.iloc[-1]:.2f} times): the counters were not read there."
    )
