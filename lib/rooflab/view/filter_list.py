"""A list that can be filtered: verdicts by source and word, with a kernel or on a page without one.

With a kernel a Board is a box of ipywidgets. In a page it is a folded list whose items carry their places in
the controls; site/board.js, one small script per site, adds the controls and hides what is not chosen. A
reader whose page runs no script unfolds the list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets
import pandas as pd

from rooflab.errors import UsageError

ALL = "all"
LIMIT = 120_000  # bytes of HTML: a board must not outweigh the lesson around it


def slug(heading: str) -> str:
    """The anchor of a heading on the course's pages."""
    return re.sub(r"-+", "-", re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")).strip("-")


class Board(ipywidgets.VBox):
    """The rows of `frame` as a list: `head` (a bold name), `word` (a verdict), `text`, and `note` (small)
    name columns; `lesson` ("03c_claims#The tests"), if named, links to more. One control per entry
    of `controls` (column -> label) chooses a value or all; `start` (column -> value) is chosen first.
    """

    def __init__(
        self,
        name: str,
        frame: pd.DataFrame,
        *,
        controls: Mapping[str, str],
        head: str = "id",
        word: str = "verdict",
        text: str = "says",
        note: str = "note",
        lesson: str = "",
        start: Mapping[str, Any] | None = None,
        what: str = "statements",
    ):
        missing = [
            c for c in (*controls, head, word, text, note, *([lesson] if lesson else [])) if c not in frame
        ]
        if missing:
            raise UsageError(f"Board {name!r} needs the column {missing[0]!r}, which its rows lack.")
        self._name, self._what, self._frame = name, what, frame.reset_index(drop=True)
        self._controls = {column: list(dict.fromkeys(frame[column].astype(str))) for column in controls}
        self._labels, self._columns = dict(controls), (head, word, text, note, lesson)
        self._start = {column: str((start or {}).get(column, ALL)) for column in controls}
        self._items = [self._item(row) for _, row in self._frame.iterrows()]
        self._page = self._html()
        self._picks = [
            ipywidgets.Dropdown(
                options=[ALL, *values],
                value=self._start[column],
                description=self._labels[column],
                style={"description_width": "initial"},
                layout={"width": "auto", "margin": "2px 16px 2px 2px"},
            )
            for column, values in self._controls.items()
        ]
        self._list = ipywidgets.HTML()
        for pick in self._picks:
            pick.observe(self._redraw, "value")
        super().__init__([ipywidgets.HBox(self._picks, layout={"flex_flow": "row wrap"}), self._list])
        self._redraw()

    def chosen(self) -> pd.DataFrame:
        """The rows that the controls leave."""
        return self._frame[self._left([pick.value for pick in self._picks])]

    def _left(self, values: Sequence[str]) -> pd.Series:
        left = pd.Series(True, index=self._frame.index)
        for column, value in zip(self._controls, values, strict=True):
            if value != ALL:
                left &= self._frame[column].astype(str) == value
        return left

    def _redraw(self, change: Any = None) -> None:
        left = self._left([pick.value for pick in self._picks])
        items = "".join(f"<li>{item}</li>" for item, there in zip(self._items, left, strict=True) if there)
        said = f"<p>{int(left.sum())} of {len(left)} {escape(self._what)}.</p>"
        self._list.value = f"{said}<ul>{items}</ul>"

    def _item(self, row: pd.Series) -> str:
        head, word, text, note, lesson = self._columns
        parts = [f"<b>{escape(str(row[head]))}</b>", f"<em>{escape(str(row[word]))}.</em>"]
        parts.append(escape(str(row[text])))
        small = escape(str(row[note]))
        if lesson and str(row[lesson]):
            stem, _, heading = str(row[lesson]).partition("#")
            place = f"{stem.partition('_')[0]}, {heading}" if heading else stem
            where = f"{stem}.html#{slug(heading)}" if heading else f"{stem}.html"
            small += f' <span class="lesson" data-to="{escape(where)}">Lesson {escape(place)}</span>'
        return " ".join([*parts, f"<small>{small}</small>"])

    def _html(self) -> str:
        values = list(self._controls.values())
        rows = []
        for item, (_, row) in zip(self._items, self._frame.iterrows(), strict=True):
            picks = ",".join(
                str(known.index(str(row[column])))
                for column, known in zip(self._controls, values, strict=True)
            )
            rows.append(f'<li data-picks="{picks}">{item}</li>')
        asked = [[self._labels[c], known, self._start[c]] for c, known in self._controls.items()]
        packed = escape(json.dumps(asked, ensure_ascii=False, separators=(",", ":")))
        page = (
            f'<div class="rooflab-board" id="board-{self._name}" role="group" '
            f'data-what="{escape(self._what)}" aria-label="{escape(self._what)}" '
            f'data-controls="{packed}">\n<details>'
            f"<summary>{len(rows)} {escape(self._what)}: unfold to read all of them</summary>\n<ul>\n"
            + "\n".join(rows)
            + "\n</ul></details>\n</div>"
        )
        if len(page.encode()) > LIMIT:
            raise UsageError(f"Board {self._name!r} is {len(page.encode()) // 1000} KB; pass fewer rows.")
        return page

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = dict(super()._repr_mimebundle_(**kwargs) or {})
        words = ", ".join(
            f"{n} {word}" for word, n in self._frame[self._columns[1]].value_counts().sort_index().items()
        )
        bundle["text/plain"] = f"Board {self._name}: {len(self._frame)} {self._what}: {words}"
        bundle["text/html"] = self._page
        return bundle
