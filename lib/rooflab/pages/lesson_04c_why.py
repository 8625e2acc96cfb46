"""What lesson 04c's record rules out, and what it leaves open, of why its kernels stay behind their bound."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_busy import most_counted
from rooflab.pages.lesson_04c_large import free_up_to
from rooflab.pages.lesson_04c_picks import Step, differ, grows_by_builds
from rooflab.view import display
from rooflab.words import counted, listed

_UNITS = {"dram_pct": "memory", "tensor_pct": "tensor cores", "slot": "issue slots"}


def behind_the_bound(
    here: Lab, drawn: Any, one: Rows, table: Rows, peak: float | None, step: Step | None, seen: Rows
) -> None:
    """Say once that the cause of growing more than the bound is not known, where ours does; what the record
    rules out; and what changes where time steps up most.
    """
    us = one[one["who"] == "ours"].set_index("batch")["median_us"].dropna().sort_index()
    least, free = table.set_index("batch")["ours"], free_up_to(table)[0]
    counters = [line for line in (_full_units(seen, drawn), _waits(seen)) if line]
    counters = counters or ["Nsight Compute could not count here."]
    known = {least.index[0], free} <= set(us.index) and free > least.index[0]
    grown = us[free] / us[least.index[0]] if known else 1.0
    bound = least[free] / least.iloc[0]
    if grown <= 1.05 * bound:
        lines = counters
        if known:
            head = f"At {counted(free, 'token')} ours takes {grown:.2f} times its time at {least.index[0]}, "
            head += f"the bound {bound:.2f} times its own."
            lines = [head, *lines]
        return display.say("\n".join(f"- {line}" for line in lines))
    lines = list[str]()
    math = roofline.gemm_flops(free, *drawn) / peak / 1e6 if peak else None
    if math and math < 0.9 * us[free]:
        lines.append(
            f"**Not the operations of the bound**: at the peak they take {math:.1f} of the {us[free]:.1f} µs."
        )
    if step and grows_by_builds(step):
        lines.append("**Not a further token of the same build**: time steps up where the build changes.")
    lines += counters
    if step:
        changes = differ(here, drawn, step)
        open_now = f"**Open**: {changes[0].lower()}{changes[1:]}"
        lines.append(open_now + _uncounted(seen, step, drawn))
    display.say(
        f"**Why {counted(free, 'token')} take {grown:.2f} times as long as {least.index[0]}, where the bound "
        f"has {bound:.2f}, is not known.**"
    )
    display.fold_parts(
        "What the record rules out, and what it leaves open", ["\n".join(f"- {x}" for x in lines)]
    )


def _full_units(seen: Rows, drawn: Any) -> str:
    """That no unit is at its limit at any number of tokens that was counted, or that one nearly is."""
    rows = most_counted(seen).dropna(subset=list(_UNITS)) if len(seen) else seen
    if rows.empty:
        return ""
    shares = rows[list(_UNITS)].astype(float)
    busy = [
        f"{_UNITS[row.idxmax()]} {row.max():.0f}% at {counted(at, 'token') if not k else at}"
        for k, (at, (_, row)) in enumerate(zip(rows["batch"], shares.iterrows(), strict=True))
    ]
    shape = rows["shape"].iloc[0]
    where = "" if shape == f"{drawn[0]:,} × {drawn[1]:,}" else f" at {shape}"
    if shares.max(axis=None) < 90:
        return f"**Not a full unit** of the three, where counters were read. Busiest{where}: {listed(busy)}."
    return f"**A unit is near its limit** in places. Busiest{where}: {listed(busy)}."


def _waits(seen: Rows) -> str:
    """What the warps wait for most, by number of tokens."""
    rows = most_counted(seen) if len(seen) else seen
    kinds: dict[str, list[int]] = {}
    for batch, what in zip(rows.get("batch", []), rows.get("waits", []), strict=True):
        kinds.setdefault(what, []).append(batch)
    if not kinds:
        return ""
    said = [f"for {what} at {listed(at)} {'token' if at == [1] else 'tokens'}" for what, at in kinds.items()]
    return f"Warps wait most {', '.join(said)}."


def _uncounted(seen: Rows, step: Step, drawn: Any) -> str:
    """That counters of the build after the step are missing, where they are."""
    if seen.empty:
        return ""
    shape = f"{drawn[0]:,} × {drawn[1]:,}"
    counted_at = set(pd.to_numeric(seen.loc[seen["shape"] == shape, "batch"]))
    return "" if step.after in counted_at else f" At {counted(step.after, 'token')} no counters were read."
