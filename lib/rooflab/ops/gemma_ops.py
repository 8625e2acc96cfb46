"""What a decoder of Gemma's kind needs between its products, for a prompt's rows and for one token alike.

Residuals are FP32, what products read and leave is FP16. Tokens and places are on the device: row i of a
launch is at position place[0] + i; the caller makes sure that this is within the capacity.
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
from rooflab.numerics import quant
from rooflab.numerics.quant import Planes
from rooflab.numerics.rotary import rotations
from rooflab.ops import Rung, arrays, check_array, loaded, with_target
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
    rotary: Any,
    place: Any,
    queries: Any,
    keys: Any = None,
    values: Any = None,
    *,
    epsilon: float = 1e-6,
) -> None:
    """Queries [n, heads, head_dim] out of rows [n, (heads + 2 kv_heads) head_dim], and with keys and values
    [capacity, kv_heads, head_dim] those too, from position place on; all FP16. Each head is divided by its
    root mean square, queries and keys are weighted and rotated by rotary [positions, head_dim / 2, 2] FP32.
    """
    n, heads, head_dim = _sizes("queries", queries, 3)
    if head_dim % 64 or head_dim > 512:
        raise LaunchError(f"rope_qk_norm takes heads of a multiple of 64 up to 512, not {head_dim}.")
    if (keys is None) != (values is None):
        raise LaunchError("rope_qk_norm takes keys and values together, or neither.")
    kv_heads = 0 if keys is None else _sizes("keys", keys, 3)[1]
    check_array("rows", rows, "float16", n * (heads + 2 * kv_heads) * head_dim, 16)
    check_array("query_norm", query_norm, "float16", head_dim)
    check_array("rotary", rotary, "float32", None, 8)
    check_array("place", place, "uint32", 1)
    check_array("queries", queries, "float16", n * heads * head_dim, 16)
    if tuple(rotary.shape[1:]) != (head_dim // 2, 2):
        raise LaunchError(
            f"rotary of heads of {head_dim} are [positions, {head_dim // 2}, 2], not {tuple(rotary.shape)}."
        )
    if kv_heads:
        check_array("key_norm", key_norm, "float16", head_dim)
        for name, cache in (("keys", keys), ("values", values)):
            check_array(name, cache, "float16", int(keys.shape[0]) * kv_heads * head_dim, 16)
    macros, function = _of("rope_qk_norm", HEAD_DIM=head_dim)
    grid = n, math.ceil(32 * (heads + 2 * kv_heads) / macros["THREADS"])
    halves = [queries if array is None else array for array in (keys, values)]
    norms = [query_norm, key_norm if kv_heads else query_norm]
    arguments = [rows, *norms, rotary, place, queries, *halves]
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


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate: a shape in words, and the work, whose output is all that it leaves."""
    rng, put = np.random.default_rng(0), arrays().asarray

    def halves(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float16)

    def subject(
        shape: str, launch: Callable[[Any], object], expected: Any, largest: float = 4.0
    ) -> tuple[str, gate.Work]:
        dtype = np.float16 if largest else np.float64
        outs = [put(np.empty(expected.shape, dtype)) for _ in range(2)]
        budget = float(np.spacing(np.float16(largest))) if largest else 1e-5
        return shape, gate.trial(rung.name, launch, outs, expected, budget)

    def normed(x: Any, weights: Any = 1.0) -> Any:
        x = x.astype(np.float64)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights

    n, ids = 3, rng.integers(0, 6, 9).astype(np.int32)
    tokens, place = put(ids), put(np.array([4], np.int32))
    if operator == "sample_candidates":
        candidates = np.full((70, 2), -np.inf, np.float32)
        candidates.view(np.int32)[:, 1] = np.arange(70)
        candidates[[50, 66], 0] = 2.5  # of equals the first
        expected = np.array([*ids[:4], 50, *ids[5:], 5, 4, 5])
        yield subject("70 blocks", partial(_chosen, put(candidates), tokens), expected, 0.0)
    elif operator == "add_rmsnorm":
        for width in (72, 4168):
            start = rng.standard_normal((n, width)).astype(np.float32)
            branch, after, before = halves(n, width), halves(width), halves(width)
            total = (start + normed(branch, after)) / 2
            given = [put(array) for array in (start, branch, after, before)]
            yield subject(f"3 x {width}", partial(_added, *given), normed(total, before), 16.0)
            kept = np.concatenate([total, np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6)], 1)
            yield subject(f"3 x {width}, the sums and roots left", partial(_kept, *given), kept, 0.0)
        launch = partial(_added, put(total.astype(np.float32)), None, None, None)
        yield subject(f"3 x {width} without weights", launch, normed(total))
    elif operator == "rope_qk_norm":
        heads, kv_heads, width = 4, 2, 128
        rows, norms, rotary = halves(n, 8 * width), halves(2, width), rotations(16, width, 1e4)
        whole = normed(rows.reshape(n, 8, width))
        whole[:, :6] *= np.repeat(norms, (heads, kv_heads), 0).astype(np.float64)
        a, b = np.split(whole[:, :6], 2, -1)
        cos, sin = (rotary[4:7, None, :, i] for i in (0, 1))
        whole[:, :6] = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        caches = np.zeros((2, 9, kv_heads, width))  # nothing else is written
        caches[0, 4:7], caches[1, 4:7] = whole[:, 4:6], whole[:, 6:]
        expected = np.concatenate([whole[:, :4].reshape(-1), caches.reshape(-1)])
        whole_rows, query_norm, key_norm, by = (put(a) for a in (rows, *norms, rotary))
        shape = f"3 tokens, {heads}/{kv_heads} heads of {width}"
        yield subject(shape, partial(_rotated, whole_rows, query_norm, key_norm, by, place), expected, 8.0)
        alone = put(np.ascontiguousarray(rows[:, : 3 * width]))
        launch = partial(_queries, alone, query_norm, by, place)
        yield subject(f"3 tokens, 3 heads of {width} alone", launch, whole[:, :3], 8.0)
    elif operator == "gelu_mul":
        gates, ups, roots = halves(n, 64), halves(n, 96), np.array([0.5, 1.25, 2], np.float32)
        for by in (None, roots):
            g = gates[:, :40].astype(np.float64) * (1 if by is None else by[:, None])
            gelu = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
            launch = partial(_gelu, put(gates), put(ups), None if by is None else put(by))
            yield subject(f"3 x 40{' with roots' * (by is not None)}", launch, gelu * ups[:, 56:], 16.0)
    else:
        table, projected, weights = halves(6, 96), halves(n, 3, 32), halves(32)
        blocks = quant.quantise_q8_0(table)
        planes = Planes(*map(put, quant.to_planes(blocks)))
        for kind, w, values in (("fp16", put(table), table), ("q8_0", planes, quant.dequantise_q8(blocks))):
            meant = values[ids[4:7]].astype(np.float64)
            if operator == "embedding_scaled":
                launch = partial(_embedded, w, tokens, place)
                expected = np.concatenate([3 * meant, meant.astype(np.float16)], 1)
                yield subject(f"3 x 96 in {kind}", launch, expected, 0.0)
                continue
            expected = (normed(projected, weights) + 16 * meant.reshape(n, 3, 32)) / np.sqrt(2)
            launch = partial(_per_layer, put(projected), put(weights), w, tokens, place)
            yield subject(f"3 x 3 layers of 32 in {kind}", launch, expected, 32.0)


def _chosen(candidates: Any, tokens: Any, out: Any) -> None:
    written, xp = tokens.copy(), arrays()
    places = [xp.asarray(np.array([at], np.int32)) for at in (4, 0, 0)]
    sample_candidates(candidates, written, *places)
    out[...] = xp.concatenate([written, *places])


def _added(start: Any, branch: Any, after: Any, before: Any, out: Any) -> None:
    roots, factor = arrays().empty(len(start), np.float32), 1.0 if branch is None else 0.5
    add_rmsnorm(start.copy(), branch, after, before, out=out, roots=roots, factor=factor)


def _kept(start: Any, branch: Any, after: Any, before: Any, out: Any) -> None:
    residual, roots, x = start.copy(), arrays().empty(len(start), np.float32), arrays().empty_like(branch)
    add_rmsnorm(residual, branch, after, before, out=x, roots=roots, factor=0.5)
    out[...] = arrays().concatenate([residual, roots[:, None]], 1)


def _rotated(rows: Any, query_norm: Any, key_norm: Any, rotary: Any, place: Any, out: Any) -> None:
    (n, width), head_dim, xp = rows.shape, len(query_norm), arrays()
    queries = xp.full((n, width // head_dim // 2, head_dim), np.nan, np.float16)
    keys, values = (xp.zeros((9, width // head_dim // 4, head_dim), np.float16) for _ in range(2))
    rope_qk_norm(rows, query_norm, key_norm, rotary, place, queries, keys, values)
    out[...] = xp.concatenate([part.reshape(-1) for part in (queries, keys, values)])


def _queries(rows: Any, query_norm: Any, rotary: Any, place: Any, out: Any) -> None:
    rope_qk_norm(rows, query_norm, None, rotary, place, out)


def _gelu(gates: Any, ups: Any, roots: Any, out: Any) -> None:
    gelu_mul(gates, ups, out=out, column=56, roots=roots)


def _embedded(table: Any, tokens: Any, place: Any, out: Any) -> None:
    residual, x = (arrays().empty((3, 96), dtype) for dtype in (np.float32, np.float16))
    embedding_scaled(table, tokens, place, residual=residual, out=x, factor=3.0)
    out[...] = arrays().concatenate([residual, x.astype(np.float32)], 1)


def _per_layer(projected: Any, weights: Any, table: Any, tokens: Any, place: Any, out: Any) -> None:
    per_layer_embedding(projected, weights, table, tokens, place, out=out, factor=16.0)
