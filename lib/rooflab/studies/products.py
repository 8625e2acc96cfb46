"""What the studies of weight products y = x W^T share: operands, cold copies, oracle, error budget, cuBLAS.

Weights are [n, k] and activations [batch, k], both random with a non-zero mean and outliers, so that a
dropped element, a swapped column or a clipped range shows. All of it lives on the GPU: at 28672 x 8192 the
host would take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rooflab.bench import gate
from rooflab.ops import arrays
from rooflab.studies.buffers import SEED

_CHUNK = 1 << 26  # elements of a matrix widened to float64 at a time


def weights(n: int, k: int, dtype: str = "float16", seed: int = SEED) -> Any:
    """Random weights [n, k]: about N(0.1, 1) / sqrt(k), one element in 1024 twelve times larger."""
    cupy = arrays()
    generator = cupy.random.default_rng(seed)
    out = cupy.empty((n, k), dtype)
    rows = max(1, _CHUNK // k)
    for start in range(0, n, rows):
        part = out[start : start + rows]
        values = generator.standard_normal(part.shape, dtype=cupy.float32) + cupy.float32(0.1)
        spread = 1 + 11 * (generator.random(part.shape, dtype=cupy.float32) < 1 / 1024)
        part[...] = values * spread * cupy.float32(1 / math.sqrt(k))
    return out


def activations(batch: int, k: int, dtype: str = "float16", seed: int = SEED + 1) -> Any:
    """Random activations [batch, k]: about N(0.25, 1), one element in 256 eight times larger."""
    cupy = arrays()
    generator = cupy.random.default_rng(seed)
    values = generator.standard_normal((batch, k), dtype=cupy.float32) + cupy.float32(0.25)
    spread = 1 + 7 * (generator.random((batch, k), dtype=cupy.float32) < 1 / 256)
    return (values * spread).astype(dtype)


def oracle(w: Any, x: Any) -> Any:
    """x [batch, k] times w [n, k] transposed in float64, rows of w widened a chunk at a time: [batch, n]."""
    cupy = arrays()
    x64 = x.astype(cupy.float64)
    rows = max(1, _CHUNK // w.shape[1])
    parts = [x64 @ w[start : start + rows].astype(cupy.float64).T for start in range(0, w.shape[0], rows)]
    return cupy.concatenate(parts, axis=1)


def budget(w: Any, x: Any, expected: Any, output: str) -> float:
    """Error budget of a product whose baseline is cuBLAS in the operands' own type, rounded to `output`."""
    cupy = arrays()
    baseline = cupy.matmul(x, w.T).astype(output)  # float16 and float32 accumulate in float32
    return gate.error_budget(
        float(cupy.abs(baseline.astype(cupy.float64) - expected).max()), expected, output
    )


def torch_matmul(ws: Sequence[Any], xs: Sequence[Any], ys: Sequence[Any]) -> Any:
    """A launcher of torch.matmul, (cuBLAS) over copies of w [n, k], x [batch, k] and y [batch, n]."""
    import torch

    turned = [torch.from_dlpack(w).t() for w in ws]
    x_t, y_t = ([torch.from_dlpack(a) for a in arrays] for arrays in (xs, ys))

    def launch(i: int) -> None:
        torch.matmul(x_t[i], turned[i], out=y_t[i])

    return launch
