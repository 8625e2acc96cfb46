"""A prompt without a graph, as predicted and as measured: what the host calls and what the GPU works."""

from __future__ import annotations

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, PALE, SKY, Canvas, Drawing, single

_LEFT = 48.0


def host_and_gpu(
    name: str, predicted: tuple[float, float, float], measured: tuple[float, float, float | None]
) -> Drawing:
    """Host and GPU as two bars, twice. `predicted`: ms of the embeddings' calls, of all other calls, and of
    the GPU's work beside them; `measured`: ms of the embeddings, of all after them, and of the GPU's work in
    that where it is known.
    """
    first, calls, work = predicted
    took, after, busy = measured
    if min(first, calls, work, took, after) < 0:
        raise UsageError("Times are drawn from 0 on.")
    thought, real = max(first + calls, work), took + after
    canvas = Canvas()
    unit = (svg.WIDTH - _LEFT - 4) / max(thought, real)

    def bar(y: float, start: float, long: float, words: tuple[str, ...], fill: str) -> None:
        """A box with the longest of the words that fit into it."""
        room = long * unit - 8
        fits = next((each for each in words if svg.wide(each, svg.SMALL) <= room), "")
        canvas.cell(_LEFT + start * unit, y, max(long * unit - 1, 1), 22, fits, fill, svg.SMALL)

    canvas.text(0, 12, f"Predicted for {name}: the longer of the two, {thought:.1f} ms", bold=True)
    canvas.text(0, 35, "host")
    bar(20, 0, first, (f"embeddings, {first:.1f} ms", f"{first:.1f}"), SKY)
    bar(20, first, calls, (f"other calls, {calls:.1f} ms", f"{calls:.1f}"), PALE)
    canvas.text(0, 61, "GPU")
    bar(46, 0, work, (f"all its work, {work:.1f} ms", f"{work:.1f}"), AMBER)
    canvas.text(0, 100, f"Measured: one after the other, {real:.1f} ms", bold=True)
    canvas.text(0, 123, "host")
    bar(108, 0, took, (f"embeddings, one call a token: {took:.1f} ms", f"{took:.1f}"), SKY)
    bar(108, took, after, (f"all else, {after:.1f} ms", f"{after:.1f}"), PALE)
    canvas.text(0, 149, "GPU")
    bar(134, 0, took, ("waits for calls; an embedding is a short kernel",), GREY)
    said = f"its work in {after:.1f} ms" if busy is None else f"its work: {busy:.1f} ms as one graph"
    bar(134, took, after, ("layers",), AMBER)
    if busy is not None:
        words = f"layers: {busy:.1f} ms of work, as 6_graph shows, between calls of the host"
        canvas.text(svg.WIDTH - 4, 176, words, svg.SMALL, "end")
    says = (
        f"Predicted for {name}: the host's calls take {first:.1f} ms for embeddings and {calls:.1f} for all "
        f"else, the GPU's work {work:.1f} beside them; the longer is {thought:.1f}. Measured: embeddings "
        f"take {took:.1f} ms, and all else, which starts after them, {after:.1f} ({said}): {real:.1f} "
        "together."
    )
    return single("A prediction that failed: host and GPU", says, canvas)
