"""Which bytes of the outputs each lane of a warp stores, by attention's rungs 15 and 16: addresses and
exchanges are those of their sources.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import attention
from rooflab.view import access_diagram
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, Canvas, Drawing, shade, single
from rooflab.words import counted

_COLUMNS, _BYTES = 32, 2  # columns that are drawn, and bytes of one
_QUAD, _ROWS = 4, 8  # lanes that hold a row, and rows that a store touches


class Store(NamedTuple):
    """A warp's first store: how many bytes a lane, and where each lane's begin in its row; stores that it
    takes for all columns drawn; and which columns each lane of a quad then holds.
    """

    width: int
    places: tuple[int, ...]
    stores: int
    held: list[list[int]]

    @property
    def written(self) -> int:
        """Bytes of a row that one store writes."""
        return len({place + k for place in self.places[:_QUAD] for k in range(self.width)})

    @property
    def sectors(self) -> int:
        """Sectors of a row that it touches."""
        return len({place // access_diagram.SECTOR for place in self.places[:_QUAD]})


def exchanged(text: str) -> list[list[int]]:
    """The columns that each lane of a quad holds after a source's exchanges, each of which transposes two by
    two pairs of columns between lanes that differ in one bit.
    """
    pairs = [[(8 * b + 2 * lane, 8 * b + 2 * lane + 1) for b in range(4)] for lane in range(_QUAD)]
    for step, *both in re.findall(r"exchange<(\d)>\(pairs\[(\d)\], pairs\[(\d)\]\)", text):
        first, second = map(int, both)
        gives = [second if not lane & int(step) else first for lane in range(_QUAD)]
        got = [pairs[lane ^ int(step)][gives[lane ^ int(step)]] for lane in range(_QUAD)]
        for lane in range(_QUAD):
            pairs[lane][gives[lane]] = got[lane]
    return [[column for pair in mine for column in pair] for mine in pairs]


def store_of(text: str) -> Store:
    """What a source's warp stores of 32 columns. UsageError for one without such a store."""
    wide = re.search(r"reinterpret_cast<uint4\*>\(to \+ ([^)]+)\) = eight", text)
    narrow = re.search(r"\bto\[([^\]]+)\] = rounded_pair", text)
    found = wide or narrow
    if not found:
        raise UsageError("This source has no store of outputs.")
    width = 16 if wide else 4
    places = access_diagram.typed(f"({found[1]}) * 4", width, d=0).places
    steps = re.findall(r"for \(int d = 0; d < HEAD_DIM; d \+= (\d+)\)", text)
    return Store(width, tuple(place or 0 for place in places), _COLUMNS // int(steps[-1]), exchanged(text))


def lanes_store(texts: dict[str, str] | None = None) -> Drawing:
    """Who holds the columns of a row, and the first store of a warp, by rungs 15 and 16; `texts`: sources by
    their rungs' names, in place of the files.
    """
    ladder = {each.name: each for each in attention.LADDERS["attention"]}
    canvas, left, y, said = Canvas(), 60.0, 0.0, list[str]()
    unit = (svg.WIDTH - left - 4) / (_COLUMNS * _BYTES)
    for name in ("15_warp_vote", "16_wide_stores"):
        text = (texts or {}).get(name) or ladder[name].path.read_text(encoding="utf-8")
        one = store_of(text)
        sector = access_diagram.SECTOR
        share = one.written / one.sectors / sector
        words = f"{counted(one.stores, 'store')} of {one.width} bytes a lane"
        canvas.text(0, y + 12, f"Rung {name.partition('_')[0]}: {words} for {_COLUMNS} columns", bold=True)
        y += 20
        canvas.text(0, y + 14, "held by", svg.SMALL)
        pairs = [(lane, column) for lane, columns in enumerate(one.held) for column in columns[::2]]
        two = 2 * _BYTES * unit
        canvas.boxes(
            [
                (left + column * _BYTES * unit, y, two, 18, f"{lane}", shade(10 * lane))
                for lane, column in pairs
            ]
        )
        y += 26
        canvas.text(0, y + 12, "first store:", svg.SMALL)
        canvas.text(0, y + 26, f"{_ROWS} rows", svg.SMALL)
        touched = {place // sector for place in one.places[:_QUAD]}
        for k in range(_COLUMNS * _BYTES // sector):
            fill = AMBER if k in touched else NONE
            canvas.rect(left + k * sector * unit, y, sector * unit, 14 * _ROWS, fill)
        for lane, place in enumerate(one.places[:_QUAD]):  # as far into its row in every row
            canvas.rect(left + place * unit, y, one.width * unit, 14 * _ROWS, shade(10 * lane))
        canvas.grid(left, y, 1, _ROWS, _COLUMNS * _BYTES * unit, 14, NONE)
        for row in (0, 1, _ROWS - 1):
            for lane, place in enumerate(one.places[:_QUAD]):
                at, words = left + (place + one.width / 2) * unit, f"{row * _QUAD + lane}"
                canvas.text(at, y + 14 * row + 11, words, svg.SMALL, "middle", svg.on(shade(10 * lane)))
        y += 14 * _ROWS
        words = f"of each row {one.written} bytes, {share:.0%} of {counted(one.sectors, 'sector')}"
        canvas.text(left, y + 14, words, svg.SMALL)
        said.append(
            f"rung {name.partition('_')[0]}: {counted(one.stores, 'store')} of {one.width} bytes a lane"
        )
        said[-1] += f", the first writes {words}"
        y += 36
    below = "A number is a lane; orange: the rest of a sector of 32 bytes that is touched."
    canvas.text(0, y, below, svg.SMALL)
    return single("Which lane stores which bytes", f"{'; '.join(said).capitalize()}.", canvas, lean=True)
