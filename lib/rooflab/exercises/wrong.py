"""What is wrong with a kernel's result, in a sentence: the first wrong element, how many are, and where."""

from __future__ import annotations

from typing import Any

import numpy as np


def told(name: str, got: np.ndarray, right: np.ndarray, budget: float) -> str:
    """How `got`, whose bytes were all 0xff before the launch, differs from `right` by more than `budget`
    (0: at all); nothing where it does not.
    """
    right = np.asarray(right).reshape(got.shape)
    if got.dtype.kind == "f" or budget:
        error = abs(got.astype(np.float64) - right.astype(np.float64))
        bad = ~(error <= budget)  # NaN is bad
    else:
        bad = got != right
    if not bad.any():
        return ""
    place = np.unravel_index(int(np.argmax(bad)), got.shape)
    where = ", ".join(str(int(k)) for k in place)
    left = got.dtype.kind == "f" and np.asarray(got[place]).tobytes() == b"\xff" * got.itemsize
    is_now = "was not written" if left else f"is {_value(got[place])}"
    return f"{name}[{where}] {is_now}, and {_value(right[place])} is right; {_share(bad)}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if np.asarray(value).dtype.kind == "f" else str(value)


def _share(bad: np.ndarray) -> str:
    """How many elements are wrong, and in which rows and columns: a hint at the cause."""
    count = int(bad.sum())
    if count == 1:
        return "the only wrong element" if bad.size > 1 else "the only element"
    if count == bad.size:
        return f"all {count} elements are wrong"
    if bad.ndim == 1:
        where = _indices(bad, "element")
    else:
        table = bad.reshape(-1, bad.shape[-1])
        rows, columns = (np.asarray(table.any(axis=axis)) for axis in (1, 0))
        where = f"{_indices(rows, 'row')}, {_indices(columns, 'column')}"
    return f"{count} of {bad.size} elements are wrong, {where}"


def _indices(bad: np.ndarray, one: str) -> str:
    """Which places along an axis have something wrong: "from row 16 on"."""
    found, size = np.flatnonzero(bad), len(bad)
    first, last = int(found[0]), int(found[-1])
    steps = set(np.diff(found).tolist())
    if len(found) == size:
        return f"in every {one}"
    if first == last:
        return f"in {one} {first} alone"
    if len(found) == size - 1:
        return f"in every {one} but {int(np.argmin(bad))}"
    if steps == {1}:
        return f"from {one} {first} on" if last == size - 1 else f"in {one}s {first} to {last}"
    if len(steps) == 1:
        return f"in {one}s {first}, {first + steps.pop()}, ... {last}"
    return f"in {len(found)} of {size} {one}s"
