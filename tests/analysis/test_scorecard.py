"""The scorecard: statements judged by made-up records and by the recording; tally, goals, related work."""

import json
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
from rooflab import claims, ops, paths
from rooflab.analysis import int4, regressions, related
from rooflab.claims import (
    ELSEWHERE,
    HOLDS,
    REFUTED,
    RESCALED,
    UNRECORDED,
    VERDICTS,
    Evidence,
    NoEvidence,
    scorecard,
    verdict,
)
from rooflab.claims.measures import house
from rooflab.claims.scorecard import FAIL, OPEN, PASS
from rooflab.hardware import crossover
from rooflab.records.store import Store

STATEMENTS = claims.stated()
COPIED = ("runs", "bandwidth", "decode", "gemv", "int4", "q8_0", "mmq", "attention", "regimes", "attribution")


@pytest.fixture(scope="module")
def evidence():
    return Evidence(Store(paths.DATA, "h200"))


@pytest.fixture
def altered(tmp_path):
    """A copy of the recording whose tables can be changed: call with a study, which rows, and a factor."""
    folder = tmp_path / "h200"
    folder.mkdir()
    for name in COPIED:
        shutil.copy(paths.DATA / "h200" / f"{name}.csv", folder)
    shutil.copytree(paths.DATA / "h200" / "profiles", folder / "profiles")

    def alter(study, column, chosen, factor):
        path = folder / f"{study}.csv"
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows = chosen(frame) & (frame[column] != "")
        assert rows.any()
        for name in (column, *(("q1_us", "q3_us") if column == "median_us" else ())):
            frame.loc[rows, name] = [f"{float(v) * factor:.6g}" for v in frame.loc[rows, name]]
        frame.to_csv(path, index=False, lineterminator="\n")
        return Evidence(Store(tmp_path, "h200"))

    return alter


# --- every statement ----------------------------------------------------------------------------------------


def test_every_statement_is_named_once_and_can_be_judged_or_says_what_it_needs():
    assert len({s.id for s in STATEMENTS}) == len(STATEMENTS) > 150
    for s in STATEMENTS:
        assert s.source in claims.sources() and s.line and s.says[-1] in ".)", s.id
        assert s.tests or s.needs, s.id


def test_all_of_the_sources_are_there():
    ids = {s.id for s in STATEMENTS}
    assert {f"C-H{i}" for i in range(1, 6)} | {f"C-E{i}" for i in range(1, 13)} <= ids
    sections = {"A": 10, "B": 10, "C": 9, "D": 10, "F": 5, "G": 5}
    assert {f"C-{name}{i}" for name, n in sections.items() for i in range(1, n + 1)} <= ids
    assert {f"C-gap F{i}" for i in range(1, 7)} <= ids
    sweep = [s for s in STATEMENTS if s.group == "sweep"]
    assert len(sweep) == 24  # two tables of six rows, two gains each
    assert {f"D-R{i}" for i in (1, 3, 4, 5, 6, 7)} <= ids
    assert {s.source for s in STATEMENTS} == set(claims.sources())


def test_lessons_that_statements_lead_to_have_those_headings():
    texts = {path.stem: path.read_text() for path in paths.NOTEBOOKS.glob("*.ipynb")}
    for s in STATEMENTS:
        stem, _, heading = s.lesson.partition("#")
        if stem and stem in texts:
            assert f"# {heading}" in texts[stem].replace('\\"', '"'), s.id


def test_a_recording_is_judged_without_gaps_in_the_words(evidence):
    table = scorecard.board(STATEMENTS, evidence)
    assert set(table["verdict"]) <= set(VERDICTS)
    judged_ = table[~table["verdict"].isin([ELSEWHERE, UNRECORDED])]
    assert (judged_["measured"] != "").all() and judged_["value"].notna().all()
    assert (table[table["verdict"] == UNRECORDED]["measured"] != "").all()
    assert (table[table["verdict"] == ELSEWHERE]["tested"].str.startswith("it needs ")).all()


def test_nothing_recorded_means_nothing_judged_by_rows(tmp_path):
    empty = Evidence(Store(tmp_path, "nothing"))
    table = scorecard.board(STATEMENTS, empty).set_index("id")
    for one in ("A-1", "A-8", "B-7", "C-H1", "C-E1", "C-F15", "D-12", "D-23"):
        assert table["verdict"][one] == UNRECORDED and table["measured"][one]


# --- a changed record changes the verdict -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "study", "impl", "factor"),
    [
        ("A-12", "int4", None, 10),
        ("A-9", "int4", "1_warp_row", 0.01),
        ("C-F15", "gemv", "2_coalesced", 0.01),
        ("C-E9", "gemv", "torch.matmul", 0.1),
        ("D-19", "q8_0", "2_dp4a", 10),
        ("D-10", "mmq", "dequantise+torch.matmul", 10),
        ("D-16", "attention", "3_half2", 10),
    ],
)
def test_a_changed_record_changes_the_verdict(id, study, impl, factor, evidence, altered):
    before = verdict(claims.get(id), evidence)
    assert before.word not in (UNRECORDED, ELSEWHERE)

    def chosen(frame):
        return frame["impl"] == impl if impl else frame["kind"] == "own"

    after = verdict(claims.get(id), altered(study, "median_us", chosen, factor))
    assert after.word != before.word and after.value != before.value


# --- the tally ----------------------------------------------------------------------------------------------


def test_the_checklist_has_a_hundred_and_nine_points(evidence):
    table = scorecard.board([s for s in STATEMENTS if s.points], evidence)
    assert table["points"].sum() == 109
    sums = scorecard.tally(table).set_index("section")
    assert sums["of"].to_dict() == {"A": 10, "B": 15, "C": 15, "D": 20, "E": 29, "F": 10, "G": 5, "H": 5}
    assert (sums[[PASS, FAIL, OPEN]].sum(axis=1) == sums["of"]).all()
    assert sums[FAIL].sum() > 0 and sums["of"].sum() == 109
    best = scorecard.tally(table, "best")
    assert best[PASS].sum() >= sums[PASS].sum() and best["of"].sum() == 109


def points(**outcomes):
    rows = [
        {"id": f"C-{name}", "points": 2, "verdict": word, "best": word} for name, word in outcomes.items()
    ]
    return pd.DataFrame(rows)


def test_a_mark_needs_points_and_its_named_items():
    everything = {s.id.removeprefix("C-"): HOLDS for s in STATEMENTS if s.points}
    table = pd.DataFrame(
        [{"id": f"C-{n}", "points": s.points, "verdict": HOLDS, "best": HOLDS} for n in everything
         for s in STATEMENTS if s.id == f"C-{n}"]
    )  # fmt: skip
    assert scorecard.marks(table)["lacking"].map(len).tolist() == [0, 0, 0]
    table.loc[table["id"] == "C-E5", "verdict"] = REFUTED
    assert scorecard.marks(table)["lacking"].tolist() == [[], [], ["E5"]]
    table.loc[table["id"] == "C-A4", "verdict"] = ELSEWHERE
    assert [sorted(names) for names in scorecard.marks(table)["lacking"]] == [["A4"], ["A4"], ["A4", "E5"]]


def test_only_what_holds_as_stated_earns_points():
    table = points(A1=HOLDS, B1=RESCALED, D1=REFUTED, F1=ELSEWHERE, G1=UNRECORDED)
    sums = scorecard.tally(table).set_index("section")
    assert sums[PASS].to_dict() == {"A": 2, "B": 0, "D": 0, "F": 0, "G": 0}
    assert sums[FAIL].to_dict() == {"A": 0, "B": 2, "D": 2, "F": 0, "G": 0}
    assert sums[OPEN].to_dict() == {"A": 0, "B": 0, "D": 0, "F": 2, "G": 2}


# --- goals, related work, what lost -------------------------------------------------------------------------


def test_goals_are_judged_and_follow_the_record(evidence, altered):
    table = scorecard.goals(evidence)
    assert set(claims.GOALS) == set(table["kind"]) and len(table) == 147
    assert set(table["verdict"]) <= {HOLDS, claims.SHORT, UNRECORDED}
    slower = scorecard.goals(altered("gemv", "median_us", lambda frame: frame["kind"] == "own", 3))

    def met(board):
        mine = board[(board["lesson"] == "03") & (board["kind"] == claims.FLOOR)]
        return (mine["verdict"] == HOLDS).sum()

    assert met(table) > met(slower)


def test_goals_of_decoding_name_the_study_that_they_wait_for(tmp_path):
    table = scorecard.goals(Evidence(Store(tmp_path, "nothing")))
    mine = table[(table["lesson"] == "08") & (table["verdict"] == UNRECORDED)]
    assert len(mine) >= 12 and mine["reached"].str.contains("decode|prefill").all()


def test_a_kernel_beyond_its_error_budget_breaks_the_rule(evidence, altered):
    """Twice the budget is beyond it, and one study's rows of many."""

    def rule(board):
        return board.set_index("says").loc["Own timed rows within their error budget"]

    assert (rule(scorecard.goals(evidence))[["value", "verdict"]] == [1.0, HOLDS]).all()

    def errs(frame):
        return (frame["kind"] == "own") & (frame["median_us"] != "") & (frame["error_budget"].map(bool))

    study = evidence.rows("gemv", kind="own")
    least = (study["error_budget"] / study["error"]).replace(float("inf"), float("nan")).min()
    broken = rule(scorecard.goals(altered("gemv", "error", errs, 2 * least)))
    assert 0.9 < broken["value"] < 1 and broken["verdict"] == claims.SHORT


def test_libraries_are_measured_published_or_named(evidence):
    table = related.table(evidence)
    assert set(table["origin"]) == {*related.ORIGINS, related.ABSENT}
    named = table.set_index(["name", "origin"])
    assert ("Marlin", related.PUBLISHED) in named.index and ("Ollama", related.ABSENT) in named.index
    awq = related.points(evidence).set_index(["name", "origin"]).loc[[("AWQ", related.OTHER)]].iloc[0]
    own = evidence.rows("decode", kind="own", model="llama-3-8b", format="int4_g128")["gb_s"].max()
    assert awq["ours"] == pytest.approx(own / 4800) and awq["theirs"] == pytest.approx(0.693, abs=0.001)
    assert ("bitsandbytes", related.PUBLISHED) in named.index
    counted = table[table["origin"] != related.ABSENT]
    assert (counted["ours"] + counted["level"] + counted["theirs"] == counted["points"]).all()
    assert {"cuBLAS", "humming", "cuDNN", "FlashAttention-2"} <= set(table["name"])


def test_a_faster_library_is_said_to_be_faster(altered):
    found = altered("int4", "median_us", lambda frame: frame["impl"] == "humming", 0.01)
    row = related.table(found).set_index(["name", "origin"]).loc[("humming", related.HERE)]
    assert row["theirs"] == row["points"] > 0


def test_what_lost_is_slower_than_the_rung_below(evidence, altered):
    table = regressions.rungs(evidence)
    assert len(table) and (table["factor"] > crossover.LEVEL).all()
    assert not ((table["operator"] == "copy") & (table["rung"] == "2_vector")).any()
    found = altered(
        "bandwidth", "median_us", lambda frame: frame["case"].str.startswith("copy/2_vector"), 100
    )
    again = regressions.rungs(found)
    assert ((again["operator"] == "copy") & (again["rung"] == "2_vector")).any()
    ladders = [ladder for module in ops.modules() for ladder in module.LADDERS.values()]
    changed = [(ladder, rung) for ladder in ladders for rung in ladder if rung.changes]
    assert changed and all(
        r.changes in [each.name for each in ladder[: ladder.index(r)]] for ladder, r in changed
    )
    slow = altered("decode", "median_us", lambda frame: frame["impl"] == "6_producer_warps", 100)
    row = regressions.rungs(slow).set_index("rung").loc["6_producer_warps"]
    assert row["below"] == "3_persistent"


def test_minutes_of_a_recording_count_once_what_two_gpus_do_side_by_side():
    day = "2026-01-01T10:{}:00Z"
    runs = [("00", "08"), ("00", "06"), ("07", "10"), ("20", "25"), ("30", "")]
    frame = pd.DataFrame([{"started": day.format(a), "finished": b and day.format(b)} for a, b in runs])
    frame["run"] = list("abcde")

    def minutes(of: str) -> float:
        store = SimpleNamespace(studies=lambda: ["int4"], read=lambda study: pd.DataFrame({"run": list(of)}))
        return house.recording_minutes(SimpleNamespace(runs=frame, store=store))

    assert minutes("abcde") == 10 + 5
    assert minutes("ab") == 8, "a run of which no row remains is not part of the recording"
    with pytest.raises(NoEvidence, match="no finished run"):
        minutes("e")
    frame.loc[1, "finished"] = ""
    assert minutes("abcde") == 10 + 5 and minutes("bcd") == 10 + 5, "cut off: up to the next one's start"


def made(*products):
    """Evidence of rows of FP16 products: (impl, kind, n, k, us)."""
    rows = pd.DataFrame(products, columns=["impl", "kind", "n", "k", "median_us"])
    rows = rows.assign(operator="gemv_rows", cache="cold", clock="graph", options="")
    return Evidence(Store(paths.DATA, "nothing"), {"gemv": rows})


def test_the_smallest_gain_is_of_the_worst_shape_and_the_fastest_rung():
    products = [
        *(("1_warp", "own", 512, 512, 4.0), ("2_vector", "own", 512, 512, 2.0)),
        ("torch.matmul", "peer", 512, 512, 5.0),
        *(("2_vector", "own", 2048, 2048, 10.0), ("torch.matmul", "peer", 2048, 2048, 12.0)),
        *(("2_vector", "own", 8192, 8192, 90.0), ("torch.matmul", "peer", 8192, 8192, 81.0)),
        ("2_vector", "own", 64, 64, 1.0),  # a shape without cuBLAS says nothing
    ]
    everywhere, small = claims.get("03-F2"), claims.get("03-A7")
    assert verdict(everywhere, made(*products)).value == 0.9
    assert verdict(small, made(*products)).value == 1.2  # 2048 x 2048 is 8.4 MB, 8192 x 8192 is not small
    alone = [product for product in products if product[1] == "own"]
    assert verdict(everywhere, made(*alone)).word == UNRECORDED


def test_rules_of_the_house_count_what_breaks_them(tmp_path, monkeypatch):
    static = pd.DataFrame({"spill_bytes": ["0", "8", "0", "16"]})
    assert house.spilling(SimpleNamespace(static=static)) == 2
    for name, size in (("a/x.csv", 1000), ("b/y.csv", 3000), ("b/z.txt", 9000)):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(bytes(size))
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    assert house.largest_kb(None, "*.csv") == 3.0 and house.data_mb(None) == 0.013
    with pytest.raises(NoEvidence):
        house.largest_kb(None, "*.gz")
    cell = {"cell_type": "code", "source": ["exercises.check(1)"]}
    for name, count in (("01_a", 3), ("01b_b", 1), ("02_c", 2)):
        cells = [cell] * count + [{"cell_type": "markdown", "source": ["exercises.check("]}]
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    assert house.fewest_exercises(None) == 2
    killed = pd.DataFrame({"killed": ["", "gate", ""]})
    monkeypatch.setattr(house.mutations, "is_open", lambda table: table["killed"] == "")
    assert house.surviving_mutants(SimpleNamespace(mutants=killed)) == 2


def test_a_bar_of_attention_is_met_from_its_own_side():
    shape = {"format": "fp16", "seq": 32768, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": None}
    shape |= {"kind": "own", "options": "", "impl": "4_cp_async"}

    def words(operator, seq, **figures):
        rows = pd.DataFrame([{**shape, "operator": operator, "seq": seq, "median_us": 1.0, **figures}])
        evidence = Evidence(Store(paths.DATA, "nothing"), {"attention": rows})
        found = [
            (claim, claims.judge(claim.tests[0], evidence).word)
            for claim in claims.select("06b_wide", source=claims.COURSE)
        ]
        shapes = ("128 wide", "decode, context of 32768")
        found = [
            each for each in found if each[0].says.partition(", ")[2] in shapes and each[1] != UNRECORDED
        ]
        return [
            word == HOLDS for _, word in sorted(found, key=lambda each: claims.GOALS.index(each[0].group))
        ]

    assert words("attention", 16384, tflop_s=450.0) == [True, False]
    assert words("attention", 16384, tflop_s=675.0) == [True, True]
    assert words("attention", 16384, tflop_s=449.0) == [False, False]
    assert words("decode_attention", 32768, median_us=34.0) == [True, True]
    assert words("decode_attention", 32768, median_us=35.0) == [True, False]


def test_the_dispatchers_point_is_its_fastest_own_row():
    columns = ["impl", "kind", "n", "k", "batch", "options", "median_us"]
    made = pd.DataFrame(
        [
            *(("a", "own", 8, 8, 1, "", 3.0), ("b", "own", 8, 8, 1, "", 2.0), ("c", "own", 8, 8, 2, "", 4.0)),
            *(("d", "own", 8, 8, 1, "loop=1", 1.0), ("e", "own", 8, 8, 1, "seed=2", 1.0)),
            *(("two_op", "baseline", 8, 8, 1, "", 5.0), ("f", "own", 8, 8, 1, "", None)),
        ],
        columns=columns,
    ).assign(operator="int4", cache="cold", clock="graph")
    assert int4.contestants(made)["impl"].tolist() == ["b", "c", "two_op"]
