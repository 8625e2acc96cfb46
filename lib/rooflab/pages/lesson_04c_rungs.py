"""What rungs 9 to 11 of lesson 04c cost for one token, and which rung its dispatcher picks."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from rooflab import studies
from rooflab.lab import Lab
from rooflab.ops import int4
from rooflab.pages import Rows
from rooflab.studies import int4 as study
from rooflab.view import display, plot


def worth_for_one(here: Lab, drawn: Any, *numbers: int) -> None:
    """Show these rungs' time for one token on the matrix that is drawn, built as the table says, the only
    number of tokens at which each was timed, with the instructions and waits that were counted; nothing where
    one was not measured.
    """
    cases = [case for case in study.rungs(*drawn) if case in here.cases("int4")]
    rows = here.measure("int4", cases).set_index("impl")
    names = [int4.LADDERS["int4"][number - 1].name for number in numbers]
    if not set(names) <= set(rows["median_us"].dropna().index):
        return
    rows = rows.loc[names].assign(rung=list(map(str, numbers)))
    counted = _counted(here, [case for case in cases if case.impl in names]).reindex(rows["case"])
    rows["each"] = (32 * counted["inst_executed"] / (drawn[0] * drawn[1])).to_numpy()
    rows["barrier"] = counted["stall_barrier"].to_numpy()
    defaults = [int4.LADDERS["int4"][number - 1].with_defaults({})["TOKENS"] for number in numbers]
    built = rows["options"].astype("string").str.extract(r"tokens=(\d+)", expand=False)
    rows["tokens"] = [
        own if own == own and own else n for own, n in zip(built.fillna(""), defaults, strict=True)
    ]
    columns = {
        "rung": "Rung",
        "tokens": "Built for (tokens)",
        "median_us": "Time (µs)",
        "each": "Instructions a weight",
    }
    columns |= {"barrier": "Waits at barriers (cycles an instruction)"}
    forms = {"median_us": "{:.1f}", "each": "{:.1f}", "barrier": "{:.2f}"}
    title = f"One token, {drawn[0]:,} × {drawn[1]:,} on {here.run['gpu']}, untuned"
    display.table(rows.reset_index(), columns, forms, title)
    by = rows.set_index("rung")
    if not {"9", "10", "11"} <= set(by.index):
        return
    nine, ten, eleven = (by.loc[number] for number in ("9", "10", "11"))
    text = ""
    if ten["median_us"] > nine["median_us"] and ten["each"] > nine["each"]:
        text += "For one token rung 10 is slower than rung 9, and executes more instructions. It multiplies "
        text += "*each weight* by its scale, where rung 9 scales the sum of a group. "
        if str(ten["tokens"]) != str(nine["tokens"]):
            text += (
                f"It was also built for {ten['tokens']} tokens instead of {nine['tokens']}; the record does "
            )
            text += "not tell the two apart. "
    if eleven["median_us"] < ten["median_us"] and eleven["each"] < ten["each"]:
        text += "Rung 11 scales sums again, as long as tokens are few"
        text += (
            ", and its warps hardly wait at barriers. " if eleven["barrier"] < ten["barrier"] / 2 else ". "
        )
    display.say(f"{text}Which rung is the fastest for more tokens, the tuning tells:")


def _counted(here: Lab, cases: list[Any]) -> Rows:
    """The counters of these cases, by case."""
    ((tool, known, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    found = here.profile("int4", [case for case in known if case in cases], tool, metrics).set_index("case")
    return found[["inst_executed", "stall_barrier"]].apply(pd.to_numeric)


def _picked(here: Lab, n: int, k: int, batch: int) -> int:
    """The number of the rung that the dispatcher picks."""
    name, _ = int4.choose(n, k, batch, True, study.table_of(here.sized))
    return int(name.partition("_")[0])


def rung_by_batch(here: Lab, batches: list[Any], shapes: list[Any], gpu: str) -> None:
    """Draw which rung the dispatcher chooses for each shape and number of tokens; say from where on a rung of
    wgmma is chosen.
    """
    picks = {f"{n:,} × {k:,}": [_picked(here, n, k, batch) for batch in batches] for n, k in shapes}
    title = f"The rung that was fastest in tuning on {gpu}"
    fig, ax = plot.figure("tokens", title=title, height=1.1 + 0.3 * len(shapes))
    fig.set_figwidth(7.4)
    ladder = sorted({rung for row in picks.values() for rung in row})
    shades = dict(zip(ladder, ("#EDEDED", "#9CC9E8", "#E69F00", plot.COLOURS[0], "#2B2B2B"), strict=False))
    for down, row in enumerate(picks.values()):
        for across, rung in enumerate(row):
            fill = shades.get(rung, "#EDEDED")
            ax.add_patch(Rectangle((across + 0.03, down + 0.06), 0.94, 0.88, color=fill, linewidth=0))
            colour = "white" if fill in (plot.COLOURS[0], "#2B2B2B") else "#1A1A1A"
            ax.text(across + 0.5, down + 0.5, str(rung), ha="center", va="center", color=colour, fontsize=8.5)
    ax.set(xlim=(0, len(batches)), ylim=(len(shapes), 0))
    ax.set_xticks([k + 0.5 for k in range(len(batches))], [str(batch) for batch in batches])
    ax.set_yticks([k + 0.5 for k in range(len(picks))], list(picks))
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    said = [f"{shape}: {_spans(row, batches)}" for shape, row in picks.items()]
    plot.show(fig, f"{title}: {'; '.join(said)}.")
    many = [
        min((batch for batch, rung in zip(batches, row, strict=True) if rung >= 10), default=None)
        for row in picks.values()
    ]
    starts = sorted({batch for batch in many if batch is not None})
    text = "The **dispatcher** looks this up"
    text += ": the rung changes with the shape and the number of tokens. " if len(ladder) > 1 else ". "
    if starts and None not in many:
        span = f"{starts[0]}" + (f" to {starts[-1]}" if len(starts) > 1 else "")
        text += f"From {span} tokens on, by shape, rungs 10 and 11 with their `wgmma` are the fastest."
    display.say(text.strip())


def _spans(row: list[int], batches: list[Any]) -> str:
    """Runs of one rung in words: "rung 8 at 1 to 4 tokens, rung 11 at 5 to 64"."""
    found = []
    for rung, run in itertools.groupby(zip(row, batches, strict=True), key=lambda each: each[0]):
        first, *_, last = [batch for _, batch in run] * 2
        found.append(f"rung {rung} at {first}" if first == last else f"rung {rung} at {first} to {last}")
    return ", ".join(found)
