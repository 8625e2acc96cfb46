"""Checkers of lesson 06: keys read again, a softmax in one pass, blocks on an SM, banks, wrong outputs,
parts of a context, and the context at which a cache outweighs the weights."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rooflab.exercises import Wrong, called, checker
from rooflab.exercises import build_06 as build_06  # registers the guided build, 06.a to 06.e
from rooflab.exercises.kernels import Trial, kernel_task, most_conflicts, most_requests, most_sectors
from rooflab.exercises.worth import gain
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.studies import attention


@checker("06.1")
def _rereads(rereads: Callable[..., Any]) -> str:
    """rereads(n, queries, window): how often blocks of so many queries read a key, on average."""
    for n, queries, window in (
        (8, 1, None),
        (1848, 1, None),
        (1848, 8, None),
        (1848, 1, 512),
        (1848, 16, 512),
        (100, 64, 10),
        (50, 64, None),
    ):
        firsts = range(0, n, queries)
        keys = [roofline.attention_keys(min(queries, n - i), n, i, True, window) for i in firsts]
        right = sum(keys) / n
        got = float(called(rereads, n, queries, window))
        if math.isclose(got, right, rel_tol=1e-9):
            continue
        where = f"for {n} queries in blocks of {queries} with " + (
            f"a window of {window}" if window else "none"
        )
        if math.isclose(got, sum(range(1, n + 1)) / n / queries, rel_tol=1e-9) and not window:
            raise Wrong(
                f"{where} you divide pairs by queries; the last query of a block sees more than the first."
            )
        if window and got > right * 1.2 + 1:
            raise Wrong(f"{where} you get {got:.2f}; keys before every query's window are not read.")
        if window and got < right:
            raise Wrong(
                f"{where} you get {got:.2f}; a block reads from the first query's window to its last query."
            )
        raise Wrong(
            f"{where} you get {got:.2f}; add up, block by block, the keys that one of its queries sees."
        )
    return "so often does a key travel from L2 to an SM, for each head."


def _weighed(rows: int, n: int, loud: float) -> Trial:
    generator = np.random.default_rng(n)
    scores = (loud * generator.standard_normal((rows, n))).astype(np.float32)
    scores.sort(axis=1)  # the largest comes last: a kernel that takes the first is wrong
    values = generator.standard_normal((rows, n)).astype(np.float32)
    weights = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    right = (weights * values).sum(axis=1) / weights.sum(axis=1)
    arguments = [scores, values, np.empty(rows, np.float32), ctypes.c_int(n)]
    return Trial(f"n = {n}, scores to {abs(scores).max():.0f}", rows, 32, arguments, {2: right}, 1e-4)


@kernel_task(
    "06.2",
    entry="weigh",
    targets=[most_requests("scores", 8), most_sectors("scores", 4)],
    right="each score is looked at once, and none is stored.",
)
def _online() -> Iterator[Trial]:
    """out = softmax(scores) values, a warp a row."""
    for rows, n, loud in ((4, 64, 3.0), (2, 77, 300.0), (1, 5, 1.0), (2, 100, 0.0)):
        yield _weighed(rows, n, loud)


@checker("06.3")
def _resident(blocks: Callable[..., Any]) -> str:
    """blocks(registers, threads, shared): how many an SM holds at once."""
    for registers, threads, shared in (
        (255, 128, 69_632),
        (178, 128, 52_224),
        (168, 384, 197_632),
        (128, 256, 33_000),
        (33, 256, 0),
        (32, 1024, 0),
        (16, 32, 0),
        (64, 96, 110_000),
        (64, 96, 116_736),
        (40, 128, 1),
    ):
        right = roofline.residency(registers, threads, shared)
        got = called(blocks, registers, threads, shared)
        if got == right:
            continue
        where = f"{registers} registers, {threads} threads and {shared:,} bytes"
        warps = -(-threads // 32)
        limits = {
            "registers": 65536 // (-(-registers * 32 // 256) * 256 * warps),
            "shared memory": 233_472 // (-(-shared // 128) * 128 + 1024),
            "threads": 2048 // (32 * warps),
            "blocks": 32,
        }
        tight = min(limits, key=lambda name: limits[name])
        if got > right:
            raise Wrong(
                f"with {where} you fit {got}, but {tight} allow{'s' * (tight == 'shared memory')} fewer."
            )
        raise Wrong(f"with {where} you fit {got}; more have room, see what each limit allows by itself.")
    return "registers, shared memory, threads, slots: the tightest decides."


BANKS = """\
extern "C" __global__ void scores(const float* q, const float* k, float* out) {
    __shared__ float keys[32][64];
    const int lane = threadIdx.x, tile = blockIdx.x * 32;
    for (int i = lane; i < 32 * 64; i += 32) keys[i / 64][i % 64] = k[tile * 64 + i];
    __syncthreads();
    float score = 0.0f;
    for (int d = 0; d < 64; ++d) score += q[d] * keys[lane][d];
    out[tile + lane] = score;
}
"""


@kernel_task(
    "06.4",
    entry="scores",
    starter=BANKS,
    targets=[most_conflicts(0), most_sectors("k", 4)],
    right="32 lanes, 32 banks, one turn.",
    worth=lambda: gain("attention", attention.ladder(128), "4_mma", "5_padded"),
)
def _banks() -> Iterator[Trial]:
    """Scores of one query against tiles of 32 keys, a warp a tile."""
    for tiles in (1, 3):
        generator = np.random.default_rng(tiles)
        q = generator.standard_normal(64, dtype=np.float32)
        k = generator.standard_normal((32 * tiles, 64), dtype=np.float32)
        arguments = [q, k, np.empty(32 * tiles, np.float32)]
        yield Trial(f"{32 * tiles} keys", tiles, 32, arguments, {2: k.astype(np.float64) @ q}, 1e-4)


@checker("06.5")
def _wrong(wrong: Callable[..., Any]) -> str:
    """wrong(output, exact, plain): whether the gate stops an output of [queries, width]."""
    generator = np.random.default_rng(65)
    exact = generator.standard_normal((40, 64))
    exact[0] *= 1e-3  # a query whose outputs are small
    unit = abs(exact).max(axis=1, keepdims=True)
    noise = generator.uniform(-1, 1, exact.shape)

    def off(share: float, row: int | None = None) -> Any:
        """Outputs that err by `share` of their row's largest at most; of one row alone, else of all."""
        error = share * unit * noise / abs(noise).max(axis=1, keepdims=True)
        return exact + (error if row is None else error * (np.arange(len(exact)) == row)[:, None])

    lost = off(1e-4)
    lost[3, 5] = np.nan
    for name, output, plain, right in (
        ("a kernel that errs by 1.5 times the plain computation's error", off(1.5e-3), off(1e-3), False),
        ("a kernel that errs by 2.5 times the plain computation's error", off(2.5e-3), off(1e-3), True),
        ("a fault in one row of small outputs", off(0.05, 0), off(1e-3), True),
        ("an output with a NaN", lost, off(1e-3), True),
        ("an output off by 0.4 ‰ beside a plain computation off by 0.1 ‰", off(4e-4), off(1e-4), False),
        ("an output off by 1.2 ‰ beside a plain computation off by 0.1 ‰", off(1.2e-3), off(1e-4), True),
    ):
        with np.errstate(all="ignore"):
            got = called(wrong, output.copy(), exact.copy(), plain.copy())
        if bool(got) != right:
            said = "wrong" if bool(got) else "right"
            raise Wrong(f"{name} is called {said}; it is {'wrong' if right else 'right'}.")
    return "what the gate says of all six."


@checker("06.6")
def _merge(merge: Callable[..., Any]) -> str:
    """merge(parts): one output out of (largest score, sum of weights, weighted sum of values) a part."""
    generator = np.random.default_rng(6)
    nothing = (-math.inf, 0.0, np.zeros(4))

    def cut(scores: Any, values: Any, at: list[int]) -> list[tuple[float, float, Any]]:
        parts = []
        for s, v in zip(np.split(scores, at), np.split(values, at), strict=True):
            weights = np.exp(s - s.max()) if len(s) else s
            parts.append((float(s.max()), float(weights.sum()), weights @ v) if len(s) else nothing)
        return parts

    for name, scale, offset, at in (
        ("three parts of equal height", 1.0, 0.0, [10, 20]),
        ("parts of unequal height", 30.0, 0.0, [3, 25]),
        ("scores near a thousand", 5.0, 1000.0, [15]),
        ("scores near minus a thousand", 5.0, -1000.0, [15]),
        ("a part without keys", 2.0, 0.0, [0, 12]),
        ("one part", 1.0, 0.0, []),
    ):
        scores = scale * generator.standard_normal(30) + offset
        values = generator.standard_normal((30, 4))
        weights = np.exp(scores - scores.max())
        right = weights @ values / weights.sum()
        with np.errstate(all="ignore"):
            got = np.asarray(called(merge, cut(scores, values, at)), float)
        if got.shape != right.shape:
            raise Wrong(f"{name}: the output has shape {got.shape}; it is one vector of {right.shape[0]}.")
        if not np.isfinite(got).all():
            raise Wrong(f"{name}: the output is not finite; subtract before you take the exponential.")
        if not np.allclose(got, right, rtol=1e-9, atol=1e-12):
            raise Wrong(f"{name}: you are off by {abs(got - right).max():.2g}; each part has its own unit.")
    with np.errstate(all="ignore"):
        none = np.asarray(called(merge, [nothing, nothing]), float)
    if none.shape != (4,) or not (none == 0).all():
        raise Wrong("parts that all saw no key must give zeros, not NaN.")
    return "the same whichever way the context is cut."


@checker("06.7")
def _even(even: Callable[..., Any]) -> str:
    """even(layers, kv_heads, weight_bytes): the context at which a token reads as much cache as weights."""
    for name, format in (("llama-3-8b", "fp16"), ("qwen2.5-1.5b", "q8_0"), ("gemma-4-e4b", "q8_0")):
        model = model_shapes.get(name)
        layers, weights = model_shapes.layers(model), model_shapes.weight_bytes(model, format)

        def cached(context: float, layers: Any = layers, kv_heads: int = model.kv_heads) -> float:
            widths = ((e.head_dim, min(context, e.window or math.inf)) for e in layers)
            return sum(4 * kv_heads * width * seen for width, seen in widths)

        low, high = 0, 1 << 30
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if cached(middle) >= weights else (middle, high)
        got = float(called(even, list(layers), model.kv_heads, weights))
        if abs(got - high) <= 1:
            continue
        where = f"for {name} with {weights / 1e9:.2f} GB of weights you get {got:,.0f}"
        if not got < math.inf:
            raise Wrong(f"{where}; layers without a window go on growing.")
        if abs(got / high - 2) < 0.01:
            raise Wrong(f"{where}, twice too much: there are keys, and there are values.")
        uncut = weights / sum(4 * model.kv_heads * e.head_dim for e in layers)
        if any(e.window for e in layers) and abs(got - uncut) < 2:
            raise Wrong(f"{where}; a layer with a window never reads more than its window.")
        raise Wrong(f"{where}; each layer reads 2 bytes a number of keys and of values for each key it sees.")
    return "below it a token waits for weights, above it for the cache."
