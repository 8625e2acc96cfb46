"""Drawings of what single rungs of the decoder change, read off their sources."""

import dataclasses
import inspect

import pytest
from rooflab import engine
from rooflab.errors import UsageError
from rooflab.ops import decoder, decoder_plan, rung_of
from rooflab.pages import lesson_08_timeline
from rooflab.paths import KERNELS
from rooflab.view.diagram import decode_rungs, operators, ring_between

PARTS = KERNELS / "common" / "decoder"
SHAPE = engine.spec("qwen2.5-1.5b").shape


def step(name):
    return (KERNELS / "decode_step" / f"{name}.cu").read_text()


def test_every_piece_of_a_chunk_is_copied_once_and_as_the_source_addresses_it():
    text = (PARTS / "stream_cp_async.cuh").read_text()
    held = decode_rungs.pieces_by_lane(text)
    assert sorted(held) == [(row, piece) for row in range(16) for piece in range(8)]
    assert held[0, 0] == (0, 0) and held[9, 6] == (6, 3)
    other = text.replace("p % 2 * 8 * pitch + p / 2 * 4", "p / 2 * 8 * pitch + p % 2 * 4")
    assert decode_rungs.pieces_by_lane(other)[0, 4] == (0, 1) != held[0, 4]
    wider = text.replace("p % 2 * 8 * pitch + p / 2 * 4", "p % 4 * 8 * pitch + p / 4 * 4")
    assert decode_rungs.who_copies(wider).svg() != decode_rungs.who_copies().svg()
    twice = (PARTS / "stream_tma.cuh").read_text()
    twice = twice.replace("    tma_copy_box(slot,", "    tma_copy_box(slot, 0);\n    tma_copy_box(slot,")
    assert "1 lane, 2 copies" in decode_rungs.who_copies(engine=twice).says
    with pytest.raises(UsageError, match="no"):
        decode_rungs.who_copies("", twice)


def test_memory_is_kept_busy_where_the_source_asks_for_it():
    names = "3_persistent", "5_prefetch_at_barrier", "6_producer_warps"
    texts = tuple(map(step, names))
    drawing = decode_rungs.at_the_barrier(SHAPE, "fp16")
    idle = dict(zip(names, ("4", "2", "1.5"), strict=True))
    for name, copies in idle.items():
        assert f"{name}: memory idles for {copies} copies' time" in drawing.says
    call = "fetch_deferred(s, m, smem, slot);"
    first = (
        texts[1].replace(call, "", 1).replace("arrive_at_grid_barrier", f"{call} arrive_at_grid_barrier", 1)
    )
    before = decode_rungs.at_the_barrier(SHAPE, "fp16", (texts[0], first, texts[2]))
    told = before.says.split("5_prefetch_at_barrier: memory idles for ")[1]
    assert float(told.split()[0]) > 2 and before.svg() != drawing.svg()
    assert "leaves 2 slots" in decode_rungs.at_the_barrier(SHAPE, "q8_0").says
    with pytest.raises(UsageError, match="no"):
        decode_rungs.at_the_barrier(SHAPE, "fp16", (*texts[:2], texts[0]))


def test_a_ring_goes_on_from_phase_to_phase_where_the_source_streams_on():
    runs = {name: ring_between.between(step(name), 7) for name in ring_between.RUNGS}
    assert [run.how for run in runs.values()] == ["early", "on"]
    ends = [run.done[-1] for run in runs.values()]
    assert ends == sorted(ends, reverse=True) and all(run.own < run.all < run.ready for run in runs.values())
    assert runs["2_pdl"].ordered[0] < runs["2_pdl"].all, "weights are ordered before all blocks have ended"
    drawing = ring_between.rings(SHAPE, "fp16")
    assert all(words in drawing.svg() for words in ("weights of phase 1", "on their way", "of phase 2"))
    assert (
        "3_persistent: the block stays, and freed slots take the next phase's weights; 7 of 7 slots"
        in drawing.says
    )
    texts = tuple(step(name) for name in ring_between.RUNGS)
    late = texts[0].replace("wait_for_predecessor();", "")
    assert ring_between.between(late, 7).how == "after"
    ends = texts[1].replace("steps * (4 * layers + 1)", "1")
    assert (
        "3_persistent: the next block starts when all"
        in ring_between.rings(SHAPE, "fp16", (texts[0], ends)).says
    )
    with pytest.raises(UsageError, match="no stream"):
        ring_between.between("", 7)


def test_a_key_is_loaded_for_as_many_heads_as_a_block_has():
    assert "7_split_k: 3 loads; 8_tensor_attention: 1 load" in decode_rungs.heads_a_load(SHAPE).says
    alone = (PARTS / "model.cuh").read_text().replace("!SPREADS_HEADS ? 2 : 1", "!SPREADS_HEADS ? 1 : 1")
    assert "7_split_k: 6 loads" in decode_rungs.heads_a_load(SHAPE, alone).says


def test_a_product_cut_along_k_gives_every_sm_work():
    drawing = decode_rungs.divided(96, 12, 12, 132)
    assert "96 of 132 SMs have work, 12 chunks each" in drawing.says and "at most 9" in drawing.says
    assert "12 parts of k" in drawing.svg() and "132 SMs: 8 or 9" in drawing.svg()
    for chunks, slabs, blocks in ((12, 12, 132), (70, 11, 132), (24, 12, 100), (5, 1, 7)):
        work = decode_rungs.chunks_by_block(96, chunks, slabs, blocks)
        assert len(work) == blocks and sum(work) == 96 * chunks, "every chunk is multiplied once"


@pytest.mark.parametrize(("format", "chunk"), lesson_08_timeline.CHUNK.items())
def test_a_chunk_is_as_wide_as_the_launch_rule_has_it(format, chunk):
    shape = dataclasses.replace(SHAPE, heads=5, kv_heads=1, head_dim=chunk)
    rung = rung_of(decoder.LADDERS["decode_step"], "7_split_k", "7_split_k")
    assert decoder_plan.split_for(rung, shape, format, 132, "90")["OUT_SLABS"] == 5


def test_the_launches_that_a_kernel_takes_the_place_of_are_read_off_the_engine():
    drawing = operators.launches_fused()
    assert drawing.title == "A layer: 50 launches by products, 5 by 1_kernel_per_phase"
    assert "QKV: norm 8, QKV 1, bias 2, rotation 18, cache 2; attention: attention 2; output" in drawing.says
    text = inspect.getsource(operators.decoder)
    fewer = text.replace("h.square().mean(-1, keepdim=True)", "h.mean(-1, keepdim=True)")
    assert operators.launches_fused(fewer).title.startswith("A layer: 48 launches")
    with pytest.raises(UsageError, match="5 kernels, not"):
        operators.launches_fused(text.replace('product("out", layer', 'other("out", layer'))
    with pytest.raises(UsageError, match="no loop over layers"):
        operators.launches_fused("x = 1")
