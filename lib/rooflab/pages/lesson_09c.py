"""What lesson 09c's page shows: our kernels beside other libraries', by point and by library."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab.analysis import related, strategies
from rooflab.analysis.evidence import NoEvidence
from rooflab.claims.measures import lessons
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows, facts
from rooflab.pages import lesson_09c_points as points
from rooflab.view import diagram, display, plot
from rooflab.view.diagram.in_turns import Compared
from rooflab.view.filter_list import Board
from rooflab.words import listed


def opening(evidence: Any, gpu: str, here: Lab) -> Opening:
    """The first screen: every library's speed beside ours, and lesson 07's shapes."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE]
    answer = f"No library was measured side by side on the {gpu}."
    if len(rivals):
        answer = points.answer(rivals, gpu)
    able = (
        "say where a library's kernel is the better choice, and why",
        "compare two kernels by shape, GPU, clock and day",
        "find the kernels that were tried and lost",
    )
    return answer, able, (points.by_tokens(rivals, gpu) or _spread(rivals, gpu)) if len(rivals) else None


def _sweep(here: Lab, rivals: Rows) -> str:
    """What lesson 07's sweep over shapes adds, whose points are not among those of the page; or nothing."""
    gains, turn = _swept(here), points.turn(rivals).tokens
    lost = gains[gains < 1 / crossover.LEVEL]
    if lost.empty:
        return ""
    text = f"Lesson 07 sweeps more shapes. There cuBLAS is faster than our packed weights at {len(lost)} of "
    text += f"{len(gains)} points"
    if turn == turn:
        text += f", {(lost.index >= turn).sum()} of them with {turn:,.0f} tokens or more"
    return f"{text}; at the worst point ours runs at {lost.min():.2f} times its speed."


def _swept(here: Lab) -> pd.Series:
    """Of lesson 07's sweep of matrices, which is not among the points, our speed over that of cuBLAS with
    FP16 weights, by number of tokens.
    """
    rows = strategies.gather(here)
    if rows.empty:
        return pd.Series(dtype=float)
    tables = [strategies.gains(rows, format) for format in ("int4_g128", "q8_0")]
    cells = [table[[c for c in table if isinstance(c, int)]].stack() for table in tables if len(table)]
    gains = pd.concat(cells).dropna() if cells else pd.Series(dtype=float)
    return gains.droplevel(0) if gains.index.nlevels > 1 else gains


def _drawn(evidence: Any) -> str:
    """The worst of lesson 07's shapes drawn at random, which are not among the points; or nothing."""
    least = _least_drawn(evidence)
    if not least < 1 / crossover.LEVEL:
        return ""
    said = "Lesson 07 also draws shapes at random, which nothing was tuned for: at the worst ours runs at "
    return f"{said}{least:.2f} times the speed of the fastest library."


def _least_drawn(evidence: Any) -> float:
    """Our speed over the fastest library's at the worst of the shapes drawn at random; NaN without any."""
    try:
        return float(lessons.unseen_least(evidence))
    except NoEvidence:
        return float("nan")


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
    ax.hlines(places, spread["min"], spread["max"], color=plot.PEER_COLOUR, linewidth=3, zorder=2)
    ax.plot(spread["median"], places, plot.MARKERS[0], color=plot.COLOURS[0], markersize=7, zorder=3)
    ax.axvline(1, color="black", linewidth=1)
    ax.set_yticks(list(places), labels)
    ax.set_ylim(len(spread) - 0.5, -0.5)
    plot.round_ticks(ax, "x")
    said = ", ".join(f"{name} {value:.2f}" for name, value in spread["median"].items())
    return fig, f"{title}, median and range over points (their number), {gpu}: medians {said}."


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
        kernels = "kernels replayed in a CUDA graph, with weights that no cache holds"
        facts(here, str(studies.iloc[0]), day, kernels)


def libraries(evidence: Any, gpu: str) -> Rows:
    """Show where each library is faster, and from where its figures are; the table."""
    table = related.table(evidence)
    table["from"] = table["origin"].replace(
        {related.HERE: "here", related.OTHER: "another GPU's", related.ABSENT: "none"}
    )
    table["for"] = table["purpose"].where(~table["name"].duplicated(), "")
    table["who"] = table["name"].where(~table["name"].duplicated(), "")
    named = {
        "who": "Library",
        "for": "What it is for",
        "from": "Figures",
        "points": "Points",
        "ours": "Ours faster",
        "level": "Level",
        "theirs": "Theirs faster",
    }
    display.table(
        table,
        named,
        caption=f"Points (shapes, numbers of tokens) where each is faster on the {gpu}; level: within 2%",
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
                line += " No figure on this GPU, here or published."
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
        f"The two kinds of figure differ most for {one['name']}, {one['where']}: ours is "
        f"{one['gain_there']:.2f} times as fast as its published figure, and {one['gain_here']:.2f} times as "
        "fast as the package that was installed here. So time a library on your own card before you choose."
    )


def furthest_behind(evidence: Any, gpu: str, here: Lab) -> tuple[Rows, Rows, Rows]:
    """List the points at which ours is furthest behind, and say what lesson 07 adds: all points, those
    measured here, those behind.
    """
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE].copy()
    behind = rivals[rivals["gain"] < 1 / crossover.LEVEL].sort_values("gain")
    lines = [
        f"- {r.name_}, {r.where}: ours runs at **{_gain(r.gain)}** times its speed"
        for r in behind.rename(columns={"name": "name_"}).groupby("name_", sort=False).head(3).itertuples()
    ]
    text = f"Of {len(rivals)} comparisons on the {gpu}, ours is behind by more than 2% in **{len(behind)}**"
    names = listed(dict.fromkeys(behind["name"]))
    text += f", all behind {names}" if behind["name"].nunique() == 1 else ""
    worst = "The worst three" if behind["name"].nunique() == 1 else "The worst three of each"
    text += f". {worst}:\n\n" + "\n".join(lines) if lines else "."
    display.say(f"{text}\n\n{_sweep(here, rivals)} {_drawn(evidence)}".strip())
    return every, rivals, behind


def _gain(gain: float) -> str:
    """A ratio of speeds, with three decimals where two would hide on which side of level it is."""
    near = any(f"{gain:.2f}" == f"{edge:.2f}" for edge in (crossover.LEVEL, 1 / crossover.LEVEL))
    return f"{gain:.3f}" if near else f"{gain:.2f}"


def every_comparison(every: Rows) -> Board:
    """The list of comparisons, to filter."""
    every["word"] = "level"
    every.loc[every["gain"] > crossover.LEVEL, "word"] = "ours"
    every.loc[every["gain"] < 1 / crossover.LEVEL, "word"] = "theirs"
    every["text"] = every["where"]
    every["note"] = every["gain"].map(_gain) + " times as fast, " + every["origin"] + "."
    some = every.sort_values("gain", kind="stable")
    of = some.groupby(["name", "origin"], sort=False)
    some["set"], place, size = of.ngroup(), of.cumcount(), of["gain"].transform("size")
    some = some[(place < 4) | (place >= size - 4) | (some["word"] == "theirs")].sort_values(
        "set", kind="stable"
    )
    controls = {"name": "Library", "origin": "Figures", "word": "Faster"}
    return Board(
        "comparisons",
        some,
        controls=controls,
        head="name",
        word="word",
        text="text",
        start={"word": "theirs"} if (some["word"] == "theirs").any() else None,
        what=(f"of {len(every)} " if len(every) else "")
        + "comparisons, measured here or published: all in which a library is faster, and of each library "
        "the four closest and the four clearest",
    )


def judged(rivals: Rows, evidence: Any, here: Lab) -> None:
    """Say which parts of the prediction held: ahead where tuned, level where both only read bytes, behind
    elsewhere.
    """
    if rivals.empty:
        return
    ahead = (rivals["gain"] > crossover.LEVEL).mean()
    held = "**Held**" if ahead > 0.5 else "**Failed**"
    said = [f"*Ahead where tuned.* {held}: ours is ahead in {ahead:.0%} of the comparisons above."]
    lone = rivals[rivals["where"].str.startswith("INT4") & rivals["where"].str.endswith(" 1 token")]
    lone = lone[lone["name"] != "cuBLAS"]
    if len(lone):
        won, level = (lone["gain"] > crossover.LEVEL).sum(), 1 / crossover.LEVEL
        even = lone["gain"].between(level, crossover.LEVEL).sum()
        text = "**Held**" if even >= len(lone) / 2 else "**Failed**"
        text += ": with INT4 weights and one token ours is "
        text += f"ahead of all {won}" if won == len(lone) else f"ahead of {won} of {len(lone)}"
        text += f" and level with {even}" if even else ""
        text += ". Why a library takes longer for its bytes was not measured." if won else "."
        said.append(f"*Level where both only read all bytes once.* {text}")
    worst = [_swept(here).min(), _least_drawn(evidence)]
    least = min((each for each in worst if each == each), default=float("nan"))
    if least == least:
        text = "**Held**" if least < 1 / crossover.LEVEL else "**Failed**"
        text += ": on lesson 07's shapes, most of which nothing was tuned for, ours runs at "
        said.append(f"*Behind where not tuned.* {text}{least:.2f} times a library's speed at the worst.")
    display.say("**Verdict**:\n\n" + "\n".join(f"- {each}" for each in said))


def takeaway(rivals: Rows, gpu: str, behind: Rows, slower: Rows) -> None:
    """What to take away, computed."""
    lines = [f"- No library was measured beside it on the {gpu}."]
    if len(rivals):
        at, ahead = points.turn(rivals).tokens, (rivals["gain"] > crossover.LEVEL).sum()
        lines = [
            f"- On the {gpu} ours is ahead in {ahead} of {len(rivals)} comparisons, level in "
            f"{len(rivals) - ahead - len(behind)} and behind in {len(behind)}."
        ]
        if at == at:
            lines.append(
                "- Before you compare two kernels ask how many bits each weight has, and how many tokens "
                f"there are: packed weights save bytes, not arithmetic. From {at:,.0f} tokens on time cuBLAS "
                "too."
            )
    wins = (slower["least"] < 1 / crossover.LEVEL).sum()
    lost = f"- {len(slower)} rungs of this course are slower than the rung that they change"
    lines += [
        "- A comparison needs its two kernels, its shape, GPU, clock and day to be repeated.",
        f"{lost}; {wins} of them win at another shape." if wins else f"{lost}.",
    ]
    display.say("\n".join(lines))
