"""Lesson 07's last table and figure: shapes that were drawn, not tuned."""

from __future__ import annotations

import pandas as pd

from rooflab.analysis import unseen
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies.unseen import SEED, TUNED
from rooflab.view import display, plot

_MARKS = ("o", "s", "^", "D")


def outcomes(lab: Lab, recorded: Rows) -> pd.DataFrame:
    """analysis.unseen.outcomes of what the recording holds."""
    slug, arch = (lab.spec.slug, lab.spec.sm) if lab.spec else (None, "75")
    return unseen.outcomes(lab.store.read("unseen"), recorded, slug, arch)


def said(found: pd.DataFrame, gpu: str) -> None:
    """Who is ahead on how many of the drawn shapes of each kind, and which choices were wrong."""
    if found.empty:
        display.say(
            f"No drawn shape is recorded on the {gpu}: `rooflab record unseen` measures them, with humming "
            "and flash-attn-4 beside cuBLAS and cuDNN."
        )
        return
    won, wrong = unseen.won(found), unseen.wrong(found)
    parts = [f"{kind} {len(unseen.won(mine))} of {len(mine)}" for kind, mine in unseen.by_kind(found)]
    text = (
        f"Seed {SEED} drew the shapes; tuning looked at seed {TUNED}. On the {gpu} ours is as fast as the "
        f"fastest library on **{len(won)} of {len(found)}**: {found['ratio'].min():.2f} to "
        f"{found['ratio'].max():.2f} times its speed ({', '.join(parts)}). "
    )
    if "Q8_0 product" in set(found["kind"]):
        text += "The library of a Q8_0 product is cuBLAS on FP16 weights that lie there, twice the bytes. "
    text += (
        f"The dispatcher's choice costs more than {unseen.WRONG - 1:.0%} over the fastest way on "
        f"{len(wrong)} of them."
    )
    display.say(text)


def figure(found: pd.DataFrame, gpu: str) -> None:
    """Ours over the fastest library, a point a drawn shape, over tokens or keys."""
    if found.empty:
        return
    fig, ax = plot.figure(
        "tokens, or keys of a cache",
        "times the fastest library's speed",
        "Shapes not tuned for",
        xlog=True,
    )
    for (kind, mine), mark in zip(unseen.by_kind(found), _MARKS, strict=False):
        ax.scatter(
            mine["tokens"],
            mine["ratio"],
            marker=mark,
            s=28,
            zorder=3,
            label=kind,
            facecolors="none",
            edgecolors="black",
        )
    ax.axhline(1, color="black", linewidth=1)
    ax.legend()
    plot.round_ticks(ax, "x")
    least, most = found["ratio"].min(), found["ratio"].max()
    plot.show(
        fig,
        f"Drawn shapes, {gpu}: {len(found)} points, {least:.2f} to {most:.2f} times the speed of the "
        f"fastest library, {len(unseen.won(found))} at {1 / LEVEL:.2f} or more.",
    )


def table(found: pd.DataFrame, gpu: str) -> None:
    """Every drawn shape, the worst first."""
    if found.empty:
        return
    display.table(
        found.sort_values("ratio"),
        {
            **{"kind": "kind", "shape": "shape", "tokens": "tokens or keys", "way": "dispatcher takes"},
            **{"ours": "ours", "us": "µs", "peer": "fastest library", "peer_us": "its µs"},
            **{"ratio": "× its speed", "cost": "× best way"},
        },
        {"us": "{:.1f}", "peer_us": "{:.1f}", "ratio": "{:.2f}", "cost": "{:.2f}"},
        f"Drawn shapes, {gpu}, cold, burst",
    )
