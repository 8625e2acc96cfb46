"""A batch's kernels on the CPU: products in every format with what comes after them, norms, attention."""

import needs
import numpy as np
import pytest
from rooflab import ops
from rooflab.analysis.drafts import held_of
from rooflab.errors import LaunchError
from rooflab.numerics import rotary
from rooflab.ops import attention, batch_choice, batch_ops, batch_plan, decoder
from shares import thinned

needs.compiler()

RNG = np.random.default_rng(11)
FORMATS = decoder.FORMATS


def halves(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


@pytest.fixture(autouse=True)
def on_the_cpu():
    with ops.on("cpu"):
        yield


def matrix(n, k, format):
    """Weights as the kernel takes them, and what they stand for."""
    return batch_ops._weights(halves(n, k), format)


def near(got, expected, rounded=False):
    """Within half a unit in the last place of the largest number, or of weights rounded to halves before."""
    allowed = np.spacing(np.float16(np.abs(expected).max())) / 2 * (4 if rounded else 1) + 1e-3
    return np.abs(got - expected).max() <= allowed


@pytest.mark.share(3)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("n", "k", "batch"), [(64, 128, 1), (192, 256, 8), (128, 384, 9), (64, 640, 32), (64, 3584, 3)]
)
def test_a_product_is_right_in_every_format_whole_and_in_parts(format, n, k, batch):
    w, values = matrix(n, k, format)
    x = halves(batch, k)
    expected = x.astype(np.float64) @ values.T
    out = np.full((batch, n), np.nan, np.float16)
    assert batch_ops.product(x, w, out=out) is out
    assert near(out, expected, format == "q8_0")
    splits = batch_ops.parts_of(n, k, batch, format, 3)
    parts = np.full((splits, batch, n), np.nan, np.float32)
    batch_ops.product(x, w, out=parts, then=batch_ops.PARTS)
    assert near(parts.sum(0), expected, format == "q8_0")


def test_k_is_divided_where_that_leaves_less_of_x_to_read_and_no_block_without_work():
    down = [batch_plan.plan_for(1536, 8960, batch, "fp16", True, 132) for batch in (2, 8, 32)]
    assert [plan.splits for plan in down] == sorted(plan.splits for plan in down) and down[-1].splits > 1
    assert batch_plan.plan_for(1536, 8960, 8, "fp16", False, 132).splits == 1
    for n, k in ((2048, 1536), (1536, 8960), (17920, 1536), (151936, 1536)):
        for batch in (1, 8, 9, 24, 32):
            plan = batch_plan.plan_for(n, k, batch, "fp16", True, 132)
            assert plan.splits * plan.warps * plan.chunks * 64 == k and plan.blocks * plan.splits <= 132
            words = 8 * -(-batch // 8) * plan.chunks
            assert words <= 160 and 32 * plan.warps * (words + 80) <= 65536
            macros, shared = batch_plan.macros_for(plan, n, batch, 0, "90")
            assert macros["STAGES"] >= 1 and shared <= 226 * 1024
    for sizes in ((1536, 8960, 33), (24, 128, 8), (64, 96, 8), (64, 64 * 17 * 23, 8)):
        assert batch_plan.plan_for(*sizes, "fp16", False, 132) is None
    assert batch_plan.plan_for(80, 128, 8, "int4_g128", False, 132) is None
    assert batch_plan.plan_for(64, 192, 8, "int4_g128", False, 132) is None


def test_heads_that_do_not_fit_are_refused_in_a_sentence():
    w, x, turns = matrix(256, 256, "fp16")[0], halves(3, 256), rotary.rotations(16, 32, 1e4)
    queries = np.empty((3, 4, 32), np.float16)
    keys, values = (np.empty((8, 3, 2, 32), np.float16) for _ in range(2))
    to = batch_ops.Heads(halves(256), turns, np.array([5], np.int32), keys, values)
    with pytest.raises(LaunchError, match="Positions 0 to 8 are not among 4 rotations"):
        batch_ops.product(x, w, out=queries, then=batch_ops.ROPE, heads=to._replace(rotations=turns[:4]))
    with pytest.raises(LaunchError, match="Heads are what ROPE needs"):
        batch_ops.product(x, w, out=queries, then=batch_ops.ROPE)
    with pytest.raises(LaunchError, match="rows are not 4 "):
        batch_ops.product(x[:, :128].copy(), matrix(64, 128, "fp16")[0], out=queries, then=1, heads=to)


@pytest.mark.parametrize("width", [8, 520, 1536, 8192])
@pytest.mark.parametrize("splits", [0, 1, 3])
def test_parts_join_the_residual_which_is_normalised(width, splits):
    residual, weights = halves(3, width).astype(np.float32), halves(width)
    parts = halves(splits, 3, width).astype(np.float32) if splits else None
    total = residual.astype(np.float64) + (0 if parts is None else parts.sum(0))
    here, out = residual.copy(), np.full((3, width), np.nan, np.float16)
    batch_ops.rmsnorm(here, weights, out=out, parts=parts)
    wanted = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
    assert np.abs(here - total).max() < 1e-5 and np.abs(out - wanted).max() <= np.spacing(np.float16(8))
    with pytest.raises(LaunchError, match="multiple of 4 up to 8192, not 8196"):
        wide = np.zeros((1, 8196), np.float32)
        batch_ops.rmsnorm(wide, wide[0].astype(np.float16), out=wide.astype(np.float16))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(6, 1, 64), (12, 2, 128), (18, 2, 32), (4, 4, 16)]
)
@pytest.mark.parametrize(
    ("length", "capacity", "splits"), [(1, 40, 1), (17, 40, 2), (300, 300, 1), (417, 700, 3)]
)
def test_attention_sees_every_key_and_the_newest(heads, kv_heads, head_dim, length, capacity, splits):
    q, k, v = (
        halves(heads, head_dim),
        halves(capacity, kv_heads, head_dim),
        halves(capacity, kv_heads, head_dim),
    )
    k[length:], v[length:] = np.nan, np.nan
    workspace = attention.workspace_for(q, splits)
    scores = np.einsum("hgd,khd->hgk", q.reshape(kv_heads, -1, head_dim).astype(np.float64), k[:length])
    weights = np.exp(scores / np.sqrt(head_dim) - (scores / np.sqrt(head_dim)).max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("hgk,khd->hgd", weights, v[:length].astype(np.float64)).reshape(heads, head_dim)
    for _ in range(2):  # the workspace is as it was
        out = np.full((heads, head_dim), np.nan, np.float16)
        batch_ops.attention(q, k, v, np.array([length], np.int32), out=out, workspace=workspace)
        assert np.abs(out - expected).max() <= 4e-3
    assert not workspace.arrived.any()


def test_a_context_is_cut_where_sequences_are_few():
    asked = ((160, 16, 132), (4096, 16, 132), (4096, 64, 132))
    assert [batch_plan.splits_for(*sizes) for sizes in asked] == [1, 8, 2]
    assert batch_plan.splits_for(300, 4, 132) == 2 and batch_plan.splits_for(10**6, 200, 132) == 1
    with pytest.raises(LaunchError, match="not 5 of 64 for 2"):
        q = halves(5, 64)
        cache = halves(4, 2, 64)
        batch_ops.attention(
            q, cache, cache, np.ones(1, np.int32), out=q, workspace=attention.workspace_for(q, 1)
        )


def test_choices_that_do_not_fit_are_refused_in_a_sentence():
    given = {"logits": halves(3, 16), "tokens": np.zeros((4, 3), np.int32), "places": np.ones(2, np.int32)}
    given["choice"] = batch_choice.choice_for(3, 3, np.zeros)
    for bad, says in (({"softcap": -1.0}, "finite and not negative"), ({"logits": halves(3, 12)}, "not 12")):
        with pytest.raises(LaunchError, match=says):
            batch_choice.sample(**{**given, **bad})


def test_what_a_product_does_not_take_is_refused_in_a_sentence():
    x, w, out = halves(4, 128), halves(64, 128), np.zeros((4, 64), np.float16)
    with pytest.raises(LaunchError, match=r"up to 32 tokens, .* not 33 and \[64, 128\] in fp16"):
        batch_ops.product(halves(33, 128), w, out=out)
    with pytest.raises(LaunchError, match="out must hold float32"):
        batch_ops.product(x, w, out=out, then=batch_ops.PARTS)
    with pytest.raises(LaunchError, match="w must hold 8192 elements"):
        batch_ops.product(x, w[:, :64].copy(), out=out)
    with pytest.raises(LaunchError, match=r"not 4 and \[72, 128\] in fp16"):
        batch_ops.parts_of(72, 128, 4, "fp16", 3)


@pytest.mark.share(2)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tokens", [2, 9])
def test_heads_of_drafts_are_turned_and_kept_at_places_in_a_row(format, tokens):
    """Against the same product for a batch, of which every row has a place of its own in turn."""
    heads, kv_heads, head_dim, k, place = 4, 2, 32, 256, 5
    w, _ = matrix(8 * head_dim, k, format)
    biases, x = halves(8 * head_dim), (halves(tokens, k) / 8).astype(np.float16)
    turns = rotary.rotations(16, head_dim, 1e4)
    keys, values = (np.full((16, kv_heads, head_dim), np.nan, np.float16) for _ in range(2))
    queries = np.full((tokens, heads, head_dim), np.nan, np.float16)
    at = np.array([place], np.int32)
    batch_ops.product(
        x,
        w,
        out=queries,
        then=batch_ops.ROPE,
        heads=batch_ops.Heads(biases, turns, at, keys, values),
    )
    for i in range(tokens):
        shape = (16, tokens, kv_heads, head_dim)
        own, caches = np.empty_like(queries), [np.full(shape, np.nan, np.float16) for _ in range(2)]
        to = batch_ops.Heads(biases, turns, np.array([place + i], np.int32), *caches)
        batch_ops.product(x, w, out=own, then=batch_ops.ROPE, heads=to)
        assert (queries[i] == own[i]).all()
        for cache, wanted in zip((keys, values), caches, strict=True):
            assert (cache[place + i] == wanted[place + i, i]).all()
    for cache in (keys, values):
        assert np.isnan(cache[:place]).all() and np.isnan(cache[place + tokens :]).all()


SHAPES = ((6, 1, 64), (12, 2, 128), (18, 2, 32), (4, 4, 16), (8, 2, 64))
STARTS = (
    *((0, 40, 1, 8), (13, 40, 2, 4), (300, 308, 1, 8)),
    *((417, 700, 3, 2), (30, 700, 5, 3), (511, 544, 2, 31)),
)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("shape", "start"), thinned([(shape, start) for start in STARTS for shape in SHAPES])
)
def test_every_draft_sees_the_keys_up_to_its_own(shape, start):
    (heads, kv_heads, head_dim), (before, capacity, splits, tokens) = shape, start
    q = halves(tokens, heads, head_dim)
    k, v = halves(capacity, kv_heads, head_dim), halves(capacity, kv_heads, head_dim)
    k[before + tokens :], v[before + tokens :] = np.nan, np.nan
    workspace = attention.workspace_for(q.reshape(-1, head_dim), splits)
    for _ in range(2):  # the workspace is as it was
        out = np.full(q.shape, np.nan, np.float16)
        batch_ops.attention(q, k, v, np.array([before + 1], np.int32), out=out, workspace=workspace)
        for i in range(tokens):
            seen = before + 1 + i
            each = q[i].reshape(kv_heads, -1, head_dim).astype(np.float64)
            scores = np.einsum("hgd,khd->hgk", each, k[:seen]) / np.sqrt(head_dim)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            expected = np.einsum("hgk,khd->hgd", weights, v[:seen].astype(np.float64))
            assert np.abs(out[i] - expected.reshape(heads, head_dim)).max() <= 4e-3
    assert not workspace.arrived.any()


@pytest.mark.parametrize("held", range(6))
def test_drafts_hold_up_to_the_first_that_is_not_due(held):
    drafts = [3, 1, 4, 1, 5]
    chosen = np.array([*drafts[1:], 77], np.int32)
    chosen[held - 1 :] += held > 0  # what follows the last that holds is another
    first = drafts[0] + (held == 0)
    assert held_of(drafts, first, chosen) == (held, chosen[held - 1] if held else first)


def test_more_drafts_than_a_warp_checks_are_refused():
    state = decoder.state_for(decoder.Shape(1, 64, 64, 1, 1, 64, 32, 1e-6, 0.0), 32, 7, np.zeros)
    ints = np.zeros(32, np.int32)
    with pytest.raises(LaunchError, match="1 to 31 tokens and logits by 8, not 32 and 32"):
        batch_choice.accept(state, ints, ints, halves(32, 32), ints[:2], held=ints[:2], arrived=ints[:1])
