"""Rungs that a lesson discusses and links: the site shows each whole, where a notebook has it in brief.

A notebook links the source and has the rung's pseudocode and notes from `page.linked`, which reads them in
kernels/<operator>/notes.yaml. The listing takes their place on the site; of a rung that a text links and no
cell names, such as the winner of an altered recording, it comes at the end of the section with the link.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rooflab import ops
from rooflab.book.notebook_format import nbformat
from rooflab.view import page

_LINK = re.compile(r"\]\(\.\./kernels/(\w+)/(\d\w*)\.cu\)")
_SHOWN = re.compile(r'class="rooflab-kernel">\s+\*\*`(\w+)/(\w+)`\*\*')
_HEADING = re.compile(r"^#{1,4} ", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def listing(rung: ops.Rung) -> str:
    """A rung whole, behind a line to click, as Markdown; without notes where it has none. Raises UsageError
    where a note's line or a helper is not in the source.
    """
    entry = page.notes_of(rung.operator).get(rung.name, {})
    return page.whole(
        rung,
        entry.get("pseudocode", ""),
        entry.get("notes"),
        helpers=entry.get("helpers", ()),
        below=page.named(entry["below"]) if "below" in entry else _below(rung),
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
                yield next(after, len(cells)), page.named("/".join(match.groups()))


def inserted(cells: Sequence[Any]) -> list[Any]:
    """A page's cells with the listings of the rungs that they link."""
    shown = [_listed(cell) for cell in cells]
    for place, rung in reversed(list(linked(shown))):
        output = nbformat.v4.new_output("display_data", {"text/markdown": listing(rung)})
        cell = nbformat.v4.new_code_cell("#", outputs=[output], metadata={"tags": ["remove-input"]})
        cell["id"] = f"{rung.operator}-{rung.name}"[:60].replace("_", "-")
        shown.insert(place, cell)
    return shown


def _listed(cell: Any) -> Any:
    """A cell with listings in place of what page.linked displayed in it."""
    made = cell
    for k, output in enumerate(cell.get("outputs", [])):
        if found := page.BRIEF.match("".join(output.get("data", {}).get("text/markdown", ""))):
            made = copy.deepcopy(cell) if made is cell else made
            made.outputs[k]["data"] = {"text/markdown": listing(page.named(found[1]))}
    return made


def _texts(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
    for output in cell.get("outputs", []):
        yield "".join(output.get("data", {}).get("text/markdown", ""))


def _below(rung: ops.Rung) -> ops.Rung | None:
    """The rung that this one changes: as it declares, or the one before it in its ladder."""
    ladder = ops.module_of(rung.operator).LADDERS[rung.operator]
    place = ladder.index(rung)
    if rung.changes:
        return page.named(f"{rung.operator}/{rung.changes}")
    return ladder[place - 1] if place else None
