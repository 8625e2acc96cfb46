"""What lesson 03 claims of the recorded H200, and that its pages say what the rows say."""

import html

import pytest
from pages_read import said
from rooflab import claims, lab
from rooflab.analysis import coalescing, root_cause, token_rate
from rooflab.analysis.coalescing import counter
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.ops import faults, gemv
from rooflab.pages import lesson_03, lesson_03b, lesson_03c_counters, lesson_03e
from rooflab.profile import ncu
from rooflab.studies import faults as faulty
from rooflab.studies import gemv as study
from rooflab.studies import traces

HYPOTHESES, CHECKLIST = claims.select(group="hypothesis"), claims.select(group="test")
RUNGS = [rung.name for rung in gemv.LADDERS["gemv"]]
TESTS = {id: test for id, _, test in claims.shown((*HYPOTHESES, *CHECKLIST))}


@pytest.fixture(scope="module")
def evidence(h200):
    return coalescing.gather(h200)


@pytest.fixture(scope="module")
def ladder(h200):
    return h200.measure("gemv", study.ladder("gemv", 4096, 4096)).set_index("impl")


@pytest.fixture(scope="module")
def families(h200):
    return h200.measure("gemv", study.families())


def verdict(evidence, id):
    return claims.judge(TESTS[id], evidence)


# --- the claims that coverage.csv points to -----------------------------------------------------------------


def test_the_strided_kernel_is_rebuilt_gated_and_far_from_the_roof(ladder, evidence):
    """M26: a warp a column, a row between neighbouring lanes."""
    row = ladder.loc["1_strided"]
    assert row["error"] <= row["error_budget"] and row["samples"] >= 10
    rung = gemv.LADDERS["gemv"][0]
    offsets, width = study.first_request(rung, 4096, 4096, rung.with_defaults({}))
    assert (offsets[1] - offsets[0], width) == (16384, 4) and study.sectors(offsets, width) == 32
    assert 0.05 < row["roof_fraction"] < 0.4
    assert counter(evidence, "load_efficiency_pct", "1_strided") < 50


def test_the_coalesced_kernel_wastes_no_byte_and_is_slower(ladder, evidence):
    """M27: 256 threads, x in shared memory, a thread a column: every sector used, and slow."""
    assert counter(evidence, "load_efficiency_pct", "2_coalesced") > 99
    assert counter(evidence, "load_sectors_per_request", "2_coalesced") == pytest.approx(4, rel=0.01)
    assert ladder.loc["2_coalesced", "q1_us"] > 2 * ladder.loc["1_strided", "q3_us"]
    page = said("03_coalescing.ipynb")
    assert "Coalesced, but with 1 thread where rung 1 has 32, it is slower" in page
    flying = study.in_flight_bytes(study.Gemv().case(ladder.loc["1_strided", "case"]), 132)
    assert flying == 2 * 2**20 and "whose threads are 32 times as many, makes 2 MiB" in page


def test_rung_1_has_bytes_enough_in_flight_and_a_fairer_pair_is_named(h200, ladder):
    """As many threads and bytes in flight as rung 1, coalesced: split k in 32 parts."""
    page, rows = said("03_coalescing.ipynb"), ladder.reset_index()
    assert (
        "does not lack bytes in flight, but 87.5% of what its loads of A fetch serves other columns" in page
    )
    pair = h200.measure("gemv", study.splits_sweep()).set_index("options").loc["splits=32"]
    gain = ladder.loc["1_strided", "median_us"] / pair["median_us"]
    assert f"part 03b's rung 3 runs at {gain:.2f} times the speed of rung 1: a fairer pair" in page
    assert "does not lack" not in lesson_03._rung_1(rows.assign(roof_fraction=0.9), h200, 4096)
    assert "fairer" not in lesson_03._rung_1(rows, h200, 2048), "nothing of that size was swept"


def test_predictions_are_the_longer_of_littles_law_and_the_read_roof(h200, ladder):
    rows = ladder.reset_index()
    us, by = lesson_03b.foretold(rows)
    at = dict(zip(rows["impl"], zip(us, by, strict=True), strict=True))
    assert at["2_coalesced"] == (pytest.approx(346, rel=0.02), "Little's law")
    bytes_us = rows["bytes"].iloc[0] / h200.roof["dram_read"].value / 1e3
    assert at["1_strided"] == (pytest.approx(bytes_us, rel=1e-3), "read roof")


def test_every_why_has_a_number(evidence):
    """M28: five whys and the one that was not asked, each measured."""
    store = lab.open("replay", "rtx-4090-published").store
    rows = root_cause.whys(evidence, root_cause.published(store.read("gemv"), store.read("decode")))
    assert len(rows) == 6 and not rows["here"].str.startswith("not measured").any()
    assert rows["here"].str.contains(r"\d").all()
    shown = said("03c_claims.ipynb")
    assert all(text in shown for text in rows["here"])


def test_an_upload_takes_as_long_as_the_published_kernel(evidence):
    """The time that the story blames on strided access has the size of a transfer."""
    published = lab.open("replay", "rtx-4090-published").store.read("gemv").set_index("impl")["median_us"]
    call = evidence.rows("gemv", operator="upload").set_index("impl")["median_us"]
    assert 0.3 < call["pageable"] / published["strided"] < 3
    assert call["pageable"] > 5 * coalescing.us(evidence, "1_strided")


def test_sectors_on_paper_on_the_cpu_and_counted_agree(evidence):
    """M29: the matrix's sectors worked out from the mapping; all loads watched on the CPU and counted on the
    GPU to 2 %."""
    watched = traces.read("gemv")
    loads = watched[(watched["access"] == "load") & (watched["space"] == "global")]
    for case in study.traced():
        if case.operator != "gemv" or case.n % 32:
            continue
        own = loads[loads["case"] == case.id]
        seen = own["sectors"].sum() / own["requests"].sum()
        assert counter(evidence, "load_sectors_per_request", case.impl) == pytest.approx(seen, rel=0.02)
        rung = next(rung for rung in gemv.LADDERS["gemv"] if rung.name == case.impl)
        offsets, width = study.first_request(rung, case.n, case.k, gemv.options_for(rung, case.n, case.k))
        matrix = own[own["buffer"] == "a"]
        assert matrix["sectors"].sum() / matrix["requests"].sum() == study.sectors(offsets, width)


def test_h1_is_judged_as_efficiency_and_as_bandwidth(evidence):
    """M30"""
    assert verdict(evidence, "H1").word == claims.HOLDS
    assert verdict(evidence, "H1 sufficient").word == claims.REFUTED
    assert verdict(evidence, "H1 necessary").word == claims.HOLDS


def test_h2_is_judged_by_the_clock_and_by_its_floor(evidence):
    """M31: the prediction asks more than its card has; in floors the best kernel is near."""
    assert coalescing.share_of_card(50, coalescing.moved()) > 1
    assert verdict(evidence, "H2").word == claims.REFUTED
    near = verdict(evidence, "H2 by the floor")
    assert near.word != claims.REFUTED and 1 < near.value < 1.4


def test_h3_is_judged_as_products_a_second(evidence):
    """M32"""
    assert verdict(evidence, "H3").word == claims.ELSEWHERE
    assert verdict(evidence, "H3 as refined").word == claims.REFUTED
    assert 1e6 / coalescing.us(evidence, "best") > 50_000


def test_h4_wide_loads_win_nothing_by_themselves(evidence):
    """M33: of FP32 columns not what was claimed; of FP16 rows more than twice."""
    assert verdict(evidence, "H4").word == claims.REFUTED
    assert verdict(evidence, "H4 in rows").word == claims.HOLDS


def test_h5_the_size_of_a_block_does_not_matter(evidence):
    """M34: 64 to 1024 threads, on the source's kernel and on one that fills the GPU."""
    assert verdict(evidence, "H5").word == claims.HOLDS
    assert verdict(evidence, "H5 two-sided").word == claims.HOLDS


def test_what_rung_2_lacks_is_loads_under_way_and_not_blocks(h200):
    """M35: the same threads in 4 to 64 blocks are equally slow; twice the threads nearly halve it."""
    same = h200.measure("gemv", study.blocks_sweep("2_coalesced"))
    assert same["gb_s"].max() < 1.1 * same["gb_s"].min()
    more = h200.measure("gemv", study.splits_sweep()).set_index("options")["gb_s"]
    assert all(more[f"splits={2 * s}"] > 1.7 * more[f"splits={s}"] for s in (1, 2, 4))
    assert "lacks bytes in flight; idle SMs are not what limits it" in said("03b_filling.ipynb")


def test_what_changes_with_rung_6_is_told_whole_and_no_cause_is_picked(h200, ladder):
    """Bytes in flight, blocks, strips and partial sums change at once; equal bytes are no equal rates."""
    page = said("03b_filling.ipynb")
    flying = {name: study.in_flight_bytes(study.Gemv().case(ladder.loc[name, "case"]), 132) for name in RUNGS}
    assert flying["6_column_strips"] == 2 * flying["5_in_flight"] == 4 * flying["3_split_k"]
    assert "16 MiB in flight instead of 8 MiB, 128 blocks instead of 1,024" in page
    assert "The recording cannot tell which of them" in page
    assert (
        flying["3_split_k"]
        == flying["4_vector"]
        > roofline.bytes_in_flight(h200.roof["dram_read"].value, lesson_03b.latency(h200))
    )
    assert "3_split_k and 4_vector have 4 MiB each" in page


def test_e9_the_best_kernel_beats_cublas_and_the_source_s_does_not(evidence):
    """M36"""
    assert verdict(evidence, "E9").word == claims.REFUTED
    assert verdict(evidence, "E9 by the best").word == claims.HOLDS


def test_e10_padding_takes_the_conflicts_and_little_of_the_time(evidence, h200):
    """M37: counted and timed, padded and not."""
    rows = coalescing.counters(evidence.table("gemv", "ncu"))
    rows = rows[(rows["impl"] == "6_column_strips") & (rows["n"] == 4096) & (rows["cache"] == "cold")]
    conflicts = rows.set_index("options")["shared_load_conflicts"]
    assert conflicts["pad=0"] > 1000 > conflicts[""]
    assert verdict(evidence, "E10 by padding").word == claims.REFUTED


def test_e11_cold_products_miss_and_a_strided_one_hits(evidence):
    """M38: cold, the best misses and the strided hits; warm profiles are held to their DRAM bytes."""
    assert verdict(evidence, "E11 cold").word == claims.HOLDS
    strided, coalesced = (counter(evidence, "l2_hit_pct", impl) for impl in ("1_strided", "2_coalesced"))
    assert strided > 50 > coalesced
    warm = verdict(evidence, "E11 warm")
    if counter(evidence, "dram_read_bytes", "2_coalesced", 2048, "warm") > coalescing.moved(2048) / 2:
        assert warm.word == claims.UNRECORDED
    else:
        assert warm.word == claims.HOLDS
    assert coalescing.us(evidence, "6_column_strips", 2048, "warm") < coalescing.us(
        evidence, "6_column_strips", 2048
    )


def test_e12_says_the_same_of_good_and_bad(evidence):
    """M39"""
    found = claims.powers([claims.get("C-E12")], evidence, ["1_strided", "2_coalesced", "best"]).iloc[0]
    assert {found[name].word for name in ("1_strided", "2_coalesced", "best")} == {claims.HOLDS}


def test_nvprof_s_metrics_have_successors_that_were_counted(evidence):
    """M40"""
    mapped = [short for short in ncu.NVPROF.values() if short in study.COUNTERS]
    assert len(mapped) >= 5
    for short in mapped:
        assert counter(evidence, short, "2_coalesced") >= 0
        assert all(name in said("03c_claims.ipynb") for name in ncu.METRICS[short].ncu)


def test_e1_to_e8_are_judged_at_three_sizes(evidence):
    """M41: as stated and by the roof, at 2048, 4096 and 8192."""
    board = claims.board(CHECKLIST, evidence).set_index("id")
    stated = board.loc[[f"E{i}" for i in range(1, 9)], "word"]
    assert set(stated) <= {claims.HOLDS, claims.REFUTED}
    by_the_roof = board.loc[[f"E{i} by the roof" for i in (1, 2, 3)]]
    assert (by_the_roof["word"] == claims.HOLDS).all()
    assert board.loc["E1 by the roof", "value"] == pytest.approx(coalescing.share(evidence, "best"))


def test_bars_in_microseconds_are_lax_where_their_shares_of_the_roof_are_not(evidence):
    by_roof = {name: claims.get(f"C-{name}").tests[1] for name in ("E1", "E4", "E7")}
    text = lesson_03c_counters._as_shares(["E1", "E4", "E7"], by_roof, evidence)
    assert "ask 64% to 67% of the bandwidth" in text and "these tests do their work" in text
    assert lesson_03c_counters._as_shares(["E1", "E6"], by_roof, evidence) == ""


def test_faulty_kernels_fail_where_the_instruments_say(h200):
    """M42: K beyond the tile, the early exit, the sum that is not zeroed: who sees what, and that all pass at
    friendly sizes. Exercises 03.6 to 03.8 hold the mended versions."""
    found = h200.profile("faults", faulty.cases(), "sanitizer").set_index("case")
    assert len(found) == len(faulty.cases())

    def of(name, tool, size=faulty.UNFRIENDLY):
        n, k = size[name]
        return found.loc[f"faults/{name} n={n} k={k} tool={tool}"]

    for name in faults.FAULTS:
        assert str(of(name, "none", faulty.FRIENDLY)["first_right"]) == "True"
        assert of(name, "watch")["reports"] > 0 or name == "not_zeroed"
    assert str(of("early_exit", "none")["first_right"]) == "False"
    assert of("early_exit", "synccheck")["reports"] == 0 < of("half_barrier", "synccheck")["reports"]
    assert of("fixed_tile", "memcheck")["reports"] > 0
    assert str(of("not_zeroed", "none")["second_right"]) == "False"


def test_dispatch_is_arithmetic_over_shapes():
    """M43: one kernel for each set of constants, a slower rung for odd sizes and addresses, none rounded."""
    kinds = set()
    for n, k in study.shapes_of():
        name = gemv.default_rung("gemv_rows", n, k, True)
        rung = next(rung for rung in gemv.LADDERS["gemv_rows"] if rung.name == name)
        kinds.add((name, tuple(sorted(gemv.options_for(rung, n, k).items()))))
    assert 1 < len(kinds) < len(study.shapes_of())
    assert gemv.default_rung("gemv_rows", 4096, 4095, True) == "1_warp"
    assert gemv.default_rung("gemv_rows", 4096, 4096, False) == "1_warp"
    assert f"need {len(kinds)} compiled kernels" in said("03d_rows.ipynb")


def test_tokens_are_counted_by_the_models_shapes(families, h200):
    """M44: 224 products where the source counts 192, and tokens a second under the roof's."""
    counts = token_rate.counts(study.FAMILIES).set_index("model")
    assert counts.loc["llama-2-7b", ["products", "source"]].tolist() == [224, 192]
    found = token_rate.of_models(families, study.FAMILIES)
    assert set(found["impl"]) == {"5_split", "torch.matmul"} and len(found) == 2 * len(study.FAMILIES)
    ceiling = h200.roof["dram_read"].value
    share = found["bytes"] / found["us"] / 1e3 / ceiling
    assert share.between(0.3, 1).all()
    own = share[found["impl"] == "5_split"].set_axis(study.FAMILIES)
    assert own["llama-3-70b"] > 0.9 and own["llama-2-7b"] > 0.8


def test_every_family_s_shapes_run_no_slower_than_cublas(families):
    """M45: 27 shapes of seven models, LLaMA, Mistral, Phi and Qwen among them."""
    wide = families.pivot(index=["n", "k"], columns="impl", values="median_us")
    assert len(wide) == len(study.shapes_of()) and not wide.isna().any(axis=None)
    assert (wide["5_split"] <= 1.02 * wide["torch.matmul"]).all()
    assert {model.split("-")[0] for model in study.FAMILIES} >= {"llama", "mistral", "phi"}
    assert any(model.startswith("qwen") for model in study.FAMILIES)


def test_a_fault_that_depends_on_no_size_is_counted_once(h200):
    """not_zeroed runs at one size, friendly and ragged in one: only its second call shows it."""
    found = lesson_03e._results(lesson_03e.gathered(h200)[0])
    assert list(found.loc["not_zeroed"]) == ["right", "same size", "wrong"]
    assert list(found.loc["half_barrier"]) == ["right", "right", "right"]
    page = said("03e_mending.ipynb")
    assert (
        "shows 0 of 4 faulty kernels at a friendly size and 2 at a ragged one, a second call 1 more" in page
    )
    assert "half_barrier never shows in a result" in page


def test_half_barrier_is_said_to_be_right_by_luck_while_few_numbers_are_left():
    """Of 300 numbers 44 are a second tile, and 63 threads have a column: none of the others stores."""
    words = lesson_03e._lucky(63, 300)
    assert "the 193 threads at barrier 2 let the 63" in words and "only 44 numbers are left" in words
    assert "with a k above 319" in words
    assert "luck" not in lesson_03e._lucky(43, 300), "thread 43 would store, and has no column"


# --- beyond ------------------------------------------------------------------------------------------------


def test_every_timed_rung_is_gated_and_interleaved_with_cublas(h200):
    rows = h200.measure("gemv", h200.cases("gemv"))
    own = rows[rows["kind"] == "own"]
    assert (own["error"] <= own["error_budget"]).all() and (own["spill_bytes"] == 0).all()
    assert (rows["q1_us"] <= rows["median_us"]).all() and (rows["median_us"] <= rows["q3_us"]).all()


def test_start_and_bytes_foretell_every_shape(families, h200):
    """Lesson 01's model of a stream, with one number in it, is near each FP16 product of the last rung."""
    from rooflab.ops import stream
    from rooflab.studies import bandwidth

    best = stream.DEFAULT["read"]
    reads = [c for c in h200.cases("bandwidth") if (c.operator, c.impl, c.cache) == ("read", best, "cold")]
    ceiling = h200.roof["dram_read"].value
    start = bandwidth.fixed_us(h200.measure("bandwidth", reads), ceiling)
    own = families[families["impl"] == "5_split"]
    foretold = start + own["bytes"] / ceiling / 1e3
    assert (own["median_us"] / foretold).between(0.8, 1.15).all()


def test_a_lab_s_evidence_is_what_it_measures(evidence, h200):
    assert {"gemv", "upload", "gemv_rows"} <= set(evidence.rows("gemv")["operator"])
    assert len(evidence.rows("gemv")) == len(h200.measure("gemv", h200.cases("gemv")))
    assert coalescing.counters(evidence.table("gemv", "ncu"))["load_efficiency_pct"].dtype == float
    assert evidence.ceiling("dram_read") == h200.roof["dram_read"].value


def test_the_page_s_verdicts_are_those_of_the_rules(evidence):
    """What stands in the committed notebook is what the claims say of the committed rows."""
    shown = said("03c_claims.ipynb").splitlines()
    for id, test in TESTS.items():
        found = claims.judge(test, evidence)
        starts = tuple(f"<tr><td><{tag}>{id}</{tag}></td><td>{found.word}</td>" for tag in "bi")
        (line,) = (html.unescape(line) for line in shown if line.startswith(starts))
        assert found.measured in line and test.bars() in line


def test_models_and_shapes_are_those_of_the_table():
    for name in study.FAMILIES:
        parts = model_shapes.projections(model_shapes.get(name))
        assert {(p.n, p.k) for p in parts} <= set(study.shapes_of())
    assert roofline.gemm_bytes(1, 4096, 4096, 4, 4, 4) == coalescing.moved()
