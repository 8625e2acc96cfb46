"""A tile that tokens share, and a ring of slots: computed from an instruction and from a rung's stages."""

import pytest
from rooflab.errors import UsageError
from rooflab.ops import int4
from rooflab.view import diagram
from rooflab.view.diagram import block_at_work, sharing


def test_the_tile_is_that_of_the_instruction(tmp_path):
    assert sharing.product_of() == (16, 8, 16)
    drawing = diagram.tokens_share_a_tile((1, 8))
    assert "1 token: 8 or 1; 8 tokens: 64 or 1" in drawing.says
    changed = tmp_path / "mma.cuh"
    changed.write_text(
        sharing._PTX.read_text().replace("mma.sync.aligned.m16n8k16.", "mma.sync.aligned.m16n16k16.")
    )
    assert "serve up to 16 tokens" in diagram.tokens_share_a_tile((1, 8), changed).title
    changed.write_text("")
    with pytest.raises(UsageError, match="no mma_m16n8k16_f16"):
        sharing.product_of(file=changed)


def test_a_ring_hides_copies_and_one_slot_cannot():
    alone, ring = (sharing.schedule(stages, 8, 3.0) for stages in (1, 4))
    assert alone[-1].done == 8 * 4.0 and ring[-1].done == 11.0
    for group, one in enumerate(ring):
        assert one.slot == group % 4 and one.used >= one.arrives == one.starts + 3.0
        if group >= 4:
            assert one.starts == ring[group - 4].done, "a slot is filled again once it was read"
    assert "take 24 steps; with 4 slots copies run ahead, and they take 9" in diagram.slots(4).says
    assert diagram.slots(2).svg() != diagram.slots(4).svg()


def test_a_check_of_drafts_ends_at_the_first_that_is_not_the_likeliest():
    says = diagram.check_of_drafts().says
    assert "2 tokens are kept, and then “a” is due" in says
    other = diagram.check_of_drafts(likeliest=("on", "the", "mat", "."))
    assert "4 tokens are kept, and then “.” is due" in other.says and "not used" not in other.svg()
    one = diagram.check_of_drafts(likeliest=("by", "the", "mat", "."))
    assert "1 token is kept, and then “by” is due" in one.says


def test_weights_read_for_each_token_take_so_many_times_as_long():
    drawing = diagram.readings(120.0, 4000.0, 3)
    assert "they take 90.0 µs at 4,000 GB/s, read once for all 30.0 µs" in drawing.says
    assert drawing.svg().count("all weights") == 3 + 1
    assert diagram.readings(120.0, 2000.0, 3).says != drawing.says


def test_what_a_rung_does_with_a_slot_is_read_off_the_sources():
    mma, wgmma, tma = (block_at_work.way_of(rung) for rung in int4.LADDERS["int4"][8:11])
    assert mma == (True, False, True, False, 1), "a barrier, no engine, x by registers, in turn, a warp alone"
    assert wgmma == (True, False, False, True, 4) and tma == (False, True, False, True, 4)


def test_slots_over_time_fill_the_measured_times_and_overlap_as_the_sources_do():
    rungs, times = int4.LADDERS["int4"][8:11], (99.0, 64.0, 55.0)
    for at, (rung, whole) in enumerate(zip(rungs, times, strict=True)):
        pieces = block_at_work.run(block_at_work.way_of(rung), whole, 3.0)
        assert max(piece.end for piece in pieces) == pytest.approx(whole)
        assert all(piece.end > piece.start >= 0 for piece in pieces)
        by = {what: [p for p in pieces if p.what == what] for what in ("unpack", "multiply", "wait", "order")}
        meet = any(
            one.start + 1e-9 < other.end and other.start + 1e-9 < one.end
            for one in by["unpack"]
            for other in by["multiply"]
        )
        assert meet == (at > 0), "rung 9 unpacks and multiplies in turn, the others at a time"
        gaps = block_at_work.gaps(pieces, whole)
        assert len(gaps) == (3 if at else 12), "once a slot where unpacking overlaps, at each piece where not"
        assert bool(by["wait"]) == bool(by["order"]) == (at < 2), "rung 11 has no barrier and no orders"


def test_slots_over_time_have_the_measured_lengths_or_say_that_they_do_not():
    rungs = int4.LADDERS["int4"][8:11]
    first, second, third = (diagram.slots_over_time(rungs, at, (99.0, 64.0, 55.0), "here") for at in range(3))
    assert "Rung 9, a warp: 99.0 µs" in first.says and "how long it is (here)" in first.says
    assert "Idle: tensor cores" in first.svg() and "less than" not in first.svg(), "what is idle is said once"
    assert "35.0 µs less than rung 9" in second.svg() and "9.0 µs less than rung 10" in third.svg()
    assert "wait at the barrier" in second.svg() and "wait at the barrier" not in third.svg()
    for other in ((), (42.0, 44.0, 37.0)):
        example = diagram.slots_over_time(rungs, 1, other, "here")
        assert "Not measured" in example.says and "µs" not in example.svg()
    with pytest.raises(UsageError, match="three rungs"):
        diagram.slots_over_time(rungs[:2], 0)


def test_a_weight_block_is_drawn_by_the_header_s_constants():
    says = diagram.weight_block().says
    assert "64 rows by 128 of k has 4 tiles of 16 rows" in says
    assert "264 pieces of 16 bytes: 8 of scales, then 32 for each half of a tile" in says
    assert 4 * int4.BLOCK_WORDS == 16 * 264


def test_weights_are_cut_by_rows_or_by_k():
    drawing = diagram.divided_weights(4)
    assert "4 warps divide the rows" in drawing.says and "A ring of 4 slots" in drawing.svg()
    assert drawing.svg().count("is being filled") == 2 + drawing.says.count("is being filled")
