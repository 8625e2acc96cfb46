"""What lesson 01b shows: the peaks of arithmetic, where roofs hold, clocks of copies, and transfers."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab import lab
from rooflab.analysis import states
from rooflab.hardware import device, roofline
from rooflab.pages import lesson_01
from rooflab.pages.lesson_01_bandwidth import least_us
from rooflab.studies import bandwidth
from rooflab.view import diagram, display, explorer, plot
from rooflab.view.diagram import roofs
from rooflab.words import counted, listed

REALIZAR = "https://github.com/paiml/realizar"  # data/published/README.md says which of its pages


def path_of_bytes(here: Any, l2: int, sweep: Any) -> None:
    """Draw the links that data crosses with their measured rates, and what the SMs can do in that time."""
    known = {name: float(roof.value) for name, roof in here.roof.items()}
    links = [
        roofs.Link("host", known.get("pcie_h2d", 0.0), "PCIe, pinned"),
        roofs.Link("DRAM", known["dram_read"], "cold reads"),
        roofs.Link("L2", *from_l2(here, l2, sweep), at_least=True),
    ]
    ends = f"{int(here.run['sms']):,} SMs"
    diagram.path_of_bytes(links, ends, known["dram_read"], roofs.peaks(known)).show()


def from_l2(here: Any, l2: int, sweep: Any) -> tuple[float, str]:
    """The highest rate, in GB/s, of a warm kernel whose operands fit the L2, and what it is: one of this
    page's reads or lesson 00a's saxpy; 0 where none was measured.
    """
    warm = [case for case in here.cases("environment") if case.operator == "saxpy" and case.cache == "warm"]
    warm = here.held("environment", [case for case in warm if case.clock == "graph" and not case.options])
    found = {"warm reads": sweep} | ({"warm saxpy": here.measure("environment", warm)} if warm else {})
    rates = {
        name: float(rows[(rows["cache"] == "warm") & (rows["bytes"] <= l2)]["gb_s"].max())
        for name, rows in found.items()
    }
    known = {name: rate for name, rate in rates.items() if rate == rate}
    best = max(known, key=known.__getitem__, default="warm kernels")
    return known.get(best, 0.0), best


def reading_by_size(here: Any, l2: int, sweep: Any) -> None:
    """Draw the read kernel by size, warm and cold."""
    plot.show(*lesson_01.sweep_chart(sweep, here.run["gpu"], here.roof["dram_read"].value, l2))


def guesses(dram_sheet: Any, fp16_sheet: Any) -> Any:
    """Show what is predicted before anything is measured."""
    ridge_sheet = roofline.ridge(dram_sheet, fp16_sheet)
    said = {
        "No cold stream is faster than": f"{dram_sheet:,.0f} GB/s",
        "Arithmetic bounds FP16 products from": f"{ridge_sheet:,.0f} FLOP per byte",
    }
    frame = pd.DataFrame(said.items(), columns=["what", "guess"])
    display.table(frame, {"what": "Question", "guess": "Prediction"})
    return ridge_sheet


def knee(gpu: Any, l2: Any, read_roof: Any, sweep: Any) -> Any:
    """Say from which size a roof holds, and up to which warm beats cold."""
    cold = sweep[sweep["cache"] == "cold"].sort_values("bytes")
    at, start = bandwidth.knee(sweep), bandwidth.fixed_us(cold, read_roof)
    larger = cold["bytes"][cold["bytes"] > (at or 0)]
    after = f" and no longer at {plot.size_text(larger.min())}" if len(larger) else ""
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
    if at:
        edge = sweep[sweep["bytes"] == at].set_index("cache")["median_us"]
        display.say(
            f"Warm beats cold up to {plot.size_text(at)} ({edge['warm']:.2f} against {edge['cold']:.2f} µs)"
            f"{after}; the L2 of the {gpu} is {plot.size_text(l2)}. "
            + (
                "[Lesson 00b](00b_clocks.ipynb) asks where in between, and why."
                if at <= 2 * l2
                else "Why it should so far beyond its L2, nothing measured here says."
            )
        )
    return reached


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
    forms = {"gb_s": "{:,.0f}", "sheet": "{:.1f}"}
    display.table(three, names, forms, "The bandwidth by datasheet, profiler and kernels", folded=True)
    low, high = (float(three["gb_s"].iloc[2:].agg(end)) for end in ("min", "max"))
    display.say(
        f"The same bandwidth has three values: datasheet {dram_sheet:,.0f} GB/s, profiler {peak:,.0f}, our "
        f"streams {low:,.0f} to {high:,.0f}. This course reports shares of the last."
        if peak == peak and dram_sheet == dram_sheet
        else f"Our streams reach {low:,.0f} to {high:,.0f} GB/s, of which this course reports shares."
    )


def copies(here: Any, large: Any, ladders: Any) -> Any:
    """Fold what the library's copies lose as graph nodes; their rows of round sizes and the roof."""
    found = here.measure("bandwidth", bandwidth.copies_by_clock(large))
    found["name"] = found["impl"] + " " + found["clock"].replace("event", "eager")
    slow = bandwidth.fallen_copies(found, "cudaMemcpyAsync")
    gpu, lines = here.run["gpu"], []
    if slow:
        named = found[found["impl"] == "cudaMemcpyAsync"].set_index(["clock", "n"])["gb_s"]
        at = large if large in slow else slow[-1]
        lines.append(
            f"The CUDA runtime's `cudaMemcpyAsync` copies {plot.size_text(4 * at)} at "
            f"{named['graph', at]:,.0f} GB/s as a node of a graph and at {named['event', at]:,.0f} called "
            f"eagerly; from {plot.size_text(4 * slow[0])} on it is slower as a node. Why is not known: "
            "only eager copies were traced. **The clock decides** which rate one sees."
        )
    else:
        lines.append(f"On the {gpu} the runtime's copy runs at the same rate by both clocks.")
    types = ladders[ladders["operator"] == "copy"]
    types = types.assign(name=plot.contestants(types)).set_index("name")
    if {"torch.copy_ uint8", "torch.copy_ int32"} <= set(types.index):
        byte, word = types.loc["torch.copy_ uint8"], types.loc["torch.copy_ int32"]
        lines.append(
            f"As a node, PyTorch's `copy_` of `uint8` {display.against(byte, word)} that of `int32`."
        )
    lines[0] += " The second explorer below has every size."
    display.fold_items("One copy, two clocks", lines)
    return found[found["n"] != found["n"].max() - 1024], here.roof["dram_copy"].value


def transfers_traced(here: Any) -> None:
    """Show what the timeline saw of each library copy, folded: a copy of the runtime, or a kernel."""
    traced = here.profile("bandwidth", bandwidth.traced(), "nsys")
    groups = traced.groupby("case", sort=False)
    kinds = groups[["kind", "short"]].first()
    kinds["us"] = groups["duration_ns"].median() / 1e3
    calls = [name.partition(" n=")[0].split() for name in kinds.index]
    kinds["call"] = [" ".join(w for w in words if "/" in w or "=" in w) for words in calls]
    names = {"call": "Eager, traced by Nsight Systems", "kind": "Activity"}
    names |= {"short": "What ran", "us": "µs"}
    size = plot.size_text(4 * (bandwidth.traced()[0].n or 0))
    title = f"What each library's copy is, when called eagerly: a kernel or a copy of the runtime; {size}"
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
    names |= {"predicted_us": "Data sheet's rate (µs)", "median_us": "Median (µs)", "gb_s": "GB/s"}
    display.table(both, names, dict.fromkeys(("predicted_us", "median_us", "gb_s"), "{:,.1f}"))
    return kernel, moved, size


def published_time(kernel: Any, moved: Any, size: Any) -> None:
    """Say what a published kernel's time has in common with a transfer."""
    published: Any = lab.open("replay", "rtx-4090-published").store.read("gemv")
    published = published.set_index("impl")["median_us"] / 1e3
    claim = published["strided"]
    pageable = moved.set_index("impl")["median_us"]["pageable"] / 1e3
    read_us, card, rate = kernel["median_us"].iloc[0], device.get("rtx-4090"), 4 * size / claim / 1e6
    display.say(
        f"A kernel *reads* these {plot.size_text(4 * size)} in {read_us:.1f} µs; to *carry them over* from "
        f"pageable memory takes {pageable:.2f} ms, {1e3 * pageable / read_us:,.0f} times as long. Time "
        "transfers and kernels apart."
    )
    specified = (
        f"The specification of [realizar]({REALIZAR}), a public CUDA project, reports {claim:.2f} ms for a "
        "4,096 × 4,096 float matrix-vector product on an RTX 4090 and blames strided access to DRAM. That "
        f"matrix is these {plot.size_text(4 * size)}: in that time it passes at {rate:.0f} GB/s, "
        f"{rate / card.dram_gb_s:.1%} of that card's bandwidth. From pageable memory it passes at "
        f"{4 * size / pageable / 1e6:.0f} GB/s here, in {pageable:.2f} ms."
    )
    if rate < 0.1 * card.dram_gb_s:
        specified += (
            " So a transfer is likely to be in the claimed time; the specification does not divide it."
        )
    later = (
        "A time on one machine proves nothing about another. But realizar's own later log says "
        f"what its uploads cost: its coalesced kernel took {published['coalesced_uploading']:.1f} ms "
        f"while every call uploaded the weights, and {published['coalesced']:.2f} ms once "
        "they stayed."
    )
    display.fold_items("A published time that looks like a transfer", [specified, later])


def tops(here: Any) -> Any:
    """The peaks of arithmetic, one a row, in a burst and sustained (TFLOP/s or TOP/s), with the FLOP for each
    byte from which on they bound a kernel: ridge, by the measured roofs, and guess, by the datasheet.
    """
    gemm = here.measure("bandwidth", bandwidth.peaks(bandwidth.MATRIX[here.effort]))
    found = bandwidth.burst_and_sustained(gemm, here.spec)
    sheet = getattr(here.spec, "dram_gb_s", float("nan"))
    found["ridge"] = [roofline.ridge(here.roof["dram_read"].value, peak) for peak in found["burst"]]
    found["guess"] = [roofline.ridge(sheet, peak) for peak in found["sheet"]]
    return found


def peaks(gpu: Any, here: Any, tops: Any) -> None:
    """Show the peaks of arithmetic in a burst and sustained, and say which are far below the datasheet."""
    matrix = bandwidth.MATRIX[here.effort]
    names = {"roof": "Peak", "burst": "Burst", "sustained": "Sustained"}
    names |= {"sheet": "Datasheet"}
    behind = {"roof": "Peak", "share": "burst, % of datasheet", "kept": "sustained, % of burst"}
    behind |= {"mhz": "clock, MHz", "watts": "power, W", "held": "held down by power, % of samples"}
    said = f"TFLOP/s (int8: TOP/s), products of {matrix} x {matrix} matrices on {gpu}"
    table = tops.assign(held=100 * tops["capped"])
    display.table(table, names, dict.fromkeys(list(names)[1:], "{:,.0f}"), said)
    forms = dict.fromkeys(list(behind)[1:], "{:,.0f}")
    title, said = "Shares, and clock and power while sustained", _odd_power(table)
    display.fold_parts(title, [(table, behind, forms), *[said] * bool(said)])
    for roof, share, sheet in tops[tops["share"] < 60][["roof", "share", "sheet"]].to_numpy():
        text = f"**100% of {roof} is {share:.0f}% of the datasheet**: the roof is the best product that the "
        text += "library reached, not what the chip can do at most."
        twin = tops[(tops["sheet"] == sheet) & (tops["share"] > share)].sort_values("burst")
        if len(twin):
            text += f" {twin['roof'].iloc[-1]}, for which the datasheet gives the same rate, reaches "
            text += f"{twin['burst'].iloc[-1]:,.0f}."
        display.say(text)


def _odd_power(table: Any) -> str:
    """That a peak draws more than one that is held down, where it is not; nothing without such a pair."""
    free, held = table[table["held"] < 1], table[table["held"] > 99]
    if free.empty or held.empty or not free["watts"].max() > held["watts"].min():
        return ""
    more, less = free.loc[free["watts"].idxmax()], held.loc[held["watts"].idxmin()]
    return (
        f"{more['roof']} draws {more['watts']:.0f} W and is never held down, {less['roof']} draws "
        f"{less['watts']:.0f} W and always is. The driver averages power over a window of its own, and the "
        "power limit was not recorded: so the pair is not explained, and these watts are rough."
    )


def power(gpu: Any, here: Any, tops: Any) -> None:
    """Say which peaks power sets."""
    kept = tops["kept"].dropna()
    limited = tops[(tops["kept"] < 98) & (tops["capped"] > 0.5)]
    text = f"On the {gpu} no sustained product is held back by power. "
    text = text if len(kept) else f"On the {gpu} no product was timed both ways. "
    if len(limited):
        drop = tops.loc[kept.idxmin()]
        which = f"all {len(kept)}" if len(limited) == len(kept) > 2 else listed(limited["roof"])
        least = limited.loc[limited["capped"].idxmin()]
        always = (
            "in every sample"
            if least["capped"] > 0.99
            else f"in {least['capped']:.0%} of the samples or more"
        )
        text = f"On the {gpu} **power sets the sustained roof** of {which}: the driver says {always} that "
        text += "it holds "
        text += f"the clock down to keep the power limit. {drop['roof']} loses most, and keeps "
        text += f"{drop['kept']:.0f}% of "
        text += "its burst. "
    slow = tops[tops["kept"] > 102]
    if len(slow):
        text += f"Power held even the burst of {listed(slow['roof'])}, which was slower than sustained: "
        text += "judge by the sustained figure there. "
    streams = states.kept(display.power_rows(here, "read", "copy"), "read", "copy")
    text += f"{streams} " if streams else ""
    display.say(text.rstrip())
    if len(limited):
        _like_by_like(here, limited)


def _like_by_like(here: Any, limited: Any) -> None:
    """Say when the burst's roofs are those to judge by, and when the sustained ones; `limited` are the rows
    of `tops` that power holds down.
    """
    fp16 = limited[limited["roof"] == "fp16_tensor"]
    there = ""
    if len(fp16):
        there = f": in FP16 {fp16['sustained'].iloc[0]:,.0f} TFLOP/s, with the ridge at "
        there += f"{_sustained_ridge(here, fp16.iloc[0]):.0f}"
    display.say(
        "**Judge like by like.** This course times most kernels in bursts, so it holds them against the "
        "burst's roofs: both rested before each sample. A program that keeps the arithmetic units at work, "
        "as a long prompt does, gets the sustained rate. Hold it against the sustained roof, or the power "
        f"limit passes for a fault of the kernel{there}."
    )


def _sustained_ridge(here: Any, peak: Any) -> float:
    """FLOP for each byte from which on arithmetic bounds a kernel that runs on, by a row of `tops`."""
    return roofline.ridge(here.roof["dram_read"].value, peak["sustained"])


def ridges(tops: Any) -> None:
    """Show the ridge points, folded."""
    names = {"roof": "Peak", "ridge": "Ridge, measured", "guess": "Ridge, datasheet"}
    forms = {"ridge": "{:,.0f}", "guess": "{:,.0f}"}
    display.table(tops, names, forms, "The ridge of every peak, FLOP per byte", folded=True)


def ceilings(here: Any, tops: Any) -> tuple[Figure, str] | None:
    """Both ceilings over FLOP per byte, and how far FP16 products of 1 to 1024 tokens can come, with the
    caption; None where no peak was timed.
    """
    gpu, read_roof = here.run["gpu"], here.roof["dram_read"].value
    names = {"fp32": "FP32", "fp16_tensor": "FP16 tensor", "fp8_tensor": "FP8 tensor"}
    shown = tops[tops["roof"].isin(list(names))].dropna(subset="ridge")
    if shown.empty:
        return None
    title = "Two ceilings: memory left of a ridge, arithmetic right of it"
    fig, ax = plot.figure("FLOP per byte", "TFLOP/s", title, xlog=True, ylog=True, height=2.9)
    most = 12 * float(shown["ridge"].max())
    ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    style: dict[str, Any] = {"textcoords": "offset points", "color": plot.ROOF_COLOUR, "fontsize": 8.5}
    for roof, peak, ridge in shown[["roof", "burst", "ridge"]].to_numpy():
        ax.plot([0.3, ridge, most], [0.3 * read_roof / 1e3, peak, peak], color=plot.ROOF_COLOUR)
        below = roof == "fp16_tensor"  # FP8's line is close above it
        at, side = ((0, -4), "top") if below else ((0, 4), "bottom")
        ax.annotate(f"{names[roof]} {peak:,.0f}", (most, peak), at, ha="right", va=side, **style)
    words, slope = f"read roof {read_roof:,.0f} GB/s", (3.0, 3.0 * read_roof / 1e3)
    ax.annotate(words, slope, (8, -6), **style)
    fp16 = shown[shown["roof"] == "fp16_tensor"]
    tokens = [1, 8, 64, 1024]
    across = [
        roofline.intensity(roofline.gemm_flops(n, 4096, 4096), roofline.gemm_bytes(n, 4096, 4096, 2))
        for n in tokens
    ]
    said = ""
    if len(fp16):
        peak, ridge = float(fp16["burst"].iloc[0]), float(fp16["ridge"].iloc[0])
        up = [min(x * read_roof / 1e3, peak) for x in across]
        plot.series(ax, across, up, label="tokens").set_linestyle("none")
        for count, x, y in zip(tokens, across, up, strict=True):
            at = (-6, 4) if x < most / 48 else (-4, -14)
            ax.annotate(counted(count, "token"), (x, y), at, ha="right", **style | {"color": plot.COLOURS[0]})
        said = " Points: the most that an FP16 product with a 4096 x 4096 matrix can reach. Its ridge is "
        said += f"at {ridge:,.0f} "
        said += "FLOP per byte."
    ax.set_ylim(top=3 * float(shown["burst"].max()))
    return fig, f"{title}, {gpu}.{said}"


def one_token(gpu: Any, tops: Any) -> Any:
    """Say what one token's product does for each byte."""
    flops, size_bytes = roofline.gemm_flops(1, 4096, 4096), roofline.gemm_bytes(1, 4096, 4096, 2)
    fp16 = tops.set_index("roof")["ridge"].get("fp16_tensor")
    if fp16:
        display.say(
            "One token through a 4,096 × 4,096 FP16 matrix multiplies and adds once for each weight of 2 "
            f"bytes: {roofline.intensity(flops, size_bytes):.2f} FLOP per byte. The ridge of the "
            f"{gpu} lies at {fp16:.0f}. "
            + (
                "Writing one token at a time is memory-bound; tokens that share each weight that is read "
                "move the product to the right, as the chart at the top shows."
                if fp16 > roofline.intensity(flops, size_bytes)
                else "So even one token at a time is bound by arithmetic."
            )
        )
    return fp16


def device_roofs(here: Any, gpu: Any) -> None:
    """Fold all roofs with the case that set each."""
    columns = ["value", "unit", "case"]
    roofs = pd.DataFrame.from_dict(dict(here.roof), orient="index", columns=columns).reset_index()
    names = {"index": "Roof", "value": "Value", "unit": "Unit", "case": "Measured by"}
    title = f"All {len(roofs)} roofs of the {gpu}, run {here.run_of('bandwidth')['run']}"
    display.table(roofs, names, {"value": "{:,.0f}"}, title, folded=True)


def takeaway(
    dram_sheet: Any,
    fp16: Any,
    here: Any,
    reached: Any,
    read_roof: Any,
    ridge_sheet: Any,
    tops: Any,
) -> None:
    """The page's last word."""
    text = f"- The read roof is **{read_roof:,.0f} GB/s**"
    text += f", {read_roof / dram_sheet:.0%} of the datasheet" if here.spec else ""
    text += f"; cold, an array of {plot.size_text(reached.min())} reaches 90% of it" if len(reached) else ""
    text += ".\n"
    if fp16:
        text += f"- Arithmetic bounds FP16 products from {fp16:,.0f} FLOP per byte on in a burst"
        known = tops[(tops["roof"] == "fp16_tensor") & tops["sustained"].notna()]
        text += f", from {_sustained_ridge(here, known.iloc[0]):,.0f} on sustained" if len(known) else ""
        text += f"; the datasheet said {ridge_sheet:,.0f}.\n" if here.spec else ".\n"
    text += "- A roof comes from a kernel, a size, a clock and, for arithmetic, a state: burst or sustained. "
    text += "Compare a kernel with the roof of its own clock and state."
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
