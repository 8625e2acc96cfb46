"""Contestants of study `decode`: a launch generates all of a case's tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rooflab import engine
from rooflab.bench import gate
from rooflab.engine import gemma, gemma_exact
from rooflab.records.case import Case
from rooflab.studies import decoding, hf
from rooflab.studies.decode import CAPACITY, GEMMA, NEWER, RUNGS, head_of, sequences_of, steps_of

# What multiplies FP16; other ways make Q8_1 of it for weights in Q8_0.
FP16_TAKEN = (*RUNGS, *NEWER)


class Start:
    """Where contestants of ours at batch 1 start from: the prompt's cache and the candidates for the token
    after it, and who judges what comes then.
    """

    def __init__(self, model: str, format: str, head: str, seq: int):
        weights = decoding.packed(model, format, head, CAPACITY)
        one = engine.Engine(engine.spec(model), weights, capacity=seq + 1)
        one.prefill(decoding.prompt(model, 1, seq)[0].tolist())
        self.caches = [cache[:, :seq].clone() for cache in (one.state.cache_k, one.state.cache_v)]
        self.candidates = one.state.candidates.clone()
        layers = zip(*self.caches, strict=True)
        past = [(k.transpose(0, 1)[None], v.transpose(0, 1)[None]) for k, v in layers]
        self.judge = decoding.judge(model, format, head, past, 1)


_start = functools.lru_cache(maxsize=1)(Start)


@functools.lru_cache(maxsize=8)
def _budget(judge: decoding.Judge, steps: int, rounded: bool) -> float:
    return judge.budget(steps, rounded)


def work_of(case: Case) -> gate.Work:
    """A contestant: one launch generates the case's tokens anew."""
    if case.impl in hf.VARIANTS:
        return _library(case)
    if case.model == GEMMA:
        return _gemma(case)
    if case.impl == "drafts":
        return _drafts(case)
    return _own(case) if case.batch == 1 else _several(case)


def _work(case: Case, launch: Any, inputs: list[Any], outputs: list[Any], judge: decoding.Judge) -> gate.Work:
    import cupy

    steps = steps_of(case)
    size = sequences_of(case) * (steps - 1 + judge.vocab)
    return gate.Work(
        case.id,
        launch,
        [inputs],
        [outputs],
        lambda: cupy.zeros(size),
        _budget(judge, steps, case.format == "q8_0" and case.impl not in FP16_TAKEN),
        judge.deviation,
    )


def _own(case: Case) -> gate.Work:
    one, start, begin = _begun(case, engine.Paths(decode=case.impl))

    def launch(_: int) -> None:
        begin()
        one.decode(steps_of(case))

    return _work(case, launch, _inputs(one), [one.state.tokens[case.seq :], one.state.logits], start.judge)


def _begun(case: Case, paths: engine.Paths) -> tuple[engine.Engine, Start, Callable[[], None]]:
    """An engine with room for the case's tokens, where it starts from, and what takes it back there."""
    seq = case.seq or 0
    weights = decoding.packed(case.model, case.format, head_of(case), CAPACITY)
    start = _start(case.model, case.format, head_of(case), seq)
    one = engine.Engine(engine.spec(case.model), weights, capacity=seq + steps_of(case), paths=paths)
    state = one.state
    for cache, kept in zip((state.cache_k, state.cache_v), start.caches, strict=True):
        cache[:, :seq].copy_(kept)

    def begin() -> None:
        one.position = seq
        state.position.fill_(seq)
        state.candidates.copy_(start.candidates)

    return one, start, begin


def _inputs(one: engine.Engine) -> list[Any]:
    return [part for matrix in one.weights[2:8] for part in _arrays(matrix)]


def _drafts(case: Case) -> gate.Work:
    """Checks of drafts that all hold, one after the other: the host asks after each what has held."""
    one, start, begin = _begun(case, engine.Paths())
    begin()
    known = holding(one, begin, steps_of(case), case.batch or 1)

    def launch(_: int) -> None:
        begin()
        for at in range(0, len(known), case.batch or 1):
            one.verify(known[at : at + (case.batch or 1)])

    return _work(case, launch, _inputs(one), [one.state.tokens[case.seq :], one.state.logits], start.judge)


def holding(one: engine.Engine, begin: Callable[[], None], count: int, each: int) -> list[int]:
    """`count` tokens that all hold where they are checked `each` at a time: what the engine decodes, or where
    two tokens are as likely what a check takes for due, and what comes after it.
    """
    known = one.generate(count)
    while True:
        begin()
        for at in range(0, count, each):
            held, due = one.verify(known[at : at + each])
            if held < each:
                known = [*known[: at + held], due, *one.generate(count - at - held)[1:]]
                break
        else:
            return known


def _arrays(matrix: Any) -> list[Any]:
    return list(matrix) if isinstance(matrix, tuple) else [matrix]


def _several(case: Case) -> gate.Work:
    steps, seq, size = steps_of(case), case.seq or 0, case.batch or 1
    weights = decoding.packed(case.model, case.format, head_of(case), CAPACITY)
    one = engine.Engine(engine.spec(case.model), weights, capacity=seq + steps)
    many = engine.Batch(one, size, dependent=case.impl == "batch_dependent")
    many.prefill(decoding.prompt(case.model, size, seq).tolist())
    first, places = many.tokens[seq].clone(), many.places.clone()
    past = [
        (k[:seq].permute(1, 2, 0, 3).clone(), v[:seq].permute(1, 2, 0, 3).clone())
        for k, v in zip(many.cache_k, many.cache_v, strict=True)
    ]
    judge = decoding.judge(case.model, case.format, head_of(case), past, size)

    def launch(_: int) -> None:
        many.position = seq
        many.places.copy_(places)
        many.tokens[seq].copy_(first)
        many.decode(steps)

    inputs = [part for matrix in weights[2:8] for part in _arrays(matrix)]
    work = _work(case, launch, inputs, [many.tokens[seq : seq + steps], many.logits], judge)
    work.result = lambda outputs: judge.deviation([outputs[0].t().contiguous(), outputs[1]])
    return work


def _gemma(case: Case) -> gate.Work:
    """A decoder of another kind, which is judged from the first token of the prompt on."""
    steps, seq = steps_of(case), case.seq or 0
    spec, ids = gemma.spec(case.model), decoding.prompt(case.model, 1, seq)
    weights = gemma_weights(case.model, case.format, head_of(case))
    one = gemma.Engine(spec, weights, capacity=seq + steps)
    one.prefill(ids[0].tolist())
    state, get = one.state, gemma.random_tensors(spec)
    candidates = state.candidates.clone()

    def launch(_: int) -> None:
        one.position = seq
        state.position.fill_(seq)
        state.candidates.copy_(candidates)
        one.decode(steps)

    def computed(tokens: Any, dtype: str, rounded: bool) -> Any:
        every = torch.cat((ids[0], tokens[0].long()))
        return gemma_exact.logits(
            spec, get, every, case.format, head_of(case), dtype, first=seq, rounded=rounded
        )[None]

    import torch

    judge = decoding.Judge(case.model, 1, seq, spec.model.vocab, computed)
    return _work(case, launch, [ids], [state.tokens[seq:], state.logits], judge)


@functools.lru_cache(maxsize=1)
def gemma_weights(model: str, format: str, head: str) -> Any:
    """Random weights of a model of Gemma 4's kind; those of the other models make room for them."""
    decoding.packed.cache_clear()
    return gemma.random_weights(gemma.spec(model), format, head, capacity=CAPACITY)


def _library(case: Case) -> gate.Work:
    found = decoding.library(case.model)
    ids = decoding.prompt(case.model, case.batch or 1, case.seq or 0)
    steps = steps_of(case)
    one = decoding.Generate(found, ids, steps, case.impl)
    judge = decoding.judge(case.model, case.format, head_of(case), one.past, case.batch or 1)

    def launch(_: int) -> None:
        one.run(steps)

    return _work(case, launch, [ids], [one.tokens, one.logits], judge)
