"""What lesson 01's pages open with."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib.figure import Figure

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.records.case import Case
from rooflab.studies import bandwidth as bandwidth_study
from rooflab.view import page, plot

# What a thread loads in each rung of `read`: words beside its bar.
_DOES = {
    "1_scalar": "one load of 4 bytes",
    "2_vector": "one load of 16",
    "3_in_flight": "eight loads of 16",
    "4_grid": "standing blocks, in steps",
    "5_streaming": "rung 3, past the L1 cache",
}


def bandwidth(rows: Rows, here: Lab, size: str) -> Opening:
    """The first screen of 01: the read ladder's first and best rung."""
    own = rows[rows["kind"] == "own"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    text = f"The {here.run['gpu']} reads at {best['gb_s']:,.0f} GB/s"
    text += f", {best['gb_s'] / here.spec.dram_gb_s:.0%} of its datasheet" if here.spec else ""
    share = first["gb_s"] / best["gb_s"]
    text += f"; the kernel that one writes first reaches {share:.0%} of that"
    if share < 0.9:
        text += ". It uses every byte that it fetches. It is slow partly because it keeps too few in flight"
    able = [
        "compute how many bytes a memory needs in flight (Little's law)",
        "bring a streaming kernel to the roof",
        "name the roof that a kernel's bandwidth is held against",
    ]
    roof = ("read", here.roof["dram_read"].value, "GB/s")
    title = f"read, {size} an array, cold"
    figure, caption = page.ladder(rows, here.run["gpu"], roof, title, does=_DOES)
    set_by = here.roof["dram_read"].case
    own_size = re.search(r"\bn=(\d+)", set_by)
    if set_by not in set(rows["case"]) and own_size:
        caption += (
            f" The roof is the best rung's rate on {plot.size_text(4 * int(own_size[1]))} (lesson 01b)."
        )
    return f"{text}.", able, (figure, caption)


def rate_around(here: Lab, size: float) -> str:
    """What share of the read roof the sizes next to `size`, bytes in flight on an SM, reach on the page's
    measured curve; empty where none lies on both sides.
    """
    cases = [c for c in here.cases("bandwidth") if (c.operator, c.impl) == ("read", "4_grid")]
    cases = here.held("bandwidth", [case for case in cases if "blocks=" in case.options])
    rows = here.measure("bandwidth", cases) if cases else pd.DataFrame()
    sms, roof = int(here.run["sms"]), here.roof["dram_read"].value
    by = {bandwidth_study.in_flight_bytes(Case.from_row(row), sms): row["gb_s"] for _, row in rows.iterrows()}
    fewer, more = max((s for s in by if s <= size), default=0), min((s for s in by if s >= size), default=0)
    if not fewer or not more:
        return ""
    ends = [f"{at / 1024:.0f} KiB at {by[at] / roof:.0%}" for at in dict.fromkeys((fewer, more))]
    return f" The next section's curve has {' and '.join(ends)} of the roof."


def sweep_chart(sweep: Rows, gpu: str, ceiling: float, l2: int) -> tuple[Figure, str]:
    """The read kernel by size, warm and cold, and its caption."""
    fig, ax = plot.figure("bytes read", "GB/s", "Reading by size", xlog=True, height=2.8)
    for cache, rows in sweep.groupby("cache"):
        plot.series(ax, rows["bytes"], *plot.band(rows), label=cache)
    plot.roof_line(ax, ceiling, f"DRAM read {ceiling:,.0f} GB/s")
    plot.roof_line(ax, l2, f"L2: {plot.size_text(l2)}", vertical=True)
    plot.size_ticks(ax, sweep["bytes"])
    plot.label_ends(ax)
    best = sweep.loc[sweep["gb_s"].idxmax()]
    caption = (
        f"Reading by size on {gpu}, {plot.dates(sweep)}: at most {best['gb_s'] / ceiling:.0%} of the read "
    )
    return fig, f"{caption}roof, {best['cache']}, at {plot.size_text(best['bytes'])}."


def roofs(sweep: Rows, here: Lab, ceilings: tuple[Figure, str] | None) -> Opening:
    """The first screen of 01b: the two ceilings and where they meet; without `ceilings`, a chart of them, the
    read kernel by size.
    """
    gpu, read = here.run["gpu"], here.roof["dram_read"].value
    text = f"The {gpu} reads at {read:,.0f} GB/s, cold and from large arrays"
    fp16 = here.roof.get("fp16_tensor")
    if fp16:
        ridge = roofline.ridge(read, fp16.value)
        text += (
            f", and in a burst multiplies FP16 matrices at {fp16.value:,.0f} TFLOP/s: such a product is "
            "memory-bound "
        )
        text += f"with fewer than {ridge:,.0f} FLOP for each byte"
        plain = here.roof.get("fp32")
        if plain:
            text += ", FP32 arithmetic without tensor cores with fewer than "
            text += f"{roofline.ridge(read, plain.value):,.0f}"
    able = [
        "decide whether memory or arithmetic bounds a kernel",
        "say from which size on a roof holds",
        "tell a transfer from a kernel",
    ]
    return f"{text}.", able, ceilings or sweep_chart(sweep, gpu, read, int(here.run["l2_bytes"]))
