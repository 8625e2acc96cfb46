"""What lesson 08's page shows of a token taken apart inside the kernel."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import engine
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.ops import decoder, decoder_plan, rung_of
from rooflab.pages import Rows, lesson_08_clock
from rooflab.pages.lesson_08_clock import PARTS, Clocks
from rooflab.studies import decode
from rooflab.view import diagram, display
from rooflab.view.diagram import by_block, decode_rungs, ring_between, svg
from rooflab.words import listed

_UNIT = 16  # rows of a matrix that a block of decode_step takes at a time
_CLOCK = (
    "With a macro set, a block's first thread stores its SM's clock at the marks of each phase. That costs a "
    "little, so a layer may take longer here than without."
)
CHUNK = {"fp16": 64, "q8_0": 128, "int4_g128": 128}  # weights of a row that a warp multiplies at a time


def blocks_over_time(lab: Lab, clocks: Clocks, climbs: dict[str, Rows]) -> None:
    """Show, folded, a layer block by block by the rungs of `decode.timed`, in each format in which they were
    timed so, and what the clock says of all; say where none was.
    """
    names = list(dict.fromkeys(case.impl for case in decode.timed(lab.sized)))
    drawn = {key: rows for key, rows in clocks.items() if key[0] in names}
    if not drawn:
        listed_names = ", ".join(f"`{name}`" for name in names)
        display.say(f"On the {lab.run.gpu} this is not yet measured of {listed_names}.")
        return
    sums = {key: by_block.sums(rows) for key, rows in clocks.items()}
    formats = list(dict.fromkeys(format for _, format in clocks))
    lines, last = [], names[-1]
    for format in formats:
        others = [each[0] for (name, its), each in sums.items() if its == format and name != last]
        lines.append(bool(others) and (last, format) in sums and sums[last, format][0] < 0.9 * min(others))
    summary = f" **`{last}` spends the least on waits and inputs.**" if lines and all(lines) else ""
    order = sorted(sums, key=lambda key: (formats.index(key[1]), key[0]))
    table = pd.DataFrame(
        [(ablation.FORMATS[key[1]], key[0], sum(sums[key]), *sums[key]) for key in order],
        columns=["format", "rung", "us", *PARTS],
    )
    heads = {"format": "weights", "rung": "rung", "us": "a layer"} | {part: part for part in PARTS}
    caption = f"µs a layer, {lab.run.gpu}, on average over its blocks; waits and inputs: with attention; "
    caption += "products: with waits for weights; stores: with adding up"
    forms = dict.fromkeys(("us", *PARTS), "{:.1f}")
    parts: list[Any] = [_CLOCK + summary, diagram.blocks(pd.concat(drawn.values())).html()]
    parts.append((table, heads, forms, caption))
    parts += filter(None, [lesson_08_clock.disagreements(clocks, climbs)])
    display.fold_parts("One layer, block by block, by the clock inside the kernel", parts)


def divided(lab: Lab, format: str) -> tuple[str, diagram.Drawing] | None:
    """Words and drawing of the output product's work by block in the page's `format`, where rows alone leave
    SMs without work: by rows, and cut along k too, as the rung's launch rule and schedule.cuh have it.
    """
    sms, shape = int(lab.run["sms"]), engine.spec(decode.MODEL).shape
    rows, k = shape.matrices["out"]
    tiles = rows // _UNIT
    if tiles >= sms:
        return None
    rung = rung_of(decoder.LADDERS["decode_step"], decode.DIVIDED, decode.DIVIDED)
    slabs = decoder_plan.split_for(rung, shape, format, sms, "90")["OUT_SLABS"]
    chunks = k // CHUNK[format]
    parts = decode_rungs.chunks_by_block(tiles, chunks, slabs, sms)
    said = (
        f"The two have {rows:,} rows each, and a block takes {_UNIT} at a time: by rows {tiles} of {sms} SMs "
        f"have work. Drawn is the output product in {ablation.FORMATS[format]}, in chunks of {_UNIT} rows "
        f"by {k // chunks} weights: the busiest SM has {max(parts)} in place of {chunks}."
    )
    return said, decode_rungs.divided(tiles, chunks, slabs, sms)


def rings_drawn() -> None:
    """Draw a warp's ring from a phase to the next in the first rungs, in FP16."""
    ring_between.rings(engine.spec(decode.MODEL).shape, "fp16").show()


def barrier_drawn() -> diagram.Drawing:
    """Memory around a barrier in 3_persistent and in the rungs that keep it busy there, in FP16."""
    return decode_rungs.at_the_barrier(engine.spec(decode.MODEL).shape, "fp16")


def hardly_deferred() -> list[str]:
    """The formats in which no warp of 5_prefetch_at_barrier but a block's first leaves slots empty."""
    return [format for format, macros in _held_back().items() if not macros["HELD_BACK"]]


def _held_back() -> dict[str, dict[str, int]]:
    """The macros of 5_prefetch_at_barrier by format, as built for an H200."""
    shape, name = engine.spec(decode.MODEL).shape, "5_prefetch_at_barrier"
    rung = rung_of(decoder.LADDERS["decode_step"], name, name)
    return {
        format: decoder_plan.macros_for(rung, shape, format, head, "90", {})
        for format, head in decode.FORMATS.items()
    }


def slots_left_empty() -> str:
    """How many slots a warp of 5_prefetch_at_barrier leaves empty in each format."""
    name, words, none = "5_prefetch_at_barrier", list[str](), list[str]()
    for format, macros in _held_back().items():
        each, first, stages = (macros[macro] for macro in ("HELD_BACK", "FIRST_HELD", "STAGES"))
        words.append(f"{each} of {stages} in {ablation.FORMATS[format]}")
        if not each:
            only = "no warp but a block's first leaves any" if first else "none is left"
            none.append(
                f" In {ablation.FORMATS[format]} {only}, so `{name}` hardly differs from `3_persistent` "
                "there."
            )
    return (
        f"How many slots a warp of `{name}` leaves empty was chosen by trial on an H200: {listed(words)}."
        f"{''.join(none)}"
    )


def other_rungs_drawn() -> None:
    """Draw, folded, what the rungs change that neither the ladder nor a listing shows."""
    shape = engine.spec(decode.MODEL).shape
    drawn = [
        decode_rungs.who_copies(),
        decode_rungs.heads_a_load(shape),
    ]
    svg.fold("Drawn: what 4_tma and 8_tensor_attention change", drawn)
