"""What lesson 01 shows: bounds, the read ladder, bytes in flight, and the other streams."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.bench import clock
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.pages import Rows, spread
from rooflab.studies import bandwidth, environment
from rooflab.view import display, explorer, plot


def bounds(dram_sheet: Any, large: Any) -> None:
    """Show the least time of each stream by the datasheet's bandwidth."""
    does = {"read": "sum of x", "write": "y[i] = i xor seed"}
    does |= {"copy": "y = x", "triad": "a = b + s c"}
    bounds = pd.DataFrame({"operator": does.keys(), "does": does.values()})
    bounds["gb"] = [roofline.stream_bytes(op, large) / 1e9 for op in does]
    bounds["us"] = bounds["gb"] * 1e6 / dram_sheet
    names = {"operator": "Operator", "does": "What it does"}
    names |= {"gb": "GB moved", "us": "At least (µs)"}
    display.table(bounds, names, {"gb": "{:.2f}", "us": "{:,.0f}"})


def needed(chase: Any, dram_sheet: Any, gpu: Any, sms: Any) -> Any:
    """Say how many bytes the memory needs in flight; the latency in nanoseconds that this follows from."""
    latency = environment.latency_ns(chase) or float("nan")
    need = roofline.bytes_in_flight(dram_sheet, latency)
    each, wide = need / sms / 4, need / sms / 16
    text = (
        f"On the {gpu} a load from DRAM takes {latency:.0f} ns. At {dram_sheet:,.0f} GB/s, "
        f"**{need / 2**20:.1f} MiB** must be under way at every moment: "
        f"**{need / sms / 1024:.0f} KiB on each of {sms} SMs**. With one 4-byte load a "
        f"thread that takes {each:,.0f} threads an SM, with one 16-byte load {wide:,.0f}. "
        "An SM holds 1,024 to 2,048 threads, depending on the model. "
    )
    if wide < 1024 and each > 2048:
        text += (
            f"So one small load a thread cannot keep this memory busy: 2,048 threads reach {2048 / each:.0%} "
        )
        text += "of its bandwidth at most. A wide load may."
    display.say(text)
    return latency, need


def other_ladders(here: Lab, large: int) -> dict[str, Rows]:
    """The ladders of write, copy and triad by operator; copy's is drawn, with its peers under its roof."""
    others = {
        name: here.measure("bandwidth", bandwidth.ladder(name, large)) for name in ("write", "copy", "triad")
    }
    rows, operator = others["copy"], "copy"
    top = here.roof[f"dram_{operator}"]
    title = f"{operator}, {plot.size_text(4 * large)} an array"
    plot.ladder(rows, here.run["gpu"], (operator, top.value, top.unit), title)
    return others


def measured(read: Any) -> None:
    """Show the read ladder with its errors, bounds, times and registers."""
    read["name"] = plot.contestants(read)
    spread(read, "g", ",.0f")
    display.table(
        read,
        {"name": "Rung or peer", "gate": "Error (allowed)", "predicted_us": "Bound (µs)"}
        | {"median_us": "Median (µs)", "quartiles": "Quartiles", "registers": "Registers"},
        {"predicted_us": "{:,.1f}", "median_us": "{:,.1f}"},
        "Errors, bounds and times of every rung",
        folded=True,
    )


def counted_reads(gpu: Any, here: Any) -> Any:
    """Show what the profiler counted of the read ladder; its rows."""
    profile = here.profile("bandwidth", bandwidth.profiled(), "ncu", bandwidth.PROFILED)
    counted = bandwidth.counted(profile)
    shown = {"impl": "Rung", "per_predicted": "Bytes counted ÷ predicted"}
    shown |= {"load_sectors_per_request": "Sectors a request"}
    shown |= {"occupancy_pct": "Occupancy %"}
    shown |= {"dram_pct": "DRAM busy %", "l2_hit_pct": "L2 hit %"}
    forms = dict.fromkeys(shown, "{:.0f}") | {"impl": "", "per_predicted": "{:.3f}"}
    display.table(
        counted[counted["operator"] == "read"],
        shown,
        forms,
        f"Counted by ncu on {gpu}, {plot.size_text(4 * bandwidth.PROFILE_SIZE)} an array",
        folded=True,
    )
    return counted


def explained(counted: Any, need: float, sms: int) -> None:
    """Say whether the counters explain the first rung's time; `need` bytes in flight would fill it."""
    found = counted[counted["operator"] == "read"]
    if len(found):
        slow, best = found.iloc[0], found.loc[found["time_ns"].idxmin()]
        text = "Counted and predicted bytes agree to "
        text += f"{(found['per_predicted'] - 1).abs().max():.1%}. A request of "
        text += f"{slow['impl']} is {slow['load_sectors_per_request']:g} sectors, and 32 "
        text += f"threads × 4 bytes need {32 * 4 / 32:g}. "
        idle = slow["dram_pct"] < 0.8 * best["dram_pct"]
        if slow["load_sectors_per_request"] <= 4 and idle:
            text += "So it wastes no bytes; it asks for too few at a time: under it DRAM is busy "
            text += f"{slow['dram_pct']:.0f}% of the time, under {best['impl']} {best['dram_pct']:.0f}%. "
            allowed = 2048 * 4 * sms / need
            if slow["dram_pct"] < 100 * allowed < 100:
                text += f"Little's law would allow {slow['impl']} {allowed:.0%}: the next section asks what "
                text += "takes the rest."
        display.say(text)
    else:
        display.say("Nsight Compute could not count here: the tables of counters stay empty.")


def in_flight(dram_sheet: Any, gpu: Any, here: Any, large: Any, latency: Any, sms: Any) -> Any:
    """Draw the rate over the bytes in flight, beside Little's law; the rows and the roof."""
    sweep = here.measure("bandwidth", bandwidth.in_flight(sms, large // 2))
    sweep = bandwidth.little(sweep, sms, latency, dram_sheet)
    read_roof = here.roof["dram_read"].value
    title = "read/4_grid against Little's law"
    fig, ax = plot.figure("bytes in flight on each SM", "GB/s", title, xlog=True)
    plot.series(ax, sweep["bytes_per_sm"], sweep["little_gb_s"], label="predicted")
    plot.series(ax, sweep["bytes_per_sm"], *plot.band(sweep), label="measured")
    plot.roof_line(ax, read_roof, f"measured roof {read_roof:,.0f} GB/s")
    plot.size_ticks(ax, sweep["bytes_per_sm"])
    plot.label_ends(ax)
    near = sweep[sweep["gb_s"] >= 0.95 * read_roof]
    best = near.iloc[0] if len(near) else sweep.loc[sweep["gb_s"].idxmax()]
    caption = (
        f"Bytes in flight on {gpu}, {plot.dates(sweep)}: {best['bytes_per_sm'] / 1024:.0f} KiB an SM bring "
    )
    plot.show(fig, f"{caption}{best['gb_s'] / read_roof:.0%} of the read roof.")
    return sweep, read_roof


def in_flight_table(sweep: Any) -> None:
    """Show each launch's bytes in flight and the latency that its rate implies."""
    sweep["kib"] = sweep["bytes_per_sm"] / 1024
    sweep["share"] = sweep["gb_s"] / sweep["little_gb_s"]
    names = {"kib": "KiB an SM", "options": "Launch (unroll: loads a thread)"}
    names |= {"little_gb_s": "Predicted GB/s"}
    names |= {"gb_s": "Measured GB/s", "share": "Measured ÷ predicted"}
    names |= {"loaded_ns": "Implied latency (ns)"}
    forms = {name: "{:,.0f}" for name in names} | {"options": "", "share": "{:.2f}"}
    display.table(sweep, names, forms, "Each launch, its bytes in flight and its rate", folded=True)


def loaded(gpu: Any, sweep: Any, latency: Any, need: Any, read_roof: Any, sms: Any) -> Any:
    """Say how the implied latency grows, and what it took to come near the roof."""
    ok = sweep[sweep["gb_s"] >= 0.95 * read_roof]
    twins = sweep[sweep.duplicated("bytes_per_sm", keep=False)]
    text = f"On the {gpu} the implied latency goes from {sweep['loaded_ns'].iloc[0]:.0f} "
    text += f"ns at {sweep['bytes_per_sm'].iloc[0] / 1024:.0f} KiB to "
    text += f"{sweep['loaded_ns'].iloc[-1]:,.0f} ns at "
    text += f"{sweep['bytes_per_sm'].iloc[-1] / 1024:.0f} KiB; lesson 00b's lone load took "
    text += f"{latency:.0f} ns. "
    if len(ok):
        enough = ok["bytes_per_sm"].iloc[0]
        text += f"For 95% of the roof it took {enough / 1024:.0f} KiB an SM, "
        text += f"{enough * sms / need:.1f} times what the empty latency asks for. "
    if len(twins):
        spread = twins["gb_s"].max() / twins["gb_s"].min() - 1
        text += "Whether the same bytes come from more blocks or from more loads a "
        text += f"thread changes the rate by {spread:.1%}."
    display.say(text)
    return ok


def standings(here: Any, large: Any, others: Any) -> None:
    """Say whether more bytes in flight help copy; fold how the ladders of write, copy and triad stand."""
    copy = others["copy"][others["copy"]["kind"] == "own"].set_index("impl")
    if {"2_vector", "3_in_flight"} <= set(copy.index):
        slower = clock.faster(copy.loc["2_vector"], copy.loc["3_in_flight"])
        display.say(
            f"Of `copy`, rung 3 {display.against(copy.loc['3_in_flight'], copy.loc['2_vector'])} rung 2. "
            + ("What helps one operator need not help the next." if slower else "")
        )
    lines = [display.standings(rows) for rows in others.values()]
    eager = here.measure("bandwidth", bandwidth.copies_by_clock(large))
    eager = eager[(eager["n"] == large) & (eager["clock"] == "event")]
    chained = others["copy"].set_index("impl")["median_us"]
    alone = eager[eager["kind"] != "own"].set_index("impl")["median_us"]
    if any(alone[name] < 0.9 * chained[name].min() for name in alone.index):
        lines.append(
            "Called one by one, the library's copies are faster than this: "
            "[lesson 01b](01b_roofs.ipynb) compares both clocks."
        )
    saxpy = here.measure("environment", environment.ramp())
    if len(saxpy):
        ours = saxpy.loc[saxpy["gb_s"].idxmax()]
        lines.append(
            "`saxpy`, the kernel of lesson 00, moves the bytes of a triad: "
            f"{ours['gb_s']:,.0f} GB/s by {ours['impl']}, on arrays of "
            f"{plot.size_text(4 * ours['n'])}. Lesson 01b shows how size matters."
        )
    display.fold_items("How the ladders of write, copy and triad stand", lines)


def suspects(counted: Any) -> Any:
    """Show the counters that tell slow rungs from fast ones; their rows."""
    accused = bandwidth.suspects(counted)
    accused["rung"] = accused["operator"] + "/" + accused["impl"]
    names = {"rung": "Rung", "time": "Time", "traffic": "DRAM bytes"}
    names |= {"sectors": "Sectors a request"}
    names |= {"occupancy": "Occupancy", "suspect": "Suspect"}
    ratios = dict.fromkeys(("time", "traffic", "sectors", "occupancy"), "{:.2f}")
    sized = plot.size_text(4 * bandwidth.PROFILE_SIZE)
    title = f"Counters of the slower rungs over those of their ladder's best rung, {sized} an array"
    display.table(accused, names, ratios, title, folded=True)
    return accused


def unsolved(accused: Any, counted: Any, gpu: Any, l2: Any) -> None:
    """Say for which rungs no counter speaks, and what is odd about write, folded."""
    open_cases, lines = accused[accused["suspect"] == "none of these"], []
    if len(open_cases):
        listed = ", ".join(f"`{name}`" for name in open_cases["rung"])
        lines.append(
            f"For {listed} these counters explain nothing: the same bytes, as well "
            "coalesced, on SMs as full. What remains is a **hypothesis**: the rungs "
            "differ in the order in which their accesses reach DRAM, and DRAM loses time "
            "when it opens another page or turns its bus from reading to writing."
        )
    writes = counted[counted["operator"] == "write"]
    if len(writes):
        left = (writes["predicted_bytes"] - writes["dram_bytes"]).median()
        if 0.02 * writes["predicted_bytes"].median() < left < l2:
            lines.append(
                f"An oddity of `write` on the {gpu}: {left / 1e6:.0f} MB of what it wrote "
                f"had not reached DRAM when counting stopped. The L2 holds {l2 / 1e6:.0f} "
                "MB, so they fit there. In the timed chain every launch must first push "
                "out what the one before it left."
            )
    if lines:
        display.fold_items("What these counters do not explain", lines)


def takeaway(
    dram_sheet: Any, gpu: Any, here: Any, need: Any, ok: Any, others: Any, read: Any, sms: Any
) -> None:
    """The page's last word."""
    own = read[read["kind"] == "own"]
    best = own.loc[own["median_us"].idxmin()]
    text = f"- On the {gpu} the best rung reads at **{best['gb_s']:,.0f} GB/s**, "
    text += (
        f"{best['gb_s'] / dram_sheet:.0%} of the datasheet. "
        if here.spec
        else "of which no datasheet is known. "
    )
    text += "The simplest kernel, "
    text += f"coalesced like the rest, gets {own['gb_s'].iloc[0] / best['gb_s']:.0%} of "
    text += "that speed.\n"
    text += "- Little's law names the bytes in flight that a kernel needs. The unloaded "
    text += f"latency asks for {need / sms / 1024:.0f} KiB an SM; 95% of the roof takes "
    took = f"{ok['bytes_per_sm'].min() / 1024:.0f} KiB" if len(ok) else "more than we tried"
    text += f"{took}.\n"
    winners = {"read": best["impl"]}
    for operator, rows in others.items():
        rows = rows[rows["kind"] == "own"]
        winners[operator] = rows.loc[rows["median_us"].idxmin(), "impl"]
    listed = ", ".join(f"`{operator}/{rung}`" for operator, rung in winners.items())
    text += f"- The best rungs: {listed}. "
    if len(set(winners.values())) > 1:
        text += "What helps one operator may not help the next: measure."
    display.say(text)


def least_us(dram_sheet: Any, here: Any) -> Any:
    """The function that gives a case's least time in microseconds, None without a datasheet."""

    def bound(case: Any) -> Any:
        moved = roofline.stream_bytes(case.operator, case.n)
        return moved / dram_sheet / 1e3 if here.spec else None

    return bound


def explored(dram_sheet: Any, gpu: Any, here: Any) -> Any:
    """The explorer of all streams by size."""
    mine = [c for c in here.cases("bandwidth") if c.kind == "own" and not c.options]
    mine = [c for c in mine if (c.cache, c.clock) == ("cold", "graph")]
    mine = [c for c in mine if c.operator in ("read", "copy")]
    return explorer.Explorer(
        "streams",
        here.measure("bandwidth", mine),
        controls={"impl": "Rung", "operator": "Operator"},
        roof=here.roof,
        title=f"Reads and copies on {gpu}",
        bound=least_us(dram_sheet, here),
        measure=explorer.measurer(here),
    )
