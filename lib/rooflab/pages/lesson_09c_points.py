"""The points of lesson 09c, as products by tokens: packed weights beside cuBLAS's FP16, and equal widths."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from rooflab.hardware import crossover
from rooflab.pages import Rows
from rooflab.view import plot
from rooflab.words import listed

_DENSE = "cuBLAS"  # multiplies FP16 weights, whatever ours are
_COLOURED = {"INT4": ("int4_g128", "o"), "Q8_0": ("q8_0", "s"), "FP16": ("fp16", "^")}


def tokens(points: Rows) -> Rows:
    """The points that are products of so many tokens, with `tokens` and the `format` of our weights."""
    parts = points["where"].str.extract(r"^(INT4|Q8_0|FP16),.* ([\d,]+) tokens?$")
    found = points.assign(format=parts[0], tokens=pd.to_numeric(parts[1].str.replace(",", "")))
    return found.dropna(subset=["format", "tokens"])


def against_fp16(points: Rows) -> pd.Series:
    """Which points set packed weights of ours against FP16 weights of theirs."""
    return points["name"].eq(_DENSE) & ~points["where"].str.startswith("FP16")


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
        first = f"On the {gpu} {packed} are faster than cuBLAS's FP16 weights at "
        if at.tokens != at.tokens:
            first += f"all {at.few} products measured"
        elif at.few:
            first += f"all {at.few} points below {at.tokens:,.0f} tokens; from there on cuBLAS is level or "
            first += f"ahead at {at.many - at.ahead} of {at.many}"
        else:
            first += f"{at.ahead} of {at.many} products"
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
        text = f"{start} that hold values in as many bits as ours, ours is faster at {many} points"
        rest = f" and slower at {behind}" if behind else " and nowhere slower" if ahead < len(other) else ""
        said.append(f"{text}{rest}.")
    return " ".join(said)


def by_tokens(rivals: Rows, gpu: str) -> tuple[Figure, str] | None:
    """Our speed over theirs, a dot a product by its tokens, in a panel for each of the two kinds of point;
    nothing where no product was measured.
    """
    found = tokens(rivals)
    dense = against_fp16(found)
    panels = {"Ours packed, theirs FP16": found[dense], "Ours and theirs of as many bits": found[~dense]}
    panels = {head: mine for head, mine in panels.items() if len(mine)}
    if not panels:
        return None
    title = "Our speed over a library's, by tokens"
    fig, axes = plot.figure(
        "tokens", "times as fast, log scale", title, xlog=True, ylog=True, columns=len(panels), height=3.2
    )
    told = []
    for ax, (head, mine) in zip(axes if len(panels) > 1 else [axes], panels.items(), strict=True):
        for format, those in sorted(mine.groupby("format", sort=False), key=lambda each: -len(each[1])):
            name, marker = _COLOURED[str(format)]
            colour = plot.FORMAT_COLOURS[name]
            ax.plot(
                those["tokens"], those["gain"], marker, color=colour, alpha=0.7, markersize=5, label=format
            )
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
    first = axes[0] if len(panels) > 1 else axes
    first.set_ylim(min(0.78, 0.9 * found["gain"].min()), max(1.3, 1.2 * found["gain"].max()))
    plot.round_ticks(first, steps=(1, 1.5, 2, 3, 5, 8))
    return fig, f"{title}, {gpu}. {'; '.join(told)}."
