"""How exercises are judged: starters, right, wrong and crashing answers."""

import pytest
from rooflab import exercises
from rooflab.errors import MissingTool, UsageError
from rooflab.exercises import kernels


@pytest.fixture
def doubling(monkeypatch):
    monkeypatch.setattr(exercises, "_CHECKERS", {})
    monkeypatch.setattr(exercises, "_load", lambda lesson: None)

    @exercises.checker("77.1")
    def _(double):
        for x in (2, 5):
            if exercises.called(double, x) != 2 * x:
                raise exercises.Wrong(f"double({x}) is not right.")
        return "it doubles."


def test_a_starter_is_not_attempted_and_raises_nothing(doubling, capsys):
    exercises.check("77.1", ...)
    assert capsys.readouterr().out.startswith("Exercise 77.1: not attempted: ")
    assert exercises.attempt("77.1", None).status == "not attempted"
    assert exercises.attempt("77.1", lambda x: ...).status == "not attempted"


def test_right_and_wrong_and_crashing_answers(doubling):
    assert exercises.attempt("77.1", lambda x: x + x) == exercises.Verdict("right", "it doubles.")
    assert exercises.attempt("77.1", lambda x: x * x) == exercises.Verdict("wrong", "double(5) is not right.")
    crash = exercises.attempt("77.1", lambda x: x / 0)
    assert crash.status == "wrong" and "ZeroDivisionError" in crash.sentence


def test_an_answer_that_cannot_be_checked_here_is_not_wrong(doubling):
    def needs_a_compiler(x):
        raise MissingTool("No C++ compiler was found.")

    verdict = exercises.attempt("77.1", needs_a_compiler)
    assert verdict == exercises.Verdict("not checked", "No C++ compiler was found.")


def test_unknown_exercises_and_lessons_are_named(doubling, monkeypatch):
    with pytest.raises(UsageError, match="no exercise '77.9'; lesson 77 has 77.1"):
        exercises.attempt("77.9", 1)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="Lesson '98' has no exercises"):
        exercises.attempt("98.1", 1)
    with pytest.raises(UsageError, match="Exercise 00.1 asks for a kernel: .* %%kernel 00.1"):
        exercises.attempt("00.1", "the source of a kernel")


def test_a_number_is_registered_once(doubling):
    with pytest.raises(UsageError, match="77.1 has two checkers"):
        exercises.checker("77.1")(lambda answer: "")


@pytest.mark.parametrize(
    ("number", "pair"),
    [
        ("04.c", "1_warp_row -> 2_vector: "),
        ("04.3", "5_split_k -> 6_batched tokens=4: "),
        ("05.3", "1_token -> 2_batched: "),
        ("06.4", "4_mma -> 5_padded: "),
        ("06.d", "3_half2 -> 4_mma: "),
    ],
)
def test_a_kernel_says_what_two_recorded_rungs_gain_by_it(number, pair):
    exercises.numbers(number[:2])  # loads the lesson's exercises
    said = kernels.TASKS[number].worth()
    assert (
        said.startswith(f"the course's rungs {pair}")
        and said.endswith("on the recorded NVIDIA H200")
        and " us, " in said
    )
