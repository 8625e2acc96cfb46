"""What lesson 10c draws of overlap: a layer by plain launches beside the same kernels as dependent ones."""

from __future__ import annotations

from typing import Any

from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_10c import a_layer
from rooflab.studies import links
from rooflab.view import diagram, display

# The projections that a product of the split decoder takes together.
_PRODUCTS = {"qkv": ("q", "k", "v"), "out": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}


def timeline(rows: Rows, gpu: Any) -> None:
    """Draw a layer of the model in which overlap hides the largest share, by plain launches and by dependent
    ones; say so where that was not timed.
    """
    table = a_layer(rows)
    table = table[table["plain"] > table["fused"]]
    if table.empty:
        diagram.launches_of_a_layer().show()
        display.say("What overlap hides was not timed here.")
        return
    row = table.loc[((table["plain"] - table["fused"]) / table["plain"]).idxmax()]
    sizes: dict[str, float] = {}
    for part in model_shapes.projections(model_shapes.get(str(row["model"]))):
        for name, of in _PRODUCTS.items():
            if part.name in of:
                sizes[name] = sizes.get(name, 0.0) + float(part.n) * part.k
    whose = f"{row.name} on two {gpu}s"
    diagram.launches_over_time(row["plain"], row["fused"], sizes, links.LAUNCH_US, whose).show()
