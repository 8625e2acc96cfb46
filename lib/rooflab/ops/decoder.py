"""One decoded token at batch 1, from its choice to the logits that choose the next: decode_step.

Weights lie as kernels/common/decoder/model.cuh wants them: of all layers in one array a kind, rows of
queries, keys and values in one matrix and those of gate and up in another, ordered by `pair_heads` and
`pair_gates` so that rows which belong together lie 8 apart in 16. They are FP16, Q8_0 in planes, or INT4 in
tile order. Everything that a step reads and writes stays on the device: which token it works on, and where it
stands, too.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.errors import LaunchError
from rooflab.numerics.quant import Planes
from rooflab.ops import PORTABLE, Rung, check_array, loaded, rung_of, with_target
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc

FORMATS = ("fp16", "q8_0", "int4_g128")  # in the order of the macro FORMAT
QKV, ATTEND, OUT, GATE_UP, DOWN, HEAD = range(6)
# Rungs that take many tokens in one launch.
PERSISTENT = (
    *("3_persistent", "4_tma", "5_prefetch_at_barrier", "6_producer_warps"),
    *("7_split_k", "8_tensor_attention", "9_flags_in_data"),
)
LARGE = 4096  # values of a hidden state from which on a step draws all the power that a card may
LONG = 2048  # tokens of a context from which on rung 8 attends faster
# Slots that a warp holds back in 5_prefetch_at_barrier, and that the first warp does, as an H200 likes it;
# "split" where matrices are divided along k.
_HELD = {"fp16": (4, 4), "q8_0": (2, 2), "int4_g128": (0, 3), "int4_g128 split": (1, 3)}
_CHUNK = (64, 128, 128)  # of k, a format each
_SPLITS = 32  # parts of a context at most, of the rung that makes most
_SHARED_KIB = {"75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}

_MACROS = {
    **{"FORMAT": 0, "HEAD_FORMAT": 0, "HEAD_DIM": 64},
    **{"HIDDEN": 256, "MLP": 512, "HEADS": 4, "KV_HEADS": 2},
    **{"WARPS": 4, "STAGES": 3, "SLOTS": 20, "TEAM": 1},
}
PLACE = 7  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "decode_step": (
        Rung(
            "decode_step",
            "1_kernel_per_phase",
            "decode_step_kernel_per_phase",
            "a launch a phase, products with what stands between them",
            defines=_MACROS,
            dynamic_shared=59232,
        ),
        Rung(
            "decode_step",
            "2_pdl",
            "decode_step_pdl",
            "weights on their way before the phase before has ended",
            defines=_MACROS,
            dynamic_shared=59232,
        ),
        Rung(
            "decode_step",
            "3_persistent",
            "decode_step_persistent",
            "one launch, a barrier across the grid between phases",
            defines=_MACROS,
            dynamic_shared=59232,
        ),
        Rung(
            "decode_step",
            "4_tma",
            "decode_step_tma",
            "copies weights by TMA, so that no warp issues copies",
            defines=_MACROS,
            archs=("90a",),
            dynamic_shared=59328,
        ),
        Rung(
            "decode_step",
            "5_prefetch_at_barrier",
            "decode_step_prefetch_at_barrier",
            "3_persistent, with the last slots of a phase filled again at the barrier",
            defines={**_MACROS, "HELD_BACK": 1, "FIRST_HELD": 2},
            dynamic_shared=59232,
            changes="3_persistent",
        ),
        Rung(
            "decode_step",
            "6_producer_warps",
            "decode_step_producer_warps",
            "3_persistent, with weights copied by warps that do nothing else",
            defines={**_MACROS, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
            archs=PORTABLE[1:],
            dynamic_shared=59232,
            changes="3_persistent",
        ),
        Rung(
            "decode_step",
            "7_split_k",
            "decode_step_split_k",
            "two products divided along k, so that all blocks have work and need little of x",
            defines={
                **_MACROS,
                **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
                **{"HELD_BACK": 1, "FIRST_HELD": 2},
            },
            archs=PORTABLE[1:],
            dynamic_shared=59232,
        ),
        Rung(
            "decode_step",
            "8_tensor_attention",
            "decode_step_tensor_attention",
            "all heads of a group attend together, on the tensor cores",
            defines={
                **_MACROS,
                **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
                **{"HELD_BACK": 1, "FIRST_HELD": 2, "TENSOR_ATTENTION": 1},
            },
            archs=PORTABLE[1:],
            dynamic_shared=59232,
        ),
        Rung(
            "decode_step",
            "9_flags_in_data",
            "decode_step_flags_in_data",
            "7_split_k, with flags in what blocks hand on and no barrier between phases",
            defines={
                **_MACROS,
                **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
                **{"HELD_BACK": 1, "FIRST_HELD": 2, "FLAGS_IN_DATA": 1},
            },
            archs=PORTABLE[1:],
            dynamic_shared=59232,
            changes="7_split_k",
        ),
    ),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, as in rooflab.numerics.model_shapes.Model, with its norms' epsilon and the bound
    on its logits.
    """

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    epsilon: float = 1e-6
    softcap: float = 0.0

    @property
    def attended(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def projected(self) -> int:
        """Rows of queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and k of a layer's matrices and of the head, by name."""
        return {
            "qkv": (self.projected, self.hidden),
            "out": (self.hidden, self.attended),
            "gate_up": (2 * self.mlp, self.hidden),
            "down": (self.hidden, self.mlp),
            "head": (self.vocab, self.hidden),
        }


class Weights(NamedTuple):
    """What a decoder reads. A matrix is an array [layers, n, k] FP16, Planes of such, or INT4 tiles [layers,
    n / 64, k / 128, 1056] uint32; head and embedding have no layers. norms [2 layers + 1, hidden], biases
    [layers, rows of qkv], FP16. rotations [capacity, head_dim / 2, 2] FP32: cosine and sine.
    """

    format: str
    head_format: str
    qkv: Any
    out: Any
    gate_up: Any
    down: Any
    head: Any
    embedding: Any
    norms: Any
    biases: Any
    rotations: Any


class State(NamedTuple):
    """What a decoder writes: the caches [layers, capacity, kv_heads, head_dim] FP16, tokens [capacity] and
    position [1] int32, logits [vocab], candidates for the next token [blocks, 2], and what phases hand on;
    residual_fixed [handed_words] int64 begins with the residual in fixed point, of rungs that divide k.
    """

    cache_k: Any
    cache_v: Any
    tokens: Any
    position: Any
    logits: Any
    candidates: Any
    residual: Any
    queries: Any
    inner: Any
    split_outputs: Any
    split_stats: Any
    counter: Any
    residual_fixed: Any

    @property
    def blocks(self) -> int:
        return int(self.candidates.shape[0])

    @property
    def capacity(self) -> int:
        return int(self.tokens.shape[0])


def pair_heads(rows: Any, head_dim: int) -> Any:
    """Rows [heads x head_dim, ...] so that a head's row i and row i + head_dim / 2 lie 8 apart in 16."""
    heads, rest = rows.shape[0] // head_dim, tuple(rows.shape[1:])
    return rows.reshape(heads, 2, head_dim // 16, 8, *rest).swapaxes(1, 2).reshape(rows.shape)


def unpair_heads(rows: Any, head_dim: int) -> Any:
    """The inverse of pair_heads."""
    heads, rest = rows.shape[0] // head_dim, tuple(rows.shape[1:])
    return rows.reshape(heads, head_dim // 16, 2, 8, *rest).swapaxes(1, 2).reshape(rows.shape)


def pair_gates(both: Any) -> Any:
    """Rows [2, mlp, ...] of gate and up as [2 mlp, ...]: eight of the one, then the same eight of the
    other.
    """
    rest = tuple(both.shape[2:])
    return both.reshape(2, -1, 8, *rest).swapaxes(0, 1).reshape(2 * both.shape[1], *rest)


def state_for(shape: Shape, capacity: int, blocks: int, zeros: Any) -> State:
    """An empty state; zeros(shape, dtype) makes its arrays where the weights lie."""
    cache = (shape.layers, capacity, shape.kv_heads, shape.head_dim)
    return State(
        cache_k=zeros(cache, "float16"),
        cache_v=zeros(cache, "float16"),
        tokens=zeros((capacity,), "int32"),
        position=zeros((1,), "int32"),
        logits=zeros((shape.vocab,), "float32"),
        candidates=zeros((blocks, 2), "float32"),
        residual=zeros((shape.hidden,), "float32"),
        queries=zeros((shape.attended,), "float16"),
        inner=zeros((shape.mlp,), "float16"),
        split_outputs=zeros((shape.heads, _SPLITS, shape.head_dim), "float16"),
        split_stats=zeros((shape.heads, _SPLITS, 2), "float32"),
        counter=zeros((blocks,), "int32"),
        residual_fixed=zeros((handed_words(shape),), "int64"),
    )


def handed_words(shape: Shape) -> int:
    """Words of 8 bytes that blocks of rungs that divide k hand on: the residual of rungs 7 and 8; the sums
    and flagged words of rung 9, see kernels/common/decoder/flags.cuh.
    """
    splits = shape.heads * 16
    halves = shape.attended + 2 * shape.kv_heads * shape.head_dim + splits * shape.head_dim + shape.mlp
    return 4 * shape.hidden + splits + halves // 2


def candidates(token: int, blocks: int) -> np.ndarray:
    """What makes the next step work on `token`: candidates [blocks, 2] that hold it alone."""
    candidates = np.full((blocks, 2), -np.inf, np.float32)
    candidates.view(np.int32)[:, 1] = 0x7FFFFFFF
    candidates[0, 0] = 0
    candidates.view(np.int32)[0, 1] = token
    return candidates


def winner(candidates: np.ndarray) -> int:
    """The token that the candidates of all blocks come to, as the next step will see it."""
    indices = np.ascontiguousarray(candidates).view(np.int32)[:, 1]
    return int(indices[candidates[:, 0] == candidates[:, 0].max()].min())


def widest_of(shape: Shape, macros: Mapping[str, int]) -> int:
    """Elements of the longest x, or of what warps have attended to, filled up so that what follows is
    aligned.
    """
    warps = macros["WARPS"]

    def slab(k: int, name: str) -> int:
        return math.ceil(math.ceil(k / 128) / macros[name]) * 128 if name in macros else k

    longest = max(shape.hidden, slab(shape.attended, "OUT_SLABS"), slab(shape.mlp, "DOWN_SLABS"))
    group = shape.heads // shape.kv_heads
    together = 1 + (group % 2 == 0)  # query heads a block
    attended = 2 * warps * together * (shape.head_dim + 2)
    if "TENSOR_ATTENTION" in macros:
        attended = warps * group * (shape.head_dim + 4)
    return math.ceil(max(longest, attended) / 512) * 512


def shared_of(shape: Shape, macros: Mapping[str, int], boxes: bool = False) -> int:
    """The launch rule: bytes of dynamic shared memory a block."""
    warps, producers = macros["WARPS"], macros.get("PRODUCERS", 0)
    widest = widest_of(shape, macros)
    formats = {macros["FORMAT"], macros["HEAD_FORMAT"]}
    slot = (2048 if formats == {0} else 2304) + (8 if boxes else 16 if producers else 0)
    floats = math.ceil(widest / (32 if 1 in formats else 128) / 4) * 4 + macros["SLOTS"] * warps * 16
    words = math.ceil((warps + 2) / 4) * 4 + math.ceil(warps / 4) * 4
    tables = 6 * 64 + 6 * 32 * warps + (16 if producers else 8)
    return 2 * widest + 4 * (floats + words) + tables + warps * macros["STAGES"] * slot


def macros_for(
    rung: Rung,
    shape: Shape,
    format: str,
    head_format: str,
    arch: str,
    given: Mapping[str, int],
    blocks: int | None = None,
) -> dict[str, int]:
    """The launch rule: a format's macros, with room for what a warp of so many blocks sums, and the deepest
    ring that fits the shared memory of `arch`.
    """
    if splits_k(rung):
        given = {**_split(rung, shape, format, blocks, arch), **given}
    producers = given.get("PRODUCERS", rung.defines.get("PRODUCERS", 0))
    wide = _SHARED_KIB.get(arch, 48) > 128 and not producers
    macros = rung.with_defaults(
        {
            "FORMAT": FORMATS.index(format),
            "HEAD_FORMAT": FORMATS.index(head_format),
            "HEAD_DIM": shape.head_dim,
            "HIDDEN": shape.hidden,
            "MLP": shape.mlp,
            "HEADS": shape.heads,
            "KV_HEADS": shape.kv_heads,
            "WARPS": 12 if wide else 8,
            **given,
        }
    )
    if "TEAM" not in given:
        macros["TEAM"] = 2 - macros["WARPS"] % 2
        if blocks and _begun(shape, blocks, macros) > macros["SLOTS"]:
            macros["TEAM"] = 1  # whose warps begin fewer units
    if blocks and "SLOTS" not in given:
        macros["SLOTS"] = max(macros["SLOTS"], math.ceil(_begun(shape, blocks, macros) / 2) * 2)
    limit = 1024 * _SHARED_KIB.get(arch, 48)
    if "STAGES" not in given:
        fits = (
            n for n in range(24, 1, -1) if shared_of(shape, {**macros, "STAGES": n}, _boxes(rung)) <= limit
        )
        macros["STAGES"] = next(fits, 0)
    if not macros["STAGES"]:
        raise LaunchError(
            f"No ring of decode_step fits the shared memory of sm_{arch} beside rows of "
            f"{widest_of(shape, macros)}."
        )
    if "IDLE_DEPTH" in macros and "IDLE_DEPTH" not in given:
        macros["IDLE_DEPTH"] = 4 if format == "fp16" else 3
    if "HELD_BACK" in macros:
        each, first = _HELD["int4_g128 split" if splits_k(rung) and format == "int4_g128" else format]
        macros["HELD_BACK"] = given.get("HELD_BACK", min(each, macros["STAGES"] - 1))
        macros["FIRST_HELD"] = given.get("FIRST_HELD", min(first, macros["STAGES"]))
    return macros


def splits_k(rung: Rung) -> bool:
    """Whether a rung divides two matrices along k."""
    return "DOWN_SLABS" in rung.defines


def _split(rung: Rung, shape: Shape, format: str, blocks: int | None, arch: str) -> dict[str, int]:
    """The launch rule of rungs that divide along k: their slabs, and the ring that suits a format, of rung 6
    or, for INT4 and wide heads, of rung 5. With slabs between 4 and 22 an H200 takes as long within 1 %.
    """
    chunk = _CHUNK[FORMATS.index(format)]
    most = {"OUT_SLABS": (shape.attended, 12), "DOWN_SLABS": (shape.mlp, 11)}
    own = {name: min(count, k // chunk, blocks or count) for name, (k, count) in most.items()}
    own["PRODUCERS"] = 0 if format == "int4_g128" or shape.head_dim > 128 else 4
    if "TENSOR_ATTENTION" in rung.defines and arch == "120":
        own["PRODUCERS"] = 0  # its compiler wants more registers than they leave
    if format == "q8_0" and "TENSOR_ATTENTION" not in rung.defines and shape.hidden < 4096:
        own["WARPS"] = 12  # beside producers: products of bytes want more warps, and take few registers
    return own


def _boxes(rung: Rung) -> bool:
    return rung.name == "4_tma"


def fastest(shape: Shape, format: str, arch: str, context: int = 0) -> str:
    """The rung that decodes a token after `context` others fastest, by what an H200 took, in each format: on
    other architectures the one that runs everywhere, with heads above 128 one whose registers suffice.
    """
    if arch != "90":
        return "3_persistent"
    if shape.head_dim > 128:
        return "5_prefetch_at_barrier"
    if context >= LONG and shape.heads <= 8 * shape.kv_heads:
        return "8_tensor_attention"
    if format == "q8_0" and shape.hidden >= LARGE:  # which its power limit holds back
        return "6_producer_warps"
    return "9_flags_in_data"


def blocks_for(shape: Shape, format: str, sms: int) -> int:
    """How many blocks to decode with on so many SMs: all, or with INT4 and barriers as few as leave the
    busiest block of every phase of a layer as much to do, so that there is less to wait for.
    """
    if format != "int4_g128" or fastest(shape, format, ops.known_arch()) == "9_flags_in_data":
        return sms
    units = [n // 16 for name, (n, _) in shape.matrices.items() if name != "head"]
    each = [math.ceil(count / sms) for count in units]
    fewest = max(math.ceil(count / most) for count, most in zip(units, each, strict=True))
    return max(fewest, min(sms, shape.heads))


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    used = (step, tail_of, _prepared, shared_of, macros_for, _split, widest_of, pair_heads, pair_gates)
    return source_of_callable(*used)


def _parts(matrix: Any, other: Any) -> list[Any]:
    """A matrix as the two arguments that a kernel takes: its codes, and its scales or anything."""
    return [matrix.quants, matrix.scales] if isinstance(matrix, Planes) else [matrix, other]


def check_sizes(shape: Shape, format: str, head_format: str) -> None:
    """Refuse, in a sentence, sizes that no rung takes."""
    if format not in FORMATS or head_format not in FORMATS[:2]:
        raise LaunchError(
            f"decode_step takes weights in {', '.join(FORMATS)} and a head in {' or '.join(FORMATS[:2])}, "
            f"not {format} and {head_format}."
        )
    if shape.head_dim not in (64, 128, 256, 512):
        raise LaunchError(f"decode_step takes heads of 64, 128, 256 or 512, not {shape.head_dim}.")
    for name, (n, k) in shape.matrices.items():
        kind = head_format if name == "head" else format
        rows, chunk = (64 if kind == "int4_g128" else 16), max(128, _CHUNK[FORMATS.index(kind)])
        if n % rows or k % chunk or not 0 < n * k < 1 << 34 or n >= 1 << 20:
            raise LaunchError(
                f"A matrix {name} [{n}, {k}] in {kind} is refused: rows are multiples of {rows} below 2^20, "
                f"k of {chunk}, elements fewer than 2^34."
            )


def check_shape(shape: Shape, format: str, head_format: str, macros: Mapping[str, int], blocks: int) -> None:
    """Refuse, in a sentence, what a rung cannot do."""
    check_sizes(shape, format, head_format)
    group, warps = shape.heads // shape.kv_heads, macros["WARPS"]
    if shape.heads % shape.kv_heads or not 0 < group <= min(warps, 16):
        raise LaunchError(
            f"{shape.heads} query heads on {shape.kv_heads} key-value heads do not share them evenly, up to "
            f"{min(warps, 16)} each."
        )
    if macros.get("PRODUCERS") and shape.head_dim > 128:
        raise LaunchError(
            f"Rung decode_step/6_producer_warps takes heads of 64 or 128, not {shape.head_dim}."
        )
    if "TENSOR_ATTENTION" in macros and group > 8:
        raise LaunchError(
            "Rung decode_step/8_tensor_attention takes at most 8 query heads to a key-value head, not "
            f"{group}."
        )
    for name, k in (("OUT_SLABS", shape.attended), ("DOWN_SLABS", shape.mlp)):
        chunks = k // _CHUNK[macros["FORMAT"]]
        if name in macros and not 0 < macros[name] <= min(chunks, blocks):
            raise LaunchError(
                f"{name} lies between 1 and {min(chunks, blocks)}, the chunks of k or the blocks, not at "
                f"{macros[name]}."
            )
    together = 1 + (group % 2 == 0)  # query heads a block
    if "FLAGS_IN_DATA" in macros:
        _check_counts(shape, macros, blocks)
        together = 1 if 8 <= shape.heads <= 16 else together
    if blocks < shape.heads // together:
        raise LaunchError(
            f"{shape.heads} heads on {shape.kv_heads} need {shape.heads // together} blocks, not {blocks}."
        )
    team, producers = macros["TEAM"], macros.get("PRODUCERS") or 1
    if team < 1 or warps % team or producers < 1 or warps % producers:
        raise LaunchError(f"{warps} WARPS do not come in teams of {team} for {producers} PRODUCERS.")
    if not (
        0 <= macros.get("HELD_BACK", 0) < macros["STAGES"]
        and 0 <= macros.get("FIRST_HELD", 0) <= macros["STAGES"]
    ):
        raise LaunchError(
            f"Of a ring of {macros['STAGES']} STAGES a warp holds back fewer, and the first one no more, not "
            f"{macros['HELD_BACK']} and {macros['FIRST_HELD']}."
        )
    begun = _begun(shape, blocks, macros)
    if begun > macros["SLOTS"]:
        raise LaunchError(
            f"On {blocks} blocks a warp needs room for {begun} units of 16 rows: take more SLOTS than "
            f"{macros['SLOTS']}, or more blocks."
        )


def _check_counts(shape: Shape, macros: Mapping[str, int], blocks: int) -> None:
    """Refuse what rung 9 cannot count: a sum of 1024 chunks, and a block that adds to none, because others
    tell by its sums that it has read what they write next.
    """
    for name, k in (("OUT_SLABS", shape.attended), ("DOWN_SLABS", shape.mlp)):
        chunks, slabs = k // _CHUNK[macros["FORMAT"]], macros[name]
        if chunks >= 1024 or chunks // slabs * (shape.hidden // 16) < math.ceil(blocks / slabs):
            raise LaunchError(
                "Rung decode_step/9_flags_in_data takes fewer than 1024 chunks of k, and a chunk or more for "
                f"each block, not {chunks} by {shape.hidden // 16} units in {slabs} slabs on {blocks} blocks."
            )


def _begun(shape: Shape, blocks: int, macros: Mapping[str, int]) -> int:
    """Units of 16 rows that a warp begins at most in the highest of the matrices, one or two at a time; but 4
    at least, which have room for the candidates of a warp.
    """
    teams = max(1, macros["WARPS"] // max(1, macros["TEAM"]))

    def runs(units: int) -> int:
        return units // teams + (2 if units % teams else 0)

    units = math.ceil(max(n for n, _ in shape.matrices.values()) / 16 / blocks)
    return max(4, runs(units), 2 * runs(math.ceil(units / 2)))


def check_operands(shape: Shape, weights: Weights, state: State) -> None:
    """Refuse arrays of the wrong size, type or alignment."""
    layers, capacity = shape.layers, state.capacity
    for name, (n, k) in shape.matrices.items():
        count = 1 if name == "head" else layers
        for which in ("head", "embedding") if name == "head" else (name,):
            _check_matrix(which, getattr(weights, which), count * n, k)
    check_array("norms", weights.norms, "float16", (2 * layers + 1) * shape.hidden, 16)
    check_array("biases", weights.biases, "float16", layers * shape.projected, 2)
    check_array("rotations", weights.rotations, "float32", None, 8)
    if weights.rotations.shape[0] < capacity:
        raise LaunchError(f"rotations of {weights.rotations.shape[0]} positions do not cover {capacity}.")
    cache = layers * capacity * shape.kv_heads * shape.head_dim
    for name, size, dtype in (
        *(("cache_k", cache, "float16"), ("cache_v", cache, "float16"), ("tokens", capacity, "uint32")),
        *(("position", 1, "uint32"), ("logits", shape.vocab, "float32"), ("counter", state.blocks, "uint32")),
        *(("candidates", 2 * state.blocks, "float32"), ("residual", shape.hidden, "float32")),
        *(("queries", shape.attended, "float16"), ("inner", shape.mlp, "float16")),
        ("split_outputs", shape.heads * _SPLITS * shape.head_dim, "float16"),
        ("split_stats", shape.heads * _SPLITS * 2, "float32"),
        ("residual_fixed", handed_words(shape), "int64"),
    ):
        check_array(name, getattr(state, name), dtype, size, 16 if size > 2 else 4)


def _check_matrix(name: str, matrix: Any, n: int, k: int) -> None:
    if isinstance(matrix, Planes):
        check_array(f"the quants of {name}", matrix.quants, "int8", n * k, 16)
        check_array(f"the scales of {name}", matrix.scales, "float16", n * k // 32, 16)
    elif matrix.shape[-1] == 1056:
        check_array(name, matrix, "uint32", n // 64 * (k // 128) * 1056, 16)
    else:
        check_array(name, matrix, "float16", n * k, 16)


class Launches(NamedTuple):
    """What a step launches: a kernel with its arguments, and how."""

    function: Any
    arguments: list[Any]
    threads: int
    shared: int


def _prepared(
    chosen: Rung,
    shape: Shape,
    weights: Weights,
    state: State,
    inverse_temperature: float,
    seed: int,
    options: Mapping[str, int],
) -> Launches:
    """All checks, and what every launch of a step has in common."""
    macros = macros_for(
        chosen, shape, weights.format, weights.head_format, _arch(state), options, state.blocks
    )
    check_shape(shape, weights.format, weights.head_format, macros, state.blocks)
    check_operands(shape, weights, state)
    if not (inverse_temperature >= 0 and math.isfinite(inverse_temperature)):
        raise LaunchError(
            "inverse_temperature is one over a temperature, or 0 for the likeliest token, not "
            f"{inverse_temperature}."
        )
    arguments: list[Any] = []
    for matrix in (weights.qkv, weights.out, weights.gate_up, weights.down, weights.head, weights.embedding):
        arguments += _parts(matrix, weights.norms)
    arguments += [
        weights.norms,
        weights.biases,
        weights.rotations,
        state.residual,
        state.queries,
        state.inner,
    ]
    arguments += [
        state.split_outputs,
        state.split_stats,
        state.candidates,
        state.logits,
        state.cache_k,
        state.cache_v,
    ]
    arguments += [state.tokens, state.position]
    sizes = (shape.layers, shape.vocab, state.capacity)
    arguments += [ctypes.c_int(v) for v in sizes]
    arguments += [ctypes.c_float(v) for v in (shape.epsilon, shape.softcap, inverse_temperature)] + [
        ctypes.c_uint(seed)
    ]
    function = loaded(chosen, tuple(sorted(macros.items())))
    shared = shared_of(shape, macros, _boxes(chosen))
    return Launches(function, arguments, 32 * (macros["WARPS"] + macros.get("PRODUCERS", 0)), shared)


class Maps(ctypes.Structure):
    """Tensor maps of all phases' matrices and of their scales: struct Maps of decoder/stream_tma.cuh."""

    _fields_ = [("codes", nvrtc.TensorMap * (HEAD + 1)), ("scales", nvrtc.TensorMap * (HEAD + 1))]

    def getPtr(self) -> int:
        """Its address: what cuda-bindings asks of a structure that is passed by value."""
        return ctypes.addressof(self)


def maps_of(shape: Shape, weights: Weights) -> Maps:
    """The maps that rung 4_tma copies by: FP16 and Q8_0 matrices need one each, INT4 none."""
    maps = Maps()
    for phase, name in ((QKV, "qkv"), (OUT, "out"), (GATE_UP, "gate_up"), (DOWN, "down"), (HEAD, "head")):
        (n, k), matrix = shape.matrices[name], getattr(weights, name)
        rows = n * (1 if phase == HEAD else shape.layers)
        if isinstance(matrix, Planes):
            if k % 256:
                raise LaunchError(f"Rung decode_step/4_tma takes Q8_0 with k a multiple of 256, not {k}.")
            codes, scales = nvrtc.pointer(matrix.quants), nvrtc.pointer(matrix.scales)
            maps.codes[phase] = nvrtc.tensor_map(codes, rows, k, "int8", (16, 128), 128)
            maps.scales[phase] = nvrtc.tensor_map(scales, rows, k // 32, "float16", (16, 8), 0)
        elif matrix.shape[-1] != 1056:
            maps.codes[phase] = nvrtc.tensor_map(nvrtc.pointer(matrix), rows, k, "float16", (16, 64), 128)
    return maps


def _arch(state: State) -> str:
    """The architecture whose limits count: the GPU's, or on the CPU that of most consumer GPUs."""
    return "89" if isinstance(state.tokens, np.ndarray) else ops.this_arch()


def tail_of(rung: Rung, shape: Shape, weights: Weights, state: State, steps: int) -> list[Any]:
    """The arguments that a persistent rung takes after those of all rungs."""
    tail = [state.counter, ctypes.c_int(steps)]
    if _boxes(rung):
        tail.append(maps_of(shape, weights))
    if splits_k(rung):
        tail.append(state.residual_fixed)
    return tail


@with_target()
def step(
    shape: Shape,
    weights: Weights,
    state: State,
    *,
    steps: int = 1,
    inverse_temperature: float = 0.0,
    seed: int = 0,
    rung: str | None = None,
    **options: int,
) -> None:
    """Decode `steps` tokens: each is chosen among the candidates that the step before it (or `candidates`)
    left, written to tokens[position], and makes logits and candidates for the next one.

    With inverse_temperature 0 the likeliest token is a candidate, else one drawn with the probability that
    softmax gives it at temperature 1 / inverse_temperature, the same for the same seed and position. The
    position is read on the device: the caller keeps position + steps within the capacity. LaunchError for
    operands that don't fit.
    """
    chosen = rung_of(LADDERS["decode_step"], rung, fastest(shape, weights.format, _arch(state)))
    if steps < 1:
        raise LaunchError(f"A step decodes 1 token or more, not {steps}.")
    function, arguments, threads, shared = _prepared(
        chosen, shape, weights, state, inverse_temperature, seed, options
    )
    if chosen.name in PERSISTENT:
        tail = tail_of(chosen, shape, weights, state, steps)
        function.launch(state.blocks, threads, [*arguments, *tail], shared=shared, cooperative=True)
        return
    dependent = chosen.name == "2_pdl" and _arch(state) in ops.DEPENDENT
    for layer, phase in [*phases(shape.layers)] * steps:
        tail = [ctypes.c_int(layer), ctypes.c_int(phase)]
        function.launch(state.blocks, threads, [*arguments, *tail], shared=shared, dependent=dependent)


@with_target()
def head(
    shape: Shape,
    weights: Weights,
    state: State,
    *,
    inverse_temperature: float = 0.0,
    seed: int = 0,
    **options: int,
) -> None:
    """Logits and candidates for the next token out of the residual alone: how a prompt ends."""
    chosen = LADDERS["decode_step"][0]
    function, arguments, threads, shared = _prepared(
        chosen, shape, weights, state, inverse_temperature, seed, options
    )
    tail = [ctypes.c_int(0), ctypes.c_int(HEAD)]
    function.launch(state.blocks, threads, [*arguments, *tail], shared=shared)


def phases(layers: int) -> Sequence[tuple[int, int]]:
    """Layer and phase of a token's launches, in order."""
    return [*((layer, phase) for layer in range(layers) for phase in range(HEAD)), (0, HEAD)]
