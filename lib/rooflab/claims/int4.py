"""What this course asked of its INT4 kernels on the H200 before they were written, and what the source
published of its own (lesson 04).

Floors had to be reached, aims were hoped for; both are judged by recorded rows as the sources' claims are.
The bars are one GPU's, so on another they say how far that GPU is from this one's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pandas as pd

from rooflab.claims import Bar, Claim, NoEvidence, less, more
from rooflab.record import Store
from rooflab.studies.int4 import BATCHES, SHAPES, SQUARE, TINYGEMM

GPU = "NVIDIA H200"
LARGE = SHAPES[2:]
CUBLAS, REQUIRED = "torch.matmul", (TINYGEMM, "humming")
Measure = Callable[[pd.DataFrame, str], float]


def at(rows: pd.DataFrame, n: int, k: int, batch: int) -> pd.DataFrame:
    """The contestants of one shape and batch by name, ours as "own"; NoEvidence where ours is missing."""
    found = rows[(rows["n"] == n) & (rows["k"] == k) & (rows["batch"] == batch)]
    found = found.assign(name=found["impl"].where(found["kind"] != "own", "own")).set_index("name")
    if "own" not in found.index:
        raise NoEvidence(f"ours at {n} × {k}, batch {batch}, was not measured")
    return found


def value(
    rows: pd.DataFrame, n: int, k: int, batch: int, impl: str = "own", column: str = "median_us"
) -> float:
    """A figure of one contestant, by default its median time; NoEvidence where it is missing."""
    found = at(rows, n, k, batch)
    if impl not in found.index:
        raise NoEvidence(f"{impl} at {n} × {k}, batch {batch}, was not measured")
    return float(found[column][impl])


def points(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Every measured (n, k, batch) of the four shapes, up to the batch that the goals were set for."""
    ours = rows[rows["kind"] == "own"]
    columns = [ours[name].astype(int) for name in ("n", "k", "batch")]
    found = set(zip(*columns, strict=True))
    return sorted(point for point in found if point[:2] in SHAPES and point[2] <= max(BATCHES))


def slower_than_fp16(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Where ours is not faster than resident FP16 weights beyond the spread of both."""
    return [
        point
        for point in points(rows)
        if not value(rows, *point, column="q3_us") < value(rows, *point, CUBLAS, "q1_us")
    ]


def slower_than_peers(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Where some peer's median is more than 2 % under ours; NoEvidence unless the strongest were measured."""
    lost = []
    for point in points(rows):
        for peer in REQUIRED:
            value(rows, *point, peer)
        found = at(rows, *point)
        if value(rows, *point) > 1.02 * found[found["kind"] == "peer"]["median_us"].min():
            lost.append(point)
    return lost


def _count(lost: Callable[[pd.DataFrame], Sequence[object]]) -> Measure:
    return lambda rows, _: len(lost(rows))


def _us(n: int, k: int) -> Measure:
    return lambda rows, _: value(rows, n, k, 1)


def _share(n: int, k: int) -> Measure:
    return lambda rows, _: value(rows, n, k, 1, column="roof_fraction")


def _growth(n: int, k: int) -> Measure:
    return lambda rows, _: value(rows, n, k, 16) / value(rows, n, k, 1)


def _gain(batches: Sequence[int]) -> Measure:
    """The smallest gain over cuBLAS on the two large shapes, at those of the batches that were measured."""

    def measure(rows: pd.DataFrame, _: str) -> float:
        found = [p for p in points(rows) if p[:2] in LARGE and p[2] in batches]
        if not found:
            raise NoEvidence("the two large shapes were not measured")
        return min(value(rows, *p, CUBLAS) / value(rows, *p) for p in found)

    return measure


def _goal(id: str, where: str, says: str, quantity: str, form: str, bar: Bar, measure: Measure) -> Claim:
    return Claim(id, where, says, quantity, form, bar, measure, "own")


_FLOORS = dict(zip(SHAPES, (5.5, 5.5, 12.5, 38.0), strict=True))
GOALS: tuple[Claim, ...] = (
    *(
        _goal(f"F{i}", "floor", f"{n} × {k}, batch 1", "time", "{:.2f} µs", less(us_), _us(n, k))
        for i, ((n, k), us_) in enumerate(_FLOORS.items(), 1)
    ),
    _goal(
        "F5", "floor", "Faster than cuBLAS in FP16 everywhere", "points where not", "{:.0f}",
        less(1), _count(slower_than_fp16),
    ),
    _goal(
        "F6", "floor", "No slower than the fastest peer anywhere", "points where not", "{:.0f}",
        less(1), _count(slower_than_peers),
    ),
    _goal(
        "A1", "aim", "28672 × 8192, batch 1", "share of the read roof", "{:.0%}",
        more(0.85), _share(*SHAPES[3]),
    ),
    _goal("A2", "aim", "8192 × 8192, batch 1", "time", "{:.2f} µs", less(10.3), _us(*SQUARE)),
    *(
        _goal(
            f"A{i}", "aim", f"{n} × {k}, batch 16 for the price of 1", "t(16) ÷ t(1)", "{:.2f}",
            less(1.1), _growth(n, k),
        )
        for i, (n, k) in enumerate(LARGE, 3)
    ),
    _goal(
        "A5", "aim", "Large shapes, batch 1 to 16, against cuBLAS", "smallest gain", "{:.2f}",
        more(3.3), _gain(range(1, 17)),
    ),
    _goal("A6", "aim", "Large shapes, batch 32", "smallest gain", "{:.2f}", more(2.5), _gain((32,))),
    _goal("A7", "aim", "Large shapes, batch 64", "smallest gain", "{:.2f}", more(2.0), _gain((64,))),
)  # fmt: skip


# --- what the source published of its kernel ----------------------------------------------------------------

SIX = {  # the counters it gives, by our names
    "dram_mb": "DRAM traffic (MB)",
    "us": "Time under the profiler (µs)",
    "dram_pct": "DRAM busy %",
    "sm_pct": "SMs busy %",
    "l2_hit_pct": "L2 hits %",
    "occupancy_pct": "Occupancy %",
}
_IN_ITS_NOTE = {
    "dram_pct": r"([\d.]+) % of hardware peak",
    "sm_pct": r"SM ([\d.]+) %",
    "l2_hit_pct": r"L2 hit ([\d.]+) %",
    "occupancy_pct": r"occupancy ([\d.]+) %",
}


def published_counters(store: Store) -> pd.Series:
    """The source's six counters of its fused kernel, from its record and the note of the record's run."""
    rows, runs = store.read("int4"), store.runs()
    row = rows[(rows["impl"] == "fused") & (rows["clock"] == "ncu")].iloc[0]
    note = str(runs[runs["run"] == row["run"]]["note"].iloc[0])
    found = {name: re.search(pattern, note) for name, pattern in _IN_ITS_NOTE.items()}
    shares = {name: float(match[1]) for name, match in found.items() if match}
    return pd.Series({"dram_mb": row["bytes"] / 1e6, "us": row["median_us"], **shares}).reindex(list(SIX))


def counters(counted: pd.DataFrame) -> pd.Series:
    """The same six of one launch that Nsight Compute counted."""
    row = pd.to_numeric(counted.iloc[0].reindex(["dram_bytes", "time_ns", *_IN_ITS_NOTE]))
    found = {"dram_mb": row["dram_bytes"] / 1e6, "us": row["time_ns"] / 1e3, **row}
    return pd.Series(found).reindex(list(SIX))


def published_sweep(store: Store) -> pd.DataFrame:
    """The source's two tables: shape, batch, microseconds of two_op, fused and (where it gives it) fp16, and
    the gain of fused over fp16."""
    rows = store.read("regimes")
    rows = rows.assign(
        shape=[f"{n}×{k}" for n, k in zip(rows["n"], rows["k"], strict=True)],
        impl=rows["impl"].replace({"cublas": "fp16"}),
    )
    order = list(dict.fromkeys(f"{n}×{k}" for n, k in sorted(zip(rows["n"], rows["k"], strict=True))[::-1]))
    found = rows.pivot(index=["shape", "batch"], columns="impl", values="median_us").reindex(order, level=0)
    found["gain"] = found["fp16"] / found["fused"]
    return found.reset_index()


def published_kernels(store: Store) -> pd.Series:
    """Microseconds of the fused kernel and of FP16 cuBLAS on the source's MLP shape, under its profiler."""
    fused, gemv = store.read("int4"), store.read("attribution")
    fused = fused[(fused["impl"] == "fused") & (fused["clock"] == "ncu")]
    shape = (gemv["n"] == fused["n"].iloc[0]) & (gemv["k"] == fused["k"].iloc[0])
    gemv = gemv[shape & (gemv["clock"] == "ncu")]
    return pd.Series({"fused": fused["median_us"].iloc[0], "fp16": gemv["median_us"].iloc[0]})
