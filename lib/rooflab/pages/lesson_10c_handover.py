"""What lesson 10c says of a hand-over alone: a sum and a norm of one row, by each way."""

from __future__ import annotations

from typing import Any

from rooflab.pages import NEAR, Rows, spread
from rooflab.pages.lesson_10c import HANDOVERS as WAYS
from rooflab.pages.lesson_10c import SHADES
from rooflab.studies import links, split
from rooflab.view import display, plot
from rooflab.words import counted

INSIDE = "1_pdl"


def crossings(impl: str) -> int:
    """How many crossings in a row a way's prediction counts: inside a norm, one."""
    return 1 if impl == INSIDE else links.crossings("all_reduce", impl)


def alone_us(rows: Rows, width: int) -> float:
    """Microseconds of a hand-over in one kernel, timed alone, at the measured width nearest to `width`; NaN
    where none was measured.
    """
    found = rows[(rows["operator"] == split.FUSED) & (rows["impl"] == INSIDE)].set_index("n")
    if found.empty:
        return float("nan")
    return float(found["median_us"][min(found.index, key=lambda n: abs(n - width))])


def saved(rows: Rows) -> None:
    """Say what one kernel saves of a sum and a norm, in a sentence for the page's main line."""
    found = rows[rows["operator"] == split.FUSED]
    by = found.set_index(["n", "impl"])["median_us"].unstack() if len(found) else found
    if not {split.SEPARATE, INSIDE} <= set(by):
        return
    less = by[split.SEPARATE] - by[INSIDE]
    display.say(
        f"Timed alone, this saves {less.min():.1f} to {less.max():.1f} µs beside a sum and a norm as two "
        "kernels ([appendix](#a-sum-and-a-norm-timed-alone))."
        if (less > 0).all()
        else "Timed alone, one kernel does not always take less than two "
        "([appendix](#a-sum-and-a-norm-timed-alone))."
    )


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
            line = plot.series(
                ax, mine["n"], mine["median_us"], label=says, colour=SHADES.get(impl, SHADES[split.FUSED])
            )
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
        f"{says}: {counted(crossings(impl), 'crossing')} and "
        f"{counted(1 if impl == INSIDE else 2, 'launch', 'launches')}"
        for impl, says in WAYS.items()
    )
    told += f". Dotted: predicted, {counts}"
    display.say(
        f"**In one kernel a hand-over takes {saved.min():.1f} to {saved.max():.1f} µs less** than by our sum "
        f"and a norm. We charged the launch that it spares {links.LAUNCH_US:g}.{_near(found)}"
    )
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(found)}: {told}.")
    found["who"], found["ratio"] = found["impl"].map(WAYS), found["median_us"] / found["predicted_us"]
    spread(found, ".1e")
    columns = {"n": "Numbers in a row", "who": "Sum and norm", "predicted_us": "Predicted (µs)"}
    columns |= {"median_us": "Median (µs)", "ratio": "Median ÷ predicted", "gate": "Error (allowed)"}
    forms = {"n": "{:,.0f}", "predicted_us": "{:.1f}", "median_us": "{:.2f}", "ratio": "{:.3f}"}
    found["order"] = [list(WAYS).index(impl) for impl in found["impl"]]
    table = found.sort_values(["n", "order"]).reset_index(drop=True)
    packets = f"One block, so one SM, stores all packets of a row: {plot.size_text(4 * int(wide))} for "
    packets += f"{int(wide):,} numbers."
    display.fold_parts("Every hand-over", [(table, columns, forms), f"{_judged(found)} {packets}"])


def _near(found: Rows) -> str:
    """In how many rows the predicted time holds."""
    near = (found["median_us"] / found["predicted_us"]).between(1 / NEAR, NEAR)
    text = f" The predicted times hold within {NEAR - 1:.0%} in {near.sum()} of {len(near)} rows"
    late = (found["median_us"] > found["predicted_us"])[~near].all() and not near.all()
    return text + (
        ": all others take longer. The prediction leaves out the norm's own work, among others."
        if late
        else "."
    )


def _judged(found: Rows) -> str:
    """What each way takes beyond its prediction, and what that leaves out."""
    parts, over = [], found["median_us"] - found["predicted_us"]
    for impl, says in WAYS.items():
        mine = over[found["impl"] == impl]
        if len(mine):
            parts.append(f"{says} {mine.min():+.1f} to {mine.max():+.1f} µs".replace("-", "−"))
    return (
        f"Measured less predicted, by way: {'; '.join(parts)}. The prediction leaves out what a norm does "
        "once its numbers are there: adding up squares, a barrier, writing. Each way has that norm, so where "
        "ways differ in this, the sum makes the difference."
    )
