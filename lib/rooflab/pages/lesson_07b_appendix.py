"""Lesson 07b's appendix: prompts by the law, the sources' conclusions, and what lost."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import conclusions as concluded
from rooflab.analysis import extrapolation, strategies, time_breakdown
from rooflab.hardware import perf_model
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.studies import attribution
from rooflab.view import display
from rooflab.words import listed


def prompt_shares(lab: Lab, here: Any, fit: Any, spec: Any) -> tuple[Any, list[Any], dict[str, Any]]:
    """Attention's share of a prompt by length, predicted and traced: the model, the lengths, the curves."""
    model = model_shapes.get(attribution.MODEL)
    lengths = [64, 128, 256, 512, 1024, 1848, 4096, 8192, 16384, 32768]
    reached = extrapolation.attention_share(lab.store.read("attention"), model)
    curves = {}
    for format in ("fp16", "q8_0"):
        if reached:
            part = extrapolation.prompt(model, lengths, here, fit, format, reached, spec.sm, spec.slug)
            curves[strategies.label(format, "predicted")] = part
    held = set(lab.store.read("attribution").case)
    asked = [case for case in (*attribution.prefill(), *attribution.lengths()) if case.id in held]
    traced = time_breakdown.taken(lab, asked)[1].query("part != 'lm_head'") if asked else None
    if traced is not None and {"attention", "weight"} <= set(traced["class"]):
        split = time_breakdown.by_class(traced).pivot_table("us", "seq", "class", fill_value=0)
        pct = 100 * split.attention / (split.attention + split.weight)
        curves["library, traced"] = pd.DataFrame({"seq": pct.index, "pct": pct.values})
    return model, lengths, curves


def prompt_turning_points(curves: dict[str, Any], model: Any) -> None:
    """Attention's share of a prompt, by the law and traced, and from which length on it is the half;
    folded.
    """
    lines = []
    for name, part in curves.items():
        over = part[part.pct > 50]
        last = f"not up to {part.seq.iloc[-1]:,} tokens"
        if len(over):
            before = max([0, *part.seq[part.seq < over.seq.iloc[0]]])
            last = f"between {before:,} and {over.seq.iloc[0]:,} tokens"
        lines.append(
            f"{name}: {part.pct.iloc[0]:.0f}% at {part.seq.iloc[0]:,} tokens, {part.pct.iloc[-1]:.0f}% at "
            f"{part.seq.iloc[-1]:,}; more than the products {last}."
        )
    lines.append(
        "The law takes attention's FLOPs at the rate of the course's best kernel; it counts neither its "
        "launches "
        "nor the SMs that a short prompt leaves idle."
    )
    display.fold_items(f"Attention's share of a prompt, {model.name}, by the law and traced", lines)


def _whose(ours: str, theirs: str) -> str:
    """A verdict by our kernel and by the author's, where that was rebuilt."""
    if ours == concluded.UNMEASURED:
        return ours
    if ours == theirs:
        return f"{ours} for the author's kernel and for ours"
    return f"{theirs} for the author's kernel, {ours} for ours" if theirs else f"{ours} for ours"


def conclusions(rows: Rows, lab: Lab) -> None:
    """List the sources' conclusions with what this recording says of them."""
    judged = concluded.conclusions(rows, lab.store.read("int4"))
    judged["here"] = judged["here"].replace("", "nothing recorded")
    judged["verdict"] = [_whose(row.word, row.theirs) for row in judged.itertuples()]
    once = judged.drop_duplicates(["source", "says", "word"])
    counts = listed(f"{count} {word}" for word, count in once["word"].value_counts().items())
    heads = {"source": "source", "says": "its conclusion", "verdict": "verdict", "here": "here"}
    heads |= {"depends_on": "it depends on"}
    title = f"The {len(once)} conclusions: by our kernels {counts}"
    if rebuilt := judged.loc[judged["theirs"] != "", "says"].nunique():
        title += f"; {rebuilt} judged by the author's kernel, too"
    if len(judged) > len(once):
        title += f"; {len(judged)} rows, as clocks are judged apart"
    display.fold_parts(title, [(judged, heads, {})])


def lost_ways(rows: Rows, here: Any, fit: Any, gpu: str) -> None:
    """Show every way that another of its format beats, where it lost most, and by how much by the law."""
    losers = strategies.lost(rows)
    losers["matrix"] = [f"{n}×{k}" for n, k in zip(losers.n, losers.k, strict=True)]
    losers["matrix"] += [f", {b:,}" for b in losers.batch]
    named = {strategies.label(each.format, each.name): each for each in perf_model.STRATEGIES}
    law = [
        [
            perf_model.us(named[way], int(row.n), int(row.k), int(row.batch), here, fit)
            for way in (row.label, row.winner)
        ]
        for row in losers.itertuples()
    ]
    losers["law"] = [mine / theirs for mine, theirs in law]
    losers["losses"] = [f"{lost} of {of}" for lost, of in zip(losers.losses, losers.of, strict=True)]
    heads = {"label": "way", "losses": "loses", "matrix": "worst at (matrix, tokens)"}
    heads |= {"winner": "against", "times": "× its time"}
    heads |= {"law": "by the tuned law, ×"}
    display.table(
        losers,
        heads,
        {"times": "{:.1f}", "law": "{:.1f}"},
        f"Every way of the course's own that another of its format beats, by kernel time, {gpu}",
        folded=True,
    )
