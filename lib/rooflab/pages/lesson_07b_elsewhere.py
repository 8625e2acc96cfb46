"""Lesson 07b's law on another GPU."""

from __future__ import annotations

from typing import Any

import rooflab.lab
from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.view import display
from rooflab.words import counted, listed


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
        f"The {spec.name} reached {reached:.0%} of its datasheet's bandwidth, so the plain law takes "
        f"{reached:.0%} of the laptop's {laptop.dram_gb_s:,.0f} GB/s: {there.gb_s:,.0f}. Peaks likewise; the "
        f"fixed time stays {fixed:.1f} µs."
    )
    many = kernels[kernels.one_us > 2 * fixed]
    if len(many):
        row = many.sort_values("one_us").iloc[-1]
        text += (
            f" So {row.label}, {row.n:,} × {row.k:,}, takes {fixed:.1f} + {row.one_us - fixed:.1f} for its "
            f"bytes = {row.one_us:.1f} µs."
        )
    display.say(text)
    kernels["matrix"] = [f"{n} × {k}" for n, k in zip(kernels.n, kernels.k, strict=True)]
    heads = {"label": "kernel", "matrix": "matrix", "us": "published, µs"}
    heads |= {"one_us": "plain law, µs", "off": "off, %", "own_us": "tuned law, µs", "own_off": "off, % "}
    forms = {"us": "{:.2f}", "one_us": "{:.2f}", "own_us": "{:.2f}", "off": "{:+.1f}", "own_off": "{:+.1f}"}
    kernels["own_us"] = [_tuned(row, there, fit) for row in kernels.itertuples()]
    kernels["own_off"] = 100 * (kernels.own_us / kernels.us - 1)
    display.table(kernels, heads, forms, "The laptop's kernels, by Nsight Compute, one token")
    return published, there, kernels


def _tuned(row: Any, there: Any, fit: Any) -> float:
    """A published kernel's time by the tuned law; NaN of a way that it has no numbers of."""
    for how in perf_model.STRATEGIES:
        if strategies.label(how.format, how.name) == row.label and (how.format, how.name) in fit.own:
            return float(perf_model.us(how, row.n, row.k, row.batch, there, fit))
    return float("nan")


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


def laptop_near(kernels: Rows, fit: Any) -> None:
    """Say how far off the laptop's kernels are, and what they test."""
    heavy = int((kernels.one_us > 5 * fit.launch_us).sum())
    known = kernels[kernels.own_off.notna()]
    tuned = ""
    if len(known):
        worst = known.own_off.loc[known.own_off.abs().idxmax()]
        tuned = f" The tuned law's is {abs(worst):.1f}%, on {listed(dict.fromkeys(known.label))}"
        if len(known) < len(kernels):
            others = listed(dict.fromkeys(kernels.label[kernels.own_off.isna()]))
            tuned += f"; it has no numbers for {others}, which is not among the kernels it was fitted to"
        tuned += "."
    display.say(
        f"The plain law's worst is {kernels.off.abs().max():.1f}% off.{tuned}"
        + (
            f" Bytes take over 80% of the time of {heavy} of the {len(kernels)}: they test the "
            f"bandwidth, and hardly the {fit.launch_us:.1f} µs."
            if heavy
            else ""
        )
    )


def laptop_swept(published: Store, there: Any, fit: Any, n: int, k: int, kernels: Rows) -> None:
    """What the laptop's published sweep has beside the law, and where its fused kernel lost; folded."""
    swept = extrapolation.unseen(extrapolation.laptop_sweep(published), there, fit)
    calls = swept[(swept.n == n) & (swept.k == k)]
    first = calls[calls.batch == 1].set_index("label")
    parts = ["The published sweep was timed by events, with launches; the law predicts kernels."]
    if "INT4 loop" in first.index:
        parts.append(
            f"At one token it has {first.us['INT4 loop']:.0f} µs for INT4 loop, and "
            f"the profiler {kernels.set_index('label').us['INT4 loop']:.0f}."
        )
    fast = calls[(calls.label == "FP16 cuBLAS") & (calls.us < 0.9 * calls.one_us)]
    if len(fast):
        row = fast.iloc[0]
        parts.append(
            f"At {counted(row.batch, 'token')} its FP16 product takes {row.us:.0f} µs where the law has "
            f"{row.one_us:.0f} ({row.off:+.0f}%){_through_l2(n * k * 2, float(row.us))}."
        )
    theirs = extrapolation.published_lost(swept)
    parts += [
        f"INT4 loop is {row.times:.1f} times slower than FP16 on {row.n:,} × {row.k:,} at "
        f"{counted(row.batch, 'token')} (the law: {row.law:.1f} times)."
        for row in theirs.itertuples()
    ]
    if len(theirs):
        parts.append("It is launched, and reads the weights, once for every token.")
    display.fold_items("The laptop's published sweep, and where its INT4 kernel lost", parts)
