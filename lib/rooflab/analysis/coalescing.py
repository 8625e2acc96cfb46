"""The products of lesson 03's source, the decoder-throughput specification: x [k] times a row-major matrix
[k, n] of floats, mostly 4096 x 4096, on an RTX 4090. Where its kernels are found in the rows, what their
bytes ask of its card, and what was counted of ours.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import studies
from rooflab.analysis.evidence import Evidence
from rooflab.hardware import device, roofline
from rooflab.studies import gemv

SIZE = 4096  # the source's matrix is SIZE x SIZE
SIZES = (2048, 4096, 8192)  # of its tests E1-E3
WARM = 2048  # small enough for any L2 of tens of MiB
GEMVS = 192  # products a token by its count: 32 layers x 6
CARD = device.get("rtx-4090")  # the card it speaks of

STRIDED, COALESCED = "1_strided", "2_coalesced"  # its kernel before, and the one it designs
FILLED = "5_in_flight"  # it keeps as many warps on an SM whatever the size of a block
PADDED = "6_column_strips"  # it has a padded table in shared memory


def moved(n: int = SIZE) -> float:
    """Bytes of an FP32 product with an n x n matrix."""
    return roofline.gemm_bytes(1, n, n, 4, 4, 4)


def share_of_card(us: float, bytes_: float) -> float:
    """The share of the source's card's datasheet bandwidth at which bytes_ take `us` microseconds."""
    return bytes_ / us / 1e3 / CARD.dram_gb_s


def asks(us: float, n: int = SIZE) -> str:
    """What a time asks of the source's card, in words."""
    gb_s, share = moved(n) / us / 1e3, share_of_card(us, moved(n))
    return f"{us:.4g} µs ask for {gb_s:,.0f} GB/s, {share:.0%} of what its card has"


def square(impl: str, n: int = SIZE, cache: str = "cold") -> dict[str, Any]:
    """The columns by which a contestant (or BEST) is found at n x n, with its default options."""
    facts = {"operator": "gemv", "impl": impl, "n": n, "k": n, "options": ""}
    return facts | {"cache": cache, "clock": "graph"}


def us(evidence: Evidence, impl: str, n: int = SIZE, cache: str = "cold") -> float:
    """A contestant's median in microseconds; NoEvidence if it was not recorded."""
    return evidence.us("gemv", **square(impl, n, cache))


def share(evidence: Evidence, impl: str, n: int = SIZE) -> float:
    """The share of the read roof at which a contestant reads its matrix, cold."""
    return moved(n) / us(evidence, impl, n) / 1e3 / evidence.ceiling("dram_read")


def counter(evidence: Evidence, name: str, impl: str, n: int = SIZE, cache: str = "cold") -> float:
    """One of the profiler's counters; NoEvidence if it was not taken."""
    return evidence.counter("gemv", name, **square(impl, n, cache))


def counters(profile: pd.DataFrame) -> pd.DataFrame:
    """A profile of study gemv with its counters as numbers, and operator, impl, kind, n, cache and options of
    the cases."""
    cases = [studies.get("gemv").case(name) for name in profile["case"]]
    found = profile.copy()
    for name in set(gemv.COUNTERS) & set(found):
        found[name] = pd.to_numeric(found[name], errors="coerce")
    for name in ("operator", "impl", "kind", "n", "cache", "options"):
        found[name] = [getattr(case, name) for case in cases]
    return found


def gather(here: Any) -> Evidence:
    """What a lab holds, or measures, of study gemv at its effort: all its cases, and the counters."""
    rows = here.measure("gemv", here.cases("gemv"))
    profile = here.profile("gemv", gemv.counted(), "ncu", gemv.COUNTERS)
    return Evidence(here.store, {"gemv": rows}, {("gemv", "ncu"): profile})
