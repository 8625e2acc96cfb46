"""What calls of a kernel take with and without a copy of the weights to the GPU, to one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single

_LEFT, _ROOM = 172.0, 58.0  # the width of a call's words, and of its milliseconds behind the bar
_HIGH, _GAP = 19.0, 4.0


class Call(NamedTuple):
    """A call: its words, what it takes in us, and how much of that is the copy (None: not known)."""

    says: str
    us: float
    copy: float | None = 0.0

    def words(self) -> str:
        """The call in words, in ms."""
        text = f"{self.says} {self.us / 1e3:.2f} ms"
        if self.copy is None:
            return f"{text}, not divided"
        return f"{text}, of which the copy {self.copy / 1e3:.2f}" if self.copy else text


def uploads(groups: Mapping[str, Sequence[Call]], title: str) -> Drawing:
    """A bar a call under the head of its group: the copy, the kernel after it, and the whole in ms.
    UsageError without calls.
    """
    longest = max((call.us for calls in groups.values() for call in calls), default=0.0)
    if not longest:
        raise UsageError("Calls are drawn of at least one that was timed.")
    canvas, y, unit = Canvas(), 0.0, (svg.WIDTH - _LEFT - _ROOM) / longest
    for head, calls in groups.items():
        canvas.text(0, y + 12, head, bold=True)
        y += 20
        for call in calls:
            canvas.text(8, y + 14, call.says, 12)
            x, copy = _LEFT, call.copy or 0.0
            if call.copy is None:
                canvas.cell(x, y, call.us * unit, _HIGH, "kernel or copy?", GREY)
            else:
                if copy:
                    canvas.cell(x, y, copy * unit, _HIGH, f"copy {copy / 1e3:.2f}", SKY)
                kernel = call.us - copy
                canvas.cell(x + copy * unit, y, max(1.0, kernel * unit), _HIGH, "", AMBER)
            canvas.text(x + call.us * unit + 6, y + 14, f"{call.us / 1e3:.2f} ms", 12)
            y += _HIGH + _GAP
        y += 8
    keys = [(SKY, "copy of the weights to the GPU"), (AMBER, "kernel")]
    if any(call.copy is None for calls in groups.values() for call in calls):
        keys.append((GREY, "realizar does not divide it"))
    x = 8.0
    for fill, words in keys:
        canvas.rect(x, y, 11, 11, fill)
        canvas.text(x + 16, y + 10, words, svg.SMALL)
        x += 44 + svg.wide(words, svg.SMALL)
    said = [f"{head}: {', '.join(call.words() for call in calls)}" for head, calls in groups.items()]
    return single(title, f"{'. '.join(said)}.", canvas)
