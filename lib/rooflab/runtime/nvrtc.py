"""Compile a rung with NVRTC and report on the cubin; rooflab.runtime.driver loads that very cubin.

Compiling and reporting need no GPU and no driver (NVRTC, its headers and pyelftools are enough), so CI
reports on every rung.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rooflab.errors import MissingTool, UsageError
from rooflab.paths import BUILD, KERNELS
from rooflab.records.fingerprint import strip_comments
from rooflab.runtime.driver import Function as Function
from rooflab.runtime.driver import TensorMap as TensorMap
from rooflab.runtime.driver import address as address
from rooflab.runtime.driver import array_map as array_map
from rooflab.runtime.driver import current_stream as current_stream
from rooflab.runtime.driver import pointer as pointer
from rooflab.runtime.driver import tensor_map as tensor_map

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


# --- sources ------------------------------------------------------------------------------------------------


def headers_of(source: str) -> dict[str, str]:
    """The course's own headers that `source` includes, directly or through each other: name -> text.

    Names are relative to kernels/ ("common/reduce.cuh"). They are handed to NVRTC as texts, so that no path
    of the compiling machine enters the cubin, and they are part of every cache key: CuPy's own cache
    ignores headers.
    """
    found: dict[str, str] = {}
    queue = [*_included(source)]
    while queue:
        name = queue.pop(0)
        if name in found:
            continue
        path = KERNELS / name
        if not path.is_file():
            raise UsageError(f'The header "{name}" is included but kernels/{name} does not exist.')
        found[name] = path.read_text()
        queue += _included(found[name])
    return dict(sorted(found.items()))


def portable_headers(source: str) -> dict[str, str]:
    """Those of `headers_of` that the CPU compiles too: all but those of inline PTX, kernels/common/ptx, in
    whose place it has its own.
    """
    return {name: text for name, text in headers_of(source).items() if not name.startswith("common/ptx/")}


@functools.lru_cache(maxsize=1024)
def _included(source: str) -> tuple[str, ...]:
    return tuple(_INCLUDE.findall(source))


def whole_source(path: Path) -> str:
    """A rung's source with its headers in front, without comments: what an identity digests."""
    known = _WHOLE.get(path)
    if known is None or known[0] != [_state(file) for file, _ in known[0]]:
        text = path.read_text()
        headers = headers_of(text)
        files = [_state(file) for file in (path, *(KERNELS / name for name in headers))]
        known = _WHOLE[path] = files, strip_comments("\n".join([*headers.values(), text]))
    return known[1]


_WHOLE: dict[Path, tuple[list[tuple[Path, tuple[int, int, int]]], str]] = {}  # by the files as they were


def _state(path: Path) -> tuple[Path, tuple[int, int, int]]:
    found = path.stat()
    return path, (found.st_ino, found.st_mtime_ns, found.st_size)


# --- compiling ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """What one kernel of a cubin needs: registers a thread; spilled, stack and static shared memory in
    bytes.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Cubin:
    """One compiled source: the image that is loaded, and the compiler's report on it."""

    arch: str
    compiler: str
    options: tuple[str, ...]
    image: bytes = field(repr=False)
    resources: Mapping[str, Resources] = field(repr=False)

    def machine_code(self, entry: str) -> bytes:
        """The instructions of `entry` with the compiler's version: what a record's identity digests."""
        code = _instructions(self.image, entry)
        if code is None:
            raise UsageError(f"This cubin has no kernel {entry}; it has {', '.join(self.resources)}.")
        return f"{self.compiler} sm_{self.arch}\n".encode() + code


@functools.lru_cache(maxsize=1024)  # a recording asks several times for every case of a rung
def _instructions(image: bytes, entry: str) -> bytes | None:
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError as error:
        raise MissingTool(
            "pyelftools is not installed, so machine code has no name to be recorded under: install the gpu "
            "set (or the test set), for example `pip install -r requirements-gpu.txt`."
        ) from error
    section = ELFFile(io.BytesIO(image)).get_section_by_name(f".text.{entry}")
    return None if section is None else bytes(section.data())


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # cuda-pathfinder raises its own classes where the library is absent
        raise MissingTool(
            "NVRTC is not installed, so nothing can be compiled here: install the gpu set (or the test set), "
            "for example `pip install -r requirements-gpu.txt`."
        ) from error
    return nvrtc


def compiler_version() -> str:
    """NVRTC's version as recorded in identities, such as "nvrtc 13.0"."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"nvrtc {major}.{minor}"


@functools.cache
def include_directory() -> str:
    """The folder of CUDA's own headers (cuda_fp16.h and friends), from the wheels or a toolkit."""
    from cuda import pathfinder

    found = pathfinder.find_nvidia_header_directory("cudart")
    candidates = [
        found,
        *(os.path.join(os.environ.get(v, ""), "include") for v in ("CUDA_PATH", "CUDA_HOME")),
    ]
    for folder in (*candidates, "/usr/local/cuda/include"):
        if folder and (Path(folder) / "cuda_fp16.h").is_file():
            return str(folder)
    raise MissingTool(
        "CUDA's headers are not installed: install nvidia-cuda-runtime and nvidia-cuda-crt of the same "
        "version as NVRTC (the gpu and test sets hold them)."
    )


def _cache_folder() -> Path:
    return Path(os.environ.get("ROOFLAB_CACHE") or BUILD / "cubins")


def _key(
    source: str, arch: str, defines: Mapping[str, object]
) -> tuple[tuple[str, ...], dict[str, str], Path]:
    """The compiler's options, the headers' texts, and where the cache keeps the cubin of all these."""
    options = (
        f"-arch=sm_{arch}",
        "-std=c++17",
        "-default-device",
        *(f"-D{key}={value}" for key, value in sorted(defines.items())),
    )
    headers = headers_of(source)
    text = json.dumps([compiler_version(), options, headers, source])
    return options, headers, _cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"


def in_cache(source: str, arch: str, defines: Mapping[str, object]) -> bool:
    """Whether `compile_source` would find this there."""
    image_path = _key(source, arch, defines)[2]
    return image_path.is_file() and image_path.with_suffix(".json").is_file()


def compile_source(
    source: str, *, arch: str, name: str = "kernel.cu", defines: Mapping[str, object] | None = None
) -> Cubin:
    """Compile CUDA C++ to a cubin for `arch` ("80", "90a"), or take it from the cache.

    `defines` become -D options. The cache key holds everything the cubin depends on: source, the course's
    headers, options, architecture and compiler. A source that does not compile raises UsageError with the
    compiler's log.
    """
    nvrtc = _nvrtc()
    options, headers, image_path = _key(source, arch, defines or {})
    compiler = compiler_version()
    report_path = image_path.with_suffix(".json")
    if image_path.is_file() and report_path.is_file():
        report = {k: Resources(**v) for k, v in json.loads(report_path.read_text()).items()}
        return Cubin(arch, compiler, options, image_path.read_bytes(), report)

    def check(result: Any) -> None:
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise UsageError(f"NVRTC refused {name}: {nvrtc.nvrtcGetErrorString(result)[1].decode()}.")

    texts, names = [t.encode() for t in headers.values()], [n.encode() for n in headers]
    code, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(texts), texts, names)
    check(code)
    # NVRTC's own cache returns a cubin without its report, so it stays out of the way of ours.
    arguments = [
        o.encode() for o in (*options, f"-I{include_directory()}", "--ptxas-options=-v", "-no-cache")
    ]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b"\0" * max(
        size, 2
    )  # the binding writes into this object: never one of Python's shared 1-byte strings
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace").strip("\0 \n")
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise UsageError(f"{name} does not compile for sm_{arch}:\n{text}")
    code, size = nvrtc.nvrtcGetCUBINSize(program)
    check(code)
    image = b"\0" * max(size, 2)
    check(nvrtc.nvrtcGetCUBIN(program, image)[0])
    nvrtc.nvrtcDestroyProgram(program)
    resources = parse_report(text)

    image_path.parent.mkdir(parents=True, exist_ok=True)
    for path, data in (
        (image_path, image),
        (report_path, json.dumps({k: asdict(v) for k, v in resources.items()}).encode()),
    ):
        partial = path.with_suffix(f"{path.suffix}.{os.getpid()}")
        partial.write_bytes(data)
        os.replace(partial, path)  # another process may be compiling the same rung
    return Cubin(arch, compiler, options, image, resources)


def parse_report(log: str) -> dict[str, Resources]:
    """Read ptxas's verbose report: one Resources per kernel entry it names."""
    report: dict[str, Resources] = {}
    for block in re.split(r"(?=Compiling entry function)", log)[1:]:
        entry = re.search(r"entry function '([^']+)'", block)
        used = re.search(r"Used (\d+) registers", block)
        if entry is None or used is None:
            continue

        def number(pattern: str, block: str = block) -> int:
            match = re.search(pattern, block)
            return int(match[1]) if match else 0

        report[entry[1]] = Resources(
            registers=int(used[1]),
            spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
            stack_bytes=number(r"(\d+) bytes stack frame"),
            shared_bytes=number(r"(\d+) bytes smem"),
        )
    return report


def sass(cubin: Cubin, entry: str) -> list[str]:
    """The SASS instructions of `entry`, one string each without addresses, by nvdisasm."""
    tool = _nvdisasm()
    path = _cache_folder() / f"sass-{os.getpid()}-{hashlib.sha256(cubin.image).hexdigest()[:16]}.cubin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cubin.image)
    try:
        # -ndf: no analysis of the data flow, which no line here shows and which takes a quarter of the time
        done = subprocess.run([tool, "-c", "-ndf", path], capture_output=True)
    finally:
        path.unlink()
    if done.returncode != 0:
        raise UsageError(f"nvdisasm cannot read this cubin: {done.stderr.decode().strip()}")
    lines, inside = [], False
    for line in done.stdout.decode().splitlines():
        if line.startswith(".text.") and line.endswith(":"):
            inside = line == f".text.{entry}:"
        instruction = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if inside and instruction:
            lines.append(instruction[1])
    return lines


@functools.cache
def _nvdisasm() -> str:
    import shutil
    import sysconfig

    site = Path(sysconfig.get_paths()["purelib"])
    for tool in (
        shutil.which("nvdisasm"),
        *(site / "nvidia" / n / "bin" / "nvdisasm" for n in ("cu13", "cu12")),
    ):
        if tool and Path(tool).is_file():
            return str(tool)
    raise MissingTool("nvdisasm is not installed: `pip install nvidia-cuda-nvdisasm` brings it.")
