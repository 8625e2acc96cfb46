"""What lesson 05c's page shows: lookups, a review's suggestions, launches and graphs, a product in FP32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import q8_0 as analysis
from rooflab.errors import LaunchError
from rooflab.lab import Lab
from rooflab.ops import q8_0
from rooflab.pages import Opening, Rows, bars, named_facts
from rooflab.records.store import Store
from rooflab.studies import attribution, hf
from rooflab.studies import q8_0 as study
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import listed

# The ways to launch the chain, and what a page calls them.
WAYS = {
    "checked": "checked each time",
    "kept": "checked once",
    "bare": "without checks",
    "as a graph": "in a graph",
}
_PAIR = ["Number", "Suggestion", "Measured on", "Before (µs)", "After (µs)", "Times as fast"]
_CONTEXT = 1024  # tokens before the one of lesson 02 that is quoted
_KERNELS = (0.5, 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)  # microseconds that a kernel may take


def opening(here: Lab) -> Opening:
    """The first screen: what a launch costs, by how it is made."""
    chain = timed_chain(here)
    rows = chain[chain["clock"].isin(["wall", "graph"])]
    names = [WAYS[way] for way in rows["way"]]
    launches, gpu = 4 * int(rows["layers"].iloc[0]), here.run["gpu"]
    said = [f"{us:.1f} µs {name}" for us, name in zip(rows["each"], names, strict=True)]
    answer = f"Into launches, where kernels are short.{_real_token(here)} The chart is a smaller test on the "
    answer += f"{gpu}, {launches} kernels in a chain, launched by a Python function that may check its "
    answer += f"arguments: for each kernel it takes {listed(said)}."
    able = (
        "say what a launch costs the CPU, and when the GPU waits for it",
        "record a decoder's launches in a CUDA graph with buffers that stay valid",
        "replace thousands of launches by one",
    )
    fig, _ = bars(rows, names, gpu, f"A chain of {launches} launches")
    first, last = rows.iloc[0], rows.iloc[-1]
    caption = f"A chain of {launches} launches on {gpu}, {plot.dates(rows)}: {names[0]} it takes "
    caption += f"{first['median_us'] / last['median_us']:.1f} times as long as {names[-1]}."
    return answer, able, (fig, caption)


def _real_token(here: Lab) -> str:
    """What of lesson 02's token launching is, where the record has it both launched one by one and as a
    graph; nothing elsewhere.
    """
    cases = attribution.decode([_CONTEXT], hf.VARIANTS[:2], weights="random")
    rows = here.store.read("attribution")
    us = rows[rows["case"].isin([case.id for case in cases])].set_index("impl")["median_us"]
    if len(us) < len(cases):
        return ""
    eager, graph = (float(us[name]) for name in hf.VARIANTS[:2])
    if not graph < eager:  # nor where one is not a number
        return ""
    return (
        f" Lesson 02's token takes {eager / 1e3:.1f} ms launched from PyTorch and {graph / 1e3:.1f} ms as a "
        f"graph of the same kernels: launching and the Python around it are {1 - graph / eager:.0%} of it."
    )


def _source_rates(source: Store) -> tuple[float, float]:
    """Tokens a second that the source reports without and with a graph."""
    told = source.read("decode")
    told = told[told["options"].str.contains("context=1K", na=False)].set_index("impl")["tok_s"]
    return float(told["dp4a"]), float(told["dp4a_graph"])


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
        rows,
        names,
        forms,
        f"{tokens} tokens, rows of {int(rows['k'].iloc[0]):,} weights; "
        "replayed as a graph, or called one by one (wall clock)",
    )
    return rows, tokens


def lookups_compared(rows: Rows, gpu: str, tokens: int, source: Store) -> None:
    """Say what one launch for all tokens brings, beside what the source reports."""
    us = rows.set_index(["impl", "clock"])["median_us"]
    exact = (rows["error"] == 0).all()
    text = "Both give the exact numbers. " if exact else ""
    text += f"On the {gpu}, called by the host, {tokens} tokens take "
    text += f"{us['1_token', 'wall'] / 1e3:,.2f} ms one by one and {us['2_batched', 'wall'] / 1e3:.2f} ms at "
    text += f"once. Of the {2 * tokens:,} launches half are copies and half kernels launched through the "
    text += (
        f"checks; one costs {us['1_token', 'wall'] / (2 * tokens):.1f} µs on average. In a graph one costs "
    )
    text += f"{us['1_token', 'graph'] / (2 * tokens):.1f} µs, and the single launch is still "
    text += f"{display.speed(us['1_token', 'graph'] / us['2_batched', 'graph'])}."
    one = rows[rows["impl"] == "2_batched"].set_index("clock")
    floor = float(one["floor"].iloc[0])
    text += f" In its graph the single launch takes {one['median_us']['graph'] / floor:.1f} times what its "
    text += f"bytes take at the copy roof; called from Python it takes {one['median_us']['wall']:.1f} µs, "
    text += f"{1 - one['median_us']['graph'] / one['median_us']['wall']:.0%} of it the call."
    told = source.read("prefill").set_index("impl")["median_us"]
    text += f" The source reports {told['per_token'] / 1e3:.0f} ms before, "
    text += f"{told['batched'] / 1e3:.0f} ms after, on its GPU, with the rest of the step included."
    display.say(text)


def suggestions(here: Lab) -> Rows:
    """What each suggestion of the review about arithmetic brings, a pair of kernels a row: its number and
    words, the matrix, us before and after, and how many times as fast.
    """
    pairs = []
    for found in analysis.review():
        one, two = here.measure(found.before.study, [found.before, found.after]).iloc
        before, after = one["median_us"], two["median_us"]
        verdict = "level" if display.level(two, one) else f"{before / after:.2f}"
        where = f"{found.before.operator} {found.before.n:,} × {found.before.k:,}"
        pairs.append([found.number, found.says, where, before, after, verdict])
    return pd.DataFrame(pairs, columns=_PAIR)


def _sizes_before_the_cast() -> str:
    """Which of the review's suggestions is about sizes, and how a launcher refuses one."""
    n, k = 65536, 32768
    cast = int(np.int64(n * k).astype(np.int32))
    size = _refusal(lambda: q8_0.check_sizes(1, k, n, 32, "A product"))
    tested = 1 + sum(len(found.number.split(",")) for found in analysis.review())
    text = f"A review of the source's code left seven suggestions; {tested} of them are tested here. One "
    text += "asks to check sizes before they are cast: "
    text += f"kernels count in 32-bit ints, and {n:,} × {k:,} = {n * k:,} is, as an int, {cast:,}. After the "
    return f'{text}cast a wrong number may look valid. The launchers here refuse such a product: "{size}"'


def also_tested(here: Lab, gpu: str, source: Store) -> None:
    """Show, folded, what a review's suggestions bring and what a product in FP32 takes."""
    pairs, seen, side = suggestions(here), instructions_an_element(here), fp32_products(here)
    forms = dict.fromkeys(_PAIR[3:5], "{:,.1f}")
    caption = "Each suggestion, as two kernels that differ in nothing else"
    parts: list[Any] = [_sizes_before_the_cast(), _best_of(pairs)]
    parts += [(pairs, dict(zip(_PAIR, _PAIR, strict=True)), forms, caption)]
    if len(seen) == 3:
        names = {"impl": "Rung", "each": "Instructions an element", "dram_pct": "DRAM busy %"}
        names |= {"stall_long_scoreboard": "Stalled on memory (cycles)"}
        caption = "By Nsight Compute; stalled: cycles that a warp waits for L2 or DRAM, per instruction"
        parts += [cost_of_a_division(seen, pairs)]
        parts += [(seen, names, dict.fromkeys(list(names)[1:], "{:.1f}"), caption)]
    three = q8_0.Blocks(np.zeros((2, 3 * 34), np.uint8))  # k = 96
    shift = _refusal(lambda: q8_0.dequantise(three, rung="3_shift", target="cpu"))
    parts += [
        "Shift and mask replace a division only where k is a power of two. Of another k the launcher says: "
        f'"{shift}"'
    ]
    if len(side) == 3:
        names = {"impl": "Call", "format": "Format", "mb": "Weights read (MB)"}
        names |= {"predicted_us": "Predicted (µs)", "median_us": "Median (µs)", "error": "Off by"}
        forms = dict.fromkeys(("mb", "predicted_us", "median_us"), "{:,.0f}") | {"error": "{:.0e}"}
        caption = f"One product for {side['batch'].iloc[0]} tokens, and one for each"
        parts += [fp32_products_compared(side, gpu, source), (side, names, forms, caption)]
    display.fold_parts("What a review suggested, and a prompt's product in FP32", parts)


def _best_of(pairs: Rows) -> str:
    """How many of the review's suggestions are about arithmetic, and which gains most."""
    count = sum(len(number.split(",")) for number in pairs["Number"])
    gains = pairs["Before (µs)"] / pairs["After (µs)"]
    text = f"{count} of the seven suggestions are about arithmetic in kernels; they make {len(pairs)} "
    text += "comparisons ([lesson 06](06_attention.ipynb) tests them in attention). "
    return f'{text}"{pairs.loc[gains.idxmax(), "Suggestion"]}" gains most: {gains.max():.2f} times the speed.'


def _refusal(call: Callable[[], object]) -> str:
    """How a launcher refuses a call."""
    try:
        call()
    except LaunchError as sentence:
        return str(sentence)
    raise AssertionError("this call is right, and nothing refuses it")


def instructions_an_element(here: Lab) -> Rows:
    """The counters of each rung that dequantises, with `each`, instructions an element."""
    counted = here.profile("q8_0", study.counted(), "ncu", study.COUNTERS)
    cases = [study.Q8().case(case) for case in counted["case"]]
    counted["impl"] = [case.impl for case in cases]
    dequantising = np.array([case.operator == "dequantise" for case in cases], bool)
    seen = counted[dequantising].copy()
    elements = [case.n * case.k for case in cases if case.operator == "dequantise"]
    seen["each"] = 32 * seen["inst_executed"] / elements
    return seen


def cost_of_a_division(seen: Rows, pairs: Rows) -> str:
    """What the division and the scale in two bytes cost, of the rungs that dequantise."""
    before_shift, after_shift = pairs.loc[0, ["Before (µs)", "After (µs)"]]
    a, b, c = (seen.set_index("impl")["each"][name] for name in seen["impl"])
    text = "In the kernel that turns Q8_0 into FP16 ([bytes](../kernels/dequantise/1_bytes.cu), "
    text += "[word](../kernels/dequantise/2_word.cu), [shift](../kernels/dequantise/3_shift.cu)), loading "
    text += f"the scale as two bytes costs {a - b:.1f} instructions an element, the division {b - c:.1f}, as "
    text += "the compiler does not know its divisor. Shift and mask save "
    saved = [1 - c / b, 1 - after_shift / before_shift]
    text += f"{saved[0]:.0%} of the instructions and "
    text += f"{saved[1]:.0%} of the time" if saved[1] > 0.005 else "no time"
    if saved[1] >= saved[0]:
        return f"{text}."
    busy = seen["dram_pct"].iloc[1:]
    text += f". DRAM is busy {busy.iloc[0]:.0f}% of the time before and {busy.iloc[1]:.0f}% after: "
    alone = "neither instructions nor memory's rate alone set the time."  # near its roof memory would
    return text + (alone if busy.max() < 80 else "the kernel mostly waits for memory.")


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
    """Show a chain of launches by the way that it is launched, the kernel's part of it apart; its rows and
    the number of launches.
    """
    chain = timed_chain(here)
    layers = int(chain["layers"].iloc[0])
    launches = 4 * layers
    shown = chain.assign(said=chain["way"].map(WAYS))
    shown = shown[shown["clock"].isin(["wall", "graph"])]
    kernel = float(shown[shown["way"] == "as a graph"]["each"].iloc[0])
    shown = shown.assign(kernel=kernel, waits=(shown["each"] - kernel).clip(lower=0))
    if alone := products_alone(here, chain):
        shown = pd.concat([shown, pd.DataFrame([{"said": "(its products alone)", "median_us": alone}])])
    names = {"said": "Launched", "median_us": "Chain (µs)", "each": f"Chain ÷ {launches} (µs)"}
    names |= {"kernel": "Kernel works (µs)", "waits": "GPU waits (µs)"}
    forms = dict.fromkeys(list(names)[1:], "{:.1f}") | {"median_us": "{:,.1f}"}
    caption = f"{layers} layers, {launches} launches, until the GPU is done; a kernel is a node of the graph"
    display.table(shown, names, forms, caption)
    return chain, launches


def products_alone(here: Lab, chain: Rows) -> float:
    """Microseconds of the chain's products without its quantisers, each timed by itself as a node of a graph
    (part 05b); 0 where one of them was not recorded.
    """
    first = chain.iloc[0]
    rows = here.store.read("q8_0")
    rows = rows[(rows["operator"] == "q8_0") & (rows["impl"] == first["impl"]) & (rows["batch"] == 1)]
    rows = rows[(rows["clock"] == "graph") & (rows["cache"] == "cold") & ~rows["options"].str.contains("=")]
    n, k = int(first["n"]), int(first["k"])
    us = [rows[(rows["n"] == a) & (rows["k"] == b)]["median_us"] for a, b in ((n, k), (k, n))]
    return float(first["layers"] * sum(each.iloc[0] for each in us)) if all(map(len, us)) else 0.0


def cost_of_a_launch(here: Lab, chain: Rows, launches: int, gpu: str, source: Store) -> tuple[Rows, float]:
    """Say what a launch costs the CPU, what the kernel takes, and what became of the prediction; times by
    way and clock, and that of the graph.
    """
    us = chain.set_index(["way", "clock"])["median_us"]
    graph = us["as a graph", "graph"]
    text = _verdict(here, chain, graph, gpu)
    if (chain[chain["error_budget"] == 0]["error"] == 0).all():
        text += " All ways give the same bits."
    without, with_graph = _source_rates(source)
    gain = with_graph / without - 1
    text += "\n\nThe source launches from a compiled language. It reports "
    text += f"{without:.0f} tokens a second without a graph and {with_graph:.1f} with one, {gain:.0%} more"
    saved = us["bare", "wall"] / graph - 1
    if 0 <= 2 * gain < saved:
        text += (
            f". Its token takes {1e3 / without:.0f} ms on its own GPU: launches hide behind longer kernels, "
        )
        text += "and one costs less than from Python"
    text += "."
    display.say(text)
    return us, graph


def _verdict(here: Lab, chain: Rows, graph: float, gpu: str) -> str:
    """The prediction's verdict: whether the GPU waits for launches, and how near a graph comes to its
    kernels' own time.
    """
    wall = chain[chain["clock"] == "wall"]
    late = wall[wall["median_us"] > graph]
    if late.empty:
        return f"**Refuted**: on the {gpu} no way to launch the chain takes longer than its graph."
    each = [f"{us:.0f} µs {WAYS[way]}" for way, us in zip(late["way"], late["each"], strict=True)]
    layers = int(chain["layers"].iloc[0])
    text = f"**Confirmed**: on the {gpu} a launch costs the CPU {listed(each)}. A kernel takes "
    text += f"{graph / (4 * layers):.1f} in the graph. The GPU waits for the rest, and the chain takes "
    text += (
        f"{late['median_us'].min() / graph:.2f} to {late['median_us'].max() / graph:.1f} times as long as "
    )
    text += "its graph."
    alone = products_alone(here, chain)
    if 0 < alone < graph:
        text += f" What remains in the graph, {graph:.1f} µs, is the kernels: the products, timed by "
        text += (
            f"themselves, make {alone:.1f}, which leaves {(graph - alone) / (2 * layers):.1f} for each of "
        )
        text += f"the {2 * layers} quantisers. These times include the hand-over from node to node."
    return text


def capture_drawn(chain: Rows) -> None:
    """Draw launches one by one, their capture and its replay, where both were timed."""
    if {"bare", "as a graph"} <= set(chain["way"]):
        diagram.capture(chain).show()


def address_drawn(here: Lab) -> None:
    """Draw how a replay comes to write over another array, where the recording has that happen."""
    found = here.profile("q8_0", study.captures(), "gate")
    if (found["when"] == "at replay").any():
        diagram.captured_address().show()


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
        if by["made beforehand"] == "never":
            text += "- **Case 1 is right**: allocate each buffer once, as large as it will ever be, before "
            text += "the first capture, and keep it.\n"
        if by["made by the call"] == "at capture":
            text += "- **Case 2 fails at once**: in the default mode of capture `cudaMalloc` is refused. "
            text += "(`cudaMallocAsync` becomes a node of the graph.)\n"
        if by["made by the call, from the pool"] == "at replay":
            text += (
                "- **Case 3 is dangerous.** A call before the capture leaves a buffer in the pool, so the "
            )
            text += "capture succeeds. Then the buffer returns to the pool, other code gets it, and every "
            text += "replay overwrites it (a byte that happens to stay the same is not counted). **A warm-up "
            text += "call hides this fault.**\n"
    display.say(text or "This GPU could not be asked.")


def fp32_products(here: Lab) -> Rows:
    """The FP32 product token by token, at once, and at once in TF32, with `mb`, the weights read in MB."""
    side = here.measure("q8_0", study.side_path())
    read = side["n"] * side["k"] * 4
    return side.assign(mb=read / 1e6 * np.where(side["impl"] == "torch.mv", side["batch"], 1))


def fp32_products_compared(side: Rows, gpu: str, source: Store) -> str:
    """What one product in FP32 for all tokens brings, beside what the source reports."""
    mv, fp32, tf32 = side["median_us"]
    text = "The source's model also keeps a matrix for each layer in FP32. Its first version multiplied "
    text += (
        "the prompt token by token, so it read the same weights again for each token. One product for all "
    )
    text += "tokens reads them once, and can use the tensor cores in *TF32*, which rounds FP32 numbers to 10 "
    text += f"fraction bits. On the {gpu} one product is {display.speed(mv / fp32)} in FP32 "
    text += f"and {display.speed(mv / tf32)} in TF32, which is off by "
    text += f"{side['error'].iloc[2] / side['error'].iloc[1]:,.0f} times as much."
    told = source.read("prefill").query("operator == 'per_layer_embedding'").set_index("impl")
    told = told["median_us"] / 1e3
    return f"{text} The source went from {told['matvec']:.0f} to {told['tf32_gemm']:.0f} ms."


def takeaway(gpu: str, us: Rows, launches: int, graph: float) -> None:
    """What to take away, computed."""
    text = "- Count launches first: where kernels are short, launches take the time.\n"
    text += (
        f"- On the {gpu} a launch of the chain takes {us['checked', 'wall'] / launches:.0f} µs with checks "
    )
    text += f"in Python, {us['kept', 'wall'] / launches:.0f} where they were passed before, "
    text += (
        f"{us['bare', 'wall'] / launches:.0f} without. In a graph a kernel takes {graph / launches:.1f}.\n"
    )
    text += "- Allocate every buffer before the capture and keep it. One from a pool may look right at the "
    text += "capture and be overwritten at replay."
    display.say(text)


def waits(call: float, kernel: float) -> float:
    """Percent of the time that the GPU waits, where each launch takes the host `call` us and each kernel runs
    for `kernel` us: a kernel starts once its launch is made and the one before it has ended.
    """
    return 100 * (1 - kernel / max(call, kernel))


def explore(chain: Rows, rows: Rows, tokens: int, gpu: str) -> Any:
    """The explorer of launches: the share of the time that the GPU waits, by what a kernel takes. A launch is
    what the chain's and, in a graph, the lookup's smallest kernel took.
    """
    calls = chain[chain["clock"] == "wall"].set_index("way")["each"].to_dict()
    node = rows[(rows["impl"] == "1_token") & (rows["clock"] == "graph")]["median_us"]
    calls["as a graph"] = float(node.iloc[0]) / (2 * tokens)
    table = [
        {"way": WAYS[way], "kernel": us, "%": round(waits(call, us), 1)}
        for way, call in calls.items()
        for us in _KERNELS
    ]
    for row in table:
        row["case"] = f"{row['way']} {row['kernel']}"
    return explorer.Explorer(
        "launches",
        pd.DataFrame(table),
        x="kernel",
        y="%",
        controls={"way": "Launched"},
        labels={"kernel": "µs a kernel", "%": "% of the time that the GPU waits"},
        title=f"How long the GPU waits for launches: computed, from launches on {gpu}",
        start={"way": table[0]["way"], "kernel": 4},
    )
