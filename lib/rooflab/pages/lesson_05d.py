"""What lesson 05d's page shows: prompts on int8 tensor cores, and the issue slots that scaling takes."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rooflab.analysis import states
from rooflab.hardware.crossover import LEVEL
from rooflab.hardware.device import Device
from rooflab.lab import Lab
from rooflab.ops import mmq
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_05b import errors_of_rungs
from rooflab.pages.lesson_05d_orders import rung_8 as rung_8
from rooflab.pages.lesson_05d_orders import small_matrices as small_matrices
from rooflab.pages.lesson_05d_orders import tile_order as tile_order
from rooflab.pages.lesson_05d_rungs import a_weight as a_weight
from rooflab.pages.lesson_05d_rungs import byte_as_half as byte_as_half
from rooflab.pages.lesson_05d_rungs import ceilings as ceilings
from rooflab.pages.lesson_05d_rungs import climb as climb
from rooflab.pages.lesson_05d_rungs import clock_lowered as clock_lowered
from rooflab.pages.lesson_05d_rungs import given_and_gained as given_and_gained
from rooflab.pages.lesson_05d_rungs import price as price
from rooflab.pages.lesson_05d_rungs import turns_drawn as turns_drawn
from rooflab.pages.lesson_05d_rungs import who_holds_what as who_holds_what
from rooflab.pages.lesson_05d_slots import SCALING, SLOTS, published_gain, room_on
from rooflab.pages.lesson_05d_slots import by_two as by_two
from rooflab.pages.lesson_05d_slots import counters as counters
from rooflab.pages.lesson_05d_slots import one_sum as one_sum
from rooflab.pages.lesson_05d_slots import predicted_and_counted as predicted_and_counted
from rooflab.pages.lesson_05d_slots import slots_by_gpu as slots_by_gpu
from rooflab.pages.lesson_05d_slots import slots_of_rungs as slots_of_rungs
from rooflab.pages.lesson_05d_slots import time_by_rung as time_by_rung
from rooflab.pages.lesson_05d_slots import two_instructions as two_instructions
from rooflab.studies import mmq as study
from rooflab.studies.base import Context
from rooflab.studies.q8_0 import WEIGHT_BYTES
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.words import listed

_HALVES_COLOUR = plot.COLOURS[1]  # lighter than the others' in grey, too
_SHARED_PER_SM = 228 * 1024  # bytes of shared memory of a Hopper SM
_NAMES = [rung.name for rung in mmq.LADDERS["mmq"]]
_OTHERS = {study.FP8: "FP8 without a scale for each 32", "torch._int_mm": "int8 without a scale for each 32"}


def opening(here: Lab, tokens: int, n: int, k: int) -> Opening:
    """The first screen: the ladder under both roofs, int8's for exact scales and FP16's for halves."""
    rows = here.measure("mmq", study.ladder(tokens, n, k))
    known = {name: here.roof[name].value for name in ("int8_tensor", "fp16_tensor") if name in here.roof}
    own, gpu = rows[rows["kind"] == "own"], here.run["gpu"]
    own = own.sort_values("median_us").drop_duplicates("impl").sort_index()
    halves = own[own["impl"].map(study.takes_halves)].sort_values("median_us")
    exact = own[~own["impl"].map(study.takes_halves)].sort_values("median_us")
    int8 = known.get("int8_tensor", float("nan"))
    best = exact.iloc[0]
    each = study.operations_of(best["impl"]) or SCALING
    answer = f"Scaling an int8 sum takes {each} instructions. {room_on(here.spec, each)} "
    answer += "The published figures of a GPU like the former, an RTX 4070 Ti, have it at "
    answer += f"{published_gain():.2f} times the speed of dequantising and cuBLAS ([05e](05e_tokens.ipynb)). "
    answer += f"Measured here is the {gpu} alone: int8 reaches {best['tflop_s']:,.0f} TOP/s"
    if len(halves):
        answer += f", FP16 with weights scaled first {halves['tflop_s'].iloc[0]:,.0f} TFLOP/s"
    able = (
        "tell from a datasheet how many instructions a kernel may spend beside its tensor products",
        "say which lane holds which element of an mma's result",
        "predict from a tile's shape how often weights are read",
    )
    title = f"Q8_0 × {tokens} tokens"
    fig, _ = page.ladder(own, gpu, ("int8", int8, "TFLOP/s"), title, y="tflop_s")
    (ax,) = fig.axes
    ax.set_xlabel("TOP/s (int8) and TFLOP/s (FP16)")
    labels = [*own["impl"], ""]  # of the bars, and the roof's
    for text in ax.texts:
        name = labels.pop(0) if labels else ""
        if not study.takes_halves(name):
            text.set_text(text.get_text().replace("TFLOP/s", "TOP/s"))
    said = plot.caption(exact, gpu, f"{title}, int8 rungs", ("int8", int8, "TFLOP/s"), y="tflop_s")
    said = said.replace("TFLOP/s", "TOP/s")
    passed = _beyond(rows, int8, here.spec)
    if len(halves) and "fp16_tensor" in known:
        roof = ("FP16", known["fp16_tensor"], "TFLOP/s")
        _as_halves(fig, own, roof[1])
        said += " " + plot.caption(halves, gpu, "FP16 rungs", roof, y="tflop_s")
        if halves["tflop_s"].iloc[0] > roof[1]:
            passed.append(f"{halves['impl'].iloc[0]} passes FP16's")
    said += " A roof is what a library's product reached in lesson 01b"
    said += f", not the tensor cores' limit: {listed(passed)}." if passed else "."
    return answer + ".", able, (fig, said)


def _beyond(rows: Rows, int8: float, spec: Device | None) -> list[str]:
    """That the int8 roof is no limit of the tensor cores, where FP8 products of the same peak are faster."""
    fp8 = rows[rows["impl"] == study.FP8]["tflop_s"].max()
    if not spec or spec.fp8_tensor != spec.int8_tensor or not fp8 > LEVEL * int8:
        return []
    return [f"FP8 products, whose peak is int8's ({spec.int8_tensor:,.0f}), reach {fp8:,.0f}"]


def _as_halves(fig: Figure, own: Rows, roof: float) -> None:
    """Give the rungs that multiply FP16 a colour, and their roof the same."""
    (ax,) = fig.axes
    for bar, name in zip(ax.patches, own["impl"], strict=True):
        if study.takes_halves(name):
            bar.set_facecolor(_HALVES_COLOUR)
    for text, name in zip(ax.texts, own["impl"], strict=False):
        if study.takes_halves(name):
            text.set_color("black")
    kinds = [Patch(facecolor=plot.COLOURS[0], label="int8 products")]
    kinds += [Patch(facecolor=_HALVES_COLOUR, label="FP16 products")]
    ax.legend(handles=kinds, fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(0.42, 0.99))
    plot.roof_line(ax, roof, f"FP16 {roof:,.0f}", vertical=True)
    ax.lines[-1].set_color(_HALVES_COLOUR)


def exactness(here: Lab) -> None:
    """Show how exact every rung is, on scales that are powers of two and against x as it was."""
    worst = errors_of_rungs(here, "mmq", study.judged)
    most, mine = worst["exact"].max(), worst[[name in _NAMES for name in worst.index]]["off"]
    at = pd.Series([study.takes_halves(name) for name in mine.index], index=mine.index, dtype=bool)
    int8, halves = mine[~at].max(), mine[at].max()
    says = ""
    if int8 > LEVEL * halves:
        says = f"**FP16 is nearer to the truth: off by {halves:.2%} at most, int8 by {int8:.2%}.** FP16 "
        says += "rounds a scaled weight, but takes activations as they are. Int8 is exact only for "
        says += "activations that were quantised before. "
    elif halves > LEVEL * int8:
        says = f"**Int8 is nearer to the truth: off by {int8:.2%} at most, FP16 by {halves:.2%}.** "
    elif len(mine):
        says = f"No rung is off by more than {mine.max():.2%}. "
    says += "Where scales are powers of two, every int8 rung is right to the last bit."
    if most > 0:
        says = says.replace("every int8 rung is right to the last bit", f"the largest error is {most:g}")
    display.say(says)


def ladder(here: Lab, tokens: int, n: int, k: int) -> Rows:
    """The rows of the ladder and its peers at one product, with their gain over the row above."""
    rows = here.measure("mmq", study.ladder(tokens, n, k))
    rows = rows[~rows["options"].str.contains("scale_bytes", na=False)].copy()
    own = rows["kind"] == "own"
    rows["predicted_us"] = _foretold(here, rows)
    rows["gain"] = (rows["median_us"].shift() / rows["median_us"]).where(own & own.shift(fill_value=False))
    return rows


def _foretold(here: Lab, rows: Rows) -> list[float | None]:
    """What the datasheet allows every row's case, in µs; as recorded for a device without one."""
    if not here.spec:
        return rows["predicted_us"].tolist()
    one, given = study.Mmq(), Context(device=here.spec)
    return [one.predict(one.case(case), given) for case in rows["case"]]


def ladder_times(rows: Rows, gpu: str) -> None:
    """Show every rung's time and gain over the one below it, folded."""
    names = {"impl": "Rung or peer", "predicted_us": "By datasheet (µs)", "median_us": "Median (µs)"}
    names |= {"tflop_s": "TOP/s or TFLOP/s", "gain": "× the row above", "registers": "Registers"}
    forms = dict.fromkeys(("predicted_us", "median_us", "tflop_s"), "{:,.0f}")
    caption = (
        "By datasheet: the longest of bytes over bandwidth, operations over the tensor cores' peak, and "
    )
    caption += "scaling. Registers a thread as compiled; from rung 6 on warpgroups then divide them anew "
    caption += "(`setmaxnreg`)"
    forms |= {"gain": "{:.2f}"}
    display.fold(f"Every rung and peer on the {gpu}", [(rows, names, forms, caption)], lean=True)


def fastest(rows: Rows, names_of: list[Any]) -> tuple[Rows, Rows]:
    """Say how the fastest rung stands beside the peers; the exact rungs and those on FP16, by rate."""
    by = rows.set_index("impl")
    steps = [name for name in names_of if name in by.index]
    exact = by.loc[[name for name in steps if not study.takes_halves(name)]].sort_values("median_us")
    halves = by.loc[[name for name in steps if study.takes_halves(name)]].sort_values("median_us")
    ours, text = (halves if len(halves) else exact).iloc[0], ""
    if len(halves):
        text += f"- {ours.name} {display.against(ours, exact.iloc[0])} {exact.index[0]}, the "
        text += "fastest int8 rung.\n"
    for rival, what in ((study.BASELINE, "dequantising first"), ("torch.matmul", "cuBLAS on resident FP16")):
        if rival in by.index:
            text += f"- {ours.name} {display.against(ours, by.loc[rival])} {what}.\n"
    if study.FP8 in by.index:
        text += f"- On other weights, {_OTHERS[study.FP8]}, `{study.FP8}` runs at "
        text += f"{by.loc[study.FP8, 'tflop_s'] / ours['tflop_s']:.2f} times {ours.name}'s speed.\n"
    display.say(text)
    return exact, halves


def states_compared(here: Lab, gpu: str) -> None:
    """Show, folded, the duel with the fastest peer, rested and sustained."""
    both = states.duels(display.power_rows(here, "mmq"), "mmq", formats=True)
    title = f"Speed of ours over the fastest recorded peer's, {gpu}"
    text = (
        "Products at the power limit lose speed when they run on ([lesson 00b](00b_clocks.ipynb)). Here ours "
    )
    text += (
        "meets the fastest library product in both states, whatever its weights are: cuBLAS multiplies FP16 "
    )
    text += "weights, which take nearly twice the memory; FP8 and int8 products take no scale for each 32. "
    text += _standing(both)
    others = both[both["burst_peer"].isin([study.FP8, "torch._int_mm"]) & (both["burst"] < 1)]
    if len(others):
        text += f" It multiplies weights of another format, {_OTHERS[others['burst_peer'].iloc[0]]}: "
        text += "a model would have to be quantised again for it."
    text += " These times were taken at other moments than the ladder's, so a ratio may differ a little."
    display.fold_parts(
        "Beside the fastest library product, in a burst and sustained",
        [text, (both, states.DUEL, states.DUEL_FORMATS, title)],
    )


def _standing(both: Rows) -> str:
    """How ours fares: a row a problem where ours is behind on all in both states, else in counts."""
    ratios = both[["burst", "sustained"]]
    if both.empty or (ratios > 1 / LEVEL).any(axis=None):
        return states.says(both)
    least, most = ratios.min(axis=None), ratios.max(axis=None)
    peer = listed(sorted(set(both["burst_peer"]) | set(both["sustained_peer"])))
    return f"Ours is behind in both: at {least:.2f} to {most:.2f} times the speed of {peer}."


def bytes_read_again(counted: Rows, cases: list[Any], n: int, k: int) -> None:
    """Say how far the bytes that SMs read are from those predicted; every rung's, and DRAM's, folded."""
    counted["weights"] = [study.reads(case)[0] for case in cases]
    counted["mb"] = [study.reads(case)[2] / 1e6 for case in cases]
    counted["read"] = counted["sm_read_bytes"] / 1e6
    counted["dram"] = counted["dram_read_bytes"] / (n * k * WEIGHT_BYTES)
    names = {"impl": "Rung", "weights": "Weights read (times)"}
    names |= {"mb": "SMs read, predicted (MB)", "read": "Counted (MB)"}
    names |= {"dram": "DRAM read ÷ weights", "l2_hit_pct": "L2 hits %"}
    forms = dict.fromkeys(("mb", "read", "l2_hit_pct"), "{:,.0f}") | {"dram": "{:.2f}"}
    if text := _bytes_explained(counted):
        display.say(text)
    table = (counted, names, forms, "Bytes that every rung reads, predicted and counted")
    display.fold_parts("Every rung's bytes, from L2 and from DRAM", [table, *_order(counted)], lean=True)


def _bytes_explained(counted: Rows) -> str:
    """How far counted bytes are from predicted ones."""
    seen, text = counted.set_index("impl"), ""
    if {"2_prefetch", "3_wide"} <= set(seen.index):
        narrow, wider = seen.loc["2_prefetch"], seen.loc["3_wide"]
        text += f"From rung 2 to rung 3 the weights are read {wider['weights']} times instead of "
        text += f"{narrow['weights']}: predicted {narrow['mb'] - wider['mb']:,.0f} MB less, counted "
        text += f"{narrow['read'] - wider['read']:,.0f}. "
    off = (counted["read"] / counted["mb"] - 1).abs().max()
    if not math.isnan(off):
        text += f"All rungs' counts lie within {math.ceil(100 * off)}% of the prediction"
        if (counted["read"] * LEVEL < counted["mb"]).any():
            text += "; where one is below it, most likely a tile found in its SM what another had read"
        text += "."
    return text


def _order(counted: Rows) -> list[Any]:
    """How often rungs with either order of tiles read DRAM, and the two orders drawn."""
    seen = counted.set_index("impl")
    if not {"4_cp_async", "5_large_tiles"} <= set(seen.index):
        return []
    narrow, square = (float(seen.loc[name, "dram"]) for name in ("4_cp_async", "5_large_tiles"))
    text = ""
    if narrow > LEVEL * square:
        text = "How often DRAM is read depends on the order of the tiles too. Rungs 1 to 4 come back to a "
        text += (
            "row of tiles when L2 has lost much of its weights. From rung 5 on tiles that run together share "
        )
        text += "their weights in L2. "
    text += f"Rung 4 reads DRAM {narrow:.2f} times the weights' bytes, rung 5 {square:.2f} times, "
    text += f"{seen.index[-1]} {seen['dram'].iloc[-1]:.2f}."
    return [text, diagram.order_of_tiles().html()]


def takeaway(chips: Rows, gpu: str, rows: Rows, exact: Rows, halves: Rows) -> None:
    """What to take away, computed."""
    text = "- A scale for every 32 weights costs three instructions a sum, with `mma` at least two. By issue "
    text += "slots int8 could pay in full where a chip has time for them while its tensor cores make a sum: "
    text += " and ".join(
        f"the {row['GPU']} has time for {row[SLOTS]:.1f}" for _, row in chips.iloc[[0, 2]].iterrows()
    )
    text += ".\n"
    text += f"- On the {gpu} the fastest int8 rung reaches {exact['tflop_s'].iloc[0]:,.0f} TOP/s"
    library = rows.set_index("impl")["tflop_s"].dropna()
    if "torch._int_mm" in library.index:
        text += (
            f", {exact['tflop_s'].iloc[0] / library['torch._int_mm']:.0%} of what a library's int8 without "
        )
        text += "scales reaches at this shape (the first chart's roof is what it reached in lesson 01b)"
    if len(halves):
        text += f"; in-kernel FP16 reaches {halves['tflop_s'].iloc[0]:,.0f} TFLOP/s"
    text += (
        ".\n- A tile twice as wide reads the weights half as often; bytes can be predicted from its shape."
    )
    display.say(text)


def falls(here: Lab, name: str, n: int, k: int) -> None:
    """Say where a rung's curve falls because its tiles need another turn of the SMs, a tile an SM at a
    time; nothing where it does not.
    """
    cases = [c for c in here.cases("mmq") if c.impl == name and c.cache == "cold" and not c.options]
    rows = here.measure("mmq", here.held("mmq", [c for c in cases if (c.n, c.k) == (n, k)]))
    sms, found = int(here.run["sms"]), list[tuple[float, str]]()
    rows = rows[rows["tflop_s"].notna() & (rows["batch"] >= 16)].sort_values("batch")
    each = []
    for row in rows.itertuples():
        rung, macros, _ = study.own_rung(case := study.Mmq().case(row.case))
        alone = 2 * rung.dynamic_shared > _SHARED_PER_SM and not macros.get("NARROW")
        weights, activations, _ = study.reads(case)
        each.append((row.batch, row.tflop_s, weights * activations if alone else 0))
    for (few, before, one), (many, after, other) in zip(each, each[1:], strict=False):
        turns = -(-one // sms), -(-other // sms)
        if one and turns[0] < turns[1] and after * LEVEL < before:
            text = f"{name} falls from {few} to {many} tokens: {one} tiles are {turns[0]} "
            text += f"{'wave' if turns[0] == 1 else 'waves'} of {sms} SMs, {other} are {turns[1]}."
            found.append((before / after, text))
    if found:
        display.say(max(found)[1])


def explore(here: Lab, names_of: list[Any], int8: float, gpu: str, exact: Rows, tokens: int) -> Any:
    """The explorer of prompts on Q8_0 weights, by contestant and shape."""
    every = [c for c in here.cases("mmq") if c.cache == "cold" and "scale_bytes" not in c.options]
    every = here.measure("mmq", every)
    every = every[every["batch"] >= 16]  # prompts: fewer tokens are part 05b's
    prompt = every[every["impl"].isin([*names_of, study.BASELINE, "torch.matmul"])]
    prompt = prompt.assign(predicted_us=_foretold(here, prompt))
    ready = prompt["options"].str.contains("prepared", na=False)
    prompt = prompt.assign(given=ready.map({True: "Q8_1", False: "FP16"}))
    beside = prompt["batch"].isin(prompt[ready]["batch"]) & (prompt["kind"] != "own")
    others = prompt[beside].assign(given="Q8_1")  # they stand beside both
    return explorer.Explorer(
        "mmq",
        pd.concat([prompt, others]),
        x="batch",
        y="tflop_s",
        controls={"impl": "Contestant", "n": "Rows", "given": "Activations come as"},
        roof=("int8, unscaled", int8, "TFLOP/s"),
        title=f"Prompts on Q8_0 weights, {gpu}",
        measure=explorer.measurer(here),
        start={"impl": exact.index[0], "batch": tokens, "given": "FP16"},
    )
