"""Q8_0 weights: products with a few tokens, quantised activations, embedding lookup, dequantising.

Weights lie in memory as Blocks (34-byte blocks, as a GGUF file holds them), as Planes
(rooflab.numerics.quant: to_planes) or as Tiles (`repack`); activations as FP16, as Q8_1 blocks, or as Q8_1
planes. Each rung takes one of each and refuses the others. Matrices are row-major: weights [n, k],
activations [batch, k], outputs [batch, n].
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rooflab.errors import LaunchError, UsageError
from rooflab.numerics.quant import BLOCK, Q8_0, Q8_1, Planes
from rooflab.ops import Rung, check_array, loaded, remembered, rung_of, with_target
from rooflab.records.case import Case
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime.arrays import empty, library_of

_TILE = 64  # rows of a tile, and its numbers of k
_TILE_BYTES = 64 * 2 * 2 + 64 * 64
_LARGEST = 2**31 - 1  # sizes and element counts of activations and outputs are ints in the kernels

PLACE = 3  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "q8_0": (
        Rung("q8_0", "1_float", "q8_0_float", "every weight a float on its own"),
        Rung("q8_0", "2_dp4a", "q8_0_dp4a", "four products an instruction, on Q8_1 activations"),
        Rung("q8_0", "3_scale", "q8_0_scale", "the scale in one 16-bit load"),
        Rung(
            "q8_0",
            "4_planes",
            "q8_0_planes",
            "scales and quants repacked into planes, 16-byte loads",
            defines={"THREADS": 128, "UNROLL": 4, "RESIDENT": 4},
        ),
        Rung(
            "q8_0",
            "5_batch",
            "q8_0_batch",
            "several tokens on the same weight registers",
            defines={"THREADS": 128, "BATCH": 4, "ROWS": 4, "RESIDENT": 4},
        ),
        Rung(
            "q8_0",
            "6_mma",
            "q8_0_mma",
            "8 tokens a product on the int8 tensor cores",
            defines={"THREADS": 128, "STAGES": 3, "ROW_TILES": 2, "TOKEN_TILES": 1, "RESIDENT": 2},
            dynamic_shared=4 * 3 * 40 * 136,
        ),
    ),
    "q8_1": (
        Rung("q8_1", "1_blocks", "q8_1_blocks", "Q8_1 blocks, an element a lane"),
        Rung("q8_1", "2_planes", "q8_1_planes", "planes, eight elements a lane"),
    ),
    "embedding_q8_0": (
        Rung("embedding_q8_0", "1_token", "embedding_q8_0_token", "a launch and a copy a token"),
        Rung("embedding_q8_0", "2_batched", "embedding_q8_0_batched", "every token in one launch"),
    ),
    "dequantise": (
        Rung("dequantise", "1_bytes", "dequantise_bytes", "scales from two bytes, rows by division"),
        Rung("dequantise", "2_word", "dequantise_word", "scales in one 16-bit load"),
        Rung("dequantise", "3_shift", "dequantise_shift", "rows by shift and mask, where k allows it"),
    ),
}

# The rung that an operator runs when none is named: the fastest one recorded that takes every shape.
DEFAULT = {"q8_0": "5_batch", "q8_1": "2_planes", "embedding_q8_0": "2_batched", "dequantise": "2_word"}
# What a rung of q8_0 reads: its weights, its activations, how many tokens at most, what k is a multiple of.
TAKES = {
    "1_float": ("blocks", "half", 1, BLOCK),
    "2_dp4a": ("blocks", "blocks", 1, BLOCK),
    "3_scale": ("blocks", "blocks", 1, BLOCK),
    "4_planes": ("planes", "planes", 1, BLOCK),
    "5_batch": ("planes", "planes", 8, BLOCK),
    "6_mma": ("planes", "planes", 32, 4 * BLOCK),
}


class Blocks(NamedTuple):
    """Q8_0 or Q8_1 blocks as bytes: uint8 [rows, k / 32 x 34 or 36]."""

    data: Any


class Tiles(NamedTuple):
    """Q8_0 weights [n, k] in tile order: uint32 [ceil(n/64), k/64, 1088], as the tensor cores take them."""

    blocks: Any
    n: int
    k: int


def repack(planes: Planes) -> Tiles:
    """Weights from planes (NumPy or CuPy) into tile order, a permutation of the bits with the quants' signs
    turned over. Of each 64 rows by 64 of k: the scales, then the quants in the order in which lanes hold the
    first operand of a tensor-core product of 16 rows by 16 of k, so that 16 bytes are a lane's share of 16
    rows by 32 of k. Rows that fill up the last tile are zeros. UsageError if k is no multiple of 64.
    """
    scales, quants = planes
    xp = library_of(quants)
    n, k = (int(size) for size in quants.shape)
    if k % _TILE:
        raise UsageError(f"Tiles are {_TILE} of k wide: k = {k} is no multiple of it.")
    tiles, across = math.ceil(n / _TILE), k // _TILE
    bytes_ = xp.empty((tiles, across, _TILE_BYTES), xp.uint8)
    step = max(1, (1 << 26) // (_TILE * k))  # bounds the temporaries
    for start in range(0, tiles, step):
        rows = slice(start * _TILE, min((start + step) * _TILE, n))
        count, here = min(start + step, tiles) - start, rows.stop - rows.start
        codes = xp.full((count * _TILE, k), 128, xp.uint8)
        codes[:here] = quants[rows].view(xp.uint8) ^ xp.uint8(128)
        padded = xp.zeros((count * _TILE, 2 * across), xp.float16)
        padded[:here] = scales[rows]
        split = codes.reshape(count, 4, 2, 8, across, 2, 2, 2, 4, 2)  # tile m r g | across b step kk t e
        ordered = xp.ascontiguousarray(split.transpose(0, 4, 1, 5, 3, 8, 6, 7, 2, 9))
        split = padded.reshape(count, 4, 2, 8, across, 2)  # tile m r g | across b
        pairs = xp.ascontiguousarray(split.transpose(0, 4, 1, 3, 5, 2)).reshape(count, across, 128)
        bytes_[start : start + count, :, :256] = pairs.view(xp.uint8)
        bytes_[start : start + count, :, 256:] = ordered.reshape(count, across, _TILE * _TILE)
    return Tiles(bytes_.view(xp.uint32), n, k)


def unpack(tiles: Tiles) -> Planes:
    """The inverse of repack: planes of the same weights, padding dropped."""
    blocks, n, k = tiles
    xp = library_of(blocks)
    count, across = (int(size) for size in blocks.shape[:2])
    bytes_ = blocks.view(xp.uint8)
    split = xp.ascontiguousarray(bytes_[:, :, 256:]).reshape(count, across, 4, 2, 8, 4, 2, 2, 2, 2)
    codes = xp.ascontiguousarray(split.transpose(0, 2, 8, 4, 1, 3, 6, 7, 5, 9)).reshape(count * _TILE, k)
    pairs = xp.ascontiguousarray(bytes_[:, :, :256]).view(xp.float16).reshape(count, across, 4, 8, 2, 2)
    scales = xp.ascontiguousarray(pairs.transpose(0, 2, 5, 3, 1, 4)).reshape(count * _TILE, k // BLOCK)
    return Planes(scales[:n], (codes[:n] ^ xp.uint8(128)).view(xp.int8))


def shape_of(operand: Any, block_bytes: int) -> tuple[int, int]:
    """Rows and k of Blocks, Planes, Tiles or a plain matrix."""
    if isinstance(operand, Tiles):
        return operand.n, operand.k
    matrix = arrays_of(operand)[0]
    if len(getattr(matrix, "shape", ())) != 2:
        raise LaunchError("Weights and activations are matrices of two dimensions.")
    rows, width = (int(size) for size in matrix.shape)
    if not isinstance(operand, Blocks):
        return rows, width
    if width % block_bytes:
        raise LaunchError(f"{width} bytes a row are no whole number of blocks of {block_bytes} bytes.")
    return rows, width // block_bytes * BLOCK


def check_sizes(n: int, k: int, batch: int, multiple: int, what: str) -> None:
    """Refuse sizes that a kernel cannot count in its ints, before anything is cast to one."""
    if k % multiple or not 0 < k <= _LARGEST:
        raise LaunchError(f"{what} takes a k that is a multiple of {multiple}, not {k}.")
    if n < 1 or batch < 1 or max(n, batch * k, batch * n) > _LARGEST:
        raise LaunchError(
            f"{what} counts rows, activations and outputs in 31 bits: {batch} tokens by k = {k} and n = {n} "
            f"are {max(n, batch * k, batch * n)}, beyond 1 to {_LARGEST}."
        )


def check_weights(w: Any, n: int, k: int) -> None:
    """Refuse weights that are not Blocks, Planes or Tiles of [n, k] on the target at hand."""
    if isinstance(w, Tiles):
        size = math.ceil(n / _TILE) * (k // _TILE) * _TILE_BYTES
        check_array("the blocks of w", w.blocks, "uint32", size // 4, 16)
    elif isinstance(w, Blocks):
        check_array("w", w.data, "uint8", n * k // BLOCK * Q8_0.itemsize, 4)
    else:
        check_array("the quants of w", w.quants, "int8", n * k, 16)
        check_array("the scales of w", w.scales, "float16", n * k // BLOCK, 16)


def check_activations(x: Any, batch: int, k: int) -> None:
    """Refuse activations that are not FP16, Blocks or Planes of [batch, k] on the target at hand."""
    if isinstance(x, Blocks):
        check_array("x", x.data, "uint8", batch * k // BLOCK * Q8_1.itemsize, 4)
    elif isinstance(x, Planes):
        check_array("the quants of x", x.quants, "int8", batch * k, 16)
        check_array("the scales of x", x.scales, "float16", batch * k // BLOCK, 16)
    else:
        check_array("x", x, "float16", batch * k, 16)


def kind_of(operand: Any) -> str:
    """How an operand lies in memory: "blocks", "planes", "tiles" or "half"."""
    return {Blocks: "blocks", Planes: "planes", Tiles: "tiles"}.get(type(operand), "half")


def arrays_of(operand: Any) -> list[Any]:
    """The arrays of an operand in the order in which kernels take them."""
    if isinstance(operand, Planes):
        return [operand.quants, operand.scales]
    if isinstance(operand, Tiles):
        return [operand.blocks]
    return [operand.data if isinstance(operand, Blocks) else operand]


def options_for(rung: Rung, batch: int) -> dict[str, int]:
    """The macros that suit a number of tokens, where the rung leaves a choice."""
    if rung.name == "5_batch":
        few = batch <= 4
        return {"BATCH": batch, "ROWS": 2 if few else 4, "RESIDENT": 8 if batch == 1 else 5 if few else 4}
    if rung.name == "6_mma":  # what keeps its rings within 64 KiB, which every chip has
        tiles = math.ceil(batch / 8)
        return {
            "TOKEN_TILES": tiles,
            "STAGES": 2 if tiles == 2 else 3,
            "THREADS": 64 if tiles > 2 else 128,
        }
    return {}


def matvec_launch(rung: Rung, n: int, macros: Mapping[str, int]) -> tuple[int, int, int]:
    """The launch rule of q8_0: blocks, threads a block, and bytes of dynamic shared memory."""
    threads = macros["THREADS"]
    if rung.name == "6_mma":
        rows, tokens = 16 * macros["ROW_TILES"], 8 * macros["TOKEN_TILES"]
        ring = threads // 32 * macros["STAGES"] * (rows + tokens) * 136
        return math.ceil(n / rows), threads, max(ring, threads // 32 * rows * tokens * 4)
    return math.ceil(n / macros.get("ROWS", threads // 32)), threads, 0


@with_target()
@remembered
def matvec(x: Any, w: Any, *, out: Any = None, rung: str | None = None, **options: int) -> Any:
    """Return out [batch, n] FP16 = x [batch, k] times w [n, k] transposed.

    w is Blocks or Planes of Q8_0, x FP16 or Blocks or Planes of Q8_1 (`quantise` makes them); which of them
    a rung takes is listed in TAKES. LaunchError for anything else. `out` reuses an output.
    """
    chosen = rung_of(LADDERS["q8_0"], rung, DEFAULT["q8_0"])
    (n, k), (batch, x_k) = shape_of(w, Q8_0.itemsize), shape_of(x, Q8_1.itemsize)
    weights, activations, most, multiple = TAKES[chosen.name]
    name = f"Rung q8_0/{chosen.name}"
    if (kind_of(w), kind_of(x)) != (weights, activations):
        raise LaunchError(
            f"{name} takes weights in {weights} and activations in {activations}, "
            f"not {kind_of(w)} and {kind_of(x)}."
        )
    if x_k != k:
        raise LaunchError(f"x has k = {x_k} and w has k = {k}; they must agree.")
    check_sizes(n, k, batch, multiple, name)
    if batch > most:
        raise LaunchError(f"{name} takes at most {most} tokens, not {batch}.")
    options = {**options_for(chosen, batch), **options}
    capacity = {"5_batch": options.get("BATCH", 0), "6_mma": 8 * options.get("TOKEN_TILES", 0)}
    if batch > capacity.get(chosen.name, 1) or (chosen.name == "5_batch" and batch != options["BATCH"]):
        raise LaunchError(f"{name} so built takes {capacity[chosen.name]} tokens, not {batch}.")
    macros = chosen.with_defaults(options)
    check_weights(w, n, k)
    check_activations(x, batch, k)
    out = empty(arrays_of(x)[0], (batch, n), "float16") if out is None else out
    check_array("out", out, "float16", batch * n)
    arguments = [*arrays_of(w), *arrays_of(x), out, ctypes.c_int(n), ctypes.c_int(k)]
    arguments += [ctypes.c_int(batch)] if chosen.name == "6_mma" else []
    blocks, threads, shared = matvec_launch(chosen, n, macros)
    loaded(chosen, tuple(sorted(macros.items()))).launch(blocks, threads, arguments, shared=shared)
    return out


@with_target()
@remembered
def quantise(x: Any, *, out: Any = None, rung: str | None = None, **options: int) -> Any:
    """Return x [batch, k] FP16 in Q8_1: Blocks by rung 1_blocks, Planes by rung 2_planes.

    Bit for bit what formats.quantise_q8_1 makes (planes leave out its sums). Values must be finite.
    """
    chosen = rung_of(LADDERS["q8_1"], rung, DEFAULT["q8_1"])
    macros = chosen.with_defaults(options)
    batch, k = shape_of(x, 0)
    check_sizes(1, k, batch, BLOCK, f"Rung q8_1/{chosen.name}")
    check_array("x", x, "float16", batch * k, 16)
    count = batch * k // BLOCK
    if chosen.name == "1_blocks":
        out = Blocks(empty(x, (batch, k // BLOCK * Q8_1.itemsize), "uint8")) if out is None else out
        blocks = math.ceil(count / (macros["THREADS"] // 32))
    else:
        if out is None:
            out = Planes(empty(x, (batch, k // BLOCK), "float16"), empty(x, (batch, k), "int8"))
        blocks = math.ceil(4 * count / macros["THREADS"])
    if kind_of(out) != chosen.name[2:]:
        raise LaunchError(f"Rung q8_1/{chosen.name} writes {chosen.name[2:]}, not {kind_of(out)}.")
    check_activations(out, batch, k)
    arguments = [x, *arrays_of(out), ctypes.c_longlong(count)]
    loaded(chosen, tuple(sorted(macros.items()))).launch(blocks, macros["THREADS"], arguments)
    return out


@with_target()
def embedding_q8_0(
    table: Blocks,
    tokens: Any,
    *,
    index: int | None = None,
    out: Any = None,
    rung: str | None = None,
    **options: int,
) -> Any:
    """Rows tokens [count] int32 of table as FP32, [count, k]; by rung 1_token the row tokens[index], [k].

    Every token must be a row of the table: like the kernels of frameworks, these do not check.
    """
    chosen = rung_of(LADDERS["embedding_q8_0"], rung, DEFAULT["embedding_q8_0"])
    macros = chosen.with_defaults(options)
    rows, k = shape_of(table, Q8_0.itemsize)
    count, single = int(tokens.shape[0]), chosen.name == "1_token"
    if single is (index is None) or (index is not None and not 0 <= index < count):
        raise LaunchError(
            f"Rung embedding_q8_0/1_token takes one index below {count}, "
            "rung embedding_q8_0/2_batched takes none."
        )
    check_sizes(1, k, 1 if single else count, BLOCK, f"Rung embedding_q8_0/{chosen.name}")
    check_weights(table, rows, k)
    check_array("tokens", tokens, "int32", count)
    out = empty(tokens, (k,) if single else (count, k), "float32") if out is None else out
    check_array("out", out, "float32", k if single else count * k)
    tiles = math.ceil(k / macros["THREADS"])
    arguments = [table.data, tokens, out, ctypes.c_int(k)] + ([] if index is None else [ctypes.c_int(index)])
    function = loaded(chosen, tuple(sorted(macros.items())))
    function.launch(tiles if single else (count, tiles), macros["THREADS"], arguments)
    return out


@with_target()
@remembered
def dequantise(w: Blocks, *, out: Any = None, rung: str | None = None, **options: int) -> Any:
    """Return w in FP16, [n, k]: each element the product of quant and scale, rounded once."""
    chosen = rung_of(LADDERS["dequantise"], rung, DEFAULT["dequantise"])
    macros = chosen.with_defaults(options)
    n, k = shape_of(w, Q8_0.itemsize)
    check_sizes(n, k, 1, BLOCK, f"Rung dequantise/{chosen.name}")
    if chosen.name == "3_shift" and k & (k - 1):
        raise LaunchError(f"Rung dequantise/3_shift divides by shifting, so k = {k} must be a power of two.")
    check_weights(w, n, k)
    out = empty(w.data, (n, k), "float16") if out is None else out
    check_array("out", out, "float16", n * k, 8)
    blocks = math.ceil(n * k // 4 / macros["THREADS"])
    if blocks > _LARGEST:
        raise LaunchError(f"{n} x {k} elements need {blocks} blocks, beyond the {_LARGEST} of a launch.")
    arguments = [w.data, out, ctypes.c_int(n), ctypes.c_int(k)]
    loaded(chosen, tuple(sorted(macros.items()))).launch(blocks, macros["THREADS"], arguments)
    return out


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    functions = {
        "q8_0": (matvec, matvec_launch, options_for),
        "q8_1": (quantise,),
        "embedding_q8_0": (embedding_q8_0,),
    }
    return source_of_callable(*functions.get(rung.operator, (dequantise,)))


def small_cases(operator: str, rung: Rung) -> list[Case]:
    """Ragged shapes, for the gate on the CPU."""
    if operator != "q8_0":
        return [Case("q8_0", operator, rung.name, format="q8_0", n=n, k=128, batch=3) for n in (19, 64)]
    several = ((3, 4480), (8, 256)) if TAKES[rung.name][2] > 1 else ((1, 4480),)
    return [
        Case("q8_0", operator, rung.name, format="q8_0", n=37, k=k, batch=batch)
        for batch, k in ((1, 256), *several)
    ]
