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
from typing import Any

import numpy as np

from rooflab.errors import LaunchError
from rooflab.ops import Rung, attention_rungs, check_array, loaded, rung_of, with_target
from rooflab.ops import arch_of as _arch
from rooflab.ops import sms as _sms
from rooflab.ops.attention_operands import (
    Workspace,
    boxes,
    check_operands,
    softmax_scale,
    workspace_for,
)
from rooflab.ops.attention_tiles import BETWEEN as BETWEEN
from rooflab.ops.attention_tiles import (
    BOXED,
    HOPPER,
    PAIRED,
    STANDING,
    WIDEST,
    Prompt,
    boxes_of,
    decode_default,
    decode_launch_of,
    decode_tile_of,
    default_rung,
    grid_of,
    kept_together,
    launch_of,
    level_of,
    pack_of,
    pairs_of,
    pairs_pack_of,
    resident,
    seen_of,
    splits_of,
    standing_of,
    tile_of,
)
from rooflab.ops.attention_tiles import FRAGMENTS as FRAGMENTS
from rooflab.ops.attention_tiles import HEADS as HEADS
from rooflab.ops.attention_tiles import LAWFUL as LAWFUL
from rooflab.ops.attention_tiles import Launch as Launch
from rooflab.ops.attention_tiles import decode_rungs as decode_rungs
from rooflab.ops.attention_tiles import static_shared as static_shared
from rooflab.ops.attention_tiles import tile_laws as tile_laws
from rooflab.ops.attention_tiles import voted_of as voted_of
from rooflab.records.case import Case
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc
from rooflab.runtime.arrays import empty_like as _empty_like

PLACE = 6  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "attention": attention_rungs.PROMPT,
    "decode_attention": attention_rungs.DECODE,
}


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    if rung.operator == "decode_attention":
        return source_of_callable(decode_launch_of, splits_of, decode_attention)
    if rung.name in STANDING:
        # The tiles of rungs that have a law are in their macros, which an identity digests anyway.
        tiles = {"14_pack_gqa": (pairs_pack_of, pairs_of), **dict.fromkeys(LAWFUL, ())}
        packs = tiles.get(rung.name, (boxes_of,))
        return source_of_callable(launch_of, standing_of, kept_together, pack_of, *packs, boxes, attention)
    boxed = (boxes,) if rung.name in BOXED else ()
    return source_of_callable(launch_of, grid_of, kept_together, *boxed, attention)


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
    form = check_operands(q, k, v)
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
    prompt = Prompt(n, context, start, heads, kv_heads, causal, window)
    sms = _sms() if chosen.name in STANDING else 0
    tile = tile_of(chosen, head_dim, _arch(q), shared_kv, heads // kv_heads, window, seen, prompt, sms)
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
    sections = level_of(chosen) in (6, 7, 8, 13)  # these look for their head so
    together = kept_together(context, kv_heads, head_dim) * (heads // kv_heads) if sections else 0
    grid = grid_of(launch, n, heads, together)
    if grid[1] >= 1 << 16 and chosen.name not in STANDING:
        raise LaunchError(
            f"{n} queries are {grid[1]} tiles of {launch.queries}, more than a launch can have."
        )
    sizes = [ctypes.c_int(x) for x in (n, context, start, heads, kv_heads, int(causal))]
    latest = ctypes.c_int((1 << 31) - 1 if window is None else window)
    function = loaded(chosen, tuple(sorted(macros.items())))
    arguments = [q, k, v, out, *sizes, latest, softmax_scale(scale, head_dim)]
    pack = macros.get("PACK", 1)
    if chosen.name in BOXED:
        pairs = pack if chosen.name in PAIRED else 0
        arguments[:3] = boxes(q, k, v, context, launch.queries, macros.get("KEYS", 64), pairs)
    if chosen.name in STANDING:
        if heads // kv_heads % pack:
            raise LaunchError(f"PACK = {pack} does not divide {heads // kv_heads} heads a key-value head.")
        standing = standing_of(launch, macros, n, context, heads, kv_heads, sms)
        if standing.works >= 1 << 30:
            raise LaunchError(f"{n} queries of {heads} heads are more tiles than 32 bits count.")
        arguments.append(ctypes.c_int(standing.together))
        grid = (standing.blocks, 1, 1)
    function.launch(grid, launch.threads, arguments, shared=launch.shared)
    return out


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
    workspace: Workspace | None = None,
    rung: str | None = None,
    splits: int | None = None,
    **options: int,
) -> Any:
    """out [heads, head_dim] = attention of one query, q [heads, head_dim], to the first `length` [1] int32
    keys and values of a cache [capacity, kv_heads, head_dim], the latest `window` of them if given.

    The length is read on the GPU, so a captured launch follows the cache as it grows; past the capacity it
    counts as the capacity. The context is cut into `splits` parts (default: the GPU is full once), which are
    combined in the same launch, always in the same order: the same input gives the same bits. They meet in
    `workspace` (see workspace_for), made here if not given: give one under capture.
    """
    if not hasattr(q, "shape") or len(q.shape) != 2:
        raise LaunchError("decode_attention takes one query, q [heads, head_dim].")
    heads, head_dim = (int(size) for size in q.shape)
    form = check_operands(q.reshape(1, heads, head_dim), k, v)
    kv_heads = int(k.shape[1])
    check_array("length", length, "uint32", 1)
    usual = decode_default(head_dim, heads // kv_heads, window)
    chosen = rung_of(LADDERS["decode_attention"], rung, usual)
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
    elif splits is None and workspace is not None:
        splits = workspace.splits
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
    arguments.append(softmax_scale(scale, head_dim))
    if chosen.name == "1_block_per_head":
        function.launch(heads, launch.threads, arguments)
        return out
    workspace = workspace_for(q, splits) if workspace is None else workspace
    check_array("workspace.outputs", workspace.outputs, "float32", heads * splits * head_dim, 16)
    check_array("workspace.parts", workspace.parts, "float32", 2 * heads * splits, 8)
    check_array("workspace.arrived", workspace.arrived, "uint32", heads)
    check_array("workspace.flagged", workspace.flagged, "uint32", heads * splits * (head_dim + 2), 16)
    meet = [workspace.flagged] if chosen.name == "6_flags_in_data" else workspace[:3]
    function.launch((splits, blocks), launch.threads, [*arguments, *meet], shared=launch.shared)
    return out


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
