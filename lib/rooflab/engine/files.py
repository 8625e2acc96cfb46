"""Checkpoints on disk: safetensors files of transformers, and GGUF files in Q8_0, F16 or F32.

Both become a function from a tensor's name, as transformers spells it, to its values, read when asked for; on
the GPU if asked for there. Q8_0 comes as the FP32 numbers that it stands for, which quantise back to the same
bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors, names
from rooflab.errors import UsageError
from rooflab.numerics import gguf
from rooflab.numerics.quant import Q8_0, dequantise_q8, from_bytes

_TYPES = {"F16": "<f2", "F32": "<f4", "BF16": "<u2"}
LARGEST_JSON = 1 << 22  # bytes of a header or a config.json: a hundred times what models have


def from_safetensors(spec: Any, path: Path | str, on: str = "gpu") -> Tensors:
    """The tensors of a checkpoint: a .safetensors file, or a folder of them. UsageError for a file that is
    damaged, a tensor that is missing or of another shape, or of a type other than F16, BF16 and F32.
    """
    path = Path(path)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UsageError(f"{path} holds no .safetensors file.")
    places: dict[str, tuple[Path, str, tuple[int, ...], int]] = {}
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if not 0 < length <= min(size - 8, LARGEST_JSON):
                raise UsageError(f"{file} is no safetensors file: its header does not fit it.")
            try:
                header = json.loads(handle.read(length))
                entries = {k: v for k, v in header.items() if k != "__metadata__"}
                for name, entry in entries.items():
                    start, end = entry["data_offsets"]
                    shape = tuple(entry["shape"])
                    width = np.dtype(_TYPES.get(entry["dtype"], "u1")).itemsize
                    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
                        raise ValueError(name)
                    whole = entry["dtype"] not in _TYPES or end - start == width * math.prod(shape)
                    if not (start <= end <= size - 8 - length and whole):
                        raise ValueError(name)
                    spoken = name.replace("model.language_model.", "model.", 1)  # it may see and hear, too
                    places[spoken] = (file, entry["dtype"], shape, 8 + length + start)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UsageError(f"{file} is cut short or damaged: {error} does not fit.") from error

    def read(name: str) -> np.ndarray:
        file, kind, shape, offset = places[name]
        if kind not in _TYPES:
            raise UsageError(f"{name} is {kind}; the engine reads {', '.join(_TYPES)}.")
        values = np.fromfile(file, _TYPES[kind], math.prod(shape), offset=offset).reshape(shape)
        if kind == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values

    expected = _expected(spec, path, len(places))
    _refuse_undescribed(path, places, expected)
    return _checked(spec, path, expected, places, read, lambda name: places[name][2], on)


def from_gguf(spec: Spec, path: Path | str, on: str = "gpu") -> Tensors:
    """The tensors of a GGUF file in Q8_0, F16 or F32, under transformers' names. UsageError as above.

    Files of the architecture "llama" hold the rows of queries and keys in another order, which is undone.
    """
    path = Path(path)
    file = gguf.opened(path)
    swapped = file.fields.get("general.architecture") == "llama"
    expected = _expected(spec, path, len(file.tensors))
    places = {_gguf_name(name): name for name in expected}
    _refuse_undescribed(path, file.tensors, places)
    known = {ours: file.tensors[theirs] for theirs, ours in places.items() if theirs in file.tensors}

    def read(name: str) -> np.ndarray:
        kind, shape, raw = known[name]
        if kind == "Q8_0":
            values = dequantise_q8(from_bytes(raw.reshape(shape[0], -1), Q8_0))
        elif kind in ("F16", "F32"):
            values = raw.view("<f2" if kind == "F16" else "<f4").reshape(shape)
        else:
            raise UsageError(f"{name} is {kind}; the engine reads Q8_0, F16 and F32 of GGUF files.")
        if swapped and (".q_proj." in name or ".k_proj." in name):
            halves = values.reshape(-1, spec.shape.head_dim // 2, 2, *shape[1:])
            values = halves.swapaxes(1, 2).reshape(shape)
        return values

    return _checked(spec, path, expected, known, read, lambda name: known[name].shape, on)


_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.")


def _refuse_undescribed(path: Path, held: Iterable[str], expected: Iterable[str]) -> None:
    """UsageError for a bias or a layer that the model's description leaves out: without it the tokens would
    be another model's.
    """
    wanted = set(expected)
    layers = {found[1] for name in wanted if (found := _LAYER.match(name))}
    for name in sorted(set(held) - wanted):
        if (layer := _LAYER.match(name)) and (name.endswith(".bias") or layer[1] not in layers):
            raise UsageError(f"{path} holds {name}, which its description of the model leaves out.")


_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    parts = stem.split(".")
    if parts[:2] == ["model", "layers"]:
        return f"blk.{parts[2]}.{_GGUF['.'.join(parts[3:])]}.{kind}"
    return f"{_GGUF[stem]}.{kind}"


def _expected(spec: Any, path: Path | str, tensors: int) -> dict[str, tuple[int, ...]]:
    """The tensors that a model has, once the file is known to hold enough of them for its layers."""
    layers = spec.shape.layers if isinstance(spec, Spec) else spec.model.layers
    if layers > tensors:
        raise UsageError(f"{path} holds {tensors} tensors, too few for the {layers} layers of {spec.name}.")
    return names(spec)


def _checked(
    spec: Any,
    path: Path | str,
    expected: Mapping[str, tuple[int, ...]],
    there: Any,
    read: Callable[[str], np.ndarray],
    shape_of: Callable[[str], tuple[int, ...]],
    on: str,
) -> Tensors:
    """`read` behind a check that all tensors are there and of their shapes."""
    for name, shape in expected.items():
        if name not in there:
            raise UsageError(f"{path} does not hold {name}, which {spec.name} has.")
        if shape_of(name) != shape:
            raise UsageError(f"{path} holds {name} as {shape_of(name)}; {spec.name} has {shape}.")

    def get(name: str) -> Any:
        values = np.array(read(name), copy=True, order="C")
        if on == "cpu":
            return values
        import torch

        return torch.from_numpy(values).cuda()

    return get
