"""What lesson 06b says of single rungs: what each changes, and what that is worth."""

from __future__ import annotations

import pandas as pd

from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Rows
from rooflab.studies import attention as study
from rooflab.view import display

_FIRST = 8  # of this page's rungs


def rungs_of_the_page() -> None:
    """Show which of this page's rungs do which width, by the instructions that they need."""
    lines = []
    for what, needs in (("any GPU, compute capability 8.0 or later", False), ("Hopper", True)):
        cells = []
        for widths in ((64, 128, 256), (512,)):
            able = {name for width in widths for name in study.rungs_for(width)}
            numbers = [int(name.partition("_")[0]) for name in able if (name in op.HOPPER) == needs]
            cells.append(", ".join(str(number) for number in sorted(numbers) if number >= _FIRST))
        lines.append((what, *cells))
    names = ("Runs on", "64 to 256 wide", "512 wide")
    table = pd.DataFrame(lines, columns=list(names))
    display.table(table, dict(zip(names, names, strict=True)), {}, "The rungs of this page, by number")


def _gains(every: Rows, before: str, after: str) -> pd.DataFrame:
    """Shapes that both rungs are recorded on in bursts, and in `gain` how many times as fast the later is."""
    keys = ["format", "seq", "heads", "kv_heads", "head_dim", "window", "options"]
    rows = every[every["operator"].eq("attention") & every["state"].eq("burst")].fillna({"window": 0})
    both = rows.pivot_table("tflop_s", keys, "impl").reindex(columns=[before, after]).dropna()
    return (both[after] / both[before]).reset_index(name="gain")


def worth(every: Rows, gpu: str, first: str, second: str) -> None:
    """Say what a rung is worth over an earlier one, at all shapes that both are recorded on."""
    gain, before = _gains(every, first, second), first.partition("_")[0]
    if gain.empty:
        display.say(
            f"*Worth:* rungs {before} and {second.partition('_')[0]} are not recorded on one shape here."
        )
        return
    text = f"*Worth on the {gpu}:* "
    if len(gain) > 1:
        most = gain.loc[gain["gain"].idxmax()]
        text += f"{gain['gain'].median():.2f} times the speed of rung {before} at the median of {len(gain)} "
        text += f"shapes, from {gain['gain'].min():.2f} to {most['gain']:.2f}, the most with {most['seq']:,} "
        text += f"queries of {most['heads']} heads"
    else:
        text += f"{gain['gain'].iloc[0]:.2f} times the speed of rung {before}, on one shape"
    display.say(f"{text}.")


# What each later rung changes, and the rung that it is held against.
_CHANGES = {
    "11_tma": (
        "9_wgmma",
        "One thread tells the TMA unit what to copy, instead of a warpgroup that computes addresses. There "
        "are as many blocks as SMs; each fetches its next queries' tiles while it finishes the last ones.",
    ),
    "14_pack_gqa": (
        "11_tma",
        "Any group of heads that share keys fills a block's rows (*PackGQA*). Rung 11 packs 2, 4 or 8 "
        "heads, but not the 7 of a model with 28 query heads on 4: here 7 heads of 18 queries fill 126 of "
        "128 rows.",
    ),
    "15_warp_vote": (
        "14_pack_gqa",
        "Fewer shuffles for the largest score: softmax may subtract any earlier maximum, as long as no "
        "exponential leaves FP16's range, so the warp votes whether any score does.",
    ),
    "16_wide_stores": (
        "15_warp_vote",
        "Outputs are stored 16 bytes at a time instead of 4: four neighbouring threads trade their columns "
        "first.",
    ),
}


def changes(every: Rows, *names: str) -> None:
    """Say what rungs change, and what that is worth, as a list."""
    lines = []
    for name in names:
        before, change = _CHANGES[name]
        gain, other = _gains(every, before, name)["gain"], before.partition("_")[0]
        text = f"- **Rung {name.partition('_')[0]}** ([source](../kernels/attention/{name}.cu)). {change} "
        if len(gain):
            text += f"*Worth {gain.median():.2f} times the speed of rung {other}"
            text += f", {gain.min():.2f} to {gain.max():.2f} on {len(gain)} shapes" if len(gain) > 1 else ""
            text += ".*"
        lines.append(text.strip())
    display.say("\n".join(lines))


def largest_step(here: Lab, name: str) -> str:
    """Of the recorded steps that lead to a rung, the one that is worth the most."""
    every, worths = here.measure("attention", here.cases("attention")), dict[str, float]()
    step = name
    while step in _CHANGES:
        gain = _gains(every, _CHANGES[step][0], step)["gain"]
        worths |= {step: gain.median()} if len(gain) else {}
        step = _CHANGES[step][0]
    if len(worths) < 2:
        return ""
    most = max(worths, key=lambda each: worths[each])
    return (
        f" Of the steps from {step} to it {most} is worth the most, {worths[most]:.2f} times the speed at "
        "the median of its shapes."
    )
