"""What lesson 10c says of a layer on two GPUs: its time above the bound, and what the fused way saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows, four_gpus, lesson_10c_worked
from rooflab.pages.lesson_10c import WAYS, launched, thread, tokens
from rooflab.pages.lesson_10c_handover import INSIDE
from rooflab.studies import links, split
from rooflab.view import display
from rooflab.words import listed


def half_a_head(rows: Rows) -> None:
    """Say what half the output head is worth, by its bytes."""
    table = _layers(rows).dropna(subset="head")
    if len(table):
        token = table["head"] * [model_shapes.get(str(model)).layers for model in table["model"]]
        display.say(
            f"**Half the output head saves {token.min():.0f} to {token.max():.0f} µs a token, "
            "by arithmetic**: the bytes that are not read, at the datasheet's bandwidth. Over the layers "
            f"that is {_span(table['head'])} µs each. Putting the shares together takes some of it back; it "
            "was not timed by itself."
        )


def excess(rows: Rows) -> None:
    """Show what the fused way saves one model, step by step; say what overlap saves on all, and on which
    other kernels cost as much; fold the estimates and what is left above the bound.
    """
    table = _with_rest(_layers(rows), rows).sort_values("saved", ascending=False).reset_index(drop=True)
    worked = _worked(rows, table)
    if len(worked):
        _ledger(rows, worked)
    display.say(f"{_overlap(table)}{_undone_by_kernels(table)}")
    notes = [lesson_10c_worked.left(rows), _beyond_launches(table)]
    notes += [_estimates(rows, worked)] if len(worked) else []
    display.fold_parts(
        "What is left above the bound, and estimates of what each change saves",
        [*filter(None, notes), *_figures(table)],
    )


def _overlap(table: Rows) -> str:
    """What overlap saves of a layer."""
    timed = table.dropna(subset="overlap")
    if timed.empty:
        return "What the overlap saves was not timed by itself."
    saves = timed[timed["overlap"] > 0]
    text = f"**Overlap saves {_span(saves['overlap'])} µs a layer" if len(saves) else ""
    if len(saves) < len(timed):
        text = f"{text} on {len(saves)} of {len(timed)} models" if text else "**Overlap saves no time"
    return f"{text}**, measured against the same kernels by plain launches."


def _undone_by_kernels(table: Rows) -> str:
    """On which models the other changes cost as much as overlap saves, measured, and what can cost time."""
    text = ""
    for row in _undone(table.dropna(subset="overlap")).itertuples():
        text += (
            f" **{row.title} loses it again**: by plain launches the fused way takes {-row.other:.1f} µs a "
            f"layer longer than {WAYS[split.SEPARATE]}. Its other changes spare launches and bytes, so "
            "most likely the different kernels cost this; why was not timed."
        )
    return text


def _beyond_launches(table: Rows) -> str:
    """Whether overlap saves more than launches take, and what the rest may be."""
    launches, saves = launched()[1] * links.LAUNCH_US, table[table["overlap"] > 0]
    if saves.empty or not (saves["overlap"] > launches).all():
        return ""
    return (
        f"The overlap saves more than a layer's launches take, {launches:.1f} µs at the "
        f"{links.LAUNCH_US:g} assumed of each. The rest is most likely weights that a kernel fetches while "
        "its predecessor still runs; it was not timed by itself."
    )


def _worked(rows: Rows, table: Rows) -> Rows:
    """The row of the model that the page works out, if it saves time and hand-overs were timed; or none."""
    row = table[(table["saved"] > 0) & (table["sums"] > 0) & (table["title"] == thread(rows))]
    return row.set_index("title").iloc[0] if len(row) else pd.Series(dtype=object)


def _ledger(rows: Rows, row: Rows) -> None:
    """Show what the fused way saves one model, step by step."""
    found = tokens(rows)
    us = found[found["title"] == row.name].set_index("impl")["median_us"]
    layers = model_shapes.get(str(row["model"])).layers
    start, end = f"Lesson 10b's chain, {WAYS[split.SEPARATE]}", f"{WAYS[split.FUSED]}, with overlap"
    lines = [(f"{start} → {end}", split.SEPARATE, split.FUSED, row["saved"])]
    if row["overlap"] == row["overlap"]:
        plain = f"{WAYS[split.FUSED]} by plain launches"
        lines = [
            (f"{start} → {plain}", split.SEPARATE, split.FUSED_PLAIN, row["other"]),
            ("By plain launches → with overlap", split.FUSED_PLAIN, split.FUSED, row["overlap"]),
            ("Both steps", *lines[0][1:]),
        ]
    table = pd.DataFrame(
        [(step, f"{us[old]:,.0f} → {us[new]:,.0f}", saved) for step, old, new, saved in lines],
        columns=["step", "token", "saved"],
    )
    columns = {"step": "Step", "token": "A token (µs)", "saved": f"Saved in each of {layers} layers (µs)"}
    forms = {"step": "", "token": "", "saved": "{:.1f}"}
    display.table(table, columns, forms, f"{row.name}: what the fused way saves")


def _estimates(rows: Rows, row: Rows) -> str:
    """Where the estimates of one model's ledger come from."""
    shape, width = model_shapes.get(str(row["model"])), _nearest(rows, str(row["model"]))
    size = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[split.HEAD] / 2
    head = _layers(rows).set_index("title")["head"][row.name] * shape.layers
    separate, inside = launched()
    untimed = "" if width == shape.hidden else f" (its own width, {shape.hidden:,}, was not timed)"
    return (
        "The estimates below come from pieces timed alone, so “not saved” is what is left over, not a "
        f"measurement. For {row.name}, a layer: two sums {_signed(row['sums'])}, what two hand-overs "
        f"{width:,} wide{untimed} save in one kernel; {separate - inside - 2} other launches "
        f"{_signed(row['launches'])}, at {links.LAUNCH_US:g} assumed of each; half the output head "
        f"{_signed(row['head'])}, as {size / 1e6:,.0f} MB not read at {size / head / 1e3:,.0f} GB/s are "
        f"{head:,.0f} µs a token."
    )


def _price_by_format(table: Rows) -> list[str]:
    """Who saves more than estimated, and how much more different kernels cost in INT4 than in FP16."""
    timed = table.dropna(subset=["overlap", "lost"])
    said = [
        f"{row.title} saves {_signed(-row.lost)} µs a layer more than estimated: an estimate can err "
        "by as much."
        for row in _ahead(timed)
    ]
    by = timed.pivot(index="model", columns="format", values="lost")
    if {"fp16", "int4_g128"} <= set(by):
        more = (by["int4_g128"] - by["fp16"]).dropna()
        if len(more) and (more > 0).all():
            costs = listed(f"{us:.1f} µs a layer for {model}" for model, us in more.items())
            said.append(
                f"More is left over (“not saved”) in INT4 than in FP16: {costs}. Norms, sums, attention and "
                "output head do not depend on the format of the layers' weights, so it is most likely "
                "products that cost more. Whether kernels for one token, made dependent launches, would do "
                "better in INT4 was not tried."
            )
    return said


def _ahead(part: Rows) -> list[Any]:
    """The models that save more without overlap than estimated, by a tenth of a microsecond at least."""
    return list(part[part["lost"].round(1) < 0].itertuples())


def _undone(table: Rows) -> Rows:
    """The models on which the fused way's kernels take as much longer as the overlap saves, or more."""
    return table[(table["saved"] <= 0) & (table["overlap"] > 0) & (table["other"] < 0)]


def _span(us: Rows) -> str:
    """A range to a tenth, or the one number."""
    ends = dict.fromkeys(_signed(float(one)) for one in (us.min(), us.max()))
    return " to ".join(ends)


def _signed(us: float) -> str:
    """Microseconds to a tenth, with a minus sign."""
    return f"{us:.1f}".replace("-", "−")


def _figures(table: Rows) -> list[Any]:
    """The parts of what is saved, time above the bound, and where that is longest."""
    columns = {"title": "Model", "saved": "Saved", "overlap": "By the overlap", "other": "Without it"}
    columns |= {"sums": "Two sums", "launches": "Other launches", "head": "Half the output head"}
    columns |= {"due": "These three", "lost": "Not saved"}
    if table["overlap"].isna().all():
        columns = {of: says for of, says in columns.items() if of not in ("overlap", "other", "lost")}
    forms = dict.fromkeys(columns, "{:.1f}") | {"title": ""}
    above = {"title": "Model", "bound": "Bound, the fused way", "over": "Above it"}
    above |= {"share": "Share of the bound", "alone": "One GPU, above its bound"}
    digits = dict.fromkeys(("bound", "over", "alone"), "{:.1f}") | {"title": "", "share": "{:.0%}"}
    caption = "µs a layer on two GPUs, farthest from its bound first; the output head is shared among layers"
    saved = "Saved by the fused way, µs a layer: measured, then three estimates"
    saved += "; not saved: their sum less what is saved without overlap" * ("lost" in columns)
    return [
        (table, columns, forms, saved),
        (table.sort_values("share").reset_index(drop=True), above, digits, caption),
        "\n".join(f"- {line}" for line in [*_price_by_format(table), *_farthest(table)]),
    ]


def _with_rest(found: Rows, rows: Rows) -> Rows:
    """With columns sums and launches: what these could save of a layer; due, with half the head; and lost,
    what is less than that without overlap.
    """
    separate, inside = launched()
    spares = (separate - inside - 2) * links.LAUNCH_US
    table = found.assign(sums=[_sums_us(rows, str(model)) for model in found["model"]], launches=spares)
    table = table.round(
        {of: 1 for of in ("saved", "overlap", "sums", "launches", "head")}
    )  # so that what is shown adds up
    table["other"] = table["saved"] - table["overlap"]
    table["due"] = table["sums"] + table["head"] + table["launches"]
    return table.assign(lost=table["due"] - table["other"])


def _layers(rows: Rows) -> Rows:
    """One row a model, in µs a layer: bound and time above it by the fused way, its share of the bound, time
    above the bound on one GPU, what the fused way saves beside our kernel between two others, and what of
    that the overlap is, NaN where plain launches were not timed.
    """
    found = tokens(rows)
    us, bound = (found.pivot_table(of, "title", "impl", sort=False) for of in ("median_us", "predicted_us"))
    first = found.drop_duplicates("title").set_index("title").loc[us.index]
    layers = np.array([model_shapes.get(str(model)).layers for model in first["model"]])
    over = (us - bound).div(layers, axis=0)
    plain = us[split.FUSED_PLAIN] if split.FUSED_PLAIN in us else pd.Series(np.nan, us.index)
    table = {
        "model": first["model"],
        "format": first["format"],
        "bound": bound[split.FUSED] / layers,
        "over": over[split.FUSED],
        "share": bound[split.FUSED] / us[split.FUSED],
        "alone": over[links.ALONE],
        "saved": (us[split.SEPARATE] - us[split.FUSED]) / layers,
        "overlap": (plain - us[split.FUSED]) / layers,
        "plain": plain / layers,
        "head": (bound[split.SEPARATE] - bound[split.FUSED]) / layers - _kernels_us(first["model"]),
    }
    return pd.DataFrame(table).rename_axis("title").reset_index()


def _kernels_us(models: Rows) -> Any:
    """Microseconds a layer by which the law has two sums inside norms cheaper than two of their own."""
    sizes = [2 * model_shapes.get(str(model)).hidden for model in models]
    return np.array(
        [2 * (split.sum_us(split.SEPARATE, n, 2) - split.sum_us(split.FUSED, n, 2)) for n in sizes]
    )


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
    beyond = f"Time above the bound, INT4 minus FP16: {listed(pairs)}."
    least, packed = table.loc[table["bound"].idxmin()], table[table["format"] == "int4_g128"]
    if (more > 0).all() and least["format"] == "fp16" and least["over"] < packed["over"].min():
        beyond += f" Few bytes do not explain it: {least['title']} has the fewest, a bound of "
        beyond += f"{least['bound']:.0f} µs a layer, and takes {least['over']:.0f} more than that."
    return [f"{text}.", beyond]


def _sums_us(rows: Rows, model: str) -> float:
    """Microseconds that the two fused sums of a layer save, by the hand-over of the width nearest to the
    model's; or NaN.
    """
    saved = _saved_by_width(rows)
    return float(2 * saved[_nearest(rows, model)]) if len(saved) else float("nan")


def _nearest(rows: Rows, model: str) -> int:
    """The measured width of a hand-over nearest to a model's."""
    width = model_shapes.get(model).hidden
    return int(min(_saved_by_width(rows).index, key=lambda n: abs(n - width)))


def _saved_by_width(rows: Rows) -> Rows:
    """Microseconds that a hand-over in one kernel saves, by its width; empty where it was not measured."""
    found = rows[rows["operator"] == split.FUSED]
    by = found.set_index(["n", "impl"])["median_us"].unstack() if len(found) else found
    if not {split.SEPARATE, INSIDE} <= set(by):
        return pd.Series(dtype=float)
    return (by[split.SEPARATE] - by[INSIDE]).dropna()


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    found = tokens(rows)
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    by = found[found["gain"].notna()].pivot_table("gain", "title", "impl", sort=False)
    by = by.reindex(columns=[split.SEPARATE, links.NCCL])
    lost = by[(by < 1).all(axis=1)]
    said = ""
    if len(lost):
        said = f" With a kernel for each sum {listed(lost.index)} "
        said += f"{'is' if len(lost) == 1 else 'are'} slower on two, by our kernel as by NCCL."
    lines = [
        f"- On two GPUs ({gpu}) a token is {fused['gain'].min():.2f} to {fused['gain'].max():.2f} times as "
        f"fast as on one, by {WAYS[split.FUSED]}.{said}",
        f"- {_paid(rows)}",
        four_gpus.takeaway(rows, gpu),
        "- A token exchanges a few KiB a layer, so latency decides; a prompt exchanges thousands of rows, so "
        "the link's rate decides what a sum costs ([appendix](#prompts)).",
    ]
    display.say("\n".join(filter(None, lines)))


def _paid(rows: Rows) -> str:
    """What overlap saves a layer, and where other kernels cost as much."""
    table = _with_rest(_layers(rows), rows)
    lost = _undone(table.dropna(subset="overlap"))
    text = _overlap(table).replace("**", "")
    return (
        f"{text} Different kernels can cost as much: on {listed(lost['title'])} all of it."
        if len(lost)
        else text
    )
