"""Why lesson 04c's INT4 products stop paying where they do, by the bounds of both formats."""

from __future__ import annotations

from typing import Any

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.view import display


def bound_us(n: int, k: int, batch: int, format: str, read_roof: float, peak: float | None) -> float:
    """The bound of this page, in microseconds: bytes at the measured read roof (GB/s), or operations at the
    measured peak (TFLOP/s; None where it was not measured), whichever takes longer."""
    moved = roofline.gemm_bytes(batch, n, k, WEIGHT_BYTES[format])
    return roofline.bound(moved, roofline.gemm_flops(batch, n, k), read_roof, peak).us


def crossing(format: str, read_roof: float, peak: float) -> float:
    """Tokens at which the operations take as long as the weights' bytes: read_roof in GB/s, peak in
    TFLOP/s.
    """
    return WEIGHT_BYTES[format] * peak * 1e3 / (2 * read_roof)


def crossings(read_roof: float, peak: float | None) -> None:
    """Say in figures at how many tokens each format's operations take as long as its bytes."""
    if peak is None:
        return display.say("The tensor cores' peak was not measured here, so this number is not known.")
    parts = []
    for name, format in (("INT4", "int4_g128"), ("FP16", "fp16")):
        parts.append(
            f"{WEIGHT_BYTES[format]:.3g} × {peak:,.0f} ÷ (2 × {read_roof / 1e3:.2f}) = "
            f"**{crossing(format, read_roof, peak):.0f} tokens** for {name}"
        )
    display.say(
        f"With TFLOP/s and TB/s: {' and '.join(parts)}. Between the two INT4 can still gain, but less with "
        "each token. Beyond the second both bounds are equal. The **ratio of the bounds** is INT4's gain "
        "where both kernels are equally far from their bounds; where FP16's is further off, the gain is "
        "larger."
    )


def where_it_stops(beyond: Rows, source: Lab, shapes: list[Any]) -> None:
    """Say on how many shapes FP16 is faster at the most tokens, and how far ours and FP16 are from their
    bounds on the shape that falls behind first and on the one ahead longest; every point, folded.
    """
    if beyond.empty:
        return
    at = beyond["batch"].max()
    last = beyond[beyond["batch"] == at]
    text = f"**At {at} tokens FP16 is faster on {(last['gain'] < 1).sum()} of {len(last)} shapes.**"
    columns = {
        "shape": "n × k",
        "batch": "Tokens",
        "rung": "Rung",
        "ours": "Ours (µs)",
        "rate": "Ours (TFLOP/s)",
    }
    columns |= {"FP16 cuBLAS": "FP16 (µs)", "gain": "Gain"}
    forms = {"ours": "{:.1f}", "FP16 cuBLAS": "{:.1f}", "rate": "{:.0f}", "gain": "{:.2f}"}
    table = beyond
    if {"dram_read", "fp16_tensor"} <= set(source.roof):
        table = _beside_bounds(beyond, source, shapes)
        columns |= {
            "possible": "Ratio of bounds",
            "fp16_over": "FP16 ÷ its bound",
            "over": "Ours ÷ its bound",
        }
        forms |= dict.fromkeys(("possible", "fp16_over", "over"), "{:.2f}")
        first = table[table["gain"] < 1].sort_values(["batch", "gain"], kind="stable").head(1)
        most = table[(table["batch"] == at) & (table["gain"] > 1)].sort_values("gain").tail(1)
        peak = source.roof["fp16_tensor"].value
        text += "".join(f" {_fallen(row)}" for row in first.itertuples())
        text += "".join(f" {_ahead(row, peak)}" for row in most.itertuples())
    display.say(text)
    title = f"Every point beyond a block's tokens, on {source.run.gpu}"
    display.table(table, columns, forms, title, folded=True)


def _beside_bounds(beyond: Rows, source: Lab, shapes: list[Any]) -> Rows:
    """The points with how many times its bound each of the two takes, `over` and `fp16_over`, and the gain
    that the bounds allow, `possible`.
    """
    read_roof, peak = (source.roof[name].value for name in ("dram_read", "fp16_tensor"))
    names, table = {f"{n:,} × {k:,}": (n, k) for n, k in shapes}, beyond.copy()
    points = list(table[["shape", "batch"]].itertuples(index=False))
    least = {
        format: [bound_us(*names[at.shape], at.batch, format, read_roof, peak) for at in points]
        for format in ("int4_g128", "fp16")
    }
    table["over"], table["fp16_over"] = (
        table["ours"] / least["int4_g128"],
        table["FP16 cuBLAS"] / least["fp16"],
    )
    table["possible"] = [fp16 / int4 for fp16, int4 in zip(least["fp16"], least["int4_g128"], strict=True)]
    return table


def _fallen(row: Any) -> str:
    """The point at which ours falls behind first, beside its bounds."""
    return (
        f"The first to fall behind is {row.shape}, at {row.batch} tokens: the ratio of the bounds is "
        f"{row.possible:.2f}, but "
        f"ours takes {row.over:.2f} times its bound and FP16 {row.fp16_over:.2f} times its own."
    )


def _ahead(row: Any, peak: float) -> str:
    """The point of the most tokens at which ours is still ahead furthest, and by what."""
    text = f"{row.shape} is still ahead at {row.batch}, {row.gain:.2f} times as fast"
    if row.possible < 1.02:
        text += ". Both bounds are equal there, so the lead is not INT4's: ours does "
        text += (
            f"{row.rate:.0f} TFLOP/s, cuBLAS {row.rate / row.gain:.0f} on this shape and {peak:.0f} on the "
        )
        text += "square product that sets the peak"
    return f"{text}."
