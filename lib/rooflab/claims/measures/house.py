"""Measures of what is not a kernel's time: the machine, the repository's files, its compiled rungs, its
tests' records, the arithmetic of formats and shapes.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops, paths
from rooflab.analysis import attention as analysis_attention
from rooflab.analysis import coalescing
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.claims.measures.rows import Where, figure, measure
from rooflab.errors import LaunchError
from rooflab.numerics import model_shapes, quant
from rooflab.ops import gemv
from rooflab.ops import q8_0 as ops_q8
from rooflab.records.case import Case
from rooflab.studies.gemv import first_request
from rooflab.verify import mutations

# --- the machine and its runs -------------------------------------------------------------------------------


@measure
def run_number(evidence: Evidence, column: str) -> float:
    """The leading number of a fact of the last run: 580.159 of driver 580.159.04."""
    runs = evidence.runs
    found = runs[column].iloc[-1] if len(runs) and column in runs else None
    if found is None or found != found or str(found) == "":
        raise NoEvidence(f"no {column} in the recording's runs")
    return float(".".join(str(found).split(".")[:2]))


@measure
def free_gb(evidence: Evidence) -> float:
    """GB of the GPU's memory, 0 if another process used it."""
    memory, others = (run_number(evidence, name) for name in ("memory_bytes", "other_processes"))
    return memory / 1e9 * (others == 0)


@measure
def other_processes(evidence: Evidence) -> float:
    """The most other processes on the GPU in any run."""
    return float(evidence.runs["other_processes"].astype(float).max())


@measure
def commands_named(evidence: Evidence) -> float:
    """Share of runs that name the command that made them."""
    return float((evidence.runs["command"].fillna("") != "").mean())


@measure
def recording_minutes(evidence: Evidence) -> float:
    """Minutes in which at least one run was under way of which the recording still has rows: two GPUs may
    record side by side. A run that was interrupted has no end: it counts up to the start of the next one.
    """
    store, runs = evidence.store, evidence.runs
    named = {run for study in store.studies() for run in store.read(study)["run"]}
    runs = runs[runs["run"].isin(named)]
    times = pd.DataFrame(
        {name: pd.to_datetime(runs[name], errors="coerce") for name in ("started", "finished")}
    )
    times = times.dropna(subset="started").sort_values("started")
    times["finished"] = times["finished"].where(times["finished"].notna(), times["started"].shift(-1))
    times = times.dropna()
    if times.empty:
        raise NoEvidence("no finished run")
    seconds, until = 0.0, times["started"].iloc[0]
    for began, ended in zip(times["started"], times["finished"], strict=True):
        seconds += max(0.0, (ended - max(began, until)).total_seconds())
        until = max(until, ended)
    return seconds / 60


# --- the repository -----------------------------------------------------------------------------------------


@measure
def file_exists(evidence: Evidence, path: str) -> float:
    """1 if the repository has this file."""
    return float((paths.ROOT / path).is_file())


@measure
def file_says(evidence: Evidence, path: str, words: list[str]) -> float:
    """1 if a file holds all of these words."""
    text = (paths.ROOT / path).read_text("utf-8")
    return float(all(word in text for word in words))


@measure
def largest_kb(evidence: Evidence, pattern: str) -> float:
    """The largest file of a pattern in data/, in kB."""
    sizes = [path.stat().st_size for path in paths.DATA.rglob(pattern) if path.is_file()]
    if not sizes:
        raise NoEvidence(f"no {pattern} in data")
    return max(sizes) / 1000


@measure
def data_mb(evidence: Evidence) -> float:
    """All files of data/, in MB."""
    return sum(path.stat().st_size for path in paths.DATA.rglob("*") if path.is_file()) / 1e6


@measure
def fewest_exercises(evidence: Evidence) -> float:
    """The smallest number of exercises of a lesson, over all its parts."""
    found: dict[str, int] = {}
    for path in sorted(paths.NOTEBOOKS.glob("[0-9][0-9]*_*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        checks = sum("exercises.check(" in "".join(cell["source"]) for cell in cells)
        found[path.name[:2]] = found.get(path.name[:2], 0) + checks
    return float(min(found.values()))


# --- rungs, compiled and on the CPU -------------------------------------------------------------------------


def _gemv(impl: str) -> ops.Rung:
    return gemv.rung_of(gemv.LADDERS["gemv"], impl, impl)


@measure
def in_ladder(evidence: Evidence, impl: str) -> float:
    """1 if the ladder of FP32 products has this rung."""
    return float(impl in [rung.name for rung in gemv.LADDERS["gemv"]])


@measure
def launched_with(evidence: Evidence, impl: str, macro: str, value: int) -> float:
    """1 if a rung of that ladder is compiled with this value by default."""
    return float(_gemv(impl).defines[macro] == value)


@measure
def dispatched_efficiency(evidence: Evidence, of: Where) -> float:
    """Load efficiency of the rung that the dispatcher chooses, as a share."""
    impl = gemv.default_rung("gemv", of["n"], of["k"], True)
    return evidence.counter(name="load_efficiency_pct", **{**of, "impl": impl}) / 100


@measure
def blocks_over_sms(evidence: Evidence, impl: str, n: int) -> float:
    """Blocks of a rung on an n x n product, for each SM."""
    rung = _gemv(impl)
    return gemv.blocks_of(rung, n, rung.with_defaults({})) / run_number(evidence, "sms")


@measure
def lane_stride(evidence: Evidence, impl: str, n: int) -> float:
    """Bytes from one lane's first load to the next one's."""
    rung = _gemv(impl)
    offsets, _ = first_request(rung, n, n, rung.with_defaults({}))
    return float(offsets[1] - offsets[0])


@measure
def compiled(evidence: Evidence, impl: str, fact: str, arch: str) -> float:
    """A fact of the compiler's report on an FP32 rung, or of its machine code."""
    rows, sass = evidence.static, evidence.sass
    if fact in rows:
        chosen = rows[
            (rows["operator"] == "gemv") & (rows["impl"] == impl) & (rows["options"] == f"arch={arch}")
        ]
    else:
        chosen = sass[
            sass["case"].str.startswith(f"gemv/{impl} ") & sass["case"].str.contains(f"arch={arch}")
        ]
    if chosen.empty:
        raise NoEvidence(f"no report of gemv/{impl} for {arch} in data/cpu")
    return float(chosen[fact].iloc[0])


@measure
def spilling(evidence: Evidence) -> float:
    """Rungs that spill registers, on any declared chip."""
    return float((evidence.static["spill_bytes"].astype(float) > 0).sum())


@measure
def beyond_bounds(evidence: Evidence, items: list[str], rung: str = "") -> float:
    """Values of the numeric suite beyond their bounds; of one rung ("last": the last with any), or of all."""
    tried = set(evidence.suite["rung"])
    rung = [r.name for r in gemv.LADDERS["gemv"] if r.name in tried][-1] if rung == "last" else rung
    total = 0
    for item in items:
        rows = evidence.suite[evidence.suite["item"] == item]
        rows = rows[rows["rung"] == rung] if rung else rows
        if rows.empty:
            raise NoEvidence(f"no item {item} in data/cpu/suite.csv")
        total += int((~(rows["value"] <= rows["bound"])).sum())
    return float(total)


@measure
def suite_worst(evidence: Evidence, item: str) -> float:
    """The largest value of an item of the numeric suite."""
    return float(evidence.suite[evidence.suite["item"] == item]["value"].max())


@measure
def wide_tile_right(evidence: Evidence) -> float:
    """1 if a tile of 4096 floats gives right results beyond it, 0 if the run fails."""
    frame = evidence.table("faults", "sanitizer")
    chosen = frame[frame["case"].str.startswith("faults/fixed_tile n=5 k=4100 tool=watch")]
    if chosen.empty:
        raise NoEvidence("no fixed_tile at k = 4100 in study faults")
    return float(str(chosen["first_right"].iloc[0]) == "True")


@measure
def surviving_mutants(evidence: Evidence) -> float:
    """Planted faults that survive the gate with no reason: not equivalent, and in no other test."""
    table = evidence.mutants
    return float(mutations.is_open(table[table["killed"] == ""]).sum())


# --- arithmetic ---------------------------------------------------------------------------------------------


@measure
def products_a_token(evidence: Evidence, model: str) -> float:
    """Weight products of a token, the output head excluded."""
    return float(model_shapes.gemvs(model_shapes.get(model)))


@measure
def unused_codes(evidence: Evidence) -> float:
    """Codes 0 among a quantised matrix, and weights of 0 that do not come back as 0."""
    w = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    w[:, 5] = 0
    packed = quant.quantise_int4(w)
    words = packed.qweight.view(np.uint32)
    codes = np.stack([words >> 4 * t & 15 for t in range(8)])
    return float((codes == 0).sum() + (quant.dequantise_int4(packed)[:, 5] != 0).sum())


@measure
def block_remainder(evidence: Evidence, multiple: int) -> float:
    """Bytes of a Q8_0 block beyond a multiple."""
    return float(quant.Q8_0.itemsize % multiple)


@measure
def sizes_checked(evidence: Evidence) -> float:
    """1 if a product of 2^31 activations is refused before anything is cast."""
    try:
        ops_q8.check_sizes(1, 32768, 65536, 32, "a product")
    except LaunchError:
        return 1.0
    return 0.0


@measure
def asked_again(evidence: Evidence, impl: str, seq: int, window: int) -> float:
    """How often an attention kernel asks for each key and value of a window: 8 heads of 256, 2 of keys."""
    shape: dict[str, Any] = {"seq": seq, "heads": 8, "kv_heads": 2, "head_dim": 256, "window": window}
    case = Case("attention", "attention", impl, "own", "fp16", causal=True, **shape)
    unique = 2 * seq * 2 * 256 * 2
    return analysis_attention.requested_bytes(case) / (unique * 4)  # 4 query heads share a key-value head


@measure
def share_of_prompt(
    evidence: Evidence, at: Where, tokens: int, us: float = 0, of: Where | None = None
) -> float:
    """The share of a prompt, at a published rate, that so much time is."""
    spent = figure(evidence, of) if of else us
    return spent / 1e6 * figure(evidence, at, "tok_s") / tokens


@measure
def request_bytes(evidence: Evidence, impl: str) -> float:
    """Bytes that one request of a warp moves."""
    return 32 * coalescing.counter(evidence, "load_sectors_per_request", impl)
