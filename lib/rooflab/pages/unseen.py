"""Lesson 07's last table and figure: shapes that were drawn, not tuned."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import unseen
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import display, plot


def outcomes(lab: Lab, recorded: Rows) -> pd.DataFrame:
    """analysis.unseen.outcomes of what the recording holds."""
    slug, arch = (lab.spec.slug, lab.spec.sm) if lab.spec else (None, "75")
    return unseen.outcomes(lab.store.read("unseen"), recorded, slug, arch)


def said(found: pd.DataFrame, gpu: str) -> None:
    """Who is ahead on how many of the drawn shapes, and which choices were wrong."""
    if found.empty:
        display.say(
            f"No drawn shape is recorded on the {gpu}: `rooflab record unseen` measures them, with humming "
            "beside cuBLAS."
        )
        return
    won, wrong = unseen.won(found), unseen.wrong(found)
    text = (
        f"On the {gpu} ours is as fast as the fastest library on **{len(won)} of {len(found)}** drawn INT4 "
        f"products: {found['ratio'].min():.2f} to {found['ratio'].max():.2f} times its speed. "
    )
    few = found[found["batch"] <= 64]
    if 0 < len(few) < len(found):
        part, many = (len(won[won["batch"] <= 64]), found[found["batch"] > 64])
        text += f"Up to 64 tokens that is {part} of {len(few)}, above {len(won) - part} of {len(many)}. "
    text += (
        f"The dispatcher's choice costs more than {unseen.WRONG - 1:.0%} over the fastest way on "
        f"{len(wrong)} of them."
    )
    display.say(text)


def figure(found: pd.DataFrame, gpu: str) -> None:
    """Ours over the fastest library, a point a drawn shape, over tokens."""
    if found.empty:
        return
    fig, ax = plot.figure(
        "tokens", "times the fastest library's speed", "Shapes that nobody tuned", xlog=True
    )
    ax.scatter(found["batch"], found["ratio"], color="black", s=28, zorder=3)
    ax.axhline(1, color="black", linewidth=1)
    plot.round_ticks(ax, "x")
    least, most = found["ratio"].min(), found["ratio"].max()
    plot.show(
        fig,
        f"Drawn INT4 products, {gpu}: {len(found)} points, {least:.2f} to {most:.2f} times the speed of the "
        f"fastest library, {len(unseen.won(found))} at {1 / LEVEL:.2f} or more.",
    )


def table(found: pd.DataFrame, gpu: str) -> None:
    """Every drawn shape, the worst first."""
    if found.empty:
        return
    display.table(
        found.sort_values("ratio"),
        {
            **{"n": "n", "k": "k", "batch": "tokens", "way": "dispatcher takes", "ours": "rung", "us": "µs"},
            **{"peer": "fastest library", "peer_us": "its µs", "ratio": "× its speed", "cost": "× best way"},
        },
        {"us": "{:.1f}", "peer_us": "{:.1f}", "ratio": "{:.2f}", "cost": "{:.2f}"},
        f"Drawn INT4 products, {gpu}, cold, burst",
    )
