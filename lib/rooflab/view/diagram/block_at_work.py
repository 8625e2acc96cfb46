"""How a block divides its weights and what it waits for, for kernels that fill a ring of slots: read off
their sources, over time, each as long as its measured time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, shade, single

_SLOTS, _PIECES = 3, 4  # slots that are drawn, and pieces that a slot is unpacked and multiplied in
_LANES = ("copies", "unpack", "tensor cores", "wait")
_FILLS = {"order": GREY, "under way": SKY, "x": PALE, "unpack": AMBER, "multiply": BLUE, "wait": NONE}
_IDLE = "#E9B8D3"
_WORDS = {
    "order": "threads start copies",
    "under way": "copies under way",
    "x": "load x into registers",
    "unpack": "unpack",
    "multiply": "multiply",
    "idle": "idle",
    "wait": "wait at the barrier",
}
_EXAMPLE = (29.4, 18.0, 15.0)  # steps of three rungs that were not measured
_X = 0.1  # the share of a slot's work that loading x into registers is drawn


class Way(NamedTuple):
    """How a block works on a slot: whether all its threads meet at a barrier, whether one thread has an
    engine copy, whether a warp loads x into its registers first, whether it unpacks while its products run,
    and how many warps multiply together.
    """

    barrier: bool
    engine: bool
    loads_x: bool
    overlaps: bool
    together: int


def way_of(rung: Rung) -> Way:
    """The way of an INT4 rung that fills a ring, by its source."""
    text = re.sub(r"//[^\n]*", "", rung.path.read_text(encoding="utf-8"))
    loop = re.search(r"\n( *)for \(unsigned [js] = (?:0|begin|k_group); .*?\n\1\}\n", text, re.DOTALL)
    assert loop is not None, rung.name
    body = loop[0]
    return Way(
        "__syncthreads" in body,
        "tma_copy" in text,
        "load_matrix" in body,
        "warpgroup_wait<1>" in body,
        4 if "wgmma_" in body else 1,
    )


class Piece(NamedTuple):
    """What a lane of the picture does, from when to when."""

    lane: str
    what: str
    start: float
    end: float


def run(way: Way, whole: float, meets: float) -> list[Piece]:
    """What a warp or warpgroup does with the drawn slots in the time `whole`; where a block meets at a
    barrier, that and starting copies take `meets` of a slot's time.
    """
    found, each = list[Piece](), whole / _SLOTS
    stop = meets if way.barrier else 0.0
    x = _X * (each - stop) if way.loads_x else 0.0
    steps = _PIECES + 1 if way.overlaps else 2 * _PIECES
    step = (each - stop - x) / steps
    for slot in range(_SLOTS):
        at, ends = slot * each, (slot + 1) * each
        if way.barrier:
            found.append(Piece("wait", "wait", at, at + stop / 2))
            found.append(Piece("copies", "order", at + stop / 2, at + stop))
            found.append(Piece("copies", "under way", at + stop, ends - step))
        at += stop
        if x:
            found.append(Piece("unpack", "x", at, at + x))
        at += x
        for piece in range(_PIECES):
            start = at + piece * step * (1 if way.overlaps else 2)
            found.append(Piece("unpack", "unpack", start, start + step))
            found.append(Piece("tensor cores", "multiply", start + step, start + 2 * step))
        if way.engine:  # first those started ahead, then the slot before this one's, once all have read it
            starts = max(0.0, at - step)
            found.append(Piece("copies", "under way", starts, ends - 2 * step))
    return found


def slots_over_time(rungs: Sequence[Rung], at: int, us: Sequence[float] = (), whose: str = "") -> Drawing:
    """One of three rungs over time, `rungs[at]`: copies, unpacking, tensor cores, waiting. It is as long as
    its time in `us`, measured on `whose`, if each rung is faster than the one before; else as long as in an
    example. All three are drawn to one scale. What is inside is schematic: the third saves what meeting and
    ordering take in the two before it.
    """
    if len(rungs) != len(_EXAMPLE):
        raise UsageError("Slots over time are drawn of three rungs.")
    measured = len(us) == len(rungs) and all(a > b > 0 for a, b in zip(us, us[1:], strict=False))
    times = tuple(us) if measured else _EXAMPLE
    way, whole = way_of(rungs[at]), times[at]
    canvas, left = Canvas(), 82.0
    unit, meets = (svg.WIDTH - left - 2) / times[0], (times[1] - times[2]) / _SLOTS
    number = rungs[at].name.partition("_")[0]
    takes = f": {whole:.1f} µs" if measured else ""
    heads = (
        f"{_SLOTS} of the slots that a warp or warpgroup multiplies in turn; the first is already full.",
        "Idle: tensor cores without work of this warp or warpgroup; others may use them.",
    )
    top = 0.0
    for line in () if at else heads:  # said once, in the first of a page's three
        canvas.text(0, top + 11, line, svg.SMALL)
        top += 15
    top += 10
    pieces = run(way, whole, meets)
    for lane, name in enumerate(_LANES):
        canvas.text(0, top + 20 * lane + 12, name, svg.SMALL)
    canvas.boxes(
        (left + p.start * unit, top + 20 * _LANES.index(p.lane), (p.end - p.start) * unit, 16, "", fill)
        for p in pieces
        for fill in (_FILLS[p.what],)
    )
    for gap in gaps(pieces, whole):
        wide = (gap.end - gap.start) * unit
        canvas.cell(left + gap.start * unit, top + 20 * _LANES.index(gap.lane), wide, 16, "", _IDLE)
    if not way.barrier:
        canvas.text(left, top + 72, "no wait of the whole block", svg.SMALL)
    ends = left + whole * unit
    canvas.line([(ends, top - 4), (ends, top + 80)], 1.2, dashed=True)
    if at:
        old, before = left + times[at - 1] * unit, rungs[at - 1].name.partition("_")[0]
        canvas.line([(old, top - 4), (old, top + 58)], 1.2, dashed=True)
        fits = old + 50 < svg.WIDTH
        canvas.text(
            old + (4 if fits else -4), top + 10, f"rung {before}", svg.SMALL, "start" if fits else "end"
        )
        fewer = round(times[at - 1], 1) - round(whole, 1)  # of the times as they are written
        less = f"{fewer:.1f} µs less than rung {before}" if measured else f"rung {before} ends later"
        canvas.text(ends + 8, top + 74, less, svg.SMALL)
    y = top + 92
    canvas.line([(left, y), (svg.WIDTH - 2, y)], 1.0, end="arrow")
    canvas.text(0, y + 4, "time", svg.SMALL)
    y = _key(canvas, y + 14, {p.what for p in pieces})
    lengths = f"Measured: how long it is{whose and f' ({whose})'}." if measured else "Not measured."
    inside = "Schematic: what is in it; unpacking is drawn as long as multiplying."
    for k, line in enumerate((lengths, inside)):
        canvas.text(0, y + 12 + 15 * k, line, svg.SMALL)
    parts = (
        "a barrier and all threads start copies for each slot"
        if way.barrier
        else "the TMA copies, no barrier"
    )
    parts += ", unpacks while its products run" if way.overlaps else ", unpacks and multiplies in turn"
    who = "warpgroup" if way.together > 1 else "warp"
    return single(
        f"Rung {number} over time{takes}",
        f"{heads[0]} Rung {number}, a {who}{takes}: {parts}. {heads[1]} {lengths} {inside}",
        canvas,
    )


def gaps(pieces: Sequence[Piece], whole: float) -> list[Piece]:
    """When the tensor cores have nothing to multiply, in the time `whole`."""
    busy = sorted((p.start, p.end) for p in pieces if p.what == "multiply")
    starts, ends = [0.0, *(end for _, end in busy)], [*(start for start, _ in busy), whole]
    spans = zip(starts, ends, strict=True)
    return [Piece("tensor cores", "idle", a, b) for a, b in spans if b > a + 1e-6 * whole]


def _key(canvas: Canvas, y: float, drawn: set[str]) -> float:
    """What the fills of the pieces that are drawn mean; the y below."""
    x = 0.0
    for what, name in _WORDS.items():
        if what not in drawn | {"idle"}:
            continue
        fill = _FILLS.get(what, _IDLE)
        if x + 30 + svg.wide(name, svg.SMALL) > svg.WIDTH:
            x, y = 0.0, y + 18
        canvas.cell(x, y, 20, 12, "", fill)
        canvas.text(x + 25, y + 10, name, svg.SMALL)
        x += 43 + svg.wide(name, svg.SMALL)
    return y + 18


def divided_weights(slots: int = 3, warps: int = 4) -> Drawing:
    """The weights of one block cut by rows and cut by k, a warp a part, with the outputs that each has; and a
    ring of slots at one moment.
    """
    canvas, wide, high, top = Canvas(), 120.0, 80.0, 46.0
    for left, title, by_rows in ((0.0, "Divide rows", True), (196.0, "Divide k", False)):
        canvas.text(left, 12, title, bold=True)
        canvas.text(left, top - 8, "W of a block, k →", svg.SMALL)
        for warp in range(warps):
            name, fill = f"warp {warp}", shade(warp, warps)
            if by_rows:
                at, tall = top + warp * high / warps, high / warps
                canvas.cell(left, at, wide, tall, name, fill)
                canvas.cell(left + wide + 10, at, 22, tall, "", fill)
            else:
                canvas.cell(left + warp * wide / warps, top, wide / warps, high, f"{warp}", fill)
        if not by_rows:
            canvas.text(left + wide + 4, top + high / 2 + 5, "+")
            canvas.cell(left + wide + 14, top, 22, high, "", svg.WHITE)
        canvas.text(left + wide + (12 if by_rows else 20), top - 8, "y", svg.SMALL)
        ends = "each warp: its own outputs" if by_rows else "each warp: a part of every sum"
        canvas.text(left, top + high + 16, ends, svg.SMALL)
    left = 392.0
    canvas.text(left, 12, f"A ring of {slots} slots", bold=True)
    canvas.text(left, top - 8, "in shared memory, now:", svg.SMALL)
    states = ("is multiplied", AMBER), ("is full, comes next", SKY)
    for slot in range(slots):
        words, fill = states[slot] if slot < len(states) else ("is being filled", NONE)
        canvas.cell(left, top + slot * high / slots, 164, high / slots - 3, f"slot {slot} {words}", fill)
    canvas.text(left, top + high + 16, "then slot 1, slot 2, slot 0 …", svg.SMALL)
    says = (
        f"{warps} warps divide the rows of a block's weights: each has outputs of its own. Or they divide k: "
    )
    says += f"each has a part of every sum, and the parts are added. A ring of {slots} slots: slot 0 is "
    says += "multiplied, slot 1 is full, the others are being filled."
    return single("How the warps of a block share its work", says, canvas)
