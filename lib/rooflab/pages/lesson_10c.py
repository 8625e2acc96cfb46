"""What lesson 10c's page shows: whole models on one GPU and on two, with sums inside the norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import SOURCES, Opening, Rows, lesson_10, lesson_10b, lesson_10c_memory, one_line, spread
from rooflab.studies import links, split
from rooflab.view import display, plot
from rooflab.view.diagram import handovers
from rooflab.words import FORMATS, listed

TIMES = ("predicted_us", "median_us")
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
    """What the fused way brings to the models that gain most and least; the gains."""
    found, gpu = tokens(rows), here.run["gpu"]
    by = found.set_index(["title", "impl"])
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    large, least = (fused.loc[at(fused["gain"])] for at in (pd.Series.idxmax, pd.Series.idxmin))
    answer = (
        f"Of {large['title']} two {gpu}s make {large['tok_s']:,.0f} tokens a second by {WAYS[split.FUSED]} "
        f"where one makes {by.loc[large['title'], links.ALONE]['tok_s']:,.0f}, {large['gain']:.2f} times as "
        "many."
    )
    if len(fused) > 1:
        answer += f" {least['title']} gains least, {least['gain']:.2f} times."
    answer += f"{_main(rows)}{_decides(rows)}{_for_nothing(rows)}"
    answer += lesson_10c_memory.needs(rows, here.run_of("split"))
    able = (
        "say what a launch that overlaps the one before it hides, and measure it",
        "move a sum over GPUs into the kernel that needs it, and count the launches that this spares",
        "bound a token and a prompt on several GPUs by bytes, FLOPs and sums, and say what is left out",
        "say how many GPUs a model needs for its weights and KV cache",
    )
    fig, caption = _chart(found, gpu)
    return answer, able, (fig, f"{caption} {lesson_10b.other_gains(here)}".rstrip())


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


def _main(rows: Rows) -> str:
    """What overlap hides of a layer."""
    table = a_layer(rows)
    hidden = (table["plain"] - table["fused"]).dropna()
    if hidden.empty or hidden.min() <= 0:
        return ""
    return f" Overlap hides {_range(hidden, '.1f')} µs of a layer."


def _decides(rows: Rows) -> str:
    """The models that overlap alone brings from below one GPU's speed above it, and whether their layers are
    the shortest.
    """
    by = tokens(rows).pivot_table("gain", "title", "impl", sort=False)
    if not {split.FUSED_PLAIN, split.FUSED} <= set(by):
        return ""
    turned = by[(by[split.FUSED_PLAIN] < 1) & (by[split.FUSED] > 1)]
    if turned.empty:
        return ""
    us = a_layer(rows)["plain"]
    rest = us.drop(turned.index).dropna()
    short = ""
    if len(rest) and us[turned.index].max() < rest.min():
        short = f", where layers are shortest ({_range(us[turned.index], '.0f')} µs)"
    return (
        f" That decides for {listed(turned.index)}{short}: without overlap two GPUs are "
        f"slower than one, {_range(turned[split.FUSED_PLAIN], '.2f')} times its speed; with it they are "
        "faster."
    )


def _for_nothing(rows: Rows) -> str:
    """The models on which the fused way's kernels cost as much as overlap hides, or more."""
    table = a_layer(rows)
    lost = table[(table["plain"] > table["fused"]) & (table["fused"] >= table["separate"])]
    if lost.empty:
        return ""
    slower = listed(f"{one / two - 1:.0%}" for one, two in zip(lost["plain"], lost["separate"], strict=True))
    return (
        f" The price shows on {listed(lost.index)}: without overlap the fused way is {slower} slower than a "
        "kernel for each sum, and overlap hides no more than that."
    )


def _range(values: Any, form: str) -> str:
    """The ends of some values, or the one number that both are."""
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (values.min(), values.max())))


def _alone(found: Rows) -> set[str]:
    """The models that one GPU was timed with."""
    return set(found.loc[found["impl"] == links.ALONE, "title"])


def _chart(found: Rows, gpu: Any) -> Any:
    shared = found[found["gain"].notna() & (found["impl"] != links.ALONE)]
    names = list(dict.fromkeys(shared["title"]))
    caption = "A token on two GPUs, times one GPU's speed"
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.3 + 0.45 * len(names))
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
    """Say what a sum is charged, with the bytes of one row."""
    width = 4096
    sent = links.crossing("all_reduce", split.SEPARATE, 2 * width, 2)
    display.say(
        f"We charge a sum what [lesson 10](10_links.ipynb) assumed: {links.HOP_US:g} µs for a crossing of "
        f"the link, and {links.LAUNCH_US:g} µs for a launch where it is a kernel of its own. Inside a norm "
        "there is none, because the norm is launched anyway. Its bytes add little: packets carry the round "
        f"beside the numbers, so {width:,} numbers in FP16 are {plot.size_text(sent)}, "
        f"{sent / links.SHEET_GB_S / 1e3:.2f} µs at the datasheet's {links.SHEET_GB_S:g} GB/s."
    )


def launched() -> tuple[int, int]:
    """Launches of a layer, with sums as kernels of their own and the fused way."""
    separate, inside = (len(row) for row in handovers.by_way().values())
    return separate, inside


def _least_by(found: Rows) -> Any:
    """By model: the predicted gain of a second GPU if overlap hid no launch of the fused way."""
    us = found.pivot_table("predicted_us", "title", "impl", sort=False)
    if not {links.ALONE, split.FUSED} <= set(us):
        return pd.Series(dtype=float)
    models = found.drop_duplicates("title").set_index("title")["model"].reindex(us.index)
    layers = np.array([model_shapes.get(str(model)).layers for model in models])
    return (us[links.ALONE] / (us[split.FUSED] + layers * launched()[1] * links.LAUNCH_US)).dropna()


def predicted(rows: Rows) -> None:
    """Say what the bounds promise; show the bound of a token of each model on one GPU and on two, and the
    part of it that sums take.
    """
    found, lines = tokens(rows), []
    said, least = _gain_by(found, "predicted_us"), _least_by(found)
    if len(said):
        display.say(
            f"**Estimate if all launches are hidden: {said.min():.2f} to {said.max():.2f} times one GPU's "
            f"speed** by {WAYS[split.FUSED]}. **Estimate if no launches are hidden: {least.min():.2f} to "
            f"{least.max():.2f}**, with {launched()[1]} launches a layer at {links.LAUNCH_US:g} µs each. "
            "Neither is a limit: both assume that weights arrive at the datasheet's bandwidth, on one GPU as "
            f"on two, and leave out what else kernels do. {_left_out(found)}"
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
            | {"said": said.get(name), "least": least.get(name)}
        )
    columns = {"title": "Model", "alone": "One GPU (µs)"}
    columns |= {"apart": f"Two, {WAYS[split.SEPARATE]} (µs)", split.SEPARATE: "Its sums (µs)"}
    columns |= {"fused": f"Two, {WAYS[split.FUSED]} (µs)", split.FUSED: "Its sums (µs) "}
    columns |= {"said": "Gain if all launches are hidden", "least": "If none are"}
    forms = {"title": "", **dict.fromkeys(list(columns)[1:], "{:,.0f}")}
    forms |= dict.fromkeys(("said", "least"), "{:.2f}")
    caption = "Bounds of a token, before anything was measured"
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
    """Show a token of every model on one GPU and on two, predicted and measured."""
    found = tokens(rows)
    by = found.pivot_table("tok_s", "title", "impl", sort=False)
    short = pd.DataFrame({"title": by.index, "alone": by.get(links.ALONE)})
    short = short.assign(**{impl: by[impl] for impl in WAYS})
    ours = found[found["impl"] == split.FUSED].set_index("title")
    short["share"] = ours["predicted_us"] / ours["median_us"]
    short["said"], short["got"] = (_gain_by(found, of).reindex(short.index) for of in TIMES)
    short["least"] = _least_by(found).reindex(short.index)
    columns = {"title": "Model", "alone": "One GPU"} | {impl: f"Two, {says}" for impl, says in WAYS.items()}
    columns |= {"least": "Gain if no launches are hidden", "said": "If all are", "got": "Measured"}
    columns |= {"share": "Bound ÷ time"}
    forms = {"title": "", **dict.fromkeys(("alone", *WAYS), "{:,.0f}"), "share": "{:.0%}"}
    forms |= dict.fromkeys(("least", "said", "got"), "{:.2f}")
    caption = f"Tokens a second; gain over one GPU, and the bound over the time, by {WAYS[split.FUSED]}"
    display.table(short.reset_index(drop=True), columns, forms, caption)
    found["who"] = [(WAYS | {split.FUSED_PLAIN: PLAIN}).get(impl, "one GPU") for impl in found["impl"]]
    spread(found, ".1e", ",.0f")
    columns = {"title": "Model", "who": "On", "predicted_us": "Bound (µs)", "median_us": "Median (µs)"}
    columns |= {"quartiles": "Quartiles", "gain": "Times one GPU's speed", "gate": "Error (allowed)"}
    forms = {"predicted_us": "{:,.0f}", "median_us": "{:,.0f}", "gain": "{:.2f}"}
    display.fold("Every row: bounds, times and errors", [(found, columns, forms)])


def pays(rows: Rows, gpu: Any) -> None:
    """Say by which way of summing a second GPU pays, for which models, and whether the gain is the promised
    one.
    """
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
        f"{_beaten(found)}{_promised(found)}{_of_its_bound(found)}"
    )


def _beaten(found: Rows) -> str:
    """The models on which the fused way is not the fastest, with the times of a token."""
    by = found.pivot_table("median_us", "title", "impl", sort=False)
    if not {split.FUSED, split.SEPARATE} <= set(by):
        return ""
    slower = by[by[split.FUSED] >= by[split.SEPARATE]]
    said = [
        f"{name} ({row[split.FUSED]:,.0f} against {row[split.SEPARATE]:,.0f} µs)"
        for name, row in slower.iterrows()
    ]
    return f" The fused way is no faster than {WAYS[split.SEPARATE]} for {listed(said)}." if said else ""


def _of_its_bound(found: Rows) -> str:
    """What share of their bound two GPUs reach on models that one was not timed with."""
    text, held = "", _alone(found)
    for name, part in found.groupby("title", sort=False):
        if name not in held:
            best = part.loc[part["median_us"].idxmin()]
            text += f" Two reach {best['predicted_us'] / best['median_us']:.0%} of their bound on {name}."
    return text


def _gain_by(found: Rows, of: str) -> Any:
    """By model: how many times one GPU's speed two have by the fused way, by the times in column `of`."""
    us = found.pivot_table(of, "title", "impl", sort=False)
    if not {links.ALONE, split.FUSED} <= set(us):
        return pd.Series(dtype=float)
    return (us[links.ALONE] / us[split.FUSED]).dropna()


def _promised(found: Rows) -> str:
    """The verdict on the predicted gain of a second GPU, by the fused way: where the measured one lies."""
    both = pd.DataFrame({"said": _gain_by(found, "predicted_us"), "got": _gain_by(found, "median_us")})
    both = both.assign(least=_least_by(found).reindex(both.index)).dropna()
    if both.empty:
        return ""
    low, high = both.index[both["got"] < both["least"]], both.index[both["got"] > both["said"]]
    text = (
        f"\n\n**Verdict**: the measured gain lies between the two estimates for "
        f"{len(both) - len(low) - len(high)} of {len(both)} models."
    )
    if len(high):
        text += f" {listed(high)} gain{'s' * (len(high) == 1)} more than if all launches were hidden."
    if len(low):
        text += f" {listed(low)} gain{'s' * (len(low) == 1)} less than if no launches were hidden. So there "
        text += "something else costs time, such as products that read below the datasheet's bandwidth."
    return text


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
