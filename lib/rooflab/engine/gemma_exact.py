"""Logits of a decoder of Gemma 4's kind, exactly: the oracle, and in float16 its baseline, which keeps the
residual wide, since it may not fit float16.
"""

from __future__ import annotations

from typing import Any

from rooflab.engine.gemma_model import Spec, rotary_of
from rooflab.engine.oracle import Arithmetic
from rooflab.engine.weights import Tensors


def logits(
    spec: Spec,
    get: Tensors,
    tokens: Any,
    format: str = "fp16",
    head_format: str = "fp16",
    dtype: str = "float64",
    *,
    first: int = 0,
    rounded: bool = False,
) -> Any:
    """Logits [t - first, vocab] after each of `tokens` [t] from the one at `first` on; `tokens` is a list for
    NumPy, or torch's tensor. For `dtype` and `rounded` see engine.oracle.
    """
    model, m = spec.model, Arithmetic(get, tokens, dtype, spec.epsilon, rounded)
    t = m.shape[0]

    def product(x: Any, name: str, how: str = format) -> Any:
        return m.product(x, f"{name}.weight", how)

    def norm(x: Any, name: str) -> Any:
        return m.norm(x, f"{name}.weight")

    x = m.kept(m.embedded("model.embed_tokens.weight", head_format) * model.hidden**0.5)
    own = m.kept(m.embedded("model.embed_tokens_per_layer.weight", head_format) * model.ple**0.5)
    projected = m.kept(product(x, "model.per_layer_model_projection") / model.hidden**0.5)
    projected = norm(projected.reshape(t, model.layers, model.ple), "model.per_layer_projection_norm")
    told = m.kept(m.kept(projected + own.reshape(t, model.layers, model.ple)) / 2**0.5)
    rotary = [m.given(rotary_of(spec, t, everything)) for everything in (False, True)]
    caches: dict[int, tuple[Any, Any]] = {}
    x = m.wide(x)
    for index, layer in enumerate(spec.layers):
        at, turned = f"model.layers.{index}.", rotary[layer.window is None][:, None]
        cos, sin = turned[..., 0], turned[..., 1]
        h = norm(x, f"{at}input_layernorm")
        made = {
            name: product(h, f"{at}self_attn.{name}_proj").reshape(t, -1, layer.head_dim)
            for name in ("qkv" if layer.owns_kv else "q")
        }
        queries = m.rotate(norm(made["q"], f"{at}self_attn.q_norm"), cos, sin)
        if layer.owns_kv:
            keys = m.rotate(norm(made["k"], f"{at}self_attn.k_norm"), cos, sin)
            caches[index] = keys, m.norm(made["v"])
        out = m.attention(queries, *caches[spec.sources[index]], window=layer.window, scale=1.0)
        branch = product(out, f"{at}self_attn.o_proj")
        x = x + m.wide(norm(branch, f"{at}post_attention_layernorm"))
        h = norm(x, f"{at}pre_feedforward_layernorm")
        inner = m.kept(m.gelu(product(h, f"{at}mlp.gate_proj")) * product(h, f"{at}mlp.up_proj"))
        x = x + m.wide(norm(product(inner, f"{at}mlp.down_proj"), f"{at}post_feedforward_layernorm"))
        size = m.xp.sqrt((x * x).mean(-1, keepdims=True))  # brings the residual into float16's range
        gate = m.kept(m.wide(product(m.kept(x / size), f"{at}per_layer_input_gate")) * size)
        branch = product(m.kept(m.gelu(gate) * told[:, index]), f"{at}per_layer_projection")
        x = x + m.wide(norm(branch, f"{at}post_per_layer_input_norm"))
        x = x * float(get(f"{at}layer_scalar")[0])
    found = product(norm(x[first:], "model.norm"), "model.embed_tokens", head_format)
    return m.softcap(found, model.softcap or 0.0)
