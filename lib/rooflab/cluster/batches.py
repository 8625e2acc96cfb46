"""`rooflab batch --scheduler`: the lessons of a batch as tasks of a cluster, each of which runs once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooflab.book import executions, parameters, run
from rooflab.cluster import GPU, Answer, Cluster, Task, connected, parcels, workers
from rooflab.records.csv_table import write_atomically

_KEPT = "rooflab"  # in an executed notebook's metadata: what it is the output of, and how it ended


def run_all(
    address: str, jobs: Sequence[run.Job], root: Path, say: Callable[[str], None]
) -> list[run.Outcome]:
    """Run the jobs on the cluster at `address` and return their outcomes in the order given.

    A job whose output is there already, of the same cells, values, sources and recording, does not run
    again. Rows that live lessons measured go into `root`/<device>. RooflabError for a cluster that cannot
    run them; what came back until then is kept.
    """
    jobs = [_settled(job) for job in jobs]
    keys = {job.output: _key(job) for job in jobs}
    outcomes = {job.output: kept for job in jobs if (kept := _kept(job, keys[job.output]))}
    left = [job for job in jobs if job.output not in outcomes]
    if outcomes:
        say(f"{len(outcomes)} of {len(jobs)} lessons have run already, on these sources and values")
    if left:
        with connected(address) as cluster:
            for outcome in _run(cluster, left, keys, root, say):
                outcomes[outcome.job.output] = outcome
    return [outcomes[job.output] for job in jobs]


def _settled(job: run.Job) -> run.Job:
    """A job that measures or replays wherever it runs, whether or not that worker has a GPU."""
    if "MODE" not in {parameter.name for parameter in parameters.of(job.lesson)}:
        return job
    live = run.is_live(job.values.get("MODE"))
    return replace(job, values={**job.values, "MODE": "live" if live else "replay"})


def _live(job: run.Job) -> bool:
    return job.values.get("MODE") == "live"


def _device(job: run.Job) -> str:
    """The recording that a replay reads: a name of data/'s, or a path of this machine's."""
    defaults = {parameter.name: parameter.default for parameter in parameters.of(job.lesson)}
    return "cpu" if _live(job) else str(job.values.get("DEVICE") or defaults.get("DEVICE") or "cpu")


def _wanted(job: run.Job) -> dict[str, str]:
    """Digests of what a worker's checkout must have as this one has it."""
    device = _device(job)
    return workers.sources() | workers.recorded("cpu" if Path(device).is_absolute() else device)


def _key(job: run.Job) -> str:
    """What tells a job's output from any other: cells, values, sources, and the recording that it reads."""
    device = Path(_device(job))
    sent = parcels.whole(device).files if device.is_absolute() else {}
    parts = [executions.source_of(job.lesson.path, job.values), _wanted(job), sent]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _kept(job: run.Job, key: str) -> run.Outcome | None:
    """The outcome of a job whose output is there; None where it is another's, or no whole notebook."""
    try:
        held = json.loads(job.output.read_text(encoding="utf-8"))["metadata"][_KEPT]
        if held["key"] == key:
            return run.Outcome(job, held["ending"], float(held["seconds"]), message=held["message"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _run(
    cluster: Cluster, jobs: Sequence[run.Job], keys: dict[Path, str], root: Path, say: Callable[[str], None]
) -> list[run.Outcome]:
    found = cluster.workers()
    say(f"{cluster.address}: {len(found)} worker{'s' * (len(found) != 1)}. {cluster.dashboard}".rstrip(". "))
    resources = {job.output: job.gpu or GPU * _live(job) for job in jobs}
    for resource in sorted(set(resources.values()) - {""}):
        cluster.require(resource)
    cluster.require_same(workers.differing, workers.sources())
    sent: dict[str, parcels.Parcel] = {}
    for job in jobs:
        cluster.submit(
            Task(job.label, workers.lesson, (_order(job, sent),), resources[job.output], owner=job)
        )
    outcomes: list[run.Outcome] = []
    begun: dict[tuple[str, ...], str] = {}
    try:
        for answer in cluster.answers():
            outcomes.append(_outcome(answer, keys, root, begun))
            job, told = answer.task.owner, outcomes[-1]
            how = f"{run.ENDINGS[told.ending]} after {told.seconds:.1f} s"
            where = f" on {answer.value['worker']}" if answer.value else ""
            say(f"{len(outcomes)}/{len(jobs)} {job.label}: {how}{where}")
            if not told.ok:
                say(told.explanation())
    finally:
        cluster.drop()
    return outcomes


def _order(job: run.Job, sent: dict[str, parcels.Parcel]) -> dict[str, Any]:
    """What workers.lesson takes."""
    device = _device(job)
    if Path(device).is_absolute() and device not in sent:
        sent[device] = parcels.whole(Path(device))
    return {
        "name": job.lesson.path.name,
        "notebook": job.lesson.path.read_text(encoding="utf-8"),
        "values": dict(job.values),
        "limit_s": job.limit_s,
        "label": job.label,
        "live": _live(job),
        "wanted": _wanted(job),
        "recording": "cpu" if Path(device).is_absolute() else device,
        "parcel": sent.get(device),
    }


def _outcome(
    answer: Answer, keys: dict[Path, str], root: Path, begun: dict[tuple[str, ...], str]
) -> run.Outcome:
    """The outcome of an answer, once the notebook and the rows that came with it are on the disk."""
    job: run.Job = answer.task.owner
    if answer.value is None:
        return run.Outcome(job, "failed", 0.0, message=answer.error)
    value = dict(answer.value)
    text, parcel, worker = (value.pop(name) for name in ("notebook", "parcel", "worker"))
    outcome = run.Outcome(job, **value)
    if parcel is not None:
        parcels.rederive(parcels.merge(parcel, root, begun, worker))
    job.output.unlink(missing_ok=True)
    if text:
        notebook = json.loads(text)
        if outcome.done:
            notebook["metadata"][_KEPT] = {
                "key": keys[job.output],
                "ending": outcome.ending,
                "seconds": round(outcome.seconds, 1),
                "message": outcome.message,
            }
        job.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(job.output, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return outcome
