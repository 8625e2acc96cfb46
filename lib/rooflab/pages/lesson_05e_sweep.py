"""Lesson 05e's sweep: the ways to a product by number of tokens, and the tiles that they make of these."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.hardware.crossover import LEVEL
from rooflab.ops import mmq
from rooflab.pages import Rows
from rooflab.studies import mmq as study
from rooflab.view import diagram, display, plot
from rooflab.view.diagram.passes import tiles_of
from rooflab.words import counted, listed

WAYS = ("dp4a", "int8 MMQ", "in-kernel FP16", "dequantise + cuBLAS", "resident FP16")
COLOUR = {way: plot.COLOURS[k] for way, k in zip(WAYS, (0, 6, 5, 2, 1), strict=True)}
DP4A = (study.DP4A, f"{study.DECODE}4_planes")
Shape = tuple[int, int]  # n, k
_FALLS = 0.9  # a time over another's: less is a fall
_ZEROS = ("6_wgmma", *mmq.HALVES)  # whose places without a token are zeros
_REPEATS = "5_large_tiles"  # loads the last token again for every place of a tile that has none


def of(rows: Rows, shape: Shape) -> Rows:
    """The rows of one shape."""
    return rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1])]


def by_tokens(fastest: Rows, shape: Shape) -> pd.DataFrame:
    """Times (us) of one shape: a row a number of tokens, a column a way."""
    return of(fastest, shape).pivot(index="batch", columns="way", values="median_us").reindex(columns=WAYS)


def leads(wide: pd.DataFrame) -> list[tuple[int, str]]:
    """The fastest way and the number of tokens from which on it is, wherever that changes: a way leads until
    another is faster by more than what counts as level.
    """
    lead: list[tuple[int, str]] = []
    for tokens, row in wide.dropna(how="all").iterrows():
        now, best = lead[-1][1] if lead else "", str(row.idxmin())
        if not now or not row[now] <= LEVEL * row[best]:
            lead.append((int(tokens), best))
    return lead


def token_ticks(ax: Any, rows: Rows) -> None:
    """Ticks at the powers of two that were measured."""
    ticks = sorted({2**i for i in range(12)} & set(rows["batch"].astype(int)))
    ax.set_xticks(ticks, [str(tokens) for tokens in ticks])


def q8_0_against_fp16(wide: pd.DataFrame) -> pd.Series:
    """How many times as fast the best product on Q8_0 weights is as the library on FP16, by tokens."""
    own = wide[list(WAYS[:3])].min(axis=1)
    return (wide[WAYS[4]] / own).dropna()


def tiles(fastest: Rows, shape: Shape) -> None:
    """Draw the tiles that each way makes of some numbers of tokens, where those were recorded."""
    drawing = diagram.passes(of(fastest, shape).sort_values("way", key=lambda ways: ways.map(WAYS.index)))
    if drawing is not None:
        display.say(
            "A kernel takes the tokens in tiles. A tile reads the weights once, whether all its places hold "
            "a token or not; dp4a alone multiplies the tokens that are there and no empty places. The token "
            "that no longer fits begins another pass, or needs a wider tile:"
        )
        drawing.show()


def _made(rows: Rows) -> pd.Series:
    """What each row's launch makes of its tokens: the kernel, its passes and its widest tile, in a text; none
    for a library. A dp4a rung takes as many tokens as there are, so its passes say all.
    """
    found: list[str | None] = []
    for impl, n, k, batch in rows[["impl", "n", "k", "batch"]].itertuples(index=False):
        made = tiles_of(impl, int(n), int(k), int(batch))
        wide = "" if impl in DP4A else f" of {max(made, default=0)}"
        found.append(f"{impl}, {len(made)}{wide}" if made else None)
    return pd.Series(found, rows.index, dtype=object)


def _falls(group: Rows) -> list[tuple[Any, Any]]:
    """Two rows for each run of one way in the same tiles in which more tokens take clearly less time."""
    made, found = _made(group), []
    for _, run in group[made.notna()].groupby((made != made.shift()).cumsum()):
        first = run.loc[run["median_us"].idxmax()]
        after = run[run["batch"] > first["batch"]]
        if len(after) and after["median_us"].min() < _FALLS * first["median_us"]:
            found.append((first, after.loc[after["median_us"].idxmin()]))
    return found


def _unexplained(fastest: Rows, shape: Shape) -> str:
    """What the tiles do not explain: more tokens in less time; a guess for the kernel that allows one, what
    was measured, and how the same kernel does on the other shapes.
    """
    found, impls, repeats = [], list[str](), ""
    for way in WAYS[:3]:
        group = of(fastest, shape)
        for first, last in _falls(group[group["way"] == way].sort_values("batch")):
            name = way if way == WAYS[0] else way[0].upper() + way[1:]
            impls.append(str(first["impl"]))
            text = f"- {name} (`{first['impl']}`) takes {first['median_us']:.1f} µs for "
            text += f"{counted(int(first['batch']), 'token')} and {last['median_us']:.1f} for "
            text += f"{last['batch']:.0f}, in {_tile(first)}."
            if first["impl"] == _REPEATS:
                repeats = _REPEATS
            else:
                text += " No cause is known."
            text += _elsewhere(fastest, shape, first, last)
            found.append((last["median_us"] / first["median_us"], text))
    if not found:
        return ""
    head = "**More tokens in less time.** A tile that fills up should cost the same, but:"
    why = "No counters of these launches were recorded."
    if repeats:
        why += (
            f" A guess for `{repeats}`: it fills the empty places of its tile with the last token. So many "
        )
        why += "reads of the same line of L2 may be slow, and fewer places are empty with more tokens."
        if others := [f"`{impl}`" for impl in dict.fromkeys(impls) if impl in _ZEROS]:
            why += f" That is not the cause for {listed(others)}, whose copies (TMA) fill such places with "
            why += "zeros."
    texts = "\n".join(text for _, text in sorted(found))
    return f"{head}\n\n{texts}\n\n{why} So take no crossover from a single point there."


def _tile(row: Any) -> str:
    """The tile, or the tiles, in which a row's kernel takes its tokens."""
    made = tiles_of(row["impl"], int(row["n"]), int(row["k"]), int(row["batch"])) or []
    if row["impl"] in DP4A:
        return counted(len(made), "pass", "passes")
    return f"{'a tile' if len(made) == 1 else f'{len(made)} tiles'} of {max(made, default=0)}"


def _elsewhere(fastest: Rows, shape: Shape, first: Any, last: Any) -> str:
    """On which other shapes the same kernel takes nearly the same time for these numbers of tokens."""
    same = fastest[(fastest["impl"] == first["impl"]) & (fastest["way"] == first["way"])]
    same, level = same[same["batch"].between(first["batch"], last["batch"])], []
    for (n, k), rows in same.groupby(["n", "k"], sort=False):
        us = rows["median_us"]
        if (n, k) != shape and len(us) > 2 and us.max() < us.min() / _FALLS:
            level.append(f"at {n:,} × {k:,} ({us.min():.1f} to {us.max():.1f} µs)")
    return f" The same kernel is nearly level {listed(level)}." if level else ""


def sweep(fastest: Rows, shape: Shape, gpu: str) -> None:
    """Draw the time of each way over the number of tokens, for one shape, with a ring wherever its tiles
    change; and say what the tiles do not explain.
    """
    part = of(fastest, shape)
    title = f"{shape[0]:,} × {shape[1]:,}, cold, quantising included"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=4.6)
    for way in WAYS:
        group = part[part["way"] == way].sort_values("batch")
        if len(group):
            plot.series(ax, group["batch"], *plot.band(group, "median_us"), label=way, colour=COLOUR[way])
            made = _made(group)
            new = group[(made != made.shift()) & made.notna() & made.shift().notna()]
            ring = {"facecolor": "none", "edgecolor": COLOUR[way], "linewidth": 1.2, "zorder": 4}
            ax.scatter(new["batch"], new["median_us"], s=80, **ring)
    token_ticks(ax, part)
    plot.round_ticks(ax)
    plot.label_ends(ax)
    text = f"{title}, on {gpu}, {plot.dates(part)}: the fastest kernel of each way. "
    plot.show(
        fig,
        f"{text}A ring: from here on another pass, a wider tile or another kernel. A flat line means that "
        "more tokens in the same pass or tile cost nothing (dp4a's cost: it works for each). A slope at many "
        "tokens: arithmetic.",
    )
    left = _unexplained(fastest, shape)
    if left:
        display.say(left)
