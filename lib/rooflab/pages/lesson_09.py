"""What lesson 09's page shows: the verdicts on every source's statements, and on the course's own goals."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.claims import scorecard
from rooflab.hardware.crossover import LEVEL
from rooflab.pages import Opening, Rows, lesson_09_verdicts
from rooflab.view import display, plot
from rooflab.view.diagram.svg import GREY
from rooflab.view.filter_list import Board
from rooflab.words import counted, listed

_VERBS = {claims.HOLDS: "hold as stated", claims.RESCALED: "rescaled"}
_VERBS |= {claims.DIRECTION: "in direction only", claims.SHORT: "fall short"}
_VERBS |= {claims.REFUTED: "are refuted"}

# The judge's steps: it stops at the first bar that is met.
_STEPS = {
    claims.HOLDS: "**As stated.** The author's kernel, rebuilt in this course, or library call is timed by "
    "the author's clock where that is known, else as a kernel alone with weights read from memory. The bar "
    "is the author's.",
    claims.RESCALED: "**Restated**, where the bar belongs to one card, kernel or setting: as the same share "
    "of this GPU's roof, asked of our fastest kernel, or by a neighbouring quantity or bar, which the "
    "appendix names.",
    claims.DIRECTION: "**Direction alone.** Is faster here what was said to be faster, by any factor?",
    claims.SHORT: "No bar is met, but neither is the value that the author says would refute the claim.",
    claims.REFUTED: "No bar is met.",
}
_PROVES = {
    claims.RESCALED: "Asked of our kernel or as a share, it shows that the target can be reached on this "
    "GPU. It does not show that the author's kernel reaches it.",
    claims.DIRECTION: "It says nothing of the size.",
}
_OPEN = {
    claims.ELSEWHERE: "another machine or the author's own code is needed",
    claims.UNRECORDED: "this recording lacks the row",
}

# A claim asked of our kernel, and asked of the author's by the author's clock.
_TWICE = ("A-13", "B-4")

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
        claims.RESCALED: "*rescaled*: met as a share of this GPU's roof, by our fastest kernel, or by "
        "another bar than the author's",
        claims.DIRECTION: "*in direction only*: what was said to be faster is faster, by another factor",
    }
    said = "; ".join(text for word, text in means.items() if whole.get(word, 0))
    answer += f" {said[0]}{said[1].upper()}{said[2:]}." if said else ""
    answer += _not_wrong(speed)
    able = (
        "turn a claim into a test that could refute it",
        "say which kinds of figure carry over to another GPU",
        "do what [the list below](#what-you-can-do-now) says, each item proved by an exercise that you have "
        "solved",
    )
    letters = {key: f"{key}: {name.replace('docs/', '')}" for key, name in claims.sources().items()}
    counted = scorecard.counts(speed.assign(name=speed["source"].map(letters)), "name")
    words = [word for word in claims.VERDICTS if word in counted]
    title = "Statements about speed, by document and verdict"
    fig, ax = plot.figure("statements", title=title, height=2.6)
    shades = {word: lesson_09_verdicts.FILLS.get(word, GREY) for word in words}
    plot.stacked(ax, list(counted["name"]), {word: counted[word] for word in words}, "statements", shades)
    said = "; ".join(f"{word}: {whole[word]}" for word in words)
    return answer, able, (fig, f"{title}, {len(speed)} in all, {gpu}: {said}.")


def _level(refuted: Rows) -> pd.Series:
    """Which refuted statements ask for a gain that was measured within the tie rule, so neither way."""
    asked = [claims.get(id).tests[0].bar for id in refuted["id"]]
    tie = pd.Series([bar.sign == ">" and bar.value == LEVEL for bar in asked], refuted.index, dtype=bool)
    return tie & refuted["value"].between(1 / LEVEL, LEVEL)


def _not_wrong(speed: Rows) -> str:
    """How many refuted statements only do not carry over to this card, and how many are level."""
    refuted = speed[speed["verdict"] == claims.REFUTED]
    card, level = int((refuted["reason"] == scorecard.CARD).sum()), int(_level(refuted).sum())
    said = [f"{card} only do not carry over to this card (on their author's they may hold)"] if card else []
    said += (
        [f"{level} claimed that one of two is faster, where the two are level here, within 2%"]
        if level
        else []
    )
    return f" Of the {len(refuted)} refuted, {listed(said)}." if said else ""


def judged(evidence: Any) -> None:
    """Draw how three statements are judged, where this recording has their rows."""
    drawing = lesson_09_verdicts.verdicts([claims.get(each) for each in _EXAMPLES], evidence)
    if drawing is not None:
        display.say(
            "Three examples. `2_coalesced` is C's matrix-vector kernel, *scalar* and *half2* are two of D's "
            "attention kernels, all rebuilt here; cuBLAS is NVIDIA's library:"
        )
        drawing.show()


def meanings(verdicts: Rows) -> None:
    """Say in which order a statement's bars are tried, and what each verdict that was given here shows."""
    found = set(verdicts["verdict"])
    lines = []
    for word, text in _STEPS.items():
        if word in found:
            lines.append(f"{len(lines) + 1}. {text} **→ {word}**. {_PROVES.get(word, '')}".strip())
    text = (
        "A **bar** says which values let a statement hold. The judge tries these in order and stops at the "
    )
    display.say(f"{text}first bar that is met:\n\n" + "\n".join(lines))
    open_ = [f"A statement **{word}** is not judged: {why}." for word, why in _OPEN.items() if word in found]
    if open_:
        display.say(" ".join(open_))


def judged_twice(verdicts: Rows) -> None:
    """One claim judged in words, of our kernel and of its author's, where this recording has both rows."""
    ours, theirs = (verdicts.set_index("id").loc[each] for each in _TWICE)
    if {ours["verdict"], theirs["verdict"]} & set(_OPEN):
        return
    apart = ours["verdict"] != theirs["verdict"]
    end = "So a verdict must say whose kernel it is about" if apart else "Here both kernels agree"
    if ours["verdict"] == claims.REFUTED:
        end = f"*Refuted* means here that our kernel does better than the claim allows. {end}"
    display.say(
        f"**One claim, judged twice.** Of one token and a small matrix, 1,536 × 1,536, {ours['source']} says "
        "that an INT4 kernel which unpacks and multiplies in one go (*fused*) does not beat cuBLAS on FP16 "
        "weights. Measured, as speed over FP16's:\n\n"
        f"- the author's kernel, whole calls by the author's clock: **{theirs['measured']}**, so the claim "
        f"**{_word(theirs)}**\n"
        f"- our fused kernel, alone in a graph, weights from memory: **{ours['measured']}**, so the claim "
        f"**{_word(ours)}**\n\n"
        f"{end}."
    )


def _word(row: Any) -> str:
    """A verdict as the end of "the claim ..."."""
    return "is refuted" if row["verdict"] == claims.REFUTED else str(row["verdict"])


def exceptions(verdicts: Rows, statements: list[Any]) -> None:
    """List, folded, the statements that do not begin at the first step, or are asked of our kernel."""
    open_ = verdicts["verdict"].isin(list(_OPEN))
    at = open_.set_axis(verdicts["id"])
    late = [s.id for s in statements if s.tests and s.tests[0].restated and not at[s.id]]
    ours = verdicts[verdicts["ours"] & ~open_]
    met = ours["verdict"] == claims.RESCALED
    start = {s.id for s in statements if any(test.ours and not test.restated for test in s.tests)}
    lists = {
        "Judged from step 2 on, for as stated they need another machine": late,
        "Rescaled, met by our fastest kernel": list(ours["id"][met]),
        "About a way to compute, such as “fused” or “int8”, and asked of our fastest kernel of that way from "
        "the start": list(ours["id"][~met & ours["id"].isin(start)]),
        "Restated, and asked of our fastest kernel there": list(ours["id"][~met & ~ours["id"].isin(start)]),
    }
    lines = [f"{what}: {listed(ids)}." for what, ids in lists.items() if ids]
    if lines:
        display.fold_items("Statements that are judged from a later step on, or of our kernel", lines)


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
    return f"{text}tolerance, the course chose one. "


def verdicts_counted(verdicts: Rows, statements: list[Any], gpu: str) -> Rows:
    """Draw how many statements come to which verdict, and which kinds of figure hold; those judged."""
    drawing = lesson_09_verdicts.flow(verdicts)
    if drawing is not None:
        drawing.show()
    tested = verdicts[~verdicts["verdict"].isin(list(_OPEN))]
    display.say(f"{_left_out(verdicts)}{_cells(statements)}{_tolerances(statements)}".strip())
    speed = tested[~tested["group"].isin(scorecard.ABOUT_CODE)]
    if len(speed):
        kinds = {s.id: lesson_09_verdicts.kind(s) for s in statements if s.tests}
        speed = speed.assign(kind=speed["id"].map(kinds))
        plot.show(*lesson_09_verdicts.by_kind(speed, gpu))
        display.say(f"{_predicted(speed, gpu)}{_code(tested)}".strip())
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


def _predicted(speed: Rows, gpu: str) -> str:
    """Whether which of two is faster holds more often than how many times, and that than times and rates."""
    held = speed["verdict"].eq(claims.HOLDS).groupby(speed["kind"]).mean()
    order = [held.get(name) for name in lesson_09_verdicts.KINDS[:3]]
    if any(share is None for share in order):
        return ""
    sizes = speed["kind"].value_counts()
    parts = [
        f"{share:.0%} of the {sizes[name]} {lesson_09_verdicts.PLURAL[name]}"
        for name, share in zip(lesson_09_verdicts.KINDS, order, strict=False)
    ]
    right = all(one > two for one, two in zip(order, order[1:], strict=False))
    end = "as predicted" if right else "not in the predicted order"
    return f"**On the {gpu} {listed(parts)} hold as stated, {end}.** "


def _code(tested: Rows) -> str:
    """How many statements about code hold, and how little that says."""
    code = tested[tested["group"].isin(scorecard.ABOUT_CODE)]
    if code.empty:
        return ""
    most = code["source"].value_counts()
    return (
        f"Of the statements about code {code['verdict'].eq(claims.HOLDS).mean():.0%} do. That says little of "
        f"the GPU: {most.iloc[0]} of these {len(code)} are {most.index[0]}'s, of files, settings and results."
    )


def every_statement(verdicts: Rows) -> Board:
    """The list of statements, to filter."""
    whole = verdicts["verdict"].value_counts()
    listed = verdicts.copy()
    found = listed["measured"].where(listed["value"].notna(), "")
    note = listed["tested"].where(listed["tested"] != "", listed["measured"])
    note += found.map(lambda text: f"; measured {text}" if text else "")
    refuted = listed[listed["verdict"] == claims.REFUTED]
    level = _level(refuted).reindex(listed.index, fill_value=False)
    note += level.map({True: ", level within 2%", False: ""})
    by_ours = listed["ours"] & ~listed["verdict"].isin(list(_OPEN))
    note += by_ours.map({True: ". Asked of our fastest kernel, not the author's", False: ""})
    note += (". " + listed["beside"].str.removesuffix(".")).where(listed["beside"] != "", "")
    listed["note"] = note + ". Line " + listed["line"] + "."
    kinds = {s.id: lesson_09_verdicts.kind(s) for s in claims.stated() if s.tests}
    about = listed["group"].isin(scorecard.ABOUT_CODE)
    listed["kind"] = listed["id"].map(kinds).fillna("without a test").mask(about, "code and documents")
    listed["why"] = listed["reason"].where(listed["reason"] != "", "not refuted")
    controls = {"source": "Document", "kind": "Kind", "verdict": "Verdict", "why": "Why refuted"}
    first = claims.REFUTED if (whole.get(claims.REFUTED, 0)) else claims.HOLDS
    return Board("verdicts", listed, controls=controls, lesson="lesson", start={"verdict": first})


# What a reason for a refutation says; a statement that shows it, who makes it and of what; what is measured.
_REASONS = {
    scorecard.CARD: (
        "the author's kernel, rebuilt, or the same library call gives another figure on this GPU, which says "
        "nothing of the author's own card",
        "A-2",
        "A, of cuBLAS with one token on a laptop's RTX 4070",
        "The same product, 8,960 × 1,536, runs at {measured} of this GPU's roof.",
    ),
    scorecard.WRONG: (
        "the cause or the rule of design that was given is not what decides",
        "C-F15",
        "C, of its first matrix-vector kernel, in which the lanes of a warp read far apart (*strided*); its "
        "cure lets them read side by side (*coalesced*)",
        "The coalesced kernel runs at {measured} the speed of the strided one: it has a thread a column, too "
        "few to fill the GPU.",
    ),
    scorecard.OWN: (
        "the document's own figures, or its card's datasheet, contradict the statement",
        "C-F31b",
        "C, of reading a matrix of 4,096 × 4,096 on an RTX 4090",
        "That time asks for {measured} of that card's own bandwidth.",
    ),
    scorecard.KERNEL: (
        "our kernel was asked, as the statement is about a way to compute or takes a whole decoder",
        "D-10",
        "D, of a prompt's products in 8-bit integers (*int8 MMQ*), beside unpacking the weights to FP16 "
        "(*dequantising*) for cuBLAS",
        "The fastest exact int8 product runs at {measured} the speed of the baseline. It scales a sum for "
        "each block of weights, which takes issue slots beside the tensor cores.",
    ),
}


def refuted(verdicts: Rows, gpu: str) -> None:
    """Draw why the refuted statements about speed are refuted, and give one of each reason."""
    speed = verdicts[~verdicts["group"].isin(scorecard.ABOUT_CODE)]
    counts = speed.loc[speed["verdict"] == claims.REFUTED, "reason"].value_counts()
    found = [each for each in scorecard.REASONS if counts.get(each, 0)]
    if not found:
        display.say("No statement about speed is refuted.")
        return
    plot.show(*lesson_09_verdicts.by_reason(counts[found], gpu))
    parts = [f"in {counts[each]} {_REASONS[each][0]}" for each in found]
    display.say(f"**Of the refuted statements about speed ({counts.sum()}), {'; '.join(parts)}.**")
    named, lines = verdicts.set_index("id"), []
    for each in found:
        _, one, who, sentence = _REASONS[each]
        row = named.loc[one]
        if row["reason"] == each:
            said = sentence.format(measured=f"**{row['measured']}**")
            page = row["lesson"].partition("#")[0]
            where = f" ([{page.partition('_')[0]}]({page}.ipynb))" if page else ""
            lines.append(f"- **{each.capitalize()}**. {who}: “{row['says']}” **Here**: {said}{where}")
    if lines:
        display.say("One of each:\n\n" + "\n".join(lines))


def _by_lesson(own: Rows) -> None:
    """Show how many goals of each lesson and kind are met, folded."""
    sums = own.groupby(["lesson", "kind", "verdict"], sort=False).size().unstack(fill_value=0)
    marks = [word for word in (claims.HOLDS, claims.SHORT, claims.UNRECORDED) if word in sums]
    sums = sums[marks].reset_index()
    heads = {"lesson": "Lesson", "kind": "Kind", **{w: w.capitalize() for w in marks}}
    display.table(sums, heads, caption="Goals by lesson and kind", folded=True)


_GOALS = (
    "**Floors** had to be reached, **aims** were hoped for, and **rules** bind all kernels and the course "
    "itself. The first were set before the kernels were built. Some floors were raised "
    "later, and goals for shapes that nothing was tuned for were added. A lesson's own page counts its first "
    "floors alone."
)


def own_goals_counted(own: Rows, gpu: str) -> Rows:
    """Say how many of these goals are met, and show the floors and rules that are missed; those missed."""
    missed = own[own["verdict"] == claims.SHORT]
    floors = own[own["kind"] == claims.FLOOR]
    open_ = own["verdict"] == claims.UNRECORDED
    met = (floors["verdict"] == claims.HOLDS).sum()
    text = f"On the {gpu} **{met} of {len(floors)} floors are met**. "
    first = sum(bool(goal.lesson) for goal in scorecard.asked())
    display.say(text.strip())
    text = f"Of all {len(own)} goals {first} were set before the kernels and {len(own) - first} later. "
    four = own.loc[open_, "says"].str.contains("four GPUs").sum()
    if open_.any():
        text += f"Not judged: {counted(int(open_.sum()), 'goal')}, of which this recording lacks the row"
        which = "they ask" if four == open_.sum() else f"{four} of them ask"
        text += f" ({which} for four GPUs). " if four else ". "
    if (own["says"].str.contains("four GPUs") & ~open_).any():
        text += "Those for four GPUs are judged by a recording of four H200s. "
    least = missed[missed["kind"] != claims.AIM]
    words = own["verdict"].map({claims.HOLDS: "met", claims.SHORT: "missed"}).fillna("not recorded")
    kinds = own.assign(word=words).groupby(["kind", "word"]).size().unstack(fill_value=0).reset_index()
    heads = {"kind": "Goals"} | {c: c for c in ("met", "missed", "not recorded") if c in kinds}
    display.fold_parts(
        "What the goals are, and how many are met", (f"{_GOALS} {text.strip()}", (kinds, heads))
    )
    if len(least):
        shown = least.assign(whose=least["lesson"].replace("house", "all"))
        for name, form in (("save", "{:.1%}"), ("above", "{:.0%}")):
            shown[name] = shown[name].map(form.format, na_action="ignore").astype(object).fillna("–")
        heads = {
            "whose": "Lesson",
            "set": "Set",
            "says": "Floor or rule",
            "asked": "Asked",
            "reached": "Reached",
        }
        heads |= {"save": "Must save", "above": "Would save at its roof"}
        caption = "The missed floors and rules: what share of its time a kernel must save to meet each, and "
        caption += (
            "what share it would save at its roof (–: the goal is about no time, or its row has no roof)"
        )
        if past := int((least["above"] < least["save"]).sum()):
            caption += f"; {counted(past, 'goal')} would need more than the roof of this recording gives"
        display.table(shown, heads, None, caption, folded=True)
    _by_lesson(own)
    return missed


def goal_list(own: Rows, missed: Rows) -> Board:
    """The list of goals, to filter: what was asked and reached, and the budget of those that are missed."""
    notes = own["kind"].str.capitalize() + ": asked " + own["asked"] + "; reached " + own["reached"] + "."
    saved = own["save"].map(lambda share: f" It must save {share:.1%} of its time", na_action="ignore")
    above = own["above"].map(lambda share: f"; at its roof it would save {share:.0%}", na_action="ignore")
    past = (own["above"] < own["save"]).map(
        {True: ": the goal is past the roof of this recording", False: ""}
    )
    budgets = saved + above.astype(object).fillna("") + past + "."
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
        "- Name the number that would refute a claim before you measure. Few statements here do; for the "
        "others the course chose the bar.\n"
        "- Say whose kernel a verdict is about: a target that one kernel reaches another may miss.\n"
        f"- On the {gpu} {parts}, of {len(tested)} judged statements of all kinds. The same judge finds "
        f"{len(missed)} of this course's own goals missed."
    )
