"""What lessons 03c and 03d open with."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rooflab import claims
from rooflab.analysis import coalescing
from rooflab.analysis.evidence import Evidence
from rooflab.pages import Opening, Rows
from rooflab.view import page, plot


def on_trial(evidence: Evidence, gpu: str, boards: list[Rows]) -> Opening:
    """The first screen of 03c: how many of the source's claims hold as stated, and where its time went."""
    stated = pd.concat(board[~board["id"].str.contains(" ")] for board in boards)
    held, refuted = ((stated["word"] == word).sum() for word in (claims.HOLDS, claims.REFUTED))
    text = f"A quantity, a bar, and a kernel that would fail: held to its own bars on the {gpu}: "
    text += f"{held} of {len(stated)} claims of the source hold as stated, and {refuted} are refuted."
    able = [
        "turn a claim about speed into a quantity and two bars",
        "see that a bar asks for more than the memory has, before measuring",
        "tell a test that can fail from one that cannot",
    ]
    return text, able, uploaded(evidence, gpu)


def uploaded(evidence: Evidence, gpu: str, n: int = coalescing.SIZE) -> tuple[Figure, str]:
    """One product with the matrix carried over in each call, and with the matrix on the GPU; the caption."""
    uploads = evidence.rows("gemv", operator="upload").copy()
    uploads["name"] = "upload (" + uploads["impl"] + ") + kernel"
    kernels = {"kernel: coalesced": coalescing.COALESCED, "kernel: strided": coalescing.STRIDED}
    alone = pd.DataFrame([evidence.row("gemv", **coalescing.square(impl)) for impl in kernels.values()])
    alone["name"] = list(kernels)
    calls = pd.concat([uploads, alone])
    title = f"One product, {n} × {n}: uploaded or resident"
    fig, ax = plot.figure("ms", title=title, height=2.2)
    low, high = calls["q1_us"] / 1e3, calls["q3_us"] / 1e3
    plot.bars(ax, list(calls["name"]), calls["median_us"] / 1e3, "ms", None, low, high)
    return fig, plot.caption(calls, gpu, title, y="median_us")


def in_rows(rows: Rows, gpu: str, ceiling: float, n: int, k: int) -> Opening:
    """The first screen of 03d: what is left to do when the first mapping is coalesced."""
    own = rows[rows["kind"] == "own"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    text = f"In rows even the first kernel is coalesced, and it reaches {first['roof_fraction']:.0%} of the "
    text += f"read roof on the {gpu}; with wide loads in flight {best['impl']} reaches "
    text += f"{best['roof_fraction']:.0%} of it at {n} × {k}."
    able = [
        "write the GEMV that language models need",
        "predict the time of every matrix of a model from one constant",
        "turn microseconds into tokens a second",
    ]
    chart = page.ladder(rows, gpu, ("read", ceiling, "GB/s"), f"GEMV, {n} × {k} in FP16, cold")
    return text, able, chart
