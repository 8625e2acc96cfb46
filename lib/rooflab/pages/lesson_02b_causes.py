"""What lesson 02b rules out as the reason why products take longer than their bytes, and what it finds."""

from __future__ import annotations

import math
from typing import Any

from rooflab.pages import Rows
from rooflab.pages.lesson_02b_fixed import explains, layer_sum
from rooflab.studies import launch_rule
from rooflab.view import display
from rooflab.words import listed

BOUND = 60  # percent: a unit of the SMs that is busier may be the limit


def plan(products: Rows, step: Rows, timed: Rows, read: float, sms: int) -> None:
    """Say the question that lesson 02 left, what the counters rule out, and what the clock then finds."""
    count, least, took = layer_sum(products, read)
    causes = {
        "more bytes than their weights have": off_percent(products).abs().max() < 5,
        "arithmetic": step[step["class"] == "weight"].sm_pct.max() < BOUND,
        "too few blocks": not _may_decide(step, products, sms),
    }
    out, left = ([cause for cause, no in causes.items() if no == wanted] for wanted in (True, False))
    text = f"Why do {count} products take {took:.0f} µs instead of {least:.0f}? "
    not_it = listed([f"not {cause}" for cause in out])
    text += f"By the counters it is {not_it}. " if out else "The counters rule no cause out. "
    text += f"They do not rule out {listed(left)}" if left else ""
    if "too few blocks" in left and (some := _open(step, products, sms)):
        text += f" for {listed(f'`{part}`' for part in some)}"
    text += ". " if left else ""
    fixed, rate = launch_rule.line(timed.bytes, timed.median_us, read)
    due = count * fixed + layer_sum(products, rate)[1]
    if fixed < 0.05:
        text += "The clock then finds no fixed time."
    else:
        text += f"The clock then finds **a fixed time of {fixed:.1f} µs a product** besides that of its bytes"
    if fixed >= 0.05 and explains(count * fixed, due, took):
        text += ": together they make up the time. What the library does in it is not counted."
    elif fixed >= 0.05:
        text += f". Together they make {due:.0f} µs."
    display.say(text)


def off_percent(products: Rows) -> Rows:
    """How far the counted bytes of each product are from its weights' bytes, in percent."""
    return 100 * (products.counted / products.bytes - 1)


def _grids(step: Rows, products: Rows) -> tuple[Rows, Rows]:
    """With how many blocks each counted product is launched, the fewest first, and how busy it keeps the
    memory, in percent.
    """
    weights = step[step["class"] == "weight"].drop_duplicates("part").set_index("part")
    weights = weights[weights.index.isin(products.part)]
    counts = weights.grid.str.split("x").map(lambda sides: math.prod(map(int, sides)))
    return counts.sort_values(kind="stable"), weights.dram_pct


def _same_bytes(counts: Rows, busy: Rows, moved: Rows) -> tuple[Any, Any] | None:
    """Two products of about the same bytes, of which the first has clearly fewer blocks and yet keeps the
    memory as busy, or nearly; or None.
    """
    pairs = [(a, b) for a in counts.index for b in counts.index if 1.2 * counts[a] <= counts[b]]
    pairs = [(a, b) for a, b in pairs if abs(moved[a] / moved[b] - 1) < 0.1 and busy[a] > 0.9 * busy[b]]
    return max(pairs, key=lambda pair: counts[pair[1]] / counts[pair[0]], default=None)


def _same_blocks(counts: Rows, busy: Rows) -> tuple[Any, Any] | None:
    """Two products with as many blocks, of which the first keeps the memory much busier; or None."""
    pairs = [(a, b) for a in counts.index for b in counts.index if counts[a] == counts[b]]
    pairs = [(a, b) for a, b in pairs if busy[a] > 1.5 * busy[b]]
    return max(pairs, key=lambda pair: busy[pair[0]] / busy[pair[1]], default=None)


def _may_decide(step: Rows, products: Rows, sms: int) -> bool:
    """Whether products have fewer blocks than the GPU has SMs, and for some nothing speaks against that
    cause.
    """
    counts, busy = _grids(step, products)
    told = _same_bytes(counts, busy, products.set_index("part").bytes)
    return bool((counts < sms).any()) and (told is None or bool(_open(step, products, sms)))


def _each_block(counts: Rows, products: Rows) -> Rows:
    """GB/s that a block of each product reads in the running model."""
    return products.set_index("part").gb_s.reindex(counts.index) / counts


def _full(counts: Rows, products: Rows, sms: int) -> Any:
    """The fastest product that has a block for every SM, or None."""
    rates = products.set_index("part").gb_s.reindex(counts.index[counts >= sms])
    return rates.idxmax() if len(rates) else None


def _held(counts: Rows, products: Rows, sms: int) -> list[str]:
    """Products that leave SMs idle while a block of theirs reads at least as fast, or nearly, as one
    of the fastest product that leaves none.
    """
    full, each = _full(counts, products, sms), _each_block(counts, products)
    if full is None:
        return []
    return [str(part) for part in counts.index if counts[part] < sms and each[part] > 0.9 * each[full]]


def _few(counts: Rows, busy: Rows, products: Rows, sms: int) -> list[str]:
    """Products that leave half of the SMs or more without a block, and have fewer than any that speaks
    against blocks as the cause.
    """
    told = _same_bytes(counts, busy, products.set_index("part").bytes)
    return [
        str(part)
        for part in counts.index
        if told and 2 * counts[part] <= sms and counts[part] < counts[told[0]]
    ]


def _open(step: Rows, products: Rows, sms: int) -> list[str]:
    """Products whose time may be that of too few blocks, in the order of their blocks."""
    counts, busy = _grids(step, products)
    found = {*_few(counts, busy, products, sms), *_held(counts, products, sms)}
    return [str(part) for part in counts.index if part in found]


def blocks(step: Rows, products: Rows, sms: int) -> None:
    """Say whether the number of blocks, by the counted launches' grids, explains how busy products keep the
    memory.
    """
    counts, busy = _grids(step, products)
    if not (counts < sms).any():
        display.say(
            f"Each product has a block for every one of the {sms} SMs, so **blocks are not too few**."
        )
        return
    each = [
        f"{listed(f'`{part}`' for part in parts.index)} {count}" for count, parts in counts.groupby(counts)
    ]
    text = f"Are the blocks too few for the {sms} SMs? The products have {', '.join(each)}. "
    moved = products.set_index("part").bytes
    alike, equal = _same_bytes(counts, busy, moved), _same_blocks(counts, busy)
    if alike is None:
        text += "No two products of the same bytes have different numbers of blocks and keep the memory as "
        text += "busy, so these counters do not tell whether blocks or bytes decide."
    else:
        few, many = alike
        text += f"`{few}` and `{many}` move about the same bytes, with {counts[few]} and {counts[many]} "
        text += f"blocks, and keep the memory {busy[few]:.0f} and {busy[many]:.0f}% busy. "
        if equal is not None and moved[equal[1]] < moved[equal[0]]:
            large, small = equal
            text += f"`{large}` and `{small}` have as many blocks, {counts[large]}, and keep it "
            text += f"{busy[large]:.0f} and {busy[small]:.0f}% busy: `{small}` has "
            text += f"{moved[small] / moved[large]:.0%} of the bytes. "
        held, open_ = _held(counts, products, sms), _few(counts, busy, products, sms)
        text += "So **the number of blocks alone does not decide.**"
        text += _held_said(held, counts, products, sms)
        if open_ := [part for part in open_ if part not in held]:
            text += (
                f" {listed(f'`{part}`' for part in open_)} leave {sms - max(counts[open_])} or more of the "
            )
            text += (
                f"{sms} SMs without a block, and have few bytes, too: these counters cannot tell which of "
            )
            text += "the two holds them up."
    display.say(text)


def _held_said(held: list[str], counts: Rows, products: Rows, sms: int) -> str:
    """That blocks may still be too few for the products in `held`; empty without any."""
    if not held:
        return ""
    full, each = _full(counts, products, sms), _each_block(counts, products)
    words, idle = listed(f"`{part}` ({each[part]:.0f} GB/s)" for part in held), sms - max(counts[held])
    return (
        f" But it may be too small. A block of {words} reads about as fast as one of "
        f"`{full}` ({each[full]:.0f}) or faster, yet {idle} or more SMs have none: with more blocks "
        "these might take less time. That was not tried."
    )


def asked_again(weights: Rows) -> str:
    """That weight products ask L2 for much more than their matrix, where by their hit rates they do."""
    often = weights[weights.l2_hit_pct > 20]
    if often.empty:
        return ""
    each = [f"`{row.part}` for {row.mb / (1 - row.l2_hit_pct / 100):.1f} MB" for row in often.itertuples()]
    return (
        f" By their hit rates some products ask L2 for more than DRAM moves: {listed(each)}. What they ask "
        "for again is not known."
    )
