"""MMQ kernels on the CPU: every rung through the gate on ragged shapes, exact integers, refusals."""

import needs
import numpy as np
import pandas as pd
import pytest
from fake_array import FakeArray
from rooflab import ops, paths
from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.numerics import quant, reference
from rooflab.ops import mmq, q8_0
from test_q8_0 import activations, budget, fake_planes, random, uniform, weights

needs.compiler()

LADDER = [rung for rung in mmq.LADDERS["mmq"] if rung.archs != ("90a",)]  # Hopper's don't run on a CPU


def kind(rung):
    return "blocks" if int(rung[0]) <= 3 else "planes"


def product(rung, x, blocks, **options):
    with ops.on("cpu"):
        return mmq.product(activations("planes", x), weights(kind(rung), blocks), rung=rung, **options)


def operands(kind, n, k, batch):
    """Weights of a kind, activations as planes, the exact product and the error allowed."""
    blocks, x = quant.quantise_q8_0(random(n, k, n + k)), random(batch, k, n)
    w32, x32 = quant.dequantise_q8(blocks), quant.dequantise_q8(quant.quantise_q8_1(x))
    expected = reference.gemm(w32, x32)
    return weights(kind, blocks), activations("planes", x), expected, budget(w32, x32, expected)


def work(rung, n, k, batch, options):
    w, a, expected, allowed = operands(kind(rung), n, k, batch)
    output = np.empty((batch, n), np.float16)

    def launch(i):
        with ops.on("cpu"):
            mmq.product(a, w, out=output, rung=rung, **options)

    inputs = [q8_0.arrays_of(w) + q8_0.arrays_of(a)]
    return gate.Work(rung, launch, inputs, [[output]], lambda: expected, allowed)


@pytest.mark.parametrize("rung", [rung.name for rung in LADDER])
@pytest.mark.parametrize(("n", "k", "batch"), [(1, 128, 1), (70, 256, 9), (130, 384, 70), (64, 128, 129)])
def test_every_rung_passes_the_gate(rung, n, k, batch):
    gate.admit(work(rung, n, k, batch, {})).recheck()


@pytest.mark.parametrize(
    ("rung", "options"),
    [
        ("1_tile", {"SCALE_BYTES": 1}),
        ("4_cp_async", {"STAGES": 2}),
        ("5_large_tiles", {"ROW_TILES": 2, "ROW_WARPS": 4, "TOKEN_WARPS": 2, "STAGES": 3}),
        ("5_large_tiles", {"ROW_WARPS": 2, "TOKEN_WARPS": 2, "UNROLL": 4}),
    ],
)
def test_tuned_rungs_pass_the_gate(rung, options):
    gate.admit(work(rung, 70, 512, 33, options)).recheck()


@pytest.mark.parametrize("rung", [rung.name for rung in LADDER])
def test_integer_dot_products_are_exact(rung):
    """Scales of one, large terms that cancel, outputs below 2049 that FP16 holds: no rounding."""
    rng = np.random.default_rng(3)
    n, k, batch = 70, 256, 20
    w = rng.integers(-127, 128, (n, k)).astype(np.float32)
    w[:, ::32], w[:, 1::32], w[:, 2::32] = 127, 127, 127
    x = np.zeros((batch, k), np.float32)
    x[:, ::32], x[:, 1::32], x[:, 2::32] = 127, -126, -1  # 127 (127 - 126 - 1) = 0
    x[:, 5::32] = rng.integers(-8, 9, (batch, k // 32))
    w[:, 5::32] = rng.integers(-20, 21, (n, k // 32))
    expected = x @ w.T
    assert 100 < np.abs(expected).max() < 2048
    got = product(rung, x.astype(np.float16), quant.quantise_q8_0(w))
    assert np.array_equal(got.astype(np.float32), expected)


def test_the_largest_block_product_is_exact():
    """32 x 127 x 127, and what bytes allow beyond the format: 32 x 128 x 128."""
    blocks = np.zeros((64, 4), quant.Q8_0)
    x = quant.Planes(np.full((2, 4), 2.0**-9, np.float16), np.zeros((2, 128), np.int8))
    blocks["d"] = np.float16(2.0**-8)
    blocks["q"][:, 1], x.quants[0, 32:64], x.quants[1, 32:64] = -128, -128, 127
    with ops.on("cpu"):
        got = mmq.product(x, quant.to_planes(blocks), rung="5_large_tiles")
    assert (got[0] == 2.0**-17 * 32 * 128 * 128).all() and (got[1] == -(2.0**-17) * 32 * 128 * 127).all()


@pytest.mark.parametrize(
    ("n", "k", "tokens"), [(256, 256, 8), (1024, 512, 12), (33, 256, 5), (128, 2560, 64)]
)
def test_against_the_unquantised_product_two_percent_and_no_outliers(n, k, tokens):
    """The source's four shapes and distributions, its tolerance, none of its allowance for outliers."""
    blocks, x, exact = uniform(n, k, tokens, 20260605 + n * 31 + k * 7 + tokens)
    got = product("5_large_tiles", x, blocks)
    assert np.abs(got - exact).max() <= 0.02 * np.sqrt((exact**2).mean())


@pytest.mark.parametrize("batch", [1, 3, 8, 70])
def test_the_dispatcher_multiplies_whatever_it_chooses(batch):
    blocks, x = quant.quantise_q8_0(random(66, 256, 1)), random(batch, 256, 2)
    w32, x32 = quant.dequantise_q8(blocks), quant.dequantise_q8(quant.quantise_q8_1(x))
    expected = reference.gemm(w32, x32)
    got = mmq.multiply(x, quant.to_planes(blocks), target="cpu")
    assert np.abs(got - expected).max() <= budget(w32, x32, expected)


def test_the_dispatcher_changes_rungs_where_more_tokens_ask_for_it():
    chosen = [mmq.dispatch(14336, 4096, batch, hopper=True) for batch in (1, 2, 5, 32, 33)]
    assert chosen == [
        *(("q8_0", rung) for rung in ("5_batch", "5_batch", "6_mma", "6_mma")),
        ("mmq", "7_fp16_wgmma"),
    ]
    assert mmq.dispatch(8192, 8192, 2048, hopper=False) == ("mmq", "5_large_tiles")


def test_of_the_two_rungs_that_make_halves_of_planes_the_recording_s_faster_one_is_chosen():
    """On every shape of the H200's recording, within 5 %."""
    rows = pd.read_csv(paths.DATA / "h200" / "mmq.csv")
    names = [name for name in mmq.HALVES if mmq.order_of(name) == "planes"]
    rows = rows[rows["impl"].isin(names) & (rows["clock"] == "graph") & (rows["cache"] == "cold")]
    rows = rows[(rows["batch"] > 32) & rows["median_us"].notna()]
    assert rows.groupby(["n", "k", "batch"])["impl"].nunique().max() == 2
    for (n, k, batch), found in rows.groupby(["n", "k", "batch"]):
        us = found.groupby("impl")["median_us"].min()
        assert us.get(mmq.half_rung(int(n), int(k), int(batch)), us.min()) <= 1.05 * us.min()


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: mmq.product(fake_planes(9, 128), fake_planes(4, 256)), "x has k = 128 and w has k = 256"),
        (lambda: mmq.product(fake_planes(9, 96), fake_planes(4, 96)), "multiple of 128, not 96"),
        (
            lambda: mmq.product(fake_planes(9, 64), fake_planes(4, 64), rung="2_prefetch"),
            "takes weights in blocks and activations in planes, not planes and planes",
        ),
        (
            lambda: mmq.product(fake_planes(1 << 20, 2048), fake_planes(4, 2048)),
            "2147483648, beyond 1 to 2147483647",
        ),
        (
            lambda: mmq.product(fake_planes(1, 128), fake_planes(1 << 28, 128)),
            "268435456 x 128 weights are too many|grid of at most 65535",
        ),
        (
            lambda: mmq.product(fake_planes(2, 128), fake_planes(4, 128), out=FakeArray((2, 4), "float32")),
            "out must hold float16",
        ),
    ],
)
def test_a_launcher_refuses_in_a_sentence(act, says):
    with pytest.raises(LaunchError, match=says):
        act()
