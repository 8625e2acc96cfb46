"""Drawings: computed from kernels, launch rules, sources and recordings, and changed where those change."""

import base64
import html
import re
import shutil
import xml.etree.ElementTree as ET

import altered
import needs
import numpy as np
import pandas as pd
import pytest
from rooflab import engine, simt
from rooflab.analysis import time_breakdown
from rooflab.book import home, readme
from rooflab.errors import MissingRecording, UsageError
from rooflab.hardware import device
from rooflab.numerics import model_shapes
from rooflab.numerics.quant import pack_int4
from rooflab.ops import gemv, int4
from rooflab.pages import lesson_05c, lesson_06b_rungs, lesson_09b
from rooflab.paths import KERNELS
from rooflab.records.fingerprint import fresh
from rooflab.records.store import Store
from rooflab.studies import attribution, decode, drawn, launch_rule, mmq, traces
from rooflab.verify import mutations
from rooflab.view import diagram
from rooflab.view.diagram import (
    built_on,
    columns,
    counters,
    decode_rungs,
    exchange,
    graphs,
    handovers,
    issue,
    layers,
    memory,
    over_time,
    report,
    ring_between,
    roles,
    roofs,
    rounding,
    rule,
    split,
    staying,
    svg,
    tiles,
    two_warps,
    words,
)

INT4 = int4.LADDERS["int4"]
CHIPS = [device.get("rtx-4090"), device.get("h200")]


def all_of(here):
    takes = diagram.of_lab(here)
    return {
        "launch": diagram.launch(1 << 24, 132),
        "loads": diagram.loads_in_flight(650.0),
        "coalescing": diagram.coalescing(),
        "row loads": diagram.row_loads(),
        "column strip": diagram.column_strip(),
        "rows and columns": diagram.rows_and_columns(),
        "pieces of rows": diagram.pieces_of_rows(4096, 4096),
        "sms": diagram.sms_at_work(4096, 4096, 132),
        "gate": diagram.gate_steps([("honest", "admitted"), ("one_nan", "refused: at the gate: 1 of 9")]),
        "block sum": diagram.block_sum([3, 1, 4, 1, 5, 9, 2, 6], 8),
        "one token": diagram.one_token(model_shapes.get("qwen2.5-1.5b")),
        "passed on": lesson_09b.opening(mutations.read())[2],
        "two slots": diagram.two_slots(),
        "in a row": diagram.in_a_row([("a store", 1), ("a load", 2), ("a sum over both GPUs, two shots", 4)]),
        "fragments": diagram.fragments(),
        "weights shared": diagram.weights_shared([("decode", 1), ("prompt", 1848)], 757.0, 4696.0),
        "split context": diagram.split_context(),
        "words of a row": diagram.words_of_a_row(),
        "dealt": diagram.dealt([("few", 32), ("many", 384), ("one more", 133), ("even", 264)], 132, "Blocks"),
        "terms": diagram.terms_of_time("A product by a law", diagram.Terms(3.6, 5.98, 0.04, 10.07)),
        "two clocks": diagram.two_clocks(14.0, 10.0),
        "clocks": diagram.clocks(34.1, 32.9, 1.1),
        "two orders": diagram.two_orders(),
        "caches": diagram.caches(model_shapes.get("gemma-4-e4b")),
        "slots": diagram.slots(4),
        "slots over time": diagram.slots_over_time(INT4[8:11], 1, (99.0, 64.0, 55.0), "an example"),
        "weight block": diagram.weight_block(),
        "divided weights": diagram.divided_weights(),
        "check of drafts": diagram.check_of_drafts(),
        "ways to multiply": diagram.ways_to_multiply(27.5, 7.1, 62.2),
        "budget": diagram.budget(3.7, ("shift", "mask", "- 8"), [("1_warp_row", 13.7), ("7_mma", 2.1)]),
        "readings": diagram.readings(121.0, 4696.0),
        "tokens share a tile": diagram.tokens_share_a_tile(),
        "split k": diagram.split_k(),
        "nibbles": diagram.nibbles(),
        "to half": diagram.to_half(),
        "byte to half": diagram.byte_to_half(),
        "key loads": diagram.key_loads({"one": (1, 2), "all": (16, 1)}),
        "q8": diagram.q8_layouts(),
        "accumulators": diagram.accumulators(),
        "matrices loaded": diagram.matrices_loaded(),
        "scores of a row": diagram.scores_of_a_row(),
        "tiles": diagram.attention_tiles(),
        "softmax": diagram.online_softmax(),
        "banks": diagram.banks(),
        "handed on": diagram.handed_on(),
        "half apart": diagram.half_apart(),
        "holders": diagram.holders(512),
        "nan leak": diagram.nan_leak(),
        "warp roles": diagram.warp_roles(over_time.Lengths(0.5, 1.0, 0.6)),
        "four changes": diagram.four_changes(over_time.Lengths(0.5, 1.0, 0.6)),
        "partial scores": diagram.partial_scores(512),
        "rungs": lesson_06b_rungs.rungs_of_the_page(),
        "dp4a": diagram.dp4a(),
        "warps on weights": diagram.warps_on_weights(INT4[2:5]),
        "x beside weights": diagram.x_beside_weights(INT4[7:9]),
        "weights of a lane": diagram.weights_of_a_lane(),
        "issue slots": diagram.issue_slots(CHIPS, halves=CHIPS[1:]),
        "ring": diagram.ring(takes),
        "pair over time": diagram.paired_over_time(takes),
        "two who copy": diagram.who_copies("10_paired_warpgroups", "12_warp_specialised", 64, 512),
        "shared copies": diagram.shared_copies("12_warp_specialised", 512),
        "pipeline": diagram.pipeline(takes),
        "layer": diagram.layer(diagram.ways(here, "fp16", {}), "FP16"),
        "split layer": diagram.split_layer(),
        "launches of a layer": diagram.launches_of_a_layer(),
        "rings between phases": ring_between.rings(engine.spec("qwen2.5-1.5b").shape, "fp16"),
        "launches over time": diagram.launches_over_time(
            36.0, 24.8, {"qkv": 2.0, "out": 1.0}, 1.3, "a model"
        ),
        "shots": diagram.shots(),
        "capture": diagram.capture(lesson_05c.timed_chain(here)),
        "barriers": diagram.barriers_met(),
        "tile order": diagram.tile_order(),
        "captured address": diagram.captured_address(),
        "asked first": diagram.asked_first(gemv.LADDERS["gemv"][2:5]),
        "tiles in turns": diagram.tiles_in_turns(),
        "who copies": decode_rungs.who_copies(),
        "at the barrier": decode_rungs.at_the_barrier(engine.spec("qwen2.5-1.5b").shape, "fp16"),
        "divided": decode_rungs.divided(96, 12, 12, 132),
        "heads a load": decode_rungs.heads_a_load(engine.spec("qwen2.5-1.5b").shape),
        **of_a_token(here),
    }


def of_a_token(here):
    """The drawings of lessons 01b to 02c."""
    known = {name: roof.value for name, roof in here.roof.items()}
    read, model = known["dram_read"], model_shapes.get(attribution.MODEL)
    rows, trace = time_breakdown.taken(here, attribution.decode([1024]))
    eager, busy = trace[trace["variant"] == "eager"], time_breakdown.busy(rows, trace).set_index("variant")
    asked = attribution.counted(weights="random")
    counted = time_breakdown.counters(here.profile("attribution", asked, "ncu", attribution.METRICS))
    laws = [("this GPU", launch_rule.rule(eager, model.name, read))] * 2
    links = [roofs.Link(name, read, "PCIe, pinned") for name in ("host", "DRAM", "L2")]
    return {
        "roofs": diagram.path_of_bytes(links, "132 SMs", read, roofs.peaks(known)),
        "half layers": diagram.half_layers(trace, busy, attribution.LAYER),
        "counters": diagram.where_counted(counters.contrast(counted[counted["operator"] == "decode"])),
        "layer by rule": diagram.layer_by_rule(rule.order(eager, attribution.LAYER), laws, model),
    }


# --- what a reader gets -------------------------------------------------------------------------------------


def test_every_drawing_is_an_image_with_words_and_small(h200):
    for name, drawing in all_of(h200).items():
        text = drawing.svg()
        root = ET.fromstring(text)
        tags = {child.tag.split("}")[1]: child.text for child in root if not list(child)}
        assert tags["title"] == drawing.title, name
        assert tags.get("desc", drawing.says) == drawing.says and ("desc" in tags) != drawing.lean, name
        assert root.get("role") == "img" and len(drawing.says) > 60, name
        assert len(text) < 28_000, f"{name} has {len(text)} bytes"
        bundle = drawing._repr_mimebundle_()
        assert bundle["text/plain"] == f"{drawing.title}. {drawing.says}"
        assert base64.b64decode(re.search(r'base64,([^"]+)"', bundle["text/html"])[1]).decode() == text
        assert html.unescape(re.search(r'alt="([^"]*)"', bundle["text/html"])[1]) == bundle["text/plain"]


def test_nothing_is_drawn_outside_and_text_is_large_enough(h200):
    for name, drawing in all_of(h200).items():
        for _, canvas in drawing.frames:
            for text in ET.fromstring(f"<g>{canvas.body()}</g>").iter("text"):
                size, said = float(text.get("font-size", svg.SMALL)), text.text or ""
                wide = svg.wide(said, size)
                before = {"middle": wide / 2, "end": wide}.get(text.get("text-anchor", ""), 0.0)
                start = float(text.get("x", "0")) - before
                assert start > -9, (name, said)
                assert start + wide < canvas.width + 12, (name, said)
                assert size >= 7, (name, said)


def test_fills_are_told_apart_in_grey():
    def grey(fill):
        return sum(share * int(fill[k : k + 2], 16) for share, k in ((0.3, 1), (0.59, 3), (0.11, 5)))

    light = sorted(grey(fill) for fill in (svg.PALE, svg.SKY, svg.AMBER, svg.BLUE))
    assert all(after - before > 14 for before, after in zip(light, light[1:], strict=False))
    lanes = [grey(svg.shade(lane)) for lane in range(32)]
    assert lanes == sorted(lanes, reverse=True) and lanes[0] - lanes[-1] > 80


def test_a_drawing_without_words_or_frames_is_refused():
    with pytest.raises(UsageError, match="at least one frame"):
        svg.Drawing("empty", "").svg()


# --- facts of the CPU runs ----------------------------------------------------------------------------------


def test_the_recorded_facts_are_what_watching_gives():
    needs.compiler()
    if simt.build.family() != "gcc":
        pytest.skip("loads stand where the source has them only on g++")
    for table, now in drawn.make().items():
        recorded = drawn.read(table).drop(columns="identity", errors="ignore")
        now = now.drop(columns="identity", errors="ignore")
        pd.testing.assert_frame_equal(recorded, now, check_dtype=False, obj=f"`rooflab trace drawn`: {table}")


def test_every_fact_is_fresh():
    """Needs no compiler: the launch rule and the source decide."""
    for table in ("requests", "regions"):
        rows = drawn.read(table)
        for scene, identity in set(zip(rows["scene"], rows["identity"], strict=True)):
            assert fresh(identity, drawn.identity(drawn.scenes()[scene])), (
                f"{scene}: run `rooflab trace drawn`"
            )
    held = set(drawn.read("requests")["scene"]) | set(drawn.read("regions")["scene"])
    assert held == set(drawn.scenes())


def test_what_is_not_recorded_names_its_command(tmp_path):
    with pytest.raises(MissingRecording, match="`rooflab trace drawn` makes it"):
        drawn.read("requests", root=tmp_path)
    with pytest.raises(UsageError, match="No drawing is of 'nothing'"):
        drawn.read("requests", "nothing")


def changed(monkeypatch, tmp_path, file, old, new, scene):
    """The tables of a scene whose kernel was changed."""
    shutil.copytree(KERNELS, tmp_path / "kernels")
    for module in ("rooflab.ops", "rooflab.studies.drawn"):
        monkeypatch.setattr(f"{module}.KERNELS", tmp_path / "kernels")
    path = tmp_path / "kernels" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return drawn.watched(scene, drawn.scenes()[scene])


def test_another_index_in_saxpy_changes_the_launch(monkeypatch, tmp_path):
    needs.compiler()
    backwards = "(gridDim.x - 1 - blockIdx.x) * (unsigned long long)THREADS + threadIdx.x"
    plain = "blockIdx.x * (unsigned long long)THREADS + threadIdx.x"
    found = changed(monkeypatch, tmp_path, "saxpy/1_scalar.cu", plain, backwards, "saxpy")
    before, after = diagram.launch(1024, 132), diagram.launch(1024, 132, requests=found["requests"])
    assert "works on element 517: i = blockIdx.x × 256 + threadIdx.x = 2 × 256 + 5 = 517" in before.says
    assert "works on element 261." in after.says and "blockIdx" not in after.says
    assert before.svg() != after.svg()


def test_columns_are_dealt_as_the_sources_say():
    shares = {name: columns.share_of(name, 512) for name in ("7_mma_32_rows", "8_head_dim_slices")}
    assert [share.registers(512) for share in shares.values()] == [512, 128]
    assert "512 registers a thread" in diagram.holders(512).says
    assert "4 warps multiply 128 columns each" in diagram.partial_scores(512).says
    assert "2 such groups of 4 warps, 64 queries, 256 threads" in diagram.partial_scores(512).says
    paired = diagram.partial_scores(512, "10_paired_warpgroups")
    assert "2 warpgroups and one that only copies, 64 queries, 384 threads" in paired.says
    whole = columns.share_of("9_wgmma", 512)  # 64 queries a warpgroup, of a block's 128
    assert (whole.queries, whole.registers(256), whole.registers(512)) == (64, 128, columns.MOST + 1)
    paired = columns.share_of("10_paired_warpgroups", 512)
    assert (paired.slices, paired.holder, paired.registers(512)) == (2, "warpgroup", 128)
    source = paired.rung.path.read_text().replace("HEAD_DIM / 2", "HEAD_DIM / 4")
    assert columns.share_of("10_paired_warpgroups", 512, source).registers(512) == 64
    ring = {width: columns.share_of("13_mbarrier_ring", width) for width in (128, 256, 512)}
    assert [(each.queries, each.slices) for each in ring.values()] == [(32, 1), (16, 1), (16, 2)]
    assert ring[512].registers(512) == 128 and "beside one that only copies" in diagram.holders(512).says
    with pytest.raises(UsageError, match="no constant QUERIES or ROWS"):
        columns.share_of("10_paired_warpgroups", 512, "")


def test_tensor_cores_wait_where_scaling_takes_longer(monkeypatch):
    slow, fast = (issue.busy(chip) for chip in CHIPS)
    assert slow[1] == slow[0] and slow[2] == 1.0, "scaling fits into the product's time"
    assert fast[1] == 3 and fast[2] == pytest.approx(mmq.issue_bound(CHIPS[1], 3) / CHIPS[1].int8_tensor)
    assert issue.busy(CHIPS[1], halves=True)[2] == 1.0
    drawn_before = diagram.issue_slots(CHIPS).svg()
    monkeypatch.setattr(issue, "STEPS", ("convert", "× +"))
    assert diagram.issue_slots(CHIPS).svg() != drawn_before
    assert issue.busy(CHIPS[1])[1] == 2
    with pytest.raises(UsageError, match="at least one chip"):
        diagram.issue_slots([])


def test_another_stride_changes_the_sectors(monkeypatch, tmp_path):
    needs.compiler()
    old = "x_tile[i], column_of_a[i * (unsigned long long)n]"
    turned = "(i + threadIdx.x) % rows"  # the same sum, each lane from another row on
    new = f"x_tile[{turned}], column_of_a[{turned} * (unsigned long long)n]"
    wide = changed(monkeypatch, tmp_path, "gemv/2_coalesced.cu", old, new, "coalesced")["requests"]
    before, after = diagram.coalescing(), diagram.coalescing(coalesced=wide)
    assert "4 sectors of 32 bytes, so 100.0%" in before.says and "32 sectors" in before.says
    assert after.says.count("32 sectors") == 2 and before.svg() != after.svg()
    steps = [canvas.body() for _, canvas in before.frames]
    words = (
        "128 bytes asked for",
        "in 32 sectors",
        "1024 bytes moved",
        "128 of 1024 bytes moved: 12.5% used",
    )
    assert len(steps) == 4 and all(text in step for text, step in zip(words, steps, strict=True))


def test_without_padding_the_padded_rows_meet_in_one_bank(monkeypatch, tmp_path):
    needs.compiler()
    found = changed(
        monkeypatch,
        tmp_path,
        "attention/5_padded.cu",
        "ROW = HEAD_DIM + 8",
        "ROW = HEAD_DIM + 0",
        "padded tiles",
    )
    before, after = diagram.banks(), diagram.banks(padded=found["requests"])
    assert "banks 0, 4, 8, 12, 16, 20, 24, 28 and takes 1 turn" in before.says
    assert "banks 0, 0, 0, 0, 0, 0, 0, 0 and takes 8 turns" in after.says


def test_loads_of_a_row_are_those_that_were_watched():
    known = traces.read("gemv")
    plain = diagram.row_loads().says
    assert plain == (
        "1_warp: 2 bytes a lane, 64 bytes in 2 sectors; 2_vector: 16 bytes a lane, 512 bytes in 16 sectors."
    )
    apart = " ".join(f"{64 * lane}" for lane in range(32))
    wider = known.assign(addresses=known["addresses"].where(known["bytes"] != 2, apart))
    assert "2 bytes a lane, 64 bytes in 32 sectors" in diagram.row_loads(rows=wider).says


def test_a_strip_s_sums_lie_in_as_many_banks_as_were_watched():
    seen = traces.read("gemv")
    drawing = diagram.column_strip()
    assert "takes 4 rows of them, 4 columns a lane" in drawing.says and "lie in 32 banks" in drawing.says
    of = seen["case"].str.startswith("gemv/6_column_strips ") & (seen["space"] == "shared")
    plain = " ".join(str(128 * lane) for lane in range(32))  # rows of 32 floats
    seen.loc[of & (seen["access"] == "load"), "addresses"] = plain
    assert "lie in 1 bank." in diagram.column_strip(seen).says


def test_lanes_of_a_row_share_an_output_and_those_of_columns_do_not():
    seen = traces.read("gemv")
    assert "4 sectors a load; the lanes have 32 outputs" in diagram.rows_and_columns().says
    assert "2 sectors a load; the lanes share an output" in diagram.rows_and_columns().says
    of = seen["case"].str.startswith("gemv_rows/1_warp ") & (seen["buffer"] == "w")
    down = seen.copy()
    down.loc[of, "addresses"] = " ".join(
        str(1024 * lane) for lane in range(32)
    )  # a lane a row of 512 weights
    assert "32 sectors a load; the lanes have 32 outputs" in diagram.rows_and_columns(down).says
    assert diagram.rows_and_columns(down).svg() != diagram.rows_and_columns().svg()


def test_pieces_of_a_row_are_dealt_by_the_shape_s_constants(monkeypatch):
    before = diagram.pieces_of_rows(4096, 4096, ("5_split",))
    assert "8 warps on 2 rows" in before.says and "32 of 32 pieces" in before.says
    monkeypatch.setattr(gemv, "options_for", lambda rung, n, k: {"UNROLL": 1, "ROWS": 1, "SPLIT": 4})
    after = diagram.pieces_of_rows(4096, 4096, ("5_split",))
    assert "4 warps on 1 row" in after.says and "4 of 16 pieces" in after.says and after.svg() != before.svg()


def test_a_kernel_is_stopped_where_the_gate_refused_it():
    said = [
        ("honest", "admitted, timed, checked again"),
        ("one_nan", "refused: at the gate: 1 of 100 outputs is wrong"),
        ("changes_inputs", "refused: changed its input 0 (copy 0)"),
        ("ten_times", "refused: after timing: 98 of 100 outputs are wrong"),
    ]
    found = diagram.gate_steps(said)
    assert found.says == (
        "honest passes all steps; one_nan is refused at step 1, outputs right; changes_inputs is refused at "
        "step 2, inputs unchanged; ten_times is refused at step 4, outputs still right."
    )
    assert found.svg().count(">passed<") == 3 + 0 + 1 + 2 and found.svg().count(">refused<") == 3
    assert found.svg().count(">time discarded<") == 1

    told = diagram.gate_steps(said[1:2], {"one_nan": "right but for one NaN"})
    assert told.says == "one_nan (right but for one NaN) is refused at step 1, outputs right."


def test_a_block_adds_up_by_the_rounds_of_its_source():
    assert exchange.offsets() == [16, 8, 4, 2, 1]
    found = diagram.block_sum([1, 2, 3, 4], 8)
    assert "plus lane xor 2: 4, 6, 4, 6; plus lane xor 1: 10, 10, 10, 10" in found.says
    assert "Each of 8 warps" in found.says and found.svg().count(">sum ") == 8
    half = diagram.block_sum([1, 2, 3, 4], 4, rounds=[2])
    assert "xor 1" not in half.says and half.svg().count(">sum ") == 4
    with pytest.raises(UsageError, match="halves its offset"):
        exchange.offsets("template <typename T> T warp_sum(T value);")


def test_a_model_is_drawn_by_its_shapes():
    small, large = (diagram.one_token(model_shapes.get(name)) for name in ("qwen2.5-1.5b", "llama-3-8b"))
    assert "28 layers" in small.says and "down 1,536 × 8,960" in small.says
    assert "32 layers" in large.says and "down 4,096 × 14,336" in large.says
    with pytest.raises(UsageError, match="other matrices"):
        diagram.one_token(model_shapes.get("gemma-4-e4b"))


def test_the_last_crossing_brings_what_is_waited_for():
    both = diagram.in_a_row([("a store", 1), ("a load", 2)], {"a load": ("load", "words")})
    assert both.says == "a store: 1 crossing, a guess; a load: 2 crossings (load, words)."
    guess = diagram.in_a_row([("a load", 2)], {"a load": ("load", "words")}, guessed=True)
    assert guess.says == "a load: 2 crossings (load, words), a guess."
    heights = [
        float(y)
        for y in re.findall(r'd="M[\d.]+ ([\d.]+)L[^"]*" fill="none"[^>]*stroke-width="1.6"', both.svg())
    ]
    assert heights == [10, 74 + 50, 74 + 10], (
        "a store starts at GPU 0, a load at GPU 1, and its words come back"
    )


def test_tiles_are_those_that_the_kernel_loaded():
    rows = drawn.read("regions", "tiles")
    before = diagram.attention_tiles()
    assert len(before.frames) == 4 and "tiles a block are 4 for queries from 192" in before.says
    fewer = rows[~((rows["buffer"] == "k") & (rows["row"] == 0) & (rows["block"] == 0))]
    assert len(diagram.attention_tiles(fewer, block=0).frames) == 3


def test_fragments_are_those_of_the_programming_interface():
    held = tiles.places(drawn.read("fragments", "m16n8k32_s8"), "d")
    assert held == {
        (lane // 4 + 8 * (place // 2), lane % 4 * 2 + place % 2): (lane, place)
        for lane in range(32)
        for place in range(4)
    }
    rows = drawn.read("fragments", "m16n8k32_s8")
    turned = rows.assign(elements=[" ".join(reversed(text.split())) for text in rows["elements"]])
    assert diagram.accumulators().svg() != diagram.accumulators(rows=turned).svg()


def test_split_k_ends_with_the_block_that_adds_up():
    rows = drawn.read("regions", "split k")
    drawing = diagram.split_k()
    assert len(drawing.frames) == 5 and "block 6, the last to arrive" in drawing.says
    never = rows[~((rows["buffer"] == "partial") & (rows["access"] == "load"))]
    assert len(diagram.split_k(never).frames) == 4


# --- facts of sources and rules -----------------------------------------------------------------------------


def test_sms_at_work_are_the_launch_rules(monkeypatch):
    before = diagram.sms_at_work(4096, 4096, 132)
    assert "2_coalesced has 16 blocks" in before.says and "keep 16 of 132 SMs" in before.says
    monkeypatch.setattr(gemv, "blocks_of", lambda rung, n, options: 132)
    assert "keep 132 of 132 SMs" in diagram.sms_at_work(4096, 4096, 132, ("2_coalesced",)).says


def test_instructions_without_room_in_their_cells_are_named_below():
    least = ("shift", "x to float")
    assert "shift, x to float<" not in diagram.budget(3.0, least, []).svg()
    assert "shift, x to float<" in diagram.budget(3.0, least, [("rung 1", 14.0)]).svg()


def test_bytes_in_flight_stand_beside_what_the_roof_needs():
    names = ("2_coalesced", "3_split_k")
    drawing = diagram.sms_at_work(4096, 4096, 132, names, (2**16, 2**22), 1.5 * 2**20)
    assert "SMs at work, and 64 KiB in flight" in drawing.says and "the 1.5 MiB in flight" in drawing.svg()
    grown = diagram.sms_at_work(4096, 4096, 132, names, (2**20, 2**22), 1.5 * 2**20)
    assert "and 1 MiB in flight" in grown.says and grown.svg() != drawing.svg()
    assert "Mark" not in diagram.sms_at_work(4096, 4096, 132, names, (2**16, 2**22)).svg()


def test_blocks_are_dealt_to_sms_until_none_is_left():
    many = diagram.dealt([("few", 1), ("many", 384), ("even", 264)], 132, "Blocks")
    assert many.says == (
        "132 SMs. few: 1 block, 1 on 1 SM, none on 131; many: 384 blocks, 3 on 120 SMs, 2 on 12; "
        "even: 264 blocks, 2 on 132 SMs."
    )
    for _, count, most in (("few", 1, 1), ("many", 384, 3), ("even", 264, 2)):
        full = 132 - (132 * most - count)
        assert full * most + (132 - full) * (most - 1) == count
    # A fill a number, and its square in the key: one block SKY, two BLUE (of 384's last SMs, and of 264's).
    assert [many.svg().count(f'fill="{fill}"') for fill in (svg.SKY, svg.BLUE)] == [2, 3]


def test_a_word_holds_what_was_packed():
    weights = np.array([[-8, 7, 0, -1, 3, 2, -5, 1]], np.int8)
    word = int(pack_int4(weights).view(np.uint32)[0, 0])
    assert words.codes(word) == weights[0].tolist()
    assert words.codes(words.EXAMPLE) == [-2, -1, 5, 2, -5, 0, -2, 0]
    with pytest.raises(UsageError, match="32 bits"):
        diagram.nibbles(1 << 32)


def test_dp4a_multiplies_signed_bytes():
    drawing = diagram.dp4a(0x000001FF, 0x00000203)
    assert "-1 × 3; the sum is -1" in drawing.says  # 1 × 2 and -1 × 3
    with pytest.raises(UsageError, match="32 bits"):
        diagram.dp4a(1 << 32)


def test_the_magic_number_is_the_sources(tmp_path):
    drawing = diagram.to_half()
    assert "0x6400 is 1024" in drawing.says and "0x6406, which is 1030; 1032 less is -2" in drawing.says
    changed = tmp_path / "int4.cuh"
    changed.write_text((KERNELS / "common" / "int4.cuh").read_text().replace("0x64086408u", "0x64076407u"))
    assert "1031 less is -1" in diagram.to_half(file=changed).says
    changed.write_text("nothing")
    with pytest.raises(UsageError, match="has no int4_to_halves"):
        diagram.to_half(file=changed)


def test_the_magic_number_is_what_the_kernel_makes():
    needs.compiler()
    text = """
    #include "common/int4.cuh"
    extern "C" __global__ void halves(const unsigned* words, unsigned* out) {
        int4_to_halves(words[threadIdx.x], out + 4 * threadIdx.x);
    }"""
    asked, out = np.arange(16, dtype=np.uint32), np.zeros((16, 4), np.uint32)
    simt.run(text, 1, 16, [asked, out], entry="halves")
    mask, base, ones = words.magic()
    for code, made in zip(asked.tolist(), out[:, 0].tolist(), strict=True):
        assert words.half(made & 0xFFFF) == words.half(code & mask | base) - words.half(ones) == code - 8


def test_online_softmax_is_softmax():
    scores, values = [1.0, 3.0, 2.0, -5.0], [10.0, 20.0, 30.0, 7.0]
    last = tiles.softmax_steps(scores, values)[-1]
    p = np.exp(np.array(scores) - 3)
    assert last["l"] == pytest.approx(p.sum()) and last["o"] / last["l"] == pytest.approx(
        p @ values / p.sum()
    )
    assert len(diagram.online_softmax().frames) == 6


def test_blocks_and_planes_are_those_of_the_repack():
    drawing = diagram.q8_layouts()
    assert "blocks of 34 bytes" in drawing.says and "2, 0, 2, 0 bytes past a multiple of 4" in drawing.says
    assert "byte 36: a multiple of 4" in drawing.svg()


# --- over time ----------------------------------------------------------------------------------------------

TAKES = over_time.Lengths(0.5, 1.0, 0.6)


def test_the_pipeline_follows_the_order_of_the_source():
    text = over_time.rung().path.read_text()
    run = over_time.simulate(over_time.program(text), 4, 2, TAKES)
    assert over_time._overlap(run) == pytest.approx(3 * 0.6), (
        "all softmaxes but the first stand beside products"
    )
    late = text.replace("warpgroup_wait<1>();", "warpgroup_wait<0>();")
    assert late != text
    after = over_time.simulate(over_time.program(late), 4, 2, TAKES)
    assert over_time._overlap(after) == pytest.approx(0.0, abs=1e-9)
    assert diagram.pipeline(TAKES).svg() != diagram.pipeline(TAKES, text=late).svg()


def test_a_block_that_stays_copies_the_next_piece_while_it_multiplies():
    steps = over_time.program(over_time.rung().path.read_text())
    alone, two = (over_time.simulate(steps, 3, 2, TAKES, pieces) for pieces in (1, 2))
    end = max(bar.end for bar in alone.bars)
    assert len(two.bars) == 2 * len(alone.bars)
    assert min(bar.start for bar in two.bars if bar.row == "copies" and bar.tile == 3) < end
    assert end < max(bar.end for bar in two.bars) < 2 * end


def test_packed_heads_mask_fewer_products_and_late_rescales_are_rare():
    assert staying.block(1, 128, 512, 80)[3:] == (8, 1 - 512 / 640)
    assert staying.block(4, 128, 512, 80)[1:4] == (32, 80, 7)
    row = staying.scores()[0]
    assert staying.rescales(row, 0.0)[-1] == row.max() and staying.rescales(row, 1e9) == [row[0]] * len(row)
    text = staying.rung().path.read_text()
    assert staying.limit(text) == 8
    with pytest.raises(UsageError):
        staying.limit("")


def test_a_slot_is_filled_again_only_once_it_was_released():
    text = over_time.rung().path.read_text()
    run = over_time.simulate(over_time.program(text), 6, 2, TAKES)
    for item, start in run.claimed.items():
        if item >= 4:
            assert start >= run.empty[item - 4]
        assert run.full[item] >= start + TAKES.copy - 1e-9
    uses = [bar for bar in run.bars if bar.row == "tensor cores"]
    assert all(bar.start >= run.full[2 * bar.tile + (bar.what == "PV")] - 1e-9 for bar in uses)
    stuck = text.replace("release(2 * t - 1);", "")
    with pytest.raises(UsageError, match="waits for a slot that item . never leaves"):
        over_time.simulate(over_time.program(stuck), 6, 2, TAKES)


def test_a_source_without_such_a_loop_is_refused():
    with pytest.raises(UsageError, match="no loop over tiles"):
        over_time.program("void f() {}")


def test_every_rung_comes_after_those_it_builds_on():
    names = lesson_06b_rungs.page_order()
    found = {name: (built_on.parents_of(name), built_on.borrowed(name)) for name in names[1:]}
    assert found["12_warp_specialised"] == ((10, 11), ()) and found["13_mbarrier_ring"] == ((7,), (8,))
    assert found["8_head_dim_slices"] == ((7,), ()) and found["9_wgmma"] == ((7,), ())
    for place, name in enumerate(names[1:], 1):
        before = {int(each.partition("_")[0]) for each in names[:place]}
        assert set(sum(found[name], ())) <= before, name
    assert built_on.parents_of("9_wgmma", "// Branch  rung 3 and rung 4.\n#include") == (3, 4)
    said = lesson_06b_rungs.rungs_of_the_page().says
    assert "12, a role for each, 512 wide, on 10 and 11" in said
    assert "rungs 18 to 20, 11, TMA" in said and "rungs 14 to 17, four" in said
    boxes = [diagram.Node((name,), "", 0, (512,)) for name in ("9_wgmma", "8_head_dim_slices")]
    assert "Built: ." in diagram.rung_tree(boxes).says
    with pytest.raises(UsageError, match="drawn before a rung that it builds on"):
        diagram.rung_tree([diagram.Node((name,), "", 0, (512,)) for name in names[2:0:-1]])
    with pytest.raises(UsageError, match="no rung 99_x"):
        built_on.parents_of("99_x")


def test_roles_go_on_beside_each_other_in_the_source_s_order():
    text = roles.rung().path.read_text()
    found = roles.roles_of(text)
    assert (found.slots, found.cluster, found.before) == (3, 2, 0.875)
    run = roles.simulate(found, 6, TAKES)
    make = {(bar.what, bar.tile): bar for bar in run.bars if bar.row != "copies"}
    for t in range(6):
        assert make["PV", t].start >= run.events["P", t] >= make["softmax", t].end
        assert t < 2 or make["softmax", t].start >= run.events["P read", t - 2]
    quick = TAKES._replace(copy=0.01)  # then tensor cores set the pace, and softmaxes cost nothing
    assert roles.busy(roles.simulate(found, 40, quick))[1] > 0.97
    held, at_once = (roles.simulate(found._replace(before=part), 40, quick) for part in (0.875, 0.0))
    later = roles.busy(at_once)[0] - roles.busy(held)[0]
    assert later == pytest.approx(39 * TAKES.softmax, rel=0.15), "no product runs beside a softmax"
    slow = TAKES._replace(copy=1.9 * TAKES.product, softmax=0.17 * TAKES.product)
    alone, shared = roles.both_runs(slow, 4)[1]
    assert roles.late(alone) and not roles.beside(alone), "P V waits for values, no softmax has it beside"
    assert not roles.late(shared) and [bar.tile for bar in roles.beside(shared)] == [1, 2, 3]
    drawn = diagram.warp_roles(slow)
    assert "beside 0 of 4 softmaxes" in drawn.says and "beside 3 of 4 softmaxes" in drawn.says
    assert "PV0 waits for V0" in drawn.svg() and drawn.svg().count("PV0 runs beside softmax 1") == 1
    early = text.replace("mbarrier_arrive(p_full + (buffer ^ 1));", "")
    with pytest.raises(UsageError, match="no step: hand over"):
        roles.roles_of(early)
    with pytest.raises(UsageError, match="two loops over tiles"):
        roles.roles_of("void f() {}")
    stuck = found._replace(adds=[step for step in found.adds if step != "release V"])
    with pytest.raises(UsageError, match="All wait: "):
        roles.simulate(stuck, 6, TAKES)


def test_warps_of_a_ring_come_apart_and_keep_tensor_cores_busy():
    together, apart = (two_warps.steps_of(name) for name in (two_warps.TOGETHER, two_warps.APART))
    assert together == ["meet", "QK", "softmax", "meet", "PV"]
    assert (two_warps.simulate(together, 6).rests, two_warps.simulate(apart, 6).rests) == (6, 0)
    run = two_warps.simulate(apart, 6)
    for bar in run.bars:
        assert run.full[bar.tile] <= bar.start and bar.end <= run.empty[bar.tile]
    assert all(run.claimed[t] >= run.empty[t - 2] for t in range(2, 6)), "a slot is written while it is read"
    assert two_warps.simulate(together, 3).idle == [3, 8, 13] and not run.idle
    assert [run.begins(0, what, 0) for what in ("QK", "softmax", "PV")] == [1, 2, 3]
    with pytest.raises(UsageError, match="no loop over tiles"):
        two_warps.steps_of("1_scalar")
    with pytest.raises(UsageError, match="Both warps wait"):
        two_warps.simulate([step for step in apart if step != "copy"], 3)


def test_more_loads_under_way_are_more_done():
    assert "has 3 loads done" in diagram.loads_in_flight(650).says
    assert "under way has 24" in diagram.loads_in_flight(650).says
    assert "under way has 12" in diagram.loads_in_flight(650, many=4).says


def test_a_layer_is_drawn_from_what_was_recorded(h200):
    found = layers.ways(h200, "fp16", {})
    assert [way.name for way in found] == [*decode.rungs(h200.sized)]
    assert all(way.us > way.bytes_us > 0 for way in found)
    slower = [way._replace(us=2 * way.us) if way.name == "2_pdl" else way for way in found]
    assert diagram.layer(found, "FP16").svg() != diagram.layer(slower, "FP16").svg()
    with pytest.raises(UsageError, match="at least one recorded way"):
        diagram.layer([], "FP16")


def test_a_capture_is_drawn_from_the_chain_s_times_and_launches(h200, monkeypatch):
    chain = lesson_05c.timed_chain(h200)
    drawing = diagram.capture(chain)
    each = chain.set_index(["way", "clock"])["each"]
    assert f"{each['bare', 'wall']:.1f} µs of the CPU" in drawing.says
    slower = chain.assign(each=chain["each"].where(chain["way"] != "bare", 2 * chain["each"]))
    assert diagram.capture(slower).svg() != drawing.svg(), "another time for a launch"
    monkeypatch.setattr(graphs.operands, "chain_products", lambda n, k, layers: [("a", (n, k), "b")])
    assert "product (a int8 to b)" in diagram.capture(chain).says, "other launches"
    with pytest.raises(UsageError, match="measure both"):
        diagram.capture(chain[chain["way"] != "as a graph"])


def test_an_event_clock_adds_what_is_longer_launch_or_kernel():
    assert "each further launch adds 14 µs" in diagram.two_clocks(14.0, 10.0).says
    assert "each further launch adds 10 µs" in diagram.two_clocks(4.0, 10.0).says
    longer = diagram.two_clocks(14.0, 10.0, first=26.0)
    assert "the first 26 µs" in longer.says and ">one token: 36 µs<" in longer.svg()
    waits = [diagram.two_clocks(call, 10.0).svg().count(">waits<") for call in (20.0, 4.0)]
    assert waits == [4, 1], "only the first kernel waits where kernels take longer"


def test_each_instrument_is_shown_with_what_it_stops():
    killed = mutations.read()
    drawing = lesson_09b.opening(killed)[2]
    gate, left = (int((killed["killed"] == word).sum()) for word in ("gate", ""))
    assert f"and stops {gate}, such as" in drawing.says and f"Left: {left}; for each" in drawing.says
    blind = lesson_09b.opening(killed.assign(killed=killed["killed"].replace({"watcher": ""}), reason=""))[2]
    assert "watcher" not in blind.says and "of them a hole" in blind.says


def test_three_clocks_are_drawn_to_one_scale():
    small, large = diagram.clocks(34.1, 32.9, 1.1), diagram.clocks(268.0, 265.0, 234.0)
    assert "would hold 31 such links" in small.says and "would hold 1 such link." in large.says
    assert "the kernel is 1.1" in small.says and "the kernel is 234" in large.says
    assert "2,000 kernels" in diagram.clocks(2000.0, 1999.0, 1.0).svg(), "too many are not drawn one by one"
    assert "the kernel is 2" in diagram.clocks(5.0, 2.0, 3.0).says, "a graph may be slower than an event"


def test_a_sum_in_two_orders_ends_where_fp16_rounds_it():
    left, right = rounding.partial_sums((1, 0.0007, 0.0007)), rounding.partial_sums((0.0007, 0.0007, 1))
    assert left == [1, 1 + 2**-10, 1 + 2**-9] and right[-1] == 1 + 2**-10
    assert "two results 0.000977" in diagram.two_orders().says
    assert "two results 0." in diagram.two_orders((1.0, 1.0, 2.0)).says, "exact sums end alike"


def test_a_layer_s_cache_is_as_long_as_its_window_and_whose_it_is(monkeypatch):
    gemma = diagram.caches(model_shapes.get("gemma-4-e4b"))
    layers = model_shapes.layers(model_shapes.get("gemma-4-e4b"))
    own = [layer for layer in layers if layer.owns_kv]
    assert f"{sum(not layer.window for layer in own)} layers all tokens" in gemma.says
    assert f"{len(layers) - len(own)} layers an earlier layer's" in gemma.says
    assert "window" not in diagram.caches(model_shapes.get("llama-3-8b")).says
    short = diagram.caches(model_shapes.get("gemma-4-e4b"), 256)
    assert "a window" not in short.says, "no layer leaves tokens out where the window holds them all"
    wider = [layer._replace(window=layer.window and 1024) for layer in layers]
    monkeypatch.setattr(model_shapes, "layers", lambda model: wider)
    assert diagram.caches(model_shapes.get("gemma-4-e4b")).says != gemma.says


def test_a_layer_is_split_as_the_engine_splits_it(monkeypatch):
    two, four = diagram.split_layer(), diagram.split_layer(gpus=4)
    assert "rows of q, k, v, gate, up, and columns of o, down" in two.says and "8,192 bytes" in two.says
    assert "16 of 32 heads" in two.says and "8 of 32 heads" in four.says and two.svg() != four.svg()
    mine = [split.parts_of(split.spec("llama-3-8b"), rank, 2) for rank in (0, 1)]
    assert mine[0]["gate"].rows == (0, 7168) and mine[1]["gate"] == ((7168, 14336), (0, 4096))
    assert mine[0]["down"] == ((0, 4096), (0, 7168)) and mine[1]["down"].columns == (7168, 14336)
    monkeypatch.setattr(split.shares, "_ROWS", re.compile(r"\.(q|k|v)_proj\.weight$"))
    assert "rows of q, k, v, and" in diagram.split_layer().says, "another split is another picture"
    with pytest.raises(UsageError, match="cannot be shared evenly"):
        diagram.split_layer("qwen2.5-1.5b", gpus=4)


def test_kernels_wait_for_their_launch_or_for_each_other():
    assert graphs.eager(4.0, 1.0, 2) == [(4.0, 5.0), (8.0, 9.0)], "the host is slower"
    assert graphs.eager(1.0, 4.0, 2) == [(1.0, 5.0), (5.0, 9.0)], "the GPU is slower"


def test_requests_of_shared_memory_are_found_by_their_code():
    rows = drawn.read("requests", "tiles")
    assert memory.lanes_in_banks(rows).width == 16


# --- a report's pictures ------------------------------------------------------------------------------------


def test_a_roofline_holds_every_recorded_kernel_and_the_recordings_roofs(h200):
    points = report.kernels(h200.store)
    assert len(points) > 60 and not points.duplicated(["study", "operator", "impl"]).any()
    rows = readme.compared(h200.store)
    drawing = report.roofline(h200.store, rows)
    assert f"{len(points)} kernels under a read roof" in drawing.says
    table, drawn = readme.results(h200.store), drawing.svg()
    for row in rows[rows["flops"] > 0].to_dict("records"):
        share = f"{row['roof_fraction']:.0%}"
        assert f"{row['operator']} {row['impl']} {share}" in drawing.says
        words = report.WORDS[row["operator"]]
        of = {"dram_read": "read", "dram_triad": "triad", "fp16_tensor": "FP16", "bf16_tensor": "BF16"}
        assert f"{words} {share} of {of[row['roof']]}<" in drawn, "the number below the picture"
        [shown] = table[table["operator"] == row["operator"]]["of its roof"]
        assert shown.startswith(f"{share} of "), "the picture and the table show one shape"
    numbered = len(rows[(rows["flops"] > 0) & (rows["bytes"] > 0)])
    assert drawn.count("h8v8h-8z") == numbered + 1, "each at its place, and one in the key"
    assert drawing.svg() != report.roofline(h200.store, rows.assign(median_us=2 * rows["median_us"])).svg()
    best = points.sort_values("roof_fraction").iloc[-1]
    text = home.pictures(h200.store)
    assert f"`{best['impl']}` ({readme.shape(best)}) at {best['roof_fraction']:.0%} of" in text
    assert f"of the data sheet's {device.get('h200').fp16_tensor:,.0f} TFLOP/s" in drawing.says
    assert best["roof_fraction"] > 1, "a kernel above a measured roof needs that sentence"
    ET.fromstring(drawing.svg())


def test_a_gpu_stands_among_the_recorded_ones(h200, tmp_path):
    assert report.places([h200.store], "NVIDIA H200") is None, "one alone has no place"
    other = Store(tmp_path, altered.write(altered.RECORDINGS[2], tmp_path).name)
    drawing = report.places([h200.store, other], altered.GEFORCE)
    assert drawing.says.index("NVIDIA H200") < drawing.says.index(altered.GEFORCE), "the faster one is first"
    text = home.pictures(other)
    assert text.count("rooflab-drawing") == 2, "its roofline, and its place beside the H200"
    assert home.pictures(Store(tmp_path, "nothing")) == ""


def test_launches_of_a_layer_are_those_of_the_engines_source():
    """Another order or number of launches in the engine is another picture."""
    separate, inside = handovers.by_way().values()
    assert [each.name for each in separate].count("all_reduce") == 2 and sum(e.sums for e in inside) == 2
    assert separate[4:6] == [("out", False), ("all_reduce", True)] and len(separate) > len(inside)

    def layers():
        for layer in range(3):
            norm(layer)  # noqa: F821
            silu_mul(product("down", layer))  # noqa: F821

    assert handovers.launches(layers, inside=True) == [
        ("all_reduce + norm", True), ("down", False), ("silu_mul", False),
    ]  # fmt: skip


def test_launches_over_time_are_as_long_as_measured():
    """Whatever is drawn in a row, its parts are the measured times; without overlap there is no drawing."""
    weights = {"qkv": 2.0, "out": 1.0, "gate_up": 6.0, "down": 3.0}
    for plain, dependent in ((36.0, 24.8), (80.0, 79.0), (9.0, 3.0)):
        parts = handovers._drawn_parts(plain, dependent, weights, 1.3)
        assert sum(sum(each[1:]) for each in parts) == pytest.approx(plain)
        assert sum(each[3] for each in parts) == pytest.approx(dependent)
        assert all(min(each[1:]) >= -1e-9 for each in parts)
        says = diagram.launches_over_time(plain, dependent, weights, 1.3, "x").says
        assert f"hides {plain - dependent:.1f} µs" in says
    with pytest.raises(UsageError, match="take longer"):
        diagram.launches_over_time(20.0, 24.8, weights, 1.3, "x")


def test_another_quant_or_constant_is_another_fp16_number(tmp_path):
    drawing = diagram.byte_to_half(-23)
    assert "with the byte 105 for its lower half it is 1129; 1152 less is -23" in drawing.says
    assert diagram.byte_to_half(5).svg() != drawing.svg()
    for quant in (-128, 127):  # every byte's value, by the bits themselves
        assert words.half(0x6400 | quant + 128) - 1152 == quant
    changed = tmp_path / "q8_tiles.cuh"
    changed.write_text(words._Q8.read_text().replace("1152.0f", "1151.0f"))
    assert "1151 less is" in diagram.byte_to_half(file=changed).says
    with pytest.raises(UsageError, match="is no quant"):
        diagram.byte_to_half(128)


def test_loads_of_a_key_follow_from_who_shares_it():
    shared = diagram.key_loads({"alone": (1, 2), "four": (4, 1), "none": None})
    assert shared.says.endswith("alone: 32 loads in 2 passes; four: 4 loads.")
    assert "four: 2 loads" in diagram.key_loads({"four": (4, 1)}, queries=8).says
    assert diagram.key_loads({"four": (8, 1)}).svg() != diagram.key_loads({"four": (4, 1)}).svg()
    with pytest.raises(UsageError, match="3 at a time"):
        diagram.key_loads({"three": (3, 1)})


def test_an_mmas_operands_are_drawn_as_deep_as_its_name_says():
    rows = drawn.read("fragments", "m16n8k32_s8")
    deep, shallow = (diagram.accumulators(f"m16n8k{depth}_s8", rows) for depth in (32, 16))
    assert "A, 16 x 32, times B, 32 x 8" in deep.says
    assert "A, 16 x 16, times B, 16 x 8" in shallow.says
    assert "× 16 of k" in shallow.svg()


def test_ldmatrix_gives_each_lane_a_register_of_every_matrix():
    one, other = diagram.matrices_loaded(), diagram.matrices_loaded(lane=31)
    assert "Lane 5 gets of matrix 0 row 1, columns 2 and 3; of matrix 1 row 1, columns 2 and 3" in one.says
    assert "of matrix 3 row 7, columns 6 and 7" in other.says


def test_a_lane_s_eight_scores_are_of_two_queries_that_it_shares_with_three_lanes():
    one, other = diagram.scores_of_a_row(), diagram.scores_of_a_row(lane=31)
    assert "Lane 5 shares queries 1 and 9 with lanes 4 to 7." in one.says
    assert "query 1, key 2 in s[0][0]" in one.says and "query 9, key 11 in s[1][3]" in one.says
    assert "Lane 31 shares queries 7 and 15 with lanes 28 to 31." in other.says
