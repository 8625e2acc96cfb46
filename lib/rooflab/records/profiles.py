"""Recorded profiles, data/<device>/profiles/<study>_<tool>.csv: read strictly, each column with its type."""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rooflab.errors import UsageError
from rooflab.records.csv_table import is_blank, is_plain, plain, read_texts
from rooflab.records.fingerprint import SKIPPED

# What columns of profiles hold; those that are not listed are numbers.
TEXTS = frozenset(
    (
        *("case", "kernel", "grid", "block", "identity", "run"),  # of all instruments
        *("kind", "short", "part", "class", "starts", "phase", "family"),  # of traces
        *("when", "sentence", "says", "quantity"),  # of the gate, the sanitizer and the checks
    )
)
BOOLS = frozenset(("refused", "first_right", "second_right"))  # "" where the question does not arise
_KEYS = ("case", "identity", "run")


# Compilers' names of kernels hold signs of HTML and Markdown; what is read of them does not.
_HARMLESS = str.maketrans('<>&"`[]{}|\\*#$^', "‹›+''‹›‹›//____")


def texts(path: Path) -> pd.DataFrame:
    """A profile's rows, as texts; UsageError if it is damaged."""
    header, rows = read_texts(path)
    if lacking := [name for name in _KEYS if name not in header]:
        raise UsageError(f"{path}, line 1: a profile has a column {lacking[0]}, which is not there.")
    found = pd.DataFrame(rows, columns=header, dtype="str")
    for name in header:
        held = found[name].str.translate(_HARMLESS) if name == "kernel" else found[name]
        if not is_plain("".join([name, *held])):
            bad = next((text for text in held if not is_plain(text)), name)
            raise UsageError(f"{path}: {name[:40]} is {bad[:80]!r}, and no table holds signs of HTML.")
    return found


def typed(found: pd.DataFrame, path: Path) -> pd.DataFrame:
    """`texts` as numbers and truth values where columns hold them, blank numbers as NaN; UsageError naming
    the file and its case for what is none.
    """
    columns = {}
    for column in map(str, found):
        held = found[column]
        if column in TEXTS:
            columns[column] = held.str.translate(_HARMLESS) if column == "kernel" else held
            continue
        if column in BOOLS:
            bad = ~held.isin(("True", "False", ""))
            columns[column] = held == "True" if held.isin(("True", "False")).all() else held
        else:
            numbers = pd.to_numeric(held.where(held != "", "nan"), errors="coerce")
            bad = numbers.isna() & ~held.isin(("", "nan")) | numbers.isin((float("inf"), float("-inf")))
            columns[column] = numbers
        if bad.any():
            first = found[bad].iloc[0]
            raise UsageError(f"{path}: {column} of {first['case']} is {first[column]!r}, which it cannot be.")
    return pd.DataFrame(columns)


def as_texts(taken: pd.DataFrame) -> pd.DataFrame:
    """What an instrument said just now as `texts` holds it: six significant digits, blanks for NaN."""

    def text(value: Any) -> str:
        if is_blank(value):
            return ""
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    found = {name: [text(value) for value in taken[name]] for name in taken}
    kept = {name: held if name == "kernel" else list(map(plain, held)) for name, held in found.items()}
    return pd.DataFrame(kept, dtype="str")


def read(path: Path) -> pd.DataFrame:
    """A profile without the cases that were skipped; UsageError if it is damaged."""
    return _counted(texts(path), path)


def _counted(found: pd.DataFrame, path: Path) -> pd.DataFrame:
    return typed(found[~found["identity"].str.startswith(SKIPPED)], path)


def problems(path: Path, header: Sequence[str] | None, runs: Container[str]) -> list[str]:
    """What is wrong with a profile that should have this header (None: any) and be of these runs, a sentence
    each.
    """
    try:
        found = texts(path)
        _counted(found, path)
    except UsageError as error:
        return [str(error)]
    if header is not None and list(found.columns) != list(header):
        return [f"its columns are {', '.join(found.columns)}; they should be {', '.join(header)}."]
    wrong = []
    skipped = found["identity"].str.startswith(SKIPPED)
    figures = found.drop(columns=list(_KEYS)).astype(bool).any(axis=1)
    for case, (is_skipped, holds, run, identity) in zip(
        found["case"], zip(skipped, figures, found["run"], found["identity"], strict=True), strict=True
    ):
        if is_skipped == holds:
            wrong.append(f"{case} was {'skipped and has figures' if holds else 'counted and has none'}.")
        elif run not in runs:
            wrong.append(f"{case} is of run {run!r}, which is not in runs.csv.")
        elif not identity:
            wrong.append(f"{case} has no identity, so nothing says which code it was counted on.")
    mixed = found.groupby("case")["identity"].nunique()
    wrong += [f"{case} is there of two identities." for case in mixed[mixed > 1].index]
    return list(dict.fromkeys(wrong))
