"""A token's timeline: marks read back as phases, and the kernel that makes them."""

from dataclasses import replace

import numpy as np
import pytest
from rooflab import engine
from rooflab.errors import MissingTool, UsageError
from rooflab.ops import decoder
from rooflab.profile import timeline
from shares import thinned

RATE = 0.5  # nanoseconds a clock


def block(offset_clocks, waited=40, layers=2, steps=timeline.STEPS, late=0):
    """Marks of a block whose clock began `offset_clocks` before the shared one; `late` clocks late."""
    found, clock = [], offset_clocks

    def mark(kind, number=0, after=100):
        nonlocal clock
        clock += after
        found.append((clock, kind | number << 8))

    clock += late
    for _ in range(steps):
        for layer in range(layers):
            for phase in range(5):
                mark(timeline.BEGIN, 8 * layer + phase)
                if phase != 1:
                    mark(timeline.X_READY)
                    mark(timeline.MULTIPLIED, waited, 300)
                    mark(timeline.SUMMED)
                mark(timeline.END)
        for kind in (timeline.X_READY, timeline.MULTIPLIED, timeline.SUMMED, timeline.END):
            if kind == timeline.X_READY:
                mark(timeline.BEGIN, 8 * layers + 5)
            mark(kind)
        mark(timeline.NS, int((clock + 100 - offset_clocks) * RATE) + 1_000_000)
    rows = np.zeros((timeline.MARKS, 2), np.uint64)
    rows[: len(found)] = found
    return rows


def test_marks_of_several_clocks_become_one_timeline_in_microseconds():
    table = timeline.token(np.stack([block(5_000), block(9_000_000, late=2000)]))
    assert list(table.columns) == list(timeline.COLUMNS)
    assert len(table) == 2 * (2 * 5 + 1)  # the last token alone
    qkv = table[(table["phase"] == "qkv") & (table["layer"] == 0)].set_index("block")
    assert qkv["begin_us"].tolist() == pytest.approx([0.0, 2000 * RATE / 1e3])
    assert (qkv["multiplied_us"] - qkv["ready_us"]).tolist() == pytest.approx([0.15, 0.15])
    assert qkv["starved_us"].tolist() == pytest.approx([40 * RATE / 1e3] * 2)
    attend = table[table["phase"] == "attend"]
    assert attend["ready_us"].isna().all() and (attend["end_us"] > attend["begin_us"]).all()


def test_phases_are_summed_up_in_their_order():
    found = timeline.phases(timeline.token(np.stack([block(0), block(0, late=1000)])))
    assert found.index.tolist() == list(timeline.PHASES)
    assert found.loc["down", "x_us"] == pytest.approx(0.05)
    assert found.loc["down", "span_us"] == pytest.approx(0.3 + 0.5)  # the later block began 1000 clocks later
    assert np.isnan(found.loc["attend", "x_us"]) and found.loc["attend", "span_us"] > 0


def test_a_recorded_layer_is_a_median_one_with_a_row_a_block():
    marks = [block(offset, layers=3) for offset in (5_000, 9_000_000)]
    whole = timeline.token(np.stack(marks))
    # The second layer takes longest, so that it is not the median one.
    whole.loc[whole["layer"] >= 2, ["begin_us", "ready_us", "multiplied_us", "summed_us", "end_us"]] += 5.0
    found = timeline.layer(whole)
    assert found["layer"].tolist() in ([0, 0], [2, 2])
    assert list(found.columns) == list(timeline.LAYER) and found["block"].tolist() == [0, 1]
    mine = whole[whole["layer"] == found["layer"].iloc[0]].set_index(["block", "phase"])
    begin = mine["begin_us"].min()
    for phase in timeline.PHASES[:-1]:
        for mark in ("begin", "end"):
            expected = mine.xs(phase, level="phase")[f"{mark}_us"] - begin
            assert found[f"{phase}_{mark}_us"].tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert found["down_starved_us"].tolist() == pytest.approx([40 * RATE / 1e3] * 2, abs=1e-3)
    assert found["qkv_begin_us"].min() == 0 and (found["gate_up_ready_us"] > found["out_end_us"]).all()
    single = timeline.token(np.stack([block(0, layers=1)]))
    assert timeline.layer(single)["layer"].tolist() == [0]  # it ends where the head begins
    with pytest.raises(UsageError, match="no layer whose end is seen"):
        timeline.layer(single[single["phase"] != "head"])


def test_what_is_no_timeline_is_refused():
    with pytest.raises(UsageError, match="no three whole tokens"):
        timeline.token(block(0, steps=2)[None])
    state = decoder.State(*[None] * 5, np.zeros((4, 2)), *[None] * 7)
    with pytest.raises(UsageError, match="not of 2_pdl on 4"):
        timeline.marks(None, None, state, "2_pdl")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", thinned(decoder.PERSISTENT, step=3))
def test_marks_compile_without_spills_and_only_when_asked(name):
    shape = engine.spec("qwen2.5-1.5b").shape
    rung = next(rung for rung in decoder.LADDERS["decode_step"] if rung.name == name)
    timed = replace(rung, defines={**rung.defines, "TIMELINE": 0})
    macros = decoder.macros_for(timed, shape, "fp16", "fp16", "90", {}, 132)
    try:
        off, on = (timed.cubin("90", {**macros, "TIMELINE": flag}) for flag in (0, 1))
        bare = rung.cubin("90", {key: value for key, value in macros.items() if key != "TIMELINE"})
    except MissingTool as error:
        pytest.skip(str(error))
    assert off.machine_code(rung.entry) == bare.machine_code(rung.entry) != on.machine_code(rung.entry)
    assert on.resources[rung.entry].spill_bytes == 0
    assert b"timeline" in on.image and b"timeline" not in bare.image
