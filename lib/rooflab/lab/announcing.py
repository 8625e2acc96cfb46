"""What measuring takes, said before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rooflab.lab.session import Lab
from rooflab.ops import this_arch
from rooflab.records.case import Case
from rooflab.studies.base import Study
from rooflab.studies.estimates import Estimate, slowest

Timed = tuple[Study, Sequence[Case]]
Profiled = tuple[Study, Sequence[Case], str, Sequence[str] | None]  # with the instrument and its metrics


def announce(
    lab: Lab, timed: Iterable[Timed], profiled: Iterable[Profiled] = (), processes: int = 1
) -> Estimate:
    """Say how long it takes to measure and profile what of these cases a live lab does not hold fresh, where
    so many `processes` make libraries' first calls.
    """
    found, arch = Estimate(lab.spec or slowest(), processes), this_arch()
    for study, cases in timed:
        stale = lab.stale(study, cases, compiled=False)
        groups = [group for group in study.groups(cases) if any(case.id in stale for case in group)]
        found.add(study, [case for group in groups for case in group], arch)
    for study, cases, tool, metrics in profiled:
        _, unable, chosen = lab.unprofiled(study, cases, tool, metrics, compiled=False)
        found.add_profile(study, [case for case in chosen if case.id not in unable], tool)
    lab.say(f"{found.counts()}: {found}" if found.parts else "all of it is recorded already")
    return found
