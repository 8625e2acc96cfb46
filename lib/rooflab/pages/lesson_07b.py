"""What lesson 07b's page shows: a law for the time of a product, held against every recorded product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import strategies
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.claims.measures import MEASURES
from rooflab.hardware import perf_model
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_07b_appendix import conclusions as conclusions
from rooflab.pages.lesson_07b_appendix import lost_ways as lost_ways
from rooflab.pages.lesson_07b_appendix import prompt_shares as prompt_shares
from rooflab.pages.lesson_07b_appendix import prompt_turning_points as prompt_turning_points
from rooflab.pages.lesson_07b_crossings import crossing_drawn as crossing_drawn
from rooflab.pages.lesson_07b_crossings import crossovers as crossovers
from rooflab.pages.lesson_07b_crossings import every_pair as every_pair
from rooflab.pages.lesson_07b_crossings import judged_races, order_told
from rooflab.pages.lesson_07b_crossings import races_by_law as races_by_law
from rooflab.pages.lesson_07b_elsewhere import laptop_near as laptop_near
from rooflab.pages.lesson_07b_elsewhere import laptop_predicted as laptop_predicted
from rooflab.pages.lesson_07b_elsewhere import laptop_swept as laptop_swept
from rooflab.pages.lesson_07b_map import bar_told as bar_told
from rooflab.pages.lesson_07b_map import bars_worked as bars_worked
from rooflab.pages.lesson_07b_map import by_gpu as by_gpu
from rooflab.pages.lesson_07b_map import cautioned as cautioned
from rooflab.pages.lesson_07b_map import explore as explore
from rooflab.pages.lesson_07b_map import gain_by_gpu as gain_by_gpu
from rooflab.pages.lesson_07b_map import gains as gains
from rooflab.pages.lesson_07b_map import kink as kink
from rooflab.pages.lesson_07b_measured import another_gpu_predicted as another_gpu_predicted
from rooflab.pages.lesson_07b_misses import below_the_peak
from rooflab.pages.lesson_07b_misses import causes as causes
from rooflab.pages.lesson_07b_misses import divided as divided
from rooflab.pages.lesson_07b_misses import failures as failures
from rooflab.pages.lesson_07b_misses import share_worked as share_worked
from rooflab.pages.lesson_07b_tuned import errors_by_way as errors_by_way
from rooflab.pages.lesson_07b_tuned import left as left
from rooflab.pages.lesson_07b_tuned import third_number as third_number
from rooflab.pages.lesson_07b_tuned import ways as ways
from rooflab.pages.lesson_07b_tuned import within_bounds as within_bounds
from rooflab.pages.lesson_07b_worked import by_bytes as by_bytes
from rooflab.pages.lesson_07b_worked import in_tiles as in_tiles
from rooflab.pages.lesson_07b_worked import rounds_drawn as rounds_drawn
from rooflab.records.store import Store
from rooflab.view import display, plot
from rooflab.words import counted, listed


def opening(timed: Rows, here: Any, gpu: str, rows: Rows, apart: Rows) -> Opening:
    """The first screen: predicted against measured times by both laws, and how many are near, and `apart`,
    of matrices left out; of how many pairs of kernels the order is predicted.
    """
    fit = perf_model.fit(timed, here)
    compared = perf_model.compared(timed, here, fit)
    near = 100 * (compared[["one_off", "own_off"]].abs() <= 25).mean()
    word, which = _which(*order_told(*judged_races(rows, here, fit)), near["own_off"])
    answer = (
        f"{word}he plain law puts {near['one_off']:.0f}% of {fit.rows:,} times measured on the {gpu} within "
        f"25%, the tuned law {near['own_off']:.0f}%{_held_out(apart)}.{which}"
    )
    able = (
        "estimate a product's time from its bytes, its FLOPs and a GPU's rates",
        "tell what bounds it: the fixed time, memory or arithmetic",
        "say where such a prediction fails, and why",
    )
    return answer, able, _both_laws(compared, fit, gpu, near)


def _held_out(apart: Rows) -> str:
    """How many percent of the products are near by fits that left their matrix out; "" without any."""
    if apart.empty:
        return ""
    return f" ({100 * (apart['own_off'].abs() <= 25).mean():.0f}% on matrices left out of its fit)"


def _which(stay: Rows, cross: Rows, near: float) -> tuple[str, str]:
    """What the tuned law is good for, as the answer's beginning; and of how many pairs of kernels it tells
    the faster, in a sentence: "" where no pair was judged. `near` percent of its times are within 25%.
    """
    told = pd.concat([stay, cross]).astype(bool)
    if told.empty:
        return "T", ""
    parts = (
        [
            f"where one of two kernels always wins, the tuned law names it in {stay.sum()} of {len(stay)} "
            "pairs, on two matrices"
        ]
        if len(stay)
        else []
    )
    if len(cross):
        parts.append(f"where the winner changes with tokens, it finds where in {cross.sum()} of {len(cross)}")
    word = (
        "Yes, of the kernels it was fitted to: t"
        if told.all()
        else "A formula estimates times and cannot replace measuring: t"
        if near >= 50
        else "Hardly: t"
    )
    text = "; ".join(parts)
    return word, f" {text[0].upper()}{text[1:]}."


def _both_laws(compared: Rows, fit: Any, gpu: str, near: Rows) -> tuple[Any, str]:
    """Time by either law over measured time, products that this law has far off in colours; and the
    caption.
    """
    title, ways = "Law and measurement", below_the_peak(compared, fit)[0]
    fig, axes = plot.figure(
        "measured, µs", "by the law, µs", title, xlog=True, ylog=True, columns=2, height=2.6
    )
    ends = [compared.median_us.min(), compared.median_us.max()]
    panels = zip(axes, ("one", "own"), ("plain law", "tuned law"), strict=True)
    for ax, name, words in panels:
        held = compared[f"{name}_off"].abs() <= 25
        low = compared.label.isin(ways) & (compared[f"{name}_off"] < 0)
        ax.fill_between(
            ends, [0.75 * x for x in ends], [1.25 * x for x in ends], color="#CCCCCC", linewidth=0
        )
        ax.plot(ends, ends, color=plot.ROOF_COLOUR, linewidth=1, zorder=1)
        for which, colour, label in (
            (held, "#888888", "within 25%"),
            (~held & ~low, plot.COLOURS[0], "off for another reason"),
            (~held & low, plot.COLOURS[1], "too short: kernels far below their peak"),
        ):
            mine = compared[which]
            style = {"s": 9, "alpha": 0.6, "linewidths": 0, "zorder": 3}
            if len(mine):
                ax.scatter(mine.median_us, mine[f"{name}_us"], c=colour, label=label, **style)
        ax.set_title(f"{words}: {near[f'{name}_off']:.0f}% within 25%", fontsize=9)
        plot.round_ticks(ax)
        plot.round_ticks(ax, "x")
    axes[0].legend(fontsize=8, frameon=False, loc="upper left", markerscale=1.8, handletextpad=0.1)
    corner = {"fontsize": 8, "ha": "right", "va": "bottom"}
    axes[0].text(0.98, 0.04, "the law's time is too short", transform=axes[0].transAxes, **corner)
    axes[1].text(0.98, 0.04, "colours: what this law still misses", transform=axes[1].transAxes, **corner)
    caption = (
        f"{title}, {len(compared):,} products on {gpu}. Grey band: within 25%; colours: what each "
        "law has further off, and why."
    )
    return fig, caption


def fitted(timed: Rows, here: Any, gpu: str, store: Store) -> tuple[Any, Rows]:
    """Fit the law and say its numbers; the fit, and every product with its predictions."""
    fit = perf_model.fit(timed, here)
    compared = perf_model.compared(timed, here, fit)
    display.say(
        f"Fitted to {fit.rows:,} products (a way, a matrix, a number of tokens) on {gpu}, "
        f"{plot.dates(timed)}{_within(store)}: **{fit.launch_us:.1f} µs** of fixed time a kernel, with "
        f"{here.gb_s:,.0f} GB/s and {here.peaks['fp16_tensor']:,.0f} TFLOP/s in FP16."
    )
    return fit, compared


def _within(store: Store) -> str:
    """How long the recording took, which holds more than these products; nothing where no run has ended."""
    try:
        minutes = MEASURES["recording_minutes"](Evidence(store))
    except NoEvidence:
        return ""
    return f" in a recording of {minutes:.0f} minutes, which holds the other lessons, too"


def under_roofs(timed: Rows, n: int, k: int, here: Any, gpu: str, rows: Rows) -> None:
    """Draw the products of one matrix under the roofs, by arithmetic intensity."""
    points = strategies.intensity(timed[(timed.n == n) & (timed.k == k)])
    title = f"{n:,} × {k:,} under the roofs"
    fig, ax = plot.figure("FLOP per byte", "TFLOP/s", title, xlog=True, ylog=True, height=3.4)
    shown: list[Rows] = []
    drawn = {("fp16", "cublas"): 1, ("int4_g128", "fused"): 0, ("q8_0", "mma"): 5}
    for (format, name), colour in (drawn | {("q8_0", "mmq_fp16_wgmma"): 2}).items():
        mine = points[(points["format"] == format) & (points.impl == name)].sort_values("intensity")
        if len(mine):
            label = strategies.label(format, name)
            plot.series(ax, mine.intensity, mine.tflop_s, label=label, colour=plot.COLOURS[colour])
            shown.append(mine)
        if (format, name) in strategies.PAIRS[0]:
            for at in mine[mine.batch == 1].head(1).itertuples():
                place = {"textcoords": "offset points", "fontsize": 8, "ha": "center", "va": "top"}
                ax.annotate(counted(int(at.batch), "token"), (at.intensity, at.tflop_s), (8, -6), **place)
    peak = here.peaks["fp16_tensor"]
    x = np.geomspace(points.intensity.min(), points.intensity.max() * 2)
    roofs = np.minimum(x * here.gb_s / 1e3, peak)
    ax.plot(x, roofs, color=plot.ROOF_COLOUR, linestyle=(0, (8, 3)), zorder=1)
    plot.round_ticks(ax)
    plot.round_ticks(ax, "x")
    plot.label_ends(ax)
    points = pd.concat(shown) if shown else points
    best = points.loc[points.tflop_s.idxmax()]
    caption = f"{title} on {gpu}, {plot.dates(rows)}: {len(points)} products, best "
    caption += f"{best.tflop_s:,.0f} TFLOP/s ({best.label}, {best.batch} tokens); roofs "
    plot.show(fig, f"{caption}{here.gb_s:,.0f} GB/s and {peak:,.0f} TFLOP/s.")
    ridge, mine = peak / here.gb_s * 1e3, points[(points["format"] == "fp16") & (points.impl == "cublas")]
    sides = [f"{row.intensity:,.0f} at {counted(row.batch, 'token')}" for row in _ends(mine).itertuples()]
    display.say(
        f"The roofs meet at {peak:,.0f} ÷ {here.gb_s / 1e3:.3f} = {ridge:,.0f} FLOP per byte, the *ridge*: "
        "left of it bytes take longer than FLOPs, right of it FLOPs do."
        + (f" FP16 has {listed(sides)}." if sides else "")
        + " Intensity says nothing of the fixed time: that outweighs both where a product is small."
    )


def _ends(rows: Rows) -> Rows:
    """The rows of the fewest and of the most tokens, one of each."""
    by = rows.sort_values("batch").drop_duplicates("batch")
    return by.iloc[sorted({0, len(by) - 1})] if len(by) else by


def takeaway(cross: Rows) -> None:
    """What to take away, computed."""
    order = (
        "\n- Measure where two kernels are close: an error too small to spoil a time can move a crossover "
        "far."
    )
    if len(cross) and cross.mean() < 0.5:
        order += f" The tuned law finds {cross.sum()} of {len(cross)}."
    display.say(
        "- Estimate before you write a kernel: the fixed time, and the longer of bytes and FLOPs.\n"
        "- Ask whether it reaches its unit's peak: where it does not, FLOPs take longer by that factor. Ask "
        "whether it deals whole tiles, which leave SMs idle, or divides *k*." + order
    )
