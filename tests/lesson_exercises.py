"""A lesson's exercises as they stand in its notebooks: what the tests of every lesson take from there."""

import contextlib
import io
import re

import nbformat
import numpy as np
from rooflab import exercises
from rooflab.paths import NOTEBOOKS


class Lesson:
    """The exercises of lesson "01": `parts` holds the cells of each of its notebooks by name, `numbers` the
    exercises that have a checker."""

    def __init__(self, lesson):
        paths = sorted(NOTEBOOKS.glob(f"{lesson}*.ipynb"))
        self.parts = {path.name: nbformat.read(path, as_version=4).cells for path in paths}
        self.cells = [cell for cells in self.parts.values() for cell in cells]
        self.numbers = exercises.numbers(lesson)

    def headings(self):
        """The exercise numbers that stand in headings, in the order of the parts."""
        lesson = self.numbers[0].partition(".")[0]
        return [
            number
            for cell in self.cells
            if cell.cell_type == "markdown"
            for number in re.findall(rf"^### ({lesson}\.[\da-z]) ", cell.source, re.MULTILINE)
        ]

    def text(self, number):
        """The cell with an exercise's heading, hint and solution."""
        return self.cells[self._at(number)].source

    def starter(self, number):
        """The code cell after it."""
        return self.cells[self._at(number) + 1].source

    def solution(self, number):
        """The folded solution's code."""
        return re.search(r"<summary>Solution</summary>.*?```\w+\n(.*?)```", self.text(number), re.DOTALL)[1]

    def changed(self, number, *pairs):
        """The solution of a step with pieces of it replaced: (old, new) of a plausible mistake."""
        source = self.solution(number)
        for old, new in pairs:
            assert old in source, old
            source = source.replace(old, new)
        return source

    def _at(self, number):
        return next(i for i, cell in enumerate(self.cells) if f"### {number} " in cell.source)

    def verdict(self, number, source=None):
        """What an exercise's own cell says, with `source` in the place of its definitions (or of its kernel)
        if given."""
        starter = self.starter(number)
        magic, _, cell = starter.partition("\n")
        if magic == f"%%kernel {number}":
            return str(exercises.kernels.attempt(number, "\n" + (cell if source is None else source)))
        scope = {"exercises": exercises, "np": np}
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(starter if source is None else f"{source}\n\n{starter.splitlines()[-1]}", scope)
        return said.getvalue()

    def check_starter(self, number):
        """The exercise has a hint, and its starter says that it was not attempted."""
        assert "<summary>Hint</summary>" in self.text(number), f"exercise {number} has no hint"
        said = self.verdict(number)
        assert said.startswith(f"Exercise {number}: not attempted: "), said

    def check_solution(self, number):
        """The folded solution is right, and defines what the starter defines."""
        solution, starter = self.solution(number), self.starter(number)
        heads = [re.findall(r"^def .*:$", text, re.MULTILINE) for text in (solution, starter)]
        assert heads[0] == heads[1], heads
        said = self.verdict(number, solution)
        assert said.startswith(f"Exercise {number}: right: "), said


class EveryExercise:
    """What holds for the exercises of every lesson. A lesson's class of tests inherits it and gives `lesson`
    and `wrong`: for each number, plausible mistakes by name."""

    lesson: Lesson
    wrong: dict[str, dict[str, str]]

    def pytest_generate_tests(self, metafunc):
        if "mistake" in metafunc.fixturenames:
            pairs = [(number, name) for number, found in metafunc.cls.wrong.items() for name in found]
            metafunc.parametrize(("number", "mistake"), pairs)
        elif "number" in metafunc.fixturenames:
            metafunc.parametrize("number", metafunc.cls.lesson.numbers)

    def test_there_are_enough_and_each_part_has_one(self):
        lesson = self.lesson
        assert len(lesson.numbers) >= 3 and sorted(self.wrong) == lesson.numbers == sorted(lesson.headings())
        for name, cells in lesson.parts.items():
            assert any(f"### {number} " in c.source for c in cells for number in lesson.numbers), name

    def test_one_says_that_it_needs_no_gpu(self):
        assert any("no GPU" in self.lesson.text(number) for number in self.lesson.numbers)

    def test_the_starter_is_not_attempted(self, number):
        self.lesson.check_starter(number)

    def test_the_solution_is_right_and_defines_what_the_starter_does(self, number):
        self.lesson.check_solution(number)

    def test_a_plausible_mistake_is_wrong_and_hears_why(self, number, mistake):
        said = self.lesson.verdict(number, self.wrong[number][mistake])
        assert said.startswith(f"Exercise {number}: wrong: ") and len(said) > 60, said
