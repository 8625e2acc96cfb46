"""Load a cubin and launch its kernels through the driver API of cuda-bindings.

CuPy binds neither the launch attributes of programmatic dependent launch nor cooperative launches. Arrays are
CuPy's or torch's.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from rooflab.errors import LaunchError

if TYPE_CHECKING:
    from rooflab.runtime.nvrtc import Cubin


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


_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_launches() -> Iterator[None]:
    """Within it launches that would be dependent are plain: each kernel starts when the one before has ended.
    To measure what the overlap is worth; kernels that wait for their predecessor then find it done.
    """
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


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
    """The address that a kernel's argument points to (of a tensor map: its matrix); None for a number."""
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
        """A launch with its arguments packed once: it costs the host the driver's call and little else. It
        keeps the arrays, of which only addresses are packed.
        """
        driver, packed = _driver(), _packed(arguments)
        (gx, gy, gz), (bx, by, bz) = _triple(grid), _triple(block)
        if shared > self._allowed:
            self.allow_shared(shared)

        def launch(kept: Sequence[Any] = arguments) -> None:
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
        cooperative: bool = False,
    ) -> Callable[[Sequence[int]], None]:
        """A launch to make again with arrays elsewhere: `places` says of each argument the number of its
        address in what the function is called with, or None for what stays. One thread may call it at a time.
        """
        driver = _driver()
        success, function = driver.CUresult.CUDA_SUCCESS, self._function
        call = driver.cuLaunchCooperativeKernel if cooperative else driver.cuLaunchKernel
        extra = () if cooperative else (0,)
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
            result = call(function, gx, gy, gz, bx, by, bz, shared, current_stream(), where, *extra)
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
        driver, dependent = _driver(), dependent and not _PLAIN.get()
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
    raw = (ctypes.c_uint8 * 192)()
    found = TensorMap.from_buffer(raw, -ctypes.addressof(raw) % 64)
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
