"""Logits of a decoder of the Qwen2 or LLaMA kind, exactly: the oracle, and in float16 its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rooflab.engine.oracle import Arithmetic
from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors
from rooflab.numerics.rotary import frequencies

Past = Sequence[tuple[Any, Any]]  # of each layer keys and values [batch, kv_heads, context, head_dim]


def logits(
    spec: Spec,
    get: Tensors,
    tokens: Any,
    format: str = "fp16",
    head_format: str = "fp16",
    dtype: str = "float64",
    *,
    past: Past | None = None,
    rounded: bool = False,
    last: bool = False,
) -> Any:
    """Logits [..., t, vocab] after every one of `tokens` [..., t] (`last`: after the last alone, t is 1).

    `tokens` is a list for NumPy, or torch's tensor of one or two axes. What the cache held before them,
    `past`, is torch's. For `dtype` and `rounded` see engine.oracle.
    """
    s, m = spec.shape, Arithmetic(get, tokens, dtype, spec.shape.epsilon, rounded)
    t = m.shape[-1]
    batch, context = m.ids.shape[0] // t, int(past[0][0].shape[2]) if past else 0
    places = np.arange(context, context + t)
    angles = np.outer(places, frequencies(s.head_dim, spec.theta, spec.scaling))[:, None]
    cos, sin = m.given(np.cos(angles)), m.given(np.sin(angles))
    x = m.embedded("model.embed_tokens.weight", head_format)
    for layer in range(s.layers):
        at = f"model.layers.{layer}."
        h = m.norm(x, f"{at}input_layernorm.weight")
        parts = []
        for name in "qkv":
            bias = f"{at}self_attn.{name}_proj.bias" if spec.biased else ""
            rows = m.product(h, f"{at}self_attn.{name}_proj.weight", format, bias)
            parts.append(rows.reshape(batch, t, -1, s.head_dim))
        q, k, v = m.rotate(parts[0], cos, sin), m.rotate(parts[1], cos, sin), parts[2]
        if past:
            before = (m.kept(old).swapaxes(1, 2) for old in past[layer])
            k, v = (m.xp.concatenate((old, new), 1) for old, new in zip(before, (k, v), strict=True))
        out = m.xp.concatenate([m.attention(q[i], k[i], v[i]) for i in range(batch)])
        x = m.kept(x + m.product(out, f"{at}self_attn.o_proj.weight", format))
        h = m.norm(x, f"{at}post_attention_layernorm.weight")
        gate, up = (m.product(h, f"{at}mlp.{name}_proj.weight", format) for name in ("gate", "up"))
        x = m.kept(x + m.product(m.kept(m.silu(gate) * up), f"{at}mlp.down_proj.weight", format))
    if last:
        x = x.reshape(batch, t, -1)[:, -1]
    name = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
    found = m.product(m.norm(x, "model.norm.weight"), name, head_format)
    return m.softcap(found, s.softcap).reshape(*m.shape[:-1], -1, s.vocab)
