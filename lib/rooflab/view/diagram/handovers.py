"""What a split decoder launches for a layer, with sums as kernels of their own and with sums in the norms,
read off the code that launches it; when a dependent launch begins, and what that hides of a layer.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rooflab.engine.batch import Batch
from rooflab.engine.shared_chain import SharedChain
from rooflab.engine.split import SUMMED
from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, SKY, Canvas, Drawing, single
from rooflab.words import counted

_THEN = {"ROPE": " + rope", "GATE": " + silu_mul"}  # what a product does with its sums, beside storing them
_OTHER = 2.0  # microseconds that a launch beside the products is drawn
_KERNELS = ("rmsnorm", "norm", "few", "product", "rope", "attention", "decode_attention", "silu_mul")


class Launch(NamedTuple):
    """A kernel of a layer: its name, and whether it waits for the other GPU."""

    name: str
    sums: bool


def launches(of: Callable[..., Any], inside: bool) -> list[Launch]:
    """The kernels that the loop over layers in `of` launches, in their order. Sums follow the products of
    SUMMED: as kernels of their own, or `inside` the norm that comes next, which may be the next layer's.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(of)))
    loop = next(node for node in ast.walk(tree) if isinstance(node, ast.For))
    found: list[Launch] = []
    for statement in loop.body:
        for call in _calls(statement):
            name = _name(call)
            first = call.args[0] if call.args else None
            matrix = str(first.value) if isinstance(first, ast.Constant) else ""
            then = [
                _THEN[arg.attr] for arg in call.args if isinstance(arg, ast.Attribute) and arg.attr in _THEN
            ]
            kernel = matrix or name.replace("rmsnorm", "norm").removeprefix("decode_")
            found.append(Launch(kernel + "".join(then), False))
            if matrix in SUMMED and not inside:
                found.append(Launch("all_reduce", True))
    return [Launch("all_reduce + norm", True) if inside and one.name == "norm" else one for one in found]


def _calls(statement: ast.stmt) -> list[ast.Call]:
    """The launches of a statement, what is computed first in front."""
    nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _name(node) in _KERNELS]
    return sorted(nodes, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))


def _name(call: ast.Call) -> str:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.lstrip("_")


def by_way() -> dict[str, list[Launch]]:
    """The launches of a layer by each way of summing."""
    return {
        "sums by kernels of their own": launches(Batch._layers, inside=False),
        "the fused way, overlapping": launches(SharedChain.layers, inside=True),
    }


def launches_of_a_layer() -> Drawing:
    """One layer by both ways, a box a launch; a dependent launch starts before the one before it ends."""
    canvas, y, said, ways = Canvas(), 0.0, [], by_way()
    for name, row in ways.items():
        overlaps = "overlapping" in name
        canvas.text(0, y + 12, f"{name}: {len(row)} launches a layer", bold=True)
        x, y = 0.0, y + 22
        for k, launch in enumerate(row):
            wide = max(svg.wide(launch.name, svg.SMALL) + 12, 44.0 if overlaps else 0.0)
            if x + wide > svg.WIDTH and not overlaps:
                x, y = 0.0, y + 34
            lane = 28 * (k % 2) if overlaps else 0
            canvas.cell(x, y + lane, wide, 26, launch.name, svg.PALE if launch.sums else SKY)
            x += wide - 18 if overlaps else wide + 4
        said.append(f"{name}: {', '.join(launch.name for launch in row)}")
        y += 74 if overlaps else 46
    canvas.cell(0, y, 14, 12, "", SKY)
    canvas.text(20, y + 10, "works on this GPU alone")
    canvas.cell(200, y, 14, 12, "", svg.PALE)
    canvas.text(220, y + 10, "gives its part to the other GPU, and waits for its")
    order = "Left to right: order, not time. The first all_reduce + norm sums the down of the layer before."
    canvas.text(0, y + 30, order, svg.SMALL)
    totals = " and ".join(counted(len(row), "launch", "launches") for row in ways.values())
    return single("What a layer launches on each GPU", f"A layer takes {totals}. {'. '.join(said)}.", canvas)


def _drawn_parts(
    plain: float, dependent: float, weights: Mapping[str, float], launch: float
) -> list[tuple[Launch, float, float, float]]:
    """Of each launch of a layer with sums in the norms: the launch itself, the fetching of its first weights,
    and its work, in microseconds; so that with all of it in a row the layer takes `plain`, and with the work
    alone `dependent`. What is work goes to products by their `weights`, the rest by `_OTHER` each.
    """
    row = by_way()["the fused way, overlapping"]
    shares = [weights.get(one.name.partition(" + ")[0], 0.0) for one in row]
    products, whole = sum(share > 0 for share in shares), sum(shares)
    if not products or not 0 < dependent < plain:
        raise UsageError("Launches over time are drawn of products, by plain launches that take longer.")
    begins = min(launch, (plain - dependent) / len(row))
    fetches = (plain - dependent - begins * len(row)) / products
    other = min(_OTHER, dependent / (2 * len(row)))
    left = dependent - other * (len(row) - products)
    return [
        (one, begins, fetches if share else 0.0, left * share / whole if share else other)
        for one, share in zip(row, shares, strict=True)
    ]


def launches_over_time(
    plain: float, dependent: float, weights: Mapping[str, float], launch: float, whose: str
) -> Drawing:
    """A layer by plain launches and by dependent ones, over time: both rows as long as measured (µs), what is
    in them by what launches are charged and by the `weights` of products.
    """
    parts, canvas = _drawn_parts(plain, dependent, weights, launch), Canvas()
    canvas.text(0, 12, "Measured: the two totals, between dashed lines. The parts inside are a sketch.")
    before = parts[0][1] + parts[0][2]  # of the first launch, while the layer before still works
    unit = (svg.WIDTH - 16) / (before + plain)
    left, y, ends = 4 + before * unit, 26.0, []
    for name, us in (("plain launches", plain), ("dependent launches", dependent)):
        overlaps, at = us == dependent, left
        names = [one.name for one, *_ in parts]
        canvas.text(0, y + 12, f"{name.capitalize()}: {us:.1f} µs a layer", bold=True)
        for k, (one, begins, fetches, works) in enumerate(parts):
            lane = y + 20 + (26 * (k % 3) if overlaps else 0)
            start = at - (begins + fetches) * unit if overlaps else at
            for wide, fill in ((begins, svg.NONE), (fetches, AMBER)):
                if wide:
                    canvas.rect(start, lane, wide * unit, 24, fill)
                start += wide * unit
            named = f"{k + 1} {names[k]}"
            label = named if svg.wide(named, svg.SMALL) < works * unit - 6 else str(k + 1)
            canvas.cell(start, lane, works * unit, 24, label, svg.PALE if one.sums else SKY)
            at = start + works * unit
        high = 76.0 if overlaps else 24.0
        ends.append((at, y + 18, y + 22 + high))
        y += high + 34
    for at, top, bottom in ends:
        for x in (left, at):
            canvas.line([(x, top), (x, bottom)], 1.2, dashed=True)
    canvas.text(ends[1][0] + 8, ends[1][1] + 34, f"{plain - dependent:.1f} µs hidden", svg.SMALL)
    x = 0.0
    fills = {svg.NONE: "launch", AMBER: "fetches first weights", SKY: "works", svg.PALE: "sums over the link"}
    for fill, words in fills.items():
        canvas.cell(x, y, 14, 12, "", fill)
        canvas.text(x + 19, y + 10, words, svg.SMALL)
        x += svg.wide(words, svg.SMALL) + 44
    names = [f"{k} {one.name}" for k, (one, *_) in enumerate(parts, 1)]
    half = (len(names) + 1) // 2
    for k, line in enumerate((names[:half], names[half:])):
        canvas.text(0, y + 32 + 15 * k, ", ".join(line), svg.SMALL)
    note = f"A layer: a token ÷ layers. Assumed: {parts[0][1]:.1f} µs a launch. Amber: the rest of what is "
    canvas.text(0, y + 62, f"{note}hidden.", svg.SMALL)
    canvas.text(
        0, y + 77, "Blue: what is left of the time, shared among products by their weights.", svg.SMALL
    )
    title = f"A sketch of a layer of {whose}"
    says = (
        f"{whose}. Plain launches take {plain:.1f} µs a layer: each begins when the one before has ended. "
        f"Dependent launches take {dependent:.1f}: each begins, and fetches its first weights, while the "
        f"one before still works, which hides {plain - dependent:.1f} µs. {', '.join(names)}. Only the "
        "two totals are measured."
    )
    return single(title, says, canvas)
