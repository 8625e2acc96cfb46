"""Matrix-vector products at batch 1: gemv, y = x A in FP32, and gemv_rows, y = W x in FP16.

gemv takes A [k, n] row-major, as the course's root-cause source stores it; gemv_rows takes W [n, k], as
language models store it: a row for each output. Sums are FP32 in both, and the same input gives the same
bits.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.errors import LaunchError, UsageError
from rooflab.ops import Rung, check_array, loaded, remembered, rung_of, with_target
from rooflab.records.case import Case
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime import nvrtc
from rooflab.runtime.arrays import empty

PLACE = 2  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "gemv": (
        Rung("gemv", "1_strided", "gemv_strided", "a warp a column", defines={"THREADS": 32}),
        Rung(
            "gemv",
            "2_coalesced",
            "gemv_coalesced",
            "a thread a column, x in shared memory",
            defines={"THREADS": 256, "TILE": 4096},
        ),
        Rung(
            "gemv",
            "3_split_k",
            "gemv_split_k",
            "blocks share a column strip, the last one adds up",
            defines={"THREADS": 256, "TILE": 1024},
        ),
        Rung(
            "gemv",
            "4_vector",
            "gemv_vector",
            "16-byte loads",
            defines={"THREADS": 64, "TILE": 1024},
        ),
        Rung(
            "gemv",
            "5_in_flight",
            "gemv_in_flight",
            "eight rows under way before the first is used",
            defines={"THREADS": 64, "UNROLL": 8, "RESIDENT": 16},
        ),
        Rung(
            "gemv",
            "6_column_strips",
            "gemv_column_strips",
            "a block a narrow strip, so that no sum crosses blocks",
            defines={"THREADS": 1024, "COLUMNS": 32, "UNROLL": 8, "PAD": 1, "RESIDENT": 1},
        ),
    ),
    "gemv_rows": (
        Rung("gemv_rows", "1_warp", "gemv_rows_warp", "a warp a row"),
        Rung("gemv_rows", "2_vector", "gemv_rows_vector", "16-byte loads"),
        Rung(
            "gemv_rows",
            "3_in_flight",
            "gemv_rows_in_flight",
            "several loads of weights before the first is used",
            defines={"THREADS": 256, "UNROLL": 4, "RESIDENT": 4},
        ),
        Rung(
            "gemv_rows",
            "4_rows",
            "gemv_rows_rows",
            "rows that share their loads of x",
            defines={"THREADS": 256, "UNROLL": 4, "ROWS": 2, "RESIDENT": 3},
        ),
        Rung(
            "gemv_rows",
            "5_split",
            "gemv_rows_split",
            "warps that share their rows, tuned by shape",
            defines={"THREADS": 128, "UNROLL": 4, "ROWS": 1, "SPLIT": 4, "RESIDENT": 8},
        ),
    ),
}

TUNED = "5_split"  # of gemv_rows: what it runs by itself where addresses and k allow 16-byte loads

# Rungs that take any n and k at any address; the others move 16 bytes at a time.
_ANY = ("1_strided", "2_coalesced", "3_split_k", "1_warp")
SHARED_COLUMNS = ("3_split_k", "4_vector", "5_in_flight")  # blocks split k, and the last one adds up


def outputs_of(rung: Rung, options: Mapping[str, int]) -> int:
    """How many outputs a block computes (or has a part in)."""
    threads = options["THREADS"]
    if rung.name in ("2_coalesced", "3_split_k"):
        return threads
    if rung.name in ("4_vector", "5_in_flight"):
        return 4 * threads
    if rung.name == "6_column_strips":
        return options["COLUMNS"]
    return threads // 32 // options.get("SPLIT", 1) * options.get("ROWS", 1)


def blocks_of(rung: Rung, n: int, options: Mapping[str, int]) -> int:
    """The launch rule: how many blocks stand side by side over n outputs."""
    return math.ceil(n / outputs_of(rung, options))


def splits_of(rung: Rung, n: int, k: int, options: Mapping[str, int], sms: int) -> int:
    """The launch rule's other half: into how many parts blocks split k, so that every SM has about 8 KiB of
    loads of one round; a part has 64 rows or more, a multiple of 16.
    """
    width = 4 if rung.name == "3_split_k" else 16
    wanted = 8192 / width * sms / (blocks_of(rung, n, options) * options["THREADS"])
    rows = max(64, k / max(1.0, wanted))
    return math.ceil(k / (16 * math.ceil(rows / 16)))


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    parts = [outputs_of, blocks_of, globals()[rung.operator]]
    return source_of_callable(*parts, *([splits_of, _workspace] if rung.name in SHARED_COLUMNS else []))


def _loaded(rung: Rung, options: Mapping[str, int]) -> Any:
    return loaded(rung, tuple(sorted(options.items())))


def options_for(rung: Rung, n: int, k: int) -> dict[str, int]:
    """The macros that suit a shape, where the rung leaves a choice; the defaults for all other rungs."""
    if rung.name == "6_column_strips":
        return rung.with_defaults(_strip_options(n))
    if rung.name == "5_split":
        return rung.with_defaults(_split_options(k))
    return rung.with_defaults({})


def _strip_options(n: int) -> dict[str, int]:
    """Strips of one line of the L2, one block of 1024 threads each; two blocks an SM where there are more of
    them than a large GPU has SMs; and wider ones where even those would not all be resident.
    """
    columns = next((c for c in (32, 64) if n <= 264 * c), 128)
    large = math.ceil(n / columns) <= 132
    return {"COLUMNS": columns, "THREADS": 1024 if large else 512, "RESIDENT": 1 if large else 2}


# Registers that a thread of 5_split needs for its ROWS x UNROLL loads, in the compiler's steps of 8.
_REGISTERS = {(1, 4): 64, (1, 5): 72, (1, 6): 80, (2, 2): 56}
# Loads a lane and warps a team: an H200 reads a matrix fastest by many blocks of few loads each.
_TEAMS = ((6, 1), *((unroll, split) for unroll in (4, 5) for split in range(1, 9)))


def _split_options(k: int) -> dict[str, int]:
    """The team that covers a row in few turns, with few of its loads past the row's end."""
    pieces = math.ceil(k / 256)  # of 32 lanes x 8 weights

    def cost(team: tuple[int, int]) -> float:
        turns = math.ceil(pieces / (team[0] * team[1]))
        return turns * team[0] * team[1] / pieces + 0.07 * turns + 0.02 * team[0]

    unroll, split = min(_TEAMS, key=cost)
    rows = 1
    if pieces == 16:  # measured: two rows at once, two loads each, beat one row with four
        rows, unroll, split = 2, 2, 8
    threads = 32 * split * max(1, 4 // split)
    fit = 65536 // (threads * _REGISTERS[rows, unroll])
    return {
        **{"THREADS": threads, "UNROLL": unroll, "ROWS": rows, "SPLIT": split},
        "RESIDENT": min(fit, 1024 // threads),
    }


def default_rung(operator: str, n: int, k: int, aligned: bool) -> str:
    """The rung that an operator runs when none is named: the fastest recorded one that takes the shape."""
    if operator == "gemv_rows":
        return TUNED if aligned and k % 8 == 0 else "1_warp"
    if not aligned or n % 4:
        return "3_split_k"
    return "6_column_strips" if n >= 1024 else "5_in_flight"


def _size(name: str, array: Any, dimensions: int) -> tuple[int, ...]:
    shape = tuple(int(size) for size in getattr(array, "shape", ()))
    if len(shape) != dimensions:
        raise LaunchError(f"{name} must be a {('vector', 'matrix')[dimensions - 1]}, not of shape {shape}.")
    if any(not 0 < size < 1 << 31 for size in shape):
        raise LaunchError(f"{name} of shape {shape} is refused: every size lies between 1 and 2^31 - 1.")
    return shape


def _aligned(*arrays: Any) -> bool:
    return all(nvrtc.pointer(array) % 16 == 0 for array in arrays)


def _empty(size: int, dtype: str, like: Any) -> Any:
    return empty(like, size, dtype)


def _sms(array: Any) -> int:
    return 4 if isinstance(array, np.ndarray) else ops.sms()


@functools.lru_cache(maxsize=64)
def _workspace(on_gpu: bool, stream: int, partials: int, strips: int) -> tuple[Any, Any]:
    """Partial sums and arrival counters of one stream's launches, which run one after another."""
    if not on_gpu:
        return np.zeros(partials, np.float32), np.zeros(strips, np.uint32)
    import cupy

    return cupy.zeros(partials, cupy.float32), cupy.zeros(strips, cupy.uint32)


def _check_options(rung: Rung, options: Mapping[str, int]) -> None:
    """Refuse macros that a rung's mapping of threads does not cover."""
    threads, split = options["THREADS"], options.get("SPLIT", 1)
    if threads % 32 or not 32 <= threads <= 1024 or (threads // 32) % split:
        raise UsageError(
            f"Rung {rung.operator}/{rung.name} needs whole warps, up to 1024 threads"
            f"{f', in teams of SPLIT = {split}' if split > 1 else ''}: THREADS = {threads} is refused."
        )
    columns = options.get("COLUMNS", 32)
    if columns not in (4, 8, 16, 32, 64, 128) or options.get("ROWS", 1) > 32:
        raise UsageError(
            f"Rung {rung.operator}/{rung.name} takes strips of 4 to 128 columns, a power of two, and at most "
            "32 rows a warp."
        )


@with_target()
@remembered
def gemv(
    a: Any,
    x: Any,
    *,
    out: Any = None,
    rung: str | None = None,
    splits: int | None = None,
    **options: int,
) -> Any:
    """Return out [n] = x A for A [k, n] row-major and x [k], all float32 on the GPU.

    Rungs 4 to 6 move 16 bytes at a time: they refuse an n that is no multiple of 4 and addresses that are no
    multiples of 16; without a rung's name the op takes one that can. `splits` says into how many parts the
    blocks of rungs 3 to 5 split k. Two launches of these rungs that may overlap must be on two streams, also
    when they are replayed from graphs: the launches of a stream share their partial sums' memory.
    """
    k, n = _size("a", a, 2)
    _size("x", x, 1)
    out = _empty(n, "float32", a) if out is None else out
    chosen = rung_of(LADDERS["gemv"], rung, default_rung("gemv", n, k, _aligned(a, out)))
    macros = chosen.with_defaults({**options_for(chosen, n, k), **options})
    _check_options(chosen, macros)
    wide = chosen.name not in _ANY
    if wide and n % 4:
        raise LaunchError(
            f"Rung gemv/{chosen.name} moves 4 columns at a time, so it refuses n = {n}: take a multiple of "
            "4, or rung 3_split_k."
        )
    check_array("a", a, "float32", k * n, 16 if wide else 4)
    check_array("x", x, "float32", k)
    check_array("out", out, "float32", n, 16 if wide else 4)
    blocks = blocks_of(chosen, n, macros)
    sizes = [ctypes.c_uint(n), ctypes.c_uint(k)]
    if chosen.name not in SHARED_COLUMNS:
        if splits is not None:
            raise UsageError(f"Rung gemv/{chosen.name} does not split k over blocks: it takes no splits.")
        _loaded(chosen, macros).launch(blocks, macros["THREADS"], [a, x, out, *sizes])
        return out
    splits = splits_of(chosen, n, k, macros, _sms(a)) if splits is None else splits
    if not 0 < splits <= min(k, 65535):
        raise UsageError(f"k = {k} rows can be split into 1 to {min(k, 65535)} parts, not {splits}.")
    on_gpu = not isinstance(a, np.ndarray)
    partial, arrived = _workspace(on_gpu, nvrtc.current_stream() if on_gpu else 0, splits * n, blocks)
    _loaded(chosen, macros).launch((blocks, splits), macros["THREADS"], [a, x, out, partial, arrived, *sizes])
    return out


@with_target()
@remembered
def gemv_rows(w: Any, x: Any, *, out: Any = None, rung: str | None = None, **options: int) -> Any:
    """Return out [n] = W x for W [n, k] row-major and x [k], all float16 on the GPU, summed in float32.

    Rungs 2 to 5 move 16 bytes at a time: they refuse a k that is no multiple of 8 and addresses of w and x
    that are no multiples of 16; without a rung's name the op takes one that can.
    """
    n, k = _size("w", w, 2)
    _size("x", x, 1)
    out = _empty(n, "float16", w) if out is None else out
    chosen = rung_of(LADDERS["gemv_rows"], rung, default_rung("gemv_rows", n, k, _aligned(w, x)))
    macros = chosen.with_defaults({**options_for(chosen, n, k), **options})
    _check_options(chosen, macros)
    wide = chosen.name not in _ANY
    if wide and k % 8:
        raise LaunchError(
            f"Rung gemv_rows/{chosen.name} moves 8 weights at a time, so it refuses k = {k}: take a multiple "
            "of 8, or rung 1_warp."
        )
    check_array("w", w, "float16", n * k, 16 if wide else 2)
    check_array("x", x, "float16", k, 16 if wide else 2)
    check_array("out", out, "float16", n, 2)
    arguments = [w, x, out, ctypes.c_uint(n), ctypes.c_uint(k)]
    _loaded(chosen, macros).launch(blocks_of(chosen, n, macros), macros["THREADS"], arguments)
    return out


def small_cases(operator: str, rung: Rung) -> list[Case]:
    """Ragged and whole shapes, for the gate on the CPU."""
    form = "fp32" if operator == "gemv" else "fp16"
    sizes = [(516, 257), (36, 136), (37, 41), (20, 4104)]  # the last is longer than any tile
    sizes = sizes if operator == "gemv" else [*((k, n) for n, k in sizes[:3]), (33, 1288), (21, 4104)]
    return [
        Case("gemv", operator, rung.name, format=form, n=n, k=k, cache="cold", clock="graph")
        for n, k in sizes
    ]
