"""Boards: the list that a page carries, the controls with a kernel, and a real browser's script."""

import html
import json
import re
import shutil

import pandas as pd
import pytest
from rooflab.book.site import ASSETS
from rooflab.errors import UsageError
from rooflab.view.filter_list import ALL, Board, slug
from test_explorer_browser import POLICY, Seen, browser

assert browser  # a fixture, by its name

FRAME = pd.DataFrame(
    {
        "id": ["A-1", "A-2", "C-1"],
        "source": ["A", "A", "C"],
        "verdict": ["holds", "refuted", "refuted"],
        "says": ["It is <so>.", "It was not.", "Nor this."],
        "note": ["seen: 2", "seen: 3", "seen: 4"],
        "place": ["03c_claims#The tests", "", "02b_counters#Bytes"],
    }
)
CONTROLS = {"source": "Source", "verdict": "Verdict"}


def made(**more):
    return Board("b1", FRAME, controls=CONTROLS, lesson="place", **more)


def test_a_page_holds_every_item_and_its_places():
    page = made(start={"verdict": "refuted"})._page
    assert page.count("<li data-picks=") == 3 and "It is &lt;so&gt;." in page
    controls = json.loads(html.unescape(re.search(r'data-controls="([^"]*)"', page)[1]))
    assert controls == [["Source", ["A", "C"], ALL], ["Verdict", ["holds", "refuted"], "refuted"]]
    assert re.findall(r'data-picks="([\d,]+)"', page) == ["0,0", "0,1", "1,1"]
    assert 'data-to="03c_claims.html#the-tests"' in page and "Lesson 02b, Bytes" in page
    assert "<script" not in page


def test_controls_choose_rows():
    board = made(start={"verdict": "refuted"})
    assert board.chosen()["id"].tolist() == ["A-2", "C-1"]
    board._picks[0].value = "C"
    assert board.chosen()["id"].tolist() == ["C-1"] and "1 of 3 statements" in board._list.value
    board._picks[0].value = board._picks[1].value = ALL
    assert len(board.chosen()) == 3


def test_what_a_page_and_a_kernel_show():
    bundle = made()._repr_mimebundle_()
    assert bundle["text/plain"] == "Board b1: 3 statements: 1 holds, 2 refuted"
    assert bundle["text/html"] == made()._page


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match="needs the column 'nothing'"):
        Board("b1", FRAME, controls={"nothing": "N"})
    with pytest.raises(UsageError, match="pass fewer rows"):
        Board("b1", pd.concat([FRAME] * 2000), controls=CONTROLS)


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("The tests", "the-tests"),
        ("And ninety times?", "and-ninety-times"),
        ("Prediction: four ways, in bytes", "prediction-four-ways-in-bytes"),
        ("Small products fall off the roof", "small-products-fall-off-the-roof"),
    ],
)
def test_anchors(heading, anchor):
    assert slug(heading) == anchor


def test_a_real_page_filters(browser, tmp_path):
    for name in ("board.js", "board.css"):
        shutil.copy(ASSETS / name, tmp_path)
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head += '<link rel="stylesheet" href="board.css"><script src="board.js"></script>'
    body = made(start={"verdict": "refuted"})._page
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><html><head>{head}</head><body>{body}</body></html>")
    page = browser.new_page()
    seen = Seen(page)
    page.goto((tmp_path / "page.html").as_uri())
    shown = "li:not([hidden])"
    assert page.locator(shown).count() == 2 and page.locator("details").count() == 0
    assert page.locator(".said").inner_text() == "2 of 3 statements."
    page.get_by_label("Source").select_option("C")
    assert page.locator(shown).count() == 1 and "Nor this." in page.locator(shown).inner_text()
    page.get_by_label("Verdict").select_option("all")
    page.get_by_label("Source").select_option("all")
    assert page.locator(shown).count() == 3
    assert page.locator("a").first.get_attribute("href") == "03c_claims.html#the-tests"
    assert not seen.errors
    page.close()
