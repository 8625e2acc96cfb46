"""Batches and recordings on a cluster, by Dask distributed (the optional set `cluster`).

A task runs in a Dask worker, one worker a GPU, and answers with texts, so that machines share no disk. What
came back is on this machine's disk at once; a call that was cut off continues from there.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from rooflab import paths
from rooflab.errors import MissingTool, RooflabError, UsageError
from rooflab.hardware import device

GPU = "GPU"  # the resource that a worker with a GPU declares
CONNECT_S = 10.0  # to reach a scheduler, and for a first worker to join it
FETCH_S = 30.0  # to fetch a value that a worker holds
LOOK_S = 1.0  # between two looks at the cluster while nothing ends
ABSENT_S = 60.0  # how long there may be no worker for what is left: a worker that restarts takes seconds
_ADDRESS = re.compile(r"(?:tcp|tls|ws|wss)://(?:[\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}/?|local:[1-9]\d{0,3}")
_AGAIN = "What came back is kept: give the same command again to continue."


@dataclass(frozen=True, eq=False)
class Task:
    """A call for a worker: what it is called in progress lines, the function with its arguments, the resource
    that a worker must have, the address of the one worker that may take it, and what ranks first (higher).
    """

    label: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    resource: str = ""
    worker: str = ""
    rank: int = 0
    owner: Any = None


@dataclass(frozen=True)
class Answer:
    """What became of a task: its value, or the sentence that says why there is none; `lost` where the one
    worker that might take it is gone.
    """

    task: Task
    value: Any = None
    error: str = ""
    lost: bool = False


def checked(address: str) -> str:
    """A scheduler's address as `--scheduler` takes it; UsageError for anything else."""
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"--scheduler is the address of a Dask scheduler, such as tcp://head:8786, or local:N for N "
            f"workers on this machine, not {address!r}."
        )
    return address


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The cluster of the scheduler at `address`; `local:N` starts one with N workers on this machine.

    Raises UsageError for what is no address, MissingTool where Dask distributed is not installed, and
    RooflabError where no scheduler answers or no worker has joined it.
    """
    checked(address)
    try:
        import logging

        import distributed
    except ImportError:
        raise MissingTool(
            "--scheduler needs Dask distributed, which is not installed: "
            "pip install -r requirements-cluster.txt."
        ) from None
    for name in (
        "distributed",
        *(name for name in logging.root.manager.loggerDict if "distributed." in name),
    ):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said in a sentence
    started = _local(int(address.removeprefix("local:"))) if address.startswith("local:") else None
    client = None
    try:
        try:
            client = distributed.Client(started or address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise RooflabError(
                f"no Dask scheduler answers at {address}: {reason}.".replace("..", ".")
            ) from None
        found = Cluster(client, address)
        found.await_workers()
        yield found
    finally:
        with suppress(Exception):  # a scheduler that is gone needs no goodbye
            if client is not None:
                client.close(timeout=5)
        with suppress(Exception):
            if started is not None:
                started.close(timeout=10)


def _local(count: int) -> Any:
    """A scheduler and workers of this machine, as long as this process lives: the first of them have a GPU
    each, as far as there are GPUs.
    """
    import logging
    from importlib.util import find_spec

    import distributed

    workers: dict[int, Any] = {}
    gpus = device.every()
    common: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "dashboard_address": None}
    common |= {"silence_logs": logging.CRITICAL, "local_directory": str(paths.BUILD / "dask")}
    for number in range(count):
        options = dict(common)
        if number < len(gpus):
            visible, name = gpus[number]
            options["env"] = {"CUDA_VISIBLE_DEVICES": visible}
            options["resources"] = {GPU: 1, device.slug(name): 1}
        workers[number] = {"cls": distributed.Nanny, "options": options}
    dashboard = "127.0.0.1:0" if find_spec("bokeh") else None
    scheduler = {"host": "127.0.0.1", "dashboard_address": dashboard}
    return distributed.SpecCluster(
        workers=workers,
        scheduler={"cls": distributed.Scheduler, "options": scheduler},
        silence_logs=logging.CRITICAL,
    )


@dataclass
class Cluster:
    """A connected scheduler: its workers, and the tasks that this process gave it."""

    client: Any
    address: str
    _left: dict[str, tuple[Task, Any]] = field(default_factory=dict)  # by the future's key, with the future
    _ended: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    _absent_since: float | None = None

    @property
    def dashboard(self) -> str:
        """Where Dask's dashboard is, or "" where the scheduler has none."""
        with suppress(Exception):
            return str(self.client.dashboard_link or "")
        return ""

    def workers(self) -> dict[str, dict[str, Any]]:
        """What the scheduler says of each worker by its address; RooflabError if it is gone."""
        try:
            if self.client.status == "running":
                return dict(self.client.scheduler_info(n_workers=-1)["workers"])
        except Exception:  # each transport has its own errors, and all say the same
            pass
        raise RooflabError(f"the Dask scheduler at {self.address} is gone. {_AGAIN}")

    def await_workers(self) -> None:
        """Give the first worker some seconds to join; RooflabError if none does."""
        until = time.monotonic() + CONNECT_S
        while not self.workers():
            if time.monotonic() > until:
                raise RooflabError(
                    f"no worker has joined the Dask scheduler at {self.address}: start one with "
                    f"`dask worker {self.address}`."
                )
            time.sleep(0.1)

    def require(self, resource: str) -> None:
        """RooflabError where no worker has the resource."""
        held: set[str] = set()
        for worker in self.workers().values():
            held.update(worker["resources"])
        if resource not in held:
            if self.address.startswith("local:"):
                raise RooflabError(
                    f"no worker of {self.address} has the resource {resource}: they have one for each "
                    "GPU that the CUDA driver offers here; `rooflab doctor` says what it finds."
                )
            given = f"GPU=1 {resource}=1" if resource != GPU else "GPU=1"
            others = f" (workers have {', '.join(sorted(held))})" if held else ""
            raise RooflabError(
                f"no worker of {self.address} has the resource {resource}{others}: start one with "
                f"`dask worker {self.address} --nthreads 1 --resources '{given}'`."
            )

    def ask(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """The answers of all workers, by address; RooflabError where one cannot answer."""
        try:
            found = self.client.run(call, *arguments, on_error="return")
        except Exception as error:
            self.workers()
            raise RooflabError(f"the workers of {self.address} do not answer: {explained(error)}") from None
        for address, value in found.items():
            if isinstance(value, Exception):
                raise RooflabError(f"worker {address}: {explained(value)}")
        return found

    def require_same(self, differing: Callable[..., list[str]], wanted: dict[str, str]) -> None:
        """RooflabError where a worker's checkout is not this machine's: `differing(wanted)`, called there,
        names the parts.
        """
        for worker, parts in self.ask(differing, wanted).items():
            if parts:
                raise RooflabError(
                    f"worker {worker} has another {' and '.join(parts)} than this machine: bring both to one "
                    "commit, and start the worker anew."
                )

    def submit(self, task: Task) -> None:
        """Give a task to the cluster; `answers` brings what becomes of it."""
        future = self.client.submit(
            task.call,
            *task.arguments,
            key=f"rooflab {task.label} {uuid.uuid4().hex}",
            resources={task.resource: 1} if task.resource else None,
            workers=[task.worker] if task.worker else None,
            priority=task.rank,
            retries=0,
            pure=False,
        )
        self._left[future.key] = (task, future)
        future.add_done_callback(self._ended.put)

    def answers(self, until: float = float("inf")) -> Iterator[Answer]:
        """What becomes of each task, in the order in which they end, until none is left or the time (of
        time.monotonic) is up; tasks may be added meanwhile. RooflabError where the scheduler is gone, or no
        worker has been there for a minute for any task that is left.
        """
        looked = time.monotonic()
        while self._left and time.monotonic() < until:
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                yield from self._lost()
            with suppress(Empty):
                ended = self._left.get(self._ended.get(timeout=LOOK_S).key)
                if ended is not None and (answer := self._answer(*ended)) is not None:
                    yield answer

    def _answer(self, task: Task, future: Any) -> Answer | None:
        """What became of a task that ended; None where its value went with its worker before it was here, so
        that Dask runs it once more.
        """
        try:
            if future.status == "error":
                answer = Answer(task, error=explained(future.exception(timeout=FETCH_S)))
            else:
                answer = Answer(task, future.result(timeout=FETCH_S))
        except Exception:  # of a transport, each of which has its own
            self.workers()
            if future.status != "cancelled":
                future.add_done_callback(self._ended.put)
                return None
            answer = Answer(task, error="the scheduler dropped it.")
        del self._left[future.key]
        future.release()
        return answer

    def _lost(self) -> Iterator[Answer]:
        """The tasks whose one worker is gone, taken back."""
        workers = self.workers()
        gone = [task for task, _ in self._left.values() if task.worker and task.worker not in workers]
        self.drop(lambda task: task in gone)
        for task in gone:
            yield Answer(task, lost=True)
        held = {name for worker in workers.values() for name in worker["resources"]}
        if not self._left or any(workers and task.resource in {"", *held} for task, _ in self._left.values()):
            self._absent_since = None
            return
        self._absent_since = self._absent_since or time.monotonic()
        if time.monotonic() - self._absent_since > ABSENT_S:
            wanted = sorted({task.resource for task, _ in self._left.values()} - {""})
            of = f" with the resource {' or '.join(wanted)}" if wanted else ""
            raise RooflabError(
                f"no worker{of} has been at {self.address} for {ABSENT_S:.0f} s; {len(self._left)} tasks are "
                f"left. {_AGAIN}"
            )

    def drop(self, which: Callable[[Task], bool] = lambda task: True) -> None:
        """Take back the tasks that have not ended and that `which` chooses."""
        chosen = [future for task, future in self._left.values() if which(task)]
        for future in chosen:
            del self._left[future.key]
        with suppress(Exception):  # those of a scheduler that is gone are gone
            if chosen:
                self.client.cancel(chosen, force=True)


def explained(error: BaseException | None) -> str:
    """A sentence of why a task has no value, from the exception that Dask hands over."""
    text = " ".join(str(error).split())
    if isinstance(error, RooflabError):
        return text
    if type(error).__name__ == "KilledWorker":
        return f"{1 + int(getattr(error, 'allowed_failures', 3))} workers died while they had it."
    if isinstance(error, ImportError) or "deserializ" in text:
        return (
            f"it cannot load rooflab as it is here ({text[:200]}): install this very checkout there, "
            "`pip install -r requirements-cluster.txt -e .`."
        )
    return f"{type(error).__name__}: {text[:500]}"
