"""What lesson 08b's page shows: prompts step by step; lesson_08b_loads has what runs beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import ablation
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import NEAR, Opening, Rows, bars, lesson_08b_loads
from rooflab.pages.lesson_08b_kinds import fixed_times as fixed_times
from rooflab.pages.lesson_08b_kinds import mmq_by_place as mmq_by_place
from rooflab.pages.lesson_08b_kinds import time_by_kind as time_by_kind
from rooflab.pages.lesson_08b_kinds import time_by_kind_table as time_by_kind_table
from rooflab.records.store import Store
from rooflab.studies import decode, prefill
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import counted, listed, times

_BEFORE_EMBED = ("1_scalar", "2_mmq", "3_flash", "4_rows")  # the host launches every embedding by itself


def opening(lab: Lab, prompt: int | None) -> Opening:
    """The first screen: the ladder of prompts with Q8_0 weights."""
    rows = lab.measure("prefill", lab.held("prefill", lab.cases("prefill")))
    seqs, gpu = sorted(set(rows.seq.astype(int))), lab.run.gpu
    prompt = prompt if prompt in seqs else 1848 if 1848 in seqs else seqs[-1]
    climbs = {format: ablation.prompts(rows, format, prompt) for format in ablation.FORMATS}
    climb = climbs["q8_0"] if len(climbs["q8_0"]) else climbs["fp16"]
    own = climb[climb.kind == "own"]
    first, best = own.iloc[0], own.sort_values("tok_s").iloc[-1]
    answer = f"On the {gpu} the engine reads a prompt of {prompt:,} tokens at {best.tok_s:,.0f} tokens a "
    answer += f"second with {ablation.FORMATS[best.format]} weights, "
    answer += f"{times(best.tok_s / first.tok_s)} times the rate of the ladder's first step."
    gained = own.dropna(subset=["gain"]).sort_values("gain")
    if len(gained):
        step = gained.iloc[-1]
        answer += f" The largest step brings {step.gain:.1f} times: {step.says}."
    answer += _together(lab)
    able = (
        "say why a prompt is compute-bound and its answer memory-bound",
        "find why a prediction of a prompt's ladder failed",
        "measure joules a token beside tokens a second",
    )
    flops = model_shapes.prefill_flops(model_shapes.get(decode.MODEL), prompt)
    roof = ("FP16 tensor", prompt * lab.roof["fp16_tensor"].value * 1e12 / flops, "tok/s")
    title = f"A prompt of {prompt:,} tokens, {ablation.FORMATS[best.format]}"
    chart = bars(own, list(own.impl), gpu, title, roof, y="tok_s")
    return answer, able, chart


def _together(lab: Lab) -> str:
    """What many sequences bring, and their energy a token, a sentence each of what the recording holds."""
    _, crowd, both = lesson_08b_loads.sequences(lab)
    own, text = both[both.kind == "own"].dropna(subset=["slower"]), ""
    if len(crowd) and len(own):
        most = own.sort_values("tok_s").iloc[-1]
        text += (
            f" {counted(int(most.batch), 'sequence').capitalize()} decoded together make {most.tok_s:,.0f} "
        )
        text += f"tokens a second in {most.slower:.1f} times the time of one."
    energy = lesson_08b_loads.read_joules(lab)
    energy = energy[energy["joules a token"].notna()] if len(energy) else energy
    if len(energy) > 1:
        ends = energy.sort_values("joules a token", kind="stable")
        text += f" A decoded token takes {ends['joules a token'].iloc[0]:.3f} to "
        text += f"{ends['joules a token'].iloc[-1]:.2f} J, by the way that it is made."
    return text


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
    return lab, rows, seqs, prompt, climbs


def bounds(model: Any, peaks: dict[str, Any]) -> Rows:
    """Show the bound of a prompt by length; its rows."""
    lines = []
    for seq in prefill.PROMPTS:
        flops, moved = model_shapes.prefill_flops(model, seq), model_shapes.weight_bytes(model, "fp16")
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
        "gain": "× the step it builds on",
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


def largest_step(climbs: dict[str, Any]) -> None:
    """Say which step brings the most and the least, and how far predictions hold."""
    half = climbs["q8_0"] if len(climbs["q8_0"]) else climbs["fp16"]
    own = half.dropna(subset=["gain"]).sort_values("gain")
    if len(own):
        biggest, least = own.iloc[-1], own.iloc[0]
        display.say(
            f"With {ablation.FORMATS[half.format.iloc[0]]} weights the largest step is **`{biggest.impl}`**, "
            f"{biggest.gain:.1f} times: {biggest.says}. "
            f"The smallest is `{least.impl}` ({least.gain:.2f} times): {least.says}. "
            f"Against the first, the last is {display.speed(half.tok_s.iloc[-1] / half.tok_s.iloc[0])}."
        )
    kept = half.assign(off=half.tok_s / half.predicted).dropna(subset=["off"]).sort_values("off")
    if len(kept):
        low, high = kept.iloc[0], kept.iloc[-1]
        text = f"`{low.impl}` reaches {low.off:.0%} of its predicted rate, the least, and `{high.impl}` "
        text += f"{high.off:.0%}, the most."
        text += (
            " The latter was predicted from the time of a slower kernel of ours." if high.off > 1.1 else ""
        )
        display.say(text + _embeddings_misjudged(half))


def _embeddings(climb: Rows) -> float:
    """Microseconds that the embeddings of a prompt take one by one: what 5_embed saves; NaN where it was not
    timed, or saves nothing.
    """
    us = climb.set_index("impl").median_us
    saved = float(us.get("4_rows", np.nan) - us.get("5_embed", np.nan))
    return saved if saved > 0 else float("nan")


def embeddings_drawn(climbs: dict[str, Any], gpu: str) -> None:
    """Draw each step's time, and how much of it embeddings take that are launched one by one."""
    climb = climbs["q8_0"] if len(climbs["q8_0"]) else climbs["fp16"]
    own, launches = climb[climb.kind == "own"], _embeddings(climb)
    if launches != launches:
        return
    early = own.impl.isin(_BEFORE_EMBED)
    parts = {"embeddings, launched one by one": early * launches / 1e3}
    parts["all else"] = own.median_us / 1e3 - parts["embeddings, launched one by one"]
    title = f"A prompt of {int(own.seq.iloc[0]):,} tokens, {ablation.FORMATS[own.format.iloc[0]]}: ms by step"
    fig, ax = plot.figure("ms", title=title, height=1.5 + 0.24 * len(own))
    plot.stacked(ax, list(own.impl), parts, "ms")
    text = f"{title}, {gpu}, {plot.dates(own)}. One by one, embeddings take {launches / 1e3:.0f} ms of each "
    plot.show(fig, f"{text}of the first {early.sum()} steps: what 5_embed saves.")


def _embeddings_misjudged(climb: Rows) -> str:
    """What an embedding costs the host, measured and predicted, where that is why the first steps fall
    short.
    """
    by = climb.set_index("impl")
    if not {"4_rows", "5_embed"} <= set(by.index):
        return ""
    before, after = by.loc["4_rows"], by.loc["5_embed"]
    more = int(before.seq) - 1
    took = _embeddings(climb) / more
    thought = (before.seq / before.predicted - after.seq / after.predicted) * 1e6 / more
    low = climb[climb.impl.isin(_BEFORE_EMBED)]
    if not (took > NEAR * thought > 0 and (low.tok_s < low.predicted).all()):
        return ""
    text = (
        f" All {len(low)} steps before `5_embed` take longer than predicted: {more:,} embedding calls from "
    )
    text += f"Python take {took:.0f} µs each where the prediction had {thought:.0f}. They come before the "
    text += "layers, so their time adds; the prediction took only the slower of host and GPU."
    same = climb[climb.predicted.round() == round(after.predicted)]
    if len(same) > 1:
        text += f" From `5_embed` on the GPU is predicted to decide, so {len(same)} steps share a prediction."
    return text


def logit_errors(rows: Rows) -> None:
    """Show the errors of the last logits, folded, and say how near they come to the limit."""
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
    display.table(worst, heads, forms, "Errors of the last logits, by format", folded=True)
    tight = worst.sort_values("part").iloc[-1]
    display.say(
        f"{tight.format} comes nearest to its limit, with {tight.part:.0%} of the error allowed: "
        + ("every step keeps its logits right." if tight.part <= 1 else "the gate refuses that.")
    )


def rates_by_length(rows: Rows, bound: Rows, seqs: list[Any], gpu: str) -> None:
    """Draw tokens a second by the prompt's length, beside the bound."""
    title = "Prompts: tokens a second by length"
    fig, ax = plot.figure("tokens of the prompt", "tok/s", title, xlog=True, ylog=True)
    last = {format: prefill.ways(format)[-1] for format in ablation.FORMATS}
    final = rows[
        (rows.model == decode.MODEL) & ((rows.impl == rows.format.map(last)) | (rows.kind == "peer"))
    ]
    for (impl, format), side in final.groupby(["impl", "format"], sort=False):
        side = side.sort_values("seq")
        name = impl if impl in prefill.PEERS else ablation.FORMATS[format]
        plot.series(ax, side.seq, *plot.band(side, "tok_s"), label=name)
    shown = bound[bound.seq.isin(seqs)]
    plot.series(ax, shown.seq, shown.tok, label="bound, FP16")
    ax.set_xticks(seqs, [f"{n:,}" for n in seqs])
    plot.round_ticks(ax)
    plot.label_ends(ax)
    lone = final.groupby("format").filter(lambda side: side.seq.nunique() == 1)
    few = listed(
        f"{ablation.FORMATS[r.format]} was timed at {int(r.seq):,} tokens alone" for r in lone.itertuples()
    )
    caption = f"{title} on {gpu}, {plot.dates(final)}. Bands: quartiles; an eager library's are wide."
    plot.show(fig, f"{caption} {few}." if len(lone) else caption)


def share_of_bound(rows: Rows, bound: Rows) -> None:
    """Say what share of the bound the fastest way reaches at each length."""
    fastest = rows[(rows.model == decode.MODEL) & (rows.kind == "own")].groupby("seq").tok_s.max()
    theirs = rows[(rows.model == decode.MODEL) & (rows.kind == "peer")].groupby("seq").tok_s.max()
    tops = bound.set_index("seq").tok
    parts = [
        f"at {seq:,} tokens {fastest[seq] / tops[seq]:.0%}"
        + (f" ({fastest[seq] / theirs[seq]:.1f} times transformers)" if seq in theirs.index else "")
        for seq in fastest.index
        if seq in tops.index
    ]
    display.say(f"Of the FP16 bound the fastest way reaches {', '.join(parts)}.")


def steps_by_length(rows: Rows, seqs: list[Any], gpu: str) -> None:
    """Show every step at every length, folded, and say which step is the largest."""
    mine = rows[rows.model == decode.MODEL].assign(w=rows.format.map(ablation.FORMATS))
    wide = mine.pivot_table("tok_s", ["w", "impl"], "seq").reset_index()
    wide["w"] = wide.w.where(~wide.w.duplicated(), "")
    heads = {"w": "weights", "impl": "step"} | {seq: f"{seq:,} tokens" for seq in seqs}
    display.table(
        wide, heads, dict.fromkeys(seqs, "{:,.0f}"), f"The ladders at every length, tok/s, {gpu}", folded=True
    )
    longest = [ablation.prompts(rows, "q8_0", seq).dropna(subset=["gain"]) for seq in seqs]
    words = [
        f"at {int(climb.seq.iloc[0]):,} tokens `{row.impl}` ({row.gain:.1f} times)"
        for climb in longest
        if len(climb)
        for row in [climb.loc[climb.gain.idxmax()]]
    ]
    display.say(
        f"The largest step with Q8_0 weights, by length: {', '.join(words)}."
        + (
            " Empty cells were not timed: attention query by query takes too long for long prompts, and "
            "prompts with INT4 weights use FP16's steps."
            if wide[seqs].isna().any(axis=None)
            else ""
        )
    )


def beside_others(published: Store, prompt: int, rows: Rows, gpu: str) -> None:
    """Show our rate beside transformers' and llama.cpp's, and say the ratios."""
    there = published.read("prefill")
    there = there[(there.model == decode.MODEL) & (there.seq == prompt)]
    ours = rows[(rows.model == decode.MODEL) & (rows.seq == prompt) & (rows.kind == "own")].sort_values(
        "tok_s"
    )
    pairs = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "q4_0"}
    lines = []
    for format, other in pairs.items():
        mine = ours[ours.format == format]
        llama = there[(there.impl == "llama.cpp") & (there.format == other)].tok_s
        library = rows[(rows.kind == "peer") & (rows.seq == prompt) & (rows.format == format)].tok_s.nlargest(
            1
        )
        if len(mine):
            lines.append(
                (
                    ablation.FORMATS[format],
                    mine.tok_s.iloc[-1],
                    *(s.iloc[0] if len(s) else float("nan") for s in (library, llama)),
                )
            )
    table = pd.DataFrame(lines, columns=["w", "ours", "library", "llama"])
    heads = {
        "w": "weights",
        "ours": "ours",
        "library": "transformers at its best, here",
        "llama": "llama.cpp, published",
    }
    display.table(
        table,
        heads,
        dict.fromkeys(("ours", "library", "llama"), "{:,.0f}"),
        f"{prompt:,} tokens, tok/s, {gpu}",
    )
    known = table.assign(peer=table[["library", "llama"]].max(axis=1)).dropna(subset=["peer"])
    ratios = ", ".join(f"{row.w} {times(row.ours / row.peer)} times" for row in known.itertuples())
    text = f"Ours over the faster of the others: {ratios or 'none of them is known on this GPU'}."
    if len(table) > 1 and table.ours.idxmax() == 0:
        text += f" Fewer bytes do not make a prompt faster: {table.w.iloc[0]} weights are the fastest here, "
        text += "because arithmetic is the limit, and packed weights are unpacked before it."
    display.say(text)


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
