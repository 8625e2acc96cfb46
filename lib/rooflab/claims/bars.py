"""Thresholds as the files of claims write them: "> 0.9", "≈ 332/316 within 20%", "< 1/level"."""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.analysis import coalescing
from rooflab.errors import UsageError
from rooflab.hardware.crossover import LEVEL

_DIGITS = re.compile(r"\.(\d+)")  # of a format
_BAR = re.compile(r"([<>≤≥≈]) (.+?)(?: within ([\d.]+)%)?")


def number(text: str | float) -> float:
    """A number, or a quotient of numbers. `level` is the course's tie rule, card(us, n) the share of the
    source's card's bandwidth that an n x n FP32 product in `us` microseconds asks for. UsageError if it is
    neither.
    """
    if not isinstance(text, str):
        return float(text)
    first, *others = (_factor(part.strip()) for part in text.split("/"))
    for each in others:
        first /= each
    return first


def _factor(text: str) -> float:
    if text == "level":
        return LEVEL
    if asked := re.fullmatch(r"card\(([\d.]+), (\d+)\)", text):
        return coalescing.share_of_card(float(asked[1]), coalescing.moved(int(asked[2])))
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number, nor `level`, nor card(microseconds, size).") from None


class Bar(NamedTuple):
    """A threshold: `sign` is "<", ">", "≤" or "≥", or "≈" for a figure met within a share `by` of itself."""

    sign: str
    value: float
    by: float = 0.0

    @classmethod
    def of(cls, text: str) -> Bar:
        """The bar that is written so; UsageError says what a bar looks like."""
        found = _BAR.fullmatch(text)
        if not found or (found[3] and found[1] != "≈"):
            raise UsageError(
                f"{text!r} is no bar: write a sign (< > ≤ ≥ ≈), a number, and after ≈ 'within 10%'."
            )
        return cls(found[1], number(found[2]), float(found[3] or 0) / 100)

    def met(self, value: float) -> bool:
        """Whether `value` lies beyond the bar, or near enough to it; never for NaN."""
        if self.sign == "≈":
            return abs(value - self.value) <= self.by * abs(self.value)
        if self.sign in "≤≥":
            return value <= self.value if self.sign == "≤" else value >= self.value
        return value < self.value if self.sign == "<" else value > self.value

    def text(self, form: str) -> str:
        """The bar in words, its value in the format of the quantity: "> 90%"."""
        near = f" within {self.by:.0%}" if self.sign == "≈" and self.by else ""
        return f"{self.sign} {form.format(self.value)}{near}"

    def beside(self, value: float, form: str) -> str:
        """A measured value in the format of the quantity, with up to three digits more where it would read as
        the bar and is not: 1,224.9 beside 1,225.
        """
        for more in range(4) if self.sign != "≈" else ():
            finer = _DIGITS.sub(lambda found, more=more: f".{int(found[1]) + more}", form)  # type: ignore[misc]
            if finer.format(value) != finer.format(self.value):
                return finer.format(value)
        return form.format(value)
