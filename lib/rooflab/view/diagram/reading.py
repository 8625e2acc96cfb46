"""Who reads which weights, the warps of a block and the lanes of an instruction, and x beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.ops import Rung
from rooflab.studies import drawn
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import GREY, SKY, Canvas, Drawing, shade, single
from rooflab.view.diagram.tiles import places
from rooflab.words import counted

_PIECES = 8  # pieces of k that are drawn
_CODES = 8  # in a word
_NARROW = 430.0  # a width that fits a phone


class Part(NamedTuple):
    """How a block's warps divide its rows and k: `row_warps` bands of `rows` rows, k dealt to `k_warps`; and
    the rows for which x is read once.
    """

    row_warps: int
    rows: int
    k_warps: int
    x_once: int

    @property
    def high(self) -> int:
        """Rows of the block."""
        return self.row_warps * self.rows


def part_of(rung: Rung) -> Part:
    """How the block of an INT4 or Q8_0 rung divides its weights, by the constants that its source defaults to
    and, where these do not name the warps that divide k, by its loop.
    """
    macros = rung.with_defaults({})
    if "c += THREADS" in rung.path.read_text(encoding="utf-8"):  # all threads go along the same rows
        return Part(1, macros["ROWS"], macros["THREADS"] // svg.LANES, macros["ROWS"])
    bands = macros.get("ROW_WARPS", macros.get("THREADS", 32) // 32)
    rows = macros.get("ROWS", 16 * macros["TILES"] if "TILES" in macros else 1)
    deep = macros.get("K_WARPS", macros.get("WARPS", 1))
    return Part(bands, rows, deep, bands * rows if "ROW_WARPS" in macros else rows)


def warps_on_weights(rungs: Sequence[Rung]) -> Drawing:
    """The rows of one block of each rung, cut along k: the number in a piece is the warp that reads it."""
    parts = [part_of(rung) for rung in rungs]
    canvas, said = Canvas(_NARROW), []
    scale, width, top = 112 / max(part.high for part in parts), 190.0, 24.0
    for rung, part in zip(rungs, parts, strict=True):
        warps = part.row_warps * part.k_warps
        rung_named = f"Rung {rung.name.partition('_')[0]}: {counted(part.high, 'row')} of W, along k →"
        canvas.text(0, top - 8, rung_named, bold=True)
        pieces = _PIECES if part.k_warps > 1 else 1
        for band in range(part.row_warps):
            y, high = top + band * part.rows * scale, part.rows * scale
            for piece in range(pieces):
                warp = band + piece % part.k_warps * part.row_warps
                name = f"{warp}" if pieces > 1 else f"warp {warp}"
                fill = shade(warp, max(warps, 2))
                canvas.cell(piece * width / pieces, y, width / pieces, high, name, fill)
        beside = top + part.high * scale / 2
        each = f"{counted(part.rows, 'row')} a warp" + (", k divided" if part.k_warps > 1 else "")
        canvas.text(width + 12, beside - 3, each)
        canvas.text(width + 12, beside + 14, f"x is read once for {counted(part.x_once, 'row')}")
        top += max(part.high * scale, 36) + 34
        said.append(
            f"rung {rung.name.partition('_')[0]}: {counted(warps, 'warp')}, {counted(part.rows, 'row')} "
            f"each, k dealt to {part.k_warps}, x read once for {counted(part.x_once, 'row')}"
        )
    return single("Which warp of a block reads which weights", f"A block of {'; '.join(said)}.", canvas)


def x_beside_weights(rungs: Sequence[Rung], tokens: Sequence[int] = (1, 16)) -> Drawing:
    """The bytes of x that a block reads for those tokens beside the bytes of its INT4 weights, a bar each."""
    weight = WEIGHT_BYTES["int4_g128"]
    parts = {rung: part_of(rung).x_once for rung in rungs}
    most = max(2 * count / (rows * weight) for rows in parts.values() for count in tokens)
    canvas, left, y, said = Canvas(_NARROW), 164.0, 0.0, []
    unit = (_NARROW - left - 60) / (1 + most)
    for rung, rows in parts.items():
        for count in tokens:
            ratio = 2 * count / (rows * weight)
            name = f"rung {rung.name.partition('_')[0]}, {counted(rows, 'row')}, {counted(count, 'token')}"
            canvas.text(left - 8, y + 16, name, svg.SMALL, "end")
            canvas.cell(left, y, unit, 23, "weights", GREY)
            canvas.cell(left + unit, y, ratio * unit, 23, "x" if ratio * unit > 12 else "", SKY)
            canvas.text(left + (1 + ratio) * unit + 6, y + 16, f"x: {ratio:.0%}", svg.SMALL, bold=True)
            said.append(f"{name}: x adds {ratio:.0%}")
            y += 28
        y += 8
    canvas.text(0, y + 10, "Weights of a block = 100%; DRAM gives each to one block.", svg.SMALL)
    canvas.text(0, y + 26, "x comes from L2, all of it to every block; DRAM gives it to L2 once.", svg.SMALL)
    says = f"To the bytes of a block's weights, from DRAM: {'; '.join(said)}, from L2."
    return single("x as a share of a block's weights", says, canvas)


def weights_of_a_lane(lane: int = 5, rows: pd.DataFrame | None = None) -> Drawing:
    """The tile of weights of one mma instruction, which lane multiplies which of them, and in how many words
    those of one lane lie in the order of rows and after repacking.
    """
    held = places(drawn.read("fragments", "m16n8k16_f16") if rows is None else rows, "a")
    high, wide = max(r for r, _ in held) + 1, max(c for _, c in held) + 1
    canvas, left, size, tall = Canvas(), 54.0, 17.0, 15.0
    owners: dict[int, list[tuple[int, int]]] = {}
    for at, (owner, _) in held.items():
        owners.setdefault(owner, []).append(at)

    def runs(owner: int) -> list[tuple[int, int, int]]:
        """The lane's neighbours along k, (row, first column, count)."""
        mine = set(owners[owner])
        firsts = [(r, c) for r, c in sorted(mine) if (r, c - 1) not in mine]
        return [(r, c, next(n for n in range(1, wide + 1) if (r, c + n) not in mine)) for r, c in firsts]

    for owner in sorted(owners):
        for count in sorted({count for *_, count in runs(owner)}):
            corners = [(left + c * size, 17 + r * tall) for r, c, many in runs(owner) if many == count]
            canvas.cells(corners, count * size, tall, shade(owner))
            for x, y in corners:
                canvas.text(x + count * size / 2, y + 11, f"{owner}", 9, "middle", svg.on(shade(owner)))
    for r in (0, high - 1):
        canvas.text(left - 8, 28 + r * tall, f"row {r}", svg.SMALL, "end")
    canvas.text(left, 11, f"{wide} columns of k", svg.SMALL)
    for r, c, count in runs(lane):
        canvas.frame(left + c * size, 17 + r * tall, count * size, tall, 1.8)
    mine = sorted(owners[lane])
    words = len({(r, c // _CODES) for r, c in mine})
    after = -(-len(mine) // _CODES)
    x = left + wide * size + 20
    lines = [
        "A number is the lane that",
        "multiplies those weights.",
        "",
        f"Lane {lane}, framed: {len(mine)} weights.",
        f"In rows they lie in {counted(words, 'word')},",
        f"repacked in {counted(after, 'word')}.",
    ]
    for k, line in enumerate(lines):
        if line:
            canvas.text(x, 40 + 18 * k, line)
    says = (
        f"The {high} x {wide} weights of an mma: lane {lane} multiplies {len(mine)} of them, at "
        + ", ".join(f"({r}, {c})" for r, c in mine)
        + f". In the order of rows they lie in {counted(words, 'word')} of {_CODES} codes, repacked in "
        + f"{counted(after, 'word')}."
    )
    return single("Which lane needs which weights", says, canvas)
