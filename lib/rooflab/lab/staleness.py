"""What of a recording is incomplete, ungated, implausible, or measured with other code than now."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pandas as pd

from rooflab import studies
from rooflab.errors import MissingTool, UsageError
from rooflab.hardware import device as devices
from rooflab.lab.opening import opened
from rooflab.lab.profiles import columns_of
from rooflab.lab.session import unlisted
from rooflab.ops import as_on
from rooflab.records import profiles
from rooflab.records.case import Case
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.validate import Finding, validate
from rooflab.runtime import nvrtc
from rooflab.studies import static
from rooflab.studies.bandwidth import roofs

_SAY_EVERY_S = 3.0


def freshness(device: str, say: Callable[[str], None] = lambda line: None) -> list[Finding]:
    """Everything wrong with data/<device> (or the folder `device`): incomplete, ungated, stale or
    implausible.

    With NVRTC installed a rung whose source differs from the recorded one is compiled for the recorded GPU
    and its machine code compared; `say` gets progress.
    """
    store = opened(device)
    try:
        runs, bandwidth = store.runs(), store.read("bandwidth")
    except UsageError:  # the tables say themselves what is wrong with them
        return validate(store.folder)
    told = time.monotonic()
    capability = str(runs["compute_capability"].iloc[-1]) if len(runs) else ""
    arch: str | None = capability.replace(".", "") or None
    try:
        nvrtc.compiler_version()
    except MissingTool:
        arch = None
    spec = devices.match(str(runs["gpu"].iloc[-1])) if len(runs) else None
    sized = spec or (unlisted(runs.iloc[-1]) if len(runs) else None)
    effort = store.effort or "full"

    known = studies.names(devices.gpus_of(store.device))
    newer: dict[str, set[str]] = {}  # rungs that a table has no row of yet, by the table's file

    def recordable(study: str, cases: list[Case], file: str) -> list[Case]:
        """`cases` without those of rungs newer than the file, which are noted: it holds none of theirs, and
        its study has timed none by the file's last run. Of a missing or damaged file validate says what is
        wrong.
        """
        try:
            table = pd.read_csv(store.folder / file, usecols=["case", "run"])
            held = {*table["case"].dropna().astype(str), *store.timed_by(study, table)}
        except (OSError, ValueError, UsageError):
            return cases
        lacking = studies.get(study).not_yet_measured(cases, held)
        newer.setdefault(file, set()).update(lacking.values())
        return [case for case in cases if case.id not in lacking]

    def expected(study: str) -> list[Case]:
        cases = studies.get(study).cases(effort, sized) if study in known else []
        return recordable(study, cases, f"{study}.csv")

    def changed(case: Case, held: str) -> str | None:
        nonlocal told
        if case.study not in known or case.kind != "own":
            return None  # a library's version is what it was on the recording machine
        if time.monotonic() - told > _SAY_EVERY_S:
            told = time.monotonic()
            say(f"comparing the code of every case with the recorded one: {case.study}, {case.id}")
        return studies.get(case.study).changed(case, held, arch)

    found = roofs(bandwidth)
    measured = [study for study in known if not studies.get(study).everywhere]
    if devices.gpus_of(store.device) > 1:  # a lesson's own study each, of which a host may hold some
        absent = [study for study in measured if not (store.folder / f"{study}.csv").is_file()]
        measured = [study for study in measured if study not in absent] or measured
        newer |= {f"{study}.csv": {study} for study in absent}
    wanted = {}
    for study in measured:
        for tool, cases, metrics in studies.get(study).profiles(effort, sized):
            cases = recordable(study, cases, f"profiles/{study}_{tool}.csv")
            wanted[f"{study}_{tool}.csv"] = (columns_of(study, tool, metrics), [case.id for case in cases])
    stale = []
    with as_on(spec.slug if spec else None, capability.replace(".", "") or "90"):
        for path in sorted((store.folder / "profiles").glob("[!.]*.csv")):
            study = path.stem.rpartition("_")[0]
            with suppress(UsageError):  # what is damaged, validate says
                table = profiles.texts(path)
                for case, held in sorted(set(zip(table["case"], table["identity"], strict=True))):
                    skipped = held.startswith(SKIPPED)
                    if not skipped and (now := changed(studies.get(study).case(case), held)):
                        sentence = f"{case} is stale: profiled as {held}, its code is now {now}."
                        stale.append(Finding("error", f"profiles/{path.name}", sentence))
        cpu, reports = studies.get("static"), static.read()["case"]
        newer["cpu/static.csv"] = set(cpu.not_yet_measured(cpu.cases(), reports).values())
        roof_of = {key: value.value for key, value in found.items()}
        stale += validate(store.folder, measured, expected, changed, roof_of, wanted)
    return stale + [
        Finding("warning", file, f"not yet measured: {', '.join(sorted(names))}.")
        for file, names in newer.items()
        if names
    ]
