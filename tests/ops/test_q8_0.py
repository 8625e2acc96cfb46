"""Q8_0 kernels on the CPU: every rung through the gate on ragged shapes, formats bit for bit, refusals."""

import needs
import numpy as np
import pytest
from fake_array import FakeArray
from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.numerics import quant, reference
from rooflab.ops import q8_0
from shares import thinned

needs.compiler()

LADDER = q8_0.LADDERS["q8_0"]


def random(rows, k, seed):
    """Numbers with a non-zero mean and outliers."""
    rng = np.random.default_rng(seed)
    spread = np.where(rng.random((rows, k)) < 1 / 64, 9, 1)
    return ((rng.standard_normal((rows, k)) + 0.2) * spread).astype(np.float16)


def uniform(n, k, tokens, seed):
    """The source's distributions: blocks of weights [n, k], x [tokens, k] FP16 and their exact product."""
    rng = np.random.default_rng(seed)
    blocks = np.empty((n, k // 32), quant.Q8_0)
    blocks["d"] = rng.uniform(0.01, 0.1, blocks.shape).astype(np.float16)
    blocks["q"] = rng.integers(-127, 128, (n, k // 32, 32))
    x = rng.uniform(-1, 1, (tokens, k)).astype(np.float16)
    return blocks, x, reference.gemm(quant.dequantise_q8(blocks), x)


def weights(kind, blocks):
    if kind == "planes":
        return quant.to_planes(blocks)
    return q8_0.Blocks(quant.to_bytes(blocks))


def activations(kind, x):
    """x [batch, k] FP16 as a rung takes it."""
    blocks = quant.quantise_q8_1(x)
    if kind == "half":
        return x
    if kind == "blocks":
        return q8_0.Blocks(quant.to_bytes(blocks))
    return quant.Planes(blocks["d"].copy(), blocks["q"].copy().reshape(x.shape))


def judged(kind, x):
    """The activations that the product is judged on: as quantised, exact in FP32."""
    return x.astype(np.float32) if kind == "half" else quant.dequantise_q8(quant.quantise_q8_1(x))


def budget(w, x, expected):
    baseline = (x.astype(np.float32) @ w.astype(np.float32).T).astype(np.float16)
    return gate.error_budget(float(np.abs(baseline.astype(np.float64) - expected).max()), expected, "float16")


def work(rung, n, k, batch, options=None):
    """A rung of q8_0 on the CPU as a contestant for the gate, two copies of the operands."""
    w_kind, x_kind, _, _ = q8_0.TAKES[rung.name]
    blocks, x = quant.quantise_q8_0(random(n, k, n + k)), random(batch, k, n)
    w32, x32 = quant.dequantise_q8(blocks), judged(x_kind, x)
    expected = reference.gemm(w32, x32)
    ws = [weights(w_kind, blocks.copy()) for _ in range(2)]
    xs = [activations(x_kind, x.copy()) for _ in range(2)]
    outputs = [[np.empty((batch, n), np.float16)] for _ in range(2)]

    def launch(i):
        with ops.on("cpu"):
            q8_0.matvec(xs[i], ws[i], out=outputs[i][0], rung=rung.name, **(options or {}))

    inputs = [q8_0.arrays_of(w) + q8_0.arrays_of(a) for w, a in zip(ws, xs, strict=True)]
    return gate.Work(rung.name, launch, inputs, outputs, lambda: expected, budget(w32, x32, expected))


@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.name)
def test_every_rung_passes_the_gate(rung):
    *_, most, multiple = q8_0.TAKES[rung.name]
    for n, k in ((1, multiple), (5, 3 * multiple), (37, 10 * multiple), (33, 2560)):
        for batch in (b for b in (1, 3, 8, 19, 30) if b <= most):
            admitted = gate.admit(work(rung, n, k, batch))
            admitted.recheck()


@pytest.mark.parametrize(
    ("rung", "options"),
    [
        ("4_planes", {"THREADS": 64, "UNROLL": 2}),
        ("5_batch", {"THREADS": 256, "ROWS": 2}),
        ("6_mma", {"THREADS": 64, "STAGES": 2, "ROW_TILES": 2, "TOKEN_TILES": 2}),
    ],
)
def test_tuned_rungs_pass_the_gate(rung, options):
    chosen = ops.rung_of(LADDER, rung, "")
    batch = 1 if rung == "4_planes" else 2
    gate.admit(work(chosen, 35, 1152, batch, options)).recheck()


@pytest.mark.share(3)
@pytest.mark.parametrize("arch", thinned(["75", "80", "86", "90", "89", "100", "120"], step=3))
def test_every_chosen_macro_compiles_unspilled_within_64_kib(arch):
    for rung in LADDER[4:]:
        for batch in range(1, q8_0.TAKES[rung.name][2] + 1):
            macros = rung.with_defaults(q8_0.options_for(rung, batch))
            report = rung.cubin(arch, macros).resources[rung.entry]
            assert report.spill_bytes == report.stack_bytes == 0, (rung.name, macros)
            assert report.shared_bytes + q8_0.matvec_launch(rung, 4096, macros)[2] <= 64 * 1024, macros


@pytest.mark.parametrize("rung", [rung.name for rung in LADDER])
def test_integer_dot_products_are_exact(rung):
    """Scales of one and an output below 2049: FP16 holds every integer there, so nothing may be rounded."""
    w_kind, x_kind, most, _ = q8_0.TAKES[rung]
    rng = np.random.default_rng(3)
    n, k, batch = 21, 256, min(most, 8)
    w = rng.integers(-127, 128, (n, k)).astype(np.float32)
    w[:, ::32] = 127  # so that every block's scale is exactly one
    x = np.zeros((batch, k), np.float32)
    x[:, ::32] = 127
    x[:, 1::32], x[:, 2::32] = -126, -1
    x[:, 5::32] = rng.integers(-8, 9, (batch, k // 32))
    w[:, 1::32], w[:, 2::32] = 127, 127  # 127 * (127 - 126 - 1) = 0: large terms that cancel
    w[:, 5::32] = rng.integers(-20, 21, (n, k // 32))
    expected = x @ w.T
    assert 100 < np.abs(expected).max() < 2048
    with ops.on("cpu"):
        got = q8_0.matvec(
            activations(x_kind, x.astype(np.float16)), weights(w_kind, quant.quantise_q8_0(w)), rung=rung
        )
    assert np.array_equal(got.astype(np.float32), expected)


def test_against_the_unquantised_product_two_percent_and_no_outliers():
    """The source's shapes and distributions, its tolerance, without its allowance of one row in a hundred."""
    for n, k in ((256, 256), (1024, 1024), (64, 2560)):
        blocks, x, exact = uniform(n, k, 1, 20260605 + n * 31 + k * 7)
        with ops.on("cpu"):
            got = q8_0.matvec(q8_0.quantise(x), quant.to_planes(blocks), rung="4_planes")
        assert np.abs(got - exact).max() <= 0.02 * np.sqrt((exact**2).mean())


# --- quantising, embedding, dequantising --------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "k"), [(1, 32), (3, 96), (5, 1088)])
def test_activations_are_quantised_bit_for_bit(batch, k):
    x = random(batch, k, k)
    x[0, :32] = 0
    x[-1, -32:] = np.float16(6e-8)  # the scale is far below FP16
    if batch > 1:
        x[1, :32] = np.linspace(-127, 127, 32).round() / 2  # halves, rounded away from zero
    expected = quant.quantise_q8_1(x)
    with ops.on("cpu"):
        blocks = q8_0.quantise(x, rung="1_blocks")
        planes = q8_0.quantise(x, rung="2_planes")
    assert np.array_equal(blocks.data, quant.to_bytes(expected))
    assert np.array_equal(planes.scales, expected["d"])
    assert np.array_equal(planes.quants.reshape(expected["q"].shape), expected["q"])


def test_embedding_is_bit_exact_token_by_token_and_at_once():
    table = quant.quantise_q8_0(random(19, 288, 4))
    tokens = np.array([3, 0, 18, 3, 7], np.int32)
    expected = quant.dequantise_q8(table[tokens])
    blocks = q8_0.Blocks(quant.to_bytes(table))
    with ops.on("cpu"):
        at_once = q8_0.embedding_q8_0(blocks, tokens)
        one = [q8_0.embedding_q8_0(blocks, tokens, index=i, rung="1_token") for i in range(len(tokens))]
    assert np.array_equal(at_once, expected) and np.array_equal(np.stack(one), expected)


@pytest.mark.parametrize("rung", [rung.name for rung in q8_0.LADDERS["dequantise"]])
def test_dequantising_rounds_once(rung):
    for n, k in ((3, 32), (7, 512), (5, 96)):
        blocks = quant.quantise_q8_0(random(n, k, k))
        with ops.on("cpu"):
            if rung == "3_shift" and k == 96:
                with pytest.raises(LaunchError, match="k = 96 must be a power of two"):
                    q8_0.dequantise(q8_0.Blocks(quant.to_bytes(blocks)), rung=rung)
                continue
            got = q8_0.dequantise(q8_0.Blocks(quant.to_bytes(blocks)), rung=rung)
        assert np.array_equal(got, quant.dequantise_q8(blocks).astype(np.float16))


# --- refusals -----------------------------------------------------------------------------------------------


def fake_planes(rows, k, address=4096):
    return quant.Planes(FakeArray((rows, k // 32), "float16"), FakeArray((rows, k), "int8", address))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: q8_0.matvec(fake_planes(1, 64), fake_planes(4, 96)), "x has k = 64 and w has k = 96"),
        (lambda: q8_0.matvec(fake_planes(9, 64), fake_planes(4, 64)), "takes at most 8 tokens, not 9"),
        (
            lambda: q8_0.matvec(fake_planes(33, 128), fake_planes(4, 128), rung="6_mma"),
            "at most 32 tokens, not 33",
        ),
        (
            lambda: q8_0.matvec(fake_planes(1, 96), fake_planes(4, 96), rung="6_mma"),
            "multiple of 128, not 96",
        ),
        (
            lambda: q8_0.matvec(fake_planes(1, 64), fake_planes(4, 64, 4104)),
            "quants of w must start at a mul",
        ),
        (
            lambda: q8_0.matvec(fake_planes(1, 64), fake_planes(4, 64), rung="3_scale"),
            "takes weights in blocks and activations in blocks, not planes and planes",
        ),
        (
            lambda: q8_0.matvec(fake_planes(3, 64), fake_planes(4, 64), rung="5_batch", BATCH=2),
            "so built takes 2 tokens, not 3",
        ),
        (
            lambda: q8_0.matvec(fake_planes(1, 64).quants, q8_0.Blocks(FakeArray((4, 67), "uint8"))),
            "67 bytes",
        ),
        (lambda: q8_0.quantise(FakeArray((1, 48), "float16")), "multiple of 32, not 48"),
        (lambda: q8_0.quantise(FakeArray((32,), "float16")), "matrices of two dimensions"),
    ],
)
def test_a_launcher_refuses_in_a_sentence(act, says):
    with pytest.raises(LaunchError, match=says):
        act()


def test_two_to_the_31_elements_are_refused_before_anything_is_cast():
    """k times tokens = 2^31 wraps to a negative int; one token less would do."""
    k = 1 << 20
    with pytest.raises(LaunchError, match="2147483648, beyond 1 to 2147483647"):
        q8_0.quantise(FakeArray((2048, k), "float16"))
    with pytest.raises(LaunchError, match="x must hold float16, not float32"):  # the sizes were accepted
        q8_0.quantise(FakeArray((2047, k), "float32"))
    with pytest.raises(LaunchError, match="2147483648, beyond"):
        q8_0.matvec(fake_planes(1, 32), fake_planes(1 << 31, 32))
