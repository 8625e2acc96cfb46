"""What lesson 07's dispatcher chooses, and what that is worth."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from rooflab import dispatch
from rooflab.analysis import strategies
from rooflab.errors import LaunchError
from rooflab.hardware import device, perf_model
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import diagram, display
from rooflab.words import counted, listed

# Formats with the orders of their weights that a program holds (None: every order), and what a table says.
_HELD = {
    ("fp16", None): "FP16",
    ("int4_g128", None): "INT4 in both orders",
    ("int4_g128", ("tiles",)): "INT4 in tile order",
    ("q8_0", None): "Q8_0 in all three orders",
    ("q8_0", ("planes",)): "Q8_0 in planes",
    ("q8_0", ("tiles",)): "Q8_0 in tile order",
}
_ASKED = (1, 4, 24, 200)  # tokens
_UNMEASURED = ("q8_0", 6144, 4096, 40)  # format, n, k and tokens of a product to choose a kernel for


def chosen(lab: Lab) -> None:
    """Draw how the dispatcher chooses a kernel for a shape that no one has measured, from this recording."""
    rows, spec = strategies.gather(lab), lab.spec
    rows = rows[(rows.study == "regimes") & (rows.clock == "graph")]
    names = {how.name: strategies.label("", how.name).strip() for how in perf_model.STRATEGIES}
    drawing = diagram.choice(rows, spec.slug, _UNMEASURED, names) if spec else None
    if drawing is not None:
        display.say(
            "For a product that was not measured it takes three steps, among the kernels for the weights' "
            "format:"
        )
        drawing.show()
    display.say(
        "The nearest shape is the one with the least |log(n ratio)| + |log(k ratio)|. It counts only where n "
        f"and k, each larger over smaller, are off by a factor of at most {dispatch.NEAR:g} together. Beyond "
        "that, and on a GPU without a recording, the dispatcher takes the kernel that "
        "[lesson 07b](07b_predicting.ipynb)'s law predicts, and says so; but a GPU with the SMs of the "
        f"{device.get(dispatch.REFERENCE).name}, as many of the same kind, is served by that one's table. "
        "07b tries that where the memory differs, which says nothing of another architecture."
    )


def choose_all(spec: Any, n: int, k: int, recorded: Rows) -> Rows:
    """What the dispatcher chooses by format, orders held and tokens: columns held, format, orders, tokens,
    way, rung, why and us, its time on the recorded line that answers, and at, that line's tokens; without a
    way where none can run.
    """
    slug, arch, found = spec.slug if spec else None, spec.sm if spec else "75", []
    for (format, orders), held in _HELD.items():
        for tokens in _ASKED:
            try:
                choice = dispatch.choose(format, n, k, tokens, slug, arch, orders, recorded)
            except LaunchError:
                found.append(
                    (held, format, orders, tokens, "", "", "no kernel for it runs here", math.nan, 0)
                )
                continue
            mine = recorded[(recorded.format == format) & (recorded.impl == choice.strategy)]
            line = dispatch.line(mine, n, k, tokens)
            known = len(line) > 0 and choice.why.startswith("recorded")
            time, at = (line.median_us.iloc[0], int(line.batch.iloc[0])) if known else (math.nan, 0)
            found.append((held, format, orders, tokens, choice.strategy, choice.rung, choice.why, time, at))
    columns = ["held", "format", "orders", "tokens", "way", "rung", "why", "us", "at"]
    return pd.DataFrame(found, columns=columns)


def choices(picks: Rows, n: int, k: int) -> None:
    """Show which way runs by format, orders held and tokens, and say what holding one order costs; rungs and
    reasons folded.
    """
    shown = picks.assign(way=[strategies.label("", way).strip() or "none" for way in picks.way])
    brief = shown.pivot(index="held", columns="tokens", values="way").reindex(list(_HELD.values()))
    title = f"What runs, by weights held and tokens, {n:,} × {k:,}"
    names = {"held": "weights held"} | {tokens: f"{tokens:,}" for tokens in _ASKED}
    display.table(brief.reset_index(), names, None, title)
    cost = [text for (_, orders), held in _HELD.items() if orders and (text := _cost_of_one(picks, held))]
    if cost:
        display.say(
            "Every order is a copy of the weights. **One copy has fewer kernels to choose from.** At these "
            "numbers of tokens, against a program that holds every order:\n\n"
            + "\n".join(f"- {text}." for text in cost)
        )
    heads = {"held": "weights held", "tokens": "tokens", "way": "kernel", "rung": "rung", "us": "µs"}
    forms = {"us": "{:.1f}"}
    inside = [(shown, heads | {"why": "because"}, forms, f"{n:,} × {k:,}")]
    display.fold("Which rung of it, and why", inside)


def _cost_of_one(picks: Rows, held: str) -> str:
    """How much longer a program takes that holds one order, where both were recorded at the same number of
    tokens; nothing if nowhere.
    """
    one = picks[picks.held == held].set_index("tokens")
    every = picks[(picks.format == one.format.iloc[0]) & picks.orders.isna()].set_index("tokens")
    ratio = (one.us / every.us)[one.why == every.why].dropna()
    if ratio.empty:
        return ""
    text = f"{held} loses nothing"
    if ratio.max() > LEVEL:
        worst = counted(int(ratio.idxmax()), "token")
        text = f"{held} takes up to {ratio.max():.2f} times as long (at {worst})"
    missing = [tokens for tokens in one.index if tokens not in ratio.index]
    if not missing:
        return text
    if ratio.max() <= LEVEL:
        text += f" at {listed([f'{tokens:,}' for tokens in ratio.index])} tokens"
    text += f". It is not recorded at {listed([f'{tokens:,}' for tokens in missing])}"
    sizes = {int(one["at"][tokens]) for tokens in missing}
    if len(sizes) == 1 and min(sizes) > 0 and every.us[missing].notna().all():
        us = [f"{every.us[tokens]:.1f}" for tokens in missing]
        text += (
            f": there the product recorded for {counted(min(sizes), 'token')} runs, in "
            f"{one.us[missing[0]]:.1f} µs; with every order it takes {listed(us)}"
        )
    return text


def _over_library(lab: Lab) -> str:
    """How many times as fast as humming, a library's INT4 product, ours is at lesson 04's shapes: a sentence,
    or nothing where it was not recorded.
    """
    rows = lab.store.read("int4")
    rows = rows[(rows["operator"] == "int4") & (rows["cache"] == "cold") & (rows["clock"] == "graph")]
    rows, keys = rows.dropna(subset="median_us"), ["n", "k", "batch"]
    ours, theirs = (
        rows[which].groupby(keys)["median_us"].min()
        for which in (rows["kind"] == "own", rows["impl"] == "humming")
    )
    gain = (theirs / ours).dropna()
    if gain.empty:
        return ""
    return (
        f"Against humming, a library's INT4 product for serving, ours is {gain.median():.1f} times as fast "
        f"at the median of {counted(len(gain), 'product')} ([09c](09c_related.ipynb)). "
    )


def _span(few: int, many: int) -> str:
    """From how many tokens to how many."""
    return counted(few, "token") if few == many else f"{few:,} to {many:,} tokens"


def gains_over_plain(recorded: Rows, lab: Lab) -> None:
    """Show and say how much faster than the plain way, and than a library, the chosen kernels are."""
    worth = dispatch.lines(recorded)
    plain = {format: perf_model.plain(format).name for format in perf_model.FORMATS}
    worth = worth[worth.strategy != worth.format.map(plain)]
    by = worth.groupby("format").gain.agg(["size", "min", "median", "max"]).reset_index()
    tokens = worth.groupby("format").batch.agg(["min", "max"])
    by["plain"] = [strategies.label(format, plain[format]) for format in by.format]
    heads = {"format": "format", "plain": "over", "size": "products"}
    heads |= {"min": "least gain", "median": "median", "max": "largest gain"}
    forms = dict.fromkeys(("min", "median", "max"), "{:.2f}")
    caption = "How many times as fast as the plain way, where a kernel of ours is chosen"
    display.table(by, heads, forms, caption, folded=True)
    if len(by):
        gains = [
            f"{row.median:.1f} times as fast as {row.plain} ({counted(row.size, 'product')} of "
            f"{strategies.label(row.format, 'weights')}, {_span(*tokens.loc[row.format])})"
            for row in by.itertuples()
        ]
        display.say(
            f"{_over_library(lab)}Where the dispatcher takes a kernel of ours, not the plain way, it is at "
            f"the median {listed(gains)}. Two-op (dequantise, then cuBLAS) unpacks the weights for every "
            "product; the cuBLAS of “Other matrices” finds them unpacked, so the gains there are other ones."
        )


def reverted_choice(spec: Any, n: int, k: int, slug: str, recorded: Rows) -> None:
    """How a choice is undone, with the dispatcher's line for a product before and after; folded."""
    arch = spec.sm if spec else "75"
    usual = dispatch.choose("q8_0", n, k, 4, slug, arch, recorded=recorded)
    with dispatch.reverted("q8_0"):
        plainly = dispatch.choose("q8_0", n, k, 4, slug, arch, recorded=recorded)
    lines = [f"`{dispatch.says(choice, n, k, 4)}`" for choice in (usual, plainly)]
    display.fold_items(
        "A choice can be undone",
        [
            "`ROOFLAB_PLAIN=q8_0/mma` (or a format, or `all`) in the environment sends products back to the "
            "plain way without touching code; inside a program `with dispatch.reverted(...)` does.",
            f"The log's line names the path and the reason: {lines[0]}, and reverted: {lines[1]}.",
            "A way that cannot take its operands raises: nothing falls back in silence.",
        ],
    )
