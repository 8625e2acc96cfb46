"""A study's tables by an instrument: their columns, reading them, and taking them here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from rooflab import studies
from rooflab.lab.warming import beside
from rooflab.records import profiles, seal
from rooflab.records.case import Case
from rooflab.records.csv_table import write_atomically
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.store import Store

TOOLS = ("ncu", "nsys", "cupti", "gate", "sass", "sanitizer", "checks", "timeline")


def is_skipped(frame: pd.DataFrame) -> pd.Series:
    """Which rows are of a case that could not be measured on the recorded machine."""
    return frame["identity"].astype(str).str.startswith(SKIPPED)


def read_profile(path: Path, tool: str, metrics: Sequence[str] | None) -> pd.DataFrame:
    """A profile's table as texts; an empty one with the tool's columns if there is no file yet."""
    if path.is_file():
        return profiles.texts(path)
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


def keep_profile(
    store: Store, path: Path, taken: pd.DataFrame, cases: set[str], header: Sequence[str]
) -> None:
    """Put rows, as texts, into a profile of a store, in the place of those of `cases` (ids). `header` holds
    the columns of a profile without other rows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with store.lock():
        held = profiles.texts(path) if path.is_file() else pd.DataFrame(columns=[*header], dtype="str")
        kept = held[~held["case"].isin(cases)]
        columns = [*held] if len(kept) else [*header]
        frame = pd.concat([kept, taken], ignore_index=True).reindex(columns=columns, fill_value="").fillna("")
        frame = frame.sort_values("case", kind="stable", ignore_index=True)
        seal.unseal(store.folder)
        write_atomically(path, frame.to_csv(index=False, lineterminator="\n"))


_PROCESSES = 6
_MEMORY_BYTES = 12 * 2**30  # of the GPU, that one may need: a model's tensors, its packed weights, float64


def _answers(study: str, cases: Sequence[Case]) -> pd.DataFrame:
    """A study's checks of `cases`: in several processes at a time but for those that others would disturb,
    and those of a process that failed, which may have been for want of memory, once more alone.
    """
    of = studies.get(study)
    quiet = of.checks_apart
    apart = [case for case in cases if quiet is None or case.operator in quiet]
    # Cases of one format lie beside each other, as what they share is made once a process.
    together = sorted((case for case in cases if case not in apart), key=lambda case: case.format)
    frames: list[pd.DataFrame] = []
    if len(together) > _PROCESSES**2:
        workers = beside(_PROCESSES, _MEMORY_BYTES)
        size = -(-len(together) // workers)
        parts = [together[start : start + size] for start in range(0, len(together), size)]
        with ProcessPoolExecutor(len(parts), mp_context=get_context("spawn")) as pool:
            asked = [(pool.submit(_asked, study, part), part) for part in parts]
            for answer, part in asked:
                try:
                    frames.append(answer.result())
                except RuntimeError:  # of CUDA's libraries, and of a process that was ended
                    apart += part
    else:
        apart = list(cases)
    if apart:
        frames.append(of.checks(apart))
    return pd.concat(frames, ignore_index=True)


def _asked(study: str, cases: Sequence[Case]) -> pd.DataFrame:
    return studies.get(study).checks(cases)


def take(study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None) -> pd.DataFrame:
    if tool == "gate":
        return studies.get(study).verdicts(cases)
    if tool == "sanitizer":
        from rooflab.studies.faults import verdicts as reports

        return reports(cases)
    if tool == "checks":
        return _answers(study, cases)
    if tool == "timeline":
        return studies.get(study).timelines(cases)
    from rooflab.profile import cupti, ncu, nsys

    ids, of = [case.id for case in cases], studies.get(study)
    if tool == "ncu":
        frames = []
        modes = {case.id: (case.cache or "cold", of.replay(case)) for case in cases}
        for cache, replay in sorted(set(modes.values())):
            chosen = [case for case, mode in modes.items() if mode == (cache, replay)]
            counters = few = [*(metrics or ncu.BASIC)]
            if replay == "application":  # each further pass repeats the whole child
                few = [name for name in counters if name in ncu.CACHES]
            frame = ncu.run(study, chosen, few, cache, replay=replay)
            frames.append(frame.reindex(columns=list(dict.fromkeys([*frame, *counters]))))
        return of.trimmed(tool, pd.concat(frames, ignore_index=True), metrics)
    run = nsys.run if tool == "nsys" else cupti.run
    return of.trimmed(tool, run(study, ids, repeat=of.trace_repeats), metrics)
