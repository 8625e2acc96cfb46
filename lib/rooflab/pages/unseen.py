"""Lesson 07's last table and figure: shapes that were drawn, not tuned."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import strategies, unseen
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies.unseen import SEED, SINCE, TUNED
from rooflab.view import display, plot
from rooflab.words import counted, listed


def outcomes(lab: Lab, recorded: Rows) -> pd.DataFrame:
    """analysis.unseen.outcomes of what the recording holds."""
    slug, arch = (lab.spec.slug, lab.spec.sm) if lab.spec else (None, "75")
    return unseen.outcomes(lab.store.read("unseen"), recorded, slug, arch)


def attention_folded(found: pd.DataFrame, gpu: str) -> None:
    """The drawn shapes of attention, which no product is chosen by; folded."""
    mine = found[found["kind"].str.contains("attention")] if len(found) else found
    if mine.empty:
        return
    kinds = [f"{kind} {len(unseen.won(each))} of {len(each)}" for kind, each in unseen.by_kind(mine)]
    forms = {"ratio": "{:.3f}", "us": "{:.1f}", "peer_us": "{:.1f}"}
    title = f"Attention at drawn shapes: ours as fast or faster, {', '.join(kinds)}"
    heads = _HEADS | {"us": "µs", "peer_us": "its µs"}
    shown = mine.assign(what=mine["kind"] + ", " + mine["shape"]).sort_values("ratio")
    text = "With the products, ours is as fast as the fastest library recorded, or faster, on "
    text += f"{len(unseen.won(found))} of {len(found)} drawn shapes."
    display.fold_parts(title, [text, (shown, heads, forms, f"{title}, {gpu}, cold, burst")])


def products(found: pd.DataFrame) -> pd.DataFrame:
    """Of the drawn shapes the products."""
    return found[found["kind"].str.contains("product")] if len(found) else found


def said(found: pd.DataFrame, gpu: str) -> None:
    """Who is ahead on how many of the drawn shapes of each kind."""
    if found.empty:
        display.say(
            f"No drawn shape is recorded on the {gpu}: `rooflab record unseen` measures them, with humming "
            "and flash-attn-4 beside cuBLAS and cuDNN."
        )
        return
    kinds = [f"{kind} {len(unseen.won(mine))} of {len(mine)}" for kind, mine in unseen.by_kind(found)]
    text = f"**On the {gpu} ours is as fast as the fastest library recorded, or faster, on "
    text += f"{len(unseen.won(found))} of {len(found)} drawn products: {', '.join(kinds)}.** "
    text += "*As fast*: by medians, at most "
    text += (
        f"{LEVEL - 1:.0%} behind. The {len(found)} are a new draw; {len(TUNED)} earlier draws were used for "
    )
    text += "tuning."
    if (found["kind"] == "Q8_0 product").any():
        text += " No library here multiplies Q8_0 weights: the rival is cuBLAS on FP16 weights, which reads "
        text += "nearly twice the bytes."
    display.say(text)


def reasons(found: pd.DataFrame) -> None:
    """Say what the shapes on which we are behind have in common, and which choices were wrong."""
    if found.empty:
        return
    lost, wrong, lines = unseen.behind(found), unseen.wrong(found), []
    prompts = lost[lost["kind"] == "attention"]
    if len(prompts):
        peers = prompts["peer"].value_counts()
        low, high = prompts["ratio"].min(), prompts["ratio"].max()
        many = f"{'all' if len(peers) == 1 else f'{peers.iloc[0]} of the'} {len(prompts)} that lose do so"
        text = f"- **Attention**: {many if len(prompts) > 1 else 'the one that loses does so'} to "
        text += (
            f"{peers.index[0]}, at {low:.3f}{f' to {high:.3f}' if len(prompts) > 1 else ''} times its speed. "
        )
        whole = prompts["shape"].str.contains("not causal")
        if whole.any() and not whole.all():
            text += f"Without a causal mask the median is {prompts[whole]['ratio'].median():.2f}, with one "
            text += f"{prompts[~whole]['ratio'].median():.2f}. "
        lines.append(text + "No counters of these shapes are recorded, so the cause is open.")
    packed = lost[lost["kind"] == "INT4 product"].sort_values("tokens")
    if len(packed):
        peers = packed["peer"].replace("torch.matmul", "cuBLAS on FP16 weights")
        peers = peers.replace("humming", "[humming](09c_related.ipynb)")
        said = []
        for peer, mine in packed.groupby(peers, sort=False):
            each = [
                f"{counted(int(row['tokens']), 'token')} ({row['ratio']:.3f} times its speed)"
                for _, row in mine.iterrows()
            ]
            said.append(f"to {peer} at {listed(each)}")
        lines.append(f"- **INT4** loses {listed(said)}.")
    products = lost[lost["kind"] == "Q8_0 product"]
    if len(products):
        each = [
            f"{counted(int(row['tokens']), 'token')} ({row['ratio']:.3f} times its speed)"
            for _, row in products.sort_values("tokens").iterrows()
        ]
        text = f"- **Q8_0** loses at {listed(each)}, to cuBLAS on FP16 weights."
        twice = products["why"].str.startswith("writes").sum()
        if twice:
            text += f" On {twice} of them the dispatcher takes the two-op product, which first writes those "
            text += "FP16 weights "
            text += "and then runs the same kernel: it cannot win."
        lines.append(text)
    names = [
        f"{row['shape']}, {counted(row['tokens'], 'token')} ({row['cost']:.2f}×)"
        for _, row in wrong.iterrows()
    ]
    text = f"- **The dispatcher's choice** takes more than {unseen.WRONG - 1:.0%} longer than our "
    text += "fastest kernel on "
    text = f"{text}{len(wrong)} of {len(found)}" + (f": {'; '.join(names)}." if names else ".")
    if SINCE:
        text += f" Here the test is not quite blind: after these shapes were recorded {SINCE}."
    lines.append(text)
    display.say("\n".join(lines))


def figure(found: pd.DataFrame, gpu: str) -> None:
    """Ours over the fastest library, a row a kind and a point a drawn shape; those behind are hollow."""
    if found.empty:
        return
    title = "Shapes not tuned for"
    fig, ax = plot.figure("times the fastest library's speed", title=title, xlog=True, height=2.4)
    kinds = list(unseen.by_kind(found))
    for place, (_, mine) in enumerate(kinds):
        lost = mine["ratio"] < 1 / LEVEL
        for each, fill in ((mine[~lost], plot.COLOURS[0]), (mine[lost], "white")):
            ax.scatter(each["ratio"], [place] * len(each), s=36, c=fill, edgecolors="black", zorder=3)
    ax.axvline(1, color="black", linewidth=1)
    names = [f"{kind}: {len(unseen.won(mine))} of {len(mine)}" for kind, mine in kinds]
    ax.set_yticks(range(len(kinds)), names)
    ax.set_ylim(len(kinds) - 0.5, -0.5)
    plot.round_ticks(ax, "x", (1, 1.2, 1.5, 2, 3, 5, 8))
    worst, best = (found.loc[at(found["ratio"])] for at in (pd.Series.idxmin, pd.Series.idxmax))
    ends = [f"{row['ratio']:.2f} ({row['kind']}, {row['shape']})" for row in (worst, best)]
    plot.show(
        fig,
        f"{title}, {gpu}: {len(found)} points, from {ends[0]} to {ends[1]} times the speed of the fastest "
        f"library; {len(unseen.won(found))} filled: as fast or faster, at {1 / LEVEL:.3f} or more.",
    )


_HEADS = {"what": "drawn shape", "tokens": "tokens or keys", "ours": "ours"}
_HEADS |= {"peer": "fastest library", "ratio": "× its speed"}


def _named(impl: str) -> str:
    """A kernel or library as this lesson's tables call it."""
    return "cuBLAS" if impl == "torch.matmul" else strategies.label("", impl).strip()


def table(found: pd.DataFrame, gpu: str) -> None:
    """The drawn shapes on which a library is faster, the farthest behind first; folded, every shape."""
    if found.empty:
        return
    named = {c: [_named(impl) for impl in found[c]] for c in ("ours", "peer", "way")}
    found = found.assign(what=found["kind"] + ", " + found["shape"], **named)
    lost, forms = unseen.behind(found), {"ratio": "{:.3f}"}
    told = lost["why"].nunique() > 1 or "not counted" not in set(lost["why"])
    heads = _HEADS | ({"why": "ours, beside the peer"} if told else {})
    title = f"The {len(lost)} of {len(found)} that lose, {gpu}, cold, burst"
    display.table(lost, heads, forms, title, folded=True)
    heads = _HEADS | {"way": "dispatcher takes", "us": "µs", "peer_us": "its µs"}
    heads |= {"cost": "× our fastest kernel's time"}
    forms |= {"us": "{:.1f}", "peer_us": "{:.1f}", "cost": "{:.2f}"}
    seeds = f"Drawn by the random seed {SEED}; kernels and laws were tuned on those of {listed(TUNED)}."
    seeds += f" After the drawn ones were recorded {SINCE}." if SINCE else ""
    title = f"All {len(found)} drawn shapes"
    shown = (found.sort_values("ratio"), heads, forms, f"{title}, {gpu}, cold, burst")
    display.fold_parts(title, [seeds, shown])
