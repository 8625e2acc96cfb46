"""How tokens share what was read of a matrix: one reading, a tile in one instruction, a ring filled ahead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.paths import KERNELS
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, NONE, SKY, Canvas, Drawing, shade, single
from rooflab.words import counted

_NARROW = 430.0  # a width that fits a phone
_PTX = KERNELS / "common" / "ptx" / "mma.cuh"


def product_of(name: str = "mma_m16n8k16_f16", file: Path = _PTX) -> tuple[int, int, int]:
    """(m, n, k) of a warp's matrix product, as its instruction in the source has them."""
    body = file.read_text(encoding="utf-8").partition(f"void {name}(")[2].partition("\n}")[0]
    found = re.search(r"\.m(\d+)n(\d+)k(\d+)\.", body)
    if not found:
        raise UsageError(f"{file.name} has no {name} with an mma instruction.")
    m, n, k = map(int, found.groups())
    return m, n, k


def tokens_share_a_tile(tokens: Sequence[int] = (1, 4, 8), file: Path = _PTX) -> Drawing:
    """The weights of one mma times the x of so many tokens, a picture each: which sums come of it,
    and how many instructions of a warp it takes on the CUDA cores and on the tensor cores.
    """
    m, n, k = product_of(file=file)
    canvas, said, size = Canvas(_NARROW), [], 5.0
    pitch = 36 + m * size
    for place, count in enumerate(tokens):
        left, top = 0.0, place * pitch + 32
        after = (k + 2 * n) * size + 42
        scalar, products = m * k * count // svg.LANES, -(-count // n)
        canvas.text(after, top + 20, counted(count, "token"), bold=True)
        x = left
        for wide, name in ((k, "weights"), (n, "x"), (n, "sums")):
            canvas.text(x + wide * size / 2, top - 5, name, svg.SMALL, "middle")
            high = k if name == "x" else m
            for column in range(wide):
                used = name == "weights" or column < count
                fill = GREY if name == "weights" else shade(10 + 20 * column // n) if used else NONE
                canvas.cells([(x + column * size, top)], size, high * size, fill)
            canvas.cells([(x, top + row * size) for row in range(high)], wide * size, size, NONE)
            x += wide * size
            if name != "sums":
                canvas.text(x + 7, top + m * size / 2 + 5, {"weights": "×", "x": "="}[name], 14, "middle")
                x += 14
        canvas.text(after, top + 42, f"CUDA cores: {counted(scalar, 'instruction')}")
        canvas.text(after, top + 60, f"tensor cores: {counted(products, 'instruction')}")
        said.append(f"{counted(count, 'token')}: {scalar} or {products}")
    bottom = canvas.height
    lines = (
        f"White columns are computed all the same: an instruction has {n}.",
        f"CUDA cores: {m} × {k} multiply-adds a token, {svg.LANES} an instruction.",
    )
    for at, line in enumerate(lines):
        canvas.text(0, bottom + 18 + 18 * at, line)
    says = f"{m} × {k} weights are read once and multiplied by a column of x for each token. "
    says += f"Instructions of a warp on CUDA cores, or on tensor cores, for {'; '.join(said)}."
    return single(f"One mma: {m} × {k} weights serve up to {n} tokens", says, canvas)


def readings(megabytes: float, gb_s: float, tokens: int = 4) -> Drawing:
    """Weights of so many megabytes, read by memory at `gb_s` GB/s: once for each of `tokens` tokens, and once
    for all of them. A bar's length is the time of the reading.
    """
    canvas, gap, each = Canvas(_NARROW), 6.0, 1e3 * megabytes / gb_s
    wide, high, small = (_NARROW - gap * (tokens - 1)) / tokens, 26.0, 20.0
    y = 12.0
    ways = (
        ("Read for each token", [[token] for token in range(tokens)]),
        ("Read once for all tokens", [[*range(tokens)]]),
    )
    for name, turns in ways:
        moved = len(turns) * megabytes
        canvas.text(0, y, f"{name}: {moved:,.0f} MB, {len(turns) * each:,.1f} µs", bold=True)
        for place, served in enumerate(turns):
            left, part = place * (wide + gap), wide / len(served)
            canvas.cell(left, y + 8, wide, high, "all weights", GREY, 12)
            for slot, token in enumerate(served):
                middle = left + (slot + 0.5) * part
                canvas.line([(middle, y + 8 + high), (middle, y + 24 + high)], end="arrow")
                words = f"token {token}" if len(served) == 1 else f"{token}"
                canvas.cell(middle - part / 2 + 1, y + 26 + high, part - 2, small, words, AMBER, 12)
        y += high + small + 54
    canvas.line([(0, y - 14), (60, y - 14)], end="arrow")
    canvas.text(66, y - 10, f"time, at {gb_s:,.0f} GB/s", svg.SMALL)
    says = (
        f"{megabytes:,.0f} MB of weights and {counted(tokens, 'token')}. Read for each token they take "
        f"{tokens * each:,.1f} µs at {gb_s:,.0f} GB/s, read once for all {each:,.1f} µs."
    )
    return single(f"Weights and {counted(tokens, 'token')}, two ways", says, canvas)


class Slot(NamedTuple):
    """What one group of k does in its slot: when its copy starts and arrives, and when it was used."""

    slot: int
    starts: float
    arrives: float
    used: float
    done: float


def schedule(stages: int, groups: int, copy: float, use: float = 1.0) -> list[Slot]:
    """When a ring of `stages` slots copies and uses each of `groups` groups: a copy takes `copy` steps and
    starts once its slot was read; a group is used, for `use` steps, once it has arrived and the one before is
    done.
    """
    found: list[Slot] = []
    for group in range(groups):
        starts = found[group - stages].done if group >= stages else 0.0
        arrives = starts + copy
        used = max(arrives, found[-1].done if found else 0.0)
        found.append(Slot(group % stages, starts, arrives, used, used + use))
    return found


def slots(stages: int, groups: int = 6, copy: float = 3.0) -> Drawing:
    """A ring of slots over time, below one slot alone: what is copied into each and when it is multiplied."""
    runs = [(count, schedule(count, groups, copy)) for count in (1, stages)]
    canvas, left, y, ends = Canvas(), 66.0, 0.0, []
    unit = (svg.WIDTH - left) / runs[0][1][-1].done
    for count, run in runs:
        ends.append(run[-1].done)
        words = f"{counted(count, 'slot')}: {counted(groups, 'group')} in {ends[-1]:g} steps"
        canvas.text(0, y + 12, words, bold=True)
        y += 20
        for slot in range(count):
            canvas.text(0, y + 16, f"slot {slot}", svg.SMALL)
            for group, one in enumerate(run):
                if one.slot != slot:
                    continue
                x, at = left + one.starts * unit, left + one.used * unit
                canvas.cell(x, y, (one.arrives - one.starts) * unit, 22, f"copy {group}", GREY)
                if one.used > one.arrives:
                    canvas.cell(x + copy * unit, y, (one.used - one.arrives) * unit, 22, "full", SKY)
                canvas.cell(at, y, (one.done - one.used) * unit, 22, f"× {group}", AMBER)
            y += 25
        y += 14
    canvas.line([(left, y - 6), (left + 60, y - 6)], end="arrow")
    canvas.text(left + 66, y - 2, "time", svg.SMALL)
    x, y = 0.0, y + 10
    key = {"copied": GREY, "full, waits for its turn": SKY, "multiplied, then free": AMBER}
    for words, fill in key.items():
        canvas.cell(x, y, 12, 12, "", fill)
        canvas.text(x + 18, y + 11, words)
        x += 40 + svg.wide(words, svg.TEXT)
    canvas.text(0, y + 29, f"Example: a copy takes {counted(int(copy), 'step')}, a product one.")
    says = (
        f"With one slot a copy waits for the product before it, and {groups} groups take {ends[0]:g} steps; "
        f"with {stages} slots copies run ahead, and they take {ends[1]:g}. Here a copy takes {copy:g} steps "
        "and a product one."
    )
    return single("A ring of slots: copy ahead, multiply behind", says, canvas)
