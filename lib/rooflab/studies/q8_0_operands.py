"""Operands and float64 judges of products with Q8_0 weights, which studies q8_0 and mmq share."""

from __future__ import annotations

from typing import Any

import numpy as np

from rooflab import ops
from rooflab.numerics.quant import BLOCK, Planes
from rooflab.ops import q8_0
from rooflab.records.case import Case
from rooflab.runtime import nvrtc
from rooflab.studies import products
from rooflab.studies.base import Described, macros_of, tunables
from rooflab.studies.buffers import SEED

CHAIN, LAYERS = (8960, 1536), 8  # width inside and outside of a chain's layers
PROMPT, EMBEDDING = 1848, (65536, 2560)  # tokens of a prompt; rows and width of an embedding table
JUDGED = ((256, 256), (1024, 1024), (64, 2560))  # (n, k) of the source's tests
TOLERANCE = 0.02  # of the outputs' RMS, by which a product may miss that of unquantised activations
SIDE, SIDE_TOKENS = (10752, 2560), 512  # the source's per-layer embedding projection, 110 MB in FP32
WEIGHT_BYTES = 34 / 32
# options that are no macros
_OTHERS = ("layers", "bare", "kept", "fresh", "pooled", "exact", "unquantised")


def chain_products(n: int, k: int, layers: int) -> list[tuple[str, tuple[int, int], str]]:
    """The products of a chain of `layers`, k numbers in and n within each: the name of the buffer that a
    product reads, the shape (rows, columns) of its weights, the name of the buffer that it writes.
    """
    shapes, names = [(n, k), (k, n)] * layers, {n: "wide", k: "narrow"}
    writes = [*(names[rows] for rows, _ in shapes[:-1]), "out"]
    return list(zip(["x", *writes], shapes, writes, strict=False))


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case; of a chain those of its product."""
    ladder = q8_0.LADDERS["q8_0" if case.operator in ("chain", "capture") else case.operator]
    rung = ops.rung_of(ladder, case.impl, "")
    macros = rung.with_defaults({**q8_0.options_for(rung, case.batch or 1), **macros_of(case, *_OTHERS)})
    return rung, macros, q8_0.launch_rule(rung) + (quantiser_rule() if case.operator == "chain" else "")


def quantiser_rule() -> str:
    """Launch rule and source of the quantiser, which belong to the rule of a product that quantises first."""
    quantiser = ops.rung_of(q8_0.LADDERS["q8_1"], None, q8_0.DEFAULT["q8_1"])
    return q8_0.launch_rule(quantiser) + nvrtc.whole_source(quantiser.path)


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


def expect(how: str, w: Any, given: Any, x: Any, halved: bool = False) -> tuple[Any, float]:
    """The expected product and the error allowed: of w and `given`, the activations that the kernel gets, in
    float64 within the usual budget, whose baseline makes halves of w if the kernel does (`halved`); "exact":
    to the last bit of the output; "unquantised": of w and x, as they were before they were quantised, within
    TOLERANCE of the outputs' RMS.
    """
    expected = products.oracle(w, x.astype("float32") if how == "unquantised" else given)
    if how == "unquantised":
        return expected, TOLERANCE * float((expected**2).mean()) ** 0.5
    if how == "exact":
        return expected.astype("float16").astype("float64"), 0.0
    if halved:
        w, given = w.astype("float16"), x
    return expected, products.budget(w, given, expected, "float16")
