"""What lesson 04 shows first: its ways to multiply, and what INT4 gains by a plain kernel and by the best."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.text import Annotation

from rooflab import studies
from rooflab.lab import Lab
from rooflab.ops import gemv
from rooflab.pages import Opening, Rows, bars
from rooflab.studies import int4 as study
from rooflab.view import display, plot

SOURCE, FASTEST = "decode-roofline's kernel", "fused, fastest rung"
_CALLED = {"torch.matmul": "FP16, cuBLAS", study.TWO_OP: "two-op, our kernel"}
_CALLED |= {study.TWO_OP_TORCH: "two-op in PyTorch"}


def products(here: Lab) -> Rows:
    """Every recorded product of the page's ways, cold by the graph clock: decode-roofline's kernel, the
    fastest of the other fused ones at each shape and number of tokens, and what they are compared with.
    """
    rows = here.store.read("int4")
    rows = rows[(rows["cache"] == "cold") & (rows["clock"] == "graph") & rows["median_us"].notna()]
    source, own = rows["impl"] == "1_warp_row", rows["kind"] == "own"
    called = rows["impl"].map(_CALLED).mask(own, FASTEST).mask(source, SOURCE)
    found = rows.assign(called=called, looped=rows["options"] == "loop=1").dropna(subset="called")
    found = found.sort_values(["n", "k", "looped", "median_us"], ascending=[True, True, False, True])
    return found.drop_duplicates(["called", "n", "k", "batch"]).reset_index(drop=True)


def opening(here: Lab, n: int, k: int) -> Opening:
    """The first screen: the four ways to multiply, and what the plain fused kernel makes of fewer bytes."""
    ways = {"torch.matmul": "FP16, cuBLAS", "1_warp_row": "INT4, fused"}
    ways |= {study.TWO_OP: "INT4, two-op, our kernel", study.TWO_OP_TORCH: "INT4, two-op in PyTorch"}
    rows = here.measure("int4", [c for c in study.ladder(n, k, here.sized) if c.impl in ways])
    by, plain_fp16 = rows.set_index("impl"), _dense_of_ours(here, n, k)
    slower = _longer(by)
    answer = "Not by itself: " if slower else ""
    answer += f"INT4 in groups of 128 takes 1/{16 / (4 + 16 / 128):.1f} of the bytes of FP16"
    if {"1_warp_row", "torch.matmul"} <= set(by.index):
        plain, dense = by.loc["1_warp_row"], by.loc["torch.matmul"]
        answer += f". {'But a' if slower else 'A'} plain kernel that unpacks it while it multiplies (fused) "
        answer += f"takes {plain['median_us']:.1f} µs on the {here.run['gpu']}, FP16 by cuBLAS "
        answer += f"{dense['median_us']:.1f}"
        answer += "".join(f" (by lesson 03d's kernel {us:.1f})" for us in plain_fp16["median_us"])
    answer += f". {ladder_gains(here, n, k)}".rstrip()
    able = (
        "pack weights into four bits with a scale a group, and unpack them",
        "count the bytes that four ways of multiplying move",
        "choose the baseline that makes a speed-up mean something",
    )
    title = f"One token, {n:,} × {k:,} weights"
    drawn = rows[rows["impl"] != study.TWO_OP_TORCH]  # its bar would squash the others
    best = _one_token(here)
    best = best[best["called"].eq(FASTEST) & best["n"].eq(n) & best["k"].eq(k)]
    drawn = pd.concat([plain_fp16, best, drawn]) if len(drawn) else drawn
    drawn = drawn.sort_values("median_us", kind="stable")
    ways |= dict.fromkeys(best["impl"], "INT4, part 04b's best")
    names = [ways.get(i, "FP16, lesson 03d's") for i in drawn["impl"]]
    fig, _ = bars(drawn, names, here.run["gpu"], title)
    least = _bytes_us(drawn, here.roof["dram_read"].value)
    ax = fig.axes[0]
    if len(drawn):
        for text, us, end in zip(_values(ax), drawn["median_us"], drawn["q3_us"], strict=True):
            text.set(text=f"{us:.1f} µs", color="black", fontweight="normal", ha="left", x=5)
            text.xy = (end, text.xy[1])  # beside its bar: within, a mark may cover it
        ax.set_xlim(0, 1.15 * float(drawn["q3_us"].max()))
        mark = {"color": plot.COLOURS[1], "markersize": 15, "markeredgewidth": 3, "zorder": 5}
        ax.plot(least, range(len(least)), "|", label="its bytes at the read roof", **mark)
        fig.legend(loc="outside lower center", fontsize=8, frameon=False)
    said = f"{title} on {here.run['gpu']}, {plot.dates(drawn)}."
    said += " Two-op, our kernel, unpacks the weights to FP16 in memory, and cuBLAS multiplies."
    if study.TWO_OP_TORCH in by.index:
        slow = by.loc[study.TWO_OP_TORCH, "median_us"]
        said += f" Two-op in PyTorch, which is not drawn, takes {slow:.0f} µs."
    return answer, able, (fig, said)


def _values(ax: Axes) -> list[Annotation]:
    """The values that plot.bars wrote at its bars, from the first."""
    return [text for text in ax.texts if isinstance(text, Annotation) and text.get_gid() == "value"]


def _bytes_us(rows: Rows, roof: float) -> list[float]:
    """Microseconds of each row's bytes at the `roof` in GB/s."""
    case = studies.get("int4").case
    moved = [r.bytes if r.operator == "gemv_rows" else study.traffic(case(r.case)) for r in rows.itertuples()]
    return [bytes_ / roof / 1e3 for bytes_ in moved]


def _one_token(here: Lab) -> Rows:
    """The recorded products of one token."""
    found = products(here)
    return found[found["batch"] == 1]


def ladder_gains(here: Lab, n: int, k: int) -> str:
    """How many times as fast as FP16 by cuBLAS the fastest INT4 kernels are, on a matrix of n x k and on the
    largest recorded; empty where neither was recorded.
    """
    by = {name: rows.set_index(["n", "k"]) for name, rows in _one_token(here).groupby("called")}
    ours, dense = (by.get(name, pd.DataFrame()) for name in (FASTEST, _CALLED["torch.matmul"]))
    gains = {at: display.gain(ours.loc[at], dense.loc[at]) for at in ours.index if at in dense.index}
    if not gains:
        return ""
    largest = max(gains, key=lambda shape: shape[0] * shape[1])
    others = f"one of {largest[0]:,} × {largest[1]:,}"
    text = "The best kernels of [part 04b](04b_ladder.ipynb) are "
    if (n, k) not in gains:
        return f"{text}{gains[largest]} times as fast as FP16 by cuBLAS on {others}."
    text += f"{gains[n, k]} times as fast as FP16 by cuBLAS on this matrix"
    return text + (f", and {gains[largest]} times on {others}." if (n, k) != largest else ".")


def _longer(by: Rows) -> bool:
    """Whether the plain fused kernel takes longer than cuBLAS on FP16 weights."""
    both = {"1_warp_row", "torch.matmul"} <= set(by.index)
    return both and bool(by.loc["1_warp_row", "median_us"] > by.loc["torch.matmul", "median_us"])


def _dense_of_ours(here: Lab, n: int, k: int) -> Rows:
    """The row of lesson 03d's last rung on these weights in FP16, cold by the graph clock, where it was
    recorded; none else.
    """
    rung = gemv.LADDERS["gemv_rows"][4].name
    cases = [c for c in here.cases("gemv") if (c.operator, c.impl, c.n, c.k) == ("gemv_rows", rung, n, k)]
    rows = here.measure("gemv", here.held("gemv", [c for c in cases if c.cache == "cold"]))
    return rows[rows["clock"] == "graph"].sort_values("median_us").head(1)
