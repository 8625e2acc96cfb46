"""One decoded token at batch 1, from its choice to the logits that choose the next: decode_step.

Weights lie as kernels/common/decoder/model.cuh wants them: of all layers in one array a kind, rows of
queries, keys and values in one matrix and those of gate and up in another, ordered by `pair_heads` and
`pair_gates` so that rows which belong together lie 8 apart in 16. They are FP16, Q8_0 in planes, or INT4 in
tile order. Everything that a step reads and writes stays on the device, its token and its
position included.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rooflab import ops
from rooflab.errors import LaunchError
from rooflab.numerics.quant import Planes
from rooflab.ops import Rung, decoder_rungs, loaded, rung_of, with_target
from rooflab.ops.decoder_operands import Shape, State, Weights, check_operands, pair_gates, pair_heads
from rooflab.ops.decoder_operands import candidates as candidates
from rooflab.ops.decoder_operands import state_for as state_for
from rooflab.ops.decoder_operands import unpair_heads as unpair_heads
from rooflab.ops.decoder_plan import FORMATS as FORMATS
from rooflab.ops.decoder_plan import blocks_for as blocks_for
from rooflab.ops.decoder_plan import (
    check_shape,
    fastest,
    has_boxes,
    macros_for,
    shared_of,
    split_for,
    splits_k,
    widest_of,
)
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc

QKV, ATTEND, OUT, GATE_UP, DOWN, HEAD = range(6)
# Rungs that take many tokens in one launch.
PERSISTENT = (
    *("3_persistent", "4_tma", "5_prefetch_at_barrier", "6_producer_warps"),
    *("7_split_k", "8_tensor_attention", "9_flags_in_data", "10_int4_bytes"),
)
PLACE = 7  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {"decode_step": decoder_rungs.STEP}


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    used = (step, tail_of, prepared, shared_of, macros_for, split_for, widest_of, pair_heads, pair_gates)
    return source_of_callable(*used)


class Launches(NamedTuple):
    """What a step launches: a kernel with its arguments, and how."""

    function: Any
    arguments: list[Any]
    threads: int
    shared: int


def prepared(
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
    shared = shared_of(shape, macros, has_boxes(chosen))
    return Launches(function, arguments, 32 * (macros["WARPS"] + macros.get("PRODUCERS", 0)), shared)


def _parts(matrix: Any, other: Any) -> list[Any]:
    """A matrix as the two arguments that a kernel takes: its codes, and its scales or anything."""
    return [matrix.quants, matrix.scales] if isinstance(matrix, Planes) else [matrix, other]


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
    return ops.arch_of(state.tokens)


def tail_of(rung: Rung, shape: Shape, weights: Weights, state: State, steps: int) -> list[Any]:
    """The arguments that a persistent rung takes after those of all rungs."""
    tail = [state.counter, ctypes.c_int(steps)]
    if has_boxes(rung):
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
    function, arguments, threads, shared = prepared(
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
    function, arguments, threads, shared = prepared(
        chosen, shape, weights, state, inverse_temperature, seed, options
    )
    tail = [ctypes.c_int(0), ctypes.c_int(HEAD)]
    function.launch(state.blocks, threads, [*arguments, *tail], shared=shared)


def phases(layers: int) -> Sequence[tuple[int, int]]:
    """Layer and phase of a token's launches, in order."""
    return [*((layer, phase) for layer in range(layers) for phase in range(HEAD)), (0, HEAD)]
