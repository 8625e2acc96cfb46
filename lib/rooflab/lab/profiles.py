"""A study's tables by an instrument: their columns, reading them, and taking them here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rooflab import studies
from rooflab.profile import recorded
from rooflab.records.case import Case
from rooflab.records.fingerprint import SKIPPED

TOOLS = ("ncu", "nsys", "cupti", "gate", "sass", "sanitizer", "checks")


def is_skipped(frame: pd.DataFrame) -> pd.Series:
    """Which rows are of a case that could not be measured on the recorded machine."""
    return frame["identity"].astype(str).str.startswith(SKIPPED)


def read_profile(path: Path, tool: str, metrics: Sequence[str] | None) -> pd.DataFrame:
    """A profile's table as texts; an empty one with the tool's columns if there is no file yet."""
    if path.is_file():
        return recorded.texts(path)
    return pd.DataFrame(columns=columns_of(path.stem.rpartition("_")[0], tool, metrics), dtype="str")


def columns_of(study: str, tool: str, metrics: Sequence[str] | None) -> list[str]:
    """The header of a study's profile by an instrument."""
    from rooflab.studies.faults import COLUMNS as REPORTED

    columns = {
        "gate": ("refused", "when", "sentence"),
        "sanitizer": REPORTED,
        "checks": ("quantity", "value"),
    }
    usual = studies.get(study).profile_columns(tool, metrics)
    return ["case", *columns.get(tool, usual), "identity", "run"]


def take(study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None) -> pd.DataFrame:
    if tool == "gate":
        return studies.get(study).verdicts(cases)
    if tool == "sanitizer":
        from rooflab.studies.faults import verdicts as reports

        return reports(cases)
    if tool == "checks":
        return studies.get(study).checks(cases)
    from rooflab.profile import cupti, ncu, nsys

    ids, of = [case.id for case in cases], studies.get(study)
    if tool == "ncu":
        frames = []
        modes = {case.id: (case.cache or "cold", of.replay(case)) for case in cases}
        for cache, replay in sorted(set(modes.values())):
            chosen = [case for case, mode in modes.items() if mode == (cache, replay)]
            frames.append(ncu.run(study, chosen, metrics or ncu.BASIC, cache, replay=replay))
        return of.trimmed(tool, pd.concat(frames, ignore_index=True), metrics)
    run = nsys.run if tool == "nsys" else cupti.run
    return of.trimmed(tool, run(study, ids, repeat=of.trace_repeats), metrics)
