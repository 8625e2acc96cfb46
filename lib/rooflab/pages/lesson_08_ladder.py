"""What lesson 08's page shows of its ladder: steps predicted and measured, the largest, and level formats."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from rooflab.analysis import ablation
from rooflab.hardware import crossover
from rooflab.pages import NEAR, Rows
from rooflab.pages.lesson_08_predictions import carries_roof, without_roofs
from rooflab.studies import decode
from rooflab.view import display
from rooflab.words import listed, times


def climbed(rows: Rows) -> dict[str, Any]:
    """The ladders by format, with `reached`, measured over predicted."""
    found = {format: ablation.ladder(rows, format) for format in ablation.FORMATS}
    return {format: climb.assign(reached=climb.tok_s / climb.predicted) for format, climb in found.items()}


def ladders(climbs: dict[str, Any], gpu: str, here: Rows, format: str) -> None:
    """Show every step of all formats, `format` first, with times and shares of the roof, folded."""
    held = [each for each, climb in climbs.items() if len(climb)]
    for each in sorted(held, key=lambda name: name != format):
        climb = climbs[each]
        size = climb.bytes.max() / 1e6
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
        text = f"A generation has {here.steps.max()} tokens; fewer where a few are enough: {words}."
        if "apart" in set(few.impl):
            text += " `apart` is `torch` with a product for each matrix of the checkpoint."
        display.say(text)


def side_by_side(climb: Rows) -> Rows:
    """A ladder with `said`, the prediction, the roof as the most that a step may make."""
    shown, roofs = without_roofs(climb), carries_roof(climb)
    shown["said"] = [
        "" if rate != rate else f"≤ {rate:,.0f}" if roof else f"{rate:,.0f}"
        for rate, roof in zip(climb["predicted"], roofs, strict=True)
    ]
    return shown


def short_name(name: str) -> str:
    """A step's name in a cell: "rung 3" of a rung."""
    number = name.partition("_")[0]
    return f"rung {number}" if number.isdigit() else name


def findings(climbs: dict[str, Any], format: str, rows: Rows) -> None:
    """Say the ladder's findings, numbered: the largest step and the fastest way, and a smaller format that
    brings less than its bytes; folded, where the larger model's fastest way is another.
    """
    found = [_largest_step(climbs, format), _small_format(climbs, rows)]
    display.say("\n\n".join(f"**{k}. {each}" for k, each in enumerate(filter(None, found), 1)))
    if other := _larger_model(rows):
        display.fold_items(f"Where other rungs come first: {decode.LARGE}", [other])


def _largest_step(climbs: dict[str, Any], format: str) -> str:
    """Which step brings the most, and the fastest way."""
    mine = climbs[format] if len(climbs[format]) else climbs["fp16"]
    own = mine[mine.kind == "own"].dropna(subset=["gain"])
    best = mine[mine.impl.isin(decode.RUNGS)].sort_values("median_us").iloc[0]
    step = own.sort_values("gain").iloc[-1]
    text = (
        f"The largest step in {ablation.FORMATS[best.format]} is `{step.impl}`: {step.gain:.1f} times the "
        f"tokens of `{step.below}`.**"
    )
    tok = {name: each.set_index("impl").tok_s.get("products") for name, each in climbs.items() if len(each)}
    fp16, int4 = (tok.get(name) for name in ("fp16", "int4_g128"))
    if fp16 and int4 and int4 <= crossover.LEVEL * fp16 and step.below == "products" and step.gain > NEAR:
        text += (
            f" `products` makes {fp16:,.0f} tok/s in FP16 and {int4:,.0f} in INT4: a token waits for "
            "launches, not for bytes."
        )
    return text + (
        f" The fastest way is `{best.impl}` with **{best.tok_s:,.0f} tok/s**, {best.share:.0f}% of the roof."
    )


def _larger_model(rows: Rows) -> str:
    """Where the larger model's fastest rung is not the small one's; empty where it is in every format."""
    here = rows[(rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.usual & rows.impl.isin(decode.RUNGS)]
    words = []
    for format in ablation.FORMATS:
        small, large = (
            here[(here.model == name) & (here.format == format)].sort_values("median_us").set_index("impl")
            for name in (decode.MODEL, decode.LARGE)
        )
        if small.empty or small.index[0] not in large.index or small.index[0] == large.index[0]:
            continue
        top, usual = large.iloc[0], large.loc[small.index[0]]
        words.append(
            f"in {ablation.FORMATS[format]} `{top.name}` is the fastest, {top.tok_s:,.0f} tok/s against "
            f"{usual.tok_s:,.0f} of `{usual.name}`" + (" (level)" if display.level(top, usual) else "")
        )
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}." if words else ""


def _small_format(climbs: dict[str, Any], rows: Rows) -> str:
    """Which formats' fastest rungs take the same time although one reads a fifth less, and what the smaller
    brings where both have the same output head.
    """
    pair = level_formats(climbs)
    if pair is None:
        return ""
    a, b = pair
    small, large = (ablation.FORMATS[row.format] for row in pair)
    here = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT)]
    tops = here[here.impl.isin(decode.RUNGS)].sort_values("median_us").drop_duplicates(["format", "head"])
    tops = tops.set_index(["format", "head"])
    heads = [h for h in ablation.FORMATS if (a.format, h) in tops.index and (b.format, h) in tops.index]
    text = (
        f"With its usual output head {small} is level with {large}: {a.median_us:,.0f} and "
        f"{b.median_us:,.0f} µs a token, though it reads {1 - a.bytes / b.bytes:.0%} fewer bytes.**"
    )
    if heads:
        pairs = [(tops.loc[(a.format, head)], tops.loc[(b.format, head)]) for head in heads]
        brings = listed(
            f"{mine.tok_s / other.tok_s:.2f} times ({ablation.FORMATS[head]} heads)"
            for head, (mine, other) in zip(heads, pairs, strict=True)
        )
        allows = listed(times(other.bytes / mine.bytes) for mine, other in pairs)
        text += f" With equal heads {small} makes {brings} the tokens of {large}; by their bytes alone "
        text += f"{allows} times would be possible."
    return text + " The rest of a token is what its phases cost beside their bytes: see the law below."


def level_formats(climbs: dict[str, Any]) -> tuple[Any, Any] | None:
    """The rows of two formats' fastest rungs level although the first reads a fifth less; or None."""
    rungs = [climb[climb.impl.isin(decode.RUNGS)] for climb in climbs.values() if len(climb)]
    tops = [mine.sort_values("median_us").iloc[0] for mine in rungs if len(mine)]
    for a, b in combinations(sorted(tops, key=lambda row: row.bytes), 2):
        if display.level(a, b) and a.bytes < 0.8 * b.bytes:
            return a, b
    return None
