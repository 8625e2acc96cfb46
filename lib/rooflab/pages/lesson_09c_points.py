"""The points of lesson 09c: packed weights beside cuBLAS's FP16 by matrix and tokens, and equal widths."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from rooflab.analysis import strategies
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import plot
from rooflab.view.diagram.in_turns import Compared
from rooflab.view.diagram.svg import BLUE
from rooflab.words import counted, listed

DENSE = "cuBLAS"  # multiplies FP16 weights, whatever ours are
_APART = 0.25  # shares that differ by less make no rule
_PRODUCT = ["format", "n", "k", "tokens", "gain"]
_SWEPT = {"int4_g128": "INT4", "q8_0": "Q8_0"}
_WHO = {
    "ours": ("ours", "o", BLUE),
    "level": ("level, within 2%", "s", "#9AA0A6"),
    "theirs": ("cuBLAS", "X", "#C05A00"),
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
    there are such and all are among the smaller half.
    """

    tokens: float
    few: int
    few_ahead: int
    many: int
    many_ahead: int
    others: list[tuple[int, int]]
    small: bool


def rule(found: Rows) -> Rule:
    """Up to how many tokens packed weights are an advantage."""
    ahead = found["gain"] > crossover.LEVEL
    at = _parted(found["tokens"], ahead)
    few = found["tokens"] < at if at == at else pd.Series(True, index=found.index)
    beside = found[few & ~ahead].drop_duplicates(["n", "k"])
    others = sorted(zip(beside["n"], beside["k"], strict=True), key=_values)
    counts = (int(few.sum()), int((few & ahead).sum()), int((~few).sum()), int((~few & ahead).sum()))
    middle = (found["n"] * found["k"]).median()
    return Rule(at, *counts, others, bool(others and _values(others[-1]) < middle))


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
    """At which shapes who is faster, and why; then where both hold values in as many bits."""
    found, said = packed(rivals, here), []
    if len(found):
        which = listed(sorted(set(found["format"])))
        by, first = rule(found), f"On the {gpu} our packed weights ({which}) are faster than cuBLAS's FP16 "
        first += f"weights in {_of(by.few_ahead, by.few)} products"
        if by.tokens == by.tokens:
            first += f" of fewer than {by.tokens:,.0f} tokens{_beside(by)}."
            said = [first, _many(found, by)]
            why = "With few tokens a product waits for its weights' bytes, and packed weights have fewer"
            why += " (a small matrix has few to save)" if by.small else ""
            said.append(f"{why}; with many it waits for arithmetic, which packing does not save.")
        else:
            said = [f"{first} measured."]
    other = rivals[~against_fp16(rivals)]
    if len(other):
        ahead, behind = (other["gain"] > crossover.LEVEL).sum(), (other["gain"] < 1 / crossover.LEVEL).sum()
        start = "Against libraries" if said else f"On the {gpu}, against libraries"
        text = f"{start} that hold values in as many bits as ours, ours is faster in "
        text += f"{_of(ahead, len(other))} comparisons at the lessons' shapes"
        rest = f" and slower in {behind}" if behind else " and nowhere slower" if ahead < len(other) else ""
        said.append(f"{text}{rest}.")
    return " ".join(said)


def _beside(by: Rule) -> str:
    """Which products of few tokens are the others."""
    if not by.others:
        return ""
    left = by.few - by.few_ahead
    whose = listed([_matrix(each) for each in by.others])
    named = f"the {'matrices' if len(by.others) > 1 else 'matrix'} {whose}"
    whose = named if len(by.others) < 4 else f"{len(by.others)} matrices"
    return f"; the other {f'{left} are' if left > 1 else 'is'} of {whose}"


def _many(found: Rows, by: Rule) -> str:
    """Who is faster from so many tokens on, by size of matrix where that tells."""
    many = found[found["tokens"] >= by.tokens]
    won, values = many["gain"] > crossover.LEVEL, many["n"] * many["k"]
    least, first = _parted(values, ~won), f"With {by.tokens:,.0f} or more ours is faster in "
    if least != least:
        return f"{first}{_of(by.many_ahead, by.many)}."
    large, one = values >= least, many[values == least].iloc[0]
    return (
        f"{first}{_of(int(won[large].sum()), int(large.sum()))} products of matrices of "
        f"{_matrix((one['n'], one['k']))} or larger, and in "
        f"{_of(int(won[~large].sum()), int((~large).sum()))} of smaller ones, so time both."
    )


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
    title, at = "Our packed weights or cuBLAS's FP16: who is faster", rule(found).tokens
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
        if at == at:
            ax.axvline(at / 1.12, color="black", linewidth=1, linestyle=":")
        ax.set_yticks(range(len(rows)), [_matrix(each) for each in rows], fontsize=8)
        ax.set_ylim(-0.6, len(rows) - 0.4)
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
    dotted = f" Dotted: {at:,.0f} tokens begin." if at == at else ""
    return (
        fig,
        f"{title}, by matrix (the larger the higher) and tokens, {gpu}, lesson 07's sweep included. "
        f"{'; '.join(told)}.{dotted}",
    )
