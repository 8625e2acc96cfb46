"""Our INT4 kernels beside FP16 and the peers at every point, and what the source published of its own
(lesson 04).
"""

from __future__ import annotations

import re

import pandas as pd

from rooflab.analysis.evidence import NoEvidence
from rooflab.hardware.crossover import LEVEL
from rooflab.records.store import Store
from rooflab.studies.int4 import BATCHES, SHAPES, TINYGEMM

LARGE = SHAPES[2:]
CUBLAS, REQUIRED = "torch.matmul", (TINYGEMM, "humming")


def at(rows: pd.DataFrame, n: int, k: int, batch: int) -> pd.DataFrame:
    """The contestants of one shape and batch by name, ours as "own"; NoEvidence where ours is missing."""
    found = rows[(rows["n"] == n) & (rows["k"] == k) & (rows["batch"] == batch)]
    found = found.assign(name=found["impl"].where(found["kind"] != "own", "own")).set_index("name")
    if "own" not in found.index:
        raise NoEvidence(f"ours at {n:,} × {k:,}, batch {batch}, was not measured")
    return found


def value(
    rows: pd.DataFrame, n: int, k: int, batch: int, impl: str = "own", column: str = "median_us"
) -> float:
    """A figure of one contestant, by default its median time; NoEvidence where it is missing."""
    return _figure(at(rows, n, k, batch), (n, k, batch), impl, column)


def _figure(
    found: pd.DataFrame, point: tuple[int, int, int], impl: str = "own", column: str = "median_us"
) -> float:
    """The same of a point's contestants."""
    if impl not in found.index:
        n, k, batch = point
        raise NoEvidence(f"{impl} at {n:,} × {k:,}, batch {batch}, was not measured")
    return float(found[column][impl])


def points(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Every measured (n, k, batch) of the four shapes, up to the batch that the goals were set for."""
    ours = rows[rows["kind"] == "own"]
    columns = [ours[name].astype(int) for name in ("n", "k", "batch")]
    found = set(zip(*columns, strict=True))
    return sorted(point for point in found if point[:2] in SHAPES and point[2] <= max(BATCHES))


def contestants(rows: pd.DataFrame) -> pd.DataFrame:
    """Of recorded rows what is compared: at each point the fastest own kernel, the baselines and the peers,
    cold, by the graph clock."""
    rows = rows[(rows["operator"] == "int4") & (rows["cache"] == "cold") & (rows["clock"] == "graph")]
    rows = rows[rows["median_us"].notna() & ~rows["options"].fillna("").str.contains("loop=|seed=")]
    own = rows[rows["kind"] == "own"].sort_values("median_us", kind="stable")
    own = own.drop_duplicates(["n", "k", "batch"])
    return pd.concat([own, rows[rows["kind"] != "own"]], ignore_index=True)


def slower_than_fp16(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Where ours is not faster than resident FP16 weights beyond the spread of both."""
    lost = []
    for point in points(rows):
        found = at(rows, *point)
        if not _figure(found, point, column="q3_us") < _figure(found, point, CUBLAS, "q1_us"):
            lost.append(point)
    return lost


def slower_than_peers(rows: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Where ours is slower than some peer, beyond the tie rule; NoEvidence unless the strongest were
    measured.
    """
    lost = []
    for point in points(rows):
        found = at(rows, *point)
        for peer in REQUIRED:
            _figure(found, point, peer)
        if _figure(found, point) > LEVEL * found[found["kind"] == "peer"]["median_us"].min():
            lost.append(point)
    return lost


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
        shape=[f"{n:,} × {k:,}" for n, k in zip(rows["n"], rows["k"], strict=True)],
        impl=rows["impl"].replace({"cublas": "fp16"}),
    )
    order = list(
        dict.fromkeys(f"{n:,} × {k:,}" for n, k in sorted(zip(rows["n"], rows["k"], strict=True))[::-1])
    )
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
