"""What figures say of their rows: rates with quartiles, names, dates, and the caption computed from them."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from rooflab.errors import DeviceMismatch, UsageError
from rooflab.words import FORMATS

UNITS = {"gb_s": "GB/s", "tflop_s": "TFLOP/s", "tok_s": "tok/s", "median_us": "µs"}
Roof = tuple[str, float, str]  # label, value, unit


def floats(values: Any) -> np.ndarray:
    """Floats of a list, array or column; a blank of a record's integer column becomes NaN."""
    return pd.Series(values).to_numpy(float, na_value=np.nan)


def number(value: float) -> str:
    """A value with three significant digits, or all its integer digits from 1000 on: 4543, 812, 0.0123."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def measured(value: float, unit: str) -> str:
    """A value with its unit as the field writes it: "16%" and "1.3×" together, "812 GB/s" apart."""
    return f"{number(value)}{'' if unit in ('%', '×', '') else ' '}{unit}"


def size_text(size: float) -> str:
    """A size in bytes in human units of 1024: `4 KiB`, `1.5 MiB`, `1 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def one_device(frame: pd.DataFrame, compare: bool = False) -> pd.DataFrame:
    """The frame itself, after a look at whose rows it holds.

    Rows of two GPUs meet when a `device` column names two, or when one case of a study occurs twice
    with different results, which no single recording holds. Raises DeviceMismatch then, unless `compare`
    says that the meeting is meant.
    """
    if compare:
        return frame
    if "device" in frame and frame["device"].nunique() > 1:
        names = ", ".join(sorted(map(str, frame["device"].dropna().unique())))
        raise DeviceMismatch(
            f"Rows of several devices ({names}) meet in one figure; pass compare=True if that is meant."
        )
    if {"study", "case", "run", "median_us"} <= set(frame.columns):
        distinct = frame[["study", "case", "run", "median_us"]].drop_duplicates()
        twice = distinct[distinct.duplicated(["study", "case"])]
        if len(twice):
            raise DeviceMismatch(
                f"Case {twice['case'].iloc[0]} occurs twice in the frame with different results, so "
                "recordings are mixed; pass compare=True if that is meant."
            )
    return frame


def band(frame: pd.DataFrame, y: str = "gb_s") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, first and third quartile of column `y` as three float arrays in the unit of `y`, for `series`.

    Records keep quartiles of the time only. A rate's quartiles follow from them: the rate times median_us
    over q3_us is its lower quartile, over q1_us its upper. Raises DeviceMismatch for rows of several
    devices.
    """
    one_device(frame)
    median, q1, q3 = (frame[c].to_numpy(float) for c in ("median_us", "q1_us", "q3_us"))
    if y == "median_us":
        return median, q1, q3
    rate = frame[y].to_numpy(float)
    return rate, rate * median / q3, rate * median / q1


def contestants(rows: pd.DataFrame) -> list[str]:
    """What to call each row among the others: its impl, with its format where it has one."""
    names = zip(rows["impl"], rows["format"].fillna(""), strict=True)
    return [f"{impl} {form}".strip() for impl, form in names]


def telling(case: str, among: Iterable[str]) -> str:
    """What tells a case from others: its id without what all of `among` (ids) say of themselves, too."""
    others = [other.split() for other in among]
    shared = set.intersection(*map(set, others))
    operator, _, name = case.split()[0].partition("/")
    if not all(words[0].startswith(f"{operator}/") for words in others):
        name = f"{operator}/{name}"
    return " ".join([name, *(word for word in case.split()[1:] if word not in shared)])


_SIZES = {"batch": "batch {}", "seq": "{} tokens", "head_dim": "{} wide", "window": "window {}"}
_SIZES |= {"splits": "{} parts", "n": "n = {}", "k": "k = {}"}


def in_words(told: str) -> str:
    """What `telling` gives as a reader says it: "9_shared_x, INT4, batch 1". Options by which a kernel was
    tuned for its shape are left out; the row has them.
    """
    name, *words = told.split()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    said = [name, *(word for word in words if "=" not in word)]
    if "format" in given:
        said.append(FORMATS.get(given["format"], given["format"]))
    if {"n", "k"} <= set(given):
        said.append(f"{int(given.pop('n')):,} × {int(given.pop('k')):,}")
    for key, form in _SIZES.items():
        if key in given:
            value = given[key]
            said.append(form.format(f"{int(value):,}" if value.isdecimal() else value))
    if "head" in given:
        said.append(f"output head in {FORMATS.get(given['head'], given['head'])}")
    return ", ".join(said)


def caption(
    frame: pd.DataFrame,
    device: Any,
    what: str,
    roof: Roof | None = None,
    *,
    y: str = "gb_s",
    compare: bool = False,
) -> str:
    """What a figure shows, computed from its rows: what, device and date, the best of several rows, and the
    best as a share of the roof.

    `device` is a name or anything with a `name`; the dates come from the run ids. The best is the largest
    `y`, for median_us the smallest; `roof` is (label, value, unit) in the unit of `y`. Raises UsageError if
    no row has a `y`, and DeviceMismatch for rows of several devices unless `compare`.
    """
    one_device(frame, compare)
    known = frame[frame[y].notna()]
    if known.empty:
        raise UsageError(
            f"No row of the frame has a value in {y}; a caption needs at least one measured point."
        )
    lower_is_better = y == "median_us"
    values, unit = floats(known[y]), UNITS.get(y, y)
    best = known.iloc[int(values.argmin() if lower_is_better else values.argmax())]
    text = f"{what} on {getattr(device, 'name', device)}, {dates(known)}: "
    if len(known) > 1:
        told = f"{in_words(telling(best['case'], known['case']))}, " if "case" in known else ""
        text += f"fastest {told}"
    text += f"{number(best[y])} {unit}"
    if roof:
        if roof[2] != unit:
            raise UsageError(f"The roof is in {roof[2]}, the figure in {unit}; pass both in one unit.")
        share = roof[1] / best[y] if lower_is_better else best[y] / roof[1]
        text += f", {share:.0%} of the {roof[0]} roof ({number(roof[1])} {unit})"
    newer = ", ".join(frame.attrs.get("not_yet_measured", ()))
    return f"{text}. Not yet measured: {newer}." if newer else f"{text}."


def dates(frame: pd.DataFrame) -> str:
    """When the rows were measured, by their run ids: "measured 2026-11-21", or "... to 2026-11-23"."""
    runs = frame["run"].dropna().astype(str).tolist() if "run" in frame else []
    days = sorted({m[0] for m in (re.match(r"\d{4}-\d\d-\d\d", run) for run in runs) if m})
    if not days:
        return "date not recorded"
    return f"measured {days[0]}" if len(days) == 1 else f"measured {days[0]} to {days[-1]}"
