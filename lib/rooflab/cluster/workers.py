"""What runs in a Dask worker: a lesson, or a part of a recording. Arguments and answers are plain data."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rooflab import paths
from rooflab.cluster import parcels
from rooflab.errors import RooflabError
from rooflab.hardware import device

MEASURER = [sys.executable, "-m", "rooflab.cluster.measurer"]
_NO_SOURCE = ("executions.csv", "SHA256SUMS")  # what is written when a lesson runs
LIBRARY = Path(__file__).resolve().parents[1]


def gpu() -> str:
    """The name of this worker's GPU as recordings have it, "" without one."""
    facts = device.probe()
    return device.slug(facts["gpu"]) if facts else ""


@functools.cache
def sources() -> dict[str, str]:
    """Digests of what a result depends on beside its notebook and recording: the package and the kernels."""
    return {"lib/rooflab": _digest(LIBRARY), "kernels": _digest(paths.KERNELS)}


def recorded(name: str) -> dict[str, str]:
    """Digests of what a replay of data/<name> reads."""
    return {f"data/{each}": _digest(paths.DATA / each) for each in (name, "cpu", "published")}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    files = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    for path in sorted(p for p in files if p.suffix != ".pyc" and p.name not in _NO_SOURCE):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def differing(wanted: dict[str, str], recording: str = "") -> list[str]:
    """Which parts of this worker's checkout are not those that were asked for."""
    here = sources() | (recorded(recording) if recording else {})
    return sorted(part for part, digest in wanted.items() if here.get(part) != digest)


def require_same(wanted: dict[str, str], recording: str = "") -> None:
    """RooflabError where this worker's checkout differs in what a task depends on."""
    if parts := differing(wanted, recording):
        raise RooflabError(
            f"its {' and '.join(parts)} differ from those of the machine that asks: bring both to one commit."
        )


# --- lessons ------------------------------------------------------------------------------------------------


def lesson(order: dict[str, Any]) -> dict[str, Any]:
    """Run one lesson in a folder of its own.

    `order`: name (of the notebook's file), notebook (its text), values, limit_s, label, live, wanted (see
    `require_same`), recording (the name of data/'s), parcel (of a recording that only the asking machine
    has). The answer: how it ended (fields of run.Outcome), the executed notebook's text, or "" where it has
    none, and a parcel with the rows that it measured.
    """
    from distributed import get_worker

    from rooflab.book import lessons, run
    from rooflab.records.store import Store

    require_same(order["wanted"], order["recording"])
    worker = get_worker()
    key = worker.get_current_task()

    def taken_back() -> bool:
        state = worker.state.tasks.get(key)
        return state is None or state.state == "cancelled"

    with tempfile.TemporaryDirectory(prefix="rooflab-", ignore_cleanup_errors=True) as scratch:
        notebook = Path(scratch) / "notebooks" / order["name"]
        notebook.parent.mkdir()
        notebook.write_text(order["notebook"], encoding="utf-8", newline="\n")
        values = dict(order["values"])
        if order["parcel"] is not None:
            values["DEVICE"] = str(parcels.unpack(order["parcel"], Path(scratch) / "data"))
        [found] = lessons.all_lessons(notebook.parent)
        output = Path(scratch) / "output" / order["name"]
        job = run.Job(found, output, values, order["limit_s"], order["label"])
        [outcome] = run.run([job], say=lambda line: None, stopped=taken_back)
        fresh, runs = None, set(str(outcome.counts.get("runs", "")).split())
        if order["live"] and runs:
            root = Path(os.environ.get("ROOFLAB_STORE") or paths.BUILD / "data")
            fresh = parcels.some(Store(root, gpu()), lambda table, case, of: of in runs)
        fields = ("ending", "seconds", "cell", "source", "message", "started", "counts")
        return {
            **{name: getattr(outcome, name) for name in fields},
            "notebook": output.read_text(encoding="utf-8") if output.is_file() else "",
            "parcel": fresh,
            "worker": worker.address,
        }


# --- recordings ---------------------------------------------------------------------------------------------


class _Child:
    """The process that measures for this worker, with one study at a time."""

    def __init__(self, key: tuple[str, str], opening: dict[str, Any]):
        self.key, self.opening = key, opening
        self.log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        library = str(LIBRARY.parent)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH", "")])),
            "PYTHONHASHSEED": "0",
        }
        self.process = subprocess.Popen(
            MEASURER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to an order, None from a process that had ended for want of one; RooflabError for an
        order that failed, or where the process died of it.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({**self.opening, **order}) + "\n")
            self.process.stdin.flush()
            self.opening = {}  # the first order alone carries what was recorded before
            line = self.process.stdout.readline()
        if not line and self.process.wait() == 0:
            return None
        if not line:
            self.log.seek(0)
            tail = " | ".join(self.log.read().splitlines()[-5:])
            raise RooflabError(f"the process that measures ended with {self.process.returncode}. {tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise RooflabError(answer["error"])
        return answer

    def end(self) -> None:
        with suppress(OSError):
            self.process.communicate(timeout=10)
        self.process.kill()
        self.log.close()


_child: _Child | None = None
_openings: dict[tuple[str, str], dict[str, Any]] = {}
_lock = threading.Lock()


def _ask(call: str, study: str, order: dict[str, Any]) -> dict[str, Any]:
    global _child
    from distributed import get_worker

    with _lock:
        while True:
            if _child is not None and (_child.key != (call, study) or not _child.alive):
                _child.end()
                _child = None
            if _child is None:
                _child = _Child((call, study), _openings[call, study])
            if (answer := _child.ask(order)) is not None:
                return answer | {"worker": get_worker().address}


def plan(call: str, opening: dict[str, Any], wanted: dict[str, str]) -> dict[str, Any]:
    """Begin a study on this worker: which groups and profiles are to be measured, and the worker's address.

    `call` names the recording that asks; `opening` has device, effort, command, study and the files of what
    was recorded before, which later orders of the same call and study are measured over.
    """
    require_same(wanted)
    for key in [key for key in _openings if key[0] != call]:
        del _openings[key]
    _openings[call, opening["study"]] = opening
    return _ask(call, opening["study"], {"do": "plan"})


def measure(call: str, study: str, cases: Iterable[str]) -> dict[str, Any]:
    """Measure one group of a study that was planned on this worker: skipped cases, and files with rows."""
    return _ask(call, study, {"do": "measure", "cases": list(cases)})


def profile(call: str, study: str, number: int) -> dict[str, Any]:
    """Take one profile of a study that was planned on this worker: its trouble, and files with rows."""
    return _ask(call, study, {"do": "profile", "profile": number})
