"""The drawings of lessons 00a to 02c and of 03e: another record, rule or kernel makes another picture."""

import math
import re
import shutil
from dataclasses import replace

import needs
import pandas as pd
import pytest
from rooflab.analysis import time_breakdown
from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.ops import faults
from rooflab.pages import (
    lesson_01_bandwidth,
    lesson_01b,
    lesson_02,
    lesson_02b,
    lesson_02b_causes,
    lesson_02c,
)
from rooflab.paths import KERNELS
from rooflab.records.fingerprint import fresh
from rooflab.studies import attribution, bandwidth, drawn, environment, traces
from rooflab.view import diagram
from rooflab.view.diagram import counters, roofs, rule, steps

MODEL = model_shapes.get(attribution.MODEL)


@pytest.fixture(scope="module")
def token(h200):
    """Rows and trace of one decoded token by each way."""
    return time_breakdown.taken(h200, attribution.decode([1024]))


@pytest.fixture(scope="module")
def step(h200):
    """Counted launches of a decode step."""
    cases = attribution.counted(weights="random")
    found = time_breakdown.counters(h200.profile("attribution", cases, "ncu", attribution.METRICS))
    return found[found["operator"] == "decode"]


@pytest.fixture
def shown(monkeypatch):
    """What a page shows of drawings, by its words."""
    said = []
    monkeypatch.setattr(diagram.Drawing, "show", lambda drawing: said.append(drawing.says))
    return said


# --- 01b: roofs ---------------------------------------------------------------------------------------------


def test_a_link_is_as_thick_as_its_rate_and_unmeasured_ones_are_left_out():
    peaks = roofs.peaks({"fp16_tensor": 100.0, "fp32": 20.0, "dram_read": 1000.0})
    assert [peak.name for peak in peaks] == ["FP32", "FP16 tensor"]
    links = [roofs.Link("host", 0.0, "PCIe"), roofs.Link("DRAM", 1000.0, "cold reads")]
    reached = [links[1], roofs.Link("L2", 3000.0, "warm kernels", at_least=True)]
    striped = diagram.path_of_bytes(reached, "8 SMs", 1000.0, [])
    assert "warm kernels at least 3,000 GB/s" in striped.says and "Striped" in striped.svg()
    drawing = diagram.path_of_bytes(links, "8 SMs", 1000.0, peaks)
    assert "DRAM → 8 SMs: cold reads 1,000 GB/s" in drawing.says and "PCIe" not in drawing.svg()
    assert "20 FLOP in FP32, of which a product for one token asks 0.5" in drawing.says
    assert "100 FLOP in FP16 tensor, of which a product for one token asks 1" in drawing.says
    slower = diagram.path_of_bytes(links, "8 SMs", 500.0, peaks)
    assert "200 FLOP in FP16 tensor" in slower.says and slower.svg() != drawing.svg()
    assert "While" not in diagram.path_of_bytes(links, "8 SMs", 1000.0, []).says
    with pytest.raises(UsageError, match="at least one measured link"):
        diagram.path_of_bytes(links[:1], "8 SMs", 1000.0, peaks)


def test_the_page_draws_its_own_roofs(h200, shown):
    sweep = pd.DataFrame({"cache": ["warm", "warm", "cold"], "bytes": [64, 512, 64], "gb_s": [7.0, 9.0, 5.0]})
    lesson_01b.path_of_bytes(h200, 100, sweep)
    lesson_01b.path_of_bytes(h200, 10, sweep)
    lesson_01b.path_of_bytes(h200, int(h200.run["l2_bytes"]), sweep)
    read = f"cold reads {h200.roof['dram_read'].value:,.0f} GB/s"
    assert all(read in words for words in shown) and "PCIe, pinned" in shown[0]
    assert "warm reads at least 7 GB/s" in shown[0] and "L2" not in shown[1]
    rows = h200.measure("environment", environment.caches())
    fits = rows[(rows["cache"] == "warm") & (rows["bytes"] <= h200.run["l2_bytes"])]
    assert f"warm saxpy at least {fits['gb_s'].max():,.0f} GB/s" in shown[2], "of lesson 00a"


# --- 00a and 01: requests of a warp, and bytes in flight ----------------------------------------------------


def test_a_wider_load_needs_fewer_requests():
    narrow, wide = diagram.Width("narrow", 4, "half the roof"), diagram.Width("wide", 16)
    drawing = diagram.warp_requests([narrow, wide])
    assert "narrow needs 4 warps, a request of 32 lanes × 4 = 128 bytes each; half the roof" in drawing.says
    assert "wide needs 1 warp, a request of 32 lanes × 16 = 512 bytes each." in drawing.says
    assert "narrow needs 2 warps" in diagram.warp_requests([narrow, wide._replace(lane_bytes=8)]).says


def test_bytes_in_flight_are_lost_by_empty_slots_and_by_the_rest_of_a_thread_s_life(h200, shown):
    row = pd.Series({"impl": "1_scalar", "occupancy_pct": 50.0, "dram_pct": 20.0})
    one = lesson_01_bandwidth.held(row, 10_000.0, 2048)
    assert one == diagram.Held("read/1_scalar", 8192.0, 4096.0, 2000.0)
    assert lesson_01_bandwidth.held(row, 30_000.0, 2048) is None, "more than its slots could hold"
    counted = bandwidth.counted(h200.profile("bandwidth", bandwidth.profiled(), "ncu", bandwidth.PROFILED))
    lesson_01_bandwidth.why_slow(counted, 132 * 12_500.0, 132, h200)
    lesson_01_bandwidth.why_slow(counted.assign(occupancy_pct=60.0), 132 * 12_500.0, 132, h200)
    assert "slots filled" in shown[0] and shown[0] != shown[1] and "60% of the thread slots" in shown[1]
    lesson_01_bandwidth.why_slow(counted.iloc[:0], 132 * 12_500.0, 132, h200)
    assert len(shown) == 2, "nothing is drawn of what was not counted"


# --- 02: who waits for whom ---------------------------------------------------------------------------------


def test_half_a_layer_goes_from_gate_to_the_next_norm(token):
    _, trace = token
    found = {
        way: steps.half_layer(trace[trace["variant"] == way], 3) for way in ("eager", "graph", "compile")
    }
    products = {way: [each.name for each in kernels if each.name] for way, kernels in found.items()}
    assert set(map(tuple, products.values())) == {("gate", "up", "down")}
    assert [each.name for each in found["eager"]] == [each.name for each in found["graph"]]
    assert len(found["compile"]) < len(found["graph"]), "fused"
    for way in ("graph", "compile"):
        ends = [kernel.start + kernel.us for kernel in found[way]]
        assert all(end < later.start + 0.5 for end, later in zip(ends, found[way][1:], strict=False))
    assert steps.half_layer(trace[trace["variant"] == "eager"], 28) == [], "there is no such layer"


def test_an_eager_kernel_starts_when_it_is_launched_and_the_one_before_has_ended():
    kernels = [steps.Kernel("gate", 0, 5.0), steps.Kernel("", 0, 25.0), steps.Kernel("up", 0, 5.0)]
    assert steps.eager_spans(kernels, 10.0) == [(10.0, 15.0), (20.0, 45.0), (45.0, 50.0)]
    assert steps.works_less(kernels[:1], 10.0) and not steps.works_less(kernels, 10.0)


def test_another_launch_time_or_kernel_time_changes_half_a_layer(token, shown):
    rows, trace = token
    lesson_02.half_layers(rows, trace, 1024)
    slow = rows["impl"] == "transformers.eager"
    lesson_02.half_layers(rows.assign(median_us=rows["median_us"].where(~slow, 1424 * 2.0)), trace, 1024)
    longer = trace.assign(us=trace["us"].where(trace["part"] != "gate", 2 * trace["us"]))
    lesson_02.half_layers(rows, longer, 1024)
    assert len(set(shown)) == 3
    assert "the GPU waits for it" in shown[0] and "eager 7 kernels" in shown[0]
    assert "each launch takes the CPU 2.0 µs, and the GPU does not wait for all" in shown[1]
    lesson_02.half_layers(rows, trace.assign(part=""), 1024)
    assert len(shown) == 3, "nothing is drawn where the trace names no product"


# --- 02b: counters ------------------------------------------------------------------------------------------


def test_counters_are_those_of_the_busiest_product_and_of_a_small_launch(step, shown):
    (product, busy), (small, least) = counters.contrast(step)
    assert busy["dram_pct"] == step["dram_pct"].max() and busy["class"] == "weight" and "lm_head" in product
    assert least["class"] != "weight" and small == "one norm launch"
    lesson_02b.where_counted(step)
    lesson_02b.where_counted(step.assign(occupancy_pct=50.0, l2_hit_pct=float("nan")))
    assert f"{busy['dram_pct']:.0f}% of its rate" in shown[0] and "not counted" not in shown[0]
    assert f"{busy['l2_hit_pct']:.1f}% of the sectors" in shown[0] and least["dram_bytes"] < 1e6
    assert shown[0].count("L2, no rate: it moves too few sectors") == 1, (
        "a hit rate of few sectors says nothing"
    )
    assert "50% of its warp slots are filled" in shown[1] and "L2, not counted" in shown[1]
    lesson_02b.where_counted(step.iloc[:0])
    assert len(shown) == 2
    with pytest.raises(UsageError, match="at least one launch"):
        diagram.where_counted([])


def test_a_cause_is_ruled_out_only_by_what_was_counted(h200, token, step, monkeypatch):
    said = list[str]()
    monkeypatch.setattr(lesson_02b_causes.display, "say", said.append)
    read, (_, trace) = h200.roof["dram_read"].value, token
    steps = trace[trace["variant"] == "eager"]
    products = time_breakdown.roofline(step, steps, attribution.MODEL, read)
    timed = lesson_02b.alone(h200)
    lesson_02b.plan(products, step, timed, read, 132)
    grids = step["grid"].str.split("x").map(lambda sides: math.prod(map(int, sides)))
    level, twice = step.assign(dram_pct=0.4 * grids), products.assign(counted=2 * products["counted"])
    lesson_02b.plan(twice, level.assign(sm_pct=90.0), timed, read, 132)
    lesson_02b.blocks(step, products, 132)
    lesson_02b.blocks(level, products, 132)
    lesson_02b.blocks(level, products, 1)
    slow = products.assign(gb_s=products["gb_s"].where(products["part"] == "lm_head", 1.0))
    lesson_02b.plan(slow, step, timed, read, 132)
    lesson_02b.blocks(step, slow, 132)
    assert "it is not more bytes than their weights have and not arithmetic." in said[0]
    assert "They do not rule out too few blocks for `k`, `v`, `gate` and `up`." in said[0]
    assert "The counters do not rule out more bytes than their weights have, arithmetic and" in said[1]
    assert "the number of blocks alone does not decide" in said[2] and "do not tell whether blocks" in said[3]
    each = r"A block of `gate` \(\d\d GB/s\) and `up` \(\d\d GB/s\) reads about as fast as one of `lm_head`"
    assert re.search(each, said[2])
    assert "blocks are not too few" in said[4]
    assert "They do not rule out too few blocks for `k` and `v`." in said[5] and "A block of" not in said[6]


def test_every_weight_product_has_a_bar_even_where_it_takes_little_time(step):
    top = time_breakdown.kinds(step, 3)
    fig, caption = lesson_02b.busy_chart(top, step, "a GPU", "today")
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert {"k", "v", "lm_head"} <= set(names) and "Blue: weight products" in caption
    fig, _ = lesson_02b.busy_chart(top, step[step["part"] != "k"], "a GPU", "today")
    assert "k" not in [label.get_text() for label in fig.axes[0].get_yticklabels()]


def test_a_warp_without_a_stall_waits_for_nothing(step):
    row = step.iloc[0].copy()
    row["waits"] = ()
    assert "one warp, waits for nothing" in diagram.where_counted([("it", row)]).says
    row["waits"] = (("barrier", 8.0), ("wait", 2.0))
    assert (
        "1 instruction, then 8 cycles waiting for the other warps at __syncthreads() white: other waits, 2"
        in diagram.where_counted([("it", row)]).says
    )


# --- 02c: the rule ------------------------------------------------------------------------------------------


def test_a_layer_by_the_rule_has_the_traced_launches_in_order(h200, token, shown):
    _, trace = token
    eager = trace[trace["variant"] == "eager"]
    launches = rule.order(eager, attribution.LAYER)
    assert [name for name in launches if name] == ["q", "k", "v", "o", "gate", "up", "down"]
    two = lesson_02c.rules(eager, MODEL, h200.roof["dram_read"].value)
    assert launches.count("") == pytest.approx(two.here.others, abs=1), "a few are outside of layers"
    lesson_02c.layer_by_rule(eager, two, MODEL, h200)
    lesson_02c.layer_by_rule(eager, replace(two, here=replace(two.here, gb_s=two.here.gb_s / 9)), MODEL, h200)
    assert shown[0] != shown[1] and "its 7 products take" in shown[0]
    lesson_02c.layer_by_rule(eager.assign(part=""), two, MODEL, h200)
    assert len(shown) == 2, "nothing is drawn where the trace names no product"


def test_a_product_takes_its_fixed_time_and_its_bytes():
    law = lesson_02c.Rule(gb_s=1.0, product_us=10.0, other_us=5.0, others=2)
    (q,) = [each for each in model_shapes.projections(MODEL) if each.name == "q"]
    us = 2 * q.n * q.k / 1e3
    words = diagram.layer_by_rule(["q", "", ""], [("it", law)], MODEL).says
    assert (
        f"it {us + 20:.0f} µs, of which its 1 products take {us + 10:.0f} ({us:.0f} for their bytes)" in words
    )


# --- 03e: barriers ------------------------------------------------------------------------------------------


def test_threads_without_a_column_leave_or_come_to_another_barrier():
    words = diagram.barriers_met().says
    assert "early_exit with 512 columns: 256 threads come to barrier 1, x_tile: 256 of 256" in words
    assert "63 threads come to barrier 1, 193 threads have left, x_tile: 63 of 256 numbers stored" in words
    assert "63 threads come to barrier 1, 193 threads come to barrier 2, x_tile: 256 of 256" in words
    rows = drawn.read("barriers")
    assert diagram.barriers_met(rows.assign(comes_to=1)).svg() != diagram.barriers_met().svg()
    with pytest.raises(UsageError, match="at least one block"):
        diagram.barriers_met(rows.iloc[:0])


def test_the_recorded_barriers_are_of_these_kernels():
    cases = {(case.impl, n, k): traces.current("faults", case) for case, n, k in drawn.faulty()}
    rows = drawn.read("barriers")
    assert {(row.kernel, row.n, row.k) for row in rows.itertuples()} == set(cases)
    for row in rows.itertuples():
        assert fresh(row.identity, cases[row.kernel, row.n, row.k]), "run `rooflab trace drawn`"


def test_a_mended_kernel_has_all_its_threads_at_one_barrier(monkeypatch, tmp_path):
    needs.compiler()
    shutil.copytree(KERNELS, tmp_path / "kernels")
    monkeypatch.setattr("rooflab.ops.KERNELS", tmp_path / "kernels")
    file = tmp_path / "kernels" / "faults" / "half_barrier.cu"
    assert faults.FAULTS["half_barrier"].path == file
    file.write_text(file.read_text().replace("if (column < n) __syncthreads();", "__syncthreads();"))
    mended = diagram.barriers_met(drawn.barriers()).says
    assert "half_barrier with 63 columns: 256 threads come to barrier 1" in mended
    assert "early_exit with 63 columns: 63 threads come to barrier 1, 193 threads have left" in mended
