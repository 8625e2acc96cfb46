"""Batches that outgrow lesson 04c's rungs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.studies import int4 as study
from rooflab.view import display
from rooflab.words import counted


def free_up_to(table: Rows, near: float = 0.05) -> tuple[int, float]:
    """Up to how many tokens the bound of INT4, column `ours` of `table`, stays within the share `near` of
    that of the fewest; and that share.
    """
    return int(table["batch"][table["ours"] <= (1 + near) * table["ours"].iloc[0]].max()), near


def growth_by_batch(one: Rows, table: Rows, here: Lab, read_roof: float) -> None:
    """Say how each contestant's time grows with the batch, ours beside the bound in `table` and beside
    weights that are read anew for each token, where L2 cannot hold them.
    """
    us = one.pivot(index="batch", columns="who", values="median_us")
    timed = us[us["ours"].notna()] if "ours" in us else us
    grown = timed.iloc[-1] / timed.iloc[0]
    free, least = free_up_to(table)[0], table.set_index("batch")["ours"]
    text = ""
    if free > us.index[0] and {us.index[0], free} <= set(us["ours"].dropna().index) & set(least.index):
        first, more = us.index[0], us["ours"][free] / us["ours"].iloc[0]
        text += f"**Predicted for {free} tokens: {least[free] / least[first]:.2f} times the time of {first}. "
        text += f"Measured: {more:.2f} times.** "
    bold = "" if text else "**"
    text += f"{bold}From {timed.index[0]} to {timed.index[-1]} tokens our time "
    text += f"{display.change(grown['ours'])}{bold}"
    others = [who for who in ("FP16 cuBLAS", "humming", "tinygemm") if who in us]
    text += "".join(f", {who}'s {display.change(grown[who])}" for who in others) + ". "
    for who in us.columns.intersection(("ours", "humming", "tinygemm", "two-op")):
        late = us.index[us[who] >= us["FP16 cuBLAS"]]
        if len(late) == us[who].count():
            text += f"{who.capitalize()} is nowhere faster than FP16. "
        elif len(late):
            on = list(late) == [batch for batch in us.index if batch >= late[0]]
            text += f"{who.capitalize()} is " + ("" if on else "first ")
            text += f"no faster than FP16 {'from' if on else 'at'} {counted(late[0], 'token')}{' on' * on}. "
    display.say((text + _read_anew(one, here, read_roof)).strip())


def _read_anew(one: Rows, here: Lab, read_roof: float) -> str:
    """How long the weights alone would take, read from DRAM for each of the most tokens; nothing where L2
    holds them, or where ours takes longer.
    """
    ours = one[one["who"] == "ours"].dropna(subset="median_us").sort_values("batch")
    if ours.empty or ours["batch"].iloc[-1] == 1:
        return ""
    last = ours.iloc[-1]
    weights = int(last["n"]) * int(last["k"]) * WEIGHT_BYTES["int4_g128"]
    each = weights / read_roof / 1e3
    if weights < int(here.run["l2_bytes"]) or not last["median_us"] < last["batch"] * each:
        return ""
    tokens = last["batch"]
    text = (
        f"Read from DRAM for each of {tokens} tokens, the weights alone would take {tokens} × {each:.1f} = "
    )
    return f"{text}{tokens * each:,.0f} µs; ours takes {last['median_us']:.1f} µs."


def large_batches(shapes: list[Any], here: Lab, titles: dict[str, Any]) -> tuple[Lab, Rows]:
    """Show the gain over FP16 at more tokens than a block holds; its lab and rows."""

    def measured(there):
        cases = [c for n, k in shapes for c in study.many(n, k, device=there.sized)]
        return there.measure("int4", [c for c in cases if c in there.cases("int4")])

    wide, source = measured(here), here
    if not (wide["kind"] == "own").any():
        source = display.borrowed(here, "no product of ours of so many tokens was measured")
        wide = measured(source)
    wide["who"] = wide["impl"].where(wide["kind"] != "own", "ours").replace(titles)
    wide["shape"] = [f"{n:,} × {k:,}" for n, k in zip(wide["n"], wide["k"], strict=True)]
    beyond = wide.pivot(index=["shape", "batch"], columns="who", values="median_us")
    beyond = beyond.reindex([f"{n:,} × {k:,}" for n, k in shapes], level="shape").reset_index()
    ours = wide[wide["kind"] == "own"].set_index(["shape", "batch"])
    places = pd.MultiIndex.from_frame(beyond[["shape", "batch"]])
    beyond["rate"] = ours["tflop_s"].reindex(places).to_numpy()
    beyond["rung"] = ours["impl"].str.partition("_")[0].reindex(places).to_numpy()
    for name, other in (("gain", "FP16 cuBLAS"), ("two", "two-op")):
        beyond[name] = beyond[other] / beyond["ours"]
    table = beyond.pivot(index="shape", columns="batch", values="gain").reindex(
        [f"{n:,} × {k:,}" for n, k in shapes]
    )
    table.columns = [f"b{batch}" for batch in table.columns]
    names = {"shape": "n × k"} | {name: f"{name[1:]} tokens" for name in table}
    rungs = sorted({int(impl.partition("_")[0]) for impl in wide.loc[wide["kind"] == "own", "impl"]})
    title = f"Ours (rung {' or '.join(map(str, rungs))}), how many times as fast as FP16 cuBLAS on "
    title += source.run.gpu
    display.table(table.reset_index(), names, dict.fromkeys(table, "{:.2f}"), title)
    return source, beyond
