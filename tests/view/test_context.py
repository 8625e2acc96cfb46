"""The drawings of lessons 06d, 06e, 08 and 08b: another context, layout, lane or GPU makes another
picture.
"""

import numpy as np
import pytest
from rooflab.errors import UsageError
from rooflab.studies import drawn
from rooflab.view import diagram
from rooflab.view.diagram import context, tiles


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_parts_merge_to_what_one_block_would_compute(blocks):
    rng = np.random.default_rng(5)
    scores, values = rng.integers(-3, 9, 16).astype(float), rng.normal(size=16)
    cuts = np.split(np.arange(16), blocks)
    all_of = context.merged([context.part_of(scores[cut], values[cut]) for cut in cuts])
    weights = 2.0**scores / (2.0**scores).sum()
    assert all_of.output / all_of.total == pytest.approx(weights @ values)


def test_the_split_drawn_is_that_of_its_scores_blocks_and_heads():
    usual = diagram.split_context()
    assert "4 blocks of 4" in usual.says and "rung 2 loads each key 4 times" in usual.says
    other = diagram.split_context((0, 1, 2, 3), (1, 1, 1, 1), blocks=2, heads=2)
    assert "block 1: max 3, sum 1.50, output 1.50" in other.says and "out 1.88 ÷ 1.88 = 1.00" in other.says
    assert other.svg() != usual.svg() and "rung 2 loads each key 2 times" in other.says
    assert diagram.split_context(values=(1,) * 16).svg() != usual.svg(), "the values are drawn"
    with pytest.raises(UsageError, match="equal parts"):
        diagram.split_context((0, 1, 2), (1, 1, 1), blocks=2)


def test_each_column_has_one_lane_and_wider_loads_are_fewer():
    for way in (context.columns_by_mma, context.columns_by_eights):
        assert sorted(map(way(4, 32).count, range(4))) == [8] * 4
    says = diagram.words_of_a_row().says
    assert (
        "as mma names them, 4 loads of 4 bytes a lane; as 5_fragments loads them, 1 load of 16 bytes" in says
    )
    assert "as mma names them, 8 loads of 4 bytes" in diagram.words_of_a_row(columns=64).says


def test_tokens_that_share_weights_cross_the_ridge_of_their_gpu():
    ways = [("decode", 1), ("batch of 32", 32), ("prompt", 1848)]
    usual = diagram.weights_shared(ways, 757.0, 4696.0).says
    assert "batch of 32, 32 tokens: 32 operations a byte, memory decides" in usual
    assert (
        "prompt, 1,848 tokens: 1,848 operations a byte, arithmetic decides" in usual
        and "ridge is 161" in usual
    )
    slower = diagram.weights_shared(ways, 75.7, 4696.0).says
    assert "batch of 32, 32 tokens: 32 operations a byte, arithmetic decides" in slower
    with pytest.raises(UsageError, match="at least one"):
        diagram.weights_shared([], 757.0, 4696.0)


def test_a_fragment_is_framed_for_the_lane_that_held_it():
    rows = drawn.read("fragments", "m16n8k16_f16")
    usual = diagram.fragments(rows=rows)
    held = tiles.places(rows, "b")
    mine = sorted(place for place, (lane, _) in held.items() if lane == 5)
    assert all(f"({row}, {column}) in b[" in usual.says for row, column in mine)
    assert diagram.fragments(rows=rows, lane=6).svg() != usual.svg()


def test_bytes_stay_and_flops_grow_with_the_tokens():
    rows = [(1, [(5.9, 0.04), (1.5, 0.04)]), (184, [(6.6, 6.6), (2.2, 6.6)])]
    usual = diagram.bytes_and_flops(["FP16", "INT4"], rows, "bytes and FLOPs").says
    assert "1 token, INT4: 1.50 µs for bytes, 0.04 for FLOPs; bytes decide" in usual
    assert "184 tokens, FP16: 6.60 µs for bytes, 6.60 for FLOPs; both decide" in usual
    assert "184 tokens, INT4: 2.20 µs for bytes, 6.60 for FLOPs; FLOPs decide" in usual
    with pytest.raises(UsageError, match="at least one format"):
        diagram.bytes_and_flops([], rows, "")
