"""What lesson 04c shows of the units that its kernels keep busy, by the counters."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import studies
from rooflab.lab import Lab
from rooflab.pages import Rows
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
    waits |= {"stall_barrier": "barriers", "stall_wait": "the result of an earlier instruction"}
    waits |= {"stall_math_pipe_throttle": "a busy unit", "stall_mio_throttle": "a full queue"}
    seen["waits"] = [waits[row.astype(float).idxmax()] for _, row in seen[list(waits)].iterrows()]
    rungs = [f"{counted(c.batch, 'token')}: rung {c.impl.partition('_')[0]}" for c in of]
    columns = [study.own_rung(c)[1].get("TOKENS", c.batch) for c in of]
    seen["build"] = [f"{rung}, {wide} columns" for rung, wide in zip(rungs, columns, strict=True)]
    numbers = ["dram_pct", "tensor_pct", "issue_active", "occupancy_pct"]
    seen[numbers] = seen[numbers].apply(pd.to_numeric)
    seen["slot"] = 100 * seen["issue_active"]
    names = {"shape": "n × k", "batch": "Tokens", "dram_pct": "DRAM busy %"}
    names |= {"tensor_pct": "Tensor busy %", "slot": "Slots used %"}
    names |= {"waits": "Waits most for"}
    forms = dict.fromkeys((*numbers, "slot"), "{:.0f}")
    most = most_counted(seen)
    if len(most):
        title = f"How busy each unit is, {most['shape'].iloc[0]}"
        fig, ax = plot.figure("% of its most", title=title, height=1.5 + 0.45 * len(most))
        parts = {"memory (DRAM)": most["dram_pct"], "tensor cores": most["tensor_pct"]}
        parts |= {"issue slots": most["slot"]}
        plot.grouped(ax, list(most["build"]), parts)
        plot.show(
            fig,
            f"{title}, counted by ncu on {gpu}: 100% would be a unit at its limit; "
            "memory's limit is the profiler's, not the measured read roof. Tensor cores multiply all columns "
            "of a build, empty ones too; another rung may keep them busy longer for a column.",
        )
    display.table(seen, names, forms, f"The same for every shape that was counted on {gpu}", folded=True)
    return seen


def most_counted(seen: Rows) -> Rows:
    """The rows of the last shape of those that were counted at the most batches, by batch."""
    if seen.empty:
        return seen
    batches = seen.groupby("shape", sort=False)["batch"].count()
    return seen[seen["shape"] == batches.index[batches == batches.max()][-1]].sort_values("batch")
