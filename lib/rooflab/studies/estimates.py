"""How long measuring takes, said before it starts.

A case takes what its clock's rules give, its buffers and gate, and, where its library compiles or tunes at
the first call of a shape, that call. The constants are those of the H200's recordings: the rows and profiles
of a run say what it measured, and runs.csv says when it began and ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooflab.hardware import device as devices
from rooflab.hardware.device import Device
from rooflab.records.case import Case
from rooflab.studies.base import Study

# What a library's first call takes in seconds, and which columns of a case make it another first call.
_SHAPE = ("n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "window", "causal", "model")
FIRST_CALLS: dict[str, tuple[float, tuple[str, ...]]] = {
    "flash_attn_4": (3.0, _SHAPE),
    "ffpa": (2.5, _SHAPE),
    "torch.flex_attention": (3.0, _SHAPE),
    "transformers.flash_attn_4": (2.5, _SHAPE),
    "transformers.compile": (30.0, _SHAPE),
    "humming": (8.0, ("n", "k")),
    "gemlite": (14.0, ("n", "k", "batch")),
}
# An instrument starts a process, which passes its cases through the gate first; and what it takes a case.
_INSTRUMENTS = {"ncu": (7.0, 0.35), "nsys": (7.0, 0.8), "cupti": (7.0, 3.0), "sanitizer": (2.0, 0.3)}


def first_call(case: Case) -> tuple[float, tuple]:
    """Seconds that a library's first call of a case takes, 0 for most, and what makes another call a first
    one again.
    """
    seconds, columns = FIRST_CALLS.get(case.impl, (0.0, ()))
    return seconds, (case.impl, *(getattr(case, column) for column in columns))


def slowest() -> Device:
    """What a GPU that the table of devices lacks is taken for."""
    return min(map(devices.get, devices.names()), key=lambda known: known.dram_gb_s)


@dataclass
class Estimate:
    """Seconds of the cases and profiles given so far: `parts` by (study, case id) and (study, instrument), of
    these `libraries` those of first calls, by the library's name; `processes` make first calls at a time.
    """

    device: Device
    processes: int = 1
    first: list[tuple[Study, Case]] = field(default_factory=list)  # whose call is the first of its shape
    parts: dict[tuple[str, str], float] = field(default_factory=dict)
    libraries: dict[str, float] = field(default_factory=dict)
    profiled: int = 0
    pages: float = 0.0  # seconds of the lessons that show them
    _called: set[tuple] = field(default_factory=set, repr=False)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values()) + self.pages

    def add(
        self, study: Study, cases: Iterable[Case], arch: str | None = None
    ) -> dict[tuple[str, str], float]:
        """Count cases of a study, each once; gives the seconds of these. Those that cannot run on `arch`, or
        whose package is not installed, take none.
        """
        found = {}
        for case in cases:
            key = (study.name, case.id)
            if key not in self.parts:
                unable = arch is not None and study.why_not(case, arch)
                self.parts[key] = (
                    0.0 if unable else study.seconds(case, self.device) + self._first_call(study, case)
                )
            found[key] = self.parts[key]
        return found

    def _first_call(self, study: Study, case: Case) -> float:
        seconds, call = first_call(case)
        if not seconds or call in self._called:
            return 0.0
        self._called.add(call)
        self.first.append((study, case))
        seconds /= self.processes
        self.libraries[case.impl] = self.libraries.get(case.impl, 0.0) + seconds
        return seconds

    def add_profile(self, study: Study, cases: Sequence[Case], tool: str) -> dict[tuple[str, str], float]:
        """Count what an instrument takes for cases of a study; gives its seconds."""
        if not cases:
            return {}
        start, each = _INSTRUMENTS.get(tool, (2.0, study.check_s))
        key, seconds = (study.name, tool), start + each * len(cases)
        self.parts[key] = self.parts.get(key, 0.0) + seconds
        self.profiled += len(cases)
        return {key: seconds}

    def as_json(self) -> dict[str, Any]:
        """All but the device, for another process; `merge` takes it."""
        parts = [[*key, seconds] for key, seconds in self.parts.items()]
        return {"parts": parts, "libraries": self.libraries, "profiled": self.profiled}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add what another process counted, as `as_json` gives it."""
        for study, part, seconds in other["parts"]:
            self.parts[study, part] = self.parts.get((study, part), 0.0) + seconds
        for name, seconds in other["libraries"].items():
            self.libraries[name] = self.libraries.get(name, 0.0) + seconds
        self.profiled += other["profiled"]

    def counts(self) -> str:
        """ "148 cases to measure, 45 to profile" """
        tools = sum(part in _INSTRUMENTS or part in ("gate", "checks", "timeline") for _, part in self.parts)
        cases = len(self.parts) - tools
        said = f"{cases} case{'s' * (cases != 1)} to measure"
        return said + (f", {self.profiled} to profile" if self.profiled else "")

    def __str__(self) -> str:
        """ "about 4 min, of which libraries compile or tune 40 s (flash_attn_4, humming)" """
        said = about(self.seconds)
        if (first := sum(self.libraries.values())) >= 1:
            names = ", ".join(sorted(self.libraries))
            said += f", of which libraries compile or tune {duration(first)} ({names})"
        return said


def about(seconds: float) -> str:
    """A duration as an estimate: "about 40 s", "about 12 min"."""
    return f"about {duration(seconds)}"


def duration(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours."""
    if seconds < 119.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
