"""Uninitialised arrays of NumPy, CuPy or torch, in the library and on the device of another array."""

from __future__ import annotations

from typing import Any

import numpy as np


def empty(like: Any, shape: int | tuple[int, ...], dtype: str | None = None) -> Any:
    """An array of `shape` and of `dtype`, by default that of `like`."""
    if hasattr(like, "data_ptr"):
        if dtype is None:
            return like.new_empty(shape)
        import torch

        return like.new_empty(shape, dtype=getattr(torch, dtype))
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype or like.dtype)
    import cupy

    return cupy.empty(shape, dtype or like.dtype)


def empty_like(array: Any) -> Any:
    """An array of the same shape and dtype."""
    return empty(array, tuple(array.shape))


def library_of(array: Any) -> Any:
    """NumPy or CuPy, whichever `array` is of."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy
