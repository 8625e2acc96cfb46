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


def spared() -> None:
    """Say how many launches of a layer the fused way spares, and by what."""
    ways = list(handovers.by_way().values())
    within = [row.name for row in ways[0] if any(f" + {row.name}" in one.name for one in ways[1][1:])]
    merged = [f"`{name}`" for name in within if name != "norm"]
    display.say(
        f"**{len(ways[0])} launches a layer become {len(ways[1])}**, and each overlaps the one before it. "
        f"Sums inside norms spare two; {listed(merged)} become parts of products."
    )


def ended() -> None:
    """Say what sums over GPUs make of the one launch of a token, by the launches of the engine's source."""
    separate, _ = launched()
    sums = sum(one.sums for one in next(iter(handovers.by_way().values())))
    display.say(
        "[Lesson 08](08_decoder.ipynb)'s kernel runs a token in one launch: all its blocks run at once, so "
        "barriers can make them wait for each other. Barriers do not reach the other GPU. So lesson 10b "
        "makes each sum in a kernel of its own, between other kernels. **One GPU pays one launch a token, "
        f"two pay {separate} in every layer**, {sums} of them for sums, and each waits until the one before "
        "has ended. The fewer bytes a layer reads, the larger a share of its time these starts are."
    )


def timeline(rows: Rows) -> None:
    """Draw a layer of the model that the page works out, by plain launches and by dependent ones; say so
    where overlap hides nothing or was not timed.
    """
    table = a_layer(rows)
    table = table[table["plain"] > table["fused"]]
    if table.empty:
        diagram.launches_of_a_layer().show()
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
