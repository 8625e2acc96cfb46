"""Where weights and outputs lie, and who has a piece of memory: another order or source, another picture."""

import numpy as np
from rooflab.numerics.quant import Planes
from rooflab.ops import q8_0
from rooflab.pages import lesson_05c, lesson_06c_limits
from rooflab.view import diagram
from rooflab.view.diagram import pools, tiled_weights


def plain(planes):
    """A tile in the order of rows, behind room for scales, its signs turned over as repack does."""
    _, quants = planes
    bytes_ = np.concatenate([np.zeros(256, np.uint8), quants.view(np.uint8).reshape(-1) ^ np.uint8(128)])
    return q8_0.Tiles(bytes_.reshape(1, 1, -1), *quants.shape)


def test_tile_order_is_that_of_the_repack():
    at = tiled_weights.places()
    assert len(set(at)) == 64 * 64
    rng = np.random.default_rng(1)
    codes = rng.integers(-127, 128, (64, 64)).astype(np.int8)
    stored = q8_0.repack(Planes(np.ones((64, 2), np.float16), codes)).blocks.view(np.uint8).reshape(-1)[256:]
    assert [codes[place] for place in at] == (stored ^ 128).view(np.int8).tolist()


def test_another_order_is_another_picture():
    tiled = diagram.tile_order(5)
    assert "8 places of 2 bytes" in tiled.says and "16 neighbouring bytes" in tiled.says
    assert "1 places of 16 bytes" in diagram.tile_order(0, plain).says
    assert diagram.tile_order(6).svg() != tiled.svg()


def test_a_buffer_from_the_pool_is_another_array_s_at_the_replay():
    lost, kept = pools.moments(kept=False)[-1], pools.moments(kept=True)[-1]
    assert lost.owners[lost.points] == pools.OTHER and kept.owners[kept.points] == pools.PRODUCT
    drawings = [diagram.captured_address(kept) for kept in (False, True)]
    assert "over another array" in drawings[0].says and "its own buffer" in drawings[1].says
    assert "overwritten" in drawings[0].svg() and "overwritten" not in drawings[1].svg()


def test_a_gpu_waits_only_for_launches_that_take_longer_than_kernels():
    assert lesson_05c.waits(8.0, 2.0) == 75 and lesson_05c.waits(8.0, 8.0) == lesson_05c.waits(1.0, 8.0) == 0


def test_kernels_of_one_bar_are_all_named():
    who = ["4_mma", "5_padded", "6_cp_async", "8_head_dim_slices", "torch.sdpa_math"]
    assert lesson_06c_limits.all_of(who) == "rungs 4 to 6, 8\nlibraries: math"
    assert lesson_06c_limits.all_of(who[:1]) == "4_mma"
