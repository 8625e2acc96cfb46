"""Run lessons with papermill into build/, each in its own process: progress, a time limit, failures that
explain themselves, and nothing left running whatever happens."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooflab import paths
from rooflab.book import executions, normal, parameters, rehearsal
from rooflab.book.execute import kill_tree
from rooflab.book.lessons import Lesson
from rooflab.errors import MissingTool
from rooflab.hardware import device
from rooflab.records.store import SURROUNDINGS, run_facts
from rooflab.studies.estimates import Estimate, slowest

OUTPUT = paths.BUILD / "notebooks"
LIMIT_MINUTES = {"replay": 10.0, "live": 180.0}
ENDINGS = {
    "ok": "ok",
    "partly": "partly",
    "failed": "FAILED",
    "died": "DIED",
    "stopped": "STOPPED",
    "late": "OVER TIME",
    "ended": "INTERRUPTED",
}
_SECONDS_PER_REPLAY = 4.0  # where it was never replayed: the course's median on two cores
_PROGRESS_EVERY_S = 1.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A lesson to run: where its executed notebook goes, the values its parameters take, and its limit."""

    lesson: Lesson
    output: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 600.0
    name: str = ""
    gpu: str = ""  # on a cluster: the resource that its worker must have

    @property
    def label(self) -> str:
        return self.name or self.lesson.stem


@dataclass(frozen=True)
class Outcome:
    """How a job ended: "ok", "partly" where the recording lacked cases of some cells, or the cell (counted
    from 1) it was at, that cell's source, and what was wrong.
    """

    job: Job
    ending: str
    seconds: float
    cell: int = 0
    source: str = ""
    message: str = ""
    started: str = ""
    counts: Mapping[str, Any] = field(default_factory=dict)  # see executions.counts

    @property
    def ok(self) -> bool:
        return self.ending == "ok"

    @property
    def done(self) -> bool:
        """Whether all cells ran, so that there is a page to show."""
        return self.ending in ("ok", "partly")

    def explanation(self) -> str:
        """What a user reads about a job that did not end well."""
        if self.done:
            return f"{self.job.label} is shown in part:\n{self.message}"
        lines = [
            f"{self.job.label} {ENDINGS[self.ending]} in cell {self.cell} of {self.job.lesson.path.name}"
        ]
        lines += ["  | " + line for line in self.source.splitlines()]
        lines += self.message.rstrip().splitlines()
        return "\n".join(lines)


class _Running:
    """A job's process, its events as they come, and the tail of its progress file."""

    def __init__(self, job: Job):
        self.job = job
        self.started, self.date = time.monotonic(), executions.now()
        self.at: dict[str, Any] = {"cell": 0, "source": ""}
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        job.output.parent.mkdir(parents=True, exist_ok=True)
        job.output.unlink(missing_ok=True)
        self.log = job.output.with_suffix(".log")
        self.progress = job.output.with_suffix(".progress")
        self.progress.write_text("")
        self.ledger = job.output.with_suffix(".ledger")
        self.ledger.unlink(missing_ok=True)
        self.read_to = 0
        self.told = 0.0
        library = str(Path(__file__).resolve().parents[2])
        environment = {
            **os.environ,
            "ROOFLAB_PROGRESS": str(self.progress.resolve()),
            "ROOFLAB_LEDGER": str(self.ledger.resolve()),
            "PYTHONPATH": os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH", "")])),
            "PYTHONHASHSEED": "0",
            "ROOFLAB_LESSON": job.lesson.stem,
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rooflab.book.execute"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal reaches this process alone
            )
        order = {
            "notebook": str(job.lesson.path.resolve()),
            "folder": str(job.lesson.path.resolve().parent),
            "output": str(job.output.resolve()),
            "values": dict(job.values),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put(None)

    def poll(self, say: Say) -> Outcome | None:
        """Pass on progress; the outcome once there is one."""
        self._tell(say)
        while True:
            try:
                event = self.events.get_nowait()
            except queue.Empty:
                break
            if event is None:
                self.process.wait()
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                return self._outcome("died", message=f"the runner's process ended early.\n{tail}")
            if event["event"] == "end":
                self.process.wait()
                self._tell(say, last=True)
                self.at = {"cell": event["cell"], "source": event["source"]}
                return self._outcome(event["ending"], event["message"])
            self.at = {"cell": event["cell"], "source": event["source"]}
        if time.monotonic() - self.started > self.job.limit_s:
            self.kill()
            minutes = f"{self.job.limit_s / 60:g}"
            return self._outcome(
                "late", message=f"the limit of {minutes} min a lesson was reached (--limit)."
            )
        return None

    def _tell(self, say: Say, last: bool = False) -> None:
        """Say the newest line of the progress file, at most one a second."""
        now = time.monotonic()
        if now - self.told < _PROGRESS_EVERY_S and not last:
            return
        try:
            with self.progress.open(errors="replace") as file:
                file.seek(self.read_to)
                lines = file.read()
                self.read_to = file.tell()
        except FileNotFoundError:  # another run of the same lesson has ended and cleaned up
            return
        if lines.strip():
            self.told = now
            say(f"{self.job.label}: {lines.strip().splitlines()[-1]}")

    def _outcome(self, ending: str, message: str = "") -> Outcome:
        seconds = time.monotonic() - self.started
        counts = executions.counts(self.ledger)
        self.progress.unlink(missing_ok=True)
        self.ledger.unlink(missing_ok=True)
        if ending in ("ok", "partly"):
            self.log.unlink(missing_ok=True)
        at = (self.at["cell"], self.at["source"])
        return Outcome(self.job, ending, seconds, *at, message, self.date, counts)

    def kill(self) -> None:
        """End the process, its kernel, and whatever the kernel started."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            kill_tree(psutil.Process(self.process.pid))
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM take the way of Ctrl-C, so that both end every kernel first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(
    jobs: Sequence[Job], parallel: int = 1, say: Say = print, stopped: Callable[[], bool] = lambda: False
) -> list[Outcome]:
    """Run the jobs, `parallel` at a time, and return their outcomes in the order given. A job that fails
    does not stop the others. KeyboardInterrupt, also once `stopped` says so, passes through when every
    kernel has ended."""
    waiting = deque(enumerate(jobs))
    running: dict[int, _Running] = {}
    outcomes: dict[int, Outcome] = {}
    with _terminated_like_interrupted():
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    index, job = waiting.popleft()
                    say(f"{job.label}: running ({index + 1} of {len(jobs)})")
                    running[index] = _Running(job)
                for index, process in list(running.items()):
                    outcome = process.poll(say)
                    if outcome is not None:
                        del running[index]
                        outcomes[index] = outcome
                        say(f"{outcome.job.label}: {ENDINGS[outcome.ending]} after {outcome.seconds:.1f} s")
                        if not outcome.ok:
                            say(outcome.explanation())
                if stopped():
                    raise KeyboardInterrupt
                time.sleep(0.05)
        finally:
            for process in running.values():
                process.kill()
    return [outcomes[index] for index in range(len(jobs))]


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table of what ran: name, how it ended, how long it took, where the executed notebook is."""
    rows = [("lesson", "result", "time", "notebook")]
    for outcome in outcomes:
        output = outcome.job.output
        where = output.relative_to(paths.ROOT) if output.is_relative_to(paths.ROOT) else output
        rows.append((outcome.job.label, ENDINGS[outcome.ending], f"{outcome.seconds:.1f} s", str(where)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def is_live(mode: str | None) -> bool:
    """Whether notebooks will measure here, by the same precedence as lab.open."""
    for asked in (mode, os.environ.get("ROOFLAB_MODE")):
        if asked in ("live", "replay"):
            return asked == "live"
    return device.has_gpu()


def plan(
    lessons: Sequence[Lesson],
    given: Mapping[str, Any],
    limit_minutes: float | None = None,
    output: Path | None = None,
    prefix: str = "",
    elsewhere: bool = False,
) -> list[Job]:
    """Jobs for the lessons with every value checked against the parameters cells; nothing is started. Raises
    UsageError for a value, MissingTool for a live run without a GPU, unless they run `elsewhere`."""
    values = parameters.assign(lessons, given)
    if (
        not elsewhere
        and any(named.get("MODE") == "live" for named in values.values())
        and not device.has_gpu()
    ):
        raise MissingTool("mode live needs an NVIDIA GPU with a working driver; mode replay needs none.")
    kind = "live" if is_live(given.get("MODE")) else "replay"
    limit_s = 60 * (LIMIT_MINUTES[kind] if limit_minutes is None else limit_minutes)
    folder = output or OUTPUT
    return [
        Job(lesson, folder / lesson.path.name, values[lesson.stem], limit_s, f"{prefix}{lesson.stem}")
        for lesson in lessons
    ]


def other_efforts(jobs: Sequence[Job]) -> set[tuple[str, str]]:
    """(recording, its effort) of the jobs that replay one with another effort than asked for."""
    found = set()
    for job in jobs:
        if "EFFORT" in job.values and not is_live(job.values.get("MODE")):
            store = parameters.store_of(job.values.get("DEVICE", "h200"))
            if store.effort not in ("", job.values["EFFORT"]):
                found.add((store.device, store.effort))
    return found


def estimate(jobs: Sequence[Job], parallel: int = 1, say: Say = print) -> Estimate | None:
    """What the jobs will take: what they measure, and their pages as the last replay on this machine. None
    where that cannot be told.
    """
    live = [job for job in jobs if is_live(job.values.get("MODE"))]
    found = Estimate(slowest())
    if live:
        counted = rehearsal.ask([(job.lesson.path, job.values) for job in live], _record_of(True), say)
        if counted is None:
            return None
        found = counted
    past = _durations()
    found.pages = sum(past.get(job.lesson.stem, _SECONDS_PER_REPLAY) for job in jobs) / parallel
    return found


def _durations() -> dict[str, float]:
    try:
        return json.loads((OUTPUT / "durations.json").read_text())
    except (OSError, ValueError):
        return {}


def _record_of(live: bool) -> Path:
    """The folder whose record of executions a lesson's run goes into."""
    if not live:
        return OUTPUT
    facts = device.probe() or {}
    root = Path(os.environ.get("ROOFLAB_STORE") or paths.BUILD / "data")
    return root / device.slug(facts.get("gpu", ""))


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """The jobs but those whose last execution ended well, with the same cells and values, the same GPU,
    libraries and commit, and left its notebook."""
    facts = run_facts("", "")
    if facts.get("commit", "+").endswith("+"):
        return list(jobs)  # who knows what was edited since
    found = []
    for job in jobs:
        live = is_live(job.values.get("MODE"))
        names = SURROUNDINGS if live else ("python", "commit")
        source = executions.source_of(job.lesson.path, job.values)
        if not executions.done(_record_of(live), job.lesson.stem, source, job.output, facts, names):
            found.append(job)
    return found


def _execution(outcome: Outcome, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the record of executions."""
    job, live = outcome.job, is_live(outcome.job.values.get("MODE"))
    kept = SURROUNDINGS + ("cuda",) if live else ("commit",)
    return {
        **{name: facts.get(name) for name in (*kept, "python", "os") if name in executions.SCHEMA},
        **outcome.counts,
        "lesson": job.lesson.stem,
        "mode": "live" if live else "replay",
        "effort": job.values.get("EFFORT") or os.environ.get("ROOFLAB_EFFORT") or "full",
        "device": _record_of(live).name if live else Path(str(job.values.get("DEVICE", "h200"))).name,
        "ending": outcome.ending,
        "started": outcome.started,
        "seconds": outcome.seconds,
        "source": executions.source_of(job.lesson.path, job.values),
        "cells": sum(cell.cell_type == "code" for cell in normal.read(job.lesson.path).cells),
    }


def remember(outcomes: Sequence[Outcome]) -> None:
    """Keep how the lessons of the series ran, as the record of executions, and the durations of good replays
    for the next estimate. What ran into another folder, as a batch does, is no execution of the series.
    """
    facts = run_facts("", "")
    for live in (False, True):
        mine = [o for o in outcomes if is_live(o.job.values.get("MODE")) == live]
        rows = [_execution(o, facts) for o in mine if o.job.output.parent == OUTPUT]
        if rows:
            executions.keep(_record_of(live), rows)
    kept = _durations()
    kept.update(
        {
            o.job.lesson.stem: round(o.seconds, 1)
            for o in outcomes
            if o.ok and not is_live(o.job.values.get("MODE"))
        }
    )
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "durations.json").write_text(json.dumps(kept, indent=1))
