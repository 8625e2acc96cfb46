"""How INT4 weights lie in memory once they are repacked, by the constants of the kernels' header."""

from __future__ import annotations

import re
from pathlib import Path

from rooflab.numerics.quant import GROUP
from rooflab.paths import KERNELS
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, Canvas, Drawing, shade, single

_INT4 = KERNELS / "common" / "int4.cuh"
_NARROW = 430.0  # a width that fits a phone
_TALL = 16  # rows of a tile, those of an mma
_HALVES = 2  # 16-byte loads of a lane for a tile
_WORDS = 4  # of a load


def weight_block(file: Path = _INT4) -> Drawing:
    """A repacked block of weights: its tiles, where they lie in memory, and a lane's load of one of them."""
    text = file.read_text(encoding="utf-8")
    block, scales, rows = (
        int(re.search(rf"\b{name} = (\d+)", text)[1])  # type: ignore[index]
        for name in ("INT4_BLOCK", "INT4_SCALES", "INT4_TILE")
    )
    tiles, deep = rows // _TALL, GROUP // _HALVES
    each = (block - scales) // (tiles * _HALVES)
    canvas, left, wide, tall = Canvas(_NARROW), 58.0, 264.0, 22.0
    canvas.text(0, 12, f"{rows} rows (INT4_TILE) × {GROUP} of k, the group of a scale", bold=True)
    y = 20.0
    for tile in range(tiles):
        canvas.text(left - 8, y + 15, f"tile {tile}", svg.SMALL, "end")
        for half in range(_HALVES):
            name, fill = f"{_TALL} rows × {deep} of k", shade(_HALVES * tile + half, tiles * _HALVES)
            canvas.cell(left + half * wide / _HALVES, y, wide / _HALVES, tall, name, fill, svg.SMALL)
        y += tall
    y += 30
    canvas.text(0, y, f"In memory: {block} pieces of 16 bytes (INT4_BLOCK)", bold=True)
    y += 8
    unit = (_NARROW - 2) / block
    canvas.cell(0, y, scales * unit, 24, "", AMBER)
    for k in range(tiles * _HALVES):
        name = f"tile {k // _HALVES}" if k % _HALVES == 0 else ""
        fill = shade(k, tiles * _HALVES)
        canvas.cell((scales + k * each) * unit, y, each * unit, 24, name, fill, svg.SMALL)
    y += 40
    canvas.text(
        0, y, f"First {scales} pieces of scales (INT4_SCALES), then {each} for each half tile.", svg.SMALL
    )
    y += 30
    canvas.text(0, y, f"One piece: what one of {each} lanes loads at once", bold=True)
    y += 8
    for word in range(_WORDS):
        name = f"word {word}: {deep // _WORDS} of k"
        canvas.cell(word * (_NARROW - 2) / _WORDS, y, (_NARROW - 2) / _WORDS, 24, name, GREY, svg.SMALL)
    y += 40
    canvas.text(
        0,
        y,
        f"A word: eight codes, the lane's share of one mma, {_TALL} rows × {deep // _WORDS} of k.",
        svg.SMALL,
    )
    says = (
        f"A block of {rows} rows by {GROUP} of k has {tiles} tiles of {_TALL} rows. In memory it takes "
        f"{block} pieces of 16 bytes: {scales} of scales, then {each} for each half of a tile, one a lane. A "
        f"piece is {_WORDS} words; a word has eight codes, a lane's share of one mma."
    )
    return single("A weight block, repacked", says, canvas)
