"""The root-cause story's five whys as measurements, and the one that was not asked (lesson 03)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rooflab.analysis import coalescing
from rooflab.analysis.coalescing import CARD, COALESCED, GEMVS, SIZE, STRIDED, moved, share_of_card
from rooflab.analysis.evidence import BEST, Evidence, NoEvidence
from rooflab.ops import gemv
from rooflab.studies.gemv import first_request


class Published(NamedTuple):
    """What the source reports: its strided product, its target, and its coalesced kernel with weights that
    stay on the GPU and with a copy of them in each call, in microseconds; the tokens a second of its
    symptoms."""

    strided_us: float
    target_us: float
    resident_us: float
    uploading_us: float
    tok_s: float


def published(products: pd.DataFrame, decode: pd.DataFrame) -> Published:
    """The source's figures from the rows of studies gemv and decode of the published device."""
    rows = products.set_index("impl")
    us = rows["median_us"].to_dict()
    target, tok_s = float(rows["predicted_us"].max()), float(decode["tok_s"].max())
    return Published(us["strided"], target, us["coalesced"], us["coalesced_uploading"], tok_s)


def whys(evidence: Evidence, source: Published) -> pd.DataFrame:
    """One row a why: the question, the source's answer, what its own numbers say, and what was measured."""
    asked: tuple[tuple[str, str, str, Callable[[], str]], ...] = (
        (
            "Why is decoding slow?",
            f"A token takes {GEMVS} products.",
            f"{GEMVS} × {source.strided_us / 1e3:.2f} ms leave {1e6 / GEMVS / source.strided_us:.2g} tokens "
            f"a second; its table of symptoms says {source.tok_s:g}",
            lambda: _token(evidence),
        ),
        (
            "Why is a product slow?",
            "1.4% of the bandwidth is used.",
            f"{moved() / 1e6:.1f} MB in {source.strided_us / 1e3:.2f} ms are "
            f"{moved() / source.strided_us / 1e3:.1f} GB/s, "
            f"{share_of_card(source.strided_us, moved()):.1%} of its card's {CARD.dram_gb_s:,.0f}",
            lambda: _bandwidth(evidence),
        ),
        (
            "Why so little bandwidth?",
            "Its loads are not coalesced.",
            "no count of sectors",
            lambda: _sectors(evidence),
        ),
        (
            "Why are they not?",
            "A warp has a column, so its lanes are a row apart.",
            f"{4 * SIZE // 1024} KiB from lane to lane",
            lambda: _stride(),
        ),
        (
            "Why a warp a column?",
            "It was simplest.",
            "no number",
            lambda: _lines(evidence),
        ),
        (
            "Was it the kernel at all?",
            "Not asked.",
            f"its coalesced kernel takes {source.uploading_us / 1e3:.2f} ms with a copy of the weights, "
            f"{source.resident_us / 1e3:.2f} once they stay on the GPU",
            lambda: _upload(evidence),
        ),
    )
    rows = []
    for why, answer, theirs, measure in asked:
        try:
            here = measure()
        except NoEvidence as missing:
            here = f"not measured: {missing}"
        rows.append({"why": why, "answer": answer, "theirs": theirs, "here": here})
    return pd.DataFrame(rows)


def _token(evidence: Evidence) -> str:
    strided, best = (GEMVS * coalescing.us(evidence, impl) / 1e3 for impl in (STRIDED, BEST))
    return (
        f"{GEMVS} products take {strided:.1f} ms strided, {best:.1f} ms by the best rung: "
        f"{1e3 / strided:,.0f} and {1e3 / best:,.0f} tokens a second"
    )


def _bandwidth(evidence: Evidence) -> str:
    gb_s = moved() / coalescing.us(evidence, STRIDED) / 1e3
    return (
        f"the strided rung reads {gb_s:,.0f} GB/s, {coalescing.share(evidence, STRIDED):.0%} of the read roof"
    )


def _sectors(evidence: Evidence) -> str:
    names = ("load_sectors_per_request", "load_efficiency_pct", "l2_hit_pct", "dram_read_bytes")
    sectors, used, hits, read = (coalescing.counter(evidence, name, STRIDED) for name in names)
    return (
        f"{sectors:.0f} sectors a load on average, {used:.0f}% of their bytes used; but L2 serves "
        f"{hits:.0f}%, and the matrix leaves DRAM {read / moved():.2f} times"
    )


def _stride() -> str:
    rung = gemv.LADDERS["gemv"][0]
    offsets, _ = first_request(rung, SIZE, SIZE, rung.with_defaults({}))
    return f"{(offsets[1] - offsets[0]) // 1024} KiB in our rung too: the address pattern is the same"


def _lines(evidence: Evidence) -> str:
    best = str(evidence.row("gemv", **coalescing.square(BEST))["impl"])
    first, last = (next(r for r in gemv.LADDERS["gemv"] if r.name == name) for name in (STRIDED, best))
    return f"{first.name} has {_code(first.path)} lines without comments, {last.name} {_code(last.path)}"


def _code(path: Path) -> int:
    lines = (line.strip() for line in path.read_text().splitlines())
    return sum(bool(line) and not line.startswith("//") for line in lines)


def _upload(evidence: Evidence) -> str:
    call = evidence.us("gemv", operator="upload", impl="pageable")
    kernel = coalescing.us(evidence, COALESCED)
    return (
        f"carried over from pageable memory in every call, {call / 1e3:.2f} ms; the coalesced kernel is "
        f"{kernel / 1e3:.2f} ms of it, {kernel / call:.0%}"
    )
