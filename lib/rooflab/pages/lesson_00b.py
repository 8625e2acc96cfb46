"""What lesson 00b shows: one kernel by several clocks, cold and warm, in four states of the GPU, and what a
launch, a barrier and a load cost.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab.analysis import states
from rooflab.bench import clock
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.studies import environment, power
from rooflab.view import diagram, display, explorer, page, plot

# The clocks of the first screen, as the chart names them.
THREE = {
    "wall": "wall: until the program goes on",
    "event": "event: one launch, mark to mark",
    "graph": "graph: one of a chain of launches",
}
PROFILERS = ("nsys", "cupti", "ncu")


def opening(times: Rows, gpu: str, when: str) -> Opening:
    """The first screen: `times` has sizes as its index and a column a clock."""
    small, large = times.iloc[0], times.iloc[-1]
    text = f"On the {gpu} a kernel over {times.index[0]:,} elements takes {small.graph:.2f} µs as one of a "
    text += f"chain of launches, and {plot.number(small.event / small.graph)} times as long if one launch is "
    text += f"timed alone; over {times.index[-1]:,} elements the two clocks differ by a factor of "
    text += f"{large.event / large.graph:.2f}."
    able = [
        "choose the clock that answers your question",
        "say cold or warm, burst or sustained, and why",
        "price a launch, a barrier and a load",
    ]
    return text, able, three_bars(times, gpu, when)


def three_bars(times: Rows, gpu: str, when: str) -> tuple[Figure, str]:
    """The smallest and the largest size by the clocks of THREE, and the caption."""
    ends = list(dict.fromkeys([times.index[0], times.index[-1]]))
    names = [name for name in THREE if name in times]
    fig, axes = plot.figure("µs", title="One kernel by three clocks", columns=2, height=1.7)
    fig.set_figwidth(page.WIDEST)
    for ax, n in zip(axes, ends, strict=False):
        plot.bars(ax, [THREE[name] for name in names], times.loc[n, names], "µs")
        ax.set_title(f"{n:,} elements", fontsize=9)
    if len(ends) == 1:
        axes[1].remove()
    spread = times[names].max(axis=1) / times[names].min(axis=1)
    caption = f"saxpy/1_scalar, warm, on {gpu}, {when}: highest over lowest clock "
    return fig, caption + ", ".join(f"{spread[n]:,.1f} at {n:,} elements" for n in ends) + "."


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
    display.say(f"Predicted: `event` adds **{eager_us(handovers):.1f} µs**, whatever the size.")


def by_clock(times: Rows, *names: str) -> None:
    """Show the times of one launch by the clocks `names`, as far as they were read."""
    read = [name for name in names if name in times and times[name].notna().any()]
    heads = {"n": "elements"} | {name: name for name in read}
    formats = {"n": "{:,}"} | dict.fromkeys(read, "{:.4g}")
    display.table(times.reset_index(), heads, formats, "saxpy/1_scalar, warm: µs a launch (median)")


def clocks_drawn(times: Rows) -> None:
    """Draw what each of the three clocks counts, for the smallest size that all three timed."""
    read = [name for name in ("wall", "event", "graph") if name in times]
    timed = times[read].dropna()
    if len(read) == 3 and len(timed):
        diagram.clocks(*(float(time) for time in timed.iloc[0])).show()


def event_against_graph(times: Rows, handovers: Rows, probes: Rows) -> None:
    """Say what the event clock adds, and whether that is the eager call that was predicted."""
    eager, added = eager_us(handovers), times["event"] - times["graph"]
    small, large = times.iloc[0], times.iloc[-1]
    display.say(
        f"At {times.index[0]:,} elements `event` reads **{plot.number(small.event / small.graph)} times** "
        f"the {small.graph:.2f} µs of `graph`: {added.iloc[0] / small.event:.0%} of what it shows is the "
        f"launch. At {times.index[-1]:,} it is {added.iloc[-1] / large.event:.0%}. `event` adds "
        f"{added.min():.0f} to {added.max():.0f} µs; {eager:.1f} was predicted."
    )
    lonely = probes.set_index("case").median_us.get("touch/touch warm event", math.nan)
    off = added.median() / eager
    display.say(
        "The prediction holds."
        if 0.75 < off < 1.33
        else f"The prediction is off by a factor of {off:.1f}. The chain of empty kernels measured how often "
        "the host can call. It did not measure how long one call takes to arrive: `event` reads "
        f"{lonely:.0f} µs even for an *empty* kernel, called once after a pause."
    )


def profilers(times: Rows) -> None:
    """Show the profilers' times beside the graph clock's, and say what they leave out."""
    by_clock(times, "graph", *PROFILERS)
    least, most, small = times.index[0], times.index[-1], times.iloc[0]
    ends = times[["ncu", "nsys"]].div(times["graph"], axis=0).iloc[[0, -1]]
    text = ""
    if small.graph > small.nsys:
        text += f"`nsys` leaves out the hand-over to the next kernel: {small.graph - small.nsys:.2f} µs at "
        text += f"{least:,} elements. "
        if ends.nsys.iloc[-1] > crossover.LEVEL:
            text += f"At {most:,} it reads {ends.nsys.iloc[-1]:.2f} times `graph`; no measurement here "
            text += "explains that. "
    if ends.notna().all(axis=None):
        text += f"`ncu` reads {ends.ncu.iloc[0]:.2f} times `graph` at {least:,} elements and "
        text += f"{ends.ncu.iloc[-1]:.2f} times at {most:,}."
    display.say(text or "No profiler was read here.")


# --- dependent launch ---------------------------------------------------------------------------------------


def dependent_speed(clocked: Rows, apart: Rows, gpu: str) -> None:
    """Say how the dependent chain compares with the plain one at each size."""
    by = clocked.set_index(["n", "clock"])
    lines = []
    for n in apart[apart["clock"] == "graph_pdl"]["n"]:
        verdict = display.against(by.loc[(n, "graph_pdl")], by.loc[(n, "graph")])
        lines.append(f"- {n:,} elements: the dependent chain {verdict} the plain one.")
    absent = f"It cannot be tried on {gpu}: it needs compute capability 9.0."
    display.say("\n".join(lines) or absent)


def control(times: Rows, apart: Rows) -> None:
    """Show the control experiment: the instructions of dependent launch with plain edges, and its variant."""
    by = {name: rows.set_index("n")["median_us"] for name, rows in apart.groupby("clock")}
    nothing = pd.Series(dtype=float)
    parts = {
        "plain": times["graph"],
        "instructions only": by.get("graph", nothing),
        "dependent, let go early": times.get("graph_pdl", nothing),
        "dependent, let go late": by.get("graph_pdl", nothing),
    }
    heads = {"n": "elements"} | {name: name for name in parts}
    formats = {"n": "{:,}"} | dict.fromkeys(parts, "{:,.2f}")
    table = pd.DataFrame(parts).rename_axis("n").reset_index()
    display.table(table, heads, formats, "The control experiment: µs a launch", folded=True)


def dependent_cost(clocked: Rows, apart: Rows, gpu: str) -> None:
    """Say what the control experiment shows, and for which kernels dependent launch is worth it."""
    by, least, most = clocked.set_index(["n", "clock"]), clocked["n"].min(), clocked["n"].max()
    plain = apart[apart["clock"] == "graph"].set_index("n")
    if not (apart["clock"] == "graph_pdl").any():
        return
    if most in plain.index:
        serial, dependent, alone = by.loc[(most, "graph")], by.loc[(most, "graph_pdl")], plain.loc[most]
        costs = alone["median_us"] - serial["median_us"]
        text = f"At {most:,} elements the instructions alone "
        if display.level(alone, dependent) and alone["q1_us"] > serial["q3_us"]:
            text += f"cost as much as dependent launch: {costs:,.0f} µs. So early starts are not the cause. "
            text += "A block of this kernel does only two loads and a store, too little work to hide the two "
            text += "instructions behind. Why they take so long was not measured."
        else:
            text += f"change the time by {costs:,.1f} µs."
        display.say(text)
    if clock.faster(by.loc[(least, "graph_pdl")], by.loc[(least, "graph")]):
        display.say(
            f"A rule for later lessons on {gpu}: dependent launch helps the shortest kernels, as at "
            f"{least:,} elements. A longer one may gain if its blocks have something useful to do before "
            "they wait; that was not measured here."
        )


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


def bandwidth_by_cache(rows: Rows, gpu: str, l2_bytes: int) -> None:
    """Draw the bandwidth of rung 2 by size, cold and warm."""
    title = "saxpy/2_vector, warm and cold"
    fig, ax = plot.figure("bytes of the operands", "GB/s", title, xlog=True)
    for cache in ("cold", "warm"):
        side = rows[rows.cache == cache]
        plot.series(ax, side.bytes, *plot.band(side), label=cache)
    plot.size_ticks(ax, rows.bytes)
    plot.roof_line(ax, l2_bytes, f"L2 {plot.size_text(l2_bytes)}", vertical=True)
    plot.label_ends(ax)
    plot.show(fig, plot.caption(rows, gpu, "saxpy/2_vector warm and cold"))


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
            "So the gain ends before the cache is full. A hypothesis: this L2 is built in parts, and a line "
            "that SMs of both parts read is kept twice. Then it holds fewer *different* bytes than its size "
            "says. Compare the latencies below."
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


def neighbours(rows: Rows) -> None:
    """Say which kernels a hot neighbour slows, and show all of them."""
    moved = power.moved(rows)
    heat, own = 1e3 * clock.NEIGHBOUR_S, 1e3 * clock.SUSTAINED_S
    display.say(
        f"A neighbour runs for {heat:.0f} ms before each sample; a sustained kernel by itself for "
        f"{own:.0f} ms. " + (states.touched(moved) or "No kernel was measured so here.")
    )
    heads = {"operator": "operator", "impl": "kernel", "burst_us": "burst, µs"}
    heads |= {"sustained_us": "sustained", "after_cool_us": "behind copies"}
    heads |= {"after_hot_us": "behind products", "after_hot_mhz": "its clock, MHz"}
    formats = dict.fromkeys(list(heads)[2:], "{:,.4g}") | {"ratio": "{:.2f}"}
    heads |= {"ratio": "products ÷ copies"}
    display.table(moved, heads, formats, "Each operator's leaders in four states", folded=True)


# --- prices and latencies -----------------------------------------------------------------------------------


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
    first, ours, barriers = (display.times(ratio) for ratio in ratios)
    display.say(
        f"The cheapest eager call here, {calls.idxmin().removeprefix('eager call, ')}, takes {first} times "
        "as long as a graph node. This course's own launcher, which checks every operand, takes "
        f"{ours} times as long. A grid barrier over {sms} blocks takes {barriers} times as long as ending a "
        "kernel and starting the next node."
    )


def latency(steps: Rows, gpu: str, l2_bytes: int) -> None:
    """Draw the latency of a load by the size of the table that is chased through."""
    fig, ax = plot.figure("bytes of the table", "ns a load", "A pointer chase", xlog=True, height=2.8)
    for cache, side in steps.groupby("cache", sort=False):
        plot.series(ax, side.table_bytes, side.median_ns, side.q1_ns, side.q3_ns, label=cache)
    plot.size_ticks(ax, steps.table_bytes)
    plot.roof_line(ax, l2_bytes, f"L2 {plot.size_text(l2_bytes)}", vertical=True)
    plot.label_ends(ax)
    low, high = steps.median_ns.min(), steps.median_ns.max()
    caption = f"Latency of a load on {gpu}, {plot.dates(steps)}: {len(steps)} points"
    plot.show(fig, f"{caption}, from {low:.0f} to {high:.0f} ns.")


def l2_against_dram(
    steps: Rows, l2_ns: float | None, dram_ns: float | None, l2_bytes: int, same: bool
) -> None:
    """Say how long L2 and DRAM take to answer; `same` says that the bandwidths above fall early, too."""
    if not l2_ns or not dram_ns:
        return
    text = f"L2 answers in **{l2_ns:.0f} ns**, DRAM in **{dram_ns:.0f} ns**, {dram_ns / l2_ns:.1f} times as "
    text += "long. "
    late = steps[(steps.table_bytes < l2_bytes) & (steps.median_ns > 1.2 * l2_ns)]
    if len(late):
        size = late.table_bytes.min()
        text += f"A table of {plot.size_text(size)}, {size / l2_bytes:.0%} of the L2, already takes "
        text += f"{late.median_ns.min():.0f} ns a load"
        text += ", as the bandwidths above led to expect." if same else "."
    display.say(text)


def constants(handovers: Rows, times: Rows, l2_ns: float | None, dram_ns: float | None) -> None:
    """Show the constants that later lessons read from the recording."""
    added = (times["event"] - times["graph"]).median()
    rows = [(name, row.median_us, "µs", row.case) for name, row in handovers.iterrows()]
    rows += [
        ("event clock, added to a kernel", added, "µs", "saxpy/1_scalar, event less graph"),
        ("latency of L2", l2_ns, "ns", "chase, warm, up to a quarter of L2"),
        ("latency of DRAM", dram_ns, "ns", "chase, cold, smallest table"),
    ]
    heads = {"what": "constant", "value": "value", "unit": "", "case": "measured by"}
    title = "Constants that later lessons read from the recording"
    display.table(pd.DataFrame(rows, columns=list(heads)), heads, {"value": "{:.3g}"}, title, folded=True)


# --- the end of the page ------------------------------------------------------------------------------------


def claims(lab: Lab, clocked: Rows, cached: Rows, sides: Rows) -> None:
    """Show the rows behind the page's main sentences, and say which command measures them again."""
    ends = [(n, name) for n in (clocked["n"].min(), clocked["n"].max()) for name in ("graph", "event")]
    behind = [clocked[(clocked.n == n) & (clocked.clock == name)] for n, name in ends]
    behind.append(clocked[(clocked.n == clocked["n"].max()) & (clocked.clock == "graph_pdl")])
    behind += [cached[cached.n == sides.gain.idxmax()], cached[cached.cache == "cold"].tail(1)]
    found = pd.concat(behind).drop_duplicates("case")
    found["how"] = found["cache"] + ", " + found["clock"]
    runs = lab.store.runs().set_index("run")
    found["command"] = found["run"].map(runs["command"])
    heads = {"impl": "saxpy", "n": "elements", "how": "cache, clock", "median_us": "µs"}
    heads |= {"gb_s": "GB/s", "roof_fraction": "of roof", "command": "command"}
    formats = {"n": "{:,}", "median_us": "{:.2f}", "gb_s": "{:,.0f}"}
    title = "The rows behind this page's main sentences"
    display.table(found, heads, formats | {"roof_fraction": "{:.0%}"}, title, folded=True)
    made = runs.loc[found["run"].iloc[0]]
    display.say(
        "One command measures all of it again on such a machine: `rooflab record "
        f"environment`. It writes `data/{lab.device}/`: `environment.csv`, one row a case; "
        f"`runs.csv` with versions, clocks, commit (here {made.commit}) and command (here "
        f"`{made.command}`); and the profiles. "
        "`python -m rooflab report` draws every figure from them."
    )


def takeaway(times: Rows, sides: Rows, handovers: Rows) -> None:
    """What to take away, computed."""
    small, us = times.iloc[0], handovers.median_us
    display.say(
        f"- Ask `graph` how fast a kernel is. For a small one `event` says "
        f"{plot.number(small.event / small.graph)} times as much: it times the launch, too.\n"
        f"- Say cold or warm: the same kernel differs by up to {sides.gain.max():.1f} times.\n"
        f"- From one kernel to the next: a call from Python {eager_us(handovers):.0f} µs, a graph node "
        f"{us['node of a graph']:.2f} µs, a grid barrier {us[environment.BARRIER]:.2f} µs."
    )


def explored(lab: Lab, clocked: Rows, apart: Rows) -> Any:
    """The explorer of one kernel by clock and size."""
    return explorer.Explorer(
        "clocks",
        pd.concat([clocked, apart]),
        y="median_us",
        controls={"clock": "Clock", "options": "Dependent launch"},
        title="saxpy/1_scalar, warm",
        ylog=True,
        measure=explorer.measurer(lab),
    )
