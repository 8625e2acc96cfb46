"""Streams over memory: read, copy, write, triad and saxpy, each a ladder of rungs.

All of them take one-dimensional contiguous arrays of 4-byte elements on the GPU. A rung that moves 16 bytes
at a time refuses a length that is not a multiple of 4 and an address that is not a multiple of 16; rung 1
takes any.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rooflab.errors import LaunchError, UsageError
from rooflab.ops import Rung, arrays, check_array, loaded, rung_of, with_target
from rooflab.records.case import Case
from rooflab.records.fingerprint import source_of_callable
from rooflab.runtime.arrays import empty_like as _empty_like

_WIDE = {"THREADS": 256, "UNROLL": 4}

PLACE = 1  # of its ladders among all of them: in the order of the lessons
LADDERS: dict[str, tuple[Rung, ...]] = {
    "read": (
        Rung("read", "1_scalar", "read_scalar", "one 4-byte load a thread", words=1),
        Rung("read", "2_vector", "read_vector", "one 16-byte load a thread"),
        Rung(
            "read",
            "3_in_flight",
            "read_in_flight",
            "eight 16-byte loads under way a thread",
            defines={"THREADS": 256, "UNROLL": 8},
        ),
        Rung(
            "read",
            "4_grid",
            "read_grid",
            "a standing grid that walks through the data",
            grid="resident",
            defines={"THREADS": 256, "UNROLL": 8},
        ),
        Rung(
            "read",
            "5_streaming",
            "read_streaming",
            "rung 3 without keeping lines in L1",
            defines={"THREADS": 256, "UNROLL": 8},
        ),
    ),
    **{
        operator: (
            Rung(operator, "1_scalar", f"{operator}_scalar", "one 4-byte element a thread", words=1),
            Rung(operator, "2_vector", f"{operator}_vector", "16 bytes a thread"),
            Rung(
                operator,
                "3_in_flight",
                f"{operator}_in_flight",
                "four times 16 bytes a thread",
                defines=_WIDE,
            ),
            Rung(
                operator,
                "4_grid",
                f"{operator}_grid",
                "a standing grid that walks through the data",
                grid="resident",
                defines=_WIDE,
            ),
        )
        for operator in ("copy", "write", "triad")
    },
    "saxpy": (
        Rung(
            "saxpy",
            "1_scalar",
            "saxpy_scalar",
            "one element a thread",
            words=1,
            defines={"THREADS": 256, "DEPENDENT": 0},
        ),
        Rung("saxpy", "2_vector", "saxpy_vector", "four elements a thread"),
    ),
}

# The rung that an operator runs when none is named: the fastest one recorded.
DEFAULT = {
    "read": "5_streaming",
    "copy": "2_vector",
    "write": "2_vector",
    "triad": "2_vector",
    "saxpy": "2_vector",
}


def _blocks_on_cpu(
    launcher: Any, rung: Rung, n: int, options: Mapping[str, int], blocks: int | None = None
) -> int:
    """There a standing grid has a block for each made-up SM."""
    if rung.grid == "resident" and blocks is None:
        blocks = arrays().cuda.Device().attributes["MultiProcessorCount"]
    return int(launcher(rung, n, options, blocks))


@with_target(_blocks_on_cpu)
def blocks_of(rung: Rung, n: int, options: Mapping[str, int], blocks: int | None = None) -> int:
    """The launch rule: how many blocks stream n 4-byte elements."""
    tile = options["THREADS"] * options.get("UNROLL", 1) * rung.words
    cover = math.ceil(n / tile)
    if rung.grid == "cover":
        if blocks is not None:
            raise UsageError(
                f"Rung {rung.operator}/{rung.name} covers its data: it takes no number of blocks."
            )
        return cover
    if blocks is None:
        import cupy

        sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
        blocks = sms * _loaded(rung, options).resident_blocks(options["THREADS"])
    return max(1, min(cover, blocks))


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    return source_of_callable(blocks_of, _launch, globals()[rung.operator])


def _loaded(rung: Rung, options: Mapping[str, int]) -> Any:
    return loaded(rung, tuple(sorted(options.items())))


def _check(rung: Rung, n: int, arrays: Mapping[str, Any], dtype: str) -> None:
    if not 0 < n < 1 << 40:
        raise LaunchError(f"{rung.operator} streams between 1 and 2^40 elements, not {n}.")
    if n % rung.words:
        raise LaunchError(
            f"Rung {rung.operator}/{rung.name} moves {rung.words} elements at a time, so it refuses n = {n}: "
            f"take a multiple of {rung.words}, or rung 1_scalar."
        )
    for name, array in arrays.items():
        check_array(name, array, dtype, n, 4 * rung.words)


def _launch(
    rung: Rung, n: int, arguments: list[Any], options: Mapping[str, int], blocks: int, dependent: bool = False
) -> None:
    arguments = [*arguments, ctypes.c_ulonglong(n)]
    _loaded(rung, options).launch(blocks, options["THREADS"], arguments, dependent=dependent)


def _size(array: Any) -> int:
    if not (hasattr(array, "numel") or hasattr(array, "size")):
        raise LaunchError(f"A stream takes arrays, not {type(array).__name__}.")
    return int(array.numel() if hasattr(array, "numel") else array.size)


def _read_on_cpu(launcher: Any, x: Any, *, partial: Any = None, **options: Any) -> Any:
    if partial is None:
        chosen = rung_of(LADDERS["read"], options.get("rung"), DEFAULT["read"])
        macros = {k: v for k, v in options.items() if k not in ("rung", "blocks")}
        blocks = blocks_of(chosen, _size(x), chosen.with_defaults(macros), options.get("blocks"))
        partial = np.empty(blocks, np.uint32)
    return launcher(x, partial=partial, **options)


@with_target(_read_on_cpu)
def read(
    x: Any, *, partial: Any = None, rung: str | None = None, blocks: int | None = None, **options: int
) -> Any:
    """Read x [n] uint32 and return the wrapping uint32 sum of every block's words, [blocks] uint32.

    The sum of the result (modulo 2^32) is the sum of x: exact whatever the order. `partial` reuses an output.
    """
    chosen = rung_of(LADDERS["read"], rung, DEFAULT["read"])
    n, macros = _size(x), chosen.with_defaults(options)
    _check(chosen, n, {"x": x}, "uint32")
    blocks = blocks_of(chosen, n, macros, blocks)
    if partial is None:
        import cupy

        partial = cupy.empty(blocks, cupy.uint32)
    check_array("partial", partial, "uint32", blocks)
    _launch(chosen, n, [x, partial], macros, blocks)
    return partial


@with_target()
def copy(
    x: Any, *, out: Any = None, rung: str | None = None, blocks: int | None = None, **options: int
) -> Any:
    """Return out = x, both [n] uint32."""
    chosen = rung_of(LADDERS["copy"], rung, DEFAULT["copy"])
    n, macros = _size(x), chosen.with_defaults(options)
    out = _empty_like(x) if out is None else out
    _check(chosen, n, {"x": x, "out": out}, "uint32")
    _launch(chosen, n, [x, out], macros, blocks_of(chosen, n, macros, blocks))
    return out


@with_target()
def write(out: Any, seed: int, *, rung: str | None = None, blocks: int | None = None, **options: int) -> Any:
    """Fill out [n] uint32 with out[i] = i ^ seed (the low 32 bits of i), reading nothing."""
    chosen = rung_of(LADDERS["write"], rung, DEFAULT["write"])
    n, macros = _size(out), chosen.with_defaults(options)
    _check(chosen, n, {"out": out}, "uint32")
    arguments = [out, ctypes.c_uint(seed)]
    _launch(chosen, n, arguments, macros, blocks_of(chosen, n, macros, blocks))
    return out


@with_target()
def triad(
    b: Any,
    c: Any,
    s: float,
    *,
    out: Any = None,
    rung: str | None = None,
    blocks: int | None = None,
    **options: int,
) -> Any:
    """Return out = b + s c, all [n] float32, with one rounding (fused multiply-add)."""
    chosen = rung_of(LADDERS["triad"], rung, DEFAULT["triad"])
    n, macros = _size(b), chosen.with_defaults(options)
    out = _empty_like(b) if out is None else out
    _check(chosen, n, {"b": b, "c": c, "out": out}, "float32")
    arguments = [b, c, out, ctypes.c_float(s)]
    _launch(chosen, n, arguments, macros, blocks_of(chosen, n, macros, blocks))
    return out


@with_target()
def saxpy(
    a: float,
    x: Any,
    y: Any,
    *,
    out: Any = None,
    rung: str | None = None,
    dependent: bool = False,
    **options: int,
) -> Any:
    """Return out = a x + y, all [n] float32, with one rounding (fused multiply-add).

    `dependent` launches rung 1_scalar as a programmatic dependent of what runs before it on the stream; the
    option DEPENDENT says when it lets its own successor start.
    """
    chosen = rung_of(LADDERS["saxpy"], rung, DEFAULT["saxpy"])
    if dependent:
        options = {"DEPENDENT": 1, **options}
    n, macros = _size(x), chosen.with_defaults(options)
    out = _empty_like(x) if out is None else out
    _check(chosen, n, {"x": x, "y": y, "out": out}, "float32")
    arguments = [x, y, out, ctypes.c_float(a)]
    _launch(chosen, n, arguments, macros, blocks_of(chosen, n, macros), dependent)
    return out


def small_cases(operator: str, rung: Rung) -> list[Case]:
    """Ragged and whole lengths, for the gate on the CPU."""
    sizes = (1021, 4 * 2348, 3 * 8 * 256 * 4 + 36)  # the second leaves a tile over for some loads of a thread
    return [Case("bandwidth", operator, rung.name, n=n, cache="cold", clock="graph") for n in sizes]
