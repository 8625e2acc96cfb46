"""A checkpoint's own word of what it is: config.json beside safetensors files, or a GGUF file's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooflab import shapes
from rooflab.engine import gemma
from rooflab.engine.decoder import Engine
from rooflab.engine.files import from_gguf, from_safetensors
from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors, pack
from rooflab.errors import UsageError
from rooflab.gguf_file import _gguf
from rooflab.ops.decoder import Shape

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
    try:
        config = json.loads(file.read_text())
        config = config.get("text_config", config)  # of a model that sees and hears, what speaks
        kind = config.get("model_type")
        if kind in ("gemma4", "gemma4_text"):
            return _gemma(file, config)
        if kind not in _BIASED:
            raise UsageError(f"{file} is of a {kind}; the engines run {', '.join(_BIASED)} and gemma4.")
        return _plain(file, config)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(f"{file} is not what transformers writes: {error!r} came of reading it.") from error


def _plain(file: Path, config: Mapping[str, Any]) -> Spec:
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 1e4)}
    scaled = (config.get("rope_scaling") or rope).get("rope_type", "default")
    windowed = config.get("use_sliding_window", config["model_type"] == "mistral") and config.get(
        "sliding_window"
    )
    biased = bool(config.get("attention_bias", _BIASED[config["model_type"]]))
    for refused, what in (
        (scaled != "default", f"rotary angles of the kind {scaled}"),
        (windowed, f"a window of {config.get('sliding_window')}"),
        (config.get("hidden_act", "silu") != "silu", f"the activation {config.get('hidden_act')}"),
        (config.get("mlp_bias") or (biased and config["model_type"] != "qwen2"), "biases in other places"),
    ):
        if refused:
            raise UsageError(f"{file} asks for {what}, which the engine does not have.")
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    shape = Shape(
        int(config["num_hidden_layers"]),
        hidden,
        int(config["intermediate_size"]),
        heads,
        int(config.get("num_key_value_heads") or heads),
        int(config.get("head_dim") or hidden // heads),
        int(config["vocab_size"]),
        float(config["rms_norm_eps"]),
    )
    return Spec(
        file.parent.name, shape, float(rope["rope_theta"]), biased, bool(config["tie_word_embeddings"])
    )


def _gemma(file: Path, config: Mapping[str, Any]) -> gemma.Spec:
    kinds = config["layer_types"]
    every = kinds.index("full_attention") + 1
    window, wide = config["rope_parameters"]["sliding_attention"], config["rope_parameters"]["full_attention"]
    own = (config.get("per_layer_config") or {}).get(str(every - 1), {})
    layers, ple = int(config["num_hidden_layers"]), int(config["hidden_size_per_layer_input"] or 0)
    pattern = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    for refused, what in (
        (kinds != pattern, "layers in another order"),
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
    model = shapes.Model(
        *(file.parent.name, "", layers, int(config["hidden_size"]), int(config["intermediate_size"])),
        *(int(config["num_attention_heads"]), int(config["num_key_value_heads"]), int(config["head_dim"])),
        *(int(config["vocab_size"]), 0.0),
        tied=True,
        window=int(config["sliding_window"]),
        global_every=every,
        global_head_dim=int(own.get("head_dim") or config.get("global_head_dim") or 512),
        shared_kv=int(config["num_kv_shared_layers"]),
        ple=ple,
        softcap=config["final_logit_softcapping"],
    )
    turned, epsilon = float(wide["partial_rotary_factor"]), float(config["rms_norm_eps"])
    return gemma.Spec(
        file.parent.name, model, float(window["rope_theta"]), float(wide["rope_theta"]), turned, epsilon
    )


def _spec_of_gguf(path: Path) -> Spec:
    if not path.is_file():
        raise UsageError(f"{path} does not exist, so no weights can be read from it.")
    try:
        reader = _gguf().GGUFReader(str(path))
        fields = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("tokenizer.")
        }
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        kind = fields["general.architecture"]
        if kind not in ("qwen2", "llama"):
            raise UsageError(f"{path} is of a {kind}; the engine reads GGUF files of qwen2 and llama.")
        if fields.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in tensors:
            raise UsageError(f"{path} asks for scaled rotary angles, which the engine does not have.")
        if f"{kind}.expert_count" in fields:
            raise UsageError(f"{path} asks for a mixture of experts, which the engine does not have.")
        get = lambda name: fields[f"{kind}.{name}"]  # noqa: E731
        heads, hidden = int(get("attention.head_count")), int(get("embedding_length"))
        shape = Shape(
            int(get("block_count")),
            hidden,
            int(get("feed_forward_length")),
            heads,
            int(fields.get(f"{kind}.attention.head_count_kv", heads)),
            int(fields.get(f"{kind}.attention.key_length", hidden // heads)),
            int(tensors["token_embd.weight"].shape[1]),
            float(get("attention.layer_norm_rms_epsilon")),
        )
        theta = float(fields.get(f"{kind}.rope.freq_base", 1e4))
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise UsageError(f"{path} is no whole GGUF file of a model: {error!r} came of reading it.") from error
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
    spec, get = opened(path, on)
    if isinstance(spec, gemma.Spec):
        return gemma.Engine(spec, gemma.pack(spec, get, format, head_format, capacity=capacity))
    return Engine(spec, pack(spec, get, format, head_format, capacity=capacity))
