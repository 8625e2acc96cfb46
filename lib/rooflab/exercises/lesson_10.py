"""Checkers of lesson 10's exercises: each calls the answer with cases of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rooflab.exercises import Wrong, called, checker


@checker("10.1")
def transfer_us(answer: Callable[..., Any]) -> str:
    """Latency and rate of a transfer."""
    for bytes_, latency_us, gb_s in ((4096, 1.1, 370.0), (1 << 20, 2.3, 390.0), (1 << 28, 1.8, 450.0)):
        got, right = float(called(answer, bytes_, latency_us, gb_s)), latency_us + bytes_ / gb_s / 1e3
        if math.isclose(got, max(latency_us, bytes_ / gb_s / 1e3), rel_tol=1e-6):
            raise Wrong("the first byte arrives after the latency, and then the others: the two add up.")
        if math.isclose(got - latency_us, (right - latency_us) * 1e-3, rel_tol=1e-6):
            raise Wrong("the bytes take a thousand times as long: a GB/s is a thousand bytes a microsecond.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"for {bytes_} bytes, {latency_us:g} µs and {gb_s:g} GB/s it gives {got:g} µs.")
    return "a latency, and the bytes at the rate."


@checker("10.2")
def exchanged(answer: Callable[..., Any]) -> str:
    """Numbers that a GPU has to send after a product of which it holds rows or columns."""
    for n, k, gpus in ((4096, 14336, 2), (28672, 8192, 4), (64, 128, 8)):
        rows, columns = (int(called(answer, n, k, gpus, by)) for by in ("rows", "columns"))
        if (rows, columns) == (n, n // gpus):
            raise Wrong("the other way round: with whole columns left out, every GPU has a part of each sum.")
        if columns in (k, k // gpus):
            raise Wrong("a product of [n, k] with k numbers has n results: it is these that are summed.")
        if rows == 0:
            raise Wrong("after a split by rows each GPU has its own results, and the others lack them.")
        if (rows, columns) != (n // gpus, n):
            raise Wrong(f"for [{n}, {k}] on {gpus} GPUs it gives {rows} by rows and {columns} by columns.")
    return "rows give a share of finished results, columns a whole vector of unfinished sums."


@checker("10.3")
def total(answer: Callable[..., Any]) -> str:
    """The sum of every GPU's part with the same bits on each."""
    rng = np.random.default_rng(10)
    worst = 0
    for gpus in (2, 4, 8):
        # Two large parts that cancel: what is added between them loses digits that what follows keeps.
        parts = [(rng.standard_normal(512) * 4096).astype(np.float16)]
        parts += [rng.standard_normal(512).astype(np.float16) for _ in range(gpus - 1)]
        if gpus > 2:
            parts[2] = -parts[0]
        right = parts[0].astype(np.float32)
        for part in parts[1:]:
            right = right + part.astype(np.float32)
        got = [np.asarray(called(answer, [part.copy() for part in parts], rank)) for rank in range(gpus)]
        if any(one.dtype != np.float16 for one in got):
            raise Wrong(f"the sum is rounded to float16 in the end, not {got[0].dtype}.")
        if any(one.tobytes() != got[0].tobytes() for one in got):
            raise Wrong(
                f"on {gpus} GPUs the bits differ from one GPU to another: each adds in its own order."
            )
        worst = max(worst, int((got[0] != right.astype(np.float16)).sum()))
    if worst:
        raise Wrong(f"{worst} of 512 sums are rounded more than once: add in float32, and round at the end.")
    return "one order and one rounding: every GPU chooses the same token."


@checker("10.4")
def pays(answer: Callable[..., Any]) -> str:
    """Whether several GPUs make a token faster."""
    cases = ((15e9, 32, 2, 4700.0, 2.2), (3e9, 28, 2, 4700.0, 9.0), (3e9, 28, 2, 4700.0, 4.0))
    for bytes_, layers, gpus, gb_s, sum_us in (
        *cases,
        (15e9, 32, 4, 4700.0, 30.0),
        (15e9, 32, 4, 4700.0, 40.0),
    ):
        alone = bytes_ / gb_s / 1e3
        right = alone / gpus + 2 * layers * sum_us < alone
        if bool(called(answer, bytes_, layers, gpus, gb_s, sum_us)) != right:
            what = f"{bytes_:g} bytes in {layers} layers on {gpus} GPUs, {sum_us:g} µs a sum"
            raise Wrong(f"for {what}, it says {not right}: count two sums a layer, and one GPU's time.")
    return "what the memories save has to be more than what the sums cost."


@checker("10.5")
def least_gpus(answer: Callable[..., Any]) -> str:
    """GPUs that weights and KV cache need: layers and cache are split, embedding and head are not."""
    for layers_gb, whole_gb, cache_gb, memory_gb in (
        (137, 4.2, 2.7, 80),
        (36, 4.2, 2.7, 80),
        (145, 10, 2.7, 80),
        (137, 4.2, 43, 80),
        (300, 4, 30, 80),
    ):
        sizes = (1, 2, 4, 8, 16)
        right = next(n for n in sizes if (layers_gb + cache_gb) / n + whole_gb <= memory_gb)
        got = called(answer, layers_gb, whole_gb, cache_gb, memory_gb)
        if got == next(n for n in sizes if (layers_gb + whole_gb + cache_gb) / n <= memory_gb) != right:
            raise Wrong("embedding and head are whole on every GPU: layers and cache alone are divided.")
        if got == next(n for n in sizes if layers_gb / n + whole_gb <= memory_gb) != right:
            raise Wrong("the KV cache needs room too: each GPU keeps its share of it.")
        if got != right:
            what = f"layers of {layers_gb} GB, {whole_gb} GB whole, a cache of {cache_gb} GB"
            raise Wrong(f"for {what} and memories of {memory_gb} GB it gives {got} GPUs, not {right}.")
    return "memory asks first, speed second."


@checker("10.6")
def add_rmsnorm(answer: Callable[..., Any]) -> str:
    """Residual and normalised row after a branch of which every GPU has a part."""
    rng = np.random.default_rng(6)
    for gpus, width in ((2, 64), (4, 96)):
        residual = rng.standard_normal(width).astype(np.float32)
        parts = [rng.standard_normal(width).astype(np.float16) for _ in range(gpus)]
        weights = rng.uniform(0.5, 1.5, width).astype(np.float32)
        total = residual.astype(np.float64) + np.sum([part.astype(np.float64) for part in parts], 0)
        right = total / np.sqrt((total**2).mean() + 1e-6) * weights
        given = (residual.copy(), [part.copy() for part in parts], weights.copy())
        got_residual, got = (np.asarray(one, np.float64) for one in called(answer, *given))
        if np.allclose(got_residual, residual, atol=1e-5):
            raise Wrong("the residual stays as it was: the next layer needs it with the branch added.")
        if not np.allclose(got_residual, total, atol=1e-3):
            raise Wrong("the residual is not what it was and all GPUs' parts.")
        bare = total / np.sqrt((total**2).mean() + 1e-6)
        if np.allclose(got, bare, atol=1e-3):
            raise Wrong("the normalised row is not multiplied by the weights.")
        if not np.allclose(got, right, atol=1e-3):
            raise Wrong(
                "the row is divided by the root of the mean of its squares, after all parts are added."
            )
    return "one pass over a row: the sum is where the norm needs it."


@checker("10.7")
def most_sum_us(answer: Callable[..., Any]) -> str:
    """What a sum may cost before another GPU stops paying."""
    for bytes_, layers, gpus, gb_s in ((15e9, 32, 2, 3350.0), (3e9, 28, 2, 4800.0), (140e9, 80, 4, 3350.0)):
        saved = bytes_ / gb_s / 1e3 * (1 - 1 / gpus)
        got, right = float(called(answer, bytes_, layers, gpus, gb_s)), saved / (2 * layers)
        if math.isclose(got, 2 * right, rel_tol=1e-6):
            raise Wrong("a layer has two sums: one after attention, one after the MLP.")
        if math.isclose(got, right / (1 - 1 / gpus) / gpus, rel_tol=1e-6) and gpus > 2:
            raise Wrong("what is saved is one GPU's time less each one's share of it.")
        if not math.isclose(got, right, rel_tol=1e-6):
            what = f"{bytes_:g} bytes in {layers} layers on {gpus} GPUs of {gb_s:g} GB/s"
            raise Wrong(f"for {what} it gives {got:g} µs; what memories save is divided among the sums.")
    return "below it a second GPU pays, above it one is faster alone."
