"""No text of a recording becomes markup: readers refuse it; pages run no script but the site's own."""

import contextlib
import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from rooflab import paths
from rooflab.book import executions, pages, readme, site
from rooflab.errors import UsageError
from rooflab.records import csv_table, profiles
from rooflab.records.case import RUN_SCHEMA, SCHEMA
from rooflab.records.store import Store
from rooflab.records.validate import validate
from shares import thinned
from test_site import CHROMIUM, FLAGS

PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[x](javascript:alert(1))",
    "`</code><svg onload=alert(1)>",
)
RECORDED = paths.DATA / "h200"
TABLES = sorted(path.relative_to(RECORDED) for path in RECORDED.rglob("*.csv"))


def _lines(path: Path, most: int | None = None) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))[:most]


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _fields(name: Path) -> list[str]:
    if name.parts[0] == "profiles":
        return [
            column for column in _lines(RECORDED / name, 1)[0] if column in profiles.TEXTS | profiles.BOOLS
        ]
    schema = {"runs.csv": RUN_SCHEMA, "executions.csv": executions.SCHEMA}.get(name.name, SCHEMA)
    return [column for column, how in schema.items() if how == "text"]


def _read(folder: Path, name: Path) -> str:
    """All that a table's reader gives of it, as one text."""
    if name.parts[0] == "profiles":
        return profiles.read(folder / name).to_csv()
    if name.name == "executions.csv":
        return executions.read(folder).to_csv()
    store = Store(folder.parent, folder.name)
    return (store.runs() if name.name == "runs.csv" else store.read(name.stem)).to_csv()


@pytest.mark.parametrize("name", TABLES, ids=str)
def test_a_text_that_could_be_markup_is_refused_in_every_field(name: Path, tmp_path: Path) -> None:
    folder = tmp_path / "h200"
    _write(folder / "runs.csv", _lines(RECORDED / "runs.csv"))
    rows = _lines(RECORDED / name, 3)
    fields = _fields(name)
    assert len(fields) >= 4
    for place, field in enumerate(fields):
        payload = PAYLOADS[place % len(PAYLOADS)]
        planted = [dict(row) for row in rows]
        planted[-1][field] += payload
        _write(folder / name, planted)
        try:
            said = _read(folder, name)
        except UsageError as error:
            assert field in str(error) or "run" in str(error) or "study" in str(error)
        else:
            assert field == "kernel" and not set('<>`[]"') & set(said.replace('"', "")), (
                f"{field} is read with {payload}"
            )


def test_validate_names_what_was_planted(tmp_path: Path) -> None:
    folder = tmp_path / "h200"
    shutil.copytree(RECORDED, folder)
    for name in TABLES:
        if name.parts[0] == "profiles":
            continue
        rows = _lines(folder / name)
        rows[0][_fields(name)[-1]] += PAYLOADS[0]
        _write(folder / name, rows)
    found = {finding.where.partition(",")[0] for finding in validate(folder) if finding.severity == "error"}
    assert {name.name for name in TABLES if name.parts[0] != "profiles"} <= found


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site of planted recordings and a planted lesson, built by a rooflab that refuses no text."""
    monkeypatch.setattr(csv_table, "_SIGNS", re.compile("(?!)"))
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    for device in ("h200", "published"):
        shutil.copytree(paths.ROOT / "data" / device, tmp_path / "data" / device)
    everything = " ".join(PAYLOADS)
    for device in ("h200", "published"):
        runs = _lines(tmp_path / "data" / device / "runs.csv")
        spared = {"run", "device", "started", "compute_capability", "finished"}
        for row in runs:
            row |= {
                n: f"{row[n]} {everything}"
                for n, how in RUN_SCHEMA.items()
                if how == "text" and n not in spared
            }
        _write(tmp_path / "data" / device / "runs.csv", runs)
    ran = _lines(tmp_path / "data" / "h200" / "executions.csv")
    spared = {"lesson", "started"}
    for row in ran:
        texts = {n for n, how in executions.SCHEMA.items() if how == "text"} - spared
        row |= {name: f"{row[name]} {everything}" for name in texts}
    _write(tmp_path / "data" / "h200" / "executions.csv", ran)
    for study in Store(paths.DATA, "h200").studies():
        rows = _lines(tmp_path / "data" / "h200" / f"{study}.csv")
        for row in rows:
            if row["kind"] == "peer":
                row |= {name: f"{row[name]} {everything}" for name in ("impl", "format", "model", "weights")}
        _write(tmp_path / "data" / "h200" / f"{study}.csv", rows)
    notebook = new_notebook()
    shown = {"text/markdown": everything, "text/plain": everything}
    outputs = [
        new_output("display_data", shown),
        new_output("display_data", {"text/html": everything, "text/plain": ""}),
        new_output("stream", name="stdout", text=everything),
    ]
    notebook.cells = [
        new_markdown_cell("# Lesson 00: planted"),
        new_code_cell("1", execution_count=1, outputs=outputs),
    ]
    lesson = tmp_path / "00_environment.ipynb"
    nbformat.write(notebook, lesson)
    store = Store(paths.DATA, "h200")
    monkeypatch.setattr(
        site, "RooflabError", UserWarning
    )  # Sphinx may warn of what Markdown finds in payloads
    with contextlib.suppress(UserWarning):
        around = pages.make([lesson])
        site.build([lesson], readme.markdown(store), tmp_path / "html", tmp_path / "source", around)
    yield tmp_path / "html"


@pytest.mark.ci
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_no_planted_script_runs_on_any_page(planted: Path) -> None:
    from playwright.sync_api import sync_playwright

    fired, blocked, held = [], [], 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.on("dialog", lambda dialog: (fired.append(page.url), dialog.dismiss()))
        page.on("console", lambda m: blocked.append(m.text) if "Content Security Policy" in m.text else None)
        for path in thinned(sorted(planted.glob("*.html"))):
            held += "alert(1)" in path.read_text(encoding="utf-8")
            page.goto(path.as_uri())
            for link in page.locator("a[href^='javascript:']").all():
                link.evaluate("link => link.click()")
            page.wait_for_timeout(50)
        browser.close()
    assert fired == []
    assert held >= 5 and blocked, "the payloads did not reach the pages, so this shows nothing"
