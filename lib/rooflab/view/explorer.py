"""Explorers: controls over recorded measurements, through ipywidgets or, with no kernel, in plain HTML.

With a kernel, an Explorer is a box of ipywidgets around an SVG drawing. In a page it is a still image of
its default state with the cases beside it as JSON; site/explorer.js, one small script per site, adds the
controls and redraws.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from html import escape
from typing import Any

import ipywidgets
import pandas as pd

from rooflab.errors import RooflabError, UsageError
from rooflab.lab import Lab
from rooflab.records.case import Case
from rooflab.view.captions import Roof, number
from rooflab.view.explorer_svg import Chart, Control

LIMIT = 60_000  # bytes of JSON: an explorer must not outweigh the lesson around it
NOTE = "A still image of recorded cases: its controls work on the course's pages and in JupyterLab."
Measure = Callable[[Case, Callable[[str], None]], Mapping[str, Any] | pd.Series]
_FIELDS = {field.name for field in fields(Case)}


def measurer(lab: Lab) -> Measure | None:
    """What an Explorer's Measure button calls, `lab.measure` for one case; None if nothing can be measured.

    The function takes a Case and a callable for progress lines, and returns the case's row. It raises
    RooflabError if the case was skipped, with the reason.
    """
    if lab.mode != "live":
        return None

    def measure(case: Case, say: Callable[[str], None]) -> pd.Series:
        said: list[str] = []

        def tell(line: str) -> None:
            said.append(line)
            say(line)

        before, lab.say = lab.say, tell
        try:
            rows = lab.measure(case.study, [case])
        finally:
            lab.say = before
        if rows.empty:
            raise RooflabError(said[-1] if said else f"{case.id} was not measured.")
        return rows.iloc[0]

    return measure


class Explorer(ipywidgets.VBox):
    """Controls over the rows of `frame`: one per entry of `controls` (column -> label), and a slider of `x`.

    The first control's chosen value is drawn in colour, its other values in grey. `y` is drawn in its unit
    against `roof`: (label, value, unit), or `lab.roof`, from which every row's own ceiling is taken. With a
    kernel, sizes between the recorded ones can be chosen too: the nearest recorded case is shown and named,
    with the choice's own bound from `bound(case)` in microseconds; `measure` (see `measurer`) adds a button
    that measures the choice. `start` (column -> value) says which row is shown first, by default the best.
    `name` is unique in its notebook. Raises UsageError if rows are
    indistinguishable or too many for a page.
    """

    def __init__(
        self,
        name: str,
        frame: pd.DataFrame,
        x: str = "n",
        y: str = "gb_s",
        *,
        controls: Mapping[str, str],
        roof: Roof | Mapping[str, Any] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        xlog: bool = True,
        ylog: bool = False,
        compare: bool = False,
        bound: Callable[[Case], float | None] | None = None,
        measure: Measure | None = None,
        start: Mapping[str, Any] | None = None,
    ):
        if not name.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"An explorer's name is letters, digits, '-' and '_', not {name!r}.")
        self._slug, self._frame, self._bound, self._measure = name, frame, bound, measure
        self._options: dict[str, Any] = {"x": x, "y": y, "controls": controls, "roof": roof, "title": title}
        self._options |= {"labels": labels, "xlog": xlog, "ylog": ylog, "compare": compare, "start": start}
        self._chart = self._recorded = Chart(frame, **self._options)
        self._measured: set[str] = set()
        self._page = self._html()
        super().__init__(self._build())
        self._redraw()

    # --- with a kernel ------------------------------------------------------------

    def _build(self) -> list[ipywidgets.Widget]:
        chart, wide = self._chart, {"description_width": "initial"}
        start = chart.points[chart.start]
        self._picks = [
            ipywidgets.Dropdown(
                options=list(zip(c.texts, c.values, strict=True)),
                value=value,
                description=c.label,
                style=wide,
                layout={"width": "auto", "margin": "2px 16px 2px 2px"},
            )
            for c, value in zip(chart.controls, chart.picks(chart.start), strict=True)
        ]
        sizes = _between(chart.x) if chart.xlog and chart.x.column in _FIELDS else chart.x.values
        self._size = ipywidgets.SelectionSlider(
            options=[(chart.x_text(v, chart.x.column, sizes[-1]), v) for v in sizes],
            value=chart.x.values[start.x],
            description=chart.x.label,
            style=wide,
            layout={"width": "26em", "max_width": "100%"},
        )
        self._drawing, self._text = ipywidgets.HTML(), ipywidgets.HTML()
        for widget in (*self._picks, self._size):
            widget.observe(self._redraw, "value")
        row = ipywidgets.HBox([*self._picks, self._size], layout={"flex_flow": "row wrap"})
        parts: list[ipywidgets.Widget] = [row, self._drawing, self._text]
        if self._measure:
            self._button = ipywidgets.Button(description="Measure", tooltip="Gate and time this case here")
            self._status = ipywidgets.HTML()
            self._button.on_click(self._on_measure)
            parts.append(ipywidgets.HBox([self._button, self._status]))
        return parts

    @property
    def case(self) -> Case:
        """The case that the controls stand for; what they leave open is as in the nearest recorded one."""
        picks, size = [w.value for w in self._picks], self._size.value
        chart = self._chart
        like = Case.from_row(chart.rows.iloc[chart.nearest(picks, size)])
        chosen = {c.column: v for c, v in zip(chart.controls, picks, strict=True)} | {chart.x.column: size}
        blank = {name: "" for name in _FIELDS if isinstance(getattr(like, name), str)}
        given: dict[str, Any] = {
            c: blank.get(c) if v is None else v for c, v in chosen.items() if c in _FIELDS
        }
        return replace(like, **given)

    def _redraw(self, change: Any = None) -> None:
        chart, picks, size = self._chart, [w.value for w in self._picks], self._size.value
        drawing = chart.svg(picks, size)
        self._drawing.value = f'<div style="max-width:680px">{drawing}</div>'
        line = chart.line(picks, size)
        shown = chart.nearest(picks, size)
        if chart.exact(shown, picks, size):
            if str(chart.rows["case"].iloc[shown]) in self._measured:
                line = f"Measured here: {line}"
        elif self._bound and (bound := self._bound(self.case)) is not None:
            line = f"Bound of {chart.name(picks, size)}: {number(bound)} µs. {line}"
        self._text.value = f'<p aria-live="polite" style="max-width:680px">{escape(line)}</p>'

    def _on_measure(self, button: Any = None) -> None:
        assert self._measure
        case = self.case
        self._button.disabled = True
        try:
            self._say(f"Measuring {case.id} ...")
            row = pd.Series(dict(self._measure(case, self._say)))
            others = self._frame[self._frame["case"] != row["case"]]
            self._frame = pd.concat([others, row.to_frame().T.astype(object)], ignore_index=True)
            self._chart = Chart(self._frame, **self._options)
            self._measured.add(str(row["case"]))
            self._say(f"Measured {row['case']}.")
            self._redraw()
        except RooflabError as error:
            self._say(str(error))
        except Exception as error:  # whatever a driver or a library raises belongs beside the button
            self._say(f"Not measured, {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        finally:
            self._button.disabled = False

    def _say(self, line: str) -> None:
        self._status.value = f'<span role="status">{escape(line)}</span>'

    # --- without one ------------------------------------------------------------

    def _html(self) -> str:
        chart = self._recorded
        picks, size = chart.picks(chart.start), chart.x.values[chart.points[chart.start].x]
        data = json.dumps(chart.data(), ensure_ascii=False, separators=(",", ":"))
        if len(data.encode()) > LIMIT:
            raise UsageError(
                f"Explorer {self._slug!r} holds {len(chart.points)} cases, {len(data.encode()) // 1000} KB; "
                f"pass fewer rows, so that it stays within {LIMIT // 1000} KB."
            )
        still = base64.b64encode(chart.svg(picks, size, paper=True).encode()).decode()
        line, title = chart.line(picks, size), chart.title or "Recorded cases"
        # An attribute, not a script element: whatever a sanitiser drops, no data is left behind as text.
        packed = data.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")
        return (
            f'<div class="rooflab-explorer" id="explorer-{self._slug}" role="group" '
            f"aria-label=\"{escape(title)}\" data-explorer='{packed}'>\n"
            f'<img src="data:image/svg+xml;base64,{still}" alt="{escape(f"{title}. {line}")}" width="680" '
            'style="max-width:100%;height:auto">\n'
            f'<p class="said" aria-live="polite">{escape(line)}</p>\n'
            f'<p class="note"><small>{NOTE}</small></p>\n</div>'
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = dict(super()._repr_mimebundle_(**kwargs) or {})
        count = len(self._recorded.points)
        bundle["text/plain"] = f"Explorer {self._slug}: {count} recorded cases"
        bundle["text/html"] = self._page
        return bundle


def _between(x: Control) -> list[Any]:
    """The recorded sizes and, in quarter steps of each power of two, whole sizes between them."""
    low, high = x.values[0], x.values[-1]
    steps: set[Any] = set(x.values)
    power = 4
    while power <= high:
        steps |= {size for q in (4, 5, 6, 7) if low <= (size := power * q // 4) <= high}
        power *= 2
    return sorted(steps)
