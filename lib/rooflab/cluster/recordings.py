"""`rooflab record --scheduler`: every GPU of a fleet gives its own recording, a group of cases a task.

A study is planned on one worker and measured there, so that its times are of one GPU. Where that worker goes,
what came back stays and the rest is planned on another worker with such a GPU.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooflab.cluster import GPU, Answer, Cluster, Task, connected, parcels, workers
from rooflab.errors import OutOfTime, RooflabError, UsageError
from rooflab.hardware import device
from rooflab.lab.locks import claim
from rooflab.lab.recording import studies_named
from rooflab.records.store import Store
from rooflab.studies.base import Study

_LOSSES = 3  # workers that may go, one after the other, before anything of a study came back
_MOST = 100_000  # tasks of a study: all of an earlier study rank before those of a later one
Say = Callable[[str], None]


def record(
    address: str,
    names: Iterable[str],
    root: Path,
    effort: str = "full",
    gpus: Sequence[str] = (),
    command: str = "rooflab record",
    say: Say = print,
    seconds: float = math.inf,
) -> list[str]:
    """Measure every case and profile of the named studies or lessons on the cluster at `address`, for each
    kind of GPU there (or those of `gpus`, resources of workers) into `root`/<device>.

    Rows are kept as they come; what is fresh is not measured again. Once `seconds` have passed OutOfTime is
    raised. Returns one sentence per profile that could not be taken. RooflabError where the cluster or a
    group failed, UsageError for a study that another process records.
    """
    until = time.monotonic() + seconds
    wanted = [study for study in studies_named(names) if not study.everywhere]
    if several := [study.name for study in wanted if study.gpus > 1]:
        raise UsageError(
            f"{', '.join(several)} measures several GPUs of one host: record it there, without --scheduler."
        )
    with connected(address) as cluster, ExitStack() as claims:
        fleet = kinds(cluster, gpus)
        cluster.require_same(workers.differing, workers.sources())
        found = [
            _Recording(cluster, resource, Store(root, slug), wanted, effort, command, say)
            for slug, resource in fleet.items()
        ]
        for one in found:
            for study in wanted:
                claims.callback(claim(one.store, study.name).release)
        say(f"{address}: {', '.join(fleet)}. {cluster.dashboard}".rstrip(". "))
        try:
            for one in found:
                one.go_on()
            for answer in cluster.answers(until):
                answer.task.owner.took(answer)
            if time.monotonic() >= until:
                raise OutOfTime(
                    "the time is up; what came back is kept; run the same command again to continue."
                )
        finally:
            cluster.drop()
            for one in found:
                one.close()
    failures = [sentence for one in found for sentence in one.failures]
    if failures:
        more = f" (and {len(failures) - 1} more, above)" if len(failures) > 1 else ""
        raise RooflabError(f"{failures[0]}{more} What was measured is kept.")
    return [sentence for one in found for sentence in one.troubles]


def kinds(cluster: Cluster, gpus: Sequence[str] = ()) -> dict[str, str]:
    """The recordings that a fleet gives: device -> the resource of its workers. Workers name their GPU by a
    resource, as in `h200=1`; where all GPUs are of one kind `GPU=1` is enough.
    """
    if gpus:
        for name in gpus:
            cluster.require(name)
        if GPU in gpus:
            raise UsageError("--gpu names a GPU such as rtx-4090, which is a resource of its workers.")
        return {name: name for name in gpus}
    known = set(device.names())
    held = {worker: set(facts["resources"]) for worker, facts in cluster.workers().items()}
    named = set().union(*held.values()) & known
    unnamed = {worker for worker, names in held.items() if GPU in names and not names & known}
    if not named:
        cluster.require(GPU)
    slugs = {worker: name for worker, name in cluster.ask(workers.gpu).items() if worker in unnamed}
    for worker, slug in slugs.items():
        if not slug:
            raise RooflabError(f"worker {worker} has the resource GPU and no GPU that answers.")
        if named or len(set(slugs.values())) > 1:
            raise RooflabError(
                f"the GPUs of {cluster.address} are of several kinds, and worker {worker} does not name its "
                f"own: start it with --resources 'GPU=1 {slug}=1'."
            )
    return {name: name for name in sorted(named)} or {slug: GPU for slug in slugs.values()}


@dataclass
class _Progress:
    """How far a study is: its tasks that are out, and how many of how many ended."""

    out: set[Task] = field(default_factory=set)
    done: int = 0
    total: int = 0
    losses: int = 0
    began: float = field(default_factory=time.monotonic)


class _Recording:
    """The recording of one kind of GPU, while it grows."""

    def __init__(
        self,
        cluster: Cluster,
        resource: str,
        store: Store,
        wanted: Sequence[Study],
        effort: str,
        command: str,
        say: Say,
    ):
        self.cluster, self.resource, self.store, self.say = cluster, resource, store, say
        self.effort, self.command, self.call = effort, command, uuid.uuid4().hex
        self.waiting = {study.name: study for study in wanted}
        self.rank = {study.name: -_MOST * number for number, study in enumerate(wanted)}
        self.under_way: dict[str, _Progress] = {}
        self.begun: dict[tuple[str, ...], str] = {}
        self.troubles: list[str] = []
        self.failures: list[str] = []

    def go_on(self) -> None:
        """Plan the studies of which all that they are predicted from is done."""
        for name, study in list(self.waiting.items()):
            if not any(other in self.waiting or other in self.under_way for other in study.after):
                del self.waiting[name]
                self.under_way[name] = _Progress()
                self._plan(name)

    def _submit(
        self, study: str, label: str, call: Callable[..., Any], arguments: tuple[Any, ...], worker: str = ""
    ) -> None:
        task = Task(
            f"{self.store.device} {study} {label}",
            call,
            arguments,
            self.resource,
            worker,
            self.rank[study] - len(self.under_way[study].out),
            _Owner(self, study),
        )
        self.under_way[study].out.add(task)
        self.cluster.submit(task)

    def _plan(self, study: str) -> None:
        opening = {
            "device": self.store.device,
            "effort": self.effort,
            "command": self.command,
            "study": study,
            "files": parcels.whole(self.store.folder).files,
        }
        self._submit(study, "plan", workers.plan, (self.call, opening, workers.sources()))

    def took(self, study: str, answer: Answer) -> None:
        """Keep what came back, say so in a line, and submit what follows from it."""
        progress = self.under_way.get(study)
        if progress is None or answer.task not in progress.out:
            return
        progress.out.discard(answer.task)
        if answer.lost:
            self._lost(study, progress, answer.task)
        elif answer.error:
            self._failed(study, progress, answer)
        elif answer.task.call is workers.plan:
            self._planned(study, progress, answer.value)
        else:
            self._measured(study, progress, answer)
        if study in self.under_way and not progress.out:
            self._end(study, progress)

    def _planned(self, study: str, progress: _Progress, plan: dict[str, Any]) -> None:
        groups, profiles, worker = plan["groups"], plan["profiles"], plan["worker"]
        progress.total = progress.done + len(groups) + len(profiles)
        for cases in groups:
            self._submit(study, cases[0], workers.measure, (self.call, study, cases), worker)
        for number, tool in profiles:
            self._submit(study, f"by {tool}", workers.profile, (self.call, study, number), worker)

    def _measured(self, study: str, progress: _Progress, answer: Answer) -> None:
        value = answer.value
        parcel = parcels.Parcel(self.store.device, value["files"])
        parcels.merge(parcel, self.store.root, self.begun, value["worker"])
        progress.done, progress.losses = progress.done + 1, 0
        self.say(f"{answer.task.label}: {progress.done}/{progress.total} on {value['worker']}")
        for case, reason in value.get("skipped", {}).items():
            self.say(f"{self.store.device} {study} skipped {case}: {reason}")
        if value.get("trouble"):
            self.troubles.append(f"{answer.task.label}: {value['trouble']}")

    def _failed(self, study: str, progress: _Progress, answer: Answer) -> None:
        self.failures.append(f"{answer.task.label} failed: {answer.error}")
        self.say(self.failures[-1])

    def _lost(self, study: str, progress: _Progress, task: Task) -> None:
        """Plan a study again whose worker is gone: what had come back by then is not planned."""
        self.cluster.drop(lambda other: other in progress.out)
        progress.out.clear()
        progress.losses += 1
        if progress.losses > _LOSSES:
            self.failures.append(f"{task.label} failed: {progress.losses} workers went while they had it.")
            self.say(self.failures[-1])
            return
        self.say(f"{self.store.device} {study}: worker {task.worker} is gone, so the rest goes to another")
        self._plan(study)

    def _end(self, study: str, progress: _Progress) -> None:
        del self.under_way[study]
        if progress.done:
            parcels.rederive(self.store)
        took = time.monotonic() - progress.began
        self.say(f"{self.store.device} {study}: {progress.done} of {progress.total} tasks, {took:.0f} s")
        self.go_on()

    def close(self) -> None:
        """Leave a recording whose shares of roofs are right, also of studies that were cut off."""
        if self.begun:
            parcels.rederive(self.store)


@dataclass(frozen=True)
class _Owner:
    """Whom an answer is for."""

    recording: _Recording
    study: str

    def took(self, answer: Answer) -> None:
        self.recording.took(self.study, answer)
