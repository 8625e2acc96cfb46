"""Studies q8_0 and mmq: their own contestants through their gates on NumPy, counts, bounds and groups."""

import needs
import numpy as np
import pytest
from rooflab import ops, studies
from rooflab.bench import gate
from rooflab.hardware import device, roofline
from rooflab.ops import mmq as mmq_ops
from rooflab.ops import q8_0 as q8_ops
from rooflab.records.case import Case, options
from rooflab.studies import mmq, q8_0
from rooflab.studies.base import Context

needs.compiler()

H200, RTX_4090 = device.get("h200"), device.get("rtx-4090")


def small():
    """An own case of everything that the studies measure, on shapes that a CPU takes."""
    for rung in q8_ops.LADDERS["q8_0"]:
        most = q8_ops.TAKES[rung.name][2]
        for batch in (1,) if most == 1 else (1, 2, 8):
            yield Case("q8_0", "q8_0", rung.name, format="q8_0", n=37, k=256, batch=batch)
    for operator in ("dequantise", "q8_1", "embedding_q8_0"):
        for rung in q8_ops.LADDERS[operator]:
            yield Case("q8_0", operator, rung.name, format="q8_0", n=19, k=128, batch=3)
    for clock in ("wall", "graph"):
        yield Case("q8_0", "chain", "4_planes", n=64, k=96, batch=1, clock=clock, options=options(layers=2))
    for rung in mmq_ops.LADDERS["mmq"]:
        if "80" in rung.archs:
            for more in ({}, {"options": options(prepared=1)}):
                yield Case("mmq", "mmq", rung.name, format="q8_0", n=70, k=256, batch=9, **more)
    yield Case(
        "mmq", "mmq", "1_tile", format="q8_0", n=70, k=256, batch=9, options="prepared=1 scale_bytes=1"
    )
    for rung, batch in (("4_planes", 1), ("5_batch", 3), ("5_batch", 19), ("6_mma", 20)):
        yield Case("mmq", "mmq", mmq.DECODE + rung, format="q8_0", n=70, k=256, batch=batch)
    for how in ("exact", "unquantised"):
        for case in (*q8_0.judged(how), *mmq.judged(how)):
            rung = studies.get(case.study).rung(case)[0]
            if (case.n, case.k) == (256, 256) and "80" in rung.archs:
                yield case


@pytest.mark.parametrize("case", list(small()), ids=lambda case: case.id)
def test_a_studys_contestant_passes_its_gate_on_the_cpu(case):
    """The very buffers, oracle, budget and launch that a measurement uses."""
    with ops.on("cpu"):
        (work,) = studies.get(case.study).contestants([case])
        admitted = gate.admit(work)
        admitted.recheck()
    assert admitted.error <= work.budget
    assert float(abs(work.outputs[0][0].astype("float64")).max()) > 0.1
    exact = case.operator in ("dequantise", "q8_1", "embedding_q8_0") or "exact=1" in case.options
    if exact or (case.operator, case.clock) == ("chain", "graph"):
        assert work.budget == 0, "exact, or bit parity with the eager chain"


def test_a_wrong_product_does_not_pass(monkeypatch):
    from rooflab.errors import GateError

    case = Case("mmq", "mmq", "5_large_tiles", format="q8_0", n=70, k=256, batch=9)
    right = mmq_ops.product

    def one_wrong(x, w, *, out, **options):
        right(x, w, out=out, **options)
        out[8, 69] += 0.25

    with ops.on("cpu"):
        monkeypatch.setattr(mmq_ops, "product", one_wrong)
        (work,) = studies.get("mmq").contestants([case])
        with pytest.raises(GateError, match="1 of 630 outputs are wrong, the first at index 629"):
            gate.admit(work)


def test_the_judge_of_unquantised_products_allows_two_percent_of_their_rms():
    (case,) = (c for c in mmq.judged("unquantised") if (c.impl, c.n) == (mmq_ops.DEFAULT["mmq"], 33))
    with ops.on("cpu"):
        (work,) = studies.get("mmq").contestants([case])
        expected = work.oracle()
        assert work.budget == pytest.approx(0.02 * (expected**2).mean() ** 0.5, rel=1e-12)
        assert 0 < gate.admit(work).error < work.budget
    shapes = {(c.n, c.k, c.batch) for c in mmq.judged("unquantised")}
    assert shapes == {(256, 256, 8), (1024, 512, 12), (33, 256, 5), (128, 2560, 64)}


def test_a_sum_that_is_off_by_the_last_place_is_not_exact(monkeypatch):
    from rooflab.errors import GateError

    case = next(c for c in q8_0.judged("exact") if c.impl == "4_planes")
    right = q8_ops.matvec

    def off_by_one(x, w, *, out, **options):
        right(x, w, out=out, **options)
        out[0, 0] = np.nextafter(out[0, 0], np.float16(np.inf))

    with ops.on("cpu"):
        monkeypatch.setattr(q8_ops, "matvec", off_by_one)
        (work,) = studies.get("q8_0").contestants([case])
        with pytest.raises(GateError, match="1 of 256 outputs are wrong"):
            gate.admit(work)


def test_more_tokens_than_dp4a_takes_come_in_parts():
    case = Case("mmq", "mmq", mmq.DP4A, format="q8_0", n=8192, k=8192, batch=20)
    assert [(part.start, part.stop) for part in mmq.parts_of(case)] == [(0, 8), (8, 16), (16, 20)]
    study = studies.get("mmq")
    one = study.case("mmq/q8_0/5_batch format=q8_0 n=8192 k=8192 batch=8 cold graph")
    assert study.predict(case, Context(device=H200)) > 2.9 * study.predict(one, Context(device=H200))
    assert study.rung(case)[1]["BATCH"] == 8


def test_contestants_of_all_formats_meet_in_one_group():
    for study, cases in (
        ("q8_0", q8_0.ladder(4096, 14336)),
        ("mmq", mmq.sweep(8192, 8192, (32,))),
        ("mmq", mmq.ladder(512)),
    ):
        assert len(studies.get(study).groups(cases)) == 1
        assert len({case.format for case in cases}) > 1


def test_every_count_from_9_to_256_has_the_baseline_and_an_own_contender():
    cases = studies.get("mmq").cases()
    for n, k in mmq.SHAPES:
        for batch in mmq.FEW:
            impls = {c.impl for c in cases if (c.n, c.k, c.batch) == (n, k, batch)}
            assert mmq.BASELINE in impls and "torch.matmul" in impls
            assert any(impl[0].isdigit() or impl.startswith(mmq.DECODE) for impl in impls)
    assert mmq.FEW[0] == 9 and mmq.FEW[-1] == 256


def test_bytes_and_flops_follow_the_convention():
    study = studies.get("q8_0")
    case = study.case("q8_0/4_planes format=q8_0 n=4096 k=14336 batch=1 cold graph")
    assert study.count(case).bytes == 4096 * 14336 * 34 // 32 + 14336 * 34 // 32 + 2 * 4096
    assert study.count(case).flops == roofline.gemm_flops(1, 4096, 14336)
    assert study.predict(case, Context(device=H200)) == pytest.approx(13.0, abs=0.05)
    peer = study.case("q8_0/torch.matmul peer format=fp16 n=4096 k=14336 batch=1 cold graph")
    assert study.count(peer).bytes == 2 * (4096 * 14336 + 14336 + 4096)
    assert study.rung(peer) is None and study.needs(peer) == "torch"
    study = studies.get("mmq")
    case = study.case("mmq/6_wgmma format=q8_0 n=8192 k=8192 batch=512 cold graph")
    assert study.count(case).bytes == 8192 * 8192 * 34 // 32 + 512 * 2 * (8192 + 8192)
    assert study.refuses(case, 89) == "wgmma needs compute capability 9.0"
    assert study.refuses(case, 90) is None and "wgmma" in study.refuses(case, 120)
    tuned = study.case("mmq/5_large_tiles format=q8_0 n=8192 k=8192 batch=512 cold graph")
    assert study.refuses(tuned, 75) == "cp.async needs compute capability 8.0"
    assert study.refuses(tuned, 86) is None


def test_the_issue_bound_decides_on_hopper_and_not_on_ada():
    """Three instructions a result: a third of Hopper's int8 peak; on Ada two leave all of it within reach."""
    assert mmq.issue_bound(H200, 3) == pytest.approx(H200.int8_tensor / 3)
    assert mmq.issue_bound(H200, 2) == pytest.approx(H200.fp16_tensor, rel=1e-3), "no more than FP16"
    assert mmq.issue_bound(RTX_4090, 2) == RTX_4090.int8_tensor
    assert mmq.issue_bound(RTX_4090, 3) == RTX_4090.int8_tensor
    study = studies.get("mmq")
    exact, half = (
        study.case(f"mmq/{impl} format=q8_0 n=8192 k=8192 batch=2048 cold graph")
        for impl in ("6_wgmma", "7_fp16_wgmma")
    )
    context = Context(device=H200)
    assert study.predict(exact, context) > study.predict(half, context)
    ada = Context(device=RTX_4090)
    assert study.predict(exact, ada) < study.predict(half, ada)


def test_a_chip_has_room_for_so_many_instructions_a_result():
    """By the cycle of an SM: the H200's int8 peak is counted at a lower clock than its FP32 peak."""
    assert mmq.per_cycle(H200) == (128, 128) and mmq.per_cycle(RTX_4090) == (128, 32)
    assert (mmq.room(H200), mmq.room(RTX_4090)) == (1, 4)
    for chip in (H200, RTX_4090):
        for instructions in (1, 2, 3, 6):
            bound = chip.int8_tensor * min(1, mmq.room(chip) / instructions)
            assert mmq.issue_bound(chip, instructions) == pytest.approx(bound)
    a100, t4 = device.get("a100-80gb"), device.get("t4")
    assert [mmq.per_cycle(chip)[0] for chip in (a100, t4)] == [64, 64], "FP32 lanes, fewer than four slots'"
    for chip, bound in ((a100, 624 / 4), (t4, 130 / 2)):  # 16 conversions a cycle, for 64 and 32 sums
        assert bound == pytest.approx(mmq.scaling_bound(chip, 3)) and bound < mmq.issue_bound(chip, 3)
        assert mmq.scaling_bound(chip, 2) == mmq.issue_bound(chip, 2), "two have no conversion"
    case = next(c for c in mmq.ladder(512) if c.impl == "5_large_tiles")
    assert mmq.scaling(case) == 8192 * 512 * (8192 // 32) * 2 // 32
    assert mmq.scaling(next(c for c in mmq.ladder(512) if c.impl == "7_fp16_wgmma")) is None


def test_a_tile_is_as_the_launch_rule_covers_the_result_with_it():
    cases = {c.impl: c for c in mmq.ladder(512) if c.kind == "own" and "scale_bytes" not in c.options}
    tiles = {name: mmq.tile(case) for name, case in cases.items()}
    assert tiles["1_tile"] == (64, 64) and tiles["4_cp_async"] == (64, 128)
    assert tiles["5_large_tiles"] == (128, 64) and tiles["6_wgmma"] == (128, 128)
    assert tiles["7_fp16_wgmma"] == tiles["9_tile_order"] == (128, 256)
    narrow = next(c for c in mmq.ladder(1848) if c.impl == "6_wgmma")
    assert mmq.tile(narrow) == (128, 128)


def test_wider_tiles_read_the_weights_half_as_often():
    cases = {c.impl: c for c in mmq.ladder(512) if c.kind == "own" and "scale_bytes" not in c.options}
    assert mmq.reads(cases["1_tile"])[:2] == mmq.reads(cases["2_prefetch"])[:2] == (8, 128)
    assert mmq.reads(cases["3_wide"])[:2] == (4, 128)
    saved = mmq.reads(cases["2_prefetch"])[2] - mmq.reads(cases["3_wide"])[2]
    assert saved == 4 * 8192 * 8192 * 34 // 32
    assert mmq.reads(cases["6_wgmma"]) == (4, 64, 8192 * (4 * 8192 + 64 * 512) * 34 // 32)
    last = next(c for c in mmq.ladder(1848) if c.impl == "6_wgmma")  # 56 tokens for blocks of half the rows
    assert mmq.reads(last) == (15, 64, 8192 * (15 * 8192 + 64 * 1792 + 128 * 56) * 34 // 32)


def test_an_included_quantiser_is_part_of_the_identity():
    study = studies.get("mmq")
    alone = study.case("mmq/5_large_tiles format=q8_0 n=8192 k=8192 batch=512 prepared=1 cold graph")
    whole = study.case("mmq/5_large_tiles format=q8_0 n=8192 k=8192 batch=512 cold graph")
    assert study.identity(alone, None).split(".")[1:] == study.identity(whole, None).split(".")[1:]
    assert study.identity(alone, None) != study.identity(whole, None)
    half = [
        study.case(f"mmq/7_fp16_wgmma format=q8_0 n=8192 k=8192 batch={b} cold graph") for b in (512, 1024)
    ]
    assert study.identity(half[0], None) == study.identity(half[1], None)
