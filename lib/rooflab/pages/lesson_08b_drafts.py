"""What lesson 08b's page shows of drafts: what a check of several costs, and what acceptance makes of it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import ablation, drafts
from rooflab.analysis.evidence import NoEvidence
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import decode
from rooflab.view import display, explorer, plot

_SHARE = 0.8  # of drafts that hold, in the table
_WAYS = {"free": "cost nothing", "model": "come from a smaller model"}


def checks(lab: Lab) -> Rows:
    """Show what checks of drafts cost beside one token, and what speculation gains; their rows, if any."""
    if lab.mode == "live":
        lab.measure("decode", [c for c in lab.cases("decode") if c.operator == "verify"])
    try:
        found = drafts.costs(lab.store.read("decode"))
    except NoEvidence:
        display.say(f"On the {lab.run.gpu} checks of drafts are not yet measured.")
        return pd.DataFrame()
    found = found.assign(share=100 * found["roof_fraction"], off=found["median_us"] / found["predicted_us"])
    found["held"] = [drafts.gain(row.cost, _SHARE, int(row.batch), row.draft) for row in found.itertuples()]
    heads = {"weights_as": "weights", "batch": "tokens checked", "median_us": "µs a check"}
    heads |= {"cost": "× one token's time", "share": "% of the roof", "off": "÷ predicted"}
    heads |= {"draft": "one draft's time ÷ one token's"}
    heads |= {"held": f"tokens/s ÷ without drafts, if {_SHARE:.0%} hold"}
    forms = {"median_us": "{:,.0f}", "cost": "{:.2f}", "share": "{:.0f}"}
    forms |= dict.fromkeys(("off", "draft", "held"), "{:.2f}")
    for place, (model, mine) in enumerate(found.groupby("model", sort=False)):
        title = f"{model} checks drafts of {drafts.SMALLER[model]}, {lab.run.gpu}; the last column is "
        title += "computed"
        display.table(mine, heads, forms, title, folded=place > 0)
    return found


def where_the_rest_goes(found: Rows, lab: Lab) -> None:
    """Say what a check takes beside a batch's step of as many rows, which the host does not wait for."""
    both = drafts.beside_batches(lab.store.read("decode")) if len(found) else found
    if len(both):
        rows = int(both.batch.iloc[0])
        words = [
            f"{row.weights_as} {row.check_us:,.0f} µs and {row.step_us:,.0f} µs" for row in both.itertuples()
        ]
        late = (both.check_us > both.step_us).all()
        why = "A check ends with an answer for the host, which then launches the next one; a batch's steps "
        why += "follow each other on the GPU without it."
        beside = f"A check of {rows} tokens beside a step of {rows} sequences"
        beside += f", which reads {rows} caches and not one" if late else ""
        beside += f": {', '.join(words)}."
        beside += " So the host's turn costs more than the other caches do." if late else ""
        display.fold_items("What a check takes beyond its prediction", [why, beside] if late else [beside])


def explained(found: Rows) -> None:
    """Say which checks cost least and most, and from which share that holds a smaller model's drafts pay."""
    if found.empty:
        return
    text = ""
    counts = found.pivot(index=["model", "weights_as"], columns="batch", values="cost")
    few, many = counts.columns.min(), counts.columns.max()
    if few < many and (growth := (counts[many] / counts[few]).max()) < counts[few].max():
        text += (
            f"From one token to {few:.0f} the time grows up to {counts[few].max():.2f} times, from {few:.0f} "
            f"to {many:.0f} at most {growth:.2f} times: more tokens cost little, but one token is made by "
            "lesson 08's fastest way, mostly a single kernel, and a check is a chain of launches. "
        )
    below = found[found["cost"] < 1]
    if len(below):
        text += f"{len(below)} of {len(found)} checks take less time than one token by lesson 08's way, "
        text += "though they read the same weights. "
    pays = []
    for (model, weights), mine in found.groupby(["model", "weights_as"], sort=False):
        shares = [
            (share, int(row.batch))
            for row in mine.itertuples()
            for share in range(101)
            if drafts.gain(row.cost, share / 100, int(row.batch), row.draft) > 1
        ]
        share, tokens = min(shares, default=(None, None))
        pays.append((model, weights, "none" if share is None else f"{share}%", tokens or "none"))
    text += _drafts_said(found)
    display.say(text.strip())
    if pays:
        frame = pd.DataFrame(pays, columns=["model", "weights", "share", "tokens"])
        heads = {"model": "model", "weights": "weights", "share": "pays where this share of drafts holds"}
        heads |= {"tokens": "tokens a check"}
        display.table(frame, heads, None, "From when drafts of a smaller model pay, computed")


def _drafts_said(found: Rows) -> str:
    """What a smaller model's draft takes of a token of the large one, and what of it bytes explain."""
    dear = found.loc[found["draft"].idxmax()]
    text = f"A draft by {drafts.SMALLER[dear.model]} takes {dear.draft:.2f} times a token of {dear.model} in "
    text += f"{dear.weights_as}, though its weights are {dear.draft_bytes:.2f} of the bytes"
    if dear.draft <= dear.draft_bytes:
        return f"{text}."
    few, many = (ablation.phases_of(name) for name in (drafts.SMALLER[dear.model], dear.model))
    text += f": it has {few} phases to the large model's {many}, and each costs beside its bytes"
    return f"{text} ([lesson 08](08_decoder.ipynb))."


def drawn(found: Rows, gpu: str) -> None:
    """Draw tokens a second by the share of drafts that hold, FP16, drafts from a smaller model."""
    if found.empty:
        return
    mine = found[(found["model"] == decode.MODEL) & (found["format"] == "fp16")]
    title = f"{decode.MODEL} in FP16, drafts from {drafts.SMALLER[decode.MODEL]} (computed)"
    lines = drafts.speculated(mine, {"model": _WAYS["model"]})
    fig, ax = plot.figure("% of drafts that hold", "tok/s", title)
    for tokens, line in lines.groupby("batch"):
        plot.series(ax, line["percent"], line["tok_s"], label=f"{int(tokens)} tokens a check")
    plot.roof_line(ax, 1e6 / mine["one_us"].iloc[0], "one token at a time")
    plot.label_ends(ax)
    top = lines.sort_values("tok_s").iloc[-1]
    said = f"{title}, from checks on {gpu}, {plot.dates(found)}: at most {top['tok_s']:,.0f} tok/s, with "
    said += f"{int(top['batch'])} tokens a check where {top['percent']:.0f}% of the drafts hold."
    plot.show(fig, said)


def explore(found: Rows, gpu: str) -> Any:
    """The explorer of tokens a second by acceptance, tokens a check and where drafts come from; None without
    checks.
    """
    if found.empty:
        return None
    return explorer.Explorer(
        "drafts",
        drafts.speculated(found, _WAYS).drop(columns="predicted_us"),  # of a check, not of these
        x="percent",
        y="tok_s",
        controls={"batch": "Tokens a check", "drafted": "Drafts", "weights_as": "Weights", "model": "Model"},
        labels={"percent": "% of drafts that hold"},
        title=f"Speculation, computed from checks on {gpu}",
        xlog=False,
        start={"batch": 4, "percent": 80, "model": decode.MODEL, "drafted": _WAYS["model"]},
    )
