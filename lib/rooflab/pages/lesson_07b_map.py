"""Lesson 07b's map: what INT4 is predicted to gain over FP16 at one token on every GPU of the table."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.pages import Rows
from rooflab.pages.lesson_07b_misses import peak_shares
from rooflab.studies import regimes
from rooflab.view import display, explorer, plot
from rooflab.words import counted, listed

_DRAWN = (8960, 1536)  # the matrix of the map's figure
_CASE = f"{_DRAWN[0]} x {_DRAWN[1]}"
_FORMATS = ("fp16", "int4_g128")
_WORDS = {"fp16": "FP16", "int4_g128": "INT4", "q8_0": "Q8_0"}


class _Side(NamedTuple):
    """One format's fastest way on a GPU by the tuned law: its share, MFLOP, peak in TFLOP/s, and µs of its
    fixed time, its bytes and in all.
    """

    how: perf_model.Strategy
    share: float
    work: float
    peak: float
    fixed: float
    bytes: float
    us: float

    @property
    def flops(self) -> float:
        return self.work / self.peak / self.share

    @property
    def by_flops(self) -> bool:
        """Whether FLOPs take longer than bytes."""
        return self.flops > self.bytes


def explore(here: Any, fit: Any, spec: Any) -> tuple[Any, Rows]:
    """The explorer of every GPU's products by the law, and its rows."""
    matrices = [(1536, 1536), _DRAWN, (14336, 4096)]
    every = extrapolation.everywhere(here, fit, spec, matrices)
    drawn = explorer.Explorer(
        "map",
        every.assign(format=every["format"].map(_WORDS)),
        x="batch",
        y="median_us",
        controls={"format": "Weights", "gpu": "GPU", "matrix": "Matrix"},
        labels={"batch": "tokens", "median_us": "µs, predicted"},
        title="Products on one GPU, by the tuned law",
        start={"format": "INT4", "gpu": spec.name, "matrix": _CASE, "batch": 1},
    )
    return drawn, every


def gain_by_gpu(every: Rows, timed: Rows, spec: Any) -> Rows:
    """Draw what INT4 is predicted to gain at one token on every GPU, the slowest memory first, with what was
    measured; the gains.
    """
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE)]
    gain = one.pivot(index="gpu", columns="batch", values="x")
    ahead = [max([b for b in gain.columns if gain.loc[g, b] > 1] or [0]) for g in gain.index]
    rates = {device.get(name).name: device.get(name).dram_gb_s for name in device.names()}
    mapped = pd.DataFrame({"gpu": gain.index, "one": gain[1].values, "many": gain[64].values})
    mapped["ahead"], mapped["gb_s"] = ahead, mapped.gpu.map(rates)
    mapped = mapped.sort_values("gb_s")
    title = "INT4 over FP16 at one token, predicted"
    fig, ax = plot.figure("times as fast", title=title, height=1.0 + 0.2 * len(mapped))
    names = [f"{row.gpu.removeprefix('GeForce ')}, {row.gb_s:,.0f} GB/s" for row in mapped.itertuples()]
    plot.bars(ax, names, mapped.one, "×")
    caption = f"{title}, {_DRAWN[0]:,} × {_DRAWN[1]:,}, GPUs by their memory's datasheet rate"
    seen = _gain_measured(timed)
    if seen and spec.name in set(mapped.gpu):
        style = {"color": plot.COLOURS[1], "markeredgecolor": "black", "markersize": 6, "zorder": 5}
        ax.plot([seen[0]], [list(mapped.gpu).index(spec.name)], "D", **style)
        caption += f"; diamond: measured, {seen[0]:.2f}"
    plot.show(fig, f"{caption}.")
    return mapped


def _gain_measured(timed: Rows) -> tuple[float, str] | None:
    """How many times as fast INT4's fastest way is as FP16's at one token, measured; and which they are."""
    mine = timed[(timed.n == _DRAWN[0]) & (timed.k == _DRAWN[1]) & (timed.batch == 1)]
    best = mine.sort_values("median_us").drop_duplicates("format").set_index("format")
    if not set(_FORMATS) <= set(best.index):
        return None
    full, small = (best.loc[format] for format in _FORMATS)
    return full.median_us / small.median_us, f"{small.label} over {full.label}"


def _sides(gpu: str, every: Rows, here: Any, fit: Any, spec: Any) -> list[_Side]:
    """The two sides of a GPU's bar, FP16 first."""
    named = {device.get(name).name: name for name in device.names()}
    there = perf_model.scaled(device.get(named[gpu]), here, spec)
    mine = every[(every.gpu == gpu) & (every.matrix == _CASE) & (every.batch == 1)].set_index("format")
    found = []
    for format in _FORMATS:
        how = perf_model.strategy(format, mine.way[format])
        own = fit.own.get((format, how.name), perf_model.Own(fit.launch_us, 1.0))
        moved = perf_model.moved(how, *_DRAWN, 1) / there.gb_s / 1e3
        work, peak = perf_model.computed(how, *_DRAWN, 1, there.sms) / 1e6, there.peak(how.unit)
        us = perf_model.us(how, *_DRAWN, 1, there, fit)
        fixed = perf_model.launched(how, 1) * own.launch_us
        found.append(_Side(how, own.share, work, peak, fixed, moved, us))
    return found


def bars_worked(
    mapped: Rows, every: Rows, compared: Rows, kernels: Rows, here: Any, fit: Any, spec: Any
) -> None:
    """Draw what two bars are made of, of the slowest memory and of the recording's GPU; work the last out,
    beside what was measured or published; say what makes them differ, and which share is none of arithmetic.
    """
    gpus = dict.fromkeys([mapped.gpu.iloc[0], *({spec.name} & set(mapped.gpu))])
    bars = {gpu: _sides(gpu, every, here, fit, spec) for gpu in gpus}
    _terms_drawn(bars)
    lines = [
        (
            _name(side.how),
            f"{side.fixed:.2f}",
            f"{side.bytes:.2f}",
            f"{side.work:.3f} ÷ ({side.share:.0%} × {side.peak:,.2f}) = {side.flops:.2f}",
            f"{side.fixed:.2f} + {side.us - side.fixed:.2f} = {side.us:.2f}",
        )
        for side in bars[[*bars][-1]]
    ]
    columns = ["way", "fixed", "bytes", "flops", "us"]
    heads = ("way", "fixed", "bytes", "FLOPs ÷ (share × peak)", "fixed + the longer")
    caption = f"{_short([*bars][-1])}, worked out in µs; FLOPs in millions, the peak in TFLOP/s"
    display.table(pd.DataFrame(lines, columns=columns), dict(zip(columns, heads, strict=True)), {}, caption)
    seen = _gain_measured(compared)
    known = {spec.name: f"; measured, {seen[0]:.2f} ({seen[1]})"} if seen else {}
    known[device.get("rtx-4070-laptop").name] = _published_gain(kernels)
    ratios = [
        f"{_short(gpu)}: {full.us:.2f} ÷ {small.us:.2f} = {full.us / small.us:.2f}{known.get(gpu, '')}."
        for gpu, (full, small) in reversed(bars.items())
    ]
    display.say(" ".join(ratios) + _why(bars) + _units([side for sides in bars.values() for side in sides]))
    for side in [side for sides in bars.values() for side in sides]:
        if text := _stand_in(side, compared, fit):
            display.say(text)
            return


def _terms_drawn(bars: dict[str, list[_Side]]) -> None:
    """Draw each side's fixed time and the longer of its two terms, in percent of FP16's time on its GPU."""
    names: list[str] = []
    parts: dict[str, list[float]] = {"fixed time": [], "bytes": [], "FLOPs ÷ share": []}
    for gpu, (full, small) in bars.items():
        for side in (full, small):
            names.append(f"{_short(gpu)}, {_name(side.how)}")
            longer, rest = [*parts][:0:-1] if side.by_flops else [*parts][1:]
            parts["fixed time"].append(100 * side.fixed / full.us)
            parts[longer].append(100 * (side.us - side.fixed) / full.us)
            parts[rest].append(0.0)
    title = "Why the gain differs: what the time is made of"
    fig, ax = plot.figure("% of FP16's time on the same GPU", title=title, height=2.3)
    plot.stacked(ax, names, {name: each for name, each in parts.items() if any(each)})
    plot.show(fig, f"{title}, at one token: the fixed time, and the longer of bytes and FLOPs ÷ share.")


def _short(gpu: str) -> str:
    return gpu.removeprefix("GeForce ").removesuffix(" GPU")


def _name(how: perf_model.Strategy) -> str:
    return strategies.label(how.format, how.name)


def _published_gain(kernels: Rows) -> str:
    """How many times as fast the laptop's published INT4 kernel is as its FP16 one."""
    us = kernels[(kernels.n == _DRAWN[0]) & (kernels.k == _DRAWN[1])].set_index("label").us
    if not {"FP16 cuBLAS", "INT4 loop"} <= set(us.index):
        return ""
    return f"; published, {us['FP16 cuBLAS'] / us['INT4 loop']:.2f} (INT4 loop over FP16 cuBLAS)"


def _why(bars: dict[str, list[_Side]]) -> str:
    """What makes the second bar shorter than the first, in sentences."""
    if len(bars) < 2:
        return ""
    (first, one), (second, two) = ((_short(gpu), sides[1]) for gpu, sides in bars.items())
    if two.fixed / two.us <= one.fixed / one.us:
        return ""
    text = (
        f" INT4 shortens the term of bytes alone. Its fixed time is {one.fixed / one.us:.0%} of its time on "
        f"the {first} and {two.fixed / two.us:.0%} on the {second}"
    )
    if two.by_flops and not one.by_flops:
        text += f", where FLOPs at {two.share:.0%} of the peak take longer than its bytes"
    return f"{text}."


def _units(sides: list[_Side]) -> str:
    """Which unit multiplies, where it is one that the reader has not met."""
    if {side.how.unit for side in sides} != {"fp32"}:
        return ""
    return " These ways multiply on *FP32 lanes*, an SM's units for single numbers, not on tensor cores."


def _stand_in(side: _Side, compared: Rows, fit: Any) -> str:
    """Why a side's share is not one of arithmetic: it is low though FLOPs decide no product of the way."""
    name, bound = _name(side.how), set(peak_shares(compared, fit)["label"])
    if side.share >= 1 or name in bound:
        return ""
    text = (
        "**A share may stand in for another loss.** By the plain law FLOPs decide no product of "
        f"{name}; yet its share is {side.share:.0%}."
    )
    if (compared.loc[compared["label"] == name, "batch"] == 1).all():
        text += (
            " At one token bytes and FLOPs grow alike with the matrix, so the fit cannot tell slow bytes "
            "from slow arithmetic."
        )
    return f"{text} On another GPU this share scales with the peak, not with the memory: the map is rough."


def by_gpu(mapped: Rows, every: Rows, fit: Any) -> None:
    """The map as a table, GPU by GPU, with what breaks its order; folded."""
    heads = {"gpu": "GPU", "gb_s": "datasheet, GB/s", "one": "× at 1 token", "many": "× at 64"}
    heads |= {"ahead": f"INT4 ahead up to, tokens ({max(regimes.BATCHES)}: the most that was tried)"}
    forms = {"gb_s": "{:,.0f}", "one": "{:.1f}", "many": "{:.1f}"}
    parts: list[Any] = [(mapped, heads, forms)]
    parts += [text for text in (_not_in_order(mapped, every), _more_at_many(mapped, every, fit)) if text]
    display.fold_parts("The map, GPU by GPU: INT4's fastest way over FP16's, times as fast, predicted", parts)


def _more_at_many(mapped: Rows, every: Rows, fit: Any) -> str:
    """Why INT4 gains more at 64 tokens than at one where FP16's way changes to one of a longer fixed time."""
    more = mapped[mapped.many > mapped.one]
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


def _not_in_order(mapped: Rows, every: Rows) -> str:
    """Why the gains are not in the order of the memories' rates, where INT4's way differs between GPUs."""
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE) & (every.batch == 1)]
    ways = {way: list(part.gpu) for way, part in one.groupby("way")}
    if mapped.one.is_monotonic_decreasing or len(ways) < 2:
        return ""
    rare = min(ways, key=lambda way: len(ways[way]))
    names = listed(sorted(strategies.label("int4_g128", way) for way in ways if way != rare))
    return (
        f"The order is not strict: INT4's way is {strategies.label('int4_g128', rare)} on "
        f"{listed(ways[rare])} and {names} elsewhere, and each has its own fixed time and unit."
    )


def kink(every: Rows, spec: Any) -> None:
    """Say where FP16's fastest way changes, which bends its curve in the explorer."""
    mine = every[(every.gpu == spec.name) & (every.matrix == _CASE) & (every["format"] == "fp16")]
    mine = mine.sort_values("batch")
    for before, after in pairwise(mine.itertuples()):
        if before.way != after.way:
            names = [strategies.label("fp16", row.way) for row in (before, after)]
            display.say(
                f"Below is the whole map. A curve jumps where the fastest way changes, as from {names[0]} at "
                f"{counted(before.batch, 'token')} to {names[1]} at {after.batch}."
            )
            return
