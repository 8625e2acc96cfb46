"""A token or a prompt of a model, by one GPU and by several: whole decoders of studies `links`, `split`."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rooflab import engine
from rooflab.bench import gate
from rooflab.engine import exact
from rooflab.engine.weights import random_tensors
from rooflab.engine.world import Distributed, Peers, World
from rooflab.errors import GateError, UsageError
from rooflab.numerics import model_shapes
from rooflab.records.case import Case
from rooflab.runtime import driver
from rooflab.studies import links, split
from rooflab.studies.base import TOO_LARGE

_LAYERS = 2  # of a model's widths, which float64 judges
_JUDGED = 2048  # tokens of a prompt that float64 judges at most
_SAMPLES = 10
_ROOM = 2 << 30  # bytes for a KV cache, activations and what libraries keep, beside the weights
_SEED = 20261122


class Found(NamedTuple):
    """What a case came to: its samples, or the reason why it has none."""

    samples_us: list[float]
    error: float
    budget: float
    reason: str


def gathered(value: Any) -> list[Any]:
    """`value` of every process, by rank."""
    from torch import distributed

    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def measured(world: Distributed, cases: Sequence[Case]) -> dict[str, Found]:
    """Cases of one model: each decoder against float64 on two layers of the model's widths, then the time of
    a token or a prompt of the whole model. One GPU's decoder is the first process's alone.
    """
    from torch import distributed

    spec = engine.spec(cases[0].model)
    found = refused(spec, cases, world.size) | too_large(cases, world.size)
    cases = [case for case in cases if case.id not in found]
    two_layers = replace(spec, shape=replace(spec.shape, layers=_LAYERS))
    peers = Peers(world)
    worlds: dict[str, World | None] = {links.ALONE: None, links.NCCL: world}
    worlds |= {split.SEPARATE: peers, split.FUSED: peers, split.FUSED_PLAIN: peers}
    errors = {}
    for case in cases:
        with _launches(case):
            errors[case.id] = _error(worlds[case.impl], world.rank, two_layers, case)
        _give_up_memory()
    for group in (
        [case for case in cases if case.impl == links.ALONE],
        [case for case in cases if case.impl != links.ALONE],
    ):
        if not group:
            continue
        size = 1 if group[0].impl == links.ALONE else world.size
        weights = _weights(spec, group[0], world.rank, size, max(map(_capacity, group)))
        for case in group:
            series = [math.nan] * _SAMPLES
            if weights is not None:
                with _launches(case):
                    series = _times(_decoder(worlds[case.impl], case, *weights), case)
            _give_up_memory()
            distributed.barrier()
            slowest = np.nanmax(gathered(series), 0)
            error, budget = next(pair for pair in gathered(errors[case.id]) if pair is not None)
            found[case.id] = Found([float(us) for us in slowest], error, budget, "")
        del weights
        _give_up_memory()
    return found


def _launches(case: Case) -> AbstractContextManager[None]:
    """How a case's kernels are launched: dependent ones as plain ones where that is asked."""
    return driver.plain_launches() if case.impl == split.FUSED_PLAIN else nullcontext()


def refused(spec: engine.Spec, cases: Sequence[Case], size: int) -> dict[str, Found]:
    """Cases of a model that `size` GPUs cannot share evenly, each with the reason; never those of one GPU."""
    try:
        engine.share(spec, random_tensors(spec), 0, size)
    except UsageError as error:
        return {
            case.id: Found([], math.nan, math.nan, f"{error}") for case in cases if case.impl != links.ALONE
        }
    return {}


def too_large(cases: Sequence[Case], size: int) -> dict[str, Found]:
    """Cases whose weights do not fit the GPUs that they are asked of, each with the reason."""
    import cupy

    free, gib = min(gathered(cupy.cuda.runtime.memGetInfo()[0])), 2**30
    found = {}
    for case in cases:
        gpus = 1 if case.impl == links.ALONE else size
        needed = model_shapes.held_bytes(model_shapes.get(case.model), case.format, split.HEAD, gpus) + _ROOM
        if needed > free:
            reason = f"{TOO_LARGE} {needed / gib:.1f} GiB and {free / gib:.1f} are free"
            found[case.id] = Found([], math.nan, math.nan, reason)
    return found


def _give_up_memory() -> None:
    """Hand back what torch and CuPy keep for later: of a GPU that a model fills both would keep half."""
    import cupy
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()


def _capacity(case: Case) -> int:
    """Positions that a case needs."""
    return (case.seq or 0) + (2 * links.STEPS if case.operator == "decode" else 1)


def _weights(spec: Any, case: Case, rank: int, size: int, capacity: int) -> tuple[Any, Any] | None:
    """Spec and weights of this process's share; None for all but the first where one GPU has the whole."""
    if size == 1 and rank > 0:
        return None
    own, get = spec, random_tensors(spec)
    if size > 1:
        own, get = engine.share(spec, get, rank, size)
    return own, engine.pack(own, get, case.format, capacity=capacity)


def _decoder(world: World | None, case: Case, spec: Any, weights: Any) -> engine.Engine:
    capacity = min(_capacity(case), int(weights.rotations.shape[0]))
    if world is None:
        return engine.Engine(spec, weights, capacity=capacity)
    return engine.Split(
        spec, weights, world=world, capacity=capacity, dependent=case.impl in (split.FUSED, split.FUSED_PLAIN)
    )


def _prompt(spec: Any, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(_SEED).integers(0, spec.shape.vocab, count)]


def _error(world: World | None, rank: int, spec: Any, case: Case) -> tuple[float, float] | None:
    """How far logits are from float64's after a prompt, and after tokens where those are timed, and what is
    allowed; None in processes that do not judge.
    """
    import torch

    decodes = case.operator == "decode"
    tokens = _prompt(spec, 9 if decodes else min(case.seq or 0, _JUDGED))
    made = _weights(spec, case, rank, 1 if world is None else world.size, len(tokens) + links.STEPS)
    if made is None:
        return None
    decoder = _decoder(world, case, *made)
    decoder.prefill(tokens)
    if decodes:
        tokens += decoder.generate(6)
    if rank > 0:
        return None
    ids, get = torch.tensor(tokens, device="cuda"), random_tensors(spec)
    expected = exact.logits(spec, get, ids, case.format, last=True)[0]
    baseline = exact.logits(spec, get, ids, case.format, dtype="float16", last=True)[0].double()
    off = float((baseline - expected).abs().max())
    budget = gate.error_budget(off, expected.cpu().numpy(), "float16")
    error = float((decoder.logits.double() - expected).abs().max())
    if not error <= budget:
        raise GateError(f"{case.id}: logits are off by {error:.3g}, and {budget:.3g} is allowed.")
    return error, budget


def _times(decoder: engine.Engine, case: Case) -> list[float]:
    """Microseconds a token, or a prompt, by the host's clock, after one round that is not counted."""
    import torch

    prompt, times = _prompt(decoder.spec, case.seq or 0), []

    def timed(run: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6

    for _ in range(_SAMPLES + 1):
        decoder.reset()
        us = timed(lambda: decoder.prefill(prompt))
        if case.operator == "decode":
            us = timed(lambda: decoder.decode(links.STEPS)) / links.STEPS
        times.append(us)
    return times[1:]
