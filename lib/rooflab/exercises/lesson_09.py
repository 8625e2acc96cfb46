"""Checkers of lesson 09's exercises: each calls the answer with cases of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rooflab.exercises import Wrong, called, checker
from rooflab.hardware import roofline

_VERDICTS = (
    (2.5, 2.0, 1.5, "holds"),
    (2.0, 2.0, 1.5, "falls short"),
    (1.7, 2.0, 1.5, "falls short"),
    (1.5, 2.0, 1.5, "falls short"),
    (1.4, 2.0, 1.5, "refuted"),
    (math.nan, 2.0, 1.5, "not recorded"),
    (math.inf, 2.0, 1.5, "holds"),
    (0.2, 0.9, 0.5, "refuted"),
)


@checker("09.1")
def verdict(answer: Callable[..., Any]) -> str:
    """A verdict from a value and two bars, with NaN kept out."""
    for value, predicted, refuted, right in _VERDICTS:
        got = called(answer, value, predicted, refuted)
        if got != right:
            raise Wrong(
                f"{value:g}, predicted > {predicted:g}, refuted < {refuted:g}: {got!r}, not {right!r}."
            )
    return "and NaN, which is not larger than anything and not smaller either, gets no verdict."


@checker("09.2")
def rescaled(answer: Callable[..., Any]) -> str:
    """A bar in microseconds on one card, as a time that asks the same of another card's memory."""
    for us, n, theirs, here in ((100, 4096, 1008, 4609), (30, 2048, 1008, 256), (50, 8192, 504, 504)):
        got = called(answer, us, n, theirs, here)
        least = roofline.gemm_bytes(1, n, n, 4, 4, 4) / theirs / 1e3
        right = us * theirs / here
        if math.isclose(got, us, rel_tol=1e-6) and theirs != here:
            raise Wrong("that is the same time; the other card's memory is another.")
        if not math.isclose(got, right, rel_tol=1e-3):
            raise Wrong(f"{us} µs on {theirs} GB/s are {right:.1f} on {here}, not {float(got):.1f}.")
        assert least > 0
    return "the share of the roof stays, the time moves."


@checker("09.3")
def telling(answer: Callable[..., Any]) -> str:
    """A size at which a guard that lets one too many in writes beyond the end."""
    for threads, unroll in ((256, 4), (128, 8), (64, 2), (32, 16)):
        got = called(answer, threads, unroll)
        if not isinstance(got, int) or isinstance(got, bool) or got < 1:
            raise Wrong(f"a size is a whole number above 0, not {got!r}.")
        if not _shows(got, threads, unroll):
            raise Wrong(
                f"with {threads} threads and {unroll} loads each, none starts before {got:,} and comes to "
                f"{got:,} with a later load: the mutant passes."
            )
    return "the mutant dies there: such a size belongs into the gate."


def _shows(n: int, threads: int, unroll: int) -> bool:
    """Whether some thread whose first load is inside has another one exactly at n."""
    tile = threads * unroll
    for first in range(max(0, n - tile), n):
        if first % tile < threads and any(first + u * threads == n for u in range(1, unroll)):
            return True
    return False


@checker("09.4")
def marked(answer: Callable[..., Any]) -> str:
    """Points of a checklist, and whether a mark is reached that also names items."""
    items = [("A1", 1, "pass"), ("A2", 1, "fail"), ("D6", 2, "open"), ("E1", 3, "pass"), ("F1", 2, "pass")]
    cases: tuple[tuple[list[tuple[str, int, str]], int, list[str], tuple[int, bool]], ...] = (
        (items, 6, ["E1", "F1"], (6, True)),
        (items, 6, ["E1", "A2"], (6, False)),
        (items, 7, ["E1"], (6, False)),
        (items, 2, ["D6"], (6, False)),
        ([], 0, [], (0, True)),
    )
    for given, asked, named, right in cases:
        got = called(answer, list(given), asked, list(named))
        if tuple(got) != right:
            raise Wrong(f"{asked} points and {named or 'no item'} of {len(given)} items: {got}, not {right}.")
    return "an item that could not be tested is not a point."


_RACES = (
    ((9.0, 10.0, 11.0), (12.0, 13.0, 14.0), "ours"),
    ((12.0, 13.0, 14.0), (9.0, 10.0, 11.0), "theirs"),
    ((9.0, 10.0, 12.5), (12.0, 13.0, 14.0), "level"),
    ((9.0, 10.0, 11.0), (10.5, 12.0, 13.0), "level"),
    ((9.99, 10.0, 10.01), (10.29, 10.3, 10.31), "ours"),
    ((9.99, 10.0, 10.01), (10.05, 10.06, 10.07), "level"),
    ((10.05, 10.06, 10.07), (9.99, 10.0, 10.01), "level"),
    ((10.0, 10.0, 10.0), (10.0, 10.0, 10.0), "level"),
)


@checker("09.5")
def faster(answer: Callable[..., Any]) -> str:
    """Who is faster beyond the spread of both, from quartiles and medians."""
    for ours, theirs, right in _RACES:
        got = called(answer, ours, theirs)
        if got != right:
            raise Wrong(
                f"ours {ours} and theirs {theirs}, each (q1, median, q3), give {got!r}, not {right!r}."
            )
    return "and where quartiles overlap, or medians are near, neither has won."
