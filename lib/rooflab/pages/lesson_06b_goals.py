"""What was asked of lesson 06b's kernels before they were written, beside what they reach."""

from __future__ import annotations

from rooflab.claims import Evidence, scorecard
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.view import display


def goals(here: Lab, gpu: str) -> None:
    """Show, folded, floors and aims beside what was reached, and how many are met."""
    recorded = here.measure("attention", here.cases("attention"))
    asked = scorecard.by_shape(Evidence(here.store, {"attention": recorded}))
    pairs = zip(asked["reached"], asked["unit"], strict=True)
    asked["got"] = [f"{reached:,.0f} {unit}" for reached, unit in pairs]
    near = [
        f"{aim:,.0f}" == got.partition(" ")[0] for aim, got in zip(asked["aim"], asked["got"], strict=True)
    ]
    asked.loc[near, "got"] += [f" ({reached:,.2f})" for reached in asked[near]["reached"]]
    bars = zip(asked["floor_met"], asked["aim_met"], strict=True)
    asked["met"] = [
        ("floor only" if floor == "yes" else "no") if "no" in (floor, aim) else "yes" for floor, aim in bars
    ]
    asked["rival"] = asked["peer"].str.replace("torch.", "")
    names = {"what": "What", "floor": "Floor", "aim": "Aim", "got": "Reached", "met": "Met"}
    forms = dict.fromkeys(("floor", "aim"), "{:,.0f}")
    names |= {"impl": "By", "rival": "Fastest peer, on any instructions", "published": "Published"}
    table = (asked, names, forms, f"Floors and aims on {gpu}, one by one")
    display.fold_parts(
        "What was asked of these kernels, and what was reached", [_met(gpu, asked, here), table]
    )


def _met(gpu: str, asked: Rows, here: Lab) -> str:
    """How many floors and aims are met."""
    text = "Before these kernels were written, the course's plan set floors and aims for the H200, at 16,384 "
    text += "tokens and 32/8 heads unless a line says otherwise; *published* are others' figures, by a "
    text += "clock that "
    text += "includes the launch. "
    text += "" if gpu == scorecard.GPU else f"These bars are the {scorecard.GPU}'s; this is a {gpu}. "
    if asked.empty:
        text += "Of the shapes that were asked for none was measured. "
    for bar in ("floor", "aim"):
        word = asked[f"{bar}_met"]
        text += f"Of {(word != '').sum()} {bar}s {(word == 'yes').sum()} are met"
        missed = asked[word == "no"]["what"]
        text += f"; missed: {'; '.join(missed)}. " if len(missed) else ". "
    return text + scorecard.raised("06", Evidence(here.store))
