"""What the course's sources claim, as data: a quantity, what it was predicted to be, what would falsify it.

No claim holds its verdict. `judge` measures the quantity in recorded rows and compares; the same objects are
read by the lesson that tests them and by the scorecard. A claim that cannot hold as it was stated, because
its number is physically impossible or its test cannot fail, is kept as it is and restated beside it, with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from rooflab.errors import RooflabError

SURVIVES, SHORT, FALSIFIED, UNMEASURED = WORDS = ("survives", "falls short", "falsified", "not measured")


class NoEvidence(RooflabError):
    """What a claim speaks of was not measured; the sentence says what is missing."""


class Bar(NamedTuple):
    """A threshold: `sign` is "<", ">", "≤" or "≥", or "≈" for a figure met within a share `by` of itself."""

    sign: str
    value: float
    by: float = 0.0

    def met(self, value: float) -> bool:
        """Whether `value` lies beyond the bar, or near enough to it; never for NaN."""
        if self.sign == "≈":
            return abs(value - self.value) <= self.by * abs(self.value)
        if self.sign in "≤≥":
            return value <= self.value if self.sign == "≤" else value >= self.value
        return value < self.value if self.sign == "<" else value > self.value

    def text(self, form: str) -> str:
        """The bar in words, its value in the format of the quantity: "> 90%"."""
        near = f" within {self.by:.0%}" if self.sign == "≈" and self.by else ""
        return f"{self.sign} {form.format(self.value)}{near}"


def less(value: float) -> Bar:
    """The bar that smaller values meet."""
    return Bar("<", value)


def more(value: float) -> Bar:
    """The bar that larger values meet."""
    return Bar(">", value)


def most(value: float) -> Bar:
    """The bar that values up to this one meet."""
    return Bar("≤", value)


def least(value: float) -> Bar:
    """The bar that values from this one on meet."""
    return Bar("≥", value)


def about(value: float, by: float = 0.1) -> Bar:
    """The bar that values within a share `by` of this one meet."""
    return Bar("≈", value, by)


@dataclass(frozen=True)
class Claim:
    """One claim of a source.

    `says` is the claim in our words and `where` the place it stands in; `quantity` names what
    `measure(evidence, subject)` gives as a number and `form` how to print it ("{:.0%}"); `subject` is the
    contestant it speaks of. `predicted` is the source's prediction, `falsified` what its author would take
    for a refutation; None if anything but the prediction is one. A restatement names the claim it `restates`
    and its `reason`; one that `opposes` it expects the contrary, so that it rescues nothing by surviving.
    `points` are those of the source's own checklist.
    """

    id: str
    where: str
    says: str
    quantity: str
    form: str
    predicted: Bar
    measure: Callable[[Any, str], float]
    subject: str
    falsified: Bar | None = None
    restates: str = ""
    reason: str = ""
    points: int | None = None
    opposes: bool = False

    def bars(self) -> str:
        """Prediction and falsification in words."""
        text = self.predicted.text(self.form)
        return f"{text}; falsified {self.falsified.text(self.form)}" if self.falsified else text


@dataclass(frozen=True)
class Verdict:
    """What the rows say of a claim: `word` is one of WORDS, `value` the measured quantity (NaN if none),
    `measured` the same in words, or why there is none."""

    claim: Claim
    subject: str
    word: str
    value: float
    measured: str


def judge(claim: Claim, evidence: Any, subject: str = "") -> Verdict:
    """Measure a claim's quantity and compare it with its bars, for its own subject or for another one."""
    subject = subject or claim.subject
    try:
        value = float(claim.measure(evidence, subject))
    except NoEvidence as missing:
        return Verdict(claim, subject, UNMEASURED, float("nan"), str(missing))
    if value != value:
        return Verdict(claim, subject, UNMEASURED, value, f"{claim.quantity} of {subject} was not measured")
    if claim.predicted.met(value):
        word = SURVIVES
    elif claim.falsified is None or claim.falsified.met(value):
        word = FALSIFIED
    else:
        word = SHORT
    return Verdict(claim, subject, word, value, claim.form.format(value))


def board(claims: Iterable[Claim], evidence: Any) -> pd.DataFrame:
    """Verdicts on claims as a table, one row a claim, in their order."""
    rows = []
    for claim in claims:
        found = judge(claim, evidence)
        rows.append(
            {
                "id": claim.id,
                "where": claim.where,
                "says": claim.says,
                "quantity": claim.quantity,
                "bars": claim.bars(),
                "subject": found.subject,
                "value": found.value,
                "measured": found.measured,
                "word": found.word,
                "restates": claim.restates,
                "reason": claim.reason,
                "points": claim.points,
            }
        )
    return pd.DataFrame(rows)


def listed(table: pd.DataFrame) -> str:
    """A board as a Markdown list, a claim an item with its restatements under it: sentences, which in a
    narrow window a table would break into columns of single words.
    """
    lines = []
    for _, claim in table[table["restates"] == ""].iterrows():
        lines.append(_item(claim))
        for _, again in table[table["restates"] == claim["id"]].iterrows():
            lines.append(f"    {_item(again)} Why restated: {again['reason']}.")
    return "\n".join(lines)


def _item(row: pd.Series) -> str:
    subject = f"`{row['subject']}`" if "_" in row["subject"] else row["subject"]
    found = f"{subject}, {row['quantity']}: {row['measured']}; predicted {row['bars']}"
    return f"- **{row['id']}: {row['word']}.** {row['says']} *{found}.*"


def powers(claims: Iterable[Claim], evidence: Any, subjects: Iterable[str]) -> pd.DataFrame:
    """What each claim says of several contestants: one row a claim, its id and a column of words for each
    subject. A test that a bad kernel passes and a good one fails has no use as a test."""
    subjects = list(subjects)
    return pd.DataFrame(
        [
            {"id": claim.id, "quantity": claim.quantity, "bars": claim.bars()}
            | {subject: judge(claim, evidence, subject) for subject in subjects}
            for claim in claims
        ]
    )
