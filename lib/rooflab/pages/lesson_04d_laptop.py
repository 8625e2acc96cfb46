"""What lesson 04d's page shows of the source's own times, on its laptop: by its clock and by its profiler."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.hardware import device
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.view import display, plot
from rooflab.words import counted, listed

PROFILED = "8,960 × 1,536"  # the shape that the source profiled
LAPTOP = "RTX 4070 Laptop"  # its GPU
# Of the table that the source prints, and of the same one measured here.
NAMES = {"batch": "Batch", "two_op": "Two-op in PyTorch (µs)"}
NAMES |= {"fused": "Loop (µs)", "fp16": "FP16 (µs)", "gain": "Gain over FP16"}
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


def _smaller_matrix(theirs: Rows) -> Rows:
    """How many times as long as on the profiled shape the source's loop takes on its other, smaller one, by
    number of tokens.
    """
    wide = theirs.pivot_table("fused", "batch", "shape")
    small = [shape for shape in wide if shape != PROFILED and _weights(shape) < _weights(PROFILED)]
    if not small or PROFILED not in wide:
        return pd.Series(dtype=float)
    return (wide[small[0]] / wide[PROFILED]).dropna()


def _weights(shape: str) -> int:
    """How many weights a shape has, from its name."""
    n, k = (int(size.replace(",", "")) for size in shape.split(" × "))
    return n * k


def kernel_or_launches(theirs: Rows, kernels: Rows) -> str:
    """From how many tokens on the source's loop loses by its event clock, and by its kernels alone on the
    condition that its profile of one token needs; in plain words.
    """
    timed, lost = _lost_with_launches(theirs, PROFILED), loses_from(kernels)
    known = f"loses from {counted(timed, 'token')} on" if timed else "nowhere loses"
    text = f"By the source's event clock the loop, a launch for each token, {known}. Its profiler timed one "
    text += "token only, from DRAM: if each token "
    if timed is None or timed < 2 or timed >= lost:
        return f"{text}costs as much, the kernels alone lose from {lost} on."
    text += f"costs as much, the kernels alone still win at {timed} and lose from {lost} on. What else the "
    return f"{text}event clock counts at {timed} was not recorded."


def published_by_batch(drawn: Any, theirs: Rows, kernels: Rows) -> tuple[str, Rows]:
    """Show the source's times of one shape by batch, and of the other one folded; the shape's name and its
    rows.
    """
    name = f"{drawn[0]:,} × {drawn[1]:,}"
    published = theirs[theirs["shape"] == name]
    title = f"The source's table: {name}, {LAPTOP}, event clock, the same weights each time"
    display.table(published, NAMES, FORMS, title)
    first = published[published["gain"].notna()]
    if len(first):
        one, last = first.iloc[0], first.iloc[-1]
        text = f"**By the source's event clock the loop has a gain of {one['gain']:.2f} over FP16 for "
        text += f"{counted(int(one['batch']), 'token')}, and of {last['gain']:.2f} for {last['batch']:.0f}.**"
        text += _slow_baseline(first, kernels if name == PROFILED else None)
        display.say(text)
    for other, rows in theirs[theirs["shape"] != name].groupby("shape", sort=False):
        title = f"The source's other table: {other}, {LAPTOP}, event clock, the same weights each time"
        timed = {column: text for column, text in NAMES.items() if rows[column].notna().any()}
        title += "; FP16 was not timed" * ("fp16" not in timed)
        display.table(rows, timed, FORMS, title, folded=True)
    return name, published


def _slow_baseline(rows: Rows, kernels: Rows | None) -> str:
    """Whether the FP16 time that the first gain rests on is longer than later ones of more tokens; what its
    kernel took where that was profiled, and what the gain would be over the least of those times.
    """
    one, least = rows.iloc[0], rows.loc[rows["fp16"].idxmin()]
    if not one["fp16"] > 1.2 * least["fp16"]:
        return ""
    text = f" That first gain rests on one slow FP16 time: {one['fp16']:.0f} µs, where more tokens take "
    text += f"less, down to {least['fp16']:.0f} µs for {least['batch']:.0f}. "
    if kernels is not None and kernels["fp16"] < one["fp16"]:
        text += f"By the profiler FP16's kernel takes {kernels['fp16']:.0f} µs. "
    text += f"With {least['fp16']:.0f} µs for FP16, the loop's {one['fused']:.0f} µs would be a gain of "
    return f"{text}{least['fp16'] / one['fused']:.2f}."


def without_launches(theirs: Rows, kernels: Rows) -> None:
    """Draw what the source's kernel times say of its loop without launches, beside FP16 and beside its
    clock's times, and say on what condition.
    """
    sweep = theirs[theirs["shape"] == PROFILED].set_index("batch").sort_index()
    ratio, lost, rows = kernels["fp16"] / kernels["fused"], loses_from(kernels), left_over(theirs, kernels)
    title = f"The loop and FP16 on the {LAPTOP}, {PROFILED}"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=3.6)
    ours, halves = plot.FORMAT_COLOURS["int4_g128"], plot.FORMAT_COLOURS["fp16"]
    level = [float(kernels["fp16"])] * len(rows)
    timed = sweep["fp16"].dropna()
    plot.series(ax, rows["batch"], rows["fused"], label="loop, event clock", colour=ours)
    alone = plot.series(ax, rows["batch"], rows["alone"], label="loop, profiler", colour=ours)
    plot.series(ax, timed.index, timed, label="FP16, event clock", colour=halves)
    once = plot.series(ax, rows["batch"], level, label="FP16, profiler", colour=halves)
    for line in (alone, once):  # one token was profiled; the rest follows from it
        line.set_markevery([0])
    ax.set_xticks(list(rows["batch"]), [f"{tokens:.0f}" for tokens in rows["batch"]])
    plot.round_ticks(ax)
    plot.label_ends(ax)
    plot.show(
        fig,
        f"{title}. Profiler: one token was profiled, with weights from DRAM (the marker). The lines "
        "without markers are computed from it: the loop's time once for each token, FP16's once for all.",
    )
    text = f"**If each token costs what the first did from DRAM, the loop's kernels lose from {lost} tokens "
    text += f"on**: {lost} × {kernels['fused']:.1f} µs are {lost * kernels['fused']:.0f}, and FP16's kernel "
    text += f"takes {kernels['fp16']:.0f} for one token (and, we assume, for a few: it reads its weights "
    text += f"once).{_may_be_cached()} For one token the gain is {ratio:.2f} by the profiler; "
    display.say(f"{text}{sweep['gain'].iloc[0]:.2f} was published, by the event clock.")


def _may_be_cached() -> str:
    """That the loop's weights fit into the laptop's cache, so that a further token may cost less."""
    moved, cache = _weights(PROFILED) * WEIGHT_BYTES["int4_g128"], device.get("rtx-4070-laptop").l2_mb
    if not moved < cache * 2**20:
        return ""
    text = (
        f" But the loop's {moved / 1e6:.1f} MB fit into the laptop's L2 ({cache:.0f} MiB), so that further "
    )
    return f"{text}tokens may cost less; that was not profiled."


def beside_the_kernels(theirs: Rows, kernels: Rows) -> None:
    """Show the loop's times by the source's event clock on both of its matrices, beside so many kernels as
    profiled, and say in order what they tell of the number of tokens at which the two clocks disagree.
    """
    first, rows = _lost_with_launches(theirs, PROFILED), left_over(theirs, kernels)
    ratio, others = _smaller_matrix(theirs), theirs[theirs["shape"] != PROFILED]
    small = others["shape"].iloc[0] if len(ratio) else ""
    names = {"batch": "Tokens", "fused": f"Loop, event clock, {PROFILED} (µs)"}
    if small:
        rows["small"] = others.set_index("batch")["fused"].reindex(rows["batch"]).to_numpy()
        names["small"] = f"Loop, event clock, {small} (µs)"
    names |= {
        "alone": f"So many kernels from DRAM, {PROFILED} (µs)",
        "left": "Event clock minus kernels (µs)",
    }
    forms = dict.fromkeys(("fused", "small", "alone"), "{:,.0f}")
    title = f"The loop on the {LAPTOP}; each kernel taken as the one profiled, {kernels['fused']:.1f} µs"
    display.table(rows.assign(left=rows["rest"].map(_us)), names, forms, title)
    if first and 1 < first < loses_from(kernels):
        display.say(_in_order(theirs, kernels, first, small))
    else:
        known = f"The event clock has the loop lose from {counted(first, 'token')} on" if first else ""
        known = known or "By the event clock the loop never loses"
        display.say(
            f"{known}; if each token costs what the first did from DRAM, its kernels lose from "
            f"{loses_from(kernels)} on."
        )


def _in_order(theirs: Rows, kernels: Rows, first: int, small: str) -> str:
    """What the source's times tell of the loop's loss at `first` tokens, step by step; what is open."""
    one = theirs[theirs["shape"] == PROFILED].set_index("batch").loc[first]
    ratio, rows = _smaller_matrix(theirs), left_over(theirs, kernels).set_index("batch")
    rest = rows["rest"]
    lines = [
        f"{first} kernels, each as profiled, take {first * kernels['fused']:.0f} µs, less than FP16's "
        f"{kernels['fp16']:.0f}.",
        f"The event clock counts {one['fused']:.0f} µs for the loop, more than FP16's {one['fp16']:.0f}, and "
        f"{_us(rest[first])} more than such kernels take.",
    ]
    if first in ratio.index:
        share = _weights(small) / _weights(PROFILED)
        text = f"On {small}, with {share:.0%} of the weights, it counts "
        text += f"{ratio[first] * one['fused']:.0f} µs for {first} tokens."
        lines.append(
            text + f" So at {first} tokens the weights do not set this time." * bool(ratio[first] > 0.8)
        )
    text = f"At {first} tokens the two clocks disagree:\n\n"
    text += "\n".join(f"{at}. {line}" for at, line in enumerate(lines, 1))
    text += f"\n\n**What else the event clock counts at {first} tokens is not known**: launches were not "
    text += "recorded."
    if rest.min() < 0:
        text += f" At {rest.idxmin()} tokens it counts {_us(-rest.min())} µs less than so many kernels from "
        text += "DRAM: there a kernel takes less than the one profiled, as cached weights would let it."
    near = [at for at in rest.index[rest.abs() < 0.1 * rows["fused"]] if at in ratio.index]
    if near and (ratio[near] > 0.9).all():
        text += f" That both columns nearly agree at {listed(near)} tokens may be chance: the smaller matrix "
        text += "takes about as long there, or longer."
    return text


def left_open(theirs: Rows, kernels: Rows) -> list[str]:
    """What the source's times leave open, a paragraph each."""
    sweep = theirs[theirs["shape"] == PROFILED].set_index("batch").sort_index()
    lost, first = loses_from(kernels), _lost_with_launches(theirs, PROFILED)
    parts = []
    if first and 1 < first < lost:
        parts.append(
            f"**The launches on the {LAPTOP}.** A record of each launch and each kernel in one run would "
            f"tell whether launches cost the time at {first} tokens."
        )
    several = sweep["fp16"][sweep.index > 1].dropna()
    return [*parts, _cached(several)] if len(several) else parts


def _us(time: float) -> str:
    """Whole microseconds, with the sign of typography."""
    return f"{time:,.0f}".replace("-", "−")


def _cached(several: Rows) -> str:
    """In words, whether FP16's weights must have been cached when the source timed `several` tokens, as its
    memory is too slow for the least of those times; and what is open.
    """
    moved, least = _weights(PROFILED) * WEIGHT_BYTES["fp16"] / 1e3, several.min()  # KB: KB / us is GB/s
    laptop = device.get("rtx-4070-laptop")
    text = "**The source's kernels with cached weights.** "
    if moved / least > laptop.dram_gb_s:
        text += f"By the event clock FP16 takes {least:.0f} µs for {several.idxmin()} tokens: "
        text += f"{moved / 1e3:.1f} MB at {moved / least:.0f} GB/s, where the laptop's memory has "
        text += f"{laptop.dram_gb_s:.0f} (data sheet). So at least a part of them was cached (L2: "
        text += f"{laptop.l2_mb:.0f} MiB). "
    return f"{text}The profiler timed neither kernel with cached weights."


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
    names |= {"fused": "Loop (µs)", "worth": "What it is"}
    forms = {"gain": "{:.2f}", "fp16": "{:.0f}", "fused": "{:.0f}"}
    display.table(table, names, forms, f"One token on the {LAPTOP}, {PROFILED}: which gain is which", True)
