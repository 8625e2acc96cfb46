"""A figure as a phone shows it: a page's width of 360 pixels, its letters as large as on a screen.

`plot.show` adds this second picture where ASKED is set, as `rooflab report` does; the site's pages load it
in the place of the first one on a narrow window (rooflab.book.site).
"""

import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FixedFormatter, FixedLocator

from rooflab.view import style
from rooflab.view.ticks import figure_of

ASKED = "ROOFLAB_NARROW"  # environment: set to anything where narrow pictures are wanted
WIDE = "wide"  # the id of a figure, such as a table of words, that has no narrow form
MIME = "application/vnd.rooflab.narrow+png"
INCHES = 3.7  # at 100 pixels an inch about the width of a phone's page
_LETTER = 0.072  # inches of a letter of 8.5 points, on average
_LINE = 0.14  # inches of a line of them
_END = 16  # letters of a label at a line's end that leave room for the lines


@contextmanager
def wanted() -> Iterator[None]:
    """Narrow pictures are wanted within, by this process and those that it starts."""
    before = os.environ.get(ASKED)
    os.environ[ASKED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ASKED]
        else:
            os.environ[ASKED] = before


def picture(fig: Figure) -> bytes | None:
    """The figure as a phone shows it, as PNG bytes; `fig` itself is changed. None where its axes would have
    no room left: the page then keeps the wide picture, and never shows a warning of the layout.
    """
    with style.context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            return style.png(narrowed(fig), 2)  # a phone's pixels are small
        except UserWarning:
            return None


def narrowed(fig: Figure) -> Figure:
    """The figure itself, made INCHES wide: axes side by side stand one under the other, long names go on in a
    second line, long labels at the ends of lines move into a key below, and ticks that would touch are
    thinned.
    """
    _one_under_the_other(fig)
    for text in [text for ax in fig.axes for text in ax.texts if text.get_gid() == "in the key too"]:
        text.remove()
    fig.set_figwidth(INCHES)
    _heading(fig)
    for ax in fig.axes:
        ax.set_xlabel(_lines(ax.get_xlabel(), 46))
        _names(ax)
    _keys(fig)
    for ax in fig.axes:
        _ends(ax)
    fig.draw_without_rendering()
    for ax in fig.axes:
        _values(ax)
        _roofs(ax)
        _thin(ax)
    return fig


def _heading(fig: Figure) -> None:
    """Put the title of lone axes over the whole figure, where it has more room than over the axes."""
    title = fig.get_suptitle()
    if len(fig.axes) == 1 and not title:
        title = fig.axes[0].get_title("left")
        fig.axes[0].set_title("", loc="left")
    if title:
        broken = _lines(title, 42)
        fig.suptitle(broken, x=0.01, ha="left", fontsize=10, fontweight="bold")
        fig.set_figheight(fig.get_figheight() + 1.2 * _LINE * broken.count("\n"))


def _lines(text: str, letters: int) -> str:
    """Text broken into lines of at most so many letters; what is broken already stays so."""
    return "\n".join(_wrap(line, letters) for line in text.split("\n"))


def _wrap(line: str, letters: int) -> str:
    broken = textwrap.wrap(line, letters, break_long_words=False, break_on_hyphens=False)
    return "\n".join(broken) or line


def _one_under_the_other(fig: Figure) -> None:
    axes = list(fig.axes)
    if len(axes) < 2:
        return
    place = axes[0].get_subplotspec()
    height = fig.get_figheight() / (place.get_gridspec().nrows if place else 1)
    grid = fig.add_gridspec(len(axes), 1)
    for k, ax in enumerate(axes):
        ax.set_subplotspec(grid[k])
        ax.tick_params(labelleft=True)
    fig.set_figheight(height * (0.85 * len(axes)))


def _names(ax: Axes) -> None:
    """Break the names beside bars, and give the figure the height of their further lines."""
    if not isinstance(ax.yaxis.get_major_locator(), FixedLocator):
        return
    names = [label.get_text() for label in ax.get_yticklabels()]
    broken = [_lines(name, 20) for name in names]
    if broken == names:
        return
    ax.set_yticks(ax.get_yticks(), broken)
    fig, alike = figure_of(ax), len(ax.get_shared_y_axes().get_siblings(ax))  # all of them have these names
    fig.set_figheight(fig.get_figheight() + alike * _LINE * sum(name.count("\n") for name in broken))


def _ends(ax: Axes) -> None:
    """Where a label at the end of a line is long, name all lines in a key below instead."""
    labels = [text for text in ax.texts if text.get_gid() == "end"]
    if max((len(text.get_text()) for text in labels), default=0) <= _END:
        return
    named = {text.get_text() for text in labels}
    for text in labels:
        text.remove()
    lines = [line for line in ax.lines if str(line.get_label()) in named]
    _key(figure_of(ax), lines, [str(line.get_label()) for line in lines])


def _key(fig: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A key under the figure, in as many columns as fit, and the height that it takes."""
    labels = [_lines(label, 46) for label in labels]
    widest = 0.55 + _LETTER * max((len(label) for label in labels), default=1)
    columns = max(1, int(INCHES / widest))
    fig.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    fig.set_figheight(fig.get_figheight() + 1.2 * _LINE * -(-len(labels) // columns))


def _keys(fig: Figure) -> None:
    """Set the figure's own keys again, in fewer columns, and below it those of axes that are too wide."""
    inside = [legend for ax in fig.axes if (legend := ax.get_legend()) is not None]
    for legend in inside:
        legend.set_in_layout(False)  # one that is wider than the figure would leave the axes no room
    fig.draw_without_rendering()
    wide = 0.7 * fig.bbox.width
    inside = [legend for legend in inside if legend.get_window_extent().width > wide]
    for legend in [*fig.legends, *inside]:
        handles, labels = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
        legend.remove()
        _key(fig, handles, labels)


def _values(ax: Axes) -> None:
    """Move a number that no longer fits into its bar behind the bar's end."""
    left = ax.get_window_extent().x0
    for text in ax.texts:
        if (
            text.get_gid() == "value"
            and isinstance(text, Annotation)
            and text.get_horizontalalignment() == "right"
        ):
            if text.get_window_extent().x0 >= left + 3:
                continue
            text.set_horizontalalignment("left")
            text.set_color("black")
            text.set_fontweight("normal")
            text.set_position((5, 0))
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8})


def _roofs(ax: Axes) -> None:
    """Set labels over the axes that would touch above each other."""
    labels = [text for text in ax.texts if text.get_gid() == "roof" and isinstance(text, Annotation)]
    free = float("-inf")
    for text in sorted(labels, key=lambda text: text.get_window_extent().x0):
        box = text.get_window_extent()
        if box.x0 < free:
            text.set_position((0, 3 + 11))
        free = max(free, box.x1 + 4)


def _thin(ax: Axes) -> None:
    """Leave labels of the x axis out where they touch: every second or third is written, the last always."""
    ticks, labels = list(ax.get_xticks()), ax.get_xticklabels()
    low, high = sorted(ax.get_xlim())
    shown = [k for k, tick in enumerate(ticks) if low <= tick <= high and labels[k].get_text()]
    boxes = {k: labels[k].get_window_extent() for k in shown}
    for step in range(1, len(shown) + 1):
        kept = shown[::-1][::step][::-1]
        if all(boxes[a].x1 + 6 <= boxes[b].x0 for a, b in zip(kept, kept[1:], strict=False)):
            break
    else:
        return
    if step > 1:
        texts = [labels[k].get_text() if k in kept else "" for k in range(len(ticks))]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_major_formatter(FixedFormatter(texts))
        ax.set_xlim(low, high) if not ax.xaxis_inverted() else ax.set_xlim(high, low)
