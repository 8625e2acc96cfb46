"""Batch files are checked whole before the first notebook starts."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
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
    assert [job.label for job in jobs][:2] == ["recorded/00_cuda", "recorded/00a_environment"]


def refused(folder: Path, content: bytes) -> str:
    path = folder.parent / "sets.yml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        batch.read(path, folder)
    said = str(caught.value)
    assert said.endswith(".") and len(said) < 1000
    return said


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"sets: {a: {}}\xff", "is not UTF-8 text (byte 13)"),
        (b"\xff\xfes\x00", "is not UTF-8"),
        (b"sets: {a: {parameters: {1: 2}}}", "a parameter's name is a word such as DEVICE, not 1"),
        (b"1: 2\nsets: {a: {}}", "does not take 1"),
        (b"sets: {a: {1: 2}}", "does not take 1"),
        (b"sets: {a: {lessons: [0]}, a: {lessons: [1]}}", "line 1 names 'a' a second time"),
        (b"sets:\n  a: {}\nsets:\n  b: {}", "line 3 names 'sets' a second time"),
        (b"sets: {a: {parameters: {N: 1, N: 2}}}", "names 'N' a second time"),
        (b"sets: {1: {}, '1': {}}", "names two sets 1"),
        (b"sets: {true: {}, 'True': {}}", "names two sets True"),
        (b"sets: {" + b"x" * 300 + b": {}}", "up to 100 letters"),
        (b"[" * 100_000, "nested too deeply"),
        (b"sets: " + b"{a: " * 5000, "nested too deeply"),
        (b"sets: {a: {mode: 2026-13-45}}", "not YAML"),
        (b"limit: .inf\nsets: {a: {}}", "minutes a lesson"),
        (b"limit: .nan\nsets: {a: {}}", "minutes a lesson"),
        (b"sets: {[1]: {}}", "not YAML"),
        (b"sets: &s {a: *s}", "hold themselves"),
        (LAUGHS.encode() + b"sets: {a: {parameters: {N: *j}}}", "more than 10000 values"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_file_that_anybody_wrote_is_refused_in_a_sentence(folder: Path, content: bytes, says: str) -> None:
    assert says in refused(folder, content)


def test_sets_may_share_values_by_a_merge(folder: Path) -> None:
    text = "sets:\n  a: &a {lessons: [0], mode: replay}\n  b: {<<: *a, parameters: {N: 7}}\n"
    assert [job.values for job in _read(folder, text)] == [{"MODE": "replay"}, {"MODE": "replay", "N": 7}]


WORDS = st.sampled_from(["sets", "limit", "lessons", "parameters", "N", "SIZES", "mode", "device", "a", "b"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=int(os.environ.get("ROOFLAB_FUZZ", "100")), derandomize=True)
@given(
    st.dictionaries(WORDS, VALUES, max_size=3),
    st.dictionaries(WORDS, VALUES, max_size=3),
    st.binary(max_size=6),
    st.integers(0, 400),
)
def test_made_up_files_are_jobs_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, whole: dict, chosen: dict, junk: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("made") / "sets.yml"
    text = yaml.safe_dump({"sets": {"a": chosen}, **whole}).encode()
    path.write_bytes(text[:at] + junk + text[at:])
    try:
        assert all(job.output.name for job in batch.read(path))
    except UsageError as error:
        assert str(error)
