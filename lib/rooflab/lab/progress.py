"""How far measuring is: cases done, the case at work, and the time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from rooflab.studies.estimates import duration

_EVERY_S = 1.0  # lines are at least so far apart
_TRUSTED_S = 10.0  # until so much was measured, the estimate counts more than the pace so far


def place() -> str:
    """Where this process shows progress: a "notebook" as a widget, a "terminal" in one line that moves, else
    "lines", for a log or for the runner of lessons, which watches a file.
    """
    if os.environ.get("ROOFLAB_PROGRESS"):
        return "lines"
    if "ipykernel" in sys.modules:
        return "notebook"
    return "terminal" if sys.stderr.isatty() else "lines"


def write(line: str, file: TextIO | None = None) -> None:
    """Print a line; a bar that is on the terminal stays below it."""
    with tqdm.external_write_mode():
        print(line, file=file, flush=True)


class Progress:
    """What is to be done, as seconds that each case is estimated at, and what of it is done.

    The time left is the estimate of what is left, corrected by how long the cases so far took beside theirs.
    Lines go to `say`, at most one a second.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        where: str = "lines",
        clock: Callable[[], float] = time.monotonic,
        what: str = "cases",
    ):
        self.where, self.what = where, what
        self._say, self._clock = say, clock
        self._left: dict[Hashable, float] = {}
        self._gone: set[Hashable] = set()
        self._bar: Any = None
        self._open = False
        self._at = ""
        self._done, self._done_s = 0, 0.0
        self._began = self._last = self._told = 0.0

    @contextmanager
    def over(self, seconds: Mapping[Any, float]) -> Iterator[None]:
        """Show progress over these cases. Within another `over` it adds what that does not hold yet."""
        self._left |= {key: estimate for key, estimate in seconds.items() if key not in self._gone}
        if self._open:
            self._show()
            yield
            return
        self._open, self._began, self._told = True, self._clock(), -_EVERY_S
        self._last = self._began
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.close()
            self._left, self._gone, self._bar, self._open = {}, set(), None, False
            self._done, self._done_s, self._at = 0, 0.0, ""

    def drop(self, keys: Iterable[Hashable]) -> None:
        """These need nothing: they are recorded already."""
        for key in keys:
            self._left.pop(key, None)
            self._gone.add(key)

    def at(self, name: str) -> None:
        """Work begins on the case of this name."""
        self._at = name
        self._show()

    def done(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if key in self._left:
                self._done += 1
                self._done_s += self._left.pop(key)
                self._gone.add(key)
        self._last = self._clock()
        if self._bar is not None:
            self._show()

    @property
    def total(self) -> int:
        return self._done + len(self._left)

    @property
    def left_s(self) -> float:
        """Seconds left."""
        pace = (self._last - self._began + _TRUSTED_S) / (self._done_s + _TRUSTED_S)
        return max(0.0, pace * sum(self._left.values()) - (self._clock() - self._last))

    def __str__(self) -> str:
        return f"{self._done} of {self.total} {self.what}, {duration(self.left_s)} left: {self._at}"

    def _show(self) -> None:
        if not self._open or not self._at:
            return
        if self.where == "lines":
            if self._clock() - self._told >= _EVERY_S:
                self._told = self._clock()
                self._say(str(self))
            return
        if self._bar is None:
            self._bar = _bar(self.where, self.what, self.total)
        if self._bar.total != self.total:
            self._bar.reset(self.total)
        self._bar.n = self._done
        self._bar.set_description_str(f"{duration(self.left_s)} left: {self._at}", refresh=True)


def _bar(where: str, what: str, total: int) -> Any:
    if where == "notebook":
        from tqdm.notebook import tqdm as widget

        return widget(total=total, leave=False, bar_format=f"{{n_fmt}}/{{total_fmt}} {what} {{bar}} {{desc}}")
    shown = f"{{n_fmt}}/{{total_fmt}} {what} |{{bar:20}}| {{desc}}"
    return tqdm(
        total=total, leave=False, bar_format=shown, file=sys.stderr, dynamic_ncols=True, mininterval=0
    )
