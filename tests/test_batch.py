"""Batch files are checked whole before the first notebook starts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rooflab import paths
from rooflab.book import batch, run
from rooflab.errors import UsageError


@pytest.fixture
def folder(lesson: Callable[..., Path]) -> Path:
    lesson("00_first", "print(N)")
    return lesson("01_second", "print(N * 2)").parent


def _read(folder: Path, text: str) -> list[run.Job]:
    path = folder.parent / "sets.yml"
    path.write_text(text)
    return batch.read(path, folder)


def test_sets_become_jobs_with_their_values(folder: Path) -> None:
    jobs = _read(
        folder,
        "limit: 2\nsets:\n  small: {lessons: [0], parameters: {N: 5, SIZES: [1, 2]}}\n"
        "  all: {mode: replay}\n",
    )
    assert [job.label for job in jobs] == ["small/00_first", "all/00_first", "all/01_second"]
    assert jobs[0].values == {"N": 5, "SIZES": [1, 2]} and jobs[1].values == {"MODE": "replay"}
    assert jobs[0].output == batch.OUTPUT / "small" / "00_first.ipynb" and jobs[0].limit_s == 120


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sets: [a]", "mapping `sets:`"),
        ("sets: {}", "at least one set"),
        ("sets: {a: {lessons: [7]}}", "set 'a': there is no lesson '7'"),
        ("sets: {ok: {}, b: {parameters: {M: 1}}}", "set 'b': no lesson asked for has a parameter M"),
        ("sets: {b: {parameters: {N: many}}}", "set 'b': N takes a whole number"),
        ("sets: {b: {mode: fast}}", "MODE is one of"),
        ("sets: {b: {mode: replay, parameters: {MODE: live}}}", "say the same thing"),
        ("sets: {b: {lesson: [0]}}", "does not take lesson"),
        ("sets: {../b: {}}", "names a folder"),
        ("limit: 0\nsets: {b: {}}", "minutes a lesson"),
        ("sets: {a: [", "is not YAML"),
        ("other: 1\nsets: {b: {}}", "does not take other"),
    ],
)
def test_a_wrong_file_is_refused_with_the_set_named(folder: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        _read(folder, text)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        batch.read(tmp_path / "none.yml")


def test_sets_run_side_by_side_into_their_own_folders(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "OUTPUT", tmp_path / "batch")
    jobs = _read(
        folder, "sets:\n  a: {lessons: [0], parameters: {N: 5}}\n  b: {lessons: [0], parameters: {N: 6}}\n"
    )
    outcomes = run.run(jobs, parallel=2, say=lambda line: None)
    assert [(outcome.ending, outcome.message) for outcome in outcomes] == [("ok", ""), ("ok", "")]
    assert '"5\\n"' in (tmp_path / "batch" / "a" / "00_first.ipynb").read_text()
    assert '"6\\n"' in (tmp_path / "batch" / "b" / "00_first.ipynb").read_text()


def test_the_example_is_a_valid_batch_for_the_course() -> None:
    jobs = batch.read(paths.ROOT / "examples" / "batch.yml")
    assert [job.label for job in jobs][:2] == ["recorded/00_environment", "recorded/00b_clocks"]
