"""What lesson 08's page shows of its predictions: whether they held, and where the law errs."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from rooflab.analysis import ablation
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import NEAR, Rows, held
from rooflab.studies import decode
from rooflab.view import display
from rooflab.words import listed


def measured(lab: Lab, cases: list[Any]) -> tuple[Rows, str, Rows]:
    """All rows of decoding, the GPU, and the rows of the page's model, one sequence, the short prompt."""
    rows = ablation.named(lab.measure("decode", cases))
    here = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT)]
    return rows, lab.run.gpu, here


def predictions_held(climbs: dict[str, Any], format: str) -> None:
    """Say of the predictions for a format, or for FP16 where that is empty, which held: that of
    1_kernel_per_phase, the roof where it is the prediction, and how many of all.
    """
    mine = climbs[format] if len(climbs[format]) else climbs["fp16"]
    mine = mine.dropna(subset=["off", "share"])
    name, text = ablation.FORMATS[mine.format.iloc[0]] if len(mine) else "", ""
    for fused in mine[mine.impl == "1_kernel_per_phase"].itertuples():
        text += f"- `{fused.impl}`: predicted {fused.predicted:,.0f} tok/s, measured {fused.tok_s:,.0f}, "
        text += f"{fused.tok_s / fused.predicted:.2f} of it. {held(fused.off)}"
        text += " A phase takes longer than its product: see below.\n" if fused.off > NEAR else "\n"
    by_roof = mine[carries_roof(mine)]
    if len(by_roof):
        best = by_roof.sort_values("tok_s").iloc[-1]
        names = listed(f"`{each}`" for each in by_roof.impl)
        text += f"- {names} have no prediction of their own: the roof, {best.predicted:,.0f} tok/s, is an "
        text += "upper bound. Measured: "
        text += (
            f"{by_roof.tok_s.min():,.0f} to {best.tok_s:,.0f} tok/s, at most {best.share / 100:.2f} of it "
        )
        text += f"(`{best.impl}`).\n"
    law = mine.drop(by_roof.index)
    if len(law):
        near, far = law.iloc[(law.off - 1).abs().argmin()], law.sort_values("off").iloc[-1]
        right = law.off.between(1 / NEAR, NEAR).sum()
        text += f"- In all, {right} of {len(law)} predictions hold within {NEAR - 1:.0%}. Nearest: "
        text += f"`{near.impl}`, off by {abs(near.off - 1):.0%}. Furthest: `{far.impl}`, which reaches "
        text += f"{1 / far.off:.2f} of its predicted rate."
    if text:
        display.say(f"Did the predictions hold, in {name}?\n\n{text}")


def law_apart(table: Rows) -> str:
    """Which two formats of the small model the law tells apart the most, of those that measure level."""
    mine = table[(table.model == decode.MODEL) & table.usual].sort_values("law_us")
    pairs = [
        (b.law_us / a.law_us, a, b)
        for a, b in combinations(mine.itertuples(), 2)
        if 1 / crossover.LEVEL <= b.median_us / a.median_us <= crossover.LEVEL
    ]
    apart, a, b = max(pairs, key=lambda pair: pair[0], default=(1.0, None, None))
    if a is None or b is None or apart < 1.1:
        return ""
    return (
        f" Of {decode.MODEL} in {a.weights_as} and {b.weights_as} it has {a.law_us:,.0f} and "
        f"{b.law_us:,.0f} µs, and they take {a.median_us:,.0f} and {b.median_us:,.0f}: it has no term "
        "for unpacking weights, and does not choose between formats."
    )


def law_fitted(lab: Lab, rows: Rows, roof: Any, gpu: str) -> tuple[str, float, Rows]:
    """Show the fitted law beside every model and format, and say its two numbers; the rung, the fixed time,
    the rows.
    """
    mine = rows[(rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.impl.isin(decode.last(lab.sized))]
    held = mine.groupby("impl").size()  # the latest rung that most formats and models were decoded by
    last = [name for name in decode.last(lab.sized) if held.get(name, 0) == held.max()][-1]
    fixed, rate, table = ablation.law(rows, last, roof.value)
    table = table.assign(off=100 * (table.law_us / table.median_us - 1), mb=table.bytes / 1e6)
    heads = {
        "model": "model",
        "weights_as": "weights",
        "mb": "MB a token",
        "phases": "phases",
        "median_us": "µs",
    }
    heads |= {"law_us": "the law, µs", "off": "off, %", "tok_s": "tok/s", "share": "% of the roof"}
    forms = dict.fromkeys(("mb", "median_us", "law_us", "tok_s", "share"), "{:,.0f}") | {"off": "{:+.0f}"}
    table_of = table.assign(share=100 * table.roof_fraction).sort_values("mb")
    caption = f"The law beside every model and format: {last}, {gpu}"
    display.table(table_of, heads, forms, caption, folded=True)
    stopped = (
        ", where the fit had to stop: the fixed time holds what bytes take beyond it"
        if rate > 0.999 * roof.value
        else ""
    )
    display.say(
        f"On the {gpu} a phase of `{last}` costs **{fixed:.2f} µs** before its first byte counts, and bytes "
        f"come at **{rate:,.0f} GB/s**, {rate / roof.value:.0%} of the roof{stopped}; the law is off by "
        f"{table.off.abs().median():.0f}% in the middle and {table.off.abs().max():.0f}% at worst."
        + law_apart(table)
    )
    return last, fixed, table


def carries_roof(climb: Rows) -> Rows:
    """Which rows of a ladder carry the roof in the place of a prediction."""
    return (climb.tok_s / climb.predicted - climb.share / 100).abs() < 0.005


def without_roofs(climb: Rows) -> Rows:
    """A ladder with `predicted` and `reached` empty where a row carries the roof."""
    shown = climb.copy()
    shown.loc[carries_roof(climb), ["predicted", "reached"]] = float("nan")
    return shown


def level_formats(climbs: dict[str, Any]) -> str:
    """Which formats' fastest rungs take the same time although one reads a fifth less, in a sentence."""
    rungs = [climb[climb.impl.isin(decode.RUNGS)] for climb in climbs.values() if len(climb)]
    tops = [mine.sort_values("median_us").iloc[0] for mine in rungs if len(mine)]
    text = ""
    for a, b in combinations(sorted(tops, key=lambda row: row.bytes), 2):
        if display.level(a, b) and a.bytes < 0.8 * b.bytes:
            small, large = (ablation.FORMATS[row.format] for row in (a, b))
            text += (
                f" **With their own output heads {small} reads {1 - a.bytes / b.bytes:.0%} fewer bytes than "
                f"{large}, and is level with it: {a.median_us:,.0f} and {b.median_us:,.0f} µs a token.** For "
                "speed alone the smaller format brings nothing here; it still takes less memory. Unpacking "
                f"{small} takes instructions that reading {large} does not; what they cost was not measured."
            )
    return text
