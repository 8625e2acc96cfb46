"""Lesson 07b's question: which of two kernels is faster by its law, and where two change places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import crossover, perf_model
from rooflab.pages import Rows
from rooflab.studies import regimes
from rooflab.view import display, plot
from rooflab.words import counted

Told = tuple[Rows, Rows]  # of pairs in which one way stays ahead, and of those that cross
_MEASURED = "#F0E442"  # the shade of where two cross as measured


def _races(rows: Rows, here: Any, fit: Any, n: int, k: int) -> tuple[Rows, list[Any], list[Any], list[Any]]:
    """The races on a matrix: what was found, their pairs, the predicted crossovers, and which are right."""
    found = strategies.crossovers(rows, (n, k), clocks=("graph",))
    names = set(zip(found["first"], found["second"], strict=True))
    pairs = [pair for pair in strategies.PAIRS if pair.names in names]
    guesses = [extrapolation.predicted_crossover(pair, (n, k), here, fit) for pair in pairs]
    seen = found.set_index(["first", "second"])
    told = [extrapolation.agrees(seen.loc[p.names], guess) for p, guess in zip(pairs, guesses, strict=True)]
    return seen, pairs, guesses, told


def judged_races(
    rows: Rows, here: Any, fit: Any, apart: Sequence[float] | None = None
) -> tuple[list[Any], list[Any]]:
    """Of the races on the source's matrices which crossovers are right, and which kind each is; with `apart`,
    the shares of the bandwidth that a fit tries, each matrix by a fit to the others.
    """
    right, kinds = [], []
    timed = rows[rows.clock == "graph"]
    for n, k in regimes.SOURCE:
        others = timed[(timed.n != n) | (timed.k != k)]
        if apart and others.empty:
            continue
        mine = perf_model.fit(others, here, apart) if apart else fit
        seen, pairs, _, told = _races(rows, here, mine, n, k)
        right += told
        kinds += [seen.loc[p.names].kind for p in pairs]
    return right, kinds


def races_by_law(rows: Rows, here: Any, fit: Any) -> dict[str, Told]:
    """Whether the order is right, of pairs in which one way stays ahead and of those that cross: by the
    plain and the tuned law, and by the tuned law (two) and with a third number fitted to other matrices.
    """
    judged = {
        "plain": judged_races(rows, here, replace(fit, own={})),
        "tuned": judged_races(rows, here, fit),
        "two apart": judged_races(rows, here, fit, perf_model.WHOLE),
        "three apart": judged_races(rows, here, fit, perf_model.REACHES),
    }
    return {law: order_told(*each) for law, each in judged.items()}


def every_pair(rows: Rows, here: Any, fit: Any) -> None:
    """Show every pair's order or crossover, measured and by the tuned law; folded."""
    parts: list[Any] = [
        "*No order*: two ways change places more than once, or from second to first. Such pairs and those "
        "that are level are not judged."
    ]
    for n, k in regimes.SOURCE:
        seen, pairs, guesses, told = _races(rows, here, fit, n, k)
        words = [{None: "first wins", 1: "second wins"}.get(guess, guess) for guess in guesses]
        cells = [strategies.briefly(seen.loc[p.names]) for p in pairs]
        lines = [(*p.names, cell, word) for p, cell, word in zip(pairs, cells, words, strict=True)]
        table = pd.DataFrame(lines, columns=["first", "second", "measured", "predicted"])
        table["told"] = ["not judged" if pd.isna(each) else "✓" if each else "✗" for each in told]
        heads = {"first": "first", "second": "second"}
        heads |= {"measured": "measured", "predicted": "by the tuned law", "told": "right"}
        caption = f"{n:,} × {k:,}: from how many tokens on the second is faster"
        parts.append((table, heads, {}, caption))
    display.fold_parts("Which kernel is faster: every pair, on two matrices", parts)


def order_told(right: list[Any], kinds: list[Any]) -> Told:
    """Whether the prediction is right, of pairs in which one way stays ahead, and of those that cross."""
    told = pd.DataFrame({"right": right, "cross": [kind == "crosses" for kind in kinds]}).dropna()
    stay, cross = (told.right[told.cross == each].astype(bool) for each in (False, True))
    return stay, cross


def crossovers(races: dict[str, Told]) -> Rows:
    """Say how many orders and crossovers the tuned law predicts, and whether other laws do better; whether
    it is right on those that cross.
    """
    told = races["tuned"]
    words = (
        "where one way always wins, the tuned law names it in {} of {}",
        "where two change places, it finds the crossover in {} of {}",
    )
    parts = [
        word.format(each.sum(), counted(len(each), "pair"))
        for word, each in zip(words, told, strict=True)
        if len(each)
    ]
    text = "; ".join(parts)
    text = (
        f"**{text[0].upper()}{text[1:]}.**" if parts else "No pair was recorded that the law could predict."
    )
    right = [sum(int(part.sum()) for part in each) for each in races.values() if any(map(len, each))]
    if parts and max(right) - min(right) <= 2:
        text += " **More numbers improve the times, and hardly the choice** (the table's last columns)."
    display.say(text)
    return told[1]


def crossing_drawn(rows: Rows, here: Any, fit: Any) -> None:
    """Draw two ways over tokens, measured and by the tuned law, of the first crossover that the law misses or
    else of the first that there is; and say how far apart they are where they cross.
    """
    found = []
    for n, k in regimes.SOURCE:
        seen, pairs, guesses, told = _races(rows, here, fit, n, k)
        for pair, guess, right in zip(pairs, guesses, told, strict=True):
            if seen.loc[pair.names].kind == "crosses":
                found.append((bool(right), len(found), pair, (n, k), seen.loc[pair.names], guess))
    if not found:
        return
    right, _, pair, shape, seen, guess = min(found, key=lambda each: each[:2])
    _two_curves(pair, shape, rows, here, fit, seen, guess)
    mine = [strategies.of(rows, *way, shape, "graph").drop_duplicates("batch", keep="last") for way in pair]
    at = [part.set_index("batch").median_us for part in mine]
    tokens = int(seen.low)
    us = [float(each[tokens]) for each in at]
    law = [perf_model.us(perf_model.strategy(*way), *shape, tokens, here, fit) for way in pair]
    offs = [f"{100 * (b / a - 1):+.0f}".replace("-", "−") for a, b in zip(us, law, strict=True)]
    text = (
        f"At {counted(tokens, 'token')} they take {us[0]:.2f} and {us[1]:.2f} µs, "
        f"{abs(us[1] / us[0] - 1):.1%} apart. The law has {law[0]:.2f} ({offs[0]}%) and {law[1]:.2f} "
        f"({offs[1]}%)."
    )
    if not right:
        worst = max(abs(b / a - 1) for a, b in zip(us, law, strict=True))
        text = f"**Why a crossover is harder than a time.** {text}"
        if worst > abs(us[1] / us[0] - 1):
            text += " An error larger than the gap between two kernels moves their crossing far."
        text += "".join(_climbs(way, part, shape, here, fit) for way, part in zip(pair, at, strict=True))
        text += _tied(pair, shape, guess, here, fit)
    display.say(text)


def _climbs(way: Any, times: Rows, shape: tuple[int, int], here: Any, fit: Any) -> str:
    """How a way's time grows up to where the tuned law is furthest too short, if its own grows much less."""
    how = perf_model.strategy(*way)
    law = pd.Series({b: perf_model.us(how, *shape, int(b), here, fit) for b in times.index})
    most, least = (law / times).idxmin(), times.index.min()
    grown, said = times[most] / times[least], law[most] / law[least]
    if law[most] / times[most] > 0.75 or said > 0.75 * grown:
        return ""
    share = fit.own[way].share if way in fit.own else 1.0
    by = perf_model.bound(how, *shape, int(least), here, share).by
    bytes_first = ", where bytes decide at first" if by == "memory" else ""
    return (
        f" From {counted(int(least), 'token')} to {most} the time of {strategies.label(*way)} grows "
        f"{grown:.1f} times, but by the law only {said:.1f} times{bytes_first}."
    )


def _tied(pair: Any, shape: tuple[int, int], guess: int | None, here: Any, fit: Any) -> str:
    """From how few tokens on the law has two ways level, up to where they cross by it, if that is far."""
    hows = [perf_model.strategy(*way) for way in pair]

    def level(tokens: int) -> bool:
        one, two = (perf_model.us(how, *shape, tokens, here, fit) for how in hows)
        return bool(1 / crossover.LEVEL <= one / two <= crossover.LEVEL)

    first = guess or 0
    while first > 1 and level(first - 1):
        first -= 1
    if not guess or first > 0.75 * guess:
        return ""
    return (
        f" From {counted(first, 'token')} to {guess} the law has the two within {crossover.LEVEL - 1:.0%}: "
        f"where it has them cross, at {guess}, says little."
    )


def _two_curves(
    pair: Any, shape: tuple[int, int], rows: Rows, here: Any, fit: Any, seen: Any, guess: int | None
) -> None:
    """Draw a pair's times over tokens, measured and by the tuned law, with where they cross by each."""
    names = " and ".join(pair.names)
    title = f"{names}, {shape[0]:,} × {shape[1]:,}"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, height=3.2)
    mine = [strategies.of(rows, *way, shape, "graph") for way in pair]
    last = max(int(part.batch.max()) for part in mine)
    most = max(last, round(1.2 * guess) if guess else 0)
    top = 0.0
    for way, part, name, colour in zip(pair, mine, pair.names, (0, 1), strict=True):
        plot.series(ax, part.batch, part.median_us, label=f"{name}, measured", colour=plot.COLOURS[colour])
        tokens = sorted({round(x) for x in np.geomspace(1, most, 60)})
        how = perf_model.strategy(*way)
        law = [perf_model.us(how, *shape, each, here, fit) for each in tokens]
        style = {"color": plot.COLOURS[colour], "linewidth": 1.2, "linestyle": (0, (2, 2)), "zorder": 2}
        ax.plot(tokens, law, label=f"{name}, by the law", **style)
        top = max(top, *law, part.median_us.max())
    ax.set_ylim(0, 1.25 * top)
    ax.axvspan(seen.low, seen.high, color=_MEASURED, alpha=0.6, linewidth=0, zorder=1)
    _beside(ax, seen.low, 0.02 * top, f"cross, measured: {int(seen.low)} to {int(seen.high)}")
    if guess:
        ax.axvline(guess, color=plot.ROOF_COLOUR, linestyle=(0, (2, 2)), linewidth=1.2, zorder=1)
        _beside(ax, guess, 0.1 * top, f"by the law: {guess}")
    plot.round_ticks(ax, "x")
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    where = f"at {counted(guess, 'token')}" if guess else "nowhere"
    plot.show(
        fig,
        f"{title}: measured they cross between {int(seen.low)} and {counted(int(seen.high), 'token')}, by "
        f"the tuned law {where}.",
    )


def _beside(ax: Any, x: float, y: float, text: str) -> None:
    """A few words left of a place on an axis of tokens, or right of it where there is no room."""
    left = x > 8
    ax.text(x * (0.96 if left else 1.04), y, text, fontsize=8, ha="right" if left else "left", va="bottom")
