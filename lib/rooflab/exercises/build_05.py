"""Lesson 05's guided build: a Q8_0 product, from a float a weight to int8 tensor cores.

All steps are the same kernel, called q8: W in n rows of k weights in Q8_0, y in FP32. Steps a and b read W
as 34-byte blocks, the others as planes; a reads x in FP16, b as Q8_1 blocks, the others as planes too. A
step is checked for its result, for faults, for how it uses memory, and for the instruction it is about.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rooflab.exercises.kernels import Trial, executes, kernel_task, least_used, most_requests, most_sectors
from rooflab.exercises.worth import gain, several
from rooflab.numerics import quant
from rooflab.records.case import Case
from rooflab.studies import q8_0

LARGE = q8_0.SHAPES[0]  # the matrix of which the record tells what a step is worth
ROWS, WIDE = 16, 1024  # of the first trial
TOKENS, MOST_TOKENS = 4, 8  # of steps d and e
FOURS = ROWS * WIDE // 4  # __dp4a for each product of a row by one token


def _recorded(cases: Callable[..., Sequence[Case]], before: str, after: str, batch: int) -> Callable[[], str]:
    """What says how the rung `after` compares with `before` on the recorded GPU, at `batch` tokens."""
    return lambda: gain("q8_0", [c for c in cases(*LARGE) if c.batch == batch], before, after)


def _batched() -> str:
    """What several tokens cost on the recorded GPU, by the rung that keeps weights in registers."""
    mine = {case.batch: case for case in q8_0.batches(*LARGE) if case.impl == "5_batch"}
    return several("q8_0", mine[1], mine[TOKENS])


def _planes(blocks: np.ndarray) -> list[np.ndarray]:
    """Blocks [..., k / 32] as an array of quants and one of scales."""
    return [np.ascontiguousarray(blocks["q"]), np.ascontiguousarray(blocks["d"])]


def _trials(
    operands: Callable[[np.ndarray, np.ndarray], tuple[list[np.ndarray], np.ndarray]],
    rows: int,
    threads: int,
    tokens: int = 1,
    shapes: Sequence[tuple[int, int]] = ((ROWS, WIDE), (7, 128), (5, 544)),
) -> Iterator[Trial]:
    """Matrices of which the second and third fill no block, `rows` of them a block of `threads`.

    `operands` makes of W, in blocks, and of x, in FP32, what the kernel reads, and x as it reads it.
    """
    for n, k in shapes:
        generator = np.random.default_rng(n)
        blocks = quant.quantise_q8_0(generator.standard_normal((n, k)))
        x = generator.standard_normal((tokens, k)).astype(np.float32)
        arrays, seen = operands(blocks, x)
        right = seen.astype(float) @ quant.dequantise_q8(blocks).astype(float).T
        sizes = [ctypes.c_int(n), ctypes.c_int(k)]
        arguments: list[Any] = [*arrays, np.empty((tokens, n), np.float32), *sizes]
        yield Trial(f"{n} x {k}", -(-n // rows), threads, arguments, {len(arrays): right}, 1e-3)


def _blocks_and_halves(w: np.ndarray, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    halves = x.astype(np.float16)
    return [quant.to_bytes(w), halves], halves


def _blocks_both(w: np.ndarray, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    quantised = quant.quantise_q8_1(x)
    return [quant.to_bytes(w), quant.to_bytes(quantised)], quant.dequantise_q8(quantised)


def _planes_both(w: np.ndarray, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    quantised = quant.quantise_q8_1(x)
    return [*_planes(w), *_planes(quantised)], quant.dequantise_q8(quantised)


@kernel_task(
    "05.a",
    entry="q8",
    # A lane a quant: a block takes a request for its quants, and two for a scale that is read as bytes.
    targets=[most_sectors("w", 2), most_requests("w", 3 * ROWS * WIDE // 32)],
    right="every byte is where it should be: the ladder's rung 1. A request fetches 32 bytes for 32 lanes.",
)
def _floats() -> Iterator[Trial]:
    """A warp a row, a lane a weight."""
    return _trials(_blocks_and_halves, 4, 128)


@kernel_task(
    "05.b",
    entry="q8",
    targets=[
        most_requests("w", 3 * ROWS * WIDE // 128),
        most_requests("x", 2 * ROWS * WIDE // 128),
        executes("__dp4a", FOURS),
    ],
    right="four products an instruction, exact until the scales: rung 3.",
    worth=_recorded(q8_0.ladder, "1_float", "3_scale", 1),
)
def _dp4a() -> Iterator[Trial]:
    """Eight lanes a block, four quants each, by __dp4a."""
    return _trials(_blocks_both, 4, 128)


@kernel_task(
    "05.c",
    entry="q8",
    targets=[
        most_requests("quants", ROWS * WIDE // 512),
        least_used("quants", 1.0),
        executes("__dp4a", FOURS),
    ],
    right="16 quants a load, and all that a load moves is used: rung 4.",
    worth=_recorded(q8_0.ladder, "3_scale", "4_planes", 1),
)
def _wide_loads() -> Iterator[Trial]:
    """Planes, and loads of 16 bytes."""
    return _trials(_planes_both, 4, 128)


@kernel_task(
    "05.d",
    entry="q8",
    targets=[most_requests("quants", ROWS * WIDE // 512), least_used("quants", 1.0)],
    right="the weights are loaded once for all four tokens: rung 5's idea.",
    worth=_batched,
)
def _tokens() -> Iterator[Trial]:
    """Four tokens a load of the weights."""
    return _trials(_planes_both, 4, 128, TOKENS)


@kernel_task(
    "05.e",
    entry="q8",
    targets=[
        most_requests("quants", 4 * WIDE // 32),
        most_requests("xq", 2 * WIDE // 32),
        executes("mma_m16n8k32_s8", WIDE // 32),
    ],
    right="4,096 products an instruction, exact in int32: rung 6's arithmetic.",
    worth=_recorded(q8_0.batches, "5_batch", "6_mma", MOST_TOKENS),
)
def _tensor_cores() -> Iterator[Trial]:
    """A warp multiplies 16 rows by eight tokens."""
    return _trials(_planes_both, 16, 32, MOST_TOKENS, ((ROWS, WIDE), (48, 64), (32, 544)))
