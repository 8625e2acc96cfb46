"""Number formats bit for bit: worked examples, edges, and properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rooflab.errors import UsageError
from rooflab.numerics import quant


def matrices(size, largest):
    """Float32 matrices [N, K] with K a multiple of size, none of them tiny but for exact zeros."""
    shape = st.tuples(st.integers(1, 3), st.integers(1, 3).map(lambda i: i * size))
    element = st.floats(-largest, largest, width=32).map(lambda v: 0.0 if abs(v) < 1e-2 else v)
    return shape.flatmap(lambda s: hnp.arrays(np.float32, s, elements=element))


# --- INT4 ---


def test_int4_by_hand():
    w = np.zeros((1, 16), np.float32)
    w[0, :8] = [
        7,
        -7,
        3.5,
        0.4,
        -0.5,
        1.5,
        2.5,
        -3.6,
    ]  # scale 1: half to even, so 3.5 -> 4, -0.5 -> 0, 2.5 -> 2
    w[0, 8:] = [0.5, -0.25, 0, 0, 0, 0, 0, 3.5]  # scale 0.5
    packed = quant.quantise_int4(w, group=8)
    assert packed.scales.dtype == np.float16 and packed.scales.tolist() == [[1.0, 0.5]]
    assert quant.unpack_int4(packed.qweight).tolist() == [[7, -7, 4, 0, 0, 2, 2, -4, 1, 0, 0, 0, 0, 0, 0, 7]]
    # nibbles q + 8, the first at the low bits: f 1 c 8 8 a a 4 and 9 8 8 8 8 8 8 f
    assert [hex(word) for word in packed.qweight.view(np.uint32)[0]] == ["0x4aa88c1f", "0xf8888889"]
    assert packed.qweight.dtype == np.int32 and packed.qweight.tolist() == [[0x4AA88C1F, 0xF8888889 - 2**32]]
    expected = [7, -7, 4, 0, 0, 2, 2, -4, 0.5, 0, 0, 0, 0, 0, 0, 3.5]
    assert quant.dequantise_int4(packed, group=8).tolist() == [expected]


def test_int4_shapes_and_size():
    packed = quant.quantise_int4(np.ones((3, 256)))
    assert packed.qweight.shape == (3, 32) and packed.scales.shape == (3, 2)
    bits = 8 * (packed.qweight.nbytes + packed.scales.nbytes) / (3 * 256)
    assert bits == 4.125


def test_int4_scale_is_rounded_before_it_divides():
    # 3.3 / 7 rounds to an FP16 scale; 1.6501 lies between the midpoints of 3.5 steps of the two scales.
    w = np.zeros((1, 128), np.float32)
    w[0, 0] = 3.3
    scale = np.float32(np.float16(np.float32(3.3) / np.float32(7)))
    exact = np.float32(3.3) / np.float32(7)
    assert scale != exact
    w[0, 1] = (3.5 * scale + 3.5 * exact) / 2
    q = quant.unpack_int4(quant.quantise_int4(w).qweight)
    assert q[0, 1] == (4 if scale < exact else 3)


def test_int4_zero_group_is_exactly_zero():
    w = np.zeros((2, 256), np.float32)
    w[1, 200] = 1
    packed = quant.quantise_int4(w)
    assert (packed.scales > 0).all()
    assert packed.qweight[0].tolist() == [0x88888888 - 2**32] * 32
    assert np.array_equal(quant.dequantise_int4(packed)[0], np.zeros(256))
    assert quant.dequantise_int4(packed)[1, 200] == pytest.approx(1, rel=1e-3)


def test_int4_outlier_flattens_only_its_own_group():
    w = np.full((1, 256), 0.01, np.float32)
    w[0, 3] = 1000
    back = quant.dequantise_int4(quant.quantise_int4(w))
    assert back[0, 3] == pytest.approx(1000, rel=1e-3)
    assert (back[0, :3] == 0).all() and (back[0, 4:128] == 0).all()
    assert back[0, 128:] == pytest.approx(0.01, rel=1e-3)


def test_int4_tiny_weights_stay_finite():
    w = np.full((1, 128), 1e-30, np.float32)
    packed = quant.quantise_int4(w)
    assert packed.scales[0, 0] == np.float16(2.0**-24)
    assert (quant.dequantise_int4(packed) == 0).all()


@given(matrices(16, 1e4))
@settings(max_examples=60)
def test_int4_error_is_at_most_half_a_step(w):
    packed = quant.quantise_int4(w, group=16)
    steps = np.repeat(packed.scales.astype(np.float64), 16, axis=-1)
    error = np.abs(quant.dequantise_int4(packed, group=16).astype(np.float64) - w)
    assert (error <= steps / 2 * (1 + 1e-6)).all()
    q = quant.unpack_int4(packed.qweight)
    assert q.min() >= -7 and q.max() <= 7
    assert np.array_equal(quant.quantise_int4(-w, group=16).scales, packed.scales)
    assert np.array_equal(quant.unpack_int4(quant.quantise_int4(-w, group=16).qweight), -q)


@given(hnp.arrays(np.int8, (3, 24), elements=st.integers(-8, 7)))
@settings(max_examples=60)
def test_int4_packing_round_trip(q):
    assert np.array_equal(quant.unpack_int4(quant.pack_int4(q)), q)


@given(matrices(128, 100))
@settings(max_examples=30)
def test_int4_quantising_what_was_quantised_changes_nothing(w):
    once = quant.dequantise_int4(quant.quantise_int4(w))
    twice = quant.dequantise_int4(quant.quantise_int4(once))
    # Where a group uses +-7 its scale is recovered exactly.
    full = np.abs(quant.unpack_int4(quant.quantise_int4(w).qweight)).reshape(w.shape[0], -1, 128).max(-1) == 7
    mask = np.repeat(full, 128, axis=-1)
    assert np.array_equal(once[mask], twice[mask])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: quant.quantise_int4(np.ones((2, 100))), "K = 100 is not a multiple of the group of 128"),
        (lambda: quant.quantise_int4(np.ones((2, 0))), "K = 0"),
        (lambda: quant.quantise_int4(np.ones((2, 36)), group=12), "group of 12.*multiple of 8"),
        (lambda: quant.quantise_int4(np.ones(128)), "matrix"),
        (lambda: quant.quantise_int4(np.full((1, 128), np.nan)), "NaN or infinity"),
        (lambda: quant.quantise_int4(np.full((1, 128), np.inf)), "NaN or infinity"),
        (lambda: quant.quantise_int4(np.full((1, 128), 1e6)), "7 x 65504"),
        (lambda: quant.pack_int4(np.full((1, 8), 8, np.int8)), r"outside \[-8, 7\]"),
        (lambda: quant.pack_int4(np.zeros((1, 12), np.int8)), "K = 12"),
        (lambda: quant.dequantise_int4(quant.quantise_int4(np.ones((1, 128))), group=64), "do not cover"),
        (lambda: quant.quantise_q8_0(np.ones((2, 33))), "K = 33 is not a multiple of the block of 32"),
        (lambda: quant.quantise_q8_0(np.float32(1)), "K = 0"),
        (lambda: quant.quantise_q8_0(np.full(32, -np.inf)), "NaN or infinity"),
        (lambda: quant.quantise_q8_1(np.full(32, np.nan)), "NaN or infinity"),
        (lambda: quant.quantise_q8_0(np.full(32, 1e7)), "127 x 65504"),
        (lambda: quant.quantise_q8_1(np.full(32, 1e5)), "sum of a Q8_1 block"),
        (lambda: quant.from_bytes(np.zeros(35, np.uint8), quant.Q8_0), "35 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(act, message):
    with pytest.raises(UsageError, match=message):
        act()


# --- Q8_0 and Q8_1 ---


def test_q8_0_by_hand():
    x = np.zeros(32, np.float32)
    x[:7] = [127, -127, 0.5, -0.5, 1.5, 2.4999, -2.5]  # d = 1: half away from zero
    blocks = quant.quantise_q8_0(x)
    assert blocks.shape == (1,) and blocks["d"][0] == 1
    assert blocks["q"][0, :8].tolist() == [127, -127, 1, -1, 2, 2, -3, 0]
    raw = quant.to_bytes(blocks)
    assert raw.shape == (34,)
    # 1.0 in FP16 is 0x3c00, low byte first; then the integers.
    assert raw[:9].tolist() == [0x00, 0x3C, 127, 129, 1, 255, 2, 2, 253]


def test_q8_1_by_hand():
    x = np.zeros((1, 64), np.float32)
    x[0, :3] = [254, -2, 1]  # d = 2, q = 127, -1, 1 (0.5 away from zero), sum 127
    x[0, 32] = -12.7
    blocks = quant.quantise_q8_1(x)
    assert blocks["q"][0, 0, :4].tolist() == [127, -1, 1, 0]
    assert blocks["d"][0, 0] == 2 and blocks["s"][0, 0] == 254
    assert blocks["q"][0, 1, 0] == -127
    assert blocks["d"][0, 1] == np.float16(0.1) and blocks["s"][0, 1] == np.float16(-12.7)
    raw = quant.to_bytes(blocks)
    assert raw.shape == (1, 72)
    assert raw[0, :7].tolist() == [0x00, 0x40, 0xF0, 0x5B, 127, 255, 1]


def test_q8_1_sum_uses_the_unrounded_scale():
    x = np.full(32, 0.1, np.float32)
    d = np.float32(0.1) / np.float32(127)
    block = quant.quantise_q8_1(x)[0]
    assert np.float16(d) * np.float32(127 * 32) != np.float16(d * np.float32(127 * 32))
    assert block["s"] == np.float16(d * np.float32(127 * 32))


def test_q8_rounding_just_below_a_half():
    below = np.nextafter(np.float32(0.5), np.float32(0))
    x = np.zeros(32, np.float32)
    x[:3] = [127, below, -below]
    assert quant.quantise_q8_0(x)["q"][0, 1:3].tolist() == [0, 0]


def test_q8_zero_and_vanishing_blocks():
    x = np.zeros(96, np.float32)
    x[32] = 1e-45  # the smallest FP32 subnormal: 1 / d overflows
    x[64] = 1
    blocks = quant.quantise_q8_1(x)
    assert blocks["d"].tolist()[:2] == [0, 0] and blocks["s"].tolist()[:2] == [0, 0]
    assert (blocks["q"][:2] == 0).all()
    back = quant.dequantise_q8(blocks)
    assert (back[:64] == 0).all() and back[64] == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("quantise", [quant.quantise_q8_0, quant.quantise_q8_1])
@given(x=matrices(32, 400))
@settings(max_examples=60)
def test_q8_error_is_half_a_step_and_the_scale_rounding(quantise, x):
    blocks = quantise(x)
    largest = np.abs(x.reshape(x.shape[0], -1, 32)).max(axis=-1).astype(np.float64)
    step = np.repeat(largest / 127, 32, axis=-1)
    error = np.abs(quant.dequantise_q8(blocks).astype(np.float64) - x)
    # Half a step, and for |q| = 127 the FP16 rounding of d, 2^-11 of it (subnormal d: 2^-25 absolute).
    assert (error <= step * (0.5 + 1e-5) + 127 * np.maximum(step * 2.0**-11, 2.0**-25)).all()
    assert np.array_equal(quantise(-x)["q"], -blocks["q"])


@pytest.mark.parametrize(
    ("quantise", "block"), [(quant.quantise_q8_0, quant.Q8_0), (quant.quantise_q8_1, quant.Q8_1)]
)
@given(x=matrices(32, 400))
@settings(max_examples=30)
def test_q8_bytes_round_trip(quantise, block, x):
    blocks = quantise(x)
    raw = quant.to_bytes(blocks)
    assert raw.shape == (x.shape[0], x.shape[1] // 32 * block.itemsize)
    assert quant.from_bytes(raw, block).tobytes() == blocks.tobytes()
    assert quant.from_bytes(raw, block).shape == blocks.shape


def test_q8_0_is_eight_and_a_half_bits_per_weight():
    assert quant.Q8_0.itemsize == 34 and quant.Q8_1.itemsize == 36
    assert 8 * quant.to_bytes(quant.quantise_q8_0(np.ones((4, 64)))).size / 256 == 8.5


@given(matrices(32, 400))
@settings(max_examples=30)
def test_q8_0_and_q8_1_agree(x):
    a, b = quant.quantise_q8_0(x), quant.quantise_q8_1(x)
    assert np.array_equal(a["q"], b["q"]) and np.array_equal(a["d"], b["d"])


@given(matrices(32, 400))
@settings(max_examples=30)
def test_planes_lose_nothing(x):
    blocks = quant.quantise_q8_0(x)
    planes = quant.to_planes(blocks)
    assert planes.scales.shape == blocks.shape and planes.quants.shape == x.shape
    assert planes.scales.flags.c_contiguous and planes.quants.flags.c_contiguous
    assert planes.scales.nbytes + planes.quants.nbytes == quant.to_bytes(blocks).nbytes
    assert quant.from_planes(planes).tobytes() == blocks.tobytes()


def test_any_34_bytes_survive_the_repack():
    raw = np.random.default_rng(0).integers(0, 256, (6, 34 * 4), dtype=np.uint8)  # NaN scales and -128 too
    blocks = quant.from_bytes(raw, quant.Q8_0)
    assert np.array_equal(quant.to_bytes(quant.from_planes(quant.to_planes(blocks))), raw)


def test_planes_that_do_not_fit_are_refused():
    planes = quant.to_planes(quant.quantise_q8_0(np.ones((2, 64))))
    with pytest.raises(UsageError, match="not planes of the same blocks"):
        quant.from_planes(quant.Planes(planes.scales[:1], planes.quants))
    with pytest.raises(UsageError, match="planes hold Q8_0 blocks"):
        quant.to_planes(quant.quantise_q8_1(np.ones((2, 64))))
