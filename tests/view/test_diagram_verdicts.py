"""How a statement is judged and two kernels compared: of tests, recorded rows and the clock's order."""

import dataclasses

import numpy as np
from rooflab import claims, lab
from rooflab.bench import clock
from rooflab.claims.bars import Bar
from rooflab.pages.lesson_09_verdicts import _within, verdicts
from rooflab.view import diagram
from rooflab.view.diagram.in_turns import Compared, turns


def test_a_statement_is_drawn_with_its_tests_until_one_holds():
    evidence = claims.Evidence(lab.open("replay", "h200", "full").store)
    rescaled = claims.get("C-E3")
    drawing = verdicts([rescaled], evidence)
    assert "As stated, " in drawing.says and "Restated, " in drawing.says
    assert drawing.says.endswith("Verdict: holds, rescaled.") and "holds, rescaled" in drawing.svg()
    easy = dataclasses.replace(rescaled.tests[0], bar=Bar.of("< 1e6"))
    other = verdicts([dataclasses.replace(rescaled, tests=(easy, *rescaled.tests[1:]))], evidence)
    assert other.says.endswith("Verdict: holds.") and "Restated" not in other.says
    assert verdicts([claims.get("D-12")], evidence).says.endswith("Verdict: holds in direction only.")
    untested = next(claim for claim in claims.stated() if not claim.tests)
    assert verdicts([untested], evidence) is None, "nothing is drawn without a row"


def test_the_part_of_a_line_that_meets_a_bar_is_what_the_bar_says():
    for text in ("> 0.9", "< 0.3", "≥ 1", "≤ 0.5", "≈ 0.8 within 10%"):
        bar = Bar.of(text)
        low, high = _within(bar, 2.0)
        for value in (0.01, 0.4, 0.79, 0.95, 1.5):
            assert bar.met(value) == (low <= value <= high), (text, value)


def test_turns_are_those_of_the_clock(monkeypatch):
    replays = turns(5)
    counted = [at for at, counts in replays if counts]
    assert len(counted) == 10 and len(replays) == 20, "a replay before each sample does not count"
    assert all(sorted(counted[k : k + 2]) == [0, 1] for k in range(0, 10, 2)), "both in every round"
    order = np.random.default_rng(0)
    assert counted == [int(at) for _ in range(5) for at in order.permutation(2)]
    before = diagram.in_turns([]).svg()
    monkeypatch.setattr(clock, "sampled", lambda chains, timed, rounds, *_: ([[timed(chains[0].replay)]], []))
    assert diagram.in_turns([]).svg() != before


def test_a_ratio_becomes_a_word_by_the_tie_rule():
    points = [Compared("a", "x", 0.9), Compared("b", "y", 1.01), Compared("c", "z", 1.5)]
    assert [each.word for each in points] == ["theirs", "level", "ours"]
    assert "b, y: 1.01, level" in diagram.in_turns(points).says
