"""Lesson 01's exercises, taken from its two notebooks: starters, solutions, and plausible mistakes."""

import contextlib
import io
import re

import nbformat
import pytest
from rooflab import exercises
from rooflab.paths import NOTEBOOKS

PARTS = {
    name: nbformat.read(NOTEBOOKS / name, as_version=4).cells
    for name in ("01_bandwidth.ipynb", "01b_roofs.ipynb")
}
CELLS = [cell for cells in PARTS.values() for cell in cells]
NUMBERS = exercises.numbers("01")

WRONG = {
    "01.1": {
        "the whole GPU's": "def bytes_per_sm(gb_s, latency_ns, sms):\n    return gb_s * latency_ns",
        "in KiB": "def bytes_per_sm(gb_s, latency_ns, sms):\n    return gb_s * latency_ns / sms / 1024",
        "a rate over a time": "def bytes_per_sm(gb_s, latency_ns, sms):\n    return gb_s / latency_ns",
    },
    "01.2": {
        "bits as bytes": "def token_us(parameters, bits, gb_s):\n    return parameters * bits / gb_s / 1e3",
        "GiB": "def token_us(n, bits, gb_s):\n    return n * bits / 8 / (gb_s * 2**30) * 1e6",
        "in ms": "def token_us(parameters, bits, gb_s):\n    return parameters * bits / 8 / gb_s / 1e6",
    },
    "01.3": {
        "turned round": "def regime(f, b, g, t):\n    return 'memory' if b / g < f / t / 1e3 else 'compute'",
        "no unit": "def regime(f, b, g, t):\n    return 'memory' if f / b < t / g else 'compute'",
        "one answer for all": "def regime(f, b, g, t):\n    return 'memory'",
        "another word": "def regime(f, b, g, t):\n    return 'DRAM'",
    },
    "01.4": {
        "the first row": "def large_enough(rows, roof, share):\n"
        "    return int(rows[rows['gb_s'] >= share * roof]['bytes'].iloc[0])",
        "the fastest": "def large_enough(rows, roof, share):\n"
        "    return int(rows.loc[rows['gb_s'].idxmax(), 'bytes'])",
        "no answer for none": "def large_enough(rows, roof, share):\n"
        "    return int(rows[rows['gb_s'] >= share * roof]['bytes'].min())",
        "adds to the reader's frame": "def large_enough(rows, roof, share):\n"
        "    rows.insert(0, 'rank', 1)\n"
        "    reached = rows[rows['gb_s'] >= share * roof]\n"
        "    return int(reached['bytes'].iloc[0]) if len(reached) else 0",
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
    scope: dict = {"exercises": exercises}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(starter, scope) if source is None else exec(f"{source}\n\n{starter.splitlines()[-1]}", scope)
    return said.getvalue()


def test_there_are_enough_of_them():
    assert len(NUMBERS) >= 3 and sorted(WRONG) == NUMBERS
    assert sum("no GPU" in cells_of(number)[0] for number in NUMBERS) >= 1
    for cells in PARTS.values():
        assert any(f"### {number} " in cell.source for cell in cells for number in NUMBERS)


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
    assert said.startswith(f"Exercise {number}: wrong: ") and len(said) > 60
