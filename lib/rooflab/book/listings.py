"""Rungs that a lesson discusses and links: the site shows each whole at the end of the section with its link.

A notebook holds the link alone, which leads to the source on a code host and in JupyterLab. The pseudocode
and the numbered notes of such a rung are in kernels/<operator>/notes.yaml, beside the source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rooflab import ops, paths
from rooflab.book.notebook_format import nbformat
from rooflab.errors import UsageError
from rooflab.records import yaml_file
from rooflab.view import page

_LINK = re.compile(r"\]\(\.\./kernels/(\w+)/(\d\w*)\.cu\)")
_SHOWN = re.compile(r'class="rooflab-kernel">\s+\*\*`(\w+)/(\w+)`\*\*')
_HEADING = re.compile(r"^#{1,4} ", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_KEYS = {"pseudocode", "notes", "helpers", "below", "built", "values"}


@functools.cache
def notes_of(operator: str) -> dict[str, dict[str, Any]]:
    """By rung of the operator, what its listing has: `pseudocode` of 10 to 15 lines; `notes`, a piece of one
    line of the source to what that line does; optional `helpers`, functions of kernels/common to show with
    it, `below`, the rung ("operator/name") to compare with where that is not the one that it changes, and
    `built`, macros that decide what is listed; and `values`, macros of the build that is listed, named in it.
    """
    file = paths.KERNELS / operator / "notes.yaml"
    found = yaml_file.loaded(file) if file.is_file() else {}
    for name, entry in found.items():
        if not {"pseudocode", "notes"} <= set(entry) <= _KEYS:
            raise UsageError(f"{file}: {name} has {', '.join(sorted(entry))}; it takes {', '.join(_KEYS)}.")
    return dict(found)


def listing(rung: ops.Rung) -> str:
    """A rung whole, behind a line to click, as Markdown; without notes where it has none. Raises UsageError
    where a note's line or a helper is not in the source.
    """
    entry = notes_of(rung.operator).get(rung.name, {})
    return page.whole(
        rung,
        entry.get("pseudocode", ""),
        entry.get("notes"),
        helpers=entry.get("helpers", ()),
        below=_named(*entry["below"].split("/")) if "below" in entry else _below(rung),
        built=entry.get("built"),
        values=entry.get("values"),
        folded=True,
        launch=False,
        aside=True,
    )


def linked(cells: Sequence[Any]) -> Iterator[tuple[int, ops.Rung]]:
    """The rungs that a page's cells link and no cell shows whole, each once, in the order of the page, with
    the place before which its listing belongs: that of the next cell with a heading.
    """
    texts = [list(_texts(cell)) for cell in cells]
    seen = {match.groups() for said in texts for text in said for match in _SHOWN.finditer(text)}
    headed = [any(_HEADING.search(_FENCED.sub("", text)) for text in said) for said in texts]
    for place, said in enumerate(texts):
        for match in (match for text in said for match in _LINK.finditer(text)):
            if match.groups() not in seen:
                seen.add(match.groups())
                after = (k for k in range(place + 1, len(cells)) if headed[k])
                yield next(after, len(cells)), _named(*match.groups())


def inserted(cells: Sequence[Any]) -> list[Any]:
    """A page's cells with the listings of the rungs that they link."""
    found, shown = list(linked(cells)), list(cells)
    for place, rung in reversed(found):
        output = nbformat.v4.new_output("display_data", {"text/markdown": listing(rung)})
        cell = nbformat.v4.new_code_cell("#", outputs=[output], metadata={"tags": ["remove-input"]})
        cell["id"] = f"{rung.operator}-{rung.name}"[:60].replace("_", "-")
        shown.insert(place, cell)
    return shown


def _texts(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
    for output in cell.get("outputs", []):
        yield "".join(output.get("data", {}).get("text/markdown", ""))


def _named(operator: str, name: str) -> ops.Rung:
    return ops.rung_of(ops.module_of(operator).LADDERS[operator], name, name)


def _below(rung: ops.Rung) -> ops.Rung | None:
    """The rung that this one changes: as it declares, or the one before it in its ladder."""
    ladder = ops.module_of(rung.operator).LADDERS[rung.operator]
    place = ladder.index(rung)
    return _named(rung.operator, rung.changes) if rung.changes else ladder[place - 1] if place else None
