"""The record of executions: when, where and with which versions each lesson last ran, and what it measured.

Live runs keep theirs beside the measurements, data/<device>/executions.csv; replays in build/notebooks. No
lesson reads it, so that notebooks replay to the same outputs whatever it holds.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from rooflab.book import normal
from rooflab.errors import UsageError
from rooflab.records import seal
from rooflab.records.csv_table import frame, natural_key, read_table, table_text, to_text, write_atomically

NAME = "executions.csv"
SCHEMA = {
    **dict.fromkeys(("lesson", "mode", "effort", "ending", "started"), "text"),
    "seconds": ".1f",
    **dict.fromkeys(("device", "gpu", "driver", "cuda", "nvrtc", "torch", "cupy"), "text"),
    **dict.fromkeys(("python", "os", "commit", "source", "runs"), "text"),
    **dict.fromkeys(("cells", "cases", "measured", "gated", "skipped", "profiled"), "int"),
}


def read(folder: Path) -> pd.DataFrame:
    """The record in a folder, a row a lesson in order; empty without one. UsageError if it is damaged."""
    path = folder / NAME
    return frame(read_table(path, SCHEMA), SCHEMA, path)


def keep(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, each in the place of that lesson's last one."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", timeout=60):
        held = {row["lesson"]: row for row in read_table(folder / NAME, SCHEMA)}
        for row in rows:
            held[row["lesson"]] = {name: to_text(name, how, row.get(name)) for name, how in SCHEMA.items()}
        ordered = sorted(held.values(), key=lambda row: natural_key(row["lesson"]))
        sealed = seal.is_sealed(folder)
        write_atomically(folder / NAME, table_text(ordered, SCHEMA))
        if sealed:
            seal.seal(folder)


def source_of(notebook: Path, values: Mapping[str, Any]) -> str:
    """Ten digits that stand for a notebook's cells and the values that its parameters take."""
    cells = [(cell.cell_type, cell.source) for cell in normal.read(notebook).cells]
    return hashlib.sha256(json.dumps([cells, sorted(values.items())]).encode()).hexdigest()[:10]


def counts(ledger: Path) -> dict[str, Any]:
    """What a lesson asked its lab for, from the ledger that the lab kept: distinct cases; those measured in
    this very execution; own ones whose output had passed the gate; those that could not run there; launches
    counted or traced under a profiler; and the runs that new rows belong to."""
    cases: dict[str, set[str]] = {
        name: set() for name in ("cases", "measured", "gated", "skipped", "profiled")
    }
    runs = set()
    lines = ledger.read_text().splitlines() if ledger.is_file() else []
    for entry in map(json.loads, lines):
        profile = entry["tool"] != ""
        for name, ids in (
            ("profiled" if profile else "cases", entry["asked"]),
            ("measured", entry["measured"]),
            ("gated", entry["gated"]),
            ("skipped", entry["skipped"]),
        ):
            cases[name].update(f"{entry['study']} {entry['tool']} {case}" for case in ids)
        runs |= {entry["run"]} - {""}
    return {name: len(found) for name, found in cases.items()} | {"runs": " ".join(sorted(runs))}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def done(
    folder: Path, stem: str, source: str, output: Path, facts: Mapping[str, Any], names: Sequence[str]
) -> bool:
    """Whether a lesson's last execution ended well on the same cells and values, in the same surroundings
    (`names` of `facts`), and its output is still there."""
    try:
        rows = read_table(folder / NAME, SCHEMA)
    except UsageError:
        return False
    row = next((row for row in rows if row["lesson"] == stem), None)
    if row is None or row["ending"] != "ok" or row["source"] != source or not output.is_file():
        return False
    return all(row[name] == to_text(name, "text", facts.get(name)) for name in names)
