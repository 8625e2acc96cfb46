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
from rooflab.words import counted


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
        plot.show(
            fig,
            f"{title}, counted by ncu on {gpu}: 100% would be a unit at its limit; "
            "memory's limit is the profiler's, not the measured read roof.",
        )
    display.table(seen, names, forms, f"The same for every shape that was counted on {gpu}", folded=True)
    return seen


def _most_counted(seen: Rows) -> Rows:
    """The rows of the last shape of those that were counted at the most batches, by batch."""
    if seen.empty:
        return seen
    batches = seen.groupby("shape", sort=False)["batch"].count()
    return seen[seen["shape"] == batches.index[batches == batches.max()][-1]].sort_values("batch")


def gap_explained(seen: Rows) -> None:
    """Say, for each number of tokens that was counted, which unit is the busiest and how busy, and what its
    warps wait for most.
    """
    if seen.empty:
        return display.say("Nsight Compute could not count here.")
    names = {"dram_pct": "memory", "tensor_pct": "the tensor cores", "slot": "the issue slots"}
    rows, lines = _most_counted(seen).dropna(subset=list(names)), list[str]()
    for _, row in rows.iterrows():
        unit = row[list(names)].astype(float).idxmax()
        lines.append(
            f"- **{counted(row['batch'], 'token')}**: the busiest is {names[unit]}, {row[unit]:.0f}% of its "
            f"most. Warps wait most for {row['waits']}."
        )
    most = rows[list(names)].max(axis=None) if lines else 0.0
    text = "None of the three is at its limit. What keeps ours from the bound is not known."
    display.say("\n".join([*lines, "", f"**{text}**" if lines and most < 90 else ""]).strip())


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
