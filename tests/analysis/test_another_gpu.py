"""The recording of another GPU model: libraries, a law and a dispatcher on trial where nothing was tuned."""

import pandas as pd
import pytest
import rooflab.lab
from rooflab import paths
from rooflab.analysis import another_gpu, strategies
from rooflab.hardware import perf_model
from rooflab.pages import lesson_07b_measured, lesson_09c_elsewhere
from rooflab.records.store import Store
from rooflab.view import display


@pytest.fixture(scope="module")
def h200():
    return rooflab.lab.open("replay", "h200")


@pytest.fixture(scope="module")
def other(h200):
    return another_gpu.recorded(h200.store)


@pytest.fixture(scope="module")
def law(h200):
    """The products timed on the H200, its machine and the law fitted to both."""
    rows, here = strategies.gather(h200), strategies.machine(h200)
    timed = rows[rows["clock"] == "graph"]
    return timed, here, perf_model.fit(timed, here)


def test_ours_are_ahead_of_the_libraries_beside_them_there_too(h200, other):
    assert other.runs()["gpu"].iloc[0] != h200.run.gpu
    beside = another_gpu.libraries(other)
    assert (
        beside["comparisons"].sum() > 400 and beside["ours faster"].sum() > 0.9 * beside["comparisons"].sum()
    )
    counted = beside[["ours faster", "level", "ours slower"]].sum(axis=1)
    assert counted.equals(beside["comparisons"])
    ours = another_gpu.operators(h200.store, other, ["read", "attention"]).set_index("operator")
    speeds = ours["speed there, here 1"].astype(float)
    assert speeds["read"] < 0.8 < 0.95 < speeds["attention"], "memory is slower there, arithmetic is not"


def test_only_the_repository_s_own_recording_has_another_gpu_beside_it(tmp_path, other):
    assert another_gpu.recorded(Store(tmp_path, "h200")) is None
    assert another_gpu.recorded(other) is None
    assert another_gpu.recorded(Store(paths.DATA, other.device)) is None, "it would be the same model"


def test_a_law_of_one_gpu_holds_on_the_other(h200, other, law):
    timed, here, fit = law
    there = another_gpu.machine(other, here, h200.spec)
    assert there.gb_s < 0.75 * here.gb_s and there.sms == here.sms
    compared = perf_model.compared(another_gpu.products(other), there, fit)
    assert len(compared) > 1000 and (compared["own_off"].abs() <= 25).mean() > 0.8
    blind = perf_model.compared(another_gpu.products(other), here, fit)  # as if it were the H200
    assert blind["own_off"].abs().median() > compared["own_off"].abs().median()


def test_a_choice_costs_the_chosen_strategy_s_time_over_the_fastest_one_s(h200, other, law):
    timed, here, fit = law
    there = another_gpu.machine(other, here, h200.spec)
    sizes = {"format": "q8_0", "n": 4096, "k": 4096, "batch": 1}
    rows = pd.DataFrame(
        [{**sizes, "impl": "dp4a", "median_us": 3.0}, {**sizes, "impl": "two_op", "median_us": 6.0}]
    )
    known = rows.assign(median_us=[6.0, 3.0], q1_us=[6.0, 3.0], q3_us=[6.0, 3.0])
    (cost,) = another_gpu.choices(other, rows, known, there, fit).itertuples()
    assert cost.table == 2.0, "this GPU's table names the slower one"
    assert cost.law == 1.0
    assert another_gpu.choices(other, rows.iloc[:1], known, there, fit).empty, "nothing to choose"


def test_the_page_says_what_both_cost_and_what_the_dispatcher_does_with_it(h200, law, monkeypatch, tmp_path):
    said, timed, here, fit = [], *law
    monkeypatch.setattr(display, "say", said.append)
    monkeypatch.setattr(display, "table", lambda frame, *_, **__: said.append(frame))
    lesson_07b_measured.another_gpu_predicted(h200, timed, here, h200.spec, fit)
    assert "puts" in said[0] and "So the dispatcher takes" in said[2]
    assert said[1]["products"].sum() > 1000 and (said[1]["own_off"] < said[1]["one_off"]).mean() > 0.7
    cost = pd.DataFrame({"law": [1.0, 1.0], "table": [1.0, 1.5]})
    assert "So the dispatcher" not in lesson_07b_measured._chosen(cost, "H200"), "the law chooses better"
    said.clear()
    h200_elsewhere = type("Lab", (), {"store": Store(tmp_path, "h200")})
    lesson_07b_measured.another_gpu_predicted(h200_elsewhere, timed, here, h200.spec, fit)
    assert said == ["The course keeps no recording of another GPU beside this one."]


def test_lesson_09c_lists_the_libraries_there(h200, other, monkeypatch, tmp_path):
    said, tables = [], []
    monkeypatch.setattr(display, "say", said.append)
    monkeypatch.setattr(display, "table", lambda frame, *_, **__: tables.append(frame))
    lesson_09c_elsewhere.on_another_gpu(h200)
    assert another_gpu.sentence(other) in said[0] and "not ahead because" in said[0]
    assert tables[0].equals(another_gpu.libraries(other))
    few = another_gpu.libraries(other).assign(**{"ours faster": 0})
    monkeypatch.setattr(another_gpu, "libraries", lambda store: few)
    lesson_09c_elsewhere.on_another_gpu(h200)
    assert "not ahead because" not in said[1]
    lesson_09c_elsewhere.on_another_gpu(type("Lab", (), {"store": Store(tmp_path, "h200")}))
    assert said[2] == "The course keeps no recording of another GPU beside this one."
