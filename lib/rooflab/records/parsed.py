"""Tables as they were parsed: anew only when a file has changed, and once for all stores of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from operator import is_not
from pathlib import Path
from typing import Any

import pandas as pd

from rooflab.records.csv_table import read_table

Rows = list[dict[str, str]]

_MOST = 200  # tables, of a few recordings
_SETTLED_NS = 2 * 10**9  # a file written so lately could be written again at what its time says is the same
_ROWS: dict[Path, tuple[Any, Rows]] = {}
_FRAMES: dict[Any, tuple[list[Rows], pd.DataFrame]] = {}


class Parsed:
    """The tables of one store."""

    def __init__(self) -> None:
        self._own: dict[Path, tuple[Any, Rows]] = {}

    def rows(self, path: Path, schema: Mapping[str, str]) -> Rows:
        """A table's rows as texts, the same list until the file changes (every write makes a new file)."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return []
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        known = self._own.get(path)
        if known is None or known[0] != key:
            known = _ROWS.get(path)
            if known is None or known[0] != key:
                known = (key, read_table(path, schema))
                if time.time_ns() - stat.st_mtime_ns > _SETTLED_NS:
                    _keep(_ROWS, path, known)
            self._own[path] = known
        return known[1]

    def forget(self, path: Path) -> None:
        self._own.pop(path, None)


def frame_of(key: Any, held: list[Rows], make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """What `make` makes of the rows `held`, or what it made of the same for another store."""
    known = _FRAMES.get(key)
    if known is None or not same(known[0], held):
        known = (held, make())
        _keep(_FRAMES, key, known)
    return known[1]


def same(one: list[Rows], other: list[Rows]) -> bool:
    """Whether these are the very same lists."""
    return len(one) == len(other) and not any(map(is_not, one, other))


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value
