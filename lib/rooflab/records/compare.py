"""Recordings beside each other, case by case and operator by operator."""

import string
from collections.abc import Iterable

import pandas as pd

from rooflab import paths
from rooflab.errors import UsageError
from rooflab.records.store import Store

_SHARED = ["study", "case", "operator", "impl", "kind", "clock", "cache"]
_EACH = ["median_us", "roof_fraction"]
NEAR = 0.1  # how far apart two times of one case may be and still count as repeated


def letters(stores: Iterable[Store]) -> dict[str, Store]:
    """The stores by the letters that columns of the tables below end in: a is the first."""
    found = list(stores)
    if not 2 <= len(found) <= len(string.ascii_lowercase):
        raise UsageError(
            f"from 2 to {len(string.ascii_lowercase)} recordings are compared, not {len(found)}."
        )
    return dict(zip(string.ascii_lowercase, found, strict=False))


def compare(*stores: Store, studies: Iterable[str] | None = None) -> pd.DataFrame:
    """The timed cases that the first recording and any other hold, of `studies` (default: all), in the
    first's order.

    Columns: study, case, operator, impl, kind, clock, cache, and for each letter of `letters` median_us_a
    (us) and roof_fraction_a (of its own device's roof), NaN for a case that it lacks; from b on ratio_b: time
    on b over time on a (below 1, b is faster). A case is the same implementation, shape, tunables, cache and
    clock on each; an empty frame says that they share none."""
    first, *others = named = letters(stores)
    theirs = {study for letter in others for study in named[letter].studies()}
    tables = []
    for study in named[first].studies() if studies is None else studies:
        if study in theirs:
            rows = {letter: store.read(study).dropna(subset=["median_us"]) for letter, store in named.items()}
            table = rows[first][_SHARED]
            for letter, held in rows.items():
                renamed = {name: f"{name}_{letter}" for name in _EACH}
                table = table.merge(held[["case", *_EACH]].rename(columns=renamed), on="case", how="left")
            tables.append(table.dropna(subset=[f"median_us_{letter}" for letter in others], how="all"))
    columns = [f"{name}_{letter}" for letter in named for name in _EACH]
    tables = [table for table in tables if len(table)]
    found = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*_SHARED, *columns])
    ratios = {f"ratio_{letter}": found[f"median_us_{letter}"] / found["median_us_a"] for letter in others}
    return found.assign(**ratios)


def scaling(table: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as on a each operator of ours is on each other device, from `compare`'s table.

    A row an operator: study, operator, cases (that all hold), from b on speed_b, the median over those cases
    of time on a over time on b, and for each letter share_a, the median share of its own roof. Where speeds
    differ and shares do not, the roofs make the difference."""
    times = [name for name in table if str(name).startswith("median_us_")]
    own = table[table["kind"] == "own"].dropna(subset=times)
    own = own.assign(
        **{
            str(name).replace("ratio", "speed"): 1 / own[name]
            for name in table
            if str(name).startswith("ratio_")
        }
    ).rename(columns={name: str(name).replace("roof_fraction", "share") for name in table})
    wanted = [name for name in own if str(name).startswith(("speed_", "share_"))]
    groups = own.groupby(["study", "operator"], sort=False)
    return (
        groups[wanted]
        .median()
        .assign(cases=groups.size())
        .reset_index()[
            ["study", "operator", "cases", *sorted(wanted, key=lambda name: str(name)[:5], reverse=True)]
        ]
    )


def repeats(table: pd.DataFrame) -> pd.DataFrame:
    """How near each other recording's times are to the first's, from `compare`'s table: what tells whether a
    recording of the same GPU repeats.

    A row a clock and recording: clock, recording (its letter), cases, median ratio of its time to the
    first's, and within, the share of cases whose times are at most NEAR apart."""
    rows = []
    for clock, group in table.assign(clock=table["clock"].str.split("_").str[0]).groupby("clock", sort=False):
        for name in table:
            if str(name).startswith("ratio_"):
                ratios = group[name].dropna()
                near = ratios.between(1 - NEAR, 1 + NEAR).mean()
                rows.append((clock, str(name).removeprefix("ratio_"), len(ratios), ratios.median(), near))
    return pd.DataFrame(rows, columns=["clock", "recording", "cases", "median", "within"])


def repeated(store: Store) -> pd.DataFrame:
    """`repeats` of a recording of this repository and the second one that it keeps of the same GPU model; an
    empty frame where it keeps none."""
    second = Store(paths.SECOND, store.device)
    kept = store.root == paths.DATA and second.folder.is_dir()
    return repeats(compare(store, second)) if kept else repeats(pd.DataFrame(columns=["clock"]))


def best(*stores: Store) -> pd.DataFrame:
    """The fastest row of each operator and number format that two recordings or more have, whatever
    implementation and shape.

    For recordings that share no case, such as a published table beside a measured one. Columns: operator,
    format, unit (GB/s, TFLOP/s or tok/s), and for each letter of `letters` rate, impl, shape and clock; from
    b on ratio_b is b's rate over a's (above 1, b is faster). A rate is compared with its own kind only;
    shapes may differ."""
    first, *others = named = letters(stores)
    keys = ["operator", "format", "unit"]
    table = None
    for letter, store in named.items():
        held = _best(store)
        held = held.rename(columns={name: f"{name}_{letter}" for name in held if name not in keys})
        table = held if table is None else table.merge(held, on=keys, how="outer")
    assert table is not None
    table = table[table[[f"rate_{letter}" for letter in named]].notna().sum(axis=1) > 1]
    table = table.sort_values(keys, kind="stable", ignore_index=True)
    return table.assign(
        **{f"ratio_{letter}": table[f"rate_{letter}"] / table[f"rate_{first}"] for letter in others}
    )


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
