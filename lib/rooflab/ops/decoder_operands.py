"""Operands of decode_step: the sizes of a decoder, its weights and state, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rooflab.errors import LaunchError
from rooflab.numerics.quant import Planes
from rooflab.ops import check_array

_SPLITS = 32  # parts of a context at most, of the rung that makes most


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
        residual_fixed=zeros((handed_words(shape, blocks),), "int64"),
    )


def handed_words(shape: Shape, blocks: int) -> int:
    """Words of 8 bytes that blocks of rungs that divide k hand on: the residual of rungs 7 and 8; the sums
    and flagged words of rung 9, and what each block keeps, see kernels/common/decoder/flags.cuh.
    """
    splits = shape.heads * 16
    halves = shape.attended + 2 * shape.kv_heads * shape.head_dim + splits * shape.head_dim + shape.mlp
    return 4 * shape.hidden + splits + halves // 2 + blocks * shape.hidden


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
        ("residual_fixed", handed_words(shape, state.blocks), "int64"),
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
