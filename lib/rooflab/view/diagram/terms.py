"""A product's time by the plain law of lesson 07b, term by term, beside its measured time."""

from __future__ import annotations

from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, SKY, Canvas, Drawing, single

_LEFT, _RIGHT, _ROW = 74.0, 158.0, 22.0  # where bars begin, room for words behind them, the height of one


class Terms(NamedTuple):
    """The microseconds of a law's terms, and those measured."""

    fixed: float
    bytes: float
    flops: float
    measured: float

    @property
    def us(self) -> float:
        """The time by the law: bytes and FLOPs overlap."""
        return self.fixed + max(self.bytes, self.flops)


def terms_of_time(title: str, terms: Terms) -> Drawing:
    """A law's time as bars: the fixed time, behind it bytes and FLOPs side by side, of which the longer ends
    the time; and the measured time.
    """
    if min(terms) < 0 or terms.us <= 0:
        raise UsageError("A law's terms are drawn of times of at least 0 µs, not all of them 0.")
    canvas, unit = Canvas(), (svg.WIDTH - _LEFT - _RIGHT) / max(terms.us, terms.measured)
    start = _LEFT + terms.fixed * unit
    for place, (name, us, fill) in enumerate((("bytes", terms.bytes, BLUE), ("FLOPs", terms.flops, SKY))):
        y = place * _ROW
        canvas.text(0, y + 14, name, svg.SMALL)
        across, words = max(us * unit, 1.0), f"{us:,.2f}"
        fits = svg.wide(words, svg.SMALL) < across - 1
        canvas.cell(start, y, across, _ROW - 4, words if fits else "", fill)
        if not fits:
            canvas.text(start + across + 5, y + 14, words, svg.SMALL)
    canvas.cell(_LEFT, 0, terms.fixed * unit, 2 * _ROW - 4, f"fixed {terms.fixed:,.2f}", AMBER)
    canvas.text(0, 2 * _ROW + 14, "measured", svg.SMALL)
    canvas.rect(_LEFT, 2 * _ROW, terms.measured * unit, _ROW - 4, GREY)
    at = _LEFT + terms.us * unit
    canvas.line([(at, 0), (at, 3 * _ROW - 4)], 1.4, dashed=True)
    row = 0 if terms.bytes >= terms.flops else 1
    words = f"by the plain law {terms.us:,.2f} µs"
    longest = max(terms.bytes, terms.flops) * unit
    aside = 0.0 if svg.wide(f"{terms.us:,.2f}", svg.SMALL) < longest - 1 else 40.0
    canvas.text(at + 6 + aside, row * _ROW + 14, words, svg.SMALL)
    end = max(at, _LEFT + terms.measured * unit)
    canvas.text(end + 6, 2 * _ROW + 14, f"{terms.measured:,.2f} µs", svg.SMALL)
    says = (
        f"Fixed {terms.fixed:,.2f} µs, then bytes {terms.bytes:,.2f} beside FLOPs {terms.flops:,.2f}: "
        f"{terms.us:,.2f} µs by the plain law. Measured: {terms.measured:,.2f} µs."
    )
    return single(title, says, canvas)
