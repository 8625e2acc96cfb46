"""What lesson 03d shows: the FP16 ladder, every matrix of seven models, and tokens a second."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import ablation, coalescing, token_rate
from rooflab.analysis.evidence import NoEvidence
from rooflab.hardware import crossover, roofline
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.ops import Rung, decoder, gemv, stream
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_03b import latency
from rooflab.studies import bandwidth, decode
from rooflab.studies import gemv as study
from rooflab.view import display, explorer, page, plot
from rooflab.words import listed


def opening(rows: Rows, gpu: str, ceiling: float, n: int, k: int) -> Opening:
    """The first screen of 03d: what is left to do when the first mapping is coalesced."""
    own = rows[rows["kind"] == "own"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    text = f"In rows even the first kernel is coalesced, and it reaches {first['roof_fraction']:.0%} of the "
    text += f"read roof on the {gpu}; with wide loads in flight {best['impl']} reaches "
    text += f"{best['roof_fraction']:.0%} of it at {n:,} × {k:,}."
    able = [
        "write the GEMV that language models need",
        "predict the time of every matrix of a model from one constant",
        "turn microseconds into tokens a second",
    ]
    chart = page.ladder(rows, gpu, ("read", ceiling, "GB/s"), f"GEMV, {n:,} × {k:,} in FP16, cold")
    return text, able, chart


def started(gpu: Any, here: Any, read_roof: Any) -> Any:
    """Say what a stream takes to start and finish; the function that predicts a product from it."""
    best = stream.DEFAULT["read"]
    reads = [c for c in here.cases("bandwidth") if c.operator == "read"]
    smallest = min((c for c in reads if c.impl == best and c.cache == "cold"), key=lambda c: c.n)
    start = bandwidth.fixed_us(here.measure("bandwidth", [smallest]), read_roof)

    def foretold(n, k):
        return start + roofline.gemm_bytes(1, n, k, 2) / read_roof / 1e3

    display.say(f"On the {gpu} start and finish take **{start:.1f} µs**.")
    return foretold, start


def measured(K: Any, N: Any, foretold: Any, rows: Any) -> None:
    """Show the ladder with bound, prediction, time and registers."""
    rows["foretold"] = foretold(N, K)
    rows["of"] = rows["error"] / rows["error_budget"]
    rows["spread"] = (rows["q3_us"] - rows["q1_us"]) / rows["median_us"]
    names = {"impl": "Rung or peer", "of": "Error ÷ allowed"}
    names |= {"predicted_us": "Bound, data sheet (µs)", "foretold": "Predicted (µs)"}
    names |= {"median_us": "Median (µs)", "spread": "Quartiles apart"}
    names |= {"registers": "Registers"}
    forms = dict.fromkeys(("predicted_us", "foretold", "median_us"), "{:,.2f}")
    forms |= {"of": "{:.2f}", "spread": "{:.1%}"}
    display.table(rows, names, forms, "Errors, bound, prediction and times of every rung", folded=True)


def standing(here: Lab, rows: Rows, gpu: str, rungs: Sequence[Rung], n: int, k: int) -> None:
    """Say who is fastest, how near the prediction the last rung is, with which constants it ran, and what
    rungs 4 and 5 bring on the smaller matrices of the ladder.
    """
    last = rows[rows["impl"] == rungs[-1].name].iloc[0]
    text = f"On the {gpu}: {display.standings(rows.assign(format=''))}\n\n"
    text += f"Predicted were {last['foretold']:.1f} µs, and {last['impl']} takes {last['median_us']:.1f}. "
    chosen = " ".join(f"`{name}={value}`" for name, value in gemv.options_for(rungs[-1], n, k).items())
    display.say(
        f"{text}It was built with the constants of its shape, which the drawing has: {chosen}. Rungs 3 and 4 "
        f"ran with their defaults, so the difference is that of splitting k and of "
        f"tuning together.{_smaller(here, rungs, n)}"
    )


def _smaller(here: Lab, rungs: Sequence[Rung], rows: int) -> str:
    """What rungs 3, 4 and 5 take on each recorded matrix of fewer rows than `rows`; empty without one."""
    names = [rung.name for rung in rungs[2:5]]
    cases = [c for c in here.cases("gemv") if c.operator == "gemv_rows" and c.cache == "cold"]
    shapes = [{(c.n, c.k) for c in cases if c.impl == name} for name in names]
    fewer = sorted((n, k) for n, k in set.intersection(*shapes) if n < rows)
    said = []
    for n, k in fewer:
        by = here.measure("gemv", study.ladder("gemv_rows", n, k)).set_index("impl")["median_us"]
        times = [f"{by[name]:.1f}" for name in names]
        said.append(f"{times[0]}, {times[1]} and {times[2]} µs at {n:,} × {k:,}")
    return f"\n\nWith fewer rows, rungs 3, 4 and 5 take {listed(said)}." if said else ""


def counted_rungs(gpu: Any, here: Any) -> Any:
    """Show what the profiler counted of each rung; its rows."""
    counted = here.profile("gemv", study.counted(), "ncu", study.COUNTERS)
    counted = coalescing.counters(counted)
    counted = counted[counted["operator"] == "gemv_rows"]
    counted = counted[(counted["kind"] == "own") & (counted["cache"] == "cold")]
    names = {"impl": "Rung", "load_sectors_per_request": "Sectors a request"}
    names |= {"load_efficiency_pct": "Bytes used %", "occupancy_pct": "Thread slots used %"}
    names |= {"stall_long_scoreboard": "Waits for memory (cycles an instruction)"}
    forms = dict.fromkeys(names, "{:.0f}")
    forms |= {"impl": "", "load_sectors_per_request": "{:.1f}"}
    display.table(counted, names, forms, f"Counted by ncu on {gpu}", folded=True)
    return counted


def in_flight(here: Lab, rows: Rows, rungs: Sequence[Rung], n: int, sms: int) -> None:
    """Say how many bytes rungs 1 to 3 have in flight on paper for n rows, beside what the roof needs."""
    wait, roof = latency(here), here.roof["dram_read"].value
    if wait != wait:
        return
    lanes = min(32 * n, 2048 * sms)  # a warp a row, as far as the SMs have room
    loads = ((4, 2), (1, 16), (int(rungs[2].with_defaults({})["UNROLL"]), 16))  # a lane's at a time, of bytes
    each = [many * size for many, size in loads]
    said = [
        f"{lanes * size / 2**20:.1f} MiB in rung {k} ({many} × {wide} bytes a lane)"
        for k, (size, (many, wide)) in enumerate(zip(each, loads, strict=True), 1)
    ]
    needed = roofline.bytes_in_flight(roof, wait)
    text = f"On paper {lanes // 32:,} warps of 32 lanes have {listed(said)} in flight; by Little's law the "
    text += f"roof needs {needed / 2**20:.1f} at least ([part 03b](03b_filling.ipynb)). "
    if needed < lanes * each[1] < 2 * needed < lanes * each[2]:
        text += "Rung 2 has little to spare, rung 3 several times that. "
    first, allowed = rows[rows["impl"] == rungs[0].name]["gb_s"], lanes * each[0] / wait
    if len(first) and first.iloc[0] < 0.5 * allowed:
        text += f"Rung 1 lacks more than bytes: its own would allow {allowed:,.0f} GB/s, and it reads "
        text += f"{first.iloc[0]:,.0f}. "
    display.say(text.strip())


def explained(counted: Rows, rows: Rows) -> None:
    """Say what the counters tell of the first and the last rung, and what they don't tell of the others."""
    if len(counted) < 2:
        return
    first, last = counted.iloc[0], counted.iloc[-1]
    least = counted["load_efficiency_pct"].min()
    text = (
        f"Every rung uses {least:.0f}% {'or more ' if least < 99.5 else ''}of what it loads, so coalescing "
    )
    text += "does not tell them apart. "
    text += (
        f"What differs is the bytes of a request: {first['load_sectors_per_request']:.0f} sectors in rung 1, "
    )
    text += f"{last['load_sectors_per_request']:.0f} in {last['impl']}."
    late = rows[rows["impl"].isin(("3_in_flight", "4_rows", "5_split"))]["median_us"]
    if late.max() < 1.06 * late.min():
        text += f" Rungs 3 to 5 differ by {late.max() / late.min() - 1:.0%}, which no counter here explains."
    display.say(text)


def beside_library(every: Rows, rung: str, foretold: Any, read_roof: float) -> Rows:
    """Each matrix of all models, a row a shape in the order of its megabytes: microseconds of our last rung
    and of cuBLAS, the prediction, the ratio of the two and our share of the roof.
    """
    sides = every.pivot(index=["n", "k"], columns="impl", values="median_us")
    sides = sides.reindex(columns=[rung, "torch.matmul"]).reset_index()
    at = list(zip(sides["n"], sides["k"], strict=True))
    sides["mb"] = [roofline.gemm_bytes(1, n, k, 2) / 1e6 for n, k in at]
    sides["foretold"] = [foretold(n, k) for n, k in at]
    sides["ratio"] = sides["torch.matmul"] / sides[rung]
    sides["share"] = sides["mb"] * 1e3 / sides[rung] / read_roof
    return sides.sort_values("mb", ignore_index=True)


def by_size(
    every: Rows, gpu: str, models: Sequence[str], read_roof: float, sides: Rows, start: float
) -> None:
    """Draw all products of all models by their bytes, as points, over the curve that was predicted."""
    title = f"FP16 products of {len(models)} models, by size"
    fig, ax = plot.figure("MB of weights", "GB/s", title, xlog=True)
    ends = sides["mb"].min(), sides["mb"].max()
    across = np.geomspace(*ends, 60)
    line = plot.series(ax, across, 1e3 * across / (start + 1e3 * across / read_roof), label="predicted")
    line.set(marker="", linewidth=1.0, linestyle="-", color="#666666", zorder=2)
    for impl, side in every.assign(mb=every["bytes"] / 1e6).groupby("impl", sort=False):
        name = "cuBLAS" if impl == "torch.matmul" else impl
        plot.series(ax, side["mb"], side["gb_s"], label=name).set_linestyle("none")
    plot.roof_line(ax, read_roof, f"read {read_roof:,.0f} GB/s")
    ticks = [1, 3, 10, 30, 100, 300, 1000]
    ax.set_xticks(ticks, ticks)
    plot.label_ends(ax)
    off = _off(sides, str(sides.columns[2]))
    said = f"{title}, on {gpu}, {plot.dates(every)}. {sides.columns[2]} lies between {off.min():+.0%} and "
    plot.show(fig, f"{said}{off.max():+.0%} of the predicted time.")


def _off(sides: Rows, impl: str) -> pd.Series:
    """How far each shape's time is off its prediction, as a share of it."""
    return sides[impl] / sides["foretold"] - 1


def beside_peer(every: Any, gpu: Any, rungs: Any, sides: Any) -> None:
    """Say where ours is slower than cuBLAS, and how far the predictions are off."""
    own = every[every["impl"] == rungs[-1].name].set_index(["n", "k"])
    peer = every[every["impl"] == "torch.matmul"].set_index(["n", "k"])
    both = own.index.intersection(peer.index)
    slower = [at for at in both if own["median_us"][at] > crossover.LEVEL * peer["median_us"][at]]
    text = ""
    if len(both):
        ratio = sides.dropna(subset="ratio").sort_values("ratio")
        most, least = ratio.iloc[-1], ratio.iloc[0]
        fast = "faster than" if least["ratio"] > 1 else "faster than, or within 2% of,"
        text = f"On the {gpu} ours is {fast} cuBLAS on all {len(both)} shapes"
        if slower:
            text = f"On {len(slower)} of {len(both)} shapes ours is slower than cuBLAS by more than 2%: "
            text += ", ".join(f"{n:,} × {k:,}" for n, k in slower)
        text += f". It is {most['ratio']:.2f} times as fast at {most['n']:,.0f} × {most['k']:,.0f} "
        text += f"and {least['ratio']:.2f} times at {least['n']:,.0f} × {least['k']:,.0f}. "
    off = _off(sides, rungs[-1].name)
    text += f"Measured times lie from {off.min():+.0%} to {off.max():+.0%} off a prediction "
    text += "that was fitted to streams alone."
    display.say(text)


def of_model(MODEL: Any, gpu: Any, rungs: Any, sides: Any) -> None:
    """Show one model's products with their times."""
    parts = pd.DataFrame(model_shapes.projections(model_shapes.get(MODEL)))
    parts = parts.merge(sides, on=["n", "k"], how="left")
    pairs = zip(parts["n"], parts["k"], strict=True)
    parts["shape"] = [f"{n:,} × {k:,}" for n, k in pairs]
    names = {"name": "Projection", "shape": "n × k", "times": "Times"}
    names |= {"foretold": "Predicted (µs)", rungs[-1].name: "Ours (µs)"}
    names |= {"torch.matmul": "cuBLAS (µs)", "share": "Ours, of the roof"}
    times = ("foretold", rungs[-1].name, "torch.matmul")
    forms = dict.fromkeys(times, "{:,.1f}")
    forms |= {"share": "{:.0%}"}
    display.table(parts, names, forms, f"{MODEL} on {gpu}")


def tokens(every: Any, models: Any, read_roof: Any, rungs: Any) -> Any:
    """Show tokens a second by model; the rows."""
    found = token_rate.of_models(every, models)
    found["at_roof"] = 1e9 * read_roof / found["bytes"]
    wide = found.pivot(index="model", columns="impl", values="tok_s")
    facts = found.drop_duplicates("model")[["model", "bytes", "at_roof"]]
    table = token_rate.counts(models).merge(facts, on="model")
    table = table.merge(wide.reset_index(), on="model")
    table["gb"] = table["bytes"] / 1e9
    table["share"] = table[rungs[-1].name] / table["at_roof"]
    names = {"model": "Model", "gb": "GB a token"}
    names |= {"at_roof": "Tokens/s at the roof", rungs[-1].name: "Ours"}
    names |= {"torch.matmul": "cuBLAS", "share": "Ours, of the roof"}
    names = {key: name for key, name in names.items() if key in table}
    forms = dict.fromkeys(("at_roof", rungs[-1].name, "torch.matmul"), "{:,.1f}")
    forms |= {"gb": "{:.2f}", "share": "{:.0%}"}
    display.table(table, names, forms, "FP16, batch 1")
    return table


def tokens_said(gpu: Any, table: Any, here: Lab, ours: str) -> Any:
    """Say what the tokens a second follow from, and where lesson 08's decoder passes those of `ours`."""
    text = ""
    if len(table):
        low = table.loc[table["share"].idxmin()]
        high = table.loc[table["share"].idxmax()]
        if low["bytes"] < high["bytes"]:
            text = "The smaller the matrices, the more the start of each kernel weighs: "
        text += f"{low['model']} "
        text += f"runs its products at {low['share']:.0%} of the roof on the {gpu}, "
        text += f"{high['model']} at {high['share']:.0%}. "
    wrong = table[(table["products"] != table["source"])]
    text += f"(Lesson 03's source counts 6 products a layer, which is wrong for {len(wrong)} of these "
    text += f"{len(table)} models.) These are products alone, launched one by one. Attention, norms and the "
    text += f"cache come on top; lesson 08 measures whole decoders.{_overlapped(here, table, ours)}"
    display.say(text)
    return high


def _overlapped(here: Lab, table: Rows, ours: str) -> str:
    """Of which models a persistent decoder takes less for a whole token than these products take alone."""
    decoders, found = here.store.read("decode"), []
    for model, alone in zip(table["model"], table.get(ours, []), strict=False):
        with contextlib.suppress(NoEvidence, KeyError):
            whole = ablation.best(decoders, model, "fp16")
            if whole["tok_s"] > alone and whole["impl"] in (*decoder.PERSISTENT, decode.CHAIN):
                found.append(f"{model} ({whole['tok_s']:,.0f} tokens a second)")
    if not found:
        return ""
    return (
        f" Its fastest ways take less for a whole token of {listed(found)}: a persistent kernel, or launches "
        "that depend on each other, overlap the products' starts."
    )


def dispatch(MODEL: Any, rungs: Any) -> Any:
    """Show which rung and constants the rule picks for some shapes; the rule's function."""

    def dispatched(n, k, aligned):
        name = gemv.default_rung("gemv_rows", n, k, aligned)
        rung = next(r for r in rungs if r.name == name)
        macros = gemv.options_for(rung, n, k)
        said = " ".join(f"{key.lower()}={each}" for key, each in macros.items())
        blocks = gemv.blocks_of(rung, n, macros)
        return [n, k, aligned, name, said, blocks]

    asked = [(p.n, p.k, True) for p in model_shapes.projections(model_shapes.get(MODEL))]
    asked = [*dict.fromkeys(asked), (4096, 4095, True), (4096, 4096, False)]
    names = {"n": "n", "k": "k", "aligned": "Aligned to 16 bytes"}
    names |= {"rung": "Rung", "macros": "Constants", "blocks": "Blocks"}
    choices = [dispatched(*each) for each in asked]
    frame = pd.DataFrame(choices, columns=list(names))
    display.table(frame, names, caption=f"What runs the shapes of {MODEL}, and two odd ones", folded=True)
    return dispatched


def kinds(dispatched: Any) -> None:
    """Say how many compiled kernels all shapes need."""
    every_shape = [dispatched(n, k, True) for n, k in study.shapes_of(study.FAMILIES)]
    kinds = {(rung, macros) for _, _, _, rung, macros, _ in every_shape}
    display.say(
        f"The {len(every_shape)} shapes of all {len(study.FAMILIES)} models need "
        f"{len(kinds)} compiled kernels; a module for each (k, n) would make "
        f"{len(every_shape)}. The rule itself is arithmetic and runs without a GPU."
    )


def takeaway(
    K: Any, N: Any, gpu: Any, high: Any, rows: Any, rungs: Any, sides: Any, start: Any, table: Any
) -> None:
    """The page's last word."""
    fastest = rows[rows["kind"] == "own"].sort_values("median_us").iloc[0]
    text = f"- On the {gpu} {fastest['impl']} reads a {N:,} × {K:,} FP16 matrix in "
    text += f"{fastest['median_us']:.2f} µs, {fastest['roof_fraction']:.0%} of the roof.\n"
    small = sides.sort_values("mb").iloc[0]
    lost = small[rungs[-1].name] - (small["foretold"] - start)
    text += f"- The smallest matrix here takes {lost:.1f} µs more than its bytes would at the roof; start "
    text += f"and finish of a stream take {start:.1f}.\n"
    if len(table):
        text += f"- {high['model']} could write {high['at_roof']:,.1f} tokens a second if only its "
        text += f"weights had to be read, and its products take it to {high[rungs[-1].name]:,.1f}.\n"
    text += "- Count the products from the model's shapes, not from memory."
    display.say(text)


def explored(every: Any, gpu: Any, here: Any, read_roof: Any) -> Any:
    """The explorer of products by their outputs."""

    def bound(case):
        return roofline.gemm_bytes(1, case.n, case.k, 2) / read_roof / 1e3

    return explorer.Explorer(
        "rows-shapes",
        every,
        controls={"impl": "Contestant", "k": "k"},
        labels={"n": "outputs n"},
        roof=("DRAM read", read_roof, "GB/s"),
        title=f"FP16 products on {gpu}",
        bound=bound,
        measure=explorer.measurer(here),
    )
