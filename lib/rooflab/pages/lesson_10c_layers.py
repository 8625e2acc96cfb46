"""What lesson 10c says of a layer on two GPUs: its time above the bound, and what the fused way saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_10c import WAYS, tokens
from rooflab.pages.lesson_10c_handover import INSIDE
from rooflab.studies import links, split
from rooflab.view import display
from rooflab.view.diagram import handovers
from rooflab.words import listed


def excess(rows: Rows, gpu: Any) -> None:
    """Say what the fused way saves a layer and what its changes could save by their own measure, in a table;
    what each model's layers take above their bound, folded; and what is open.
    """
    found = _layers(rows)
    separate, inside = (len(row) for row in handovers.by_way().values())
    usual, few = _usual(found.set_index("title")["saved"].sort_values())
    display.say(
        f"On the {gpu} {WAYS[split.FUSED]} saves {_of_models(usual, few)}, against {WAYS[split.SEPARATE]}. "
        "**It changes three things at once**: sums move into norms, launches become dependent ones and fewer "
        f"({inside} in the place of {separate}), and the head is split. Nothing was timed with one or two of "
        f"them. {_by_elimination(found, rows)}What two of them could save, by a measure of their own, in µs "
        "a layer:"
    )
    _shares(found, rows)
    columns = {
        "title": "Model",
        "bound": "Bound, the fused way",
        "over": "Above it",
        "share": "Share of the bound",
    }
    columns |= {"alone": "One GPU, above its bound", "saved": "Saved by the fused way"}
    forms = dict.fromkeys(("bound", "over", "alone", "saved"), "{:.1f}") | {"share": "{:.0%}"}
    table = found.sort_values("share").reset_index(drop=True)
    caption = "µs a layer on two GPUs, farthest from its bound first; the head's time is shared among layers"
    display.fold("Above the bound, by model", [(table, columns, {"title": "", **forms}, caption)])
    display.say("\n".join(f"- {line}" for line in [*_farthest(table), *_open(few)]))


def _by_elimination(found: Rows, rows: Rows) -> str:
    """Which part of the saving neither sums nor head can be, over the models that save much; "" if small."""
    table = _with_rest(found, rows)
    usual, _ = _usual(table.set_index("title")["saved"].sort_values())
    mine = table[table["title"].isin(usual.index)]
    part = (mine["rest"] / mine["saved"]).dropna()
    if part.empty or part.min() < 0.5:
        return ""
    return (
        f"By elimination it is mostly the launches: {part.min():.0%} to {part.max():.0%} of the saving is "
        "more than sums and head could bring. "
    )


def _with_rest(found: Rows, rows: Rows) -> Rows:
    """With columns sums and rest: what two sums could save of a layer, and what is left beside the head."""
    table = found.assign(sums=[_sums_us(rows, str(model)) for model in found["model"]])
    return table.assign(rest=table["saved"] - table["head"] - table["sums"].fillna(0.0))


def _shares(found: Rows, rows: Rows) -> None:
    """A table of what the fused way saves a layer, what sums and head could save of it, and the rest."""
    table = _with_rest(found, rows)
    columns = {"title": "Model", "saved": "Saved, measured", "sums": "Two sums, by the hand-overs"}
    columns |= {"head": "Half a head, by its bytes", "rest": "The rest, not measured apart"}
    forms = {"title": "", **dict.fromkeys(("saved", "sums", "head", "rest"), "{:.1f}")}
    caption = "µs a layer; a head's half, read once a token, is shared among the layers"
    display.table(table.sort_values("saved", ascending=False).reset_index(drop=True), columns, forms, caption)


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
        text += f". In µs a layer {over['title']} is farthest: {over['over']:.0f} above it"
    by = table.pivot(index="model", columns="format", values="over")
    if not {"fp16", "int4_g128"} <= set(by):
        return [f"{text}."]
    more = (by["int4_g128"] - by["fp16"]).dropna()
    pairs = [f"{us:+.0f} µs".replace("-", "−") + f" for {name}" for name, us in more.items()]
    if not pairs:
        return [f"{text}."]
    beyond = f"Time above the bound, an INT4 layer's less an FP16 layer's: {listed(pairs)}."
    least, packed = table.loc[table["bound"].idxmin()], table[table["format"] == "int4_g128"]
    if (more > 0).all() and least["format"] == "fp16" and least["over"] < packed["over"].min():
        beyond += f" Few bytes do not explain it: {least['title']} has the fewest, a bound of "
        beyond += f"{least['bound']:.0f} µs a layer, and takes {least['over']:.0f} more than that."
    return [f"{text}.", f"{beyond} What the time goes into was not counted."]


def _sums_us(rows: Rows, model: str) -> float:
    """Microseconds that the two fused sums of a layer save, by the hand-over measured nearest to a model's
    width; or NaN.
    """
    found = rows[rows["operator"] == split.FUSED]
    by = found.set_index(["n", "impl"])["median_us"].unstack() if len(found) else found
    if not {split.SEPARATE, INSIDE} <= set(by):
        return float("nan")
    saved = 2 * (by[split.SEPARATE] - by[INSIDE]).dropna()
    width = model_shapes.get(model).hidden
    return float(saved[min(saved.index, key=lambda n: abs(n - width))]) if len(saved) else float("nan")


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
    verb = "is" if len(lost) == 1 else "are"
    said = f" {listed(lost)} {verb} slower on two with NCCL, whole heads and plain launches." if lost else ""
    display.say(
        f"- On two GPUs ({gpu}) a token is {fused['gain'].min():.2f} to {fused['gain'].max():.2f} times as "
        f"fast as on one, by {WAYS[split.FUSED]}.{said}\n"
        "- Put an exchange into the kernel that needs it, let launches overlap, split the head. "
        f"{_all(rows)}\n"
        "- A token exchanges a few KiB a layer, so latency decides; a prompt exchanges thousands of rows, so "
        "the link's rate does."
    )


def _all(rows: Rows) -> str:
    """What the three changes save a layer together, and what sums and head could save of it."""
    found = _layers(rows)
    usual, few = _usual(found.set_index("title")["saved"].sort_values())
    text = f"Together they save {_of_models(usual, few, '.0f')}"
    text += f" ({_little(few)})" if len(few) else ""
    sums = pd.Series([_sums_us(rows, str(model)) for model in found["model"]]).dropna()
    parts = [f"the sums could save {_ends(sums)}"] if len(sums) else []
    parts.append(f"the split head {'' if parts else 'could save '}{_ends(found['head'])}")
    return f"{text}. Of it, by measures of their own, {' and '.join(parts)}; the rest was not measured apart."


def _ends(us: Rows) -> str:
    """A range in whole microseconds, or the one number."""
    low, high = f"{us.min():.0f}", f"{us.max():.0f}"
    return f"{low} µs" if low == high else f"{low} to {high} µs"
