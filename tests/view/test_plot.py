"""The plot style: what a figure says is computed from its rows, and its labels neither collide nor lie."""

import base64
import itertools
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from rooflab.errors import DeviceMismatch, UsageError
from rooflab.view import captions, page, plot

ROOF = ("made-up read", 200.0, "GB/s")


def made_up(**changes) -> pd.DataFrame:
    rows = pd.DataFrame(
        {
            "study": "bandwidth",
            "case": ["read/a n=1", "read/a n=2", "read/b n=1", "read/b n=2"],
            "impl": ["a", "a", "b", "b"],
            "bytes": [4096.0, 8192.0, 4096.0, 8192.0],
            "median_us": [100.0, 80.0, 50.0, 60.0],
            "q1_us": [90.0, 70.0, 45.0, 55.0],
            "q3_us": [110.0, 100.0, 60.0, 65.0],
            "gb_s": [40.96, 102.4, 81.92, 136.5],
            "run": "2026-02-03.1",
        }
    )
    return rows.assign(**changes)


def test_caption_is_computed_from_the_rows():
    assert plot.caption(made_up(), "Made-up GPU", "Read", ROOF) == (
        "Read on Made-up GPU, measured 2026-02-03: fastest b, n = 2, 136 GB/s, "
        "68% of the made-up read roof (200 GB/s)."
    )
    later = made_up(
        run=["2026-02-03.1", "2026-02-05.2", "2026-02-04.1", "2026-02-03.1"], gb_s=[1.0, np.nan, 3000.4, 2]
    )
    assert plot.caption(later, "G", "Read") == (
        "Read on G, measured 2026-02-03 to 2026-02-04: fastest b, n = 1, 3000 GB/s."
    )


def test_a_caption_names_what_tells_its_best_from_the_others():
    ids = ["read/a format=fp16 n=1 wall", "read/b format=fp16 n=1 wall"]
    assert plot.telling(ids[1], ids) == "b"
    assert plot.telling(ids[1], [*ids, "read/b format=q8_0 n=1 wall"]) == "b format=fp16"
    assert plot.telling(ids[1], [*ids, "copy/b format=fp16 n=1 wall"]) == "read/b"


def test_what_tells_a_case_is_said_without_its_tuning():
    tuned = "9_shared_x format=int4_g128 batch=1 k_warps=3 stages=3"
    assert captions.in_words(tuned) == "9_shared_x, INT4, batch 1"
    shape = "torch.matmul peer n=151936 k=1536 warm"
    assert captions.in_words(shape) == "torch.matmul, peer, warm, 151,936 × 1,536"
    sizes = "a seq=4096 head_dim=256 head=fp16"
    assert captions.in_words(sizes) == "a, 4,096 tokens, 256 wide, output head in FP16"


def test_caption_of_times_takes_the_shortest():
    text = plot.caption(made_up(), "G", "Read", ("bound", 25.0, "µs"), y="median_us")
    assert ": fastest b, n = 1, 50 µs, 50% of the bound roof" in text


def test_caption_refuses_units_that_differ_and_empty_frames():
    with pytest.raises(UsageError, match="GB/s"):
        plot.caption(made_up(), "G", "Read", ("peak", 60.0, "TFLOP/s"))
    with pytest.raises(UsageError, match="at least one"):
        plot.caption(made_up(gb_s=np.nan), "G", "Read")


def test_rows_of_two_devices_are_refused_unless_asked():
    two = pd.concat([made_up(), made_up(run="2026-02-09.1", median_us=1.0)])
    for use in (plot.one_device, plot.band, lambda f: plot.caption(f, "G", "Read")):
        with pytest.raises(DeviceMismatch, match="compare=True"):
            use(two)
    with pytest.raises(DeviceMismatch, match="a100, h200"):
        plot.one_device(made_up(device=["h200", "a100", "h200", "h200"]))
    assert "2026-02-03 to 2026-02-09: fastest" in plot.caption(two, "two devices", "Read", compare=True)
    repeated = pd.concat([made_up(), made_up()])
    assert plot.one_device(repeated) is repeated


def test_band_turns_quartiles_of_time_into_quartiles_of_the_rate():
    median, low, high = plot.band(made_up())
    np.testing.assert_allclose(low, [40.96 * 100 / 110, 102.4 * 0.8, 81.92 * 50 / 60, 136.5 * 60 / 65])
    assert (low < median).all() and (median < high).all()
    assert plot.band(made_up(), "median_us")[1].tolist() == [90.0, 70.0, 45.0, 55.0]


def test_sizes_and_numbers_read_as_people_write_them():
    assert [plot.size_text(s) for s in (512, 4096, 1.5 * 2**20, 16 * 2**20, 2**30, 2**41)] == [
        "512 B", "4 KiB", "1.5 MiB", "16 MiB", "1 GiB", "2048 GiB",
    ]  # fmt: skip
    assert [plot.number(v) for v in (4543.4, 812.49, 0.01234, 12345678)] == [
        "4543",
        "812",
        "0.0123",
        "12345678",
    ]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_spread_keeps_order_and_distance(wanted):
    placed = plot.spread(wanted, 10, 0, 100)
    pairs = sorted(zip(wanted, placed, strict=True))
    assert all(b[1] - a[1] >= 10 - 1e-6 for a, b in itertools.pairwise(sorted(pairs, key=lambda p: p[1])))
    assert all(a[1] < b[1] for a, b in itertools.pairwise(pairs) if a[0] < b[0])
    assert min(placed) >= -1e-6 and max(placed) <= 100 + 1e-6


def test_spread_leaves_labels_alone_that_do_not_collide():
    assert plot.spread([30.0, 10.0, 80.0], 10, 0, 100) == [30.0, 10.0, 80.0]


def ladder():
    fig, ax = plot.figure("bytes", "GB/s", "Made up", xlog=True)
    sizes = 2.0 ** np.arange(12, 31)
    for k in range(7):
        y = 1000 * sizes / (sizes + 2e6) + 3 * k
        plot.series(ax, sizes, y, y * 0.98, y * 1.02, f"rung {k}")
    plot.roof_line(ax, 1100, "roof 1100 GB/s")
    plot.size_ticks(ax, sizes)
    plot.label_ends(ax)
    return fig, ax, sizes


def test_a_leader_ends_where_it_is_asked_to_on_its_label():
    fig, ax = plot.figure("bytes", "GB/s")
    for y in (100.0, 101.0):
        plot.series(ax, [1.0, 2.0], [y, y], label=f"at {y:g}")
    plot.label_ends(ax, (0, 0.5))
    leaders = [text._arrow_relpos for text in ax.texts if text.arrow_patch is not None]
    assert leaders and set(leaders) == {(0, 0.5)}


def test_a_ladder_stands_in_the_order_that_is_asked_for():
    rows = pd.DataFrame({"impl": ["2_b", "1_a", "3_c", "lib"], "kind": ["own"] * 3 + ["peer"]})
    rate = np.array([2.0, 1.0, 3.0, 2.5])
    rows = rows.assign(gb_s=rate, **dict.fromkeys(("median_us", "q1_us", "q3_us"), 1 / rate), recorded="2026")
    for order, names in (((), ["1_a", "2_b", "3_c"]), (("3_c", "2_b"), ["1_a", "3_c", "2_b"])):
        fig, _ = page.ladder(rows, "a GPU", ("read", 4.0, "GB/s"), "Made up", order=order)
        labels = [tick.get_text() for tick in fig.axes[0].get_yticklabels()]
        assert labels == [*names, "lib (peer)"]


def test_labels_stand_in_the_figure_and_off_each_other():
    fig, ax, _ = ladder()
    fig.draw_without_rendering()
    whole = fig.get_window_extent()
    texts = [t for t in ax.texts if t.get_text().startswith("rung")]
    boxes = sorted((Text.get_window_extent(t) for t in texts), key=lambda b: b.y0)  # without the arrow
    assert len(boxes) == 7
    assert all(box.x1 <= whole.x1 and box.x0 >= 0 for box in boxes)
    assert all(a.y1 <= b.y0 + 2 for a, b in itertools.pairwise(boxes))
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 1100


def test_ticks_stand_at_measured_sizes_and_their_labels_apart():
    fig, ax, sizes = ladder()
    fig.draw_without_rendering()
    assert ax.get_xticks().tolist() == sizes.tolist()
    labels = [t for t in ax.get_xticklabels() if t.get_text()]
    assert labels[-1].get_text() == "1 GiB" and len(labels) >= 4
    boxes = [t.get_window_extent() for t in labels]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_series_differ_without_colour():
    _, ax, _ = ladder()
    lines = [line for line in ax.lines if line.get_gid() == "series"]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 7
    grey = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (to_rgb(c) for c in plot.COLOURS)]
    assert all(abs(a - b) > 0.08 for a, b in itertools.pairwise(grey))


def test_a_column_of_a_record_with_blanks_is_a_series():
    _, ax = plot.figure()
    line = plot.series(ax, pd.Series([2, pd.NA, 1], dtype="Int64"), [20.0, 5.0, 10.0])
    assert line.get_xdata()[:2].tolist() == [1.0, 2.0] and line.get_ydata()[:2].tolist() == [10.0, 20.0]


def test_axes_are_linear_unless_asked():
    assert plot.figure()[1].get_xscale() == plot.figure()[1].get_yscale() == "linear"
    axes = plot.figure(columns=2, ylog=True)[1]
    assert [a.get_yscale() for a in axes] == ["log", "log"]


def test_bars_write_each_value_and_draw_the_roof():
    fig, ax = plot.figure()
    plot.bars(
        ax, ["1_a", "2_b", "3_c"], [50.0, 180.0, np.nan], "GB/s", ROOF, [40, 170, np.nan], [60, 190, np.nan]
    )
    plot.png(fig)
    assert {t.get_text() for t in ax.texts} == {
        "50 GB/s",
        "180 GB/s",
        "not measured",
        "made-up read 200 GB/s",
    }
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "the first rung stands on top"
    assert ax.get_xlim()[1] > 200
    with pytest.raises(UsageError, match="one name per value"):
        plot.bars(ax, ["1_a"], [1.0, 2.0], "GB/s")
    with pytest.raises(UsageError, match="one unit"):
        plot.bars(ax, ["1_a"], [1.0], "TFLOP/s", ROOF)


def test_a_bar_far_under_its_roof_has_its_number_beside_it():
    fig, ax = plot.figure()
    plot.bars(ax, ["1_a", "2_b"], [10.0, 12.0], "GB/s", ("roof", 100.0, "GB/s"))
    texts = [text for text in ax.texts if text.get_text().endswith(" GB/s") and "roof" not in text.get_text()]
    assert len(texts) == 2 and all(text.get_ha() == "left" for text in texts)


def test_a_ladder_without_a_rung_says_so():
    _, ax = plot.figure()
    plot.bars(ax, [], [], "GB/s", ROOF)
    assert [text.get_text() for text in ax.texts] == ["not measured"]


def test_stacked_bars_fill_the_whole_and_write_what_has_room():
    fig, ax = plot.figure()
    plot.stacked(ax, ["a", "b"], {"large": [90.0, 50.0], "small": [2.0, np.nan], "rest": [8.0, 50.0]})
    plot.png(fig)
    assert [t.get_text() for t in ax.texts] == ["90", "50", "8", "50"]
    ends = {round(patch.get_x() + patch.get_width(), 6) for patch in ax.patches}
    assert max(ends) == 100 and ax.get_ylim()[0] > ax.get_ylim()[1]
    assert len({(patch.get_facecolor(), patch.get_hatch()) for patch in ax.patches}) == 3
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["large", "small", "rest"]


def test_points_stand_under_a_slope_and_level_roofs():
    fig, ax = plot.figure("operations a byte", "TFLOP/s", xlog=True, ylog=True)
    plot.under_roofs(ax, [1.0, 80.0], [4.0, 200.0], ["slow", "fast"], ("L2", 5000.0), {"matrix": 700.0})
    plot.png(fig)
    assert [t.get_text() for t in ax.texts] == ["L2", "matrix 700 TFLOP/s", "slow", "fast"]
    slope = ax.lines[0].get_xydata()
    np.testing.assert_allclose(slope[:, 1] / slope[:, 0], 5.0)
    assert [tuple(line.get_xydata()[0]) for line in ax.lines if line.get_marker() == "o"] == [
        (1, 4),
        (80, 200),
    ]


def test_of_points_one_above_the_other_the_higher_is_named_above():
    for ys in ([4.0, 8.0], [8.0, 4.0]):
        fig, ax = plot.figure("operations a byte", "TFLOP/s", xlog=True, ylog=True)
        plot.under_roofs(ax, [16.0, 17.0], ys, ["a", "b"], ("L2", 5000.0), {})
        plot.png(fig)
        sides = {text.get_text(): text.get_position()[1] > 0 for text in ax.texts[1:]}
        assert sides == {"a": ys[0] > ys[1], "b": ys[1] > ys[0]}


def test_spans_draw_a_bar_a_launch_and_the_chosen_ones_taller():
    lanes = {
        "eager": pd.DataFrame({"start_us": [0.0, 5.0], "us": [1.0, 2.0], "class": ["weight", "norm"]}),
        "graph": pd.DataFrame({"start_us": [0.0], "us": [4.0], "class": ["norm"]}),
    }
    fig, ax = plot.figure()
    plot.spans(ax, lanes, "weight")
    plot.png(fig)
    boxes = [path.get_extents() for bars in ax.collections for path in bars.get_paths()]
    assert sorted((box.x0, box.width) for box in boxes) == [(0.0, 1.0), (0.0, 4.0), (5.0, 2.0)]
    tall = max(boxes, key=lambda box: box.height)
    assert (tall.x0, tall.width) == (0.0, 1.0) and tall.height > 1.5 * min(box.height for box in boxes)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["eager", "graph"]


def test_a_vertical_roof_has_its_label_under_the_title():
    fig, ax = plot.figure(title="A title so long that it reaches past the middle of the figure")
    plot.bars(ax, ["1_a"], [50.0], "GB/s", ROOF)
    fig.draw_without_rendering()
    title = next(t for t in ax.get_children() if getattr(t, "get_text", str)() == ax.get_title("left"))
    label = next(t for t in ax.texts if t.get_text().startswith("made-up"))
    assert title.get_window_extent().y0 >= label.get_window_extent().y1


def test_png_is_the_same_bytes_and_names_no_program():
    first, second = plot.png(ladder()[0]), plot.png(ladder()[0])
    assert first == second
    assert b"Software" not in first and first.startswith(b"\x89PNG")


def test_show_carries_the_caption_as_alt_text_and_prints_it(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(plot, "display", lambda *a, **k: shown.append((a, k)))
    plot.show(ladder()[0], "A made-up sentence.")
    ((bundle,), keywords) = shown[0]
    assert keywords == {"raw": True} and bundle["text/plain"] == "A made-up sentence."
    assert base64.b64decode(bundle["image/png"]) == plot.png(ladder()[0])
    assert capsys.readouterr().out == "A made-up sentence.\n"
    with pytest.raises(UsageError, match="caption"):
        plot.show(ladder()[0], "")


def test_round_ticks_are_one_two_and_five_within_the_axis():
    fig, ax = plot.figure(ylog=True)
    ax.plot([0, 1], [0.4, 23])
    ax.set_ylim(0.4, 23)
    plot.round_ticks(ax)
    fig.draw_without_rendering()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0.5", "1", "2", "5", "10", "20"]
    assert not ax.get_yticks(minor=True).size


@pytest.mark.parametrize(("values", "said"), [([2, 9], ["2", "5"]), ([1, 1e6], ["1", "100", "1,000,000"])])
def test_a_logarithmic_axis_is_read_in_plain_numbers(values, said):
    fig, ax = plot.figure(ylog=True)
    plot.series(ax, [1, 2], values, label="made up")
    plot.png(fig)
    shown = [tick.get_text() for tick in ax.get_yticklabels(which="both")]
    assert set(said) <= set(shown) and len(shown) <= 10
    assert all(re.fullmatch(r"[\d.,]+", text) for text in shown), shown


def test_labels_of_a_crowded_end_stand_in_one_column():
    """A label in its place and the line to a moved one beside it do not cross."""
    _, ax, _ = ladder()
    texts = [t for t in ax.texts if t.get_text().startswith("rung")]
    assert len({t.get_position()[0] for t in texts}) == 1
    assert any(t.arrow_patch for t in texts)


def test_a_share_and_its_sign_are_written_together():
    assert captions.measured(16.2, "%") == "16.2%" and captions.measured(1.3, "×") == "1.3×"
    assert captions.measured(812, "GB/s") == "812 GB/s" and captions.measured(3, "") == "3"
