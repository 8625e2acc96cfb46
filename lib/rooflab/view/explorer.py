"""Explorers: controls over recorded measurements, through ipywidgets or, with no kernel, in plain HTML.

With a kernel, an Explorer is a box of ipywidgets around an SVG drawing. In a page it is a still image of
its default state with the cases beside it as JSON; site/explorer.js, one small script per site, adds the
controls and redraws.
"""

import base64
import json
import shlex
import threading
from collections import deque
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

LIMIT = 80_000  # bytes of JSON: an explorer must not outweigh the lesson around it
NOTE = "A still image of {}: its controls work on the course's pages and in JupyterLab."
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

        before, where = lab.say, lab.progress.where
        lab.say, lab.progress.where = tell, "lines"
        try:
            rows = lab.measure(case.study, [case])
        finally:
            lab.say, lab.progress.where = before, where
        if rows.empty:
            raise RooflabError(said[-1] if said else f"{case.id} was not measured.")
        return rows.iloc[0]

    return measure


class Explorer(ipywidgets.VBox):
    """Controls over the rows of `frame`: one per entry of `controls` (column -> label), and a slider of `x`.

    The first control's chosen value is drawn in colour, its other values in grey; what the rows' predicted_us
    say of the chosen one is a dashed line. `y` is drawn in its unit
    against `roof`: (label, value, unit), or `lab.roof`, from which every row's own ceiling is taken. With a
    kernel, sizes between the recorded ones can be chosen too: the nearest recorded case is shown and named,
    with the choice's own bound from `bound(case)` in microseconds, and the choice is written as a command, to
    copy. `measure` (see `measurer`) adds a field for any size, and buttons: one measures the choice, behind
    what waits already, the other drops what waits. Results are drawn beside the recorded ones, in a colour of
    their own. `start` (column -> value) says which row is shown first, by default the best of those with most
    sizes to choose from. `x_names` are names for values of x that stand for things in an order.
    `foretold` says what the rows' predicted_us are, as words around a time ("at least {} µs (read roof)"); by
    default what their study says. `name` is unique in its notebook. Raises UsageError if rows are
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
        x_names: Mapping[Any, str] | None = None,
        foretold: str = "",
    ):
        if not name.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"An explorer's name is letters, digits, '-' and '_', not {name!r}.")
        self._slug, self._frame, self._bound, self._measure = name, frame, bound, measure
        self._options: dict[str, Any] = {"x": x, "y": y, "controls": controls, "roof": roof, "title": title}
        self._options |= {"labels": labels, "xlog": xlog, "ylog": ylog, "compare": compare, "start": start}
        self._options["x_names"] = x_names
        self._options["foretold"] = foretold
        self._chart = self._recorded = Chart(frame, **self._options)
        self._what = "recorded cases" if "study" in frame else "computed points"
        self._own = pd.DataFrame()  # rows measured here
        self._waiting: deque[Case] = deque()
        self._lock, self._worker = threading.Lock(), threading.Thread()
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
        sliders = [self._size] if len(sizes) > 1 else []  # one size is no choice; the axis names it
        several = [pick for pick, c in zip(self._picks, chart.controls, strict=True) if len(c.values) > 1]
        row = ipywidgets.HBox([*several, *sliders], layout={"flex_flow": "row wrap"})
        self._command = ipywidgets.Text(
            description="Copy as case", style=wide, layout={"width": "100%", "max_width": "680px"}
        )
        parts: list[ipywidgets.Widget] = [row, self._drawing, self._text, self._command]
        self._exact = ipywidgets.IntText(
            0, description=f"{chart.x.label}, exactly (0: as chosen)", style=wide, layout={"width": "20em"}
        )
        if self._measure:
            self._button = ipywidgets.Button(description="Measure", tooltip="Gate and time this case here")
            self._cancel = ipywidgets.Button(description="Cancel", tooltip="Drop the cases that wait")
            self._status = ipywidgets.HTML()
            self._cancel.disabled = True
            self._button.on_click(self._on_measure)
            self._cancel.on_click(self._on_cancel)
            self._exact.observe(self._redraw, "value")
            exact = [self._exact] if chart.x.column in _FIELDS else []
            parts.append(ipywidgets.HBox([*exact, self._button, self._cancel, self._status]))
        return parts

    @property
    def _chosen_size(self) -> Any:
        return self._exact.value if self._exact.value > 0 else self._size.value

    @property
    def case(self) -> Case:
        """The case that the controls stand for; what they leave open is as in the nearest recorded one."""
        picks, size = [w.value for w in self._picks], self._chosen_size
        chart = self._chart
        like = Case.from_row(chart.rows.iloc[chart.nearest(picks, size)])
        chosen = {c.column: v for c, v in zip(chart.controls, picks, strict=True)} | {chart.x.column: size}
        blank = {name: "" for name in _FIELDS if isinstance(getattr(like, name), str)}
        given: dict[str, Any] = {
            c: blank.get(c) if v is None else v for c, v in chosen.items() if c in _FIELDS
        }
        return replace(like, **given)

    def _redraw(self, change: Any = None) -> None:
        chart, picks, size = self._chart, [w.value for w in self._picks], self._chosen_size
        drawing = chart.svg(picks, size)
        self._drawing.value = f'<div style="max-width:680px">{drawing}</div>'
        line = chart.line(picks, size)
        own = chart.own_row(picks, size)
        if own is not None:
            line = f"{chart.own_line(own)} {line}"
        elif self._bound and not chart.exact(chart.nearest(picks, size), picks, size):
            bound = self._bound(self.case)
            line = f"Bound of {chart.name(picks, size)}: {number(bound)} µs. {line}" if bound else line
        self._text.value = f'<p aria-live="polite" style="max-width:680px">{escape(line)}</p>'
        if "study" in chart.rows:  # not of a page's own sums
            case = self.case
            self._command.value = shlex.join(["rooflab", "measure", case.study, "--case", case.id])

    def _on_measure(self, button: Any = None) -> None:
        """Put the choice behind what waits, and see that somebody measures."""
        with self._lock:
            self._waiting.append(self.case)
            self._cancel.disabled = False
            if self._worker.is_alive():
                self._say(f"{len(self._waiting)} wait, the last {self._waiting[-1].id}.")
                return
            self._worker = threading.Thread(target=self._work, daemon=True)
            self._worker.start()

    def _on_cancel(self, button: Any = None) -> None:
        """Drop what waits; the case at work comes to its end."""
        with self._lock:
            dropped = len(self._waiting)
            self._waiting.clear()
            self._cancel.disabled = True
        self._say(f"{dropped} dropped; the case at work comes to its end.")

    def _work(self) -> None:
        """Measure one waiting case after another, in a thread of its own, so that controls go on working."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._cancel.disabled = True
                    self._worker = threading.Thread()  # from here on a click starts another one
                    return
                case = self._waiting.popleft()
            self._measure_one(case)

    def _measure_one(self, case: Case) -> None:
        assert self._measure
        try:
            self._say(f"Measuring {case.id} ...")
            row = pd.Series(dict(self._measure(case, self._say))).to_frame().T.astype(object)
            others = self._own[self._own["case"] != case.id] if len(self._own) else self._own
            self._own = pd.concat([others, row], ignore_index=True) if len(others) else row
            self._chart = Chart(self._frame, **self._options, own=self._own)
            self._say(f"Measured {row['case'].iloc[0]}.")
            self._redraw()
        except RooflabError as error:
            self._say(str(error))
        except Exception as error:  # whatever a driver or a library raises belongs beside the button
            self._say(f"Not measured, {type(error).__name__}: {str(error).partition(chr(10))[0]}")

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
        line, title = chart.line(picks, size), chart.title or self._what.capitalize()
        dashed = " Dashed: what was predicted." if chart.points[chart.start].told is not None else ""
        # An attribute, not a script element: whatever a sanitiser drops, no data is left behind as text.
        packed = data.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")
        return (
            f'<div class="rooflab-explorer" id="explorer-{self._slug}" role="group" '
            f"aria-label=\"{escape(title)}\" data-explorer='{packed}'>\n"
            f'<img src="data:image/svg+xml;base64,{still}" alt="{escape(f"{title}. {line}{dashed}")}" '
            'width="680" style="max-width:100%;height:auto">\n'
            f'<p class="said" aria-live="polite">{escape(line)}</p>\n'
            f'<p class="note"><small>{NOTE.format(self._what)}</small></p>\n</div>'
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = dict(super()._repr_mimebundle_(**kwargs) or {})
        count = len(self._recorded.points)
        bundle["text/plain"] = f"Explorer {self._slug}: {count} {self._what}"
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
