"""Compile a rung with NVRTC, report on the cubin, load that very cubin, and launch it.

Compiling and reporting need no GPU and no driver (NVRTC, its headers and pyelftools are enough), so CI
reports on every rung. Loading and launching go through the driver API of cuda-bindings, because CuPy binds
neither the launch attributes of programmatic dependent launch nor cooperative launches. Arrays are CuPy's
or torch's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rooflab.errors import LaunchError, MissingTool, UsageError
from rooflab.paths import BUILD, KERNELS

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


@functools.lru_cache(maxsize=1024)
def _included(source: str) -> tuple[str, ...]:
    return tuple(_INCLUDE.findall(source))


def whole_source(path: Path) -> str:
    """A rung's source with its headers in front: what an identity digests."""
    text = path.read_text()
    return "\n".join([*headers_of(text).values(), text])


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
    from elftools.elf.elffile import ELFFile

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


# --- loading and launching ----------------------------------------------------------------------------------


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _checked(result: tuple) -> Any:
    """Unpack a driver call's (status, value...) and turn a failure into a LaunchError."""
    driver = _driver()
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise LaunchError(f"The CUDA driver reports {status.name}: {text.decode() if text else 'no text'}.")
    return values[0] if len(values) == 1 else tuple(values)


def current_stream() -> int:
    """Handle of the stream to launch on: torch's current stream where torch is in play, else CuPy's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        try:  # the same without the objects around it, which cost a launch more than its driver's call
            return int(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))
        except AttributeError:
            return int(torch.cuda.current_stream().cuda_stream)
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)


def pointer(array: Any) -> int:
    """Address of a CuPy array, torch CUDA tensor or NumPy array."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    return int(array.data.ptr)


def address(argument: Any) -> int | None:
    """Address that a kernel's argument stands for: an array's, or a map's matrix's; None for a number."""
    if isinstance(argument, TensorMap):
        return argument.made[0]
    if isinstance(argument, (ctypes.Structure, ctypes._SimpleCData)):
        return None
    return pointer(argument)


class Function:
    """A kernel loaded from a cubin into the current context."""

    def __init__(self, cubin: Cubin, entry: str):
        import cupy

        cupy.cuda.runtime.free(0)  # makes the primary context, which CuPy and torch share, current
        self.entry = entry
        self.cubin = cubin
        driver = _driver()
        self._module = _checked(driver.cuModuleLoadData(cubin.image))
        self._function = _checked(driver.cuModuleGetFunction(self._module, entry.encode()))
        self._allowed = 48 * 1024

    def read(self, name: str, shape: Sequence[int], dtype: str) -> np.ndarray:
        """A copy of the module's global array `name` (extern "C" __device__), once all launches are done."""
        driver, found = _driver(), np.empty(tuple(shape), dtype)
        _checked(driver.cuCtxSynchronize())
        pointer, size = _checked(driver.cuModuleGetGlobal(self._module, name.encode()))
        if size != found.nbytes:
            raise LaunchError(f"{name} holds {size} bytes, not the {found.nbytes} of {list(shape)} {dtype}.")
        _checked(driver.cuMemcpyDtoH(found.ctypes.data, pointer, size))
        return found

    def allow_shared(self, size: int) -> None:
        """Raise the dynamic shared memory limit to `size` bytes (needed above 48 KiB; a launch does it)."""
        driver = _driver()
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self._function, attribute, size))
        self._allowed = size

    def resident_blocks(self, threads: int, shared: int = 0) -> int:
        """Blocks of `threads` threads and `shared` dynamic bytes that fit on one SM at a time."""
        call = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
        return int(_checked(call(self._function, threads, shared)))

    def prepared(
        self, grid: int | Sequence[int], block: int | Sequence[int], arguments: Sequence[Any], shared: int = 0
    ) -> Callable[[], None]:
        """A launch with its arguments packed once: it costs the host the driver's call and little else."""
        driver, packed = _driver(), _packed(arguments)
        (gx, gy, gz), (bx, by, bz) = _triple(grid), _triple(block)
        if shared > self._allowed:
            self.allow_shared(shared)

        def launch() -> None:
            _checked(
                driver.cuLaunchKernel(
                    self._function, gx, gy, gz, bx, by, bz, shared, current_stream(), packed, 0
                )
            )

        return launch

    def repeated(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        places: Sequence[int | None],
        shared: int = 0,
    ) -> Callable[[Sequence[int]], None]:
        """A launch to make again with arrays elsewhere: `places` says of each argument the number of its
        address in what the function is called with, or None for what stays. One thread may call it at a time.
        """
        driver = _driver()
        call, success, function = driver.cuLaunchKernel, driver.CUresult.CUDA_SUCCESS, self._function
        cells: list[Any] = []
        moving: list[tuple[Any, int]] = []
        maps: list[tuple[int, int, tuple]] = []
        for number, (argument, place) in enumerate(zip(arguments, places, strict=True)):
            if isinstance(argument, ctypes.Structure):
                cells.append(argument)
                if place is not None and isinstance(argument, TensorMap):
                    maps.append((number, place, argument.made[1:]))
                continue
            scalar = isinstance(argument, ctypes._SimpleCData)
            cells.append(type(argument)(argument.value) if scalar else ctypes.c_uint64(pointer(argument)))
            if place is not None:
                moving.append((cells[-1], place))
        row = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        where = ctypes.addressof(row)
        (gx, gy, gz), (bx, by, bz) = _triple(grid), _triple(block)
        if shared > self._allowed:
            self.allow_shared(shared)

        def launch(pointers: Sequence[int]) -> None:
            for cell, place in moving:
                cell.value = pointers[place]
            for number, place, made in maps:
                cells[number] = found = array_map(pointers[place], *made)
                row[number] = ctypes.addressof(found)
            result = call(function, gx, gy, gz, bx, by, bz, shared, current_stream(), where, 0)
            if result[0] != success:
                _checked(result)

        return launch

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
        """Enqueue one launch on the current stream.

        `arguments` are CuPy arrays or torch tensors (passed as pointers) and ctypes scalars. `dependent`
        adds the programmatic-stream-serialization attribute (the kernel may start while its predecessor
        drains, and must wait for it itself); `cooperative` asks for all blocks to be resident at once.
        """
        driver = _driver()
        packed, stream = _packed(arguments), current_stream()
        (gx, gy, gz), (bx, by, bz) = _triple(grid), _triple(block)
        if shared > self._allowed:
            self.allow_shared(shared)
        if not (dependent or cooperative):  # the plain call asks less of the host
            _checked(driver.cuLaunchKernel(self._function, gx, gy, gz, bx, by, bz, shared, stream, packed, 0))
            return
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = gx, gy, gz
        config.blockDimX, config.blockDimY, config.blockDimZ = bx, by, bz
        config.sharedMemBytes, config.hStream = shared, driver.CUstream(stream)
        identifier = driver.CUlaunchAttributeID
        attributes = []
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = identifier.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = identifier.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        _checked(driver.cuLaunchKernelEx(config, self._function, packed, 0))


def _packed(arguments: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Values and ctypes of a kernel's arguments, as cuda-bindings takes them."""
    values: list[Any] = []
    types: list[Any] = []
    for argument in arguments:
        if isinstance(argument, ctypes.Structure):  # by value
            values.append(argument)
            types.append(None)
            continue
        scalar = isinstance(argument, ctypes._SimpleCData)
        values.append(argument.value if scalar else pointer(argument))
        types.append(type(argument) if scalar else ctypes.c_void_p)
    return tuple(values), tuple(types)


class TensorMap(ctypes.Structure):
    """A matrix in global memory and a box of it, as the tensor memory accelerator reads them: opaque. `made`
    is what array_map made it of.
    """

    _fields_ = [("opaque", ctypes.c_uint8 * 128)]
    made: tuple

    def getPtr(self) -> int:
        """Its address: what cuda-bindings asks of a structure that is passed by value."""
        return ctypes.addressof(self)


@functools.lru_cache(maxsize=512)
def array_map(
    address: int, shape: tuple[int, ...], element: str, box: tuple[int, ...], swizzle: int
) -> TensorMap:
    """The map of a contiguous array of `shape` (slowest dimension first) at `address`, for copies of a `box`
    of it into shared memory, whose 16-byte pieces are swizzled within `swizzle` bytes (64 or 128, the width
    of a box's row), or with 0 are not.
    """
    driver = _driver()
    # The driver wants the map at a multiple of 64, which the bindings don't promise.
    room = (ctypes.c_uint8 * 192)()
    found = TensorMap.from_buffer(room, -ctypes.addressof(room) % 64)
    kind, size = {"int8": (0, 1), "float16": (6, 2)}[element]  # CUtensorMapDataType: UINT8, FLOAT16

    def numbers(kind: Any, *values: int) -> Any:
        return (kind * len(values))(*values)

    wide, narrow = ctypes.c_uint64, ctypes.c_uint32
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.byref(found),
        kind,
        narrow(len(shape)),
        ctypes.c_void_p(address),
        numbers(wide, *reversed(shape)),
        numbers(wide, *(size * math.prod(shape[i:]) for i in range(len(shape) - 1, 0, -1))),
        numbers(narrow, *reversed(box)),
        numbers(narrow, *(1 for _ in shape)),
        0,  # not interleaved
        {0: 0, 64: 2, 128: 3}[swizzle],
        3,  # L2 fetches 256 bytes
        0,  # outside lie zeros
    )
    _checked((driver.CUresult(status), found))
    found.made = (address, shape, element, box, swizzle)
    return found


def tensor_map(
    address: int, rows: int, columns: int, element: str, box: tuple[int, int], swizzle: int
) -> TensorMap:
    """array_map of a row-major matrix [rows, columns]."""
    return array_map(address, (rows, columns), element, box, swizzle)


def _triple(shape: int | Sequence[int]) -> tuple[int, int, int]:
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    x, y, z = (*dims, 1, 1)[:3]
    return int(x), int(y), int(z)
