"""What lesson 07b's page shows: a law for the time of a product, held against every recorded product."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_07b_appendix import conclusions as conclusions
from rooflab.pages.lesson_07b_appendix import lost_ways as lost_ways
from rooflab.pages.lesson_07b_appendix import prompt_shares as prompt_shares
from rooflab.pages.lesson_07b_appendix import prompt_turning_points as prompt_turning_points
from rooflab.pages.lesson_07b_crossings import crossing_drawn as crossing_drawn
from rooflab.pages.lesson_07b_crossings import crossovers as crossovers
from rooflab.pages.lesson_07b_crossings import every_pair as every_pair
from rooflab.pages.lesson_07b_crossings import judged_races, order_told
from rooflab.pages.lesson_07b_elsewhere import laptop_errors as laptop_errors
from rooflab.pages.lesson_07b_elsewhere import laptop_known
from rooflab.pages.lesson_07b_elsewhere import laptop_predicted as laptop_predicted
from rooflab.pages.lesson_07b_elsewhere import lost_on_the_laptop as lost_on_the_laptop
from rooflab.pages.lesson_07b_misses import below_the_peak
from rooflab.pages.lesson_07b_misses import causes as causes
from rooflab.pages.lesson_07b_misses import divided as divided
from rooflab.pages.lesson_07b_misses import failures as failures
from rooflab.pages.lesson_07b_misses import peak_worked as peak_worked
from rooflab.pages.lesson_07b_misses import share_worked as share_worked
from rooflab.pages.lesson_07b_tuned import errors_by_way as errors_by_way
from rooflab.pages.lesson_07b_tuned import left as left
from rooflab.pages.lesson_07b_tuned import numbers as numbers
from rooflab.pages.lesson_07b_tuned import within_bounds as within_bounds
from rooflab.pages.lesson_07b_worked import by_bytes as by_bytes
from rooflab.pages.lesson_07b_worked import in_tiles as in_tiles
from rooflab.pages.lesson_07b_worked import rounds_drawn as rounds_drawn
from rooflab.pages.lesson_07b_worked import ways as ways
from rooflab.view import display, explorer, plot
from rooflab.words import counted, listed

_DRAWN = (8960, 1536)  # the matrix of the map's figure
_CASE = f"{_DRAWN[0]} x {_DRAWN[1]}"


def opening(timed: Rows, here: Any, gpu: str, spec: Any, rows: Rows) -> Opening:
    """The first screen: predicted against measured times by both laws, and how many are near; of how many
    pairs of kernels the order is predicted.
    """
    fit = perf_model.fit(timed, here)
    compared = perf_model.compared(timed, here, fit)
    near = 100 * (compared[["one_off", "own_off"]].abs() <= 25).mean()
    unseen = laptop_known(here, spec, fit)[2]
    worst = unseen.off.abs().max()
    word, which = _which(*order_told(*judged_races(rows, here, fit)), near["own_off"])
    answer = (
        f"{word}he plain law, one fitted number, puts {near['one_off']:.0f}% of {fit.rows:,} products on the "
        f"{gpu} within 25% of their measured time; the tuned law, two numbers a kernel, "
        f"{near['own_off']:.0f}%. {which}Of a laptop that it was not fitted to the plain law predicts "
        f"{counted(len(unseen), 'kernel')} at one token, the worst {worst:.1f}% off."
    )
    able = (
        "estimate a product's time at one token from its bytes and a GPU's bandwidth",
        "tell from a product's kernels, bytes and FLOPs what bounds it: fixed time, memory or arithmetic",
        "say where such a prediction fails, and why",
    )
    return answer, able, _both_laws(compared, fit, gpu, near)


def _which(stay: Rows, cross: Rows, near: float) -> tuple[str, str]:
    """What the tuned law is good for, as the answer's beginning; and of how many pairs of kernels it tells
    the faster, in a sentence: "" where no pair was judged. `near` percent of its times are within 25%.
    """
    told = pd.concat([stay, cross]).astype(bool)
    if told.empty:
        return "T", ""
    parts = [f"the winner in {stay.sum()} of {len(stay)} pairs in which one stays ahead"] if len(stay) else []
    parts += [f"the crossing in {cross.sum()} of {len(cross)} that change places"] if len(cross) else []
    word = (
        "Yes, of the kernels it was fitted to: t"
        if told.all()
        else "An estimate, not a choice: t"
        if near >= 50
        else "Hardly: t"
    )
    return word, f"Of the kernels it was fitted to, the tuned law tells {listed(parts)}. "


def _both_laws(compared: Rows, fit: Any, gpu: str, near: Rows) -> tuple[Any, str]:
    """Time by either law over measured time, products that are far off in colours; and the caption."""
    title, ways = "Law and measurement", below_the_peak(compared, fit)[0]
    fig, axes = plot.figure(
        "measured, µs", "by the law, µs", title, xlog=True, ylog=True, columns=2, height=2.6
    )
    ends = [compared.median_us.min(), compared.median_us.max()]
    panels = zip(axes, ("one", "own"), ("plain law", "tuned law"), strict=True)
    for ax, name, words in panels:
        ax.fill_between(
            ends, [0.75 * x for x in ends], [1.25 * x for x in ends], color="#CCCCCC", linewidth=0
        )
        ax.plot(ends, ends, color=plot.ROOF_COLOUR, linewidth=1, zorder=1)
        held = compared[f"{name}_off"].abs() <= 25
        low = compared.label.isin(ways) & (compared[f"{name}_off"] < 0)
        for which, colour, label in (
            (held, "#888888", "within 25%"),
            (~held & low, plot.COLOURS[1], "too short: kernels far below their peak"),
            (~held & ~low, plot.COLOURS[0], "off for another reason"),
        ):
            mine = compared[which]
            style = {"s": 9, "alpha": 0.6, "linewidths": 0, "zorder": 3}
            if len(mine):
                ax.scatter(mine.median_us, mine[f"{name}_us"], c=colour, label=label, **style)
        ax.set_title(f"{words}: {near[f'{name}_off']:.0f}% within 25%", fontsize=9)
        plot.round_ticks(ax)
        plot.round_ticks(ax, "x")
    axes[0].legend(fontsize=8, frameon=False, loc="upper left", markerscale=1.8, handletextpad=0.1)
    corner = {"transform": axes[0].transAxes, "fontsize": 8, "ha": "right", "va": "bottom"}
    axes[0].text(0.98, 0.04, "the law's time is too short", **corner)
    caption = (
        f"{title}, {len(compared):,} products on {gpu}. Grey band: within 25%. Above it the law's time is "
        "too long, below it too short. Colours mean the same in both panels."
    )
    return fig, caption


def fitted(timed: Rows, here: Any, gpu: str, lab: Lab) -> tuple[Any, Rows]:
    """Fit the law and say its numbers; the fit, and every product with its predictions."""
    fit = perf_model.fit(timed, here)
    compared = perf_model.compared(timed, here, fit)
    display.say(
        f"Fitted to {fit.rows:,} products on {gpu}, {lab.run.started[:10]}: "
        f"**{fit.launch_us:.1f} µs** of fixed time a kernel, with {here.gb_s:,.0f} GB/s, "
        f"{here.peaks['fp16_tensor']:,.0f} TFLOP/s in FP16 and "
        f"{here.peak('int8_scaled'):,.0f} TOP/s in int8. It is a compromise between all products: the "
        f"shortest takes {timed.median_us.min():.1f} µs in all."
    )
    return fit, compared


def under_roofs(timed: Rows, n: int, k: int, here: Any, gpu: str, rows: Rows) -> None:
    """Draw the products of one matrix under the roofs, by arithmetic intensity."""
    points = strategies.intensity(timed[(timed.n == n) & (timed.k == k)])
    title = f"{n:,} × {k:,} under the roofs"
    fig, ax = plot.figure("FLOP per byte", "TFLOP/s", title, xlog=True, ylog=True, height=4.2)
    shown: list[Rows] = []
    drawn = {("fp16", "cublas"): 1, ("int4_g128", "fused"): 0, ("q8_0", "mma"): 5}
    for (format, name), colour in (drawn | {("q8_0", "mmq_fp16_wgmma"): 2, ("q8_0", "two_op"): 6}).items():
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


def explore(here: Any, fit: Any, spec: Any) -> tuple[Any, Rows]:
    """The explorer of every GPU's products by the law, and its rows."""
    matrices = [(1536, 1536), _DRAWN, (14336, 4096)]
    every = extrapolation.everywhere(here, fit, spec, matrices)
    drawn = explorer.Explorer(
        "map",
        every,
        x="batch",
        y="median_us",
        controls={"format": "Weights", "gpu": "GPU", "matrix": "Matrix"},
        labels={"batch": "tokens", "median_us": "µs, predicted"},
        title="Products on one GPU, by the tuned law",
        start={"format": "int4_g128", "gpu": spec.name, "matrix": _CASE, "batch": 1},
    )
    return drawn, every


def gain_by_gpu(every: Rows, fit: Any, timed: Rows, spec: Any) -> Rows:
    """Say what the map has for the GPU that was measured; draw what INT4 is predicted to gain at one token on
    every GPU, the slowest memory first, with what was measured; the table, folded.
    """
    if text := _map_measured(every, timed, spec):
        display.say(text)
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE)]
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
    seen = _gain_measured(timed)
    if seen and spec.name in set(by_rate.gpu):
        ax.plot(
            [seen],
            [list(by_rate.gpu).index(spec.name)],
            "D",
            color=plot.COLOURS[1],
            markeredgecolor="black",
            markersize=6,
            zorder=5,
        )
        ends += f"; diamond: measured, {seen:.2f}"
    plot.show(fig, f"{title}, 8,960 × 1,536, GPUs by their memory's datasheet rate: {ends}.")
    heads = {"gpu": "GPU", "gb_s": "datasheet, GB/s", "one": "× at 1 token", "many": "× at 64"}
    heads |= {"ahead": "INT4 ahead up to, tokens"}
    forms = {"gb_s": "{:,.0f}", "one": "{:.1f}", "many": "{:.1f}"}
    parts: list[Any] = [(mapped.sort_values("gb_s"), heads, forms)]
    parts += [text for text in (_not_in_order(mapped, every), _more_at_many(mapped, every, fit)) if text]
    display.fold_parts(
        "INT4's fastest way over FP16's fastest, times as fast, 8,960 × 1,536, predicted, GPU by GPU; where "
        "the two cross is a rough guess, as above",
        parts,
    )
    return mapped


def _more_at_many(mapped: Rows, every: Rows, fit: Any) -> str:
    """Why INT4 gains more at 64 tokens than at one where FP16's way changes to one of a longer fixed time."""
    more = mapped[mapped.many > mapped.one].sort_values("gb_s")
    mine = every[(every["format"] == "fp16") & (every.matrix == _CASE) & every.gpu.isin(more.gpu)]
    ways = mine.pivot(index="gpu", columns="batch", values="way")
    if more.empty or ways[1].nunique() != 1 or ways[64].nunique() != 1:
        return ""
    few, many = ways[1].iloc[0], ways[64].iloc[0]
    us = [
        fit.own[("fp16", way)].launch_us if ("fp16", way) in fit.own else fit.launch_us for way in (few, many)
    ]
    if us[1] <= us[0]:
        return ""
    return (
        f"INT4 gains more at 64 tokens than at one on {listed(more.gpu)}: FP16's fastest way is "
        f"{strategies.label('fp16', few)} at one token, {us[0]:.1f} µs of fixed time, and "
        f"{strategies.label('fp16', many)} at 64, {us[1]:.1f}."
    )


def _published_gain(kernels: Rows) -> str:
    """How many times as fast the laptop's published INT4 kernel is as its FP16 one, in a sentence."""
    us = kernels[(kernels.n == _DRAWN[0]) & (kernels.k == _DRAWN[1])].set_index("label").us
    if not {"FP16 cuBLAS", "INT4 loop"} <= set(us.index):
        return ""
    full, small = us["FP16 cuBLAS"], us["INT4 loop"]
    return f" The laptop's published kernels: {full:.1f} ÷ {small:.1f} = {full / small:.1f}."


def _not_in_order(mapped: Rows, every: Rows) -> str:
    """Why the gains are not in the order of the memories' rates, where INT4's way differs between GPUs."""
    gains = mapped.sort_values("gb_s").one
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE) & (every.batch == 1)]
    ways = {way: list(part.gpu) for way, part in one.groupby("way")}
    if gains.is_monotonic_decreasing or len(ways) < 2:
        return ""
    rare = min(ways, key=lambda way: len(ways[way]))
    names = listed(sorted(strategies.label("int4_g128", way) for way in ways if way != rare))
    return (
        f"The order is not strict: INT4's way is {strategies.label('int4_g128', rare)} on "
        f"{listed(ways[rare])} and {names} elsewhere, and each has its own fixed time and unit."
    )


def _gain_measured(timed: Rows) -> float | None:
    """How many times as fast INT4's fastest way is as FP16's at one token, as measured."""
    mine = timed[(timed.n == _DRAWN[0]) & (timed.k == _DRAWN[1]) & (timed.batch == 1)]
    best = mine.groupby("format").median_us.min()
    return best["fp16"] / best["int4_g128"] if {"fp16", "int4_g128"} <= set(best.index) else None


def _map_measured(every: Rows, timed: Rows, spec: Any) -> str:
    """What the map has for the GPU that was measured, beside the measurement."""
    n, k = _DRAWN
    mine = timed[(timed.n == n) & (timed.k == k)]
    law = every[(every.gpu == spec.name) & (every.matrix == _CASE) & (every.batch == 1)].set_index("format")
    one = mine[mine.batch == 1].sort_values("median_us")
    best = one.drop_duplicates("format").set_index("format")
    if not {"fp16", "int4_g128"} <= set(best.index):
        return ""
    names = {f: strategies.label(f, law.way[f]) for f in ("fp16", "int4_g128")}
    full, small = best.loc["fp16"], best.loc["int4_g128"]
    text = (
        f"**Tested on the {spec.name} alone:** the law has {law.x['int4_g128']:.2f} times, by "
        f"{names['int4_g128']} over {names['fp16']}. Measured: "
        f"{full.median_us / small.median_us:.2f} times, {small.label} over {full.label}"
    )
    cublas = one[one.impl == "cublas"].median_us
    if full.impl != "cublas" and len(cublas):
        text += f", and {cublas.iloc[0] / small.median_us:.2f} over FP16 cuBLAS"
    text += "."
    if small.label != names["int4_g128"]:
        text += f" The law picks another INT4 kernel than the fastest, {small.label}."
    by = mine.groupby(["batch", "format"]).median_us.min().unstack()
    ahead = by.index[by.int4_g128 < by.fp16]
    far = every[(every.gpu == spec.name) & (every.matrix == _CASE) & (every["format"] == "int4_g128")]
    told = far.batch[far.x > 1]
    if len(ahead) and len(told) and max(told) != max(ahead):
        text += f" It has INT4 ahead up to {max(told)} tokens; measured, up to {max(ahead)}."
    return text


def _kink(every: Rows, spec: Any) -> str:
    """Where FP16's fastest way changes, which bends its curve."""
    mine = every[(every.gpu == spec.name) & (every.matrix == _CASE) & (every["format"] == "fp16")]
    mine = mine.sort_values("batch")
    for before, after in pairwise(mine.itertuples()):
        if before.way != after.way:
            names = [strategies.label("fp16", row.way) for row in (before, after)]
            return (
                f" Below, a curve jumps where the fastest way changes, as from {names[0]} at "
                f"{counted(before.batch, 'token')} to {names[1]} at {after.batch}."
            )
    return ""


def gain_explained(mapped: Rows, kernels: Rows, every: Rows, spec: Any) -> None:
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
        + _kink(every, spec)
    )


def takeaway(cross: Rows) -> None:
    """What to take away, computed."""
    order = f"the tuned law tells {cross.sum()} of {len(cross)} crossovers" if len(cross) else ""
    if len(cross) and cross.mean() < 0.5:
        order = f"Errors that leave a time useful move a crossover far: {order}"
    order = f"\n- {order[0].upper()}{order[1:]}." if order else ""
    display.say(
        "- Ask first whether a kernel reaches its "
        "unit's peak: where it does not, the law's time for FLOPs is too short by that factor. Ask next "
        f"whether it deals whole tiles, or divides *k*, so that few tiles still fill the GPU.{order}\n"
        "- Arithmetic tells whether the fixed time, memory or compute bounds a product. Do it "
        "before you write the kernel."
    )
