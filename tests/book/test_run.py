"""The runner: failures explain themselves, a limit is kept, and nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest
from rooflab.book import lessons, run

LIBRARY = Path(run.__file__).resolve().parents[2]


def _jobs(folder: Path, given: dict[str, object] | None = None, minutes: float = 1.0) -> list[run.Job]:
    return run.plan(lessons.find([], folder), given or {}, minutes, folder.parent / "out")


def test_parameters_reach_the_kernel_and_the_source_stays(lesson: Callable[..., Path]) -> None:
    path = lesson("00_first", "print(N + 1, SIZES, FLAG)", "import os; print(os.path.basename(os.getcwd()))")
    before = path.read_bytes()
    said: list[str] = []
    [outcome] = run.run(_jobs(path.parent, {"N": "41", "SIZES": "16,64", "FLAG": "yes"}), say=said.append)
    assert outcome.ok, outcome.explanation()
    cells = nbformat.read(outcome.job.output, as_version=4).cells
    printed = "".join(output.text for cell in cells for output in cell.get("outputs", []))
    assert printed == "42 [16, 64] True\nnotebooks\n"
    assert path.read_bytes() == before
    assert said[0] == "00_first: running (1 of 1)" and said[-1].startswith("00_first: ok after ")


def test_a_notebook_that_names_no_language_runs(lesson: Callable[..., Path]) -> None:
    path = lesson("00_bare", "print(N)")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.clear()
    nbformat.write(notebook, path)
    [outcome] = run.run(run.plan(lessons.find(["0"], path.parent), {"N": 4}, output=path.parent / "out"))
    assert outcome.ok, outcome


def test_every_way_to_fail_is_told_apart_and_the_others_still_run(lesson: Callable[..., Path]) -> None:
    lesson("00_raises", "x = 1\nx / 0")
    lesson("01_dies", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    lesson("02_leaves", "import sys\nsys.exit(0)", "print('never')")
    folder = lesson("03_good", "print('fine')").parent
    outcomes = run.run(_jobs(folder, {"N": 1}), parallel=2, say=lambda line: None)
    assert [outcome.ending for outcome in outcomes] == ["failed", "died", "stopped", "ok"]
    told = outcomes[0].explanation()
    assert "00_raises FAILED in cell 3 of 00_raises.ipynb" in told
    assert "  | x / 0" in told and "ZeroDivisionError: division by zero" in told and "\x1b" not in told
    assert "the kernel died" in outcomes[1].message and outcomes[1].cell == 3
    table = run.summary(outcomes).splitlines()
    assert [line.split()[1] for line in table] == ["result", "FAILED", "DIED", "STOPPED", "ok"]


@pytest.mark.ci
def test_the_limit_ends_a_lesson_and_its_kernel(lesson: Callable[..., Path], tmp_path: Path) -> None:
    path = lesson("00_sleeps", _NOTE_AND_SLEEP.format(file=str(tmp_path / "pids")))
    [outcome] = run.run(_jobs(path.parent, minutes=0.25), say=lambda line: None)
    assert outcome.ending == "late" and outcome.cell == 3 and "0.25 min" in outcome.message
    _assert_all_gone(tmp_path / "pids")


def test_progress_of_cases_is_passed_on(lesson: Callable[..., Path]) -> None:
    source = "import os\nwith open(os.environ['ROOFLAB_PROGRESS'], 'a') as f: f.write('read case 3/40\\n')"
    path = lesson("00_first", source)
    said: list[str] = []
    run.run(_jobs(path.parent), say=said.append)
    assert "00_first: read case 3/40" in said


@pytest.mark.skipif(os.name != "posix", reason="only on POSIX do kernels listen on files")
def test_kernels_ask_for_no_port_and_leave_no_socket(lesson: Callable[..., Path]) -> None:
    ask = "import json\nfrom ipykernel.connect import get_connection_info\n"
    ask += "found = json.loads(get_connection_info())\nprint(found['transport'], found['ip'])"
    path = lesson("00_first", ask)
    [outcome] = run.run(_jobs(path.parent), say=lambda line: None)
    [cell] = [c for c in nbformat.read(outcome.job.output, as_version=4).cells if "get_conn" in c.source]
    transport, address = cell.outputs[0].text.split()
    assert transport == "ipc" and not Path(address).parent.exists()


# The kernel and a child of its own, as a profiler would be, write down who they are and then sleep.
_NOTE_AND_SLEEP = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
with open({file!r} + ".part", "w") as f: f.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({file!r} + ".part", {file!r})
time.sleep(300)
"""


def _assert_all_gone(file: Path) -> None:
    pids = [int(word) for word in file.read_text().split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 120  # a loaded machine's
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a kernel or its child is left running"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(os.name != "posix", reason="only on POSIX can a test send SIGINT to another process")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_however_the_run_ends(
    lesson: Callable[..., Path], tmp_path: Path, how: signal.Signals
) -> None:
    lesson("00_sleeps", _NOTE_AND_SLEEP.format(file=str(tmp_path / "pids")))
    process = subprocess.Popen(
        [sys.executable, "-m", "rooflab", "run", "--mode", "replay"],
        env={**os.environ, "ROOFLAB_ROOT": str(tmp_path), "PYTHONPATH": str(LIBRARY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 300
    while not (tmp_path / "pids").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(how)
    said, _ = process.communicate(timeout=300)
    if how != signal.SIGKILL:
        assert process.returncode == 130 and "every kernel has ended" in said and "Traceback" not in said
    _assert_all_gone(tmp_path / "pids")


def test_replay_estimate_learns_from_the_last_run(
    lesson: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "OUTPUT", tmp_path / "kept")
    jobs = _jobs(lesson("00_first").parent, {"MODE": "replay"})
    run.remember([run.Outcome(jobs[0], "ok", 120.0)])
    assert run.estimate(jobs).seconds == pytest.approx(120.0)  # type: ignore[union-attr]
    assert run.estimate(jobs, parallel=2).seconds == pytest.approx(60.0)  # type: ignore[union-attr]
