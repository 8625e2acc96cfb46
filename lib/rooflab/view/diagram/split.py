"""A decoder's layer over several GPUs: which part of each matrix a GPU has, and where sums are exchanged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rooflab.engine import shares
from rooflab.engine.spec import Spec, spec
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, PALE, SKY, Canvas, Drawing, single

_FILLS = (AMBER, BLUE, SKY, PALE)
_ATTENTION, _MLP = "self_attn", "mlp"
_MATRICES = {"q": _ATTENTION, "k": _ATTENTION, "v": _ATTENTION, "o": _ATTENTION}
_MATRICES |= {"gate": _MLP, "up": _MLP, "down": _MLP}
_SCALE = 34.0  # units of a drawing for `hidden` numbers


class Part(NamedTuple):
    """What a GPU has of a matrix: from which row and column to which, the last not included."""

    rows: tuple[int, int]
    columns: tuple[int, int]


def _sizes(model: Spec) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's matrices, as a checkpoint has them."""
    shape = model.shape
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found = {"q": (wide, shape.hidden), "k": (narrow, shape.hidden), "v": (narrow, shape.hidden)}
    found |= {"o": (shape.hidden, wide), "gate": (shape.mlp, shape.hidden), "up": (shape.mlp, shape.hidden)}
    return found | {"down": (shape.hidden, shape.mlp)}


def parts_of(model: Spec, rank: int, gpus: int) -> dict[str, Part]:
    """What engine.share gives GPU `rank` of each matrix of a layer: asked with matrices of their own row
    numbers, then of their column numbers.
    """
    sizes, found = _sizes(model), {}
    for name, room in _MATRICES.items():
        seen = []
        for axis, count in enumerate(sizes[name]):
            numbers = np.arange(count)[:, None] if axis == 0 else np.arange(count)[None, :]
            whole = {f"model.layers.0.{room}.{name}_proj.weight": np.broadcast_to(numbers, sizes[name])}
            mine = shares.share(model, whole.__getitem__, rank, gpus)[1](next(iter(whole)))
            seen.append((int(mine[0, 0]), int(mine[-1, -1]) + 1))
        found[name] = Part(*seen)
    return found


def split_layer(name: str = "llama-3-8b", gpus: int = 2) -> Drawing:
    """One layer of a model of the table of shapes over `gpus` GPUs, at most four. UsageError where its heads
    or neurons cannot be shared evenly.
    """
    model = spec(name)
    sizes, ranks = _sizes(model), [parts_of(model, rank, gpus) for rank in range(gpus)]
    unit = _SCALE / model.shape.hidden
    canvas, middle = Canvas(), 78.0

    def matrix(x: float, y: float, which: str) -> tuple[float, float]:
        high, wide = (size * unit for size in sizes[which])
        for rank, parts in enumerate(ranks):
            (top, bottom), (left, right) = (tuple(unit * n for n in ends) for ends in parts[which])
            canvas.rect(x + left, y + top, right - left, bottom - top, _FILLS[rank])
        canvas.text(x + wide / 2, y - 4, which, svg.SMALL, "middle")
        return wide, high

    def arrow(x: float) -> float:
        canvas.line([(x, middle), (x + 16, middle)], 1.4, end="arrow")
        return x + 20

    def summed(x: float) -> float:
        kib = shares.exchanged_bytes(model) / (2 * model.shape.layers) / 1024
        canvas.cell(x, middle - 22, 48, 22, "sum", svg.NONE, 13)
        canvas.cell(x, middle, 48, 18, f"{kib:g} KiB", svg.NONE)
        return x + 51

    x, y = 4.0, middle - 60
    for which in ("q", "k", "v"):
        wide, high = matrix(x, y, which)
        y += high + 18
    x = arrow(x + wide + 3)
    each = model.shape.heads // gpus
    canvas.text(x + 16, middle - 44, "heads", svg.SMALL, "middle")
    for head in range(model.shape.heads):
        fill = _FILLS[head // each]
        canvas.rect(x + head % 4 * 8, middle - 38 + head // 4 * 9, 7, 8, fill, 0.3)
    x = arrow(x + 35)
    wide, high = matrix(x, middle - sizes["o"][0] * unit / 2, "o")
    x = arrow(summed(arrow(x + wide + 3)))
    for which in ("gate", "up"):
        wide, high = matrix(x, middle - sizes[which][0] * unit / 2, which)
        x += wide + 6
    x = arrow(x)
    wide, high = matrix(x, middle - sizes["down"][0] * unit / 2, "down")
    summed(arrow(x + wide + 3))
    for rank in range(gpus):
        canvas.cell(4 + 110 * rank, 152, 14, 14, "", _FILLS[rank])
        canvas.text(24 + 110 * rank, 164, f"GPU {rank}")
    rows = [which for which, part in ranks[0].items() if part.rows[1] < sizes[which][0]]
    columns = [which for which, part in ranks[0].items() if part.columns[1] < sizes[which][1]]
    says = (
        f"A layer of {name} on {gpus} GPUs. Each has {each} of {model.shape.heads} heads, rows of "
        f"{', '.join(rows) or 'no matrix'}, and columns of {', '.join(columns) or 'no matrix'}. After "
        f"{' and '.join(columns) or 'none'} the GPUs sum "
        f"{shares.exchanged_bytes(model) / (2 * model.shape.layers):,.0f} bytes."
    )
    return single(f"A layer of {name} on {gpus} GPUs", says, canvas)
