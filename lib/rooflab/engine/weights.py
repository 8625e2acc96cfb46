"""Weights of a decoder: from a checkpoint's tensors, or random, into what the kernels read.

A checkpoint is a function from a tensor's name, as transformers spells it, to its values (NumPy on the
CPU, torch on the GPU), so that files, models in memory and random numbers all come in by the same door.
Formats: fp16, q8_0 (planes), int4_g128 (tiles); the head has one of its own, fp16 or q8_0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rooflab.engine.spec import Spec
from rooflab.errors import UsageError
from rooflab.numerics import quant, rotary
from rooflab.numerics.quant import Planes
from rooflab.ops import decoder, decoder_plan, int4

Tensors = Callable[[str], Any]  # FP16 or FP32
_ROWS = 1 << 26  # elements quantised at a time on the GPU


def names(spec: Any) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint and its shape, as transformers names them."""
    if not isinstance(spec, Spec):  # another kind of decoder, which knows its own
        return spec.names()
    s = spec.shape
    kv = s.kv_heads * s.head_dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (s.vocab, s.hidden)}
    for layer in range(s.layers):
        at = f"model.layers.{layer}."
        for name, n in (("q", s.attended), ("k", kv), ("v", kv)):
            found[f"{at}self_attn.{name}_proj.weight"] = (n, s.hidden)
            if spec.biased:
                found[f"{at}self_attn.{name}_proj.bias"] = (n,)
        found[f"{at}self_attn.o_proj.weight"] = (s.hidden, s.attended)
        for name in ("gate", "up"):
            found[f"{at}mlp.{name}_proj.weight"] = (s.mlp, s.hidden)
        found[f"{at}mlp.down_proj.weight"] = (s.hidden, s.mlp)
        for name in ("input", "post_attention"):
            found[f"{at}{name}_layernorm.weight"] = (s.hidden,)
    found["model.norm.weight"] = (s.hidden,)
    if not spec.tied:
        found["lm_head.weight"] = (s.vocab, s.hidden)
    return found


def random_tensors(spec: Any, seed: int = 20261121, on: str = "gpu") -> Tensors:
    """A checkpoint of random numbers, made when asked for, the same whenever: matrices about N(0, 1) /
    sqrt(k), norms about 1, biases about 0.
    """
    shapes = names(spec)
    places = {name: i for i, name in enumerate(shapes)}

    def get(name: str) -> Any:
        shape, width = shapes[name], shapes[name][-1]
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        spread = 0.1 if len(shape) == 1 else 0.02 if "embed" in name else width**-0.5
        if on == "cpu":
            values = np.random.default_rng((seed, places[name])).standard_normal(shape, np.float32)
            return (centre + spread * values).astype(np.float16)
        import torch

        generator = torch.Generator("cuda").manual_seed(seed + places[name])
        values = torch.empty(shape, dtype=torch.float16, device="cuda")
        return values.normal_(centre, spread, generator=generator)

    return get


def random_weights(
    spec: Spec,
    format: str = "fp16",
    head_format: str = "fp16",
    *,
    capacity: int = 4096,
    on: str = "gpu",
    seed: int = 20261121,
) -> decoder.Weights:
    """Random weights of the exact shapes."""
    return pack(spec, random_tensors(spec, seed, on), format, head_format, capacity=capacity)


def check_formats(format: str, head_format: str) -> None:
    """UsageError unless weights are kept in `format` and a head in `head_format`."""
    if format not in decoder.FORMATS or head_format not in decoder.FORMATS[:2]:
        raise UsageError(
            f"Weights are {', '.join(decoder.FORMATS)}, a head {' or '.join(decoder.FORMATS[:2])}, "
            f"not {format} and {head_format}."
        )


def pack(
    spec: Spec, get: Tensors, format: str = "fp16", head_format: str = "fp16", *, capacity: int = 4096
) -> decoder.Weights:
    """A checkpoint's tensors in the order and format that decode_step reads."""
    check_formats(format, head_format)
    shape = spec.shape
    decoder_plan.check_sizes(shape, format, head_format)
    piles = {name: _Pile(shape.layers) for name in ("qkv", "out", "gate_up", "down")}
    norms, biases = [], []
    for layer in range(shape.layers):
        here = f"model.layers.{layer}."
        rows = [get(f"{here}self_attn.{name}_proj.weight") for name in "qkv"]
        piles["qkv"].add(packed(decoder.pair_heads(joined(rows), shape.head_dim), format))
        piles["out"].add(packed(get(f"{here}self_attn.o_proj.weight"), format))
        both = _stacked([get(f"{here}mlp.{name}_proj.weight") for name in ("gate", "up")])
        piles["gate_up"].add(packed(decoder.pair_gates(both), format))
        del both
        piles["down"].add(packed(get(f"{here}mlp.down_proj.weight"), format))
        norms += [get(f"{here}{name}_layernorm.weight") for name in ("input", "post_attention")]
        if spec.biased:
            bias = joined([get(f"{here}self_attn.{name}_proj.bias") for name in "qkv"])
            biases.append(decoder.pair_heads(bias, shape.head_dim))
    norms.append(get("model.norm.weight"))
    embedding = packed(get("model.embed_tokens.weight"), head_format)
    head = embedding if spec.tied else packed(get("lm_head.weight"), head_format)
    all_norms = to_fp16(_stacked(norms))
    if biases:
        bias = to_fp16(_stacked(biases))
    else:
        bias = _zeros((shape.layers, shape.projected), "float16", all_norms)
    turns = rotary.rotations(capacity, shape.head_dim, spec.theta, spec.scaling)
    matrices = {name: pile.whole for name, pile in piles.items()}
    return decoder.Weights(
        format,
        head_format,
        **matrices,
        head=head,
        embedding=embedding,
        norms=all_norms,
        biases=bias,
        rotations=beside(turns, all_norms),
    )


def packed(rows: Any, format: str) -> Any:
    """A matrix [n, k] FP16 in a format, contiguous."""
    if format == "fp16":
        return to_fp16(rows)
    if isinstance(rows, np.ndarray):
        if format == "q8_0":
            return quant.to_planes(quant.quantise_q8_0(rows))
        return int4.repack(*quant.quantise_int4(rows)).blocks
    return _q8_on_gpu(rows) if format == "q8_0" else _int4_on_gpu(rows)


def _over(values: Any, by: float) -> Any:
    """values / by, rounded as IEEE says: by a number torch would multiply with its inverse."""
    import torch

    return values / torch.full_like(values, by)


def _q8_on_gpu(rows: Any) -> Planes:
    """formats.quantise_q8_0 in torch, bit for bit, as planes."""
    import torch

    n, k = rows.shape
    quants = torch.empty((n, k), dtype=torch.int8, device=rows.device)
    scales = torch.empty((n, k // 32), dtype=torch.float16, device=rows.device)
    step = max(1, _ROWS // k)
    for i in range(0, n, step):
        blocks = rows[i : i + step].float().reshape(-1, k // 32, 32)
        d = _over(blocks.abs().amax(-1), 127)
        inverse = torch.nan_to_num(1 / d, posinf=0.0)
        wide = (blocks * inverse[..., None]).double()
        quants[i : i + step] = torch.trunc(wide + torch.copysign(torch.full_like(wide, 0.5), wide)).reshape(
            -1, k
        )
        scales[i : i + step] = d.half()
    return Planes(scales, quants)


def _int4_on_gpu(rows: Any) -> Any:
    """formats.quantise_int4 in torch, bit for bit, in tile order."""
    import cupy
    import torch

    n, k = rows.shape
    words = torch.empty((n, k // 8), dtype=torch.int32, device=rows.device)
    scales = torch.empty((n, k // 128), dtype=torch.float16, device=rows.device)
    places = torch.arange(0, 32, 4, device=rows.device)
    step = max(1, _ROWS // k)
    for i in range(0, n, step):
        groups = rows[i : i + step].float().reshape(-1, k // 128, 128)
        scale = _over(groups.abs().amax(-1), 7).clamp_min(2.0**-24).half()
        codes = (groups / scale.float()[..., None]).round().clamp(-7, 7).long() + 8
        packed = (codes.reshape(-1, k // 8, 8) << places).sum(-1)
        words[i : i + step] = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()
        scales[i : i + step] = scale
    tiles = int4.repack(cupy.from_dlpack(words), cupy.from_dlpack(scales))
    return torch.from_dlpack(tiles.blocks.view(cupy.int32))


def dequantised(rows: Any, format: str) -> Any:
    """The values [n, k] that a matrix [n, k] stands for once it is in a format: FP32, for oracles."""
    if format == "fp16":
        return np.asarray(rows, np.float32) if isinstance(rows, np.ndarray) else rows.float()
    if isinstance(rows, np.ndarray):
        if format == "q8_0":
            return quant.dequantise_q8(quant.quantise_q8_0(rows))
        return quant.dequantise_int4(quant.quantise_int4(rows))
    if format == "q8_0":
        planes: Any = _q8_on_gpu(rows)
        return planes.quants.float() * planes.scales.float().repeat_interleave(32, 1)
    groups = rows.float().reshape(rows.shape[0], -1, 128)
    scale = _over(groups.abs().amax(-1, keepdim=True), 7).clamp_min(2.0**-24).half().float()
    return ((groups / scale).round().clamp(-7, 7) * scale).reshape(rows.shape)


# --- NumPy and torch alike ----------------------------------------------------------------------------------


def joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def _stacked(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts)
    import torch

    return torch.stack(parts)


class _Pile:
    """Matrices of all layers as one array a plane, `whole`, which is filled as they are added: a model that
    fills a GPU has no room for a second copy of them.
    """

    def __init__(self, layers: int):
        self.layers, self.count = layers, 0
        self.whole: Any = None

    def add(self, matrix: Any) -> None:
        """The next layer's matrix: an array, or Planes."""
        if self.whole is None:
            made = [_empty((self.layers, *part.shape), part) for part in _planes(matrix)]
            self.whole = Planes(*made) if isinstance(matrix, Planes) else made[0]
        for whole, part in zip(_planes(self.whole), _planes(matrix), strict=True):
            whole[self.count] = part
        self.count += 1


def _planes(matrix: Any) -> tuple[Any, ...]:
    return tuple(matrix) if isinstance(matrix, Planes) else (matrix,)


def _empty(shape: tuple[int, ...], like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype)
    import torch

    return torch.empty(shape, dtype=like.dtype, device=like.device)


def to_fp16(array: Any) -> Any:
    """The array in FP16, contiguous."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array, np.float16)
    return array.half().contiguous()


def _zeros(shape: tuple[int, ...], dtype: str, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.zeros(shape, dtype)
    import torch

    return torch.zeros(shape, dtype=getattr(torch, dtype), device=like.device)


def beside(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)
