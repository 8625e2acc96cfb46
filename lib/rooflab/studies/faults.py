"""Study `faults` (lesson 03): which instrument sees which mistake. Nothing is timed, as nothing is right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pandas as pd

from rooflab.errors import MissingTool
from rooflab.ops import faults
from rooflab.profile import sanitizer
from rooflab.records.case import Case, options
from rooflab.records.fingerprint import source_of_callable
from rooflab.studies.base import Described, Profile, Sized, Study

# Sizes at which the mistake goes unnoticed, and sizes at which it shows: (n, k).
FRIENDLY = {
    **dict.fromkeys(("early_exit", "half_barrier"), (512, 300)),
    **{"fixed_tile": (40, 4096), "not_zeroed": (40, 300)},
}
UNFRIENDLY = {
    **dict.fromkeys(("early_exit", "half_barrier"), (63, 300)),
    **{"fixed_tile": (5, 4100), "not_zeroed": (40, 300)},
}
COLUMNS = ("reports", "says", "first_right", "second_right")
INSTRUMENTS = ("none", *sanitizer.TOOLS, "watch")


def cases() -> list[Case]:
    """Every faulty kernel: only run at friendly and unfriendly sizes, and under each instrument at the
    unfriendly ones. `watch` is the course's own watcher, on the CPU."""
    asked = [(name, FRIENDLY[name], "none") for name in faults.FAULTS]
    asked += [(name, UNFRIENDLY[name], tool) for name in faults.FAULTS for tool in INSTRUMENTS]
    return list(dict.fromkeys(_case(name, *size, tool) for name, size, tool in asked))


def _case(name: str, n: int, k: int, tool: str) -> Case:
    return Case("faults", "faults", name, n=n, k=k, options=options(tool=tool), cache="", clock="")


def verdicts(wanted: Sequence[Case]) -> pd.DataFrame:
    """What the instruments say of `wanted` cases: case and COLUMNS. Where the watcher finds no compiler, its
    cases are left blank."""
    # Nothing is timed, so several instruments may run at once.
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        found = {case: pool.submit(_sanitized, case) for case in wanted if _tool(case) != "watch"}
        seen = {case: _watched(case) for case in wanted if case not in found}
        seen |= {case: each.result() for case, each in found.items()}
    return pd.DataFrame([{"case": case.id, **seen[case]._asdict()} for case in wanted])


def _tool(case: Case) -> str:
    return case.options.removeprefix("tool=")


def _sanitized(case: Case) -> sanitizer.Finding:
    return sanitizer.run(_tool(case), case.impl, case.n or 0, case.k or 0)


def _watched(case: Case) -> sanitizer.Finding:
    try:
        return sanitizer.watched(case.impl, case.n or 0, case.k or 0)
    except MissingTool as missing:
        return sanitizer.Finding(0, f"not run: {missing}", None, None)


class Faults(Study):
    """Lesson 03's kernels to mend."""

    name, lesson = "faults", "03"

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        return []

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("sanitizer", cases(), None)]

    @staticmethod
    def own_rung(case: Case) -> Described:
        rule = source_of_callable(faults.arguments, faults.launch_of, sanitizer.operands)
        return faults.FAULTS[case.impl], {}, rule
