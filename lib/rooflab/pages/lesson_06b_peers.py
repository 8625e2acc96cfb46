"""What lesson 06b says of the fastest library: how it was called, and what is published of it."""

from __future__ import annotations

from typing import Any

from rooflab.analysis import related
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import display


def published(here: Lab, peer: Rows) -> float:
    """TFLOP/s that others published of the peer of a row on this GPU model, at its shape; or NaN."""
    found = here.peers.read("attention")
    keys = ["operator", "impl", "seq", "heads", "kv_heads", "head_dim"]
    found = found[(found[keys] == peer[keys]).all(axis=1) & found["window"].isna()].dropna(subset=["tflop_s"])
    return float(found["tflop_s"].max())


def peers_words(here: Lab, peer: Rows) -> str:
    """The rate of the fastest library of a recording, how it was called, and what is published of it."""
    text = f"the fastest library recorded, {peer['impl']}, makes {peer['tflop_s']:,.0f}"
    text += " by its default backend" if related.called(peer["impl"]) else ""
    other = published(here, peer)
    return text + (f", and {other:,.0f} are published of it" if other == other else "")


def peer_as_called(here: Lab, sweep: Any, width: int) -> None:
    """Say what the record knows of a library that stays far below what is published of it."""
    rows = sweep(width)
    peers = rows[(rows["kind"] == "peer") & (rows["seq"] == rows["seq"].max())].sort_values("median_us")
    if peers.empty:
        return
    peer = peers.iloc[0]
    other, how = published(here, peer), related.called(peer["impl"])
    if how and peer["tflop_s"] < 0.8 * other:
        display.say(
            f"**{peer['impl']} makes {peer['tflop_s'] / other:.0%} of its published rate here**, "
            f"{peer['tflop_s']:,.0f} of {other:,.0f} TFLOP/s. In this recording {how}. The published rate is "
            "of the same version of the package, in BF16, by events around single calls; its record does not "
            "name the backend. So a factor over this peer is one over its default call, not over the best "
            "that the library can do."
        )
