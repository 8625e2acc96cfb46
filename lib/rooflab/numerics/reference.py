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


def attention(
    q: NDArray,
    k: NDArray,
    v: NDArray,
    *,
    start: int = 0,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
) -> NDArray[np.float64]:
    """softmax(scale q k^T) v in FP64, head by head: q [n, heads, d], k and v [context, kv_heads, d], so that
    query head h reads key-value head h // (heads // kv_heads); the result is [n, heads, d].

    Query i is at position start + i. If causal it sees the keys at its own position and before, with a
    window w only the latest w of those. What a query does not see does not count, not even as NaN; one that
    sees nothing gives zeros. `scale` is 1 / sqrt(d) unless given."""
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not (q.ndim == k.ndim == 3 and k.shape == v.shape and q.shape[2] == k.shape[2] and q.shape[1]):
        raise UsageError(f"q, k and v must be [n, heads, d], [context, kv_heads, d] and as k, not {shapes}.")
    n, heads, d = q.shape
    context, kv_heads, _ = k.shape
    if not kv_heads or heads % kv_heads:
        raise UsageError(f"{heads} query heads do not share {kv_heads} key-value heads evenly.")
    if window is not None and not (causal and window > 0):
        raise UsageError("a window of at least one key goes with causal attention.")
    out = np.zeros((n, heads, d))
    if not context:
        return out
    position, key = start + np.arange(n)[:, None], np.arange(context)[None, :]
    seen = (
        (key <= position) & (key > position - (window or np.inf)) if causal else np.ones((n, context), bool)
    )
    factor = 1 / np.sqrt(d) if scale is None else scale
    for head in range(heads):
        keys, values = (x[:, head // (heads // kv_heads)].astype(np.float64) for x in (k, v))
        with np.errstate(invalid="ignore"):  # NaN in, NaN out, without a word
            scores = np.where(seen, factor * (q[:, head].astype(np.float64) @ keys.T), -np.inf)
            largest = scores.max(axis=1, keepdims=True)
            weights = np.where(seen, np.exp(scores - np.where(np.isneginf(largest), 0, largest)), 0)
            # A product per key that is seen, so that 0 times an unseen NaN does not count.
            dirty = ~np.isfinite(values).all(axis=1)
            out[:, head] = weights[:, ~dirty] @ values[~dirty]
            for index in np.flatnonzero(dirty):
                rows = seen[:, index]
                out[rows, head] += weights[rows, index, None] * values[index]
            out[:, head] /= np.where(seen.any(axis=1), weights.sum(axis=1), 1)[:, None]
    return out


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


def sampled(
    logits: ArrayLike, position: int, inverse_temperature: float = 0.0, softcap: float = 0.0, seed: int = 0
) -> NDArray[np.int64]:
    """The token [n] int64 after each row of logits [n, vocab]: the likeliest, or with an inverse temperature
    above 0 one drawn by softmax's odds: the largest after Gumbel noise is added. The noise is a function of
    seed, row, position and token (kernels/common/uniform.cuh).
    """
    values = np.asarray(logits, np.float64)
    if softcap:
        values = softcap * np.tanh(values / softcap)
    if inverse_temperature:
        rows, tokens = (np.arange(size, dtype=np.uint32) for size in values.shape)
        v = (np.uint32(seed) + np.uint32(0x9E3779B1) * rows)[:, None] ^ (
            np.array([position], np.uint32) * np.uint32(0x9E3779B9)
        )
        v = (v ^ v >> 16) * np.uint32(0x85EBCA6B) + tokens
        v = (v ^ v >> 13) * np.uint32(0xC2B2AE35)
        v = (v ^ v >> 16) * np.uint32(0x7FEB352D)
        uniform = (((v ^ v >> 15) >> 9) + 0.5) / (1 << 23)
        values = values * inverse_temperature - np.log(-np.log(uniform))
    return values.argmax(-1)
