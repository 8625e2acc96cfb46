"""What a CUDA graph changes: launches one by one, their capture, and its replay, from recorded times and the
launches of the chain that was timed."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rooflab.errors import UsageError
from rooflab.studies import q8_0_operands as operands
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, PALE, SKY, Canvas, Drawing, single

_SHOWN = 4  # launches: those of one layer


class Launch(NamedTuple):
    """A launch of the chain: its kernel, the buffer that it reads and the one that it writes."""

    kernel: str
    reads: str
    writes: str


def launches_of(products: list[tuple[str, tuple[int, int], str]]) -> list[Launch]:
    """A quantiser's launch before each product's, of q8_0_operands.chain_products."""
    found = []
    for reads, _, writes in products:
        found += [Launch("quantise", reads, f"{reads} int8"), Launch("product", f"{reads} int8", writes)]
    return found


def eager(call: float, kernel: float, count: int, first: float | None = None) -> list[tuple[float, float]]:
    """When `count` kernels start and end in us, where the host takes `call` for each launch, and `first` for
    the first one (None: as long): a kernel starts once its launch is made and the one before it has ended.
    """
    spans, end = list[tuple[float, float]](), 0.0
    for k in range(count):
        start = max((call if first is None else first) + k * call, end)
        end = start + kernel
        spans.append((start, end))
    return spans


def two_clocks(call: float, kernel: float, count: int = 4, first: float | None = None) -> Drawing:
    """What an event clock and a graph clock count of `count` launches of one kernel: the host takes `call` us
    for each, `first` us for the first (None: as long), and the GPU `kernel` us.
    """
    opens = call if first is None else first
    spans = eager(call, kernel, count, opens)
    canvas, left = Canvas(), 70.0
    unit = (svg.WIDTH - left - 4) / spans[-1][1]

    def bracket(y: float, start: float, end: float, words: str) -> None:
        """A line with marks at both ends: what one launch adds."""
        ends = [left + start * unit, left + end * unit - 1]
        canvas.line([(ends[0], y), (ends[1], y)], 1.6)
        for x in ends:
            canvas.line([(x, y - 5), (x, y + 5)], 1.6)
        canvas.text(ends[1], y + 16, words, svg.SMALL, "end")

    canvas.text(0, 12, "Event clock: two stamps around eager calls", bold=True)
    for y, name in ((22, "CPU"), (52, "GPU")):
        canvas.text(0, y + 15, name)
        canvas.line([(left, y + 24), (svg.WIDTH, y + 24)], 0.4)
    before = 0.0
    for k, (start, end) in enumerate(spans):
        at, takes = (opens + (k - 1) * call, call) if k else (0.0, opens)
        words = f"launch {k + 1}" + f": {opens:.0f} µs" * (k == 0 and opens > call)
        canvas.cell(left + at * unit, 24, takes * unit - 1, 20, words, SKY)
        if start > before:
            room = (start - before) * unit - 1  # for the word beside the box's edges
            canvas.cell(left + before * unit, 54, room, 20, "waits" if room > 29 else "", GREY)
        canvas.cell(left + start * unit, 54, (end - start) * unit - 1, 20, "kernel", AMBER)
        before = end
    period = spans[-1][1] - spans[-2][1]
    if opens > call:
        bracket(88, 0.0, spans[0][1], f"one token: {spans[0][1]:.0f} µs")
    bracket(88, spans[-2][1], spans[-1][1], f"each further launch adds {period:.0f} µs")
    canvas.text(0, 134, "Graph clock: the same launches, recorded and replayed", bold=True)
    canvas.text(0, 159, "GPU")
    canvas.line([(left, 168), (svg.WIDTH, 168)], 0.4)
    for k in range(count):
        canvas.cell(left + k * kernel * unit, 146, kernel * unit - 1, 20, "kernel", AMBER)
    bracket(180, (count - 1) * kernel, count * kernel, f"each further launch adds {kernel:.0f} µs")
    says = (
        f"{count} launches. One by one a launch takes {call:.0f} µs of the CPU"
        + f", the first {opens:.0f} µs," * (opens > call)
        + f" and its kernel {kernel:.0f} µs: between two stamps each further launch adds {period:.0f} µs. "
        f"Replayed as a graph it adds {kernel:.0f} µs."
    )
    return single("What two clocks count: a rough first model", says, canvas)


def capture(chain: pd.DataFrame) -> Drawing:
    """One layer's launches called one by one, captured, and replayed, from lesson 05c's rows of the chain:
    `way` ("bare", "as a graph"), `clock` and `each`, us a launch. Raises UsageError where one is missing.
    """
    us = chain.set_index(["way", "clock"])["each"]
    if ("bare", "wall") not in us.index or ("as a graph", "graph") not in us.index:
        raise UsageError("A capture is drawn of the chain's bare launches and of its graph; measure both.")
    call, kernel = float(us["bare", "wall"]), float(us["as a graph", "graph"])
    launches = launches_of(operands.chain_products(*operands.CHAIN, operands.LAYERS))[:_SHOWN]
    spans = eager(call, kernel, len(launches))
    canvas, left = Canvas(), 70.0
    unit = (svg.WIDTH - left - 4) / spans[-1][1]
    waits = max(0.0, 1 - kernel / call)  # from launch to launch

    def lanes(y: float) -> None:
        for at, name in ((y, "CPU"), (y + 30, "GPU")):
            canvas.text(0, at + 15, name)
            canvas.line([(left, at + 24), (svg.WIDTH, at + 24)], 0.4)

    canvas.text(
        0,
        12,
        f"Called one by one: {call:.1f} µs of the CPU for each launch; the GPU waits {waits:.0%}",
        bold=True,
    )
    lanes(22)
    for k, (launch, (start, end)) in enumerate(zip(launches, spans, strict=True)):
        canvas.cell(left + k * call * unit, 24, call * unit - 1, 20, f"launch {k + 1}", SKY)
        canvas.cell(left + start * unit, 54, (end - start) * unit - 1, 20, launch.kernel, AMBER)
        before = spans[k - 1][1] if k else 0.0
        if start > before:
            canvas.cell(left + before * unit, 54, (start - before) * unit - 1, 20, "waits", GREY)

    canvas.text(0, 108, "Captured, once: launches are written down, nothing runs", bold=True)
    step = (svg.WIDTH - left) / len(launches)
    canvas.text(0, 146, "graph")
    for k, launch in enumerate(launches):
        x = left + k * step
        canvas.cell(x, 120, step - 16, 20, launch.kernel, PALE, 12)
        canvas.cell(x, 140, step - 16, 20, f"{launch.reads} → {launch.writes}", svg.NONE)
        if k + 1 < len(launches):
            canvas.line([(x + step - 16, 140), (x + step - 1, 140)], 1.4, end="arrow")
    canvas.text(left, 176, "a node holds its kernel and the addresses of its buffers", svg.SMALL)

    canvas.text(0, 208, f"Replayed: one call, then {kernel:.1f} µs for each kernel", bold=True)
    lanes(218)
    canvas.cell(left, 220, 56, 20, "replay", BLUE)
    canvas.line([(left + 58, 232), (left + 66, 250)], 1.4, end="arrow")
    for k, launch in enumerate(launches):
        x = left + 66 + k * kernel * unit
        canvas.cell(x, 250, kernel * unit - 1, 20, launch.kernel, AMBER)
    canvas.text(
        0,
        290,
        "A kernel's length is the recorded mean of both kinds; that of the one call is not recorded.",
        svg.SMALL,
    )
    nodes = ", ".join(f"{each.kernel} ({each.reads} to {each.writes})" for each in launches)
    says = (
        f"{len(launches)} launches of a chain. One by one each takes {call:.1f} µs of the CPU and its kernel "
        f"{kernel:.1f} µs, so from launch to launch the GPU waits {waits:.0%} of the time. "
        f"Captured: {nodes}. Replayed by one call the kernels follow each other."
    )
    return single("A CUDA graph: capture once, replay often", says, canvas)
