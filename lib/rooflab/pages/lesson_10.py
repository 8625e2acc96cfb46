"""What lesson 10's page shows: what a link gives by size, and what sums over two GPUs cost."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

import rooflab.lab
from rooflab import paths
from rooflab.hardware import device
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import NEAR, SOURCES, Opening, Rows, held, one_line
from rooflab.studies import environment, links
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import listed

WAYS = {
    "peer_write": "a kernel's stores",
    "peer_read": "a kernel's loads",
    "peer_copy": "the copy engine",
}
NAMES = {
    links.NCCL: "NCCL",
    links.ONE_SHOT: "symmetric memory, one shot",
    links.TWO_SHOT: "symmetric memory, two shots",
}


def between(rows: Rows) -> Rows:
    """The rows of copies from one GPU to the other."""
    return rows[rows["operator"].isin(links.PEER)]


def sums(rows: Rows) -> Rows:
    """The libraries' all-reduces."""
    return rows[(rows["operator"] == "all_reduce") & (rows["kind"] != "own")]


def name(row: Any) -> str:
    """A contestant in words: its library, and by which clock."""
    eager = ", called eagerly" if row["clock"] == "event" else ""
    return NAMES.get(row["impl"], str(row["impl"])) + eager


def opening(rows: Rows, here: Lab) -> Opening:
    """The rate of a link beside its sheet's, and the least that a sum over both costs; the chart of rates."""
    sent, gpu = between(rows), here.run["gpu"]
    best = sent.loc[sent["gb_s"].idxmax()]
    small = sums(rows)[sums(rows)["bytes"] == sums(rows)["bytes"].min()]
    quick = small.loc[small["median_us"].idxmin()]
    store = sent[sent["operator"] == "peer_write"]
    least = store.loc[store["median_us"].idxmin()]
    answer = (
        f"Between two {gpu}s a large array crosses at {best['gb_s']:.0f} GB/s, "
        f"{best['gb_s'] / links.SHEET_GB_S:.0%} of the sheet's {links.SHEET_GB_S:.0f}, by "
        f"{WAYS[best['operator']]}, and a kernel that stores {plot.size_text(least['bytes'])} there takes "
        f"{least['median_us']:.1f} µs on the sender (when they arrive was not timed); a library's sum of "
        f"{plot.size_text(quick['bytes'])} over both GPUs takes {quick['median_us']:.1f} µs or more."
    )
    able = (
        "predict a transfer between GPUs from a latency and a rate",
        "say whether latency or rate limits the transfer of an array",
        "choose a library's all-reduce by the array's size, and say what an eager call costs",
    )
    return answer, able, _rates(sent, gpu)


def _rates(sent: Rows, gpu: Any) -> Any:
    title = "From one GPU to the other"
    fig, ax = plot.figure("bytes", "µs", title, xlog=True, ylog=True, height=2.6)
    for way, says in WAYS.items():
        mine = sent[sent["operator"] == way]
        if len(mine):
            plot.series(ax, mine["bytes"], *plot.band(mine, "median_us"), label=says)
    sizes = sorted(set(sent["bytes"]))
    least = [size / links.SHEET_GB_S / 1e3 for size in sizes]
    ax.plot(sizes, least, color=plot.ROOF_COLOUR, linestyle=(0, (8, 3)), zorder=1)
    ax.set_ylim(bottom=0.5 * sent["median_us"].min())
    plot.size_ticks(ax, sizes[::2])
    plot.round_ticks(ax, steps=(1,))
    plot.label_ends(ax)
    caption = (
        f"{title} on {gpu}, {plot.dates(sent)}: level while the latency decides, then along the link's rate. "
    )
    return fig, f"{caption}Dashed: bytes at the sheet's {links.SHEET_GB_S:.0f} GB/s each way."


def facts(here: Lab) -> None:
    """Show whose figures these are, and what joins the GPUs."""
    run = here.run_of("links")
    note = joined(str(run["note"]))
    one_line({"GPU": " · ".join([run["gpu"], SOURCES[here.mode], f"run {run['run']}", note])})


def joined(note: str) -> str:
    """A run's note on what joins its GPUs, with the sheet's rate, by which the pages count."""
    if found := re.search(r"(\d+) NVLinks of [\d.]+ GB/s each way", note):
        each = links.SHEET_GB_S / int(found[1])
        roof = f"{found[1]} × {each:g} = {links.SHEET_GB_S:g}"
        return f"{note} by the driver; the roof here is the sheet's {roof}"
    return note


def alone(gpu: Any) -> Lab | None:
    """The committed recording of one such GPU, where there is one: what lessons 00 to 09 replay."""
    bare = str(gpu).removeprefix("NVIDIA ")
    slugs = [
        name for name in device.names() if device.get(name).name == bare and (paths.DATA / name).is_dir()
    ]
    return rooflab.lab.open("replay", slugs[0]) if slugs else None


def in_a_row(rows: Rows) -> None:
    """Draw what crosses the link, crossing by crossing, for each way to move an array."""
    ways = [way for way in WAYS if way in set(between(rows)["operator"])]
    carries = {WAYS[way]: ("load", "words") if way == "peer_read" else ("words",) for way in ways}
    diagram.in_a_row([(WAYS[way], links.crossings(way, "")) for way in ways], carries).show()
    if "peer_write" in ways:
        display.say(
            "*There* is where the last crossing ends. Stores are *posted*: the kernel that makes them may "
            "end before that, and it alone is timed. A ping-pong, which times arrivals, was not measured."
        )


def assumed(gpu: Any) -> None:
    """Say what the law's constants were before measuring, and what lesson 00b has for a launch."""
    one, nodes = alone(gpu), ""
    if one is not None:
        found = one.store.read("environment")
        ways = environment.handovers(found).set_index("handover")["median_us"]
        small = found[(found["operator"] == "saxpy") & (found["clock"] == "graph") & (found["options"] == "")]
        if "node of a graph" in ways and len(small):
            least = small.loc[small["n"].idxmin()]
            nodes = (
                f"[Lesson 00b](00b_clocks.ipynb), one {gpu}: {ways['node of a graph']:.2f} µs for a node "
                f"that does next to nothing, {least['median_us']:.2f} for one over {int(least['n']):,} "
                "numbers. We allowed more, for the kernel's own work."
            )
    display.say(
        f"Assumed before measuring: {links.HOP_US:g} µs for a crossing, the sheet's {links.SHEET_GB_S:.0f} "
        f"GB/s, and {links.LAUNCH_US:g} µs for a launch in a graph. Lessons 10b and 10c keep these numbers."
    )
    other = "[Lesson 07b](07b_predicting.ipynb)'s fixed time a kernel is another quantity: it is fitted, and "
    other += "holds all that a product takes beyond its bytes."
    display.fold_items(f"Why {links.LAUNCH_US:g} µs for a launch", [nodes, other] if nodes else [other])


def sums_in_a_row(rows: Rows) -> None:
    """Draw how often each library's sum is guessed to cross the link, and what crosses."""
    mine = [impl for impl in NAMES if impl in set(sums(rows)["impl"])]
    twice = ("load", "words", "load", "words")
    guess = {links.NCCL: twice, links.ONE_SHOT: ("flag", "load", "words"), links.TWO_SHOT: twice}
    ways = [(NAMES[impl], links.crossings("all_reduce", impl)) for impl in mine]
    diagram.in_a_row(ways, {NAMES[impl]: guess[impl] for impl in mine}, guessed=True).show()


def predicted(rows: Rows, of: Sequence[str] = links.PEER) -> None:
    """Show the law's times for a small array and a large one, before anything is measured: of the ways to
    move it, or of sums.
    """
    sizes = sorted(set(between(rows)["bytes"]))
    chosen = [sizes[0], sizes[-1]]
    kinds = [kind for kind in _kinds() if kind[0] in of]
    table = pd.DataFrame({"what": [says for *_, says in kinds]})
    table["crossings"] = [links.crossings(operator, impl) for operator, impl, _ in kinds]
    for size in chosen:
        table[str(size)] = [links.bound_us(operator, impl, size, 2) for operator, impl, _ in kinds]
    shown = {"what": "What", "crossings": "Crossings in a row"}
    shown |= {str(size): f"{plot.size_text(size)}, µs" for size in chosen}
    forms = {"what": "", "crossings": "{:.0f}"} | {str(size): "{:,.1f}" for size in chosen}
    display.table(table, shown, forms, "predicted: launch + crossings + bytes over the sheet's rate")


def _kinds() -> list[tuple[str, str, str]]:
    """What the law predicts: (operator, impl or "", in words)."""
    sums_of = [("all_reduce", impl, f"sum, {says}") for impl, says in NAMES.items()]
    return [*((way, "", says) for way, says in WAYS.items()), *sums_of]


def judged(rows: Rows, gpu: Any) -> None:
    """Show predicted beside measured times of the least array and the largest, and say how the law failed."""
    ours = (rows["kind"] == "own") & rows["operator"].isin(links.COLLECTIVES)
    graph, lines = rows[~ours & (rows["clock"] == "graph")], []
    sizes = [between(rows)["bytes"].min(), between(rows)["bytes"].max()]
    for operator, impl, says in _kinds():
        mine = graph[(graph["operator"] == operator) & ((graph["impl"] == impl) if impl else True)]
        us = mine.groupby("bytes")["median_us"].min()
        line: dict[str, Any] = {"what": says, "sum": bool(impl)}
        for place, size in enumerate(sizes):
            predicted = links.bound_us(operator, impl, int(size), 2)
            line |= {f"p{place}": predicted, f"m{place}": us.get(size)}
            line[f"r{place}"] = us.get(size, float("nan")) / predicted
        lines.append(line)
    table = pd.DataFrame(lines)
    columns, forms = {"what": "What"}, {"what": ""}
    for place, size in enumerate(sizes):
        name = plot.size_text(size)
        columns |= {f"p{place}": f"{name}: predicted (µs)", f"m{place}": f"{name}: measured (µs)"}
        columns |= {f"r{place}": f"{name}: measured ÷ predicted"}
        forms |= {f"p{place}": "{:,.1f}", f"m{place}": "{:,.1f}", f"r{place}": "{:.2f}"}
    display.table(table, columns, forms, f"Predicted and measured, {gpu}")
    store, total = table[table["what"] == WAYS["peer_write"]], table[table["sum"]].dropna(subset=["r0"])
    lines_of = []
    if len(store) and store["r0"].notna().all():
        row = store.iloc[0]
        verdict = held(row["r0"]).removesuffix(".")
        lines_of.append(
            f"A store of {plot.size_text(sizes[0])}: {row['m0']:.2f} µs where {row['p0']:.1f} were "
            f"predicted. {verdict}"
            + (
                f": the launch alone was taken for {links.LAUNCH_US:g} µs, more than the whole kernel. So a "
                "launch takes less than assumed; of a crossing this says nothing. The numbers are kept."
                if row["m0"] < links.LAUNCH_US
                else "."
            )
        )
    engine = table[table["what"] == WAYS["peer_copy"]]
    if len(engine) and len(store) and engine["m0"].iloc[0] > NEAR * store["m0"].iloc[0]:
        lines_of.append(
            f"The copy engine takes {engine['m0'].iloc[0]:.2f} µs for it, "
            f"{engine['m0'].iloc[0] / store['m0'].iloc[0]:.1f} times a store. These times do not tell why."
        )
    if len(total):
        low, high = total["r0"].min(), total["r0"].max()
        lines_of.append(
            f"The libraries' sums of {plot.size_text(sizes[0])} take {low:.1f} to {high:.1f} times the "
            "prediction."
            + (" They cross more often than was guessed, or wait in between." if low > NEAR else "")
        )
        lines_of += _order_failed(total)
    far = table["r1"].dropna()
    if len(far):
        lines_of.append(
            f"At {plot.size_text(sizes[1])} everything takes {far.min():.2f} to {far.max():.2f} times the "
            "prediction" + (": the sheet's rate is not reached." if far.min() > 1.05 else ".")
        )
    display.say("\n".join(f"- {line}" for line in lines_of))


def _order_failed(sums: Rows) -> list[str]:
    """Which two sums of the least array are level, or not in the predicted order; none where all are."""
    level, failed = list[str](), list[str]()
    for first, second in itertools.permutations(sums.itertuples(), 2):
        if second.p0 > LEVEL * first.p0 and second.m0 <= LEVEL * first.m0:
            names = [each.what.removeprefix("sum, ") for each in (first, second)]
            said = f"{' before '.join(names)} (measured: {first.m0:.2f} and {second.m0:.2f} µs, "
            said += f"{abs(first.m0 / second.m0 - 1):.1%} apart)"
            (failed if second.m0 * LEVEL < first.m0 else level).append(said)
    lines = [f"The predicted order fails too: it has {listed(failed)}."] if failed else []
    return lines + [f"The prediction has {each}: they are level, within {LEVEL - 1:.0%}." for each in level]


def laws(rows: Rows, words: dict[str, str], title: str, folded: bool = False) -> None:
    """Show latency and rate fitted to contestants, named by operator or impl in `words`, and say of whom no
    straight line holds.
    """
    found = links.law(rows, 2)
    found["who"] = [words.get(row["operator"], name(row)) for row in found.to_dict("records")]
    columns = {"who": "What", "latency_us": "Latency (µs)", "rate_gb_s": "Rate (GB/s)"}
    columns |= {"worst": "A point is off by at most (times)"}
    forms = {"who": "", "latency_us": "{:.2f}", "rate_gb_s": "{:,.0f}", "worst": "{:.2f}"}
    display.table(found, columns, forms, title, folded)
    bent = found[found["worst"] > NEAR]
    if len(bent):
        display.say(
            "A straight line does not fit "
            + listed(f"{row.who} (a point is {row.worst:.2f} times off)" for row in bent.itertuples())
            + ". The library may change its method with the size."
        )


def latency_holds(rows: Rows, gpu: Any) -> None:
    """Say from which size the rate holds an array, by the law of a kernel's stores."""
    found = links.law(rows[rows["operator"] == "peer_write"], 2)
    if found.empty:
        display.say("There are too few sizes here to fit a law to.")
        return
    best = rows.loc[rows["gb_s"].idxmax()]
    fitted = links.law(rows, 2).set_index("operator")["rate_gb_s"].get(best["operator"], float("nan"))
    above = ""
    if best["gb_s"] > fitted:
        above = (
            f"The line is fitted to all sizes and misses single ones: by {WAYS[best['operator']]} "
            f"{plot.size_text(best['bytes'])} even reached {best['gb_s']:.0f} GB/s, above the fitted "
            f"{fitted:.0f}.\n\n"
        )
    law = found.iloc[0]
    size = law["latency_us"] * law["rate_gb_s"] * 1e3
    first, last = rows["bytes"].min(), rows["bytes"].max()
    small = float(law["latency_us"] / (law["latency_us"] + first / law["rate_gb_s"] / 1e3))
    display.say(
        f"{above}For a store on the {gpu} latency and transfer are equal at "
        f"{plot.size_text(round(size / 1024) * 1024)}. Of a "
        f"store of {plot.size_text(first)} the latency is {small:.0%}; at {plot.size_text(last)} it no "
        "longer counts. The activations of a token are a few KiB: **for them only the latency matters**."
    )


def sum_times(rows: Rows, gpu: Any) -> None:
    """Draw the libraries' sums by size."""
    found = sums(rows)
    title = "All-reduce over two GPUs"
    fig, ax = plot.figure("bytes of the array", "µs", title, xlog=True, ylog=True)
    for (impl, by), mine in found.groupby(["impl", "clock"], sort=False):
        label = name({"impl": impl, "clock": by})
        plot.series(ax, mine["bytes"], *plot.band(mine, "median_us"), label=label)
    plot.size_ticks(ax, sorted(set(found["bytes"]))[::2])
    plot.label_ends(ax)
    plot.show(fig, f"{title} on {gpu}, {plot.dates(found)}. {_told(found)}")


def _told(found: Rows) -> str:
    """What the chart of sums shows: who is fastest in a graph from which size on, and the eager calls."""
    graph, text = found[found["clock"] == "graph"], ""
    best = graph.loc[graph.groupby("bytes")["median_us"].idxmin()].sort_values("bytes")
    last = best.iloc[-1]
    others = best[best["impl"] != last["impl"]]["bytes"]
    early = best[(best["impl"] == last["impl"]) & (best["bytes"] < others.max())]["bytes"]
    since = best[~(best["bytes"] <= others.max())]["bytes"].min()
    where = f"from {plot.size_text(since)} on" if len(others) else "at every size"
    also = f", and at {listed(map(plot.size_text, early))}" if len(early) else ""
    text = f"In a graph {name(last)}: fastest {where}{also}."
    few = found[(found["clock"] == "event") & (found["bytes"] <= links.OWN_MOST)]["median_us"]
    if len(few):
        text += (
            f" Called eagerly: {few.min():.0f} to {few.max():.0f} µs up to {plot.size_text(links.OWN_MOST)}."
        )
    return text


def winners(rows: Rows) -> None:
    """Show who is fastest by size, and what NCCL takes in a graph and eagerly."""
    found, lines = sums(rows), []
    for size, mine in found.groupby("bytes"):
        best = mine.loc[mine["median_us"].idxmin()]
        nccl = mine[mine["impl"] == links.NCCL].set_index("clock")["median_us"]
        lines.append(
            {"size": plot.size_text(size), "best": name(best), "us": best["median_us"]}
            | {"graph": nccl.get("graph"), "event": nccl.get("event")}
        )
    wide = found.pivot_table("median_us", "bytes", "impl")
    if {links.ONE_SHOT, links.TWO_SHOT} <= set(wide):
        behind = wide.index[wide[links.ONE_SHOT] > NEAR * wide[links.TWO_SHOT]]
        if len(behind):
            display.say(
                f"Both ways send the same bytes, yet from {plot.size_text(behind[0])} on one shot takes more "
                f"than {NEAR:g} times as long as two. It was timed up to "
                f"{plot.size_text(wide[links.ONE_SHOT].dropna().index.max())}."
            )
    columns = {"size": "Array", "best": "Fastest library", "us": "µs"}
    columns |= {"graph": "NCCL in a graph (µs)", "event": "NCCL eagerly (µs)"}
    forms = {"size": "", "best": "", "us": "{:,.1f}", "graph": "{:,.1f}", "event": "{:,.1f}"}
    display.table(pd.DataFrame(lines), columns, forms)


def eager(rows: Rows, gpu: Any) -> None:
    """Say what an eager call of NCCL costs beside its work."""
    nccl = sums(rows)[sums(rows)["impl"] == links.NCCL]
    wide = nccl.pivot(index="bytes", columns="clock", values="median_us").dropna()
    if wide.empty:
        return
    small, large = wide.iloc[0], wide.iloc[-1]
    display.say(
        f"On the {gpu} an eager sum of {plot.size_text(wide.index[0])} takes {small['event']:.0f} µs, "
        f"{small['event'] / small['graph']:.1f} times as long as in a graph; at "
        f"{plot.size_text(wide.index[-1])} the two differ by {abs(large['event'] / large['graph'] - 1):.0%}."
        + _scattered(wide["event"])
    )


def _scattered(eager_us: Rows) -> str:
    """That small sums called eagerly take their time from the CPU, where they are not in the order of
    sizes.
    """
    few = eager_us[eager_us.index <= 1 << 18]
    if len(few) < 3 or few.is_monotonic_increasing:
        return ""
    return (
        f" Up to {plot.size_text(few.index[-1])} eager sums take {few.min():.0f} to {few.max():.0f} µs, not "
        "in the "
        "order of their sizes: they time the CPU."
    )


def halves(rows: Rows) -> None:
    """Say, in a fold, what all-gather and reduce-scatter take beside the all-reduce that they make up."""
    graph = rows[(rows["clock"] == "graph") & (rows["impl"] == links.NCCL)]
    wide = graph.pivot(index="bytes", columns="operator", values="median_us").dropna().reset_index()
    wide["both"] = wide["all_gather"] + wide["reduce_scatter"]
    if wide.empty:
        return
    said = [
        f"at {plot.size_text(row['bytes'])} {row['both']:,.1f} µs, and an all-reduce {row['all_reduce']:,.1f}"
        for _, row in wide.iloc[[0, -1]].iterrows()
    ]
    text = f"One after the other NCCL's, in a graph, take {'; '.join(said)}. As one call they share a launch."
    display.fold_items("A reduce-scatter and an all-gather make an all-reduce", [text])


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    sent, found = between(rows), sums(rows)
    best, graph = sent.loc[sent["gb_s"].idxmax()], found[found["clock"] == "graph"]
    small = graph[graph["bytes"] == graph["bytes"].min()]
    large = graph[graph["bytes"] == graph["bytes"].max()]
    quick, wide = (each.loc[each["median_us"].idxmin()] for each in (small, large))
    ends = f"The fastest library for {plot.size_text(quick['bytes'])} is {name(quick)} "
    ends += f"({quick['median_us']:.1f} µs), for {plot.size_text(wide['bytes'])} {name(wide)} "
    ends += f"({wide['median_us']:,.0f} µs)."
    if name(quick) == name(wide):
        ends = f"The fastest library is {name(quick)} at both ends: {quick['median_us']:.1f} µs for "
        ends += (
            f"{plot.size_text(quick['bytes'])}, {wide['median_us']:,.0f} for {plot.size_text(wide['bytes'])}."
        )
    display.say(
        f"- Between two {gpu}s all links together carry at most {best['gb_s']:.0f} GB/s, by "
        f"{WAYS[best['operator']]}.\n"
        f"- {ends}\n"
        "- Small arrays cost crossings, large ones bytes: count both before you split a model."
    )


def explored(rows: Rows, here: Lab) -> explorer.Explorer:
    """The explorer of transfers and sums by size."""
    libraries = rows["operator"].isin(links.COLLECTIVES) & (rows["kind"] != "own")
    shown = rows[(rows["operator"].isin(links.PEER) | libraries) & (rows["clock"] == "graph")]
    return explorer.Explorer(
        "links",
        shown,
        y="median_us",
        controls={"operator": "What", "impl": "By"},
        title=f"Two {here.run['gpu']}s",
        labels={"median_us": "µs"},
        ylog=True,
        start={"operator": "all_reduce", "impl": links.NCCL},
    )
