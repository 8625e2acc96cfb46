"""Launch a compiled program: NumPy arrays in, the runtime called, its faults turned into sentences."""

from __future__ import annotations

import ctypes
import functools
import math
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rooflab.errors import LaunchError
from rooflab.ops import Rung
from rooflab.simt import abi, build
from rooflab.simt.buffers import Guarded
from rooflab.simt.build import Program, load
from rooflab.simt.faults import Fault, KernelFault, source_lines, told

_LOCK = threading.Lock()  # the runtime runs one launch at a time


class Limit(NamedTuple):
    """When a launch is ended as one without end: after so many seconds of computing, and in a watched build,
    on every machine at the same place, after so many straight pieces of code. Compilers count no empty loop.
    """

    seconds: int
    steps: int


LIMIT = Limit(600, 1 << 32)


@dataclass(frozen=True)
class Outcome:
    """What a launch left: the faults found and, where asked for, every access (see abi.EVENT), the source
    lines of places, the names of regions and how many bytes after a multiple of 256 they start; and how often
    a watched launch executed each instruction that is counted (abi.EXECUTED).
    """

    faults: list[Fault]
    events: np.ndarray
    lines: Mapping[int, str]
    names: Mapping[int, str]
    skews: Mapping[int, int]
    executed: Mapping[str, int]


def _triple(shape: int | Sequence[int]) -> tuple[int, int, int]:
    dims = (shape,) if isinstance(shape, int) else tuple(int(d) for d in shape)
    x, y, z = (*dims, 1, 1)[:3]
    return int(x), int(y), int(z)


def _check_launch(grid: tuple[int, ...], block: tuple[int, ...], shared: int, cooperative: bool) -> None:
    threads = math.prod(block)
    if min(*grid, *block) < 1 or threads > 1024 or block[2] > 64:
        raise LaunchError(
            f"A launch needs blocks of 1 to 1024 threads, not {block} threads in {grid} blocks."
        )
    if max(grid[1:]) > 65535 or grid[0] >= 1 << 31 or math.prod(grid) * threads >= 1 << 32:
        raise LaunchError(f"A grid of {grid} blocks of {block} threads is too large for the CPU.")
    if cooperative and math.prod(grid) * threads > 1 << 17:
        raise LaunchError(
            f"A cooperative launch keeps all threads alive: at most {1 << 17} here, "
            f"not {math.prod(grid) * threads}."
        )
    if not 0 <= shared <= build.DYNAMIC_SHARED:
        raise LaunchError(
            f"A block has at most {build.DYNAMIC_SHARED} bytes of dynamic shared memory, not {shared}."
        )


def _check_argument(name: str, argument: Any, wanted: build.Parameter) -> None:
    if isinstance(argument, ctypes._SimpleCData):
        if wanted.pointer:
            raise LaunchError(f"{name} is a pointer in the kernel: pass a NumPy array, not a number.")
        if ctypes.sizeof(argument) != wanted.size:
            raise LaunchError(
                f"{name} is {wanted.size} bytes in the kernel, but {type(argument).__name__} has "
                f"{ctypes.sizeof(argument)}."
            )
        if isinstance(argument, ctypes.c_float | ctypes.c_double) != wanted.floating:
            kinds = ("an integer", "a floating-point number")
            raise LaunchError(
                f"{name} is {kinds[wanted.floating]} in the kernel, but {type(argument).__name__} is "
                f"{kinds[not wanted.floating]}."
            )
        return
    if not isinstance(argument, np.ndarray):
        raise LaunchError(f"{name} must be a NumPy array or a ctypes number, not {type(argument).__name__}.")
    if not wanted.pointer:
        raise LaunchError(
            f"{name} is a number of {wanted.size} bytes in the kernel: pass a ctypes number, not an array."
        )
    # Wider ones alone: an operator may hand over a narrower array in the place of one that is not read.
    if wanted.floating and argument.dtype.kind == "f" and argument.dtype.itemsize > wanted.size:
        right = np.dtype(f"f{wanted.size}")
        raise LaunchError(
            f"{name} points to numbers of {wanted.size} bytes in the kernel, but the array is "
            f"{argument.dtype}: pass it as .astype(np.{right})."
        )
    if not argument.flags.c_contiguous:
        raise LaunchError(f"{name} must be contiguous; make it so with .copy().")


def _checked(program: Program, entry: str, arguments: Sequence[Any]) -> list[str]:
    """The names of a kernel's arguments; LaunchError for arguments that do not fit them."""
    types, names = program.types(entry), program.parameters[entry]
    if len(names) != len(types):  # declared by a macro
        names = [f"argument {k}" for k in range(len(types))]
    if len(arguments) != len(types):
        raise LaunchError(f"{entry} takes {len(types)} arguments ({', '.join(names)}), not {len(arguments)}.")
    for name, argument, wanted in zip(names, arguments, types, strict=True):
        _check_argument(name, argument, wanted)
    return names


def _shared_variables(program: Program, entry: str, shared: int) -> list[build.Variable]:
    """The shared variables of a launch, dynamic shared memory with the size asked for."""
    variables = program.variables(entry)
    if shared and all(v.name != "(dynamic)" for v in variables):
        raise LaunchError(
            f"{entry} has no dynamic shared memory (extern __shared__), so it takes 0 bytes of it."
        )
    fixed = sum(v.size for v in variables if v.name != "(dynamic)")
    if fixed > build.STATIC_SHARED:
        raise LaunchError(
            f"{entry} declares {fixed} bytes of __shared__ arrays, and the compiler for GPUs allows "
            f"{build.STATIC_SHARED}: declare extern __shared__, whose size the launch gives."
        )
    if fixed + shared > build.DYNAMIC_SHARED:
        raise LaunchError(
            f"A block has at most {build.DYNAMIC_SHARED} bytes of shared memory, and {entry} asks for "
            f"{fixed + shared}."
        )
    return [replace(v, size=shared) if v.name == "(dynamic)" else v for v in variables]


def _packed(arguments: Sequence[Any], guarded: Guarded | None) -> Any:
    """Each argument in 8 bytes: numbers, and the addresses of arrays or of their guarded copies."""
    values = (abi.u64 * max(1, len(arguments)))()
    for k, argument in enumerate(arguments):
        if isinstance(argument, ctypes._SimpleCData):
            place = ctypes.addressof(values) + 8 * k
            ctypes.memmove(place, ctypes.addressof(argument), ctypes.sizeof(argument))
        else:
            values[k] = guarded.address(argument) if guarded else argument.ctypes.data
    return values


def launch(
    program: Program,
    entry: str | None,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    *,
    shared: int = 0,
    cooperative: bool = False,
    traced: int = 0,
    limit: Limit | None = None,
) -> Outcome:
    """Run one kernel of `program` over a grid, to its end.

    `arguments` are NumPy arrays (contiguous, passed as pointers) and ctypes numbers, `shared` the bytes of
    dynamic shared memory, `cooperative` keeps all blocks alive at once, as a barrier across blocks needs. A
    watched program works on guarded copies of the arrays, which are written back at the end, and notes down
    up to `traced` accesses. LaunchError for arguments that don't fit the kernel, and for more accesses. A
    launch that passes its `limit` is ended with the fault "endless loop".
    """
    entry = program.entry(entry)
    grid, block = _triple(grid), _triple(block)
    _check_launch(grid, block, shared, cooperative)
    limit = limit or LIMIT
    names = _checked(program, entry, arguments)
    variables = _shared_variables(program, entry, shared)
    guarded = Guarded(names, arguments) if program.watched else None
    values = _packed(arguments, guarded)
    buffers = guarded.buffers if guarded else (abi.RawBuffer * 1)()
    there = [v for v in variables if v.size]  # without dynamic shared memory of which 0 bytes were asked for
    table = (abi.RawVariable * max(1, len(there)))(
        *(abi.RawVariable(v.offset, v.size, v.guard) for v in there)
    )
    library, runtime = program.library, abi.runtime(str(build.runtime_path()))
    with _LOCK:
        library.simt_anchor()  # makes this OS thread's shared memory exist
        description = abi.RawLaunch(
            entry=ctypes.cast(getattr(library, f"simt_run_{entry}"), abi.pointer),
            arguments=ctypes.addressof(values),
            grid=grid,
            block=block,
            cooperative=cooperative,
            watched=program.watched,
            traced=traced,
            steps=limit.steps,
            seconds=limit.seconds,
            buffers=ctypes.addressof(buffers),
            variables=ctypes.addressof(table),
            buffer_count=len(guarded.names) if guarded else 0,
            variable_count=len(there),
            argument_count=len(arguments),
        )
        status = runtime.simt_launch(ctypes.byref(description))
        if status == signal.SIGINT:
            raise KeyboardInterrupt
        if status < 0:
            raise LaunchError(f"{entry} cannot run: no memory for the stacks of its threads.")
        events, complete = abi.events(runtime)
        executed = abi.executed(runtime)
        raw, base = abi.faults(runtime), int(runtime.simt_image())
        places = {*events["pc"].tolist(), *(f.pc for f in raw), *(f.other_pc for f in raw)} - {0}
        lines = source_lines(program, sorted(places), base)
        if guarded:
            guarded.write_back()
        regions = dict(enumerate(guarded.names)) if guarded else {}
        found = [told(fault, entry, block, lines, regions, guarded, variables) for fault in raw]
    if not complete:
        raise LaunchError(
            f"{entry} makes more than {traced} accesses, the most that can be watched at a time, the last at "
            f"{lines.get(int(events['pc'][-1]), 'a place without a line')}: take a smaller shape, or look "
            "for a loop without end."
        )
    skews = dict(enumerate(guarded.skews)) if guarded else {}
    return Outcome(found, events, lines, regions, skews, executed)


# What a launch is handed to instead of being run, if anything: see watching.watched_launches.
OBSERVER: ContextVar[Callable[..., None] | None] = ContextVar("rooflab_simt_observer", default=None)


class Function:
    """A kernel on the CPU with the `launch` of rooflab.runtime.nvrtc.Function, so that an op can hold
    either.
    """

    def __init__(
        self, source: Rung | str, options: Mapping[str, object] | None = None, entry: str | None = None
    ):
        self.source, self.options = source, options
        self.entry = source.entry if isinstance(source, Rung) else entry

    @functools.cached_property
    def program(self) -> Program:
        """The plain build, made when it is first run: an observer may need another one."""
        return load(self.source, self.options)

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        *,
        shared: int = 0,
        dependent: bool = False,
        cooperative: bool = False,
    ) -> None:
        """Run the kernel to its end over NumPy arrays and ctypes numbers; KernelFault if it did what it must
        not. `dependent` changes nothing: whatever was launched before has finished.
        """
        observer = OBSERVER.get()
        if observer is not None:
            observer(self, grid, block, arguments, shared, cooperative)
            return
        outcome = launch(
            self.program, self.entry, grid, block, arguments, shared=shared, cooperative=cooperative
        )
        if outcome.faults:
            raise KernelFault(outcome.faults)


def run(
    source: Rung | str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    options: Mapping[str, object] | None = None,
    *,
    entry: str | None = None,
    shared: int = 0,
    cooperative: bool = False,
) -> None:
    """Run a rung, or CUDA source text, on the CPU over NumPy arrays; KernelFault if it did what it must not.

    The plain build, which sees divergent barriers and warp operations, shuffles from absent lanes, waits
    without end and crashes; `watch` sees the rest. `options` are the rung's macros (or a text's -D macros),
    `entry` the kernel to run if the text has several.
    """
    function = Function(source, options, entry)
    function.launch(grid, block, arguments, shared=shared, cooperative=cooperative)
