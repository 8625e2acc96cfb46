"""Study `attention` (lesson 06): a prompt's attention from a block per query to tensor cores, and one query
against a cache.

A case's seq is the number of queries (attention) or of keys in the cache (decode_attention). FLOPs count the
query-key pairs that are seen, so causal attention counts as half and a window as its own work only. Errors
are in units of the largest number of their row of the output: rows of long prompts average thousands of
values and are small, and a dropped tile of keys has to show in them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.ops import attention as op
from rooflab.records.case import Case, options
from rooflab.studies import buffers
from rooflab.studies.base import Context, Count, Described, Profile, Sized, Study, macros_of, tunables, turn

HEADS, KV_HEADS = 32, 8  # grouped queries as in Llama 3 8B: what a shape has unless it says otherwise
LENGTHS = (1848, 4096, 16384)  # the first is the prompt of the source
WIDTHS = (64, 128, 256, 512)
CONTEXTS = (1024, 4096, 32768)
WINDOWED = ((64, 1024), (128, 512), (256, 512))  # head_dim and window of the longest prompt
MODELS = ("gemma-4-e4b", "qwen2.5-1.5b")  # whose prefill is looked at as a whole
PROMPTS = (512, 1848, 4096, 16384)
SLOW = 4096  # the longest prompt that rung 1 is asked for
_MEANT = ("start", "shared_kv", "context")  # options that are part of the shape; the others are macros
CHUNK = 1 << 25  # scores in float64 at a time
COUNTERS = (
    *("time_ns", "dram_bytes", "dram_pct", "sm_pct", "l2_hit_pct", "sm_read_bytes", "l2_read_sectors"),
    *("inst_executed", "issue_active", "occupancy_pct", "fma_pct", "tensor_pct", "shared_pct"),
    "shared_load_conflicts",
    *("stall_long_scoreboard", "stall_short_scoreboard", "stall_mio_throttle", "stall_math_pipe_throttle"),
    *("stall_barrier", "stall_wait"),
)
# Questions beside the time (attention_checks), and the operator whose rungs answer them.
QUESTIONS = {
    **dict.fromkeys(("tolerance", "edges", "memory", "words"), "attention"),
    "replay": "decode_attention",
}
BACKENDS = {  # of torch's scaled_dot_product_attention
    "torch.sdpa_cudnn": "CUDNN_ATTENTION",
    "torch.sdpa_flash": "FLASH_ATTENTION",
    "torch.sdpa_efficient": "EFFICIENT_ATTENTION",
    "torch.sdpa_math": "MATH",
}
FASTEST = ("torch.sdpa_cudnn", "torch.sdpa_flash", "flash_attn_4")
# impl -> the package it needs, by the name that Python imports.
PEERS = {
    **dict.fromkeys(BACKENDS, "torch"),
    "torch.flex_attention": "torch",
    "flash_attn_4": "flash_attn",
    "ffpa": "ffpa_attn",
}


class Shape(NamedTuple):
    """What a case computes: n queries from position start, context keys, heads, window, mask, K = V."""

    n: int
    context: int
    start: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    causal: bool
    shared: bool


def ladder_of(case: Case) -> str:
    """The operator whose rungs a case, or a question, is about."""
    return QUESTIONS.get(case.operator, case.operator)


def shape_of(case: Case) -> Shape:
    """The sizes of a case of either operator."""
    given, seq = tunables(case), case.seq or 0
    heads, kv_heads, head_dim = case.heads or 0, case.kv_heads or 0, case.head_dim or 0
    if ladder_of(case) == "decode_attention":
        return Shape(1, seq, seq - 1, heads, kv_heads, head_dim, case.window, True, False)
    start, causal = given.get("start", 0), case.causal is not False
    context = given.get("context", start + seq)
    shared = bool(given.get("shared_kv", 0))
    return Shape(seq, context, start, heads, kv_heads, head_dim, case.window, causal, shared)


def _case(
    impl: str, seq: int, head_dim: int, heads: tuple[int, int] = (HEADS, KV_HEADS), **more: Any
) -> Case:
    sizes = {"seq": seq, "head_dim": head_dim, "heads": heads[0], "kv_heads": heads[1], "causal": True}
    return Case("attention", "attention", impl, **{"format": "fp16", "state": "burst", **sizes, **more})


def rungs_for(head_dim: int, device: Sized | None = None) -> list[str]:
    """Names of the rungs that can do a head of this width, on this device."""
    names = []
    for rung in op.LADDERS["attention"]:
        wide = head_dim > op.WIDEST.get(rung.name, 512)
        wide |= rung.name == "8_head_dim_slices" and bool(head_dim % 64)
        wide |= rung.name == "13_mbarrier_ring" and head_dim > 256 and bool(head_dim % 32)
        if rung.name in op.HOPPER:
            wide = head_dim not in op.HOPPER[rung.name] or not getattr(device, "has_hopper", True)
        if not wide:
            names.append(rung.name)
    return names


def peers_for(head_dim: int, window: int | None = None) -> list[str]:
    """Libraries' kernels that do a head of this width, causal, with or without a window."""
    if window:
        return ["torch.flex_attention", *(["flash_attn_4"] if head_dim <= 256 else [])]
    if head_dim > 256:
        return ["torch.sdpa_efficient", "ffpa"]
    return ["torch.sdpa_cudnn", "torch.sdpa_flash", "torch.sdpa_efficient", "flash_attn_4"]


def ladder(
    head_dim: int,
    seq: int = LENGTHS[1],
    heads: tuple[int, int] = (HEADS, KV_HEADS),
    window: int | None = None,
    device: Sized | None = None,
) -> list[Case]:
    """Every rung that can do a shape, rung 2 with 8 and with 16 queries a block, and its peers."""
    own = []
    for name in rungs_for(head_dim, device):
        more = [options(queries=q) for q in (8, 16)] if name == "2_tiled" else [""]
        own += [_case(name, seq, head_dim, heads, window=window, options=each) for each in more]
    peers = [*peers_for(head_dim, window), *([] if window else ["torch.sdpa_math"])]
    return [*own, *(_case(impl, seq, head_dim, heads, window=window, kind="peer") for impl in peers)]


def best(head_dim: int) -> list[str]:
    """The rungs that a sweep looks at: the two fastest portable ones for the width, the faster last."""
    if head_dim <= op.WIDEST["7_mma_32_rows"]:
        return ["7_mma_32_rows", "13_mbarrier_ring"]
    return ["6_cp_async" if head_dim <= op.WIDEST["6_cp_async"] else "8_head_dim_slices", "13_mbarrier_ring"]


def hopper(head_dim: int, format: str = "fp16") -> list[str]:
    """Hopper's rungs for the width that sweeps look at, those that take the format."""
    rungs = (rung for rung in op.LADDERS["attention"] if head_dim in op.HOPPER.get(rung.name, ()))
    able = (rung.name for rung in rungs if format == "fp16" or "BF16" in rung.defines)
    return [name for name in able if name not in op.BETWEEN]


def sweep(seq: int, head_dim: int, window: int | None = None, **more: Any) -> list[Case]:
    """The best rungs and the libraries' kernels on one shape."""
    own = best(head_dim) + hopper(head_dim, more.get("format", "fp16"))
    peers = peers_for(head_dim, window)
    found = [_case(impl, seq, head_dim, window=window, **more) for impl in own]
    return [*found, *(_case(impl, seq, head_dim, window=window, kind="peer", **more) for impl in peers)]


def gemma(seq: int = LENGTHS[0]) -> list[Case]:
    """Gemma 4 E4B's own two kinds of layers, the source's case: 256 wide with a window, 512 wide without."""
    model = model_shapes.get("gemma-4-e4b")
    heads = (model.heads, model.kv_heads)
    return [
        *ladder(model.head_dim, seq, heads, model.window),
        *ladder(model.global_head_dim or model.head_dim, seq, heads),
    ]


def odd_widths(seq: int = LENGTHS[1]) -> list[Case]:
    """Widths that are no power of two."""
    return [case for width in (80, 96, 112) for case in sweep(seq, width)]


def chunks(head_dim: int = 128, context: int = 16384, chunk: int = 2048) -> list[Case]:
    """The last chunk of a prompt against the cache of all before, by the rungs."""
    start = options(start=context - chunk)
    return [_case(impl, chunk, head_dim, options=start) for impl in best(head_dim) + hopper(head_dim)]


def indexing(seq: int = LENGTHS[0]) -> list[Case]:
    """Rung 2's ways to find the key of a piece (see its header), on a width that is a power of two and on
    one that is not, which shifts and masks refuse.
    """
    ways = [(128, 0), (128, 1), (128, 2), (80, 0), (80, 1)]
    return [_case("2_tiled", seq, width, options=options(queries=16, index=how)) for width, how in ways]


class Kind(NamedTuple):
    """The attention of some of a model's layers."""

    model: str
    head_dim: int
    window: int | None
    layers: int


def kinds() -> list[Kind]:
    """The kinds of layers of the models whose prefill is looked at."""
    found: dict[Kind, int] = {}
    for name in MODELS:
        for layer in model_shapes.layers(model_shapes.get(name)):
            kind = Kind(name, layer.head_dim, layer.window, 0)
            found[kind] = found.get(kind, 0) + 1
    return [kind._replace(layers=count) for kind, count in found.items()]


def prompt(kind: Kind, seq: int) -> list[Case]:
    """A prompt's attention in one layer: rung 1, where that takes no seconds, the best rungs, and torch's
    fastest kernel that does it.
    """
    model = model_shapes.get(kind.model)
    names = [*(["1_scalar"] if seq <= SLOW else []), *best(kind.head_dim)[-1:], *hopper(kind.head_dim)]
    own = [(name, "own") for name in names]
    peers = [("torch.sdpa_efficient" if kind.head_dim > 256 else "torch.sdpa_cudnn", "peer")]
    heads = (model.heads, model.kv_heads)
    both = own if kind.window else [*own, *peers]
    return [_case(impl, seq, kind.head_dim, heads, window=kind.window, kind=how) for impl, how in both]


def prompts() -> list[Case]:
    """Attention of every kind of layer over lengths of prompt."""
    return [case for kind in kinds() for seq in PROMPTS for case in prompt(kind, seq)]


def leading(cases: Sequence[Case]) -> list[Case]:
    """A shape's cases by the rung that is run by default and newer ones, and by the fastest libraries."""
    own = [case.impl for case in cases if case.kind == "own"]
    usual = op.default_rung(cases[0].head_dim or 0, "90")
    wanted = {*(own[own.index(usual) :] if usual in own else own[-1:]), *FASTEST}
    return [case for case in cases if case.impl in wanted]


def later(device: Sized | None = None) -> list[Case]:
    """Prompts and a cache that were named after kernels had been tuned."""
    wanted: list[tuple[int, int, int | None]] = [(3001, 96, None), (8192, 128, None), (8192, 256, None)]
    wanted += [(3001, width, 777) for width in (64, 96, 128, 256)]
    found = [leading(able(device, sweep(*shape, heads=(28, 4)))) for shape in wanted]
    return [*(case for cases in found for case in cases), *decode(5003, 128, (28, 4))]


def one_array(head_dim: int = 512, seq: int = LENGTHS[1]) -> list[Case]:
    """The same keys and values from two arrays and from one, by the rungs that read one array once."""
    able = {rung.name for rung in op.LADDERS["attention"] if "SHARED_KV" in rung.defines}
    names = [name for name in [*best(head_dim), *hopper(head_dim)] if name in able]
    return [_case(name, seq, head_dim, options=more) for name in names for more in ("", options(shared_kv=1))]


def decode(
    context: int, head_dim: int = 128, heads: tuple[int, int] = (HEADS, KV_HEADS), window: int | None = None
) -> list[Case]:
    """Every rung of decode attention against a cache, with torch's kernels."""
    own = [(rung.name, "own") for rung in op.decode_rungs(head_dim)]
    peers = [(impl, "peer") for impl in FASTEST if head_dim <= 256 and not window]
    sizes: dict[str, Any] = {"seq": context, "head_dim": head_dim, "window": window, "state": "burst"}
    sizes |= {"heads": heads[0], "kv_heads": heads[1]}
    return [Case("attention", "decode_attention", impl, kind, "fp16", **sizes) for impl, kind in own + peers]


def decode_shapes() -> list[Case]:
    """Decode attention of three models' layers."""
    gemma4, qwen = model_shapes.get("gemma-4-e4b"), model_shapes.get("qwen2.5-1.5b")
    shared = (gemma4.heads, gemma4.kv_heads)
    return [
        *(case for context in CONTEXTS for case in decode(context)),
        *decode(CONTEXTS[1], qwen.head_dim, (qwen.heads, qwen.kv_heads)),
        *decode(CONTEXTS[1], gemma4.head_dim, shared, gemma4.window),
        *decode(CONTEXTS[1], gemma4.global_head_dim or 512, shared),
    ]


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case, for the GPU at hand or else for compute capability 9.0."""
    shape = shape_of(case)
    rung = ops.rung_of(op.LADDERS[ladder_of(case)], case.impl, "")
    chosen = macros_of(case, *_MEANT, "splits")
    arch = _arch()
    if rung.operator == "decode_attention":
        tile = op.decode_tile_of(rung, shape.heads // shape.kv_heads, shape.head_dim, arch)
    else:
        group = shape.heads // shape.kv_heads
        seen = op.seen_of(shape.n, shape.context, shape.start, shape.causal, shape.window)
        sizes = (shape.n, shape.context, shape.start, shape.heads, shape.kv_heads, shape.causal, shape.window)
        prompt = op.Prompt(*sizes)
        tile = op.tile_of(rung, shape.head_dim, arch, shape.shared, group, shape.window, seen, prompt)
    macros = rung.with_defaults({**tile, **chosen})
    if "BF16" in macros:
        macros["BF16"] = int(case.format == "bf16")
    if "SHARED_KV" in macros:
        macros["SHARED_KV"] = int(shape.shared)
    return rung, macros, op.launch_rule(rung)


def _arch() -> str:
    return "89" if ops.target() == "cpu" else ops.known_arch()


def launch_of(case: Case) -> op.Launch:
    """Threads, queries and dynamic shared memory of a block of an own case."""
    rung, macros, _ = own_rung(case)
    return (op.decode_launch_of if rung.operator == "decode_attention" else op.launch_of)(rung, macros)


def able(device: Sized | None, cases: Sequence[Case]) -> list[Case]:
    """The distinct cases that a device can run, all where none is named."""
    hopper = getattr(device, "has_hopper", True)
    return list(dict.fromkeys(case for case in cases if hopper or case.impl not in op.HOPPER))


class Attention(Study):
    """Lesson 06."""

    name, lesson = "attention", "06"
    setup_s, checks_apart = 0.2, ()

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            found = [
                *(*ladder(128, device=device), *gemma()),
                *(case for width in WIDTHS for case in sweep(LENGTHS[0], width)),
                *(case for kind in kinds() for case in prompt(kind, LENGTHS[0])),
                *decode(CONTEXTS[1]),
            ]
            return able(device, found)
        found = [
            *ladder(128, device=device),
            *gemma(),
            *(case for width in WIDTHS for seq in LENGTHS for case in sweep(seq, width)),
            *(case for width, window in WINDOWED for case in sweep(LENGTHS[2], width, window)),
            *sweep(LENGTHS[1], 128, format="bf16"),
            *(
                *odd_widths(),
                *chunks(),
                *one_array(),
                *indexing(),
                *prompts(),
                *decode_shapes(),
                *later(device),
            ),
        ]
        return able(device, found)

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        from rooflab.studies import attention_checks

        counted = [*ladder(128, device=device), *gemma(), *decode(CONTEXTS[-1])]
        counted = able(device, [case for case in counted if case.kind == "own"])
        return [("ncu", counted, COUNTERS), ("checks", attention_checks.cases(device), None)]

    def checks(self, cases: Sequence[Case]) -> pd.DataFrame:
        from rooflab.studies import attention_checks

        capability = int(ops.arrays().cuda.Device().compute_capability)
        return attention_checks.answers(cases, lambda case: self.refuses(case, capability))

    def needs(self, case: Case) -> str | None:
        if case.kind == "own":
            return "torch" if case.format == "bf16" else None
        return PEERS[case.impl]

    def refuses(self, case: Case, capability: int) -> str | None:
        if case.format == "bf16" and capability < 80:
            return "bf16 products need compute capability 8.0"
        if case.kind == "own" and case.impl in op.HOPPER and capability != 90:
            return "its instructions are those of compute capability 9.0 alone"
        if case.kind == "own":
            rung = next(rung for rung in op.LADDERS[ladder_of(case)] if rung.name == case.impl)
            if not rung.runs_on(str(capability)):
                return "its copies need compute capability 8.0"
            try:
                own_rung(case)
            except (LaunchError, UsageError) as error:  # no tile fits
                return str(error).rstrip(".")
        return super().refuses(case, capability)

    def group(self, case: Case) -> tuple:
        meant = tuple((k, v) for k, v in tunables(case).items() if k in _MEANT and k != "shared_kv")
        sizes = (case.seq, case.heads, case.kv_heads, case.head_dim, case.window, case.causal)
        return (case.operator, case.format, *sizes, meant, case.cache, turn(case))

    def operand_bytes(self, case: Case) -> int:
        """Operands and output as they lie in memory."""
        s = shape_of(case)
        moved = roofline.attention_bytes(s.n, s.context, s.heads, s.kv_heads, s.head_dim, 2, s.shared)
        return int(moved)

    def memory_bytes(self, case: Case) -> int:
        s = shape_of(case)
        out = 2 * s.n * s.heads * s.head_dim
        spare = 0
        if case.impl == "torch.sdpa_math":
            spare = 10 * s.n * s.context * s.heads
        elif case.impl == "torch.sdpa_efficient":
            spare = 4 * s.context * s.heads * s.head_dim * buffers.copies(case, self.operand_bytes(case))
        return buffers.copies(case, self.operand_bytes(case)) * out * (1 if case.kind == "own" else 3) + spare

    def shared_bytes(self, case: Case) -> int:
        s = shape_of(case)
        inputs = buffers.copies(case, self.operand_bytes(case)) * self.operand_bytes(case)
        return inputs + 6 * 8 * CHUNK + 32 * s.n * s.heads * s.head_dim

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        from rooflab.studies import attention_work

        return attention_work.contestants(group, self.operand_bytes(group[0]))

    def count(self, case: Case) -> Count:
        s = shape_of(case)
        keys = roofline.attention_keys(s.n, s.context, s.start, s.causal, s.window)
        pairs = roofline.attention_pairs(s.n, s.context, s.start, s.causal, s.window)
        moved = roofline.attention_bytes(s.n, keys, s.heads, s.kv_heads, s.head_dim, 2, s.shared)
        ceiling = roofline.ROOF_OF[case.operator]
        if case.operator == "attention" and case.format == "bf16":
            ceiling = "bf16_tensor"
        return Count(int(moved), roofline.attention_flops(pairs, s.heads, s.head_dim), ceiling)

    def predict(self, case: Case, context: Context) -> float | None:
        """The datasheet's bound: bytes from memory, or FLOPs at the peak of the units that a rung uses."""
        count, device = self.count(case), context.device
        if device is None:
            return None
        return roofline.bound(count.bytes or 0, count.flops or 0, device.dram_gb_s, _peak(case, device)).us

    def launch_us(self, case: Case, device: Device) -> float:
        bound = self.predict(case, Context(device=device)) or 2.0
        slow = {"1_scalar": 12.0, "1_block_per_head": 12.0, "2_tiled": 8.0, "3_half2": 6.0}
        slow["torch.sdpa_math"] = 20.0
        return slow.get(case.impl, 2.5) * bound

    own_rung = staticmethod(own_rung)

    def row(self, case: Case, *measured: Any) -> dict[str, Any]:
        """The record, shared memory counted with what the launch asks for."""
        row = super().row(case, *measured)
        if case.kind == "own":
            row["shared_bytes"] += launch_of(case).shared
        return row


def _peak(case: Case, device: Device) -> float:
    """TFLOP/s of the units that do a case's products: ordinary ones, or tensor cores."""
    if case.kind == "own" and case.impl[:2] in ("1_", "2_", "3_"):
        return device.fp32
    return (device.bf16_tensor if case.format == "bf16" else None) or device.fp16_tensor
