"""Lesson 05d's rungs: what each is worth over the one below it, and what its pictures leave out."""

from __future__ import annotations

import math
from typing import Any

from rooflab.hardware import device
from rooflab.hardware.crossover import LEVEL
from rooflab.hardware.device import Device
from rooflab.lab import Lab
from rooflab.ops import Rung, mmq
from rooflab.pages import Rows
from rooflab.pages.lesson_05d_slots import counted_clock, peak_clock
from rooflab.studies import mmq as study
from rooflab.view import diagram, display
from rooflab.words import listed

_REFERENCE = "h200"  # whose data sheet is taken for a device that is no Hopper


_CHANGES = {  # what a rung changes, as the ladder's table says it
    "1_tile": "load, wait, multiply",
    "2_prefetch": "the next tile loads meanwhile",
    "3_wide": "a tile has twice the tokens",
    "4_cp_async": "copies ahead, by cp.async",
    "5_large_tiles": "square parts; 2 instructions a sum",
    "6_wgmma": "one warpgroup copies, four multiply",
    "7_fp16_wgmma": "weights scaled first, FP16 products",
    "8_stream_k": "tiles left over divided along k",
    "9_tile_order": "weights in the tensor cores' order",
    "10_k_groups": "half a tile; warpgroups and blocks divide k",
}


def climb(rows: Rows, counted: Rows) -> None:
    """Show every rung: what it changes, its tile, what was counted of it, and its rate."""
    seen, found = counted.set_index("impl"), rows[rows["kind"] == "own"].copy()
    counts = seen.reindex(found["impl"])
    found["change"] = [_CHANGES.get(rung.name, rung.idea) for rung in (_rung(name) for name in found["impl"])]
    shapes = [study.tile(study.Mmq().case(case)) for case in found["case"]]
    found["tile"] = [f"{wide}\u00a0×\u00a0{tokens}" for wide, tokens in shapes]
    found["instructions"] = counts["inst_executed"].to_numpy(float) / 1e6
    found["unused"] = 1 - counts["issue_active"].to_numpy(float)
    found.attrs = dict(rows.attrs)
    names = {"impl": "Rung", "change": "What changes", "tile": "Tile"}
    names |= {
        "instructions": "Millions of instructions",
        "unused": "Slots unused",
    }
    names |= {"tflop_s": "TOP/s, TFLOP/s"}
    forms = dict.fromkeys(("instructions", "tflop_s"), "{:,.0f}") | dict.fromkeys(("unused",), "{:.0%}")
    display.table(
        found, names, forms, "The ladder: instructions of warps and slots as Nsight Compute counted them"
    )


def _rung(name: str) -> Rung:
    return next(rung for rung in mmq.LADDERS["mmq"] if rung.name == name)


def price(rows: Rows, counted: Rows, name: str) -> None:
    """Say what a rung's change costs, where that was counted: rung 4's conversions, rung 5's registers."""
    seen = counted.set_index("impl")
    text = _conversions(seen) if name == "4_cp_async" else _registers(rows.set_index("impl"), seen)
    if text:
        display.say(text)


def clock_lowered(here: Lab, counted: Rows) -> None:
    """Say why busy tensor cores do not make the datasheet's rate, where fewer cycles were counted."""
    seen, name = counted.set_index("impl"), "9_tile_order"
    if not here.spec or name not in seen.index:
        return
    row, sheet = seen.loc[name], peak_clock(here.spec)
    ghz = counted_clock(row, here)
    if LEVEL * ghz < sheet and row["tensor_pct"] > 50:
        display.say(
            f"Rung 9's tensor cores are busy in {row['tensor_pct']:.0f}% of the counted cycles, but there "
            f"are {ghz:.2f} of these a nanosecond, where the datasheet's peak counts {sheet:.2f}. Most "
            "likely the power limit lowers the clock ([lesson 00b](00b_clocks.ipynb))."
        )


def given_and_gained(here: Lab, rows: Rows, counted: Rows) -> None:
    """Say what rung 6 gives up, the bound by two instructions a sum, and what it gains: slots that rung 5
    leaves unused, and tensor cores that work faster while they are busy.
    """
    names = ["5_large_tiles", "6_wgmma"]
    seen, by = counted.set_index("impl"), rows.set_index("impl")["tflop_s"].dropna()
    if not here.spec or not set(names) <= set(seen.index) & set(by.index):
        return
    each = [study.operations_of(name) or 0 for name in names]
    bound = [study.scaling_bound(here.spec, few) for few in each]
    unused = [1 - float(seen.loc[name, "issue_active"]) for name in names]
    text = f"`wgmma` needs {each[1]} instructions a sum again, for `mma`'s {each[0]}: "
    text += (
        f"the bound falls from {bound[0]:,.0f} to {bound[1]:,.0f} TOP/s. "
        if bound[1] < bound[0]
        else (f"the bound stays at {bound[1]:,.0f} TOP/s. ")
    )
    if unused[1] < unused[0]:
        text += f"In return, fewer slots pass unused: {unused[1]:.0%} instead of {unused[0]:.0%}. "
    else:
        text += f"No fewer slots pass unused: {unused[1]:.0%} after {unused[0]:.0%}. "
    gain = float(by[names[1]] / by[names[0]])
    text += f"**Rung 6 runs at {gain:.2f} times the speed of rung 5.**"
    busy = [float(seen.loc[name, "tensor_pct"]) for name in names]
    peak = here.spec.int8_tensor
    mma, wgmma = (_while_busy(here.spec, seen.loc[name], here) / peak for name in names)
    if gain > LEVEL and busy[1] < LEVEL * busy[0] and wgmma > LEVEL * mma:
        text += f" Its tensor cores are busy in {busy[1]:.0f}% of the cycles and those of rung 5 in "
        text += f"{busy[0]:.0f}%, but while busy `mma` makes only {mma:.0%} of the datasheet's rate, `wgmma` "
        text += "all of it." if wgmma > 1 / LEVEL else f"{wgmma:.0%}."
    display.say(text)


def _while_busy(spec: Device, of: Any, here: Lab) -> float:
    """TOP/s of a rung's busy tensor cores, by the cycle, at the clock of the datasheet's peak."""
    busy = of["tensor_pct"] / 100 * of["time_ns"] * counted_clock(of, here)
    operations = 2.0 * math.prod(study.Mmq().case(of["case"]).matrix)
    return float(operations / busy / 1e3 * peak_clock(spec)) if busy > 0 else float("nan")


def a_weight(cases: list[Any], counted: Rows) -> None:
    """Say how many instructions rungs 7 and 9 execute for each weight that their tiles unpack."""
    seen, found = counted.set_index("impl"), list[str]()
    for case in (case for case in cases if case.impl in ("7_fp16_wgmma", "9_tile_order")):
        n, k, _ = case.matrix
        unpacked = n * k * study.reads(case)[0]
        each = 32 * float(seen.loc[case.impl, "inst_executed"]) / unpacked
        if each > 0:
            found.append(f"{each:.1f} in rung {case.impl[0]}")
    if found:
        display.say(
            "Unpacking a weight takes 2.5 instructions in rung 7 and 1.5 in rung 9, five and three for two. "
            f"Counted, with those that wait, copy and store: {listed(found)}."
        )


def _conversions(seen: Rows) -> str:
    """Why rung 4 executes more instructions than rung 3, where it does."""
    if not {"3_wide", "4_cp_async"} <= set(seen.index):
        return ""
    wide, copied = (float(seen.loc[name, "inst_executed"]) for name in ("3_wide", "4_cp_async"))
    if not copied >= LEVEL * wide:
        return ""
    return (
        "Rung 4 executes more instructions than rung 3, because `cp.async` copies scales as they are, in "
        "FP16: every warp loads and converts them beside each product. Rung 3 converts a scale "
        "once, on its way to shared memory."
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


def ceilings(here: Lab, rows: Rows, counted: Rows) -> None:
    """List what bounds a product on this GPU, from high to low, each with where it is from and the fastest
    rung under it: datasheet, issue slots, mma as counted, and what a library's products reach.
    """
    own = rows[rows["kind"] == "own"].set_index("impl")["tflop_s"].dropna()
    each = {name: study.operations_of(name) for name in own.index}
    exact, halves = (own[[study.takes_halves(name) == half for name in own.index]] for half in (False, True))
    found: list[tuple[str, float, str, Rows]] = []
    if spec := here.spec:
        found += [
            ("int8 tensor cores", spec.int8_tensor, "datasheet", exact),
            ("FP16 tensor cores", spec.fp16_tensor, "datasheet", halves),
        ]
        for many, which in ((2, "two"), (3, "three")):
            under = own[[each[name] == many for name in own.index]]
            bound = study.scaling_bound(spec, many)
            slots = "issue slots" if bound == study.issue_bound(spec, many) else "conversions"
            slots += f", {which} instructions a sum"
            found += [("int8, sums scaled", bound, slots, under)] if len(under) else []
        seen, name = counted.set_index("impl"), "5_large_tiles"
        if name in seen.index and (seen.loc[name, ["tensor_pct", "time_ns"]] > 0).all():
            mma = _while_busy(spec, seen.loc[name], here)
            found.append(("int8 by `mma`", mma, "counted on rung 5 while its tensor cores work", own[[]]))
    for kind, words in (("int8_tensor", "int8"), ("fp16_tensor", "FP16")):
        if kind in here.roof:
            found.append((f"{words} roof", here.roof[kind].value, "a library's product, lesson 01b", own[[]]))
    lines = [f"**Ceilings on the {here.run['gpu']}**, in TOP/s and TFLOP/s, from high to low:\n"]
    for what, rate, origin, under in sorted(found, key=lambda one: -one[1]):
        line = f"- {what}: **{rate:,.0f}** ({origin})"
        if len(under):
            line += f"; {under.idxmax()} reaches {under.max() / rate:.0%}"
        lines.append(line)
    if found:
        display.say("\n".join(lines))


def who_holds_what() -> None:
    """Draw which lane holds which of an mma's sums."""
    diagram.accumulators().show()


def byte_as_half() -> None:
    """Show how a quant becomes FP16 without a conversion."""
    display.say(
        "**A quant becomes FP16 without a conversion.** FP16 numbers from 1024 to 2047 lie exactly one "
        "apart, so a byte in the lower half of such a number's bits adds its own value. The byte is the "
        "quant + 128; one subtraction takes 1024 + 128 off again."
    )
    diagram.byte_to_half().show()


def turns_drawn(here: Lab) -> Any:
    """Draw the turns of rung 6, which Hopper alone has: on a lab's device, or on the reference."""
    hopper = here.spec if here.spec and here.spec.has_hopper else device.get(_REFERENCE)
    return diagram.warpgroups_take_turns(hopper)
