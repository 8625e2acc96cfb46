"""What lesson 02c says of many tokens at once: what bounds a prompt's products, and attention's share."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import time_breakdown
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.numerics.model_shapes import Model
from rooflab.pages import Rows
from rooflab.pages.lesson_02b import fp16_peak
from rooflab.view import display


def prefill(trace: Rows, busy: Rows, model: Model, here: Lab) -> None:
    """Fold what bounds a prompt's products, and attention's share of its time beside that of the FLOPs;
    `busy` is by prompt.
    """
    gpu, ridge = here.run.gpu, roofline.ridge(here.roof["dram_read"].value, fp16_peak(here))
    shared = time_breakdown.by_class(trace[trace.operator == "prefill"])
    split = shared.pivot_table("pct", "seq", "class", fill_value=0)
    whole = pd.Series({n: model_shapes.prefill_flops(model, n) for n in split.index})
    linear = 2 * (model_shapes.body(model) * split.index + model_shapes.head(model))
    split["flops"] = 100 * (1 - linear / whole)
    split["rest"] = 100 - split.weight - split.attention
    split["busy"] = busy.busy_pct
    split["intensity"] = [_intensity(model, n) for n in split.index]
    ends = f"{split.attention.iloc[0]:.0f}% of the GPU's time at {split.index[0]:,} tokens and "
    ends += f"{split.attention.iloc[-1]:.0f}% at {split.index[-1]:,}"
    lines = [
        "The rule is for one token at a time. A prompt's tokens go through the model together (*prefill*), "
        f"so each weight is used for all of them. {_sides(split.intensity, ridge)}",
        "Attention's work grows with the square of the prompt's length, all other work in proportion to it. "
        f"Here attention takes {ends}.",
    ]
    display.fold_items("Many tokens at once: what bounds the products, and what attention takes", lines)
    heads = {"seq": "tokens", "flops": "attention, % of FLOPs (predicted)"}
    heads |= {"attention": "attention, % of GPU time", "weight": "products, %"}
    heads |= {"rest": "all else, %", "busy": "GPU busy, %", "intensity": "products, FLOP per byte"}
    forms = dict.fromkeys(list(heads)[1:], "{:.0f}") | {"seq": "{:,}"}
    title = f"Prefill of {model.name}, eager, {gpu}, beside the predicted FLOPs"
    display.table(split.reset_index(), heads, forms, title, folded=True)


def _intensity(model: Model, tokens: int) -> float:
    """FLOP for each byte of the products of one layer with so many tokens."""
    layer = [each for each in model_shapes.projections(model) if each.times == model.layers]
    flops = sum(roofline.gemm_flops(tokens, each.n, each.k) for each in layer)
    return flops / sum(roofline.gemm_bytes(tokens, each.n, each.k, 2) for each in layer)


def _sides(intensity: Rows, ridge: float) -> str:
    """From which prompt on arithmetic bounds the products, by the ridge; `intensity` is by tokens."""
    text = f"A layer's products do {intensity.iloc[0]:,.0f} FLOP for each byte with {intensity.index[0]:,} "
    text += f"tokens; the ridge lies at {ridge:.0f}. "
    right = intensity.index[intensity > ridge]
    if not len(right):
        return f"{text}So memory still bounds them with every prompt here."
    if len(right) == len(intensity):
        return f"{text}So the tensor cores bound them, not the memory."
    return f"{text}So memory still bounds them there, and the tensor cores from {right[0]:,} tokens on."
