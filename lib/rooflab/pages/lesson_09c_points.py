"""The points of lesson 09c: packed weights beside cuBLAS's FP16 by matrix and tokens, and equal widths."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rooflab.analysis import related, states, strategies
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import plot
from rooflab.view.diagram.in_turns import OURS, THEIRS, Compared
from rooflab.words import counted, listed

DENSE = "cuBLAS"  # multiplies FP16 weights, whatever ours are
# Of a region's products: ours is faster in as many, so call it untimed; in as few, so call cuBLAS.
_SURE, _SELDOM = 0.95, 0.2
_APART = 0.25  # shares that differ by less make no rule
_LIKE = ("attention", "decode_attention", "gemv_rows", "int4")  # whose fastest peers have as many bits
_PRODUCT = ["format", "n", "k", "tokens", "gain"]
_SWEPT = {"int4_g128": "INT4", "q8_0": "Q8_0"}
_WHO = {
    "ours": ("ours", "o", OURS),
    "level": ("level, within 2%", "s", "#8A8A8A"),
    "theirs": ("cuBLAS", "X", THEIRS),
}


def tokens(points: Rows) -> Rows:
    """The points that are products of so many tokens, with `tokens` and the `format` of our weights."""
    parts = points["where"].str.extract(r"^(INT4|Q8_0|FP16),.* ([\d,]+) tokens?$")
    found = points.assign(format=parts[0], tokens=pd.to_numeric(parts[1].str.replace(",", "")))
    return found.dropna(subset=["format", "tokens"])


def against_fp16(points: Rows) -> pd.Series:
    """Which points set packed weights of ours against FP16 weights of theirs."""
    return points["name"].eq(DENSE) & ~points["where"].str.startswith("FP16")


def packed(rivals: Rows, here: Lab) -> Rows:
    """Every product that our packed weights and cuBLAS's FP16 weights were both timed at, once: those of
    `rivals`, and those of lesson 07's sweep of matrices. Columns: format, n, k, tokens, gain (how many times
    as fast ours is).
    """
    mine = tokens(rivals[against_fp16(rivals)])
    sizes = mine["where"].str.extract(r", ([\d,]+) × ([\d,]+), ").apply(lambda c: c.str.replace(",", ""))
    mine = mine.assign(n=pd.to_numeric(sizes[0]), k=pd.to_numeric(sizes[1]))[_PRODUCT]
    found = pd.concat([mine, *_swept(here)], ignore_index=True).dropna()
    found = found.astype({name: int for name in ("n", "k", "tokens")} | {"gain": float})
    return found.drop_duplicates(_PRODUCT[:-1], ignore_index=True)


def _swept(here: Lab) -> list[Rows]:
    """Lesson 07's sweep, a table a format, in the columns of `packed`."""
    rows, found = strategies.gather(here), []
    for format, name in _SWEPT.items() if len(rows) else ():
        wide = strategies.gains(rows, format)
        long = wide.melt(["n", "k"], [c for c in wide if isinstance(c, int)], "tokens", "gain")
        found.append(long.assign(format=name)[_PRODUCT])
    return found


class Rule(NamedTuple):
    """The number of tokens that best tells products at which ours is ahead from the others (NaN where none
    does): how many products have fewer tokens, how many of these ours is ahead at, the same with as many
    tokens or more, and the matrices (n, k) at which ours is not ahead though tokens are few; `small`, whether
    there are such and all are among the smaller half; `large`, the least values of a matrix at which ours is
    ahead more often with many tokens (NaN where size does not tell).
    """

    tokens: float
    few: int
    few_ahead: int
    many: int
    many_ahead: int
    others: list[tuple[int, int]]
    small: bool
    large: float


def rule(found: Rows) -> Rule:
    """Up to how many tokens packed weights are an advantage."""
    ahead = found["gain"] > crossover.LEVEL
    at = _parted(found["tokens"], ahead)
    few = found["tokens"] < at if at == at else pd.Series(True, index=found.index)
    beside = found[few & ~ahead].drop_duplicates(["n", "k"])
    others = sorted(zip(beside["n"], beside["k"], strict=True), key=_values)
    counts = (int(few.sum()), int((few & ahead).sum()), int((~few).sum()), int((~few & ahead).sum()))
    middle = (found["n"] * found["k"]).median()
    large = _parted((found["n"] * found["k"])[~few], ~ahead[~few])
    return Rule(at, *counts, others, bool(others and _values(others[-1]) < middle), large)


class Region(NamedTuple):
    """A part of the shapes: what it is in words, how many products ours is ahead at, and behind at, of how
    many, and whether its tokens are many and its matrices large (None: of every size).
    """

    where: str
    ahead: int
    behind: int
    size: int
    many: bool
    large: bool | None

    @property
    def advice(self) -> str:
        """What to call there, or where neither is sure, what to try first."""
        share = self.ahead / self.size
        if share >= _SURE or share <= _SELDOM:
            return "packed" if share >= _SURE else "cuBLAS"
        first = "packed" if 2 * self.ahead > self.size else "cuBLAS" if 2 * self.behind > self.size else ""
        return f"{first} first" if first else "time both"


def regions(found: Rows, by: Rule) -> list[Region]:
    """The parts of the shapes that a rule tells apart; none where it tells none."""
    if by.tokens != by.tokens:
        return []
    lost = found["gain"] < 1 / crossover.LEVEL
    behind = int((lost & (found["tokens"] < by.tokens)).sum())
    few = Region(f"fewer than {by.tokens:,.0f} tokens", by.few_ahead, behind, by.few, False, None)
    many, start = found[found["tokens"] >= by.tokens], f"{by.tokens:,.0f} tokens or more"
    won, values = many["gain"] > crossover.LEVEL, many["n"] * many["k"]
    if by.large != by.large:
        return [few, Region(start, by.many_ahead, int(lost.sum()) - behind, by.many, True, None)]
    above, one = values >= by.large, many[values == by.large].iloc[0]
    least = _matrix((one["n"], one["k"]))
    parts = (
        (above, True, f"matrices of {least} or larger"),
        (~above, False, f"matrices smaller than {least}"),
    )
    return [few] + [
        Region(
            f"{start} and {which}",
            int(won[those].sum()),
            int(lost[many.index][those].sum()),
            int(those.sum()),
            True,
            large,
        )
        for those, large, which in parts
    ]


def _parted(values: pd.Series, low: pd.Series) -> float:
    """The value that parts those that are `low` from the rest best: the largest share of `low` lies below it
    less the share of the rest that does. NaN where that difference is small.
    """
    best, at = _APART, float("nan")
    for value in sorted(values.unique())[1:]:
        below = values < value
        apart = below[low].mean() - below[~low].mean()
        if apart > best:
            best, at = float(apart), float(value)
    return at


def _values(matrix: tuple[int, int]) -> int:
    return matrix[0] * matrix[1]


def _matrix(matrix: tuple[int, int]) -> str:
    return f"{matrix[0]:,} × {matrix[1]:,}"


def _of(ahead: int, size: int) -> str:
    return f"all {size}" if ahead == size else f"{ahead} of {size}"


def answer(rivals: Rows, gpu: str, here: Lab) -> str:
    """At which shapes who is faster, a line a region, and why; then where both weights are as wide."""
    found, said = packed(rivals, here), ""
    if len(found):
        which = listed(sorted(set(found["format"])))
        by = rule(found)
        parts = regions(found, by)
        said = f"On the {gpu} our packed weights ({which}) are faster than cuBLAS's FP16 weights in "
        said += f"{_of(int((found['gain'] > crossover.LEVEL).sum()), len(found))} products measured."
        if parts:
            theirs = [each.where for each in parts if each.advice == "cuBLAS"]
            if theirs:
                said = f"On the {gpu} call cuBLAS with {listed(theirs)}. It multiplies FP16 weights: packed "
                said += f"ones need an FP16 copy for it.{_beyond(found, by)}"
            said += f"\n\nWhich to call, our packed weights ({which}) or cuBLAS's FP16:\n\n"
            said += "\n".join(f"- {_line(each, by)}" for each in parts)
            why = "With few tokens a product waits for its weights' bytes, and packed weights have fewer"
            why += " (a small matrix has few to save)" if by.small else ""
            said += f"\n\n{why}; with many it waits for arithmetic, which packing does not save."
    other = rivals[~against_fp16(rivals)]
    if len(other):
        ahead, behind = ((other["word"] == word).sum() for word in (related.OURS, related.THEIRS))
        start = "Against libraries" if said else f"On the {gpu}, against libraries"
        text = f"{start} measured here whose weights or values have as many bits as ours, ours is faster in "
        text += f"{_of(ahead, len(other))} comparisons at the lessons' shapes"
        rest = f" and slower in {behind}" if behind else " and nowhere slower" if ahead < len(other) else ""
        said += f" {text}{rest}.{_undecided(other)}{_sustained(here)}"
    return said.strip()


def _sustained(here: Lab) -> str:
    """The smallest ratio over such a library where both run for long, where that was recorded."""
    found = states.duels(here.store.read("power"), *_LIKE)
    if found.empty:
        return ""
    least = found.loc[found["sustained"].idxmin()]
    level = ", level" if 1 / crossover.LEVEL <= least["sustained"] <= crossover.LEVEL else ""
    return (
        f" Those are bursts. Sustained, the smallest of {len(found)} ratios is {least['sustained']:.2f}"
        f"{level}, over {least['sustained_peer']} ({least['shape']})."
    )


def _undecided(other: Rows) -> str:
    """The comparisons that a second measurement ends the other way."""
    open_ = other[other["word"] == related.OPEN]
    if open_.empty:
        return ""
    named = "; ".join(f"{name}, {where}" for name, where in zip(open_["name"], open_["where"], strict=True))
    return f" Undecided, because a second measurement ends the other way: {named}."


def _beyond(found: Rows, by: Rule) -> str:
    """Up to how many tokens a format was timed that was timed with fewer than the others."""
    most = found.groupby("format")["tokens"].max()
    short = most[(most < most.max()) & (most >= by.tokens)]
    said = listed(f"{name} was timed up to {tokens:,.0f} tokens" for name, tokens in short.items())
    return f" {said}; beyond, this is extrapolated." if len(short) else ""


def _line(part: Region, by: Rule) -> str:
    """A region with what to call there."""
    beside = "" if part.many else _beside(by)
    level = part.size - part.ahead - part.behind
    said = f"ours faster in {part.ahead}, level in {level} and slower in {_of(part.behind, part.size)}"
    if part.advice in ("packed", "cuBLAS"):
        return f"{part.where}: **{part.advice}** ({said}{beside})"
    then = "" if part.advice == "time both" else ", then time the other"
    return f"{part.where}: **{part.advice}**{then} ({said}{beside})"


def shapes_counted(rivals: Rows, here: Lab) -> str:
    """How often ours is behind cuBLAS's FP16 weights at the lessons' shapes, and with lesson 07's sweep."""
    mine, found = rivals[against_fp16(rivals)], packed(rivals, here)
    if mine.empty or len(found) <= len(mine):
        return ""
    lost, all_lost = ((each["gain"] < 1 / crossover.LEVEL).sum() for each in (mine, found))
    return (
        f"Our packed weights are behind cuBLAS's FP16 in {lost} of {len(mine)} products at the lessons' "
        f"shapes, and in {all_lost} of {len(found)} with lesson 07's sweep"
    )


def _beside(by: Rule) -> str:
    """Which products of few tokens are the others."""
    if not by.others:
        return ""
    left = by.few - by.few_ahead
    whose = listed([_matrix(each) for each in by.others])
    named = f"the {'matrices' if len(by.others) > 1 else 'matrix'} {whose}"
    whose = named if len(by.others) < 4 else f"{len(by.others)} matrices"
    return f"; the other {f'{left} are' if left > 1 else 'is'} of {whose}"


def widest_gap(rivals: Rows) -> str:
    """How the two times of the widest gap between weights of one width grow with tokens; nothing where ours
    grows as much.
    """
    found = tokens(rivals[~against_fp16(rivals)])
    if found.empty:
        return ""
    widest = found.loc[found["gain"].idxmax()]
    shape = widest["where"].rpartition(", ")[0]
    same = (found["name"] == widest["name"]) & (found["where"].str.rpartition(", ")[0] == shape)
    along = found[same].sort_values("tokens")
    first, last = along.iloc[0], along.iloc[-1]
    theirs, ours = last["theirs"] / first["theirs"], last["ours"] / first["ours"]
    if theirs < 2 * ours:
        return ""
    who, one, many = widest["name"], counted(int(first["tokens"]), "token"), f"{int(last['tokens']):,}"
    return (
        f"Between weights of as many bits the widest gap is {who}'s, {shape}: from {one} to {many} its time "
        f"grows to {theirs:.1f} times, ours to {ours:.1f} times. Ours reads each weight once for all tokens; "
        f"what limits {who} was not measured."
    )


def _shade(ax: Axes, parts: list[Region], by: Rule, rows: list[tuple[int, int]]) -> None:
    """Tint the regions of a panel, each named in a corner; `rows` are the matrices from bottom to top."""
    low, high = ax.get_xlim()
    split = sum(_values(each) < by.large for each in rows) - 0.5
    for part in parts:
        left, right = (by.tokens / 1.12, high) if part.many else (low, by.tokens / 1.12)
        bottom = split if part.large else -1.4
        top = split if part.large is False else len(rows) + 0.4
        tint = {"packed": OURS, "cuBLAS": THEIRS}.get(part.advice, "#8A8A8A")
        box = Rectangle((left, bottom), right - left, top - bottom, color=tint, alpha=0.2, lw=0, zorder=0)
        ax.add_patch(box)
        place = {"ha": "right" if part.many else "left", "va": "bottom" if part.large is False else "top"}
        edge = bottom if part.large is False else top
        text = ax.annotate(part.advice, (right if part.many else left, edge), **place, fontsize=8, zorder=4)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8})
    ax.set_xlim(low, high)


def by_shape(rivals: Rows, gpu: str, here: Lab) -> tuple[Figure, str] | None:
    """Who is faster at which matrix and number of tokens: a row a matrix, the largest on top, a panel a
    format of ours; nothing where no packed product was measured beside cuBLAS.
    """
    found = packed(rivals, here)
    if found.empty:
        return None
    rows = sorted(set(zip(found["n"], found["k"], strict=True)), key=lambda each: (_values(each), each))
    place = {each: at for at, each in enumerate(rows)}
    formats = [name for name in _SWEPT.values() if (found["format"] == name).any()]
    title, by = "Our packed weights or cuBLAS's FP16: who is faster", rule(found)
    parts = regions(found, by)
    height = 1.1 + 0.16 * len(rows)
    fig, axes = plot.figure("tokens", "", title, xlog=True, columns=len(formats), height=height)
    axes = axes if len(formats) > 1 else [axes]
    for ax, name in zip(axes, formats, strict=True):
        mine = found[found["format"] == name]
        word = mine["gain"].map(lambda gain: Compared("", "", gain).word)
        for who, (label, marker, colour) in _WHO.items():
            those = mine[word == who]
            where = [place[each] for each in zip(those["n"], those["k"], strict=True)]
            ax.plot(those["tokens"], where, marker, color=colour, markersize=5, label=label)
        _shade(ax, parts, by, rows)
        ax.set_yticks(range(len(rows)), [_matrix(each) for each in rows], fontsize=8)
        ax.set_ylim(-1.4, len(rows) + 0.4)  # with room for the regions' names
        ax.set_title(f"{name} weights")
        last = mine["tokens"].max()
        ax.set_xticks([t for t in (1, 4, 16, 64, 128, 512, 2048) if t <= last])
        ax.xaxis.set_major_formatter("{x:,.0f}")
    plot.key_below(axes[0])
    won = found["gain"] > crossover.LEVEL
    told = [
        f"{name}: ours faster in {won[mine].sum()} of {mine.sum()} products"
        for name in formats
        for mine in [found["format"] == name]
    ]
    shaded = f" Shaded: {'; '.join(f'{each.where}: {each.advice}' for each in parts)}." if parts else ""
    return (
        fig,
        f"{title}, by matrix (the larger the higher) and tokens, {gpu}, lesson 07's sweep included. "
        f"{'; '.join(told)}.{shaded}",
    )
