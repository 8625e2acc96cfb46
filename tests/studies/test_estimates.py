"""Estimates: what is said before measuring holds for the runs of the committed recording."""

import math
import re

import pandas as pd
import pytest
from rooflab import paths, studies
from rooflab.bench import clock
from rooflab.hardware import device
from rooflab.records.case import Case
from rooflab.records.store import Store
from rooflab.studies import attention, estimates, int4
from rooflab.studies.estimates import Estimate

H200 = device.get("h200")
RECORDED = Store(paths.DATA, "h200")


def expected_by_run() -> dict[str, Estimate]:
    """What the rows and profiles of each recorded run are estimated at, as if they were measured now."""
    found: dict[str, Estimate] = {}
    for study in map(studies.get, studies.names()):
        if study.everywhere:
            continue
        rows = RECORDED.read(study.name)
        for run, mine in rows[rows["median_us"].notna()].groupby("run"):
            cases = [study.case(case) for case in mine["case"]]
            found.setdefault(str(run), Estimate(H200)).add(study, cases)
        for path in RECORDED.folder.glob(f"profiles/{study.name}_*.csv"):
            table, tool = pd.read_csv(path), path.stem.removeprefix(f"{study.name}_")
            for run, mine in table.groupby("run"):
                cases = [study.case(case) for case in mine["case"].unique()]
                found.setdefault(str(run), Estimate(H200)).add_profile(study, cases, tool)
    return found


def continued(runs: pd.DataFrame) -> dict[str, str]:
    """The run that each run is part of: the one before, where the same command was stopped by its time and
    run again within a minute.
    """
    first: dict[str, str] = {}
    before = None
    for run, row in runs.iterrows():
        words, minutes = row["command"].split(" --for ")[0], pd.Timedelta(minutes=1)
        same = before is not None and before[1] == words
        again = same and pd.Timestamp(row["started"]) - pd.Timestamp(before[2]) < minutes
        first[str(run)] = first[before[0]] if again else str(run)
        before = (str(run), words, row["finished"])
    return first


def asked_of(command: str) -> set[str]:
    """The studies that a command of `rooflab record` names: of a run that lacks rows of one, other runs have
    measured it again."""
    return set(re.findall(r"\b\w+\b", command.partition(" record ")[2].partition(" --")[0]))


SHORT_S = 60.0  # a run that takes less starts more than it measures: code is compared, libraries are loaded


def test_the_recorded_runs_took_about_what_is_said():
    runs = RECORDED.runs().set_index("run")
    took = pd.to_datetime(runs["finished"]) - pd.to_datetime(runs["started"])
    parts = continued(runs)
    took_s = took.dt.total_seconds().dropna()
    took_s = took_s.groupby(took_s.index.map(parts), sort=False).sum()
    found: dict[str, Estimate] = {}
    for run, one in expected_by_run().items():
        if parts[run] in found:
            found[parts[run]].merge(one.as_json())
        else:
            found[parts[run]] = one
    took_s = took_s[took_s.index.isin(found)]  # of the others later runs have measured all rows again
    took_s = took_s[~took_s.index.isin(runs.index[runs["note"].astype(bool)])]  # some rows of it are kept
    assert len(took_s) >= 5
    later: set[str] = set()  # studies of which a later run measured something
    whole = []
    for run in reversed([run for run in runs.index if parts[run] == run]):
        touched = {study for study, _ in found[run].parts} if run in found else set()
        if run in took_s:
            # Rows that a later run measured again are that run's now, so that this one took longer than its.
            assert found[run].seconds < 1.5 * took_s[run], f"{run}: {found[run]} for {took_s[run]} s"
            if (
                took_s[run] > SHORT_S
                and not touched & later
                and touched >= asked_of(runs.loc[run, "command"])
            ):
                whole.append(run)
                # The estimate is of measuring now. These runs took more samples, rested longer before a
                # burst, and their gate compared copies one by one.
                assert found[run].seconds > took_s[run] / 2, f"{run}: {found[run]} for {took_s[run]} s"
        later |= touched
    assert whole, "no run whose rows are all its own"


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
