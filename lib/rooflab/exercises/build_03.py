"""Lesson 03's guided build: y = x A in FP32, from a thread a column to strips of columns.

Every step is a kernel called product. It is checked for its result, for faults, and for how it uses memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from rooflab.exercises import worth
from rooflab.exercises.kernels import (
    Trial,
    kernel_task,
    least_used,
    most_conflicts,
    most_requests,
    most_sectors,
    uses_shared,
)
from rooflab.studies import gemv

SIZE = 4096


def _recorded(before: str, after: str) -> Callable[[], str]:
    return lambda: worth.gain("gemv", gemv.ladder("gemv", SIZE, SIZE), before, after)


def _operands(n: int, k: int) -> tuple[np.ndarray, np.ndarray, float]:
    """A [k, n], x [k], and the largest error allowed of a sum of k products."""
    generator = np.random.default_rng(n + k)
    a = generator.standard_normal((k, n), dtype=np.float32) + np.float32(0.5)
    x = generator.standard_normal(k, dtype=np.float32) + np.float32(0.5)
    return a, x, 1e-5 * float(np.abs(x) @ np.abs(a).max(axis=1))


def _whole(shapes: tuple[tuple[int, int], ...], columns: int, threads: int) -> Iterator[Trial]:
    """Trials of a kernel that writes y, `columns` columns a block."""
    for n, k in shapes:
        a, x, budget = _operands(n, k)
        arguments = [a, x, np.empty(n, np.float32), ctypes.c_uint(n), ctypes.c_uint(k)]
        right = {2: x.astype(np.float64) @ a}
        yield Trial(f"n = {n}, k = {k}", -(-n // columns), threads, arguments, right, budget)


def _parts(shapes: tuple[tuple[int, int, int], ...], columns: int) -> Iterator[Trial]:
    """Trials of a kernel that writes the partial sums of `parts` parts of k, 64 threads a block."""
    for n, k, parts in shapes:
        a, x, budget = _operands(n, k)
        share = -(-k // parts)
        right = np.zeros((parts, n))
        for part in range(parts):
            rows = slice(part * share, (part + 1) * share)
            right[part] = x[rows].astype(np.float64) @ a[rows]
        arguments = [a, x, np.empty((parts, n), np.float32), ctypes.c_uint(n), ctypes.c_uint(k)]
        name = f"n = {n}, k = {k} in {parts} parts"
        yield Trial(name, (-(-n // columns), parts), 64, arguments, {2: right}, budget)


@kernel_task(
    "03.a",
    entry="product",
    targets=[most_sectors("a", 4), least_used("a", 0.99)],
    right="a thread a column, and the matrix is read coalesced. But each warp asks for all of x by itself.",
)
def _naive() -> Iterator[Trial]:
    """A thread a column, 64 threads a block."""
    return _whole(((128, 64), (100, 33), (1, 1)), 64, 64)


@kernel_task(
    "03.b",
    entry="product",
    targets=[uses_shared(), most_requests("x", 4), most_sectors("a", 4)],
    right="x comes once a block, by tiles: this is lesson 03's rung 2.",
    worth=lambda: worth.takes("gemv", gemv.ladder("gemv", SIZE, SIZE)[1], "2_coalesced"),
)
def _shared() -> Iterator[Trial]:
    """The same with x in shared memory."""
    return _whole(((128, 64), (100, 33), (70, 200)), 64, 64)


@kernel_task(
    "03.c",
    entry="product",
    targets=[uses_shared(), most_requests("x", 8), most_requests("a", 256)],
    right="more blocks, and more bytes in flight: this is rung 3, whose last block adds the parts up.",
    worth=_recorded("2_coalesced", "3_split_k"),
)
def _split() -> Iterator[Trial]:
    """Partial sums: blockIdx.y takes a part of the rows."""
    return _parts(((128, 64, 4), (100, 35, 3), (70, 200, 2)), 64)


@kernel_task(
    "03.d",
    entry="product",
    targets=[most_requests("a", 128), least_used("a", 0.99)],
    right="a quarter of the load instructions, and a quarter of the threads: rung 4. Did it pay?",
    worth=_recorded("3_split_k", "4_vector"),
)
def _wide() -> Iterator[Trial]:
    """16-byte loads, four columns a thread."""
    return _parts(((256, 64, 2), (100, 33, 3), (4, 200, 2)), 256)


@kernel_task(
    "03.e",
    entry="product",
    targets=[uses_shared(), most_requests("a", 32), least_used("a", 0.99), most_conflicts()],
    right="no partial sum leaves the block, and no bank conflict: the strips of lesson 03b's rung 6, which "
    "also has more threads, more loads under way and shuffles.",
    worth=_recorded("4_vector", "6_column_strips"),
)
def _strips() -> Iterator[Trial]:
    """A block of 256 threads takes 32 columns and all rows."""
    return _whole(((64, 64), (100, 33), (4, 200)), 32, 256)
