"""Charts in the course's style: labels on the lines, roofs drawn, and a computed caption."""

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.view import narrow, style
from rooflab.view.captions import UNITS as UNITS
from rooflab.view.captions import Roof, band, caption, contestants, floats, measured, number
from rooflab.view.captions import dates as dates
from rooflab.view.captions import one_device as one_device
from rooflab.view.captions import size_text as size_text
from rooflab.view.captions import telling as telling
from rooflab.view.style import COLOURS as COLOURS
from rooflab.view.style import DASHES, MARKERS
from rooflab.view.style import DPI as DPI
from rooflab.view.style import FORMAT_COLOURS as FORMAT_COLOURS
from rooflab.view.style import PEER_COLOUR as PEER_COLOUR
from rooflab.view.style import ROOF_COLOUR as ROOF_COLOUR
from rooflab.view.style import png as png
from rooflab.view.ticks import figure_of, round_ticks, spread
from rooflab.view.ticks import size_ticks as size_ticks


def figure(
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    *,
    xlog: bool = False,
    ylog: bool = False,
    columns: int = 1,
    down: int = 1,
    height: float = 3.6,
) -> tuple[Figure, Any]:
    """A new figure in the course's style, 6.4 inches wide (9.6 for several columns) at 100 dpi, and its axes.

    Returns (figure, axes), with a list of axes when `columns` is above 1 (they share the y axis), row by row
    where several are `down`. Axes are linear unless asked. The figure does not pass through pyplot, so no
    global state changes and nothing is displayed before `show`.
    """
    with style.context():
        fig = Figure(figsize=(6.4 if columns == 1 else 9.6, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(fig)
        grid = fig.subplots(down, columns, sharey=True, squeeze=False)
        for ax in grid.flat:
            ax.set_xlabel(xlabel)
            ax.margins(x=0.02)
            if xlog:
                ax.set_xscale("log")
                ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            if ylog:
                ax.set_yscale("log")
        grid[0][0].set_ylabel(ylabel)
        if columns == 1:
            grid[0][0].set_title(title)
        elif title:
            fig.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return fig, grid[0][0] if columns == 1 else list(grid.flat)


def series(
    ax: Axes,
    x: Sequence[float] | pd.Series,
    median: Any,
    q1: Any = None,
    q3: Any = None,
    label: str = "",
    colour: str = "",
) -> Any:
    """Draw one measured series: a marker at every point, a line through the medians and a band from q1 to q3.

    The next combination of colour, marker and line style of the axes is taken, so that series differ in
    grey too; `colour` gives another one, that of a format of weights for example. Points are sorted by x.
    Returns the line; `label_ends` writes its label.
    """
    xs, ys = floats(x), floats(median)
    order = np.argsort(xs, kind="stable")
    i = sum(1 for line in ax.lines if line.get_gid() == "series")
    (line,) = ax.plot(
        xs[order],
        ys[order],
        color=colour or COLOURS[i % len(COLOURS)],
        marker=MARKERS[i % len(MARKERS)],
        linestyle=DASHES[i % len(DASHES)],
        linewidth=1.6,
        markersize=4.5,
        label=label or f"_series{i}",
        gid="series",
        zorder=3,
    )
    if q1 is not None and q3 is not None:
        low, high = floats(q1)[order], floats(q3)[order]
        ax.fill_between(xs[order], low, high, color=line.get_color(), alpha=0.18, linewidth=0, zorder=2)
    return line


def roof_line(ax: Axes, value: float, label: str, *, vertical: bool = False, where: str = "left") -> None:
    """Draw a roof as a dashed line with its label written on it, for example "DRAM read 4540 GB/s".

    `where` ("left" or "right") puts the label at that end of a horizontal roof; a vertical one (for
    `bars`) has it on top. The axis is stretched so that line and label stay inside.
    """
    style: dict[str, Any] = {"color": ROOF_COLOUR, "linewidth": 1.4, "linestyle": (0, (8, 3)), "zorder": 1.5}
    text: dict[str, Any] = {"color": ROOF_COLOUR, "fontsize": 8.5, "fontweight": "bold", "va": "bottom"}
    text |= {"textcoords": "offset points", "annotation_clip": False}
    if vertical:
        ax.axvline(value, **style)
        ax.set_title(
            ax.get_title("left"), loc="left", fontsize=10, fontweight="bold", pad=18
        )  # above the label
        at = ("data", "axes fraction")
        ax.annotate(label, (value, 1), (0, 3), at, ha="center", gid="roof", **text)
        return
    ax.axhline(value, **style)
    x, dx = (0.0, 4) if where == "left" else (1.0, -4)
    ax.annotate(label, (x, value), (dx, 3), ("axes fraction", "data"), ha=where, **text)
    if ax.get_autoscaley_on():
        # An unseen point above the roof keeps room for the label, whatever is drawn later.
        above = value * 1.6 if ax.get_yscale() == "log" else value * 1.06
        ax.plot([0.5], [above], alpha=0, transform=ax.get_yaxis_transform(), gid="room")


def off_the_line(ax: Axes, line: float) -> None:
    """Move the numbers of horizontal bars that end just before a vertical line to its other side."""
    most = ax.get_xlim()[1]
    for text in ax.texts:
        at = text.get_position()[0]
        if text.get_gid() != "roof" and at < line < at + 0.015 * most * len(text.get_text()):
            text.set_x(line + most / 100)


def label_ends(ax: Axes, at: tuple[float, float] = (0.5, 0.5)) -> None:
    """Write each series' label beside its last point, in its colour, instead of a legend.

    Labels that would collide are spread apart vertically, and a thin line leads from a moved label back to
    its series, from the point `at` of the label's box: (0, 0.5) keeps it out of its neighbours where many are
    moved. Call it after everything is drawn and the axes are scaled.
    """
    fig = figure_of(ax)
    style.settled(ax)
    lines = [
        line for line in ax.lines if line.get_gid() == "series" and not str(line.get_label()).startswith("_")
    ]
    ends = []
    for line in lines:
        xs, ys = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        seen = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))
        if len(seen):
            ends.append((line, xs[seen[-1]], ys[seen[-1]]))
    if not ends:
        return
    right = max(end[1] for end in ends)
    fig.draw_without_rendering()
    size = 8.5
    height = size * DPI / 72 * 1.25
    box = ax.get_window_extent()
    wanted = [float(ax.transData.transform((x, y))[1]) for _, x, y in ends]
    placed = spread(wanted, height, box.y0 + height / 2, box.y1)
    moved = any(abs(now - was) * 72 / DPI >= 3 for was, now in zip(wanted, placed, strict=True))
    for (line, x, y), was, now in zip(ends, wanted, placed, strict=True):
        shift = (now - was) * 72 / DPI
        dx = 16 if moved and x == right else 7  # one column: no label in the way of another's line
        arrow: dict[str, Any] = {"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.7, "relpos": at}
        arrow |= {"shrinkA": 1, "shrinkB": 3}
        # A label inside the axes, of a series that ends early, hides what runs behind it.
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8 if x < right else 0}
        ax.annotate(
            str(line.get_label()),
            (x, y),
            xytext=(dx, shift),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=style.darker(line.get_color()),
            annotation_clip=False,
            zorder=4,
            arrowprops=arrow if abs(shift) >= 3 else None,
            bbox=behind,
            gid="end",
        )


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Any,
    unit: str,
    roof: Roof | None = None,
    low: Any = None,
    high: Any = None,
) -> None:
    """Draw a ladder as horizontal bars: the first name on top, each with its value, the roof a line.

    `values` (and, if given, the quartiles `low` and `high`, drawn as a whisker) are in `unit`; a missing
    value (NaN) is written "not measured", and so is a ladder without any. `roof` is (label, value, unit) and
    must have the same unit. Raises UsageError otherwise.
    """
    heights = floats(values)
    if len(names) != len(heights):
        raise UsageError(f"bars got {len(names)} names for {len(heights)} values; pass one name per value.")
    if roof and roof[2] != unit:
        raise UsageError(f"The roof is in {roof[2]}, the bars are in {unit}; pass both in one unit.")
    if not len(names):
        ax.text(0.5, 0.5, "not measured", ha="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    places = np.arange(len(names))
    ax.barh(places, np.nan_to_num(heights), height=0.62, color=COLOURS[0], zorder=2)
    lows, highs = (heights if q is None else floats(q) for q in (low, high))
    ax.hlines(places, lows, highs, color="black", linewidth=1.4, zorder=3)
    largest = float(np.nanmax(highs)) if np.isfinite(highs).any() else 1.0
    room = max(0.4 * largest, 0.18 * (roof[1] if roof else 0))
    for place, value, first, last in zip(places, heights, lows, highs, strict=True):
        text = measured(value, unit) if np.isfinite(value) else "not measured"
        inside = value > room  # a long bar has room, and the roof beyond it stays visible
        ax.annotate(
            text,
            (first if inside else np.nan_to_num(last), place),
            xytext=(-5 if inside else 5, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            fontsize=8.5,
            color="white" if inside else "black",
            fontweight="bold" if inside else "normal",
            zorder=4,
            gid="value",
        )
    ax.set_yticks(places, list(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(False, axis="y")
    ax.set_xlabel(ax.get_xlabel() or unit)
    ax.set_xlim(0, 1.04 * max(largest, roof[1] if roof else 0))
    if roof:
        roof_line(ax, roof[1], f"{roof[0]} {number(roof[1])} {roof[2]}", vertical=True)


def grouped(
    ax: Axes,
    names: Sequence[str],
    parts: Mapping[str, Any],
    most: float = 100.0,
    form: str = ".0f",
    shades: Sequence[str] = (),
) -> None:
    """Draw a group of horizontal bars a name, the first on top: one for each of `parts` (label -> a value for
    each name), with its number in `form` at its end, and a key below. The axis ends at `most`, in % as given.
    `shades`: other colours for the parts.
    """
    places, tall = np.arange(len(names)), 0.78 / max(1, len(parts))
    for k, (label, values) in enumerate(parts.items()):
        at = places + (k - (len(parts) - 1) / 2) * tall
        widths = floats(values)
        ax.barh(
            at,
            np.nan_to_num(widths),
            tall,
            color=(shades or _SHADES)[k],
            hatch=_HATCHES[k],
            edgecolor="white",
            label=label,
        )
        for y, width in zip(at, widths, strict=True):
            if width == width:
                ax.text(width + most / 100, float(y), f"{width:{form}}", va="center", fontsize=8)
    ax.set_yticks(places, list(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, most or 1.0)
    ax.grid(False, axis="y")
    fig = figure_of(ax)
    if not fig.legends:
        handles = ax.get_legend_handles_labels()
        fig.legend(*handles, loc="outside lower center", ncols=len(handles[0]), fontsize=8, frameon=False)


# Shades for parts of a whole, with hatches that tell neighbours apart in grey.
_SHADES = ("#0072B2", "#E69F00", "#56B4E9", "#D55E00", "#CFCFCF", "#009E73", "#CC79A7", "#8A8A8A", "#F0E442")
_HATCHES = ("", "//", "", "\\\\", "", "..", "xx", "", "--")


def stacked(
    ax: Axes,
    names: Sequence[str],
    parts: Mapping[str, Any],
    unit: str = "%",
    shades: Mapping[str, str] | None = None,
) -> None:
    """Draw one horizontal bar a name, the first on top, made of `parts` (label -> a value for each name).

    Each part has a shade (of `shades`, by its label) and a hatch of its own, named in a key below, and its
    number written in where there is room. Missing values count as nothing.
    """
    left = np.zeros(len(names))
    places = np.arange(len(names))
    values = {label: np.nan_to_num(floats(each)) for label, each in parts.items()}
    full = float(np.max(sum(values.values()), initial=0.0)) or 1.0
    for i, (label, widths) in enumerate(values.items()):
        shade, hatch = (shades or {}).get(label, _SHADES[i % len(_SHADES)]), _HATCHES[i % len(_HATCHES)]
        style: dict[str, Any] = {"color": shade, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6}
        ax.barh(places, widths, left=left, height=0.68, label=label, zorder=2, **style)
        dark = matplotlib.colors.rgb_to_hsv(matplotlib.colors.to_rgb(shade))[2] < 0.75
        for place, start, width in zip(places, left, widths, strict=True):
            if width >= 0.05 * full:
                box = {"facecolor": shade, "edgecolor": "none", "pad": 1.2} if hatch else None
                words: dict[str, Any] = {
                    "ha": "center",
                    "va": "center",
                    "fontsize": 8,
                    "zorder": 4,
                    "bbox": box,
                }
                ax.text(
                    start + width / 2,
                    float(place),
                    f"{width:.0f}",
                    color="white" if dark else "black",
                    **words,
                )
        left = left + widths
    ax.set_yticks(places, list(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 1.01 * full)
    ax.grid(False, axis="y")
    ax.set_xlabel(ax.get_xlabel() or unit)
    key_below(ax)


def key_below(ax: Axes) -> None:
    """Name the labelled parts of a chart in a key below it, in place of one that it has."""
    fig = figure_of(ax)
    for key in list(fig.legends):
        key.remove()
    handles = ax.get_legend_handles_labels()
    columns = min(len(handles[0]), 7)
    fig.legend(*handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def spans(ax: Axes, lanes: Mapping[str, pd.DataFrame], highlight: str, column: str = "class") -> None:
    """Draw launches as bars over time: a lane each, the first on top, from frames with start_us and us.

    Where `column` is `highlight` a bar is dark and full, else light and half as high. White is idle time.
    """
    for place, launches in enumerate(lanes.values()):
        dark = launches[column] == highlight
        for chosen, half, shade in ((launches[~dark], 0.18, "#E69F00"), (launches[dark], 0.36, "#0072B2")):
            bars_ = list(zip(chosen["start_us"], chosen["us"], strict=True))
            ax.broken_barh(bars_, (place - half, 2 * half), facecolors=shade, linewidth=0, zorder=3)
    ax.set_yticks(range(len(lanes)), list(lanes))
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.grid(False, axis="y")


def under_roofs(
    ax: Axes,
    intensity: Sequence[float] | pd.Series,
    rate: Sequence[float] | pd.Series,
    names: Sequence[str] | pd.Series,
    stream: tuple[str, float],
    peaks: Mapping[str, float],
) -> None:
    """Draw points under their roofs on axes that are logarithmic both ways: `intensity` in operations a byte,
    `rate` in TFLOP/s, each point named. `stream` is the memory's name and its GB/s, a slope; `peaks` are the
    arithmetic's, label -> TFLOP/s, level lines.
    """
    xs, ys = floats(intensity), floats(rate)
    ends = np.array([xs.min() / 2, 4 * xs.max()])
    ax.plot(ends, ends * stream[1] / 1e3, color=ROOF_COLOUR, linewidth=1.4)
    words: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5}
    start = (ends[0], ends[0] * stream[1] / 1e3)
    ax.annotate(stream[0], start, (4, 9), color=ROOF_COLOUR, fontweight="bold", **words)
    for label, value in peaks.items():
        roof_line(ax, value, f"{label} {number(value)} TFLOP/s")
    for x, y, name in zip(xs, ys, names, strict=True):
        ax.plot([x], [y], MARKERS[0], color=COLOURS[0], zorder=3)
        beside = (xs > x / 1.5) & (xs < x * 1.5)  # of points one above the other the higher is named above
        lower = bool((ys[beside] > y).any())
        right: tuple[int, int] = (7, -10) if lower else (7, 2)
        last = len(xs) > 1 and x == xs.max()
        side = (right, "left") if lower or last else ((-6, 4), "right")
        ax.annotate(name, (x, y), side[0], ha=side[1], zorder=4, **words)
    for axis in "xy":
        round_ticks(ax, axis)


def show(fig: Figure, caption: str) -> None:
    """Display the figure as a PNG with the caption as its plain-text form, and print the caption under it.

    The pixels depend on the data and the installed matplotlib, their last levels on the CPU too. The site
    takes the plain-text form as the image's alt text, and notebook checks compare it. Where narrow.ASKED is
    set, the picture for a phone comes with it.
    """
    if not caption:
        raise UsageError("Every figure needs a caption; compute one with plot.caption(...).")
    shown = {"image/png": base64.b64encode(png(fig)).decode(), "text/plain": caption}
    if os.environ.get(narrow.ASKED) and fig.get_gid() != narrow.WIDE:
        for_a_phone = narrow.picture(fig)
        if for_a_phone:
            shown[narrow.MIME] = base64.b64encode(for_a_phone).decode()
    display(shown, raw=True)
    print(caption)


def ladder(rows: pd.DataFrame, device: Any, roof: Roof, title: str) -> None:
    """Show a ladder and its peers in GB/s as bars under their roof, in the order of the rows, with a caption.

    `roof` is (name, value, "GB/s"), as `caption` takes it. A peer measured in several formats is named with
    its format.
    """
    fig, ax = figure("GB/s", title=title, height=1.2 + 0.22 * len(rows))
    rate, low, high = band(rows)
    bars(ax, contestants(rows), rate, "GB/s", (f"{roof[0]} roof", roof[1], roof[2]), low, high)
    for patch, kind in zip(ax.patches, rows["kind"], strict=True):
        if kind != "own":
            patch.set_facecolor(PEER_COLOUR)
    show(fig, caption(rows, device, title, roof))
