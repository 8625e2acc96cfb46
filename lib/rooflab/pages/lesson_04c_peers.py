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

_ALLOWED = (
    "Ours may err twice as much as FP16 weights in cuBLAS. The others are judged more leniently, so that "
    "none is missing for that reason: tinygemm multiplies in BF16 and is judged by that; humming quantises "
    "our weights by itself and is judged on what it then holds; it and gemlite, another library, may "
    "add partial sums in FP16, and are allowed eight times our error. "
    "The largest error of each, as a share of the allowed one:"
)

_REACHED = {"kind": "Goals", "met": "Met", "miss": "Missed by most"}


def gated_points(
    shapes: list[Any], batches: list[Any], here: Lab, rungs: Any
) -> tuple[Rows, dict[str, Any], str]:
    """Name who is over the allowed error; the rows, contestants' names, and how near each comes to it."""
    cases = [c for n, k in shapes for c in study.batches(n, k, batches, here.sized)]
    rows = here.measure("int4", cases)
    rows["who"] = rows["impl"].where(rows["kind"] != "own", "ours")
    titles = {"torch.matmul": "FP16 cuBLAS", study.TINYGEMM: "tinygemm", study.TWO_OP: "two-op"}
    rows["who"] = rows["who"].replace(titles)
    rows["shape"] = [f"{n:,} × {k:,}" for n, k in zip(rows["n"], rows["k"], strict=True)]
    rows["of"] = rows["error"] / rows["error_budget"]
    judged = rows.groupby("who", sort=False).agg(points=("of", "size"), most=("of", "max"))
    over = judged.index[~(judged["most"] <= 1)]
    text = f"**Over the allowed error: {', '.join(over)}.** " if len(over) else ""
    absent = sorted({c.impl for c in cases} - set(rows["impl"]) - {r.name for r in rungs})
    if text:
        display.say(text.strip())
    lines = [f"{c.Index}: {counted(c.points, 'output')}, at most {c.most:.2f}" for c in judged.itertuples()]
    lines += [f"not installed on that machine: {', '.join(absent)}"] if absent else []
    return rows, titles, f"{_ALLOWED}\n\n" + "\n".join(f"- {one}" for one in lines)


def two_op_over_fp16(rows: Rows) -> Any:
    """How many times as long as FP16 the product takes that first unpacks, by shape and number of tokens."""
    times = rows.pivot(index=["n", "k", "batch"], columns="who", values="median_us")
    if not {"two-op", "FP16 cuBLAS"} <= set(times):
        return pd.Series(dtype=float)
    return (times["two-op"] / times["FP16 cuBLAS"]).dropna()


def beside_others(here: Lab, rows: Rows, shapes: list[Any], some: list[Any], gpu: str, exact: str) -> None:
    """Behind one line: ours against its peers, rested and sustained, and the goals; how exact all are."""
    title, parts = "Other INT4 kernels, a burst against a sustained run, and the goals", list[Any]()
    text, faster = against_peers(rows, shapes, some)
    reached, board = _goals(here, rows, shapes)
    slow = two_op_over_fp16(rows)
    if len(slow):
        text += f"\n- Two-op, our kernel, takes {slow.min():.1f} to {slow.max():.1f} times as long as FP16, "
        text += "over all shapes: it writes FP16 weights and reads them again."
    display.say(text.strip())
    if len(reached):
        board = [(reached, _REACHED, {}, f"Goals set before the kernels were written, on {gpu}"), *board]
    parts += [*([faster] if faster else []), _states_compared(here, gpu)]
    display.fold_parts(title, [*parts, *board, f"**How exact each has to be, and is.** {exact}"])


def against_peers(rows: Rows, shapes: list[Any], some: list[Any]) -> tuple[str, Any]:
    """At how many points ours is ahead of its peers, and a table of how many times as fast as the fastest;
    no words without a peer.
    """
    times = rows.pivot(index=["n", "k", "batch"], columns="who", values="median_us")
    peers = [c for c in times if c not in ("ours", "FP16 cuBLAS", "two-op")]
    ahead = (times[peers].min(axis=1) / times["ours"]).dropna()
    if ahead.empty:
        return "", None
    table = pd.DataFrame({"shape": [f"{n:,} × {k:,}" for n, k in shapes]})
    for b in some:
        each = [ahead.get((n, k, b)) for n, k in shapes]
        table[f"b{b}"] = ["no peer" if one is None else f"{one:.2f}" for one in each]
    names = {"shape": "n × k"} | {f"b{b}": counted(b, "token") for b in some}
    seen = {name: n for name in peers if (n := times[name].count())}
    few = {name: n for name, n in seen.items() if n < len(ahead)}
    text = f"- Ours is faster than {listed([name for name in seen if name not in few]) or 'any peer'} at "
    text += f"{(ahead > 1).sum()} of {len(ahead)} points (a shape at a number of tokens): "
    text += f"{ahead.min():.2f} to {ahead.max():.2f} times the speed of the fastest."
    return text, (table, names, {}, "How many times as fast as the fastest peer")


def _states_compared(here: Lab, gpu: str) -> Any:
    """The duel with the fastest peer, rested and sustained."""
    both = states.duels(display.power_rows(here, "int4"), "int4")
    title = "Speed of ours over the fastest recorded peer's, in a burst and sustained (part 00b)"
    title += f", {gpu}; timed in runs of its own, so not the times above"
    return both, states.DUEL, states.DUEL_FORMATS, title


def _goals(here: Lab, rows: Rows, shapes: list[Any]) -> tuple[Rows, list[Any]]:
    """A row for floors and one for aims that were set before the kernels, and each goal."""
    square = [c for c in here.cases("int4") if (c.n, c.k) == study.SQUARE]
    squared = here.measure("int4", square) if square else rows[:0]
    goals = claims.select("04c_batch", source=claims.COURSE)
    evidence = claims.Evidence(here.store, {"int4": pd.concat([rows, squared])})
    board = claims.board(goals, evidence)
    meant = {"floor": "floors: the least asked", "aim": "aims: hoped for"}
    reached = []
    for kind, name in meant.items():
        mine = (board["group"] == kind).to_numpy()
        if mine.any():
            held = board["word"].eq(claims.HOLDS)[mine]
            miss = _largest_miss(goals, board, kind)
            reached.append({"kind": name, "met": f"{held.sum()} of {len(held)}", "miss": miss})
    board["met"] = board["word"].replace({claims.HOLDS: "yes", claims.SHORT: "no"})
    board["what"] = board["says"] + ": " + board["quantity"]
    names = {"group": "Kind", "what": "What", "bars": "Asked"}
    names |= {"measured": "Reached", "met": "Met"}
    board["bars"] = board["bars"].str.replace(" ", "\u00a0")
    alone = f"{study.SQUARE[0]:,} × {study.SQUARE[1]:,} is timed for one goal alone; it is none of this "
    alone += "page's shapes."
    notes = [alone] if study.SQUARE not in shapes else []
    return pd.DataFrame(reached), [
        *notes,
        (board, names, {}, "Each of these goals"),
    ]


def _largest_miss(goals: Any, board: Rows, kind: str) -> str:
    """The goal of a kind that is missed by most, and by how much; nothing where none is missed."""
    missed = []
    for (_, _, test), (_, row) in zip(claims.shown(goals), board.iterrows(), strict=True):
        if row["group"] == kind and row["word"] == claims.SHORT and row["value"] and test.bar.value:
            ratio = row["value"] / test.bar.value
            missed.append((max(ratio, 1 / ratio), row))
    if not missed:
        return ""
    row = max(missed, key=lambda one: one[0])[1]
    return f"{row['says']}, {row['quantity']}: {row['measured']}, asked {row['bars']}"
