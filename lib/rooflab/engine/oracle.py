"""The arithmetic that exact models are written in, over NumPy arrays and torch tensors alike.

In float64 it gives the oracle of logits, on the weights as they are quantised. In float16 every result is
rounded to it, sums aside: the baseline that error budgets are taken from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rooflab.engine.weights import Tensors, dequantised
from rooflab.numerics import reference

_WIDENED = 1 << 26  # elements of a matrix in `dtype` at a time
_QUERIES = 256  # that attention scores at a time


class Arithmetic:
    """Steps of a decoder on the tensors that `get` names. `tokens` (a list, or an integer tensor of torch)
    decides which library computes, and where. `rounded`: what is multiplied by Q8_0 weights is rounded to
    Q8_1 before, as int8 products do.
    """

    def __init__(self, get: Tensors, tokens: Any, dtype: str, epsilon: float, rounded: bool = False):
        self.get, self.dtype, self.epsilon, self.rounded = get, dtype, epsilon, rounded
        self.xp: Any = np
        if hasattr(tokens, "device") and not isinstance(tokens, np.ndarray):
            import torch

            self.xp = torch
        else:
            tokens = np.asarray(tokens)
        self.shape, self.ids = tuple(tokens.shape), tokens.reshape(-1)

    def kept(self, x: Any) -> Any:
        """x rounded to `dtype`. NumPy still computes in float64, torch in `dtype` itself."""
        if self.xp is np:
            return np.asarray(x).astype(self.dtype).astype(np.float64)
        return x.to(getattr(self.xp, self.dtype))

    def wide(self, x: Any) -> Any:
        """x in what a step keeps inside: float64, or in torch's float16 baseline float32."""
        if self.xp is np:
            return np.asarray(x, np.float64)
        return x.to(self.xp.float64 if self.dtype == "float64" else self.xp.float32)

    def given(self, values: np.ndarray) -> Any:
        """A NumPy array of constants, rounded, where the tokens are."""
        return self.kept(values if self.xp is np else self.xp.from_numpy(values).to(self.ids.device))

    def embedded(self, name: str, format: str) -> Any:
        """Rows [tokens, n] of an embedding."""
        return self.kept(dequantised(self.get(name)[self.ids], format))

    def product(self, x: Any, name: str, format: str, bias: str = "") -> Any:
        """x [t, k] times a matrix [n, k], and a bias."""
        weight, x = dequantised(self.get(name), format), self._q8_1(x) if format == "q8_0" else x
        step = max(1, _WIDENED // weight.shape[1])
        parts = [x @ self.kept(weight[i : i + step]).T for i in range(0, weight.shape[0], step)]
        out = self.kept(self.xp.concatenate(parts, -1))
        return self.kept(out + self.kept(self.get(bias))) if bias else out

    def norm(self, x: Any, name: str = "") -> Any:
        """RMSNorm of the last axis, weighted by a tensor if named."""
        x = self.wide(x)
        normed = self.kept(x / self.xp.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon))
        return self.kept(normed * self.kept(self.get(name))) if name else normed

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        """Rotary positions: x [..., t, heads, d] turned by cos and sin [t, 1, d / 2]."""
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return self.kept(self.xp.concatenate((a * cos - b * sin, b * cos + a * sin), -1))

    def silu(self, x: Any) -> Any:
        return self.kept(x / (1 + self.xp.exp(-x)))

    def gelu(self, x: Any) -> Any:
        """GELU by its tanh formula."""
        x = self.wide(x)
        return self.kept(0.5 * x * (1 + self.xp.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))))

    def softcap(self, x: Any, cap: float) -> Any:
        return cap * self.xp.tanh(x / cap) if cap else x

    def attention(self, q: Any, k: Any, v: Any, window: int | None = None, scale: float | None = None) -> Any:
        """Causal attention [t, heads * d]: q [t, heads, d] are the last of k and v [context, kv_heads, d]."""
        t, heads, d = q.shape
        start = k.shape[0] - t
        if self.xp is np:
            out = reference.attention(q, k, v, start=start, window=window, scale=scale)
            return self.kept(out.reshape(t, -1))
        scale = d**-0.5 if scale is None else scale
        k, v = (x.repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (k, v))
        outs = []
        for first in range(0, t, _QUERIES):
            rows = q[first : first + _QUERIES].transpose(0, 1)
            low = max(0, start + first - window + 1) if window else 0
            end = start + first + rows.shape[1]
            query = self.xp.arange(start + first, end, device=q.device)[:, None]
            key = self.xp.arange(low, end, device=q.device)[None]
            hidden = (key > query) | (key <= query - window) if window else key > query
            scores = self.wide(rows @ k[:, low:end].transpose(1, 2) * scale)
            weights = self.kept(self.xp.softmax(scores.masked_fill(hidden, float("-inf")), -1))
            outs.append((weights @ v[:, low:end]).transpose(0, 1))
        return self.xp.cat(outs).reshape(t, -1)

    def _q8_1(self, x: Any) -> Any:
        """x with every 32 of a row rounded to eight bits and their scale, if products round."""
        if not self.rounded:
            return x
        blocks = self.wide(x).reshape(*x.shape[:-1], -1, 32)
        scale = self.xp.amax(self.xp.abs(blocks), -1, keepdims=True) / 127
        found = self.xp.round(blocks / self.xp.clip(scale, 1e-30, None)) * scale
        return self.kept(found.reshape(x.shape))
