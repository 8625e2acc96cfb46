"""Lesson 09: what its rows of coverage.csv claim, held against the recording and the notebooks."""

import re

import pandas as pd
import pytest
from rooflab import claims, ops, paths
from rooflab.analysis import regressions, related
from rooflab.analysis.evidence import Evidence
from rooflab.claims import scorecard
from rooflab.pages import lesson_09_verdicts, lesson_09c_lost, lesson_09c_points
from rooflab.records.store import Store
from rooflab.studies import static
from rooflab.verify import mutants, mutations, suite


@pytest.fixture(scope="module")
def evidence():
    return Evidence(Store(paths.DATA, "h200"))


@pytest.fixture(scope="module")
def verdicts(evidence):
    return scorecard.board(claims.stated(), evidence)


def text(name):
    return (paths.NOTEBOOKS / f"{name}.ipynb").read_text()


def test_d1_to_d10_are_judged_with_a_bound_that_d6_can_keep(verdicts):
    """M97"""
    found = verdicts.set_index("id")["verdict"]
    items = [f"C-D{i}" for i in range(1, 11)]
    assert (found[[item for item in items if item != "C-D6"]] == claims.HOLDS).all()
    assert found["C-D6"] == claims.RESCALED
    table = suite.read()
    assert set(table[table["item"] == "D6 possible"]["rung"]) == set(
        table[table["operator"] == "gemv"]["rung"]
    )


def test_a_state_that_leaks_is_found_by_asking_twice_and_named_by_its_ratio(evidence):
    """M99"""
    frame = evidence.table("faults", "sanitizer")
    mine = frame[frame["case"].str.startswith("faults/not_zeroed") & frame["first_right"].astype(str).ne("")]
    assert (mine["first_right"].astype(str) == "True").all()
    assert (mine["second_right"].astype(str) == "False").all() and len(mine) >= 4
    table = suite.read()
    back = table[table["item"].isin(["F2", "F2 back"])]
    assert (back["value"] <= back["bound"]).all()
    assert "times the right sum" in text("09b_gate")


def test_planted_faults_are_killed(evidence):
    """M100"""
    table = mutations.read()
    assert len(table) > 200 and table["mutation"].nunique() > 20
    assert set(table["mutation"]) <= {rule.name for rule in mutants.MUTATIONS}
    assert (table["killed"] != "").mean() > 0.9
    assert {"gemv", "int4", "q8_0", "mmq", "attention", "decode_step"} <= set(table["operator"])


def test_machine_code_shows_what_the_checks_ask_for():
    """M101"""
    facts = static.read_sass()
    facts = facts.assign(rung=facts["case"].str.partition(" ")[0])
    worst = facts.groupby("rung")[
        ["shared_memory", "barriers", "shuffles", "tensor_products", "loads_16b"]
    ].min()
    assert (worst.loc["gemv/2_coalesced", ["shared_memory", "barriers"]] > 0).all()
    assert worst.loc["gemv_rows/1_warp", "shuffles"] > 0 and worst.loc["gemv_rows/2_vector", "loads_16b"] > 0
    assert (
        worst.loc["mmq/5_large_tiles", "tensor_products"] > 0
        and worst.loc["gemv/1_strided", "loads_16b"] == 0
    )


def test_a_hundred_runs_give_one_result():
    """M102"""
    table = suite.read()
    runs = table[table["item"] == "F1"]
    assert (runs["value"] == 1).all() and runs["quantity"].str.contains("100 runs").all()
    assert {"gemv", "int4", "attention", "decode_step"} <= set(runs["operator"])


def test_the_scorecard_counts_its_points_and_its_fails(verdicts):
    """M106"""
    sums = scorecard.tally(verdicts)
    assert sums["of"].sum() == 109 and sums[scorecard.FAIL].sum() > 0
    fails = verdicts[
        (verdicts["points"] > 0) & (verdicts["verdict"].map(scorecard.outcome) == scorecard.FAIL)
    ]
    assert (fails["measured"] != "").all()
    page = text("09b_gate")
    assert "in all" in page and "109" in page


def test_what_lost_is_kept(evidence):
    """M108"""
    table = regressions.rungs(evidence)
    assert len(table) >= 3 and (table["factor"] > 1).all()
    assert (regressions.given_up()[["where", "gpu"]] != "").all(axis=None)
    assert table["rung"].iloc[0] in text("09c_related")


def test_related_work_is_measured_or_says_where_its_figures_are_from(evidence):
    """M109"""
    table = related.table(evidence)
    assert {"Marlin", "AWQ", "bitsandbytes", "llama.cpp", "Ollama"} <= set(table["name"])
    measured = table[table["origin"] == related.HERE]
    assert len(measured) >= 6 and (measured["points"] > 0).all()
    page = text("09c_related")
    assert all(name in page for name in table["name"])


def test_the_rungs_that_lost_are_on_the_page_with_a_cause_that_its_ladder_can_have(evidence):
    page, table = text("09c_related"), regressions.rungs(evidence)
    assert all(f"{row.rung} of" in page for row in table.itertuples())
    assert (table["least"] <= table["factor"]).all() and (table["where"] != "").all()
    known = {
        (operator, rung.name)
        for each in ops.modules()
        for operator in each.LADDERS
        for rung in each.LADDERS[operator]
    }
    assert set(lesson_09c_lost.CAUSES) <= known
    parts = {path.stem for path in paths.NOTEBOOKS.glob("*.ipynb")}
    assert {cause.part for cause in lesson_09c_lost.CAUSES.values()} <= parts
    assert "../coverage.csv" in page


def test_the_flow_of_statements_adds_up(verdicts):
    said = lesson_09_verdicts.flow(verdicts).says
    rows = [[int(number) for number in re.findall(r"\d+", part)] for part in said.rstrip(".").split(". ")]
    assert len(rows) == 3 and [sum(each) for each in zip(*rows[:2], strict=True)] == rows[2]
    for stated, left, judged, *words in rows:
        assert stated - left == judged == sum(words)


def test_a_verdict_says_whether_our_fastest_kernel_was_asked(verdicts):
    ours = verdicts.set_index("id")["ours"]
    assert ours[["A-13", "A-14", "C-E5", "D-10"]].all() and not ours[["A-9", "B-4", "B-7", "C-E11"]].any()
    kinds = {s.id: lesson_09_verdicts.kind(s) for s in claims.stated() if s.tests}
    assert [kinds[one] for one in ("A-9", "A-7", "C-E5", "A-2")] == list(lesson_09_verdicts.KINDS[:4])


def test_a_rule_of_tokens_names_the_small_matrices_that_break_it():
    rows = [("INT4", n, n, tokens, 2.0) for n in (512, 4096, 8192) for tokens in (1, 16, 128, 256)]
    found = pd.DataFrame(rows, columns=["format", "n", "k", "tokens", "gain"])
    assert lesson_09c_points.rule(found).few_ahead == len(found), "no rule where ours is ahead of all"
    found.loc[found["tokens"] >= 128, "gain"] = 0.9
    found.loc[(found["n"] == 512) & (found["tokens"] == 16), "gain"] = 1.0
    by = lesson_09c_points.rule(found)
    assert (by.tokens, by.few, by.few_ahead, by.many, by.many_ahead) == (128, 6, 5, 6, 0)
    assert by.others == [(512, 512)] and by.small


def test_at_least_twice_as_fast_is_a_factor_and_more_than_level_a_direction():
    kinds = {claim.id: lesson_09_verdicts.kind(claim) for claim in claims.every() if claim.tests}
    assert kinds["C-H4"] == kinds["B-1"] == "how many times", "a bar of 2 or of 16"
    assert "which is faster" in kinds.values()
