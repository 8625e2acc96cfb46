"""How a published statement becomes a verdict, drawn: its tests, each a bar and what was measured here; and
how many statements come to which verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from rooflab import claims
from rooflab.claims import scorecard
from rooflab.pages import Rows
from rooflab.view import plot
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, PALE, SKY, WHITE, Canvas, Drawing, single

WIDTH = 430.0  # narrow enough for a phone
_OPEN = (claims.ELSEWHERE, claims.UNRECORDED)  # no verdict on a statement
_SHORT = {claims.RESCALED: "rescaled", claims.DIRECTION: "direction"}  # where a column is narrow
# What a statement about speed gives, the likeliest to hold elsewhere first.
KINDS = ("which is faster", "how many times", "a time or rate", "a share", "a count")
PLURAL = {
    KINDS[0]: "statements of which is faster",
    KINDS[1]: "of how many times",
    KINDS[2]: "of a time or rate",
}
# Of a verdict, in every picture.
FILLS = {claims.HOLDS: BLUE, claims.RESCALED: "#6FA8D6", claims.DIRECTION: SKY, claims.REFUTED: AMBER}


def _within(bar: claims.Bar, most: float) -> tuple[float, float]:
    """From where to where a number meets a bar, between 0 and `most`."""
    if bar.sign == "≈":
        return bar.value * (1 - bar.by), min(most, bar.value * (1 + bar.by))
    return (0.0, bar.value) if bar.sign in "<≤" else (bar.value, most)


def _broken(text: str, size: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if svg.wide(longer, 1.15 * size) > WIDTH:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def verdicts(chosen: Sequence[claims.Claim], evidence: claims.Evidence) -> Drawing | None:
    """A statement after the other: what it says, the tests that were asked of it until one holds, each with
    its bar and the measured value on a line from 0, and its verdict. Statements without a row are left out;
    None if all are.
    """
    canvas, said, y = Canvas(WIDTH), [], 0.0
    for claim in chosen:
        asked = [(test, claims.judge(test, evidence)) for test in claim.deciding]
        asked = [(test, found) for test, found in asked if found.value == found.value]
        if not asked:
            continue
        verdict = claims.verdict(claim, evidence).word
        for line in _broken(claim.says, svg.TEXT):
            canvas.text(0, y + 13, line, bold=True)
            y += 17
        told = []
        for test, found in asked:
            how, tested = _asked(test, found)
            told.append(f"{how}, {tested}: measured {found.measured}")
            for line in _broken(f"{how}: {tested}", svg.TEXT):
                canvas.text(0, y + 14, line)
                y += 16
            y = _line(canvas, y + 6, test, found)
            if found.word == claims.HOLDS:
                break
        canvas.text(0, y + 16, "Verdict:")
        canvas.cell(60, y, 180, 22, verdict, FILLS.get(verdict, GREY), svg.TEXT)
        y += 42
        said.append(f"{claim.says} {'; '.join(told)}. Verdict: {verdict}")
    if not said:
        return None
    canvas.cell(0, y, 24, 12, "", PALE)
    canvas.text(30, y + 11, "where the bar is met")
    canvas.cell(180, y, 24, 12, "", WHITE)
    canvas.rect(190, y, 4, 12, svg.INK, 0)
    canvas.text(210, y + 11, "measured on this GPU")
    return single("From a statement to its verdict", f"{'. '.join(said)}.", canvas)


def kind(claim: claims.Claim) -> str:
    """Which of KINDS the figure of a statement is, by its first test's unit and bar: at least twice as fast
    is a factor, more than level is a direction.
    """
    test = claim.tests[0]
    if re.search(r"}[×x]", test.form):
        direction = test.bar.sign != "≈" and abs(math.log(test.bar.value)) < math.log(1.05)
        return KINDS[0] if direction else KINDS[1]
    if "%" in test.form:
        return KINDS[3]
    return KINDS[2] if re.search(r"µs|a second|GB/s|^time\b", test.quantity + test.form) else KINDS[4]


def by_kind(speed: Rows, gpu: str) -> tuple[Figure, str]:
    """The verdicts on statements about speed, a bar a `kind` of figure: the figure and its caption."""
    kinds = [name for name in KINDS if (speed["kind"] == name).any()]
    words = [word for word in claims.VERDICTS if (speed["verdict"] == word).any()]
    title = "Which kinds of figure hold here"
    fig, ax = plot.figure("statements", title=title, height=2.4)
    counted = speed.groupby(["kind", "verdict"]).size().unstack(fill_value=0).loc[kinds]
    shades = {word: FILLS.get(word, GREY) for word in words}
    plot.stacked(ax, kinds, {word: counted[word] for word in words}, "statements", shades)
    held = [f"{name} {counted.loc[name].get(claims.HOLDS, 0)} of {counted.loc[name].sum()}" for name in kinds]
    return fig, f"{title}: judged statements about speed, {gpu}. As stated hold: {', '.join(held)}."


def by_reason(counts: pd.Series, gpu: str) -> tuple[Figure, str]:
    """How many statements are refuted for which reason: the figure and its caption."""
    title = "Why statements are refuted"
    fig, ax = plot.figure("statements", title=title, height=1.2 + 0.25 * len(counts))
    names = [str(name) for name in counts.index]
    plot.stacked(ax, names, {claims.REFUTED: counts}, "statements", {claims.REFUTED: AMBER})
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    return fig, f"{title}: refuted statements about speed, {gpu}: {said}."


def _asked(test: claims.Test, found: claims.Verdict) -> tuple[str, str]:
    """How a test asks its statement, and what: whose kernel, which quantity, which bar."""
    if not test.restated:
        return (
            "As stated, author's kernel" if found.subject and not found.ours else "As stated"
        ), found.tested
    ours = f"{claims.BEST}: "
    asked = found.tested.removeprefix(ours)
    asked = f"our fastest kernel, {asked}" if found.tested.startswith(ours) else asked
    asked += f" ({test.reason})" if test.reason else ""
    return "Direction alone" if test.direction else "Restated", asked


def flow(verdicts: Rows) -> Drawing | None:
    """All statements, those that are judged and their verdicts, a row a kind and in all; None without any."""
    if verdicts.empty:
        return None
    code = verdicts["group"].isin(scorecard.ABOUT_CODE)
    kinds = {"About speed": verdicts[~code], "About code and documents": verdicts[code], "Together": verdicts}
    words = [word for word in claims.VERDICTS if word not in _OPEN and (verdicts["verdict"] == word).any()]
    canvas, y, said = Canvas(WIDTH), 0.0, []
    wide = (WIDTH - 212) / max(1, len(words))
    for x, head in ((30, "stated"), (98, "left out"), (168, "judged")):
        canvas.text(x, y + 16, head, svg.TEXT, "middle")
    for k, word in enumerate(words):
        canvas.cell(212 + k * wide, y, wide, 22, _SHORT.get(word, word), FILLS.get(word, GREY))
    for name, rows in kinds.items():
        y += 44
        canvas.text(0, y - 6, name, bold=True)
        left = int(rows["verdict"].isin(_OPEN).sum())
        canvas.cell(0, y, 60, 24, f"{len(rows)}", WHITE, svg.TEXT)
        canvas.line([(62, y + 17), (136, y + 17)], end="arrow")
        canvas.text(98, y + 12, f"\u2212 {left}", svg.SMALL, "middle")
        canvas.cell(138, y, 60, 24, f"{len(rows) - left}", WHITE, svg.TEXT)
        counts = rows["verdict"].value_counts()
        for k, word in enumerate(words):
            canvas.cell(212 + k * wide, y, wide, 24, f"{counts.get(word, 0)}", WHITE, svg.TEXT)
        found = ", ".join(f"{counts.get(word, 0)} {_SHORT.get(word, word)}" for word in words)
        said.append(f"{name}: {len(rows)} stated, {left} left out, {len(rows) - left} judged: {found}")
        y += 8
    return single("From all statements to their verdicts", f"{'. '.join(said)}.", canvas)


def _round(least: float, share: bool) -> float:
    """Where a line from 0 ends: a round number above `least`, for a share of up to 100% there."""
    if share and 0 < least <= 1:
        return 1.0
    step = 10 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(step * each for each in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12) if step * each >= 1.05 * least)


def _line(canvas: Canvas, y: float, test: claims.Test, found: claims.Verdict) -> float:
    """The line of a test: where its bar is met, and what was measured; where the next thing begins."""
    most = _round(max(found.value, test.bar.value * (1 + test.bar.by)), "%" in test.form)
    unit = WIDTH / most
    low, high = _within(test.bar, most)
    canvas.rect(0, y, WIDTH, 14, WHITE)
    canvas.rect(low * unit, y, (high - low) * unit, 14, PALE)
    x = min(found.value * unit, WIDTH - 3)
    canvas.rect(x - 2, y, 4, 14, svg.INK, 0)
    end = x > WIDTH / 2
    words = f"measured {found.measured}"
    canvas.text(x + (2 if end else -2), y + 30, words, svg.TEXT, "end" if end else "start")
    if end or x > 16:  # the ends of the axis, where they have room
        canvas.text(0, y + 28, "0", svg.SMALL)
    if not end or x < WIDTH - 60:
        share = "%" in test.form
        unit_name = "%" if share else "".join(re.findall(r"}([×x])$", test.form))
        ends = 100 * most if share else most
        words = f"{ends:,.0f}" if ends >= 1000 else f"{ends:.3g}"
        canvas.text(WIDTH, y + 28, f"{words}{unit_name}", svg.SMALL, "end")
    return y + 40
