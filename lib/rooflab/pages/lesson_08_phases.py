"""What is left of a token's time beside its bytes, in lesson 08: what its phases cost, rung by rung and, of
the first rung, phase by phase.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rooflab.analysis import ablation
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_08_ladder import level_formats
from rooflab.studies import decode
from rooflab.view import diagram, display, models
from rooflab.words import listed

_FIRST = "3_persistent"  # the rung that the fastest is compared with
_FILLED = "copies of the next weights fill the waits, and small weights fill less of them"
_EVEN = 1.1  # largest cost of a phase over the smallest: hardly depends on the format


def beside_bytes(here: Rows, roof: float) -> Rows:
    """Rows with `bytes_us`, the time of their bytes at the read roof (GB/s), their `phases`, and what each
    costs beside them (`each`).
    """
    phases, bytes_us = here.model.map(ablation.phases_of), here.bytes / roof / 1e3
    return here.assign(bytes_us=bytes_us, phases=phases, each=(here.median_us - bytes_us) / phases)


def what_is_left(here: Rows, climbs: dict[str, Any], roof: Any, gpu: str) -> None:
    """Say what a token of the fastest way spends beside its bytes, draw it beside an earlier rung in every
    format, and say which formats are level though one has fewer bytes.
    """
    mine = here[here.usual & here.impl.isin(decode.RUNGS)].dropna(subset="median_us")
    best = mine.sort_values("median_us").impl.iloc[0]
    order = [f for f in ablation.FORMATS if f in set(mine.format)]
    chosen = mine[mine.impl.isin((_FIRST, best))].sort_values(["impl"])
    chosen = beside_bytes(
        chosen.sort_values("format", key=lambda f: f.map(order.index), kind="stable"), roof.value
    )
    level = chosen[chosen.median_us <= LEVEL * mine.median_us.min()].sort_values("bytes")
    top = level.iloc[0]  # of those that are level: it has most to gain
    tied = [name for name in dict.fromkeys(level.weights_as) if name != top.weights_as]
    text = f"`{top.impl}` with {top.weights_as} weights{'' if tied else ', the fastest way,'} makes "
    text += f"**{top.tok_s:,.0f} tok/s**, {f'level with {listed(tied)}, ' if tied else ''}"
    display.say(
        f"{text}{top.roof_fraction:.0%} of the roof on the {gpu}. A token's {top.phases} phases each fetch "
        "numbers from L2, add up, and hand on; no bandwidth shortens these waits. A phase's cost is what it "
        f"takes beside its bytes at the read roof, {roof.value:,.0f} GB/s."
    )
    diagram.beside_bytes(chosen).show()
    by_format, equal = _by_format(chosen, best), _equal_heads(here, climbs, roof.value)
    if equal:
        equal += ", for the same reason." if _FILLED in by_format else "."
    display.say(" ".join(filter(None, (by_format, _level(climbs), equal))))


def _by_format(chosen: Rows, best: str) -> str:
    """How what a phase costs depends on the format, in the earlier rung and in the fastest."""
    before, after = (
        chosen[chosen.impl == name].sort_values("bytes", ascending=False) for name in (_FIRST, best)
    )
    text = ""
    if len(before) > 1 and 0 < before.each.max() < _EVEN * before.each.min():
        text = f"In `{_FIRST}` a phase costs about as much in every format. "
    costs = after.each.tolist()
    if best != _FIRST and len(costs) > 1 and all(a < b for a, b in pairwise(costs)):
        text += (
            f"In `{best}`, on this model with the usual heads, it costs the more the fewer bytes a token "
            f"has: {_FILLED}."
        )
    return text.strip()


def _level(climbs: dict[str, Any]) -> str:
    """Which formats' fastest rungs take the same time although one reads a fifth less."""
    if (pair := level_formats(climbs)) is None:
        return ""
    a, b = pair
    small, large = (ablation.FORMATS[row.format] for row in pair)
    return (
        f"**{small} is level with {large}, {a.median_us:,.0f} and {b.median_us:,.0f} µs a token, though "
        f"it reads {1 - a.bytes / b.bytes:.0%} fewer bytes.**"
    )


def _equal_heads(here: Rows, climbs: dict[str, Any], roof: float) -> str:
    """How two level formats compare where the larger one has the smaller one's output head, too, and where
    the time goes that the fewer bytes save; without a full stop.
    """
    if (pair := level_formats(climbs)) is None:
        return ""
    small, large = (row.format for row in pair)
    head = decode.FORMATS[small]
    rungs = beside_bytes(here[here.impl.isin(decode.RUNGS)].dropna(subset="median_us"), roof)
    tops = rungs[rungs["head"] == head].sort_values("median_us").drop_duplicates("format").set_index("format")
    if not {small, large} <= {*tops.index}:
        return ""
    a, b = tops.loc[small], tops.loc[large]
    saved, gained = b.bytes_us - a.bytes_us, b.median_us - a.median_us
    if saved <= 0 or gained >= saved:
        return ""
    text = f"With equal output heads, in {ablation.FORMATS[head]}, {ablation.FORMATS[small]}'s fewer bytes "
    text += f"save {saved:,.0f} µs at the read roof"
    if gained <= 0:
        return f"{text} and no time: beside them a phase costs {a.each:.2f} µs in place of {b.each:.2f}"
    return (
        f"{text}, of which a token gains {gained:,.0f}: it makes {b.median_us / a.median_us:.2f} times the "
        f"tokens, not {b.bytes / a.bytes:.2f}. The rest is lost again: beside its bytes a phase costs "
        f"{a.each:.2f} µs in place of {b.each:.2f}"
    )


def time_by_phase(lab: Lab, format: str) -> None:
    """Show, folded, a token's traced time by phase beside that of its bytes, and which phase waits longest
    beyond them.
    """
    traced, whose = lab.profile("decode", decode.traced(), "cupti"), lab
    if traced.empty:
        whose = display.borrowed(lab, "no phase was traced")
        traced = whose.profile("decode", decode.traced(), "cupti")
    parts = ablation.split(traced, whose.roof["dram_read"].value)
    chosen = format if format in set(parts.format) else parts.format.iloc[0]
    one = parts[parts.format == chosen]
    heads = {"phase": "phase", "launches": "launches", "us": "µs a token", "each_us": "µs each"}
    heads |= {"roof_us": "its bytes, µs", "over": "beyond them, µs"}
    forms = dict.fromkeys(("us", "each_us", "roof_us", "over"), "{:,.1f}") | {"launches": "{:.0f}"}
    most = one[one.phase != "between"].sort_values("over").iloc[-1]
    text = (
        f"`{decode.RUNGS[0]}` launches every phase on its own, so a tracer times each. The longest wait "
        f"beyond the bytes, at the read roof, is in *{most.phase}*."
    )
    summary = f"A token of {decode.RUNGS[0]} by phases, {ablation.FORMATS[chosen]}, traced on {whose.run.gpu}"
    display.fold_parts(summary, [text, (one, heads, forms), _beyond_bytes(parts)])


def _beyond_bytes(parts: Rows) -> str:
    """How long phases take beyond their bytes by format, those with the most bytes first."""
    busy = parts[parts.phase != "between"]
    sums = busy.groupby("format", sort=False)[["over", "roof_us"]].sum().sort_values("roof_us")[::-1]
    if len(sums) < 2:
        return ""
    shown = listed(f"{over:,.0f} µs in {ablation.FORMATS[name]}" for name, over in sums.over.items())
    text = f"Beyond their bytes all phases take {shown}."
    apart, bytes_apart = (values.max() / values.min() for values in (sums.over, sums.roof_us))
    if apart < 1.2 < bytes_apart:
        text += f" That differs by {apart - 1:.0%} at most, the time of the bytes {bytes_apart:.1f} times."
    return text


def explorer_start(here: Rows, roof: Any) -> None:
    """Say how the explorer's first point differs from the row of the fastest rung with such weights."""
    model = models.MODELS["phases"]
    mine = here[here.usual & here.impl.isin(decode.RUNGS) & (here.format == model.start["weights"])]
    mine = beside_bytes(mine.dropna(subset="median_us").sort_values("median_us").head(1), roof.value)
    for row in mine[(mine.each > 0) & (mine.model == model.start["model"])].itertuples():
        display.say(
            f"It opens at {model.start['cost']:g} µs a phase; a phase of `{row.impl}` in "
            f"{row.weights_as} costs {row.each:.2f} µs."
        )
