"""The course's one plot style: figures that read in grey, with labels on the lines and a computed caption."""

import base64
import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from rooflab.errors import DeviceMismatch, UsageError

# Okabe and Ito's colours, neighbours differing in lightness too; yellow, unreadable on white, is left out.
COLOURS = ("#0072B2", "#E69F00", "#000000", "#D55E00", "#56B4E9", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))
ROOF_COLOUR = "#555555"
PEER_COLOUR = "#8A8A8A"
DPI = 100
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
}
UNITS = {"gb_s": "GB/s", "tflop_s": "TFLOP/s", "tok_s": "tok/s", "median_us": "µs"}
Roof = tuple[str, float, str]  # label, value, unit


def number(value: float) -> str:
    """A value with three significant digits, or all its integer digits from 1000 on: 4543, 812, 0.0123."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def size_text(size: float) -> str:
    """A size in bytes in human units of 1024: `4 KiB`, `1.5 MiB`, `1 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def one_device(frame: pd.DataFrame, compare: bool = False) -> pd.DataFrame:
    """The frame itself, after a look at whose rows it holds.

    Rows of two GPUs meet when a `device` column names two, or when one case of a study stands there twice
    with different results, which no single recording holds. Raises DeviceMismatch then, unless `compare`
    says that the meeting is meant.
    """
    if compare:
        return frame
    if "device" in frame and frame["device"].nunique() > 1:
        names = ", ".join(sorted(map(str, frame["device"].dropna().unique())))
        raise DeviceMismatch(
            f"Rows of several devices ({names}) meet in one figure; pass compare=True if that is meant."
        )
    if {"study", "case", "run", "median_us"} <= set(frame.columns):
        distinct = frame[["study", "case", "run", "median_us"]].drop_duplicates()
        twice = distinct[distinct.duplicated(["study", "case"])]
        if len(twice):
            raise DeviceMismatch(
                f"Case {twice['case'].iloc[0]} stands in the frame twice with different results, so "
                "recordings are mixed; pass compare=True if that is meant."
            )
    return frame


def figure(
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    *,
    xlog: bool = False,
    ylog: bool = False,
    columns: int = 1,
    height: float = 3.6,
) -> tuple[Figure, Any]:
    """A new figure in the course's style, 6.4 inches wide (9.6 for several columns) at 100 dpi, and its axes.

    Returns (figure, axes), with a list of axes when `columns` is above 1 (they share the y axis). Axes are
    linear unless asked. The figure does not pass through pyplot, so no global state changes and nothing is
    displayed before `show`.
    """
    with _style():
        fig = Figure(figsize=(6.4 if columns == 1 else 9.6, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(fig)
        grid = fig.subplots(1, columns, sharey=True, squeeze=False)
        for ax in grid[0]:
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
    return fig, grid[0][0] if columns == 1 else list(grid[0])


def band(frame: pd.DataFrame, y: str = "gb_s") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, first and third quartile of column `y` as three float arrays in the unit of `y`, for `series`.

    Records keep quartiles of the time only. A rate's quartiles follow from them: the rate times median_us
    over q3_us is its lower quartile, over q1_us its upper. Raises DeviceMismatch for rows of several
    devices.
    """
    one_device(frame)
    median, q1, q3 = (frame[c].to_numpy(float) for c in ("median_us", "q1_us", "q3_us"))
    if y == "median_us":
        return median, q1, q3
    rate = frame[y].to_numpy(float)
    return rate, rate * median / q3, rate * median / q1


def series(
    ax: Axes, x: Sequence[float] | pd.Series, median: Any, q1: Any = None, q3: Any = None, label: str = ""
) -> Any:
    """Draw one measured series: a marker at every point, a line through the medians and a band from q1 to q3.

    The next combination of colour, marker and line style of the axes is taken, so that series differ in
    grey too. Points are sorted by x. Returns the line; `label_ends` writes its label.
    """
    xs, ys = _floats(x), _floats(median)
    order = np.argsort(xs, kind="stable")
    i = sum(1 for line in ax.lines if line.get_gid() == "series")
    (line,) = ax.plot(
        xs[order],
        ys[order],
        color=COLOURS[i % len(COLOURS)],
        marker=MARKERS[i % len(MARKERS)],
        linestyle=DASHES[i % len(DASHES)],
        linewidth=1.6,
        markersize=4.5,
        label=label or f"_series{i}",
        gid="series",
        zorder=3,
    )
    if q1 is not None and q3 is not None:
        low, high = _floats(q1)[order], _floats(q3)[order]
        ax.fill_between(xs[order], low, high, color=line.get_color(), alpha=0.18, linewidth=0, zorder=2)
    return line


def roof_line(ax: Axes, value: float, label: str, *, vertical: bool = False, where: str = "left") -> None:
    """Draw a roof as a dashed line with its label written on it, for example "DRAM read 4540 GB/s".

    `where` ("left" or "right") says at which end of a horizontal roof the label stands; a vertical one (for
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
        ax.annotate(label, (value, 1), (0, 3), ("data", "axes fraction"), ha="center", **text)
        return
    ax.axhline(value, **style)
    x, dx = (0.0, 4) if where == "left" else (1.0, -4)
    ax.annotate(label, (x, value), (dx, 3), ("axes fraction", "data"), ha=where, **text)
    if ax.get_autoscaley_on():
        # An unseen point above the roof keeps room for the label, whatever is drawn later.
        above = value * 1.6 if ax.get_yscale() == "log" else value * 1.06
        ax.plot([0.5], [above], alpha=0, transform=ax.get_yaxis_transform(), gid="room")


def label_ends(ax: Axes) -> None:
    """Write each series' label beside its last point, in its colour, instead of a legend.

    Labels that would collide are spread apart vertically, and a thin line leads from a moved label back to
    its series. Call it after everything is drawn and the axes are scaled.
    """
    fig = _figure_of(ax)
    _from_zero(ax)
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
    for (line, x, y), at, now in zip(ends, wanted, placed, strict=True):
        shift = (now - at) * 72 / DPI
        dx = 7 + (0 if abs(shift) < 3 else 9)
        arrow = {"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.7, "shrinkA": 1, "shrinkB": 3}
        # A label inside the axes, of a series that ends early, hides what runs behind it.
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8 if x < right else 0}
        ax.annotate(
            str(line.get_label()),
            (x, y),
            xytext=(dx, shift),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=_darker(line.get_color()),
            annotation_clip=False,
            zorder=4,
            arrowprops=arrow if abs(shift) >= 3 else None,
            bbox=behind,
        )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted` that keep their order, at least `gap` apart and, if they fit, in [low, high].

    Neighbours that collide move as one block centred on what its members wanted (pool adjacent violators).
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    span = gap * (len(order) - 1)
    high = max(high, low + span)
    blocks: list[list[float]] = []  # [sum of (wanted - own offset in the block), members]
    for i in order:
        blocks.append([min(max(wanted[i], low), high), 1])
        while len(blocks) > 1:
            (s0, n0), (s1, n1) = blocks[-2], blocks[-1]
            if s1 / n1 - s0 / n0 >= gap * n0:
                break
            blocks[-2:] = [[s0 + s1 - gap * n0 * n1, n0 + n1]]
    result = [0.0] * len(wanted)
    members = iter(order)
    floor = low
    starts: list[tuple[float, int]] = []
    for s, n in blocks:
        start = max(s / n, floor)
        starts.append((start, int(n)))
        floor = start + gap * n
    ceiling = high
    for j in range(len(starts) - 1, -1, -1):
        start, count = starts[j]
        start = min(start, ceiling - gap * (count - 1))
        starts[j] = (start, count)
        ceiling = start - gap
    for start, count in starts:
        for k in range(count):
            result[next(members)] = start + gap * k
    return result


def size_ticks(ax: Axes, sizes: Iterable[float], *, axis: str = "x") -> None:
    """Put a tick at every measured size (bytes) and nowhere else, labelled `4 KiB`, `16 MiB`, `1 GiB`.

    Where labels would run into each other, every second, third, ... one is written; the largest size always
    is. Call it after the series are drawn.
    """
    values = sorted({float(s) for s in sizes})
    if not values:
        raise UsageError("size_ticks got no sizes; pass the measured sizes in bytes.")
    scale = ax.xaxis if axis == "x" else ax.yaxis
    scale.set_minor_locator(matplotlib.ticker.NullLocator())
    labels = [size_text(v) for v in values]
    scale.set_ticks(values, labels)
    _figure_of(ax).draw_without_rendering()
    k = 0 if axis == "x" else 1
    points = np.column_stack([values, values])
    at = 0.85 * ax.transData.transform(points)[:, k]  # labels at the lines' ends may still narrow the axes
    extents = [tick.label1.get_window_extent() for tick in scale.get_major_ticks()]
    lengths = [e.width + 14 if axis == "x" else e.height for e in extents]
    for step in itertools.count(1):
        kept = list(range(len(values) - 1, -1, -step))[::-1]
        if all(at[j] - at[i] >= (lengths[i] + lengths[j]) / 2 for i, j in itertools.pairwise(kept)):
            break
    scale.set_ticks(values, [label if i in kept else "" for i, label in enumerate(labels)])


def round_ticks(ax: Axes, axis: str = "y") -> None:
    """Ticks at 1, 2 and 5 times the powers of ten that lie within a logarithmic axis, written in full."""
    target = ax.yaxis if axis == "y" else ax.xaxis
    low, high = sorted(ax.get_ylim() if axis == "y" else ax.get_xlim())
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [value for power in powers for step in (1, 2, 5) if low <= (value := step * 10.0**power) <= high]
    target.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    target.set_major_formatter(matplotlib.ticker.FixedFormatter([f"{value:,g}" for value in ticks]))
    target.set_minor_locator(matplotlib.ticker.NullLocator())


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
    value (NaN) is written "not measured". `roof` is (label, value, unit) and must have the same unit.
    Raises UsageError otherwise.
    """
    heights = _floats(values)
    if len(names) != len(heights):
        raise UsageError(f"bars got {len(names)} names for {len(heights)} values; pass one name per value.")
    if roof and roof[2] != unit:
        raise UsageError(f"The roof is in {roof[2]}, the bars are in {unit}; pass both in one unit.")
    places = np.arange(len(names))
    ax.barh(places, np.nan_to_num(heights), height=0.62, color=COLOURS[0], zorder=2)
    lows, highs = (heights if q is None else _floats(q) for q in (low, high))
    ax.hlines(places, lows, highs, color="black", linewidth=1.4, zorder=3)
    largest = float(np.nanmax(highs)) if np.isfinite(highs).any() else 1.0
    room = max(0.4 * largest, 0.18 * (roof[1] if roof else 0))
    for place, value, first, last in zip(places, heights, lows, highs, strict=True):
        text = f"{number(value)} {unit}" if np.isfinite(value) else "not measured"
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
        )
    ax.set_yticks(places, list(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(False, axis="y")
    ax.set_xlabel(ax.get_xlabel() or unit)
    ax.set_xlim(0, 1.04 * max(largest, roof[1] if roof else 0))
    if roof:
        roof_line(ax, roof[1], f"{roof[0]} {number(roof[1])} {roof[2]}", vertical=True)


# Shades for parts of a whole, with hatches that tell neighbours apart in grey.
_SHADES = ("#0072B2", "#E69F00", "#56B4E9", "#D55E00", "#CFCFCF", "#009E73", "#CC79A7", "#8A8A8A", "#F0E442")
_HATCHES = ("", "//", "", "\\\\", "", "..", "xx", "", "--")


def stacked(ax: Axes, names: Sequence[str], parts: Mapping[str, Any], unit: str = "%") -> None:
    """Draw one horizontal bar a name, the first on top, made of `parts` (label -> a value for each name).

    Each part has a shade and a hatch of its own, named in a key below, and its number written in where there
    is room. Missing values count as nothing.
    """
    left = np.zeros(len(names))
    places = np.arange(len(names))
    values = {label: np.nan_to_num(_floats(each)) for label, each in parts.items()}
    full = float(np.max(sum(values.values()), initial=0.0)) or 1.0
    for i, (label, widths) in enumerate(values.items()):
        shade, hatch = _SHADES[i % len(_SHADES)], _HATCHES[i % len(_HATCHES)]
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
    fig = _figure_of(ax)
    fig.legend(
        *ax.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(len(values), 7),
        fontsize=8,
        frameon=False,
    )


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
    xs, ys = _floats(intensity), _floats(rate)
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
        side: tuple[tuple[int, int], str] = ((7, -10), "left") if lower else ((-6, 4), "right")
        ax.annotate(name, (x, y), side[0], ha=side[1], zorder=4, **words)
    for axis in "xy":
        round_ticks(ax, axis)


def telling(case: str, among: Iterable[str]) -> str:
    """What tells a case from others: its id without what all of `among` (ids) say of themselves, too."""
    others = [other.split() for other in among]
    shared = set.intersection(*map(set, others))
    operator, _, name = case.split()[0].partition("/")
    if not all(words[0].startswith(f"{operator}/") for words in others):
        name = f"{operator}/{name}"
    return " ".join([name, *(word for word in case.split()[1:] if word not in shared)])


def caption(
    frame: pd.DataFrame,
    device: Any,
    what: str,
    roof: Roof | None = None,
    *,
    y: str = "gb_s",
    compare: bool = False,
) -> str:
    """One sentence computed from a figure's rows: what, device, date, points, the best, its roof share.

    `device` is a name or anything with a `name`; the dates come from the run ids. The best is the largest
    `y`, for median_us the smallest; `roof` is (label, value, unit) in the unit of `y`. Raises UsageError if
    no row has a `y`, and DeviceMismatch for rows of several devices unless `compare`.
    """
    one_device(frame, compare)
    known = frame[frame[y].notna()]
    if known.empty:
        raise UsageError(
            f"No row of the frame has a value in {y}; a caption needs at least one measured point."
        )
    lower_is_better = y == "median_us"
    values = _floats(known[y])
    best = known.iloc[int(values.argmin() if lower_is_better else values.argmax())]
    unit = UNITS.get(y, y)
    points = "1 point" if len(known) == 1 else f"{len(known)} points"
    name = getattr(device, "name", device)
    text = f"{what} on {name}, {dates(known)}: {points}, best {number(best[y])} {unit}"
    if "case" in known:
        text += f" ({telling(best['case'], known['case'])})"
    if roof:
        if roof[2] != unit:
            raise UsageError(f"The roof is in {roof[2]}, the figure in {unit}; pass both in one unit.")
        share = roof[1] / best[y] if lower_is_better else best[y] / roof[1]
        text += f", {share:.0%} of the {roof[0]} roof ({number(roof[1])} {unit})"
    newer = ", ".join(frame.attrs.get("not_yet_measured", ()))
    return f"{text}. Not yet measured: {newer}." if newer else f"{text}."


def show(fig: Figure, caption: str) -> None:
    """Display the figure as a PNG with the caption as its plain-text form, and print the caption under it.

    The pixels depend on the data and the installed matplotlib, their last levels on the CPU too. The site
    takes the plain-text form as the image's alt text, and notebook checks compare it.
    """
    if not caption:
        raise UsageError("Every figure needs a caption; compute one with plot.caption(...).")
    display({"image/png": base64.b64encode(png(fig)).decode(), "text/plain": caption}, raw=True)
    print(caption)


def ladder(rows: pd.DataFrame, device: Any, roof: Roof, title: str) -> None:
    """Show a ladder and its peers in GB/s as bars under their roof, in the order of the rows, with a caption.

    `roof` is (name, value, "GB/s"), as `caption` takes it. A peer measured in several formats is named with
    its format.
    """
    fig, ax = figure("GB/s", title=title, height=1.2 + 0.22 * len(rows))
    rate, low, high = band(rows)
    bars(ax, contestants(rows), rate, "GB/s", (f"{roof[0]} roof", roof[1], roof[2]), low, high)
    show(fig, caption(rows, device, title, roof))


def contestants(rows: pd.DataFrame) -> list[str]:
    """What to call each row among the others: its impl, with its format where it has one."""
    names = zip(rows["impl"], rows["format"].fillna(""), strict=True)
    return [f"{impl} {form}".strip() for impl, form in names]


def png(fig: Figure) -> bytes:
    """The figure as PNG bytes of 64 colours, a third of the size, and without its writer's name."""
    for ax in fig.axes:
        _from_zero(ax)
    drawn, out = io.BytesIO(), io.BytesIO()
    with _style():
        fig.savefig(drawn, format="rgba", dpi=DPI)
        size = (round(fig.bbox.width), round(fig.bbox.height))
    image = Image.frombytes("RGBA", size, drawn.getvalue()).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(out, "PNG", optimize=True, dpi=(DPI, DPI))
    return out.getvalue()


def _floats(values: Any) -> np.ndarray:
    """Floats of a list, array or column; a blank of a record's integer column becomes NaN."""
    return pd.Series(values).to_numpy(float, na_value=np.nan)


def _style() -> Any:
    return matplotlib.rc_context(STYLE)  # type: ignore[arg-type]  # the stub wants literal keys


def dates(frame: pd.DataFrame) -> str:
    """When the rows were measured, by their run ids: "measured 2026-11-21", or "... to 2026-11-23"."""
    runs = frame["run"].dropna().astype(str).tolist() if "run" in frame else []
    days = sorted({m[0] for m in (re.match(r"\d{4}-\d\d-\d\d", run) for run in runs) if m})
    if not days:
        return "date not recorded"
    return f"measured {days[0]}" if len(days) == 1 else f"measured {days[0]} to {days[-1]}"


def _from_zero(ax: Axes) -> None:
    """A linear y axis of non-negative data starts at zero, so that heights compare."""
    if ax.get_yscale() == "linear" and ax.get_autoscaley_on() and ax.get_ylim()[0] > -0.1 * ax.get_ylim()[1]:
        top = ax.get_ylim()[1]
        ax.set_ylim(0, top)


def _figure_of(ax: Axes) -> Figure:
    fig = ax.get_figure(root=True)
    assert fig is not None
    return fig


def _darker(colour: Any) -> tuple[float, float, float]:
    """The colour, darkened until text in it has enough contrast on white."""
    r, g, b = matplotlib.colors.to_rgb(colour)
    while 0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 > 0.18:
        r, g, b = r * 0.93, g * 0.93, b * 0.93
    return r, g, b
