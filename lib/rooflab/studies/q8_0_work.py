"""Contestants of study `q8_0`: each case's launches, operands and judge."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import GateError
from rooflab.numerics.quant import BLOCK, Planes, quantise_q8_1, to_bytes
from rooflab.ops import Rung, q8_0
from rooflab.records.case import Case
from rooflab.runtime import launch_cache, nvrtc
from rooflab.studies import buffers, products
from rooflab.studies.base import tunables
from rooflab.studies.buffers import SEED
from rooflab.studies.q8_0_operands import (
    blocks_of,
    chain_products,
    expect,
    judge_of,
    operands,
    own_rung,
    quantised,
    widened,
)


def matvecs(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Contestants of one shape and number of tokens, each judged on the operands it is given."""
    xp = ops.arrays()
    n, k, batch = cases[0].matrix
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
            weights[kind] = buffers.copied(made[kind](), count)
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
        ws, xs = rotated(w_kind), buffers.copied(given[x_kind][0], count)
        launch = (
            _own(case, ws, xs, outputs)
            if case.kind == "own"
            else products.torch_matmul(ws, xs, [out for (out,) in outputs])
        )
        expected, budget = judge(x_kind, case.kind != "own")
        inputs = [q8_0.arrays_of(w) + q8_0.arrays_of(a) for w, a in zip(ws, xs, strict=True)]
        works.append(gate.Work(case.id, launch, inputs, outputs, gate.constant(expected), budget))
    return works


def _own(case: Case, ws: Sequence[Any], xs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[int], None]:
    rung, macros, _ = own_rung(case)
    return lambda i: q8_0.matvec(xs[i], ws[i], out=outputs[i][0], rung=rung.name, **macros)


def quantisers(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Both layouts, judged bit for bit against NumPy."""
    batch, k = cases[0].batch or 1, cases[0].k or 0
    xs = buffers.copied(products.activations(batch, k), count)
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


def embeddings(cases: Sequence[Case], count: int) -> list[gate.Work]:
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


def dequantisers(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """Q8_0 to FP16, exact."""
    planes = quantised(cases[0].n or 0, cases[0].k or 0)
    ws, expected = (
        buffers.copied(blocks_of(planes), count),
        widened(planes).astype("float16").astype("float64"),
    )
    return [_dequantiser(case, ws, expected) for case in cases]


def _dequantiser(case: Case, ws: Sequence[q8_0.Blocks], expected: Any) -> gate.Work:
    rung, macros, _ = own_rung(case)
    outputs = [[ops.arrays().empty((case.n or 0, case.k or 0), "float16")] for _ in ws]

    def launch(i: int) -> None:
        q8_0.dequantise(ws[i], out=outputs[i][0], rung=rung.name, **macros)

    return gate.Work(case.id, launch, [[w.data] for w in ws], outputs, lambda: expected)


def chains(cases: Sequence[Case], _: int) -> list[gate.Work]:
    return [_chain(case) for case in cases]


def _chain(case: Case) -> gate.Work:
    """Layers of two products with a quantiser before each, in buffers that exist before any capture.

    Called eagerly it is judged by the same chain with every product in float64; replayed as a graph, or
    called bare, it must leave the very bits that an eager call leaves.
    """
    xp = ops.arrays()
    n, k, layers = case.n or 0, case.k or 0, tunables(case)["layers"]
    rung, macros, _ = own_rung(case)
    plan = chain_products(n, k, layers)
    # A mean would be multiplied by sixteen products in a row, beyond FP16: these weights have none.
    drawn = [products.weights(*shape, seed=SEED + i) for i, (_, shape, _) in enumerate(plan)]
    weights = [q8_0.quantise(w - w.mean(dtype="float32").astype("float16")) for w in drawn]
    x, out = products.activations(1, k), xp.empty((1, k), "float16")
    held = {"x": x, "out": out, "wide": xp.empty((1, n), "float16"), "narrow": xp.empty((1, k), "float16")}
    workspace = {width: q8_0.quantise(xp.zeros((1, width), "float16")) for width in (n, k)}
    steps = [
        Step(held[reads], workspace[columns], w, held[writes])
        for (reads, (_, columns), writes), w in zip(plan, weights, strict=True)
    ]

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
    """A chain's step: FP16 activations, workspace for them quantised, weights, and where the product goes."""

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


def side(cases: Sequence[Case], count: int) -> list[gate.Work]:
    """An FP32 matrix times many tokens: token by token, or at once, in FP32 or on the TF32 tensor cores."""
    import cupy
    import torch

    n, k, batch = cases[0].matrix
    w, x = products.weights(n, k, "float32"), products.activations(batch, k, "float32")
    expected, ws, works = products.oracle(w, x), buffers.copied(w, count), []
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
