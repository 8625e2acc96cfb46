"""How the dispatcher and the kernels do on shapes that were drawn, not tuned (study `unseen`)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import dispatch
from rooflab.hardware.crossover import LEVEL
from rooflab.hardware.perf_model import plain

WRONG = 1.05  # a choice that costs more than this, over the fastest way measured, was wrong


def outcomes(rows: pd.DataFrame, recorded: pd.DataFrame, slug: str | None, arch: str) -> pd.DataFrame:
    """A row a drawn INT4 product of `rows`, in the order of tokens.

    Columns: n, k, batch; way, what the dispatcher takes by the recorded products `recorded` of the device
    `slug`; ours, the rung or way that then runs, and us, its microseconds; peer and peer_us, the fastest
    library; ratio, the peer's time over ours; cost, our time over that of the fastest way measured.
    """
    found: list[dict[str, Any]] = []
    mine = rows[(rows["operator"] == "int4") & rows["median_us"].notna()]
    two_op = plain("int4_g128").name
    for _, group in mine.groupby(["n", "k", "batch"], sort=False):
        n, k, batch = (int(group[size].iloc[0]) for size in ("n", "k", "batch"))
        ways = group[(group["kind"] == "own") | (group["impl"] == two_op)].sort_values("median_us")
        peers = group[(group["kind"] != "own") & (group["impl"] != two_op)].sort_values("median_us")
        if not (ways["kind"] == "own").any() or peers.empty:
            continue
        choice = dispatch.choose("int4_g128", n, k, batch, slug, arch, recorded=recorded)
        taken = ways[ways["impl"] == two_op] if choice.way == two_op else ways[ways["kind"] == "own"]
        if taken.empty:
            continue
        ours, peer = taken.iloc[0], peers.iloc[0]
        found.append(
            {"n": n, "k": k, "batch": batch, "way": choice.way}
            | {"ours": ours["impl"], "us": ours["median_us"]}
            | {"peer": peer["impl"], "peer_us": peer["median_us"]}
            | {"ratio": peer["median_us"] / ours["median_us"]}
            | {"cost": ours["median_us"] / ways["median_us"].iloc[0]}
        )
    columns = ["n", "k", "batch", "way", "ours", "us", "peer", "peer_us", "ratio", "cost"]
    return pd.DataFrame(found, columns=columns).sort_values("batch", ignore_index=True)


def won(found: pd.DataFrame) -> pd.DataFrame:
    """The shapes on which ours is at least as fast as every library, within the level of a tie."""
    return found[found["ratio"] >= 1 / LEVEL]


def wrong(found: pd.DataFrame) -> pd.DataFrame:
    """The shapes on which another way that was measured is faster by more than WRONG."""
    return found[found["cost"] > WRONG]
