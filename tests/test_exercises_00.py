"""Lesson 00's exercises, taken from the notebook itself: starters, solutions, and plausible mistakes."""

import contextlib
import io
import re

import nbformat
import numpy as np
import pytest
from rooflab import exercises
from rooflab.paths import NOTEBOOKS

PARTS = [nbformat.read(path, as_version=4).cells for path in sorted(NOTEBOOKS.glob("00*.ipynb"))]
CELLS = [cell for part in PARTS for cell in part]
NUMBERS = exercises.numbers("00")

WRONG = {
    "00.1": {
        "NaN is not greater": "def passes(got, expected, allowed):\n"
        "    return not (abs(got - expected) > allowed).any()",
        "NaN is left out": "def passes(got, expected, allowed):\n"
        "    return bool(np.nanmax(abs(got - expected)) <= allowed)",
        "one side only": "def passes(got, expected, allowed):\n"
        "    return bool((got - expected <= allowed).all())",
        "all refused": "def passes(got, expected, allowed):\n    return False",
        "the mean": "def passes(got, expected, allowed):\n"
        "    return bool(abs(got.mean() - expected.mean()) <= allowed)",
        "no code": "def passes(got, expected, allowed):\n    return (got <= expected).typo",
    },
    "00.2": {
        "honest": "def my_kernel(a, x, y, out):\n    out[:] = a * x + y",
        "seen by anyone": "def my_kernel(a, x, y, out):\n    out[:] = 0",
    },
    "00.3": {
        "rounded down": "def copies(operand_bytes, l2_bytes):\n"
        "    return max(2, 4 * l2_bytes // operand_bytes)",
        "one L2 only": "def copies(operands, l2):\n    return max(2, -(-l2 // operands))",
        "one copy": "def copies(operands, l2):\n    return max(1, -(-4 * l2 // operands))",
        "a fraction": "def copies(operand_bytes, l2_bytes):\n    return max(2, 4 * l2_bytes / operand_bytes)",
        "too many": "def copies(operand_bytes, l2_bytes):\n    return 2 + -(-4 * l2_bytes // operand_bytes)",
    },
    "00.4": {
        "with the launch": "def cost(few, few_us, many, many_us):\n    return many_us / many",
        "all of them": "def cost(few, few_us, many, many_us):\n    return many_us - few_us",
        "one copied from the page": "def cost(few, few_us, many, many_us):\n    return 1.18",
    },
}


def cells_of(number):
    """(text, starter) of an exercise: the cell with its heading, and the code cell after it."""
    at = next(i for i, cell in enumerate(CELLS) if f"### {number} " in cell.source)
    return CELLS[at].source, CELLS[at + 1].source


def solution_of(number):
    """The folded solution's code."""
    text, _ = cells_of(number)
    return re.search(r"<summary>Solution</summary>.*?```python\n(.*?)```", text, re.DOTALL)[1]


def verdict(source, starter):
    """What the exercise's own cell says when `source` stands in the place of its definitions."""
    scope: dict = {"exercises": exercises, "np": np}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(starter, scope) if source is None else exec(f"{source}\n\n{starter.splitlines()[-1]}", scope)
    return said.getvalue()


def test_there_are_enough_of_them():
    assert len(NUMBERS) >= 3 and sorted(WRONG) == NUMBERS


def test_each_part_has_one_of_its_own():
    found = [re.findall(r"^### (00\.\d) ", cell.source, re.MULTILINE) for part in PARTS for cell in part]
    assert sum(found, []) == NUMBERS
    assert all(any("exercises.check(" in cell.source for cell in part) for part in PARTS)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_starter_is_not_attempted(number):
    text, starter = cells_of(number)
    assert "<summary>Hint</summary>" in text
    assert verdict(None, starter).startswith(f"Exercise {number}: not attempted: ")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_solution_is_right_and_defines_what_the_starter_does(number):
    _, starter = cells_of(number)
    solution = solution_of(number)
    assert re.findall(r"^def .*:$", solution, re.MULTILINE) == re.findall(r"^def .*:$", starter, re.MULTILINE)
    assert verdict(solution, starter).startswith(f"Exercise {number}: right: ")


@pytest.mark.parametrize(("number", "mistake"), [(n, m) for n, found in WRONG.items() for m in found])
def test_a_plausible_mistake_is_wrong_and_hears_why(number, mistake):
    said = verdict(WRONG[number][mistake], cells_of(number)[1])
    assert said.startswith(f"Exercise {number}: wrong: ") and len(said) > 40


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "out[:] = a * x + y; out[3] = np.nan",
        "out[1:] = (a * x + y)[1:]",
        "out[:] = a * x + y; x[0] = 9",
        "calls.append(1); out[:] = a * x + y; out[0] += len(calls) > 5",
    ],
)
def test_the_gate_refuses_whatever_gets_past_the_sloppy_check(body):
    source = f"calls = []\n\ndef my_kernel(a, x, y, out):\n    {body}"
    said = verdict(source, cells_of("00.2")[1])
    assert said.startswith("Exercise 00.2: right: the sloppy check is satisfied, the gate is not: ")
