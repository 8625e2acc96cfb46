"""What lesson 04d's page shows of the project's times, on its laptop: by its clock and by its profiler."""

from __future__ import annotations

from typing import Any

from rooflab.hardware import device
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.view import display
from rooflab.words import counted, listed

PROFILED = "8,960 × 1,536"  # the shape that decode-roofline profiled
LAPTOP = "RTX 4070 Laptop"  # its GPU
# Of the table that decode-roofline prints, and of the same one measured here.
NAMES = {"batch": "Batch", "two_op": "Two-op in PyTorch (µs)"}
NAMES |= {"fused": "Loop (µs)", "fp16": "FP16 (µs)", "gain": "Gain over FP16"}
FORMS = dict.fromkeys(("two_op", "fused", "fp16"), "{:,.0f}") | {"gain": "{:.2f}"}


def weights(shape: str) -> int:
    """How many weights a shape has, from its name."""
    n, k = (int(size.replace(",", "")) for size in shape.split(" × "))
    return n * k


def _open_at(theirs: Rows, kernels: Rows) -> int | None:
    """The number of tokens at which the project's clock first has its loop lose, if so many kernels as the
    one profiled take less than FP16's: there the record cannot tell kernels from launches; else None.
    """
    slower = theirs[(theirs["shape"] == PROFILED) & (theirs["gain"] < 1)]
    first = int(slower["batch"].min()) if len(slower) else 0
    return first if first > 1 and first * kernels["fused"] < kernels["fp16"] else None


def published_by_batch(drawn: Any, theirs: Rows, laptop: Store) -> str:
    """Show decode-roofline's times of one shape by batch, and say how its gain falls, and what its headline
    compares; the shape's name.
    """
    name = f"{drawn[0]:,} × {drawn[1]:,}"
    published = theirs[theirs["shape"] == name]
    first = published[published["gain"].notna()]
    title = f"Decode-roofline's table: {name}, {LAPTOP}, event clock, the same weights each time"
    title += "; FP16's times are not recorded" * first.empty
    timed = {column: text for column, text in NAMES.items() if published[column].notna().any()}
    display.table(published, timed, FORMS, title)
    if name == PROFILED and (text := noise(theirs, laptop)):
        display.say(f"**These times are too noisy to explain a loss**: {text}.")
    if len(first):
        one, last = first.iloc[0], first.iloc[-1]
        text = f"**The loop's gain over FP16 is {one['gain']:.2f} for {counted(int(one['batch']), 'token')}, "
        text += f"and {last['gain']:.2f} for {last['batch']:.0f}.**"
        display.say(f"{text}{slow_baseline(first)}{_cached(first, name)}")
    if name == PROFILED:
        bench = laptop.read("int4").query("clock == 'event'").set_index("impl")["median_us"]
        text = (
            f"Its headline, *{bench['two_op'] / bench['fused']:.1f} times as fast*, compares other things: "
        )
        text += f"{bench['two_op']:,.0f} µs of two-op in PyTorch ÷ the loop's {bench['fused']:.1f} for one "
        display.say(f"{text}token, in a run of its own.")
    return name


def noise(theirs: Rows, laptop: Store) -> str:
    """In words, how far the project's two times of the loop for one token differ; or nothing."""
    bench = laptop.read("int4").query("clock == 'event'").set_index("impl")["median_us"]
    swept = theirs[(theirs["shape"] == PROFILED) & (theirs["batch"] == 1)]["fused"].dropna()
    pair = sorted((float(bench["fused"]), *swept[:1]))
    if pair[-1] < 1.2 * pair[0]:
        return ""
    text = f"the loop takes {pair[0]:.0f} µs for one token in one of decode-roofline's runs and "
    return f"{text}{pair[-1]:.0f} in another"


def slow_baseline(rows: Rows) -> str:
    """Whether the FP16 time that the first gain rests on is longer than that of more tokens."""
    one, least = rows.iloc[0], rows.loc[rows["fp16"].idxmin()]
    if not one["fp16"] > 1.2 * least["fp16"]:
        return ""
    text = f" The first gain rests on an odd time of FP16, {one['fp16']:.0f} µs, where {least['batch']:.0f} "
    return f"{text}tokens take {least['fp16']:.0f}."


def _cached(rows: Rows, name: str) -> str:
    """Whether FP16's weights must have been cached for the least of its times, as memory is too slow."""
    least, laptop = rows.loc[rows["fp16"].idxmin()], device.get("rtx-4070-laptop")
    moved = weights(name) * WEIGHT_BYTES["fp16"] / 1e3  # KB: KB / us is GB/s
    if not moved / least["fp16"] > laptop.dram_gb_s:
        return ""
    text = (
        f" In {least['fp16']:.0f} µs, {moved / 1e3:.1f} MB pass at {moved / least['fp16']:.0f} GB/s, faster "
    )
    text += (
        f"than the laptop's memory ({laptop.dram_gb_s:.0f} GB/s, data sheet): **a part of these weights was "
    )
    return f"{text}cached** (L2: {laptop.l2_mb:.0f} MiB)."


def beside_the_kernels(theirs: Rows, kernels: Rows) -> None:
    """Show the loop's times by the project's event clock on both of its matrices, beside as many kernels as
    the one profiled, and say what they leave unknown.
    """
    rows = theirs[theirs["shape"] == PROFILED].dropna(subset="fused").sort_values("batch")
    rows = rows[["batch", "fused", "fp16"]].reset_index(drop=True)
    rows["alone"] = rows["batch"] * float(kernels["fused"])
    rows["rest"] = (rows["fused"] - rows["alone"]).map(lambda us: f"{us:,.0f}".replace("-", "−"))
    words = {True: "yes", False: "no"}
    rows["wins"] = (rows["alone"] < rows["fp16"]).map(words).where(rows["fp16"].notna())
    rows["wins_alone"] = (rows["alone"] < kernels["fp16"]).map(words)
    others = theirs[theirs["shape"].map(weights) < weights(PROFILED)]
    small = str(others["shape"].iloc[0])
    rows["small"] = (
        others[others["shape"] == small].set_index("batch")["fused"].reindex(rows["batch"]).to_numpy()
    )
    names = {"batch": "Tokens", "fused": "Loop, event clock (µs)"}
    names |= {"alone": f"Its kernels alone: tokens × {kernels['fused']:.1f} µs", "rest": "Difference (µs)"}
    names |= {"fp16": "FP16, event clock (µs)", "wins": "Would its kernels alone beat this?"}
    names |= {"wins_alone": f"And FP16's kernel alone, {kernels['fp16']:.0f} µs?"}
    title = f"The loop on the {LAPTOP}, {PROFILED}"
    forms = dict.fromkeys(("fused", "alone", "small", "fp16"), "{:,.0f}")
    display.table(rows, names, forms, title)
    at = rows.set_index("batch")
    display.say(f"{unknown(theirs, kernels, at)}{beside_fp16_alone(kernels, at)}")
    if text := in_doubt(theirs, kernels, at):
        title = f"On a matrix with {weights(small) / weights(PROFILED):.0%} of the weights"
        title = f"{title}: {small}, {LAPTOP}, event clock"
        few = (rows, {"batch": "Tokens", "small": "Loop (µs)"}, forms, title)
        display.fold_parts("What else decode-roofline's times say, and how far to trust them", [text, few])


def unknown(theirs: Rows, kernels: Rows, rows: Rows) -> str:
    """What the project's record leaves unknown where it cannot tell kernels from launches; `rows` by batch:
    fused, alone and fp16.
    """
    if (first := _open_at(theirs, kernels)) is None:
        return "Where the loop loses by the event clock, so many kernels as the one profiled lose, too."
    at = rows.loc[first]
    rest = at["fused"] - at["alone"]
    text = f"**If each kernel takes what the profiled one did, {first} of them take {at['alone']:.0f} µs and "
    text += (
        f"beat FP16's {at['fp16']:.0f}; the loop's other {rest:.0f} µs make it lose. What those are was not "
    )
    text += "recorded.** They may be launches."
    lost = rows[(rows.index > first) & (rows["alone"] > rows["fp16"])]
    if len(lost):
        text += f" From {lost.index[0]} tokens on so many kernels alone would lose as well."
    return text


def beside_fp16_alone(kernels: Rows, rows: Rows) -> str:
    """That FP16's times of the table have launches, and who would win beside its own kernel alone."""
    text = " This comparison favours the loop: FP16's times include launches, its kernels' do not."
    lost = rows.index[rows["alone"] > kernels["fp16"]]
    if not len(lost):
        return text
    text += f" FP16's kernel alone takes {kernels['fp16']:.0f} µs for one token (profiled): the last "
    text += "column. If it takes as long for more, the loop's kernels alone lose from "
    return f"{text}{counted(int(lost[0]), 'token')} on."


def in_doubt(theirs: Rows, kernels: Rows, rows: Rows) -> str:
    """What else the times say where the record cannot tell kernels from launches, and what speaks against
    trusting them; `rows` by batch: fused, alone and small.
    """
    if (first := _open_at(theirs, kernels)) is None:
        return ""
    at, text = rows.loc[first], ""
    rest = at["fused"] - at["alone"]
    if at["small"] > 0.8 * at["fused"]:
        text += f"Those {rest:.0f} µs are hardly reading: the smaller matrix takes {at['small']:.0f} µs "
        text += f"for {first} tokens, the larger {at['fused']:.0f}."
    one = rows.iloc[0]
    if one["small"] > 1.2 * one["fused"]:
        text += f" These times scatter (one token takes {one['small']:.0f} µs on the smaller matrix, "
        text += f"{one['fused']:.0f} on the larger), so we conclude no more from them."
    return (text + _too_long(rows)).strip()


def _too_long(rows: Rows) -> str:
    """At which tokens the loop takes less than so many kernels as the one profiled, and what differs."""
    over = [batch for batch, row in rows.iterrows() if row["alone"] > row["fused"]]
    if not over:
        return ""
    text = f" At {listed(over)} tokens the loop takes less than so many profiled kernels: these read DRAM, "
    return text + "where the loop's weights fit into L2, so the profiled time may be too long for it."
