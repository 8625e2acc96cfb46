"""Records: the tables of a device that hold every measured figure, which a killed writer cannot spoil."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from rooflab.errors import DeviceMismatch, UsageError
from rooflab.hardware import device as devices
from rooflab.paths import ROOT
from rooflab.records import parsed
from rooflab.records.case import (
    COLUMNS,
    RUN_COLUMNS,
    RUN_SCHEMA,
    SCHEMA,
    Case,
    check_study,
    options,
    parse_options,
)
from rooflab.records.csv_table import (
    frame,
    is_blank,
    natural_key,
    plain,
    read_table,
    table_text,
    to_text,
    values_of,
    write_atomically,
)
from rooflab.records.fingerprint import SKIPPED, fresh
from rooflab.records.seal import seal, unseal

__all__ = [
    "COLUMNS",
    "RUN_COLUMNS",
    "Case",
    "Store",
    "closing_facts",
    "derive",
    "options",
    "parse_options",
    "published_devices",
    "run_facts",
]

NO_STUDY = ("runs.csv", "executions.csv")  # what lies beside the studies' tables
# What a machine can measure depends on these columns of a run.
SURROUNDINGS = ("gpu", "driver", "nvrtc", "torch", "cupy", "cudnn", "commit")
_MEASURED = ("median_us", "bytes", "flops", "roof")
_DERIVED = ("gb_s", "tflop_s", "roof_fraction")


def derive(df: pd.DataFrame, roofs: Mapping[str, float]) -> pd.DataFrame:
    """A copy of `df` with gb_s (bytes/us/1e3), tflop_s (flops/us/1e6) and roof_fraction recomputed and
    rounded as the tables hold them. `roofs` maps a roof's name to GB/s for dram_, l2_ and pcie_ names and to
    TFLOP/s for others; the fraction of a row whose roof is not in it is blank."""
    df = df.copy()
    inputs = zip(*(df[name] for name in _MEASURED), strict=True)
    derived = [_derived(*row, roofs=roofs) for row in inputs]
    for i, name in enumerate(_DERIVED):
        df[name] = pd.Series([row[i] for row in derived], index=df.index, dtype="float64")
    return df


def _derived(
    median: Any, moved: Any, work: Any, roof: Any, *, roofs: Mapping[str, float]
) -> tuple[float, float, float]:
    # From the rounded median, which is all that the table holds, so that a live frame and its replay agree.
    median = _rounded("median_us", median)
    timed = median > 0
    gb_s = _rounded("gb_s", moved / median / 1e3 if timed and not is_blank(moved) else None)
    tflop_s = _rounded("tflop_s", work / median / 1e6 if timed and not is_blank(work) else None)
    achieved = gb_s if str(roof).startswith(("dram_", "l2_", "pcie_")) else tflop_s
    ceiling = roofs.get(roof) if isinstance(roof, str) else None
    return gb_s, tflop_s, _rounded("roof_fraction", achieved / ceiling if ceiling else None)


def _rounded(name: str, value: Any) -> float:
    return float(to_text(name, SCHEMA[name], value) or "nan")


class Store:
    """The recording of one device: root/<device>/<study>.csv and runs.csv.

    A device that has no folder but a row in root/published/runs.csv is read from the published tables and
    cannot be written. Writers in several processes take turns through a lock; readers need none."""

    def __init__(self, root: Path, device: str):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", device) or device == "published":
            raise UsageError(
                f"A device's name is letters, digits, '-', '_' and '.', such as h200, not {device!r}."
            )
        self.root, self.device, self.folder = Path(root), device, Path(root) / device
        self.published = not self.folder.exists() and device in published_devices(self.root)
        if self.published:
            self.folder = self.root / "published"
        self._parsed = parsed.Parsed()
        self._runs: tuple[list[dict[str, str]], pd.DataFrame] | None = None
        self._made: dict[tuple[str, Any], tuple[list[Any], Any]] = {}

    def studies(self) -> list[str]:
        """The names of the studies that this device has rows of."""
        return sorted(
            {row["study"] for path in self._tables() for row in self._rows(path, SCHEMA) if self._mine(row)}
        )

    def read(self, study: str) -> pd.DataFrame:
        """All rows of a study (COLUMNS; str, Int64, boolean, float64), an empty frame if none are recorded;
        UsageError if the table is damaged, holds another study or names a run that runs.csv lacks."""
        return self.made_of(study, None).copy(deep=False)

    def made_of(self, study: str, make: Callable[[pd.DataFrame], Any] | None) -> Any:
        """What `make` makes of a study's rows: made once, and anew when the tables have changed."""
        paths = self._tables() if self.published else [self.folder / f"{check_study(study)}.csv"]
        # `_rows` gives the same list until the file changes.
        held = [self._rows(self.folder / "runs.csv", RUN_SCHEMA), *(self._rows(p, SCHEMA) for p in paths)]
        known = self._made.get((study, make))
        if known is None or not parsed.same(known[0], held):
            if make:
                made = make(self.read(study))
            else:
                key = (self.folder, self.device, study)
                made = parsed.frame_of(key, held, lambda: self._frame(check_study(study), paths))
            known = self._made[study, make] = held, made
        return known[1]

    def _frame(self, study: str, paths: list[Path]) -> pd.DataFrame:
        tables = []
        for path in paths:
            rows = self._study_rows(path, None if self.published else study)
            wanted = [row["study"] == study and self._mine(row) for row in rows]
            if any(wanted):  # of published tables few are of the study
                tables.append(frame(rows, SCHEMA, path)[pd.Series(wanted, dtype=bool)])
        df = pd.concat(tables or [frame([], SCHEMA, self.folder)], ignore_index=True)
        _refuse_repeats(df["case"], f"{self.folder} of {self.device}")
        keys = [natural_key(case) for case in df["case"]]
        order = sorted(range(len(df)), key=lambda i: keys[i])
        return df.iloc[order].reset_index(drop=True)

    def timed_by(self, study: str, table: pd.DataFrame) -> set[str]:
        """Cases that the study had timed by the last run that rows of `table` (a profile's) come from."""
        place = {run: i for i, run in enumerate(self.runs()["run"])}
        timed = self.read(study)
        return set(timed["case"][timed["run"].map(place) <= table["run"].map(place).max()])

    def add(self, study: str, rows: list[dict[str, Any]], run: str) -> None:
        """Write rows (dicts of a case's columns and any others of COLUMNS) of a begun run; a case that is
        already there is replaced. gb_s and tflop_s follow from the row's own figures. When this returns, the
        rows are on the disk; if it is killed, the table is whole, with them or without."""
        self._writable()
        if not rows:
            return
        new = self._checked(check_study(study), rows, run)
        path = self.folder / f"{study}.csv"
        with self.lock():
            if run not in {row["run"] for row in read_table(self.folder / "runs.csv", RUN_SCHEMA)}:
                raise UsageError(
                    f"Run {run!r} is not in {self.folder / 'runs.csv'}; begin() gives a run its name."
                )
            self._parsed.forget(path)
            rows_before = self._study_rows(path, study)
            _refuse_repeats((row["case"] for row in rows_before), str(path))
            kept = {row["case"]: row for row in rows_before} | new
            self._write(path, sorted(kept.values(), key=lambda row: natural_key(row["case"])), SCHEMA)

    def rederive(self, roofs: Callable[[], Mapping[str, float]]) -> None:
        """Recompute the derived columns of every table (see `derive`), after a roof was measured anew.

        `roofs` is asked while no other process writes: else one that read them before the newest was measured
        could be the last to write."""
        self._writable()
        with self.lock():
            found = roofs()
            for path in self._tables():
                held = read_table(path, SCHEMA)
                columns = values_of(held, {name: SCHEMA[name] for name in _MEASURED}, path).values()
                rows = []
                for row, measured in zip(held, zip(*columns, strict=True), strict=True):
                    new = zip(_DERIVED, _derived(*measured, roofs=found), strict=True)
                    rows.append(row | {name: to_text(name, SCHEMA[name], value) for name, value in new})
                if rows != held:
                    self._write(path, rows, SCHEMA)

    def begin(self, run: Mapping[str, Any]) -> str:
        """Append a run (RUN_COLUMNS; `gpu` is a must, `started` is now if blank) and return its name, such as
        "2026-11-21.1"; DeviceMismatch if the folder holds runs of another GPU."""
        self._writable()
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {"device": self.device, **{name: value for name, value in run.items() if not is_blank(value)}}
        if not facts.get("gpu"):
            raise UsageError("A run needs the name of its GPU; a recording without one says nothing.")
        if facts["device"] != self.device:
            raise DeviceMismatch(
                f"A run of device {facts['device']} cannot go into the recording of {self.device}."
            )
        facts["started"] = facts.get("started") or _now()
        with self.lock():
            path = self.folder / "runs.csv"
            rows = read_table(path, RUN_SCHEMA)
            for row in rows:
                if row["gpu"] != facts["gpu"]:
                    mismatch = (
                        f"{self.folder} holds runs of {row['gpu']}, so those of {facts['gpu']} need another"
                    )
                    raise DeviceMismatch(f"{mismatch} device name.")
            day = str(facts["started"])[:10]
            numbers = [int(row["run"].rpartition(".")[2]) for row in rows if row["run"].startswith(f"{day}.")]
            facts["run"] = f"{day}.{max(numbers, default=0) + 1}"
            self._write(path, [*rows, self._texts(facts, RUN_SCHEMA)], RUN_SCHEMA)
        return facts["run"]

    def finish(self, run: str, **facts: Any) -> None:
        """Add to a run's line what is known at its end (clocks, temperature, power; `finished` is now if not
        given), and seal the recording."""
        self._writable()
        with self.lock():
            path = self.folder / "runs.csv"
            rows = read_table(path, RUN_SCHEMA)
            mine = [row for row in rows if row["run"] == run]
            if not mine:
                raise UsageError(f"Run {run!r} is not in {path}; begin() gives a run its name.")
            texts = self._texts({"finished": _now(), **facts}, RUN_SCHEMA)
            mine[0].update({name: texts[name] for name in {"finished", *facts}})
            self._write(path, rows, RUN_SCHEMA)
            seal(self.folder)

    def last_run(self, run_facts: Mapping[str, Any]) -> str | None:
        """The name of the newest finished run, if it was made in the surroundings that `run_facts` tell of:
        one without an end was killed, or is another process's that still records."""
        rows = [] if self.published else self._rows(self.folder / "runs.csv", RUN_SCHEMA)
        runs = [row for row in rows if row["finished"]]
        return runs[-1]["run"] if runs and _agree(runs[-1], run_facts, SURROUNDINGS) else None

    def runs(self) -> pd.DataFrame:
        """This device's runs, oldest first (RUN_COLUMNS; str, Int64, float64)."""
        path = self.folder / "runs.csv"
        rows = self._rows(path, RUN_SCHEMA)
        if (
            self._runs is None or self._runs[0] is not rows
        ):  # `_rows` gives the same list until the file changes
            mine = [row for row in rows if not self.published or row["device"] == self.device]
            self._runs = (rows, frame(mine, RUN_SCHEMA, path))
        return self._runs[1].copy(deep=False)

    @property
    def effort(self) -> str:
        """The effort it was recorded with: "full" where any of its runs was; "" without one that says so."""
        said = {str(effort) for effort in self.runs()["effort"] if not is_blank(effort)}
        return "full" if "full" in said else "quick" if said else ""

    def is_fresh(self, study: str, case: str, identity: str, run_facts: Mapping[str, Any]) -> bool:
        """Whether the recorded row of `case` (an id) stands for what would be measured now: same GPU and
        driver, and the identity of its code fresh by `rooflab.records.fingerprint.fresh`."""
        row, run = self._row_and_run(study, case)
        return _agree(run, run_facts, ("gpu", "driver")) and fresh(row["identity"], identity)

    def why_skipped(self, study: str, case: str, run_facts: Mapping[str, Any]) -> str | None:
        """Why `case` (an id) was skipped, if it was and GPU, driver, libraries and, but for a peer, commit
        are those of `run_facts`; else None.
        """
        row, run = self._row_and_run(study, case)
        names = [name for name in SURROUNDINGS if name != "commit" or row["kind"] != "peer"]
        if not row["identity"].startswith(SKIPPED) or not _agree(run, run_facts, names):
            return None
        return row["identity"].removeprefix(SKIPPED)

    def _row_and_run(self, study: str, case: str) -> tuple[dict[str, str], dict[str, str]]:
        """The recorded row of a case and its run; without one, blank texts."""
        rows = self._rows(self.folder / f"{check_study(study)}.csv", SCHEMA) if not self.published else []
        row = next((row for row in rows if row["case"] == case), dict.fromkeys(SCHEMA, ""))
        return row, self._runs_by_name().get(row["run"], {})

    def lock(self) -> FileLock:
        """Keeps other processes from writing to this recording; methods that write take it themselves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / ".lock", timeout=60)

    def _writable(self) -> None:
        if self.published:
            raise UsageError(f"{self.device} is a published recording; measure under another device name.")

    def _tables(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("[!.]*.csv") if path.name not in NO_STUDY)

    def _rows(self, path: Path, schema: Mapping[str, str]) -> list[dict[str, str]]:
        return self._parsed.rows(path, schema)

    def _runs_by_name(self) -> dict[str, dict[str, str]]:
        return {row["run"]: row for row in self._rows(self.folder / "runs.csv", RUN_SCHEMA)}

    def _mine(self, row: Mapping[str, str]) -> bool:
        return not self.published or self._runs_by_name()[row["run"]]["device"] == self.device

    def _study_rows(self, path: Path, study: str | None) -> list[dict[str, str]]:
        rows, runs = self._rows(path, SCHEMA), self._runs_by_name()
        for line, row in enumerate(rows, 2):
            if study and row["study"] != study:
                raise UsageError(
                    f"{path}, line {line}: a row of study {row['study']!r} in the table of {study}."
                )
            if row["run"] not in runs:
                raise UsageError(
                    f"{path}, line {line}: its run {row['run']!r} is not in {self.folder / 'runs.csv'}."
                )
        return rows

    def _checked(self, study: str, rows: list[dict[str, Any]], run: str) -> dict[str, dict[str, str]]:
        new: dict[str, dict[str, str]] = {}
        for row in rows:
            if unknown := set(row) - set(SCHEMA):
                raise UsageError(
                    f"A record has no column {sorted(unknown)[0]!r}; its columns are {', '.join(COLUMNS)}."
                )
            case = Case.from_row({**row, "study": row.get("study") or study})
            if case.study != study or row.get("case", case.id) != case.id:
                raise UsageError(
                    f"Row {row.get('case')!r} of {case.study} is not case {case.id!r} of {study}."
                )
            if case.id in new:
                raise UsageError(f"Case {case.id!r} was given twice in one call.")
            new[case.id] = self._texts({**row, **case.row(), "run": run}, SCHEMA)
            gb_s, tflop_s, _ = _derived(*(row.get(name) for name in _MEASURED), roofs={})
            new[case.id]["gb_s"] = to_text("gb_s", SCHEMA["gb_s"], gb_s)
            new[case.id]["tflop_s"] = to_text("tflop_s", SCHEMA["tflop_s"], tflop_s)
        return new

    @staticmethod
    def _texts(row: Mapping[str, Any], schema: Mapping[str, str]) -> dict[str, str]:
        if unknown := set(row) - set(schema):
            raise UsageError(
                f"There is no column {sorted(unknown)[0]!r}; the columns are {', '.join(schema)}."
            )
        return {name: to_text(name, how, row.get(name)) for name, how in schema.items()}

    def _write(self, path: Path, rows: Iterable[Mapping[str, str]], schema: Mapping[str, str]) -> None:
        unseal(self.folder)
        write_atomically(path, table_text(rows, schema))
        self._parsed.forget(path)


def _agree(run: Mapping[str, str], facts: Mapping[str, Any], names: Iterable[str]) -> bool:
    return bool(run) and all(run[name] == to_text(name, "text", facts.get(name)) for name in names)


def _refuse_repeats(cases: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for case in cases:
        if case in seen:
            raise UsageError(f"Case {case!r} occurs twice in {where}; keep one of the two lines.")
        seen.add(case)


def published_devices(root: Path) -> list[str]:
    """The devices that root/published holds figures of, by name."""
    return sorted({row["device"] for row in read_table(Path(root) / "published" / "runs.csv", RUN_SCHEMA)})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Distributions that provide a library, by CUDA line; the first that is installed is named.
_PACKAGES = {
    "torch": ("torch",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "nvrtc": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}
_CONDITIONS = (("sm_clock", "mhz"), ("temperature", "c"), ("power", "w"))


def run_facts(command: str, effort: str) -> dict[str, Any]:
    """What runs.csv says of a run that starts now: GPU and its condition, versions, commit, and `command` as
    given to the command line, absolute paths in it cut to their last part. Facts that this machine does not
    tell, all of the GPU's where there is none, are left out; nothing names the host or its user."""
    gpu = devices.probe() or {}
    facts = {
        name: gpu.get(name)
        for name in ("gpu", "sms", "l2_bytes", "memory_bytes", "driver", "memory_clock_mhz")
    }
    facts["cuda"] = gpu.get("cuda_driver")
    if gpu:
        facts["compute_capability"] = ".".join(map(str, gpu["compute_capability"]))
        others = gpu.get("other_processes")
        facts["other_processes"] = None if others is None else len(others)
    facts |= {f"{name}_before_{unit}": gpu.get(f"{name}_{unit}") for name, unit in _CONDITIONS}
    facts |= {name: _version(packages) for name, packages in _PACKAGES.items()}
    facts |= {"python": platform.python_version(), "os": f"{platform.system()} {platform.machine()}"}
    facts |= {"commit": commit(), "effort": effort, "started": _now()}
    facts["command"] = " ".join(_without_folder(word) for word in command.split())
    return {
        name: plain(value) if isinstance(value, str) else value
        for name, value in facts.items()
        if value is not None
    }


def closing_facts() -> dict[str, Any]:
    """The GPU's clock, temperature and power now, named as `Store.finish` takes them; empty without a GPU."""
    now = devices.conditions() or {}
    facts = {f"{name}_after_{unit}": now.get(f"{name}_{unit}") for name, unit in _CONDITIONS}
    return {name: value for name, value in facts.items() if value is not None}


def commit(root: Path = ROOT) -> str | None:
    """The checkout's commit (12 digits), with "+" if tracked files outside data/ and notebooks/ differ
    from it; $ROOFLAB_COMMIT where the tree was copied without its history; None if neither is known."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=30
        ).stdout

    try:
        prefix, head = git("rev-parse", "--show-prefix", "HEAD").split("\n")[:2]
        if not prefix:  # else the package lies inside someone else's repository
            changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!data", ":!notebooks")
            return head[:12] + ("+" if changed.strip() else "")
    except (OSError, subprocess.SubprocessError, ValueError):
        pass
    return os.environ.get("ROOFLAB_COMMIT") or None


def _version(packages: Iterable[str]) -> str | None:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _without_folder(word: str) -> str:
    name, equals, value = word.rpartition("=")
    path = re.match(r"(/|~|[A-Za-z]:[\\/])", value)
    return name + equals + (re.split(r"[\\/]", value.rstrip("\\/"))[-1] if path else value)
