"""What lesson 07b shows of its law's failures: kernels below their unit's peak, tiles divided along k, the
rest.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import extrapolation
from rooflab.hardware import perf_model, roofline
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_07b_elsewhere import laptop_known
from rooflab.pages.lesson_07b_worked import worked
from rooflab.view import diagram, display, plot
from rooflab.words import counted, listed

# Ways whose kernels divide the k of a last round's tiles over idle SMs (mmq 8_stream_k and after).
_SHARE_K = ("mmq_fp16_wgmma", "mmq_tiles")
_TERMS = {"launch": "fixed time", "memory": "bytes", "compute": "FLOPs"}
BELOW = 2 / 3  # of its unit's peak: a way that reaches less is far from what the plain law charges


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
    """The products that the plain law puts further off than 25%, with `cause`: peak, bandwidth, tiles or
    other; and `why`, as extrapolation.reason has it.
    """
    bad = compared[compared["one_off"].abs() > 25]
    bad = bad.assign(cause="other", why=[extrapolation.reason(row, here.sms) for row in bad.itertuples()])
    short, below = bad["one_off"] < 0, bad["label"].isin(below_the_peak(compared, fit)[0])
    bad.loc[short & below, "cause"] = "peak"
    bad.loc[short & ~below & (bad["by"] == "memory"), "cause"] = "bandwidth"
    idle = bad["why"].astype(str).str.contains("tiles for")  # there may be no row
    bad.loc[~short & idle & bad["impl"].isin(_SHARE_K) & (bad["by"] == "compute"), "cause"] = "tiles"
    return bad


def causes(compared: Rows, here: Any, fit: Any) -> None:
    """Say how many products the plain law puts far off, and how many of them each cause has."""
    bad = _by_cause(compared, here, fit)
    count = bad["cause"].value_counts()
    says = {
        "peak": "are of kernels far below their unit's peak",
        "bandwidth": "are of kernels that do not reach the bandwidth",
        "tiles": "are of kernels that divide *k*, where the law deals whole tiles",
    }
    text = f"The plain law puts {len(bad):,} of {len(compared):,} products further off than 25%"
    if parts := [f"{count[cause]} {words}" for cause, words in says.items() if cause in count]:
        text += f": {listed(parts)}"
    if "other" in count:
        terms = bad.loc[bad["cause"] == "other", "by"].value_counts()
        most = listed(f"{_TERMS[term]} ({each})" for term, each in terms.items())
        text += f". The other {count['other']} share no one cause; their largest term is {most}"
    display.say(f"{text}.")


def failures(compared: Rows, fit: Any) -> None:
    """Show how the plain law fails, and how many of each failure the tuned law mends; folded."""
    low, far, _ = below_the_peak(compared, fit)
    bad = compared[compared["one_off"].abs() > 25]
    if bad.empty:
        return
    short, below = bad["one_off"] < 0, bad["label"].isin(low)
    keys = pd.DataFrame({"kind": "too short, other ways", "term": bad["by"].map(_TERMS)})
    keys.loc[short & below] = "too short, ways far below their unit's peak", "any"
    keys.loc[~short] = "too long, all ways", "any"
    lines = []
    for key, part in bad.groupby([keys[name] for name in keys]):
        most = part["label"].value_counts()
        near = int((part["own_off"].abs() <= 25).sum())
        lines.append((*key, len(part), f"{most.index[0]}, {most.iloc[0]}", near))
    table = pd.DataFrame(lines, columns=["kind", "term", "rows", "most", "near"])
    heads = {"kind": "the plain law's time", "term": "largest term", "rows": "products"}
    heads |= {"most": "most of them by", "near": "within 25% by the tuned law"}
    caption = f"The {far} products that the plain law puts further off than 25%"
    display.table(table.sort_values("rows", ascending=False), heads, {}, caption, folded=True)


def below_bandwidth(compared: Rows, here: Any, fit: Any, lab: Lab) -> None:
    """Say which products that bytes bound take longer than the bandwidth allows, what share of it they reach,
    and what is known of why.
    """
    bad = _by_cause(compared, here, fit)
    bad = bad[bad["cause"] == "bandwidth"]
    if bad.empty:
        display.say("Every product that bytes bound reaches the bandwidth, to within 25%.")
        return
    ways = [perf_model.strategy(*key) for key in zip(bad["format"], bad["impl"], strict=True)]
    fixed = [
        fit.launch_us * perf_model.launched(how, int(b)) for how, b in zip(ways, bad["batch"], strict=True)
    ]
    bad = bad.assign(first=[how.extra > 0 for how in ways], fixed=fixed)
    bad = bad.assign(share=(bad["one_us"] - bad["fixed"]) / (bad["median_us"] - bad["fixed"]))
    by = bad.groupby("label").agg(rows=("share", "size"), share=("share", "median"))
    by = by.sort_values("rows", ascending=False, kind="stable")
    lines = [f"{row.rows} by {row.Index} ({row.share:.0%})" for row in by.itertuples()]
    near = int((bad["own_off"].abs() <= 25).sum())
    display.say(
        f"Other kernels take too long where bytes are the largest term: {counted(len(bad), 'product')}, "
        f"{listed(lines)}. In brackets: the median share of the bandwidth that they reach, the law's time "
        "for bytes over the time beyond the fixed time. "
        f"The tuned law mends {near} of them"
        + (": neither of its two numbers changes the bandwidth." if 2 * near < len(bad) else ".")
    )
    display.say(_why_slow(bad, lab))


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
        f"**The share of its unit's peak that it reaches** is {compute:,.2f} ÷ ({row.median_us:,.2f} − "
        f"{kernels}) = {compute / left:.0%}: the law's time for FLOPs over the time beyond the "
        f"fixed time. Fitted to all products of this way it is {own.share:.0%}."
    )
    if how.tile is not None:
        text += (
            " Empty places of tiles and idle SMs count as work in this share; here they are "
            f"{1 - _useful(row, here.sms):.0%} of it."
        )
    return text


def largest_failure(compared: Rows, here: Any, fit: Any, gpu: str) -> None:
    """Say what ways below their unit's peak do to the plain law, work it out for a product that fills the
    SMs, and draw what share each way reaches.
    """
    table, (low, far, short) = peak_shares(compared, fit), below_the_peak(compared, fit)
    most = "**The largest failure.** The" if 2 * short >= far else "The"
    display.say(
        f"{most} law's time is over 25% too short for {counted(short, 'product')} by "
        f"{counted(len(low), 'way')}: {listed(low)}."
        if low
        else "No way is so far below its unit's peak that the law's time is over 25% too short."
    )
    mine = compared[compared["label"].isin(low[:1]) & (compared["by"] == "compute")]
    if len(mine):
        useful = [round(_useful(row, here.sms), 6) for row in mine.itertuples()]
        mine = mine.assign(useful=useful).sort_values(["useful", "batch", "n", "k"], kind="stable")
        row = mine.iloc[-1]  # it fills the SMs best; of these the one with most tokens
        display.say(f"{worked(row, here, fit)}, {row['median_us'] / row['one_us']:.1f} times as long.")
        display.say(_share_worked(row, here, fit))
    if table.empty:
        return
    title = "Share of its unit's peak that each way reaches"
    fig, ax = plot.figure("%", title=title, height=1.1 + 0.24 * len(table))
    capped = table["share"] >= 1
    names = [name + ", at the cap" * full for name, full in zip(table["label"], capped, strict=True)]
    plot.bars(ax, names, 100 * table["share"], "%", ("the law assumes", 100.0, "%"))
    least, dividing = table.iloc[0], table.loc[capped & table["impl"].isin(_SHARE_K), "label"]
    cap = (
        " *At the cap*: not a measured share. The fit tries none above 100% and takes the largest that "
        "explains the products about as well; those that bytes bound say nothing of it."
    )
    if len(dividing):
        cap += f" A kernel that divides k beats the law's whole tiles, which raises it: {listed(dividing)}."
    plot.show(
        fig,
        f"{title}, {gpu}, fitted to its products: from {least['share']:.0%} ({least['label']}). Ways that "
        "bytes or the fixed time always bound are left out.",
    )
    if capped.any():
        display.say(cap.strip())


def largest_left(compared: Rows, here: Any, fit: Any) -> None:
    """Work out the product that the tuned law puts furthest off, with the reason where it is known, and draw
    it; list the furthest of other ways, folded.
    """
    compared["why"] = [extrapolation.reason(row, here.sms) for row in compared.itertuples()]
    bad = compared.assign(off=compared.own_off.abs()).sort_values("off", ascending=False)
    bad = bad.drop_duplicates("label").head(4)
    worst = bad.iloc[0]
    divides = worst.own_off > 0 and worst.impl in _SHARE_K and "tiles for" in worst.why
    text = f"**The largest error that is left: {_one(worst, fit)}.**"
    if divides:
        tiles = int(worst.why.partition(" ")[0])
        text += (
            f" The law gives each of {tiles} SMs a whole tile and leaves {here.sms - tiles} idle. This "
            "kernel divides a tile's k over them, as [lesson 05d](05d_mmq.ipynb)'s `8_stream_k` does."
            if tiles < here.sms
            else " This kernel divides the k of its last tiles over idle SMs; the law deals whole tiles."
        )
    display.say(text)
    if divides and tiles < here.sms / 2:
        pieces = here.sms // tiles
        parts = [("each tile whole", tiles), (f"each tile's k in {pieces}", pieces * tiles)]
        diagram.dealt(
            parts, here.sms, "Few tiles, as the law deals them and as such kernels do", "pieces"
        ).show()
    display.fold_items(
        "The largest errors of other ways",
        [f"{_one(row, fit)}; {row.why}." for row in bad.iloc[1:].itertuples()],
    )


def _one(row: Any, fit: Any) -> str:
    """A product by the tuned law: measured, predicted, how much of that is fixed, and how far off."""
    how = perf_model.strategy(row.format, row.impl)
    fixed = perf_model.launched(how, int(row.batch)) * fit.own[row.format, row.impl].launch_us
    off = f"{row.own_off:+.0f}".replace("-", "−")
    return (
        f"{row.label}, {row.n:,} × {row.k:,}, {counted(row.batch, 'token')}: {row.median_us:.1f} µs "
        f"measured, {row.own_us:.1f} by the tuned law, {fixed:.1f} of them fixed ({off}%)"
    )


def errors_by_bound(compared: Rows) -> None:
    """Show the tuned law's errors by what bounds the product, and say what the law does not count."""
    idle = compared[compared.why.str.contains("tiles for")]
    long, short = idle[idle.own_off > 25], idle[idle.own_off < -25]
    sharing, text = long[long.impl.isin(_SHARE_K)], ""
    if len(idle):
        text = (
            f"Of {len(idle)} products that leave SMs idle in some round the tuned law puts {len(long)} more "
            f"than 25% too long, {len(sharing)} of them by kernels that divide k, and {len(short)} more than "
            "25% too short, for reasons that were not measured. "
        )
    display.say(
        f"{text}The law also ignores how many blocks share an SM, how a library picks its tiles, and that "
        "the shortest kernels end before the memory reaches its full rate."
    )
    kind = compared.why.where(~compared.why.str.contains("tiles for"), "a last round with idle SMs")
    kind = kind.where(~kind.str.contains("narrow ones"), "tiles of two widths, all counted as the wider")
    kind = kind.replace({"short of the memory's rate": "bytes", "compute-bound": "FLOPs"})
    by = compared.assign(kind=kind, off=compared.own_off.abs(), near=100 * (compared.own_off.abs() <= 25))
    by = by.groupby("kind").agg(rows=("off", "size"), middle=("off", "median"), near=("near", "mean"))
    heads = {"kind": "what bounds the product", "rows": "products"}
    heads |= {"middle": "off, %", "near": "within 25%, %"}
    caption = "Errors of all products by the tuned law (off: the median)"
    forms = {"middle": "{:.0f}", "near": "{:.0f}"}
    display.table(by.reset_index(), heads, forms, caption, folded=True)


def errors_by_way(compared: Rows, gpu: str) -> None:
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
    display.fold_parts(caption, parts)


def within_bounds(compared: Rows, apart: Rows, here: Any, spec: Any, fit: Any, gpu: str) -> dict[Any, Any]:
    """Show what each law was fitted to, what it was tested on, and of how many products it is within 10% and
    25%; these shares of the two laws on what they were fitted to.
    """
    offs = compared[["one_off", "own_off"]].abs()
    within = {off: (100 * (offs <= off).mean()).tolist() for off in (10, 25)}
    one, two = "1 number", f"{2 * len(fit.own)} numbers, 2 for each of {counted(len(fit.own), 'way')}"
    lines = [
        ("plain law", one, "the same products", "fit", compared["one_off"]),
        ("tuned law", two, "the same products", "fit", compared["own_off"]),
    ]
    if len(apart):
        lines.append(
            (
                "tuned law",
                "the same, to all matrices but one",
                "the one left out, each in turn",
                "prediction",
                apart["own_off"],
            )
        )
    kernels = laptop_known(here, spec, fit)[2]
    lines.append(
        (
            *("plain law", one, f"{counted(len(kernels), 'kernel')} of a laptop, one token"),
            *("prediction", kernels["off"]),
        )
    )
    table = pd.DataFrame([line[:4] for line in lines], columns=["law", "fitted", "tested", "kind"])
    for off in (25, 10):
        table[f"near{off}"] = [f"{(line[4].abs() <= off).mean():.0%}" for line in lines]
    heads = {"law": "law", "fitted": "fitted", "tested": "tested on", "kind": "fit or prediction"}
    heads |= {"near25": "within 25%", "near10": "within 10%"}
    display.table(table, heads, {}, f"What was fitted to {len(compared):,} products on {gpu}, and tested")
    near = compared[["one_off", "own_off"]].abs() <= 25
    mended = int((~near["one_off"] & near["own_off"]).sum())
    worse = compared.loc[near["one_off"] & ~near["own_off"], "label"].value_counts()
    display.say(
        f"The tuned law brings {mended:,} of {(~near['one_off']).sum():,} products within 25%"
        + (
            f" and puts {counted(int(worse.sum()), 'other')} further off than that, most often by "
            f"{worse.index[0]} ({worse.iloc[0]})"
            if len(worse)
            else ""
        )
        + ". A *prediction* is of products, or of a GPU, that were not fitted. A fit's own score says how "
        "well it sums up what was measured."
    )
    return within
