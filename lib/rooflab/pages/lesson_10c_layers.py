"""What lesson 10c says of a layer on two GPUs: its time above the bound, and what the fused way saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_10c import WAYS, tokens
from rooflab.studies import links, split
from rooflab.view import display
from rooflab.view.diagram import handovers
from rooflab.words import listed


def excess(rows: Rows, gpu: Any) -> None:
    """Show what each model's layers take above their bound, and say what the fused way saves of it."""
    found = _layers(rows)
    columns = {
        "title": "Model",
        "bound": "Bound, the fused way",
        "over": "Above it",
        "share": "Share of the bound",
    }
    columns |= {"alone": "One GPU, above its bound", "saved": "Saved by the fused way"}
    forms = dict.fromkeys(("bound", "over", "alone", "saved"), "{:.1f}") | {"share": "{:.0%}"}
    table = found.sort_values("share").reset_index(drop=True)
    display.table(table, columns, {"title": "", **forms}, "µs a layer on two GPUs; the head's time included")
    separate, inside = (len(row) for row in handovers.by_way().values())
    usual, few = _usual(found.set_index("title")["saved"].sort_values())
    lines = [
        *_farthest(table),
        f"On the {gpu} {WAYS[split.FUSED]} saves {_of_models(usual, few)}, against our kernel between two "
        f"others: {inside} launches in the place of {separate}, and each starts while its predecessor runs."
        f"{_parts(rows)}",
        *_open(few),
    ]
    display.say("\n".join(f"- {line}" for line in lines))


def _layers(rows: Rows) -> Rows:
    """One row a model, in µs a layer: bound and time above it by the fused way, its share of the bound, time
    above the bound on one GPU, and what the fused way saves beside our kernel between two others.
    """
    found = tokens(rows)
    us, bound = (found.pivot_table(of, "title", "impl", sort=False) for of in ("median_us", "predicted_us"))
    first = found.drop_duplicates("title").set_index("title").loc[us.index]
    layers = np.array([model_shapes.get(str(model)).layers for model in first["model"]])
    over = (us - bound).div(layers, axis=0)
    table = {
        "model": first["model"],
        "format": first["format"],
        "bound": bound[split.FUSED] / layers,
        "over": over[split.FUSED],
        "share": bound[split.FUSED] / us[split.FUSED],
        "alone": over[links.ALONE],
        "saved": (us[split.SEPARATE] - us[split.FUSED]) / layers,
        "head": (bound[split.SEPARATE] - bound[split.FUSED]) / layers - _kernels_us(first["model"]),
    }
    return pd.DataFrame(table).rename_axis("title").reset_index()


def _kernels_us(models: Rows) -> Any:
    """Microseconds a layer by which the law has two sums inside norms cheaper than two of their own."""
    sizes = [2 * model_shapes.get(str(model)).hidden for model in models]
    return np.array(
        [2 * (split.sum_us(split.SEPARATE, n, 2) - split.sum_us(split.FUSED, n, 2)) for n in sizes]
    )


def _of_models(usual: Rows, few: Rows, form: str = ".1f") -> str:
    """The range that the fused way saves a layer, and for how many models, where it is not for all."""
    said = f"{usual.iloc[0]:{form}} to {usual.iloc[-1]:{form}} µs a layer"
    return f"{said} on {len(usual)} of {len(usual) + len(few)} models" if len(few) else said


def _usual(saved: Rows) -> tuple[Rows, Rows]:
    """Microseconds a layer saved by model, in order: of most models, and of those that save far less."""
    few = saved[saved < 0.5 * saved.median()] if saved.median() > 0 else saved[:0]
    return saved.drop(few.index), few


def _farthest(table: Rows) -> list[str]:
    """Which models are farthest from their bound, by both measures, and whether INT4 weights are."""
    share, over = table.loc[table["share"].idxmin()], table.loc[table["over"].idxmax()]
    text = f"{share['title']} is farthest from its bound, at {share['share']:.0%} of it"
    text += f", {share['over']:.0f} µs a layer above it"
    if over["title"] != share["title"]:
        text += f"; most microseconds a layer are lost by {over['title']}: {over['over']:.0f}"
    by = table.pivot(index="model", columns="format", values="over")
    if not {"fp16", "int4_g128"} <= set(by):
        return [f"{text}."]
    more = (by["int4_g128"] - by["fp16"]).dropna()
    pairs = [f"{abs(us):.0f} µs {'more' if us > 0 else 'less'} in {name}" for name, us in more.items()]
    if not pairs:
        return [f"{text}."]
    beyond = f"Beyond its bound an INT4 layer takes, beside the FP16 layer of its model, {listed(pairs)}."
    least, packed = table.loc[table["bound"].idxmin()], table[table["format"] == "int4_g128"]
    if (more > 0).all() and least["format"] == "fp16" and least["over"] < packed["over"].min():
        beyond += f" That a layer has little to read does not explain it: {least['title']} has the least, a "
        beyond += f"bound of {least['bound']:.0f} µs, and takes {least['over']:.0f} more."
    return [f"{text}.", f"{beyond} What the time goes into was not counted."]


def _fused_sums(rows: Rows) -> float:
    """Microseconds that the two fused sums of a layer save, by the hand-overs measured alone; or NaN."""
    found = rows[rows["operator"] == split.FUSED]
    by = found.set_index(["n", "impl"])["median_us"].unstack() if len(found) else found
    if not {split.SEPARATE, "1_pdl"} <= set(by):
        return float("nan")
    return 2 * float((by[split.SEPARATE] - by["1_pdl"]).median())


def _parts(rows: Rows) -> str:
    """What the two sums of a layer save, measured alone, and half a head by its bytes; what is the rest."""
    saved, head = _fused_sums(rows), _layers(rows)["head"]
    said = f" Half a head, once a token, is {head.min():.0f} to {head.max():.0f} µs of it by its bytes"
    if saved != saved:
        return f"{said}; the rest was not measured apart."
    said += f", and the two fused sums are about {saved:.0f}, by the hand-overs above"
    return f"{said}; the rest is launches that overlap, which were not measured apart."


def _open(few: Rows) -> list[str]:
    """The models whose layers save far less, by the microseconds a layer: what was not explained."""
    if few.empty:
        return []
    return [f"Open: {_little(few)} a layer, although the same launches are spared. Why was not found."]


def _little(few: Rows) -> str:
    """What each of the models that save far less saves or loses, in microseconds."""
    return listed(
        f"{name} saves {us:.1f} µs" if us > 0 else f"{name} loses {-us:.1f} µs" for name, us in few.items()
    )


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    found = tokens(rows)
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    nccl = found[(found["impl"] == links.NCCL) & found["gain"].notna()]
    lost = list(nccl.loc[nccl["gain"] < 1, "title"])
    said = f"With NCCL {listed(lost)} would be slower on two than on one." if lost else ""
    display.say(
        f"- On two GPUs ({gpu}) a token is {fused['gain'].min():.2f} to {fused['gain'].max():.2f} times as "
        f"fast as on one, by {WAYS[split.FUSED]}. {said}\n"
        f"- Put an exchange into the kernel that needs its result, and let launches overlap.{_most(rows)}\n"
        "- A token exchanges a few KiB a layer, so latency decides; a prompt exchanges thousands of rows, so "
        "the link's rate does."
    )


def _most(rows: Rows) -> str:
    """What a layer saves, and that the fused sums are the smaller part of it, where they are."""
    sums = _fused_sums(rows)
    usual, few = _usual(_layers(rows).set_index("title")["saved"].sort_values())
    if not sums < 0.5 * usual.iloc[0]:
        return ""
    text = f" It saves {_of_models(usual, few, '.0f')}"
    text += f" ({_little(few)})" if len(few) else ""
    return f"{text}; the sums are about {sums:.0f} of it: overlap and the split head bring most."
