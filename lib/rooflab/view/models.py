"""Models to turn: each law of the course over the quantities it depends on, as an explorer.

    models.explorer("little")     # curves of bandwidth over bytes in flight; choose latency and GPU

A model's table is made by the function that the lessons compute with; the widget in JupyterLab and the page
draw that table, so there is one source of its numbers. GPUs are those of the data sheets: what a 3060 would
do is a choice like any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from rooflab.errors import UsageError
from rooflab.hardware import device, roofline
from rooflab.numerics import model_shapes
from rooflab.studies import links
from rooflab.view.access_diagram import Request
from rooflab.view.captions import number
from rooflab.view.explorer import Explorer
from rooflab.view.explorer_facts import SAYS

GPUS = ("h200", "a100-80gb", "l4", "t4", "rtx-4090", "rtx-3060")
_LIMITS = (
    "h200",
    "a100-80gb",
    "t4",
    "rtx-4090",
)  # an L4 and an RTX 3060 have the last one's limits of a block
_ROWS, _COLUMNS = 14336, 4096  # of the matrix whose product is turned
_HALF = 2  # bytes of an FP16 number
_SLOTS = 2  # of the ring of tiles in `occupancy`
_MOST = 255  # registers that a thread can have
_OTHER_REGISTERS = 40  # of a thread, beside its scores and outputs: addresses, maxima, fragments under way
SHARED_BY = "h200"  # whose copies share a token
# GB/s each way: as lesson 10 assumes it of the sheet of an H200, and of sixteen lanes.
LINKS = {
    "NVLink": links.SHEET_GB_S,
    **{f"PCIe {generation}": 16 * device.PCIE_LANE_GB_S[generation] for generation in device.PCIE_LANE_GB_S},
}


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
    says: Callable[..., str] | None = None  # what else a point is, in words

    def table(self) -> pd.DataFrame:
        """Every combination of the turns: y, rounded to four digits, `case`, its name, and what `says` it."""
        rows = []
        for values in itertools.product(*self.turns.values()):
            chosen = dict(zip(self.turns, values, strict=True))
            y = float(f"{self.of(**chosen):.4g}")
            row = {**chosen, self.y: y, "case": " ".join(f"{k}={v}" for k, v in chosen.items())}
            rows.append(row | ({SAYS: self.says(**chosen)} if self.says else {}))
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


def _strided(step: int, width: int, offset: int) -> Request:
    return Request(tuple(offset + lane * step * width for lane in range(32)), width, "")


def stride(step: int, width: int, offset: int) -> float:
    """Percent of the moved bytes that 32 lanes use which load `width` bytes each, `step` elements apart."""
    one = _strided(step, width, offset)
    return 100 * one.bytes_used() / (32 * len(one.sectors()))


def stride_says(step: int, width: int, offset: int) -> str:
    """The sectors that they touch."""
    return f"{len(_strided(step, width, offset).sectors())} sectors"


def down_a_column(row: int, padding: int, width: int) -> Request:
    """A warp's load from rows of `row` bytes with `padding` bytes after each: lane by lane the same column of
    the next row, `width` bytes wide.
    """
    return Request(tuple(lane * (row + padding) for lane in range(32)), width, "")


def banks(padding: int, row: int, width: int) -> float:
    """Turns that shared memory takes for a load down a column; none where lanes' bytes are not aligned."""
    return math.nan if (row + padding) % width else len(down_a_column(row, padding, width).turns())


def banks_says(padding: int, row: int, width: int) -> str:
    """How many of the turns are conflicts."""
    return f"{down_a_column(row, padding, width).conflicts()} by conflicts"


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


def _of_block(width: int, keys: int, sharers: int, gpu: str) -> tuple[int, int, int, int, int]:
    """What roofline.residency asks of a block of attention on tensor cores: four warps, of which `sharers`
    have the same 16 queries and divide the head's columns; scores and outputs are registers, and a ring has
    two slots of `keys` keys and values.
    """
    spec, threads = _spec(gpu), 128
    registers = 16 * (keys + width // sharers) // 32 + _OTHER_REGISTERS
    shared = _HALF * width * 2 * keys * _SLOTS
    return registers, threads, shared, (spec.shared_kb_per_block + 1) * 1024, spec.threads_per_sm


def occupancy(width: int, keys: int, sharers: int, gpu: str) -> float:
    """Blocks of attention that an SM holds at once, none where a thread needs more registers than it can
    have. Its shared memory is what a block may have and the 1 KiB that the system takes for each.
    """
    block = _of_block(width, keys, sharers, gpu)
    return roofline.residency(*block) if block[0] <= _MOST else 0


def occupancy_says(width: int, keys: int, sharers: int, gpu: str) -> str:
    """The registers and the shared memory of a block, and what limits the blocks."""
    block = _of_block(width, keys, sharers, gpu)
    limits = roofline.residency_limits(*block)
    tight = [name for name, allowed in limits.items() if allowed == min(limits.values())]
    limit = f"limit: {' and '.join(tight)}" if block[0] <= _MOST else f"a thread has at most {_MOST}"
    return f"{block[0]} registers, {block[2] // 1024} KiB; {limit}"


def _of_attention(tokens: int, window: str, heads: int) -> tuple[float, float]:
    """Bytes and FLOPs of causal attention over a prompt, head_dim 128, a key-value head for four."""
    pairs = roofline.attention_pairs(tokens, tokens, window=None if window == "none" else int(window))
    bytes_ = roofline.attention_bytes(tokens, tokens, heads, max(1, heads // 4), 128)
    return bytes_, roofline.attention_flops(pairs, heads, 128)


def attention(tokens: int, window: str, heads: int, gpu: str) -> float:
    """Milliseconds of causal attention over a prompt: the longer of bytes and FLOPs."""
    spec = _spec(gpu)
    return roofline.bound(*_of_attention(tokens, window, heads), spec.dram_gb_s, spec.fp16_tensor).us / 1e3


def attention_says(tokens: int, window: str, heads: int, gpu: str) -> str:
    """The FLOPs and the bytes, and which of them decides."""
    spec, (bytes_, flops) = _spec(gpu), _of_attention(tokens, window, heads)
    by = roofline.bound(bytes_, flops, spec.dram_gb_s, spec.fp16_tensor).by
    decides = "FLOPs" if by == "compute" else "bytes"
    return f"{number(flops / 1e9)} GFLOP, {number(bytes_ / 1e6)} MB: {decides} decide"


def phases(cost: float, each: int, weights: str, model: str, gpu: str) -> float:
    """Tokens a second where a layer has `each` phases and the output head one, and every phase costs so many
    microseconds beside its bytes; the head is in FP16 beside INT4 layers, as lesson 08's engine has it.
    """
    spec, shape = _spec(gpu), model_shapes.get(model)
    head = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES["fp16"]
    bytes_ = model_shapes.body(shape) * model_shapes.WEIGHT_BYTES[weights] + head
    return 1e6 / roofline.phases_us(each * shape.layers + 1, cost, bytes_, spec.dram_gb_s)


def wire_us(gpus: int, model: str, link: str) -> float:
    """Microseconds in which the bytes of a token's sum, by the course's kernel, cross a link of this name."""
    size = 2 * model_shapes.get(model).hidden
    return links.crossing("all_reduce", links.all_reduce.DEFAULT, size, gpus) / LINKS[link] / 1e3


def shared(sum_us: float, gpus: int, link: str, model: str, weights: str) -> float:
    """Tokens a second of a model on so many H200s, by their memories and two sums a layer, each of so many
    microseconds beside its bytes; the output head is whole on each.
    """
    each = sum_us + wire_us(gpus, model, link)
    return 1e6 / links.split_token_us(model, weights, gpus, device.get(SHARED_BY).dram_gb_s, each)


def shared_says(sum_us: float, gpus: int, link: str, model: str, weights: str) -> str:
    """What the bytes of a sum take."""
    return f"a sum's bytes {number(wire_us(gpus, model, link))} µs" if gpus > 1 else ""


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
            "step": "stride in elements",
            "%": "% used",
        },
        {"width": 4, "offset": 0, "step": 1},
        says=stride_says,
    ),
    "banks": Model(
        "Rows in shared memory: turns of a load down a column",
        banks,
        "padding",
        "turns",
        {
            "row": (64, 96, 128, 160, 256),
            "width": (4, 8, 16),
            "padding": (0, 4, 8, 16, 24, 32, 48, 64),
        },
        {"row": "Bytes a row", "width": "Bytes a lane", "padding": "bytes of padding after each row"},
        {"row": 256, "width": 16, "padding": 0},
        {"xlog": False},
        banks_says,
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
    "occupancy": Model(
        "Blocks of attention that an SM holds at once",
        occupancy,
        "width",
        "blocks",
        {
            "sharers": (1, 2, 4),
            "keys": (16, 64),
            "gpu": _named(_LIMITS),
            "width": (64, 96, 128, 192, 256, 384, 512),
        },
        {
            "sharers": "Sharing warps",
            "keys": "Keys a tile",
            "gpu": "GPU",
            "width": "columns of the head",
        },
        {"sharers": 1, "keys": 16, "width": 512},
        says=occupancy_says,
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
            "tokens": (512, 2048, 4096, 16384, 131072),
        },
        {"window": "Window", "heads": "Heads", "gpu": "GPU", "tokens": "tokens"},
        {"window": "none", "heads": 32, "tokens": 4096},
        {"ylog": True},
        attention_says,
    ),
    "phases": Model(
        "A decoder: phases cost time beside their bytes",
        phases,
        "cost",
        "tok_s",
        {
            "each": (1, 5, 10, 50),
            "weights": ("int4_g128", "fp16"),
            "model": ("qwen2.5-1.5b", "llama-3-8b"),
            "gpu": _named(("h200", "a100-80gb", "rtx-4090", "rtx-3060")),
            "cost": (0.0, 1.0, 2.0, 4.0, 8.0),
        },
        {
            "each": "Phases a layer",
            "weights": "Weights",
            "model": "Model",
            "gpu": "GPU",
            "cost": "µs a phase",
        },
        {"each": 5, "weights": "int4_g128", "model": "qwen2.5-1.5b", "cost": 2.0},
        {"xlog": False},
    ),
    "shared": Model(
        "A token on several H200s: what a sum may cost",
        shared,
        "sum_us",
        "tok_s",
        {
            "gpus": (1, 2, 4, 8),
            "link": ("NVLink", "PCIe 5"),
            "model": ("qwen2.5-1.5b", "llama-3-8b", "llama-3-70b"),
            "weights": ("int4_g128", "fp16"),
            "sum_us": (1.0, 2.0, 8.0, 32.0),
        },
        {
            "gpus": "GPUs",
            "link": "Link",
            "model": "Model",
            "weights": "Weights",
            "sum_us": "µs a sum beside its bytes",
        },
        {"gpus": 2, "link": "NVLink", "model": "llama-3-8b", "weights": "fp16", "sum_us": 2.0},
        says=shared_says,
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
