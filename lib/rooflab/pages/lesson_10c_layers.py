"""What lesson 10c says of a layer on two GPUs: its time above the bound, and what the fused way saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows, four_gpus, lesson_10c_worked
from rooflab.pages.lesson_10c import WAYS, launched, spanned, thread, tokens
from rooflab.pages.lesson_10c_handover import INSIDE
from rooflab.studies import links, split
from rooflab.view import display, page, plot
from rooflab.words import listed

SHADES = {"bound": "#56B4E9", "above the bound": "#E69F00", "hidden by overlap": "#E6E6E6"}


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


def where(rows: Rows, gpu: Any) -> None:
    """Draw one GPU's time and that of two, as shares of one GPU's: the bound, what is above it, and what
    overlap hides; say what becomes of both parts where a second GPU brings least.
    """
    table = _layers(rows).dropna(subset="alone")
    if table.empty:
        return
    names, parts, wholes = [], [], []
    for row in table.to_dict("records"):
        whole, hidden = row["alone_bound"] + row["alone"], max(np.nan_to_num(row["overlap"]), 0.0)
        for who, bound, over, more in (
            ("one GPU", "alone_bound", "alone", 0.0),
            ("two", "bound", "over", hidden),
        ):
            us = row[bound] + row[over]
            whose, gain = f"{row['title']}, ", ""
            if who == "two":
                whose, gain = (
                    "",
                    f", gain {whole / us:.2f}; predicted {row['alone_bound'] / row['bound']:.2f}",
                )
            names.append(f"{whose}{who}: {us:.1f} µs{gain}")
            parts.append([min(row[bound], us), max(row[over], 0.0), more])
            wholes.append(whole)
    shares = 100 * np.array(parts) / np.array(wholes)[:, None]
    drawn = {says: each for says, each in zip(SHADES, shares.T, strict=True) if each.any()}
    caption = "A layer on one GPU and on two, in % of one GPU's time"
    fig, ax = plot.figure("% of one GPU's time", title=caption, height=1.4 + 0.2 * len(names))
    fig.set_figwidth(page.WIDEST)
    plot.stacked(ax, names, drawn, "% of one GPU's time", SHADES)
    for text in ax.texts:  # a length is a share, a number microseconds
        x, k = text.get_position()
        at = int(np.searchsorted(np.cumsum(shares[int(k)]), x))
        text.set_text(f"{parts[int(k)][at]:.1f}")
    plot.roof_line(ax, 50, "half", vertical=True)
    ax.lines[-1].set_zorder(3)
    for k in range(2, len(names), 2):
        ax.axhline(k - 0.5, color="#C8C8C8", linewidth=0.8)
    display.say(_least(table))
    told = "In bars: µs a layer, a token's time ÷ its layers. Two GPUs by the fused way."
    if len(drawn) == len(SHADES):
        told += " Where grey ends beyond 100, two without overlap take longer than one."
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(rows)}. {told}")
    display.say("\n\n".join(filter(None, [_overlap(table), _by_format(table)])))


def _least(table: Rows) -> str:
    """What becomes of the bound and of the time above it, where a second GPU brings least."""
    gain = (table["alone_bound"] + table["alone"]) / (table["bound"] + table["over"])
    row = table.loc[gain.idxmin()]
    bound, over = (
        f"{'falls' if row[two] < row[one] else 'grows'} from {_signed(row[one])} to {_signed(row[two])}"
        for one, two in (("alone_bound", "bound"), ("alone", "over"))
    )
    return (
        f"**On {row['title']}, which gains least, the bound {bound} µs a layer, and the time above it "
        f"{over}.** That time was not divided further: it holds starts that are not hidden, waits for the "
        "other GPU, and what kernels do beside reading."
    )


def _by_format(table: Rows) -> str:
    """How much more time above the bound INT4 weights have than FP16 ones, on two GPUs; "" where not more."""
    by = table.pivot(index="model", columns="format", values="over")
    if not {"fp16", "int4_g128"} <= set(by):
        return ""
    more = (by["int4_g128"] - by["fp16"]).dropna()
    if more.empty or not (more > 0).all():
        return ""
    told = listed(f"{us:.0f} µs a layer on {model}" for model, us in more.items())
    return (
        f"Above the bound INT4 takes {told} longer than FP16: most likely in products, as nothing else "
        "depends on the weights' format."
    )


def worth(rows: Rows) -> None:
    """Show what each change of the fused way is worth in a layer of two models: the one that the page works
    out, and the one on which the changes bring least beside their estimates.
    """
    table = _with_rest(_layers(rows), rows).dropna(subset=["saved", "due"]).set_index("title")
    if table.empty:
        display.say("What each change is worth was not timed here.")
        return
    timed = table["overlap"].notna().all()
    rest = table["rest"] if timed else table["saved"] - table["due"]
    titles = list(dict.fromkeys(each for each in (thread(rows), str(rest.idxmin())) if each in table.index))
    separate, inside = launched()
    lines = {
        "Overlap, measured": table["overlap"],
        "Sums inside norms, estimated": table["sums"],
        f"{separate - inside - 2} other launches spared, estimated": table["launches"],
        "Half the output head, estimated": table["head"],
        "Different kernels: what is left" if timed else "Overlap and different kernels: what is left": rest,
        "All changes, measured": table["saved"],
    }
    shown = pd.DataFrame([{"change": name} | us[titles].to_dict() for name, us in lines.items()])
    shown = shown.dropna(subset=titles)
    columns = {"change": "Saved by"} | {each: each for each in titles}
    shown[titles] = shown[titles].map(_signed)
    forms = dict.fromkeys(columns, "")
    caption = f"What {WAYS[split.FUSED]} saves beside sums by our kernel, µs a layer"
    display.table(shown, columns, forms, caption)
    display.say(_undone_by_kernels(table.reset_index(), rows))


def every(rows: Rows) -> None:
    """Fold what each change saves on every model, where estimates come from, and what is above bounds."""
    table = _with_rest(_layers(rows), rows).sort_values("saved", ascending=False).reset_index(drop=True)
    worked = _worked(rows, table)
    notes = [lesson_10c_worked.left(rows)]
    notes += [_estimates(rows, worked)] if len(worked) else []
    display.fold_parts(
        "What each change saves, and the time above the bound",
        [*filter(None, notes), *_figures(table)],
    )


def _overlap(table: Rows) -> str:
    """What overlap saves of a layer."""
    timed = table.dropna(subset="overlap")
    if timed.empty:
        return "What the overlap saves was not timed by itself."
    saves = timed[timed["overlap"] > 0]
    text = f"**Overlap hides {_span(saves['overlap'])} µs of a layer" if len(saves) else ""
    if len(saves) < len(timed):
        text = f"{text} on {len(saves)} of {len(timed)} models" if text else "**Overlap hides no time"
    return f"{text}**, measured against the same kernels by plain launches.{_beyond_launches(timed)}"


def _undone_by_kernels(table: Rows, rows: Rows) -> str:
    """On which models the other changes cost as much as overlap saves, measured, and what can cost time."""
    lost = _undone(table.dropna(subset="overlap"))
    if lost.empty:
        return "What is left is no measurement: it takes up what the estimates above it miss."
    us = tokens(rows).pivot_table("median_us", "title", "impl", sort=False)
    told = listed(
        f"{us[split.FUSED][title]:,.0f} µs a token where sums by our kernel take "
        f"{us[split.SEPARATE][title]:,.0f}"
        for title in lost["title"]
    )
    return (
        f"**On {listed(lost['title'])} the different kernels most likely cost more than overlap hides**: the "
        f"fused way takes {told}. “What is left” also holds what the estimates miss."
    )


def _beyond_launches(table: Rows) -> str:
    """Whether overlap saves more than launches take, and what the rest may be."""
    launches = launched()[1] * links.LAUNCH_US
    if table.empty or not (table["overlap"] > launches).all():
        return ""
    return f" That is more than the {launches:.1f} of the starts: most likely weights that arrive early, too."


def _worked(rows: Rows, table: Rows) -> Rows:
    """The row of the model that the page works out, if it saves time and hand-overs were timed; or none."""
    row = table[(table["saved"] > 0) & (table["sums"] > 0) & (table["title"] == thread(rows))]
    return row.set_index("title").iloc[0] if len(row) else pd.Series(dtype=object)


def _estimates(rows: Rows, row: Rows) -> str:
    """Where the estimates of one model's ledger come from."""
    shape, width = model_shapes.get(str(row["model"])), _nearest(rows, str(row["model"]))
    size = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[split.HEAD] / 2
    head = _layers(rows).set_index("title")["head"][row.name] * shape.layers
    separate, inside = launched()
    untimed = "" if width == shape.hidden else f"; its own width, {shape.hidden:,}, was not timed"
    text = (
        "The estimates below come from pieces timed alone, so “what is left” is no measurement. "
        f"For {row.name}, in µs a layer:\n\n"
        f"- Sums inside norms, {_signed(row['sums'])}: twice what a sum and norm of {width:,} numbers take "
        f"less in one kernel{untimed}.\n"
        f"- {separate - inside - 2} other launches, {_signed(row['launches'])}: {links.LAUNCH_US:g} assumed "
        "of each.\n"
        f"- Half the output head, {_signed(row['head'])}: {size / 1e6:,.0f} MB less to read at "
        f"{size / head / 1e3:,.0f} GB/s, {head:,.0f} µs a token."
    )
    if row["rest"] != row["rest"]:
        return text
    return (
        f"{text}\n- Together {_signed(row['due'])}; saved without overlap {_signed(row['other'])}; what is "
        f"left {_signed(row['rest'])}."
    )


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
    columns |= {"due": "These three", "rest": "What is left"}
    if table["overlap"].isna().all():
        columns = {of: says for of, says in columns.items() if of not in ("overlap", "other", "rest")}
    forms = dict.fromkeys(columns, "{:.1f}") | {"title": ""}
    above = {"title": "Model", "bound": "Bound, the fused way", "over": "Above it"}
    above |= {"share": "Share of the bound", "alone": "One GPU, above its bound"}
    digits = dict.fromkeys(("bound", "over", "alone"), "{:.1f}") | {"title": "", "share": "{:.0%}"}
    caption = "µs a layer on two GPUs, farthest from its bound first; the output head is shared among layers"
    saved = "Saved by the fused way, µs a layer: measured, then three estimates"
    saved += "; what is left: saved without overlap less these" * ("rest" in columns)
    return [
        (table, columns, forms, saved),
        (table.sort_values("share").reset_index(drop=True), above, digits, caption),
        "The fused way's products and attention run lesson 08b's `batch_product` and `batch_attention`, in "
        "place of `gemv_rows` (FP16) or `int4`, and `decode_attention`. Whether those, made dependent "
        "launches, would do better was not tried.",
    ]


def _with_rest(found: Rows, rows: Rows) -> Rows:
    """With columns sums and launches: what these could save of a layer; due, with half the head; and rest,
    what is saved without overlap less that.
    """
    separate, inside = launched()
    spares = (separate - inside - 2) * links.LAUNCH_US
    table = found.assign(sums=[_sums_us(rows, str(model)) for model in found["model"]], launches=spares)
    table = table.round(
        {of: 1 for of in ("saved", "overlap", "sums", "launches", "head")}
    )  # so that what is shown adds up
    table["other"] = table["saved"] - table["overlap"]
    table["due"] = table["sums"] + table["head"] + table["launches"]
    return table.assign(rest=table["other"] - table["due"])


def _layers(rows: Rows) -> Rows:
    """One row a model, in µs a layer: bound and time above it by the fused way, its share of the bound, time
    above the bound on one GPU, what the fused way saves beside our kernel between two others, and what of
    that the overlap is, NaN where plain launches were not timed.
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
    plain = us[split.FUSED_PLAIN]
    table = {
        "model": first["model"],
        "format": first["format"],
        "alone_bound": bound[links.ALONE] / layers,
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
        said = f" With a kernel for each sum it is slower on {listed(lost.index)}."
    lines = [
        f"- On two GPUs ({gpu}) a token is {spanned(fused['gain'], '.2f')} times as "
        f"fast as on one, by {WAYS[split.FUSED]}.{said}",
        f"- {_paid(rows)}",
        four_gpus.takeaway(rows, gpu),
        f"- A token's two sums send {_sent(found)} KiB of packets a layer, so latency decides their cost. "
        "For a prompt's thousands of rows the link's rate does ([appendix](#prompts)).",
    ]
    display.say("\n".join(filter(None, lines)))


def _paid(rows: Rows) -> str:
    """What overlap saves a layer, and where other kernels cost as much."""
    table = _with_rest(_layers(rows), rows)
    lost = _undone(table.dropna(subset="overlap"))
    text = _overlap(table).replace("**", "").partition(", measured")[0].rstrip(".") + "."
    return (
        f"{text} Kernels swapped in for it can cost as much or more: on {listed(lost['title'])}."
        if len(lost)
        else text
    )


def _sent(found: Rows) -> str:
    """The KiB of packets that a GPU sends for the two sums of a layer, from the least to the most."""
    each = [links.crossing("all_reduce", split.SEPARATE, 2 * model_shapes.get(str(name)).hidden, 2)
            for name in found["model"].unique()]  # fmt: skip
    return spanned(2 * np.array(each) / 1024, ".0f")
