"""What lesson 04d's page shows of the source's own times, on its laptop: by its clock and by its profiler."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.hardware import device
from rooflab.pages import Rows
from rooflab.view import display, plot

PROFILED = "8,960 × 1,536"  # the shape that the source profiled
LAPTOP = "RTX 4070 Laptop"  # its GPU
# Of the table that the source prints, and of the same one measured here.
NAMES = {"batch": "Batch", "two_op": "Two-op in PyTorch (µs)"}
NAMES |= {"fused": "Fused, a loop (µs)", "fp16": "FP16 (µs)", "gain": "Gain over FP16"}
FORMS = dict.fromkeys(("two_op", "fused", "fp16"), "{:,.0f}") | {"gain": "{:.2f}"}


def loses_from(kernels: Rows) -> int:
    """From how many tokens on the source's loop of kernels takes longer than FP16's kernel, both profiled
    with weights from DRAM.
    """
    return int(kernels["fp16"] / kernels["fused"]) + 1


def _lost_with_launches(theirs: Rows, shape: str) -> int | None:
    """The first number of tokens at which the source's table has its loop slower than FP16, or None."""
    slower = theirs[(theirs["shape"] == shape) & (theirs["gain"] < 1)]
    return int(slower["batch"].min()) if len(slower) else None


def left_over(theirs: Rows, kernels: Rows) -> Rows:
    """What the source's clock counted of the loop beside its kernels, by number of tokens: columns batch,
    fused (the clock's us), alone (so many kernels, each as profiled) and rest.
    """
    rows = theirs[theirs["shape"] == PROFILED].dropna(subset="fused")[["batch", "fused", "fp16"]]
    rows = rows.sort_values("batch").reset_index(drop=True)
    rows["alone"] = rows["batch"] * float(kernels["fused"])
    rows["rest"] = rows["fused"] - rows["alone"]
    return rows


def _as_launches_do(rest: Rows) -> bool:
    """Whether these times, by rising number of launches, can be what launches cost: all above 0, and none
    less than the one before.
    """
    return bool((rest > 0).all() and rest.is_monotonic_increasing)


def kernel_or_launches(theirs: Rows, kernels: Rows) -> str:
    """Whether the source's loop lost by its kernels or by its launches, as far as the source's times tell;
    in plain words.
    """
    timed, lost = _lost_with_launches(theirs, PROFILED), loses_from(kernels)
    text = (
        f"By the source's profiler the kernels lose from {lost} tokens on: the loop reads all weights again "
    )
    text += "for each token."
    if timed is None or timed < 2 or timed >= lost:
        return text
    if _as_launches_do(left_over(theirs, kernels)["rest"]):
        return f"{text} At {timed} it is probably the launches."
    return f"{text} At {timed} they win by it, and lose by the event clock: what lies between is open."


def in_figures(theirs: Rows, kernels: Rows) -> str:
    """The same with its figures, for the end of the page."""
    timed, lost = _lost_with_launches(theirs, PROFILED), loses_from(kernels)
    later = f"rom {lost} tokens on the kernels lose, by the profiler's times"
    if timed is None or timed < 2 or timed >= lost:
        return f"F{later}."
    known = "probably launches" if _as_launches_do(left_over(theirs, kernels)["rest"]) else "not known"
    return (
        f"F{later}. At {timed} it is {known}: {timed} kernels alone take {timed * kernels['fused']:.0f} µs, "
        f"and FP16's {kernels['fp16']:.0f}."
    )


def published_by_batch(drawn: Any, theirs: Rows, kernels: Rows) -> tuple[str, Rows]:
    """Show the source's times of one shape by batch, and of the other one folded; the shape's name and its
    rows.
    """
    name = f"{drawn[0]:,} × {drawn[1]:,}"
    published = theirs[theirs["shape"] == name]
    first = published[published["gain"].notna()]
    if len(first):
        one, last = first.iloc[0], first.iloc[-1]
        text = f"At {name}, by its event clock, the source has {one['gain']:.2f} times the speed of FP16 for "
        text += f"{one['batch']:.0f} token, and {last['gain']:.2f} times for {last['batch']:.0f}."
        text += _slow_baseline(first, kernels if name == PROFILED else None)
        display.say(text)
    title = f"The source's table: {name}, {LAPTOP}, event clock, the same weights each time"
    display.table(published, NAMES, FORMS, title)
    for other, rows in theirs[theirs["shape"] != name].groupby("shape", sort=False):
        title = f"The source's other table: {other}, {LAPTOP}, event clock, the same weights each time"
        display.table(rows, NAMES, FORMS, title, folded=True)
    return name, published


def _slow_baseline(rows: Rows, kernels: Rows | None) -> str:
    """Whether the FP16 time that the first gain rests on is longer than later ones of more tokens; what its
    kernel took where that was profiled, and what the gain would be over the least of those times.
    """
    one, least = rows.iloc[0], rows.loc[rows["fp16"].idxmin()]
    if not one["fp16"] > 1.2 * least["fp16"]:
        return ""
    text = f" **That first gain rests on one slow FP16 time**: {one['fp16']:.0f} µs, where more tokens take "
    text += f"less, down to {least['fp16']:.0f} µs for {least['batch']:.0f}. "
    if kernels is not None and kernels["fp16"] < one["fp16"]:
        text += f"By the profiler FP16's kernel takes {kernels['fp16']:.0f} µs. "
    text += f"Over {least['fp16']:.0f} µs the same {one['fused']:.0f} µs are a gain of "
    return f"{text}{least['fp16'] / one['fused']:.2f}."


def without_launches(theirs: Rows, kernels: Rows) -> int:
    """Draw what the source's kernel times say of its loop without launches, beside FP16 and beside its
    clock's times, and say it; the number of tokens from which on the loop's kernels lose.
    """
    sweep = theirs[theirs["shape"] == PROFILED].set_index("batch").sort_index()
    ratio, lost, rows = kernels["fp16"] / kernels["fused"], loses_from(kernels), left_over(theirs, kernels)
    title = f"The loop and FP16 on the {LAPTOP}, {PROFILED}"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=3.6)
    ours, halves = plot.FORMAT_COLOURS["int4_g128"], plot.FORMAT_COLOURS["fp16"]
    level = [float(kernels["fp16"])] * len(rows)
    timed = sweep["fp16"].dropna()
    plot.series(ax, rows["batch"], rows["fused"], label="loop, event clock", colour=ours)
    alone = plot.series(ax, rows["batch"], rows["alone"], label="loop, kernels alone", colour=ours)
    plot.series(ax, timed.index, timed, label="FP16, event clock", colour=halves)
    once = plot.series(ax, rows["batch"], level, label="FP16, kernel alone", colour=halves)
    for line in (alone, once):  # one token was profiled; the rest follows from it
        line.set_markevery([0])
    ax.set_xticks(list(rows["batch"]), [f"{tokens:.0f}" for tokens in rows["batch"]])
    plot.round_ticks(ax)
    plot.label_ends(ax)
    plot.show(
        fig,
        f"{title}. Kernels alone: one token was profiled, with weights from DRAM (the marker); the lines "
        "without markers are computed from it, the loop's time once for each token, FP16's once for all.",
    )
    text = f"**By the profiler's times the loop loses from {lost} tokens on.** It takes "
    text += f"{kernels['fused']:.0f} µs for each token. FP16's kernel reads its weights once, in "
    text += f"{kernels['fp16']:.0f} µs for one token, and we take the same for a few. For one token the loop "
    text += f"has {ratio:.2f} times the speed of FP16; {sweep['gain'].iloc[0]:.2f} were published."
    first = _lost_with_launches(theirs, PROFILED)
    if first and first < lost:
        text += f" By the source's event clock it lost from {first} on already."
    display.say(text)
    return lost


def left_open(theirs: Rows, kernels: Rows) -> list[str]:
    """What the source's times leave open, a paragraph each; its table of what the clock counts beside the
    loop's kernels is shown.
    """
    sweep = theirs[theirs["shape"] == PROFILED].set_index("batch").sort_index()
    lost, rows, first = loses_from(kernels), left_over(theirs, kernels), _lost_with_launches(theirs, PROFILED)
    names = {"batch": "Tokens", "fused": "Event clock (µs)", "alone": "Kernels alone (µs)"}
    names |= {"rest": "Left over (µs)"}
    forms = {"fused": "{:,.0f}", "alone": "{:,.0f}"}
    caption = (
        f"The loop's event time less its kernels, each {kernels['fused']:.1f} µs as profiled: {PROFILED}"
    )
    display.table(rows.assign(rest=rows["rest"].map(_us)), names, forms, f"{caption}, {LAPTOP}")
    parts = [_told_by_the_rest(theirs, rows, first)] if first and first < lost else []
    several = sweep["fp16"][sweep.index > 1].dropna()
    return [*parts, _cached(several, float(kernels["fp16"]))] if len(several) else parts


def _us(time: float) -> str:
    """Whole microseconds, with the sign of typography."""
    return f"{time:,.0f}".replace("-", "−")


def _small_matrix(theirs: Rows, tokens: int) -> str:
    """Whether the source's smaller matrix takes as long at so many tokens, though it has fewer bytes."""
    mine = theirs[theirs["batch"] == tokens].dropna(subset="fused").set_index("shape")["fused"]
    small = mine.drop(PROFILED, errors="ignore")
    if PROFILED not in mine.index or small.empty or not small.iloc[0] > 0.8 * mine[PROFILED]:
        return ""
    return (
        f"For the smaller {small.index[0]} the clock counts {small.iloc[0]:.0f} µs, here "
        f"{mine[PROFILED]:.0f}: "
        "the time hardly depends on the weights, which speaks for something beside the kernels. "
    )


def _told_by_the_rest(theirs: Rows, rows: Rows, first: int) -> str:
    """What the time beside the kernels tells of the loop's loss at `first` tokens, in words."""
    rest = rows.set_index("batch")["rest"]
    text = (
        f"**Why the loop lost at {first} tokens.** Are the {rest[first]:.0f} µs beside its {first} kernels "
    )
    text += f"launches? {_small_matrix(theirs, first)}"
    if _as_launches_do(rest):
        text += "What is left over grows with the launches, so probably they are; "
        return f"{text}the source did not record them."
    later = rest[rest.index > first]
    if len(later) and later.min() < rest[first]:
        text += f"More launches cannot cost less, but {later.idxmin()} tokens leave {_us(later.min())}. "
    if rest.min() < 0:
        text += "Below 0 the kernels took less under that clock than by the profiler, perhaps with cached "
        text += "weights. "
    return f"{text}So the record cannot tell."


def _cached(several: Rows, alone: float) -> str:
    """In words, whether FP16's weights must have been cached when the source timed `several` tokens, as its
    memory is too slow for the least of those times, beside its kernel's `alone` us; and what is open.
    """
    n, k = (int(size.replace(",", "")) for size in PROFILED.split(" × "))
    moved, least = 2 * n * k / 1e3, several.min()  # KB, so that KB / us is GB/s
    laptop = device.get("rtx-4070-laptop")
    text = "**The source's kernels with cached weights.** FP16's "
    text += f"{moved / 1e3:.1f} MB in the profiled {alone:.0f} µs are {moved / alone:.0f} GB/s; the laptop's "
    text += f"memory has {laptop.dram_gb_s:.0f} (data sheet). By the event clock FP16 takes {least:.0f} µs "
    text += f"for {several.idxmin()} tokens"
    if moved / least > laptop.dram_gb_s:
        text += f", {moved / least:.0f} GB/s: more than DRAM delivers, so its weights were cached (L2: "
        text += f"{laptop.l2_mb:.0f} MiB)"
    return f"{text}. The fused kernel's time from the cache was not profiled."


def laptop_gains(theirs: Rows, kernels: Rows) -> None:
    """Show the gains over FP16 that the source's times of one token allow, and what each is worth."""
    sweep = theirs[theirs["shape"] == PROFILED].dropna(subset="fp16")
    one, least = sweep[sweep["batch"] == 1].iloc[0], sweep.loc[sweep["fp16"].idxmin()]
    slow = one["fp16"] > 1.2 * least["fp16"]
    lines = [("event", "may be cached", one["fp16"], one["fused"])]
    worth = ["as published" + "; its FP16 time is odd" * bool(slow)]
    if slow:
        lines.append(("event", "may be cached", least["fp16"], one["fused"]))
        worth.append(f"over FP16's least time, of {least['batch']:.0f} tokens")
    lines.append(("profiler", "in DRAM", kernels["fp16"], kernels["fused"]))
    worth.append("kernels alone")
    table = pd.DataFrame(lines, columns=["clock", "cache", "fp16", "fused"]).assign(worth=worth)
    table["gain"] = table["fp16"] / table["fused"]
    names = {"gain": "Gain over FP16", "clock": "Clock", "cache": "Weights", "fp16": "FP16 (µs)"}
    names |= {"fused": "Fused (µs)", "worth": "What it is"}
    forms = {"gain": "{:.2f}", "fp16": "{:.0f}", "fused": "{:.0f}"}
    display.table(table, names, forms, f"One token on the {LAPTOP}, {PROFILED}: which gain is which", True)
