"""What lesson 06 claims of the recorded H200, and that its pages say what the rows say."""

import re

import nbformat
import numpy as np
import pandas as pd
import pytest
from pages_read import said
from rooflab.analysis import attention as analysis
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.ops import attention as op
from rooflab.pages import (
    lesson_06,
    lesson_06_limits,
    lesson_06b_occupancy,
    lesson_06b_pace,
    lesson_06b_peers,
    lesson_06b_rungs,
    lesson_06c,
    lesson_06c_faults,
    lesson_06c_limits,
    lesson_06c_rounding,
    lesson_06c_shapes,
)
from rooflab.pages.lesson_06e import LOADS, STEPS
from rooflab.paths import DATA, NOTEBOOKS
from rooflab.records.case import Case
from rooflab.runtime import nvrtc
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.view import models
from rooflab.view.diagram import two_warps
from rooflab.words import listed, times

# A rung newer than the recording has no answers there yet.
_HELD = (DATA / "h200" / "attention.csv").read_text()
OWN = [rung.name for rung in op.LADDERS["attention"] if f"attention/{rung.name} " in _HELD]


@pytest.fixture(scope="module")
def rows(h200):
    return h200.measure("attention", h200.cases("attention"))


@pytest.fixture(scope="module")
def ladder(h200):
    found = h200.measure("attention", study.ladder(128, device=h200.sized))
    names = (found["impl"] + " " + found["options"].fillna("")).str.strip()
    return found.set_index(names)


@pytest.fixture(scope="module")
def counted(h200):
    cases = [c for c in [*study.ladder(128), *study.gemma()] if c.kind == "own"]
    return analysis.counted(h200.profile("attention", cases, "ncu", study.COUNTERS), cases)


def answers(h200, question):
    cases = [case for case in asks.cases(h200.sized) if case.operator == question]
    return analysis.answers(h200.profile("attention", cases, "checks"), cases)


# --- the claims that coverage.csv points to -----------------------------------------------------------------


def test_a_block_for_every_query_reads_what_was_predicted_again_and_again(ladder, counted):
    """M78: the scalar kernel, gated; its re-reads predicted, and counted with what L1 spares it."""
    assert ladder.loc["1_scalar", "error"] <= ladder.loc["1_scalar", "error_budget"]
    case = study._case("1_scalar", 1848, 256, (8, 2), window=512)
    assert 400 < analysis.requested_bytes(case) / (2 * 1848 * 8 * 256 * 2) < 512  # the source: up to 512
    for row in counted[counted["impl"] == "1_scalar"].itertuples():
        assert 0.2 < row.sm_read_bytes / row.asked < 1.1 and row.sm_read_bytes > 50 * row.once
    tiled = counted[counted["impl"] == "2_tiled"]
    assert (tiled["sm_read_bytes"] / tiled["asked"]).between(0.8, 1.15).all()


def test_no_buffer_grows_with_the_square_of_the_prompt(h200):
    """M79: a rung takes its output and nothing else; torch's math backend takes the scores."""
    memory = answers(h200, "memory")
    own = memory[memory["impl"].isin(OWN)].sort_values("seq")
    assert len(own) == len(asks.MEMORY)
    output = 2 * own["seq"] * study.HEADS * 128
    assert (own["bytes"] <= 1.01 * output + 4096).all()
    math = memory[memory["impl"] == "torch.sdpa_math"].sort_values("seq")
    assert (math["bytes"] > math["scores bytes"]).all()
    assert math["bytes"].iloc[-1] / math["bytes"].iloc[-2] == pytest.approx(4, rel=0.1)
    assert "needs nothing beside its output" in said("06c_trust.ipynb")


def test_sixteen_queries_a_block_win_little_over_eight(ladder):
    """M80: half the reads, and a few percent of the time."""
    eight, sixteen = (ladder.loc[f"2_tiled queries={q}"] for q in (8, 16))
    reads = [analysis.requested_bytes(Case.from_row(row)) for row in (eight, sixteen)]
    assert reads[0] / reads[1] == pytest.approx(2, rel=0.01)
    assert sixteen["q3_us"] < eight["q1_us"] < 1.2 * sixteen["q1_us"]


def test_packed_halves_are_faster_coarser_and_free_of_conflicts(ladder, counted):
    """M81: fp16x2 scores with FP32 values; pairs a lane, so no bank is asked twice."""
    half, full = ladder.loc["3_half2"], ladder.loc["2_tiled queries=16"]
    assert half["q3_us"] < full["q1_us"] and half["error"] > 3 * full["error"]
    assert half["error"] <= half["error_budget"]
    named = counted[(counted["head_dim"] == 128)].drop_duplicates("impl", keep="last").set_index("impl")
    assert named.loc["3_half2", "shared_load_conflicts"] < 0.01 * named.loc["4_mma", "shared_load_conflicts"]
    assert named.loc["5_padded", "shared_load_conflicts"] < 0.01 * named.loc["4_mma", "shared_load_conflicts"]


def test_tensor_cores_do_heads_256_and_512_wide(h200, rows):
    """M82: the source's open end, on portable and on Hopper's rungs, past torch at 512."""
    for width, least in ((256, 200), (512, 150)):
        own = rows[(rows["operator"] == "attention") & (rows["head_dim"] == width) & (rows["kind"] == "own")]
        portable = own[~own["impl"].isin(op.HOPPER) & (own["seq"] == 16384) & (own["heads"] == 32)]
        assert portable["tflop_s"].max() > least
        assert (own["spill_bytes"] == 0).all() and (own["error"] <= own["error_budget"]).all()
        peers = rows[rows["impl"].str.startswith("torch.") & rows["head_dim"].eq(width)]
    assert own["tflop_s"].max() > peers["tflop_s"].max()


def test_the_source_s_five_configurations_pass(h200):
    """M83: GQA, causal, window, 128 to 512 wide, partial tiles, by every rung that does the width."""
    found = answers(h200, "tolerance")
    five = found.groupby("config", sort=False).ngroup() < len(asks.SOURCE)
    own = found[five & found["impl"].isin(OWN)]
    assert set(own["impl"]) == set(OWN)
    assert (own["worst_rms"] <= asks.TOLERANCES["tensor cores"]).all()


def test_chunks_few_queries_odd_widths_and_nan(h200):
    """M84: positions above 0, 1 and 7 queries, 48, 80 and 112 wide; no NaN is hidden, nothing is invented."""
    found = answers(h200, "tolerance")
    later = found[found.groupby("config", sort=False).ngroup() >= len(asks.SOURCE)]
    assert set(later["head_dim"]) >= {48, 80, 112} and set(later["seq"]) >= {1, 7, 17}
    assert (later[later["impl"].isin(OWN)]["worst_rms"] <= asks.TOLERANCES["tensor cores"]).all()
    edges = answers(h200, "edges").set_index("impl").loc[OWN]
    none = ["blind not zero", "NaN in k lost", "NaN in v lost", "NaN in k spread", "other bits"]
    assert (edges[none] == 0).all(axis=None)
    assert edges["loudest score"].min() > 89  # beyond what exp holds in FP32


def test_the_tolerances_are_a_ladder(h200):
    """M85: outputs in FP16 cost more than the first allowance by rounding alone; FP16 sums the most."""
    found = answers(h200, "tolerance")
    assert found["rounding"].max() > asks.TOLERANCES["FP32 scores"]
    worst = found.groupby("impl")["worst_rms"].max()
    assert worst[OWN].idxmax() == "3_half2" and worst["3_half2"] > asks.TOLERANCES["FP16 keys"]
    rest = worst[[name for name in worst.index if name != "3_half2"]]
    assert (rest <= asks.TOLERANCES["FP16 keys"]).all() and rest.max() <= 1.3 * found["rounding"].max()
    assert "rounding to FP16 alone moves an output" in said("06c_trust.ipynb")


def test_index_arithmetic_hardly_matters_and_is_guarded(h200):
    """M86: A/B of dividing and of shifting, and the refusal where no shift will do."""
    from rooflab import ops
    from rooflab.errors import LaunchError

    found = h200.measure("attention", study.indexing())
    assert (found["error"] <= found["error_budget"]).all()
    power = found[found["head_dim"] == 128]["median_us"]
    assert len(power) == 3 and power.max() < 1.1 * power.min()
    x = np.zeros((4, 1, 80), np.float16)
    with ops.on("cpu"), pytest.raises(LaunchError, match="must be a power of two, not 80"):
        op.attention(x, x.copy(), x.copy(), rung="2_tiled", INDEX=2)


def test_memory_was_never_the_limit_and_shared_memory_and_arithmetic_are(counted, h200):
    """M87: DRAM is idle in every rung; the point under the roofs is what the page draws."""
    assert (counted["dram_pct"] < 15).all()
    wide = counted[counted["head_dim"] == 128].drop_duplicates("impl", keep="last").set_index("impl")
    assert wide.loc["4_mma", "busiest"] == "shared memory" and wide.loc["4_mma", "busiest_pct"] > 80
    assert wide.loc["7_mma_32_rows", "tensor_pct"] > 3 * wide.loc["4_mma", "tensor_pct"]
    rate = wide["flops"] / wide["time_ns"] / 1e3
    assert h200.spec.fp32 / rate["1_scalar"] < analysis.FROM_PEAK
    assert "DRAM is never busy for more than" in said("06_attention.ipynb")


def test_the_budget_of_an_sm_is_registers_and_shared_memory(rows):
    """M88: 48 KB a block as the source gave, against what larger tiles take and reach."""
    budget = analysis.budgets(rows, (256, 512))
    for width, group in budget.groupby("head_dim"):
        named = group.set_index("impl")
        lean = named.loc["2_tiled"]
        assert lean["shared"] == 48 * 1024 and lean["blocks"] >= 1
        fast = named["tflop_s"].idxmax()
        assert named.loc[fast, "occupancy"] < lean["occupancy"] and width in (256, 512)
        assert named.loc[fast, "tflop_s"] > 10 * lean["tflop_s"]
    for row in budget.itertuples():
        assert row.blocks == roofline.residency(row.registers, row.threads, row.shared)
    assert "Occupancy is not the goal" in said("06b_wide.ipynb")


# --- beyond -------------------------------------------------------------------------------------------------


def test_every_timed_rung_is_gated(rows):
    own = rows[rows["kind"] == "own"]
    assert (own["error"] <= own["error_budget"]).all() and (own["spill_bytes"] == 0).all()
    assert (rows["q1_us"] <= rows["median_us"]).all() and (rows["median_us"] <= rows["q3_us"]).all()
    peers = set(rows[rows["kind"] == "peer"]["impl"])
    assert peers >= {*study.BACKENDS, "torch.flex_attention"}


def test_a_decoder_says_the_same_words(h200):
    words = answers(h200, "words")
    assert set(OWN) <= set(words["impl"])
    assert (words["changed though apart"] == 0).all()
    own = words[words["impl"].isin(OWN)]
    assert (own["changed"] <= 0.02 * own["words"]).all()
    assert (own["largest move"] < 0.05 * own["spread of logits"]).all()


def test_one_capture_serves_every_length(h200):
    replay = answers(h200, "replay").set_index("impl")
    rungs = [rung.name for rung in op.LADDERS["decode_attention"]]
    assert list(replay.index) == rungs[: len(replay)] and op.decode_default(128, 4) in replay.index
    assert (replay["other bits"] == 0).all()
    errors = replay[[f"error {n}" for n in asks.REPLAYED]]
    assert (errors < 2.0**-10).all(axis=None)


def test_the_decode_ladder_climbs_to_the_read_roof(h200):
    found = h200.measure("attention", study.decode(32768)).set_index("impl")
    own = found[found["kind"] == "own"]["median_us"]
    assert own.is_monotonic_decreasing and own.iloc[0] > 20 * own.iloc[-1]
    assert found.loc[own.idxmin(), "roof_fraction"] > 0.7
    assert found.loc[own.idxmin(), "bytes"] == roofline.attention_bytes(1, 32768, 32, 8, 128)


def test_a_prompt_s_time_moves_from_attention_to_the_matrices(rows, h200):
    roofs = (h200.roof["dram_read"].value, h200.roof["fp16_tensor"].value)
    whole = analysis.prompts(rows, study.PROMPTS, *roofs).set_index(["model", "seq"])
    there = whole.loc[("gemma-4-e4b", 1848)]
    assert there["share_before"] == pytest.approx(analysis.SHARE, abs=0.15)
    assert (whole["share_after"] < 0.6 * whole["share_before"]).all()
    model = model_shapes.get("qwen2.5-1.5b")
    least = 2 * model_shapes.body(model) * 4096 / roofs[1] / 1e6
    assert 0.95 * least < 1e3 * whole.loc[("qwen2.5-1.5b", 4096), "matrices_ms"] < 1.3 * least
    shown = said("06d_decode.ipynb")
    assert f"{there['share_before']:.0%}" in shown and f"Its words say {analysis.SHARE:.0%};" in shown


def test_the_source_s_own_share_is_near_what_it_says():
    shares = analysis.source_share()
    assert shares["share"].iloc[0] == pytest.approx(analysis.SHARE, abs=0.05)
    assert shares["attention_ms"].is_monotonic_decreasing


def test_every_rung_s_prediction_gets_its_verdict(ladder):
    page = said("06_attention.ipynb")
    for name in OWN[:7]:
        line = next(line for line in page.splitlines() if f"`{name}`, **predicted**:" in line)
        found = re.findall(r"(?:least |about |\*\*: )([\d,]+) µs", line)
        least, us = (float(text.replace(",", "")) for text in found)
        assert us == pytest.approx(ladder.loc[ladder["impl"] == name, "median_us"].min(), abs=0.5)
        assert f"{times(us / least)} times" in line.partition("**Verdict**")[2], line
    assert page.count("**Verdict**") == 7 + 2  # and on the datasheet's bounds and on DRAM


def test_the_reads_of_a_key_are_derived(h200):
    case = next(c for c in study.ladder(128, device=h200.sized) if c.impl == "1_scalar")
    shape = study.shape_of(case)
    times = analysis.requested_bytes(case) / (2 * shape.context * shape.kv_heads * shape.head_dim * 2)
    share, seen = study.HEADS // study.KV_HEADS, (shape.context + 1) / 2
    assert times == pytest.approx(share * seen, rel=1e-3)
    assert f"{times:,.0f} times: for {share} query heads × {seen:,.1f} queries" in said("06_attention.ipynb")


def test_the_page_explains_the_names_that_its_kernels_share():
    cells = nbformat.read(NOTEBOOKS / "06_attention.ipynb", as_version=4).cells
    (table,) = (c.source for c in cells if c.source.startswith("The kernels of this page share"))
    shared = nvrtc.headers_of(op.LADDERS["attention"][0].path.read_text())["common/attention.cuh"]
    declared = set(re.findall(r"(?:typedef \w+ |#define |struct |__device__ inline \w+ )(\w+)", shared))
    code = "\n".join(re.findall(r"```cuda\n(.*?)\n```", said("06_attention.ipynb"), re.DOTALL))
    used = {
        name for name in declared if re.search(rf"\b{name}\b(?!\[)", code)
    }  # rung 1 has an array warp_max
    assert used >= {"Element", "NOTHING", "Seen", "seen_from", "inverse", "rounded_pair"}
    for name in [*used, "start", "context", "window"]:
        assert re.search(rf"`{name}\b", table), f"{name} is not explained"


def test_06c_names_who_errs_by_more_than_rounding_costs(h200):
    found = answers(h200, "tolerance")
    over, page = lesson_06c_shapes.over_rounding(found), said("06c_trust.ipynb")
    rest = over.drop("3_half2")
    assert rest.max() < 2 and f"**All kernels but 3_half2 err by at most {rest.max():.2f} times" in page
    worse = found.assign(worst_rms=found["worst_rms"] * found["impl"].eq("4_mma").map({True: 9, False: 1}))
    worse_over = lesson_06c_shapes.over_rounding(worse).drop("3_half2")
    assert f"at most {worse_over.max():.2f} times" in lesson_06c_shapes._off_by(worse_over)
    table, *_ = lesson_06c_shapes._allowed(worse, OWN)
    assert "3_half2 and 4_mma" in set(table["out"])
    assert lesson_06c_shapes._allowed(found, OWN)[0]["out"].iloc[-1] == "none"
    assert "**Verdict on the estimates**: they hold" in page


def test_06c_shows_where_fp16_sums_are_declared_and_names_those_that_are_out():
    page = said("06c_trust.ipynb")
    assert "__hfma2(query[e]" in page and '== ("attention", "3_half2")' in page
    assert "add up in FP16" in page.partition("3_half2.cu says")[2][:80]
    assert lesson_06c_limits.all_but([], "abc") == "all kernels"
    assert lesson_06c_limits.all_but(["a"], "abc") == "all kernels but a"
    assert lesson_06c_limits.all_but(["a", "b"], "abc") == "1 of 3 kernels"
    assert lesson_06c_limits.all_but("abc", "abc") == "no kernels"


def test_06c_explains_how_far_a_nan_spreads(h200):
    edges = answers(h200, "edges").set_index("impl")
    spread = edges.loc[edges["NaN in v spread"] > 0, "NaN in v spread"]
    told = lesson_06c._how_far(spread)
    assert told.startswith("11_tma and torch.sdpa_math spread") and "all 140 earlier queries" in told
    assert re.search(r"rungs 4 to 10, 12 to (17|20)\) that is key 128: 12 of the 140 earlier queries", told)
    assert "earlier" not in lesson_06c._how_far(spread * 0.8), "a share that tiles do not explain"


def test_the_gate_s_limit_tells_right_kernels_from_the_planted_faults(h200):
    rows = lesson_06c_limits.beside_torch(h200, 4096).set_index("impl")
    share = rows["error"] / rows["error_budget"]
    page = said("06c_trust.ipynb")
    assert share["3_half2"] <= 1 and f"3_half2 errs by {1e3 * rows['error']['3_half2']:.1f} ‰" in page
    assert f"does so errs by {1e3 * rows['error_budget']['3_half2'] / 2:.1f} ‰" in page
    assert (share.dropna() <= 1).all() and "all kernels keep the limit of their declared roundings" in page
    faults = lesson_06c_faults.errors().set_index("fault")
    assert faults.loc[lesson_06c_faults.RIGHT, "gate"] < 0.7 and (faults["gate"].iloc[1:] > 1).all()
    assert (faults["gate_sums"].iloc[1:] > 1).all() and (faults["gate_sums"] <= faults["gate"]).all()
    worse = lesson_06c_limits._by_limit(rows.assign(error=2 * rows["error_budget"]).reset_index())
    assert worse.startswith("**Verdict by the gate**: no kernels keep") and "wrong: 1_scalar" in worse


def test_rungs_and_faults_are_set_beside_one_limit_on_the_same_shapes(h200, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_06c_faults.display, "say", told.append)
    found = answers(h200, "tolerance")
    assert set(lesson_06c_faults.by_shape()["config"]) == set(found["config"])
    lesson_06c_faults.nearness()
    faults = lesson_06c_faults.by_shape()
    least = faults[faults["fault"] == "bits"]["gate"]
    assert (least > 1).all() and f"on {len(least)} of {len(least)} shapes" in told[0]
    assert f"{least.min():.1f} to {least.max():.1f} times the limit" in told[0] and "hides faults" in told[0]


def test_one_sum_of_06c_leaves_an_error():
    assert "this one is off by -0.000488" in lesson_06c_rounding._one_sum(), "the roundings do not cancel"


def test_06c_says_how_an_error_of_a_score_counts_and_what_a_simulation_tells():
    page = said("06c_trust.ipynb")
    assert "by e^0.0055 = 1.0055, so the weight is off by 5.5 thousandths" in page
    assert "consistent with the roundings that they declare" in page
    rows = pd.DataFrame({"impl": ["4_mma", "3_half2"], "error": [2e-3, 4e-3], "simulated": [1e-3, 4e-3]})
    assert lesson_06c_limits._simulated(rows).endswith("unexplained: 4_mma.")
    assert "none is recorded" in lesson_06c_limits._simulated(rows.iloc[:0])


def test_06c_leads_with_the_words_that_change_and_the_move(h200, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_06c.display, "say", told.append)
    words = lesson_06c.words_changed(lambda question: answers(h200, question), OWN)
    lesson_06c.words_changed_explained(words)
    lesson_06c.words_changed_explained(words.assign(changed=0.0))
    lesson_06c.words_changed_explained(words.assign(**{"changed": 1.0, "changed though apart": 1.0}))
    assert "10_paired_warpgroups changes 1 and 12_warp_specialised changes 1, the other" in told[0]
    assert "ran in another decoder" in told[0] and "whether kernel or decoder" in told[0]
    assert "no kernel changes any; logits move by at most 0.0040" in told[1]
    assert "except by a NaN: 1_scalar" in told[2] and "the other" not in told[2]


def test_06b_says_what_its_counters_cannot_tell():
    page = said("06b_wide.ipynb")
    assert "these counters cannot tell" in page.partition("**Verdict**")[2]
    row = {"impl": "13_mbarrier_ring", "busiest_pct": 50.0, "tensor_pct": 50.0}
    slow = {"impl": "8_head_dim_slices", "busiest_pct": 70.0, "tensor_pct": 20.0}
    named = lesson_06b_occupancy._answer([row], [(slow, row)])
    assert named.startswith("the fastest rung keeps") and "50% instead of 20%" in named
    assert named.endswith("for what the list names.")
    assert lesson_06b_occupancy._answer([slow], [(row, slow)]) == "Each is limited by its busiest unit."


def test_06e_says_how_many_of_its_steps_have_the_idea_of_a_rung(h200):
    page = said("06e_build.ipynb")
    assert (
        len(STEPS) == 3
        and "Steps b, c and e have the ideas of part 06's 1_scalar, 2_tiled and 5_padded" in page
    )


def test_06e_draws_as_many_loads_of_a_key_as_its_solutions_make():
    cells = nbformat.read(NOTEBOOKS / "06e_build.ipynb", as_version=4).cells
    code = {
        cell.source[4:8]: cell.source.partition("Solution")[2]
        for cell in cells
        if cell.source.startswith("### 06.")
    }
    for step, how in LOADS.items():
        solution = code[f"06.{step[5]}"]
        passes = solution.count("for (int key = 0; key <= query; ++key)") or 1
        block = re.search(r"QUERIES = (\d+)|first = (\d+) \* blockIdx", solution)
        served = int(block[1] or block[2]) if block else 1
        assert how is None or how == (served, passes), step


def test_06b_walks_along_the_drawing_of_two_warps():
    """The steps that the page names are the drawing's, and the waits those of the rung's source."""
    page, (together, apart) = said("06b_wide.ipynb"), two_warps.runs_of()
    assert f"Step {apart.begins(0, 'PV', 0)}: PV0, while warp 1 takes its softmax" in page
    assert f"(steps {listed(map(str, together.idle))} above)" in page
    assert f"empty since the end of step {apart.empty[0]:.0f}, when warp 1 finished PV0" in page
    assert apart.empty[0] == apart.begins(1, "PV", 0) and apart.full[1] == apart.begins(1, "QK", 0) + 1
    held = two_warps.steps_of("7_mma_32_rows")  # with a barrier between softmax and P V warp 0 does wait
    assert two_warps.simulate(held, 3).begins(0, "PV", 0) == apart.begins(0, "PV", 0) + 1


def test_06b_gives_every_rung_s_rate_at_one_kind_of_shape(rows):
    for names, width in ((("8_head_dim_slices", "13_mbarrier_ring"), 512), (("9_wgmma", "11_tma"), 256)):
        found = lesson_06b_rungs._at_chart(rows, names, 512)
        assert (
            set(found["head_dim"]) == {width}
            and set(found["seq"]) == {16384}
            and set(found.index) == set(names)
        )
    assert lesson_06b_rungs._at_chart(rows, ("9_wgmma", "12_warp_specialised"), 512).empty


def test_06_predicts_rung_2_by_shared_memory(h200, ladder):
    """Its source's loads of keys and values, a word a lane, at 32 words a clock and SM."""
    text = next(rung for rung in op.LADDERS["attention"] if rung.name == "2_tiled").path.read_text()
    assert "fmaf(query[e], keys[key][lane + 32 * e]" in text and "p * values[key][lane + 32 * e]" in text
    least = 32 * roofline.attention_pairs(4096, 4096) * 8 / (132 * h200.spec.boost_mhz)
    assert f"a clock: at least {least:,.0f} µs" in said("06_attention.ipynb")
    assert least < 13 / 8 * least < ladder.loc["2_tiled queries=16", "median_us"]


def test_06_names_l2_as_a_likely_limit_alone(h200, monkeypatch):
    """Its roof is not known: a warm read's rate is the least that it gives."""
    page, told = said("06_attention.ipynb"), []
    monkeypatch.setattr(lesson_06_limits.display, "say", told.append)
    rate = lesson_06_limits.l2_rate(h200)
    lesson_06_limits.l2_said(h200)
    assert told[0].startswith("**L2's roof is not known**") and f"{rate:,.0f} GB/s" in told[0]
    assert told[0] in page and "L2 is the likely limit" in page and "waits for L2" not in page
    assert lesson_06_limits.verdict_on(1.0, True).endswith("L2 is the likely limit.")
    assert lesson_06_limits._limit(0.95, {}) == "reads from L2, likely"
    monkeypatch.setattr(lesson_06_limits, "l2_rate", lambda here: float("nan"))
    lesson_06_limits.l2_said(h200)
    assert len(told) == 1, "no warm read was recorded"


def test_06_lists_rung_2_as_its_fastest_row_was_built_and_tells_rung_7_s_steps(ladder, monkeypatch):
    rows, rungs, told = ladder.reset_index(drop=True), {r.name: r for r in op.LADDERS["attention"]}, []
    assert lesson_06.built_with(rows, "2_tiled") == {"QUERIES": 16}
    slow = rows.assign(median_us=rows["median_us"].mask(rows["options"] == "queries=16", 1e9))
    assert lesson_06.built_with(slow, "2_tiled") == {"QUERIES": 8}
    assert lesson_06.built_with(rows, "4_mma") == {}
    monkeypatch.setattr(lesson_06.display, "say", told.append)
    lesson_06.twice_the_rows(rungs["6_cp_async"], rungs["7_mma_32_rows"])
    assert "19 steps of rung 7 serve 128 queries, for which rung 6 needs twice its 10" in told[0]
    assert told[0] in said("06_attention.ipynb")


def test_the_model_of_banks_has_four_times_the_lanes_of_the_drawing():
    for padding, turns in ((0, 8), (16, 1)):  # of eight rows, as drawn
        assert models.banks(padding, 256, 16) == 4 * turns


def test_06b_holds_its_drawings_of_rungs_10_and_12_against_what_was_measured(h200, rows, monkeypatch):
    """The table's last row is the page's answer; a recording without a rung says so, and a faster one too."""
    rows, page, texts = rows[rows["operator"] == "attention"], said("06b_wide.ipynb"), []
    monkeypatch.setattr(lesson_06b_pace.display, "say", texts.append)
    assert re.search(r"\*\*Of 1\.\d\d times rung 10's speed the sharing brought at least 1\.\d\d\*\*", page)
    assert page.count("about as long, so either may set the pace") == 2, "beside the drawing and in the fold"
    assert "until 28 of the 32 steps (16 columns each) of the next scores are done" in page
    assert "It keeps 112 of them" in page and "which has 3 slots in place of 2" in page
    assert "none of 4 softmaxes (it waits for V); below, beside 3" in page
    shares = [
        lesson_06b_pace._of_the_roof(lesson_06b_pace._best(rows, name))
        for name in (
            "10_paired_warpgroups",
            "12_warp_specialised",
        )
    ]
    assert all(share in page for share in shares)
    lesson_06b_pace.roles_tested(h200, rows[rows["impl"] != "12_warp_specialised"])
    assert "rung 12's rate is not recorded here." in texts[-1]
    fast = rows.assign(roof_fraction=rows["roof_fraction"] * 1.6)
    lesson_06b_pace.roles_tested(h200, fast)
    assert "more than the model: a length in it is too long" in texts[-1]
    drawn = lesson_06b_pace._drawn(h200, rows)
    monkeypatch.setattr(lesson_06b_pace, "_drawn", lambda *_: drawn._replace(alone=drawn.shared))
    lesson_06b_pace.roles_tested(h200, rows)
    assert "the sharing brought" not in texts[-1], "its own copies would do"


def test_06b_compares_rungs_of_one_occupancy_on_the_prompt_it_names(rows):
    rows = rows[rows["operator"] == "attention"]
    pair = lesson_06b_occupancy.same_occupancy(rows, 512)
    assert pair.startswith("at the same occupancy, ") and pair in said("06b_wide.ipynb")
    assert lesson_06b_occupancy.worth_of_the_same(rows, 512) in said("06b_wide.ipynb")
    assert not lesson_06b_occupancy.same_occupancy(rows[rows["impl"] != "10_paired_warpgroups"], 512).count(
        "18.8"
    )


def test_06b_says_whether_all_measurements_have_the_same_winner(h200, rows, monkeypatch):
    rows = rows[rows["operator"].eq("attention") & rows["head_dim"].eq(512) & rows["seq"].eq(16384)]
    rows = rows[rows["heads"].eq(study.HEADS) & rows["window"].isna()].set_index("impl")
    own, peer = (rows.loc[name].copy() for name in ("12_warp_specialised", "ffpa"))
    own["impl"], peer["impl"] = own.name, peer.name
    told = lesson_06b_peers.again(h200, own, peer)
    assert told in said("06b_wide.ipynb")
    ratios = [float(each) for each in re.findall(r"(\d\.\d\d) times", told)]
    assert ("undecided" in told) == (min(*ratios, 1.06) < 1 < max(*ratios, 1.06))
    power = lesson_06b_peers.display.power_rows(h200, "attention")
    quick = power.assign(median_us=power["median_us"] * power["impl"].eq("ffpa").map({True: 2, False: 1}))
    monkeypatch.setattr(lesson_06b_peers.display, "power_rows", lambda *_: quick)
    assert "undecided" not in lesson_06b_peers.again(h200, own, peer)
    assert lesson_06b_peers.again_in_short(h200, rows.reset_index()) == ""
    slow = power[power["state"] == "burst"]
    monkeypatch.setattr(lesson_06b_peers.display, "power_rows", lambda *_: slow)
    told = lesson_06b_peers.again(h200, own, peer)
    assert re.search(r"it is \d\.\d\d times as fast as ffpa in bursts", told) and "sustained" not in told
    short = lesson_06b_peers.again_in_short(h200, rows.reset_index())
    assert short.startswith(" With 16,384 a second measurement") == ("undecided" in told)


def test_06b_says_which_rungs_of_its_climb_have_no_bar():
    assert lesson_06b_rungs.without_bars(512) == " Rung 9 does no heads 512 wide and has no bar."
    assert "Rungs 10 and 12 do no heads 256 wide and have no bar" in lesson_06b_rungs.without_bars(256)


def test_06b_names_every_kernel_that_passes_the_roof(h200, rows, monkeypatch):
    texts = []
    monkeypatch.setattr(
        lesson_06b_peers.display, "fold_parts", lambda title, parts: texts.append((title, parts[0]))
    )
    lesson_06b_peers.above_the_roof(rows, h200.spec)
    over = rows[rows["roof_fraction"] > 1]
    assert all(name in texts[-1][1] for name in over["impl"]) and "(a library)" in texts[-1][1]
    lesson_06b_peers.above_the_roof(over.nlargest(1, "roof_fraction"), h200.spec)
    assert "Others" not in texts[-1][1] and over.loc[over["roof_fraction"].idxmax(), "impl"] in texts[-1][0]
    lesson_06b_peers.above_the_roof(rows[rows["roof_fraction"] < 1], h200.spec)
    assert len(texts) == 2
