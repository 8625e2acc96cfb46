"""What lesson 03b says of its climb, rung by rung, and what it counts of a rung's launch."""

from __future__ import annotations

from collections.abc import Iterable

from rooflab import studies
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.ops import gemv, stream
from rooflab.pages import Rows
from rooflab.studies import bandwidth, environment
from rooflab.studies import gemv as study
from rooflab.view import display, plot
from rooflab.words import listed


def launched(here: Lab, case: str) -> tuple[int, int]:
    """The blocks of an own case, and the threads of each."""
    found = studies.get("gemv").case(case)
    rung, macros, _ = study.own_rung(found)
    n, k = found.n or 0, found.k or 0
    blocks = gemv.blocks_of(rung, n, macros)
    if rung.name in gemv.SHARED_COLUMNS:
        blocks *= gemv.splits_of(rung, n, k, macros, int(here.run["sms"]))
    return blocks, macros["THREADS"]


def mib(size: float) -> str:
    """Bytes in MiB with one decimal: what Little's law asks for is no round number."""
    return f"{size / 2**20:.1f} MiB" if size == size else "an unknown number of bytes"


def flying(here: Lab, cases: Iterable[str]) -> list[int]:
    """The bytes that each case has in flight at most."""
    found = studies.get("gemv")
    return [study.in_flight_bytes(found.case(case), int(here.run["sms"])) for case in cases]


def latency(here: Lab) -> float:
    """Nanoseconds of a lone load from DRAM, by lesson 00b's pointer chase; NaN where it was not recorded."""
    chase = here.measure("environment", environment.chases(warm=(), cold=environment.CHASE_COLD[:1]))
    return environment.latency_ns(chase) or float("nan")


def recorded(here: Lab, n: int) -> list[int]:
    """The sizes of square products that were recorded, and n."""
    return sorted({n, *(case.n for case in here.cases("gemv") if case.operator == "gemv" and case.n)})


def start_us(here: Lab) -> float:
    """Microseconds to start and finish any read, by lesson 01b's smallest; NaN where there is none."""
    reads = [case for case in here.cases("bandwidth") if case.operator == "read" and case.cache == "cold"]
    reads = here.held("bandwidth", [case for case in reads if case.impl == stream.DEFAULT["read"]])
    smallest = [min(reads, key=lambda case: case.n or 0)] if reads else []
    found = here.measure("bandwidth", smallest) if smallest else []
    return bandwidth.fixed_us(found, here.roof["dram_read"].value) if len(found) else float("nan")


def timed_again(here: Lab, rows: Rows, n: int) -> str:
    """That sweeps of this page and of 03c time kernels of the ladder `rows` once more, with both rates; empty
    where none was.
    """
    rung, sms = gemv.LADDERS["gemv"][2], int(here.run["sms"])
    same = f"splits={gemv.splits_of(rung, n, n, rung.with_defaults({}), sms)}"
    cases = [case for case in (*study.splits_sweep(n), *study.padding(n)) if case.options in (same, "pad=1")]
    again = here.held("gemv", [case for case in cases if case in here.cases("gemv")])
    by = rows.set_index("impl")["gb_s"]
    found = here.measure("gemv", again) if again else rows.head(0)
    found = found[found["impl"].isin(by.index)]
    said = [f"{row.impl} ({by[row.impl]:,.0f} and {row.gb_s:,.0f})" for row in found.itertuples()]
    return f"Timed twice, in the ladder and in a sweep: {listed(said)}." if said else ""


def measured_need(here: Lab) -> str:
    """That the latency of a lone load gives only the least that the read roof needs in flight, and what
    lesson 01 measured, as the end of a clause: " at least (8.3 MiB for 98% of it, by lesson 01)".
    """
    sms, roof = int(here.run["sms"]), here.roof["dram_read"].value
    text, cases = " at least", here.held("bandwidth", bandwidth.in_flight(sms))
    rows = here.measure("bandwidth", cases) if cases else None
    if rows is None or rows.empty:
        return text
    found = [bandwidth.in_flight_bytes(studies.get("bandwidth").case(name), sms) for name in rows["case"]]
    near = rows.assign(flying=found).sort_values("flying")
    near = near[near["gb_s"] >= 0.95 * roof]
    if near.empty:
        return text
    first = near.iloc[0]
    return f"{text} ({mib(first['flying'] * sms)} for {first['gb_s'] / roof:.0%} of it, by lesson 01)"


def left_by_rung_3(rows: Rows, here: Lab, n: int) -> None:
    """Say what of rung 3's time its bytes are, and what start and finish; what is left is to be saved."""
    three, roof = rows.set_index("impl").loc["3_split_k"], here.roof["dram_read"].value
    most, needed = flying(here, [three["case"]])[0], roofline.bytes_in_flight(roof, latency(here))
    floor = three["bytes"] / roof / 1e3
    rest, start = three["median_us"] - floor, start_us(here)
    text = f"Rung 3 has {plot.size_text(most)} in flight"
    text += f", more than the {mib(needed)} that the roof needs at least" if most > needed else ""
    text += f". At {n:,} × {n:,} it takes {three['median_us']:.1f} µs: {floor:.1f} for its bytes at the read "
    text += f"roof, and **{rest:.1f} for something else**"
    if start == start:
        text += f". Of these {min(start, rest):.1f} are the start and finish of any read "
        text += "([lesson 01b](01b_roofs.ipynb))"
        text += f", so {rest - start:.1f} could be saved" if rest > start else ""
    display.say(f"{text}. Three rungs try, each with an idea of its own.")


def result(rows: Rows, here: Lab, n: int, name: str, *others: str) -> None:
    """Say what a rung reads, how it compares with each of `others`, and with the last at other sizes."""
    by, rung = rows.set_index("impl"), f"rung {name.partition('_')[0]}"
    mine = by.loc[name]
    each = [f"{display.against(mine, by.loc[other])} rung {other.partition('_')[0]}" for other in others]
    text = f"**Result.** At {n:,} × {n:,} {rung} reads {mine['gb_s']:,.0f} GB/s; it {listed(each)}."
    last, elsewhere = others[-1], []
    slower = mine["median_us"] > by.loc[last]["median_us"] and not display.level(mine, by.loc[last])
    for size in recorded(here, n):
        asked = [case for case in study.ladder("gemv", size, size) if case.impl in (name, last)]
        pair = here.measure("gemv", asked).set_index("impl")
        if size != n and {name, last} <= set(pair.index) and pair["median_us"].notna().all():
            ours, theirs = pair.loc[name], pair.loc[last]
            ratio = f"{theirs['median_us'] / ours['median_us']:.2f} times its speed"
            ratio = "the same speed" if display.level(ours, theirs) else ratio
            elsewhere.append(f"{ratio} at {size:,} × {size:,}")
    if elsewhere:
        text += f" Against rung {last.partition('_')[0]} at other sizes: {', '.join(elsewhere)}."
    if slower:
        text += f" What makes it slower at {n:,} was not found."
    display.say(text)


def changes_with_strips(rows: Rows, here: Lab) -> None:
    """Say what else changes with rung 6."""
    more, strips = (rows.set_index("impl").loc[name] for name in ("5_in_flight", "6_column_strips"))
    (few, _), (many, _) = (launched(here, row["case"]) for row in (strips, more))
    before, after = flying(here, [more["case"], strips["case"]])
    text = "From rung 5 to rung 6 **several things change at once**: "
    text += (
        f"{plot.size_text(after)} in flight instead of {plot.size_text(before)}, " if before != after else ""
    )
    text += (
        f"{few:,} blocks instead of {many:,}, narrower strips, and no partial sums that cross blocks. The "
    )
    text += "recording cannot tell which of them it is; a rung for each would."
    display.say(text)
