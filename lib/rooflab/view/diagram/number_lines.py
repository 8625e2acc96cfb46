"""A claim on a number line: where it holds, where it is refuted, and where the measured values lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single

HOLDS, SHORT, REFUTED = "holds", "falls short", "refuted"
_FILLS = {HOLDS: SKY, SHORT: GREY, REFUTED: AMBER}
_LOG = 5.0  # a line whose largest value is so many times its smallest is logarithmic


class Line(NamedTuple):
    """One claim: its words, the format of its quantity ("{:.1f} µs"), the `bar` (sign, value) beyond which it
    holds, the bar beyond which it is `refuted` (None: wherever it does not hold), and the `marks` on the line
    as (value, words). Signs are "<" and ">".
    """

    says: str
    form: str
    bar: tuple[str, float]
    refuted: tuple[str, float] | None
    marks: Sequence[tuple[float, str]]

    def zones(self) -> list[tuple[str, float]]:
        """What the line says from left to right, each word with the value at which it ends."""
        sign, bar = self.bar
        other = self.refuted[1] if self.refuted else bar
        if sign not in "<>" or (self.refuted and self.refuted[0] == sign):
            raise UsageError(f"A claim holds below or above its bar and is refuted beyond the other: {self}.")
        if (sign == "<") != (bar <= other) and bar != other:
            raise UsageError(f"The two bars of a claim overlap: {self}.")
        words = [(HOLDS, bar), (SHORT, other), (REFUTED, math.inf)]
        if sign == ">":
            words = [(REFUTED, other), (SHORT, bar), (HOLDS, math.inf)]
        return [each for k, each in enumerate(words) if k != 1 or bar != other]

    def word(self, value: float) -> str:
        """What the line says at a value; a bar itself belongs to what lies between."""
        return next(word for word, end in self.zones() if value <= end)


def number_lines(lines: Sequence[Line], title: str, called: Mapping[str, str] | None = None) -> Drawing:
    """A number line a claim, one below the other: its stretches where the claim holds, falls short and is
    refuted (`called` gives these other words), the two bars between them, and a mark with its words at each
    value.
    """
    canvas, y, said = Canvas(), 0.0, []
    called = {word: word for word in _FILLS} | dict(called or {})
    for line in lines:
        canvas.text(0, y + 12, line.says, bold=True)
        place = _scale(line)
        top, at = y + 38, 0.0
        for word, end in line.zones():
            stop = svg.WIDTH if end == math.inf else place(end)
            canvas.cell(at, top, stop - at, 26, called[word], _FILLS[word], svg.TEXT)
            if end != math.inf:
                canvas.line([(stop, top - 6), (stop, top + 26)], 1.6)
                canvas.text(stop, top - 9, line.form.format(end), svg.SMALL + 1, "middle")
            at = stop
        if place.log:
            canvas.text(svg.WIDTH, y + 12, "logarithmic scale", svg.SMALL, "end")
        _ticked(canvas, line, place, top + 26)
        y = _marked(canvas, line, place, top + 38) + 30
        bars = [f"{called[HOLDS]} {line.bar[0]} {line.form.format(line.bar[1])}"]
        if line.refuted:
            bars.append(f"{called[REFUTED]} {line.refuted[0]} {line.form.format(line.refuted[1])}")
        marks = [f"{words} ({called[line.word(value)]})" for value, words in line.marks]
        said.append(f"{line.says}: {', '.join(bars)}; {'; '.join(marks)}")
    return single(title, ". ".join(said) + ".", canvas)


def _scale(line: Line) -> _Scale:
    values = [value for value, _ in line.marks] + [line.bar[1]] + ([line.refuted[1]] if line.refuted else [])
    if "%" in line.form:
        return _Scale(0.0, max(1.0, *values), False)
    if max(values) > _LOG * min(values) > 0:
        return _Scale(min(values) / 2, max(values) * 1.4, True)
    return _Scale(0.0, max(values) * 1.15, False)


class _Scale(NamedTuple):
    low: float
    high: float
    log: bool

    def __call__(self, value: float) -> float:
        """Where a value lies, from 0 to the drawing's width."""
        if self.log:
            return svg.WIDTH * math.log(value / self.low) / math.log(self.high / self.low)
        return svg.WIDTH * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values within the line: 1, 2 and 5 times powers of ten, or five steps of such a size."""
        powers = range(math.floor(math.log10(self.high)) - 3, math.ceil(math.log10(self.high)) + 1)
        steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        if not self.log:
            step = next(step for step in steps if step >= (self.high - self.low) / 6)
            steps = [self.low + k * step for k in range(7)]
        return [value for value in steps if self.low <= value <= self.high]


def _ticked(canvas: Canvas, line: Line, place: _Scale, top: float) -> None:
    """The scale below a line: a tick and a number each, where no mark's arrow comes."""
    arrows = [place(value) for value, _ in line.marks]
    for value in place.ticks():
        x, words = place(value), f"{value:.0%}" if "%" in line.form else f"{value:,.10g}"
        half = svg.wide(words, svg.SMALL) / 2
        canvas.line([(x, top), (x, top + 3)], 0.8)
        if half < x < svg.WIDTH - half and all(abs(x - at) > half + 4 for at in arrows):
            canvas.text(x, top + 12, words, svg.SMALL, "middle")


def _marked(canvas: Canvas, line: Line, place: _Scale, top: float) -> float:
    """Draw the marks below a line and its scale, a row each, from `top` on: first those whose words have room
    only to the left of their leaders, then the others from the rightmost on; where the last row ends.
    """
    room = [(place(value), words) for value, words in line.marks]
    right = [(x, words) for x, words in room if x + 8 + svg.wide(words, svg.TEXT) <= svg.WIDTH]
    left = [one for one in room if one not in right]
    y = top
    for x, words in [*sorted(left), *sorted(right, reverse=True)]:
        y += 20
        canvas.line([(x, y), (x, top - 12)], 1.4, end="arrow")
        toward = "start" if (x, words) in right else "end"
        canvas.text(x + (7 if toward == "start" else -7), y + 1, words, svg.TEXT, toward)
    return y
