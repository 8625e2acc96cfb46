"""What lesson 07's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import dispatch
from rooflab.analysis import strategies, unseen
from rooflab.hardware import crossover, perf_model
from rooflab.lab import Lab
from rooflab.ops.strategies import rung_for
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_07_choices import choices as choices
from rooflab.pages.lesson_07_choices import choose_all as choose_all
from rooflab.pages.lesson_07_choices import chosen as chosen
from rooflab.pages.lesson_07_choices import gains_over_plain as gains_over_plain
from rooflab.pages.lesson_07_choices import reverted_choice as reverted_choice
from rooflab.pages.lesson_07_clocks import flipped, published
from rooflab.studies import regimes
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import counted, listed

# The formats as the charts of time name them: each by its fastest fused kernel.
_FUSED = {"fp16": "FP16 cuBLAS", "int4_g128": "INT4 fused", "q8_0": "Q8_0 fused"}


def opening(rows: Rows, lab: Lab, n: int, k: int) -> Opening:
    """The first screen: who is fastest at how many tokens, by the kernels' own time."""
    best = strategies.winners(rows, (n, k))
    parts = []
    for _, part in best.groupby(best.label.ne(best.label.shift()).cumsum()):
        low, high = part.batch.iloc[0], part.batch.iloc[-1]
        parts.append(
            f"{part.label.iloc[0]} " + (f"from {low:,} to {high:,} tokens" if low < high else f"at {low:,}")
        )
    gpu = lab.run.gpu
    answer = f"On the {gpu}, for an {n:,} × {k:,} matrix, the fastest kernel is {listed(parts)}."
    found = strategies.crossovers(rows, (n, k), strategies.PAIRS[:1])
    spans = {
        row.clock: f"{row.low:.0f} and {row.high:.0f}" for row in found.itertuples() if row.kind == "crosses"
    }
    others = {clock: span for clock, span in spans.items() if span != spans.get("graph")}
    if "graph" in spans and others:
        pair, elsewhere = listed(strategies.PAIRS[0].names), next(iter(others.values()))
        answer += f" Where the call is timed, too, {pair} change places between {elsewhere} tokens instead "
        answer += f"of {spans['graph']}."
    answer += " Where the format is given, the choice is among its own kernels: see “The dispatcher”."
    able = (
        "say which kernel to use at how many tokens, and read it from a table of measured crossovers",
        "name the five things that a crossover belongs to",
        "recognise a comparison that timed launches instead of kernels",
    )
    kept = rows[(rows.clock == "graph") & (rows.n == n) & (rows.k == k)]
    title = f"{n:,} × {k:,}, by kernel time"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=3.0)
    drawn = []
    for format, label in _FUSED.items():
        one = strategies.fastest_fused(kept, format, (n, k))
        if len(one):
            drawn.append(one)
            plot.series(
                ax, one.batch, *plot.band(one, "median_us"), label=label, colour=plot.FORMAT_COLOURS[format]
            )
    gemv = strategies.of(kept, "fp16", "gemv", (n, k), "graph")
    if len(gemv):
        drawn.append(gemv)
        colour = plot.FORMAT_COLOURS["fp16"]
        plot.series(ax, gemv.batch, gemv.median_us, label="FP16 GEMV, 1 token", colour=colour)
    there, tokens = strategies.machine(lab), sorted({int(b) for one in drawn for b in one.batch})
    for format, name in strategies.PAIRS[0]:
        how = perf_model.strategy(format, name)
        least = [perf_model.bound(how, n, k, batch, there).us for batch in tokens]
        words = f"{strategies.label(format, '').strip()}: its bound"
        ax.plot(tokens, least, ":", color=plot.FORMAT_COLOURS[format], linewidth=1.6, label=words)
    plot.round_ticks(ax, steps=(1, 1.5, 2, 3, 5, 7))
    plot.round_ticks(ax, "x")
    for line in ax.lines:
        if line.get_gid() == "series":  # a dotted line is a bound
            line.set_linestyle("-")
    ax.legend(fontsize=8, frameon=False, ncols=2, loc="center left", bbox_to_anchor=(0.01, 0.32))
    says = f"{title} on {gpu}, {plot.dates(pd.concat(drawn))}. Solid, with markers: measured; dotted: the "
    says += "bound of FP16 and of INT4, the longer of bytes and FLOPs. "
    says += "INT4's and Q8_0's curve is the fastest fused kernel at each number of tokens, FP16's is cuBLAS."
    return answer, able, (fig, says)


def bounds(lab: Lab, n: int, k: int) -> Rows:
    """Every way to multiply: what it does, the unit that does its arithmetic, bytes and bound at one "
    "token, ridge."""
    unit = {"fp32": "FP32 lanes", "dp4a": "dp4a", "fp16_tensor": "FP16 tensor cores"}
    unit |= dict.fromkeys(perf_model.SCALING, "int8 tensor cores")
    there = strategies.machine(lab)
    bounds = []
    for w in perf_model.STRATEGIES:
        us = perf_model.bound(w, n, k, 1, there).us
        ridge = perf_model.ridge_batch(w, n, k, there)
        mb = perf_model.moved(w, n, k, 1) / 1e6
        within = ridge <= dispatch.most_tokens(w)
        name = strategies.label(w.format, w.name)
        bounds.append((name, w.says, unit[w.unit], w.plain, mb, us, ridge if within else None))
    return pd.DataFrame(bounds, columns=["way", "says", "unit", "plain", "mb", "us", "ridge"])


def two_bars(lab: Lab, n: int, k: int) -> None:
    """Draw the times of bytes and of FLOPs, by format, at one token and at the formats' ridges."""
    there = strategies.machine(lab)
    ways = [perf_model.strategy(*each) for each in strategies.PAIRS[0]]
    ridges = {perf_model.ridge_batch(how, n, k, there) for how in ways}

    def pair(how: perf_model.Strategy, batch: int) -> tuple[float, float]:
        moved = perf_model.moved(how, n, k, batch) / there.gb_s / 1e3
        return moved, perf_model.computed(how, n, k, batch, there.sms) / there.peak(how.unit) / 1e6

    tokens = sorted({1, *(int(each) for each in ridges if each == each and each < 4096)})
    rows = [(batch, [pair(how, batch) for how in ways]) for batch in tokens]
    names = [strategies.label(how.format, "").strip() for how in ways]
    diagram.bytes_and_flops(
        names, rows, "FLOPs grow faster than bytes: at a format's ridge both take as long"
    ).show()


def ridges(lab: Lab, n: int, k: int, gpu: str) -> None:
    """Draw the bounds of two ways over tokens: level while bytes decide, rising from the ridge on."""
    there, title = strategies.machine(lab), "What the bound says: bytes first, then FLOPs"
    fig, ax = plot.figure("tokens", "µs at least", title, xlog=True, ylog=True, height=3.0)
    tokens, said = [2**i for i in range(11)], []
    for format, name in strategies.PAIRS[0]:
        how, colour = perf_model.strategy(format, name), plot.FORMAT_COLOURS[format]
        ridge = perf_model.ridge_batch(how, n, k, there)
        at = sorted({*tokens, *([ridge] if ridge == ridge and ridge < tokens[-1] else [])})
        least = [perf_model.bound(how, n, k, batch, there).us for batch in at]
        ax.plot(at, least, color=colour, linewidth=2, label=strategies.label(format, name))
        flops = [perf_model.computed(how, n, k, b, there.sms) / there.peak(how.unit) / 1e6 for b in at]
        ax.plot(at, flops, color=colour, linewidth=1, linestyle=":")
        if ridge in at:
            us = least[at.index(ridge)]
            ax.plot([ridge], [us], "o", color=colour, markersize=7)
            words = {"textcoords": "offset points", "fontsize": 8.5, "color": colour, "ha": "right"}
            ax.annotate(f"ridge: {ridge:,.0f} tokens", (ridge, us), (-4, 7), **words)
            said.append(f"{strategies.label(format, name)} {ridge:,.0f}")
    ax.set_ylim(bottom=0.4 * min(min(line.get_ydata()[:1]) for line in ax.lines[::3]))
    plot.round_ticks(ax)
    plot.round_ticks(ax, "x")
    ax.legend(fontsize=8.5, frameon=False, loc="upper left")
    text = f"{title}, {n:,} × {k:,} on {gpu}; dotted: FLOPs alone. "
    plot.show(
        fig, text + (f"The ridge is at, in tokens: {', '.join(said)}." if said else "No ridge is drawn.")
    )


def bounds_table(bounds: Rows, n: int, k: int, gpu: str) -> None:
    """Say what the bound predicts; every way's bound and ridge, folded."""
    heads = {"way": "kernel", "says": "what it does", "unit": "arithmetic on", "mb": "MB, one token"}
    heads |= {"us": "bound, µs", "ridge": "ridge, tokens"}
    forms = {"mb": "{:,.1f}", "us": "{:.2f}", "ridge": "{:,.0f}"}
    bound = bounds.set_index("way").us
    gain = bound["FP16 cuBLAS"] / bound["INT4 fused"]
    display.say(
        f"**Prediction:** at one token INT4 fused is {gain:.1f} times as fast as FP16 cuBLAS, because it "
        "reads fewer bytes. Its time begins to rise at fewer tokens, because its FLOPs are the same; where "
        "FLOPs decide, both take the same time, and INT4 never loses."
    )
    plain = listed(f"{name}" for name in bounds[bounds.plain].way)
    caption = (
        f"{n:,} × {k:,} on {gpu}, by the bound alone. An empty ridge: the kernel is chosen for fewer tokens, "
        "or has none, as the loop, which reads the weights again for each token. Two-op's ridge: where "
        "multiplying takes longer than unpacking. A ridge of 1: the kernel computes whole tiles of many "
        f"tokens, full or not. A library's kernel multiplies in {plain}."
    )
    title = f"All {len(bounds)} kernels: what each does, and its bound"
    display.fold(title, [(bounds, heads, forms, caption)])


def sweep(
    lab: Lab, shape: Any, read: float, n: int, k: int
) -> tuple[Rows, list[Any], dict[Any, Any], Rows, Any]:
    """All races' rows, the matrices looked at, the fused kernel's sweep on each, its crossover with cuBLAS,
    and the number of tokens from which the published one is behind.
    """
    rows = strategies.gather(lab, shape)
    matrices = list(dict.fromkeys([shape, *regimes.SOURCE]))
    swept = {each: strategies.sweep(rows, each, read) for each in matrices}
    swept = {each: table[table.batch.isin(regimes.BATCHES)] for each, table in swept.items()}
    kernels = strategies.crossovers(rows, shape, strategies.PAIRS[:1], regimes.CLOCKS[:1])
    theirs = published(n, k)
    behind = theirs[theirs.fused > theirs.cublas].index.min() if len(theirs) else None
    return rows, matrices, swept, kernels, behind


def over_bound(lab: Lab, rows: Rows, shape: Any, gpu: str, n: int, k: int) -> None:
    """Draw how many times its own bound each format's fastest kernel takes, and INT4 two-op."""
    title = "Measured time over the bound"
    fig, ax = plot.figure("tokens", "times the bound", title, xlog=True, height=3.4)
    there, kept, said, seen = strategies.machine(lab), rows[rows.clock == "graph"], [], []
    drawn = [(f, name, strategies.fastest_fused(kept, f, shape)) for f, name in _FUSED.items()]
    two_op = strategies.of(rows, "int4_g128", "two_op", shape, "graph")
    drawn.append(("int4_g128", strategies.label("int4_g128", "two_op"), two_op))
    for format, name, mine in drawn:
        if mine.empty:
            continue
        least = [
            perf_model.bound(perf_model.strategy(format, impl), n, k, int(batch), there).us
            for impl, batch in zip(mine.impl, mine.batch, strict=True)
        ]
        times = mine.median_us / least
        plot.series(ax, mine.batch, times, label=name, colour=plot.FORMAT_COLOURS[format])
        said.append((times.max(), name, int(mine.batch[times.idxmax()])))
        seen.append(mine)
    ax.axhline(1.0, color=plot.ROOF_COLOUR, linewidth=1)
    ax.set_ylim(bottom=0)
    ax.set_xticks(regimes.BATCHES, [str(b) for b in regimes.BATCHES])
    plot.label_ends(ax)
    most, name, tokens = max(said)
    says = f"{title}, {n:,} × {k:,} on {gpu}, {plot.dates(pd.concat(seen))}; each kernel has a bound of its "
    says += f"own. Of these the farthest from it: {name}, {most:.1f} times at {counted(tokens, 'token')}. A "
    plot.show(
        fig,
        f"{says}low curve is near its bound, not fast: two-op's bound has the bytes of writing FP16 weights.",
    )


def prediction_judged(
    bounds: Rows, swept: dict[Any, Any], shape: Any, kernels: Rows, lab: Lab, rows: Rows
) -> None:
    """Say what became of the bound's prediction: the gain at one token, where the time rises, who loses."""
    by, table = bounds.set_index("way"), swept[shape].set_index("batch").sort_index()
    if 1 not in table.index:
        return
    names = ("INT4 fused", "FP16 cuBLAS")
    least = [by.us[name] for name in names]
    took = [table.loc[1, column] for column in ("fused_median_us", "fp16_gemm_median_us")]
    lines = [
        f"**Predicted {least[1] / least[0]:.1f} times at one token, measured {took[1] / took[0]:.2f}.** "
        f"{names[0]} takes {took[0]:.2f} µs where its bytes need {least[0]:.2f}, {names[1]} {took[1]:.2f} "
        f"where they need {least[1]:.2f}."
    ]
    if took[0] / least[0] > took[1] / least[1]:
        lines[0] += " What a kernel takes beyond its bytes weighs more on the shorter one."
    gemv = strategies.of(rows, "fp16", "gemv", shape, "graph")
    if len(gemv):
        us = gemv.median_us.iloc[0]
        lines[0] += f" Our FP16 GEMV, which takes one token alone, needs {us:.2f} µs: over it INT4's gain is "
        lines[0] += f"{us / took[0]:.2f}."
    fused, ridge = table["fused_median_us"], by.ridge[names[0]]
    rising = fused.index[fused > 1.1 * fused.loc[1]]
    if len(rising) and rising[0] < ridge:
        lines.append(_early(fused, int(rising[0]), ridge, shape, lab))
    if any(row.kind == "crosses" for row in kernels.itertuples()):
        lines.append(
            "**“INT4 never loses” does not hold.** The bound leaves out the instructions that unpack INT4 "
            "weights ([04b](04b_ladder.ipynb) counts them at one token); FP16 weights need none. How much of "
            "the loss they cause was not counted."
        )
    display.say("\n".join(f"- {line}" for line in lines))


def _early(fused: Any, tokens: int, ridge: float, shape: Any, lab: Lab) -> str:
    """That INT4's time rises before its ridge, and whether another rung runs from there on."""
    slug, how = lab.spec.slug if lab.spec else None, perf_model.strategy("int4_g128", "fused")
    text = f"**INT4's time rises from {counted(tokens, 'token')} on, before its ridge at {ridge:,.0f}**: "
    text += f"{fused.loc[1]:.2f} µs at one token, {fused.loc[tokens]:.2f} at {tokens}. "
    rungs = [found[0].name if (found := rung_for(how, *shape, b, slug)) else "" for b in (1, tokens)]
    if rungs[0] != rungs[1]:
        text += f"INT4 fused is a ladder of rungs ([04](04_int4.ipynb)): `{rungs[0]}` runs at one token, "
        text += f"`{rungs[1]}` at {tokens}. "
    text += "What the time goes into was not counted here; [04c](04c_batch.ipynb) shows what "
    return f"{text}counters tell of INT4 fused."


def all_columns(swept: dict[Any, Any], gpu: str) -> None:
    """Show every column of the published sweep for two matrices, folded."""
    times = {"batch": "tokens"}
    for name, head in (("two_op", "two-op"), ("fused", "fused"), ("fp16_gemm", "FP16")):
        times[f"{name}_median_us"] = f"{head}, µs"
        times[f"{name}_iqr_us"] = f"{head} q3 - q1"
    times |= {"speedup_vs_two_op": "× two-op", "speedup_vs_fp16_gemm": "× FP16"}
    rates = {"batch": "tokens", "fused_effective_GBps": "fused, GB/s"}
    rates |= {"fused_pct_roofline": "% of the read roof", "two_op_effective_GBps": "two-op, GB/s"}
    rates |= {"fp16_gemm_effective_GBps": "FP16, GB/s", "correctness_max_abs": "largest error, fused"}
    forms = dict.fromkeys(times, "{:.2f}") | {"batch": "{:,}"}
    rounded = dict.fromkeys(rates, "{:,.0f}") | {"correctness_max_abs": "{:.1e}"}
    inside = []
    for (n, k), table in swept.items():
        title = f"Times, {n:,} × {k:,}, {gpu}, at powers of two; the chart has other numbers of tokens, too"
        inside.append((table, times, forms, title))
        title = f"The same rows as rates, {n:,} × {k:,}, by the bytes each moves"
        inside.append((table, rates, rounded, title))
    display.fold(f"All columns: times, quartiles, rates and errors of {len(swept)} matrices", inside)


def spread(rows: Rows, lab: Lab) -> None:
    """Say how far apart the quartiles are by each clock, and how warm the GPU was."""
    spread = rows[rows.study == "regimes"].copy()
    spread["iqr"] = 100 * (spread.q3_us - spread.q1_us) / spread.median_us
    quiet = spread.groupby("clock", sort=False).iqr.agg(["median", "max", "size"])
    lines = [
        f"by `{clock}` {row['median']:.1f}% in the middle, {row['max']:.0f}% at worst of "
        f"{row['size']:.0f} rows"
        for clock, row in quiet.iterrows()
    ]
    hot = lab.run_of("regimes")
    warm, end = hot.temperature_before_c, hot.temperature_after_c
    after = f" and {end:.0f} °C after" if pd.notna(end) else ", which was interrupted and resumed"
    display.fold_items(
        "How far apart samples are, and when two kernels are level",
        [
            f"Quartiles: {'; '.join(lines)}.",
            f"The GPU had {warm:.0f} °C before the run{after}.",
            f"Two kernels are level if their medians lie within {crossover.LEVEL - 1:.0%} of each other, or "
            "their quartiles overlap.",
        ],
    )


def gains_by_format(gains: dict[str, Any], rows: Rows) -> None:
    """Say how much faster than FP16 by cuBLAS each format is at one token and at the most, and how much
    faster than the FP16 GEMV at one token.
    """
    for format, gain in gains.items():
        sizes = [c for c in gain.columns if isinstance(c, int)]
        if not sizes:
            display.say(f"No race of {strategies.label(format, 'ways')} was recorded.")
            continue
        last = max(sizes)
        words = strategies.standings(rows, format, last)
        ahead, level, lost = (
            words.count(word) for word in (crossover.FIRST, crossover.NEITHER, crossover.SECOND)
        )
        display.say(
            f"**At one token {strategies.label(format, 'is')} {gain[1].min():.1f} to "
            f"{gain[1].max():.1f} times as fast as FP16 cuBLAS. At {last} tokens, on {len(words)} matrices, "
            f"it is ahead on {ahead}, level on {level} and behind on {lost}.**"
        )
    display.say(
        f"*Level*, here and below, is [part 00a](00a_environment.ipynb)'s word: medians within "
        f"{crossover.LEVEL - 1:.0%} of each other, or quartiles that overlap."
    )
    if text := _over_gemv(gains, rows):
        display.say(text)


def _over_gemv(gains: dict[str, Any], rows: Rows) -> str:
    """What is left of the formats' gains at one token over the FP16 GEMV, in words; nothing without it."""
    parts = []
    for format, gain in gains.items():
        over = strategies.over_gemv(gain, rows)
        if len(over):
            lost = over[over < 1 / crossover.LEVEL]
            text = strategies.label(format, f"is {over.min():.1f} to {over.max():.1f} times as fast")
            if len(lost):
                text += f", behind on {listed([f'{n:,} × {k:,}' for n, k in lost.index])}"
            parts.append(text)
    return f"Over our FP16 GEMV, which takes one token alone, {'; '.join(parts)}." if parts else ""


def gains_by_matrix(gains: dict[str, Any], gpu: str, rows: Rows) -> None:
    """Draw both formats' gain over FP16 by tokens, the median matrix and the range; by matrix, folded."""
    title = "Times as fast as FP16 cuBLAS, over all matrices"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True, ylog=True, height=2.9)
    said = []
    for format, gain in gains.items():
        sizes = [c for c in gain.columns if isinstance(c, int) and gain[c].notna().mean() > 0.5]
        if not sizes:
            continue
        values, name = gain[sizes], strategies.label(format, "").strip()
        ends = (values.min(), values.max())
        plot.series(ax, sizes, values.median(), *ends, label=name, colour=plot.FORMAT_COLOURS.get(format, ""))
        first, last = values.median().iloc[[0, -1]]
        said.append(f"{name} {first:.2f} at {counted(sizes[0], 'token')}, {last:.2f} at {sizes[-1]}")
        over = strategies.over_gemv(gain, rows)
        if len(over):
            ends, colour = [[over.min()], [over.max()]], plot.FORMAT_COLOURS.get(format, "")
            at = 0.9 - 0.06 * len(said)  # left of one token, side by side
            ax.vlines([at], *ends, color=colour, linewidth=1)
            ax.plot([at], [over.median()], "x", color=colour, label=f"{name} over FP16 GEMV")
    ax.axhline(1.0, color=plot.ROOF_COLOUR, linewidth=1)
    plot.round_ticks(ax, steps=(1, 1.5, 2, 3, 5, 7))
    plot.round_ticks(ax, "x")
    ax.set_ylim(top=1.6 * ax.get_ylim()[1])  # room for the legend
    ax.legend(fontsize=8.5, frameon=False, loc="upper right", ncols=2)
    if said:
        text = f"{title}, {gpu}; medians: {'; '.join(said)}. The bands go from the least to the most"
        crosses = any(len(strategies.over_gemv(gain, rows)) for gain in gains.values())
        plot.show(fig, text + ", as do the lines at the left, over our FP16 GEMV" * crosses + ".")

    def laid_out(format: str) -> Any:
        """display.table's arguments for a format."""
        gain = gains[format].copy()
        gain["matrix"] = [f"{n:,} × {k:,}" for n, k in zip(gain.n, gain.k, strict=True)]
        sizes = [c for c in gain.columns if isinstance(c, int)]
        heads = {"matrix": "matrix", "mb": "MB in FP16"} | {b: f"{b:,}" for b in sizes}
        forms = {"mb": "{:,.0f}"} | dict.fromkeys(sizes, "{:.2f}")
        return gain, heads, forms, f"{strategies.label(format, 'over FP16 cuBLAS by tokens')}, {gpu}"

    display.fold("Matrix by matrix", [laid_out(format) for format in gains])


def takeaway(wide: Rows, gpu: str, n_asked: int, k: int, drawn: Rows) -> None:
    """What to take away, computed."""
    flips = len(flipped(wide))
    text = "- A crossover belongs to two kernels, a shape, a GPU *and a clock*. "
    text += "A comparison that lacks one of the five cannot be repeated. "
    text += f"On the {gpu}, {n_asked:,} × {k:,}, {flips} of {len(wide)} pairs of kernels end differently by "
    text += "another clock.\n"
    text += "- Weights are held in few orders, and the order decides which kernels can be chosen.\n"
    if len(drawn):
        text += f"- On {len(unseen.won(drawn))} of {len(drawn)} shapes not tuned for ours is no slower than "
        text += "the fastest library recorded: test a kernel on shapes that it has not seen."
    display.say(text.strip())


def explore(rows: Rows, k_asked: int, gpu: str, n_asked: int, lab: Lab) -> Any:
    """The explorer of every way, by matrix and clock."""
    shown = rows[(rows.study == "regimes") & ((rows.clock == "graph") | (rows.k == k_asked))]
    shown = shown.assign(matrix=[f"{n} x {k}" for n, k in zip(shown.n, shown.k, strict=True)])
    return explorer.Explorer(
        "ways",
        shown,
        x="batch",
        y="median_us",
        controls={"label": "Kernel", "matrix": "Matrix", "clock": "Clock"},
        labels={"batch": "tokens"},
        ylog=True,
        title=f"Products on {gpu}",
        start={"label": "INT4 fused", "matrix": f"{n_asked} x {k_asked}", "clock": "graph", "batch": 1},
        measure=explorer.measurer(lab),
    )
