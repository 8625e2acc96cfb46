"""What lesson 07's sources concluded of which kernel is faster when, held against this recording: by our
kernels, and by the author's, rebuilt, where study int4 timed it.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rooflab.analysis.strategies import PAIRS, label, loop_crossovers, of, sweep
from rooflab.hardware import crossover
from rooflab.studies import regimes
from rooflab.words import counted

HOLDS, FLIPS, UNMEASURED = "holds", "flips", "not measured"
_EXACT = ("mmq", "mmq_blocks", "mmq_wgmma")  # MMQ that adds up whole numbers
_LOOP = "loop=1"  # in the options of the author's kernel: a launch a token
_HALVES, _TWO_OP = "torch.matmul", "torch.two_op"


class Conclusion(NamedTuple):
    """A source's conclusion, what was measured of it here, whether it holds by our kernels, what that depends
    on, and whether it holds by the author's kernel ("" where that was not timed).
    """

    source: str
    says: str
    here: str
    word: str
    depends_on: str
    theirs: str = ""


def _word(held: bool) -> str:
    return HOLDS if held else FLIPS


def conclusions(rows: pd.DataFrame, int4_rows: pd.DataFrame) -> pd.DataFrame:
    """The sources' conclusions about regimes, each judged by `gather`ed rows, and by study int4's own for the
    author's kernel.
    """
    pays = "what a call costs: it takes the host longer than the kernel takes the GPU"
    found = [
        _behind_at_two(int4_rows, rows),
        _small_projection(int4_rows, rows, "graph", "what a call costs: the kernels alone pay none of it"),
        _small_projection(int4_rows, rows, "wall", pays),
        _shrinks(int4_rows, rows),
        _halves_at_four(rows),
        _prompts(rows),
    ]
    return pd.DataFrame([each for each in found if each], columns=list(Conclusion._fields))


def _author(int4_rows: pd.DataFrame, shape: tuple[int, int], clock: str, cache: str, rival: str) -> pd.Series:
    """The rival's time over that of the author's kernel, by tokens: its speed over the rival's."""
    if int4_rows.empty:
        return pd.Series(dtype=float)
    mine = int4_rows[(int4_rows["n"] == shape[0]) & (int4_rows["k"] == shape[1])]
    mine = mine[(mine["clock"] == clock) & (mine["cache"] == cache)].sort_values("batch")
    loops = mine[mine["options"].astype(str).str.contains(_LOOP)]
    times = [each.groupby("batch")["median_us"].min() for each in (mine[mine["impl"] == rival], loops)]
    return (times[0] / times[1]).dropna()


def _behind_at_two(int4_rows: pd.DataFrame, rows: pd.DataFrame) -> Conclusion:
    says = "INT4 fused wins at one token alone; FP16 is ahead from two on"
    depends = "reading the weights once for all tokens, which the source's kernel does not"
    shape = regimes.SOURCE[0]
    ours = crossover.between(
        of(rows, "int4_g128", "fused", shape, "graph"), of(rows, "fp16", "cublas", shape, "graph")
    )
    if not ours.verdicts:
        return Conclusion("decode-roofline", says, "", UNMEASURED, depends)
    here = ours.says("INT4 fused", label("fp16", "cublas"))
    loops = loop_crossovers(int4_rows, shape) if len(int4_rows) else pd.DataFrame()
    cold = loops[(loops["clock"] == "graph") & (loops["cache"] == "cold")] if len(loops) else loops
    theirs = ""
    if len(cold):
        here = f"a launch a token: {cold['says'].iloc[0]}; weights read once: {here}"
        theirs = _word(cold["kind"].iloc[0] == "crosses" and cold["high"].iloc[0] <= 2)
    held = ours.kind == "crosses" and ours.high <= 2
    return Conclusion("decode-roofline", says, here, _word(held), depends, theirs)


def _small_projection(int4_rows: pd.DataFrame, rows: pd.DataFrame, clock: str, depends: str) -> Conclusion:
    n, k = regimes.SOURCE[1]
    says = f"on {n} x {k} INT4 loses to FP16 even at one token"
    pair = [of(rows, *each, (n, k), clock) for each in PAIRS[0]]
    one = [part[part["batch"] == 1] for part in pair]
    if any(part.empty for part in one):
        return Conclusion("decode-roofline", says, f"by {clock}: none", UNMEASURED, depends)
    fused, halves = (float(part["median_us"].iloc[0]) for part in one)
    here = f"by {clock} ours runs at {halves / fused:.2f} times the speed of FP16"
    by, cache = ("graph", "cold") if clock == "graph" else ("event", "warm")
    theirs = _author(int4_rows, (n, k), by, cache, _HALVES).get(1)
    if theirs is not None:
        here += f", the author's by {by}, {cache}, at {theirs:.2f}"
    word = "" if theirs is None else _word(theirs < 1)
    return Conclusion("decode-roofline", says, here, _word(fused > halves), depends, word)


def _falls(gain: list[float]) -> bool:
    """Whether a gain falls with every step, or is level."""
    return all(b <= a * crossover.LEVEL for a, b in zip(gain, gain[1:], strict=False))


def _shrinks(int4_rows: pd.DataFrame, rows: pd.DataFrame) -> Conclusion:
    says = "the gain over dequantising first shrinks with every doubling of the tokens"
    depends = (
        "the kernel: more tokens add work to the fused one first, and a step to another variant may show"
    )
    table = sweep(rows, regimes.SOURCE[0], 1.0)
    table = table[table["batch"].isin([b for b in regimes.BATCHES if b <= 32])]
    gain = table["speedup_vs_two_op"].tolist()
    if len(gain) < 3:
        return Conclusion("decode-roofline", says, "", UNMEASURED, depends)
    here = ", ".join(f"{value:.2f}" for value in gain)
    most = counted(int(table["batch"].iloc[-1]), "token")
    here = f"ours {here} times for 1 to {most} (a step within 2% counts as level and breaks nothing)"
    found = (_author(int4_rows, shape, "event", "warm", _TWO_OP) for shape in regimes.SOURCE)
    author = [[float(value) for value in each] for each in found if len(each) > 2]
    if author:
        tables = " and ".join(f"{each[0]:.2f} to {each[-1]:.2f}" for each in author)
        here += f"; the author's, by event, warm, {tables} on {counted(len(author), 'matrix', 'matrices')}"
    word = _word(all(map(_falls, author))) if author else ""
    return Conclusion("decode-roofline", says, here, _word(_falls(gain)), depends, word)


def _halves_at_four(rows: pd.DataFrame) -> Conclusion:
    says = "at four tokens FP16 tensor cores lose to dp4a on quantised weights"
    depends = "bytes a weight, while memory bounds both"
    mine = rows[(rows["clock"] == "graph") & (rows["batch"] == 4)]
    keys = ["n", "k"]
    dp4a = mine[(mine["format"] == "q8_0") & (mine["impl"] == "dp4a")].drop_duplicates(keys).set_index(keys)
    halves = (
        mine[(mine["format"] == "fp16") & (mine["impl"] == "cublas")].drop_duplicates(keys).set_index(keys)
    )
    both = dp4a.index.intersection(halves.index)
    if not len(both):
        return Conclusion("realizar", says, "", UNMEASURED, depends)
    won = int((dp4a.loc[both, "q3_us"] < halves.loc[both, "q1_us"]).sum())
    here = f"dp4a is faster on {won} of {len(both)} matrices"
    return Conclusion("realizar", says, here, _word(won > len(both) / 2), depends)


def _prompts(rows: pd.DataFrame) -> Conclusion:
    says = "at 1848 tokens integer MMQ is a little ahead of dequantising and cuBLAS"
    depends = "how much faster int8 tensor cores are than FP16 ones, and the FP32 work of scaling each block"
    mine = rows[(rows["clock"] == "graph") & (rows["batch"] == 1848) & (rows["format"] == "q8_0")]
    if mine.empty:
        return Conclusion("SharpInference", says, "", UNMEASURED, depends)
    n, k = mine[["n", "k"]].value_counts().index[0]
    times = mine[(mine["n"] == n) & (mine["k"] == k)].groupby("impl")["median_us"].min()
    exact = times[times.index.isin(_EXACT)].sort_values()
    if exact.empty or "two_op" not in times.index:
        return Conclusion("SharpInference", says, "", UNMEASURED, depends)
    here = f"on {n} x {k} the fastest MMQ, {label('q8_0', exact.index[0])}, runs at "
    here += f"{times['two_op'] / exact.iloc[0]:.2f} times the speed of that"
    if (halves := "mmq_fp16_wgmma") in times:
        here += f", and {label('q8_0', halves)}, which turns weights into FP16, at "
        here += f"{times['two_op'] / times[halves]:.2f}"
    return Conclusion("SharpInference", says, here, _word(exact.iloc[0] < times["two_op"]), depends)
