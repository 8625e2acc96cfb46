"""What lesson 01b shows: where roofs hold, clocks of copies, transfers, and the peaks of arithmetic."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import lab
from rooflab.analysis import states
from rooflab.hardware import roofline
from rooflab.pages.lesson_01_bandwidth import least_us
from rooflab.studies import bandwidth
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.view.diagram import roofs
from rooflab.words import counted

REALIZAR = "https://github.com/paiml/realizar"  # data/published/README.md says which of its pages


def path_of_bytes(here: Any, l2: int, sweep: Any) -> None:
    """Draw the links that data crosses with their measured rates, and what the SMs can do in that time."""
    known = {name: float(roof.value) for name, roof in here.roof.items()}
    links = [
        roofs.Link("host", known.get("pcie_h2d", 0.0), "PCIe, pinned"),
        roofs.Link("DRAM", known["dram_read"], "cold reads"),
        roofs.Link("L2", from_l2(here, l2, sweep), "warm kernels", at_least=True),
    ]
    ends = f"{int(here.run['sms']):,} SMs"
    diagram.path_of_bytes(links, ends, known["dram_read"], roofs.peaks(known)).show()


def from_l2(here: Any, l2: int, sweep: Any) -> float:
    """The highest rate, in GB/s, of a warm kernel whose operands fit the L2: of this page's reads and of
    lesson 00b's saxpy; 0 where none was measured.
    """
    warm = [case for case in here.cases("environment") if case.operator == "saxpy" and case.cache == "warm"]
    warm = here.held("environment", [case for case in warm if case.clock == "graph" and not case.options])
    found = [sweep, here.measure("environment", warm)] if warm else [sweep]
    rates = [rows[(rows["cache"] == "warm") & (rows["bytes"] <= l2)]["gb_s"].max() for rows in found]
    return float(max((rate for rate in rates if rate == rate), default=0.0))


def guesses(dram_sheet: Any, fp16_sheet: Any, l2: Any) -> Any:
    """Show what is predicted before anything is measured."""
    ridge_sheet = roofline.ridge(dram_sheet, fp16_sheet)
    said = {
        "Warm beats cold up to": plot.size_text(l2),
        "No cold stream is faster than": f"{dram_sheet:,.0f} GB/s",
        "Arithmetic bounds FP16 products from": f"{ridge_sheet:,.0f} FLOP per byte",
    }
    frame = pd.DataFrame(said.items(), columns=["what", "guess"])
    display.table(frame, {"what": "Question", "guess": "Prediction"})
    return ridge_sheet


def knee(gpu: Any, l2: Any, read_roof: Any, sweep: Any) -> Any:
    """Say up to which size warm beats cold, and from which a roof holds."""
    cold = sweep[sweep["cache"] == "cold"].sort_values("bytes")
    at, start = bandwidth.knee(sweep), bandwidth.fixed_us(cold, read_roof)
    larger = cold["bytes"][cold["bytes"] > (at or 0)]
    after = f" and no longer at {plot.size_text(larger.min())}" if len(larger) else ""
    if at:
        edge = sweep[sweep["bytes"] == at].set_index("cache")["median_us"]
        display.say(
            f"On the {gpu} warm beats cold up to {plot.size_text(at)} ({edge['warm']:.2f} "
            f"against {edge['cold']:.2f} µs){after}; its L2 is {plot.size_text(l2)}. "
            + (
                "A larger array pushes its own beginning out of L2 before it is read again."
                if at <= 2 * l2
                else "Why it should so far beyond its L2, nothing measured here says."
            )
        )
    modelled = cold["bytes"] / (start + cold["bytes"] / read_roof / 1e3) / 1e3
    off = (modelled / cold["gb_s"] - 1).abs().max()
    reached = cold[cold["gb_s"] >= 0.9 * read_roof]["bytes"]
    found = plot.size_text(reached.min()) if len(reached) else ""
    beyond = f". The smallest measured array that does has {found}" if found else ""
    display.say(
        f"A model with one number in it, {start:.1f} µs to start and finish and then "
        f"bytes at the roof, is within {off:.0%} of every point of the cold curve. By it "
        "an array reaches 90% of the roof when its bytes take 9 times as long as "
        f"starting and finishing: at {9e3 * start * read_roof / 2**20:.0f} MiB{beyond}."
    )
    return after, at, reached


def opinions(dram_sheet: Any, here: Any, streams: Any) -> None:
    """Show the datasheet's, the profiler's and the kernels' bandwidth."""
    profile = here.profile("bandwidth", bandwidth.profiled(), "ncu", bandwidth.PROFILED)
    counted = bandwidth.counted(profile)
    peak = counted["dram_peak_bytes_per_s"].median() / 1e9
    views = {"datasheet": dram_sheet, "profiler's peak (ncu)": peak}
    views |= {f"measured: {op}": here.roof[f"dram_{op}"].value for op in streams}
    three = pd.DataFrame(views.items(), columns=["what", "gb_s"])
    three["sheet"] = 100 * three["gb_s"] / dram_sheet
    names = {"what": "Opinion", "gb_s": "GB/s", "sheet": "% of datasheet"}
    display.table(three, names, {"gb_s": "{:,.0f}", "sheet": "{:.1f}"})


def copies_drawn(gpu: Any, here: Any, large: Any) -> Any:
    """Draw the copies by size, a panel a clock; their rows, the roof, and the rows of the drawn sizes."""
    copies = here.measure("bandwidth", bandwidth.copies_by_clock(large))
    copies["name"] = copies["impl"] + " " + copies["clock"].replace("event", "eager")
    round_sizes = copies[copies["n"] != copies["n"].max() - 1024]
    fig, axes = plot.figure("bytes an array", "GB/s", "The same copies by two clocks", columns=2, xlog=True)
    fig.set_figwidth(page.WIDEST)
    copy_roof = here.roof["dram_copy"].value
    for ax, (clock, title) in zip(axes, _CLOCKS.items(), strict=True):
        for impl, rows in round_sizes[round_sizes["clock"] == clock].groupby("impl", sort=False):
            plot.series(ax, 4 * rows["n"], *plot.band(rows), label=impl)
        plot.roof_line(ax, copy_roof, "copy roof")
        plot.size_ticks(ax, 4 * round_sizes["n"])
        ax.set_title(title, fontsize=9)
        ax.set_ylim(0, 1.15 * max(copy_roof, round_sizes["gb_s"].max()))
        plot.label_ends(ax)
    slow = bandwidth.fallen_copies(copies, "cudaMemcpyAsync")
    found = (
        f"the runtime's copy is slower as a graph node from {plot.size_text(4 * slow[0])} on"
        if slow
        else ("the runtime's copy is as fast by either")
    )
    plot.show(fig, f"Copies by two clocks on {gpu}, {plot.dates(round_sizes)}: {found}.")
    return copies, copy_roof, round_sizes


_CLOCKS = {"graph": "as nodes of a graph", "event": "called eagerly"}


def fallen(copies: Any, gpu: Any, ladders: Any, large: Any) -> Any:
    """Say what the library's copies lose as graph nodes; the sizes where the runtime's does."""
    slow = bandwidth.fallen_copies(copies, "cudaMemcpyAsync")
    if not slow:
        display.say(f"On the {gpu} the runtime's copy runs at the same rate by both clocks.")
        return slow
    named = copies[copies["impl"] == "cudaMemcpyAsync"].set_index(["clock", "n"])["gb_s"]
    at = large if large in slow else slow[-1]
    text = f"On the {gpu} the runtime's copy of {plot.size_text(4 * slow[0])} or more is slower as a graph "
    text += f"node: of {plot.size_text(4 * at)} it runs at {named['graph', at]:,.0f} GB/s there and at "
    text += f"{named['event', at]:,.0f} called eagerly. Why, no trace here shows. "
    text += "**The clock decides** which rate one sees."
    types = ladders[ladders["operator"] == "copy"]
    types = types.assign(name=plot.contestants(types)).set_index("name")
    if {"torch.copy_ uint8", "torch.copy_ int32"} <= set(types.index):
        byte, word = types.loc["torch.copy_ uint8"], types.loc["torch.copy_ int32"]
        text += (
            f" The type of the elements {'does not' if display.level(byte, word) else 'does'}: as a node, "
        )
        text += f"`copy_` of `uint8` {display.against(byte, word)} that of `int32`."
    display.say(text)
    return slow


def transfers_traced(here: Any) -> None:
    """Show what the timeline saw of each library copy, folded."""
    traced = here.profile("bandwidth", bandwidth.traced(), "nsys")
    groups = traced.groupby("case", sort=False)
    kinds = groups[["kind", "short"]].first()
    kinds["us"] = groups["duration_ns"].median() / 1e3
    calls = [name.partition(" n=")[0].split() for name in kinds.index]
    kinds["call"] = [" ".join(w for w in words if "/" in w or "=" in w) for words in calls]
    names = {"call": "Eager, traced by Nsight Systems", "kind": "Activity"}
    names |= {"short": "What ran", "us": "µs"}
    size = plot.size_text(4 * (bandwidth.traced()[0].n or 0))
    title = f"What ran when each copy was called eagerly, {size} an array"
    display.table(kinds, names, {"us": "{:.1f}"}, title, folded=True)


def from_host(here: Any, sweep: Any) -> Any:
    """Show transfers from the host beside a kernel that reads the same bytes."""
    moved = here.measure("bandwidth", bandwidth.transfers())
    size = bandwidth.TRANSFER
    kernel = sweep[(sweep["n"] == size) & (sweep["cache"] == "cold")]
    if not len(kernel):  # a sweep that skips this size
        kernel = here.measure("bandwidth", bandwidth.sweep([size], "cold"))
    both = pd.concat([moved, kernel])
    both["name"] = both["operator"] + " " + both["impl"]
    names = {"name": f"Moving {plot.size_text(4 * size)}", "clock": "Clock"}
    names |= {"predicted_us": "Bound (µs)", "median_us": "Median (µs)", "gb_s": "GB/s"}
    display.table(both, names, dict.fromkeys(("predicted_us", "median_us", "gb_s"), "{:,.1f}"))
    return kernel, moved, size


def published_time(kernel: Any, moved: Any, size: Any) -> None:
    """Say what a published kernel's time has in common with a transfer."""
    published: Any = lab.open("replay", "rtx-4090-published").store.read("gemv")
    published = published.set_index("impl")["median_us"] / 1e3
    claim = published["strided"]
    pageable = moved.set_index("impl")["median_us"]["pageable"] / 1e3
    alike = 0.5 < pageable / claim < 2
    alike = "The claimed time is about that of a transfer." if alike else ""
    read_us = kernel["median_us"].iloc[0]
    display.say(
        f"The specification of [realizar]({REALIZAR}), a public CUDA project, reports {claim:.2f} ms for a "
        "4,096 × 4,096 float matrix-vector product on an RTX 4090 and blames strided access to DRAM. That "
        f"matrix is these {plot.size_text(4 * size)}. Here a kernel *reads* it in "
        f"{read_us:.1f} µs; to *carry it over* from pageable memory takes {pageable:.2f} "
        f"ms, {1e3 * pageable / read_us:,.0f} times as long and {pageable / claim:.0%} of "
        f"the published time. {alike}"
    )
    display.say(
        "A time on one machine proves nothing about another. But realizar's own later log says "
        f"what its uploads cost: its coalesced kernel took {published['coalesced_uploading']:.1f} ms "
        f"while every call uploaded the weights, and {published['coalesced']:.2f} ms once "
        "they stayed. Time transfers and kernels apart."
    )


def peaks(gpu: Any, here: Any) -> Any:
    """Show the peaks of arithmetic in a burst and sustained; their rows."""
    matrix = bandwidth.MATRIX[here.effort]
    gemm = here.measure("bandwidth", bandwidth.peaks(matrix))
    tops = bandwidth.burst_and_sustained(gemm, here.spec)
    names = {"roof": "Peak", "burst": "Burst", "sustained": "Sustained"}
    names |= {"sheet": "Datasheet, dense", "share": "Burst % of datasheet"}
    names |= {"kept": "Sustained % of burst", "mhz": "its clock, MHz", "watts": "its power, W"}
    said = f"TFLOP/s (int8: TOP/s), products of {matrix} x {matrix} matrices on {gpu}"
    display.table(tops, names, dict.fromkeys(list(names)[1:], "{:,.0f}"), said)
    return tops


def power(gpu: Any, here: Any, tops: Any) -> None:
    """Say which peaks power sets."""
    low, kept = tops[tops["share"] < 60], tops["kept"].dropna()
    limited = tops[(tops["kept"] < 98) & (tops["capped"] > 0.5)]
    text = f"On the {gpu} no sustained product is held back by power. "
    text = text if len(kept) else f"On the {gpu} no product was timed both ways. "
    if len(limited):
        drop = tops.loc[kept.idxmin()]
        which = f"all {len(kept)}" if len(limited) == len(kept) > 2 else display.listed(limited["roof"])
        text = f"On the {gpu} **power sets the sustained roof** of {which}: "
        text += f"it holds the clock down. {drop['roof']} loses most, and keeps {drop['kept']:.0f}% of "
        text += "its burst. "
    streams = states.kept(states.measured(here, "read", "copy"), "read", "copy")
    text += f"{streams} " if streams else ""
    if len(low):
        text += f"Under 60% of the datasheet: {', '.join(low['roof'])}. One library's "
        text += "product shows what the hardware can do at least, not its limit."
    display.say(text)


def rooflines(gpu: Any, read_roof: float, tops: Any) -> None:
    """Draw both ceilings over FLOP per byte, and how far FP16 products of 1 to 1024 tokens can come."""
    shown = tops[tops["roof"].isin(["fp32", "fp16_tensor", "fp8_tensor"])].dropna(subset="ridge")
    if shown.empty:
        return
    title = "Two ceilings: memory left of a ridge, arithmetic right of it"
    fig, ax = plot.figure("FLOP per byte", "TFLOP/s", title, xlog=True, ylog=True, height=3.2)
    most = 4 * float(shown["ridge"].max())
    style: dict[str, Any] = {"textcoords": "offset points", "color": plot.ROOF_COLOUR, "fontsize": 8.5}
    for roof, peak, ridge in shown[["roof", "burst", "ridge"]].to_numpy():
        ax.plot([0.5, ridge, most], [0.5 * read_roof / 1e3, peak, peak], color=plot.ROOF_COLOUR)
        ax.annotate(f"{roof} {peak:,.0f}", (most, peak), (0, 3), ha="right", **style)
    words, slope = f"read roof {read_roof:,.0f} GB/s", (3.0, 3.0 * read_roof / 1e3)
    ax.annotate(words, slope, (8, -6), **style)
    fp16 = shown[shown["roof"] == "fp16_tensor"]["burst"]
    tokens = [1, 8, 64, 1024]
    across = [
        roofline.intensity(roofline.gemm_flops(n, 4096, 4096), roofline.gemm_bytes(n, 4096, 4096, 2))
        for n in tokens
    ]
    said = ""
    if len(fp16):
        up = [min(x * read_roof / 1e3, float(fp16.iloc[0])) for x in across]
        plot.series(ax, across, up, label="tokens").set_linestyle("none")
        for count, x, y in zip(tokens, across, up, strict=True):
            at, side = ((-6, 4), "right") if x < most / 16 else ((0, -14), "center")
            ax.annotate(counted(count, "token"), (x, y), at, ha=side, **style | {"color": plot.COLOURS[0]})
        said = "; the most that a 4096 x 4096 FP16 product of "
        said += display.listed([f"{n:,}" for n in tokens]) + " tokens can reach is "
        said += f"{display.listed([f'{y:,.3g}' for y in up])} TFLOP/s"
    ends = [f"{roof} from {ridge:,.0f}" for roof, ridge in shown[["roof", "ridge"]].to_numpy()]
    plot.show(fig, f"{title}, {gpu}: arithmetic bounds {display.listed(ends)} FLOP per byte on{said}.")


def one_token(gpu: Any, tops: Any) -> Any:
    """Say what one token's product does for each byte."""
    flops, size_bytes = roofline.gemm_flops(1, 4096, 4096), roofline.gemm_bytes(1, 4096, 4096, 2)
    fp16 = tops.set_index("roof")["ridge"].get("fp16_tensor")
    if fp16:
        display.say(
            "One token through a 4,096 × 4,096 FP16 matrix does "
            f"{roofline.intensity(flops, size_bytes):.2f} FLOP per byte; the ridge of the "
            f"{gpu} lies at {fp16:.0f}. Writing one token at a time is memory-bound; tokens "
            "that share each weight that is read move the product to the right."
        )
    return fp16


def device_roofs(here: Any, gpu: Any) -> None:
    """Show every roof with the case that set it, folded."""
    columns = ["value", "unit", "case"]
    roofs = pd.DataFrame.from_dict(dict(here.roof), orient="index", columns=columns).reset_index()
    names = {"index": "Roof", "value": "Value", "unit": "Unit", "case": "Measured by"}
    title = f"All {len(roofs)} roofs of the {gpu}, run {here.run_of('bandwidth')['run']}"
    display.table(roofs, names, {"value": "{:,.0f}"}, title, folded=True)


def takeaway(
    after: Any,
    at: Any,
    dram_sheet: Any,
    fp16: Any,
    gpu: Any,
    here: Any,
    l2: Any,
    reached: Any,
    read_roof: Any,
    ridge_sheet: Any,
    slow: Any,
) -> None:
    """The page's last word."""
    text = f"- The {gpu} reads at **{read_roof:,.0f} GB/s**"
    text += f", {read_roof / dram_sheet:.0%} of its datasheet. " if here.spec else ". "
    if len(reached):
        text += f"{plot.size_text(reached.min())} is the smallest array that reaches 90% "
        text += "of that cold. "
    if at:
        text += f"Warm beat cold up to {plot.size_text(at)}{after}; "
        text += f"from the L2's size we predicted {plot.size_text(l2)}."
    text += "\n"
    if slow:
        text += "- The same library call on the same bytes has another rate as a graph node "
        text += "than called eagerly.\n"
    if fp16:
        text += f"- Arithmetic bounds FP16 products from {fp16:,.0f} FLOP per byte on"
        text += f"; the datasheet said {ridge_sheet:,.0f}.\n" if here.spec else ".\n"
    text += "- A roof comes from a kernel, a size and a clock. Name all three."
    display.say(text)


def explored(dram_sheet: Any, gpu: Any, here: Any, ladders: Any, read_roof: Any, sweep: Any) -> Any:
    """The explorer of reads."""
    own = ladders[(ladders["operator"] == "read") & (ladders["kind"] == "own")]
    return explorer.Explorer(
        "read-sweep",
        pd.concat([own, sweep]).drop_duplicates("case"),
        controls={"cache": "Cache", "impl": "Kernel"},
        roof=("DRAM read", read_roof, "GB/s"),
        title=f"Reading on {gpu}",
        bound=least_us(dram_sheet, here),
        measure=explorer.measurer(here),
    )


def explored_copies(dram_sheet: Any, copy_roof: Any, gpu: Any, here: Any, round_sizes: Any) -> Any:
    """The explorer of copies."""
    return explorer.Explorer(
        "copies",
        round_sizes,
        controls={"clock": "Clock", "impl": "Copy"},
        roof=("copy", copy_roof, "GB/s"),
        title=f"The same copies by two clocks on {gpu}",
        bound=least_us(dram_sheet, here),
        measure=explorer.measurer(here),
    )
