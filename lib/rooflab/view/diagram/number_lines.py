"""A claim on a number line: where it holds, where it is refuted, and where the measured values lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def number_lines(lines: Sequence[Line], title: str) -> Drawing:
    """A number line a claim, one below the other: its stretches where the claim holds, falls short and is
    refuted, the two bars between them, and a mark with its words at each value.
    """
    canvas, y, said = Canvas(), 0.0, []
    for line in lines:
        canvas.text(0, y + 12, line.says, bold=True)
        place = _scale(line)
        top, at = y + 38, 0.0
        for word, end in line.zones():
            stop = svg.WIDTH if end == math.inf else place(end)
            canvas.cell(at, top, stop - at, 26, word, _FILLS[word], svg.TEXT)
            if end != math.inf:
                canvas.line([(stop, top - 6), (stop, top + 26)], 1.6)
                canvas.text(stop, top - 9, line.form.format(end), svg.SMALL + 1, "middle")
            at = stop
        y = _marked(canvas, line, place, top + 26) + 30
        bars = [f"holds {line.bar[0]} {line.form.format(line.bar[1])}"]
        bars += [f"refuted {line.refuted[0]} {line.form.format(line.refuted[1])}"] if line.refuted else []
        marks = [f"{words} ({line.word(value)})" for value, words in line.marks]
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


def _marked(canvas: Canvas, line: Line, place: _Scale, top: float) -> float:
    """Draw the marks below a line, a row each: first those whose words have room only to the left of their
    leaders, then the others from the rightmost on; where the last row ends.
    """
    room = [(place(value), words) for value, words in line.marks]
    right = [(x, words) for x, words in room if x + 8 + svg.wide(words, svg.TEXT) <= svg.WIDTH]
    left = [one for one in room if one not in right]
    y = top
    for x, words in [*sorted(left), *sorted(right, reverse=True)]:
        y += 20
        canvas.line([(x, y), (x, top)], 1.4, end="arrow")
        toward = "start" if (x, words) in right else "end"
        canvas.text(x + (7 if toward == "start" else -7), y + 1, words, svg.TEXT, toward)
    return y
