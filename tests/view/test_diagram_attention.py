"""Drawings of attention's and MMQ's kernels: their numbers and orders are those of the sources."""

import ctypes
import html
import itertools
import xml.etree.ElementTree as ET

import needs
import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.ops import attention as attention_op
from rooflab.ops import mmq
from rooflab.paths import KERNELS
from rooflab.studies import attention, attention_work, drawn
from rooflab.view import diagram
from rooflab.view.access_diagram import Request
from rooflab.view.diagram import (
    context,
    copies,
    full_and_empty,
    mmq_blocks,
    mmq_tiles,
    over_time,
    paired,
    shared_places,
    staying,
    svg,
    swizzle,
    tile_softmax,
    two_warps,
    wide_stores,
)

H200 = device.get("h200")
DRAWN = {
    "keys and values": diagram.keys_and_values,
    "tiles along k": diagram.tiles_along_k,
    "ring of a warp": diagram.ring_of_a_warp,
    "turns": lambda: diagram.warpgroups_take_turns(H200),
    "divided": diagram.divided_along_k,
    "weights read": lambda: diagram.weights_read(("2_prefetch", "3_wide")),
    "fragments": diagram.fragments_of_a_warp,
    "order of tiles": diagram.order_of_tiles,
    "stores": diagram.lanes_store,
    "places": lambda: diagram.places((paired.RUNG, "12_warp_specialised")),
    "swizzled": diagram.swizzled,
    "tiles": diagram.attention_tiles,
}


def source(operator, name):
    """The source of a kernel."""
    return (KERNELS / operator / f"{name}.cu").read_text()


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_is_small_has_words_and_keeps_to_its_canvas(name):
    drawing = DRAWN[name]()
    text = drawing.svg()
    assert len(text) < 28_000 and len(drawing.says) > 60
    assert f'{html.escape(drawing.says)}"' in text and drawing.lean != (f"<desc>{drawing.says}" in text)
    assert f'alt="{html.escape(drawing.title)}. ' in drawing.html()
    for _, canvas in drawing.frames:
        for each in ET.fromstring(f"<g>{canvas.body()}</g>").iter("text"):
            size = float(each.get("font-size", svg.SMALL))
            wide = svg.wide(each.text or "", size)
            start = float(each.get("x")) - {"middle": wide / 2, "end": wide}.get(each.get("text-anchor"), 0.0)
            assert start > -9 and start + wide < canvas.width + 12 and size >= 7, each.text


# --- 06: the softmax of a tile ------------------------------------------------------------------------------


def test_a_query_s_softmax_over_tiles_is_the_kernel_s():
    needs.compiler()
    walked = [(begin, 64) for begin in range(0, 256, 64)]
    states = tile_softmax.after_tiles(192, 64, walked)
    assert tile_softmax.numbers(states[0], 5)[1] == ("rescale", "0"), "nothing came before"
    name = tile_softmax.rung().name
    with ops.on("cpu"):
        q, k, v = attention_work.operands(attention.shape_of(drawn.scenes()["tiles"].case))
        for (begin, keys), state in zip(walked, states, strict=True):  # the kernel ends where its keys do
            out = attention_op.attention(q[192:], k, v, start=192, context=begin + keys, rung=name)
            kernel = np.asarray(out, np.float64)[:, 0, 0]
            assert np.allclose(state.o / state.row_sum, kernel, rtol=0.01, atol=0.01)


def test_a_kernel_that_does_not_rescale_is_drawn_with_other_numbers():
    text = tile_softmax.rung().path.read_text()
    for statement in ("row_sum[half] *= rescale;", "row_max[half] = new_max;"):
        assert statement in text
        other = diagram.attention_tiles(text=text.replace(statement, ""))
        assert other.says != diagram.attention_tiles().says
    with pytest.raises(UsageError, match="no loop over tiles that makes weights"):
        tile_softmax.statements("")


# --- 06b: the ring of rung 9, and products beside the softmax ----------------------------------------------

TAKES = over_time.Lengths(0.5, 1.0, 0.6)


def test_a_slot_is_filled_only_once_it_was_released():
    run = full_and_empty.run_of(TAKES, 6)
    for item, asked in run.claimed.items():
        assert asked >= run.full.get(item - 1, 0.0), "a copy waits for the one before"
        assert item < 4 or asked >= run.empty[item - 4]
        assert run.full[item] == pytest.approx(asked + TAKES.copy)
    text = over_time.rung().path.read_text()
    stuck = text.replace("            release(2 * t - 1);\n", "")
    assert stuck != text
    with pytest.raises(UsageError, match="waits for a slot that item . never leaves"):
        full_and_empty.run_of(TAKES, 6, stuck)


def test_frames_of_the_ring_name_the_barriers_of_the_source():
    bodies = [canvas.body() for _, canvas in diagram.ring(TAKES).frames]
    assert len(bodies) == 5 and all(f"{kind}[3]" in bodies[0] for kind in ("full", "empty"))
    assert all(body.count(svg.PALE) == 1 for body in bodies), "of each slot's two barriers one is open"
    assert "producer: copies K0" in bodies[0] and "wait at full[0]" in bodies[0]
    assert any("producer: waits at empty[" in body for body in bodies), "with copies faster than products"
    text = over_time.rung().path.read_text()
    assert full_and_empty.arrivals(text) == full_and_empty.arrivals(paired.rung().path.read_text()) == (64, 8)
    with pytest.raises(UsageError, match="no full and empty barriers"):
        full_and_empty.arrivals(text.replace("empty + slot", "read + slot"))


def test_rung_10_copies_into_two_slots_and_multiplies_beside_its_softmax():
    text = paired.rung().path.read_text()
    steps = paired.program(text)
    assert steps.trades == 2 and [what for what, _ in steps.after] == ["start_pv", "warpgroup_wait"]
    run = paired.run_of(TAKES, 6)
    for item in range(2, 12):
        assert run.claimed[item] >= run.empty[item - 2], "its only slot was released"
    copies = sorted(bar.start for bar in run.bars if bar.row == "copies")
    assert len(copies) == 13 and all(
        later - first >= TAKES.copy - 1e-9 for first, later in itertools.pairwise(copies)
    )
    assert [bar.tile for bar in paired.beside(run)] == [1, 2, 3, 4, 5]
    quick = TAKES._replace(copy=0.001)
    assert paired.busy(paired.run_of(quick, 40))[1] > 0.98, "no copy and no softmax is waited for"
    late = text.replace("warpgroup_wait<1>();", "warpgroup_wait<0>();")
    assert late != text and not paired.beside(paired.run_of(TAKES, 6, late))
    stuck = text.replace("            release(1);\n", "")
    assert stuck != text
    with pytest.raises(UsageError, match="All wait: "):
        paired.run_of(TAKES, 6, stuck)
    with pytest.raises(UsageError, match="no loop over tiles"):
        paired.program("void f() {}")
    unknown = text.replace("start_pv(t - 1)", "start_pv(t - 2)")
    with pytest.raises(UsageError, match="not known: start_pv"):
        paired.run_of(TAKES, 6, unknown)


def test_one_thread_copies_what_128_did():
    says = diagram.who_copies(paired.RUNG, "12_warp_specialised", 64, 512).says
    assert says.startswith("rung 10: 128 threads, 8,192 copies") and "rung 12: 1 thread, 16 copies" in says
    assert says.endswith("8 by each of 2 blocks that share.")
    assert 1 < staying.gain_of_staying(TAKES) < 2, "a block that stays saves a part of two pieces' time"


def test_queries_in_registers_leave_their_place_to_the_ring():
    ten, twelve = (shared_places.filled(name) for name in (paired.RUNG, "12_warp_specialised"))
    assert (ten.queries, ten.slots, twelve.queries, twelve.slots) == (True, 2, False, 3)
    assert 192 < ten.kib <= 227 and 192 < twelve.kib <= 227, "what a block may have of an SM's 228 KiB"
    assert "slot 2: K or V" in diagram.places((paired.RUNG, "12_warp_specialised")).svg()
    with pytest.raises(UsageError, match="no slots of a ring"):
        shared_places.filled(paired.RUNG, "void f() {}")


def test_a_swizzled_column_meets_every_bank_once():
    for piece in range(8):
        assert {swizzle.place(row, piece) for row in range(8)} == set(range(8))
    assert "in 8 different places" in diagram.swizzled().says
    with pytest.raises(UsageError, match="does not swizzle"):
        diagram.swizzled("void f() {}")


def test_barriers_of_rung_7_are_where_both_warps_meet():
    together, apart = two_warps.runs_of()
    assert len(together.meets) >= two_warps.TILES and not apart.meets
    for bar in together.bars:
        assert not any(bar.start < met < bar.end for met in together.meets), "no step spans a barrier"


def test_two_blocks_copy_half_of_a_tile_each_for_both():
    drawn = diagram.shared_copies("12_warp_specialised", 512)
    assert "0 to 255" in drawn.svg() and "256 to 511" in drawn.svg()
    with pytest.raises(UsageError, match="no two blocks"):
        diagram.shared_copies("12_warp_specialised", 512, "void f() {}")


def test_the_pipeline_s_frames_show_what_runs_beside_each_softmax():
    captions = [caption for caption, _ in diagram.pipeline(TAKES).frames]
    beside = ["no product runs", "PV0 goes on", "PV1 goes on"]
    assert captions[1:] == [f"softmax of tile {t}: {words}" for t, words in enumerate(beside)]
    late = over_time.rung().path.read_text().replace("warpgroup_wait<1>();", "warpgroup_wait<0>();")
    alone = [caption for caption, _ in diagram.pipeline(TAKES, text=late).frames][1:]
    assert all(caption.endswith("no product runs") for caption in alone)


# --- copies and what uses them ------------------------------------------------------------------------------


def test_cp_async_hides_copies_behind_products():
    plain, ahead, wide = (
        copies.simulate(copies.attention_program(source("attention", name)), 3, 1.0)
        for name in ("5_padded", "6_cp_async", "7_mma_32_rows")
    )
    assert plain.waited == 6 and ahead.waited == wide.waited == 1, "but for the first keys"
    uses, copied = ahead.uses, {(bar.row, bar.tile): bar for bar in ahead.copies}
    values = next(bar for bar in uses if (bar.what, bar.tile) == ("QK", 0))
    assert copied["V", 0].start == values.start, "values arrive while keys are used"
    assert copied["K", 1].start == next(bar.start for bar in uses if bar.what == "PV")
    assert len(wide.copies) == len(ahead.copies) and wide.end > ahead.end
    served = [copies.steps_of(source("attention", name)) for name in ("6_cp_async", "7_mma_32_rows")]
    assert served == [(ahead.end, 64), (wide.end, 128)]


def test_a_wait_in_another_place_changes_the_drawing_of_copies():
    text = source("attention", "6_cp_async")
    early = "        stage<KEYS>(values, v + kv, tile, to, stride);\n"
    assert early in text
    waits = text.replace(early, f"{early}    copy_async_wait<0>();\n")
    other = diagram.keys_and_values({"6_cp_async": waits})
    assert other.says != diagram.keys_and_values().says
    with pytest.raises(UsageError, match="K0 uses a tile|QK0 uses a tile"):
        none = text.replace("copy_async_wait<0>();", "")
        copies.simulate(copies.attention_program(none), 2, 1.0)
    with pytest.raises(UsageError, match="no loop over tiles of keys and values"):
        copies.attention_program("")


def test_a_product_s_tiles_come_ahead_as_its_source_says():
    stages = mmq.LADDERS["mmq"][3].defines["STAGES"]
    runs = [
        copies.simulate(copies.product_program(source("mmq", name), slots), 6, 2.0)
        for name, slots in (("1_tile", 1), ("2_prefetch", 1), ("4_cp_async", stages))
    ]
    assert [run.waited for run in runs] == [12, 7, 2]
    late = source("mmq", "2_prefetch").replace("if (b + 1 < blocks) load(b + 1);", "")
    assert late != source("mmq", "2_prefetch")
    with pytest.raises(UsageError, match="×1 uses a tile that was not waited for"):
        copies.simulate(copies.product_program(late), 3, 2.0)
    for text in ("", source("mmq", "6_wgmma")):
        with pytest.raises(UsageError, match="no loop along k"):
            copies.product_program(text)


def test_a_warp_s_ring_has_the_launch_rule_s_slots():
    assert "2 tiles ahead" in diagram.ring_of_a_warp("90").says
    assert "1 tile ahead" in diagram.ring_of_a_warp("89").says
    text = source("decode_attention", "4_cp_async")
    late = copies.decode_program(text, 3).at_once()
    ahead, asked = (copies.simulate(one, 4, 4.0) for one in (copies.decode_program(text, 3), late))
    assert ahead.waited < asked.waited == 16
    with pytest.raises(UsageError, match="ring of slots"):
        copies.decode_program("", 3)


def test_packed_heads_share_the_loads_of_a_key_by_the_launch_rule(monkeypatch):
    assert [context.loads_of_a_key(name, 4) for name in ("2_split_kv", "3_packed_gqa")] == [4, 1]
    before = diagram.split_context()
    assert "rung 2 loads each key 4 times, rung 3 once." in before.says
    rule = context.attention_tiles.decode_tile_of
    pairs = {"3_packed_gqa": {"GROUP": 2}}
    monkeypatch.setattr(
        context.attention_tiles,
        "decode_tile_of",
        lambda rung, *at: rule(rung, *at) | pairs.get(rung.name, {}),
    )
    after = diagram.split_context()
    assert "rung 3 2 times." in after.says and after.svg() != before.svg()


# --- MMQ's blocks -------------------------------------------------------------------------------------------


def test_warpgroups_scale_by_turns_and_only_what_was_waited_for():
    text = source("mmq", "6_wgmma")
    turns = mmq_blocks.turns_of(text)
    assert turns == (["start", "wait", "release", "scale"], 4, 4, 5)
    bars = mmq_blocks.take_turns(turns, 1.0, 3.0)
    scales = sorted((bar for bar in bars if bar.what == "scale"), key=lambda bar: bar.start)
    assert len(scales) == 16 and all(a.end <= b.start for a, b in zip(scales, scales[1:], strict=False))
    assert max(bar.end for bar in bars) == 1 + 16 * 3, "issue slots are never free after the first product"
    alone = mmq_blocks.take_turns(turns._replace(groups=1), 1.0, 3.0)
    assert max(bar.end for bar in alone) == 4 * (1 + 3), "one warpgroup waits for each product"
    never = text.replace("warpgroup_wait<0>();", "")
    with pytest.raises(UsageError, match="not waited for"):
        diagram.warpgroups_take_turns(H200, never)
    with pytest.raises(UsageError, match="no warpgroups"):
        mmq_blocks.turns_of("")


def test_mmq_tiles_are_drawn_as_sources_and_launch_rules_have_them():
    says = diagram.weights_read(("2_prefetch", "3_wide", "5_large_tiles")).says
    assert "Rung 2: tiles of 64 × 64: weights are read 8 times, activations 128 times" in says
    assert "Rung 3: tiles of 64 × 128: weights are read 4 times, activations 128 times" in says
    assert "Rung 5: tiles of 128 × 64: weights are read 8 times, activations 64 times" in says
    assert mmq_tiles.fragments_of(source("mmq", "4_cp_async"), {}) == (1, 8)
    assert (
        "Rung 5: 64 rows × 32 tokens a warp: 16 products, 8 fragments" in diagram.fragments_of_a_warp().says
    )
    with pytest.raises(UsageError, match="how many tiles"):
        mmq_tiles.fragments_of("", {})
    says = diagram.order_of_tiles().says
    assert "Rung 4: all rows of some tokens first" in says and "Rung 5: all tokens of some rows first" in says
    with pytest.raises(UsageError, match="blockIdx"):
        diagram.order_of_tiles(("6_wgmma", "8_stream_k"))


@pytest.mark.parametrize(
    ("blocks", "tiles", "steps", "sharers"), [(4, 6, 4, 4), (4, 7, 3, 4), (5, 3, 7, 4), (3, 6, 2, 0)]
)
def test_pieces_are_those_that_the_source_deals_out(blocks, tiles, steps, sharers):
    needs.compiler()
    text = (
        f"#define BLOCKS {blocks}\n#define SHARERS {sharers}\n{mmq_blocks.line_source()}"
        + """
extern "C" __global__ void deal(int* out, int tiles, int steps) {
    Line line(tiles, steps);
    for (int i = 0; i < 8; ++i) {
        const Piece piece = line.take();
        int* to = out + (blockIdx.x * 8 + i) * 3;
        to[0] = piece.tile, to[1] = piece.begin, to[2] = piece.count;
        if (piece.count == 0) return;
    }
}
"""
    )
    out = np.zeros((blocks, 8, 3), np.int32)
    simt.run(text, blocks, 1, [out, ctypes.c_int(tiles), ctypes.c_int(steps)], entry="deal")
    for block in range(blocks):
        dealt = [tuple(piece) for piece in out[block].tolist() if piece[2]]
        assert dealt == mmq_blocks.pieces(block, blocks, tiles, steps, sharers)


def test_other_tiles_change_the_drawing_of_a_last_turn():
    assert "2 blocks leave sums" in diagram.divided_along_k().says
    even = diagram.divided_along_k(tiles=8)
    assert "leave sums" not in even.says and "idle for 0" in even.says


# --- 06b: wide stores ---------------------------------------------------------------------------------------


def test_lanes_hold_what_the_source_s_exchanges_leave_them():
    needs.compiler()
    text = source("attention", "16_wide_stores")
    template = text[text.index("template <int STEP>") : text.index('extern "C"')]
    calls = [
        line.strip().partition("//")[0] for line in text.splitlines() if line.strip().startswith("exchange<")
    ]
    assert len(calls) == 3, "four exchanges, two of them on a line"
    kernel = (
        template
        + """
extern "C" __global__ void held(unsigned* out) {
    unsigned pairs[4];
    for (int b = 0; b < 4; ++b) pairs[b] = 8 * b + threadIdx.x % 4 * 2;
    CALLS
    for (int b = 0; b < 4; ++b) out[threadIdx.x * 4 + b] = pairs[b];
}
""".replace("CALLS", "\n    ".join(calls))
    )
    out = np.zeros((32, 4), np.uint32)
    simt.run(kernel, 1, 32, [out], entry="held")
    assert [columns[::2] for columns in wide_stores.exchanged(text)] == out[:4].tolist()
    assert out[:4].tolist() == [[8 * lane + 2 * k for k in range(4)] for lane in range(4)]


def test_another_address_stores_other_bytes():
    before, after = (
        wide_stores.store_of(source("attention", name)) for name in ("15_warp_vote", "16_wide_stores")
    )
    assert (before.width, before.stores, before.written, before.sectors) == (4, 4, 16, 1)
    assert (after.width, after.stores, after.written, after.sectors) == (16, 1, 64, 2)
    text = source("attention", "15_warp_vote")
    apart = text.replace("to[d / 2 + lane % 4] =", "to[d / 2 + lane % 4 * 8] =")
    assert apart != text
    assert diagram.lanes_store({"15_warp_vote": apart}).says != diagram.lanes_store().says
    with pytest.raises(UsageError, match="no store of outputs"):
        wide_stores.store_of("")


# --- 05: requests -------------------------------------------------------------------------------------------


def test_lanes_lie_in_the_sectors_that_they_touch():
    before = tuple(34 * (lane // 8) + 2 + 4 * (lane % 8) for lane in range(32))
    blocks, planes = Request(before, 4, "blocks"), Request(tuple(range(0, 512, 16)), 16, "planes")
    drawing = diagram.lanes_in_sectors([blocks, planes])
    assert "blocks: 32 lanes ask for 128 bytes of 5 sectors" in drawing.says
    assert "planes: 32 lanes ask for 512 bytes of 16 sectors" in drawing.says
    assert len(drawing.svg()) < 14_000
    shifted = diagram.lanes_in_sectors([Request(tuple(place + 32 for place in before), 4, "blocks"), planes])
    assert shifted.svg() != drawing.svg() and "128 bytes of 5 sectors" in shifted.says
