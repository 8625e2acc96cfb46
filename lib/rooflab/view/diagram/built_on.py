"""Which rungs of attention build on which, and for which head widths: a box for each, an arrow from each rung
that it builds on.

What a rung builds on is read from the header of its source; where that names none, it is the rung before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung, attention
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, SKY, Canvas, Drawing, single
from rooflab.words import listed, spans

_BOX, _HIGH, _ACROSS, _DOWN = 114.0, 54.0, 148.0, 70.0
_MANY = 4  # widths of a box that are listed; of more the ends


class Node(NamedTuple):
    """A box: its rungs, what they add, the row of the drawing, and head widths."""

    rungs: tuple[str, ...]
    adds: str
    row: int
    widths: tuple[int, ...]


def _number(name: str) -> int:
    return int(name.partition("_")[0])


def _rungs() -> dict[int, Rung]:
    return {_number(rung.name): rung for rung in attention.LADDERS["attention"]}


def parents_of(name: str, text: str | None = None) -> tuple[int, ...]:
    """The numbers of the rungs that the header of a rung's source names as what it changes, or, where it
    names none, of the rung before it. `text` replaces the source.
    """
    rung = _rungs().get(_number(name))
    if rung is None:
        raise UsageError(f"Attention has no rung {name}.")
    text = rung.path.read_text(encoding="utf-8") if text is None else text
    part = re.search(r"// (?:Branch|Changed)\b(.*?)(?=\n// [A-Z]|\n#)", text, re.DOTALL)
    found = re.findall(r"\brung (\d+)", part[1]) if part else []
    return tuple(dict.fromkeys(map(int, found))) or (_number(name) - 1,)


def borrowed(name: str) -> tuple[int, ...]:
    """The number of the first rung with slices of a head's columns, for a later one that has them too without
    building on it.
    """
    rungs = _rungs()
    first = next((number for number, rung in rungs.items() if "SLICES" in rung.defines), 0)
    later = first and "SLICES" in rungs[_number(name)].defines and first < _number(name)
    return (first,) if later and first not in parents_of(name) else ()


def _widths(widths: tuple[int, ...]) -> str:
    few = ", ".join(map(str, widths))
    return few if len(widths) <= _MANY else f"{widths[0]} to {widths[-1]}"


def rung_tree(nodes: Sequence[Node]) -> Drawing:
    """The boxes from left to right, each right of all that it builds on; the first builds on none of them."""
    rungs = _rungs()
    at: dict[int, Node] = {}
    for node in nodes:
        at |= {_number(name): node for name in node.rungs}
    parents: dict[Node, Mapping[Node, bool]] = {}  # and whether only slices are taken from it
    column: dict[Node, int] = {}
    for node in nodes:
        first = node.rungs[0]
        own = {at[n]: False for n in parents_of(first) if n in at}
        own |= {at[n]: True for n in borrowed(first) if n in at}
        if not set(own) <= set(column):
            raise UsageError(f"{first} is drawn before a rung that it builds on.")
        parents[node] = own
        column[node] = 1 + max((column[each] for each in own), default=-1)
    canvas, said = Canvas(), []
    for node in nodes:
        x, y = column[node] * _ACROSS, node.row * _DOWN
        for k, parent in enumerate(sorted(parents[node], key=lambda each: each.row)):
            path = [(column[parent] * _ACROSS + _BOX + 2, parent.row * _DOWN + _HIGH / 2)]
            if column[node] > column[parent] + 1:  # between the rows, clear of the boxes on its way
                path += [(x - _ACROSS + _BOX, min(node.row, parent.row) * _DOWN + (_HIGH + _DOWN) / 2)]
            path += [(x - 2, y + _HIGH / 2 + 12 * (k - (len(parents[node]) - 1) / 2))]
            canvas.line(path, 1.2, dashed=parents[node][parent], end="arrow")
        hopper = all("90a" in rungs[_number(name)].archs for name in node.rungs)
        fill = (AMBER if hopper else SKY) if parents[node] else NONE
        name = f"rung{'s' * (len(node.rungs) > 1)} {spans(_number(each) for each in node.rungs)}"
        canvas.rect(x, y, _BOX, _HIGH, fill)
        lines = ((name, svg.TEXT, True), (node.adds, svg.SMALL, False), (_widths(node.widths), 10.0, False))
        for k, (words, size, bold) in enumerate(lines):
            canvas.text(x + _BOX / 2, y + 15 + 16 * k, words, size, "middle", svg.on(fill), bold)
        if parents[node]:
            who = listed(
                f"{_number(parent.rungs[-1])}{' (its slices)' * slices}"
                for parent, slices in parents[node].items()
            )
            said.append(f"{name}, {node.adds}, {_widths(node.widths)} wide, on {who}")
    y = canvas.height + 22
    for x, fill, words in ((0, SKY, "compute capability 8.0 or later"), (206, AMBER, "Hopper alone")):
        canvas.rect(x, y - 10, 12, 12, fill)
        canvas.text(x + 18, y, words, svg.SMALL)
    canvas.line([(312, y - 4), (340, y - 4)], 1.2, dashed=True, end="arrow")
    canvas.text(346, y, "takes its slices", svg.SMALL)
    canvas.text(446, y, "last line: head widths", svg.SMALL)
    return single("Which rung builds on which", f"Built: {'; '.join(said)}.", canvas)
