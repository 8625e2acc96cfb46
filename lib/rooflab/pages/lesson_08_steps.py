"""What lesson 08's page shows of its climb: what each rung changes and gains, and the steps that lose."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import engine
from rooflab.analysis import ablation
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.ops import decoder
from rooflab.pages import Rows, lesson_08_clock, lesson_08_timeline
from rooflab.pages.lesson_08_clock import Clocks
from rooflab.pages.lesson_08_ladder import short_name, side_by_side
from rooflab.profile import parts
from rooflab.studies import decode
from rooflab.view import diagram, display
from rooflab.view.diagram import layers
from rooflab.words import counted, listed

_FUSED, _RING = "1_kernel_per_phase", "6_producer_warps"
# What a rung changes, in a reader's words; of one that this lacks, its idea.
_CHANGES = {
    _FUSED: "A layer is five launches: norm, rotation, residual and gating move into the product beside "
    "them.",
    "2_pdl": "A launch starts before the one in front has ended, and loads its first weights meanwhile.",
    "3_persistent": "One launch makes all tokens. A grid barrier, at which every block waits for all others, "
    "ends each phase.",
    "4_tma": "As 3; one instruction of one lane copies a chunk of weights, by Hopper's tensor memory "
    "accelerator (TMA).",
    "5_prefetch_at_barrier": "As 3; a warp asks for some of its weights only at the barrier, so that memory "
    "has work while blocks wait.",
    _RING: "As 3; some warps only copy weights, the others only multiply.",
    "7_split_k": "As 6, in INT4 as 5; the output product and down are divided along k too, the inner "
    "dimension, over which a product sums. So every SM has a part.",
    "8_tensor_attention": "As 7; all query heads that share keys attend together, on the tensor cores: for "
    "long contexts.",
    "9_flags_in_data": "As 7; numbers that blocks hand on carry flags, and no barrier separates phases.",
}


def rungs(climbs: dict[str, Any], format: str) -> None:
    """Show what each rung changes, and in a format its rate, predicted and measured, and how many times the
    speed of the one that it builds on.
    """
    ladder, climb = decoder.LADDERS["decode_step"], climbs[format]
    table = pd.DataFrame(
        {"rung": [r.name for r in ladder], "says": [_CHANGES.get(r.name, r.idea) for r in ladder]}
    )
    heads, caption = {"rung": "rung", "says": "what it changes"}, "The rungs"
    if len(climb):
        both = side_by_side(climb).set_index("impl")
        for name in ("said", "tok_s", "gain"):
            table[name] = table["rung"].map(both[name])
        table["said"] = table["said"].fillna("")
        heads |= {"said": "predicted", "tok_s": "measured", "gain": "×"}
        caption += f" in {ablation.FORMATS[format]}, tokens a second; ≤: the roof, where no other prediction "
        caption += "was made; ×: the speed of the step that it builds on, of which "
        caption += f"{1 / crossover.LEVEL:.2f} to {crossover.LEVEL:.2f} is level"
    display.table(table, heads, {"tok_s": "{:,.0f}", "gain": "{:.2f}"}, caption)


def step(climbs: dict[str, Any], format: str, *names: str) -> None:
    """Say how many times the speed of what they build on rungs have, `format` first."""
    order = sorted(climbs, key=lambda each: each != format)
    for name in names:
        rows = [row for each in order for row in climbs[each].itertuples() if row.impl == name]
        found = [(row, short_name(row.below)) for row in rows if row.gain == row.gain and row.below]
        if not found:
            continue
        alike = len({below for _, below in found}) == 1
        words = [
            f"{row.gain:.2f} times {'' if alike and k else f'the speed of {below} '}in "
            f"{ablation.FORMATS[row.format]}"
            for k, (row, below) in enumerate(found)
        ]
        called = f"`{name}`: " if len(names) > 1 else ""
        display.say(f"{called}**{words[0]}**{''.join(f', {each}' for each in words[1:])}.")


def launches(lab: Lab) -> None:
    """Show the launches of a layer by the library, by `products` and by the first rung."""
    shape, model = engine.spec(decode.MODEL).shape, model_shapes.get(decode.MODEL)
    lines: list[tuple[str, str, str]] = []
    traced = layers.library_launches(lab).get("graph")
    said, products = "", len(shape.matrices) - 1
    if traced is not None:
        weights = traced[0][traced[0]["part"].isin(parts.WEIGHTS)]
        sums = int((weights["class"] == "reduce").sum())
        lines.append(("graph (the library)", f"{len(traced[0])}", f"{len(weights)}"))
        if sums and len(weights) == model_shapes.gemvs(model) / model.layers + sums:
            said = (
                f"Of the library's {len(weights)}, {counted(sums, 'adds', 'add')} up what it divided along "
            )
            said += (
                f"*k*; the others are a layer's {len(weights) - sums} products. `products` makes {products} "
            )
            said += "of them: queries, keys and values are one, gate and up another."
    lines.append(("products", "not traced", f"{products}"))
    fused = [way for way in diagram.ways(lab, "fp16") if way.name == _FUSED and way.spans]
    for way in fused:
        lines.append((way.name, f"{len(way.spans)}", f"{sum(span.kind == 'weights' for span in way.spans)}"))
    table = pd.DataFrame(lines, columns=["step", "all", "weights"])
    heads = {"step": "step", "all": "launches a layer", "weights": "of them for products"}
    display.table(table, heads)
    if said:
        display.say(said)


def at_phase_end(clocks: Clocks) -> None:
    """Say, folded, how many slots are left empty, what the clock shows of the ring of rung 6, and which ring
    later rungs take in which format.
    """
    said = lesson_08_clock.ring(clocks, _RING, "3_persistent")
    wins = [f for f, ring in decode.RINGS.items() if ring == _RING]
    rest = [f for f in decode.RINGS if f not in wins]
    if wins and rest:
        words = [listed(ablation.FORMATS[f] for f in each) for each in (wins, rest)]
        said += (
            f" `{decode.DIVIDED}` and later rungs, as built for an H200, take the ring of rung 6 in "
            f"{words[0]} and that of rung 5 in {words[1]}."
        )
    shown = [lesson_08_timeline.slots_left_empty(), *filter(None, [said.strip()])]
    display.fold_parts("How many slots are left empty, and what the clock says of it, by format", shown)


def flags(clocks: Clocks, climbs: dict[str, Any]) -> None:
    """Say what the clock shows of the last rung."""
    if said := lesson_08_clock.saved(clocks, "9_flags_in_data", climbs):
        display.say(said)


def losses(climbs: dict[str, Any], format: str, rows: Rows, clocks: Clocks) -> None:
    """Say, folded, which steps are slower than those they build on: by how much in every format, where they
    win, and where the clock saw their time go.
    """
    mine = climbs[format] if len(climbs[format]) else climbs["fp16"]
    back = mine[(mine.kind == "own") & (mine.gain < 1 / crossover.LEVEL)]
    if back.empty:
        display.say("No step is slower than the one that it builds on.")
        return
    long = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & rows.usual & rows.impl.isin(decode.RUNGS)]
    lines = []
    for name in back.impl:
        gains = {
            other: float(each.set_index("impl").gain[name])
            for other, each in sorted(climbs.items(), key=lambda pair: pair[0] != mine.format.iloc[0])
            if name in set(each.impl)
        }
        said = listed(f"{gain:.2f} ({ablation.FORMATS[other]})" for other, gain in gains.items())
        below = mine.set_index("impl").below[name]
        why = [_wins(name, gains, long)]
        if name != _RING:  # said beside its picture
            lost = [other for other, gain in gains.items() if gain < 1 / crossover.LEVEL]
            why += [lesson_08_clock.loss(clocks, name, below, other) for other in lost]
        told = " ".join(filter(None, why)) or "Why was not measured."
        lines.append(f"`{name}`: {said} times the speed of `{below}`. {told}")
    head = f"{counted(len(back), 'step loses', 'steps lose')} in {ablation.FORMATS[mine.format.iloc[0]]}: "
    display.fold_items(head + listed(back.impl), lines)


def _wins(name: str, gains: dict[str, float], long: Rows) -> str:
    """Where a step that loses wins: after a long context, or in another format; empty where it does not."""
    tops = long.sort_values("median_us").drop_duplicates(["format", "seq"])
    at = sorted(tops[(tops.impl == name) & (tops.seq > decode.PROMPT)].seq.unique())
    if at:
        return f"After {at[-1]:,.0f} tokens it is the fastest rung."
    wins = [other for other, gain in gains.items() if gain > crossover.LEVEL]
    return f"In {listed(ablation.FORMATS[other] for other in wins)} it wins." if wins else ""
