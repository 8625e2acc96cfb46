"""What lesson 09c's page shows: our kernels beside other libraries', what was tried and lost, and a map."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab import paths
from rooflab.analysis import regressions, related, strategies
from rooflab.analysis.evidence import NoEvidence
from rooflab.claims.measures import lessons
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.view import diagram, display, plot
from rooflab.view.diagram.in_turns import Compared
from rooflab.view.filter_list import Board
from rooflab.words import listed, times


def opening(evidence: Any, gpu: str, here: Lab) -> Opening:
    """The first screen: every library's speed beside ours, and lesson 07's sweep, whose points are others."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE]
    ahead = (rivals["gain"] > crossover.LEVEL).sum()
    behind = rivals[rivals["gain"] < 1 / crossover.LEVEL]
    answer = f"No library was measured side by side on the {gpu}."
    if len(rivals):
        answer = (
            f"On the {gpu} a library is faster at {len(behind)} of the {len(rivals)} points at which lessons "
        )
        answer += (
            f"04 to 06 measured it beside ours{_always(behind)}{_from(behind)}; ours is faster at {ahead}."
        )
        lost, of, _ = _swept(here)
        if of and lost / of > len(behind) / len(rivals):
            answer += (
                " At the shapes of lesson 07 it happens more often: FP16 weights multiplied by cuBLAS are "
            )
            answer += f"faster than ours at {lost} of {of} points."
        answer = f"{answer} {_drawn(evidence)}".rstrip()
    able = (
        "compare two kernels by shape, GPU, clock and day",
        "say where a library's kernel is the better choice",
        "find the kernels that were tried and lost",
    )
    return answer, able, _by_tokens(rivals, gpu) if len(rivals) else None


def _always(behind: Rows) -> str:
    """Who is faster where one is, if it is one library, and by how much at most."""
    if behind.empty:
        return ""
    one = f", always {behind['name'].iloc[0]}" if behind["name"].nunique() == 1 else ""
    return f"{one}, at most {times(1 / behind['gain'].min())} times as fast"


def _tokens(points: Rows) -> Rows:
    """The points that are products of so many tokens, with `tokens` and the weights' `format`."""
    parts = points["where"].str.extract(r"^(INT4|Q8_0|FP16),.* ([\d,]+) tokens?$")
    found = points.assign(format=parts[0], tokens=pd.to_numeric(parts[1].str.replace(",", "")))
    return found.dropna(subset=["format", "tokens"])


def _from(behind: Rows) -> str:
    """From how many tokens on a library is faster, if that is asked of products of many tokens alone."""
    found = _tokens(behind)
    if found.empty or len(found) < len(behind) or found["tokens"].min() < 2:
        return ""
    spans = [
        f"{format} at {mine['tokens'].min():,.0f} to {mine['tokens'].max():,.0f}"
        for format, mine in found.groupby("format", sort=False)
    ]
    return f", and all at {found['tokens'].min():,.0f} tokens or more ({', '.join(spans)})"


def _swept(here: Lab) -> tuple[int, int, float]:
    """Of lesson 07's sweep of matrices, which is not among the points: at how many cuBLAS with FP16 weights
    is faster, of how many, and our speed over its at the worst.
    """
    rows = strategies.gather(here)
    if rows.empty:
        return 0, 0, float("nan")
    tables = [strategies.gains(rows, format) for format in ("int4_g128", "q8_0")]
    cells = [table[[c for c in table if isinstance(c, int)]].stack() for table in tables if len(table)]
    gains = pd.concat(cells).dropna() if cells else pd.Series(dtype=float)
    lost = gains[gains < 1 / crossover.LEVEL]
    return len(lost), len(gains), float(lost.min()) if len(lost) else float("nan")


def _drawn(evidence: Any) -> str:
    """The worst of lesson 07's shapes drawn at random, which are not among the points; or nothing."""
    try:
        least = lessons.unseen_least(evidence)
    except NoEvidence:
        return ""
    if least >= 1 / crossover.LEVEL:
        return ""
    said = "On the worst of lesson 07's shapes drawn at random ours runs at "
    return f"{said}{least:.2f} times the speed of the fastest library."


def _by_tokens(rivals: Rows, gpu: str) -> tuple[Figure, str]:
    """Our speed over cuBLAS's, a dot a product by its tokens; the spread by library where there is none."""
    found = _tokens(rivals[rivals["name"] == "cuBLAS"])
    if found.empty:
        return _spread(rivals, gpu)
    title = "Our speed over cuBLAS's on FP16 weights"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True, ylog=True, height=3.0)
    names = {"INT4": "int4_g128", "Q8_0": "q8_0", "FP16": "fp16"}
    for (format, mine), marker in zip(found.groupby("format", sort=False), ("o", "s", "^"), strict=False):
        colour = plot.FORMAT_COLOURS[names[str(format)]]
        ax.plot(
            mine["tokens"], mine["gain"], marker, color=colour, alpha=0.7, markersize=5, label=f"{format}"
        )
    plot.roof_line(ax, 1.0, "as fast")
    plot.round_ticks(ax)
    plot.round_ticks(ax, "x")
    ax.legend(fontsize=8.5, frameon=False, loc="upper right")
    lost = found[found["gain"] < 1 / crossover.LEVEL]
    said = f"{len(lost)} of {len(found)} below the line by more than 2%"
    said += f", from {lost['tokens'].min():,.0f} tokens on" if len(lost) else ""
    return fig, f"{title}, a dot a product and number of tokens, {gpu}: {said}."


def spread_shown(evidence: Any, gpu: str) -> None:
    """Show our speed over each library's measured here."""
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE]
    if len(rivals):
        plot.show(*_spread(rivals, gpu))


def _spread(rivals: Rows, gpu: str) -> tuple[Figure, str]:
    """Our speed over each library's, median and range over points: the figure and its caption."""
    spread = rivals.groupby("name", sort=False)["gain"].agg(["min", "median", "max", "size"])
    spread = spread.sort_values("median", kind="stable")
    labels = [f"{row.Index} ({row.size}): {row.median:.2f}×" for row in spread.itertuples()]
    title = "Our speed over theirs"
    fig, ax = plot.figure("times as fast (1 is level)", title=title, xlog=True, height=1 + 0.22 * len(spread))
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
    points = [Compared(*each) for each in zip(*columns, strict=True)]
    diagram.in_turns([points[at] for at in places]).show()


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


def libraries_described(table: Rows) -> None:
    """List each library's purpose with the best and the worst comparison for us."""
    lines = []
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
    head = "How many times as fast ours is, at best and at worst, library by library"
    display.fold_items(head, lines)


def furthest_behind(evidence: Any, gpu: str, here: Lab) -> tuple[Rows, Rows, Rows]:
    """List the points at which ours is furthest behind, and say what lesson 07 adds: all points, those
    measured here, those behind.
    """
    every = related.points(evidence)
    rivals = every[every["origin"] == related.HERE].copy()
    behind = rivals[rivals["gain"] < 1 / crossover.LEVEL].sort_values("gain")
    lines = [
        f"- {r.name_}, {r.where}: ours runs at **{r.gain:.2f}** times its speed"
        for r in behind.rename(columns={"name": "name_"}).groupby("name_", sort=False).head(3).itertuples()
    ]
    text = f"Of {len(rivals)} comparisons on the {gpu}, ours is behind by more than 2% in **{len(behind)}**"
    names = listed(dict.fromkeys(behind["name"]))
    text += f", all behind {names}" if behind["name"].nunique() == 1 else ""
    worst = "The worst three" if behind["name"].nunique() == 1 else "The worst three of each"
    text += f". {worst}:\n\n" + "\n".join(lines) if lines else "."
    lost, of, least = _swept(here)
    more = "Of lesson 07's sweep of matrices, whose points are others, cuBLAS with FP16 weights is faster "
    more += f"at {lost} of {of}, at worst {1 / least:.1f} times as fast. " if lost else ""
    display.say(f"{text}\n\n{more if lost else ''}{_drawn(evidence)}".strip())
    return every, rivals, behind


def every_comparison(every: Rows) -> Board:
    """The list of comparisons, to filter."""
    every["word"] = "level"
    every.loc[every["gain"] > crossover.LEVEL, "word"] = "ours"
    every.loc[every["gain"] < 1 / crossover.LEVEL, "word"] = "theirs"
    every["text"] = every["where"]
    every["note"] = every["gain"].map("{:.2f} times as fast, ".format) + every["origin"] + "."
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


# The lesson that climbs an operator's ladder.
_SHOWN = {
    **dict.fromkeys(("read", "write", "copy", "triad", "saxpy"), "01_bandwidth"),
    **{"gemv": "03_coalescing", "gemv_rows": "03d_rows", "int4": "04b_ladder", "q8_0": "05b_decode"},
    **{
        "mmq": "05d_mmq",
        "attention": "06_attention",
        "decode_attention": "06d_decode",
        "decode_step": "08_decoder",
    },
}


def judged(rivals: Rows, evidence: Any, gpu: str) -> None:
    """Say whether the prediction held: ahead where tuned, level where both only read bytes, behind
    elsewhere.
    """
    if rivals.empty:
        return
    ahead = (rivals["gain"] > crossover.LEVEL).mean()
    text = f"**Verdict**: at the shapes above ours is ahead at {ahead:.0%} of the points"
    text += ", as predicted. " if ahead > 0.5 else "; ahead at most of them was predicted. "
    lone = rivals[rivals["where"].str.startswith("INT4") & rivals["where"].str.endswith(" 1 token")]
    lone = lone[lone["name"] != "cuBLAS"]
    if len(lone):
        won, level = (lone["gain"] > crossover.LEVEL).sum(), 1 / crossover.LEVEL
        even = lone["gain"].between(level, crossover.LEVEL).sum()
        text += "At one token, where ours and a library's INT4 product both read all bytes once, ours is "
        text += f"level at {even} "
        text += f"of {len(lone)} points and ahead at {won}. "
        if even < len(lone) / 2:
            text += "“Level” does not hold there; why a library takes longer for its bytes was not measured. "
    try:
        least = lessons.unseen_least(evidence)
    except NoEvidence:
        least = float("nan")
    if least < 1 / crossover.LEVEL:
        text += (
            f"On shapes that were not tuned for ours does lose, down to {least:.2f} times a library's speed."
        )
    display.say(text)


def slower_rungs(evidence: Any, gpu: str) -> Rows:
    """List the rungs that are slower than the one they change; these rungs."""
    slower = regressions.rungs(evidence).sort_values("factor", ascending=False)
    lines = [
        f"- **{r.operator}/{r.rung}** ({r.idea}): {r.factor:.2f} times the time of `{r.below}`"
        + (f" at the median of {r.shapes} shapes" if r.shapes > 1 else "")
        + (
            f": [lesson {_SHOWN[r.operator].partition('_')[0]}]({_SHOWN[r.operator]}.ipynb)"
            if r.operator in _SHOWN
            else ""
        )
        for r in slower.itertuples()
    ]
    display.say("\n".join(lines) if lines else f"No rung lost to the one that it changes on the {gpu}.")
    return slower


def given_up() -> None:
    """Show what the sources' authors tried and gave up."""
    given_up = regressions.given_up()
    names = {"change": "Tried", "brought": "Brought", "gpu": "On", "where": "Source"}
    display.table(given_up, names)


def features_done() -> Rows:
    """Say how many features are done; all of them with their places."""
    coverage = pd.read_csv(paths.ROOT / "coverage.csv", dtype=str, keep_default_na=False)
    coverage["word"] = coverage["status"]
    done = coverage["status"] == "done"
    coverage["place"] = related.places(coverage)
    coverage["note"] = "Test: " + coverage["test"].str.partition("::")[2].str.replace(
        "_", " "
    ).str.removeprefix("test ")
    display.say(f"{done.sum()} of {len(coverage)} features of the sources' code are done and tested.")
    return coverage


def features(coverage: Rows) -> Board:
    """The list of features, to filter."""
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
        f"comparisons, level in {len(rivals) - ahead - len(behind)} and behind in {len(behind)}."
        if len(rivals)
        else f"- No library was measured beside it on the {gpu}.",
        "- A comparison needs its two kernels, its shape, GPU, clock and day to be repeated.",
        f"- {len(slower)} rungs of this course are slower than the rung that they change, and stay.",
    ]
    display.say("\n".join(lines))
