"""Let libraries compile what the first call of a shape compiles, in several processes at a time, before
anything is timed. A library keeps what it compiled on disk, where later processes find it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context

from rooflab import studies
from rooflab.bench import gate
from rooflab.lab.progress import Progress
from rooflab.paths import cache
from rooflab.records.case import Case
from rooflab.studies.base import Study
from rooflab.studies.estimates import first_call

_MEMORY_BYTES = 6 * 2**30  # of the GPU, that a process may need for a context, weights and copies


def keep_compiled() -> None:
    """Have libraries, and in processes that are started from now on Python, keep on disk what they compile,
    where they do so only if they are asked to.
    """
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    # Images often keep Python from writing bytecode beside its sources. Each process that a profiler watches
    # would then compile torch's anew.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(cache() / "bytecode"))


def processes() -> int:
    """How many first calls are made at a time."""
    return max(1, min(12, (os.cpu_count() or 1) - 2))


def beside(most: int, bytes_each: int) -> int:
    """How many processes, `most` at the most, the GPU's memory holds beside this one if each takes so much.
    Gives back what this process keeps of it without using it.
    """
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()
    return max(1, min(most, cupy.cuda.runtime.memGetInfo()[0] // bytes_each))


def warm_ahead(wanted: Iterable[tuple[Study, Case]], progress: Progress) -> None:
    """Launch each case once in a process of its own kind. One that fails is left to its measurement, which
    says why.
    """
    jobs = {(study.name, case.id): first_call(case)[0] for study, case in wanted}
    if len(jobs) < 2:
        return
    workers = beside(min(processes(), len(jobs)), _MEMORY_BYTES)
    keys = {job: ("first call", *job) for job in jobs}
    seconds = {keys[job]: each / workers for job, each in jobs.items()}
    with progress.over(seconds), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        # The longest first: one of them begun last would keep the other processes idle.
        running = {pool.submit(_launch, *job): job for job in sorted(jobs, key=lambda job: -jobs[job])}
        for done in as_completed(running):
            done.result()
            progress.at(f"first calls of libraries: {running[done][1]}")
            progress.done([keys[running[done]]])


def _launch(study: str, case: str) -> None:
    of = studies.get(study)
    with suppress(Exception):
        (work,) = of.contestants([of.case(case)])
        work.launch(0)
        gate.synchronize(work.outputs[0][0])
