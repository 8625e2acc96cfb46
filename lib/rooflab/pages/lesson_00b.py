"""What lesson 00b shows: one kernel by several clocks, cold and warm, in four states of the GPU, and what a
launch and a barrier cost.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from rooflab.analysis import states
from rooflab.bench import clock
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.records import compare
from rooflab.studies import environment, power
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import listed, times

THREE = ("wall", "event", "graph")  # the clocks of the first screen
PROFILERS = ("nsys", "cupti", "ncu")


def opening(times: Rows, gpu: str) -> Opening:
    """The first screen: `times` has sizes as its index and a column a clock."""
    small, large = times.iloc[0], times.iloc[-1]
    text = f"On the {gpu} a kernel over {times.index[0]:,} elements takes {small.graph:.2f} µs as one of a "
    text += f"chain of launches, and {plot.number(small.event / small.graph)} times as long if one launch is "
    text += f"timed alone; over {times.index[-1]:,} elements the two clocks differ by a factor of "
    text += f"{large.event / large.graph:.2f}."
    able = [
        "choose the clock that answers your question",
        "say cold or warm, burst or sustained, and why",
        "price a launch and a barrier",
    ]
    return text, able, clocks_drawn(times)


def clocks_drawn(times: Rows) -> diagram.Drawing | None:
    """What each of the three clocks counts, for the smallest size that all three timed; None without one."""
    read = [name for name in THREE if name in times]
    timed = times[read].dropna()
    if len(read) < len(THREE) or timed.empty:
        return None
    return diagram.clocks(*(float(time) for time in timed.iloc[0]))


# --- one kernel, every clock --------------------------------------------------------------------------------


def launches(lab: Lab) -> tuple[Rows, Rows]:
    """What it costs to get from one kernel to the next, by its name, and the rows of the probes behind it."""
    asked = [case for case in lab.cases("environment") if case.operator in ("touch", "barrier")]
    probes = lab.measure("environment", asked)
    return environment.handovers(probes).set_index("handover"), probes


def eager_us(handovers: Rows) -> float:
    """Microseconds of an eager call by this course's launcher."""
    return float(handovers.loc["eager call, this course's launcher", "median_us"])


def prediction(handovers: Rows) -> None:
    """Say what the event clock should add to a kernel's time."""
    display.say(
        f"Such a chain takes {eager_us(handovers):.1f} µs a call, as "
        "[the price list](#what-a-launch-costs) below says. "
        f"Predicted: `event` adds **{eager_us(handovers):.1f} µs**, whatever the size."
    )


def by_clock(times: Rows, *names: str) -> None:
    """Show the times of one launch by the clocks `names`, as far as they were read; profilers' are folded."""
    read = [name for name in names if name in times and times[name].notna().any()]
    heads = {"n": "elements"} | {name: name for name in read}
    formats = {"n": "{:,}"} | dict.fromkeys(read, "{:.4g}")
    title = "saxpy/1_scalar, warm: µs a launch (median)"
    title = title if "wall" in names else f"The same kernel by profilers beside {names[0]}"
    display.table(times.reset_index(), heads, formats, title, folded=not {*read} & {"wall"})


def event_against_graph(times: Rows, handovers: Rows, probes: Rows) -> None:
    """Say what the event clock adds, and whether that is the eager call that was predicted."""
    eager, added = eager_us(handovers), times["event"] - times["graph"]
    small, large = times.iloc[0], times.iloc[-1]
    display.say(
        f"At {times.index[0]:,} elements `event` reads **{plot.number(small.event / small.graph)} times** "
        f"the {small.graph:.2f} µs of `graph`: {added.iloc[0] / small.event:.0%} of what it shows is not the "
        f"kernel. At {times.index[-1]:,} it is {added.iloc[-1] / large.event:.0%}. `event` adds "
        f"{added.min():.0f} to {added.max():.0f} µs; {eager:.1f} was predicted."
    )
    lonely = probes.set_index("case").median_us.get("touch/touch warm event", math.nan)
    _graphs_own(times, handovers)
    off = sorted({f"{each / eager:.1f}" for each in (added.min(), added.max())}, key=float)
    display.say(
        "The prediction holds."
        if 0.75 < added.min() / eager <= added.max() / eager < 1.33
        else f"The prediction is off by a factor of {' to '.join(off)}. The chain of empty kernels measured "
        "how often the host can call. It did not measure how long one call takes to arrive: `event` reads "
        f"{lonely:.0f} µs even for an *empty* kernel, called once after a pause."
    )
    left = small.event - lonely - small.graph
    if left > 0:
        display.say(
            f"So of the {small.event:.1f} µs of `event` at {times.index[0]:,} elements, {lonely:.1f} are an "
            f"empty kernel's, {small.graph:.1f} are the kernel by `graph`, and **{left:.1f} remain "
            "unexplained**."
        )


def _graphs_own(times: Rows, handovers: Rows) -> None:
    """Say how much of the graph clock's time is the launch, and from which size on it is little."""
    node, small = handovers.median_us["node of a graph"], times["graph"].iloc[0]
    text = (
        f"`graph` holds a launch, too: a node with an *empty* kernel takes {node:.2f} µs, its run included, "
    )
    text += f"of the {small:.2f} µs at {times.index[0]:,} elements. "
    trusted = times.index[node < 0.05 * times["graph"]]
    text += (
        f"From {trusted[0]:,} elements on it is less than a twentieth of what `graph` reads in the table."
        if len(trusted)
        else ""
    )
    display.say(text.strip())


def profilers(times: Rows) -> None:
    """Fold what profilers read: their times beside the graph clock's, and what they leave out."""
    least, most = times.index[0], times.index[-1]
    ends = times[["ncu", "nsys"]].div(times["graph"], axis=0).iloc[[0, -1]]
    lines = [
        "`nsys` and `cupti` read the GPU's own time stamps at a kernel's start and end. They do not see what "
        "lies between kernels."
    ]
    if ends.nsys.iloc[-1] > crossover.LEVEL:
        lines[0] += f" At {most:,} elements `nsys` reads {ends.nsys.iloc[-1]:.2f} times `graph`; no "
        lines[0] += "measurement here explains that."
    lines.append(
        "`ncu` runs one kernel on an otherwise empty GPU, so a kernel of a few microseconds reads too long."
    )
    if ends.notna().all(axis=None):
        lines[1] += f" It reads {ends.ncu.iloc[0]:.2f} times `graph` at {least:,} elements and "
        lines[1] += f"{ends.ncu.iloc[-1]:.2f} times at {most:,}."
    display.fold_items("What a profiler reads", lines)
    by_clock(times, "graph", *PROFILERS)


def repeated(lab: Lab, gpu: str) -> None:
    """Say how many times of a second recording, on other cards and hosts, are near this one's, by clock."""
    found = compare.repeated(lab.store).set_index("clock")
    if lab.mode == "live" or "graph" not in found.index:
        return
    first, *rest = found.index
    text = f"**Does it repeat?** We recorded the cases a second time, on other cards of the {gpu} in other "
    text += f"hosts. By `{first}` {found.within[first]:.1%} of {found.cases[first]:,} cases came within "
    text += f"{compare.NEAR:.0%} of their first time"
    said = [f"by `{clock}` {found.within[clock]:.1%} of {found.cases[clock]:,}" for clock in rest]
    text += f"; {listed(said)}." if said else "."
    if found.within["graph"] > found.within.drop("graph").max():
        text += " `event` and `wall` hold the host's launches, and hosts differ."
        text += " So the course ranks kernels by `graph`."
    display.say(text)


# --- dependent launch ---------------------------------------------------------------------------------------


def dependent(times: Rows, clocked: Rows, apart: Rows, gpu: str) -> None:
    """Fold for which sizes a dependent chain is faster than a plain one, and what a control experiment makes
    of the others.
    """
    lines = [
        "*Programmatic dependent launch* (Hopper and later) lets a kernel start while its predecessor "
        "finishes; [lesson 08](08_decoder.ipynb) uses it. The clock `graph_pdl` times a chain of such "
        "launches. The "
        'kernel has two more instructions: "my successor may start", and "wait for my predecessor".'
    ]
    title = "Dependent launch: a kernel that starts before the one ahead has ended"
    by, sizes = clocked.set_index(["n", "clock"]), sorted(set(apart[apart["clock"] == "graph_pdl"]["n"]))
    if not sizes:
        lines.append(f"It cannot be tried on {gpu}: it needs compute capability 9.0.")
        display.fold_items(title, lines)
        return
    speeds = [by.loc[(n, "graph"), "median_us"] / by.loc[(n, "graph_pdl"), "median_us"] for n in sizes]
    each = [f"{speed:.2f} times as fast at {n:,} elements" for n, speed in zip(sizes, speeds, strict=True)]
    lines.append(f"Dependent launches are {listed(each)}.")
    plain = apart[apart["clock"] == "graph"].set_index("n")
    if sizes[-1] in plain.index:
        serial, chained = by.loc[(sizes[-1], "graph")], by.loc[(sizes[-1], "graph_pdl")]
        alone = plain.loc[sizes[-1]]
        if display.level(alone, chained) and alone["q1_us"] > serial["q3_us"]:
            lines.append(
                f"At {sizes[-1]:,} the early start is not to blame: compiled with the two instructions but "
                "launched the ordinary way, the kernel is just as slow. Why they cost so much, nothing "
                "here shows."
            )
    display.fold_items(title, lines)
    _control(times, apart)


def _control(times: Rows, apart: Rows) -> None:
    """Show the control experiment: the instructions of dependent launch with plain edges, and its variant."""
    spent = {name: rows.set_index("n")["median_us"] for name, rows in apart.groupby("clock")}
    nothing = pd.Series(dtype=float)
    parts = {
        "plain": times["graph"],
        "instructions only": spent.get("graph", nothing),
        "dependent, let go early": times.get("graph_pdl", nothing),
        "dependent, let go late": spent.get("graph_pdl", nothing),
    }
    heads = {"n": "elements"} | {name: name for name in parts}
    formats = {"n": "{:,}"} | dict.fromkeys(parts, "{:,.2f}")
    table = pd.DataFrame(parts).rename_axis("n").reset_index()
    display.table(table, heads, formats, "The control experiment: µs a launch", folded=True)


# --- cold and warm ------------------------------------------------------------------------------------------


def cold_and_warm(lab: Lab, l2_bytes: int) -> tuple[Rows, Rows]:
    """Every recorded size of rung 2, cold and warm: the rows, and a line a size (index n) with the times, the
    copies that make it cold, and the gain.
    """
    recorded = lab.cases("environment")
    sizes = [case.n for case in recorded if case.impl == "2_vector" and case.cache == "warm"]
    rows = lab.measure("environment", environment.caches(sizes))
    cold, warm = (rows[rows.cache == cache].set_index("n") for cache in ("cold", "warm"))
    sides = pd.DataFrame({"cold": cold.median_us, "warm": warm.median_us, "bytes": warm.bytes})
    sides["operands"] = warm.bytes.map(plot.size_text)
    sides["copies"] = [clock.copies_for(each, l2_bytes) for each in warm.bytes]
    sides["gain"] = sides.cold / sides.warm
    sides["faster"] = [clock.faster(warm.loc[n], cold.loc[n]) for n in sides.index]
    return rows, sides


def bandwidth_by_cache(rows: Rows, sides: Rows, gpu: str, l2_bytes: int) -> None:
    """Draw the bandwidth of rung 2 by size, cold and warm."""
    title = "saxpy/2_vector, warm and cold"
    fig, ax = plot.figure("bytes of the operands", "GB/s", title, xlog=True)
    for cache in ("cold", "warm"):
        side = rows[rows.cache == cache]
        plot.series(ax, side.bytes, *plot.band(side), label=cache)
    plot.size_ticks(ax, rows.bytes)
    plot.roof_line(ax, l2_bytes, f"L2 {plot.size_text(l2_bytes)}", vertical=True)
    plot.label_ends(ax)
    most = sides.gain.idxmax()
    caption = (
        f"saxpy/2_vector on {gpu}, {plot.dates(rows)}: warm is at most {sides.gain[most]:.1f} times as fast "
    )
    plot.show(fig, f"{caption}as cold, with operands of {sides.operands[most]}.")


def early(sides: Rows, l2_bytes: int) -> bool:
    """Whether the gain of a warm cache is half gone at the largest operands that fit the L2."""
    wins = sides.index[sides.faster & (sides.gain > crossover.LEVEL)]
    fits = sides.index[sides.bytes <= l2_bytes]
    if not len(wins) or not len(fits) or wins.max() > fits.max():
        return False
    return bool(sides.gain[fits[-1]] < 1 + (sides.gain.max() - 1) / 2)


def warm_gain(sides: Rows, l2_bytes: int) -> None:
    """Say up to which size a warm cache helps, and show the sizes."""
    wins = sides.index[sides.faster & (sides.gain > crossover.LEVEL)]
    fits = sides.index[sides.bytes <= l2_bytes]
    text = "No size recorded here shows a gain from a warm cache."
    if len(wins) and len(fits):
        last = sides.loc[fits[-1]]
        text = f"Warm is faster up to **{sides.operands[wins[-1]]}**, by a factor of {sides.gain.max():.1f} "
        text += f"at most. The largest operands here that fit the {plot.size_text(l2_bytes)} L2 are "
        text += f"{last.operands}: there warm gains {last.gain - 1:.0%}."
    display.say(text)
    if early(sides, l2_bytes):
        display.say(
            "So most of the gain is lost before the cache is full. A hypothesis: this L2 is built in parts, "
            "and a line that SMs of both parts read is kept twice. Then it holds fewer *different* bytes "
            "than its size says."
        )
    heads = {"operands": "operands", "copies": "copies when cold"}
    heads |= {"cold": "cold, µs", "warm": "warm, µs", "gain": "cold ÷ warm"}
    formats = dict.fromkeys(("cold", "warm", "gain"), "{:.2f}")
    display.table(sides, heads, formats, "Every size: copies, times, gain", folded=True)


# --- states of the GPU --------------------------------------------------------------------------------------


def four_states(rows: Rows, operator: str, gpu: str) -> None:
    """Draw our leading kernel of an operator in four states of the GPU, where it was measured so."""
    four = states.of_one(rows, operator)
    if four.empty:
        return
    title = f"{operator}/{four['impl'].iloc[-1]} in four states"
    fig, ax = plot.figure(xlabel="µs", title=title, height=2.4)
    plot.bars(ax, four.name, four.median_us, "µs", None, four.q1_us, four.q3_us)
    worst = four.loc[four.median_us.idxmax()]
    caption = f"{title} on {gpu}, {plot.dates(four)}: {len(four)} states, slowest {worst['name']}, "
    plot.show(fig, f"{caption}{worst.slower:.2f} times the burst's time.")


def neighbours(rows: Rows, operator: str) -> None:
    """Say how much a hot neighbour slows the kernel that is drawn and the others, and show all of them."""
    moved, four = power.moved(rows), states.of_one(rows, operator).set_index("state")["median_us"]
    drawn = ""
    if {"after_cool", "after_hot"} <= set(four.index):
        drawn = "The kernel of the chart takes "
        drawn += (
            f"{four['after_hot'] / four['after_cool'] - 1:.0%} longer behind products than behind copies. "
        )
    heat, own = 1e3 * clock.NEIGHBOUR_S, 1e3 * clock.SUSTAINED_S
    display.say(
        f"A neighbour runs for {heat:.0f} ms before each sample; a sustained kernel by itself for "
        f"{own:.0f} ms. {drawn}" + (states.touched(moved) or "No kernel was measured so here.")
    )
    twice = moved.duplicated(["operator", "impl"], keep=False)
    named = moved.operator + "/" + moved.impl
    moved["impl"] = named.where(~twice, named + " " + moved.format.fillna(""))
    sizes = moved.replace("", pd.NA)
    moved["shape"] = [states.shape(row) for _, row in sizes.iterrows()]
    heads = {"impl": "kernel", "shape": "shape", "burst_us": "burst, µs"}
    heads |= {"sustained_us": "sustained", "after_cool_us": "behind copies"}
    heads |= {"after_hot_us": "behind products", "after_hot_mhz": "its clock, MHz"}
    for name in list(heads)[2:]:
        moved[name] = [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in moved[name]]
    formats = {"ratio": "{:.2f}"}
    heads |= {"ratio": "products ÷ copies"}
    display.table(moved, heads, formats, "Our kernels and peers in four states", folded=True)


# --- prices ------------------------------------------------------------------------------------------------


def prices(handovers: Rows, gpu: str, when: str) -> None:
    """Draw what it costs to get from one kernel to the next, the dearest first."""
    title = "From one kernel to the next"
    dear = handovers.sort_values("median_us", ascending=False)
    fig, ax = plot.figure(xlabel="µs", title=title, height=2.6)
    plot.bars(ax, dear.index, dear.median_us, "µs", None, dear.q1_us, dear.q3_us)
    cheapest, price = dear.index[-1], plot.number(dear.median_us.min())
    plot.show(fig, f"{title} on {gpu}, {when}: {len(dear)} ways, cheapest the {cheapest}, {price} µs.")


def prices_compared(handovers: Rows, sms: int) -> None:
    """Say how eager calls and a grid barrier compare with a node of a graph."""
    node, barrier = handovers.loc["node of a graph"], handovers.loc[environment.BARRIER]
    calls = handovers[handovers.index.str.startswith("eager")].median_us
    ratios = [each / node.median_us for each in (calls.min(), eager_us(handovers), barrier.median_us)]
    first, ours, barriers = (times(ratio) for ratio in ratios)
    display.say(
        f"The cheapest eager call here, {calls.idxmin().removeprefix('eager call, ')}, takes {first} times "
        "as long as a graph node. This course's own launcher, which checks every operand, takes "
        f"{ours} times as long. A grid barrier over {sms} blocks takes {barriers} times as long as ending a "
        "kernel and starting the next node. [Lesson 08](08_decoder.ipynb) weighs both in a decoder."
    )


def constants(handovers: Rows, l2_ns: float | None, dram_ns: float | None) -> None:
    """Show the constants that later lessons read from the recording."""
    rows = [(name, row.median_us, "µs", row.case) for name, row in handovers.iterrows()]
    rows += [
        ("latency of L2", l2_ns, "ns", "chase, warm, up to a quarter of L2"),
        ("latency of DRAM", dram_ns, "ns", "chase, cold, smallest table"),
    ]
    heads = {"what": "constant", "value": "value", "unit": "unit", "case": "measured by"}
    title = "Constants that later lessons read from the recording"
    display.table(pd.DataFrame(rows, columns=list(heads)), heads, {"value": "{:.3g}"}, title, folded=True)


# --- the end of the page ------------------------------------------------------------------------------------


def claims(lab: Lab, clocked: Rows, cached: Rows, sides: Rows) -> None:
    """Fold the rows behind the page's main sentences, and which command measures them again."""
    ends = [(n, name) for n in (clocked["n"].min(), clocked["n"].max()) for name in ("graph", "event")]
    behind = [clocked[(clocked.n == n) & (clocked.clock == name)] for n, name in ends]
    behind.append(clocked[(clocked.n == clocked["n"].max()) & (clocked.clock == "graph_pdl")])
    behind += [cached[cached.n == sides.gain.idxmax()], cached[cached.cache == "cold"].tail(1)]
    found = pd.concat(behind).drop_duplicates("case")
    found["how"] = found["cache"] + ", " + found["clock"]
    runs = lab.store.runs().set_index("run")
    heads = {"impl": "saxpy", "n": "elements", "how": "cache, clock", "median_us": "µs"}
    heads |= {"gb_s": "GB/s", "roof_fraction": "of roof"}
    formats = {"n": "{:,}", "median_us": "{:.2f}", "gb_s": "{:,.0f}"}
    title = "The rows behind this page's main sentences"
    made = runs.loc[found["run"].iloc[0]]
    again = (
        "`rooflab record environment` measures all of it again and writes it to "
        f"`data/{lab.device}/`, with versions, commit (here {made.commit}) and command (here "
        f"`{made.command}`)."
    )
    rows = (found, heads, formats | {"roof_fraction": "{:.0%}"})
    display.fold_parts(f"{title}, and the command that measures them again", [rows, again])


def takeaway(times: Rows, sides: Rows, handovers: Rows, gpu: str) -> None:
    """What to take away, computed."""
    small, us = times.iloc[0], handovers.median_us
    calls = us[us.index.str.startswith("eager")]
    low, high, node = calls.min(), calls.max(), us["node of a graph"]
    floor = ""
    if node > 0.5 * small.graph:
        floor = f" But of its {small.graph:.2f} µs a node with an empty kernel takes {node:.2f}, so at this "
        floor += "size `graph`, too, reads mostly what any kernel costs."
    display.say(
        f"- Ask `graph` how fast a kernel is. For a small one on the {gpu} `event` says "
        f"{plot.number(small.event / small.graph)} times as much: it times the launch, too.{floor}\n"
        f"- Say cold or warm: there the same kernel differs by up to {sides.gain.max():.1f} times.\n"
        f"- An eager call from Python costs {low:.0f} to {high:.0f} µs there, depending on the launcher; a "
        f"node of a graph {node:.2f} µs; a grid barrier {us[environment.BARRIER]:.2f} µs."
    )


def explored(lab: Lab, clocked: Rows) -> Any:
    """The explorer of one kernel by the first screen's clocks and size, opened at the smallest one."""
    rows = clocked[clocked["clock"].isin(THREE)]
    return explorer.Explorer(
        "clocks",
        rows,
        y="median_us",
        controls={"clock": "Clock"},
        title="saxpy/1_scalar, warm",
        ylog=True,
        start={"clock": "graph", "n": int(rows["n"].min())} if len(rows) else None,
        measure=explorer.measurer(lab),
    )
