"""Study `gemv` (lesson 03): matrix-vector products at batch 1, from the strided mapping to the roof.

Two operators: gemv, y = x A in FP32 with A [k, n], as the course's root-cause source has it; and gemv_rows,
y = W x in FP16 with W [n, k], as language models have it, on the shapes of their projections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.ops import Rung, gemv
from rooflab.records.case import Case, options
from rooflab.studies import buffers, products
from rooflab.studies.base import (
    LITTLE,
    Context,
    Count,
    Described,
    Profile,
    Sized,
    Study,
    from_l2,
    macros_of,
    tunables,
)

_DTYPE = {"gemv": "float32", "gemv_rows": "float16"}
_FORMAT = {"gemv": "fp32", "gemv_rows": "fp16"}
SIZES = (2048, 4096, 8192)  # n = k of the FP32 matrices; the source's is the middle one, 64 MiB
SHAPES = ((8960, 1536), (1536, 8960), (4096, 4096), (1536, 1536))  # (n, k) of the FP16 ladders
FAMILIES = (
    *("qwen2.5-1.5b", "llama-2-7b", "llama-3-8b", "llama-3-70b"),
    *("mistral-7b", "phi-2", "phi-3-mini"),
)
BLOCKS = (64, 128, 256, 512, 1024)  # threads a block
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COUNTERS = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "sm_pct", "l2_hit_pct", "occupancy_pct"),
    *("issue_active", "load_sectors_per_request", "load_efficiency_pct", "shared_efficiency_pct"),
    *("shared_load_conflicts", "threads_per_inst", "stall_long_scoreboard", "stall_barrier"),
    *("load_requests", "load_sectors", "store_requests", "store_sectors"),
)


def _case(operator: str, impl: str, n: int, k: int, **more: Any) -> Case:
    return Case("gemv", operator, impl, format=_FORMAT[operator], n=n, k=k, **more)


def ladder(operator: str, n: int, k: int, cache: str = "cold") -> list[Case]:
    """Every rung of gemv or gemv_rows on one shape, and cuBLAS by way of torch."""
    own = [_case(operator, rung.name, n, k, cache=cache) for rung in gemv.LADDERS[operator]]
    return [*own, _case(operator, "torch.matmul", n, k, kind="peer", cache=cache)]


def blocks_sweep(impl: str, n: int = SIZES[1]) -> list[Case]:
    """An FP32 rung with 64 to 1024 threads a block, on an n x n matrix.

    2_coalesced keeps one thread a column, so fewer blocks are left as they grow; 5_in_flight keeps as many
    warps an SM, by splitting k into fewer or more parts.
    """
    limit = [{"resident": max(1, 1024 // threads)} if impl == "5_in_flight" else {} for threads in BLOCKS]
    return [
        _case("gemv", impl, n, n, options=options(threads=threads, **more))
        for threads, more in zip(BLOCKS, limit, strict=True)
    ]


def splits_sweep(n: int = SIZES[1]) -> list[Case]:
    """3_split_k with k in 1 to 256 parts: from a few SMs at work to all of them, many times over."""
    return [_case("gemv", "3_split_k", n, n, options=options(splits=splits)) for splits in SPLITS]


def padding(n: int = SIZES[1]) -> list[Case]:
    """6_column_strips without and with the padding that keeps the rows of its shared memory out of one
    bank.
    """
    return [_case("gemv", "6_column_strips", n, n, options=options(pad=pad)) for pad in (0, 1)]


def called(n: int = SIZES[1]) -> list[Case]:
    """One call at a time, as a caller sees it: by events around it, and by the host's clock with a wait.

    CuPy refuses to have its cuBLAS calls captured in a graph, so its product has these clocks only.
    """
    return [
        _case("gemv", impl, n, n, kind=kind, clock=clock)
        for clock in ("event", "wall")
        for impl, kind in (
            ("2_coalesced", "own"),
            ("6_column_strips", "own"),
            ("torch.matmul", "peer"),
            ("cupy.dot", "peer"),
        )
    ]


def uploaded(n: int = SIZES[1]) -> list[Case]:
    """The matrix brought from the host, multiplied by gemv/2_coalesced, and waited for: what the source
    timed, from ordinary (pageable) and from pinned memory.
    """
    return [
        Case("gemv", "upload", impl, format="fp32", n=n, k=n, cache="", clock="wall")
        for impl in ("pageable", "pinned")
    ]


def shapes_of(models: Sequence[str] = FAMILIES) -> list[tuple[int, int]]:
    """The distinct shapes (n, k) of these models' projections and output heads, smallest first."""
    found = {(p.n, p.k) for model in models for p in model_shapes.projections(model_shapes.get(model))}
    return sorted(found, key=lambda shape: (shape[0] * shape[1], shape))


def families(models: Sequence[str] = FAMILIES) -> list[Case]:
    """The tuned FP16 rung and cuBLAS on every shape of these models."""
    return [
        _case("gemv_rows", impl, n, k, kind=kind)
        for n, k in shapes_of(models)
        for impl, kind in ((gemv.TUNED, "own"), ("torch.matmul", "peer"))
    ]


def counted(n: int = SIZES[1], small: int = SIZES[0]) -> list[Case]:
    """What Nsight Compute counts: both ladders on an n x n matrix with their peers, the unpadded strip, and
    products that may find their matrix in the L2.
    """
    warm = [c for c in ladder("gemv", small, small, "warm") if c.impl in ("2_coalesced", "6_column_strips")]
    cupy_dot = _case("gemv", "cupy.dot", n, n, kind="peer", clock="event")
    return [
        *(*ladder("gemv", n, n), cupy_dot, padding(n)[0]),
        *(*ladder("gemv", n, n, "warm")[:-1], *warm),
        *ladder("gemv_rows", n, n),
    ]


def traced() -> list[Case]:
    """Products small enough that every request of them is watched on the CPU too: both ladders on whole tiles
    and on a ragged shape. Where blocks share columns k is split into a fixed number of parts, which on a GPU
    depends on its SMs otherwise.
    """
    found = []
    for operator, sizes in (("gemv", ((512, 256), (516, 261))), ("gemv_rows", ((256, 512), (261, 520)))):
        for n, k in sizes:
            for rung in gemv.LADDERS[operator]:
                more = {"options": options(splits=8)} if rung.name in gemv.SHARED_COLUMNS else {}
                found.append(_case(operator, rung.name, n, k, cache="warm", **more))
    return found


def first_request(rung: Rung, n: int, k: int, macros: Mapping[str, int]) -> tuple[list[int], int]:
    """The byte offsets in the matrix that the 32 lanes of the first warp ask for with their first load of it,
    and how many bytes each of them takes: the address pattern, worked out from the rung's mapping.
    """
    lanes = range(32)
    if rung.operator == "gemv_rows":
        width = 2 if rung.name == "1_warp" else 16
        return [lane * width for lane in lanes], width
    if rung.name == "1_strided":
        return [lane * n * 4 for lane in lanes], 4
    if rung.name in ("2_coalesced", "3_split_k"):
        return [lane * 4 for lane in lanes], 4
    wide = macros["COLUMNS"] // 4 if rung.name == "6_column_strips" else 32
    return [lane % wide * 16 + lane // wide * n * 4 for lane in lanes], 16


def sectors(offsets: Sequence[int], width: int) -> int:
    """How many 32-byte sectors hold these bytes: what one request asks of the memory."""
    return len({byte // 32 for offset in offsets for byte in (offset, offset + width - 1)})


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case."""
    if case.operator == "upload":
        case = _case("gemv", "2_coalesced", case.n or 0, case.k or 0)
    rung = ops.rung_of(gemv.LADDERS[case.operator], case.impl, "")
    macros = {**gemv.options_for(rung, case.n or 0, case.k or 0), **macros_of(case, "splits")}
    return rung, rung.with_defaults(macros), gemv.launch_rule(rung)


def in_flight_bytes(case: Case, sms: int) -> int:
    """Bytes that all threads of an own case of y = x A ask for before the first of them is used: UNROLL loads
    of 16 bytes each, or four, of 16 bytes in 4_vector and of 4 below it. 2048 threads an SM at most.
    """
    rung, macros, _ = own_rung(case)
    n, k, blocks = case.n or 0, case.k or 0, gemv.blocks_of(rung, case.n or 0, macros)
    if rung.name in ("3_split_k", "4_vector", "5_in_flight"):
        blocks *= tunables(case).get("splits") or gemv.splits_of(rung, n, k, macros, sms)
    each = 16 * macros["UNROLL"] if "UNROLL" in macros else 4 * (16 if rung.name == "4_vector" else 4)
    return min(blocks * macros["THREADS"], 2048 * sms) * each


def _budget_fp32(a: Any, x: Any, expected: Any) -> float:
    """Error budget of y = x A in FP32, from the textbook's loop: one running sum a column."""
    cupy = ops.arrays()
    k, n = a.shape
    if isinstance(a, np.ndarray):
        baseline = np.zeros(n, np.float32)
        for row in reversed(range(k)):
            baseline += x[row] * a[row]
    else:
        loop = cupy.ElementwiseKernel(
            "raw float32 a, raw float32 x, int64 n, int64 k",
            "float32 y",
            "float sum = 0; for (long long row = k; row-- > 0;) sum += x[row] * a[row * n + i]; y = sum;",
            "rooflab_gemv_loop",
        )
        baseline = loop(a, x, n, k, size=n)
    return gate.error_budget(float(cupy.abs(baseline - expected).max()), expected, "float32")


_BY_LITTLE = ("2_coalesced", "3_split_k")  # rungs with few loads under way: Little's law bounds them


class Gemv(Study):
    """Lesson 03."""

    name, lesson = "gemv", "03"
    after = ("environment",)

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            found = [
                *(case for n in SIZES[:2] for case in ladder("gemv", n, n)),
                *(case for n, k in SHAPES for case in ladder("gemv_rows", n, k)),
                *(case for impl in ("2_coalesced", "5_in_flight") for case in blocks_sweep(impl)),
                *(*splits_sweep(), *ladder("gemv", SIZES[0], SIZES[0], "warm")),
                *(*padding(), *called(), *uploaded(), *families(FAMILIES[:1])),
            ]
            return list(dict.fromkeys(found))
        found = [
            *(case for n in SIZES for case in ladder("gemv", n, n)),
            *(case for impl in ("2_coalesced", "5_in_flight") for case in blocks_sweep(impl)),
            *(*splits_sweep(), *padding(), *called(), *uploaded()),
            *(case for n in SIZES[:2] for case in ladder("gemv", n, n, "warm")),
            *(case for n, k in SHAPES for case in ladder("gemv_rows", n, k)),
            *(case for n, k in SHAPES[2:] for case in ladder("gemv_rows", n, k, "warm")),
            *families(),
        ]
        return list(dict.fromkeys(found))

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("ncu", [*counted(), *traced()], COUNTERS)]

    def replay(self, case: Case) -> str:
        # The small traced ones are held to the CPU's counts of requests, which no cache changes.
        return "application" if case.cache == "warm" and (case.n or 0) >= min(SIZES) else "kernel"

    def group(self, case: Case) -> tuple:
        # Sweeps apart from ladders: the fewer contestants take turns, the less each finds the chip changed.
        return (*super().group(case), bool(case.options))

    def _operand_bytes(self, case: Case) -> int:
        n, k, size = case.n or 0, case.k or 0, 2 if case.operator == "gemv_rows" else 4
        return int(roofline.gemm_bytes(1, n, k, size, size, size))

    def memory_bytes(self, case: Case) -> int:
        return buffers.copies(case, self._operand_bytes(case)) * 4 * (case.n or 0)

    def shared_bytes(self, case: Case) -> int:
        weights = self._operand_bytes(case)
        return buffers.copies(case, weights) * weights + 16 * min((case.n or 0) * (case.k or 0), 1 << 27)

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        if group[0].operator == "upload":
            return [_upload(case) for case in group]
        return _contestants(group, buffers.copies(group[0], self._operand_bytes(group[0])))

    def count(self, case: Case) -> Count:
        n, k, _ = case.matrix
        ceiling = roofline.ROOF_OF["h2d" if case.operator == "upload" else "gemv"]
        if case.cache == "warm":
            ceiling = ""  # what fits the L2 is not read from DRAM
        return Count(self._operand_bytes(case), roofline.gemm_flops(1, n, k), ceiling)

    def predict(self, case: Case, context: Context) -> float | None:
        moved = self._operand_bytes(case)
        if case.operator == "upload":
            return moved / context.pcie_gb_s / 1e3 if context.pcie_gb_s else None
        if context.device is None or from_l2(case, moved, context.device):
            return None
        gb_s = context.device.dram_gb_s
        if case.impl in _BY_LITTLE and context.latency_ns:
            sms, latency_ns = context.device.sms, context.latency_ns
            gb_s = roofline.bandwidth(in_flight_bytes(case, sms) / sms, sms, latency_ns, gb_s)
        return moved / gb_s / 1e3

    def foretold(self, case: Case) -> str:
        return LITTLE if case.impl in _BY_LITTLE else super().foretold(case)

    own_rung = staticmethod(own_rung)


def _contestants(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Contestants of one operator and shape, on shared matrices and vectors; outputs are each one's own."""
    cupy = ops.arrays()
    first = cases[0]
    n, k, operator = first.n or 0, first.k or 0, first.operator
    dtype = _DTYPE[operator]
    matrix = products.weights(k, n, dtype) if operator == "gemv" else products.weights(n, k, dtype)
    x = products.activations(1, k, dtype)
    by_rows = matrix.T if operator == "gemv" else matrix
    expected = products.oracle(by_rows, x)
    budget = (
        _budget_fp32(matrix, x[0], expected[0])
        if operator == "gemv"
        else products.budget(matrix, x, expected, dtype)
    )
    matrices, vectors = buffers.copied(matrix, count), buffers.copied(x, count)
    inputs = [[m, v] for m, v in zip(matrices, vectors, strict=True)]
    works = []
    for case in cases:
        outputs = [[cupy.empty((1, n), dtype)] for _ in range(count)]
        launch = _PEERS[case.impl](inputs, outputs) if case.kind != "own" else _own(case, inputs, outputs)
        works.append(gate.Work(case.id, launch, inputs, outputs, lambda: expected, budget))
    return works


def _own(case: Case, inputs: list[list[Any]], outputs: list[list[Any]]) -> Callable[[int], None]:
    rung, macros, _ = own_rung(case)
    vectors = [(m, x[0], out[0][0]) for (m, x), out in zip(inputs, outputs, strict=True)]
    if case.operator == "gemv_rows":
        return lambda i: gemv.gemv_rows(
            vectors[i][0], vectors[i][1], out=vectors[i][2], rung=rung.name, **macros
        )
    splits = tunables(case).get("splits")
    return lambda i: gemv.gemv(
        vectors[i][0], vectors[i][1], out=vectors[i][2], rung=rung.name, splits=splits, **macros
    )


def _upload(case: Case) -> gate.Work:
    """A copy of the matrix from ordinary (pageable) or page-locked host memory, and the product after it."""
    import cupy

    n, k, _ = case.matrix
    matrix, x = products.weights(k, n, "float32"), products.activations(1, k, "float32")
    expected = products.oracle(matrix.T, x)
    budget = _budget_fp32(matrix, x[0], expected[0])
    host = buffers.host_copy(matrix, case.impl == "pinned")
    matrix.fill(0)  # the product must come from the copy
    out = cupy.empty((1, n), cupy.float32)

    def launch(_: int) -> None:
        stream, kind = cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpyAsync(matrix.data.ptr, host.ctypes.data, host.nbytes, kind, stream)
        gemv.gemv(matrix, x[0], out=out[0], rung="2_coalesced")

    return gate.Work(case.id, launch, [[host, x]], [[out]], lambda: expected, budget)


def _torch_matmul(inputs: list[list[Any]], outputs: list[list[Any]]) -> Callable[[int], None]:
    import torch

    tensors = [
        [torch.from_dlpack(a) for a in (m, x, out[0])] for (m, x), out in zip(inputs, outputs, strict=True)
    ]
    rows = inputs[0][0].dtype == "float16"

    def launch(i: int) -> None:
        m, x, out = tensors[i]
        torch.matmul(x, m.t() if rows else m, out=out)

    return launch


def _cupy_dot(inputs: list[list[Any]], outputs: list[list[Any]]) -> Callable[[int], None]:
    import cupy

    vectors = [(x[0], m, out[0][0]) for (m, x), out in zip(inputs, outputs, strict=True)]
    return lambda i: cupy.dot(vectors[i][0], vectors[i][1], out=vectors[i][2])


_PEERS: dict[str, Callable[..., Callable[[int], None]]] = {
    "torch.matmul": _torch_matmul,
    "cupy.dot": _cupy_dot,
}
