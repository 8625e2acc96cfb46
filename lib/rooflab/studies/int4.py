"""Study `int4` (lesson 04): fused INT4 products against FP16 ones and against dequantising first.

y [batch, n] = x [batch, k] W^T with W in INT4 groups of 128: the ladder at batch 1, the dispatcher's choice
at every batch from 1 to 64 beside cuBLAS and the libraries' INT4 kernels, beyond 64 beside cuBLAS, both
two-op products, and the source's own experiment as published (event clock, one warm copy, a launch for each
token) beside the same done cold in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflab import ops
from rooflab.bench import gate
from rooflab.hardware import roofline
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.ops import int4, int4_choice
from rooflab.records.case import Case, options
from rooflab.studies import buffers
from rooflab.studies.base import (
    Context,
    Count,
    Described,
    Profile,
    Sized,
    Study,
    in_state,
    macros_of,
    package_identity,
    tunables,
    turn,
)

SHAPES = ((8960, 1536), (4096, 4096), (14336, 4096), (28672, 8192))
SQUARE = (8192, 8192)  # which the libraries' own benchmarks use
BETWEEN = (5120, 5120), (10240, 2560)  # whose tiles do not divide by the SMs
BATCHES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64)
MANY = (96, 128, 256)  # tokens in the grid
MANY_TOKENS = "13_stream_k"  # the rung that is for those alone
PUBLISHED = ((8960, 1536), (1536, 1536)), (1, 2, 4, 8, 16, 32)  # the source's shapes and batches
SEEDED = ((256, 1536), (1536, 1536), (1536, 8960), (8960, 1536))  # its test's, with seeds 0 to 3
TINYGEMM, TWO_OP, TWO_OP_TORCH = "torch._weight_int4pack_mm", "two_op", "torch.two_op"
LIBRARIES = {  # peers that are packages of their own: what a case needs, and its format
    "humming": ("humming", "humming-kernels"),
    "gemlite": ("gemlite", "gemlite"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
}
TUNED_BATCHES = (1, 16)  # gemlite tunes itself at every new shape and batch, which takes seconds each
TWO_OP_BATCHES = (1, 2, 4, 8, 16, 32, 64)
COUNTERS = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "sm_pct", "tensor_pct", "l2_hit_pct"),
    *("occupancy_pct", "inst_executed", "issue_active", "load_sectors_per_request", "shared_efficiency_pct"),
    *("stall_long_scoreboard", "stall_short_scoreboard", "stall_math_pipe_throttle", "stall_mio_throttle"),
    *("stall_barrier", "stall_wait"),
)


def _case(impl: str, n: int, k: int, batch: int = 1, **more: Any) -> Case:
    form = {"torch.matmul": "fp16", TINYGEMM: "int4_g128_bf16", "bitsandbytes": "nf4"}.get(impl, "int4_g128")
    kind = "own"
    if impl in ("torch.matmul", TWO_OP, TWO_OP_TORCH):
        kind = "baseline"
    elif impl == TINYGEMM or impl in LIBRARIES:
        kind = "peer"
    case = Case("int4", "int4", impl, kind=kind, format=form, n=n, k=k, batch=batch, **more)
    return in_state("burst", [case])[0]


def table_of(device: Sized | None) -> str:
    """The name under which the dispatcher's table has `device`; a GPU without one gets the rule's choice."""
    return "h200" if device is None else str(getattr(device, "slug", ""))


def chosen(n: int, k: int, batch: int, device: Sized | None = None, **more: Any) -> Case:
    """The dispatcher's choice on `device` (by default the H200) for weights in tile order, as a case."""
    rung, macros = int4.choose(n, k, batch, True, table_of(device))
    return _case(rung, n, k, batch, options=options(**{m.lower(): v for m, v in macros.items()}), **more)


def rungs(n: int, k: int) -> list[Case]:
    """Every rung at batch 1 but the one whose blocks divide many tokens' products."""
    macros = {"9_shared_x": {"tokens": 8}, "10_wgmma": {"tokens": 16}}
    macros["12_token_tiles"] = {"stages": 6, "tall": 1, "tokens": 64}
    macros[int4.BYTES] = {name.lower(): value for name, value in int4.bytes_options(k, 1).items()}
    ladder = [rung for rung in int4.LADDERS["int4"] if rung.name != MANY_TOKENS]
    return [_case(r.name, n, k, options=options(**macros.get(r.name, {}))) for r in ladder]


def ladder(n: int, k: int, device: Sized | None = None) -> list[Case]:
    """Every rung at batch 1 and the dispatcher's choice, with what they are compared with."""
    others = ("torch.matmul", TWO_OP, TWO_OP_TORCH)
    return [*rungs(n, k), chosen(n, k, 1, device), *(_case(impl, n, k) for impl in others)]


def batches(n: int, k: int, sizes: Sequence[int] = BATCHES, device: Sized | None = None) -> list[Case]:
    """The dispatcher's choice at every batch, with cuBLAS, the libraries and the fair two-op product."""
    found = []
    for batch in sizes:
        peers = ["torch.matmul", TINYGEMM, "humming"]
        peers += [TWO_OP] if batch in TWO_OP_BATCHES else []
        if batch == 1 or (batch in TUNED_BATCHES and (n, k) == SHAPES[-1]):
            peers += ["gemlite", "bitsandbytes"]
        found += [chosen(n, k, batch, device), *(_case(impl, n, k, batch) for impl in peers)]
    return found


def many(n: int, k: int, sizes: Sequence[int] = MANY, device: Sized | None = None) -> list[Case]:
    """Beyond what one block multiplies: the dispatcher's choice with cuBLAS and the fair two-op product."""
    others = ("torch.matmul", TWO_OP)
    return [
        case
        for batch in sizes
        for case in (chosen(n, k, batch, device), *(_case(impl, n, k, batch) for impl in others))
    ]


def square(device: Sized | None = None) -> list[Case]:
    """The shape that libraries are compared at, at batch 1."""
    peers = ("torch.matmul", TINYGEMM, "humming")
    return [chosen(*SQUARE, 1, device), *(_case(impl, *SQUARE) for impl in peers)]


def between(device: Sized | None = None) -> list[Case]:
    """Shapes whose tiles do not divide by the SMs, at a few batches, beside the fastest libraries."""
    found = [case for n, k in BETWEEN for case in batches(n, k, (1, 4, 16, 64), device)]
    return [c for c in found if c.kind == "own" or c.impl in ("torch.matmul", "humming", "gemlite")]


def as_bytes() -> list[Case]:
    """Up to four tokens rung 14, beside what the law would choose among the rungs before it."""
    return [
        _case(name, n, k, batch, options=options(**{m.lower(): v for m, v in macros.items()}))
        for n, k in (*SHAPES[1:3], *BETWEEN)
        for batch in (1, 2, 4)
        for name, macros in (int4_choice.halves_for(n, k, batch), (int4.BYTES, int4.bytes_options(k, batch)))
    ]


# The rungs made for many tokens, each in the fastest of the builds tried on an H200 for the largest shape.
_FOR_TOKENS = {
    ("9_shared_x", 16): {"row_warps": 4, "k_warps": 3, "tiles": 4, "stages": 3, "resident": 1},
    ("9_shared_x", 64): {"row_warps": 8, "k_warps": 2, "tiles": 2, "stages": 2, "resident": 1},
    ("10_wgmma", 16): {"row_groups": 2, "k_groups": 1, "tall": 2, "cluster": 2, "stages": 3, "resident": 2},
    ("10_wgmma", 64): {"row_groups": 2, "k_groups": 1, "tall": 2, "cluster": 2, "stages": 3, "resident": 2},
}


def for_tokens(device: Sized | None = None) -> list[Case]:
    """What the rungs for many tokens bring over each other, on the largest shape; the last is chosen."""
    n, k = SHAPES[-1]
    found = [
        _case(rung, n, k, batch, options=options(**macros, tokens=batch))
        for (rung, batch), macros in _FOR_TOKENS.items()
    ]
    return [*found, *(chosen(n, k, batch, device) for batch in (16, 64))]


def reused(n: int, k: int) -> list[Case]:
    """What reading the weights once is worth on CUDA cores: rung 5 reads them once a token."""
    return [
        _case(impl, n, k, batch, options=options(**macros))
        for batch in (2, 4, 8)
        for impl, macros in (("5_split_k", {}), ("6_batched", {"tokens": batch}))
    ]


def seeded(device: Sized | None = None) -> list[Case]:
    """The source's test: normal weights of its four shapes and seeds, quantised; its kernel, and ours."""
    return [
        replace(case, weights="normal", options=options(**tunables(case), seed=seed), cache="warm")
        for seed, (n, k) in enumerate(SEEDED)
        for case in (_case("1_warp_row", n, k), chosen(n, k, 1, device))
    ]


def published(sizes: Sequence[int] = PUBLISHED[1]) -> list[Case]:
    """The source's experiment: its fused kernel launched once a token (option loop), its literal two-op
    product and FP16, by its clock on one warm copy, and by the graph clock on cold ones; at batch 1 and 2,
    where the source's kernel begins to lose, the other two combinations of clock and cache as well."""
    both = (("event", "warm", sizes), ("graph", "cold", sizes), ("event", "cold", sizes[:2]))
    return [
        case
        for clock, cache, chosen_sizes in (*both, ("graph", "warm", sizes[:2]))
        for n, k in PUBLISHED[0]
        for batch in chosen_sizes
        for case in (
            _case("1_warp_row", n, k, batch, options=options(loop=1), clock=clock, cache=cache),
            _case(TWO_OP_TORCH, n, k, batch, clock=clock, cache=cache),
            _case("torch.matmul", n, k, batch, clock=clock, cache=cache),
        )
    ]


def counted(device: Sized | None = None, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[Case]:
    """What Nsight Compute counts: the four ways of the traffic table on the first and on the largest shape,
    every rung at batch 1 on the largest, and the winners."""
    ways = ("1_warp_row", "torch.matmul", TWO_OP, TWO_OP_TORCH)
    four = [_case(impl, *shape) for shape in (shapes[0], shapes[-1]) for impl in ways]
    winners = [
        chosen(n, k, batch, device)
        for n, k in shapes
        for batch in ((1, 16, 24, 32, 64) if (n, k) == SHAPES[-1] else (1, 16, 64) if n > 10000 else (1,))
    ]
    return sorted(dict.fromkeys([*four, *rungs(*shapes[-1]), *winners]), key=_place)


def _place(case: Case) -> tuple:
    """Cases of one shape stand together, because they share their weights."""
    sizes = (*SHAPES, SQUARE, *BETWEEN, *PUBLISHED[0], *SEEDED)
    return case.weights, sizes.index((case.n, case.k)), case.cache, turn(case), case.batch


def traffic(case: Case) -> int:
    """Bytes that a case's kernels should move to and from DRAM if every pass over an operand were one.

    The literal two-op product in torch: words shifted and masked to int32 codes, less 8 (three passes of 4
    bytes a weight, out and in again), widened to FP16, scaled, and multiplied.
    """
    n, k, batch = case.matrix
    own = int(roofline.gemm_bytes(batch, n, k, WEIGHT_BYTES["int4_g128"]))
    weights = n * k
    if case.impl == "torch.matmul":
        return int(roofline.gemm_bytes(batch, n, k, 2))
    if case.impl == TWO_OP:  # FP16 weights written, then read
        return own + 4 * weights
    if case.impl == TWO_OP_TORCH:  # shift, mask, subtract, widen, scale, each written, then read by the next
        return own + weights * (4 + 4 + 4 + 4 + 4 + 4 + 2 + 2 + 2 + 2)
    if "loop" in tunables(case) or case.impl in int4.EVERY_TOKEN:
        return own + (batch - 1) * int(weights * WEIGHT_BYTES["int4_g128"])
    return own


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case."""
    rung = ops.rung_of(int4.LADDERS["int4"], case.impl, case.impl)
    return rung, rung.with_defaults(macros_of(case, "loop", "seed")), int4.launch_rule(rung)


def operand_bytes(case: Case) -> int:
    return int((case.n or 0) * (case.k or 0) * WEIGHT_BYTES["int4_g128"])


class Int4(Study):
    """Lesson 04."""

    name, lesson = "int4", "04"
    setup_s = 0.15

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        shapes = SHAPES if effort == "full" else SHAPES[:2]
        sizes = BATCHES if effort == "full" else (1, 2, 4, 8, 16, 64)
        found = [
            *(case for n, k in (shapes[0], shapes[-1]) for case in ladder(n, k, device)),
            *(case for n, k in shapes for case in batches(n, k, sizes, device)),
            *(case for n, k in shapes for case in many(n, k, MANY, device)),
            *(case for shape in (shapes[0], shapes[-1]) for case in reused(*shape)),
            *(published() if effort == "full" else published((1, 2, 4))),
            *seeded(device),
            *(
                [*square(device), *between(device), *as_bytes(), *for_tokens(device)]
                if effort == "full"
                else ()
            ),
        ]
        return sorted(dict.fromkeys(found), key=_place)

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("ncu", counted(device, SHAPES if effort == "full" else SHAPES[:2]), COUNTERS)]

    def needs(self, case: Case) -> str | None:
        if case.impl in LIBRARIES:
            return LIBRARIES[case.impl][0]
        return "torch" if case.impl.startswith("torch.") or case.impl == TWO_OP else None

    def refuses(self, case: Case, capability: int) -> str | None:
        if case.kind == "own":
            rung, _, _ = own_rung(case)
            arch = rung.arch_for(str(capability))
            if arch not in rung.archs:
                return f"rung {rung.name} is for sm_{' and sm_'.join(rung.archs)}"
        return super().refuses(case, capability)

    def group(self, case: Case) -> tuple:
        return (case.weights, case.n, case.k, case.batch, case.cache, turn(case))

    def count(self, case: Case) -> Count:
        n, k, batch = case.matrix
        width = 2 if case.impl == "torch.matmul" else WEIGHT_BYTES["int4_g128"]
        name = "" if case.cache == "warm" else "dram_read"
        return Count(int(roofline.gemm_bytes(batch, n, k, width)), roofline.gemm_flops(batch, n, k), name)

    def predict(self, case: Case, context: Context) -> float | None:
        device = context.device
        if device is None or case.cache == "warm":
            return None
        tensor = None if case.impl in int4.CUDA_CORES else device.fp16_tensor
        return roofline.bound(traffic(case), self.count(case).flops or 0, device.dram_gb_s, tensor).us

    def row(self, case: Case, *rest: Any) -> dict[str, Any]:
        return {**super().row(case, *rest), "predicted_bytes": traffic(case)}

    own_rung = staticmethod(own_rung)

    def identity(self, case: Case, arch: str | None) -> str:
        if case.impl in LIBRARIES:
            return package_identity("torch", LIBRARIES[case.impl][1])
        if case.impl == TWO_OP:  # its first half is a kernel of ours
            (rung,) = int4.LADDERS["int4_dequantise"]
            return rung.identity(int4.launch_rule(rung), rung.defines, arch)
        return super().identity(case, arch)

    def memory_bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        count = buffers.copies(case, operand_bytes(case))
        weights = {"torch.matmul": 2.0, TWO_OP: 2.0, TWO_OP_TORCH: 16.0}.get(case.impl, 1.1)
        return int(count * (n * k * weights + 2 * n * batch))

    def shared_bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        return int(n * k * 8 + (n + k) * batch * 10 + 2 * buffers.copies(case, operand_bytes(case)) * n * k)

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        from rooflab.studies import int4_work

        return int4_work.contestants(group)
