"""What the builds that lesson 04c's dispatcher picks take by tokens, and where time steps up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_large import free_up_to
from rooflab.pages.lesson_04c_worth import SUMS_SCALED
from rooflab.studies import int4 as study
from rooflab.view import display
from rooflab.words import listed


def _picks(here: Lab, drawn: Any, batches: list[Any]) -> Rows:
    """The measured rows of the dispatcher's choices, by number of tokens; `build` is rung and constants."""
    cases = {batch: study.chosen(*drawn, batch, here.sized) for batch in batches}
    rows = here.measure("int4", list(cases.values()))
    rows = rows.dropna(subset="median_us").sort_values("batch", ignore_index=True)
    rows["build"] = rows["impl"] + " " + rows["options"].fillna("").astype(str)
    rows["rung"] = rows["impl"].str.partition("_")[0]
    rows["columns"] = [study.own_rung(cases[batch])[1].get("TOKENS") for batch in rows["batch"]]
    return rows


def _builds(rows: Rows) -> Rows:
    """A row for each build in turn: its tokens, its columns, its times and how much they grow."""
    turn = (rows["build"] != rows["build"].shift()).cumsum()
    found = rows.groupby(turn, sort=False).agg(
        start=("batch", "first"),
        end=("batch", "last"),
        rung=("rung", "first"),
        columns=("columns", "first"),
        us=("median_us", "first"),
        most=("median_us", "last"),
    )
    found["within"] = (found["most"] / found["us"]).where(found["end"] > found["start"])
    found["step"] = found["us"] / found["most"].shift()
    return found.reset_index(drop=True)


def time_by_build(here: Lab, drawn: Any, batches: list[Any], table: Rows) -> None:
    """Show how our time grows within a build and from one build to the next, and say which is more, up to
    the tokens that the bound has nearly free.
    """
    rows = _picks(here, drawn, batches)
    if len(rows) < 3:
        return display.say("Too few numbers of tokens were timed here to tell.")
    found = _builds(rows)
    found["tokens"] = _spans(found, "start", "end", "{:.0f}")
    found["took"] = _spans(found, "us", "most", "{:.1f}")
    names = {"tokens": "Tokens timed", "rung": "Rung", "columns": "TOKENS", "took": "Time (µs)"}
    names |= {"within": "Growth within", "step": "Step up"}
    forms = {"columns": "{:.0f}", "within": "{:.2f}", "step": "{:.2f}"}
    title = (
        f"A row for each build that the dispatcher picks, {drawn[0]:,} × {drawn[1]:,} on {here.run['gpu']}"
    )
    display.table(found, names, forms, title)
    free = found[found["start"] <= free_up_to(table)[0]]
    within, steps = free["within"].max(), free["step"].dropna()
    if steps.empty or not steps.max() > 1.05:
        return display.say(
            "**No step between builds costs more than 5%**, up to the tokens that the bound has free."
        )
    at = int(steps.idxmax())
    before, after = int(found["end"][at - 1]), int(found["start"][at])
    text = f"Up to {free['end'].iloc[-1]} tokens, which the bound has nearly free, the largest step is from "
    text += f"{before} to {after} tokens: {steps[at]:.2f} times"
    if within < 1 + (steps.max() - 1) / 2:
        text += f"; within a build time grows {within:.2f} times at most. **So time grows from build to "
        text += "build, hardly within one**"
    display.say(f"{text}. {_differ(here, drawn, before, after)}".strip())


def _differ(here: Lab, drawn: Any, before: int, after: int) -> str:
    """In which constants the builds for two numbers of tokens differ, where they are of one rung."""
    cases = [study.chosen(*drawn, batch, here.sized) for batch in (before, after)]
    if cases[0].impl != cases[1].impl:
        return "The two builds are of different rungs. What of this costs the time is not known."
    built = [study.own_rung(case)[1] for case in cases]
    other = [f"`{name}`" for name in built[1] if built[0].get(name) != built[1][name]]
    other = [name for name in other if name != "`TOKENS`"]
    text = "The two builds differ in TOKENS"
    text += f" and in how they divide the work ({listed(other)})" * bool(other)
    if cases[0].impl == "11_tma" and built[0]["TOKENS"] <= SUMS_SCALED < built[1]["TOKENS"]:
        text += f"; above TOKENS = {SUMS_SCALED} rung 11 also scales each weight instead of the sums"
    return f"{text}. Which of this costs the time is not known."


def _spans(found: Rows, first: str, last: str, form: str) -> list[str]:
    """ "1 to 4", or one value where both are written alike."""
    ends = [(form.format(a), form.format(b)) for a, b in zip(found[first], found[last], strict=True)]
    return [a if a == b else f"{a}–{b}" for a, b in ends]


def both_rungs_of_tiles(beyond: Rows) -> bool:
    """Whether rungs 12 and 13 were both picked beyond a block's tokens."""
    return {"12", "13"} <= set(pd.Series(beyond["rung"]).dropna())
