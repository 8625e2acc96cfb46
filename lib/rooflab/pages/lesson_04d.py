"""What lesson 04d's page shows: a published experiment, repeated by other clocks and with a cold cache."""

from __future__ import annotations

from typing import Any

from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Opening, Rows, named_facts
from rooflab.pages.lesson_04d_clocks import clock_adds
from rooflab.pages.lesson_04d_clocks import clocks_drawn as clocks_drawn
from rooflab.pages.lesson_04d_clocks import drawing_target as drawing_target
from rooflab.pages.lesson_04d_laptop import FORMS, LAPTOP, NAMES, PROFILED
from rooflab.pages.lesson_04d_laptop import beside_the_kernels as beside_the_kernels
from rooflab.pages.lesson_04d_laptop import noise as noise
from rooflab.pages.lesson_04d_laptop import published_by_batch as published_by_batch
from rooflab.pages.lesson_04d_limits import executed
from rooflab.pages.lesson_04d_limits import least_times as least_times
from rooflab.records.store import Store
from rooflab.studies import int4 as study
from rooflab.view import display, explorer, plot
from rooflab.words import counted

# The gains over FP16 by batch that the page compares: of what, by which clock and cache.
EVENT = "loop, with launches"  # by the event clock, warm
WARM = "loop, cached weights"  # by the graph clock, warm
LOOP = "loop, kernels alone"  # by the graph clock, cold, and so is the next
ONCE = "read once, kernels alone"


def repeated_here(here: Lab, drawn: Any) -> tuple[Rows, Rows]:
    """Repeat the experiment here: its rows, and the drawn shape's times and gain by clock and batch, with
    `once`, the time of the kernel that reads the weights once.
    """
    recorded = here.cases("int4")
    sizes = sorted({c.batch for c in recorded if c.options == "loop=1"})
    rows = here.measure("int4", [c for c in study.published(sizes) if c in recorded])
    short = {"1_warp_row": "fused", "torch.matmul": "fp16", study.TWO_OP_TORCH: "two_op"}
    rows["who"] = rows["impl"].map(short)
    rows["shape"] = [f"{n:,} × {k:,}" for n, k in zip(rows["n"], rows["k"], strict=True)]
    rows["how"] = rows["clock"] + ", " + rows["cache"]
    wide = rows[rows["shape"] == f"{drawn[0]:,} × {drawn[1]:,}"]
    wide = wide.pivot(index=["how", "batch"], columns="who", values="median_us")
    wide = wide.reindex(columns=["two_op", "fused", "fp16"])
    wide["gain"] = wide["fp16"] / wide["fused"]
    tiled = [study.chosen(*drawn, batch, here.sized) for batch in sizes]
    tiled = [c for c in tiled if c in recorded]
    if tiled:
        ours = here.measure("int4", tiled).set_index("batch")["median_us"]
        wide.loc["graph, cold", "once"] = ours.reindex(wide.loc["graph, cold"].index).to_numpy()
    else:
        wide["once"] = float("nan")
    return rows, wide


def gains_over_fp16(one_shape: Rows) -> dict[str, Any]:
    """The gains over FP16 here by batch, by name; a series without a value where nothing was timed."""
    cold, gain = one_shape.loc["graph, cold"], one_shape["gain"]
    warm = gain[gain.index.get_level_values("how") == "graph, warm"].droplevel("how")
    gains = {EVENT: one_shape.loc["event, warm"]["gain"], WARM: warm, LOOP: cold["gain"]}
    gains[ONCE] = cold["fp16"] / cold["once"]
    return {name: side.dropna() for name, side in gains.items()}


def opening(here: Lab, gains: dict[str, Any], kernels: Rows, drawn: Any, rows: Rows, noise: str) -> Opening:
    """The first screen: the gains over FP16 here by tokens, of the loop and read once, by one clock and one
    cache; `noise` says how far the published times differ among themselves.
    """
    name, gpu = f"{drawn[0]:,} × {drawn[1]:,}", here.run["gpu"]
    title = f"Speed beside FP16's, a matrix of {drawn[0]:,} outputs × {drawn[1]:,} inputs"
    fig, ax = plot.figure("tokens", "FP16's time ÷ its own", title, xlog=True, ylog=True, height=2.6)
    sides = {label.partition(",")[0]: gains[label] for label in (LOOP, ONCE) if len(gains[label])}
    for label, side in sides.items():
        plot.series(ax, side.index, side, label=label)
    plot.roof_line(ax, 1, "as fast as FP16", where="right")
    ax.texts[-1].set(va="top", position=(-4, -3))  # below its line: read once ends above it
    ticks = sorted({batch for side in sides.values() for batch in side.index})
    ax.set_xticks(ticks, ticks)
    plot.round_ticks(ax)
    plot.label_ends(ax)
    answer = which_loses(gains, gpu)
    if name == PROFILED:
        answer += _elsewhere(gains[LOOP], kernels, noise)
    able = (
        "tell a slow format from a slow kernel, and that from a slow way to launch it",
        "say what an event clock and a graph clock count, and what a published time can prove",
    )
    said = (
        f"{title}, on {gpu}, {plot.dates(rows)}. Both curves: kernels alone, without launches, and weights "
    )
    said += f"from DRAM. {' '.join(_went(label, side) for label, side in sides.items())}"
    return answer.strip(), able, (fig, said.strip())


def _elsewhere(loop: Rows, kernels: Rows, noise: str) -> str:
    """That the loop's kernel wins on decode-roofline's laptop, where it does and loses here, for one token;
    and what its times cannot tell.
    """
    gain = float(kernels["fp16"] / kernels["fused"])
    if not (1 in loop.index and loop[1] < 1 < gain):
        return ""
    text = f"\n- **Laptop**: there the same kernel, timed alone, wins: {gain:.2f} times as fast for 1 token. "
    why = "are too noisy to tell why the loop loses" if noise else "do not tell why the loop loses"
    return f"{text}Its published times {why}."


def _went(label: str, side: Rows) -> str:
    """From where to where a gain goes, in words."""
    text = f"{label[0].upper()}{label[1:]}, {side.iloc[0]:.2f} for {counted(int(side.index[0]), 'token')}"
    return text + (f", {side.iloc[-1]:.2f} for {side.index[-1]}." if len(side) > 1 else ".")


def which_loses(gains: dict[str, Any], gpu: str) -> str:
    """In words, what of the loop loses to FP16 without launches: its kernel for the fewest tokens, its
    repetition up to the most; and whether INT4 loses where it is read once.
    """
    loop, once = gains[LOOP], gains[ONCE]
    if not len(once) or not {once.index[0], once.index[-1]} <= set(loop.index):
        return (
            f"A kernel that reads INT4 once for all tokens was not timed on the {gpu}. {_loop_loses(gains)}"
        )
    first, most, speed = once.index[0], once.index[-1], display.speed(once.iloc[-1])
    few, tokens = counted(int(first), "token"), counted(int(most), "token")
    if loop[most] >= 1:
        text = f"On the {gpu} the loop does not lose for {tokens}, without launches. "
        return text + _loop_loses(gains)
    if once.iloc[-1] <= 1 or speed == "as fast":
        speed += " as FP16" if speed == "as fast" else " of FP16"
        text = f"Not the loop alone: read once for all tokens, INT4 is {speed} for {tokens} on the {gpu}. "
        return text + _loop_loses(gains)
    if loop[first] >= 1:
        text = f"Not INT4, and not its kernel run once: on the {gpu} the loop loses, without its launches."
    elif loop[most] < loop[first]:
        text = (
            f"Not INT4. On the {gpu} its kernel loses, and running it once for each token adds to the loss."
        )
    else:
        text = f"Not INT4. On the {gpu} its kernel loses, without its launches."
    text += f"\n\n- **Format**: read once for {tokens}, INT4 is {once[most]:.2f} times as fast as FP16."
    text += f"\n- **Kernel**: for {few} the loop's kernel runs once, {loop[first]:.2f} times as fast."
    if most != first:
        text += f"\n- **Loop**: for {tokens} it runs {most} times, {loop[most]:.2f} times as fast."
    return text


def loses(gains: Rows) -> str:
    """At which numbers of tokens a gain is below 1, in words."""
    below = gains < 1
    if not below.any():
        return "nowhere"
    first = below.idxmax()
    if below[first:].all():
        return f"from {counted(int(first), 'token')} on"
    return f"at {below.sum()} of {len(gains)} batches"


def _loop_loses(gains: dict[str, Any]) -> str:
    """In words, whether the loop loses without launches."""
    loop, most = gains[LOOP], gains[LOOP].index[-1]
    if loop[most] >= 1:
        return f"It loses {loses(loop)}. " if (loop < 1).any() else ""
    text = "The loop loses without launches" + " as well" * bool((gains[EVENT] < 1).any())
    return f"{text}, {loses(loop)}, and has {loop[most]:.2f} of FP16's speed for {most}. "


def run_facts(gpu: str, here: Lab, laptop: Store, shapes: Any) -> None:
    """The facts of the run, in one line."""
    more = {
        "L2": plot.size_text(int(here.run["l2_bytes"])),
        "Decode-roofline's GPU": laptop.runs()["gpu"].iloc[0],
        "Shapes": ", ".join(f"{n:,} × {k:,}" for n, k in shapes),
    }
    named_facts(here, gpu, "int4", more)


def same_way(here: Lab, one_shape: Rows, gains: dict[str, Any], name: str, gpu: str) -> None:
    """Show decode-roofline's table as measured here, and say where the loop loses by it, what the event clock
    adds, and what a factor over the two-op product is worth.
    """
    same = one_shape.loc["event, warm"].reset_index()
    display.table(same, NAMES, FORMS, f"The same table here: {name}, {gpu}, event clock, warm")
    event = gains[EVENT]
    text = f"**Timed decode-roofline's way, the loop loses {loses(event)} here.** This clock compares two "
    text += "launchers: our Python launches the loop, and cuBLAS from C++ launches FP16."
    text += clock_adds(here.store, one_shape)
    one = same[same["batch"] == 1].iloc[0]
    factor = one["two_op"] / one["fused"]
    if factor > 1 > one["gain"]:
        text += f"\n\nFor one token the loop is {factor:.1f} times as fast as two-op in PyTorch, "
        text += f"{one['two_op']:.0f} ÷ {one['fused']:.0f} µs, and yet slower than FP16. So a factor over "
        text += "two-op tells how slow two-op is: choose the baseline that a user would run otherwise."
        text += " ([Lesson 04](04_int4.ipynb) times the same two without launches and with weights from "
        text += "DRAM, so its factor differs.)"
    display.say(text)


def steps_drawn(gains: dict[str, Any], name: str, gpu: str) -> None:
    """Draw the gains for one token from the loop as published to read once, one change a bar."""
    how = {EVENT: "loop: event clock, cached", WARM: "clock changed: graph, cached"}
    changed = "cache" if 1 in gains[WARM].index else "clock and cache"
    how |= {LOOP: f"{changed} changed: weights from DRAM", ONCE: "kernel changed: read once"}
    steps = {label: float(gains[of][1]) for of, label in how.items() if 1 in gains[of].index}
    if len(steps) < 2:
        return
    title = "One token: gain over FP16, one change a bar"
    fig, ax = plot.figure("times as fast as FP16 by the same clock", title=title, height=2.5)
    plot.grouped(ax, list(steps), {"gain": list(steps.values())}, 1.15 * max(1, *steps.values()), ".2f")
    fig.legends[0].remove()
    plot.roof_line(ax, 1.0, "FP16", vertical=True)
    plot.off_the_line(ax, 1.0)
    went = " → ".join(f"{gain:.2f}" for gain in steps.values())
    plot.show(fig, f"One token, {name}, {gpu}: {went} times as fast as FP16, one change a bar.")


def gains_by_clock(one_shape: Rows, gains: dict[str, Any], name: str, gpu: str) -> None:
    """Show the gains over FP16 here by batch, clock and cache, folded: the opening draws most of them."""
    table = one_shape.loc["graph, cold"][[]].reset_index()
    for column, side in gains.items():
        table[column] = side.reindex(table["batch"]).to_numpy()
    table = table.dropna(axis="columns", how="all")
    how = {EVENT: "event clock, warm", WARM: "graph clock, warm", LOOP: "graph clock, cold"}
    how[ONCE] = how[LOOP]
    said = {text: f"{text.partition(',')[0].capitalize()}: {clock}" for text, clock in how.items()}
    names = {"batch": "Batch"} | {text: said[text] for text in gains if text in table}
    title = f"The gains in numbers: {name}, {gpu}"
    title += "; empty: not timed" * bool(table.isna().to_numpy().any())
    display.table(table, names, dict.fromkeys(gains, "{:.2f}"), title, folded=True)


def one_change_each(one_shape: Rows, gains: dict[str, Any], here: Lab, drawn: Any, each: int) -> None:
    """Say what clock, cache, kernel and repetition change, a verdict each; `each` is what a further token
    costs the loop by the graph clock, in us.
    """
    event, loop, once = loses(gains[EVENT]), loses(gains[LOOP]), gains[ONCE]
    if event == loop == "nowhere":
        parts = ["**Clock**: the loop loses by neither clock."]
    elif event == loop:
        parts = [
            f"**Clock**: without launches the loop loses {loop} as well. Launches do not decide it here."
        ]
    else:
        parts = [f"**Clock**: the loop loses {event} with launches, and {loop} without them."]
    both = [gains[of].get(1) for of in (EVENT, WARM)]
    if None not in both:
        parts[0] += f" For one token the gain goes from {both[0]:.2f} to {both[1]:.2f}."
    parts.append(_cache(one_shape))
    cold = one_shape.loc["graph, cold"].dropna(subset=["fused", "once"])
    if len(cold):
        first = int(cold.index[0])
        ours = study.chosen(*drawn, first, here.sized)
        text = f"**Kernel**: for {counted(first, 'token')} "
        text += "both read the weights once, by one launch. " if first == 1 else ""
        text += "The loop's kernel is rung 1 of [part 04b](04b_ladder.ipynb), *read once* has rung "
        text += f"{ours.impl.partition('_')[0]}{_cheaper(here, drawn, ours)}: the gain goes from "
        parts.append(f"{text}{gains[LOOP][first]:.2f} to {once[first]:.2f}.")
    if len(cold) > 1:
        a, b = cold.iloc[0], cold.iloc[-1]
        text = f"**Repetition**: from {counted(int(cold.index[0]), 'token')} to {cold.index[-1]} the loop's "
        text += f"time becomes {b['fused'] / a['fused']:.1f} times as long, that of read once "
        text += f"{b['once'] / a['once']:.1f} times. {_repeated(here, drawn, a['fused'], each)}"
        crossed = once[once < 1]
        text += (
            f"Read once loses {loses(once)}."
            if len(crossed)
            else "Read once stays ahead of FP16 ([part 04c](04c_batch.ipynb) says how far)."
        )
        parts.append(text)
    display.say("\n".join(f"- {part}" for part in parts if part))


def _cheaper(here: Lab, drawn: Any, ours: Any) -> str:
    """How many instructions a weight both kernels spend here, where they were counted for one token."""
    both = [
        executed(here, drawn, impl, options)
        for impl, options in (("1_warp_row", ""), (ours.impl, ours.options))
    ]
    both = [warps and 32 * warps / (drawn[0] * drawn[1]) for warps in both]
    if ours.batch != 1 or None in both:
        return ""
    return f", which spends {both[1]:.1f} instructions a weight on this matrix instead of {both[0]:.1f}"


def _cache(one_shape: Rows) -> str:
    """In words, what a warm cache does to the gain for one token."""
    if ("graph, warm", 1) not in one_shape.index:
        return ""
    warm, cold = one_shape.loc[("graph, warm", 1)], one_shape.loc[("graph, cold", 1)]
    shares = warm["fp16"] / cold["fp16"], warm["fused"] / cold["fused"]
    text = (
        "**Cache**: for one token, weights from DRAM instead of L2 change the gain by the graph clock from "
    )
    text += f"{warm['gain']:.2f} to {cold['gain']:.2f}. FP16 goes from {warm['fp16']:.1f} to "
    text += f"{cold['fp16']:.1f} µs, the loop from {warm['fused']:.1f} to {cold['fused']:.1f}"
    return text + (": FP16, with more bytes, loses more." if shares[0] < shares[1] else ".")


def _repeated(here: Lab, drawn: Any, first: float, each: int) -> str:
    """In words, that tokens whose weights the cache holds are not cheap, where they are not: `first` and
    `each` are what the loop's first token and a further one cost, in us.
    """
    cache, moved = int(here.run["l2_bytes"]), drawn[0] * drawn[1] * WEIGHT_BYTES["int4_g128"]
    if not (moved < cache and each > 0.7 * first):
        return ""
    text = f"A further token costs the loop {each} µs, its first {first:.1f}, though L2 holds the weights "
    text += f"({moved / 1e6:.1f} MB) by then: **each launch repeats the kernel's work**. "
    return text


def takeaway(one_shape: Rows, gains: dict[str, Any], gpu: str, name: str, kernels: Rows) -> None:
    """What to take away, computed."""
    parts = [
        "**Keep two losses apart: the kernel's, for one token, and that of repeating it for each further "
        "one.** Neither tells what the format can do: give each contestant a kernel made for the batch.",
        "Before you blame launches for a loss, or clear them, time the kernels alone in the same run.",
    ]
    alone = gains[LOOP]
    if name == PROFILED and 1 in alone.index:
        parts.append(
            f"A gain belongs to a GPU: the same kernel for one token, alone and from DRAM, has a gain of "
            f"{kernels['fp16'] / kernels['fused']:.2f} on the {LAPTOP} and {alone[1]:.2f} on the {gpu}."
        )
    ones = [float(gains[of][1]) for of in (EVENT, WARM, LOOP) if 1 in gains[of].index]
    text = "**With a speed-up, name the clock, the cache and the baseline.** "
    if ones:
        text += f"On the {gpu} the loop's gain over FP16 for one token is {min(ones):.2f} to "
        text += f"{max(ones):.2f} by clock and cache. "
    one = one_shape.loc[("event, warm", 1)]
    parts.append(f"{text}The loop is {one['two_op'] / one['fused']:.1f} times as fast as two-op in PyTorch.")
    display.say("\n".join(f"- {part}" for part in parts))


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
        foretold="the bytes alone at least {} µs (data sheet)",
        start={"called": "the loop", "how": "graph, cold", "shape": name},
    )
