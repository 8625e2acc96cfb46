"""What lesson 10c says of a layer's launches, and draws of overlap: a layer by plain launches beside the same
kernels as dependent ones.
"""

from __future__ import annotations

from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_10c import a_layer, launched, thread
from rooflab.studies import links
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
        "On one GPU a token can be one launch ([lesson 08](08_decoder.ipynb)): its blocks wait for each "
        "other at barriers, which do not reach the other GPU. To wait for it inside that launch was not "
        "tried. Instead [lesson 10b](10b_all_reduce.ipynb) makes each sum in a kernel of its own: "
        f"**on two GPUs every layer is {launched()[0]} launches**, each waiting until "
        "the one before has ended. The fewer bytes a layer reads, the larger the share of these starts."
    )


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
