"""What lesson 08's page shows of a token taken apart inside the kernel."""

from __future__ import annotations

import pandas as pd

from rooflab import engine
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.studies import decode
from rooflab.view import diagram, display
from rooflab.view.diagram import by_block, decode_rungs, svg
from rooflab.words import listed

_UNIT = 16  # rows of a matrix that a block of decode_step takes at a time


def blocks_over_time(lab: Lab) -> None:
    """Draw a layer block by block by each rung that was timed so; say where none was."""
    asked = lab.held("decode", decode.timed(lab.sized), "timeline")
    found = lab.profile("decode", asked, "timeline") if asked else None
    if found is None or found.empty:
        names = ", ".join(f"`{case.impl}`" for case in decode.timed(lab.sized))
        display.say(f"On the {lab.run.gpu} this is not yet measured of {names}.")
        return
    diagram.blocks(found).show()
    display.say(_read(found))


def _read(found: pd.DataFrame) -> str:
    """What the drawing shows: how long blocks wait for each other and for weights, by rung."""
    parts = {
        decode.Decode().case(str(case)).impl: by_block.shares(mine)
        for case, mine in found.groupby("case", sort=False)
    }
    others = listed(f"{part['others']:.0%} of the time in `{name}`" for name, part in parts.items())
    weights = listed(f"{part['starved']:.0%}" for part in parts.values())
    text = f"White is the wait for other blocks: {others}. Orange is the wait for weights: {weights}."
    first, last = list(parts.values())[0], list(parts.values())[-1]
    if len(parts) > 1 and last["others"] < first["others"] and last["starved"] > first["starved"]:
        text += " The last rung waits less for blocks and more for memory, which is the limit that should "
        text += "remain."
    return text


def steps_drawn(lab: Lab) -> None:
    """Draw two steps that the layer by blocks lacks: a dependent launch, and k divided over blocks."""
    diagram.dependent_launch().show()
    sms, tiles = int(lab.run["sms"]), model_shapes.get(decode.MODEL).hidden // _UNIT
    if tiles < sms:
        parts = [("divided by rows", tiles), ("7_split_k: by k, too", sms)]
        diagram.dealt(parts, sms, "Blocks with work in the output product").show()


def other_rungs_drawn() -> None:
    """Draw, folded, what the rungs change that neither the ladder nor a listing shows."""
    shape = engine.spec(decode.MODEL).shape
    drawn = [
        decode_rungs.who_copies(),
        decode_rungs.held_back(shape, "fp16"),
        decode_rungs.heads_a_load(shape),
    ]
    svg.fold("Drawn: what 4_tma, 5_prefetch_at_barrier and 8_tensor_attention change", drawn)
