"""A batch's decode step as a chain of dependent launches: products with what follows them, norms, attention.

Each kernel lets its successor start at once, which loads what does not depend on the step (weights, the keys
and values of earlier tokens) before it waits for the kernel before it. So nothing but weights, positions and
what earlier steps wrote may be read ahead: the first launch of a step must not be a dependent one.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.numerics import quant
from rooflab.numerics.quant import Planes
from rooflab.numerics.rotary import rotations
from rooflab.ops import Rung, arch_of, batch_plan, check_array, decoder, int4, loaded, with_target
from rooflab.ops.attention_operands import Workspace, workspace_for
from rooflab.ops.batch_plan import MOST, macros_for, plan_for, splits_for, warps_for
from rooflab.ops.decoder_operands import winner
from rooflab.ops.int4 import Tiles
from rooflab.records.fingerprint import source_of_callable

PLACE = 8.5  # of its ladders among all of them: in the order of the lessons
ROWS, ROPE, GATE, PARTS, BEST = range(5)  # what becomes of a product, as the macro EPILOGUE says
_MACROS = {
    "FORMAT": 0,
    "TOKENS": 8,
    "WARPS": 4,
    "CHUNKS": 1,
    "STAGES": 4,
    "AHEAD": 4,
    "TILES": 2,
    "EPILOGUE": 0,
}

LADDERS: dict[str, tuple[Rung, ...]] = {
    "batch_product": (
        Rung(
            "batch_product",
            "1_pdl",
            "batch_product_pdl",
            "weights on their way before x is there, and what follows on the sums",
            defines={**_MACROS, "DRAFTS": 0},
            dynamic_shared=4 * 4 * 2048 + 2 * 2 * 4 * 512,
        ),
    ),
    "batch_rmsnorm": (
        Rung(
            "batch_rmsnorm",
            "1_pdl",
            "batch_rmsnorm_pdl",
            "parts of a branch added up where they are read",
            defines={"THREADS": 384, "PARTS": 1, "SPLITS": 1},
        ),
    ),
    "batch_attention": (
        Rung(
            "batch_attention",
            "1_pdl",
            "batch_attention_pdl",
            "all keys but the newest on their way before queries are there",
            defines={"WARPS": 2, "STAGES": 2, "HEAD_DIM": 128, "TOKENS": 1},
            dynamic_shared=(8 + 2 * 2 * 32) * 2 * 136,
        ),
    ),
}


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    if rung.operator == "batch_rmsnorm":
        return source_of_callable(rmsnorm)
    if rung.operator == "batch_attention":
        return source_of_callable(attention, splits_for, warps_for)
    return source_of_callable(product, batch_plan.plan_for, batch_plan.cost, batch_plan.pace_of, macros_for)


class Heads(NamedTuple):
    """Where a product with queries', keys' and values' weights leaves its rows: biases [n] FP16 in the order
    of pair_heads, rotations [positions, head_dim / 2, 2] FP32, position [1] int32; keys and values FP16, a
    batch's cache [capacity, batch, kv_heads, head_dim], or one sequence's [capacity, kv_heads, head_dim],
    whose tokens at `position` and the places after it the rows are.
    """

    biases: Any
    rotations: Any
    position: Any
    keys: Any
    values: Any


def format_of(w: Any) -> str:
    """The format of a product's weights, as decoder.FORMATS spells it."""
    return "q8_0" if isinstance(w, Planes) else "int4_g128" if isinstance(w, Tiles) else "fp16"


_sms = functools.cache(ops.sms)  # which asks the driver for every attribute of the GPU


def sms_of(array: Any) -> int:
    """Multiprocessors that a product's rows are divided among: the GPU's, or 3 for an array on the CPU."""
    return 3 if isinstance(array, np.ndarray) else _sms()


def parts_of(n: int, k: int, batch: int, format: str, sms: int) -> int:
    """Parts of k that a product with EPILOGUE = PARTS leaves."""
    plan = plan_for(n, k, batch, format, True, sms)
    if plan is None:
        raise LaunchError(_refusal(n, k, batch, format))
    return plan.splits


def best_of(n: int, k: int, batch: int, format: str, sms: int) -> int:
    """Parts of the rows of which a product with BEST leaves the best."""
    plan = plan_for(n, k, batch, format, False, sms)
    if plan is None:
        raise LaunchError(_refusal(n, k, batch, format))
    return plan.blocks


def _refusal(n: int, k: int, batch: int, format: str) -> str:
    return (
        f"batch_product takes up to {MOST} tokens, rows by 16 and k by 64 (INT4: 64 and 128) that up to 16 "
        f"warps divide evenly and keep x of, not {batch} and [{n}, {k}] in {format}."
    )


def _check_weights(w: Any, format: str, n: int, k: int) -> list[Any]:
    """A product's weights as the two arguments that the kernel takes."""
    if format == "fp16":
        check_array("w", w, "float16", n * k, 16)
        return [w, w]
    if format == "q8_0":
        check_array("the quants of w", w.quants, "int8", n * k, 16)
        check_array("the scales of w", w.scales, "float16", n * k // 32, 16)
        return [w.quants, w.scales]
    check_array("blocks", w.blocks, "uint32", n // 64 * (k // 128) * 1056, 16)
    return [w.blocks, w.blocks]


@with_target()
def product(
    x: Any,
    w: Any,
    *,
    out: Any,
    then: int = ROWS,
    heads: Heads | None = None,
    best: Any = None,
) -> Any:
    """x [batch, k] FP16 times w [n, k] transposed, w an FP16 array, Planes of Q8_0 or Tiles of INT4, sums in
    FP32. `out` by what comes `then`: ROWS [batch, n] FP16; ROPE queries [batch, heads, head_dim] FP16, biased
    and rotated, with keys and values in the cache that `heads` names; GATE, of rows in the order of
    pair_gates, SiLU of the gates times the ups [batch, n / 2] FP16; PARTS [parts_of(...), batch, n] FP32,
    which add up to the product; BEST what ROWS leaves, and `best` [best_of(...), batch, 2] FP32, of each
    part of the rows each token's largest value and, as int32 bits, its row, of equals the first.
    """
    format = format_of(w)
    (batch, k), kind = (int(size) for size in x.shape), decoder.FORMATS.index(format)
    n = w.n if format == "int4_g128" else int((w.quants if format == "q8_0" else w).shape[0])
    plan = plan_for(n, k, batch, format, then == PARTS, sms_of(x))
    if plan is None:
        raise LaunchError(_refusal(n, k, batch, format))
    check_array("x", x, "float16", batch * k, 16)
    weights = _check_weights(w, format, n, k)
    (rung,) = LADDERS["batch_product"]
    if (then == ROPE) != (heads is not None):
        raise LaunchError("Heads are what ROPE needs, and nothing else takes them.")
    if (then == BEST) != (best is not None):
        raise LaunchError("What is best is what BEST leaves, and nothing else does.")
    if best is not None:
        check_array("best", best, "float32", 2 * plan.blocks * batch, 8)
    if heads is not None:
        _, count, head_dim = (int(size) for size in out.shape)
        capacity, *each, kv_heads, _ = (int(size) for size in heads.keys.shape)
        if (count + 2 * kv_heads) * head_dim != n or head_dim % 16:
            raise LaunchError(
                f"{n} rows are not {count} + 2 x {kv_heads} heads of {head_dim}, a multiple of 16."
            )
        if capacity > int(heads.rotations.shape[0]):
            raise LaunchError(
                f"Positions 0 to {capacity} are not among {int(heads.rotations.shape[0])} rotations."
            )
        check_array("out", out, "float16", batch * count * head_dim, 16)
        check_array("biases", heads.biases, "float16", n, 16)
        check_array("rotations", heads.rotations, "float32", None, 8)
        check_array("position", heads.position, "uint32", 1)
        for name, cache in (("keys", heads.keys), ("values", heads.values)):
            check_array(name, cache, "float16", capacity * (batch if each else 1) * kv_heads * head_dim, 16)
        more, sizes = list(heads), (count, kv_heads, head_dim)
    else:
        width = n // 2 if then == GATE else plan.splits * n if then == PARTS else n
        check_array("out", out, "float32" if then == PARTS else "float16", batch * width, 16)
        more, sizes = [x] * 5, (0, 0, 0)
    macros, shared = macros_for(plan, n, batch, kind, arch_of(x))
    macros |= {"FORMAT": kind, "EPILOGUE": then}
    macros["DRAFTS"] = int(heads is not None and len(heads.keys.shape) == 3)
    numbers = [ctypes.c_uint(v) for v in (n, k, batch)]
    arguments = [*weights, x, out, *numbers, *more, *(ctypes.c_int(v) for v in sizes)]
    arguments.append(x if best is None else best)
    function = loaded(rung, tuple(sorted(macros.items())))
    grid, dependent = (plan.blocks, plan.splits), arch_of(x) in ops.DEPENDENT
    function.launch(grid, 32 * plan.warps, arguments, shared=shared, dependent=dependent)
    return out


@with_target()
def rmsnorm(residual: Any, weights: Any, *, out: Any, parts: Any = None, epsilon: float = 1e-6) -> Any:
    """out [n, width] FP16 = the rows of residual [n, width] FP32 over their root mean square, times weights
    [width] FP16. With `parts` [splits, n, width] FP32 those are added to the residual first, in place.
    """
    n, width = (int(size) for size in residual.shape)
    if width % 4 or not 0 < width <= 8192:
        raise LaunchError(f"batch_rmsnorm takes rows of a multiple of 4 up to 8192, not {width}.")
    splits = 0 if parts is None else int(parts.shape[0])
    check_array("residual", residual, "float32", n * width, 16)
    check_array("weights", weights, "float16", width, 8)
    check_array("out", out, "float16", n * width, 16)
    if parts is not None:
        check_array("parts", parts, "float32", splits * n * width, 16)
    held = 1 if width <= 4096 else 2
    macros = {"PARTS": held, "THREADS": 32 * math.ceil(width / (128 * held)), "SPLITS": splits}
    (rung,) = LADDERS["batch_rmsnorm"]
    arguments = [residual, residual if parts is None else parts, weights, out, ctypes.c_int(width)]
    loaded(rung, tuple(sorted(macros.items()))).launch(
        n,
        macros["THREADS"],
        [*arguments, ctypes.c_float(epsilon)],
        dependent=arch_of(residual) in ops.DEPENDENT,
    )
    return out


@with_target()
def attention(
    q: Any, k: Any, v: Any, length: Any, *, out: Any, workspace: Workspace, scale: float | None = None
) -> Any:
    """out [heads, head_dim] FP16 = attention of one query a sequence, q [heads, head_dim], to the first
    `length` [1] int32 keys and values of a cache [capacity, kv_heads, head_dim], where the heads are those of
    all sequences. With q and out [tokens, heads, head_dim], successive tokens of one sequence, each of them
    sees a key more than the one before it. Only what no token before them sees, the last of the first one's
    keys and those after it, may have been written since the step began.
    """
    *several, heads, head_dim = (int(size) for size in q.shape)
    tokens = several[0] if several else 1
    capacity, kv_heads, _ = (int(size) for size in k.shape)
    if head_dim % 16 or head_dim > 256 or heads % kv_heads:
        raise LaunchError(
            f"batch_attention takes heads of a multiple of 16 up to 256, an equal number a key-value head, "
            f"not {heads} of {head_dim} for {kv_heads}."
        )
    queries = tokens * heads
    for name, array, size in (("q", q, queries), ("out", out, queries), ("k", k, capacity * kv_heads)):
        check_array(name, array, "float16", size * head_dim, 16)
    check_array("v", v, "float16", capacity * kv_heads * head_dim, 16)
    check_array("length", length, "uint32", 1)
    splits, arch = workspace.splits, arch_of(q)
    check_array("workspace.outputs", workspace.outputs, "float32", queries * splits * head_dim, 16)
    warps, stages = warps_for(head_dim, capacity, splits, arch)
    (rung,) = LADDERS["batch_attention"]
    macros = {"WARPS": warps, "STAGES": stages, "HEAD_DIM": head_dim, "TOKENS": tokens}
    shared = max((8 + warps * stages * 32) * 2 * (head_dim + 8), 8 * warps * (head_dim + 4) * 4)
    by = math.log2(math.e) * (scale or head_dim**-0.5)
    sizes = [ctypes.c_int(size) for size in (capacity, heads, kv_heads)]
    arguments = [q, k, v, out, length, *sizes, ctypes.c_float(by)]
    loaded(rung, tuple(sorted(macros.items()))).launch(
        (splits, kv_heads * math.ceil(queries // kv_heads / 8)),
        32 * warps,
        [*arguments, workspace.outputs, workspace.parts, workspace.arrived],
        shared=shared,
        dependent=arch in ops.DEPENDENT,
    )
    return out


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate: a shape in words, and the work."""
    rng, put = np.random.default_rng(0), ops.arrays().asarray

    def halves(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float16)

    def subject(
        shape: str, launch: Callable[[Any], object], expected: Any, budget: float
    ) -> tuple[str, gate.Work]:
        outs = [put(np.empty(expected.shape, np.float16)) for _ in range(2)]
        return shape, gate.trial(rung.name, launch, outs, expected, budget)

    if operator == "batch_rmsnorm":
        for n, width in ((5, 1096), (2, 4136)):
            before, parts = (rng.standard_normal(s).astype(np.float32) for s in ((n, width), (3, n, width)))
            weights, total = halves(width), before.astype(np.float64) + parts.sum(0)
            expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
            launch: Any = functools.partial(_normed, *map(put, (before, weights, parts)))
            yield subject(f"{n} x {width} and 3 parts", launch, expected, float(np.spacing(np.float16(8))))
    elif operator == "batch_attention":
        for heads, kv_heads, length, splits in ((12, 2, 301, 1), (9, 1, 83, 2)):
            q, k, v = halves(heads, 32), halves(320, kv_heads, 32), halves(320, kv_heads, 32)
            each = q.reshape(kv_heads, -1, 32).astype(np.float64)
            scores = np.exp(np.einsum("hgd,khd->hgk", each, k[:length]) / math.sqrt(32))
            scores /= scores.sum(-1, keepdims=True)
            expected = np.einsum("hgk,khd->hgd", scores, v[:length].astype(np.float64)).reshape(heads, 32)
            q, k, v, seen = map(put, (q, k, v, np.array([length], np.int32)))
            launch = functools.partial(_attend, q, k, v, seen, workspace_for(q, splits))
            shape = f"{length} keys, {heads}/{kv_heads} heads of 32 in {splits}"
            yield subject(shape, launch, expected, 4e-3)
    else:
        for format, n, k, batch, then in (
            ("fp16", 80, 448, 9, ROWS), ("fp16", 64, 512, 3, PARTS), ("q8_0", 48, 256, 8, ROWS),
            ("q8_0", 32, 192, 20, PARTS), ("int4_g128", 64, 2304, 5, ROWS), ("int4_g128", 64, 512, 17, PARTS),
            ("fp16", 208, 448, 9, BEST), ("q8_0", 48, 256, 8, BEST), ("int4_g128", 192, 512, 17, BEST),
            *((format, n, 256, batch, then) for format in decoder.FORMATS
              for n, batch, then in ((192, 12, GATE), (256, 3, ROPE))),
        ):  # fmt: skip
            rows, x = rng.standard_normal((n, k)).astype(np.float32) + np.float32(0.1), halves(batch, k)
            x = x if then in (ROWS, PARTS, BEST) else (x / 8).astype(np.float16)
            w, values = _weights(rows, format)
            biases, rotary = halves(n), rotations(16, 32, 1e4)
            expected = _followed(x.astype(np.float64) @ values.T, then, biases.astype(np.float64), rotary)
            budget = gate.error_budget(4e-2 if format == "q8_0" else 2e-3, expected, "float16")
            launch = functools.partial(_multiply, put(x), w, n, then, put(biases), put(rotary))
            ends = {PARTS: " in parts", BEST: ", the best", GATE: ", gated", ROPE: ", rotated"}.get(then, "")
            yield subject(f"{n} x {k} in {format}, {batch} tokens{ends}", launch, expected, budget)


def _normed(before: Any, weights: Any, parts: Any, out: Any) -> None:
    rmsnorm(before.copy(), weights, out=out, parts=parts)


def _attend(q: Any, k: Any, v: Any, length: Any, workspace: Workspace, out: Any) -> None:
    attention(q, k, v, length, out=out, workspace=workspace)


_PLACE = 5  # of a trial's tokens


def _followed(sums: Any, then: int, biases: Any, rotary: Any) -> Any:
    """What a product's sums [batch, n] become, float64. ROPE: 4/2 heads of 32 and two caches of 8 places."""
    if then in (ROWS, PARTS):
        return sums
    if then == BEST:
        return np.concatenate([sums.reshape(-1), sums.max(-1)])
    batch = len(sums)
    if then == GATE:
        gates, ups = sums.reshape(batch, -1, 2, 8).swapaxes(0, 2).swapaxes(1, 2)
        return (gates / (1 + np.exp(-gates)) * ups).reshape(batch, -1)
    rows = decoder.unpair_heads((sums + biases).T, 32).T.reshape(batch, 8, 2, 16)
    (cos, sin), (a, b) = rotary[_PLACE].T, rows[:, :6].swapaxes(0, 2).swapaxes(1, 2)
    rows[:, :6] = np.stack([a * cos - b * sin, b * cos + a * sin], 2)
    heads, caches = rows.reshape(batch, 8, 32), np.zeros((2, 8, batch, 2, 32))
    caches[0, _PLACE], caches[1, _PLACE] = heads[:, 4:6], heads[:, 6:]
    return np.concatenate([heads[:, :4].reshape(-1), caches.reshape(-1)])


def _multiply(x: Any, w: Any, n: int, then: int, biases: Any, rotary: Any, out: Any) -> None:
    xp, batch = ops.arrays(), len(x)
    if then == PARTS:
        splits = parts_of(n, x.shape[1], batch, format_of(w), sms_of(x))
        parts = xp.full((splits, batch, n), np.nan, np.float32)
        product(x, w, out=parts, then=PARTS)
        out[...] = parts.sum(0)
    elif then == BEST:
        rows = xp.full((batch, n), np.nan, np.float16)
        sizes = (n, x.shape[1], batch, format_of(w), sms_of(x))
        best = xp.full((best_of(*sizes), batch, 2), np.nan, np.float32)
        product(x, w, out=rows, then=BEST, best=best)
        best = ops.arrays().asnumpy(best)
        chosen = xp.asarray([winner(best[:, token].copy()) for token in range(batch)])
        out[...] = xp.concatenate([rows.reshape(-1), rows[xp.arange(batch), chosen]])
    elif then == ROPE:
        queries = xp.full((batch, 4, 32), np.nan, np.float16)
        keys, values = (xp.zeros((8, batch, 2, 32), np.float16) for _ in range(2))
        position = xp.asarray(np.array([_PLACE], np.int32))
        product(x, w, out=queries, then=ROPE, heads=Heads(biases, rotary, position, keys, values))
        out[...] = xp.concatenate([part.reshape(-1) for part in (queries, keys, values)])
    else:
        product(x, w, out=out, then=then)


def _weights(rows: Any, format: str) -> tuple[Any, Any]:
    """Quantise a matrix [n, k] to a format; with it its dequantised values, float64 [n, k]."""
    put = ops.arrays().asarray
    if format == "fp16":
        w = rows.astype(np.float16)
        return put(w), w.astype(np.float64)
    if format == "q8_0":
        blocks = quant.quantise_q8_0(rows)
        return Planes(*map(put, quant.to_planes(blocks))), quant.dequantise_q8(blocks).astype(np.float64)
    codes = quant.quantise_int4(rows)
    return int4.repack(*map(put, codes)), quant.dequantise_int4(codes).astype(np.float64)
