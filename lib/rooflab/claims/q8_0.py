"""What this course asked of its Q8_0 kernels on the H200 before they were written (lesson 05).

Floors had to be reached, aims were hoped for; both are judged by recorded rows as the sources' claims are.
The bars are one GPU's, so on another they say how far that GPU is from this one's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from rooflab.case import Case
from rooflab.claims import Bar, Claim, NoEvidence, less, more
from rooflab.ops import mmq as ops
from rooflab.studies import mmq, q8_0

GPU = "NVIDIA H200"
DECODE = q8_0.SHAPES[0]
SQUARE = mmq.SHAPES[0]
RESIDENT = 32  # tokens up to which Q8_0 should beat FP16 weights that lie in memory already
CUBLAS = "torch.matmul"


class Evidence(NamedTuple):
    """Rows of the studies q8_0 and mmq; `hopper` says whether their GPU has Hopper's rungs."""

    decode: pd.DataFrame
    prompts: pd.DataFrame
    hopper: bool


Measure = Callable[[Evidence, str], float]


def gather(lab: Any) -> Evidence:
    """What the goals look at, as a lab measures or replays it."""
    decode = [c for c in lab.cases("q8_0") if c.operator == "q8_0" and c.cache == "cold" and not c.options]
    prompts = [c for c in lab.cases("mmq") if c.cache == "cold" and not c.options]
    hopper = bool(lab.spec and lab.spec.has_hopper)
    return Evidence(lab.measure("q8_0", decode), lab.measure("mmq", prompts), hopper)


def at(rows: pd.DataFrame, n: int, k: int, batch: int) -> pd.DataFrame:
    """The contestants of one shape and number of tokens by name; NoEvidence if there are none."""
    found = rows[(rows["n"] == n) & (rows["k"] == k) & (rows["batch"] == batch)].set_index("impl")
    if not (found["kind"] == "own").any():
        raise NoEvidence(f"{n} × {k} with {batch} tokens was not measured")
    return found


def best(rows: pd.DataFrame, n: int, k: int, batch: int) -> pd.Series:
    """The fastest own contestant there."""
    found = at(rows, n, k, batch)
    return found[found["kind"] == "own"].sort_values("median_us").iloc[0]


def chosen(evidence: Evidence, n: int, k: int, batch: int) -> pd.Series:
    """What the dispatcher chooses there; NoEvidence if that was not measured."""
    operator, rung = ops.dispatch(batch, evidence.hopper)
    name = mmq.DECODE + rung if operator == "q8_0" else rung
    found = at(evidence.prompts, n, k, batch)
    if name not in found.index:
        raise NoEvidence(f"{name} at {n} × {k} with {batch} tokens was not measured")
    return found.loc[[name]].iloc[0]


def points(evidence: Evidence) -> list[tuple[int, int, int]]:
    """Every measured (n, k, tokens) of prompts."""
    rows = evidence.prompts
    return sorted(set(zip(*(rows[name].astype(int) for name in ("n", "k", "batch")), strict=True)))


def behind(evidence: Evidence, rival: str, least: int, most: int) -> list[tuple[int, int, int]]:
    """Where what the dispatcher chooses is not faster than `rival` beyond the spread of both, between these
    numbers of tokens; the rival's FP16 counts on the square shape only.
    """
    lost = []
    for n, k, batch in points(evidence):
        if not least <= batch <= most or (rival == CUBLAS and (n, k) != SQUARE):
            continue
        others = at(evidence.prompts, n, k, batch)
        if rival not in others.index:
            raise NoEvidence(f"{rival} was not measured")
        if not chosen(evidence, n, k, batch)["q3_us"] < others.loc[rival, "q1_us"]:
            lost.append((n, k, batch))
    return lost


def _decode(column: str) -> Measure:
    return lambda evidence, _: float(best(evidence.decode, *DECODE, 1)[column])


def _growth(evidence: Evidence, _: str) -> float:
    one, eight = (float(best(evidence.decode, *DECODE, batch)["median_us"]) for batch in (1, 8))
    return eight / one


def _rate(tokens: int, halves: bool) -> Measure:
    """TOP/s of the fastest rung that adds up whole numbers, or TFLOP/s of the fastest that makes halves."""

    def measure(evidence: Evidence, _: str) -> float:
        found = at(evidence.prompts, *SQUARE, tokens)
        kind = found.index.map(mmq.takes_halves) == halves
        found = found[(found["kind"] == "own").to_numpy() & kind]
        if found.empty:
            raise NoEvidence("no such rung was measured")
        return float(found["tflop_s"].max())

    return measure


def _goal(id: str, where: str, says: str, quantity: str, form: str, bar: Bar, measure: Measure) -> Claim:
    return Claim(id, where, says, quantity, form, bar, measure, "own")


_N, _K = DECODE
_POINTS = "points where not"
GOALS: tuple[Claim, ...] = (
    _goal(
        "F1", "floor", f"Decode {_N} × {_K}, one token", "time", "{:.1f} µs",
        less(18.3), _decode("median_us"),
    ),
    _goal("F2", "floor", "The same with eight tokens", "t(8) ÷ t(1)", "{:.2f}", less(1.6), _growth),
    *(
        _goal(
            f"F{i}", "floor", f"{SQUARE[0]} × {SQUARE[1]}, {tokens} tokens, exact", "rate", "{:.0f} TOP/s",
            more(350), _rate(tokens, False),
        )
        for i, tokens in enumerate(mmq.PROMPTS, 3)
    ),
    _goal(
        "F5", "floor", "Faster than dequantising and cuBLAS, 9 to 256 tokens", _POINTS, "{:.0f}",
        less(1), lambda evidence, _: len(behind(evidence, mmq.BASELINE, mmq.FEW[0], mmq.FEW[-1])),
    ),
    _goal(
        "F6", "floor", f"Faster than FP16 by cuBLAS, up to {RESIDENT} tokens", _POINTS, "{:.0f}",
        less(1), lambda evidence, _: len(behind(evidence, CUBLAS, 1, RESIDENT)),
    ),
    _goal(
        "A1", "aim", f"Decode {_N} × {_K}, one token", "share of the read roof", "{:.0%}",
        more(0.84), _decode("roof_fraction"),
    ),
    _goal("A2", "aim", "The same with eight tokens", "t(8) ÷ t(1)", "{:.2f}", less(1.3), _growth),
    *(
        _goal(
            f"A{i}", "aim", f"{SQUARE[0]} × {SQUARE[1]}, {tokens} tokens, {what}", "rate", form,
            more(bar), _rate(tokens, halves),
        )
        for i, (tokens, what, form, bar, halves) in enumerate(
            [
                *((tokens, "exact", "{:.0f} TOP/s", 500, False) for tokens in mmq.PROMPTS),
                *((tokens, "weights as halves", "{:.0f} TFLOP/s", 680, True) for tokens in mmq.PROMPTS),
            ],
            3,
        )
    ),
)  # fmt: skip


class Suggestion(NamedTuple):
    """One of a review's suggestions about kernels, as a pair of cases that differ in nothing else."""

    number: str
    says: str
    before: Case
    after: Case


def review() -> list[Suggestion]:
    """The suggestions that the review of SharpInference's pull request 143 put off (its issue 145) and that a
    clock can judge. The sixth is a check before a launch; the seventh is about C# and no kernel.
    """

    def decode(impl: str) -> Case:
        return next(c for c in q8_0.ladder(*DECODE) if c.impl == impl)

    shift = [c for c in q8_0.dequantisers() if c.impl == "3_shift"][-1]
    dequantise = {c.impl: c for c in q8_0.dequantisers() if (c.n, c.k) == (shift.n, shift.k)}
    tile = {c.options: c for c in mmq.ladder(mmq.PROMPTS[0]) if c.impl == "1_tile"}
    return [
        Suggestion("1, 2", "Shift and mask for a division", dequantise["2_word"], shift),
        Suggestion("3", "The scale in one load: dp4a", decode("2_dp4a"), decode("3_scale")),
        Suggestion(
            "4", "The scale in one load: MMQ's tile", tile["prepared=1 scale_bytes=1"], tile["prepared=1"]
        ),
        Suggestion("5", "The scale in one load: dequantising", dequantise["1_bytes"], dequantise["2_word"]),
    ]
