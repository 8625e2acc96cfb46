"""What lesson 03b shows: what a coalesced kernel lacks, by experiment, and the climb to the roof."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.ops import gemv
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_03b_climb import changes_with_strips as changes_with_strips
from rooflab.pages.lesson_03b_climb import flying, latency, launched, measured_need, mib, recorded, start_us
from rooflab.pages.lesson_03b_climb import left_by_rung_3 as left_by_rung_3
from rooflab.pages.lesson_03b_climb import result as result
from rooflab.pages.lesson_03b_climb import timed_again as timed_again
from rooflab.studies import drawn as watched
from rooflab.studies import gemv as study
from rooflab.view import diagram, display, page, plot
from rooflab.words import listed


def opening(here: Lab, rows: Rows, ceiling: float, n: int, size: int) -> Opening:
    """The first screen: from rung 2 to the best rung, and what the experiment with `size` rows blames."""
    gpu = here.run["gpu"]
    by = rows.set_index("impl")
    best, two = rows[rows["kind"] == "own"].sort_values("median_us").iloc[0], by.loc["2_coalesced"]
    needed = roofline.bytes_in_flight(ceiling, latency(here))
    text = f"It lacks bytes in flight: on the {gpu} rung 2 asks for "
    text += f"{plot.size_text(flying(here, [two['case']])[0])} at a time"
    text += f", where the read roof needs {mib(needed)}{measured_need(here)}" if needed == needed else ""
    if "3_split_k" in by.index and best["impl"] != "3_split_k":
        three = by.loc["3_split_k"]
        text += f". More of them make {three.name} {display.speed(two['median_us'] / three['median_us'])}; "
        text += f"the best, {best['impl']}, is "
    else:
        text += f". With more of them {best['impl']} is "
    text += f"{display.speed(two['median_us'] / best['median_us'])}, at "
    able = [
        "say by Little's law how many bytes a kernel must have in flight",
        "tell two causes apart by an experiment that changes one of them",
        "write a GEMV over a row-major matrix that comes near the roof",
    ]
    roof = ("read", ceiling, "GB/s")
    if n != size:  # no experiment to show beside these rows
        chart = page.ladder(rows, gpu, roof, f"GEMV, {n:,} × {n:,} in FP32, cold")
    else:
        chart = _changed_apart(here, rows, roof, n)
    return f"{text}{best['roof_fraction']:.0%} of the read roof.", able, chart


def _changed_apart(here: Lab, rows: Rows, roof: plot.Roof, n: int) -> tuple[Figure, str]:
    """Rung 2, as many of its threads in more blocks, rung 3 with more threads in as many, and every rung."""
    smaller, parts = experiment(here, n)
    spread = smaller.sort_values("blocks").iloc[-1]
    more = parts[parts["blocks"] >= spread["blocks"]].head(1)
    own = rows[rows["kind"] == "own"]
    two = own[own["impl"] == "2_coalesced"]
    rest = own[~own["impl"].isin(("1_strided", "2_coalesced"))]
    shown: Rows = pd.concat([two, smaller[smaller["blocks"] == spread["blocks"]], more, rest])
    blocks = gemv.blocks_of(gemv.LADDERS["gemv"][1], n, gemv.LADDERS["gemv"][1].with_defaults({}))
    names = [f"2_coalesced, {blocks} blocks", f"2_coalesced, {spread['blocks']} blocks"]
    names += [f"3_split_k, {row} blocks" for row in more["blocks"]]
    names += [_with_blocks(here, row) for row in rest.itertuples()]
    sizes = flying(here, shown["case"])
    names = [f"{name}: {plot.size_text(size)}" for name, size in zip(names, sizes, strict=True)]
    title = f"GB/s, and how much each has in flight: {n:,} × {n:,} in FP32"
    fig, ax = plot.figure("GB/s", title=title, height=2.6)
    fig.set_figwidth(page.WIDEST)
    rate, low, high = plot.band(shown)
    plot.bars(ax, names, rate, "GB/s", (f"{roof[0]} roof", *roof[1:]), low, high)
    title += f" on {here.run['gpu']}, {plot.dates(shown)}"
    point = "As many bytes in more blocks bring nothing; more bytes do. " if blamed(smaller, parts) else ""
    ends = "Rungs 3 to 6 are built below, one after the other. "
    ends += f"From {min(rate):,.0f} to {max(rate):,.0f} GB/s, under a read roof of {roof[1]:,.0f}."
    return fig, f"{title}. {point}{ends}"


def _with_blocks(here: Lab, row: Any) -> str:
    """A rung's name in the first chart; rung 3's, whose blocks the experiment varies, with their number."""
    if row.impl != "3_split_k":
        return str(row.impl)
    return f"{row.impl}, {launched(here, str(row.case))[0]} blocks"


def _alike(here: Lab, rows: Rows, end: str = "") -> str:
    """Two rungs with as many bytes in flight, more than the read roof needs, and other rates, as a sentence
    with `end`; "" where there are none.
    """
    needed = roofline.bytes_in_flight(here.roof["dram_read"].value, latency(here))
    own = rows[(rows["kind"] == "own") & rows["median_us"].notna()]
    own = own.assign(flying=flying(here, own["case"]))
    for size, same in own[own["flying"] > needed].groupby("flying"):
        fast, slow = same.loc[same["gb_s"].idxmax()], same.loc[same["gb_s"].idxmin()]
        if not display.level(fast, slow):
            text = f"Beyond the {mib(needed)}, the least that the roof needs, other things decide too: "
            text += f"{fast['impl']} and {slow['impl']} have {plot.size_text(int(str(size)))} each, and read "
            return f"{text}{fast['gb_s']:,.0f} and {slow['gb_s']:,.0f} GB/s{end}"
    return ""


def predicted(here: Lab, n: int) -> None:
    """Show what Little's law allows rung 2: its bytes in flight, those the roof needs, and the rate."""
    rung, sms = gemv.LADDERS["gemv"][1], int(here.run["sms"])
    roof, wait = here.roof["dram_read"].value, latency(here)
    under_way = n * 4 * 4  # a thread a column, four loads of four bytes
    allowed = roofline.bandwidth(under_way / sms, sms, wait, roof)
    guess = {
        "Blocks, SMs": f"{gemv.blocks_of(rung, n, rung.with_defaults({}))}, {sms}",
        "Latency of a lone load": f"{wait:.0f} ns",
        "Bytes in flight": plot.size_text(under_way),
        "Needed for the roof, at least": mib(roofline.bytes_in_flight(roof, wait)),
        "So at most": f"{allowed:,.0f} GB/s",
    }
    frame = pd.DataFrame(guess.items(), columns=["what", "value"])
    display.say(
        f"On paper rung 2 has {guess['Bytes in flight']} in flight at {n:,} × {n:,}, and the roof needs "
        f"{guess['Needed for the roof, at least']} at least: **at most {guess['So at most']}**, with the "
        f"{guess['Latency of a lone load']} that a lone load takes."
    )
    names = {"what": f"Rung 2 at {n:,} × {n:,}", "value": "On paper"}
    display.table(frame, names, caption="The same, number by number", folded=True)


def experiment(here: Lab, size: int) -> tuple[Rows, Rows]:
    """Rung 2 with its threads in more blocks, and rung 3 with more threads: rows with a column blocks."""
    strips = gemv.blocks_of(gemv.LADDERS["gemv"][2], size, gemv.LADDERS["gemv"][2].with_defaults({}))
    smaller = here.measure("gemv", study.blocks_sweep("2_coalesced", size))
    parts = here.measure("gemv", study.splits_sweep(size))
    threads = smaller["options"].str.extract(r"threads=(\d+)")[0].astype(int)
    splits = parts["options"].str.extract(r"splits=(\d+)")[0].astype(int)
    law = parts["bytes"] / parts["predicted_us"] / 1e3
    return smaller.assign(blocks=-(-size // threads)), parts.assign(blocks=splits * strips, law=law)


def drawn(smaller: Rows, parts: Rows, gpu: str, sms: int, ceiling: float) -> None:
    """Draw the rate over the number of blocks: of the same threads, and of more."""
    title = "More blocks: of the same threads, and of more"
    fig, ax = plot.figure(f"blocks (the GPU has {sms} SMs)", "GB/s", title, xlog=True)
    plot.series(ax, parts["blocks"], *plot.band(parts), label="more threads")
    plot.series(ax, smaller["blocks"], *plot.band(smaller), label="same threads")
    plot.series(ax, parts["blocks"], parts["law"].clip(upper=ceiling), label="Little's law")
    plot.roof_line(ax, ceiling, f"read {ceiling:,.0f} GB/s")
    ticks = sorted({*smaller["blocks"], *parts["blocks"]})
    ax.set_xticks(ticks, [f"{blocks}" for blocks in ticks])
    plot.label_ends(ax)
    both: Rows = pd.concat([smaller, parts])
    said = f"{title}: on {gpu}, {plot.dates(both)}. The same threads in {smaller['blocks'].max()} blocks "
    said += f"instead of {smaller['blocks'].min()} read between {smaller['gb_s'].min():,.0f} and "
    said += f"{smaller['gb_s'].max():,.0f} GB/s; more threads read up to {parts['gb_s'].max():,.0f}, "
    plot.show(fig, f"{said}{parts['gb_s'].max() / ceiling:.0%} of the read roof.")


def blamed(smaller: Rows, parts: Rows) -> bool:
    """Whether loads in flight are to blame, and not the empty SMs."""
    most = smaller["blocks"].max()
    grown = parts[parts["blocks"] == most]["gb_s"] / parts["gb_s"].iloc[0]
    spread = smaller["gb_s"].max() / smaller["gb_s"].min()
    return bool(len(grown) and spread < 1.2 and grown.iloc[0] > 1.5)


def found(smaller: Rows, parts: Rows, here: Lab, size: int) -> None:
    """Say what the experiment found."""
    sms = int(here.run["sms"])
    least, most = smaller["blocks"].min(), smaller["blocks"].max()
    spread = smaller["gb_s"].max() / smaller["gb_s"].min()
    grown = parts[parts["blocks"] == most]["gb_s"] / parts["gb_s"].iloc[0]
    text = f"The *same* {size:,} threads in {least} to {most} blocks, and so on {min(least, sms)} to "
    text += f"{min(most, sms)} of {sms} SMs, change the rate by a factor of {spread:.2f}. "
    if len(grown):
        text += f"From {parts['blocks'].iloc[0]} to {most} blocks with *more* threads it "
        text += f"{display.change(grown.iloc[0])}. "
    if blamed(smaller, parts):
        text += "**So rung 2 lacks bytes in flight; idle SMs are not what limits it.** "
    top, last = parts.loc[parts["gb_s"].idxmax()], parts.iloc[-1]
    text += f"The most, {top['gb_s']:,.0f} GB/s or {top['roof_fraction']:.0%} of the read roof, comes with "
    text += f"{top['blocks']:,} blocks"
    if last["gb_s"] < 0.97 * top["gb_s"]:
        text += (
            f"; with {last['blocks']:,} it is {last['gb_s'] / top['gb_s']:.0%} of that, most likely as each "
        )
        text += "part costs a partial sum"
    needed = roofline.bytes_in_flight(here.roof["dram_read"].value, latency(here))
    if needed == needed:
        enough = math.ceil(needed / (16 * size))
        few = enough * parts["blocks"].iloc[0]
        text += f". By Little's law the roof needs {enough} parts or more, {few:,} blocks. That is a lower "
        text += "bound: many loads at once wait for each other, so each takes longer than a lone one"
        if top["blocks"] > few:
            text += f", and the best number here is {top['blocks'] / few:.1f} times as many"
    display.say(f"{text}.")


def sms_at_work(here: Lab, n: int) -> None:
    """Draw how many SMs three rungs keep at work, and how much each of them has in flight."""
    roof, names = here.roof["dram_read"].value, ("3_split_k", "5_in_flight", "6_column_strips")
    cases = {case.impl: case.id for case in study.ladder("gemv", n, n)}
    most = flying(here, [cases[name] for name in names])
    needed = roofline.bytes_in_flight(roof, latency(here))
    diagram.sms_at_work(n, n, int(here.run["sms"]), names, most, needed).show()


def split_k() -> None:
    """Say of what small matrix the steps are drawn, and draw them."""
    rows = watched.read("regions", "split k")
    reads = rows[rows["buffer"] == "a"]
    strips, deep = reads["column"].nunique(), int((reads["row"] + reads["rows"]).max())
    first = sorted(int(block) for block in reads[reads["column"] == 0]["block"])
    display.say(
        f"A small case: a matrix of {deep} rows and {strips} strips of columns. The left strip, which is "
        f"drawn, belongs to the blocks with `blockIdx.x` = 0 and `blockIdx.y` = 0 to {first[-1] // strips}: "
        f"{listed(map(str, first))}, for blocks are numbered along x first. They run at the same time; the "
        "steps show one after the other:"
    )
    diagram.split_k(rows).show()


def what_is_left(here: Lab, n: int) -> None:
    """Draw the time of each rung that has bytes enough in flight, and of the peer, less that of its bytes at
    the read roof, at size n and at the largest recorded; say whether it grows with the bytes.
    """
    roof = here.roof["dram_read"].value
    sizes = sorted({n, max(recorded(here, n))})
    rows = here.measure("gemv", [case for size in sizes for case in study.ladder("gemv", size, size)])
    rows = rows[~rows["impl"].isin(("1_strided", "2_coalesced"))].copy()
    rows["rest"] = (rows["median_us"] - rows["bytes"] / roof / 1e3).clip(lower=0)
    rows["name"] = rows["impl"] + rows["kind"].map({"peer": " (peer)"}).fillna("")
    rest = rows.pivot(index="name", columns="n", values="rest").loc[rows["name"].unique()]
    title = "Time beyond the bytes at the read roof, FP32"
    fig, ax = plot.figure("µs", title=title, height=2.9)
    fig.set_figwidth(page.WIDEST)
    parts = {f"{size:,} × {size:,}": rest[size] for size in sizes}
    plot.grouped(ax, list(rest.index), parts, 1.1 * float(rest.max().max()), ".1f")
    ends = f"At {n:,} × {n:,} it is between {rest[n].min():.1f} and {rest[n].max():.1f} µs."
    plot.show(fig, f"{title}: on {here.run['gpu']}, {plot.dates(rows)}. {ends}")
    own = rest.loc[rows[rows["kind"] == "own"]["name"].unique()]
    text = f"The least is left in {own[n].idxmin()}. "
    if max(sizes) > n:
        more, ratios = (max(sizes) / n) ** 2, own[max(sizes)] / own[n].clip(lower=1e-9)
        if ratios.median() < more / 2:
            flat = [str(name) for name in rest.index if rest[max(sizes)][name] <= 1.5 * rest[n][name]]
            steep = [str(name) for name in rest.index if name not in flat]
            apart = (rest[max(sizes)] - rest[n])[flat].abs().max()
            text = f"With {more:g} times the bytes "
            if flat:
                text += f"the rest of {listed(flat)} changes by at most {apart:.1f} µs, so **for these "
                text += "it is mostly a fixed cost.** "
            if steep:
                factors = (rest[max(sizes)] / rest[n].clip(lower=1e-9))[steep]
                text += f"{'The' if flat else 'the'} rest of {listed(steep)} grows by a factor of up to "
                text += f"{factors.max():.1f}: part of it comes with the bytes. "
            text += f"{own[n].idxmin()} has the least. "
    start, least = start_us(here), own[n].min()
    if start == start and least < 1.3 * start:
        text += f"Of its {least:.1f} µs {min(start, least):.1f} are the start and finish of any read."
    display.say(text.strip())


def measured(rows: Rows, gpu: str) -> None:
    """Show every contestant, then the standings in words."""
    rows = rows.copy()
    rows["foretold"], rows["by"] = foretold(rows)
    rows["of"] = rows["error"] / rows["error_budget"]
    rows["spread"] = (rows["q3_us"] - rows["q1_us"]) / rows["median_us"]
    names = {"impl": "Rung or peer", "of": "Error ÷ allowed", "foretold": "Foretold (µs)", "by": "By"}
    names |= {"median_us": "Median (µs)", "spread": "Quartiles apart", "registers": "Registers"}
    forms = dict.fromkeys(("foretold", "median_us"), "{:,.1f}")
    forms |= {"of": "{:.2f}", "spread": "{:.1%}"}
    display.table(rows, names, forms, "Errors, predictions and times of every rung", folded=True)
    best = rows[rows["kind"] == "own"].sort_values("median_us").iloc[0]
    text = f"On the {gpu} {best['impl']} is the fastest rung, with **{best['gb_s']:,.0f} GB/s**"
    for _, peer in rows[rows["kind"] == "peer"].iterrows():
        text += f". It {display.against(best, peer)} {peer['impl']}"
    display.say(f"{text}.")


def foretold(rows: Rows) -> tuple[Rows, list[str]]:
    """The prediction of each row in microseconds, by Little's law or by its bytes at the read roof, whichever
    is the longer, and which of the two it is.
    """
    at_roof = rows["bytes"] / (rows["gb_s"] / rows["roof_fraction"]).max() / 1e3
    law = rows["predicted_us"] > 1.001 * at_roof
    return rows["predicted_us"].where(law, at_roof), ["Little's law" if by else "read roof" for by in law]


def changed(rows: Rows, here: Lab) -> None:
    """Show of rung 3 and those above it what they do not share, beside the time that is to be explained."""
    roof = here.roof["dram_read"].value
    own = rows[(rows["kind"] == "own") & ~rows["impl"].isin(("1_strided", "2_coalesced"))]
    grids = [launched(here, case) for case in own["case"]]
    frame = pd.DataFrame({"impl": own["impl"]})
    frame["blocks"] = [f"{blocks:,} × {threads:,}" for blocks, threads in grids]
    frame["all"] = [blocks * threads for blocks, threads in grids]
    frame["flying"] = [plot.size_text(size) for size in flying(here, own["case"])]
    frame["meet"] = ["yes" if name in gemv.SHARED_COLUMNS else "no" for name in own["impl"]]
    frame["rest"] = own["median_us"] - own["bytes"] / roof / 1e3
    names = {"impl": "Rung", "blocks": "Blocks × threads", "all": "Threads", "flying": "Bytes in flight"}
    names |= {"meet": "Partial sums cross blocks", "rest": "Beyond the roof (µs)"}
    display.table(frame, names, {"all": "{:,}", "rest": "{:.1f}"}, "What differs between the rungs")


def sizes(here: Lab, n: int) -> None:
    """Show each contestant's share of the roof at every recorded size."""
    wanted = recorded(here, n)
    rows = here.measure("gemv", [case for n in wanted for case in study.ladder("gemv", n, n)])
    share = rows.pivot(index="impl", columns="n", values="roof_fraction").reset_index()
    share.columns = share.columns.map(str)
    names = {"impl": "Rung or peer"} | {str(size): f"{size:,} × {size:,}" for size in wanted}
    forms = dict.fromkeys(map(str, wanted), "{:.0%}")
    display.table(share, names, forms, "Every rung's share of the read roof", folded=True)


def takeaway(rows: Rows, smaller: Rows, parts: Rows, here: Lab, n: int) -> None:
    """The page's last word."""
    by, gpu = rows.set_index("impl"), here.run["gpu"]
    best, slowest = rows[rows["kind"] == "own"].sort_values("median_us").iloc[0], by.loc["2_coalesced"]
    text = f"- On the {gpu} {best['impl']} reads {best['gb_s']:,.0f} GB/s of a {n:,} × {n:,} matrix, "
    text += f"{best['roof_fraction']:.0%} of the roof; realizar's coalesced rung "
    text += f"{slowest['gb_s']:,.0f} GB/s. {timed_again(here, rows, n)}".rstrip() + "\n"
    text += "- Change one suspect at a time. Blocks and loads in flight grow together"
    if blamed(smaller, parts):
        text += "; here more blocks alone brought nothing, and more bytes in flight did"
        text += f". {_alike(here, rows)}" if _alike(here, rows) else ""
    else:
        text += ", and an experiment tells them apart"
    text += ".\n- Once enough bytes are in flight, look for time that does not grow with the bytes."
    display.say(text)
