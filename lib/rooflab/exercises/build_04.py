"""Lesson 04's guided build: an INT4 matrix-vector product, from a thread a row to split K.

All steps but the fourth are the same kernel, called int4: W in n rows of k codes in groups of 128, x in FP16,
y in FP32. A step is checked for its result, for faults, for how it uses memory, and the
fourth for conversions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator

import numpy as np

from rooflab.exercises.kernels import (
    Trial,
    kernel_task,
    least_used,
    most_requests,
    most_requests_a_warp,
    most_sectors,
    no_conversion,
)
from rooflab.exercises.worth import gain
from rooflab.numerics import quant
from rooflab.studies import int4

LARGE = (28672, 8192)  # the matrix of which the record tells what a step is worth
ROWS, WIDE = 32, 1024  # of the first trial
SPLIT = 8, 4096  # of step e's: a piece of 32 codes for each of a block's threads


def _recorded(before: str, after: str) -> Callable[[], str]:
    return lambda: gain("int4", int4.ladder(*LARGE), before, after)


def _trials(rows: int, threads: int, first: tuple[int, int] = (ROWS, WIDE)) -> Iterator[Trial]:
    """Matrices of which the second and third fill no block; `rows` of them a block."""
    for n, k in (first, (7, 128), (5, 2048)):
        generator = np.random.default_rng(n)
        packed = quant.quantise_int4(generator.standard_normal((n, k)))
        x = generator.standard_normal(k).astype(np.float16)
        right = quant.dequantise_int4(packed).astype(float) @ x.astype(float)
        words = np.ascontiguousarray(packed.qweight).view(np.uint32)
        arguments = [words, np.ascontiguousarray(packed.scales), x, np.empty(n, np.float32)]
        sizes = [ctypes.c_int(n), ctypes.c_int(k)]
        yield Trial(f"{n} x {k}", -(-n // rows), threads, [*arguments, *sizes], {3: right}, 1e-3)


@kernel_task(
    "04.a",
    entry="int4",
    right="every code is where it should be. Look at w: a request takes a sector for each lane.",
)
def _thread_a_row() -> Iterator[Trial]:
    """A thread a row."""
    return _trials(32, 32)


@kernel_task(
    "04.b",
    entry="int4",
    targets=[most_sectors("w", 4), least_used("w", 1.0)],
    right="coalesced: lesson 04's kernel, and the ladder's rung 1.",
)
def _warp_a_row() -> Iterator[Trial]:
    """A warp a row, a lane a word."""
    return _trials(4, 128)


@kernel_task(
    "04.c",
    entry="int4",
    targets=[
        most_requests("w", ROWS * WIDE // 32 // 32),
        most_requests("x", ROWS * WIDE // 8 // 32),
        least_used("w", 1.0),
    ],
    right="a quarter of the requests for weights, an eighth of those for x: rung 2.",
    worth=_recorded("1_warp_row", "2_vector"),
)
def _wide_loads() -> Iterator[Trial]:
    """Loads of 16 bytes."""
    return _trials(4, 128)


@kernel_task(
    "04.d",
    entry="halves",
    targets=[most_requests("w", 2), no_conversion()],
    right="eight codes became FP16 numbers, and none was converted: rung 3's idea.",
    worth=_recorded("2_vector", "3_magic"),
)
def _magic() -> Iterator[Trial]:
    """Codes to pairs of halves, bit for bit."""
    for words in (64, 13):
        w = np.random.default_rng(words).integers(0, 1 << 32, words, np.uint32)
        codes = (w[:, None] >> 4 * np.arange(8, dtype=np.uint32) & 15).astype(int) - 8
        pairs = np.stack([codes[:, :4], codes[:, 4:]], axis=2).astype(np.float16)
        right = np.ascontiguousarray(pairs).view(np.uint32).reshape(words, 4)
        arguments = [w, np.empty((words, 4), np.uint32), ctypes.c_int(words)]
        yield Trial(f"{words} words", -(-words // 32), 32, arguments, {1: right})


@kernel_task(
    "04.e",
    entry="int4",
    targets=[
        most_requests("w", math.prod(SPLIT) // 32 // 32),
        most_requests("x", math.prod(SPLIT) // 8 // 32 // 2),
        most_requests_a_warp("w", 2),
        least_used("w", 1.0),
    ],
    right="two rows share x, and four warps share a row: rungs 4 and 5.",
    worth=_recorded("3_magic", "5_split_k"),
)
def _split() -> Iterator[Trial]:
    """Two rows a block, k divided over its four warps."""
    return _trials(2, 128, SPLIT)
