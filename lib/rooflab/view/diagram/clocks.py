"""What each clock of lesson 00b counts of one launch, to one scale."""

from __future__ import annotations

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single
from rooflab.words import counted

WIDTH = 430.0  # narrow enough for a phone
_LEFT, _ROW = 58.0, 62.0
_MOST = 60  # kernels of a chain that are drawn one by one


def clocks(wall: float, event: float, graph: float) -> Drawing:
    """Three clocks' times of the same launch in us, each as what it counts: the host's call and wait, two
    marks on the GPU, and a chain's kernels, as many as fit into the longest of the three.
    """
    canvas, longest = Canvas(WIDTH), max(wall, event, graph)
    unit = (WIDTH - _LEFT - 4) / longest

    def row(place: int, name: str, time: float, words: str) -> float:
        """A clock's name and the line that it counts; where its cells go."""
        y = place * _ROW
        canvas.text(0, y + 17, name, svg.TEXT, bold=True)
        ends = (_LEFT, _LEFT + time * unit)
        canvas.line([(ends[0], y + 30), (ends[1], y + 30)], 1.6)
        for x in ends:
            canvas.line([(x, y + 25), (x, y + 35)], 1.6)
        canvas.text(0, y + 50, words)
        return y + 3

    y = row(0, "wall", wall, f"{wall:.3g} µs: from the call until the host knows it is done")
    idle = max(0.0, event - graph)
    canvas.cell(_LEFT, y, wall * unit, 20, "the host calls, then waits", SKY)
    canvas.cell(_LEFT + (wall - event + idle) * unit, y, (event - idle) * unit, 20, "kernel", AMBER)
    y = row(1, "event", event, f"{event:.3g} µs: from a mark before the call to one behind it")
    canvas.cell(_LEFT, y, idle * unit, 20, "the GPU waits for the launch", GREY)
    canvas.cell(_LEFT + idle * unit, y, (event - idle) * unit, 20, "kernel", AMBER)
    kernels = int(longest / graph * 1.0001)
    y = row(2, "graph", graph, f"{graph:.3g} µs: a chain's time, divided by its kernels")
    if kernels <= _MOST:
        places = [(_LEFT + k * graph * unit, y) for k in range(kernels)]
        canvas.cells(places, max(1.0, graph * unit - 1), 20, AMBER)
    else:
        canvas.cell(_LEFT, y, kernels * graph * unit, 20, f"{kernels:,} kernels", AMBER)
    canvas.cell(0, 3 * _ROW, 13, 13, "", AMBER)
    canvas.text(19, 3 * _ROW + 11, "the kernel at work")
    says = f"One launch counted by three clocks: wall {wall:.3g} µs, the host's call and wait; event "
    says += f"{event:.3g} µs, of which the kernel is {min(event, graph):.3g}; graph {graph:.3g} µs, a link "
    says += f"of a chain. The longest of the three would hold {counted(kernels, 'such link')}."
    return single("One launch, three clocks, to scale", says, canvas)
