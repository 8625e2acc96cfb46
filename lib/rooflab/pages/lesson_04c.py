"""What lesson 04c's page shows: INT4 products of several tokens, beside FP16 and other libraries."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import states
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Opening, Rows, named_facts
from rooflab.pages.lesson_04c_gain import gain_over_fp16 as gain_over_fp16
from rooflab.pages.lesson_04c_gain import gains_of, no_gain_beyond, stops, stops_in_short
from rooflab.pages.lesson_04c_large import free_up_to
from rooflab.pages.lesson_04c_large import growth_by_batch as growth_by_batch
from rooflab.pages.lesson_04c_large import large_batches as large_batches
from rooflab.pages.lesson_04c_picks import time_by_build as time_by_build
from rooflab.pages.lesson_04c_rungs import rung_by_batch as rung_by_batch
from rooflab.pages.lesson_04c_stops import bound_us, crossing
from rooflab.pages.lesson_04c_stops import crossings as crossings
from rooflab.pages.lesson_04c_stops import where_it_stops as where_it_stops
from rooflab.pages.lesson_04c_worth import worth_by_batch as worth_by_batch
from rooflab.studies import int4 as study
from rooflab.view import display, explorer, plot
from rooflab.words import counted, listed, times

_ALLOWED = (
    "Ours may err twice as much as FP16 weights in cuBLAS. The others are judged more leniently, so that "
    "none is missing for that reason: tinygemm multiplies in BF16 and is judged by that; humming quantises "
    "our weights by itself and is judged on what it then holds; it and gemlite may add partial sums in FP16, "
    "and are allowed eight times our error. The largest error of each, as a share of the allowed one:"
)


def opening(here: Lab, drawn: Any, batches: list[int], shapes: list[Any]) -> Opening:
    """The first screen: the dispatcher's INT4 kernels beside FP16 over the number of tokens."""
    picks = [study.chosen(*drawn, batch, here.sized) for batch in batches]
    every = study.batches(*drawn, batches, here.sized)
    dense = here.held("int4", [case for case in every if case.impl == "torch.matmul"])
    ours = here.measure("int4", picks)
    theirs = here.measure("int4", dense)
    us = ours.set_index("batch")["median_us"]
    gain = (theirs.drop_duplicates("batch").set_index("batch")["median_us"] / us).dropna()
    last, gpu = us.index[-1], here.run["gpu"]
    picked = [str(ours["impl"].iloc[at]).partition("_")[0] for at in (0, -1)]
    answer = f"For {drawn[0]:,} × {drawn[1]:,} weights on the {gpu}, read once for all tokens, {last} tokens "
    answer += f"take {us[last] / us.iloc[0]:.1f} times as long as {us.index[0]}"
    if picked[0] != picked[1]:
        answer += f", with the kernel that suits each (rungs {picked[1]} and {picked[0]})"
    if len(gain):
        answer += f". There INT4 is {_fast(gain.iloc[0])} as FP16 at {gain.index[0]} token and "
        answer += f"{_fast(gain.iloc[-1])} at {gain.index[-1]}"
    answer += f". {stops_in_short(gains_of(here, shapes, batches))}"
    able = (
        "predict up to how many tokens a product stays memory-bound",
        "share a tile of weights between tokens, and copy the next one meanwhile",
        "say at which batch a quantised product stops paying",
    )
    title = f"Time of a {drawn[0]:,} × {drawn[1]:,} product"
    fig, ax = plot.figure("tokens that share the weights", "µs", title, xlog=True, height=2.6)
    for label, rows in (("INT4, ours", ours), ("FP16, cuBLAS", theirs.sort_values("batch"))):
        if len(rows):
            plot.series(ax, rows["batch"], *plot.band(rows, "median_us"), label=label)
    ax.set_xticks(batches, _apart(batches))
    plot.label_ends(ax)
    said = f"{title} on {gpu}, {plot.dates(pd.concat([ours, theirs]))}: medians, and the middle half of the "
    said += f"samples shaded. {listed(_went(ours, 'INT4') + _went(theirs, 'FP16'))}."
    return answer, able, (fig, said)


def _apart(ticks: list[int]) -> list[str]:
    """Labels of a logarithmic axis: none where the next tick is so near that both would touch."""
    nexts = [*ticks[1:], 2 * ticks[-1]]
    return [str(tick) if after > 1.2 * tick else "" for tick, after in zip(ticks, nexts, strict=True)]


def _fast(ratio: float) -> str:
    """A ratio of speeds as the charts of this page give it: "3.35 times as fast"."""
    return f"{ratio:.2f} times as fast" if ratio > 1.02 else display.speed(ratio)


def _went(rows: Rows, name: str) -> list[str]:
    """From where to where the time of a series went, in words; nothing without rows."""
    us = rows.set_index("batch")["median_us"].dropna().sort_index()
    return [f"{name} goes from {us.iloc[0]:.1f} to {us.iloc[-1]:.1f} µs"] if len(us) else []


def run_facts(
    gpu: str, here: Lab, read_roof: float, peak: float, shapes: list[Any], batches: list[Any]
) -> None:
    """The facts of the run, in one line."""
    more = {
        "torch, CUDA": f"{here.run_of('int4')['torch']}, {here.run_of('int4')['cuda']}",
        "Read roof": f"{read_roof:,.0f} GB/s",
        "Tensor peak, measured": f"{peak:,.0f} TFLOP/s in FP16" if peak else "not recorded",
        "Shapes": ", ".join(f"{n:,} × {k:,}" for n, k in shapes),
        "Batches": f"{len(batches)}, from {batches[0]} to {batches[-1]}",
    }
    named_facts(here, gpu, "int4", more)


def bounds_by_batch(
    read_roof: float, peak: float | None, batches: list[Any], drawn: Any, gpu: str
) -> tuple[list[Any], Rows]:
    """Draw the bounds of INT4 and FP16 by batch, and the operations alone; the batches of the table, folded,
    and its rows.
    """
    title = f"The bounds of {drawn[0]:,} × {drawn[1]:,} by the number of tokens"
    fig, ax = plot.figure("tokens", "µs at least", title, xlog=True, ylog=True, height=2.9)
    tokens = sorted({*batches, *(2**power for power in range(batches[-1].bit_length(), 10))})
    if peak:
        math = [roofline.gemm_flops(batch, *drawn) / peak / 1e6 for batch in tokens]
        ax.plot(tokens, math, ":", color="#555555", linewidth=1.4, zorder=2)
        _beside_start(ax, tokens[0], math[0], "operations, either format", "#555555", (26, 0))
    for label, format in (("INT4", "int4_g128"), ("FP16", "fp16")):
        meets = round(crossing(format, read_roof, peak)) if peak else 0
        inside = tokens[0] < meets < tokens[-1]
        along = sorted({*tokens, meets}) if inside else tokens  # the crossing is a corner of the line
        least = [bound_us(*drawn, batch, format, read_roof, peak) for batch in along]
        line = plot.series(ax, along, least, label=f"{label} bound")
        line.set_marker("")
        _beside_start(ax, tokens[0], least[0], f"{label} bound", line.get_color(), (0, 6))
        if inside:
            at = (meets, bound_us(*drawn, meets, format, read_roof, peak))
            ax.plot(*at, "o", color=plot.ROOF_COLOUR, markersize=6, zorder=5)
            text = f"{meets} tokens"
            ax.annotate(text, at, (-3, 6), textcoords="offset points", ha="right", fontweight="bold")
    ticks = [batch for batch in tokens if batch.bit_count() == 1]
    ax.set_xticks(ticks, [str(batch) for batch in ticks])
    plot.round_ticks(ax)
    said = f"{title}, by the roofs measured on {gpu}: flat where the bytes take longer, rising where the "
    plot.show(fig, said + "operations do. A dot marks the number of tokens at which both are equal.")
    names = {"batch": "Batch", "math": "Operations (µs)"}
    names |= {"ours": "INT4 (µs)", "fp16": "FP16 (µs)", "gain": "Ratio of bounds"}
    some = [b for b in batches if b.bit_count() == 1]  # powers of two
    table = pd.DataFrame({"batch": some})
    table["math"] = [roofline.gemm_flops(b, *drawn) / peak / 1e6 if peak else None for b in some]
    for name, format in (("ours", "int4_g128"), ("fp16", "fp16")):
        table[name] = [bound_us(*drawn, b, format, read_roof, peak) for b in some]
    table["gain"] = table["fp16"] / table["ours"]
    forms = dict.fromkeys(("math", "ours", "fp16"), "{:,.1f}") | {"gain": "{:.2f}"}
    display.table(table, names, forms, "The same in numbers", folded=True)
    return some, table


def _beside_start(ax: Any, x: float, y: float, label: str, colour: str, off: tuple[int, int]) -> None:
    """Name a line at its first point, where lines that end together are still apart."""
    ax.annotate(label, (x, y), off, textcoords="offset points", fontsize=8.5, color=colour, fontweight="bold")


def free_tokens(table: Rows, some: list[Any]) -> None:
    """Say up to how many tokens the bound hardly grows."""
    free, near = free_up_to(table)
    text = f"**By the INT4 bound, up to {free} tokens take within {near:.0%} of the time of one.**"
    grown = table["ours"].iloc[-1] / table["ours"].iloc[0]
    text += f" At {some[-1]} it is {times(grown)} times that of one." if free < some[-1] else ""
    display.say(text)


def affordable(sms: int, ghz: float, read_roof: float) -> None:
    """Say how many instructions a weight may cost on CUDA cores, and for how many tokens that is too few."""
    afford = sms * 4 * 32 * ghz / (read_roof / WEIGHT_BYTES["int4_g128"])
    text = f"While memory delivers a weight, the CUDA cores can execute {afford:.1f} instructions, as "
    text += "[part 04b](04b_ladder.ipynb) derives. Unpacking takes some of them, and each token takes a "
    text += f"multiply-add: from {int(afford) + 1} tokens on these alone exceed that budget. "
    text += "**What does a further token cost in fact?**"
    display.say(text)


def read_once(here: Lab, rungs: Any, gpu: str, batches: list[Any], read_roof: float, peak: Any) -> Rows:
    """Say whether the shape fits into L2 and what its times show; draw rungs 5 and 6 and the dispatcher's
    choice by the number of tokens, with the bound; times by tokens and rung.
    """
    shape = study.SHAPES[0]
    weights, cache = shape[0] * shape[1] * WEIGHT_BYTES["int4_g128"], int(here.run["l2_bytes"])
    text = f"Both were timed on {shape[0]:,} × {shape[1]:,} weights, {weights / 1e6:.1f} MB. They "
    if weights < cache:
        text += f"fit into L2 ({plot.size_text(cache)}), from which rung 5 can read them again. So the chart "
        text += "shows what a token costs in instructions, not what reading once saves from DRAM."
    else:
        text += f"do not fit into L2 ({plot.size_text(cache)}), so rung 5 reads them from DRAM again."
    display.say(text)
    single = [case for case in study.rungs(*shape) if case.impl == rungs[4].name]
    again = here.measure("int4", [*single, *study.reused(*shape)])
    wide = again.pivot(index="batch", columns="impl", values="median_us")
    picks = here.measure("int4", [study.chosen(*shape, batch, here.sized) for batch in batches])
    title = f"Time of one product, {shape[0]:,} × {shape[1]:,}"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=3)
    named = ((rungs[4], "rung 5: read for each"), (rungs[5], "rung 6: read once"))
    for rung, label in named:
        side = again[again["impl"] == rung.name].sort_values("batch")
        if len(side):
            plot.series(ax, side["batch"], *plot.band(side, "median_us"), label=label)
    if len(picks):
        plot.series(ax, picks["batch"], *plot.band(picks, "median_us"), label="tensor cores")
    ticks = sorted({*again["batch"], *picks["batch"]})
    least = [bound_us(*shape, tick, "int4_g128", read_roof, peak) for tick in ticks]
    plot.series(ax, ticks, least, label="INT4 bound", colour=plot.ROOF_COLOUR)
    ax.set_xticks(ticks, _apart(ticks))
    plot.round_ticks(ax)
    plot.label_ends(ax)
    said = f"{title} on {gpu}, {plot.dates(pd.concat([again, picks]))}. Rungs 5 and 6 multiply on CUDA "
    said += "cores; the line of tensor cores is what the rest of this page builds. Rung 6 was timed for "
    some = sorted(again.loc[again["impl"] == rungs[5].name, "batch"])
    plot.show(fig, f"{said}{listed(list(map(str, some)))} tokens, built with TOKENS = that number.")
    wide["ours"] = picks.set_index("batch")["median_us"].reindex(wide.index)
    wide["least"] = [bound_us(*shape, batch, "int4_g128", read_roof, peak) for batch in wide.index]
    return wide


def read_once_explained(wide: Rows, here: Lab, rungs: Any, sms: int, ghz: float) -> None:
    """Say what reading and unpacking the weights once brings on CUDA cores, and what a further token costs
    beside its multiply-adds.
    """
    each, once = (wide[rungs[at].name] for at in (4, 5))
    both = wide[each.notna() & once.notna()].index
    if both.empty:
        return
    last, us, gpu = both[-1], once[both], here.run["gpu"]
    text = f"**At {last} tokens reading once is {display.speed(each[last] / once[last])} on the {gpu}"
    ours = wide["ours"].get(last)
    text += f", and tensor cores are {display.speed(once[last] / ours)} again" if ours == ours else ""
    text += ".** "
    n, k = study.SHAPES[0]
    if len(us) > 1:
        more, adds = a_further_token(wide, rungs), n * k / (sms * 128 * ghz * 1e3)
        text += f"A further token's multiply-adds alone would take {adds:.2f} µs of all "
        text += f"CUDA cores; from {us.index[0]} to {last} tokens rung 6 takes "
        text += f"{more:.2f} µs more for each. " if more > 0 else "no longer. "
        if more > 1.5 * adds:
            text += f"**So a token is not free on CUDA cores, and costs {times(more / adds)} times its "
            text += "multiply-adds.** What else it costs was not recorded."
        elif more > 0.5 * adds:
            text += "**So a token costs about its multiply-adds.**"
        else:
            text += (
                "**So a token costs less than its multiply-adds would**, and they do not limit rung 6 here."
            )
    display.say(text.strip())


def a_further_token(wide: Rows, rungs: Any) -> float:
    """Microseconds that a token more costs rung 6, from its fewest to its most tokens."""
    us = wide[rungs[5].name].dropna()
    return (us.iloc[-1] - us.iloc[0]) / (us.index[-1] - us.index[0]) if len(us) > 1 else float("nan")


def gated_points(shapes: list[Any], batches: list[Any], here: Lab, rungs: Any) -> tuple[Rows, dict[str, Any]]:
    """Say how near the points come to the allowed error; the rows and the names of contestants."""
    cases = [c for n, k in shapes for c in study.batches(n, k, batches, here.sized)]
    rows = here.measure("int4", cases)
    rows["who"] = rows["impl"].where(rows["kind"] != "own", "ours")
    titles = {"torch.matmul": "FP16 cuBLAS", study.TINYGEMM: "tinygemm", study.TWO_OP: "two-op"}
    rows["who"] = rows["who"].replace(titles)
    rows["shape"] = [f"{n:,} × {k:,}" for n, k in zip(rows["n"], rows["k"], strict=True)]
    rows["of"] = rows["error"] / rows["error_budget"]
    judged = rows.groupby("who", sort=False).agg(points=("of", "size"), most=("of", "max"))
    over = judged.index[~(judged["most"] <= 1)]
    text = f"**Over the allowed error: {', '.join(over)}.** " if len(over) else ""
    absent = sorted({c.impl for c in cases} - set(rows["impl"]) - {r.name for r in rungs})
    text += f"Not installed on that machine: {', '.join(absent)}." if absent else ""
    if text:
        display.say(text.strip())
    lines = [f"{c.Index}: {counted(c.points, 'output')}, at most {c.most:.2f}" for c in judged.itertuples()]
    display.fold_parts("How exact each has to be, and is", [_ALLOWED, "\n".join(f"- {one}" for one in lines)])
    return rows, titles


def times_by_batch(
    drawn: Any, rows: Rows, some: list[Any], gpu: str, read_roof: float, peak: float | None
) -> Rows:
    """Draw the time of each contestant by batch above the bound of INT4; the rows drawn."""
    title = f"Time of a {drawn[0]:,} × {drawn[1]:,} product, and its bound"
    one = rows[(rows["n"] == drawn[0]) & (rows["k"] == drawn[1])]
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=4)
    for who in ("ours", "FP16 cuBLAS", "humming", "tinygemm", "two-op"):
        side = one[one["who"] == who]
        if len(side):
            plot.series(ax, side["batch"], *plot.band(side, "median_us"), label=who)
    batches = sorted(set(one["batch"]))
    least = [bound_us(*drawn, batch, "int4_g128", read_roof, peak) for batch in batches]
    plot.series(ax, batches, least, label="INT4 bound", colour=plot.ROOF_COLOUR)
    ax.set_xticks(some, some)
    plot.round_ticks(ax)
    plot.label_ends(ax)
    ours = one[one["who"] == "ours"].set_index("batch")["median_us"]
    over = (ours / pd.Series(least, index=batches)).dropna()
    said = f"{title} on {gpu}, {plot.dates(one)}."
    if len(over):
        said += f" Ours takes {over.min():.2f} to {over.max():.2f} times the bound."
    plot.show(fig, said)
    return one


def against_peers(times: Rows, shapes: list[Any], some: list[Any]) -> None:
    """Show how many times as fast as the fastest peer ours is, and say at how many points it is ahead."""
    peers = [c for c in times if c not in ("ours", "FP16 cuBLAS", "two-op")]
    ahead = (times[peers].min(axis=1) / times["ours"]).dropna()
    if ahead.empty:
        return
    table = pd.DataFrame({"shape": [f"{n:,} × {k:,}" for n, k in shapes]})
    for b in some:
        each = [ahead.get((n, k, b)) for n, k in shapes]
        table[f"b{b}"] = ["no peer" if one is None else f"{one:.2f}" for one in each]
    names = {"shape": "n × k"} | {f"b{b}": counted(b, "token") for b in some}
    display.table(
        table,
        names,
        {},
        "Ours, how many times as fast as the fastest peer; numbers of tokens that are powers of two",
    )
    seen = {name: n for name in peers if (n := times[name].count())}
    few = {name: n for name, n in seen.items() if n < len(ahead)}
    text = f"**Ours is faster than {listed([name for name in seen if name not in few]) or 'any peer'} at "
    text += f"{(ahead > 1).sum()} of {len(ahead)} points**, at {ahead.min():.2f} to {ahead.max():.2f} times "
    first = times.loc[ahead.index, peers].idxmin(axis=1).value_counts()
    text += f"the speed of the fastest of them ({listed(f'{who} at {at}' for who, at in first.items())})."
    for name, n in few.items():
        slow = (times[name] / times["ours"]).dropna()
        text += f" {name}, timed at {n} points, takes {slow.min():.2g} to {slow.max():.2g} times as long."
    display.say(text)


def states_compared(here: Lab, gpu: str) -> None:
    """Show, folded, the duel with the fastest peer, rested and sustained."""
    both = states.duels(display.power_rows(here, "int4"), "int4")
    title = "Speed of ours over the fastest recorded peer's, in a burst and sustained (part 00b)"
    title += f", {gpu}; timed in runs of its own, so not the times above"
    display.table(both, states.DUEL, states.DUEL_FORMATS, title, folded=True)


def takeaway(here: Lab, batches: list[Any], shapes: list[Any], times: Rows, table: Rows, drawn: Any) -> None:
    """What to take away, computed."""
    free, ours = free_up_to(table)[0], times["ours"].loc[drawn]
    text = (
        "- Tokens share one reading of the weights. By the bound they are nearly free until the arithmetic "
    )
    text += "takes longer than the bytes"
    known = {"dram_read", "fp16_tensor"} <= set(here.roof)
    if known:
        read, peak = (here.roof[name].value for name in ("dram_read", "fp16_tensor"))
        text += f", from {crossing('int4_g128', read, peak):.0f} tokens on"
    if {1, free} <= set(ours.dropna().index) and free > 1:
        text += f"; measured, {free} take {ours[free] / ours[1]:.2f} times as long as one at "
        text += f"{drawn[0]:,} × {drawn[1]:,}"
    text += ".\n"
    text += "- By their instructions CUDA cores multiply only a few tokens in that time. More need tensor "
    text += "cores, an x that warps share, and copies that run ahead.\n"
    ahead = stops(gains_of(here, shapes, batches), no_gain_beyond(here))
    text += f"- {here.run['gpu']}: {ahead[0].lower()}{ahead[1:]}\n" if ahead else ""
    slow = (times["two-op"] / times["FP16 cuBLAS"]).dropna()
    text += "- Unpacking first is not worth it: t" if slow.min() > 1 else "- T"
    text += f"he two-op product takes {slow.min():.1f} to {slow.max():.1f} times as long as FP16, up to "
    text += f"{batches[-1]} tokens."
    display.say(text)


def explore(read_roof: float, peak: float | None, rows: Rows, gpu: str, here: Lab, drawn: Any) -> Any:
    """The explorer of INT4 and FP16 products, by contestant, shape and batch."""

    def bound(case):
        format = "fp16" if case.impl == "torch.matmul" else "int4_g128"
        return bound_us(case.n, case.k, case.batch, format, read_roof, peak)

    kept = rows[rows["who"].isin(("ours", "humming", "FP16 cuBLAS", "tinygemm"))]
    kept = kept.assign(predicted_us=[bound(case) for case in kept.itertuples()])
    return explorer.Explorer(
        "int4-batches",
        kept,
        x="batch",
        y="median_us",
        foretold="bound {} µs (measured roofs)",
        controls={"who": "Contestant", "shape": "n × k"},
        title=f"INT4 and FP16 products on {gpu}",
        bound=bound,
        measure=explorer.measurer(here),
        ylog=True,
        start={"who": "ours", "shape": f"{drawn[0]:,} × {drawn[1]:,}"},
    )
