"""What lesson 02b shows of products timed alone: a fixed time, the bytes on top, and whose time that is."""

from __future__ import annotations

import math

import numpy as np

from rooflab import lab as labs
from rooflab.lab import Lab
from rooflab.ops import gemv, stream
from rooflab.pages import Rows
from rooflab.pages.lesson_02 import LAPTOP
from rooflab.studies import bandwidth, environment, launch_rule
from rooflab.studies import gemv as study
from rooflab.view import display, plot
from rooflab.words import listed


def alone(here: Lab) -> Rows:
    """The weight products timed alone, by their bytes; borrowed where the recording has none."""

    def of(lab: Lab) -> Rows:
        asked = [case for case in lab.cases("attribution") if case.operator == "gemv"]
        return lab.measure("attribution", asked).sort_values("bytes")

    found = of(here)
    return found if len(found) else of(display.borrowed(here, "no product was timed alone"))


def rate_by_bytes(timed: Rows, products: Rows, gpu: str, read: float) -> None:
    """Draw the rate of products by their bytes, timed alone and in the model, and a fixed time plus bytes."""
    title = "Weight products: the larger, the nearer to the roof"
    fixed, rate = launch_rule.line(timed.bytes, timed.median_us, read)
    fig, ax = plot.figure("bytes of the matrix", "GB/s", title, xlog=True)
    there = products.drop_duplicates(["n", "k"]).sort_values("bytes")
    sizes = np.geomspace(timed.bytes.min(), timed.bytes.max(), 60)
    law = plot.series(ax, sizes, sizes / (fixed + sizes / rate / 1e3) / 1e3, label=f"{fixed:.1f} µs + bytes")
    law.set(marker="", linewidth=1.0, linestyle="-", color="#666666", zorder=2)
    for name, rows in (("alone", timed), ("in the model", there)):
        plot.series(ax, rows.bytes, rows.gb_s, label=name).set_linestyle("none")
    plot.roof_line(ax, read, f"read roof {read:,.0f} GB/s")
    ax.set_xticks([10**power for power in (6, 7, 8)], ["1 MB", "10 MB", "100 MB"])
    plot.label_ends(ax)
    off = (fixed + timed.bytes / rate / 1e3) / timed.median_us - 1
    text = f"{title}: cuBLAS products, cold, on {gpu}, {plot.dates(timed)}. The curve, a fixed time and the "
    text += f"bytes on top, is off by {off.abs().median():.0%} in the median, "
    plot.show(fig, f"{text}{off.abs().max():.0%} at most.")
    far, columns = timed.loc[off.abs().idxmax()], timed.k
    more = timed[(columns == far.k) & (timed.n > far.n) & (timed.median_us < far.median_us)]
    if len(more):
        larger = more.loc[more.n.idxmax()]
        display.say(
            "The library chooses a kernel by the shape, so the curve is a rule of thumb. It is off most at "
            f"{int(far.n):,} rows of {int(far.k):,}: they take {far.median_us:.1f} µs, and {int(larger.n):,} "
            f"rows only {larger.median_us:.1f}."
        )


def laptop_line() -> tuple[float, float]:
    """Fixed time in microseconds and rate in GB/s of the laptop's published products."""
    rows = _laptop_products()
    return launch_rule.line(rows.bytes, rows.median_us)


def _laptop_products() -> Rows:
    rows = labs.open("replay", LAPTOP).store.read("attribution")
    return rows[(rows.operator == "gemv") & rows.n.notna()].set_index(["n", "k"])


def _shares(timed: Rows, products: Rows, read: float) -> Rows:
    """What share of the rate of large products each product reaches in the model, in percent."""
    _, own = launch_rule.line(timed.bytes, timed.median_us, read)
    return 100 * products.gb_s / own


def two_gpus(timed: Rows, products: Rows, gpu: str, read: float) -> None:
    """Show what share of the rate of large products, fitted on each GPU, each product reaches, here and on
    the published laptop.
    """
    rows, (_, rate) = _laptop_products(), laptop_line()
    _, own = launch_rule.line(timed.bytes, timed.median_us, read)
    pairs = products[["n", "k"]].itertuples(index=False, name=None)
    theirs = [rows.gb_s.get(pair) for pair in pairs]
    both = products[["part", "us"]].assign(mb=products.bytes / 1e6, here=_shares(timed, products, read))
    both["laptop"] = [100 * each / rate if each else None for each in theirs]
    heads = {"part": "projection", "mb": "MB", "us": "µs (nsys)", "here": f"{gpu}, %"}
    heads |= {"laptop": "RTX 4070 Laptop, %"}
    forms = dict.fromkeys(("mb", "us"), "{:.1f}") | dict.fromkeys(("here", "laptop"), "{:.0f}")
    title = f"Share of the rate of large products, {own:,.0f} GB/s here and {rate:,.0f} there, by nsys "
    title += "(the chart at the top has shares of ncu's peak, by ncu)"
    display.table(both, heads, forms, title)
    without = both.part[both.laptop.isna()]
    if len(without):
        display.say(f"The laptop's published profile has no row of the size of {listed(without)}.")


def fixed_time(timed: Rows, products: Rows, gpu: str, read: float) -> None:
    """Say what a product costs besides its bytes, here and on the laptop."""
    fixed, _ = launch_rule.line(timed.bytes, timed.median_us, read)
    there, rate = laptop_line()
    half = fixed * read * 1e3
    display.say(
        f"The fixed time here is **{fixed:.1f} µs** a product, in which {half / 1e6:.0f} MB could be read at "
        "the roof. For a smaller matrix the fixed time is more than that of its bytes: on "
        f"{gpu}, for every product but {listed(products[products.bytes > half].part)}. A line "
        f"through the laptop's published products gives {there:.1f} µs, worth {there * rate / 1e3:.1f} MB at "
        f"the fitted rate of {rate:,.0f} GB/s."
    )


def beyond_bytes(here: Lab, timed: Rows, products: Rows, step: Rows, read: float) -> None:
    """Say how much of a product's fixed time other kernels need as well, and how much is the library's: by an
    empty node, a read kernel and lesson 03d's product with the smallest matrix; and if its blocks explain it.
    """
    fixed, _ = launch_rule.line(timed.bytes, timed.median_us, read)
    node, start = _node_us(here), _start_us(here, read)
    said = []
    if node and start:
        inside = f", of which {node:.1f} are an empty node's" if node < start else ""
        inside = inside or f"; an empty node takes {node:.1f}"
        said.append(
            f"Whose time is it? As a node of a graph a read kernel takes {start:.1f} µs to start and finish "
            f"([lesson 01b](01b_roofs.ipynb)){inside} ([lesson 00b](00b_clocks.ipynb))."
        )
        if fixed > 1.2 * start:
            said.append(
                f"**The other {round(fixed, 1) - round(start, 1):.1f} µs are the library's kernels, not the "
                "GPU's price.**"
            )
    small = products.loc[products.bytes.idxmin()]
    ours, theirs = _same_matrix(here, int(small.n), int(small.k))
    if ours and theirs:
        said.append(
            f"With the matrix of `{small.part}` the kernel of [lesson 03d](03d_rows.ipynb) takes "
            f"{ours:.1f} µs, cuBLAS {theirs:.1f}."
        )
    blocks = _blocks(step, products.assign(share=_shares(timed, products, read)), int(here.run.sms))
    for text in filter(None, (" ".join(said), blocks)):
        display.say(text)


def _node_us(here: Lab) -> float | None:
    """Microseconds of an empty node of a graph; None where none was timed."""
    probes = [case for case in here.cases("environment") if case.operator == "touch"]
    probes = here.held("environment", probes)
    if not probes:
        return None
    ways = environment.handovers(here.measure("environment", probes)).set_index("handover").median_us
    return float(ways["node of a graph"]) if "node of a graph" in ways else None


def _start_us(here: Lab, read: float) -> float | None:
    """Microseconds of a cold read of the smallest array beyond its bytes; None where none was timed."""
    reads = [case for case in here.cases("bandwidth") if case.operator == "read" and case.cache == "cold"]
    reads = here.held("bandwidth", [case for case in reads if case.impl == stream.DEFAULT["read"]])
    if not reads:
        return None
    smallest = min(reads, key=lambda case: case.n or 0)
    return bandwidth.fixed_us(here.measure("bandwidth", [smallest]), read)


def _same_matrix(here: Lab, n: int, k: int) -> tuple[float | None, float | None]:
    """Microseconds of lesson 03d's kernel and of cuBLAS with one matrix; None for one that was not timed."""
    pair = [case for case in study.ladder("gemv_rows", n, k) if case.impl in (gemv.TUNED, "torch.matmul")]
    pair = here.held("gemv", pair)
    timed = here.measure("gemv", pair).set_index("impl").median_us if pair else {}
    ours, theirs = timed.get(gemv.TUNED), timed.get("torch.matmul")
    return (float(ours) if ours else None, float(theirs) if theirs else None)


def _blocks(step: Rows, products: Rows, sms: int) -> str:
    """Whether the number of blocks, by the counted launches' grids, explains the `share` that products reach;
    empty where each has a block for every SM.
    """
    weights = step[step["class"] == "weight"].drop_duplicates("part").set_index("part")
    blocks = weights.grid.str.split("x").map(lambda sides: math.prod(map(int, sides)))
    share = products.set_index("part").share
    blocks = blocks[blocks.index.isin(share.index)].sort_values(kind="stable")
    if not (blocks < sms).any():
        return ""
    each = [f"{listed(map(_code, parts.index))} {count}" for count, parts in blocks.groupby(blocks)]
    text = f"Is it too few blocks for the {sms} SMs? The grids have {', '.join(each)}. "
    pairs = [(a, b) for a in blocks.index for b in blocks.index if blocks[a] <= blocks[b]]
    few, many = max(pairs, key=lambda pair: share[pair[0]] / share[pair[1]])
    if share[few] < 1.5 * share[many]:
        text += "No product with fewer blocks reaches a much larger share than one with more, so these "
        return text + "counters do not tell whether blocks or bytes decide."
    text += f"But `{few}` reaches {share[few]:.0f}% with {blocks[few]}, and `{many}` only "
    text += f"{share[many]:.0f}% with {blocks[many]}: the number of blocks does not decide."
    sizes = products.groupby("bytes").share.mean()
    if sizes.is_monotonic_increasing and len(sizes) > 1:
        text += " The share follows the bytes: the larger the matrix, the larger the share, as a fixed time "
        text += "makes it. What a kernel does in that time, these counters do not say."
    return text


def _code(name: object) -> str:
    return f"`{name}`"
