"""Warps' load instructions for the same bytes: many narrow requests beside one wide one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, SKY, Canvas, Drawing, single
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
