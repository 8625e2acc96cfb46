"""What lesson 09's page shows of the goals that the course set itself."""

from __future__ import annotations

from rooflab import claims
from rooflab.claims import scorecard
from rooflab.pages import Rows
from rooflab.view import display
from rooflab.view.filter_list import Board
from rooflab.words import counted, listed


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
    open_ = own["verdict"] == claims.UNRECORDED
    met = own["verdict"].eq(claims.HOLDS).groupby(own["kind"]).agg(["sum", "size"])
    parts = [f"{met['sum'][kind]} of {met['size'][kind]} {kind}s" for kind in claims.GOALS]
    display.say(
        f"On the {gpu} **{listed(parts)} are met**. Several goals ask the same quantity at rising bars: the "
        f"{len(own)} goals are of {len(own.drop_duplicates(['lesson', 'says']))} quantities."
    )
    first = sum(bool(goal.lesson) for goal in scorecard.asked())
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
