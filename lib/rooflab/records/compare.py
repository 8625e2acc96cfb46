"""Two recordings beside each other, case by case."""

from collections.abc import Iterable

import pandas as pd

from rooflab.records.store import Store

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


def best(a: Store, b: Store) -> pd.DataFrame:
    """The fastest row of each operator and number format on both devices, whatever implementation and shape.

    For recordings that share no case, such as a published table beside a measured one. Columns: operator,
    format, unit (GB/s, TFLOP/s or tok/s), and for each side rate, impl, shape and clock; ratio is b's rate
    over a's (above 1, b is faster). A rate is compared with its own kind only; shapes may differ."""
    left, right = (_best(store) for store in (a, b))
    table = left.merge(right, on=["operator", "format", "unit"], suffixes=("_a", "_b"))
    table = table.sort_values(["operator", "format", "unit"], kind="stable", ignore_index=True)
    return table.assign(ratio=table["rate_b"] / table["rate_a"])


_RATES = {"gb_s": "GB/s", "tflop_s": "TFLOP/s", "tok_s": "tok/s"}
_SHAPE = ("n", "k", "batch", "seq", "heads", "head_dim")
# Names that published tables and this course use for the same number format.
_FORMATS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def _best(store: Store) -> pd.DataFrame:
    found = []
    for study in store.studies():
        rows = store.read(study)
        rows = rows[rows["cache"] != "warm"] if (rows["cache"] == "cold").any() else rows
        formats = rows["format"].fillna("").replace(_FORMATS)
        for (operator, form), group in rows.assign(format=formats).groupby(["operator", "format"]):
            for column, unit in _RATES.items():
                timed = group.dropna(subset=[column]).sort_values(column)
                if len(timed):
                    row = timed.iloc[-1]
                    shape = " ".join(f"{name}={row[name]}" for name in _SHAPE if not pd.isna(row[name]))
                    found.append((operator, form, unit, float(row[column]), row["impl"], shape, row["clock"]))
    columns = ["operator", "format", "unit", "rate", "impl", "shape", "clock"]
    frame = pd.DataFrame(found, columns=columns).sort_values("rate")
    return frame.drop_duplicates(["operator", "format", "unit"], keep="last")
