"""The pages that a code host shows first: README.md, docs/results.md and their drawings, made from records.

A page keeps its own text; what is made lies between two markers in it, which PAGES lists.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from rooflab import paths
from rooflab.analysis import another_gpu, way
from rooflab.book import lessons, readme
from rooflab.errors import MissingRecording, UsageError
from rooflab.records.store import Store
from rooflab.studies import decode
from rooflab.view.diagram import memory, report
from rooflab.view.diagram.svg import Drawing

DEVICE = "h200"  # the recording whose figures the repository's own pages show
# The operators of a token and of a prompt, in the words of a reader who has not seen their names.
_OPERATORS = {
    "gemv_rows": "FP16 matrix × vector",
    "int4": "INT4 matrix × vector",
    "mmq": "Q8_0 matrix × matrix",
    "attention": "attention",
    "decode_attention": "decode attention",
}
_COLUMNS = ("what", "ours", "roof", "fastest peer")
_WIDTH = 410  # pixels of a drawing: two of them side by side on a code host


def markers(name: str) -> tuple[str, str]:
    """The comments around what is made under this name."""
    return f"<!-- {name}: begin (made by `rooflab refresh`) -->", f"<!-- {name}: end -->"


def drawings(store: Store) -> dict[str, Drawing]:
    """README's drawings by their file: a mechanism, and what the course builds up to; without those that
    nothing was recorded for."""
    found: dict[str, Drawing] = {}
    with contextlib.suppress(MissingRecording):  # of a copy without data/cpu
        found["docs/mechanism.svg"] = memory.moved_sectors()
    climbed = way.ladder(store)
    if len(climbed):
        title = f"{decode.MODEL} on the {readme.gpu_of(store)}, tokens a second"
        found["docs/result.svg"] = report.decoder(climbed, title)
    return found


def pictures(store: Store) -> str:
    """README's drawings side by side, each with its words."""
    shown = [
        f'<img src="{file}" width="{_WIDTH}" align="top" alt="{drawing.title}. {drawing.says}">'
        for file, drawing in drawings(store).items()
    ]
    return "\n".join(shown) + "\n"


def lesson_line(folder: Path) -> str:
    """Every lesson by the title of its first part, in one paragraph of links from the repository's root."""
    found: dict[str, str] = {}
    for lesson in lessons.all_lessons(folder):
        found.setdefault(lesson.number, f"[{_title(lesson)}](notebooks/{lesson.path.name})")
    parts = [f"**{number}** {link}" for number, link in found.items()]
    return " ·\n".join([*parts, "[all parts, with their questions](docs/lessons.md)"]) + "\n"


def lesson_table(folder: Path) -> str:
    """Every part of every lesson with its question, a row each, as Markdown with links from docs/."""
    lines = ["| part | lesson | its question |", "| --- | --- | --- |"]
    for lesson in lessons.all_lessons(folder):
        one = lessons.opening(lesson.path)
        lines.append(
            f"| {one.name} | [{_title(lesson)}](../notebooks/{lesson.path.name}) | {one.question or ''} |"
        )
    return "\n".join(lines) + "\n"


def _title(lesson: lessons.Lesson) -> str:
    return lessons.opening(lesson.path).title.partition(": ")[2] or lesson.stem


def headline(store: Store) -> pd.DataFrame:
    """What README says of the results, a line each: the operators of a token and a prompt, and one sequence
    through whole models, each with the fastest peer, recorded or else published."""
    kernels, whole = readme.results(store), readme.models(store, every=False)
    by_operator = {row["operator"]: row for row in kernels.to_dict("records")}
    rows = []
    for operator, words in _OPERATORS.items():
        if row := by_operator.get(operator):
            rows.append((words, row["achieved"], row["of its roof"], row["best recorded peer"]))
    for row in whole[~whole["what"].str.endswith("sequences")].to_dict("records") if len(whole) else []:
        what = f"{row['model']} {row['what'].partition(',')[0]}, {row['weights'].partition(',')[0]}"
        rows.append((what, f"{row['tokens a second']} tok/s", row["of its roof"], row[readme.PEER]))
    found = [(what, ours, share.partition(" ")[0], _fastest(peers)) for what, ours, share, peers in rows]
    return pd.DataFrame([row for row in found if row[-1]], columns=list(_COLUMNS))


def _fastest(peers: str) -> str:
    """Of the peers of a row of `readme` the fastest, its unit, which is ours, left out: a published one is
    named last, and only where it is faster than the recorded ones."""
    named = [one for one in peers.split("; ") if one and not one.startswith("not recorded")]
    return named[-1].removesuffix(" GB/s").removesuffix(" TFLOP/s") if named else ""


def _headline(store: Store) -> str:
    table = headline(store)
    if table.empty:
        return f"There is no recording of {store.device} yet.\n"
    other = another_gpu.recorded(store)
    elsewhere = ["", another_gpu.sentence(other)] if other else []
    return "\n".join([readme.device_line(store), "", *readme.table(table), *elsewhere]) + "\n"


# What is made in which page, by the name that its markers have.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "pictures": lambda: pictures(_store()),
        "lessons": lambda: lesson_line(paths.NOTEBOOKS),
        "results": lambda: _headline(_store()),
    },
    "docs/lessons.md": {"lessons": lambda: lesson_table(paths.NOTEBOOKS)},
    "docs/results.md": {"results": lambda: readme.markdown(_store())},
}


def _store() -> Store:
    return Store(paths.DATA, DEVICE)


def made() -> Iterator[tuple[str, str]]:
    """Every file of these pages, from the repository's root, with the text that the recording gives it; a
    page that the checkout lacks is left out. Raises UsageError where a page lacks its markers.
    """
    for file, drawing in drawings(_store()).items():
        yield file, drawing.svg() + "\n"
    for page, parts in PAGES.items():
        if (paths.ROOT / page).exists():
            text = (paths.ROOT / page).read_text(encoding="utf-8")
            for name, make in parts.items():
                text = updated(text, name, make(), page)
            yield page, text


def updated(text: str, name: str, made: str, page: str = "README.md") -> str:
    """A page's text with what was made between the markers of a name; UsageError where they are missing."""
    begin, end = markers(name)
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"{page} lacks the markers {begin} and {end}, between which what is made goes.")
    return f"{head}{begin}\n{made}{end}{tail}"
