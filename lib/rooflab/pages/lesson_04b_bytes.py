"""Codes multiplied as bytes, in lesson 04b: what that brings over halves, by shape and tokens."""

from __future__ import annotations

import pandas as pd

from rooflab.lab import Lab
from rooflab.ops import int4
from rooflab.studies import int4 as study
from rooflab.view import display


def as_bytes(here: Lab) -> None:
    """Show rung 14 beside the rung that the law would choose among those before it, and say how often it is
    faster; or that it is not yet measured.
    """
    rows = here.measure("int4", here.held("int4", study.as_bytes()))
    table = []
    for (n, k, batch), both in rows.groupby(["n", "k", "batch"]):
        mine, others = both[both["impl"] == int4.BYTES], both[both["impl"] != int4.BYTES]
        if len(mine) and len(others):
            new, old = mine.iloc[0], others.iloc[0]
            level = display.level(new, old)
            found = {"shape": f"{n:,.0f} × {k:,.0f}", "tokens": int(batch), "before": old["impl"]}
            found |= {"was": old["median_us"], "now": new["median_us"]}
            table.append(found | {"times": old["median_us"] / new["median_us"], "level": level})
    if not table:
        return display.say(f"Rung 14 is not yet measured on the {here.run['gpu']}.")
    shown = pd.DataFrame(table)
    faster, slower = ((shown["times"] > 1) == wanted for wanted in (True, False))
    faster, slower = (int((each & ~shown["level"]).sum()) for each in (faster, slower))
    names = {"shape": "Weights", "tokens": "Tokens", "before": "As halves, chosen by the law"}
    names |= {"was": "It takes (µs)", "now": "As bytes (µs)", "times": "Speed"}
    forms = {"was": "{:.2f}", "now": "{:.2f}", "times": "{:.2f}"}
    display.table(
        shown.drop(columns="level"), names, forms, f"Codes as halves and as bytes, {here.run['gpu']}"
    )
    best, worst = shown["times"].max(), shown["times"].min()
    display.say(
        f"On the {here.run['gpu']} bytes are faster in {faster} of {len(shown)} products, slower in "
        f"{slower}; at best {best:.2f} times as fast, at worst {worst:.2f} times."
    )
