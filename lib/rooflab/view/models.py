"""Models to turn: each law of the course over the quantities it depends on, as an explorer.

    models.explorer("little")     # curves of bandwidth over bytes in flight; choose latency and GPU

A model's table is made by the function that the lessons compute with; the widget in JupyterLab and the page
draw that table, so there is one source of its numbers. GPUs are those of the data sheets: what a 3060 would
do is a choice like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from rooflab.errors import UsageError
from rooflab.hardware import device, roofline
from rooflab.numerics import model_shapes
from rooflab.view.access_diagram import Request
from rooflab.view.explorer import Explorer

GPUS = ("h200", "a100-80gb", "l4", "t4", "rtx-4090", "rtx-3060")
_ROWS, _COLUMNS = 14336, 4096  # of the matrix whose product is turned
_HALF = 2  # bytes of an FP16 number
_DEPTH = 64  # of k that a tile of a product holds at a time


@dataclass(frozen=True)
class Model:
    """A law and what it is turned by: `of` gives y for one value of each of `turns` (column -> values), x is
    the slider's column and the first other column names the curves; labels are for reading.
    """

    title: str
    of: Callable[..., float]
    x: str
    y: str
    turns: Mapping[str, tuple[Any, ...]]
    labels: Mapping[str, str]
    start: Mapping[str, Any]
    axes: Mapping[str, bool] = field(default_factory=dict)

    def table(self) -> pd.DataFrame:
        """Every combination of the turns with its y, rounded to four digits, and `case`, its name."""
        rows = []
        for values in itertools.product(*self.turns.values()):
            chosen = dict(zip(self.turns, values, strict=True))
            y = float(f"{self.of(**chosen):.4g}")
            rows.append({**chosen, self.y: y, "case": " ".join(f"{k}={v}" for k, v in chosen.items())})
        return pd.DataFrame(rows)


def _spec(gpu: str) -> device.Device:
    return next(each for each in map(device.get, device.names()) if each.name == gpu)


def _named(slugs: Iterable[str]) -> tuple[str, ...]:
    return tuple(device.get(slug).name for slug in slugs)


# --- the laws over their turns ------------------------------------------------------------------------------


def little(kib: float, latency: int, gpu: str) -> float:
    """GB/s that Little's law allows with so many KiB under way on each SM, at most the data sheet's."""
    spec = _spec(gpu)
    return roofline.bandwidth(1024 * kib, spec.sms, latency, spec.dram_gb_s)


def stride(step: int, width: int, offset: int) -> float:
    """Percent of the moved bytes that 32 lanes use which load `width` bytes each, `step` elements apart."""
    one = Request(tuple(offset + lane * step * width for lane in range(32)), width, "")
    return 100 * one.bytes_used() / (32 * len(one.sectors()))


def instructions(each: float, bits: int, gpu: str) -> float:
    """Percent of the bandwidth that issue slots leave, with so many instructions for each weight."""
    spec = _spec(gpu)
    return 100 * roofline.share_for_instructions(each, bits, spec.dram_gb_s, spec.sms, spec.boost_mhz / 1e3)


def crossover(tokens: int, bits: int, gpu: str) -> float:
    """Microseconds of a product with a matrix of weights of so many bits: the longer of bytes and FLOPs."""
    spec = _spec(gpu)
    bytes_ = roofline.gemm_bytes(tokens, _ROWS, _COLUMNS, bits / 8)
    flops = roofline.gemm_flops(tokens, _ROWS, _COLUMNS)
    return roofline.bound(bytes_, flops, spec.dram_gb_s, spec.fp16_tensor).us


def tile(rows: int, columns: int) -> float:
    """FLOPs for each byte that a tile of a product loads, in FP16."""
    flops, bytes_ = roofline.gemm_flops(rows, columns, _DEPTH), _HALF * _DEPTH * (rows + columns)
    return roofline.intensity(flops, bytes_)


def occupancy(side: int, stages: int, gpu: str) -> float:
    """Blocks whose tiles of side x side, `stages` deep, fit an SM's shared memory: what a block may have and
    1 KiB, which the system takes for each block.
    """
    return (_spec(gpu).shared_kb_per_block + 1) * 1024 // (_HALF * _DEPTH * 2 * side * stages + 1024)


def attention(tokens: int, window: str, heads: int, gpu: str) -> float:
    """Milliseconds of causal attention over a prompt, head_dim 128, a key-value head for four: the longer of
    bytes and FLOPs.
    """
    spec, seen = _spec(gpu), None if window == "none" else int(window)
    flops = roofline.attention_flops(roofline.attention_pairs(tokens, tokens, window=seen), heads, 128)
    bytes_ = roofline.attention_bytes(tokens, tokens, heads, max(1, heads // 4), 128)
    return roofline.bound(bytes_, flops, spec.dram_gb_s, spec.fp16_tensor).us / 1e3


def phases(cost: float, weights: str, model: str, gpu: str) -> float:
    """Tokens a second where every phase of a token costs so many microseconds beside its bytes; the output
    head is in FP16 beside INT4 layers, as lesson 08's engine has it.
    """
    spec, shape = _spec(gpu), model_shapes.get(model)
    head = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES["q8_0" if weights == "q8_0" else "fp16"]
    bytes_ = model_shapes.body(shape) * model_shapes.WEIGHT_BYTES[weights] + head
    return 1e6 / roofline.phases_us(5 * shape.layers + 1, cost, bytes_, spec.dram_gb_s)


def shared(sum_us: float, gpus: int, model: str, weights: str, gpu: str) -> float:
    """Tokens a second of a model on so many GPUs, by their memories and two sums a layer; the output head is
    whole on each.
    """
    spec, shape = _spec(gpu), model_shapes.get(model)
    head = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES["fp16"]
    split = model_shapes.body(shape) * model_shapes.WEIGHT_BYTES[weights] / gpus
    sums = 2 * shape.layers * sum_us if gpus > 1 else 0.0
    return 1e6 / ((head + split) / spec.dram_gb_s / 1e3 + sums)


_POWERS = tuple(2**k for k in range(11))

MODELS: dict[str, Model] = {
    "little": Model(
        "Little's law: bytes in flight make bandwidth",
        little,
        "kib",
        "gb_s",
        {
            "latency": (350, 500, 700, 1000),
            "gpu": _named(GPUS),
            "kib": (0.5, 1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64),
        },
        {"latency": "Latency, ns", "gpu": "GPU", "kib": "KiB in flight an SM"},
        {"latency": 350, "kib": 8},
    ),
    "stride": Model(
        "Strides: how much of what moves is used",
        stride,
        "step",
        "%",
        {"width": (1, 2, 4, 8, 16), "offset": (0, 4, 16), "step": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)},
        {
            "width": "Bytes a lane",
            "offset": "Starts at byte",
            "step": "elements between lanes",
            "%": "% used",
        },
        {"width": 4, "offset": 0, "step": 1},
    ),
    "instructions": Model(
        "Instructions a weight: what is left of the roof",
        instructions,
        "each",
        "%",
        {
            "bits": (2, 4, 8, 16),
            "gpu": _named(GPUS),
            "each": (0.5, 1, 1.75, 2, 3, 3.5, 4, 6, 7, 8),
        },
        {"bits": "Bits a weight", "gpu": "GPU", "each": "instructions a weight", "%": "% of the read roof"},
        {"bits": 4, "each": 6},
    ),
    "crossover": Model(
        f"When a {_ROWS:,} × {_COLUMNS:,} product leaves the memory roof",
        crossover,
        "tokens",
        "median_us",
        {"bits": (4, 8, 16), "gpu": _named(GPUS), "tokens": _POWERS},
        {"bits": "Bits a weight", "gpu": "GPU", "tokens": "tokens", "median_us": "µs"},
        {"bits": 4, "tokens": 1},
        {"ylog": True},
    ),
    "tile": Model(
        "Tiles of a product: FLOPs for each loaded byte",
        tile,
        "rows",
        "FLOPs a byte",
        {"columns": (8, 16, 32, 64, 128, 256), "rows": (8, 16, 32, 64, 96, 128, 192, 256)},
        {"columns": "Columns", "rows": "rows of the tile"},
        {"columns": 128, "rows": 128},
    ),
    "occupancy": Model(
        "Tiles in shared memory: how many fit",
        occupancy,
        "side",
        "blocks",
        {"stages": (1, 2, 3, 4), "gpu": _named(GPUS), "side": (32, 48, 64, 96, 128, 192, 256)},
        {"stages": "Stages", "gpu": "GPU", "side": "side of the tiles"},
        {"stages": 2, "side": 64},
    ),
    "attention": Model(
        "Attention over a prompt: no quicker than",
        attention,
        "tokens",
        "ms",
        {
            "window": ("512", "4096", "none"),
            "heads": (8, 32),
            "gpu": _named(GPUS),
            "tokens": tuple(512 * 2**k for k in range(9)),
        },
        {"window": "Window", "heads": "Heads", "gpu": "GPU", "tokens": "tokens"},
        {"window": "none", "heads": 32, "tokens": 4096},
        {"ylog": True},
    ),
    "phases": Model(
        "A decoder: phases cost time beside their bytes",
        phases,
        "cost",
        "tok_s",
        {
            "weights": ("int4_g128", "q8_0", "fp16"),
            "model": ("qwen2.5-1.5b", "llama-3-8b"),
            "gpu": _named(GPUS),
            "cost": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        },
        {"weights": "Weights", "model": "Model", "gpu": "GPU", "cost": "µs a phase"},
        {"weights": "int4_g128", "model": "qwen2.5-1.5b", "cost": 2.0},
        {"xlog": False},
    ),
    "shared": Model(
        "A token on several GPUs: what a sum may cost",
        shared,
        "sum_us",
        "tok_s",
        {
            "gpus": (1, 2, 4, 8),
            "model": ("qwen2.5-1.5b", "llama-3-8b", "llama-3-70b"),
            "weights": ("int4_g128", "fp16"),
            "gpu": _named(("h200", "a100-80gb")),
            "sum_us": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        },
        {"gpus": "GPUs", "model": "Model", "weights": "Weights", "gpu": "GPU", "sum_us": "µs a sum"},
        {"gpus": 2, "model": "llama-3-8b", "weights": "fp16", "sum_us": 2.0},
    ),
}


def explorer(name: str, gpu: str = "") -> Explorer:
    """The model `name` as an explorer, opened on this GPU (a name as the driver gives it) where it is known.

    UsageError for a model that is none of MODELS.
    """
    if name not in MODELS:
        raise UsageError(f"There is no model {name!r} to turn; there are {', '.join(MODELS)}.")
    model = MODELS[name]
    controls = {column: model.labels[column] for column in model.turns if column != model.x}
    spec = device.match(gpu) if gpu else None
    start = dict(model.start)
    if "gpu" in model.turns:
        known = spec.name if spec and spec.name in model.turns["gpu"] else model.turns["gpu"][0]
        start["gpu"] = known
    axes: dict[str, Any] = dict(model.axes)
    return Explorer(
        f"model-{name}",
        model.table(),
        x=model.x,
        y=model.y,
        controls=controls,
        title=model.title,
        labels=dict(model.labels),
        start=start,
        **axes,
    )
