"""The study of lesson 07: its cases, what they are charged with, what it takes from other recordings."""

import pandas as pd
import pytest
from rooflab import dispatch, studies
from rooflab.hardware import device, perf_model
from rooflab.numerics import model_shapes
from rooflab.records.case import COLUMNS, Case, options
from rooflab.studies import regimes
from rooflab.studies.base import Context

STUDY = studies.get("regimes")
H200 = device.get("h200")
CASES = STUDY.cases("full", H200)


def test_the_source_s_sweep_has_every_number_of_tokens_three_baselines_and_three_clocks():
    """M89, M90: batch 1 to 32 and beyond; a fused product beside FP16 and dequantising first."""
    for n, k in regimes.SOURCE:
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            for clock in ("graph", "event", "wall"):
                mine = [c for c in CASES if (c.n, c.k, c.batch, c.clock) == (n, k, batch, clock)]
                ways = {(c.format, c.impl) for c in mine}
                assert {("fp16", "cublas"), ("int4_g128", "two_op"), ("q8_0", "two_op")} <= ways
                assert ("int4_g128", "fused") in ways
                assert len({STUDY.group(c) for c in mine}) == 1  # contestants of one comparison
    assert {c.cache for c in CASES} == {"cold"}


def test_every_projection_of_four_families_is_measured():
    measured = {(c.n, c.k) for c in CASES}
    for model in regimes.FAMILIES:
        parts = model_shapes.projections(model_shapes.get(model))
        assert {(p.n, p.k) for p in parts if p.name != "lm_head"} <= measured
    assert len(regimes.FAMILIES) == 4


def test_every_family_has_a_projection_by_all_three_clocks():
    for model in regimes.FAMILIES:
        clocked = {
            (c.n, c.k)
            for c in CASES
            if c.clock == "wall" and (c.format, c.impl) == ("int4_g128", "fused") and c.batch == 256
        }
        assert clocked & set(regimes.shapes_of((model,))), model


def test_cases_are_named_once_and_read_back():
    assert len({case.id for case in CASES}) == len(CASES) < 1000
    assert all(STUDY.case(case.id) == case for case in CASES)
    assert set(STUDY.cases("quick", H200)) <= set(CASES)


@pytest.mark.parametrize("slug", ["h200", "rtx-4090", "t4", "a100-80gb"])
def test_what_runs_is_what_the_dispatcher_would_run_there(slug):
    if slug not in device.names():
        slug = next(name for name in device.names() if name.startswith("a100"))
    there = device.get(slug)
    for case in STUDY.cases("quick", there):
        if case.kind != "own" or dispatch.refusal(
            perf_model.strategy(case.format, case.impl), case.n, case.k, case.batch, there.sm, slug
        ):
            continue
        rung, macros, rule = STUDY.rung(case)
        wanted = dispatch.rung_for(
            perf_model.strategy(case.format, case.impl), case.n, case.k, case.batch, slug
        )
        assert (rung, macros) == wanted and rule
        assert STUDY.identity(case, None).endswith(".-")


def test_a_baseline_made_by_a_kernel_of_ours_goes_stale_with_it():
    by_way = {(c.format, c.impl): STUDY.identity(c, None) for c in CASES}
    assert by_way["fp16", "cublas"].startswith("torch-")
    assert by_way["int4_g128", "two_op"].count(".") == 2 == by_way["q8_0", "two_op"].count(".")
    assert by_way["int4_g128", "two_op"] != by_way["q8_0", "two_op"]


def test_bytes_are_those_of_the_convention_and_predictions_those_of_the_way():
    case = next(c for c in CASES if c.impl == "two_op" and c.format == "int4_g128")
    how = perf_model.strategy("int4_g128", "two_op")
    assert STUDY.count(case).bytes < perf_model.moved(how, case.n, case.k, case.batch)
    expected = perf_model.bound(how, case.n, case.k, case.batch, perf_model.datasheet(H200)).us
    assert STUDY.predict(case, Context(device=H200)) == expected
    assert STUDY.predict(case, Context()) is None
    event = next(c for c in CASES if c.clock == "event")
    assert STUDY.count(event).roof == ""  # only the graph clock meets a kernel's figure


def test_hopper_s_way_is_refused_elsewhere_by_name(monkeypatch):
    monkeypatch.setattr(dispatch, "here", lambda: ("rtx-4090", "89"))
    case = next(c for c in CASES if c.impl == "mmq_fp16_wgmma")
    assert STUDY.refuses(case, 89) == "rung 7_fp16_wgmma needs sm_90a, and this is sm_89"
    assert not STUDY.refuses(case, 90)


def rows(study, *cases):
    made = [case.row() | {"median_us": 5.0, "q1_us": 5.0, "q3_us": 5.0, "run": "r"} for case in cases]
    return pd.DataFrame(made).reindex(columns=list(COLUMNS)).assign(study=study)


def test_rows_of_other_studies_are_taken_as_the_ways_they_are():
    own = rows("regimes", Case("regimes", "product", "cublas", "baseline", "fp16", n=8, k=128, batch=1))
    int4 = rows(
        "int4",
        Case("int4", "int4", "8_folded_offset", format="int4_g128", n=8, k=128, batch=2, options="tokens=2"),
        Case("int4", "int4", "1_warp_row", format="int4_g128", n=8, k=128, batch=2, options="loop=1"),
        Case("int4", "int4", "two_op", "baseline", "int4_g128", n=8, k=128, batch=2),
        Case("int4", "int4", "torch.matmul", "baseline", "fp16", n=8, k=128, batch=1),
        Case("int4", "int4", "humming", "peer", "int4_g128", n=8, k=128, batch=2),
    )
    mmq = rows(
        "mmq",
        Case("mmq", "mmq", "q8_0/6_mma", format="q8_0", n=8, k=128, batch=9),
        Case("mmq", "mmq", "5_large_tiles", format="q8_0", n=8, k=128, batch=9, options=options(prepared=1)),
        Case("mmq", "mmq", "5_large_tiles", format="q8_0", n=8, k=128, batch=9, cache="warm"),
    )
    found = regimes.gathered([own, int4, mmq])
    assert {(r.study, r.format, r.impl) for r in found.itertuples()} == {
        ("regimes", "fp16", "cublas"),  # and not int4's of the same product
        ("int4", "int4_g128", "fused"),
        ("int4", "int4_g128", "two_op"),
        ("mmq", "q8_0", "mma"),
    }
    assert regimes.gathered([]).empty and regimes.gathered([own.iloc[:0]]).empty


def test_a_case_that_names_its_rung_can_be_estimated():
    study = regimes.Regimes()
    for slug in device.names():
        gpu = device.get(slug)
        assert all(study.seconds(case, gpu) > 0 for case in study.cases("quick", gpu)), slug
