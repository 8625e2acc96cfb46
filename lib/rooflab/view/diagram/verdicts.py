"""Claims as lines: each with its verdict by its own bar, and beside it those of its restatements, or those
on other kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import Canvas, Drawing, single

_NAME, _WIDE = 30.0, 84.0  # the width of a claim's name, and of its verdict as stated
_AGAIN = 130.0  # the width of a restatement's verdict, where it has no more room
_HIGH, _GAP, _LINES = 19.0, 3.0, 30.0
_COLUMN = 96.0  # the width of a kernel's verdicts


class Found(NamedTuple):
    """A verdict's word, and what it is about: the kernel, or a restatement and its kernel."""

    word: str
    about: str = ""


class Judged(NamedTuple):
    """A claim: its name, the verdict on it as stated, the verdicts on its restatements, and a few words that
    say what it claims: its quantity, and in a second line its bar.
    """

    name: str
    stated: Found
    restated: Sequence[Found]
    words: str = ""


def verdicts(claims: Sequence[Judged], fills: Mapping[str, str], title: str) -> Drawing:
    """A line a claim: its name and words, its verdict as stated, and beside it those of its restatements,
    each in the fill that `fills` has for its word, with what it is about. UsageError without claims.
    """
    if not claims:
        raise UsageError("Verdicts are drawn of at least one claim.")
    canvas = Canvas()
    most = max(len(claim.restated) for claim in claims)
    first = svg.WIDTH - most * (_AGAIN + _GAP) - _WIDE - (8 if most else 0)
    second = first + _WIDE + 8
    canvas.text(first, 12, "as stated", svg.SMALL, bold=True)
    if most:
        canvas.text(second, 12, "restated", svg.SMALL, bold=True)
    for place, claim in enumerate(claims):
        y = 18 + place * (_LINES + _GAP)
        canvas.text(0, y + 12, claim.name, svg.SMALL, bold=True)
        for line, words in enumerate(claim.words.split("\n")):
            size = svg.SMALL
            while size > 7 and svg.wide(words, size) > first - _NAME - 4:
                size -= 1
            canvas.text(_NAME, y + 12 + 13 * line, words, size)
        _found(canvas, first, y, _WIDE, claim.stated, fills)
        wide = _AGAIN if len(claim.restated) > 1 else most * (_AGAIN + _GAP) - _GAP
        for k, found in enumerate(claim.restated):
            needs = max(_AGAIN, svg.wide(found.about, svg.SMALL) + 8)
            _found(canvas, second + k * (_AGAIN + _GAP), y, min(needs, wide), found, fills)
    said = []
    for claim in claims:
        words = f"({' '.join(claim.words.splitlines())}) " if claim.words else ""
        text = f"{claim.name} {words}{_said(claim.stated)}"
        if claim.restated:
            text += f" (restated: {' and '.join(map(_said, claim.restated))})"
        said.append(text)
    return single(title, f"{'; '.join(said)}.", canvas)


def _found(canvas: Canvas, x: float, y: float, width: float, found: Found, fills: Mapping[str, str]) -> None:
    """A verdict as a cell: its word, and below it what it is about."""
    fill = fills[found.word]
    canvas.rect(x, y, width, _LINES, fill)
    high = 12 if found.about else 19
    canvas.text(x + width / 2, y + high, found.word, svg.SMALL, "middle", svg.on(fill), bold=True)
    if found.about:
        size = svg.SMALL
        while size > 7 and svg.wide(found.about, size) > width - 1:
            size -= 1
        canvas.text(x + width / 2, y + 25, found.about, size, "middle", svg.on(fill))


def _said(found: Found) -> str:
    return f"{found.word}, {found.about}" if found.about else found.word


class Tried(NamedTuple):
    """A test put to several kernels: its name, a few words that say what it asks, and of each kernel what was
    measured (or a word, where nothing was) and the verdict.
    """

    name: str
    words: str
    found: Sequence[tuple[str, str]]


def tried(tests: Sequence[Tried], heads: Sequence[str], fills: Mapping[str, str], title: str) -> Drawing:
    """A line a test: its name and words, and under each kernel's head what it measures there, in the fill
    that `fills` has for the verdict; below, what each fill means. UsageError without tests.
    """
    if not tests:
        raise UsageError("Tests are drawn of at least one.")
    canvas = Canvas()
    first = svg.WIDTH - len(heads) * (_COLUMN + _GAP)
    for k, head in enumerate(heads):
        for line, words in enumerate(head.split("\n")):
            canvas.text(first + k * (_COLUMN + _GAP), 12 + 13 * line, words, svg.SMALL, bold=not line)
    top = 18.0 + 13 * max(head.count("\n") for head in heads)
    for place, test in enumerate(tests):
        y = top + place * (_HIGH + _GAP)
        canvas.text(0, y + 14, test.name, svg.SMALL, bold=True)
        canvas.text(_NAME, y + 14, test.words, svg.SMALL)
        for k, (measured, word) in enumerate(test.found):
            x = first + k * (_COLUMN + _GAP)
            canvas.cell(x, y, _COLUMN, _HIGH, measured, fills[word], svg.SMALL)
    y, x = top + len(tests) * (_HIGH + _GAP) + 8, first
    for word in dict.fromkeys(word for test in tests for _, word in test.found):
        canvas.rect(x, y, 11, 11, fills[word])
        canvas.text(x + 16, y + 10, word, svg.SMALL)
        x += 30 + svg.wide(word, svg.SMALL)
    said = "; ".join(
        f"{test.name} ({test.words}): "
        + ", ".join(
            f"{head.splitlines()[0]} {measured}, {word}"
            if measured != word
            else f"{head.splitlines()[0]} {word}"
            for head, (measured, word) in zip(heads, test.found, strict=True)
        )
        for test in tests
    )
    return single(title, f"{said}.", canvas)
