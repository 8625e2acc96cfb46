"""What lesson 04c shows of its rungs: on CUDA cores, rungs 9 to 11 over each other, and which is picked."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.numerics.quant import GROUP
from rooflab.ops import int4
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_bounds import bound_us, spent_at
from rooflab.studies import int4 as study
from rooflab.view import diagram, display, plot
from rooflab.words import counted, listed

_NUMBERS = (9, 10, 11)
_SHAPE = study.SHAPES[-1]
_FILLS = {9: "#0072B2", 10: "#E69F00", 11: "#56B4E9"}  # as plot.grouped's bars of them
SUMS_SCALED = 16  # tokens up to which rung 11 scales sums (SCALE_SUMS in its source)


def read_once(here: Lab, rungs: Any, drawn: Any, read_roof: float, peak: Any) -> Rows:
    """Draw rungs 5 and 6 and the dispatcher's choice by the number of tokens, with the bound, on the drawn
    shape or on one of which they were timed; times by tokens and rung.
    """
    shape, again = _again(here, rungs, drawn)
    wide = again.pivot(index="batch", columns="impl", values="median_us")
    picks = here.measure("int4", _chosen(here, shape, list(wide.index)))
    wide["ours"] = picks.set_index("batch")["median_us"].reindex(wide.index)
    wide["least"] = [bound_us(*shape, batch, "int4_g128", read_roof, peak) for batch in wide.index]
    wide.attrs |= {"shape": shape, "read_roof": read_roof}
    if wide.empty:
        return wide
    title = f"Time of one product, {shape[0]:,} × {shape[1]:,}"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=2.8)
    for rung, label in ((rungs[4], "rung 5: read for each"), (rungs[5], "rung 6: read once")):
        side = again[again["impl"] == rung.name].sort_values("batch")
        if len(side):
            plot.series(ax, side["batch"], *plot.band(side, "median_us"), label=label)
    if len(picks):
        plot.series(ax, picks["batch"], *plot.band(picks, "median_us"), label="tensor cores (next section)")
    ticks = list(wide.index)
    plot.series(ax, ticks, wide["least"], label="INT4 bound", colour=plot.ROOF_COLOUR).set_marker("")
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_ylim(bottom=0.75 * float(wide["least"].min()))
    plot.round_ticks(ax)
    plot.label_ends(ax)
    said = f"{title} on {here.run['gpu']}, {plot.dates(pd.concat([again, picks]))}. Rung 6 is built with "
    weights, cache = shape[0] * shape[1] * WEIGHT_BYTES["int4_g128"], int(here.run["l2_bytes"])
    fit = (
        "fit into L2, from which rung 5 can read them again"
        if weights < cache
        else ("do not fit into L2, so rung 5 reads them from DRAM each time")
    )
    said += "TOKENS = the number of tokens here"
    said += (
        f" (its source defaults to {rungs[5].defines['TOKENS']}). The weights, {weights / 1e6:.1f} MB, {fit}."
    )
    plot.show(fig, said)
    return wide


def read_once_explained(wide: Rows, rungs: Any, sms: int, ghz: float) -> None:
    """Say what reading and unpacking the weights once brings on CUDA cores, and what a further token costs
    beside its multiply-adds.
    """
    if not {rungs[4].name, rungs[5].name} <= set(wide):
        return
    each, once = (wide[rungs[at].name] for at in (4, 5))
    both = wide[each.notna() & once.notna()].index
    if both.empty:
        return
    first, last, us = both[0], both[-1], once[both]
    shared = display.speed(each[last] / once[last])
    text = _spent(once[both], wide["least"], spent_at(sms, ghz, wide.attrs["read_roof"]))
    text += f"**At {last} tokens sharing the weights is {shared}: {each[last]:.0f} µs "
    text += f"become {once[last]:.0f}.** "
    if len(us) > 1:
        n, k = wide.attrs["shape"]
        more, adds = a_further_token(wide, rungs), n * k / (sms * 128 * ghz * 1e3)
        text += f"Even so, each token after {counted(first, 'token')} costs rung 6 another {more:.1f} µs:\n\n"
        rows = rungs[5].defines["ROWS"]
        least = adds * (1 + 1 / rows + 1 / (8 * rows))
        clock = f"{n:,} × {k:,} ÷ ({sms} SMs × 128 a clock × {ghz:.2f} GHz)"
        text += f"- **{adds:.1f} µs** by arithmetic for multiply-adds on all CUDA cores: {clock}\n"
        text += (
            f"- **{least - adds:.1f} µs** by arithmetic for x, of which each number serves {rows} rows: a "
        )
        text += f"conversion a number and a load for 8 of them, {adds:.1f} × (1/{rows} + 1/{8 * rows})\n"
        if more > 1.2 * least:
            text += f"- **{more - least:.1f} µs** are left unexplained\n"
        text += "\n"
    ours = wide["ours"].get(last)
    if ours == ours:
        text += f"**At {last} tokens tensor cores are {display.speed(once[last] / ours)} again.**"
    display.say(text.strip())


def _spent(once: Any, least: Any, predicted: int) -> str:
    """From how many tokens on rung 6 is well above the bound, beside where its multiply-adds alone spend the
    budget of instructions; nothing where it stays near the bound up to there.
    """
    over = (once / least).dropna()
    far = over[over > 1.2]
    if far.empty or over.index[-1] < predicted:
        return ""
    at = int(far.index[0])
    text = f"Predicted: the budget is spent at {counted(predicted, 'token')}. Measured: rung 6 takes "
    text += f"{far[at]:.1f} times the bound at {counted(at, 'token')}"
    if at < predicted:
        text += " already: the prediction leaves unpacking out"
    return f"{text}. "


def a_further_token(wide: Rows, rungs: Any) -> float:
    """Microseconds that a token more costs rung 6, from its fewest to its most tokens."""
    us = wide[rungs[5].name].dropna()
    return (us.iloc[-1] - us.iloc[0]) / (us.index[-1] - us.index[0]) if len(us) > 1 else float("nan")


def over_time(here: Lab, rungs: Any, number: int, read_roof: float, peak: float | None) -> Any:
    """Say what rung 9, 10 or 11 takes at the most tokens at which all three were timed, beside the bound or
    the rung before; that rung over time.
    """
    whole, at = _times(here).dropna(), _NUMBERS.index(number)
    us, whose = list[float](), ""
    if len(whole):
        tokens, us = int(whole.index[-1]), [float(value) for value in whole.iloc[-1]]
        whose = f"{_SHAPE[0]:,} × {_SHAPE[1]:,}, {counted(tokens, 'token')}"
        if at:
            text = f"Rung {number - 1} → {number}: {us[at - 1]:.1f} → {us[at]:.1f} µs ({whose}), "
            text += f"{us[at - 1] / us[at]:.2f} times the speed."
        else:
            least = bound_us(*_SHAPE, tokens, "int4_g128", read_roof, peak)
            text = f"Rung {number}: {us[0]:.1f} µs ({whose}), {us[0] / least:.1f} times the bound."
        display.say(f"**{text}**")
    return diagram.slots_over_time([rungs[one - 1] for one in _NUMBERS], at, us, whose)


def worth_by_batch(here: Lab, read_roof: float, peak: float | None) -> None:
    """Draw these rungs' times side by side for each number of tokens at which all were timed on the largest
    shape, with the bound; say what each brings over the one before it, or that this was not recorded.
    """
    wide = _times(here)
    asked = sorted({case.batch for case in study.for_tokens(here.sized)})
    whole = wide.dropna().reindex([batch for batch in asked if batch in wide.dropna().index])
    missing = [batch for batch in asked if batch not in whole.index]
    if len(whole):
        _draw(here, whole, read_roof, peak)
        display.say(f"{_compared(whole)} {_behind(whole)}".strip())
    if missing:
        display.say(
            f"At {listed(missing)} tokens rungs 9, 10 and 11 were not all timed on the {here.run['gpu']}: "
            "**what `wgmma` and the TMA bring there is not known.**"
        )


def _times(here: Lab) -> Rows:
    """The fastest time of each rung by tokens."""
    names = {int4.LADDERS["int4"][number - 1].name: number for number in _NUMBERS}
    asked, known = study.for_tokens(here.sized), here.cases("int4")
    cases = [case for case in dict.fromkeys(asked) if case.impl in names and case in known]
    rows = here.measure("int4", here.held("int4", cases))
    rows = rows.assign(rung=rows["impl"].map(names))
    wide = rows.pivot_table("median_us", "batch", "rung", aggfunc="min")
    return wide.reindex(columns=list(_NUMBERS))


def _draw(here: Lab, whole: Rows, read_roof: float, peak: float | None) -> None:
    """A group of bars for each number of tokens, a bar a rung, and a line at the bound."""
    title = f"Rungs 9, 10 and 11, {_SHAPE[0]:,} × {_SHAPE[1]:,}"
    least = [bound_us(*_SHAPE, batch, "int4_g128", read_roof, peak) for batch in whole.index]
    fig, ax = plot.figure("µs", title=title, height=1.4 + 0.6 * len(whole))
    places = np.arange(len(whole))
    style = {"color": "#1A1A1A", "linestyle": "--", "linewidth": 1.8, "zorder": 4, "label": "bound"}
    ax.vlines(least, places - 0.46, places + 0.46, **style)
    parts = {"rung 9: mma": whole[9], "rung 10: wgmma": whole[10], "rung 11: wgmma, TMA": whole[11]}
    names = [counted(batch, "token") for batch in whole.index]
    plot.grouped(ax, names, parts, most=1.12 * float(whole.max().max()), form=".1f")
    plot.show(fig, f"{title} on {here.run['gpu']}. Each bar: the rung's fastest build, chosen on an H200.")


def _compared(whole: Rows) -> str:
    """What the two rungs bring, as ratios of times, over rung 9 at the most tokens."""
    most = whole.index[-1]
    total, wgmma, tma = whole[9] / whole[11], whole[9] / whole[10], whole[10] / whole[11]
    return (
        f"**At {counted(most, 'token')} rung 11 runs at {total[most]:.2f} times the speed of rung 9: "
        f"{wgmma[most]:.2f} by rung 10 × {tma[most]:.2f} by rung 11.** Each rung changes more than one "
        "thing, so a factor is the rung's, not that of `wgmma` or the TMA alone."
    )


def _behind(whole: Rows) -> str:
    """At which few tokens rung 10 is slower than rung 9, and why by what it scales."""
    slow = [at for at in whole.index if at <= SUMS_SCALED and whole[10][at] > 1.02 * whole[9][at]]
    if not slow:
        return ""
    ninth = int4.LADDERS["int4"][8].path.read_text("utf-8")
    sums = GROUP // 2 // sums_even_at(ninth) * slow[-1]
    return (
        f"**At {listed(slow)} {'token' if slow == [1] else 'tokens'} rung 10 is slower than rung 9.** It "
        f"scales the {GROUP} weights of a row's group, {GROUP // 2} instructions; rung 9 scales the group's "
        f"sums, {counted(sums, 'instruction')} at {counted(int(slow[-1]), 'token')}."
    )


def _picked(here: Lab, n: int, k: int, batch: int) -> int:
    """The number of the rung that the dispatcher picks."""
    name, _ = int4.choose(n, k, batch, True, study.table_of(here.sized))
    return int(name.partition("_")[0])


def rung_by_batch(here: Lab, batches: list[Any], shapes: list[Any], gpu: str) -> None:
    """Draw which rung the dispatcher chooses for each shape and number of tokens; say from where on a rung of
    wgmma is chosen.
    """
    picks = {f"{n:,} × {k:,}": [_picked(here, n, k, batch) for batch in batches] for n, k in shapes}
    title = f"The rung that the dispatcher picks on {gpu}"
    fig, ax = plot.figure("tokens", title=title, height=1.1 + 0.3 * len(shapes))
    fig.set_figwidth(7.4)
    for down, row in enumerate(picks.values()):
        for across, rung in enumerate(row):
            fill = _FILLS.get(rung, "#EDEDED")
            ax.add_patch(Rectangle((across + 0.03, down + 0.06), 0.94, 0.88, color=fill, linewidth=0))
            colour = "white" if fill == _FILLS[9] else "#1A1A1A"
            ax.text(across + 0.5, down + 0.5, str(rung), ha="center", va="center", color=colour, fontsize=8.5)
    ax.set(xlim=(0, len(batches)), ylim=(len(shapes), 0))
    ax.set_xticks([k + 0.5 for k in range(len(batches))], [str(batch) for batch in batches])
    ax.set_yticks([k + 0.5 for k in range(len(picks))], list(picks))
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    plot.show(fig, f"{title}, by shape and number of tokens.")
    if started := _started(picks, batches):
        display.say(started)
    _so_far(picks, batches, gpu)


# What each rung does, by its source: what multiplies, whose x it has and what it scales.
_DOES = {
    8: ("a warp, mma", "each warp's own part of k; few rows a block, so more blocks", "sums"),
    9: ("a warp, mma", "shared by warps", "sums; weights above 16 tokens"),
    10: ("four warps, wgmma", "shared by warps", "weights"),
    11: ("four warps, wgmma; the TMA copies", "shared by warps", "sums; weights above 16 tokens"),
}


def _started(picks: dict[str, list[int]], batches: list[Any]) -> str:
    """From how many tokens on the rungs of wgmma are picked, where they are on every shape."""
    many = [
        min((batch for batch, rung in zip(batches, row, strict=True) if rung >= 10), default=None)
        for row in picks.values()
    ]
    starts = sorted({batch for batch in many if batch is not None})
    if not starts or None in many:
        return ""
    span = f"{starts[0]}" + (f" to {starts[-1]}" if len(starts) > 1 else "")
    text = f"**From {span} tokens on, by shape, rungs 10 and 11 with their `wgmma` are picked.**"
    tens = [shape for shape, row in picks.items() if 10 in row]
    if len(tens) == 1 < len(picks):
        at = [batch for batch, rung in zip(batches, picks[tens[0]], strict=True) if rung == 10]
        text += f" Rung 10 is picked on {tens[0]} alone, at {listed(at)} tokens; why is not taken apart here."
    return text


def _so_far(picks: dict[str, list[int]], batches: list[Any], gpu: str) -> None:
    """Show for how many tokens and at how many points each rung is picked, with what it does, and what of
    this depends on the number of tokens.
    """
    cells = [cell for row in picks.values() for cell in zip(row, batches, strict=True)]
    table = []
    for rung in sorted({rung for rung, _ in cells}):
        at = [batch for each, batch in cells if each == rung]
        span = f"{min(at)} to {max(at)}" if min(at) < max(at) else f"{min(at)}"
        table.append((str(rung), span, f"{len(at)} of {len(cells)}", *_DOES.get(rung, ("", "", ""))))
    names = {"rung": "Rung", "tokens": "Tokens", "points": "Points", "by": "Multiplies", "x": "x"}
    names |= {"scales": "Scales"}
    title = f"What each rung does, and where it is picked on {gpu}"
    display.table(pd.DataFrame(table, columns=list(names)), names, {}, title, folded=True)
    display.say(
        "Sharing x pays with more tokens, because x grows with them and the weights do not. But blocks that "
        "share it have more rows, so a small matrix gives few blocks to the SMs."
    )


def what_is_scaled(here: Lab, shapes: list[Any], batches: list[Any]) -> None:
    """Whether rungs 9 to 11 scale weights or sums, counted from their listings; folded."""
    chosen = (
        int4.choose(n, k, batch, True, study.table_of(here.sized)) for n, k in shapes for batch in batches
    )
    scaled, why = _what_is_scaled(sorted({built["TOKENS"] for name, built in chosen if name == "11_tma"}))
    display.fold_parts("What is scaled: weights or sums", [scaled[0].upper() + scaled[1:], why])


def sums_even_at(source: str) -> int:
    """Tokens at which a rung's listing scales a group's sums in as many instructions as its weights: a
    `__hmul2` scales two of these, a multiply-add one sum of one token.
    """
    assert "__hmul2" in source
    halves = re.search(r"float part\[(\d+)\]\[PARTS \* 4\]", source)  # sums of a group that are apart
    return GROUP // 2 // (int(halves[1]) if halves else 1)


def _what_is_scaled(columns: list[int]) -> tuple[str, str]:
    """Up to how many tokens scaling sums is fewer instructions, by the listings, and why kernels stop before;
    `columns`: the TOKENS of rung 11's builds that are picked.
    """
    ninth, eleventh = (int4.LADDERS["int4"][number - 1].path.read_text("utf-8") for number in (9, 11))
    even = [sums_even_at(source) for source in (ninth, eleventh)]
    each = [GROUP // 2 // at for at in even]
    text = (
        "scale × (sum of codes × x) is sum of (scale × codes) × x, so a kernel scales weights or sums. Of a "
    )
    text += (
        f"row's group of {GROUP} weights that is\n\n- its weights: {GROUP // 2} instructions (`__hmul2`, two "
    )
    text += (
        f"weights each), whatever the tokens\n- its sums: {each[0]} a token in rung 9, {each[1]} in rung 11, "
    )
    text += f"which sums a group's halves apart\n\n**So sums cost less below {even[0]} tokens in "
    text += f"rung 9 and below {even[1]} in rung 11.**"
    why = ""
    following = min((tokens for tokens in columns if tokens > SUMS_SCALED), default=0)
    if following >= even[1]:
        sums = "as many instructions" if following == even[1] else "more instructions"
        why = f"Rung 11 scales sums up to {SUMS_SCALED} tokens. Its first build beyond has {following} "
        why += f"token columns, where sums need {sums}. "
    why += f"Rung 9 stops at {SUMS_SCALED}, too. Its source gives a reason, not timed here: sums of codes "
    return text, why + "need an extra `mma` that takes the codes' offset away again."


def _again(here: Lab, rungs: Any, drawn: Any) -> tuple[Any, Rows]:
    """The rows of rungs 5 and 6 on the drawn shape, or on the first shape of which both were timed."""
    known, rows = here.cases("int4"), pd.DataFrame()
    shape = drawn
    for shape in dict.fromkeys((tuple(drawn), study.SHAPES[-1], study.SHAPES[0])):
        cases = [case for case in study.rungs(*shape) if case.impl == rungs[4].name]
        cases = [case for case in (*cases, *study.reused(*shape)) if case in known]
        rows = here.measure("int4", here.held("int4", cases))
        if {rungs[4].name, rungs[5].name} <= set(rows["impl"]):
            break
    return shape, rows


def _chosen(here: Lab, shape: Any, batches: list[int]) -> list[Any]:
    """The dispatcher's choices at these numbers of tokens, where they were timed."""
    cases = [study.chosen(*shape, batch, here.sized) for batch in batches]
    known = here.cases("int4")
    return here.held("int4", [case for case in cases if case in known])
