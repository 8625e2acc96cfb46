"""A checkpoint's own word of what it is: config.json beside safetensors files, or a GGUF file's fields."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rooflab.engine import gemma
from rooflab.engine.decoder import Engine
from rooflab.engine.files import LARGEST_JSON, from_gguf, from_safetensors
from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors, pack
from rooflab.errors import UsageError
from rooflab.numerics import gguf, model_shapes
from rooflab.numerics.rotary import RopeScaling
from rooflab.ops.decoder_operands import Shape

MOST_TOKENS = 1 << 20  # that an engine is given room for
_BIASED = {"qwen2": True, "llama": False, "mistral": False}  # queries, keys and values


def opened(path: Path | str, on: str = "gpu") -> tuple[Spec | gemma.Spec, Tensors]:
    """Spec and tensors of a checkpoint: a folder with config.json and safetensors files, or a GGUF file.

    UsageError, in a sentence, for what is no checkpoint, is damaged, or is a model that no engine here runs.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        described = _spec_of_gguf(path)
        return described, from_gguf(described, path, on)
    spec = spec_of(path)
    return spec, from_safetensors(spec, path, on)


def spec_of(folder: Path | str) -> Spec | gemma.Spec:
    """The model that a folder's config.json describes."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise UsageError(
            f"{folder} holds no config.json: give a transformers checkpoint's folder, or a .gguf."
        )
    with _described(file, "is not what transformers writes"):
        if file.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it has more than {LARGEST_JSON} bytes")
        config = json.loads(file.read_text(encoding="utf-8"))
        config = config.get("text_config", config)  # of a model that sees and hears, what speaks
        kind = config.get("model_type")
        if kind in ("gemma4", "gemma4_text"):
            return _gemma(file, config)
        if kind not in _BIASED:
            raise UsageError(f"{file} is of a {kind}; the engines run {', '.join(_BIASED)} and gemma4.")
        return _plain(file, config)


@contextmanager
def _described(file: Path, wrong: str) -> Iterator[None]:
    """Turn whatever reading a description trips over into a sentence about the file."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"{file} {wrong}: it has no {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{file} {wrong}: it is nested too deeply.") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise UsageError(f"{file} {wrong}: {error}.") from error


def _whole(config: Mapping[str, Any], name: str, least: int = 1) -> int:
    """A size; ValueError for what is no whole number, or none that an index of 32 bits reaches."""
    value = config[name]
    if type(value) is not int or not least <= value < 1 << 31:
        raise ValueError(f"{name} is {reprlib.repr(value)}, not a whole number from {least} on")
    return value


def _positive(config: Mapping[str, Any], name: str) -> float:
    value = config[name]
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {reprlib.repr(value)}, not a number above 0")
    return float(value)


def _plain(file: Path, config: Mapping[str, Any]) -> Spec:
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 1e4)}
    stretch = config.get("rope_scaling") or rope
    scaled = stretch.get("rope_type", "default")
    windowed = config.get("use_sliding_window", config["model_type"] == "mistral") and config.get(
        "sliding_window"
    )
    biased = bool(config.get("attention_bias", _BIASED[config["model_type"]]))
    for refused, what in (
        (scaled not in ("default", "llama3"), f"rotary angles of the kind {scaled}"),
        (windowed, f"a window of {config.get('sliding_window')}"),
        (config.get("hidden_act", "silu") != "silu", f"the activation {config.get('hidden_act')}"),
        (config.get("mlp_bias") or (biased and config["model_type"] != "qwen2"), "biases in other places"),
    ):
        if refused:
            raise UsageError(f"{file} asks for {what}, which the engine does not have.")
    heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    shape = _shape(
        _whole(config, "num_hidden_layers"),
        hidden,
        _whole(config, "intermediate_size"),
        heads,
        _whole(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads,
        _whole(config, "head_dim") if config.get("head_dim") is not None else hidden // heads,
        _whole(config, "vocab_size"),
        _positive(config, "rms_norm_eps"),
    )
    tied = bool(config["tie_word_embeddings"])
    scaling = _scaling(stretch) if scaled == "llama3" else None
    return Spec(file.parent.name, shape, _positive(rope, "rope_theta"), biased, tied, scaling=scaling)


def _scaling(stretch: Mapping[str, Any]) -> RopeScaling:
    """How a config.json stretches rotary angles; ValueError where its numbers are in the wrong order."""
    low, high = _positive(stretch, "low_freq_factor"), _positive(stretch, "high_freq_factor")
    if high <= low:
        raise ValueError(f"high_freq_factor is {high}, not above low_freq_factor, {low}")
    original = _whole(stretch, "original_max_position_embeddings")
    return RopeScaling(_positive(stretch, "factor"), low, high, original)


def _shape(*sizes: Any) -> Shape:
    """The sizes, once they agree with each other."""
    shape = Shape(*sizes)
    if shape.heads % shape.kv_heads:
        raise ValueError(f"{shape.heads} query heads cannot share {shape.kv_heads} of keys and values")
    if shape.head_dim < 2 or shape.head_dim % 2:
        raise ValueError(f"heads of {shape.head_dim} have no pairs to turn")
    return shape


def _gemma(file: Path, config: Mapping[str, Any]) -> gemma.Spec:
    kinds = config["layer_types"]
    every = kinds.index("full_attention") + 1
    window, wide = config["rope_parameters"]["sliding_attention"], config["rope_parameters"]["full_attention"]
    own = (config.get("per_layer_config") or {}).get(str(every - 1), {})
    renamed = {"global_head_dim": own["head_dim"]} if own.get("head_dim") is not None else {}
    layers, ple = _whole(config, "num_hidden_layers"), _whole(config, "hidden_size_per_layer_input", 0)
    pattern = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(len(kinds))]
    for refused, what in (
        (kinds != pattern or len(kinds) != layers, "layers in another order"),
        (not ple, "no embeddings a layer"),
        (config.get("enable_moe_block"), "a mixture of experts"),
        (config.get("use_double_wide_mlp"), "MLPs of double width"),
        (config.get("attention_k_eq_v"), "keys that serve as values"),
        (config.get("attention_bias"), "biases"),
        (not config.get("tie_word_embeddings", True), "a head of its own"),
        (config["vocab_size_per_layer_input"] != config["vocab_size"], "two vocabularies"),
        (window["rope_type"] != "default" or wide["rope_type"] != "proportional", "other rotary angles"),
        (
            own.get("num_key_value_heads", config["num_key_value_heads"]) != config["num_key_value_heads"],
            "uneven keys",
        ),
    ):
        if refused:
            raise UsageError(f"{file} asks for {what}, which the engine does not have.")
    cap = config["final_logit_softcapping"]
    model = model_shapes.Model(
        *(file.parent.name, "", layers, _whole(config, "hidden_size"), _whole(config, "intermediate_size")),
        *(_whole(config, "num_attention_heads"), _whole(config, "num_key_value_heads")),
        *(_whole(config, "head_dim"), _whole(config, "vocab_size")),
        0.0,
        tied=True,
        window=_whole(config, "sliding_window"),
        global_every=every,
        global_head_dim=_whole({"global_head_dim": 512, **config, **renamed}, "global_head_dim"),
        shared_kv=_whole(config, "num_kv_shared_layers", 0),
        ple=ple,
        softcap=None if cap is None else _positive(config, "final_logit_softcapping"),
    )
    turned, epsilon = _positive(wide, "partial_rotary_factor"), _positive(config, "rms_norm_eps")
    for width in (model.head_dim, model.global_head_dim):
        _shape(layers, model.hidden, model.mlp, model.heads, model.kv_heads, width, model.vocab)
    if model.shared_kv > layers - every or turned > 1:
        raise ValueError(
            "no layer is left whose keys and values the others share, or more is turned than all"
        )
    theta, wide_theta = _positive(window, "rope_theta"), _positive(wide, "rope_theta")
    return gemma.Spec(file.parent.name, model, theta, wide_theta, turned, epsilon)


def _spec_of_gguf(path: Path) -> Spec:
    fields, tensors = gguf.opened(path)
    with _described(path, "does not describe a model"):
        kind = fields["general.architecture"]
        if kind not in ("qwen2", "llama"):
            raise UsageError(f"{path} is of a {kind}; the engine reads GGUF files of qwen2 and llama.")
        if fields.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in tensors:
            raise UsageError(f"{path} asks for scaled rotary angles, which the engine does not have.")
        if f"{kind}.expert_count" in fields:
            raise UsageError(f"{path} asks for a mixture of experts, which the engine does not have.")
        own = {name.removeprefix(f"{kind}."): value for name, value in fields.items()}
        heads, hidden = _whole(own, "attention.head_count"), _whole(own, "embedding_length")
        defaults = {
            "attention.head_count_kv": heads,
            "attention.key_length": hidden // heads,
            "rope.freq_base": 1e4,
        }
        own = {**defaults, **own}
        shape = _shape(
            _whole(own, "block_count"),
            hidden,
            _whole(own, "feed_forward_length"),
            heads,
            _whole(own, "attention.head_count_kv"),
            _whole(own, "attention.key_length"),
            tensors["token_embd.weight"].shape[0],
            _positive(own, "attention.layer_norm_rms_epsilon"),
        )
        theta = _positive(own, "rope.freq_base")
    biased, tied = "blk.0.attn_q.bias" in tensors, "output.weight" not in tensors
    return Spec(path.stem, shape, theta, biased, tied)


def engine_of(
    path: Path | str,
    format: str = "fp16",
    head_format: str = "fp16",
    *,
    capacity: int = 4096,
    on: str = "gpu",
) -> Engine | gemma.Engine:
    """An engine that runs a checkpoint, its weights in these formats, with room for `capacity` tokens."""
    if capacity > MOST_TOKENS:
        raise UsageError(f"Room for {capacity} tokens was asked for; an engine has it for {MOST_TOKENS}.")
    spec, get = opened(path, on)
    if isinstance(spec, gemma.Spec):
        return gemma.Engine(spec, gemma.pack(spec, get, format, head_format, capacity=capacity))
    return Engine(spec, pack(spec, get, format, head_format, capacity=capacity))
