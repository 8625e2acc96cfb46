"""What lesson 07's dispatcher chooses, and what that is worth."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import dispatch
from rooflab.analysis import strategies
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.view import display


def choices(asked: list[Any], picks: list[Any], n: int, k: int) -> None:
    """Show which way runs by format and tokens; rungs and reasons folded."""
    lines = [(c.format, b, c.strategy, c.rung, c.why) for (_, b), c in zip(asked, picks, strict=True)]
    lines = pd.DataFrame(lines, columns=["format", "tokens", "way", "rung", "why"])
    lines["way"] = [strategies.label("", way).strip() for way in lines["way"]]
    brief = lines.pivot(index="format", columns="tokens", values="way").reset_index()
    brief["format"] = [strategies.label(format, "").strip() for format in brief["format"]]
    title = f"What runs, by format and tokens, {n:,} × {k:,}"
    display.table(brief, {c: str(c) for c in brief.columns}, None, title)
    heads = {"format": "format", "tokens": "tokens", "way": "kernel", "rung": "rung"}
    display.fold("Which rung of it, and why", [(lines, heads | {"why": "because"}, None, f"{n:,} × {k:,}")])


def gains_over_plain(recorded: Rows) -> None:
    """Show and say how much faster than the plain way the chosen kernels are."""
    worth = dispatch.lines(recorded)
    plain = {format: perf_model.plain(format).name for format in perf_model.FORMATS}
    worth = worth[worth.strategy != worth.format.map(plain)]
    by = worth.groupby("format").gain.agg(["size", "min", "median", "max"]).reset_index()
    heads = {"format": "format", "size": "products"}
    heads |= {"min": "least gain", "median": "median", "max": "largest gain"}
    forms = dict.fromkeys(("min", "median", "max"), "{:.2f}")
    caption = "How many times as fast as cuBLAS on unpacked weights, where a kernel of ours is chosen"
    display.table(by, heads, forms, caption, folded=True)
    if len(by):
        low, high = by["median"].min(), by["median"].max()
        display.say(
            "Where the dispatcher takes a kernel of ours, the median gain over the plain way, cuBLAS on "
            "weights "
            f"unpacked to FP16, is {low:.1f} to {high:.1f} times, depending on the format."
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
