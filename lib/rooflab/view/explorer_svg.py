"""What an explorer shows: recorded cases, the case nearest to a choice, one SVG drawing and one line of text.

The drawing is a fixed frame (title, names of the axes) and named groups that depend on the choice. Python
draws them here; site/explorer.js fills the same groups from `data`, with coordinates that were computed and
rounded here, so that both draw alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any, NamedTuple

import pandas as pd

from rooflab.errors import UsageError
from rooflab.records.case import Case
from rooflab.view.captions import UNITS, Roof, measured, one_device, size_text
from rooflab.view.explorer_axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    NAME,
    PREDICTED,
    RIGHT,
    TOP,
    WIDTH,
    View,
    dashed,
    path,
    short,
    view,
)
from rooflab.view.explorer_facts import facts_of, packed, plain, predicted, roof_label, text

# All but the first read on white and on near-black.
INK, ACCENT, ROOF_INK, OWN_INK = "#1A1A1A", "#1F83C6", "#C8541A", "#2C9159"
TITLES = {"n": "Elements", "bytes": "Bytes", "batch": "Batch", "seq": "Sequence"}
# Letters stand on a rim of the page's own colour, which names itself in the site's theme and in JupyterLab.
HALO = (
    'paint-order="stroke" stroke-width="4" stroke-linejoin="round" '
    'style="stroke:var(--pst-color-background,var(--jp-layout-color0,#FFFFFF))"'
)
# Group -> how it is drawn. The script replaces a group's children and never its style.
GROUPS = {
    "grid": 'stroke="currentColor" stroke-opacity="0.14" fill="none"',
    "axis": 'stroke="currentColor" fill="none"',
    "ticks": 'fill="currentColor" font-size="11"',
    "leaders": 'fill="none" stroke="currentColor" stroke-opacity="0.4" stroke-width="0.7"',
    "others": 'fill="none" stroke="currentColor" stroke-opacity="0.3" stroke-width="1.3"',
    "others-dots": 'fill="currentColor" fill-opacity="0.3"',
    "predicted": f'fill="none" stroke="{ACCENT}" stroke-width="1.6" stroke-dasharray="4 3"',
    "roof": f'fill="none" stroke="{ROOF_INK}" stroke-width="1.5" stroke-dasharray="7 4"',
    "roof-label": f'{HALO} fill="{ROOF_INK}" font-size="11" font-weight="bold"',
    "predicted-name": f'{HALO} fill="{ACCENT}" font-size="10" font-style="italic"',
    "wanted": 'fill="none" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="2 3"',
    "line": f'fill="none" stroke="{ACCENT}" stroke-width="2.2" stroke-linejoin="round"',
    "dots": f'fill="{ACCENT}"',
    "names": f'{HALO} fill="currentColor" fill-opacity="0.75" font-size="10"',
    "name": f'{HALO} fill="{ACCENT}" font-size="10.5" font-weight="bold"',
    "ring": f'fill="none" stroke="{ACCENT}" stroke-width="2"',
    "value": f'{HALO} fill="currentColor" font-size="12" font-weight="bold"',
}


_CASE = [field.name for field in fields(Case)]  # the columns that tell two cases apart


class Control(NamedTuple):
    """A column the reader chooses a value of: its label, its distinct values and how each is written."""

    column: str
    label: str
    values: list[Any]
    texts: list[str]


class Point(NamedTuple):
    """A recorded case as drawn: indices into the controls' and x values, its place in the view of its slice,
    index of its roof, facts, and where its prediction stands, None without one."""

    picks: tuple[int, ...]
    x: int
    px: float
    py: float
    roof: int
    facts: str
    told: float | None


class Chart:
    """The recorded cases of one explorer, ready to be drawn.

    `frame` holds rows of records; `x` and `y` are columns, `controls` maps columns to labels. `roof` is one
    ceiling (label, value, unit) for all rows, or a mapping from the names in the rows' `roof` column to
    (value, unit, ...). `start` (column -> value) picks the row shown first. `own` holds rows of the same
    columns that were measured here since: `svg` draws them beside the recorded ones. Raises UsageError for
    unusable columns or for two rows that no control tells apart, DeviceMismatch for rows of several devices.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        x: str,
        y: str,
        controls: Mapping[str, str],
        roof: Roof | Mapping[str, Any] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        xlog: bool = True,
        ylog: bool = False,
        compare: bool = False,
        start: Mapping[str, Any] | None = None,
        foretold: str = "",
        own: pd.DataFrame | None = None,
        x_names: Mapping[Any, str] | None = None,
    ):
        self.x_names = x_names or {}
        for column in (x, y, *controls):
            if column not in frame:
                have = ", ".join(map(str, frame.columns))
                raise UsageError(f"The frame has no column {column!r}; it has {have}.")
        if not controls:
            raise UsageError("An explorer needs at least one control besides the slider of x.")
        rows = one_device(frame, compare)
        rows = rows[rows[y].notna() & rows[x].notna()].drop_duplicates().reset_index(drop=True)
        if rows.empty:
            raise UsageError(f"No row of the frame has both {x} and {y}; an explorer needs recorded cases.")
        names = {**TITLES, **(labels or {})}
        self.rows, self.title, self.y, self.foretold = rows, title, y, foretold
        self.unit = UNITS.get(y, y)
        self.y_label = names.get(y, self.unit)
        first, *more = controls  # a control of one value has nothing to choose
        kept = [first, *(column for column in more if rows[column].nunique(dropna=False) > 1)]
        self.controls = [_control(rows, column, controls[column]) for column in kept]
        sizes = sorted({float(v) for v in rows[x]})
        sizes = [int(v) if v.is_integer() else v for v in sizes]
        self.x = Control(x, names.get(x, x), sizes, [self.x_text(v, x, sizes[-1]) for v in sizes])
        self.names = [t if len(t) <= NAME else t[: NAME - 1] + "…" for t in self.controls[0].texts]
        roofs, of_row = _roofs(rows, roof, self.unit)
        self.own = rows.iloc[:0] if own is None else own[own[y].notna()]
        self.xlog, self.ylog = xlog, ylog
        heights = [float(v) for v in (*rows[y], *self.own[y])] + [value for _, value in roofs]
        widths = [*sizes, *(float(v) for v in self.own[x])]
        if (xlog and min(widths) <= 0) or (ylog and min(heights) <= 0):
            raise UsageError("A logarithmic axis needs values above zero; pass xlog=False or ylog=False.")
        self.levels = [value for _, value in roofs]
        self.roofs = [f"{label} {measured(value, self.unit)}" for label, value in roofs]
        at = [(self._indices(row), float(row[x]), float(row[y])) for _, row in rows.iterrows()]
        told = [predicted(row, y) for _, row in rows.iterrows()]
        self.views = self._views(at, of_row, told)
        self.points = []
        for i, (picks, px, py) in enumerate(at):
            ceiling, seen = of_row[i], self.views[picks[1:]]
            facts = facts_of(rows.iloc[i], y, self.unit, roofs[ceiling] if ceiling >= 0 else None, foretold)
            foretold_y = None if (value := told[i]) is None else seen.to_y(value)
            place = (sizes.index(px), seen.to_x(px), seen.to_y(py))
            self.points.append(Point(picks, *place, ceiling, facts, foretold_y))
        self._refuse_twins()
        # Shown first, of the slices with the most sizes: the best rate, or the best time at the largest size,
        # as small sizes are always quick.
        rates = [float(v) for v in rows[y]]
        few = [-len(self.views[p.picks[1:]].x_ticks) for p in self.points]
        order = [
            (less, -p.x, v) if y == "median_us" else (less, 0, -v)
            for less, p, v in zip(few, self.points, rates, strict=True)
        ]
        wanted = [all(plain(row[c]) == v for c, v in (start or {}).items()) for _, row in rows.iterrows()]
        self.start = wanted.index(True) if any(wanted) and start else order.index(min(order))

    def _indices(self, row: pd.Series) -> tuple[int, ...]:
        """A row's controls as indices into their values, -1 for a value that was not recorded."""
        picks = [(c.values, plain(row[c.column])) for c in self.controls]
        return tuple(values.index(value) if value in values else -1 for values, value in picks)

    def _views(
        self, at: list[tuple[tuple[int, ...], float, float]], of_row: list[int], told: list[float | None]
    ) -> dict[tuple[int, ...], View]:
        """The axes and names of every slice: of the cases that agree in all controls but the first."""
        own = [
            (self._indices(row)[1:], (float(row[self.x.column]), float(row[self.y])))
            for _, row in self.own.iterrows()
        ]
        texts, found = dict(zip(self.x.values, self.x.texts, strict=True)), {}
        if self.x_names:  # on the axis a name is cut to its first word: "6" of "6_producer_warps"
            texts = {v: text.rpartition(".")[2].partition("_")[0] for v, text in texts.items()}
        for slice_ in dict.fromkeys(picks[1:] for picks, _, _ in at):
            curves: dict[int, list[tuple[float, float]]] = {}
            foretold: dict[int, list[tuple[float, float]]] = {}
            levels = []
            for (picks, x, y), roof, prediction in zip(at, of_row, told, strict=True):
                if picks[1:] == slice_:
                    curves.setdefault(picks[0], []).append((x, y))
                    levels += [self.levels[roof]] if roof >= 0 else []
                    if prediction is not None:
                        foretold.setdefault(picks[0], []).append((x, prediction))
            apart = [point for where, point in own if where == slice_]
            axes: dict[str, Any] = {"xlog": self.xlog, "ylog": self.ylog, "told": foretold}
            found[slice_] = view(curves, texts, self.names, levels, apart, **axes)
        return found

    def x_text(self, value: float, column: str, largest: float) -> str:
        """A value of x as people write it: its name, bytes in KiB, MiB, large counts in Ki, Mi, others in
        full.
        """
        if value in self.x_names:
            return self.x_names[value]
        if column == "bytes":
            return size_text(value)
        return size_text(value).removesuffix("B").rstrip() if largest >= 2**20 else f"{value:g}"

    def nearest(self, picks: Sequence[Any], x: float) -> int:
        """Index of the recorded case nearest to the choice, by the distance of logarithms; a differing word
        counts more than any number."""
        return min(range(len(self.points)), key=lambda i: (self._distance(i, picks, x), i))

    def exact(self, i: int, picks: Sequence[Any], x: float) -> bool:
        """Is case `i` the chosen one itself, not only the nearest?"""
        return self._distance(i, picks, x) == 0

    def _distance(self, i: int, picks: Sequence[Any], x: float) -> float:
        point = self.points[i]
        total = _apart(self.x.values[point.x], x)
        for control, index, wanted in zip(self.controls, point.picks, picks, strict=True):
            total += _apart(control.values[index], wanted)
        return total

    def picks(self, i: int) -> list[Any]:
        """The controls' values of case `i`."""
        return [c.values[j] for c, j in zip(self.controls, self.points[i].picks, strict=True)]

    def name(self, picks: Sequence[Any], x: float) -> str:
        """A choice in words: "Rung 4_grid, Cache cold, Elements 64 Mi"."""
        words = [f"{c.label} {text(v)}" for c, v in zip(self.controls, picks, strict=True)]
        return ", ".join([*words, f"{self.x.label} {self.x_text(x, self.x.column, self.x.values[-1])}"])

    def line(self, picks: Sequence[Any], x: float) -> str:
        """The text for a choice: the case's facts, or which recorded case is shown in its place."""
        i = self.nearest(picks, x)
        point = self.points[i]
        shown = f"{self.name(self.picks(i), self.x.values[point.x])}: {point.facts}."
        if self.exact(i, picks, x):
            return shown
        return f"Not recorded: {self.name(picks, x)}. Nearest recorded case: {shown}"

    def own_row(self, picks: Sequence[Any], x: float) -> pd.Series | None:
        """The row measured here of the choice itself, None without one."""
        columns = [*(c.column for c in self.controls), self.x.column]
        for _, row in self.own.iterrows():
            if [plain(row[column]) for column in columns] == [*picks, x]:
                return row
        return None

    def own_line(self, row: pd.Series) -> str:
        """The text of a row measured here."""
        picks = [plain(row[c.column]) for c in self.controls]
        facts = facts_of(row, self.y, self.unit, None, self.foretold)
        return f"Measured here: {self.name(picks, float(row[self.x.column]))}: {facts}."

    def _own_marks(self, picks: Sequence[Any], shown: View) -> str:
        """Diamonds at the rows measured here that the controls but the first choose."""
        marks = []
        for _, row in self.own.iterrows():
            first, *more = [plain(row[c.column]) for c in self.controls]
            if more == list(picks)[1:]:
                r = 6 if first == picks[0] else 3.5
                px, py = shown.to_x(float(row[self.x.column])), shown.to_y(float(row[self.y]))
                marks.append(f'<path d="M{px} {short(py - r)}l{r} {r} {-r} {r} {-r} {-r}z"/>')
        return "".join(marks)

    def groups(self, picks: Sequence[Any], x: float) -> dict[str, str]:
        """The drawing's groups for a choice, as SVG markup by the names of GROUPS."""
        i = self.nearest(picks, x)
        shown = self.points[i]
        seen, roof = self.views[shown.picks[1:]], 0.0
        parts = dict.fromkeys(GROUPS, "") | _frame(seen)
        if shown.roof >= 0:
            label, roof = self.roofs[shown.roof], seen.to_y(self.levels[shown.roof])
            parts["roof"] = f'<path d="M{LEFT} {roof}H{RIGHT}"/>'
            parts["roof-label"] = f'<text x="{LEFT + 4}" y="{short(roof - 5)}">{escape(label)}</text>'
        for j in range(len(self.controls[0].values)):
            line, dots = self._series((j, *shown.picks[1:]), 3 if j == shown.picks[0] else 1.8)
            kind = ("line", "dots") if j == shown.picks[0] else ("others", "others-dots")
            parts[kind[0]] += line
            parts[kind[1]] += dots
        for j, at, y in seen.names:
            name = f'<text x="{at}" y="{y}">{escape(self.names[j])}</text>'
            parts["name" if j == shown.picks[0] else "names"] += name
        told = sorted((p.px, p.told) for p in self.points if p.picks == shown.picks and p.told is not None)
        if told:
            parts["predicted"] = f'<path d="{dashed(told, seen)}"/>'
            at, y = next((at, y) for j, at, y in seen.told_names if j == shown.picks[0])
            parts["predicted-name"] = f'<text x="{at}" y="{y}">{PREDICTED}</text>'
        px, py, wanted = shown.px, shown.py, seen.place(x)
        if x != self.x.values[shown.x] and wanted is not None:
            parts["wanted"] = f'<path d="M{wanted} {TOP}V{BOTTOM}"/>'
        parts["ring"] = f'<circle cx="{px}" cy="{py}" r="6.5"/>'
        at, anchor = px, "middle"
        if px > RIGHT - 48:
            at, anchor = RIGHT - 14, "end"  # the curves' names stand to the right
        elif px < LEFT + 48:
            at, anchor = LEFT + 4, "start"
        # Beside the roof line, not on it: a label above the point would cross a roof that lies just above.
        below = py < TOP + 12 or (shown.roof >= 0 and 6 < py - roof < 28)
        y = short(py + 21 if below else py - 12)
        if len(seen.x_ticks) == 1:  # all points are above each other, and their names stand to the right
            at, anchor, y = short(px - 12), "end", short(py + 4)
        value = escape(shown.facts.split(";")[0])
        parts["value"] = f'<text x="{at}" y="{y}" text-anchor="{anchor}">{value}</text>'
        return parts

    def _series(self, picks: tuple[int, ...], radius: float) -> tuple[str, str]:
        found = sorted((p.px, p.py) for p in self.points if p.picks == picks)
        ticks = [px for px, _ in self.views[picks[1:]].x_ticks]
        dots = "".join(f'<circle cx="{px}" cy="{py}" r="{radius}"/>' for px, py in found)
        return (f'<path d="{path(found, ticks)}"/>' if found else ""), dots

    def svg(self, picks: Sequence[Any], x: float, paper: bool = False) -> str:
        """The drawing for a choice as SVG text: on white paper to stand alone, or in the ink of a page."""
        groups = self.groups(picks, x)
        marks = self._own_marks(picks, self.views[self.points[self.nearest(picks, x)].picks[1:]])
        ink = f' color="{INK}"' if paper else ""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"{ink} '
            f'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif" '
            f'aria-label="{escape(self.title or self.y_label)}">',
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" fill="#FFFFFF"/>' if paper else "",
            self._words(),
            *(f'<g data-group="{name}" {GROUPS[name]}>{inside}</g>' for name, inside in groups.items()),
            f'<g data-group="own" fill="{OWN_INK}">{marks}</g>' if len(self.own) else "",
            "</svg>",
        ]
        return "".join(parts)

    def _words(self) -> str:
        """The title and the names of the axes, which no choice changes."""
        text = '<text x="{}" y="{}" text-anchor="{}"{}>{}</text>'
        middle = (LEFT + RIGHT) // 2
        words = [text.format(middle, HEIGHT - 8, "middle", "", escape(self.x.label))]
        words.append(text.format(8, TOP - 12, "start", "", escape(self.y_label)))
        if len(self.controls[0].values) > 1:  # what the names at the curves' ends are names of
            words.append(text.format(RIGHT + 2, TOP - 12, "start", "", escape(self.controls[0].label)))
        words.append(text.format(8, 17, "start", ' font-size="13" font-weight="bold"', escape(self.title)))
        return f'<g fill="currentColor" font-size="11">{"".join(words)}</g>'

    def data(self) -> dict[str, Any]:
        """What the site's script needs to choose and draw: controls, x values, cases with coordinates. Most
        slices share their axis of x, which is held once."""
        words, facts = packed([p.facts for p in self.points])
        axes: list[dict[str, Any]] = []
        views = {}
        for key, seen in self.views.items():
            axis = {"ticks": seen.x_ticks, "at": [seen.place(x) for x in self.x.values]}
            if axis not in axes:
                axes.append(axis)
            held: dict[str, Any] = {"axis": axes.index(axis), "y": seen.y_ticks, "names": seen.names}
            levels = [seen.to_y(v) if seen.to_y.low <= v <= seen.to_y.high else None for v in self.levels]
            held |= {"leaders": seen.leaders} | ({"roofs": levels} if levels else {})
            held |= {"told": seen.told_names} if seen.told_names else {}
            views[",".join(map(str, key))] = held
        return {
            "box": [LEFT, TOP, RIGHT, BOTTOM],
            "controls": [{"label": c.label, "values": c.values, "texts": c.texts} for c in self.controls],
            "x": {"label": self.x.label, "values": self.x.values, "texts": self.x.texts},
            "roofs": self.roofs,
            "names": self.names,
            "predicted": PREDICTED,
            "axes": axes,
            "views": views,
            "words": words,
            "cases": [self._held(p, said) for p, said in zip(self.points, facts, strict=True)],
            "start": self.start,
        }

    def _held(self, p: Point, said: list[Any]) -> list[Any]:
        """A case as `data` holds it; where it stands from left to right, its view's axis says."""
        return [*p.picks, p.x, p.py, p.roof, said, *([] if p.told is None else [p.told])]

    def _refuse_twins(self) -> None:
        seen: dict[tuple, int] = {}
        for i, point in enumerate(self.points):
            first = seen.setdefault((point.picks, point.x), i)
            if first != i:
                a, b = self.rows.iloc[first], self.rows.iloc[i]
                differ = [c for c in _CASE if c in a.index and plain(a[c]) != plain(b[c])]
                raise UsageError(
                    f"Two cases stand at {self.name(self.picks(i), self.x.values[point.x])}; add a control "
                    f"for {' or '.join(differ) or 'what tells them apart'}, or pass fewer rows."
                )


def _frame(seen: View) -> dict[str, str]:
    """The groups of a view's axes and of what leads to its names."""
    text = '<text x="{}" y="{}" text-anchor="{}">{}</text>'
    words = [text.format(LEFT - 6, short(py + 4), "end", label) for py, label in seen.y_ticks]
    words += [text.format(px, BOTTOM + 17, "middle", escape(label)) for px, label in seen.x_ticks if label]
    grid = "".join(f"M{LEFT} {py}H{RIGHT}" for py, _ in seen.y_ticks)
    ticks = "".join(f"M{px} {BOTTOM}v4" for px, _ in seen.x_ticks)
    return {
        "grid": f'<path d="{grid}"/>',
        "axis": f'<path d="M{LEFT} {BOTTOM}H{RIGHT}{ticks}"/>',
        "ticks": "".join(words),
        "leaders": f'<path d="{seen.leaders}"/>' if seen.leaders else "",
    }


def _control(rows: pd.DataFrame, column: str, label: str) -> Control:
    values = list(dict.fromkeys(plain(v) for v in rows[column]))
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        values.sort()
    return Control(column, label, values, [text(v) for v in values])


def _roofs(rows: pd.DataFrame, roof: Any, unit: str) -> tuple[list[tuple[str, float]], list[int]]:
    """The distinct roofs (label, value) in the unit of y, and each row's index into them, -1 for none."""
    if roof is None:
        return [], [-1] * len(rows)
    if not isinstance(roof, Mapping):
        label, value, given = roof
        if given != unit:
            raise UsageError(f"The roof is in {given}, the explorer in {unit}; pass both in one unit.")
        return [(label, float(value))], [0] * len(rows)
    names = [str(name) for name in rows["roof"]]
    # Integer products count operations where others count floating-point operations; both are 10^12 a second.
    known = [n for n in dict.fromkeys(names) if n in roof and roof[n][1].replace("TOP", "TFLOP") == unit]
    found = [(roof_label(name), float(roof[name][0])) for name in known]
    return found, [known.index(name) if name in known else -1 for name in names]


def _apart(a: Any, b: Any) -> float:
    """Distance of two values of one control: of numbers that of their logarithms, of words 0 or 1000."""
    if a == b:
        return 0.0
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (a, b))
    return abs(math.log2(1 + abs(a)) - math.log2(1 + abs(b))) if numbers else 1000.0
