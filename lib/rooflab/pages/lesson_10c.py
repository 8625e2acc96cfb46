"""What lesson 10c's page shows: whole models on one GPU and on two, with sums inside the norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import (
    SOURCES,
    Opening,
    Rows,
    lesson_10,
    lesson_10b,
    lesson_10c_memory,
    one_line,
    spread,
)
from rooflab.studies import links, split
from rooflab.view import display, plot
from rooflab.view.diagram import handovers
from rooflab.words import FORMATS, counted, listed

WAYS = {
    split.SEPARATE: "sums by our kernel",
    links.NCCL: "sums by NCCL",
    split.FUSED: "the fused way",
}
PLAIN = "the fused way by plain launches"  # timed to tell the overlap apart, and no way to run a model
SHADES = {split.SEPARATE: "#0072B2", links.NCCL: "#E69F00", split.FUSED: "#56B4E9"}  # in every chart
HANDOVERS = {
    links.NCCL: "NCCL, then a norm",
    split.SEPARATE: "our sum, then a norm",
    "1_pdl": "in one kernel",
}


def title(model: str, format: str) -> str:
    """A model and its format in words."""
    return f"{model} in {FORMATS[format]}"


def tokens(rows: Rows) -> Rows:
    """A token of each model, with `title` in words and `gain` over one GPU's, NaN for a model too large."""
    return _gains(rows[rows["operator"] == "decode"])


def prompts(rows: Rows) -> Rows:
    """A prompt of each model and length, as `tokens`."""
    return _gains(rows[rows["operator"] == "prefill"])


def _gains(found: Rows) -> Rows:
    keys = list(zip(found["model"], found["format"], found["seq"], strict=True))
    alone = {
        key: us
        for key, us, impl in zip(keys, found["median_us"], found["impl"], strict=True)
        if impl == links.ALONE
    }
    gains = [alone.get(key, np.nan) / us for key, us in zip(keys, found["median_us"], strict=True)]
    titles = [title(model, format) for model, format, _ in keys]
    return found.assign(gain=gains, title=titles).reset_index(drop=True)


def opening(rows: Rows, here: Lab) -> Opening:
    """What two GPUs gain by the fused way; what sums cost without it, and its two remedies; the gains."""
    found, gpu = tokens(rows), here.run["gpu"]
    by = found.set_index(["title", "impl"])
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    large, least = (fused.loc[at(fused["gain"])] for at in (pd.Series.idxmax, pd.Series.idxmin))
    answer = (
        f"Two {gpu}s make a token {spanned(fused['gain'], '.2f')} times as fast as one by the fused way"
        f"{_without(found)}. "
        f"{large['title']} gains most, {large['tok_s']:,.0f} tokens a second where one GPU makes "
        f"{by.loc[large['title'], links.ALONE]['tok_s']:,.0f}"
    )
    answer += f"; {least['title']} gains least." if len(fused) > 1 else "."
    answer += lesson_10c_memory.needs(rows, here.run_of("split"))
    answer += f"\n\n{_problem(found)}\n\n{_remedies(rows)}"
    able = (
        "say what a launch that overlaps the one before it hides, and measure it",
        "move a sum over GPUs into the kernel that needs it, and count the launches that this spares",
        "bound a token on several GPUs by bytes and sums, and say what is left out; a prompt by FLOPs, too "
        "([appendix](#prompts))",
        "say how many GPUs a model needs for its weights and KV cache "
        "([appendix](#how-many-gpus-the-memory-asks-for))",
    )
    fig, caption = _chart(found, gpu)
    return answer, able, (fig, f"{caption} {lesson_10b.other_gains(here)}".rstrip())


def _without(found: Rows) -> str:
    """The gains with a kernel for each sum, beside those of the fused way; "" where they were not timed."""
    gains = found.loc[found["impl"] == split.SEPARATE, "gain"].dropna()
    return f", and {spanned(gains, '.2f')} times with a kernel for each sum" if len(gains) else ""


def _problem(found: Rows) -> str:
    """What two sums a layer make of its launches, and which models they make slower than one GPU."""
    text = (
        "*The problem.* Each GPU holds half of every matrix (**tensor parallelism**), so each layer needs "
        f"two sums over the GPUs. With a kernel for each sum a layer is {launched()[0]} launches"
    )
    gains = found[found["impl"] == split.SEPARATE].set_index("title")["gain"]
    slower = gains[gains < 1]
    if slower.empty:
        return f"{text}."
    speeds = listed(f"{gain:.2f}" for gain in slower)
    return f"{text}, and two GPUs are slower than one on {listed(slower.index)}: {speeds} times its speed."


def _remedies(rows: Rows) -> str:
    """What the fused way is, and what overlap hides of a layer."""
    table = a_layer(rows)
    hidden = (table["plain"] - table["fused"]).dropna()
    text = (
        "*Two remedies.* The norm that follows a product makes its sum as well, and launches *overlap*: each "
        "starts while the one before still runs. The **fused way** does both, in "
        f"{launched()[1]} launches a layer. Two more changes come with it: half the output head for each "
        "GPU, and different kernels."
    )
    if hidden.empty or hidden.min() <= 0:
        return text
    return (
        f"{text} Overlap hides {spanned(hidden, '.1f')} µs of a layer, which takes "
        f"{spanned(table['plain'][hidden.index], '.0f')} µs by plain launches."
    )


def thread(rows: Rows) -> str:
    """The model, in words, that the page works out: the one of whose layer overlap hides the largest share,
    or else the first by the fused way; "" without one.
    """
    table = a_layer(rows).dropna(subset="fused")
    share = ((table["plain"] - table["fused"]) / table["plain"]).dropna()
    return str(share.idxmax() if len(share) else table.index[0]) if len(table) else ""


def a_layer(rows: Rows) -> Rows:
    """By model in words: model, and microseconds a layer, the output head shared among layers, with sums by
    our kernel (`separate`), the fused way by plain launches (`plain`) and as it is (`fused`); NaN if not
    timed.
    """
    found = tokens(rows)
    us = found.pivot_table("median_us", "title", "impl", sort=False)
    model = found.drop_duplicates("title").set_index("title")["model"].reindex(us.index)
    layers = np.array([model_shapes.get(str(name)).layers for name in model])
    names = {"separate": split.SEPARATE, "plain": split.FUSED_PLAIN, "fused": split.FUSED}
    table = {name: us[impl] / layers if impl in us else np.nan for name, impl in names.items()}
    return pd.DataFrame({"model": model} | table)


def spanned(values: Any, form: str) -> str:
    """The ends of some values, or the one number that both are."""
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (values.min(), values.max())))


def _alone(found: Rows) -> set[str]:
    """The models that one GPU was timed with."""
    return set(found.loc[found["impl"] == links.ALONE, "title"])


def _chart(found: Rows, gpu: Any) -> Any:
    shared = found[found["gain"].notna() & (found["impl"] != links.ALONE)]
    names = list(dict.fromkeys(shared["title"]))
    caption = "A token on two GPUs, times one GPU's speed"
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.2 + 0.38 * len(names))
    by = shared.set_index(["title", "impl"])["gain"]
    parts = {  # our kernel first: it and NCCL have the colours of lesson 10b's chart
        WAYS[impl]: [by.get((name, impl), np.nan) for name in names] for impl in SHADES
    }
    plot.grouped(ax, names, parts, most=2.0, form=".2f")
    plot.roof_line(ax, 1.0, "one GPU", vertical=True)
    plot.off_the_line(ax, 1.0)
    ends = shared.groupby("impl")["gain"].agg(["min", "max"])
    told = "; ".join(
        f"{says} {ends['min'][impl]:.2f} to {ends['max'][impl]:.2f}"
        for impl, says in WAYS.items()
        if impl in ends.index
    )
    lost = [name for name in dict.fromkeys(found["title"]) if name not in names]
    untimed = f" Without bars, as one GPU was not timed: {listed(lost)}." if lost else ""
    ways = "Sums by our kernel or by NCCL, NVIDIA's library: a kernel for each sum. The fused way: overlap, "
    ways += "fewer launches and half the output head, with different kernels for products and attention."
    return fig, f"{caption}, {gpu}, {plot.dates(shared)}: {told}. Dashed: one GPU.{untimed} {ways}"


def facts(here: Lab) -> None:
    """Show whose figures these are, and what joins the GPUs."""
    run = here.run_of("split")
    note = lesson_10.joined(str(run["note"]))
    one_line({"GPU": " · ".join([run["gpu"], SOURCES[here.mode], f"run {run['run']}", note])})


def assumed() -> None:
    """Say what a sum is charged in each of the two bounds, with the bytes of one row."""
    width = 4096
    sent = links.crossing("all_reduce", split.SEPARATE, 2 * width, 2)
    display.say(
        f"We charge what [lesson 10](10_links.ipynb) assumed: {links.LAUNCH_US:g} µs for a launch and "
        f"{links.HOP_US:g} µs for a crossing of the link. A sum costs\n\n"
        f"- in **the fused way's bound** a crossing, {links.HOP_US:g} µs, as it is part of a norm. Each GPU "
        "reads half the output head.\n"
        f"- in **the bound of separate sums** a launch and a crossing, {links.LAUNCH_US:g} + "
        f"{links.HOP_US:g} µs, as it is a kernel. Each GPU reads the whole output head.\n\n"
        "Bytes of a sum add little: packets carry the round "
        f"beside the numbers, so {width:,} numbers in FP16 are {plot.size_text(sent)}, "
        f"{sent / links.SHEET_GB_S / 1e3:.2f} µs at the datasheet's {links.SHEET_GB_S:g} GB/s."
    )


def launched() -> tuple[int, int]:
    """Launches of a layer, with sums as kernels of their own and the fused way."""
    separate, inside = (len(row) for row in handovers.by_way().values())
    return separate, inside


def plain_us(found: Rows) -> Any:
    """By model in words: a token's estimate by plain launches: the fused way's bound, and launches."""
    us = found[found["impl"] == split.FUSED].set_index("title")
    layers = np.array([model_shapes.get(str(model)).layers for model in us["model"]])
    return us["predicted_us"] + layers * launched()[1] * links.LAUNCH_US


def gains_by(found: Rows) -> Any:
    """By model in words that one GPU was timed with, the gain of a second by the fused way: `said` by the
    bounds, `least` by the estimate for plain launches, `got` measured with overlap and `plain` without.
    """
    us, bound = (found.pivot_table(of, "title", "impl", sort=False) for of in ("median_us", "predicted_us"))
    names = ["said", "least", "got", "plain"]
    if not {links.ALONE, split.FUSED} <= set(us):
        return pd.DataFrame(columns=names, dtype=float)
    plain = us.get(split.FUSED_PLAIN, np.nan)
    ratios = (
        bound[links.ALONE] / bound[split.FUSED],
        bound[links.ALONE] / plain_us(found),
        us[links.ALONE] / us[split.FUSED],
        us[links.ALONE] / plain,
    )
    return pd.DataFrame(dict(zip(names, ratios, strict=True))).reindex(us.index).dropna(subset="got")


def predicted(rows: Rows) -> None:
    """Say what the bounds and the estimates promise of all models; fold the bounds of each."""
    found, lines = tokens(rows), []
    gains = gains_by(found)
    if len(gains):
        display.say(
            f"**Over {counted(len(gains), 'model')} two GPUs should be {spanned(gains['said'], '.2f')} times "
            f"as fast as one if overlap hides every launch, and {spanned(gains['least'], '.2f')} times "
            "by plain launches.** Both take the datasheet's bandwidth, on one GPU as on two, and leave out "
            f"what else kernels do. {_left_out(found)}"
        )
    for name, part in found.groupby("title", sort=False):
        by = part.set_index("impl")["predicted_us"]
        model, layers = str(part["model"].iloc[0]), model_shapes.get(str(part["model"].iloc[0])).layers
        size = 2 * model_shapes.get(model).hidden
        each = {impl: split.sum_us(impl, size, 2) for impl in (split.SEPARATE, split.FUSED)}
        lines.append(
            {"title": name, "alone": by.get(links.ALONE), "fused": by.get(split.FUSED)}
            | {"apart": by.get(split.SEPARATE)}
            | {impl: 2 * layers * us for impl, us in each.items()}
            | {"said": gains["said"].get(name), "least": gains["least"].get(name)}
        )
    columns = {"title": "Model", "alone": "One GPU (µs)"}
    columns |= {"apart": f"Two, {WAYS[split.SEPARATE]} (µs)", split.SEPARATE: "Its sums (µs)"}
    columns |= {"fused": f"Two, {WAYS[split.FUSED]} (µs)", split.FUSED: "Its sums (µs) "}
    columns |= {"said": "Gain by the bounds", "least": "Estimated by plain launches"}
    forms = {"title": "", **dict.fromkeys(list(columns)[1:], "{:,.0f}")}
    forms |= dict.fromkeys(("said", "least"), "{:.2f}")
    caption = "Bounds of every model, before anything was measured"
    display.table(pd.DataFrame(lines), columns, forms, caption, folded=True)


def _left_out(found: Rows) -> str:
    """What the bound of a token does not count, and how long the context is."""
    shares = []
    for model, format in found[["model", "format"]].drop_duplicates().itertuples(index=False):
        shape = model_shapes.get(str(model))
        read = model_shapes.kv_read_bytes(shape, links.PROMPT + links.STEPS)
        shares.append(read / model_shapes.weight_bytes(shape, str(format), split.HEAD))
    return (
        f"Keys and values are left out: timed are {links.STEPS} tokens after a prompt of {links.PROMPT}, so "
        f"they are at most {max(shares):.1%} of the bytes of the weights."
    )


def measured(rows: Rows) -> None:
    """Show the gain of a second GPU on every model, predicted and measured; fold the times."""
    found = tokens(rows)
    by = found.pivot_table("tok_s", "title", "impl", sort=False)
    gains = gains_by(found).reindex(by.index)
    short = gains.assign(title=by.index, alone=by.get(links.ALONE), fused=by[split.FUSED])
    columns = {"title": "Model", "alone": "One GPU (tok/s)", "fused": f"Two, {WAYS[split.FUSED]} (tok/s)"}
    columns |= {"least": "Gain by plain launches, estimated", "plain": "measured"}
    columns |= {"said": "Gain with overlap, by the bounds", "got": "measured "}
    if gains["plain"].isna().all():
        columns.pop("plain")
    forms = {"title": "", **dict.fromkeys(("alone", "fused"), "{:,.0f}")}
    forms |= dict.fromkeys(gains, "{:.2f}")
    display.table(short.reset_index(drop=True), columns, forms, "Gains over one GPU, predicted and measured")
    found["who"] = [(WAYS | {split.FUSED_PLAIN: PLAIN}).get(impl, "one GPU") for impl in found["impl"]]
    spread(found, ".1e", ",.0f")
    columns = {"title": "Model", "who": "On", "predicted_us": "Bound (µs)", "median_us": "Median (µs)"}
    found["ratio"] = found["median_us"] / found["predicted_us"]
    columns |= {"quartiles": "Quartiles", "ratio": "Median ÷ bound", "gain": "Times one GPU's speed"}
    columns |= {"gate": "Error (allowed)"}
    forms = {"predicted_us": "{:,.0f}", "median_us": "{:,.0f}", "ratio": "{:.2f}", "gain": "{:.2f}"}
    display.fold("Every row: bounds, times and errors", [(found, columns, forms)])


def pays(rows: Rows, gpu: Any) -> None:
    """Say by which way of summing a second GPU pays, for which models, and whether gains fall short."""
    found = tokens(rows)
    ways: dict[str, list[str]] = {}
    for name, part in found.groupby("title", sort=False):
        mine = part.set_index("impl")
        if links.ALONE not in mine.index:
            continue
        good = [says for impl, says in WAYS.items() if mine["gain"].get(impl, np.nan) > crossover.LEVEL]
        who = "every way" if len(good) == len(WAYS) else f"{listed(good)} alone" if good else "none"
        ways.setdefault(who, []).append(str(name))
    said = "; ".join(f"with {who} for {listed(names)}" for who, names in ways.items())
    display.say(
        f"**On {gpu}s two are faster than one** {said}."
        f"{_decides(found)}{_short_of(gains_by(found))}{_of_its_bound(found)}"
    )


def _decides(found: Rows) -> str:
    """The models that overlap alone brings from below one GPU's speed above it."""
    gains = gains_by(found)
    turned = gains.index[(gains["plain"] < 1) & (gains["got"] > 1)]
    if turned.empty:
        return ""
    return (
        f" Overlap decides for {listed(turned)}: by plain launches the fused way has "
        f"{spanned(gains['plain'][turned], '.2f')} times one GPU's speed."
    )


def _of_its_bound(found: Rows) -> str:
    """What share of their bound two GPUs reach on models that one was not timed with."""
    text, held = "", _alone(found)
    for name, part in found.groupby("title", sort=False):
        if name not in held:
            best = part.loc[part["median_us"].idxmin()]
            text += f" Two reach {best['predicted_us'] / best['median_us']:.0%} of their bound on {name}."
    return text


def _short_of(gains: Rows) -> str:
    """Which gains fall short of their predictions, and what follows."""
    pairs = [pair for pair in (("plain", "least"), ("got", "said")) if gains[pair[0]].notna().any()]
    if gains.empty or not all((gains[got] < gains[said]).all() for got, said in pairs):
        return ""
    return (
        " **The predictions are too hopeful on every model**: what they leave out weighs more on two "
        "GPUs than on one."
    )


def baselines(rows: Rows, here: Lab) -> None:
    """Say against which one GPU gains are counted, and how others' figures for it differ."""
    found = tokens(rows)
    by = found.set_index(["model", "format", "impl"])["tok_s"]
    fastest, said = lesson_10b.fastest_alone(here.run["gpu"]), []
    for row in found[found["impl"] == links.ALONE].itertuples():
        best = fastest.get((row.model, row.format))
        if best:
            gain = by[row.model, row.format, split.FUSED] / best
            said.append(f"{best:,.0f} tokens a second for {row.title} (the gain is then {gain:.2f})")
    lines = ["Gains are over the *one GPU* of the same run, by the rung that the engine chooses itself."]
    if said:
        lines[0] += f" [Lesson 08](08_decoder.ipynb)'s fastest rung on one such GPU makes {listed(said)}."
    if runs := lesson_10b.two_runs(here):
        lines.append(runs)
    display.fold_items("Over which one GPU gains are, and how two runs of it differ", lines)
