"""How a NaN in a value reaches queries that do not see its key: they share a tile with one that does."""

from __future__ import annotations

import numpy as np

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, NONE, SKY, Canvas, Drawing, single

_KEYS = 4  # of the tile, and queries


def products(keys: int = _KEYS) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Causal weights of a tile, all equal, values whose last is NaN, and the outputs: by whole rows of the
    tile, and by the keys alone that a query sees.
    """
    seen = np.tril(np.ones((keys, keys)))
    weights = seen / seen.sum(axis=1, keepdims=True)
    values = np.append(np.arange(1.0, keys), np.nan)
    return weights, values, (weights * values).sum(axis=1), np.where(seen, weights * values, 0.0).sum(axis=1)


def nan_leak() -> Drawing:
    """A tile of weights times values with a NaN: what comes out of whole rows, as tensor cores multiply, and
    of the keys that each query sees.
    """
    weights, values, whole, alone = products()
    keys, canvas, left, cell, tall = len(values), Canvas(), 62.0, 48.0, 28.0
    middle, right, top = left + keys * cell + 32, left + (keys + 1) * cell + 64, 40.0
    canvas.text(left, 12, "weights (0: key not seen)", svg.SMALL, bold=True)
    canvas.text(middle, 12, "values", svg.SMALL, bold=True)
    columns = ((right, "whole tile", whole), (right + 96, "seen keys only", alone))
    for x, words, _ in columns:
        canvas.text(x, 12, "output:", svg.SMALL, bold=True)
        canvas.text(x, top - 8, words, svg.SMALL, bold=True)
    for k in range(keys):
        canvas.text(left + (k + 0.5) * cell, top - 8, f"key {k}", svg.SMALL, "middle")
        words = "NaN" if np.isnan(values[k]) else f"{values[k]:g}"
        canvas.cell(middle, top + k * tall, cell, tall, words, AMBER if np.isnan(values[k]) else SKY, 12)
    canvas.text(middle - 16, top + keys * tall / 2 + 4, "×", svg.TEXT, "middle")
    canvas.text(right - 16, top + keys * tall / 2 + 4, "=", svg.TEXT, "middle")
    for q in range(keys):
        y = top + q * tall
        canvas.text(0, y + 18, f"query {q}", svg.SMALL)
        for k in range(keys):
            fill = SKY if weights[q, k] else AMBER if np.isnan(values[k]) else NONE
            canvas.cell(left + k * cell, y, cell, tall, f"{weights[q, k]:.2g}", fill, 12)
        for x, _, outputs in columns:
            out = outputs[q]
            words, fill = ("NaN", AMBER) if np.isnan(out) else (f"{out:.3g}", GREY)
            canvas.cell(x, y, 72, tall, words, fill, 12)
    canvas.text(left, top + keys * tall + 18, "orange: a NaN, or a weight of 0 that meets one", svg.SMALL)
    lost = [q for q in range(keys) if np.isnan(whole[q]) and not np.isnan(alone[q])]
    says = (
        f"{keys} queries and keys; the value of key {keys - 1} is NaN, and query {keys - 1} alone sees it. "
    )
    says += f"By whole rows of the tile {int(np.isnan(whole).sum())} outputs are NaN, because 0 times NaN is "
    says += f"NaN: {len(lost)} of them belong to queries that do not see it. By the seen keys alone "
    says += f"{int(np.isnan(alone).sum())} is."
    return single("A NaN reaches queries that do not see it", says, canvas)
