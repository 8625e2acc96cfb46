"""What lesson 04c shows of the goals that were set before its kernels were written."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.analysis import int4 as analysis
from rooflab.claims import scorecard
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.pages.lesson_04b import start_us
from rooflab.studies import int4 as study
from rooflab.view import display


def goals(here: Lab, rows: Rows, gpu: str) -> tuple[list[Any], Rows]:
    """Show every floor and aim with what was reached; the goals and their verdicts."""
    square = [c for c in here.cases("int4") if (c.n, c.k) == study.SQUARE]
    squared = here.measure("int4", square) if square else rows[:0]
    goals = claims.select("04c_batch", source=claims.COURSE)
    evidence = claims.Evidence(here.store, {"int4": pd.concat([rows, squared])})
    board = claims.board(goals, evidence)
    board["met"] = board["word"].replace({claims.HOLDS: "yes", claims.SHORT: "no"})
    board["what"] = board["says"] + ": " + board["quantity"]
    names = {"group": "Kind", "what": "What", "bars": "Asked"}
    names |= {"measured": "Reached", "met": "Met"}
    board["bars"] = board["bars"].str.replace(" ", " ")
    display.table(board, names, {}, f"Every floor and aim, judged on {gpu}", folded=True)
    return goals, board


def goals_counted(board: Rows, gpu: str, rows: Rows, here: Lab) -> None:
    """Say how many floors and aims are met, and where the rest fail."""
    counts = board.groupby("group")["word"].agg(lambda w: [(w == claims.HOLDS).sum(), len(w)])
    text = f"**Of {counts['floor'][1]} floors {counts['floor'][0]} are met, of {counts['aim'][1]} aims "
    text += f"{counts['aim'][0]}, on the {gpu}.** "
    try:
        lost = [("FP16", analysis.slower_than_fp16(rows)), ("a peer", analysis.slower_than_peers(rows))]
        for who, points in lost:
            if points:
                where = ", ".join(f"{n:,} × {k:,} at {batch}" for n, k, batch in points)
                text += f"Not faster than {who}: {where}. "
    except claims.NoEvidence as missing:
        text += f"No floor counts without the strongest peers: {missing}. "
    display.say(text + scorecard.raised("04", claims.Evidence(here.store)))


def possible_gains(
    here: Lab,
    read_roof: float,
    peak: float,
    times: Rows,
    gain: Rows,
    shapes: list[Any],
    batches: list[Any],
    gpu: str,
) -> Rows:
    """Show the reached gain beside the most that the bounds allow; the points."""
    start = start_us(here, read_roof)

    def limits(n, k, batch):
        moved = roofline.gemm_bytes(batch, n, k, WEIGHT_BYTES["int4_g128"])
        least = start + roofline.bound(moved, roofline.gemm_flops(batch, n, k), read_roof, peak).us
        fp16 = times["FP16 cuBLAS"][n, k, batch]
        return [f"{n:,} × {k:,}", batch, fp16, least, fp16 / least, gain[n, k, batch]]

    points = [(n, k, batch) for n, k in shapes if (n, k) in analysis.LARGE for batch in batches]
    points = [limits(*point) for point in points if point in gain.index]
    points = pd.DataFrame(points, columns=["shape", "batch", "fp16", "least", "most", "gain"])
    points["of"] = [f"{p.gain:.2f} of {p.most:.2f}" for p in points.itertuples()]
    table = points.pivot(index="batch", columns="shape", values="of")[points["shape"].unique()]
    table = table[table.index.isin((1, 16, 32, 64))]
    names = {"batch": "Batch"} | {shape: shape for shape in table}
    title = f"Gain over FP16, reached of possible, on {gpu}"
    display.table(table.reset_index(), names, {}, title, folded=True)
    return points


def aims_within_reach(goals: list[Any], board: Rows, points: Rows) -> None:
    """Say which aims the roofs leave within reach."""
    bars = {goal.name: goal.tests[0].bar.value for goal in goals}
    reached = board.set_index("id")["measured"]
    aims = {"A5": (1, 16), "A6": (32, 32), "A7": (64, 64)}  # the gains asked on both shapes, by batch
    gains, within = list[str](), 0
    for id, (low, high) in aims.items():
        side = points[points["batch"].between(low, high)]
        if len(side):
            within += side["most"].min() > bars[id]
            asked = f"batch {low} to {high}" if low < high else f"batch {high}"
            asked += f", the smallest gain on the two shapes: asked {bars[id]:.1f}, possible "
            gains.append(f"{asked}{side['most'].min():.2f}, reached {reached[id]}")
    share = points["gain"] / points["most"]
    head = f"**The bound, start and finish allow {within} of {len(aims)} aims for the gain over FP16.** "
    reaches = f"reaches {share.min():.0%} to {share.max():.0%} of the gain that they allow"
    display.say(f"{head}Ours {reaches if len(share.dropna()) else 'was not measured'}.")
    display.fold_items("Each aim for the gain", gains)
