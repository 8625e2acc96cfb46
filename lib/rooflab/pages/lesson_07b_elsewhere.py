"""Lesson 07b's law on another GPU."""

from __future__ import annotations

from typing import Any

import rooflab.lab
from rooflab.analysis import extrapolation
from rooflab.hardware import device, perf_model
from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.view import display
from rooflab.words import counted


def laptop_known(here: Any, spec: Any, fit: Any) -> tuple[Store, Any, Rows]:
    """The published laptop's recording, its GPU's numbers, and its kernels beside what the law has."""
    published = rooflab.lab.open("replay", "rtx-4070-laptop-published").store
    there = perf_model.scaled(device.get("rtx-4070-laptop"), here, spec)
    return published, there, extrapolation.unseen(extrapolation.laptop_kernels(published), there, fit)


def laptop_predicted(here: Any, spec: Any, fit: Any) -> tuple[Store, Any, Rows]:
    """Show the published laptop's kernels as predicted; its recording, that GPU's numbers, the kernels."""
    laptop = device.get("rtx-4070-laptop")
    published, there, kernels = laptop_known(here, spec, fit)
    reached, fixed = here.gb_s / spec.dram_gb_s, fit.launch_us
    text = (
        f"Bandwidth: the {spec.name} reached {reached:.0%} of its datasheet's, so the law takes "
        f"{reached:.0%} of the laptop's {laptop.dram_gb_s:,.0f} GB/s: {there.gb_s:,.0f}. Peaks likewise. "
        f"The fixed time stays {fixed:.1f} µs."
    )
    many = kernels[kernels.one_us > 2 * fixed]
    if len(many):
        row = many.sort_values("one_us").iloc[-1]
        text += (
            f" So {row.label}, {row.n:,} × {row.k:,}, takes {row.one_us - fixed:.1f} µs for its bytes and "
        )
        text += f"{fixed:.1f} µs beside them: {row.one_us:.1f} µs."
    display.say(text)
    kernels["matrix"] = [f"{n}×{k}" for n, k in zip(kernels.n, kernels.k, strict=True)]
    heads = {"label": "kernel", "matrix": "matrix", "us": "published, µs"}
    heads |= {"one_us": "predicted, µs", "off": "off, %"}
    forms = {"us": "{:.2f}", "one_us": "{:.2f}", "off": "{:+.1f}"}
    display.table(kernels, heads, forms, f"{laptop.name}, kernels by Nsight Compute, one token")
    return published, there, kernels


def _through_l2(size: int, us: float) -> str:
    """Why the laptop reads `size` bytes faster than the law allows, as far as its rate tells."""
    laptop, rate = device.get("rtx-4070-laptop"), size / us / 1e3
    if rate <= laptop.dram_gb_s:
        return "; the record does not say why"
    return (
        f". {size / 1e6:.1f} MB in that time are {rate:,.0f} GB/s, more than its memory's "
        f"{laptop.dram_gb_s:,.0f}. The sweep repeats a product, so that weights may still be in its L2 of "
        f"{laptop.l2_mb:,.0f} MB; what share of them was not published. Nsight Compute, by default, empties "
        "the caches before every kernel. The law has no cache"
    )


def _mostly(kernels: Rows, fit: Any) -> str:
    """How many of the laptop's kernels hardly test the fixed time."""
    heavy = int((kernels.one_us > 5 * fit.launch_us).sum())
    if not heavy:
        return ""
    return (
        f" Bytes take over 80% of the time of {heavy}: they test the bandwidth, and hardly the "
        f"{fit.launch_us:.1f} µs."
    )


def laptop_errors(published: Store, there: Any, fit: Any, n: int, k: int, kernels: Rows) -> Rows:
    """Say how far off the laptop's kernels and its sweep are; the sweep, predicted."""
    swept = extrapolation.unseen(extrapolation.laptop_sweep(published), there, fit)
    calls = swept[(swept.n == n) & (swept.k == k)]
    first = calls[calls.batch == 1].set_index("label")
    display.say(
        f"The worst of the {len(kernels)} kernels is {kernels.off.abs().max():.1f}% off."
        + _mostly(kernels, fit)
        + (
            " The published *sweep* was timed by events, with launches: at one token it has "
            f"{first.us['INT4 loop']:.0f} µs for INT4 loop, decode-roofline's own kernel, and the profiler "
            f"{kernels.set_index('label').us['INT4 loop']:.0f}. The law predicts kernels; the sweep "
            "measured calls."
            if "INT4 loop" in first.index
            else ""
        )
    )
    fast = calls[(calls.label == "FP16 cuBLAS") & (calls.us < 0.9 * calls.one_us)]
    if len(fast):
        row = fast.iloc[0]
        display.say(
            f"At {counted(row.batch, 'token')} its FP16 product takes {row.us:.0f} µs where the law has "
            f"{row.one_us:.0f} ({row.off:+.0f}%){_through_l2(n * k * 2, float(row.us))}."
        )
    return swept


def lost_on_the_laptop(swept: Rows) -> None:
    """Say where the source's kernel lost on its laptop, beside the law."""
    theirs = extrapolation.published_lost(swept)
    lines = [
        f"{row.times:.1f} times slower than FP16 on {row.n:,} × {row.k:,} at {counted(row.batch, 'token')} "
        f"(the law: {row.law:.1f} times)"
        for row in theirs.itertuples()
    ]
    if lines:
        lines.append("It was launched, and read the weights, once for every token.")
        display.fold_items("Where the source's fused kernel lost on its own laptop", lines)
