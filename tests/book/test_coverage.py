"""coverage.csv: every feature of the sources has its lesson, and what is called done is there."""

import ast
import csv
import json
import re

import pytest
from rooflab.paths import ROOT

COLUMNS = ["id", "feature", "lesson", "cell", "test", "status"]


def read():
    with open(ROOT / "coverage.csv", newline="") as file:
        reader = csv.DictReader(file)
        return reader.fieldnames, list(reader)


def has_cell(path, name):
    """Whether a notebook has a cell of this id or a heading of this text."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell.get("id") == name:
            return True
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+ +(.*?) *$", "".join(cell["source"]), re.MULTILINE)
            if name in headings:
                return True
    return False


def has_test(root, node):
    """Whether a pytest node id names a test function that is there."""
    file, _, name = node.partition("::")
    path, name = root / file, name.partition("[")[0]
    if not path.is_file() or not name.startswith("test"):
        return False
    return any(
        isinstance(item, ast.FunctionDef) and item.name == name for item in ast.parse(path.read_text()).body
    )


def problems(row, root=ROOT):
    """What a row claims and does not keep."""
    found = []
    if row["status"] not in ("planned", "done"):
        found.append(f"status {row['status']!r}")
    if not re.fullmatch(r"0\d", row["lesson"]):
        found.append(f"lesson {row['lesson']!r}")
    if not row["feature"].strip():
        found.append("no feature")
    if row["status"] == "done":
        notebooks = sorted((root / "notebooks").glob(f"{row['lesson']}*.ipynb"))
        if not row["cell"] or not any(has_cell(path, row["cell"]) for path in notebooks):
            found.append(f"no cell {row['cell']!r} in lesson {row['lesson']}")
        if not has_test(root, row["test"]):
            found.append(f"no test {row['test']!r}")
    return found


def test_every_feature_stands_once():
    header, rows = read()
    assert header == COLUMNS
    assert [row["id"] for row in rows] == [f"M{number:02d}" for number in range(1, 110)]


def test_every_claim_is_kept():
    _, rows = read()
    broken = {row["id"]: found for row in rows if (found := problems(row))}
    assert not broken


@pytest.fixture
def tree(tmp_path):
    """A checkout with one notebook and one test file."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "tests").mkdir()
    cells = [
        {"cell_type": "markdown", "id": "a1", "source": ["# Title\n", "## Size sweep \n", "text"]},
        {"cell_type": "code", "id": "roof", "source": ["# Not a heading"]},
    ]
    (tmp_path / "notebooks" / "01_bandwidth.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "tests" / "test_it.py").write_text(
        "def test_there(x):\n    pass\n\n\ndef helper():\n    pass\n"
    )
    return tmp_path


DONE = {
    "id": "M13",
    "feature": "sweep",
    "lesson": "01",
    "cell": "Size sweep",
    "test": "tests/test_it.py::test_there",
    "status": "done",
}


@pytest.mark.parametrize(
    "change",
    [{}, {"cell": "roof"}, {"test": "tests/test_it.py::test_there[h200]"}, {"status": "planned", "cell": ""}],
)
def test_kept_claims_pass(tree, change):
    assert problems(DONE | change, tree) == []


@pytest.mark.parametrize(
    "change",
    [
        {"cell": ""},
        {"cell": "Size"},
        {"cell": "Not a heading"},
        {"lesson": "02"},
        {"lesson": "1"},
        {"test": ""},
        {"test": "tests/test_it.py"},
        {"test": "tests/test_it.py::test_gone"},
        {"test": "tests/test_it.py::helper"},
        {"test": "tests/test_other.py::test_there"},
        {"status": "finished"},
        {"feature": " "},
    ],
)
def test_broken_claims_are_found(tree, change):
    assert problems(DONE | change, tree)
