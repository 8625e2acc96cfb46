"""Claims as lines: each with its verdict by its own bar, and beside it those of its restatements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import Canvas, Drawing, single

_NAME, _WIDE = 36.0, 84.0  # the width of a claim's name, and of a verdict
_HIGH, _GAP = 19.0, 3.0


class Judged(NamedTuple):
    """A claim: its name, the verdict on it as stated, the verdicts on its restatements, and a few words that
    say what it claims.
    """

    name: str
    stated: str
    restated: Sequence[str]
    words: str = ""


def verdicts(claims: Sequence[Judged], fills: Mapping[str, str], title: str) -> Drawing:
    """A line a claim: its name and words, its verdict as stated, and beside it those of its restatements,
    each in the fill that `fills` has for its word. UsageError without claims.
    """
    if not claims:
        raise UsageError("Verdicts are drawn of at least one claim.")
    canvas = Canvas()
    most = max(len(claim.restated) for claim in claims)
    first = svg.WIDTH - (1 + most) * (_WIDE + _GAP) - (8 if most else 0)
    second = first + _WIDE + _GAP + 8
    canvas.text(first, 12, "as stated", svg.SMALL, bold=True)
    if most:
        canvas.text(second, 12, "restated", svg.SMALL, bold=True)
    for place, claim in enumerate(claims):
        y = 18 + place * (_HIGH + _GAP)
        canvas.text(0, y + 14, claim.name, svg.SMALL, bold=True)
        canvas.text(_NAME, y + 14, claim.words, svg.SMALL)
        canvas.cell(first, y, _WIDE, _HIGH, claim.stated, fills[claim.stated], svg.SMALL)
        for k, word in enumerate(claim.restated):
            canvas.cell(second + k * (_WIDE + _GAP), y, _WIDE, _HIGH, word, fills[word], svg.SMALL)
    said = [
        f"{claim.name} {f'({claim.words}) ' if claim.words else ''}{claim.stated}"
        + (f" (restated: {', '.join(claim.restated)})" * bool(claim.restated))
        for claim in claims
    ]
    return single(title, f"{'; '.join(said)}.", canvas)
