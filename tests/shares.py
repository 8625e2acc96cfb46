"""Shares of what would take too long whole: small ones for `make test`, larger ones for CI, and all with
ROOFLAB_ALL_KERNELS=1.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from itertools import combinations, groupby
from typing import Any

import pytest

ALL = bool(os.environ.get("ROOFLAB_ALL_KERNELS"))
# .ci/run sets the first. `make test` leaves what is marked `ci`, and larger shares of some tests, to it.
_SETTINGS = ("REQUIRE_ALL", "ALL_KERNELS", "ALL_MACHINES", "ALL_TURNS")
CI = any(os.environ.get(f"ROOFLAB_{name}") for name in _SETTINGS)


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


def beyond(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests marked `ci`, except in CI; and of those marked `share(n)`, the cases that are not run: all
    but an n-th, drawn by their names, as every n-th in order could have one value in common.
    """
    marked = [item for item in items if item.get_closest_marker("share")]
    found = [item for item in items if not CI and item.get_closest_marker("ci")]
    for _, cases in groupby(marked, key=lambda item: item.nodeid.partition("[")[0]):
        drawn = sorted(cases, key=lambda case: zlib.crc32(case.name.encode()))
        marker = drawn[0].get_closest_marker("share")
        assert marker is not None
        found += drawn[-(-len(drawn) // marker.args[0]) :]
    return found
