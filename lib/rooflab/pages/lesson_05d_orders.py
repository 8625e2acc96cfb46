"""Lesson 05d's later ideas: tile order, and k divided among blocks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import q8_0
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.ops import stream_k
from rooflab.pages import Rows
from rooflab.studies import mmq as study
from rooflab.view import diagram, display
from rooflab.words import counted

_LEFT_OVER = (
    "Rung 7 gives each SM one tile after another. In the last wave there may be fewer tiles than SMs, and "
    "some SMs idle. Rung 8 ([source](../kernels/mmq/8_stream_k.cu)) cuts the tiles left over along k, so "
    "that every SM has an equal part; the parts' sums are then added."
)

_STREAM_K = """
Rung 8 is rung 7 with persistent blocks. Each takes its part of the tiles left over, which are divided along
k, then tile after tile ([**stream-K**](https://arxiv.org/abs/2301.03598), as INT4's rung 13 in
[04c](04c_batch.ipynb)). It does them first, so that the sums that other blocks need are written early.
"""


def rung_8(here: Lab, rows: Rows, gpu: str, tokens: int, n: int, k: int) -> None:
    """Say what dividing a tile's k is worth on this product; folded, how it is done and where it pays."""
    by, result = rows.set_index("impl")["tflop_s"].dropna(), ""
    if {"7_fp16_wgmma", "8_stream_k"} <= set(by.index):
        before, after = float(by["7_fp16_wgmma"]), float(by["8_stream_k"])
        level = max(before, after) / min(before, after) < LEVEL
        what = "makes no difference" if level else "helps" if after > before else "does not help"
        result = f" At {n:,} × {k:,} by {tokens:,} tokens rung 8 {what}: {after:,.0f} TFLOP/s, rung 7 "
        result += f"{before:,.0f}"
        result += f" (within {LEVEL - 1:.0%} is level)." if level else "."
    _turns(here, rows, result)
    _divided_along_k(here, gpu, _LEFT_OVER)


def _turns(here: Lab, rows: Rows, result: str) -> None:
    """Say how many turns of the SMs rung 7's tiles are on this product, how full these are, and what came
    of dividing tiles.
    """
    mine = rows[rows["impl"] == "7_fp16_wgmma"]
    if mine.empty:
        return
    weights, activations, _ = study.reads(study.Mmq().case(mine["case"].iloc[0]))
    tiles, sms = weights * activations, int(here.run["sms"])
    turns = -(-tiles // sms)
    full = tiles / turns / sms
    text = f"Here rung 7 has {tiles:,} tiles for {sms} SMs: {counted(turns, 'wave', 'waves')}, in "
    text += f"which {full:.0%} of them have work."
    display.say(text + " So there is little to win." * (full > 0.95) + result)


def tile_order(here: Lab) -> None:
    """Say what weights in tile order are worth: rung 9 over rung 8, and beside cuBLAS on FP16."""
    names = ("8_stream_k", "9_tile_order", "torch.matmul")
    cases = [c for c in here.cases("mmq") if c.cache == "cold" and not c.options and c.impl in names]
    rows = here.measure("mmq", here.held("mmq", cases))
    found = q8_0.gains(rows, *names[:2])
    if found.empty:
        return
    text = f"Over {len(found)} products rung 9 is {found['gain'].min():.2f} to {found['gain'].max():.2f} "
    text += f"times as fast as rung 8, {found['gain'].median():.2f} times at the median. "
    rival = q8_0.gains(rows, names[2], names[1])
    rival = rival[rival["batch"] > 32]
    if len(rival):
        level = (rival["gain"] >= 1 / LEVEL).sum()
        text += "cuBLAS on resident FP16 weights reads nearly twice the bytes. Beyond 32 tokens rung 9 is "
        text += f"level with it (within {LEVEL - 1:.0%}) or ahead at {level} of {len(rival)} products; at "
        text += f"the worst of them it is {rival['gain'].min():.2f} times as fast."
    parts = [text, _exchange(found), _widths(found)]
    display.fold_parts("Rung 9 on other shapes: shared tiles, and tiles that fit", filter(None, parts))


def small_matrices(here: Lab) -> None:
    """Show rungs 9 and 10 and cuBLAS on small matrices, and say what rung 10 is worth there."""
    cases = [c for c in here.cases("mmq") if c.matrix in study.SMALL and c.impl != study.BASELINE]
    rows = here.measure("mmq", here.held("mmq", cases))
    if rows.empty:
        display.say(f"On the {here.run['gpu']} rung 10 is not yet measured.")
        return
    wide = rows.pivot_table("median_us", ["n", "k", "batch"], "impl").reset_index()
    names = {"9_tile_order": "Rung 9", "10_k_groups": "Rung 10", "torch.matmul": "cuBLAS, FP16 weights"}
    shown = {name: f"{head} (µs)" for name, head in names.items() if name in wide}
    wide["shape"] = [f"{row.n:,} × {row.k:,}, {row.batch} tokens" for row in wide.itertuples()]
    wide.attrs = dict(rows.attrs)
    forms = dict.fromkeys(shown, "{:.2f}")
    display.table(wide, {"shape": "Product"} | shown, forms, "Products of fewer tiles than SMs", folded=True)
    if {"9_tile_order", "10_k_groups"} <= set(wide):
        gain = (wide["9_tile_order"] / wide["10_k_groups"]).dropna()
        text = f"*Rung 10 on the {here.run['gpu']}*: {gain.min():.2f} to {gain.max():.2f} times as fast as "
        text += f"rung 9 on {counted(len(gain), 'small product')}"
        if "torch.matmul" in wide:
            rival = (wide["torch.matmul"] / wide[["9_tile_order", "10_k_groups"]].min(axis=1)).dropna()
            text += f"; the faster of the two {rival.min():.2f} to {rival.max():.2f} times as fast as cuBLAS "
            text += "on weights that are FP16 already"
        display.say(f"{text}.")


def _widths(found: Rows) -> str:
    """Say what tiles of every width by eights are worth over rung 8's few, by the law of time."""
    rung, coarse = "mmq/9_tile_order", tuple(law.tokens for law in stream_k.laws("mmq/8_stream_k"))
    many = found[found["batch"] > min(coarse)]
    if many.empty:
        return ""
    sizes = [(row.n, row.k, row.batch) for row in many.itertuples()]
    worth = pd.Series(
        [stream_k.predicted_us(rung, *at, coarse) / stream_k.predicted_us(rung, *at) for at in sizes]
    )
    n, k, batch = sizes[int(worth.idxmax())]
    tokens = stream_k.options_for(rung, n, k, batch)["TOKENS"]
    text = "**Tiles fit the tokens.** "
    text += (
        "A tile's tokens are the columns of `wgmma`, which takes every multiple of 8 up to 256. Rung 8 is "
    )
    text += f"built for {len(coarse)} widths from {min(coarse)} on, rung 9 for every one. A width that fits "
    text += "the tokens leaves fewer columns without tokens, and tiles that fill the SMs better. By the "
    text += f"same rule, fitted for each width on an H200, this saves {1 - 1 / worth.median():.1%} "
    text += f"at the median of these {len(many)} products of more than {min(coarse)} tokens, and most, "
    text += f"{1 - 1 / worth.max():.0%}, on {n:,} × {k:,} by {batch:,} tokens, in tiles of {tokens}. The two "
    return text + "were not recorded side by side."


_EXCHANGE = """
```text
my part of the tile's k is multiplied: sums
write sums to L2; count myself in
wait until all blocks of the tile are counted
for my share of the tile's outputs:
    y = what block 0 left + what block 1 left + ...
```

The blocks of a tile wait for one another, so all must run at the same time: a cooperative launch asks for it.
([Source](../kernels/common/split_sums.cuh))
"""


def _exchange(found: Rows) -> str:
    """Say how the blocks of a tile add it up together, and on which products that is chosen."""
    rung = "mmq/9_tile_order"
    macros = [stream_k.options_for(rung, row.n, row.k, row.batch) for row in found.itertuples()]
    parts = pd.Series([each.get("PARTS", 0) for each in macros], index=found.index)
    text = "**Blocks add up a shared tile together.** "
    text += "In rung 8 the block with the end of a tile adds what the others left, one after the other. Of "
    text += "few rows many blocks share a tile, and it waits for all of them. In rung 9 the blocks of such a "
    text += "tile exchange their sums: each adds up a share of the outputs. A rule in the launch code "
    text += "(`lib/rooflab/ops/stream_k.py`) adds up fitted costs of a tile's start, its steps and its sums "
    text += "for both, and takes the cheaper for each shape. "
    some = found[parts > 0]
    if len(some):
        others = found[parts == 0]["gain"].median()
        text += f"Here it takes the exchange on {len(some)} of {len(found)} products, with up to "
        text += (
            f"{parts.max()} blocks a tile; on these rung 9 is {some['gain'].median():.2f} times as fast as "
        )
        text += f"rung 8 at the median, on the others {others:.2f}. Tile order is in both figures. "
    else:
        text += "On these products that is never the exchange. "
    few = stream_k.options_for(rung, 1792, 10240, 80)
    if few.get("PARTS"):
        text += f"An example where it is: 1,792 × 10,240 by 80 tokens, {few['PARTS']} blocks a tile."
    return text + "\n" + _EXCHANGE


def _divided_along_k(here: Lab, gpu: str, said: str) -> None:
    """Show, folded, how rung 8 divides a tile's k, and where that is faster than rung 7."""
    cases = [c for c in here.cases("mmq") if c.cache == "cold" and not c.options]
    found = q8_0.divided_along_k(here.measure("mmq", [c for c in cases if study.takes_halves(c.impl)]))
    parts: list[Any] = [said, diagram.divided_along_k().html(), _STREAM_K]
    if len(found):
        by = found.groupby("where")["gain"].agg(["size", "min", "median", "max"])
        by = by.reindex([q8_0.IDLE, q8_0.WIDER, q8_0.NEITHER]).dropna().reset_index()
        names = {"where": "Where", "size": "Products", "min": "Least", "median": "Median", "max": "Most"}
        forms = {"size": "{:.0f}"} | dict.fromkeys(("min", "median", "max"), "{:.2f}×")
        waits = [law.other for law in stream_k.laws("mmq/8_stream_k") if law.shares]
        text = (
            "Rung 7 has too few tiles for the SMs where a product is small, or must take narrow ones to have "
        )
        text += (
            "enough, each of which reads all its weights again: that is what rung 8 has to gain. Dividing a "
        )
        text += "tile has a price. Its sums go through L2, and a block that adds another's takes "
        text += f"{min(waits):.1f} to {max(waits):.1f} µs longer on an H200. Rung 8 is faster by more than "
        text += f"{LEVEL - 1:.0%} at {(found['gain'] >= LEVEL).sum()} of {len(found)} products."
        parts += [text, (by, names, forms, f"Rung 8 ÷ rung 7, {gpu}: by what rung 7 leaves idle")]
    display.fold_parts("Rung 8: share the tiles left over, and where that is faster than rung 7", parts)
