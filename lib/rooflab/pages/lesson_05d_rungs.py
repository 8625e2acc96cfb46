"""Lesson 05d's rungs: what each is worth over the one below it, and what its pictures leave out."""

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
from rooflab.view.diagram import svg

_BELOW = {"9_tile_order": "7_fp16_wgmma"}  # rung 8 is no step of the page's climb
_REFERENCE = "h200"  # whose data sheet is taken for a device that is no Hopper


def worth(rows: Rows, counted: Rows, name: str) -> None:
    """Say a rung's rate, what it gains on the one below it, and what was counted of both."""
    by, seen = rows.set_index("impl")["median_us"].dropna(), counted.set_index("impl")
    if name not in by.index:
        display.say("*No measurement of this rung on this device.*")
        return
    names = [rung.name for rung in mmq.LADDERS["mmq"]]
    below = _BELOW.get(name, names[names.index(name) - 1] if name != names[0] else "")
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


def mma_ceiling(here: Lab, counted: Rows) -> None:
    """Say what tensor cores do by mma while they are busy, beside what two instructions a sum allow: which of
    them sets the limit, whether that is above FP16's peak, and how far from it rung 5 is.
    """
    name, seen = "5_large_tiles", counted.set_index("impl")
    wanted = ["tensor_pct", "time_ns", "inst_executed", "issue_active"]
    if not here.spec or name not in seen.index or not (seen.loc[name, wanted] > 0).all():
        return
    case = study.Mmq().case(seen.loc[name, "case"])
    each, row, operations = study.operations_of(name) or 0, seen.loc[name], 2.0 * math.prod(case.matrix)

    def rate(of: Any) -> float:  # TOP/s while the tensor cores are busy
        return operations / (of["tensor_pct"] / 100 * of["time_ns"]) / 1e3

    busy, half = row["tensor_pct"] / 100 * row["time_ns"] / 1e3, here.spec.fp16_tensor
    bound = study.issue_bound(here.spec, each)
    text = f"**Is mma itself too slow?** Rung 5 keeps the tensor cores busy for {busy:,.0f} µs. "
    text += f"In these they do {rate(row):,.0f} TOP/s, mma's own ceiling at the counted clock"
    if "6_wgmma" in seen.index and (seen.loc["6_wgmma", wanted] > 0).all():
        text += f" (wgmma's in rung 6: {rate(seen.loc['6_wgmma']):,.0f})"
    limit = min(rate(row), bound)
    text += f". Scaling by {each} instructions allows {bound:,.0f}, so "
    text += "scaling is the tighter limit. " if bound < rate(row) else "mma is the tighter limit. "
    reached = operations / row["time_ns"] / 1e3 / limit
    scaled = (study.scaling(case) or 0) / row["inst_executed"] * row["issue_active"]
    spent = f"scaling takes {scaled:.0%} of its issue slots, other instructions "
    spent += f"{row['issue_active'] - scaled:.0%}, and {1 - row['issue_active']:.0%} pass unused"
    if limit > LEVEL * half:
        text += f"It lies above FP16's peak of {half:,.0f} TFLOP/s: the bound alone does not rule out "
        text += f"int8 by mma on the {here.spec.name}. Rung 5 reaches {reached:.0%} of it: {spent}."
    else:
        text += (
            f"It does not lie above FP16's peak of {half:,.0f} TFLOP/s. Rung 5 reaches {reached:.0%} of it: "
        )
        text += f"{spent}."
    display.say(text)


def who_holds_what() -> None:
    """Draw, folded, which lane holds which of an mma's sums."""
    svg.fold("Drawn: which lane holds which of the 16 × 8 sums", [diagram.accumulators()])


def byte_as_half() -> None:
    """Show, folded, how a quant becomes FP16 without a conversion."""
    text = (
        "FP16 numbers from 1024 to 2047 lie exactly one apart, so a byte in the lower half of such a "
        "number's bits adds its own value. The byte is the quant + 128; one subtraction takes "
        "1024 + 128 off again."
    )
    parts = [text, diagram.byte_to_half().html()]
    display.fold_parts("Two instructions a weight: a quant becomes FP16 without a conversion", parts)


def turns_drawn(here: Lab) -> Any:
    """Draw the turns of rung 6, which Hopper alone has: on a lab's device, or on the reference."""
    hopper = here.spec if here.spec and here.spec.has_hopper else device.get(_REFERENCE)
    return diagram.warpgroups_take_turns(hopper)
