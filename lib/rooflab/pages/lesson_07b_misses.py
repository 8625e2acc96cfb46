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
from rooflab.pages.lesson_07b_worked import worked
from rooflab.view import diagram, display
from rooflab.words import counted, listed

# Ways whose kernels divide the k of a last round's tiles over idle SMs (mmq 8_stream_k and after).
SHARE_K = ("mmq_fp16_wgmma", "mmq_tiles")
BELOW = 2 / 3  # of its unit's peak: a way that reaches less is far from what the plain law charges
_FAMILIES = {
    "gemv": "kernels on FP32 lanes",
    "fused_rows": "kernels on FP32 lanes",
    "fused": "fused INT4 on tensor cores",
    "cublas": "cuBLAS in FP16",
    "two_op": "dequantise, then cuBLAS",
    "mmq_fp16_wgmma": "Q8_0 made FP16 inside the kernel",
    "mmq_tiles": "Q8_0 made FP16 inside the kernel",
}  # the other ways multiply int8
_INT8 = "int8 kernels"
# Of each cause: its name, what happens, and what would mend it.
_CAUSES = {
    "peak": (
        "far below the peak",
        "the peak counts products alone; a kernel also loads, converts and rescales",
        "a share of the peak for each way; the tuned law has it",
    ),
    "bandwidth": (
        "below the bandwidth",
        "bytes come more slowly than the memory's rate",
        "a share of the bandwidth for each way; the tuned law lacks it",
    ),
    "fixed": (
        "short products",
        "the fixed time is most of the time: {fixed:.1f} µs a kernel is too long for {long}, too short for "
        "{short}",
        "a fixed time for each way; the tuned law has it",
    ),
    "tiles": (
        "k divided",
        "a kernel divides k, so few tiles fill all SMs; the law leaves SMs idle",
        "a count of the pieces; the tuned law lacks it",
    ),
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


def _family(impl: str) -> str:
    return _FAMILIES.get(impl, _INT8)


def _example(part: Rows, cause: str, here: Any) -> Any:
    """A product of a cause, of the family that has most of them and of its way that has most: of kernels
    below the peak the one that fills the SMs best, and of these the one with most tokens; else the furthest
    off.
    """
    families = part["impl"].map(_family)
    mine = part[families == families.value_counts().index[0]]
    mine = mine[mine["label"] == mine["label"].value_counts().index[0]]
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
    """Show each cause for which the plain law puts products far off: what happens, how many, most of which
    kernels, one of them, and what mends it.
    """
    bad = _by_cause(compared, here, fit)
    count = bad["cause"].value_counts()
    lines = []
    for cause, (name, happens, mends) in _CAUSES.items():
        part = bad[bad["cause"] == cause]
        if part.empty:
            continue
        most = part["impl"].map(_family).value_counts()
        row = _example(part, cause, here)
        times = f"{row['one_us']:,.0f} µs by the law, {row['median_us']:,.0f} measured"
        if max(row["one_us"], row["median_us"]) < 100:
            times = f"{row['one_us']:.1f} µs by the law, {row['median_us']:.1f} measured"
        each = f"{most.index[0]}: {most.iloc[0]}" if len(most) > 1 else f"all {most.index[0]}"
        whose = f"{len(part)} ({each})"
        short = int((part["one_off"] < 0).sum())
        happens = happens.format(fixed=fit.launch_us, long=len(part) - short, short=short)
        lines.append((name, happens, whose, f"{_sizes(row)}: {times}", mends, len(part)))
    heads = dict(
        zip("abcde", ("cause", "what happens", "products", "one of them", "what mends it"), strict=True)
    )
    table = pd.DataFrame(lines, columns=[*"abcde", "rows"]).sort_values("rows", ascending=False)
    display.say(
        f"The plain law puts {len(bad):,} of {len(compared):,} products further off than 25%"
        + (
            f"; {len(bad) - count['other']} have a cause below, {count['other']} none."
            if "other" in count
            else "."
        )
    )
    if len(table):
        display.table(table, heads, {})


def _below(compared: Rows, here: Any, fit: Any) -> Any:
    """The product that kernels below their unit's peak are worked out on; None without one."""
    bad = _by_cause(compared, here, fit)
    part = bad[(bad["cause"] == "peak") & (bad["by"] == "compute")]
    return _example(part, "peak", here) if len(part) else None


def peak_worked(compared: Rows, here: Any, fit: Any) -> None:
    """Work out a product of kernels below their unit's peak."""
    row = _below(compared, here, fit)
    display.say(
        "No way is so far below its unit's peak that the law's time is over 25% too short."
        if row is None
        else f"{worked(row, here, fit)}, {row['median_us'] / row['one_us']:.1f} times as long."
    )


def share_worked(compared: Rows, here: Any, fit: Any) -> None:
    """Work out the share of its unit's peak that the same product reaches."""
    row = _below(compared, here, fit)
    if row is not None:
        display.say(_share_worked(row, here, fit))


def divided(compared: Rows, here: Any, fit: Any) -> None:
    """Say and draw how a kernel that divides k fills the SMs with few tiles, and the law does not."""
    bad = _by_cause(compared, here, fit)
    bad = bad[bad["cause"] == "tiles"]
    if bad.empty:
        return
    row = _example(bad, "tiles", here)
    tiles = int(str(row["why"]).partition(" ")[0])
    text = (
        f"The law gives each of {tiles} SMs a whole tile and leaves {here.sms - tiles} idle. The kernel "
        "divides each tile's k over them, as [lesson 05d](05d_mmq.ipynb)'s `8_stream_k` does."
        if tiles < here.sms
        else "The kernel divides the k of its last tiles over idle SMs; the law deals whole tiles."
    )
    display.say(f"**k divided: {_named(row)}.** {text}")
    if tiles < here.sms / 2:
        pieces = here.sms // tiles
        parts = [("each tile whole", tiles), (f"each tile's k in {pieces}", pieces * tiles)]
        title = "Few tiles, as the law deals them and as such kernels do"
        diagram.dealt(parts, here.sms, title, "pieces").show()


def failures(compared: Rows, here: Any, fit: Any, lab: Lab) -> None:
    """Show how many products of each way have each cause, how many of each cause the tuned law mends, and
    what is known of why the bandwidth is missed; folded.
    """
    bad = _by_cause(compared, here, fit)
    if bad.empty:
        return
    names = {cause: words[0] for cause, words in _CAUSES.items()} | {"other": "none of these"}
    held = [cause for cause in names if cause in set(bad["cause"])]
    table = pd.crosstab(bad["label"], bad["cause"]).reindex(columns=held)
    table = table.assign(rows=table.sum(axis=1)).sort_values("rows", ascending=False, kind="stable")
    mended = bad[bad["own_off"].abs() <= 25]["cause"].value_counts().reindex(held, fill_value=0)
    table.loc["within 25% by the tuned law"] = [*mended, mended.sum()]
    heads = {"label": "way", "rows": "products"} | {cause: names[cause] for cause in held}
    parts: list[Any] = [(table.rename_axis("label").reset_index(), heads, {})]
    if "bandwidth" in held:
        parts.append(_below_bandwidth(bad[bad["cause"] == "bandwidth"], fit, lab))
    display.fold_parts("Every way: how many of its products have which cause", parts)


def _below_bandwidth(bad: Rows, fit: Any, lab: Lab) -> str:
    """What share of the bandwidth products reach that bytes bound, and what is known of why."""
    ways = [perf_model.strategy(*key) for key in zip(bad["format"], bad["impl"], strict=True)]
    fixed = [
        fit.launch_us * perf_model.launched(how, int(b)) for how, b in zip(ways, bad["batch"], strict=True)
    ]
    bad = bad.assign(first=[how.extra > 0 for how in ways], fixed=fixed)
    bad = bad.assign(share=(bad["one_us"] - bad["fixed"]) / (bad["median_us"] - bad["fixed"]))
    by = bad.groupby("label")["share"].agg(["size", "median"]).sort_values("size", ascending=False)
    shares = listed(f"{row.Index} {row.median:.0%}" for row in by.itertuples())
    return (
        "Those below the bandwidth reach as the median product of a way (the law's time for bytes over the "
        f"time beyond the fixed time): {shares}. {_why_slow(bad, lab)}"
    )


def _why_slow(bad: Rows, lab: Lab) -> str:
    """What is known of why products do not reach the bandwidth."""
    known, read, copy = [], lab.roof.get("dram_read"), lab.roof.get("dram_copy")
    first, idle = int(bad["first"].sum()), bad.loc[bad["why"].str.contains("tiles for"), "why"]
    if first and read and copy and copy.value < 0.98 * read.value:
        known.append(
            f"In {first} of them the weights are first written as FP16. The law charges writes and reads at "
            f"the rate of reads alone; [lesson 01](01_bandwidth.ipynb)'s `copy`, which does both, reaches "
            f"{copy.value / read.value:.0%} of it."
        )
    if len(idle):
        known.append(
            f"In {len(idle)} of them the last round is not full, most often with {idle.mode().iloc[0]}."
        )
    if not known:
        return "Why was not measured."
    return " ".join(["**What is known of why.**", *known, "How much of the gap this makes was not measured."])


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
    text = (
        f"**Worked out: its share of the peak, {_named(row)}.** The plain law's time for FLOPs over the time "
        f"beyond its fixed time: {compute:,.2f} ÷ ({row.median_us:,.2f} − {kernels}) = {compute / left:.0%}. "
        f"Fitted to all products of this way it is {own.share:.0%}."
    )
    return text
