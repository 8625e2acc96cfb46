"""A prompt's products on a Hopper by blocks that stay, of Q8_0 or FP16 weights; gates are applied there too.

A row of x is a token. Gates and ups are rows of one matrix, eight of the one and eight of the other by turns
(rooflab.ops.decoder.pair_gates).
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from rooflab.errors import LaunchError
from rooflab.numerics.quant import Planes
from rooflab.ops import Rung, check_array, loaded, with_target
from rooflab.ops import sizes_of as _sizes
from rooflab.ops import sms as _sms
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc

PLACE = 8.2  # of its ladder among all of them: in the order of the lessons
Q8_0 = Rung(
    "prompt_product",
    "1_fp16_wgmma",
    "prompt_product_fp16_wgmma",
    "blocks stay, results leave in whole rows",
    defines={"TOKENS": 192, "STAGES": 5, "GATE": 0},
    archs=("90a",),
    dynamic_shared=224256,
)
FP16 = Rung(
    "prompt_product",
    "2_fp16_weights",
    "prompt_product_fp16_weights",
    "weights that are halves, and results leave beside the next tile's first products",
    defines={"TOKENS": 168, "STAGES": 5, "GATE": 0},
    archs=("90a",),
    dynamic_shared=199680,
)
LADDERS: dict[str, tuple[Rung, ...]] = {"prompt_product": (Q8_0, FP16)}

# Operators that are Hopper's alone, and whose rungs do their work elsewhere (gates then by silu_mul).
ELSEWHERE = {"prompt_product": "mmq"}

# Tokens that a tile may have, by rung.
TOKENS = {
    Q8_0.name: (64, 96, 128, 160, 176, 192, 232, 256),
    FP16.name: (64, 96, 128, 144, 160, 168, 176, 192),
}
_SHARED = 231424  # bytes of dynamic shared memory beside barriers


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    return source_of_callable(prompt_product, macros_for, tile_of, stages_of, together_of)


def rung_for(w: Any) -> Rung:
    """The rung that multiplies such weights: Planes of Q8_0, or halves."""
    return Q8_0 if isinstance(w, Planes) else FP16


def tile_of(rung: Rung, n: int, batch: int, sms: int) -> int:
    """The launch rule: tokens of a tile, so that the rounds of `sms` blocks take least. A tile of rung 1
    costs as much as 170 tokens more; one of rung 2, which two blocks share, as much as 30.
    """
    blocks, more = (1, 170) if rung.name == Q8_0.name else (2, 30)

    def cost(tokens: int) -> int:
        tiles = math.ceil(n / (128 * blocks)) * math.ceil(batch / tokens)
        return math.ceil(tiles / (sms // blocks)) * (tokens + more)

    return min(TOKENS[rung.name], key=cost)


def stages_of(rung: Rung, tokens: int, gate: bool) -> tuple[int, int]:
    """The launch rule: tiles in the ring, up to 6, and bytes of dynamic shared memory."""
    if rung.name == Q8_0.name:
        slot, results = math.ceil((128 * tokens + 68 * 128) / 1024) * 1024, 2 * tokens * (80 if gate else 144)
    else:
        slot, results = 128 * (128 + tokens), 2 * 5120
    stages = min(6, (_SHARED - results) // slot)
    return stages, stages * slot + results


def together_of(k: int, tokens: int) -> int:
    """The launch rule of rung 2: columns of tiles that all rows are multiplied by before the next, so that
    these tokens stay in a third of an H200's L2.
    """
    return max(1, (1 << 24) // (2 * k * tokens))


def macros_for(rung: Rung, n: int, batch: int, sms: int, gate: bool, **options: int) -> dict[str, int]:
    """The launch rule: a rung's macros for so many rows and tokens on so many multiprocessors."""
    tokens = options.get("TOKENS", tile_of(rung, n, batch, sms))
    stages = stages_of(rung, tokens, gate)[0]
    return rung.with_defaults({"TOKENS": tokens, "STAGES": stages, "GATE": int(gate), **options})


@with_target()
def prompt_product(
    x: Any, w: Any, *, gate: bool = False, out: Any = None, together: int | None = None, **options: int
) -> Any:
    """out [batch, n] FP16 = x [batch, k] FP16 times w [n, k] transposed, w Planes of Q8_0 or FP16; with gate,
    of rows in the order of pair_gates, [batch, n / 2]: SiLU of the gates times the ups. For sm_90. `together`
    is the columns of tiles that halves are multiplied by before the next; `options` are the rung's macros.
    LaunchError says which sizes or operands do not fit.
    """
    rung, planes = rung_for(w), isinstance(w, Planes)
    batch, k = _sizes("x", x, 2)
    n = _sizes("w", w.quants if planes else w, 2)[0]
    if k % 128 or n % 16 or n * k >= 1 << 35 or batch >= 1 << 24:
        raise LaunchError(
            "prompt_product takes up to 2^24 tokens, rows by 16, k by 128 and up to 2^35 weights, not "
            f"{batch} and [{n}, {k}]."
        )
    check_array("x", x, "float16", batch * k, 16)
    if planes:
        check_array("the quants of w", w.quants, "int8", n * k, 16)
        check_array("the scales of w", w.scales, "float16", n * k // 32, 16)
    else:
        check_array("w", w, "float16", n * k, 16)
    sms = _sms()
    macros = macros_for(rung, n, batch, sms, gate, **options)
    tokens, shared = macros["TOKENS"], stages_of(rung, macros["TOKENS"], gate)[1]
    width = n // 2 if gate else n
    out = x.new_empty((batch, width)) if out is None else out
    check_array("out", out, "float16", batch * width, 16)
    across, sizes = math.ceil(batch / tokens), [n, k, batch]
    if planes:
        weights = [nvrtc.tensor_map(nvrtc.pointer(w.quants), n, k, "int8", (128, 64), 64), w.scales]
        boxes, blocks = [tokens], math.ceil(n / 128) * across
    else:  # each of two blocks fetches half of the tokens for both
        weights = [nvrtc.tensor_map(nvrtc.pointer(w), n, k, "float16", (128, 64), 128)]
        first = (tokens + 8) // 16 * 8
        boxes, blocks = [first, tokens - first], 2 * math.ceil(n / 256) * across
        sms -= sms % 2
        sizes.append(together or together_of(k, tokens))
    halves = [nvrtc.tensor_map(nvrtc.pointer(x), batch, k, "float16", (high, 64), 128) for high in boxes]
    function = loaded(rung, tuple(sorted(macros.items())))
    function.launch(min(blocks, sms), 384, [*weights, *halves, out, *map(ctypes.c_int, sizes)], shared=shared)
    return out
