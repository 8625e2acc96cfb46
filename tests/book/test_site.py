"""The site: formulas, links and figures from disk alone, in a parser's eyes and in a browser's."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shares
from PIL import Image
from rooflab import paths
from rooflab.book import glossary, lessons, normal, pages, run, site
from rooflab.errors import MissingTool, RooflabError
from rooflab.view import narrow

TABLE = "Measured on a GPU.\n\n| study | achieved |\n| --- | --- |\n| read | 4,500 GB/s |\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of two small lessons, with a figure, a table, formulas, code and every kind of link."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    root = tmp_path_factory.mktemp("site")
    folder = root / "notebooks"
    folder.mkdir()
    text = (
        "Time is $t \\ge \\max(B/\\beta, F/\\pi)$.\n\n$$t = \\frac{B}{\\beta} + \\sqrt{x}$$\n\n"
        "The [next lesson](01_second.ipynb), the [device table](../lib/rooflab/hardware/device.py), "
        "the [kernels](../kernels), a [missing lesson](77_none.ipynb) and [elsewhere](https://example.org/page)."
    )
    figure = (
        "from rooflab.view import plot\nfig, ax = plot.figure('x', 'y', 'A line')\n_ = ax.plot([1, 2])\n"
        "plot.show(fig, 'A line from 1 to 2.')\n_ = ax.plot([2, 3])\nplot.show(fig, 'And one from 2 to 3.')"
    )
    table = "import pandas as pd\npd.DataFrame({'a': [1, 2]})"
    widget = "import ipywidgets\nipywidgets.IntSlider()"
    for stem, cells in {
        "00_first": [new_markdown_cell(text), new_code_cell(figure), new_code_cell(table)],
        "01_second": [new_code_cell(widget), new_code_cell("print('last')")],
    }.items():
        notebook = new_notebook()
        notebook.cells = [
            new_markdown_cell(f"# {stem}"),
            new_code_cell("N: int = 1", metadata={"tags": ["parameters"]}),
            *cells,
        ]
        nbformat.write(notebook, folder / f"{stem}.ipynb")
    outcomes = run.run(run.plan(lessons.find([], folder), {}, output=root / "out"), 2, say=lambda line: None)
    assert all(outcome.ok for outcome in outcomes)
    page = site.build([o.job.output for o in outcomes], TABLE, root / "html", root / "source")
    assert page == root / "html" / "index.html"
    return root / "html"


def test_every_link_resolves_and_nothing_loads_from_elsewhere(built: Path) -> None:
    assert site.problems(built) == []


def test_pages_hold_what_they_should(built: Path) -> None:
    index, first = ((built / name).read_text(encoding="utf-8") for name in ("index.html", "00_first.html"))
    assert "4,500\u00a0GB/s" in (built / "results.html").read_text(encoding="utf-8")
    assert 'href="results.html"' in index and "4,500" not in index, "the first page is no log"
    assert 'href="00_first.html"' in index and 'href="01_second.html"' in index
    assert "<mfrac>" in first and "<msqrt>" in first
    for said in ("A line from 1 to 2.", "And one from 2 to 3."):
        assert first.count(f'alt="{said}"') == 1, "a figure's caption is not its alt text"
    assert "<img" in first and "https://example.org/page" in first
    assert list((built / "_downloads").rglob("device.py")), (
        "a linked file of the repository is not in the site"
    )
    assert "require.js" not in first and "MathJax" not in first and "thebe" not in first.lower()


def test_the_checker_finds_what_it_should(built: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(built, broken)
    page = broken / "index.html"
    page.write_text(
        page.read_text().replace(
            "</body>",
            '<script src="https://cdn.example.org/x.js"></script><a href="nowhere.html">x</a>'
            '<a href="00_first.html#no-such-heading">x</a><img src="/absolute.png"></body>',
        )
    )
    (broken / "_static" / "heavy.png").write_bytes(bytes(site.MOST_BYTES))
    heavy = broken / "00_first.html"
    heavy.write_text(heavy.read_text().replace("</body>", '<img src="_static/heavy.png"></body>'))
    (broken / "_static" / "bad.css").write_text("@import url(https://fonts.example.org/f.css);")
    found = "\n".join(site.problems(broken))
    for part in (
        "cdn.example.org",
        "nowhere.html",
        "#no-such-heading",
        "/absolute.png",
        "bad.css",
        "00_first.html weighs",
    ):
        assert part in found


def test_a_warning_is_an_error(lesson: Callable[..., Path], tmp_path: Path) -> None:
    path = lesson("00_first", "md:### Two levels down at once\n\n{unknownrole}`x`")
    with pytest.raises(RooflabError, match="unknownrole"):
        site.build([path], TABLE, tmp_path / "html", tmp_path / "source")


def test_without_sphinx_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "sphinx.application", None)
    with pytest.raises(
        MissingTool, match=r"^The HTML site needs sphinx.*: pip install -r requirements.txt\.$"
    ):
        site.build([], "", tmp_path / "site", tmp_path / "source")
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("formula", ["a_", "\\nosuchcommand{a}"])
def test_a_formula_that_cannot_be_drawn_is_an_error(
    lesson: Callable[..., Path], tmp_path: Path, formula: str
) -> None:
    path = lesson("00_first", f"md:Here: ${formula}$")
    with pytest.raises(RooflabError, match="MathML"):
        site.build([path], TABLE, tmp_path / "html", tmp_path / "source")


def test_assets_of_the_explorers_are_on_every_page(
    lesson: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "explorer.js").write_text("window.explorers = 1;\n")
    (assets / "explorer.css").write_text(".explorer {}\n")
    monkeypatch.setattr(site, "ASSETS", assets)
    page = site.build([lesson("00_first")], TABLE, tmp_path / "html", tmp_path / "source")
    for name in ("explorer.js", "explorer.css"):
        assert name in page.read_text() and (page.parent / "_static" / name).exists()
    assert site.problems(page.parent) == []


def test_links_in_what_a_cell_prints_lead_to_pages(lesson: Callable[..., Path], tmp_path: Path) -> None:
    say = "from IPython.display import Markdown, display\ndisplay(Markdown('See [it](01_second.ipynb#n).'))"
    say += "\ndisplay(Markdown('Its [source](../kernels/read/1_scalar.cu).'))"
    folder = lesson("00_first", say).parent
    lesson("01_second")
    outcomes = run.run(run.plan(lessons.find([], folder), {}, output=tmp_path / "out"), 2, say=lambda _: None)
    page = site.build([o.job.output for o in outcomes], TABLE, tmp_path / "html", tmp_path / "source")
    shown = (page.parent / "00_first.html").read_text()
    assert 'href="01_second.html#n"' in shown and 'href="_static/files/kernels/read/1_scalar.cu"' in shown
    assert (page.parent / "_static/files/kernels/read/1_scalar.cu").is_file()


DRAWN = """from rooflab.view import plot
fig, ax = plot.figure("GB/s", title="Two")
plot.bars(ax, ["a", "b"], [1.0, 2.0], "GB/s")
plot.show(fig, "Two bars.")"""


def test_a_phone_loads_the_picture_that_was_drawn_for_it(
    lesson: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lesson("00_first", DRAWN).parent
    found = {}
    for asked in ("", "1"):
        monkeypatch.setenv(narrow.ASKED, asked)
        plan = run.plan(lessons.find([], folder), {}, output=tmp_path / f"out{asked}")
        (outcome,) = run.run(plan, 1, say=lambda _: None)
        root = tmp_path / f"html{asked}"
        page = site.build([outcome.job.output], TABLE, root, tmp_path / f"source{asked}")
        text = (page.parent / "00_first.html").read_text()
        sources = re.findall(r'<picture><source media="[^"]+" srcset="([^"]+)"><img alt="Two bars."', text)
        found[asked] = [Image.open(root / each).width for each in sources]
        assert narrow.MIME not in normal.normalise(normal.read(outcome.job.output)), "not committed"
        assert site.problems(root) == []
    assert found == {"": [], "1": [round(200 * narrow.INCHES)]}


def test_a_number_and_its_unit_stay_on_one_line(lesson: Callable[..., Path], tmp_path: Path) -> None:
    path = lesson("00_first", "md:It takes 5 µs, 43 % of `7 % 5`; 4 lanes in 2 sentences.")
    page = site.build([path], TABLE, tmp_path / "html", tmp_path / "source")
    text = (page.parent / "00_first.html").read_text()
    assert "5\u00a0µs, 43\u00a0% of" in text and "4 lanes in 2 sentences" in text
    assert '<span class="pre">7</span> <span class="pre">%</span>' in text, "code stays as it is"


def test_pages_around_the_lessons_and_words_of_the_glossary(
    lesson: Callable[..., Path], tmp_path: Path
) -> None:
    path = lesson("00_first", "md:A warp is 32 threads; a warp again.")
    titles = {"00a_environment": "no page of this site"}
    around = {
        "glossary": glossary.page(glossary.terms(), titles).replace("(00a_environment.ipynb)", "(index.md)")
    }
    around |= {"devices": "# Devices\n\n```{toctree}\ndevice-x\n```\n", "device-x": "# Device X\n"}
    page = site.build([path], TABLE, tmp_path / "html", tmp_path / "source", around)
    first = (page.parent / "00_first.html").read_text()
    assert first.count('href="glossary.html#term-warp"') == 1
    assert 'href="devices.html"' in page.read_text() and (page.parent / "device-x.html").is_file()
    assert site.problems(page.parent) == []


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_opens_every_page_from_disk_without_a_complaint(built: Path, scheme: Any) -> None:
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(color_scheme=scheme)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else complaints.append(request.url)
            ),
        )
        page.goto((built / "index.html").as_uri())
        page.get_by_role("link", name="00_first").first.click()
        page.wait_for_url("**/00_first.html")
        assert page.locator("math").count() == 2
        assert page.locator("math").last.bounding_box()["height"] > 10  # type: ignore[index]
        assert page.locator(".cell_output img").first.evaluate("image => image.naturalWidth") > 100
        page.goto((built / "search.html").as_uri() + "?q=lesson", wait_until="networkidle")
        page.goto((built / "01_second.html").as_uri())
        icon = page.locator(".fa-magnifying-glass:visible").first.bounding_box()
        assert icon and icon["width"] > 8, "the theme's icons are drawn by its font"
        browser.close()
    assert complaints == []


KERNEL = """from rooflab.ops import gemv
from rooflab.view import display, page

display.say("A warp, and an SM.")
notes = {"sum = warp_sum": "Five shuffles.", "if (lane == 0)": "One lane stores."}
below, rung = gemv.LADDERS["gemv"][:2]
page.kernel(below, "for each column:\\n    sum", notes, helpers=["warp_sum"])
page.kernel(rung, "", {"__shared__": "A tile of x."}, below=below)
page.kernel(rung, "", {"__shared__": "A tile of x."}, below=below, folded=True)"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a lesson with three kernels, the last folded, a hidden cell, terms in text and outputs."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    root = tmp_path_factory.mktemp("read")
    (root / "notebooks").mkdir()
    notebook = new_notebook()
    notebook.cells = [
        new_markdown_cell("# Lesson\n\nA lane is a thread."),
        new_code_cell("N: int = 1", metadata={"tags": ["parameters"]}),
        new_code_cell("import math\n\nhalf = N / 2"),
        new_code_cell("arranged = 'never on the page'\nprint(half)", metadata={"tags": ["hide-input"]}),
        new_code_cell(KERNEL.replace("\\\\n", "\\n"), metadata={"tags": ["hide-input"]}),
    ]
    nbformat.write(notebook, root / "notebooks" / "00_first.ipynb")
    jobs = run.plan(lessons.find([], root / "notebooks"), {}, output=root / "out")
    (outcome,) = run.run(jobs, say=lambda line: None)
    assert outcome.ok, outcome.explanation()
    around = {"glossary": glossary.page(glossary.terms(), {})}
    site.build([outcome.job.output], TABLE, root / "html", root / "source", around)
    assert site.problems(root / "html") == []
    return root / "html" / "00_first.html"


def test_plumbing_is_not_on_the_page(read: Path) -> None:
    text = read.read_text(encoding="utf-8")
    assert "never on the page" not in text and "0.5" in text
    assert text.count("Parameters and imports") == 2 and "math" in text  # one fold: open, and close
    assert text.index("Parameters and imports") < text.index("0.5")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_terms_callouts_and_changes_in_a_browser(read: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(read.as_uri())
        card = page.locator("#rooflab-card")
        meanings = {term.name: term.meaning for term in glossary.terms()}
        for name in ("lane", "warp", "SM"):  # in the text, and in what a cell shows
            page.locator("a.rooflab-term", has_text=name).first.focus()
            assert card.is_visible() and card.text_content() == meanings[name].replace("`", "")
            page.keyboard.press("Escape")
            assert card.is_hidden()
        page.locator("a.rooflab-term", has_text="lane").first.hover()
        assert card.is_visible()
        first, second, folded = page.locator(".rooflab-kernel").all()
        marks, notes = first.locator(".mark").all(), first.locator(".callouts li").all()
        assert [mark.text_content() for mark in marks] == ["①", "②"]
        for mark, note in zip(marks, notes, strict=True):  # the note stands beside its line
            of_mark, of_note = mark.bounding_box(), note.bounding_box()
            assert of_mark and of_note and of_note["x"] > of_mark["x"] + 100
            assert abs(of_note["y"] - of_mark["y"]) < 40
        assert first.get_by_role("tab").count() == 0
        whole, changes = second.get_by_role("tab").all()
        assert whole.get_attribute("aria-selected") == "true" and second.locator(".whole").is_visible()
        whole.focus()
        page.keyboard.press("ArrowRight")
        assert changes.get_attribute("aria-selected") == "true" and second.locator(".whole").is_hidden()
        assert second.get_by_text("+    __shared__").is_visible()
        note = folded.get_by_text("A tile of x.")
        assert note.is_hidden() and folded.locator(".whole").is_hidden(), "notes come with their code"
        summary = folded.locator("details.source > summary")
        assert "with a note" in str(summary.text_content())
        summary.click(position={"x": 5, "y": 5})
        beside, mark = note.bounding_box(), folded.locator(".mark").bounding_box()
        assert beside and mark and beside["x"] > mark["x"] and abs(beside["y"] - mark["y"]) < 40
        contents = page.locator(".bd-sidebar-secondary")
        if contents.locator("nav.page-toc").count():
            notes[0].scroll_into_view_if_needed()
            folds = "box => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done("
            folds += "box.classList.contains('rooflab-under')))))"
            assert contents.evaluate(folds), "Contents fold while a note is beside them"
        page.set_viewport_size({"width": 400, "height": 900})
        note, code = notes[0].bounding_box(), first.locator(".highlight-cuda").bounding_box()
        assert note and code and note["y"] > code["y"] + code["height"], "below the code on a phone"
        browser.close()


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lesson of the real site, with an explorer and diffs, and the pages around it."""
    root = tmp_path_factory.mktemp("book")
    chosen = [paths.NOTEBOOKS / "03_coalescing.ipynb"]
    return site.build(chosen, TABLE, root / "html", root / "source", pages.make(chosen)).parent


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
@pytest.mark.parametrize(
    ("scheme", "width"), [pytest.param("dark", 1200, marks=pytest.mark.ci), ("light", 400)]
)
def test_pages_are_accessible_and_scroll_one_way(book: Path, scheme: Any, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    from playwright.sync_api import sync_playwright

    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        # Of the pages of devices one: the others are more of the same.
        every = [path for path in sorted(book.glob("*.html")) if not path.stem.startswith("device-")]
        every.append(book / "device-h200.html")
        for path in every if shares.ALL else every[2 * (scheme == "dark") :: 4]:
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
            code = (
                "[...document.querySelectorAll('.highlight pre')].filter(p => p.scrollWidth > p.clientWidth)"
            )
            assert page.evaluate(f"{code}.length") == 0, f"code of {path.name} scrolls sideways"
            # A colour that is still fading in has no contrast yet, on a machine that is busy.
            page.add_style_tag(content="* { transition: none !important; animation: none !important; }")
            page.evaluate(script)
            said = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            for rule in said["violations"]:
                if rule["impact"] in ("serious", "critical"):
                    found.append(f"{path.name}: {rule['id']}: {rule['nodes'][0]['html'][:200]}")
        browser.close()
    assert found == []


def test_the_courses_own_folder_is_never_written(built: Path) -> None:
    assert not list(paths.NOTEBOOKS.glob("*.html")) and not (paths.NOTEBOOKS / "_build").exists()
