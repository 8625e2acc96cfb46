"""Lesson 07b's map: what INT4 is predicted to gain over FP16 at one token on every GPU of the table."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.pages import Rows
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


def _at_one(timed: Rows) -> Rows:
    """The measured products of the map's matrix at one token, the fastest first."""
    mine = timed[(timed.n == _DRAWN[0]) & (timed.k == _DRAWN[1]) & (timed.batch == 1)]
    return mine.sort_values("median_us")


def gains(every: Rows) -> Rows:
    """What INT4 is predicted to gain on every GPU, the slowest memory first."""
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE)]
    gain = one.pivot(index="gpu", columns="batch", values="x")
    ahead = [max([b for b in gain.columns if gain.loc[g, b] > 1] or [0]) for g in gain.index]
    rates = {device.get(name).name: device.get(name).dram_gb_s for name in device.names()}
    mapped = pd.DataFrame({"gpu": gain.index, "one": gain[1].values, "many": gain[64].values})
    mapped["ahead"], mapped["gb_s"] = ahead, mapped.gpu.map(rates)
    return mapped.sort_values("gb_s")


def gain_by_gpu(mapped: Rows, every: Rows, timed: Rows, spec: Any) -> None:
    """Draw what INT4 is predicted to gain at one token on every GPU, the slowest memory first, coloured by
    INT4's fastest way, with what was measured.
    """
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE)]
    title = "INT4 over FP16 at one token, predicted"
    fig, ax = plot.figure("times as fast", title=title, height=1.1 + 0.165 * len(mapped))
    names = [f"{row.gpu.removeprefix('GeForce ')}, {row.gb_s:,.0f} GB/s" for row in mapped.itertuples()]
    plot.bars(ax, names, mapped.one, "×")
    for words, gain in zip(list(ax.texts), mapped.one, strict=True):
        words.set_text(f"{gain:.1f}×")
    ways = one[one.batch == 1].set_index("gpu").way
    _coloured(ax, [strategies.label("int4_g128", ways[gpu]) for gpu in mapped.gpu])
    caption = f"{title}, {_DRAWN[0]:,} × {_DRAWN[1]:,}, GPUs by their memory's datasheet rate"
    best = _at_one(timed).drop_duplicates("format").set_index("format")
    if set(_FORMATS) <= set(best.index) and spec.name in set(mapped.gpu):
        seen, at = best.median_us["fp16"] / best.median_us["int4_g128"], list(mapped.gpu).index(spec.name)
        style = {"color": "black", "markersize": 6, "zorder": 5}
        ax.plot([seen], [at], "D", **style)
        text = f"measured {seen:.1f}×, {best['label']['int4_g128']}"
        ax.annotate(text, (seen, at), (7, 0), textcoords="offset points", va="center", fontsize=8.5)
    display.say(_in_a_sentence(mapped, ways))
    plot.show(fig, f"{caption}.")


def _coloured(ax: Any, ways: list[str]) -> None:
    """Colour each bar by INT4's fastest way on its GPU, and add a legend with the most frequent way first."""
    held = sorted(set(ways), key=ways.count, reverse=True)
    shades = [plot.COLOURS[k] for k in (0, 5, 3, 6)]
    for bar, way in zip(ax.patches, ways, strict=True):
        bar.set_facecolor(shades[held.index(way) % len(shades)])
    keys = [next(bar for bar, mine in zip(ax.patches, ways, strict=True) if mine == way) for way in held]
    style = {"fontsize": 8, "frameon": False, "ncols": len(held), "bbox_to_anchor": (0.5, -0.11)}
    ax.legend(keys, [f"INT4's fastest way: {held[0]}", *held[1:]], loc="upper center", **style)


def _in_a_sentence(mapped: Rows, ways: Rows) -> str:
    """What the bars show: the slowest memory's gain and the fastest's, and why they differ."""
    slow, fast = mapped.one.iloc[0], mapped.one.iloc[-1]
    if mapped.one.rank().corr(mapped.gb_s.rank()) > -0.8 or slow <= fast:
        return f"**By the law INT4 is {mapped.one.min():.1f} to {mapped.one.max():.1f} times as fast.**"
    text = (
        f"**Slow memory: about {slow:.1f}×. Fast memory: about {fast:.1f}×.** INT4 shortens only the bytes, "
        "and the faster the memory, the less of the time they take."
    )
    most = ways.value_counts().index[0]
    mine = mapped.one[[ways[gpu] == most for gpu in mapped.gpu]]
    if mine.is_monotonic_decreasing and not mapped.one.is_monotonic_decreasing:
        text += " Only bars in another colour, of another INT4 kernel, break the order."
    return text


def _sides(gpu: str, every: Rows, here: Any, fit: Any, spec: Any) -> list[_Side]:
    """The two sides of a GPU's bar, FP16 first."""
    named = {device.get(name).name: name for name in device.names()}
    there = perf_model.scaled(device.get(named[gpu]), here, spec)
    mine = every[(every.gpu == gpu) & (every.matrix == _CASE) & (every.batch == 1)].set_index("format")
    return [_side(perf_model.strategy(format, mine.way[format]), there, fit) for format in _FORMATS]


def _side(how: perf_model.Strategy, there: Any, fit: Any) -> _Side:
    """A way's product on a GPU, term by term."""
    own = fit.own.get((how.format, how.name), perf_model.Own(fit.launch_us, 1.0))
    moved = perf_model.moved(how, *_DRAWN, 1) / there.gb_s / 1e3
    work, peak = perf_model.computed(how, *_DRAWN, 1, there.sms) / 1e6, there.peak(how.unit)
    us = perf_model.us(how, *_DRAWN, 1, there, fit)
    return _Side(how, own.share, work, peak, perf_model.launched(how, 1) * own.launch_us, moved, us)


def bars_worked(mapped: Rows, every: Rows, kernels: Rows, here: Any, fit: Any, spec: Any) -> None:
    """Draw what two bars are made of, of the slowest memory and of the recording's GPU; say what makes them
    differ, and what was published of the first.
    """
    gpus = dict.fromkeys([mapped.gpu.iloc[0], *({spec.name} & set(mapped.gpu))])
    bars = {gpu: _sides(gpu, every, here, fit, spec) for gpu in gpus}
    _terms_drawn(bars)
    full, small = bars[mapped.gpu.iloc[0]]
    first = mapped.gpu.iloc[0]
    text = f"{_short(first)}: {full.us:.2f} ÷ {small.us:.2f} = {full.us / small.us:.2f}"
    text += _published_gain(kernels) if first == device.get("rtx-4070-laptop").name else ""
    display.say(f"{text}.{_why(bars)}")


def _terms_drawn(bars: dict[str, list[_Side]]) -> None:
    """Draw each side's fixed time, its bytes and what FLOPs at the fitted share add to them, in percent of
    FP16's time on its GPU.
    """
    names: list[str] = []
    added = "added by FLOPs ÷ (own share × peak)"
    parts: dict[str, list[float]] = {"fixed time": [], "bytes": [], added: []}
    for gpu, (full, small) in bars.items():
        for side in (full, small):
            names.append(f"{_short(gpu)}, {_name(side.how)}")
            terms = (side.fixed, side.bytes, side.us - side.fixed - side.bytes)
            for percents, us in zip(parts.values(), terms, strict=True):
                percents.append(100 * us / full.us)
    title = "Why the gain differs: what the time is made of"
    fig, ax = plot.figure("% of FP16's time on the same GPU", title=title, height=2.3)
    plot.stacked(ax, names, {name: each for name, each in parts.items() if max(each) > 0.05})
    plot.show(fig, f"{title}, by the tuned law, at one token.")


def cautioned(mapped: Rows, every: Rows, timed: Rows, compared: Rows, here: Any, fit: Any, spec: Any) -> None:
    """Say what the map rests on and how it does on the recording's own GPU."""
    one = every[(every["format"] == "int4_g128") & (every.matrix == _CASE) & (every.batch == 1)]
    ways = one.set_index("gpu").way.reindex(mapped.gpu)
    way = ways.value_counts().index[0]
    rows = int(((timed["format"] == "int4_g128") & (timed["impl"] == way)).sum())
    best = _at_one(compared).drop_duplicates("format").set_index("format")
    named = _sides(spec.name, every, here, fit, spec) if _held(mapped, best, spec) else []
    display.say(
        f"**Caution: the map is predicted.**{_tried(named, best, compared, spec) if named else ''} "
        f"{(ways == way).sum()} of {len(ways)} bars rest on {strategies.label('int4_g128', way)}, fitted to "
        f"{counted(rows, 'product')}. That its two numbers hold on another GPU was not tested."
    )


def _held(mapped: Rows, best: Rows, spec: Any) -> bool:
    """Whether the recording's own GPU is on the map, with what was measured of both formats."""
    return spec.name in set(mapped.gpu) and set(_FORMATS) <= set(best.index)


def bar_told(mapped: Rows, every: Rows, compared: Rows, here: Any, fit: Any, spec: Any) -> None:
    """The bar of the recording's own GPU, folded: each way worked out, and which share is none of
    arithmetic.
    """
    best = _at_one(compared).drop_duplicates("format").set_index("format")
    if _held(mapped, best, spec):
        _shares_told(_sides(spec.name, every, here, fit, spec), best, compared, here, fit, spec)


def _tried(named: list[_Side], best: Rows, compared: Rows, spec: Any) -> str:
    """Whether INT4's fastest way by the law is the fastest measured; and the gain by either."""
    gain = best.median_us["fp16"] / best.median_us["int4_g128"]
    right = _name(named[1].how) == best["label"]["int4_g128"]
    which = "INT4's fastest kernel" if right else "the wrong INT4 kernel"
    us = _at_one(compared).drop_duplicates("label").set_index("label").median_us
    if not right and _name(named[1].how) in us:
        which += f" ({_name(named[1].how)}, measured {us[_name(named[1].how)]:.2f} µs; "
        which += f"{best['label']['int4_g128']} {best.median_us['int4_g128']:.2f})"
    return (
        f" On the {_short(spec.name)}, whose kernels were measured, the law names {which} and a "
        f"gain of {named[0].us / named[1].us:.1f}×; measured: {gain:.1f}×."
    )


def _shares_told(named: list[_Side], best: Rows, compared: Rows, here: Any, fit: Any, spec: Any) -> None:
    """The ways that the law names and those that were fastest, worked out; and whether their shares of the
    peak are of arithmetic; folded.
    """
    keys = [(side.how.format, side.how.name) for side in named]
    keys += [(format, best.impl[format]) for format in _FORMATS]
    sides = [_side(perf_model.strategy(*key), here, fit) for key in sorted(dict.fromkeys(keys))]
    us = _at_one(compared).drop_duplicates("label").set_index("label").median_us
    lines = [
        (
            _name(side.how),
            f"{side.fixed:.2f}",
            f"{side.bytes:.2f}",
            f"{side.flops:.2f} ({side.share:.0%} of {side.peak:,.0f})",
            f"{side.fixed:.2f} + {side.us - side.fixed:.2f} = {side.us:.2f}",
            f"{us[_name(side.how)]:.2f}" if _name(side.how) in us else "",
        )
        for side in sides
    ]
    columns = ["way", "fixed", "bytes", "flops", "law", "us"]
    heads = (
        "way",
        "fixed",
        "bytes",
        "FLOPs (share of the unit's peak, TFLOP/s)",
        "fixed + the longer",
        "measured",
    )
    caption = f"{_short(spec.name)}, {_DRAWN[0]:,} × {_DRAWN[1]:,}, 1 token, in µs"
    table = pd.DataFrame(lines, columns=columns)
    parts: list[Any] = [(table, dict(zip(columns, heads, strict=True)), {}, caption)]
    parts.append(_gains(named, best))
    other, own = "".join(_stand_in(side, compared, fit) for side in sides), _arithmetic(named[1], compared)
    if other or own:
        asked = "A share may stand in for another loss." if other else "Is the share one of arithmetic?"
        parts.append(f"**{asked}**{other}{own}")
    display.fold_parts(f"The {_short(spec.name)}'s bar worked out, and what its shares mean", parts)


def _gains(named: list[_Side], best: Rows) -> str:
    """INT4's gain over FP16 by the law and measured."""
    (full, small), us = named, best.median_us
    return (
        f"INT4's gain over FP16 is {full.us:.2f} ÷ {small.us:.2f} = {full.us / small.us:.2f} by the law, "
        f"{us['fp16']:.2f} ÷ {us['int4_g128']:.2f} = {us['fp16'] / us['int4_g128']:.2f} measured."
    )


def _short(gpu: str) -> str:
    return gpu.removeprefix("GeForce ").removesuffix(" GPU")


def _name(how: perf_model.Strategy) -> str:
    return strategies.label(how.format, how.name)


def _published_gain(kernels: Rows) -> str:
    """How many times as fast the laptop's published INT4 kernel is as its FP16 one."""
    us = kernels[(kernels.n == _DRAWN[0]) & (kernels.k == _DRAWN[1])].set_index("label").us
    if not {"FP16 cuBLAS", "INT4 loop"} <= set(us.index):
        return ""
    return (
        f"; published, {us['FP16 cuBLAS'] / us['INT4 loop']:.2f}, by other kernels on both sides (INT4 loop, "
        "FP16 cuBLAS)"
    )


def _why(bars: dict[str, list[_Side]]) -> str:
    """What makes the second bar shorter than the first, in sentences."""
    if len(bars) < 2:
        return ""
    (first, one), (second, two) = ((_short(gpu), sides[1]) for gpu, sides in bars.items())
    if two.fixed / two.us <= one.fixed / one.us:
        return ""
    text = (
        " The fixed time is "
        f"{one.fixed / one.us:.0%} of INT4's time on the {first} and {two.fixed / two.us:.0%} on the {second}"
    )
    if two.by_flops and not one.by_flops:
        text += f", where FLOPs at {two.share:.0%} of their unit's peak take longer than bytes"
    return f"{text}."


def _stands_in(side: _Side, compared: Rows, fit: Any) -> bool:
    """Whether a side's share may be none of arithmetic: FLOPs decide no product of the way by the plain law,
    and every one was of one token.
    """
    mine = compared[compared["label"] == _name(side.how)]
    return side.share < 1 and not (mine["by"] == "compute").any() and bool((mine["batch"] == 1).all())


def _stand_in(side: _Side, compared: Rows, fit: Any) -> str:
    """Why a side's share may not be one of arithmetic, where it may not."""
    if not _stands_in(side, compared, fit):
        return ""
    return (
        f" {_name(side.how)} was measured at one token alone, where bytes and FLOPs grow alike with the "
        f"matrix: the fit cannot tell slow bytes ({side.bytes:.2f} µs at the full rate) from slow arithmetic "
        f"({side.work:.1f} MFLOP ÷ ({side.share:.0%} × {side.peak:.1f} TFLOP/s) = {side.flops:.2f} µs)."
    )


def _arithmetic(side: _Side, compared: Rows) -> str:
    """Why a side's share is one of arithmetic: its time grows with tokens, and its bytes hardly do."""
    mine = compared[(compared["label"] == _name(side.how)) & (compared.n == _DRAWN[0])]
    mine = mine[mine.k == _DRAWN[1]].sort_values("batch")
    if side.share >= 1 or mine.batch.nunique() < 2:
        return ""
    few, many = mine.iloc[0], mine.iloc[-1]
    sizes = [perf_model.moved(side.how, *_DRAWN, int(row.batch)) for row in (few, many)]
    if many.median_us / few.median_us < 2 * sizes[1] / sizes[0]:
        return ""
    return (
        f" The {side.share:.0%} of {_name(side.how)} is arithmetic: from {counted(int(few.batch), 'token')} "
        f"to {many.batch} its time grows from {few.median_us:.1f} to {many.median_us:.1f} µs, and its bytes "
        f"by {sizes[1] / sizes[0] - 1:.0%}."
    )


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


def kink(every: Rows, mapped: Rows, timed: Rows, spec: Any) -> None:
    """Say up to how many tokens INT4 is ahead on the recording's GPU, by the law and measured; and where
    FP16's fastest way changes, which bends its curve in the explorer.
    """
    text = f"**The map by tokens, predicted.**{_ahead(mapped, timed, spec)}"
    mine = every[(every.gpu == spec.name) & (every.matrix == _CASE) & (every["format"] == "fp16")]
    mine = mine.sort_values("batch")
    for before, after in pairwise(mine.itertuples()):
        if before.way != after.way:
            names = [strategies.label("fp16", row.way) for row in (before, after)]
            text += (
                f" A curve jumps where the fastest way changes, as from {names[0]} at "
                f"{counted(before.batch, 'token')} to {names[1]} at {after.batch}."
            )
            break
    display.say(text)


def _ahead(mapped: Rows, timed: Rows, spec: Any) -> str:
    """Up to how many tokens INT4 is ahead of FP16 on the recording's GPU, by the law and measured."""
    mine = timed[(timed.n == _DRAWN[0]) & (timed.k == _DRAWN[1])]
    us = mine.pivot_table("median_us", "batch", "format", "min")
    if not set(_FORMATS) <= set(us) or spec.name not in set(mapped.gpu):
        return ""
    us = us[[*_FORMATS]].dropna()
    seen = max([0, *us.index[us["int4_g128"] < us["fp16"]]])
    said = int(mapped.set_index("gpu").ahead[spec.name])
    if seen == said or us.index.max() < said:
        return ""
    where = _short(spec.name)
    return f" It has INT4 ahead up to {counted(said, 'token')} on the {where}; measured, up to {seen}."
