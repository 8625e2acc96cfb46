"""What lesson 10c's page shows: whole models on one GPU and on two, with sums inside the norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rooflab.hardware import crossover
from rooflab.hardware import device as devices
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import NEAR, SOURCES, Opening, Rows, one_line, spread
from rooflab.studies import links, split
from rooflab.view import display, explorer, plot
from rooflab.view.diagram import handovers
from rooflab.words import FORMATS, listed

WAYS = {
    links.NCCL: "sums by NCCL",
    split.SEPARATE: "sums by our kernel",
    split.FUSED: "the fused way",
}
_LARGE = "llama-3-70b"


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


def weights_gb(model: str, format: str, gpus: int = 1) -> float:
    """Weights that a GPU holds, in 10^9 bytes: its share of the layers, and embedding and head whole."""
    shape = model_shapes.get(model)
    head = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[split.HEAD]
    body = model_shapes.weight_bytes(shape, format, split.HEAD) - head
    return float(body / gpus + (1 if shape.tied else 2) * head) / 1e9


def opening(rows: Rows, here: Lab) -> Opening:
    """The largest model that one GPU holds on one and on two, and what sums in the norms bring; the gains."""
    found, gpu = tokens(rows), here.run["gpu"]
    by = found.set_index(["model", "format", "impl"])
    best = found[found["gain"].notna() & (found["impl"] != links.ALONE)]
    most = best[best["model"] == _LARGE] if _LARGE in set(best["model"]) else best
    large = most.loc[most["gain"].idxmax()]
    alone = by.loc[large["model"], large["format"], links.ALONE]
    fused = best[best["impl"] == split.FUSED]
    least = fused.loc[fused["gain"].idxmin()]
    before = by.loc[least["model"], least["format"], split.SEPARATE]["gain"]
    answer = (
        f"{large['title']} makes {alone['tok_s']:,.0f} tokens a second on one GPU and "
        f"{large['tok_s']:,.0f} on two ({gpu}), {large['gain']:.2f} times as many. With fused "
        f"sums, dependent launches and a split head together, “{WAYS[split.FUSED]}”, the model that gains "
        f"least, {least['title']}, is {least['gain']:.2f} times as fast as on one; without the three "
        f"{before:.2f} times."
    )
    able = (
        "say how many GPUs a model needs for its memory, and what a second one brings to its speed",
        "move a sum over GPUs into the kernel that needs it, and count the launches that this spares",
        "predict a token and a prompt on several GPUs from bytes, FLOPs and sums",
    )
    return answer, able, _chart(found, gpu)


def _chart(found: Rows, gpu: Any) -> Any:
    shared = found[found["gain"].notna() & (found["impl"] != links.ALONE)]
    names = list(dict.fromkeys(shared["title"]))
    caption = "A token on two GPUs, times one GPU's speed"
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.3 + 0.45 * len(names))
    by = shared.set_index(["title", "impl"])["gain"]
    parts = {says: [by.get((name, impl), np.nan) for name in names] for impl, says in WAYS.items()}
    plot.grouped(ax, names, parts, most=2.0, form=".2f")
    plot.roof_line(ax, 1.0, "one GPU", vertical=True)
    _off_the_line(ax, 1.0)
    ends = shared.groupby("impl")["gain"].agg(["min", "max"])
    told = "; ".join(
        f"{says} {ends['min'][impl]:.2f} to {ends['max'][impl]:.2f}"
        for impl, says in reversed(WAYS.items())
        if impl in ends.index
    )
    return fig, f"{caption}, {gpu}, {plot.dates(shared)}: {told}. Dashed: one GPU."


def _off_the_line(ax: Axes, line: float) -> None:
    """Move the numbers of bars that end just before a vertical line to its other side."""
    most = ax.get_xlim()[1]
    for text in ax.texts:
        at = text.get_position()[0]
        if text.get_gid() != "roof" and at < line < at + 0.09 * most:
            text.set_x(line + most / 100)


def facts(here: Lab) -> None:
    """Show whose figures these are, and what joins the GPUs."""
    run = here.run_of("split")
    one_line({"GPU": " · ".join([run["gpu"], SOURCES[here.mode], f"run {run['run']}", str(run["note"])])})


def memory(rows: Rows, gpu: Any) -> None:
    """Draw the weights that each model puts on a GPU, alone and with another, beside the GPU's memory; the
    numbers in a fold.
    """
    spec = devices.match(str(gpu))
    held_gb = spec.memory_gb if spec else float("nan")
    kinds = list(dict.fromkeys(zip(tokens(rows)["model"], tokens(rows)["format"], strict=True)))
    table = pd.DataFrame({"title": [title(*kind) for kind in kinds]})
    for gpus in (1, 2, 4):
        table[str(gpus)] = [weights_gb(*kind, gpus) for kind in kinds]
    table["least"] = [
        next((n for n in (1, 2, 4, 8) if weights_gb(*kind, n) < 0.95 * held_gb), np.nan) for kind in kinds
    ]
    caption = "Weights in a GPU's memory"
    fig, ax = plot.figure("GB", title=caption, height=1.3 + 0.4 * len(table))
    parts = {"one GPU": table["1"], "each of two": table["2"]}
    plot.grouped(ax, list(table["title"]), parts, most=1.1 * max(held_gb, float(table["1"].max())))
    if held_gb == held_gb:
        plot.roof_line(ax, held_gb, f"{held_gb:.0f} GB", vertical=True)
        _off_the_line(ax, held_gb)
    large = listed(table.loc[table["least"] > 1, "title"])
    fits = f"{large} fits no single one" if large else "each fits one"
    plot.show(fig, f"{caption}, {gpu} ({held_gb:.0f} GB): {fits}.")
    columns = {"title": "Model", "1": "On one GPU (GB)", "2": "On each of two", "4": "On each of four"}
    columns |= {"least": "GPUs needed"}
    forms = {"title": "", "1": "{:.1f}", "2": "{:.1f}", "4": "{:.1f}", "least": "{:.0f}"}
    display.table(table, columns, forms, f"Weights in memory; {gpu}: {held_gb:.0f} GB", folded=True)


def predicted(rows: Rows) -> None:
    """Show the bound of a token of each model on one GPU and on two, and the part of it that sums take."""
    found, lines = tokens(rows), []
    for name, part in found.groupby("title", sort=False):
        by = part.set_index("impl")["predicted_us"]
        model, layers = str(part["model"].iloc[0]), model_shapes.get(str(part["model"].iloc[0])).layers
        size = 2 * model_shapes.get(model).hidden
        each = {impl: split.sum_us(impl, size, 2) for impl in (split.SEPARATE, split.FUSED)}
        lines.append(
            {"title": name, "alone": by.get(links.ALONE), "fused": by.get(split.FUSED)}
            | {impl: 2 * layers * us for impl, us in each.items()}
        )
    columns = {"title": "Model", "alone": "One GPU (µs)", "fused": f"Two, {WAYS[split.FUSED]} (µs)"}
    columns |= {split.FUSED: "Of these, sums (µs)", split.SEPARATE: "Sums by kernels of their own (µs)"}
    forms = {"title": "", **dict.fromkeys(("alone", "fused", split.FUSED, split.SEPARATE), "{:,.0f}")}
    display.table(pd.DataFrame(lines), columns, forms, "bounds of a token, before anything was measured")


def handed_over(rows: Rows, gpu: Any) -> None:
    """Show a sum and a norm of one row by each way, and say what one kernel saves."""
    found = rows[rows["operator"] == split.FUSED].copy()
    if found.empty:
        display.say("No hand-over was measured by itself here.")
        return
    ways = {links.NCCL: "NCCL, then a norm", split.SEPARATE: "our sum, then a norm", "1_pdl": "in one kernel"}
    found["who"] = [ways[impl] for impl in found["impl"]]
    found["ratio"] = found["median_us"] / found["predicted_us"]
    spread(found, ".1e")
    columns = {"n": "Numbers in a row", "who": "Sum and norm", "predicted_us": "Predicted (µs)"}
    columns |= {"median_us": "Median (µs)", "ratio": "Median ÷ predicted"}
    forms = {"n": "{:,.0f}", "predicted_us": "{:.1f}", "median_us": "{:.2f}", "ratio": "{:.2f}"}
    found["order"] = [list(ways).index(impl) for impl in found["impl"]]
    display.table(found.sort_values(["n", "order"]), columns | {"gate": "Error (allowed)"}, forms)
    by = found.set_index(["n", "impl"])["median_us"].unstack()
    saved, wide = by[split.SEPARATE] - by["1_pdl"], by.index.max()
    nccl, near = by[links.NCCL] / by["1_pdl"], found["ratio"].between(1 / NEAR, NEAR)
    display.say(
        f"On the {gpu} one kernel saves {saved.min():.1f} to {saved.max():.1f} µs a hand-over, a launch's "
        f"worth. Its time grows with the row, because one block, so one SM, stores all packets: "
        f"{plot.size_text(4 * int(wide))} for {int(wide):,} numbers. NCCL and a norm take "
        f"{nccl.min():.1f} to {nccl.max():.1f} times as long.\n\n"
        f"**The prediction** holds within {NEAR - 1:.0%} in {near.sum()} of {len(near)} rows. A launch and "
        "the crossings leave out what the norm itself does once its numbers are there: its block adds up "
        "squares, meets at a barrier, writes."
    )


def measured(rows: Rows) -> None:
    """Show a token of every model on one GPU and on two, predicted and measured."""
    found = tokens(rows)
    by = found.pivot_table("tok_s", "title", "impl", sort=False)
    short = pd.DataFrame({"title": by.index, "alone": by.get(links.ALONE)})
    short = short.assign(**{impl: by[impl] for impl in WAYS})
    ours = found[found["impl"] == split.FUSED].set_index("title")
    short["share"] = ours["predicted_us"] / ours["median_us"]
    columns = {"title": "Model", "alone": "One GPU"} | {impl: f"Two, {says}" for impl, says in WAYS.items()}
    columns |= {"share": "The last, of its bound"}
    forms = {"title": "", **dict.fromkeys(("alone", *WAYS), "{:,.0f}"), "share": "{:.0%}"}
    display.table(short.reset_index(drop=True), columns, forms, "tokens a second")
    found["who"] = [WAYS.get(impl, "one GPU") for impl in found["impl"]]
    spread(found, ".1e", ",.0f")
    columns = {"title": "Model", "who": "On", "predicted_us": "Bound (µs)", "median_us": "Median (µs)"}
    columns |= {"quartiles": "Quartiles", "gain": "Times one GPU's speed", "gate": "Error (allowed)"}
    forms = {"predicted_us": "{:,.0f}", "median_us": "{:,.0f}", "gain": "{:.2f}"}
    display.fold("Every row: bounds, times and errors", [(found, columns, forms)])


def pays(rows: Rows, gpu: Any) -> None:
    """Say for each model whether a second GPU pays, by which way of summing."""
    found, lines = tokens(rows), []
    for name, part in found.groupby("title", sort=False):
        mine = part.set_index("impl")
        if links.ALONE not in mine.index:
            best = mine.loc[mine["median_us"].idxmin()]
            lines.append(
                f"- {name} does not fit one: two make **{best['tok_s']:,.0f} tokens a second**, "
                f"{best['predicted_us'] / best['median_us']:.0%} of the bound."
            )
            continue
        gains = {says: mine["gain"].get(impl, np.nan) for impl, says in WAYS.items()}
        good = [says for says, gain in gains.items() if gain > crossover.LEVEL]
        verdict = "pays with every way of summing" if len(good) == len(gains) else "pays with none"
        if 0 < len(good) < len(gains):
            verdict = f"pays with {listed(good)} alone"
        lines.append(f"- {name}: a second GPU **{verdict}**.")
    display.say(f"On the {gpu}:\n\n" + "\n".join(lines))


def excess(rows: Rows, gpu: Any) -> None:
    """Say what a layer saves by sums in the norms, and how near its bound each model then is."""
    found = tokens(rows)
    ours = found[found["impl"] == split.FUSED].set_index("title")
    apart = found[found["impl"] == split.SEPARATE].set_index("title")
    layers = np.array([model_shapes.get(str(model)).layers for model in apart["model"]])
    saved = ((apart["median_us"] - ours["median_us"]) / layers).sort_values()
    near = (ours["predicted_us"] / ours["median_us"]).sort_values()
    usual, few = _usual(saved)
    bytes_ = {name: ours["predicted_us"][name] / layers[i] for i, name in enumerate(apart.index)}
    least, most = near.index[0], near.index[-1]
    separate, inside = (len(row) for row in handovers.by_way().values())
    lines = [
        f"On the {gpu} a layer takes {usual.iloc[0]:.1f} to {usual.iloc[-1]:.1f} µs less by "
        f"{WAYS[split.FUSED]} than with our kernel between two others: {inside} launches in the place of "
        f"{separate}, and each starts while its predecessor runs.{_sums(rows)}",
        *_open(few),
        "What is left above the bound weighs most where a layer has least to read: "
        f"{least}, whose bound is {bytes_[least]:.0f} µs a layer, is at {near[least]:.0%} of it, and {most}, "
        f"with {bytes_[most]:.0f} µs, at {near[most]:.0%}.",
    ]
    display.say("\n".join(f"- {line}" for line in lines))


def _usual(saved: Rows) -> tuple[Rows, Rows]:
    """Microseconds a layer saved by model, in order: of most models, and of those that save far less."""
    few = saved[saved < 0.5 * saved.median()] if saved.median() > 0 else saved[:0]
    return saved.drop(few.index), few


def _fused_sums(rows: Rows) -> float:
    """Microseconds that the two fused sums of a layer save, by the hand-overs measured alone; or NaN."""
    found = rows[rows["operator"] == split.FUSED]
    by = found.set_index(["n", "impl"])["median_us"].unstack() if len(found) else found
    if not {split.SEPARATE, "1_pdl"} <= set(by):
        return float("nan")
    return 2 * float((by[split.SEPARATE] - by["1_pdl"]).median())


def _sums(rows: Rows) -> str:
    """What the two sums of a layer save by themselves, by the hand-overs measured alone; what is the rest."""
    saved = _fused_sums(rows)
    if saved != saved:
        return " The three were not measured apart."
    said = f" Of this the two fused sums are about {saved:.0f} µs, by the hand-overs above; "
    return f"{said}the rest is launches that overlap and the split head, which were not measured apart."


def _open(few: Rows) -> list[str]:
    """The models whose layers save far less, by the microseconds a layer: what was not explained."""
    if few.empty:
        return []
    said = listed(
        f"{name} saves {us:.1f} µs" if us > 0 else f"{name} loses {-us:.1f} µs" for name, us in few.items()
    )
    return [f"Open: {said} a layer, although the same launches are spared. Why was not found."]


def prompt_table(rows: Rows) -> None:
    """Show prompts on one GPU and on two, predicted and measured, folded."""
    found = prompts(rows)
    found["who"] = ["one GPU" if impl == links.ALONE else "two" for impl in found["impl"]]
    found["share"] = found["predicted_us"] / found["median_us"]
    columns = {"title": "Model", "seq": "Tokens", "who": "On", "predicted_us": "Bound (ms)"}
    columns |= {"median_us": "Median (ms)", "share": "Share of the bound", "tok_s": "Tokens a second"}
    columns |= {"gain": "Times one GPU's speed"}
    found = found.assign(predicted_us=found["predicted_us"] / 1e3, median_us=found["median_us"] / 1e3)
    forms = {"seq": "{:,.0f}", "predicted_us": "{:,.1f}", "median_us": "{:,.1f}", "share": "{:.0%}"}
    forms |= {"tok_s": "{:,.0f}", "gain": "{:.2f}"}
    display.table(found, columns, forms, "Prompts on one GPU and on two", folded=True)


def prompts_held(rows: Rows, gpu: Any) -> None:
    """Draw the predicted and the measured gain of a second GPU for prompts, and say whether they agree."""
    found, lines = prompts(rows), []
    for (name, seq), part in found.groupby(["title", "seq"], sort=False):
        mine = part.set_index("impl")
        if not {links.ALONE, links.NCCL} <= set(mine.index):
            continue
        two, one = mine.loc[links.NCCL], mine.loc[links.ALONE]
        promised = one["predicted_us"] / two["predicted_us"]
        shape = model_shapes.get(str(two["model"]))
        sums = 2 * shape.layers * split.sum_us(links.NCCL, 2 * shape.hidden * int(seq), 2)
        lines.append((f"{name}, {int(seq):,} tokens", promised, two["gain"], sums / two["predicted_us"]))
    if not lines:
        return
    names, promised, gains, shares = (list(each) for each in zip(*lines, strict=True))
    caption = "A prompt on two GPUs, times one GPU's speed"
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.3 + 0.4 * len(names))
    plot.grouped(ax, names, {"predicted": promised, "measured": gains}, most=2.2, form=".2f")
    told = (
        f"{min(gains):.2f} to {max(gains):.2f} measured, {min(promised):.2f} to {max(promised):.2f} predicted"
    )
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(found)}: {told}.")
    near = [1 / NEAR <= a / b <= NEAR for a, b in zip(promised, gains, strict=True)]
    display.say(
        f"The predicted gain holds within {NEAR - 1:.0%} for {sum(near)} of {len(near)} prompts. Sums are "
        f"{min(shares):.0%} to {max(shares):.0%} of the bound on two."
    )


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    found = tokens(rows)
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    nccl = found[(found["impl"] == links.NCCL) & found["gain"].notna()]
    lost = list(nccl.loc[nccl["gain"] < 1, "title"])
    said = f"With NCCL {listed(lost)} would be slower on two than on one." if lost else ""
    display.say(
        f"- On two GPUs ({gpu}) a token is {fused['gain'].min():.2f} to {fused['gain'].max():.2f} times as "
        f"fast as on one, by {WAYS[split.FUSED]}. {said}\n"
        f"- Put an exchange into the kernel that needs its result, and let launches overlap.{_most(rows)}\n"
        "- A token exchanges a few KiB a layer, so latency decides; a prompt exchanges thousands of rows, so "
        "the link's rate does."
    )


def _most(rows: Rows) -> str:
    """That the fused sums are the smaller part of what a layer saves, where they are."""
    found, sums = tokens(rows), _fused_sums(rows)
    us = found.set_index(["title", "impl"])["median_us"].unstack()
    layers = found.groupby("title")["model"].first().map(lambda model: model_shapes.get(str(model)).layers)
    usual, _ = _usual(((us[split.SEPARATE] - us[split.FUSED]) / layers).sort_values())
    if not sums < 0.5 * usual.iloc[0]:
        return ""
    text = f" Of {usual.iloc[0]:.0f} to {usual.iloc[-1]:.0f} µs saved a layer the sums are about {sums:.0f}: "
    return f"{text}overlap and the split head bring most."


def explored(rows: Rows, here: Lab) -> explorer.Explorer:
    """The explorer of a hand-over alone, by the numbers in a row."""
    return explorer.Explorer(
        "handovers",
        rows[rows["operator"] == split.FUSED],
        y="median_us",
        controls={"impl": "By"},
        title=f"A sum and a norm over two {here.run['gpu']}s",
        labels={"median_us": "µs", "n": "Numbers in a row"},
        start={"impl": "1_pdl"},
    )
