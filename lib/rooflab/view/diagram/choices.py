"""How the dispatcher chooses a kernel for a product that was not recorded: shape, tokens, time."""

from __future__ import annotations

import math

import pandas as pd

from rooflab import dispatch
from rooflab.hardware import device
from rooflab.ops.strategies import candidates
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single
from rooflab.words import FORMATS, counted

WIDTH = 430.0  # narrow enough for a phone
_NOTE = 12.5  # of text beside the map
_MAP = 128.0  # height of the map of shapes


def choice(
    recorded: pd.DataFrame, slug: str, asked: tuple[str, int, int, int], names: dict[str, str]
) -> Drawing | None:
    """The three steps from a product, (format, n, k, tokens), to its kernel: the nearest of the `recorded`
    shapes, its next number of tokens, its least time; `names` are what a page calls the ways. None where the
    recording has nothing near.
    """
    format, n, k, batch = asked
    ways = [how.name for how in candidates(format, n, k, batch, device.get(slug).sm, slug, None)]
    rows = recorded[(recorded["format"] == format) & recorded["impl"].isin(ways)]
    line = dispatch.line(rows, n, k, batch).sort_values("median_us", kind="stable")
    if line.empty:
        return None
    shape, tokens = (int(line["n"].iloc[0]), int(line["k"].iloc[0])), int(line["batch"].iloc[0])
    times = [(names[impl], float(us)) for impl, us in zip(line["impl"], line["median_us"], strict=True)]
    canvas = Canvas(WIDTH)
    _shapes(canvas, rows, (n, k), shape)
    there = rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1])]
    _tokens(canvas, sorted(map(int, there["batch"].unique())), batch, tokens)
    _times(canvas, times)
    said, best = ", ".join(f"{name} {us:.1f}" for name, us in times), times[0][0]
    says = f"It is asked for {FORMATS[format]} weights of {n:,} × {k:,} and {counted(batch, 'token')}. "
    says += f"The nearest recorded shape is {shape[0]:,} × {shape[1]:,}; its line for "
    says += f"{counted(tokens, 'token')} is read. "
    says += f"There the times in µs are: {said}. So {best} is launched."
    title = f"{FORMATS[format]}, {n:,} × {k:,}, {counted(batch, 'token')}: which kernel?"
    return single(title, says, canvas)


def _step(canvas: Canvas, number: int, words: str) -> float:
    """The heading of a step; where what it shows begins."""
    y = canvas.height + (12 if canvas.height else 0)
    canvas.text(0, y + 13, f"{number}. {words}", bold=True)
    return y + 22


def _shapes(canvas: Canvas, rows: pd.DataFrame, asked: tuple[int, int], near: tuple[int, int]) -> None:
    top = _step(canvas, 1, f"Nearest recorded shape: {near[0]:,} × {near[1]:,}")
    found = sorted({(int(n), int(k)) for n, k in zip(rows["n"], rows["k"], strict=True)})
    spans = [[math.log2(shape[axis]) for shape in (*found, asked)] for axis in (0, 1)]

    def at(shape: tuple[int, int]) -> tuple[float, float]:
        across, up = (
            (math.log2(shape[axis]) - min(spans[axis])) / ((max(spans[axis]) - min(spans[axis])) or 1)
            for axis in (0, 1)
        )
        return 30 + across * (WIDTH - 60), top + 12 + (1 - up) * (_MAP - 40)

    canvas.rect(0, top, WIDTH, _MAP)
    canvas.text(WIDTH - 6, top + _MAP - 6, "rows →", _NOTE, "end")
    canvas.text(6, top + 14, "↑ columns", _NOTE)
    canvas.line([at(asked), at(near)], 1.6)
    for shape in found:
        x, y = at(shape)
        canvas.cell(x - 5, y - 5, 10, 10, "", SKY if shape == near else GREY)
    x, y = at(asked)
    canvas.cell(x - 6, y - 6, 12, 12, "", AMBER)
    canvas.text(x, y - 11, "asked", _NOTE, "middle")


def _tokens(canvas: Canvas, found: list[int], asked: int, taken: int) -> None:
    few = f"Fewest recorded tokens that are enough for {asked}: {taken}"
    top = _step(canvas, 2, few if taken >= asked else f"Most recorded tokens, fewer than {asked}: {taken}")
    wide = WIDTH / len(found)
    for place, tokens in enumerate(found):
        fill = SKY if tokens == taken else GREY
        canvas.cell(place * wide, top, wide - 3, 20, f"{tokens}", fill, svg.TEXT)


def _times(canvas: Canvas, times: list[tuple[str, float]]) -> None:
    top = _step(canvas, 3, "The fastest kernel of that line")
    bold = [1.3, *[1.12] * (len(times) - 1)]  # of the first name, which is bold
    left = 8 + max(more * svg.wide(name, svg.TEXT) for more, (name, _) in zip(bold, times, strict=True))
    unit = (WIDTH - left - 66) / max(us for _, us in times)
    for place, (name, us) in enumerate(times):
        y = top + 21 * place
        canvas.text(left - 8, y + 13, name, svg.TEXT, "end", bold=place == 0)
        canvas.cell(left, y, us * unit, 17, "", GREY if place else AMBER)
        canvas.text(left + us * unit + 6, y + 13, f"{us:.1f} µs", bold=place == 0)
