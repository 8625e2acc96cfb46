"""What lesson 10c says of a layer's launches, and draws of overlap: a layer by plain launches beside the same
kernels as dependent ones.
"""

from __future__ import annotations

import pandas as pd

from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_10c import a_layer, launched, thread
from rooflab.studies import links, split
from rooflab.view import diagram, display
from rooflab.view.diagram import handovers
from rooflab.words import listed

# The projections that a product of the split decoder takes together.
_PRODUCTS = {"qkv": ("q", "k", "v"), "out": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
# What the steps do that become parts of products.
_DOES = {"rope": "it rotates queries and keys", "silu_mul": "the MLP's activation"}


def spared() -> None:
    """Say how many launches of a layer the fused way spares, and by what; draw them."""
    ways = list(handovers.by_way().values())
    within = [row.name for row in ways[0] if any(f" + {row.name}" in one.name for one in ways[1][1:])]
    merged = [f"`{name}` ({_DOES[name]})" for name in within if name != "norm"]
    display.say(
        f"**First, {len(ways[0])} launches a layer become {len(ways[1])}.** The norms after `out` and `down` "
        f"make the sums themselves, and products take in {listed(merged)}:"
    )
    diagram.launches_of_a_layer().show()


def ended() -> None:
    """Say what sums over GPUs make of the one launch of a token, by the launches of the engine's source."""
    display.say(
        "On one GPU a token is one launch ([lesson 08](08_decoder.ipynb)): its blocks wait for each other at "
        "barriers, which do not reach the other GPU. So [lesson 10b](10b_all_reduce.ipynb) makes each sum in "
        f"a kernel of its own: **on two GPUs every layer is {launched()[0]} launches**, each waiting until "
        "the one before has ended. The fewer bytes a layer reads, the larger the share of these starts."
    )


def ways(rows: Rows) -> None:
    """Show by what the timed ways differ: launches, a sum and its price in the bound, head and kernels."""
    separate, inside = (f"{count} a layer" for count in launched())
    timed = set(rows.loc[rows["operator"] == "decode", "impl"])
    apart = ("whole", "one token")
    lines = [
        (links.ALONE, "One GPU", "1 a token", "no", "none", *apart),
        (links.NCCL, "Sums by NCCL", separate, "no", f"kernel: {_price(links.NCCL)}", *apart),
        (split.SEPARATE, "Sums by our kernel", separate, "no", f"kernel: {_price(split.SEPARATE)}", *apart),
        (split.FUSED, "The fused way", inside, "yes", f"in a norm: {_price(split.FUSED)}", "half", "a batch"),
    ]
    names = ["impl", "way", "launches", "overlap", "sum", "head", "kernels"]
    table = pd.DataFrame([line for line in lines if line[0] in timed], columns=names)
    columns = {
        "way": "Way",
        "launches": "Launches",
        "overlap": "Overlap",
        "sum": "A sum",
    }
    columns |= {"head": "Output head", "kernels": "Kernels for"}
    caption = "The ways that are timed, and what a sum is charged: launch + crossings of the link (µs)"
    display.table(table, columns, dict.fromkeys(columns, ""), caption)


def _price(impl: str) -> str:
    """What the bound charges for a sum beside its bytes, as launch and crossings."""
    crossed = 1 if impl == split.FUSED else links.crossings("all_reduce", impl)
    hops = f"{links.HOP_US:g}" if crossed == 1 else f"{crossed} × {links.HOP_US:g}"
    return hops if impl == split.FUSED else f"{links.LAUNCH_US:g} + {hops}"


def timeline(rows: Rows) -> None:
    """Draw a layer of the model that the page works out, by plain launches and by dependent ones; say so
    where overlap hides nothing or was not timed.
    """
    table = a_layer(rows)
    table = table[table["plain"] > table["fused"]]
    if table.empty:
        timed = a_layer(rows)["plain"].notna().any()
        display.say("Overlap hides nothing here." if timed else "What overlap hides was not timed here.")
        return
    row = table.loc[thread(rows)]
    sizes: dict[str, float] = {}
    for part in model_shapes.projections(model_shapes.get(str(row["model"]))):
        for name, of in _PRODUCTS.items():
            if part.name in of:
                sizes[name] = sizes.get(name, 0.0) + float(part.n) * part.k
    diagram.launches_over_time(row["plain"], row["fused"], sizes, links.LAUNCH_US, str(row.name)).show()
