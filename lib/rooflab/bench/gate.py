"""The correctness gate: no kernel is timed before its output passed here, on the buffers that will be timed.

The gate works on NumPy arrays, CuPy arrays and torch tensors alike, so it can be tested, taught and
attacked on a machine without a GPU. What it does, in order: digest the inputs; for every copy of the
operands poison the outputs (NaN in floats, 0xA5 bytes in integers) and launch once; compare all of them with
the oracle; digest the inputs again. After timing, `Admitted.recheck` compares what the timed launches left
behind, then poisons and launches once more: a kernel that is right only for its first few calls, or that
lives off an earlier result, fails one of the two.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rooflab.errors import GateError

_CHUNK = 1 << 26  # elements compared at a time: bounds the float64 temporaries of a large output


@dataclass
class Work:
    """One contestant on one set of buffers.

    `launch(i)` enqueues one launch over copy i of the operands. `inputs[i]` and `outputs[i]` list the
    arrays that the launch reads and writes. `oracle()` gives the expected value of `result(outputs[i])`,
    float64 or exact integers; `result` defaults to the first output. `budget` is the largest absolute error
    that passes (0 for exact).
    """

    name: str
    launch: Callable[[int], object]
    inputs: Sequence[Sequence[Any]]
    outputs: Sequence[Sequence[Any]]
    oracle: Callable[[], Any]
    budget: float = 0.0
    result: Callable[[Sequence[Any]], Any] = field(default=lambda outputs: outputs[0])

    @property
    def copies(self) -> int:
        """Number of distinct copies of the operands."""
        return len(self.outputs)


@dataclass
class Admitted:
    """A contestant that passed the gate: the only thing a clock takes. `error` is the largest absolute
    error seen.
    """

    work: Work
    error: float
    expected: Any = field(repr=False)
    digests: list[list[str]] = field(repr=False)

    def recheck(self) -> None:
        """Compare what the timed launches left, then poison, launch and compare again; GateError if wrong."""
        self.error = max(self.error, _compare(self.work, self.expected, "after timing"))
        _launch_all(self.work)
        self.error = max(self.error, _compare(self.work, self.expected, "launched again after timing"))
        _same_inputs(self.work, self.digests)


def admit(work: Work) -> Admitted:
    """Pass `work` through the gate, or raise GateError with one sentence that names the first wrong
    element.
    """
    digests = _digests(work.inputs)
    expected = work.oracle()
    if not _is_finite(expected):
        raise GateError(
            f"{work.name}: the oracle itself is not finite, so it cannot judge; use tamer inputs."
        )
    _launch_all(work)
    error = _compare(work, expected, "at the gate")
    _same_inputs(work, digests)
    return Admitted(work, error, expected, digests)


def error_budget(baseline_error: float, expected: Any, dtype: Any) -> float:
    """max(2 x the error of a same-dtype baseline, one ulp of `dtype` at the largest expected magnitude).

    Both are absolute, in the unit of the output. The factor follows flash-attention's tests: a kernel may
    order its sums differently from the baseline, but not be of another precision.
    """
    largest = np.asarray(float(abs(expected).max()), dtype=dtype)
    return max(2.0 * float(baseline_error), float(np.spacing(largest)))


def trial(
    name: str, launch: Callable[[Any], object], outs: Sequence[Any], expected: Any, budget: float = 0.0
) -> Work:
    """Work of a small contestant: launch(out) fills one of `outs`, arrays alike, with what is `expected`,
    within `budget` (0 for exact) in the unit of the output. It leaves what it reads as it was.
    """
    return Work(
        name, lambda i: launch(outs[i]), [[]] * len(outs), [[o] for o in outs], constant(expected), budget
    )


def constant(value: Any) -> Callable[[], Any]:
    """The oracle that gives `value`."""
    return lambda: value


def synchronize(array: Any) -> None:
    """Wait for the GPU if `array` lives on one; NumPy arrays need no waiting."""
    if hasattr(array, "data_ptr"):
        sys.modules["torch"].cuda.synchronize()
    elif not isinstance(array, np.ndarray):
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()


def _native(array: Any) -> Any:
    """A torch tensor as a CuPy array over the same memory (bfloat16, which CuPy lacks, widened); others as
    they are.
    """
    if not hasattr(array, "data_ptr"):
        return array
    import cupy

    torch = sys.modules["torch"]
    return cupy.from_dlpack(array.float() if array.dtype == torch.bfloat16 else array)


def _poison(arrays: Sequence[Any]) -> None:
    for array in arrays:
        if hasattr(array, "data_ptr"):
            array.fill_(float("nan") if array.is_floating_point() else -91)  # -91 is 0xA5 in a signed byte
        elif array.dtype.kind == "f":
            array.fill(np.nan)
        else:
            array.reshape(-1).view(np.uint8).fill(0xA5)


def _is_finite(array: Any) -> bool:
    xp = np if isinstance(array, np.ndarray) else sys.modules["cupy"]
    return not array.size or not _any(~xp.isfinite(array))


def _any(bad: Any) -> bool:
    """Whether one of these booleans, which are not none, is true. CuPy has a maximum of bytes ready, and for
    `any` compiles for seconds.
    """
    return bool(bad.view(np.int8).max())


def _launch_all(work: Work) -> None:
    for i in range(work.copies):
        _poison(work.outputs[i])
        work.launch(i)


def _compare(work: Work, expected: Any, when: str) -> float:
    """The largest error of all copies' results; GateError names the first copy's first wrong element."""
    synchronize(work.outputs[0][0])
    results = [_native(work.result(outputs)) for outputs in work.outputs]
    xp = np if isinstance(results[0], np.ndarray) else sys.modules["cupy"]
    expected = xp.asarray(expected)
    for got in results:
        if got.shape != expected.shape:
            raise GateError(
                f"{work.name} {when}: the output has shape {got.shape}, expected {expected.shape}."
            )
    results, expected = [got.reshape(-1) for got in results], expected.reshape(-1)
    exact = results[0].dtype.kind in "iub" and expected.dtype.kind in "iub"
    error = 0.0
    # Small outputs of many copies are compared together: one by one, the host's calls take far longer.
    together = max(1, _CHUNK // max(expected.size, 1))
    for first in range(0, len(results), together):
        batch, wrong = results[first : first + together], False
        for start in range(0, expected.size, _CHUNK):
            pieces = [got[start : start + _CHUNK] for got in batch]
            got = xp.stack(pieces) if len(pieces) > 1 else pieces[0]
            bad, difference = _bad(got, expected[start : start + _CHUNK], exact, work.budget)
            wrong = wrong or _any(bad)
            error = max(error, float(difference.max()))
        if wrong:
            mistakes = (_mistake(got, expected, exact, work.budget) for got in batch)
            raise GateError(f"{work.name} {when}: {next(filter(None, mistakes))}")
    return error


def _bad(got: Any, expected: Any, exact: bool, budget: float) -> tuple[Any, Any]:
    """Which elements are wrong, and every element's error."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = abs(got.astype(np.float64) - expected.astype(np.float64))
    # Written so that NaN fails: it is not <= anything.
    return (got != expected) if exact else ~(difference <= budget), difference


def _mistake(got: Any, expected: Any, exact: bool, budget: float) -> str:
    """How many of one copy's elements are wrong, and the first of them; empty if none is."""
    wrong, first = 0, -1
    for start in range(0, got.size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        bad, _ = _bad(got[piece], expected[piece], exact, budget)
        if first < 0 and _any(bad):
            first = start + int(bad.argmax())
        wrong += int(bad.sum())
    if not wrong:
        return ""
    return (
        f"{wrong} of {got.size} outputs are wrong, the first at index {first}: got {got[first].item():.9g}, "
        f"expected {expected[first].item():.9g} (allowed error {budget:.3g})."
    )


def _digests(inputs: Sequence[Sequence[Any]]) -> list[list[str]]:
    """A digest of every array of every copy; each array is read once, however many copies share it."""
    native = [[_native(array) for array in arrays] for arrays in inputs]
    known: dict[tuple, str] = {}
    on_gpu = {}
    for array in (array for arrays in native for array in arrays):
        if not isinstance(array, np.ndarray):
            on_gpu[_place(array)] = array
        elif _place(array) not in known:
            data = np.ascontiguousarray(array).tobytes()
            known[_place(array)] = hashlib.blake2b(data, digest_size=16).hexdigest()
    if on_gpu:
        known |= zip(on_gpu, _sums([*on_gpu.values()]), strict=True)
    return [[known[_place(array)] for array in arrays] for arrays in native]


def _place(array: Any) -> tuple:
    """Where an array's elements lie: its address, size and strides."""
    address = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return address, array.nbytes, array.strides


def _sums(arrays: Sequence[Any]) -> list[str]:
    """A position-dependent 64-bit digest of each array, made on the GPU: copying gigabytes to the host would
    take longer.
    """
    import cupy

    sums = cupy.zeros(len(arrays), np.uint64)
    for i, array in enumerate(arrays):
        whole = array.nbytes % 4 == 0
        words = array.reshape(-1).view(np.uint32 if whole else np.uint8)
        blocks = max(1, min(_DIGEST_BLOCKS, -(-words.size // 1024)))
        _sum_kernel("unsigned int" if whole else "unsigned char")(
            (blocks,), (1024,), (words, np.uint64(words.size), sums[i:])
        )
    return [f"{value:016x}" for value in sums.tolist()]


_DIGEST_BLOCKS = 512


@functools.cache
def _sum_kernel(word: str) -> Any:
    import cupy

    # Sums of whole numbers come out the same in any order, so blocks may add theirs by an atomic.
    source = """
        extern "C" __global__ void digest(const WORD* words, unsigned long long size,
                                          unsigned long long* total) {
            unsigned long long sum = 0, stride = gridDim.x * 1024ull;
            for (unsigned long long k = blockIdx.x * 1024ull + threadIdx.x; k < size; k += stride)
                sum += (words[k] + 11400714819323198485ull) * (2ull * k + 15074714826142052245ull);
            for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
            if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
        }"""
    return cupy.RawKernel(source.replace("WORD", word), "digest")


def _same_inputs(work: Work, digests: list[list[str]]) -> None:
    for i, (now, before) in enumerate(zip(_digests(work.inputs), digests, strict=True)):
        for j, (one, other) in enumerate(zip(now, before, strict=True)):
            if one != other:
                raise GateError(
                    f"{work.name} changed its input {j} (copy {i}): a kernel must leave its inputs alone."
                )
