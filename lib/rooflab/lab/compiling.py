"""Compile what studies launch before it is timed, on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import chain, repeat
from multiprocessing import get_context

from rooflab.errors import RooflabError
from rooflab.lab.locks import compiling
from rooflab.lab.progress import Progress
from rooflab.ops import Rung
from rooflab.records.case import Case
from rooflab.runtime.nvrtc import in_cache, whole_source
from rooflab.studies.base import Study

_CHARACTERS_A_SECOND = 1e5  # that NVRTC compiles, in one process


def compile_ahead(
    asked: Iterable[tuple[Study, Sequence[Case]]], arch: str | None, progress: Progress
) -> None:
    """Compile what studies' cases launch, on all cores: NVRTC takes one source at a time in a process."""
    wanted = {}
    builds = (
        study.builds(case)
        for study, cases in asked
        for case in cases
        if arch and not study.why_not(case, arch)
    )
    for rung, chosen in chain.from_iterable(builds):
        macros = rung.with_defaults(chosen)
        wanted[rung.operator, rung.name, tuple(sorted(macros.items()))] = (rung, macros)

    def missing() -> list[tuple[Rung, Mapping[str, int]]]:
        return [
            (rung, macros)
            for rung, macros in wanted.values()
            if not in_cache(rung.path.read_text(), rung.arch_for(str(arch)), macros)
        ]

    if len(missing()) < 4:
        return
    with compiling():
        left = missing()  # fewer, if another process compiled meanwhile
        # The longest sources first: one of them begun last would keep the other cores idle.
        lengths = {_name(build): len(whole_source(build[0].path)) for build in left}
        left.sort(key=lambda build: -lengths[_name(build)])
        workers = min(os.cpu_count() or 1, len(left) // 2)
        if workers > 1:
            seconds = {name: length / _CHARACTERS_A_SECOND / workers for name, length in lengths.items()}
            with (
                progress.over(seconds),
                ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
            ):
                done = pool.map(_compiled, left, repeat(str(arch)))
                for build in left:
                    progress.at(f"compiling {build[0].operator}/{build[0].name}")
                    next(done)
                    progress.done([_name(build)])


def _name(build: tuple[Rung, Mapping[str, int]]) -> tuple:
    return build[0].operator, build[0].name, *sorted(build[1].items())


def _compiled(build: tuple[Rung, Mapping[str, int]], arch: str) -> None:
    """Leave a rung's cubin in the cache; a compile error is raised again by its launch."""
    with suppress(RooflabError):
        build[0].cubin(arch, build[1])
