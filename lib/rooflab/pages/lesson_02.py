"""What lesson 02 shows: how long a decoded token takes, how much of that the GPU works, in which kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab import lab as labs
from rooflab.analysis import time_breakdown
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.numerics.model_shapes import Model
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_02_host import scatter_said
from rooflab.pages.lesson_02_host import standing as standing
from rooflab.profile import parts
from rooflab.records.case import Case
from rooflab.studies import attribution, hf
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.view.diagram import steps, svg
from rooflab.words import listed, times

LAPTOP = "rtx-4070-laptop-published"
ORDER = ("weight", "attention", "norm", "rope", "copy")  # the classes that a chart tells apart


def published() -> Any:
    """The figures published for the RTX 4070 Laptop, by what they are of, in microseconds."""
    return labs.open("replay", LAPTOP).store.read("attribution").set_index("operator").median_us


def _in_order(frame: Rows) -> Rows:
    """A frame with a line a way, in the order eager, graph, compile."""
    ways = [variant.removeprefix("transformers.") for variant in hf.VARIANTS]
    return frame.reindex([way for way in ways if way in frame.index])


def opening(rows: Rows, trace: Rows, gpu: str, context: int, roof: float) -> Opening:
    """The first screen: how much of a token's time the GPU works, with what, and what the bytes allow."""
    busy = time_breakdown.busy(rows, trace)
    share = busy.loc[(busy.variant == "eager") & (busy.seq == context), "busy_pct"].iloc[0]
    table = time_breakdown.by_class(trace)
    mine = table[(table.seq == context) & (table.variant == "eager")].set_index("class")
    text = f"Run eagerly on the {gpu} after {context:,} tokens, the GPU works {share:.0f}% of the time and "
    text += "waits for Python the rest; of the time it works, weight products take "
    text += f"{mine.pct.get('weight', 0.0):.0f}%."
    able = [
        "say how much of a token's time the GPU works, and in which kernels",
        "name the part of the model that a kernel belongs to",
        "decide whether a faster kernel would change anything",
    ]
    return text, able, token_time(rows, trace, gpu, context, roof)


def token_time(rows: Rows, trace: Rows, gpu: str, context: int, roof: float) -> tuple[Figure, str]:
    """A token's time by each way to run it, in weight products, other kernels and waiting; the caption."""
    busy = time_breakdown.busy(rows, trace)
    now = _in_order(busy[busy.seq == context].set_index("variant"))
    mine = trace[(trace.seq == context) & (trace["class"] == "weight")].groupby("variant").us.sum()
    products = mine.reindex(now.index, fill_value=0.0)
    least = float(rows[rows.seq == context].bytes.iloc[0]) / roof / 1e3
    seen = {
        "weight products": [*products, 0.0],
        "other kernels": [*(now.gpu_us - products), 0.0],
        "the GPU waits": [*(now.wall_us - now.gpu_us).clip(lower=0), 0.0],
        "its bytes at the read roof": [0.0] * len(now) + [least],
    }
    title = f"A token at context {context:,}: {len(now)} ways to run the same model"
    fig, ax = plot.figure("µs", title=title, height=2.4)
    fig.set_figwidth(page.WIDEST)
    walls = [*now.wall_us.items(), ("bound", least)]
    shades = {"the GPU waits": svg.GREY}  # as in the page's drawings
    plot.stacked(ax, [f"{way}, {1e6 / us:,.0f} tok/s" for way, us in walls], seen, "µs", shades)
    text = f"{title}, on {gpu}, {plot.dates(rows)}."
    if products.iloc[0] > 1.2 * least:
        text += f" Even the products alone take {products.iloc[0] / least:.1f} times as long as a token's "
        text += "bytes at the "
        text += "read roof: part 02b asks why."
    return fig, text


# --- the model and its bound --------------------------------------------------------------------------------


def model_said(model: Model, weights: str) -> None:
    """Draw a layer of the model, and say how large it is, how many weight products a token needs, and whether
    the `weights` are "random".
    """
    diagram.one_token(model).show()
    layer = [each for each in model_shapes.projections(model) if each.times == model.layers]
    display.say(
        f"**{model.name}**: {model.layers} layers, a token's vector of {model.hidden:,} "
        f"numbers ({model.mlp:,} between up and down), a vocabulary of {model.vocab:,}. "
        f"Attention is split into {model.heads} query heads of {model.head_dim} numbers; "
        f"they share {model.kv_heads} heads of keys and values. A token needs "
        f"{len(layer):,} × {model.layers:,} + 1 = **{model_shapes.gemvs(model) + 1} weight products**: the 1 "
        "is `lm_head`, which turns the last vector into a score for each word of the vocabulary."
        + (
            " The weights here are random numbers in the model's shapes: it makes the same launches and "
            "reads as many bytes, but writes no text."
            if weights == "random"
            else ""
        )
    )


def half_layers(rows: Rows, trace: Rows, context: int) -> None:
    """Draw the last launches of a layer by each way, where the eager trace names its products, and say what
    part of the layer and of its work they are.
    """
    mine = trace[(trace.operator == "decode") & (trace.seq == context)]
    busy = time_breakdown.busy(rows, mine).set_index("variant")
    drawing = diagram.half_layers(mine, _in_order(busy), attribution.LAYER)
    if drawing is None:
        return
    drawing.show()
    eager = mine[mine.variant == "eager"]
    line = time_breakdown.timeline(eager)
    begin, end = time_breakdown.one_layer(line, attribution.LAYER)
    layer = int(line.start_us.between(begin, end, inclusive="left").sum())
    part = steps.half_layer(eager, attribution.LAYER)
    call = float(busy.wall_per_launch_us["eager"])
    work = sum(kernel.us for kernel in part)
    share = 100 * work / steps.eager_spans(part, call)[-1][1]
    text = f"Drawn are the last {len(part)} of the {layer} launches of a layer. In the time that eager needs "
    text += f"for them the GPU works {share:.0f}%; in that of the whole token {busy.busy_pct['eager']:.0f}%"
    each, every = work / len(part), eager.us.sum() / eager.launches.sum()
    if each > every and share > busy.busy_pct["eager"]:
        text += f", because these kernels are longer: {each:.1f} µs on average, over the token {every:.1f}"
    display.say(f"{text}.")


def bound(rows: Rows, roof: float, model: Model) -> Rows:
    """Show the least time of a token by its bytes, say how these come about, and return it: columns seq, mb,
    us, tok.
    """
    first = rows.drop_duplicates("seq").sort_values("seq")
    found = pd.DataFrame({"seq": first.seq, "mb": first.bytes / 1e6, "us": first.bytes / roof / 1e3})
    found["tok"] = 1e6 / found.us
    heads = {"seq": "context, tokens", "mb": "MB read a token", "us": "at least, µs"}
    heads |= {"tok": "at most, tok/s"}
    display.table(found, heads, dict.fromkeys(heads, "{:,.0f}"))
    millions = (model_shapes.body(model) + model_shapes.head(model)) / 1e6
    display.say(
        f"The MB: {millions:,.0f} million weights × 2 bytes are {2 * millions:,.0f}. To these come the keys "
        "and values of the context and of the token itself, "
        f"{model_shapes.kv_bytes_per_token(model):,} bytes a token: {model.layers} layers × {model.kv_heads} "
        f"heads × {model.head_dim} numbers × 2 (a key and a value) × 2 bytes."
    )
    return found


def speed_by_context(rows: Rows, limit: Rows, gpu: str) -> None:
    """Draw tokens a second by context, for each way and for the bound."""
    title = "Tokens a second by context"
    fig, ax = plot.figure("tokens of context", "tok/s", title, xlog=True, ylog=True, height=3)
    for impl, side in rows.groupby("impl", sort=False):
        plot.series(ax, side.seq, *plot.band(side, "tok_s"), label=impl.removeprefix("transformers."))
    plot.series(ax, limit.seq, limit.tok, label="bound")
    ax.set_xticks(list(limit.seq), [f"{n:,}" for n in limit.seq])
    plot.label_ends(ax)
    caption = plot.caption(rows, gpu, title, y="tok_s")
    few = [
        f" Recorded at {listed(f'{n:,}' for n in sorted(side.seq))} tokens only: "
        f"{impl.removeprefix('transformers.')}."
        for impl, side in rows.groupby("impl", sort=False)
        if side.seq.nunique() < rows.seq.nunique()
    ]
    plot.show(fig, caption + "".join(few))


def bound_over_measured(rows: Rows, limit: Rows, context: int) -> None:
    """Say how far each way is from the bound, and show the times."""
    shown = rows[rows.seq == context].assign(way=lambda each: each.impl.str.removeprefix("transformers."))
    tok = limit.set_index("seq").tok[context]
    words = [f"{times(tok / row.tok_s)} times `{row.way}`" for row in shown.itertuples()]
    display.say(
        f"At a context of {context:,} the bound is {tok:,.0f} tok/s: {', '.join(words)}. "
        "Where does the rest of the time go?"
    )
    shown["share"] = 100 * shown.roof_fraction
    shown["wide"] = 100 * (shown.q3_us - shown.q1_us) / shown.median_us
    heads = {"way": "way", "median_us": "µs a token", "wide": "q3 − q1, % of that"}
    heads |= {"tok_s": "tok/s", "share": "% of the bound"}
    forms = {"median_us": "{:,.0f}", "wide": "{:.1f}", "tok_s": "{:,.0f}", "share": "{:.0f}"}
    display.table(shown, heads, forms, f"Times and their spread at context {context:,}", folded=True)


# --- which kernels ------------------------------------------------------------------------------------------


def eager_classes(trace: Rows, context: int) -> Rows:
    """Show one eager token's launches by their class, and return them."""
    table = time_breakdown.by_class(trace)
    meanings = pd.DataFrame(parts.CLASSES.items(), columns=["class", "what"])
    one = table[(table.seq == context) & (table.variant == "eager")].merge(meanings, on="class")
    one = one.sort_values("us", ascending=False)
    heads = {"class": "class", "what": "what it does", "launches": "launches"}
    heads |= {"us": "µs", "pct": "% of GPU time"}
    caption = f"One eager token at context {context:,}, traced"
    display.table(one, heads, {"us": "{:,.0f}", "pct": "{:.1f}"}, caption)
    return one


def weight_share(one: Rows, theirs: Any, model: Model) -> None:
    """Say what weight products take of an eager token's GPU time, here and as published, and the others."""
    by, products = one.set_index("class"), model_shapes.gemvs(model) + 1
    weight, small = by.pct.get("weight", 0.0), one[one["class"] != "weight"]
    display.say(
        f"Weight products take **{weight:.0f}%** of the GPU's time here. On the laptop it was "
        f"{100 * theirs['decode_gemv'] / theirs['decode_kernels']:.0f}%. The other {100 - weight:.0f}% are "
        f"{small.launches.sum():,} launches of {small.us.sum() / small.launches.sum():.1f} µs on average; "
        f"the {products} products average {by.us['weight'] / products:.1f} µs."
    )
    norms = 2 * model.layers + 1
    display.say(
        "Where do so many launches come from? A *norm* divides a vector by the root of its mean square, "
        "which sounds like one kernel. The library writes it out: widen to FP32, square, mean, add, root, "
        f"multiply, narrow, multiply. That is **{by.launches.get('norm', 0) / norms:.0f} launches**, "
        f"{norms} times a token."
    )


def names_checked(trace: Rows, model: Model) -> None:
    """Say how many traced cases launched just the weight products that the model has."""
    products = trace[trace["class"] == "weight"].groupby("case").launches.sum()
    expected = model_shapes.gemvs(model) + 1
    display.say(
        f"A check of the names: {(products == expected).sum()} of {len(products)} traced cases "
        f"launched exactly {expected} weight products a token."
    )


def shares(trace: Rows) -> Rows:
    """Shares of GPU time in percent: a line a context and way, a column for each class of ORDER and other."""
    table = time_breakdown.by_class(trace)
    grouped = table.assign(group=table["class"].where(table["class"].isin(ORDER), "other"))
    keys = ["seq", "variant"]
    wide = grouped.pivot_table(index=keys, columns="group", values="pct", aggfunc="sum", fill_value=0)
    return wide.reindex(columns=[*ORDER, "other"], fill_value=0)


def shares_by_way(trace: Rows, context: int, gpu: str, when: str) -> None:
    """Draw what classes of kernels take of the GPU's time, a bar a way."""
    look = _in_order(shares(trace).loc[context])
    title = f"Share of GPU time, context {context:,}"
    fig, ax = plot.figure("% of GPU time", title=title, height=1.5 + 0.4 * len(look))
    plot.stacked(ax, list(look.index), {name: look[name] for name in look})
    most = look["weight"].idxmax()
    caption = f"{title} on {gpu}, {when}: {len(look)} ways, "
    plot.show(fig, f"{caption}weight products at most {look['weight'].max():.0f}% ({most}).")


# --- is the GPU busy ----------------------------------------------------------------------------------------


def busy_times(rows: Rows, trace: Rows, context: int) -> None:
    """Show how long the GPU works for what a caller waits, at `context` and at the longest context."""
    busy = time_breakdown.busy(rows, trace)
    heads = {"variant": "way", "seq": "context", "launches": "launches"}
    heads |= {"gpu_us": "kernels, µs", "wall_us": "wall, µs"}
    heads |= {"busy_pct": "GPU busy, %", "wall_per_launch_us": "wall ÷ launches, µs"}
    forms = dict.fromkeys(("gpu_us", "wall_us", "busy_pct"), "{:,.0f}")
    forms |= {"launches": "{:,}", "wall_per_launch_us": "{:.1f}"}
    display.table(busy[busy.seq.isin([context, busy.seq.max()])], heads, forms)


def busy_said(rows: Rows, trace: Rows, context: int, theirs: Any) -> None:
    """Say how much of an eager token's time the GPU works, and what a graph changes."""
    busy = time_breakdown.busy(rows, trace)
    now = busy[busy.seq == context].set_index("variant")
    eager = now.loc["eager"]
    display.say(
        f"Eager, the GPU works **{eager.busy_pct:.0f}%** of the time that the caller waits (on the laptop: "
        f"{100 * theirs['decode_kernels'] / theirs['decode']:.0f}%). The rest of the time it waits for "
        f"Python, which makes {eager.launches:,} launches in {eager.wall_us / 1e3:.1f} ms, one in "
        f"{eager.wall_per_launch_us:.1f} µs: the call ([lesson 00b](00b_clocks.ipynb) prices it by itself), "
        "and the model's Python between two calls."
        + (" A faster kernel would change nothing here." if eager.busy_pct < 80 else "")
    )
    scatter_said(busy)
    if "graph" in now.index:
        graph = now.loc["graph"]
        display.say(
            f"As a graph, {graph.launches:,} kernels take {graph.wall_us / 1e3:.1f} ms, "
            f"which is {display.speed(eager.wall_us / graph.wall_us)}, and the GPU is busy "
            f"{graph.busy_pct:.0f}% of the time." + (" Now kernels matter." if graph.busy_pct > 80 else "")
        )


def one_layer(trace: Rows, context: int, gpu: str, when: str) -> None:
    """Draw the launches of each way over the time that the eager one spends on one layer."""
    mine = trace[trace.seq == context]
    lines = {way: time_breakdown.timeline(each) for way, each in mine.groupby("variant", sort=False)}
    begin, end = time_breakdown.one_layer(lines["eager"], attribution.LAYER)
    lanes = {}
    for way, launches in lines.items():
        start = begin if way == "eager" else launches.start_us.iloc[len(launches) // 2]
        moved = launches.assign(start_us=launches.start_us - start)
        lanes[way] = moved[moved.start_us.between(0, end - begin, inclusive="left")]
    title = f"The same {end - begin:,.0f} µs of a token by each way: tall bars are weight products"
    fig, ax = plot.figure("µs", title=title, height=2.6)
    fig.set_figwidth(page.WIDEST)
    plot.spans(ax, lanes, "weight")
    ax.set_xlim(0, end - begin)
    counts = ", ".join(f"{way} {len(each)}" for way, each in lanes.items() if way != "eager")
    text = (
        f"{end - begin:,.0f} µs of a decoded token, traced, on {gpu}, {when}: eager gets through one layer, "
    )
    plot.show(
        fig, f"{text}{len(lanes['eager'])} launches" + (f"; in the same time {counts}." if counts else ".")
    )


# --- with more context --------------------------------------------------------------------------------------


def attention_by_context(trace: Rows, sizes: Sequence[int], model: Model, roof: float) -> None:
    """Show what attention takes at each context beside its cache at the roof, and say where the rest goes."""
    kv = pd.DataFrame({"seq": sizes})
    kv["mb"] = [model_shapes.kv_read_bytes(model, n + 1) / 1e6 for n in sizes]
    kv["roof_us"] = kv.mb / roof * 1e3
    mine = trace[(trace.variant == "eager") & (trace.part == "attention")]
    kv = kv.merge(mine.groupby(["seq", "class"]).us.sum().unstack(), on="seq")
    heads = {"seq": "context", "mb": "cache, MB", "roof_us": "predicted, µs"}
    heads |= {"attention": "attention kernels, µs", "copy": "copies for attention, µs"}
    display.table(kv, heads, dict.fromkeys(list(heads)[1:], "{:,.0f}"))
    least = mine[(mine.seq == kv.seq.iloc[0]) & (mine["class"] == "attention")]
    if least.us.sum() > 5 * kv.roof_us.iloc[0]:
        count = int(least.launches.sum())
        display.say(
            f"With little context launches count, not bytes: at {kv.seq.iloc[0]:,} tokens attention makes "
            f"{count:,} launches, and at {least.us.sum() / count:.1f} µs each they take "
            f"{least.us.sum():,.0f} µs."
        )
    last, group = kv.iloc[-1], model.heads // model.kv_heads
    display.say(
        f"At {last.seq:,.0f} tokens attention takes {last.attention:,.0f} µs for a cache "
        f"that could be read in {last.roof_us:,.0f}. Another {last['copy']:,.0f} µs go "
        "into *copies*: before attention reads them, the library writes every key and "
        f"value out {group} times, once for each of the {group} query heads that share it."
        if "copy" in kv and last["copy"] > last.roof_us
        else f"At {last.seq:,.0f} tokens attention takes {last.attention:,.0f} µs."
    )


def shares_by_context(trace: Rows, gpu: str, when: str) -> None:
    """Draw what classes of kernels take of an eager token's GPU time, a bar a context."""
    eager = shares(trace).xs("eager", level="variant")
    title = "Share of GPU time by context, eager"
    fig, ax = plot.figure("% of GPU time", title=title, height=1.5 + 0.4 * len(eager))
    plot.stacked(ax, [f"{n:,} tokens" for n in eager.index], {name: eager[name] for name in eager})
    low, high = eager["weight"].min(), eager["weight"].max()
    plot.show(fig, f"{title} on {gpu}, {when}: weight products {low:.0f} to {high:.0f}%.")


# --- the end of the page ------------------------------------------------------------------------------------


def two_profilers(here: Lab, cases: Sequence[Case], context: int) -> None:
    """Say whether Nsight Systems and CUPTI tell the same, and show what each says."""
    asked = [case for case in cases if case.seq == context and case.impl != "transformers.compile"]
    agree = time_breakdown.agreement(here, asked)
    if len(agree):
        totals = agree.groupby("variant")[["us_nsys", "us_cupti"]].sum()
        off = (100 * (totals.us_cupti / totals.us_nsys - 1)).abs().max()
        same = (agree.launches_nsys == agree.launches_cupti).all()
        text = f"They list {'the same launches' if same else 'different numbers of launches'}, and their "
        text += (
            f"totals differ by at most {off:.1f}%, those of a class by up to {agree.apart.abs().max():.0f}%. "
        )
        text += "Either will do for totals." if same and off < 5 else "Say with a total which one it is by."
        both = "PyTorch's own profiler reads the kernels' times through CUPTI, the driver's tracing library. "
        display.say(both + text)
    heads = {"class": "class (eager)", "us_nsys": "nsys, µs", "us_cupti": "CUPTI, µs"}
    heads |= {"apart": "apart, %", "launches_nsys": "launches, nsys", "launches_cupti": "launches, CUPTI"}
    forms = {"us_nsys": "{:,.0f}", "us_cupti": "{:,.0f}", "apart": "{:+.1f}"}
    side = agree[agree.variant == "eager"]
    display.table(side, heads, forms, "What either profiler says of an eager token", folded=True)


def takeaway(rows: Rows, trace: Rows, context: int, gpu: str, theirs: Any) -> None:
    """What to take away, computed."""
    busy = time_breakdown.busy(rows, trace)
    now = busy[busy.seq == context].set_index("variant")
    eager, table = now.loc["eager"], time_breakdown.by_class(trace)
    weight = table[
        (table.seq == context) & (table.variant == "eager") & (table["class"] == "weight")
    ].pct.sum()
    text = f"- On the {gpu} weight products are {weight:.0f}% of an eager token's GPU time; on an RTX 4070 "
    text += f"Laptop {100 * theirs['decode_gemv'] / theirs['decode_kernels']:.0f}% were published. Same "
    text += f"model, same library.\n- Eager, the GPU is busy {eager.busy_pct:.0f}% of the time. "
    if "graph" in now.index:
        graph = now.loc["graph"]
        text += (
            f"A graph leaves the GPU idle {100 - graph.busy_pct:.0f}% of the time and is "
            if graph.busy_pct > eager.busy_pct
            else "A graph is "
        )
        text += display.speed(eager.wall_us / graph.wall_us)
        if "compile" in now.index:
            fewer = eager.launches - now.loc["compile"].launches
            text += f"; `compile` needs {abs(fewer):,.0f} {'fewer' if fewer > 0 else 'more'} launches and "
            text += f"is, against the graph, {display.speed(graph.wall_us / now.loc['compile'].wall_us)}"
        text += ".\n"
    display.say(text + "- First ask whether the GPU works, then in which kernels, then how well they do.")


def speed_explored(here: Lab, rows: Rows, model: Model, roof: float) -> Any:
    """The explorer of tokens a second by way and context."""
    return explorer.Explorer(
        "decode-speed",
        rows.assign(predicted_us=rows.bytes / roof / 1e3),
        x="seq",
        y="tok_s",
        controls={"impl": "Way", "weights": "Weights"},
        labels={"seq": "tokens of context"},
        title=f"Decoding {model.name} on {here.run.gpu}",
        foretold="at least {} µs (read roof)",
        measure=explorer.measurer(here),
    )


def shares_explored(rows: Rows, trace: Rows, gpu: str) -> Any:
    """The explorer of each class's share of the GPU's time."""
    dated = time_breakdown.by_class(trace).merge(rows[["case", "run"]], on="case")
    return explorer.Explorer(
        "shares",
        dated.rename(columns={"pct": "%"}),
        x="seq",
        y="%",
        controls={"class": "Class", "variant": "Way"},
        labels={"seq": "tokens of context", "%": "% of GPU time"},
        title=f"Where a token's GPU time goes on {gpu}",
    )
