"""What lesson 05c's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import q8_0 as analysis
from rooflab.errors import LaunchError
from rooflab.lab import Lab
from rooflab.ops import q8_0
from rooflab.pages import Opening, Rows, bars, one_line
from rooflab.records.store import Store
from rooflab.studies import q8_0 as study
from rooflab.view import display, explorer, plot


def opening(here: Lab) -> Opening:
    """The first screen: what a launch costs, by how it is made."""
    rows = here.measure("q8_0", study.chains())
    rows = rows[rows["clock"].isin(["wall", "graph"])]
    words = {"bare": "bare launches", "kept": "checks passed before", "": "checked in Python"}
    names = [
        "a graph" if clock == "graph" else next(says for word, says in words.items() if word in how)
        for how, clock in zip(rows["options"], rows["clock"], strict=True)
    ]
    layers = int(rows["options"].str.extract(r"layers=(\d+)")[0].iloc[0])
    each, gpu = dict(zip(names, rows["median_us"] / (4 * layers), strict=True)), here.run["gpu"]
    answer = f"Launches, not products: {4 * layers} short kernels take "
    answer += ", ".join(f"{us:.1f} µs each as {name}" for name, us in each.items()) + f" on the {gpu}."
    able = (
        "say what a launch costs, and who pays",
        "record a decoder's launches into a CUDA graph without the fault that the page shows",
        "test a review's suggestion before taking it",
    )
    return answer, able, bars(rows, names, gpu, f"A chain of {4 * layers} launches")


def run_facts(gpu: str, here: Lab, copy_roof: float, source: Store) -> None:
    """The facts of the run, in one line."""
    facts = {
        "GPU": gpu,
        "Figures": {"live": "measured here", "replay": "replayed"}[here.mode],
        "Run": here.run_of("q8_0")["run"],
        "Copy roof": f"{copy_roof:,.0f} GB/s, read and written",
        "Source": f"{source.runs()['gpu'].iloc[0]}, published figures",
    }
    one_line(facts)


def looking_prompt_up_table(here: Lab, copy_roof: float) -> tuple[Rows, int]:
    """Looking a prompt up: the table."""
    rows = here.measure("q8_0", study.embeddings())
    tokens = int(rows["batch"].iloc[0])
    rows["launches"] = rows["impl"].map({"1_token": 2 * tokens, "2_batched": 1})
    rows["floor"] = rows["bytes"] / copy_roof / 1e3
    names = {"impl": "Rung", "clock": "Clock", "launches": "Launches"}
    names |= {"floor": "Bytes at the roof (µs)", "median_us": "Median (µs)"}
    names |= {"error": "Largest error"}
    forms = {"launches": "{:,}", "floor": "{:.1f}", "median_us": "{:,.1f}", "error": "{:g}"}
    display.table(
        rows, names, forms, f"{tokens} tokens; replayed as a graph, or called one by one (wall clock)"
    )
    return rows, tokens


def looking_prompt_up_said(rows: Rows, gpu: str, tokens: int, source: Store) -> None:
    """Looking a prompt up: in words."""
    us = rows.set_index(["impl", "clock"])["median_us"]
    exact = (rows["error"] == 0).all()
    text = "Both give the exact numbers. " if exact else ""
    text += f"On the {gpu}, called by the host, {tokens} tokens take "
    text += f"{us['1_token', 'wall'] / 1e3:,.2f} ms one by one and {us['2_batched', 'wall'] / 1e3:.2f} ms at "
    text += f"once. As a graph a launch costs {us['1_token', 'graph'] / (2 * tokens):.1f} µs instead of "
    text += f"{us['1_token', 'wall'] / (2 * tokens):.1f}, and one launch is "
    text += f"{display.speed(us['1_token', 'graph'] / us['2_batched', 'graph'])}, against {2 * tokens:,}."
    told = source.read("prefill").set_index("impl")["median_us"]
    text += f" The source reports {told['per_token'] / 1e3:.0f} ms before, "
    text += f"{told['batched'] / 1e3:.0f} ms after, on its GPU and with all that stands around it."
    display.say(text)


def review_suggestions_table(here: Lab) -> Rows:
    """A review's suggestions: the table."""
    pairs = []
    for found in analysis.review():
        one, two = here.measure(found.before.study, [found.before, found.after]).iloc
        before, after = one["median_us"], two["median_us"]
        verdict = "level" if display.level(two, one) else f"{before / after:.2f}"
        where = f"{found.before.operator} {found.before.n} × {found.before.k}"
        pairs.append([found.number, found.says, where, before, after, verdict])
    names = ["Number", "Suggestion", "Measured on", "Before (µs)", "After (µs)", "Times as fast"]
    pairs = pd.DataFrame(pairs, columns=names)
    headings = dict(zip(names, names, strict=True))
    display.table(pairs, headings, dict.fromkeys(names[3:5], "{:,.1f}"))
    return pairs


def review_suggestions_said() -> Any:
    """A review's suggestions: in words."""

    def refused(call):
        try:
            call()
        except LaunchError as sentence:
            display.say(f"> {sentence}")

    three = q8_0.Blocks(np.zeros((2, 3 * 34), np.uint8))  # k = 96
    refused(lambda: q8_0.dequantise(three, rung="3_shift", target="cpu"))
    return refused


def review_suggestions_table_2(here: Lab) -> Rows:
    """A review's suggestions: the table."""
    counted = here.profile("q8_0", study.counted(), "ncu", study.COUNTERS)
    cases = [study.Q8().case(case) for case in counted["case"]]
    counted["impl"] = [case.impl for case in cases]
    dequantising = np.array([case.operator == "dequantise" for case in cases], bool)
    seen = counted[dequantising].copy()
    elements = [case.n * case.k for case in cases if case.operator == "dequantise"]
    seen["each"] = 32 * seen["inst_executed"] / elements
    names = {"impl": "Rung", "each": "Instructions an element", "dram_pct": "DRAM busy %"}
    names |= {"stall_long_scoreboard": "Stalled on memory (cycles)"}
    display.table(seen, names, dict.fromkeys(list(names)[1:], "{:.1f}"))
    return seen


def review_suggestions_said_2(seen: Rows, pairs: Rows) -> None:
    """A review's suggestions: in words."""
    if len(seen) == 3:
        before_shift, after_shift = pairs.loc[0, ["Before (µs)", "After (µs)"]]
        a, b, c = (seen.set_index("impl")["each"][name] for name in seen["impl"])
        text = f"Loading the scale as two bytes costs {a - b:.1f} instructions an element, the division "
        text += (
            f"{b - c:.1f}, since the compiler does not know the number that it divides by. Shift and mask "
        )
        saved = [1 - c / b, 1 - after_shift / before_shift]
        text += f"save {saved[0]:.0%} of the instructions and "
        text += f"{saved[1]:.0%} of the time" if saved[1] > 0.005 else "no time"
        text += ": the kernel mostly waits for memory." if saved[1] < saved[0] else "."
        display.say(text)


def check_before_cast_said(refused: Any) -> None:
    """The check before the cast: in words."""
    n, k = 65536, 32768
    cast = int(np.int64(n * k).astype(np.int32))
    display.say(f"{n} × {k} = {n * k:,}, as an int: {cast:,}.")
    refused(lambda: q8_0.check_sizes(1, k, n, 32, "A product"))


def launches_graph_them_table(here: Lab) -> tuple[Rows, int]:
    """Launches, and a graph of them: the table."""
    chain = here.measure("q8_0", study.chains())
    layers = int(chain["options"].str.extract(r"layers=(\d+)")[0].iloc[0])
    launches = 4 * layers
    ways = {"bare=1": "bare", "kept=1": "kept"}
    told = [[way for word, way in ways.items() if word in how] for how in chain["options"]]
    chain["way"] = [way[0] if way else "checked" for way in told]
    chain.loc[chain["clock"] == "graph", "way"] = "as a graph"
    chain["each"] = chain["median_us"] / launches
    names = {"way": "Way", "clock": "Clock", "median_us": "Chain (µs)", "each": "A launch (µs)"}
    names |= {"error": "Off by", "error_budget": "Allowed"}
    forms = {"median_us": "{:,.1f}", "each": "{:.1f}", "error": "{:.3g}", "error_budget": "{:.3g}"}
    display.table(chain, names, forms, f"{layers} layers, {launches} launches")
    return chain, launches


def launches_graph_them_said(chain: Rows, launches: int, gpu: str, source: Store) -> tuple[Rows, float]:
    """Launches, and a graph of them: in words."""
    us = chain.set_index(["way", "clock"])["median_us"]
    graph = us["as a graph", "graph"]
    each = {way: us[way, "wall"] / launches for way in ("checked", "kept", "bare")}
    text = (
        f"On the {gpu} a launch takes {each['checked']:.0f} µs with its checks in Python, {each['kept']:.0f} "
    )
    text += (
        f"where it only recognises a call that has passed them, and {each['bare']:.0f} bare. Bare, the chain "
    )
    text += f"takes {us['bare', 'wall'] / graph:.2f} times as long as its graph, checked "
    text += f"{us['checked', 'wall'] / graph:.1f} times. "
    exact = chain[chain["error_budget"] == 0]
    if (exact["error"] == 0).all():
        text += "The graph and the bare launches leave the very bits that the checked calls leave. "
    told = source.read("decode")
    told = told[told["options"].str.contains("context=1K", na=False)].set_index("impl")["tok_s"]
    text += f"The source, whose launches come from a compiled language, reports {told['dp4a']:.0f} tokens a "
    text += f"second without and {told['dp4a_graph']:.1f} with a graph."
    display.say(text)
    return us, graph


def launches_graph_them_figure(chain: Rows, launches: int, gpu: str) -> None:
    """Launches, and a graph of them: the figure."""
    bars = chain[chain["clock"].isin(["wall", "graph"])]
    title = f"{launches} launches of a decoder, by way of launching"
    fig, ax = plot.figure("µs", title=title, height=2)
    us_of, low, high = plot.band(bars, "median_us")
    plot.bars(ax, list(bars["way"]), us_of, "µs", low=low, high=high)
    text = plot.caption(bars, gpu, title, y="median_us")
    plot.show(fig, f"{text} The kernels are the same; the rest is the host.")


def rule_nothing_new_table(here: Lab) -> Rows:
    """The rule: nothing new inside a capture: the table."""
    found = here.profile("q8_0", study.captures(), "gate")
    words = {"fresh=1 pooled=0": "made by the call"}
    words |= {"fresh=1 pooled=1": "made by the call, from the pool"}
    how = [study.Q8().case(case).options for case in found["case"]]
    found["buffer"] = [words.get(each, "made beforehand") for each in how]
    found["when"] = found["when"].replace("", "never")
    names = {"buffer": "Buffer", "when": "Goes wrong", "sentence": "What happened"}
    display.table(found, names)
    return found


def rule_nothing_new_said(found: Rows) -> None:
    """The rule: nothing new inside a capture: in words."""
    text = ""
    if len(found) == 3:
        by = found.set_index("buffer")["when"]
        if by["made by the call"] == "at capture":
            text += "The second case fails honestly: asking the driver for memory is forbidden during a "
            text += "capture. "
        if by["made by the call, from the pool"] == "at replay":
            text += (
                "The third is the dangerous one. A call before the capture leaves a buffer in the pool, so "
            )
            text += (
                "the capture succeeds; the buffer goes back to the pool, somebody else gets it, and every "
            )
            text += "replay writes into it. **Warming up hides the fault.** "
        if by["made beforehand"] == "never":
            text += "The cure is the first: make each buffer once, as large as it will ever have to be, "
            text += "before the first capture, and keep it."
    display.say(text or "This GPU could not be asked.")


def side_path_fp32_table(here: Lab) -> Rows:
    """A side path in FP32: the table."""
    side = here.measure("q8_0", study.side_path())
    read = side["n"] * side["k"] * 4
    side["mb"] = read / 1e6 * np.where(side["impl"] == "torch.mv", side["batch"], 1)
    names = {"impl": "Call", "format": "Format", "mb": "Weights read (MB)"}
    names |= {"predicted_us": "Predicted (µs)", "median_us": "Median (µs)", "error": "Off by"}
    forms = dict.fromkeys(("mb", "predicted_us", "median_us"), "{:,.0f}")
    forms |= {"error": "{:.0e}"}
    if len(side):
        display.table(side, names, forms, f"{side['batch'].iloc[0]} tokens")
    return side


def side_path_fp32_said(side: Rows, gpu: str, source: Store) -> None:
    """A side path in FP32: in words."""
    if len(side) == 3:
        mv, fp32, tf32 = side["median_us"]
        text = f"On the {gpu} one product is {display.speed(mv / fp32)} in FP32 "
        text += f"and {display.speed(mv / tf32)} in "
        text += f"TF32, which is off by {side['error'].iloc[2] / side['error'].iloc[1]:,.0f} times as much."
        told = source.read("prefill").query("operator == 'per_layer_embedding'").set_index("impl")
        told = told["median_us"] / 1e3
        text += f" The source went from {told['matvec']:.0f} to {told['tf32_gemm']:.0f} ms."
        display.say(text)


def takeaway(gpu: str, us: Rows, launches: int, graph: float, pairs: Rows) -> None:
    """What to take away, computed."""
    text = "- Count launches before kernels: where kernels are short, launches are the time.\n"
    text += f"- On the {gpu} a launch costs {us['checked', 'wall'] / launches:.0f} µs with checks in Python, "
    text += f"{us['kept', 'wall'] / launches:.0f} where they were passed before, "
    text += f"{us['bare', 'wall'] / launches:.0f} bare, {graph / launches:.1f} in a graph, kernel included.\n"
    gain = (pairs["Before (µs)"] / pairs["After (µs)"]).max() - 1
    worth = f"are worth up to {gain:.0%} of speed" if gain > 0.005 else "bring no speed"
    text += f"- The review's suggestions {worth} here.\n"
    text += "- Check sizes before the cast, and make buffers before the capture. Without that, both faults "
    text += "pass a friendly test."
    display.say(text)


def explore(here: Lab, copy_roof: float, gpu: str) -> Any:
    """Tweak it: the explorer."""
    parts = [c for c in here.cases("q8_0") if c.operator in ("dequantise", "q8_1")]
    parts = here.measure("q8_0", parts)
    parts["elements"] = parts["k"] * parts["n"].fillna(parts["batch"]).astype(int)
    return explorer.Explorer(
        "q8-around",
        parts,
        x="elements",
        controls={"operator": "What", "impl": "Rung"},
        roof=("DRAM copy", copy_roof, "GB/s"),
        title=f"Formats into one another on {gpu}",
    )
