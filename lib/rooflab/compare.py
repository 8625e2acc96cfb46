"""Two recordings beside each other, case by case."""

from collections.abc import Iterable

import pandas as pd

from rooflab.record import Store

_SHARED = ["study", "case", "operator", "impl", "kind", "clock", "cache"]
_EACH = ["median_us", "roof_fraction"]


def compare(a: Store, b: Store, studies: Iterable[str] | None = None) -> pd.DataFrame:
    """The timed cases that both devices hold, of `studies` (default: all that both have), in a's order.

    Columns: study, case, operator, impl, kind, clock, cache, median_us_a, median_us_b (us), ratio (time on b
    over time on a: below 1, b is faster), roof_fraction_a, roof_fraction_b (each of its own device's roof). A
    case is the same implementation, shape, tunables, cache and clock on both; an empty frame says that they
    share none."""
    if studies is None:
        theirs = set(b.studies())
        studies = [study for study in a.studies() if study in theirs]
    tables = []
    for study in studies:
        left, right = (store.read(study).dropna(subset=["median_us"]) for store in (a, b))
        tables.append(left[_SHARED + _EACH].merge(right[["case", *_EACH]], on="case", suffixes=("_a", "_b")))
    empty = pd.DataFrame(columns=[*_SHARED, *(f"{name}_{side}" for name in _EACH for side in "ab")])
    table = pd.concat([t for t in tables if len(t)], ignore_index=True) if any(map(len, tables)) else empty
    ratio = table["median_us_b"] / table["median_us_a"]
    return table.assign(ratio=ratio)[
        [*_SHARED, "median_us_a", "median_us_b", "ratio", "roof_fraction_a", "roof_fraction_b"]
    ]
