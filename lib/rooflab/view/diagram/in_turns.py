"""How two kernels are compared: samples in turns, in the clock's own order, then a ratio of medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rooflab.bench import clock
from rooflab.hardware.crossover import LEVEL
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, Canvas, Drawing, single
from rooflab.words import counted

WIDTH = 430.0  # narrow enough for a phone
OURS, THEIRS = BLUE, AMBER  # on all pictures of lesson 09c
_REST, _WARM, _SAMPLE = 14.0, 10.0, 20.0  # widths, not to scale: a rest is the longest by far


class Compared(NamedTuple):
    """A recorded comparison: the library, the shape in words, and how many times as fast ours is."""

    name: str
    where: str
    gain: float

    @property
    def word(self) -> str:
        """Who is faster, by the course's tie rule."""
        if self.gain > LEVEL:
            return "ours"
        return "theirs" if self.gain < 1 / LEVEL else "level"


def turns(rounds: int, seed: int = 0) -> list[tuple[int, bool]]:
    """What the clock replays of two contestants, one after the other: which one, and whether that counts."""
    replayed: list[int] = []

    def replay(at: int) -> None:
        replayed.append(at)

    def timed(chain: object) -> float:
        chain()  # type: ignore[operator]
        return float(len(replayed))

    chains = [clock.Chain(lambda at=at: replay(at), 1, 1.0) for at in (0, 1)]  # type: ignore[misc]
    series, _ = clock.sampled(chains, timed, rounds, "burst", np.random.default_rng(seed))
    kept = {int(place) for one in series for place in one}  # a sample's value is its place among the replays
    return [(at, place in kept) for place, at in enumerate(replayed, 1)]


def in_turns(points: Sequence[Compared], rounds: int = 4) -> Drawing:
    """Samples of two kernels over time, and what becomes of `points`, the ratios of their medians."""
    canvas, x = Canvas(WIDTH), 54.0
    canvas.text(0, 13, "1. One sample each, in an order drawn anew each round", bold=True)
    replays = turns(rounds)
    for down, name in enumerate(("ours", "theirs")):
        canvas.text(0, 41 + 26 * down, name)
    before: tuple[int, bool] | None = None
    for at, counts in replays:
        if before is None or before[1]:  # the GPU rests ahead of each sample
            x += _REST
        wide = _SAMPLE if counts else _WARM
        canvas.cell(x, 26 + 26 * at, wide, 20, "", (OURS, THEIRS)[at] if counts else GREY)
        x, before = x + wide, (at, counts)
    canvas.line([(54, 82), (x, 82)], end="arrow")
    canvas.cell(0, 94, 12, 12, "", GREY)
    canvas.text(18, 105, "raises the clock rate, not counted; gaps: rest")
    canvas.text(0, 134, "2. Ratio of the medians, at recorded points", bold=True)
    fills, y = {"ours": OURS, "level": GREY, "theirs": THEIRS}, 144.0
    widest = max((max(1.0, 1 / each.gain) for each in points), default=1.0)
    unit = (WIDTH - 54 - 98) / widest
    for each in points:
        canvas.text(0, y + 13, f"{each.name}, {each.where}")
        for name, long, fill in (("ours", 1 / each.gain, OURS), ("theirs", 1.0, THEIRS)):
            y += 18
            canvas.text(0, y + 11, name, 12.5)
            canvas.cell(54, y + 1, long * unit, 13, "", fill)
        word = "level" if each.word == "level" else f"{each.word} faster"
        canvas.cell(WIDTH - 92, y - 17, 92, 31, "", fills[each.word])
        ink = svg.on(fills[each.word])
        canvas.text(WIDTH - 46, y - 4, f"{each.gain:.2f}×", svg.TEXT, "middle", ink, bold=True)
        canvas.text(WIDTH - 46, y + 9, word, 12.5, "middle", ink)
        y += 24
    canvas.text(0, y + 13, f"Bars: time. Level: within {LEVEL - 1:.0%} of each other.")
    order = ", ".join(("ours", "theirs")[at] for at, counts in replays if counts)
    says = f"Samples in {counted(rounds, 'round')}, each after a rest and a replay that is not counted: "
    says += f"{order}. Ratios of medians: " + "; ".join(
        f"{each.name}, {each.where}: {each.gain:.2f}, {each.word}" for each in points
    )
    return single("How two kernels are compared", f"{says}.", canvas)
