"""Checkers of lesson 03's exercises: sectors, blocks, a transpose, tests on two kernels, three kernels to
mend, tokens.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rooflab.exercises import (
    Wrong,
    build_03,  # noqa: F401  (registers the guided build's steps)
    called,
    checker,
    worth,
)
from rooflab.exercises.kernels import (
    Trial,
    kernel_task,
    least_used,
    most_conflicts,
    most_requests,
    most_sectors,
    uses_shared,
)
from rooflab.numerics import model_shapes
from rooflab.ops import faults
from rooflab.studies import gemv


@checker("03.1")
def _sectors(sectors: Callable[..., Any]) -> str:
    """sectors(first, stride, width): 32-byte pieces that a warp's request touches."""
    cases = [
        (0, 4, 4),
        (0, 8, 4),
        (0, 16, 16),
        (0, 16384, 4),
        (4, 4, 4),
        (24, 64, 16),
        (0, 0, 4),
        (64, 64, 8),
    ]
    for first, stride, width in cases:
        places = [first + lane * stride + byte for lane in range(32) for byte in range(width)]
        right = len({place // 32 for place in places})
        got = called(sectors, first, stride, width)
        if got == right:
            continue
        where = f"first={first}, stride={stride}, width={width}"
        if got == math.ceil(32 * width / 32) and stride != width:
            raise Wrong(
                f"for {where} you count the bytes asked for; sectors also move bytes that no lane asked for."
            )
        if first % 32 and got == right - 1:
            raise Wrong(
                f"for {where} you miss one: a request that starts inside a sector ends inside another."
            )
        raise Wrong(f"for {where} you count {got}; draw the lanes and the multiples of 32.")
    return "so many sectors move, whatever the lanes do with them."


@checker("03.3")
def _splits(splits: Callable[..., Any]) -> str:
    """splits(n, k, gb_s, latency_ns): the fewest parts of k by which Little's law fills the memory."""
    for n, k, gb_s, latency_ns in (
        (4096, 4096, 4700.0, 350.0),
        (4096, 4096, 1000.0, 400.0),
        (8192, 8192, 4700.0, 350.0),
        (300_000, 4096, 4700.0, 350.0),
        (256, 128, 4700.0, 350.0),
        (1000, 4096, 360.0, 300.0),
        (256, 8, 4700.0, 350.0),
    ):
        needed = gb_s * latency_ns  # GB/s x ns are bytes
        right = max(1, min(math.ceil(needed / (16 * n)), k // 16))
        got = called(splits, n, k, gb_s, latency_ns)
        where = f"n={n}, k={k}, {gb_s:g} GB/s and {latency_ns:g} ns"
        if got != int(got):
            raise Wrong(f"for {where} you take {got} parts; a part is whole, so round.")
        if got < 1:
            raise Wrong(f"for {where} you take {got} parts; one is the least.")
        if got > 1 and k // got < 16:
            raise Wrong(f"for {where} you take {got} parts, of fewer than 16 rows on average.")
        if got < right:
            raise Wrong(
                f"for {where} you take {got}: that has {16 * n * int(got):,} bytes in flight, and the memory "
                f"needs {needed:,.0f}."
            )
        if got > right:
            raise Wrong(f"for {where} you take {got}: fewer suffice, and each part costs a partial sum.")
    gained = worth.gain("gemv", gemv.ladder("gemv", 4096, 4096), "2_coalesced", "3_split_k")
    return f"the memory has enough to do, and no part is a crumb. Splitting k in the record: {gained}."


def _product(n: int, k: int, blocks: int, threads: int) -> Trial:
    """One call of a kernel that computes y = x A in FP32."""
    generator = np.random.default_rng(n + k)
    a = generator.standard_normal((k, n), dtype=np.float32) + np.float32(0.5)
    x = generator.standard_normal(k, dtype=np.float32) + np.float32(0.5)
    y = np.empty(n, np.float32)
    budget = 1e-5 * float(np.abs(x) @ np.abs(a).max(axis=1))
    arguments = faults.arguments(a, x, y)
    return Trial(f"n = {n}, k = {k}", blocks, threads, arguments, {2: x.astype(np.float64) @ a}, budget)


UNCOALESCED = """\
#include "common/reduce.cuh"

extern "C" __global__ void product(const float* a, const float* x, float* y, unsigned n, unsigned k) {
    const unsigned first = blockIdx.x * 32, lane = threadIdx.x;
    for (unsigned column = first; column < min(first + 32, n); ++column) {
        float sum = 0.0f;
        for (unsigned row = lane; row < k; row += 32) sum += x[row] * a[row * n + column];
        sum = warp_sum(sum);
        if (lane == 0) y[column] = sum;
    }
}
"""


@kernel_task(
    "03.2",
    entry="product",
    starter=UNCOALESCED,
    targets=[most_sectors("a", 4), least_used("a", 0.99)],
    right="the same sum from the same launch, and every byte of the matrix that moves is used.",
    worth=lambda: worth.gain("gemv", gemv.ladder("gemv", 4096, 4096), "1_strided", "2_coalesced"),
)
def _coalesced() -> Iterator[Trial]:
    """y = x A with one warp a block, which has 32 columns."""
    for n, k in ((64, 40), (50, 33), (7, 100)):
        yield _product(n, k, -(-n // 32), 32)


@checker("03.4")
def _worth_of_a_test(worth_of: Callable[..., Any]) -> str:
    """worth_of(sign, bar, slow, fast): what a test is worth by its verdicts on a slow and a fast kernel."""
    nan = math.nan
    cases: list[tuple[str, float, float, float, str]] = [
        ("<", 300.0, 372.2, 61.4, "works"),
        (">", 0.9, 0.22, 0.97, "works"),
        ("<", 100.0, 90.5, 17.0, "lax"),
        (">", 10_000.0, 11_047.0, 58_953.0, "lax"),
        (">", 0.5, 0.8, 0.03, "backwards"),
        ("<", 23.0, 17.0, 40.0, "backwards"),
        (">", 10.0, 0.2, 5.34, "strict"),
        ("<", 50.0, 50.0, 17.0, "works"),
        (">", 0.9, nan, 0.4, "open"),
        ("<", 50.0, 90.5, nan, "open"),
    ]
    for sign, bar, slow, fast, right in cases:
        got = called(worth_of, sign, bar, slow, fast)
        if got == right:
            continue
        shown = f"the bar is {sign} {bar:g}, the slow kernel measures {slow:g}, the fast one {fast:g}"
        if right == "open":
            raise Wrong(f"{shown}: a value that was not recorded judges nothing; not {got!r}.")
        if bar in (slow, fast):
            raise Wrong(f"{shown}: a value at the bar does not meet it; not {got!r}.")
        raise Wrong(f"{shown}: that test is not {got!r}.")
    return "a test is worth running if it refutes the slow kernel and passes the fast one."


def _starter(name: str) -> Path:
    return faults.FAULTS[name].path


@kernel_task(
    "03.6",
    entry="early_exit",
    starter=_starter("early_exit"),
    targets=[uses_shared(), most_requests("x", 32)],
    right="no thread leaves before the last barrier, whatever n is.",
)
def _early_exit() -> Iterator[Trial]:
    """Threads without a column must still load x and meet the barriers."""
    for n, k in ((256, 257), (63, 300), (300, 256), (1, 1)):
        yield _product(n, k, *faults.launch_of(n))


@kernel_task(
    "03.7",
    entry="fixed_tile",
    starter=_starter("fixed_tile"),
    targets=[uses_shared(), most_requests("x", 256)],
    right="x comes by tiles, and no tile is overwritten while somebody reads it.",
)
def _fixed_tile() -> Iterator[Trial]:
    """x of any length through a tile of fixed size."""
    for n, k in ((5, 4096), (3, 70_001), (3, 12), (257, 100)):
        yield _product(n, k, *faults.launch_of(n))


@kernel_task(
    "03.8",
    entry="not_zeroed",
    starter=_starter("not_zeroed"),
    right="what y held before the call no longer matters.",
)
def _not_zeroed() -> Iterator[Trial]:
    """The result must not depend on what y held."""
    for n, k in ((40, 300), (300, 512), (7, 1), (257, 257)):
        yield _product(n, k, *faults.launch_of(n))


@kernel_task(
    "03.9",
    entry="transpose",
    targets=[most_sectors("a", 4), most_sectors("b", 4, "store"), uses_shared(), most_conflicts()],
    right="rows are read and rows are written; what turns them is shared memory, without a bank conflict.",
)
def _transpose() -> Iterator[Trial]:
    """The transpose, a tile of 32 x 32 a block of 32 x 8 threads."""
    for rows, columns in ((64, 96), (33, 70), (100, 40), (1, 5)):
        a = np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)
        arguments = [a, np.empty((columns, rows), np.float32), ctypes.c_uint(rows), ctypes.c_uint(columns)]
        grid = (-(-columns // 32), -(-rows // 32))
        yield Trial(f"{rows} x {columns}", grid, (32, 8), arguments, {1: np.ascontiguousarray(a.T)})


@checker("03.5")
def _tokens(tokens_per_s: Callable[..., Any]) -> str:
    """tokens_per_s(projections, weight_bytes, gb_s): how often a second a token's weights can be read."""
    for name, weight_bytes, gb_s in (
        ("llama-2-7b", 2, 4600.0),
        ("qwen2.5-1.5b", 2, 360.0),
        ("phi-2", 4, 1008.0),
    ):
        model = model_shapes.get(name)
        parts = model_shapes.projections(model)
        right = gb_s * 1e9 / (sum(p.n * p.k * p.times for p in parts) * weight_bytes)
        got = float(called(tokens_per_s, list(parts), weight_bytes, gb_s))
        if math.isclose(got, right, rel_tol=1e-6):
            continue
        once = gb_s * 1e9 / (sum(p.n * p.k for p in parts) * weight_bytes)
        headless = gb_s * 1e9 / (model_shapes.body(model) * weight_bytes)
        if math.isclose(got, once, rel_tol=1e-6):
            raise Wrong(
                f"for {name} you read each kind of projection once; a token needs those of every layer."
            )
        if math.isclose(got, headless, rel_tol=1e-6):
            raise Wrong(f"for {name} you leave the output head out; it is read for every token, too.")
        if any(math.isclose(got * unit, right, rel_tol=1e-6) for unit in (1e9, 1e6, 1e3, 1e-3, 1e-6)):
            raise Wrong(f"for {name} the answer is {got:g}, which is in another unit than tokens a second.")
        raise Wrong(f"for {name} with {weight_bytes} bytes a weight at {gb_s:g} GB/s you get {got:g}.")
    return "a ceiling for every decoder at batch 1, before attention and cache take their part."
