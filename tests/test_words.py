"""Words that computed sentences share; and that no page says "1 tokens"."""

import re

import nbformat
import pytest
from rooflab.book import lessons
from rooflab.words import counted, spans

# What pages count: a number of one of these takes the singular.
COUNTED = "token|row|column|point|block|warp|lane|sector|shape|launche|kernel|matrice|size|sequence|layer|key"
COUNTED += "|head|way|rung|rule|path|case|mutant|statement|goal|product|GPU|request|register|byte|bit|time"


def test_one_thing_takes_the_singular() -> None:
    assert counted(1, "token") == "1 token" and counted(0, "token") == "0 tokens"
    assert counted(1848, "token") == "1,848 tokens"
    assert counted(2, "query", "queries") == "2 queries" and counted(1, "query", "queries") == "1 query"


@pytest.mark.parametrize("lesson", lessons.all_lessons(), ids=lambda lesson: lesson.stem)
def test_no_computed_sentence_gives_one_thing_a_plural(lesson: lessons.Lesson) -> None:
    said = []
    for cell in nbformat.read(lesson.path, as_version=4).cells:
        said += [cell.source] if cell.cell_type == "markdown" else []
        for output in cell.get("outputs", []):
            said += [output.get("text", "")] + [
                text
                for kind, text in output.get("data", {}).items()
                if kind in ("text/markdown", "text/html")
            ]
    text = re.sub(r"data-explorer='[^']*'|base64,[\w+/=]+", "", "\n".join(said))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert re.findall(rf"(?<![\d.,/×^])\b1 (?:{COUNTED})s\b.*", text) == []


def test_numbers_that_follow_each_other_are_said_by_their_ends():
    said = {(): "", (9,): "9", (4, 5): "4, 5", (14, 15, 16, 17): "14 to 17", (18, 19, 20, 11): "18 to 20, 11"}
    assert {numbers: spans(numbers) for numbers in said} == said
