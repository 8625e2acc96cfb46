"""What lesson 03's first part shows: two GEMV kernels, the sectors of their loads on paper, watched on the
CPU and counted on the GPU, and their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.ops import Rung, gemv
from rooflab.pages import Opening, Rows, spread
from rooflab.pages.lesson_03b import foretold
from rooflab.pages.lesson_03b_climb import flying, latency, measured_need, mib
from rooflab.studies import gemv as study
from rooflab.studies import traces
from rooflab.view import diagram, display, page, plot


def opening(here: Lab, rows: Rows, gpu: str, sms: int, ceiling: float, n: int) -> Opening:
    """The first screen: rung 2 beside rung 1, and why the time changes."""
    by = rows.set_index("impl")
    one, two = by.loc["1_strided"], by.loc["2_coalesced"]
    text = f"The coalesced kernel uses every byte that it fetches. On the {gpu} it "
    slower = two["median_us"] > one["median_us"] and not display.level(two, one)
    if slower:
        text += f"still takes {two['median_us'] / one['median_us']:.1f} times as long as the strided one"
    else:
        text += f"{display.against(two, one)} the strided one"
    text += f", and reaches {two['roof_fraction']:.0%} of the read roof."
    if slower and starved(two):
        idle = blocks_of(n) < sms
        text += f" {'Two suspects remain' if idle else 'One suspect remains'}: it has only "
        text += f"{in_flight(n) / 1024:,.0f} KiB of loads in flight on the whole GPU"
        needed = in_flight(n) * two["predicted_us"] * ceiling * 1e3 / two["bytes"]  # at the same latency
        text += f", where the read roof needs {needed / 2**20:.1f} MiB{measured_need(here)}"
        text += f", and work for only {blocks_of(n)} of {sms} SMs." if idle else "."
    text += " The two kernels differ in order, threads and bytes in flight, so their times do not say what "
    text += "coalescing alone is worth."
    able = [
        "count the sectors of a load on paper, and check them on your CPU",
        "write a coalesced kernel",
        "say from two counters whether coalescing is what a kernel lacks",
    ]
    drawn = rows[rows["impl"].isin(["1_strided", "2_coalesced"]) | (rows["kind"] == "peer")]
    chart = page.ladder(drawn, gpu, ("read", ceiling, "GB/s"), f"GEMV, {n:,} × {n:,} in FP32, cold")
    return text, able, chart


def in_flight(n: int) -> int:
    """Bytes that rung 2 has under way: a thread a column, with four loads of 4 bytes each (its unroll)."""
    return 16 * n


def starved(row: Any) -> bool:
    """Whether Little's law over a row's bytes in flight, its prediction, explains most of its time."""
    return bool(0.5 < row["predicted_us"] / row["median_us"] < 2)  # False without a prediction


def blocks_of(n: int) -> int:
    """The blocks that rung 2 launches for n columns."""
    rung = gemv.LADDERS["gemv"][1]
    return gemv.blocks_of(rung, n, rung.with_defaults({}))


def bounds(here: Lab, n: int) -> None:
    """Say the least time of the product: its bytes over the read roof; fold that of other sizes."""
    sizes = sorted({n, *(case.n for case in here.cases("gemv") if case.operator == "gemv" and case.n)})
    floor = pd.DataFrame({"n": sizes})
    floor["mb"] = [roofline.gemm_bytes(1, n, n, 4, 4, 4) / 1e6 for n in sizes]
    floor["us"] = floor["mb"] * 1e3 / here.roof["dram_read"].value
    names = {"n": "n = k", "mb": "MB", "us": "At the read roof (µs)"}
    own = floor.set_index("n").loc[n]
    display.say(
        f"At n = k = {n:,} that is {own['mb']:,.1f} MB, which at the read roof take **{own['us']:,.1f} µs**."
    )
    display.table(floor, names, {"mb": "{:,.1f}", "us": "{:,.1f}"}, "The same for other sizes", folded=True)


def on_paper(rungs: Sequence[Rung], n: int) -> Rows:
    """Show, and return, how many sectors each rung's first request takes by its index arithmetic."""
    found = []
    for rung in rungs:
        offsets, width = study.first_request(rung, n, n, rung.with_defaults({}))
        sectors = study.sectors(offsets, width)
        used = 32 * width / (32 * sectors)
        found.append((rung.name, width, f"{offsets[1] - offsets[0]:,}", sectors, used))
    names = {"impl": "Rung", "width": "A lane loads (bytes)", "apart": "Bytes to the next lane's"}
    names |= {"sectors": "Sectors a request", "used": "Bytes of A used"}
    frame = pd.DataFrame(found, columns=list(names))
    display.table(frame, names, {"used": "{:.1%}"})
    frame["both"] = (frame["sectors"] + 4) / 2  # as many loads of x, all coalesced
    return frame


def watched(predicted: Rows) -> None:
    """Show the sectors on paper beside those of all loads as the CPU watched them, and add the latter."""
    small = [case for case in study.traced() if case.operator == "gemv" and (case.n or 1) % 32 == 0]
    loads = traces.read("gemv")
    loads = loads[(loads["access"] == "load") & (loads["space"] == "global")]
    sums = loads.groupby("case")[["sectors", "requests"]].sum()
    ratio = sums["sectors"] / sums["requests"]
    predicted["watched"] = predicted["impl"].map({case.impl: ratio.get(case.id) for case in small})
    names = {"impl": "Rung", "sectors": "Of A, on paper", "both": "Of A and x, on paper"}
    names |= {"watched": "Of A and x, watched on the CPU"}
    display.table(predicted, names, dict.fromkeys(("both", "watched"), "{:.2f}"), "Sectors a request")


def measured(rows: Rows) -> None:
    """Show every contestant with its error, the longer of the two bounds, its time and registers."""
    rows = rows.copy()
    spread(rows)
    rows["foretold"], rows["by"] = foretold(rows)
    names = {"impl": "Rung or peer", "gate": "Error (allowed)", "foretold": "Foretold (µs)", "by": "By"}
    names |= {"median_us": "Median (µs)", "quartiles": "Quartiles (µs)", "registers": "Registers"}
    forms = dict.fromkeys(("foretold", "median_us"), "{:,.1f}")
    display.table(rows, names, forms, "Errors, predictions and times", folded=True)


def standing(rows: Rows, gpu: str, sms: int, n: int) -> None:
    """Say what coalescing did to the time."""
    by = rows.set_index("impl")
    one, other = by.loc["1_strided"], by.loc["2_coalesced"]
    text = f"On the {gpu} rung 2 {display.against(other, one)} rung 1"
    if other["median_us"] > one["median_us"] and not display.level(other, one):
        text += ". **Coalesced, but with 1 thread where rung 1 has 32, it is slower**"
    text += f". Rung 1 reaches {one['roof_fraction']:.0%} of the roof, rung 2 {other['roof_fraction']:.0%}, "
    display.say(f"{text}with {blocks_of(n)} blocks on {sms} SMs.")


def counted(here: Lab, predicted: Rows, n: int) -> Rows:
    """Show the profiler's sectors beside the two predictions, and what DRAM and L2 did; its rows."""
    from rooflab.analysis import coalescing

    found = coalescing.counters(here.profile("gemv", study.counted(), "ncu", study.COUNTERS))
    found = found[(found["operator"] == "gemv") & (found["n"] == n)]
    cold = predicted.merge(found[(found["cache"] == "cold") & (found["options"] == "")], on="impl")
    cold["dram"] = cold["dram_read_bytes"] / roofline.gemm_bytes(1, n, n, 4, 4, 4)
    names = {
        "impl": "Rung",
        "both": "On paper",
        "watched": "Watched",
        "load_sectors_per_request": "Counted",
    }
    names |= {"load_efficiency_pct": "Bytes used (%)"}
    forms = dict.fromkeys(("both", "watched", "load_sectors_per_request"), "{:.2f}") | {
        "load_efficiency_pct": "{:.0f}"
    }
    title = f"Sectors a request of A or x, and bytes used of them: {n:,} × {n:,}, on {here.run['gpu']}"
    display.table(cold, names, forms, title)
    names = {"impl": "Rung", "l2_hit_pct": "Sectors found in L2 (%)"}
    names |= {"dram": "Read from DRAM ÷ matrix", "dram_pct": "DRAM busy (%)"}
    names |= {"occupancy_pct": "Thread slots used where a block is (%)"}
    forms = dict.fromkeys(names, "{:.0f}") | {"impl": "", "dram": "{:.2f}"}
    display.table(cold, names, forms, "Counted as well: L2, DRAM and threads", folded=True)
    return cold


def agreement(cold: Rows) -> bool | None:
    """Whether what the GPU counted is what the CPU watched, within 5%; None where nothing was counted."""
    if len(cold) < 2:
        return None
    return bool((cold["load_sectors_per_request"] / cold["watched"] - 1).abs().max() < 0.05)


def explained(cold: Rows, rows: Rows, here: Lab, n: int) -> None:
    """Say what the counters make of the time of an n x n product: caches' answers, or loads under way."""
    gpu, sms = here.run["gpu"], int(here.run["sms"])
    if len(cold) < 2:
        display.say(f"Nothing was counted on {gpu}, so the prediction is without a check.")
        return
    by, seen = rows.set_index("impl")["median_us"], cold.set_index("impl")
    slow, few = seen.loc["1_strided"], seen.loc["2_coalesced"]
    off = (cold["load_sectors_per_request"] / cold["watched"] - 1).abs().max()
    agreed = "as predicted" if agreement(cold) else "others than predicted"
    apart = "agree" if off < 0.0005 else f"differ by at most {off:.1%}"
    lines = [f"**The sectors are {agreed}**: counted and watched {apart}."]
    asked = 32 * float(slow["sectors"]) * n * n / 32
    rate = asked / by["1_strided"] / 1e3
    text = f"**Rung 1** uses {slow['load_efficiency_pct']:.0f}% of what it loads: of A "
    text += f"{1 / slow['sectors'] * 4:.1%}, of x all. "
    text += f"Each sector of A is asked for {asked / (4 * n * n):.0f} times, once for each of its columns: "
    text += f"{asked / 1e6:,.0f} MB, at {rate:,.0f} GB/s. "
    repeats, hits = 1 - 4 * n * n / asked, slow["l2_hit_pct"] / 100
    helped = slow["dram"] < 1.5 and hits < repeats - 0.02
    if slow["dram"] < 1.5:
        text += (
            f"DRAM delivers the matrix {slow['dram']:.2f} times; caches answer the repeats, {repeats:.0%} of "
        )
        text += f"the requests. L2 found {hits:.0%} of those that reached it"
        text += ", so L1 answered some, most likely. " if helped else ". "
    text += "The roof of L2 was not measured (part 01b), so what limits rung 1 is not shown."
    lines.append(text)
    asked, wasted = 32 * float(few["sectors"]) * n * n / 32, 100 - few["load_efficiency_pct"]
    text = f"**Rung 2** wastes {'nothing' if wasted < 1 else f'{wasted:.0f}%'} and asks for "
    text += f"{asked / 1e6:,.0f} MB, {asked / by['2_coalesced'] / 1e3:,.0f} GB/s."
    if by["2_coalesced"] > by["1_strided"] and blocks_of(n) < sms:
        text += " Sectors are not its limit"
        starves = starved(rows.set_index("impl").loc["2_coalesced"])
        text += "; the next section weighs the **two suspects**." if starves else "."
    display.say("\n".join(f"- {line}" for line in [*lines, text]))


def what_explains_it(rows: Rows, here: Lab, n: int) -> None:
    """Draw which SMs have work, and say what Little's law makes of the bytes in flight."""
    gpu, sms = here.run["gpu"], int(here.run["sms"])
    diagram.sms_at_work(n, n, sms, ("1_strided", "2_coalesced")).show()
    other = rows.set_index("impl").loc["2_coalesced"]
    blocks, threads = blocks_of(n), gemv.LADDERS["gemv"][1].with_defaults({})["THREADS"]
    text = f"Rung 2 has a thread a column: {n:,} threads in {blocks} blocks of {threads}"
    idle = sms - blocks
    text += f", and {idle} of the {gpu}'s {sms} SMs have nothing to do" if idle > 0 else ""
    text += ". Each thread has four loads of 4 bytes under way (`#pragma unroll 4`). "
    if other["predicted_us"] == other["predicted_us"]:
        part, wait = other["predicted_us"] / other["median_us"], latency(here)
        text += "By **Little's law**, bytes in flight ÷ latency is all the bandwidth they can ask for"
        if wait == wait:
            text += (
                f": {plot.size_text(in_flight(n))} ÷ {wait:.0f} ns, the latency of a lone load (part 00b), "
            )
            text += f"are {in_flight(n) / wait:,.0f} GB/s"
        text += f". At that rate this matrix takes {other['predicted_us']:,.1f} µs, {part:.0%} of the "
        text += f"{other['median_us']:,.1f} measured. "
        text += "**So bytes in flight would explain most of the time.** " if 0.5 < part < 2 else ""
    tried = "changes blocks and bytes in flight one at a time, and tells which of the two costs the time."
    display.say(f"{text}[Part 03b](03b_filling.ipynb) {tried}")
    display.say(_rung_1(rows, here, n))


def _rung_1(rows: Rows, here: Lab, n: int) -> str:
    """Whether rung 1 has bytes enough in flight, what its sectors waste, and how a coalesced rung with
    as many threads and bytes in flight compares, where part 03b times one.
    """
    one, roof = rows.set_index("impl").loc["1_strided"], here.roof["dram_read"].value
    most = 16 * 32 * min(n, 32 * int(here.run["sms"]))  # an SM holds 32 blocks
    needed = roofline.bytes_in_flight(roof, latency(here))
    text = f"As much a thread in rung 1, whose threads are 32 times as many, makes {plot.size_text(most)}"
    sectors = float(study.sectors(*study.first_request(gemv.LADDERS["gemv"][0], n, n, {"THREADS": 32})))
    if most > needed and one["roof_fraction"] < 0.5 and sectors > 4:
        text += (
            f", more than the {mib(needed)} that the roof needs at least: **rung 1 does not lack bytes in "
        )
        text += f"flight, but {1 - 4 / sectors:.1%} of what its loads of A fetch serves other columns**"
    alike = [case for case in study.splits_sweep(n) if case in here.cases("gemv")]
    alike = [case for case in alike if flying(here, [case.id])[0] == most]
    pair = here.measure("gemv", here.held("gemv", alike)) if alike else rows.head(0)
    pair = pair[pair["median_us"].notna()]
    if pair.empty:
        return f"{text}."
    text += ". With as many threads and bytes in flight, but coalesced, part 03b's rung 3 "
    return f"{text}{display.against(pair.iloc[0], one)} rung 1: a fairer pair."


def takeaway(cold: Rows, rows: Rows, gpu: str) -> None:
    """The page's last word."""
    by = rows.set_index("impl")
    one, other = by.loc["1_strided"], by.loc["2_coalesced"]
    counters: dict[bool | None, str] = {
        True: "; the GPU's counters agree",
        False: "; the GPU's counters differ",
    }
    text = f"- Sectors can be counted on paper and on a CPU{counters.get(agreement(cold), '')}. Where a "
    text += "request of 4-byte loads takes 4 sectors and near 100% of the bytes are used, look elsewhere.\n"
    if len(cold):
        sectors = cold.set_index("impl")["sectors"].get("1_strided", 4)
        text += f"- Uncoalesced loads ask the caches for more than the matrix: rung 1 for {sectors / 4:.0f} "
        text += "times its bytes.\n"
    text += "- *Coalesced* says that no fetched byte is wasted, not that many bytes are in flight: on the "
    text += f"{gpu} rung 2 reads {other['gb_s']:,.0f} GB/s, rung 1 {one['gb_s']:,.0f}. A kernel needs both."
    display.say(text)


def explored(here: Lab, impls: Sequence[str] = ()) -> dict[str, Any]:
    """What the explorer of FP32 products shows, all rungs or some of them: its keyword arguments."""
    from rooflab.view import explorer

    roof = here.roof["dram_read"].value
    rows = here.measure("gemv", [case for case in here.cases("gemv") if case.operator == "gemv"])
    rows = rows[(rows["options"] == "") & (rows["clock"] == "graph")]
    if impls:
        rows = rows[rows["impl"].isin(impls) | (rows["kind"] == "peer")]
    start: dict[str, Any] | None = {"impl": impls[-1], "cache": "cold"} if impls else None
    if start and (rows["n"] == 4096).any():
        start |= {"n": 4096}
    return {
        "frame": rows,
        "controls": {"impl": "Contestant", "cache": "Cache"},
        "roof": ("DRAM read", roof, "GB/s"),
        "labels": {"n": "n = k"},
        "title": f"FP32 GEMV on {here.run['gpu']}",
        "bound": lambda case: roofline.gemm_bytes(1, case.n, case.n, 4, 4, 4) / roof / 1e3,
        "measure": explorer.measurer(here),
        "start": start,
    }
