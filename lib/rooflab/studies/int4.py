"""Study `int4` (lesson 04): fused INT4 products against FP16 ones and against dequantising first.

y [batch, n] = x [batch, k] W^T with W in INT4 groups of 128: the ladder at batch 1, the dispatcher's choice
at every batch from 1 to 64 beside cuBLAS and the libraries' INT4 kernels, beyond 64 beside cuBLAS, both
two-op products, and the source's own experiment as published (event clock, one warm copy, a launch for each
token) beside the same done cold in a graph.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.hardware import roofline
from rooflab.numerics import quant
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.numerics.quant import GROUP
from rooflab.ops import int4
from rooflab.records.case import Case, options
from rooflab.studies import buffers, products
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
from rooflab.studies.buffers import SEED

SHAPES = ((8960, 1536), (4096, 4096), (14336, 4096), (28672, 8192))
SQUARE = (8192, 8192)  # which the libraries' own benchmarks use
BATCHES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64)
MANY = (96, 128, 256)  # tokens in the grid
PUBLISHED = ((8960, 1536), (1536, 1536)), (1, 2, 4, 8, 16, 32)  # the source's shapes and batches
SEEDED = ((256, 1536), (1536, 1536), (1536, 8960), (8960, 1536))  # its test's, with seeds 0 to 3
TINYGEMM, TWO_OP, TWO_OP_TORCH = "torch._weight_int4pack_mm", "two_op", "torch.two_op"
LIBRARIES = {  # peers that are packages of their own: what a case needs, and its format
    "humming": ("humming", "humming-kernels"),
    "gemlite": ("gemlite", "gemlite"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
}
# Libraries may add partial sums in FP16, gemlite in an order that changes from launch to launch, and are not
# turned away for it: they get this many times the budget, and their row records the error.
SLACK = 8.0
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
    """Every rung at batch 1."""
    macros = {"9_shared_x": {"tokens": 8}, "10_wgmma": {"tokens": 16}}
    macros["12_token_tiles"] = {"stages": 6, "tall": 1, "tokens": 64}
    return [_case(r.name, n, k, options=options(**macros.get(r.name, {}))) for r in int4.LADDERS["int4"]]


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
        chosen(n, k, batch, device) for n, k in shapes for batch in ((1, 16, 64) if n > 10000 else (1,))
    ]
    return sorted(dict.fromkeys([*four, *rungs(*shapes[-1]), *winners]), key=_place)


def _place(case: Case) -> tuple:
    """Cases of one shape stand together, because they share their weights."""
    sizes = (*SHAPES, SQUARE, *PUBLISHED[0], *SEEDED)
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


class Int4(Study):
    """Lesson 04."""

    name, lesson = "int4", "04"
    setup_s = 0.3

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        shapes = SHAPES if effort == "full" else SHAPES[:2]
        sizes = BATCHES if effort == "full" else (1, 2, 4, 8, 16, 64)
        found = [
            *(case for n, k in (shapes[0], shapes[-1]) for case in ladder(n, k, device)),
            *(case for n, k in shapes for case in batches(n, k, sizes, device)),
            *(case for n, k in shapes for case in many(n, k, MANY, device)),
            *reused(*shapes[0]),
            *(published() if effort == "full" else published((1, 2, 4))),
            *seeded(device),
            *(square(device) if effort == "full" else ()),
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
        count = buffers.copies(case, _operand_bytes(case))
        weights = {"torch.matmul": 2.0, TWO_OP: 2.0, TWO_OP_TORCH: 16.0}.get(case.impl, 1.1)
        return int(count * (n * k * weights + 2 * n * batch))

    def shared_bytes(self, case: Case) -> int:
        n, k, batch = case.matrix
        return int(n * k * 8 + (n + k) * batch * 10 + 2 * buffers.copies(case, _operand_bytes(case)) * n * k)

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        return _contestants(group)


def _operand_bytes(case: Case) -> int:
    return int((case.n or 0) * (case.k or 0) * WEIGHT_BYTES["int4_g128"])


class Operands:
    """What a shape's contestants share: weights as codes and scales, exact in FP32, rounded to FP16; and the
    copies of each order that somebody asks for. Codes and scales are random; with a `seed` they are those of
    normal weights, over sqrt(k), as the source's test has them."""

    def __init__(self, n: int, k: int, count: int, seed: int | None = None):
        import cupy

        self.n, self.k, self.count = n, k, count
        if seed is not None:
            normal = np.random.default_rng(seed).standard_normal((n, k), dtype=np.float32)
            packed = quant.quantise_int4(normal / np.float32(k**0.5))
            self.rows = int4.Rows(*(cupy.asarray(array) for array in packed))
            return
        generator = cupy.random.default_rng(SEED)
        words = generator.integers(0, 1 << 32, (n, k // 8), dtype=cupy.uint32)
        for place in range(0, 32, 4):  # code 0 is never used: the largest instead, so the mean is not 0
            words |= cupy.where(words >> place & 15, 0, 15 << place).astype(cupy.uint32)
        scales = generator.random((n, k // GROUP), dtype=cupy.float32) + cupy.float32(0.25)
        # Groups of an outlier.
        scales *= 1 + 7 * (generator.random(scales.shape, dtype=cupy.float32) < 1 / 256)
        self.rows = int4.Rows(words.view(cupy.int32), (scales / (8 * k**0.5)).astype(cupy.float16))

    @functools.cached_property
    def exact(self) -> Any:
        """W [n, k] in FP32, exact."""
        import cupy

        w = cupy.empty((self.n, self.k), cupy.float32)
        for start in range(0, self.n, 2048):
            part = slice(start, start + 2048)
            codes = self.codes(part).astype(cupy.float32) - 8
            scales = self.rows.scales[part].astype(cupy.float32)[..., None]
            w[part] = (codes.reshape(*scales.shape[:2], GROUP) * scales).reshape(-1, self.k)
        return w

    def codes(self, part: slice) -> Any:
        """Codes 1 to 15 of some rows, [rows, k] uint8."""
        import cupy

        words = self.rows.qweight[part].view(cupy.uint32)
        places = cupy.arange(0, 32, 4, dtype=cupy.uint32)
        return (words[..., None] >> places & cupy.uint32(15)).astype(cupy.uint8).reshape(-1, self.k)

    @functools.cached_property
    def halves(self) -> list[Any]:
        """W [n, k] in FP16, as dequantising gives it."""
        return buffers.copied(self.exact.astype("float16"), self.count)

    @functools.cached_property
    def all_codes(self) -> Any:
        """Codes 1 to 15, [n, k] uint8, as the libraries take them."""
        import cupy

        parts = [self.codes(slice(start, start + 2048)) for start in range(0, self.n, 2048)]
        return cupy.concatenate(parts)

    @functools.cached_property
    def tinygemm(self) -> tuple[list[Any], Any]:
        """The copies of tinygemm's two arrays, and the weights that they hold, exact in FP32."""
        import torch

        codes = self.all_codes
        packed = torch._convert_weight_to_int4pack(torch.from_dlpack(codes[:, ::2] << 4 | codes[:, 1::2]), 8)
        scales = torch.from_dlpack(self.rows.scales).to(torch.bfloat16)
        both = torch.stack([scales, torch.zeros_like(scales)], dim=-1).transpose(0, 1).contiguous()
        w = (torch.from_dlpack(codes).float() - 8).view(self.n, -1, GROUP) * scales.float().unsqueeze(-1)
        return [(packed.clone(), both.clone()) for _ in range(self.count)], w.view(self.n, self.k)

    @functools.cached_property
    def humming(self) -> tuple[list[Any], Any]:
        """humming's layers of our weights, one a copy, and the weights that they hold, exact in FP32."""
        import cupy
        import torch
        from humming.layer import HummingLayer

        config = {"dtype": "int4", "group_size": GROUP}
        layer = HummingLayer(self.n, self.k, weight_config=config, torch_dtype=torch.float16).cuda()
        layer.load_from_unquantized(torch.from_dlpack(self.halves[0]))
        tensors = {"weight": layer.weight, "weight_scale": layer.weight_scale}
        held = layer.weight_schema.dequant_tensors(tensors).to(torch.float32).contiguous()
        layer.transform()
        layers = [layer, *(copy.deepcopy(layer) for _ in range(self.count - 1))]
        return layers, cupy.from_dlpack(held)

    @functools.cached_property
    def row_copies(self) -> list[int4.Rows]:
        return buffers.copied(self.rows, self.count)

    @functools.cached_property
    def tile_copies(self) -> list[int4.Tiles]:
        tiles = int4.repack(*self.rows)
        return [tiles._replace(blocks=blocks) for blocks in buffers.copied(tiles.blocks, self.count)]


_operands = functools.lru_cache(maxsize=1)(Operands)  # the batches of a shape come one after another


def _contestants(group: Sequence[Case]) -> list[gate.Work]:
    import cupy

    first = group[0]
    n, k, batch = first.matrix
    operands = _operands(n, k, buffers.copies(first, _operand_bytes(first)), tunables(first).get("seed"))
    x = products.activations(batch, k)
    xs = buffers.copied(x, operands.count)
    expected = products.oracle(operands.exact, x)
    budget = products.budget(operands.exact.astype("float16"), x, expected, "float16")
    works = []
    for case in group:
        ys = [cupy.empty((batch, n), "float16") for _ in range(operands.count)]
        if case.kind == "own":
            launch = _own_launcher(case, operands, xs, ys)
            works.append(_work(case, launch, xs, ys, expected, budget))
            continue
        try:
            work = _PEERS[case.impl](case, operands, xs, ys, expected, budget)
            work.budget *= SLACK if case.impl in LIBRARIES else 1
            works.append(work)
        except Exception as error:  # a library that cannot take the shape is skipped with its reason
            if case.impl not in LIBRARIES:
                raise
            works.append(_work(case, _refusing(case.impl, error), xs, ys, expected, budget))
    return works


def _refusing(impl: str, error: Exception) -> Callable[[int], None]:
    """A launch that the gate turns into a skipped case: what a library said instead of making its layer."""
    reason = f"{impl} cannot make this layer: {error or type(error).__name__}"

    def launch(_: int) -> None:
        raise RuntimeError(reason)

    return launch


def _own_launcher(case: Case, operands: Operands, xs: list[Any], ys: list[Any]) -> Callable[[int], None]:
    rung, macros, _ = own_rung(case)
    weights: Sequence[Any] = operands.tile_copies if rung in int4.TILED else operands.row_copies
    loop = "loop" in tunables(case)

    def launch(i: int) -> None:
        if not loop:
            int4.matmul(xs[i], weights[i], out=ys[i], rung=rung.name, **macros)
            return
        for token in range(case.batch or 1):
            one = slice(token, token + 1)
            int4.matmul(xs[i][one], weights[i], out=ys[i][one], rung=rung.name, **macros)

    return launch


# --- baselines and peers ------------------------------------------------------------------------------------


def _work(case: Case, launch: Any, xs: list[Any], ys: list[Any], expected: Any, budget: float) -> gate.Work:
    return gate.Work(case.id, launch, [[x] for x in xs], [[y] for y in ys], lambda: expected, budget)


def _torch_of(arrays: Sequence[Any]) -> list[Any]:
    import torch

    return [torch.from_dlpack(array) for array in arrays]


def _matmul(case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float) -> gate.Work:
    launch = products.torch_matmul(operands.halves, xs, ys)
    return _work(case, launch, xs, ys, expected, budget)


def _two_op(case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float) -> gate.Work:
    """Our dequantise kernel, then cuBLAS; the FP16 weights in between are buffers of the copy's own."""
    import cupy

    between = [cupy.empty((operands.n, operands.k), "float16") for _ in range(operands.count)]
    multiply, weights = products.torch_matmul(between, xs, ys), operands.row_copies

    def launch(i: int) -> None:
        int4.dequantise(weights[i], out=between[i])
        multiply(i)

    return _work(case, launch, xs, ys, expected, budget)


def _two_op_torch(
    case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float
) -> gate.Work:
    """Unpacking in torch's own operations, then cuBLAS: the source's baseline, in 32-bit integers."""
    import torch

    weights = [(torch.from_dlpack(r.qweight), torch.from_dlpack(r.scales)) for r in operands.row_copies]
    places = torch.arange(0, 32, 4, device="cuda", dtype=torch.int32)
    x_t, y_t, n, k = _torch_of(xs), _torch_of(ys), operands.n, operands.k

    def launch(i: int) -> None:
        qweight, scales = weights[i]
        codes = (qweight.unsqueeze(-1) >> places).bitwise_and(15).sub(8)
        w = codes.to(torch.float16).view(n, k // GROUP, GROUP) * scales.unsqueeze(-1)
        torch.matmul(x_t[i], w.view(n, k).t(), out=y_t[i])

    return _work(case, launch, xs, ys, expected, budget)


def _tinygemm(case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float) -> gate.Work:
    """torch's own INT4 product, in BF16 with a scale and a zero point a group: judged on those operands."""
    import cupy
    import torch

    weights, w = operands.tinygemm
    x_t = [x.to(torch.bfloat16) for x in _torch_of(xs)]
    outputs: list[list[Any]] = [[torch.empty_like(y, dtype=torch.bfloat16)] for y in _torch_of(ys)]
    exact = x_t[0].double() @ w.double().T
    baseline = torch.matmul(x_t[0], w.to(torch.bfloat16).T).double()
    allowed = max(2 * float((baseline - exact).abs().max()), float(exact.abs().max()) * 2**-8)
    judged = cupy.from_dlpack(exact)

    def launch(i: int) -> None:
        outputs[i][0] = torch._weight_int4pack_mm(x_t[i], weights[i][0], GROUP, weights[i][1])

    return gate.Work(case.id, launch, [[x] for x in x_t], outputs, lambda: judged, allowed)


def _humming(case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float) -> gate.Work:
    """humming-kernels with its own quantisation of our weights and its own tuning, judged on what it has."""
    layers, w = operands.humming
    x_t, y_t = _torch_of(xs), _torch_of(ys)
    judged = products.oracle(w, xs[0])
    allowed = products.budget(w.astype("float16"), xs[0], judged, "float16")

    def launch(i: int) -> None:
        layers[i](x_t[i], outputs=y_t[i])

    return _work(case, launch, xs, ys, judged, allowed)


def _gemlite(case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float) -> gate.Work:
    """gemlite's A16W4 on our very codes, tuned by itself."""
    import torch
    from gemlite.helper import A16W4_HQQ_INT

    scales = torch.from_dlpack(operands.rows.scales)
    made = A16W4_HQQ_INT(dtype=torch.float16).from_weights(
        torch.from_dlpack(operands.all_codes), scales.clone(), torch.full_like(scales, 8)
    )
    layers = [made, *(copy.deepcopy(made) for _ in range(operands.count - 1))]
    x_t = _torch_of(xs)
    outputs: list[list[Any]] = [[y] for y in _torch_of(ys)]

    def launch(i: int) -> None:
        outputs[i][0] = layers[i](x_t[i])

    return gate.Work(case.id, launch, [[x] for x in xs], outputs, lambda: expected, budget)


def _bitsandbytes(
    case: Case, operands: Operands, xs: Any, ys: Any, expected: Any, budget: float
) -> gate.Work:
    """bitsandbytes' NF4, a format of its own (blocks of 64), judged on the weights it holds."""
    import bitsandbytes
    import cupy
    import torch

    functional = bitsandbytes.functional
    weights = torch.from_dlpack(operands.halves[0])
    held = [functional.quantize_4bit(weights, quant_type="nf4") for _ in range(operands.count)]
    w = cupy.from_dlpack(functional.dequantize_4bit(*held[0]).contiguous())
    judged = products.oracle(w, xs[0])
    allowed = products.budget(w, xs[0], judged, "float16")
    x_t = _torch_of(xs)
    outputs: list[list[Any]] = [[y] for y in _torch_of(ys)]

    def launch(i: int) -> None:
        outputs[i][0] = bitsandbytes.matmul_4bit(x_t[i], held[i][0].t(), quant_state=held[i][1])

    return gate.Work(case.id, launch, [[x] for x in xs], outputs, lambda: judged, allowed)


_PEERS: dict[str, Callable[..., gate.Work]] = {
    "torch.matmul": _matmul,
    TWO_OP: _two_op,
    TWO_OP_TORCH: _two_op_torch,
    TINYGEMM: _tinygemm,
    "humming": _humming,
    "gemlite": _gemlite,
    "bitsandbytes": _bitsandbytes,
}
