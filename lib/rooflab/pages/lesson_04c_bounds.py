"""What lesson 04c predicts: the bounds of INT4 and FP16 products by the number of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab.hardware import roofline
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.view import display, plot
from rooflab.words import counted


def bound_us(n: int, k: int, batch: int, format: str, read_roof: float, peak: float | None) -> float:
    """The bound of this page, in microseconds: bytes at the measured read roof (GB/s), or operations at the
    measured peak (TFLOP/s; None where it was not measured), whichever takes longer."""
    moved = roofline.gemm_bytes(batch, n, k, WEIGHT_BYTES[format])
    return roofline.bound(moved, roofline.gemm_flops(batch, n, k), read_roof, peak).us


def crossing(format: str, read_roof: float, peak: float, shape: tuple[int, int] | None = None) -> float:
    """Tokens at which the operations take as long as the bytes: read_roof in GB/s, peak in TFLOP/s. Without a
    shape these are the weights' bytes, else x and y count too; infinite where bytes always take longer.
    """
    ridge = peak * 1e3 / read_roof  # FLOP a byte
    left = 1 - ridge * (shape[0] + shape[1]) / (shape[0] * shape[1]) if shape else 1.0
    return WEIGHT_BYTES[format] * ridge / (2 * left) if left > 0 else math.inf


def crossings_of(
    format: str, read_roof: float, peak: float, shapes: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """The fewest and the most tokens at which a bound's operations take as long as its bytes, by shape."""
    found = [crossing(format, read_roof, peak, shape) for shape in shapes]
    return min(found), max(found)


def by_shape(span: tuple[float, float], then: str = "") -> str:
    """Tokens from the fewest to the most of several shapes, and a word behind them: "166 to 184 tokens on, by
    shape"; nothing where one has none.
    """
    if not math.isfinite(span[1]):
        return ""
    low, high = (math.ceil(end) for end in span)  # whole tokens, from which on operations take as long
    if low == high:
        return f"{counted(low, 'token')}{then}"
    return f"{low} to {counted(high, 'token')}{then}, by shape"


def free_up_to(table: Rows, near: float = 0.05) -> tuple[int, float]:
    """Up to how many tokens the bound of INT4, column `ours` of `table`, stays within the share `near` of
    that of the fewest; and that share.
    """
    return int(table["batch"][table["ours"] <= (1 + near) * table["ours"].iloc[0]].max()), near


def bounds_by_batch(
    read_roof: float, peak: float | None, batches: list[Any], drawn: Any, gpu: str
) -> tuple[list[Any], Rows]:
    """Draw the bounds of INT4 and FP16 by batch, and the operations alone; the batches of the table, folded,
    and its rows.
    """
    title = f"The bounds of {drawn[0]:,} × {drawn[1]:,} by the number of tokens"
    fig, ax = plot.figure("tokens", "µs by the bound", title, xlog=True, ylog=True, height=2.9)
    tokens = sorted({*batches, *(2**power for power in range(batches[-1].bit_length(), 10))})
    if peak:
        alone = [roofline.gemm_flops(batch, *drawn) / peak / 1e6 for batch in tokens]
        ax.plot(tokens, alone, ":", color="#555555", linewidth=1.4, zorder=2)
        _beside_start(ax, tokens[0], alone[0], "operations, either format", "#555555", (26, 0))
    for label, format in (("INT4", "int4_g128"), ("FP16", "fp16")):
        meets = crossing(format, read_roof, peak, drawn) if peak else 0
        inside = tokens[0] < meets < tokens[-1]
        along = sorted({*tokens, meets}) if inside else tokens  # the crossing is a corner of the line
        least = [bound_us(*drawn, batch, format, read_roof, peak) for batch in along]
        line = plot.series(ax, along, least, label=f"{label} bound")
        line.set_marker("")
        _beside_start(ax, tokens[0], least[0], f"{label} bound", line.get_color(), (0, 6))
        if inside:
            at = (meets, bound_us(*drawn, meets, format, read_roof, peak))
            ax.plot(*at, "o", color=plot.ROOF_COLOUR, markersize=6, zorder=5)
            text = f"{math.ceil(meets)} tokens"
            ax.annotate(text, at, (-3, 6), textcoords="offset points", ha="right", fontweight="bold")
    ticks = [batch for batch in tokens if batch.bit_count() == 1]
    ax.set_xticks(ticks, [str(batch) for batch in ticks])
    plot.round_ticks(ax)
    said = f"{title}, by the roofs measured on {gpu}: flat where the bytes take longer, rising where the "
    plot.show(fig, said + "operations do. A dot marks the number of tokens at which both are equal.")
    names = {"batch": "Batch", "math": "Operations (µs)"}
    names |= {"ours": "INT4 (µs)", "fp16": "FP16 (µs)", "gain": "FP16 ÷ INT4"}
    some = [b for b in batches if b.bit_count() == 1]  # powers of two
    table = pd.DataFrame({"batch": some})
    table["math"] = [roofline.gemm_flops(b, *drawn) / peak / 1e6 if peak else None for b in some]
    for name, format in (("ours", "int4_g128"), ("fp16", "fp16")):
        table[name] = [bound_us(*drawn, b, format, read_roof, peak) for b in some]
    table["gain"] = table["fp16"] / table["ours"]
    forms = dict.fromkeys(("math", "ours", "fp16"), "{:,.1f}") | {"gain": "{:.2f}"}
    display.table(table, names, forms, "The same in numbers", folded=True)
    return some, table


def _beside_start(ax: Any, x: float, y: float, label: str, colour: str, off: tuple[int, int]) -> None:
    """Name a line at its first point, where lines that end together are still apart."""
    ax.annotate(label, (x, y), off, textcoords="offset points", fontsize=8.5, color=colour, fontweight="bold")


def crossings(read_roof: float, peak: float | None, shapes: Sequence[tuple[int, int]]) -> None:
    """Say in figures at how many tokens each format's operations take as long as its bytes: of the weights
    alone, and with x and y by shape.
    """
    if peak is None:
        return display.say("The tensor cores' peak was not measured here, so this number is not known.")
    parts, spans = [], []
    for name, format in (("INT4", "int4_g128"), ("FP16", "fp16")):
        spans.append(by_shape(crossings_of(format, read_roof, peak, shapes)).removesuffix(", by shape"))
        parts.append(
            f"{WEIGHT_BYTES[format]:.3g} × {peak:,.0f} ÷ (2 × {read_roof / 1e3:.2f}) = "
            f"**about {crossing(format, read_roof, peak):.0f} tokens** for {name}"
        )
    text = f"With TFLOP/s and TB/s: {' and '.join(parts)}. "
    if all(spans):
        text += f"With x and y: {spans[0].split(' token')[0]} and {spans[1]}, by shape. "
        text += (
            "Between the two INT4 can still gain, but less with each token. Beyond the second both bounds "
        )
        text += "of a shape are equal. "
    else:
        text += "With x and y there is no such number for some shapes: their bytes always take longer. "
    display.say(text.strip())


def free_tokens(table: Rows) -> None:
    """Say how the bound grows, up to the tokens that it has nearly free and at the most tokens."""
    least = table.set_index("batch")["ours"]
    first = least.index[0]
    grown = [f"{batch} tokens take {least[batch] / least[first]:.2f}" for batch in _ends_of(table)]
    if grown:
        display.say(f"**By the INT4 bound {' and '.join(grown)} times as long as {first}.**")


def affordable(sms: int, ghz: float, read_roof: float) -> None:
    """Say how many instructions a weight may cost on CUDA cores, and for how many tokens that is too few."""
    afford = _afford(sms, ghz, read_roof)
    text = f"**Predicted:** while memory delivers a weight, the CUDA cores can execute {afford:.1f} "
    text += "instructions ([part 04b](04b_ladder.ipynb) derives it). Each token takes one, a multiply-add: "
    spent = counted(spent_at(sms, ghz, read_roof), "token")
    display.say(f"{text}at {spent} these alone are more than that. Unpacking comes on top.")


def spent_at(sms: int, ghz: float, read_roof: float) -> int:
    """How many tokens' multiply-adds alone are more than the CUDA cores can do while memory delivers."""
    return int(_afford(sms, ghz, read_roof)) + 1


def _afford(sms: int, ghz: float, read_roof: float) -> float:
    return sms * 4 * 32 * ghz / (read_roof / WEIGHT_BYTES["int4_g128"])


def _ends_of(table: Rows) -> list[int]:
    """The number of tokens that the bound has nearly free, and the most; without that of the first row."""
    return sorted({free_up_to(table)[0], int(table["batch"].iloc[-1])} - {int(table["batch"].iloc[0])})
