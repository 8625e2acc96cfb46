"""What lesson 04d's page shows: a published experiment, repeated by other clocks and with a cold cache."""

from __future__ import annotations

from typing import Any

from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Opening, Rows, named_facts
from rooflab.pages.lesson_04d_clocks import clocks_checked as clocks_checked
from rooflab.pages.lesson_04d_clocks import clocks_drawn as clocks_drawn
from rooflab.pages.lesson_04d_clocks import drawing_target as drawing_target
from rooflab.pages.lesson_04d_laptop import FORMS, LAPTOP, NAMES, PROFILED, not_told_apart
from rooflab.pages.lesson_04d_laptop import beside_the_kernels as beside_the_kernels
from rooflab.pages.lesson_04d_laptop import published_by_batch as published_by_batch
from rooflab.pages.lesson_04d_limits import least_times as least_times
from rooflab.records.store import Store
from rooflab.studies import int4 as study
from rooflab.view import display, explorer, plot
from rooflab.words import counted

# The gains over FP16 by batch that the page compares: whose, of what, by which clock and cache.
PUBLISHED = "published: loop, event clock"
EVENT = "here: loop, event clock, warm"
LOOP = "here: loop, graph clock, cold"
ONCE = "here: read once, graph clock, cold"


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


def gains_over_fp16(theirs: Rows, one_shape: Rows, drawn: Any) -> dict[str, Any]:
    """The gains over FP16 by batch, by name; a series without a value where nothing was timed."""
    cold = one_shape.loc["graph, cold"]
    known = theirs[theirs["shape"] == f"{drawn[0]:,} × {drawn[1]:,}"].set_index("batch")["gain"]
    gains = {PUBLISHED: known, EVENT: one_shape.loc["event, warm"]["gain"]}
    gains |= {LOOP: cold["gain"], ONCE: cold["fp16"] / cold["once"]}
    return {name: side.dropna() for name, side in gains.items()}


def opening(here: Lab, gains: dict[str, Any], theirs: Rows, kernels: Rows, drawn: Any, rows: Rows) -> Opening:
    """The first screen: the gains over FP16 by tokens, of the loop as published and here, and read once."""
    name, gpu = f"{drawn[0]:,} × {drawn[1]:,}", here.run["gpu"]
    title = f"Gain over FP16, {name}"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True, ylog=True, height=3.2)
    short = str(gpu).removeprefix("NVIDIA ")
    labels = {PUBLISHED: f"{LAPTOP}: loop, event clock", LOOP: f"{short}: loop, graph clock"}
    labels[ONCE] = f"{short}: read once, graph clock"
    for key, label in labels.items():
        if len(side := gains[key]):
            plot.series(ax, side.index, side, label=label)
    plot.roof_line(ax, 1, "as fast as FP16", where="right")
    ax.texts[-1].set(va="top", position=(-4, -3))  # below its line: read once ends above it
    ticks = sorted({batch for key in labels for batch in gains[key].index})
    ax.set_xticks(ticks, ticks)
    plot.round_ticks(ax)
    plot.label_ends(ax)
    answer = f"{which_loses(gains, gpu)} {_without_launches(gains)}"
    if name == PROFILED:
        answer += not_told_apart(theirs, kernels)
    able = (
        "tell a slow format from a slow way to launch its kernel",
        "say what an event clock and a graph clock count, and what a published time can prove",
    )
    said = f"{title}. The event clock counts launches, the graph clock leaves them out. Here is {gpu}, with "
    return answer.strip(), able, (fig, f"{said}a cold cache, {plot.dates(rows)}.")


def which_loses(gains: dict[str, Any], gpu: str) -> str:
    """In words, whether the loop loses to FP16 at the most tokens, and INT4 where it is read once."""
    loop, once = gains[LOOP], gains[ONCE]
    if not len(once) or once.index[-1] not in loop.index:
        return f"A kernel that reads INT4 once for all tokens was not timed on the {gpu}."
    most, speed = once.index[-1], display.speed(once.iloc[-1])
    tokens = counted(int(most), "token")
    if loop[most] >= 1:
        return f"On the {gpu} the loop does not lose for {tokens}, without launches."
    if once.iloc[-1] <= 1 or speed == "as fast":
        speed += " as FP16" if speed == "as fast" else " of FP16"
        return f"Not the loop alone: read once for all tokens, INT4 is {speed} for {tokens} on the {gpu}."
    text = f"The loop loses, not INT4: read once for all tokens, INT4 is still {speed} as FP16 for {tokens} "
    return f"{text}on the {gpu}."


def loses(gains: Rows) -> str:
    """At which numbers of tokens a gain is below 1, in words."""
    below = gains < 1
    if not below.any():
        return "nowhere"
    first = below.idxmax()
    if below[first:].all():
        return f"from {counted(int(first), 'token')} on"
    return f"at {below.sum()} of {len(gains)} batches"


def _without_launches(gains: dict[str, Any]) -> str:
    """In words, whether the loop loses without launches."""
    loop, most = gains[LOOP], gains[LOOP].index[-1]
    if loop[most] >= 1:
        return f"It loses {loses(loop)}. " if (loop < 1).any() else ""
    text = "There the loop loses without launches" + " as well" * bool((gains[EVENT] < 1).any())
    return f"{text}, {loses(loop)}, and has {loop[most]:.2f} of FP16's speed for {most}. "


def run_facts(gpu: str, here: Lab, laptop: Store, shapes: Any) -> None:
    """The facts of the run, in one line."""
    more = {
        "L2": plot.size_text(int(here.run["l2_bytes"])),
        "The source's GPU": laptop.runs()["gpu"].iloc[0],
        "Shapes": ", ".join(f"{n:,} × {k:,}" for n, k in shapes),
    }
    named_facts(here, gpu, "int4", more)


def same_way(one_shape: Rows, gains: dict[str, Any], name: str, gpu: str, laptop: Store) -> None:
    """Show the source's table as measured here, and say where the loop loses by it, and what the factor over
    the two-op product is worth.
    """
    same = one_shape.loc["event, warm"].reset_index()
    display.table(same, NAMES, FORMS, f"The same table here: {name}, {gpu}, event clock, warm")
    event = gains[EVENT]
    text = f"**Timed the source's way, the loop loses {loses(event)} here.** This clock compares two "
    text += "launchers: our Python launches the loop, and cuBLAS from C++ launches FP16."
    one = same[same["batch"] == 1].iloc[0]
    if name == PROFILED:
        bench = laptop.read("int4").query("clock == 'event'").set_index("impl")["median_us"]
        factor = one["two_op"] / one["fused"]
        text += f"\n\nThe source's headline, a factor of {bench['two_op'] / bench['fused']:.1f}, is over "
        text += f"*two-op*, for one token. Here that factor is {factor:.1f}, and the loop's gain over FP16 "
        text += f"{one['gain']:.2f}."
        if factor > 1 > one["gain"]:
            text += " Such a factor tells how slow two-op is: choose the baseline that a user would run "
            text += "otherwise."
    display.say(text)


def gains_by_clock(one_shape: Rows, gains: dict[str, Any], name: str, gpu: str) -> None:
    """Show the gains over FP16 here by batch, clock and cache."""
    table = one_shape.loc["graph, cold"][[]].reset_index()
    sides = {"event": gains[EVENT], "graph": gains[LOOP], "once": gains[ONCE]}
    sides["warm"] = one_shape["gain"][one_shape.index.get_level_values("how") == "graph, warm"].droplevel(
        "how"
    )
    for column, side in sides.items():
        table[column] = side.reindex(table["batch"]).to_numpy()
    names = {"batch": "Batch", "event": "Loop: event clock, warm", "warm": "Loop: graph clock, warm"}
    names |= {"graph": "Loop: graph clock, cold", "once": "Read once: graph clock, cold"}
    table = table.dropna(axis="columns", how="all")
    names = {column: text for column, text in names.items() if column in table}
    title = f"Gain over FP16, {name}, {gpu}" + "; empty: not timed" * bool(table.isna().to_numpy().any())
    display.table(table, names, dict.fromkeys(sides, "{:.2f}"), title)


def one_change_each(one_shape: Rows, gains: dict[str, Any], here: Lab, drawn: Any, each: int) -> None:
    """Say what clock, cache and reading once change, a verdict each; `each` is what a further token costs the
    loop by the graph clock, in us.
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
    parts.append(_cache(one_shape, here, drawn, each))
    cold = one_shape.loc["graph, cold"].dropna(subset=["fused", "once"])
    if len(cold) > 1:
        first, last = cold.iloc[0], cold.iloc[-1]
        text = (
            f"**Reading once**: from {counted(int(cold.index[0]), 'token')} to {cold.index[-1]} the loop's "
        )
        text += f"time becomes {last['fused'] / first['fused']:.1f} times as long, that of read once "
        text += f"{last['once'] / first['once']:.1f} times. "
        crossed = once[once < 1]
        text += (
            f"Read once loses {loses(once)}."
            if len(crossed)
            else (
                f"Its **crossover** with FP16 lies beyond {once.index[-1]} tokens "
                "([part 04c](04c_batch.ipynb) looks for it)."
            )
        )
        parts.append(text)
    display.say("\n".join(f"- {part}" for part in parts if part))


def _cache(one_shape: Rows, here: Lab, drawn: Any, each: int) -> str:
    """In words, what a warm cache does to the gain for one token, and whether tokens whose weights the cache
    holds are cheap.
    """
    if ("graph, warm", 1) not in one_shape.index:
        return ""
    warm, cold = one_shape.loc[("graph, warm", 1)], one_shape.loc[("graph, cold", 1)]
    shares = warm["fp16"] / cold["fp16"], warm["fused"] / cold["fused"]
    text = "**Cache**: for one token, cached weights change the gain by the graph clock from "
    text += f"{cold['gain']:.2f} to {warm['gain']:.2f}"
    text += ": FP16, with more bytes, saves more time." if shares[0] < shares[1] else "."
    cache, moved = int(here.run["l2_bytes"]), drawn[0] * drawn[1] * WEIGHT_BYTES["int4_g128"]
    if moved < cache and each > 0.7 * cold["fused"]:
        text += (
            f" In the cold loop L2 holds the {moved / 1e6:.1f} MB from the first token on. Further tokens "
        )
        text += (
            f"still cost {each} µs each, where the first costs {cold['fused']:.1f}: **each launch repeats "
        )
        text += "the kernel's work, whether DRAM or L2 holds the weights**."
    return text


def takeaway(one_shape: Rows, gains: dict[str, Any], gpu: str, name: str, kernels: Rows) -> None:
    """What to take away, computed."""
    parts = [
        "**A kernel for one token, launched once for each, does not tell what its format can do for many.** "
        "Give each contestant a kernel made for the batch.",
        "Before you explain a loss by launches, or deny it, time the kernels alone in the same run.",
    ]
    alone = gains[LOOP]
    if name == PROFILED and 1 in alone.index:
        parts.append(
            f"A gain belongs to a GPU: the same kernel for one token, alone and from DRAM, has a gain of "
            f"{kernels['fp16'] / kernels['fused']:.2f} on the {LAPTOP} and {alone[1]:.2f} on the {gpu}."
        )
    ones = one_shape["gain"].xs(1, level="batch").dropna()
    text = "**With a speed-up, name the clock, the cache and the baseline.** "
    text += (
        f"On the {gpu} the loop's gain over FP16 for one token is {ones.min():.2f} to {ones.max():.2f} by "
    )
    one = one_shape.loc[("event, warm", 1)]
    parts.append(
        f"{text}clock and cache, and it is {one['two_op'] / one['fused']:.1f} times as fast as two-op."
    )
    display.say("\n".join(f"- {part}" for part in parts))


def explore(rows: Rows, gpu: str, here: Lab, name: str) -> Any:
    """The explorer of the published experiment, by contestant, clock and shape."""
    called = {"fused": "the loop", "fp16": "FP16", "two_op": "two-op"}
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
        start={"called": "the loop", "how": "graph, cold", "shape": name},
    )
