"""What lesson 02b shows of products timed alone: a fixed time, the bytes on top, and whose time that is."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rooflab import lab as labs
from rooflab.lab import Lab
from rooflab.ops import gemv
from rooflab.pages import Rows
from rooflab.pages.lesson_02 import LAPTOP
from rooflab.studies import environment, launch_rule
from rooflab.studies import gemv as study
from rooflab.view import display, page, plot
from rooflab.words import listed


def alone(here: Lab) -> Rows:
    """The weight products timed alone, by their bytes; borrowed where the recording has none."""

    def of(lab: Lab) -> Rows:
        asked = [case for case in lab.cases("attribution") if case.operator == "gemv"]
        return lab.measure("attribution", asked).sort_values("bytes")

    found = of(here)
    return found if len(found) else of(display.borrowed(here, "no product was timed alone"))


def fixed_said(here: Lab, products: Rows, timed: Rows, read: float) -> str:
    """The page's find: what a product costs besides its bytes, and how much of a layer that is."""
    fixed, rate = launch_rule.line(timed.bytes, timed.median_us, read)
    count, bytes_us, took = layer_sum(products, rate)
    need = f"the {count} of a layer need {bytes_us:.0f} µs for their bytes and take {took:.0f}"
    if fixed < 0.05:
        return (
            f"On the {here.run.gpu} a weight product by cuBLAS has no fixed time besides its bytes: {need}."
        )
    text = (
        f"On the {here.run.gpu} a weight product by cuBLAS costs {fixed:.1f} µs besides its bytes, by a line "
    )
    text += "through products of all sizes"
    left = _beyond(timed, fixed * read * 1e3, rate)
    if len(left) > 1:
        text += f" (the {len(left)} smaller ones one by one: {left.min():.1f} to {left.max():.1f})"
    text += f": {need}."
    small = products.loc[products.bytes.idxmin()]
    ours, theirs = _same_matrix(here, int(small.n), int(small.k))
    if ours and theirs and theirs > 1.2 * ours:
        text += f" It is no limit of the GPU: with the matrix of `{small.part}`, where cuBLAS takes "
        text += f"{theirs:.1f} µs, a kernel of [lesson 03d](03d_rows.ipynb) takes {ours:.1f}."
    return text


def fixed_chart(products: Rows, timed: Rows, gpu: str, read: float) -> tuple[Figure, str]:
    """Bytes and fixed time of each product of a layer, and what it took in the running model."""
    fixed, rate = launch_rule.line(timed.bytes, timed.median_us, read)
    inside = products[products.part != "lm_head"]
    inside = (inside if len(inside) else products).sort_values("bytes", kind="stable")
    title = "The weight products of a layer: bytes, fixed time, and what was measured"
    fig, ax = plot.figure("µs", title=title, height=2.6)
    fig.set_figwidth(page.WIDEST)
    bytes_us = inside.bytes / rate / 1e3
    parts = {f"its bytes at {rate:,.0f} GB/s": bytes_us}
    parts[f"fixed time, {fixed:.1f} µs"] = pd.Series(fixed, index=inside.index)
    plot.stacked(ax, [f"{row.part}, {row.bytes / 1e6:.1f} MB" for row in inside.itertuples()], parts, "µs")
    style = {"linestyle": "none", "marker": "D", "color": "black", "markersize": 5, "zorder": 5}
    ax.plot(inside.us, range(len(inside)), label="measured in the running model", **style)
    ax.set_xlim(0, 1.05 * max(float(inside.us.max()), float(bytes_us.max()) + fixed))
    plot.key_below(ax)
    off = ((bytes_us + fixed) / inside.us - 1).abs()
    text = f"{title}: cuBLAS, {gpu}, {plot.dates(timed)}. Bars: a fit to products timed alone; marks: nsys, "
    return fig, f"{text}{off.median():.0%} from the bars in the median, {off.max():.0%} at most."


def measurers(step: Rows, timed: Rows, products: Rows, gpu: str) -> None:
    """Show what the three ways of measuring one launch say of the largest, a middle and a small product."""
    there = products.set_index("part")
    ways = {
        "`ncu`: alone, caches emptied before each run": step[step["class"] == "weight"]
        .drop_duplicates("part")
        .set_index("part")
        .rename(columns={"dram_pct": "share"}),
        "the graph clock: alone, cold, many times": _timed_by_part(timed, products),
        "`nsys`: in the running model": there.rename(columns={"pct": "share"}),
    }
    names = [part for part in ("lm_head", "gate", "k") if part in there.index]
    rows = []
    for way, found in ways.items():
        row = {"way": way.replace("`", "")}
        for part in names:
            known = part in found.index
            row[part] = f"{found.us[part]:.1f} µs, {found.share[part]:.0f}%" if known else "not measured"
        rows.append(row)
    heads = {"way": "measured by"} | {part: part for part in names}
    caption = f"One launch by three instruments, {gpu}: its time, and its share of the memory's rate"
    display.table(pd.DataFrame(rows), heads, caption=caption)
    display.say(
        "They differ as the launch's surroundings do. Shares by `ncu` are of its own peak, the others of the "
        "read roof. **On this page counters are by `ncu`, times of the running model by `nsys`, and the "
        "fixed time by the graph clock.**"
    )


def _timed_by_part(timed: Rows, products: Rows) -> Rows:
    """Time and share of the roof of the products timed alone, by the part that has their matrix."""
    alike = timed.drop_duplicates(["n", "k"]).set_index(["n", "k"])
    found = products[[(row.n, row.k) in alike.index for row in products.itertuples()]].set_index("part")
    at = [(row.n, row.k) for row in found.itertuples()]
    us = [float(alike.median_us[pair]) for pair in at]
    share = [100 * float(alike.roof_fraction[pair]) for pair in at]
    return pd.DataFrame({"us": us, "share": share}, index=found.index)


def rate_by_bytes(timed: Rows, products: Rows, gpu: str, read: float) -> None:
    """Draw the rate of products by their bytes, timed alone and in the model, and a fixed time plus bytes."""
    title = "Weight products: the larger, the nearer to the roof"
    fixed, rate = launch_rule.line(timed.bytes, timed.median_us, read)
    fig, ax = plot.figure("bytes of the matrix", "GB/s", title, xlog=True)
    there = products.drop_duplicates(["n", "k"]).sort_values("bytes")
    sizes = np.geomspace(timed.bytes.min(), timed.bytes.max(), 60)
    law = plot.series(ax, sizes, sizes / (fixed + sizes / rate / 1e3) / 1e3, label=f"{fixed:.1f} µs + bytes")
    law.set(marker="", linewidth=1.0, linestyle="-", color="#666666", zorder=2)
    for name, rows in (("timed alone", timed), ("in the running model", there)):
        plot.series(ax, rows.bytes, rows.gb_s, label=name).set_linestyle("none")
    plot.roof_line(ax, read, f"read roof {read:,.0f} GB/s")
    ax.set_xticks([10**power for power in (6, 7, 8)], ["1 MB", "10 MB", "100 MB"])
    fig.legend(
        *ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    off = (fixed + timed.bytes / rate / 1e3) / timed.median_us - 1
    text = f"{title}: cuBLAS products, cold, on {gpu}, {plot.dates(timed)}. The curve, a fixed time and the "
    text += f"bytes on top, is off by {off.abs().median():.0%} in the median, "
    plot.show(
        fig, f"{text}{off.abs().max():.0%} at most, from the products timed alone, to which it is fitted."
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
    rows, (fixed, rate) = _laptop_products(), laptop_line()
    ours, own = launch_rule.line(timed.bytes, timed.median_us, read)
    display.say(
        "A fixed time weighs less where memory is slower. A line through the laptop's published products "
        f"gives one of {fixed:.1f} µs ({ours:.1f} here), in which {fixed * rate / 1e3:.1f} MB could be read "
        f"at its fitted rate of {rate:,.0f} GB/s ({ours * own / 1e3:.1f} MB here, at {own:,.0f}):"
    )
    pairs = products[["n", "k"]].itertuples(index=False, name=None)
    theirs = [rows.gb_s.get(pair) for pair in pairs]
    both = products[["part", "us"]].assign(mb=products.bytes / 1e6, here=_shares(timed, products, read))
    both["laptop"] = [100 * each / rate if each else None for each in theirs]
    heads = {"part": "projection", "mb": "MB", "us": "µs (nsys)", "here": f"{gpu}, %"}
    heads |= {"laptop": "RTX 4070 Laptop, %"}
    forms = dict.fromkeys(("mb", "us"), "{:.1f}") | dict.fromkeys(("here", "laptop"), "{:.0f}")
    title = f"Share of the fitted rate of large products, {own:,.0f} GB/s here and {rate:,.0f} there: "
    title += "here by nsys, there as published"
    display.table(both, heads, forms, title)
    without = both.part[both.laptop.isna()]
    if len(without):
        display.say(f"The laptop's published profile has no row of the size of {listed(without)}.")


def fixed_time(timed: Rows, products: Rows, read: float) -> None:
    """Say what a product costs besides its bytes, and whether that explains a layer's products."""
    fixed, own = launch_rule.line(timed.bytes, timed.median_us, read)
    half = fixed * read * 1e3
    display.say(
        f"The fixed time here is **{fixed:.1f} µs** a product, in which {half / 1e6:.0f} MB could be read at "
        "the roof. For a smaller matrix the fixed time is more than that of its bytes: for every "
        f"product but {listed(products[products.bytes > half].part)}." + _spread(timed, half, own)
    )
    count, bytes_us, took = layer_sum(products, own)
    due = bytes_us + count * fixed
    text = f"Does it add up? The {count} products of a layer need {bytes_us:.0f} µs for their bytes at "
    text += (
        f"{own:,.0f} GB/s, the rate of the fit, and {count} × {fixed:.1f} = {count * fixed:.0f} µs on top: "
    )
    text += f"{due:.0f} µs. In the running model they take {took:.0f}: "
    text += (
        "**the fixed time accounts for what they take beyond their bytes.** "
        + _of_same_shapes(timed, products)
        if explains(count * fixed, due, took)
        else f"the rule gives {due / took:.0%} of that."
    )
    display.say(text)


def _of_same_shapes(timed: Rows, products: Rows) -> str:
    """What the sum of a layer's products tests of a fit to the `timed` ones."""
    inside = products[products.part != "lm_head"]
    fitted, seen = (set(zip(rows.n, rows.k, strict=True)) for rows in (timed, inside))
    text = "The fit holds these shapes, timed alone, so this shows that two clocks agree, and tests no other "
    text += "shape"
    if not seen <= fitted:
        text = "The fit does not hold all of these shapes, so this is a test of it"
    return f"{text}; where single products lie off the line, their errors cancel in the sum."


def _spread(timed: Rows, half: float, rate: float) -> str:
    """How far products of less than `half` bytes, timed alone, are from one fixed time; `rate` in GB/s."""
    left = _beyond(timed, half, rate)
    if len(left) < 2:
        return ""
    most = timed.loc[left.idxmax()]
    return (
        " It is a rule of thumb, for the library chooses a kernel by the shape: the "
        f"{len(left)} smaller ones timed alone take {left.min():.1f} to {left.max():.1f} µs besides their "
        f"bytes, {left.median():.1f} in the median, and most at {int(most.n):,} rows of {int(most.k):,}."
    )


def _beyond(timed: Rows, half: float, rate: float) -> Rows:
    """Microseconds besides their bytes, at `rate` in GB/s, of products of less than `half` bytes."""
    small = timed[timed.bytes < half]
    return small.median_us - small.bytes / rate / 1e3


def layer_sum(products: Rows, rate: float) -> tuple[int, float, float]:
    """How many products a layer has, what their bytes need at `rate` in GB/s, and what they take in the
    model, both in microseconds.
    """
    inside = products[products.part != "lm_head"]
    inside = inside if len(inside) else products
    return len(inside), float(inside.bytes.sum()) / rate / 1e3, float(inside.us.sum())


def explains(fixed: float, due: float, took: float) -> bool:
    """Whether fixed times that are at least a tenth of what products take make it up, with their bytes."""
    return abs(due / took - 1) < 0.1 and fixed > 0.1 * took


def beyond_bytes(here: Lab, products: Rows) -> None:
    """Say how much of the time of cuBLAS's smallest product is the library's, by lesson 03d's kernel with the
    same matrix and an empty node of a graph.
    """
    small, node = products.loc[products.bytes.idxmin()], _node_us(here)
    ours, theirs = _same_matrix(here, int(small.n), int(small.k))
    text = "Whose time is it? "
    if not (ours and theirs):
        text += f"That is not known here: no kernel of our own was timed with the matrix of `{small.part}`."
    else:
        text += (
            f"As nodes of a graph and with the matrix of `{small.part}`, cuBLAS takes {theirs:.1f} µs and "
        )
        text += f"the kernel of [lesson 03d](03d_rows.ipynb) {ours:.1f}, from start to finish"
        text += f" (an empty node: {node:.1f}, [lesson 00b](00b_clocks.ipynb)). " if node else ". "
        text += (
            f"**So the GPU can do the whole product in {ours:.1f} µs; the other "
            f"{round(theirs, 1) - round(ours, 1):.1f} are the library's kernel.** What it does in them "
            "was not measured."
            if theirs > 1.2 * ours
            else "So another kernel would save little of it."
        )
    display.say(text)


def _node_us(here: Lab) -> float | None:
    """Microseconds of an empty node of a graph; None where none was timed."""
    probes = [case for case in here.cases("environment") if case.operator == "touch"]
    probes = here.held("environment", probes)
    if not probes:
        return None
    ways = environment.handovers(here.measure("environment", probes)).set_index("handover").median_us
    return float(ways["node of a graph"]) if "node of a graph" in ways else None


def _same_matrix(here: Lab, n: int, k: int) -> tuple[float | None, float | None]:
    """Microseconds of lesson 03d's kernel and of cuBLAS with one matrix; None for one that was not timed."""
    pair = [case for case in study.ladder("gemv_rows", n, k) if case.impl in (gemv.TUNED, "torch.matmul")]
    pair = here.held("gemv", pair)
    timed = here.measure("gemv", pair).set_index("impl").median_us if pair else {}
    ours, theirs = timed.get(gemv.TUNED), timed.get("torch.matmul")
    return (float(ours) if ours else None, float(theirs) if theirs else None)
