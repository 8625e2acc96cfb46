"""Contestants of study `int4`: our rungs, both two-op products, and the libraries' kernels on our weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rooflab.bench import gate
from rooflab.numerics import quant
from rooflab.numerics.quant import GROUP
from rooflab.ops import int4
from rooflab.records.case import Case
from rooflab.records.csv_table import plain
from rooflab.studies import buffers, products
from rooflab.studies.base import (
    tunables,
)
from rooflab.studies.buffers import SEED
from rooflab.studies.int4 import LIBRARIES, TINYGEMM, TWO_OP, TWO_OP_TORCH, operand_bytes, own_rung

# Libraries may add partial sums in FP16, gemlite in an order that changes from launch to launch, and are not
# turned away for it: they get this many times the budget, and their row records the error.
SLACK = 8.0


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


def contestants(group: Sequence[Case]) -> list[gate.Work]:
    """Contestants of one shape and number of tokens."""
    import cupy

    first = group[0]
    n, k, batch = first.matrix
    operands = _operands(n, k, buffers.copies(first, operand_bytes(first)), tunables(first).get("seed"))
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
    reason = f"{impl} cannot make this layer: {plain(str(error)) or type(error).__name__}"

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
