"""A recording, or some of its rows, as texts that travel between machines, and how they join another's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rooflab.lab.profiles import keep_profile
from rooflab.records import profiles, seal
from rooflab.records.case import RUN_COLUMNS, RUN_SCHEMA, SCHEMA
from rooflab.records.csv_table import is_blank, read_table, table_text
from rooflab.records.store import NO_STUDY, SURROUNDINGS, Store
from rooflab.studies.bandwidth import roofs

_CLOSING = ("finished", *(name for name in RUN_COLUMNS if "_after_" in name))


@dataclass(frozen=True)
class Parcel:
    """The device of a recording, and its files: path below the recording's folder -> text."""

    device: str
    files: dict[str, str]


def whole(folder: Path) -> Parcel:
    """All tables of a recording, and its seal; one without files where there is no such folder."""
    found = sorted(path for path in folder.rglob("*.csv") if not path.name.startswith("."))
    found += [folder / seal.NAME] if seal.is_sealed(folder) else []
    return Parcel(
        folder.name, {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in found}
    )


def some(store: Store, chosen: Callable[[str, str, str], bool]) -> Parcel:
    """The rows for which `chosen(table, case, run)` holds, table being "gemv" or "profiles/gemv_ncu", and
    the runs that they are of.
    """
    files, runs = {}, set()
    for path in sorted(store.folder.glob("[!.]*.csv")):
        if path.name in NO_STUDY:
            continue
        rows = [row for row in read_table(path, SCHEMA) if chosen(path.stem, row["case"], row["run"])]
        runs |= {row["run"] for row in rows}
        if rows:
            files[path.name] = table_text(rows, SCHEMA)
    for path in sorted((store.folder / "profiles").glob("[!.]*.csv")):
        held = profiles.texts(path)
        mine = [
            chosen(f"profiles/{path.stem}", case, run)
            for case, run in zip(held["case"], held["run"], strict=True)
        ]
        if any(mine):
            runs |= set(held["run"][mine])
            files[f"profiles/{path.name}"] = held[mine].to_csv(index=False, lineterminator="\n")
    rows = [row for row in read_table(store.folder / "runs.csv", RUN_SCHEMA) if row["run"] in runs]
    if rows:
        files["runs.csv"] = table_text(rows, RUN_SCHEMA)
    return Parcel(store.device, files)


def unpack(parcel: Parcel, root: Path) -> Path:
    """Write a parcel's files below root/<device>, which is returned."""
    folder = root / parcel.device
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in parcel.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name} lies outside the recording's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return folder


def merge(parcel: Parcel, root: Path, begun: dict[tuple[str, ...], str], origin: str) -> Store:
    """Put a parcel's rows into root/<device>, in the place of rows of the same cases, and give its store.

    Runs get names of that recording: runs of one `origin` (a process) in the same surroundings are one run
    there, which `begun` remembers from call to call. Share of roof is left to `rederive`.
    """
    store = Store(root, parcel.device)
    with tempfile.TemporaryDirectory() as scratch:
        theirs = Store(Path(scratch), parcel.device)
        unpack(parcel, theirs.root)
        closing, names = {}, {}
        for facts in theirs.runs().to_dict("records"):
            key = (origin, *(str(facts[name]) for name in SURROUNDINGS))
            if key not in begun:
                begun[key] = store.begin(
                    {str(k): v for k, v in facts.items() if k not in (*_CLOSING, "run", "device")}
                )
            names[facts["run"]] = begun[key]
            closing[begun[key]] = {name: facts[name] for name in _CLOSING if not is_blank(facts[name])}
        for study in theirs.studies():
            rows = theirs.read(study)
            for run, mine in rows.groupby("run"):
                store.add(
                    study,
                    [{str(k): v for k, v in row.items()} for row in mine.to_dict("records")],
                    names[run],
                )
        for path in sorted((theirs.folder / "profiles").glob("*.csv")):
            taken = profiles.texts(path)
            taken["run"] = taken["run"].map(names)
            keep_profile(
                store,
                store.folder / "profiles" / path.name,
                taken,
                set(taken["case"]),
                [str(name) for name in taken],
            )
        for run, last in closing.items():
            if last.get("finished"):
                store.finish(run, **{str(name): fact for name, fact in last.items()})
    return store


def rederive(store: Store) -> None:
    """Recompute rates and shares of roofs of a recording by its newest roofs."""
    store.rederive(lambda: {name: roof.value for name, roof in roofs(store.read("bandwidth")).items()})
    if len(store.runs()):
        with store.lock():
            seal.seal(store.folder)
