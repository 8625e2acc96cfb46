"""Lesson 05d's climb: what each rung is worth over the one below it."""

from __future__ import annotations

import math
from typing import Any

from rooflab.hardware import device
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.ops import mmq
from rooflab.pages import Rows
from rooflab.studies import mmq as study
from rooflab.view import diagram, display

_REFERENCE = "h200"  # whose data sheet is taken for a device that is no Hopper


def worth(rows: Rows, counted: Rows, name: str) -> None:
    """Say a rung's rate, what it gains on the one below it, and what was counted of both."""
    by, seen = rows.set_index("impl")["median_us"].dropna(), counted.set_index("impl")
    if name not in by.index:
        display.say("*No measurement of this rung on this device.*")
        return
    names = [rung.name for rung in mmq.LADDERS["mmq"]]
    below = names[names.index(name) - 1] if name != names[0] else ""
    halves = study.takes_halves(name)
    rate = float(rows.set_index("impl").loc[name, "tflop_s"])
    text = f"**Measured: {rate:,.0f} {'TFLOP/s' if halves else 'TOP/s'}"
    if below in by.index:
        text += f", {_beside(float(by[below] / by[name]), below.partition('_')[0])}"
    text += f".** {_counted(seen, name, below, halves)}"
    if name == "4_cp_async":
        text += _conversions(seen)
    if name == "5_large_tiles":
        text += _registers(rows.set_index("impl"), seen)
    if name == "6_wgmma":
        text += _tensor_cores(seen)
    display.say(text.strip())


def _beside(gain: float, below: str) -> str:
    """A gain over the rung below as the end of a sentence."""
    said = display.speed(gain)
    return f"{said} of rung {below}" if said.startswith("slower") else f"{said} as rung {below}"


def _counted(seen: Rows, name: str, below: str, halves: bool) -> str:
    """Instructions and unused slots, or for FP16 busy tensor cores, of a rung and of the one below it."""
    if name not in seen.index or seen.loc[name, ["inst_executed", "issue_active"]].isna().any():
        return ""
    row, old = seen.loc[name], seen.loc[below] if below in seen.index else None
    text = f"Its warps execute {row['inst_executed'] / 1e6:,.0f} million instructions"
    before = f" (rung {below.partition('_')[0]}: " if old is not None else ""
    text += f"{before}{old['inst_executed'] / 1e6:,.0f})" if old is not None else ""
    if halves:
        text += f"; its tensor cores are busy in {row['tensor_pct']:.0f}% of the counted cycles"
        return text + (f"{before}{old['tensor_pct']:.0f}%). " if old is not None else ". ")
    text += f"; {1 - row['issue_active']:.0%} of the issue slots pass unused"
    return text + (f"{before}{1 - old['issue_active']:.0%}). " if old is not None else ". ")


def _conversions(seen: Rows) -> str:
    """Why rung 4 executes more instructions than rung 3, where it does."""
    if not {"3_wide", "4_cp_async"} <= set(seen.index):
        return ""
    wide, copied = (float(seen.loc[name, "inst_executed"]) for name in ("3_wide", "4_cp_async"))
    if not copied >= LEVEL * wide:
        return ""
    return (
        "More instructions, because `cp.async` copies scales as they are, in FP16: every warp loads and "
        "converts them beside each product. Rung 3 converts a scale once, on its way to shared memory."
    )


def _registers(by: Rows, seen: Rows) -> str:
    """What rung 5's larger part costs where more slots pass unused than in rung 4."""
    names = ["4_cp_async", "5_large_tiles"]
    if not set(names) <= set(by.index) & set(seen.index) or by.loc[names, "registers"].isna().any():
        return ""
    held, active = by.loc[names, "registers"].astype(int), seen.loc[names, "issue_active"]
    if not (held.iloc[1] > held.iloc[0] and active.iloc[1] < active.iloc[0]):
        return ""
    return (
        f"The larger part has its price: {held.iloc[1]} registers a thread instead of {held.iloc[0]}. So "
        "fewer warps share an SM; most likely that is why more slots pass unused."
    )


def _tensor_cores(seen: Rows) -> str:
    """How long the tensor cores work for the same int8 products by mma and by wgmma."""
    names = ["5_large_tiles", "6_wgmma"]
    known = seen.loc[[name for name in names if name in seen.index], ["tensor_pct", "time_ns"]]
    if len(known) < len(names) or not (known > 0).all(axis=None):
        return ""
    busy = seen.loc[names, "tensor_pct"] / 100 * seen.loc[names, "time_ns"] / 1e3
    operations = 2.0 * math.prod(study.Mmq().case(seen.loc[names[0], "case"]).matrix)
    rates = operations / busy / 1e6  # TOP/s
    text = f"For the same products mma keeps the tensor cores busy for {busy[names[0]]:,.0f} µs, wgmma for "
    text += f"{busy[names[1]]:,.0f}"
    if rates[names[1]] > LEVEL * rates[names[0]]:
        text += f": while busy, they do {rates[names[1]] / rates[names[0]]:.1f} times as much by wgmma"
    return text + "."


def turns_drawn(here: Lab) -> Any:
    """Draw the turns of rung 6, which Hopper alone has: on a lab's device, or on the reference."""
    hopper = here.spec if here.spec and here.spec.has_hopper else device.get(_REFERENCE)
    return diagram.warpgroups_take_turns(hopper)
