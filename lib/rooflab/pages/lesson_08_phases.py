"""Where a decoded token's time goes, by phases, in lesson 08."""

from __future__ import annotations

from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import decode
from rooflab.view import display, plot
from rooflab.words import listed


def time_by_phase(lab: Lab, format: str) -> tuple[Rows, Lab, Rows, Rows]:
    """Show a token's traced time by phase beside that of its bytes; the trace, its lab, all parts, those
    shown.
    """
    traced, whose = lab.profile("decode", decode.traced(), "cupti"), lab
    if traced.empty:
        whose = display.borrowed(lab, "no phase was traced")
        traced = whose.profile("decode", decode.traced(), "cupti")
    parts = ablation.split(traced, whose.roof["dram_read"].value)
    chosen = format if format in set(parts.format) else parts.format.iloc[0]
    one = parts[parts.format == chosen]
    heads = {
        "phase": "phase",
        "launches": "launches",
        "us": "µs a token",
        "each_us": "µs each",
        "roof_us": "its bytes, µs",
    }
    forms = {"launches": "{:.0f}", "us": "{:.0f}", "each_us": "{:.1f}", "roof_us": "{:.0f}"}
    caption = (
        f"A token by phases, {ablation.FORMATS[chosen]}, traced on {whose.run.gpu}; last, the time of its "
    )
    caption += "bytes at the roof"
    display.table(one, heads, forms, caption, folded=True)
    return traced, whose, parts, one


def waits_drawn(parts: Rows, whose: Lab, traced: Rows) -> None:
    """Draw what a token waits for: bytes, phases beyond them, the time between phases."""
    names = [f for f in ablation.FORMATS if f in set(parts.format)]
    table = {
        "bytes at the roof": [parts[parts.format == f].roof_us.sum() for f in names],
        "in phases, beyond the bytes": [
            parts[(parts.format == f) & (parts.phase != "between")].over.sum() for f in names
        ],
        "between phases": [parts[(parts.format == f) & (parts.phase == "between")].us.sum() for f in names],
    }
    title = "A token of rung 1_kernel_per_phase, by what it waits for"
    fig, ax = plot.figure("µs", title=title, height=1.5 + 0.4 * len(names))
    plot.stacked(ax, [ablation.FORMATS[f] for f in names], table, "µs")
    first = {k: v[-1] for k, v in table.items()}
    plot.show(
        fig,
        f"{title} on {whose.run.gpu}, {plot.dates(traced)}; {ablation.FORMATS[names[-1]]}: "
        + ", ".join(f"{k} {v:.0f} µs" for k, v in first.items())
        + ".",
    )


def longest_wait(one: Rows, whose: Lab, parts: Rows, here: Rows) -> None:
    """Say which phase waits longest beyond its bytes, how much longer a traced token takes, and how the time
    beyond bytes depends on the format.
    """
    busy = one[one.phase != "between"]
    most = busy.sort_values("over").iloc[-1]
    total = busy.us.sum() + one[one.phase == "between"].us.sum()
    bare = here[(here.impl == decode.RUNGS[0]) & (here.format == one.format.iloc[0]) & here.usual].median_us
    display.say(
        f"Of the {total:,.0f} µs that the tracer saw on the {whose.run.gpu}"
        + (f" ({bare.iloc[0]:,.0f} in the ladder, measured without it)" if len(bare) else "")
        + f", {one.roof_us.sum():,.0f} are bytes. The longest wait "
        f"beyond them is in *{most.phase}*: {most.over:,.0f} µs in {most.launches:.0f} launches. "
        "A phase asks L2 for its input, adds up, hands on; each of these is a latency that no "
        f"bandwidth shortens, and {busy.launches.sum():,.0f} phases do so one after the other."
        + _beyond_bytes(parts)
    )


def _beyond_bytes(parts: Rows) -> str:
    """How long phases take beyond their bytes by format, those with the most bytes first."""
    busy = parts[parts.phase != "between"]
    sums = busy.groupby("format", sort=False)[["over", "roof_us"]].sum().sort_values("roof_us")[::-1]
    if len(sums) < 2:
        return ""
    shown = listed(f"{over:,.0f} µs in {ablation.FORMATS[name]}" for name, over in sums.over.items())
    text = f" Beyond their bytes phases take {shown}."
    apart, bytes_apart = (values.max() / values.min() for values in (sums.over, sums.roof_us))
    if apart < 1.2 < bytes_apart:
        text += (
            f" That differs by {apart - 1:.0%} at most, the time of the bytes {bytes_apart:.1f} times: the "
            "smaller the weights, the more of a token it is."
        )
    return text
