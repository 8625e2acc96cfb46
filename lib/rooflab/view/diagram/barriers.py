"""Which barrier each thread of a block comes to, by CPU runs of lesson 03e's kernels (studies/drawn.py)."""

from __future__ import annotations

import pandas as pd

from rooflab.errors import UsageError
from rooflab.studies import drawn
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_WIDTH, _CELL, _HIGH, _ACROSS = 256.0, 8.0, 9.0, 2
_FILLS = (NONE, SKY, AMBER)  # of threads that have ended, that come to the first barrier and to the second


def barriers_met(rows: pd.DataFrame | None = None) -> Drawing:
    """A block of each kernel at each size, a cell a thread and a line a warp: which barrier its threads come
    to, and how much of the shared tile they have stored. UsageError without rows.
    """
    rows = drawn.read("barriers") if rows is None else rows
    if rows.empty:
        raise UsageError("Barriers are drawn of at least one block.")
    canvas, said, bottom = Canvas(), [], 0.0
    blocks = rows[["kernel", "n"]].drop_duplicates().itertuples(index=False, name=None)
    for place, (kernel, n) in enumerate(blocks):
        own = rows["kernel"] == kernel
        groups, reads = rows[own & (rows["n"] == n)], int(rows["reads"][own].max())
        left = place % _ACROSS * (svg.WIDTH - _WIDTH)
        top = bottom = canvas.height + 18 * (place > 0) if place % _ACROSS == 0 else bottom
        canvas.text(left, top + 12, f"{kernel}, {counted(int(n), 'column')}", bold=True)
        words, y = [], top + 20 + (int(groups["last"].max()) // svg.LANES + 1) * _HIGH + 8
        for first, last, barrier in groups[["first", "last", "comes_to"]].astype(int).to_numpy():
            threads = range(first, last + 1)
            places = [(left + t % svg.LANES * _CELL, top + 20 + t // svg.LANES * _HIGH) for t in threads]
            canvas.cells(places, _CELL, _HIGH, _FILLS[barrier])
            where = f"come to barrier {barrier}" if barrier else "have left"
            words.append(f"{counted(len(threads), 'thread')} {where}")
            canvas.cell(left, y, 12, 12, "", _FILLS[barrier])
            canvas.text(left + 18, y + 11, words[-1])
            y += 18
        stored = int(((groups["last"] - groups["first"] + 1) * groups["stores"]).sum())
        words.append(f"x_tile: {stored} of {reads} numbers stored")
        canvas.text(left, y + 11, words[-1], bold=stored < reads)
        said.append(f"{kernel} with {counted(int(n), 'column')}: {', '.join(words)}")
    canvas.text(
        0, canvas.height + 20, "A cell is a thread of one block, a row of cells is a warp.", svg.SMALL
    )
    says = f"The threads of a block, a row of cells a warp. {'; '.join(said)}."
    return single("Which barrier the threads of a block come to", says, canvas)
