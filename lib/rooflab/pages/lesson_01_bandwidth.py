"""What lesson 01 shows: bounds, latencies, the read ladder, bytes in flight, and the other streams."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.pages import Rows, spread, thread_slots
from rooflab.pages.lesson_01 import rate_around
from rooflab.studies import bandwidth, environment
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import listed


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


def needed(chase: Any, dram_sheet: Any, gpu: Any, sms: Any, here: Lab) -> Any:
    """Say how many bytes the memory needs in flight; the latency in nanoseconds that this follows from."""
    latency = environment.latency_ns(chase) or float("nan")
    need = roofline.bytes_in_flight(dram_sheet, latency)
    each, wide, slots = need / sms / 4, need / sms / 16, thread_slots(here)
    rate = "the datasheet's " if here.spec else ""
    text = (
        f"On the {gpu} a load from DRAM takes {latency:.0f} ns. At {rate}{dram_sheet:,.0f} GB/s, "
        f"**{need / 2**20:.1f} MiB** must be under way at every moment: "
        f"**{need / sms / 1024:.3g} KiB on each of {sms} SMs**. With one 4-byte load a "
        f"thread that takes {each:,.0f} threads an SM, with one 16-byte load {wide:,.0f}. "
        f"An SM of this GPU holds {slots:,} threads. "
    )
    if wide < slots < each:
        text += "So one small load a thread cannot keep this memory busy: they reach "
        text += f"{slots / each:.0%} "
        text += "of its bandwidth at most. A wide load may, by this count."
    display.say(text)
    return latency, need


def latencies(chases: Any, gpu: str, l2_bytes: int) -> None:
    """Say how long L2 and DRAM take to answer, and fold the latency by the size of the table."""
    l2_ns, dram_ns = environment.l2_latency_ns(chases, l2_bytes), environment.latency_ns(chases)
    if not l2_ns or not dram_ns:
        return
    steps = environment.latencies(chases)
    text = f"L2 answers in **{l2_ns:.0f} ns**, DRAM in **{dram_ns:.0f} ns**, {dram_ns / l2_ns:.1f} times as "
    text += "long."
    display.say(text)
    shown = steps.assign(size=steps.table_bytes.map(plot.size_text)).sort_values(["cache", "table_bytes"])
    heads = {"size": "table", "cache": "cache", "median_ns": "ns a load"}
    title = f"Latency of a load by the size of the table, {gpu}"
    display.table(shown, heads, {"median_ns": "{:.0f}"}, title, folded=True)


def other_ladders(here: Lab, large: int) -> dict[str, Rows]:
    """The ladders of write, copy and triad by operator; copy's is drawn, with its peers by both clocks."""
    others = {
        name: here.measure("bandwidth", bandwidth.ladder(name, large)) for name in ("write", "copy", "triad")
    }
    operator = "copy"
    eager = _copies_called(here, large)
    eager = eager.assign(impl=[f"{name}, called alone" for name in plot.contestants(eager)], format="")
    rows = pd.concat([others["copy"], eager]) if len(eager) else others["copy"]
    top = here.roof[f"dram_{operator}"]
    title = f"{operator}, {plot.size_text(4 * large)} an array"
    plot.ladder(rows, here.run["gpu"], (operator, top.value, top.unit), title)
    return others


def _copies_called(here: Lab, large: int) -> Rows:
    """The libraries' copies of the ladder's size by the event clock: called, not nodes of a graph."""
    rows = here.measure("bandwidth", bandwidth.copies_by_clock(large))
    return rows[(rows["n"] == large) & (rows["clock"] == "event") & (rows["kind"] != "own")]


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


def explained(counted: Any) -> None:
    """Say whether the counters explain the first rung's time."""
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
            text += f"{slow['dram_pct']:.0f}% of the time, under {best['impl']} {best['dram_pct']:.0f}%."
        display.say(text)
    else:
        display.say("Nsight Compute could not count here: the tables of counters stay empty.")


def held(slow: Any, each: float, slots: int) -> diagram.Held | None:
    """Where the bytes in flight of a counted rung that loads 4 bytes a thread go, on an SM of `slots` threads
    that needs `each` bytes; None where its rate says more bytes than its threads could hold.
    """
    most = 4.0 * slots
    filled, on_average = most * slow["occupancy_pct"] / 100, each * slow["dram_pct"] / 100
    fits = on_average < filled <= most < each
    return diagram.Held(f"read/{slow['impl']}", most, filled, on_average) if fits else None


def why_slow(counted: Any, need: float, sms: int, here: Any) -> None:
    """Draw and say what keeps the first rung from the bytes in flight that it could have."""
    found = counted[counted["operator"] == "read"]
    slots, each = thread_slots(here), need / sms
    one = held(found.iloc[0], each, slots) if len(found) else None
    if one is None:
        return
    filled, waits = f"{one.filled / one.most:.0%}", f"{one.held / one.filled:.0%}"
    of_slots = f"{filled} of the thread slots are filled (occupancy)"
    diagram.bytes_held(each, one, of_slots, "measured rate × latency of a lone load").show()
    text = f"So two losses are counted. With all {slots:,} slots of an SM loading, 4 bytes a thread are "
    text += f"{one.most / each:.0%} of what the memory needs. And {one.kernel} fills {filled} of them: "
    text += (
        "blocks end all the time, and others start in their place. The third is what is left: the measured "
    )
    text += f"rate needs {one.held / 1024:.1f} KiB under way, {waits} of what the filled slots could hold. "
    text += (
        "Part may be that a load in a stream takes longer than a lone one (the next section), part that a "
    )
    text += "thread also starts, sums with its block, and ends. These were not told apart."
    display.say(text)
    _second(here, found, each, slots)


def _second(here: Lab, found: Any, each: float, slots: int) -> None:
    """Say what rung 2's wide loads bring, of the counted ladder, on an SM that needs `each` bytes."""
    wide, most = found[found["impl"] == "2_vector"], found["dram_pct"].max()
    if wide.empty:
        return
    filled, busy = (float(wide[name].iloc[0]) for name in ("occupancy_pct", "dram_pct"))
    could = 16 * slots * filled / 100
    if could > each and busy < 0.97 * most:
        text = f"Rung 2 could hold {could / 1024:.0f} KiB with the slots that it fills ({filled:.0f}%), more "
        text += (
            f"than the lone latency asks for. Still it keeps DRAM only {busy:.0f}% busy, the busiest rung "
        )
        text += f"{most:.0f}%.{rate_around(here, could)}"
        display.say(text)


def in_flight(dram_sheet: Any, gpu: Any, here: Any, large: Any, latency: Any, sms: Any) -> Any:
    """Draw the rate over the bytes in flight, beside Little's law; the rows and the roof."""
    sweep = here.measure("bandwidth", bandwidth.in_flight(sms, large // 2))
    sweep = bandwidth.little(sweep, sms, latency, dram_sheet)
    read_roof = here.roof["dram_read"].value
    title = "read/4_grid against Little's law"
    fig, ax = plot.figure("bytes in flight on each SM", "GB/s", title, xlog=True)
    bend = roofline.bytes_in_flight(dram_sheet, latency) / sms
    sizes, rates = list(sweep["bytes_per_sm"]), list(sweep["little_gb_s"])
    if min(sizes) < bend < max(sizes):  # where the law reaches the datasheet's bandwidth
        sizes, rates = [*sizes, bend], [*rates, dram_sheet]
        plot.roof_line(ax, bend, f"Little's law: {bend / 1024:.3g} KiB", vertical=True)
    plot.series(ax, sizes, rates, label="predicted")
    plot.series(ax, sweep["bytes_per_sm"], *plot.band(sweep), label="measured")
    plot.roof_line(ax, read_roof, f"roof {read_roof:,.0f} GB/s")
    plot.size_ticks(ax, sweep["bytes_per_sm"])
    plot.label_ends(ax)
    plot.show(fig, f"Bytes in flight on {gpu}, {plot.dates(sweep)}: {_steps(sweep, read_roof)}.")
    return sweep, read_roof


def _steps(sweep: Any, read_roof: float) -> str:
    """The bytes in flight that reach 95% of the roof, and what the next fewer reach: "32 KiB an SM reach
    94% of the read roof, 64 KiB 98%".
    """
    near = sweep[sweep["gb_s"] >= 0.95 * read_roof]
    best = near.iloc[0] if len(near) else sweep.loc[sweep["gb_s"].idxmax()]
    fewer = sweep[sweep["bytes_per_sm"] < best["bytes_per_sm"]]
    rows = [best] if fewer.empty else [fewer.loc[fewer["gb_s"].idxmax()], best]
    said = [f"{row['gb_s'] / read_roof:.0%}" for row in rows]
    sizes = [f"{row['bytes_per_sm'] / 1024:.0f} KiB" for row in rows]
    return f"{sizes[0]} an SM reach {said[0]} of the read roof" + (
        f", {sizes[1]} {said[1]}" if len(rows) > 1 else ""
    )


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
    text += f"{sweep['bytes_per_sm'].iloc[-1] / 1024:.0f} KiB; a lone load took "
    text += f"{latency:.0f} ns. "
    if len(ok):
        first, lone = ok.iloc[0], roofline.bytes_in_flight(read_roof, latency)
        enough = first["bytes_per_sm"] * sms
        text += f"{first['gb_s'] / read_roof:.0%} of the read roof take {enough / 2**20:.1f} MiB on all SMs, "
        text += f"{enough / need:.1f} times what the empty latency asks for"
        if abs(lone / need - 1) > 1e-3:
            text += " at the datasheet's rate. At the read roof, by which lesson 03 counts, it asks for "
            text += f"{lone / 2**20:.1f} MiB"
        text += ". "
    if len(twins):
        spread = twins["gb_s"].max() / twins["gb_s"].min() - 1
        text += "Whether the same bytes come from more blocks or from more loads a "
        text += f"thread changes the rate by {spread:.1%}."
    display.say(text)
    return ok


def _faster_alone(here: Lab, large: int, others: dict[str, Rows]) -> Any:
    """The best of the libraries' copies called alone, where it is faster than all of them in a graph."""
    eager = _copies_called(here, large)
    chained = others["copy"][others["copy"]["kind"] != "own"]
    slower = len(eager) and len(chained) and eager["gb_s"].max() > 1.1 * chained["gb_s"].max()
    return eager.loc[eager["gb_s"].idxmax()] if slower else None


def standings(here: Any, large: Any, others: Any) -> None:
    """Say whether more bytes in flight help copy, and what the library's copies reach by another clock; fold
    how the ladders of write, copy and triad stand.
    """
    text, best = "", _faster_alone(here, large, others)
    if best is not None:
        text = f"Compare with `{best['impl']}` *called alone*, {best['gb_s']:,.0f} GB/s: as nodes of a "
        text += "graph the libraries' copies run slower. "
    copy = others["copy"][others["copy"]["kind"] == "own"].set_index("impl")
    if {"2_vector", "3_in_flight"} <= set(copy.index):
        text += f"Rung 3 of `copy` {display.against(copy.loc['3_in_flight'], copy.loc['2_vector'])} rung 2. "
    if text:
        display.say(text.strip())
    lines = [display.standings(rows) for rows in others.values()]
    beside = ""
    saxpy = here.measure("environment", environment.ramp())
    if len(saxpy):
        ours = saxpy.loc[saxpy["gb_s"].idxmax()]
        lines.append(
            "`saxpy`, the kernel of lesson 00, moves the bytes of a triad: "
            f"{ours['gb_s']:,.0f} GB/s by {ours['impl']}, on arrays of "
            f"{plot.size_text(4 * ours['n'])}. Lesson 01b shows how size matters."
        )
        plain = saxpy[(saxpy["impl"] == "1_scalar") & saxpy["roof_fraction"].notna()]
        if len(plain):
            share = plain["roof_fraction"].iloc[0]
            beside = f"`saxpy` of lesson 00 also starts with 4-byte loads, and reaches {share:.0%} of its "
            beside += "roof. A thread there has two of them under way, and no sum to wait for."
    if beside:
        display.say(beside)
    display.fold_items("How the ladders of write, copy and triad stand", lines)


def suspects(counted: Any) -> Any:
    """How the counters of each slower rung compare with those of its ladder's best rung; their rows."""
    accused = bandwidth.suspects(counted)
    accused["rung"] = accused["operator"] + "/" + accused["impl"]
    return accused


def unsolved(accused: Any, read: Rows, here: Lab, large: int, others: dict[str, Rows]) -> None:
    """List what this page leaves open."""
    lines = ["Why a load takes longer in a stream than alone, even where few bytes are under way."]
    peers, own = read[read["kind"] != "own"], read[read["kind"] == "own"]
    if len(peers) and peers["gb_s"].max() < 0.5 * own["gb_s"].max():
        best = peers.loc[peers["gb_s"].idxmax()]
        lines.append(
            f"Why `{best['impl']}` reaches {best['gb_s']:,.0f} GB/s: that it adds in 64 bits may be a part."
        )
    if _faster_alone(here, large, others) is not None:
        lines.append("Why the libraries' copies are slower in a graph ([lesson 01b](01b_roofs.ipynb)).")
    if len(left := accused[accused["suspect"] == "none of these"]):
        lines.append(
            f"Why {listed(f'`{rung}`' for rung in left['rung'])} {'is' if len(left) == 1 else 'are'} slower "
            "than the best of the ladder: the counters show the same bytes, as well coalesced, on SMs as "
            "full. A **hypothesis**: DRAM loses time when it opens another page or turns from reading to "
            "writing, and the rungs differ in the order of their accesses."
        )
    display.say("\n".join(f"- {line}" for line in lines))


def by_counters(accused: Any, counted: Any, gpu: Any, l2: Any) -> None:
    """Fold for which slower rungs a counter speaks, their counters, and what is odd about write."""
    open_cases, lines = accused[accused["suspect"] == "none of these"], []
    known = accused[accused["suspect"] != "none of these"]
    if len(accused):
        why = listed(dict.fromkeys(known["suspect"].str.split(" and ").explode()))
        sized = plot.size_text(4 * bandwidth.PROFILE_SIZE)
        text = f"Counted on {sized} an array: {len(known)} of {len(accused)} slower rungs differ from their "
        text += "ladder's best in a counter"
        text += f" ({why.replace(' and ', ' or ')})." if len(known) else "."
        lines.append(text)
    for suspect, rungs in known.groupby("suspect", sort=False)["rung"]:
        lines.append(f"{suspect}: {listed(f'`{rung}`' for rung in rungs)}.")
    if len(open_cases):
        lines.append(f"No counter: {listed(f'`{rung}`' for rung in open_cases['rung'])}.")
    writes = counted[counted["operator"] == "write"]
    if len(writes):
        left = (writes["predicted_bytes"] - writes["dram_bytes"]).median()
        if 0.02 * writes["predicted_bytes"].median() < left < l2:
            lines.append(
                f"An oddity of `write`: on the {gpu} {left / 1e6:.0f} MB of what it wrote "
                f"had not reached DRAM when counting stopped. The L2 holds {plot.size_text(l2)}, "
                "so they fit there. In the timed chain every launch must first push "
                "out what the one before it left."
            )
    names = {"rung": "Rung", "time": "Time", "traffic": "DRAM bytes"}
    names |= {"sectors": "Sectors a request"}
    names |= {"occupancy": "Occupancy", "suspect": "Suspect"}
    ratios = dict.fromkeys(("time", "traffic", "sectors", "occupancy"), "{:.2f}")
    sized = plot.size_text(4 * bandwidth.PROFILE_SIZE)
    title = f"Counters of the slower rungs over those of their ladder's best rung, {sized} an array"
    if len(accused):
        said = "\n".join(f"- {line}" for line in lines)
        display.fold_parts("Which counter speaks of which rung", [said, (accused, names, ratios, title)])


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
    text += f"latency asks for {need / sms / 1024:.3g} KiB an SM; "
    took = (
        f"{_steps(ok, here.roof['dram_read'].value)}.\n"
        if len(ok)
        else "the roof takes more than we tried.\n"
    )
    text += took.replace(" an SM", "")
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
    rows = here.measure("bandwidth", mine)
    sizes = rows.groupby(["operator", "impl"])["n"].transform("nunique")
    several = rows[sizes > 1]  # the ladders' other rungs were recorded at one size
    return explorer.Explorer(
        "streams",
        several if len(several) else rows,
        controls={"operator": "Operator"},
        roof=here.roof,
        title=f"Reads and copies on {gpu}",
        bound=least_us(dram_sheet, here),
        measure=explorer.measurer(here),
    )
