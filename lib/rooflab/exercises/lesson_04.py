"""Checkers of lesson 04's exercises: packing, bytes, a kernel, an event clock."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rooflab.exercises import Wrong, called, checker
from rooflab.exercises import build_04 as build_04  # registers the guided build, 04.a to 04.e
from rooflab.exercises.build_04 import LARGE
from rooflab.exercises.kernels import Trial, kernel_task, most_requests
from rooflab.exercises.worth import gain
from rooflab.numerics import quant
from rooflab.records.case import Case
from rooflab.studies import int4 as study


@checker("04.1")
def _pack(pack: Callable[..., Any]) -> str:
    """pack(codes): eight integers from -7 to 7 as the format's 32-bit word."""
    generator = np.random.default_rng(4)
    rows = [[0] * 8, [1, 0, 0, 0, 0, 0, 0, 0], [0] * 7 + [-7], [7] * 8, [-1, 2, -3, 4, -5, 6, -7, 7]]
    rows += generator.integers(-7, 8, (4, 8)).tolist()
    for row in rows:
        right = int(quant.pack_int4(np.array([row], np.int8)).view(np.uint32)[0, 0])
        got = int(called(pack, list(row)))
        if got == right:
            continue
        shown = f"for {row} you make {got & 0xFFFFFFFF:#010x}"
        if got == int(quant.pack_int4(np.array([row[::-1]], np.int8)).view(np.uint32)[0, 0]):
            raise Wrong(f"{shown}: the first code belongs into the lowest four bits.")
        if got & 0xFFFFFFFF == right:
            raise Wrong(f"for {row} you make {got}: the same bits, but a word is not negative here.")
        if not any(row):
            raise Wrong(f"{shown}: a code of zero is stored as 8.")
        raise Wrong(f"{shown}, and {right:#010x} is right.")
    return "eight weights in the room of two halves."


@checker("04.2")
def _moved(moved: Callable[..., Any]) -> str:
    """moved(n, k, way): bytes to and from DRAM at batch 1, for "fp16", "fused" and "two_op"."""
    for n, k in ((8960, 1536), (28672, 8192), (64, 128)):
        codes, ends = n * k // 2 + 2 * n * (k // 128), 2 * (n + k)
        rights = {"fp16": 2 * n * k + ends, "fused": codes + ends, "two_op": codes + 4 * n * k + ends}
        for way, right in rights.items():
            got = called(moved, n, k, way)
            if math.isclose(got, right, rel_tol=1e-9):
                continue
            where = f"for {way} at n={n}, k={k} you count {got:,.0f} bytes"
            if math.isclose(got, right - ends, rel_tol=1e-9):
                raise Wrong(f"{where}: x is read and y is written as well.")
            if way != "fp16" and math.isclose(got, right - 2 * n * (k // 128), rel_tol=1e-9):
                raise Wrong(f"{where}: every group of 128 has a scale of two bytes.")
            if way == "two_op" and math.isclose(got, right - 2 * n * k, rel_tol=1e-9):
                raise Wrong(f"{where}: the FP16 weights are written by one kernel and read by the next.")
            raise Wrong(f"{where}, and it is {'more' if got < right else 'less'}.")
    return (
        "the two-op product moves more than FP16 would: it reads few bytes in order to write and read many."
    )


# --- kernels ------------------------------------------------------------------------------------------------


def _weights(n: int, k: int) -> tuple[quant.Int4, np.ndarray]:
    """INT4 weights [n, k] with an outlier and a group of zeros, and what they stand for."""
    w = np.random.default_rng(n + k).standard_normal((n, k), dtype=np.float32) + np.float32(0.3)
    w[0, :128], w[-1, -1] = 0, 9
    packed = quant.quantise_int4(w)
    return packed, quant.dequantise_int4(packed)


def _product(n: int, k: int, batch: int, blocks: int, threads: int, batched: bool) -> Trial:
    """One call of a kernel for y = x W^T: x [batch, k] and y [batch, n] FP16, W INT4 in row order."""
    packed, w = _weights(n, k)
    x = (np.random.default_rng(k).standard_normal((batch, k)) + 0.3).astype(np.float16)
    expected = x.astype(np.float64) @ w.T.astype(np.float64)
    y = np.empty((batch, n), np.float16)
    sizes = [n, k // quant.GROUP, batch] if batched else [n, k // quant.GROUP]
    arguments = [packed.qweight.view(np.uint32), packed.scales, x, y, *map(ctypes.c_uint, sizes)]
    budget = float(np.spacing(np.float16(np.abs(expected).max())))
    name = f"n = {n}, k = {k}" + (f", batch = {batch}" if batched else "")
    return Trial(name, blocks, threads, arguments, {3: expected}, budget)


AGAIN = """\
#include <cuda_fp16.h>
#include "common/reduce.cuh"

extern "C" __global__ void product(
    const unsigned* qweight, const __half* scales, const __half* x, __half* y,
    unsigned n, unsigned groups, unsigned batch) {
    const unsigned row = blockIdx.x, lane = threadIdx.x, words = groups * 16;
    for (unsigned token = 0; token < batch; ++token) {
        float sum = 0.0f;
        for (unsigned i = lane; i < words; i += 32) {
            const unsigned word = qweight[row * words + i];
            float part = 0.0f;
            for (int c = 0; c < 8; ++c)
                part += (int(word >> 4 * c & 15) - 8)
                        * __half2float(x[token * words * 8 + 8 * i + c]);
            sum += __half2float(scales[row * groups + i / 16]) * part;
        }
        sum = warp_sum(sum);
        if (lane == 0) y[token * n + row] = __float2half(sum);
    }
}
"""


def _together(tokens: int) -> list[Case]:
    """Recorded cases for so many tokens: the weights read again for each, and read once."""
    return [case for case in study.reused(*LARGE) if case.batch == tokens]


@kernel_task(
    "04.3",
    entry="product",
    starter=AGAIN,
    targets=[most_requests("qweight", 16)],
    right="one pass over the weights, however many tokens wait for them.",
    worth=lambda: gain("int4", _together(4), "5_split_k", "6_batched tokens=4"),
)
def _once() -> Iterator[Trial]:
    """A warp a row and up to eight tokens; 16 requests read the weights of the first trial once."""
    for n, k, batch in ((8, 512, 4), (3, 256, 8), (5, 384, 1), (2, 128, 7)):
        yield _product(n, k, batch, n, 32, batched=True)


@checker("04.4")
def _seen(seen: Callable[..., Any]) -> str:
    """seen(kernel_us, first_us, launch_us, launches): the event clock around a run of eager launches."""
    for kernel, first, launch, launches in (
        (30.0, 9.0, 5.0, 1),
        (30.0, 9.0, 5.0, 8),
        (2.0, 15.0, 6.0, 8),
        (6.0, 6.0, 6.0, 3),
        (2.0, 15.0, 6.0, 1),
    ):
        right = first + kernel + (launches - 1) * max(kernel, launch)
        got = float(called(seen, kernel, first, launch, launches))
        if math.isclose(got, right, rel_tol=1e-9):
            continue
        where = (
            f"for {launches} kernels of {kernel:g} µs, {first:g} µs for the first launch and {launch:g} µs "
        )
        where += f"for each further one, you get {got:g}"
        further = launches - 1
        if math.isclose(got, first + further * launch + launches * kernel, rel_tol=1e-9):
            raise Wrong(f"{where}: the host launches the next one while the GPU is still busy.")
        if math.isclose(got, max(first, kernel) + further * max(kernel, launch), rel_tol=1e-9):
            raise Wrong(f"{where}: the first kernel cannot start before it is launched.")
        if math.isclose(got, first + launches * kernel, rel_tol=1e-9):
            raise Wrong(f"{where}: a GPU that is faster than its host waits before every kernel.")
        raise Wrong(f"{where} µs, and {right:g} is right.")
    return "short kernels are timed by their launches, and a loop over tokens pays for each."
