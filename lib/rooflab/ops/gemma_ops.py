"""What a decoder of Gemma's kind needs between its products, for a prompt's rows and for one token alike.

Residuals are FP32, what products read and leave is FP16. Tokens and places are on the device: row i of a
launch is at position place[0] + i; the caller makes sure that this is within the capacity.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from rooflab.errors import LaunchError
from rooflab.numerics.quant import Planes
from rooflab.ops import Rung, check_array, loaded, with_target
from rooflab.ops import sizes_of as _sizes
from rooflab.records.fingerprint import source_of_callable

PLACE = 9  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "sample_candidates": (
        Rung(
            "sample_candidates",
            "1_warp",
            "sample_candidates_warp",
            "the device picks the token, without a round trip to the host",
            defines={},
        ),
    ),
    "embedding_scaled": (
        Rung(
            "embedding_scaled",
            "1_vector",
            "embedding_scaled_vector",
            "one reading for the residual and for the projection",
            defines={"THREADS": 128, "FORMAT": 0},
        ),
    ),
    "per_layer_embedding": (
        Rung(
            "per_layer_embedding",
            "1_warp",
            "per_layer_embedding_warp",
            "all layers' embeddings of a token at once",
            defines={"THREADS": 128, "FORMAT": 0},
        ),
    ),
    "add_rmsnorm": (
        Rung(
            "add_rmsnorm",
            "1_block",
            "add_rmsnorm_block",
            "norms on both sides of the sum, read once",
            defines={"THREADS": 512, "PARTS": 2},
        ),
    ),
    "rope_qk_norm": (
        Rung(
            "rope_qk_norm",
            "1_warp",
            "rope_qk_norm_warp",
            "heads normalised, turned and put in their place",
            defines={"THREADS": 128, "HEAD_DIM": 256},
        ),
    ),
    "gelu_mul": (Rung("gelu_mul", "1_vector", "gelu_mul_vector", "GELU and product in one kernel"),),
}


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    return source_of_callable(globals()[rung.operator])


def _of(operator: str, **macros: int) -> tuple[dict[str, int], Any]:
    """The macros of an operator's rung, and the rung with them, loaded."""
    (rung,) = LADDERS[operator]
    found = rung.with_defaults(macros)
    return found, loaded(rung, tuple(sorted(found.items())))


def _ints(*values: int) -> list[Any]:
    return [ctypes.c_int(value) for value in values]


def _table(name: str, table: Any, width: int) -> tuple[int, list[Any]]:
    """A table of FP16 or of Q8_0 planes: its format's number, and its two arguments."""
    planes = isinstance(table, Planes)
    codes = table.quants if planes else table
    count = _sizes(name, codes, 2)[0] * width
    if codes.shape[1] != width or width % 32:
        raise LaunchError(
            f"{name} must have rows of {width}, a multiple of 32, not the shape {tuple(codes.shape)}."
        )
    check_array(name, codes, "int8" if planes else "float16", count, 16)
    if planes:
        check_array(f"the scales of {name}", table.scales, "float16", count // 32, 16)
    return int(planes), [codes, table.scales if planes else codes]


@with_target()
def sample_candidates(candidates: Any, tokens: Any, position: Any, place: Any, length: Any) -> None:
    """Write the token that `candidates` [blocks, 2] come to (as ops.decoder leaves them) to
    tokens[position]; then place = position, and length = position = position + 1.
    """
    blocks, _ = _sizes("candidates", candidates, 2)
    check_array("candidates", candidates, "float32", 2 * blocks, 8)
    check_array("tokens", tokens, "uint32")
    for name, scalar in (("position", position), ("place", place), ("length", length)):
        check_array(name, scalar, "uint32", 1)
    _, function = _of("sample_candidates")
    function.launch(1, 32, [candidates, tokens, position, place, length, *_ints(blocks)])


@with_target()
def embedding_scaled(
    table: Any, tokens: Any, place: Any, *, residual: Any, out: Any, factor: float = 1.0
) -> None:
    """Rows tokens[place + i] of table [vocab, width] (FP16 or Planes): `factor` times them in residual
    [n, width] FP32, and as they are in out [n, width] FP16.
    """
    n, width = _sizes("residual", residual, 2)
    form, operands = _table("table", table, width)
    check_array("tokens", tokens, "uint32")
    check_array("place", place, "uint32", 1)
    check_array("residual", residual, "float32", n * width, 16)
    check_array("out", out, "float16", n * width, 16)
    macros, function = _of("embedding_scaled", FORMAT=form)
    grid = n, math.ceil(width / 8 / macros["THREADS"])
    arguments = [*operands, tokens, place, residual, out, *_ints(width // 8), ctypes.c_float(factor)]
    function.launch(grid, macros["THREADS"], arguments)


@with_target()
def per_layer_embedding(
    projected: Any,
    weights: Any,
    table: Any,
    tokens: Any,
    place: Any,
    *,
    out: Any,
    factor: float,
    epsilon: float = 1e-6,
) -> None:
    """out [n, layers, width] FP16 = (projected over its root mean square, layer by layer, times weights
    [width], + `factor` times row tokens[place + i] of table [vocab, layers width]) / sqrt(2).
    """
    n, layers, width = _sizes("out", out, 3)
    if width % 32 or width > 256:
        raise LaunchError(
            f"per_layer_embedding takes a multiple of 32 up to 256 numbers a layer, not {width}."
        )
    form, operands = _table("table", table, layers * width)
    check_array("projected", projected, "float16", n * layers * width, 16)
    check_array("weights", weights, "float16", width, 16)
    check_array("tokens", tokens, "uint32")
    check_array("place", place, "uint32", 1)
    check_array("out", out, "float16", n * layers * width, 16)
    macros, function = _of("per_layer_embedding", FORMAT=form)
    grid = n, math.ceil(32 * layers / macros["THREADS"])
    floats = [ctypes.c_float(factor), ctypes.c_float(epsilon)]
    arguments = [projected, weights, *operands, tokens, place, out, *_ints(layers, width // 8), *floats]
    function.launch(grid, macros["THREADS"], arguments)


@with_target()
def add_rmsnorm(
    residual: Any,
    branch: Any = None,
    after: Any = None,
    before: Any = None,
    *,
    out: Any,
    roots: Any,
    factor: float = 1.0,
    epsilon: float = 1e-6,
) -> None:
    """With a branch [n, width] FP16, residual [n, width] FP32 becomes factor (residual + norm(branch) after).
    Then out [n, width] FP16 = norm(residual) before, without weights if `before` is None; roots [n] FP32 gets
    the root mean squares that the residual was divided by.
    """
    n, width = _sizes("residual", residual, 2)
    if width % 8 or width > 8192:
        raise LaunchError(f"add_rmsnorm takes rows of a multiple of 8 up to 8192, not {width}.")
    if (branch is None) != (after is None):
        raise LaunchError("add_rmsnorm takes a branch and the weights of its norm together.")
    check_array("residual", residual, "float32", n * width, 16)
    check_array("out", out, "float16", n * width, 16)
    check_array("roots", roots, "float32", n)
    for name, array, size in (
        ("branch", branch, n * width),
        ("after", after, width),
        ("before", before, width),
    ):
        if array is not None:
            check_array(name, array, "float16", size, 16)
    # A thread for four numbers, as long as so many threads have registers enough.
    threads = 32 * math.ceil(width / 128) if width <= 4096 else 512
    macros, function = _of("add_rmsnorm", PARTS=math.ceil(width / 4 / threads), THREADS=threads)
    halves = [out if array is None else array for array in (branch, after, before)]
    flags = _ints(width, branch is not None, before is not None)
    floats = [ctypes.c_float(factor), ctypes.c_float(epsilon)]
    function.launch(n, macros["THREADS"], [residual, *halves, out, roots, *flags, *floats])


@with_target()
def rope_qk_norm(
    rows: Any,
    query_norm: Any,
    key_norm: Any,
    turns: Any,
    place: Any,
    queries: Any,
    keys: Any = None,
    values: Any = None,
    *,
    epsilon: float = 1e-6,
) -> None:
    """Queries [n, heads, head_dim] out of rows [n, (heads + 2 kv_heads) head_dim], and with keys and values
    [capacity, kv_heads, head_dim] those too, from position place on; all FP16. Each head is divided by its
    root mean square, queries and keys are weighted and turned by turns [positions, head_dim / 2, 2] FP32.
    """
    n, heads, head_dim = _sizes("queries", queries, 3)
    if head_dim % 64 or head_dim > 512:
        raise LaunchError(f"rope_qk_norm takes heads of a multiple of 64 up to 512, not {head_dim}.")
    if (keys is None) != (values is None):
        raise LaunchError("rope_qk_norm takes keys and values together, or neither.")
    kv_heads = 0 if keys is None else _sizes("keys", keys, 3)[1]
    check_array("rows", rows, "float16", n * (heads + 2 * kv_heads) * head_dim, 16)
    check_array("query_norm", query_norm, "float16", head_dim)
    check_array("turns", turns, "float32", None, 8)
    check_array("place", place, "uint32", 1)
    check_array("queries", queries, "float16", n * heads * head_dim, 16)
    if tuple(turns.shape[1:]) != (head_dim // 2, 2):
        raise LaunchError(
            f"turns of heads of {head_dim} are [positions, {head_dim // 2}, 2], not {tuple(turns.shape)}."
        )
    if kv_heads:
        check_array("key_norm", key_norm, "float16", head_dim)
        for name, cache in (("keys", keys), ("values", values)):
            check_array(name, cache, "float16", int(keys.shape[0]) * kv_heads * head_dim, 16)
    macros, function = _of("rope_qk_norm", HEAD_DIM=head_dim)
    grid = n, math.ceil(32 * (heads + 2 * kv_heads) / macros["THREADS"])
    halves = [queries if array is None else array for array in (keys, values)]
    norms = [query_norm, key_norm if kv_heads else query_norm]
    arguments = [rows, *norms, turns, place, queries, *halves]
    function.launch(grid, macros["THREADS"], [*arguments, *_ints(heads, kv_heads), ctypes.c_float(epsilon)])


@with_target()
def gelu_mul(gates: Any, ups: Any, *, out: Any, column: int = 0, roots: Any = None) -> Any:
    """out [n, width] FP16 = GELU (tanh formula) of the first `width` columns of gates [n, ...], times roots
    [n] FP32 if given, times the columns of ups [n, ...] from `column` on.
    """
    n, width = _sizes("out", out, 2)
    pitch, other = _sizes("gates", gates, 2)[1], _sizes("ups", ups, 2)[1]
    if width % 8 or pitch % 8 or other % 8 or column % 8 or column < 0 or width > pitch:
        raise LaunchError(
            f"gelu_mul takes columns in eights, not {width} of {pitch} gates and {column} of {other}."
        )
    if column + width > other:
        raise LaunchError(f"ups have {other} columns, so {width} from {column} on are not there.")
    check_array("gates", gates, "float16", n * pitch, 16)
    check_array("ups", ups, "float16", n * other, 16)
    check_array("out", out, "float16", n * width, 16)
    if roots is not None:
        check_array("roots", roots, "float32", n)
    macros, function = _of("gelu_mul")
    count, threads = n * width // 8, macros["THREADS"]
    if count >= threads << 31:
        raise LaunchError(f"{n} rows of {width} are more than a launch covers.")
    sizes = _ints(width // 8, pitch // 8, other // 8, roots is not None)
    arguments = [gates, ups, out if roots is None else roots, out, ctypes.c_ulonglong(count)]
    function.launch(math.ceil(count / threads), threads, [*arguments, ctypes.c_int(column // 8), *sizes])
    return out
