"""What the dispatcher's choices of lesson 04c take by the number of tokens, and where their time grows."""

from __future__ import annotations

from typing import Any

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_large import free_up_to
from rooflab.pages.lesson_04c_stops import bound_us
from rooflab.studies import int4 as study
from rooflab.view import display
from rooflab.words import listed


def _picks(here: Lab, drawn: Any, batches: list[Any]) -> Rows:
    """The measured rows of the dispatcher's choices, by number of tokens; `build` is rung and constants."""
    rows = here.measure("int4", [study.chosen(*drawn, batch, here.sized) for batch in batches])
    rows = rows.dropna(subset="median_us").sort_values("batch", ignore_index=True)
    rows["build"] = rows["impl"] + " " + rows["options"].fillna("").astype(str)
    rows["rung"] = rows["impl"].str.partition("_")[0]
    return rows


def picks_in_numbers(here: Lab, drawn: Any, some: list[Any], read_roof: float, peak: float | None) -> None:
    """Show what the dispatcher picks on the drawn matrix and how long it takes, by number of tokens."""
    rows = _picks(here, drawn, some)
    if rows.empty:
        return
    rows["least"] = [bound_us(*drawn, batch, "int4_g128", read_roof, peak) for batch in rows["batch"]]
    rows["over"] = rows["median_us"] / rows["least"]
    names = {"batch": "Tokens", "rung": "Rung picked", "median_us": "Time (µs)"}
    names |= {"least": "Bound (µs)", "over": "Time ÷ bound"}
    forms = {"median_us": "{:.1f}", "least": "{:.1f}", "over": "{:.2f}"}
    title = f"What the dispatcher picks, {drawn[0]:,} × {drawn[1]:,} on {here.run['gpu']}"
    display.table(rows, names, forms, title, folded=True)


def where_time_steps(here: Lab, drawn: Any, batches: list[Any], table: Rows) -> None:
    """Say in which step of the number of tokens our time grows most, among those that the bound has nearly
    free, and which constants of the kernel change there.
    """
    rows = _picks(here, drawn, [batch for batch in batches if batch <= free_up_to(table)[0]])
    if len(rows) < 3:
        return
    grown = rows["median_us"] / rows["median_us"].shift()
    if not grown.max() > 1.05:
        return
    at = int(grown.idxmax())
    was, now = rows.iloc[at - 1], rows.iloc[at]
    text = f"The largest step is from {was['batch']} to {now['batch']} tokens: {grown[at]:.2f} times. "
    if was["build"] == now["build"]:
        return display.say(f"{text}The kernel is the same; why it takes longer was not recorded.")
    changed = _changed(was, now)
    text += f"There the dispatcher takes another build of the kernel: {changed}. "
    same = rows.groupby("build", sort=False).agg(
        first=("batch", "min"), last=("batch", "max"), us=("median_us", "first"), end=("median_us", "last")
    )
    same = same[same["first"] < same["last"]]
    inside = (same["end"] / same["us"]).max() if len(same) else float("nan")
    if inside < 1 + (grown.max() - 1) / 2:
        spans = listed(
            [
                f"{row.first_} to {row.last_}"
                for row in same.rename(columns={"first": "first_", "last": "last_"}).itertuples()
            ]
        )
        text += (
            f"Within one build ({spans} tokens) time grows {inside:.2f} times at most. **So the cost lies "
        )
        text += "in the builds for more tokens, hardly in the tokens**: a build multiplies by all of its "
        text += "`TOKENS` columns, empty ones too, and keeps room for them. "
    display.say(f"{text}Which constant costs how much was not recorded.")


def _changed(was: Any, now: Any) -> str:
    """The constants in which two builds differ: "`TOKENS` 16 → 32"; or the rungs."""
    if was["impl"] != now["impl"]:
        return f"rung {was['rung']} → {now['rung']}"
    before, after = (dict(part.split("=") for part in str(row["options"]).split()) for row in (was, now))
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return listed(
        [
            f"`{key.upper()}` {before.get(key, 'as it stands')} → {after.get(key, 'as it stands')}"
            for key in keys
        ]
    )
