"""What becomes of the bytes that a kernel could keep in flight: thread slots, those filled, loads
under way.
"""

from __future__ import annotations

from typing import NamedTuple

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single


class Held(NamedTuple):
    """A kernel's bytes in flight on an SM: with every thread slot filled and loading, with the slots that
    were filled, and those that its rate needs by Little's law with the latency of an empty memory, the least
    that it has on average.
    """

    kernel: str
    most: float
    filled: float
    held: float


def bytes_held(need: float, one: Held, of_slots: str, of_rate: str) -> Drawing:
    """Bars of bytes on an SM: what the memory needs (`need`), and what is left of a kernel's; the last two
    have their words, such as "71% of the thread slots are filled".
    """
    rows = (
        ("the memory needs", need, "bandwidth × latency", GREY),
        ("all slots loading", one.most, "every thread slot filled, its load under way", SKY),
        ("slots filled", one.filled, of_slots, SKY),
        ("its rate needs", one.held, of_rate, AMBER),
    )
    canvas, left = Canvas(), 138.0
    unit = (svg.WIDTH - left - 62) / max(value for _, value, _, _ in rows)
    for k, (name, value, words, fill) in enumerate(rows):
        y = 46.0 * k
        canvas.text(left - 8, y + 16, name, anchor="end", bold=k in (0, 3))
        canvas.rect(left, y, value * unit, 22, fill)
        canvas.text(left + value * unit + 6, y + 16, f"{value / 1024:.1f} KiB", bold=True)
        canvas.text(left, y + 36, words, svg.SMALL)
    said = "; ".join(f"{name} {value / 1024:.1f} KiB, {words}" for name, value, words, _ in rows)
    return single(f"Bytes in flight on one SM, {one.kernel}", f"{said}.", canvas)
