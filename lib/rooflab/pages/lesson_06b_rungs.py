"""What lesson 06b says of single rungs: what each changes, and what that is worth."""

from __future__ import annotations

import math

import pandas as pd

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Rows
from rooflab.records.case import Case
from rooflab.studies import attention as study
from rooflab.view import diagram, display, page
from rooflab.view.diagram import two_warps
from rooflab.words import counted, listed

# The page's sections: rungs, each after those it builds on, what they add, and the row of the drawing.
_SECTIONS = (
    (("7_mma_32_rows",), "part 06's last", 1),
    (("8_head_dim_slices",), "slices of columns", 0),
    (("13_mbarrier_ring",), "a ring of tiles", 0),
    (("9_wgmma",), "wgmma, producer", 2),
    ((*op.BETWEEN, "11_tma"), "TMA, persistent", 2),
    (("10_paired_warpgroups",), "warpgroups share", 1),
    (("12_warp_specialised",), "a role for each", 1),
    (("14_pack_gqa", "15_warp_vote", "16_wide_stores", "17_short_chain"), "four small steps", 2),
)

_WIDTHS = (16, 64, 80, 96, 112, 128, 256, 512)  # of the recorded heads


def page_order() -> list[str]:
    """The page's rungs, each after those that it builds on."""
    return [name for names, _, _ in _SECTIONS for name in names]


def without_bars(width: int) -> str:
    """That rungs which the page climbs by have no bar in its first chart, and why; or nothing."""
    climb = [name for names, _, row in _SECTIONS for name in names if row < 2 or name == "9_wgmma"]
    none = [name.partition("_")[0] for name in climb[1:] if name not in study.rungs_for(width)]
    if not none:
        return ""
    what, does, has = ("Rung", "does", "has") if len(none) == 1 else ("Rungs", "do", "have")
    return f" {what} {listed(none)} {does} no heads {width} wide and {has} no bar."


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


def _at_chart(every: Rows, names: tuple[str, ...], width: int) -> pd.DataFrame:
    """The named rungs' rows, by name, at the first chart's kind of shape: `width` or the widest that all of
    them do with its heads, and of that the longest prompt. No rows where they have none in common.
    """
    rows = every[every["impl"].isin(names) & every["heads"].eq(study.HEADS) & every["window"].isna()]
    rows = rows[rows["format"].eq("fp16") & rows["options"].fillna("").isin(["", "queries=16"])]
    rows = rows[rows["operator"].eq("attention") & rows["state"].eq("burst")].dropna(subset=["tflop_s"])
    rows = rows.assign(asked=rows["head_dim"].eq(width))
    keys = ["asked", "head_dim", "seq"]
    common = rows.groupby(keys)["impl"].nunique()
    common = common[common == len(names)]
    if common.empty:
        return rows.iloc[:0].set_index("impl")
    found = rows[(rows[keys] == list(common.index.max())).all(axis=1)]
    return found.sort_values("median_us").drop_duplicates("impl").set_index("impl")


def _rate_said(every: Rows, width: int, first: str | None, second: str) -> str:
    """A rung's rate at the first chart's kind of shape, beside an earlier one's, or nothing."""
    rows = _at_chart(every, tuple(name for name in (first, second) if name), width)
    if rows.empty:
        return ""
    row = rows.loc[second]
    text = f"{row['head_dim']} wide, {row['seq']:,} tokens: **{row['tflop_s']:,.0f} TFLOP/s**"
    if first:
        before = float(rows.loc[first, "tflop_s"])
        text += f", {row['tflop_s'] / before:.2f} times the {before:,.0f} of rung {first.partition('_')[0]}"
    if row["roof_fraction"] > 1:
        text += ". That is above the roof, which is what a library's product reached (what may explain it is "
        text += "in the appendix)"
    return text


def worth(every: Rows, gpu: str, width: int, first: str | None, second: str) -> None:
    """Say what a rung reaches, at the first chart's shape where it does that, beside an earlier rung."""
    said = _rate_said(every, width, first, second) or "not recorded with the heads of the first chart"
    display.say(f"*Rung {second.partition('_')[0]} on the {gpu}*, {said}.")
    apart = ("9_wgmma", *op.BETWEEN, "11_tma")
    rows = _at_chart(every, apart, width)
    if (first, second) == (apart[0], apart[-1]) and len(rows):
        display.say(_one_by_one(rows, apart))
        for name in op.BETWEEN:
            page.linked(f"attention/{name}")


# What each rung between 9 and 11 changes, and what is left for 11.
_CHANGES = ("TMA copies", "persistent blocks", "conditional rescaling")


def _last_change(rows: Rows, name: str, before: str) -> str:
    """What rung 11 changes beside, by what it and the rung before it were built with."""
    now, then = (
        study.own_rung(Case.from_row({**rows.loc[each], "impl": each}))[1] for each in (name, before)
    )
    said = [f"{now['PACK']} heads packed"] if now["PACK"] > 1 else []
    said += [f"tiles of {now['KEYS']} keys (not {then['KEYS']})"] if now["KEYS"] != then["KEYS"] else []
    return " and ".join(said) or "the rest"


def _one_by_one(rows: Rows, apart: tuple[str, ...]) -> str:
    """What each of rung 11's changes is worth where they are made one after the other."""
    changes = (*_CHANGES, _last_change(rows, apart[-1], apart[-2]))
    pairs = zip(changes, apart[:-1], apart[1:], strict=True)
    gains = {change: float(rows.loc[b, "tflop_s"] / rows.loc[a, "tflop_s"]) for change, a, b in pairs}
    most, whole = max(gains, key=lambda each: gains[each]), math.prod(gains.values())
    times = [f"{change} {gain:.2f}" for change, gain in gains.items()]
    row, numbers = rows.iloc[0], listed([name.partition("_")[0] for name in apart[1:-1]])
    text = f"One change after the other, in rungs {numbers}, {row['head_dim']} wide, {row['seq']:,} tokens, "
    lead = (
        f"**Most of rung 11's gain is one change, {most}.** "
        if gains[most] ** 2 > whole > crossover.LEVEL
        else ""
    )
    return f"{lead}{text}each times the speed before: {', '.join(times)}. Other lengths were not recorded."


def of_the_copies(every: Rows, width: int) -> str:
    """What takes rung 9 away from its drawing, as far as rung 18 tells, which changes its copies alone."""
    before, after = "9_wgmma", op.BETWEEN[0]
    rows = _at_chart(every, (before, after), width)
    gain = float(rows.loc[after, "tflop_s"] / rows.loc[before, "tflop_s"]) if len(rows) else 1.0
    if gain <= crossover.LEVEL:
        return "What takes the rest is not known. "
    return (
        f"Part of the rest is how rung 9 copies: by TMA instead (rung {after.partition('_')[0]}) it has "
        f"{gain:.2f} times the speed, with {int(rows['seq'].iloc[0]):,} tokens. "
    )


# The rungs that the page holds against an earlier one, in its order.
_STEPS = (
    ("3_half2", "8_head_dim_slices"),
    ("6_cp_async", "8_head_dim_slices"),
    ("7_mma_32_rows", "13_mbarrier_ring"),
    ("8_head_dim_slices", "13_mbarrier_ring"),
    ("13_mbarrier_ring", "9_wgmma"),
    ("9_wgmma", "11_tma"),
    ("13_mbarrier_ring", "10_paired_warpgroups"),
    ("10_paired_warpgroups", "12_warp_specialised"),
)


def worth_everywhere(every: Rows) -> None:
    """Show, folded, what each rung is worth over an earlier one on all shapes that both are recorded on."""
    lines = []
    for first, second in _STEPS:
        gain = _gains(every, first, second)
        if gain.empty:
            continue
        least = gain.loc[gain["gain"].idxmin()]
        number, before = second.partition("_")[0], first.partition("_")[0]
        text = f"rung {number} over rung {before}: {gain['gain'].median():.2f} times as fast at the median"
        text += f" ({least['gain']:.2f} to {gain['gain'].max():.2f}, {counted(len(gain), 'shape')})"
        text += f"; slowest {_shape(least)}" if least["gain"] < 1 / crossover.LEVEL else ""
        lines.append(text)
    if lines:
        display.fold_items("Rungs 8 to 13 over all shapes that both rungs are recorded on", lines)


def worth_of_slices(every: Rows, gpu: str, width: int) -> None:
    """Say what rung 8 reaches at the wide head, and over rung 3 there."""
    old = _gains(every, "3_half2", "8_head_dim_slices")
    wide, text = old[old["head_dim"] == width]["gain"], f"*Rung 8 on the {gpu}*, "
    text += _rate_said(every, width, None, "8_head_dim_slices") or f"not recorded {width} wide"
    if len(wide):
        latest = ", the latest before it that does such heads" if width > 256 else ""
        one = old[old["head_dim"] == width].iloc[0]
        where = f"At the median of {len(wide)} shapes of this width"
        where = f"With {one['seq']:,} tokens of {one['heads']} heads" if len(wide) == 1 else where
        text += f". {where} it is {wide.median():.1f} times as fast as rung 3{latest}"
    display.say(f"{text}.")


def a_warp_ahead() -> None:
    """Follow one warp through the drawing of two warps, step by step, and say where it would have to wait."""
    together, apart = two_warps.runs_of()
    at = {(what, t): apart.begins(0, what, t) for what in ("QK", "softmax", "PV") for t in (0, 1)}
    other = {(what, t): apart.begins(1, what, t) for what in ("QK", "softmax", "PV") for t in (0, 1)}
    pv, qk1 = at["PV", 0], at["QK", 1]
    said = f"In rung 7 no product runs in steps {listed(map(str, together.idle))}. "
    if not apart.idle:
        said += (
            "**In rung 13 one runs in each step: while one warp takes its softmax, the other multiplies.**"
        )
    if apart.full[1] <= pv and apart.empty[0] <= qk1:
        said += " When warp 0 comes to *full* and *empty*, they are open already: it need not wait there."
    display.say(said.strip())
    text = "In the lower drawing:\n\n"
    text += f"- Step {at['QK', 0]}: scores of tile 0 (QK0).\n"
    text += f"- Step {at['softmax', 0]}: softmax of tile 0 (amber). Warp 0 also starts to copy its share of "
    text += "tile 1 into slot 1.\n"
    text += f"- Step {pv}: PV0"
    if other["softmax", 0] == pv:
        text += ", while warp 1 takes its softmax. In rung 7 warp 0 waits here for warp 1, and no product "
        text += f"runs (steps {listed(map(str, together.idle))} above)"
    text += ".\n"
    if qk1 > pv + 1:
        text += f"- Step {pv + 1}: warp 0 waits for the tensor cores, which warp 1 has for PV0.\n"
    text += f"- Step {qk1}: QK1. Slot 1 has been full since the end of step {apart.full[1]:.0f}"
    text += ", when warp 0 had just finished PV0.\n" if apart.full[1] == pv else ".\n"
    text += f"- Step {at['softmax', 1]}: softmax of tile 1. Warp 0 also copies its share of tile 2 into slot "
    text += f"0, empty since the end of step {apart.empty[0]:.0f}, when warp 1 finished PV0.\n\n"
    text += (
        "So warp 0 never waits at a barrier here. Two would hold warp 0 back if warp 1 were later: before "
    )
    text += "QK1, *full* of slot 1, until warp 1 has ended QK0 and copied its share of tile 1; after QK1, "
    text += "*empty* of slot 0, until warp 1 has ended PV0."
    display.fold_parts("Warp 0, step by step", [text])


# The rung that each later one is held against.
_BEFORE = {
    "11_tma": "9_wgmma",
    "14_pack_gqa": "11_tma",
    "15_warp_vote": "14_pack_gqa",
    "16_wide_stores": "15_warp_vote",
    "17_short_chain": "16_wide_stores",
}
# What rung 11 changes beside its copies.
_REST_OF_11 = """\
**Rung 11**, change 3: query heads that share keys share a block, which is *packing* (FlashAttention-3's \
*PackGQA*). With fewer queries of each head, fewer products are masked and wasted. (Gemma-4-E4B's heads and \
window; a row is a query, a column a key.) Change 4 is *conditional rescaling* (FlashAttention-4's): the \
softmax subtracts an earlier largest score. All weights and `row_sum` are then too large by one factor, and \
outputs ÷ `row_sum` is the same. FP16 holds weights up to almost 2¹⁶, so rung 11 rescales only where one \
would exceed 2⁸. (A square is a row's largest score in a tile, the line what its softmax subtracts; a cell \
is filled where any of the warp's 16 rows needs a rescale.)"""

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
that first, by a *vote*: one instruction.""",
    "16_wide_stores": """\
A wgmma leaves a lane two neighbouring columns of every eight: stored as they are, they fill \
half of each 32-byte sector (drawn below). So the four lanes that hold a row trade columns first.

Where a prompt or its window is short, blocks finish their queries often and the stores count.""",
    "17_short_chain": """\
Before a warpgroup can start its next product, its weights must be rounded to 16 bits. Rung 16 \
rounds them in a pass of their own, after the last exponential: the registers of P are free only when the \
product that reads them has been waited for. Rung 17 waits for it among the exponentials.

The first part is a quarter of the tile at 128 columns and an eighth at other widths; at 64 it is the whole \
tile, because to wait earlier was slower there (a trial that is not recorded). Three things are small: the \
largest scores of a lane's two rows are searched for side by side, not one row after the other; tiles that \
every row sees whole run code without masks; and heads may come all at once, where sections whose keys L2 \
holds would leave SMs idle at the end.""",
}


def small_steps(here: Lab, every: Rows, width: int) -> None:
    """Say what the rungs after rung 11 reach, one after the other, and, folded, what they change."""
    parts = [diagram.four_changes(diagram.of_lab(here), pairs=(1,)).html(), _REST_OF_11]
    rows = _at_chart(every, ("11_tma", *SMALL), width)
    for name, change in SMALL.items():
        gain, before = _gains(every, _BEFORE[name], name)["gain"], _BEFORE[name].partition("_")[0]
        number = name.partition("_")[0]
        text = f"**Rung {number}** ([source](../kernels/attention/{name}.cu)). {change}"
        if len(gain):
            worth = f"*Worth {gain.median():.2f} times the speed of rung {before}"
            worth += f", {gain.min():.2f} to {gain.max():.2f} on {len(gain)} shapes" if len(gain) > 1 else ""
            text += f"\n\n{worth}.*"
        parts.append(text)
        parts += [diagram.lanes_store().html()] if name == "16_wide_stores" else []
    if len(rows):
        row = rows.iloc[0]
        said = [
            f"{rows.loc[name, 'tflop_s']:,.0f} for rung {name.partition('_')[0]}"
            for name in ("11_tma", *SMALL)
        ]
        display.say(f"{row['head_dim']} wide, {row['seq']:,} tokens, TFLOP/s: {', '.join(said)}.")
    numbers = [name.partition("_")[0] for name in SMALL]
    title = f"Rungs {numbers[0]} to {numbers[-1]}: what each changes, and its worth"
    display.fold_parts(title, parts)


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
        f"of the steps from {step} {most} is worth the most, {worths[most]:.2f} times the speed at the "
        "median of its shapes."
    )
