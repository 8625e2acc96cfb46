"""What lesson 04b's page shows: the INT4 ladder, the instructions that a weight may cost, and their count."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from rooflab import studies
from rooflab.analysis import way
from rooflab.hardware import crossover, roofline
from rooflab.lab import Lab
from rooflab.numerics import quant
from rooflab.ops import int4, stream
from rooflab.pages import Opening, Rows, named_facts
from rooflab.pages.lesson_04b_bytes import as_bytes as as_bytes
from rooflab.pages.lesson_04b_causes import beside_arithmetic as beside_arithmetic
from rooflab.pages.lesson_04b_causes import brings as brings
from rooflab.pages.lesson_04b_causes import labelled, untuned_end
from rooflab.pages.lesson_04b_causes import limit_of_each_rung as limit_of_each_rung
from rooflab.paths import KERNELS
from rooflab.studies import bandwidth
from rooflab.studies import int4 as study
from rooflab.view import diagram, display, page, plot
from rooflab.view.diagram.reading import part_of
from rooflab.view.diagram.words import half
from rooflab.words import listed

# What decode-roofline's kernel does with each weight, an instruction each; loads and addresses come on top.
LEAST = ("shift", "mask", "- 8", "to float", "x to float", "× and + in one")
_RUNGS = int4.LADDERS["int4"]
_WARPS = {"7.5": 32, "8.6": 48, "8.9": 48, "12.0": 48}  # that an SM holds at most; others hold 64
# The rungs written for one token; the others of the ladder wait for part 04c.
_ONE_TOKEN = [rung.name for rung in (*_RUNGS[:5], *_RUNGS[6:9])]


def affordable(sms: int, ghz: float, read_roof: float, weight: float) -> float:
    """Instructions of a thread that a weight of so many bytes may cost at the read roof."""
    return sms * 4 * 32 * ghz / (read_roof / weight)


def opening(here: Lab, large: Any, afford: float, spent: Rows) -> Opening:
    """The first screen: the budget of instructions, what was counted (`spent`), and the ladder."""
    rows = here.measure("int4", study.ladder(*large, here.sized))
    own = rows[rows["kind"] == "own"]
    first, best, gpu = own.iloc[0], own.sort_values("median_us").iloc[0], here.run["gpu"]
    each = spent["each"]
    answer = "An SM starts instructions at a fixed rate. While DRAM delivers a weight at the read roof of "
    answer += f"the {gpu}, there is time for {afford:.1f} instructions; the first "
    answer += (
        f"kernel spends {each[first['case']]:.1f}" if first["case"] in each else "kernel spends at least "
    )
    answer += "" if first["case"] in each else f"{len(LEAST)}"
    answer += f" and takes {first['median_us']:.0f} µs"
    dense = rows[rows["impl"] == "torch.matmul"]["median_us"]
    answer += f", where FP16 in cuBLAS takes {dense.iloc[0]:.0f}" if len(dense) else ""
    tuned = best["case"] == study.chosen(*large, 1, here.sized).id
    answer += f". The fastest{', its constants tuned to this matrix,' * tuned}"
    answer += f" spends {each[best['case']]:.1f} and" if best["case"] in each else ""
    answer += (
        f" takes {best['median_us']:.0f} µs: {display.speed(first['median_us'] / best['median_us'])} as "
    )
    answer += f"the first, {best['roof_fraction']:.0%} of the roof."
    answer += untuned_end(own[own["impl"].isin(_ONE_TOKEN)], best) if tuned else ""
    able = (
        "work out how many instructions a weight may cost on a GPU",
        "turn four-bit codes into FP16 numbers without a conversion",
        "read from counters whether a kernel is bound by issue slots or by memory",
    )
    shown = own[own["impl"].isin(_ONE_TOKEN) | (own["case"] == best["case"])]
    shown = shown.drop_duplicates("case")
    is_tuned = shown["case"] == study.chosen(*large, 1, here.sized).id
    shown["impl"] = shown["impl"].where(~is_tuned, shown["impl"] + " (tuned)")
    shown = pd.concat([labelled(shown), rows[rows["kind"] == "peer"]])
    roof = ("read", here.roof["dram_read"].value, "GB/s")
    fig, caption = page.ladder(shown, gpu, roof, f"Rungs on one token, {large[0]:,} × {large[1]:,} weights")
    named = shown["impl"][shown["case"] == best["case"]].iloc[0]
    caption = caption.replace(f"fastest {best['impl']},", f"fastest {named},")
    return answer, able, (fig, f"{caption} Rung 6 is for several tokens (part 04c).")


def run_facts(
    gpu: str, here: Lab, sms: int, ghz: float, read_roof: float, large: Any, weight: float, small: Any
) -> None:
    """The facts of the run, in one line."""
    more = {
        "SMs, clock": f"{sms}, {ghz:.2f} GHz",
        "Read roof": f"{read_roof:,.0f} GB/s",
        "A large matrix": f"{large[0]:,} × {large[1]:,}, {weight * large[0] * large[1] / 1e6:.0f} MB",
        "A small one": f"{small[0]:,} × {small[1]:,}, {weight * small[0] * small[1] / 1e6:.0f} MB",
    }
    named_facts(here, gpu, "int4", more)


def instruction_budget(sms: int, ghz: float, read_roof: float, weight: float, gpu: str, spent: Rows) -> None:
    """Draw how many instructions a weight may cost at the read roof; say what the first rung spends."""
    slots, chip = roofline.issue_slots(sms, ghz), (read_roof, sms, ghz)
    arriving = {"INT4": read_roof / weight, "FP16": read_roof / 2}  # weights a nanosecond
    budget = pd.DataFrame({"format": arriving.keys(), "rate": arriving.values()})
    budget["each"] = [roofline.instructions_afforded(8 * bytes_, *chip) for bytes_ in (weight, 2)]
    names = {"format": "Weights", "rate": "At the roof, weights/ns"}
    names |= {"each": "Instructions each may cost"}
    forms = {"rate": "{:,.0f}", "each": "{:.1f}"}
    title = f"{slots:,.0f} thread instructions a nanosecond on {gpu}, divided by the weights that arrive"
    afford = float(budget["each"][0])
    share = roofline.share_for_instructions(len(LEAST), 8 * weight, *chip)
    first = spent[spent["impl"] == _RUNGS[0].name]["each"]
    diagram.budget(afford, LEAST, [("rung 1, counted", each) for each in first]).show()
    arriving_at = " or ".join(f"{row.rate:,.0f} {row.format} weights" for row in budget.itertuples())
    display.say(
        f"In a nanosecond\n\n- {sms} SMs × 4 issue slots × 32 threads × {ghz:.2f} GHz = {slots:,.0f} thread "
        "instructions can start\n"
        f"- {arriving_at} arrive at the roof\n\n"
        f"{slots:,.0f} ÷ {budget['rate'][0]:,.0f}: an INT4 weight may cost **{afford:.1f} instructions**, "
        f"an FP16 weight {budget['each'][1]:.1f}. "
        + (
            f"A kernel that spends {len(LEAST)} cannot reach more than {share:.0%} of the roof on "
            f"the {gpu}, whatever its loads."
            if share < 1
            else f"On the {gpu} the roof leaves room for {len(LEAST)}."
        )
    )
    if len(first):
        said = f"Rung 1 spends {first.iloc[0]:.1f} with its loads and addresses"
        display.say(said + _issuing(spent))
    display.table(budget, names, forms, title, folded=True)


def _issuing(spent: Rows) -> str:
    """The end of a sentence on rung 1: how many slots it uses, and why waits for memory leave so few free."""
    first = spent[spent["impl"] == _RUNGS[0].name]
    if first.empty:
        return ""
    row = first.iloc[0]
    text = f", and its schedulers start an instruction in {row['issue_active']:.0%} of their slots."
    wait = row["stall_long_scoreboard"]
    if row["issue_active"] > 0.6 and wait > 0:
        text += (
            f" A warp does wait for memory, {wait:.1f} cycles for each of its instructions. But an SM holds "
        )
        text += (
            f"{row['occupancy_pct']:.0f}% of the warps that it could hold, and the others fill most slots "
        )
        text += "meanwhile: **slots are rung 1's nearest limit, not the latency of memory**."
    return text


def tiles_lose_nothing() -> None:
    """Say that the repacked weights hold the same bits as the rows."""
    rng = np.random.default_rng(4)
    rows = int4.Rows(*quant.quantise_int4(rng.standard_normal((192, 512))))
    tiles = int4.repack(*rows)
    back = int4.unpack(tiles)
    same = all(np.array_equal(a, b) for a, b in zip(rows, back, strict=True))
    before = sum(part.nbytes for part in rows)
    display.say(
        (
            "Repacking changes no size. "
            if tiles.blocks.nbytes == before
            else f"The weight blocks take {tiles.blocks.nbytes / before:.0%} of the bytes of the rows. "
        )
        + "Packed back, "
        f"{'every bit is where it was' if same else 'BITS ARE LOST'} (tried here on {rows.n:,} × {rows.k:,} "
        "random weights)."
    )


def ladder_rows(large: Any, small: Any, here: Lab) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The rows of every rung on both matrices, and the tuned cases."""
    ladder, tuned = {}, {}
    for shape in (large, small):
        found = here.measure("int4", study.ladder(*shape, here.sized))
        tuned[shape] = study.chosen(*shape, 1, here.sized).id
        last = found["case"] == tuned[shape]
        found["impl"] = found["impl"].where(~last, found["impl"] + " (tuned)")
        ladder[shape] = found
    return ladder, tuned


def ladder_times(shown: Rows, large: Any, gpu: str) -> None:
    """Show every rung's error and time on the large matrix, the rows `shown`."""
    shown["of"] = shown["error"] / shown["error_budget"]
    shown["spread"] = (shown["q3_us"] - shown["q1_us"]) / shown["median_us"]
    names = {"impl": "Rung or baseline", "of": "Error ÷ allowed"}
    names |= {"predicted_us": "Bytes ÷ data sheet's rate (µs)", "median_us": "Median (µs)"}
    names |= {"spread": "Quartiles apart", "registers": "Registers"}
    forms = dict.fromkeys(("predicted_us", "median_us"), "{:,.1f}")
    forms |= {"of": "{:.2f}", "spread": "{:.1%}"}
    called = {
        "torch.matmul": "FP16 cuBLAS",
        "two_op": "unpack, then cuBLAS",
        "torch.two_op": "unpack in PyTorch, then cuBLAS",
    }
    later = [rung.name for rung in _RUNGS if rung.name not in _ONE_TOKEN]
    table = labelled(shown[~shown["impl"].isin(later)]).replace({"impl": called})
    title = f"Every rung's error and time, {large[0]:,} × {large[1]:,}, one token, on {gpu}"
    display.table(table, names, forms, title, folded=True)


def steps_compared(ladder: dict[Any, Any], large: Any, rungs: Any, gpu: str, tuned: dict[Any, Any]) -> Rows:
    """Say what the whole ladder brings; rows of the large matrix by rung."""
    by = {shape: found.set_index("impl") for shape, found in ladder.items()}
    big = by[large]

    best = big[big["kind"] == "own"].sort_values("median_us").iloc[0]
    text = f"**{best.name} {display.against(best, big.loc[rungs[0].name])} rung 1** at "
    text += f"{large[0]:,} × {large[1]:,}"
    if "torch.matmul" in big.index:
        dense = big.loc["torch.matmul"]
        how = f"runs at {display.gain(best, dense)} times the speed of"
        how = display.against(best, dense) if display.level(best, dense) else how
        text += f", and {how} FP16 in cuBLAS"
    text += f" on the {gpu}."
    if "torch.matmul" in big.index and crossover.scattered(dense):
        text += f" (The middle half of FP16's samples lies between {dense['q1_us']:.1f} and "
        text += f"{dense['q3_us']:.1f} µs.)"
    text += "\n"
    for shape, found in ladder.items():
        own = found[found["kind"] == "own"].sort_values("median_us").iloc[0]
        choice = found[found["case"] == tuned[shape]].iloc[0]
        if not display.level(own, choice):
            text += f"\nAt {shape[0]:,} × {shape[1]:,} {own['impl']} as it stands "
            text += f"{display.against(own, choice)} the dispatcher's choice: its table was made on "
            text += "another run, and could do better."
    display.say(text)
    return big


def instructions_a_weight(
    here: Lab,
    large: Any,
    tuned: dict[Any, Any],
    sms: int,
    ghz: float,
    read_roof: float,
    rungs: Any,
) -> tuple[Rows, Rows]:
    """The instructions a weight that were counted: all counters, and those of one token."""
    ((tool, cases, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    counted = here.profile("int4", cases, tool, metrics)
    asked = {c.id: c for c in cases}
    wanted = [c for c in study.ladder(*large, here.sized) if c.kind == "own" and c.id in asked]
    counted = counted[counted["case"].isin([c.id for c in wanted])].set_index("case")
    counted = counted.drop(columns=["kernel", "grid", "block", "run"]).apply(pd.to_numeric)
    spent = here.measure("int4", [c for c in wanted if c.id in counted.index])
    spent = spent.set_index("case").join(counted)
    last = spent.index == tuned[large]
    spent["impl"] = spent["impl"].where(~last, spent["impl"] + " (tuned)")
    spent["each"] = 32 * spent["inst_executed"] / (large[0] * large[1])
    spent["slots"] = spent["inst_executed"] / (sms * 4 * ghz) / 1e3
    spent["bytes_us"] = spent["bytes"] / read_roof / 1e3
    return spent, spent[spent["impl"].isin([r.name for r in (*rungs[:5], *rungs[6:9])]) | last]


def offset_example() -> None:
    """Say in numbers how an offset is subtracted once, with the constant of rung 3; and, from the kernels'
    source, why repacked weights have two constants.
    """
    text = (KERNELS / "common" / "int4.cuh").read_text(encoding="utf-8")
    body = text.partition("void int4_tile_to_offset_halves(")[2]
    ored = re.findall(r"bitwise<0xea>\(word, 0x(\w{8})u, 0x(\w{8})u\)", body)[:2]
    masks, bases = zip(*((int(mask[4:], 16), half(int(base[4:], 16))) for mask, base in ored), strict=True)
    bits = [f"{(mask & -mask).bit_length() - 1} to {mask.bit_length() - 1}" for mask in masks]
    c, w, x = int(half(0x6408)), (-2, 5, -1), (1, 2, 3)
    raised = [each + c for each in w]
    total = sum(a * b for a, b in zip(raised, x, strict=True))
    display.say(
        f"An example with w = {', '.join(map(str, w))} and x = {', '.join(map(str, x))}: the tensor core "
        f"multiplies {', '.join(f'{each:,}' for each in raised)} and gets {total:,}. Less {c:,} × {sum(x)} = "
        f"{c * sum(x):,} that is {total - c * sum(x)}, which is Σ w x."
    )
    why = (
        f"A weight block has its codes at bits {bits[0]} and {bits[1]} of an FP16 number, to save a shift "
        f"between the two. For the lowest of these bits to be worth 1 the number is {bases[0]:g} or "
        f"{bases[1]:g} instead of {c - 8:,}. So the kernels have two constants: {bases[0]:g} + 8 in rows g "
        f"and {bases[1]:g} + 8 in rows g + 8 of a tile, where g is lane ÷ 4."
    )
    display.fold_parts("The constants of repacked weights", [why])


def untuned(large: Any, rung: Any) -> dict[str, int]:
    """The constants of a rung as the ladder times it, untuned."""
    (case,) = (case for case in study.rungs(*large) if case.impl == rung.name)
    return study.own_rung(case)[1]


def in_flight(here: Lab, spent: Rows, rungs: Any) -> None:
    """How many bytes of codes the loads of an SM's warps bring at once, by rung, where that was counted."""
    seen, table = spent.set_index("impl"), []
    most = _WARPS.get(str(here.run["compute_capability"]), 64)
    for rung in rungs:
        if rung.name in seen.index:
            warps, rows = most * float(seen.loc[rung.name, "occupancy_pct"]) / 100, part_of(rung).rows
            number = rung.name.partition("_")[0]
            table.append({"rung": number, "warps": warps, "rows": rows, "kb": warps * rows * 512 / 1e3})
    if table:
        names = {"rung": "Rung", "warps": "Warps on an SM", "rows": "Rows a warp"}
        names |= {"kb": "× 32 lanes × 16 bytes: codes in flight an SM, at most (KB)"}
        display.table(pd.DataFrame(table), names, {"warps": "{:.0f}", "kb": "{:.0f}"})
    if said := rows_not_warps(table):
        display.say(said)


def rows_not_warps(table: list[dict[str, Any]]) -> str:
    """That the last rung has more rows a warp on this matrix, and no more warps, where it has."""
    if len(table) < 2:
        return ""
    was, now = table[-2:]
    if not (now["rows"] > was["rows"] and now["warps"] < 1.1 * was["warps"]):
        return ""
    return (
        f"On this matrix rung {now['rung']} wins no warps, {was['warps']:.0f} → {now['warps']:.0f} on an SM; "
        f"it has more rows, {was['rows']} → {now['rows']} a warp."
    )


def rows_of_a_block(before: Any, after: Any) -> None:
    """Say how a block's warps divide rows and k in two rungs, by the constants of their sources."""
    was, now = part_of(before), part_of(after)
    display.say(
        f"In **rung 9** a block has {now.high} rows instead of {was.high}: {now.row_warps} groups of warps "
        f"take {now.rows} rows each, and {now.k_warps} warps instead of {was.k_warps} divide k."
    )


def counted(one_token: Rows, large: Any, gpu: str, afford: float) -> None:
    """Draw the instructions a weight of the rungs for one token beside what the roof allows."""
    one_token = labelled(one_token)
    if len(one_token):
        title = f"Instructions a weight, {large[0]:,} × {large[1]:,}"
        fig, ax = plot.figure("instructions", title=title, height=1.3 + 0.21 * len(one_token))
        plot.bars(ax, list(one_token["impl"]), one_token["each"], "", ("the roof allows", afford, ""))
        for line in ax.lines:
            line.set_zorder(3)  # the roof stays in sight over longer bars
        under = one_token["impl"][one_token["each"] <= afford]
        caption = f"{title}, on {gpu}, counted by ncu, {plot.dates(one_token)}: the roof allows "
        plot.show(fig, f"{caption}{afford:.1f}, and {listed(under)} stay under that.")
    names = {"impl": "Rung", "each": "Instructions a weight", "slots": "Issuing them (µs)"}
    names |= {"bytes_us": "Bytes ÷ read roof (µs)", "median_us": "Measured (µs)"}
    forms = dict.fromkeys(("slots", "bytes_us", "median_us"), "{:.1f}") | {"each": "{:.1f}"}
    display.table(one_token, names, forms, "The least that issuing and reading take, and the measured time")


def stalls(one_token: Rows) -> None:
    """Show what keeps each rung's warps waiting."""
    names = {"impl": "Rung", "dram_pct": "DRAM busy %", "slot": "Slots used %"}
    names |= {"tensor_pct": "Tensor busy %", "occupancy_pct": "Occupancy %"}
    names |= {"stall_long_scoreboard": "Waits for memory (cycles)"}
    names |= {"stall_barrier": "Waits at barriers (cycles)"}
    names |= {"stall_math_pipe_throttle": "Waits for a busy arithmetic unit (cycles)"}
    one_token = labelled(one_token).assign(slot=100 * one_token["issue_active"])
    forms = dict.fromkeys(names, "{:.0f}") | {"impl": ""}
    forms |= {name: "{:.1f}" for name in names if name.startswith("stall_")}
    title = "What is busy, by the profiler (its own clock, without a kernel's start and end), and how many "
    title += "cycles a warp waits for each instruction"
    display.table(one_token, names, forms, title, folded=True)


def start_us(here: Lab, read_roof: float) -> float:
    """Microseconds that the start of a kernel takes, by the best rung that reads a stream of cold memory."""
    best = stream.DEFAULT["read"]
    reads = [c for c in here.cases("bandwidth") if c.operator == "read"]
    reads = [c for c in reads if c.impl == best and c.cache == "cold"]
    return bandwidth.fixed_us(here.measure("bandwidth", reads), read_roof)


def distance_to_roof(here: Lab, read_roof: float, gpu: str) -> Rows:
    """Show what the start of a kernel explains of the distance to the roof; the rows."""
    start = start_us(here, read_roof)
    every = [c for c in here.cases("int4") if c.batch == 1 and c.impl == "humming"]
    every = {(c.n, c.k) for c in every}
    picks = [study.chosen(*shape, 1, here.sized) for shape in every]
    gap = here.measure("int4", picks)
    gap["bytes_us"] = gap["bytes"] / read_roof / 1e3
    gap["foretold"] = start + gap["bytes_us"]
    gap["over"] = gap["median_us"] / gap["foretold"]
    gap["shape"] = [f"{n:,} × {k:,}" for n, k in zip(gap["n"], gap["k"], strict=True)]
    names = {"shape": "n × k", "impl": "Rung", "bytes_us": "Bytes ÷ read roof (µs)"}
    names |= {"foretold": "Predicted, with start (µs)", "median_us": "Measured (µs)"}
    names |= {"over": "Measured ÷ predicted", "roof_fraction": "Share of the roof"}
    forms = dict.fromkeys(("bytes_us", "foretold", "median_us"), "{:.1f}")
    forms |= {"over": "{:.2f}", "roof_fraction": "{:.0%}"}
    gap["impl"] = gap["impl"] + gap["options"].fillna("").ne("").map({True: " (tuned)", False: ""})
    gap = gap.sort_values("bytes", ignore_index=True)
    title = "What makes up the time of one token"
    fig, ax = plot.figure("µs", title=title, height=1.3 + 0.24 * len(gap))
    parts = {"bytes ÷ read roof": gap["bytes_us"], "start and finish": start + 0 * gap["bytes_us"]}
    parts["unexplained"] = (gap["median_us"] - gap["foretold"]).clip(lower=0)
    plot.stacked(ax, [f"{row.shape}, {row.impl}" for row in gap.itertuples()], parts, "µs")
    said = f"{title} on {gpu}, {plot.dates(gap)}: start and finish take {start:.1f} µs, as those of a plain "
    plot.show(fig, said + "read; unexplained is what was measured beyond bytes and start.")
    display.table(gap, names, forms, "The same in numbers", folded=True)
    return gap


def distance_explained(gap: Rows) -> None:
    """Say what is left between the fastest kernel and the roof, and what is not explained."""
    tiny, huge = gap.iloc[0], gap.iloc[-1]
    text = f"- At {tiny['shape']} the bytes take {tiny['bytes_us']:.1f} of {tiny['median_us']:.1f} µs, "
    text += f"{tiny['roof_fraction']:.0%} of the roof. At {huge['shape']} it is "
    text += f"{huge['roof_fraction']:.0%}.\n"
    text += f"- With the start, the {len(gap)} shapes take {gap['over'].min():.2f} to "
    text += f"{gap['over'].max():.2f} times what is predicted"
    most = gap.loc[gap["over"].idxmax()]
    if gap["over"].max() > 1:
        text += ", so the start explains only a part. A plain read has nothing to unpack and no x to fetch "
        text += "first; how long these take was not measured"
    text += ".\n"
    if most["over"] > 1.2:
        text += f"- {most['shape']} is the furthest off: {most['over']:.2f} times"
        same = gap[gap["bytes"].sub(most["bytes"]).abs() < 0.01 * most["bytes"]].drop(index=most.name)
        for row in same.head(1).itertuples():
            text += f", where {row.shape}, of as many bytes, takes {row.over:.2f}"
        text += ". Nothing recorded explains it."
    display.say(text.strip())


def place(here: Lab) -> None:
    """Say where the lesson stands on the decoder's ladder; where its step makes no decoder faster, why."""
    text, climbed = way.place("04b", here.store), way.ladder(here.store)
    mine = climbed[climbed["lesson"].str.startswith("04b")]
    after = climbed[climbed["number"] > mine["number"].max()] if len(mine) else climbed[:0]
    if len(mine) and mine["tok_s"].iloc[-1] < 1.05 * mine["before"].iloc[-1]:
        text += "\n\nWhy is the decoder no faster with faster products? A token takes about fifty kernels a "
        text += "layer there, and each launch has its start and finish, however few bytes it reads. [Lesson "
        text += "08](08_decoder.ipynb) makes five kernels of them"
        text += f": {after['tok_s'].iloc[0]:,.0f} tokens a second." if len(after) else "."
    display.say(text)


def takeaway(gpu: str, afford: float, shown: Rows, large: Any, big: Rows, weight: float) -> None:
    """What to take away, computed."""
    text = f"- At the roof of the {gpu} an INT4 weight may cost {afford:.1f} instructions. Smaller "
    text += "weights make a product *harder* to keep at the roof, because more of them arrive.\n"
    text += "- Wide loads (rung 2) and one reading of x for several rows (rung 4) save instructions; so do "
    text += "tensor cores (rung 7), even for one token.\n"
    text += "- What a change brings depends on the shape and on the GPU: measure it.\n"
    fastest = shown[shown["kind"] == "own"].sort_values("median_us").iloc[0]
    text += (
        f"- {large[0]:,} × {large[1]:,}: {fastest['impl']} reaches {fastest['roof_fraction']:.0%} of the roof"
    )
    if "torch.matmul" in big.index:
        text += f" and {display.gain(fastest, big.loc['torch.matmul'])} times the speed of FP16"
        text += f". It reads 1/{2 / weight:.1f} of the bytes"
    text += "."
    display.say(text)
