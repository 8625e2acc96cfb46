"""What lesson 04c's page shows: INT4 products of several tokens, beside FP16 and other libraries."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows, named_facts
from rooflab.pages.lesson_04c_bounds import bound_us, by_shape, crossings_of, free_up_to
from rooflab.pages.lesson_04c_peers import two_op_over_fp16
from rooflab.pages.lesson_04c_stops import ahead_in_short, gains_of, stops_in_short
from rooflab.studies import int4 as study
from rooflab.view import display, explorer, plot
from rooflab.words import counted, listed


def opening(here: Lab, drawn: Any, batches: list[int], shapes: list[Any]) -> Opening:
    """The first screen: the dispatcher's INT4 kernels beside FP16 over the number of tokens."""
    picks = [study.chosen(*drawn, batch, here.sized) for batch in batches]
    every = study.batches(*drawn, batches, here.sized)
    dense = here.held("int4", [case for case in every if case.impl == "torch.matmul"])
    ours = here.measure("int4", picks)
    theirs = here.measure("int4", dense)
    us = ours.set_index("batch")["median_us"]
    mine, dense = (rows.drop_duplicates("batch").set_index("batch") for rows in (ours, theirs))
    both = [batch for batch in us.index if batch in dense.index]
    last, gpu = us.index[-1], here.run["gpu"]
    answer = f"For {drawn[0]:,} × {drawn[1]:,} weights on the {gpu}, read once for all tokens, {last} tokens "
    answer += f"take {us[last] / us.iloc[0]:.2f} times as long as {us.index[0]}"
    more = last / us.index[0] * us.iloc[0] / us[last]  # tokens a second
    if more > 1.1:
        answer += f" ({more:.{0 if more >= 10 else 1}f} times the tokens a second)"
    if ours["impl"].iloc[0] != ours["impl"].iloc[-1]:
        answer += ", each with the kernel that suits it"
    if both:
        first, most = (_fast(mine.loc[batch], dense.loc[batch]) for batch in (both[0], both[-1]))
        answer += f". INT4 is {first} as FP16 at {counted(both[0], 'token')} and {most} at {both[-1]}"
    answer += f". {ahead_in_short(gains_of(here, shapes, batches))}"
    able = (
        "predict up to how many tokens a product stays memory-bound",
        "write a kernel that reads its weights once for several tokens",
        "say at which batch a quantised product stops paying",
    )
    title = f"Time of a {drawn[0]:,} × {drawn[1]:,} product"
    fig, ax = plot.figure("tokens that share the weights", "µs", title, xlog=True, height=2.6)
    for label, rows in (("INT4, ours", ours), ("FP16, cuBLAS", theirs.sort_values("batch"))):
        if len(rows):
            plot.series(ax, rows["batch"], *plot.band(rows, "median_us"), label=label)
    ticks = _apart(batches)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    plot.label_ends(ax)
    said = f"{title} on {gpu}, {plot.dates(pd.concat([ours, theirs]))}: medians, and the middle half of the "
    said += "samples shaded, where it is wider than the line. "
    said += f"{listed(_went(ours, 'INT4') + _went(theirs, 'FP16'))}."
    return answer, able, (fig, said)


def _apart(ticks: list[int]) -> list[int]:
    """Ticks of a logarithmic axis, without those so near to the next that their labels would touch."""
    nexts = [*ticks[1:], 2 * ticks[-1]]
    return [tick for tick, after in zip(ticks, nexts, strict=True) if after > 1.2 * tick]


def _fast(row: Any, other: Any) -> str:
    """How the speed of a row compares with that of another: "3.4 times as fast"."""
    ratio = other["median_us"] / row["median_us"]
    return f"{display.gain(row, other)} times as fast" if ratio > 1.05 else display.speed(ratio)


def _went(rows: Rows, name: str) -> list[str]:
    """From where to where the time of a series went, in words, and where between it was lower than at both
    ends; nothing without rows.
    """
    us = rows.set_index("batch")["median_us"].dropna().sort_index()
    if us.empty:
        return []
    text = f"{name} goes from {us.iloc[0]:.1f} to {us.iloc[-1]:.1f} µs"
    if us.min() < 0.97 * min(us.iloc[0], us.iloc[-1]):
        text += f" (with {us.min():.1f} at {counted(int(us.idxmin()), 'token')}"
        wide = rows[[crossover.scattered(row) for _, row in rows.iterrows()]].sort_values("batch")
        text += "".join(
            f"; at {counted(int(row.batch), 'token')} the middle half of its samples lies between "
            f"{row.q1_us:.1f} and {row.q3_us:.1f}"
            for row in wide.head(1).itertuples()
        )
        text += ")" if len(wide) else "; why less there is not known)"
    return [text]


def run_facts(gpu: str, here: Lab, read_roof: float, peak: float, shapes: list[Any]) -> None:
    """The facts of the run, in one line."""
    more = {
        "torch, CUDA": f"{here.run_of('int4')['torch']}, {here.run_of('int4')['cuda']}",
        "Read roof": f"{read_roof:,.0f} GB/s",
        "Tensor peak, measured": f"{peak:,.0f} TFLOP/s in FP16" if peak else "not recorded",
        "Shapes (n × k)": ", ".join(f"{n:,} × {k:,}" for n, k in shapes),
    }
    named_facts(here, gpu, "int4", more)


def takeaway(here: Lab, batches: list[Any], shapes: list[Any], rows: Rows, table: Rows, drawn: Any) -> None:
    """What to take away, computed."""
    times = rows.pivot(index=["n", "k", "batch"], columns="who", values="median_us")
    slow = two_op_over_fp16(rows)
    free, ours = free_up_to(table)[0], times["ours"].loc[drawn]
    text = (
        "- Tokens share one reading of the weights. By the bound they are nearly free until the arithmetic "
    )
    text += "takes longer than the bytes"
    known = {"dram_read", "fp16_tensor"} <= set(here.roof)
    if known:
        read, peak = (here.roof[name].value for name in ("dram_read", "fp16_tensor"))
        begins = by_shape(crossings_of("int4_g128", read, peak, shapes), " on")
        text += f", from {begins}" if begins else ""
    if {1, free} <= set(ours.dropna().index) and free > 1:
        text += f"; measured, {free} take {ours[free] / ours[1]:.2f} times as long as one"
        if (last := ours.dropna().index.max()) > free:
            text += f" and {last} {ours[last] / ours[1]:.2f} times"
        text += " at "
        text += f"{drawn[0]:,} × {drawn[1]:,}"
    text += ".\n- CUDA cores pay at least a multiply-add a weight for every token. Many tokens need tensor "
    text += "cores, an x that warps share, and copies that run ahead.\n"
    ends = stops_in_short(gains_of(here, shapes, batches))
    ends = ends if ends[:2].isupper() else f"{ends[:1].lower()}{ends[1:]}"
    text += f"- {here.run['gpu']}: {ends}" if ends else ""
    if len(slow) and slow.min() > 1:
        text += "\n- Unpacking first (two-op, our kernel) is slower than never quantising, at all "
        text += f"{len(slow)} points at which both were timed."
    display.say(text)


def explore(read_roof: float, peak: float | None, rows: Rows, gpu: str, here: Lab, drawn: Any) -> Any:
    """The explorer of INT4 and FP16 products, by contestant, shape and batch."""

    def bound(case):
        format = "fp16" if case.impl == "torch.matmul" else "int4_g128"
        return bound_us(case.n, case.k, case.batch, format, read_roof, peak)

    kept = rows[rows["who"].isin(("ours", "humming", "FP16 cuBLAS", "tinygemm"))]
    kept = kept.assign(predicted_us=[bound(case) for case in kept.itertuples()])
    return explorer.Explorer(
        "int4-batches",
        kept,
        x="batch",
        y="median_us",
        foretold="bound {} µs (measured roofs)",
        controls={"who": "Contestant", "shape": "n × k"},
        title=f"INT4 and FP16 products on {gpu}",
        bound=bound,
        measure=explorer.measurer(here),
        ylog=True,
        start={"who": "ours", "shape": f"{drawn[0]:,} × {drawn[1]:,}"},
    )
