"""A layer of each model by lesson 10c's ways, in microseconds, and what the fused way's changes save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows, lesson_10c_worked
from rooflab.pages.lesson_10c import launched, thread, tokens
from rooflab.pages.lesson_10c_handover import INSIDE
from rooflab.studies import links, split
from rooflab.view import display


def half_a_head(rows: Rows) -> None:
    """Say what half the output head is worth, by its bytes."""
    table = per_layer(rows).dropna(subset="head")
    if len(table):
        token = table["head"] * [model_shapes.get(str(model)).layers for model in table["model"]]
        display.say(
            f"**Half the output head saves {token.min():.0f} to {token.max():.0f} µs a token, "
            "by arithmetic**: the bytes that are not read, at the datasheet's bandwidth. Over the layers "
            f"that is {span(table['head'])} µs each. Putting the shares together takes some of it back; it "
            "was not timed by itself."
        )


def every(rows: Rows, kernel: float = np.nan) -> None:
    """Fold what each change saves on every model, where estimates come from, and what is above bounds;
    `kernel` is the time of lesson 10's shortest one.
    """
    table = with_rest(per_layer(rows), rows)
    worked = _worked(rows, table)
    notes = [lesson_10c_worked.left(rows)]
    notes += [_estimates(rows, worked, kernel)] if len(worked) else []
    display.fold_parts(
        "What each change saves, and the time above the bound",
        [*filter(None, notes), *_figures(table)],
    )


def _worked(rows: Rows, table: Rows) -> Rows:
    """The row of the model that the page works out, if it saves time and hand-overs were timed; or none."""
    row = table[(table["saved"] > 0) & (table["sums"] > 0) & (table["title"] == thread(rows))]
    return row.set_index("title").iloc[0] if len(row) else pd.Series(dtype=object)


def _estimates(rows: Rows, row: Rows, kernel: float) -> str:
    """Where the estimates of one model's ledger come from."""
    shape, width = model_shapes.get(str(row["model"])), _nearest(rows, str(row["model"]))
    size = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[split.HEAD] / 2
    head = per_layer(rows).set_index("title")["head"][row.name] * shape.layers
    separate, inside = launched()
    untimed = "" if width == shape.hidden else f"; its own width, {shape.hidden:,}, was not timed"
    most = f" (at most {(separate - inside - 2) * kernel:.1f} by lesson 10's kernel of {kernel:.2f})"
    most = most if kernel < links.LAUNCH_US else ""
    text = (
        "The estimates below come from pieces timed alone, so “what is left” is no measurement. "
        f"For {row.name}, in µs a layer:\n\n"
        f"- Sums inside norms, {signed(row['sums'])}: twice what a sum and norm of {width:,} numbers take "
        f"less in one kernel{untimed}.\n"
        f"- {separate - inside - 2} other launches, {signed(row['launches'])}: {links.LAUNCH_US:g} assumed "
        f"of each{most}.\n"
        f"- Half the output head, {signed(row['head'])}: {size / 1e6:,.0f} MB less to read at "
        f"{size / head / 1e3:,.0f} GB/s, {head:,.0f} µs a token."
    )
    if row["rest"] != row["rest"]:
        return text
    return (
        f"{text}\n- Together {signed(row['due'])}; saved without overlap {signed(row['other'])}; what is "
        f"left {signed(row['rest'])}."
    )


def span(us: Rows) -> str:
    """A range to a tenth, or the one number."""
    ends = dict.fromkeys(signed(float(one)) for one in (us.min(), us.max()))
    return " to ".join(ends)


def signed(us: float) -> str:
    """Microseconds to a tenth, with a minus sign."""
    return f"{us:.1f}".replace("-", "−")


def _figures(table: Rows) -> list[Any]:
    """The parts of what is saved, time above the bound, and where that is longest."""
    columns = {"title": "Model", "saved": "Saved", "overlap": "By the overlap", "other": "Without it"}
    columns |= {"sums": "Two sums", "launches": "Other launches", "head": "Half the output head"}
    columns |= {"due": "These three", "rest": "What is left"}
    if table["overlap"].isna().all():
        columns = {of: says for of, says in columns.items() if of not in ("overlap", "other", "rest")}
    forms = dict.fromkeys(columns, "{:.1f}") | {"title": ""}
    above = {"title": "Model", "bound": "Bound, the fused way", "over": "Above it"}
    above |= {"share": "Share of the bound", "alone": "One GPU, above its bound"}
    digits = dict.fromkeys(("bound", "over", "alone"), "{:.1f}") | {"title": "", "share": "{:.0%}"}
    caption = "µs a layer on two GPUs; the output head is shared among layers"
    saved = "Saved by the fused way, µs a layer: measured, then three estimates"
    saved += "; what is left: saved without overlap less these" * ("rest" in columns)
    return [
        (table, columns, forms, saved),
        (table, above, digits, caption),
    ]


def with_rest(found: Rows, rows: Rows) -> Rows:
    """With columns sums and launches: what these could save of a layer; due, with half the head; and rest,
    what is saved without overlap less that.
    """
    separate, inside = launched()
    spares = (separate - inside - 2) * links.LAUNCH_US
    table = found.assign(sums=[_sums_us(rows, str(model)) for model in found["model"]], launches=spares)
    table = table.round({of: 1 for of in ("sums", "launches", "head")})  # so that what is shown adds up
    table["other"] = table["saved"] - table["overlap"]
    table["due"] = table["sums"] + table["head"] + table["launches"]
    return table.assign(rest=table["other"] - table["due"])


def per_layer(rows: Rows) -> Rows:
    """One row a model, in µs a layer: its time by each way, to a tenth as it is shown, NaN where not timed;
    gains over one GPU by our kernel and by the fused way; what the latter saves beside our kernel between two
    others, and what of that the overlap is; bound and time above it by the fused way, the share of the bound,
    and bound and time above it on one GPU.
    """
    found = tokens(rows)
    ways = [links.ALONE, split.SEPARATE, split.FUSED, split.FUSED_PLAIN]
    us, bound = (
        found.pivot_table(of, "title", "impl", sort=False).reindex(columns=ways)
        for of in ("median_us", "predicted_us")
    )
    first = found.drop_duplicates("title").set_index("title").loc[us.index]
    layers = np.array([model_shapes.get(str(model)).layers for model in first["model"]])
    over = (us - bound).div(layers, axis=0)
    times = us.div(layers, axis=0).round(1)
    table = {
        "model": first["model"],
        "format": first["format"],
        "alone_bound": bound[links.ALONE] / layers,
        "bound": bound[split.FUSED] / layers,
        "over": over[split.FUSED],
        "share": bound[split.FUSED] / us[split.FUSED],
        "alone": over[links.ALONE],
        "one": times[links.ALONE],
        "separate": times[split.SEPARATE],
        "plain": times[split.FUSED_PLAIN],
        "fused": times[split.FUSED],
        "first_gain": us[links.ALONE] / us[split.SEPARATE],
        "gain": us[links.ALONE] / us[split.FUSED],
        "saved": times[split.SEPARATE] - times[split.FUSED],
        "overlap": times[split.FUSED_PLAIN] - times[split.FUSED],
        "head": (bound[split.SEPARATE] - bound[split.FUSED]) / layers - _kernels_us(first["model"]),
    }
    return pd.DataFrame(table).rename_axis("title").reset_index()


def _kernels_us(models: Rows) -> Any:
    """Microseconds a layer by which the law has two sums inside norms cheaper than two of their own."""
    sizes = [2 * model_shapes.get(str(model)).hidden for model in models]
    return np.array(
        [2 * (split.sum_us(split.SEPARATE, n, 2) - split.sum_us(split.FUSED, n, 2)) for n in sizes]
    )


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
