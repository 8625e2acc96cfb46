"""What lesson 10c says of a layer on two GPUs: its time above the bound, and what the fused way saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows, four_gpus
from rooflab.pages.lesson_10c import WAYS, tokens
from rooflab.pages.lesson_10c_handover import INSIDE
from rooflab.studies import links, split
from rooflab.view import display, plot
from rooflab.view.diagram import handovers
from rooflab.words import listed


def spared() -> None:
    """Say how many launches of a layer the fused way spares."""
    separate, inside = (len(row) for row in handovers.by_way().values())
    display.say(f"**{separate} launches a layer become {inside}**, and each overlaps the one before it.")


def half_a_head(rows: Rows) -> None:
    """Say what half a head is worth, by its bytes."""
    head = _layers(rows)["head"].dropna()
    if len(head):
        display.say(
            f"**Half a head instead of a whole one saves {head.min():.1f} to {head.max():.1f} µs a layer, by "
            "arithmetic**: the bytes that are not read, at the datasheet's bandwidth, shared among the "
            "layers. The kernel that puts the shares together takes some of "
            "it back; it was not timed by itself."
        )


def excess(rows: Rows, gpu: Any) -> None:
    """Say how much of what the fused way saves a layer sums and head explain, for one model number by number
    and then for the others; and, folded, the figures and what each model's layers take above their bound.
    """
    table = _with_rest(_layers(rows), rows).sort_values("saved", ascending=False).reset_index(drop=True)
    usual, few = _usual(table.set_index("title")["saved"].sort_values())
    separate, inside = (len(row) for row in handovers.by_way().values())
    display.say(
        f"{_explained(table, usual, few)}Beside {WAYS[split.SEPARATE]} it changes three things at once: sums "
        "move into norms, which the hand-overs measure; the head is split, which is arithmetic; and launches "
        f"become dependent and fewer, {inside} in the place of {separate}, which was not timed by itself."
    )
    worked = _worked(rows, table)
    if len(worked):
        display.say(_number_by_number(rows, worked, separate - inside))
    _chart(table, gpu)
    if text := _beyond(table, usual, few, worked):
        display.say(text)
    display.fold_parts("The figures, and what layers take above their bound", _figures(table))


def _explained(table: Rows, usual: Rows, few: Rows) -> str:
    """For which models sums and head explain less than half of what is saved, and who saves little."""
    mine = table[table["title"].isin(usual.index) & (table["saved"] > 0)]
    less = mine[mine["rest"] > 0.5 * mine["saved"]]
    if less.empty or table["sums"].isna().any():
        return ""
    who = f"{len(less)} of {len(table)} models" if len(less) < len(table) else "each model"
    text = f"**On {who} sums and head explain less than half of what the fused way saves"
    return f"{text}{f'; {_little(few)} a layer' if len(few) else ''}.** "


def _worked(rows: Rows, table: Rows) -> Rows:
    """The row of the model to work out: of those that save time, the one that gains most; or none."""
    saves = table[(table["saved"] > 0) & (table["sums"] > 0)].set_index("title")
    found = tokens(rows)
    gains = found[found["impl"] == split.FUSED].set_index("title")["gain"].reindex(saves.index).dropna()
    if saves.empty:
        return pd.Series(dtype=object)
    return saves.loc[gains.idxmax() if len(gains) else saves.index[0]]


def _number_by_number(rows: Rows, row: Rows, spared: int) -> str:
    """What the fused way saves one model, less sums and head, with where each number comes from."""
    found = tokens(rows)
    us = found[found["title"] == row.name].set_index("impl")["median_us"]
    shape = model_shapes.get(str(row["model"]))
    size = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[split.HEAD] / 2
    head = _layers(rows).set_index("title")["head"][row.name] * shape.layers
    width, launches = _nearest(rows, str(row["model"])), spared - 2
    saved, sums, half = (_signed(row[of]) for of in ("saved", "sums", "head"))
    text = (
        f"Worked out for {row.name}: a token takes {us[split.SEPARATE]:,.0f} µs with {WAYS[split.SEPARATE]} "
        f"and {us[split.FUSED]:,.0f} the fused way, so each of {shape.layers} layers saves {saved}. Two "
        f"sums, each shorter by what a hand-over {width:,} wide saves, are {sums} of it. Half a head, "
        f"{size / 1e6:,.0f} MB not read at {size / head / 1e3:,.0f} GB/s, is {head:,.0f} µs a token, so "
        f"{half} a layer. {saved} − {sums} − {half} leaves **{_signed(row['rest'])} not explained**"
    )
    guess = launches * links.LAUNCH_US
    if launches > 0 and row["rest"] > guess:
        text += (
            f"; {launches} launches beside the sums' are spared, {guess:.1f} at the {links.LAUNCH_US:g} "
            "assumed of each, and what the others gain by overlapping was not timed"
        )
    return f"{text}."


def _beyond(table: Rows, usual: Rows, few: Rows, worked: Rows) -> str:
    """What is not explained on the other models, those that save little apart, and what follows."""
    others = table[table["title"].isin(usual.index)]
    others = others[others["title"] != worked.name] if len(worked) else others
    parts = []
    if len(others):
        saved, rest = (_span(others[of]) for of in ("saved", "rest"))
        parts.append(f"the others save {saved} µs a layer, less sums and head {rest}")
    for row in table[table["title"].isin(few.index)].itertuples():
        does = f"saves {row.saved:.1f}" if row.saved > 0 else f"loses {-row.saved:.1f}"
        due = row.head + (0.0 if row.sums != row.sums else row.sums)
        parts.append(f"{row.title} {does} µs, where sums and head should save {_signed(due)}")
    text = "; ".join(parts)
    text = f"{text[:1].upper()}{text[1:]}. " if text else ""
    if table["rest"].max() - table["rest"].min() > 2:
        text += "Every model is spared the same launches, so their number alone is not the reason."
    return text.strip()


def _span(us: Rows) -> str:
    """A range to a tenth, or the one number."""
    ends = dict.fromkeys(_signed(float(one)) for one in (us.min(), us.max()))
    return " to ".join(ends)


def _signed(us: float) -> str:
    """Microseconds to a tenth, with a minus sign."""
    return f"{us:.1f}".replace("-", "−")


def _chart(table: Rows, gpu: Any) -> None:
    """Draw what a layer saves of each model, beside what sums and head account for."""
    caption = "What the fused way saves a layer"
    fig, ax = plot.figure("µs a layer", title=caption, height=1.3 + 0.55 * len(table))
    parts = {
        "measured": table["saved"],
        "two sums, by the hand-overs": table["sums"],
        "half a head, arithmetic": table["head"],
    }
    ends = table[["saved", "sums", "head"]].to_numpy(float)
    plot.grouped(ax, list(table["title"]), parts, most=1.15 * float(np.nanmax(ends)), form=".1f")
    ax.set_xlim(left=min(0.0, 1.15 * float(np.nanmin(ends))))
    for text in ax.texts:  # the number of a loss right of the axis
        text.set_x(max(text.get_position()[0], float(np.nanmax(ends)) / 100))
    plot.show(
        fig,
        f"{caption}, {gpu}: sums as the hand-over of the width nearest to the model's "
        "saves, the head by its bytes.",
    )


def _figures(table: Rows) -> list[Any]:
    """What backs the chart: the parts of what is saved, time above the bound, and where that is longest."""
    columns = {"title": "Model", "saved": "Saved, measured", "sums": "Two sums, by the hand-overs"}
    columns |= {"head": "Half a head, arithmetic", "rest": "The rest"}
    forms = {"title": "", **dict.fromkeys(("saved", "sums", "head", "rest"), "{:.1f}")}
    above = {"title": "Model", "bound": "Bound, the fused way", "over": "Above it"}
    above |= {"share": "Share of the bound", "alone": "One GPU, above its bound"}
    digits = dict.fromkeys(("bound", "over", "alone"), "{:.1f}") | {"title": "", "share": "{:.0%}"}
    caption = "µs a layer on two GPUs, farthest from its bound first; the head's time is shared among layers"
    return [
        (table, columns, forms, "Saved by the fused way, µs a layer"),
        (table.sort_values("share").reset_index(drop=True), above, digits, caption),
        "\n".join(f"- {line}" for line in _farthest(table)),
    ]


def _with_rest(found: Rows, rows: Rows) -> Rows:
    """With columns sums and rest: what two sums could save of a layer, and what is left beside the head."""
    table = found.assign(sums=[_sums_us(rows, str(model)) for model in found["model"]])
    table = table.round({"saved": 1, "head": 1, "sums": 1})  # so that what is shown adds up
    return table.assign(rest=table["saved"] - table["head"] - table["sums"].fillna(0.0))


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
    beyond = f"Time above the bound, INT4 minus FP16: {listed(pairs)}."
    least, packed = table.loc[table["bound"].idxmin()], table[table["format"] == "int4_g128"]
    if (more > 0).all() and least["format"] == "fp16" and least["over"] < packed["over"].min():
        beyond += f" Few bytes do not explain it: {least['title']} has the fewest, a bound of "
        beyond += f"{least['bound']:.0f} µs a layer, and takes {least['over']:.0f} more than that."
    return [f"{text}.", f"{beyond} What the time goes into was not counted."]


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


def _little(few: Rows) -> str:
    """What each of the models that save far less saves or loses, in microseconds."""
    return listed(
        f"{name} saves {us:.1f} µs" if us > 0 else f"{name} loses {-us:.1f} µs" for name, us in few.items()
    )


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    found = tokens(rows)
    fused = found[(found["impl"] == split.FUSED) & found["gain"].notna()]
    by = found[found["gain"].notna()].pivot_table("gain", "title", "impl", sort=False)
    by = by.reindex(columns=[split.SEPARATE, links.NCCL])
    lost = by[(by < 1).all(axis=1)]
    said = ""
    if len(lost):
        said = f" With whole heads and plain launches {listed(lost.index)} "
        said += f"{'is' if len(lost) == 1 else 'are'} slower on two, by our kernel as by NCCL."
    lines = [
        f"- On two GPUs ({gpu}) a token is {fused['gain'].min():.2f} to {fused['gain'].max():.2f} times as "
        f"fast as on one, by {WAYS[split.FUSED]}.{said}",
        f"- {_all(rows)}",
        four_gpus.takeaway(rows, gpu),
        "- A token exchanges a few KiB a layer, so latency decides; a prompt exchanges thousands of rows, so "
        "the link's rate does.",
    ]
    display.say("\n".join(filter(None, lines)))


def explained(rows: Rows) -> str:
    """How much of what a layer saves its sums account for, for the page's first lines; "" if not recorded."""
    found = _layers(rows)
    usual, few = _usual(found.set_index("title")["saved"].sort_values())
    sums = pd.Series([_sums_us(rows, str(model)) for model in found["model"]]).dropna()
    if usual.empty or sums.empty:
        return ""
    said = f" The fused way saves {_of_models(usual, few, '.0f')}"
    return f"{said}; moving the sums explains {_ends(sums)} of it."


def _all(rows: Rows) -> str:
    """What the three changes save a layer together, and what sums and head account for."""
    found = _layers(rows)
    usual, few = _usual(found.set_index("title")["saved"].sort_values())
    text = f"Beside {WAYS[split.SEPARATE]} {WAYS[split.FUSED]} saves "
    text += _of_models(usual, few, ".0f")
    text += f" ({_little(few)})" if len(few) else ""
    sums = pd.Series([_sums_us(rows, str(model)) for model in found["model"]]).dropna()
    parts = [f"the sums account for {_ends(sums)}"] if len(sums) else []
    parts.append(f"the split head {'' if parts else 'accounts '}for {_ends(found['head'])} by arithmetic")
    return f"{text}. Of it {' and '.join(parts)}; the rest is not explained."


def _ends(us: Rows) -> str:
    """A range in whole microseconds, or the one number."""
    low, high = f"{us.min():.0f}", f"{us.max():.0f}"
    return f"{low} µs" if low == high else f"{low} to {high} µs"
