"""The book around the lessons: every fact on its pages is a recording's, and every lesson has its place."""

import ast
import re
import shlex
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from rooflab import dispatch, paths
from rooflab.book import executions, glossary, home, lessons, pages
from rooflab.records.store import Store, published_devices

TERMS = glossary.terms()
OPENINGS = [lessons.opening(lesson.path) for lesson in lessons.all_lessons()]
BY_STEM = {one.stem: one for one in OPENINGS}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages.make([lesson.path for lesson in lessons.all_lessons()])


def _rows(markdown: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    part = markdown.split(f"# {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", part + "\n", re.MULTILINE)
    assert lines, heading
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[0].strip().splitlines()[2:]]


def test_every_lesson_begins_with_its_title_and_a_question() -> None:
    for one in OPENINGS:
        assert one.title.startswith(f"Lesson {one.name}: "), one.stem
        assert one.question.endswith("?"), one.stem


def test_every_path_leads_to_lessons_and_a_longer_one_holds_the_shorter() -> None:
    *limited, (_, _, everything) = home.PATHS
    assert everything == () and home.chosen(OPENINGS, ()) == OPENINGS
    assert set(limited[0][2]) < set(limited[1][2])
    for _, _, names in limited:
        assert list(names) == sorted(names)
        assert [one.name for one in home.chosen(OPENINGS, names)] == list(names)
    hour, day = (sum(one.words for one in home.chosen(OPENINGS, names)) for _, _, names in limited)
    assert 40 < hour / home.PACE <= 65, "an hour is an hour of reading"
    assert day / home.PACE / 60 < 8
    text = home.begin(OPENINGS) + home.contents(OPENINGS)
    assert f"; {hour / home.PACE:.0f} minutes of reading." in text
    for one in OPENINGS:
        assert f"]({one.stem}.ipynb)" in text and one.question in text


def test_the_words_of_a_page_are_those_that_it_shows() -> None:
    table = {"text/markdown": "two words", "text/html": "<b>never</b> read", "text/plain": "nor this"}
    html = {"text/html": '<img alt="hidden"> seen <details>not <details>this</details> folded</details>'}
    cells = [
        v4.new_markdown_cell("A [link here](with_a_target.ipynb) and 12"),
        v4.new_code_cell("code = 1", outputs=[v4.new_output("display_data", table)]),
        v4.new_code_cell("", outputs=[v4.new_output("display_data", html)]),
        v4.new_code_cell("", outputs=[v4.new_output("stream", text="printed line")]),
    ]
    assert lessons.words(cells) == 3 + 2 + 1 + 2


def test_a_lesson_ends_with_a_link_to_the_next() -> None:
    found = lessons.all_lessons()
    for lesson, following in zip(found, found[1:], strict=False):
        last = nbformat.read(lesson.path, as_version=4).cells[-1]
        assert last.cell_type == "markdown" and f"({following.path.name})" in last.source, lesson.stem


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_a_term_is_met_in_the_lesson_that_explains_it(term: glossary.Term) -> None:
    assert term.lesson in BY_STEM and term.meaning.endswith(".")
    notebook = nbformat.read(paths.NOTEBOOKS / f"{term.lesson}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert glossary.pattern([term]).search(text), "its lesson never says it"


def test_terms_and_their_forms_are_each_said_once() -> None:
    names = [term.name for term in TERMS]
    assert names == sorted(names, key=str.lower)
    forms = [form.lower() for term in TERMS for form in (term.name, *term.forms)]
    assert len(forms) == len(set(forms))


def test_the_line_of_a_fold_takes_no_link() -> None:
    folded = '<details class="source"><summary>A block, whole</summary>'
    assert glossary.linked([folded, "A block of threads"], TERMS) == [
        folded,
        "A {term}`block <block>` of threads",
    ]


def test_the_first_mention_of_a_term_is_linked_and_code_is_left_alone() -> None:
    texts = [
        "# A warp\n\nWarps, `warp`, $warp$, [a warp](x.md), sm_warp and\n\n```\nwarp\n```\n\n| warp |",
        "A warp on an SM; the *grid barrier*.",
    ]
    first, second = glossary.linked(texts, TERMS)
    assert first == texts[0].replace("Warps,", "{term}`Warps <warp>`,")
    assert second == "A warp on an {term}`SM <SM>`; the *{term}`grid barrier <grid barrier>`*."
    elsewhere = "A block of 32 weights."
    assert glossary.linked([elsewhere], TERMS, "05_q8_0")[0].startswith("A block of")
    assert glossary.linked([elsewhere], TERMS, "00a_environment")[0].startswith("A {term}`block <block>` of")


def test_every_recorded_and_published_device_has_its_page(made: dict[str, str]) -> None:
    h200 = made["device-h200"]
    store = Store(paths.DATA, "h200")
    assert f"# {store.runs().iloc[-1]['gpu']}" in h200
    assert [row[0] for row in _rows(h200, "Runs")] == store.runs()["run"].tolist()
    assert sum(int(row[4].replace(",", "")) for row in _rows(h200, "Runs")) == sum(
        len(store.read(study)) for study in store.studies()
    )
    for name in published_devices(paths.DATA):
        page = made[f"device-{name}"]
        assert (
            "None of these figures was measured by this repository" in page
            and f"device-{name}" in made["devices"]
        )
        rows = sum(len(Store(paths.DATA, name).read(s)) for s in Store(paths.DATA, name).studies())
        tables = [
            line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| ---")
        ]
        heads = sum(line.startswith("| operator |") for line in tables)
        assert len(tables) - heads == rows, name


def test_the_rule_on_the_page_is_the_dispatchers(made: dict[str, str]) -> None:
    table = dispatch.table("h200")
    for format_, name in pages._FORMATS.items():
        mine = table[table["format"] == format_]
        for row in _rows(made["choose"], f"{name} on NVIDIA H200"):
            n, k = map(int, row[0].replace("\u00a0", " ").split(" x "))
            tokens = sorted(mine["batch"].unique())
            for batch, cell in zip(tokens, row[1:], strict=True):
                if cell:
                    names = list(mine["impl"].unique())
                    assert cell.split()[0] == dispatch.fastest(mine, n, k, batch, names)[0]  # type: ignore[index]


def test_the_status_page_renders_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = {"lesson": OPENINGS[0].stem, "mode": "live", "effort": "full", "ending": "ok", "seconds": 12.3}
    row |= {"gpu": "NVIDIA L4", "commit": "0123456789ab", "started": "2026-11-21T10:11:12Z", "cells": 5}
    row |= {"cases": 40, "measured": 30, "gated": 28, "skipped": 2, "profiled": 3}
    executions.keep(tmp_path, [row, {**row, "lesson": OPENINGS[1].stem, "ending": "late"}])
    lines = "\n".join(pages._executed(tmp_path, "Live", OPENINGS, "None yet."))
    assert "2 pages, 0.4 minutes: 2026-11-21, NVIDIA L4, commit 0123456789ab, effort full." in lines
    first, second = _rows(lines, "Live")
    assert first[1:] == ["10:11:12", "12 s", "well", "5", "40", "28", "2", "3", "30"]
    assert second[3] == "late"
    assert "None yet." in "\n".join(pages._executed(tmp_path / "none", "Live", OPENINGS, "None yet."))


def test_the_page_for_contributors_names_commands_that_exist(made: dict[str, str]) -> None:
    from rooflab import cli

    for words in re.findall(r"rooflab ([a-z]+(?: [^#`\n]*)?)", made["add-your-gpu"]):
        words = words.replace("<device>", "h200").strip()
        cli.parser().parse_args(words.split())


def test_the_page_for_clusters_holds_commands_and_python_that_parse(made: dict[str, str]) -> None:
    from rooflab import cli, cluster

    blocks = re.findall(r"```(sh|python)\n(.*?)```", made["cluster"], re.DOTALL)
    lines = [shlex.split(line) for kind, text in blocks if kind == "sh" for line in text.splitlines()]
    called = [cli.parser().parse_args(words[1:]) for words in lines if words[0] == "rooflab"]
    assert [cluster.checked(one.scheduler) for one in called if "scheduler" in one] == ["tcp://head:8786"] * 3
    workers = [words[words.index("worker") + 1 :] for words in lines if "worker" in words]
    python = [ast.parse(text) for kind, text in blocks if kind == "python"]
    assert len(workers) == 2 and len(python) == 2
    assert [len(tree.body) for tree in python] == [3, 3] and "`cluster.scheduler_address`" in made["cluster"]
    strings = [
        [element.value for element in node.elts if isinstance(element, ast.Constant)]
        for tree in python
        for node in ast.walk(tree)
        if isinstance(node, ast.List)
    ]
    given = [words for words in strings if "--resources" in words]
    workers += [["tcp://head:8786", *words[words[0] == "dask-worker" :]] for words in given]
    assert len(workers) == 4
    main = pytest.importorskip("distributed.cli.dask_worker", reason="needs Dask distributed").main
    for words in workers:
        read = main.make_context("dask worker", list(words)).params
        assert read["scheduler"] == "tcp://head:8786" and "GPU=1" in read["resources"]


@pytest.mark.parametrize("path", sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_no_sentence_says_a_missing_number(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    said = [str(output.get("data", {}).get("text/markdown", "")) for output in outputs]
    said = [re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL) for text in said]  # code may say inf
    assert not [text for text in said if re.search(r"\b(nan|None (µs|%|GB/s))\b|\binf\b", text)]
