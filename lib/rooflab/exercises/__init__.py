"""Exercises with targets that a program checks.

A notebook's exercise cell ends in `exercises.check("01.2", answer)`. The answer is a value, or a function
that the checker calls with cases of its own, so that a number copied from the page is not enough. A starter
leaves its answer as `...`, which reads as "not attempted" and raises nothing. Checkers live in one module a
lesson, lesson_00.py and so on, each a function registered under its exercise's number; they need no GPU.
An exercise may also ask for a kernel, in a cell that starts with `%%kernel 03.4`: see kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rooflab.errors import MissingTool, UsageError
from rooflab.exercises import kernels
from rooflab.exercises.kernels import kernel as kernel

kernels.register_magic()


class Wrong(Exception):
    """Raised by a checker: the sentence says what does not hold, without giving the answer away."""


@dataclass(frozen=True)
class Verdict:
    """`status` is "not attempted", "right", "wrong", or "not checked" for want of a tool; `sentence` says
    why.
    """

    status: str
    sentence: str


_CHECKERS: dict[str, Callable[..., str]] = {}


def checker(number: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a checker for exercise `number` ("01.2"): it returns a sentence, or raises Wrong."""

    def register(function: Callable[..., str]) -> Callable[..., str]:
        if number in _CHECKERS:
            raise UsageError(f"Exercise {number} has two checkers.")
        _CHECKERS[number] = function
        return function

    return register


def numbers(lesson: str) -> list[str]:
    """The exercises of a lesson ("00"), in order."""
    _load(lesson)
    return sorted(number for number in {**_CHECKERS, **kernels.TASKS} if number.startswith(f"{lesson}."))


def attempt(number: str, *answers: Any) -> Verdict:
    """Judge the answers to an exercise; a mistake in their own code counts as wrong, not as a crash."""
    _load(number.partition(".")[0])
    if number in kernels.TASKS:
        raise UsageError(
            f"Exercise {number} asks for a kernel: begin its cell with %%kernel {number}, or pass the source "
            f'to exercises.kernel("{number}", ...).'
        )
    if number not in _CHECKERS:
        raise UsageError(
            f"There is no exercise {number!r}; lesson {number[:2]} has {', '.join(numbers(number[:2]))}."
        )
    if any(_open(answer) for answer in answers):
        return Verdict("not attempted", "replace the ... with your answer, then run the cell again.")
    try:
        return Verdict("right", _CHECKERS[number](*answers))
    except Wrong as wrong:
        return Verdict("wrong", str(wrong))
    except MissingTool as missing:
        return Verdict("not checked", str(missing))
    except NotImplementedError:
        return Verdict("not attempted", "replace the ... with your answer, then run the cell again.")
    except Exception as error:
        return Verdict("wrong", f"your code raised {type(error).__name__}: {error}")


def check(number: str, *answers: Any) -> None:
    """Print the verdict on an exercise; what a notebook's exercise cell calls."""
    verdict = attempt(number, *answers)
    print(f"Exercise {number}: {verdict.status}: {verdict.sentence}")


def _open(answer: Any) -> bool:
    return answer is None or answer is ...


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an answer; one that still returns `...` or None has not been attempted."""
    result = function(*arguments)
    if _open(result):
        raise NotImplementedError
    return result


def _load(lesson: str) -> None:
    try:
        import_module(f"rooflab.exercises.lesson_{lesson}")
    except ModuleNotFoundError as error:
        raise UsageError(f"Lesson {lesson!r} has no exercises.") from error
