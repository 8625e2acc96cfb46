"""Profiles through the lab: taken once, and left out by name where an instrument cannot be used."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

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


@pytest.fixture
def asked(monkeypatch):
    """Operators of study decode's cases, a list for each call of its checks; `pools`: processes of each pool,
    `workers`: how many fit the memory, `failing`: calls that fail.
    """
    heard = SimpleNamespace(calls=[], pools=[], workers=6, failing=0)

    def checks(self, cases):
        heard.calls.append([case.operator for case in cases])
        if len(heard.calls) <= heard.failing:
            raise RuntimeError("CUDA out of memory.")
        return pd.DataFrame({"case": [case.id for case in cases], "quantity": "q", "value": 1.0})

    def pool(workers, mp_context):
        heard.pools.append(workers)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(type(studies.get("decode")), "checks", checks)
    monkeypatch.setattr(profiles, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(profiles, "beside", lambda most, bytes_each: min(most, heard.workers))
    return heard


@pytest.mark.parametrize("workers", [6, 2, 1])
def test_checks_are_asked_by_as_many_processes_as_fit_but_for_those_that_others_disturb(asked, workers):
    apart, cases = studies.get("decode").checks_apart, decode_checks.cases()
    asked.workers = workers
    found = profiles.take("decode", cases, "checks", None)
    assert sorted(found["case"]) == sorted(case.id for case in cases)
    assert asked.pools == [workers] == [len(asked.calls) - 1]
    assert set(asked.calls[-1]) == set(apart) and not set(sum(asked.calls[:-1], [])) & set(apart)


def test_a_few_checks_start_no_process(asked):
    profiles.take("decode", decode_checks.cases()[:3], "checks", None)
    assert (len(asked.calls), asked.pools) == (1, [])


def test_checks_of_a_process_that_failed_are_asked_again_alone(asked):
    asked.failing, cases = 2, decode_checks.cases()
    found = profiles.take("decode", cases, "checks", None)
    assert sorted(found["case"]) == sorted(case.id for case in cases)
    again, apart = asked.calls[-1], studies.get("decode").checks_apart
    assert [name for name in again if name not in apart] == sum(asked.calls[:2], [])
    asked.calls.clear()
    asked.failing = 100  # what fails alone as well is said
    with pytest.raises(RuntimeError, match="out of memory"):
        profiles.take("decode", cases, "checks", None)
