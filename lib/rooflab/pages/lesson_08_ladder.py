"""What lesson 08's page shows of its ladder: steps predicted and measured, the largest, those that lose."""

from __future__ import annotations

from typing import Any

from rooflab.analysis import ablation
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_08_predictions import carries_roof, level_formats, without_roofs
from rooflab.records.store import Store
from rooflab.studies import decode
from rooflab.view import display
from rooflab.view.diagram import by_block
from rooflab.words import listed

# What a step changes, in a table's cell; ablation.WAYS says it in a sentence.
_CHANGES = {
    "transformers.eager": "Python calls every kernel",
    "transformers.graph": "captured in a CUDA graph",
    "transformers.compile": "fused by a compiler",
    "apart": "torch, the engine's cache",
    "torch": "four products a layer",
    "products": "our matrix-vector products",
    "1_kernel_per_phase": "five launches a layer",
    "2_pdl": "launches overlap",
    "3_persistent": "one launch, grid barriers",
    "4_tma": "weights by TMA",
    "5_prefetch_at_barrier": "loads go on at barriers",
    "6_producer_warps": "some warps only copy",
    "7_split_k": "k divided: no SM idle",
    "8_tensor_attention": "attention on tensor cores",
    "9_flags_in_data": "flags in place of barriers",
}
_FEW = 0.05  # of a layer: a wait of which no change can win much


def ladders(rows: Rows, gpu: str, here: Rows, format: str) -> dict[str, Any]:
    """Show what every step in `format` changes, what was predicted of it and what it makes, and all formats
    with times and shares of the roof, folded; the ladders by format.
    """
    climbs = {format: ablation.ladder(rows, format) for format in ablation.FORMATS}
    held = [each for each, climb in climbs.items() if len(climb)]
    main = format if format in held else held[0] if held else ""
    for each in sorted(held, key=lambda name: name != main):
        climb = climbs[each]
        climb["reached"] = climb.tok_s / climb.predicted
        size = climb.bytes.max() / 1e6
        if each == main:
            caption = f"{ablation.FORMATS[each]}, {size:,.0f} MB a token, {gpu}, tokens a second"
            heads = {"impl": "step", "changes": "what it changes", "said": "predicted", "tok_s": "measured"}
            heads |= {"reached": "measured ÷ predicted", "against": "× what it builds on"}
            display.table(_side_by_side(climb), heads, {"tok_s": "{:,.0f}", "reached": "{:.2f}"}, caption)
        caption = f"{ablation.FORMATS[each]} with times and shares of the roof, {size:,.0f} MB a token, {gpu}"
        heads = {"impl": "step", "median_us": "µs a token", "tok_s": "tok/s", "predicted": "predicted"}
        heads |= {"reached": "measured ÷ predicted", "share": "% of the roof", "below": "builds on"}
        heads |= {"gain": "× the step it builds on"}
        forms = dict.fromkeys(("median_us", "tok_s", "predicted"), "{:,.0f}")
        forms |= {"share": "{:.0f}", "gain": "{:.2f}", "reached": "{:.2f}"}
        display.table(without_roofs(climb), heads, forms, caption, folded=True)
    few = here[here.usual & (here.steps < here.steps.max())].drop_duplicates(["impl", "steps"])
    if len(few):
        words = ", ".join(f"`{row.impl}` {row.steps}" for row in few.itertuples())
        display.say(f"A generation has {here.steps.max()} tokens; fewer where a few are enough: {words}.")
    return climbs


def _side_by_side(climb: Rows) -> Rows:
    """A ladder with `changes` in a few words; `said`, the prediction, the roof as the most that a step may
    make; and `against`, how many times the speed of the step that it builds on, a rung by its number.
    """
    shown, roofs = without_roofs(climb), carries_roof(climb)
    shown["said"] = [
        "" if rate != rate else f"≤ {rate:,.0f}" if roof else f"{rate:,.0f}"
        for rate, roof in zip(climb["predicted"], roofs, strict=True)
    ]
    shown["changes"] = [
        _CHANGES.get(name, says) for name, says in zip(climb["impl"], climb["says"], strict=True)
    ]
    shown["against"] = [
        f"{gain:.2f} × {below.partition('_')[0]}" if below and gain == gain else ""
        for gain, below in zip(climb["gain"], climb["below"], strict=True)
    ]
    return shown


def largest_step(climbs: dict[str, Any], format: str, lab: Lab) -> None:
    """Say which step brings the most, and which bring nothing."""
    mine = climbs[format] if len(climbs[format]) else climbs["fp16"]
    own = mine[mine.kind == "own"].dropna(subset=["gain"])
    step = own.sort_values("gain").iloc[-1]
    best = mine[mine.impl.isin(decode.RUNGS)].sort_values("median_us").iloc[0]
    text = (
        f"In {ablation.FORMATS[best.format]} the largest step of ours is **`{step.impl}`**: {step.says}; "
        f"{step.gain:.1f} times the tokens. The fastest way is `{best.impl}` with "
        f"**{best.tok_s:,.0f} tok/s**, "
        f"{best.share:.0f}% of the roof. "
    )
    ends = [
        f"{each.loc[best.impl].tok_s:,.0f} tok/s in {ablation.FORMATS[name]}"
        for name, climb in climbs.items()
        if name != best.format and best.impl in (each := climb.set_index("impl")).index
    ]
    text += f"`{best.impl}` makes {listed(ends)}." if ends else ""
    display.say(
        "\n\n".join(
            filter(None, (text.strip(), level_formats(climbs).strip(), _bytes_before(lab.store).strip()))
        )
    )


def dead_ends(climbs: dict[str, Any], format: str, rows: Rows, lab: Lab) -> None:
    """List the steps that are slower than those they build on: what each gains in every format, and what
    its loss teaches, as far as rows tell.
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
        lines.append(f"- `{name}`: {said} times the speed of `{below}`. {_taught(name, gains, long, lab)}")
    display.say("**What the losing steps teach:**\n\n" + "\n".join(lines))


def _taught(name: str, gains: dict[str, float], long: Rows, lab: Lab) -> str:
    """What a step's loss teaches: a longer context or another format where it wins, a wait that was short
    already, or that the cause was not measured.
    """
    tops = long.sort_values("median_us").drop_duplicates(["format", "seq"])
    at = sorted(tops[(tops.impl == name) & (tops.seq > decode.PROMPT)].seq.unique())
    if at:
        return (
            f"It is made for long contexts: after {at[-1]:,.0f} tokens it is the fastest rung. "
            "**Choose a rung by its context.**"
        )
    wins = [ablation.FORMATS[other] for other, gain in gains.items() if gain > crossover.LEVEL]
    if wins:
        return (
            f"In {listed(wins)} it wins. **A gain holds for the format in which it was measured.** Why the "
            "formats differ was not measured."
        )
    waits = _waits_for_weights(lab, "3_persistent") if name == "4_tma" else None
    if waits is not None and waits < _FEW:
        return (
            "A faster copy shortens only waits for weights, and blocks of `3_persistent` wait for them "
            f"{waits:.0%} of a layer (FP16, drawn below). **Speed up what is waited for.** Why it even loses "
            "was not measured."
        )
    return "Why was not measured."


def _waits_for_weights(lab: Lab, name: str) -> float | None:
    """The share of a layer that blocks of a rung wait for weights, by their own marks; None without any."""
    asked = [case for case in lab.held("decode", decode.timed(lab.sized), "timeline") if case.impl == name]
    found = lab.profile("decode", asked, "timeline") if asked else None
    if found is None or found.empty:
        return None
    return float(by_block.shares(found)["starved"])


def _bytes_before(store: Store) -> str:
    """Of our products in two formats before these steps: whether fewer bytes brought tokens there."""
    rows = ablation.named(store.read("decode"))
    rows = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.usual]
    tok = rows[rows.impl == "products"].set_index("format").tok_s
    if not {"fp16", "int4_g128"} <= set(tok.index) or tok["int4_g128"] > crossover.LEVEL * tok["fp16"]:
        return ""
    return (
        f"\n\n`products` makes {tok['fp16']:,.0f} tok/s in FP16 and {tok['int4_g128']:,.0f} in "
        "INT4: with so many launches a token does not wait for bytes."
    )
