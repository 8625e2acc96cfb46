"""What lesson 07b shows of its tuned law: each way's two numbers, what the law was fitted to and
tested on, and what it leaves.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.pages.lesson_07b_crossings import Told
from rooflab.pages.lesson_07b_misses import SHARE_K, peak_shares
from rooflab.view import display
from rooflab.words import counted, listed

_UNITS = {
    "fp32": "FP32 units",
    "fp16_tensor": "FP16 tensor cores",
    "dp4a": "dp4a",
    **{
        name: f"int8 tensor cores, scaling by {count} instructions"
        for name, count in perf_model.SCALING.items()
    },
}
_LAPTOP = ("int4_g128", "loop")  # the way of the published laptop's kernel
_WORDS = (
    "*FP32 units* of an SM multiply single numbers; a *dp4a* instruction of theirs adds 4 int8 products. "
    "*Quantise x*: turn the activations into int8. *Large* and *small tiles* are pieces of the result. *In "
    "rows* and *in tiles* say in which order the weights are stored. The law gives a way one tile; "
    "kernels that have several ([05d](05d_mmq.ipynb)) take them by the product. A way without a tile is "
    "charged the FLOPs of the product alone."
)


def ways(timed: Rows, here: Any, compared: Rows, fit: Any) -> None:
    """What both laws know of every way that was timed, and of the published laptop's; folded."""
    timed_ways = set(zip(timed["format"], timed["impl"], strict=True))
    lines = [
        (
            strategies.label(how.format, how.name),
            how.says,
            _UNITS[how.unit],
            f"{here.peak(how.unit):,.0f}",
            f"{how.tile[0]} × {how.tile[1]}" if how.tile else "",
        )
        for how in perf_model.STRATEGIES
        if (how.format, how.name) in timed_ways | {_LAPTOP}
    ]
    heads = ("way", "how it multiplies", "unit", "its peak, TFLOP/s or TOP/s", "tile, rows × tokens")
    table = pd.DataFrame(lines, columns=list(heads))
    parts: list[Any] = [_WORDS, (table, {head: head for head in heads}), *_numbers(compared, fit)]
    display.fold_parts("Every way: how it multiplies, its unit and tile, and its two numbers", parts)
    if scaling := _scaling(here):
        display.fold_parts("The peak of int8 with the scaling", [scaling])


def _numbers(compared: Rows, fit: Any) -> list[Any]:
    """The tuned law's two numbers of each way; and of what the shares say nothing."""
    lines, free = [], []
    bound = set(peak_shares(compared, fit)["label"])
    for how in perf_model.STRATEGIES:
        own = fit.own.get((how.format, how.name))
        if own is None:
            continue
        name = strategies.label(how.format, how.name)
        fixed = f"{how.launches} × {own.launch_us:.2f}" if how.launches > 1 else f"{own.launch_us:.2f}"
        lines.append((name, fixed + (" a token" if how.each_pass else ""), f"{own.share:.0%}"))
        free += [name] if own.share < 1 and name not in bound else []
    table = pd.DataFrame(lines, columns=["way", "fixed", "share"])
    heads = {"way": "way", "fixed": "kernels × fixed, µs", "share": "share of the peak"}
    text = "The tuned law's numbers, of the ways timed here. At 100% no lower share fits clearly better."
    if free:
        text += f" By the plain law FLOPs decide no product of {listed(free)}: this share mends other errors."
    return [text, (table, heads, {})]


def _scaling(here: Any) -> str:
    """What holds the rate of int8 products below their unit's peak, worked out."""
    peak, fp32 = here.peaks["int8_tensor"], here.peaks["fp32"]
    limited = {count: here.peak(unit) for unit, count in perf_model.SCALING.items() if here.peak(unit) < peak}
    if not limited:
        return ""
    text = (
        f"The FP32 units' {fp32:.2f} TFLOP/s are {fp32 / 2:.2f} T instructions a second, each a multiply-add "
    )
    text += "of 2 FLOPs. Q8_0 weights share a scale in groups of 32. To scale a group's sum takes three "
    text += (
        "instructions, or two with `mma` ([lesson 05d](05d_mmq.ipynb)). A group is 32 multiply-adds in int8, "
    )
    text += "64 operations: "
    text += "; ".join(f"{fp32 / 2:.2f} ÷ {n} × 64 = {rate:,.0f} TOP/s" for n, rate in limited.items())
    return f"{text}. The int8 unit alone reaches {peak:,.0f}: the instructions beside it limit it."


def _one(row: Any, fit: Any) -> str:
    """A product by the tuned law: measured, predicted, how much of that is fixed, and how far off."""
    how = perf_model.strategy(row.format, row.impl)
    fixed = perf_model.launched(how, int(row.batch)) * fit.own[row.format, row.impl].launch_us
    off = f"{row.own_off:+.0f}".replace("-", "−")
    return (
        f"{row.label}, {row.n:,} × {row.k:,}, {counted(row.batch, 'token')}: {row.median_us:.1f} µs "
        f"measured, {row.own_us:.1f} by the tuned law, {fixed:.1f} of them fixed ({off}%)"
    )


def left(compared: Rows, here: Any, fit: Any) -> None:
    """What the tuned law puts furthest off, way by way, and its errors by what bounds the product; folded."""
    why = [extrapolation.reason(row, here.sms) for row in compared.itertuples()]
    held = compared.assign(why=why, off=compared["own_off"].abs())
    worst = held.sort_values("off", ascending=False).drop_duplicates("label").head(4)
    idle = held[held["why"].str.contains("tiles for")]
    long, short = idle[idle["own_off"] > 25], idle[idle["own_off"] < -25]
    parts: list[Any] = ["\n".join(f"- {_one(row, fit)}; {row.why}." for row in worst.itertuples())]
    if len(idle):
        parts.append(
            f"Of {len(idle)} products that leave SMs idle in some round it puts {len(long)} more than 25% "
            f"too long, {int(long['impl'].isin(SHARE_K).sum())} of them by kernels that divide k, and "
            f"{len(short)} more than 25% too short, for reasons that were not measured."
        )
    parts.append(
        "It also ignores how many blocks share an SM, how a library picks its tiles, and that the shortest "
        "kernels end before the memory reaches its full rate."
    )
    kind = held["why"].where(~held["why"].str.contains("tiles for"), "a last round with idle SMs")
    kind = kind.where(~kind.str.contains("narrow ones"), "tiles of two widths, all counted as the wider")
    kind = kind.replace({"short of the memory's rate": "bytes", "compute-bound": "FLOPs"})
    by = held.assign(kind=kind, near=100 * (held["off"] <= 25)).groupby("kind")
    table = by.agg(rows=("off", "size"), middle=("off", "median"), near=("near", "mean")).reset_index()
    heads = {"kind": "what bounds the product", "rows": "products"}
    heads |= {"middle": "off, % (median)", "near": "within 25%, %"}
    parts.append((table, heads, {"middle": "{:.0f}", "near": "{:.0f}"}))
    display.fold_parts("The largest errors that the tuned law leaves", parts)


def errors_by_way(compared: Rows, fit: Any, gpu: str) -> None:
    """Show the errors of three predictions, by way."""
    table = extrapolation.errors(compared)
    heads = {"label": "way", "rows": "products", "bound": "bytes and FLOPs alone", "one": "plain law"}
    heads |= {"own": "tuned law", "worst": "tuned law, worst"}
    forms = dict.fromkeys(("bound", "one", "own", "worst"), "{:.0f}")
    caption = f"How far off, in %: the median product of each way, and the worst, {gpu}"
    parts: list[Any] = [(table, heads, forms)]
    worse = list(table.loc[table["own"] > table["one"] + 0.5, "label"])
    if worse:
        parts.append(
            "The fit minimises squares, which the large errors decide: that raised the median error of "
            f"{listed(worse)}."
        )
    capped = peak_shares(compared, fit)
    raised = list(capped.loc[(capped["share"] >= 1) & capped["impl"].isin(SHARE_K), "label"])
    if raised:
        parts.append(
            "The fit tries no share above 100%, and takes the largest that explains the products about as "
            "well. Where a kernel divides k the law deals too few SMs a tile, which raises the share: "
            f"{listed(raised)}."
        )
    display.fold_parts(caption, parts)


def third_number(timed: Rows, here: Any) -> tuple[Any, Rows, Rows]:
    """The tuned law with a third number, a share of the bandwidth: the fit, the products with what it has for
    them, and the same by fits to all matrices but theirs.
    """
    fit = perf_model.fit(timed, here, perf_model.REACHES)
    compared = perf_model.compared(timed, here, fit)
    return fit, compared, perf_model.left_out(timed, here, perf_model.REACHES)


def within_bounds(
    compared: Rows,
    apart: Rows,
    gpu: str,
    third: tuple[Any, Rows, Rows] | None = None,
    races: dict[str, Told] | None = None,
) -> None:
    """Show what each law was tested on, of how many products it is within 10% and 25%, and of how many pairs
    of ways it tells the order; that with a `third` number too.
    """
    every, one = "of the fit", "left out"
    lines = [
        ("plain", "1", every, compared["one_off"], "plain"),
        ("tuned", "2 a way", every, compared["own_off"], "tuned"),
    ]
    if len(apart):
        lines.append(("tuned", "2 a way", one, apart["own_off"], "two apart"))
    if third is not None and len(third[2]):
        lines.append(("tuned", "3 a way", one, third[2]["own_off"], "three apart"))
    table = pd.DataFrame([line[:3] for line in lines], columns=["law", "numbers", "tested"])
    for off in (25, 10):
        table[f"near{off}"] = [f"{(line[3].abs() <= off).mean():.0%}" for line in lines]
    heads = {"law": "law", "numbers": "numbers", "tested": "matrices"}
    heads |= {"near25": "within 25%", "near10": "within 10%"}
    pairs = {"stay": "names a lasting winner", "cross": "finds a change of winner"}
    for place, (name, head) in enumerate(pairs.items()):
        told = [(races or {}).get(line[4], ((), ()))[place] for line in lines]
        if any(map(len, told)):
            table[name] = [f"{sum(each)} of {len(each)}" if len(each) else "" for each in told]
            heads[name] = head
    display.table(table, heads, {}, f"Fitted and tested, {len(compared):,} products on {gpu}")
    near = compared[["one_off", "own_off"]].abs() <= 25
    mended, worse = int((~near["one_off"] & near["own_off"]).sum()), near["one_off"] & ~near["own_off"]
    display.say(
        f"Of the {(~near['one_off']).sum():,} products that the plain law misses by more than 25%, the "
        f"tuned law mends {mended:,}; it spoils {worse.sum()} others.{_more(apart, third)}"
    )


def _more(apart: Rows, third: tuple[Any, Rows, Rows] | None) -> str:
    """What a third number, a share of the bandwidth, is worth on matrices left out; and why there are two."""
    if third is None or third[2].empty or apart.empty:
        return ""
    two, three = ((part["own_off"].abs() <= 25).mean() for part in (apart, third[2]))
    more = "mends more" if three > two else "mends no more"
    return (
        f" A third number, a share of the bandwidth for kernels that get bytes too slowly, {more}; lesson "
        "07's dispatcher, which chooses the kernel, keeps two a way, and so does this page."
    )
