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
    changed = tmp_path / "ptx.cuh"
    changed.write_text(
        sharing._PTX.read_text().replace("mma.sync.aligned.m16n8k16.", "mma.sync.aligned.m16n16k16.")
    )
    assert "serves up to 16 tokens" in diagram.tokens_share_a_tile((1, 8), changed).title
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


def test_who_copies_and_who_waits_is_read_off_the_sources():
    rungs = int4.LADDERS["int4"][8:11]
    rows = {"ROW_GROUPS": 4, "K_GROUPS": 1}
    mma, wgmma, tma = (block_at_work.way_of(rung, rows if at == 2 else None) for at, rung in enumerate(rungs))
    assert mma == (True, False, True, 1, 4, 2), "a barrier, no engine, x by registers, a warp alone"
    assert wgmma == (True, False, False, 4, 2, 1) and tma == (False, True, False, 4, 4, 1)
    waits = [[p for p in block_at_work.run(way) if p.what == "waits"] for way in (mma, wgmma, tma)]
    assert len(waits[0]) == len(waits[1]) > len(waits[2])
    assert {p.lane for p in waits[2]} == {1}, "of rung 11 only the warpgroup whose thread orders copies"
    pieces = block_at_work.run(tma)
    for fill in (p for p in pieces if p.what == "copies"):
        reads = [p.end for p in pieces if p.what == "multiplies" and p.group == fill.group]
        assert len(reads) == 2 and fill.start >= max(reads), "a slot is filled after all have read it"
    said = diagram.who_waits(rungs, {"11_tma": rows}).says
    assert "rung 11: one thread has the TMA copy, no block-wide barrier" in said
    assert "4 warpgroups divide the rows, and all use each slot" in said
    each = [diagram.who_waits(rungs, {"11_tma": rows}, only=at).says for at in range(3)]
    assert all(f"rung {9 + at}: " in one and f"rung {10 + at}: " not in one for at, one in enumerate(each))
    ends = [max(p.end for p in block_at_work.run(way) if p.what == "multiplies") for way in (mma, wgmma, tma)]
    assert all(f"done after {end} steps" in one for end, one in zip(ends, each, strict=True))
    assert ends[0] > ends[1] > ends[2], "without loads of x, then without the barrier"


def test_warpgroups_that_divide_k_have_slots_of_their_own():
    rungs = int4.LADDERS["int4"][8:11]
    alone = block_at_work.way_of(rungs[2])
    assert not alone.shared and (alone.rows, alone.parts) == (1, 2), "as its source is built"
    pieces = block_at_work.run(alone)
    assert not [p for p in pieces if p.what == "waits"]
    assert {(p.lane, p.group) for p in pieces if p.what == "multiplies"} == {(0, 0), (1, 1), (0, 2), (1, 3)}
    fills = [p for p in pieces if p.what == "copies"]
    assert [p.group for p in fills] == [0, 1] and fills[1].start >= fills[0].end, "one engine"
    assert "2 warpgroups divide k: each has slots of its own" in diagram.who_waits(rungs).says
    both = diagram.who_waits(rungs, {"11_tma": {"ROW_GROUPS": 2, "K_GROUPS": 2}}).says
    assert "2 × 2 warpgroups: 2 divide the rows and share slots, 2 divide k" in both
