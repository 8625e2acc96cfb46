"""What lesson 05 claims of the recorded H200, and that its pages say what the rows say."""

import ctypes

import needs
import numpy as np
import pandas as pd
import pytest
from pages_read import said
from rooflab import claims, ops, simt
from rooflab.analysis import q8_0 as analysis
from rooflab.errors import LaunchError
from rooflab.hardware import device
from rooflab.numerics import gguf, quant, reference
from rooflab.ops import mmq as mmq_ops
from rooflab.ops import q8_0 as q8_ops
from rooflab.pages import lesson_05d_slots, lesson_05e_ridges
from rooflab.paths import ROOT
from rooflab.records.validate import MIN_SAMPLES
from rooflab.studies import mmq, q8_0
from rooflab.view.diagram import mmq_blocks

needs.compiler()


@pytest.fixture(scope="module")
def evidence(h200):
    return analysis.gather(h200)


@pytest.fixture(scope="module")
def decode(h200):
    return h200.measure("q8_0", q8_0.ladder(*q8_0.SHAPES[0])).set_index("impl")


@pytest.fixture(scope="module")
def prompt(h200):
    rows = h200.measure("mmq", mmq.ladder(mmq.PROMPTS[0]))
    return rows[~rows["options"].str.contains("scale_bytes", na=False)].set_index("impl")


@pytest.fixture(scope="module")
def counted(h200):
    own = [c for c in mmq.ladder(mmq.PROMPTS[0]) if c.kind == "own" and "scale_bytes" not in c.options]
    rows = h200.profile("mmq", own, "ncu", mmq.COUNTERS)
    own = mmq.Mmq().recordable(own, rows["case"])  # the others wait for their recording
    assert rows["case"].tolist() == [case.id for case in own]
    return rows.assign(impl=[case.impl for case in own], case=own).set_index("impl")


GOALS = claims.select("05e_tokens", source=claims.COURSE)


def faster(row, other):
    return row["q3_us"] < other["q1_us"]


# --- the claims that coverage.csv points to -----------------------------------------------------------------


def test_a_real_file_s_bytes_are_read_as_the_page_reads_them(tmp_path):
    """M58, Q8_0: the page's GGUF file is what the gguf package writes, of weights quantised here."""
    pytest.importorskip("gguf")
    path = ROOT / "examples" / "blocks.gguf"
    (name,) = read = gguf.read(path)
    weights = (np.random.default_rng(5).standard_normal((4, 64)) * 0.05).astype(np.float32)
    assert np.array_equal(read[name], quant.quantise_q8_0(weights))
    gguf.write(tmp_path / "again.gguf", read)
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()
    shown = said("05_q8_0")
    assert f"`{name}` of 4 rows by 64" in shown and "all 272 bytes are the same" in shown
    assert f"{quant.dequantise_q8(read[name])[0, 0]:.6f}" in shown and "NOT the same" not in shown


def test_activations_are_quantised_to_the_last_bit(h200):
    """M58, Q8_1: every recorded quantiser passed a gate that allows nothing."""
    rows = h200.measure("q8_0", q8_0.quantisers())
    assert set(rows["impl"]) == {rung.name for rung in q8_ops.LADDERS["q8_1"]}
    assert (rows["error"] == 0).all() and (rows["error_budget"] == 0).all()


@pytest.mark.parametrize(("n", "k"), [(256, 256), (1024, 1024), (33, 512)])
def test_the_float_rung_is_right_to_a_thousandth(n, k):
    """M59: the source's shapes and tolerance, 1e-3 absolutely or relatively, no element beyond."""
    rng = np.random.default_rng(20260601 + 31 * n + 7 * k)
    blocks = np.empty((n, k // 32), quant.Q8_0)
    blocks["d"] = rng.uniform(0.01, 0.1, blocks.shape).astype(np.float16)
    blocks["q"] = rng.integers(-127, 128, (n, k // 32, 32))
    x = rng.uniform(-1, 1, (1, k)).astype(np.float16)
    exact = reference.gemm(quant.dequantise_q8(blocks), x)
    with ops.on("cpu"):
        got = q8_ops.matvec(x, q8_ops.Blocks(quant.to_bytes(blocks)), rung="1_float").astype(np.float64)
    assert (np.abs(got - exact) <= np.maximum(1e-3, 1e-3 * np.abs(exact))).all()


def test_dp4a_is_within_two_percent_and_faster_than_floats(h200, decode):
    """M60: on the source's shapes against activations that were never quantised, no outlier allowed."""
    rows = h200.measure("q8_0", q8_0.judged("unquantised"))
    assert {(n, k) for n, k in zip(rows["n"], rows["k"], strict=True)} == {
        (256, 256),
        (1024, 1024),
        (64, 2560),
    }
    assert (rows["error"] <= rows["error_budget"]).all()
    float_rung, dp4a = rows[rows["impl"] == "1_float"], rows[rows["impl"] == "2_dp4a"]
    assert (float_rung["error"].to_numpy() < dp4a["error"].to_numpy() / 5).all(), "what quantising x costs"
    assert faster(decode.loc["2_dp4a"], decode.loc["1_float"]) and decode.loc["2_dp4a", "gb_s"] > 500


def test_each_suggestion_of_the_review_has_its_pair(h200):
    """M61: the scale in one load at three places, and shift and mask; none of them loses anything."""
    found = analysis.review()
    assert [pair.number for pair in found] == ["1, 2", "3", "4", "5"]
    for pair in found:
        before, after = h200.measure(pair.before.study, [pair.before, pair.after]).iloc
        assert after["median_us"] <= 1.02 * before["median_us"], pair.says
        assert (pair.before.operator, pair.before.n, pair.before.k) == (
            pair.after.operator,
            pair.after.n,
            pair.after.k,
        )
        assert pair.says in said("05c_around")


def test_planes_hold_the_same_bytes_and_are_read_at_the_roof(h200, decode):
    """M62: the same traffic, wide loads, and most of what blocks leave of the roof."""
    blocks, planes = decode.loc["3_scale"], decode.loc["4_planes"]
    assert faster(planes, blocks) and planes["roof_fraction"] > 1.5 * blocks["roof_fraction"]
    rows = h200.profile("q8_0", q8_0.counted(), "ncu", q8_0.COUNTERS)
    rows = rows.set_index(rows["case"].str.extract(r"/(\w+) ")[0])
    assert rows.loc["4_planes", "load_efficiency_pct"] > 99 > 60 > rows.loc["3_scale", "load_efficiency_pct"]
    read = rows["dram_read_bytes"].filter(regex="scale|planes") / q8_0.Q8()._bytes(
        q8_0.ladder(*q8_0.SHAPES[0])[2]
    )
    assert read.between(0.99, 1.05).all()


def test_a_graph_replays_the_chain_faster_and_bit_for_bit(h200):
    """M63 and M65: against calls that check, calls that were checked before, and calls that are bare."""
    rows = h200.measure("q8_0", q8_0.chains())
    graph = rows[rows["clock"] == "graph"].iloc[0]
    eager = rows[rows["clock"] == "wall"]
    assert len(eager) == 3 and all(faster(graph, row) for _, row in eager.iterrows())
    bits = rows[(rows["clock"] == "graph") | rows["options"].str.contains("bare=1")]
    assert len(bits) == 3 and (bits["error"] == 0).all() and (bits["error_budget"] == 0).all()
    assert "All ways give the same bits" in said("05c_around")


def test_a_capture_that_makes_a_buffer_fails_or_worse(h200):
    """M64: refused at capture, silently wrong at replay, and right with a buffer made before."""
    found = h200.profile("q8_0", q8_0.captures(), "gate").set_index("case")
    whens = [str(found.loc[case.id, "when"]) for case in q8_0.captures()]
    assert whens == ["", "at capture", "at replay"]
    assert "not permitted when stream is capturing" in found.loc[q8_0.captures()[1].id, "sentence"]
    assert "wrote over" in said("05c_around") and "A warm-up call hides this fault" in said("05c_around")


def test_a_prompt_s_rows_come_by_one_launch(h200):
    """M66: exact, and a hundred times faster even where launches are replayed."""
    rows = h200.measure("q8_0", q8_0.embeddings()).set_index(["impl", "clock"])
    assert (rows["error"] == 0).all() and (rows["error_budget"] == 0).all()
    for clock in ("graph", "wall"):
        assert rows.loc[("1_token", clock), "q1_us"] > 100 * rows.loc[("2_batched", clock), "q3_us"]
    assert f"{2 * q8_0.PROMPT:,}" in said("05c_around")


def test_the_baseline_s_time_holds_the_dequantising(h200, prompt):
    """M67: its time is more than the product's alone by about what dequantising takes."""
    whole, alone = prompt.loc[mmq.BASELINE, "median_us"], prompt.loc["torch.matmul", "median_us"]
    apart = [c for c in q8_0.dequantisers() if c.impl == q8_ops.DEFAULT["dequantise"] and c.n == 8192]
    extra = h200.measure("q8_0", apart)["median_us"].iloc[0]
    assert 0.7 * extra < whole - alone < 1.3 * extra


def test_one_product_beats_a_stream_of_matvecs(h200):
    """M68"""
    mv, fp32, tf32 = h200.measure("q8_0", q8_0.side_path())["median_us"]
    assert mv > 10 * fp32 > 10 * tf32 / 2
    assert f"{mv / tf32:.0f} times as fast in TF32" in said("05c_around")


def test_the_fragment_is_the_one_that_the_page_shows():
    """M69: random bytes through the mma land in the lane and register of the page's table, exact."""
    source = """
    #include "common/ptx/mma.cuh"
    extern "C" __global__ void once(const unsigned* a, const unsigned* b, int* out) {
        int d[4] = {0, 0, 0, 0};
        mma_m16n8k32_s8(d, a + 4 * threadIdx.x, b + 2 * threadIdx.x);
        for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = d[i];
    }
    """
    rng = np.random.default_rng(7)
    rows, tokens = rng.integers(-128, 128, (16, 32)), rng.integers(-128, 128, (8, 32))
    a, b = np.empty((32, 4, 4), np.int8), np.empty((32, 2, 4), np.int8)
    for lane in range(32):
        group, place = lane // 4, lane % 4 * 4
        for i in range(4):
            a[lane, i] = rows[group + i % 2 * 8, place + i // 2 * 16 :][:4]
        for i in range(2):
            b[lane, i] = tokens[group, place + 16 * i :][:4]
    out = np.empty(128, np.int32)
    simt.run(source, 1, 32, [a.view(np.uint32).reshape(-1), b.view(np.uint32).reshape(-1), out], entry="once")
    for row in range(16):
        for token in range(8):
            lane, register = row % 8 * 4 + token // 2, row // 8 * 2 + token % 2
            assert out[4 * lane + register] == rows[row] @ tokens[token]
    mine = [(e // 2 * 8 + 5 // 4, 5 % 4 * 2 + e % 2) for e in range(4)]  # what the page says of lane 5
    assert "lane 5 holds " + ", ".join(f"{at} in d[{e}]" for e, at in enumerate(mine)) in said("05d_mmq")


def test_a_rungs_time_is_divided_as_its_slots_were_counted(prompt, counted):
    """What the page says of scaling's share of the first and of the last exact rung's time."""
    first, last = (counted.loc[name] for name in ("1_tile", "6_wgmma"))
    shares = [mmq.scaling(row["case"]) / row["inst_executed"] * row["issue_active"] for row in (first, last)]
    says = f"Scaling is {shares[0]:.0%} of 1_tile's time and {shares[1]:.0%} of 6_wgmma's."
    assert says in said("05d_mmq")


def test_the_first_tile_is_gated_and_slow(prompt):
    """M70"""
    row = prompt.loc["1_tile"]
    assert row["error"] <= row["error_budget"] and row["samples"] >= MIN_SAMPLES
    assert faster(prompt.loc[mmq.BASELINE], row) and row["tflop_s"] > 20


def test_prefetching_gains_a_quarter_and_more(prompt):
    """M71"""
    one, two = prompt.loc["1_tile"], prompt.loc["2_prefetch"]
    assert two["q3_us"] < 0.8 * one["q1_us"]


def test_a_wider_tile_reads_the_weights_half_as_often(prompt, counted):
    """M72: predicted from the tile's shape, counted, and worth it."""
    narrow, wide = counted.loc["2_prefetch"], counted.loc["3_wide"]
    assert mmq.reads(narrow["case"])[0] == 2 * mmq.reads(wide["case"])[0]
    saved = mmq.reads(narrow["case"])[2] - mmq.reads(wide["case"])[2]
    assert narrow["sm_read_bytes"] - wide["sm_read_bytes"] == pytest.approx(saved, rel=0.1)
    assert faster(prompt.loc["3_wide"], prompt.loc["2_prefetch"])
    for impl, row in counted.iterrows():  # what comes by copies is counted exactly
        within = 0.15 if impl in ("1_tile", "2_prefetch", "3_wide") else 0.01
        assert row["sm_read_bytes"] == pytest.approx(mmq.reads(row["case"])[2], rel=within), impl


def test_cp_async_cannot_copy_from_blocks():
    """M73: the quants of a block start at a multiple of 2, those of a plane at one of 32."""
    source = """
    #include "common/ptx/cp_async.cuh"
    extern "C" __global__ void copied(const unsigned char* w, int* out, int start, int bytes) {
        __shared__ __align__(16) int words[32];
        copy_async_4(words + threadIdx.x, w + start + bytes * (threadIdx.x / 8) + threadIdx.x % 8 * 4);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        out[threadIdx.x] = words[threadIdx.x];
    }
    """
    out = np.empty(32, np.int32)
    given = [np.arange(160, dtype=np.uint8), out]
    blocks = simt.watch(source, 1, 32, [*given, ctypes.c_int(2), ctypes.c_int(34)], entry="copied")
    assert any("misaligned" in str(fault) for fault in blocks.faults)
    planes = simt.watch(source, 1, 32, [*given, ctypes.c_int(0), ctypes.c_int(32)], entry="copied")
    assert planes.faults == [] and np.array_equal(out.view(np.uint8), np.arange(128))
    assert all("copy_async" not in r.path.read_text() for r in mmq_ops.LADDERS["mmq"][:3])
    assert "copy_async" in mmq_ops.LADDERS["mmq"][3].path.read_text()


def test_the_sweep_has_its_contenders_at_every_number_of_tokens(evidence):
    """M74: the exact product beside dequantising at every count, and a page that says who wins where."""
    rows = analysis.prompts(evidence)
    for n, k in mmq.SHAPES:
        square = (n, k) == mmq.SHAPES[0]
        for batch in mmq.TOKENS if square else mmq.FEW:
            found = set(analysis.at(rows, n, k, batch).index)
            assert {mmq.BASELINE, "torch.matmul"} <= found
            assert any(mmq.operations_of(impl) for impl in found if impl[0].isdigit() or "/" in impl)
    shown = said("05e_tokens")
    assert "dp4a at 1 to" in shown and "dequantising" in shown and "316 ms" in shown


def test_exact_rates_stand_beside_the_measured_peak_cold(h200, prompt):
    """M75: int8 without scales is the roof; every share is below it, and the matrix is cold."""
    peak = h200.roof["int8_tensor"].value
    own = prompt[prompt["roof"] == "int8_tensor"]
    exact = own[own["kind"] == "own"]
    assert len(exact) >= 6 and (exact["cache"] == "cold").all()
    assert exact["roof_fraction"].to_numpy() == pytest.approx(exact["tflop_s"] / peak, rel=1e-3)
    assert exact["roof_fraction"].max() < prompt.loc["torch._int_mm", "roof_fraction"] <= 1.02


def test_every_rung_is_within_two_percent_and_to_the_last_bit(h200):
    """M76: the source's four shapes; with scales that are powers of two only the output is rounded."""
    for how in ("unquantised", "exact"):
        rows = h200.measure("mmq", mmq.judged(how))
        assert set(zip(rows["n"], rows["k"], rows["batch"], strict=True)) == set(mmq.JUDGED)
        assert {rung.name for rung in mmq_ops.LADDERS["mmq"] if mmq.operations_of(rung.name)} <= set(
            rows["impl"]
        )
        assert (rows["error"] <= rows["error_budget"]).all()
        assert ((rows["error_budget"] == 0) == (how == "exact")).all()


def test_sizes_are_looked_at_before_they_are_cast():
    """M77: at 2^31 - 1 a size fits, at 2^31 it is refused, by a sentence that the page shows."""
    q8_ops.check_sizes(1, 32, 2**26 - 1, 32, "A product")
    with pytest.raises(LaunchError, match=r"2147483648, beyond 1 to 2147483647") as refused:
        q8_ops.check_sizes(1, 32768, 65536, 32, "A product")
    assert str(refused.value) in said("05c_around") and "-2,147,483,648" in said("05c_around")
    with pytest.raises(LaunchError, match="k = 96 must be a power of two"):
        q8_ops.dequantise(q8_ops.Blocks(np.zeros((2, 102), np.uint8)), rung="3_shift", target="cpu")


# --- beyond -------------------------------------------------------------------------------------------------


def test_every_timed_rung_is_gated_and_unspilled(h200):
    for study in ("q8_0", "mmq"):
        rows = h200.measure(study, h200.cases(study))
        own = rows[rows["kind"] == "own"]
        assert (own["error"] <= own["error_budget"]).all() and (own["spill_bytes"] == 0).all()
        assert (rows["q1_us"] <= rows["median_us"]).all() and (rows["median_us"] <= rows["q3_us"]).all()


def test_decode_s_floors_and_aims_are_reached(evidence):
    """The issue's figures for one token and for eight, by the rules that the page shows."""
    board = claims.board(GOALS, evidence).set_index("id")
    assert (board.loc[["F1", "F2", "A1", "A2"], "word"] == claims.HOLDS).all()
    assert board.loc["F5", "word"] == claims.HOLDS, analysis.behind(evidence, mmq.BASELINE, 9, 256)


def test_the_page_s_verdicts_are_those_of_the_rules(evidence):
    shown = said("05e_tokens")
    words = {claims.HOLDS: "reached", claims.SHORT: "missed"}
    for _, goal, test in claims.shown(GOALS):
        found = claims.judge(test, evidence)
        what = f"<td>{goal.says}: {test.quantity}</td>"
        row = next(part for part in shown.split("<tr>") if what in part and test.bars()[2:] in part)
        assert found.measured in row and words.get(found.word, found.word) in row


def test_a_goal_without_its_rows_is_not_judged(evidence):
    nothing = claims.Evidence(evidence.store, {name: evidence.rows(name)[:0] for name in ("q8_0", "mmq")})
    assert set(claims.board(GOALS, nothing)["word"]) == {claims.UNRECORDED}
    rows = evidence.rows("mmq")
    without = claims.Evidence(evidence.store, {"mmq": rows[rows["impl"] != mmq.BASELINE]})
    assert claims.verdict(claims.get("05-F5"), without).word == claims.UNRECORDED


def test_a_slower_choice_counts_as_a_point_lost(evidence):
    rows = evidence.rows("mmq").copy()
    pick = analysis.chosen(evidence, 8192, 8192, 64).name
    at = (rows["n"] == 8192) & (rows["batch"] == 64) & (rows["impl"] == pick)
    rows.loc[at, ["q1_us", "median_us", "q3_us"]] = 1e6
    lost = analysis.behind(claims.Evidence(evidence.store, {"mmq": rows}), mmq.BASELINE, 9, 256)
    assert (8192, 8192, 64) in lost
    assert (8192, 8192, 64) not in analysis.behind(evidence, mmq.BASELINE, 9, 256)


def test_scaling_takes_the_slots_that_were_derived(counted):
    """No rung issues fewer instructions than scaling alone takes, and the exact rungs mostly scale."""
    exact = counted[[mmq.operations_of(impl) is not None for impl in counted.index]]
    scaling = pd.Series({impl: mmq.scaling(row["case"]) for impl, row in exact.iterrows()})
    share = scaling / exact["inst_executed"]
    assert share.between(0.2, 1).all() and share.max() > 0.5


def test_shares_of_counted_cycles_are_told_from_shares_of_the_datasheet(h200):
    """The page says that counted cycles are fewer than the datasheet's clock has, and only where they are."""
    row = pd.Series({"inst_executed": 528e6, "issue_active": 0.5, "time_ns": 1e6, "scaled": 0.4})
    assert "2.00 a nanosecond" not in lesson_05d_slots._clock_counted(row, h200, "x")
    assert "1.00 a nanosecond" in lesson_05d_slots._clock_counted(row.replace(1e6, 2e6), h200, "x")
    assert "counters see only cycles of SMs with work" in said("05d_mmq")


def test_two_instructions_by_mma_are_said_with_what_they_change():
    h200, t4 = device.get("h200"), device.get("t4")
    assert "stays as it is" in lesson_05d_slots.two_change([h200])
    assert lesson_05d_slots.two_change([h200, t4]).startswith("Then int8 could pay in full on the T4;"), (
        "2.0 fit"
    )


def test_the_first_screen_says_what_a_chip_can_start_and_what_follows():
    h200, t4 = device.get("h200"), device.get("t4")
    three, two = lesson_05d_slots.room_on(t4, 3), lesson_05d_slots.room_on(h200, 2)
    assert (
        "RTX 4090 can start 4, so by issue slots alone int8 could pay in full; the H200 can start only 1, so "
        "FP16 is faster;" in three
    )
    assert three.endswith("; the T4 can start only 2, so int8 gains nothing over FP16."), "by conversions"
    assert two.endswith("; the H200 can start only 1, so int8 gains nothing over FP16."), (
        "its bound is FP16's"
    )


def test_rung_8_divides_what_is_left_over_before_whole_tiles():
    """As the page and its drawing say."""
    for block in range(4):
        taken = mmq_blocks.pieces(block, 4, 6, 4, 4)
        assert [piece.tile >= 4 for piece in taken] == sorted(
            (piece.tile >= 4 for piece in taken), reverse=True
        )
    assert "It does them first" in said("05d_mmq")


def test_a_lead_that_ends_at_the_ridge_is_no_missed_prediction(h200, monkeypatch):
    """The tokens measured lie apart: one a few percent beyond the ridge counts as at it."""
    told, shape = [], mmq.SHAPES[0]
    monkeypatch.setattr(lesson_05e_ridges.display, "say", told.append)
    made = [
        (*shape, tokens, way, 20.0 if way == lesson_05e_ridges.WAYS[4] and tokens <= 160 else 10.0)
        for tokens in (1, 32, 96, 160, 192, 512)
        for way in lesson_05e_ridges.WAYS
    ]
    fastest = pd.DataFrame(made, columns=["n", "k", "batch", "way", "median_us"])
    for upper, missed in ((157.0, False), (130.0, True)):
        lesson_05e_ridges.against_prediction(h200, fastest, shape, (upper / 2, upper))
        assert ("missed beyond" in told.pop()) is missed
