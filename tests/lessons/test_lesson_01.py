"""What lesson 01 claims of the recorded H200, and what it computes from its rows."""

import re

import numpy as np
import pandas as pd
import pytest
from pages_read import said
from rooflab import lab
from rooflab.hardware import crossover, roofline
from rooflab.studies import bandwidth, environment
from rooflab.studies.bandwidth import Roof
from rooflab.view import display


@pytest.fixture(scope="module")
def counted(h200):
    return bandwidth.counted(h200.profile("bandwidth", bandwidth.profiled(), "ncu", bandwidth.PROFILED))


def rows_of(h200, cases):
    return h200.measure("bandwidth", cases)


# --- the claims that coverage.csv points to -----------------------------------------------------------------


@pytest.mark.parametrize(("name", "least"), [("dram_read", 4500), ("dram_copy", 4200), ("dram_triad", 4200)])
def test_streams_reach_their_roofs_with_own_gated_kernels(h200, name, least):
    """M12: copy and triad are measured beside the read stream, cold, by the graph clock."""
    found = h200.roof[name]
    assert found.value >= least
    row = h200.store.read("bandwidth").set_index("case").loc[found.case]
    assert (row["kind"], row["cache"], row["clock"]) == ("own", "cold", "graph")
    assert row["error"] <= row["error_budget"] and row["samples"] >= 10
    assert row["gb_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3, rel=1e-5)
    assert row["q1_us"] <= row["median_us"] <= row["q3_us"] < 1.05 * row["q1_us"]


def test_saxpy_moves_the_bytes_of_a_triad(h200):
    rows = h200.measure("environment", environment.ramp())
    assert (rows["bytes"] == roofline.stream_bytes("triad", environment.RAMP)).all()
    assert 0.75 * h200.roof["dram_triad"].value < rows["gb_s"].max() < h200.roof["dram_triad"].value


@pytest.mark.parametrize("operator", ["read", "copy", "triad"])
def test_no_rung_moves_more_than_it_is_charged_with(counted, operator):
    rows = counted[counted["operator"] == operator]
    assert len(rows) >= 4
    assert rows["per_predicted"].between(0.94, 1.02).all()
    if operator == "read":
        assert (rows["dram_read_bytes"] / rows["predicted_bytes"]).between(0.99, 1.01).all()


def test_the_sweep_crosses_the_l2_knee(h200):
    """M13: warm reads beat cold ones below the L2's size and not above it; the largest reach the roof."""
    rows = rows_of(h200, [*bandwidth.sweep(), *bandwidth.sweep(bandwidth.SWEEP[2:], "cold")])
    l2 = int(h200.run["l2_bytes"])
    assert l2 / 8 < bandwidth.knee(rows) < l2
    cold = rows[rows["cache"] == "cold"].sort_values("bytes")
    assert cold["gb_s"].is_monotonic_increasing or cold["gb_s"].diff().min() > -0.01 * cold["gb_s"].max()
    assert cold["gb_s"].iloc[-1] >= 0.99 * h200.roof["dram_read"].value
    start = bandwidth.fixed_us(cold, h200.roof["dram_read"].value)
    model = cold["bytes"] / (start + cold["bytes"] / h200.roof["dram_read"].value / 1e3) / 1e3
    assert (model / cold["gb_s"] - 1).abs().max() < 0.1


def test_datasheet_profiler_and_measured_roofs_stand_in_order(h200, counted):
    """M14: the profiler's peak is the datasheet's to 2 %, and what is measured stays under both."""
    peak = counted["dram_peak_bytes_per_s"].median() / 1e9
    sheet = h200.spec.dram_gb_s
    assert peak == pytest.approx(sheet, rel=0.02)
    streams = [found.value for name, found in h200.roof.items() if name.startswith("dram_")]
    assert len(streams) == 4 and 0.8 * sheet < min(streams) and max(streams) < min(peak, sheet)


def test_peaks_lie_under_the_datasheet_and_give_ridge_points(h200):
    """M15: bursts of every precision, sustained no faster, and ridges in the order of the peaks."""
    rows = rows_of(h200, bandwidth.peaks())
    burst = rows[rows["state"] == "burst"].set_index("roof")["tflop_s"]
    sustained = rows[rows["state"] == "sustained"].set_index("roof")["tflop_s"]
    sustained.index = sustained.index.str.removesuffix("_sustained")
    assert set(burst.index) == set(sustained.index) == set(roofline.POWER_HELD)
    for name, value in burst.items():
        assert 0.4 * getattr(h200.spec, name) < value < getattr(h200.spec, name)
        held = "Power held even the burst of " + name in said("01b_roofs.ipynb")
        assert (sustained[name] < 1.02 * value) is not held
        assert h200.roof[name].value == value
    ridge = {name: roofline.ridge(h200.roof["dram_read"].value, value) for name, value in burst.items()}
    assert 5 < ridge["fp32"] < 20 < ridge["tf32_tensor"] < ridge["fp16_tensor"] < ridge["fp8_tensor"]


def test_a_transfer_is_told_from_a_kernel(h200):
    """M16: over the bus from pageable and from pinned memory, and by a kernel, each on its own clock."""
    pageable, pinned = (row for _, row in rows_of(h200, bandwidth.transfers()).iterrows())
    (kernel,) = (row for _, row in rows_of(h200, bandwidth.sweep([bandwidth.TRANSFER], "cold")).iterrows())
    assert pageable["bytes"] == pinned["bytes"] == kernel["bytes"] == 1 << 26
    assert (pageable["clock"], pinned["clock"], kernel["clock"]) == ("wall", "wall", "graph")
    assert pageable["q1_us"] > pinned["q3_us"] > 10 * kernel["q3_us"]
    assert pinned["gb_s"] < 1.02 * pinned["bytes"] / pinned["predicted_us"] / 1e3
    published = lab.open("replay", "rtx-4090-published").store.read("gemv").set_index("impl")["median_us"]
    assert 0.5 < pageable["median_us"] / published["strided"] < 3  # hosts differ


def test_a_large_copy_falls_as_a_graph_node_and_not_as_an_eager_call(h200):
    copies = rows_of(h200, bandwidth.copies_by_clock())
    for impl in ("cudaMemcpyAsync", "torch.copy_"):
        slow = bandwidth.fallen_copies(copies, impl)
        assert slow and min(slow) > copies["n"].min() and max(slow) == copies["n"].max()
    assert not bandwidth.fallen_copies(copies, "2_vector")
    ladder = rows_of(h200, bandwidth.ladder("copy")).set_index(["impl", "format"])["median_us"]
    assert ladder["cudaMemcpyAsync", ""] == pytest.approx(ladder["1_scalar", ""], rel=0.01)
    assert ladder["torch.copy_", "uint8"] == pytest.approx(ladder["torch.copy_", "int32"], rel=0.01)


def test_what_near_the_roof_takes_in_flight_is_found_where_lesson_03_says():
    near = re.search(r"(\d+%) of the read roof take ([\d.]+ MiB) on all SMs", said("01_bandwidth.ipynb"))
    assert f"({near[2]} for {near[1]} of it, by lesson 01)" in said("03_coalescing.ipynb")
    lone = re.search(r"by which lesson 03 counts, it asks for ([\d.]+ MiB)", said("01_bandwidth.ipynb"))
    assert f"the read roof needs {lone[1]} at least" in said("03_coalescing.ipynb")


def test_bytes_in_flight_and_not_their_shape_set_the_rate(h200):
    sms = int(h200.run["sms"])
    rows = bandwidth.little(rows_of(h200, bandwidth.in_flight(sms)), sms, 340.0, 4800.0)
    assert rows["gb_s"].iloc[0] < 0.5 * rows["gb_s"].iloc[-1]
    assert (rows["gb_s"] <= rows["little_gb_s"]).all()
    assert rows["loaded_ns"].iloc[0] > 300 and rows["loaded_ns"].iloc[-1] > 4 * rows["loaded_ns"].iloc[0]
    (twins,) = (g["gb_s"] for _, g in rows.groupby("bytes_per_sm") if len(g) > 1)
    assert twins.max() < 1.03 * twins.min()


# --- what the lesson computes -------------------------------------------------------------------------------


def timed(us, spread=0.01, **columns):
    return {"median_us": us, "q1_us": us * (1 - spread), "q3_us": us * (1 + spread), **columns}


def test_little_orders_by_bytes_and_reads_the_law_backwards():
    cases = bandwidth.in_flight(10, 1 << 20)[::-1]
    rows = pd.DataFrame([case.row() | {"gb_s": 100.0} for case in cases])
    found = bandwidth.little(rows, 10, 400.0, 500.0)
    assert found["bytes_per_sm"].is_monotonic_increasing and found["bytes_per_sm"].iloc[0] == 4096
    assert found["little_gb_s"].tolist()[:2] == [102.4, 204.8] and found["little_gb_s"].max() == 500.0
    assert found["loaded_ns"].iloc[0] == 409.6


def test_the_knee_is_the_last_size_at_which_warm_is_faster():
    def pair(n, warm, cold):
        return [timed(us, n=n, bytes=4 * n, cache=c) for us, c in ((warm, "warm"), (cold, "cold"))]

    rows = pd.DataFrame([*pair(1, 1.0, 2.0), *pair(2, 2.0, 3.0), *pair(4, 5.0, 5.05), *pair(8, 9.0, 9.0)])
    assert bandwidth.knee(rows) == 8
    assert bandwidth.knee(rows[rows["n"] > 2]) is None
    assert bandwidth.knee(rows[rows["cache"] == "warm"]) is None


READ = {"sm_mhz": 1500.0, "power_w": 700.0, "power_capped": 0.9}


def test_a_peak_has_a_burst_a_sustained_rate_and_a_datasheet(h200):
    rows = pd.DataFrame(
        [
            {"roof": roofline.in_state(name, state), "state": state, "tflop_s": rate, **READ}
            for name, state, rate in (
                ("fp32", "burst", 33.5),
                ("fp32", "sustained", 30.15),
                ("bf16_tensor", "burst", 500.0),
                ("bf16_tensor", "sustained", 500.0),
            )
        ]
    )
    found = bandwidth.burst_and_sustained(rows, h200.spec)
    assert found["roof"].tolist() == ["fp32", "bf16_tensor"]
    assert found["sheet"].tolist() == [h200.spec.fp32, h200.spec.bf16_tensor]
    assert found["share"].iloc[0] == pytest.approx(100 * 33.5 / h200.spec.fp32)
    assert found["kept"].tolist() == pytest.approx([90.0, 100.0])
    assert found[["mhz", "watts", "capped"]].values.tolist() == [[1500.0, 700.0, 0.9]] * 2
    unknown = bandwidth.burst_and_sustained(rows, None)
    assert unknown["sheet"].isna().all() and unknown["burst"].tolist() == [33.5, 500.0]


def test_the_fixed_time_is_what_the_bytes_do_not_take():
    rows = pd.DataFrame([{"bytes": 4e6, "median_us": 9.0}, {"bytes": 1e6, "median_us": 3.0}])
    assert bandwidth.fixed_us(rows, 1000.0) == pytest.approx(2.0)


COUNTS = {
    "dram_bytes": 100.0,
    "load_sectors_per_request": 16,
    "store_sectors_per_request": 16,
    "occupancy_pct": 80,
}


@pytest.mark.parametrize(
    ("change", "suspect"),
    [
        ({}, "none of these"),
        ({"dram_bytes": 118.0}, "more traffic"),
        ({"dram_bytes": 104.0}, "none of these"),
        ({"load_sectors_per_request": 4}, "small requests"),
        ({"occupancy_pct": 40}, "emptier SMs"),
        ({"occupancy_pct": 40, "load_sectors_per_request": 4}, "small requests and emptier SMs"),
    ],
)
def test_a_suspect_is_a_counter_that_moved_the_wrong_way(change, suspect):
    slow = {"operator": "copy", "impl": "slow", "time_ns": 120.0} | COUNTS | change
    rows = pd.DataFrame([slow, {"operator": "copy", "impl": "best", "time_ns": 100.0} | COUNTS])
    (found,) = (row for _, row in bandwidth.suspects(rows).iterrows())
    assert (found["impl"], found["best"], found["suspect"]) == ("slow", "best", suspect)
    assert found["time"] == pytest.approx(1.2)


def test_nobody_is_accused_without_a_profile_or_a_delay():
    level = [
        {"operator": "copy", "impl": name, "time_ns": us} | COUNTS for name, us in (("a", 100), ("b", 102.5))
    ]
    assert bandwidth.suspects(pd.DataFrame(level)).empty
    empty = pd.DataFrame(columns=["case", *bandwidth.PROFILED])
    assert bandwidth.suspects(bandwidth.counted(empty)).empty


def test_counters_become_numbers_and_blanks_nan():
    case = bandwidth.profiled(1 << 20)[0]
    frame = pd.DataFrame([{"case": case.id} | dict.fromkeys(bandwidth.PROFILED, "")])
    frame["dram_bytes"] = str(2 * 4 * (1 << 20))
    found = bandwidth.counted(frame).iloc[0]
    assert (found["operator"], found["impl"]) == (case.operator, case.impl)
    assert found["per_predicted"] == 2.0 and np.isnan(found["l2_hit_pct"])


def test_a_fallen_copy_is_slower_as_a_node_than_eager():
    rows = pd.DataFrame(
        [
            timed(us, n=n, impl="m", clock=clock)
            for n, graph, eager in ((1, 5.0, 9.0), (2, 15.0, 10.0), (4, 20.1, 20.0))
            for clock, us in (("graph", graph), ("event", eager))
        ]
    )
    assert bandwidth.fallen_copies(rows, "m") == [2]
    assert bandwidth.fallen_copies(rows, "other") == []


def test_times_are_compared_beyond_their_spread_and_two_percent():
    row, close, slow, noisy = (
        pd.Series(timed(us, spread))
        for us, spread in ((10.0, 0.001), (10.1, 0.001), (12.5, 0.01), (12.5, 0.5))
    )
    assert display.level(row, close) and display.level(row, noisy) and not display.level(row, slow)
    assert display.against(row, close) == "is level with"
    assert display.against(row, slow) == "runs at 1.25 times the speed of"
    assert display.against(slow, row) == "runs at 0.80 times the speed of"


def test_a_gain_over_scattered_samples_is_a_range():
    row, steady, wide = (
        pd.Series({"q1_us": q1, "median_us": median, "q3_us": q3})
        for q1, median, q3 in ((10.0, 10.0, 10.0), (39.0, 40.0, 40.5), (35.0, 40.0, 40.0))
    )
    assert display.gain(row, steady) == "4.0" and display.gain(row, wide) == "3.5 to 4.0"
    assert crossover.scattered(wide) and not crossover.scattered(steady)


def test_a_ladder_in_words_names_best_level_and_slower():
    rows = pd.DataFrame(
        [
            timed(us, operator="copy", impl=impl, format=form, kind=kind, case=impl + form, gb_s=4000 / us)
            for us, impl, form, kind in (
                (2.0, "1_scalar", "", "own"),
                (1.0, "2_vector", "", "own"),
                (1.01, "3_in_flight", "", "own"),
                (0.8, "torch.copy_", "uint8", "peer"),
            )
        ]
    )
    assert display.standings(rows) == (
        "The best rung of `copy` is `2_vector` with **4,000 GB/s**. Level with it: 3_in_flight. "
        "The others reach, of its speed: 1_scalar 50%, torch.copy_ uint8 125%."
    )
    assert display.standings(rows[1:2]) == "The best rung of `copy` is `2_vector` with **4,000 GB/s**."


def test_the_roof_of_a_device_is_a_value_a_unit_and_its_case(h200):
    assert all(isinstance(found, Roof) for found in h200.roof.values())
    assert {found.unit for found in h200.roof.values()} == {"GB/s", "TFLOP/s", "TOP/s"}
    known = set(h200.store.read("bandwidth")["case"])
    assert {found.case for found in h200.roof.values()} <= known
