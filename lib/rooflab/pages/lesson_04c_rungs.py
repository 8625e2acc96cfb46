"""Which rung the dispatcher of lesson 04c picks, by shape and number of tokens."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from rooflab.lab import Lab
from rooflab.ops import int4
from rooflab.studies import int4 as study
from rooflab.view import display, plot


def _picked(here: Lab, n: int, k: int, batch: int) -> int:
    """The number of the rung that the dispatcher picks."""
    name, _ = int4.choose(n, k, batch, True, study.table_of(here.sized))
    return int(name.partition("_")[0])


def rung_by_batch(here: Lab, batches: list[Any], shapes: list[Any], gpu: str) -> None:
    """Draw which rung the dispatcher chooses for each shape and number of tokens; say from where on a rung of
    wgmma is chosen.
    """
    picks = {f"{n:,} × {k:,}": [_picked(here, n, k, batch) for batch in batches] for n, k in shapes}
    title = f"The rung that the dispatcher picks on {gpu}"
    fig, ax = plot.figure("tokens", title=title, height=1.1 + 0.3 * len(shapes))
    fig.set_figwidth(7.4)
    ladder = sorted({rung for row in picks.values() for rung in row})
    shades = dict(zip(ladder, ("#EDEDED", "#9CC9E8", "#E69F00", plot.COLOURS[0], "#2B2B2B"), strict=False))
    for down, row in enumerate(picks.values()):
        for across, rung in enumerate(row):
            fill = shades.get(rung, "#EDEDED")
            ax.add_patch(Rectangle((across + 0.03, down + 0.06), 0.94, 0.88, color=fill, linewidth=0))
            colour = "white" if fill in (plot.COLOURS[0], "#2B2B2B") else "#1A1A1A"
            ax.text(across + 0.5, down + 0.5, str(rung), ha="center", va="center", color=colour, fontsize=8.5)
    ax.set(xlim=(0, len(batches)), ylim=(len(shapes), 0))
    ax.set_xticks([k + 0.5 for k in range(len(batches))], [str(batch) for batch in batches])
    ax.set_yticks([k + 0.5 for k in range(len(picks))], list(picks))
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    plot.show(fig, f"{title}, by shape and number of tokens.")
    if started := _started(picks, batches):
        display.say(started)
    _so_far(picks, batches, gpu)


# What each rung does, by its source: what multiplies, whose x it has and what it scales.
_DOES = {
    8: ("a warp, mma", "each warp's own part of k; few rows a block, so more blocks", "sums"),
    9: ("a warp, mma", "shared by warps", "sums; weights above 16 tokens"),
    10: ("four warps, wgmma", "shared by warps", "weights"),
    11: ("four warps, wgmma; the TMA copies", "shared by warps", "sums; weights above 16 tokens"),
}


def _started(picks: dict[str, list[int]], batches: list[Any]) -> str:
    """From how many tokens on the rungs of wgmma are picked, where they are on every shape."""
    many = [
        min((batch for batch, rung in zip(batches, row, strict=True) if rung >= 10), default=None)
        for row in picks.values()
    ]
    starts = sorted({batch for batch in many if batch is not None})
    if not starts or None in many:
        return ""
    span = f"{starts[0]}" + (f" to {starts[-1]}" if len(starts) > 1 else "")
    return f"**From {span} tokens on, by shape, rungs 10 and 11 with their `wgmma` are picked.**"


def _so_far(picks: dict[str, list[int]], batches: list[Any], gpu: str) -> None:
    """Show for how many tokens and at how many points each rung is picked, with what it does, and what of
    this depends on the number of tokens.
    """
    cells = [cell for row in picks.values() for cell in zip(row, batches, strict=True)]
    table = []
    for rung in sorted({rung for rung, _ in cells}):
        at = [batch for each, batch in cells if each == rung]
        span = f"{min(at)} to {max(at)}" if min(at) < max(at) else f"{min(at)}"
        table.append((str(rung), span, f"{len(at)} of {len(cells)}", *_DOES.get(rung, ("", "", ""))))
    names = {"rung": "Rung", "tokens": "Tokens", "points": "Points", "by": "Multiplies", "x": "x"}
    names |= {"scales": "Scales"}
    display.table(pd.DataFrame(table, columns=list(names)), names, {}, f"The rungs picked on {gpu}")
    display.say(
        "Two of these depend on the work. **Whether x is shared**: x grows with the tokens, weights do not; "
        "but blocks that share it have more rows, so a small matrix gives fewer blocks to the SMs. **What "
        "is scaled**: a group of 128 weights of a row has one sum for each token. With few tokens there are "
        "fewer sums than weights to scale; a weight is scaled once, for however many tokens. Why weights "
        "are scaled above 16 tokens, and not later, no record explains."
    )
