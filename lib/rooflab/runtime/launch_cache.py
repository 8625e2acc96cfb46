"""Calls that were checked before: an op called with operands like an earlier call's goes straight to its
kernel.

What a launcher checks, chooses and packs depends on its numbers and words and, of every array, on its kind,
shape, strides, dtype, device and the last bits of its address; the rest of the addresses is all that is new
in the next call. So the first call with such facts runs the launcher whole and keeps what it launched, and
later ones put their addresses in and launch. Facts that differ in anything meet the launcher's checks again.
A launch that reads what cannot be traced to an operand (a room made in the call, a slice) is never kept, nor
is a call that does more than launch (see `unseen`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np

from rooflab.runtime import nvrtc

MOST = 4096  # calls that a thread keeps
TARGETS = {"gpu"}  # machines whose calls are kept: on the CPU a kernel's own time makes it useless
_LOW = 255  # of an address: no launcher asks for more alignment
_NUMPY, _CUPY, _TORCH, _TUPLE, _PLAIN, _OTHER = range(6)
_KINDS: dict[type, int] = {}


def _kind(of: type) -> int:
    """Which of the kinds above a type's values are, remembered."""
    library = of.__module__.partition(".")[0]
    if issubclass(of, np.ndarray):
        found = _NUMPY
    elif library == "cupy" and of.__name__ == "ndarray":
        found = _CUPY
    elif any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in of.__mro__):
        found = _TORCH
    elif issubclass(of, tuple):
        found = _TUPLE
    else:
        found = _PLAIN if of in (int, float, str, bool, type(None)) else _OTHER
    _KINDS[of] = found
    return found


def facts(values: Sequence[Any], found: list[Any], arrays: list[Any], pointers: list[int]) -> bool:
    """Append what checks depend on to `found`, and the arrays among `values`, also in tuples, with their
    addresses; False for a value of which that is not known.
    """
    for value in values:
        of = type(value)
        kind = _KINDS.get(of)
        if kind is None:
            kind = _kind(of)
        if kind == _PLAIN:
            found += (of, value)
            continue
        if kind == _CUPY:
            data = value.data
            pointer = data.ptr
            found += (of, value.shape, value.strides, value.dtype.num, data.device_id, pointer & _LOW)
        elif kind == _TORCH:
            pointer = value.data_ptr()
            found += (of, value.shape, value.stride(), value.dtype, value.get_device(), pointer & _LOW)
        elif kind == _TUPLE:
            found += (of, len(value))
            if not facts(value, found, arrays, pointers):
                return False
            continue
        elif kind == _NUMPY:
            pointer = value.ctypes.data
            found += (of, value.shape, value.strides, value.dtype.str, pointer & _LOW)
        else:
            return False
        arrays.append(value)
        pointers.append(pointer)
    return True


# --- what a call launches -----------------------------------------------------------------------------------


class _Seen:
    """The launches of a call while it runs whole."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, Any, list[Any], int, bool]] = []
        self.held: dict[int, Any] = {}
        self.whole = True  # whether launches are all there is to it


_SEEN: ContextVar[_Seen | None] = ContextVar("rooflab_seen", default=None)
_WHOLE: ContextVar[bool] = ContextVar("rooflab_whole", default=False)


@contextmanager
def whole() -> Iterator[None]:
    """Within it every call runs whole, with all its checks: what keeping calls spares is measured by it."""
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def runs_whole() -> bool:
    """Whether `whole` is around the call."""
    return _WHOLE.get()


class _Watched:
    """A kernel whose launches are seen."""

    def __init__(self, function: Any, seen: _Seen):
        self._function, self._seen = function, seen

    def launch(
        self,
        grid: Any,
        block: Any,
        arguments: Sequence[Any],
        *,
        shared: int = 0,
        cooperative: bool = False,
        **more: Any,
    ) -> None:
        self._function.launch(grid, block, arguments, shared=shared, cooperative=cooperative, **more)
        self._seen.whole &= not any(more.values())  # how else it is launched is not kept
        self._seen.launches.append((self._function, grid, block, list(arguments), shared, cooperative))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def watched(function: Any) -> Any:
    """A kernel as the call that is being watched should launch it: what ops.loaded hands out."""
    seen = _SEEN.get()
    return function if seen is None else _Watched(function, seen)


def unseen() -> None:
    """Say that this call does more than launch the course's kernels, so that it is not cached."""
    seen = _SEEN.get()
    if seen is not None:
        seen.whole = False


def hold(*arrays: Any) -> None:
    """Say that launches of this call read and write these arrays, which are its stream's for good."""
    seen = _SEEN.get()
    if seen is not None:
        seen.held.update((nvrtc.pointer(array), array) for array in arrays)


class _Kept:
    """What a call launched, operands open; `note` is whatever the call wants to know again."""

    def __init__(self, launches: list[Any], fresh: Callable[[], Any] | None, held: list[Any], note: Any):
        self.launches, self.fresh, self.held, self.note = launches, fresh, held, note


def _places(seen: _Seen, pointers: Sequence[int]) -> list[tuple] | None:
    """The launches with the number of the operand that each argument is (None: no operand), or None if some
    argument is neither an operand nor held, or could be two of them.
    """
    found = []
    for function, grid, block, arguments, shared, cooperative in seen.launches:
        places: list[int | None] = []
        for argument in arguments:
            pointer = nvrtc.address(argument)
            if pointer is None or (pointer in seen.held and pointer not in pointers):
                places.append(None)
            elif pointers.count(pointer) == 1:
                places.append(pointers.index(pointer))
            else:
                return None
        found.append((function, grid, block, arguments, shared, cooperative, places))
    return found


def _maker(result: Any) -> Callable[[], Any] | None:
    """What makes results like this one anew; None for a kind that is not known."""
    kind = _KINDS.get(type(result)) or _kind(type(result))
    if kind == _TORCH:
        empty = result.new_empty
        shape = tuple(result.shape)
        return lambda: empty(shape)
    if kind == _CUPY:
        import cupy

        shape, dtype = result.shape, result.dtype
        return lambda: cupy.empty(shape, dtype)
    return None


class Calls:
    """The calls of one launcher, by their facts."""

    def __init__(self) -> None:
        self._own = threading.local()  # a kept call's arguments lie in one place: every thread has its own

    def kept(self, key: tuple) -> Any:
        """The kept call of these facts, False if it cannot be kept, None if that is not known."""
        try:
            return self._own.calls.get(key)
        except AttributeError:
            self._own.calls = {}
            return None

    def watch(
        self, key: tuple, run: Callable[[], Any], out: Any, pointers: list[int], note: Any = None
    ) -> Any:
        """Run a call whole and keep it if that can be; what it returns."""
        seen = _Seen()
        token = _SEEN.set(seen)
        try:
            result = run()
        finally:
            _SEEN.reset(token)
        fresh = None
        if out is None:
            fresh = _maker(result)
            pointers = [*pointers, nvrtc.pointer(result)] if fresh else pointers
        launches = None
        if seen.whole and seen.launches and (fresh or result is out):
            launches = _places(seen, pointers)
        calls = self._own.calls
        if len(calls) >= MOST:
            calls.clear()
        calls[key] = False
        if launches is not None:
            ready = [repeated(*launch) for launch in launches]
            calls[key] = _Kept(ready, fresh, list(seen.held.values()), note() if note else None)
        return result


def repeated(
    function: Any,
    grid: Any,
    block: Any,
    arguments: list[Any],
    shared: int,
    cooperative: bool,
    places: list[int | None],
) -> Callable[[list[Any], list[int]], None]:
    """A launch to make again with other operands: a function of all operands and their addresses."""
    if isinstance(function, nvrtc.Function):
        again = function.repeated(grid, block, arguments, places, shared, cooperative)
        return lambda arrays, pointers: again(pointers)

    def launch(arrays: list[Any], pointers: list[int]) -> None:
        given = [a if p is None else arrays[p] for a, p in zip(arguments, places, strict=True)]
        function.launch(grid, block, given, shared=shared, cooperative=cooperative)

    return launch


def again(kept: _Kept, out: Any, arrays: list[Any], pointers: list[int]) -> Any:
    """Make a kept call's launches with these operands; its result."""
    if kept.fresh is not None:
        out = kept.fresh()
        arrays.append(out)
        pointers.append(nvrtc.pointer(out))
    for launch in kept.launches:
        launch(arrays, pointers)
    return out


Launcher = TypeVar("Launcher", bound=Callable[..., Any])


def remembered(target: ContextVar[str]) -> Callable[[Launcher], Launcher]:
    """Decorator of a launcher whose work on the GPU is launches of kernels from ops.loaded and nothing else,
    and whose result is `out`, or an array made in its place. `target` says for which machine.
    """

    def decorate(launcher: Launcher) -> Launcher:
        calls = Calls()

        @functools.wraps(launcher)
        def launch(*arguments: Any, **options: Any) -> Any:
            found: list[Any] = [*options]
            arrays: list[Any] = []
            pointers: list[int] = []
            given = (*arguments, *options.values())
            kind = target.get()
            if kind not in TARGETS or _WHOLE.get() or _SEEN.get() is not None:
                return launcher(*arguments, **options)
            if not facts(given, found, arrays, pointers):
                return launcher(*arguments, **options)
            if kind == "gpu":  # what a call holds is its stream's
                found.append(nvrtc.current_stream())
            key = tuple(found)
            kept = calls.kept(key)
            out = options.get("out")
            if kept:
                return again(kept, out, arrays, pointers)
            if kept is False:
                return launcher(*arguments, **options)
            return calls.watch(key, lambda: launcher(*arguments, **options), out, pointers)

        return cast(Launcher, launch)

    return decorate
