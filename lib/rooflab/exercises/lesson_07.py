"""Checkers of lesson 07's exercises: each calls the answer with cases of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from rooflab.exercises import Wrong, called, checker
from rooflab.hardware import crossover as crossovers
from rooflab.hardware import roofline

Times = list[tuple[float, float, float]]
_SIZES = [1, 2, 4, 8, 16]


def _flat(us: float, spread: float = 0.1) -> Times:
    return [(us - spread, us, us + spread)] * len(_SIZES)


def _rising(*times: float, spread: float = 0.1) -> Times:
    return [(us - spread, us, us + spread) for us in times]


_RACES: tuple[tuple[Times, Times, str], ...] = (
    (_rising(1, 2, 4, 8, 16), _flat(6), "a plain crossover"),
    (_rising(1, 2, 5.95, 6.05, 16), _flat(6), "two sizes at which neither wins"),
    (_flat(6), _flat(6.05), "two that are level throughout"),
    (_rising(1, 2, 6, 8, 16, spread=0.01), _flat(6.05, 0.01), "medians within 2% at one size"),
    (_flat(1), _flat(6), "a first that always wins"),
    (_flat(6), _flat(1), "a second that always wins"),
    (_rising(1, 9, 1, 9, 9), _flat(6), "an order that changes three times"),
    (_rising(9, 9, 1, 1, 1), _flat(6), "a second that wins at few tokens"),
)


def _frame(times: Times) -> pd.DataFrame:
    return pd.DataFrame(times, columns=["q1_us", "median_us", "q3_us"]).assign(batch=_SIZES)


@checker("07.1")
def crossover(answer: Callable[..., Any]) -> str:
    """Where the second of two overtakes the first, from quartiles."""
    untouched = 0
    for first, second, what in _RACES:
        found = crossovers.between(_frame(first), _frame(second))
        right = (int(found.low), int(found.high)) if found.kind == "crosses" else None
        got = answer(list(_SIZES), list(first), list(second))
        if got is ...:
            raise NotImplementedError
        untouched += got is None
        got = tuple(got) if got is not None else None
        if got != right:
            raise Wrong(f"for {what} it gives {got}.")
    if untouched == len(_RACES):
        raise NotImplementedError
    return "an interval, and silence where there is nothing to say."


_TABLE = [
    (4096, 4096, 1, "dp4a", 6.0),
    (4096, 4096, 8, "dp4a", 9.0),
    (4096, 4096, 8, "mma", 7.0),
    (4096, 4096, 64, "mmq", 20.0),
    (4096, 4096, 64, "two_op", 21.0),
    (1024, 4096, 8, "two_op", 3.0),
    (1024, 4096, 1, "fused", 2.0),
]


@checker("07.2")
def choose(answer: Callable[..., Any]) -> str:
    """The dispatcher's rule on a small table."""
    cases = (
        (4096, 4096, 1, "dp4a", "a recorded line"),
        (4096, 4096, 8, "mma", "two ways at one number of tokens"),
        (4096, 4096, 5, "mma", "a number of tokens between two recorded ones"),
        (4096, 4096, 500, "mmq", "more tokens than were recorded"),
        (2300, 4096, 1, "dp4a", "2,300 rows, by their ratio nearer to 4,096 than to 1,024"),
        (5000, 5000, 8, "mma", "a shape that is not in the table"),
    )
    for n, k, tokens, right, what in cases:
        got = called(answer, list(_TABLE), n, k, tokens)
        if got != right:
            raise Wrong(f"for {what} (n={n}, k={k}, tokens={tokens}) it takes {got!r}.")
    return "a table, a distance and a minimum: that is all a dispatcher has to be."


@checker("07.3")
def predict(answer: Callable[..., Any]) -> str:
    """The law: a fixed time, and the longer of memory's and arithmetic's."""
    cases = (
        (8960, 1536, 1, 2.0, 4600.0, 760.0, 2.0),
        (8960, 1536, 512, 2.0, 4600.0, 760.0, 2.0),
        (1536, 1536, 64, 0.515625, 250.0, 30.0, 3.0),
    )
    for n, k, tokens, width, gb_s, tflop_s, fixed in cases:
        moved, flops = roofline.gemm_bytes(tokens, n, k, width), roofline.gemm_flops(tokens, n, k)
        memory, compute = moved / gb_s / 1e3, flops / tflop_s / 1e6
        right = fixed + max(memory, compute)
        got = float(called(answer, n, k, tokens, width, gb_s, tflop_s, fixed))
        if math.isclose(got, fixed + memory + compute, rel_tol=1e-6):
            raise Wrong("memory and arithmetic work at the same time: the longer one counts, not both.")
        if math.isclose(got, max(memory, compute), rel_tol=1e-6):
            raise Wrong("a launch takes its time before a byte is moved: it is missing.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"for {n} x {k}, tokens={tokens}, {width:g} bytes a weight it gives {got:g} µs.")
    return "three numbers of a GPU and four of a product."


@checker("07.4")
def busy(answer: Callable[..., Any]) -> str:
    """The share of the GPU's tile slots that hold useful work."""
    for n, tokens, rows, columns, sms in (
        (8192, 64, 128, 64, 132),
        (8192, 8, 128, 128, 132),
        (16896, 128, 128, 128, 132),
        (17024, 128, 128, 128, 132),
    ):
        blocks = math.ceil(n / rows) * math.ceil(tokens / columns)
        rounds = math.ceil(blocks / sms)
        right = n * tokens / (rounds * sms * rows * columns)
        got = float(called(answer, n, tokens, rows, columns, sms))
        if math.isclose(got, 100 * right, rel_tol=1e-9):
            raise Wrong("the answer is a share from 0 to 1, not percent.")
        if math.isclose(got, blocks / (rounds * sms), rel_tol=1e-9) and got != right:
            raise Wrong("a tile that is only partly filled with tokens counts as if it were full.")
        if math.isclose(got, n * tokens / (blocks * rows * columns), rel_tol=1e-9) and got != right:
            raise Wrong("the SMs that the last round leaves without a tile wait for it too.")
        if not math.isclose(got, right, rel_tol=1e-9):
            raise Wrong(f"for {n} rows, tokens={tokens}, tiles of {rows} x {columns}, {sms} SMs: {got:g}.")
    return "what is launched and what is useful are two numbers."
