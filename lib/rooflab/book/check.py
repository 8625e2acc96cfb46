"""`refresh` brings notebooks/, README and docs/ to what a replay gives; `check` says where they differ."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rooflab import paths
from rooflab.book import executions, front, lessons, normal, run
from rooflab.errors import MissingTool, UsageError
from rooflab.lab import recordings
from rooflab.records.csv_table import write_atomically
from rooflab.records.validate import Finding

NBVAL = ("-n", "2", "--dist", "loadfile", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "600")


@contextlib.contextmanager
def replaying() -> Iterator[None]:
    """Let notebooks replay without a parameter, so that no cell is injected and counts run as committed."""
    before = os.environ.get("ROOFLAB_MODE")
    os.environ["ROOFLAB_MODE"] = "replay"
    try:
        yield
    finally:
        if before is None:
            del os.environ["ROOFLAB_MODE"]
        else:
            os.environ["ROOFLAB_MODE"] = before


def replay(
    folder: Path | None = None,
    output: Path | None = None,
    say: run.Say = print,
    words: Iterable[str] = (),
) -> list[run.Outcome]:
    """Replay the folder's lessons, all or those that the words name, into the output folder."""
    with replaying():
        jobs = run.plan(lessons.find(words, folder), {}, output=output)
        return run.run(jobs, parallel=min(2, os.cpu_count() or 1), say=say)


def refresh(say: run.Say = print, words: Iterable[str] = ()) -> bool:
    """Replay lessons, all or those that the words name, and rewrite what differs in notebooks/, README.md
    and docs/; whether all of them ran. A lesson that fails keeps its committed file."""
    outcomes = replay(say=say, words=words)
    run.remember(outcomes)
    for outcome in outcomes:
        if outcome.ok and normal.rewrite(outcome.job.output, outcome.job.lesson.path):
            say(f"rewrote {outcome.job.lesson.path.relative_to(paths.ROOT)}")
    for name, new in front.made():
        file = paths.ROOT / name
        if not _holds(file, new):
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, new)
            say(f"rewrote {name}")
    return all(outcome.ok for outcome in outcomes)


def front_problems() -> list[str]:
    """Whether README, docs/results.md and their drawings are those that the recordings give."""
    return [
        f"{name} is not what data/ and the lessons give: run `rooflab refresh`."
        for name, new in front.made()
        if not _holds(paths.ROOT / name, new)
    ]


def _holds(file: Path, text: str) -> bool:
    return file.exists() and file.read_text(encoding="utf-8") == text


def check(say: run.Say = print) -> list[str]:
    """Everything that is wrong with the committed series: form, a strict replay, README and
    its drawings, freshness of the recordings. Raises MissingTool without nbval and xdist."""
    for tool in ("nbval", "xdist"):
        if importlib.util.find_spec(tool) is None:
            raise MissingTool(
                f"{tool} is not installed: `pip install -r requirements-test.txt`, or `make test`."
            )
    found = [problem for lesson in lessons.all_lessons() for problem in normal.problems(lesson.path)]
    found += front_problems()
    library = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *NBVAL, str(paths.NOTEBOOKS)],
        cwd=paths.ROOT,
        env={**os.environ, "ROOFLAB_MODE": "replay", "PYTHONPATH": library, "PYTHONHASHSEED": "0"},
    )
    if done.returncode != 0:
        found.append("nbval found cells that replay to something else; they are named above.")
    for device in recordings():
        found += freshness(device, say)
    return found


def findings(device: str, say: run.Say = lambda line: None) -> list[Finding]:
    """What is wrong with a recording, or worth knowing of it; published figures are held to less. `say` is
    told what is compiled meanwhile."""
    from rooflab import lab
    from rooflab.records.validate import validate

    folder = Path(device)
    if folder.name == "published":
        return validate(folder)
    if not folder.is_dir():
        folder = paths.DATA / device
    return [*lab.freshness(device, say), *damaged_executions(folder)]


def damaged_executions(folder: Path) -> list[Finding]:
    """Whether the record of how lessons ran can be read."""
    try:
        executions.read(folder)
    except UsageError as error:
        return [Finding("error", executions.NAME, str(error))]
    return []


def freshness(device: str, say: run.Say = print) -> list[str]:
    """What is wrong with a recording, one sentence each; what is only worth knowing is said."""
    found = findings(device)
    for finding in found:
        if finding.severity != "error":
            say(f"{device}: {finding}")
    return [f"{device}: {finding}" for finding in found if finding.severity == "error"]
