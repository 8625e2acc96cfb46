"""What lesson 09's page shows: the verdicts on every source's statements, and on the course's own goals."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims, paths
from rooflab.analysis import root_cause
from rooflab.claims import scorecard
from rooflab.hardware.crossover import LEVEL
from rooflab.pages import Opening, Rows, lesson_09_verdicts
from rooflab.pages.lesson_09_goals import goal_list as goal_list
from rooflab.pages.lesson_09_goals import own_goals_counted as own_goals_counted
from rooflab.records.store import Store
from rooflab.view import display, plot
from rooflab.view.diagram.svg import GREY
from rooflab.view.filter_list import Board
from rooflab.words import listed

_VERBS = {claims.HOLDS: "hold as stated", claims.RESCALED: "rescaled"}
_VERBS |= {claims.DIRECTION: "in direction only", claims.SHORT: "fall short"}
_VERBS |= {claims.REFUTED: "are refuted"}

# The judge's steps: it stops at the first bar that is met.
_STEPS = {
    claims.HOLDS: "**As stated.** The author's kernel, rebuilt in this course, or library call is timed by "
    "the author's clock where that is known, else as a kernel alone with weights read from memory. The bar "
    "is the author's.",
    claims.RESCALED: "**Restated**, where the bar belongs to one card, kernel or setting: as the same share "
    "of this GPU's roof, asked of our fastest kernel, or by another quantity or bar of the statement, which "
    "the appendix names.",
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
    claims.ELSEWHERE: "another machine or the author's own code is needed. A decoder's rate on another card "
    "is such a one: its fixed times do not scale with the bandwidth ([02c](02c_rule.ipynb))",
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
        f"Of the statements about code {code['verdict'].eq(claims.HOLDS).mean():.0%} do. They were checked "
        f"on this course's own code and machine: {most.iloc[0]} of these {len(code)} are {most.index[0]}'s, "
        "of files, settings and results."
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
        "few to fill the GPU. The verdict is on our reconstruction{slower}.",
    ),
    scorecard.OWN: (
        "the document's own figures, or its card's datasheet, contradict the statement",
        "C-F31b",
        "C, of reading a matrix of 4,096 × 4,096 on an RTX 4090",
        "That time asks for {measured} of that card's own bandwidth.",
    ),
    scorecard.KERNEL: (
        "our kernel was asked, as the statement is about a way to compute and not about one kernel",
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
            said = sentence.format(measured=f"**{row['measured']}**", slower=_slower(named))
            page = row["lesson"].partition("#")[0]
            where = f" ([{page.partition('_')[0]}]({page}.ipynb))" if page else ""
            lines.append(f"- **{each.capitalize()}**. {who}: “{row['says']}” **Here**: {said}{where}")
    if lines:
        display.say("One of each:\n\n" + "\n".join(lines))


def _slower(named: Rows) -> str:
    """That our reconstruction of C's coalesced kernel takes longer than the published one, where it does."""
    store = Store(paths.DATA, "rtx-4090-published")
    theirs = root_cause.published(store.read("gemv"), store.read("decode")).resident_us
    return ", which takes longer than the published kernel" if named["value"]["C-H2"] > theirs else ""


def takeaway(tested: Rows, gpu: str, missed: Rows) -> None:
    """What to take away, computed."""
    code = tested["group"].isin(scorecard.ABOUT_CODE)
    words, held = (tested[which]["verdict"].value_counts() for which in (~code, code))
    parts = listed(f"{words[word]} {_VERBS[word]}" for word in _VERBS if words.get(word, 0))
    found = [f"of {words.sum()} statements about speed {parts}"] if len(words) else []
    if len(held):
        found.append(
            f"of {held.sum()} about code, checked on this course's own code and machine, "
            f"{held.get(claims.HOLDS, 0)} hold"
        )
    display.say(
        "- A time in microseconds belongs to one card. A share of the roof can be asked of any card. A ratio "
        "can too, but often only its direction carries over.\n"
        "- Name the number that would refute a claim before you measure. Few statements here do; for the "
        "others the course chose the bar.\n"
        "- Say whose kernel a verdict is about: a target that one kernel reaches another may miss.\n"
        f"- Tested on the {gpu}: {'; '.join(found) or 'no statement could be judged'}. The same judge finds "
        f"{len(missed)} of this course's own goals missed."
    )
