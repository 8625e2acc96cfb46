"""When each block passes each mark of a decoded token: a timeline from inside the kernel.

A rung of decode_step is compiled with TIMELINE = 1 (kernels/common/decoder/timeline.cuh), which makes a
block's first thread write its SM's clock at the marks of every phase. Marks cost some hundredths of a token;
without the macro a rung is the very machine code that is timed elsewhere.

    table = timeline.token(timeline.marks(spec.shape, weights, engine.state, "6_producer_warps"))
    timeline.phases(table)  # where a token's time goes, phase by phase
    timeline.layer(table)   # a layer of it, a row a block: what a recording holds
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.errors import UsageError
from rooflab.ops import decoder

BLOCKS, MARKS, STEPS = 160, 2048, 3  # of the kernel's array; tokens that are run, of which the last is read
BEGIN, X_READY, MULTIPLIED, SUMMED, END, NS = range(6)
PHASES = ("qkv", "attend", "out", "gate_up", "down", "head")
COLUMNS = (
    *("block", "layer", "phase"),
    *("begin_us", "ready_us", "multiplied_us", "summed_us", "end_us", "starved_us"),
)
# A recorded layer: when each block passes each mark of its phases.
LAYER = (
    *("block", "layer"),
    *(
        f"{phase}_{mark}_us"
        for phase in PHASES[:-1]
        for mark in (
            ("begin", "end") if phase == "attend" else ("begin", "ready", "multiplied", "end", "starved")
        )
    ),
)


def marks(shape: decoder.Shape, weights: decoder.Weights, state: decoder.State, rung: str) -> np.ndarray:
    """Decode three tokens by a persistent rung and return the marks of all blocks, [blocks, 2048, 2] uint64:
    clocks, and kinds with their numbers. UsageError for a rung of one launch a phase, or for more than 160
    blocks.
    """
    if rung not in decoder.PERSISTENT or state.blocks > BLOCKS:
        raise UsageError(
            f"A timeline is of one of {', '.join(decoder.PERSISTENT)} on at most {BLOCKS} blocks, not of "
            f"{rung} on {state.blocks}."
        )
    chosen = ops.rung_of(decoder.LADDERS["decode_step"], rung, rung)
    timed = replace(chosen, defines={**chosen.defines, "TIMELINE": 0})
    made = decoder.prepared(timed, shape, weights, state, 0.0, 0, {"TIMELINE": 1})
    tail = decoder.tail_of(chosen, shape, weights, state, STEPS)
    made.function.launch(
        state.blocks, made.threads, [*made.arguments, *tail], shared=made.shared, cooperative=True
    )
    return made.function.read("timeline", (BLOCKS, MARKS, 2), "uint64")[: state.blocks]


def token(found: np.ndarray) -> pd.DataFrame:
    """The last token of `marks` as rows, one for each block and phase, in microseconds since the first block
    began: when it began (waiting for x included), when x was there, when its first warp had multiplied, when
    all warps had, and when it ended; `starved_us` of multiplying went by without weights. ATTEND has a
    beginning and an end alone.
    """
    rows: list[tuple[Any, ...]] = []
    for block, own in enumerate(found):
        kinds, numbers, clocks = own[:, 1] & 255, own[:, 1] >> 8, own[:, 0].astype(np.float64)
        ties = np.flatnonzero((kinds == NS) & (numbers > 0))[:STEPS]
        if len(ties) < STEPS:
            raise UsageError("These marks hold no three whole tokens; a model of 28 layers has room.")
        first, last = ties[0], ties[-1]
        ns = numbers[[first, last]].astype(np.float64)
        rate = (ns[1] - ns[0]) / (clocks[last] - clocks[first])
        us = (ns[1] + (clocks - clocks[last]) * rate) / 1e3
        of_clock = rate / 1e3
        row: dict[str, Any] = {}
        for at in range(ties[-2] + 1, last):
            kind, number = int(kinds[at]), int(numbers[at])
            if kind == BEGIN:
                row = {"block": block, "layer": number // 8, "phase": PHASES[number % 8], "begin_us": us[at]}
            elif kind == END:
                rows.append(tuple({**row, "end_us": us[at]}.get(name, np.nan) for name in COLUMNS))
            else:
                row[("", "ready_us", "multiplied_us", "summed_us")[kind]] = us[at]
                if kind == MULTIPLIED:
                    row["starved_us"] = number * of_clock
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    start = table["begin_us"].min()
    timed = [name for name in COLUMNS[3:] if name != "starved_us"]
    table[timed] = table[timed] - start
    return table


def phases(table: pd.DataFrame) -> pd.DataFrame:
    """What `token` gave, summed up: of each phase the medians over blocks and layers, in microseconds.
    `x_us` until x is there, `multiply_us` of a block's first warp, of which it was `starved_us` without
    weights, `others_us` until the block's other warps are done, `finish_us` for what follows the products;
    and `span_us` from the first block's beginning to the last one's end.
    """
    parts = table.assign(
        x_us=table["ready_us"] - table["begin_us"],
        multiply_us=table["multiplied_us"] - table["ready_us"],
        others_us=table["summed_us"] - table["multiplied_us"],
        finish_us=table["end_us"] - table["summed_us"],
    )
    names = ["x_us", "multiply_us", "starved_us", "others_us", "finish_us"]
    found = parts.groupby("phase", sort=False)[names].median()
    each = table.groupby(["phase", "layer"], sort=False)
    found["span_us"] = (each["end_us"].max() - each["begin_us"].min()).groupby("phase", sort=False).median()
    return found.reindex([name for name in PHASES if name in found.index])


def layer(table: pd.DataFrame) -> pd.DataFrame:
    """The layer of `token` that takes the median time, a row a block with the columns LAYER: microseconds
    since the layer's first block began, to the nanosecond. A layer lasts until the next one, or the head,
    begins.
    """
    begins = table.groupby("layer")["begin_us"].min().sort_index()
    lasts = begins.diff().shift(-1).dropna().sort_values()
    if lasts.empty:
        raise UsageError("A token of one layer and no head has no layer whose end is seen.")
    number = lasts.index[(len(lasts) - 1) // 2]
    mine = table[table["layer"] == number]
    found = pd.DataFrame({"block": sorted(mine["block"].unique()), "layer": number})
    for name in LAYER[2:]:
        phase, _, mark = name.removesuffix("_us").rpartition("_")
        values = mine[mine["phase"] == phase].set_index("block")[f"{mark}_us"]
        since = 0.0 if mark == "starved" else begins[number]
        found[name] = (found["block"].map(values) - since).round(3)
    return found[[*LAYER]]
