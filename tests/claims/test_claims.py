"""Claims: bars, the files they are written in, and rows made up so that every verdict comes out each way."""

import html
import math
import re

import pandas as pd
import pytest
import yaml
from rooflab import claims, lab, paths
from rooflab.analysis import coalescing, root_cause, unseen
from rooflab.claims import (
    DIRECTION,
    ELSEWHERE,
    HOLDS,
    REFUTED,
    RESCALED,
    SHORT,
    UNRECORDED,
    Bar,
    Claim,
    Evidence,
    NoEvidence,
    Test,
    measures,
    scorecard,
)
from rooflab.errors import UsageError
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.records.case import Case, options
from rooflab.records.store import Store
from rooflab.studies.bandwidth import Roof

PAGE_07 = (paths.NOTEBOOKS / "07_regimes.ipynb").read_text()
NOTHING = Store(paths.DATA, "nothing")  # a recording without a table

# --- bars and verdicts --------------------------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch):
    """A measure, `given`, that gives its argument, or raises it."""

    def measure(evidence, value, of=""):
        if isinstance(value, Exception):
            raise value
        return len(of) if of else value

    monkeypatch.setitem(measures.MEASURES, "given", measure)


def test_of(value, bar="> 1", refuted=None, **changes):
    """A test about the number that it is given."""
    fields = {"id": "", "says": "It is so.", "quantity": "speed", "form": "{:.1f} m/s", "subject": "kernel"}
    fields |= {"measure": "given", "args": {"value": value}}
    return Test(bar=Bar.of(bar), refuted=refuted and Bar.of(refuted), **fields | changes)


test_of.__test__ = False


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("≈ 100 within 10%", 109, True),
        ("≈ 100 within 10%", 111, False),
        ("≈ -100 within 10%", -95, True),
        ("≈ 192", 192, True),
        ("≈ 192", 193, False),
        ("≥ 2", 2, True),
        ("> 2", 2, False),
        ("≤ 2", 2, True),
        ("< 2", 2, False),
        ("≈ 1 within 50%", float("nan"), False),
        ("≥ 1", float("nan"), False),
        ("> 332/316", 1.05, False),
        ("> 332/316", 1.06, True),
        ("> level", 1.02, False),
        ("< 1/level", 0.98, True),
        ("< 1/card(100, 4096)", 1.5, True),
    ],
)
def test_bars(text, value, met):
    assert Bar.of(text).met(value) is met


@pytest.mark.parametrize("text", ["1", "> ", "> fast", "> 1 within 10%", "≈ 1 within", "> card(1)"])
def test_what_is_no_bar_is_refused_with_what_one_looks_like(text):
    with pytest.raises(UsageError, match="is no"):
        Bar.of(text)


def test_a_value_never_reads_as_a_bar_that_it_is_not():
    """1,224.89 tokens a second beside "at least 1,225" would read as met."""
    bar = Bar.of("> 1225")
    assert [bar.beside(v, "{:,.0f}") for v in (1224.89, 1225, 1300.2)] == ["1,224.9", "1,225", "1,300"]
    assert Bar.of("≤ 1.1").beside(1.1004, "{:.2f}×") == "1.1004×"
    assert Bar.of("≈ 98 within 3%").beside(97.8, "{:.0f}%") == "98%"


def test_bars_in_words():
    assert Bar.of("≈ 0.81 within 10%").text("{:.0%}") == "≈ 81% within 10%"
    assert (Bar.of("≈ 192").text("{:.0f}"), Bar.of("≥ 3").text("{:.0f}")) == ("≈ 192", "≥ 3")
    assert test_of(1, "> 2", "< 1.5").bars() == "> 2.0 m/s; refuted < 1.5 m/s"
    assert test_of(1, "< 0.5", form="{:.0%}").asked() == "kernel: speed < 50%"


@pytest.mark.parametrize(
    ("bar", "refuted", "value", "word"),
    [
        ("> 2", "< 1.5", 2.1, HOLDS),
        ("> 2", "< 1.5", 2.0, SHORT),
        ("> 2", "< 1.5", 1.5, SHORT),
        ("> 2", "< 1.5", 1.4, REFUTED),
        ("< 50", "> 100", 49, HOLDS),
        ("< 50", "> 100", 70, SHORT),
        ("< 50", "> 100", 101, REFUTED),
        ("> 10", None, 10.1, HOLDS),
        ("> 10", None, 10.0, REFUTED),
        ("< 1.2", None, 1.3, REFUTED),
        ("< 1.2", None, math.inf, REFUTED),
        ("< 1.2", None, math.nan, UNRECORDED),
    ],
)
def test_a_verdict_is_the_value_against_the_bars(given, bar, refuted, value, word):
    found = claims.judge(test_of(value, bar, refuted), None)
    assert found.word == word
    if word != UNRECORDED:
        assert (found.value, found.measured) == (value, f"{value:.1f} m/s")


def test_a_goal_that_is_missed_falls_short(given):
    assert claims.judge(test_of(0.5, missed=SHORT), None).word == SHORT


def test_what_was_not_recorded_says_what_is_missing(given):
    found = claims.judge(test_of(NoEvidence("no row of it")), None, "the other kernel")
    assert (found.word, found.measured) == (UNRECORDED, "no row of it")
    assert math.isnan(found.value) and found.subject == "the other kernel"
    assert claims.judge(test_of(math.nan), None).measured == "speed of kernel was not recorded"


def made(*tests, needs=""):
    return Claim("A-T1", "A", "figure", "It is so.", tests=tests, needs=needs)


def again(value, bar="> 1", **changes):
    return test_of(value, bar, restated=True, **changes)


MISSING = NoEvidence("no row of it")


@pytest.mark.parametrize(
    ("one", "word", "said"),
    [
        (made(test_of(2)), HOLDS, "2.0 m/s"),
        (made(test_of(0.5)), REFUTED, "0.5 m/s"),
        (made(test_of(0.5), again(0.4, "> 0.2")), RESCALED, "0.4 m/s"),
        (made(test_of(0.5), again(0.4, "> 0.2", direction=True)), DIRECTION, "0.4 m/s"),
        (made(test_of(0.5), again(0.1, "> 0.2")), REFUTED, "0.5 m/s"),
        (made(test_of(1.7, "> 2", "< 1.5"), again(0.1, "> 0.2")), SHORT, "1.7 m/s"),
        (made(again(3)), RESCALED, "3.0 m/s"),
        (made(test_of(0.5), again(3, opposes=True)), REFUTED, "0.5 m/s"),
        (made(test_of(0.5), again(3, aside=True)), REFUTED, "0.5 m/s"),
        (made(test_of(2, measure="unrecorded"), again(3, aside=True), needs="a card"), ELSEWHERE, ""),
        (made(needs="another GPU"), ELSEWHERE, ""),
        (made(test_of(MISSING)), UNRECORDED, "no row of it"),
        (made(test_of(MISSING), again(3)), RESCALED, "3.0 m/s"),
        (made(again(MISSING), needs="a card"), UNRECORDED, "no row of it"),
    ],
)
def test_a_claim_s_verdict_is_that_of_the_first_test_that_holds(given, one, word, said):
    found = claims.verdict(one, None)
    assert (found.word, found.measured) == (word, said)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (made(test_of(2), again(0.5, id="T1 x", reason="so")), "Asked as T1 x it does not hold: kernel"),
        (made(test_of(2), again(3, id="T1 x", reason="so")), ""),
        (
            made(test_of(0.5), again(3, id="T1 x", aside=True, reason="so")),
            "Its neighbour T1 x, which .* holds: ",
        ),
        (made(test_of(2), again(0.5, id="T1 x", aside=True, reason="so")), "T1 x, which .* does not hold: "),
        (made(test_of(2), again(MISSING, id="T1 x", aside=True, reason="so")), ""),
    ],
)
def test_what_a_verdict_leaves_open_is_said_beside_it(given, one, said):
    found = scorecard.beside(one, None, claims.verdict(one, None))
    assert re.search(said, found) if said else found == ""


def test_steps_fall_within_a_table_and_not_from_one_to_the_next():
    rows = [row("own", n, us) | {"k": k} for n, k, us in ((1, 1, 1.0), (2, 1, 2.0), (1, 2, 1.0), (2, 2, 0.5))]
    rows += [row("peer", n, 10.0, kind="peer") | {"k": k} for n in (1, 2) for k in (1, 2)]
    found, of = Evidence(NOTHING, {"gemv": pd.DataFrame(rows)}), {"study": "gemv", "impl": "peer"}
    asked = {"along": [{"n": 1}, {"n": 2}], "over": {"impl": "own"}, "take": "falling"}
    shares = [measures.MEASURES["ratios"](found, of | {"k": k}, **asked) for k in (1, 2)]
    assert shares == [1, 0]
    assert measures.MEASURES["ratios"](found, of, tables=[{"k": 1}, {"k": 2}], **asked) == 0.5


def test_a_board_holds_a_row_a_claim_and_its_named_restatement_beside_it(given):
    one = made(
        test_of(1.5, "> 2"), again(1.5, id="T1 again", says="Or so.", reason="it could not fail"), again(1)
    )
    found = claims.board([one], None)
    assert found["id"].tolist() == ["T1", "T1 again"] and found["says"].tolist() == ["It is so.", "Or so."]
    assert found["word"].tolist() == [REFUTED, HOLDS] and found["restates"].tolist() == ["", "T1"]
    assert found["measured"].tolist() == ["1.5 m/s", "1.5 m/s"]


def test_powers_judge_one_claim_for_several_contestants(given):
    lengths = made(test_of(0, "> 3", args={"value": 0, "of": "subject"}))
    found = claims.powers([lengths], None, ["ab", "abcd"]).iloc[0]
    assert (found["ab"].word, found["abcd"].word) == (REFUTED, HOLDS)


# --- the files ----------------------------------------------------------------------------------------------


def written(tmp_path, *entries):
    path = tmp_path / "some.yaml"
    path.write_text(yaml.safe_dump({"sources": {"X": "a paper"}, "claims": list(entries)}))
    return list(claims.read(path))


ONE = {"id": "X-1", "group": "figure", "says": "It is fast.", "line": 3}
STATED = {"quantity": "speed", "form": "{:.0f}", "bar": "> 1", "measure": "roofs_measured"}


def test_an_entry_stands_for_as_many_claims_as_it_lists(tmp_path):
    each = [{"id": "X-1", "n": 4, "least": 3}, {"id": "X-2", "n": 8, "least": 0.5}]
    test = STATED | {"measure": "rate", "bar": "> $least", "of": {"study": "gemv", "n": "$n"}}
    found = written(tmp_path, ONE | {"each": each, "id": "$id", "says": "n is $n.", "stated": test})
    assert [claim.says for claim in found] == ["n is 4.", "n is 8."]
    assert [claim.tests[0].args["of"]["n"] for claim in found] == [4, 8]
    assert [claim.tests[0].bar.value for claim in found] == [3, 0.5]
    assert {claim.source for claim in found} == {"X"} and found[0].line == "3"


def test_a_restatement_is_measured_as_its_claim_is_unless_it_says_otherwise(tmp_path):
    stated = STATED | {"subject": "kernel", "measure": "ceiling", "roof": "dram_read"}
    other = {"bar": "> 2", "measure": "roofs_measured", "quantity": "roofs"}
    (claim,) = written(tmp_path, ONE | {"stated": stated, "rescaled": [{"bar": "> 0"}, other]})
    first, same, third = claim.tests
    assert (same.args, same.form, same.subject, same.restated) == (first.args, "{:.0f}", "kernel", True)
    assert (third.args, third.form, third.measure) == ({}, "{:.0f}", "roofs_measured")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (ONE, "a claim has a test"),
        (ONE | {"stated": STATED | {"measure": "guess"}}, "there is no measure 'guess'"),
        (ONE | {"stated": STATED | {"bar": "fast"}}, "'fast' is no bar"),
        (ONE | {"stated": STATED, "colour": "red"}, "colour"),
        (ONE | {"stated": STATED, "each": [{"n": 1}], "says": "n is $k."}, "k"),
    ],
)
def test_a_claim_that_is_written_wrongly_is_named(tmp_path, entry, sentence):
    with pytest.raises(UsageError, match=f"some.yaml, X-1: .*{sentence}"):
        written(tmp_path, entry)


def test_every_claim_is_named_once_and_every_measure_is_used():
    every = claims.every()
    ids = [claim.id for claim in every]
    assert len(set(ids)) == len(ids)
    names = [test.id for claim in every for test in claim.tests if test.id]
    assert len(set(names)) == len(names)
    used = {test.measure for claim in every for test in claim.tests}
    assert used == set(measures.MEASURES)
    for claim in every:
        for test in claim.tests:
            assert bool(test.id) == bool(test.reason), claim.id
            test.form.format(1.0)
    with pytest.raises(UsageError, match="no claim 'Z-1'"):
        claims.get("Z-1")


def test_a_claim_is_judged_on_rows_of_one_state():
    """Any column of a row can narrow what a test reads, a power state too."""
    times = {"burst": 40.0, "sustained": 50.0}
    rows = [row("2_coalesced", 4096, us) | {"state": state} for state, us in times.items()]
    found = Evidence(NOTHING, {"gemv": pd.DataFrame(rows)})
    of = {"study": "gemv", "impl": "2_coalesced"}

    def judged(of, **where):
        return claims.judge(test_of(0, "< 45", measure="value", args={"of": of}, where=where), found)

    assert judged(of).value == 40 and judged(of | {"state": "sustained"}).value == 50
    assert [judged(of, state=state).word for state in (*times, "idle")] == [HOLDS, REFUTED, UNRECORDED]
    none = judged(of, mood="good")
    assert (none.word, none.measured) == (UNRECORDED, "no column mood in study gemv")


def test_the_least_gain_is_of_the_sizes_that_both_were_timed_at():
    times = {"own": {256: 10.0, 512: 10.0, 1024: 1.0}, "peer": {256: 30.0, 512: 12.0, 2048: 1.0}}
    rows = [row(kind, n, us, kind=kind) for kind, sizes in times.items() for n, us in sizes.items()]
    rows.append(row("slower", 512, 40.0, kind="peer"))
    found = Evidence(NOTHING, {"gemv": pd.DataFrame(rows)})
    of, over = {"study": "gemv", "kind": "own"}, {"kind": "peer"}
    assert measures.MEASURES["least_gain"](found, of, over, ["n", "k"]) == 1.2
    with pytest.raises(NoEvidence, match="no size was timed by both"):
        measures.MEASURES["least_gain"](found, of | {"n": 1024}, over | {"n": 2048}, ["n", "k"])


@pytest.mark.parametrize(
    ("bar", "us", "share", "save", "above"),
    [("≤ 30", 40.0, 0.6, 0.25, 0.4), ("≤ 50", 40.0, 0.6, None, None), ("≥ 50", 40.0, 0.5, 0.2, 0.5)],
)
def test_a_missed_goal_has_a_budget(bar, us, share, save, above):
    """What it must save of its time, and what of that its roof leaves; a goal that is met has none."""
    one = row("2_coalesced", 4096, us) | {"roof_fraction": share}
    found = Evidence(NOTHING, {"gemv": pd.DataFrame([one])})
    test = test_of(0, bar, measure="value", args={"of": {"study": "gemv"}}, missed=SHORT)
    given = scorecard.budget(test, found, claims.judge(test, found))
    assert [None if math.isnan(each) else round(each, 9) for each in given] == [save, above]


def test_goals_of_shares_of_roofs_and_of_other_things_have_the_budgets_that_they_can():
    rows = [row("2_coalesced", 4096, 40.0) | {"roof_fraction": 0.6}, row("cublas", 4096, 38.0, kind="peer")]
    found = Evidence(NOTHING, {"gemv": pd.DataFrame(rows)})
    of = {"study": "gemv", "impl": "2_coalesced"}
    for measure, args, save, above in (
        ("value", {"of": of, "column": "roof_fraction"}, 0.25, 0.4),
        ("ratio", {"of": of | {"impl": "cublas"}, "over": {"impl": "2_coalesced"}}, -0.1875, None),
        ("count", {"of": of}, None, None),
    ):
        test = test_of(0, "≥ 0.8", measure=measure, args=args, missed=SHORT)
        one = claims.judge(test, found)._replace(word=SHORT)
        given = scorecard.budget(test, found, one)
        assert [None if math.isnan(each) else round(each, 9) for each in given] == [save, above]


# --- the committed recording --------------------------------------------------------------------------------


def test_what_the_scorecard_says_of_drawn_shapes_is_what_lesson_07_says():
    said = re.search(r"ours is as fast as .*?, on (\d+) of (\d+) drawn shapes", PAGE_07)
    assert said is not None
    found = Evidence(Store(paths.DATA, "h200"))
    assert measures.MEASURES["unseen_won"](found) == int(said[1]) / int(said[2])
    least = {kind: measures.MEASURES["unseen_least"](found, kind) for kind in unseen.KINDS.values()}
    assert measures.MEASURES["unseen_least"](found) == min(least.values())
    few = measures.MEASURES["unseen_cost"](found, "Q8_0 product", [1, 64])
    assert 1 <= few <= measures.MEASURES["unseen_cost"](found, "Q8_0 product", [1, 4096])
    with pytest.raises(NoEvidence, match="no drawn shape of attention"):
        measures.MEASURES["unseen_least"](found, "attention", [1, 2])


def test_every_missed_floor_is_on_the_page_with_its_budget():
    own = scorecard.goals(Evidence(Store(paths.DATA, "h200")))
    missed = own[(own["verdict"] == SHORT) & (own["kind"] == claims.FLOOR)]
    page = (paths.NOTEBOOKS / "09_scorecard.ipynb").read_text()
    for one in missed.itertuples():
        assert one.says in page and one.reached in page
        if one.says.startswith("Drawn shapes on"):
            continue  # a share of shapes, no time
        assert 0 < one.save < 1 and f"{one.save:.1%}" in page
    past = missed[missed["above"] < missed["save"]]
    assert page.count("the goal is past the roof of this recording") >= len(past)
    assert all("sustained" in says for says in past["says"]), "power lowers a roof; no other floor is past it"


def test_the_verdicts_on_the_committed_recording_are_those_that_were_written_down():
    """They stand in tests/data/verdicts.yaml. A new recording may change them: then change that file too."""
    evidence = Evidence(Store(paths.DATA, "h200"))
    found = {claim.id: claims.verdict(claim, evidence).word for claim in claims.every()}
    named = ((id, test) for id, _, test in claims.shown(claims.stated()) if test.id)
    found |= {id: claims.judge(test, evidence).word for id, test in named}
    written = yaml.safe_load((paths.ROOT / "tests" / "data" / "verdicts.yaml").read_text("utf-8"))
    assert found == {id: word for word, ids in written.items() for id in ids}


# --- the coalescing story -----------------------------------------------------------------------------------

ROOF = 1000.0  # GB/s
CUBLAS = "torch.matmul"
BLOCKS = (64, 128, 256, 512, 1024)
LADDER = ("1_strided", "2_coalesced", "3_split_k", "4_vector", "6_column_strips")


def row(impl, n, us, cache="cold", kind="own", **chosen):
    return {
        "impl": impl,
        "kind": kind,
        "n": n,
        "k": n,
        "cache": cache,
        "clock": "graph",
        "options": options(**chosen),
        "median_us": us,
        "shared_bytes": 0 if impl == "1_strided" else 16384,
        "operator": "gemv",
    }


def evidence(shares=None, counters=(), blocks=None, pad=None, cublas=0.8, tokens=None, uploads=None):
    """Rows in which rungs and cuBLAS read at their shares of a roof of 1000 GB/s, at every size."""
    rows = []
    for impl, share in (shares or {}).items():
        rows += [row(impl, n, coalescing.moved(n) / share / ROOF / 1e3) for n in coalescing.SIZES]
    for impl, ratios in (blocks or {}).items():
        rows += [row(impl, 4096, 100 * ratio, threads=threads) for threads, ratio in ratios.items()]
    if cublas:
        times = {n: coalescing.moved(n) / cublas / ROOF / 1e3 for n in coalescing.SIZES}
        rows += [row(CUBLAS, n, us, kind="peer") for n, us in times.items()]
    if pad:
        rows += [row("6_column_strips", 4096, 20.0, pad=1), row("6_column_strips", 4096, 20.0 * pad, pad=0)]
    for model, share in (tokens or {}).items():
        for part in model_shapes.projections(model_shapes.get(model)):
            us = roofline.gemm_bytes(1, part.n, part.k, 2, 2, 2) / share / ROOF / 1e3
            rows.append(row("5_split", part.n, us) | {"k": part.k, "operator": "gemv_rows"})
    rows += uploads or []
    return by_rows(rows, counters)


def by_rows(rows, counters=(), gb_s=ROOF):
    """Evidence of these rows of study gemv and counters, under a read roof."""
    frame = pd.DataFrame(rows, columns=list(row("", 1, 1.0)))
    profile = pd.DataFrame(list(counters) or None, columns=None if counters else ["case"])
    found = Evidence(NOTHING, {"gemv": frame}, {("gemv", "ncu"): profile})
    found.roof = {"dram_read": Roof(gb_s, "GB/s", "made up")}
    return found


def counter(impl, n=4096, cache="cold", **values):
    case = Case("gemv", "gemv", impl, "own", "fp32", n=n, k=n, cache=cache, clock="graph")
    return {"case": case.id} | values


def words(wanted, found):
    """Verdicts on the claims called so."""
    return [claims.judge(KNOWN[id], found).word for id in wanted]


KNOWN = {
    id: test for group in ("hypothesis", "test") for id, _, test in claims.shown(claims.select(group=group))
}


def test_the_source_s_hypotheses_and_tests_are_all_there():
    assert {f"H{i}" for i in range(1, 6)} | {f"E{i}" for i in range(1, 13)} <= set(KNOWN)


def test_without_rows_nothing_is_judged():
    nothing = evidence(cublas=None)
    assert set(words(set(KNOWN) - {"H3"}, nothing)) == {UNRECORDED} and words(["H3"], nothing) == [ELSEWHERE]


@pytest.mark.parametrize(
    ("efficiency", "share", "wasteful", "expected"),
    [
        (100, 0.95, 0.1, [HOLDS, HOLDS, HOLDS]),
        (100, 0.06, 0.1, [HOLDS, REFUTED, HOLDS]),  # coalesced, and slow
        (80, 0.7, 0.6, [SHORT, SHORT, SHORT]),
        (40, 0.3, 0.95, [REFUTED, REFUTED, REFUTED]),
    ],
)
def test_h1_is_efficiency_and_bandwidth_apart(efficiency, share, wasteful, expected):
    found = evidence(
        {"1_strided": wasteful, "2_coalesced": share},
        [
            counter("1_strided", load_efficiency_pct=12.5),
            counter("2_coalesced", load_efficiency_pct=efficiency),
        ],
    )
    if efficiency < 50:  # both waste, so the better of the two speaks
        assert claims.judge(KNOWN["H1 necessary"], found).value == pytest.approx(max(share, wasteful))
    assert words(["H1", "H1 sufficient", "H1 necessary"], found) == expected


@pytest.mark.parametrize(("us", "word"), [(49, HOLDS), (99, SHORT), (101, REFUTED)])
def test_h2_by_the_clock(us, word):
    assert words(["H2"], evidence({"2_coalesced": coalescing.moved() / us / 1e3 / ROOF})) == [word]


@pytest.mark.parametrize(("best", "word"), [(0.95, HOLDS), (0.8, SHORT), (0.6, REFUTED)])
def test_h2_by_the_floor_speaks_of_the_best_kernel(best, word):
    assert words(["H2 by the floor"], evidence({"2_coalesced": 0.1, "4_vector": best})) == [word]


def test_h3_needs_a_decoder_and_its_refinement_does_not():
    slow, fast = evidence({"2_coalesced": 0.5}), evidence({"2_coalesced": 0.9})
    assert words(["H3", "H3 as refined", "E4"], slow) == [ELSEWHERE, REFUTED, REFUTED]
    assert words(["H3", "H3 as refined", "E4"], fast) == [ELSEWHERE, HOLDS, HOLDS]
    for id in ("C-H3", "C-F6"):
        assert claims.verdict(claims.get(id), fast).word == ELSEWHERE, "rates of decoders on another card"


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (2.2, [HOLDS, HOLDS]),
        (1.7, [SHORT, HOLDS]),
        (1.2, [REFUTED, HOLDS]),
        (1.0, [REFUTED, SHORT]),
        (0.9, [REFUTED, REFUTED]),
    ],
)
def test_h4_two_times_and_worth_it(gain, expected):
    assert words(["H4", "H4 worth it"], evidence({"3_split_k": 0.4, "4_vector": 0.4 * gain})) == expected


@pytest.mark.parametrize(("gain", "word"), [(4.0, HOLDS), (1.7, SHORT), (1.2, REFUTED)])
def test_h4_in_rows_compares_the_fp16_rungs(gain, word):
    fp16 = [row("1_warp", 4096, 40.0), row("2_vector", 4096, 40.0 / gain)]
    fp16 = [each | {"operator": "gemv_rows"} for each in fp16]
    assert words(["H4 in rows"], by_rows(fp16)) == [word]
    assert words(["H4 in rows"], by_rows(fp16[:1])) == [UNRECORDED]


def test_h5_looks_one_way_and_its_restatement_both_ways():
    level = dict.fromkeys(BLOCKS, 1.0)
    for last, expected in ((1.0, [HOLDS, HOLDS]), (4.0, [HOLDS, REFUTED]),
                           (0.5, [REFUTED, REFUTED])):  # fmt: skip
        times = level | {1024: last}
        found = evidence(blocks={"2_coalesced": times, "5_in_flight": times})
        assert words(["H5", "H5 two-sided"], found) == expected
    assert words(["H5 two-sided"], evidence(blocks={"5_in_flight": {64: 1.0}})) == [UNRECORDED]


@pytest.mark.parametrize(
    ("share", "as_stated", "by_the_roof"),
    [
        (0.95, [HOLDS, HOLDS, HOLDS, HOLDS], [HOLDS, HOLDS, HOLDS]),
        (0.6, [REFUTED, HOLDS, REFUTED, REFUTED], [REFUTED, HOLDS, REFUTED]),
        (0.1, [REFUTED] * 4, [REFUTED] * 3),
    ],
)
def test_e1_to_e5_as_stated_and_by_the_roof(share, as_stated, by_the_roof):
    found = evidence({"2_coalesced": share})
    assert words(["E1", "E2", "E3", "E5"], found) == as_stated
    assert words([f"E{i} by the roof" for i in (1, 2, 3)], found) == by_the_roof


def test_a_bar_in_microseconds_asks_the_same_of_the_card_as_its_share():
    """On the source's own card, with its datasheet for a roof, bar and restated bar fall together."""
    card = coalescing.CARD.dram_gb_s
    for id, n, us in (("E1", 4096, 100), ("E2", 2048, 30), ("E3", 8192, 300)):
        for factor, word in ((0.99, HOLDS), (1.01, REFUTED)):
            found = by_rows([row("2_coalesced", n, us * factor)], gb_s=card)
            assert words([id, f"{id} by the roof"], found) == [word, word]


def test_e6_e11_and_e12_come_from_counters():
    good = {"load_efficiency_pct": 100, "l2_hit_pct": 60, "threads_per_inst": 32, "shared_efficiency_pct": 95}
    bad = {"load_efficiency_pct": 12.5, "l2_hit_pct": 1, "threads_per_inst": 16, "shared_efficiency_pct": 12}
    tests = ["E6", "E10", "E11", "E12"]
    timed = {"2_coalesced": 0.5, "1_strided": 0.1}
    assert words(tests, evidence(timed, [counter("2_coalesced", **good)])) == [HOLDS] * 4
    assert words(tests, evidence(timed, [counter("2_coalesced", **bad)])) == [REFUTED] * 4
    none = claims.judge(KNOWN["E10"], evidence(timed, [counter("1_strided", **bad)]), "1_strided")
    assert (none.word, none.measured) == (UNRECORDED, "1_strided uses no shared memory")


@pytest.mark.parametrize(
    ("cold", "warm", "expected"),
    [
        (2, 90, [HOLDS, HOLDS]),
        (20, 40, [SHORT, REFUTED]),
        (60, 50, [REFUTED, REFUTED]),
    ],
)
def test_e11_cold_and_warm(cold, warm, expected):
    found = evidence(
        {"4_vector": 0.9},
        [
            counter("4_vector", l2_hit_pct=cold),
            counter("2_coalesced", 2048, "warm", l2_hit_pct=warm, dram_read_bytes=9e5),
        ],
    )
    assert words(["E11 cold", "E11 warm"], found) == expected


def test_a_warm_profile_that_reads_dram_is_no_evidence():
    cold = counter("2_coalesced", 2048, "warm", l2_hit_pct=2, dram_read_bytes=coalescing.moved(2048))
    found = claims.judge(KNOWN["E11 warm"], evidence(counters=[cold]))
    assert found.word == UNRECORDED
    assert "nothing was warm" in found.measured


def test_e7_counts_the_source_s_way_and_the_model_s():
    fast, slow = evidence({"2_coalesced": 0.9}), evidence({"2_coalesced": 0.5})
    assert (words(["E7"], fast), words(["E7"], slow)) == ([HOLDS], [REFUTED])
    for share, word in ((0.9, HOLDS), (0.5, REFUTED)):
        assert words(["E7 by the models"], evidence(tokens={"llama-2-7b": share})) == [word]


def test_e8_measures_against_the_strided_kernel():
    found = evidence({"1_strided": 0.1, "2_coalesced": 0.06, "4_vector": 0.9})
    assert words(["E8", "E8 by the best"], found) == [REFUTED, REFUTED]
    found = evidence({"1_strided": 0.05, "2_coalesced": 0.6})
    assert words(["E8", "E8 by the best"], found) == [HOLDS, HOLDS]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.8, [HOLDS, HOLDS]), (0.6, [HOLDS, SHORT]), (0.4, [REFUTED, REFUTED])],
)
def test_e9_against_cublas(share, expected):
    assert words(["E9", "E9 by the best"], evidence({"2_coalesced": share})) == expected


def test_e10_by_padding_takes_conflicts_away():
    for factor, word in ((2.5, HOLDS), (1.1, REFUTED)):
        assert words(["E10 by padding"], evidence({"6_column_strips": 0.9}, pad=factor)) == [word]


def test_the_best_rung_is_an_own_one_and_cold_ones_are_not_mixed_with_warm():
    found = by_rows(
        [row("3_split_k", 4096, 30.0), row("4_vector", 4096, 20.0), row("4_vector", 4096, 9.0, "warm"),
         row("4_vector", 4096, 19.0, threads=128), row(CUBLAS, 4096, 10.0, kind="peer")]
    )  # fmt: skip
    assert coalescing.us(found, "best") == 19.0
    warm = coalescing.us(found, "4_vector", cache="warm")
    assert (coalescing.us(found, "4_vector"), warm) == (20.0, 9.0)
    where = coalescing.square("4_vector")
    assert found.us("gemv", **where | {"options": "threads=128"}) == 19.0
    with pytest.raises(NoEvidence, match="no row operator=gemv impl=4_vector .*options=threads=64"):
        found.row("gemv", **where | {"options": "threads=64"})


# --- the whys -----------------------------------------------------------------------------------------------

SOURCE = root_cause.Published(
    strided_us=4000.0, target_us=23.0, resident_us=180.0, uploading_us=5000.0, tok_s=18.5
)


def test_each_why_has_a_number_of_the_source_s_and_one_of_ours():
    strided = {"load_sectors_per_request": 32, "load_efficiency_pct": 12.5, "l2_hit_pct": 87}
    found = evidence(
        {"1_strided": 0.2, "2_coalesced": 0.05, "6_column_strips": 0.9},
        [counter("1_strided", dram_read_bytes=2 * coalescing.moved(), **strided)],
        uploads=[
            row(impl, 4096, us) | {"operator": "upload"}
            for impl, us in (("pageable", 6712.0), ("pinned", 1.0))
        ],
    )
    rows = root_cause.whys(found, SOURCE)
    assert len(rows) == 6
    assert "192 × 4.00 ms leave 1.3 tokens a second" in rows["theirs"][0]
    slow = 192 * coalescing.moved() / 0.2 / 1e9
    assert f"192 products take {slow:.1f} ms strided" in rows["here"][0]
    assert "16.8 GB/s" in rows["theirs"][1] and "reads 200 GB/s, 20% of the read roof" in rows["here"][1]
    assert rows["here"][2].startswith(
        "32 sectors a load on average, 12% of their bytes used; but L2 serves 87%"
    )
    assert rows["here"][2].endswith("DRAM 2.00 times")
    assert rows["theirs"][3].startswith("16 KiB") and rows["here"][3].startswith("16 KiB")
    assert "1_strided has " in rows["here"][4] and "6_column_strips " in rows["here"][4]
    assert rows["here"][5].endswith("the coalesced kernel is 1.34 ms of it, 20%")


def test_a_why_without_rows_says_so():
    rows = root_cause.whys(evidence(cublas=None), SOURCE)
    assert rows["here"].str.startswith("not measured: ").tolist() == [True, True, True, False, True, True]


def test_the_source_s_figures_come_from_the_published_tables():
    store = lab.open("replay", "rtx-4090-published").store
    found = root_cause.published(store.read("gemv"), store.read("decode"))
    assert (
        found.uploading_us > found.strided_us > 1e3 > found.resident_us > found.target_us > 10
        and found.tok_s > 10
    )


def test_a_list_says_what_a_board_says_with_restatements_under_their_claims():
    board = claims.board(claims.select(group="hypothesis"), coalescing.gather(lab.open("replay", "h200")))
    _, head, *lines, _ = html.unescape(claims.listed(board)).splitlines()
    assert len(lines) == len(board) and head.count("<th>") == 4
    under = ""
    for line in lines:
        id = line[len("<tr><td><b>") :].partition("<")[0]
        row = board.set_index("id").loc[id]
        assert all(row[name] in line for name in ("word", "says", "measured", "bars"))
        assert line.startswith("<tr><td><b>") != bool(row["restates"]) and line.count("<td>") == 4
        under = under if row["restates"] else id
        assert row["restates"] in ("", under) and row["reason"] in line
