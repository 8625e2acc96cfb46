"""Regressions: rungs of this course that are slower than the rung that they change, computed from the
recording, and what the sources' authors tried and gave up.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from rooflab import ops
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.hardware.crossover import LEVEL
from rooflab.records.yaml_file import loaded
from rooflab.words import FORMATS, counted

_OPERATORS = {
    **dict.fromkeys(("read", "copy", "write", "triad"), "bandwidth"),
    **dict.fromkeys(("gemv", "gemv_rows"), "gemv"),
    "int4": "int4",
    **dict.fromkeys(("q8_0", "q8_1", "embed", "dequantise"), "q8_0"),
    "mmq": "mmq",
    **dict.fromkeys(("attention", "decode_attention"), "attention"),
    "decode_step": "decode",
}
_SHAPE = [
    "format",
    "model",
    "n",
    "k",
    "batch",
    "seq",
    "heads",
    "kv_heads",
    "head_dim",
    "window",
    "causal",
    "cache",
    "clock",
]
COLUMNS = ("operator", "rung", "below", "idea", "factor", "shapes", "worst", "least", "where")


def rungs(evidence: Evidence) -> pd.DataFrame:
    """Rungs that lose to the rung below, the one that they change, at the median of the shapes that both were
    timed at: how many times slower there, at how many shapes, at the worst and at the best, and where that
    is. COLUMNS.
    """
    found = []
    for module in ops.modules():
        for operator, ladder in module.LADDERS.items():
            named = {rung.name: rung for rung in ladder}
            for before, rung in zip(ladder, ladder[1:], strict=False):
                below = named.get(rung.changes, before)
                try:
                    rows = evidence.rows(
                        _OPERATORS.get(operator, operator), operator=_operator(operator), kind="own"
                    )
                except (NoEvidence, KeyError):
                    continue
                factors = _factors(rows, below.name, rung.name)
                if len(factors) and factors.median() > LEVEL:
                    row = (operator, rung.name, below.name, rung.idea, float(factors.median()), len(factors))
                    best = str(factors.idxmin())
                    found.append((*row, float(factors.max()), float(factors.min()), _where(rows, best)))
    return pd.DataFrame(found, columns=list(COLUMNS))


def _named(row: pd.Series) -> str:
    """What `_factors` calls the shape of a row."""
    return " ".join(str(row[name]) for name in _SHAPE if name in row)


def _where(rows: pd.DataFrame, shape: str) -> str:
    """A shape of `_factors` in words: its matrix or model, its tokens, a head's width."""
    row = next(one for _, one in rows.iterrows() if _named(one) == shape)
    has = {name for name in _SHAPE if name in row and pd.notna(row[name]) and row[name] != ""}
    parts = []
    if "n" in has:
        parts.append(f"{int(row['n']):,}" + (f" × {int(row['k']):,}" if "k" in has else ""))
    if "model" in has:
        parts.append(f"{row['model']} in {FORMATS.get(str(row['format']), row['format'])}")
    elif "batch" in has:
        parts.append(counted(int(row["batch"]), "token"))
    if "seq" in has:
        after = "after " if "model" in has else ""
        parts.append(f"{after}{counted(int(row['seq']), 'token')}")
    if "head_dim" in has:
        parts.append(f"heads of {int(row['head_dim'])}")
    return ", ".join(parts)


def _operator(operator: str) -> str:
    return "decode" if operator == "decode_step" else operator


def _factors(rows: pd.DataFrame, below: str, rung: str) -> pd.Series:
    """The rung's time over that of the rung below, at every shape that both have."""
    options = rows["options"].fillna("").astype(str)
    rows = rows[
        rows["median_us"].notna() & ~options.str.contains("exact=|unquantised=|loop=|seed=|start=|shared_kv")
    ]
    words = [_named(row) for _, row in rows.iterrows()]
    best = rows.assign(shape=words)
    times = best.groupby(["impl", "shape"])["median_us"].min()
    names = times.index.get_level_values(0)
    if below not in names or rung not in names:
        return pd.Series(dtype=float)
    return (times[rung] / times[below]).dropna()


def given_up() -> pd.DataFrame:
    """What the sources' authors tried and gave up, as published: change, brought, gpu, where (its place)."""
    path = Path(__file__).with_name("others.yaml")
    return pd.DataFrame(loaded(path)["given_up"])
