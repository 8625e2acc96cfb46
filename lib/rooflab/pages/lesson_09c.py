"""What lesson 09c's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import paths
from rooflab.analysis import regressions, related
from rooflab.hardware import crossover
from rooflab.pages import Opening, Rows
from rooflab.view import display, plot
from rooflab.view.filter_list import Board


def opening(evidence: Any, gpu: str) -> Opening:
    """The first screen: every library's speed beside ours."""
    every = related.points(evidence)
    rivals = every[every["gain"].notna()]
    ahead = (rivals["gain"] > crossover.LEVEL).sum()
    behind = rivals[rivals["gain"] < 1 / crossover.LEVEL]
    answer = (
        f"No library was measured side by side on the {gpu}."
        if rivals.empty
        else (
            f"At {len(behind)} of {len(rivals)} points that were measured side by side on the {gpu}; "
            f"ours is faster at {ahead}."
        )
    )
    if len(behind):
        worst = behind.sort_values("gain").iloc[0]
        answer = answer.removesuffix(".") + f". The widest margin against us is {worst['name']}'s, "
        answer += f"{display.times(1 / worst['gain'])} times the speed."
    able = (
        "compare two kernels by shape, clock and day",
        "say where a library's kernel is the better choice",
        "find the kernels that were tried and lost, and why",
    )
    spread = rivals.groupby("name", sort=False)["gain"].median()
    title = "How many times as fast ours is, median over points"
    fig, ax = plot.figure("times (1 is level)", title=title, height=1.1 + 0.21 * len(spread))
    plot.bars(ax, list(spread.index), spread.to_numpy(float), "×")
    ax.axvline(1, color="black", linewidth=1)
    said = ", ".join(f"{name} {value:.2f}" for name, value in spread.items())
    return answer, able, (fig, f"{title}, {gpu}: {said}.")


def libraries_table(evidence: Any, gpu: str) -> Rows:
    """The libraries: the table."""
    table = related.table(evidence)
    table["from"] = table["origin"].replace(
        {related.HERE: "here", related.OTHER: "another GPU's", related.ABSENT: "none"}
    )
    named = {
        "name": "Library",
        "from": "Figures",
        "points": "Points",
        "ours": "Ours faster",
        "level": "Level",
        "theirs": "Theirs faster",
    }
    display.table(
        table,
        named,
        caption=f"points (shapes, numbers of tokens) where each is faster on the {gpu}; level: within 2 %",
    )
    return table


def libraries_said(table: Rows) -> None:
    """The libraries: in words."""
    lines = []
    for name, rows in table.groupby("name", sort=False):
        line = f"- **{name}**: {rows['purpose'].iloc[0]}."
        for r in rows.itertuples():
            if r.points == 1:
                line += f" {r.origin[0].upper()}{r.origin[1:]}: {r.best}."
            elif r.points:
                line += f" {r.origin.capitalize()}: at best for us {r.best}, at worst {r.worst}."
            else:
                line += " No figure on this GPU, here or published; named, not measured."
        lines.append(line)
    display.say("Each × is how many times as fast ours is.\n\n" + "\n".join(lines))


def libraries_said_2(evidence: Any, gpu: str) -> tuple[Rows, Rows, Rows]:
    """The libraries: in words."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE].copy()
    behind = rivals[rivals["gain"] < 1 / crossover.LEVEL].sort_values("gain")
    lines = [
        f"- {r.name_}, {r.where}: ours runs at **{r.gain:.2f}** times its speed"
        for r in behind.rename(columns={"name": "name_"}).groupby("name_", sort=False).head(3).itertuples()
    ]
    text = f"Of {len(rivals)} comparisons on the {gpu}, ours is behind by more than 2 % in **{len(behind)}**"
    display.say(text + (", the worst three of each library:\n\n" + "\n".join(lines) if lines else "."))
    return every, rivals, behind


def libraries_figure(rivals: Rows, gpu: str) -> None:
    """The libraries: the figure."""
    spread = rivals.groupby("name", sort=False)["gain"].agg(["min", "median", "max", "size"])
    labels = [f"{name} ({size})" for name, size in zip(spread.index, spread["size"], strict=True)]
    title = "How many times as fast ours is"
    fig, ax = plot.figure("times (1 is level)", title=title, height=1.2 + 0.32 * len(spread))
    plot.bars(ax, labels, spread["median"], "×", None, spread["min"], spread["max"])
    ax.axvline(1, color="black", linewidth=1)
    text = f"{title}, median and range over points, {gpu}: {len(spread)} libraries measured here"
    ends = f", medians {spread['median'].min():.2f} to {spread['median'].max():.2f}" if len(spread) else ""
    plot.show(fig, f"{text}{ends}.")


def every_comparison_rows(every: Rows) -> Board:
    """Every comparison: the rows behind it."""
    every["word"] = "level"
    every.loc[every["gain"] > crossover.LEVEL, "word"] = "ours"
    every.loc[every["gain"] < 1 / crossover.LEVEL, "word"] = "theirs"
    every["text"] = every["where"]
    every["note"] = every["gain"].map("{:.2f} times as fast, ".format) + every["origin"] + "."
    some = every.sort_values("gain", kind="stable")
    of = some.groupby(["name", "origin"], sort=False)
    some["set"], place, size = of.ngroup(), of.cumcount(), of["gain"].transform("size")
    some = some[(place < 4) | (place >= size - 4)].sort_values("set", kind="stable")
    controls = {"name": "Library", "origin": "Figures", "word": "Faster"}
    return Board(
        "comparisons",
        some,
        controls=controls,
        head="name",
        word="word",
        text="text",
        start={"word": "theirs"} if (some["word"] == "theirs").any() else None,
        what="comparisons, the closest and the clearest of each library",
    )


def lost_said(evidence: Any, gpu: str) -> Rows:
    """What lost: in words."""
    slower = regressions.rungs(evidence).sort_values("factor", ascending=False)
    lines = [
        f"- **{r.operator}/{r.rung}** ({r.idea}): {r.factor:.2f} times the time of `{r.below}`"
        + (f" at the median of {r.shapes} shapes" if r.shapes > 1 else "")
        for r in slower.itertuples()
    ]
    display.say("\n".join(lines) if lines else f"No rung lost to the one that it changes on the {gpu}.")
    return slower


def lost_table() -> None:
    """What lost: the table."""
    given_up = regressions.given_up()
    names = {"change": "Tried", "brought": "Brought", "gpu": "On", "where": "Stands in"}
    display.table(given_up, names)


def where_everything_said() -> Rows:
    """Where everything is: in words."""
    coverage = pd.read_csv(paths.ROOT / "coverage.csv", dtype=str, keep_default_na=False)
    coverage["word"] = coverage["status"]
    done = coverage["status"] == "done"
    coverage["place"] = related.places(coverage)
    coverage["note"] = "Test: " + coverage["test"].str.partition("::")[2].str.replace(
        "_", " "
    ).str.removeprefix("test ")
    display.say(f"{done.sum()} of {len(coverage)} features are done and tested.")
    return coverage


def where_everything_rows(coverage: Rows) -> Board:
    """Where everything is: the rows behind it."""
    controls = {"lesson": "Lesson", "status": "Status"}
    return Board(
        "features",
        coverage,
        controls=controls,
        word="word",
        text="feature",
        lesson="place",
        start={"lesson": "09"},
        what="features",
    )


def takeaway(rivals: Rows, gpu: str, behind: Rows, slower: Rows) -> None:
    """What to take away, computed."""
    ahead = (rivals["gain"] > crossover.LEVEL).sum()
    lines = [
        f"- Against libraries measured beside it on the {gpu}, ours is ahead in {ahead} of {len(rivals)} "
        f"comparisons and behind in {len(behind)}."
        if len(rivals)
        else f"- No library was measured beside it on the {gpu}.",
        "- A comparison without shape, clock and day is an advertisement.",
        f"- {len(slower)} rungs of this course are slower than the rung that they change, and stay.",
    ]
    display.say("\n".join(lines))
