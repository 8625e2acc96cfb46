"""Lesson 05e's dispatcher: what it picks, beside the fastest in its layout; what the other layout brings."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rooflab import claims
from rooflab.analysis import q8_0 as analysis
from rooflab.claims import scorecard
from rooflab.hardware import crossover
from rooflab.ops import mmq
from rooflab.pages import Rows
from rooflab.pages.lesson_05e_sweep import WAYS, leads
from rooflab.view import display
from rooflab.words import listed

_PLANES, _TILES = "planes", "tiles"
_HALVES = WAYS[2]


def dispatcher(evidence: claims.Evidence, rows: Rows, gpu: str) -> None:
    """Show what the dispatcher picks, and say how often that is the fastest measured rung on weights that lie
    as its own do, in planes; and what weights in tile order would bring.
    """
    planes = rows[
        [way != _HALVES or mmq.order_of(impl) != "tiles" for impl, way in rows[["impl", "way"]].to_numpy()]
    ]
    picked = []
    for n, k, tokens in analysis.points(evidence):
        try:
            pick = analysis.chosen(evidence, n, k, tokens)
        except claims.NoEvidence:
            continue
        us = pick["median_us"]
        best = analysis.best(planes, n, k, tokens)
        picked.append((n, k, tokens, pick.name, best.name, us / best["median_us"]))
    chosen = pd.DataFrame(picked, columns=["n", "k", "tokens", "picks", "best", "ratio"])
    by = chosen.groupby("picks", sort=False)
    table = by["tokens"].agg(["min", "max", "count"]).assign(lost=by["ratio"].max())
    names = {"picks": "Picks", "min": "From (tokens)", "max": "To", "count": "Points", "lost": "Worst ÷ best"}
    display.table(table.reset_index(), names, {"lost": "{:.2f}"})
    right = chosen["ratio"] <= crossover.LEVEL
    text = (
        f"On the {gpu} the choice is within 2% of the best in this layout at {right.sum()} of {len(chosen)} "
    )
    text += "points."
    if gpu == scorecard.GPU:
        text += " These are the points that the choice was fitted to; on others it is not tested here."
    if not right.all():
        worst = chosen.loc[chosen["ratio"].idxmax()]
        text += f" The worst is {worst['picks']} at {worst['n']:,} × {worst['k']:,} with {worst['tokens']} "
        text += f"tokens, where {worst['best']} would take {1 / worst['ratio']:.0%} of the time."
    display.say(text + _layout_to_load(rows))


def _layout_to_load(rows: Rows) -> str:
    """From how many tokens on weights in tile order are faster than planes, and by how much."""
    ours = rows[rows["way"].isin(WAYS[:3])]
    tiled = [
        way == _HALVES and mmq.order_of(impl) == "tiles" for impl, way in ours[["impl", "way"]].to_numpy()
    ]
    keys = ["n", "k", "batch"]
    best = (
        ours.assign(tiled=np.where(tiled, _TILES, _PLANES))
        .groupby([*keys, "tiled"])["median_us"]
        .min()
        .unstack()
        .dropna()
    )
    if set(best.columns) != {_PLANES, _TILES} or best.empty:
        return ""
    gain = best[_PLANES] / best[_TILES]
    starts, fewest = {}, {}
    for shape in dict.fromkeys(zip(rows["n"], rows["k"], strict=True)):
        part = best.loc[shape] if shape in best.index else best[:0]
        lead = leads(part)
        if lead and lead[-1][1] == _TILES:
            starts[shape], fewest[shape] = lead[-1][0], int(part.index.min())
    if not starts:
        return ""
    said = listed(
        f"from {tokens} on at {n:,} × {k:,}{' (the fewest measured)' if tokens == fewest[n, k] else ''}"
        for (n, k), tokens in starts.items()
    )
    text = (
        "\n\n**The layout is chosen before the kernel**, when weights are loaded; keeping both takes twice "
    )
    text += "the memory. By the rule of the first chart weights in tile order ([05d](05d_mmq.ipynb)) lead "
    text += f"{said}, and are up to "
    text += f"{gain.max():.2f} times as fast as the best in planes."
    if min(starts.values()) > 8:
        text += " So load planes to serve a few users, and tile order for prompts or many users."
    return text
