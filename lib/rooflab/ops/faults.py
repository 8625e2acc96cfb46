"""Kernels with one mistake each, for the readers of lesson 03 to mend: y = x A, right for friendly sizes."""

from __future__ import annotations

import ctypes
from typing import Any

from rooflab.ops import Rung

FAULTS = {
    name: Rung("faults", name, name, idea, defines={})
    for name, idea in (
        ("early_exit", "threads leave before a barrier"),
        ("half_barrier", "a barrier inside a condition"),
        ("fixed_tile", "k rows in a tile of 4096"),
        ("not_zeroed", "adds to what the last call left"),
    )
}


def arguments(a: Any, x: Any, y: Any) -> list[Any]:
    """What all of them take, for a [k, n], x [k] and y [n]."""
    k, n = a.shape
    return [a, x, y, ctypes.c_uint(n), ctypes.c_uint(k)]


def launch_of(n: int) -> tuple[int, int]:
    """Blocks and threads a block over n columns."""
    return -(-n // 256), 256
