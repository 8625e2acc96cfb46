"""Online softmax over tiles: what one query's row_max, rescale, row_sum and outputs are after each tile.

The statements are those of attention's rung 4_mma, in the order of its source, carried out here on the
operands of the launch that was watched on the CPU for the tiles (studies/drawn.py). A test holds them against
the kernel.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from rooflab import ops
from rooflab.errors import UsageError
from rooflab.ops import Rung, attention
from rooflab.ops.attention_operands import softmax_scale
from rooflab.studies import attention_work, drawn
from rooflab.studies.attention import shape_of
from rooflab.view.diagram.svg import AMBER, NONE, PALE, SMALL, Canvas

SCENE = "tiles"
_STATEMENTS = {
    "find the maximum": r"new_max = fmaxf\(new_max, s\[",
    "make rescale": r"rescale = exp2_approx\(row_max\[half\] \* scale - base\)",
    "keep the maximum": r"row_max\[half\] = new_max",
    "rescale row_sum": r"row_sum\[half\] \*= rescale",
    "make weights": r"\bp = exp2_approx\(fmaf\(p, scale, -base\)\)",
    "add to row_sum": r"row_sum\[half\] \+= p\b",
    "rescale o": r"acc_o\[[^;]*\] \*= rescale",
    "add to o": r"multiply\(acc_o\[",
}


class After(NamedTuple):
    """What the block's queries have after a tile, a number a query; of the outputs column 0."""

    before: np.ndarray
    row_max: np.ndarray
    rescale: np.ndarray
    row_sum: np.ndarray
    o: np.ndarray


def rung() -> Rung:
    """The rung whose statements are carried out."""
    name = drawn.scenes()[SCENE].case.impl
    return next(each for each in attention.LADDERS["attention"] if each.name == name)


def width() -> int:
    """Of the queries and keys whose scores are drawn."""
    return int(shape_of(drawn.scenes()[SCENE].case).head_dim)


def statements(text: str) -> list[str]:
    """The softmax of a tile and what adds it to the outputs, in a source's order; a source that lacks a
    statement goes without it. UsageError for one without a softmax.
    """
    loop = text.partition("for (int tile = from")[2]
    found = {name: re.search(pattern, loop) for name, pattern in _STATEMENTS.items()}
    if not found["make weights"] or not found["add to o"]:
        raise UsageError("This source has no loop over tiles that makes weights of scores and adds them up.")
    at = {name: match.start() for name, match in found.items() if match}
    return sorted(at, key=lambda name: at[name])


def after_tiles(
    first: int, queries: int, tiles: list[tuple[int, int]], text: str | None = None
) -> list[After]:
    """What `queries` queries from `first` on have after each of the tiles (first key, keys)."""
    steps = statements(rung().path.read_text(encoding="utf-8") if text is None else text)
    shape = shape_of(drawn.scenes()[SCENE].case)
    with ops.on("cpu"):
        q, k, v = (array[:, 0].astype(np.float64) for array in attention_work.operands(shape))
    scale = float(softmax_scale(None, shape.head_dim).value)
    position = np.arange(first, first + queries)
    row_max, row_sum, o = np.full(queries, -np.inf), np.zeros(queries), np.zeros((queries, shape.head_dim))
    found = []
    for begin, keys in tiles:
        mine = slice(begin, begin + keys)
        s = np.where(np.arange(begin, begin + keys) <= position[:, None], q[position] @ k[mine].T, -np.inf)
        before, new_max, rescale, p = row_max, row_max, np.ones(queries), s
        for step in steps:
            if step == "find the maximum":
                new_max = np.maximum(new_max, s.max(axis=1))
            elif step == "make rescale":
                rescale = np.exp2((row_max - new_max) * scale)
            elif step == "keep the maximum":
                row_max = new_max
            elif step == "rescale row_sum":
                row_sum = row_sum * rescale
            elif step == "make weights":
                p = np.exp2((s - new_max[:, None]) * scale)
            elif step == "add to row_sum":
                row_sum = row_sum + p.sum(axis=1)
            elif step == "rescale o":
                o = o * rescale[:, None]
            else:
                o = o + p @ v[mine]
        found.append(After(before, row_max, rescale, row_sum, o[:, 0]))
    return found


def telling(states: list[After]) -> int:
    """The query whose maximum grows at the most tiles, the first of these."""
    return int(np.argmax(sum((state.row_max > state.before).astype(int) for state in states)))


def numbers(state: After, query: int) -> list[tuple[str, str]]:
    """The kernel's names and what a query has under them after a tile; row_max of scores as softmax takes
    them, divided by the root of the width.
    """
    value = {name: float(each[query]) for name, each in state._asdict().items()}
    return [
        ("row_max", f"{value['row_max'] / width() ** 0.5:.2f}"),
        ("rescale", f"{value['rescale']:.2g}"),
        ("row_sum", f"{value['row_sum']:.2f}"),
        ("o[0]", f"{value['o']:.2f}"),
        ("out[0]", f"{value['o'] / value['row_sum']:.3f}"),
    ]


def draw_numbers(canvas: Canvas, y: float, state: After, query: int) -> None:
    """A row of cells with a query's numbers after a tile; orange where its maximum grew."""
    grew, x, wide = bool(state.row_max[query] > state.before[query]), 0.0, 52.0
    for name, value in numbers(state, query):
        canvas.text(x + wide / 2 - 1, y, name, SMALL, "middle")
        fill = AMBER if grew and name in ("row_max", "rescale") else PALE if name == "out[0]" else NONE
        canvas.cell(x, y + 5, wide - 3, 22, value, fill, 12)
        x += wide
