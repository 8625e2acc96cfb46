"""What lesson 02 says of the host's part in an eager token: how its time scatters, by context and by run."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import way as ladder
from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.studies import attribution, decode
from rooflab.view import display
from rooflab.words import listed


def scatter_said(busy: Rows) -> None:
    """Say how far an eager token's time scatters over the contexts of `busy`, and whether samples of one
    context do, too.
    """
    every = busy[busy.variant == "eager"].sort_values("seq")
    calls, each = every.wall_us, every.wall_per_launch_us
    if len(calls) < 2 or calls.max() < 1.1 * calls.min():
        return
    wide = float(((every.q3_us - every.q1_us) / calls).max())
    text = "An eager token takes as long as the host needs, and **the host's time scatters**: at the "
    text += f"{len(calls)} contexts measured, {_between(every.launches)} launches took "
    text += f"{calls.min() / 1e3:.1f} to {calls.max() / 1e3:.1f} ms, {each.min():.1f} to {each.max():.1f} µs "
    text += "a launch"
    text += "" if calls.is_monotonic_increasing else ", and not more with more context"
    text += f". So the busy share, {every.busy_pct.min():.0f} to {every.busy_pct.max():.0f}% by context, is "
    text += "rough. "
    text += (
        f"Samples of one context lie closer together (q3 − q1: {100 * wide:.0f}% at most)"
        if wide < 0.5 * (calls.max() / calls.min() - 1)
        else f"Samples of one context scatter, too (q3 − q1: up to {100 * wide:.0f}%)"
    )
    display.say(f"{text}. Why the host was slower or faster was not measured.")


def standing(store: Store) -> None:
    """Say where the lesson stands on the decoder's ladder, and how its figures there differ from this page's,
    by `store`.
    """
    text = f"{ladder.place('02', store)} The ladder times several tokens in a row, in a run of its own; this "
    text += "page times one token again and again."
    display.say(text + _apart(store))


def _apart(store: Store) -> str:
    """How far the two runs of a recording are apart, way by way; empty where it lacks one of them."""
    there = ladder.ladder(store).set_index("impl").tok_s
    rows = store.read("attribution")
    rows = rows[(rows.operator == "decode") & (rows.seq == decode.PROMPT) & (rows.model == attribution.MODEL)]
    here = rows.drop_duplicates("impl").set_index("impl").tok_s.dropna()
    near, far = [], []
    for impl in here.index.intersection(there.index):
        way, off = impl.removeprefix("transformers."), abs(there[impl] / here[impl] - 1)
        if off < 0.05:
            near.append(f"`{way}` within {100 * off:.1f}%")
        else:
            far.append(f"`{way}` {there[impl]:.0f} tok/s there and {here[impl]:.0f} here")
    if not near and not far:
        return ""
    text = f" At {decode.PROMPT} tokens of context the two differ: {listed(far)}" if far else ""
    if near:
        text += f"; they agree in {listed(near)}" if far else f" The two agree: {listed(near)}"
    return f"{text}. Eager, the host sets the pace, which scatters from run to run." if far else f"{text}."


def _between(counts: pd.Series) -> str:
    """The least and the most of whole numbers, one where they are the same."""
    return " to ".join(f"{count:,}" for count in dict.fromkeys((counts.min(), counts.max())))
