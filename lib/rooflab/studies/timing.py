"""Timing of gated contestants: those that fail afterwards are left out, disturbed passes are repeated."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rooflab.bench import clock, gate
from rooflab.errors import GateError
from rooflab.records.case import Case


def turn(case: Case) -> tuple[str, str]:
    """What contestants of one comparison share of clock and state: the clocks of the host take turns."""
    return ("host" if case.clock in clock.HOST else case.clock), case.state


def timed(
    cases: Sequence[Case], admitted: Sequence[gate.Admitted], *, samples: int
) -> tuple[dict[str, clock.Timing], dict[str, str]]:
    """Time gated contestants by their cases' clock and state: timings by case id, and what was left out with
    the reason.

    A library's kernel that fails the check after timing (one that adds by atomics may be wrong now and then)
    gets no time, and the others are timed again without it; a kernel of ours that does raises its GateError.
    A pass of the host's clocks that something else on the host disturbed is repeated.
    """
    entries = {case.id: (case, entry) for case, entry in zip(cases, admitted, strict=True)}
    skipped: dict[str, str] = {}
    while entries:
        try:
            return _undisturbed([*entries.values()], samples), skipped
        except GateError as error:
            reason = reason_of(error)
            names = {id: entry.work.name for id, (_, entry) in entries.items()}
            failed = next((id for id, name in names.items() if reason.startswith(f"{name} ")), None)
            if failed is None or entries[failed][0].kind == "own":
                raise
            skipped[failed] = reason
            del entries[failed]
    return {}, skipped


def reason_of(error: Exception) -> str:
    """An error as one line that fits a cell of a table."""
    return " ".join(f"{error}".split())[:200] or type(error).__name__


_PASSES = 3


def _undisturbed(contestants: Sequence[tuple[Case, gate.Admitted]], samples: int) -> dict[str, clock.Timing]:
    """The pass of up to _PASSES in which the fewest cases take longer by `event` than by `wall`: events lie
    inside of what the host waits for, so such a pair tells of something else that ran on the host.
    """
    cases, entries = [case for case, _ in contestants], [entry for _, entry in contestants]
    found = []
    for attempt in range(_PASSES):
        seed = zlib.crc32(cases[0].id.encode()) + attempt
        clocks = [case.clock for case in cases]
        timings = clock.measure(entries, clocks, samples=samples, state=cases[0].state, seed=seed)
        timed = dict(zip((case.id for case in cases), timings, strict=True))
        found.append((len(disturbed({case: timed[case.id].median_us for case in cases})), attempt, timed))
        if not found[-1][0]:
            break
    return min(found, key=lambda each: each[:2])[2]


def disturbed(medians_us: Mapping[Case, float]) -> list[Case]:
    """The cases of the clock `event` whose median exceeds that of the same work by `wall`."""
    pairs = [(case, replace(case, clock="wall")) for case in medians_us if case.clock == "event"]
    return [case for case, other in pairs if medians_us[case] > medians_us.get(other, math.inf)]
