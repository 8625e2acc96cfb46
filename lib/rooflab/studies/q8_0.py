"""Study `q8_0` (lesson 05): decode on Q8_0 weights, quantising, embedding, dequantising, graphs.

The decode product takes its activations quantised (the quantiser is a case of its own); chains of products
quantise between them, as a decoder must. Two options of a product's case change what judges it: exact=1
gives scales that are powers of two, so that any rounding but the output's is an error; unquantised=1 gives
the course's source's data and compares with the product of activations that were never quantised.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.bench import clock, gate
from rooflab.errors import GateError
from rooflab.hardware import roofline
from rooflab.numerics.quant import BLOCK, Planes, quantise_q8_1, to_bytes
from rooflab.ops import Rung, q8_0
from rooflab.records.case import Case, options
from rooflab.runtime import launch_cache, nvrtc
from rooflab.studies import products
from rooflab.studies.base import Context, Count, Sized, Study, in_state, tunables, turn
from rooflab.studies.streams import SEED

SHAPES = ((4096, 14336), (14336, 4096), (8192, 8192), (8960, 1536), (1536, 8960))  # (n, k); the first leads
BATCHES = tuple(range(1, 9))
QUANTISED = (1, 8, 64, 512, 1848)  # tokens of the quantiser's cases
PROMPT, EMBEDDING = 1848, (65536, 2560)  # tokens of a prompt; rows and width of an embedding table
CHAIN, LAYERS = (8960, 1536), 8  # width inside and outside of a chain's layers
CAPTURED = (4096, 4096)  # (n, k) of the product that captures are tried on
JUDGED = ((256, 256), (1024, 1024), (64, 2560))  # (n, k) of the source's tests
TOLERANCE = 0.02  # of the outputs' RMS, by which a product may miss that of unquantised activations
SIDE, SIDE_TOKENS = (10752, 2560), 512  # the source's per-layer embedding projection, 110 MB in FP32
COUNTERS = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "sm_pct", "l2_hit_pct", "occupancy_pct"),
    *("load_sectors_per_request", "load_efficiency_pct", "inst_executed", "issue_active"),
    "stall_long_scoreboard",
)
WEIGHT_BYTES = 34 / 32
_X_BYTES = {"half": 2.0, "blocks": 36 / 32, "planes": 34 / 32}
_NO_MACROS = (
    "layers",
    "bare",
    "kept",
    "fresh",
    "pooled",
    "exact",
    "unquantised",
)  # options that are not a rung's


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


def own_rung(case: Case) -> tuple[Rung, dict[str, int], str]:
    """Rung, macros and launch rule of an own case; of a chain those of its product."""
    ladder = q8_0.LADDERS["q8_0" if case.operator in ("chain", "capture") else case.operator]
    rung = ops.rung_of(ladder, case.impl, "")
    chosen = {name.upper(): value for name, value in tunables(case).items() if name not in _NO_MACROS}
    macros = rung.with_defaults({**q8_0.options_for(rung, case.batch or 1), **chosen})
    rule = q8_0.launch_rule(rung)
    if case.operator == "chain":
        quantiser = ops.rung_of(q8_0.LADDERS["q8_1"], None, q8_0.DEFAULT["q8_1"])
        rule += q8_0.launch_rule(quantiser) + nvrtc.whole_source(quantiser.path)
    return rung, macros, rule


def quantised(n: int, k: int, seed: int = SEED) -> Planes:
    """Random weights in planes, quantised by the course's own kernel (bit for bit what formats does)."""
    return q8_0.quantise(products.weights(n, k, seed=seed))


def widened(planes: Planes) -> Any:
    """What planes stand for, exact in FP32."""
    rows, k = planes.quants.shape
    quants = planes.quants.reshape(rows, k // BLOCK, BLOCK).astype("float32")
    return (quants * planes.scales.astype("float32")[..., None]).reshape(rows, k)


def blocks_of(planes: Planes) -> q8_0.Blocks:
    """Planes as the 34-byte blocks that they were made from."""
    xp = ops.arrays()
    rows, k = planes.quants.shape
    out = xp.empty((rows, k // BLOCK, 34), "uint8")
    out[..., :2] = planes.scales.view("uint8").reshape(rows, k // BLOCK, 2)
    out[..., 2:] = planes.quants.view("uint8").reshape(rows, k // BLOCK, BLOCK)
    return q8_0.Blocks(out.reshape(rows, -1))


def copied(operand: Any, count: int) -> list[Any]:
    """An operand and count - 1 copies of it, each in memory of its own."""
    if isinstance(operand, tuple):
        parts = [products.copied(part, count) for part in operand]
        return [type(operand)(*part) for part in zip(*parts, strict=True)]
    return products.copied(operand, count)


def judge_of(case: Case) -> str:
    """What judges a product besides the usual budget: "exact", "unquantised" or ""."""
    return next((how for how in ("exact", "unquantised") if tunables(case).get(how)), "")


def operands(how: str, n: int, k: int, batch: int) -> tuple[Planes, Any]:
    """Weights in planes and FP16 activations, as `how` (see judge_of) has them drawn.

    "exact": every quant is a whole number in [-127, 127], and both scales are powers of two, so that each
    product and each sum of them is exact in FP32. "unquantised": as the course's source draws them, with
    scales in [0.01, 0.1] and activations in [-1, 1].
    """
    if not how:
        return quantised(n, k), products.activations(batch, k)
    xp, generator = ops.arrays(), np.random.default_rng(SEED + 31 * n + 7 * k + batch)
    quants = generator.integers(-127, 128, (n, k)).astype(np.int8)
    if how == "exact":
        scales = np.full((n, k // BLOCK), 2.0**-8, np.float16)
        x = generator.integers(-127, 128, (batch, k)) * 2.0**-6
        x[:, ::BLOCK] = 127 * 2.0**-6  # the largest of its block, so that the block's scale is 2^-6
    else:
        scales = generator.uniform(0.01, 0.1, (n, k // BLOCK)).astype(np.float16)
        x = generator.uniform(-1, 1, (batch, k))
    return Planes(xp.asarray(scales), xp.asarray(quants)), xp.asarray(x.astype(np.float16))


def expect(how: str, w: Any, given: Any, x: Any) -> tuple[Any, float]:
    """The expected product and the error allowed: of w and `given`, the activations that the kernel gets, in
    float64 within the usual budget; "exact": to the last bit of the output; "unquantised": of w and x, as
    they were before they were quantised, within TOLERANCE of the outputs' RMS.
    """
    expected = products.oracle(w, x.astype("float32") if how == "unquantised" else given)
    if how == "unquantised":
        return expected, TOLERANCE * float((expected**2).mean()) ** 0.5
    if how == "exact":
        return expected.astype("float16").astype("float64"), 0.0
    return expected, products.budget(w, given, expected, "float16")


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

    def profiles(
        self, effort: str = "full", device: Sized | None = None
    ) -> list[tuple[str, list[Case], Sequence[str] | None]]:
        return [("ncu", counted(), COUNTERS), ("gate", captures(), None)]

    def verdicts(self, cases: Sequence[Case]) -> pd.DataFrame:
        return verdicts(cases)

    def _bytes(self, case: Case) -> int:
        n, k, batch = case.n or 0, case.k or 0, case.batch or 1
        if case.operator == "q8_1":
            return int(batch * k * (2 + (36 if case.impl == "1_blocks" else 34) / 32))
        if case.operator == "embedding_q8_0":
            return int(batch * k * (WEIGHT_BYTES + 4))
        if case.operator == "dequantise":
            return int(n * k * (WEIGHT_BYTES + 2))
        if case.operator == "side":
            return int(roofline.gemm_bytes(batch, n, k, 4, 4, 4))
        if case.operator == "chain":
            return int(2 * (tunables(case)["layers"]) * n * k * WEIGHT_BYTES)
        weight = WEIGHT_BYTES if case.kind == "own" else 2
        x = _X_BYTES[q8_0.TAKES[case.impl][1]] if case.kind == "own" else 2
        return int(roofline.gemm_bytes(batch, n, k, weight, x, 2))

    def _copies(self, case: Case) -> int:
        return (
            1
            if case.operator in ("embedding_q8_0", "chain", "capture")
            else products.copies(case, self._bytes(case))
        )

    def memory_bytes(self, case: Case) -> int:
        if case.operator == "chain":
            return 2 * self._bytes(case)
        return self._copies(case) * self._bytes(case)

    def shared_bytes(self, case: Case) -> int:
        return 16 * (case.n or 0) * (case.k or 0) + 8 * (case.batch or 1) * ((case.n or 0) + (case.k or 0))

    def group(self, case: Case) -> tuple:
        # Contestants of one comparison may differ in format: cuBLAS has the weights in FP16.
        return (case.operator, case.n, case.k, case.batch, case.cache, turn(case), judge_of(case))

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        builders: dict[str, Callable[..., list[gate.Work]]] = {
            "q8_0": _products,
            "q8_1": _quantisers,
            "embedding_q8_0": _embeddings,
            "dequantise": _dequantisers,
            "chain": _chains,
            "side": _side,
        }
        works: list[gate.Work] = []
        for group in self.groups(cases):
            works += builders[group[0].operator](group, self._copies(group[0]))
        return works

    def count(self, case: Case) -> Count:
        n, k, batch = case.n or 0, case.k or 0, case.batch or 1
        flops = roofline.gemm_flops(batch, n, k) if case.operator in ("q8_0", "side") else None
        if case.operator == "chain":
            flops = 2 * tunables(case)["layers"] * roofline.gemm_flops(1, n, k)
        cold = case.cache == "cold" and case.operator in ("q8_0", "chain")
        return Count(self._bytes(case), flops, "dram_read" if cold else "")

    def predict(self, case: Case, context: Context) -> float | None:
        moved = self._bytes(case)
        if context.device is None or (case.cache == "warm" and moved <= context.device.l2_mb * 2**20):
            return None  # from L2: the datasheet has no bandwidth for it
        if case.impl == "torch.mv":
            moved = int((case.batch or 1) * roofline.gemm_bytes(1, case.n or 0, case.k or 0, 4, 4, 4))
        if case.operator == "side" and case.impl != "torch.mv":
            peak = context.device.tf32_tensor if case.format == "tf32" else context.device.fp32
            return roofline.bound(moved, self.count(case).flops or 0, context.device.dram_gb_s, peak).us
        return moved / context.device.dram_gb_s / 1e3

    def rung(self, case: Case) -> tuple[Rung, Mapping[str, int], str] | None:
        return own_rung(case) if case.kind == "own" else None


def _products(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Contestants of one shape and number of tokens, each judged on the operands it is given."""
    xp = ops.arrays()
    n, k, batch = (cases[0].n or 0, cases[0].k or 0, cases[0].batch or 1)
    how = judge_of(cases[0])
    planes, x = operands(how, n, k, batch)
    w32 = widened(planes)
    given = {
        "half": (x, x.astype("float32")),
        "planes": (q8_0.quantise(x), widened(q8_0.quantise(x))),
        "blocks": (q8_0.quantise(x, rung="1_blocks"), widened(q8_0.quantise(x))),
    }
    weights: dict[str, list[Any]] = {}

    def rotated(kind: str) -> list[Any]:
        if kind not in weights:
            made = {
                "planes": lambda: planes,
                "blocks": lambda: blocks_of(planes),
                "half": lambda: w32.astype("float16"),
            }
            weights[kind] = copied(made[kind](), count)
        return weights[kind]

    known: dict[tuple[str, bool], tuple[Any, float]] = {}

    def judge(kind: str, rounded: bool) -> tuple[Any, float]:
        """The exact product and its error budget; `rounded` weights are FP16, as cuBLAS has them."""
        if (kind, rounded) not in known:
            w = w32.astype("float16").astype("float32") if rounded else w32
            known[kind, rounded] = expect(how, w, given[kind][1], x)
        return known[kind, rounded]

    works = []
    for case in cases:
        outputs = [[xp.empty((batch, n), "float16")] for _ in range(count)]
        w_kind, x_kind = q8_0.TAKES[case.impl][:2] if case.kind == "own" else ("half", "half")
        ws, xs = rotated(w_kind), copied(given[x_kind][0], count)
        launch = (
            _own(case, ws, xs, outputs)
            if case.kind == "own"
            else products.torch_matmul(ws, xs, [out for (out,) in outputs])
        )
        expected, budget = judge(x_kind, case.kind != "own")
        inputs = [q8_0.arrays_of(w) + q8_0.arrays_of(a) for w, a in zip(ws, xs, strict=True)]
        works.append(gate.Work(case.id, launch, inputs, outputs, functools.partial(_same, expected), budget))
    return works


def _same(expected: Any) -> Any:
    return expected


def _own(case: Case, ws: Sequence[Any], xs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[int], None]:
    rung, macros, _ = own_rung(case)
    return lambda i: q8_0.matvec(xs[i], ws[i], out=outputs[i][0], rung=rung.name, **macros)


def _quantisers(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Both layouts, judged bit for bit against NumPy."""
    batch, k = cases[0].batch or 1, cases[0].k or 0
    xs = products.copied(products.activations(batch, k), count)
    return [_quantiser(case, xs, quantise_q8_1(ops.arrays().asnumpy(xs[0]))) for case in cases]


def _quantiser(case: Case, xs: Sequence[Any], exact: np.ndarray) -> gate.Work:
    xp = ops.arrays()
    rung, macros, _ = own_rung(case)
    made = [q8_0.quantise(x, rung=rung.name, **macros) for x in xs]  # written again by every launch
    parts = (
        [exact["q"], np.ascontiguousarray(exact["d"])] if isinstance(made[0], Planes) else [to_bytes(exact)]
    )
    expected = xp.asarray(np.concatenate([_bytes_of(np.ascontiguousarray(part)) for part in parts]))

    def launch(i: int) -> None:
        q8_0.quantise(xs[i], out=made[i], rung=rung.name, **macros)

    def result(arrays: Sequence[Any]) -> Any:
        return xp.concatenate([_bytes_of(array) for array in arrays])

    outputs = [q8_0.arrays_of(out) for out in made]
    return gate.Work(case.id, launch, [[x] for x in xs], outputs, lambda: expected, result=result)


def _bytes_of(array: Any) -> Any:
    return array.reshape(-1).view("uint8")


def _embeddings(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """A prompt's rows, exact; token by token each lands in one place and is copied to its own."""
    xp = ops.arrays()
    rows, k = cases[0].n or 0, cases[0].k or 0
    planes = quantised(rows, k)
    table, tokens = blocks_of(planes), xp.random.default_rng(SEED).integers(0, rows, cases[0].batch, "int32")
    expected = widened(Planes(planes.scales[tokens], planes.quants[tokens])).astype("float64")
    outputs = [xp.empty((len(tokens), k), "float32") for _ in cases]
    inputs = [table.data, tokens]
    return [
        gate.Work(case.id, _embed(case, table, tokens, out), [inputs], [[out]], lambda: expected)
        for case, out in zip(cases, outputs, strict=True)
    ]


def _embed(case: Case, table: q8_0.Blocks, tokens: Any, out: Any) -> Callable[[int], None]:
    rung, macros, _ = own_rung(case)
    place = ops.arrays().empty(out.shape[1], "float32")

    def launch(_: int) -> None:
        if rung.name == "2_batched":
            q8_0.embedding_q8_0(table, tokens, out=out, rung=rung.name, **macros)
            return
        for i in range(len(out)):
            q8_0.embedding_q8_0(table, tokens, index=i, out=place, rung=rung.name, **macros)
            _copy(out[i], place)

    return launch


def _copy(to: Any, array: Any) -> None:
    """A copy on the stream that kernels are launched on."""
    if isinstance(to, np.ndarray):
        to[:] = array
        return
    import cupy

    kind = cupy.cuda.runtime.memcpyDeviceToDevice
    cupy.cuda.runtime.memcpyAsync(to.data.ptr, array.data.ptr, array.nbytes, kind, nvrtc.current_stream())


def _dequantisers(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Q8_0 to FP16, exact."""
    planes = quantised(cases[0].n or 0, cases[0].k or 0)
    ws, expected = copied(blocks_of(planes), count), widened(planes).astype("float16").astype("float64")
    return [_dequantiser(case, ws, expected) for case in cases]


def _dequantiser(case: Case, ws: Sequence[q8_0.Blocks], expected: Any) -> gate.Work:
    rung, macros, _ = own_rung(case)
    outputs = [[ops.arrays().empty((case.n or 0, case.k or 0), "float16")] for _ in ws]

    def launch(i: int) -> None:
        q8_0.dequantise(ws[i], out=outputs[i][0], rung=rung.name, **macros)

    return gate.Work(case.id, launch, [[w.data] for w in ws], outputs, lambda: expected)


def _chains(cases: Sequence[Case], _: int) -> list[gate.Work]:
    return [_chain(case) for case in cases]


def _chain(case: Case) -> gate.Work:
    """Layers of two products with a quantiser before each, in buffers that exist before any capture.

    Called eagerly it is judged by the same chain with every product in float64; replayed as a graph, or
    called bare, it must leave the very bits that an eager call leaves.
    """
    xp = ops.arrays()
    n, k, layers = case.n or 0, case.k or 0, tunables(case)["layers"]
    rung, macros, _ = own_rung(case)
    shapes = [(n, k), (k, n)] * layers
    # A mean would be multiplied by sixteen products in a row, beyond FP16: these weights have none.
    drawn = [products.weights(*shape, seed=SEED + i) for i, shape in enumerate(shapes)]
    weights = [q8_0.quantise(w - w.mean(dtype="float32").astype("float16")) for w in drawn]
    x, out = products.activations(1, k), xp.empty((1, k), "float16")
    between = {rows: xp.empty((1, rows), "float16") for rows in (n, k)}
    room = {width: q8_0.quantise(xp.zeros((1, width), "float16")) for width in (n, k)}
    steps: list[Step] = []
    for w in weights:
        source = steps[-1].to if steps else x
        to = out if w is weights[-1] else between[len(w.quants)]
        steps.append(Step(source, room[source.shape[1]], w, to))

    def launch(_: int = 0) -> None:
        for source, quants, w, to in steps:
            q8_0.quantise(source, out=quants)
            q8_0.matvec(quants, w, out=to, rung=rung.name, **macros)

    expected, budget = _chain_judge(weights, x)
    bare = bool(tunables(case).get("bare"))
    if case.clock == "graph" or bare:
        launch()
        gate.synchronize(out)
        bits = out.astype("float64")
        if not float(xp.abs(bits - expected).max()) <= budget:
            raise GateError(f"{case.id}: the eager chain is beyond its budget, so its bits are no oracle.")
        expected, budget = bits, 0.0
    inputs = [[x, *(array for w in weights for array in w)]]

    def checked(_: int) -> None:
        with launch_cache.whole():
            launch()

    run = _packed(steps, rung, macros) if bare else launch if tunables(case).get("kept") else checked
    return gate.Work(case.id, run, inputs, [[out]], lambda: expected, budget)


class Step(NamedTuple):
    """A chain's step: FP16 activations, room for them quantised, weights, and where the product goes."""

    source: Any
    quants: Planes
    w: Planes
    to: Any


def _packed(steps: Sequence[Step], rung: Rung, macros: Mapping[str, int]) -> Callable[[int], None]:
    """The launches that quantise and matvec make of these steps, each with its arguments packed once."""
    quantiser = ops.rung_of(q8_0.LADDERS["q8_1"], None, q8_0.DEFAULT["q8_1"])
    threads = quantiser.with_defaults({})["THREADS"]
    quantise, product = (
        ops.loaded(r, tuple(sorted(r.with_defaults(m).items()))) for r, m in ((quantiser, {}), (rung, macros))
    )
    launches = []
    for source, quants, w, to in steps:
        n, k = w.quants.shape
        count = k // BLOCK
        given = [source, *q8_0.arrays_of(quants), ctypes.c_longlong(count)]
        launches.append(quantise.prepared(math.ceil(4 * count / threads), threads, given))
        blocks, block, shared = q8_0.matvec_launch(rung, n, macros)
        given = [*q8_0.arrays_of(w), *q8_0.arrays_of(quants), to, ctypes.c_int(n), ctypes.c_int(k)]
        launches.append(product.prepared(blocks, block, given, shared))

    def launch(_: int = 0) -> None:
        for run in launches:
            run()

    return launch


def _chain_judge(weights: Sequence[Planes], x: Any) -> tuple[Any, float]:
    """The chain's end with products in float64, and the budget that the same chain in float32 gives."""
    xp = ops.arrays()
    ends = []
    for dtype in ("float64", "float32"):
        state = x
        for w in weights:
            state = (widened(q8_0.quantise(state)).astype(dtype) @ widened(w).astype(dtype).T).astype(
                "float16"
            )
        ends.append(state.astype("float64"))
    return ends[0], gate.error_budget(float(xp.abs(ends[1] - ends[0]).max()), ends[0], "float16")


def _side(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """An FP32 matrix times many tokens: token by token, or at once, in FP32 or on the TF32 tensor cores."""
    import cupy
    import torch

    n, k, batch = cases[0].n or 0, cases[0].k or 0, cases[0].batch or 1
    w, x = products.weights(n, k, "float32"), products.activations(batch, k, "float32")
    expected, ws, works = products.oracle(w, x), products.copied(w, count), []
    tokens = torch.from_dlpack(x)
    for case in cases:
        outputs = [[cupy.empty((batch, n), "float32")] for _ in range(count)]
        # The baseline sums in the opposite order of k, on the units that the case uses.
        baseline = cupy.empty((batch, n), "float32")
        turned = [torch.from_dlpack(w).flip(1).contiguous()]
        _streamed(case, turned, tokens.flip(1).contiguous(), [torch.from_dlpack(baseline)])(0)
        budget = gate.error_budget(float(cupy.abs(baseline - expected).max()), expected, "float32")
        results = [torch.from_dlpack(out) for (out,) in outputs]
        launch = _streamed(case, [torch.from_dlpack(copy) for copy in ws], tokens, results)
        works.append(
            gate.Work(case.id, launch, [[copy, x] for copy in ws], outputs, lambda: expected, budget)
        )
    return works


def _streamed(case: Case, ws: Sequence[Any], x: Any, outputs: Sequence[Any]) -> Callable[[int], None]:
    """A launcher of the case's torch calls: one product, or a matrix-vector product a token."""
    import torch

    def launch(i: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = case.format == "tf32"
        if case.impl == "torch.mv":
            for token in range(len(x)):
                torch.mv(ws[i], x[token], out=outputs[i][token])
        else:
            torch.matmul(x, ws[i].t(), out=outputs[i])
        torch.backends.cuda.matmul.allow_tf32 = False

    return launch


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
    out, room = cupy.empty((1, n), "float16"), None if how.get("fresh") else q8_0.quantise(x)

    def call() -> None:
        q8_0.matvec(q8_0.quantise(x, out=room), w, out=out, rung=rung.name, **macros)

    call()
    bits = out.get()
    with clock._stream() as stream:
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
        other = cupy.full(k, 7, "int8")  # as large as the quants; whoever else works on this stream
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
        if not np.array_equal(out.get(), bits):
            return "at replay", "The replay's bits are not those of the call."
        lost = int((other != 7).sum())
    if lost:
        return "at replay", f"The replay wrote over {lost} of {k} bytes of an array made after the capture."
    return "", "The replay left the very bits of the call, and nothing else."
