"""What lesson 04 claims of the recorded H200, and that its pages say what the rows say."""

import re

import numpy as np
import pandas as pd
import pytest
from pages_read import said, turned
from rooflab import claims, lab, paths, studies
from rooflab.analysis import int4 as analysis
from rooflab.errors import UsageError
from rooflab.numerics import quant
from rooflab.ops import int4
from rooflab.pages import (
    lesson_04,
    lesson_04b,
    lesson_04b_causes,
    lesson_04c_bounds,
    lesson_04c_measured,
    lesson_04c_peers,
    lesson_04c_rungs,
    lesson_04c_stops,
    lesson_04d,
    lesson_04d_clocks,
    lesson_04d_laptop,
    lesson_04d_limits,
)
from rooflab.records.store import Store
from rooflab.records.validate import MIN_SAMPLES
from rooflab.studies import int4 as study

MLP = (8960, 1536)  # the source's shape


@pytest.fixture(scope="module")
def laptop():
    return lab.open("replay", "rtx-4070-laptop-published").store


@pytest.fixture(scope="module")
def ladder(h200):
    """The ladder on the source's shape; rungs as they stand, the dispatcher's choice apart."""
    rows = h200.measure("int4", study.ladder(*MLP, h200.sized))
    return rows[rows["case"] != study.chosen(*MLP, 1, h200.sized).id].set_index("impl")


@pytest.fixture(scope="module")
def batches(h200):
    cases = [c for n, k in study.SHAPES for c in study.batches(n, k, device=h200.sized)]
    return h200.measure("int4", [*cases, *study.square(h200.sized)])


@pytest.fixture(scope="module")
def counted(h200):
    ((tool, cases, metrics),) = studies.get("int4").profiles("full", h200.sized)
    rows = h200.profile("int4", cases, tool, metrics)
    return rows.assign(dram=pd.to_numeric(rows["dram_bytes"]))


# --- the claims that coverage.csv points to -----------------------------------------------------------------


def test_the_format_goes_there_and_back():
    """M46: codes from -7 to 7 around zero, never nibble 0, and every weight within half a step."""
    w = np.random.default_rng(46).standard_normal((40, 512)).astype(np.float32)
    packed = quant.quantise_int4(w)
    codes, scales = quant.unpack_int4(packed.qweight), packed.scales.astype(np.float32)
    assert (codes.min(), codes.max()) == (-7, 7)
    nibbles = packed.qweight.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    assert nibbles.min() == 1 and nibbles.max() == 15
    largest = np.abs(w).reshape(40, 4, 128).max(axis=-1)
    assert np.allclose(scales, largest / 7, rtol=2**-10)
    off = np.abs(quant.dequantise_int4(packed) - w).reshape(40, 4, 128)
    assert (off <= 0.51 * scales[..., None]).all()
    assert "4.125 bits" in said("04_int4.ipynb")


def test_words_hold_eight_nibbles_and_scales_are_halves():
    """M47: bit by bit, and the word that the page takes apart."""
    codes = np.array([[-7, -1, 0, 1, 2, 3, 6, 7] * 16], np.int8)
    packed = quant.quantise_int4(codes)
    assert packed.scales.dtype == np.float16 and packed.scales.shape == (1, 1)
    assert packed.qweight.dtype == np.int32 and packed.qweight.shape == (1, 16)
    assert int(packed.qweight.view(np.uint32)[0, 0]) == 0xFEBA9871
    group = np.random.default_rng(4).standard_normal((1, 128)).astype(np.float32)
    word = quant.quantise_int4(group).qweight.view(np.uint32)[0, 0]
    assert f"`{word:#010x}`" in said("04_int4.ipynb")


def test_traffic_is_predicted_and_then_counted(h200, counted):
    """M48: 8.7 and 3.9 times the fused bytes, by arithmetic; DRAM's counters agree where nothing is written,
    and where no cache can hold what is written."""
    cases = {c.id: c for c in study.counted(h200.sized) if c.options == ""}
    mb = {c.impl: study.traffic(c) / 1e6 for c in cases.values() if (c.n, c.k) == MLP}
    assert mb["two_op"] / mb["1_warp_row"] == pytest.approx(8.7, abs=0.05)
    assert mb["torch.matmul"] / mb["1_warp_row"] == pytest.approx(3.87, abs=0.05)
    moved = counted.groupby("case")["dram"].sum()
    for case in cases.values():
        ratio = moved[case.id] / study.traffic(case)
        large = (case.n, case.k) == study.SHAPES[-1]
        if case.impl in ("1_warp_row", "torch.matmul") or large:
            assert 0.9 < ratio < 1.1, (case.id, ratio)
        elif case.impl in (study.TWO_OP, study.TWO_OP_TORCH):
            assert ratio < 0.95, (case.id, ratio)


def test_the_source_s_kernel_is_rebuilt_gated_and_far_from_the_roof(ladder, h200):
    """M49"""
    row = ladder.loc["1_warp_row"]
    assert row["error"] <= row["error_budget"] and row["samples"] >= MIN_SAMPLES
    assert row["gb_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3, rel=1e-4)
    assert 0.05 < row["roof_fraction"] < 0.3
    assert f"{row['roof_fraction']:.0%} of the roof" in said("04_int4.ipynb")


def test_the_literal_two_op_product_is_a_baseline(ladder):
    """M50: six kernels through memory, many times slower than the fused one."""
    assert ladder.loc[study.TWO_OP_TORCH, "median_us"] > 8 * ladder.loc["1_warp_row", "median_us"]


def test_a_fair_two_op_product_is_another(ladder):
    """M51: our dequantising kernel and cuBLAS: far from the literal one, and slower than FP16 alone."""
    fair = ladder.loc[study.TWO_OP]
    assert fair["median_us"] < 0.2 * ladder.loc[study.TWO_OP_TORCH, "median_us"]
    assert fair["q1_us"] > ladder.loc["torch.matmul", "q3_us"]


def test_resident_fp16_weights_are_the_baseline_that_counts(ladder, batches):
    """M52: cuBLAS, in the same group as every own row."""
    assert ladder.loc["torch.matmul", "kind"] == "baseline"
    wide = batches[batches["kind"] == "own"].groupby(["n", "k", "batch"]).size()
    fp16 = batches[batches["impl"] == "torch.matmul"].groupby(["n", "k", "batch"]).size()
    assert wide.index.equals(fp16.index) and len(wide) == 53


def test_six_counters_stand_beside_the_published_ones(laptop, counted, h200):
    """M53: bytes, time, DRAM %, SM %, L2 hits, occupancy."""
    theirs = analysis.published_counters(laptop)
    assert list(theirs.index) == list(analysis.SIX) and not theirs.isna().any()
    assert theirs["dram_mb"] == pytest.approx(7.105, abs=1e-3) and theirs["dram_pct"] == 86.38
    first = next(c for c in study.counted(h200.sized) if c.impl == "1_warp_row" and (c.n, c.k) == MLP)
    ours = analysis.counters(counted[counted["case"] == first.id])
    assert ours["dram_mb"] == pytest.approx(theirs["dram_mb"], rel=0.01)
    assert ours["dram_pct"] < ours["sm_pct"] < 100
    assert all(name in said("04_int4.ipynb") for name in analysis.SIX.values())


def test_sixteen_byte_loads_are_worth_their_own_rung(ladder, h200):
    """M54: rung 2 over rung 1, on the small and on the largest shape."""
    assert ladder.loc["2_vector", "q3_us"] < ladder.loc["1_warp_row", "q1_us"]
    large = h200.measure("int4", study.rungs(*study.SHAPES[-1])).set_index("impl")["median_us"]
    assert large["1_warp_row"] > 1.5 * large["2_vector"]


def test_the_source_s_four_shapes_and_seeds_pass_its_tolerance(h200):
    """M55: its kernel and ours, |error| at most 0.002, which its test allows whatever the output."""
    rows = h200.measure("int4", study.seeded(h200.sized))
    assert {(row.n, row.k) for row in rows.itertuples()} == set(study.SEEDED) and len(rows) == 8
    assert (rows["error"] <= 2e-3).all() and (rows["weights"] == "normal").all()
    assert rows["options"].str.contains("seed=").all()


def test_edges_are_stored_or_refused():
    """M56: zeros, outliers, rows that fill no tile, groups that are not whole."""
    zeros = quant.quantise_int4(np.zeros((3, 128)))
    assert not quant.dequantise_int4(zeros).any()
    spiked = np.ones((1, 256))
    spiked[0, 3] = 700
    back = quant.dequantise_int4(quant.quantise_int4(spiked))
    assert back[0, 3] == 700 and not back[0, :3].any() and np.allclose(back[0, 128:], 1, rtol=1e-3)
    odd = quant.quantise_int4(np.random.default_rng(56).standard_normal((37, 256)))
    tiles = int4.repack(*odd)
    assert len(tiles.blocks) == 1 and all(map(np.array_equal, odd, int4.unpack(tiles)))
    for k in (192, 64):
        with pytest.raises(UsageError, match="not a multiple of the group"):
            quant.quantise_int4(np.ones((2, k)))
    text = said("04_int4.ipynb")
    table = text.partition("Six unusual matrices")[2].partition("</details>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = {row[0]: row[1:] for row in (re.findall(r"<td>(.*?)</td>", each) for each in rows) if row}
    assert [row[-1] for row in cells.values()] == ["yes"] * 4 + [""] * 2  # the same bits back
    assert cells["All zeros"][:3] == ["yes", "0 to 0", "100"] and cells["k = 192"][0] == "no"
    assert "**k = 192** is refused: K = 192" in table and "**A NaN** is refused: " in table


def test_error_grows_with_the_group_and_with_outliers():
    """M57: 32 to 256 weights a group, normal ones and ones with rare outliers."""
    rng = np.random.default_rng(57)
    normal = rng.standard_normal((128, 2048))
    spiked = normal * np.where(rng.random(normal.shape) < 1 / 1000, 20, 1)

    def error(w, group):
        back = quant.dequantise_int4(quant.quantise_int4(w, group), group)
        return np.sqrt(np.mean((back - w) ** 2) / np.mean(w**2))

    for w, growth in ((normal, 1.2), (spiked, 1.8)):
        found = [error(w, group) for group in (32, 64, 128, 256)]
        assert found == sorted(found) and found[-1] > growth * found[0]
    assert error(spiked, 128) > 1.4 * error(normal, 128)


def test_weights_read_once_beat_the_loop(h200, batches):
    """M92: on CUDA cores at 4 and 8 tokens, and the dispatcher's choice at every batch of the source."""
    rows = h200.measure("int4", study.reused(*MLP)).pivot(index="batch", columns="impl", values="median_us")
    assert (rows["6_batched"] < rows["5_split_k"]).all() and rows["5_split_k"][8] > 1.2 * rows["6_batched"][8]
    loop = h200.measure("int4", study.published())
    loop = loop[(loop["n"] == MLP[0]) & (loop["impl"] == "1_warp_row") & (loop["clock"] == "graph")]
    loop = loop[loop["cache"] == "cold"].set_index("batch")["median_us"]
    for batch in loop.index:
        assert analysis.value(batches, *MLP, batch) < loop[batch] / (batch + 1)


# --- beyond -------------------------------------------------------------------------------------------------


def test_what_was_asked_is_judged_by_the_rows(batches):
    """Every floor is met; the page shows each goal with what was reached, met or not."""
    board = judged(batches)
    assert (board["group"] == "floor").sum() == 6 and (board["group"] == "aim").sum() == 7
    assert (board[board["group"] == "floor"]["word"] == claims.HOLDS).all(), board
    assert not (board["word"] == claims.UNRECORDED).any()
    shown = said("04c_batch.ipynb").replace("&lt;", "<").replace("&gt;", ">")
    for _, goal in board.iterrows():
        cells = (f"<td>{goal['group']}</td>", f"<td>{goal['says']}: {goal['quantity']}</td>")
        row = next(part for part in shown.split("<tr>") if all(cell in part for cell in cells))
        assert f"<td>{goal['measured']}</td>" in row
        assert f"<td>{'yes' if goal['word'] == claims.HOLDS else 'no'}</td>" in row


def judged(rows):
    """The lesson's goals by these rows."""
    evidence = claims.Evidence(Store(paths.DATA, "nothing"), {"int4": rows})
    return claims.board(claims.select("04c_batch", source=claims.COURSE), evidence)


def rows_of(own=10.0, fp16=20.0, peer=15.0, **change):
    """Made-up rows: every goal's points, with the peers that a floor needs."""
    points = [(*shape, batch) for shape in study.SHAPES for batch in study.BATCHES]
    found = []
    for n, k, batch in [*points, (*study.SQUARE, 1)]:
        contestants = {"8_folded_offset": own, "torch.matmul": fp16, study.TINYGEMM: peer, "humming": peer}
        for impl, us in {**contestants, **change.get(f"{n}x{batch}", {})}.items():
            kind = "own" if impl == "8_folded_offset" else "baseline" if impl == "torch.matmul" else "peer"
            row = {"n": n, "k": k, "batch": batch, "impl": impl, "kind": kind, "median_us": us}
            row |= {"operator": "int4", "cache": "cold", "clock": "graph", "options": ""}
            found.append({**row, "q1_us": 0.99 * us, "q3_us": 1.01 * us, "roof_fraction": 0.9})
    return pd.DataFrame(found)


def test_a_floor_is_lost_at_one_point_and_named():
    assert analysis.slower_than_fp16(rows_of()) == [] == analysis.slower_than_peers(rows_of())
    slow = rows_of(**{"4096x24": {"8_folded_offset": 19.8}})  # within the spread of FP16, and behind a peer
    assert analysis.slower_than_fp16(slow) == [(4096, 4096, 24)] == analysis.slower_than_peers(slow)
    close = rows_of(**{"4096x24": {"humming": 9.9}})
    assert analysis.slower_than_peers(close) == []


def test_no_floor_counts_without_the_strongest_peers():
    rows = rows_of()
    board = judged(rows[rows["impl"] != "humming"]).set_index("id")
    assert board.loc["F6", "word"] == claims.UNRECORDED and "humming" in board.loc["F6", "measured"]
    assert board.loc["F5", "word"] == claims.HOLDS
    assert judged(rows[:0])["word"].eq(claims.UNRECORDED).sum() >= 9


def test_the_published_experiment_is_repeated_and_taken_apart(h200, laptop):
    """Its kernel times say 3.5 where its clock said 2.38; by our event clock a token costs its launch."""
    theirs = analysis.published_sweep(laptop).set_index(["shape", "batch"])
    assert theirs.loc[("8,960 × 1,536", 1), "gain"] == pytest.approx(2.38, abs=0.01)
    assert theirs.loc[("8,960 × 1,536", 2), "gain"] == pytest.approx(0.59, abs=0.01)
    kernels = analysis.published_kernels(laptop)
    assert kernels["fp16"] / kernels["fused"] == pytest.approx(3.5, abs=0.05)
    rows = h200.measure("int4", study.published())
    rows = rows[(rows["impl"] == "1_warp_row") & (rows["n"] == MLP[0])]
    us = rows.set_index(["clock", "cache", "batch"])["median_us"]
    by_event = (us["event", "warm", 32] - us["event", "warm", 1]) / 31
    by_graph = (us["graph", "cold", 32] - us["graph", "cold", 1]) / 31
    assert by_event > 1.2 * by_graph
    assert "This clock compares two launchers" in said("04d_published.ipynb").replace("\n", " ")


def test_instructions_and_not_memory_hold_the_source_s_kernel(h200, counted):
    """04b's budget: rung 1 issues for longer than its bytes take at the roof; with tensor cores, for less."""
    n, k = study.SHAPES[-1]
    seen = counted.set_index("case")
    spent = {}
    for case in study.rungs(n, k):
        slots = float(seen.loc[case.id, "inst_executed"]) / (int(h200.run["sms"]) * 4 * h200.sm_ghz) / 1e3
        spent[case.impl] = slots / (
            studies.get("int4").count(case).bytes / h200.roof["dram_read"].value / 1e3
        )
    assert spent["1_warp_row"] > 2 > spent["2_vector"] > spent["3_magic"] > 1 > spent["7_mma"]


def test_every_timed_rung_is_gated_and_no_peer_is_missing(h200):
    rows = h200.measure("int4", h200.cases("int4"))
    own = rows[rows["kind"] == "own"]
    assert (own["error"] <= own["error_budget"]).all()
    assert (own["spill_bytes"] == 0).all()
    assert (rows["q1_us"] <= rows["median_us"]).all() and (rows["median_us"] <= rows["q3_us"]).all()
    assert {study.TINYGEMM, "humming", "gemlite"} <= set(rows["impl"])


def test_a_shape_that_no_peer_takes_is_named_beside_the_others():
    rows = pd.DataFrame({"n": [4096, 4096, 12345], "k": 4096, "batch": 1})
    rows["who"], rows["median_us"] = ["ours", "humming", "ours"], [10.0, 12.0, 30.0]
    said, (table, *_) = lesson_04c_peers.against_peers(rows, [(4096, 4096), (12345, 4096)], [1, 8])
    assert "at 1 of 1 points" in said
    assert table["b1"].tolist() == ["1.20", "no peer"] and table["b8"].tolist() == ["no peer"] * 2
    assert lesson_04c_peers.against_peers(rows[::2], [(4096, 4096)], [1])[0] == "", "no peer"


def test_where_int4_stops_paying_is_said_by_the_last_number_of_tokens_that_gains():
    gains = pd.DataFrame({1: [2.0, 3.0], 96: [0.9, 1.4], 256: [0.8, 1.1]})
    gains.index = pd.MultiIndex.from_tuples([(8960, 1536), (28672, 8192)])
    assert lesson_04c_stops.stops(gains).to_numpy().tolist() == [
        ["8,960 × 1,536", "1 token", 2.0, 0.8],
        ["28,672 × 8,192", "256 tokens, the most timed", 3.0, 1.1],
    ]
    assert lesson_04c_stops.stops_in_short(gains).endswith("1 token, on 1 of 2 still at 256, the most timed.")
    gains.loc[(28672, 8192), 256] = 1.0
    assert lesson_04c_stops.stops(gains)["ahead"].tolist() == ["1 token", "96 tokens"]
    assert lesson_04c_stops.stops_in_short(gains).endswith("on the best of them up to 96.")
    assert lesson_04c_stops.ahead_in_short(gains) == "Up to 1 token INT4 is ahead on all 2 shapes timed."
    assert lesson_04c_stops.stops(gains[[1]])["ahead"].tolist() == ["1 token, the most timed"] * 2
    assert lesson_04c_stops.stops(gains[[96]])["ahead"].tolist() == ["nowhere", "96 tokens, the most timed"]
    assert lesson_04c_stops.stops(gains[:0]).empty and lesson_04c_stops.stops_in_short(gains[:0]) == ""


def test_the_cause_of_a_gain_s_fall_is_not_known_where_the_bounds_hardly_fall():
    table = pd.DataFrame({"n": 4096, "k": 4096, "batch": [1, 32, 64], "allowed": [3.8, 3.7, 2.5]})
    text, upto = lesson_04c_stops._falls(table.assign(gain=[3.0, 2.0, 1.5]))
    assert "the gain falls by 33%, the ratio of the bounds falls by 3%." in text and upto == 32
    assert lesson_04c_stops._falls(table.assign(gain=[3.0, 3.0, 3.1])) is None


def test_the_lead_shrinks_where_ours_gets_further_from_its_bound():
    times = pd.DataFrame({"n": 4096, "k": 4096, "batch": [1, 32], "ours": [30.0, 45.0], "fp16": 90.0})
    times = times.assign(ours_over=[1.2, 1.8], fp16_over=1.1).set_index(["n", "k", "batch"])
    text = lesson_04c_stops._further_off(times, 32)
    assert "32 tokens take FP16 1.00 times as long as 1, and ours 1.50 times as long" in text
    assert "bound allows 1.00 times as long" in text and "from 3.0 to 2.0 times" in text
    assert "FP16 0.50 times as long" in lesson_04c_stops._further_off(times.assign(fp16=[90.0, 45.0]), 32)
    scattered = lesson_04c_stops._further_off(times.assign(q1=[84.0, 90.0], q3=90.0), 32)
    assert scattered.startswith(text)
    assert (
        "lower quartile, 84.0 µs, the lead is 2.8 times at first, and 32 tokens take FP16 1.07" in scattered
    )
    assert lesson_04c_stops._further_off(times.assign(ours_over=1.2), 32) == ""
    assert lesson_04c_stops._further_off(times, 64) == lesson_04c_stops._further_off(times[:0], 32) == ""


def test_what_wgmma_and_the_tma_bring_is_said_by_the_times():
    whole = pd.DataFrame({9: [40.0, 99.0], 10: [45.0, 66.0], 11: [40.0, 55.0]}, [16, 64])
    text = lesson_04c_rungs._compared(whole)
    assert "At 64 tokens rung 11 runs at 1.80 times the speed of rung 9: 1.50 by rung 10 × 1.20 by" in text
    assert (
        "**At 16 tokens rung 10 is slower than rung 9.** It scales the 128 weights"
        in lesson_04c_rungs._behind(whole)
    )
    assert lesson_04c_rungs._behind(whole.loc[[64]]) == "", "faster"


def test_what_is_scaled_is_counted_from_the_listings():
    sources = [int4.LADDERS["int4"][number - 1].path.read_text("utf-8") for number in (9, 11)]
    assert [lesson_04c_rungs.sums_even_at(source) for source in sources] == [64, 32]
    assert "TOKENS <= 16" in sources[1] and "PARTS <= 2" in sources[0]
    assert "Beyond 16 tokens the offsets' mma and a group's own" in " ".join(sources[0].split())
    said, why = lesson_04c_rungs._what_is_scaled([8, 16, 32, 64])
    assert "weights: 64 instructions" in said and "1 a token in rung 9, 2 in rung 11" in said
    assert "below 64 tokens in rung 9 and below 32 in rung 11" in said
    assert "has 32 token columns, where sums need as many" in why
    assert "where sums need more" in lesson_04c_rungs._what_is_scaled([16, 48])[1]
    assert "first build" not in lesson_04c_rungs._what_is_scaled([16, 24])[1]


def test_a_rung_that_is_picked_on_one_shape_alone_is_named():
    picks = {"8,960 × 1,536": [9, 11, 10, 10], "4,096 × 4,096": [9, 11, 11, 11]}
    said = lesson_04c_rungs._started(picks, [1, 16, 24, 32])
    assert "Rung 10 is picked on 8,960 × 1,536 alone, at 24 and 32 tokens" in said
    assert "alone" not in lesson_04c_rungs._started(dict.fromkeys("ab", [9, 10, 11, 11]), [1, 16, 24, 32])


def test_what_sharing_is_worth_is_said_by_the_times(h200, monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr(lesson_04c_rungs.display, "say", shown.append)
    rungs = int4.LADDERS["int4"]
    wide = pd.DataFrame({"ours": 32.0, "least": 25.0}, index=[1, 2, 8])
    wide[rungs[4].name], wide[rungs[5].name] = [43.0, 80.0, 320.0], [np.nan, 50.0, 160.0]
    wide.attrs |= {"shape": study.SHAPES[-1], "read_roof": 4700.0}
    lesson_04c_rungs.read_once_explained(wide, rungs, 132, 1.98)
    assert "At 8 tokens sharing the weights is 2.0 times as fast: 320 µs become 160." in shown[0]
    assert "each token after 2 tokens costs rung 6 another 18.3 µs" in shown[0]
    assert "**7.0 µs** by arithmetic" in shown[0] and "8,192 ÷ (132 SMs × 128 a clock × 1.98 GHz)" in shown[0]
    assert "**2.0 µs** by arithmetic for x" in shown[0] and "7.0 × (1/4 + 1/32)" in shown[0]
    assert "**9.3 µs** are left" in shown[0]
    assert (
        "Predicted: the budget is spent at 4 tokens. Measured: rung 6 takes 2.0 times the bound at 2 tokens"
        in (shown[0])
    )
    assert "tensor cores are 5.0 times as fast again" in shown[0]
    lesson_04c_rungs.read_once_explained(wide[[rungs[4].name]], rungs, 132, 1.98)
    assert len(shown) == 1, "rung 6 was not timed"


def test_work_that_grows_is_named_by_the_counters():
    most = pd.DataFrame({"batch": [1, 16, 24], "us": [33.0, 38.0, 43.0], "each": [1.4, 2.1, 2.5]})
    most["rung"], most["columns"] = [9, 11, 11], [8, 16, 32]
    most["memory"], most["tensor cores"] = [26.0, 26.0, 26.0], [9.6, 8.8, 17.0]
    most["instructions"] = [14.0, 19.0, 21.5]
    text = lesson_04c_measured._grown(most, 32)
    assert "Memory is busy 26 µs for 1 token and for 24 tokens: more tokens cost no more reading." in text
    assert "While Nsight Compute counts, the kernel takes 33.0 and 43.0 µs; the rest of that grows" in text
    assert text.endswith(
        "from 7.0 to 17.0 µs.** In it the tensor cores (beyond 16 tokens) and instructions are busy for "
        "longer. How much of that the kernel waits for, busy times do not say."
    )
    grown = lesson_04c_measured._grown(most.assign(memory=[26.0, 28.0, 30.0]), 32)
    assert "the rest" not in grown and grown.count("memory") == 1
    assert "so it limits: memory" in lesson_04c_measured._grown(most.assign(memory=42.0), 32)
    assert "for longer" not in lesson_04c_measured._grown(most[:2].assign(instructions=14.0), 32)
    assert lesson_04c_measured._grown(most[:1], 32) == ""
    step = lesson_04c_measured.Step(16, 24, 1.16, 1.02)
    assert "32 token columns instead of 16: the tensor cores are busy for 17.0 µs instead of 8.8" in (
        lesson_04c_measured._stepped(most, step)
    )
    assert lesson_04c_measured._stepped(most[:2], step) == lesson_04c_measured._stepped(most, None) == ""
    assert "keeps the tensor cores busy for 1.20 µs in rung 9's `mma`" in lesson_04c_measured._by_column(most)
    assert lesson_04c_measured._by_column(most[1:]) == ""


def test_whether_tokens_are_free_is_answered_by_the_times():
    us, least = pd.Series({1: 32.0, 32: 43.0, 64: 55.0}), pd.Series({1: 26.0, 32: 26.0, 64: 40.0})
    step = lesson_04c_measured.Step(16, 24, 1.16, 1.02)
    answered = lesson_04c_measured.answered
    assert answered(us, least, 1, 32, step) == (
        "**No, but they are cheap, and time grows in steps: 32 tokens take 1.34 times as long as 1 "
        "(predicted: 1.00).** "
        "64 take 1.72 times as long (predicted: 1.54). "
    )
    assert answered(us, least, 1, 32, None).startswith("**No, but they are cheap: 32")
    assert answered(us * [1, 0.8, 1], least, 1, 32, None).startswith("**Nearly: 32")
    assert answered(us * [1, 5, 5], least, 1, 32, None).startswith("**No: 32")
    assert answered(us * [1, 0.75, 1], least, 1, 32, step).startswith("**Yes: 32")
    assert answered(us, least, 1, 64, step).startswith("**No, but they are cheap, and")
    assert answered(us[1:], least, 1, 32, step) == ""


def test_the_tuned_block_is_told_by_its_constants_and_a_split_by_its_warps():
    plain = int4.LADDERS["int4"][8].with_defaults({})
    text = lesson_04b_causes.tuned_block({"ROW_WARPS": 1, "TILES": 4, "K_WARPS": 4, "STAGES": 2}, plain)
    assert (
        "a warp takes 64 rows instead of 32, 4 warps divide k instead of 2 and the ring has 2 slots" in text
    )
    assert text.endswith(
        "A block has 64 rows, not 128, for each copy of x: it gives up sharing x between groups of warps."
    )
    assert lesson_04b_causes.tuned_block({}, plain) == lesson_04b_causes.tuned_block({}, {"TILES": 4}) == ""
    assert lesson_04b_causes.tuned_block({"TILES": 4}, plain).endswith(
        "has 256 rows, not 128, for each copy of x."
    )
    table = [{"rung": 4, "warps": 34.0, "rows": 2}, {"rung": 5, "warps": 33.0, "rows": 4}]
    assert "rung 5 wins no warps, 34 → 33 on an SM; it has more rows, 2 → 4" in lesson_04b.rows_not_warps(
        table
    )
    assert lesson_04b.rows_not_warps(table[:1]) == ""
    assert lesson_04b.rows_not_warps([table[0], table[1] | {"warps": 50.0}]) == ""


def test_a_step_in_time_is_laid_to_the_build_only_where_a_build_s_own_tokens_cost_less():
    rows = pd.DataFrame({"batch": [1, 4, 8, 16, 32], "rung": "11", "columns": [8, 8, 16, 16, 32]})
    rows["build"], rows["median_us"] = rows["columns"].astype(str), [30.0, 30.6, 33.0, 33.0, 40.0]
    rows["constants"] = [{"TOKENS": columns, "STAGES": 2} for columns in rows["columns"]]
    found = lesson_04c_measured._builds(rows)
    assert lesson_04c_measured.build_names(found)[1] == "rung 11\n16 columns"
    twice = found.assign(columns=8, constants=[{"TOKENS": 8, "STAGES": stages} for stages in (2, 3, 3)])
    assert lesson_04c_measured.build_names(twice)[1] == "rung 11\n8 columns\nSTAGES 3"
    assert list(found["start"]) == [1, 8, 32] and list(found["end"]) == [4, 16, 32]
    assert found["within"].iloc[0] == pytest.approx(1.02) and np.isnan(found["within"].iloc[2])
    assert found["step"].iloc[2] == pytest.approx(40 / 33) and np.isnan(found["step"].iloc[0])
    assert lesson_04c_measured._spans(found, "start", "end", "{:.0f}") == ["1–4", "8–16", "32"]
    step = lesson_04c_measured.largest_step(found, 32)
    assert step[:2] == (16, 32) and lesson_04c_measured.grows_by_builds(step)
    assert lesson_04c_measured.largest_step(found, 4) is None
    assert not lesson_04c_measured.grows_by_builds(step._replace(within=1.2))


def gains_of(loop: dict[int, float], once: dict[int, float]) -> dict[str, pd.Series]:
    """Gains over FP16 as lesson 04d's page has them; the event clock's are the loop's."""
    side = pd.Series(loop)
    return {lesson_04d.LOOP: side, lesson_04d.EVENT: side, lesson_04d.ONCE: pd.Series(once, dtype=float)}


def test_the_loser_is_named_by_the_gains_of_the_loop_and_of_read_once():
    named = lesson_04d.which_loses
    assert named(gains_of({1: 0.9, 32: 0.1}, {1: 2.0, 32: 1.4}), "GPU") == (
        "Not INT4. On the GPU its kernel loses, and running it once for each token adds to the loss.\n\n"
        "- **Format**: read once for 32 tokens, INT4 is 1.40 times as fast as FP16.\n"
        "- **Kernel**: for 1 token the loop's kernel runs once, 0.90 times as fast.\n"
        "- **Loop**: for 32 tokens it runs 32 times, 0.10 times as fast."
    )
    assert "its kernel loses, without its" in named(gains_of({1: 0.5, 32: 0.6}, {1: 2.0, 32: 1.4}), "GPU")
    wins = named(gains_of({1: 1.2, 32: 0.1}, {1: 2.0, 32: 1.4}), "GPU")
    assert wins.startswith("Not INT4, and not its kernel run once: on the GPU the loop loses")
    assert "runs once, 1.20 times as fast" in wins
    lost = named(gains_of({32: 0.1}, {32: 0.5}), "GPU")
    assert lost.startswith("Not the loop alone") and "slower, at 0.5 times the speed of FP16" in lost
    assert "INT4 is as fast as FP16 for 32" in named(gains_of({32: 0.1}, {32: 1.01}), "GPU")
    assert "does not lose for 32 tokens, without launches" in named(gains_of({32: 1.1}, {32: 1.4}), "GPU")
    assert "not timed on the GPU" in named(gains_of({32: 0.1}, {}), "GPU")
    falls, dips = pd.Series({1: 1.2, 2: 0.9, 4: 0.5}), pd.Series({1: 0.9, 2: 1.1, 4: 0.5})
    told = [lesson_04d.loses(side) for side in (falls, dips, dips + 1)]
    assert told == ["from 2 tokens on", "at 2 of 3 batches", "nowhere"]


def test_the_laptop_s_record_is_open_where_so_many_kernels_would_win():
    theirs = pd.DataFrame({"shape": lesson_04d_laptop.PROFILED, "batch": [1, 2, 8]})
    theirs["fp16"], theirs["gain"], theirs["fused"] = [200.0, 90.0, 70.0], [2.0, 0.6, 0.1], [80, 150, 700]
    fast, slow = (pd.Series({"fused": us, "fp16": 100.0}) for us in (30.0, 60.0))
    rows = theirs.set_index("batch").assign(alone=[30.0, 60.0, 240.0])
    told = lesson_04d_laptop.unknown(theirs, fast, rows.assign(small=[81, 160, 600]))
    assert "2 of them take 60 µs and beat FP16's 90; the loop's other 90 µs make it lose" in told
    assert "From 8 tokens on so many kernels alone would lose" in told
    told = lesson_04d_laptop.in_doubt(theirs, fast, rows.assign(small=[81, 160, 600]))
    assert "hardly reading: the smaller matrix takes 160 µs" in told and "scatter" not in told
    told = lesson_04d_laptop.in_doubt(theirs, fast, rows.assign(small=[160, 50, 600]))
    assert "hardly" not in told and "one token takes 160 µs on the smaller matrix, 80 on the larger" in told
    assert "lose, too" in lesson_04d_laptop.unknown(theirs, slow, rows)
    assert "lose, too" in lesson_04d_laptop.unknown(theirs.assign(gain=2.0), fast, rows)
    told = lesson_04d_laptop.beside_fp16_alone(fast, rows)
    assert "takes 100 µs for one token" in told and told.endswith("lose from 8 tokens on.")
    assert lesson_04d_laptop.beside_fp16_alone(fast, rows.assign(alone=9.0)).endswith("its kernels' do not.")
    assert "profiled time may be too long" not in told
    told = lesson_04d_laptop.in_doubt(theirs, fast, rows.assign(small=160, alone=[30.0, 60.0, 720.0]))
    assert "At 8 tokens the loop takes less than so many profiled kernels" in told


def test_the_drawing_of_two_clocks_says_which_times_it_misses():
    measured = pd.Series({1: 47.0, 2: 71.0, 4: 93.0, 8: 152.0})
    text = lesson_04d_clocks.misses(measured, 15, 10, 37)
    assert "For 2 tokens these lengths miss the times measured below, by 9 µs: its times scatter" in text
    measured[4] = 120.0
    text = lesson_04d_clocks.misses(measured, 15, 10, 37)
    assert (
        "by 9 and 28 µs, and from 4 to 8 tokens the event clock adds 32 µs, less than 4 kernels take" in text
    )
    measured[2], measured[4] = 63.0, 93.0
    assert (
        "For 2 and 4 tokens these lengths give the times measured below within 10%"
        in lesson_04d_clocks.misses(measured, 15, 10, 37)
    )
    assert lesson_04d_clocks.misses(measured[[1, 8]], 15, 10, 37) == ""
    assert not lesson_04d_clocks.drawn(9, 10, 37) and not lesson_04d_clocks.drawn(15, 10, 9)


def test_the_drawing_of_two_clocks_takes_the_times_that_were_measured():
    """A GPU whose memory was taken has none of one token, or of any."""
    tokens = [1, 2, 4]
    times = {"event, warm": [47.0, 62.0, 92.0], "graph, cold": [float("nan"), 20.0, 40.0]}
    index = pd.MultiIndex.from_product([times, tokens])
    one_shape = pd.DataFrame({"fused": [us for how in times.values() for us in how]}, index)
    assert lesson_04d_clocks.clocks_drawn(one_shape, "GPU") == (15, 10, 37)
    one_shape.loc["graph, cold"] = float("nan")
    assert lesson_04d_clocks.clocks_drawn(one_shape, "GPU") == (15, 0, 47)
    one_shape.loc[("event, warm", 1)] = float("nan")
    assert lesson_04d_clocks.clocks_drawn(one_shape, "GPU") == (15, 0, 0)
    assert lesson_04d_clocks.clocks_drawn(one_shape * float("nan"), "GPU") == (0, 0, 0)


def test_a_gain_over_a_slow_baseline_is_named():
    rows = pd.DataFrame({"batch": [1, 16], "fp16": [200.0, 80.0], "fused": [100.0, 400.0]})
    assert "odd time of FP16, 200 µs, where 16 tokens take 80." in lesson_04d_laptop.slow_baseline(rows)
    assert lesson_04d_laptop.slow_baseline(rows.assign(fp16=80.0)) == ""


def test_fewer_bytes_save_time_only_where_reading_takes_longer_than_issuing():
    table = pd.DataFrame({"issue": [20.0, 6.0], "read": [28.0, 1.5], "halves": [108.0, 5.9]})
    table["fused"], table["fp16"], table["gain"] = [32.0, 11.5], [112.0, 10.1], [3.5, 0.9]
    table["rate"], table["slots"] = [256.0, 4700.0], [310.0, 1045.0]
    text = lesson_04d_limits._verdict(table, 1e6, 32 * 10**5, "GPU")
    assert "issuing takes 4.0 times as long as reading" in text and "spends 10.0 instructions" in text
    assert "reads 18.4 times as fast as the laptop, and issues 3.4 times" in text
    assert "what INT4 saves in bytes, it spends" in text and "1.7 times its least time there" in text
    text = lesson_04d_limits._verdict(table.assign(halves=50.0, fp16=50.0), 1e6, 10**6, "GPU")
    assert "it spends on" not in text and "its least" not in text
    text = lesson_04d_limits._verdict(table.assign(read=28.0), 1e6, 10**6, "GPU")
    assert text.endswith("GPU, too, reading takes longer.** So this does not tell why the gains differ.")


def test_the_plain_kernel_s_bytes_in_flight_are_a_suspect_where_the_roof_needs_more(h200, counted):
    """A word of 4 bytes a lane, by Little's law; part 04b weighs the other suspect."""
    ours = analysis.counters(counted[counted["case"] == study.ladder(*MLP, h200.sized)[0].id])
    text = lesson_04._few_bytes(ours, h200)
    has = 4 * 2048 * ours["occupancy_pct"] / 100 / 1024
    assert f"an SM has {has:.1f} KiB, where the roof needs 11.5" in text and text in said("04_int4.ipynb")
    many = lesson_04._few_bytes(ours.replace(ours["occupancy_pct"], 200.0), h200)
    assert many == "The SMs are nearer to their limit: "


def test_an_untuned_rung_is_named_apart_only_beside_its_tuned_form():
    rows = pd.DataFrame({"impl": ["8_folded_offset", "9_shared_x", "9_shared_x (tuned)"]})
    assert list(lesson_04b_causes.labelled(rows)["impl"]) == [
        *("8_folded_offset", "9_shared_x (untuned)", "9_shared_x (tuned)")
    ]
    assert list(lesson_04b_causes.labelled(rows[:2])["impl"]) == ["8_folded_offset", "9_shared_x"]


def test_where_a_rung_s_gain_comes_from_is_said_by_its_counters():
    def row(us, each, used, wait, slots=10.0):
        figures = {
            "median_us": us,
            "q1_us": us,
            "q3_us": us,
            "each": each,
            "issue_active": used,
            "slots": slots,
        }
        figures |= {"stall_long_scoreboard": wait, "stall_barrier": 0.0, "bytes_us": 26.0}
        return pd.Series(figures | {"occupancy_pct": 50.0, "registers": 64.0})

    rungs, one = int4.LADDERS["int4"], row(100.0, 10.0, 0.8, 8.0)

    def cause(now, was=one, two=2):
        return lesson_04b_causes._cause(was, now, two, rungs)

    fits = "fits issue slots as the limit of the rung before"
    assert f"{fits}, though loads are wider" in cause(row(50.0, 5.0, 0.8, 8.0))
    assert f"{fits}." in cause(row(50.0, 5.0, 0.8, 8.0), two=3)
    assert "issue slots" not in cause(row(50.0, 5.0, 0.6, 8.0))
    assert "slots alone did not limit the rung before" in cause(row(100.0, 8.0, 0.6, 12.0))
    assert "did not limit" not in cause(row(100.0, 8.0, 0.6, 12.0), row(100.0, 10.0, 0.6, 8.0))
    assert "do not tell what brings the rest" in cause(row(50.0, 9.0, 0.8, 2.0))
    near = cause(row(50.0, 9.0, 0.8, 2.0, 30.0))
    assert "at least 30 of its 50 µs, the bytes 26: issue slots are a nearer limit than DRAM" in near
    assert "memory is now the nearer limit" in cause(row(90.0, 5.0, 0.5, 8.0))
    assert "slower" in cause(row(120.0, 9.0, 0.5, 8.0)) and "likely" not in cause(row(120.0, 9.0, 0.5, 8.0))
    assert cause(row(100.0, 10.0, 0.8, 8.0)) == ""


def test_operations_overtake_bytes_at_a_number_of_tokens():
    for format in ("int4_g128", "fp16"):
        tokens = lesson_04c_bounds.crossing(format, 4000.0, 800.0)
        least = [
            lesson_04c_bounds.bound_us(1 << 16, 1 << 16, n, format, 4000.0, 800.0)
            for n in (tokens, 2 * tokens)
        ]
        assert least[1] == pytest.approx(2 * least[0], rel=0.01)
        assert lesson_04c_bounds.bound_us(1 << 16, 1 << 16, 1, format, 4000.0, 800.0) > 0.98 * least[0]


def test_the_bounds_of_a_shape_meet_where_its_x_and_y_count_too():
    shape = (8960, 1536)
    at = lesson_04c_bounds.crossing("fp16", 4000.0, 800.0, shape)
    assert at > lesson_04c_bounds.crossing("fp16", 4000.0, 800.0)
    least = [
        [lesson_04c_bounds.bound_us(*shape, batch, format, 4000.0, 800.0) for format in ("fp16", "int4_g128")]
        for batch in (0.99 * at, 1.01 * at)
    ]
    assert least[0][0] > least[0][1] and least[1][0] == least[1][1]
    spans = lesson_04c_bounds.crossings_of("fp16", 4000.0, 800.0, [shape, (1, 8192)])
    assert np.isinf(spans[1]) and lesson_04c_bounds.by_shape(spans) == "", (
        "a row's x: bytes take longer always"
    )
    assert lesson_04c_bounds.by_shape((42.6, 47.4), " on") == "43 to 48 tokens on, by shape"
    assert lesson_04c_bounds.by_shape((42.6, 43.0)) == "43 tokens"


def test_the_explorer_turns_the_ways_cold_by_the_graph_clock(h200):
    rows = h200.store.read("int4")
    cold = rows[(rows["clock"] == "graph") & (rows["cache"] == "cold") & (rows["batch"] == 16)]
    cold = cold[(cold["n"] == MLP[0]) & (cold["k"] == MLP[1])]
    loop = cold[cold["options"] == "loop=1"].iloc[0]
    best = cold[(cold["kind"] == "own") & (cold["impl"] != "1_warp_row")].sort_values("median_us").iloc[0]
    made = lesson_04.explore(h200, h200.run["gpu"], *MLP)
    for name, row in (("decode-roofline's kernel", loop), ("fused, fastest rung", best)):
        told = turned(made, name, "8,960 × 1,536", 16)
        share = study.traffic(studies.get("int4").case(row["case"])) / h200.roof["dram_read"].value / 1e3
        assert f": {row['median_us']:.3g} µs;" in told and told.endswith(f"{row['impl']}.")
        assert f"{share / row['median_us']:.0%} of the read roof" in told


def test_the_explorer_says_so_without_rows(h200, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_04.display, "say", told.append)
    monkeypatch.setattr(lesson_04, "products", lambda here: pd.DataFrame())
    assert lesson_04.explore(h200, "NVIDIA X", *MLP) is None and "NVIDIA X" in told[0]
