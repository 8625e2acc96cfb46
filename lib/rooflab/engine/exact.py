"""The decoder in NumPy, in float64: the oracle of logits, on the weights as they are quantised. In float16
every result is rounded to it, sums aside: the baseline that error budgets are taken from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors, dequantised
from rooflab.numerics import reference


def logits(
    spec: Spec,
    get: Tensors,
    tokens: Sequence[int],
    format: str = "fp16",
    head_format: str = "fp16",
    dtype: str = "float64",
) -> np.ndarray:
    """Logits [tokens, vocab] after every one of `tokens`: what transformers' model computes."""
    s = spec.shape

    def kept(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(np.float64)

    def matrix(name: str, kind: str) -> np.ndarray:
        return kept(np.asarray(dequantised(get(name), kind), np.float64))

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        weights = np.asarray(get(name), np.float64)
        return kept(kept(x / np.sqrt((x**2).mean(-1, keepdims=True) + s.epsilon)) * weights)

    embedding = matrix("model.embed_tokens.weight", head_format)
    x = embedding[list(tokens)]
    angles = np.outer(np.arange(len(tokens)), spec.theta ** -(np.arange(0, s.head_dim, 2) / s.head_dim))
    cos, sin = kept(np.cos(angles)[:, None]), kept(np.sin(angles)[:, None])

    def rotate(v: np.ndarray) -> np.ndarray:
        a, b = np.split(v, 2, -1)
        return kept(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))

    for layer in range(s.layers):
        at = f"model.layers.{layer}."
        h = norm(x, f"{at}input_layernorm.weight")
        parts: list[Any] = []
        for name in "qkv":
            rows = kept(h @ matrix(f"{at}self_attn.{name}_proj.weight", format).T)
            if spec.biased:
                rows = kept(rows + np.asarray(get(f"{at}self_attn.{name}_proj.bias"), np.float64))
            parts.append(rows.reshape(len(tokens), -1, s.head_dim))
        out = kept(reference.attention(rotate(parts[0]), rotate(parts[1]), parts[2]))
        x = kept(x + kept(out.reshape(len(tokens), -1) @ matrix(f"{at}self_attn.o_proj.weight", format).T))
        h = norm(x, f"{at}post_attention_layernorm.weight")
        gate, up = (kept(h @ matrix(f"{at}mlp.{n}_proj.weight", format).T) for n in ("gate", "up"))
        inner = kept(kept(gate / (1 + np.exp(-gate))) * up)
        x = kept(x + kept(inner @ matrix(f"{at}mlp.down_proj.weight", format).T))
    h = norm(x, "model.norm.weight")
    head = embedding if spec.tied else matrix("lm_head.weight", head_format)
    found = kept(h @ head.T)
    return s.softcap * np.tanh(found / s.softcap) if s.softcap else found
