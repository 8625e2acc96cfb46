"""What lesson 02 claims of the recorded H200, and what it computes from its rows and traces."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from rooflab import lab
from rooflab.analysis import time_breakdown
from rooflab.hardware import device
from rooflab.numerics import model_shapes
from rooflab.profile import ncu, parts
from rooflab.studies import attribution, hf, launch_rule

MODEL = model_shapes.get(attribution.MODEL)
PRODUCTS = 28 * 7 + 1


@pytest.fixture(scope="module")
def decoded(h200):
    return time_breakdown.taken(h200, attribution.decode())


@pytest.fixture(scope="module")
def prefilled(h200):
    return time_breakdown.taken(h200, attribution.prefill())


@pytest.fixture(scope="module")
def counted(h200):
    return time_breakdown.counters(
        h200.profile("attribution", attribution.counted(), "ncu", attribution.METRICS)
    )


@pytest.fixture(scope="module")
def laptop():
    return lab.open("replay", "rtx-4070-laptop-published").store.read("attribution")


@pytest.fixture(scope="module")
def eager(decoded):
    trace = decoded[1]
    return trace[(trace["seq"] == 1024) & (trace["variant"] == "eager")]


@pytest.fixture(scope="module")
def law(h200, eager):
    return launch_rule.rule(eager, MODEL.name, h200.roof["dram_read"].value)


# --- the claims that coverage.csv points to -----------------------------------------------------------------


def test_a_token_needs_28_times_7_and_one_weight_products(decoded, prefilled):
    """M17: every traced case is mapped to projections, by ranges or by launch order."""
    for trace in (decoded[1], prefilled[1]):
        products = trace[trace["class"] == "weight"]
        assert (products.groupby("case")["launches"].sum() == PRODUCTS).all()
        by_part = products.groupby(["case", "part"])["launches"].sum().unstack()
        assert set(by_part.columns) == {"q", "k", "v", "o", "gate", "up", "down", "lm_head"}
        assert (by_part.drop(columns="lm_head") == 28).all(axis=None) and (by_part["lm_head"] == 1).all()


def test_every_launch_has_a_class_and_shares_are_of_the_whole(decoded):
    table = time_breakdown.by_class(decoded[1])
    assert set(table["class"]) == set(parts.CLASSES)
    assert table.groupby("case")["pct"].sum().to_numpy() == pytest.approx(100)
    eager = table[(table["variant"] == "eager") & (table["seq"] == 1024)].set_index("class")["pct"]
    assert 38 < eager["weight"] < 50 and eager.idxmax() == "weight"


def test_the_gpu_waits_for_an_eager_host_and_not_for_a_graph(decoded):
    """M18: busy against wall, and launches a token."""
    busy = time_breakdown.busy(*decoded).set_index(["variant", "seq"])
    assert (busy.loc["eager", "busy_pct"] < 40).all()
    assert (busy.loc["graph", "busy_pct"] > 80).all() and (busy.loc["compile", "busy_pct"] > 80).all()
    assert (busy["busy_pct"] <= 100).all()
    assert (busy.loc["eager", "launches"] > 1000).all()
    assert busy.loc[("graph", 1024), "launches"] == busy.loc[("eager", 1024), "launches"]
    assert busy.loc[("compile", 1024), "launches"] < busy.loc[("graph", 1024), "launches"] / 2
    wall = busy["wall_us"]
    assert wall["eager", 1024] > 2 * wall["graph", 1024] > 2 * 1.3 * wall["compile", 1024]


def test_counters_of_the_dominant_kernels(counted):
    """M19: bytes, time, DRAM %, SM %, L2 hit rate and occupancy of every kernel of a layer, and the head."""
    step = counted[counted["operator"] == "decode"]
    columns = ["us", "mb", "dram_pct", "sm_pct", "l2_hit_pct", "occupancy_pct"]
    assert len(step) > 40 and step[columns].notna().all(axis=None)
    top = time_breakdown.kinds(step, 12)
    assert len(top) == 12 and top["total"].is_monotonic_decreasing and top["part"].iloc[0] == "lm_head"
    assert {"gate", "up", "down", "attention"} <= set(top["part"])
    tiny = step[(step["dram_pct"] < 5) & (step["sm_pct"] < 5)]
    assert len(tiny) > len(step) / 2


def test_products_wait_for_memory(counted):
    """M20: the stall reasons that a source promised."""
    weights = counted[(counted["operator"] == "decode") & (counted["class"] == "weight")]
    assert len(weights) == 8
    assert {waits[0][0] for waits in weights["waits"]} == {"long_scoreboard"}
    for waits in counted["waits"]:
        assert len(waits) == 2 and waits[0][1] >= waits[1][1] > 0
        assert all(f"stall_{name}" in ncu.METRICS for name, _ in waits)


def test_a_product_reads_its_weights_once_and_lies_under_the_roof(h200, counted, eager):
    """M21: intensity from counted bytes; every point under the measured roof."""
    read = h200.roof["dram_read"].value
    points = time_breakdown.roofline(counted[counted["operator"] == "decode"], eager, MODEL.name, read)
    assert len(points) == 8
    assert (points["counted"] / points["bytes"]).between(0.99, 1.05).all()
    assert points["intensity"].between(0.9, 1.02).all()
    assert (points["tflop_s"] < 1.02 * points["intensity"] * read / 1e3).all()


def test_small_products_fall_off_the_roof(h200, eager):
    """M22: alone and in the model, the rate falls with the size of the matrix."""
    read = h200.roof["dram_read"].value
    inside = launch_rule.by_part(eager, MODEL.name, read).set_index("part")["pct"]
    assert (
        inside["lm_head"] > 85 > 65 > inside["gate"] > 3 * inside["q"] / 2 > inside["k"] and inside["k"] < 6
    )
    alone = h200.measure("attribution", attribution.products_alone()).set_index(["n", "k"])
    ladder = [alone.loc[(n, 1536), "roof_fraction"] for n in (64, 256, 1536, 8960, 32768, 151936)]
    assert ladder == sorted(ladder) and ladder[0] < 0.02 and ladder[-1] > 0.85
    assert (alone["error"] <= alone["error_budget"]).all()


def test_the_output_head_is_its_own_row(eager, laptop):
    """M23: one launch; and a published kernel of 4 % is too short to be it."""
    head = launch_rule.by_part(eager, MODEL.name, 1.0).set_index("part").loc["lm_head"]
    assert head["launches"] == 1 and head["bytes"] == 2 * 151936 * 1536
    us = laptop.set_index("operator")["median_us"]
    assert us["decode_gemm"] < 0.5 * head["bytes"] / 251e3


def test_shares_by_context_and_prompt(decoded, prefilled):
    """M24: contexts 128 to 8192 in all ways that were recorded, prompts 128 to 8192."""
    table = time_breakdown.by_class(decoded[1]).set_index(["variant", "seq", "class"])["pct"]
    for variant in ("eager", "graph"):
        weight = [table[variant, seq, "weight"] for seq in attribution.CONTEXTS]
        assert weight == sorted(weight, reverse=True)
        assert table[variant, 8192, "copy"] > 2 * table[variant, 1024, "copy"]
    prompts = time_breakdown.by_class(prefilled[1]).set_index(["seq", "class"])["pct"]
    attention = [prompts[seq, "attention"] for seq in attribution.PROMPTS]
    assert attention == sorted(attention) and attention[2] < 15 and attention[3] < 30
    assert set(decoded[0]["seq"]) == set(attribution.CONTEXTS)


def test_gains_are_predicted_by_amdahls_law(h200, decoded, eager, law):
    """M25: what each improvement would bring to a graph, and that an eager loop only feels fewer launches."""
    rows, trace = decoded
    wall = time_breakdown.busy(rows, trace).set_index(["variant", "seq"])["wall_us"]
    graph = trace[(trace["seq"] == 1024) & (trace["variant"] == "graph")]
    wanted = time_breakdown.gains(graph, law, MODEL, 1024, h200.roof["dram_read"].value)
    table = time_breakdown.worth(graph, wanted, wall["eager", 1024], wall["graph", 1024]).set_index("what")
    assert (table["graph"] > 1).all()
    assert table["graph"].iloc[0] < 1.5 < table["graph"].iloc[-1]
    saves_launches = [gain.launches > 0 for gain in wanted]
    assert (table["eager"] > 1.02).tolist() == saves_launches
    bound = launch_rule.part_times(graph)["weight"] / wanted[0].parts["weight"]
    left = wall["graph", 1024] - sum(launch_rule.part_times(graph).values())
    assert table["graph"].iloc[-1] == pytest.approx(wall["graph", 1024] / (left + bound))


# --- the rule -----------------------------------------------------------------------------------------------


def test_the_rule_describes_the_gpu_that_it_was_fitted_on(eager, law):
    measured = 100 * eager.loc[eager["part"].isin(parts.WEIGHTS), "us"].sum() / eager["us"].sum()
    assert 100 * law.share(MODEL) == pytest.approx(measured, abs=3)
    products = launch_rule.by_part(eager, MODEL.name, 1.0)
    by_rule = law.product_us + products["bytes"] / law.gb_s / 1e3
    assert (by_rule / products["us"]).between(0.8, 1.25).all()


def test_the_rule_predicts_the_published_laptop(law, laptop):
    us = laptop.set_index("operator")["median_us"]
    shown = laptop[(laptop["operator"] == "gemv") & laptop["n"].notna()]
    fixed, rate = launch_rule.line(list(shown["bytes"]), list(shown["median_us"]))
    assert 2 < fixed < 4 and 240 < rate < 260
    there = dataclasses.replace(law, gb_s=rate, product_us=fixed)
    published = us["decode_gemv"] / us["decode_kernels"]
    assert published == pytest.approx(0.813, abs=1e-3)
    assert there.share(MODEL) == pytest.approx(published, abs=0.08)
    total = there.weights_us(MODEL) + there.others_us(MODEL)
    assert total == pytest.approx(us["decode_kernels"], rel=0.15)
    blind = time_breakdown.elsewhere(law, 4800.0, device.get("rtx-4070-laptop"))
    assert blind.share(MODEL) == pytest.approx(published, abs=0.08)


def test_the_rule_falls_with_bandwidth_and_knows_every_gpu_and_model(law):
    table = time_breakdown.everywhere(law, 4800.0, [1.0, 2.0])
    assert len(table) == 2 * len(device.names()) * len(model_shapes.names()) and table["case"].is_unique
    mine = table[(table["model"] == MODEL.name) & (table["launch_us"] == 1.0)].sort_values("gb_s")
    assert mine["%"].is_monotonic_decreasing and 0 < mine["%"].min() < mine["%"].max() < 100
    faster = table[table["launch_us"] == 1.0].set_index(["gpu", "model"])["%"]
    slower = table[table["launch_us"] == 2.0].set_index(["gpu", "model"])["%"]
    assert (slower <= faster).all()


def test_a_line_finds_its_numbers_and_never_beats_the_roof():
    bytes_ = [1e6, 5e6, 3e7, 5e8]
    assert launch_rule.line(bytes_, [4 + b / 2000e3 for b in bytes_]) == pytest.approx((4.0, 2000.0))
    fixed, rate = launch_rule.line(bytes_, [4 + b / 5000e3 for b in bytes_], 4600.0)
    assert rate == pytest.approx(4600.0) and fixed < 4.0
    for roof in (4600.0, float("inf")):  # small launches that are faster than their bytes allow
        fixed, rate = launch_rule.line(bytes_, [b / 2000e3 * (0.5 if b < 1e7 else 1) for b in bytes_], roof)
        assert fixed == 0 and 2000 < rate < 4600


# --- what else the lesson computes --------------------------------------------------------------------------


def test_amdahl():
    times = {"a": 60.0, "b": 40.0}
    assert time_breakdown.amdahl(times, {"a": 2.0}) == pytest.approx(1 / 0.7)
    assert time_breakdown.amdahl(times, {"a": math.inf}) == pytest.approx(2.5)
    assert time_breakdown.amdahl(times, {"a": 2.0, "b": 4.0}) == pytest.approx(100 / 40)
    assert time_breakdown.amdahl(times, {"a": 2.0}, total=200.0) == pytest.approx(200 / 170)
    assert time_breakdown.amdahl(times, {}) == 1.0


def test_a_timeline_lists_every_launch_once(eager):
    launches = time_breakdown.timeline(eager)
    assert len(launches) == eager["launches"].sum() and launches["start_us"].is_monotonic_increasing
    assert launches["us"].sum() == pytest.approx(eager["us"].sum())
    begin, end = time_breakdown.one_layer(launches, attribution.LAYER)
    layer = launches[launches["start_us"].between(begin, end, inclusive="left")]
    assert (layer["class"] == "weight").sum() == 7 and 40 < len(layer) < 60


def test_two_tracers_agree(h200):
    cases = [c for c in attribution.decode([1024]) if c.impl != "transformers.compile"]
    agree = time_breakdown.agreement(h200, [*cases, *attribution.prefill([1848])])
    assert set(agree["variant"]) == {"eager", "graph"} and set(agree["operator"]) == {"decode", "prefill"}
    assert (agree["launches_nsys"] == agree["launches_cupti"]).all()
    totals = agree.groupby(["operator", "variant"])[["us_nsys", "us_cupti"]].sum()
    assert (totals["us_cupti"] / totals["us_nsys"]).between(0.93, 1.07).all()


def test_split_sums_count_with_their_product():
    rows = pd.DataFrame(
        [
            {"part": "down", "class": "weight", "launches": 2, "us": 20.0},
            {"part": "down", "class": "reduce", "launches": 2, "us": 4.0},
            {"part": "norm", "class": "norm", "launches": 5, "us": 9.0},
        ]
    )
    (down,) = launch_rule.by_part(rows, MODEL.name, 4000.0).to_dict("records")
    assert (down["part"], down["launches"], down["us"], down["total_us"]) == ("down", 2, 12.0, 24.0)
    assert down["gb_s"] == pytest.approx(2 * 1536 * 8960 / 12.0 / 1e3)
    assert launch_rule.part_times(rows) == {"norm": 9.0, "weight": 24.0}


def test_counters_that_a_kernel_lacks_are_nan():
    values = dict.fromkeys(attribution.METRICS, "") | {"time_ns": "2000", "dram_bytes": "4000"}
    values |= {"stall_wait": "2.0", "stall_barrier": "3.5", "stall_drain": "0"}
    (case, _) = attribution.counted()
    frame = pd.DataFrame([{"case": case.id, "part": "q", "class": "weight", "kernel": "k", **values}])
    row = time_breakdown.counters(frame).iloc[0]
    assert (row["operator"], row["us"], row["gb_s"]) == ("decode", 2.0, 2.0)
    assert np.isnan(row["l2_hit_pct"]) and row["waits"] == (("barrier", 3.5), ("wait", 2.0))


def test_the_record_says_which_weights_ran(h200, decoded):
    assert set(decoded[0]["weights"]) == {"random"} and hf.use_weights("random") == "random"
    assert (decoded[0]["error"] <= decoded[0]["error_budget"]).all()
    assert decoded[0]["identity"].str.contains(r"^torch-[\d.]+\+transformers-[\d.]+$").all()
