"""Launch a compiled program: NumPy arrays in, the runtime called, its faults turned into sentences."""

from __future__ import annotations

import ctypes
import functools
import math
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rooflab.errors import LaunchError, RooflabError
from rooflab.ops import Rung
from rooflab.simt import build
from rooflab.simt.build import Program, load

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
)
WRITE, SOFT, ATOMIC = 1, 2, 4
SHARED, NOWHERE = -1, -2
_GUARD = 1 << 12  # bytes on either side of a watched buffer that a stray access may hit harmlessly
_LOCK = threading.Lock()  # the runtime runs one launch at a time

_u32, _u64, _i32, _i64, _pointer = (
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_void_p,
)


class _Buffer(ctypes.Structure):
    _fields_ = [(name, _u64) for name in ("start", "end", "guard_start", "guard_end")]


class _Variable(ctypes.Structure):
    _fields_ = [("offset", _u64), ("size", _u64), ("guard", _u64)]


class _Fault(ctypes.Structure):
    _fields_ = [
        *((name, _i32) for name in ("kind", "region", "size", "how", "other_how", "line")),
        ("offset", _i64),
        *((name, _u64) for name in ("pc", "other_pc", "count")),
        ("block", _u32 * 3),
        ("other_block", _u32 * 3),
        *((name, _u32) for name in ("thread", "other_thread")),
        ("threads", _u32 * 8),
        ("thread_count", _u32),
        ("file", ctypes.c_char_p),
        ("text", ctypes.c_char * 400),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", _pointer),
        ("arguments", _pointer),
        ("grid", _u32 * 3),
        ("block", _u32 * 3),
        *((name, _u32) for name in ("cooperative", "watched")),
        ("traced", _u64),
        ("buffers", _pointer),
        ("variables", _pointer),
        *((name, _u32) for name in ("buffer_count", "variable_count", "argument_count")),
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


@dataclass(frozen=True)
class Fault:
    """One thing that a kernel did wrong, as often as it did it at that place.

    `kind` is one of KINDS; `line` the place in the source ("read/1_scalar.cu:21"), `other_line` the place it
    clashes with; `block` and `threads` the first block and up to eight threads that did it; `address` the
    buffer or shared variable and the offset in bytes ("x + 132"); `count` how often. str() is a sentence.
    """

    kind: str
    kernel: str
    line: str
    block: tuple[int, int, int]
    threads: list[int]
    address: str = ""
    other_line: str = ""
    other_block: tuple[int, int, int] | None = None
    other_thread: int | None = None
    count: int = 1
    sentence: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.sentence


class KernelFault(RooflabError):
    """A kernel on the CPU did what no GPU allows; `faults` lists it."""

    def __init__(self, faults: Sequence[Fault]):
        self.faults = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


@dataclass(frozen=True)
class Outcome:
    """What a launch left: the faults found and, where asked for, every access (see EVENT), the source lines
    of places, the names of regions and how many bytes after a multiple of 256 they start.
    """

    faults: list[Fault]
    events: np.ndarray
    lines: Mapping[int, str]
    names: Mapping[int, str]
    skews: Mapping[int, int]


@functools.lru_cache(maxsize=8)
def _runtime(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.simt_faults.restype = ctypes.POINTER(_Fault)
    library.simt_events.restype = _pointer
    library.simt_image.restype = _u64
    return library


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


def _check_argument(name: str, argument: Any, wanted: int) -> None:
    if isinstance(argument, ctypes._SimpleCData):
        if wanted < 0:
            raise LaunchError(f"{name} is a pointer in the kernel: pass a NumPy array, not a number.")
        if ctypes.sizeof(argument) != wanted:
            raise LaunchError(
                f"{name} is {wanted} bytes in the kernel, but {type(argument).__name__} has "
                f"{ctypes.sizeof(argument)}."
            )
        return
    if not isinstance(argument, np.ndarray):
        raise LaunchError(f"{name} must be a NumPy array or a ctypes number, not {type(argument).__name__}.")
    if wanted > 0:
        raise LaunchError(
            f"{name} is a number of {wanted} bytes in the kernel: pass a ctypes number, not an array."
        )
    if not argument.flags.c_contiguous:
        raise LaunchError(f"{name} must be contiguous; make it so with .copy().")


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
) -> Outcome:
    """Run one kernel of `program` over a grid, to its end.

    `arguments` are NumPy arrays (contiguous, passed as pointers) and ctypes numbers, `shared` the bytes of
    dynamic shared memory, `cooperative` keeps all blocks alive at once, as a barrier across blocks needs. A
    watched program works on guarded copies of the arrays, which are written back at the end, and notes down
    up to `traced` accesses. LaunchError for arguments that don't fit the kernel, and for more accesses.
    """
    entry = program.entry(entry)
    grid, block = _triple(grid), _triple(block)
    _check_launch(grid, block, shared, cooperative)
    types = program.types(entry)
    names = program.parameters[entry]
    if len(names) != len(types):  # declared by a macro
        names = [f"argument {k}" for k in range(len(types))]
    if len(arguments) != len(types):
        raise LaunchError(f"{entry} takes {len(types)} arguments ({', '.join(names)}), not {len(arguments)}.")
    for name, argument, wanted in zip(names, arguments, types, strict=True):
        _check_argument(name, argument, wanted)

    variables = program.variables(entry)
    dynamic = [v for v in variables if v.name == "(dynamic)"]
    if shared and not dynamic:
        raise LaunchError(
            f"{entry} has no dynamic shared memory (extern __shared__), so it takes 0 bytes of it."
        )
    sized = [replace(v, size=shared) if v in dynamic else v for v in variables]
    sized = [v for v in sized if v.size]
    guarded = _Guarded(names, arguments) if program.watched else None

    values = (_u64 * max(1, len(arguments)))()
    for k, argument in enumerate(arguments):
        if isinstance(argument, ctypes._SimpleCData):
            ctypes.memmove(
                ctypes.addressof(values) + 8 * k, ctypes.addressof(argument), ctypes.sizeof(argument)
            )
        else:
            values[k] = guarded.address(argument) if guarded else argument.ctypes.data
    buffers = guarded.buffers if guarded else (_Buffer * 1)()
    table = (_Variable * max(1, len(sized)))(*(_Variable(v.offset, v.size, v.guard) for v in sized))

    library = program.library
    with _LOCK:
        library.simt_anchor()  # makes this OS thread's shared memory exist
        description = _Launch(
            entry=ctypes.cast(getattr(library, f"simt_run_{entry}"), _pointer),
            arguments=ctypes.addressof(values),
            grid=grid,
            block=block,
            cooperative=cooperative,
            watched=program.watched,
            traced=traced,
            buffers=ctypes.addressof(buffers),
            variables=ctypes.addressof(table),
            buffer_count=len(guarded.names) if guarded else 0,
            variable_count=len(sized),
            argument_count=len(arguments),
        )
        runtime = _runtime(str(build.runtime_path()))
        status = runtime.simt_launch(ctypes.byref(description))
        if status == signal.SIGINT:
            raise KeyboardInterrupt
        if status < 0:
            raise LaunchError(f"{entry} cannot run: no memory for the stacks of its threads.")
        count, dropped = _u64(), _u64()
        faults = runtime.simt_faults(ctypes.byref(count))
        raw = [faults[k] for k in range(count.value)]
        base = int(runtime.simt_image())
        events = np.zeros(0, EVENT)
        if traced:
            address = runtime.simt_events(ctypes.byref(count), ctypes.byref(dropped))
            if count.value:
                events = np.ctypeslib.as_array(
                    ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (count.value * EVENT.itemsize,)
                )
                events = events.view(EVENT).copy()
        places = {*events["pc"].tolist(), *(f.pc for f in raw), *(f.other_pc for f in raw)} - {0}
        lines = source_lines(program, sorted(places), base)
        if guarded:
            guarded.write_back()
        regions = dict(enumerate(guarded.names)) if guarded else {}
        told = [_told(fault, program, entry, block, lines, regions, guarded, sized) for fault in raw]
    skews = dict(enumerate(guarded.skews)) if guarded else {}
    if dropped.value:
        raise LaunchError(
            f"{entry} makes more than {traced} accesses, the most that can be watched at a time: "
            "take a smaller shape, or look for a loop without end."
        )
    return Outcome(told, events, lines, regions, skews)


class _Guarded:
    """Copies of arrays with guard zones around them; arrays that overlap share one copy, as on a GPU."""

    def __init__(self, names: Sequence[str], arguments: Sequence[Any]):
        arrays = [(a.ctypes.data, a.nbytes, n, a) for n, a in zip(names, arguments, strict=True) if _is(a)]
        groups: list[list[Any]] = []
        for start, size, name, array in sorted(arrays, key=lambda row: (row[0], row[1])):
            if groups and start < groups[-1][1]:
                groups[-1][1] = max(groups[-1][1], start + size)
                groups[-1][2].append((name, array))
            else:
                groups.append([start, start + size, [(name, array)]])
        self.names = ["/".join(dict.fromkeys(n for n, _ in members)) for _, _, members in groups]
        self.buffers = (_Buffer * max(1, len(groups)))()
        self.skews: list[int] = []
        self._groups = []
        for k, (start, end, members) in enumerate(groups):
            room = np.full(end - start + 2 * _GUARD + 512, 0xA5, np.uint8)
            at = room.ctypes.data
            # A GPU's allocator aligns to 256 bytes, so a view's place in its array says how it is aligned.
            skew = (start - _root(members[0][1]).ctypes.data) % 256
            self.skews.append(skew)
            first = at + _GUARD + (skew - at - _GUARD) % 256
            self.buffers[k] = _Buffer(
                first, first + end - start, first - _GUARD, first + end - start + _GUARD
            )
            self._groups.append((start, end, first, first - at, room, members))
            for _, array in members:
                offset = first - at + array.ctypes.data - start
                room[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)

    def address(self, array: np.ndarray) -> int:
        """Where the copy of `array` lies."""
        place = array.ctypes.data
        for start, end, first, *_ in self._groups:
            if start <= place < end or (array.nbytes == 0 and place == start):
                return int(first + place - start)
        return place

    def write_back(self) -> None:
        """Copy everything that may have changed back into the caller's arrays."""
        for start, _, _, offset, room, members in self._groups:
            for _, array in members:
                if array.flags.writeable:
                    at = offset + array.ctypes.data - start
                    array.reshape(-1).view(np.uint8)[:] = room[at : at + array.nbytes]

    def size(self, region: int) -> int:
        """Bytes of a region."""
        return int(self.buffers[region].end - self.buffers[region].start)


def _root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _is(argument: Any) -> bool:
    return isinstance(argument, np.ndarray)


def source_lines(program: Program, places: Sequence[int], base: int) -> dict[int, str]:
    """The source lines ("read/1_scalar.cu:21") of return addresses in a program loaded at `base`.

    Of code that was inlined the innermost line outside our own headers counts.
    """
    if not places:
        return {}
    # A return address is that of the next instruction.
    asked = [f"{place - 1 - base:#x}" for place in places]
    command = [build._tool("addr2line"), "-a", "-i", "-e", str(program.path), *asked]
    done = subprocess.run(command, capture_output=True, text=True)
    lines: dict[int, str] = {}
    frames = re.split(r"^0x[0-9a-f]+$", done.stdout, flags=re.MULTILINE)[1:]
    for place, text in zip(places, frames, strict=True):
        candidates = [re.sub(r" \(discriminator.*", "", line) for line in text.split("\n") if line]
        own = [line for line in candidates if "/simt/" not in line] or candidates or ["?"]
        lines[place] = own[0].split("/kernels/")[-1]
    return lines


def _dims(linear: int, block: Sequence[int]) -> str:
    x, y, z = linear % block[0], linear // block[0] % block[1], linear // block[0] // block[1]
    return str(x) if block[1] == block[2] == 1 else f"({x}, {y}, {z})"


def _told(
    fault: _Fault,
    program: Program,
    entry: str,
    block: Sequence[int],
    lines: Mapping[int, str],
    regions: Mapping[int, str],
    guarded: _Guarded | None,
    variables: Sequence[build.Variable],
) -> Fault:
    kind = KINDS[fault.kind]
    line = lines.get(fault.pc, "")
    if fault.file:
        line = f"{fault.file.decode().removeprefix('/kernels/')}:{fault.line}"
    name, offset, size = _place(fault, regions, guarded, variables)
    address = f"{name} + {offset}" if fault.region != NOWHERE else f"address {fault.offset:#x}"
    where = f"block {tuple(fault.block)}, " if fault.kind != KINDS.index("stack overflow") else ""
    who = "thread " + _dims(fault.thread, block)
    threads = list(fault.threads[: fault.thread_count])
    if len(threads) > 1:
        who = "threads " + ", ".join(_dims(t, block) for t in threads) + (", ..." if fault.count > 8 else "")
    act = ("writes" if fault.how & WRITE else "reads") if not fault.how & ATOMIC else "changes atomically"
    text = fault.text.decode()
    other_line = lines.get(fault.other_pc, "")
    other = tuple(fault.other_block)
    if kind == "out of bounds":
        past = (
            "in no buffer"
            if fault.region == NOWHERE
            else "right behind its end"
            if offset == size
            else f"{offset - size} bytes past its end"
            if offset >= size
            else f"{-offset} bytes before its start"
            if offset < 0
            else "across its end"
        )
        sentence = f"{act} {fault.size} bytes at {address}, {past}"
        if fault.region != NOWHERE:
            sentence += f" ({size} bytes)"
    elif kind == "misaligned":
        sentence = f"{act} {fault.size} bytes at {address}, which is no multiple of {fault.size}"
    elif kind == "race":
        act_then = "wrote" if fault.other_how & WRITE else "read"
        same = "of the same block" if other == tuple(fault.block) else f"of block {other}"
        sentence = (
            f"{act} {address}, which thread {_dims(fault.other_thread, block)} {same} {act_then} "
            f"({other_line}) with no barrier between them"
        )
    elif kind == "uninitialised":
        sentence = f"reads {address} in shared memory, which this block has not written"
    elif kind == "unfinished copy":
        copier = (
            "its own" if fault.other_thread == fault.thread else "thread " + _dims(fault.other_thread, block)
        )
        copier = copier if copier == "its own" else copier + "'s"
        sentence = f"{act} {address} before {copier} asynchronous copy to it ({other_line}) was waited for"
    elif kind == "wrong memory":
        sentence = f"{text}, not {address}"
    elif kind == "crash":
        sentence = (
            "an access outside the process's memory or a division by zero ended the launch; "
            "run it watched to see where"
        )
    elif kind == "trap":
        sentence = "__trap was called"
    elif kind == "stack overflow":
        sentence = "a thread's local variables need more than the 64 KiB that it has here"
    else:
        sentence = text
    times = f" ({fault.count} times)" if fault.count > 1 else ""
    place = f" {line}," if line else ""
    return Fault(
        kind=kind,
        kernel=entry,
        line=line,
        block=(fault.block[0], fault.block[1], fault.block[2]),
        threads=threads,
        address=address if fault.region != NOWHERE or kind == "out of bounds" else "",
        other_line=other_line,
        other_block=(other[0], other[1], other[2]) if kind == "race" else None,
        other_thread=fault.other_thread if kind == "race" else None,
        count=fault.count,
        sentence=f"{kind}: {entry},{place} {where}{who}: {sentence}{times}.",
    )


def _place(
    fault: _Fault,
    regions: Mapping[int, str],
    guarded: _Guarded | None,
    variables: Sequence[build.Variable],
) -> tuple[str, int, int]:
    """Name, offset and size of the buffer or shared variable that a fault's address lies in or next to."""
    if fault.region == SHARED:
        before = [v for v in variables if v.offset <= fault.offset] or list(variables[:1])
        if not before:
            return "shared memory", fault.offset, 0
        name = "dynamic shared memory" if before[-1].name == "(dynamic)" else before[-1].name
        return name, fault.offset - before[-1].offset, before[-1].size
    if fault.region == NOWHERE or guarded is None:
        return "", fault.offset, 0
    return regions[fault.region], fault.offset, guarded.size(fault.region)


# What a launch is handed to instead of being run, if anything: see watching.watched_launches.
OBSERVER: ContextVar[Callable[..., None] | None] = ContextVar("rooflab_simt_observer", default=None)


class Function:
    """A kernel on the CPU with the `launch` of rooflab.kernel.Function, so that an op can hold either."""

    def __init__(
        self, source: Rung | str, options: Mapping[str, object] | None = None, entry: str | None = None
    ):
        self.source, self.options = source, options
        self.program = load(source, options)
        self.entry = self.program.entry(source.entry if isinstance(source, Rung) else entry)

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

    The plain -O2 build, which sees divergent barriers and warp operations, shuffles from absent lanes, waits
    without end and crashes; `watch` sees the rest. `options` are the rung's macros (or a text's -D macros),
    `entry` the kernel to run if the text has several.
    """
    function = Function(source, options, entry)
    function.launch(grid, block, arguments, shared=shared, cooperative=cooperative)
