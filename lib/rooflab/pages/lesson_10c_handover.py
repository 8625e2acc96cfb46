"""What lesson 10c says of a hand-over alone: a sum and a norm of one row, by each way."""

from __future__ import annotations

from typing import Any

from rooflab.pages import NEAR, Rows, spread
from rooflab.studies import links, split
from rooflab.view import display, plot

INSIDE = "1_pdl"
WAYS = {links.NCCL: "NCCL, then a norm", split.SEPARATE: "our sum, then a norm", INSIDE: "in one kernel"}


def crossings(impl: str) -> int:
    """How many crossings in a row a way's prediction counts: inside a norm, one."""
    return 1 if impl == INSIDE else links.crossings("all_reduce", impl)


def handed_over(rows: Rows, gpu: Any) -> None:
    """Draw a sum and a norm of one row by each way, with the predictions; say what one kernel saves."""
    found = rows[rows["operator"] == split.FUSED].copy()
    if found.empty:
        display.say("No hand-over was measured by itself here.")
        return
    caption = "A hand-over: sum and norm of one row over two GPUs"
    fig, ax = plot.figure("numbers in a row", "µs", caption, xlog=True, height=2.9)
    for impl, says in WAYS.items():
        mine = found[found["impl"] == impl].sort_values("n")
        if len(mine):
            line = plot.series(ax, mine["n"], mine["median_us"], label=says)
            line.set_linestyle("-")  # dotted lines are predictions
            ax.plot(mine["n"], mine["predicted_us"], ":", color=line.get_color(), linewidth=1.4)
    widths = sorted(found["n"].unique())
    ax.set_xticks(widths, [f"{int(n):,}" for n in widths])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    plot.label_ends(ax)
    by = found.set_index(["n", "impl"])["median_us"].unstack()
    saved, wide = by[split.SEPARATE] - by[INSIDE], by.index.max()
    nccl = by[links.NCCL] / by[INSIDE]
    told = f"NCCL takes {nccl.min():.1f} to {nccl.max():.1f} times as long as one kernel"
    counts = "; ".join(
        f"{says}, {crossings(impl)} in a row and {1 if impl == INSIDE else 2} launched"
        for impl, says in WAYS.items()
    )
    told += f". Dotted: predicted by crossings and launches: {counts}"
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(found)}: {told}.")
    found["who"], found["ratio"] = found["impl"].map(WAYS), found["median_us"] / found["predicted_us"]
    spread(found, ".1e")
    columns = {"n": "Numbers in a row", "who": "Sum and norm", "predicted_us": "Predicted (µs)"}
    columns |= {"median_us": "Median (µs)", "ratio": "Median ÷ predicted", "gate": "Error (allowed)"}
    forms = {"n": "{:,.0f}", "predicted_us": "{:.1f}", "median_us": "{:.2f}", "ratio": "{:.2f}"}
    found["order"] = [list(WAYS).index(impl) for impl in found["impl"]]
    display.fold("Every hand-over", [(found.sort_values(["n", "order"]), columns, forms)])
    display.say(
        f"One kernel saves {saved.min():.1f} to {saved.max():.1f} µs over our sum and a norm. "
        f"The launch that it spares was taken for {links.LAUNCH_US:g}. One block, so one SM, stores all "
        f"packets of a row: {plot.size_text(4 * int(wide))} for {int(wide):,} numbers.\n\n{_judged(found)}"
    )


def _judged(found: Rows) -> str:
    """The verdict on the prediction of a hand-over, by way."""
    near, parts, over = found["ratio"].between(1 / NEAR, NEAR), [], found["median_us"] - found["predicted_us"]
    for impl, says in WAYS.items():
        mine = over[found["impl"] == impl]
        if len(mine):
            parts.append(f"{says} {mine.min():+.1f} to {mine.max():+.1f} µs".replace("-", "−"))
    return (
        f"**The prediction** holds within {NEAR - 1:.0%} in {near.sum()} of {len(near)} rows. Measured less "
        f"predicted, by way: {'; '.join(parts)}. It leaves out what a norm does once its numbers are there: "
        "adding up squares, a barrier, writing. But each way has that norm, so what one way misses beyond "
        "another is the sum's own, and was not measured apart."
    )
