"""Claims on number lines: their stretches, and what a mark's place says."""

import pytest
from rooflab.errors import UsageError
from rooflab.view import diagram
from rooflab.view.diagram import svg, uploads

UNDER = diagram.Line("time", "{:.0f} µs", ("<", 50.0), (">", 100.0), [(472.0, "measured"), (66.0, "floor")])
OVER = diagram.Line("hits", "{:.0%}", (">", 0.5), None, [(0.8, "strided"), (0.03, "best")])


def test_a_value_s_word_is_that_of_its_stretch():
    assert [UNDER.word(value) for value in (49, 66, 472)] == ["holds", "falls short", "refuted"]
    assert [OVER.word(value) for value in (0.03, 0.8)] == ["refuted", "holds"]


def test_the_words_name_bars_marks_and_verdicts():
    drawing = diagram.number_lines([UNDER, OVER], "Two claims")
    assert "holds < 50 µs, refuted > 100 µs; measured (refuted); floor (falls short)" in drawing.says
    assert "holds > 50%; strided (holds); best (refuted)" in drawing.says
    assert drawing.svg().count(">falls short<") == 1, "a claim with one bar has no stretch between"


def test_another_bar_moves_the_stretches():
    moved = UNDER._replace(bar=("<", 70.0))
    assert moved.word(66) == "holds"
    assert diagram.number_lines([moved], "x").svg() != diagram.number_lines([UNDER], "x").svg()


def test_marks_stay_within_the_drawing_and_texts_apart():
    drawing = diagram.number_lines([UNDER, OVER], "Two claims")
    ((_, canvas),) = drawing.frames
    assert canvas.width == svg.WIDTH and canvas.height < 280


@pytest.mark.parametrize("bar, refuted", [(("<", 50.0), ("<", 100.0)), (("<", 50.0), (">", 40.0))])
def test_bars_that_contradict_each_other_are_refused(bar, refuted):
    with pytest.raises(UsageError, match="claim"):
        diagram.number_lines([UNDER._replace(bar=bar, refuted=refuted)], "x")


def test_a_scale_has_round_numbers_and_says_where_it_is_logarithmic():
    drawn = diagram.number_lines([UNDER], "x").svg()
    assert "logarithmic scale" in drawn and ">200<" in drawn
    near = UNDER._replace(marks=[(90.0, "measured"), (66.0, "floor")])
    even = diagram.number_lines([near], "x").svg()
    assert "logarithmic" not in even and ">20<" in even
    assert ">40%<" in diagram.number_lines([OVER], "x").svg()


def test_a_claim_is_a_line_of_its_words_and_verdicts():
    fills = {"holds": svg.SKY, "refuted": svg.AMBER, "not recorded": svg.NONE}
    again = [diagram.Found("refuted", "sufficient, best"), diagram.Found("holds")]
    judged = [
        diagram.Judged("H1", diagram.Found("holds"), again),
        diagram.Judged("H2", diagram.Found("refuted"), []),
    ]
    drawing = diagram.verdicts(judged, fills, "Two claims")
    assert drawing.says == "H1 holds (restated: refuted, sufficient, best and holds); H2 refuted."
    assert ">sufficient, best<" in drawing.svg()
    assert [drawing.svg().count(f'fill="{fill}"') for fill in (svg.SKY, svg.AMBER)] == [2, 2]
    assert "not recorded" not in drawing.svg()
    turned = diagram.verdicts(
        [judged[0], judged[1]._replace(stated=diagram.Found("holds"))], fills, "Two claims"
    )
    assert turned.svg().count(f'fill="{svg.SKY}"') == 3
    told = diagram.verdicts([judged[1]._replace(words="time\n< 50 µs")], fills, "One claim")
    assert ">&lt; 50 µs<" in told.svg() and told.says == "H2 (time < 50 µs) refuted."
    with pytest.raises(UsageError, match="at least one claim"):
        diagram.verdicts([], fills, "None")


def test_calls_are_bars_of_the_copy_and_the_kernel():
    call = uploads.Call("copied", 10_000.0, 9_500.0)
    drawing = uploads.uploads({"here": [call], "there": [uploads.Call("told", 4_000.0, None)]}, "Calls")
    assert drawing.says == (
        "here: copied 10.00 ms, of which the copy 9.50. there: told 4.00 ms, not divided."
    )
    assert ">copy 9.50<" in drawing.svg() and "does not divide" in drawing.svg()
    assert "does not divide" not in uploads.uploads({"here": [call]}, "Calls").svg()
    with pytest.raises(UsageError, match="at least one"):
        uploads.uploads({"here": []}, "None")


def test_a_test_put_to_kernels_is_a_line_of_what_it_measures_on_each():
    fills = {"holds": svg.SKY, "refuted": svg.AMBER, "not recorded": svg.NONE}
    slow = diagram.Tried("E1", "time < 50 µs", [("90 µs", "refuted"), ("17 µs", "holds")])
    open_ = diagram.Tried("E2", "hits > 50%", [("not recorded", "not recorded"), ("80%", "holds")])
    drawing = diagram.tried([slow, open_], ["strided\n90 µs", "best"], fills, "Two tests")
    assert drawing.says == (
        "E1 (time < 50 µs): strided 90 µs, refuted, best 17 µs, holds; "
        "E2 (hits > 50%): strided not recorded, best 80%, holds."
    )
    assert [drawing.svg().count(f'fill="{fill}"') for fill in (svg.SKY, svg.AMBER)] == [
        3,
        2,
    ]  # one in the key
    turned = diagram.tried([slow._replace(found=[("40 µs", "holds")] * 2)], ["a", "b"], fills, "One test")
    assert svg.AMBER not in turned.svg() and "refuted" not in turned.svg()
    with pytest.raises(UsageError, match="at least one"):
        diagram.tried([], [], fills, "None")
