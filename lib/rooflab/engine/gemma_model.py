"""Gemma 4's kind of decoder: its shape, a checkpoint's tensors, and the weights as kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rooflab.engine import weights as plain
from rooflab.engine.weights import Tensors
from rooflab.errors import UsageError
from rooflab.numerics import model_shapes, rotary
from rooflab.ops import decoder, int4


@dataclass(frozen=True)
class Spec:
    """A decoder of Gemma 4's kind: its shape, and of its rotary angles the bases and, in layers that see
    everything, the share of a head that is turned.
    """

    name: str
    model: model_shapes.Model
    theta: float = 1e4
    global_theta: float = 1e6
    turned: float = 0.25
    epsilon: float = 1e-6

    @property
    def layers(self) -> list[model_shapes.Layer]:
        return model_shapes.layers(self.model)

    @property
    def sources(self) -> list[int]:
        """The layer whose keys and values each layer reads: its own, or the last of its kind that has any."""
        layers = self.layers
        owners = {layer.window: i for i, layer in enumerate(layers) if layer.owns_kv}
        return [i if layer.owns_kv else owners[layer.window] for i, layer in enumerate(layers)]

    @property
    def head(self) -> decoder.Shape:
        """The head as decode_step knows it: a decoder without layers."""
        m = self.model
        return decoder.Shape(0, m.hidden, m.hidden, 1, 1, 128, m.vocab, self.epsilon, m.softcap or 0.0)

    def names(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a checkpoint that the engine reads and its shape, as transformers names them."""
        m = self.model
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (m.vocab, m.hidden),
            "model.embed_tokens_per_layer.weight": (m.vocab, m.layers * m.ple),
            "model.per_layer_model_projection.weight": (m.layers * m.ple, m.hidden),
            "model.per_layer_projection_norm.weight": (m.ple,),
        }
        for index, layer in enumerate(self.layers):
            at, d = f"model.layers.{index}.", layer.head_dim
            heads = {"q": m.heads, **({"k": m.kv_heads, "v": m.kv_heads} if layer.owns_kv else {})}
            for name, count in heads.items():
                found[f"{at}self_attn.{name}_proj.weight"] = (count * d, m.hidden)
                if name != "v":
                    found[f"{at}self_attn.{name}_norm.weight"] = (d,)
            found[f"{at}self_attn.o_proj.weight"] = (m.hidden, m.heads * d)
            for name in ("gate", "up"):
                found[f"{at}mlp.{name}_proj.weight"] = (m.mlp, m.hidden)
            found[f"{at}mlp.down_proj.weight"] = (m.hidden, m.mlp)
            found[f"{at}per_layer_input_gate.weight"] = (m.ple, m.hidden)
            found[f"{at}per_layer_projection.weight"] = (m.hidden, m.ple)
            for name in _NORMS:
                found[f"{at}{name}.weight"] = (m.hidden,)
            found[f"{at}layer_scalar"] = (1,)
        found["model.norm.weight"] = (m.hidden,)
        return found


_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_per_layer_input_norm",
)


def spec(name: str = "gemma-4-e4b") -> Spec:
    """The engine's view of a model of the table of shapes. UsageError for one that is not of this kind."""
    model = model_shapes.get(name)
    if not (model.ple and model.global_every and model.window and model.tied):
        raise UsageError(f"engine.gemma runs models of the kind of Gemma 4 E4B, which {name} is not.")
    return Spec(name, model)


# --- weights ------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A layer's matrices (FP16 [n, k], Planes or Tiles), its norms in the order of _NORMS and those of
    queries and keys, all FP16, and the factor of what leaves it.
    """

    qkv: Any
    out: Any
    gate_up: Any
    down: Any
    told_gate: Any
    told_out: Any
    norms: Sequence[Any]
    query_norm: Any
    key_norm: Any
    factor: float


class Weights(NamedTuple):
    """What the decoder reads. The tables of embeddings (FP16 or Planes) are in the head's format; rotary
    [capacity, head_dim / 2, 2] FP32 are of windowed layers and of the others.
    """

    format: str
    head_format: str
    layers: Sequence[Layer]
    told_model: Any
    told_norm: Any
    told_table: Any
    embedding: Any
    norm: Any
    rotary: tuple[Any, Any]


def random_tensors(spec: Spec, seed: int = 20261121, on: str = "gpu") -> Tensors:
    """A checkpoint of random numbers (see engine.weights), queries and keys weighted so that their scores
    are of the size of those of other models; layers leave out about what they were given.
    """
    base = plain.random_tensors(spec, seed, on)

    def get(name: str) -> Any:
        values = base(name)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            values *= len(values) ** -0.25
        return values + 1 if name.endswith("layer_scalar") else values

    return get


def random_weights(
    spec: Spec,
    format: str = "fp16",
    head_format: str = "fp16",
    *,
    capacity: int = 4096,
    on: str = "gpu",
    seed: int = 20261121,
) -> Weights:
    """Random weights of the exact shapes."""
    return pack(spec, random_tensors(spec, seed, on), format, head_format, capacity=capacity)


def pack(
    spec: Spec, get: Tensors, format: str = "fp16", head_format: str = "fp16", *, capacity: int = 4096
) -> Weights:
    """A checkpoint's tensors in what the kernels read: queries, keys and values in one matrix, gate and up in
    another.
    """
    plain.check_formats(format, head_format)

    def matrix(*names: str, format: str = format) -> Any:
        parts = [get(f"{name}.weight") for name in names]
        whole = plain.joined(parts) if len(parts) > 1 else parts[0]
        packed = plain.packed(whole, format)
        return int4.Tiles(packed, *whole.shape) if format == "int4_g128" else packed

    def norm(name: str) -> Any:
        return plain.to_fp16(get(f"{name}.weight"))

    layers = []
    for index, layer in enumerate(spec.layers):
        at = f"model.layers.{index}."
        own = "qkv" if layer.owns_kv else "q"
        layers.append(
            Layer(
                qkv=matrix(*(f"{at}self_attn.{name}_proj" for name in own)),
                out=matrix(f"{at}self_attn.o_proj"),
                gate_up=matrix(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
                down=matrix(f"{at}mlp.down_proj"),
                told_gate=matrix(f"{at}per_layer_input_gate"),
                told_out=matrix(f"{at}per_layer_projection"),
                norms=[norm(at + name) for name in _NORMS],
                query_norm=norm(f"{at}self_attn.q_norm"),
                key_norm=norm(f"{at}self_attn.k_norm") if layer.owns_kv else None,
                factor=float(get(f"{at}layer_scalar")[0]),
            )
        )
    last = norm("model.norm")
    rotary = [plain.beside(rotary_of(spec, capacity, everything), last) for everything in (False, True)]
    return Weights(
        format,
        head_format,
        layers,
        told_model=matrix("model.per_layer_model_projection"),
        told_norm=norm("model.per_layer_projection_norm"),
        told_table=matrix("model.embed_tokens_per_layer", format=head_format),
        embedding=matrix("model.embed_tokens", format=head_format),
        norm=last,
        rotary=(rotary[0], rotary[1]),
    )


def rotary_of(spec: Spec, capacity: int, everything: bool) -> np.ndarray:
    """Cosine and sine of every position's rotary angles, [capacity, head_dim / 2, 2] FP32: in layers that see
    everything only the first of a head's pairs are turned.
    """
    if not everything:
        return rotary.rotations(capacity, spec.model.head_dim, spec.theta)
    head_dim = spec.model.global_head_dim or spec.model.head_dim
    found = rotary.rotations(capacity, head_dim, spec.global_theta)
    found[:, int(spec.turned * head_dim // 2) :] = (1, 0)
    return found
