"""What lesson 10's page shows: what a link gives by size, and what sums over two GPUs cost."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import SOURCES, Opening, Rows, one_line
from rooflab.studies import links
from rooflab.view import diagram, display, explorer, plot

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
        f"{best['gb_s'] / links.SHEET_GB_S:.0%} of the sheet's {links.SHEET_GB_S:.0f}, and "
        f"{plot.size_text(least['bytes'])} in {least['median_us']:.1f} µs; a library's sum of "
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
    fig, ax = plot.figure("bytes", "GB/s", title, xlog=True, height=2.6)
    for way, says in WAYS.items():
        mine = sent[sent["operator"] == way]
        if len(mine):
            plot.series(ax, mine["bytes"], *plot.band(mine), label=says)
    plot.roof_line(ax, links.SHEET_GB_S, f"the sheet's {links.SHEET_GB_S:.0f} GB/s each way")
    plot.size_ticks(ax, sorted(set(sent["bytes"]))[::2])
    plot.label_ends(ax)
    return fig, plot.caption(sent, gpu, title, ("link", links.SHEET_GB_S, "GB/s"))


def facts(here: Lab) -> None:
    """Show whose figures these are, and what joins the GPUs."""
    run = here.run_of("links")
    one_line({"GPU": " · ".join([run["gpu"], SOURCES[here.mode], f"run {run['run']}", str(run["note"])])})


def predicted(rows: Rows) -> None:
    """Show the law's times for a small array and a large one, before anything is measured."""
    sizes = sorted(set(between(rows)["bytes"]))
    chosen = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    kinds = [*((way, "", says) for way, says in WAYS.items())]
    kinds += [("all_reduce", impl, f"a sum: {says}") for impl, says in NAMES.items()]
    table = pd.DataFrame({"what": [says for *_, says in kinds]})
    table["crossings"] = [links.crossings(operator, impl) for operator, impl, _ in kinds]
    for size in chosen:
        table[str(size)] = [links.bound_us(operator, impl, size, 2) for operator, impl, _ in kinds]
    shown = {"what": "What", "crossings": "Crossings in a row"}
    shown |= {str(size): f"{plot.size_text(size)}, µs" for size in chosen}
    forms = {"what": "", "crossings": "{:.0f}"} | {str(size): "{:,.1f}" for size in chosen}
    display.table(table, shown, forms, "predicted: launch + crossings + bytes over the sheet's rate")
    diagram.in_a_row([(what, int(n)) for what, n in table[["what", "crossings"]].to_numpy()]).show()


def laws(rows: Rows, words: dict[str, str], title: str) -> pd.DataFrame:
    """Show latency and rate fitted to contestants, named by operator or impl in `words`; the table."""
    found = links.law(rows, 2)
    found["who"] = [words.get(row["operator"], name(row)) for row in found.to_dict("records")]
    columns = {"who": "What", "latency_us": "Latency (µs)", "rate_gb_s": "Rate (GB/s)"}
    columns |= {"worst": "Furthest point, times the law"}
    forms = {"who": "", "latency_us": "{:.2f}", "rate_gb_s": "{:,.0f}", "worst": "{:.2f}"}
    display.table(found, columns, forms, title)
    return found


def held(rows: Rows, gpu: Any) -> None:
    """Say from which size the rate holds an array, by the law of a kernel's stores."""
    found = links.law(rows[rows["operator"] == "peer_write"], 2)
    if found.empty:
        display.say("There are too few sizes here to fit a law to.")
        return
    law = found.iloc[0]
    size = law["latency_us"] * law["rate_gb_s"] * 1e3
    first, last = rows["bytes"].min(), rows["bytes"].max()
    small = float(law["latency_us"] / (law["latency_us"] + first / law["rate_gb_s"] / 1e3))
    display.say(
        f"On the {gpu} latency and transfer are equal at {plot.size_text(round(size / 1024) * 1024)}. Of a "
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
    plot.show(fig, plot.caption(found, gpu, title, y="median_us"))


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
    )


def halves(rows: Rows) -> None:
    """Show all-gather and reduce-scatter beside the all-reduce that they make up."""
    graph = rows[(rows["clock"] == "graph") & (rows["impl"] == links.NCCL)]
    wide = graph.pivot(index="bytes", columns="operator", values="median_us").dropna().reset_index()
    wide["both"] = wide["all_gather"] + wide["reduce_scatter"]
    wide["size"] = [plot.size_text(size) for size in wide["bytes"]]
    columns = {"size": "Array", "reduce_scatter": "Reduce-scatter (µs)", "all_gather": "All-gather (µs)"}
    columns |= {"both": "Together (µs)", "all_reduce": "All-reduce (µs)"}
    forms = {key: "{:,.1f}" for key in columns} | {"size": ""}
    display.table(wide, columns, forms, "NCCL, in a graph")


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    sent, found = between(rows), sums(rows)
    best, graph = sent.loc[sent["gb_s"].idxmax()], found[found["clock"] == "graph"]
    small = graph[graph["bytes"] == graph["bytes"].min()]
    large = graph[graph["bytes"] == graph["bytes"].max()]
    quick, wide = (each.loc[each["median_us"].idxmin()] for each in (small, large))
    display.say(
        f"- On the {gpu} a link carries at most {best['gb_s']:.0f} GB/s, by {WAYS[best['operator']]}.\n"
        f"- The fastest library for {plot.size_text(quick['bytes'])} is {name(quick)} "
        f"({quick['median_us']:.1f} µs), for {plot.size_text(wide['bytes'])} {name(wide)} "
        f"({wide['median_us']:,.0f} µs).\n"
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
