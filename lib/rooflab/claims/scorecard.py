"""The scorecard: every statement of the course's sources, how it is tested here, and what the rows say.

A Statement holds no verdict. `judge` measures its quantity on a Shelf and compares. Where a statement speaks
of its author's own card, its quantity is measured in units that this GPU can be asked for too (a share of the
roof, a ratio, the side of 1 on which a ratio lies) and counts as rescaled; where nothing of it can be asked
here, `needs` names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from rooflab.claims import FALSIFIED, SHORT, SURVIVES, Bar, Claim, NoEvidence, coalescing, judge
from rooflab.claims.shelf import Shelf

HOLDS, RESCALED, REFUTED = "holds", "holds, rescaled", "refuted"
FALLS_SHORT, ELSEWHERE, UNRECORDED = "falls short", "not testable here", "not recorded"
VERDICTS = (HOLDS, RESCALED, FALLS_SHORT, REFUTED, ELSEWHERE, UNRECORDED)

SOURCES = {
    "A": "decode-roofline, README",
    "B": "decode-roofline, docs/03_results.md",
    "C": "realizar, specification v1.3.0",
    "D": "SharpInference, pull request 143",
}

Measure = Callable[[Shelf], float]


class Asked(NamedTuple):
    """How a statement is tested: the quantity in words, how a value is printed, the bar, what measures it."""

    quantity: str
    form: str
    bar: Bar
    measure: Measure


@dataclass(frozen=True)
class Statement:
    """One statement of a source: where it stands (`line`, of the page as plain text), its `group`, what it
    `says` in our words; a `test` as stated, another one `rescaled`, or what it `needs`; the `lesson`'s cell
    ("02b_counters#Bytes"); and the `points` of the source's own checklist. `claims` of lesson 03 stand for
    tests where there are such; `best` asks this course's best kernel what `test` asks the source's.
    """

    id: str
    source: str
    line: str
    group: str
    says: str
    lesson: str = ""
    test: Asked | None = None
    rescaled: Asked | None = None
    needs: str = ""
    points: int = 0
    claims: tuple[Claim, ...] = ()
    best: Asked | None = None


class Verdict(NamedTuple):
    """What the rows say of a statement: one of VERDICTS, by which test, and the value in words and as is."""

    word: str
    tested: str
    measured: str
    value: float


def judged(statement: Statement, shelf: Shelf) -> Verdict:
    """Measure a statement: as stated first, then rescaled."""
    if statement.claims:
        if statement.test:
            found = judged(replace(statement, claims=(), needs=""), shelf)
            if found.word != UNRECORDED:
                return found
        return _by_claims(statement, shelf)
    missing = ""
    first: Verdict | None = None
    for test, word in ((statement.test, HOLDS), (statement.rescaled, RESCALED)):
        if test is None:
            continue
        asked = f"{test.quantity} {test.bar.text(test.form)}"
        try:
            value = float(test.measure(shelf))
        except NoEvidence as lacking:
            missing = missing or str(lacking)
            continue
        if value != value:
            missing = missing or f"{test.quantity} was not recorded"
            continue
        shown = test.form.format(value)
        if test.bar.met(value):
            return Verdict(word, asked, shown, value)
        first = first or Verdict(REFUTED, asked, shown, value)
    if first:
        return first
    if statement.needs and not (statement.test or statement.rescaled):
        return Verdict(ELSEWHERE, f"it needs {statement.needs}", "", float("nan"))
    return Verdict(UNRECORDED, "", missing, float("nan"))


def _by_claims(statement: Statement, shelf: Shelf) -> Verdict:
    """A claim of lesson 03 and its restatements: the first that survives decides."""
    try:
        evidence: coalescing.Evidence | None = shelf.coalescing
    except NoEvidence as missing:
        return Verdict(UNRECORDED, "", str(missing), float("nan"))
    words = {SURVIVES: HOLDS, SHORT: FALLS_SHORT, FALSIFIED: REFUTED}
    first: Verdict | None = None
    for claim in statement.claims:
        found = judge(claim, evidence)
        if found.word not in words:
            continue
        word = words[found.word]
        if claim.restates and word == HOLDS:
            word = RESCALED
        one = Verdict(word, f"{found.subject}: {claim.quantity} {claim.bars()}", found.measured, found.value)
        if word in (HOLDS, RESCALED):
            return one
        first = first or one
    if first:
        return first
    return Verdict(UNRECORDED, "", judge(statement.claims[0], evidence).measured, float("nan"))


def by_the_best(statement: Statement, shelf: Shelf, found: Verdict) -> str:
    """The verdict, as stated, on this course's best kernel; that of the source's where the statement is not
    about a kernel.
    """
    if statement.best:
        return judged(replace(statement, test=statement.best, rescaled=None, claims=()), shelf).word
    if not statement.claims or statement.claims[0].subject != coalescing.COALESCED:
        return found.word
    try:
        word = judge(statement.claims[0], shelf.coalescing, coalescing.BEST).word
    except NoEvidence:
        return UNRECORDED
    return {SURVIVES: HOLDS, SHORT: FALLS_SHORT, FALSIFIED: REFUTED}.get(word, found.word)


def board(statements: Iterable[Statement], shelf: Shelf) -> pd.DataFrame:
    """Every statement with its verdict, a row each, in their order."""
    rows = []
    for statement in statements:
        found = judged(statement, shelf)
        rows.append(
            {
                **{"id": statement.id, "source": statement.source, "line": statement.line},
                **{"group": statement.group, "says": statement.says, "tested": found.tested},
                **{"measured": found.measured, "value": found.value, "verdict": found.word},
                **{"best": by_the_best(statement, shelf, found), "lesson": statement.lesson},
                "points": statement.points,
            }
        )
    return pd.DataFrame(rows)


def every() -> list[Statement]:
    """All statements of all sources, in the sources' order."""
    from rooflab.claims import laptop, pull_request, specification

    return [*laptop.STATEMENTS, *specification.STATEMENTS, *pull_request.STATEMENTS]


def counts(table: pd.DataFrame, by: str = "source") -> pd.DataFrame:
    """How many statements of each kind came to each verdict."""
    found = table.groupby([by, "verdict"], sort=False).size().unstack(fill_value=0)
    return found.reindex(columns=[word for word in VERDICTS if word in found]).reset_index()


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
