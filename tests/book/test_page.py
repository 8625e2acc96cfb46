"""What pages show: tables with formatted cells, sources, and diffs of rungs without their header comments."""

import pandas as pd
import pytest
from rooflab.errors import UsageError
from rooflab.ops import stream
from rooflab.view import display


@pytest.fixture
def shown(monkeypatch):
    seen: list = []
    monkeypatch.setattr(display, "display", lambda thing: seen.append(thing.data))
    return seen


def test_a_table_formats_numbers_and_leaves_blanks_empty(shown):
    frame = pd.DataFrame({"gb_s": [1234.567, None], "n": [1 << 20, 4], "other": ["x", "y"]})
    display.table(frame, {"n": "Elements", "gb_s": "GB/s"}, {"gb_s": "{:,.0f}"}, caption="Two rows")
    (html,) = shown
    assert "<td>1,235</td>" in html and "<td></td>" in html and "other" not in html
    assert "<caption>Two rows</caption>" in html and "<th>Elements</th>" in html


def test_a_table_can_be_folded_under_its_caption(shown):
    display.table(pd.DataFrame({"n": [4]}), {"n": "Elements"}, caption="One row", folded=True)
    (html,) = shown
    assert (
        html.startswith("<details") and "<summary>One row</summary>" in html and html.endswith("</details>")
    )
    assert "<td>4</td>" in html and "<caption>" not in html


def test_a_diff_shows_what_changed_and_nothing_else(shown):
    one, two = stream.LADDERS["copy"][:2]
    display.diff(one, two)
    (text,) = shown
    assert text.startswith("```diff\n--- 1_scalar.cu\n+++ 2_vector.cu\n")
    assert "+    copy(const uint4* __restrict__ x" in text
    assert "Purpose" not in text and "copy_scalar" not in text


def test_a_long_diff_can_be_folded_under_a_line_that_says_what_it_is(shown):
    one, two = stream.LADDERS["read"][:2]
    display.diff(one, two)
    display.diff(one, two, folded=True)
    plain, folded = shown
    head, rest = folded.split("</summary>")
    assert head.startswith(f"<details><summary>{two.name}: {two.idea} (")
    assert rest == f"\n\n{plain}\n\n</details>"


@pytest.mark.parametrize("operator", stream.LADDERS)
def test_every_rung_is_a_readable_diff_of_one_below(operator, shown):
    ladder = stream.LADDERS[operator]
    for below, rung in zip(ladder, ladder[1:], strict=False):
        if rung.name == "5_streaming":
            below = ladder[2]  # its header says that it goes on from rung 3
        display.diff(below, rung)
    for text in shown:
        changed = [line for line in text.splitlines()[3:] if line[:1] in "+-"]
        assert 0 < len(changed) <= 60


def test_a_header_is_shown_as_a_list(shown):
    display.header(stream.LADDERS["read"][1])
    (text,) = shown
    head, *items = text.strip().splitlines()
    assert head.startswith("**read 2, vector") and "#include" not in text
    assert [item.split("**")[1] for item in items if item.strip()] == [
        "Purpose",
        "Shapes",
        "Bytes",
        "Launch",
        "Macros",
        "Changed",
    ]


def test_the_source_is_shown_whole(shown):
    display.source(stream.LADDERS["read"][0])
    assert "// read 1, scalar" in shown[0] and shown[0].startswith("```cuda\n")


def test_a_table_says_yes_and_no(shown):
    frame = pd.DataFrame({"refused": [True, False]})
    display.table(frame, {"refused": "refused"})
    assert "<td>yes</td>" in shown[0] and "<td>no</td>" in shown[0]


def test_several_tables_fold_behind_one_line(shown):
    frame = pd.DataFrame({"n": [1]})
    display.fold("More", [(frame, {"n": "A"}), (frame, {"n": "B"}, {"n": "{:.1f}"}, "Named")])
    (html,) = shown
    assert html.startswith("<details><summary>More</summary>") and html.count("<table") == 2
    assert "<caption>Named</caption>" in html and "<td>1.0</td>" in html


def test_a_source_can_be_shown_as_it_is_built():
    text = "#ifndef M\n#define M 0\n#endif\na\n#if M == 1\nb\n#else\nc\n#if N\nd\n#endif\n#endif\n"
    assert display.as_built(text, {}) == text
    assert display.as_built(text, {"M": 0}) == "a\nc\n#if N\nd\n#endif\n"
    assert display.as_built(text, {"M": 1}) == "a\nb\n"
    assert display.as_built(text, {"M": 0, "N": 1}) == "a\nc\nd\n"
    assert [display.as_built("#if M > 1\nb\n#endif\n", {"M": m}) for m in (1, 2)] == ["\n", "b\n"]
    newer = "#if ARCH >= 800\nb\n#else\nc\n#endif\n"
    assert [display.as_built(newer, {"ARCH": arch}) for arch in (750, 800, 900)] == ["c\n", "b\n", "b\n"]
    with pytest.raises(UsageError, match="not '#elif M'"):
        display.as_built("#if M\n#elif M\n#endif\n", {"M": 1})


def test_a_diff_does_not_count_what_only_moved_to_the_right():
    before = ["a", "if x:", "    b", "    c"]
    after = ["a", "while y:", "    if x:", "        b", "        d"]
    assert list(display._changes(before, after)) == [
        "@@ -1,4 +1,5 @@",
        " a",
        "+while y:",
        "     if x:",
        "         b",
        "-    c",
        "+        d",
    ]
    assert not list(display._changes(before, before))
