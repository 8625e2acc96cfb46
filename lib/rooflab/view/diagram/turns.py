"""Blocks that take tiles turn by turn: whole tiles to the end, or a last turn that is divided along k."""

from __future__ import annotations

from typing import NamedTuple

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, Canvas, Drawing, single
from rooflab.words import counted


class Piece(NamedTuple):
    """What a block does of a tile: from `start` to `end`, in turns; `share` of the tile's k."""

    block: int
    tile: int
    start: float
    end: float

    @property
    def share(self) -> float:
        """The share of the tile's k that the piece has."""
        return self.end - self.start


def whole(tiles: int, blocks: int) -> list[Piece]:
    """Tiles dealt to blocks that take one after the other, a turn each."""
    return [Piece(t % blocks, t, float(t // blocks), float(t // blocks + 1)) for t in range(tiles)]


def divided(tiles: int, blocks: int) -> list[Piece]:
    """The same, but the tiles left for a last turn are divided evenly over all blocks, along k."""
    left = tiles % blocks
    found = whole(tiles - left, blocks)
    for block in range(blocks if left else 0):
        at, until = block * left, (block + 1) * left  # in parts of a tile, `blocks` to each
        start = float(tiles // blocks)
        while at < until:
            next_tile = min(until, (at // blocks + 1) * blocks)
            end = start + (next_tile - at) / blocks
            found.append(Piece(block, tiles - left + at // blocks, start, end))
            at, start = next_tile, end
    return found


def last_turn(tiles: int = 15, blocks: int = 6) -> Drawing:
    """Both ways over time, a lane a block: an example of so many tiles on so many blocks, one to an SM."""
    canvas, left, y, ends, idle = Canvas(), 62.0, 0.0, list[float](), list[int]()
    runs = {"Whole tiles": whole(tiles, blocks), "Last tiles divided along k": divided(tiles, blocks)}
    most = max(piece.end for run in runs.values() for piece in run)
    unit = (svg.WIDTH - left) / most
    full = tiles // blocks
    for name, run in runs.items():
        ends.append(max(piece.end for piece in run))
        idle.append(blocks - len({piece.block for piece in run if piece.end > full}))
        canvas.text(0, y + 12, f"{name}: {counted(tiles, 'tile')} take {ends[-1]:g} turns", bold=True)
        y += 20
        for block in range(blocks):
            canvas.text(0, y + 14, f"block {block}", svg.SMALL)
            for piece in run:
                if piece.block == block:
                    part = piece.share < 1
                    words = f"{'part of ' * part}tile {piece.tile}"
                    x = left + piece.start * unit
                    canvas.cell(x, y, piece.share * unit, 19, words, AMBER if part else GREY)
            y += 21
        y += 14
    canvas.line([(left, y - 4), (left + 60, y - 4)], end="arrow")
    canvas.text(left + 66, y, "time", svg.SMALL)
    says = (
        f"An example of {counted(tiles, 'tile')} on {counted(blocks, 'block')}, one to an SM. Whole tiles "
        f"take {ends[0]:g} turns, and {counted(idle[0], 'block')} idle in the last. Dividing the last tiles "
        f"along k over all blocks takes {ends[1]:g}, besides adding up the parts."
    )
    return single("A last turn with too few tiles", says, canvas)
