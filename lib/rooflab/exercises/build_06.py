"""Lesson 06's guided build: causal attention of one head, from its definition to tensor cores.

All steps but the fourth are the same kernel, called flash: queries, keys and values of 64 numbers each in
FP16, outputs in FP32. A step is checked for its result, for faults, for how it uses memory, and the last two
for their instructions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from rooflab.exercises.kernels import (
    Trial,
    executes,
    kernel_task,
    most_conflicts,
    most_requests,
    most_sectors,
)
from rooflab.exercises.worth import gain
from rooflab.studies import attention
from rooflab.words import counted

WIDTH = 64  # numbers of a query, a key or a value
MMA = "mma_m16n8k16_f16"
PAIRS_SEEN = 32 * 33 // 2  # query-key pairs of the first trial, 32 tokens


def _recorded(before: str, after: str) -> Callable[[], str]:
    return lambda: gain("attention", attention.ladder(128), before, after)


def _halves(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.standard_normal((n, WIDTH)).astype(np.float16)


def _trials(queries: int, threads: int, budget: float) -> Iterator[Trial]:
    """Prompts of 32, 21 and 1 tokens, `queries` of them a block; the last has scores that overflow exp."""
    for n, loud in ((32, 1), (21, 1), (1, 1), (24, 40)):
        generator = np.random.default_rng(n)
        q, k, v = (_halves(generator, n) for _ in range(3))
        q *= np.float16(loud)
        scores = q.astype(float) @ k.astype(float).T / 8
        scores[np.triu_indices(n, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        right = weights @ v.astype(float) / weights.sum(axis=1, keepdims=True)
        arguments = [q, k, v, np.empty((n, WIDTH), np.float32), ctypes.c_int(n), ctypes.c_float(0.125)]
        name = f"{counted(n, 'token')}, scores to {abs(scores[np.isfinite(scores)]).max():.0f}"
        yield Trial(name, -(-n // queries), threads, arguments, {3: right}, budget)


@kernel_task(
    "06.a",
    entry="flash",
    targets=[most_sectors("k", 4), most_sectors("v", 4)],
    right="that is attention. By its definition every key is read twice.",
)
def _definition() -> Iterator[Trial]:
    """A warp a query, a pass for the largest score and one for the sums."""
    return _trials(1, 32, 1e-4)


@kernel_task(
    "06.b",
    entry="flash",
    targets=[most_requests("k", PAIRS_SEEN), most_requests("v", PAIRS_SEEN), most_sectors("k", 4)],
    right="one pass, and no row of scores is stored: the idea of lesson 06's rung 1.",
)
def _online() -> Iterator[Trial]:
    """The same with an online softmax."""
    return _trials(1, 32, 1e-4)


@kernel_task(
    "06.c",
    entry="flash",
    targets=[most_requests("k", 192), most_requests("v", 192), most_conflicts()],
    right="four queries share every key: lesson 06's rung 2, which shares it among 16.",
    worth=_recorded("1_scalar", "2_tiled queries=16"),
)
def _tiled() -> Iterator[Trial]:
    """Four warps, a query each, and a tile of keys and values in shared memory."""
    return _trials(4, 128, 1e-4)


@kernel_task(
    "06.d",
    entry="scores",
    # 32 tokens are eight tiles of scores, of four steps of 16 dimensions each.
    targets=[most_requests("q", 128), most_requests("k", 64), executes(MMA, 8 * 4, most=8 * 4)],
    right="128 scores from four instructions: you have filled the fragments of a tensor core by hand.",
    worth=_recorded("3_half2", "4_mma"),
)
def _fragments() -> Iterator[Trial]:
    """s = q k^T by mma, a warp for 16 queries and 8 keys."""
    for n in (32, 16):
        generator = np.random.default_rng(n)
        q, k = _halves(generator, n), _halves(generator, n)
        right = q.astype(float) @ k.astype(float).T
        arguments = [q, k, np.empty((n, n), np.float32), ctypes.c_int(n)]
        yield Trial(f"{n} tokens", (n // 16, n // 8), 32, arguments, {2: right}, 1e-3)


@kernel_task(
    "06.e",
    entry="flash",
    # Three pairs of 16 queries and 16 keys, with eight products for the scores and eight for the outputs.
    targets=[most_requests("k", 48), most_requests("v", 48), most_conflicts(), executes(MMA, 3 * (8 + 8))],
    right="this is FlashAttention on tensor cores, as in lesson 06's rungs 4 and 5, which have larger "
    "blocks, wider heads and any mask.",
    worth=_recorded("2_tiled queries=16", "5_padded"),
)
def _flash() -> Iterator[Trial]:
    """A warp for 16 queries; scores, weights and outputs in fragments, tiles in rows without conflicts."""
    return _trials(16, 32, 4e-3)
