"""How often warps load a key for some queries that see it: each query alone, a few together, all at once."""

from __future__ import annotations

from collections.abc import Mapping

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import PALE, SKY, Canvas, Drawing, single
from rooflab.words import counted


def key_loads(
    steps: Mapping[str, tuple[int, int] | None], queries: int = 16, who: str = "queries"
) -> Drawing:
    """A row a step: `queries` queries (`who` says of what kind) in the groups that one load of a key
    serves, and how many loads that makes. A step is the queries that a load serves and the passes over the
    keys, or None where it has no such loop. Raises UsageError where a group does not divide the queries.
    """
    canvas, left, said = Canvas(), 150.0, []
    size = (svg.WIDTH - left - 96) / queries
    canvas.text(left, 12, f"{queries} {who} that see the key, a frame a load of it", svg.SMALL)
    for row, (name, how) in enumerate(steps.items()):
        y = 22.0 + 40 * row
        canvas.text(0, y + 18, name, svg.TEXT - 0.5)
        if how is None:
            canvas.text(left, y + 18, "one tile of scores alone: not counted", svg.SMALL)
            continue
        served, passes = how
        if queries % served:
            raise UsageError(f"{queries} {who} are not shared out {served} at a time.")
        high = 28 / passes
        for turn in range(passes):
            for load in range(queries // served):
                x, top = left + load * served * size, y + turn * high
                canvas.rect(x, top, served * size, high - 1, SKY if load % 2 else PALE, 1.6)
        loads = queries // served * passes
        canvas.text(left + queries * size + 8, y + 18, counted(loads, "load"), bold=True)
        said.append(f"{name}: {counted(loads, 'load')}" + (f" in {passes} passes" if passes > 1 else ""))
    says = f"A key that {queries} {who} see is loaded so often. {'; '.join(said)}."
    return single(f"Loads of one key for {queries} {who}", says, canvas)
