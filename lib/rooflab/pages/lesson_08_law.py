"""What lesson 08's page shows of one law for all formats and models, and where its one cost does not fit."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import decode
from rooflab.view import diagram, display
from rooflab.words import listed

_UNEVEN = 1.3  # largest cost of a phase over the smallest: it is not one number
_ALIKE = 1.15  # larger bytes of a phase over the smaller: about the same


def law_fitted(lab: Lab, rows: Rows, roof: Any, gpu: str) -> str:
    """Show, folded, what a phase costs in every format and model beside the law's one cost, and say how far
    the law is off; the rung.
    """
    mine = rows[(rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.impl.isin(decode.last(lab.sized))]
    held = mine.groupby("impl").size()  # the latest rung that most formats and models were decoded by
    last = [name for name in decode.last(lab.sized) if held.get(name, 0) == held.max()][-1]
    fixed, rate, table = ablation.law(rows, last, roof.value)
    table = table.assign(off=100 * (table.law_us / table.median_us - 1), mb=table.bytes / 1e6)
    table = table.assign(bytes_us=table.bytes / rate / 1e3, mb_phase=table.mb / table.phases)
    table = table.assign(each=(table.median_us - table.bytes_us) / table.phases)
    heads = {"model": "model", "weights_as": "weights", "mb": "MB a token", "phases": "phases"}
    heads |= {"median_us": "µs", "bytes_us": "its bytes, µs", "each": "µs a phase beside them"}
    heads |= {"law_us": "the law, µs", "off": "off, %", "share": "% of the roof"}
    forms = dict.fromkeys(("mb", "median_us", "bytes_us", "law_us", "share"), "{:,.0f}")
    forms |= {"off": "{:+.0f}", "each": "{:.2f}"}
    table_of = table.assign(share=100 * table.roof_fraction).sort_values("mb")
    stopped = " (the fit may not go beyond it)" if rate > 0.999 * roof.value else ""
    uneven = table.each.max() > _UNEVEN * table.each.min()
    text = "Suppose that every phase costs the same beside its bytes: time = phases × cost + bytes ÷ rate. "
    text += (
        f"Fitted to all rows of `{last}`, the cost is **{fixed:.2f} µs** and the rate **{rate:,.0f} GB/s**, "
    )
    text += f"{rate / roof.value:.0%} of the read roof{stopped}. "
    if table.each.min() <= 0:
        text += "Some rows take less than their bytes at this rate: **the law does not hold here.**"
    else:
        text += "All costs in this fold are beside bytes at the fitted rate, those on the rest of the page "
        text += "at the read roof. "
        text += f"Row by row a phase costs {table.each.min():.2f} to {table.each.max():.2f} µs: "
        text += "**the cost is not one number.**" if uneven else "about one number."
    text += f" The law's error is {table.off.abs().median():.0f}% at the median and "
    text += f"{table.off.abs().max():.0f}% at most. A bar is a row's own cost, the dashed line the law's."
    why = [each for each in (_by_format(table), _by_model(table)) if each]
    parts: list[Any] = [text, diagram.phase_costs(table, fixed).html()]
    if uneven and why and table.each.min() > 0:
        head = "What the rows say of why"
        head += ": bytes count one way within a model, the other way between models" * (len(why) > 1)
        parts.append(f"{head}:\n\n" + "\n".join(f"- {each}" for each in why) + _unexplained(table))
    parts.append((table_of, heads, forms, f"The law beside every model and format: {last}, {gpu}"))
    display.fold_parts("Does every phase cost the same, in all formats and models?", parts, lean=True)
    return last


def _by_format(table: Rows) -> str:
    """Whether a phase costs the more the fewer bytes it has, in one model."""
    mine = table[(table.model == decode.MODEL) & table.usual].sort_values("bytes")
    if len(mine) < 2 or not all(a > b for a, b in pairwise(mine.each)):
        return ""
    shown = listed(f"{row.each:.2f} µs in {row.weights_as}" for row in mine[::-1].itertuples())
    text = f"{decode.MODEL}, usual output heads: {shown}. The fewer bytes a phase has, the more it costs."
    every = table[table.model == decode.MODEL].sort_values("bytes")
    if len(every) > len(mine) and not all(a > b for a, b in pairwise(every.each)):
        text += " With other heads this order does not hold."
    return text


def _by_model(table: Rows) -> str:
    """Whether a phase costs more in a larger model in every format that both have."""
    small, large = (
        table[(table.model == name) & table.usual].set_index("weights_as")
        for name in (decode.MODEL, decode.LARGE)
    )
    both = [name for name in small.index if name in large.index]
    if not both or not (large.each[both] > small.each[both]).all():
        return ""
    more = (large.mb_phase[both] / small.mb_phase[both]).mean()
    shown = listed(f"{large.each[name]:.2f} µs in {name}" for name in both)
    return (
        f"{decode.LARGE}: {shown}. A phase reads about {more:.0f} times the bytes, and costs more in each "
        "format"
        + (
            ". So part of the cost grows with the bytes: they come slower than the read roof."
            if _rises(large)
            else ", but between its own formats the cost does not follow the bytes: more than one thing adds "
            "to it."
        )
    )


def _rises(large: Rows) -> bool:
    """Whether a phase of a model costs the more the more bytes it has."""
    costs = large.sort_values("mb_phase").each.tolist()
    return all(a < b for a, b in pairwise(costs))


def _unexplained(table: Rows) -> str:
    """The two rows of different models with about the same bytes a phase whose costs differ most."""
    usual = list(table[table.usual].sort_values("each").itertuples())
    pairs = [
        (low, high)
        for low, high in combinations(usual, 2)
        if low.model != high.model
        and max(low.mb_phase, high.mb_phase) < _ALIKE * min(low.mb_phase, high.mb_phase)
        and high.each > _UNEVEN * low.each
    ]
    if not pairs:
        return ""
    low, high = max(pairs, key=lambda pair: pair[1].each / pair[0].each)
    return (
        f"\n\nNot explained: {low.model} in {low.weights_as} has {low.mb_phase:.0f} MB a phase and "
        f"{high.model} in {high.weights_as} {high.mb_phase:.0f}, but a phase costs {low.each:.2f} and "
        f"{high.each:.2f} µs."
    )
