"""Profiles through the lab: taken once, and left out by name where an instrument cannot be used."""

from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from rooflab import lab as laboratory
from rooflab import studies
from rooflab.errors import MissingTool
from rooflab.lab import profiles
from rooflab.records.store import Store
from rooflab.studies import decode_checks, environment


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr("rooflab.lab.session.this_arch", lambda: None)
    monkeypatch.setattr(laboratory.Lab, "_begin", lambda self: "2026-11-21.1")


def test_an_instrument_that_cannot_be_used_leaves_its_cases_out(tmp_path, monkeypatch):
    said, store = [], Store(tmp_path, "h200")
    lab = laboratory.Lab("live", "h200", "full", store, said.append)

    def refused(*_):
        raise MissingTool("ncu is not permitted to read counters.")

    monkeypatch.setattr("rooflab.lab.session.take", refused)
    frame = lab.profile("environment", environment.profiled_clocks(), "ncu", environment.PROFILED)
    assert frame.empty and set(environment.PROFILED) <= set(frame.columns)
    assert said[-1] == "environment skipped ncu: ncu is not permitted to read counters."
    with pytest.raises(MissingTool):  # a recording names the trouble instead
        lab.take_profile("environment", environment.profiled_clocks(), "ncu", environment.PROFILED)
    # The recording knows what it lacks and why, so its replay leaves the same cases out.
    replay = laboratory.Lab("replay", "h200", "full", store)
    assert replay.profile("environment", environment.profiled_clocks(), "ncu", environment.PROFILED).empty


def test_a_profile_of_changed_code_is_taken_again(tmp_path, monkeypatch):
    asked, lab = [], laboratory.Lab("live", "h200", "full", Store(tmp_path, "h200"))

    def traced(study, cases, tool, metrics):
        asked.append(len(cases))
        return pd.DataFrame({"case": [case.id for case in cases], "duration_ns": len(asked)})

    monkeypatch.setattr("rooflab.lab.session.take", traced)
    cases = environment.profiled_clocks()
    lab.profile("environment", cases, "cupti")
    path = tmp_path / "h200" / "profiles" / "environment_cupti.csv"
    text = path.read_text()
    first = pd.read_csv(path)["identity"].iloc[0]
    path.write_text(text.replace(first, "0000000000.0000000000.0000000000", 1))
    frame = lab.profile("environment", cases, "cupti")
    assert asked == [len(cases), 1]
    assert sorted(frame["duration_ns"]) == [1] * (len(cases) - 1) + [2]


def test_a_profile_taken_once_is_not_taken_again(tmp_path, monkeypatch):
    asked, lab = [], laboratory.Lab("live", "h200", "full", Store(tmp_path, "h200"))

    def traced(study, cases, tool, metrics):
        asked.append([case.id for case in cases])
        return pd.DataFrame({"case": asked[-1], "duration_ns": 1})

    monkeypatch.setattr("rooflab.lab.session.take", traced)
    first, *others = environment.profiled_clocks()
    lab.profile("environment", [first], "cupti")
    frame = lab.profile("environment", [*others, first], "cupti")
    assert asked == [[first.id], [case.id for case in others]]
    assert frame["case"].tolist() == [case.id for case in (*others, first)]


def test_checks_are_asked_by_several_processes_but_for_those_that_others_disturb(monkeypatch):
    study, asked, pools = studies.get("decode"), [], []

    def checks(self, cases):
        asked.append([case.operator for case in cases])
        return pd.DataFrame({"case": [case.id for case in cases], "quantity": "q", "value": 1.0})

    def pool(workers, mp_context):
        pools.append(workers)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(type(study), "checks", checks)
    monkeypatch.setattr(profiles, "ProcessPoolExecutor", pool)
    cases = decode_checks.cases()
    found = profiles.take("decode", cases, "checks", None)
    assert sorted(found["case"]) == sorted(case.id for case in cases)
    assert pools == [profiles._PROCESSES] == [len(asked) - 1]
    assert set(asked[-1]) == set(study.checks_apart) and not set(sum(asked[:-1], [])) & set(
        study.checks_apart
    )
    asked.clear()
    pools.clear()
    profiles.take("decode", cases[:3], "checks", None)
    assert (len(asked), pools) == (1, []), "a few start no process"
