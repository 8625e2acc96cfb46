"""Guarded copies of a launch's arrays, so that a stray access hits nothing and is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rooflab.simt.abi import RawBuffer

_GUARD = 1 << 12  # bytes on either side of a watched buffer that a stray access may hit harmlessly


class Guarded:
    """Copies of arrays with guard zones around them; arrays that overlap share one copy, as on a GPU."""

    def __init__(self, names: Sequence[str], arguments: Sequence[Any]):
        arrays = [
            (a.ctypes.data, a.nbytes, n, a)
            for n, a in zip(names, arguments, strict=True)
            if isinstance(a, np.ndarray)
        ]
        groups: list[list[Any]] = []
        for start, size, name, array in sorted(arrays, key=lambda row: (row[0], row[1])):
            if groups and start < groups[-1][1]:
                groups[-1][1] = max(groups[-1][1], start + size)
                groups[-1][2].append((name, array))
            else:
                groups.append([start, start + size, [(name, array)]])
        self.names = ["/".join(dict.fromkeys(n for n, _ in members)) for _, _, members in groups]
        self.buffers = (RawBuffer * max(1, len(groups)))()
        self.skews: list[int] = []
        self._groups = []
        for k, (start, end, members) in enumerate(groups):
            room = np.full(end - start + 2 * _GUARD + 512, 0xA5, np.uint8)
            at = room.ctypes.data
            # A GPU's allocator aligns to 256 bytes, so a view's place in its array says how it is aligned.
            skew = (start - _root(members[0][1]).ctypes.data) % 256
            self.skews.append(skew)
            first = at + _GUARD + (skew - at - _GUARD) % 256
            self.buffers[k] = RawBuffer(
                first, first + end - start, first - _GUARD, first + end - start + _GUARD
            )
            self._groups.append((start, end, first, first - at, room, members))
            for _, array in members:
                offset = first - at + array.ctypes.data - start
                room[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)

    def address(self, array: np.ndarray) -> int:
        """Where the copy of `array` lies."""
        place = array.ctypes.data
        for start, end, first, *_ in self._groups:
            if start <= place < end or (array.nbytes == 0 and place == start):
                return int(first + place - start)
        return place

    def write_back(self) -> None:
        """Copy everything that may have changed back into the caller's arrays."""
        for start, _, _, offset, room, members in self._groups:
            for _, array in members:
                if array.flags.writeable:
                    at = offset + array.ctypes.data - start
                    array.reshape(-1).view(np.uint8)[:] = room[at : at + array.nbytes]

    def size(self, region: int) -> int:
        """Bytes of a region."""
        return int(self.buffers[region].end - self.buffers[region].start)


def _root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
