"""What lesson 10c says of memory: what a model puts on each GPU, beside what the recorded GPU has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.records.case import is_blank
from rooflab.studies import links, split
from rooflab.view import display, plot
from rooflab.words import FORMATS, listed

CONTEXT = 8192  # tokens in the KV cache that is counted


def capacity_gb(run: Any) -> float:
    """A GPU's memory in 10^9 bytes: what the driver reported in the run, else the datasheet's; or NaN."""
    if not is_blank(run["memory_bytes"]):
        return float(run["memory_bytes"]) / 1e9
    spec = device.match(str(run["gpu"]))
    return float(spec.memory_gb) if spec else float("nan")


def weights_gb(model: str, format: str, gpus: int = 1) -> float:
    """Weights that a GPU holds, in 10^9 bytes: its share of the layers, and embedding and head whole."""
    shape = model_shapes.get(model)
    head = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[split.HEAD]
    body = model_shapes.weight_bytes(shape, format, split.HEAD) - head
    return float(body / gpus + (1 if shape.tied else 2) * head) / 1e9


def cache_gb(model: str, tokens: int = CONTEXT, gpus: int = 1) -> float:
    """The KV cache of so many tokens in FP16, in 10^9 bytes; key and value heads are shared out."""
    return model_shapes.kv_bytes_per_token(model_shapes.get(model)) * tokens / gpus / 1e9


def activations_gb(model: str) -> float:
    """About what the activations of one token take, in 10^9 bytes: rows of FP32 for the logits, the MLP's two
    inner rows and four of the model's width.
    """
    shape = model_shapes.get(model)
    return 4 * (shape.vocab + 2 * shape.mlp + 4 * shape.hidden) / 1e9


def left_gb(model: str, format: str, held_gb: float, gpus: int = 1) -> float:
    """What the weights of a model leave of a GPU's memory."""
    return held_gb - weights_gb(model, format, gpus)


def needed(model: str, format: str, held_gb: float) -> float:
    """The least number of GPUs that hold a model's weights, a cache of CONTEXT tokens and a token's
    activations; NaN for more than eight.
    """
    for gpus in (1, 2, 4, 8):
        room = left_gb(model, format, held_gb, gpus)
        if room > cache_gb(model, gpus=gpus) + activations_gb(model):
            return gpus
    return float("nan")


def _from(run: Any) -> str:
    """Who says so of the memory."""
    return " by the datasheet" if is_blank(run["memory_bytes"]) else " as the driver reports it"


def _told(table: pd.DataFrame, kinds: list[tuple[str, str]], gpu: Any, held_gb: float) -> str:
    """Which models one GPU would hold, how near the largest comes, and which were timed on two alone."""
    if held_gb != held_gb:
        return f"How much memory the {gpu} has is not recorded."
    fits = table["needs"] == 1
    text = (
        f"**Each fits one {gpu}**"
        if fits.all()
        else f"**{listed(table['title'][~fits])} {'fits' if (~fits).sum() == 1 else 'fit'} no single {gpu}**"
    )
    k = int(table["1"].to_numpy().argmax())
    most, (model, _) = table.iloc[k], kinds[k]
    each = model_shapes.kv_bytes_per_token(model_shapes.get(model)) / 1e6
    far = (
        f"leave {most['left']:.1f} of its" if most["left"] >= 0 else f"are {-most['left']:.1f} more than its"
    )
    text += f", by arithmetic: the {most['1']:.1f} GB of weights of {most['title']} {far} {held_gb:.1f} GB "
    text += f"({held_gb * 1e9 / 2**30:.0f} GiB). "
    text += (
        f"The KV cache takes {each:.2f} MB a token of context, so {most['cache']:.1f} GB for {CONTEXT:,}; "
    )
    text += f"the activations of one token take about {1e3 * activations_gb(model):.1f} MB."
    lost = table["title"][fits & ~table["alone"]]
    if len(lost):
        spec = device.match(str(gpu))
        sheet = (
            f", planned by the datasheet's {spec.memory_gb:g} GB,"
            if spec and spec.memory_gb < held_gb
            else ""
        )
        text += f"\n\n**{listed(lost)} was not timed on one GPU**: the study{sheet} leaves that case out. "
        text += "Whether the engine, which also needs room to pack weights, starts in what is left is not "
        text += "known."
    return text


def memory(rows: Rows, here: Lab) -> None:
    """Draw what each model puts on a GPU, alone and with another, beside the GPU's memory; say which models
    one GPU would hold, and which of these were not timed on one; the numbers in a fold.
    """
    run = here.run_of("split")
    held_gb, gpu = capacity_gb(run), run["gpu"]
    found = rows[rows["operator"] == "decode"]
    kinds = list(dict.fromkeys(zip(found["model"], found["format"], strict=True)))
    timed = found[found["impl"] == links.ALONE]
    alone = set(zip(timed["model"], timed["format"], strict=True))
    table = pd.DataFrame({"title": [f"{model} in {FORMATS[format]}" for model, format in kinds]})
    for gpus in (1, 2, 4):
        table[str(gpus)] = [weights_gb(*kind, gpus) for kind in kinds]
    table["cache"] = [cache_gb(model) for model, _ in kinds]
    table["left"] = [left_gb(*kind, held_gb) for kind in kinds]
    table["needs"] = [needed(*kind, held_gb) for kind in kinds]
    table["alone"] = [kind in alone for kind in kinds]
    display.say(_told(table, kinds, gpu, held_gb))
    caption = "Weights and a KV cache in a GPU's memory"
    fig, ax = plot.figure("GB", title=caption, height=1.3 + 0.4 * len(table))
    sums = {
        says: [weights_gb(*kind, gpus) + cache_gb(kind[0], gpus=gpus) for kind in kinds]
        for gpus, says in ((1, "one GPU"), (2, "each of two"))
    }
    most = float(np.nanmax([held_gb, *sums["one GPU"]]))
    plot.grouped(ax, list(table["title"]), sums, most=1.15 * most, form=".1f")
    if held_gb == held_gb:
        plot.roof_line(ax, held_gb, f"{held_gb:.1f} GB", vertical=True)
        plot.off_the_line(ax, held_gb)
    plot.show(
        fig,
        f"{caption}, {gpu}, by their sizes: a cache of {CONTEXT:,} tokens in FP16. Dashed: the GPU's memory, "
        f"{held_gb:.1f} GB{_from(run)}.",
    )
    columns = {"title": "Model", "1": "Weights on one GPU (GB)", "2": "On each of two"}
    columns |= {"4": "On each of four", "cache": f"KV cache, {CONTEXT:,} tokens (GB)"}
    columns |= {"left": "One GPU has left, before the cache (GB)", "needs": "GPUs needed"}
    forms = dict.fromkeys(("1", "2", "4", "cache", "left"), "{:.1f}") | {"title": "", "needs": "{:.0f}"}
    display.table(table, columns, forms, f"Memory; {gpu}: {held_gb:.1f} GB", folded=True)
