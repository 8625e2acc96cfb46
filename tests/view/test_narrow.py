"""A figure drawn for a phone: as narrow as the page, and what it says is still there and does not touch."""

import io
import os

import pytest
import replaying
import shares
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from PIL import Image
from rooflab.view import narrow, plot, style

LONG = "the output head in FP16, launched as it is now"


def bars(values, names=None, roof=None):
    fig, ax = plot.figure("GB/s", title="A title with more words than the width of a phone has room for")
    plot.bars(ax, names or [f"rung {k}" for k in range(len(values))], values, "GB/s", roof)
    return fig, ax


def boxes(texts):
    return [text.get_window_extent() for text in texts if text.get_text()]


def test_bars_keep_their_names_and_values_inside_a_phones_width():
    fig, ax = bars([120.0, 40.0, 300.0], ["short", LONG, "7_split_k"], ("read roof", 800.0, "GB/s"))
    height = fig.get_figheight()
    narrow.narrowed(fig)
    picture = Image.open(io.BytesIO(plot.png(fig, 2)))
    assert picture.width == round(2 * plot.DPI * narrow.INCHES)
    assert fig.get_figheight() > height, "for the lines of a long name"
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[0] == "short" and names[1].count("\n") >= 2 and names[1].replace("\n", " ") == LONG
    assert "\n" in fig.get_suptitle() and not ax.get_title("left")
    fig.draw_without_rendering()
    for box in boxes([*ax.get_yticklabels(), *ax.texts]):
        assert box.x0 >= -1 and box.x1 <= fig.bbox.width + 1


def test_a_value_that_its_bar_has_no_room_for_stands_behind_it():
    fig, ax = bars([300.0, 90.0], [f"{LONG} {k}" for k in range(2)], ("read roof", 900.0, "GB/s"))
    (inside,) = [text for text in ax.texts if text.get_gid() == "value" and text.get_color() == "white"]
    assert isinstance(inside, Annotation)
    narrow.narrowed(fig)
    narrow_bar = ax.patches[0].get_window_extent().width < inside.get_window_extent().width + 5
    assert (inside.get_color() == "black") == narrow_bar


def lines(labels):
    fig, ax = plot.figure("bytes", "µs", "By size", xlog=True)
    for k, label in enumerate(labels):
        plot.series(ax, [4096, 8192, 2**20, 2**24], [k + 1.0, k + 2.0, k + 3.0, k + 4.0], label=label)
    plot.size_ticks(ax, [2**k for k in range(12, 25)])
    plot.label_ends(ax)
    return fig, ax


@pytest.mark.parametrize(
    ("labels", "key"), [(["INT4", "FP16"], False), (["symmetric memory, two shots"], True)]
)
def test_long_labels_at_the_ends_of_lines_become_a_key(labels, key):
    fig, ax = lines(labels)
    narrow.narrowed(fig)
    found = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
    at_ends = [text.get_text() for text in ax.texts if text.get_gid() == "end"]
    assert (found, at_ends) == ((labels, []) if key else ([], labels))


def test_a_key_that_is_wider_than_the_page_moves_below():
    fig, ax = lines(["INT4", "FP16"])
    ax.plot([], [], label="a very long name of a line in a key")
    ax.legend(loc="upper left")
    narrow.narrowed(fig)
    assert ax.get_legend() is None and len(fig.legends) == 1


def test_ticks_do_not_touch_and_the_last_is_written():
    fig, ax = lines(["INT4"])
    narrow.narrowed(fig)
    fig.draw_without_rendering()
    written = [label for label in ax.get_xticklabels() if label.get_text()]
    places = boxes(written)
    assert written[-1].get_text() == "16 MiB" and len(written) > 1
    assert all(a.x1 < b.x0 for a, b in zip(places, places[1:], strict=False))


def test_axes_side_by_side_stand_one_under_the_other():
    fig, axes = plot.figure("bytes", "µs", "Two of them", columns=2)
    for ax in axes:
        plot.series(ax, [1, 2], [1.0, 2.0])
    narrow.narrowed(fig)
    fig.draw_without_rendering()
    first, second = (ax.get_window_extent() for ax in axes)
    assert first.y0 > second.y1 and first.x0 == pytest.approx(second.x0, abs=1)


def test_a_grid_of_bars_has_room_for_the_names_of_each():
    fig, axes = plot.figure(columns=2, down=2, height=3.0)
    for ax in axes:
        ax.barh([0, 1], [1.0, 2.0])
    axes[0].set_yticks([0, 1], ["short", LONG])
    narrow.narrowed(fig)
    fig.draw_without_rendering()
    places = [ax.get_window_extent() for ax in axes]
    assert all(upper.y0 > lower.y1 for upper, lower in zip(places, places[1:], strict=False))
    long = axes[3].get_yticklabels()[1].get_window_extent()
    assert long.height < places[3].height, "a name's lines are beside its bar, in each of them"


def test_the_picture_comes_where_it_is_asked_for_alone(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(plot, "display", lambda data, raw: shown.append(data))
    monkeypatch.delenv(narrow.ASKED, raising=False)
    plot.show(bars([1.0])[0], "a caption")
    monkeypatch.setenv(narrow.ASKED, "1")
    plot.show(bars([1.0])[0], "a caption")
    table = bars([1.0])[0]
    table.set_gid(narrow.WIDE)
    plot.show(table, "a table of words")
    assert [narrow.MIME in data for data in shown] == [False, True, False]
    assert shown[0]["image/png"] == shown[1]["image/png"], "the first picture is the same"


def test_where_a_figure_has_no_room_the_wide_picture_stays_and_nothing_is_said(monkeypatch, recwarn):
    fig, ax = bars([1.0])
    ax.annotate("as long as a sentence, and past the axes " * 3, (0.9, 0), annotation_clip=False)
    assert narrow.picture(fig) is None
    shown = []
    monkeypatch.setattr(plot, "display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(narrow, "picture", lambda fig: None)
    monkeypatch.setenv(narrow.ASKED, "1")
    plot.show(bars([1.0])[0], "a caption")
    assert narrow.MIME not in shown[0] and "image/png" in shown[0]
    assert not recwarn.list


@pytest.mark.ci
def test_figures_of_the_lessons_have_room_on_a_phone(monkeypatch):
    """Of a share of the lessons; ROOFLAB_ALL_KERNELS=1 takes all."""
    real, lay_out, room = narrow.picture, Figure.draw_without_rendering, []

    def picture(fig):  # laid out, and not painted
        with monkeypatch.context() as patched:
            patched.setattr(Figure, "draw_without_rendering", lay_out)
            patched.setattr(style, "png", lambda fig, scale: lay_out(fig) or b"laid out")
            room.append((fig.get_suptitle() or fig.axes[0].get_title("left"), real(fig) is not None))

    monkeypatch.setattr(narrow, "picture", picture)
    monkeypatch.setenv(narrow.ASKED, "1")
    replaying.replay("h200", sorted({*shares.thinned(replaying.lessons(), 8), "06b_wide"}))
    assert len(room) > 8 and not [title for title, fits in room if not fits]


def test_what_was_wanted_of_a_report_is_not_wanted_after_it(monkeypatch):
    monkeypatch.delenv(narrow.ASKED, raising=False)
    with narrow.wanted():
        assert os.environ[narrow.ASKED] == "1"
    assert narrow.ASKED not in os.environ
    monkeypatch.setenv(narrow.ASKED, "before")
    with narrow.wanted():
        assert os.environ[narrow.ASKED] == "1"
    assert os.environ[narrow.ASKED] == "before"
