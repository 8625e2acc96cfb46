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
import importlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.errors import LaunchError, UsageError
from rooflab.ops import PORTABLE, Rung, check_array, loaded, rung_of, with_target
from rooflab.records.case import Case
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc

_TILE = {"HEAD_DIM": 128, "KEYS": 64, "BF16": 0}

PLACE = 6  # of its ladders among all of them: in the order of the lessons
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
            defines={"QUERIES": 8, "HEAD_DIM": 128, "BF16": 0, "INDEX": 0},
        ),
        Rung(
            "attention",
            "3_half2",
            "attention_half2",
            "two FP16 products an instruction for the scores",
            defines={"QUERIES": 16, "HEAD_DIM": 128},
        ),
        Rung("attention", "4_mma", "attention_mma", "tensor cores", defines=_TILE, dynamic_shared=49152),
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
            "6_cp_async",
            "attention_cp_async",
            "keys arrive while values are used, values while keys are",
            defines={**_TILE, "SHARED_KV": 0},
            dynamic_shared=52224,
        ),
        Rung(
            "attention",
            "7_mma_32_rows",
            "attention_mma_32_rows",
            "32 queries a warp",
            defines={**_TILE, "KEYS": 32, "SHARED_KV": 0},
            dynamic_shared=52224,
        ),
        Rung(
            "attention",
            "8_head_dim_slices",
            "attention_head_dim_slices",
            "warps share queries, each with a slice of the head",
            defines={"HEAD_DIM": 256, "SLICES": 2, "GROUPS": 2, "KEYS": 32, "BF16": 0, "SHARED_KV": 0},
            archs=PORTABLE[1:],
            dynamic_shared=67584,
        ),
        Rung(
            "attention",
            "9_wgmma",
            "attention_wgmma",
            "Hopper's warpgroup products, fed by warps of their own",
            defines={"HEAD_DIM": 128, "KEYS": 128, "STAGES": 2},
            archs=("90a",),
            dynamic_shared=163840,
        ),
        Rung(
            "attention",
            "10_paired_warpgroups",
            "attention_paired_warpgroups",
            "two warpgroups share queries whose heads are 512 wide",
            defines={"HEAD_DIM": 512, "KEYS": 64},
            archs=("90a",),
            dynamic_shared=196608,
        ),
        Rung(
            "attention",
            "11_tma",
            "attention_tma",
            "one thread copies boxes of tiles, blocks stay",
            defines={
                "HEAD_DIM": 128,
                "KEYS": 128,
                "STAGES": 2,
                "GROUPS": 2,
                "PACK": 1,
                "TURNS": 0,
                "BF16": 0,
            },
            archs=("90a",),
            dynamic_shared=163840,
        ),
        Rung(
            "attention",
            "12_warp_specialised",
            "attention_warp_specialised",
            "one warpgroup scores, two add values, two blocks share copies",
            defines={"HEAD_DIM": 512, "CLUSTER": 2, "PACK": 1, "EARLY": 4, "BF16": 0, "SHARED_KV": 0},
            archs=("90a",),
            dynamic_shared=221184,
        ),
        Rung(
            "attention",
            "13_mbarrier_ring",
            "attention_mbarrier_ring",
            "warps wait for tiles, not for each other",
            defines={
                "HEAD_DIM": 128,
                "KEYS": 32,
                "WARPS": 4,
                "TALL": 2,
                "SLICES": 1,
                "BF16": 0,
                "SHARED_KV": 0,
            },
            archs=PORTABLE[1:],
            dynamic_shared=69632,
            changes="7_mma_32_rows",
        ),
        Rung(
            "attention",
            "14_pack_gqa",
            "attention_pack_gqa",
            "rows are pairs of query and head, of any group of heads",
            defines={
                "HEAD_DIM": 128,
                "KEYS": 128,
                "STAGES": 2,
                "GROUPS": 2,
                "PACK": 1,
                "TURNS": 0,
                "BF16": 0,
            },
            archs=("90a",),
            dynamic_shared=163840,
            changes="11_tma",
        ),
    ),
    "decode_attention": (
        Rung(
            "decode_attention",
            "1_block_per_head",
            "decode_attention_block_per_head",
            "a block for every query head",
            defines={"THREADS": 256, "HEAD_DIM": 128, "BF16": 0},
        ),
        Rung(
            "decode_attention",
            "2_split_kv",
            "decode_attention_split_kv",
            "the context is cut into parts, a block each",
            defines={"THREADS": 256, "HEAD_DIM": 128, "BF16": 0},
        ),
        Rung(
            "decode_attention",
            "3_packed_gqa",
            "decode_attention_packed_gqa",
            "query heads that share keys and values together",
            defines={"THREADS": 256, "GROUP": 4, "HEAD_DIM": 128, "BF16": 0},
        ),
        Rung(
            "decode_attention",
            "4_cp_async",
            "decode_attention_cp_async",
            "keys and values stream into the tensor cores",
            defines={"WARPS": 4, "STAGES": 2, "HEAD_DIM": 128, "BF16": 0},
            archs=PORTABLE[1:],
            dynamic_shared=71808,
        ),
    ),
}

HEADS = 8  # query heads that a block of decode_attention/4_cp_async takes together

# The widest head that a rung can do: beyond it, registers of outputs run out.
WIDEST = {"4_mma": 256, "5_padded": 256, "6_cp_async": 256, "7_mma_32_rows": 128}

# Shared memory that a block may have, in KiB, by architecture (CUDA C++ programming guide, technical
# specifications per compute capability).
SHARED_KIB = {"75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}


class Launch(NamedTuple):
    """Queries a block handles, threads a block, bytes of dynamic shared memory a block."""

    queries: int
    threads: int
    shared: int = 0


# Hopper's rungs, by the widths of head that they do.
HOPPER = {
    "9_wgmma": (64, 128, 256),
    "10_paired_warpgroups": (512,),
    "11_tma": (64, 80, 96, 112, 128, 256),
    "12_warp_specialised": (512,),
    "14_pack_gqa": (64, 80, 96, 112, 128, 192, 256),
}

# Those whose blocks stand, one an SM, and read their operands through maps of boxes.
STANDING = ("11_tma", "12_warp_specialised", "14_pack_gqa")


def _level(rung: Rung) -> int:
    return int(rung.name.split("_")[0])


def launch_of(rung: Rung, macros: Mapping[str, int]) -> Launch:
    """The launch rule: what a rung of attention with these macros is launched with."""
    head, level = macros["HEAD_DIM"], _level(rung)
    if level == 1:
        return Launch(1, macros["THREADS"])
    if level <= 3:
        return Launch(macros["QUERIES"], 32 * macros["QUERIES"])
    if level == 9:
        return Launch(128, 384, (128 + 2 * macros["STAGES"] * macros["KEYS"]) * 2 * head)
    if level == 10:
        return Launch(64, 384, (64 + 2 * macros["KEYS"]) * 2 * head)
    if level in (11, 14):
        rows, groups = 64 * macros["GROUPS"], macros["GROUPS"]
        shared = (rows + 2 * macros["STAGES"] * macros["KEYS"]) * 128 * math.ceil(head / 64)
        return Launch(rows // macros["PACK"], 128 * (groups + 1), shared)
    if level == 12:
        return Launch(64 // macros["PACK"], 384, 3 * 65536 + 3 * 8192)
    row = 2 * (head if level == 4 else head + 8)
    if level == 13:
        queries = 16 * macros["TALL"] * macros["WARPS"] // macros["SLICES"]
        rows = queries + (2 if macros["SHARED_KV"] else 4) * macros["KEYS"]
        return Launch(queries, 32 * macros["WARPS"], rows * row)
    queries = {7: 128, 8: 32 * macros.get("GROUPS", 0)}.get(level, 64)
    threads = 32 * macros["SLICES"] * macros["GROUPS"] if level == 8 else 128
    return Launch(queries, threads, (queries + 2 * macros["KEYS"]) * row)


def grid_of(launch: Launch, n: int, heads: int, together: int = 0) -> tuple[int, int, int]:
    """The launch rule: `together` heads (0: all) x tiles of queries x the rest of the heads, so that all
    heads' longest tiles start first; n x heads for a block a query.
    """
    if launch.queries == 1:
        return n, heads, 1
    together = together or heads
    return together, math.ceil(n / launch.queries), heads // together


def kept_together(context: int, kv_heads: int, head_dim: int) -> int:
    """The launch rule: as many key-value heads as have their keys and values in half of an L2 of 50 MB, so
    that they are read from memory once.
    """
    each = 4 * max(context, 1) * head_dim
    return max(k for k in range(1, kv_heads + 1) if kv_heads % k == 0 and (k == 1 or k * each <= 25_000_000))


def pack_of(group: int, most: int) -> int:
    """The launch rule: of `group` query heads that share keys, how many a standing block takes together."""
    return next(pack for pack in (8, 4, 2, 1) if group % pack == 0 and pack <= most)


def boxes_of(head_dim: int, pack: int, window: int | None) -> dict[str, int]:
    """Warpgroups and keys of a tile of rung 11_tma: the fastest recorded without a window; with one, the
    keys that are least too many for what a block's queries see.
    """
    groups = 3 if head_dim == 64 else 2
    first, *more = {64: (128, 112), 128: (160, 112, 128, 176), 256: (80, 64)}.get(head_dim, (128,))
    span = (window or 0) + 64 * groups // pack - 1

    def looked_at(keys: int) -> tuple[int, int]:
        return math.ceil(span / keys) * keys, -keys

    return {"GROUPS": groups, "KEYS": min((first, *more), key=looked_at) if window else first}


# Keys that a query sees on average, up to which packing 3, 5, 6 or 7 heads pays. What it saves, keys beyond a
# query's own, is a smaller share of more keys; what it costs, 2 to 3 %, stays. Measured on an H200: it pays
# at 1,500 keys and loses at 2,048 and at 3,000.
_FEW_SEEN = 1600


def pairs_pack_of(group: int, seen: int | None) -> int:
    """The launch rule of rung 14_pack_gqa: of `group` query heads that share keys, how many a block takes
    together, where a query sees `seen` keys on average (None: many).
    """
    if group <= 8 and (seen is not None and seen <= _FEW_SEEN):
        return group
    return pack_of(group, 8)


def pairs_of(head_dim: int, pack: int, window: int | None) -> dict[str, int]:
    """Warpgroups and keys of a tile of rung 14_pack_gqa, as boxes_of."""
    groups = 3 if head_dim <= 96 else 2
    first, *more = {
        64: (128, 112),
        80: (112,),
        96: (96,),
        128: (128, 160, 112, 176),
        192: (96, 112, 80),
        256: (80, 64),
    }.get(head_dim, (160, 128))
    span = (window or 0) + 64 * groups // pack - 1

    def looked_at(keys: int) -> tuple[int, int]:
        return math.ceil(span / keys) * keys, -keys

    return {"GROUPS": groups, "KEYS": min((first, *more), key=looked_at) if window else first}


def rings_of(head_dim: int, arch: str) -> list[dict[str, int]]:
    """Tiles of rung 13_mbarrier_ring for a head's width: the fastest recorded first, then what less shared
    memory, or fewer registers than a chip's compiler finds, still holds.
    """
    if head_dim <= 128:
        most = 32 if head_dim > 96 and arch in ("80", "100") else 64
        several = [keys for keys in (64, 32, 16) if keys <= most]
        several = [128, *several] if head_dim == 64 and arch == "90" else several
        return [{"TALL": 2, "SLICES": 1, "WARPS": 4, "KEYS": keys} for keys in several]
    slices = 1 if head_dim <= 256 else 2
    fits = ((8, 64), (8, 32), (8, 16), (4, 16), (2, 16))
    return [{"TALL": 1, "SLICES": slices, "WARPS": warps, "KEYS": keys} for warps, keys in fits]


class Standing(NamedTuple):
    """How standing blocks go through a prompt: blocks, pieces of work, units of heads whose turn comes
    together.
    """

    blocks: int
    works: int
    together: int


def standing_of(
    launch: Launch, macros: Mapping[str, int], n: int, context: int, heads: int, kv_heads: int, sms: int
) -> Standing:
    """The launch rule of rungs whose blocks stay."""
    cluster, pack = macros.get("CLUSTER", 1), macros["PACK"]
    kept = kept_together(context, kv_heads, macros["HEAD_DIM"])
    works = math.ceil(n / (launch.queries * cluster)) * (heads // pack)
    return Standing(min(works, sms // cluster) * cluster, works, kept * (heads // kv_heads // pack))


def seen_of(n: int, context: int, start: int, causal: bool, window: int | None) -> int:
    """Keys that a query sees, about, averaged over a prompt."""
    return min(window or context, start + n // 2 if causal else context, context)


def static_shared(rung: Rung, macros: Mapping[str, int]) -> int:
    """Bytes of static shared memory of a tile rung: what rung 8 hands between warps."""
    if rung.name == "13_mbarrier_ring":  # barriers, and scores that cross
        return 128 + (macros["SLICES"] - 1) * macros["WARPS"] * macros["TALL"] * macros["KEYS"] * 64
    if rung.name != "8_head_dim_slices" and rung.name not in STANDING:
        return {"9_wgmma": 1024, "10_paired_warpgroups": 26624}.get(
            rung.name, 0
        )  # barriers, and what aligns the tiles
    if rung.name in STANDING:
        return 2048 if rung.name == "12_warp_specialised" else 1024
    scores = 4 * (macros["SLICES"] - 1) * macros["KEYS"] // 8 * 32 * 8
    return macros["GROUPS"] * (scores + 2 * macros["KEYS"] // 16 * 32 * 16 + 4 * 8 * 4)


def tile_of(
    rung: Rung,
    head_dim: int,
    arch: str,
    shared_kv: bool = False,
    group: int = 1,
    window: int | None = None,
    seen: int | None = None,
) -> dict[str, int]:
    """The macros that fit a head's width, `group` query heads a key-value head, a window and the keys that a
    query sees on average to an architecture's shared memory and registers: the largest tile that does.
    UsageError if none fits.
    """
    arch = arch.rstrip("af")
    if _level(rung) <= 3:
        return {"HEAD_DIM": head_dim}
    if rung.name == "8_head_dim_slices":
        slices = 2 if head_dim <= 256 else 4
        choices = [{"SLICES": slices, "GROUPS": g, "KEYS": k} for g, k in ((2, 32), (1, 32), (1, 16))]
    elif rung.name == "9_wgmma":
        choices = [{"KEYS": 128 if head_dim <= 128 else 64, "STAGES": 2}]
    elif rung.name == "10_paired_warpgroups":
        choices = [{"KEYS": 64}]
    elif rung.name == "11_tma":
        pack = pack_of(group, 8)
        choices = [{**boxes_of(head_dim, pack, window), "PACK": pack}]
    elif rung.name == "14_pack_gqa":
        pack = pairs_pack_of(group, window if seen is None else seen)
        choices = [{**pairs_of(head_dim, pack, window), "PACK": pack}]
    elif rung.name == "12_warp_specialised":
        choices = [{"PACK": pack_of(group, 8)}]
    elif rung.name == "13_mbarrier_ring":
        choices = rings_of(head_dim, arch)
    elif rung.name == "7_mma_32_rows":
        roomy = head_dim <= 64 or (arch in ("80", "86", "89", "90") and (head_dim <= 96 or not shared_kv))
        choices = [{"KEYS": keys} for keys in ((64, 32, 16) if roomy else (32, 16))]
    elif rung.name == "4_mma" and arch == "75" and head_dim > 128:
        choices = [{"KEYS": 16}]
    else:
        choices = [{"KEYS": keys} for keys in (64, 32, 16)]
    for choice in choices:
        macros = {**rung.defines, "HEAD_DIM": head_dim, **choice}
        need = launch_of(rung, macros).shared + static_shared(rung, macros)
        if need <= 1024 * SHARED_KIB.get(arch, 48):
            return {"HEAD_DIM": head_dim, **choice}
    raise UsageError(f"No tile of attention/{rung.name} fits the shared memory of sm_{arch} at {head_dim}.")


def decode_tile_of(rung: Rung, group: int, head_dim: int, arch: str) -> dict[str, int]:
    """The macros of a decode rung for `group` query heads a key-value head, by an architecture's limits."""
    macros = {"HEAD_DIM": head_dim}
    if rung.name == "3_packed_gqa":
        macros["GROUP"] = max(g for g in range(1, 9) if group % g == 0 and (g == 1 or g * head_dim <= 1024))
    elif rung.name == "4_cp_async":
        limit = 1024 * SHARED_KIB.get(arch.rstrip("af"), 48) - 1024  # parts are in static shared memory
        for macros["WARPS"], macros["STAGES"] in ((4, 3), (4, 2), (2, 3), (2, 2), (1, 2)):
            if decode_launch_of(rung, macros).shared <= limit:
                break
        else:
            raise UsageError(f"No ring of decode_attention/4_cp_async fits sm_{arch} at {head_dim}.")
    return macros


def decode_launch_of(rung: Rung, macros: Mapping[str, int]) -> Launch:
    """The launch rule of decode_attention, query heads a block in the place of queries."""
    if rung.name == "4_cp_async":
        rows = 8 + macros["WARPS"] * macros["STAGES"] * 32
        return Launch(HEADS, 256, rows * 2 * (macros["HEAD_DIM"] + 8))
    return Launch(macros.get("GROUP", 1), macros["THREADS"])


def default_rung(head_dim: int, arch: str = "89") -> str:
    """The rung that attention runs when none is named: the fastest for the head's width, as recorded."""
    if arch == "90" and head_dim in HOPPER["14_pack_gqa"]:
        return "14_pack_gqa"
    if arch == "90" and head_dim == 512:
        return "12_warp_specialised"
    if arch != "75":
        return "13_mbarrier_ring"
    return "7_mma_32_rows" if head_dim <= 128 else "6_cp_async" if head_dim <= 256 else "2_tiled"


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    if rung.operator == "decode_attention":
        return source_of_callable(decode_launch_of, splits_of, decode_attention)
    if rung.name in STANDING:
        packs = (pairs_pack_of, pairs_of) if rung.name == "14_pack_gqa" else (boxes_of,)
        return source_of_callable(launch_of, standing_of, kept_together, pack_of, *packs, _boxes, attention)
    return source_of_callable(launch_of, grid_of, kept_together, attention)


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


@with_target()
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

    Query i is at position `start` + i (a chunk of a prompt against a cache); if causal it sees the first
    `context` keys (default: all) up to its own position, with a window w the latest w of those, and otherwise
    every key. One that sees none gives zeros. v may be k itself. `scale` is 1 / sqrt(head_dim) unless given;
    `options` are the rung's macros. LaunchError says which operand does not fit, or that a rung can't do it.
    """
    form = _check_operands(q, k, v)
    n, heads, head_dim = (int(size) for size in q.shape)
    capacity, kv_heads, _ = (int(size) for size in k.shape)
    context = capacity if context is None else context
    chosen = rung_of(LADDERS["attention"], rung, default_rung(head_dim, _arch(q)))
    if not 0 <= context <= capacity:
        raise LaunchError(f"context must lie between 0 and the {capacity} keys given, not {context}.")
    if not 0 <= start < 1 << 30:
        raise LaunchError(f"start must lie between 0 and 2^30, not {start}.")
    if window is not None and not (causal and 0 < window < 1 << 30):
        raise LaunchError(f"A window of 1 to 2^30 keys goes with causal attention, not window = {window}.")
    if head_dim > WIDEST.get(chosen.name, 512):
        raise LaunchError(
            f"Rung attention/{chosen.name} keeps up to {WIDEST[chosen.name]} columns of output in registers, "
            f"so it refuses head_dim = {head_dim}: take rung 8_head_dim_slices."
        )
    if chosen.name == "8_head_dim_slices" and head_dim % 64:
        raise LaunchError(
            f"Rung attention/8_head_dim_slices cuts heads into slices, so it refuses head_dim = {head_dim}: "
            "take a multiple of 64, or rung 7_mma_32_rows."
        )
    if chosen.name == "13_mbarrier_ring" and head_dim > 256 and head_dim % 32:
        raise LaunchError(
            f"Rung attention/13_mbarrier_ring halves heads above 256, so it refuses head_dim = {head_dim}: "
            "take a multiple of 32."
        )
    if head_dim not in HOPPER.get(chosen.name, (head_dim,)):
        widths = " or ".join(str(width) for width in HOPPER[chosen.name])
        raise LaunchError(
            f"Rung attention/{chosen.name} takes heads of {widths}, so it refuses head_dim = {head_dim}: "
            "take rung 8_head_dim_slices, or 7_mma_32_rows up to 128."
        )
    if form == "bfloat16" and "BF16" not in chosen.defines:
        raise LaunchError(f"Rung attention/{chosen.name} takes float16, not bfloat16.")
    shared_kv = "SHARED_KV" in chosen.defines and nvrtc.pointer(k) == nvrtc.pointer(v)
    seen = seen_of(n, context, start, causal, window)
    tile = tile_of(chosen, head_dim, _arch(q), shared_kv, heads // kv_heads, window, seen)
    macros = chosen.with_defaults({**tile, **options})
    if "BF16" in macros:
        macros["BF16"] = int(form == "bfloat16")
    if shared_kv:
        macros["SHARED_KV"] = 1
    if macros.get("INDEX") == 2 and head_dim & (head_dim - 1):
        raise LaunchError(
            f"INDEX = 2 shifts and masks, so head_dim must be a power of two, not {head_dim}: take INDEX = 0."
        )
    out = _empty_like(q) if out is None else out
    check_array("out", out, form, n * heads * head_dim, 16)
    launch = launch_of(chosen, macros)
    sections = _level(chosen) in (6, 7, 8, 13)  # these look for their head so
    together = kept_together(context, kv_heads, head_dim) * (heads // kv_heads) if sections else 0
    grid = grid_of(launch, n, heads, together)
    if grid[1] >= 1 << 16 and chosen.name not in STANDING:
        raise LaunchError(
            f"{n} queries are {grid[1]} tiles of {launch.queries}, more than a launch can have."
        )
    sizes = [ctypes.c_int(x) for x in (n, context, start, heads, kv_heads, int(causal))]
    latest = ctypes.c_int((1 << 31) - 1 if window is None else window)
    function = loaded(chosen, tuple(sorted(macros.items())))
    arguments = [q, k, v, out, *sizes, latest, _scale(scale, head_dim)]
    if chosen.name in STANDING:
        pack = macros["PACK"]
        if heads // kv_heads % pack:
            raise LaunchError(f"PACK = {pack} does not divide {heads // kv_heads} heads a key-value head.")
        standing = standing_of(launch, macros, n, context, heads, kv_heads, _sms())
        if standing.works >= 1 << 30:
            raise LaunchError(f"{n} queries of {heads} heads are more tiles than 32 bits count.")
        pairs = pack if chosen.name == "14_pack_gqa" else 0
        arguments[:3] = _boxes(q, k, v, context, launch.queries, macros.get("KEYS", 64), pairs)
        arguments.append(ctypes.c_int(standing.together))
        grid = (standing.blocks, 1, 1)
    function.launch(grid, launch.threads, arguments, shared=launch.shared)
    return out


def _sms() -> int:
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def _boxes(q: Any, k: Any, v: Any, context: int, queries: int, keys: int, pairs: int = 0) -> list[Any]:
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


class Room(NamedTuple):
    """What the blocks of decode_attention hand over in: outputs and parts, FP32, and counters, zero before
    and after every launch. Launches that may overlap need a room each.
    """

    outputs: Any
    parts: Any
    arrived: Any
    splits: int


def room_for(q: Any, splits: int) -> Room:
    """A room for q [heads, head_dim] and so many parts of the context, where q lies."""
    heads, head_dim = (int(size) for size in q.shape)
    sizes = heads * splits * head_dim, 2 * heads * splits, heads
    if hasattr(q, "data_ptr"):
        import torch

        kinds = (torch.float32, torch.float32, torch.int32)
        arrays = [torch.zeros(n, dtype=t, device=q.device) for n, t in zip(sizes, kinds, strict=True)]
    else:
        zeros = np.zeros if isinstance(q, np.ndarray) else importlib.import_module("cupy").zeros
        arrays = [zeros(n, t) for n, t in zip(sizes, (np.float32, np.float32, np.uint32), strict=True)]
    return Room(arrays[0], arrays[1], arrays[2], splits)


def splits_of(
    rung: Rung, macros: Mapping[str, int], blocks: int, sms: int, resident: int, keys: int | None = None
) -> int:
    """The launch rule: parts of the context, so that with `blocks` blocks a part the GPU is full once; rung
    4_cp_async has enough bytes under way with one block an SM, and more would only be more to combine. Of few
    `keys` it makes fewer: a part less saves its share of combining, which counts twice where a block's eight
    warps have more columns than they can take at once, and costs every block its share of keys. No part is
    so cut that its warps have unequal numbers of tiles.
    """
    if rung.name == "1_block_per_head":
        return 1
    full = max(1, sms * (1 if rung.name == "4_cp_async" else resident) // blocks)
    if rung.name != "4_cp_async" or keys is None:
        return full
    dear, tile = (4 if macros["HEAD_DIM"] > 256 else 1), 16 * macros["WARPS"]
    few = min(full, max(1, round(math.sqrt(keys * macros["HEAD_DIM"] / (512 * dear)))))
    return max(1, math.ceil(keys / (tile * math.ceil(keys / (tile * few)))))


def resident(function: Any, launch: Launch) -> int:
    """Blocks of a launch that an SM holds at a time; on the CPU one."""
    if not hasattr(function, "resident_blocks"):
        return 1
    if launch.shared > 48 * 1024:  # or the driver says that none fits
        function.allow_shared(launch.shared)
    return int(function.resident_blocks(launch.threads, launch.shared))


@with_target()
def decode_attention(
    q: Any,
    k: Any,
    v: Any,
    length: Any,
    *,
    window: int | None = None,
    scale: float | None = None,
    out: Any = None,
    room: Room | None = None,
    rung: str | None = None,
    splits: int | None = None,
    **options: int,
) -> Any:
    """out [heads, head_dim] = attention of one query, q [heads, head_dim], to the first `length` [1] int32
    keys and values of a cache [capacity, kv_heads, head_dim], the latest `window` of them if given.

    The length is read on the GPU, so a captured launch follows the cache as it grows; past the capacity it
    counts as the capacity. The context is cut into `splits` parts (default: the GPU is full once), which are
    combined in the same launch, always in the same order: the same input gives the same bits. `room` (see
    room_for) is where they meet, made here if not given: give one under capture.
    """
    if not hasattr(q, "shape") or len(q.shape) != 2:
        raise LaunchError("decode_attention takes one query, q [heads, head_dim].")
    heads, head_dim = (int(size) for size in q.shape)
    form = _check_operands(q.reshape(1, heads, head_dim), k, v)
    kv_heads = int(k.shape[1])
    check_array("length", length, "uint32", 1)
    chosen = rung_of(LADDERS["decode_attention"], rung, "4_cp_async")
    if window is not None and not 0 < window < 1 << 30:
        raise LaunchError(f"A window holds 1 to 2^30 keys, not {window}.")
    macros = chosen.with_defaults(
        {**decode_tile_of(chosen, heads // kv_heads, head_dim, _arch(q)), **options}
    )
    macros["BF16"] = int(form == "bfloat16")
    launch = decode_launch_of(chosen, macros)
    if chosen.name == "3_packed_gqa" and heads // kv_heads % macros["GROUP"]:
        raise LaunchError(
            f"GROUP = {macros['GROUP']} does not divide {heads // kv_heads} heads a key-value head."
        )
    blocks = kv_heads * math.ceil(heads // kv_heads / launch.queries)
    function = loaded(chosen, tuple(sorted(macros.items())))
    if chosen.name == "1_block_per_head":
        splits = 1
    elif splits is None and room is not None:
        splits = room.splits
    elif splits is None:
        splits = 3  # on the CPU
        if not isinstance(q, np.ndarray):
            import cupy

            sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
            keys = min(int(k.shape[0]), window or int(k.shape[0]))
            splits = splits_of(chosen, macros, blocks, sms, resident(function, launch), keys)
    if not 0 < splits < 1 << 16:
        raise LaunchError(f"The context is cut into 1 to 65535 parts, not {splits}.")
    out = _empty_like(q) if out is None else out
    check_array("out", out, form, heads * head_dim, 16)
    latest = ctypes.c_int((1 << 31) - 1 if window is None else window)
    arguments = [q, k, v, out, length, *(ctypes.c_int(x) for x in (k.shape[0], heads, kv_heads)), latest]
    arguments.append(_scale(scale, head_dim))
    if chosen.name == "1_block_per_head":
        function.launch(heads, launch.threads, arguments)
        return out
    room = room_for(q, splits) if room is None else room
    check_array("room.outputs", room.outputs, "float32", heads * splits * head_dim, 16)
    check_array("room.parts", room.parts, "float32", 2 * heads * splits, 8)
    check_array("room.arrived", room.arrived, "uint32", heads)
    function.launch(
        (splits, blocks),
        launch.threads,
        [*arguments, room.outputs, room.parts, room.arrived],
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


def small_cases(operator: str, rung: Rung) -> list[Case]:
    """Small heads, windows and starts, for the gate on the CPU."""
    # One head a block lets a cache be cut into more parts than a warp has lanes.
    shapes: list[dict[str, Any]] = [
        {"seq": 70, "head_dim": 80},
        {"seq": 20, "head_dim": 64, "window": 9, "options": "start=33"},
        {"seq": 300, "head_dim": 32, "heads": 1, "kv_heads": 1},  # tiles enough to use a ring again
        {"seq": 100, "head_dim": 64, "window": 37},
    ]
    if operator == "decode_attention":
        parts = "" if rung.name == "1_block_per_head" else "splits=40"
        shapes = [
            {"seq": 90, "head_dim": 80},
            {"seq": 130, "head_dim": 64},
            {"seq": 640, "head_dim": 64, "heads": 2, "kv_heads": 1, "options": parts},
        ]
    else:
        shapes = [{"causal": True, **shape} for shape in shapes]
    usual = {"format": "fp16", "heads": 4, "kv_heads": 2, "cache": "warm", "state": "burst"}
    return [Case("attention", operator, rung.name, **{**usual, **shape}) for shape in shapes]
