"""Where ticks and labels of a figure stand, so that none runs into another."""

import itertools
import math
from collections.abc import Iterable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.view.captions import size_text


def figure_of(ax: Axes) -> Figure:
    fig = ax.get_figure(root=True)
    assert fig is not None
    return fig


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted` that keep their order, at least `gap` apart and, if they fit, in [low, high].

    Neighbours that collide move as one block centred on what its members wanted (pool adjacent violators).
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    span = gap * (len(order) - 1)
    high = max(high, low + span)
    blocks: list[list[float]] = []  # [sum of (wanted - own offset in the block), members]
    for i in order:
        blocks.append([min(max(wanted[i], low), high), 1])
        while len(blocks) > 1:
            (s0, n0), (s1, n1) = blocks[-2], blocks[-1]
            if s1 / n1 - s0 / n0 >= gap * n0:
                break
            blocks[-2:] = [[s0 + s1 - gap * n0 * n1, n0 + n1]]
    result = [0.0] * len(wanted)
    members = iter(order)
    floor = low
    starts: list[tuple[float, int]] = []
    for s, n in blocks:
        start = max(s / n, floor)
        starts.append((start, int(n)))
        floor = start + gap * n
    ceiling = high
    for j in range(len(starts) - 1, -1, -1):
        start, count = starts[j]
        start = min(start, ceiling - gap * (count - 1))
        starts[j] = (start, count)
        ceiling = start - gap
    for start, count in starts:
        for k in range(count):
            result[next(members)] = start + gap * k
    return result


def size_ticks(ax: Axes, sizes: Iterable[float], *, axis: str = "x") -> None:
    """Put a tick at every measured size (bytes) and nowhere else, labelled `4 KiB`, `16 MiB`, `1 GiB`.

    Where labels would run into each other, every second, third, ... one is written; the largest size always
    is. Call it after the series are drawn.
    """
    values = sorted({float(s) for s in sizes})
    if not values:
        raise UsageError("size_ticks got no sizes; pass the measured sizes in bytes.")
    scale = ax.xaxis if axis == "x" else ax.yaxis
    scale.set_minor_locator(matplotlib.ticker.NullLocator())
    labels = [size_text(v) for v in values]
    scale.set_ticks(values, labels)
    figure_of(ax).draw_without_rendering()
    k = 0 if axis == "x" else 1
    points = np.column_stack([values, values])
    at = 0.85 * ax.transData.transform(points)[:, k]  # labels at the lines' ends may still narrow the axes
    extents = [tick.label1.get_window_extent() for tick in scale.get_major_ticks()]
    lengths = [e.width + 14 if axis == "x" else e.height for e in extents]
    for step in itertools.count(1):
        kept = list(range(len(values) - 1, -1, -step))[::-1]
        if all(at[j] - at[i] >= (lengths[i] + lengths[j]) / 2 for i, j in itertools.pairwise(kept)):
            break
    scale.set_ticks(values, [label if i in kept else "" for i, label in enumerate(labels)])


def round_ticks(ax: Axes, axis: str = "y", steps: Sequence[float] = (1, 2, 5)) -> None:
    """Ticks at `steps` times the powers of ten that lie within a logarithmic axis, written in full; at the
    powers alone where those would be more than ten.
    """
    target = ax.yaxis if axis == "y" else ax.xaxis
    low, high = sorted(ax.get_ylim() if axis == "y" else ax.get_xlim())
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [value for power in powers for step in steps if low <= (value := step * 10.0**power) <= high]
    if len(ticks) > 10:
        ticks = [10.0**power for power in powers if low <= 10.0**power <= high]
    target.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    target.set_major_formatter(matplotlib.ticker.FixedFormatter([f"{value:,.10g}" for value in ticks]))
    target.set_minor_locator(matplotlib.ticker.NullLocator())
