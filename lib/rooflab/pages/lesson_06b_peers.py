"""What lesson 06b says of the fastest library: its rate, and what is published of it."""

from __future__ import annotations

from rooflab.lab import Lab
from rooflab.pages import Rows


def published(here: Lab, peer: Rows) -> float:
    """TFLOP/s that others published of the peer of a row on this GPU model, at its shape; or NaN."""
    found = here.peers.read("attention")
    keys = ["operator", "impl", "seq", "heads", "kv_heads", "head_dim"]
    found = found[(found[keys] == peer[keys]).all(axis=1) & found["window"].isna()].dropna(subset=["tflop_s"])
    return float(found["tflop_s"].max())


def peers_words(here: Lab, peer: Rows) -> str:
    """The rate of the fastest library of a recording, and what is published of it."""
    text = f"the fastest library recorded, {peer['impl']}, makes {peer['tflop_s']:,.0f}"
    other = published(here, peer)
    return text + (f", and {other:,.0f} are published of it" if other == other else "")
