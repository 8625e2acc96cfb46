"""Warps' load instructions: many narrow requests beside one wide one, and the sectors that requests touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rooflab.view.access_diagram import SECTOR, Request
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, shade, single
from rooflab.words import counted


class Width(NamedTuple):
    """A kernel, the bytes that a lane loads with one instruction, and what its rate is, in words or ""."""

    name: str
    lane_bytes: int
    rate: str = ""


def warp_requests(widths: Sequence[Width]) -> Drawing:
    """The warps, each with one request, that load as many bytes as the widest of them: a row a kernel, a cell
    a lane.
    """
    canvas, said = Canvas(), []
    whole = svg.LANES * max(one.lane_bytes for one in widths)
    unit = (svg.WIDTH - 24) / whole
    for row, one in enumerate(widths):
        y, each = row * 88.0, svg.LANES * one.lane_bytes
        times = whole // each
        lanes = f"{svg.LANES} lanes × {one.lane_bytes} = {each} bytes"
        words = f"{counted(times, 'warp')}, a request of {lanes} each"
        canvas.text(0, y + 12, f"{one.name}: {words}", bold=True)
        for k in range(times):
            x, lane = k * (each * unit + 8), one.lane_bytes * unit
            places = [(x + n * lane, y + 20) for n in range(svg.LANES)]
            canvas.cells(places, lane, 22, SKY if k % 2 else AMBER)
            canvas.text(x, y + 55, f"warp {k + 1}", svg.SMALL)
        if one.rate:
            canvas.text(0, y + 70, one.rate, svg.SMALL)
        said.append(f"{one.name} needs {words}" + (f"; {one.rate}" if one.rate else ""))
    return single(
        f"{whole} bytes of one array, by narrow loads and by wide ones", "; ".join(said) + ".", canvas
    )


def lanes_in_sectors(requests: Sequence[Request]) -> Drawing:
    """Requests side by side: a row a sector that is touched, its bytes by the lanes that asked for them."""
    canvas, said = Canvas(), []
    wide = (svg.WIDTH - 24.0 * (len(requests) - 1)) / len(requests)
    for place, one in enumerate(requests):
        left = place * (wide + 24) + 40
        unit, used = (wide - 42) / SECTOR, one.bytes_used()
        words = f"{used} bytes of {counted(len(one.sectors()), 'sector')}"
        canvas.text(left - 40, 12, one.what, bold=True)
        canvas.text(left - 40, 28, words, svg.SMALL)
        rows = {sector: 36 + 18.0 * row for row, sector in enumerate(one.sectors())}
        boxes = [(left, y, SECTOR * unit, 18.0, "", GREY) for y in rows.values()]
        for lane, first in one.taking_part().items():
            at, end = first, first + one.width
            while at < end:  # a piece for each sector that the lane's bytes lie in
                piece = min(end - at, SECTOR - at % SECTOR)
                x = left + at % SECTOR * unit
                boxes.append((x, rows[at // SECTOR], piece * unit, 18.0, f"{lane}", shade(lane)))
                at += piece
        for sector, y in rows.items():
            canvas.text(left - 6, y + 13, f"{sector * SECTOR}", svg.SMALL, "end")
        canvas.boxes(boxes)
        said.append(f"{one.what}: {counted(len(one.taking_part()), 'lane')} ask for {words}")
    below = (
        f"A row: a sector of {SECTOR} bytes, from the byte beside it; numbers: lanes; grey: not asked for."
    )
    canvas.text(0, canvas.height + 18, below, svg.SMALL)
    return single(
        "What the lanes of a warp ask for, and the sectors that it lies in", "; ".join(said) + ".", canvas
    )
