"""What lesson 09c says of what lost: rungs that are slower than the one they change, and others' notes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis import regressions
from rooflab.hardware.crossover import LEVEL
from rooflab.pages import Rows
from rooflab.view import display
from rooflab.words import listed


class Cause(NamedTuple):
    """Why a rung can lose, by how it is built, and the part that shows it."""

    text: str
    part: str


CAUSES = {
    ("gemv", "2_coalesced"): Cause(
        "It has a thread for each column, where 1_strided has a warp of 32, so too few bytes are in flight.",
        "03b_filling",
    ),
    ("gemv_rows", "4_rows"): Cause(
        "It has half as many warps. Where rows are few, that costs more than the shared loads save.",
        "03d_rows",
    ),
    ("int4", "9_shared_x"): Cause(
        "Its blocks have 128 rows instead of 32: a small matrix has too few blocks to fill the GPU.",
        "04b_ladder",
    ),
    ("int4", "10_wgmma"): Cause(
        "It scales every weight, where 9_shared_x scales sums, one a token: that pays with many tokens.",
        "04c_batch",
    ),
    ("int4", "12_token_tiles"): Cause(
        "Its tiles are made for more than 64 tokens. With fewer, some of their columns are empty.",
        "04c_batch",
    ),
    ("attention", "8_head_dim_slices"): Cause(
        "It is made for heads too wide for one warp. On narrower ones its warps still exchange scores.",
        "06b_wide",
    ),
    ("decode_step", "8_tensor_attention"): Cause(
        "It is made for long contexts: it reads a key once for all heads of a group. After few keys that "
        "saves little.",
        "08_decoder",
    ),
}
# The lesson that climbs the ladder of an operator, for rungs without a cause.
_SHOWN = {
    **dict.fromkeys(("read", "write", "copy", "triad", "saxpy"), "01_bandwidth"),
    **{"gemv": "03_coalescing", "gemv_rows": "03d_rows", "int4": "04b_ladder", "q8_0": "05b_decode"},
    **{"mmq": "05d_mmq", "attention": "06_attention", "decode_attention": "06d_decode"},
    "decode_step": "08_decoder",
}
# What an operator computes.
_COMPUTES = {
    **{"read": "a sum of all values", "write": "constants written", "copy": "a copy", "triad": "a + s b"},
    **{"gemv": "FP32 matrix times vector, stored by columns", "gemv_rows": "FP16 matrix times vector"},
    **{"int4": "INT4 matrix product", "q8_0": "Q8_0 matrix times vector", "mmq": "Q8_0 matrix product"},
    **{"attention": "attention of a prompt", "decode_attention": "attention of one token"},
    "decode_step": "a decoder's whole token",
}


def slower_rungs(evidence: Any, gpu: str) -> Rows:
    """Show the rungs that are slower than the one they change, and why; these rungs."""
    slower = regressions.rungs(evidence).sort_values("factor", ascending=False)
    if slower.empty:
        display.say(f"No rung lost to the one that it changes on the {gpu}.")
        return slower
    table = []
    for _, rows in slower.groupby(["rung", "below", "idea"], sort=False):
        one = rows.iloc[0]
        span = dict.fromkeys(f"{each:.2f}" for each in (rows["factor"].min(), rows["factor"].max()))
        name = f"{one['rung']} of {listed(rows['operator'])}"
        what = listed(dict.fromkeys(_COMPUTES.get(each, each) for each in rows["operator"]))
        time = f"{' to '.join(span)} times {one['below']}'s"
        table.append((name, what, one["idea"], time, *_why(one), (one["operator"], one["rung"]) in CAUSES))
    heads = {"rung": "Rung", "what": "Computes", "idea": "What it changes", "time": "Its time"}
    heads |= {"why": "Why it lost", "part": "Part"}
    found = pd.DataFrame(table, columns=[*heads, "known"])
    if found["known"].any():
        display.table(found[found["known"]], heads)
    if not found["known"].all():
        heads["why"] = "Where it wins"
        caption = "Rungs of which the cause was not found"
        display.table(found[~found["known"]], heads, caption=caption, folded=True)
    return slower


def _why(row: Any) -> tuple[str, str]:
    """Why a rung lost, where that is known, and a shape at which it wins, if it does; the part to read on."""
    cause = CAUSES.get((row["operator"], row["rung"]))
    text = cause.text if cause else ""
    if row["least"] < 1 / LEVEL:
        text += f" It wins at {row['where']} ({row['least']:.2f} times)."
    part = cause.part if cause else _SHOWN.get(row["operator"], "")
    return text.strip(), part.partition("_")[0]


def given_up() -> None:
    """Show what the sources' authors tried for no or little gain."""
    names = {"change": "Tried", "brought": "Brought", "gpu": "On", "where": "Source"}
    caption = "Tried by the sources' authors, for no gain or a small one"
    display.table(regressions.given_up(), names, caption=caption, folded=True)
