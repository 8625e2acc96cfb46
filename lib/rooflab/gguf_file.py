"""Q8_0 matrices in GGUF files, written and read with the `gguf` package, which is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rooflab.errors import MissingTool, UsageError
from rooflab.formats import Q8_0, from_bytes, to_bytes

_MAGIC = b"GGUF"


def _gguf() -> Any:
    if importlib.util.find_spec("gguf") is None:
        raise MissingTool("GGUF files need the gguf package: `pip install gguf`.")
    import gguf

    return gguf


def write(path: Path | str, tensors: Mapping[str, np.ndarray], architecture: str = "rooflab") -> None:
    """Write Q8_0 blocks [N, K/32] under their names; the file holds their bytes as they are."""
    gguf = _gguf()
    for name, blocks in tensors.items():
        if blocks.dtype != Q8_0 or blocks.ndim != 2:
            raise UsageError(f"tensor {name} must be Q8_0 blocks [N, K/32]; quantise_q8_0 makes them.")
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, blocks in tensors.items():
        writer.add_tensor(name, to_bytes(blocks), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path: Path | str) -> dict[str, np.ndarray]:
    """The Q8_0 matrices of a GGUF file by name, as blocks [N, K/32]; tensors of other formats are left out.

    UsageError for a file that is absent, not GGUF, cut short, or without any Q8_0 matrix.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path} does not exist, so no weights can be read from it.")
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
    if start != _MAGIC:
        raise UsageError(f"{path} is no GGUF file: it starts with {start!r} instead of {_MAGIC!r}.")
    gguf = _gguf()
    found, others = {}, set()
    try:
        for tensor in gguf.GGUFReader(str(path)).tensors:
            if tensor.tensor_type != gguf.GGMLQuantizationType.Q8_0 or len(tensor.shape) != 2:
                others.add(f"{tensor.tensor_type.name} of {len(tensor.shape)} dimensions")
                continue
            k, n = (int(size) for size in tensor.shape)  # GGUF names the fastest dimension first
            blocks = from_bytes(np.asarray(tensor.data).reshape(n, -1), Q8_0)
            if blocks.shape[1] * 32 != k:
                raise ValueError(f"{tensor.name} is short")
            found[tensor.name] = blocks
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, UsageError) as error:
        raise UsageError(f"{path} is cut short or damaged: its tensors are not whole.") from error
    if not found:
        raise UsageError(
            f"{path} holds no Q8_0 matrix, only {', '.join(sorted(others)) or 'no tensor at all'}."
        )
    return found
