"""Record studies into a store: every case and profile, alone or beside other processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress

from filelock import FileLock, Timeout

from rooflab import studies
from rooflab.errors import MissingTool, OutOfTime, UsageError
from rooflab.hardware import device as devices
from rooflab.lab.announcing import announce
from rooflab.lab.compiling import compile_ahead
from rooflab.lab.locks import claim, study_lock
from rooflab.lab.opening import open
from rooflab.lab.session import Lab
from rooflab.lab.warming import keep_compiled, processes, warm_ahead
from rooflab.ops import this_arch
from rooflab.studies.base import Study, require_gpu


def record(
    names: Iterable[str],
    effort: str = "full",
    say: Callable[[str], None] | None = None,
    seconds: float = math.inf,
) -> list[str]:
    """Measure every case and profile of the named studies or lessons ("01") into $ROOFLAB_STORE.

    Rows are kept as they are measured; what is fresh is not measured again. Once `seconds` have passed
    OutOfTime is raised between two comparisons. Returns one sentence per profile that could not be taken (a
    missing tool or permission), which a recording can live without. Processes on several GPUs may record into
    one store; UsageError for a study that another one is recording.
    """
    # `rooflab trace` records what depends on no GPU, on any machine.
    wanted = [study for study in studies_named(names) if not study.everywhere]
    lab = open("live", effort=effort, gpus=_gpus(wanted))
    lab.until = time.monotonic() + seconds
    if say is not None:
        lab.say = say
    if wanted:
        require_gpu()
    keep_compiled()
    with ExitStack() as claims:
        held = {}
        for study in wanted:
            held[study.name] = claim(lab.store, study.name)
            claims.callback(held[study.name].release)
        try:
            return _record(lab, wanted, held)
        finally:
            lab.close()


def _gpus(wanted: Sequence[Study]) -> int:
    """How many GPUs studies are recorded on: one, or for those that need several all that are here."""
    least = max((study.gpus for study in wanted), default=1)
    if least == 1:
        return 1
    if alone := [study.name for study in wanted if study.gpus == 1]:
        several = ", ".join(study.name for study in wanted if study.gpus > 1)
        raise UsageError(f"{several} has a recording of its own: record it without {', '.join(alone)}.")
    if (found := devices.count()) < least:
        raise UsageError(f"{wanted[0].name} measures {least} GPUs of one host or more, and here is {found}.")
    return found


def _record(lab: Lab, wanted: Sequence[Study], claims: Mapping[str, FileLock]) -> list[str]:
    troubles = []
    lab.start()
    cases = {study.name: lab.cases(study.name) for study in wanted}
    profiles = [(study, *each) for study in wanted for each in study.profiles(lab.effort, lab.sized)]
    # All of them first, for a study's own few would wait for the slowest with most cores idle.
    compile_ahead(
        [*((study, cases[study.name]) for study in wanted), *((of, some) for of, _, some, _ in profiles)],
        this_arch(),
        lab.progress,
    )
    expected = announce(
        lab,
        [(study, cases[study.name]) for study in wanted],
        [(study, profiled, tool, metrics) for study, tool, profiled, metrics in profiles],
        processes(),
    )
    first = expected.first
    with lab.progress.over(expected.parts):
        for study in wanted:
            # Not before a study needs it: by then what a library builds when it is installed may be there.
            if any(of is study for of, _ in first):
                warm_ahead(first, lab.progress)
                first = []
            _wait_for_others(lab, study)
            began = time.monotonic()
            lab.take_timings(study, cases[study.name])
            for tool, profiled, metrics in study.profiles(lab.effort, lab.sized):
                lab.require_time()
                try:
                    lab.take_profile(study.name, profiled, tool, metrics)
                    lab.say(f"{study.name} profile {tool}: {len(profiled)} cases")
                except MissingTool as error:
                    troubles.append(f"{study.name}, {tool}: {error}")
            lab.say(f"{study.name} took {time.monotonic() - began:.0f} s")
            claims[study.name].release()
    lab.rederive()  # for rows of a process that was killed before it could
    return troubles


def _wait_for_others(lab: Lab, study: Study) -> None:
    """Wait for what a study is predicted from, where another process records it just now; OutOfTime if that
    takes longer than there is, or ends before it is complete. Deadlock-free: every process takes studies in
    one order and releases each when it is done.
    """
    for name in study.after:
        theirs = study_lock(lab.store, name)
        try:
            theirs.acquire(timeout=0)
        except Timeout:
            lab.say(f"{study.name} waits for {name}, which another process records")
            left = lab.until - time.monotonic()
            with suppress(Timeout):
                theirs.acquire(timeout=max(0.0, left) if math.isfinite(left) else -1)
            if not theirs.is_locked or lab.lacks(studies.get(name)):
                raise OutOfTime(
                    f"{study.name} is predicted from {name}, which is not complete; "
                    "run the same command again to continue."
                ) from None
        finally:
            theirs.release()


def studies_named(names: Iterable[str]) -> Iterator[Study]:
    wanted = list(names)
    every = [*studies.names(), *studies.names(2)]
    for name in every:
        study = studies.get(name)
        if (not wanted and study.gpus == 1) or name in wanted or study.lesson in wanted:
            yield study
    known = {*every, *(studies.get(name).lesson for name in every)}
    for name in wanted:
        if name not in known:
            raise UsageError(f"There is no study or lesson {name!r}; there are {', '.join(sorted(known))}.")
