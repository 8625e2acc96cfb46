"""MMQ: Q8_0 weights times many tokens' Q8_1 activations, on the int8 tensor cores.

Rungs 1 to 6 compute the int32 product of each block of 32 exactly and scale it by both blocks' scales; they
differ in how the bytes reach the tensor cores. Rung 7 makes halves of the weights and takes activations as
they are. Weights lie in memory as Blocks or Planes, activations as Planes or FP16 (see rooflab.ops.q8_0).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rooflab.errors import LaunchError
from rooflab.numerics.quant import BLOCK, Q8_0, Q8_1, Planes
from rooflab.ops import (
    PORTABLE,
    Rung,
    check_array,
    loaded,
    remembered,
    rung_of,
    stream_k,
    this_arch,
    with_target,
)
from rooflab.ops.q8_0 import (
    arrays_of,
    check_activations,
    check_sizes,
    check_weights,
    kind_of,
    matvec,
    quantise,
    repack,
    shape_of,
)
from rooflab.records.case import Case, options
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc
from rooflab.runtime.arrays import empty

_AMPERE = PORTABLE[1:]  # what has cp.async
_HOPPER = ("90a",)
_TUNED = {
    **{"ROW_WARPS": 2, "TOKEN_WARPS": 2, "ROW_TILES": 4, "TOKEN_TILES": 4},
    **{"STAGES": 2, "UNROLL": 2, "RESIDENT": 2},
}

PLACE = 4  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "mmq": (
        Rung(
            "mmq",
            "1_tile",
            "mmq_tile",
            "64 rows by 64 tokens, a Q8 block of k at a time",
            defines={"SCALE_BYTES": 0},
        ),
        Rung("mmq", "2_prefetch", "mmq_prefetch", "the next Q8 block of k loads meanwhile", defines={}),
        Rung("mmq", "3_wide", "mmq_wide", "64 rows by 128 tokens", defines={}),
        Rung(
            "mmq",
            "4_cp_async",
            "mmq_cp_async",
            "planes, copied to shared memory ahead of time",
            defines={"STAGES": 3},
            archs=_AMPERE,
            dynamic_shared=3 * 192 * 136,
        ),
        Rung(
            "mmq",
            "5_large_tiles",
            "mmq_large_tiles",
            "larger tiles a warp, two instructions to scale a product",
            defines=_TUNED,
            archs=_AMPERE,
            dynamic_shared=2 * 192 * 136,
        ),
        Rung(
            "mmq",
            "6_wgmma",
            "mmq_wgmma",
            "Hopper's int8 products; one warpgroup scales its sums while others' products run",
            defines={"STAGES": 5, "NARROW": 0},
            archs=_HOPPER,
            dynamic_shared=5 * 37376,
        ),
        Rung(
            "mmq",
            "7_fp16_wgmma",
            "mmq_fp16_wgmma",
            "weights become halves on their way into the tensor cores",
            defines={"ROW_TILES": 1, "TOKENS": 256, "STAGES": 5},
            archs=_HOPPER,
            dynamic_shared=5 * 41984,
        ),
        Rung(
            "mmq",
            "8_stream_k",
            "mmq_stream_k",
            "blocks stay, and a last turn is divided along k",
            defines={"ROW_TILES": 1, "TOKENS": 256, "STAGES": 5, "BLOCKS": 132, "SHARERS": 132},
            archs=_HOPPER,
            dynamic_shared=5 * 41984 + 9216,
        ),
        Rung(
            "mmq",
            "9_tile_order",
            "mmq_tile_order",
            "weights lie as the tensor cores take them",
            defines={"ROW_TILES": 1, "TOKENS": 256, "STAGES": 5, "BLOCKS": 132, "SHARERS": 132, "PARTS": 0},
            archs=_HOPPER,
            dynamic_shared=5 * 41472 + 9216,
        ),
        Rung(
            "mmq",
            "10_k_groups",
            "mmq_k_groups",
            "a block's warpgroups take steps of k by turns, on tiles half as tall",
            defines={"ROW_GROUPS": 1, "TOKENS": 128, "CLUSTER": 1, "STAGES": 8},
            archs=_HOPPER,
            dynamic_shared=8 * 20736,
        ),
    )
}
# Rungs that take activations as FP16.
HALVES = ("7_fp16_wgmma", "8_stream_k", "9_tile_order", "10_k_groups")
TILED = ("9_tile_order", "10_k_groups")  # rungs that take weights in tile order
STAYING = ("8_stream_k", "9_tile_order")  # rungs whose blocks stay: stream_k launches them

# The rung that runs when none is named: the fastest portable one recorded.
DEFAULT = {"mmq": "5_large_tiles"}
_TILES = {"1_tile": (64, 64), "2_prefetch": (64, 64), "3_wide": (64, 128), "4_cp_async": (64, 128)}


WIDTHS = (64, 96, 128, 192, 232, 256)  # tokens of a tile of 7_fp16_wgmma that are worth building
_AT_ONCE = 132  # tiles that run at a time, one to a multiprocessor of an H200


def _tile_bytes(rows: int, tokens: int) -> int:
    """Shared memory of a tile of 7_fp16_wgmma: int8 rows with their scales and FP16 tokens, 64 of k."""
    return math.ceil((128 * tokens + 68 * rows) / 1024) * 1024


def _width(n: int, batch: int) -> int:
    """Tokens of a tile: those whose turns take least, a turn costing an H200 as much as 210 tokens more."""

    def cost(tokens: int) -> int:
        turns = math.ceil(math.ceil(n / 128) * math.ceil(batch / tokens) / _AT_ONCE)
        return turns * (tokens + 210)

    return min(WIDTHS, key=cost)


def order_of(rung: str) -> str:
    """How a rung takes its weights: "blocks", "planes" or "tiles" (see q8_0.kind_of)."""
    return "tiles" if rung in TILED else "blocks" if int(rung[0]) <= 3 else "planes"


def options_for(rung: Rung, n: int, batch: int) -> dict[str, int]:
    """The macros that suit a shape, where the rung leaves a choice."""
    if rung.name == "7_fp16_wgmma":
        tokens = _width(n, batch)
        return {"TOKENS": tokens, "STAGES": min(6, 212 * 1024 // _tile_bytes(128, tokens))}
    if rung.name == "5_large_tiles" and 64 < batch <= 128:
        return {"ROW_TILES": 2}
    if rung.name == "6_wgmma":
        return {"NARROW": int(_narrow_pays(n, batch))}
    return {}


def macros_for(rung: Rung, n: int, k: int, batch: int) -> dict[str, int]:
    """As options_for, where k counts as well: blocks of rungs from 8_stream_k on divide it."""
    if rung.name in STAYING:
        return stream_k.options_for(rung.key, n, k, batch)
    if rung.name == "10_k_groups":
        _, tokens, cluster = _k_groups(n, k, batch)
        return {
            "TOKENS": tokens,
            "CLUSTER": cluster,
            "STAGES": min(8, _SHARED // (128 * tokens + 4352)),
        }
    return options_for(rung, n, batch)


# Microseconds that a turn of 7_fp16_wgmma's tiles takes on an H200, and a step of 128 of k by a tile's
# tokens: fitted to 83 products of more than 32 tokens, off by 2.5 % on average and 10 % at worst.
_TURN_US = 3.41
_STEP_US = {64: 0.661, 96: 0.78, 128: 0.968, 192: 1.223, 232: 1.327, 256: 1.462}
_STREAM_K = 1.03  # measured over stream_k.predicted_us, which was fitted on another day


def half_rung(n: int, k: int, batch: int) -> str:
    """Of the rungs that take activations as FP16, in HALVES, the one that should multiply faster: whole
    tiles, or the same with a last turn divided along k.
    """
    tokens = _width(n, batch)
    turns = math.ceil(math.ceil(n / 128) * math.ceil(batch / tokens) / _AT_ONCE)
    whole = turns * (_TURN_US + k / 128 * _STEP_US[tokens])
    return (
        "8_stream_k"
        if _STREAM_K * stream_k.predicted_us("mmq/8_stream_k", n, k, batch) < whole
        else "7_fp16_wgmma"
    )


# Of 10_k_groups, fitted to 45 products of 1,024 to 10,240 inputs on an H200, off by 4 % on average and 15 %
# at worst: microseconds of a launch, of a tile's tokens, of a step of 64 of k, of a step's tokens, and of a
# million weights. The same of clusters, fitted to 51 launches of 11 shapes, off by 3 % on average and 11 % at
# worst; for a shape left out of the fit the choice takes 0.7 % more than the fastest measured.
_GROUPS_US = (2.225, 0.0162, 0.1285, 0.000374, 0.0)
_CLUSTERS_US = (2.839, 0.0190, 0.0979, 0.00042, 0.163)
_GROUPS_TOKENS = range(64, 145, 16)
_OUTSIDE = 0.35  # of a tile's tokens may be beyond the last: boxes with more take up to twice as long
_SHARED = 226 * 1024  # of a block, besides barriers


def _k_groups(n: int, k: int, batch: int) -> tuple[float, int, int]:
    """Microseconds that 10_k_groups should take, the tokens of its tile, and the blocks of a cluster;
    infinite where its tiles would take more than a turn.
    """
    ways = [(math.inf, 128, 1)]
    for tokens in _GROUPS_TOKENS:
        across = math.ceil(batch / tokens)
        if across * tokens - batch > _OUTSIDE * tokens:
            continue
        for cluster, at_once in stream_k.CLUSTERS.items():
            if across * math.ceil(n / 64) * cluster <= at_once and cluster <= k // 128:
                start, token, step, both, read = _CLUSTERS_US if cluster > 1 else _GROUPS_US
                slots = 2 * math.ceil(k // 128 / cluster)
                time = start + token * tokens + slots * (step + both * tokens) + read * n * k * 1e-6
                ways.append((time, tokens, cluster))
    return min(ways)


def tiles_rung(n: int, k: int, batch: int) -> str:
    """Of the rungs that take weights in tile order the one that should multiply faster."""
    staying = stream_k.predicted_us("mmq/9_tile_order", n, k, batch)
    return "10_k_groups" if _k_groups(n, k, batch)[0] < staying else "9_tile_order"


def _narrow_pays(n: int, batch: int) -> bool:
    """Whether narrow blocks for the last tokens of 6_wgmma spare an H200 at least a quarter of a turn, which
    is what a longer code costs. A wide block whose second half has no tokens takes about 0.6 of one that has.
    """
    wide, narrow = wgmma_blocks(n, batch)
    if not wide or not narrow:
        return False
    full, begun = divmod(wide, _AT_ONCE)
    halves = max(0, narrow // 2 - (_AT_ONCE - begun))  # that find no room beside the last full ones
    before = full + (begun > 0) + 0.6 * math.ceil(halves / _AT_ONCE)
    after = max(full + (begun > 0), math.ceil((4 * wide + narrow) / _AT_ONCE) / 4)
    return before - after >= 0.25


def dispatch(n: int, k: int, batch: int, hopper: bool) -> tuple[str, str]:
    """Operator and rung that multiply weights [n, k] by so many tokens fastest, as recorded on an H200."""
    if batch <= 32:
        return "q8_0", "5_batch" if batch <= 4 else "6_mma"
    return "mmq", half_rung(n, k, batch) if hopper else "5_large_tiles"


def wgmma_blocks(n: int, batch: int) -> tuple[int, int]:
    """How many blocks of 6_wgmma with NARROW are wide, 128 rows and 128 tokens, and how many narrow, 64 rows
    of the last tokens where those are 64 at most. Narrow ones come last: with a quarter of the work each,
    they fill the end of a launch, when multiprocessors find no wide block any more.
    """
    full, rest = divmod(batch, 128)
    narrow = 0 < rest <= 64
    return (full + (rest > 64)) * math.ceil(n / 128), narrow * math.ceil(n / 64)


def launch_shape(
    rung: Rung, n: int, batch: int, macros: Mapping[str, int]
) -> tuple[tuple[int, int], int, int]:
    """The launch rule: grid, threads a block, and bytes of dynamic shared memory."""
    if rung.name == "5_large_tiles":
        rows = 16 * macros["ROW_TILES"] * macros["ROW_WARPS"]
        tokens = 8 * macros["TOKEN_TILES"] * macros["TOKEN_WARPS"]
        threads = 32 * macros["ROW_WARPS"] * macros["TOKEN_WARPS"]
        shared = macros["STAGES"] * (rows + tokens) * 136
        return (math.ceil(batch / tokens), math.ceil(n / rows)), threads, shared
    if rung.name == "7_fp16_wgmma":
        rows, tokens = 128 * macros["ROW_TILES"], macros["TOKENS"]
        shared = macros["STAGES"] * _tile_bytes(rows, tokens)
        return (math.ceil(batch / tokens), math.ceil(n / rows)), 384, shared
    if rung.name == "10_k_groups":
        tokens, groups = macros["TOKENS"], macros["ROW_GROUPS"]
        grid = macros["CLUSTER"] * math.ceil(batch / tokens), math.ceil(n / 64 / groups)
        return grid, 256 * groups + 128, macros["STAGES"] * (128 * tokens + 4352 * groups)
    if rung.name == "6_wgmma":
        grid = (
            (sum(wgmma_blocks(n, batch)), 1)
            if macros["NARROW"]
            else (math.ceil(batch / 128), math.ceil(n / 128))
        )
        return grid, 640, macros["STAGES"] * 37376
    rows, tokens = _TILES[rung.name]
    shared = macros["STAGES"] * (rows + tokens) * 136 if rung.name == "4_cp_async" else 0
    return (math.ceil(n / rows), math.ceil(batch / tokens)), 256, shared


@remembered
def _by_stream_k(x: Any, w: Any, *, out: Any = None, rung: str, **options: int) -> Any:
    """`product` by a rung whose blocks stay: x FP16, w Planes for 8_stream_k, Tiles for 9_tile_order."""
    (n, k), (batch, x_k) = shape_of(w, Q8_0.itemsize), shape_of(x, Q8_1.itemsize)
    chosen = rung_of(LADDERS["mmq"], rung, rung)
    name, order = f"Rung {chosen.key}", order_of(chosen.name)
    if (kind_of(w), kind_of(x)) != (order, "half"):
        raise LaunchError(
            f"{name} takes weights in {order} and activations in half, not {kind_of(w)} and {kind_of(x)}."
        )
    if x_k != k:
        raise LaunchError(f"x has k = {x_k} and w has k = {k}; they must agree.")
    check_sizes(n, k, batch, 4 * BLOCK, name)
    if n * k >= 1 << 35:
        raise LaunchError(f"{name} counts 16 bytes of a matrix in 32 bits: {n} x {k} weights are too many.")
    check_weights(w, n, k)
    check_activations(x, batch, k)
    out = empty(x, (batch, n), "float16") if out is None else out
    check_array("out", out, "float16", batch * n, 16)
    macros = chosen.with_defaults({**stream_k.options_for(chosen.key, n, k, batch), **options})
    stream_k.mmq(chosen, arrays_of(w), x, out, (n, k, batch), macros)
    return out


@with_target(apart=dict.fromkeys(STAYING, _by_stream_k))
@remembered
def product(x: Any, w: Any, *, out: Any = None, rung: str | None = None, **options: int) -> Any:
    """Return out [batch, n] FP16 = x [batch, k] times w [n, k] transposed.

    x is Planes of Q8_1 (rooflab.ops.q8_0.quantise), for rungs in HALVES FP16; w is Blocks of Q8_0 for rungs
    1 to 3, Tiles for those in TILED, else Planes.
    LaunchError for anything else. `out` reuses an output.
    """
    chosen = rung_of(LADDERS["mmq"], rung, DEFAULT["mmq"])
    (n, k), (batch, x_k) = shape_of(w, Q8_0.itemsize), shape_of(x, Q8_1.itemsize)
    name, weights = f"Rung {chosen.key}", order_of(chosen.name)
    activations = "half" if chosen.name in HALVES else "planes"
    if (kind_of(w), kind_of(x)) != (weights, activations):
        raise LaunchError(
            f"{name} takes weights in {weights} and activations in {activations}, "
            f"not {kind_of(w)} and {kind_of(x)}."
        )
    if x_k != k:
        raise LaunchError(f"x has k = {x_k} and w has k = {k}; they must agree.")
    check_sizes(n, k, batch, BLOCK if weights == "blocks" else 4 * BLOCK, name)
    macros = chosen.with_defaults({**macros_for(chosen, n, k, batch), **options})
    grid, threads, shared = launch_shape(chosen, n, batch, macros)
    if grid[1] > 65535:
        raise LaunchError(f"{name} numbers its tiles in a grid of at most 65535 by y, not {grid[1]}.")
    if n * k >= 1 << 35:
        raise LaunchError(f"{name} counts 16 bytes of a matrix in 32 bits: {n} x {k} weights are too many.")
    if macros.get("NARROW") and not wgmma_blocks(n, batch)[1]:
        raise LaunchError(
            f"{name} has no use for NARROW with {batch} tokens: the last 1 to 64 of 128 want it."
        )
    check_weights(w, n, k)
    check_activations(x, batch, k)
    out = empty(arrays_of(x)[0], (batch, n), "float16") if out is None else out
    check_array("out", out, "float16", batch * n, 16)
    sizes = [ctypes.c_int(n), ctypes.c_int(k), ctypes.c_int(batch)]
    operands = [*arrays_of(w), *arrays_of(x)]
    if chosen.name == "10_k_groups":
        operands[1] = nvrtc.tensor_map(nvrtc.pointer(x), batch, k, "float16", (macros["TOKENS"], 64), 128)
    if chosen.name == "6_wgmma":  # quants as maps of the boxes that it copies
        box = (64 if macros["NARROW"] else 128, 128)
        operands[0] = nvrtc.tensor_map(nvrtc.pointer(operands[0]), n, k, "int8", box, 128)
        operands[2] = nvrtc.tensor_map(nvrtc.pointer(operands[2]), batch, k, "int8", box, 128)
    if chosen.name == "7_fp16_wgmma":  # and activations
        operands[0] = nvrtc.tensor_map(nvrtc.pointer(operands[0]), n, k, "int8", (128, 64), 64)
        operands[2] = nvrtc.tensor_map(nvrtc.pointer(x), batch, k, "float16", (macros["TOKENS"], 64), 128)
    loaded(chosen, tuple(sorted(macros.items()))).launch(
        grid, threads, [*operands, out, *sizes], shared=shared
    )
    return out


@with_target()
def multiply(x: Any, w: Planes, *, out: Any = None) -> Any:
    """Return out [batch, n] FP16 = x [batch, k] FP16 times w [n, k] transposed, by the rung that suits the
    number of tokens; x is quantised first where that rung wants it. k must be a multiple of 128.
    """
    batch, (n, k) = int(x.shape[0]), shape_of(w, Q8_0.itemsize)
    hopper = not isinstance(x, np.ndarray) and this_arch() == "90"
    operator, rung = dispatch(n, k, batch, hopper)
    given = x if rung in HALVES else quantise(x)
    out = empty(x, (batch, n), "float16") if out is None else out
    return (product if operator == "mmq" else matvec)(given, w, out=out, rung=rung)


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    order: tuple[Any, ...] = (repack,) if order_of(rung.name) == "tiles" else ()
    if rung.name in STAYING:
        return source_of_callable(stream_k.mmq, *stream_k.launch_rule(), _by_stream_k, *order)
    return source_of_callable(
        product, launch_shape, options_for, _width, _tile_bytes, wgmma_blocks, _narrow_pays, *order
    )


def small_cases(operator: str, rung: Rung) -> list[Case]:
    """Ragged shapes, for the gate on the CPU."""
    return [
        Case("mmq", operator, rung.name, format="q8_0", n=n, k=k, batch=batch, options=options(prepared=1))
        for n, k, batch in ((70, 256, 9), (130, 384, 67))
    ]
