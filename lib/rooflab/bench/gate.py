"""The correctness gate: no kernel is timed before its output passed here, on the buffers that will be timed.

The gate works on NumPy arrays, CuPy arrays and torch tensors alike, so it can be tested, taught and
attacked on a machine without a GPU. What it does, in order: digest the inputs; for every copy of the
operands poison the outputs (NaN in floats, 0xA5 bytes in integers), launch once, compare with the oracle;
digest the inputs again. After timing, `Admitted.recheck` compares what the timed launches left behind, then
poisons and launches once more: a kernel that is right only for its first few calls, or that lives off an
earlier result, fails one of the two.
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
        for when, again in (("after timing", False), ("launched again after timing", True)):
            for i in range(self.work.copies):
                if again:
                    _poison(self.work.outputs[i])
                    self.work.launch(i)
                self.error = max(self.error, _compare(self.work, i, self.expected, when))
        _same_inputs(self.work, self.digests)


def admit(work: Work) -> Admitted:
    """Pass `work` through the gate, or raise GateError with one sentence that names the first wrong
    element.
    """
    digests = [[_digest(a) for a in arrays] for arrays in work.inputs]
    expected = work.oracle()
    if not bool(_is_finite(expected)):
        raise GateError(
            f"{work.name}: the oracle itself is not finite, so it cannot judge; use tamer inputs."
        )
    error = 0.0
    for i in range(work.copies):
        _poison(work.outputs[i])
        work.launch(i)
        error = max(error, _compare(work, i, expected, "at the gate"))
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


def _is_finite(array: Any) -> Any:
    return (
        np.isfinite(array).all()
        if isinstance(array, np.ndarray)
        else sys.modules["cupy"].isfinite(array).all()
    )


def _compare(work: Work, copy: int, expected: Any, when: str) -> float:
    synchronize(work.outputs[copy][0])
    got = _native(work.result(work.outputs[copy]))
    xp = np if isinstance(got, np.ndarray) else sys.modules["cupy"]
    expected = xp.asarray(expected)
    if got.shape != expected.shape:
        raise GateError(f"{work.name} {when}: the output has shape {got.shape}, expected {expected.shape}.")
    got, expected = got.reshape(-1), expected.reshape(-1)
    exact = got.dtype.kind in "iub" and expected.dtype.kind in "iub"
    error, wrong, first = 0.0, 0, -1
    for start in range(0, got.size, _CHUNK):
        a, b = got[start : start + _CHUNK], expected[start : start + _CHUNK]
        with np.errstate(invalid="ignore", over="ignore"):
            difference = xp.abs(a.astype(np.float64) - b.astype(np.float64))
        # Written so that NaN fails: it is not <= anything.
        bad = (a != b) if exact else ~(difference <= work.budget)
        count = int(bad.sum())
        if count and first < 0:
            first = start + int(bad.argmax())
        wrong += count
        error = max(error, float(difference.max()))
    if wrong:
        raise GateError(
            f"{work.name} {when}: {wrong} of {got.size} outputs are wrong, the first at index {first}: "
            f"got {got[first].item():.9g}, expected {expected[first].item():.9g} "
            f"(allowed error {work.budget:.3g})."
        )
    return error


def _digest(array: Any) -> str:
    array = _native(array)
    if isinstance(array, np.ndarray):
        return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
    import cupy

    words = array.reshape(-1).view(np.uint32 if array.nbytes % 4 == 0 else np.uint8)
    partial = cupy.empty(min(_DIGEST_THREADS, words.size), np.uint64)
    _device_digest()(words, words.size, partial.size, partial)
    return f"{int(partial.sum()):016x}"


_DIGEST_THREADS = 1 << 17


@functools.cache
def _device_digest() -> Any:
    """A position-dependent 64-bit digest on the GPU: copying gigabytes to the host would take longer."""
    import cupy

    return cupy.ElementwiseKernel(
        "raw T words, int64 size, int64 threads",
        "uint64 partial",
        """
        unsigned long long sum = 0;
        for (long long k = i; k < size; k += threads)
            sum += (words[k] + 11400714819323198485ull) * (2ull * k + 15074714826142052245ull);
        partial = sum;
        """,
        "rooflab_digest",
    )


def _same_inputs(work: Work, digests: list[list[str]]) -> None:
    for i, arrays in enumerate(work.inputs):
        for j, array in enumerate(arrays):
            if _digest(array) != digests[i][j]:
                raise GateError(
                    f"{work.name} changed its input {j} (copy {i}): a kernel must leave its inputs alone."
                )
