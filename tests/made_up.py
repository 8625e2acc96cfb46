"""Rows of a GPU that does not exist, for the tests of what draws and explores recordings."""

import pandas as pd
from rooflab.records.case import COLUMNS, SCHEMA, Case

RUNGS = ("1_word", "2_vector", "3_grid")
ROOFS = {"dram_read": (182.0, "GB/s", ""), "dram_copy": (154.0, "GB/s", "")}


def row(case: Case, rate: float, bound: float) -> dict:
    """A record of `case` at `rate` GB/s, counting 4 bytes an element."""
    moved = 4 * (case.n or 0)
    us = moved / rate / 1e3
    figures = {"median_us": us, "q1_us": us * 0.99, "q3_us": us * 1.02, "samples": 20, "predicted_us": bound}
    figures |= {"bytes": moved, "roof": f"dram_{case.operator}", "gb_s": rate, "run": "2026-01-02.1"}
    return {**dict.fromkeys(COLUMNS), **case.row(), **figures}


def frame() -> pd.DataFrame:
    """Rows as a store reads them: two streams, three rungs, two caches, sizes 2^16 .. 2^28 by fours.

    Rung 1 is not recorded past 2^24.
    """
    rows = []
    for operator, top in (("read", 180.0), ("copy", 150.0)):
        for k, impl in enumerate(RUNGS):
            for cache in ("cold", "warm"):
                for exponent in range(16, 29, 2):
                    if impl == "1_word" and exponent > 24:
                        continue
                    case = Case("bandwidth", operator, impl, n=2**exponent, cache=cache)
                    moved = 4 * 2**exponent
                    boost = 1.1 if cache == "warm" and exponent < 22 else 1.0
                    rate = top * (0.8 + 0.09 * k) * moved / (moved + 1e6) * boost
                    rows.append(row(case, rate, moved / top / 1e3))
    typed = {"int": "Int64", "bool": "boolean"}
    return pd.DataFrame(rows).astype({c: typed[how] for c, how in SCHEMA.items() if how in typed})


CONTROLS = {"impl": "Rung", "operator": "Stream", "cache": "Cache"}
