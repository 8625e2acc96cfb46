"""The study of attention: cases, counts, predictions, and its contestants on the CPU. Its name is not in the
registry before it is recorded.
"""

from dataclasses import replace

import needs
import numpy as np
import pytest
from rooflab import ops
from rooflab.analysis import attention as analysis
from rooflab.bench import gate
from rooflab.errors import GateError
from rooflab.hardware import device, roofline
from rooflab.numerics import reference
from rooflab.ops import attention as op
from rooflab.studies import attention, attention_checks, attention_work, base

H200 = device.get("h200")
STUDY = attention.Attention()


@pytest.mark.parametrize("effort", ["full", "quick"])
def test_every_case_is_named_once_and_its_name_parses_back(effort):
    cases = STUDY.cases(effort, H200)
    assert len({case.id for case in cases}) == len(cases) > 30
    for case in cases:
        assert STUDY.case(case.id) == case
        assert STUDY.predict(case, base.Context(device=H200)) > 0


def test_own_cases_name_a_rung_that_can_do_them():
    for case in STUDY.cases("full", H200):
        if case.kind == "own":
            rung, macros, rule = STUDY.rung(case)
            assert rung.name == case.impl and macros["HEAD_DIM"] == case.head_dim and "def" not in rule[:3]
            assert attention.launch_of(case).shared <= 227 * 1024


def test_every_width_and_every_mask_is_there():
    cases = STUDY.cases("full", H200)
    own = [case for case in cases if case.kind == "own" and case.operator == "attention"]
    assert {case.head_dim for case in own} == {64, 80, 96, 112, 128, 256, 512}
    assert {(case.head_dim, case.window) for case in own} >= {(256, 512), (64, 1024)}
    assert any("start=" in case.options for case in own) and any("shared_kv" in case.options for case in own)
    assert {case.seq for case in own} >= {1848, 4096, 16384}


def test_hopper_rungs_are_for_hopper():
    names = {case.impl for case in STUDY.cases("full", H200)}
    assert set(op.HOPPER) <= names
    assert not set(op.HOPPER) & {case.impl for case in STUDY.cases("full", device.get("rtx-4090"))}
    case = attention._case("9_wgmma", 64, 128)
    assert "9.0 alone" in STUDY.refuses(case, 89) and STUDY.refuses(case, 90) is None


def test_a_turing_gets_the_rungs_that_it_can_run():
    sliced, rows = (attention._case(name, 64, 128) for name in ("8_head_dim_slices", "7_mma_32_rows"))
    assert "8.0" in STUDY.refuses(sliced, 75) and STUDY.refuses(rows, 75) is STUDY.refuses(sliced, 80) is None


def test_a_cache_is_cut_so_that_the_gpu_is_full_once():
    rungs = {rung.name: rung for rung in op.LADDERS["decode_attention"]}
    assert op.splits_of(rungs["2_split_kv"], {}, 32, 132, 8) == 33
    assert op.splits_of(rungs["4_cp_async"], {}, 8, 132, 2) == 16
    assert (
        op.splits_of(rungs["1_block_per_head"], {}, 32, 132, 8)
        == op.splits_of(rungs["2_split_kv"], {}, 999, 4, 1)
        == 1
    )


def test_causal_counts_as_half_and_a_window_as_its_work():
    full, windowed = (
        STUDY.count(attention._case("6_cp_async", 16384, 128, window=window)) for window in (None, 512)
    )
    assert full.flops == pytest.approx(4 * 16384**2 / 2 * 32 * 128, rel=1e-3)
    assert windowed.flops == pytest.approx(4 * 16384 * 512 * 32 * 128, rel=0.02)
    assert full.bytes == windowed.bytes  # every key is seen by somebody
    assert (full.roof, STUDY.count(attention._case("6_cp_async", 64, 128, format="bf16")).roof) == (
        "fp16_tensor",
        "bf16_tensor",
    )
    step = STUDY.count(attention.decode(32768)[0])
    assert step.roof == "dram_read" and step.bytes == pytest.approx(2 * 32768 * 8 * 128 * 2, rel=1e-3)


def test_a_block_for_every_query_reads_keys_again_up_to_window_times():
    """The source: each query's window of K and V streamed again, up to 512 times."""
    case = attention._case("1_scalar", 1848, 256, (8, 2), window=512)
    unique = 2 * 1848 * 2 * 256 * 2
    again = analysis.requested_bytes(case) / (unique * 4)  # 4 query heads share a key-value head
    assert 400 < again < 512
    tiled = [analysis.requested_bytes(replace(case, impl="2_tiled", options=f"queries={q}")) for q in (8, 16)]
    assert tiled[0] < analysis.requested_bytes(case) / 7.5 and tiled[1] < tiled[0] / 1.9


def test_a_chunk_is_charged_with_the_cache_it_reads():
    (case, *_) = attention.chunks()
    shape = attention.shape_of(case)
    assert (shape.n, shape.start, shape.context) == (2048, 14336, 16384)
    pairs = sum(range(14337, 16385))
    assert STUDY.count(case).flops == roofline.attention_flops(pairs, 32, 128)
    both, one = (STUDY.count(case).bytes for case in attention.one_array()[:2])
    assert both - one == 4096 * 8 * 512 * 2


def test_prompts_hold_every_kind_of_layer_before_and_after():
    cases = STUDY.cases("full", H200)
    kinds = attention.kinds()
    assert sum(kind.layers for kind in kinds) == 42 + 28 and {k.head_dim for k in kinds} == {128, 256, 512}
    for kind in kinds:
        for seq in attention.PROMPTS:
            asked = [case for case in attention.prompt(kind, seq) if case.kind == "own"]
            assert set(asked) <= set(cases)
            assert ("1_scalar" in {case.impl for case in asked}) == (seq <= attention.SLOW)


def test_questions_are_put_to_everybody():
    asked = attention_checks.cases(H200)
    assert len({case.id for case in asked}) == len(asked)
    for case in asked:
        assert STUDY.case(case.id) == case
        if case.kind == "own":
            assert STUDY.rung(case)[0].operator == attention.ladder_of(case)
    own = {rung.name for rung in op.LADDERS["attention"]}
    for question in ("tolerance", "edges", "words"):
        assert own <= {case.impl for case in asked if case.operator == question}
    assert {case.impl for case in asked if case.operator == "memory"} > set(attention_checks.SDPA)
    without = attention_checks.cases(device.get("rtx-4090"))
    assert not {case.impl for case in without} & set(op.HOPPER)


def test_how_many_blocks_an_sm_holds():
    # 255 registers of 128 threads: 32768 of 65536 registers, two blocks; shared memory allows three.
    assert roofline.residency(255, 128, 69_632) == 2
    assert roofline.residency(128, 256, 33_000) == 2
    assert roofline.residency(32, 256, 0) == 8
    assert roofline.residency(64, 128, 110_000) == 2


# --- on the CPU ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def compiler():
    needs.compiler()


SMALL = [
    *(attention._case(name, 70, 64, (4, 2)) for name in attention.rungs_for(64, device.get("rtx-4090"))),
    *(case for case in attention.one_array(128, 40)),
    attention._case("6_cp_async", 20, 64, (4, 2), window=9, options="start=33"),
    attention._case("7_mma_32_rows", 20, 64, (2, 2), causal=False),
    *(case for case in attention.decode(90, 64, (4, 2)) if case.kind == "own"),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_contestants_pass_the_gate(case):
    with ops.on("cpu"):
        (work,) = STUDY.contestants([replace(case, cache="warm")])
        admitted = gate.admit(work)
        admitted.recheck()
    assert admitted.error <= work.budget < 0.01


def test_the_oracle_is_the_reference():
    shape = attention.Shape(20, 33, 13, 4, 2, 64, 9, True, False)
    with ops.on("cpu"):
        q, k, v = attention_work.operands(shape)
        found = attention_work.exact(q, k, v, shape)
    np.testing.assert_allclose(found, reference.attention(q, k, v, start=13, window=9), rtol=1e-9, atol=1e-12)


TINY = {"hidden": 64, "layers": 2, "mlp": 96, "vocab": 500}


def answer(question, impl, seq, heads, head_dim, **more):
    case = attention_checks._case(question, impl, seq, heads, head_dim, **more)
    with ops.on("cpu"):
        return dict(attention_checks._ASK[question](case))


@pytest.mark.parametrize("impl", ["1_scalar", "3_half2", "7_mma_32_rows"])
def test_errors_are_told_in_root_mean_squares(impl):
    found = answer("tolerance", impl, 20, (2, 1), 64, window=9, options="start=33")
    assert 0 < found["rounding"] <= 1.5 * found["worst_rms"] < 0.02
    assert found["beyond FP32 scores"] >= found["beyond FP16 keys"] >= found["beyond tensor cores"] == 0


def test_a_wrong_answer_lies_beyond_every_tolerance(monkeypatch):
    real = op.attention
    monkeypatch.setattr(op, "attention", lambda q, k, v, **how: real(q, k, v, **{**how, "window": 3}))
    assert answer("tolerance", "1_scalar", 20, (2, 1), 64)["beyond tensor cores"] > 0.1


@pytest.mark.parametrize("impl", ["1_scalar", "7_mma_32_rows"])
def test_edges_are_looked_at(impl, monkeypatch):
    monkeypatch.setattr(attention_checks, "REPEATS", 2)
    found = answer("edges", impl, 50, (2, 1), 64)
    assert found["loudest score"] > 89  # e to that is more than FP32 holds
    assert found["loud worst_rms"] < 0.02
    for name in ("blind not zero", "NaN in k lost", "NaN in v lost", "NaN in k spread", "other bits"):
        assert found[name] == 0
    assert found["NaN in v spread"] == (
        impl == "7_mma_32_rows"
    )  # queries of the same tile multiply it by zero


def test_an_attention_that_hides_nan_or_forgets_is_seen(monkeypatch):
    monkeypatch.setattr(attention_checks, "REPEATS", 2)
    real, calls = op.attention, []

    def tidy(q, k, v, **how):
        calls.append(1)
        return np.nan_to_num(real(q, k, v, **how)) + np.float16(1 + len(calls) % 2)

    monkeypatch.setattr(op, "attention", tidy)
    found = answer("edges", "1_scalar", 50, (2, 1), 64)
    assert found["NaN in k lost"] == found["NaN in v lost"] == 1 and found["other bits"] == 1
    assert found["blind not zero"] > 0


def test_a_decoder_picks_its_words_by_exact_attention():
    case = attention_checks._case("words", "7_mma_32_rows", 20, (2, 1), 64, model="random")
    with ops.on("cpu"):
        found = dict(attention_checks._words(case, TINY))
        logits = attention_checks.decoder(case, TINY)
        without = logits(lambda q, k, v: np.zeros_like(q))
        shape = attention.shape_of(case)
        exact = logits(lambda q, k, v: attention_work.exact(q, k, v, shape))
    assert found["words"] == 20 and found["changed"] == found["changed though apart"] == 0
    assert found["least of top 5"] == 5 and 0 < found["largest move"] < 0.01 * found["spread of logits"]
    assert (without.argmax(axis=1) != exact.argmax(axis=1)).any()  # attention has a say at all


def test_a_dropped_tile_of_keys_does_not_pass(monkeypatch):
    """The error is in units of each row, so that a long row's small outputs are judged too."""
    real, case = op.attention, replace(attention._case("6_cp_async", 300, 64, (1, 1)), cache="warm")

    def short(q, k, v, **options):
        return real(q, k, v, **{**options, "context": options["context"] - 16})

    monkeypatch.setattr(op, "attention", short)
    with ops.on("cpu"):
        (work,) = STUDY.contestants([case])
        with pytest.raises(GateError, match="outputs are wrong"):
            gate.admit(work)
