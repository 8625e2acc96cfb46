"""One model worked out for lesson 10c: its bound, and what is left above it."""

from __future__ import annotations

import numpy as np

from rooflab.numerics import model_shapes
from rooflab.pages import Rows, lesson_10c_handover
from rooflab.pages.lesson_10c import launched, thread, tokens
from rooflab.studies import links, split
from rooflab.view import display


def _model(rows: Rows) -> Rows:
    """The rows of a token of the model that is worked out, by contestant; empty without one."""
    found = tokens(rows)
    return found[found["title"] == thread(rows)].set_index("impl")


def predicted(rows: Rows) -> None:
    """Work out the bounds of one model, on one GPU and on two, and the gain that they promise."""
    mine = _model(rows)
    us = mine["predicted_us"].reindex([links.ALONE, split.FUSED]).tolist() if len(mine) else [np.nan]
    if any(each != each for each in us):
        return
    alone, fused = us
    name, format = (str(mine[of].iloc[0]) for of in ("model", "format"))
    shape = model_shapes.get(name)
    size = model_shapes.weight_bytes(shape, format, split.HEAD)
    each, rate = split.sum_us(split.FUSED, 2 * shape.hidden, 2), f"{size / alone / 1e3:,.0f} GB/s"
    display.say(
        f"- {thread(rows)}, one GPU: {size / 1e6:,.0f} MB ÷ {rate} = {alone:,.0f} µs a token\n"
        f"- two: {size / 2e6:,.0f} MB ÷ {rate} + {2 * shape.layers} sums × {each:.2f} µs = {fused:,.0f} µs, "
        f"{alone / fused:.2f} times as fast"
    )


def left(rows: Rows) -> str:
    """What is left above the bound of the same model, and how much of it hand-overs explain; or ""."""
    mine = _model(rows)
    if split.FUSED not in mine.index:
        return ""
    us, bound = (float(mine[of][split.FUSED]) for of in ("median_us", "predicted_us"))
    return _left(rows, mine, (us - bound) / model_shapes.get(str(mine["model"].iloc[0])).layers)


def _left(rows: Rows, mine: Rows, more: float) -> str:
    """What is left above the bound with overlap, and how much of it hand-overs explain."""
    launches = launched()[1]
    if more <= 0:
        return f"On {thread(rows)} nothing is left above the bound with overlap."
    text = (
        f"On {thread(rows)} {more:.1f} µs a layer are left above the bound with overlap, "
        f"{more / launches:.1f} for each of the {launches} kernels."
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
