"""What a decoder does with one token: a layer's products and its attention, and how large each matrix is."""

from __future__ import annotations

from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.numerics.model_shapes import Model, Projection
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, PALE, SKY, Canvas, Drawing, single

_BOX, _HIGH, _GAP = 118.0, 34.0, 29.0
_TOP = 17.0  # room for rope, which lies half a box above the products
_HALVES = ((("q", "k", "v"), "o"), (("gate", "up"), "down"))


def one_token(model: Model) -> Drawing:
    """The way of a token's vector through one layer of a `model` with the seven usual projections, and below
    it each of them as wide as its share of the weights that a token reads. UsageError for other models.
    """
    found = {each.name: each for each in model_shapes.projections(model)}
    if set(found) != {"q", "k", "v", "o", "gate", "up", "down", "lm_head"}:
        raise UsageError(f"{model.name} has other matrices than the usual seven and an output head.")
    canvas = Canvas()
    middles = (
        ("attention", f"{model.heads} heads look back"),
        ("combine", "gate's numbers × up's"),
    )
    for half, ((first, last), (name, does)) in enumerate(zip(_HALVES, middles, strict=True)):
        _half(canvas, _TOP + 124.0 * half, model, [found[part] for part in first], (name, does), found[last])
    y = canvas.height + 26
    words = f"{model.layers} such layers, then lm_head scores all {model.vocab:,} tokens of the vocabulary."
    canvas.text(0, y, words, bold=True)
    total = sum(_weights(each) for each in found.values())
    canvas.text(0, y + 20, f"The {total / 1e9:.2f} billion weights that a token reads, by matrix:", svg.SMALL)
    x, narrow = 0.0, list[tuple[float, str]]()
    for name, each in found.items():
        wide = svg.WIDTH * _weights(each) / total
        fits = svg.wide(name, svg.SMALL) < wide
        canvas.cell(x, y + 28, wide, 24, name if fits else "", GREY if name == "lm_head" else SKY)
        if not fits:
            narrow.append((x + wide / 2, name))
        x += wide
    if narrow:  # their names below, as one text: they are neighbours
        at, words = sum(place for place, _ in narrow) / len(narrow), ", ".join(name for _, name in narrow)
        canvas.text(max(at, svg.wide(words, svg.SMALL) / 2), y + 64, words, svg.SMALL, "middle")
    shapes = ", ".join(f"{each.name} {each.n:,} × {each.k:,}" for each in found.values())
    says = (
        f"A vector of {model.hidden:,} numbers goes through a norm, q, k and v, with q and k through rope, "
    )
    says += "then through attention, which reads the cached keys and values, and through o; then through a "
    says += "norm, gate and up, through down, and into the next "
    says += f"of {model.layers} layers. Matrices, rows × columns: {shapes}."
    return single("What one layer does with a token", says, canvas)


def _weights(each: Projection) -> int:
    return each.n * each.k * each.times


def _half(
    canvas: Canvas, y: float, model: Model, first: list[Projection], middle: tuple[str, str], last: Projection
) -> None:
    """Half a layer from left to right: the vector, the products side by side, what combines them, the last
    product; the next half begins with what it gives.
    """
    high = 3 * _HIGH
    center = y + high / 2

    def column(k: int) -> float:
        return k * (_BOX + _GAP)

    def box(k: int, top: float, name: str, words: str, fill: str) -> None:
        canvas.cell(column(k), top, _BOX, _HIGH - 4, "", fill)
        canvas.text(column(k) + _BOX / 2, top + 13, name, svg.TEXT, "middle", svg.on(fill), bold=True)
        canvas.text(column(k) + _BOX / 2, top + 26, words, svg.SMALL - 1, "middle", svg.on(fill))

    box(0, center - _HIGH, "vector", f"{model.hidden:,} numbers", PALE)
    box(0, center + _HIGH / 2, "norm", "to size 1", AMBER)
    x = column(0) + _BOX / 2
    canvas.line([(x, center - 2), (x, center + _HIGH / 2 - 2)], end="arrow")
    turned = middle[0] == "attention"  # and q and k by their place in the text
    if turned:
        box(2, center - 2 * _HIGH, "rope", "turns by position", AMBER)
        x = column(2) + _BOX / 2
        canvas.line([(x, center - _HIGH - 2), (x, center - _HIGH / 2 - 2)], end="arrow")
    box(2, center - _HIGH / 2, *middle, AMBER)
    box(3, center - _HIGH / 2, last.name, f"{last.n:,} × {last.k:,}", SKY)
    tops = [center + (place - len(first) / 2) * _HIGH for place in range(len(first))]
    for top, each in zip(tops, first, strict=True):
        box(1, top, each.name, f"{each.n:,} × {each.k:,}", SKY)
        at = top + _HIGH / 2 - 2
        canvas.line([(column(0) + _BOX + 2, center + _HIGH - 2), (column(1) - 2, at)], end="arrow")
        to = center - 1.5 * _HIGH - 2 if turned and each.name != "v" else center - 2
        canvas.line([(column(1) + _BOX + 2, at), (column(2) - 2, to)], end="arrow")
    canvas.line([(column(2) + _BOX + 2, center - 2), (column(3) - 2, center - 2)], end="arrow")
    if turned:
        box(2, center + _HIGH, "cache", "keys, values so far", GREY)
        x = column(2) + _BOX / 2
        canvas.line([(x, center + _HIGH - 2), (x, center + _HIGH / 2 - 2)], end="arrow")
    canvas.text(column(3) + _BOX / 2, center + _HIGH / 2 + 12, "added to the vector", svg.SMALL, "middle")
