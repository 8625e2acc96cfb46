"""Parameters cells are read as written, and values that don't fit are refused before anything runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rooflab.book import lessons, parameters
from rooflab.errors import UsageError


def _of(path: Path) -> dict[str, parameters.Parameter]:
    return {p.name: p for p in parameters.of(lessons.find([], path.parent)[0])}


def test_cell_is_read_with_types_defaults_and_help(lesson: Callable[..., Path]) -> None:
    found = _of(lesson("00_first"))
    assert list(found) == ["MODE", "DEVICE", "N", "SCALE", "SIZES", "FLAG", "NAME"]
    assert found["N"] == parameters.Parameter("N", "int", False, 3, "how many")
    assert found["SIZES"].type == "list[int]" and found["SIZES"].default == [1, 2]
    assert found["NAME"].optional and found["NAME"].type == "str"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("N", "4096", 4096),
        ("N", "1_000", 1000),
        ("N", "0x10", 16),
        ("N", "1e6", 1000000),
        ("SCALE", "2", 2.0),
        ("SIZES", "16,64,256", [16, 64, 256]),
        ("SIZES", "[16, 64]", [16, 64]),
        ("SIZES", "7", [7]),
        ("SIZES", [8, 9], [8, 9]),
        ("FLAG", True, True),
        ("NAME", "none", None),
        ("NAME", "'fp16'", "fp16"),
        ("MODE", "replay", "replay"),
    ],
)
def test_values_take_their_type(lesson: Callable[..., Path], name: str, text: object, value: object) -> None:
    got = _of(lesson("00_first"))[name].value(text)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "yes", "on", "1", "y"])
def test_booleans_however_spelled(lesson: Callable[..., Path], word: str) -> None:
    flag = _of(lesson("00_first"))["FLAG"]
    assert flag.value(word) is True
    opposite = {"true": "false", "yes": "no", "on": "off", "1": "0", "y": "n"}[word.lower()]
    assert flag.value(opposite) is False


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("N", "many", "a whole number"),
        ("N", "1.5", "a whole number"),
        ("N", True, "a whole number"),
        ("SCALE", "fast", "a number"),
        ("FLAG", "maybe", "true or false"),
        ("SIZES", "1,x", "a list such as"),
        ("SIZES", [[1]], "a list such as"),
        ("MODE", "fast", "auto, live, replay"),
        ("N", None, "a whole number"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    lesson: Callable[..., Path], name: str, text: object, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        _of(lesson("00_first"))[name].value(text)


def test_unknown_name_lists_what_each_lesson_has(lesson: Callable[..., Path]) -> None:
    lesson("00_first", parameters="N: int = 1  # how many")
    path = lesson("01_second", parameters="K: float = 2.0")
    with pytest.raises(UsageError) as error:
        parameters.assign(lessons.find([], path.parent), {"M": "1"})
    for part in (
        "no lesson asked for has a parameter M",
        "00_first",
        "N: int = 1  (how many)",
        "K: float = 2.0",
    ):
        assert part in str(error.value)


def test_a_name_goes_to_the_lessons_that_have_it(lesson: Callable[..., Path]) -> None:
    lesson("00_first", parameters="N: int = 1")
    path = lesson("01_second", parameters="N: int = 1\nK: int = 2")
    got = parameters.assign(lessons.find([], path.parent), {"K": "5"})
    assert got == {"00_first": {}, "01_second": {"K": 5}}


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("N = 3", "not of the form"),
        ("N: dict = {}", "has type dict"),
        ("N: int = 1 + M", "not a plain value"),
        ("import os", "not of the form"),
    ],
)
def test_a_malformed_cell_is_named(lesson: Callable[..., Path], cell: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _of(lesson("00_first", parameters=cell))


def test_a_missing_recording_is_refused_unless_the_run_is_live(lesson: Callable[..., Path]) -> None:
    found = lessons.find([], lesson("00_first").parent)
    with pytest.raises(UsageError, match="there is no recording 'nowhere'"):
        parameters.assign(found, {"DEVICE": "nowhere", "MODE": "replay"})
    assert parameters.assign(found, {"DEVICE": "nowhere", "MODE": "live"})["00_first"]["DEVICE"] == "nowhere"


def test_a_recording_by_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "runs.csv").write_text("")
    monkeypatch.chdir(tmp_path)
    assert parameters.recording("mine") == str(tmp_path / "mine")


def test_assignments_are_name_equals_value() -> None:
    assert parameters.split(["N=4", "NAME=a=b"]) == {"N": "4", "NAME": "a=b"}
    for wrong in ("N", "=4", "a b=1"):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parameters.split([wrong])


@pytest.mark.parametrize("word", ["1", "01", "bandwidth", "01_bandwidth", "01_bandwidth.ipynb", "Bandwidth"])
def test_a_lesson_by_any_of_its_names(lesson: Callable[..., Path], word: str) -> None:
    lesson("00_environment")
    folder = lesson("01_bandwidth").parent
    assert [found.stem for found in lessons.find([word], folder)] == ["01_bandwidth"]


def test_a_number_means_all_parts_and_an_unknown_word_lists_the_lessons(lesson: Callable[..., Path]) -> None:
    lesson("02a_first")
    folder = lesson("02b_second").parent
    assert [found.stem for found in lessons.find(["2"], folder)] == ["02a_first", "02b_second"]
    assert [found.stem for found in lessons.find(["02b"], folder)] == ["02b_second"]
    with pytest.raises(UsageError, match="02a_first, 02b_second"):
        lessons.find(["3"], folder)
