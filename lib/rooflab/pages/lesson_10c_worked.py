"""One model worked out for lesson 10c: its bound, its estimate by plain launches, what was measured, and what
is left.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows, lesson_10c_handover
from rooflab.pages.lesson_10c import launched, plain_us, thread, tokens
from rooflab.studies import links, split
from rooflab.view import display


def _model(rows: Rows) -> Rows:
    """The rows of a token of the model that is worked out, by contestant; empty without one."""
    found = tokens(rows)
    return found[found["title"] == thread(rows)].set_index("impl")


def predicted(rows: Rows) -> None:
    """Show the bounds and the estimate of one model, each a line of arithmetic."""
    mine = _model(rows)
    us = mine["predicted_us"].reindex([links.ALONE, split.FUSED]).tolist() if len(mine) else [np.nan]
    if any(each != each for each in us):
        return
    alone, fused = us
    name, format = (str(mine[of].iloc[0]) for of in ("model", "format"))
    shape = model_shapes.get(name)
    size = model_shapes.weight_bytes(shape, format, split.HEAD)
    each, rate = split.sum_us(split.FUSED, 2 * shape.hidden, 2), f"{size / alone / 1e3:,.0f} GB/s"
    estimate = plain_us(tokens(rows))[thread(rows)]
    launches = f"{fused:,.0f} µs + {shape.layers} layers × {launched()[1]} launches × {links.LAUNCH_US:g} µs"
    sums = f"{size / 2e6:,.0f} MB ÷ {rate} + {2 * shape.layers} sums × {each:.2f} µs"
    lines = [
        ("One GPU: bound", f"{size / 1e6:,.0f} MB ÷ {rate}", alone, np.nan),
        ("Two: bound, all launches hidden", sums, fused, alone / fused),
        ("Two: estimate by plain launches", launches, estimate, alone / estimate),
    ]
    columns = {"line": "Prediction", "how": "Arithmetic", "us": "A token (µs)", "gain": "Gain over one GPU"}
    forms = {"line": "", "how": "", "us": "{:,.0f}", "gain": "{:.2f}"}
    title = f"{thread(rows)}, predicted: a token by the fused way"
    display.table(pd.DataFrame(lines, columns=list(columns)), columns, forms, title)


def measured(rows: Rows) -> None:
    """Show what the same model takes beside its predictions, and say what is left."""
    mine = _model(rows)
    if mine.empty:
        return
    estimate = float(plain_us(tokens(rows))[thread(rows)])
    us, bound = mine["median_us"], mine["predicted_us"]
    layers = model_shapes.get(str(mine["model"].iloc[0])).layers
    ways = (
        (links.ALONE, "One GPU, its bound", bound.get(links.ALONE, np.nan)),
        (split.FUSED_PLAIN, "Two by plain launches, their estimate", estimate),
        (split.FUSED, "Two with overlap, their bound", bound[split.FUSED]),
    )
    lines = [
        {
            "line": says,
            "said": said,
            "got": us[impl],
            "more": (us[impl] - said) / layers,
            "gain_said": bound.get(links.ALONE, np.nan) / said if impl != links.ALONE else np.nan,
            "gain": mine["gain"][impl] if impl != links.ALONE else np.nan,
        }
        for impl, says, said in ways
        if impl in mine.index
    ]
    columns = {"line": "Way and its prediction", "said": "Predicted (µs)", "got": "Measured (µs)"}
    columns |= {"more": "More, in each layer (µs)", "gain_said": "Gain, predicted", "gain": "measured"}
    forms = {"line": "", "said": "{:,.0f}", "got": "{:,.0f}", "more": "{:.1f}"}
    forms |= dict.fromkeys(("gain_said", "gain"), "{:.2f}")
    display.table(pd.DataFrame(lines), columns, forms, f"{thread(rows)}, predicted and measured")
    display.say(_left(rows, mine, (us[split.FUSED] - bound[split.FUSED]) / layers))


def _left(rows: Rows, mine: Rows, more: float) -> str:
    """What is left above the bound with overlap, and how much of it hand-overs explain."""
    launches = launched()[1]
    if more <= 0:
        return "With overlap nothing is left above the bound."
    text = (
        f"**With overlap {more:.1f} µs a layer are left above the bound**, {more / launches:.1f} for each of "
        f"the {launches} kernels."
    )
    width = model_shapes.get(str(mine["model"].iloc[0])).hidden
    charged, alone = split.sum_us(split.FUSED, 2 * width, 2), lesson_10c_handover.alone_us(rows, width)
    explained = 2 * (alone - charged)
    if 0 < explained < more:
        text += (
            f" The bound charges a sum {charged:.2f} µs; timed alone, with its norm, it takes {alone:.2f}. "
            f"Two of them explain up to {explained:.1f} of the {more:.1f} µs. The rest is products, "
            "attention and waits; they were not timed one by one."
        )
    return text
