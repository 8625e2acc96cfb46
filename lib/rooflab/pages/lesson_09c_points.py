"""The points of lesson 09c, as products by tokens: packed weights beside cuBLAS's FP16, and equal widths."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from rooflab.hardware import crossover
from rooflab.pages import Rows
from rooflab.view import plot
from rooflab.words import counted, listed

_PACKED = "Ours packed, theirs FP16"
DENSE = "cuBLAS"  # multiplies FP16 weights, whatever ours are
_COLOURED = {"INT4": ("int4_g128", "o"), "Q8_0": ("q8_0", "s"), "FP16": ("fp16", "^")}
_LIBRARIES = tuple(zip(plot.MARKERS, (plot.COLOURS[k] for k in (4, 3, 2, 1, 6)), strict=False))


def tokens(points: Rows) -> Rows:
    """The points that are products of so many tokens, with `tokens` and the `format` of our weights."""
    parts = points["where"].str.extract(r"^(INT4|Q8_0|FP16),.* ([\d,]+) tokens?$")
    found = points.assign(format=parts[0], tokens=pd.to_numeric(parts[1].str.replace(",", "")))
    return found.dropna(subset=["format", "tokens"])


def against_fp16(points: Rows) -> pd.Series:
    """Which points set packed weights of ours against FP16 weights of theirs."""
    return points["name"].eq(DENSE) & ~points["where"].str.startswith("FP16")


class Turn(NamedTuple):
    """From how many tokens on cuBLAS on FP16 weights is level with our packed ones somewhere (NaN: nowhere);
    how many points have fewer tokens, how many have as many or more, and at how many of these ours is ahead.
    """

    tokens: float
    few: int
    many: int
    ahead: int


def turn(rivals: Rows) -> Turn:
    """Where packed weights stop being an advantage."""
    packed = tokens(rivals[against_fp16(rivals)])
    ahead = packed["gain"] > crossover.LEVEL
    at = float(packed.loc[~ahead, "tokens"].min())
    many = packed["tokens"] >= at
    return Turn(at, int((~many).sum()), int(many.sum()), int((many & ahead).sum()))


def packed_formats(rivals: Rows) -> list[str]:
    """The formats of our packed weights that were measured beside FP16."""
    return sorted(set(tokens(rivals[against_fp16(rivals)])["format"]))


def answer(rivals: Rows, gpu: str) -> str:
    """Who is faster at which number of tokens, and why; then where both weights are of one width."""
    at, other = turn(rivals), rivals[~against_fp16(rivals)]
    said = []
    if at.few + at.many:
        packed = f"our packed weights ({listed(packed_formats(rivals))})"
        first = f"On the {gpu} {packed} are faster than cuBLAS's FP16 weights in "
        if at.tokens != at.tokens:
            first += f"all {at.few} products measured"
        elif at.few:
            first += (
                f"all {at.few} products of fewer than {at.tokens:,.0f} tokens; with more, cuBLAS is level or "
            )
            first += f"ahead in {at.many - at.ahead} of {at.many}, so time both"
        else:
            first += f"{at.ahead} of {at.many} products, so time both"
        said.append(f"{first}.")
        if at.few and at.tokens == at.tokens:
            said.append(
                "With few tokens a product waits for its weights' bytes, and packed weights have fewer; with "
                "many it waits for arithmetic, which packing does not save."
            )
    if len(other):
        ahead, behind = (other["gain"] > crossover.LEVEL).sum(), (other["gain"] < 1 / crossover.LEVEL).sum()
        start = "Against libraries" if said else f"On the {gpu}, against libraries"
        many = f"all {len(other)}" if ahead == len(other) else f"{ahead} of {len(other)}"
        text = f"{start} that hold values in as many bits as ours, ours is faster in {many} comparisons"
        rest = f" and slower in {behind}" if behind else " and nowhere slower" if ahead < len(other) else ""
        said.append(f"{text}{rest}.")
    return " ".join(said)


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


def _series(mine: Rows, packed: bool) -> list[tuple[str, str, str, Rows]]:
    """The dots of a panel by format of ours (packed beside FP16), else by library: name, marker, colour."""
    by = "format" if packed else "name"
    groups = sorted(mine.groupby(by, sort=False), key=lambda each: -len(each[1]))
    if packed:
        named = [(str(name), *_COLOURED[str(name)], those) for name, those in groups]
        return [(name, mark, plot.FORMAT_COLOURS[of], those) for name, of, mark, those in named]
    few = len(_LIBRARIES)
    return [
        (f"{name} ({listed(dict.fromkeys(those['format']))})", *_LIBRARIES[k % few], those)
        for k, (name, those) in enumerate(groups)
    ]


def by_tokens(rivals: Rows, gpu: str) -> tuple[Figure, str] | None:
    """Our speed over theirs, a dot a product by its tokens, in a panel for each of the two kinds of point;
    nothing where no product was measured.
    """
    found = tokens(rivals)
    dense = against_fp16(found)
    panels = {_PACKED: found[dense], "Ours and theirs of as many bits": found[~dense]}
    panels = {head: mine for head, mine in panels.items() if len(mine)}
    if not panels:
        return None
    title = "Our speed over a library's, by tokens"
    fig, axes = plot.figure(
        "tokens", "times as fast, log scale", title, xlog=True, ylog=True, columns=len(panels), height=3.2
    )
    told = []
    for ax, (head, mine) in zip(axes if len(panels) > 1 else [axes], panels.items(), strict=True):
        for name, marker, colour, those in _series(mine, head == _PACKED):
            ax.plot(those["tokens"], those["gain"], marker, color=colour, alpha=0.7, markersize=5, label=name)
        plot.roof_line(ax, 1.0, "as fast" if not told else "")
        ax.set_title(head)
        plot.round_ticks(ax, "x")
        ax.legend(
            fontsize=8.5,
            frameon=False,
            loc="upper left" if mine["gain"].iloc[mine["tokens"].argmax()] > 1.1 else "upper right",
        )
        lost = mine[mine["gain"] < 1 / crossover.LEVEL]
        below = f"{len(lost)} of {len(mine)} below the line by more than 2%"
        told.append(f"{head}: {below if len(lost) else f'none of {len(mine)} below the line'}")
    if rest := len(rivals) - len(found):
        told.append(f"Not drawn: {rest} of attention and whole models, which are in the next chart")
    first = axes[0] if len(panels) > 1 else axes
    first.set_ylim(min(0.78, 0.9 * found["gain"].min()), max(1.3, 1.2 * found["gain"].max()))
    plot.round_ticks(first, steps=(1, 1.5, 2, 3, 5, 8))
    return fig, f"{title}, {gpu}. {'; '.join(told)}."
