"""What Python and the runtime (runtime.cpp) hand each other, field by field, and the runtime's library."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

KINDS = (
    "out of bounds",
    "misaligned",
    "race",
    "uninitialised",
    "divergent barrier",
    "divergent warp",
    "inactive lane",
    "endless wait",
    "crash",
    "trap",
    "stack overflow",
    "unfinished copy",
    "wrong memory",
    "endless loop",
)
TO_HALF = "conversion to FP16"  # or to BF16, of what is no constant
EXECUTED = (  # what is counted: the products of matrices by warps, the others by threads
    "mma_m16n8k16_f16",
    "mma_m16n8k8_f16",
    "mma_m16n8k16_f16_sum_f16",
    "mma_m16n8k8_f16_sum_f16",
    "mma_m16n8k16_bf16",
    "mma_m16n8k32_s8",
    "mma_m8n8k16_s8",
    "__dp4a",
    TO_HALF,
)
WRITE, SOFT, ATOMIC = 1, 2, 4
SHARED, NOWHERE = -1, -2

u32, u64, i32, i64, pointer = (
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_void_p,
)


class RawBuffer(ctypes.Structure):
    _fields_ = [(name, u64) for name in ("start", "end", "guard_start", "guard_end")]


class RawVariable(ctypes.Structure):
    _fields_ = [("offset", u64), ("size", u64), ("guard", u64)]


class RawFault(ctypes.Structure):
    _fields_ = [
        *((name, i32) for name in ("kind", "region", "size", "how", "other_how", "line")),
        ("offset", i64),
        *((name, u64) for name in ("pc", "other_pc", "count")),
        ("block", u32 * 3),
        ("other_block", u32 * 3),
        *((name, u32) for name in ("thread", "other_thread")),
        ("threads", u32 * 8),
        ("thread_count", u32),
        ("file", ctypes.c_char_p),
        ("text", ctypes.c_char * 400),
    ]


class RawLaunch(ctypes.Structure):
    _fields_ = [
        ("entry", pointer),
        ("arguments", pointer),
        ("grid", u32 * 3),
        ("block", u32 * 3),
        *((name, u32) for name in ("cooperative", "watched")),
        *((name, u64) for name in ("traced", "steps", "seconds")),
        ("buffers", pointer),
        ("variables", pointer),
        *((name, u32) for name in ("buffer_count", "variable_count", "argument_count")),
    ]


EVENT = np.dtype(
    [
        ("address", "<u8"),
        ("pc", "<u8"),
        ("block", "<u4"),
        ("thread", "<u4"),
        ("region", "<i4"),
        ("size", "<u2"),
        ("how", "<u2"),
    ]
)


@functools.lru_cache(maxsize=8)
def runtime(path: str) -> ctypes.CDLL:
    """The runtime's library, its results declared."""
    library = ctypes.CDLL(path)
    library.simt_faults.restype = ctypes.POINTER(RawFault)
    library.simt_events.restype = pointer
    library.simt_image.restype = u64
    library.simt_counts.restype = ctypes.POINTER(u64)
    return library


def faults(library: ctypes.CDLL) -> list[RawFault]:
    """What the last launch did wrong; valid until the next one."""
    count = u64()
    found = library.simt_faults(ctypes.byref(count))
    return [found[k] for k in range(count.value)]


def executed(library: ctypes.CDLL) -> dict[str, int]:
    """How often the last launch executed each of EXECUTED."""
    counts = library.simt_counts()
    return {name: int(counts[k]) for k, name in enumerate(EXECUTED)}


def events(library: ctypes.CDLL) -> tuple[np.ndarray, bool]:
    """The accesses that the last launch noted down (EVENT), and whether they are all of them."""
    count, dropped = u64(), u64()
    address = library.simt_events(ctypes.byref(count), ctypes.byref(dropped))
    if not count.value:
        return np.zeros(0, EVENT), not dropped.value
    raw = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
    noted = np.ctypeslib.as_array(raw, (count.value * EVENT.itemsize,))
    return noted.view(EVENT).copy(), not dropped.value
