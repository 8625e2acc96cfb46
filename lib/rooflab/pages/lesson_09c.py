"""What lesson 09c's page shows: our kernels beside other libraries', by point and by library."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab.analysis import related
from rooflab.analysis.evidence import NoEvidence
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows, facts, unseen
from rooflab.pages import lesson_09c_points as points
from rooflab.view import diagram, display, plot
from rooflab.view.diagram.in_turns import OURS, THEIRS, Compared
from rooflab.view.filter_list import Board
from rooflab.words import listed


def opening(evidence: Any, gpu: str, here: Lab) -> Opening:
    """The first screen: who is faster at which shape, packed weights or cuBLAS's FP16."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE]
    answer = f"No library was measured side by side on the {gpu}."
    if len(rivals):
        answer = f"{points.answer(rivals, gpu, here)}{_not_run(evidence)}"
    able = (
        "say at which matrices and numbers of tokens a library's kernel is the better choice",
        "compare two kernels by shape, GPU, clock and day",
        "find the kernels that were tried and lost",
    )
    return answer, able, (points.by_shape(rivals, gpu, here) or _spread(rivals, gpu)) if len(rivals) else None


def _not_run(evidence: Any) -> str:
    """Which libraries were not run on this GPU, and of which of them a published figure is compared."""
    table = related.table(evidence)
    rest = table[~table["name"].isin(table.loc[table["origin"] == related.HERE, "name"])]
    known = rest["origin"] != related.ABSENT
    compared, unknown = (listed(dict.fromkeys(rest.loc[which, "name"])) for which in (known, ~known))
    parts = [f"{compared}, known here by published figures alone"] if known.any() else []
    parts += [f"{unknown}, of which this course has no figure"] if (~known).any() else []
    return f"\n\nNot run here: {'; '.join(parts)}." if parts else ""


def _drawn(evidence: Any, here: Lab) -> Rows:
    """Lesson 07's shapes drawn at random, which are not among the points: ours beside the fastest library."""
    try:
        return unseen.outcomes(here, evidence.rows("regimes", clock="graph"))
    except NoEvidence:
        return pd.DataFrame()


def spread_shown(evidence: Any, gpu: str) -> None:
    """Show our speed over each library's measured here."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE]
    if len(rivals):
        plot.show(*_spread(rivals, gpu))


def _spread(rivals: Rows, gpu: str) -> tuple[Figure, str]:
    """Our speed over each library's, median and range over points: the figure and its caption."""
    packed = points.against_fp16(rivals)
    whose = rivals["name"].where(~packed, rivals["name"] + " beside our packed weights")
    dense = rivals["name"].eq(points.DENSE) & ~packed
    whose = whose.where(~dense, rivals["name"] + " beside our FP16 weights")
    spread = rivals.groupby(whose, sort=False)["gain"].agg(["min", "median", "max", "size"])
    spread = spread.sort_values("median", kind="stable")
    labels = [f"{row.Index} ({row.size}): {row.median:.2f}×" for row in spread.itertuples()]
    title = "Our speed over theirs"
    fig, ax = plot.figure(
        "times as fast (1 is level), log scale", title=title, xlog=True, height=1 + 0.22 * len(spread)
    )
    places = range(len(spread))
    for low, high, colour in ((None, 1, THEIRS), (1, None, OURS)):
        ends = (spread[each].clip(low, high) for each in ("min", "max"))
        ax.hlines(places, *ends, color=colour, linewidth=3, zorder=2)
    ax.plot(spread["median"], places, plot.MARKERS[0], color="black", markersize=7, zorder=3)
    ax.axvline(1, color="black", linewidth=1)
    low, high = ax.get_xlim()
    low = min(low, 0.8)
    ax.axvspan(low, 1, color=THEIRS, alpha=0.2, lw=0, zorder=0)
    ax.axvspan(1, high, color=OURS, alpha=0.2, lw=0, zorder=0)
    ax.set_xlim(low, high)
    ax.set_yticks(list(places), labels)
    ax.set_ylim(len(spread) - 0.5, -0.5)
    plot.round_ticks(ax, "x")
    said = ", ".join(f"{name} {value:.2f}" for name, value in spread["median"].items())
    return (
        fig,
        f"{title}, median (dot) and range over points (their number), ours faster in blue, theirs in "
        f"amber, {gpu}: medians {said}.",
    )


def compared(evidence: Any) -> None:
    """Draw how a kernel and a library's are compared, with the recorded points at which ours is furthest
    behind, level and at the median.
    """
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE].sort_values("gain", kind="stable")
    if rivals.empty:
        return
    level = (rivals["gain"] - 1).abs().to_numpy().argmin()
    places = sorted({0, int(level), len(rivals) // 2})
    columns = (rivals[name].tolist() for name in ("name", "where", "gain"))
    found = [Compared(*each) for each in zip(*columns, strict=True)]
    diagram.in_turns([found[at] for at in places]).show()


def conditions(evidence: Any, here: Lab) -> None:
    """Say by which clock and on which day the points were measured."""
    every = related.points(evidence)
    studies = every.loc[every["origin"] == related.HERE, "study"]
    if len(studies):
        day = str(here.run_of(str(studies.iloc[0]))["started"])[:10]
        kernels = "kernels replayed in a CUDA graph, with weights that no cache holds: a model reads each "
        kernels += "once a token"
        facts(here, str(studies.iloc[0]), day, kernels)


def libraries(evidence: Any, gpu: str) -> Rows:
    """Show where each library is faster, and from where its figures are; the table."""
    table = related.table(evidence)
    table["from"] = table["origin"].replace(
        {related.HERE: "here", related.OTHER: "another GPU's", related.ABSENT: "none"}
    )
    asides = {each.name: each.aside for each in related.libraries()}
    alone = table["points"].eq(1) & table["name"].map(asides).ne("")
    table.loc[alone, "from"] += ", " + table.loc[alone, "name"].map(asides)
    table["for"] = table["purpose"].where(~table["name"].duplicated(), "")
    table["who"] = table["name"].where(~table["name"].duplicated(), "")
    named = {
        "who": "Library",
        "for": "What it is for",
        "from": "Figures",
        "points": "Points",
        "ours": "Ours faster",
        "level": "Level or undecided",
        "theirs": "Theirs faster",
    }
    display.table(
        table,
        named,
        caption=f"Points (shapes, numbers of tokens) where each is faster on the {gpu}; level: within 2%; "
        "undecided: a second measurement has the other ahead",
        folded=True,
    )
    return table


def libraries_described(table: Rows, evidence: Any) -> None:
    """List each library's purpose with the best and the worst comparison for us."""
    lines, every = [], related.points(evidence)
    for name, rows in table.groupby("name", sort=False):
        line = f"**{name}**: {rows['purpose'].iloc[0]}."
        for r in rows.itertuples():
            if r.points == 1:
                line += f" {r.origin[0].upper()}{r.origin[1:]}: {r.best}."
            elif r.points:
                line += f" {r.origin.capitalize()}: at best for us {r.best}, at worst {r.worst}."
            else:
                line += " Not recorded here, and no figure published of it on this GPU is in this course."
        lines.append(line)
    display.say(f"{points.widest_gap(every[every['origin'] == related.HERE])}\n\n{_apart(every)}".strip())
    head = "How many times as fast ours is, at best and at worst, library by library"
    display.fold_items(head, lines)


def _apart(every: Rows) -> str:
    """The point at which a published figure and the one measured here differ most, as an example."""
    key = ["name", "study", "where"]
    both = every[every["origin"] == related.PUBLISHED].merge(
        every[every["origin"] == related.HERE], on=key, suffixes=("_there", "_here")
    )
    if both.empty:
        return ""
    apart = both["gain_there"] / both["gain_here"]
    one = both.loc[apart.where(apart >= 1, 1 / apart).idxmax()]
    return (
        f"Published and measured figures differ most for {one['name']}, {one['where']}: ours is "
        f"{one['gain_there']:.2f} times as fast as its published figure, and {one['gain_here']:.2f} times as "
        "fast as the package that was installed here. So time a library on your own card before you choose."
    )


def furthest_behind(evidence: Any, gpu: str, here: Lab) -> tuple[Rows, Rows, Rows]:
    """List the points at which ours is furthest behind: all points, those measured here, those behind."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE].copy()
    behind = rivals[rivals["word"] == related.THEIRS].sort_values("gain")
    lines = [
        f"- {r.name_}, {r.where}: ours runs at **{_gain(r.gain)}** times its speed"
        for r in behind.rename(columns={"name": "name_"}).groupby("name_", sort=False).head(3).itertuples()
    ]
    text = f"Of the {len(rivals)} comparisons on the {gpu} at the lessons' shapes "
    text += f"ours is behind by more than 2% in **{len(behind)}**"
    names = listed(dict.fromkeys(behind["name"]))
    text += f", all behind {names}" if behind["name"].nunique() == 1 else ""
    worst = "The worst three" if behind["name"].nunique() == 1 else "The worst three of each"
    text += f". {worst}:\n\n" + "\n".join(lines) if lines else "."
    if points.against_fp16(behind).any():
        text += "\n\ncuBLAS multiplies its FP16 weights as they are; ours unpacks weights first. How much of "
        text += "a loss that takes was not counted."
    if both := points.shapes_counted(rivals, here):
        text += (
            f"\n\n**Two counts.** {both}. The sweep adds the weight matrices of small models; of libraries "
        )
        text += "it times cuBLAS alone. The first picture includes it; this section, which compares all "
        text += "libraries, does not."
    display.say(text)
    return every, rivals, behind


def _gain(gain: float) -> str:
    """A ratio of speeds, with three decimals where two would hide on which side of level it is."""
    near = any(f"{gain:.2f}" == f"{edge:.2f}" for edge in (crossover.LEVEL, 1 / crossover.LEVEL))
    return f"{gain:.3f}" if near else f"{gain:.2f}"


def every_comparison(every: Rows) -> Board:
    """The list of comparisons, to filter."""
    every["text"] = every["where"]
    every["note"] = every["gain"].map(_gain) + " times as fast, " + every["origin"] + "."
    some = every.sort_values("gain", kind="stable")
    of = some.groupby(["name", "origin"], sort=False)
    some["set"], place, size = of.ngroup(), of.cumcount(), of["gain"].transform("size")
    some = some[(place < 4) | (place >= size - 4) | (some["word"] == "theirs")].sort_values(
        "set", kind="stable"
    )
    controls = {"name": "Library", "origin": "Figures", "word": "Faster"}
    lost = (some["origin"] == related.HERE) & (some["word"] == "theirs")
    return Board(
        "comparisons",
        some,
        controls=controls,
        head="name",
        word="word",
        text="text",
        start={"origin": related.HERE, "word": "theirs"} if lost.any() else None,
        what="comparisons: of each library all in which it is faster, the four closest and the four clearest"
        + (f", chosen from {len(every)}" if len(every) else ""),
    )


def judged(rivals: Rows, evidence: Any, here: Lab) -> None:
    """Say which parts of the prediction held: ahead where tuned, level where both only read bytes, behind
    elsewhere.
    """
    if rivals.empty:
        return
    ahead = (rivals["word"] == related.OURS).mean()
    held = "**Held**" if ahead > 0.5 else "**Failed**"
    said = [
        f"*Ahead at the lessons' shapes.* {held}: ours is ahead in {ahead:.0%} of the {len(rivals)} "
        "comparisons above."
    ]
    lone = rivals[rivals["where"].str.endswith(" 1 token") & ~points.against_fp16(rivals)]
    if len(lone):
        won, level = (lone["gain"] > crossover.LEVEL).sum(), 1 / crossover.LEVEL
        even = lone["gain"].between(level, crossover.LEVEL).sum()
        text = "**Held**" if even >= len(lone) / 2 else "**Failed**"
        formats = listed(dict.fromkeys(lone["where"].str.partition(",")[0]))
        text += f": with one token and weights of as many bits ({formats}) ours is "
        text += f"ahead in all {won}" if won == len(lone) else f"ahead in {won} of {len(lone)}"
        text += f" and level in {even}" if even else ""
        text += ". Why a library takes longer for its bytes was not measured." if won else "."
        said.append(f"*Level where both only read the same bytes once.* {text}")
    drawn = _drawn(evidence, here)
    if len(drawn):
        lost = drawn[drawn["ratio"] < 1 / crossover.LEVEL]
        text = "**Held**" if len(lost) > len(drawn) / 2 else "**Failed**"
        text += f": of lesson 07's {len(drawn)} shapes drawn at random ours is behind the fastest library at "
        text += f"{len(lost)}"
        text += f", at the worst with {_gain(lost['ratio'].min())} times its speed" if len(lost) else ""
        said.append(f"*Behind at shapes that were not tuned for.* {text}.")
    display.say("**Verdict**:\n\n" + "\n".join(f"- {each}" for each in said))


def takeaway(rivals: Rows, gpu: str, behind: Rows, slower: Rows, here: Lab) -> None:
    """What to take away, computed."""
    lines = [f"- No library was measured beside it on the {gpu}."]
    if len(rivals):
        counts, found = rivals["word"].value_counts(), points.packed(rivals, here)
        parts = points.regions(found, points.rule(found))
        lines = [
            f"- At the lessons' shapes on the {gpu} ours is ahead in {counts.get(related.OURS, 0)} of "
            f"{len(rivals)} comparisons, level or undecided in "
            f"{counts.get(related.EVEN, 0) + counts.get(related.OPEN, 0)} and behind in {len(behind)}."
        ]
        if both := points.shapes_counted(rivals, here):
            lines[0] += f" {both}, which adds small matrices."
        if parts:
            advice = "; ".join(f"{each.where}: {each.advice}" for each in parts)
            lines.append(
                "- Before you compare two kernels ask how many bits each weight has, how many tokens there "
                "are and how large the matrix is: packed weights save bytes, not arithmetic. Here, "
                f"{advice}."
            )
    lines += [
        "- A comparison needs its two kernels, its shape, GPU, clock and day to be repeated.",
        f"- {len(slower)} rungs of this course are slower than the rung that they change.",
    ]
    display.say("\n".join(lines))
