"""Study `power`: what is measured in several states, whose contestants these are, what lessons read of it."""

from dataclasses import replace

import pandas as pd
import pytest
from rooflab import lab, studies
from rooflab.analysis import states
from rooflab.hardware import device
from rooflab.studies import power

H200 = device.get("h200")


@pytest.fixture(scope="module")
def rows():
    here = lab.open("replay", "h200")
    return here.measure("power", here.held("power", here.cases("power")))


def test_each_case_is_its_owner_s_but_for_study_and_state():
    study = studies.get("power")
    cases = study.cases("full", H200)
    assert len(cases) == len({case.id for case in cases})
    assert all(study.case(case.id) == case for case in cases)
    for case in cases:
        owner = power._OWNERS[case.operator]
        mine = [replace(each, state="") for each in owner.cases("full", H200)]
        plain = replace(case, study=owner.name, state="")
        # Measured in its states alone; tokens are decoded in launches short enough for a burst.
        alone = case.causal is False or case.operator == "decode"
        assert plain in mine or alone, f"{plain.id} is no case of {owner.name}"


def test_states_of_a_case_share_their_group_and_their_work(monkeypatch):
    study = studies.get("power")
    cases = [case for case in study.cases("full", H200) if case.operator == "int4" and case.batch == 1]
    assert len(study.groups(cases)) == 1 and {case.state for case in cases} >= {"burst", "after_hot"}
    made = []

    def contestants(distinct):
        made.append(list(distinct))
        return [object() for _ in distinct]

    monkeypatch.setattr(power._OWNERS["int4"], "contestants", contestants)
    works = study.contestants(cases)
    assert len(made[0]) == len(set(works)) == len({replace(case, state="") for case in cases})
    by_case = {}
    for case, work in zip(cases, works, strict=True):
        assert by_case.setdefault(replace(case, state=""), work) is work


def test_every_ranked_operator_has_its_leader_behind_both_neighbours(rows):
    found = power.moved(rows)
    assert set(found["operator"]) == set(power._OWNERS)
    kinds = found.groupby("operator")["kind"].agg(set)
    assert all("own" in each for each in kinds)


def test_what_a_neighbour_moves_is_measured_in_a_burst_and_sustained(rows):
    found = power.moved(rows)
    both = power.held(rows)
    keys = [*power._KEYS]
    known = {tuple(row) for row in both[keys].astype(str).itertuples(index=False)}
    touched = found[found["ratio"] > power.MOVES]
    assert len(touched) > 5
    assert {tuple(row) for row in touched[keys].astype(str).itertuples(index=False)} <= known


def test_operators_that_power_holds_are_timed_in_a_burst_in_their_own_tables(rows):
    """What a hot neighbour moves by a tenth never takes turns without a rest."""
    found = power.moved(rows)
    ours = found[(found["kind"] == "own") & (found["ratio"] > 1.1)]
    for operator in set(ours["operator"]):
        for case in power._OWNERS[operator].cases("full", H200):
            if case.operator == operator and case.clock == "graph":
                assert case.state == "burst", case.id


def test_a_sustained_row_is_held_against_the_sustained_roof(rows):
    mine = rows[(rows["state"] == "sustained") & (rows["operator"] == "attention")]
    assert len(mine) and set(mine["roof"]) == {"fp16_tensor_sustained"}
    assert set(rows.loc[rows["state"] == "burst", "roof"]) & {"fp16_tensor_sustained"} == set()
    assert mine["sm_mhz"].notna().all() and mine["power_w"].min() > 300


def made(state, us, impl="1_own", kind="own", **more):
    given = dict.fromkeys(["model", *power.SIZES], pd.NA) | {"n": 8}
    row = {"operator": "int4", "impl": impl, "kind": kind, "format": "f", "options": "", "state": state}
    figures = {"median_us": us, "sm_mhz": 1000.0, "power_capped": 0.5, "power_w": 600.0}
    return given | row | figures | {"flops": 1, "bytes": 1} | more


def test_the_readings_of_made_up_rows():
    frame = pd.DataFrame(
        [
            *(made(state, us) for state, us in (("burst", 10.0), ("sustained", 12.5), ("after_hot", 15.0))),
            made("after_cool", 10.0),
            made("burst", 11.0, impl="peer", kind="peer"),
            made("sustained", 12.0, impl="peer", kind="peer"),
            made("burst", 11.5, impl="slow", kind="baseline"),
        ]
    )
    (moved,) = power.moved(frame).to_dict("records")
    assert moved["impl"] == "1_own" and moved["ratio"] == 1.5 and moved["capped"] == 0.5
    held = power.held(frame).set_index("impl")
    assert held["kept"].to_dict() == {"1_own": 0.8, "peer": 11 / 12}
    burst, sustained = (power.rivals(frame, state).iloc[0] for state in ("burst", "sustained"))
    assert (burst.ours, burst.peer, burst.ratio) == ("1_own", "peer", 1.1)
    assert sustained.ratio == 0.96


def test_of_our_kernels_the_fastest_of_a_problem_speaks_for_it():
    rows = pd.DataFrame(
        {
            "operator": ["mmq", "mmq", "read"],
            "impl": ["5_large_tiles", "9_tile_order", "5_streaming"],
            "kind": "own",
            "burst_us": [268.0, 91.0, 460.0],
            "ratio": [1.39, 1.18, 1.0],
        }
    ).reindex(columns=["operator", "impl", "kind", "burst_us", "ratio", *power.SIZES])
    text = states.touched(rows)
    assert "`mmq/9_tile_order` loses most behind products, 18%; of `read` none" in text
