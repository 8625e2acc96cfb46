"""What lesson 04c shows of the goals that were set before its kernels were written."""

from __future__ import annotations

import pandas as pd

from rooflab import claims
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import int4 as study
from rooflab.view import display
from rooflab.words import listed


def goals(here: Lab, rows: Rows, gpu: str) -> None:
    """Say how many floors and aims were reached; show each, folded, with what was reached."""
    square = [c for c in here.cases("int4") if (c.n, c.k) == study.SQUARE]
    squared = here.measure("int4", square) if square else rows[:0]
    goals = claims.select("04c_batch", source=claims.COURSE)
    evidence = claims.Evidence(here.store, {"int4": pd.concat([rows, squared])})
    board = claims.board(goals, evidence)
    met = board["word"].eq(claims.HOLDS).groupby(board["group"]).agg(["sum", "size"])
    kinds = [kind for kind in ("floor", "aim") if kind in met.index]
    counts = [f"{met['sum'][kind]} of {met['size'][kind]} {kind}s" for kind in kinds]
    display.say(
        f"Before the kernels were written, floors were set (to beat FP16 and every peer) and aims nearer to "
        f"the bound: **{listed(counts)} are met.**{_conclusion(met)}"
    )
    board["met"] = board["word"].replace({claims.HOLDS: "yes", claims.SHORT: "no"})
    board["what"] = board["says"] + ": " + board["quantity"]
    names = {"group": "Kind", "what": "What", "bars": "Asked"}
    names |= {"measured": "Reached", "met": "Met"}
    board["bars"] = board["bars"].str.replace(" ", " ")
    title = f"Every floor and aim, judged on {gpu}"
    display.table(board, names, {}, title, folded=True)


def _conclusion(met: Rows) -> str:
    """What the numbers of floors and aims that were met amount to."""
    all_met = met["sum"] == met["size"]
    if not all_met.get("floor", False):
        return " The table names what was missed."
    if all_met.all():
        return " So all that was asked for is reached."
    return " So ours is ahead of FP16 and of every peer; what is left is the distance to the bound."
