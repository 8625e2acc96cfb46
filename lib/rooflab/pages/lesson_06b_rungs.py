"""What lesson 06b says of single rungs: what each changes, and what that is worth."""

from __future__ import annotations

import pandas as pd

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import attention as study
from rooflab.view import diagram, display

# The page's sections in their order: rungs, what they add, and the row of the drawing.
_SECTIONS = (
    (("7_mma_32_rows",), "part 06's last", 1),
    (("8_head_dim_slices",), "slices of columns", 0),
    (("13_mbarrier_ring",), "a ring of tiles", 0),
    (("9_wgmma",), "wgmma, producer", 2),
    (("11_tma",), "TMA, blocks stay", 2),
    (("10_paired_warpgroups",), "warpgroups share", 1),
    (("12_warp_specialised",), "a role for each", 1),
    (("14_pack_gqa", "15_warp_vote", "16_wide_stores", "17_short_chain"), "four small steps", 2),
)

_WIDTHS = (16, 64, 80, 96, 112, 128, 256, 512)  # of the recorded heads


def page_order() -> list[str]:
    """The page's rungs in the order of its sections."""
    return [name for names, _, _ in _SECTIONS for name in names]


def rungs_of_the_page() -> diagram.Drawing:
    """The page's rungs: which builds on which, what each adds, head widths and GPUs."""
    does = {width: study.rungs_for(width) for width in _WIDTHS}
    nodes = [
        diagram.Node(names, adds, row, tuple(w for w in _WIDTHS if set(names) & set(does[w])))
        for names, adds, row in _SECTIONS
    ]
    return diagram.rung_tree(nodes)


def _gains(every: Rows, before: str, after: str) -> pd.DataFrame:
    """Shapes that both rungs are recorded on in bursts, and in `gain` how many times as fast the later is."""
    keys = ["format", "seq", "heads", "kv_heads", "head_dim", "window", "options"]
    rows = every[every["operator"].eq("attention") & every["state"].eq("burst")].fillna({"window": 0})
    both = rows.pivot_table("tflop_s", keys, "impl").reindex(columns=[before, after]).dropna()
    return (both[after] / both[before]).reset_index(name="gain")


def _shape(row: pd.Series) -> str:
    """A shape in words: width, window, queries and heads."""
    window = f", window {row['window']:.0f}" if row["window"] else ""
    return f"{row['head_dim']} wide{window} with {row['seq']:,} queries of {row['heads']} heads"


def worth(every: Rows, gpu: str, first: str, second: str) -> None:
    """Say what a rung is worth over an earlier one, at all shapes that both are recorded on."""
    gain, before = _gains(every, first, second), first.partition("_")[0]
    if gain.empty:
        display.say(
            f"*Worth:* rungs {before} and {second.partition('_')[0]} are not recorded on one shape here."
        )
        return
    text = f"*Worth of rung {second.partition('_')[0]} on the {gpu}:* "
    if len(gain) > 1:
        most = gain.loc[gain["gain"].idxmax()]
        text += f"{gain['gain'].median():.2f} times the speed of rung {before} at the median of {len(gain)} "
        text += f"shapes, from {gain['gain'].min():.2f} to {most['gain']:.2f}"
        least = gain.loc[gain["gain"].idxmin()]
        if most["gain"] < 1:
            text += "; it is slower on each"
        elif least["gain"] < 1 / crossover.LEVEL:
            text += f"; it is slower {_shape(least)}"
    else:
        text += f"{gain['gain'].iloc[0]:.2f} times the speed of rung {before}, on one shape"
    display.say(f"{text}.")


def worth_of_ring(every: Rows, gpu: str, width: int) -> None:
    """Say what rung 13 is worth over the rung before it that does a width: 7, and 8 at the wide head."""
    parts = []
    for name, where in (("7_mma_32_rows", ""), ("8_head_dim_slices", f"{width} wide")):
        found = _gains(every, name, "13_mbarrier_ring")
        gain = found[found["head_dim"].eq(width)]["gain"] if where else found["gain"]
        if gain.empty:
            continue
        where = where or f"up to {found['head_dim'].max():.0f} columns"
        rates = f" ({gain.min():.2f} to {gain.max():.2f})" if len(gain) > 1 else ""
        number = name.partition("_")[0]
        parts.append(f"{where}, {gain.median():.2f} times the speed of rung {number}{rates}")
    said = "; ".join(parts) or "not recorded on a shape of rung 7 or 8"
    display.say(f"*Worth of rung 13 on the {gpu}*, at the median: {said}.")


def worth_of_slices(every: Rows, gpu: str, width: int) -> None:
    """Say what rung 8 is worth over rung 3 at the wide head, and over rung 6 where that can do the shape."""
    old, whole = (_gains(every, name, "8_head_dim_slices") for name in ("3_half2", "6_cp_async"))
    wide, text = old[old["head_dim"] == width]["gain"], f"*Worth of rung 8 on the {gpu}:* "
    if wide.empty:
        text += f"not recorded {width} wide."
    else:
        text += (
            f"{width} wide, {wide.median():.1f} times the speed of rung 3, the latest before it that does "
        )
        text += "such heads." if width > 256 else "heads wider than 256."
    if len(whole):
        least, most = whole["gain"].min(), whole["gain"].max()
        rates = f"{least:.2f} to {most:.2f}" if len(whole) > 1 else f"{most:.2f}"
        text += (
            f" Where rung 6, whose warps hold whole heads, does the shape as well ({len(whole)} recorded): "
        )
        text += f"{rates} times its speed. "
        if most < 1:
            text += "So it is slower on each, presumably because its warps trade scores through shared "
            text += "memory: it is for heads too wide for the rungs before it."
    display.say(text.strip())


# The rung that each later one is held against.
_BEFORE = {
    "11_tma": "9_wgmma",
    "14_pack_gqa": "11_tma",
    "15_warp_vote": "14_pack_gqa",
    "16_wide_stores": "15_warp_vote",
    "17_short_chain": "16_wide_stores",
}
# What small steps change.
SMALL = {
    "14_pack_gqa": """\
Rung 11 packs 8, 4 or 2 heads, because its block's rows must divide evenly; of a group of 7 \
it packs none. Here any group fits: 7 heads of 18 queries fill 126 of 128 rows.""",
    "15_warp_vote": """\
A row's scores lie in four lanes. To find their largest takes two *shuffles*, by which lanes \
read each other's registers, the second waiting for the first. But \
the largest is needed only where a lane found a score more than 8 above the row's `base`, the earlier \
largest score that softmax subtracts; a weight is 2 to the power of a score minus `base`. So the warp asks \
that first, by a *vote*: one instruction.

```text
rung 14, each row and tile:                     rung 15:
    top = largest of my scores                      top = largest of my scores
    top = largest of the four lanes' tops           if a lane of the warp has top > base + 8:
    if top > base + 8:                                  top = largest of the four lanes' tops
        rescale O and row_sum; base = top               where top > base + 8:
    P = exp2(S - base)                                      rescale O and row_sum; base = top
                                                    P = exp2(S - base)
```""",
    "16_wide_stores": """\
A wgmma leaves a lane two neighbouring columns of every eight: stored as they are, they fill \
half of each 32-byte sector (drawn below). So the four lanes that hold a row trade columns first:

```text
for each 32 columns of a row; lane = 0 to 3 of the four that hold it:
    pair[b] = O[8 b + 2 lane], O[8 b + 2 lane + 1]     # b = 0 to 3
    transpose: lane i gets pair[i] of all four         # four shuffles
    store O[8 lane] to O[8 lane + 7]                   # 16 bytes at once
```

Where a prompt or its window is short, blocks finish their queries often and the stores count.""",
    "17_short_chain": """\
Before a warpgroup can start its next product, its weights must be rounded to 16 bits. Rung 16 \
rounds them in a pass of their own, after the last exponential: the registers of P are free only when the \
product that reads them has been waited for. Rung 17 waits for it among the exponentials:

```text
rung 16, each further tile t:                   rung 17:
    start S = Q K[t]^T, start O += P V[t-1]         start S = Q K[t]^T, start O += P V[t-1]
    wait for S; find the largest scores             wait for S; find the largest scores
    S = exp2(S - base), all of the tile             S = exp2(S - base), a first part of the tile
    wait for O                                      wait for O; P = that part, rounded
    P = S, rounded                                  the rest: exp2, and each rounded as it comes
```

The first part is a quarter of the tile at 128 columns and an eighth at other widths; at 64 it is the whole \
tile, because to wait earlier was slower there (a trial that is not recorded). Three things are small: the \
largest scores of a lane's two rows are searched for side by side, not one row after the other; tiles that \
every row sees whole run code without masks; and heads may come all at once, where sections whose keys L2 \
holds would leave SMs idle at the end.""",
}


def small_steps(every: Rows) -> None:
    """Say what the rungs after rung 11 are worth, one over the other, and, folded, what they change."""
    parts, said = [], []
    for name, change in SMALL.items():
        gain, before = _gains(every, _BEFORE[name], name)["gain"], _BEFORE[name].partition("_")[0]
        number = name.partition("_")[0]
        text = f"**Rung {number}** ([source](../kernels/attention/{name}.cu)). {change}"
        if len(gain):
            said.append(f"{gain.median():.2f} for rung {number} (up to {gain.max():.2f})")
            worth = f"*Worth {gain.median():.2f} times the speed of rung {before}"
            worth += f", {gain.min():.2f} to {gain.max():.2f} on {len(gain)} shapes" if len(gain) > 1 else ""
            text += f"\n\n{worth}.*"
        parts.append(text)
        parts += [diagram.lanes_store().html()] if name == "16_wide_stores" else []
    if said:
        display.say(f"*Worth* over the rung before, at the median of all shapes: {', '.join(said)}.")
    display.fold_parts("What each changes, and its worth", parts)


def largest_step(here: Lab, name: str) -> str:
    """Of the recorded steps that lead to a rung, the one that is worth the most."""
    every, worths = here.measure("attention", here.cases("attention")), dict[str, float]()
    step = name
    while step in _BEFORE:
        gain = _gains(every, _BEFORE[step], step)["gain"]
        worths |= {step: gain.median()} if len(gain) else {}
        step = _BEFORE[step]
    if len(worths) < 2:
        return ""
    most = max(worths, key=lambda each: worths[each])
    return (
        f" Of the steps from {step} to it, {most} is worth the most, {worths[most]:.2f} times the speed at "
        "the median of its shapes."
    )
