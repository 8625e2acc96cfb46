"""INT4 products on the CPU: rungs through the gate, the tile order bit for bit, refusals, the study."""

import ctypes

import needs
import numpy as np
import pytest
from rooflab import ops, simt, studies
from rooflab.bench import gate
from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import device
from rooflab.numerics import quant, reference
from rooflab.ops import int4, stream_k
from rooflab.studies import base as study_base
from rooflab.studies import int4 as study
from rooflab.studies.base import Context
from shares import pairs, thinned
from test_q8_0 import random

needs.compiler()

PORTABLE = [rung for rung in int4.LADDERS["int4"] if "90" in rung.archs]


def packed(n, k, seed=0):
    """INT4 weights [n, k], a group of zeros and a group with an outlier among them."""
    w = random(n, k, n + k + seed).astype(np.float32) / np.sqrt(k, dtype=np.float32)
    w[0, :128] = 0
    w[-1, 5] = 40
    return quant.quantise_int4(w)


def judged(q, x):
    """The exact product of x with weights as packed, and the error allowed."""
    exact = quant.dequantise_int4(q)
    expected = reference.gemm(exact, x)
    baseline = (x.astype(np.float32) @ exact.astype(np.float16).astype(np.float32).T).astype(np.float16)
    budget = gate.error_budget(float(np.abs(baseline - expected).max()), expected, "float16")
    return expected, budget


def work(rung, n, k, batch, options=None):
    """A rung on the CPU as a contestant for the gate, two copies of the operands."""
    q, x = packed(n, k), random(batch, k, n)
    expected, budget = judged(q, x)
    weights = [int4.repack(*q) if rung in int4.TILED else int4.Rows(*(a.copy() for a in q)) for _ in range(2)]
    xs, ys = [x.copy() for _ in range(2)], [[np.empty((batch, n), np.float16)] for _ in range(2)]

    def launch(i):
        with ops.on("cpu"):
            int4.matmul(xs[i], weights[i], out=ys[i][0], rung=rung.name, **(options or {}))

    arrays = [[a for a in (*w, y) if isinstance(a, np.ndarray)] for w, y in zip(weights, xs, strict=True)]
    return gate.Work(rung.name, launch, arrays, ys, lambda: expected, budget)


@pytest.mark.parametrize("rung", PORTABLE, ids=lambda rung: rung.name)
def test_every_portable_rung_passes_the_gate_on_ragged_shapes(rung):
    for n, k in ((1, 128), (37, 384), (130, 1280)):
        for batch in (1, 3, 8):
            gate.admit(work(rung, n, k, batch)).recheck()


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "batch", "options"),
    [
        ("4_in_flight", 1, {"THREADS": 64, "ROWS": 3}),
        ("5_split_k", 2, {"WARPS": 7, "ROWS": 2}),
        ("6_batched", 7, {"WARPS": 2, "ROWS": 3, "TOKENS": 8}),
        ("7_mma", 13, {"WARPS": 3, "TILES": 8, "TOKENS": 16}),
        ("8_folded_offset", 1, {"WARPS": 5, "TILES": 1, "TOKENS": 1}),
        ("8_folded_offset", 11, {"WARPS": 2, "TILES": 4, "TOKENS": 16}),
        ("9_shared_x", 5, {"ROW_WARPS": 7, "K_WARPS": 3, "TILES": 1, "TOKENS": 8, "STAGES": 2}),
        ("9_shared_x", 40, {"ROW_WARPS": 2, "K_WARPS": 2, "TILES": 4, "TOKENS": 48, "STAGES": 4}),
        ("9_shared_x", 64, {"ROW_WARPS": 3, "K_WARPS": 1, "TILES": 2, "TOKENS": 64}),
        ("9_shared_x", 70, {"ROW_WARPS": 2, "K_WARPS": 1, "TILES": 4, "TOKENS": 32}),
    ],
)
def test_tuned_rungs_pass_the_gate(name, batch, options):
    gate.admit(work(ops.rung_of(PORTABLE, name, ""), 150, 640, batch, options)).recheck()


def test_integers_are_exact():
    """Scales of one and sums below 2049: nothing may be rounded, offsets of the tile order included."""
    rng = np.random.default_rng(5)
    q = rng.integers(-7, 8, (70, 256)).astype(np.float32)
    q[:, ::128] = 7  # so that every group's scale is exactly one
    x = rng.integers(-2, 3, (9, 256)).astype(np.float16)
    expected = x.astype(np.float32) @ q.T
    assert 100 < np.abs(expected).max() < 2048
    rows = int4.Rows(*quant.quantise_int4(q))
    with ops.on("cpu"):
        for rung in PORTABLE:
            tokens = {"TOKENS": 16} if rung in int4.TILED and rung.name != int4.BYTES else {}
            got = int4.matmul(x, int4.repack(*rows) if rung in int4.TILED else rows, rung=rung.name, **tokens)
            assert np.array_equal(got.astype(np.float32), expected), rung.name


@pytest.mark.parametrize("n", [1, 37, 70, 130])
def test_the_kernels_touch_what_is_theirs_alone(n):
    """Watched: no race, no stray access, nothing read before it is written."""
    q, x = packed(n, 384), random(3, 384, 1)
    rows, tiles = int4.Rows(*q), int4.repack(*q)
    for rung in PORTABLE:
        macros = rung.with_defaults({})
        launch = int4.launch_of(rung, n, 384, 3, macros)
        weights = [tiles.blocks] if rung in int4.TILED else list(rows)
        out = np.zeros((3, n), np.float16)
        arguments = [*weights, x, out, *(ctypes.c_uint(v) for v in (n, 3, 3))]
        seen = simt.watch(rung, launch.grid, launch.threads, arguments, macros, shared=launch.shared)
        assert not seen.faults, (rung.name, [str(fault) for fault in seen.faults])


# --- orders of weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(64, 128), (1, 128), (100, 384), (192, 1536)])
def test_the_tile_order_is_a_permutation_with_an_inverse(n, k):
    q = packed(n, k)
    tiles = int4.repack(*q)
    assert tiles.blocks.shape == (-(-n // 64), k // 128, 1056) and tiles.blocks.dtype == np.uint32
    back = int4.unpack(tiles)
    assert np.array_equal(back.qweight, q.qweight) and np.array_equal(back.scales, q.scales)
    if n % 64 == 0:  # not a bit more than the row order's
        assert tiles.blocks.nbytes == q.qweight.nbytes + q.scales.nbytes


def test_the_tile_order_by_hand():
    """One weight at a time: row 16 m + 8 r + g, column 64 h + 16 s + 8 c + 2 t + e lies in word
    32 + 256 m + 128 h + 4 (4 g + t) + s, at nibble 4 e + 2 c + r, the word turned left by two bits."""
    for m, r, g, h, s, c, t, e in (
        (0, 0, 0, 0, 0, 0, 0, 0),
        (3, 1, 5, 1, 2, 1, 3, 1),
        (2, 0, 7, 0, 3, 1, 1, 0),
    ):
        codes = np.zeros((64, 128), np.int8)
        codes[16 * m + 8 * r + g, 64 * h + 16 * s + 8 * c + 2 * t + e] = 5
        scales = np.zeros((64, 1), np.float16)
        scales[16 * m + 8 * r + g] = 3
        (words,) = int4.repack(quant.pack_int4(codes), scales).blocks[0]
        word = 32 + 256 * m + 128 * h + 4 * (4 * g + t) + s
        expected = np.full(1024, 0x88888888, np.uint64)
        expected[word - 32] ^= (8 ^ 13) << 4 * (4 * e + 2 * c + r)
        turned = (expected << np.uint64(2) | expected >> np.uint64(30)) & np.uint64(0xFFFFFFFF)
        assert np.array_equal(words[32:], turned.astype(np.uint32))
        assert np.flatnonzero(words[:32].copy().view(np.float16)).tolist() == [8 * g + 2 * m + r]


def test_padding_rows_are_zero():
    tiles = int4.repack(*packed(5, 128))
    whole = quant.dequantise_int4(int4.unpack(tiles._replace(n=64)))
    assert np.abs(whole[:5]).max() > 0 and not whole[5:].any()


def test_dequantising_rounds_each_product_once():
    q = packed(9, 384)
    with ops.on("cpu"):
        got = int4.dequantise(int4.Rows(*q))
    assert np.array_equal(got, quant.dequantise_int4(q).astype(np.float16))


def test_error_grows_with_the_group_and_an_outlier_spoils_its_own_group_alone():
    w = np.random.default_rng(8).standard_normal((64, 1024)).astype(np.float32)

    def error(weights, group):
        return np.abs(quant.dequantise_int4(quant.quantise_int4(weights, group), group) - weights)

    errors = [error(w, group).mean() for group in (32, 64, 128, 256)]
    assert errors == sorted(errors) and errors[-1] < 1.5 * errors[0]
    spoilt = w.copy()
    spoilt[3, 130] = 50
    more = error(spoilt, 128) - error(w, 128)
    others = np.ones(w.shape, bool)
    others[3, 128:256] = False
    assert not more[others].any() and more[3, 128:256].mean() > 0.3


# --- refusals and the dispatcher ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": np.zeros((2, 256), np.float32)}, "x must hold float16, not float32"),
        ({"x": np.zeros((2, 384), np.float16)}, "x must hold 512 elements, not 768"),
        ({"out": np.zeros((2, 64), np.float16)}, "out must hold 128 elements|out must hold 140 elements"),
        ({"rung": "7_mma"}, "takes weights in tile order: repack them"),
        ({"rung": "8_folded_offset", "tiled": True, "TOKENS": 1}, "multiplies up to 1 tokens at once, not 2"),
        ({"rung": "3_magic", "tiled": True}, "takes weights in row order: unpack them"),
    ],
)
def test_a_launcher_refuses_in_a_sentence(change, says):
    q = packed(70, 256)
    given = {"x": random(2, 256, 1), "rung": "1_warp_row", **change}
    weights = int4.repack(*q) if given.pop("tiled", False) else int4.Rows(*q)
    with ops.on("cpu"), pytest.raises(LaunchError, match=says):
        int4.matmul(given.pop("x"), weights, **given)


def test_a_group_that_is_not_whole_is_refused():
    with pytest.raises(UsageError, match="k must be a multiple of 128"):
        int4.repack(np.zeros((4, 24), np.int32), np.zeros((4, 2), np.float16))
    rows = int4.Rows(np.zeros((4, 24), np.int32), np.zeros((4, 1), np.float16))
    with ops.on("cpu"), pytest.raises(LaunchError, match="k = 192 is not a multiple of the group of 128"):
        int4.matmul(np.zeros((1, 192), np.float16), rows)
    with ops.on("cpu"), pytest.raises(LaunchError, match="takes 1 to 65535 tokens"):
        int4.matmul(np.zeros((65536, 128), np.float16), int4.repack(*packed(4, 128)))


def test_the_dispatcher_picks_what_can_run_and_is_right():
    q = packed(90, 256)
    for batch in (1, 2, 9, 33, 90):
        x = random(batch, 256, batch)
        exact = reference.gemm(quant.dequantise_int4(q), x)
        with ops.on("cpu"):
            for weights in (int4.Rows(*q), int4.repack(*q)):
                assert np.abs(int4.matmul(x, weights) - exact).max() < 0.01 * np.abs(exact).max()


def shared_of(rung, n, k, batch, macros):
    """Dynamic shared memory of a launch."""
    if rung.name == "13_stream_k":
        return stream_k.shared_bytes(stream_k.FORMATS["int4/13_stream_k"], macros)
    return int4.launch_of(rung, n, k, batch, macros).shared


@pytest.mark.share(2)
@pytest.mark.parametrize("slug", ["h200", "h100-pcie", "rtx-4070", None])
def test_every_choice_fits_its_device(slug):
    """Of the table, and of the rule where it has none: enough tokens, no more shared memory than there is, no
    spills."""
    arch = device.get(slug).sm if slug else "75"
    limit = {"90": 227, "75": 64}.get(arch, 99) * 1024
    chosen = set()
    for n, k in (*study.SHAPES, (1536, 1536), (64, 128), (151936, 1536)):
        for batch in (*study.BATCHES, 80, 128, 192, 256, 1848):
            name, macros = int4.choose(n, k, batch, True, slug or "none")
            rung = ops.rung_of(int4.LADDERS["int4"], name, "")
            if rung.arch_for(arch) not in rung.archs:
                assert slug is None and batch > 8  # Turing has rung 8, and rung 6 in row order
                continue
            macros = rung.with_defaults(macros)
            assert macros["TOKENS"] >= batch or name in int4.ANY_BATCH
            assert shared_of(rung, n, k, batch, macros) <= limit
            chosen.add((name, *sorted(macros.items())))
    for name in {name for name, *_ in chosen}:
        rung = ops.rung_of(int4.LADDERS["int4"], name, "")
        for _, *macros in thinned(pairs(sorted(one for one in chosen if one[0] == name)), step=3):
            assert rung.cubin(arch, dict(macros)).resources[rung.entry].spill_bytes == 0, (name, macros)


def test_a_small_matrix_beyond_64_tokens_takes_tiles_that_all_run_at_a_time():
    for n, k, batch in ((2048, 2048, 300), (1024, 2944, 258), (1536, 1536, 65), (4096, 4096, 128)):
        name, macros = int4.choose(n, k, batch, True, "h200")
        (blocks, tiles) = int4.launch_of(
            ops.rung_of(int4.LADDERS["int4"], name, ""), n, k, batch, macros
        ).grid
        assert name == "11_tma" and macros["TOKENS"] * tiles >= batch and blocks * tiles <= 132
    for n, k, batch in ((28672, 8192, 128), (8960, 1536, 96), (4096, 4096, 1024)):
        assert int4.choose(n, k, batch, True, "h200")[0] == "13_stream_k", "blocks that stay are faster"


@pytest.mark.parametrize("rung", int4.TILED, ids=lambda rung: rung.name)
def test_a_rung_declares_the_shared_memory_of_its_largest_launch(rung):
    macros = rung.with_defaults({})
    assert shared_of(rung, 512, 4096, macros["TOKENS"], macros) == rung.dynamic_shared


# --- the study ----------------------------------------------------------------------------------------------


def test_traffic_is_predicted_before_it_is_counted():
    """The source's figures for its 8960 x 1536 projection: 7.1 MB fused, 27.5 MB FP16; and two-op ways."""
    mb = {c.impl: study.traffic(c) / 1e6 for c in study.ladder(8960, 1536)}
    assert mb["1_warp_row"] == pytest.approx(7.1, abs=0.05) and mb["torch.matmul"] == pytest.approx(
        27.5, abs=0.1
    )
    assert mb["two_op"] == pytest.approx(7.1 + 4 * 8.96 * 1.536, abs=0.1)
    assert mb["torch.two_op"] > 4 * mb["two_op"]
    fused = next(c for c in study.published() if c.impl == "1_warp_row" and c.batch == 32 and c.n == 8960)
    assert study.traffic(fused) > 31 * 7e6  # the source's kernel reads its weights again for every token


def test_bytes_flops_and_bounds():
    found = study.Int4()
    h200 = device.get("h200")
    case = study.chosen(4096, 4096, 16)
    assert found.count(case) == (4096 * 4096 * 33 // 64 + 16 * 4 * 4096, 2 * 16 * 4096**2, "dram_read")
    assert found.predict(case, Context(device=h200)) == pytest.approx(
        found.count(case).bytes / h200.dram_gb_s / 1e3
    )
    assert found.predict(study.published()[0], Context(device=h200)) is None  # warm: no figure for the L2


def test_every_batch_meets_its_peers_in_one_group():
    found = studies.get("int4")
    for group in found.groups(found.cases("full", device.get("h200"))):
        if (
            group[0].clock == "graph"
            and group[0].cache == "cold"
            and (group[0].n, group[0].k) in study.SHAPES
            and group[0].batch in study.BATCHES
        ):
            assert {"torch.matmul", "humming", study.TINYGEMM} <= {case.impl for case in group}, group[0].id


def test_the_source_s_test_has_groups_and_operands_of_its_own():
    """Four shapes and seeds, normal weights: never among the contestants with random codes."""
    found = studies.get("int4")
    cases = study.seeded(device.get("h200"))
    assert {(c.n, c.k) for c in cases} == set(study.SEEDED) and len(cases) == 8
    for group in found.groups(found.cases("full", device.get("h200"))):
        assert len({(c.weights, seed_of(c)) for c in group}) == 1
    rung, macros, _ = found.rung(cases[1])
    assert rung in int4.TILED and "SEED" not in macros


def seed_of(case):
    return study.tunables(case).get("seed")


def test_another_gpu_is_asked_for_its_own_choice():
    """The H200's table holds what only Hopper runs; a GPU without one gets what it can run."""
    for gpu, arch in ((device.get("rtx-4070"), "89"), (study_base.Unlisted(30), "86")):
        cases = studies.get("int4").cases("quick", gpu)
        chosen = [c for c in cases if c == study.chosen(c.n, c.k, c.batch, gpu)]
        assert len(chosen) >= 12
        for case in chosen:
            rung, _, _ = studies.get("int4").rung(case)
            assert arch in rung.archs
    hopper = studies.get("int4").cases("full", device.get("h200"))
    assert any(c.impl == "10_wgmma" for c in hopper)
