"""Locks between processes: one measures on a GPU, one compiles, one records a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from rooflab import paths
from rooflab.errors import UsageError
from rooflab.hardware import device as devices
from rooflab.records.store import Store


@contextmanager
def alone() -> Iterator[None]:
    """Keep every other process of this checkout from measuring on this GPU meanwhile. Processes may measure
    on other GPUs at the same time, which does not disturb this GPU's clock. Waits until nothing compiles,
    as that takes all cores.
    """
    with compiling():
        pass
    with FileLock(paths.BUILD / f"measuring-{devices.uuid() or 'none'}.lock"):
        yield


def compiling() -> FileLock:
    """The lock, not yet taken, of compiling on all cores."""
    paths.BUILD.mkdir(parents=True, exist_ok=True)
    return FileLock(paths.BUILD / "compiling.lock")


def study_lock(store: Store, study: str) -> FileLock:
    """The lock, not yet taken, of recording a study into a store."""
    store.folder.mkdir(parents=True, exist_ok=True)
    return FileLock(store.folder / f".{study}.lock")


def claim(store: Store, study: str) -> FileLock:
    """Take a study for this process to record: two that measure it would do so twice."""
    mine = study_lock(store, study)
    try:
        mine.acquire(timeout=1)  # a process that only tests the lock holds it for a moment
    except Timeout:
        raise UsageError(
            f"Another process records {study} into {store.folder} already: name other studies for this one."
        ) from None
    return mine
