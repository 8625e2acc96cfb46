"""Attention of one query: a context that is split over blocks and merged, and which columns of a key a lane
loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rooflab.errors import UsageError
from rooflab.ops import attention, attention_tiles
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, PALE, SKY, Canvas, Drawing, shade, single
from rooflab.words import counted

_SCORES = (1, 3, 0, 2, 5, 1, 2, 0, 1, 2, 4, 1, 0, 2, 1, 3)  # an example: one query against 16 keys
_VALUES = (2, 1, 4, 0, 3, 1, 0, 2, 5, 1, 2, 3, 1, 0, 4, 2)  # one column of their values
_FILLS = (PALE, SKY, GREY, AMBER)


class Part(NamedTuple):
    """What a block hands over of its keys: the largest score, the sum of 2^(score - largest), and one
    column of
    the values' sum with these weights, not yet divided."""

    largest: float
    total: float
    output: float


def part_of(scores: np.ndarray, values: np.ndarray) -> Part:
    """One block's part, of keys' scores and values [keys]."""
    weights = 2.0 ** (scores - scores.max())
    return Part(float(scores.max()), float(weights.sum()), float(weights @ values))


def merged(parts: Sequence[Part]) -> Part:
    """Parts as one: each is rescaled to the largest score of all, then they add up."""
    largest = max(part.largest for part in parts)
    rescaled = [(2.0 ** (part.largest - largest), part) for part in parts]
    total = sum(factor * part.total for factor, part in rescaled)
    return Part(largest, total, sum(factor * part.output for factor, part in rescaled))


def loads_of_a_key(name: str, heads: int, width: int = 128) -> int:
    """How many blocks load a key that so many query heads share, by a rung's launch rule."""
    rung = next(each for each in attention.LADDERS["decode_attention"] if each.name == name)
    macros = rung.with_defaults(attention_tiles.decode_tile_of(rung, heads, width, "90"))
    return heads // attention_tiles.decode_launch_of(rung, macros).queries


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def split_context(
    scores: Sequence[int] = _SCORES, values: Sequence[int] = _VALUES, blocks: int = 4, heads: int = 4
) -> Drawing:
    """One head's keys cut into parts, a block each: what each hands over, how the last block merges it;
    below,
    who loads a part's keys where `heads` query heads share them. UsageError where blocks do not share evenly.
    """
    if len(scores) != len(values) or len(scores) % blocks:
        raise UsageError(f"{len(scores)} keys and {len(values)} values are not {blocks} equal parts.")
    each = len(scores) // blocks
    cuts = [slice(first, first + each) for first in range(0, len(scores), each)]
    score, value = np.array(scores, float), np.array(values, float)
    parts = [part_of(score[cut], value[cut]) for cut in cuts]
    all_of, canvas = merged(parts), Canvas()
    pitch, cell = svg.WIDTH / blocks, (svg.WIDTH - 8 * blocks) / len(scores)
    canvas.text(
        0, 12, "one head's cache: the query's score against each key; below, a value of it", bold=True
    )
    for block, part in enumerate(parts):
        left, fill = block * pitch, _FILLS[block % len(_FILLS)]
        for k, each_score in enumerate(scores[cuts[block]]):
            canvas.cell(left + k * cell, 20, cell, 24, f"{each_score}", fill, 13)
            canvas.cell(left + k * cell, 44, cell, 20, f"{values[cuts[block]][k]}", svg.NONE, 11)
        middle = left + each * cell / 2
        canvas.line([(middle, 66), (middle, 80)], end="arrow")
        canvas.rect(left, 82, each * cell, 66, fill)
        factor = 2.0 ** (part.largest - all_of.largest)
        lines = (f"block {block}", f"max {part.largest:g}, sum {part.total:.2f}", f"output {part.output:.2f}")
        for line, text in enumerate(lines):
            canvas.text(left + 6, 98 + 17 * line, text, 12, fill=svg.on(fill), bold=not line)
        canvas.line([(middle, 149), (middle, 178)], end="arrow")
        canvas.text(middle + 6, 168, f"× {factor:g}", 12)
    canvas.rect(0, 180, svg.WIDTH - 8, 46, svg.WHITE)
    said = f"max {all_of.largest:g}, sum {all_of.total:.2f}, output {all_of.output:.2f}"
    result = f"{all_of.output:.2f} ÷ {all_of.total:.2f} = {all_of.output / all_of.total:.2f}"
    canvas.text(
        8, 198, "the block that finishes last rescales to the largest max, and adds up:", fill=svg.INK
    )
    canvas.text(8, 217, f"{said}; out = {result}", 13, fill=svg.INK, bold=True)
    canvas.text(
        0, 243, "A weight is 2^(score - max), as the kernels compute it; sum adds weights up, output", 12
    )
    canvas.text(0, 259, "adds up weight × value.", 12)
    y = 290.0
    canvas.text(0, y, f"Who loads a part's keys, where {counted(heads, 'query head')} share them", bold=True)
    ways = (("rung 2: a block a head", "2_split_kv"), ("from rung 3: one block", "3_packed_gqa"))
    every = [loads_of_a_key(name, heads) for _, name in ways]
    for place, ((words, _), loads) in enumerate(zip(ways, every, strict=True)):
        left = place * svg.WIDTH / 2
        canvas.text(left, y + 20, f"{words}, {counted(loads, 'load')} of each key", 12)
        step, group = 44.0, heads // loads
        for head in range(heads):
            canvas.cell(left + head * step, y + 30, 38, 20, f"head {head}", SKY)
            at = left + head * step + 19
            to = left + (head // group + 0.5) * group * step - step / 2 + 19
            canvas.line([(to, y + 82), (at, y + 52)], end="arrow")
        for load in range(loads):
            canvas.cell(left + load * group * step, y + 84, (group - 1) * step + 38, 20, "keys", BLUE)
    says = (
        f"{len(scores)} keys of a head, {blocks} blocks of {each}; a weight is 2^(score - max). "
        + "; ".join(
            f"block {k}: max {p.largest:g}, sum {p.total:.2f}, output {p.output:.2f}"
            for k, p in enumerate(parts)
        )
        + f". The last block rescales them by 2^(max - {all_of.largest:g}) and adds: {said}; "
        f"out {result}. Where {heads} query heads share keys, rung 2 loads each key {_often(every[0])}, "
        f"rung 3 {_often(every[1])}."
    )
    return single("A context split over blocks, and its merge", says, canvas)


def columns_by_mma(lanes: int, columns: int) -> list[int]:
    """Which of `lanes` has each column of a row by the layout of mma: pairs, dealt out in turn."""
    return [column // 2 % lanes for column in range(columns)]


def columns_by_eights(lanes: int, columns: int) -> list[int]:
    """Which lane has each column by 5_fragments: eight neighbours each."""
    return [column // 8 % lanes for column in range(columns)]


def words_of_a_row(lanes: int = 4, columns: int = 32) -> Drawing:
    """A piece of a key's row, by the lane that loads each column: as mma names them, and as 5_fragments
    loads.
    """
    canvas, cell, y, said = Canvas(), svg.WIDTH / columns, 0.0, []
    ways = {"as mma names them": columns_by_mma, "as 5_fragments loads them": columns_by_eights}
    for words, way in ways.items():
        owner = way(lanes, columns)
        runs = [c for c in range(columns) if owner[c] == 0 and (not c or owner[c - 1] != 0)]
        count, halves = len(runs), owner.count(0)
        found = f"{counted(count, 'load')} of {2 * halves // count} bytes a lane"
        canvas.text(0, y + 13, f"{words}: {found}", bold=True)
        for lane in range(lanes):
            mine = [(c * cell, y + 20) for c in range(columns) if owner[c] == lane]
            canvas.cells(mine, cell, 20, shade(lane, lanes))
        for column in runs:
            wide = halves // count * cell
            canvas.frame(column * cell, y + 20, wide, 20)
        y += 62
        said.append(f"{words}, {found}")
    canvas.text(
        0, y, "Shade: lane 0 (light, framed) to lane 3. The query's columns are dealt out alike, so the"
    )
    canvas.text(0, y + 17, "same columns meet in each product; only the order of the sum differs.")
    return single(
        f"Which lane loads which of {columns} columns of a key",
        "; ".join(said) + ". The query is dealt alike.",
        canvas,
    )
