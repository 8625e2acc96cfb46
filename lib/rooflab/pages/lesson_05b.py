"""What lesson 05b's page shows: Q8_0 products of one token and a few, rung by rung."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab import lab
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.ops import q8_0
from rooflab.pages import BY_DATASHEET, Opening, Rows
from rooflab.pages.lesson_05b_shapes import UNDER_WAY, level_with
from rooflab.pages.lesson_05b_shapes import other_shapes as other_shapes
from rooflab.records.case import Case
from rooflab.studies import q8_0 as study
from rooflab.view import display, explorer, page, plot

# What else changes with a step that is timed as a whole.
_WITH_IT = {"2_dp4a": "; the factor includes x in Q8_1, four blocks an iteration and not one, and unrolling"}
_PLANES = (
    "; the factor includes x in planes, one scaling for 16 products, fewer threads a block, streaming loads "
    "and launch bounds that leave a thread more registers"
)
_BUSY = 60  # percent of the time from which on a unit may set it


def opening(here: Lab, n: int, k: int) -> Opening:
    """The first screen: the ladder at one token, and what FP16 takes."""
    rows = here.measure("q8_0", study.ladder(n, k))
    own, gpu = rows[rows["kind"] == "own"], here.run["gpu"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    near = level_with(own.set_index("impl")["median_us"])
    answer = f"The fastest of {len(own)} kernels, {best['impl']}{near}, reads at "
    answer += f"{best['roof_fraction']:.0%} of the {gpu}'s read roof; against the first it is "
    answer += display.speed(first["median_us"] / best["median_us"])
    dense = rows[rows["impl"] == "torch.matmul"]
    if len(dense):
        answer += f", against cuBLAS's FP16 {display.speed(dense['median_us'].iloc[0] / best['median_us'])}"
    if best["impl"] >= "4":
        answer += ". What it takes: dp4a, one instruction that multiplies four pairs of bytes, and a layout "
        answer += "from which a lane loads 16 bytes"
    answer += "."
    able = (
        "multiply four bytes in one instruction, exactly",
        "turn a layout that wastes requests into one that does not",
        "read sectors and requests from counters",
    )
    if len(dense):
        fig, said = _beside_halves(own, dense["median_us"].iloc[0], gpu, f"{n:,} × {k:,}")
        return answer, able, (fig, said + _beaten(dense.iloc[0], best))
    roof = ("read", here.roof["dram_read"].value, "GB/s")
    return answer, able, page.ladder(rows, gpu, roof, f"Q8_0, one token, {n:,} × {k:,}")


def _beaten(dense: Any, best: Any) -> str:
    """Why a product gains more on FP16 than its bytes allow, of the rows of FP16 and of the product; nothing
    where it does not.
    """
    gain = dense["median_us"] / best["median_us"]
    if gain <= 2 / study.WEIGHT_BYTES or not dense["roof_fraction"] < best["roof_fraction"]:
        return ""
    return (
        f" {best['impl']} gains more than its bytes, because cuBLAS reads FP16 at only "
        f"{dense['roof_fraction']:.0%} of the roof."
    )


def _beside_halves(own: Rows, dense_us: float, gpu: str, matrix: str) -> tuple[Figure, str]:
    """Every rung's time in units of FP16's, beside the share of its bytes, and the caption."""
    title, bytes_ = f"Time of Q8_0 over cuBLAS's FP16, one token, {matrix}", study.WEIGHT_BYTES / 2
    fig, ax = plot.figure("× the time of cuBLAS in FP16", title=title, height=1.1 + 0.21 * len(own))
    fig.set_figwidth(page.WIDEST)
    times = [own[column] / dense_us for column in ("median_us", "q1_us", "q3_us")]
    plot.bars(ax, list(own["impl"]), times[0], "×", None, *times[1:])
    for text, value in zip(ax.texts, times[0], strict=True):  # the line does not cross them
        if text.get_color() == "black" and value < bytes_:
            text.xy = (bytes_, text.xy[1])
    plot.roof_line(ax, bytes_, f"its bytes: {bytes_:.2f}", vertical=True)
    return fig, f"{title} on {gpu}, {plot.dates(own)}. The line is the share of the bytes that it reads."


def bounds(here: Lab, n_asked: int, k_asked: int, read_roof: float) -> tuple[list[Any], Rows]:
    """Show the bound of each shape in Q8_0 and in FP16; the cases and the table."""
    decode = [c for c in here.cases("q8_0") if c.operator == "q8_0" and c.cache == "cold"]
    shapes = list(dict.fromkeys([(n_asked, k_asked), *((c.n, c.k) for c in decode)]))
    floor = pd.DataFrame(shapes, columns=["n", "k"])
    for form, size in (("q8_0", study.WEIGHT_BYTES), ("fp16", 2)):
        floor[form] = [roofline.gemm_bytes(1, n, k, size) / read_roof / 1e3 for n, k in shapes]
    floor["ratio"] = floor["fp16"] / floor["q8_0"]
    names = {"n": "Rows n", "k": "k", "q8_0": "Q8_0: no faster than (µs)"}
    names |= {"fp16": "FP16 (µs)", "ratio": "Times as fast"}
    first = floor.iloc[0]
    display.say(
        f"For {n_asked:,} × {k_asked:,} that is {first['q8_0']:.1f} µs, against {first['fp16']:.1f} µs in "
        f"FP16: {first['ratio']:.2f} times as fast, if both read at the roof. It is not 2 times, because a "
        "block of 32 weights has 34 bytes."
    )
    forms = dict.fromkeys(("q8_0", "fp16", "ratio"), "{:.2f}")
    display.table(floor, names, forms, "The bound of every shape", folded=True)
    return decode, floor


def errors_of_rungs(here: Lab, name: str, cases: Callable[[str], list[Case]]) -> Rows:
    """Show how exact every rung of a study is, on the cases of either judge, "exact" and "unquantised"; the
    largest error of each, and the largest share of the outputs' RMS that it is off by.
    """
    hows = ("exact", "unquantised")
    judged = [here.measure(name, cases(how)).assign(how=how) for how in hows]
    judged = pd.concat(judged)
    judged["off"] = study.TOLERANCE * judged["error"] / judged["error_budget"]
    worst = judged.groupby(["how", "impl"])[["error", "off"]].max()
    worst = {"exact": worst.loc["exact", "error"], "off": worst.loc["unquantised", "off"]}
    worst = pd.DataFrame(worst)
    names = {"impl": "Rung", "exact": "Exact: largest error", "off": "Unquantised: off by (of the RMS)"}
    forms = {"exact": "{:g}", "off": "{:.2%}"}
    display.table(worst.reset_index(), names, forms, "How exact every rung is", folded=True)
    return worst


def exactness(here: Lab) -> None:
    """Show how exact every rung is, on scales that are powers of two and against x as it was."""
    errors_of_rungs(here, "q8_0", study.judged)


def ladder_times(here: Lab, n: int, k: int) -> Rows:
    """Show every rung's error and time; the rows."""
    rows = here.measure("q8_0", study.ladder(n, k))
    rows["off"] = rows["error"] / rows["error_budget"]
    pairs = zip(rows["q1_us"], rows["q3_us"], strict=True)
    rows["quartiles"] = [f"{low:,.1f} to {high:,.1f}" for low, high in pairs]
    names = {"impl": "Rung or peer", "off": "Error ÷ allowed"}
    names |= {"predicted_us": "By datasheet (µs)", "median_us": "Median (µs)"}
    names |= {"quartiles": "Quartiles (µs)", "registers": "Registers"}
    times = ("predicted_us", "median_us")
    forms = dict.fromkeys(times, "{:,.1f}") | {"off": "{:.0%}"}
    display.table(rows, names, forms, BY_DATASHEET, folded=True)
    return rows


def steps_compared(rows: Rows, rungs: Any, gpu: str, loads: Rows) -> tuple[Rows, Rows]:
    """Say what each step of the ladder brings, rung 4's two changes apart by its `loads`; the fastest rung's
    row and rung 3's.
    """
    by = rows.set_index("impl")
    own = rows[rows["kind"] == "own"].sort_values("median_us")
    best = own.iloc[0]
    text = f"On the {gpu} **{best['impl']}** needs {best['median_us']:.1f} µs, "
    text += f"{best['roof_fraction']:.0%} of the roof{level_with(own.set_index('impl')['median_us'])}.\n\n"
    for number, step in enumerate(("dp4a", "The scale in one load"), 1):
        before, after = rungs[number - 1].name, rungs[number].name
        if {before, after} <= set(by.index):  # a chip may hold too little for one of them
            text += f"- {step}: rung {number + 1} {display.against(by.loc[after], by.loc[before])} "
            text += f"rung {number}{_WITH_IT.get(after, '')}.\n"
    three, four = (rungs[at].name for at in (2, 3))
    alone, several = (loads[loads["unroll"] == under_way] for under_way in (1, UNDER_WAY))
    if {three, four} <= set(by.index) and len(alone) and len(several):
        text += "- Planes: rung 4 with one load under way at a time "
        text += f"{display.against(alone.iloc[0], by.loc[three])} rung 3, on as many bytes{_PLANES}.\n"
        text += f"- Several loads under way: rung 4 with {UNDER_WAY}, as above, "
        text += f"{display.against(several.iloc[0], alone.iloc[0])} "
        text += "rung 4 with one.\n"
    elif {three, four} <= set(by.index):
        text += "- Planes and more loads under way: rung 4 "
        text += f"{display.against(by.loc[four], by.loc[three])} rung 3, "
        text += f"on as many bytes{_PLANES}.\n"
    if "torch.matmul" in by.index:
        fp16 = by.loc["torch.matmul"]
        text += f"- cuBLAS on the same matrix in FP16 takes {fp16['median_us']:.1f} µs, "
        text += f"{fp16['median_us'] / best['median_us']:.2f} times as long as "
        text += f"{best['impl']}.\n"
    display.say(text)
    return best, by.loc[three]


def beside_published(n_asked: int, k_asked: int, here: Lab, gpu: str) -> None:
    """Say what llama.cpp's own test reports for this shape."""
    told = lab.open("replay", "h200-peers").store.read("q8_0")
    told = told[
        (told["format"] == "q8_0") & (told["n"] == n_asked) & (told["k"] == k_asked) & (told["batch"] == 1)
    ]
    if len(told):
        theirs = told.iloc[0]
        warm, cold = (here.measure("q8_0", study.ladder(n_asked, k_asked, how)) for how in ("warm", "cold"))
        ours, least = (rows[rows["kind"] == "own"]["median_us"].min() for rows in (warm, cold))
        text = "Published, for comparison: llama.cpp's own test of this shape says "
        text += f"{theirs['median_us']:.1f} µs on an H200, warm. On the {gpu}, warm, the best rung "
        text += f"here takes {ours:.1f} µs"
        same = abs(ours / least - 1) < 0.03
        text += ", as long as cold" if same else ""
        share = n_asked * k_asked * study.WEIGHT_BYTES / here.run["l2_bytes"]
        text += f": the matrix alone has {share:.0%} of the L2's size"
        if same and 0.8 < share <= 1:
            text += ", x and y come beside it, and most likely each pass drives out what the next needs"
        text += ". "
        display.say(f"{text}Theirs includes quantising x, ours does not{_with_quantising(here, ours)}.")


def _with_quantising(here: Lab, us: float) -> str:
    """What the best rung's warm time is with part 05's quantiser of one token added, where that was timed."""
    asked = [case for case in study.quantisers() if case.batch == 1]
    rows = here.measure("q8_0", held) if (held := here.held("q8_0", asked)) else pd.DataFrame()
    if rows.empty:
        return ""
    row = rows.loc[rows["median_us"].idxmin()]
    least, k = float(row["median_us"]), int(row["k"])
    return (
        f": with the {least:.1f} µs that [part 05](05_q8_0.ipynb) has for quantising {k:,} activations "
        f"it would be {us + least:.1f} (added up, not timed together)"
    )


def counters(here: Lab, n: int, k: int, gpu: str) -> Rows:
    """Show the profiler's counters of each rung; its rows."""
    counted = here.profile("q8_0", study.counted(), "ncu", study.COUNTERS)
    cases = [study.Q8().case(case) for case in counted["case"]]
    counted["impl"] = [case.impl for case in cases]
    wanted = [case.id for case in cases if (case.operator, case.n, case.k) == ("q8_0", n, k)]
    seen = counted[counted["case"].isin(wanted)].copy()
    seen["m"] = seen["inst_executed"] / 1e6
    loads = ["load_sectors_per_request", "load_efficiency_pct"]
    seen.loc[seen[loads[1]] == 0, loads] = float("nan")  # copies do not count as loads
    seen["dram"] = seen["dram_read_bytes"] / (n * k * study.WEIGHT_BYTES)
    seen["used"] = 32 * seen[loads[0]] * seen[loads[1]] / 100
    names = {"impl": "Rung", "load_sectors_per_request": "Sectors a request"}
    names |= {"load_efficiency_pct": "Bytes used %", "used": "Bytes used a request"}
    names |= {"m": "Instructions (millions)", "dram": "DRAM ÷ matrix"}
    names |= {"dram_pct": "DRAM busy %", "sm_pct": "Busiest unit of an SM %"}
    forms = dict.fromkeys(list(names)[1:], "{:.1f}") | {"dram": "{:.2f}"}
    forms |= dict.fromkeys(("used", "dram_pct", "sm_pct"), "{:.0f}")
    display.table(seen, names, forms, f"ncu on {gpu}, {n:,} × {k:,}, cold")
    return seen


def counters_explained(seen: Rows, rungs: Any) -> Any:
    """Say in what the rungs differ, by their counters; whether they read the same bytes."""
    same: Any = None
    if len(seen) >= 4:
        c = seen.set_index("impl")
        one, two, three, four = (c.loc[rung.name] for rung in rungs[:4])
        text = f"No rung reads more than {c['dram'].max():.2f} times the matrix from DRAM"
        same = c["dram"].max() < 1.1
        text += ", so the rungs do not differ in bytes. They" if same else ". They also"
        text += " differ in what it takes to move them. **A request brings "
        text += ", ".join(f"{row['used']:.0f}" for row in (one, two, three))
        text += f" and {four['used']:.0f} bytes that are used** on rungs 1 to 4, so rung 4 needs the fewest "
        text += "requests; instructions fall with them. On rung 1 that is "
        text += (
            f"{one['load_sectors_per_request']:.1f} sectors × 32 bytes × {one['load_efficiency_pct']:.1f}%: "
        )
        text += (
            "of its four loads one brings 32 bytes of quants, one 64 of x, and two a byte of the scale for "
        )
        text += (
            "all lanes. On rungs 2 and 3 neighbouring loads fetch the same sectors again. Each 2-byte load "
        )
        text += "of a word counts alone."
        display.say(text + _ruled_out([one, two, three]))
    return same


def _ruled_out(slow: list[Any]) -> str:
    """What the counters of the rungs that read blocks rule out as the cause of their times; or nothing."""
    busy, waits = ([float(row[of]) for row in slow] for of in ("dram_pct", "stall_long_scoreboard"))
    most = max(*busy, *(float(row["sm_pct"]) for row in slow))
    if not most < _BUSY:
        return ""
    return (
        f"\n\n**What this rules out**: on rungs 1 to 3 DRAM is busy {min(busy):.0f} to {max(busy):.0f}% of "
        f"the time and the SMs' busiest unit at most {max(float(row['sm_pct']) for row in slow):.0f}%. So "
        "neither DRAM's rate nor instructions set their time: their warps wait for loads, "
        f"{min(waits):.0f} to {max(waits):.0f} cycles for each instruction. How much of that is requests in "
        "L1, whose time was not counted, is not known."
    )


def loads_of(here: Lab, n: int, k: int) -> Rows:
    """Rung 4 by the number of loads that a lane has under way, `unroll`."""
    loads = here.measure("q8_0", study.loads(n, k))
    loads["unroll"] = loads["options"].str.extract(r"unroll=(\d+)")[0].astype(int)
    return loads


def loads_in_flight(loads: Rows, rows: Rows) -> None:
    """Show rung 4 by the number of loads that a lane has under way, and say what they cost; the ladder's
    `rows` have one of these builds, timed once more.
    """
    names = {"unroll": "Loads a lane", "median_us": "µs", "roof_fraction": "Of the roof"}
    names |= {"registers": "Registers"}
    forms = {"median_us": "{:.2f}", "roof_fraction": "{:.0%}"}
    display.table(loads, names, forms, "Rung 4 by loads under way")
    if len(loads) > 1:
        few, most = loads.iloc[0], loads.loc[loads["median_us"].idxmin()]
        text = f"With {most['unroll']} loads under way the rung {display.against(most, few)} the same with "
        text += f"{few['unroll']}. What is under way takes registers: {most['registers']} a thread "
        text = f"{text}instead of {few['registers']}, as the compiler deals them, addresses and all."
        again = loads[loads["unroll"] == UNDER_WAY]["median_us"]
        ladder = rows[rows["impl"] == q8_0.LADDERS["q8_0"][3].name]["median_us"]
        if len(again) and len(ladder) and again.iloc[0] != ladder.iloc[0]:
            text += f" The build with {UNDER_WAY} was timed twice: {ladder.iloc[0]:.2f} µs among the rungs, "
            text += f"{again.iloc[0]:.2f} here."
        display.say(text)


def times_by_tokens(here: Lab, n: int, k: int, floor: Rows, gpu: str) -> Rows:
    """Draw the time by number of tokens; the rows."""
    few = here.measure("q8_0", study.batches(n, k))
    title = f"Kernels for several tokens: 1 to {few['batch'].max()}, {n:,} × {k:,}, cold"
    fig, ax = plot.figure("tokens", "µs", title)
    for impl, group in few.groupby("impl"):
        plot.series(ax, group["batch"], *plot.band(group, "median_us"), label=impl)
    least = floor["q8_0"].iloc[0]
    plot.roof_line(ax, least, f"bytes at the read roof, {least:.1f} µs", where="right")
    plot.label_ends(ax)
    plot.show(fig, plot.caption(few, gpu, title, y="median_us"))
    return few


def tokens_compared(few: Rows, best: Rows, gpu: str) -> tuple[Any, float]:
    """Say what several tokens cost beside one on its `best` rung, and which of the rungs for several is
    fastest: the most tokens, and how many times as long as one they take (NaN where one was not measured).
    """
    own = few[few["kind"] == "own"]
    fastest = own.loc[own.groupby("batch")["median_us"].idxmin()].set_index("batch")
    tokens, growth, text = fastest.index.max(), float("nan"), f"On the {gpu}: "
    if 1 in fastest.index:  # a chip may hold too little for the rungs of one token
        one = best if best["median_us"] <= fastest.loc[1, "median_us"] else fastest.loc[1]
        growth = fastest.loc[tokens, "median_us"] / one["median_us"]
        text = f"On the {gpu}, {tokens} tokens on {fastest.loc[tokens, 'impl']} take {growth:.2f} times as "
        text += f"long as one on {one['impl'] if 'impl' in one else fastest.loc[1, 'impl']}. "
    runs = itertools.groupby(fastest["impl"].items(), key=lambda each: each[1])
    spans = [(impl, [batch for batch, _ in group]) for impl, group in runs]
    said = [f"{impl} at {at[0]}" + (f" to {at[-1]}" if len(at) > 1 else "") for impl, at in spans]
    text += f"Fastest of these rungs: {', '.join(said)} tokens. "
    display.say((text + _why(own)).rstrip())
    return tokens, growth


def _why(own: Rows) -> str:
    """Why rung 5's time grows with the tokens and rung 6's does not, where that was measured."""
    by = own.pivot_table(index="impl", columns="batch", values="median_us")
    if not {"5_batch", "6_mma"} <= set(by.index):
        return ""
    five, six = (by.loc[name].dropna() for name in ("5_batch", "6_mma"))
    if not (five.iloc[-1] / five.iloc[0] > 1.1 > six.iloc[-1] / six.iloc[0]):
        return ""
    text = "Rung 5 does its dp4a and its scaling again for each token, so its time grows with them. Rung 6's "
    text += "mma multiplies eight tokens in any case, and stays level."
    return text


def takeaway(
    best: Rows,
    rungs: Any,
    gpu: str,
    n_asked: int,
    k: int,
    word: Rows,
    seen: Rows,
    same: Any,
    tokens: Any,
    growth: float,
) -> None:
    """What to take away, computed."""
    layout = "planes" if best["impl"] in [rung.name for rung in rungs[3:]] else "34-byte blocks"
    text = (
        f"- On the {gpu} {best['impl']} reads {layout} of a {n_asked:,} × {k:,} matrix at "
        f"{best['gb_s']:,.0f} GB/s, "
    )
    text += f"{best['roof_fraction']:.0%} of the roof; rung 3 reads 34-byte blocks at {word['gb_s']:,.0f}.\n"
    if len(seen) >= 4 and same:
        text += "- Narrow loads take more requests and instructions for the same bytes of DRAM.\n"
    text += "- Whole numbers add up exactly, so a scale comes in once for four products or more.\n"
    if growth == growth:
        text += f"- {tokens} tokens take {growth:.2f} times as long as one, each on its fastest rung."
    display.say(text)


def _start(every: Rows, n: int) -> dict[str, Any]:
    """The explorer's first curve: on the page's matrix, the fastest of the own rungs with the most tokens."""
    own = every[(every["kind"] == "own") & every["batch"].notna() & (every["n"] == n)]
    counts = own.groupby("impl")["batch"].nunique()
    if counts.empty:
        return {}
    most = counts[counts == counts.max()].index
    return {"impl": own[own["impl"].isin(most)].set_index("impl")["median_us"].idxmin(), "n": n}


def explore(read_roof: float, every: Rows, gpu: str, here: Lab, n: int) -> Any:
    """The explorer of Q8_0 products, by contestant, rows and tokens."""

    def bound(case):
        return roofline.gemm_bytes(case.batch, case.n, case.k, study.WEIGHT_BYTES) / read_roof / 1e3

    return explorer.Explorer(
        "q8-decode",
        every[every["batch"].notna()].assign(predicted_us=every["bytes"] / read_roof / 1e3),
        x="batch",
        controls={"impl": "Contestant", "n": "Rows"},
        roof=("DRAM read", read_roof, "GB/s"),
        title=f"Q8_0 matvec on {gpu}, cold",
        foretold="at least {} µs (measured read roof)",
        bound=bound,
        measure=explorer.measurer(here),
        xlog=False,
        start=_start(every, n),
    )
