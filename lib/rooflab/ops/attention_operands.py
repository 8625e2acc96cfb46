"""Operands of attention: their checks, their maps of boxes, and the workspace of decode_attention."""

from __future__ import annotations

import ctypes
import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from rooflab.errors import LaunchError
from rooflab.ops import check_array
from rooflab.runtime import nvrtc


def _element(array: Any) -> str:
    return getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")


def check_operands(q: Any, k: Any, v: Any) -> str:
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


def softmax_scale(scale: float | None, head_dim: int) -> ctypes.c_float:
    """The factor of scores, for powers of two."""
    factor = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    if not (factor > 0 and math.isfinite(factor)):
        raise LaunchError(f"scale must be a finite number above 0, not {scale}.")
    return ctypes.c_float(factor * math.log2(math.e))


def boxes(q: Any, k: Any, v: Any, context: int, queries: int, keys: int, pairs: int = 0) -> list[Any]:
    """Operands as maps of boxes of 64 columns, of q with so many heads a query if `pairs` is given; what lies
    beyond the last query or key comes as zeros. The copies are of 16-bit words, whatever they mean.
    """

    def of(array: Any, rows: int, box: int) -> Any:
        columns = int(array.shape[1]) * int(array.shape[2])
        return nvrtc.tensor_map(nvrtc.pointer(array), max(rows, 1), columns, "float16", (box, 64), 128)

    if pairs:
        rows = nvrtc.array_map(nvrtc.pointer(q), tuple(q.shape), "float16", (queries, pairs, 64), 128)
    else:
        rows = of(q, int(q.shape[0]), queries)
    return [rows, of(k, context, keys), of(v, context, keys)]


class Workspace(NamedTuple):
    """What the blocks of decode_attention hand over in: outputs and parts, FP32, and counters; or both with
    flags. Counters and flags are zero before and after every launch. Launches that may overlap need a
    workspace each.
    """

    outputs: Any
    parts: Any
    arrived: Any
    flagged: Any
    splits: int


def workspace_for(q: Any, splits: int) -> Workspace:
    """A workspace for q [heads, head_dim] and so many parts of the context, where q lies."""
    heads, head_dim = (int(size) for size in q.shape)
    parts = heads * splits
    sizes = parts * head_dim, 2 * parts, heads, parts * (head_dim + 2)
    if hasattr(q, "data_ptr"):
        import torch

        kinds = (torch.float32, torch.float32, torch.int32, torch.int32)
        arrays = [torch.zeros(n, dtype=t, device=q.device) for n, t in zip(sizes, kinds, strict=True)]
    else:
        zeros = np.zeros if isinstance(q, np.ndarray) else importlib.import_module("cupy").zeros
        kinds = (np.float32, np.float32, np.uint32, np.uint32)
        arrays = [zeros(n, t) for n, t in zip(sizes, kinds, strict=True)]
    return Workspace(arrays[0], arrays[1], arrays[2], arrays[3], splits)
