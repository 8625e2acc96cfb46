"""Where one lane's Q8_0 weights lie: apart in rows, and next to each other in tile order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rooflab.numerics.quant import BLOCK, Planes
from rooflab.ops import q8_0
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, PALE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_TILE = 64  # rows, and columns of k, of a piece in tile order
_SCALES = 256  # bytes of scales ahead of a piece's weights
_SHARE = 16  # bytes of a lane's load
_NARROW = 430.0  # a width that fits a phone


def places(repack: Callable[[Planes], Any] = q8_0.repack) -> list[tuple[int, int]]:
    """(row, column of k) of each weight of a 64 x 64 tile in the order in which `repack` stores them, found
    by repacking a tile whose weights are their rows, and one whose weights are their columns.
    """
    number = np.arange(_TILE, dtype=np.int8)
    scales = np.ones((_TILE, _TILE // BLOCK), np.float16)
    rows, columns = (
        repack(Planes(scales, np.ascontiguousarray(codes))).blocks.view(np.uint8).reshape(-1)[_SCALES:] ^ 128
        for codes in (np.tile(number[:, None], (1, _TILE)), np.tile(number, (_TILE, 1)))
    )
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def tile_order(lane: int = 5, repack: Callable[[Planes], Any] = q8_0.repack) -> Drawing:
    """The weights that a lane needs of 16 rows by 32 of k, as rows hold them and as `repack` stores them."""
    stored = places(repack)
    mine = stored[_SHARE * lane : _SHARE * (lane + 1)]
    here, wide = set(mine), BLOCK
    high = 1 + max(row for row, _ in stored[: _SHARE * svg.LANES])
    runs = [(r, c) for r, c in sorted(mine) if (r, c - 1) not in here]
    long = len(mine) // len(runs)
    canvas, left, size, tall = Canvas(_NARROW), 46.0, 12.0, 11.0
    canvas.text(0, 11, f"In rows: {high} rows × {wide} of k", bold=True)
    top = 20.0
    canvas.grid(left, top, wide, high, size, tall, PALE)
    canvas.cells([(left + c * size, top + r * tall) for r, c in mine if c < wide], size, tall, AMBER)
    for row in (0, high - 1):
        canvas.text(left - 6, top + row * tall + 9, f"row {row}", svg.SMALL, "end")
    y = top + high * tall + 17
    canvas.text(left, y, f"Lane {lane} needs the marked ones: {len(runs)} loads of {counted(long, 'byte')}.")
    y += 30
    canvas.text(0, y, f"In tile order: {_SHARE} bytes for each of {svg.LANES} lanes", bold=True)
    y += 8
    box = wide * size / svg.LANES
    canvas.boxes(
        [
            (left + each * box, y, box, 18, f"{each}", AMBER if each == lane else SKY)
            for each in range(svg.LANES)
        ],
        8,
    )
    y += 18
    first, last = left, left + wide * size
    canvas.line([(left + lane * box, y), (first, y + 20)], dashed=True)
    canvas.line([(left + (lane + 1) * box, y), (last, y + 20)], dashed=True)
    y += 20
    cell = wide * size / _SHARE
    boxes = [(left + k * cell, y, cell, 20, f"{row},{column}", AMBER) for k, (row, column) in enumerate(mine)]
    canvas.boxes(boxes, 9)
    canvas.text(left - 6, y + 14, "row,k", svg.SMALL, "end")
    canvas.text(left, y + 37, f"One load of {_SHARE} bytes brings all that lane {lane} needs.")
    says = (
        f"Of {high} rows by {wide} of k lane {lane} needs {len(mine)} weights. In rows they lie in "
        f"{len(runs)} places of {counted(long, 'byte')}; in tile order they are {_SHARE} neighbouring bytes: "
        + ", ".join(f"({r}, {c})" for r, c in mine)
        + "."
    )
    return single("Where one lane's weights lie", says, canvas, lean=True)
