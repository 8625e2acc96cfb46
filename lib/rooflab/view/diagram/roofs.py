"""Where a device's roofs lie: the links that data crosses, and the FLOP it could do while a byte arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.hardware import roofline
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, PALE, Canvas, Drawing, single
from rooflab.words import listed

_MATRIX = 4096  # rows and columns of the product whose FLOP a byte are marked
_BAND = 56.0  # height of the fastest link
_THINNEST = 2.0  # height at which a link can still be seen
_CELL, _ROW, _LEFT = 5.6, 10.0, 118.0


class Link(NamedTuple):
    """A link of the path: where it begins, its rate in GB/s (0: not measured), what was measured on it, and
    whether that is its roof or only what it gives `at_least`.
    """

    begins: str
    gb_s: float
    what: str
    at_least: bool = False


class Peak(NamedTuple):
    """A peak of arithmetic: its name, TFLOP/s, and the bytes of one of its numbers."""

    name: str
    tflop_s: float
    bytes: int


PEAKS = {"fp32": ("FP32", 4), "fp16_tensor": ("FP16 tensor", 2), "fp8_tensor": ("FP8 tensor", 1)}


def peaks(roofs: Mapping[str, float]) -> list[Peak]:
    """The peaks among measured roofs that are drawn, as PEAKS orders them."""
    return [Peak(words, roofs[name], size) for name, (words, size) in PEAKS.items() if name in roofs]


def path_of_bytes(links: Sequence[Link], ends: str, dram: float, tops: Sequence[Peak]) -> Drawing:
    """The path of data, each link as thick as its rate, to what it `ends` at; below it, what each peak can do
    while `dram` GB/s bring one byte, and what a product for one token asks of that. UsageError without links.
    """
    links = [each for each in links if each.gb_s > 0]
    if not links:
        raise UsageError("A path is drawn of at least one measured link.")
    canvas, count = Canvas(), len(links)
    box = 84.0
    gap = (svg.WIDTH - (count + 1) * box) / count
    most, middle = max(each.gb_s for each in links), 20 + _BAND / 2
    for k, name in enumerate([*(each.begins for each in links), ends]):
        canvas.cell(k * (box + gap), 14, box, _BAND + 12, name, GREY, 14)
    for k, each in enumerate(links):
        x, high = k * (box + gap) + box, max(_THINNEST, each.gb_s / most * _BAND)
        rate = f"{each.gb_s:,.0f} GB/s"
        if each.at_least:  # hatched: what it gives at most is not known
            stripes = max(1, int(gap // 8))
            canvas.cells([(x + 8 * n, middle - high / 2) for n in range(stripes)], 4, high, BLUE, 0)
            rate = f"≥ {rate}"
        else:
            canvas.rect(x, middle - high / 2, gap, high, BLUE, 0)
        canvas.text(x + gap / 2, 11, rate, svg.SMALL, "middle", bold=True)
        canvas.text(x + gap / 2, 36 + _BAND, each.what, svg.SMALL, "middle")
    wider = [each.what for each in links if each.gb_s / most * _BAND < _THINNEST]
    notes = [f"Drawn wider than to scale: {listed(wider)}."] if wider else []
    if any(each.at_least for each in links):
        notes.append("Striped: reached, but its roof was not measured.")
    if notes:
        canvas.text(0, canvas.height + 18, " ".join(notes), svg.SMALL)
    said = [f"{each.what} {'at least ' if each.at_least else ''}{each.gb_s:,.0f} GB/s" for each in links]
    says = f"Data crosses {' → '.join([*(each.begins for each in links), ends])}: {', '.join(said)}."
    if tops:
        says += f" {_while_a_byte_arrives(canvas, dram, tops)}"
    return single("Which link each roof belongs to", says, canvas)


def _while_a_byte_arrives(canvas: Canvas, dram: float, tops: Sequence[Peak]) -> str:
    """Draw the FLOP that each peak can do in that time, a cell each; the words."""
    y = canvas.height + 26
    canvas.text(0, y, "While DRAM brings one byte, the SMs could do so many FLOP:", bold=True)
    y += 12
    per_line = int((svg.WIDTH - _LEFT) / _CELL)
    said = []
    for peak in tops:
        ridge = roofline.ridge(dram, peak.tflop_s)
        whole = round(ridge)
        shape = (1, _MATRIX, _MATRIX)
        asks = roofline.intensity(roofline.gemm_flops(*shape), roofline.gemm_bytes(*shape, peak.bytes))
        canvas.text(0, y + 9, peak.name, svg.SMALL)
        canvas.text(_LEFT - 10, y + 9, f"{ridge:,.0f}", svg.SMALL + 1, "end", bold=True)
        places = [(_LEFT + n % per_line * _CELL, y + n // per_line * _ROW) for n in range(whole)]
        canvas.cells(places, _CELL, _ROW, PALE)
        canvas.bars([(_LEFT, y, min(asks, ridge) * _CELL)], _ROW, AMBER)
        y += (max(1, -(-whole // per_line))) * _ROW + 9
        said.append(f"{ridge:,.0f} FLOP in {peak.name}, of which a product for one token asks {asks:.2g}")
    canvas.cell(0, y + 2, 13, 13, "", AMBER)
    canvas.text(19, y + 13, "what a product for one token asks of them: the rest stays idle")
    return f"While DRAM brings one byte, the SMs could do {'; '.join(said)}."
