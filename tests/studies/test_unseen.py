"""Drawn shapes: the same seed draws the same, each case is its owner's, and the outcomes are told rightly."""

import pandas as pd
import pytest
from rooflab import dispatch, studies
from rooflab.analysis import unseen as outcomes
from rooflab.hardware import device
from rooflab.ops import attention as op
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
        [
            {**common, "kind": kind, "impl": impl, "median_us": us}
            | {"format": "fp16" if impl == "torch.matmul" else "int4_g128"}
            for kind, impl, us in figures
        ]
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


def timed(cases, figures):
    """Rows of cases, each with the microseconds that its impl has in `figures`."""
    return pd.DataFrame([{**case.row(), "median_us": figures.get(case.impl)} for case in cases])


def test_a_q8_0_product_is_held_against_cublas_on_halves(monkeypatch):
    counts = {**dict.fromkeys(ALL, 0), "product": 1}
    figures = {"cublas": 9.0, "mma": 8.0, "mmq": 30.0, "mmq_fp16_wgmma": 10.0, "two_op": 20.0}
    rows = timed(unseen.drawn(7, counts, H200), figures)  # 60 tokens
    way = lambda *a, **k: dispatch.Choice("", "mmq_fp16_wgmma", "", {}, "")  # noqa: E731
    monkeypatch.setattr(dispatch, "choose", way)
    (found,) = outcomes.outcomes(rows, pd.DataFrame(), "h200", "90").itertuples()
    best = min(us for impl, us in figures.items() if impl in set(rows["impl"]) - {"cublas"})
    assert (found.kind, found.peer, found.us, found.ratio) == ("Q8_0 product", "cublas", 10.0, 0.9)
    assert found.cost == 10.0 / best


def test_attention_and_a_cache_are_held_against_the_fastest_library():
    figures = {op.default_rung(64, "90"): 10.0, "12_warp_specialised": 10.0}
    figures |= dict.fromkeys(("4_cp_async", "5_fragments"), 10.0)
    figures |= {"torch.sdpa_cudnn": 9.0, "torch.sdpa_flash": 20.0, "flash_attn_4": 11.0, "ffpa": 8.0}
    for operator, kind in (("attention", "attention"), ("decode_attention", "decode attention")):
        cases = unseen.drawn(5, {**dict.fromkeys(ALL, 0), operator: 12}, H200)
        rows = timed(cases, figures)
        found = outcomes.outcomes(rows, pd.DataFrame(), "h200", "90")
        assert set(found["kind"]) == {kind} and len(found) == 12
        assert set(found["peer"]) <= set(figures) and (found["cost"] == 1).all()
        assert found["shape"].str.contains("heads of").all()
        assert set(found["ratio"]) <= {0.8, 0.9, 1.1}


def test_the_recorded_shapes_are_those_of_the_seed():
    rows = Store(DATA, "h200").read("unseen")
    expected = {case.id for case in studies.get("unseen").cases("full", H200)}
    assert set(rows["case"]) == expected
