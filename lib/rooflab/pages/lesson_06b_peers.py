"""What lesson 06b says of the fastest library: its rate, and what is published of it."""

from __future__ import annotations

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import display


def published(here: Lab, peer: Rows) -> float:
    """TFLOP/s that others published of the peer of a row on this GPU model, at its shape; or NaN."""
    found = here.peers.read("attention")
    keys = ["operator", "impl", "seq", "heads", "kv_heads", "head_dim"]
    found = found[(found[keys] == peer[keys]).all(axis=1) & found["window"].isna()].dropna(subset=["tflop_s"])
    return float(found["tflop_s"].max())


def peers_words(here: Lab, own: Rows, peer: Rows, others: bool = True) -> str:
    """How the rung of a row compares with the fastest library of a recording, and what `others` published."""
    who = f"the fastest library recorded, {peer['impl']} ({peer['tflop_s']:,.0f} TFLOP/s"
    other = published(here, peer) if others else float("nan")
    who += f"; {other:,.0f} published by others, whose clock includes the launch)" if other == other else ")"
    if not display.level(own, peer):
        return f"it {display.against(own, peer)} {who}"
    ratio = float(peer["median_us"]) / float(own["median_us"])
    if 1 / crossover.LEVEL <= ratio <= crossover.LEVEL:
        return f"it is level, within {crossover.LEVEL - 1:.0%}, with {who}"
    return f"it has {ratio:.2f} times the speed of {who}: a difference within the spread of the samples"


def again(here: Lab, own: Rows, peer: Rows) -> str:
    """What the study of power states measured of the same two at the same shape: a sentence, or nothing."""
    keys = ["seq", "heads", "kv_heads", "head_dim", "causal"]
    rows = display.power_rows(here, "attention")
    rows = rows[(rows[keys] == own[keys]).all(axis=1) & rows["window"].isna()].dropna(subset="median_us")
    found = []
    for state, said in (("burst", "after a rest"), ("sustained", "while each runs on and on")):
        both = rows[rows["state"] == state].groupby("impl")["median_us"].min()
        if {own["impl"], peer["impl"]} <= set(both.index):
            found.append(f"{both[peer['impl']] / both[own['impl']]:.2f} times {said}")
    return f"Measured again for lesson 00b: {' and '.join(found)}" if found else ""
