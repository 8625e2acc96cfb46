"""What fills a block's shared memory in attention's rungs 10 and 12, to scale: places for 64 rows of 512
columns, and what else a block takes. Sizes come from the launch rules, the number of slots from the source.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import attention
from rooflab.ops.attention_tiles import launch_of, static_shared
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, NONE, SKY, Canvas, Drawing, single

PLACE = 64  # KiB: 64 rows of 512 columns in FP16
OF_AN_SM = 228  # KiB of shared memory, compute capability 9.0


class Filled(NamedTuple):
    """KiB of shared memory that a block takes in all; whether queries have a place; slots of the ring."""

    kib: int
    queries: bool
    slots: int
    place: int = PLACE
    of: int = OF_AN_SM  # that an SM has


def filled(name: str, text: str | None = None) -> Filled:
    """What a block of a rung 512 wide takes; `text` replaces its source. UsageError for one without slots."""
    rung = next(each for each in attention.LADDERS["attention"] if each.name == name)
    text = rung.path.read_text(encoding="utf-8") if text is None else text
    named, barriers = re.search(r"\bSLOTS = (\d+)", text), re.search(r"\bfull\[(\d+)\], empty\[\1\]", text)
    found = named or barriers
    if not found:
        raise UsageError(f"{name} has no slots of a ring.")
    macros = rung.with_defaults({"HEAD_DIM": 512})
    kib = -(-(launch_of(rung, macros).shared + static_shared(rung, macros)) // 1024)
    return Filled(kib, re.search(r"\bring = queries \+|\*queries = shared", text) is not None, int(found[1]))


def places(names: tuple[str, ...]) -> Drawing:
    """The shared memory of an SM with what a block of each rung puts there."""
    canvas, left, said = Canvas(), 64.0, []
    unit = (svg.WIDTH - left - 2) / OF_AN_SM
    for k, name in enumerate(names):
        one, y, number = filled(name), 52.0 * k, name.partition("_")[0]
        ring = [f"slot {slot}: K or V" for slot in range(one.slots)]
        if one.queries and one.slots == 2:
            ring = ["slot of K", "slot of V"]
        cells = ["Q"] * one.queries + ring
        fills = [AMBER] * one.queries + [SKY] * one.slots
        rest = one.kib - PLACE * len(cells)
        canvas.text(0, y + 20, f"rung {number}", bold=True)
        canvas.rect(left, y, OF_AN_SM * unit, 34, NONE)
        boxes = [
            (left + at * PLACE * unit, y, PLACE * unit, 34.0, words, fill)
            for at, (words, fill) in enumerate(zip(cells, fills, strict=True))
        ]
        canvas.boxes(boxes, 13)
        canvas.cell(left + PLACE * len(cells) * unit, y, rest * unit, 34, "rest", GREY)
        words = f"{len(cells)} places of {PLACE} KiB and {rest} KiB more, of an SM's {OF_AN_SM}"
        canvas.text(left, y + 47, words, svg.SMALL)
        queries = "queries, " if one.queries else ""
        said.append(f"rung {number}: {queries}{one.slots} slots for keys and values, {one.kib} KiB")
    says = f"Of {OF_AN_SM} KiB of shared memory that an SM has a block takes, in {'; in '.join(said)}."
    return single("What fills shared memory", says, canvas)
