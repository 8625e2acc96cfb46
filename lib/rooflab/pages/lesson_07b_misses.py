"""What lesson 07b shows of its law's failures: kernels below their unit's peak, tiles divided along k, the
rest.
"""

from __future__ import annotations

from typing import Any

from rooflab.analysis import extrapolation
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.pages.lesson_07b_worked import worked
from rooflab.view import diagram, display, plot
from rooflab.words import counted, listed

# Ways whose kernels divide the k of a last round's tiles over idle SMs (mmq 8_stream_k and after).
_SHARE_K = ("mmq_fp16_wgmma", "mmq_tiles")
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


def largest_failure(compared: Rows, here: Any, fit: Any, gpu: str) -> None:
    """Draw what share of its unit's peak each way reaches, and say what that does to the plain law."""
    table, (low, far, short) = peak_shares(compared, fit), below_the_peak(compared, fit)
    if low:
        display.say(
            f"**The largest failure: kernels that do not reach their unit's peak.** {far} products are "
            f"further off than 25%. {short} of them are by {counted(len(low), 'way')}, {listed(low)}, and "
            "the law's time for them is too short: it divides by a peak that they stay far below."
        )
    if table.empty:
        return
    title = "Share of its unit's peak that each way reaches"
    fig, ax = plot.figure("%", title=title, height=1.1 + 0.24 * len(table))
    plot.bars(ax, list(table["label"]), 100 * table["share"], "%", ("the law assumes", 100.0, "%"))
    least = table.iloc[0]
    plot.show(
        fig,
        f"{title}, {gpu}, fitted to its products: from {least['share']:.0%} ({least['label']}). Ways that "
        "bytes or the fixed time always bound are left out.",
    )
    mine = compared[compared["label"].isin(low[:1]) & (compared["by"] == "compute")]
    if len(mine):
        row = mine.sort_values("one_off", kind="stable").iloc[len(mine) // 2]  # as far off as half of them
        share = fit.own[row["format"], row["impl"]].share
        display.say(
            f"{worked(row, here, fit)}, {row['median_us'] / row['one_us']:.1f} times as long. Its kernel "
            f"reaches {share:.0%} of the peak."
        )


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
    kind = kind.where(~kind.str.contains("narrow ones"), "wide and narrow tiles, counted as wide")
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
    heads = {"label": "way", "rows": "products", "bound": "no fixed time", "one": "plain law"}
    heads |= {"own": "tuned law", "worst": "tuned law, worst"}
    forms = dict.fromkeys(("bound", "one", "own", "worst"), "{:.0f}")
    caption = f"How far off, in %: the median product of each way, and the worst, {gpu}"
    display.table(table, heads, forms, caption, folded=True)


def within_bounds(compared: Rows) -> dict[Any, Any]:
    """Say of how many products the fits are within 10% and 25%; these shares."""
    offs = compared[["one_off", "own_off"]].abs()
    within = {off: (100 * (offs <= off).mean()).tolist() for off in (10, 25)}
    display.say(
        f"**The tuned law puts {within[25][1]:.0f}% of the products within 25%, and {within[10][1]:.0f}% "
        f"within 10%; the plain law {within[25][0]:.0f}% and {within[10][0]:.0f}%.** Both are scored on the "
        "products that they were fitted to: the scores say how well they sum these up. Only a product or a "
        "GPU that was not fitted makes a *prediction*."
    )
    return within
