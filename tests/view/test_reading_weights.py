"""Who reads which weights: of rungs' constants and a recorded fragment."""

from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.ops import int4
from rooflab.view import diagram
from rooflab.view.diagram import reading

RUNGS = int4.LADDERS["int4"]


def test_a_block_s_part_is_that_of_its_constants():
    assert reading.part_of(RUNGS[2]) == (4, 1, 1, 1), "a warp has a row"
    assert reading.part_of(RUNGS[3]) == (4, 2, 1, 2), "and here two, for which x is read once"
    assert reading.part_of(RUNGS[4]) == (1, 4, 4, 4), "all warps share four rows and divide k"
    assert reading.part_of(RUNGS[8]) == (4, 32, 2, 128) and reading.part_of(RUNGS[8]).high == 128
    for rung in RUNGS[7:9]:
        own, part = rung.with_defaults({}), reading.part_of(rung)
        assert part.high == 16 * own["TILES"] * own.get("ROW_WARPS", 1)
    says = diagram.warps_on_weights(RUNGS[7:9]).says
    assert "rung 8: 4 warps, 32 rows each, k dealt to 4" in says and "x read once for 128 rows" in says


def test_x_weighs_by_tokens_and_rows():
    says = diagram.x_beside_weights(RUNGS[8:9], (1, 16)).says
    for tokens in (1, 16):
        assert f"x adds {2 * tokens / (128 * WEIGHT_BYTES['int4_g128']):.0%}" in says


def test_a_lane_s_weights_are_those_of_its_fragment():
    says = diagram.weights_of_a_lane(5).says
    assert "(1, 2), (1, 3), (1, 10), (1, 11), (9, 2), (9, 3), (9, 10), (9, 11)" in says
    assert "they lie in 4 words of 8 codes, repacked in 1 word" in says


def test_a_scale_makes_weights_of_the_codes():
    plain, scaled = diagram.nibbles(0x8683AD76), diagram.nibbles(0x8683AD76, 0.5)
    assert "scale" not in plain.says and "Each times the scale 0.5000 is a weight" in scaled.says
    assert "+2.50" in scaled.svg() and "+2.50" not in plain.svg()
    assert "+1.25" in diagram.nibbles(0x8683AD76, 0.25).svg()
