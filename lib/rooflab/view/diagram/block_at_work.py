"""Who copies, who multiplies and who waits in a block, for kernels that fill a ring of slots: read off their
sources, and run against an example's clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    engine copy, whether a warp loads x into its registers first, how many warps multiply together, and how
    many of these divide the block's rows and how many k.
    """

    barrier: bool
    engine: bool
    loads_x: bool
    together: int
    rows: int = _WORKERS
    parts: int = 1

    @property
    def shared(self) -> bool:
        """Whether two of a block use the same slots: only with an engine do those that divide k have their
        own.
        """
        return self.barrier or self.rows > 1


def way_of(rung: Rung, built: Mapping[str, int] | None = None) -> Way:
    """The way of an INT4 rung that fills a ring, by its source and the macros that it is built with."""
    macros = {**rung.defines, **(built or {})}
    rows, parts = (
        next(macros[name] for name in names if name in macros)
        for names in (("ROW_GROUPS", "ROW_WARPS"), ("K_GROUPS", "K_WARPS"))
    )
    text = re.sub(r"//[^\n]*", "", rung.path.read_text(encoding="utf-8"))
    loop = re.search(r"\n( *)for \(unsigned [js] = (?:0|begin|k_group); .*?\n\1\}\n", text, re.DOTALL)
    assert loop is not None, rung.name
    body = loop[0]
    together = 4 if "wgmma_" in body else 1
    return Way("__syncthreads" in body, "tma_copy" in text, "load_matrix" in body, together, rows, parts)


class Piece(NamedTuple):
    """What a lane of the picture does, from when to when, in steps."""

    lane: int
    what: str
    group: int
    start: int
    end: int


def run(way: Way) -> list[Piece]:
    """What _WORKERS do with _GROUPS groups of k; copies stay ahead of them. Where they share slots, a thread
    of the last starts an engine, else one of each: once its next products are under way, and all have read
    the slot.
    """
    found, now, read, copied = list[Piece](), [0] * _WORKERS, 0, 0
    for group in range(_GROUPS):
        if way.barrier:
            last = max(now)
            for who in range(_WORKERS):
                found += [Piece(who, "waits", group, now[who], last)] if now[who] < last else []
                found.append(Piece(who, "orders", group, last, last + _ORDER))
                now[who] = last + _ORDER
        turn = range(_WORKERS) if way.shared else [group % _WORKERS]
        for who in turn:
            if way.loads_x:
                found.append(Piece(who, "loads x", group, now[who], now[who] + _LOAD))
                now[who] += _LOAD
            takes = _MANY if who == 2 * group // _GROUPS else _FEW
            found.append(Piece(who, "multiplies", group, now[who], now[who] + takes))
            now[who] += takes
        who, before = turn[-1], group - (1 if way.shared else _WORKERS)
        if way.engine and before >= 0:
            starts = max(now[who], read) if way.shared else now[who]
            found += [Piece(who, "waits", group, now[who], starts)] if now[who] < starts else []
            copied = max(copied, starts) + _COPY
            found.append(Piece(_WORKERS, "copies", before, copied - _COPY, copied))
            now[who] = starts
        read = max(now)
    return found


def _divided(way: Way, who: str) -> str:
    """How the warps or warpgroups of a block divide its work, and who uses a slot."""
    if way.parts == 1:
        return f"{counted(way.rows, who)} divide the rows, and all use each slot."
    if way.rows == 1:
        uses = "each has slots of its own" if way.engine else "each uses a part of each slot"
        return f"{counted(way.parts, who)} divide k: {uses}."
    uses = " and share slots" if way.engine else ""
    return f"{way.rows} × {way.parts} {who}s: {way.rows} divide the rows{uses}, {way.parts} divide k."


def who_waits(
    rungs: Sequence[Rung], built: Mapping[str, Mapping[str, int]] | None = None, only: int | None = None
) -> Drawing:
    """Who copies, multiplies and waits in a block of each rung, over an example's time; `built`: the macros
    of a rung by its name, where these are not those of its source. `only`: draw this one of `rungs` alone, in
    the time scale of all.
    """
    ways = [(rung, way_of(rung, (built or {}).get(rung.name))) for rung in rungs]
    runs = [(rung, way, run(way)) for rung, way in ways]
    canvas, left, y, said = Canvas(), 126.0, 0.0, list[str]()
    canvas.text(
        0,
        y + 12,
        "An example (not measured). First one is slow, then the other. Slots begin full.",
    )
    y += 24
    unit = (svg.WIDTH - left - 2) / max(max(piece.end for piece in pieces) for _, _, pieces in runs)
    runs = runs if only is None else [runs[only]]
    fills = {"orders": GREY, "loads x": SKY, "multiplies": AMBER, "waits": NONE, "copies": BLUE}
    for rung, way, pieces in runs:
        number = rung.name.partition("_")[0]
        who = "warp" if way.together == 1 else "warpgroup"
        copier = "one thread has the TMA copy" if way.engine else "all threads order copies"
        meets = "a barrier for each slot" if way.barrier else "no block-wide barrier"
        does = "mma" if way.together == 1 else "wgmma"
        done = f"done after {max(p.end for p in pieces if p.what == 'multiplies')} steps"
        canvas.text(0, y + 12, f"Rung {number}, {does}: {copier}, {meets}", bold=True)
        drawn = f" Drawn are any two {who}s." if way.barrier and way.rows * way.parts > _WORKERS else ""
        canvas.text(0, y + 28, f"{_divided(way, who)}{drawn} D{done[1:]}.", svg.SMALL)
        y += 36
        for lane in range(_WORKERS + way.engine):
            orders = ", orders" * (way.engine and (lane == _WORKERS - 1 or not way.shared))
            canvas.text(0, y + 14, f"{who} {lane}{orders}" if lane < _WORKERS else "TMA", svg.SMALL)
            for piece in pieces:
                if piece.lane == lane:
                    numbered = {"multiplies": f"slot {piece.group}", "copies": f"fill {piece.group}"}
                    words = numbered.get(piece.what, piece.what)
                    wide = (piece.end - piece.start) * unit
                    canvas.cell(left + piece.start * unit, y, wide, 20, words, fills[piece.what])
            y += 23
        y += 12
        waited = sum(p.end - p.start for p in pieces if p.what == "waits")
        said.append(f"rung {number}: {copier}, {meets}, {waited} steps waited by some {who}, {done}")
        said[-1] += f"; {_divided(way, who).rstrip('.')}"
    x = 0.0
    key = {
        "order copies": GREY,
        "load x into registers": SKY,
        "unpack a slot and multiply": AMBER,
        "wait": NONE,
        "fill": BLUE,
    }
    whats = {piece.what for _, _, pieces in runs for piece in pieces}
    for words, fill in key.items():
        if fill not in {fills[what] for what in whats}:
            continue
        if x + 32 + svg.wide(words, svg.TEXT) > svg.WIDTH:
            x, y = 0.0, y + 20
        canvas.cell(x, y - 2, 26, 14, "", fill)
        canvas.text(x + 32, y + 9, words)
        x += 54 + svg.wide(words, svg.TEXT)
    return single("Who copies, who multiplies, who waits", f"In an example {'; '.join(said)}.", canvas)
