"""The scorecard: verdicts on every claim as tables, what the course asked of itself, and the tally of the
points that one source gives itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from rooflab.analysis.evidence import Evidence
from rooflab.claims import (
    AIM,
    ARITHMETIC,
    CAUSE,
    ELSEWHERE,
    FLOOR,
    GOALS,
    HOLDS,
    REFUTED,
    SHORT,
    UNRECORDED,
    VERDICTS,
    Claim,
    Test,
    Verdict,
    judge,
    verdict,
    verdict_of_best,
)
from rooflab.claims import goals as asked
from rooflab.words import counted

GPU = "NVIDIA H200"  # the GPU that the course's goals were set for
# Groups of statements about a repository's code, tests and documents; the others are about speed.
ABOUT_CODE = (
    *("correctness", "documentation", "environment", "format", "gap", "integration", "kernel"),
    *("principle", "rollback", "rule", "stability"),
)


def board(claims: Iterable[Claim], evidence: Evidence) -> pd.DataFrame:
    """Every claim with its verdict, a row each, in their order."""
    rows = []
    for claim in claims:
        found = verdict(claim, evidence)
        rows.append(
            {
                **{"id": claim.id, "source": claim.source, "line": claim.line, "group": claim.group},
                **{"says": claim.says, "tested": found.tested, "measured": found.measured},
                **{"value": found.value, "verdict": found.word, "ours": found.ours},
                **{"best": verdict_of_best(claim, evidence, found), "lesson": claim.lesson},
                **{"points": claim.points, "reason": reason(claim, found)},
                "beside": beside(claim, evidence, found),
            }
        )
    return pd.DataFrame(rows)


def beside(claim: Claim, evidence: Evidence, found: Verdict) -> str:
    """What a verdict does not show, in sentences: what the claim's test leaves open; where it holds as
    stated, those of its named restatements that do not hold; and what came of the tests beside it.
    """
    said = [claim.beside] if claim.beside and found.value == found.value else []
    for test in claim.tests:
        again = judge(test, evidence) if test.id and not test.opposes else Verdict(UNRECORDED)
        how = f": {again.tested}; measured {again.measured}."
        if test.aside and again.word != UNRECORDED:
            verb = "holds" if again.word == HOLDS else "does not hold"
            said.append(f"Its neighbour {test.id}, which decides nothing, {verb}{how}")
        elif found.word == HOLDS and again.word in (REFUTED, SHORT):
            said.append(f"Asked as {test.id} it does not hold{how}")
    return " ".join(said)


# Why a statement is refuted.
CARD, WRONG, OWN, KERNEL = "another card", "a wrong cause", "own arithmetic", "another kernel"
REASONS = (CARD, WRONG, OWN, KERNEL)


def reason(claim: Claim, found: Verdict) -> str:
    """Why a claim is refuted, one of REASONS; empty where it is not."""
    if found.word != REFUTED:
        return ""
    if found.ours:
        return KERNEL
    return {CAUSE: WRONG, ARITHMETIC: OWN}.get(claim.rests_on, CARD)


def counts(table: pd.DataFrame, by: str = "source") -> pd.DataFrame:
    """How many claims of each kind came to each verdict."""
    found = table.groupby([by, "verdict"], sort=False).size().unstack(fill_value=0)
    return found.reindex(columns=[word for word in VERDICTS if word in found]).reset_index()


# --- the course's own goals ---------------------------------------------------------------------------------


def goals(evidence: Evidence) -> pd.DataFrame:
    """Every floor, aim and rule with what is reached, a row each: lesson, kind, says, asked, reached, value,
    verdict, and the `budget` of one that is missed: save, above.
    """
    rows = []
    for claim in asked():
        (test,) = claim.tests
        found = judge(test, evidence)
        rows.append(
            {
                **{"lesson": claim.id.partition("-")[0], "kind": claim.group},
                **{"set": "first" if claim.lesson else "later"},
                "says": f"{claim.says}: {test.quantity}" if test.quantity else claim.says,
                **{"asked": test.bars(), "reached": found.measured + (f" ({found.by})" if found.by else "")},
                **{"value": found.value, "verdict": found.word},
                **dict(zip(("save", "above"), budget(test, evidence, found), strict=True)),
            }
        )
    rows.sort(key=lambda row: (row["lesson"], GOALS.index(row["kind"])))
    return pd.DataFrame(rows)


def raised(lesson: str, evidence: Evidence) -> str:
    """A sentence on the goals that were set for a lesson ("08") once its first ones were met, of which its
    pages show none: how many of those recorded are met. Empty where none is.
    """
    mine = [claim for claim in asked() if claim.id.startswith(f"{lesson}-") and not claim.lesson]
    words = [(claim.group, judge(claim.tests[0], evidence).word) for claim in mine]
    said = []
    for group in (FLOOR, AIM):
        found = [word for kind, word in words if kind == group and word != UNRECORDED]
        if found:
            said.append(f"of {counted(len(found), group)} {found.count(HOLDS)} are met")
    if not said:
        return ""
    return (
        f"Later, higher floors and aims were set for lesson {lesson}: {', '.join(said)}. "
        "[Lesson 09](09_scorecard.ipynb) lists each with what was reached."
    )


# Measures of times, of rates or of their ratios; the latter are of one row, any column of which they give.
_TIMED = (
    *("ratio", "least_ratio", "least_gain", "int4_least_gain", "q8_growth", "draft_cost"),
    *("unseen_least", "unseen_cost"),
)
_OF_A_ROW: tuple[str, ...] = (
    "value",
    "reached",
    "int4_time",
    "int4_roof_share",
    "q8_decode",
    "q8_rate",
    "decode_rate",
)
_OF_A_ROW += ("prompt_rate",)


def budget(test: Test, evidence: Evidence, found: Verdict) -> tuple[float, float]:
    """Of a goal that is missed, the share of its time that it must save, and the share of its time that is
    above its roof, which bounds what can be saved; NaN where it is about no time, about no single row, or
    below that roof.
    """
    save = above = float("nan")
    if found.word == SHORT and test.measure in (*_TIMED, *_OF_A_ROW):
        less = test.bar.value / found.value
        save = 1 - (less if test.bar.sign in "<≤" else 1 / less)
        if test.measure in _OF_A_ROW and not {"over_batch", "per"} & set(test.args):
            given = "roof_fraction" in test.args.values() or test.measure == "int4_roof_share"
            share = found.value if given else judge(test, evidence, column="roof_fraction").value
            if share < 1:  # a roof of sustained products is power's, and a kernel that draws less may pass it
                above = 1 - share
    return save, above


# --- the tally ----------------------------------------------------------------------------------------------

PASS, FAIL, OPEN = "pass", "fail", "not ours to test"
SECTIONS = {
    "A": "environment",
    "B": "kernel",
    "C": "integration",
    "D": "correctness",
    "E": "performance",
    "F": "stability",
    "G": "documentation",
    "H": "hypotheses",
}


def outcome(verdict: str) -> str:
    """A checklist item's outcome: it passes as stated or not at all; a rescaled bar is another bar."""
    if verdict == HOLDS:
        return PASS
    return OPEN if verdict in (ELSEWHERE, UNRECORDED) else FAIL


def tally(table: pd.DataFrame, column: str = "verdict") -> pd.DataFrame:
    """The source's own checklist: points of each section that pass, fail, or cannot be tested here; of its
    kernel (column "verdict") or of this course's best ("best").
    """
    items = table[table["points"] > 0].copy()
    items["section"] = items["id"].str.removeprefix("C-").str[0]
    items["outcome"] = items[column].map(outcome)
    sums = items.pivot_table(index="section", columns="outcome", values="points", aggfunc="sum", fill_value=0)
    sums = sums.reindex(columns=[PASS, FAIL, OPEN], fill_value=0)
    sums["of"] = sums.sum(axis=1)
    sums.insert(0, "what", [SECTIONS[name] for name in sums.index])
    return sums.reset_index()


def marks(table: pd.DataFrame, column: str = "verdict") -> pd.DataFrame:
    """The source's three marks: what each asks for, the points reached, and the items that are lacking."""
    items = table[table["points"] > 0].copy()
    items["item"] = items["id"].str.removeprefix("C-")
    held = items[items[column] == HOLDS].set_index("item")["points"]
    total, passed = int(items["points"].sum()), int(held.sum())

    def lacking(names: Sequence[str]) -> list[str]:
        wanted = [item for item in items["item"] if any(_named(item, name) for name in names)]
        return [item for item in wanted if item not in held.index]

    d, e, f = ([f"{s}{i}" for i in range(1, n)] for s, n in (("D", 7), ("E", 5), ("F", 3)))
    asked = (
        ("minimum viable", 60, ["A", "B", "C", *d, "E1", "E4", *f]),
        ("production ready", 80, ["A", "B", "C", "D", *e, "F"]),
        ("excellence", 95, list(SECTIONS)),
    )
    rows = []
    for name, points, names in asked:
        missing = lacking(names)
        rows.append({"mark": name, "points": points, "reached": passed, "of": total, "lacking": missing})
    return pd.DataFrame(rows)


def _named(item: str, name: str) -> bool:
    return item == name or (len(name) == 1 and item.startswith(name))
