"""`rooflab gate`: an operator's rungs on the CPU, each gated and watched in a child process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rooflab import ops, simt
from rooflab.bench import gate
from rooflab.errors import GateError, LaunchError, UsageError
from rooflab.ops import Rung
from rooflab.simt import KernelFault, watching
from rooflab.verify.mutations import Trial, in_child
from rooflab.verify.subjects import Subject, is_portable, subjects


class Verdict(NamedTuple):
    """What became of a rung: `passed` is None where the CPU cannot run it; `says` is one sentence."""

    rung: str
    passed: bool | None
    says: str


def verdicts(operator: str, name: str | None = None) -> Iterator[Verdict]:
    """A verdict on each rung of an operator, or on the rung called `name`, as each is reached; UsageError for
    an operator or a rung that does not exist.
    """
    ladder = ops.module_of(operator).LADDERS[operator]
    for rung in ladder if name is None else [ops.rung_of(ladder, name, name)]:
        yield verdict(operator, rung)


def verdict(operator: str, rung: Rung, found: Sequence[Subject] | None = None) -> Verdict:
    """One rung: right on every small case that it takes, or on those `found`, and no race, stray access or
    uneven barrier seen.
    """
    title = f"{operator}/{rung.name}"
    if not is_portable(rung):
        needs = ", ".join(f"sm_{arch}" for arch in rung.archs)
        return Verdict(title, None, f"not run: it is for {needs} alone, whose instructions the CPU lacks.")
    found = subjects(operator, rung.name) if found is None else found
    if not found:
        sentence = "not gated: its operator declares neither small_cases nor trials that this rung takes."
        return Verdict(title, False, sentence)
    ended = in_child(lambda: _judged(found))
    if ended.killed == "passed":
        return Verdict(title, True, f"right: {ended.says}.")
    where = f" at {ended.shape}" if ended.shape else ""
    return Verdict(title, False, f"WRONG{where} ({ended.killed}): {ended.says}")


def _judged(found: Sequence[Subject]) -> Trial:
    """Gate and watch every subject that the rung does not refuse; the first fault ends it."""
    worst, taken, counted = 0.0, 0, ""
    with ops.on("cpu"):
        for subject in found:
            try:
                admitted = gate.admit(subject.work)
                admitted.recheck()
                with simt.watched_launches(traced=watching.MOST if subject is found[-1] else 0) as launches:
                    subject.work.launch(0)
            except LaunchError as refusal:
                if "refuses" in str(refusal):
                    continue
                return Trial("launch", subject.shape, str(refusal))
            except GateError as error:
                return Trial("gate", subject.shape, str(error))
            except KernelFault as fault:
                return Trial("launch", subject.shape, str(fault.faults[0]))
            except UsageError as error:
                return Trial("compiler", subject.shape, str(error))
            if faults := [fault for seen in launches for fault in seen.faults]:
                return Trial("watcher", subject.shape, str(faults[0]))
            taken += 1
            if subject.work.budget:
                worst = max(worst, admitted.error / subject.work.budget)
            if subject is found[-1]:
                sectors = np.concatenate([seen.sectors() for seen in launches]).mean()
                counted = f", {sectors:.1f} sectors a request at {subject.shape}"
    if not taken:
        return Trial("launch", "", "it refuses every small case.")
    return Trial("passed", "", f"{taken} shapes, error {worst:.0%} of what is allowed{counted}")
