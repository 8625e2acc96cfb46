"""A token of a model, by one GPU and by several: what study `links` times of whole decoders."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rooflab import engine
from rooflab.bench import gate
from rooflab.engine import exact
from rooflab.engine.weights import random_tensors
from rooflab.engine.world import Distributed, Peers, World
from rooflab.errors import GateError
from rooflab.ops import all_reduce
from rooflab.records.case import Case
from rooflab.studies import links

_LAYERS = 2  # of a model's widths, which float64 judges
_SAMPLES = 10
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
    """Cases of one model: each split decoder against float64 on two layers of the model's widths, then the
    time of a token of the whole model. One GPU's decoder is the first process's alone.
    """
    import torch
    from torch import distributed

    spec, found = engine.spec(cases[0].model), {}
    two_layers = replace(spec, shape=replace(spec.shape, layers=_LAYERS))
    worlds: dict[str, World] = {links.NCCL: world, all_reduce.DEFAULT: Peers(world)}
    errors = {case.impl: _error(worlds.get(case.impl), world.rank, two_layers, case) for case in cases}
    alone = [case for case in cases if case.impl == links.ALONE]
    shared = [case for case in cases if case.impl != links.ALONE]
    for group in (alone, shared):
        weights = _weights(spec, group[0], world.rank, 1 if group is alone else world.size) if group else None
        for case in group:
            series = [math.nan] * _SAMPLES
            if weights is not None:
                series = _token_times(_decoder(worlds.get(case.impl), *weights))
            distributed.barrier()
            slowest = np.nanmax(gathered(series), 0)
            error, budget = next(pair for pair in gathered(errors[case.impl]) if pair is not None)
            found[case.id] = Found([float(us) for us in slowest], error, budget, "")
        del weights
        gc.collect()
        torch.cuda.empty_cache()
    return found


def _weights(spec: Any, case: Case, rank: int, size: int) -> tuple[Any, Any] | None:
    """Spec and weights of this process's share; None for all but the first where one GPU has the whole."""
    if size == 1 and rank > 0:
        return None
    own, get = spec, random_tensors(spec)
    if size > 1:
        own, get = engine.share(spec, get, rank, size)
    return own, engine.pack(own, get, case.format, capacity=links.PROMPT + 2 * links.STEPS)


def _decoder(world: World | None, spec: Any, weights: Any) -> engine.Engine:
    return engine.Engine(spec, weights) if world is None else engine.Split(spec, weights, world=world)


def _prompt(spec: Any, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(_SEED).integers(0, spec.shape.vocab, count)]


def _error(world: World | None, rank: int, spec: Any, case: Case) -> tuple[float, float] | None:
    """How far logits are from float64's after a prompt and tokens, and what is allowed; None in
    processes that do not judge.
    """
    import torch

    made = _weights(spec, case, rank, 1 if world is None else world.size)
    if made is None:
        return None
    decoder = _decoder(world, *made)
    tokens = _prompt(spec, 9)
    decoder.prefill(tokens)
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


def _token_times(decoder: engine.Engine) -> list[float]:
    """Microseconds a token by the host's clock, after one round that is not counted."""
    import torch

    prompt, times = _prompt(decoder.spec, links.PROMPT), []
    for _ in range(_SAMPLES + 1):
        decoder.reset()
        decoder.prefill(prompt)
        torch.cuda.synchronize()
        start = time.perf_counter()
        decoder.decode(links.STEPS)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / links.STEPS * 1e6)
    return times[1:]
