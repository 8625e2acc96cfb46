"""GGUF files: read here, header and all, and written with the `gguf` package, which is optional."""

from __future__ import annotations

import importlib.util
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from rooflab.errors import MissingTool, UsageError
from rooflab.numerics.quant import Q8_0, from_bytes, to_bytes

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_KINDS = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K"},
    **{11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 28: "F64", 30: "BF16"},
}
_BLOCKS = {"F32": (1, 4), "F16": (1, 2), "Q8_0": (32, 34)}  # elements and bytes of a block, of what is read
_MOST_ENTRIES = 1 << 16  # fields, and tensors
_MOST_TEXTS = 1 << 21  # texts of an array: vocabularies have a tenth of that


class Tensor(NamedTuple):
    """A tensor of a file: its format, its shape with the slowest dimension first, and its bytes, mapped from
    the file; none of a format that isn't read here."""

    kind: str
    shape: tuple[int, ...]
    raw: np.ndarray


class File(NamedTuple):
    """What a file holds: its fields that are numbers, truth values or texts, and its tensors, by name."""

    fields: dict[str, Any]
    tensors: dict[str, Tensor]


class _Header:
    """The bytes of a file, read from the start on; ValueError where they end before what they announce."""

    def __init__(self, data: np.ndarray):
        self.data, self.at = data, len(_MAGIC)
        self.view = memoryview(cast(Any, data))

    def skip(self, size: int) -> int:
        """Pass over so many bytes and return where they start."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise ValueError("its header announces more than the file holds")
        return start

    def number(self, kind: str) -> Any:
        return struct.unpack_from(f"<{kind}", self.view, self.skip(struct.calcsize(f"<{kind}")))[0]

    def text(self) -> str:
        size = self.number("Q")
        start = self.skip(size)
        return self.data[start : start + size].tobytes().decode()

    def value(self, kind: int) -> Any:
        """A field's value; None for an array, whose elements nothing here asks for."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"it has a field of the unknown kind {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
        elif inner != _STRING or count > _MOST_TEXTS:
            raise ValueError(f"it has an array of {count} elements of kind {inner}")
        else:
            at, length = self.at, struct.Struct("<Q").unpack_from
            for _ in range(count):
                at += 8 + length(self.view, at)[0]
            self.skip(at - self.at)
        return None

    def count(self, what: str) -> int:
        found = int(self.number("Q"))
        if found > _MOST_ENTRIES:
            raise ValueError(f"it announces {found} {what}")
        return found


def opened(path: Path | str) -> File:
    """The fields and tensors of a GGUF file (version 2 or 3, little-endian), none of whose tensors reach
    beyond its end. UsageError for a file that is absent, not GGUF, cut short or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path} does not exist, so no weights can be read from it.")
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
    if start != _MAGIC:
        raise UsageError(f"{path} is no GGUF file: it starts with {start!r} instead of {_MAGIC!r}.")
    try:
        return _parsed(_Header(np.memmap(path, np.uint8, "r")))
    except (struct.error, OverflowError) as error:
        raise UsageError(f"{path} is no whole GGUF file: its header ends in the middle.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no whole GGUF file: {error}.") from error


def _parsed(header: _Header) -> File:
    version = header.number("I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, and 2 and 3 are read")
    tensors, fields = header.count("tensors"), {}
    for _ in range(header.count("fields")):
        name = header.text()
        if name in fields:
            raise ValueError(f"it has the field {name!r} twice")
        fields[name] = header.value(header.number("I"))
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 16:
        raise ValueError(f"its tensors are aligned to {alignment!r}")
    listed = [_listed(header) for _ in range(tensors)]
    start = math.ceil(header.at / alignment) * alignment
    found: dict[str, Tensor] = {}
    for name, kind, shape, offset in listed:
        if name in found:
            raise ValueError(f"it has the tensor {name!r} twice")
        elements, size = _BLOCKS.get(kind, (1, 0))
        length = math.prod(shape) // elements * size
        if (shape and shape[-1] % elements) or start + offset + length > len(header.data):
            raise ValueError(f"its tensor {name!r} does not fit it")
        found[name] = Tensor(kind, shape, header.data[start + offset : start + offset + length])
    return File({name: value for name, value in fields.items() if value is not None}, found)


def _listed(header: _Header) -> tuple[str, str, tuple[int, ...], int]:
    name, dimensions = header.text(), header.number("I")
    if dimensions > 8:
        raise ValueError(f"its tensor {name!r} has {dimensions} dimensions")
    shape = tuple(header.number("Q") for _ in range(dimensions))[::-1]  # the fastest comes first in the file
    kind = header.number("I")
    return name, _KINDS.get(kind, f"of the kind {kind}"), shape, header.number("Q")


def write(path: Path | str, tensors: Mapping[str, np.ndarray], architecture: str = "rooflab") -> None:
    """Write Q8_0 blocks [N, K/32] under their names; the file holds their bytes as they are."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingTool("Writing GGUF files needs the gguf package: `pip install gguf`.")
    import gguf

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

    UsageError as `opened`, and for a file without any Q8_0 matrix.
    """
    found, others = {}, set()
    for name, tensor in opened(path).tensors.items():
        if tensor.kind == "Q8_0" and len(tensor.shape) == 2:
            found[name] = from_bytes(tensor.raw.reshape(tensor.shape[0], -1), Q8_0)
        else:
            others.add(f"{tensor.kind} of {len(tensor.shape)} dimensions")
    if not found:
        raise UsageError(
            f"{path} holds no Q8_0 matrix, only {', '.join(sorted(others)) or 'no tensor at all'}."
        )
    return found
