"""What lessons will measure here: `python -m rooflab.book.rehearsal`, jobs as JSON on stdin.

Which cases a lesson asks for depends on its parameters, the GPU, the recording so far and the rows of its
cells, so only running the cells tells. They run on a copy of the recording, in a lab whose clock is the
estimate: no case is launched, and a row holds the expected time. An answer a lesson goes to stdout, as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from rooflab import studies
from rooflab.bench.clock import Timing
from rooflab.book import normal
from rooflab.errors import MissingTool
from rooflab.lab import opening
from rooflab.lab.session import Lab
from rooflab.records.case import Case
from rooflab.studies.base import Context, Outcome, Study
from rooflab.studies.estimates import Estimate, slowest
from rooflab.view import plot

Lesson = tuple[Path, Mapping[str, Any]]  # a notebook, and the values of its parameters


class Rehearsal(Lab):
    """A live lab in which every case takes its expected time, and no instrument answers."""

    counted: ClassVar[Estimate]  # what the labs of the lesson at work asked for
    profiled: ClassVar[set[tuple[str, str, str]]] = set()  # study, instrument and case of all lessons

    @cached_property
    def estimate(self) -> Estimate:
        self.counted.device = self.spec or slowest()
        return self.counted

    def _measured(self, study: Study, group: Sequence[Case], context: Context) -> Outcome:
        ready, skipped = study.fitting(group)
        rows = []
        for case in ready:
            us = study.launch_us(case, self.estimate.device)
            admitted: Any = SimpleNamespace(error=0.0, work=SimpleNamespace(budget=1.0))
            timing = Timing(us, us, us, study.samples(case))
            rows.append(study.row(case, admitted, timing, study.predict(case, context)))
        return Outcome(rows, skipped)

    def take_profile(
        self, study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None = None
    ) -> None:
        of = studies.get(study)
        _, unable, chosen = self.unprofiled(of, cases, tool, metrics)
        new = [case for case in chosen if case.id not in unable]
        new = [case for case in new if (study, tool, case.id) not in self.profiled]
        self.profiled.update((study, tool, case.id) for case in new)
        self.estimate.add_profile(of, new, tool)
        raise MissingTool(f"{tool} takes no part in a rehearsal.")

    def close(self) -> None:
        """Leave the copy as it is: it is thrown away."""


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let live labs be rehearsals that write to a copy of the recording in `folder`, and draw nothing."""
    with tempfile.TemporaryDirectory(prefix="rooflab-") as root, ExitStack() as stack:
        if folder.is_dir():
            shutil.copytree(folder, Path(root) / folder.name, ignore=shutil.ignore_patterns(".*"))
        stack.enter_context(patch.dict(os.environ, {"ROOFLAB_STORE": root}))
        stack.enter_context(patch.object(opening, "live", Rehearsal))
        stack.enter_context(patch.object(plot, "png", lambda figure: b""))
        stack.enter_context(patch.object(Rehearsal, "profiled", set()))
        stack.callback(os.chdir, os.getcwd())
        yield


def rehearsed(lessons: Iterable[Lesson], folder: Path) -> Iterator[Estimate]:
    """What each lesson will measure, over a copy of the recording in `folder` in which what one lesson
    measured is there for the next. A cell that fails, as one may whose instrument did not answer, fails
    alone.
    """
    with _beside(folder):
        shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
        for notebook, values in lessons:
            Rehearsal.counted = Estimate(slowest())
            os.chdir(notebook.parent)
            for cell in normal.read(notebook).cells:
                if cell.cell_type != "code" or cell.source.startswith("%%"):  # exercises measure nothing
                    continue
                with capture_output():
                    shell.run_cell(cell.source)
                    if "parameters" in cell.metadata.get("tags", []):
                        shell.push(dict(values))
            shell.reset(new_session=False)
            yield Rehearsal.counted


def ask(lessons: Sequence[Lesson], folder: Path, say: Callable[[str], None]) -> Estimate | None:
    """What the lessons will measure into the recording in `folder`, found in a process of its own; None if
    that ended early.
    """
    found, answers = Estimate(slowest()), 0
    with subprocess.Popen(
        [sys.executable, "-m", "rooflab.book.rehearsal"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        jobs = [[str(notebook.resolve()), dict(values)] for notebook, values in lessons]
        child.stdin.write(json.dumps({"folder": str(folder), "jobs": jobs}) + "\n")
        child.stdin.close()
        for answers, line in enumerate(child.stdout, 1):
            found.merge(json.loads(line))
            if len(jobs) > 1 and answers % 5 == 0:
                say(f"counting what is to be measured: {answers} of {len(jobs)} lessons")
    return found if answers == len(lessons) else None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints
    asked = json.loads(sys.stdin.readline())
    jobs = [(Path(notebook), values) for notebook, values in asked["jobs"]]
    for counted in rehearsed(jobs, Path(asked["folder"])):
        print(json.dumps(counted.as_json()), file=answers, flush=True)


if __name__ == "__main__":
    main()
