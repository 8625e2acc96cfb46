"""What float64 says of the logits of a decoder of Gemma 4's kind, on the GPU: engine.gemma_exact in torch,
for models that NumPy would take minutes over. In float16 every result is rounded, the residual aside, which
may not fit it: the baseline of error budgets.
"""

from __future__ import annotations

from typing import Any

from rooflab.engine.gemma import Spec, turns_of
from rooflab.engine.weights import Tensors, dequantised
from rooflab.studies import decoding

_ROWS = 256  # queries at a time


def logits(
    spec: Spec,
    get: Tensors,
    ids: Any,
    format: str,
    head: str,
    first: int = 0,
    dtype: str = "float64",
    rounded: bool = False,
) -> Any:
    """Logits [n - first, vocab] after each of the tokens ids [n] from the one at `first` on. `rounded`: what
    layers multiply by Q8_0 weights is rounded to Q8_1 before.
    """
    import torch

    m, kind, n = spec.model, getattr(torch, dtype), int(ids.shape[0])
    wide = torch.float64 if dtype == "float64" else torch.float32

    def product(x: Any, name: str, how: str = format) -> Any:
        weight = dequantised(get(f"{name}.weight"), how)
        step = max(1, (1 << 26) // weight.shape[1])
        x = decoding.to_q8_1(x) if rounded and how == "q8_0" else x
        parts = [x @ weight[i : i + step].to(kind).T for i in range(0, weight.shape[0], step)]
        return torch.cat(parts, -1)

    def norm(x: Any, name: str = "") -> Any:
        scale = (x.to(wide).square().mean(-1, keepdim=True) + spec.epsilon).rsqrt()
        normed = (x.to(wide) * scale).to(kind)
        return normed * get(f"{name}.weight").to(kind) if name else normed

    def gelu(x: Any) -> Any:
        return torch.nn.functional.gelu(x, approximate="tanh")

    def looked_up(name: str) -> Any:
        rows = get(f"{name}.weight").index_select(0, ids)
        return dequantised(rows, head).to(kind)

    def rotate(x: Any, turns: Any) -> Any:
        cos, sin = (turns[:n, None, :, i].to(kind) for i in (0, 1))
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attention(q: Any, k: Any, v: Any, window: int | None) -> Any:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        outs = []
        for start in range(0, n, _ROWS):
            rows = q[start : start + _ROWS].transpose(0, 1)
            end = start + rows.shape[1]
            low = max(0, start - (window or n) + 1)
            at = torch.arange(start, end, device=q.device)[:, None]
            key = torch.arange(low, end, device=q.device)[None]
            hidden = (key > at) | (key <= at - (window or n + 1))
            scores = (rows @ k[:, low:end].transpose(1, 2)).to(wide)
            weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1).to(kind)
            outs.append((weights @ v[:, low:end]).transpose(0, 1))
        return torch.cat(outs).reshape(n, -1)

    with torch.no_grad():
        x = looked_up("model.embed_tokens") * m.hidden**0.5
        own = looked_up("model.embed_tokens_per_layer") * m.ple**0.5
        projected = product(x, "model.per_layer_model_projection") / m.hidden**0.5
        projected = norm(projected.view(n, m.layers, m.ple), "model.per_layer_projection_norm")
        told = (projected + own.view(n, m.layers, m.ple)) / 2**0.5
        caches: dict[int, tuple[Any, Any]] = {}
        x = x.to(wide)
        turns = [torch.from_numpy(turns_of(spec, n, far)).to(ids.device) for far in (False, True)]
        for index, layer in enumerate(spec.layers):
            at, turn = f"model.layers.{index}.", turns[layer.window is None]
            h = norm(x, f"{at}input_layernorm")
            made = {
                name: product(h, f"{at}self_attn.{name}_proj").view(n, -1, layer.head_dim)
                for name in ("qkv" if layer.owns_kv else "q")
            }
            queries = rotate(norm(made["q"], f"{at}self_attn.q_norm"), turn)
            if layer.owns_kv:
                keys = rotate(norm(made["k"], f"{at}self_attn.k_norm"), turn)
                caches[index] = keys, norm(made["v"])
            out = attention(queries, *caches[spec.sources[index]], layer.window)
            x = x + norm(product(out, f"{at}self_attn.o_proj"), f"{at}post_attention_layernorm").to(wide)
            h = norm(x, f"{at}pre_feedforward_layernorm")
            inner = gelu(product(h, f"{at}mlp.gate_proj")) * product(h, f"{at}mlp.up_proj")
            x = x + norm(product(inner, f"{at}mlp.down_proj"), f"{at}post_feedforward_layernorm").to(wide)
            size = x.square().mean(-1, keepdim=True).sqrt()  # the residual itself may not fit float16
            gate = (product((x / size).to(kind), f"{at}per_layer_input_gate").to(wide) * size).to(kind)
            branch = product(gelu(gate) * told[:, index], f"{at}per_layer_projection")
            x = x + norm(branch, f"{at}post_per_layer_input_norm").to(wide)
            x = x * float(get(f"{at}layer_scalar")[0])
        found = product(norm(x[first:], "model.norm"), "model.embed_tokens", head)
        return m.softcap * torch.tanh(found / m.softcap) if m.softcap else found
