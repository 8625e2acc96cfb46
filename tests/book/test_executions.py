"""The record of executions: what a run leaves, what it counts, and what `--resume` may leave out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rooflab.book import executions, lessons, run
from rooflab.errors import UsageError


def _entry(**given: object) -> str:
    entry = {"study": "gemv", "tool": "", "asked": [], "measured": [], "gated": [], "skipped": [], "run": ""}
    return json.dumps(entry | given) + "\n"


def test_cases_are_counted_once_however_often_a_lesson_asks(tmp_path: Path) -> None:
    ledger = tmp_path / "x.ledger"
    ledger.write_text(
        _entry(asked=["a", "b", "p"], measured=["a"], gated=["a", "b"], skipped=["p"], run="2026-11-21.1")
        + _entry(asked=["b", "c"], gated=["b", "c"])
        + _entry(study="int4", asked=["a"], gated=["a"])
        + _entry(tool="ncu", asked=["a", "b"], measured=["a"], run="2026-11-21.2")
    )
    assert executions.counts(ledger) == {
        "cases": 5,
        "measured": 2,
        "gated": 4,
        "skipped": 1,
        "profiled": 2,
        "runs": "2026-11-21.1 2026-11-21.2",
    }
    assert executions.counts(tmp_path / "none")["cases"] == 0


def test_a_lessons_row_takes_the_place_of_its_last(tmp_path: Path) -> None:
    executions.keep(tmp_path, [{"lesson": "01_b", "ending": "failed"}, {"lesson": "00_a", "ending": "ok"}])
    executions.keep(tmp_path, [{"lesson": "01_b", "ending": "ok", "seconds": 3.14159, "cases": 7}])
    found = executions.read(tmp_path)
    assert found["lesson"].tolist() == ["00_a", "01_b"] and found["ending"].tolist() == ["ok", "ok"]
    assert found["seconds"].tolist()[1] == 3.1 and found["cases"].tolist()[1] == 7
    (tmp_path / executions.NAME).write_text("lesson\n")
    with pytest.raises(UsageError, match="line 1"):
        executions.read(tmp_path)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of its own for what runs leave, on a clean commit."""
    folder = tmp_path / "out"
    monkeypatch.setattr(run, "OUTPUT", folder)
    monkeypatch.setattr(run, "run_facts", lambda *_: {"python": "3", "commit": "0123456789ab"})
    return folder


def test_a_run_leaves_a_record_of_every_lesson(lesson: Callable[..., Path], kept: Path) -> None:
    asks = "import rooflab.lab as l\nfrom rooflab.studies import bandwidth as b\n"
    asks += "lab = l.open('replay')\n_ = lab.measure('bandwidth', b.ladder('read'))"
    folder = lesson("00_first", asks).parent
    lesson("01_second", "1 / 0")
    outcomes = run.run(run.plan(lessons.find([], folder), {"MODE": "replay"}), 2, say=lambda line: None)
    run.remember(outcomes)
    found = executions.read(kept).set_index("lesson")
    assert found["ending"].to_dict() == {"00_first": "ok", "01_second": "failed"}
    first = found.loc["00_first"]
    assert (first["cases"], first["measured"], first["mode"], first["device"]) == (6, 0, "replay", "h200")
    assert 0 < first["gated"] <= first["cases"] and first["cells"] == 2 and first["started"].endswith("Z")
    assert not list(kept.glob("*.ledger"))


def test_resume_leaves_out_what_ran_well_as_it_stands(
    lesson: Callable[..., Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lesson("00_first", "print(N)")
    jobs = run.plan(lessons.find([], path.parent), {"MODE": "replay"})
    assert run.unfinished(jobs) == jobs
    run.remember(run.run(jobs, say=lambda line: None))
    assert run.unfinished(jobs) == []
    other = run.plan(lessons.find([], path.parent), {"MODE": "replay", "N": 4})
    assert run.unfinished(other) == other, "other values are another execution"
    with monkeypatch.context() as changed:
        changed.setattr(run, "run_facts", lambda *_: {"python": "3", "commit": "0123456789ab+"})
        assert run.unfinished(jobs) == jobs, "nobody knows what was edited since the commit"
    lesson("00_first", "print(N + 1)")
    assert run.unfinished(jobs) == jobs, "another cell is another lesson"


def test_a_failed_lesson_runs_again(lesson: Callable[..., Path], kept: Path) -> None:
    path = lesson("00_first", "1 / 0")
    jobs = run.plan(lessons.find([], path.parent), {"MODE": "replay"})
    run.remember(run.run(jobs, say=lambda line: None))
    assert run.unfinished(jobs) == jobs
