"""A warp's ring of weights between two phases of a token, in the first rungs of decode_step: where a launch
ends with an empty ring, and where slots go on being filled. What happens when is read off the sources and run
against an example's clock.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import decoder, decoder_plan, rung_of
from rooflab.ops.decoder_operands import Shape
from rooflab.studies import decode
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, single

RUNGS = decode.RUNGS[1:3]
# An example's clock: how long the first of some copies is on its way, and what each adds; how long a chunk is
# multiplied, a block adds up, starts, fetches its input, and waits for the last block; and
# what a launch, a dependent one and a barrier take, in lesson 00b's order.
_LATENCY, _COPY, _MULTIPLY, _ADD, _START, _INPUT, _BEHIND = 1.0, 0.6, 0.4, 1.0, 1.2, 1.0, 2.0
_LAUNCH, _DEPENDENT, _BARRIER = 0.75, 0.5, 1.0
_ROW, _SLOT = 18.0, 10.0  # heights
_IN_PLACE = {
    BLUE: "weights of phase 1",
    PALE: "on their way",
    SKY: "of phase 2",
}  # bars of a ring, labelled
_STARVED = "orange: waits for weights"
_WORDS = {
    "after": "the next block starts when all blocks have ended, with an empty ring",
    "early": "the next block starts when this one has left, with an empty ring",
    "on": "the block stays, and freed slots take the next phase's weights",
}


class Between(NamedTuple):
    """A warp around the end of a phase: how its ring gets the next weights (a key of _WORDS); when its slots'
    weights of this phase are `used`, those of the next `ordered`, `here` and multiplied (`done`); when the
    block and all others have ended the phase; when the next block may `start`, where there is one; when the
    next phase has its input. `later`: when a slot's weights of the phase after it are ordered and here, where
    the stream of weights goes on.
    """

    how: str
    used: list[float]
    ordered: list[float]
    here: list[float]
    done: list[float]
    own: float
    all: float
    start: float
    ready: float
    later: list[tuple[float, float]]


def between(text: str, slots: int) -> Between:
    """What happens in a rung by its source; UsageError for one that starts no stream of weights."""
    found = re.search(r"start_stream\(m, smem, [^,]+, [^,]+, (.+)\);", text)
    if not found:
        raise UsageError("This source starts no stream of weights.")
    used = [_MULTIPLY * (k + 1) for k in range(slots)]
    own = used[-1] + _ADD
    last = own + _BEHIND
    if found[1] != "1":  # matrices: the stream does not end with the phase
        how, start, ordered, begin = "on", own, used, last + _BARRIER
    elif text.find("wait_for_predecessor", found.end()) >= 0:
        how, start = "early", own
        ordered = [own + _DEPENDENT + _START] * slots
        begin = max(last + _DEPENDENT, ordered[0])
    else:
        how, start = "after", last
        ordered = [last + _LAUNCH + _START] * slots
        begin = ordered[0]
    ready = begin + _INPUT
    here, done, free, now = list[float](), list[float](), 0.0, ready
    for asked in ordered:
        free = max(asked + _LATENCY, free) + _COPY
        now = max(now, free) + _MULTIPLY
        here.append(free)
        done.append(now)
    later = list[tuple[float, float]]()
    for asked in done if how == "on" else ():
        free = max(asked + _LATENCY, free) + _COPY
        later.append((asked, free))
    return Between(how, used, ordered, here, done, own, last, start, ready, later)


def rings(shape: Shape, format: str, texts: tuple[str, ...] | None = None) -> Drawing:
    """A block and a warp's ring in the first rungs, one under the other; `texts` replace their sources."""
    rungs = [rung_of(decoder.LADDERS["decode_step"], name, name) for name in RUNGS]
    texts = texts or tuple(rung.path.read_text(encoding="utf-8") for rung in rungs)
    macros = decoder_plan.macros_for(rungs[-1], shape, format, decode.FORMATS[format], "90", {})
    slots = macros["STAGES"]
    runs = [between(text, slots) for text in texts]
    canvas, left, y, said = Canvas(), 44.0, 0.0, list[str]()
    unit = (svg.WIDTH - left - 2) / max(run.done[-1] for run in runs)
    for name, run in zip(RUNGS, runs, strict=True):
        canvas.text(0, y + 12, f"{name}: {_WORDS[run.how]}", bold=True)
        y += 18
        _lane(canvas, run, left, y, unit)
        y += _ROW + 2 + slots * _SLOT + 9
        kept = sum(here <= run.ready for here in run.here)
        said.append(f"{name}: {_WORDS[run.how]}; {kept} of {slots} slots are full when phase 2 has its input")
    line = "A row of a ring is a slot; white: empty. Dashed: the last block ends phase 1; all wait for it."
    canvas.text(0, y + 5, line, svg.SMALL)
    canvas.text(
        0,
        y + 19,
        "Block: blue, multiplies (dark: phase 1, light: phase 2). Grey: weights of phase 3. Not measured.",
        svg.SMALL,
    )
    return single("A warp's ring from one phase to the next", f"An example. {'. '.join(said)}.", canvas)


def _lane(canvas: Canvas, run: Between, left: float, y: float, unit: float) -> None:
    """A block over time, and under it the slots of one of its warps."""

    def across(start: float, end: float) -> tuple[float, float]:
        return left + start * unit, (end - start) * unit

    def cell(start: float, end: float, words: str, fill: str) -> None:
        x, wide = across(start, end)
        canvas.cell(x, y, wide, _ROW, words, fill)

    canvas.text(0, y + 13, "block", svg.SMALL)
    canvas.text(0, y + _ROW + 20, "ring", svg.SMALL)
    cell(0.0, run.used[-1], "multiplies", BLUE)
    cell(run.used[-1], run.own, "adds up", AMBER)
    input_from = run.ready - _INPUT
    began = input_from if run.how == "on" else run.start
    cell(run.own, began, "waits", AMBER)
    if run.how != "on":
        cell(began, run.ordered[0], "starts", AMBER)
        cell(run.ordered[0], input_from, "waits", AMBER)
    cell(input_from, run.ready, "input", AMBER)
    cell(run.ready, run.done[-1], "", AMBER)
    canvas.bars([_at(across(end - _MULTIPLY, end), y) for end in run.done], _ROW, SKY)
    top = y + _ROW + 2
    last = left + run.done[-1] * unit
    if any(end - _MULTIPLY > before for before, end in pairwise(run.done)):
        canvas.text(last - 3, top + _SLOT - 1.5, _STARVED, 9, "end")
    else:
        canvas.text((left + run.ready * unit + last) / 2, y + 13, "multiplies", svg.SMALL, "middle")
    marks: dict[str, list[tuple[float, float, float]]] = {BLUE: [], PALE: [], SKY: [], GREY: []}
    for k, used in enumerate(run.used):
        spans = ((BLUE, 0.0, used), (PALE, run.ordered[k], run.here[k]), (SKY, run.here[k], run.done[k]))
        for fill, start, end in spans:
            marks[fill].append(_at(across(start, end), top + k * _SLOT))
    for k, (ordered, here) in enumerate(run.later):
        end = run.done[-1]
        marks[PALE].append(_at(across(ordered, min(here, end)), top + k * _SLOT))
        marks[GREY].append(_at(across(min(here, end), end), top + k * _SLOT))
    for fill, lines in marks.items():
        canvas.bars(lines, _SLOT - 0.8, fill)
        if fill not in _IN_PLACE:
            continue
        x, at, wide = max(lines[: len(run.used)], key=lambda bar: bar[2])
        if svg.wide(_IN_PLACE[fill], 9) < wide:
            canvas.text(x + wide / 2, at + 7.8, _IN_PLACE[fill], 9, "middle", svg.on(fill))
    x, wide = across(0.0, run.done[-1])
    canvas.rect(x, top - 0.5, wide, len(run.used) * _SLOT, NONE)
    at = left + run.all * unit
    canvas.line([(at, top - 2), (at, top + len(run.used) * _SLOT + 2)], 1.2, dashed=True)


def _at(span: tuple[float, float], y: float) -> tuple[float, float, float]:
    return span[0], y, span[1]
