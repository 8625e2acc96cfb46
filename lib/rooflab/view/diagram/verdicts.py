"""Claims as squares: each by its own bar, and below it each of its restatements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import Canvas, Drawing, single

_LABELS = 92.0  # the width of the rows' names
_HIGH, _GAP = 26.0, 4.0


class Judged(NamedTuple):
    """A claim: its name, the verdict on it as stated, and the verdicts on its restatements."""

    name: str
    stated: str
    restated: Sequence[str]


def verdicts(claims: Sequence[Judged], fills: Mapping[str, str], title: str) -> Drawing:
    """A column a claim: on top its verdict as stated, below those of its restatements, each in the fill of
    its word. `fills` gives the words' order in the key. UsageError without claims.
    """
    if not claims:
        raise UsageError("Verdicts are drawn of at least one claim.")
    canvas = Canvas()
    pitch = (svg.WIDTH - _LABELS) / len(claims)
    second = _HIGH + 12
    canvas.text(0, 18, "as stated")
    if any(claim.restated for claim in claims):
        canvas.text(0, second + 18, "restated")
    for place, claim in enumerate(claims):
        x = _LABELS + place * pitch
        canvas.cell(x, 0, pitch - _GAP, _HIGH, claim.name, fills[claim.stated], svg.SMALL)
        for k, word in enumerate(claim.restated):
            canvas.cell(x, second + k * (_HIGH + _GAP), pitch - _GAP, _HIGH, "", fills[word])
    x, y = _LABELS, canvas.height + 14
    words = {word for claim in claims for word in (claim.stated, *claim.restated)}
    for word, fill in fills.items():
        if word in words:
            canvas.rect(x, y, 12, 12, fill)
            canvas.text(x + 18, y + 11, word, svg.SMALL)
            x += 36 + svg.wide(word, svg.SMALL)
    said = [
        f"{claim.name} {claim.stated}" + (f" (restated: {', '.join(claim.restated)})" * bool(claim.restated))
        for claim in claims
    ]
    return single(title, f"{'; '.join(said)}.", canvas)
