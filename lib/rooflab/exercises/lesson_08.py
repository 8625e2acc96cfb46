"""Checkers of lesson 08's exercises: each calls the answer with cases of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rooflab.exercises import Wrong, called, checker


@checker("08.1")
def after(answer: Callable[..., Any]) -> str:
    """Amdahl's law over several parts at once."""
    cases: tuple[tuple[dict[str, float], dict[str, float], float], ...] = (
        ({"weight": 1600.0, "norm": 660.0, "rest": 820.0}, {"weight": 2.0}, 3900.0),
        ({"weight": 1600.0, "norm": 660.0, "rest": 820.0}, {"norm": math.inf, "rest": math.inf}, 3900.0),
        ({"a": 10.0, "b": 30.0}, {"a": 5.0, "b": 3.0}, 40.0),
        ({"a": 10.0, "b": 30.0}, {}, 45.0),
    )
    for parts, gains, total in cases:
        saved = sum(parts[name] * (1 - 1 / gain) for name, gain in gains.items())
        got = float(called(answer, dict(parts), dict(gains), total))
        inside = sum(us / gains.get(name, 1.0) for name, us in parts.items())
        if total != sum(parts.values()) and math.isclose(got, inside, rel_tol=1e-9):
            raise Wrong(f"of {total:g} µs the parts explain {sum(parts.values()):g}: the others stay.")
        if math.isclose(got, total / (total - saved), rel_tol=1e-9) and got != total - saved:
            raise Wrong("the answer is the new time in µs, not how many times as fast it is.")
        if not math.isclose(got, total - saved, rel_tol=1e-9):
            raise Wrong(f"for parts {parts}, gains {gains} and {total:g} µs in all it gives {got:g}.")
    return "what a step is worth was known before it was written."


def _truths() -> list[tuple[Any, int, float, bool, str]]:
    generator = np.random.default_rng(8)
    plain = generator.standard_normal(50)
    plain[7] = 5.0
    tied = plain.copy()
    tied[9] = 4.99
    second = int(np.argsort(plain)[-2])
    return [
        (plain, 7, 0.02, True, "the likeliest token"),
        (plain, second, 0.02, False, "the second, far behind"),
        (tied, 9, 0.02, True, "a token that trails by half the budget"),
        (tied, 9, 0.002, False, "a token that trails by five budgets"),
        (-np.abs(plain) - 1, int((-np.abs(plain)).argmax()), 0.01, True, "logits that are all negative"),
        (plain, -1, 0.02, False, "a token that does not exist"),
    ]


@checker("08.2")
def bears_out(answer: Callable[..., Any]) -> str:
    """Whether exact logits bear a chosen token out."""
    verdicts = []
    for logits, token, budget, right, what in _truths():
        got = called(answer, logits.copy(), token, budget)
        verdicts.append((bool(got), right, what))
    for got, right, what in verdicts:
        if got != right:
            raise Wrong(f"{what} is {'accepted' if got else 'refused'}.")
    return "equal but for provable near-ties: as strict as arithmetic allows, and no stricter."


@checker("08.3")
def tokens_a_second(answer: Callable[..., Any]) -> str:
    """The roof of decoding, in tokens a second."""
    cases = (
        (1.31e9, 0.515625, 2.33e8, 2.0, 28672, 192, 4600.0, 1),
        (1.31e9, 2.0, 2.33e8, 2.0, 28672, 192, 4600.0, 32),
        (7.0e9, 1.0625, 5.3e8, 1.0625, 131072, 8000, 1000.0, 8),
    )
    for body, width, head, head_width, kv, context, gb_s, batch in cases:
        weights = body * width + head * head_width
        right = batch * gb_s * 1e9 / (weights + batch * kv * context)
        got = float(called(answer, body, width, head, head_width, kv, context, gb_s, batch))
        if batch > 1 and math.isclose(got, gb_s * 1e9 / (weights + kv * context), rel_tol=1e-6):
            raise Wrong(f"{batch} sequences get a token each of one pass over the weights.")
        if math.isclose(got, batch * gb_s * 1e9 / (weights + kv * context), rel_tol=1e-6) and batch > 1:
            raise Wrong("weights are shared, but every sequence has a cache of its own to read.")
        if math.isclose(got, batch * gb_s * 1e9 / weights, rel_tol=1e-6):
            raise Wrong("keys and values of all tokens before it are read for every token, too.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"for {body:g} weights of {width:g} bytes, {batch} sequences it gives {got:g} tok/s.")
    return "no decoder at any price gets more out of that memory."


@checker("08.4")
def prompt_us(answer: Callable[..., Any]) -> str:
    """The slower of host and GPU sets the time."""
    cases = (
        ([("a", 2.0)] * 100, 20.0, False),
        ([("a", 200.0)] * 100, 20.0, False),
        ([("a", 2.0)] * 100, 20.0, True),
        ([("a", 5.0), ("b", 50.0)] * 40, 20.0, False),
        ([("a", 500.0)] + [("b", 1.0)] * 99, 10.0, False),
    )
    for kernels, call, graph in cases:
        gpu, host = 0.0, 0.0
        for _, us in kernels:
            host += call
            gpu = (gpu if graph else max(gpu, host)) + us
        got = float(called(answer, [us for _, us in kernels], call, graph))
        total = sum(us for _, us in kernels)
        if graph and not math.isclose(got, gpu, rel_tol=1e-9):
            raise Wrong("in a graph the host calls once; what counts are the kernels.")
        if math.isclose(got, total + call * len(kernels), rel_tol=1e-9):
            raise Wrong("host and GPU work at the same time: their times do not add up.")
        if math.isclose(got, max(total, call * len(kernels)), rel_tol=1e-9) and got != gpu:
            raise Wrong("no kernel starts before it was called, and none before the one in front has ended.")
        if not math.isclose(got, gpu, rel_tol=1e-9):
            raise Wrong(f"for {len(kernels)} kernels at {call:g} µs a call it gives {got:g} µs.")
    return "the queue in between is all there is to asynchrony."


@checker("08.5")
def joules_a_token(answer: Callable[..., Any]) -> str:
    """Energy of a token from a counter that ticks now and then."""
    generator = np.random.default_rng(5)
    for watts, each_s, every in ((470.0, 1.1e-3, 0.1), (230.0, 4.0e-3, 0.02), (650.0, 0.7e-3, 0.1)):
        times = np.sort(generator.uniform(0, 1.5, 400))
        seen = [(float(t), watts * every * math.floor(t / every) + 1e6) for t in times]
        ticks = [at for at, before in zip(seen[1:], seen, strict=False) if at[1] != before[1]]
        right = (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0]) * each_s
        naive = (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) * each_s
        got = float(called(answer, list(seen), each_s))
        if math.isclose(got, naive, rel_tol=1e-9) and not math.isclose(naive, right, rel_tol=1e-3):
            raise Wrong("the counter had not moved since long before the first reading: start at a tick.")
        if not math.isclose(got, right, rel_tol=0.02):
            raise Wrong(f"at {watts:g} W and {each_s * 1e3:g} ms a token it gives {got:g} J.")
    return "energy between two ticks over the time between them, times the time of a token."


@checker("08.6")
def worth_waiting(answer: Callable[..., Any]) -> str:
    """From how many sequences on arithmetic, not memory, bounds a step."""
    for weights, width, gb_s, tflop_s in (
        (1.5e9, 2.0, 4600.0, 760.0),
        (1.5e9, 0.52, 4600.0, 760.0),
        (8e9, 1.0625, 1000.0, 165.0),
    ):
        right = math.ceil(weights * width / gb_s / 1e9 / (2 * weights / tflop_s / 1e12))
        got = called(answer, weights, width, gb_s, tflop_s)
        if abs(float(got) - right) > 1e-6 and abs(float(got) - 2 * right) <= 2:
            raise Wrong("a multiplication and an addition for each weight: two operations.")
        if float(got) != right:
            raise Wrong(
                f"with {width:g} bytes a weight at {gb_s:g} GB/s and {tflop_s:g} TFLOP/s it gives {got}."
            )
    return "fewer bytes a weight, fewer sequences to fill the tensor cores."


@checker("08.7")
def cache_bytes(answer: Callable[..., Any]) -> str:
    """Bytes of cache that a token reads where layers differ in what they see and own."""
    cases = (
        ([(256, None)] * 4, 2, 1000),
        ([(256, 512)] * 5 + [(512, None)], 2, 1000),
        ([(256, 512)] * 5 + [(512, None)], 2, 100),
        ([(128, 64), (256, None)] * 3, 4, 64),
    )
    for layers, kv_heads, context in cases:
        right = sum(2 * kv_heads * d * 2 * min(context, window or context) for d, window in layers)
        got = float(called(answer, list(layers), kv_heads, context))
        if got == sum(2 * kv_heads * d * 2 * context for d, _ in layers) != right:
            raise Wrong("a layer with a window reads no more than its window.")
        if got == right / 2:
            raise Wrong("a cache holds keys and it holds values: two arrays of the same size.")
        if got != right:
            raise Wrong(f"for layers {layers}, {kv_heads} heads and {context} tokens it gives {got:g}.")
    return "why long contexts cost such a model so little."


@checker("08.8")
def capped(answer: Callable[..., Any]) -> str:
    """A soft cap on logits, and what it leaves as it was."""
    generator = np.random.default_rng(9)
    for logits, cap in (
        (3 * generator.standard_normal(50), 30.0),
        (90 * generator.standard_normal(50), 30.0),
        (np.array([400.0, 401.0, -400.0]), 10.0),  # both become the same number
    ):
        got = called(answer, logits.copy(), cap)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong("it returns two things: the capped logits, and a position.")
        values, place = np.asarray(got[0], float), got[1]
        if values.shape != logits.shape or np.abs(values).max() > cap:
            raise Wrong(f"capped at {cap:g}, no logit may be larger, and there must be as many as before.")
        if not np.allclose(values, cap * np.tanh(logits / cap)):
            raise Wrong(
                "small logits must come out nearly as they went in: cap times tanh of logits over cap."
            )
        if int(place) != int(logits.argmax()):
            raise Wrong("two logits far beyond the cap become the same number: the position is taken before.")
    return "the order stays; the distances do not, and a temperature feels that."


@checker("08.9")
def leaks(answer: Callable[..., Any]) -> str:
    """Whether memory readings show a leak, or only caches that fill once."""
    steady = [100, 100, 100, 100, 100, 100, 100, 100]
    warmed = [100, 180, 210, 210, 210, 210, 210, 210]
    leaking = [100, 180, 210, 213, 216, 219, 222, 225]
    slow = [100, 180, 210, 210, 211, 211, 212, 212]
    wavy = [100, 180, 210, 205, 210, 205, 210, 205]
    cases = (
        (steady, False, "readings that never change"),
        (warmed, False, "memory that libraries take once and keep"),
        (leaking, True, "a little more every time"),
        (slow, True, "a little more every second time"),
        (wavy, False, "memory that is given back"),
    )
    found = []
    for used, right, what in cases:
        got = answer(list(used))
        if got is ... or got is None:
            raise NotImplementedError
        found.append((bool(got), right, what))
    for got, right, what in found:
        if got != right:
            raise Wrong(f"{what} {'is called a leak' if got else 'passes'}.")
    return "the second half tells; the first is warming up."
