"""What lesson 04c shows of the goals that were set before its kernels were written."""

from __future__ import annotations

import pandas as pd

from rooflab import claims
from rooflab.analysis import int4 as analysis
from rooflab.claims import scorecard
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import int4 as study
from rooflab.view import display


def goals(here: Lab, rows: Rows, gpu: str) -> Rows:
    """Show every floor and aim with what was reached; their verdicts."""
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
    return board


def goals_counted(board: Rows, gpu: str, rows: Rows, here: Lab) -> None:
    """Say how many floors and aims are met, and where the rest fail."""
    counts = board.groupby("group")["word"].agg(lambda w: [(w == claims.HOLDS).sum(), len(w)])
    text = f"Of {counts['floor'][1]} floors {counts['floor'][0]} are met, of {counts['aim'][1]} aims "
    text += f"{counts['aim'][0]}, on the {gpu}. "
    try:
        lost = [("FP16", analysis.slower_than_fp16(rows)), ("a peer", analysis.slower_than_peers(rows))]
        for who, points in lost:
            if points:
                where = ", ".join(f"{n:,} × {k:,} at {batch}" for n, k, batch in points)
                text += f"Not faster than {who}: {where}. "
    except claims.NoEvidence as missing:
        text += f"No floor counts without the strongest peers: {missing}. "
    display.say(text + scorecard.raised("04", claims.Evidence(here.store)))
