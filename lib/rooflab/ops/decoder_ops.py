"""What a prompt or a batch needs between its matrix products: embedding, norm, rotation, gate, choice.

A row is a token: of a prompt, rows follow each other in position; of a batch, all are at one position, each
in its own sequence. `position` [1] int32 on the device says a batch's, so that a captured step can be
repeated.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.numerics import quant, reference
from rooflab.numerics.quant import Planes
from rooflab.numerics.rotary import rotations
from rooflab.ops import Rung, arrays, check_array, decoder, int4, loaded, rung_of, with_target
from rooflab.ops import sizes_of as _sizes
from rooflab.ops.int4 import Tiles
from rooflab.records.fingerprint import source_of_callable

PLACE = 8  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "embedding": (
        Rung(
            "embedding",
            "1_vector",
            "embedding_vector",
            "all tokens in a launch",
            defines={"THREADS": 128, "FORMAT": 0, "HANDED": 0},
        ),
    ),
    "rmsnorm": (
        Rung("rmsnorm", "1_block", "rmsnorm_block", "residual sum, norm and rounding in one kernel"),
        Rung(
            "rmsnorm",
            "2_in_registers",
            "rmsnorm_in_registers",
            "a row stays in registers",
            defines={"THREADS": 192, "PARTS": 2},
        ),
    ),
    "rope": (
        Rung(
            "rope",
            "1_vector",
            "rope_vector",
            "biases, rotations and the cache in one kernel",
            defines={"THREADS": 128},
        ),
    ),
    "silu_mul": (Rung("silu_mul", "1_vector", "silu_mul_vector", "SiLU and product in one kernel"),),
    "sample": (
        Rung(
            "sample",
            "1_block",
            "sample_block",
            "the next token chosen on the device",
            defines={"THREADS": 1024},
        ),
    ),
    "dequantise_tiles": (
        Rung(
            "dequantise_tiles",
            "1_block",
            "dequantise_tiles_block",
            "rows of halves meet in shared memory",
            defines={},
        ),
    ),
}


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    if rung.operator == "rmsnorm":
        return source_of_callable(rmsnorm, held_of)
    return source_of_callable(globals()[rung.operator])


def _only(operator: str, **options: int) -> tuple[Rung, Any]:
    (rung,) = LADDERS[operator]
    return rung, loaded(rung, tuple(sorted(rung.with_defaults(options).items())))


@with_target()
def embedding(
    table: Any,
    tokens: Any,
    *,
    out: Any,
    first: int = 0,
    count: int | None = None,
    position: Any = None,
    asked: Any = None,
    given: Any = None,
) -> Any:
    """out [n, width] FP32 = rows of an embedding [vocab, width], FP16 or Planes of Q8_0, of tokens [n] int32:
    the `count` of them (default: all) from `first` on. With `position` tokens is [.., n], and row `position`
    counts. That tokens lie in the table is the caller's to know. `given` int32, if wanted, gets as many
    words of `asked`, which like tokens may be host memory that the GPU can read.
    """
    n, width = _sizes("out", out, 2)
    planes = isinstance(table, Planes)
    vocab = _sizes("table", table.quants if planes else table, 2)[0]
    count = n - first if count is None else count
    if first < 0 or count < 1 or first + count > n or (position is not None and count != n):
        raise LaunchError(f"embedding has rows 0 to {n - 1} and is asked for {count} from {first} on.")
    if width % 32:
        raise LaunchError(f"embedding takes rows of a multiple of 32, not {width}.")
    if planes:
        check_array("the table's quants", table.quants, "int8", vocab * width, 16)
        check_array("the table's scales", table.scales, "float16", vocab * width // 32, 16)
    else:
        check_array("table", table, "float16", vocab * width, 16)
    check_array("out", out, "float32", n * width, 16)
    check_array("tokens", tokens, "uint32", n if position is None else None)
    words = 0 if given is None else int(given.shape[0])
    if words:
        check_array("given", given, "uint32", words)
        check_array("asked", asked, "uint32", words)
    rung, function = _only("embedding", FORMAT=int(planes), HANDED=words)
    operands = [table.quants, table.scales] if planes else [table, table]
    where = [ctypes.c_int(v) for v in (width, first, position is not None)]
    at = tokens if position is None else _position(position)
    handed = [asked, given] if words else [tokens, tokens]
    function.launch(count, rung.defines["THREADS"], [*operands, tokens, at, out, *where, *handed])
    return out


def _position(position: Any) -> Any:
    check_array("position", position, "uint32", 1)
    return position


@with_target()
def rmsnorm(
    residual: Any,
    weights: Any,
    *,
    out: Any,
    branch: Any = None,
    epsilon: float = 1e-6,
    rung: str | None = None,
) -> Any:
    """out [n, width] FP16 = the rows of residual [n, width] FP32 over their root mean square, times weights.

    With `branch` [n, width] FP16 that is added to the residual first, in place.
    """
    n, width = _sizes("residual", residual, 2)
    if width % 8:
        raise LaunchError(f"rmsnorm takes rows of a multiple of 8, not {width}.")
    check_array("residual", residual, "float32", n * width, 16)
    check_array("weights", weights, "float16", width, 16)
    check_array("out", out, "float16", n * width, 16)
    if branch is not None:
        check_array("branch", branch, "float16", n * width, 16)
    chosen = rung_of(LADDERS["rmsnorm"], rung, "2_in_registers" if width <= 16384 else "1_block")
    macros = chosen.with_defaults(held_of(width) if chosen.name == "2_in_registers" else {})
    if chosen.name == "2_in_registers" and width > 4 * macros["THREADS"] * macros["PARTS"]:
        raise LaunchError(f"Rung rmsnorm/2_in_registers holds up to 16384 numbers a row, not {width}.")
    tail = [ctypes.c_int(width), ctypes.c_int(branch is not None), ctypes.c_float(epsilon)]
    arguments = [residual, out if branch is None else branch, weights, out, *tail]
    loaded(chosen, tuple(sorted(macros.items()))).launch(n, macros["THREADS"], arguments)
    return out


def held_of(width: int) -> dict[str, int]:
    """The launch rule of rung 2_in_registers: two or four times 4 numbers a thread."""
    parts = 2 if width <= 8192 else 4
    return {"PARTS": parts, "THREADS": min(1024, 32 * math.ceil(width / (128 * parts)))}


@with_target()
def rope(
    rows: Any,
    biases: Any,
    rotary: Any,
    queries: Any,
    keys: Any,
    values: Any,
    *,
    start: int = 0,
    position: Any = None,
) -> None:
    """Biased and rotated queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim] out of rows
    [n, (heads + 2 kv_heads) head_dim] FP16, which are in the order of pair_heads, as are the biases. The
    first row is at position `start` of rotary [positions, head_dim / 2, 2] FP32. With `position` all rows
    stand there, and keys and values are a batch's cache [capacity, n, kv_heads, head_dim] to be written to.
    """
    n, heads, head_dim = _sizes("queries", queries, 3)
    capacity, kv_heads = 1, _sizes("keys", keys, 3 if position is None else 4)[-2]
    if position is not None:
        capacity = int(keys.shape[0])
    width = (heads + 2 * kv_heads) * head_dim
    if head_dim % 16 or n > 65535:
        raise LaunchError(
            f"rope takes heads of a multiple of 16 and up to 65535 rows, not {head_dim} and {n}."
        )
    end = start + n if position is None else capacity
    if start < 0 or end > int(rotary.shape[0]):
        raise LaunchError(f"Positions {start} to {end} are not among {int(rotary.shape[0])} rotations.")
    check_array("rows", rows, "float16", n * width, 16)
    check_array("biases", biases, "float16", width, 16)
    check_array("rotary", rotary, "float32", int(rotary.shape[0]) * head_dim, 8)
    check_array("queries", queries, "float16", n * heads * head_dim, 16)
    check_array("keys", keys, "float16", capacity * n * kv_heads * head_dim, 16)
    check_array("values", values, "float16", capacity * n * kv_heads * head_dim, 16)
    rung, function = _only("rope")
    threads = rung.defines["THREADS"]
    sizes = [ctypes.c_int(v) for v in (heads, kv_heads, head_dim, start, position is not None)]
    at = rotary if position is None else _position(position)
    arguments = [rows, biases, rotary, at, queries, keys, values, *sizes]
    function.launch((math.ceil(width / 16 / threads), n), threads, arguments)


@with_target()
def silu_mul(both: Any, *, out: Any) -> Any:
    """out [n, mlp] FP16 = SiLU of the gates times the ups of both [n, 2 mlp], in the order of pair_gates."""
    n, width = _sizes("both", both, 2)
    if width % 16:
        raise LaunchError(f"silu_mul takes a multiple of 8 gates and as many ups, not {width} in all.")
    check_array("both", both, "float16", n * width, 16)
    check_array("out", out, "float16", n * width // 2, 16)
    rung, function = _only("silu_mul")
    count, threads = n * width // 16, rung.defines["THREADS"]
    if count >= threads << 31:
        raise LaunchError(f"{n} rows of {width} are more than a launch covers.")
    function.launch(math.ceil(count / threads), threads, [both, out, ctypes.c_ulonglong(count)])
    return out


@with_target()
def sample(
    logits: Any,
    tokens: Any,
    position: Any,
    *,
    softcap: float = 0.0,
    inverse_temperature: float = 0.0,
    seed: int = 0,
) -> None:
    """Row position + 1 of tokens [.., n] int32 = the likeliest of each row of logits [n, vocab] FP16, of
    equals the first; with inverse_temperature above 0 one drawn by softmax of the logits times it, the same
    for the same seed, position and row. softcap, if not 0, bounds the logits before. That tokens has the row
    is the caller's to know.
    """
    n, vocab = _sizes("logits", logits, 2)
    if vocab % 8:
        raise LaunchError(f"sample takes a multiple of 8 logits, not {vocab}.")
    if not all(v >= 0 and math.isfinite(v) for v in (inverse_temperature, softcap)):
        raise LaunchError(
            "inverse_temperature and softcap are finite and not negative, unlike "
            f"{inverse_temperature} and {softcap}."
        )
    check_array("logits", logits, "float16", n * vocab, 16)
    check_array("tokens", tokens, "uint32")
    rung, function = _only("sample")
    numbers = [
        ctypes.c_int(vocab),
        ctypes.c_float(softcap),
        ctypes.c_float(inverse_temperature),
        ctypes.c_uint(seed),
    ]
    function.launch(n, rung.defines["THREADS"], [logits, tokens, _position(position), *numbers])


@with_target()
def dequantise_tiles(weights: Tiles, *, out: Any) -> Any:
    """out [n, k] FP16 = the weights that INT4 tiles stand for, each product of scale and code rounded once.
    n must be a multiple of 64.
    """
    n, k = weights.n, weights.k
    if n % 64 or k % 128 or not 0 < n < 1 << 22 or not 0 < k < 1 << 31:
        raise LaunchError(f"dequantise_tiles takes rows by the 64 and k by the 128, not [{n}, {k}].")
    check_array("blocks", weights.blocks, "uint32", n // 64 * (k // 128) * 1056, 16)
    check_array("out", out, "float16", n * k, 16)
    _, function = _only("dequantise_tiles")
    function.launch((k // 128, n // 64), 256, [weights.blocks, out, ctypes.c_int(k)])
    return out


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate: a shape in words, and the work."""
    rng, put = np.random.default_rng(0), arrays().asarray

    def halves(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float16)

    def subject(
        shape: str,
        launch: Callable[[Any], object],
        expected: Any,
        dtype: Any = np.float16,
        budget: float = _ULP,
    ) -> tuple[str, gate.Work]:
        outs = [put(np.empty(expected.shape, dtype)) for _ in range(2)]
        return shape, gate.trial(rung.name, launch, outs, expected, budget)

    if operator == "embedding":
        table = halves(40, 96)
        blocks = quant.quantise_q8_0(table)
        places, at = rng.integers(0, 40, (3, 5)).astype(np.int32), put(np.array([1], np.int32))
        tokens, history = put(places[1].copy()), put(places)
        planes = Planes(*map(put, quant.to_planes(blocks)))
        for kind, w, values in (("fp16", put(table), table), ("q8_0", planes, quant.dequantise_q8(blocks))):
            expected = values[places[1]].astype(np.float32)
            for at_once, launch in (
                ("", partial(_in_pieces, w, tokens)),
                (" of a step", lambda out, w=w: embedding(w, history, out=out, position=at)),
            ):
                yield subject(f"5 tokens{at_once} of 96 in {kind}", launch, expected, np.float32, 0.0)
    elif operator == "rmsnorm":
        width = 1096
        before = rng.standard_normal((5, width)).astype(np.float32)
        branch, weights = halves(5, width), halves(width)
        total = before.astype(np.float64) + branch
        expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
        residual, branch, weights = map(put, (before, branch, weights))
        yield subject(
            f"5 x {width}",
            lambda out: rmsnorm(residual.copy(), weights, out=out, branch=branch, rung=rung.name),
            expected,
        )
    elif operator == "rope":
        rows, biases, rotary = halves(3, 256), halves(256), rotations(16, 32, 1e4)
        whole = (rows.astype(np.float64) + biases).reshape(3, 8, 32)
        cos, sin = rotary[5:8, None, :, 0], rotary[5:8, None, :, 1]
        first, second = whole[..., :16], whole[..., 16:]
        expected = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
        expected[:, 6:] = whole[:, 6:]
        paired = np.ascontiguousarray(decoder.pair_heads(rows.T, 32).T)
        operands = [put(array) for array in (paired, decoder.pair_heads(biases, 32), rotary)]
        yield subject("3 x 8 heads of 32", partial(_rotated, *operands), expected)
    elif operator == "silu_mul":
        gates = halves(2, 67, 40)
        both = put(np.ascontiguousarray(decoder.pair_gates(gates.swapaxes(1, 2)).T))
        gate64, up64 = gates.astype(np.float64)
        expected = gate64 / (1 + np.exp(-gate64)) * up64
        yield subject("67 x 40", lambda out: silu_mul(both, out=out), expected)
    elif operator == "sample":
        logits, before = halves(3, 8264), rng.integers(0, 9, (4, 3)).astype(np.int32)
        logits[0, [7, 8200]] = 9  # of equals the first
        for how in SAMPLED:
            expected = before.copy()
            expected[2] = reference.sampled(logits, 1, **how)
            launch = partial(_sampled, put(logits), put(before), put(np.array([1], np.int32)), how)
            yield subject(f"3 x 8264{words_of(how)}", launch, expected, np.int32, 0.0)
    elif operator == "dequantise_tiles":
        codes = quant.quantise_int4(halves(128, 256))
        tiles = int4.repack(*map(put, codes))
        expected = quant.dequantise_int4(codes).astype(np.float16)
        yield subject("128 x 256", lambda out: dequantise_tiles(tiles, out=out), expected, budget=0.0)


_ULP = float(np.spacing(np.float16(4)))
# How trials choose tokens: the likeliest, and drawn.
SAMPLED: tuple[dict[str, Any], ...] = ({}, {"inverse_temperature": 0.9, "softcap": 4.0, "seed": 3})


def words_of(how: dict[str, Any]) -> str:
    """One of SAMPLED in words, behind a shape."""
    return ", drawn" if how else ""


def _in_pieces(table: Any, tokens: Any, out: Any) -> None:
    embedding(table, tokens, out=out, count=2)
    embedding(table, tokens, out=out, first=2)


def _rotated(rows: Any, biases: Any, rotary: Any, out: Any) -> None:
    parts = [arrays().full((3, heads, 32), np.nan, np.float16) for heads in (4, 2, 2)]
    rope(rows, biases, rotary, *parts, start=5)
    out[...] = arrays().concatenate(parts, 1)


def _sampled(logits: Any, tokens: Any, position: Any, how: dict[str, Any], out: Any) -> None:
    out[...] = tokens
    sample(logits, out, position, **how)
