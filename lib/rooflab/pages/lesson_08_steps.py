"""What lesson 08's page shows of its climb: what each rung changes and gains, and the steps that lose."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import ablation
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.ops import decoder
from rooflab.pages import NEAR, Rows, lesson_08_clock, lesson_08_timeline
from rooflab.pages.lesson_08_clock import Clocks
from rooflab.pages.lesson_08_ladder import short_name
from rooflab.studies import decode
from rooflab.view import diagram, display
from rooflab.words import counted, listed

_FUSED, _RING = "1_kernel_per_phase", "6_producer_warps"
_ASIDE = ("4_tma", "8_tensor_attention")  # their sections are in the appendix
_FIRST, _HELD, _LAST = "3_persistent", "5_prefetch_at_barrier", "7_split_k"
# What a rung changes, in a reader's words; of one that this lacks, its idea.
_CHANGES = {
    _FUSED: "A layer is five launches: the matrix products compute the small steps.",
    "2_pdl": "As 1; a launch starts before the one in front has ended.",
    "3_persistent": "One launch makes all tokens; a grid barrier ends each phase.",
    "4_tma": "As 3; one lane has the copy engine (TMA) copy a whole chunk.",
    "5_prefetch_at_barrier": "As 3; a warp starts some of its copies only at the barrier.",
    _RING: "As 3; some warps only copy, others multiply.",
    "7_split_k": "As 6, in INT4 as 5; two products are cut along k, so that all SMs have work.",
    "8_tensor_attention": "As 7; attention on the tensor cores.",
    "9_flags_in_data": "As 7; numbers carry flags, and no barrier separates phases.",
    "10_int4_bytes": "As 9; codes of INT4 are multiplied as bytes.",
}


def rungs(climbs: dict[str, Any], format: str) -> None:
    """Show what each rung changes, and in a format its rate, and how many times the speed of the step that it
    builds on.
    """
    ladder, climb = decoder.LADDERS["decode_step"], climbs[format]
    table = pd.DataFrame(
        {"rung": [r.name for r in ladder], "says": [_CHANGES.get(r.name, r.idea) for r in ladder]}
    )
    heads, caption = {"rung": "rung", "says": "what it changes"}, "The rungs"
    if len(climb):
        for name in ("tok_s", "gain"):
            table[name] = table["rung"].map(climb.set_index("impl")[name])
        table.loc[table["gain"].fillna(1.0).map(_loses).astype(bool), "says"] += " Loses here."
        heads |= {"tok_s": "tok/s", "gain": "×"}
        caption += f" in {ablation.FORMATS[format]}; ×: the speed of the step that it builds on, of which "
        caption += f"{1 / crossover.LEVEL:.2f} to {crossover.LEVEL:.2f} is level"
    table.loc[table["rung"].isin(_ASIDE), "says"] += " In the appendix."
    display.table(table, heads, {"tok_s": "{:,.0f}", "gain": "{:.2f}"}, caption)


def step(climbs: dict[str, Any], format: str, name: str) -> None:
    """Say how many times the speed of what it builds on a rung has, `format` first."""
    if said := _gains(climbs, format, name):
        display.say(said)


def _gains(climbs: dict[str, Any], format: str, name: str) -> str:
    order = sorted(climbs, key=lambda each: each != format)
    rows = [row for each in order for row in climbs[each].itertuples() if row.impl == name]
    found = [(row, short_name(row.below)) for row in rows if row.gain == row.gain and row.below]
    alike = len({below for _, below in found}) == 1
    if found and alike and all(_level(row.gain) for row, _ in found):
        formats, gains = (
            listed(ablation.FORMATS[row.format] for row, _ in found),
            [row.gain for row, _ in found],
        )
        return (
            f"Level with {_code(found[0][1])} in {formats}: {listed(f'{gain:.2f}' for gain in gains)} times."
        )
    words = [
        f"{row.gain:.2f} times {'' if alike and k else f'the speed of {_code(below)} '}in "
        f"{ablation.FORMATS[row.format]}{' (level)' * _level(row.gain)}"
        for k, (row, below) in enumerate(found)
    ]
    bold = "**" if found and not _level(found[0][0].gain) else ""
    return f"{bold}{words[0]}{bold}{''.join(f', {each}' for each in words[1:])}." if words else ""


def fused(climbs: dict[str, Any]) -> None:
    """Draw the launches that the first rung takes the place of, and say that they take a token's time where
    smaller weights leave it as it is.
    """
    diagram.launches_fused().show()
    tok = {name: each.set_index("impl").tok_s.get("products") for name, each in climbs.items() if len(each)}
    fp16, int4 = (tok.get(name) for name in ("fp16", "int4_g128"))
    gains = climbs["int4_g128"].set_index("impl").gain if int4 else {}
    if fp16 and int4 and int4 <= crossover.LEVEL * fp16 and gains.get(_FUSED, 0.0) > NEAR:
        display.say(
            f"INT4 has a quarter of FP16's bytes a weight, but `products` makes {int4:,.0f} tok/s in INT4 "
            f"and {fp16:,.0f} in FP16: its launches take the time, not its bytes."
        )


def _code(below: str) -> str:
    """A step's name in a sentence: one that is a word is set as code."""
    return below if " " in below else f"`{below}`"


def at_the_barrier(climbs: dict[str, Any]) -> None:
    """Draw what memory does around a barrier; say what rung 5 gains in FP16, where slots are left for it, and
    in the other formats.
    """
    lesson_08_timeline.barrier_drawn().show()
    _one_format(climbs, _HELD)


def producers(climbs: dict[str, Any]) -> None:
    """Say what rung 6 gains in FP16, and in the other formats."""
    _one_format(climbs, _RING)


def _one_format(climbs: dict[str, Any], name: str) -> None:
    here = next((each for each in ("fp16", *climbs) if len(climbs[each])), "fp16")
    words = [_gains({here: climbs[here]}, here, name)]
    for format, climb in climbs.items():
        gain = climb.set_index("impl").gain.get(name, float("nan")) if len(climb) else float("nan")
        if format != here and gain == gain:
            brings = "brings nothing" if _level(gain) else "loses" if gain < 1 else "gains"
            words.append(f"In {ablation.FORMATS[format]} it {brings}: {gain:.2f} times.")
    if said := " ".join(filter(None, words)):
        display.say(said)


def divided_along_k(climbs: dict[str, Any], lab: Lab, format: str, clocks: Clocks) -> None:
    """Say and draw what 7_split_k divides, and what it gains in `format`; then what rungs 5, 6 and 7 gain
    together in each format, and which of them to climb; folded, what else depends on the format.
    """
    here = format if len(climbs[format]) else next((each for each in climbs if len(climbs[each])), format)
    cut = lesson_08_timeline.divided(lab, here)
    said = cut[0] if cut else "Every SM has rows of every product here."
    display.say(" ".join(filter(None, (said, _gains({here: climbs[here]}, here, _LAST)))))
    if cut:
        cut[1].show()
    rates = {each: climbs[each].set_index("impl").tok_s for each in decode.FORMATS if len(climbs[each])}
    gains = {each: tok[_LAST] / tok[_FIRST] for each, tok in rates.items() if {_FIRST, _LAST} <= {*tok.index}}
    if gains:
        words = [
            f"{gain:.2f} times in {ablation.FORMATS[each]}{' (level)' * _level(gain)}"
            for each, gain in sorted(gains.items(), key=lambda pair: -pair[1])
        ]
        display.say(f"**From `{_FIRST}` to `{_LAST}`: {listed(words)}.** {_climb(rates)}")
        table = pd.DataFrame({"rung": [_FIRST, _HELD, _RING, _LAST]})
        for each in gains:
            table[each] = table["rung"].map(rates[each])
        heads = {"rung": "rung"} | {each: ablation.FORMATS[each] for each in gains}
        display.table(table, heads, dict.fromkeys(gains, "{:,.0f}"), "Tokens a second, by format")
    rest = [lesson_08_timeline.slots_left_empty(), lesson_08_clock.ring(clocks, _RING, _FIRST)]
    display.fold_parts("Slots and rings by format", [part for part in rest if part])


def _climb(rates: dict[str, Any]) -> str:
    """Which rungs lead to 7_split_k in which format, as built for an H200."""
    by_six = [f for f in rates if decode.RINGS[f] == _RING]
    rest = [f for f in rates if f not in by_six]
    bare = [f for f in rest if f in lesson_08_timeline.hardly_deferred()]
    ways = ((by_six, "3, 6 and 7"), ([f for f in rest if f not in bare], "3, 5 and 7"), (bare, "3 and 7"))
    found = [f"in {listed(ablation.FORMATS[f] for f in names)} rungs {way}" for names, way in ways if names]
    text = f"The steps to build, in order: {'; '.join(found)}"
    return f"{text} (7 on rung 5's code, which there hardly differs from 3's)." if bare else f"{text}."


def _level(gain: float) -> bool:
    """Whether a gain is level as it is printed, with two digits."""
    return bool(round(1 / crossover.LEVEL, 2) <= round(gain, 2) <= round(crossover.LEVEL, 2))


def _loses(gain: float) -> bool:
    """Whether a step is slower than the one that it builds on, and not level."""
    return gain < 1 and not _level(gain)


def built_for(name: str, format: str) -> dict[str, int]:
    """The macros of a rung with the ring that a format takes, for the listing of its kernel."""
    given = next(r.defines for r in decoder.LADDERS["decode_step"] if r.name == name)
    return {**given, "PRODUCERS": given["PRODUCERS"] if decode.RINGS[format] == _RING else 0}


def losses(climbs: dict[str, Any], format: str, rows: Rows, clocks: Clocks) -> None:
    """Say, folded, which steps are slower than those they build on: by how much in every format, where they
    win, and where the clock saw their time go.
    """
    mine = climbs[format] if len(climbs[format]) else climbs["fp16"]
    back = mine[(mine.kind == "own") & mine.gain.fillna(1.0).map(_loses).astype(bool)]
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
        lost = [other for other, gain in gains.items() if _loses(gain)]
        why = [
            _wins(name, gains, long),
            *(lesson_08_clock.loss(clocks, name, below, other) for other in lost),
        ]
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
    wins = [other for other, gain in gains.items() if gain > 1 and not _level(gain)]
    return f"In {listed(ablation.FORMATS[other] for other in wins)} it wins." if wins else ""
