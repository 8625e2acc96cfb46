"""What lesson 07 shows of clocks: where kernels cross by each, and what a call costs beside its kernel."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import strategies
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import regimes
from rooflab.view import display, plot


def crossover_by_clock(crossings: Rows, rows: Rows, shape: Any, n_asked: int, k: int) -> None:
    """Say where INT4 and FP16 cross by each clock, and which clock to use."""
    found = crossings[(crossings["first"] == "INT4 fused") & (crossings["second"] == "FP16 cuBLAS")]
    by = found.set_index("clock")
    text = "".join(f"- by `{c}`: {row.says}{_undecided(rows, shape, str(c))}\n" for c, row in by.iterrows())
    impossible = strategies.disturbed(rows, shape)
    if len(impossible):
        tokens = ", ".join(map(str, impossible["batch"]))
        text += (
            f"\nAt {tokens} tokens {impossible['disturbed'].sum()} of {impossible['pairs'].sum()} kernels "
            "took "
            "longer by `event` than by `wall`, which a call cannot: something else kept the host busy in one "
            "of the two passes. What these clocks say of who is ahead there is not worth much.\n"
        )
    if len(set(zip(by.kind, by.low, by.high, strict=True))) > 1:
        text += (
            "\nThe clocks disagree, because each times something else. "
            "**Use the clock that your program pays**: a decoder captured in a graph pays for the "
            "kernels alone; a program that calls every product from Python pays for the calls as well, and "
            "gains most by capturing them."
        )
    display.say(f"INT4 fused against cuBLAS in FP16, {n_asked:,} × {k:,}:\n\n{text}")


def _undecided(rows: Rows, shape: Any, clock: str) -> str:
    """Whether at the most tokens the medians are apart though the race is not decided, in words or not."""
    fused = strategies.of(rows, "int4_g128", "fused", shape, clock).set_index("batch")
    halves = strategies.of(rows, "fp16", "cublas", shape, clock).set_index("batch")
    both = fused.index.intersection(halves.index)
    if both.empty:
        return ""
    a, b = fused.loc[both.max()], halves.loc[both.max()]
    gain = b.median_us / a.median_us
    if not display.level(a, b) or 1 / crossover.LEVEL <= gain <= crossover.LEVEL:
        return ""
    return (
        f". At {both.max()} tokens its median speed is {gain:.2f} times cuBLAS's, but the quartiles of "
        "the two overlap, so their order is not decided"
    )


def gain_by_clock(rows: Rows, shape: Any, gpu: str, n: int, k: int) -> None:
    """Draw INT4's gain over FP16 by tokens, a curve a clock."""
    title = "INT4 fused over FP16 cuBLAS, by clock"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True, ylog=True)
    pairs = []
    for clock in regimes.CLOCKS:
        fused = strategies.of(rows, "int4_g128", "fused", shape, clock).set_index("batch")
        halves = strategies.of(rows, "fp16", "cublas", shape, clock).set_index("batch")
        both = fused.index.intersection(halves.index)
        if len(both):
            ratio = halves.loc[both, "median_us"] / fused.loc[both, "median_us"]
            colour = plot.COLOURS[2 + len(pairs)]  # those of formats are taken
            plot.series(ax, both, ratio, label=clock, colour=colour)
            pairs.append((clock, ratio.iloc[0], ratio.iloc[-1]))
    plot.roof_line(ax, 1.0, "level")
    ax.set_xticks(regimes.BATCHES, [str(b) for b in regimes.BATCHES])
    plot.round_ticks(ax)
    plot.label_ends(ax)
    ends = "; ".join(f"{clock} {a:.2f} at the left, {b:.2f} at the right" for clock, a, b in pairs)
    plot.show(fig, f"{title} on {gpu}, {plot.dates(rows)}, {n:,} × {k:,}: {ends}.")


def cost_of_a_call(cost: Rows, n: int, k: int) -> None:
    """Say what a call costs beside its kernel; every kernel folded."""
    heads = {"label": "kernel", "graph": "graph, µs", "event": "event, µs", "wall": "wall, µs"}
    heads |= {"wall_more": "wall - graph, µs"}
    forms = dict.fromkeys(("graph", "event", "wall", "wall_more"), "{:.1f}")
    call = cost.set_index("label")
    if {"INT4 fused", "FP16 cuBLAS"} <= set(call.index):
        ours, torchs = (call.loc[name] for name in ("INT4 fused", "FP16 cuBLAS"))
        hidden = min(side.wall_more - side.graph for side in (ours, torchs)) > 0
        display.say(
            f"By the wall a call of ours takes {ours.wall:.0f} µs where the kernel alone "
            f"takes {ours.graph:.0f}, "
            f"one of torch's cuBLAS {torchs.wall:.0f} where it takes {torchs.graph:.0f}"
            f"{'; for kernels this short the call takes longer' if hidden else ''}. "
            "Checking operands, picking a rung and packing arguments takes time, too."
        )
        caption = f"One product, {n:,} × {k:,}, each column's median over undisturbed numbers of tokens"
        display.fold("What a call costs, kernel by kernel", [(cost, heads, forms, caption)])


def flipped(wide: Rows) -> Rows:
    """The pairs of ways, of strategies.by_clock, that do not cross at the same tokens by every clock."""
    return wide[[len({str(v) for v in row[2:]}) > 1 for row in wide.itertuples(index=False)]]


def races_by_clock(wide: Rows, n_asked: int, k_asked: int, gpu: str, matrices: list[Any], rows: Rows) -> None:
    """Show where each pair of ways crosses by each clock, folded, and say how many races end differently."""
    heads = {"first": "few tokens", "second": "many tokens"}
    heads |= {clock: clock for clock in wide.columns[2:]}
    caption = f"From how many tokens on, {n_asked:,} × {k_asked:,}, {gpu}"
    display.table(wide, heads, None, caption, folded=True)
    races = flipped(wide)
    pairs = [f"{row[0]} against {row[1]}" for row in races.itertuples(index=False)]
    differ = f"{len(races)} of {len(wide)} races end differently by another clock"
    display.say(f"{differ}: {'; '.join(pairs) or 'none'}.")
    inside = []
    for n, k in matrices[1:]:
        found = strategies.by_clock(strategies.crossovers(rows, (n, k)))
        inside.append((found, heads, None, f"From how many tokens on, {n:,} × {k:,}, {gpu}"))
    others = []
    for n, k in regimes.CLOCKED:
        found = strategies.by_clock(strategies.crossovers(rows, (n, k), strategies.PAIRS[:1]))
        if set(found.columns) >= set(regimes.CLOCKS):
            others.append(found.assign(matrix=f"{n:,} × {k:,}"))
    if others:
        title = f"From how many tokens on, matrices of other model families, {gpu}"
        inside.append((pd.concat(others), {"matrix": "matrix"} | heads, None, title))
    display.fold("The same races on other matrices", inside)
    passes = []
    for n, k in matrices[1:]:
        tokens = ", ".join(map(str, strategies.disturbed(rows, (n, k))["batch"]))
        passes += [f"{n:,} × {k:,} at {tokens} tokens"] if tokens else []
    if passes:
        display.say(f"There, too, something disturbed a host's clock: {'; '.join(passes)}.")


def launch_a_token(lab: Lab, shape: Any, n: int, k: int, gpu: str, behind: Any) -> None:
    """Show where a launch a token crosses FP16, by clock and cache."""
    store = lab.store.read("int4")
    if len(store):
        loops = strategies.loop_crossovers(store, shape)
        heads = {"clock": "clock", "cache": "cache", "says": "found"}
        display.table(loops, heads, caption=f"A launch a token against FP16, {n:,} × {k:,}, {gpu}")
        if len(loops) > 1 and loops["kind"].eq(crossover.SECOND).all():
            display.say(
                "All of these clocks and caches agree here: a launch a token reads the weights once for each "
                "token, and is at no measured number of tokens faster than FP16."
            )
    if pd.notna(behind):
        display.say(
            f"Published for the laptop: behind from {behind} tokens on, by events. "
            "The event clock includes what a call costs, and so does that crossover."
        )
