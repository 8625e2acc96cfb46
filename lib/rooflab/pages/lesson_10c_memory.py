"""What lesson 10c says of memory: what a model puts on each GPU, beside what the recorded GPU has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.records.case import is_blank
from rooflab.studies import split
from rooflab.view import display, plot
from rooflab.words import FORMATS, listed

CONTEXT = 8192  # tokens in the KV cache that is counted
SIZES_GB = (24, 80)  # memories of other GPUs: an RTX 4090's or L4's, an A100's or H100's


def capacity_gb(run: Any) -> float:
    """A GPU's memory in 10^9 bytes: what the driver reported in the run, else the datasheet's; or NaN."""
    if not is_blank(run["memory_bytes"]):
        return float(run["memory_bytes"]) / 1e9
    spec = device.match(str(run["gpu"]))
    return float(spec.memory_gb) if spec else float("nan")


def weights_gb(model: str, format: str, gpus: int = 1) -> float:
    """Weights that a GPU holds, in 10^9 bytes: its share of the layers, and embedding and head whole."""
    return model_shapes.held_bytes(model_shapes.get(model), format, split.HEAD, gpus) / 1e9


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


def _from(run: Any, held_gb: float) -> str:
    """A GPU's memory, with who says so."""
    if is_blank(run["memory_bytes"]):
        return f"the {held_gb:g} GB that the datasheet promises"
    return f"the {held_gb:.1f} GB ({held_gb * 1e9 / 2**30:.1f} GiB) that the driver reports"


def short(kinds: Iterable[tuple[str, str]], held_gb: float) -> dict[str, float]:
    """The models, in words, that need more than one GPU of that memory, with how many; NaN for over eight."""
    found = {f"{model} in {FORMATS[format]}": needed(model, format, held_gb) for model, format in kinds}
    return {name: gpus for name, gpus in found.items() if gpus != 1}


def many(gpus: float) -> str:
    """A number of GPUs in a sentence."""
    return {2: "two", 4: "four", 8: "eight"}.get(int(gpus) if gpus == gpus else 0, "more than eight")


def _needing(found: dict[str, float]) -> str:
    """Which models need how many GPUs: "a needs two and b eight"."""
    said = [f"{name} {'' if k else 'needs '}{many(gpus)}" for k, (name, gpus) in enumerate(found.items())]
    return listed(said)


def needs(rows: Rows, run: Any) -> str:
    """In a sentence, after a space: which models need several such GPUs for memory; "" where none does."""
    held_gb = capacity_gb(run)
    found = rows[rows["operator"] == "decode"]
    kinds = list(dict.fromkeys(zip(found["model"], found["format"], strict=True)))
    if held_gb != held_gb:
        return ""
    if more := short(kinds, held_gb):
        others = "; the second GPU of the others is for speed alone" if len(more) < len(kinds) else ""
        return f" For memory {_needing(more)}{others}."
    return ""


def _others(held_gb: float) -> list[int]:
    """The sizes of other GPUs' memories that are not about this one's."""
    return [gb for gb in SIZES_GB if not 0.9 < held_gb / gb < 1.1]


def _told(table: pd.DataFrame, kinds: list[tuple[str, str]], run: Any, held_gb: float) -> str:
    """Which models need several such GPUs for their memory, what the largest takes, and which need several of
    other sizes.
    """
    gpu = run["gpu"]
    if held_gb != held_gb:
        return f"How much memory the {gpu} has is not recorded."
    more = short(kinds, held_gb)
    text = f"**{_needing(more)} {gpu}s for {'its' if len(more) == 1 else 'their'} memory**"
    text = text if more else f"**None of these models needs two {gpu}s for its memory**"
    k = int(table["1"].to_numpy().argmax())
    most, (model, _) = table.iloc[k], kinds[k]
    each = model_shapes.kv_bytes_per_token(model_shapes.get(model)) / 1e6
    text += (
        f", by arithmetic. {most['title']} is the largest: {most['1']:.1f} GB of weights and "
        f"{most['cache']:.1f} of KV cache ({CONTEXT:,} tokens of {each:.2f} MB), of {_from(run, held_gb)}."
    )
    for gb in _others(held_gb):
        found = short(kinds, gb)
        text += f" With {gb} GB a GPU {_needing(found) if found else 'each needs one'}."
    return text


def _inside(ax: Any, line: float) -> None:
    """Move the numbers of bars that end just before a vertical line into their bars: behind the line they
    would read as above it.
    """
    most = ax.get_xlim()[1]
    for text in ax.texts:
        at = text.get_position()[0]
        if (
            text.get_gid() != "roof"
            and at < line + most / 100
            and line < at + 0.015 * most * len(text.get_text())
        ):
            text.set(x=at - 2 * most / 100, ha="right", bbox={"fc": "white", "ec": "none", "pad": 0.8})


def memory(rows: Rows, here: Lab) -> None:
    """Draw what each model puts on a GPU, alone and with another, beside this GPU's memory and others'; say
    which models need several; the numbers in a fold.
    """
    run = here.run_of("split")
    held_gb, gpu = capacity_gb(run), run["gpu"]
    found = rows[rows["operator"] == "decode"]
    kinds = list(dict.fromkeys(zip(found["model"], found["format"], strict=True)))
    table = pd.DataFrame({"title": [f"{model} in {FORMATS[format]}" for model, format in kinds]})
    for gpus in (1, 2, 4):
        table[str(gpus)] = [weights_gb(*kind, gpus) for kind in kinds]
    table["cache"] = [cache_gb(model) for model, _ in kinds]
    table["needs"] = [needed(*kind, held_gb) for kind in kinds]
    display.say(_told(table, kinds, run, held_gb))
    caption = "Weights and a KV cache in a GPU's memory"
    fig, ax = plot.figure("GB", title=caption, height=1.3 + 0.4 * len(table))
    sums = {
        says: [weights_gb(*kind, gpus) + cache_gb(kind[0], gpus=gpus) for kind in kinds]
        for gpus, says in ((1, "one GPU"), (2, "each of two"))
    }
    most = float(np.nanmax([held_gb, *sums["one GPU"]]))
    plot.grouped(ax, list(table["title"]), sums, most=1.15 * most, form=".1f", shades=("#CFCFCF", "#56B4E9"))
    ends = _others(held_gb)
    for gb, label in [*((gb, f"{gb} GB") for gb in ends), (held_gb, f"this GPU, {held_gb:.1f} GB")]:
        if gb == gb and gb < 1.15 * most:
            plot.roof_line(ax, gb, label, vertical=True)
            _inside(ax, gb)
    told = f"{caption}, by their sizes: a cache of {CONTEXT:,} tokens in FP16. "
    plot.show(fig, f"{told}Dashed: memories of {listed(f'{gb} GB' for gb in ends)}, and of the {gpu}.")
    columns = {"title": "Model", "1": "Weights on one GPU (GB)", "2": "On each of two"}
    columns |= {"4": "On each of four", "cache": f"KV cache, {CONTEXT:,} tokens (GB)"}
    columns |= {"needs": f"GPUs needed, of {held_gb:.1f} GB"}
    forms = dict.fromkeys(("1", "2", "4", "cache"), "{:.1f}") | {"title": "", "needs": "{:.0f}"}
    for gb in ends:
        table[f"of {gb}"] = [needed(*kind, gb) for kind in kinds]
        columns |= {f"of {gb}": f"Of {gb} GB"}
        forms |= {f"of {gb}": "{:.0f}"}
    display.table(table, columns, forms, "The figures, and the GPUs that each model needs", folded=True)
