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
# In every chart; in the order of the ladder.
SHADES = {links.NCCL: "#E69F00", split.SEPARATE: "#0072B2", split.FUSED: "#009E73"}
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
    """What two GPUs gain by the fused way; why they can be slower than one, and its remedy; the gains."""
    found, gpu = tokens(rows), here.run["gpu"]
    by = found.set_index(["title", "impl"])
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    large, least = (fused.loc[at(fused["gain"])] for at in (pd.Series.idxmax, pd.Series.idxmin))
    answer = (
        f"Two {gpu}s make a token {spanned(fused['gain'], '.2f')} times as fast as one if sums are part "
        f"of norms and launches overlap. {_without(found)}"
        f"{large['title']} gains most: {speed(large['tok_s'])} tokens a second where one GPU makes "
        f"{speed(by.loc[large['title'], links.ALONE]['tok_s'])}."
    )
    answer += f" {least['title']} gains least." if len(fused) > 1 else ""
    answer += lesson_10c_memory.needs(rows, here.run_of("split"))
    answer += f"\n\n{_problem(found, kernel_us(here))}\n\n{_remedy(found)}"
    able = (
        "say what a launch that overlaps the one before it hides, and measure it",
        "move a sum over GPUs into the kernel that needs it, and count the launches that this spares",
        "bound a token on several GPUs, and say which step brings a model closer to its bound",
        "say how many GPUs a model needs for its weights and KV cache "
        "([appendix](#how-many-gpus-the-memory-asks-for))",
    )
    fig, caption = _chart(found, gpu)
    return answer, able, (fig, f"{caption} {lesson_10b.other_gains(here)}".rstrip())


def speed(tok_s: float) -> str:
    """Tokens a second in words, with a decimal where a gain is computed from two digits."""
    return f"{tok_s:,.1f}" if tok_s < 100 else f"{tok_s:,.0f}"


def _without(found: Rows) -> str:
    """The gains with a kernel for each sum, beside those of the fused way; "" where they were not timed."""
    gains = found.loc[found["impl"] == split.SEPARATE, "gain"].dropna()
    told = f"With our kernel for each sum, and no overlap, it is {spanned(gains, '.2f')} times. "
    return told if len(gains) else ""


def kernel_us(here: Lab) -> float:
    """Microseconds of lesson 10's shortest store, its kernel and all, so more than a start; or NaN."""
    rows = here.store.read("links")
    return float(rows[rows["operator"] == "peer_write"]["median_us"].min()) if len(rows) else np.nan


def _problem(found: Rows, kernel: float) -> str:
    """What two sums a layer make of its launches, and which models they make slower than one GPU."""
    text = (
        "*The problem.* Each GPU reads half of every matrix (**tensor parallelism**), in half the time. But "
        "twice a layer the GPUs must add up their results. With a kernel for each of these sums a layer "
        f"takes {launched()[0]} launches, one after the other, each with a start of "
    )
    known = kernel < links.LAUNCH_US
    text += f"at most {kernel:.1f} µs (lesson 10)" if known else f"about {links.LAUNCH_US:g} µs (assumed)"
    gains = found[found["impl"] == split.SEPARATE].set_index("title")["gain"]
    slower = gains[gains < 1]
    return (
        f"{text}." if slower.empty else f"{text}, so two GPUs are slower than one on {listed(slower.index)}."
    )


def _remedy(found: Rows) -> str:
    """What the fused way is, and where it is no faster than a kernel for each sum."""
    text = (
        "*The remedy* is called **the fused way** here. Sums become part of the norms that follow them, "
        f"which leaves {launched()[1]} launches a layer. And launches *overlap*: each starts, and fetches "
        "its first weights, while the one before still runs; then it waits for that one to end."
    )
    by = found.pivot_table("median_us", "title", "impl", sort=False)
    if split.SEPARATE not in by:
        return text
    level = by.index[by[split.FUSED] > by[split.SEPARATE] / crossover.LEVEL]
    if level.empty:
        return text
    text += f" It does not always help: on {listed(level)} it is no faster than our kernel for each sum"
    slower = by[split.FUSED_PLAIN] > by[split.SEPARATE] * crossover.LEVEL if split.FUSED_PLAIN in by else None
    known = slower is not None and slower[level].all()
    return f"{text}{', most likely because overlap needs other kernels' if known else ''}."


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
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.2 + 0.44 * len(names))
    by = shared.set_index(["title", "impl"])["gain"]
    parts = {WAYS[impl]: [by.get((name, impl), np.nan) for name in names] for impl in SHADES}
    plot.grouped(ax, names, parts, 2.0, ".2f", tuple(SHADES.values()))
    plot.roof_line(ax, 1.0, "one GPU", vertical=True)
    plot.off_the_line(ax, 1.0)
    lost = [name for name in dict.fromkeys(found["title"]) if name not in names]
    untimed = f" Without bars, as one GPU was not timed: {listed(lost)}." if lost else ""
    ways = "Sums by our kernel or by NCCL, NVIDIA's library: a kernel for each sum."
    return fig, f"{caption}, {gpu}, {plot.dates(shared)}. Dashed: one GPU of the same run.{untimed} {ways}"


def facts(here: Lab) -> None:
    """Show whose figures these are, and what joins the GPUs."""
    run = here.run_of("split")
    one_line({"GPU": " · ".join([run["gpu"], SOURCES[here.mode], f"run {run['run']}", str(run["note"])])})


def charged(here: Lab) -> None:
    """Say what the bound charges for a sum, and what overlap saves if it hides the starts of launches: as
    assumed, and at most by lesson 10's shortest kernel.
    """
    launches, each, hop, kernel = launched()[1], links.LAUNCH_US, links.HOP_US, kernel_us(here)
    most = ""
    if kernel < each:
        most = f", which refutes the first: there a whole kernel takes {kernel:.2f} µs. By that the "
        most += f"{launches * each:.1f} becomes {launches * kernel:.1f} at most"
    display.say(
        f"A sum inside a norm is charged {hop:g} µs for a crossing of the link, and its bytes. A GPU reads "
        "only its part of the output head, too ([appendix](#the-output-head-in-shares)). If overlap hides "
        f"just the starts of launches, it saves {launches} × {each:g} = {launches * each:.1f} µs a layer. A "
        f"start of {each:g} µs and a crossing of {hop:g} are assumptions of [lesson 10](10_links.ipynb)"
        f"{most}."
    )


def timed() -> None:
    """Say what a timed token is, what the gate compares, and what bounds charge for a sum as a kernel."""
    hops = links.crossings("all_reduce", links.NCCL)
    display.say(
        f"Timed are {links.STEPS} tokens after a prompt of {links.PROMPT}, with random weights. Before that "
        "the gate compares logits with float64, on two layers of each model's widths. In bounds our kernel "
        f"for a sum takes {links.LAUNCH_US:g} µs more than a sum in a norm, for its launch; NCCL's takes a "
        f"launch and {hops} crossings."
    )


def launched() -> tuple[int, int]:
    """Launches of a layer, with sums as kernels of their own and the fused way."""
    separate, inside = (len(row) for row in handovers.by_way().values())
    return separate, inside


def gains_by(found: Rows) -> Any:
    """By model in words that one GPU was timed with, the gain of a second by the fused way: `said` by the
    bounds, `got` measured with overlap and `plain` without.
    """
    us, bound = (found.pivot_table(of, "title", "impl", sort=False) for of in ("median_us", "predicted_us"))
    if not {links.ALONE, split.FUSED} <= set(us):
        return pd.DataFrame(columns=["said", "got", "plain"], dtype=float)
    ratios = {
        "said": bound[links.ALONE] / bound[split.FUSED],
        "got": us[links.ALONE] / us[split.FUSED],
        "plain": us[links.ALONE] / us.get(split.FUSED_PLAIN, np.nan),
    }
    return pd.DataFrame(ratios).reindex(us.index).dropna(subset="got")


def predicted(rows: Rows) -> None:
    """Say what the bounds promise of all models."""
    found = tokens(rows)
    gains = gains_by(found)
    if len(gains):
        display.say(
            f"**Over {counted(len(gains), 'model')} two GPUs should be {spanned(gains['said'], '.2f')} times "
            f"as fast as one.** {_left_out(found)}"
        )


def _left_out(found: Rows) -> str:
    """What the bound of a token does not count, and how long the context is."""
    shares = []
    for model, format in found[["model", "format"]].drop_duplicates().itertuples(index=False):
        shape = model_shapes.get(str(model))
        read = model_shapes.kv_read_bytes(shape, links.PROMPT + links.STEPS)
        shares.append(read / model_shapes.weight_bytes(shape, str(format), split.HEAD))
    return (
        f"Left out are keys and values, at most {max(shares):.1%} of the bytes here, and what kernels do "
        "beside reading weights."
    )


def measured(rows: Rows) -> None:
    """Fold tokens a second and the gain of a second GPU on every model, predicted and measured."""
    found = tokens(rows)
    by = found.pivot_table("tok_s", "title", "impl", sort=False)
    gains = gains_by(found).reindex(by.index)
    speeds = {
        name: [speed(each) if each == each else "" for each in by[impl]]
        for name, impl in (("alone", links.ALONE), ("fused", split.FUSED))
        if impl in by
    }
    short = gains.assign(title=by.index, **speeds)
    columns = {"title": "Model", "alone": "One GPU (tok/s)", "fused": "Two (tok/s)"}
    columns |= {"said": "Gain, predicted", "got": "Gain, measured", "plain": "Without overlap"}
    if gains["plain"].isna().all():
        columns.pop("plain")
    columns = {of: says for of, says in columns.items() if of in short}
    forms = {"title": "", **dict.fromkeys(gains, "{:.2f}")}
    caption = f"Tokens a second, and the gain of two GPUs by {WAYS[split.FUSED]}"
    display.table(short.reset_index(drop=True), columns, forms, caption, folded=True)


def every_row(rows: Rows) -> None:
    """Fold every row of a token: bounds, times and errors."""
    found = tokens(rows)
    found["who"] = [(WAYS | {split.FUSED_PLAIN: PLAIN}).get(impl, "one GPU") for impl in found["impl"]]
    spread(found, ".1e", ",.0f")
    columns = {"title": "Model", "who": "On", "predicted_us": "Bound (µs)", "median_us": "Median (µs)"}
    found["ratio"] = found["median_us"] / found["predicted_us"]
    columns |= {"quartiles": "Quartiles", "ratio": "Median ÷ bound", "gain": "Times one GPU's speed"}
    columns |= {"gate": "Error (allowed)"}
    forms = {"predicted_us": "{:,.0f}", "median_us": "{:,.0f}", "ratio": "{:.2f}", "gain": "{:.2f}"}
    display.fold("Every row of a token: bounds, times and errors", [(found, columns, forms)])


def pays(rows: Rows, gpu: Any) -> None:
    """Say on which models a second GPU pays by the fused way, whether gains fall short of their predictions,
    and how the picture that follows is read.
    """
    found = tokens(rows)
    gains = gains_by(found)
    text = ""
    if len(gains):
        good = gains.index[gains["got"] > crossover.LEVEL]
        which = f"{len(good)} of {counted(len(gains), 'model')}"
        which = f"all {counted(len(gains), 'model')}" if len(good) == len(gains) > 1 else which
        text = (
            f"**By {WAYS[split.FUSED]} two {gpu}s are faster than one on {which}.**{_short_of(gains)} The "
            "picture shows why, step by step; each bar is compared with the bar above it."
        )
    display.say(f"{text}{_of_its_bound(found)}".strip())


def _of_its_bound(found: Rows) -> str:
    """What share of their bound two GPUs reach on models that one was not timed with."""
    text, held = "", _alone(found)
    for name, part in found.groupby("title", sort=False):
        if name not in held:
            best = part.loc[part["median_us"].idxmin()]
            text += f" Two reach {best['predicted_us'] / best['median_us']:.0%} of their bound on {name}."
    return text


def _short_of(gains: Rows) -> str:
    """Whether every gain falls short of its prediction."""
    if gains.empty or not (gains["got"] < gains["said"]).all():
        return ""
    return " Every gain is smaller than predicted."


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
        lines[0] += lesson_10b.other_recording(found, here.run["gpu"])
    if runs := lesson_10b.two_runs(here):
        lines.append(runs)
    display.fold_items("Which one GPU the gains compare with", lines)
