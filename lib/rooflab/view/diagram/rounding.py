"""One sum in two orders: each addition is rounded to FP16, so the orders end on different numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, SKY, Canvas, Drawing, single

NUMBERS = (1.0, 0.0007, 0.0007, 0.0007)


def partial_sums(numbers: Sequence[float]) -> list[float]:
    """The first of some numbers and the sums after each addition from the left, all rounded to FP16."""
    found = [np.float16(numbers[0])]
    for number in numbers[1:]:
        found.append(np.float16(found[-1] + np.float16(number)))
    return [float(each) for each in found]


def two_orders(numbers: Sequence[float] = NUMBERS) -> Drawing:
    """The sum of `numbers` from the left and from the right: each step, and where the two end on the line of
    FP16 numbers, beside the exact sum.
    """
    exact = math.fsum(numbers)
    chains = {"from the left": partial_sums(numbers), "from the right": partial_sums(numbers[::-1])}
    ends = [chain[-1] for chain in chains.values()]
    ticks = [np.nextafter(np.float16(min(exact, *ends)), np.float16(-np.inf))]
    while float(ticks[-1]) <= max(exact, *ends):
        ticks.append(np.nextafter(ticks[-1], np.float16(np.inf)))
    step = float(ticks[1]) - float(ticks[0])
    canvas, left, y = Canvas(), 40.0, 0.0
    unit = (svg.WIDTH - 2 * left) / (float(ticks[-1]) - float(ticks[0]))

    def at(value: float) -> float:
        return left + (value - float(ticks[0])) * unit

    for (name, chain), fill in zip(chains.items(), (AMBER, SKY), strict=True):
        canvas.cell(0, y + 3, 12, 12, "", fill)
        canvas.text(20, y + 13, f"{name}:", svg.TEXT, bold=True)
        canvas.text(142, y + 13, " → ".join(f"{value:.6f}".rstrip("0").rstrip(".") for value in chain))
        y += 22
    canvas.cell(0, y + 3, 12, 12, "", BLUE)
    canvas.text(20, y + 13, "exact:", svg.TEXT, bold=True)
    canvas.text(142, y + 13, f"{exact:.7g}")
    y += 52
    canvas.line([(0, y), (svg.WIDTH, y)], 1.2)
    for tick in ticks:
        canvas.line([(at(float(tick)), y - 5), (at(float(tick)), y + 5)], 1.2)
        canvas.text(at(float(tick)), y + 18, f"{float(tick):.7g}", svg.SMALL, "middle")
    for value, fill in zip((*ends, exact), (AMBER, SKY, BLUE), strict=True):
        canvas.cell(at(value) - 6, y - 20, 12, 12, "", fill)
    canvas.text(svg.WIDTH, y + 36, "each mark an FP16 number", svg.SMALL, "end")
    sums = " + ".join(f"{number:g}" for number in numbers)
    said = "; ".join(f"{name} {chain[-1]:.7g}" for name, chain in chains.items())
    says = f"{sums}, rounded after each addition: {said}; exact {exact:.7g}. FP16 numbers lie {step:.3g} "
    says += f"apart here, and the two results {abs(ends[0] - ends[1]):.3g}."
    return single(f"{sums} in FP16, added in two orders", says, canvas)
