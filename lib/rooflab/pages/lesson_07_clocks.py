"""What lesson 07 shows of clocks: where kernels cross by each, and what a call costs beside its kernel."""

from __future__ import annotations

from typing import Any

import pandas as pd

import rooflab.lab
from rooflab.analysis import strategies
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import regimes
from rooflab.view import display, plot
from rooflab.words import listed


def crossover_by_clock(crossings: Rows, rows: Rows, shape: Any, n_asked: int, k: int) -> None:
    """Say where INT4 and FP16 cross by each clock, and which clock to use."""
    found = crossings[(crossings["first"] == "INT4 fused") & (crossings["second"] == "FP16 cuBLAS")]
    by = found.set_index("clock")
    same: dict[tuple[str, ...], list[str]] = {}  # the clocks that agree, by what they say
    for clock, row in by.iterrows():
        same.setdefault((str(row.kind), str(row.low), str(row.high)), []).append(str(clock))
    text = ""
    for clocks in same.values():
        names = listed(f"`{clock}`" for clock in clocks)
        text += f"- by {names}: {found_words(by.loc[clocks[0]])}"
        text += "".join(_undecided(rows, shape, clock) for clock in clocks) + "\n"
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
            "kernels alone; a program that calls every product from Python pays for the calls as well."
        )
    display.say(f"INT4 fused against cuBLAS in FP16, {n_asked:,} × {k:,}:\n\n{text}")


def found_words(row: Any) -> str:
    """What a race of INT4 fused and FP16 cuBLAS comes to by a clock."""
    if row.kind in (crossover.FIRST, crossover.SECOND):
        ahead = "INT4 fused" if row.kind == crossover.FIRST else "FP16 cuBLAS"
        return f"{ahead} is ahead, or level, at every measured number of tokens"
    return str(row.says).replace(f"near {row['at']:.1f})", f"near {row['at']:.0f})")


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
        f". At {both.max()} tokens by `{clock}` its median speed is {gain:.2f} times cuBLAS's, but the "
        "quartiles of the two overlap, so their order is not decided"
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
    plot.round_ticks(ax, steps=(1, 1.5, 2, 3, 5, 8))
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
            f"By the wall a call of ours takes {ours.wall:.0f} µs (the median over all numbers of tokens) "
            "where "
            f"the kernel alone takes {ours.graph:.0f}, "
            f"one of torch's cuBLAS {torchs.wall:.0f} where it takes {torchs.graph:.0f}"
            f"{': most of both is the call' if hidden else ''}. "
            "Besides the launch our call checks operands, picks a rung and packs arguments."
        )
        caption = (
            f"One product, {n:,} × {k:,}, each column's median over undisturbed numbers of tokens, so the "
        )
        caption += "last is not the difference of two others"
        display.fold("What a call costs, kernel by kernel", [(cost, heads, forms, caption)])


def flipped(wide: Rows) -> Rows:
    """The pairs of ways, of strategies.by_clock, that do not cross at the same tokens by every clock."""
    plain = {strategies.UNDECIDED: strategies.WINS}
    ends = wide.iloc[:, 2:].astype(str).replace(plain, regex=True)
    return wide[ends.nunique(axis=1) > 1]


def races_by_clock(wide: Rows, n_asked: int, k_asked: int, gpu: str, matrices: list[Any], rows: Rows) -> None:
    """Say how many pairs of ways end differently by another clock; each, by clock and matrix, folded."""
    heads = {"first": "few tokens", "second": "many tokens"}
    heads |= {clock: clock for clock in wide.columns[2:]}
    races = flipped(wide)
    display.say(
        f"Of {len(wide)} pairs of kernels raced by these clocks, {len(races)} have another winner, or "
        "another crossover, by another clock."
    )
    how = (
        "The first kernel is made for few tokens, the second for many. “64 to 96”: the first is ahead at 64 "
    )
    how += "tokens, the second at 96. “First wins”: it is ahead at every measured number; “first ahead or "
    how += "undecided”: at some, and level at the others. “Level”: no number of tokens decides. “No order”: "
    how += "they change places more than once, or the second is ahead at few tokens and the first at many."
    caption = f"From how many tokens on, {n_asked:,} × {k_asked:,}, {gpu}. {how}"
    inside = [(wide, heads, None, caption)]
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
    display.fold("Every race, by clock and matrix", inside)
    passes = []
    for n, k in matrices[1:]:
        tokens = ", ".join(map(str, strategies.disturbed(rows, (n, k))["batch"]))
        passes += [f"{n:,} × {k:,} at {tokens} tokens"] if tokens else []
    if passes:
        display.say(f"There, too, something disturbed a host's clock: {'; '.join(passes)}.")


def launch_a_token(lab: Lab, shape: Any, n: int, k: int, gpu: str, behind: Any) -> None:
    """Say where the published kernel was ahead on its laptop, and what a launch a token costs here."""
    store, text = lab.store.read("int4"), ""
    if not pd.isna(behind):
        theirs = published(n, k)
        ahead = "ahead of FP16 at one token and " if (theirs.fused < theirs.cublas).get(1, False) else ""
        text = (
            "In the sweep that decode-roofline, lesson 04's project, published of a laptop, its own kernel, "
        )
        text += "*INT4 loop*, is "
        text += f"{ahead}behind from {behind} on. "
    text += "**INT4 loop is launched, and reads the weights, once for every token**"
    text += _read_again(store, shape, gpu) if len(store) else ""
    display.say(f"{text}. What the laptop's clock added is asked in [04d](04d_published.ipynb).")


def _read_again(store: Rows, shape: Any, gpu: str) -> str:
    """What two launches of the source's kernel take by the graph clock, from DRAM, beside one, in words."""
    mine = store[(store["n"] == shape[0]) & (store["k"] == shape[1])]
    mine = mine[(mine["clock"] == "graph") & (mine["cache"] == "cold") & mine["batch"].isin((1, 2))]
    loops = mine[mine["options"].astype(str).str.contains("loop=1")].drop_duplicates("batch")
    halves = mine[mine["impl"] == "torch.matmul"].drop_duplicates("batch")
    us, other = (part.set_index("batch")["median_us"] for part in (loops, halves))
    if not ({1, 2} <= set(us.index) & set(other.index) and us[2] > 1.5 * us[1]):
        return ""
    text = (
        f": {us[1]:.1f} µs for one on the {gpu}, kernels alone, and {us[2]:.1f} for two. FP16 cuBLAS, timed "
        f"beside it and not in this page's sweep, takes {other[1]:.1f} and {other[2]:.1f}"
    )
    if us[1] > crossover.LEVEL * other[1]:
        text += ". So here it is behind from the first token, and its time grows with the tokens"
    return text


def published(n: int, k: int) -> Rows:
    """The laptop's published sweep of a matrix: us by tokens, columns fused and cublas; empty without
    both.
    """
    rows = rooflab.lab.open("replay", "rtx-4070-laptop-published").store.read("regimes")
    wide = rows[(rows.n == n) & (rows.k == k)].pivot_table("median_us", "batch", "impl")
    return wide if {"fused", "cublas"} <= set(wide) else pd.DataFrame()
