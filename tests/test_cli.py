"""The command line: exit codes, one sentence for a user's mistake, and the commands that need no GPU end
to end."""

import errno
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rooflab import cli, commands, paths
from rooflab.book import run
from rooflab.errors import OutOfTime
from rooflab.hardware import device

LIBRARY = Path(cli.__file__).resolve().parents[1]


def _rooflab(
    *words: str, root: Path | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOFLAB_")}
    environment["PYTHONPATH"] = str(LIBRARY)
    if root is not None:
        environment["ROOFLAB_ROOT"] = str(root)
    return subprocess.run(
        [sys.executable, "-m", "rooflab", *words], env=environment, cwd=cwd, capture_output=True, text=True
    )


@pytest.fixture
def course(lesson: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkout of two small lessons and a recording without rows, for commands in a process of their
    own."""
    lesson("00_first", "print(N)")
    lesson("01_second", "print('x' * N)")
    shutil.copytree(paths.DATA / "published", tmp_path / "data" / "published")
    return tmp_path


def test_importing_the_command_line_is_light() -> None:
    heavy = ("numpy", "pandas", "papermill", "sphinx")
    code = f"import sys, rooflab.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(LIBRARY)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "7"], "there is no lesson '7': the lessons are 00_first, 01_second"),
        (["run", "-p", "M=1"], "no lesson asked for has a parameter M"),
        (["run", "-p", "N=many"], "N takes a whole number, not 'many'"),
        (["run", "--mode", "replay", "-p", "MODE=live"], "say the same thing"),
        (["run", "--device", "nowhere"], "there is no recording 'nowhere'"),
        (["batch", "none.yml"], "cannot read none.yml"),
        (["measure", "nothing"], "here is no study 'nothing'"),
        (["compare", "nowhere", "h200"], "there is no recording 'nowhere'"),
        (["validate", "no/such/folder"], "no/such/folder"),
        (["trace", "nosuch"], "there is nothing to trace of 'nosuch'; there is of bandwidth, gemv, static"),
        (["trace", "bandwidth", "nosuch"], "nothing to trace of 'nosuch'"),
        (["refresh", "7"], "there is no lesson '7'"),
    ],
)
def test_a_users_mistake_is_a_sentence_and_code_2(
    course: Path,
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", course / "notebooks")
    monkeypatch.chdir(course)
    monkeypatch.setattr(run, "_Running", None)  # nothing may be started
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("rooflab: ") and says in said


def test_run_executes_into_build_and_says_so(course: Path) -> None:
    done = _rooflab("run", "1", "-p", "N=4", "--mode", "replay", root=course)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1 notebook, replayed: about ")
    assert "xxxx" in (course / "build" / "notebooks" / "01_second.ipynb").read_text()
    assert not (course / "build" / "notebooks" / "00_first.ipynb").exists()


def test_a_failing_lesson_gives_code_1_and_its_cell(course: Path, lesson: Callable[..., Path]) -> None:
    lesson("02_bad", "print(undefined_name)")
    done = _rooflab("run", "2", "--mode", "replay", root=course)
    assert done.returncode == 1
    assert "02_bad FAILED in cell 3" in done.stdout and "NameError" in done.stdout


@pytest.mark.ci
def test_report_ends_with_the_page_to_open(course: Path) -> None:
    done = _rooflab("report", "--mode", "replay", root=course)
    assert done.returncode == 0, done.stdout + done.stderr
    page = Path(done.stdout.splitlines()[-1])
    assert page == course / "build" / "site" / "index.html" and page.is_file()


def _write_readme(course: Path) -> None:
    from rooflab.book import front

    parts = ["\nold\n".join(front.markers(name)) for name in front.PAGES["README.md"]]
    (course / "README.md").write_text("\n".join(["# x", *parts, ""]))


@pytest.mark.ci
def test_refresh_brings_notebooks_and_readme_to_normal_form(course: Path) -> None:
    from rooflab.book import normal

    (course / "notebooks" / "01_second.ipynb").unlink()
    _write_readme(course)
    assert not normal.is_normal(course / "notebooks" / "00_first.ipynb")
    done = _rooflab("refresh", root=course)
    assert done.returncode == 0, done.stdout + done.stderr
    assert normal.problems(course / "notebooks" / "00_first.ipynb") == []
    text = (course / "README.md").read_text()
    assert "old" not in text and "(notebooks/00_first.ipynb)" in text and "no recording of h200" in text
    path = course / "notebooks" / "00_first.ipynb"
    path.write_text(path.read_text().replace('"3\\n"', '"4\\n"'))
    done = _rooflab("check", root=course)
    assert done.returncode == 1
    assert "nbval found cells that replay to something else" in done.stdout and "00_first" in done.stdout


def test_refresh_can_be_of_one_lesson(course: Path) -> None:
    """The others keep their bytes."""
    _write_readme(course)
    other = course / "notebooks" / "01_second.ipynb"
    before = other.read_bytes()
    done = _rooflab("refresh", "0", root=course)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (course / "notebooks" / "00_first.ipynb").read_text().count('"3\\n"') == 1
    assert other.read_bytes() == before


def test_batch_runs_its_sets(course: Path) -> None:
    (course / "sets.yml").write_text("sets:\n  a: {lessons: [1], mode: replay, parameters: {N: 5}}\n")
    done = _rooflab("batch", "sets.yml", root=course, cwd=course)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a/01_second" in done.stdout
    assert "xxxxx" in (course / "build" / "batch" / "a" / "01_second.ipynb").read_text()


def test_validate_published_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(paths.ROOT)
    assert cli.main(["validate", "data/published"]) == 0, capsys.readouterr()


def test_doctor_ends_with_its_verdict() -> None:
    done = _rooflab("doctor")
    assert done.stdout.rstrip().splitlines()[-1].split(":")[0] in ("GREEN", "AMBER", "RED")


@pytest.mark.skipif(device.has_gpu(), reason="a GPU is here")
@pytest.mark.parametrize(
    "words", [["measure", "bandwidth"], ["record", "bandwidth"], ["tune"], ["run", "--mode", "live"]]
)
def test_measuring_without_a_gpu_says_so(
    course: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", course / "notebooks")
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("rooflab: ") and "needs an NVIDIA GPU" in said.err
    assert said.err.count("\n") == 1 and "running" not in said.out


def test_a_recording_whose_time_is_up_says_so_by_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seconds: list[float] = []

    def record(names: object, effort: str, say: object, limit: float) -> list[str]:
        seconds.append(limit)
        if limit < 1000:
            raise OutOfTime("the time is up.")
        return []

    monkeypatch.setattr("rooflab.lab.record", record)
    monkeypatch.setenv("ROOFLAB_STORE", "")
    monkeypatch.setenv("ROOFLAB_COMMAND", "")
    assert cli.main(["record", "--for", "8", "--store", str(tmp_path)]) == commands.MORE_TO_DO == 75
    assert "the time is up" in capsys.readouterr().out
    assert cli.main(["record", "--store", str(tmp_path)]) == 0
    assert seconds == [480, math.inf]


PLACES = {
    errno.EROFS: "the place to write to is read-only",
    errno.EACCES: "you may not read or write this file",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your share of the disk is used up",
}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((number, ["run", "0", "--mode", "replay"]) for number in PLACES),
        (errno.EROFS, ["compare", "h200", "h200"]),
        (errno.ENOSPC, ["report", "--mode", "replay"]),
        (errno.EACCES, ["refresh"]),
    ],
    ids=str,
)
def test_a_place_that_cannot_be_written_is_a_sentence(
    course: Path,
    number: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", course / "notebooks")
    make = os.mkdir

    def mkdir(path: str, *more: object, **how: object) -> None:
        if "build" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        make(path, *more, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkdir", mkdir)
    for module in (run, paths):
        for name in ("OUTPUT", "BUILD"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, course / "build" / "notebooks")
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("rooflab: " + PLACES[number]) and str(course / "build") in said
    assert said.count("\n") == 1


def test_a_fault_of_ours_is_not_taken_for_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file", "a")

    monkeypatch.setattr("rooflab.doctor.examine", missing)
    with pytest.raises(FileNotFoundError):
        cli.main(["doctor"])


def test_too_little_memory_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hungry(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("rooflab.doctor.examine", hungry)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "rooflab: this machine has too little memory for that.\n"


def test_lessons_that_measure_run_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lab:
        def cases(self, study: str) -> list[str]:
            return ["a", "b"]

        def stale(self, study: object, cases: list[str]) -> set[str]:
            return set(cases[:lacking])

    monkeypatch.setattr("rooflab.lab.open", lambda *_, **__: Lab())
    monkeypatch.setattr(device, "has_gpu", lambda: True)
    started: list[int] = []
    monkeypatch.setattr(run, "run", lambda jobs, parallel, say: started.append(parallel) or [])
    monkeypatch.setattr(run, "estimate", lambda *_: None)
    lacking = 1
    assert cli.main(["run", "0", "--mode", "live", "-j", "3"]) == 2 and not started
    assert "1 cases are still to be measured" in capsys.readouterr().err
    lacking = 0
    assert cli.main(["run", "0", "--mode", "live", "-j", "3"]) == 0 and started == [3]


def test_wrong_numbers_are_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (
        ["run", "--limit", "0"],
        ["run", "-j", "0"],
        ["run", "--mode", "fast"],
        ["tune", "--shape", "4096"],
    )
    for words in wrong:
        with pytest.raises(SystemExit) as stopped:
            cli.main(words)
        assert stopped.value.code == 2


WITHOUT_JUPYTER = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"nbformat", "nbclient", "papermill", "IPython", "ipykernel", "ipywidgets"}:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
sys.meta_path.insert(0, Absent())
from rooflab import cli, commands
print([cli.main(words) for words in (["record", "1"], ["measure", "gemv", "-p", "n=4096"], ["tune"])])
"""


@pytest.mark.skipif(device.has_gpu(), reason="a GPU is here")
def test_recording_and_measuring_need_no_jupyter_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JUPYTER],
        env={**os.environ, "PYTHONPATH": str(LIBRARY)},
        capture_output=True,
        text=True,
    )
    assert "not installed" not in done.stderr and done.stdout.strip() == "[1, 1, 1]", done.stderr
    assert done.stderr.count("MODE=live needs an NVIDIA GPU") == 3
