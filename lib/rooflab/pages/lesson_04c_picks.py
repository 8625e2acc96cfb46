"""What the builds that lesson 04c's dispatcher picks take by tokens, and where time steps up."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_large import free_up_to
from rooflab.pages.lesson_04c_worth import SUMS_SCALED
from rooflab.studies import int4 as study
from rooflab.view import display
from rooflab.words import counted, listed


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


class Step(NamedTuple):
    """The largest step in time between builds up to the tokens that the bound has nearly free: from and to
    how many tokens, how large, and how much time grows at most within a build.
    """

    before: int
    after: int
    ratio: float
    within: float


def largest_step(found: Rows, free: int) -> Step | None:
    """The largest step of these builds up to `free` tokens, or None where none costs more than 5%."""
    early = found[found["start"] <= free]
    steps = early["step"].dropna()
    if steps.empty or not steps.max() > 1.05:
        return None
    at = int(steps.idxmax())
    ends = int(found["end"][at - 1]), int(found["start"][at])
    return Step(*ends, float(steps[at]), float(early["within"].max()))


def time_by_build(here: Lab, drawn: Any, batches: list[Any], table: Rows) -> Step | None:
    """Show how our time grows within a build and from one build to the next, and say which is more, up to
    the tokens that the bound has nearly free; the largest step.
    """
    rows = _picks(here, drawn, batches)
    if len(rows) < 3:
        display.say("Too few numbers of tokens were timed here to tell.")
        return None
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
    free = free_up_to(table)[0]
    step = largest_step(found, free)
    if step is None:
        display.say(f"**No step between builds costs more than 5%** up to {counted(free, 'token')}.")
        return None
    text = f"Up to {counted(free, 'token')} the largest step is from {step.before} to {step.after} tokens: "
    text += f"{step.ratio:.2f} times"
    if grows_by_builds(step):
        text += f"; within a build time grows {step.within:.2f} times at most. **So on this shape time grows "
        text += "from build to build, hardly within one**"
    display.say(f"{text}.")
    return step


def grows_by_builds(step: Step) -> bool:
    """Whether further tokens of the same build cost less than half of what the largest step does."""
    return step.within < 1 + (step.ratio - 1) / 2


def differ(here: Lab, drawn: Any, step: Step) -> str:
    """In which constants the builds before and after a step differ, where they are of one rung."""
    cases = [study.chosen(*drawn, batch, here.sized) for batch in (step.before, step.after)]
    where = f"At the step from {step.before} to {step.after} tokens"
    if cases[0].impl != cases[1].impl:
        return f"{where} the rung changes."
    built = [study.own_rung(case)[1] for case in cases]
    other = [f"`{name}`" for name in built[1] if built[0].get(name) != built[1][name]]
    other = [name for name in other if name != "`TOKENS`"]
    text = f"{where} TOKENS changes"
    text += f", the division of the work ({listed(other)})" * bool(other)
    if cases[0].impl == "11_tma" and built[0]["TOKENS"] <= SUMS_SCALED < built[1]["TOKENS"]:
        text += ", and what is scaled: weights instead of sums"
    return f"{text}."


def _spans(found: Rows, first: str, last: str, form: str) -> list[str]:
    """ "1 to 4", or one value where both are written alike."""
    ends = [(form.format(a), form.format(b)) for a, b in zip(found[first], found[last], strict=True)]
    return [a if a == b else f"{a}–{b}" for a, b in ends]


def both_rungs_of_tiles(beyond: Rows) -> bool:
    """Whether rungs 12 and 13 were both picked beyond a block's tokens."""
    return {"12", "13"} <= set(pd.Series(beyond["rung"]).dropna())
