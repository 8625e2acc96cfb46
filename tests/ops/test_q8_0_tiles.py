"""Q8_0 weights in tile order: where a weight lies, and that nothing is lost."""

import numpy as np
import pytest
from rooflab.errors import UsageError
from rooflab.numerics import quant
from rooflab.ops import q8_0


def planes(n, k):
    rng = np.random.default_rng(n + k)
    quants = rng.integers(-128, 128, (n, k), dtype=np.int8)
    return quant.Planes(rng.random((n, k // 32)).astype(np.float16), quants)


@pytest.mark.parametrize(("n", "k"), [(64, 64), (1, 128), (130, 384), (200, 64)])
def test_unpack_gives_back_what_repack_took(n, k):
    given = planes(n, k)
    tiles = q8_0.repack(given)
    assert tiles.blocks.shape == (-(-n // 64), k // 64, 1088) and q8_0.shape_of(tiles, 34) == (n, k)
    back = q8_0.unpack(tiles)
    assert (back.quants == given.quants).all() and (back.scales == given.scales).all()
    spare = q8_0.unpack(tiles._replace(n=-(-n // 64) * 64))
    assert not spare.quants[n:].any() and not spare.scales[n:].any()


def test_sixteen_bytes_are_what_a_lane_holds_of_sixteen_rows_by_thirty_two_of_k():
    given = planes(128, 192)
    tiles = q8_0.repack(given).blocks.view(np.uint8)
    for row, column in ((0, 0), (9, 3), (70, 130), (127, 191), (45, 77)):
        tile, across, r, c = row // 64, column // 64, row % 64, column % 64
        lane = r % 8 * 4 + c % 8 // 2  # as mma_m16n8k16_f16 deals its first operand
        place = c // 16 % 2 * 8 + c // 8 % 2 * 4 + r // 8 % 2 * 2 + c % 2
        at = 256 + ((r // 16 * 2 + c // 32) * 32 + lane) * 16 + place
        assert tiles[tile, across, at] == int(given.quants[row, column]) + 128
        scales = tiles[tile, across, :256].view(np.float16).reshape(4, 8, 2, 2)
        assert scales[r // 16, r % 8, c // 32, r // 8 % 2] == given.scales[row, column // 32]


def test_a_k_that_no_tile_divides_is_refused():
    with pytest.raises(UsageError, match="k = 96 is no multiple"):
        q8_0.repack(planes(64, 96))
