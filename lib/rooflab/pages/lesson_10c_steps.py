"""What lesson 10c measures step by step: from one GPU to two by the fused way, each step compared with the
one before it, and what is left above the bound; the page's last word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rooflab.hardware import crossover
from rooflab.numerics import model_shapes
from rooflab.pages import Rows, four_gpus
from rooflab.pages.lesson_10c import WAYS, gains_by, launched, spanned, tokens
from rooflab.pages.lesson_10c_layers import per_layer, span, with_rest
from rooflab.studies import links, split
from rooflab.view import display, page, plot
from rooflab.words import listed

STEPS = {
    "one": "one GPU",
    "separate": "two, a kernel for each sum",
    "plain": "sums in norms, other\nkernels, half the head",
    "fused": "launches overlap",
    "bound": "the bound of two",
}
SHADES = {"one": "#CFCFCF", "separate": "#0072B2", "plain": "#009E73", "fused": "#009E73", "bound": "#D3EFE5"}
MORE, LEFT = "#D55E00", "#FBE0B5"
ACROSS = 3  # models side by side


def named(table: Rows) -> dict[str, str]:
    """The steps that were timed, by their column of `per_layer`, numbered after one GPU."""
    timed = [of for of in STEPS if table[of].notna().any()]
    names = dict(STEPS)
    if "plain" not in timed:
        names["fused"] = f"{STEPS['plain']},\n{STEPS['fused']}"
    return {
        of: names[of] if of == "one" else f"{k}. {names[of]}"
        for k, of in enumerate(timed, "one" not in timed)
    }


def told(rows: Rows, gpu: Any, kernel: float = np.nan) -> None:
    """Draw every model from one GPU to the bound of two, a step a bar; then a finding a step. `kernel` is
    the time of lesson 10's shortest one.
    """
    table = with_rest(per_layer(rows), rows)
    drawn = table.dropna(subset="one")
    names = named(drawn if len(drawn) else table)
    if len(drawn):
        _draw(drawn, names, rows, gpu)
    said = {
        "separate": _second(drawn),
        "plain": _inside(table),
        "fused": _overlapping(table, names, gains_by(tokens(rows)), kernel),
        "bound": _left(table),
    }
    lines, before = [], ""
    for of, name in names.items():
        number, what = name.split(" ", 1)
        if said.get(of):
            lines.append(f"{number} {said[of].format(before=before)}")
        before = name if of == "one" else f"step {number.rstrip('.')}"
    display.say("\n".join(lines))


def _draw(table: Rows, names: dict[str, str], rows: Rows, gpu: Any) -> None:
    """A chart a model: a bar a step, in % of one GPU's time, and its change from the bar above it."""
    caption = "Steps from one GPU to the bound of two, µs a layer"
    across = min(ACROSS, len(table))
    down = -(-len(table) // across)
    fig, found = plot.figure(
        "% of one GPU's time", title=caption, columns=across, down=down, height=0.9 + 1.9 * down
    )
    fig.set_figwidth(page.WIDEST)
    axes = found if across > 1 else [found]
    most = 0.0
    for ax, row in zip(axes, table.to_dict("records"), strict=False):
        most = max(most, _panel(ax, row, names))
    for ax in axes[len(table) :]:
        fig.delaxes(ax)
    for ax in axes[: len(table)]:
        ax.set_xlim(0, most + 45)
        ax.set_xticks(np.arange(0, most + 45, 50))
    axes[0].set_yticks(range(len(names)), list(names.values()))
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    plot.key_below(axes[0])
    note = "Numbers in bars: a token's time ÷ its layers; beside them: the change from the bar above."
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(rows)}. {note}")


_LETTER = 6.5  # about the width of a letter beside a bar, in % of one GPU's time


def _panel(ax: Any, row: dict[str, Any], names: dict[str, str]) -> float:
    """One model's bars; the longest of them, in % of one GPU's time."""
    before, longest = float("nan"), 100.0
    says = {
        "less": "less than the bar above",
        "more": "more than the bar above",
        "left": "left above the bound",
    }
    less = {"facecolor": "none", "edgecolor": "#777777", "linestyle": (0, (3, 2)), "linewidth": 0.9}
    for k, of in enumerate(names):
        us = float(row[of])
        if us != us:
            ax.text(3, k, "not timed", va="center", fontsize=8)
            continue
        share, then = (100 * each / row["one"] for each in (us, before if before == before else us))
        ax.barh(k, min(share, then), height=0.72, zorder=2, color=SHADES[of])
        if share > then:
            ax.barh(
                k, share - then, left=then, height=0.72, color=MORE, label=says.pop("more", None), zorder=2
            )
        elif then > share:
            style = {"color": LEFT} if of == "bound" else less
            label = says.pop("left" if of == "bound" else "less", None)
            ax.barh(k, then - share, left=share, height=0.72, label=label, zorder=2, **style)
        ink = "white" if of == "separate" else "black"
        ax.text(3, k, f"{us:.1f}", va="center", fontsize=8, color=ink, zorder=4)
        if before == before:
            change = f"{before - us:.1f} left" if of == "bound" and us < before else f"{us - before:+.1f}"
            ink = MORE if us > before else "black"
            words: dict[str, Any] = {
                "fontsize": 8,
                "color": ink,
                "fontweight": "bold" if ink == MORE else "normal",
            }
            words["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            at = max(share, then) + 4
            at = 103 if at < 100 < at + _LETTER * len(change) else at  # not across one GPU's line
            ax.text(at, k, change.replace("-", "−"), va="center", zorder=3, **words)
        before, longest = us, max(longest, share, then)
    ax.axvline(100, color=plot.ROOF_COLOUR, linewidth=1.1, linestyle=(0, (8, 3)), zorder=1.5)
    ax.grid(False, axis="y")
    ax.set_title(str(row["title"]), fontsize=9, pad=14, loc="left", fontweight="bold")
    gain = f"gain {row['gain']:.2f}, predicted {row['alone_bound'] / row['bound']:.2f}"
    ax.annotate(gain, (0, 1), (0, 3), ("axes fraction", "axes fraction"), "offset points", fontsize=8)  # type: ignore[arg-type]
    return longest


def _second(table: Rows) -> str:
    """What a second GPU brings with a kernel for each sum, compared with one."""
    table = table.dropna(subset=["one", "separate"])
    if table.empty:
        return ""
    gain = table["first_gain"]
    text = (
        f"**Two GPUs, compared with {{before}}: {spanned(gain, '.2f')} times as fast.** Bytes halve, but a "
        f"layer is {launched()[0]} launches with two sums"
    )
    slower = table[gain < 1]
    if slower.empty:
        return f"{text}."
    shortest = slower["one"].max() < table["one"][gain >= 1].min()
    whose = ", whose layers take least time" if shortest else ""
    return f"{text}. That costs more than it saves on {listed(slower['title'])}{whose}."


def _inside(table: Rows) -> str:
    """What sums inside norms save without overlap, compared with a kernel for each; why less than due."""
    table = table.dropna(subset=["other", "separate"])
    if table.empty:
        return ""
    level = table["separate"] * (crossover.LEVEL - 1)
    parts = []
    for says, mine in (
        ("saves {} µs a layer on {}", table["other"] > level),
        ("changes less than {:.0%} on {}", table["other"].abs() <= level),
        ("costs {} µs on {}", table["other"] < -level),
    ):
        if mine.any():
            size = crossover.LEVEL - 1 if "{:" in says else span(table["other"][mine].abs())
            parts.append(says.format(size, listed(table["title"][mine])))
    separate, inside = launched()
    text = (
        f"**Three changes, compared with {{before}}: sums move into norms ({separate} launches become "
        f"{inside}), kernels of a batch replace those of one token, and each GPU reads only its part of the "
        "output head.** Sums, launches and head "
    )
    known = table.dropna(subset="due")
    if known.empty:
        return f"{text.removesuffix('Sums, launches and head ')}The step {'; '.join(parts)}."
    text += f"should save {span(known['due'])} µs a layer, by estimates ([appendix](#every-model)). The step "
    text += f"{'; '.join(parts)}."
    if (known["other"] >= known["due"]).all():
        return text
    return (
        f"{text} Most likely the batch's kernels, which overlap needs, are slower: `batch_product` in "
        "place of `gemv_rows` (FP16) or `int4`, and `batch_attention` in place of `decode_attention`. Giving "
        "the replaced ones the instruction that waits was not tried."
    )


def _overlapping(table: Rows, names: dict[str, str], gains: Rows, kernel: float) -> str:
    """What overlap saves compared with the same kernels by plain launches, and where it decides."""
    if "plain" not in names:
        saves = table["saved"][table["saved"] > 0]
        where = "" if len(saves) == len(table) else f" on {len(saves)} of {len(table)} models"
        text = f"save {span(saves)} µs a layer{where}" if len(saves) else "save no time"
        return (
            f"**These changes and overlap, compared with {{before}}: together they {text}.** What each "
            "saves was not timed."
        )
    turned = gains.index[(gains["plain"] < 1) & (gains["got"] > 1)]
    decides = (
        f" It decides on {listed(turned)}: without it two GPUs take longer than one." if len(turned) else ""
    )
    timed, launches = table.dropna(subset="overlap"), launched()[1] * links.LAUNCH_US
    beyond = ""
    if len(timed) and (timed["overlap"] > launches).all():
        beyond = f" That is more than the {launches:.1f} assumed for the starts"
        if kernel < links.LAUNCH_US:
            beyond += f", and than the {launched()[1] * kernel:.1f} that lesson 10's kernel leaves them"
        beyond += ": most likely weights that arrive early, too."
    return (
        f"**Overlap, compared with {{before}}, the same kernels by plain launches: it {overlap(table)}.**"
        f"{beyond}{decides}"
    )


def overlap(table: Rows) -> str:
    """What overlap hides of a layer, as the end of a sentence."""
    timed = table.dropna(subset="overlap")
    saves = timed[timed["overlap"] > 0]
    if saves.empty:
        return "hides no time"
    text = f"hides {span(saves['overlap'])} µs a layer"
    return text if len(saves) == len(timed) else f"{text} on {len(saves)} of {len(timed)} models"


def _left(table: Rows) -> str:
    """What is left above the bound, what it holds, and how it keeps the least gain small."""
    table = table.dropna(subset="over")
    if table.empty or not (table["over"] > 0).any():
        return "**Above the bound nothing is left.**"
    text = (
        f"**The bound, compared with {{before}}: {span(table['over'].clip(lower=0))} µs a layer are left "
        "above it.** They hold starts that are not hidden, waits for the other GPU, and kernels that read "
        "below the datasheet's bandwidth; these were not timed apart."
    )
    both = table.dropna(subset=["alone", "alone_bound"])
    if both.empty:
        return text
    row = both.loc[((both["alone_bound"] + both["alone"]) / (both["bound"] + both["over"])).idxmin()]
    if not row["alone_bound"] > row["bound"] or not row["over"] > row["alone"]:
        return text
    return (
        f"{text} This is why two are not twice as fast. On {row['title']}, which gains least, a second GPU "
        f"cuts the bound from {row['alone_bound']:.1f} to {row['bound']:.1f} µs, but the time above it grows "
        f"from {row['alone']:.1f} to {row['over']:.1f}."
    )


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    found = tokens(rows)
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    by = found[found["gain"].notna()].pivot_table("gain", "title", "impl", sort=False)
    by = by.reindex(columns=[split.SEPARATE, links.NCCL])
    lost = by[(by < 1).all(axis=1)]
    said = ""
    if len(lost):
        said = f" With a kernel for each sum it is slower on {listed(lost.index)}."
    lines = [
        f"- On two GPUs ({gpu}) a token is {spanned(fused['gain'], '.2f')} times as "
        f"fast as on one, by {WAYS[split.FUSED]}.{said}",
        f"- {_paid(rows)}",
        four_gpus.takeaway(rows, gpu),
        f"- A token's two sums send {_sent(found)} KiB of packets a layer, so latency decides their cost. "
        "From the [appendix](#prompts): for a prompt's thousands of rows the link's rate does.",
    ]
    display.say("\n".join(filter(None, lines)))


def _paid(rows: Rows) -> str:
    """What overlap saves a layer, and where other kernels cost as much."""
    table = with_rest(per_layer(rows), rows)
    if table["overlap"].isna().all():
        return "What overlap saves was not timed by itself."
    lost = table[(table["saved"] <= 0) & (table["overlap"] > 0) & (table["other"] < 0)]
    text = f"Overlap {overlap(table)}."
    if lost.empty:
        return text
    return f"{text} Kernels swapped in for it can cost as much or more: on {listed(lost['title'])}."


def _sent(found: Rows) -> str:
    """The KiB of packets that a GPU sends for the two sums of a layer, from the least to the most."""
    each = [links.crossing("all_reduce", split.SEPARATE, 2 * model_shapes.get(str(name)).hidden, 2)
            for name in found["model"].unique()]  # fmt: skip
    return spanned(2 * np.array(each) / 1024, ".0f")
