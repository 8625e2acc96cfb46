"""What the course's sources state and what the course asked of itself, as data: the YAML files beside this
module.

A claim says something, and its tests say how it is asked of a recording: a named measure (measures/), the
columns that select its rows, and a bar. No claim holds its verdict; `judge` measures and compares, for
lessons and scorecard alike. A claim that cannot hold as stated, because its number is physically impossible,
belongs to its author's card or cannot fail, is kept as it is and restated beside it.

An entry has the fields of Claim, and its tests under `stated` and `rescaled`, one or a list. A test has the
fields of Test, its bars as bars.py writes them, and beside them the arguments of its measure:

    - id: A-7
      line: "100"
      group: figure
      lesson: 04d_published#The same experiment, here
      says: It is 90.8 times as fast as a literal two-op product in PyTorch.
      stated: {quantity: "by events, warm", form: "{:.2f}×", bar: ≈ 90.8 within 20%,
        measure: ratio, of: {study: int4, impl: torch.two_op, n: 8960, k: 1536, batch: 1},
        over: {impl: 1_warp_row}, where: {state: burst}}
      rescaled: {quantity: on the same side of 1, bar: "> 1", direction: true}
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis import coalescing
from rooflab.analysis.evidence import BEST, Evidence, NoEvidence
from rooflab.claims.bars import Bar, number
from rooflab.claims.measures import MEASURES, UNMEASURED
from rooflab.errors import UsageError
from rooflab.records.yaml_file import loaded

__all__ = ["BEST", "Bar", "Claim", "Evidence", "NoEvidence", "Test", "Verdict", "board", "judge", "number"]

# The one vocabulary of verdicts. A test gets HOLDS, SHORT (neither its prediction nor its refutation; a goal
# that is missed), REFUTED, UNRECORDED, or ELSEWHERE where no recording can answer it; a claim that only a
# restatement bears out RESCALED, or DIRECTION where the restatement asks for the effect and not for its size.
HOLDS, RESCALED, DIRECTION = "holds", "holds, rescaled", "holds in direction only"
SHORT, REFUTED = "falls short", "refuted"
ELSEWHERE, UNRECORDED = "not testable here", "not recorded"
VERDICTS = (HOLDS, RESCALED, DIRECTION, SHORT, REFUTED, ELSEWHERE, UNRECORDED)
FILES = ("decode_roofline", "specification", "pull_request", "course", "raised")
COURSE = "course"  # the source of the course's own goals
FLOOR, AIM = "floor", "aim"
GOALS = (FLOOR, AIM, "rule")  # their groups
# A statement that names a cause or a rule of design, and one that the source's own figures decide.
CAUSE, ARITHMETIC = "cause", "arithmetic"
RESTS_ON = ("", CAUSE, ARITHMETIC)


@dataclass(frozen=True)
class Test:
    """How a claim is asked of a recording: what `measure` gives for `args` and `subject` is the `quantity`,
    printed by `form`; it should meet `bar`, and `refuted` is what its author would take for a refutation
    (None: anything but the bar). A restatement has an `id`, a sentence and a `reason` of its own where a
    lesson shows it; one that `opposes` its claim expects the contrary, and one `aside` asks a neighbour of
    it, another kernel or setting: neither rescues it by holding; one of `direction` asks which of two is
    faster and not by how much; one that is `ours` is asked of this course's fastest kernel, whatever the
    author's does. `where` narrows all recorded rows that the measure reads to those with these values, a
    power state for one.
    """

    __test__ = False  # for pytest

    id: str
    says: str
    quantity: str
    form: str
    bar: Bar
    measure: str
    args: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    refuted: Bar | None = None
    missed: str = REFUTED
    restated: bool = False
    reason: str = ""
    opposes: bool = False
    aside: bool = False
    direction: bool = False
    ours: bool = False

    def bars(self) -> str:
        """The claim's bar and the measurement that would refute it, in words."""
        text = self.bar.text(self.form)
        return f"{text}; refuted {self.refuted.text(self.form)}" if self.refuted else text

    def asked(self) -> str:
        """The test in words: contestant, quantity, bars."""
        return f"{self.subject + ': ' if self.subject else ''}{self.quantity} {self.bars()}"


@dataclass(frozen=True)
class Claim:
    """One claim: where its source makes it (`line`, of the page as plain text), its `group`, what it `says`
    in our words, the lesson's cell that looks at it ("02b_counters#Bytes"), its `tests`, as stated first, or
    what it `needs` that no recording holds; the `points` of the source's own checklist, and in `best` what
    changes in the arguments of its first test where this course's best kernel is asked instead of the
    source's. `rests_on` says what else than a figure of a card a refutation finds wrong (RESTS_ON), `beside`
    what the test leaves open.
    """

    id: str
    source: str
    group: str
    says: str
    lesson: str = ""
    line: str = ""
    tests: tuple[Test, ...] = ()
    needs: str = ""
    points: int = 0
    best: Mapping[str, Any] = field(default_factory=dict)
    rests_on: str = ""
    beside: str = ""

    @property
    def name(self) -> str:
        """The id within its source or lesson: "H1"."""
        return self.id.partition("-")[2]

    @property
    def deciding(self) -> tuple[Test, ...]:
        """The tests that its verdict rests on: not one that opposes it, stands aside or has no measure."""
        known = (test for test in self.tests if test.measure != UNMEASURED)
        return tuple(test for test in known if not test.opposes and not test.aside)


class Verdict(NamedTuple):
    """What the rows say: one of VERDICTS, by which test (in words), of which contestant, the value and the
    same in words, or why there is none; `by`, if the measure names it, is who reached it; `ours`, whether the
    test asked this course's fastest kernel.
    """

    word: str
    tested: str = ""
    subject: str = ""
    measured: str = ""
    value: float = float("nan")
    by: str = ""
    ours: bool = False


# --- the files ----------------------------------------------------------------------------------------------


@functools.cache
def every() -> tuple[Claim, ...]:
    """All claims, in the order of their files; UsageError names one that is written wrongly."""
    found: list[Claim] = []
    for name in FILES:
        found += read(Path(__file__).with_name(f"{name}.yaml"))
    return tuple(found)


@functools.cache
def sources() -> dict[str, str]:
    """The sources' names by letter, the course itself left out."""
    files = (loaded(Path(__file__).with_name(f"{name}.yaml")) for name in FILES)
    found = {key: name for file in files for key, name in file["sources"].items()}
    return {key: name for key, name in found.items() if key != COURSE}


def select(lesson: str = "", **wanted: str) -> list[Claim]:
    """The claims of a lesson's notebook ("04c_batch"), those with these values (group="test"), or both."""
    mine = [claim for claim in every() if not lesson or claim.lesson.partition("#")[0] == lesson]
    return [claim for claim in mine if all(getattr(claim, name) == value for name, value in wanted.items())]


def stated() -> list[Claim]:
    """What the sources state, the course's own goals left out."""
    return [claim for claim in every() if claim.source != COURSE]


def goals() -> list[Claim]:
    """What the course asked of itself: its floors, aims and rules."""
    return [claim for claim in every() if _is_goal(claim.source, claim.group)]


def _is_goal(source: str, group: str) -> bool:
    return source == COURSE and group in GOALS


def get(id: str) -> Claim:
    """The claim with this id; UsageError if there is none."""
    for claim in every():
        if claim.id == id:
            return claim
    raise UsageError(f"There is no claim {id!r}.")


def read(path: Path) -> Iterator[Claim]:
    """The claims of one file. An entry with `each` expands to one claim for each item it lists, with the
    item's values in place of $name.
    """
    file = loaded(path)
    for entry in file["claims"]:
        for values in entry.pop("each", [{}]):
            try:
                yield _claim(_filled(entry, values), file["sources"])
            except (KeyError, TypeError, ValueError, UsageError) as wrong:
                raise UsageError(f"{path.name}, {entry.get('id')}: {wrong}") from wrong


def _filled(entry: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(entry, dict):
        return {key: _filled(value, values) for key, value in entry.items()}
    if isinstance(entry, list):
        return [_filled(value, values) for value in entry]
    if not isinstance(entry, str):
        return entry
    if entry.startswith("$") and entry[1:] in values:
        return values[entry[1:]]
    return Template(entry).substitute(values) if values else entry


def _claim(entry: dict[str, Any], sources: Mapping[str, str]) -> Claim:
    given = {name: _listed(entry.pop(name, [])) for name in ("stated", "rescaled")}
    letter = entry["id"].partition("-")[0]
    entry["source"] = letter if letter in sources else COURSE
    common = {"missed": SHORT if _is_goal(entry["source"], entry["group"]) else REFUTED}
    first = given["stated"][0] if given["stated"] else {}
    tests = [_test({**common, **one}, {}) for one in given["stated"]]
    tests += [_test({**common, **one, "restated": True}, first) for one in given["rescaled"]]
    if not tests and not entry.get("needs"):
        raise UsageError("a claim has a test, as stated or rescaled, or says what it needs")
    if entry.get("rests_on", "") not in RESTS_ON:
        raise UsageError(f"a claim rests on {CAUSE} or {ARITHMETIC}, not on {entry['rests_on']!r}")
    return Claim(**{**entry, "line": str(entry.get("line", "")), "tests": tuple(tests)})


def _listed(given: Any) -> list[dict[str, Any]]:
    return given if isinstance(given, list) else [given]


def _test(entry: dict[str, Any], first: Mapping[str, Any]) -> Test:
    """A test; a restatement is measured and printed as the `first` test is, unless it says otherwise."""
    if "measure" not in entry:
        own = set(Test.__dataclass_fields__) - {"measure", "form", "quantity", "where", "subject"}
        entry = {**{key: value for key, value in first.items() if key not in own}, **entry}
    entry = {"form": first.get("form", ""), "id": "", "says": "", "quantity": "", **entry}
    if entry["measure"] not in MEASURES:
        raise UsageError(f"there is no measure {entry['measure']!r}")
    fields = {key: entry.pop(key) for key in list(entry) if key in Test.__dataclass_fields__}
    fields["bar"] = Bar.of(fields["bar"])
    if "refuted" in fields:
        fields["refuted"] = Bar.of(fields["refuted"])
    for key in ("says", "reason"):
        fields[key] = re.sub(r"\{asks ([\d.]+) (\d+)\}", _asks, fields.get(key, ""))
    return Test(**fields, args=entry)


def _asks(found: re.Match[str]) -> str:
    return coalescing.asks(float(found[1]), int(found[2]))


# --- the judge ----------------------------------------------------------------------------------------------


def judge(test: Test, evidence: Evidence, subject: str = "", **changed: Any) -> Verdict:
    """Measure a test's quantity and compare it with its bars; for its own subject or another, and with its
    own arguments but for those `changed`.
    """
    subject = subject or test.subject
    args = _of_subject({**test.args, **changed}, subject)
    open_ = ELSEWHERE if test.measure == UNMEASURED else UNRECORDED
    asked = Verdict(open_, test.asked(), subject, ours=test.ours or subject == BEST)
    try:
        found = MEASURES[test.measure](evidence.only(**test.where) if test.where else evidence, **args)
    except NoEvidence as missing:
        return asked._replace(measured=str(missing))
    value, by = found if isinstance(found, tuple) else (found, "")
    if value != value:
        return asked._replace(measured=f"{test.quantity}{subject and f' of {subject}'} was not recorded")
    if test.bar.met(value):
        word = HOLDS
    elif test.refuted is None or test.refuted.met(value):
        word = test.missed
    else:
        word = SHORT
    return asked._replace(word=word, measured=test.bar.beside(value, test.form), value=float(value), by=by)


def _of_subject(args: Any, subject: str) -> Any:
    """The arguments with the contestant in place of "subject"."""
    if isinstance(args, dict):
        return {key: _of_subject(value, subject) for key, value in args.items()}
    return subject if args == "subject" else args


def verdict(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on a claim: that of the first test that holds, else of the first that could be judged."""
    if not claim.deciding:
        return Verdict(ELSEWHERE, f"it needs {claim.needs}")
    found = [(test, judge(test, evidence)) for test in claim.deciding]
    for test, one in found:
        if one.word == HOLDS:
            again = DIRECTION if test.direction else RESCALED
            return one._replace(word=again) if test.restated else one
    told = [one for _, one in found if one.word != UNRECORDED]
    return told[0] if told else Verdict(UNRECORDED, measured=found[0][1].measured)


def verdict_of_best(claim: Claim, evidence: Evidence, found: Verdict) -> str:
    """The verdict, as stated, on this course's best kernel; that `found` where the claim is about no kernel
    or the best was not recorded.
    """
    if claim.best:
        return judge(claim.tests[0], evidence, **claim.best).word
    if not claim.tests or claim.tests[0].subject != coalescing.COALESCED:
        return found.word
    word = judge(claim.tests[0], evidence, BEST).word
    return found.word if word == UNRECORDED else word


def board(claims: Iterable[Claim], evidence: Evidence) -> pd.DataFrame:
    """Verdicts on the tests of claims that a lesson shows (`shown`), a row each."""
    rows = []
    for id, claim, test in shown(claims):
        found = judge(test, evidence)
        rows.append(
            {
                **{"id": id, "group": claim.group, "says": test.says or claim.says},
                **{"quantity": test.quantity, "bars": test.bars(), "subject": found.subject},
                **{"value": found.value, "measured": found.measured, "word": found.word},
                **{"restates": claim.name if test.id else "", "reason": test.reason},
            }
        )
    return pd.DataFrame(rows)


def shown(claims: Iterable[Claim]) -> Iterator[tuple[str, Claim, Test]]:
    """The tests that a lesson shows, with their ids and claims: the first of a claim and those with an id."""
    for claim in claims:
        for test in claim.tests:
            if test is claim.tests[0] or test.id:
                yield test.id or claim.name, claim, test


def listed(table: pd.DataFrame) -> str:
    """A board as an HTML table, a line a row, a claim's restatements under it."""
    heads = "".join(f"<th>{head}</th>" for head in ("Claim", "Verdict", "It says", "Measured (bar)"))
    lines = ['<table class="dataframe rooflab">', f"<tr>{heads}</tr>"]
    for _, claim in table[table["restates"] == ""].iterrows():
        lines.append(_item("b", claim))
        lines += [_item("i", again) for _, again in table[table["restates"] == claim["id"]].iterrows()]
    return "\n".join([*lines, "</table>"])


def _item(tag: str, row: pd.Series) -> str:
    says = f"{row['says']} Why restated: {row['reason']}." if row["restates"] else row["says"]
    found = f"{row['subject']}, {row['quantity']}: {row['measured']} ({row['bars']})"
    cells = "".join(f"<td>{html.escape(text, quote=False)}</td>" for text in (row["word"], says, found))
    return f"<tr><td><{tag}>{row['id']}</{tag}></td>{cells}</tr>"


def powers(claims: Iterable[Claim], evidence: Evidence, subjects: Iterable[str]) -> pd.DataFrame:
    """What the first test of each claim says of several contestants: one row a claim, its id and bars and a
    column of Verdicts for each subject. A test that a bad kernel passes and a good one fails has no use as a
    test.
    """
    subjects = list(subjects)
    return pd.DataFrame(
        [
            {"id": claim.name, "bars": claim.tests[0].bars()}
            | {subject: judge(claim.tests[0], evidence, subject) for subject in subjects}
            for claim in claims
        ]
    )
