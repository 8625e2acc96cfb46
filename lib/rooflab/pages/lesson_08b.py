"""What lesson 08b's page shows of prompts: rows, bounds and errors, and re-exports of its other parts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import ablation, states
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_08b_foretold import embeddings_drawn as embeddings_drawn
from rooflab.pages.lesson_08b_foretold import foretold as foretold
from rooflab.pages.lesson_08b_foretold import largest_step as largest_step
from rooflab.pages.lesson_08b_foretold import steps_by_length as steps_by_length
from rooflab.pages.lesson_08b_kinds import beyond_the_bound as beyond_the_bound
from rooflab.pages.lesson_08b_kinds import fixed_times as fixed_times
from rooflab.pages.lesson_08b_kinds import mmq_by_place as mmq_by_place
from rooflab.pages.lesson_08b_kinds import time_by_kind as time_by_kind
from rooflab.pages.lesson_08b_kinds import time_by_kind_table as time_by_kind_table
from rooflab.pages.lesson_08b_library import beside_others as beside_others
from rooflab.pages.lesson_08b_library import opening as opening
from rooflab.pages.lesson_08b_library import rates_by_length as rates_by_length
from rooflab.pages.lesson_08b_library import share_of_bound as share_of_bound
from rooflab.studies import decode, prefill
from rooflab.view import diagram, display, explorer


def measured(lab: Lab, prompt: int | None) -> tuple[Lab, Rows, list[int], int, dict[str, Any]]:
    """The prompts, of the lab or of a borrowed one: lab, rows, their lengths, the length looked at, and the
    ladder of each format at it.
    """
    asked = lab.held("prefill", lab.cases("prefill"))
    if prompt and prompt not in {case.seq for case in asked}:
        asked += [case for form in decode.FORMATS for case in prefill.ladder(form, (prompt,), whole=prompt)]
    rows = lab.measure("prefill", asked)
    if not rows.kind.eq("own").any():
        lab, prompt = display.borrowed(lab, "no kernel of the study prefill can run"), None
        rows = lab.measure("prefill", lab.held("prefill", lab.cases("prefill")))
    seqs = sorted(set(rows.seq.astype(int)))
    prompt = prompt or (1848 if 1848 in seqs else seqs[-1])
    climbs = {format: ablation.prompts(rows, format, prompt) for format in ablation.FORMATS}
    if rows.state.eq("burst").all():
        said = "Power limits the clock, and with it the tensor cores' rate, so each prompt is timed after a "
        said += "rest, in a [*burst*](00b_clocks.ipynb). "
        display.say(said + _in_states(lab, rows, prompt))
    return lab, rows, seqs, prompt, climbs


def _in_states(lab: Lab, rows: Rows, prompt: int) -> str:
    """What a prompt by our fastest way takes in other states of the GPU, where that was measured."""
    found = display.power_rows(lab, "prefill")
    found = found[(found.kind == "own") & (found.seq == prompt)]
    names = {(row.impl, row.format) for row in found.itertuples()}
    if len(names) != 1:
        return ""
    impl, format = names.pop()
    text = states.of_a_work(found, f"`{impl}` in {ablation.FORMATS[format]}", prompt)
    mine = rows[(rows.model == decode.MODEL) & (rows.seq == prompt) & (rows.kind == "own")]
    mine = mine[mine.format == format].sort_values("median_us")
    if text and len(mine) and mine.impl.iloc[0] == impl:
        text += f" The first screen's {mine.median_us.iloc[0] / 1e3:.2f} ms is a burst at another moment."
    return text


def bounds(model: Any, peaks: dict[str, Any]) -> Rows:
    """Show the bound of a prompt by length; its rows."""
    lines = []
    for seq in prefill.PROMPTS:
        flops = model_shapes.needed_flops(model, seq, last=True)
        moved = model_shapes.weight_bytes(model, "fp16")
        least = roofline.bound(moved, flops, peaks["dram_read"], peaks["fp16_tensor"])
        lines.append((seq, flops / 1e12, moved / 1e6, least.us / 1e3, least.by, seq * 1e6 / least.us))
    bound = pd.DataFrame(lines, columns=["seq", "tera", "mb", "ms", "by", "tok"])
    heads = {
        "seq": "tokens",
        "tera": "10¹² operations",
        "mb": "weights, MB",
        "ms": "bound, ms",
        "by": "set by",
        "tok": "tok/s",
    }
    display.table(
        bound,
        heads,
        {"seq": "{:,}", "tera": "{:.1f}", "mb": "{:,.0f}", "ms": "{:.1f}", "tok": "{:,.0f}"},
        f"The bound by length, FP16, {peaks['fp16_tensor']:,.0f} TFLOP/s and {peaks['dram_read']:,.0f} GB/s",
        folded=True,
    )
    return bound


def shared(prompt: int | None, peaks: dict[str, Any]) -> None:
    """Draw how many tokens share a reading of the weights, decoding, in batches and in a prompt."""
    batches = [("decode", 1), *((f"batch of {each}", each) for each in decode.BATCHES if each > 1)]
    diagram.weights_shared(
        [*batches, ("prompt", prompt or 1848)], peaks["fp16_tensor"], peaks["dram_read"]
    ).show()


def bound_explained(bound: Rows, prompt: int, peaks: dict[str, Any]) -> None:
    """Say whether memory or arithmetic bounds the prompt."""
    near = bound.iloc[(bound.seq - (prompt or 1848)).abs().argmin()]
    display.say(
        f"At {near.seq:,.0f} tokens reading the weights takes {near.mb / peaks['dram_read']:.2f} ms, "
        f"arithmetic {near.tera / peaks['fp16_tensor'] * 1e3:.1f} ms: "
        + (
            "arithmetic sets the bound, and faster memory would not help."
            if near.by == "compute"
            else "here memory still sets the bound."
        )
        + f" The bound falls as prompts get longer, to {bound.tok.iloc[-1]:,.0f} tokens a second: "
        "attention's work grows with the square of the length."
    )


def ladder(climbs: dict[str, Any], prompt: int, gpu: str) -> None:
    """Show the steps with Q8_0 weights, and folded those with FP16."""
    heads = {
        "impl": "step",
        "median_us": "ms",
        "tok_s": "tok/s",
        "predicted": "predicted, tok/s",
        "gain": "× the step before",
    }
    forms = {"median_us": "{:,.1f}", "tok_s": "{:,.0f}", "predicted": "{:,.0f}", "gain": "{:.2f}"}
    for format in ("q8_0", "fp16"):
        display.table(
            climbs[format].assign(median_us=climbs[format].median_us / 1e3),
            heads,
            forms,
            f"{prompt:,} tokens, {ablation.FORMATS[format]}, {gpu}",
            folded=format != "q8_0",
        )


def logit_errors(rows: Rows) -> None:
    """Show the errors of the last logits, folded, and say how near they come to what is allowed."""
    checked = rows.assign(part=rows.error / rows.error_budget).sort_values("part")
    worst = checked.groupby("format", sort=False).tail(1).reset_index(drop=True)
    worst["format"] = worst["format"].map(ablation.FORMATS)
    heads = {
        "format": "weights",
        "error": "error of a logit",
        "error_budget": "allowed",
        "part": "share of it, at worst",
    }
    forms = {"error": "{:.4f}", "error_budget": "{:.4f}", "part": "{:.0%}"}
    tight = worst.sort_values("part").iloc[-1]
    display.say(
        "Every step is checked: its last logits are compared with float64 on the same weights, and twice the "
        f"error of an FP16 baseline is allowed. The largest error is {tight.part:.0%} of that "
        f"({tight.format})" + ("." if tight.part <= 1 else ", which the check refuses.")
    )
    display.table(worst, heads, forms, "Errors of the last logits, by format", folded=True)


def explore(rows: Rows, gpu: str, lab: Lab, prompt: int) -> Any:
    """The explorer of prompts, by way, weights and model; it starts at `prompt` tokens."""
    shown = rows.assign(weights_as=rows.format.map(ablation.FORMATS))
    return explorer.Explorer(
        "prompts",
        shown,
        x="seq",
        y="tok_s",
        controls={"impl": "Way", "weights_as": "Weights", "model": "Model"},
        labels={"seq": "tokens of the prompt"},
        title=f"Prompts on {gpu}",
        start={"impl": "6_graph", "weights_as": "Q8_0", "model": decode.MODEL, "seq": prompt},
        measure=explorer.measurer(lab),
    )
