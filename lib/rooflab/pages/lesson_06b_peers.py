"""What lesson 06b says of the fastest library, what is published of it, and what passes the roof."""

from __future__ import annotations

from typing import Any

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import display
from rooflab.words import listed


def published(here: Lab, peer: Rows) -> str:
    """What was published of the peer of a row on this GPU model, at its shape, in words; empty without."""
    found = here.peers.read("attention")
    keys = ["operator", "impl", "seq", "heads", "kv_heads", "head_dim"]
    found = found[(found[keys] == peer[keys]).all(axis=1) & found["window"].isna()].dropna(subset=["tflop_s"])
    if found.empty:
        return ""
    best = found.sort_values("tflop_s").iloc[-1]
    return f"; published of it: {best['tflop_s']:,.0f} in {str(best['format']).upper()}, launch included"


def peers_words(here: Lab, own: Rows, peer: Rows, others: bool = True) -> str:
    """How the rung of a row compares with the fastest library recorded, and with figures of `others`."""
    who = f"the fastest library recorded, {peer['impl']} ({peer['tflop_s']:,.0f} TFLOP/s"
    who += f"{published(here, peer) if others else ''})"
    if not display.level(own, peer):
        return f"it {display.against(own, peer)} {who}"
    ratio = float(peer["median_us"]) / float(own["median_us"])
    if 1 / crossover.LEVEL <= ratio <= crossover.LEVEL:
        return f"it is level, within {crossover.LEVEL - 1:.0%}, with {who}"
    return f"it has {ratio:.2f} times the speed of {who}: a difference within the spread of the samples"


def _measured_again(here: Lab, own: Rows, peer: Rows) -> dict[str, float]:
    """The speed of ours over the peer's at the same shape in the study of power states, by state."""
    keys = ["format", "seq", "heads", "kv_heads", "head_dim", "causal"]
    rows = display.power_rows(here, "attention").fillna({"window": 0, "options": ""})
    rows = rows[(rows[keys] == own[keys]).all(axis=1)].dropna(subset="median_us")
    alike = own[["window", "options"]].fillna({"window": 0, "options": ""})
    rows = rows[(rows["window"] == alike["window"]) & (rows["options"] == alike["options"])]
    found = {}
    for state in ("burst", "sustained"):
        both = rows[rows["state"] == state].groupby("impl")["median_us"].min()
        if {own["impl"], peer["impl"]} <= set(both.index):
            found[state] = float(both[peer["impl"]] / both[own["impl"]])
    return found


def undecided(here: Lab, own: Rows, peer: Rows) -> bool:
    """Whether measurements of the same two at the same shape contradict each other on who is faster."""
    ratios = [float(peer["median_us"]) / float(own["median_us"]), *_measured_again(here, own, peer).values()]
    return min(ratios) < 1 < max(ratios)


def again(here: Lab, own: Rows, peer: Rows) -> str:
    """What the study of power states measured of the same two at the same shape: a sentence, or nothing."""
    states = _measured_again(here, own, peer)
    if not states:
        return ""
    kinds = {"burst": "in bursts", "sustained": "sustained"}
    said = [f"{states[state]:.2f} times{{}} {how}" for state, how in kinds.items() if state in states]
    said = [each.format("" if k else f" as fast as {peer['impl']}") for k, each in enumerate(said)]
    text = f"Measured again ([lesson 00b](00b_clocks.ipynb)), it is {listed(said)}"
    return text + ". So who is faster here is undecided" * undecided(here, own, peer)


def again_in_short(here: Lab, rows: Rows) -> str:
    """That the fastest rung and peer at the longest prompt of some rows were measured again, in a short
    sentence where another was ahead then; or nothing.
    """
    longest = rows[rows["seq"] == rows["seq"].max()].sort_values("median_us")
    own, peers = longest[longest["kind"] == "own"], longest[longest["kind"] == "peer"]
    told = again(here, own.iloc[0], peers.iloc[0]) if len(own) and len(peers) else ""
    if "undecided" not in told:
        return ""
    return (
        f" With {own.iloc[0]['seq']:,} a second measurement has the other ahead (first lines of this page)."
    )


def above_the_roof(every: Rows, spec: Any) -> None:
    """Say which kernels pass the roof of matrix products, and why they may; nothing where none does."""
    over = every[every["roof_fraction"] > 1].sort_values("roof_fraction", ascending=False)
    if over.empty:
        return
    most, rest = over.iloc[0], over.drop_duplicates(["impl", "head_dim"]).iloc[1:]
    text = f"At {most['seq']:,} tokens, {most['head_dim']} wide, {most['impl']} passes the matrix roof with "
    text += f"{most['tflop_s']:,.0f} TFLOP/s"
    if len(rest):
        others = []
        for (impl, kind), group in rest.groupby(["impl", "kind"], sort=False):
            rates = [f"{row['tflop_s']:,.0f} at {row['head_dim']} wide" for _, row in group.iterrows()]
            others.append(f"{impl}{' (a library)' * (kind == 'peer')} with {listed(rates)}")
        text += f". Others pass it, too, at their best: {'; '.join(others)}"
    text += ". That roof is what a library reached with random matrices in "
    text += "[lesson 01b](01b_roofs.ipynb), at the clock rate that their power draw allowed. "
    if spec:
        text += f"The datasheet's peak is {spec.fp16_tensor:,.0f}. "
    if spec and most["tflop_s"] <= spec.fp16_tensor:
        text += (
            "Less power may explain it, which is not tested: most weights of a softmax are near zero, and "
        )
        text += "multiplying those draws less."
    who = most["impl"] if rest.empty else "kernels"
    display.fold_parts(f"What may let {who} pass the matrix roof", [text])
