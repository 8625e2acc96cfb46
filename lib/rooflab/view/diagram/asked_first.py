"""Which weights of a strip of columns are asked for before the first of them is used, by rungs of gemv."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rooflab.errors import UsageError
from rooflab.ops import Rung
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_COLUMNS, _DEEP = 128, 8  # that are drawn: columns, rows
_BYTES = {"float": 4, "float4": 16, "uint4": 16}


def loads(text: str, macros: Mapping[str, int]) -> tuple[int, int]:
    """By a rung's source, the rows that a thread asks for before it uses the first, and the bytes of a load:
    an array of so many loads, or the rows of an unrolled loop. UsageError for a source with neither.
    """
    held = re.search(r"uint4 v\[(\w+)\]", text)
    loop = re.search(r"#pragma unroll (\d+)\s*for \(unsigned \w+ = \w+; \w+ < (?:rows|end|k)", text)
    kind = re.search(r"const (\w+)\* __restrict__ a,", text)
    if kind is None or not (held or loop):
        raise UsageError("This source has neither an array of loads nor an unrolled loop over rows.")
    rows = (macros[held[1]] if held[1] in macros else int(held[1])) if held else int(loop[1]) if loop else 0
    return rows, _BYTES[kind[1]]


def asked_first(rungs: Sequence[Rung], texts: Mapping[str, str] | None = None) -> Drawing:
    """The first rows of 128 columns: which of them its warps ask for at once, a panel a rung; `texts`
    replace sources.
    """
    canvas, said, y = Canvas(430), list[str](), 0.0
    tall = 12.0
    for rung in rungs:
        text = (texts or {}).get(rung.name) or rung.path.read_text(encoding="utf-8")
        rows, each = loads(text, rung.with_defaults({}))
        warps = _COLUMNS * 4 // (each * svg.LANES)
        wide = canvas.width / warps
        size = _COLUMNS * 4 * rows / 1024
        who = f"{counted(warps, 'warp')}, {counted(rows, 'load')} of {each} bytes a lane"
        canvas.text(0, y + 12, f"Rung {rung.name.partition('_')[0]}: {who}", bold=True)
        y += 20
        for warp in range(warps):
            for row in range(_DEEP):
                fill = (SKY if warp % 2 else AMBER) if row < rows else NONE
                canvas.cell(
                    warp * wide, y + row * tall, wide, tall, f"warp {warp}" if row == 0 else "", fill, 10
                )
        y += _DEEP * tall
        canvas.text(0, y + 14, f"asked for before the first is used: {size:g} KiB", svg.SMALL)
        y += 30
        said.append(f"rung {rung.name.partition('_')[0]}: {who}, {size:g} KiB at once")
    canvas.text(0, y + 2, f"{_COLUMNS} columns of A, {_DEEP} rows; a cell is one load of a warp.", svg.SMALL)
    canvas.text(0, y + 17, "Coloured: loads issued before the first result is used.", svg.SMALL)
    says = f"Of {_COLUMNS} columns, by the sources: {'; '.join(said)}."
    return single("Loads issued before the first weight is used", says, canvas)
