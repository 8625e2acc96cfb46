"""Operands of contestants: their seed, and the copies that keep a cold case's operands out of the L2."""

from __future__ import annotations

from typing import Any

import numpy as np

from rooflab.bench import clock
from rooflab.ops import arrays
from rooflab.records.case import Case

SEED = 20261121


def copies(case: Case, operand_bytes: int) -> int:
    """How many copies of the operands the case rotates over: one if warm, else more than the L2 holds."""
    if case.cache != "cold":
        return 1
    return clock.copies_for(operand_bytes, int(arrays().cuda.Device().attributes["L2CacheSize"]))


def copied(operand: Any, count: int) -> list[Any]:
    """An array, or a named tuple of arrays and sizes, and count - 1 copies of it, in memory of their own."""
    if isinstance(operand, int):
        return [operand] * count
    if isinstance(operand, tuple):
        parts = [copied(part, count) for part in operand]
        return [type(operand)(*each) for each in zip(*parts, strict=True)]
    return [operand, *(operand.copy() for _ in range(count - 1))]


def host_copy(array: Any, pinned: bool) -> Any:
    """A GPU array's copy in ordinary (pageable) or in page-locked host memory."""
    import cupy

    host = cupy.asnumpy(array)
    if pinned:
        memory = cupy.cuda.alloc_pinned_memory(host.nbytes)
        locked = np.frombuffer(memory, host.dtype, host.size).reshape(host.shape)
        locked[:] = host
        return locked
    return host
