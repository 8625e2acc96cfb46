"""What stands between products, on the CPU: embeddings, places, the choice of tokens, INT4 as halves."""

import needs
import numpy as np
import pytest
from rooflab import ops
from rooflab.errors import LaunchError
from rooflab.numerics import rotary
from rooflab.ops import decoder_ops, int4

needs.compiler()

RNG = np.random.default_rng(7)


def halves(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


@pytest.fixture(autouse=True)
def on_the_cpu():
    with ops.on("cpu"):
        yield


@pytest.mark.parametrize("width", [8, 72, 520, 8200])
@pytest.mark.parametrize("rung", ["1_block", "2_in_registers"])
def test_rows_are_summed_and_normalised(rung, width):
    residual, branch, weights = halves(3, width).astype(np.float32), halves(3, width), halves(width)
    for add in (None, branch):
        total = residual.astype(np.float64) + (0 if add is None else add)
        here, out = residual.copy(), np.full((3, width), np.nan, np.float16)
        decoder_ops.rmsnorm(here, weights, out=out, branch=add, rung=rung)
        wanted = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
        assert np.abs(here - total).max() < 1e-6 and np.abs(out - wanted).max() <= np.spacing(np.float16(8))


def test_a_batch_turns_and_keeps_its_rows_at_one_position():
    heads, kv_heads, width, n, place = 4, 2, 32, 3, 5
    rows, biases = halves(n, 256), halves(256)
    turns = rotary.rotations(16, width, 1e4)
    alone = [np.empty((1, count, width), np.float16) for count in (heads, kv_heads, kv_heads)]
    queries = np.empty((n, heads, width), np.float16)
    keys, values = (np.full((8, n, kv_heads, width), np.nan, np.float16) for _ in range(2))
    decoder_ops.rope(rows, biases, turns, queries, keys, values, position=np.array([place], np.int32))
    for i in range(n):
        decoder_ops.rope(rows[i : i + 1].copy(), biases, turns, *alone, start=place)
        for got, want in zip((queries[i], keys[place, i], values[place, i]), alone, strict=True):
            assert (got == want[0]).all()
    for cache in (keys, values):
        cache[place] = np.nan
        assert np.isnan(cache).all()  # nothing else was written
    with pytest.raises(LaunchError, match="Positions 0 to 8 are not among 4 rotations"):
        decoder_ops.rope(rows, biases, turns[:4], queries, keys, values, position=np.array([0], np.int32))


def test_tokens_are_drawn_as_softmax_says():
    tokens, position = np.zeros((4, 3), np.int32), np.array([1], np.int32)
    few = np.zeros((1, 8), np.float16)
    few[0] = [0, 1, 2, 0, 0, 0, 0, 2]
    counts = np.zeros(8)
    for seed in range(400):
        decoder_ops.sample(few, tokens[:, :1].copy(), position, inverse_temperature=1.0, seed=seed)
        drawn = np.zeros((4, 1), np.int32)
        decoder_ops.sample(few, drawn, position, inverse_temperature=1.0, seed=seed)
        counts[drawn[2, 0]] += 1
    odds = np.exp(few[0].astype(float))
    odds /= odds.sum()
    assert (np.abs(counts - 400 * odds) < 5 * np.sqrt(400 * odds * (1 - odds))).all()
    same = np.repeat(few, 2, 0)
    rows = [np.zeros((4, 2), np.int32) for _ in range(12)]
    for seed, row in enumerate(rows):
        decoder_ops.sample(same, row, position, inverse_temperature=0.1, seed=seed, softcap=1.0)
    assert any(row[2, 0] != row[2, 1] for row in rows)  # sequences draw by themselves


def test_what_does_not_fit_is_refused_in_a_sentence():
    table, tokens, out = halves(8, 64), np.zeros(2, np.int32), np.zeros((2, 64), np.float32)
    for arguments, says in (
        ({"first": 1, "count": 2}, "rows 0 to 1 and is asked for 2 from 1"),
        ({"first": -1}, "asked for 3 from -1"),
        ({"out": np.zeros((2, 40), np.float32)}, "multiple of 32, not 40"),
        ({"out": np.zeros((2, 64), np.float16)}, "out must hold float32"),
        ({"position": np.zeros(2, np.int32)}, "position must hold 1 elements"),
    ):
        with pytest.raises(LaunchError, match=says):
            decoder_ops.embedding(table, tokens, **{"out": out, **arguments})
    with pytest.raises(LaunchError, match="up to 16384 numbers a row, not 16392"):
        wide = np.zeros((1, 16392), np.float32)
        decoder_ops.rmsnorm(
            wide, wide[0].astype(np.float16), out=wide.astype(np.float16), rung="2_in_registers"
        )
    with pytest.raises(LaunchError, match="multiple of 8 logits, not 12"):
        decoder_ops.sample(halves(2, 12), tokens, tokens[:1])
    for bad in ({"inverse_temperature": -1.0}, {"softcap": float("nan")}):
        with pytest.raises(LaunchError, match="finite and not negative"):
            decoder_ops.sample(halves(2, 16), tokens, tokens[:1], **bad)
    with pytest.raises(LaunchError, match=r"rows by the 64 and k by the 128, not \[65, 128\]"):
        decoder_ops.dequantise_tiles(int4.Tiles(np.zeros((2, 1, 1056), np.uint32), 65, 128), out=out)
