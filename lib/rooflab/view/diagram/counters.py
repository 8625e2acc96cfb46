"""Where a profiler's counters sit, from DRAM over L2 to the warps of an SM, with what was counted there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab.errors import UsageError
from rooflab.profile import ncu
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, NONE, SKY, Canvas, Drawing, single

_LEFT, _GAP, _HIGH, _PITCH, _TOP = 132.0, 20.0, 18.0, 56.0, 28.0
FEW_BYTES = 1e6  # bytes that a launch moves at least for a hit rate that means something
_CELLS = 32  # a strip's: the filled ones are the counted share
# Each place, and the counter there by the name that the page's tables give it.
_PLACES = (
    ("DRAM", "DRAM %"),
    ("L2", "L2 hit %"),
    ("SM: its warps", "occupancy %"),
    ("SM: its cycles", "with an instruction"),
    ("SM: one warp", "stalls"),
)


def where_counted(launches: Sequence[tuple[str, Any]]) -> Drawing:
    """Rows of time_breakdown.counters, each with its name, side by side: what each place counted of a launch,
    as a share, and what one of its warps does between two instructions. UsageError without a launch.
    """
    if not launches:
        raise UsageError("Counters are drawn of at least one launch.")
    canvas, said = Canvas(), []
    pitch = (svg.WIDTH - _LEFT) / len(launches)
    longest = max(1 + sum(cycles for _, cycles in row["waits"]) for _, row in launches)
    for k, (place, counter) in enumerate(_PLACES):
        y = _TOP + k * _PITCH
        canvas.text(0, y + 13, place, bold=True)
        canvas.text(0, y + 28, counter, 10)
        if k < 2:
            canvas.line([(_LEFT - 22, y + 4), (_LEFT - 22, y + _PITCH)], 1.4, end="arrow")
    for k, (name, row) in enumerate(launches):
        at, width = _LEFT + k * pitch, pitch - _GAP
        canvas.text(at, 14, f"{name}, {row['us']:.1f} µs", bold=True)
        moved = float(row["dram_bytes"])
        moves = f"{moved / 1e6:,.0f} MB" if moved >= 1e6 else f"{moved / 1e3:,.0f} KB"
        hits = float(row["l2_hit_pct"])
        if moved < FEW_BYTES and not math.isnan(
            hits
        ):  # its hits and its requests are counted in different runs
            hits = math.inf
        strips = (
            (row["dram_pct"], AMBER, f"of its rate; {moves} moved"),
            (hits, AMBER, "of the sectors were in L2"),
            (row["occupancy_pct"], SKY, "of its warp slots are filled"),
            (100 * row["issue_active"], BLUE, "issue an instruction"),
        )
        words = []
        for n, (share, fill, meaning) in enumerate(strips):
            text = _strip(canvas, (at, _TOP + n * _PITCH, width), float(share), fill, meaning)
            words.append(f"{_PLACES[n][0]}, {text}")
        y = _TOP + len(strips) * _PITCH
        lines = _warp(canvas, (at, y, width), row["waits"], longest)
        for n, line in enumerate(lines):
            canvas.text(at, y + _HIGH + 13 + 14 * n, line, svg.SMALL)
        said.append(f"{name}, {row['us']:.1f} µs: {'; '.join(words)}; one warp, {' '.join(lines)}")
    says = f"What was counted, place by place. {'. '.join(said)}."
    return single("What each counter looks at", says, canvas)


def _strip(canvas: Canvas, at: tuple[float, float, float], share: float, fill: str, meaning: str) -> str:
    """A strip of cells, filled by a share in percent (NaN: not counted, infinite: too few to say); its words,
    which are below it.
    """
    x, y, width = at
    step, known = width / _CELLS, math.isfinite(share)
    if known:
        canvas.bars([(x, y, min(1.0, max(0.0, share / 100)) * width)], _HIGH, fill)
    canvas.cells([(x + n * step, y) for n in range(_CELLS)], step, _HIGH, NONE, 0.3)
    text = f"{share:.0f}% {meaning}" if share >= 10 else f"{share:.1f}% {meaning}"
    if not known:
        text = "not counted" if math.isnan(share) else "no rate: it moves too few sectors"
    canvas.text(x, y + _HIGH + 13, text, svg.SMALL)
    return text


def _warp(
    canvas: Canvas, at: tuple[float, float, float], waits: Sequence[tuple[str, float]], longest: float
) -> list[str]:
    """The cycles of a warp from one instruction to the next: the instruction, then its waits; their words."""
    x, y, width = at
    unit = width / longest
    canvas.rect(x, y, unit, _HIGH, BLUE)
    x += unit
    for n, (_, cycles) in enumerate(waits):
        canvas.rect(x, y, cycles * unit, _HIGH, AMBER if n == 0 else NONE)
        x += cycles * unit
    if not waits:
        return ["waits for nothing"]
    lines = [f"1 instruction, then {waits[0][1]:.0f} cycles", _meaning(waits[0][0])]
    return lines + [f"white: other waits, {cycles:.0f}" for _, cycles in waits[1:2]]


def _meaning(reason: str) -> str:
    metric = ncu.METRICS.get(f"stall_{reason}")
    return (metric.meaning if metric else reason).partition(" (")[0].partition(":")[0]


def contrast(counted: pd.DataFrame) -> list[tuple[str, Any]]:
    """Of counted launches the weight product that keeps the memory busiest, and the longest of the part that
    has most of the other launches, each kind by its first as in time_breakdown.kinds; those that there are.
    """
    found = list[tuple[str, Any]]()
    known = counted.dropna(subset=["dram_pct", "us"])
    products, rest = (known[(known["class"] == "weight") == product] for product in (True, False))
    if len(products):
        row = products.sort_values("dram_pct", kind="stable").iloc[-1]
        found.append((f"product {row['part']}", row))
    rest = rest[rest["part"] != ""]
    if len(rest):
        rest = rest[rest["part"] == rest["part"].mode().iloc[0]]
        row = rest.drop_duplicates("kernel").sort_values("us", kind="stable").iloc[-1]
        found.append((f"one {row['part']} launch", row))
    return found
