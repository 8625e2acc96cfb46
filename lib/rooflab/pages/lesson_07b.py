"""What lesson 07b's page shows: a law for the time of a product, held against every recorded product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import rooflab.lab
from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_07b_appendix import conclusions as conclusions
from rooflab.pages.lesson_07b_appendix import lost_ways as lost_ways
from rooflab.pages.lesson_07b_appendix import prompt_shares as prompt_shares
from rooflab.pages.lesson_07b_appendix import prompt_turning_points as prompt_turning_points
from rooflab.pages.lesson_07b_elsewhere import crossing_missed as crossing_missed
from rooflab.pages.lesson_07b_elsewhere import crossovers as crossovers
from rooflab.pages.lesson_07b_elsewhere import crossovers_right as crossovers_right
from rooflab.pages.lesson_07b_elsewhere import judged_races, order_told
from rooflab.pages.lesson_07b_elsewhere import laptop_errors as laptop_errors
from rooflab.pages.lesson_07b_elsewhere import laptop_predicted as laptop_predicted
from rooflab.pages.lesson_07b_elsewhere import lost_on_the_laptop as lost_on_the_laptop
from rooflab.pages.lesson_07b_misses import below_the_peak
from rooflab.pages.lesson_07b_misses import errors_by_bound as errors_by_bound
from rooflab.pages.lesson_07b_misses import errors_by_way as errors_by_way
from rooflab.pages.lesson_07b_misses import largest_failure as largest_failure
from rooflab.pages.lesson_07b_misses import largest_left as largest_left
from rooflab.pages.lesson_07b_misses import within_bounds as within_bounds
from rooflab.pages.lesson_07b_worked import by_bytes as by_bytes
from rooflab.pages.lesson_07b_worked import in_tiles as in_tiles
from rooflab.pages.lesson_07b_worked import rounds_drawn as rounds_drawn
from rooflab.view import display, explorer, plot
from rooflab.words import counted, listed


def opening(timed: Rows, here: Any, gpu: str, spec: Any, rows: Rows) -> Opening:
    """The first screen: predicted against measured times by both laws, and how many are near; of how many
    pairs of kernels the order is predicted.
    """
    fit = perf_model.fit(timed, here)
    compared = perf_model.compared(timed, here, fit)
    near = 100 * (compared[["one_off", "own_off"]].abs() <= 25).mean()
    published = rooflab.lab.open("replay", "rtx-4070-laptop-published").store
    there = perf_model.scaled(device.get("rtx-4070-laptop"), here, spec)
    unseen = extrapolation.unseen(extrapolation.laptop_kernels(published), there, fit)
    answer = (
        f"Roughly. Bytes, FLOPs and one fitted number, {fit.launch_us:.1f} µs of fixed time a kernel, put "
        f"{near['one_off']:.0f}% of {fit.rows:,} products on the {gpu} within 25% of their measured time."
        f"{_missed(compared, fit)} With two numbers fitted to each kernel {near['own_off']:.0f}% are within "
        f"25%. Of a GPU that it has not seen it predicts {counted(len(unseen), 'kernel')} at one token, the "
        f"worst {unseen.off.abs().max():.0f}% off."
    )
    right, kinds = judged_races(rows, here, fit)
    stay, cross = order_told(right, kinds)
    if len(stay) and len(cross):
        answer += f" Which of two kernels stays ahead it tells for {stay.sum()} of {len(stay)} pairs, and "
        answer += f"where two change places for {cross.sum()} of {len(cross)}."
    able = (
        "predict a product's time on a GPU that you do not have",
        "tell from a product's kernels, bytes and FLOPs what bounds it: fixed time, memory or arithmetic",
        "say where such a prediction fails, and why",
    )
    title = "Law and measurement"
    fig, axes = plot.figure(
        "measured, µs", "by the law, µs", title, xlog=True, ylog=True, columns=2, height=2.6
    )
    ends = [timed.median_us.min(), timed.median_us.max()]
    panels = zip(axes, ("one", "own"), ("plain law", "tuned law"), strict=True)
    for ax, name, words in panels:
        ax.fill_between(
            ends, [0.75 * x for x in ends], [1.25 * x for x in ends], color="#CCCCCC", linewidth=0
        )
        ax.plot(ends, ends, color=plot.ROOF_COLOUR, linewidth=1, zorder=1)
        for format, marker in zip(perf_model.FORMATS, ("o", "s", "^"), strict=True):
            mine = compared[compared["format"] == format]
            style = {"s": 15, "alpha": 0.55, "linewidths": 0, "marker": marker, "zorder": 3}
            colour, label = plot.FORMAT_COLOURS[format], strategies.label(format, "").strip()
            ax.scatter(mine.median_us, mine[f"{name}_us"], c=colour, label=label, **style)
        ax.set_title(f"{words}: {near[f'{name}_off']:.0f}% in the band", fontsize=9)
        plot.round_ticks(ax)
        plot.round_ticks(ax, "x")
    axes[0].legend(fontsize=8.5, frameon=False, loc="upper left", markerscale=1.6)
    middle = compared.groupby("label", sort=False).one_off.median()
    low = [name.partition(" ")[2] for name in middle.index[middle < -40]]
    if low:
        lines = [", ".join(low[k : k + 2]) for k in range(0, len(low), 2)]
        words = "far too fast: " + ",\n".join(lines)
        axes[0].text(0.99, 0.03, words, transform=axes[0].transAxes, fontsize=8, ha="right", va="bottom")
    caption = (
        f"{title}, {len(compared)} products on {gpu}. Grey: within 25%. Above the band the law's time is too "
        "long, below it too short."
    )
    return answer, able, (fig, caption)


def _missed(compared: Rows, fit: Any) -> str:
    """Which ways most of the failures of the plain law are of, where it is those that stay below a peak."""
    low, far, short = below_the_peak(compared, fit)
    if not low or 2 * short < far:
        return ""
    return (
        f" {short} of the {far} others are by kernels that stay far below their unit's peak, such as "
        f"{listed(low[:2])}."
    )


def fitted(timed: Rows, here: Any, gpu: str, lab: Lab) -> tuple[Any, Rows]:
    """Fit the law and say its numbers; the fit, and every product with its predictions."""
    fit = perf_model.fit(timed, here)
    compared = perf_model.compared(timed, here, fit)
    display.say(
        f"Fitted to {fit.rows:,} products on {gpu}, {lab.run.started[:10]}: "
        f"**{fit.launch_us:.1f} µs** of fixed time a kernel, with {here.gb_s:,.0f} GB/s, "
        f"{here.peaks['fp16_tensor']:,.0f} TFLOP/s in FP16 and "
        f"{here.peak('int8_scaled'):,.0f} TOP/s in int8{_scaling(here)}. It is a compromise between all "
        f"products: the shortest takes {timed.median_us.min():.1f} µs in all."
    )
    return fit, compared


def _scaling(here: Any) -> str:
    """What holds the rate of int8 products below their unit's peak."""
    peak = here.peaks["int8_tensor"]
    slower = here.peak("int8_scaled") < peak
    return f" (the unit makes {peak:,.0f}; the FP32 lanes that scale each block are slower)" if slower else ""


def under_roofs(timed: Rows, n: int, k: int, here: Any, gpu: str, rows: Rows) -> None:
    """Draw the products of one matrix under the roofs, by arithmetic intensity."""
    points = strategies.intensity(timed[(timed.n == n) & (timed.k == k)])
    title = f"{n:,} × {k:,} under the roofs"
    fig, ax = plot.figure("FLOP per byte", "TFLOP/s", title, xlog=True, ylog=True, height=4.2)
    drawn = {("fp16", "cublas"): 1, ("int4_g128", "fused"): 0, ("q8_0", "mma"): 5}
    for (format, name), colour in (drawn | {("q8_0", "mmq_fp16_wgmma"): 2, ("q8_0", "two_op"): 6}).items():
        mine = points[(points["format"] == format) & (points.impl == name)].sort_values("intensity")
        if len(mine):
            label = strategies.label(format, name)
            plot.series(ax, mine.intensity, mine.tflop_s, label=label, colour=plot.COLOURS[colour])
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


def explore(here: Any, fit: Any, spec: Any) -> tuple[Any, Rows]:
    """The explorer of every GPU's products by the law, and its rows."""
    matrices = [(1536, 1536), (8960, 1536), (14336, 4096)]
    every = extrapolation.everywhere(here, fit, spec, matrices)
    drawn = explorer.Explorer(
        "map",
        every,
        x="batch",
        y="median_us",
        controls={"format": "Weights", "gpu": "GPU", "matrix": "Matrix"},
        labels={"batch": "tokens", "median_us": "µs, predicted"},
        ylog=True,
        title="Products on every GPU, by the tuned law",
        start={"format": "int4_g128", "gpu": spec.name, "matrix": "8960 x 1536", "batch": 1},
    )
    return drawn, every


def gain_by_gpu(every: Rows) -> Rows:
    """Draw what INT4 is predicted to gain at one token on every GPU, the slowest memory first; the table,
    folded.
    """
    one = every[(every["format"] == "int4_g128") & (every.matrix == "8960 x 1536")]
    gain = one.pivot(index="gpu", columns="batch", values="x")
    ahead = [max([b for b in gain.columns if gain.loc[g, b] > 1] or [0]) for g in gain.index]
    rates = {device.get(name).name: device.get(name).dram_gb_s for name in device.names()}
    mapped = pd.DataFrame({"gpu": gain.index, "one": gain[1].values, "many": gain[64].values})
    mapped["ahead"], mapped["gb_s"] = ahead, mapped.gpu.map(rates)
    by_rate = mapped.sort_values("gb_s")
    title = "INT4 over FP16 at one token, predicted"
    fig, ax = plot.figure("times as fast", title=title, height=1.1 + 0.24 * len(by_rate))
    names = [f"{row.gpu.removeprefix('GeForce ')}, {row.gb_s:,.0f} GB/s" for row in by_rate.itertuples()]
    plot.bars(ax, names, by_rate.one, "×")
    ends = f"from {by_rate.one.iloc[0]:.1f} to {by_rate.one.iloc[-1]:.1f} times as fast"
    plot.show(fig, f"{title}, 8,960 × 1,536, GPUs by their memory's datasheet rate: {ends}.")
    heads = {"gpu": "GPU", "gb_s": "datasheet, GB/s", "one": "× at 1 token", "many": "× at 64"}
    heads |= {"ahead": "ahead up to, of the map's numbers of tokens"}
    forms = {"gb_s": "{:,.0f}", "one": "{:.1f}", "many": "{:.1f}"}
    display.table(
        mapped.sort_values("gb_s"),
        heads,
        forms,
        "INT4's fastest way over FP16's fastest, times as fast, 8,960 × 1,536, predicted, GPU by GPU; where "
        "the two cross is a rough guess, as above",
        folded=True,
    )
    return mapped


def _published_gain(kernels: Rows) -> str:
    """How many times as fast the laptop's published INT4 kernel is as its FP16 one, in a sentence."""
    us = kernels[(kernels.n == 8960) & (kernels.k == 1536)].set_index("label").us
    if not {"FP16 cuBLAS", "INT4 loop"} <= set(us.index):
        return ""
    full, small = us["FP16 cuBLAS"], us["INT4 loop"]
    return f" The laptop's published kernels: {full:.1f} ÷ {small:.1f} = {full / small:.1f}."


def gain_explained(mapped: Rows, kernels: Rows) -> None:
    """Say how INT4's gain depends on the GPU, and what the laptop's published kernels have."""
    slow, fast = mapped.sort_values("gb_s").iloc[0], mapped.sort_values("gb_s").iloc[-1]
    display.say(
        f"At one token INT4 is predicted to be {slow.one:.1f} times as fast as FP16 on the {slow.gpu} and "
        f"{fast.one:.1f} times on the {fast.gpu}"
        + (
            ": where memory is fast, bytes take less of the time, and fewer bytes save less."
            if slow.one > 1.1 * fast.one
            else "."
        )
        + _published_gain(kernels)
        + " At one token FP16's fastest way is mostly the course's own GEMV; lesson 07 compares with cuBLAS."
    )


def takeaway(fit: Any, within: dict[Any, Any], kernels: Rows, cross: Rows) -> None:
    """What to take away, computed."""
    order = f"{cross.sum()} of {len(cross)}" if len(cross) else "no"
    display.say(
        f"- One fixed time, {fit.launch_us:.1f} µs, a rate and a peak put {within[25][0]:.0f}% of the "
        f"{fit.rows:,} products that it was fitted to within 25%. It predicts the unseen laptop's kernels at "
        f"one token, the worst {kernels.off.abs().max():.0f}% off.\n- Ask first whether a kernel reaches its "
        "unit's peak: where it does not, the law's time is too short by that factor. Ask next whether it "
        "deals whole tiles.\n- Which of two kernels stays ahead is easier to tell than where they change "
        f"places: the tuned law tells {order} crossovers.\n- Arithmetic tells whether the fixed time, memory "
        "or compute bounds a product. Do it before you write the kernel."
    )
