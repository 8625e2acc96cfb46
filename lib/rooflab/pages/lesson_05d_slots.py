"""Lesson 05d's issue slots: what scaling sums takes of them by datasheet, and what was counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.hardware import device, roofline
from rooflab.hardware.crossover import LEVEL
from rooflab.hardware.device import Device
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import mmq as study
from rooflab.view import diagram, display, plot
from rooflab.words import listed

SCALING = 3  # instructions for a block's sum: convert, multiply, multiply-add
SLOTS = "Instructions that fit, a sum"
_WRITTEN = 0.05  # of the longest bar: plot.stacked writes numbers into parts from there on


def _pays(chip: Device, each: int) -> str:
    """Whether int8 products pay for Q8_0 on a chip by its datasheet, if scaling a sum takes so many
    instructions: in full, in part (faster than FP16 all the same), or not.
    """
    if study.room(chip) >= each:
        return "yes"
    return "in part" if study.issue_bound(chip, each) > LEVEL * chip.fp16_tensor else "no"


def room_on(spec: Device | None, each: int) -> str:
    """Whether int8 pays by datasheet, in sentences: of a chip with fast tensor cores, of one with slow ones
    and of this one.
    """
    chips = _compared(spec)
    verdicts = {"yes": "int8 pays in full", "in part": "int8 pays in part", "no": "FP16 is faster"}
    said = [
        f"the {chip.name} has time for {study.room(chip):.1f}: {verdicts[_pays(chip, each)]}"
        for chip in chips
    ]
    return f"While the tensor cores make one, by datasheet, {'; '.join(said)}."


def by_mma(spec: Device | None, each: int) -> str:
    """That mma does with two instructions a sum, where `each` is more, and whether that changes a verdict."""
    if each <= 2:
        return ""
    same = all(_pays(chip, each) == _pays(chip, 2) for chip in _compared(spec))
    return f" (2 by `mma`, which changes {'no verdict here' if same else 'a verdict here'})"


def _compared(spec: Device | None) -> list[Device]:
    """The chips of the first screen: one with fast tensor cores, one with slow ones, and this one."""
    chips = [device.get("h200"), device.get("rtx-4090")]
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
            "four that hold the constant serve all products. (The wrapper names one register for both, `+r`; "
            "the compiler takes two.) `wgmma` adds to the registers that it writes, or starts at zero: there "
            "the constant would have to be written before each product, one instruction a sum, and nothing "
            "is won.",
        ],
    )


def _one_sum() -> str:
    """A sum of random numbers that are quantised as a block is, and the instructions that scale it."""
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
    return f"**One sum in numbers**, of random weights and activations:\n\n```text\n{said}\n```"


def _afforded(chips: tuple[Device, ...]) -> str:
    """How many instructions a sum affords on chips, by the cycle of an SM."""
    said = []
    for chip in chips:
        lanes, sums = study.per_cycle(chip)
        said.append(
            f"- {chip.name}: {lanes // 32} issue slots × 32 lanes = {lanes} instructions of single lanes; "
            f"int8 tensor cores make {sums:g} sums. {lanes} ÷ {sums:g} = **{study.room(chip):.1f}**."
        )
    head = f"A sum needs {SCALING} instructions. How many fit while it is made? In a cycle of an SM:"
    return "\n".join([f"{head}\n", *said])


def slots_by_gpu() -> Rows:
    """Scale one sum in numbers, and say how many instructions it affords; draw issue slots beside the tensor
    cores for three ways, and derive one GPU's from its datasheet; those of several GPUs, folded; the table.
    """
    fast, slow = device.get("h200"), device.get("rtx-4090")
    display.say(_one_sum())
    display.say(_afforded((slow, fast)))
    diagram.issue_slots((slow, fast), halves=(fast,)).show()
    chips, verdicts = [], {}
    for name in ("h200", "a100-80gb", "rtx-4090", "rtx-3090", "t4"):
        chip = device.get(name)
        bounds = [study.issue_bound(chip, each) for each in (3, 2)]
        peaks = [chip.int8_tensor, *bounds, chip.fp16_tensor]
        chips.append([chip.name, study.room(chip), *peaks])
        verdicts.setdefault(_pays(chip, SCALING), []).append(chip)
    display.say(_conclusion(verdicts))
    columns = ["GPU", SLOTS, "int8", "int8, 3 instructions", "int8, 2 instructions", "FP16"]
    chips = pd.DataFrame(chips, columns=columns)
    forms = dict.fromkeys(columns[2:], "{:,.0f}") | {SLOTS: "{:.1f}"}
    caption = "Instructions that a lane has time for while the tensor cores make one sum, and TOP/s"
    peaks = (chips, dict(zip(columns, columns, strict=True)), forms, caption)
    summary = (
        f"Where these numbers and {study.issue_bound(fast, SCALING):,.0f} TOP/s come from, and other GPUs"
    )
    display.fold_parts(summary, [_derived(fast), peaks])
    return chips


def _derived(chip: Device) -> str:
    """How a chip's room and its bound follow from its datasheet, by the cycle of an SM."""
    lanes, sums = study.per_cycle(chip)
    boost, clock, bound = chip.boost_mhz / 1e3, peak_clock(chip), study.issue_bound(chip, SCALING)
    text = f"The {chip.name}'s numbers, from its datasheet, for a cycle of an SM:\n\n"
    text += f"- **Instructions**: {chip.fp32:g} TFLOP/s in FP32 on {chip.sms} SMs at {boost:.2f} GHz are "
    text += f"{lanes} multiply-adds of single lanes.\n"
    text += f"- **Sums**: its int8 tensor cores do {32 * sums:,.0f} multiply-adds; one sum is 32, so they "
    text += f"finish {sums:g} sums."
    if LEVEL * clock < boost:
        text += f" The datasheet counts their {chip.int8_tensor:,.0f} TOP/s at {clock:.2f} GHz, not at "
        text += f"{boost:.2f}, so the quotient of its two peaks would be wrong."
    text += (
        f"\n- **Bound**: {study.room(chip):.1f} instructions fit, and scaling needs {SCALING}. So at most "
    )
    text += f"{bound:,.0f} TOP/s can be scaled, {bound / chip.int8_tensor:.0%} of the peak, at its clock."
    return text


def peak_clock(chip: Device) -> float:
    """The clock in GHz at which a chip's datasheet counts its int8 peak."""
    return roofline.clock_of(chip.int8_tensor, chip.sms, chip.boost_mhz / 1e3)


def _conclusion(verdicts: dict[str, list[Device]]) -> str:
    """Which chips int8 pays on, by datasheet."""
    said = []
    if "yes" in verdicts:
        said.append(f"Scaling fits beside the products on {_the(verdicts['yes'])}: int8 pays in full.")
    for chip in verdicts.get("in part", []):
        said.append(
            f"On the {chip.name} it takes longer than they do, but int8 stays ahead of FP16: "
            f"{study.issue_bound(chip, SCALING):,.0f} TOP/s against {chip.fp16_tensor:,.0f} TFLOP/s."
        )
    if "no" in verdicts:
        each = [
            f"{study.issue_bound(chip, SCALING):,.0f} TOP/s against {chip.fp16_tensor:,.0f} TFLOP/s"
            for chip in verdicts["no"]
        ]
        said.append(f"On {_the(verdicts['no'])} the tensor cores wait, and FP16 wins: {listed(each)}.")
        said += _with_two(verdicts["no"])
    return " ".join(said)


def _with_two(chips: list[Device]) -> list[str]:
    """Of chips too slow for three instructions, what two would allow, and whether that is more than FP16."""
    each = listed(f"{study.issue_bound(chip, 2):,.0f} TOP/s on the {chip.name}" for chip in chips)
    more = [chip for chip in chips if study.issue_bound(chip, 2) > LEVEL * chip.fp16_tensor]
    text = "Tensor cores are started by a warp's **mma**, or on Hopper by four warps' **wgmma**. A kernel on "
    text += f"mma can do with two instructions a sum. That would allow {each}, "
    return [text + (f"more than FP16 on {_the(more)}." if more else "no more than FP16.")]


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


def slots_explained(cases: list[Any], counted: Rows, here: Lab, rows: Rows) -> None:
    """Say what scaling takes of the issue slots, what that allows, and what the tensor cores do meanwhile;
    every rung's slots, folded.
    """
    if counted.empty:
        return
    table = _slots_counted(cases, counted)
    says, clock = _slots_said(counted, here, rows)
    if says:
        display.say(says)
    summary = "Every rung's issue slots" + ", and why a share of them is not that share of the bound" * bool(
        clock
    )
    display.fold_parts(summary, [*filter(None, [clock]), table])


def _slots_said(counted: Rows, here: Lab, rows: Rows) -> tuple[str, str]:
    """What takes the fastest exact rung's slots, and how counted cycles differ from the datasheet's."""
    found = counted[counted["each"].notna()].set_index("impl")
    if not len(found) or not here.spec:
        return "", ""
    exact = rows[(rows["kind"] == "own") & ~rows["impl"].map(study.takes_halves)].set_index("impl")
    exact = exact.dropna(subset="median_us").sort_values("median_us")
    if exact.empty:
        return "", ""
    top = exact.index[0]
    name = top if top in found.index else found.index[-1]
    row = found.loc[name]
    bound = study.issue_bound(here.spec, int(row["each"]))
    predicted, busy = min(1.0, study.room(here.spec) / row["each"]), row["tensor_pct"] / 100
    share, rate = exact["tflop_s"].iloc[0] / bound, exact["tflop_s"].iloc[0]
    slots = min(1.0, row["each"] / study.room(here.spec))
    columns = [name, "Slots: scaling", "Others", "Unused", "Tensor cores busy", "TOP/s"]
    values = [
        ["predicted", slots, 0.0, 1 - slots, predicted, bound],
        ["counted", row["scaled"], row["slots"] - row["scaled"], 1 - row["slots"], busy, rate],
    ]
    forms = dict.fromkeys(columns[1:5], "{:.0%}") | {"TOP/s": "{:,.0f}"}
    same = dict(zip(columns, columns, strict=True))
    display.table(pd.DataFrame(values, columns=columns), same, forms, f"{name}: predicted and counted")
    text = f"{name} reaches {share:.0%} of the predicted rate."
    if row["slots"] - row["scaled"] > LEVEL - 1:
        text += " Other instructions take slots too"
        if name == "6_wgmma" and 1 - row["slots"] > LEVEL - 1:
            text += ", and some slots pass unused: most likely a warp waits for a product before it can "
            text += "scale the sums, and the others do not fill every gap"
        text += "."
    clock = _clock_counted(row, here, name)
    return text, clock and f"Why {share:.0%}, if scaling takes {row['scaled']:.0%} of the slots? {clock}"


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
