"""What lesson 05c's page shows: lookups, a review's suggestions, launches and graphs, a product in FP32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import q8_0 as analysis
from rooflab.errors import LaunchError
from rooflab.lab import Lab
from rooflab.ops import q8_0
from rooflab.pages import Opening, Rows, bars, named_facts
from rooflab.records.store import Store
from rooflab.studies import q8_0 as study
from rooflab.view import diagram, display, explorer


def opening(here: Lab) -> Opening:
    """The first screen: what a launch costs, by how it is made."""
    rows = here.measure("q8_0", study.chains())
    rows = rows[rows["clock"].isin(["wall", "graph"])]
    words = {"bare": "without checks", "kept": "checked once", "": "checked each time"}
    names = [
        "in a graph" if clock == "graph" else next(says for word, says in words.items() if word in how)
        for how, clock in zip(rows["options"], rows["clock"], strict=True)
    ]
    layers = int(rows["options"].str.extract(r"layers=(\d+)")[0].iloc[0])
    each, gpu = dict(zip(names, rows["median_us"] / (4 * layers), strict=True)), here.run["gpu"]
    answer = f"It goes into launches: on the {gpu} one launch of a short kernel takes "
    answer += ", ".join(f"{us:.1f} µs {name}" for name, us in each.items()) + ", kernel included."
    able = (
        "say what a launch costs, and who pays",
        "record a decoder's launches in a CUDA graph with buffers that stay valid",
        "test a review's suggestion before taking it",
    )
    return answer, able, bars(rows, names, gpu, f"A chain of {4 * layers} launches")


def run_facts(gpu: str, here: Lab, copy_roof: float, source: Store) -> None:
    """The facts of the run, in one line."""
    more = {
        "Copy roof": f"{copy_roof:,.0f} GB/s, read and written",
        "Source": f"{source.runs()['gpu'].iloc[0]}, published figures",
    }
    named_facts(here, gpu, "q8_0", more)


def lookups(here: Lab, copy_roof: float) -> tuple[Rows, int]:
    """Show the lookup of a prompt token by token and at once, by clock; the rows and the number of
    tokens.
    """
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


def lookups_compared(rows: Rows, gpu: str, tokens: int, source: Store) -> None:
    """Say what one launch for all tokens brings, beside what the source reports."""
    us = rows.set_index(["impl", "clock"])["median_us"]
    exact = (rows["error"] == 0).all()
    text = "Both give the exact numbers. " if exact else ""
    text += f"On the {gpu}, called by the host, {tokens} tokens take "
    text += f"{us['1_token', 'wall'] / 1e3:,.2f} ms one by one and {us['2_batched', 'wall'] / 1e3:.2f} ms at "
    text += f"once. In a graph each of the {2 * tokens:,} launches costs "
    text += f"{us['1_token', 'graph'] / (2 * tokens):.1f} µs instead of "
    text += f"{us['1_token', 'wall'] / (2 * tokens):.1f}, and the single launch is still "
    text += f"{display.speed(us['1_token', 'graph'] / us['2_batched', 'graph'])}."
    told = source.read("prefill").set_index("impl")["median_us"]
    text += f" The source reports {told['per_token'] / 1e3:.0f} ms before, "
    text += f"{told['batched'] / 1e3:.0f} ms after, on its GPU, with the rest of the step included."
    display.say(text)


def suggestions(here: Lab) -> Rows:
    """Show what each suggestion of the review brings, a pair of kernels a row; the pairs."""
    pairs = []
    for found in analysis.review():
        one, two = here.measure(found.before.study, [found.before, found.after]).iloc
        before, after = one["median_us"], two["median_us"]
        verdict = "level" if display.level(two, one) else f"{before / after:.2f}"
        where = f"{found.before.operator} {found.before.n:,} × {found.before.k:,}"
        pairs.append([found.number, found.says, where, before, after, verdict])
    names = ["Number", "Suggestion", "Measured on", "Before (µs)", "After (µs)", "Times as fast"]
    pairs = pd.DataFrame(pairs, columns=names)
    headings = dict(zip(names, names, strict=True))
    display.table(pairs, headings, dict.fromkeys(names[3:5], "{:,.1f}"))
    return pairs


def refused_shift() -> Any:
    """Show how the launcher refuses a division that is no shift; the function that quotes a refusal."""

    def refused(call):
        try:
            call()
        except LaunchError as sentence:
            display.say(f"> {sentence}")

    three = q8_0.Blocks(np.zeros((2, 3 * 34), np.uint8))  # k = 96
    refused(lambda: q8_0.dequantise(three, rung="3_shift", target="cpu"))
    return refused


def instructions_an_element(here: Lab) -> Rows:
    """Show the counted instructions an element of each rung that dequantises; its rows."""
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


def cost_of_a_division(seen: Rows, pairs: Rows) -> None:
    """Say what the division and the scale in two bytes cost."""
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


def refused_size(refused: Any) -> None:
    """Show a size that does not fit an int, and how the launcher refuses it."""
    n, k = 65536, 32768
    cast = int(np.int64(n * k).astype(np.int32))
    display.say(f"{n:,} × {k:,} = {n * k:,}, as an int: {cast:,}.")
    refused(lambda: q8_0.check_sizes(1, k, n, 32, "A product"))


def timed_chain(here: Lab) -> Rows:
    """The chain's rows with the `way` that it was launched and `each`, microseconds a launch."""
    chain = here.measure("q8_0", study.chains())
    layers = chain["options"].str.extract(r"layers=(\d+)")[0].astype(int)
    ways = {"bare=1": "bare", "kept=1": "kept"}
    told = [[way for word, way in ways.items() if word in how] for how in chain["options"]]
    chain["way"] = [way[0] if way else "checked" for way in told]
    chain.loc[chain["clock"] == "graph", "way"] = "as a graph"
    return chain.assign(layers=layers, each=chain["median_us"] / (4 * layers))


def chains(here: Lab) -> tuple[Rows, int]:
    """Show a chain of launches by the way that it is launched; its rows and the number of launches."""
    chain = timed_chain(here)
    layers = int(chain["layers"].iloc[0])
    launches = 4 * layers
    names = {"way": "Way", "clock": "Clock", "median_us": "Chain (µs)", "each": "A launch (µs)"}
    names |= {"error": "Off by", "error_budget": "Allowed"}
    forms = {"median_us": "{:,.1f}", "each": "{:.1f}", "error": "{:.3g}", "error_budget": "{:.3g}"}
    display.table(chain, names, forms, f"{layers} layers, {launches} launches")
    return chain, launches


def cost_of_a_launch(chain: Rows, launches: int, gpu: str, source: Store) -> tuple[Rows, float]:
    """Say what a launch costs each way; times by way and clock, and that of the graph."""
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
        text += "All ways give the same bits. "
    told = source.read("decode")
    told = told[told["options"].str.contains("context=1K", na=False)].set_index("impl")["tok_s"]
    text += f"The source, whose launches come from a compiled language, reports {told['dp4a']:.0f} tokens a "
    text += f"second without and {told['dp4a_graph']:.1f} with a graph."
    display.say(text)
    return us, graph


def capture_drawn(chain: Rows) -> None:
    """Draw launches one by one, their capture and its replay, where both were timed."""
    if {"bare", "as a graph"} <= set(chain["way"]):
        diagram.capture(chain).show()


def captures(here: Lab) -> Rows:
    """Show what became of a product captured with each kind of buffer; its rows."""
    found = here.profile("q8_0", study.captures(), "gate")
    words = {"fresh=1 pooled=0": "made by the call"}
    words |= {"fresh=1 pooled=1": "made by the call, from the pool"}
    how = [study.Q8().case(case).options for case in found["case"]]
    found["buffer"] = [words.get(each, "made beforehand") for each in how]
    found["when"] = found["when"].replace("", "never")
    names = {"buffer": "Buffer", "when": "Goes wrong", "sentence": "What happened"}
    display.table(found, names)
    return found


def captures_explained(found: Rows) -> None:
    """Say which buffers fail a capture, when, and what to do."""
    text = ""
    if len(found) == 3:
        by = found.set_index("buffer")["when"]
        if by["made by the call"] == "at capture":
            text += "The second case fails at once: CUDA forbids allocation from the driver during a "
            text += "capture. "
        if by["made by the call, from the pool"] == "at replay":
            text += "The third is dangerous. A call before the capture leaves a buffer in the pool, so the "
            text += "capture succeeds. Then the buffer returns to the pool, other code gets it, and every "
            text += "replay overwrites it. **A warm-up call hides this fault.** "
        if by["made beforehand"] == "never":
            text += "The first case is right: allocate each buffer once, as large as it will ever be, "
            text += "before the first capture, and keep it."
    display.say(text or "This GPU could not be asked.")


def fp32_products(here: Lab) -> Rows:
    """Show the FP32 product token by token, at once, and at once in TF32; its rows."""
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


def fp32_products_compared(side: Rows, gpu: str, source: Store) -> None:
    """Say what one product for all tokens brings, beside what the source reports."""
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
    text = "- Count launches first: where kernels are short, launches take the time.\n"
    text += f"- On the {gpu} a launch costs {us['checked', 'wall'] / launches:.0f} µs with checks in Python, "
    text += f"{us['kept', 'wall'] / launches:.0f} where they were passed before, "
    text += f"{us['bare', 'wall'] / launches:.0f} bare, {graph / launches:.1f} in a graph, kernel included.\n"
    gain = (pairs["Before (µs)"] / pairs["After (µs)"]).max() - 1
    worth = f"are worth up to {gain:.0%} of speed" if gain > 0.005 else "bring no speed"
    text += f"- The review's suggestions {worth} here.\n"
    text += "- Check sizes before the cast, and allocate buffers before the capture. A test with friendly "
    text += "sizes finds neither fault."
    display.say(text)


def explore(here: Lab, copy_roof: float, gpu: str) -> Any:
    """The explorer of quantisers and dequantisers, by rung and size."""
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
