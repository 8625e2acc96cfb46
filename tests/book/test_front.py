"""README.md and docs/: what is made of records is current and true of them, and README is short."""

import re
import shutil
import xml.etree.ElementTree as ET
from functools import cache

import altered
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from rooflab import paths
from rooflab.analysis import way
from rooflab.book import check, front, home, readme
from rooflab.errors import UsageError
from rooflab.records.store import Store

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
H200 = Store(paths.DATA, "h200")
# About what a code host lays a README out with, in a window 1400 pixels wide.
STYLE = """
body {margin: 0; font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif} main {width: 832px; margin: 0 auto}
h1, h2 {border-bottom: 1px solid; padding-bottom: .3em; margin: 24px 0 16px}
h1 {font-size: 32px; margin-top: 0}
p, ul, table, pre {margin: 0 0 16px} ul {padding-left: 2em} li + li {margin-top: .25em} img {max-width: 100%}
table {border-collapse: collapse} td, th {padding: 6px 13px; border: 1px solid} pre {padding: 16px}
pre, code {font: 13.6px/1.45 monospace}
"""


def test_what_is_made_goes_between_its_markers():
    begin, end = front.markers("results")
    new = front.updated(f"a\n{begin}\nold\n{end}\nb\n", "results", "| t |\n")
    assert new == f"a\n{begin}\n| t |\n{end}\nb\n" and front.updated(new, "results", "| t |\n") == new
    with pytest.raises(UsageError, match="x.md lacks the markers"):
        front.updated("nothing", "results", "x", "x.md")


@pytest.fixture(scope="module")
def parts():
    """The parts of the pages, each made once: the recording is the same for the two tests of them."""
    return {page: {name: cache(make) for name, make in parts.items()} for page, parts in front.PAGES.items()}


def test_the_pages_hold_what_the_recordings_give(parts, monkeypatch):
    monkeypatch.setattr(front, "PAGES", parts)
    assert check.front_problems() == []


def test_a_stale_page_and_a_stale_drawing_are_named(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(front, "PAGES", parts)
    shutil.copytree(paths.ROOT / "docs", tmp_path / "docs")
    text = (paths.ROOT / "README.md").read_text()
    (tmp_path / "README.md").write_text(text.replace("GB/s", "GB"))
    (tmp_path / "docs" / "result.svg").write_text("<svg/>")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    found = check.front_problems()
    assert [line.split()[0] for line in found] == ["docs/result.svg", "README.md"]
    assert all("run `rooflab refresh`" in line for line in found)


def test_the_drawings_show_a_mechanism_and_the_recorded_ladder():
    shown = front.drawings(H200)
    mechanism, result = (shown[f"docs/{name}.svg"] for name in ("mechanism", "result"))
    assert "12.5% of what is moved is used" in mechanism.says and "12.5% used" in mechanism.svg()
    climbed = way.ladder(H200)
    for row in climbed.itertuples():
        assert f">{row.tok_s:,.0f}<" in result.svg() and f"{row.says} {row.tok_s:,.0f}" in result.says
    for drawing in shown.values():
        ET.fromstring(drawing.svg())
        canvas = drawing.frames[0][1]
        assert canvas.width == 400 and canvas.height < 300, "two of them stand side by side"


def test_without_a_recording_the_pages_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "DATA", tmp_path)
    made = dict(front.made())
    assert "There is no recording of h200 yet." in made["README.md"]
    assert "docs/result.svg" not in made and "result.svg" not in made["README.md"]


@pytest.mark.parametrize(
    "device", ["h200", pytest.param(altered.RECORDINGS[0], marks=pytest.mark.ci)], ids=["recorded", "altered"]
)
def test_the_headline_is_the_table_of_results_in_short(device, tmp_path):
    """A peer that is named is the fastest: README hides none that is ahead."""
    store = H200 if device == "h200" else Store(tmp_path, altered.write(device, tmp_path).name)
    short, long = front.headline(store), readme.results(store).set_index("operator")
    assert 5 <= len(short) <= 12
    for operator, words in front._OPERATORS.items():
        [row] = short[short["what"] == words].to_dict("records")
        assert row["ours"] == long.loc[operator, "achieved"]
        assert long.loc[operator, "of its roof"].startswith(f"{row['roof']} of ")
        assert row["fastest peer"] in long.loc[operator, "best recorded peer"]
    for row in readme.models(store, every=False).to_dict("records"):
        if row[readme.PEER] and not row["what"].endswith("sequences"):
            mine = short[short["ours"] == f"{row['tokens a second']} tok/s"]
            rates = [float(one.rpartition(": ")[2].replace(",", "")) for one in row[readme.PEER].split("; ")]
            assert mine["fastest peer"].iloc[0].endswith(f": {max(rates):,.0f}")


def test_every_part_is_in_the_list_of_lessons_and_every_link_resolves():
    listed = (paths.ROOT / "docs" / "lessons.md").read_text()
    assert all(f"(../notebooks/{path.name})" in listed for path in paths.NOTEBOOKS.glob("*.ipynb"))
    for page in (*paths.ROOT.glob("*.md"), *(paths.ROOT / "docs").glob("*.md")):
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", text):
            file = "".join(target)
            assert file.startswith("http") or (page.parent / file).exists(), f"{page.name} links to {file}"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_readme_is_two_screens():
    from playwright.sync_api import sync_playwright

    text = (paths.ROOT / "README.md").read_text()
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    for file in front.drawings(H200):  # a page without an address loads no file
        drawn = (paths.ROOT / file).read_text()
        page = re.sub(rf'<img src="{file}"[^>]*>', drawn.replace('width="416"', 'width="410"', 1), page)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1400, "height": 900})
        shown.set_content(f"<style>{STYLE}</style><main>{page}</main>")
        height = shown.evaluate("document.querySelector('main').getBoundingClientRect().height")
        first = shown.evaluate("document.querySelector('h2').getBoundingClientRect().top")
        drawings = shown.evaluate("document.querySelectorAll('svg').length")
        browser.close()
    assert drawings == 2 and first < 900, "both drawings are on the first screen"
    assert 900 < height <= 1800


def test_the_index_names_operators_that_set_their_roof_and_those_of_another_format():
    rows = pd.DataFrame(
        {
            "operator": ["read", "triad", "mmq", "int4"],
            "roof": ["dram_read", "dram_triad", "fp16_tensor", "dram_read"],
            "roof_fraction": [0.99, 1.0, 1.02, 0.83],
            "flops": [0.0, 1.0, 1.0, 1.0],
            "bytes": 1.0,
        }
    )
    text = home._whose_roofs(rows)
    assert text.startswith("A percentage is of the operator's own roof, which is named behind it. ")
    assert "Number 1 has 8-bit weights" in text and "Number 2 set its roof itself" in text
    assert home._whose_roofs(rows.head(0)) == "A percentage is of the operator's own roof."
