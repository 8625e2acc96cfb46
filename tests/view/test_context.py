"""The drawings of lesson 06d: another context, other heads or another layout make another picture."""

import numpy as np
import pytest
from rooflab.errors import UsageError
from rooflab.view import diagram
from rooflab.view.diagram import context


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
    with pytest.raises(UsageError, match="equal parts"):
        diagram.split_context((0, 1, 2), (1, 1, 1), blocks=2)


def test_each_column_has_one_lane_and_wider_loads_are_fewer():
    for way in (context.columns_by_mma, context.columns_by_eights):
        assert sorted(map(way(4, 32).count, range(4))) == [8] * 4
    says = diagram.words_of_a_row().says
    assert "as mma names them, 4 loads of 4 bytes a lane; as 5_fragments loads them, 1 load of 16 bytes" in says
    assert "as mma names them, 8 loads of 4 bytes" in diagram.words_of_a_row(columns=64).says
