"""Where a kernel is stopped: the gate's steps and the one that refused it; the instruments that a planted
fault passes, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_GATE = 620.0  # width of the gate's table: names and what they do beside four steps
# A step of the gate, and the words of a refusal at it.
STEPS = (
    ("outputs right", "at the gate"),
    ("inputs unchanged", "changed its input"),
    ("timed", ""),
    ("outputs still right", "after timing"),
)
_TIMED = 2  # the step that gives a time; of a kernel that a later step refuses it is discarded


def gate_steps(said: Sequence[tuple[str, str]], does: Mapping[str, str] | None = None) -> Drawing:
    """A row a kernel of `said`, (name, what the gate said of it): the steps that it passed, and the one that
    refused it, if any did; under its name what it `does`, where that is told.
    """
    does = does or {}
    canvas, left, high, words = Canvas(_GATE), 208.0, 32.0, []
    wide = (_GATE - left) / len(STEPS)
    for k, (step, _) in enumerate(STEPS):
        canvas.text(left + (k + 0.5) * wide, 10, f"step {k + 1}", svg.SMALL, "middle")
        canvas.text(left + (k + 0.5) * wide, 24, step, svg.SMALL, "middle")
    for row, (name, sentence) in enumerate(said):
        y = 32 + row * (high + 4)
        canvas.text(0, y + 13 if name in does else y + 20, name, bold=True)
        if name in does:
            canvas.text(0, y + 28, does[name], svg.SMALL)
        at = next((k for k, (_, word) in enumerate(STEPS) if word and word in sentence), len(STEPS))
        for k in range(len(STEPS)):
            text, fill = ("passed", SKY) if k < at else ("refused", AMBER) if k == at else ("", NONE)
            if k == _TIMED and k < at:
                text = "timed" if at == len(STEPS) else "time discarded"
            canvas.cell(left + k * wide + 2, y, wide - 4, high, text, fill)
        end = "passes all steps" if at == len(STEPS) else f"is refused at step {at + 1}, {STEPS[at][0]}"
        words.append(f"{name} ({does[name]}) {end}" if name in does else f"{name} {end}")
    canvas.text(left, canvas.height + 18, "An empty box: the kernel did not get that far.", svg.SMALL)
    return single("Where the gate stops a kernel", "; ".join(words) + ".", canvas)


class Instrument(NamedTuple):
    """An instrument, how many planted faults it stops, and one of these: the line of code, its mutant and,
    where it needs a word, why that is stopped.
    """

    name: str
    stops: int
    line: str
    mutant: str
    why: str = ""


def passed_on(faults: int, instruments: Sequence[Instrument], left: str) -> Drawing:
    """Planted faults as a bar that each instrument shortens by what it stops, with an example of that; `left`
    says what is true of those that none stops.
    """
    canvas, high, words = Canvas(), 20.0, []
    unit, y, still = svg.WIDTH / faults, 26.0, faults
    for x, fill, name in ((0, AMBER, "stopped here"), (130, SKY, "passed on")):
        canvas.cell(x, 0, 14, 12, "", fill)
        canvas.text(x + 20, 10, name, svg.SMALL)
    for one in instruments:
        canvas.text(0, y + 12, f"{one.name}: stops {one.stops} of {still}", svg.TEXT, bold=True)
        canvas.cell(0, y + 18, one.stops * unit, high, str(one.stops), AMBER)
        canvas.cell(one.stops * unit, y + 18, (still - one.stops) * unit, high, str(still - one.stops), SKY)
        still -= one.stops
        shown = (("such as", one.line), ("made", one.mutant), *((("so that", one.why),) if one.why else ()))
        for down, (name, code) in enumerate(shown):
            canvas.text(0, y + 54 + 15 * down, name)
            canvas.text(70, y + 54 + 15 * down, code)
        words.append(f"{one.name} and stops {one.stops}, such as {one.line} made {one.mutant}")
        y += 54 + 15 * len(shown)
    canvas.text(0, y + 12, f"{counted(still, 'fault')} left: {left}", svg.TEXT, bold=True)
    canvas.cell(0, y + 18, still * unit, high, str(still), SKY)
    says = f"{counted(faults, 'planted fault')}. {'. '.join(words)}. Left: {still}; {left}."
    return single("Where a planted fault is stopped", says, canvas)
