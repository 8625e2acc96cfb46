"""What the engine must know of a model: its shape and what tells Qwen2 from LLaMA."""

from __future__ import annotations

from dataclasses import dataclass

from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.numerics.rotary import RopeScaling
from rooflab.ops.decoder_operands import Shape

# Base of the rotary angles, epsilon of the norms, and whether queries, keys and values have biases, from
# config.json of each checkpoint on the Hugging Face hub.
_FAMILIES = {
    "qwen2": (1e6, 1e-6, True),
    "llama-2": (1e4, 1e-5, False),
    "llama-3": (5e5, 1e-5, False),
    "mistral": (1e4, 1e-5, False),
    "yi": (5e6, 1e-5, False),
}
_SCALED = {"llama-3.2": RopeScaling(32.0, 1.0, 4.0, 8192)}


@dataclass(frozen=True)
class Spec:
    """A decoder of the Qwen2 or LLaMA kind: norm before each half of a layer, rotary positions, query heads
    that share keys and values, SiLU-gated MLP; biases on queries, keys and values or none; a head of its own
    or the embedding's weights. `parts`: how many processes it was split into; `shape` is one's share.
    `scaling`: how rotary angles are stretched, if they are.
    """

    name: str
    shape: Shape
    theta: float
    biased: bool
    tied: bool
    parts: int = 1
    scaling: RopeScaling | None = None


def spec(name: str) -> Spec:
    """The engine's view of a model of the table of shapes. UsageError for one that it cannot run."""
    model = model_shapes.get(name)
    family = next((f for f in _FAMILIES if name.startswith((f, f.replace("2", "2.5")))), None)
    plain = model.gated and model.experts == 1 and not (model.ple or model.shared_kv or model.global_every)
    if family is None or not plain or name.startswith(("mixtral", "mistral-nemo")):
        raise UsageError(f"The engine runs models of the kind of Qwen2 and LLaMA, which {name} is not.")
    theta, epsilon, biased = _FAMILIES[family]
    sizes = (model.layers, model.hidden, model.mlp, model.heads, model.kv_heads, model.head_dim, model.vocab)
    shape, scaling = Shape(*sizes, epsilon, model.softcap or 0.0), _SCALED.get(name.rpartition("-")[0])
    return Spec(name, shape, theta, biased, model.tied, scaling=scaling)
