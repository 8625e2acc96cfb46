"""The field's terms: glossary.csv, the page made of it, and links to it where a lesson first says one."""

import csv
import json
import re
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("glossary.csv")
PAGE = "glossary"

# What in Markdown is no running text: code, formulas, links, HTML, headings, rows of tables.
_OTHER = re.compile(
    r"(```.*?(?:```|\Z)|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$|!?\[[^\]]*\]\([^)]*\)|<details>.*?</details>"
    r"|<summary>.*?</summary>|<[^>]*>"
    r"|^\#.*?$|^\|.*?$|^>.*?$)",
    re.DOTALL | re.MULTILINE,
)


class Term(NamedTuple):
    """A term, the other forms it is met in, the lesson (a notebook's stem) that explains it, those (by the
    beginning of their stems) where the word is another's, its meaning."""

    name: str
    forms: tuple[str, ...]
    lesson: str
    elsewhere: tuple[str, ...]
    meaning: str


def terms(file: Path = FILE) -> list[Term]:
    """All terms, in the order of the alphabet."""
    with open(file, encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    return [
        Term(
            row["term"],
            tuple(filter(None, row["forms"].split("|"))),
            row["lesson"],
            tuple(filter(None, row["except"].split("|"))),
            row["meaning"],
        )
        for row in rows
    ]


def pattern(found: Iterable[Term]) -> re.Pattern[str]:
    """What matches the terms in any of their forms, longest first. A form in small letters may begin a
    sentence; one with capitals is met as it is."""
    forms = sorted({form for term in found for form in (term.name, *term.forms)}, key=len, reverse=True)
    shown = [
        f"[{form[0]}{form[0].upper()}]{re.escape(form[1:])}" if form.islower() else re.escape(form)
        for form in forms
    ]
    return re.compile(rf"(?<![\w./-])(?<!pull )(?:{'|'.join(shown)})(?![\w/-]|\.\w)")


def anchor(term: str) -> str:
    """The anchor that Sphinx gives a term on the glossary's page."""
    return "term-" + re.sub(r"[^A-Za-z0-9._]+", "-", term).strip("-")


def script(found: Iterable[Term]) -> str:
    """The meanings by anchor, for the cards that site/page.js shows where a term stands."""
    meanings = {anchor(term.name): term.meaning.replace("`", "") for term in found}
    return f"window.rooflabTerms = {json.dumps(meanings)};\n"


def linked(
    texts: Iterable[str], found: Iterable[Term], stem: str = "", outputs: Collection[int] = ()
) -> list[str]:
    """Markdown texts of one page (`stem`), in which the first mention of each term leads to the glossary.
    `outputs` are the places of those that a cell shows, where Sphinx knows links and no roles."""
    found = [term for term in found if not any(stem.startswith(other) for other in term.elsewhere)]
    left = {form.lower(): term for term in found for form in (term.name, *term.forms)}
    mention, seen = pattern(found), set[str]()

    def replaced(match: re.Match[str], output: bool) -> str:
        term = left[match[0].lower()]
        if term.name in seen:
            return match[0]
        seen.add(term.name)
        if output:
            return f"[{match[0]}]({PAGE}.html#{anchor(term.name)})"
        return f"{{term}}`{match[0]} <{term.name}>`"

    result = []
    for place, text in enumerate(texts):
        replace = partial(replaced, output=place in outputs)
        parts = enumerate(_OTHER.split(text))
        result.append("".join(part if i % 2 else mention.sub(replace, part) for i, part in parts))
    return result


def page(found: Iterable[Term], titles: dict[str, str]) -> str:
    """The glossary as Markdown; `titles` are the lessons of this site by stem."""
    lines = ["# Glossary", "", "What the course means by its words, and the lesson that explains each.", ""]
    lines += ["```{glossary}"]
    for term in found:
        where = f" [{titles[term.lesson]}]({term.lesson}.ipynb)." if term.lesson in titles else ""
        lines += [term.name, f"  {term.meaning}{where}", ""]
    return "\n".join([*lines[:-1], "```", ""])
