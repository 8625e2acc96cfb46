"""What a kernel did wrong, in words: kind, place in the source, block, threads, address."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rooflab.errors import RooflabError
from rooflab.simt import build
from rooflab.simt.abi import ATOMIC, KINDS, NOWHERE, SHARED, WRITE, RawFault
from rooflab.simt.buffers import Guarded
from rooflab.simt.build import Program


@dataclass(frozen=True, repr=False)
class Fault:
    """One thing that a kernel did wrong, as often as it did it at that place.

    `kind` is one of KINDS; `line` the place in the source ("read/1_scalar.cu:21"), `other_line` the place it
    clashes with; `block` and `threads` the first block and up to eight threads that did it; `address` the
    buffer or shared variable and the offset in bytes ("x + 132"); `count` how often. Printed,
    it is a sentence.
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
    sentence: str = ""

    def __repr__(self) -> str:  # also in a printed list
        return self.sentence


class KernelFault(RooflabError):
    """A kernel on the CPU did what no GPU allows; `faults` lists it."""

    def __init__(self, faults: Sequence[Fault]):
        self.faults = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def source_lines(program: Program, places: Sequence[int], base: int) -> dict[int, str]:
    """The source lines ("read/1_scalar.cu:21") of return addresses in a program loaded at `base`.

    Of code that was inlined the innermost line outside our own headers counts.
    """
    if not places:
        return {}
    # A return address is that of the next instruction.
    asked = [f"{place - 1 - base:#x}" for place in places]
    command = [build.tool("addr2line"), "-a", "-i", "-e", str(program.path), *asked]
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


@dataclass(frozen=True)
class _Scene:
    """A fault with the names that make it readable: of the buffer or variable that its address lies in or
    next to, and of the lines.
    """

    raw: RawFault
    block: Sequence[int]
    name: str
    offset: int  # of the access, from that buffer's or variable's start
    size: int  # of the buffer or variable
    other_line: str

    @property
    def address(self) -> str:
        """As in "x + 132"."""
        known = self.raw.region != NOWHERE
        return f"{self.name} + {self.offset}" if known else f"address {self.raw.offset:#x}"

    @property
    def spot(self) -> str:
        """The same in a sentence: in C, tile + 512 would be 512 elements."""
        return self.address + " bytes" * (self.raw.region != NOWHERE)

    @property
    def act(self) -> str:
        """What the thread does there."""
        if self.raw.how & ATOMIC:
            return "changes atomically"
        return "writes" if self.raw.how & WRITE else "reads"

    @property
    def other(self) -> str:
        """The thread it clashes with."""
        return "thread " + _dims(self.raw.other_thread, self.block)


def _out_of_bounds(scene: _Scene) -> str:
    where, raw = scene.offset - scene.size, scene.raw
    if raw.region == SHARED and not scene.size:
        return f"{scene.act} {raw.size} bytes of {scene.name}, of which the launch gave 0 bytes: pass shared="
    if raw.region == NOWHERE:
        return f"{scene.act} {raw.size} bytes at {scene.address}, in no buffer"
    past = (
        "right behind its end"
        if where == 0
        else f"{where} bytes past its end"
        if where > 0
        else f"{-scene.offset} bytes before its start"
        if scene.offset < 0
        else "across its end"
    )
    return f"{scene.act} {raw.size} bytes at {scene.spot}, {past} ({scene.size} bytes)"


def _misaligned(scene: _Scene) -> str:
    size = scene.raw.size
    return f"{scene.act} {size} bytes at {scene.spot}, which is no multiple of {size}"


def _race(scene: _Scene) -> str:
    raw = scene.raw
    before = "wrote" if raw.other_how & WRITE else "read"
    same = list(raw.other_block) == list(raw.block)
    where = "of the same block" if same else f"of block {tuple(raw.other_block)}"
    return (
        f"{scene.act} {scene.spot}, which {scene.other} {where} {before} ({scene.other_line}) "
        "with no barrier between them"
    )


def _unfinished(scene: _Scene) -> str:
    whose = "its own" if scene.raw.other_thread == scene.raw.thread else f"{scene.other}'s"
    return (
        f"{scene.act} {scene.spot} before {whose} asynchronous copy to it ({scene.other_line}) was waited for"
    )


# The sentences of the kinds that the runtime has no text for.
_SENTENCES: dict[str, Callable[[_Scene], str]] = {
    "out of bounds": _out_of_bounds,
    "misaligned": _misaligned,
    "race": _race,
    "uninitialised": lambda scene: f"reads {scene.spot}, which this block has not written",
    "unfinished copy": _unfinished,
    "wrong memory": lambda scene: f"{scene.raw.text.decode()}, not {scene.spot}",
    "crash": lambda scene: (
        "an access outside the process's memory or a division by zero ended the launch; "
        "run it watched to see where"
    ),
    "trap": lambda scene: "__trap was called",
    "stack overflow": lambda scene: "a thread's local variables need more than the 64 KiB that it has here",
}


def told(
    raw: RawFault,
    entry: str,
    block: Sequence[int],
    lines: Mapping[int, str],
    regions: Mapping[int, str],
    guarded: Guarded | None,
    variables: Sequence[build.Variable],
) -> Fault:
    """The runtime's fault as a Fault, given the names of lines, buffers and shared variables."""
    kind = KINDS[raw.kind]
    line = f"{raw.file.decode().removeprefix('/kernels/')}:{raw.line}" if raw.file else lines.get(raw.pc, "")
    scene = _Scene(raw, block, *_place(raw, regions, guarded, variables), lines.get(raw.other_pc, ""))
    threads = list(raw.threads[: raw.thread_count])
    who = "thread " + _dims(raw.thread, block)
    if len(threads) > 1:
        who = "threads " + ", ".join(_dims(t, block) for t in threads) + (", ..." if raw.count > 8 else "")
    where = f"block {tuple(raw.block)}, " if kind != "stack overflow" else ""
    place = f" {line}," if line else ""
    times = f" ({raw.count} times)" if raw.count > 1 else ""
    sentence = _SENTENCES[kind](scene) if kind in _SENTENCES else raw.text.decode()
    x, y, z = raw.block
    ox, oy, oz = raw.other_block
    return Fault(
        kind=kind,
        kernel=entry,
        line=line,
        block=(x, y, z),
        threads=threads,
        address=scene.address if raw.region != NOWHERE or kind == "out of bounds" else "",
        other_line=scene.other_line,
        other_block=(ox, oy, oz) if kind == "race" else None,
        other_thread=raw.other_thread if kind == "race" else None,
        count=raw.count,
        sentence=f"{kind}: {entry},{place} {where}{who}: {sentence}{times}.",
    )


def _place(
    raw: RawFault, regions: Mapping[int, str], guarded: Guarded | None, variables: Sequence[build.Variable]
) -> tuple[str, int, int]:
    """Name, offset and size of the buffer or shared variable that a fault's address lies in or next to."""
    if raw.region == SHARED:
        before = [v for v in variables if v.offset <= raw.offset] or list(variables[:1])
        if not before:
            return "shared memory", raw.offset, 0
        name = "dynamic shared memory" if before[-1].name == "(dynamic)" else before[-1].name
        return name, raw.offset - before[-1].offset, before[-1].size
    if raw.region == NOWHERE or guarded is None:
        return "", raw.offset, 0
    return regions[raw.region], raw.offset, guarded.size(raw.region)
