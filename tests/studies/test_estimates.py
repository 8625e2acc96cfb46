"""Estimates: what is said before measuring holds for the runs of the committed recording."""

import math

import pandas as pd
import pytest
from rooflab import paths, studies
from rooflab.bench import clock
from rooflab.claims import Evidence
from rooflab.claims.measures import MEASURES
from rooflab.hardware import device
from rooflab.records.case import Case
from rooflab.records.store import Store
from rooflab.studies import attention, estimates, int4
from rooflab.studies.estimates import Estimate

H200 = device.get("h200")
RECORDED = Store(paths.DATA, "h200")


def test_the_recorded_run_took_about_what_is_said():
    """Of runs whose libraries found what an earlier one had compiled."""
    took_s = 60 * MEASURES["recording_minutes"](Evidence(RECORDED))
    found = Estimate(H200)
    for study in map(studies.get, studies.names()):
        if study.everywhere:
            continue
        rows = RECORDED.read(study.name)
        found.add(study, [study.case(case) for case in rows.loc[rows["median_us"].notna(), "case"]])
        for path in RECORDED.folder.glob(f"profiles/{study.name}_*.csv"):
            cases = [study.case(case) for case in pd.read_csv(path)["case"].unique()]
            found.add_profile(study, cases, path.stem.removeprefix(f"{study.name}_"))
    measuring = found.seconds - sum(found.libraries.values())
    assert 0.8 * took_s < measuring < 1.3 * took_s, f"{found} for {took_s} s"


def test_first_calls_of_libraries_are_counted_once_a_shape_and_named():
    study, found = attention.Attention(), Estimate(H200)
    cases = [case for case in study.cases() if case.impl == "flash_attn_4"]
    alone = sum(study.seconds(case, H200) for case in cases)
    found.add(study, cases)
    first, columns = estimates.FIRST_CALLS["flash_attn_4"]
    shapes = {tuple(getattr(case, column) for column in columns) for case in cases}
    assert found.seconds == pytest.approx(alone + first * len(shapes)) and len(shapes) > 5
    found.add(study, cases)
    assert found.seconds == pytest.approx(alone + first * len(shapes)), "a case is measured once"
    assert str(found).startswith(f"about {estimates.duration(found.seconds)}, of which libraries compile")
    assert str(found).endswith("(flash_attn_4)")
    layers = [case for case in int4.Int4().cases() if case.impl == "humming"]
    assert len({(case.n, case.k) for case in layers}) < len(layers)
    found = Estimate(H200)
    found.add(int4.Int4(), layers)
    shapes = len({(case.n, case.k) for case in layers})
    assert found.libraries["humming"] == pytest.approx(estimates.FIRST_CALLS["humming"][0] * shapes)


def test_what_cannot_run_takes_no_time(monkeypatch):
    study, found = attention.Attention(), Estimate(device.get("t4"))
    cases = study.cases()
    unable = [case for case in cases if study.why_not(case, "75")]
    parts = found.add(study, cases, "75")
    assert unable and all(parts["attention", case.id] == 0 for case in unable)
    assert found.seconds > 0 and found.counts() == f"{len(cases)} cases to measure"


@pytest.mark.parametrize("state", ["", "burst", "sustained", "after_hot"])
def test_a_state_costs_what_its_clock_waits(state):
    short, long = (clock.seconds(us, 20, "graph", state) for us in (5.0, 50_000.0))
    assert short < long and long > 2.7
    waits = {"burst": 20 * 0.01, "sustained": clock.SUSTAINED_S, "after_hot": 20 * clock.NEIGHBOUR_S}
    assert short - clock.seconds(5.0, 20, "graph") >= waits.get(state, 0.0)
    assert clock.seconds(1e4, 20, "wall") == pytest.approx(0.22)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (45, "45 s"), (119, "119 s"), (121, "2 min"), (3000, "50 min"), (9000, "2.5 h")],
)
def test_durations_read_as_a_person_says_them(seconds, said):
    assert estimates.duration(seconds) == said


def test_a_gpu_that_the_table_lacks_counts_as_its_slowest():
    slow = estimates.slowest()
    assert slow.dram_gb_s == min(device.get(name).dram_gb_s for name in device.names())
    case = Case("bandwidth", "read", "1_scalar", n=1 << 28)
    study = studies.get("bandwidth")
    assert study.seconds(case, slow) > study.seconds(case, H200) and not math.isnan(study.seconds(case, slow))
