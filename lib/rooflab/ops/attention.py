"""Attention: a prompt's queries against keys and values (attention), and one query against a cache
(decode_attention).

q and out are [n, heads, head_dim], k and v [context, kv_heads, head_dim], all FP16 or all bfloat16: the
layout in which a projection leaves them and a cache keeps them. Query head h reads key-value head
h // (heads // kv_heads). No rung stores scores: softmax is rescaled as larger scores come.

A key that a query does not see never changes its result, except where it shares a tile of rungs 4 and up
with one that is seen and its value is NaN or infinite: 0 times that is NaN.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rooflab import kernel, ops
from rooflab.errors import LaunchError, UsageError
from rooflab.identity import source_of_callable
from rooflab.ops import PORTABLE, Rung, check_array, loaded, rung_of

_TILE = {"HEAD_DIM": 128, "KEYS": 64, "BF16": 0}

LADDERS: dict[str, tuple[Rung, ...]] = {
    "attention": (
        Rung(
            "attention",
            "1_scalar",
            "attention_scalar",
            "a block for every query of every head",
            defines={"THREADS": 256, "HEAD_DIM": 128, "BF16": 0},
        ),
        Rung(
            "attention",
            "2_tiled",
            "attention_tiled",
            "queries share a tile of keys and values",
            defines={"QUERIES": 8, "HEAD_DIM": 128, "BF16": 0},
        ),
        Rung(
            "attention",
            "3_half2",
            "attention_half2",
            "two FP16 products an instruction for the scores",
            defines={"QUERIES": 16, "HEAD_DIM": 128},
        ),
        Rung(
            "attention", "4_tensor", "attention_tensor", "tensor cores", defines=_TILE, dynamic_shared=49152
        ),
        Rung(
            "attention",
            "5_padded",
            "attention_padded",
            "rows of shared memory without bank conflicts",
            defines=_TILE,
            dynamic_shared=52224,
        ),
        Rung(
            "attention",
            "6_async",
            "attention_async",
            "keys arrive while values are used, values while keys are",
            defines={**_TILE, "SHARED_KV": 0},
            dynamic_shared=52224,
        ),
        Rung(
            "attention",
            "7_rows",
            "attention_rows",
            "32 queries a warp",
            defines={**_TILE, "KEYS": 32, "SHARED_KV": 0},
            dynamic_shared=52224,
        ),
        Rung(
            "attention",
            "8_sliced",
            "attention_sliced",
            "warps share queries, each with a slice of the head",
            defines={"HEAD_DIM": 256, "SLICES": 2, "GROUPS": 2, "KEYS": 32, "BF16": 0, "SHARED_KV": 0},
            archs=PORTABLE[1:],
            dynamic_shared=67584,
        ),
    ),
}

# The widest head that a rung can do: beyond it, registers of outputs run out.
WIDEST = {"4_tensor": 256, "5_padded": 256, "6_async": 256, "7_rows": 128}

# Shared memory that a block may have, in KiB, by architecture (CUDA C++ programming guide, technical
# specifications per compute capability).
SHARED_KIB = {"75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}


class Launch(NamedTuple):
    """Queries a block handles, threads a block, bytes of dynamic shared memory a block."""

    queries: int
    threads: int
    shared: int = 0


def launch_of(rung: Rung, macros: Mapping[str, int]) -> Launch:
    """The launch rule: what a rung of attention with these macros is launched with."""
    head, level = macros["HEAD_DIM"], int(rung.name[0])
    if level == 1:
        return Launch(1, macros["THREADS"])
    if level <= 3:
        return Launch(macros["QUERIES"], 32 * macros["QUERIES"])
    row = 2 * (head if level == 4 else head + 8)
    queries = {7: 128, 8: 32 * macros.get("GROUPS", 0)}.get(level, 64)
    threads = 32 * macros["SLICES"] * macros["GROUPS"] if level == 8 else 128
    return Launch(queries, threads, (queries + 2 * macros["KEYS"]) * row)


def static_shared(rung: Rung, macros: Mapping[str, int]) -> int:
    """Bytes of static shared memory of a tile rung: what rung 8 hands between warps."""
    if rung.name != "8_sliced":
        return 0
    scores = 4 * (macros["SLICES"] - 1) * macros["KEYS"] // 8 * 32 * 8
    return macros["GROUPS"] * (scores + 2 * macros["KEYS"] // 16 * 32 * 16 + 4 * 8 * 4)


def tile_of(rung: Rung, head_dim: int, arch: str, shared_kv: bool = False) -> dict[str, int]:
    """The macros that fit a head's width to an architecture's shared memory and registers: the largest
    tile that does. UsageError if none fits.
    """
    arch = arch.rstrip("af")
    if int(rung.name[0]) <= 3:
        return {"HEAD_DIM": head_dim}
    if rung.name == "8_sliced":
        slices = 2 if head_dim <= 256 else 4
        choices = [{"SLICES": slices, "GROUPS": g, "KEYS": k} for g, k in ((2, 32), (1, 32), (1, 16))]
    elif rung.name == "7_rows":
        roomy = head_dim <= 64 or (arch in ("80", "86", "89", "90") and (head_dim <= 96 or not shared_kv))
        choices = [{"KEYS": keys} for keys in ((64, 32, 16) if roomy else (32, 16))]
    elif rung.name == "4_tensor" and arch == "75" and head_dim > 128:
        choices = [{"KEYS": 16}]
    else:
        choices = [{"KEYS": keys} for keys in (64, 32, 16)]
    for choice in choices:
        macros = {**rung.defines, "HEAD_DIM": head_dim, **choice}
        need = launch_of(rung, macros).shared + static_shared(rung, macros)
        if need <= 1024 * SHARED_KIB.get(arch, 48):
            return {"HEAD_DIM": head_dim, **choice}
    raise UsageError(f"No tile of attention/{rung.name} fits the shared memory of sm_{arch} at {head_dim}.")


def default_rung(head_dim: int) -> str:
    """The rung that attention runs when none is named: the fastest portable one for the head's width."""
    return "7_rows" if head_dim <= 128 else "8_sliced"


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    return source_of_callable(launch_of, attention)


def _arch(array: Any) -> str:
    """The architecture whose limits count: the GPU's, or on the CPU that of most consumer GPUs."""
    return "89" if isinstance(array, np.ndarray) else ops.this_arch()


def _element(array: Any) -> str:
    return getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")


def _check_operands(q: Any, k: Any, v: Any) -> str:
    """Shapes, types and sizes of the operands; returns the type's name."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not hasattr(array, "shape"):
            raise LaunchError(f"{name} must be an array, not {type(array).__name__}.")
    if len(q.shape) != 3 or len(k.shape) != 3 or tuple(k.shape) != tuple(v.shape):
        raise LaunchError(
            "Attention takes q [n, heads, head_dim] and k, v [context, kv_heads, head_dim], "
            f"not {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    n, heads, head_dim = (int(size) for size in q.shape)
    context, kv_heads, width = (int(size) for size in k.shape)
    if head_dim != width:
        raise LaunchError(f"q has head_dim = {head_dim} and k has {width}; they must agree.")
    if not 16 <= head_dim <= 512 or head_dim % 16:
        raise LaunchError(f"head_dim must be a multiple of 16 from 16 to 512, not {head_dim}.")
    if not 0 < heads < 1 << 16 or not kv_heads or heads % kv_heads:
        raise LaunchError(f"{heads} query heads do not share {kv_heads} key-value heads evenly.")
    if not 0 < n < 1 << 30 or not 0 < context < 1 << 30:
        raise LaunchError(f"Attention takes 1 to 2^30 queries and keys, not {n} and {context}.")
    form = _element(q)
    if form not in ("float16", "bfloat16"):
        raise LaunchError(f"Attention takes float16 or bfloat16, not {form}.")
    check_array("q", q, form, n * heads * head_dim, 16)
    check_array("k", k, form, context * kv_heads * head_dim, 16)
    check_array("v", v, form, context * kv_heads * head_dim, 16)
    return form


def _scale(scale: float | None, head_dim: int) -> ctypes.c_float:
    """The factor of scores, for powers of two."""
    factor = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    if not (factor > 0 and math.isfinite(factor)):
        raise LaunchError(f"scale must be a finite number above 0, not {scale}.")
    return ctypes.c_float(factor * math.log2(math.e))


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    start: int = 0,
    context: int | None = None,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    out: Any = None,
    rung: str | None = None,
    **options: int,
) -> Any:
    """out [n, heads, head_dim] = softmax(scale q k^T) v.

    Query i stands at position `start` + i (a chunk of a prompt against a cache); if causal it sees the first
    `context` keys (default: all) up to its own position, with a window w the latest w of those, and otherwise
    every key. One that sees none gives zeros. v may be k itself. `scale` is 1 / sqrt(head_dim) unless given;
    `options` are the rung's macros. LaunchError says which operand does not fit, or that a rung can't do it.
    """
    form = _check_operands(q, k, v)
    n, heads, head_dim = (int(size) for size in q.shape)
    capacity, kv_heads, _ = (int(size) for size in k.shape)
    context = capacity if context is None else context
    chosen = rung_of(LADDERS["attention"], rung, default_rung(head_dim))
    if not 0 <= context <= capacity:
        raise LaunchError(f"context must lie between 0 and the {capacity} keys given, not {context}.")
    if not 0 <= start < 1 << 30:
        raise LaunchError(f"start must lie between 0 and 2^30, not {start}.")
    if window is not None and not (causal and 0 < window < 1 << 30):
        raise LaunchError(f"A window of 1 to 2^30 keys goes with causal attention, not window = {window}.")
    if head_dim > WIDEST.get(chosen.name, 512):
        raise LaunchError(
            f"Rung attention/{chosen.name} keeps up to {WIDEST[chosen.name]} columns of output in registers, "
            f"so it refuses head_dim = {head_dim}: take rung 8_sliced."
        )
    if chosen.name == "8_sliced" and head_dim % 64:
        raise LaunchError(
            f"Rung attention/8_sliced cuts heads into slices, so it refuses head_dim = {head_dim}: "
            "take a multiple of 64, or rung 7_rows."
        )
    if form == "bfloat16" and "BF16" not in chosen.defines:
        raise LaunchError(f"Rung attention/{chosen.name} takes float16, not bfloat16.")
    shared_kv = "SHARED_KV" in chosen.defines and kernel.pointer(k) == kernel.pointer(v)
    macros = chosen.with_defaults({**tile_of(chosen, head_dim, _arch(q), shared_kv), **options})
    if "BF16" in macros:
        macros["BF16"] = int(form == "bfloat16")
    if shared_kv:
        macros["SHARED_KV"] = 1
    out = _empty_like(q) if out is None else out
    check_array("out", out, form, n * heads * head_dim, 16)
    launch = launch_of(chosen, macros)
    sizes = [ctypes.c_int(x) for x in (n, context, start, heads, kv_heads, int(causal))]
    latest = ctypes.c_int((1 << 31) - 1 if window is None else window)
    function = loaded(chosen, tuple(sorted(macros.items())))
    function.launch(
        (math.ceil(n / launch.queries), heads),
        launch.threads,
        [q, k, v, out, *sizes, latest, _scale(scale, head_dim)],
        shared=launch.shared,
    )
    return out


def _empty_like(array: Any) -> Any:
    if hasattr(array, "data_ptr"):
        return array.new_empty(array.shape)
    if isinstance(array, np.ndarray):
        return np.empty_like(array)
    import cupy

    return cupy.empty_like(array)
