"""What the committed notebooks say, and what an explorer says of a choice."""

import html
import re

import nbformat
from rooflab.paths import NOTEBOOKS


def said(name):
    """All that a notebook ("03_coalescing") printed or displayed as text."""
    cells = nbformat.read(NOTEBOOKS / f"{name.removesuffix('.ipynb')}.ipynb", as_version=4).cells
    parts = []
    for output in (output for cell in cells if cell.cell_type == "code" for output in cell.outputs):
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/markdown", ""), data.get("text/html", "")]
    return "\n".join(parts)


def turned(made, *picks):
    """What an explorer says once its dropdowns and its slider, in the order shown, are turned to `picks`."""
    row, _, text, *_ = made.children
    for widget, value in zip(row.children, picks, strict=True):
        widget.value = value
    return html.unescape(re.sub("<[^>]+>", "", text.value))
