"""The oracles against sums done by hand and by exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rooflab.errors import UsageError
from rooflab.numerics import reference


def test_streams():
    x, y = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    assert reference.saxpy(2, x, y).tolist() == [12, 24, 36]
    assert reference.triad(x, y, 0.5).tolist() == [6, 12, 18]
    assert reference.saxpy(2, x, y).dtype == reference.triad(x, y, 1).dtype == np.float64


def test_saxpy_keeps_what_single_precision_loses():
    x, y = np.array([1], np.float32), np.array([2.0**24], np.float32)
    assert reference.saxpy(1, x, y)[0] == 2.0**24 + 1


def test_copy_is_a_copy():
    x = np.array([1.5, np.nan], np.float32)
    y = reference.copy(x)
    assert y.tobytes() == x.tobytes() and not np.shares_memory(x, y)


def test_read_sum_wraps_and_reads_bytes():
    words = np.array([2**32 - 1, 2**32 - 1, 5], np.uint32)
    assert reference.read_sum(words) == (2 * (2**32 - 1) + 5) % 2**32 == 3
    assert reference.read_sum(np.array([1, 2, 3], np.int32)) == 6
    assert reference.read_sum(np.array([[1.0]], np.float32)) == 0x3F800000
    assert reference.read_sum(np.array([1, 0, 0, 0, 0, 1, 0, 0], np.uint8)) == 257
    assert reference.read_sum(np.full(1 << 20, 2**32 - 1, np.uint32)) == -(1 << 20) % 2**32
    with pytest.raises(UsageError, match="6 bytes"):
        reference.read_sum(np.zeros(3, np.float16))


def test_gemv_and_gemm():
    w = np.array([[1, 2, 3], [4, 5, 6]], np.float16)
    assert reference.gemv(w, np.array([1, 10, 100], np.float16)).tolist() == [321, 654]
    assert reference.gemm(w, np.array([[1, 0, 0], [0, 1, 1]])).tolist() == [[1, 4], [5, 11]]
    with pytest.raises(UsageError, match=r"\(2, 3\).*\(1, 2\)"):
        reference.gemv(w, np.ones(2))


def test_gemm_in_pieces_is_the_same(monkeypatch):
    generator = np.random.default_rng(3)
    w, x = generator.integers(-9, 9, (7, 5)), generator.integers(-9, 9, (3, 5))
    whole = reference.gemm(w, x)
    monkeypatch.setattr(reference, "_CHUNK", 10)
    assert np.array_equal(reference.gemm(w, x), whole)
    assert np.array_equal(whole, x @ w.T)


@given(st.floats(-60000, 60000, width=16))
def test_ulp_fp16_matches_numpy(x):
    assert reference.ulp(x, "fp16") == np.spacing(np.abs(np.float16(x)))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=200)
def test_ulp_fp32_matches_numpy(x):
    largest = np.finfo(np.float32).max
    if abs(x) < largest:
        assert reference.ulp(x, "fp32") == np.spacing(np.abs(np.float32(x)))


@given(st.floats(2.0**-100, 2.0**100, width=32))
def test_ulp_bf16_is_65536_of_fp32(x):
    assert reference.ulp(x, "bf16") == 65536 * reference.ulp(x, "fp32")


def test_ulp_edges():
    assert reference.ulp([1.0, -1.0, 1.99, 2.0, 0.0], "fp16").tolist() == [
        2**-10,
        2**-10,
        2**-10,
        2**-9,
        2**-24,
    ]
    assert reference.ulp(0, "bf16") == 2.0**-133
    assert np.isnan(reference.ulp([np.inf, np.nan], "fp32")).all()
    assert reference.ulp(1, "fp64") == np.finfo(np.float64).eps
    with pytest.raises(UsageError, match="'fp8'"):
        reference.ulp(1, "fp8")


def test_gemv_is_exact_where_single_precision_cancels():
    w = np.array([[1e8, 1, -1e8]], np.float32)
    exact = sum(Fraction(float(v)) for v in w[0])
    assert reference.gemv(w, np.ones(3))[0] == exact == 1


def attention_by_hand(q, k, v, start, causal, window, scale):
    """The definition, a query and a key at a time, in Python's own numbers."""
    out = np.zeros(q.shape)
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h * k.shape[1] // q.shape[1]
            seen = [
                j
                for j in range(k.shape[0])
                if not causal or (j <= start + i and (window is None or j > start + i - window))
            ]
            scores = [
                scale * math.fsum(float(a) * float(b) for a, b in zip(q[i, h], k[j, g], strict=True))
                for j in seen
            ]
            weights = [math.exp(s - max(scores)) for s in scores]
            for d in range(q.shape[2]):
                terms = [w * float(v[j, g, d]) for w, j in zip(weights, seen, strict=True)]
                out[i, h, d] = math.fsum(terms) / math.fsum(weights) if seen else 0
    return out


@pytest.mark.parametrize(
    ("start", "causal", "window"),
    [(0, True, None), (3, True, None), (0, False, None), (2, True, 3), (9, True, 2)],
)
def test_attention_is_its_definition(start, causal, window):
    rng = np.random.default_rng(start)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((5, 4, 6), (7, 2, 6), (7, 2, 6)))
    found = reference.attention(q, k, v, start=start, causal=causal, window=window)
    expected = attention_by_hand(q, k, v, start, causal, window, 1 / np.sqrt(6))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_attention_at_its_edges():
    q, k, v = np.ones((2, 1, 4)), np.ones((2, 1, 4)), np.arange(8.0).reshape(2, 1, 4)
    assert (reference.attention(q, k, v)[:, 0] == [[0, 1, 2, 3], [2, 3, 4, 5]]).all()
    assert (reference.attention(1e4 * q, 1e4 * k, v)[1, 0] == [2, 3, 4, 5]).all()  # large logits
    assert (reference.attention(q, k, v, start=9, window=2) == 0).all()  # every key is out of the window
    assert (reference.attention(q, k[:0], v[:0]) == 0).all()
    for broken in (k, v):
        poisoned = broken.copy()
        poisoned[1, 0, 2] = np.nan  # the second query sees it, the first does not
        found = reference.attention(q, *((poisoned, v) if broken is k else (k, poisoned)))
        assert np.isfinite(found[0]).all() and np.isnan(found[1, 0, 2])
    with pytest.raises(UsageError, match="3 query heads do not share 2"):
        reference.attention(np.ones((1, 3, 4)), np.ones((1, 2, 4)), np.ones((1, 2, 4)))
    with pytest.raises(UsageError, match="must be .n, heads, d."):
        reference.attention(q, k, v[:1])
    with pytest.raises(UsageError, match="window of at least one key"):
        reference.attention(q, k, v, causal=False, window=2)
