"""INT4 weight products: y = x W^T with x [batch, k] and y [batch, n] FP16, W [n, k] in INT4 groups of 128.

Weights come in two orders, with the same bits and the same 4.125 bits a weight:

rows   the format as rooflab.numerics.quant defines it: qweight [n, k/8] words, scales [n, k/128] FP16. Rungs
1-6.
tiles  one array [n/64, k/128, 1056] of words, n padded up to a multiple of 64 with zero weights: for each
       block of 64 rows by 128 of k its 64 scales, then its codes in the order of a tensor core's first
       operand, so that one 16-byte load holds what a lane needs of 16 rows by 64 of k. Rungs 7 and up.
       `repack` makes it, once, where the weights are loaded; `unpack` inverts it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rooflab.errors import LaunchError, UsageError
from rooflab.numerics.quant import GROUP, Int4
from rooflab.ops import Rung, check_array, loaded, remembered, rung_of, sms, stream_k, target, with_target
from rooflab.ops.int4_choice import BLOCK_WORDS, BYTES, MOST_CHUNKS, TILE, bytes_options, choose
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc
from rooflab.runtime.arrays import empty as _empty
from rooflab.runtime.arrays import library_of

AMPERE = ("80", "86", "89", "90", "100", "120")  # asynchronous copies
_X_ROW = 272  # bytes between two tokens' 128 halves in shared memory: conflict-free for ldmatrix

PLACE = 5  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "int4": (
        Rung(
            "int4",
            "1_warp_row",
            "int4_warp_row",
            "one warp a row, as the source has it",
            defines={"THREADS": 128},
        ),
        Rung("int4", "2_vector", "int4_vector", "16-byte loads of codes and of x", defines={"THREADS": 128}),
        Rung(
            "int4", "3_magic", "int4_magic", "no conversion from integer to float", defines={"THREADS": 128}
        ),
        Rung(
            "int4",
            "4_in_flight",
            "int4_in_flight",
            "several rows a warp, their loads under way together",
            defines={"THREADS": 128, "ROWS": 2},
        ),
        Rung(
            "int4", "5_split_k", "int4_split_k", "a block's warps divide k", defines={"WARPS": 4, "ROWS": 4}
        ),
        Rung(
            "int4",
            "6_batched",
            "int4_batched",
            "weights read and unpacked once for several tokens",
            defines={"WARPS": 4, "ROWS": 4, "TOKENS": 4},
        ),
        Rung(
            "int4",
            "7_mma",
            "int4_mma",
            "tensor cores, weights as the first operand",
            defines={"WARPS": 8, "TILES": 4, "TOKENS": 8},
            dynamic_shared=34816,
        ),
        Rung(
            "int4",
            "8_folded_offset",
            "int4_folded_offset",
            "less to unpack: the tensor core takes the offset away",
            defines={"WARPS": 4, "TILES": 2, "TOKENS": 8, "RESIDENT": 3},
            dynamic_shared=18432,
        ),
        Rung(
            "int4",
            "9_shared_x",
            "int4_shared_x",
            "a block's warps share x",
            defines={
                "ROW_WARPS": 4,
                "K_WARPS": 2,
                "TILES": 2,
                "TOKENS": 16,
                "STAGES": 3,
                "RESIDENT": 1,
            },
            archs=AMPERE,
            dynamic_shared=77568,
        ),
        Rung(
            "int4",
            "10_wgmma",
            "int4_wgmma",
            "Hopper's own matrix products, x read from shared memory",
            defines={
                "ROW_GROUPS": 2,
                "K_GROUPS": 1,
                "TALL": 1,
                "CLUSTER": 1,
                "TOKENS": 64,
                "STAGES": 4,
                "RESIDENT": 1,
            },
            archs=("90a",),
            dynamic_shared=99328,
        ),
        Rung(
            "int4",
            "11_tma",
            "int4_tma",
            "copies by the tensor memory accelerator, warpgroups on their own",
            defines={
                "UNITS": 2,
                "ROW_GROUPS": 1,
                "K_GROUPS": 2,
                "CLUSTER": 1,
                "TOKENS": 8,
                "STAGES": 4,
                "RESIDENT": 1,
            },
            archs=("90a",),
            dynamic_shared=83968,
        ),
        Rung(
            "int4",
            "12_token_tiles",
            "int4_token_tiles",
            "any number of tokens, a tile of them a block",
            defines={"TALL": 2, "CLUSTER": 1, "TOKENS": 128, "STAGES": 4},
            archs=("90a",),
            dynamic_shared=198656,
        ),
        Rung(
            "int4",
            "13_stream_k",
            "int4_stream_k",
            "blocks stay, and a last turn is divided along k",
            defines={"TALL": 2, "TOKENS": 128, "STAGES": 4, "BLOCKS": 132, "SHARERS": 132, "PARTS": 0},
            archs=("90a",),
            dynamic_shared=216064,
        ),
        Rung(
            "int4",
            "14_bytes",
            "int4_bytes",
            "codes multiplied as bytes, up to four tokens",
            defines={"WARPS": 16, "CHUNKS": 1, "TOKENS": 1, "STAGES": 3, "AHEAD": 2, "TILES": 8},
            archs=AMPERE,
            dynamic_shared=16 * 3 * 1152 + 2 * 8 * 16 * 64,
        ),
        Rung(
            "int4",
            "15_k_halves",
            "int4_k_halves",
            "two warpgroups share a group of k; sums leave as tensor cores hold them",
            defines={"ROW_GROUPS": 1, "CLUSTER": 1, "TOKENS": 128, "STAGES": 6, "SHARE": 1},
            archs=("90a",),
            dynamic_shared=6 * 36992,
        ),
    ),
    "int4_dequantise": (
        Rung(
            "int4_dequantise",
            "1_words",
            "int4_dequantise",
            "eight codes a thread to FP16 in DRAM",
            defines={"THREADS": 256},
        ),
    ),
}


class Rows(NamedTuple):
    """INT4 weights [n, k] in row order: qweight [n, k/8] int32, scales [n, k/128] FP16."""

    qweight: Any
    scales: Any

    @property
    def n(self) -> int:
        return int(self.qweight.shape[0])

    @property
    def k(self) -> int:
        return 8 * int(self.qweight.shape[1])


class Tiles(NamedTuple):
    """INT4 weights [n, k] in tile order: blocks [ceil(n/64), k/128, 1056] uint32."""

    blocks: Any
    n: int
    k: int


def _fragments(codes: Any) -> Any:
    """Codes of blocks [..., 64, 128] in the order of tiles [..., m, half, g, t, step, e, kk, r]: 16-row tile
    m, 64 of k, lane 4 g + t, mma step of 16 of k; nibble e, kk, r of the word is row 16 m + 8 r + g and
    column 64 half + 16 step + 8 kk + 2 t + e.
    """
    lead = codes.shape[:-2]
    split = codes.reshape(*lead, 4, 2, 8, 2, 4, 2, 4, 2)  # m r g | half step kk t e
    m, r, g, half, step, kk, t, e = (len(lead) + i for i in range(8))
    return split.transpose(*range(len(lead)), m, half, g, t, step, e, kk, r)


def repack(qweight: Any, scales: Any) -> Tiles:
    """Weights from row order (qweight [n, k/8] int32, scales [n, k/128] FP16, NumPy or CuPy) into tile
    order, a permutation of the bits; rows that fill up the last block get code 8 (zero) and scale 0.
    """
    xp = library_of(qweight)
    n, k = int(qweight.shape[0]), 8 * int(qweight.shape[1])
    if k % GROUP or tuple(scales.shape) != (n, k // GROUP):
        raise UsageError(
            f"Scales of shape {tuple(scales.shape)} don't cover weights [{n}, {k}] in groups of {GROUP}: "
            f"k must be a multiple of {GROUP} and the scales [{n}, {k // GROUP}]."
        )
    tiles, groups = math.ceil(n / TILE), k // GROUP
    blocks = xp.empty((tiles, groups, BLOCK_WORDS), xp.uint32)
    places = xp.arange(0, 32, 4, dtype=xp.uint32)
    step = max(1, (1 << 24) // (TILE * k))  # bounds the temporaries
    for start in range(0, tiles, step):
        rows = slice(start * TILE, min((start + step) * TILE, n))
        count, here = min(start + step, tiles) - start, rows.stop - rows.start
        codes = xp.full((count * TILE, k), 8, xp.uint8)
        words = qweight[rows].view(xp.uint32)
        codes[:here] = (words[..., None] >> places & xp.uint32(15)).astype(xp.uint8).reshape(here, k)
        padded = xp.zeros((count * TILE, groups), xp.float16)
        padded[:here] = scales[rows]
        nibbles = _fragments(codes.reshape(count, TILE, groups, GROUP).transpose(0, 2, 1, 3))
        nibbles = nibbles.reshape(count, groups, BLOCK_WORDS - 32, 8).astype(xp.uint32) << places
        words = nibbles.sum(axis=-1, dtype=xp.uint32)
        blocks[start : start + count, :, 32:] = words << 2 | words >> 30
        pairs = padded.reshape(count, 4, 2, 8, groups).transpose(0, 4, 3, 1, 2)  # g, m, then rows g and g + 8
        blocks[start : start + count, :, :32] = (
            xp.ascontiguousarray(pairs).reshape(count, groups, 64).view(xp.uint32)
        )
    return Tiles(blocks, n, k)


def unpack(tiles: Tiles) -> Int4:
    """The inverse of repack: the row order of the same weights, padding dropped."""
    blocks, n, k = tiles
    xp = library_of(blocks)
    count, groups = blocks.shape[:2]
    places = xp.arange(0, 32, 4, dtype=xp.uint32)
    qweight = xp.empty((count * TILE, k // 8), xp.uint32)
    for i in range(count):
        words = blocks[i, :, 32:] >> 2 | blocks[i, :, 32:] << 30
        nibbles = words[..., None] >> places & xp.uint32(15)
        split = nibbles.reshape(groups, 4, 2, 8, 4, 4, 2, 2, 2)  # m half g t step e kk r
        codes = split.transpose(1, 8, 3, 0, 2, 5, 7, 4, 6).reshape(
            TILE, k // 8, 8
        )  # m r g | group half step kk t e
        qweight[i * TILE : (i + 1) * TILE] = (codes << places).sum(axis=-1, dtype=xp.uint32)
    pairs = xp.ascontiguousarray(blocks[:, :, :32]).view(xp.float16).reshape(count, groups, 8, 4, 2)
    scales = pairs.transpose(0, 3, 4, 2, 1).reshape(count * TILE, groups)
    return Int4(qweight[:n].view(xp.int32), xp.ascontiguousarray(scales[:n]))


class Launch(NamedTuple):
    """Blocks, threads a block, bytes of dynamic shared memory a block."""

    grid: tuple[int, int]
    threads: int
    shared: int = 0


def launch_of(
    rung: Rung, n: int, k: int, batch: int, options: Mapping[str, int], multiprocessors: int = 132
) -> Launch:
    """The launch rule: what a rung with these macros is launched with for y [batch, n], k inputs, on a GPU of
    so many multiprocessors.
    """
    if rung.operator == "int4_dequantise":
        return Launch((math.ceil(n * k / 8 / options["THREADS"]), 1), options["THREADS"])
    if rung.name == BYTES:
        ring, sums = 1152 * options["STAGES"] * options["CHUNKS"], 128 * options["TILES"] * options["TOKENS"]
        grid = min(multiprocessors, math.ceil(n / 16)), math.ceil(batch / options["TOKENS"])
        return Launch(grid, 32 * options["WARPS"], options["WARPS"] * (ring + sums))
    if rung.name == "15_k_halves":
        rows, tokens = TILE * options["ROW_GROUPS"], options["TOKENS"]
        shared = options["STAGES"] * (rows // TILE * 4 * BLOCK_WORDS + 256 * tokens)
        share = options["SHARE"]
        grid = math.ceil(math.ceil(n / rows) / share) * share * options["CLUSTER"], math.ceil(batch / tokens)
        return Launch(grid, 256 * options["ROW_GROUPS"] + 128, shared)
    if rung.name == "12_token_tiles":
        rows, tokens = 2 * TILE * options["TALL"], options["TOKENS"]
        place = rows // TILE * 4 * BLOCK_WORDS + 256 * tokens
        shared = max(options["STAGES"] * place, min(batch, tokens) * (rows + 4) * 4)
        return Launch((math.ceil(batch / tokens) * options["CLUSTER"], math.ceil(n / rows)), 384, shared)
    if "UNITS" in options:
        rows, split = TILE * options["UNITS"], options["K_GROUPS"]
        place = options["UNITS"] * 4 * BLOCK_WORDS + 256 * options["TOKENS"]
        shared = max(
            split * options["STAGES"] * place, split * min(batch, options["TOKENS"]) * (rows + 4) * 4
        )
        grid = math.ceil(n / rows) * options["CLUSTER"], math.ceil(batch / options["TOKENS"])
        return Launch(grid, 128 * options["ROW_GROUPS"] * split, shared)
    if "ROW_GROUPS" in options:
        rows, split = TILE * options["TALL"] * options["ROW_GROUPS"], options["K_GROUPS"]
        stage = split * (rows // TILE * 4 * BLOCK_WORDS + 256 * options["TOKENS"])
        shared = max(options["STAGES"] * stage, split * batch * (rows + 4) * 4)
        blocks = math.ceil(n / rows) * options["CLUSTER"]
        return Launch((blocks, 1), 128 * options["ROW_GROUPS"] * split, shared)
    if "ROW_WARPS" in options:
        rows, split = 16 * options["TILES"] * options["ROW_WARPS"], options["K_WARPS"]
        tokens = min(batch, options["TOKENS"])
        stage = split * (64 * rows + 128 * options["ROW_WARPS"]) + tokens * (256 * split + 16)
        stage = math.ceil(stage / 128) * 128
        shared = max(options["STAGES"] * stage, split * tokens * (rows + 4) * 4)
        grid = math.ceil(batch / options["TOKENS"]), math.ceil(n / rows)
        return Launch(grid, 32 * options["ROW_WARPS"] * split, shared)
    if "TILES" in options:
        warps, rows, columns = options["WARPS"], 16 * options["TILES"], options["TOKENS"]
        sums = warps * columns * (rows + 4) * 4
        scales = 128 if "RESIDENT" in options else 0
        staged = warps * 2 * (columns * _X_ROW + scales)
        return Launch((math.ceil(n / rows), 1), 32 * warps, max(staged, sums))
    if "WARPS" in options:  # the block's warps share its rows
        grid = math.ceil(n / options["ROWS"]), math.ceil(batch / options.get("TOKENS", 1))
        return Launch(grid, 32 * options["WARPS"])
    rows = options["THREADS"] // 32 * options.get("ROWS", 1)
    return Launch((math.ceil(n / rows), batch), options["THREADS"])


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    if rung.operator == "int4_dequantise":
        return source_of_callable(launch_of, dequantise)
    if rung.name == BYTES:
        return source_of_callable(launch_of, bytes_options, matmul, repack, _fragments)
    if rung.name == "13_stream_k":
        return source_of_callable(stream_k.int4, *stream_k.launch_rule(), matmul, repack, _fragments)
    return source_of_callable(launch_of, matmul, repack, _fragments)


def _launch(rung: Rung, n: int, k: int, batch: int, arguments: list[Any], macros: Mapping[str, int]) -> None:
    if rung.name == "13_stream_k":
        stream_k.int4(rung, n, k, batch, arguments, macros)
        return
    at_once = sms() if rung.name == BYTES and target() == "gpu" else 3
    launch = launch_of(rung, n, k, batch, macros, at_once)
    if launch.grid[0] >= 1 << 31 or launch.grid[1] >= 1 << 16:
        raise LaunchError(f"y [{batch}, {n}] needs {launch.grid} blocks, more than a launch can have.")
    function = loaded(rung, tuple(sorted(macros.items())))
    function.launch(launch.grid, launch.threads, arguments, shared=launch.shared)


def _check_sizes(n: int, k: int, batch: int = 1) -> None:
    if not (0 < n < 1 << 31 and 0 < k < 1 << 31 and n * k < 1 << 40 and 0 < batch < 1 << 16):
        raise LaunchError(
            f"An INT4 product takes 1 to 65535 tokens and up to 2^40 weights, not {batch} and [{n}, {k}]."
        )
    if k % GROUP:
        raise LaunchError(f"k = {k} is not a multiple of the group of {GROUP}; pad weights and x with zeros.")


def _check_rows(weights: Rows) -> None:
    n, k = weights.n, weights.k
    check_array("qweight", weights.qweight, "uint32", n * k // 8, 16)
    check_array("scales", weights.scales, "float16", n * k // GROUP, 2)


def _check_tiles(weights: Tiles) -> None:
    size = math.ceil(weights.n / TILE) * (weights.k // GROUP) * BLOCK_WORDS
    check_array("blocks", weights.blocks, "uint32", size, 16)


@with_target()
@remembered
def matmul(x: Any, weights: Rows | Tiles, *, out: Any = None, rung: str | None = None, **options: int) -> Any:
    """y [batch, n] = x [batch, k] times W [n, k] transposed; x and y FP16, W INT4, sums in FP32.

    Weights in row order run rungs 1 to 6, weights in tile order the rungs above; without a rung's name the
    recorded table picks the fastest for shape, batch and device. `options` are the rung's macros. LaunchError
    says which operand doesn't fit.
    """
    n, k = weights.n, weights.k
    batch = int(x.shape[0]) if len(x.shape) == 2 else 1
    _check_sizes(n, k, batch)
    if rung is None:
        rung, chosen_options = choose(n, k, batch, isinstance(weights, Tiles))
        options = {**chosen_options, **options}
    chosen = rung_of(LADDERS["int4"], rung, rung)
    macros = chosen.with_defaults({**bytes_options(k, batch), **options} if chosen.name == BYTES else options)
    if isinstance(weights, Tiles) != (chosen in TILED):
        order = "tile order: repack them" if chosen in TILED else "row order: unpack them"
        raise LaunchError(f"Rung int4/{chosen.name} takes weights in {order}.")
    if out is None:
        out = _empty(x, (batch, n))
    check_array("x", x, "float16", batch * k, 16)
    check_array("out", out, "float16", batch * n, 8)
    if isinstance(weights, Tiles):
        _check_tiles(weights)
        operands = [weights.blocks]
    else:
        _check_rows(weights)
        operands = [weights.qweight, weights.scales]
    if chosen in TILED and chosen.name not in ANY_BATCH and batch > macros["TOKENS"]:
        raise LaunchError(
            f"Rung int4/{chosen.name} multiplies up to {macros['TOKENS']} tokens at once, not {batch}."
        )
    if chosen.name == BYTES and (macros["TOKENS"] > 4 or GROUP * macros["WARPS"] * macros["CHUNKS"] < k):
        raise LaunchError(
            f"Rung int4/{chosen.name} takes 4 tokens a block and k up to {GROUP * 16 * MOST_CHUNKS}, not "
            f"{macros['TOKENS']} and {k}."
        )
    if chosen.name in (
        "11_tma",
        "12_token_tiles",
        "15_k_halves",
    ):  # x as a map of the boxes that are copied: 64 of k
        x = nvrtc.tensor_map(
            nvrtc.pointer(x), batch, k, "float16", (macros["TOKENS"] // macros.get("SHARE", 1), 64), 128
        )
    sizes = [ctypes.c_uint(v) for v in (n, k // GROUP, batch)]
    _launch(chosen, n, k, batch, [*operands, x, out, *sizes], macros)
    return out


@with_target()
@remembered
def dequantise(weights: Rows, *, out: Any = None, **options: int) -> Any:
    """The FP16 weights [n, k] that INT4 weights in row order stand for, each product of scale and code
    rounded once: the first half of the two-op product.
    """
    (chosen,) = LADDERS["int4_dequantise"]
    n, k, macros = weights.n, weights.k, chosen.with_defaults(options)
    _check_sizes(n, k)
    _check_rows(weights)
    if out is None:
        out = _empty(weights.scales, (n, k))
    check_array("out", out, "float16", n * k, 16)
    words = ctypes.c_ulonglong(n * k // 8)
    _launch(chosen, n, k, 1, [weights.qweight, weights.scales, out, words], macros)
    return out


TILED = LADDERS["int4"][6:]  # rungs that take weights in tile order
ANY_BATCH = (
    "15_k_halves",
    "9_shared_x",
    "11_tma",
    "12_token_tiles",
    "13_stream_k",
    "14_bytes",
)  # of these, those whose grid goes over tiles of TOKENS tokens
EVERY_TOKEN = tuple(
    rung.name for rung in LADDERS["int4"][:5]
)  # rungs that read the weights again for every token
CUDA_CORES = tuple(rung.name for rung in LADDERS["int4"][:6])
