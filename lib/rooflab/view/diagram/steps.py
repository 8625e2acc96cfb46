"""The launches of half a layer as they follow each other, by each way to run a model: who waits for whom."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rooflab.analysis import time_breakdown
from rooflab.profile import parts
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, SKY, Canvas, Drawing, single
from rooflab.words import counted

_LEFT, _HIGH = 56.0, 24.0
_MOST = 12  # launches behind the last product that may still belong to the half layer


class Kernel(NamedTuple):
    """A launch of the half layer: the product's name or "", when it starts, and how long it runs, in us."""

    name: str
    start: float
    us: float


def half_layer(trace: pd.DataFrame, layer: int) -> list[Kernel]:
    """The launches of one traced case from the layer's product `gate` up to the next norm or product; empty
    where the trace does not name them.
    """
    line = time_breakdown.timeline(trace)
    products = line["class"] == "weight"
    first, last = (line.index[products & (line["part"] == name)] for name in ("gate", "down"))
    if len(first) <= layer or len(last) <= layer or last[layer] < first[layer]:
        return []
    end = int(last[layer]) + 1
    ends = products | (line["class"] == "norm") | (line["part"] == "norm")
    while end < min(len(line), int(last[layer]) + _MOST) and not ends[end]:
        end += 1
    rows = line.iloc[int(first[layer]) : end]
    names = rows["part"].where(rows["class"] == "weight", "")
    starts, lengths = (rows[name].astype(float).tolist() for name in ("start_us", "us"))
    return [Kernel(name, at - starts[0], us) for name, at, us in zip(names, starts, lengths, strict=True)]


def half_layers(trace: pd.DataFrame, busy: pd.DataFrame, layer: int) -> Drawing | None:
    """Half a layer by each way, on one scale: `trace` are the launches of one context, `busy` their rows of
    time_breakdown.busy by way. Eager kernels begin when their launch is made and the one before has ended.
    None where the trace does not name the eager products.
    """
    found: dict[str, list[Kernel]] = {}
    for way in busy.index:
        found[str(way)] = half_layer(trace[trace["variant"] == way], layer)
    if not found.get("eager"):
        return None
    call = float(busy["wall_per_launch_us"]["eager"])
    spans = eager_spans(found["eager"], call)
    canvas, y, said = Canvas(), 0.0, list[str]()
    unit = (svg.WIDTH - _LEFT - 2) / max(
        [spans[-1][1]]  # eager's traced starts are the profiler's, and not drawn
        + [each[-1].start + each[-1].us for way, each in found.items() if each and way != "eager"]
    )
    for way, kernels in found.items():
        if not kernels:
            continue
        slow = way == "eager"
        at = spans if slow else [(kernel.start, kernel.start + kernel.us) for kernel in kernels]
        takes, works = at[-1][1], sum(kernel.us for kernel in kernels)
        words = f"{way}: {counted(len(kernels), 'kernel')} in {takes:.0f} µs; the GPU works {works:.0f} µs"
        canvas.text(0, y + 12, words, bold=True)
        y += 20
        canvas.text(0, y + 16, "CPU")
        for k in range(len(kernels) if slow else 0):
            canvas.cell(_LEFT + k * call * unit, y, call * unit - 1, _HIGH, f"launch {k + 1}", SKY)
        if not slow:
            canvas.text(_LEFT, y + 16, f"one call started the token's {_all(busy, way)} kernels")
        y += _HIGH + 6
        canvas.text(0, y + 16, "GPU")
        before = 0.0
        for (start, end), kernel in zip(at, kernels, strict=True):
            if slow and start > before:
                room = (start - before) * unit - 1
                canvas.cell(_LEFT + before * unit, y, room, _HIGH, "waits" if room > 34 else "", GREY)
            fill = BLUE if kernel.name in parts.WEIGHTS else AMBER
            canvas.cell(
                _LEFT + start * unit, y, max(1.0, (end - start) * unit - 0.6), _HIGH, kernel.name, fill
            )
            before = end
        y += _HIGH + 20
        said.append(f"{way} {counted(len(kernels), 'kernel')} in {takes:.0f} µs, {works:.0f} of them at work")
    _key(canvas, y)
    says = f"The end of a layer, from its product gate on: {'; '.join(said)}. Eager, each launch "
    says += f"takes the CPU {call:.1f} µs, and the GPU "
    says += "waits for it." if works_less(found["eager"], call) else "does not wait for all of them."
    return single("From gate to the end of a layer: who waits for whom, to scale", says, canvas)


def _all(busy: pd.DataFrame, way: str) -> str:
    return f"{int(busy['launches'][way]):,}"


def eager_spans(kernels: list[Kernel], call: float) -> list[tuple[float, float]]:
    """When kernels start and end, where the host takes `call` us for each launch."""
    spans, end = list[tuple[float, float]](), 0.0
    for k, kernel in enumerate(kernels):
        start = max((k + 1) * call, end)
        end = start + kernel.us
        spans.append((start, end))
    return spans


def works_less(kernels: list[Kernel], call: float) -> bool:
    """Whether each kernel is shorter than its launch."""
    return all(kernel.us < call for kernel in kernels)


def _key(canvas: Canvas, y: float) -> None:
    x = 0.0
    for fill, words in ((BLUE, "weight product"), (AMBER, "other kernel"), (GREY, "the GPU waits")):
        canvas.cell(x, y, 13, 13, "", fill)
        canvas.text(x + 19, y + 11, words)
        x += 150
