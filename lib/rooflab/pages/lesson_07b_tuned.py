"""What lesson 07b shows of its tuned law: each way's two numbers, what the law was fitted to and
tested on, and what it leaves.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.pages.lesson_07b_elsewhere import laptop_known
from rooflab.pages.lesson_07b_misses import SHARE_K, peak_shares
from rooflab.view import display
from rooflab.words import counted, listed

_UNTOLD = "not determined"


def numbers(compared: Rows, fit: Any) -> None:
    """Show the tuned law's two numbers of each way, with what the way does."""
    bound = set(peak_shares(compared, fit)["label"])
    lines = []
    for how in perf_model.STRATEGIES:
        own = fit.own.get((how.format, how.name))
        if own is None:
            continue
        name = strategies.label(how.format, how.name)
        star = "" if name in bound else " *"
        share = _UNTOLD if own.share >= 1 else f"{own.share:.0%}{star}"
        fixed = f"{how.launches} × {own.launch_us:.2f}" if how.launches > 1 else f"{own.launch_us:.2f}"
        fixed += " a token" if how.each_pass else ""
        lines.append((name, how.says, fixed, share))
    table = pd.DataFrame(lines, columns=["way", "says", "fixed", "share"])
    heads = {"way": "way", "says": "how it multiplies"}
    heads |= {"fixed": "kernels × fixed, µs", "share": "share of the peak"}
    caption = "The tuned law's numbers"
    if (table["share"] == _UNTOLD).any():
        caption += f"; {_UNTOLD}: no lower share fits clearly better than 100%, which is used"
    if table["share"].str.contains("*", regex=False).any():
        caption += "; *: by the plain law FLOPs decide none of its products, the share may mend other errors"
    display.table(table, heads, {}, caption)


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


def within_bounds(compared: Rows, apart: Rows, here: Any, spec: Any, fit: Any, gpu: str) -> None:
    """Show what each law was fitted to, what it was tested on, and of how many products it is within 10% and
    25%.
    """
    one, two = "1 number", f"{2 * len(fit.own)} numbers, 2 a way"
    lines = [
        ("plain", one, "the same products", "fit", compared["one_off"]),
        ("tuned", two, "the same products", "fit", compared["own_off"]),
    ]
    if len(apart):
        lines.append(
            (
                "tuned",
                "all matrices but one",
                "each left out in turn",
                "prediction",
                apart["own_off"],
            )
        )
    kernels = laptop_known(here, spec, fit)[2]
    lines.append(
        (
            *("plain", one, f"{counted(len(kernels), 'kernel')} of a laptop"),
            *("prediction", kernels["off"]),
        )
    )
    table = pd.DataFrame([line[:4] for line in lines], columns=["law", "fitted", "tested", "kind"])
    for off in (25, 10):
        table[f"near{off}"] = [f"{(line[4].abs() <= off).mean():.0%}" for line in lines]
    heads = {"law": "law", "fitted": "fitted", "tested": "tested on", "kind": "kind"}
    heads |= {"near25": "within 25%", "near10": "within 10%"}
    display.table(table, heads, {}, f"What was fitted to {len(compared):,} products on {gpu}, and tested")
    near = compared[["one_off", "own_off"]].abs() <= 25
    mended, worse = int((~near["one_off"] & near["own_off"]).sum()), near["one_off"] & ~near["own_off"]
    display.say(
        "A *prediction* is of products, or of a GPU, that were not fitted. "
        f"The tuned law brings {mended:,} of {(~near['one_off']).sum():,} "
        f"products within 25%, and puts {worse.sum()} others further off than that."
    )
