"""Tiles of a product over time: a block for each tile (int4 rung 12), and blocks that stay and divide the
last turn along k (rung 13), whose pieces are computed by the expressions of kernels/common/stream_k.cuh.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.paths import KERNELS
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_FILL, _STORE = 1, 1  # steps: until the first copies of an empty ring are there; to store or to leave sums
_SOURCE = KERNELS / "common" / "stream_k.cuh"


class Piece(NamedTuple):
    """A part of a tile that a block takes: steps of k `begin` to `begin` + `steps`."""

    tile: int
    begin: int
    steps: int


class Bar(NamedTuple):
    """What a multiprocessor does from when to when, in steps: "fills", "multiplies" a piece, "stores" a tile,
    "leaves" its sums to another block, or "waits" and "adds" such sums.
    """

    sm: int
    what: str
    piece: Piece
    start: float
    end: float


def _expression(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    if not found:
        raise UsageError(f"stream_k.cuh has no {pattern}.")
    return found[1].replace("/", "//").replace("blockIdx.x", "block")


def pieces(tiles: int, steps: int, blocks: int, sharers: int, text: str | None = None) -> list[list[Piece]]:
    """What each block takes, in its order, by the source's expressions (`text` replaces it)."""
    text = _SOURCE.read_text(encoding="utf-8") if text is None else text
    names = {"tiles": tiles, "steps": steps, "BLOCKS": blocks, "SHARERS": sharers, "min": min, "max": max}

    def value(pattern: str, **more: int) -> int:
        return int(eval(_expression(text, pattern), {"__builtins__": {}}, {**names, **more}))

    rest = value(r"const unsigned rest = ([^;]*);")
    whole = value(r"\bwhole = ([^,;]*), each =")
    each = value(r"\beach = (rest [^,;]*),", rest=rest)
    more = value(r"\bmore = (rest [^,;]*);", rest=rest)
    found: list[list[Piece]] = []
    for block in range(blocks):
        first, end = (
            value(r"begin_of\(unsigned b\) const \{ return ([^;]*);", b=b, each=each, more=more)
            for b in (block, block + 1)
        )
        mine: list[Piece] = []
        while block < sharers and end > first:
            tile = value(r"const unsigned tile = (\(end[^,]*), from", end=end)
            start = value(r"from = (max\([^)]*\)), to = end", first=first, tile=tile)
            mine.append(Piece(whole + tile, start - tile * steps, end - start))
            end = start
        mine += [Piece(tile, 0, steps) for tile in range(block, whole, blocks)]
        found.append(mine)
    return found


def a_block_a_tile(tiles: int, steps: int, sms: int) -> list[Bar]:
    """Blocks of one tile each, dealt to the multiprocessor that is free first."""
    found, free = list[Bar](), [0.0] * sms
    for tile in range(tiles):
        sm = free.index(min(free))
        piece, now = Piece(tile, 0, steps), free[sm]
        for what, lasts in (("fills", _FILL), ("multiplies", steps), ("stores", _STORE)):
            found.append(Bar(sm, what, piece, now, now + lasts))
            now += lasts
        free[sm] = now
    return found


def blocks_that_stay(taken: list[list[Piece]], steps: int) -> list[Bar]:
    """The pieces of each block over time. The block with a tile's last step adds what others leave of it."""
    found, left = list[Bar](), dict[int, list[float]]()
    for sm, mine in enumerate(taken):  # a block waits for blocks of lower numbers alone
        now = 0.0
        for place, piece in enumerate(mine):
            if place == 0:
                found.append(Bar(sm, "fills", piece, now, now + _FILL))
                now += _FILL
            found.append(Bar(sm, "multiplies", piece, now, now + piece.steps))
            now += piece.steps
            if piece.begin + piece.steps < steps:
                found.append(Bar(sm, "leaves", piece, now, now + _STORE))
                now += _STORE
                left.setdefault(piece.tile, []).append(now)
                continue
            if piece.begin > 0:
                ready = max(now, *left[piece.tile])
                if ready > now:
                    found.append(Bar(sm, "waits", piece, now, ready))
                now = ready
                found.append(Bar(sm, "adds", piece, now, now + _STORE))
                now += _STORE
            found.append(Bar(sm, "stores", piece, now, now + _STORE))
            now += _STORE
    return found


def divided_first(taken: list[list[Piece]], steps: int) -> bool:
    """Whether tiles are divided and every block takes its parts of them before its whole tiles."""
    orders = [[piece.steps < steps for piece in mine] for mine in taken]
    return any(map(any, orders)) and all(order == sorted(order, reverse=True) for order in orders)


_STAY = "Rung 13: blocks that stay"
_FILLS = {"fills": GREY, "multiplies": SKY, "stores": AMBER, "leaves": BLUE, "adds": BLUE, "waits": NONE}


def tiles_in_turns(tiles: int = 6, steps: int = 8, sms: int = 4, text: str | None = None) -> Drawing:
    """An example: so many tiles of so many steps of k, by rungs 12 and 13 on a few multiprocessors."""
    taken = pieces(tiles, steps, sms, sms, text)
    first = ", divided tiles first" if divided_first(taken, steps) else ""
    runs = {
        "Rung 12: a block a tile": a_block_a_tile(tiles, steps, sms),
        f"{_STAY}{first}": blocks_that_stay(taken, steps),
    }
    canvas, note, said = _over_time(runs, tiles, steps, sms)
    shared = [piece for mine in taken for piece in mine if piece.steps < steps]
    says = f"{note} {'; '.join(said)}. In rung 13 "
    says += (
        f"tiles {', '.join(map(str, sorted({piece.tile for piece in shared})))} are divided along k."
        if shared
        else "no tile is divided."
    )
    return single("Tiles of y over time", says, canvas)


def tiles_while_staying(tiles: int = 9, steps: int = 5, sms: int = 3) -> Drawing:
    """An example: whole tiles by a block each, and by blocks that stay and copy the next tile meanwhile, as
    prompt_product does.
    """
    taken = [[Piece(tile, 0, steps) for tile in range(sm, tiles, sms)] for sm in range(sms)]
    runs = {
        "A block a tile: each fills an empty ring": a_block_a_tile(tiles, steps, sms),
        "Blocks that stay: the ring refills while a tile is stored": blocks_that_stay(taken, steps),
    }
    canvas, note, said = _over_time(runs, tiles, steps, sms)
    return single("Blocks that stay", f"{note} {'; '.join(said)}.", canvas)


def _over_time(runs: dict[str, list[Bar]], tiles: int, steps: int, sms: int) -> tuple[Canvas, str, list[str]]:
    """Runs one below the other on one scale, with a key of what is in them: the canvas, its note, what each
    is said to take.
    """
    canvas, left, y, said = Canvas(), 44.0, 0.0, list[str]()
    unit = (svg.WIDTH - left - 2) / max(bar.end for run in runs.values() for bar in run)
    for name, run in runs.items():
        words = f"{name}, done after {max(bar.end for bar in run):g} steps"
        canvas.text(0, y + 12, words, bold=True)
        y += 20
        for sm in range(sms):
            canvas.text(0, y + 15, f"SM {sm}", svg.SMALL)
            for bar in (bar for bar in run if bar.sm == sm):
                part = bar.piece.steps < steps
                span = f", {bar.piece.begin}-{bar.piece.begin + bar.piece.steps - 1}" if part else ""
                label = f"tile {bar.piece.tile}{span}" if bar.what == "multiplies" else ""
                wide = (bar.end - bar.start) * unit
                canvas.cell(left + bar.start * unit, y, wide, 21, label, _FILLS[bar.what])
            y += 23
        y += 12
        said.append(words)
    drawn = {_FILLS[bar.what] for run in runs.values() for bar in run}
    key = {
        "fills an empty ring": GREY,
        "multiplies": SKY,
        "stores y": AMBER,
        "leaves or adds sums": BLUE,
        "waits": NONE,
    }
    x = 0.0
    for words, fill in key.items():
        if fill not in drawn:
            continue
        canvas.cell(x, y - 2, 12, 12, "", fill)
        canvas.text(x + 17, y + 8, words, svg.SMALL)
        x += 34 + svg.wide(words, svg.SMALL)
    note = (
        f"An example (not measured): {counted(tiles, 'tile')} of {steps} steps of k on {counted(sms, 'SM')}."
    )
    canvas.text(0, y + 28, note, svg.SMALL)
    return canvas, note, said
