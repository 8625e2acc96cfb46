"""Recordings beside each other, as `rooflab compare` prints and draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.figure import Figure

from rooflab.errors import RooflabError
from rooflab.records import compare
from rooflab.records.store import Store
from rooflab.view import plot

_MOST = 30  # cases that are drawn where nothing sums them up


def tables(stores: Sequence[Store]) -> tuple[str, Figure]:
    """The text and the picture of a comparison, the first recording being what the others are held to:
    best rates, the cases that they share, how operators scale over the devices, and how near times are, by
    their clock. RooflabError where they share neither a case nor an operator with a rate.
    """
    named = compare.letters(stores)
    cases, bests = compare.compare(*stores), compare.best(*stores)
    devices = " and ".join(store.device for store in stores)
    if cases.empty and bests.empty:
        raise RooflabError(f"{devices} share no case and no operator with a rate.")
    scaled = compare.scaling(cases)
    text = [", ".join(f"{letter}: {store.device}" for letter, store in named.items())]
    if len(bests):
        text += ["", "Best of each operator: rate on each, ratio to a's, shapes as shown", _text(bests, 4)]
    if cases.empty:
        text += ["", f"{devices} share no timed case; the shapes above may differ."]
    else:
        wanted = [name for name in cases if str(name).startswith(("median", "ratio", "roof"))]
        text += ["", "The same cases: time on each, ratio to a's, share of its own roof"]
        text += [_text(cases[["study", "case", *wanted]], 4)]
    if len(scaled):
        text += ["", "Scaling: speed as a multiple of a's, share of roof; medians over cases that all hold"]
        text += [_text(scaled, 3)]
    if len(cases):
        text += ["", f"By clock: the median ratio to a's times, and the share within {compare.NEAR:.0%}"]
        text += [_text(compare.repeats(cases), 3)]
    what, bars = _drawn(scaled, bests, cases)
    others = [letter for letter in named if letter != "a"]
    drawn = [(f"{name}, {named[x].device}", row[f"{what}_{x}"]) for name, row in bars for x in others]
    words = {"speed": "Speed", "ratio": "Best rate"}[what] if len(scaled) or len(bests) else "Time"
    figure, axes = plot.figure(
        title=f"{words} as a multiple of that on {stores[0].device}", height=1.2 + 0.25 * len(drawn)
    )
    plot.bars(axes, [name for name, _ in drawn], [value for _, value in drawn], "x")
    return "\n".join(text), figure


def _text(table: pd.DataFrame, digits: int) -> str:
    return table.to_string(index=False, float_format=lambda x: f"{x:.{digits}g}", na_rep="")


def _drawn(
    scaled: pd.DataFrame, bests: pd.DataFrame, cases: pd.DataFrame
) -> tuple[str, Iterator[tuple[str, pd.Series]]]:
    """What is drawn, and its rows by name: operators where they scale, else best rates, else cases."""
    if len(scaled):
        return "speed", ((f"{row['study']} {row['operator']}", row) for _, row in scaled.iterrows())
    if len(bests):
        return "ratio", ((f"{r['operator']} {r['format']} {r['unit']}", r) for _, r in bests.iterrows())
    return "ratio", ((str(row["case"]), row) for _, row in cases.head(_MOST).iterrows())
