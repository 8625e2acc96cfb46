"""Predictions: what is charged, what the fit finds in rows made by its own law, and what scales."""

import pandas as pd
import pytest
from rooflab.errors import UsageError
from rooflab.hardware import device, perf_model, roofline
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.studies import mmq

H200, LAPTOP = device.get("h200"), device.get("rtx-4070-laptop")
MACHINE = perf_model.measured({"dram_read": 4600.0, "fp16_tensor": 790.0}, H200)
SHAPES = ((1536, 1536), (8960, 1536), (4096, 14336), (28672, 8192))


def rows(*ways, launch_us=2.0, share=1.0, batches=(1, 4, 16, 64, 256)):
    """Rows that obey the law exactly."""
    fit = perf_model.Fit(9.0, {way: perf_model.Own(launch_us, share) for way in ways})
    frames = [
        perf_model.regimes(MACHINE, fit, shape, batches, [perf_model.strategy(*way) for way in ways])
        for shape in SHAPES
    ]
    return pd.concat(frames, ignore_index=True)


def test_bytes_follow_the_convention_and_say_what_is_read_twice():
    n, k = 8960, 1536
    assert perf_model.moved(perf_model.strategy("fp16", "cublas"), n, k, 4) == roofline.gemm_bytes(4, n, k, 2)
    fused, loop = perf_model.strategy("int4_g128", "fused"), perf_model.strategy("int4_g128", "loop")
    assert perf_model.moved(fused, n, k, 4) == roofline.gemm_bytes(4, n, k, WEIGHT_BYTES["int4_g128"])
    assert perf_model.moved(loop, n, k, 4) - perf_model.moved(fused, n, k, 4) == pytest.approx(
        3 * n * k * WEIGHT_BYTES["int4_g128"]
    )
    assert (perf_model.launched(loop, 4), perf_model.launched(fused, 4)) == (4, 1)
    two = perf_model.strategy("q8_0", "two_op")
    assert perf_model.moved(two, n, k, 1) == pytest.approx(
        n * k * (WEIGHT_BYTES["q8_0"] + 4) + roofline.gemm_bytes(1, n, k, 0)
    )
    assert perf_model.launched(two, 9) == 2


def test_every_format_has_one_plain_way_and_its_weights():
    for name in perf_model.FORMATS:
        assert perf_model.plain(name).plain and name in WEIGHT_BYTES
        assert sum(way.plain for way in perf_model.STRATEGIES if way.format == name) == 1
    with pytest.raises(UsageError, match="no way 'magic' of multiplying 'q8_0' weights; there are dp4a, mma"):
        perf_model.strategy("q8_0", "magic")
    with pytest.raises(UsageError, match="no format 'q4_k' of weights"):
        perf_model.plain("q4_k")


def test_the_fit_finds_the_numbers_that_made_the_rows():
    made = rows(("fp16", "cublas"), launch_us=3.0, share=0.5)
    fit = perf_model.fit(made, MACHINE)
    assert fit.own["fp16", "cublas"].launch_us == pytest.approx(3.0, abs=0.05)
    assert fit.own["fp16", "cublas"].share == pytest.approx(0.5, abs=0.011)
    assert fit.rows == len(made)
    errors = perf_model.compared(made, MACHINE, fit)
    assert errors["own_off"].abs().max() < 2 < errors["one_off"].abs().max()
    assert (errors["bound_off"] <= 0).all()


def test_one_fixed_time_is_fitted_once_for_all_ways():
    made = rows(("fp16", "gemv"), ("int4_g128", "two_op"), launch_us=2.5)
    fit = perf_model.fit(made, MACHINE)
    assert fit.launch_us == pytest.approx(2.5)
    errors = perf_model.compared(made, MACHINE, fit)
    assert errors["one_off"].abs().max() < 0.01
    small = errors[(errors["n"] == 1536) & (errors["batch"] == 1)]
    assert set(small["by"]) == {"launch"}
    big = errors[(errors["n"] == 28672) & (errors["impl"] == "gemv")]
    assert (
        big.set_index("batch").loc[1, "by"] == "memory" and big.set_index("batch").loc[256, "by"] == "compute"
    )


def test_without_rows_the_bound_is_all_there_is():
    assert perf_model.fit(rows(("fp16", "gemv")).iloc[:0], MACHINE) == perf_model.NOTHING
    how = perf_model.strategy("fp16", "gemv")
    assert perf_model.us(how, 4096, 4096, 1, MACHINE, perf_model.NOTHING) == pytest.approx(
        roofline.gemm_bytes(1, 4096, 4096, 2) / 4600e3
    )


def test_a_machine_nobody_measured_keeps_the_measured_one_s_shares():
    there = perf_model.scaled(LAPTOP, MACHINE, H200)
    assert there.gb_s == pytest.approx(LAPTOP.dram_gb_s * 4600 / H200.dram_gb_s)
    assert there.peaks["fp16_tensor"] == pytest.approx(LAPTOP.fp16_tensor * 790 / H200.fp16_tensor)
    assert perf_model.scaled(H200, MACHINE, H200) == MACHINE
    assert perf_model.datasheet(LAPTOP).gb_s == LAPTOP.dram_gb_s


def test_int8_products_scaled_block_by_block_are_bound_by_their_lanes():
    peaks = {"fp32": 10.0, "fp16_tensor": 100.0, "int8_tensor": 1000.0}
    assert perf_model.Machine(132, 1.0, peaks).peak("int8_scaled") == 160.0
    assert perf_model.Machine(132, 1.0, peaks).peak("int8_scaled_3") == pytest.approx(320 / 3)
    assert perf_model.Machine(132, 1.0, {**peaks, "int8_tensor": 90.0}).peak("int8_scaled") == 90.0
    assert perf_model.Machine(132, 1.0, peaks).peak("dp4a") == 20.0


def test_each_way_is_charged_the_instructions_that_its_rung_scales_a_sum_by():
    rungs = {
        "mma": mmq.DECODE + "6_mma",
        "mmq": "5_large_tiles",
        "mmq_blocks": "3_wide",
        "mmq_wgmma": "6_wgmma",
    }
    for way, rung in rungs.items():
        unit = perf_model.strategy("q8_0", way).unit
        assert perf_model.SCALING[unit] == mmq.operations_of(rung), way


def test_a_tile_costs_as_much_empty_as_full_and_a_round_as_much_as_it_has_sms():
    how, plain = perf_model.strategy("q8_0", "mmq_fp16_wgmma"), perf_model.strategy("fp16", "cublas")
    rows, tokens = how.tile
    full = perf_model.computed(how, 132 * rows, 4096, tokens, 132)
    assert full == roofline.gemm_flops(tokens, 132 * rows, 4096)
    assert perf_model.computed(how, 132 * rows, 4096, 1, 132) == full  # one token of a tile
    assert perf_model.computed(how, rows, 4096, tokens, 132) == full  # one SM at work
    assert (
        perf_model.computed(how, 133 * rows, 4096, tokens, 132) == 2 * full
    )  # one tile more than there are SMs
    assert perf_model.computed(plain, rows, 4096, 1, 132) == roofline.gemm_flops(1, rows, 4096)


@pytest.mark.parametrize(("name", "sizes"), [("mma", (1, 8, 9, 16, 32)), ("mmq_wgmma", (1, 64, 65, 128))])
def test_a_batch_smaller_than_a_tile_costs_whole_parts(name, sizes):
    how = perf_model.strategy("q8_0", name)
    rows, tokens = how.tile
    for batch in sizes:
        padded = how.part * -(-batch // how.part)
        assert padded <= tokens
        expected = roofline.gemm_flops(padded, 132 * rows, 4096)
        assert perf_model.computed(how, 132 * rows, 4096, batch, 132) == expected, batch
    assert perf_model.computed(how, 66 * rows, 4096, 2 * tokens, 132) == 2 * roofline.gemm_flops(
        tokens, 66 * rows, 4096
    )


@pytest.mark.parametrize("format", ["int4_g128", "q8_0"])
def test_dequantising_reads_the_weights_and_writes_halves_before_anything_is_multiplied(format):
    how, n, k = perf_model.strategy(format, "two_op"), 4096, 14336
    assert perf_model.first(how, n, k) == n * k * (WEIGHT_BYTES[format] + 2)
    assert perf_model.first(perf_model.strategy("fp16", "cublas"), n, k) == 0
    earlier = n * k * (WEIGHT_BYTES[format] + 2) / MACHINE.gb_s / 1e3
    few = perf_model.bound(how, n, k, 1, MACHINE)
    product = roofline.gemm_bytes(1, n, k, 2) / MACHINE.gb_s / 1e3
    assert few.us == pytest.approx(earlier + product) and few.by == "memory"
    many = perf_model.bound(how, n, k, 4096, MACHINE)
    compute = roofline.gemm_flops(4096, n, k) / MACHINE.peaks["fp16_tensor"] / 1e6
    assert many.us == pytest.approx(earlier + compute) and many.by == "compute"


def test_a_share_that_the_rows_cannot_tell_is_the_whole_peak():
    assert perf_model.fit(rows(("fp16", "gemv"), batches=(1,)), MACHINE).own["fp16", "gemv"].share == 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_ridge_is_where_arithmetic_takes_over(shape):
    how = perf_model.strategy("int4_g128", "fused")
    batch = perf_model.ridge_batch(how, *shape, MACHINE)
    if batch == perf_model.MANY:
        assert perf_model.bound(how, *shape, 1 << 20, MACHINE).by == "memory"
        return
    assert perf_model.bound(how, *shape, batch, MACHINE).by == "compute"
    assert perf_model.bound(how, *shape, batch - 1, MACHINE).by == "memory"


def test_the_fastest_way_is_the_one_that_takes_least():
    ways = [how for how in perf_model.STRATEGIES if how.format == "int4_g128"]
    for batch in (1, 4, 64, 2048):
        times = {how.name: perf_model.us(how, 4096, 4096, batch, MACHINE, perf_model.NOTHING) for how in ways}
        how, us = perf_model.fastest(ways, 4096, 4096, batch, MACHINE, perf_model.NOTHING)
        assert us == min(times.values()) == times[how.name] < max(times.values())
    known = {
        (how.format, how.name): perf_model.Own(us, 1.0) for how, us in zip(ways, (9, 5, 7, 8), strict=True)
    }
    assert perf_model.fastest(ways, 1536, 1536, 1, MACHINE, perf_model.Fit(1.0, known))[0] == ways[1]


def test_ways_that_quantise_or_dequantise_first_launch_twice():
    for how in perf_model.STRATEGIES:
        twice = "quantise" in how.says or how.name in ("two_op", "mmq_blocks")
        assert perf_model.launched(how, 1) == 1 + twice, how
        assert perf_model.launched(how, 100) == (100 if how.name == "loop" else 1 + twice), how
    assert perf_model.passes(perf_model.strategy("int4_g128", "fused_rows"), 9) == 2


def test_what_bounds_is_the_longest_of_three():
    """Of a way in two launches the first's bytes too."""
    how, (n, k) = perf_model.strategy("q8_0", "two_op"), (28672, 8192)
    words = [perf_model.bound(how, n, k, batch, MACHINE).by for batch in (1, 200, 4096)]
    assert words == ["memory", "memory", "compute"]
    terms = roofline.gemm_flops(200, n, k) / MACHINE.peaks["fp16_tensor"] / 1e6
    earlier = perf_model.first(how, n, k) / MACHINE.gb_s / 1e3
    assert roofline.gemm_bytes(200, n, k, 2) / MACHINE.gb_s / 1e3 < terms < earlier


def test_tiles_of_two_batches_come_in_two_rounds():
    how = perf_model.strategy("q8_0", "mmq_fp16_wgmma")
    rows, tokens = how.tile
    one = perf_model.computed(how, 132 * rows, 4096, tokens, 132)
    assert perf_model.computed(how, 132 * rows, 4096, tokens + 1, 132) == 2 * one
    assert perf_model.computed(how, 132 * rows, 4096, 3 * tokens, 132) == 3 * one


def test_rows_faster_than_the_bound_leave_no_time_for_a_launch():
    made = rows(("fp16", "cublas"))
    made["median_us"] = made["median_us"] / 10
    assert perf_model.fit(made, MACHINE).launch_us == 0


def test_how_far_a_prediction_is_off_is_in_percent():
    made = rows(("fp16", "gemv"), launch_us=2.0)
    fit = perf_model.fit(made, MACHINE)
    made["median_us"] = 2 * made["median_us"]
    assert perf_model.compared(made, MACHINE, fit)["own_off"].tolist() == pytest.approx(
        [-50] * len(made), abs=1
    )


def test_regimes_say_what_a_time_is_mostly():
    fit = perf_model.Fit(3.0, {("fp16", "gemv"): perf_model.Own(1000.0, 1.0)})
    ways = [perf_model.strategy("fp16", "cublas"), perf_model.strategy("fp16", "gemv")]
    table = perf_model.regimes(MACHINE, fit, (8192, 8192), (1, 2048), ways).set_index(["impl", "batch"])
    assert table["by"].to_dict() == {
        ("cublas", 1): "memory",
        ("cublas", 2048): "compute",
        ("gemv", 1): "launch",
        ("gemv", 2048): "compute",
    }
    own = perf_model.regimes(MACHINE, fit, (8192, 8192), (1,), ways, own=False).set_index("impl")
    assert own["by"].to_dict() == {"cublas": "memory", "gemv": "memory"}
    assert own["median_us"]["gemv"] == pytest.approx(own["median_us"]["cublas"])


def test_what_a_fit_has_seen_goes_before_what_only_a_bound_is_known_of():
    seen, unseen = perf_model.strategy("q8_0", "mmq"), perf_model.strategy("q8_0", "mmq_blocks")
    fit = perf_model.Fit(1.0, {("q8_0", "mmq"): perf_model.Own(50.0, 0.1)})
    chosen, us = perf_model.fastest([unseen, seen], 4096, 4096, 64, MACHINE, fit)
    assert chosen == seen and us == perf_model.us(seen, 4096, 4096, 64, MACHINE, fit)
    assert perf_model.fastest([unseen, seen], 4096, 4096, 64, MACHINE, perf_model.NOTHING)[0] in (
        seen,
        unseen,
    )
