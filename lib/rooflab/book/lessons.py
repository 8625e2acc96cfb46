"""Which lessons exist, what they begin with, and which one a user means by "1", "01", "bandwidth" or
"01_bandwidth"."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rooflab import paths
from rooflab.errors import UsageError

_FILE = re.compile(r"(\d\d)([a-z]?)_(\w+)\.ipynb")


@dataclass(frozen=True)
class Lesson:
    """One notebook of the series: number "01", part "" or a letter, name "bandwidth", and its file."""

    number: str
    part: str
    name: str
    path: Path

    @property
    def stem(self) -> str:
        return self.path.stem

    def answers_to(self, text: str) -> bool:
        """Whether a user's word means this lesson; a bare number means all parts of that lesson."""
        text = text.strip().removesuffix(".ipynb").lower()
        if text in (self.stem.lower(), self.name.lower(), self.number + self.part):
            return True
        return text.isdecimal() and int(text) == int(self.number)


def all_lessons(folder: Path | None = None) -> list[Lesson]:
    """The series in order. Raises UsageError where the folder holds no notebook named as lessons are."""
    folder = folder or paths.NOTEBOOKS
    found = [
        (match, path) for path in sorted(folder.glob("*.ipynb")) if (match := _FILE.fullmatch(path.name))
    ]
    if not found:
        raise UsageError(f"no lesson in {folder}: notebooks are named like 01_bandwidth.ipynb.")
    return [Lesson(match[1], match[2], match[3], path) for match, path in found]


def find(words: Iterable[str], folder: Path | None = None) -> list[Lesson]:
    """The lessons that the words name, in order and each once; no words means all of them."""
    lessons = all_lessons(folder)
    words = list(words)
    for word in words:
        if not any(lesson.answers_to(word) for lesson in lessons):
            known = ", ".join(lesson.stem for lesson in lessons)
            raise UsageError(f"there is no lesson {word!r}: the lessons are {known}.")
    return [lesson for lesson in lessons if not words or any(lesson.answers_to(word) for word in words)]


class Opening(NamedTuple):
    """What a lesson begins with: its file's stem, its title, and the question it asks; and how many words it
    shows.
    """

    stem: str
    title: str
    question: str
    words: int

    @property
    def name(self) -> str:
        """The number and part of its file: "03b"."""
        return self.stem.partition("_")[0]


def opening(notebook: Path) -> Opening:
    """The title and question of a lesson, from its first cell."""
    from rooflab.book import normal

    cells = normal.read(notebook).cells
    text = cells[0].source
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    question = re.search(r"^\*\*(.+?)\*\*\s*$", text, re.MULTILINE | re.DOTALL)
    said = " ".join(question[1].split()) if question else ""
    return Opening(notebook.stem, title[1].strip() if title else notebook.stem, said, words(cells))


_FOLDED = re.compile(r"<details(?:(?!<details).)*?</details>", re.DOTALL)
_MARKUP = re.compile(r"<[^>]*>|\]\([^)]*\)")


def words(cells: Iterable[Any]) -> int:
    """How many words a reader of a page meets: in its text and in what its cells show, kernels included,
    without what is folded away, as a linked rung is on the site.
    """
    from rooflab.view import page

    texts = []
    for cell in cells:
        if cell.cell_type == "markdown":
            texts.append(cell.source)
        for shown in cell.get("outputs", []):
            data = shown.get("data", {})
            kinds = [kind for kind in ("text/markdown", "text/html", "text/plain") if kind in data]
            text = "".join(data[kinds[0]] if kinds else shown.get("text", ""))
            texts += [] if page.BRIEF.match(text) else [text]
    count = 0
    for text in texts:
        while text != (text := _FOLDED.sub("", text)):
            pass
        count += len(re.findall(r"[^\W\d_]{2,}", _MARKUP.sub("", text)))
    return count
