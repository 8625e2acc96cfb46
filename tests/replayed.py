"""Lessons replayed in this process, without a kernel and without drawing: what a page says, cell by cell."""

import ast
import contextlib
import io
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pandas as pd
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.figure import Figure
from rooflab import lab, paths, plot


@dataclass
class Cell:
    """A cell of a replayed page: its markdown, or what its code displayed. `opened` names the recordings
    that the code opened beside the page's own."""

    number: int
    kind: str
    text: str = ""  # prose: markdown and what was printed
    tables: list[pd.DataFrame] = field(default_factory=list)  # of texts, as shown
    captions: list[str] = field(default_factory=list)
    html: str = ""
    opened: list[str] = field(default_factory=list)
    error: str = ""


def replay(notebook: Path, recording: Path | str, effort: str = "full") -> list[Cell]:
    """The page that a lesson makes of a recording (a name in data/, or a folder), up to a cell that fails."""
    cells, space = [], {"__name__": "__main__", "get_ipython": InteractiveShell.instance}
    with _opened() as opened:
        for number, source in enumerate(_read(notebook)):
            if source.cell_type == "markdown":
                cells.append(Cell(number, "markdown", source.source))
                continue
            cell = Cell(number, "code")
            cells.append(cell)
            opened.clear()
            _run(source.source, space, cell)
            if "parameters" in source.metadata.get("tags", []):
                space |= {"MODE": "replay", "DEVICE": str(recording), "EFFORT": effort}
            cell.opened = [name for name in opened if name != Path(recording).name]
            if cell.error:
                break
    return cells


@cache
def _read(notebook: Path) -> list[Any]:
    return nbformat.read(notebook, as_version=4).cells


@contextlib.contextmanager
def _opened() -> Iterator[list[str]]:
    """The names of recordings that are opened meanwhile."""
    names: list[str] = []
    real = lab.open

    def noted(mode: str = "auto", device: str = "h200", effort: str = "full") -> lab.Lab:
        found = real(mode, device, effort)
        names.append(found.device)
        return found

    with mock.patch.object(lab, "open", noted):
        yield names


def _run(source: str, space: dict[str, Any], cell: Cell) -> None:
    shell = InteractiveShell.instance()
    shown: list[dict[str, Any]] = []
    printed = io.StringIO()

    def publish(data: dict[str, Any], *_: object, **__: object) -> None:
        shown.append({**data, "before": printed.tell()})

    tree = ast.parse(shell.transform_cell(source))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with (
        mock.patch.object(shell.display_pub, "publish", publish),
        mock.patch.object(plot, "png", lambda figure: b""),
        mock.patch.object(Figure, "draw_without_rendering", lambda figure: None),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            exec(compile(tree, "<cell>", "exec"), space)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
                if value is not None:
                    publish(shell.display_formatter.format(value)[0])
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(where.filename).name}:{where.lineno}"
            line = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<cell>"]
            said = source.splitlines()[line[-1] - 1].strip() if line else ""
            cell.error = f"{type(error).__name__}: {error} ({at}; cell's line `{said}`)"
    for data in shown:
        html = data.get("text/html", "")
        cell.html += html
        cell.tables += _tables(html)
        cell.text += data.get("text/markdown", "") + "\n" + re.sub(r"<table.*?</table>", "", html, flags=re.S)
    cell.text += printed.getvalue()


def _tables(html: str) -> list[pd.DataFrame]:
    found = []
    for body in re.findall(r"<table.*?</table>", html, re.S):
        rows = [
            [_plain(each) for each in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.S)
        ]
        if rows:
            found.append(pd.DataFrame(rows[1:], columns=rows[0]))
    return found


def _plain(html: str) -> str:
    import html as entities

    return entities.unescape(re.sub(r"<[^>]+>", "", html)).strip()


def notebooks() -> list[Path]:
    return sorted(paths.NOTEBOOKS.glob("*.ipynb"))
