"""What lesson 04c shows of its INT4 products beside other libraries and beside goals set before."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.analysis import states
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import int4 as study
from rooflab.view import display
from rooflab.words import counted, listed


def against_peers(rows: Rows, shapes: list[Any], some: list[Any]) -> None:
    """Say at how many points ours is ahead of its peers; how many times as fast as the fastest, folded."""
    times = rows.pivot(index=["n", "k", "batch"], columns="who", values="median_us")
    peers = [c for c in times if c not in ("ours", "FP16 cuBLAS", "two-op")]
    ahead = (times[peers].min(axis=1) / times["ours"]).dropna()
    if ahead.empty:
        return
    table = pd.DataFrame({"shape": [f"{n:,} × {k:,}" for n, k in shapes]})
    for b in some:
        each = [ahead.get((n, k, b)) for n, k in shapes]
        table[f"b{b}"] = ["no peer" if one is None else f"{one:.2f}" for one in each]
    names = {"shape": "n × k"} | {f"b{b}": counted(b, "token") for b in some}
    seen = {name: n for name in peers if (n := times[name].count())}
    few = {name: n for name, n in seen.items() if n < len(ahead)}
    text = "Against other INT4 kernels: ours is faster than "
    text += f"{listed([name for name in seen if name not in few]) or 'any peer'} at {(ahead > 1).sum()} of "
    text += f"{len(ahead)} points (a shape at a number of tokens), at "
    text += f"{ahead.min():.2f} to {ahead.max():.2f} times the speed of the fastest."
    display.say(text)
    title = "How many times as fast as the fastest peer"
    display.table(table, names, {}, title, True)


def states_compared(here: Lab, gpu: str) -> None:
    """Show, folded, the duel with the fastest peer, rested and sustained."""
    both = states.duels(display.power_rows(here, "int4"), "int4")
    title = "Speed of ours over the fastest recorded peer's, in a burst and sustained (part 00b)"
    title += f", {gpu}; timed in runs of its own, so not the times above"
    display.table(both, states.DUEL, states.DUEL_FORMATS, title, folded=True)


def goals(here: Lab, rows: Rows, gpu: str, shapes: list[Any]) -> None:
    """Show, folded, the floors and aims that were set before the kernels, and how many were reached."""
    square = [c for c in here.cases("int4") if (c.n, c.k) == study.SQUARE]
    squared = here.measure("int4", square) if square else rows[:0]
    goals = claims.select("04c_batch", source=claims.COURSE)
    evidence = claims.Evidence(here.store, {"int4": pd.concat([rows, squared])})
    board = claims.board(goals, evidence)
    met = board["word"].eq(claims.HOLDS).groupby(board["group"]).agg(["sum", "size"])
    kinds = [kind for kind in ("floor", "aim") if kind in met.index]
    counts = [f"{met['sum'][kind]} of {met['size'][kind]} {kind}s" for kind in kinds]
    board["met"] = board["word"].replace({claims.HOLDS: "yes", claims.SHORT: "no"})
    board["what"] = board["says"] + ": " + board["quantity"]
    names = {"group": "Kind", "what": "What", "bars": "Asked"}
    names |= {"measured": "Reached", "met": "Met"}
    board["bars"] = board["bars"].str.replace(" ", "\u00a0")
    title = f"Goals set before the kernels were written: {listed(counts)} met on {gpu}"
    alone = f"{study.SQUARE[0]:,} × {study.SQUARE[1]:,} is timed for one goal alone; it is none of this "
    alone += "page's shapes."
    notes = [alone] if study.SQUARE not in shapes else []
    display.fold_parts(title, [*notes, (board, names, {})])
