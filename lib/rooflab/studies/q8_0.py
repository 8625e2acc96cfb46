"""Study `q8_0` (lesson 05): decode on Q8_0 weights, quantising, embedding, dequantising, graphs.

The decode product takes its activations quantised (the quantiser is a case of its own); chains of products
quantise between them, as a decoder must. Two options of a product's case change what judges it: exact=1
gives scales that are powers of two, so that any rounding but the output's is an error; unquantised=1 gives
the course's source's data and compares with the product of activations that were never quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from rooflab.bench import clock, gate
from rooflab.hardware import roofline
from rooflab.ops import q8_0
from rooflab.records.case import Case, options
from rooflab.studies import buffers, products, q8_0_work
from rooflab.studies.base import Context, Count, Profile, Sized, Study, from_l2, in_state, tunables, turn
from rooflab.studies.q8_0_operands import (
    CHAIN,
    EMBEDDING,
    JUDGED,
    LAYERS,
    PROMPT,
    SIDE,
    SIDE_TOKENS,
    WEIGHT_BYTES,
    judge_of,
    own_rung,
    quantised,
)
from rooflab.studies.q8_0_operands import (
    TOLERANCE as TOLERANCE,  # for notebooks
)

SHAPES = ((4096, 14336), (14336, 4096), (8192, 8192), (8960, 1536), (1536, 8960))  # (n, k); the first leads
BATCHES = tuple(range(1, 9))
QUANTISED = (1, 8, 64, 512, 1848)  # tokens of the quantiser's cases
CAPTURED = (4096, 4096)  # (n, k) of the product that captures are tried on
COUNTERS = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "sm_pct", "l2_hit_pct", "occupancy_pct"),
    *("load_sectors_per_request", "load_efficiency_pct", "inst_executed", "issue_active"),
    "stall_long_scoreboard",
)
_X_BYTES = {"half": 2.0, "blocks": 36 / 32, "planes": 34 / 32}


def _case(operator: str, impl: str, n: int | None, k: int | None, **more: Any) -> Case:
    case = Case("q8_0", operator, impl, **{"format": "q8_0", "n": n, "k": k, **more})
    return in_state("burst", [case])[0]


def ladder(n: int, k: int, cache: str = "cold") -> list[Case]:
    """Every rung at batch 1 on one shape, and cuBLAS on the same weights in FP16."""
    own = [_case("q8_0", rung.name, n, k, batch=1, cache=cache) for rung in q8_0.LADDERS["q8_0"]]
    return [*own, _case("q8_0", "torch.matmul", n, k, batch=1, kind="peer", format="fp16", cache=cache)]


def batches(n: int, k: int) -> list[Case]:
    """1 to 8 tokens by the rungs that take them, and by cuBLAS in FP16."""
    found = []
    several = [rung.name for rung in q8_0.LADDERS["q8_0"] if q8_0.TAKES[rung.name][2] > 1]
    for batch in BATCHES:
        found += [_case("q8_0", impl, n, k, batch=batch) for impl in several]
        found.append(_case("q8_0", "torch.matmul", n, k, batch=batch, kind="peer", format="fp16"))
    return found


def loads(n: int, k: int) -> list[Case]:
    """4_planes with 1 to 8 loads under way a lane: bytes in flight against time."""
    return [_case("q8_0", "4_planes", n, k, batch=1, options=options(unroll=u)) for u in (1, 2, 4, 7)]


def quantisers(k: int = 8192) -> list[Case]:
    """Both quantisers at several numbers of tokens."""
    return [
        _case("q8_1", rung.name, None, k, batch=batch, format="q8_1")
        for batch in QUANTISED
        for rung in q8_0.LADDERS["q8_1"]
    ]


def embeddings() -> list[Case]:
    """A prompt's rows by a launch and a copy a token, and by one launch; in a graph, and called eagerly."""
    n, k = EMBEDDING
    return [
        _case("embedding_q8_0", rung.name, n, k, batch=PROMPT, cache="warm", clock=clock)
        for clock in ("graph", "wall")
        for rung in q8_0.LADDERS["embedding_q8_0"]
    ]


def dequantisers() -> list[Case]:
    """The way to FP16 by every rung that takes the shape."""
    return [
        _case("dequantise", rung.name, n, k)
        for n, k in SHAPES[1:3]
        for rung in q8_0.LADDERS["dequantise"]
        if rung.name != "3_shift" or not k & (k - 1)
    ]


def chains() -> list[Case]:
    """A decoder-like chain of quantisers and products: called eagerly with every check, with kept=1
    by calls whose checks were made before (rooflab.runtime.launch_cache), with bare=1 by launches whose
    arguments were packed before; and replayed as a graph.
    """
    n, k = CHAIN
    ways = [(clock, how) for how in ({}, {"kept": 1}, {"bare": 1}) for clock in ("wall", "event")]
    ways.append(("graph", {}))
    return [
        _case(
            "chain", q8_0.DEFAULT["q8_0"], n, k, batch=1, options=options(layers=LAYERS, **more), clock=clock
        )
        for clock, more in ways
    ]


def captures() -> list[Case]:
    """One product captured as a graph: into a buffer made before, into one that the call has to make, and
    into one that it finds in the memory pool (see `verdicts`).
    """
    return [
        _case("capture", q8_0.DEFAULT["q8_0"], *CAPTURED, batch=1, options=how, cache="", clock="")
        for how in ("", "fresh=1 pooled=0", "fresh=1 pooled=1")
    ]


def judged(how: str) -> list[Case]:
    """Every decode rung on the source's shapes, judged as the option `how` says ("exact", "unquantised")."""
    return [
        _case("q8_0", rung.name, n, k, batch=1, options=options(**{how: 1}), cache="warm")
        for n, k in JUDGED
        for rung in q8_0.LADDERS["q8_0"]
        if not k % q8_0.TAKES[rung.name][3]
    ]


def side_path() -> list[Case]:
    """An FP32 projection: its weights streamed again for every token, or once for all by one product."""
    n, k = SIDE
    return [
        _case("side", impl, n, k, batch=SIDE_TOKENS, kind="peer", format=format)
        for impl, format in (("torch.mv", "fp32"), ("torch.matmul", "fp32"), ("torch.matmul", "tf32"))
    ]


def counted() -> list[Case]:
    """What Nsight Compute counts: the ladder on the first shape, and the dequantisers where all can run."""
    decode = [case for case in ladder(*SHAPES[0]) if case.kind == "own"]
    shifts = [(case.n, case.k) for case in dequantisers() if case.impl == "3_shift"]
    return decode + [case for case in dequantisers() if (case.n, case.k) == shifts[-1]]


class Q8(Study):
    """Lesson 05, decode."""

    name, lesson = "q8_0", "05"
    setup_s = 0.15

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        alike = [
            *(*ladder(*SHAPES[0], "warm"), *loads(*SHAPES[0]), *quantisers(), *embeddings(), *dequantisers()),
            *(*chains(), *side_path(), *judged("exact"), *judged("unquantised")),
        ]
        if effort == "quick":
            found = [*ladder(*SHAPES[0]), *ladder(*SHAPES[3]), *batches(*SHAPES[0]), *alike]
            return list(dict.fromkeys(found))
        found = [
            *(case for shape in SHAPES for case in ladder(*shape)),
            *(case for shape in SHAPES[:4] for case in batches(*shape)),
            *alike,
        ]
        return list(dict.fromkeys(found))

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("ncu", counted(), COUNTERS), ("gate", captures(), None)]

    def verdicts(self, cases: Sequence[Case]) -> pd.DataFrame:
        return verdicts(cases)

    def _bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        if case.operator == "q8_1":
            return int(batch * k * (2 + (36 if case.impl == "1_blocks" else 34) / 32))
        if case.operator == "embedding_q8_0":
            return int(batch * k * (WEIGHT_BYTES + 4))
        if case.operator == "dequantise":
            return int(n * k * (WEIGHT_BYTES + 2))
        if case.operator == "side":
            return int(roofline.gemm_bytes(batch, n, k, 4, 4, 4))
        if case.operator == "chain":
            return int(2 * tunables(case)["layers"] * n * k * WEIGHT_BYTES)
        weight = WEIGHT_BYTES if case.kind == "own" else 2
        x = _X_BYTES[q8_0.TAKES[case.impl][1]] if case.kind == "own" else 2
        return int(roofline.gemm_bytes(batch, n, k, weight, x, 2))

    def _copies(self, case: Case) -> int:
        once = case.operator in ("embedding_q8_0", "chain", "capture")
        return 1 if once else buffers.copies(case, self._bytes(case))

    def memory_bytes(self, case: Case) -> int:
        if case.operator == "chain":
            return 2 * self._bytes(case)
        return self._copies(case) * self._bytes(case)

    def shared_bytes(self, case: Case) -> int:
        return 16 * (case.n or 0) * (case.k or 0) + 8 * (case.batch or 1) * ((case.n or 0) + (case.k or 0))

    def group(self, case: Case) -> tuple:
        # Contestants of one comparison may differ in format: cuBLAS has the weights in FP16.
        return (case.operator, case.n, case.k, case.batch, case.cache, turn(case), judge_of(case))

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        builders: dict[str, Callable[..., list[gate.Work]]] = {
            "q8_0": q8_0_work.matvecs,
            "q8_1": q8_0_work.quantisers,
            "embedding_q8_0": q8_0_work.embeddings,
            "dequantise": q8_0_work.dequantisers,
            "chain": q8_0_work.chains,
            "side": q8_0_work.side,
        }
        return builders[group[0].operator](group, self._copies(group[0]))

    def count(self, case: Case) -> Count:
        n, k, batch = case.matrix
        flops = roofline.gemm_flops(batch, n, k) if case.operator in ("q8_0", "side") else None
        if case.operator == "chain":
            flops = 2 * tunables(case)["layers"] * roofline.gemm_flops(1, n, k)
        cold = case.cache == "cold" and case.operator in ("q8_0", "chain")
        return Count(self._bytes(case), flops, "dram_read" if cold else "")

    def predict(self, case: Case, context: Context) -> float | None:
        moved = self._bytes(case)
        if context.device is None or from_l2(case, moved, context.device):
            return None
        if case.impl == "torch.mv":
            moved = int((case.batch or 1) * roofline.gemm_bytes(1, case.n or 0, case.k or 0, 4, 4, 4))
        if case.operator == "side" and case.impl != "torch.mv":
            peak = context.device.tf32_tensor if case.format == "tf32" else context.device.fp32
            return roofline.bound(moved, self.count(case).flops or 0, context.device.dram_gb_s, peak).us
        return moved / context.device.dram_gb_s / 1e3

    own_rung = staticmethod(own_rung)


# --- graphs that are refused, and graphs that should have been ----------------------------------------------


def verdicts(cases: Sequence[Case]) -> pd.DataFrame:
    """What becomes of a quantised product that is captured as a graph: case, refused (by the driver), when it
    goes wrong ("" if never), sentence.
    """
    rows = []
    for case in cases:
        when, sentence = _captured(case)
        rows.append({"case": case.id, "refused": when == "at capture", "when": when, "sentence": sentence})
    return pd.DataFrame(rows)


def _captured(case: Case) -> tuple[str, str]:
    """Capture a product whose activations are quantised into a buffer that was made before or, with fresh=1,
    that the call asks for: of an empty memory pool, or with pooled=1 of one that has such a buffer from an
    earlier call. Then replay it, once another array has been asked for.
    """
    import cupy

    n, k, how = case.n or 0, case.k or 0, tunables(case)
    rung, macros, _ = own_rung(case)
    w, x = quantised(n, k), products.activations(1, k)
    out, workspace = cupy.empty((1, n), "float16"), None if how.get("fresh") else q8_0.quantise(x)

    def call() -> None:
        q8_0.matvec(q8_0.quantise(x, out=workspace), w, out=out, rung=rung.name, **macros)

    call()
    bits = out.get()
    with clock.captured_stream() as stream:
        if how.get("pooled"):
            call()
        else:
            cupy.get_default_memory_pool().free_all_blocks()
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        try:
            call()
        except RuntimeError as error:
            with suppress(RuntimeError):  # the capture is void; ending it says so once more
                stream.end_capture()
            return "at capture", f"{error}."
        graph = stream.end_capture()
        other = cupy.full(k, 7, "int8")  # as large as the quants; any other work on this stream
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
        if not np.array_equal(out.get(), bits):
            return "at replay", "The replay's bits are not those of the call."
        lost = int((other != 7).sum())
    if lost:
        return "at replay", f"The replay wrote over {lost} of {k} bytes of an array made after the capture."
    return "", "The replay left the very bits of the call, and nothing else."
