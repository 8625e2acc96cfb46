"""Lesson 07b's law on another GPU, and where crossovers lie."""

from __future__ import annotations

from typing import Any

import pandas as pd

import rooflab.lab
from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.studies import regimes
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
    forms = {"us": "{:.1f}", "one_us": "{:.1f}", "off": "{:+.1f}"}
    display.table(kernels, heads, forms, f"{laptop.name}, kernels by Nsight Compute, one token")
    return published, there, kernels


def _through_l2(size: int, us: float) -> str:
    """Why the laptop reads `size` bytes faster than the law allows, as far as its rate tells."""
    laptop, rate = device.get("rtx-4070-laptop"), size / us / 1e3
    if rate <= laptop.dram_gb_s:
        return "; the record does not say why"
    return (
        f". {size / 1e6:.1f} MB in that time are {rate:,.0f} GB/s, more than its memory's "
        f"{laptop.dram_gb_s:,.0f}: the sweep repeats a product, so that a part of the weights is still in "
        f"its L2 of {laptop.l2_mb:,.0f} MB; Nsight Compute, by default, empties the caches before every "
        "kernel. The law has no cache"
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
        f"The worst of the {len(kernels)} kernels is {kernels.off.abs().max():.0f}% off."
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


def _races(rows: Rows, here: Any, fit: Any, n: int, k: int) -> tuple[Rows, list[Any], list[Any], list[Any]]:
    """The races on a matrix: what was found, their pairs, the predicted crossovers, and which are right."""
    found = strategies.crossovers(rows, (n, k), clocks=("graph",))
    names = set(zip(found["first"], found["second"], strict=True))
    pairs = [pair for pair in strategies.PAIRS if pair.names in names]
    guesses = [extrapolation.predicted_crossover(pair, (n, k), here, fit) for pair in pairs]
    seen = found.set_index(["first", "second"])
    told = [extrapolation.agrees(seen.loc[p.names], guess) for p, guess in zip(pairs, guesses, strict=True)]
    return seen, pairs, guesses, told


def judged_races(rows: Rows, here: Any, fit: Any) -> tuple[list[Any], list[Any]]:
    """Of the races on the source's matrices which crossovers are right, and which kind each is."""
    right, kinds = [], []
    for n, k in regimes.SOURCE:
        seen, pairs, _, told = _races(rows, here, fit, n, k)
        right += told
        kinds += [seen.loc[p.names].kind for p in pairs]
    return right, kinds


def crossovers(rows: Rows, here: Any, fit: Any) -> Rows:
    """Say how many orders and crossovers the tuned law tells, and show every pair, folded; whether it is
    right on those that cross.
    """
    right, kinds = judged_races(rows, here, fit)
    cross = crossovers_right(right, kinds)
    tables = []
    for n, k in regimes.SOURCE:
        seen, pairs, guesses, told = _races(rows, here, fit, n, k)
        words = [{None: "first wins", 1: "second wins"}.get(guess, guess) for guess in guesses]
        cells = [strategies.briefly(seen.loc[p.names]) for p in pairs]
        lines = [(*p.names, cell, word) for p, cell, word in zip(pairs, cells, words, strict=True)]
        table = pd.DataFrame(lines, columns=["first", "second", "measured", "predicted"])
        table["told"] = ["not judged" if pd.isna(each) else "✓" if each else "✗" for each in told]
        heads = {"first": "few tokens", "second": "many tokens"}
        heads |= {"measured": "measured", "predicted": "by the tuned law", "told": "right"}
        caption = f"{n:,} × {k:,}: from how many tokens on the second is faster"
        tables.append((table, heads, {}, caption))
    display.fold_parts(
        "Every pair, on two matrices (no order: they change places more than once, or the second is faster "
        "at few tokens)",
        tables,
    )
    return cross


def order_told(right: list[Any], kinds: list[Any]) -> tuple[Rows, Rows]:
    """Whether the prediction is right, of pairs in which one way stays ahead, and of those that cross."""
    told = pd.DataFrame({"right": right, "cross": [kind == "crosses" for kind in kinds]}).dropna()
    stay, cross = (told.right[told.cross == each].astype(bool) for each in (False, True))
    return stay, cross


def crossovers_right(right: list[Any], kinds: list[Any]) -> Rows:
    """Say how many crossovers are predicted; those of pairs that cross."""
    one, cross = order_told(right, kinds)
    stays = f"on {one.sum()} of {len(one)} pairs in which one way stays ahead" if len(one) else ""
    turns = f"on {cross.sum()} of {len(cross)} that cross" if len(cross) else ""
    parts = " and ".join(filter(None, (stays, turns)))
    left = right.count(None)
    rest = f" {left} are level or have no order, and are not judged." if left else ""
    display.say(
        f"**The tuned law is right {parts}.**{rest}"
        if parts
        else "No pair was recorded that the law could predict."
    )
    return cross


def crossing_missed(compared: Rows, rows: Rows, here: Any, fit: Any) -> None:
    """Of the first crossover that the tuned law misses: how far apart the two curves are where they cross,
    beside the law's errors there.
    """
    for n, k in regimes.SOURCE:
        seen, pairs, guesses, told = _races(rows, here, fit, n, k)
        mine = compared[(compared.n == n) & (compared.k == k)]
        for pair, guess, right in zip(pairs, guesses, told, strict=True):
            found = seen.loc[pair.names]
            if found.kind != "crosses" or right:
                continue
            for tokens in (int(found.low), int(found.high)):
                at = mine[mine.batch == tokens].set_index(["format", "impl"])
                if set(pair) <= set(at.index):
                    between = f"between {int(found.low)} and {counted(int(found.high), 'token')}"
                    _missed_at(pair, at, f"{n:,} × {k:,}", tokens, between, guess)
                    return


def _missed_at(pair: Any, at: Rows, matrix: str, tokens: int, between: str, guess: int | None) -> None:
    """Say what the two ways of a pair take at some tokens, and what the tuned law has for them."""
    few, many = (at.loc[[way]].sort_values("median_us").iloc[0] for way in pair)
    offs = [f"{off:+.0f}".replace("-", "−") for off in (few.own_off, many.own_off)]
    where = "sees no crossover" if guess is None else f"has them cross at {counted(guess, 'token')}"
    display.say(
        f"**Why a crossover is harder than a time.** {pair.names[0]} and {pair.names[1]} on {matrix} cross "
        f"{between}. At {tokens} they take {few.median_us:.2f} and {many.median_us:.2f} µs, "
        f"{abs(many.median_us / few.median_us - 1):.0%} apart. The law has {few.own_us:.2f} ({offs[0]}%) and "
        f"{many.own_us:.2f} ({offs[1]}%), so it {where}. Where two curves lie close together, errors of this "
        "size move their crossing far."
    )


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
