"""The first screen of lesson 08b's page and its rates: ours beside the library, in the same format."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import engine
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Opening, Rows, bars
from rooflab.records.store import Store
from rooflab.studies import decode, prefill
from rooflab.view import display, plot
from rooflab.words import listed, times

_LLAMA = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "q4_0"}  # llama.cpp's format nearest to each of ours


def opening(lab: Lab, prompt: int | None) -> Opening:
    """The first screen: our fastest way of each format beside the library's ways, in FP16."""
    rows = lab.measure("prefill", lab.held("prefill", lab.cases("prefill")))
    seqs, gpu = sorted(set(rows.seq.astype(int))), lab.run.gpu
    prompt = prompt if prompt in seqs else 1848 if 1848 in seqs else seqs[-1]
    here = rows[(rows.model == decode.MODEL) & (rows.seq == prompt)]
    fastest = here[here.kind == "own"].sort_values("tok_s", ascending=False).drop_duplicates("format")
    theirs = here[here.kind == "peer"].sort_values("tok_s")
    best = fastest.set_index("format", drop=False)
    first = best.loc["fp16" if "fp16" in best.index else best.index[0]]
    answer = (
        f"On the {gpu} our engine reads a prompt of {prompt:,} tokens at {first.tok_s:,.0f} tokens a second "
    )
    answer += f"with {ablation.FORMATS[first.format]} weights, {_products(first, lab)}, and our other "
    answer += (
        f"kernels ({first.median_us / 1e3:.1f} ms{', after a rest' if first.state == 'burst' else ''}), "
    )
    rival = theirs[theirs.format == first.format]
    if len(rival):
        ratio = times(first.tok_s / rival.iloc[-1].tok_s)
        answer += f"{ratio} times the rate of transformers at its best (`{rival.iloc[-1].impl}`), "
    answer += f"{first.roof_fraction:.0%} of the tensor cores' roof."
    answer += _packed(fastest, first, lab)
    able = (
        "say why a prompt is compute-bound and its answer memory-bound",
        "find the fixed cost that hides what other steps gain",
        "tell from energy and time what a token costs, alone and in a batch",
    )
    flops = model_shapes.needed_flops(model_shapes.get(decode.MODEL), prompt, last=True)
    roof = ("FP16 tensor", prompt * lab.roof["fp16_tensor"].value * 1e12 / flops, "tok/s")
    order = {format: place for place, format in enumerate(ablation.FORMATS)}
    own = fastest.sort_values("format", key=lambda formats: formats.map(order))
    shown = pd.concat([theirs, own])
    names = [
        ("ours" if row.kind == "own" else row.impl) + f", {ablation.FORMATS[row.format]}"
        for row in shown.itertuples()
    ]
    return answer, able, bars(shown, names, gpu, f"A prompt of {prompt:,} tokens", roof, y="tok_s")


def _products(row: Any, lab: Lab) -> str:
    """Whose kernels multiply in a way of the engine, where the library's do or ours."""
    paths, hopper = engine.PROMPTS[row.impl], lab.spec is not None and lab.spec.sm == "90"
    if row.format == "q8_0" and paths.mmq:
        return "our own products"
    ours = hopper and paths.gates_in_product(row.format, int(row.seq))  # of gate and up
    return "cuBLAS's and our own products" if ours else "cuBLAS's products"


def _packed(fastest: Rows, first: Any, lab: Lab) -> str:
    """What formats of fewer bytes bring, as a sentence: nothing, where arithmetic is the limit."""
    others = fastest[fastest.format != first.format]
    if others.empty:
        return ""
    rates = "; ".join(
        f"{ablation.FORMATS[row.format]} {row.tok_s:,.0f}, {_products(row, lab)}"
        for row in others.itertuples()
    )
    if (others.tok_s < first.tok_s).all():
        return f" Fewer bytes a weight bring nothing here ({rates}): arithmetic is the limit."
    return f" The other formats: {rates}."


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
    """Say what share of the bound the fastest way reaches at each length, and against which library."""
    mine = rows[rows.model == decode.MODEL].sort_values("tok_s").drop_duplicates(["kind", "seq"], keep="last")
    own, theirs = (mine[mine.kind == kind].set_index("seq") for kind in ("own", "peer"))
    tops = bound.set_index("seq").tok
    seqs = [seq for seq in sorted(own.index) if seq in tops.index]
    if not seqs:
        return
    text = f"At {listed(f'{seq:,}' for seq in seqs)} tokens our fastest way reaches "
    text += f"{listed(f'{own.tok_s[seq] / tops[seq]:.0%}' for seq in seqs)} of the FP16 bound"
    beside = [seq for seq in seqs if seq in theirs.index]
    if beside:
        ratios = listed(times(own.tok_s[seq] / theirs.tok_s[seq]) for seq in beside)
        names = listed(dict.fromkeys(f"`{theirs.impl[seq]}`" for seq in beside))
        where = "" if beside == seqs else f" (at {listed(f'{seq:,}' for seq in beside)})"
        text += f", and {ratios} times the library's fastest way{where}, {names}"
    display.say(f"{text}.")


def beside_others(published: Store, prompt: int, rows: Rows, gpu: str) -> None:
    """Show our rate beside transformers' and llama.cpp's, with the ratios."""
    there = published.read("prefill")
    there = there[(there.model == decode.MODEL) & (there.seq == prompt)]
    here = rows[(rows.model == decode.MODEL) & (rows.seq == prompt)].sort_values("tok_s")
    peers, lines, none = here[here.kind == "peer"], [], float("nan")
    for format, other in _LLAMA.items():
        mine = here[(here.kind == "own") & (here.format == format)]
        llama = there[(there.impl == "llama.cpp") & (there.format == other)].tok_s
        if mine.empty:
            continue
        ours = mine.tok_s.iloc[-1]
        theirs = peers.tok_s.iloc[-1] if len(peers) else none
        cited = llama.iloc[0] if len(llama) else none
        lines.append((ablation.FORMATS[format], ours, ours / theirs, cited, ours / cited))
    table = pd.DataFrame(lines, columns=["w", "ours", "over", "llama", "above"])
    heads = {"w": "weights", "ours": "ours, tok/s"}
    if len(peers):
        best = peers.iloc[-1]
        heads["over"] = f"× {best.impl}, {ablation.FORMATS[best.format]} ({best.tok_s:,.0f})"
    if table.llama.notna().any():
        heads |= {"llama": "llama.cpp, published, same GPU", "above": "× llama.cpp"}
    forms = {"ours": "{:,.0f}", "over": "{:.1f}", "llama": "{:,.0f}", "above": "{:.1f}"}
    display.table(table, heads, forms, f"{prompt:,} tokens, {gpu}")
    text = "" if len(heads) > 2 else "No other's rate is known on this GPU. "
    if len(table) > 1 and table.ours.idxmax() == 0:
        text += f"{table.w.iloc[0]} weights are the fastest here. Smaller weights save bytes, which do not "
        text += "set the time, and cost the work of unpacking them before they are multiplied."
    if text:
        display.say(text.strip())
