"""Lesson 05d's issue slots: what scaling sums takes of them by datasheet, and what was counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab import lab
from rooflab.hardware import device, roofline
from rooflab.hardware.crossover import LEVEL
from rooflab.hardware.device import Device
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import mmq as study
from rooflab.view import diagram, display, plot
from rooflab.words import listed

_WGMMA = "6_wgmma"
SCALING = 3  # instructions for a block's sum: convert, multiply, multiply-add
SLOTS = "Instructions that fit, a sum"
_CONVERTED = "Conversions that fit"
_WRITTEN = 0.05  # of the longest bar: plot.stacked writes numbers into parts from there on


def _pays(chip: Device, each: int) -> str:
    """Whether int8 products could pay for Q8_0 on a chip by its datasheet, if scaling a sum takes so many
    instructions: in full, in part (faster than FP16 all the same), or not.
    """
    bound = study.scaling_bound(chip, each)
    if bound >= chip.int8_tensor:
        return "yes"
    return "in part" if bound > LEVEL * chip.fp16_tensor else "no"


def room_on(spec: Device | None, each: int) -> str:
    """Whether int8 pays by datasheet, in sentences: of a chip with slow tensor cores, of one with fast ones
    and of this one.
    """
    said = []
    for chip in _compared(spec):
        room = study.room(chip)
        most = f"{'only ' if room < each else ''}{room:.3g}"
        verdict = _verdict(chip, each)
        alone = "by issue slots alone " if "could" in verdict else ""
        said.append(f"{_the([chip])} can start {most}, so {alone}{verdict}")
    return f"In the time that the tensor cores need for a sum, by datasheet {'; '.join(said)}."


def _verdict(chip: Device, each: int) -> str:
    pays = _pays(chip, each)
    if pays == "no":
        behind = study.scaling_bound(chip, each) * LEVEL < chip.fp16_tensor
        return "FP16 is faster" if behind else "int8 gains nothing over FP16"
    return "int8 could pay in full" if pays == "yes" else "int8 could pay in part"


def published_gain() -> float:
    """How many times as fast as dequantising and cuBLAS MMQ is in the source's figures of an RTX 4070 Ti."""
    told = lab.open("replay", "rtx-4070-ti-published").store.read("mmq").set_index("impl")["median_us"]
    return float(told["cublas"] / told["mmq"])


def _compared(spec: Device | None) -> list[Device]:
    """The chips of the first screen: one with slow tensor cores, one with fast ones, and this one."""
    chips = [device.get("rtx-4090"), device.get("h200")]
    return [*chips, spec] if spec and spec.name not in [chip.name for chip in chips] else chips


def two_instructions() -> None:
    """Say, folded, how scaling a sum takes two instructions instead of three, with a sum worked out."""
    base, total = np.float32(1.5 * 2**23), -1000
    bits = int(base.view(np.int32)) + total
    value = float(np.int32(bits).view(np.float32))
    display.fold_parts(
        "How three instructions become two",
        [
            "Floats near 1.5 × 2²³ lie exactly one apart, so adding a whole number to such a float's *bits* "
            "adds the same number to its *value*. Start the int32 sum at the bits of that float: read as a "
            "float, the result is 1.5 × 2²³ plus the sum, without conversion. "
            f"For a sum of {total:,}: {int(base.view(np.int32)):#x} - {-total:,} = {bits:#x}, which read as "
            f"a float is {value:,.0f} = {float(base):,.0f} - {-total:,}. The multiply-add that scales it "
            "takes the constant off again, exactly.",
            "An `mma` reads what its sums start from in registers of its own, and leaves them as they are: "
            "four that hold the constant serve all products. (In C++ our wrapper passes both as one "
            "variable, `+r`; the compiled instruction has two registers.) `wgmma` adds to the registers that "
            "it writes, or starts at zero: there the constant would have to be written before each product, "
            "one instruction a sum, and nothing is won.",
        ],
    )


def one_sum() -> None:
    """Show a sum of random numbers, quantised as a Q8 block is, and the instructions that scale it."""
    w, x = np.random.default_rng(5).standard_normal((2, 32))
    weight, token = (np.ceil(np.abs(each).max() / 127 * 1e3) / 1e3 for each in (w, x))  # short in print
    q, a = (np.rint(each / scale).astype(int) for each, scale in ((w, weight), (x, token)))
    dot, before = int(q @ a), 1.0
    scaled = dot * weight
    first = " + ".join(f"({i}) × ({j})" for i, j in zip(q[:2], a[:2], strict=True))
    steps = (
        (f"sum = {first} + ... = {dot}", "tensor cores: 32 products, exact"),
        (f"convert          {dot} -> {dot:.1f}", "now a float"),
        (f"multiply         {dot:.1f} × {weight:.3f} = {scaled:.3f}", "the weights' scale"),
        (
            f"multiply, add    {scaled:.3f} × {token:.3f} + {before:.1f} = {scaled * token + before:.3f}",
            f"the activations' scale; {before:.1f} so far",
        ),
    )
    wide = max(len(step) for step, _ in steps)
    said = "\n".join(f"{step.ljust(wide)}   # {what}" for step, what in steps)
    display.say(f"**One sum in numbers**, of random weights and activations:\n\n```text\n{said}\n```")


def _afforded(chips: tuple[Device, ...]) -> str:
    """How many instructions a sum affords on chips, by the cycle of an SM."""
    said = []
    for chip in chips:
        lanes, sums = study.per_cycle(chip)
        said.append(
            f"- {chip.name}: int8 tensor cores make {chip.int8_tensor:,.0f} TOP/s ÷ 2 ÷ {chip.sms} SMs ÷ "
            f"{peak_clock(chip):.2f} GHz ÷ 32 = {sums:g} sums. Lanes that start an instruction: the fewer of "
            f"{study.SLOTS} issue slots × 32 and {_fp32_lanes(chip)} FP32 lanes, {lanes}. {lanes} ÷ "
            f"{sums:g} = **{study.room(chip):.1f}**."
        )
    head = f"A sum needs {SCALING} instructions. How many fit while it is made? In a cycle of an SM, with two"
    head += " operations a multiply-add and 32 multiply-adds a sum:"
    return "\n".join([f"{head}\n", *said])


def _fp32_lanes(chip: Device) -> int:
    """Multiply-adds in FP32 of an SM in a cycle."""
    return roofline.multiply_adds(chip.fp32, chip.sms, chip.boost_mhz / 1e3)


def slots_by_gpu() -> Rows:
    """Say how many instructions a sum affords; draw issue slots beside the tensor cores for three ways; show
    what that makes of int8 on several GPUs, and one GPU's numbers derived, folded; the table.
    """
    fast, slow = device.get("h200"), device.get("rtx-4090")
    display.say(_afforded((slow, fast)))
    diagram.issue_slots((slow, fast), halves=(fast,)).show()
    chips, verdicts = [], {"yes": "in full", "in part": "in part", "no": "no"}
    for chip in _several():
        bound, pays = study.scaling_bound(chip, SCALING), verdicts[_pays(chip, SCALING)]
        fit = [study.room(chip), study.convertible(chip)]
        chips.append([chip.name, *fit, chip.int8_tensor, bound, chip.fp16_tensor, pays])
    columns = ["GPU", SLOTS, _CONVERTED, "int8 peak", "int8, sums scaled", "FP16 peak", "int8 could pay"]
    chips = pd.DataFrame(chips, columns=columns)
    forms = dict.fromkeys(columns[3:6], "{:,.0f}") | {SLOTS: "{:.1f}", _CONVERTED: "{:.2f}"}
    caption = f"TOP/s and TFLOP/s by datasheet, at {SCALING} instructions a sum, one of them a conversion"
    if (chips["int8 could pay"] == "in part").any():
        caption += ". In part: scaling takes longer than the products, but int8 stays ahead of FP16's peak"
    display.say(_by_conversions())
    display.table(chips, dict(zip(columns, columns, strict=True)), forms, caption)
    display.say(_by_which())
    bound = f"{study.issue_bound(fast, SCALING):,.0f} TOP/s"
    display.fold_parts(f"Where 128 lanes and the {fast.name}'s {bound} come from", [_derived(fast)])
    return chips


def _by_conversions() -> str:
    """That a conversion has a rate of its own, and where that and not the slots is the limit."""
    slow, fast = (roofline.conversions(of) for of in ((7, 5), (9, 0)))
    held = [chip for chip in _several() if study.convertible(chip) < study.room(chip) / SCALING]
    text = (
        "One of the three is a **conversion**, which has a rate of its own: by the CUDA C++ Programming "
        f"Guide {slow} a cycle of an SM on compute capability 7.x. For 8.0, the A100, the compiler makes "
        f"the same instruction. From 8.6 on it makes another, taken for {fast} here: not measured, but rungs "
        f"on an H200 convert more than {slow}. The lowest limit holds"
    )
    return f"{text}: on {_the(held)} that is the conversion." if held else f"{text}."


def _several() -> list[Device]:
    return [device.get(name) for name in ("h200", "a100-80gb", "rtx-4090", "rtx-3090", "t4")]


def _by_which() -> str:
    """For which instruction of the tensor cores three hold, and where two change whether int8 pays."""
    text = (
        "Three is what a kernel needs with **wgmma**, by which four warps of a Hopper GPU start its tensor "
    )
    text += "cores. With **mma**, by which one warp of any of these GPUs starts them, "
    return text + f"[rung 5](#rung-5-fewer-fragments-to-load) needs two. {two_change(_several())}"


def two_change(chips: list[Device]) -> str:
    """On which chips scaling by two instructions instead of three changes whether int8 pays, and on which it
    would be level with FP16's peak if a kernel had no other instructions.
    """
    other = [chip for chip in chips if _pays(chip, 2) != _pays(chip, SCALING)]
    text = "The last column stays as it is."
    if other:
        changed = listed(f"{_verdict(chip, 2)} on {_the([chip])}" for chip in other)
        text = f"Then {changed}; for the others the last column stays as it is."
    level = [chip for chip in chips if abs(study.scaling_bound(chip, 2) / chip.fp16_tensor - 1) < LEVEL - 1]
    if level:
        text += f" (On {_the(level)} two would make int8 level with FP16's peak, and a kernel has other "
        text += "instructions, too.)"
    return text


def by_two() -> None:
    """Say what scaling by two instructions allows where three do not fit, beside FP16's peak."""
    chips = [chip for chip in _several() if study.room(chip) < SCALING]
    if not chips:
        return
    said = [
        f"from {study.scaling_bound(chip, SCALING):,.0f} to {study.scaling_bound(chip, 2):,.0f} TOP/s on "
        f"{_the([chip])} (FP16's peak: {chip.fp16_tensor:,.0f})"
        for chip in chips
    ]
    more = [chip for chip in chips if study.scaling_bound(chip, 2) > LEVEL * chip.fp16_tensor]
    above = f"on {_the(more)} alone" if more and len(more) < len(chips) else "on each" if more else "on none"
    display.say(f"By datasheet the bound rises {listed(said)}. Of these it passes FP16's peak {above}.")


def _derived(chip: Device) -> str:
    """How a chip's room and its bound follow from its datasheet, by the cycle of an SM."""
    lanes, sums = study.per_cycle(chip)
    boost, clock, bound = chip.boost_mhz / 1e3, peak_clock(chip), study.scaling_bound(chip, SCALING)
    text = f"The {chip.name}'s numbers, from its datasheet, for a cycle of an SM:\n\n"
    text += f"- **Instructions**: {chip.fp32:g} TFLOP/s in FP32 on {chip.sms} SMs at {boost:.2f} GHz are "
    text += f"{_fp32_lanes(chip)} multiply-adds of single lanes; {study.SLOTS} issue slots start "
    text += f"{32 * study.SLOTS}.\n"
    text += f"- **Sums**: {32 * sums:,.0f} multiply-adds are {sums:g} sums."
    if LEVEL * clock < boost:
        text += (
            f" The datasheet counts the int8 peak at {clock:.2f} GHz, not at {boost:.2f}, so the quotient "
        )
        text += "of its two peaks would be wrong."
    text += (
        f"\n- **Bound**: {study.room(chip):.1f} instructions fit, and scaling needs {SCALING}. So at most "
    )
    text += f"{bound:,.0f} TOP/s can be scaled, {bound / chip.int8_tensor:.0%} of the peak, at its clock."
    return text


def peak_clock(chip: Device) -> float:
    """The clock in GHz at which a chip's datasheet counts its int8 peak."""
    return roofline.clock_of(chip.int8_tensor, chip.sms, chip.boost_mhz / 1e3)


def _the(chips: list[Device]) -> str:
    return listed(f"the {chip.name}" for chip in chips)


def time_by_rung(here: Lab, rows: Rows, tokens: int, n: int, k: int) -> None:
    """Draw the time of each exact rung by what its issue slots did: scaling, other instructions, nothing."""
    own = [c for c in study.ladder(tokens, n, k) if c.kind == "own" and "scale_bytes" not in c.options]
    counted = here.profile("mmq", own, "ncu", study.COUNTERS)
    cases = {case: study.Mmq().case(case) for case in counted["case"]}
    cases = {case: shape for case, shape in cases.items() if not study.takes_halves(shape.impl)}
    by = rows.set_index("impl")["median_us"]
    found = counted[counted["case"].isin(list(cases))]
    found = found[[cases[case].impl in by.index for case in found["case"]]]
    if found.empty:
        return
    shapes = [cases[case] for case in found["case"]]
    us = np.array([by[shape.impl] for shape in shapes])
    used = us * found["issue_active"].to_numpy(float)
    scaling = [study.scaling(shape) or float("nan") for shape in shapes]
    scaled = used * np.nan_to_num(np.array(scaling) / found["inst_executed"].to_numpy(float))
    title = "The time of each rung, by what its issue slots did"
    fig, ax = plot.figure("µs", title=title, height=1.4 + 0.26 * len(shapes))
    parts = {"scaling": scaled, "other instructions": used - scaled, "no instruction": us - used}
    plot.stacked(ax, [shape.impl for shape in shapes], parts, "µs")
    for place, (whole, *each) in enumerate(zip(us, *parts.values(), strict=True)):
        if min(each) < _WRITTEN * us.max():  # a part too narrow for its number
            said = " + ".join(f"{part:.0f}" for part in each)
            ax.text(whole + 0.01 * us.max(), place, f"{said} = {sum(each):.0f} µs", va="center", fontsize=8)
    said = f"{title}: the timed µs, in the shares of slots that Nsight Compute counted. Scaling is "
    said += f"{scaled[0] / us[0]:.0%} of {shapes[0].impl}'s time and {scaled[-1] / us[-1]:.0%} of "
    plot.show(fig, f"{said}{shapes[-1].impl}'s.")


def counters(here: Lab, tokens: int, n: int, k: int) -> tuple[Rows, list[Any]]:
    """What Nsight Compute counted of every rung, and their cases."""
    own = [c for c in study.ladder(tokens, n, k) if c.kind == "own"]
    own = [c for c in own if "scale_bytes" not in c.options]
    counted = here.profile("mmq", own, "ncu", study.COUNTERS)
    cases = [study.Mmq().case(case) for case in counted["case"]]
    counted["impl"] = [case.impl for case in cases]
    return counted, cases


def _slots_counted(cases: list[Any], counted: Rows) -> tuple[Any, ...]:
    """What takes every rung's issue slots: scaling, as derived, beside all instructions, as counted."""
    counted["each"] = [study.operations_of(case.impl) for case in cases]
    counted["scaling"] = [(study.scaling(case) or float("nan")) / 1e6 for case in cases]
    counted["all"] = counted["inst_executed"] / 1e6
    counted["share"] = counted["scaling"] / counted["all"]
    counted["slots"] = counted["issue_active"]
    counted["scaled"] = counted["slots"] * counted["share"]
    names = {"impl": "Rung", "each": "For a sum"}
    names |= {"scaling": "Scaling (millions)", "all": "All (millions)"}
    names |= {"slots": "Slots used", "scaled": "By scaling"}
    names |= {"tensor_pct": "Tensor cores busy %"}
    forms = dict.fromkeys(("each", "scaling", "all", "tensor_pct"), "{:,.0f}")
    forms |= dict.fromkeys(("slots", "scaled"), "{:.0%}")
    caption = "Instructions of warps, each of which scales 32 sums, and the share of issue slots they take"
    return counted, names, forms, caption


def slots_of_rungs(cases: list[Any], counted: Rows) -> None:
    """Show, folded, what takes every rung's issue slots."""
    if not counted.empty:
        display.fold_parts("Every rung's issue slots", [_slots_counted(cases, counted)], lean=True)


def predicted_and_counted(cases: list[Any], counted: Rows, here: Lab, rows: Rows) -> None:
    """Show what scaling takes of rung 6's slots, or without it of the fastest int8 rung's, what that allows,
    and what the tensor cores do meanwhile; how counted cycles differ from the datasheet's, folded.
    """
    if counted.empty or not here.spec:
        return
    counted = _slots_counted(cases, counted)[0]
    found = counted[counted["each"].notna()].set_index("impl")
    exact = rows[(rows["kind"] == "own") & rows["impl"].isin(found.index)].set_index("impl")
    exact = exact.dropna(subset="median_us").sort_values("median_us")
    if exact.empty:
        return
    name = _WGMMA if _WGMMA in exact.index else exact.index[0]
    row, rate = found.loc[name], float(exact["tflop_s"][name])
    bound = study.scaling_bound(here.spec, int(row["each"]))
    slots, times = row["each"] / study.room(here.spec), here.spec.int8_tensor / bound
    times = max(times, slots)  # of the time that making a sum takes
    columns = [name, "Slots: scaling", "Others", "Unused", "Tensor cores busy", "TOP/s"]
    unused, others = 1 - row["slots"], row["slots"] - row["scaled"]
    values = [
        ["predicted", slots / max(1.0, times), 0.0, 1 - slots / max(1.0, times), min(1.0, 1 / times), bound],
        ["counted", row["scaled"], others, unused, row["tensor_pct"] / 100, rate],
    ]
    forms = dict.fromkeys(columns[1:5], "{:.0%}") | {"TOP/s": "{:,.0f}"}
    same = dict(zip(columns, columns, strict=True))
    text = ""
    if times > LEVEL:
        text = f"Scaling a sum takes {times:.1f} times as long as making it: "
        text += "with every issue slot spent on it, " if slots >= times else "at the rate of conversions "
        text += f"the tensor cores would be busy {1 / times:.0%} of the time. "
    text += f"{name} reaches {rate / bound:.0%} of the predicted rate."
    if rate * LEVEL < bound and others > LEVEL - 1:
        text += " Other instructions take slots too"
        if name == _WGMMA and unused > LEVEL - 1:
            text += ", and some slots pass unused: most likely a warp waits for a product before it can "
            text += "scale the sums, and the others do not fill every gap"
        text += "."
    display.table(pd.DataFrame(values, columns=columns), same, forms, f"{name}: predicted and counted")
    display.say(text)
    if clock := _clock_counted(row, here, name):
        summary = f"Why {rate / bound:.0%}, if scaling takes {row['scaled']:.0%} of the slots?"
        display.fold_items(summary, [clock])


def _clock_counted(row: Any, here: Lab, name: str) -> str:
    """Why a share of the counted cycles is not that share of the datasheet's rate: how many cycles of an SM
    with work were counted in a rung's time; nothing where that is the datasheet's clock.
    """
    ghz, sheet = counted_clock(row, here), peak_clock(here.spec) if here.spec else float("nan")
    if not LEVEL * ghz < sheet:
        return ""
    return (
        f"By the counters it is {row['scaled']:.0%} × {ghz:.2f} ÷ {sheet:.2f} = "
        f"{row['scaled'] * ghz / sheet:.0%}: the counters see only cycles of SMs with work, {ghz:.2f} a "
        f"nanosecond for {name}, and the clock of the datasheet's peak has {sheet:.2f}."
    )


def counted_clock(row: Any, here: Lab) -> float:
    """Cycles of an SM with work that were counted in a nanosecond of a kernel."""
    cycles = row["inst_executed"] / row["issue_active"] / 4 / int(here.run["sms"])  # 4 schedulers an SM
    return float(cycles / row["time_ns"])
