"""Slow, exact operators: the oracles that the gate compares kernels with. NumPy only."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooflab.errors import UsageError

# Explicit mantissa bits and the exponent of the smallest normal number.
_FLOATS = {"fp16": (10, -14), "bf16": (7, -126), "fp32": (23, -126), "fp64": (52, -1022)}

# Elements of a matrix widened to FP64 at a time, so that a large one does not need four times its memory.
_CHUNK = 1 << 22


def saxpy(a: float, x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """a x + y in FP64."""
    return a * np.asarray(x, dtype=np.float64) + np.asarray(y, dtype=np.float64)


def triad(b: ArrayLike, c: ArrayLike, s: float) -> NDArray[np.float64]:
    """b + s c in FP64."""
    return np.asarray(b, dtype=np.float64) + s * np.asarray(c, dtype=np.float64)


def copy(x: NDArray) -> NDArray:
    """A copy of x, of the same type: a stream copy is right only bit for bit."""
    return np.array(x)


def read_sum(x: NDArray) -> int:
    """The bytes of x as 32-bit words summed modulo 2^32: what a read kernel must return, exact in any
    order."""
    if x.nbytes % 4:
        raise UsageError(f"{x.nbytes} bytes are no whole number of 32-bit words.")
    words = np.ascontiguousarray(x).reshape(-1).view(np.uint32)
    return int(words.sum(dtype=np.uint64)) % 2**32


def gemv(w: NDArray, x: ArrayLike) -> NDArray[np.float64]:
    """w [N, K] times x [K] in FP64: y [N]."""
    return gemm(w, np.asarray(x)[None, :])[0]


def gemm(w: NDArray, x: ArrayLike) -> NDArray[np.float64]:
    """x [M, K] times w [N, K] transposed in FP64: y [M, N], row m the outputs of token m."""
    tokens = np.asarray(x, dtype=np.float64)
    if w.ndim != 2 or tokens.ndim != 2 or w.shape[1] != tokens.shape[1]:
        raise UsageError(f"weights {w.shape} and activations {tokens.shape} must be [N, K] and [M, K].")
    rows = max(1, _CHUNK // max(1, w.shape[1]))
    parts = [tokens @ w[start : start + rows].astype(np.float64).T for start in range(0, w.shape[0], rows)]
    return np.concatenate(parts, axis=1)


def ulp(x: ArrayLike, dtype: str) -> NDArray[np.float64]:
    """The gap between neighbouring numbers of a format ("fp16", "bf16", "fp32", "fp64") at |x|, in FP64:
    one unit in the last place, never below the smallest subnormal; NaN where x is not finite."""
    if dtype not in _FLOATS:
        raise UsageError(f"there is no float format {dtype!r}; there are {', '.join(_FLOATS)}.")
    bits, smallest = _FLOATS[dtype]
    values = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 0))  # |x| = m 2^exponent with m in [1/2, 1)
    exponent = np.where(values == 0, smallest, np.maximum(exponent - 1, smallest))
    return np.where(np.isfinite(values), np.ldexp(1.0, exponent - bits), np.nan)
