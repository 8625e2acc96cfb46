"""Explorers in a real browser: on a page with the site's script, and in JupyterLab with a kernel."""

import base64
import html
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from made_up import CONTROLS, ROOFS, frame
from nbformat.v4 import new_code_cell, new_notebook, new_output
from rooflab.book.site import ASSETS
from rooflab.view.explorer import Explorer

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update"]
# Nothing but the page's own files: a script from elsewhere, or one written into the page, is refused.
POLICY = "default-src 'none'; img-src data:; script-src file:; style-src file: 'unsafe-inline'"


@pytest.fixture(scope="module")
def browser() -> Iterator:
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield found
        found.close()


class Seen:
    """What a page complained of, and what it asked for."""

    def __init__(self, page):
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))


def made() -> Explorer:
    return Explorer("ladder", frame(), controls=CONTROLS, roof=ROOFS, title="Made-up GPU <&> 'quoted'")


def _page(folder: Path, kind: str, bodies: str, dark: bool) -> str:
    """A page with the site's script and style of a kind, "explorer" or "drawing", and its address."""
    for ending in ("js", "css"):
        shutil.copy(ASSETS / f"{kind}.{ending}", folder)
    ink = ' style="color:#eee;background:#111"' if dark else ""
    page = folder / f"{kind}.html"
    page.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="{kind}.css">'
        f'<script src="{kind}.js"></script></head><body{ink}>{bodies}</body></html>',
        encoding="utf-8",
    )
    return page.as_uri()


def write(folder: Path, *explorers: Explorer, dark: bool = False) -> str:
    """A page with the site's script and style, and its address."""
    bodies = "".join(e._repr_mimebundle_()["text/html"] for e in explorers)
    return _page(folder, "explorer", bodies, dark)


def drawing(scope) -> dict[str, list]:
    """Group -> what it holds: the paths' data, the circles' places, the texts."""
    return scope.locator("svg").first.evaluate(
        """svg => Object.fromEntries([...svg.querySelectorAll("[data-group]")].map(g => [g.dataset.group,
        [...g.children].map(c => [c.tagName, c.getAttribute("d"), c.getAttribute("cx"), c.getAttribute("cy"),
        c.getAttribute("r"), c.getAttribute("x"), c.getAttribute("y"), c.getAttribute("text-anchor"),
        c.textContent])]))"""
    )


def still(explorer: Explorer, picks=None, size=None) -> dict[str, list]:
    """The same of the drawing made in Python, of the page's still image or of a given choice."""
    if picks is None:
        page = explorer._repr_mimebundle_()["text/html"]
        svg = base64.b64decode(re.search(r'base64,([^"]+)"', page)[1]).decode()
    else:
        svg = explorer._recorded.svg(picks, size)
    names = ("d", "cx", "cy", "r", "x", "y", "text-anchor")
    return {
        g.get("data-group"): [
            [c.tag.split("}")[1], *(c.get(name) for name in names), c.text or ""] for c in g
        ]
        for g in ET.fromstring(svg).iter()
        if g.get("data-group")
    }


def test_the_page_draws_what_the_still_image_shows(browser, tmp_path):
    page = browser.new_page()
    seen = Seen(page)
    page.goto(write(tmp_path, made()))
    assert page.locator(".rooflab-explorer img").count() == 0, "the script took the image over"
    assert drawing(page) == still(made())
    text = html.unescape(
        re.search(r'<p class="said"[^>]*>(.*?)</p>', made()._repr_mimebundle_()["text/html"])[1]
    )
    assert page.locator(".said").text_content() == text
    assert seen.errors == []
    page.close()


def test_every_control_changes_figure_and_text_and_nothing_is_fetched(browser, tmp_path):
    page = browser.new_page()
    seen = Seen(page)
    address = write(tmp_path, made())
    page.goto(address)
    states = [(drawing(page), page.locator(".said").text_content())]
    picks = {"Rung": "2_vector", "Stream": "copy", "Cache": "warm"}
    for label, value in picks.items():
        page.get_by_label(label, exact=True).select_option(label=value)
        states.append((drawing(page), page.locator(".said").text_content()))
    slider = page.get_by_label("Elements")
    slider.focus()
    for key in ("ArrowLeft", "Home"):
        page.keyboard.press(key)
        states.append((drawing(page), page.locator(".said").text_content()))
    for before, after in zip(states, states[1:], strict=False):
        assert before[0] != after[0] and before[1] != after[1]
    assert "Rung 2_vector, Stream copy, Cache warm, Elements 64 Ki: " in states[-1][1]
    assert page.locator("output").text_content() == "64 Ki"
    assert slider.get_attribute("aria-valuetext") == "64 Ki"
    assert states[-1][0] == still(made(), list(picks.values()), 2**16), "script and Python draw alike"
    assert seen.errors == []
    local = tmp_path.as_uri()
    assert [r for r in seen.requests if not r.startswith((local, "data:"))] == []
    page.close()


def test_one_size_needs_no_slider(browser, tmp_path):
    rows = frame()
    lone = Explorer("lone", rows[rows["n"] == rows["n"].max()], controls=CONTROLS, roof=ROOFS)
    page = browser.new_page()
    page.goto(write(tmp_path, lone))
    assert page.locator("select").count() == len(CONTROLS) and page.locator("input[type=range]").is_hidden()
    assert drawing(page) == still(lone), "script and Python draw alike"
    page.close()


@pytest.mark.parametrize("rung", ["2_vector", "3_grid"])
def test_predictions_are_drawn_alike_where_there_are_some(browser, tmp_path, rung):
    rows = frame()
    some = rows.assign(
        predicted_us=rows["predicted_us"].where((rows["impl"] != "3_grid") & (rows["n"] < 2**26))
    )
    half = Explorer("half", some, controls=CONTROLS, roof=ROOFS)
    page = browser.new_page()
    page.goto(write(tmp_path, half))
    page.get_by_label("Rung", exact=True).select_option(label=rung)
    drawn = drawing(page)
    assert drawn == still(half, [rung, "read", "cold"], 2**28), "script and Python draw alike"
    assert bool(drawn["predicted"]) == (rung == "2_vector") == bool(drawn["predicted-name"])
    page.close()


def test_a_control_with_one_option_is_not_shown(browser, tmp_path):
    rows = frame()
    one = Explorer("one", rows[rows["impl"] == "2_vector"], controls=CONTROLS, roof=ROOFS)
    page = browser.new_page()
    page.goto(write(tmp_path, one))
    assert [label for label in page.locator("label").all_text_contents()] == ["Stream", "Cache", "Elements"]
    page.get_by_label("Stream", exact=True).select_option(label="copy")
    assert page.locator(".said").text_content().startswith("Rung 2_vector, Stream copy, ")
    page.close()


def test_a_choice_takes_the_others_to_a_recorded_case_and_the_slider_has_no_other_size(browser, tmp_path):
    page, chart = browser.new_page(), made()._recorded
    page.goto(write(tmp_path, made()))
    page.get_by_label("Rung").select_option(label="1_word")
    labels = [control.label for control in chart.controls]
    texts = [
        page.get_by_label(label, exact=True).locator("option:checked").text_content() for label in labels
    ]
    picks = tuple(c.texts.index(text) for c, text in zip(chart.controls, texts, strict=True))
    held = [point for point in chart.points if point.picks == picks]
    assert held and texts[0] == "1_word", "a recorded case with the value chosen"
    said = page.locator(".said").text_content()
    assert "Not recorded: " not in said and said.startswith("Rung 1_word, ")
    slider = page.locator("input[type=range]")
    assert int(slider.get_attribute("max")) == len(held) - 1
    assert slider.is_visible() == (len(held) > 1)
    page.close()


def test_two_explorers_on_a_page_keep_apart(browser, tmp_path):
    other = Explorer("times", frame(), y="median_us", controls=CONTROLS, ylog=True, title="Times")
    page = browser.new_page()
    page.goto(write(tmp_path, made(), other))
    boxes = page.locator(".rooflab-explorer")
    before = drawing(boxes.nth(1))
    boxes.nth(0).get_by_label("Stream").select_option(label="copy")
    assert drawing(boxes.nth(1)) == before
    boxes.nth(1).get_by_label("Stream").select_option(label="copy")
    assert drawing(boxes.nth(1)) != before
    page.close()


def test_an_explorer_reads_on_a_phone_without_scripts_and_in_the_dark(browser, tmp_path):
    address = write(tmp_path, made(), dark=True)
    phone = browser.new_page(viewport={"width": 360, "height": 640})
    phone.goto(address)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360, "only the drawing itself may scroll"
    letters = phone.locator("[data-group=value] text").evaluate("t => t.getBoundingClientRect().height")
    assert letters >= 9
    ink = phone.locator("[data-group=value]").evaluate("g => getComputedStyle(g).fill")
    assert ink == "rgb(238, 238, 238)", "the drawing takes the ink of a dark page"
    assert phone.locator(".paper").count() == 0
    phone.close()
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(address)
    assert plain.locator("img[src^='data:image/svg']").is_visible()
    assert plain.locator(".note").is_visible() and plain.locator("select").count() == 0
    context.close()


# --- JupyterLab ------------------------------------------------------------

CELL = """\
import sys
sys.path.insert(0, {tests!r})
from made_up import CONTROLS, ROOFS, frame
from rooflab.view.explorer import Explorer

Explorer("ladder", frame(), controls=CONTROLS, roof=ROOFS, title="Made-up GPU")
"""


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The address of a JupyterLab that this machine alone can reach, and the folder it shows."""
    tmp_path = tmp_path_factory.mktemp("lab")
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    work = tmp_path / "work"
    work.mkdir()
    homes = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    homes["IPYTHONDIR"] = str(tmp_path / "ipython")
    options = {
        "no-browser": True,
        "allow-root": True,
        "port": port,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": work,
        "IdentityProvider.token": "",
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.workspaces_dir": tmp_path / "workspaces",
        "LabApp.user_settings_dir": tmp_path / "settings",
    }
    words = [f"--{name}" + ("" if value is True else f"={value}") for name, value in options.items()]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *words],
        env=os.environ | homes,
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "server.log").open("wb"),
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):  # two minutes at least
            try:
                urllib.request.urlopen(f"{address}/api", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.2)
        yield address, work
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def opened(browser, jupyterlab, name: str, cell):
    """A page of JupyterLab with a notebook of one cell, in a workspace of its own."""
    address, work = jupyterlab
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=[cell], metadata={"kernelspec": kernel}), work / f"{name}.ipynb")
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.set_default_timeout(120_000)
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb")
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
    return page


@pytest.mark.ci
def test_in_jupyterlab_an_unrun_explorer_is_a_still_image(browser, jupyterlab):
    text = made()._repr_mimebundle_()["text/html"]
    output = new_output("execute_result", {"text/html": text, "text/plain": "Explorer"}, execution_count=1)
    page = opened(browser, jupyterlab, "still", new_code_cell("made()", execution_count=1, outputs=[output]))
    shown = page.locator(".jp-OutputArea-output")
    shown.locator("img[src^='data:image/svg']").wait_for()
    assert shown.locator("img").evaluate("i => i.naturalWidth") > 0
    words = shown.text_content().strip()
    assert words.startswith("Rung 3_grid, ") and words.endswith("in JupyterLab.") and "{" not in words
    page.close()


@pytest.mark.ci
def test_in_jupyterlab_a_control_moves_the_figure(browser, jupyterlab):
    page = opened(
        browser, jupyterlab, "lesson", new_code_cell(CELL.format(tests=str(Path(__file__).parents[1])))
    )
    for _ in range(5):  # a run asked for while the kernel still starts is lost without a word
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name=re.compile("^Run All Cells")).first.click()
        page.wait_for_timeout(1000)
        if "[ ]" not in page.locator(".jp-InputPrompt").first.text_content():
            break
    output = page.locator(".jp-OutputArea-output")

    def says(words: str) -> None:
        output.locator("p[aria-live]", has_text=words).wait_for()

    says("Rung 3_grid, Stream read, Cache cold, Elements 256 Mi: ")
    assert drawing(output) == still(made())
    output.locator("select").nth(1).select_option(label="copy")
    says("Rung 3_grid, Stream copy, Cache cold, Elements 256 Mi: ")
    assert drawing(output) == still(made(), ["3_grid", "copy", "cold"], 2**28) != still(made())
    output.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowLeft")
    says("Not recorded: Rung 3_grid, Stream copy, Cache cold, Elements 224 Mi. Nearest recorded case: ")
    page.keyboard.press("Home")
    says("Rung 3_grid, Stream copy, Cache cold, Elements 64 Ki: ")
    assert drawing(output) == still(made(), ["3_grid", "copy", "cold"], 2**16)
    assert output.get_by_role("button", name="Measure").count() == 0, "no GPU, no button"
    if shots := os.environ.get("ROOFLAB_SHOTS"):
        page.screenshot(path=f"{shots}/jupyterlab.png")
    page.close()


# --- drawings -----------------------------------------------------------------------------------------------


def drawn_page(folder: Path, dark: bool = False, most: int = 9) -> str:
    """A page with two drawings, one of them of frames (`most` of them), and its address."""
    from rooflab.view import diagram

    drawings = (diagram.split_k(), diagram.launch(1 << 20, 132))
    del drawings[0].frames[most:]
    bodies = "".join(each._repr_mimebundle_()["text/html"] for each in drawings)
    return _page(folder, "drawing", bodies, dark)


def test_a_drawing_is_stepped_through_by_arrow_keys(browser, tmp_path):
    page = browser.new_page()
    seen = Seen(page)
    address = drawn_page(tmp_path)
    page.goto(address)
    assert page.locator(".rooflab-drawing svg").count() == 2, "both became part of the page"
    assert page.locator(".rooflab-drawing .controls").count() == 1, "one has frames"

    def shown() -> list[str]:
        frames = page.locator(".rooflab-drawing").first.locator(".frame")
        return [frame.get_attribute("data-says") for frame in frames.all() if frame.is_visible()]

    assert shown() == ["Block 0 sums its rows"]
    page.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert shown() == ["Block 2 sums its rows"]
    assert page.locator("output").text_content() == "2 of 5: Block 2 sums its rows"
    page.get_by_role("button", name="Back").click()
    assert shown() == ["Block 0 sums its rows"] and page.get_by_role("button", name="Back").is_disabled()
    page.get_by_role("button", name="All steps").click()
    assert len(shown()) == 5
    page.get_by_role("button", name="All steps").click()
    assert shown() == ["Block 0 sums its rows"]
    assert seen.errors == [] and all(url.startswith(("file:", "data:")) for url in seen.requests)
    page.close()


def test_a_drawing_of_few_frames_opens_on_all_of_them(browser, tmp_path):
    page = browser.new_page()
    page.goto(drawn_page(tmp_path, most=3))
    frames = page.locator(".rooflab-drawing").first.locator(".frame")
    assert [frame.is_visible() for frame in frames.all()] == [True] * 3
    assert page.locator("output").text_content() == "all 3 steps"
    page.get_by_role("button", name="Next").click()
    assert [frame.is_visible() for frame in frames.all()] == [False, True, False]
    page.close()


@pytest.mark.parametrize("width", [360, 1200])
def test_a_drawing_keeps_to_the_page_and_takes_its_ink(browser, tmp_path, width):
    page = browser.new_page(viewport={"width": width, "height": 700})
    page.goto(drawn_page(tmp_path, dark=True))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink = page.evaluate("getComputedStyle(document.querySelector('.rooflab-drawing .heading text')).fill")
    assert ink == "rgb(238, 238, 238)"
    assert page.locator(".paper").count() == 0
    page.close()
