"""The decoder of Gemma 4's kind in NumPy, in float64: the oracle of its logits, on the weights as they are
quantised. In float16 every result is rounded to it, sums aside: the baseline that budgets are taken from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rooflab.engine.gemma import Spec, turns_of
from rooflab.engine.weights import Tensors, dequantised
from rooflab.numerics import reference
from rooflab.numerics.quant import dequantise_q8, quantise_q8_1


def logits(
    spec: Spec,
    get: Tensors,
    tokens: Sequence[int],
    format: str = "fp16",
    head_format: str = "fp16",
    dtype: str = "float64",
    activations: str = "",
) -> np.ndarray:
    """Logits [tokens, vocab] after every one of `tokens`: what transformers' model computes. `activations`
    "q8_1" rounds what layers multiply by weights to that format, as the products with Q8_0 weights do.
    """
    m, n = spec.model, len(tokens)

    def kept(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(np.float64)

    def matrix(name: str, kind: str = format) -> np.ndarray:
        return kept(np.asarray(dequantised(get(f"{name}.weight"), kind), np.float64))

    def norm(x: np.ndarray, name: str = "") -> np.ndarray:
        normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.epsilon)
        return kept(normed * np.asarray(get(f"{name}.weight"), np.float64) if name else normed)

    def times(x: np.ndarray, name: str) -> np.ndarray:
        if activations == "q8_1":
            x = dequantise_q8(quantise_q8_1(x)).astype(np.float64)
        return kept(x @ matrix(name).T)

    def gelu(x: np.ndarray) -> np.ndarray:
        return kept(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))

    def rotate(v: np.ndarray, turns: np.ndarray) -> np.ndarray:
        cos, sin = (kept(turns[:n, None, :, i].astype(np.float64)) for i in (0, 1))
        a, b = np.split(v, 2, -1)
        return kept(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))

    embedding = matrix("model.embed_tokens", head_format)
    x = kept(embedding[list(tokens)] * np.sqrt(m.hidden))
    own = kept(matrix("model.embed_tokens_per_layer", head_format)[list(tokens)] * np.sqrt(m.ple))
    projected = kept(times(x, "model.per_layer_model_projection") / np.sqrt(m.hidden))
    projected = norm(projected.reshape(n, m.layers, m.ple), "model.per_layer_projection_norm")
    told = kept(kept(projected + own.reshape(n, m.layers, m.ple)) / np.sqrt(2))
    caches: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for index, layer in enumerate(spec.layers):
        at = f"model.layers.{index}."
        turns = turns_of(spec, n, layer.window is None)
        h = norm(x, f"{at}input_layernorm")

        def heads(name: str, h: np.ndarray = h, at: str = at, width: int = layer.head_dim) -> np.ndarray:
            return times(h, f"{at}self_attn.{name}_proj").reshape(n, -1, width)

        queries = rotate(norm(heads("q"), f"{at}self_attn.q_norm"), turns)
        if layer.owns_kv:
            keys = rotate(norm(heads("k"), f"{at}self_attn.k_norm"), turns)
            caches[index] = keys, norm(heads("v"))
        keys, values = caches[spec.sources[index]]
        out = kept(reference.attention(queries, keys, values, window=layer.window, scale=1.0))
        branch = times(out.reshape(n, -1), f"{at}self_attn.o_proj")
        x = kept(x + norm(branch, f"{at}post_attention_layernorm"))
        h = norm(x, f"{at}pre_feedforward_layernorm")
        inner = kept(gelu(times(h, f"{at}mlp.gate_proj")) * times(h, f"{at}mlp.up_proj"))
        x = kept(x + norm(times(inner, f"{at}mlp.down_proj"), f"{at}post_feedforward_layernorm"))
        inner = kept(gelu(times(x, f"{at}per_layer_input_gate")) * told[:, index])
        branch = times(inner, f"{at}per_layer_projection")
        x = kept(x + norm(branch, f"{at}post_per_layer_input_norm"))
        x = kept(x * float(get(f"{at}layer_scalar")[0]))
    found = kept(norm(x, "model.norm") @ embedding.T)
    return m.softcap * np.tanh(found / m.softcap) if m.softcap else found
