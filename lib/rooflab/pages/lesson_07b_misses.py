"""What lesson 07b shows of where its plain law fails: kernels far below their unit's peak or below the
bandwidth, kernels that divide k, and one fixed time for all.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import extrapolation
from rooflab.hardware import perf_model, roofline
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_07b_worked import terms_drawn
from rooflab.view import diagram, display
from rooflab.words import counted, listed

# Ways whose kernels divide the k of a last round's tiles over idle SMs (mmq 8_stream_k and after).
SHARE_K = ("mmq_fp16_wgmma", "mmq_tiles")
BELOW = 2 / 3  # of its unit's peak: a way that reaches less is far from what the plain law charges
# Of each cause: its name, and what happens.
_CAUSES = {
    "peak": ("far below the peak", ": kernels do more than multiply"),
    "bandwidth": ("below the bandwidth", ": less than {gb_s:,.0f} GB/s arrive"),
    "fixed": ("short products", ": {fixed:.1f} µs does not fit all kernels"),
    "tiles": ("k divided", ": few tiles fill all SMs"),
}


def peak_shares(compared: Rows, fit: Any) -> Rows:
    """By way that FLOPs bound somewhere: format, impl, label, the share of its unit's peak that it reaches,
    the number of its products, and of how many the plain law's time is over 25% too short.
    """
    bound = set(compared.loc[compared["by"] == "compute", "label"])
    mine = compared[compared["label"].isin(bound)].assign(short=compared["one_off"] < -25)
    table = mine.groupby(["format", "impl", "label"], sort=False).agg(
        rows=("short", "size"), short=("short", "sum")
    )
    table = table.reset_index()
    table["share"] = [fit.own[key].share for key in zip(table["format"], table["impl"], strict=True)]
    return table.sort_values("share", kind="stable").reset_index(drop=True)


def below_the_peak(compared: Rows, fit: Any) -> tuple[list[str], int, int]:
    """The ways far below their unit's peak, the one with most failures first; how many products are further
    off than 25% by the plain law; and how many of them are of these ways and too short.
    """
    table, far = peak_shares(compared, fit), int((compared["one_off"].abs() > 25).sum())
    low = table[(table["share"] < BELOW) & (table["short"] > 0)].sort_values("short", ascending=False)
    return list(low["label"]), far, int(low["short"].sum())


def _by_cause(compared: Rows, here: Any, fit: Any) -> Rows:
    """The products that the plain law puts further off than 25%, with `cause`: peak, bandwidth, tiles, fixed
    or other; and `why`, as extrapolation.reason has it.
    """
    bad = compared[compared["one_off"].abs() > 25]
    bad = bad.assign(cause="other", why=[extrapolation.reason(row, here.sms) for row in bad.itertuples()])
    short, below = bad["one_off"] < 0, bad["label"].isin(below_the_peak(compared, fit)[0])
    bad.loc[bad["by"] == "launch", "cause"] = "fixed"
    bad.loc[short & below, "cause"] = "peak"
    bad.loc[short & ~below & (bad["by"] == "memory"), "cause"] = "bandwidth"
    idle = bad["why"].astype(str).str.contains("tiles for")  # there may be no row
    bad.loc[~short & idle & bad["impl"].isin(SHARE_K) & (bad["by"] == "compute"), "cause"] = "tiles"
    return bad


def _example(part: Rows, cause: str, here: Any) -> Any:
    """A product of a cause, of the way that has most of them: of kernels below the peak the one that fills
    the SMs best, and of these the one with most tokens; else the furthest off.
    """
    mine = part[part["label"] == part["label"].value_counts().index[0]]
    bound = mine[mine["by"] == "compute"]
    if cause == "peak" and len(bound):
        useful = [round(_useful(row, here.sms), 6) for row in bound.itertuples()]
        return bound.assign(rank=useful).sort_values(["rank", "batch", "n", "k"], kind="stable").iloc[-1]
    ratio = mine["one_us"] / mine["median_us"]
    off = ratio.where(ratio >= 1, 1 / ratio)
    return mine.assign(rank=off).sort_values("rank", kind="stable").iloc[-1]


def _named(row: Any) -> str:
    return f"{row['label']}, {_sizes(row)}"


def _sizes(row: Any) -> str:
    return f"{row['n']:,} × {row['k']:,}, {counted(int(row['batch']), 'token')}"


def causes(compared: Rows, here: Any, fit: Any) -> None:
    """Show each cause for which the plain law puts products far off: what happens, how many, one of them."""
    bad = _by_cause(compared, here, fit)
    lines = []
    for cause in [*bad.loc[bad["cause"] != "other", "cause"].value_counts().index, "other"]:
        part = bad[bad["cause"] == cause]
        if part.empty:
            continue
        name, happens = _CAUSES.get(cause, ("none of these", ""))
        near = part[part["own_off"].abs() <= 25]  # what a fixed time of its own explains
        row = _example(near if cause == "fixed" and len(near) else part, cause, here)
        digits = 1 if max(row["one_us"], row["median_us"]) < 100 else 0
        times = [f"{row[each]:,.{digits}f}" for each in ("one_us", "median_us")]
        happens = happens.format(fixed=fit.launch_us, gb_s=here.gb_s)
        example = f"{row['label']}, {row['n']:,} × {row['k']:,}, {row['batch']:,}"
        lines.append((f"{name}{happens}", len(part), example, *times))
    display.say(f"The plain law misses {len(bad):,} of {len(compared):,} products by more than 25%.")
    if lines:
        heads = ("cause", "products", "e.g. way, matrix, tokens", "law, µs", "measured, µs")
        columns = ["cause", "rows", "example", "law", "us"]
        table = pd.DataFrame(lines, columns=columns)
        display.table(table, dict(zip(columns, heads, strict=True)), {})


def _below(compared: Rows, here: Any, fit: Any) -> Any:
    """The product that kernels below their unit's peak are worked out on; None without one."""
    bad = _by_cause(compared, here, fit)
    part = bad[(bad["cause"] == "peak") & (bad["by"] == "compute")]
    return _example(part, "peak", here) if len(part) else None


def share_worked(compared: Rows, here: Any, fit: Any) -> None:
    """Work out the share of its unit's peak that a product of kernels below it reaches, and draw it."""
    row = _below(compared, here, fit)
    if row is None:
        return display.say(
            "No way is so far below its unit's peak that the plain law's time is over 25% too short."
        )
    display.say(_share_worked(row, here, fit))
    terms_drawn(row, here, fit)


def divided(compared: Rows, here: Any, fit: Any) -> None:
    """Say and draw how a kernel that divides k fills the SMs with few tiles, and the law does not."""
    bad = _by_cause(compared, here, fit)
    bad = bad[bad["cause"] == "tiles"]
    if bad.empty:
        return
    row = _example(bad, "tiles", here)
    tiles = int(str(row["why"]).partition(" ")[0])
    cut = _cut(row, here, fit, here.sms // tiles) if tiles < here.sms / 2 else ""
    text = (
        f"{tiles} tiles for {here.sms} SMs: by the law {here.sms - tiles} are idle."
        if tiles < here.sms
        else f"{tiles} tiles for {here.sms} SMs: by the law SMs are idle in the last round."
    )
    display.say(
        f"**k divided: {_named(row)}.** {text} The kernel gives them work: in a round that leaves SMs idle "
        "it cuts each dot product, of length *k*, into parts, one an SM, and adds up the parts' sums "
        f"([lesson 05d](05d_mmq.ipynb)). Measured: {row['median_us']:.1f} µs. The law has "
        f"{row['one_us']:.1f} for whole tiles{cut}."
    )
    if tiles < here.sms / 2:
        pieces = here.sms // tiles
        parts = [("each tile whole", tiles), (f"each tile's k in {pieces}", pieces * tiles)]
        title = "Few tiles, as the law deals them and as such kernels do"
        diagram.dealt(parts, here.sms, title, "pieces").show()


def _cut(row: Any, here: Any, fit: Any, pieces: int) -> str:
    """What the law would have for a product if its tiles' k were cut into so many pieces."""
    how, sizes = (
        perf_model.strategy(row["format"], row["impl"]),
        (int(row["n"]), int(row["k"]), int(row["batch"])),
    )
    flops, moved = perf_model.computed(how, *sizes, here.sms) / pieces, perf_model.moved(how, *sizes)
    us = roofline.bound(moved, flops, here.gb_s, here.peak(how.unit)).us
    us += perf_model.launched(how, sizes[2]) * fit.launch_us
    off = float(row["median_us"]) / us - 1
    return (
        f", and would have {us:.1f} with k in {pieces} parts: the measured time is {abs(off):.0%} "
        f"{'above' if off > 0 else 'below'} that"
    )


def failures(compared: Rows, here: Any, fit: Any, lab: Lab) -> None:
    """Show how many products of each way have each cause, and what is known of why the bandwidth is missed;
    folded.
    """
    bad = _by_cause(compared, here, fit)
    if bad.empty:
        return
    names = {cause: words[0] for cause, words in _CAUSES.items()} | {"other": "none of these"}
    held = [cause for cause in names if cause in set(bad["cause"])]
    table = pd.crosstab(bad["label"], bad["cause"]).reindex(columns=held)
    table = table.assign(rows=table.sum(axis=1)).sort_values("rows", ascending=False, kind="stable")
    heads = {"label": "way", "rows": "products"} | {cause: names[cause] for cause in held}
    near = bad[bad["own_off"].abs() <= 25]["cause"].value_counts()
    each = [f"{near.get(cause, 0)} of {len(bad[bad['cause'] == cause])} {names[cause]}" for cause in held]
    parts: list[Any] = [(table.rename_axis("label").reset_index(), heads, {})]
    parts.append(f"The tuned law mends {listed(each)}.")
    if "bandwidth" in held:
        parts += _below_bandwidth(bad[bad["cause"] == "bandwidth"], fit, lab)
    display.fold_parts("Where the plain law fails: every way's products by cause", parts)


def _below_bandwidth(bad: Rows, fit: Any, lab: Lab) -> list[Any]:
    """Of the products that bytes bound what share of the bandwidth they reach, by way; and what is known of
    why.
    """
    ways = [perf_model.strategy(*key) for key in zip(bad["format"], bad["impl"], strict=True)]
    fixed = [
        fit.launch_us * perf_model.launched(how, int(b)) for how, b in zip(ways, bad["batch"], strict=True)
    ]
    bad = bad.assign(first=[how.extra > 0 for how in ways], idle=bad["why"].str.contains("tiles for"))
    bad["share"] = 100 * (bad["one_us"] - fixed) / (bad["median_us"] - fixed)
    by = bad.groupby("label").agg(rows=("share", "size"), share=("share", "median"), idle=("idle", "sum"))
    by = by.sort_values("rows", ascending=False, kind="stable").reset_index()
    heads = {"label": "way", "rows": "below the bandwidth", "share": "of it reached, % (median)"}
    heads["idle"] = "with idle SMs in the last round"
    return [(by, heads, {"share": "{:.0f}"}), _why_slow(bad, lab)]


def _why_slow(bad: Rows, lab: Lab) -> str:
    """What is known of why products do not reach the bandwidth."""
    known, read, copy = [], lab.roof.get("dram_read"), lab.roof.get("dram_copy")
    first = sorted(set(bad.loc[bad["first"], "label"]))
    if first and read and copy and copy.value < 0.98 * read.value:
        known.append(
            f"{listed(first)}: weights are first written as FP16. The law charges writes at the rate of "
            "reads; [lesson 01](01_bandwidth.ipynb)'s `copy`, which does both, reaches "
            f"{copy.value / read.value:.0%} of it."
        )
    if bad["idle"].any():
        known.append("SMs that idle in the last round ask for no bytes.")
    if not known:
        return "Why was not measured."
    return " ".join([*known, "How much of the gap this makes was not measured."])


def _useful(row: Any, sms: int) -> float:
    """The share of the FLOPs charged to a product that it needs: the rest is padding and idle SMs."""
    how, sizes = perf_model.strategy(row.format, row.impl), (int(row.n), int(row.k), int(row.batch))
    return float(roofline.gemm_flops(sizes[2], *sizes[:2]) / perf_model.computed(how, *sizes, sms))


def _share_worked(row: Any, here: Any, fit: Any) -> str:
    """The share of its unit's peak that one product reaches, worked out."""
    how, own = perf_model.strategy(row.format, row.impl), fit.own[row.format, row.impl]
    launches = perf_model.launched(how, int(row.batch))
    flops = perf_model.computed(how, int(row.n), int(row.k), int(row.batch), here.sms)
    compute = flops / here.peak(how.unit) / 1e6
    left = row.median_us - launches * fit.launch_us
    kernels = f"{launches} × {fit.launch_us:.2f}" if launches > 1 else f"{fit.launch_us:.2f}"
    tiles = ""
    if how.tile is not None:
        count = -(-int(row.n) // how.tile[0]) * -(-int(row.batch) // how.tile[1])
        tiles = f"{count:,} tiles, {counted(-(-count // here.sms), 'round')}: "
    int8 = how.unit in ("dp4a", *perf_model.SCALING)
    rate = "TOP/s" if int8 else "TFLOP/s"
    two = " Two kernels: one makes the activations int8, one multiplies." if int8 and launches == 2 else ""
    limited = how.unit in perf_model.SCALING and here.peak(how.unit) < here.peaks["int8_tensor"]
    instructions = perf_model.SCALING.get(how.unit)
    scaled = f" of int8 where {instructions} instructions scale each 32 products (appendix)" * limited
    rest = " The peak has the rescaling in it; what takes the rest is not known." * limited
    return (
        f"**Worked out: the share of {_named(row)}.** {tiles}at {here.peak(how.unit):,.0f} {rate}, the peak"
        f"{scaled}, FLOPs take {compute:,.2f} µs.{two} "
        f"Measured: {row.median_us:,.2f}, of them {kernels} fixed. {compute:,.2f} ÷ "
        f"({row.median_us:,.2f} − {kernels}) = {compute / left:.0%}. Fitted to all products of this way it "
        f"is {own.share:.0%}.{rest}"
    )
