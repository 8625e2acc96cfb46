"""Three ways to multiply by quantised weights, by what crosses the bus between memory and the SMs."""

from __future__ import annotations

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing, single

_WIDEST = 26.0  # of a stream, the largest of the three


def ways_to_multiply(fp16: float, fused: float, two_op: float) -> Drawing:
    """What FP16 weights, a fused and a two-op product read and write: `fp16`, `fused` and `two_op` are the
    megabytes that each moves in all. A stream between memory and kernel is as wide as it has bytes. What a
    two-op product moves beside the codes it writes once and reads once.
    """
    again = (two_op - fused) / 2
    canvas, left, unit = Canvas(), 0.0, _WIDEST / max(fp16, fused, again)
    whole = [(0.0, 1.0)]
    # What lies in memory, the kernels, where both are, and the streams: (place, megabytes, whether up).
    ways = (
        ("FP16", fp16, ["W in FP16"], ["multiply"], whole, whole, [(0.36, fp16, False)]),
        ("Fused", fused, ["codes"], ["unpack, multiply"], whole, whole, [(0.36, fused, False)]),
        (
            *("Two-op", two_op, ["codes", "W in FP16"], ["unpack", "multiply"]),
            *([(0.0, 0.33), (0.35, 1.0)], [(0.0, 0.58), (0.62, 1.0)]),
            [(0.1, fused, False), (0.42, again, True), (0.72, again, False)],
        ),
    )
    for name, moved, buffers, kernels, above, below, streams in ways:
        wide, top, bottom = 138.0 if len(kernels) == 1 else svg.WIDTH - left, 22.0, 104.0
        canvas.text(left, 12, f"{name}: {moved:,.1f} MB", bold=True)
        canvas.cell(left, top, wide, 15, "DRAM", NONE)
        for (start, end), what in zip(above, buffers, strict=True):
            canvas.cell(left + start * wide, top + 15, (end - start) * wide, 24, what, GREY, 12)
        for at, size, up in streams:
            x, across = left + at * wide, max(size * unit, 2.0)
            canvas.rect(x - across / 2, top + 39, across, bottom - top - 39, AMBER if up else SKY)
            canvas.text(x + across / 2 + 3, top + 64, f"{'↑' if up else '↓'} {size:,.1f}", svg.SMALL)
        for (start, end), what in zip(below, kernels, strict=True):
            canvas.cell(left + start * wide, bottom, (end - start) * wide, 26, what, BLUE, 12)
        left += wide + 16
    y = canvas.height + 18
    canvas.text(0, y, "↓ read, ↑ written, in MB. Fused: no FP16 weight ever reaches memory.")
    says = (
        f"Megabytes moved: FP16 weights {fp16:,.1f}, fused {fused:,.1f}, two-op {two_op:,.1f}. The fused "
        "kernel reads codes and unpacks them in registers. The two-op product reads the codes, writes "
        f"{again:,.1f} MB of FP16 weights to memory, and a second kernel reads these again."
    )
    return single("Who writes what to memory", says, canvas)
