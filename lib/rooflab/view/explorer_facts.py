"""What an explorer says of a row, in words and plain values."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab import studies
from rooflab.errors import UsageError
from rooflab.records.case import Case
from rooflab.records.csv_table import is_blank
from rooflab.studies.base import FORETOLD
from rooflab.view.captions import UNITS, measured, number

_SHORT = 8  # letters of a part that may stand several times
SAYS = "says"  # the column of what a row of a model says besides its figures
_TIMES = ("median_us", "q1_us", "q3_us", "predicted_us")


def facts_of(row: pd.Series, y: str, unit: str, roof: tuple[str, float] | None, foretold: str) -> str:
    parts = [measured(float(row[y]), unit)]
    time, low, high, predicted = (_float(row.get(column)) for column in _TIMES)
    if time is not None and y != "median_us":
        parts.append(f"{number(time)} µs")
    if low is not None and high is not None:
        parts.append(f"q1 {number(low)}, q3 {number(high)} µs")
    if predicted is not None:
        parts.append((foretold or _foretold(row)).format(number(predicted)))
    if roof and unit != "%":  # which already is a share of it
        share = roof[1] / float(row[y]) if y == "median_us" else float(row[y]) / roof[1]
        parts.append(f"{share:.0%} of {roof[0]}")
    if isinstance(row.get(SAYS), str) and row[SAYS]:
        parts.append(row[SAYS])
    return "; ".join(parts)


def predicted(row: pd.Series, y: str) -> float | None:
    """Convert a row's predicted_us to the unit of y: a time stays, a rate is the measured one times measured
    time / predicted time. None without a prediction, and where y is neither time nor rate.
    """
    us, time = _float(row.get("predicted_us")), _float(row.get("median_us"))
    if not us or us < 0:
        return None
    if y == "median_us":
        return us
    return float(row[y]) * time / us if y in UNITS and time else None


def _foretold(row: pd.Series) -> str:
    """What a row's predicted_us is, by its study, as words around a time."""
    if not row.get("study"):
        return FORETOLD
    try:
        case = Case.from_row(row)
    except UsageError:  # a page's own words in the place of a name
        return FORETOLD
    return studies.get(case.study).foretold(case)


def roof_label(name: str) -> str:
    """A ceiling's name in words: "dram_read" is "DRAM read"."""
    plain = ("read", "copy", "write", "triad", "tensor")
    return " ".join(w if w in plain else w.upper().replace("PCIE", "PCIe") for w in name.split("_"))


def packed(facts: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """The parts that several facts share, once each, and every one of the facts as a list of texts and of
    indices of such parts: "; " joins them again.
    """
    parts = [each.split("; ") for each in facts]
    count = Counter(itertools.chain.from_iterable(parts))
    shared = [part for part, times in count.items() if times > 1 and len(part) > _SHORT]
    index = {part: k for k, part in enumerate(shared)}
    found: list[list[Any]] = []
    for each in parts:
        line: list[Any] = []
        for part in each:
            if part in index:
                line.append(index[part])
            elif line and isinstance(line[-1], str):
                line[-1] += f"; {part}"
            else:
                line.append(part)
        found.append(line)
    return shared, found


def _float(value: Any) -> float | None:
    return None if is_blank(value) else float(value)


def plain(value: Any) -> Any:
    """A cell as JSON knows it: None for a blank, and Python's own numbers and words."""
    if is_blank(value):
        return None
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def text(value: Any) -> str:
    return "none" if value in (None, "") else str(value).lower() if isinstance(value, bool) else str(value)
