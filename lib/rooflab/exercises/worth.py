"""What a reader's step is worth: the rungs before and after it on a GPU, from the recording."""

from __future__ import annotations

from collections.abc import Iterable

from rooflab import lab
from rooflab.errors import UsageError
from rooflab.records.case import Case
from rooflab.view import display
from rooflab.words import times

RECORDED = "h200"  # the recording that comes with the course


def gain(study: str, cases: Iterable[Case], before: str, after: str) -> str:
    """Two of a study's recorded cases, named by rung and options, as a sentence: "the course's rungs 1_scalar
    -> 2_tiled queries=16: 20,837 -> 15,697 us, 1.3 times as fast, on the recorded NVIDIA H200".

    UsageError for a name that is none of `cases`; MissingRecording for a case that was not recorded.
    """
    named = {f"{case.impl} {case.options or ''}".strip(): case for case in cases}
    unknown = [name for name in (before, after) if name not in named]
    if unknown:
        raise UsageError(f"There is no case {unknown[0]!r}; there are: {', '.join(named)}.")
    here = lab.open("replay", RECORDED)
    rows = here.measure(study, [named[before], named[after]])
    old, new = rows["median_us"]
    took = " -> ".join(f"{t:,.0f}" if t >= 100 else f"{t:.1f}" for t in (old, new))
    told = f"{took} us, {display.speed(old / new)}, on the recorded {here.run['gpu']}"
    return f"the course's rungs {before} -> {after}: {told}"


def takes(study: str, case: Case, what: str) -> str:
    """A recorded case as a sentence: "the course's rung: 16,777,216 elements in 60.0 us, 3,356 GB/s, on the
    recorded NVIDIA H200".
    """
    here = lab.open("replay", RECORDED)
    row = here.measure(study, [case]).iloc[0]
    shape = f"{case.n:,} x {case.k:,}" if case.k else f"{case.n:,} elements"
    speed = f"{row['median_us']:,.1f} us, {row['gb_s']:,.0f} GB/s"
    return f"{what}: {shape} in {speed}, on the recorded {here.run['gpu']}"


def several(study: str, one: Case, many: Case) -> str:
    """The same rung for one token and for several, as a sentence: "5_batch: 1 token in 15.4 us, 4 in 16.8 us,
    3.7 times the tokens a second, on the recorded NVIDIA H200".
    """
    here = lab.open("replay", RECORDED)
    few, more = here.measure(study, [one, many])["median_us"]
    gained = times((many.batch or 1) * few / more)
    return (
        f"{one.impl}: {one.batch} token in {few:.1f} us, {many.batch} in {more:.1f} us, {gained} times the "
        f"tokens a second, on the recorded {here.run['gpu']}"
    )
