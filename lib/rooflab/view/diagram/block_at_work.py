"""Who copies, who multiplies and who waits in a block, for kernels that fill a ring of slots: read off their
sources, and run against an example's clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rooflab.ops import Rung
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_WORKERS, _GROUPS = 2, 4
_ORDER, _LOAD, _COPY = 1, 1, 2  # steps: ordering a slot's copies, loading x into registers, a slot's copy
_FEW, _MANY = 2, 6  # steps that a slot's products take: one worker is slow for half the slots, then the other


class Way(NamedTuple):
    """How a block works on a slot: whether all its threads meet at a barrier, whether one thread has an
    engine copy, whether a warp loads x into its registers first, and how many warps multiply together.
    """

    barrier: bool
    engine: bool
    loads_x: bool
    together: int


def way_of(rung: Rung) -> Way:
    """The way of an INT4 rung that fills a ring, by its source."""
    text = re.sub(r"//[^\n]*", "", rung.path.read_text(encoding="utf-8"))
    loop = re.search(r"\n( *)for \(unsigned [js] = (?:0|begin|k_group); .*?\n\1\}\n", text, re.DOTALL)
    assert loop is not None, rung.name
    body = loop[0]
    return Way(
        "__syncthreads" in body, "tma_copy" in text, "load_matrix" in body, 4 if "wgmma_" in body else 1
    )


class Piece(NamedTuple):
    """What a lane of the picture does, from when to when, in steps."""

    lane: int
    what: str
    group: int
    start: int
    end: int


def run(way: Way) -> list[Piece]:
    """What _WORKERS that share their slots do with _GROUPS groups of k; copies stay ahead of them. A thread
    of the last worker starts an engine: once its next products are under way, and all have read the slot.
    """
    found, now, read = list[Piece](), [0] * _WORKERS, 0
    for group in range(_GROUPS):
        if way.barrier:
            last = max(now)
            for who in range(_WORKERS):
                found += [Piece(who, "waits", group, now[who], last)] if now[who] < last else []
                found.append(Piece(who, "orders", group, last, last + _ORDER))
                now[who] = last + _ORDER
        for who in range(_WORKERS):
            if way.loads_x:
                found.append(Piece(who, "loads x", group, now[who], now[who] + _LOAD))
                now[who] += _LOAD
            takes = _MANY if who == 2 * group // _GROUPS else _FEW
            found.append(Piece(who, "multiplies", group, now[who], now[who] + takes))
            now[who] += takes
        if way.engine and group:  # of the slot before
            starts = max(now[-1], read)
            found += [Piece(_WORKERS - 1, "waits", group, now[-1], starts)] if now[-1] < starts else []
            found.append(Piece(_WORKERS, "copies", group - 1, starts, starts + _COPY))
            now[-1] = starts
        read = max(now)
    return found


def who_waits(rungs: Sequence[Rung]) -> Drawing:
    """Who copies, multiplies and waits in a block of each rung, over an example's time."""
    runs = [(rung, way_of(rung), run(way_of(rung))) for rung in rungs]
    canvas, left, y, said = Canvas(), 112.0, 0.0, list[str]()
    canvas.text(
        0,
        y + 12,
        "An example without scaling: look at who waits, not at the lengths.",
    )
    y += 24
    unit = (svg.WIDTH - left - 2) / max(max(piece.end for piece in pieces) for _, _, pieces in runs)
    fills = {"orders": GREY, "loads x": SKY, "multiplies": AMBER, "waits": NONE, "copies": BLUE}
    for rung, way, pieces in runs:
        number = rung.name.partition("_")[0]
        who = "warp" if way.together == 1 else "warpgroup"
        copier = "one thread has the TMA copy" if way.engine else "all threads order copies"
        meets = "a barrier for each slot" if way.barrier else "no barrier"
        does = "mma" if way.together == 1 else "wgmma"
        canvas.text(0, y + 12, f"Rung {number}, {does}: {copier}, {meets}", bold=True)
        y += 19
        for lane in range(_WORKERS + way.engine):
            orders = ", orders" * (way.engine and lane == _WORKERS - 1)
            canvas.text(0, y + 14, f"{who} {lane}{orders}" if lane < _WORKERS else "TMA", svg.SMALL)
            for piece in pieces:
                if piece.lane == lane:
                    numbered = {"multiplies": f"× {piece.group}", "copies": f"fill {piece.group}"}
                    words = numbered.get(piece.what, piece.what)
                    wide = (piece.end - piece.start) * unit
                    canvas.cell(left + piece.start * unit, y, wide, 20, words, fills[piece.what])
            y += 23
        y += 12
        waited = sum(p.end - p.start for p in pieces if p.what == "waits")
        said.append(f"rung {number}: {copier}, {meets}, {waited} steps waited by some {who}")
    x = 0.0
    key = {
        "order copies": GREY,
        "load x into registers": SKY,
        "unpack and multiply slot 0": AMBER,
    }
    for words, fill in key.items():
        canvas.cell(x, y - 2, 26, 14, "× 0" * (fill == AMBER), fill)
        canvas.text(x + 32, y + 9, words)
        x += 54 + svg.wide(words, svg.TEXT)
    canvas.text(0, y + 30, f"A warpgroup: {counted(4, 'warp')} that multiply together.")
    canvas.text(0, y + 46, "Both of a rung share every slot; all slots are full at first.")
    return single("Who copies, who multiplies, who waits", f"In an example {'; '.join(said)}.", canvas)
