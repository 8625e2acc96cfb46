"""Our Q8_0 kernels at every point (lesson 05): the fastest, what the dispatcher chooses, where it is behind,
what dividing k gains, and the pairs of rungs that a review's suggestions come to.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.ops import mmq as ops
from rooflab.ops import rung_of, stream_k
from rooflab.records.case import Case
from rooflab.studies import mmq, q8_0

DECODE = q8_0.SHAPES[0]
SQUARE = mmq.SHAPES[0]
CUBLAS = "torch.matmul"


def gather(lab: Any) -> Evidence:
    """What a lab measures or replays of both studies at its effort."""
    decode = [c for c in lab.cases("q8_0") if c.operator == "q8_0" and c.cache == "cold" and not c.options]
    prompts = [c for c in lab.cases("mmq") if c.cache == "cold" and not c.options]
    tables = {"q8_0": lab.measure("q8_0", decode), "mmq": lab.measure("mmq", prompts)}
    return Evidence(lab.store, tables)


def decode(evidence: Evidence) -> pd.DataFrame:
    """The rows of products with few tokens, cold, rungs with their default options."""
    return evidence.rows("q8_0", operator="q8_0", cache="cold", options="")


def prompts(evidence: Evidence) -> pd.DataFrame:
    """The rows of products with many tokens, cold, rungs with their default options; not the small matrices,
    on which weights in tile order alone are compared.
    """
    rows = evidence.rows("mmq", cache="cold", options="")
    return rows[~rows.set_index(["n", "k", "batch"]).index.isin(mmq.SMALL)]


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
    return _chosen(evidence, at(prompts(evidence), n, k, batch), (n, k, batch))


def _chosen(evidence: Evidence, found: pd.DataFrame, point: tuple[int, int, int]) -> pd.Series:
    """The same of a point's contestants."""
    n, k, batch = point
    operator, rung = ops.dispatch(n, k, batch, bool(evidence.spec and evidence.spec.has_hopper))
    name = mmq.DECODE + rung if operator == "q8_0" else rung
    if name not in found.index:
        raise NoEvidence(f"{name} at {n} × {k} with {batch} tokens was not measured")
    return found.loc[[name]].iloc[0]


def points(evidence: Evidence) -> list[tuple[int, int, int]]:
    """Every measured (n, k, tokens) of prompts."""
    return _points(prompts(evidence))


def _points(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    return sorted(set(zip(*(rows[name].astype(int) for name in ("n", "k", "batch")), strict=True)))


def behind(evidence: Evidence, rival: str, least: int, most: int) -> list[tuple[int, int, int]]:
    """Where what the dispatcher chooses is not faster than `rival` beyond the spread of both, between these
    numbers of tokens; the rival's FP16 counts on the square shape only.
    """
    lost = []
    rows = prompts(evidence)
    for n, k, batch in _points(rows):
        if not least <= batch <= most or (rival == CUBLAS and (n, k) != SQUARE):
            continue
        found = at(rows, n, k, batch)
        if rival not in found.index:
            raise NoEvidence(f"{rival} was not measured")
        if not _chosen(evidence, found, (n, k, batch))["q3_us"] < found.loc[rival, "q1_us"]:
            lost.append((n, k, batch))
    return lost


IDLE, WIDER, NEITHER = (
    "rung 7 leaves half of the SMs idle, or more",
    "rung 8 takes tiles a quarter wider, or more",
    "neither",
)
_STEPS = ("7_fp16_wgmma", "8_stream_k")


def gains(rows: pd.DataFrame, slow: str, fast: str) -> pd.DataFrame:
    """How many times as fast as `slow` the contestant `fast` is, a row a shape that `rows` of prompts have of
    both: columns n, k, batch, gain.
    """
    sizes = ["n", "k", "batch"]
    us = rows[rows["impl"].isin((slow, fast))].pivot_table("median_us", sizes, "impl")
    us = us.reindex(columns=[slow, fast]).dropna().reset_index()
    return us[sizes].assign(gain=us[slow] / us[fast])


def divided_along_k(rows: pd.DataFrame) -> pd.DataFrame:
    """Rung 8_stream_k beside 7_fp16_wgmma, a row a shape that `rows` of prompts have of both.

    Columns: n, k, batch; gain, how many times as fast rung 8 is; busy, the share of an H200's SMs that have a
    tile of rung 7, over all turns; narrow and wide, tokens of a tile of rung 7 and of rung 8; and where, what
    rung 8 has to gain: IDLE, WIDER or NEITHER.
    """
    first, last = (rung_of(ops.LADDERS["mmq"], name, name) for name in _STEPS)
    found = []
    for row in gains(rows, *_STEPS).to_dict("records"):
        n, k, batch = (int(row[size]) for size in ("n", "k", "batch"))
        narrow = ops.options_for(first, n, batch)["TOKENS"]
        wide = ops.macros_for(last, n, k, batch)["TOKENS"]
        turns = stream_k.tiles_of(n, batch, 1, narrow) / stream_k.AT_ONCE
        busy = turns / math.ceil(turns)
        where = IDLE if busy <= 0.5 else WIDER if wide >= 1.25 * narrow else NEITHER
        found.append((n, k, batch, row["gain"], busy, narrow, wide, where))
    return pd.DataFrame(found, columns=["n", "k", "batch", "gain", "busy", "narrow", "wide", "where"])


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
