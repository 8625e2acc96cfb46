"""The ceilings of the GPU at hand, each measured when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rooflab.studies.bandwidth import Roof


@dataclass(frozen=True)
class Roofs(Mapping[str, Roof]):
    """`held` gives the recorded ceilings, `take` measures and records the one of a name, if it can be.

    Asking for a name, also by `in`, measures it where it is not recorded; iterating gives what is recorded.
    """

    held: Callable[[], Mapping[str, Roof]]
    take: Callable[[str], None]

    def __getitem__(self, name: str) -> Roof:
        if name not in self.held():
            self.take(name)
        return self.held()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held())

    def __len__(self) -> int:
        return len(self.held())
