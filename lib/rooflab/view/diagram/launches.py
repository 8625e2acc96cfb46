"""How a launch becomes work: grid, blocks, SMs, warps and lanes; and how blocks share a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from rooflab import ops
from rooflab.errors import UsageError
from rooflab.ops import gemv, stream
from rooflab.studies import drawn
from rooflab.view.captions import size_text
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, PALE, SKY, Canvas, Drawing, shade, single
from rooflab.words import counted

_FLOAT = 4  # bytes
_MOST = "#0B2F4D"  # darker than BLUE: an SM with three or more


def elements(rows: pd.DataFrame) -> dict[tuple[int, int], list[int | None]]:
    """(block, warp) -> the element of its buffer that each lane asked for, from recorded requests."""
    return {
        (int(row["block"]), int(row["warp"])): [
            None if word == "-" else int(word) // int(row["bytes"]) for word in str(row["addresses"]).split()
        ]
        for _, row in rows.iterrows()
    }


def launch(
    n: int, sms: int, block: int = 2, thread: int = 5, requests: pd.DataFrame | None = None
) -> Drawing:
    """Saxpy's launch over n elements on a GPU of `sms` SMs, from the grid down to the lanes of one warp: the
    element that each lane loads is the one that the kernel, watched on the CPU, asked for.
    """
    rung = stream.LADDERS["saxpy"][0]
    options = rung.with_defaults({})
    threads, blocks = options["THREADS"], stream.blocks_of(rung, n, options)
    of = elements(drawn.read("requests", "saxpy") if requests is None else requests)
    warp, lane = thread // 32, thread % 32
    if (block, warp) not in of:
        raise UsageError(f"Warp {warp} of block {block} was not watched; {len(of)} warps were.")
    mine = of[block, warp]
    element = mine[lane]
    canvas, left, wide = Canvas(), 92.0, svg.WIDTH - 92.0
    rows = ("grid", "GPU", "block", "warp")
    notes = (f"{blocks:,} blocks", f"{sms} SMs", f"{threads} threads", "32 lanes")

    def name(k: int, y: float) -> None:
        canvas.text(0, y + 14, rows[k], bold=True)
        canvas.text(0, y + 29, notes[k], svg.SMALL)

    name(0, 0)
    shown = 7
    step = wide / (shown + 2)
    for k in range(shown):
        canvas.cell(left + k * step, 0, step, 32, f"{k}", AMBER if k == block else SKY, 13)
    canvas.text(left + (shown + 0.5) * step, 21, "...", 15, "middle")
    canvas.cell(left + (shown + 1) * step, 0, step, 32, f"{blocks - 1:,}", SKY, 13)
    canvas.line([(left + (block + 0.5) * step, 32), (left + (block + 0.5) * step, 58)], end="arrow")
    canvas.text(
        left + (block + 0.5) * step + 10, 50, "blocks are handed to SMs as these have room", svg.SMALL
    )

    y = 62.0
    name(1, y)
    across = 33
    size = wide / across
    canvas.cells([(left + k % across * size, y + k // across * size) for k in range(sms)], size, size, PALE)
    canvas.cells([(left + block * size, y)], size, size, AMBER)
    y += (sms + across - 1) // across * size + 26
    canvas.line([(left + (block + 0.5) * size, 62 + size), (left + (block + 0.5) * size, y - 3)], end="arrow")
    canvas.text(
        left + (block + 0.5) * size + 10, y - 9, f"block {block}, on whichever SM it came to", svg.SMALL
    )

    name(2, y)
    warps = threads // 32
    step = wide / warps
    for k in range(warps):
        canvas.cell(left + k * step, y, step, 32, f"warp {k}", AMBER if k == warp else SKY, 13)
    canvas.line([(left + (warp + 0.5) * step, y + 32), (left + (warp + 0.5) * step, y + 54)], end="arrow")
    canvas.text(
        left + (warp + 0.5) * step + 10, y + 49, "its lanes carry out each instruction together", svg.SMALL
    )
    y += 58

    name(3, y)
    size = wide / 16
    for k, each in enumerate(mine):
        at, down = left + k % 16 * size, y + k // 16 * 44
        canvas.cell(at, down, size, 18, f"{k}", AMBER if k == lane else shade(k), 11)
        canvas.cell(at, down + 18, size, 18, "-" if each is None else f"{each}", svg.NONE, 11)
    down = y + lane // 16 * 44
    canvas.frame(left + lane % 16 * size, down, size, 36)
    canvas.text(0, y + 60, "top: lane", svg.SMALL)
    canvas.text(0, y + 74, "below: its i", svg.SMALL)
    y += 88 + 14
    sum_ = f"{block} × {threads} + {thread} = {block * threads + thread}"
    holds = element == block * threads + thread
    formula = f"i = blockIdx.x × {threads} + threadIdx.x = {sum_}"
    said = f"Thread {thread} of block {block} works on element {element}"
    canvas.text(left, y, f"{said}" + (":" if holds else "."), bold=True)
    if holds:
        canvas.text(left, y + 18, formula)
    says = (
        f"A grid of {blocks:,} blocks; block {block} goes to one of {sms} SMs; its {threads} threads are "
        f"{warps} warps of 32 lanes; lanes 0 to 31 of warp {warp} take elements {mine[0]} to {mine[-1]}. "
        + said
        + (f": {formula}." if holds else ".")
    )
    return single("From a launch to one element", says, canvas)


def sms_at_work(
    n: int,
    k: int,
    sms: int,
    rungs: tuple[str, ...] = ("2_coalesced", "3_split_k", "6_column_strips"),
    flying: Sequence[int] = (),
    needed: float = math.nan,
) -> Drawing:
    """How many of a GPU's SMs have a block of a gemv of n columns and k rows, rung by rung, by the launch
    rule; which part of the matrix a block has; and with `flying`, the bytes that each rung has in flight,
    on one linear scale with a mark at those that the read roof needs (NaN: unknown).
    """
    canvas, said = Canvas(), []
    across, size = 22, 10.0
    pitch = svg.WIDTH / len(rungs)
    for place, name in enumerate(rungs):
        rung = ops.rung_of(gemv.LADDERS["gemv"], name, name)
        options = gemv.options_for(rung, n, k)
        wide = gemv.blocks_of(rung, n, options)
        high = gemv.splits_of(rung, n, k, options, sms) if name in gemv.SHARED_COLUMNS else 1
        blocks, x = wide * high, place * pitch
        cell = min(size, (pitch - 20) / across)
        busy = min(sms, blocks)
        at = [(x + i % across * cell, 34 + i // across * cell) for i in range(sms)]
        canvas.text(x, 12, name, bold=True)
        canvas.text(x, 27, f"{blocks:,} blocks: {busy} of {sms} SMs", svg.SMALL)
        canvas.cells(at[:busy], cell, cell, BLUE)
        canvas.cells(at[busy:], cell, cell, svg.NONE)
        top = 34 + (sms + across - 1) // across * cell + 30
        _matrix(canvas, x, top, pitch - 24, 120, wide, high)
        canvas.text(x, top - 8, f"matrix: {wide:,} × {high} parts", svg.SMALL)
        said.append(
            f"{name} has {blocks:,} blocks ({wide} across, {high} down), "
            f"which keep {busy} of {sms} SMs at work"
        )
    if flying:
        top, most = canvas.height + 30, max(*flying, needed if needed == needed else 0)
        for place, size in enumerate(flying):
            x, scale = place * pitch, (pitch - 24) / most
            canvas.text(x, top - 8, f"in flight: {size_text(size)}", svg.SMALL, bold=True)
            canvas.rect(x, top, pitch - 24, 14, svg.NONE)
            canvas.rect(x, top, max(size * scale, 1.0), 14, BLUE, 0)
            if needed == needed:
                canvas.line([(x + needed * scale, top - 4), (x + needed * scale, top + 18)], 2)
            said[place] += f", and {size_text(size)} in flight"
    keys = ["Blue square: an SM with a block. Orange: the first block's part of the matrix."]
    if flying and needed == needed:
        keys.append(f"Mark: the {needed / 2**20:.1f} MiB in flight that the read roof needs.")
    for key in keys:
        canvas.text(0, canvas.height + 18, key, svg.SMALL)
    return single(f"Who works on a {k:,} × {n:,} matrix", "; ".join(said) + ".", canvas)


def dealt(parts: Sequence[tuple[str, int]], sms: int, title: str, things: str = "blocks") -> Drawing:
    """What each of a GPU's SMs gets of each part's (name, number of `things`), dealt one after the other: a
    square an SM, the darker the more it gets.
    """
    canvas, said, used = Canvas(), [], set()
    across = 22 if len(parts) < 4 else 12
    pitch = svg.WIDTH / max(3, len(parts))
    cell = min(10.0, (pitch - 20) / across)
    shades = (svg.NONE, SKY, BLUE, _MOST)
    for place, (name, count) in enumerate(parts):
        x, most = place * pitch, -(-count // sms)
        full = sms - (most * sms - count)  # SMs that get the most; the others get one less
        at = [(x + i % across * cell, 66 + i // across * cell) for i in range(sms)]
        size = svg.TEXT
        while size > 8 and svg.wide(name, size) * 1.06 > pitch - 8:
            size -= 0.5
        canvas.text(x, 12, name, size, bold=True)
        canvas.text(x, 27, counted(count, things.removesuffix("s")), svg.SMALL)
        used |= {min(most, 3), min(most - (full < sms), 3)}
        canvas.cells(at[:full], cell, cell, shades[min(most, 3)])
        canvas.cells(at[full:], cell, cell, shades[min(most - 1, 3)])
        shares = [f"{most} on {counted(full, 'SM')}"]
        shares += [f"{most - 1 or 'none'} on {sms - full}"] if full < sms else []
        for line, text in enumerate(shares):
            canvas.text(x, 42 + 15 * line, text, svg.SMALL)
        said.append(f"{name}: {counted(count, things.removesuffix('s'))}, {', '.join(shares)}")
    x, y = 0.0, canvas.height + 12
    canvas.text(x, y + 10, f"{things} of an SM:", svg.SMALL)
    x += svg.wide(f"{things} of an SM:", svg.SMALL) + 12
    for each in sorted(used):
        fill, words = shades[each], ("none", "1", "2", "3 or more")[each]
        canvas.rect(x, y, 11, 11, fill)
        canvas.text(x + 16, y + 10, words, svg.SMALL)
        x += 34 + svg.wide(words, svg.SMALL)
    return single(title, f"{sms} SMs. " + "; ".join(said) + ".", canvas)


def _matrix(canvas: Canvas, x: float, y: float, width: float, height: float, across: int, down: int) -> None:
    """A matrix cut into blocks' parts, the first of them marked."""
    canvas.rect(x, y, width, height, PALE, 0.8)
    most = 64  # lines closer than this many are one grey
    for count, length, level in ((across, width, False), (down, height, True)):
        lines = count if count <= most else most
        for k in range(1, lines):
            at = k * length / lines
            ends = [(x, y + at), (x + width, y + at)] if level else [(x + at, y), (x + at, y + height)]
            canvas.line(ends, min(0.4, length / lines / 12))  # close lines are thin, or they make one grey
    canvas.rect(x, y, max(width / across, 2.0), max(height / down, 2.0), AMBER, 0.8)


def split_k(regions: pd.DataFrame | None = None) -> Drawing:
    """Split K, step by step: which block reads which part of the matrix, leaves which partial sum, and who
    adds them up, as a small launch showed it on the CPU.
    """
    rows = drawn.read("regions", "split k") if regions is None else regions
    reads = rows[(rows["buffer"] == "a") & (rows["column"] == 0)]
    stores = rows[(rows["buffer"] == "partial") & (rows["access"] == "store")]
    sums = rows[(rows["buffer"] == "partial") & (rows["access"] == "load")]
    order = [int(block) for block in reads["block"]]
    deep, wide = int((rows["row"] + rows["rows"])[rows["buffer"] == "a"].max()), int(reads["columns"].iloc[0])
    last = int(sums[sums["column"] == 0]["block"].iloc[0]) if len(sums) else None
    slots = len(order)
    frames = []
    for step in range(slots + (last is not None)):
        canvas = Canvas(176)
        canvas.text(0, 12, "matrix", svg.SMALL)
        high = 150 / slots
        for k, (_, part) in enumerate(reads.iterrows()):
            fill = AMBER if k == step else GREY if k < step else PALE
            top = 20 + 150 * part["row"] / deep
            canvas.cell(
                0,
                top,
                84,
                150 * part["rows"] / deep,
                f"rows {part['row']}-{part['row'] + part['rows'] - 1}",
                fill,
            )
        canvas.text(106, 12, "partial sums", svg.SMALL)
        for k, block in enumerate(order):
            own = stores[stores["block"] == block]
            at = 20 + float(own["row"].iloc[0]) * high
            there = k <= step
            fill = (AMBER if k == step else SKY) if there else svg.NONE
            canvas.cell(106, at, 70, high, f"block {block}" if there else "", fill)
            if k == step:
                canvas.line([(86, at + high / 2), (104, at + high / 2)], 1.4, end="arrow")
        if step == slots:
            canvas.cell(106, 190, 70, 26, "y", AMBER)
            canvas.line([(141, 172), (141, 188)], 1.4, end="arrow")
            frames.append((f"Block {last}, the last, adds up", canvas))
        else:
            canvas.cell(106, 190, 70, 26, "y", svg.NONE)
            frames.append((f"Block {order[step]} sums its rows", canvas))
    says = (
        f"{slots} blocks read {deep // slots} rows each of the same {wide} columns, store a partial sum each"
    )
    says += (
        f"; block {last}, the last to arrive, loads the {slots} sums and writes y."
        if last is not None
        else "."
    )
    return Drawing("Split K: partial sums of one strip of columns", says, frames, across=3)
