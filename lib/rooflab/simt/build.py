"""Compile a CUDA source with the host's C++ compiler into a library that the runtime can call."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from rooflab.errors import MissingTool, UsageError
from rooflab.ops import Rung
from rooflab.paths import KERNELS, cache
from rooflab.records.fingerprint import strip_comments
from rooflab.runtime.nvrtc import portable_headers

INCLUDE = Path(__file__).with_name("include")
_PARTS = ("runtime.cpp", "warps.cpp", "watching.cpp", "known.cpp", "faults.cpp", "matrices.cpp")
RUNTIME = tuple(Path(__file__).with_name(name) for name in _PARTS)
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-Wl,-Bsymbolic", "-lrt")
DYNAMIC_SHARED = 227 * 1024  # the most that any GPU gives a block
STATIC_SHARED = 48 * 1024  # of it, what arrays of a size known to the compiler may take
_FLOATING = 1 << 16  # in what entry.h says of a parameter

# -fno-gnu-unique and -Bsymbolic keep a library's shared variables its own; -fwrapv and -fno-strict-aliasing
# say what CUDA C++ allows; the prefix maps keep this machine's paths out of reports; products and sums are
# fused where the source says fmaf.
_COMMON = ["-std=c++17", "-fPIC", "-w", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]
# Calls without stubs: a launch that is ended on its way into __syncthreads is at a line of the source.
_COMMON += ["-fno-optimize-sibling-calls", "-fno-plt"]
# addr2line of some binutils mistakes the first file of a DWARF 5 line table for another one.
# Most kernels run a few times over small shapes: what -O2 saves them is less than it takes to compile.
_PLAIN = ["-O1", "-g1", "-gdwarf-4"]
_WATCHED = ["-O1", "-g1", "-gdwarf-4", "-fsanitize=thread", "-DROOFLAB_WATCHED"]
_WATCHED += ["-fsanitize-coverage=trace-pc"]
_OF_FAMILY = {  # in every build, and in a watched one too
    "gcc": (
        [
            "-fno-gnu-unique",
            "-fno-diagnostics-show-caret",
            "-fno-var-tracking",
            "-fno-var-tracking-assignments",
        ],
        ["-fno-tree-sra", "-fno-semantic-interposition", "--param=tsan-distinguish-volatile=1"],
    ),
    "clang": (
        ["-fno-caret-diagnostics"],
        ["-mllvm", "-tsan-distinguish-volatile", "-mllvm", "-tsan-instrument-read-before-write"],
    ),
}

# The runtime brings the standard libraries along: to look through them again is most of a program's linking.
_LIBRARIES = {"gcc": ["-nodefaultlibs", "-lgcc"], "clang": []}

# What only Hopper and later have, by the words a source would use.
_HOPPER = {
    r"\bwgmma|\bwarpgroup_": "wgmma (warpgroup matrix products)",
    r"\bcp\.async\.bulk|\bcp_async_bulk|\bCUtensorMap|\btensormap|\btma_": "TMA (bulk tensor copies)",
    r"\b__cluster_dims__|\bthis_cluster\b|\bcluster_|barrier\.cluster|\bmapa\b": "thread block clusters",
    r"\bmbarrier": "mbarrier (barriers that count bytes)",
    r"\bsetmaxnreg": "setmaxnreg (register reallocation between warps)",
}
# What the host's compiler knows and NVRTC does not, with what to write instead.
_UNKNOWN_TO_NVRTC = {
    r"INFINITY|HUGE_VALF?": "__int_as_float(0x7f800000), or a number as large as 1e30f",
    r"NAN": "__int_as_float(0x7fffffff)",
    r"M_[A-Z0-9_]+": "the number",
    r"std ?:: ?\w+": "CUDA's own function (fmaxf, min, sqrtf)",
    r"u?int(?:8|16|32|64)_t": "int, unsigned or unsigned long long",
}
_LAUNCH_BOUNDS = r"(?:__launch_bounds__ \((?:[^()]|\([^()]*\))*\) )?"
_ENTRY = re.compile(
    rf'extern "C" __global__ {_LAUNCH_BOUNDS}void (?:[A-Z_]+ )?{_LAUNCH_BOUNDS}(\w+) \( ((?:[^()])*)\)'
)
_DYNAMIC = re.compile(r"\bextern __shared__ (?:[\w:]+ |\( \w+ \) )+?(\w+) \[ \]")


def compiler() -> str:
    """Path of the host's C++ compiler ($CXX, g++, c++ or clang++); MissingTool says how to get one."""
    if not sys.platform.startswith("linux"):
        raise MissingTool(
            "Kernels run on the CPU on Linux alone, with g++ or clang++ (on Windows in WSL, on macOS in a "
            "container); everything else works without."
        )
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise MissingTool(
        "No C++ compiler was found, so kernels cannot run on the CPU here: install one, for example "
        "`sudo apt install g++`; everything else works without it."
    )


def version() -> str:
    """What the host's C++ compiler says of itself."""
    return _version(compiler())


def family() -> str:
    """Which of the two it is: "gcc" or "clang"."""
    return _family(compiler())


@functools.cache
def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    return done.stdout.strip()


def _family(path: str) -> str:
    return "clang" if "clang" in _version(path) else "gcc"


def _cache_folder() -> Path:
    return cache() / "simt"


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@functools.cache
def _own_sources() -> str:
    """The digest of the runtime and of our headers."""
    folder = INCLUDE.parent
    files = [*sorted(folder.glob("*.[ch]*")), *sorted(path for path in INCLUDE.rglob("*") if path.is_file())]
    return _digest({path.relative_to(folder).as_posix(): path.read_text() for path in files})


def _compile(arguments: list[str], target: Path, name: str) -> None:
    partial = target.with_suffix(f".{os.getpid()}.so")
    done = subprocess.run(
        [compiler(), *arguments, "-o", str(partial)],
        capture_output=True,
        text=True,
        cwd=target.parent,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        partial.unlink(missing_ok=True)
        log = done.stderr.replace("/kernels/", "").strip()
        raise UsageError(f"{name} does not compile for the CPU:\n{log}")
    os.replace(partial, target)  # another process may be compiling the same source


def runtime_path() -> Path:
    """The runtime's library, compiled when its sources or the compiler have changed."""
    path = compiler()
    target = _cache_folder() / f"runtime-{_digest(_version(path), _own_sources())}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):  # it takes seconds, which two processes need not both spend
        if not target.is_file():
            where = [f"-I{INCLUDE}", f"-I{INCLUDE.parent}"]
            *first, last = map(str, RUNTIME)  # all in one, so that the standard headers are parsed once
            parts = [word for part in first for word in ("-include", part)]
            _compile([*_RUNTIME_FLAGS, *where, *parts, last], target, "The CPU runtime")
    return target


def _precompiled(options: list[str]) -> Path:
    """A folder with first.h, which every source includes first, and with what g++ keeps of having parsed it.

    `options` leave macros out: where one would change the headers, g++ parses them again.
    """
    path = compiler()
    folder = _cache_folder() / f"headers-{_digest(_version(path), _own_sources(), options, str(INCLUDE))}"
    parsed = folder / "first.h.gch"
    if not parsed.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if not parsed.is_file():
                header = folder / "first.h"
                header.write_text('#include "rooflab_simt.h"\n#include "simt/entry.h"\n')
                if _family(path) == "gcc":  # clang++ wants another form
                    _compile([*options, f"-I{INCLUDE}", "-x", "c++-header", str(header)], parsed, "first.h")
    return folder


@dataclass(frozen=True)
class Variable:
    """A shared variable: its name and its place and size in bytes in a block's shared memory; `guard` is the
    place by which the host's compiler remembers that it is made, which is none of the kernel's doing.
    """

    name: str
    offset: int
    size: int
    guard: int = (1 << 64) - 1


class Parameter(NamedTuple):
    """A kernel's parameter: whether it is a pointer, the bytes of the number or the alignment of what the
    pointer leads to, and whether that is a float or a double.
    """

    pointer: bool
    size: int
    floating: bool


@dataclass(frozen=True)
class Program:
    """One compiled source: its library, the parameter names of each kernel in it, its shared variables."""

    name: str
    path: Path
    watched: bool
    parameters: Mapping[str, list[str]] = field(repr=False)

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        """The library, loaded into this process."""
        return ctypes.CDLL(str(self.path))

    @functools.cached_property
    def _variables(self) -> list[tuple[str, Variable]]:
        """Its shared variables in the order of their addresses, each with its symbol."""
        done = subprocess.run([tool("readelf"), "-sW", self.path], capture_output=True, text=True)
        found: dict[int, tuple[str, Variable]] = {}
        guards: dict[str, int] = {}
        for line in done.stdout.splitlines():
            words = line.split()
            if len(words) < 8 or words[3] != "TLS" or words[6] == "UND":
                continue
            offset, size = int(words[1], 16), int(words[2], 0)
            if "simt_anchor" in words[7]:
                continue
            if words[7].startswith("_ZGV"):
                guards["_Z" + words[7].removeprefix("_ZGV")] = offset
                continue
            plain = re.sub(r"_\d+$", "", words[7])  # one of several functions' statics of that name
            inner = re.search(r"E(\d+)(\w+)$", plain) if plain.startswith("_Z") else None
            name = inner[2][-int(inner[1]) :] if inner else plain
            if words[7] == "simt_dynamic" or offset not in found:
                name = "(dynamic)" if words[7] == "simt_dynamic" else name
                found[offset] = words[7], Variable(name, offset, size)
        rows = [found[offset] for offset in sorted(found)]
        return [(s, replace(v, guard=guards[s]) if s in guards else v) for s, v in rows]

    def variables(self, entry: str) -> list[Variable]:
        """The shared variables that kernel `entry` may use, in the order of their addresses: all but those
        of the other kernels. Dynamic shared memory is "(dynamic)".
        """
        others = tuple(f"_ZZ{len(name)}{name}E" for name in self.parameters if name != entry)
        return [variable for symbol, variable in self._variables if not symbol.startswith(others)]

    def entry(self, name: str | None) -> str:
        """The kernel to launch: `name`, or the only one there is; UsageError lists what exists."""
        if name is None and len(self.parameters) == 1:
            return next(iter(self.parameters))
        if name is None or name not in self.parameters:
            wanted = f"no kernel {name}" if name else "several kernels, so name one"
            raise UsageError(f"{self.name} has {wanted}; it has {', '.join(self.parameters)}.")
        return name

    def types(self, entry: str) -> list[Parameter]:
        """A kernel's parameters, in order."""
        count = len(self.parameters[entry])
        out = (ctypes.c_int * (64 + count))()
        getattr(self.library, f"simt_types_{entry}")(out)
        codes = out[1 : 1 + out[0]]
        return [Parameter(code < 0, abs(code) % _FLOATING, abs(code) >= _FLOATING) for code in codes]


def tool(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise MissingTool(f"{name} is not installed; it comes with the compiler, in the package binutils.")
    return found


def refuse_unportable(name: str, text: str) -> None:
    """UsageError, naming the instruction, for a source that only a GPU of some generation can run; naming the
    word, for one that no GPU's compiler takes.
    """
    code = re.sub(r"^\s*#\s*include\b[^\n]*", "", text, flags=re.MULTILINE)
    for words, instruction in _HOPPER.items():
        if re.search(words, code):
            raise UsageError(
                f"{name} uses {instruction}, which only Hopper and later GPUs have: "
                "it does not run on the CPU."
            )
    code = re.sub(r'"(?:\\.|[^"\\])*"', "", code)
    for words, instead in _UNKNOWN_TO_NVRTC.items():
        used = re.search(rf"\b(?:{words})\b", code)
        if used and not re.search(rf"(?:#define|typedef [^;]*|using) {used[0]}\b", code):
            raise UsageError(
                f"{name} uses {used[0].replace(' ', '')}, which NVRTC, the compiler for GPUs, does not know: "
                f"write {instead}."
            )
    if re.search(r"\basm\b", text):
        raise UsageError(
            f"{name} holds inline PTX, which the CPU cannot run: put it in a header of "
            "kernels/common/ptx, whose functions have CPU versions."
        )


def load(
    source: Rung | str,
    defines: Mapping[str, object] | None = None,
    *,
    watched: bool = False,
    name: str = "kernel.cu",
) -> Program:
    """Compile a rung, or CUDA source text, for the CPU, or take it from the cache.

    `defines` are the rung's options, or a text's -D macros. `watched` adds the instrumentation that
    `watch` needs. UsageError if the source does not compile or needs what only a GPU has.
    """
    if isinstance(source, Rung):
        if not any(arch.isdigit() for arch in source.archs):
            raise UsageError(
                f"Rung {source.operator}/{source.name} is for sm_{source.archs[0]} alone: "
                "it does not run on the CPU."
            )
        name, text = f"{source.operator}/{source.name}.cu", source.path.read_text()
        defines = source.with_defaults({k: int(str(v)) for k, v in (defines or {}).items()})
    else:
        text = source
    path = compiler()
    headers = portable_headers(text)
    entries, dynamic = _inspected(name, "\n".join([*headers.values(), text]))
    always, in_watched = _OF_FAMILY[_family(path)]
    options = [
        *_COMMON,
        *always,
        *([*_WATCHED, *in_watched] if watched else _PLAIN),
    ]
    macros = [f"-D{key}={value}" for key, value in sorted((defines or {}).items())]
    digest = _digest(_version(path), _own_sources(), [*options, *macros], headers, name, text)
    target = _cache_folder() / f"{digest}.so"
    if not target.is_file():
        runtime = runtime_path()
        # Ours come first, in the place of the headers of PTX. Those of Hopper's instructions are empty here.
        where = [f"-I{folder}" for folder in (_precompiled(options), INCLUDE, KERNELS)]
        main = target.with_suffix(f".{os.getpid()}.main.cpp")
        calls = "\n".join(f"SIMT_ENTRY({entry})" for entry in entries)
        main.write_text(
            f'#include "first.h"\n#line 1 "/kernels/{name}"\n{text}\n#line 1 "/simt/entries"\n{calls}\n'
        )
        maps = [f"-ffile-prefix-map={INCLUDE}=/simt", f"-ffile-prefix-map={KERNELS}=/kernels"]
        compiled = main.with_suffix(".o")
        try:
            # -fsanitize at the compile step alone: linking with it would bring its runtime in.
            _compile([*options, *macros, *where, *maps, "-c", str(main)], compiled, name)
            objects = [compiled, *([_dynamic_shared(dynamic, options)] if dynamic else []), runtime]
            linked = ["-shared", "-Wl,-Bsymbolic", *map(str, objects), *_LIBRARIES[_family(path)]]
            _compile(linked, target, name)
        finally:
            for leftover in (main, compiled):
                leftover.unlink(missing_ok=True)
    return Program(name, target, watched, entries)


@functools.lru_cache(maxsize=256)
def _inspected(name: str, text: str) -> tuple[dict[str, list[str]], list[str]]:
    """The kernels of a source and its headers with their parameters' names, and its arrays of dynamic shared
    memory; UsageError for one that does not run on the CPU.
    """
    stripped = strip_comments(text)
    refuse_unportable(name, stripped)
    entries = {entry: _parameter_names(inner) for entry, inner in _ENTRY.findall(stripped)}
    if not entries:
        raise UsageError(f'{name} has no kernel: it needs a function marked extern "C" __global__ void.')
    return entries, sorted(set(_DYNAMIC.findall(stripped)))


def _parameter_names(inner: str) -> list[str]:
    names = []
    for parameter in inner.split(",") if inner.strip() else []:
        words = re.findall(r"[A-Za-z_]\w*", parameter)
        names.append(words[-1] if words else "")
    return names


def _dynamic_shared(names: list[str], options: list[str]) -> Path:
    """The object with dynamic shared memory, which kernels that call it alike have in common."""
    # All of a kernel's `extern __shared__` arrays start at the same place.
    aliases = "\n".join(
        f'extern thread_local unsigned char {name}[{DYNAMIC_SHARED}] __attribute__((alias("simt_dynamic")));'
        for name in names
    )
    text = f"alignas(1024) thread_local unsigned char simt_dynamic[{DYNAMIC_SHARED}];\n{aliases}\n"
    target = _cache_folder() / f"shared-{_digest(version(), options, text)}.o"
    if not target.is_file():
        source = target.with_suffix(f".{os.getpid()}.cpp")
        source.write_text(text)
        _compile([*options, "-c", str(source)], target, "Dynamic shared memory")
        source.unlink()
    return target
