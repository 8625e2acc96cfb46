"""What lesson 04d's page shows: a published experiment, repeated by other clocks and with a cold cache."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Opening, Rows, named_facts
from rooflab.pages.lesson_04d_clocks import clocks_drawn as clocks_drawn
from rooflab.pages.lesson_04d_clocks import exercise_in_the_record as exercise_in_the_record
from rooflab.pages.lesson_04d_laptop import (
    FORMS,
    LAPTOP,
    NAMES,
    PROFILED,
    kernel_or_launches,
    left_open,
)
from rooflab.pages.lesson_04d_laptop import beside_the_kernels as beside_the_kernels
from rooflab.pages.lesson_04d_laptop import laptop_gains as laptop_gains
from rooflab.pages.lesson_04d_laptop import published_by_batch as published_by_batch
from rooflab.pages.lesson_04d_laptop import without_launches as without_launches
from rooflab.pages.lesson_04d_memory import slow_and_fast_memory as slow_and_fast_memory
from rooflab.records.store import Store
from rooflab.studies import int4 as study
from rooflab.view import display, explorer, plot
from rooflab.words import counted

# The gains that the page draws by batch: whose, of what, by which clock and cache.
_PUBLISHED = "source: loop, event"
_EVENT = "here: loop, event, warm"
_LOOP = "here: loop, graph, cold"
_ONCE = "here: read once, graph, cold"


def opening(here: Lab, theirs: Rows, kernels: Rows, drawn: Any) -> Opening:
    """The first screen: the loop's gain over FP16 by tokens, as published, by the source's profile of one
    token, and here without launches.
    """
    name, gpu = f"{drawn[0]:,} × {drawn[1]:,}", here.run["gpu"]
    sizes = sorted({c.batch for c in here.cases("int4") if c.options == "loop=1"})
    cases = [c for c in study.published(sizes) if c in here.cases("int4") and (c.n, c.k) == tuple(drawn)]
    rows = here.measure("int4", cases).query("clock == 'graph' and cache == 'cold'")
    who = rows["impl"].map({"1_warp_row": "fused", "torch.matmul": "fp16"})
    wide = rows.assign(who=who).dropna(subset="who").pivot_table("median_us", "batch", "who")
    alone = (wide["fp16"] / wide["fused"]).dropna()
    title = f"The loop's gain over FP16, {name}"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True, ylog=True, height=3.2)
    published = theirs[theirs["shape"] == name].set_index("batch")["gain"].dropna()
    answer, said = "The published clock also times the launches. ", f"{title}. "
    short = str(gpu).removeprefix("NVIDIA ")
    if len(published):
        plot.series(ax, published.index, published, label=f"{LAPTOP}, event clock")
    if len(published) and name == PROFILED:
        ratio = float(kernels["fp16"] / kernels["fused"])
        line = plot.series(
            ax, published.index, ratio / published.index.to_numpy(), label=f"{LAPTOP}, profiler, computed"
        )
        line.set_markevery([0])  # one token was profiled
        answer = f"{kernel_or_launches(theirs, kernels)} "
        said += "The event clock counts launches, too. The profiler timed one token, from DRAM (the marker); "
        said += "its line takes each further token to cost the loop as much, and FP16 nothing. "
    plot.series(ax, alone.index, alone, label=f"{short}, graph clock, cold")
    plot.roof_line(ax, 1, "as fast as FP16", where="right")
    ticks = sorted({*alone.index, *published.index})
    ax.set_xticks(ticks, ticks)
    plot.round_ticks(ax)
    plot.label_ends(ax)
    if len(alone):
        first = alone.iloc[0]
        answer += f"On the {gpu}, by a clock without launches and with a cold cache, the loop is "
        answer += f"{display.speed(first)} as FP16" if first > 1 else f"at {first:.2f} of FP16's speed"
        answer += f" for {counted(int(alone.index[0]), 'token')}"
        answer += f", and at {alone.iloc[-1]:.2f} of it for {alone.index[-1]}" * (len(alone) > 1) + "."
    able = (
        "say what an event clock, a graph clock, a warm and a cold cache each measure",
        "take a speed-up apart into kernels, launches and cache, and say what a record leaves open",
    )
    return answer, able, (fig, f"{said}The graph clock on {gpu}, {plot.dates(rows)}, leaves launches out.")


def run_facts(gpu: str, here: Lab, laptop: Store, shapes: Any) -> None:
    """The facts of the run, in one line."""
    more = {
        "L2": plot.size_text(int(here.run["l2_bytes"])),
        "The source's GPU": laptop.runs()["gpu"].iloc[0],
        "Shapes": ", ".join(f"{n:,} × {k:,}" for n, k in shapes),
    }
    named_facts(here, gpu, "int4", more)


def repeated_here(here: Lab, drawn: Any) -> tuple[list[Any], list[Any], Rows, Rows, Rows]:
    """Repeat the experiment here: the cases, batches, rows, times by shape, clock and batch, and those of the
    drawn shape.
    """
    recorded = here.cases("int4")
    sizes = sorted({c.batch for c in recorded if c.options == "loop=1"})
    cases = [c for c in study.published(sizes) if c in recorded]
    rows = here.measure("int4", cases)
    short = {"1_warp_row": "fused", "torch.matmul": "fp16", study.TWO_OP_TORCH: "two_op"}
    rows["who"] = rows["impl"].map(short)
    rows["shape"] = [f"{n:,} × {k:,}" for n, k in zip(rows["n"], rows["k"], strict=True)]
    rows["how"] = rows["clock"] + ", " + rows["cache"]
    keys = ["shape", "how", "batch"]
    wide = rows.pivot(index=keys, columns="who", values="median_us")
    wide = wide.reindex(columns=["two_op", "fused", "fp16"])
    wide["gain"] = wide["fp16"] / wide["fused"]
    return recorded, sizes, rows, wide, wide.loc[f"{drawn[0]:,} × {drawn[1]:,}"]


def _cost(us: float) -> str:
    """A time that more tokens cost, or that none was measured: one that is lost in noise may be below 0."""
    return f"{us:.0f} µs" if us >= 0.5 else "nothing measurable"


def cost_of_a_token(one_shape: Rows, name: str, gpu: str, event: int, graph: int) -> None:
    """Show the source's table as measured here, and say what its first and a further token cost by the event
    clock, `event` us, and by the graph clock, `graph` us.
    """
    same = one_shape.loc["event, warm"].reset_index()
    display.table(same, NAMES, FORMS, f"The same table here: {name}, {gpu}, event clock, warm")
    first, alone = one_shape.loc["event, warm", 1], one_shape.loc["graph, warm", 1]
    text = f"A further token costs {_cost(event)} by the event clock, and {_cost(graph)} by the graph clock."
    if event > 1.2 * graph and first["fused"] > event + graph:
        text = (
            "**This clock compares two launchers**: our Python launches the loop, and cuBLAS from C++ "
            "launches "
        )
        text += (
            f"FP16, so {first['gain']:.2f} is not the kernel's gain. Of the {first['fused']:.0f} µs for one "
        )
        text += f"token the loop's kernel takes {alone['fused']:.0f} by the graph clock; the other "
        text += f"{first['fused'] - alone['fused']:.0f} pass beside it. Each further token costs "
        text += f"{event:.0f} µs by "
        text += f"the event clock, on average, and {graph:.0f} by the graph clock."
    display.say(text)


def by_clock_and_cache(one_shape: Rows, name: str, gpu: str) -> list[Any]:
    """Show the gain for one token by each clock and cache; their order."""
    order = ["event, warm", "event, cold", "graph, warm", "graph, cold"]
    gain = one_shape["gain"].xs(1, level="batch")
    clocks = {"event": "Event: with launches", "graph": "Graph: kernels alone"}
    table = pd.DataFrame({"clock": list(clocks.values())})
    for cache in ("warm", "cold"):
        table[cache] = [gain.get(f"{clock}, {cache}") for clock in clocks]
    names = {"clock": "Clock", "warm": "Weights cached", "cold": "Weights in DRAM"}
    title = f"Gain over FP16 for one token by clock and cache, {name} on {gpu}"
    display.table(table, names, dict.fromkeys(("warm", "cold"), "{:.2f}"), title)
    parts = one_shape.reindex([(how, batch) for batch in (1, 2) for how in order])
    names = {"batch": "Batch", "how": "Clock, cache", "fused": "Loop (µs)"}
    names |= {"fp16": "FP16 (µs)", "gain": "Gain over FP16"}
    forms = {"fused": "{:.1f}", "fp16": "{:.1f}", "gain": "{:.2f}"}
    display.table(parts.reset_index(), names, forms, "The times, of one token and two", folded=True)
    return order


def clock_and_cache_factors(one_shape: Rows, drawn: Any, gpu: str, here: Lab) -> None:
    """Say how clock and cache change the gain together, and what is left of it without both."""
    at = one_shape["gain"].xs(1, level="batch")
    warm, cold = one_shape.loc["graph, warm", 1], one_shape.loc["graph, cold", 1]
    shares = warm["fp16"] / cold["fp16"], warm["fused"] / cold["fused"]
    text = f"**By the graph clock FP16 takes {shares[0]:.0%} of its cold time with weights in the cache, "
    text += "the loop "
    text += f"{shares[1]:.0%}"
    text += ": the kernel that moves more bytes gains more.**" if shares[0] < shares[1] else ".**"
    if at["graph, cold"] < 1:
        text += f" From DRAM and without launches a gain of {at['graph, cold']:.2f} is left."
    by_event = one_shape["fused"].xs(1, level="batch").reindex(["event, warm", "event, cold"])
    if by_event.notna().all():
        text += f" The event clock's {at['event, warm']:.2f} and {at['event, cold']:.2f} are not compared: "
        text += "how far "
        text += "its times differ from run to run was not measured"
        if by_event.iloc[1] < by_event.iloc[0]:
            text += f" (the loop took {by_event.iloc[0]:.1f} µs warm and {by_event.iloc[1]:.1f} cold, "
            text += "though a cache "
            text += "cannot make it slower)"
        text += "."
    display.say(text)


def gains_by_batch(
    sizes: list[Any],
    drawn: Any,
    here: Lab,
    recorded: list[Any],
    published: Rows,
    one_shape: Rows,
    name: str,
    gpu: str,
    rows: Rows,
) -> tuple[Rows, dict[str, Any]]:
    """Draw the gain over FP16 by batch, as published and here; the published gains and all of them by
    name.
    """
    tiled = [study.chosen(*drawn, batch, here.sized) for batch in sizes]
    tiled = [c for c in tiled if c in recorded]
    ours = here.measure("int4", tiled).set_index("batch")["median_us"]
    known = published.set_index("batch")["gain"].dropna()
    gains = {_PUBLISHED: known} if len(known) else {}
    gains[_EVENT] = one_shape.loc["event, warm"]["gain"]
    gains[_LOOP] = one_shape.loc["graph, cold"]["gain"]
    if len(ours):
        gains[_ONCE] = (one_shape.loc["graph, cold"]["fp16"] / ours).dropna()
    title = f"Gain over FP16, {name}"
    fig, ax = plot.figure("batch", "times as fast", title, xlog=True, ylog=True, height=4)
    for label, side in gains.items():
        once = label == _ONCE
        plot.series(ax, side.index, side, label=label, colour=plot.COLOURS[5] if once else "")
    plot.roof_line(ax, 1, "as fast as FP16", where="right")
    ax.set_xticks([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32])
    plot.round_ticks(ax)
    plot.label_ends(ax)
    ends = [f"{label} {side.iloc[0]:.2f} to {side.iloc[-1]:.2f}" for label, side in gains.items()]
    about = f"{title}; here is {gpu}, {plot.dates(rows)}; from batch {sizes[0]} to {sizes[-1]}"
    plot.show(fig, f"{about}: {'; '.join(ends)}.")
    return known, gains


def what_loses(gains: dict[str, Any], here: Lab, drawn: Any) -> None:
    """Say from which number of tokens on each is slower than FP16, by which clock, and what of it the loop
    makes.
    """

    def below(key: str) -> str:
        late = gains[key][gains[key] < 1]
        return f"from {counted(int(late.index[0]), 'token')} on" if len(late) else "nowhere"

    once, loop, text = gains.get(_ONCE), gains[_LOOP], _not_int4(gains, here)
    ours = below(_EVENT), below(_LOOP)
    text += f"The loop is slower than FP16 {ours[0]} here by "
    text += "either clock" if ours[0] == ours[1] else f"the event clock and {ours[1]} by the graph clock"
    if _PUBLISHED in gains:
        text += f", and {below(_PUBLISHED)} by the source's event clock"
    text += ". "
    if once is not None and {1} <= set(once.index) & set(loop.index):
        text += (
            f"For one token both kernels here read the weights once: from {loop[1]:.2f} to {once[1]:.2f} is "
        )
        text += "what 04b's kernels bring. "
    cache, moved = int(here.run["l2_bytes"]), drawn[0] * drawn[1] * WEIGHT_BYTES["int4_g128"]
    if moved < cache:
        text += f"Only the first token of the cold loop must read DRAM: its {moved / 1e6:.1f} MB fit into L2 "
        text += f"({plot.size_text(cache)}) for the others."
    display.say(text.strip())


def _not_int4(gains: dict[str, Any], here: Lab) -> str:
    """In words, whether INT4 still wins at the most tokens where its weights are read once."""
    once = gains.get(_ONCE)
    if once is None or not len(once):
        return ""
    won = once.iloc[-1] > 1
    text = "**With more tokens the loop loses, not INT4**: r" if won else "R"
    text += f"ead once, INT4 is {'still ' if won else ''}{display.speed(once.iloc[-1])}"
    return f"{text}{' as FP16' * bool(won)} at batch {once.index[-1]} on the {here.run['gpu']}. "


def over_two_op(theirs: Rows, wide: Rows, laptop: Store, shapes: Any, order: list[Any]) -> None:
    """Show the gain over the two-op product in PyTorch, as published and here."""
    literal = theirs[theirs["batch"] == 1].set_index("shape")
    mine = wide.xs(1, level="batch").swaplevel()
    bench = laptop.read("int4").query("clock == 'event'").set_index("impl")["median_us"]
    table = pd.DataFrame({"way": ["published as the headline", "published in the tables above"]})
    for n, k in shapes:
        label = f"{n:,} × {k:,}"
        headline = bench["two_op"] / bench["fused"] if (n, k) == shapes[0] else None
        table[label] = [headline, literal.loc[label, "two_op"] / literal.loc[label, "fused"]]
    for how in order:
        side = mine.loc[how]
        table.loc[len(table)] = [f"here, {how}", *(side["two_op"] / side["fused"])[table.columns[1:]]]
    forms, main = dict.fromkeys(table.columns[1:], "{:.1f}"), table[table.columns[1]]
    if len(main) > 2:
        us = literal.loc[table.columns[1]]
        text = (
            f"**At {table.columns[1]} the loop is {main[2:].min():.1f} to {main[2:].max():.1f} times as fast "
        )
        text += (
            f"as two-op in PyTorch here, by clock and cache.** The headline is {main[0]:.1f}; the source's "
        )
        text += f"table above, of another run, gives {main[1]:.1f} "
        text += f"({us['two_op']:,.0f} ÷ {us['fused']:,.0f} µs)."
        display.say(text)
    names = {c: c for c in table} | {"way": "Clock, cache"}
    display.table(table, names, forms, "Two-op in PyTorch ÷ loop, by clock and cache", folded=True)


def what_is_open(theirs: Rows, kernels: Rows) -> None:
    """Say what the source's record leaves open, and why."""
    display.say("\n".join(f"- {part}" for part in left_open(theirs, kernels)))


def takeaway(gains: dict[str, Any], here: Lab, name: str, theirs: Rows, kernels: Rows) -> None:
    """What to take away, computed."""
    parts = [_not_int4(gains, here).strip()]
    if name == PROFILED:
        parts.append(f"{LAPTOP}: b{kernel_or_launches(theirs, kernels)[1:]}")
        there, alone = kernels["fp16"] / kernels["fused"], gains[_LOOP]
        if 1 in alone.index:
            parts.append(
                f"The same kernel for one token, without launches and from DRAM, has {there:.2f} times "
                f"FP16's speed on the {LAPTOP} and {alone[1]:.2f} times on the {here.run['gpu']}."
            )
    parts.append("A warm cache changes a gain. A decoder with more weights than the cache holds has none.")
    parts.append("**With a speed-up, name the clock, the cache and the baseline.**")
    display.say("\n".join(f"- {part}" for part in parts if part))


def explore(rows: Rows, gpu: str, here: Lab, name: str) -> Any:
    """The explorer of the published experiment, by contestant, clock and shape."""
    called = {"fused": "the loop", "fp16": "FP16", "two_op": "two-op in PyTorch"}
    kept = rows.assign(called=rows["who"].map(called))
    return explorer.Explorer(
        "published-experiment",
        kept,
        x="batch",
        y="median_us",
        controls={"called": "Contestant", "how": "Clock, cache", "shape": "n × k"},
        title=f"The published experiment on {gpu}",
        measure=explorer.measurer(here),
        ylog=True,
        start={"called": "the loop", "how": "event, warm", "shape": name},
    )
