"""What lesson 09's page shows: the verdicts on every source's statements, and on the course's own goals."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.claims import scorecard
from rooflab.pages import Opening, Rows, lesson_09_verdicts
from rooflab.view import display, plot
from rooflab.view.diagram.svg import GREY
from rooflab.view.filter_list import Board
from rooflab.words import counted, listed

_VERBS = {claims.HOLDS: "hold as stated", claims.RESCALED: "rescaled"}
_VERBS |= {claims.DIRECTION: "in direction only", claims.SHORT: "fall short"}
_VERBS |= {claims.REFUTED: "are refuted"}

_MEANS = {
    claims.HOLDS: "the bar is met as it was stated.",
    claims.RESCALED: "the bar was for one card or one kernel. Restated as a share of this GPU's roof, or "
    "asked of our fastest kernel, it is met.",
    claims.DIRECTION: "the ratio is another one here, but what was said to be faster is faster.",
    claims.SHORT: "better than the value that the author says would refute it, but not as good as predicted.",
    claims.REFUTED: "none of these.",
    claims.ELSEWHERE: "another machine or the author's own code is needed.",
    claims.UNRECORDED: "this recording lacks the row.",
}

# Statements that are drawn: a share of the roof, a direction, a refuted figure.
_EXAMPLES = ("C-E5", "D-12", "A-2")


def opening(verdicts: Rows, gpu: str) -> Opening:
    """The first screen: how many statements about speed hold, by source."""
    speed = verdicts[~verdicts["group"].isin(scorecard.ABOUT_CODE)]
    whole = speed["verdict"].value_counts()
    of = [word for word in _VERBS if whole.get(word, 0)]
    answer = f"Of {sum(whole[word] for word in of)} published statements about speed that can be tested on "
    answer += f"the {gpu}, {listed([f'{whole[word]} {_VERBS[word]}' for word in of])}."
    means = {
        claims.RESCALED: "*rescaled*: true of this GPU once the figure is put as a share of its roof, or "
        "asked of our fastest kernel",
        claims.DIRECTION: "*in direction only*: what was said to be faster is faster, by another factor",
    }
    said = "; ".join(text for word, text in means.items() if whole.get(word, 0))
    answer += f" {said[0]}{said[1].upper()}{said[2:]}." if said else ""
    able = (
        "turn a claim into a test that could refute it",
        "tell a figure that carries over to another GPU from one of which only the direction does",
        "do what [the list below](#what-you-can-do-now) says, each item proved by an exercise that you have "
        "solved",
    )
    letters = {key: f"{key}: {name.partition(',')[0]}" for key, name in claims.sources().items()}
    counted = scorecard.counts(speed.assign(name=speed["source"].map(letters)), "name")
    words = [word for word in claims.VERDICTS if word in counted]
    title = "Statements about speed, by document and verdict"
    fig, ax = plot.figure("statements", title=title, height=2.6)
    shades = {word: lesson_09_verdicts.FILLS.get(word, GREY) for word in words}
    plot.stacked(ax, list(counted["name"]), {word: counted[word] for word in words}, "statements", shades)
    said = "; ".join(f"{word}: {whole[word]}" for word in words)
    return answer, able, (fig, f"{title}, {len(speed)} in all, {gpu}: {said}.")


def judged(evidence: Any) -> None:
    """Draw how three statements are judged, where this recording has their rows."""
    drawing = lesson_09_verdicts.verdicts([claims.get(each) for each in _EXAMPLES], evidence)
    if drawing is not None:
        display.say(
            "Three statements, each with the **bar**, the values that let it hold. Where a bar belongs to "
            "the author's card or kernel and is missed, it is *restated* for this GPU:"
        )
        drawing.show()


def meanings(verdicts: Rows) -> None:
    """Say what each verdict means that a statement came to here."""
    found = set(verdicts["verdict"])
    lines = [f"- **{word}**: {text}" for word, text in _MEANS.items() if word in found]
    display.say("\n".join(lines))


def _letters() -> dict[str, str]:
    """The sources' names by letter."""
    return {key: f"{key}: {name}" for key, name in claims.sources().items()}


def _cells(statements: list[Any]) -> str:
    """How many of the statements are cells of one table, which weigh in the counts."""
    cells = [s.source for s in statements if s.group == "sweep"]
    if not cells:
        return ""
    whose = listed(sorted(set(cells)))
    return f"{len(cells)} of the {len(statements)} are cells of one table, {whose}'s sweep over tokens."


def _tolerances(statements: list[Any]) -> str:
    """How near a measured value must come to a figure that was stated without a tolerance."""
    by = [test.bar.by for s in statements for test in s.tests if test.bar.sign == "≈" and test.bar.by]
    if not by:
        return ""
    text = f" A stated figure holds within {min(by):.0%} to {max(by):.0%}: where its author gave no "
    return f"{text}tolerance, the course chose one."


def verdicts_counted(verdicts: Rows, statements: list[Any], gpu: str) -> Rows:
    """Draw how many statements come to which verdict, and say whether the prediction held; those judged."""
    drawing = lesson_09_verdicts.flow(verdicts)
    if drawing is not None:
        drawing.show()
    tested = verdicts[~verdicts["verdict"].isin([claims.ELSEWHERE, claims.UNRECORDED])]
    code = tested["group"].isin(scorecard.ABOUT_CODE)
    held = tested["verdict"] == claims.HOLDS
    display.say(f"{_left_out(verdicts)}{_predicted(held[code], held[~code], gpu)}".strip())
    display.say(f"{_cells(statements)}{_tolerances(statements)}".strip())
    named = verdicts.assign(name=verdicts["source"].map(_letters()))
    by = scorecard.counts(named, "name")
    words = [word for word in claims.VERDICTS if word in by]
    heads = {"name": "Document", **{word: word.capitalize() for word in words}}
    display.table(by, heads, caption="The verdicts by document", folded=True)
    return tested


def _left_out(verdicts: Rows) -> str:
    """Which statements are not judged."""
    words = verdicts["verdict"].value_counts()
    why = {
        claims.ELSEWHERE: "need another machine or the author's own code",
        claims.UNRECORDED: "need a row that this recording lacks",
    }
    parts = [f"{words[word]} that {text}" for word, text in why.items() if words.get(word, 0)]
    return f"Left out are {listed(parts)}. " if parts else ""


def _predicted(code: pd.Series, speed: pd.Series, gpu: str) -> str:
    """Whether statements about code hold more often as stated than those about speed."""
    if code.empty or speed.empty:
        return ""
    text = f"On the {gpu} {code.mean():.0%} of the judged statements about code hold as stated, and "
    text += f"{speed.mean():.0%} of those about speed"
    return f"{text}, {'as predicted' if code.mean() > speed.mean() else 'against the prediction'}."


def every_statement(verdicts: Rows) -> Board:
    """The list of statements, to filter."""
    whole = verdicts["verdict"].value_counts()
    listed = verdicts.copy()
    found = listed["measured"].where(listed["value"].notna(), "")
    note = listed["tested"].where(listed["tested"] != "", listed["measured"])
    note += found.map(lambda text: f"; measured {text}" if text else "")
    listed["note"] = note + ". Line " + listed["line"] + "."
    controls = {"source": "Document", "group": "Kind", "verdict": "Verdict"}
    first = claims.REFUTED if (whole.get(claims.REFUTED, 0)) else claims.HOLDS
    return Board("verdicts", listed, controls=controls, lesson="lesson", start={"verdict": first})


def refuted(verdicts: Rows) -> None:
    """Say which kinds of statement do not hold on this GPU."""
    causes = {
        "C-F15": "The coalesced kernel runs at {measured} the speed of the strided one: it has a thread a "
        "column, too few to fill the GPU.",
        "C-F31": "The kernel takes {measured} of a call that carries its matrix to the GPU.",
        "A-14": "Our fastest INT4 kernel is slower at {measured} of lesson 04's points of 2 to 64 tokens.",
        "A-2": "The product that ran at the roof there runs at {measured} of it.",
        "D-7": "That kernel keeps DRAM busy for {measured} of the time: caches answer what it reads again.",
        "D-10": "The fastest exact int8 product runs at {measured} the speed of the baseline. It scales a "
        "sum for each block of weights, which takes issue slots beside the tensor cores.",
    }
    named = verdicts.set_index("id")
    lines = []
    for one, sentence in causes.items():
        row = named.loc[one]
        if row["verdict"] != claims.REFUTED:
            continue
        later = named.loc["B-3"]
        if one == "A-14" and row["value"] == 0:
            sentence = "Our fastest INT4 kernel is **never slower** at lesson 04's points of 2 to 64 tokens."
        if one == "A-14" and named.loc["A-9"]["verdict"] == claims.HOLDS:
            sentence += (
                " The plain kernel `1_warp_row`, by the author's clock, does lose (A-9 in the appendix)."
            )
        if one == "A-14" and later["verdict"] == claims.HOLDS:
            sentence += f" FP16 wins later: at 256 tokens it runs at {later['measured']} INT4's speed."
        said = sentence.format(measured=f"**{row['measured']}**")
        page = row["lesson"].partition("#")[0]
        where = f" ([{page.partition('_')[0]}]({page}.ipynb))" if page else ""
        lines.append(f"- **Claimed**: {row['says']} **Here**: {said}{where}")
    display.say("\n".join(lines))


def _by_lesson(own: Rows) -> None:
    """Show how many goals of each lesson and kind are met, folded."""
    sums = own.groupby(["lesson", "kind", "verdict"], sort=False).size().unstack(fill_value=0)
    marks = [word for word in (claims.HOLDS, claims.SHORT, claims.UNRECORDED) if word in sums]
    sums = sums[marks].reset_index()
    heads = {"lesson": "Lesson", "kind": "Kind", **{w: w.capitalize() for w in marks}}
    display.table(sums, heads, caption="Goals by lesson and kind", folded=True)


def own_goals_counted(own: Rows, gpu: str) -> Rows:
    """Say how many of these goals are met, and show the floors and rules that are missed; those missed."""
    missed = own[own["verdict"] == claims.SHORT]
    floors = own[own["kind"] == claims.FLOOR]
    open_ = own["verdict"] == claims.UNRECORDED
    met = (floors["verdict"] == claims.HOLDS).sum()
    text = f"On the {gpu} **{met} of {len(floors)} floors are met**. "
    first = sum(bool(goal.lesson) for goal in scorecard.asked())
    text += f"Of all {len(own)} goals {first} were set before the kernels and {len(own) - first} later. "
    four = own.loc[open_, "says"].str.contains("four GPUs").sum()
    if open_.any():
        text += f"Not judged: {counted(int(open_.sum()), 'goal')}, of which this recording lacks the row"
        which = "they ask" if four == open_.sum() else f"{four} of them ask"
        text += f" ({which} for four GPUs). " if four else ". "
    if (own["says"].str.contains("four GPUs") & ~open_).any():
        text += "Those for four GPUs are judged by a recording of four H200s. "
    least = missed[missed["kind"] != claims.AIM]
    display.say(text.strip())
    words = own["verdict"].map({claims.HOLDS: "met", claims.SHORT: "missed"}).fillna("not recorded")
    kinds = own.assign(word=words).groupby(["kind", "word"]).size().unstack(fill_value=0).reset_index()
    display.table(kinds, {"kind": "Goals"} | {c: c for c in ("met", "missed", "not recorded") if c in kinds})
    if len(least):
        shown = least.assign(whose=least["lesson"].replace("house", "the house"))
        heads = {"whose": "Lesson", "says": "Floor or rule", "asked": "Asked", "reached": "Reached"}
        heads |= {"save": "Must save", "above": "Would save at its roof"}
        caption = "The missed floors and rules: what share of its time a kernel must save to meet each, and "
        caption += "what share it would save at its roof"
        display.table(shown, heads, {"save": "{:.1%}", "above": "{:.0%}"}, caption, folded=True)
    _by_lesson(own)
    return missed


def goal_list(own: Rows, missed: Rows) -> Board:
    """The list of goals, to filter: what was asked and reached, and the budget of those that are missed."""
    notes = own["kind"].str.capitalize() + ": asked " + own["asked"] + "; reached " + own["reached"] + "."
    saved = own["save"].map(lambda share: f" It must save {share:.1%} of its time", na_action="ignore")
    above = own["above"].map(lambda share: f"; at its roof it would save {share:.0%}", na_action="ignore")
    budgets = saved + above.astype(object).fillna("") + "."
    return Board(
        "goals",
        own.assign(note=notes + budgets.fillna("")),
        controls={"lesson": "Lesson", "kind": "Kind", "verdict": "Verdict"},
        head="lesson",
        start={"verdict": claims.SHORT if len(missed) else claims.HOLDS},
        what="goals",
    )


def takeaway(tested: Rows, gpu: str, missed: Rows) -> None:
    """What to take away, computed."""
    words = tested["verdict"].value_counts()
    parts = listed(f"{words[word]} {_VERBS[word]}" for word in _VERBS if words.get(word, 0))
    display.say(
        "- A time in microseconds belongs to one card. A share of the roof can be asked of any card. A ratio "
        "can too, but often only its direction carries over.\n"
        "- A test that names what would refute it leaves no room for argument. Few statements here have one; "
        "for the others the course had to choose the bar.\n"
        f"- On the {gpu} {parts}, of {len(tested)} judged statements of all kinds. The same judge finds "
        f"{len(missed)} of this course's own goals missed."
    )
