"""Measures of rows, counters and answers, whatever they are of. `of` and `over` select rows: a study and
values by column (Evidence.rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rooflab.analysis import coalescing
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.claims.bars import number
from rooflab.records.validate import MIN_SAMPLES

Where = Mapping[str, Any]
Measure = TypeVar("Measure", bound=Callable[..., float | tuple[float, str]])
MEASURES: dict[str, Callable[..., float | tuple[float, str]]] = {}
UNMEASURED = "unrecorded"  # the measure of what no row can answer


def measure(function: Measure) -> Measure:
    """Let claims refer to a function by its name."""
    MEASURES[function.__name__] = function
    return function


# --- rows ---------------------------------------------------------------------------------------------------


def figure(evidence: Evidence, of: Where, column: str = "median_us", slowest: bool = False) -> float:
    """A column of the fastest (or slowest) of the rows wanted."""
    if slowest:
        return float(evidence.rows(**of).sort_values("median_us").iloc[-1][column])
    return float(evidence.row(**of)[column])


@measure
def value(evidence: Evidence, of: Where, column: str = "median_us", per: str = "") -> float:
    """A column of the fastest row wanted, by default its time in microseconds, `per` another column."""
    row = evidence.row(**of)
    return float(row[column] / row[per] if per else row[column])


@measure
def reached(evidence: Evidence, of: Where, column: str = "median_us") -> tuple[float, str]:
    """The same with the contestant's name."""
    row = evidence.row(**of)
    return float(row[column]), str(row["impl"])


@measure
def ratio(
    evidence: Evidence,
    of: Where,
    over: Where,
    column: str = "median_us",
    slowest: bool = False,
    times: float = 1,
) -> float:
    """A column of the fastest row of one selection, so many times, over that of the fastest (or slowest) of
    another, which is the same but for the columns in `over`."""
    return times * figure(evidence, of, column) / figure(evidence, {**of, **over}, column, slowest)


@measure
def ratios(
    evidence: Evidence,
    of: Where,
    along: Sequence[Where],
    over: Where | None = None,
    take: str = "max",
    tables: Sequence[Where] = ({},),
) -> float:
    """Of the ratios at several points, of one table or several, the largest or the smallest; `falling`: the
    share of a table's steps at which it falls; `spread`: the largest of one selection's times over its
    smallest.
    """
    if take == "spread":
        times = [figure(evidence, {**of, **point}) for point in along]
        return max(times) / min(times)
    found = [[ratio(evidence, {**of, **table, **point}, over or {}) for point in along] for table in tables]
    if take == "falling":
        steps = [b < a for each in found for a, b in zip(each, each[1:], strict=False)]
        return sum(steps) / len(steps)
    every = [value for each in found for value in each]
    return max(every) if take == "max" else min(every)


@measure
def least_ratio(evidence: Evidence, of: Where, over: Where, below_mb: float = 0) -> float:
    """The smallest ratio of two selections' times over all matrices that both were timed at, or all of at
    most so many MB in FP16.
    """
    rows = [evidence.rows(**{**of, **change}) for change in ({}, over)]
    first, second = (each.groupby(["n", "k"])["median_us"].min() for each in rows)
    found = (first / second).dropna()
    if below_mb:
        found = found[[2 * int(n) * int(k) <= below_mb * 1e6 for n, k in found.index]]
    if found.empty:
        raise NoEvidence("no matrix was timed by both")
    return float(found.min())


@measure
def least_gain(evidence: Evidence, of: Where, over: Where, sizes: Sequence[str]) -> float:
    """How many times as fast as the fastest of `over`, which is `of` but for its own columns, the fastest of
    `of` is: the smallest of all sizes, by these columns, that both were timed at.
    """
    ours, others = (
        evidence.rows(**each).groupby(list(sizes), dropna=False)["median_us"].min()
        for each in (of, {name: value for name, value in {**of, **over}.items() if value is not None})
    )
    found = (others / ours).dropna()
    if found.empty:
        raise NoEvidence("no size was timed by both")
    return float(found.min())


@measure
def rate(evidence: Evidence, of: Where, work: str | float = 1) -> float:
    """So much work a second, when the fastest row wanted does `work` in its time."""
    return number(work) * 1e6 / figure(evidence, of)


@measure
def count(evidence: Evidence, of: Where) -> float:
    """How many rows there are."""
    return float(len(evidence.rows(**of)))


@measure
def with_errors(evidence: Evidence, of: Where) -> float:
    """How many rows have an error above zero."""
    return float((evidence.rows(**of)["error"] > 0).sum())


@measure
def ceiling(evidence: Evidence, roof: str, per: float = 1) -> float:
    """A measured roof, in units of `per` GB/s or TFLOP/s."""
    return evidence.ceiling(roof) / per


@measure
def roofs_measured(evidence: Evidence) -> float:
    """How many roofs the recording holds."""
    return float(len(evidence.roof))


@measure
def roof_over_datasheet(evidence: Evidence) -> float:
    """The measured read roof, of the datasheet's bandwidth."""
    return evidence.ceiling("dram_read") / evidence.datasheet().dram_gb_s


@measure
def below_roof(evidence: Evidence, of: Where, roof: str) -> float:
    """A measured roof over the rate that the fastest row wanted reaches."""
    return evidence.ceiling(roof) / float(evidence.rows(**of)["tflop_s"].max())


@measure
def gated(evidence: Evidence) -> float:
    """Share of own timed rows whose recorded error lies within their budget."""
    rows = evidence.own_timed().dropna(subset=["error_budget"])
    return float((rows["error"] <= rows["error_budget"]).mean())


@measure
def with_quartiles(evidence: Evidence) -> float:
    """Share of own timed rows with quartiles around the median of `MIN_SAMPLES` or more."""
    rows = evidence.own_timed()
    held = (rows["q1_us"] <= rows["median_us"]) & (rows["median_us"] <= rows["q3_us"])
    return float((held & (rows["samples"] >= MIN_SAMPLES)).mean())


@measure
def widest_quartiles(evidence: Evidence, of: Where) -> float:
    """The widest interquartile range of the rows wanted, of its median."""
    rows = evidence.rows(**of)
    return float(((rows["q3_us"] - rows["q1_us"]) / rows["median_us"]).max())


@measure
def unrecorded(evidence: Evidence, because: str) -> float:
    """What no row can answer."""
    raise NoEvidence(because)


# --- counters and checks ------------------------------------------------------------------------------------


@measure
def counter(evidence: Evidence, of: Where, name: str, per: str | float = 1) -> float:
    """A counter of Nsight Compute for the case wanted, in units of `per`."""
    return evidence.counter(name=name, **of) / number(per)


@measure
def counter_ratio(evidence: Evidence, of: Where, over: Where, name: str) -> float:
    """A counter of one case over the same of another."""
    return counter(evidence, of, name) / counter(evidence, {**of, **over}, name)


@measure
def shared_efficiency(evidence: Evidence, of: Where) -> float:
    """Used bytes of each shared-memory wavefront, as a share; NoEvidence for a kernel that has none."""
    if not figure(evidence, {**of, "clock": "graph"}, "shared_bytes") > 0:
        raise NoEvidence(f"{of['impl']} uses no shared memory")
    return counter(evidence, of, "shared_efficiency_pct", 100)


@measure
def warm_hits(evidence: Evidence, of: Where) -> float:
    """The L2 hit rate of a product that was just run, as a share; NoEvidence where the profiler's own work
    between two looks has emptied the cache, which the bytes from DRAM tell."""
    if counter(evidence, of, "dram_read_bytes") > coalescing.moved(of["n"]) / 2:
        raise NoEvidence("nothing was warm: the matrix was read from DRAM")
    return counter(evidence, of, "l2_hit_pct", 100)


@measure
def answer(evidence: Evidence, study: str, question: str, value: str, take: str, only: str = "") -> float:
    """What the cases of a question answered: the largest (max), smallest (min) or sum of a quantity."""
    found = evidence.answer(study, question, value)
    return float(getattr(found[found.index.str.contains(only)], take)())


@measure
def tokens_lost(evidence: Evidence) -> float:
    """Paths of the decoder that do not always choose the likeliest token."""
    return float((evidence.answer("decode", "agreement", "likeliest") < 1).sum())


@measure
def refused_unharmed(evidence: Evidence) -> float:
    """Share of wrong inputs that the decoder refuses, less the generations that change afterwards."""
    asked, refused, changed = (
        evidence.answer("decode", "refused", name).sum()
        for name in ("wrong inputs", "turned away", "changed afterwards")
    )
    return float(refused / asked - changed)
