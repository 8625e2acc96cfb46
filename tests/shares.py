"""Shares of what would take too long whole: of kernels' combinations, those in which every pair occurs."""

import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

ALL = bool(os.environ.get("ROOFLAB_ALL_KERNELS"))


def pairs(every: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of combinations as few as still hold every two values that stand together in one of them: what goes
    wrong does so mostly by one value, or by two. ROOFLAB_ALL_KERNELS=1 takes all.
    """
    rows = list(every)
    if ALL:
        return rows
    held = [{(i, repr(row[i]), j, repr(row[j])) for i, j in combinations(range(len(row)), 2)} for row in rows]
    wanted, chosen = set().union(*held), set()
    while wanted:
        best = max(range(len(rows)), key=lambda k: len(held[k] & wanted))
        chosen.add(best)
        wanted -= held[best]
    return [rows[k] for k in sorted(chosen)]


def thinned(every: Sequence[Any], step: int = 2) -> list[Any]:
    """The last of several, and every `step`-th before it. ROOFLAB_ALL_KERNELS=1 takes all."""
    return list(every if ALL else every[::-1][::step][::-1])
