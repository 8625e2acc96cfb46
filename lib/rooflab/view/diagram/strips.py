"""Who reads which part of a matrix in a matrix-vector product: by columns, by rows, and by narrow strips."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rooflab.ops import gemv, rung_of
from rooflab.studies import gemv as study
from rooflab.studies import traces
from rooflab.view.access_diagram import BANKS, SECTOR, Request, recorded
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, shade, single
from rooflab.words import counted

_NARROW = 430.0  # a width that fits a phone
_LANES = 32


class _Load(NamedTuple):
    """A recorded load of a warp from a matrix: its request, and the bytes of one row of the matrix."""

    request: Request
    pitch: int

    def places(self) -> dict[int, tuple[int, int]]:
        """Lane -> (row, byte in the row)."""
        return {lane: divmod(at, self.pitch) for lane, at in self.request.taking_part().items()}


def _load(seen: pd.DataFrame, operator: str, impl: str, buffer: str) -> _Load:
    """The first recorded load of a rung from a buffer."""
    case = next(case for case in study.traced() if (case.operator, case.impl) == (operator, impl))
    row = seen[(seen["case"] == case.id) & (seen["buffer"] == buffer) & (seen["access"] == "load")].iloc[0]
    across, size = (case.n, 4) if operator == "gemv" else (case.k, 2)
    return _Load(recorded(row), size * (across or 0))


def column_strip(seen: pd.DataFrame | None = None) -> Drawing:
    """What a block of 6_column_strips does: its warps read a strip of columns, each leaves a row of sums in
    shared memory, and a warp reads down a column of them. Lanes, rows and banks are those that the recorded
    CPU run touched.
    """
    rows = traces.read("gemv") if seen is None else seen
    rung = rung_of(gemv.LADDERS["gemv"], "6_column_strips", "6_column_strips")
    macros = rung.with_defaults({})
    warps, columns = macros["THREADS"] // _LANES, macros["COLUMNS"]
    load = _load(rows, "gemv", rung.name, "a")
    sums = _load(rows, "gemv", rung.name, "shared")
    places = load.places()
    wide, high = (len({place[part] for place in places.values()}) for part in (1, 0))
    found = sorted(sums.request.taking_part().values())
    pitch = (found[1] - found[0]) // 4  # floats from one row of sums to the next
    banks = len({at // 4 % BANKS for at in found})
    each = load.request.width // 4
    canvas = Canvas(_NARROW)
    # Left: the strip, lane by lane for the first warp.
    canvas.text(0, 12, f"1. {wide * each} columns of A", bold=True)
    canvas.text(0, 27, f"a cell: {each} columns, one lane", svg.SMALL)
    unit, tall, top = 152 / wide, 14.0, 36.0
    for lane, (row, byte) in places.items():
        x = byte // load.request.width * unit
        canvas.cell(x, top + row * tall, unit, tall, f"{lane}", shade(lane), 9)
    canvas.text(158, top + high * tall / 2 + 4, "warp 0", svg.SMALL)
    y = top + high * tall
    for warp in (1, warps - 1):
        if warp > 1:
            canvas.text(unit * wide / 2, y + 13, "…", svg.TEXT, "middle")
            y += 20
        name = f"rows {warp * high} to {(warp + 1) * high - 1}"
        canvas.cell(0, y, unit * wide, 24, name, PALE, 11)
        canvas.text(158, y + 16, f"warp {warp}", svg.SMALL)
        y += 24
    canvas.text(0, y + 18, f"Then the next {warps * high} rows, by", svg.SMALL)
    canvas.text(0, y + 32, "the same warps, to the last row.", svg.SMALL)
    canvas.text(0, y + 58, "2. Shuffles add up", bold=True)
    canvas.text(0, y + 73, f"the {high} rows of a warp.", bold=True)
    # Right: the table of sums.
    left, size = 226.0, 190.0 / max(pitch, 1)
    canvas.text(left, 12, f"3. sums[{warps}][{pitch}]", bold=True)
    canvas.text(left, 27, "a row a warp, in shared memory", svg.SMALL)
    canvas.cells([(left + c * size, top) for c in range(columns)], size, size, AMBER, 0.3)
    canvas.cells([(left, top + w * size) for w in range(1, warps)], columns * size, size, NONE, 0.15)
    canvas.cells([(left + c * size, top) for c in range(1, columns)], size, warps * size, NONE, 0.15)
    padding = [(left + c * size, top + w * size) for w in range(warps) for c in range(columns, pitch)]
    canvas.cells(padding, size, size, GREY, 0.3)
    canvas.cells([(left, top + w * size) for w in range(1, warps)], size, size, BLUE, 0.3)
    under = top + warps * size
    canvas.line([(left + size / 2, under + 2), (left + size / 2, under + 20)], end="arrow")
    canvas.text(left + 12, under + 16, "4. A warp reads down a", bold=True)
    canvas.text(left + 12, under + 31, "column and adds: one y.", bold=True)
    canvas.text(left + 12, under + 47, f"Its words lie in {counted(banks, 'bank')}.", svg.SMALL)
    canvas.text(left + 12, under + 61, "Orange: what warp 0 left.", svg.SMALL)
    if pitch > columns:
        canvas.text(left + 12, under + 75, "Grey: padding.", svg.SMALL)
    says = (
        f"A block has {wide * each} columns and {counted(warps, 'warp')}. A load of a warp takes {high} rows "
        f"of them, {each} columns a lane; shuffles add up its rows, and it stores one row of a table with "
        f"{pitch} floats a row. Then a warp reads down a column of the table: its {len(found)} words lie in "
        f"{counted(banks, 'bank')}."
    )
    return single("One block of 6_column_strips", says, canvas)


def rows_and_columns(seen: pd.DataFrame | None = None) -> Drawing:
    """The same product from A [k, n], a column an output, and from its transpose W [n, k], a row an output:
    where the lanes of a warp stand in their first load, in the first coalesced kernel of each.
    """
    rows = traces.read("gemv") if seen is None else seen
    canvas, said = Canvas(_NARROW), []
    panels = (
        ("gemv", "2_coalesced", "a", "A [k, n], as in lesson 03"),
        ("gemv_rows", "1_warp", "w", "W [n, k]"),
    )
    across, down, size = 36, 24, 5.5
    for place, (operator, impl, buffer, name) in enumerate(panels):
        load = _load(rows, operator, impl, buffer)
        left, top, by_row = 228.0 * place, 40.0, operator == "gemv_rows"
        places = {lane: (row, byte // load.request.width) for lane, (row, byte) in load.places().items()}
        sectors = len({at // SECTOR for at in load.request.taking_part().values()})
        canvas.text(left, 12, name, bold=True)
        canvas.text(left, 27, f"{'a row' if by_row else 'a column'} an output", svg.SMALL)
        canvas.cells([(left, top + k * size) for k in range(down)], across * size, size, NONE, 0.15)
        canvas.cells([(left + k * size, top) for k in range(across)], size, down * size, NONE, 0.15)
        one = (across * size, size) if by_row else (size, down * size)
        canvas.rect(left, top, *one, SKY, 0.4)  # the weights of the first output
        inside = [(row, column) for row, column in places.values() if row < down and column < across]
        canvas.cells(
            [(left + column * size, top + row * size) for row, column in inside], size, size, AMBER, 0.3
        )
        x, y = left + 2.5 * size, top + 3 * size
        canvas.line([(x, y), (x + 90, y) if by_row else (x, y + 90)], 1.8, end="arrow")
        words = f"{len(places)} lanes, {counted(sectors, 'sector')} a load"
        outputs = len({row if by_row else column for row, column in places.values()})
        work = "share an output" if outputs == 1 else f"have {counted(outputs, 'output')}"
        under = top + down * size
        canvas.text(left, under + 16, words, svg.SMALL)
        canvas.text(left, under + 31, f"The lanes {work}.", svg.SMALL)
        said.append(f"{name}: {words}; the lanes {work}")
    note = "Orange: the lanes of a warp. Blue: one output's weights. Arrow: where the lanes go next."
    for line in (note.partition(" Arrow")[0], "Arrow" + note.partition(" Arrow")[2]):
        canvas.text(0, canvas.height + 14, line, svg.SMALL)
    return single("One product, two ways to store its matrix", f"{'. '.join(said)}. {note}", canvas)


def pieces_of_rows(n: int, k: int, names: tuple[str, ...] = ("3_in_flight", "4_rows", "5_split")) -> Drawing:
    """For rungs of gemv_rows and a matrix [n, k], which warp reads which piece of the rows that a team shares
    and which pieces are in flight at first, by the constants that the launch rule picks for that shape. A
    piece is one load of a warp, 16 bytes a lane.
    """
    canvas, y, said = Canvas(_NARROW), 0.0, []
    pieces = -(-k // (8 * _LANES))
    drawn = min(pieces, 16)
    unit = _NARROW / drawn
    for name in names:
        rung = rung_of(gemv.LADDERS["gemv_rows"], name, name)
        macros = gemv.options_for(rung, n, k)
        unroll, rows, split = (macros.get(macro, 1) for macro in ("UNROLL", "ROWS", "SPLIT"))
        canvas.text(0, y + 12, f"Rung {name.partition('_')[0]}", bold=True)
        who = (
            f"{counted(split, 'warp')} on {counted(rows, 'row')}, {counted(unroll, 'load')} of each row first"
        )
        canvas.text(56, y + 12, who, svg.SMALL)
        y += 20
        for _ in range(rows):
            for piece in range(drawn):
                warp, turn = piece // unroll % split, piece // (unroll * split)
                canvas.cell(piece * unit, y, unit, 18, f"{warp}", BLUE if turn == 0 else PALE, 10)
            y += 18
        flying = rows * min(unroll * split, pieces)
        size = flying * _LANES * 16 / 1024
        text = f"in flight: {flying} of {rows * pieces} pieces, {size:g} KiB for {counted(rows, 'row')}"
        canvas.text(0, y + 14, text, svg.SMALL)
        y += 32
        said.append(f"rung {name.partition('_')[0]}: {who}; {text}")
    notes = "A cell: one load by a warp, 512 bytes; its number: the warp in the team. Dark: asked for first."
    for line in (notes.partition(" Dark")[0], "Dark" + notes.partition(" Dark")[2]):
        canvas.text(0, y + 10, line, svg.SMALL)
        y += 15
    if drawn < pieces:
        canvas.text(0, y + 10, f"The first {drawn} of {pieces} pieces of a row are drawn.", svg.SMALL)
    return single(f"Who reads which piece of a row, {n:,} × {k:,}", "; ".join(said) + ".", canvas)
