"""The drawing of a layer block by block, from rows made up here, and what a page says without any."""

import numpy as np
import pandas as pd
import pytest
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.pages import lesson_08, lesson_08_clock, lesson_08_timeline
from rooflab.profile import timeline
from rooflab.studies import decode
from rooflab.view import diagram
from rooflab.view.diagram import by_block, layers


def layer(starved=1.0, count=8):
    """A layer of `count` blocks: a phase is 1 us for x, 2 for products, 1 for the rest, 1 of waiting."""
    found = pd.DataFrame({"block": range(count), "layer": 3})
    for i, phase in enumerate(timeline.PHASES[:-1]):
        for mark, at in {"begin": 0, "ready": 1, "multiplied": 3, "end": 4}.items():
            if phase != "attend" or mark in ("begin", "end"):
                found[f"{phase}_{mark}_us"] = 5.0 * i + at
        if phase != "attend":
            found[f"{phase}_starved_us"] = starved
    return found[[*timeline.LAYER]]


def recorded(**starved):
    cases = decode.timed(device.get("h200"))
    return pd.concat(
        [layer(starved.get(case.impl.split("_", 1)[1], 1.0)).assign(case=case.id) for case in cases]
    )


def test_spans_cover_a_block_s_phases_and_leave_its_waits_empty():
    table = by_block.spans(layer())
    one = table[table["block"] == 0].sort_values("start")
    assert (one["end"] - one["start"]).sum() == pytest.approx(5 * 4)
    assert one["kind"].tolist()[:5] == ["x", "starved", "multiplies", "ends", "attends"]
    part = by_block.shares(layer())
    assert part.sum() == pytest.approx(1) and part["others"] == pytest.approx(4 / 24)
    assert part["starved"] == pytest.approx(4 / 24) and part["attends"] == pytest.approx(4 / 24)
    # A block that waited for weights longer than it multiplied, by its clock, is drawn within its products.
    assert by_block.shares(layer(starved=9.0))["multiplies"] == pytest.approx(0)


def test_every_rung_is_drawn_on_one_scale_and_said_in_words():
    rows = recorded(producer_warps=2.0)
    drawing = diagram.blocks(rows)
    names = [case.impl for case in decode.timed(device.get("h200"))]
    assert all(f"{name} takes 24.0 µs" in drawing.says for name in names) and len(names) >= 2
    assert "waits for weights 33%" in drawing.says and "is between marks 17%" in drawing.says
    text = drawing.svg()
    assert all(f"{name}: 24.0 µs a layer" in text for name in names)
    later = rows.assign(
        down_end_us=rows["down_end_us"] * np.where(rows["case"] == rows["case"].iloc[0], 2, 1)
    )
    assert diagram.blocks(later).svg() != text and f"{names[0]} takes 48.0" in diagram.blocks(later).says
    both = pd.concat([rows, rows.assign(case=rows["case"].str.replace("format=fp16", "format=q8_0"))])
    assert [caption for caption, _ in diagram.blocks(both).frames] == ["FP16 weights", "Q8_0 weights"]
    assert "Q8_0 weights: 3_persistent takes" in diagram.blocks(both).says
    with pytest.raises(UsageError, match="at least one recorded timeline"):
        diagram.blocks(rows.iloc[:0])


def test_the_stretches_that_may_hold_a_wait_are_summed_together(h200, monkeypatch):
    waits, weights, stores = by_block.sums(layer())
    assert (waits, weights, stores) == pytest.approx((4 + 4 + 4, 8, 4))
    later = layer()  # the wait moves from between the marks into the load: the sum stays
    later["down_begin_us"] -= 0.5
    assert by_block.sums(later)[0] == pytest.approx(waits)
    assert by_block.shares(later)["others"] < by_block.shares(layer())["others"]
    folds = []
    monkeypatch.setattr(lesson_08_timeline.display, "fold_parts", lambda summary, parts: folds.append(parts))
    monkeypatch.setattr(h200, "held", lambda study, cases, tool: cases)
    monkeypatch.setattr(h200, "profile", lambda *_: recorded())
    lesson_08_timeline.blocks_over_time(h200, lesson_08_clock.taken(h200), {})
    text, drawing, (table, *_) = folds[0][:3]
    assert table["waits and inputs"].tolist() == pytest.approx([12.0] * 3)
    assert "spends the least" not in text and "block by block, FP16 weights" in drawing
    assert by_block.copies_itself("3_persistent") and not by_block.copies_itself("6_producer_warps")


def test_a_page_without_rows_says_what_is_not_yet_measured(h200, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(lesson_08_timeline.display, "say", said.append)
    monkeypatch.setattr(h200, "held", lambda *_: [])
    lesson_08_timeline.blocks_over_time(h200, lesson_08_clock.taken(h200), {})
    assert len(said) == 1 and "not yet measured" in said[0] and "`3_persistent`" in said[0]


def test_a_clocked_phase_lasts_until_half_of_the_blocks_have_the_next_one_s_input():
    us = layers.clocked(layer())
    whole = by_block.spans(layer())["end"].max()
    assert us[:2] == (4.0, 6.0) and len(us) == 5 and sum(us) == pytest.approx(whole)
    slow = layer()
    slow.loc[0, "down_end_us"] = whole + 6  # a block that ends late delays the next layer
    assert layers.clocked(slow) == (*us[:-1], us[-1] + 6)


def test_bytes_that_a_phase_has_no_time_for_count_to_those_before_it():
    way = layers.Way("it", 10.0, (3.0, 1.0, 2.0, 3.0, 1.0), (1e6, 0.0, 1e6, 5e6, 2e6), 1000.0)
    assert way.bytes_us == 9.0 and way.beside_us == 1.0
    assert layers.by_bytes(way) == [2.0, 1.0, 2.0, 3.0, 1.0]
    assert layers.by_bytes(way._replace(bytes=(2e6, 0.0, 0.0, 0.0, 0.0))) == [2.0, 0.0, 0.0, 0.0, 0.0]
    assert layers.by_bytes(way._replace(bytes=(5e6, 0.0, 0.0, 0.0, 0.0))) == [3.0, 0.0, 0.0, 1.0, 1.0]


def test_a_layer_is_taken_apart_only_by_what_was_recorded(h200, monkeypatch):
    clocks = lesson_08_clock.taken(h200)
    found = {way.name: way for way in layers.ways(h200, "int4_g128", clocks)}
    for name in ("1_kernel_per_phase", "3_persistent", "9_flags_in_data"):
        assert len(found[name].phases) == 5 and sum(found[name].phases) == pytest.approx(found[name].us)
    assert found["2_pdl"].phases == () and "2_pdl takes" in diagram.layer([found["2_pdl"]], "INT4").says
    without = {way.name: way for way in layers.ways(h200, "int4_g128", {})}
    alone = diagram.layer([without["3_persistent"]], "INT4").svg()
    assert "not timed by phase" in alone != diagram.layer([found["3_persistent"]], "INT4").svg()
    said, drawn = [], []
    monkeypatch.setattr(lesson_08.display, "say", said.append)
    monkeypatch.setattr(diagram.Drawing, "show", lambda drawing: drawn.append(drawing))
    lesson_08.layers_drawn(h200, "int4_g128")
    assert "1_kernel_per_phase takes" in drawn[0].says and "2_pdl" not in drawn[0].says
    first, last = found["1_kernel_per_phase"], found["9_flags_in_data"]
    assert f"falls from {first.beside_us:.1f} to {last.beside_us:.1f} µs" in said[0]
    assert "the 141 phases of a token" in said[0]
    monkeypatch.setattr(lesson_08_clock, "taken", lambda _: {})
    lesson_08.layers_drawn(h200, "int4_g128")
    assert "2_pdl takes" in drawn[1].says
    monkeypatch.setattr(diagram, "ways", lambda *_: [])
    lesson_08.layers_drawn(h200, "int4_g128")
    assert "no rung was timed" in said[2] and len(drawn) == 2
