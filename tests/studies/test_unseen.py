"""Drawn shapes: the same seed draws the same, each case is its owner's, and the outcomes are told rightly."""

import pandas as pd
import pytest
from rooflab import dispatch, studies
from rooflab.analysis import unseen as outcomes
from rooflab.hardware import device
from rooflab.paths import DATA
from rooflab.records.store import Store
from rooflab.studies import unseen

H200 = device.get("h200")
ALL = dict.fromkeys(unseen.COUNTS["quick"], 12)


def test_a_seed_draws_the_same_shapes_and_another_seed_others():
    first, again, other = (unseen.drawn(seed, ALL, H200) for seed in (3, 3, 4))
    assert first == again
    assert not set(first) & set(other)


@pytest.mark.parametrize("seed", [1, 7, 2026])
def test_drawn_shapes_lie_in_the_ranges_that_are_promised(seed):
    for n, k, tokens in unseen.products(seed, 200):
        assert n % 128 == k % 128 == 0 and min(n, k) >= 1024 and max(n, k) <= 29_696
        assert 1 <= tokens <= 2048
    for sizes in unseen.prompts(seed, 100):
        assert 500 <= sizes["seq"] <= 20_000 and sizes["heads"] % sizes["kv_heads"] == 0
        assert sizes["head_dim"] in unseen.WIDTHS
    assert all(300 <= keys <= 60_000 for keys, *_ in unseen.caches(seed, 100))


def test_every_case_is_its_owners_and_comes_back_from_its_name():
    study = studies.get("unseen")
    cases = [unseen.seeded(case, 3) for case in unseen.drawn(3, ALL, H200)]
    assert {case.operator for case in cases} == set(ALL)
    for case in cases:
        owner, plain = study.lent(case)
        assert study.case(case.id) == case and "seed=3" in case.options
        assert plain.study == owner.name and "seed" not in plain.options
        assert study.identity(case, None) == owner.identity(plain, None)
        assert study.count(case) == owner.count(plain)


def recorded(*figures):
    common = {"operator": "int4", "n": 2048, "k": 1024, "batch": 1500}
    return pd.DataFrame(
        [{**common, "kind": kind, "impl": impl, "median_us": us} for kind, impl, us in figures]
    )


def test_the_outcome_is_of_what_the_dispatcher_takes(monkeypatch):
    rows = recorded(
        ("own", "12_token_tiles", 12.0), ("baseline", "two_op", 10.0), ("peer", "humming", 11.0),
        ("baseline", "torch.matmul", 8.0),
    )  # fmt: skip
    for way, us, cost in (("fused", 12.0, 1.2), ("two_op", 10.0, 1.0)):
        monkeypatch.setattr(dispatch, "choose", lambda *a, way=way, **k: dispatch.Choice("", way, "", {}, ""))
        (found,) = outcomes.outcomes(rows, pd.DataFrame(), "h200", "90").itertuples()
        assert (found.us, found.peer, found.cost) == (us, "torch.matmul", cost)
        assert found.ratio == 8.0 / us
    one = outcomes.outcomes(rows, pd.DataFrame(), "h200", "90")
    assert len(outcomes.won(one)) == 0
    assert len(outcomes.wrong(one.assign(cost=1.06))) == 1


def test_a_shape_without_a_library_or_without_ours_has_no_outcome():
    for rows in (recorded(("own", "12_token_tiles", 12.0)), recorded(("peer", "humming", 11.0))):
        assert outcomes.outcomes(rows, pd.DataFrame(), "h200", "90").empty


def test_the_recorded_shapes_are_those_of_the_seed():
    rows = Store(DATA, "h200").read("unseen")
    expected = {case.id for case in studies.get("unseen").cases("full", H200)}
    assert set(rows["case"]) == expected
