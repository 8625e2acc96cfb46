"""Nsight Systems: what the GPU did when, and which call in which named range made it do so.

`nsys profile` records, `nsys export` turns its report into SQLite, `read` turns that into a Trace. Graphs are
traced node by node; without that a graph launch would be one block.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rooflab.errors import MissingTool, UsageError
from rooflab.profile import (
    PERMISSION,
    child_command,
    execute,
    exported,
    raise_child_error,
    require_tool,
    tail,
    trace,
)
from rooflab.profile.trace import Trace

_PUSH_POP = 59  # NVTX_EVENTS.eventType of a range pushed and popped on one thread
_NVTX_COLUMNS = ("globalTid", "start", "end", "eventType", "text", "textId", "domainId")
_ACTIVITIES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
}


def command(child: Sequence[str], out: Path) -> list[str]:
    """The nsys command line that traces the command `child` between cudaProfilerStart and Stop.

    It writes `out`.nsys-rep; `out` has no suffix and must not exist yet.
    """
    return [
        *(require_tool("nsys"), "profile", "--trace=cuda,nvtx", "--cuda-graph-trace=node"),
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop", f"--output={out}"),
        *child,
    ]


def run(study: str, case_ids: Sequence[str], *, repeat: int = 1, timeout_s: float = 600) -> Trace:
    """Trace cases of a study in a gated child, each launched `repeat` times; activities have the column
    `case`.

    Raises MissingTool (no nsys, nothing recorded, no permission), GateError, UsageError.
    """
    return profile(
        child_command(study, case_ids, "--whole", "--repeat", str(repeat)), timeout_s=timeout_s
    ).with_cases()


def profile(child: Sequence[str], *, timeout_s: float = 600) -> Trace:
    """Run the command `child` under nsys, export its report and read it. Errors as in `run`."""
    with tempfile.TemporaryDirectory(prefix="rooflab-nsys-") as folder:
        out = Path(folder) / "trace"
        done = execute(command(child, out), timeout_s)
        said = done.stdout + done.stderr
        raise_child_error(said)
        report, database = out.with_suffix(".nsys-rep"), out.with_suffix(".sqlite")
        if not report.is_file():
            raise MissingTool(f"nsys wrote no report (exit code {done.returncode}): {tail(said)}.")
        argv = [require_tool("nsys"), "export", "--type=sqlite", f"--output={database}", str(report)]
        exported = execute(argv, timeout_s)
        if not database.is_file():
            raise MissingTool(f"nsys could not export its report: {tail(exported.stdout + exported.stderr)}.")
        return read(database)


def read(path: Path) -> Trace:
    """Read an SQLite export of Nsight Systems into a Trace (see rooflab.profile.trace for the columns).

    Tables that nsys leaves out because nothing of the kind happened are taken as empty. Raises UsageError if
    the file is missing, no export, cut off, or without a kernel; MissingTool if the recording was denied by
    the driver.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"There is no export {path}.")
    _check_whole(path)
    place = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with exported(path.name), closing(sqlite3.connect(place, uri=True)) as database:
            return _read(database, path)
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path.name} is not a whole SQLite export of Nsight Systems: {error}.") from error


def _read(database: sqlite3.Connection, path: Path) -> Trace:
    strings = {row["id"]: row["value"] for row in _rows(database, "StringIds", "id", "value")}
    ranges = [
        (row["globalTid"], row["start"], row["end"], row["text"] or strings.get(row["textId"], ""))
        for row in _rows(database, "NVTX_EVENTS", *_NVTX_COLUMNS)
        if row["eventType"] == _PUSH_POP
        and not row["domainId"]  # libraries push ranges in domains of their own
    ]
    api = _rows(
        database, "CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", "start", "end", "correlationId", "nameId"
    )
    paths = trace.range_paths([(call["globalTid"], call["start"]) for call in api], ranges)
    # A correlation id is unique within a process; both global ids hold the process above their low 24 bits.
    path_of = {(c["globalTid"] >> 24, c["correlationId"]): p for c, p in zip(api, paths, strict=True)}

    rows = []
    for kind, table in _ACTIVITIES.items():
        for row in _rows(
            *(database, table, "start", "end", "streamId", "correlationId", "globalPid", "graphNodeId"),
            *("demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "copyKind", "bytes"),
        ):
            if kind == "kernel":
                name = strings.get(row["demangledName"], "?")
            else:
                name = (
                    f"memcpy {trace.COPIES.get(row['copyKind'], 'other')}" if kind == "memcpy" else "memset"
                )
            rows.append({
                "kind": kind,
                "name": name,
                "start_ns": row["start"],
                "duration_ns": row["end"] - row["start"],
                "grid": trace.shape([row[f"grid{d}"] for d in "XYZ"]) if kind == "kernel" else "",
                "block": trace.shape([row[f"block{d}"] for d in "XYZ"]) if kind == "kernel" else "",
                "stream": row["streamId"],
                "node": row["graphNodeId"] or 0,
                "correlation": row["correlationId"],
                "bytes": row["bytes"] or 0,
                "range": path_of.get(((row["globalPid"] or 0) >> 24, row["correlationId"]), ""),
            })  # fmt: skip
    if not any(row["kind"] == "kernel" for row in rows):
        _explain_absence(database, path)
    durations = [(strings.get(call["nameId"], "?"), call["end"] - call["start"]) for call in api]
    return Trace(trace.activities(rows), trace.calls(durations))


def _rows(database: sqlite3.Connection, table: str, *columns: str) -> list[dict[str, Any]]:
    """All rows of a table as dicts; [] for a table the export lacks, None for a column its version lacks."""
    present = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    if not present:
        return []
    names = ", ".join(f'"{c}"' if c in present else f'NULL AS "{c}"' for c in columns)
    return [dict(zip(columns, row, strict=True)) for row in database.execute(f"SELECT {names} FROM {table}")]


def _explain_absence(database: sqlite3.Connection, path: Path) -> None:
    texts = [str(row["text"]) for row in _rows(database, "DIAGNOSTIC_EVENT", "text")]
    for text in texts:
        if "ERR_NVGPUCTRPERM" in text or "INSUFFICIENT_PRIVILEGES" in text:
            raise MissingTool(PERMISSION)
        if "permission" in text.lower() or "privilege" in text.lower():
            raise MissingTool(
                f"nsys was not permitted to trace the GPU: {' '.join(text.split()).rstrip('.')}."
            )
    raise UsageError(
        f"{path.name} holds no kernel: nothing was launched between profiler start and stop, or nsys "
        f"could not trace CUDA here ({tail(' / '.join(texts), 1) if texts else 'it left no remark'})."
    )


def _check_whole(path: Path) -> None:
    """SQLite notices missing pages only when it meets them; the header says how long the file should be."""
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) == 100 and head[24:28] == head[92:96]:
        page = int.from_bytes(head[16:18], "big")
        expected = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
        if path.stat().st_size < expected:
            raise UsageError(f"{path.name} is cut off: it has {path.stat().st_size} of {expected} bytes.")
