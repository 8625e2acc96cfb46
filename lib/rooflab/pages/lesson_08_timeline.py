"""What lesson 08's page shows of a token taken apart inside the kernel."""

from __future__ import annotations

import pandas as pd

from rooflab import engine
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.ops import decoder, decoder_plan, rung_of
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
    sums = {
        decode.Decode().case(str(case)).impl: by_block.sums(mine)
        for case, mine in found.groupby("case", sort=False)
    }
    summary, rest, last = "", [each[0] for each in list(sums.values())[:-1]], list(sums)[-1]
    if rest and sums[last][0] < 0.9 * min(rest):
        summary = f"**`{last}` spends the least on waits and input.** "
    summary += (
        "The marks do not part waits from loads: at a barrier a block waits in the empty stretches, without "
        "barriers in the pale ones. So the table adds up the two, and attention."
    )
    display.say(summary)
    columns = {
        "waits": "waits, input, attention",
        "weights": "weights and products",
        "ends": "adds up and stores",
    }
    table = pd.DataFrame([(name, *each) for name, each in sums.items()], columns=["rung", *columns])
    caption = f"µs a layer, {lab.run.gpu}, on average over its blocks"
    display.table(table, {"rung": "rung"} | columns, dict.fromkeys(columns, "{:.1f}"), caption)
    if notes := _unmarked(found, list(sums)):
        display.say(notes)


def _unmarked(found: pd.DataFrame, names: list[str]) -> str:
    """What the drawing's colours do not compare, and which blocks of its first rung have hardly work."""
    lines = []
    own = [f"`{name}`" for name in names if by_block.copies_itself(name)]
    if own and len(own) < len(names):
        lines.append(
            f"Do not compare orange alone: in {listed(own)} the warp that multiplies also asks for the "
            "copies, and the time for that counts as blue."
        )
    first = found[found["case"] == found["case"].iloc[0]]
    took = first["down_multiplied_us"] - first["down_ready_us"]
    if idle := int((took < 0.2 * took.median()).sum()):
        lines.append(
            f"Lines without blue in *down*: {idle} of {len(first)} blocks of `{names[0]}` have hardly a part "
            "of that product."
        )
    return "\n\n".join(lines)


def steps_drawn(lab: Lab) -> None:
    """Draw two steps that the layer by blocks lacks: a dependent launch, and k divided over blocks."""
    diagram.dependent_launch().show()
    sms, rows = int(lab.run["sms"]), model_shapes.get(decode.MODEL).hidden
    tiles = rows // _UNIT
    text = "Every kernel begins with its first loads. The picture marks those of kernel 2, which overlap "
    text += "kernel 1."
    if tiles < sms:
        text += f"\n\nThe output product has {rows:,} rows. A block takes {_UNIT} of them at a time, so "
        text += f"{tiles} blocks have work. `7_split_k` also cuts each row into parts, so that all {sms} "
        text += "SMs have work."
    display.say(text)
    if tiles < sms:
        parts = [("divided by rows", tiles), ("7_split_k: by k, too", sms)]
        diagram.dealt(parts, sms, "Blocks with work in the output product").show()


def phase_end_drawn() -> None:
    """Draw what a warp and memory do at a phase's end in 3_persistent and in 5_prefetch_at_barrier, in FP16,
    and say how many slots the latter leaves empty in each format.
    """
    shape, name = engine.spec(decode.MODEL).shape, "5_prefetch_at_barrier"
    decode_rungs.held_back(shape, "fp16").show()
    rung = rung_of(decoder.LADDERS["decode_step"], name, name)
    words = []
    for format, head in decode.FORMATS.items():
        macros = decoder_plan.macros_for(rung, shape, format, head, "90", {})
        each, first, stages = (macros[macro] for macro in ("HELD_BACK", "FIRST_HELD", "STAGES"))
        words.append(
            f"{each} of {stages} in {ablation.FORMATS[format]}"
            + (f" (the first warp {first})" if first != each else "")
        )
    display.say(
        f"The picture is FP16's. As built for an H200, a warp of `{name}` leaves so many slots of its ring "
        f"empty: {listed(words)}."
    )


def other_rungs_drawn() -> None:
    """Draw, folded, what the rungs change that neither the ladder nor a listing shows."""
    shape = engine.spec(decode.MODEL).shape
    drawn = [
        decode_rungs.who_copies(),
        decode_rungs.heads_a_load(shape),
    ]
    svg.fold("Drawn: what 4_tma and 8_tensor_attention change", drawn)
