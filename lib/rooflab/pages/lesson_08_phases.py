"""What is left of a token's time beside its bytes, in lesson 08: what its phases cost, rung by rung and, of
the first rung, phase by phase.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd

from rooflab.analysis import ablation
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows, lesson_08_timeline
from rooflab.pages.lesson_08_clock import Clocks
from rooflab.pages.lesson_08_ladder import level_formats
from rooflab.studies import decode
from rooflab.view import diagram, display, models
from rooflab.view.diagram import by_block
from rooflab.words import listed

_FIRST = "3_persistent"  # the rung that the fastest is compared with
_EVEN = 1.1  # largest cost of a phase over the smallest: hardly depends on the format


def beside_bytes(here: Rows, roof: float) -> Rows:
    """Rows with `bytes_us`, the time of their bytes at the read roof (GB/s), their `phases`, and what each
    costs beside them (`each`).
    """
    phases, bytes_us = here.model.map(ablation.phases_of), here.bytes / roof / 1e3
    return here.assign(bytes_us=bytes_us, phases=phases, each=(here.median_us - bytes_us) / phases)


def other_cost(ours: Any, lab: Lab) -> str:
    """What a phase costs in our fastest kernel with the library's weights, where the answer names it."""
    if ours is None:
        return ""
    row = beside_bytes(pd.DataFrame([ours]), lab.roof["dram_read"].value).iloc[0]
    return f" and {row.each:.2f} in {ablation.FORMATS[row.format]}"


def what_is_left(rows: Rows, climbs: dict[str, Any], roof: Any, gpu: str, clocks: Clocks) -> None:
    """Say what a token of the fastest way spends beside its bytes, draw it beside an earlier rung in every
    format, and say why a phase's cost depends on the format, and which formats are level though one has
    fewer bytes.
    """
    here = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT)]
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
    text = f"`{top.impl}` with {top.weights_as} weights{'' if tied else ', the fastest with the usual head,'}"
    text += f" makes **{top.tok_s:,.0f} tok/s**, {f'level with {listed(tied)}, ' if tied else ''}"
    display.say(
        f"{text}{top.roof_fraction:.0%} of the roof on the {gpu}. A token's {top.phases} phases each fetch "
        "numbers from L2, add up, and hand on; no bandwidth shortens these waits. A phase's cost is what it "
        f"takes beside its bytes at the read roof, {roof.value:,.0f} GB/s."
    )
    diagram.beside_bytes(chosen).show()
    by_format, rises = _by_format(chosen, best)
    later = decode.RUNGS.index(best) > decode.RUNGS.index(_FIRST)  # it copies while it waits
    why = _why(rows, best, roof.value, clocks) if rises and later else ""
    level_ones = " ".join(filter(None, (_level(climbs), _equal_heads(here, climbs, roof.value))))
    display.say("\n\n".join(filter(None, (" ".join(filter(None, (by_format, why))), level_ones))))


def _by_format(chosen: Rows, best: str) -> tuple[str, bool]:
    """How what a phase costs depends on the format, in the earlier rung and in the fastest; and whether in
    the fastest it is the more the fewer bytes a token has.
    """
    before, after = (
        chosen[chosen.impl == name].sort_values("bytes", ascending=False) for name in (_FIRST, best)
    )
    text, costs = "", after.each.tolist()
    if len(before) > 1 and 0 < before.each.max() < _EVEN * before.each.min():
        text = (
            f"In `{_FIRST}` a phase costs about as much in every format: {before.each.min():.2f} to "
            f"{before.each.max():.2f} µs. "
        )
    rises = best != _FIRST and len(costs) > 1 and all(a < b for a, b in pairwise(costs))
    if rises:
        text += (
            f"**In `{best}`, on this model with the usual heads, it costs the more the fewer bytes a token "
            "has.**"
        )
    return text.strip(), rises


def _why(rows: Rows, best: str, roof: float, clocks: Clocks) -> str:
    """Why a phase may cost the more the fewer bytes a token has, what the clock says of it, and the rows that
    it does not explain.
    """
    bare = [f for f in lesson_08_timeline.hardly_deferred() if decode.RINGS[f] != "6_producer_warps"]
    hardly = f" (in {listed(ablation.FORMATS[f] for f in bare)} hardly)" if bare else ""
    text = (
        f"The reason may be that copies fill waits. At a barrier of `{_FIRST}` rings are soon full, and no "
        f"weights are asked for, in any format. Later rungs copy while they wait{hardly}, and smaller "
        "weights leave less to copy."
    )
    if clocked := _copied_in_waits(clocks, best, roof):
        text += f" {clocked}"
    against = [each for each in (_other_heads(rows, best, roof), _other_model(rows, best, roof)) if each]
    if not against:
        return f"{text} This is a hypothesis."
    head = "This is a hypothesis, and bytes alone do not order the costs:"
    return "\n".join([f"{text}\n\n{head}\n", *(f"- {each}" for each in against)])


def _copied_in_waits(clocks: Clocks, best: str, roof: float) -> str:
    """By the clock inside the kernel, that more is copied outside products where a layer has more bytes;
    empty where two formats were not clocked or do not show it.
    """
    found = []
    for name, format in clocks:
        if name == best:
            bytes_ = ablation.phase_bytes(decode.MODEL, format, decode.FORMATS[format], decode.PROMPT)
            body = sum(value for phase, value in bytes_.items() if phase != "head")
            body_us = body / model_shapes.get(decode.MODEL).layers / roof / 1e3
            found.append((body_us, by_block.sums(clocks[name, format])[1], ablation.FORMATS[format]))
    few, many = min(found, default=()), max(found, default=())
    if len(found) < 2 or many[0] - many[1] <= max(0.1 * many[0], few[0] - few[1]):
        return ""
    return (
        f"By the clock inside the kernel `{best}` spends {many[1]:.1f} µs of a layer on products in "
        f"{many[2]}, though its bytes take {many[0]:.1f}: the others come while it waits. In {few[2]} "
        f"products take {few[1]:.1f} µs and the bytes {few[0]:.1f}."
    )


def _other_heads(rows: Rows, best: str, roof: float) -> str:
    """A format in which a token with another output head has more bytes, and a phase costs more, too."""
    here = rows[(rows.model == decode.MODEL) & (rows.impl == best) & (rows.batch == 1)]
    here = beside_bytes(here[here.seq == decode.PROMPT].dropna(subset="median_us"), roof)
    for format, mine in here.sort_values("bytes").groupby("format", sort=False):
        few, many = mine.iloc[0], mine.iloc[-1]
        if few["head"] != many["head"] and many.each > few.each:
            return (
                f"{ablation.FORMATS[format]} with an output head in {ablation.FORMATS[many['head']]} has "
                f"more bytes than with one in {ablation.FORMATS[few['head']]}, and yet a phase costs more, "
                f"{many.each:.2f} µs in place of {few.each:.2f}."
            )
    return ""


def _other_model(rows: Rows, best: str, roof: float) -> str:
    """That a phase of the larger model has more bytes and costs more in each format that both have."""
    here = rows[(rows.impl == best) & (rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.usual]
    here = beside_bytes(here.dropna(subset="median_us"), roof)
    small, large = (here[here.model == name].set_index("format") for name in (decode.MODEL, decode.LARGE))
    both = [format for format in small.index if format in large.index]
    costs = large.each[both]
    if not both or not (costs > small.each[both]).all():
        return ""
    more = (large.bytes / large.phases)[both] / (small.bytes / small.phases)[both]
    return (
        f"A phase of {decode.LARGE} has about {more.mean():.0f} times the bytes, and yet costs more in each "
        f"format, {costs.min():.2f} to {costs.max():.2f} µs."
    )


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
    the time goes that the fewer bytes save.
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
        return f"{text} and no time: beside them a phase costs {a.each:.2f} µs in place of {b.each:.2f}."
    return (
        f"{text}, of which a token gains {gained:,.0f}: it makes {b.median_us / a.median_us:.2f} times the "
        f"tokens, not {b.bytes / a.bytes:.2f}. The rest is lost again: beside its bytes a phase costs "
        f"{a.each:.2f} µs in place of {b.each:.2f}."
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
