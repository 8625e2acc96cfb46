"""What decode-roofline states (sources A and B): an RTX 4070 Laptop GPU decoding Qwen2.5-1.5B, a fused INT4
kernel of a warp a row, and a sweep over batches by CUDA events with warm weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd

from rooflab import device as devices
from rooflab import formats, paths, shapes
from rooflab.analysis import time_breakdown
from rooflab.claims import NoEvidence, about, least, less, more
from rooflab.claims import int4 as claims_int4
from rooflab.claims.scorecard import Asked, Measure, Statement
from rooflab.claims.shelf import LAPTOP, Shelf
from rooflab.record import Store
from rooflab.studies import launch_rule
from rooflab.studies.attribution import MODEL

GPU = "an RTX 4070 Laptop GPU"
MLP, SMALL = (8960, 1536), (1536, 1536)
SOURCE, TWO_OP, CUBLAS = "1_warp_row", "torch.two_op", "torch.matmul"  # its kernel rebuilt; its baselines
CONTEXT = 1024
_SHARE, _TIMES, _US, _GB = "{:.0%}", "{:.2f}×", "{:.1f} µs", "{:,.0f} GB/s"


def _loop(shelf: Shelf, impl: str, shape: tuple[int, int], batch: int, clock: str, cache: str) -> float:
    """Microseconds of the source's kernel, a launch a token, or of a baseline."""
    n, k = shape
    options = {"options": lambda text: str(text or "") in (("loop=1",) if impl == SOURCE else ("", "loop=1"))}
    return shelf.us("int4", impl=impl, n=n, k=k, batch=batch, clock=clock, cache=cache, **options)


def gain(impl: str, shape: tuple[int, int], batch: int, clock: str = "event", cache: str = "warm") -> Measure:
    """How many times as fast as `impl` the source's kernel is there; 1 is level."""
    return lambda shelf: (
        _loop(shelf, impl, shape, batch, clock, cache) / _loop(shelf, SOURCE, shape, batch, clock, cache)
    )


def weight_share(shelf: Shelf) -> float:
    """Share of an eager token's GPU time in weight products."""
    frame = time_breakdown.by_class(shelf.traced(CONTEXT))
    return float(frame[frame["class"] == "weight"]["pct"].sum()) / 100


def share_by_rule(shelf: Shelf) -> float:
    """The same share for the source's card, by lesson 02's rule and its datasheet."""
    trace = shelf.traced(CONTEXT)
    known = launch_rule.rule(trace, MODEL, shelf.ceiling("dram_read"))
    if shelf.spec is None:
        raise NoEvidence("the datasheet of the recorded GPU")
    there = time_breakdown.elsewhere(known, shelf.spec.dram_gb_s, devices.get("rtx-4070-laptop"))
    return there.share(shapes.get(MODEL))


def busy(shelf: Shelf) -> float:
    """Share of the caller's time in which the GPU works, eager decoding."""
    trace = shelf.traced(CONTEXT)
    rows = shelf.rows("attribution", operator="decode", impl="transformers.eager", seq=CONTEXT)
    return float(time_breakdown.busy(rows, trace)["busy_pct"].iloc[0]) / 100


def _product_share(n: int, k: int) -> Measure:
    """Share of the read roof at which cuBLAS reads an FP16 matrix, cold."""
    return lambda shelf: float(
        shelf.rows("gemv", operator="gemv_rows", impl=CUBLAS, n=n, k=k, cache="cold", clock="graph")[
            "roof_fraction"
        ].iloc[0]
    )


def _read_bytes(part: str) -> Measure:
    """Bytes that a product of one token takes from DRAM, counted."""

    def measure(shelf: Shelf) -> float:
        frame = time_breakdown.counters(shelf.table("attribution", "ncu"))
        chosen = frame[(frame["part"] == part) & frame["case"].str.startswith("decode/")]
        if chosen.empty:
            raise NoEvidence(f"no counted launch of {part} in study attribution")
        return float(chosen["dram_bytes"].iloc[0])

    return measure


def intensity(shelf: Shelf) -> float:
    """FLOP a counted byte of a token's weight products: the median over the projections."""
    counted = time_breakdown.counters(shelf.table("attribution", "ncu"))
    counted = counted[counted["case"].str.startswith("decode/")]
    table = time_breakdown.roofline(counted, shelf.traced(CONTEXT), MODEL, shelf.ceiling("dram_read"))
    return float(table["intensity"].median())


def dram_share(shelf: Shelf) -> float:
    """The measured read roof, of the datasheet's bandwidth."""
    if shelf.spec is None:
        raise NoEvidence("the datasheet of the recorded GPU")
    return shelf.ceiling("dram_read") / shelf.spec.dram_gb_s


def _bytes(impl: str, column: str) -> Measure:
    n, k = MLP
    return lambda shelf: float(
        shelf.rows("int4", impl=impl, n=n, k=k, batch=1, clock="graph", cache="cold")[column].iloc[0]
    )


def _fewer(impl: str) -> Measure:
    """How many times the bytes of the fused kernel a way moves, by this course's count."""
    return lambda shelf: _bytes(impl, "predicted_bytes")(shelf) / _bytes(SOURCE, "predicted_bytes")(shelf)


def _fused_share(impl: str | None) -> Measure:
    """Share of the read roof of the source's kernel, or of the fastest rung."""
    n, k = MLP
    more_: dict[str, Any] = {"impl": impl, "options": lambda text: not text} if impl else {}
    return lambda shelf: float(
        shelf.best("int4", n=n, k=k, batch=1, clock="graph", cache="cold", operator="int4", **more_)[
            "roof_fraction"
        ]
    )


def slower_share(shelf: Shelf) -> float:
    """Of all measured points of more than one token: the share at which the best INT4 kernel is slower than
    FP16."""
    rows = shelf.rows("int4", operator="int4", clock="graph", cache="cold")
    points = [p for p in claims_int4.points(rows) if p[2] > 1]
    lost = 0
    for n, k, batch in points:
        here = rows[(rows["n"] == n) & (rows["k"] == k) & (rows["batch"] == batch)]
        own = here[here["kind"] == "own"]["median_us"].min()
        lost += bool(own > here[here["impl"] == CUBLAS]["median_us"].min())
    if not points:
        raise NoEvidence("no product of several tokens in study int4")
    return lost / len(points)


def gated(shelf: Shelf) -> float:
    """Share of own timed rows whose recorded error lies within their budget."""
    rows = shelf.own_timed()
    rows = rows[rows["error_budget"].notna()]
    return float((rows["error"] <= rows["error_budget"]).mean())


def spread(shelf: Shelf) -> float:
    """Share of own timed rows with quartiles around the median of ten samples or more."""
    rows = shelf.own_timed()
    held = (
        (rows["q1_us"] <= rows["median_us"]) & (rows["median_us"] <= rows["q3_us"]) & (rows["samples"] >= 10)
    )
    return float(held.mean())


def monotone(impl: str, shape: tuple[int, int], batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> Measure:
    """Of the steps from batch to batch, the share at which the gain over `impl` falls."""

    def measure(shelf: Shelf) -> float:
        gains = [gain(impl, shape, batch)(shelf) for batch in batches]
        return sum(b < a for a, b in zip(gains, gains[1:], strict=False)) / (len(gains) - 1)

    return measure


def unused_code(shelf: Shelf) -> float:
    """Codes 0 among a quantised matrix, and weights of 0 that do not come back as 0."""
    import numpy as np

    w = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    w[:, 5] = 0
    packed = formats.quantise_int4(w)
    words = packed.qweight.view(np.uint32)
    codes = np.stack([words >> 4 * t & 15 for t in range(8)])
    return float((codes == 0).sum() + (formats.dequantise_int4(packed)[:, 5] != 0).sum())


def widest(shelf: Shelf) -> float:
    """The widest interquartile range of an own kernel by the event clock, of its median."""
    rows = shelf.rows("int4", clock="event", cache="warm", impl=SOURCE)
    return float(((rows["q3_us"] - rows["q1_us"]) / rows["median_us"]).max())


# --- the statements -----------------------------------------------------------------------------------------


def _s(
    id: str,
    line: str,
    group: str,
    says: str,
    lesson: str,
    test: Asked | None = None,
    rescaled: Asked | None = None,
    needs: str = "",
) -> Statement:
    return Statement(f"{id[0]}-{id[1:]}", id[0], line, group, says, lesson, test, rescaled, needs)


_RULE = Asked("share by the rule for that card", _SHARE, about(0.813, 0.1), share_by_rule)

_FIGURES = (
    _s(
        "A1",
        "56, 96",
        "figure",
        "About 81 % of a decoded token's GPU time is in weight products (cuBLAS GEMVs).",
        "02c_rule#The finding",
        Asked("share of eager GPU time", _SHARE, about(0.81), weight_share),
        _RULE,
    ),
    _s(
        "A2",
        "56, 97",
        "figure",
        "The largest MLP product runs at about 95 % of the memory roof.",
        "02b_counters#Small products fall off the roof",
        Asked("cuBLAS 8960 × 1536, share of the read roof", _SHARE, about(0.95, 0.05), _product_share(*MLP)),
    ),
    _s(
        "A3",
        "56, 95, 122",
        "figure",
        "The DRAM ceiling is about 250 GB/s of 256.",
        "01b_roofs#Three opinions on one roof",
        None,
        Asked("read roof over datasheet", _SHARE, about(250 / 256, 0.03), dram_share),
        GPU,
    ),
    _s(
        "A4",
        "56",
        "figure",
        "The fused kernel moves about 8.7 times fewer bytes than two operations.",
        "04_int4#Prediction: four ways, in bytes",
        Asked("fair two-op bytes over fused", _TIMES, about(8.7, 0.05), _fewer("two_op")),
    ),
    _s(
        "A5",
        "97",
        "figure",
        "The MLP product reads 27.5 MB.",
        "02b_counters#Bytes",
        Asked("gate's bytes from DRAM", "{:,.0f}", about(27.5e6, 0.03), _read_bytes("gate")),
    ),
    _s(
        "A6",
        "56, 99",
        "figure",
        "The fused kernel reaches 223 GB/s, 86 % of the hardware's peak.",
        "04_int4#The gate, then the clock",
        None,
        Asked("its kernel here, share of the read roof", _SHARE, about(0.8638, 0.1), _fused_share(SOURCE)),
        GPU,
    ),
    _s(
        "A7",
        "100",
        "figure",
        "It is 90.8 times as fast as a literal two-op product in PyTorch.",
        "04d_published#And ninety times?",
        Asked("by events, warm", _TIMES, about(90.8, 0.2), gain(TWO_OP, MLP, 1)),
        Asked("on the same side of 1", _TIMES, more(1), gain(TWO_OP, MLP, 1)),
    ),
    _s(
        "A8",
        "83, 101",
        "figure",
        "Against FP16 it is 2.38 times as fast at one token.",
        "04d_published#The same, here",
        Asked("by events, warm", _TIMES, about(2.38), gain(CUBLAS, MLP, 1)),
        Asked("on the same side of 1", _TIMES, more(1), gain(CUBLAS, MLP, 1)),
    ),
    _s(
        "A9",
        "83, 101",
        "figure",
        "Against FP16 it loses by two tokens.",
        "04d_published#Where the crossover lies",
        Asked("speed over FP16 at 2 tokens, by events, warm", _TIMES, less(1), gain(CUBLAS, MLP, 2)),
    ),
    _s(
        "A10",
        "88",
        "figure",
        "Products of one token have an arithmetic intensity of about 1 FLOP a byte.",
        "02b_counters#The roofline",
        Asked("FLOP a counted byte", "{:.2f}", about(1.0, 0.1), intensity),
    ),
    _s(
        "A11",
        "61, 65",
        "figure",
        "Those products are not limited by FLOPs but by streaming weights from DRAM.",
        "02b_counters#What the warps wait for",
        Asked(
            "ridge over intensity",
            "{:.0f}×",
            more(10),
            lambda shelf: shelf.ceiling("fp16_tensor") * 1e3 / shelf.ceiling("dram_read") / intensity(shelf),
        ),
    ),
)

_REGIMES = (
    _s(
        "A12",
        "106",
        "regime",
        "One token, large projection: fused wins, for the bytes matter.",
        "04b_ladder#The gate, then the clock",
        Asked(
            "best rung over FP16, cold kernels, 8960 × 1536",
            _TIMES,
            more(1.02),
            lambda shelf: (
                shelf.us("int4", impl=CUBLAS, n=MLP[0], k=MLP[1], batch=1, clock="graph", cache="cold")
                / float(
                    shelf.best(
                        "int4", operator="int4", n=MLP[0], k=MLP[1], batch=1, clock="graph", cache="cold"
                    )["median_us"]
                )
            ),
        ),
    ),
    _s(
        "A13",
        "107",
        "regime",
        "One token, small projection: fused does not beat FP16, launch and per-row costs decide.",
        "07b_predicting#What the sources concluded",
        Asked(
            "fused over FP16 at 1536 × 1536, kernels",
            _TIMES,
            less(1),
            lambda shelf: (
                shelf.us("regimes", impl="cublas", format="fp16", n=1536, k=1536, batch=1, clock="graph")
                / shelf.us("regimes", impl="fused", n=1536, k=1536, batch=1, clock="graph")
            ),
        ),
    ),
    _s(
        "A14",
        "108",
        "regime",
        "More than one token: fused loses to FP16, GEMM is the right primitive.",
        "04c_batch#Asked and reached",
        Asked("lesson 04's points of several tokens, INT4 slower", _SHARE, more(0.5), slower_share),
    ),
    _s(
        "A15",
        "109",
        "regime",
        "Against two operations fused stays ahead, but by less as tokens grow.",
        "04d_published#The same, here",
        Asked("gain at 32 tokens, by events", _TIMES, more(1), gain(TWO_OP, MLP, 32)),
    ),
)

_RULES = (
    _s(
        "A16",
        "134-139",
        "format",
        "Codes run from 1 to 15 about 8, so 0 is unused and a zero weight is exact.",
        "04_int4#The format",
        Asked("codes 0, and zeros not exact", "{:.0f}", less(1), unused_code),
    ),
    _s(
        "A17",
        "143-148, 256",
        "rule",
        "No timing is reported unless a correctness check passes in the same run.",
        "00_environment#No gate, no time",
        Asked("own timed rows within their budget", _SHARE, least(1), gated),
    ),
    _s(
        "A18",
        "258",
        "rule",
        "Median and quartiles, never the best case.",
        "00b_clocks#Claims",
        Asked("own timed rows with quartiles of 10 samples", _SHARE, least(1), spread),
    ),
    _s(
        "A19",
        "122, 259",
        "rule",
        "The roofline uses measured bandwidth, not the datasheet's.",
        "01b_roofs#The device's roof",
        Asked("measured ceilings", "{:.0f}", least(4), lambda shelf: float(len(shelf.roof))),
    ),
    _s(
        "A20",
        "163-176",
        "rule",
        "One command regenerates every result.",
        "00b_clocks#Claims",
        Asked(
            "runs that name their command",
            _SHARE,
            least(1),
            lambda shelf: float((shelf.runs["command"].fillna("") != "").mean()),
        ),
    ),
    _s(
        "A21",
        "79",
        "related",
        "Marlin is near four times FP16 up to 16 to 32 tokens.",
        "09c_related#The libraries",
        None,
        None,
        "Marlin's kernels, which were in no recording",
    ),
)


@functools.cache
def published_sweep() -> pd.DataFrame:
    """The source's two tables, with its gains."""
    return claims_int4.published_sweep(Store(paths.DATA, LAPTOP))


def _rows() -> Iterator[Statement]:
    """Each row of B's tables: on which side of 1 its two gains lie."""
    names = {f"{MLP[0]}×{MLP[1]}": ("MLP", MLP, 37), f"{SMALL[0]}×{SMALL[1]}": ("q/o", SMALL, 47)}
    printed = {  # gains over FP16 as B prints them; the table of small products gives no FP16 times
        ("q/o", 1): 0.75,
        ("q/o", 2): 0.50,
        ("q/o", 4): 0.47,
        ("q/o", 8): 0.31,
        ("q/o", 16): 0.12,
        ("q/o", 32): 0.09,
    }
    for name, (what, shape, line) in names.items():
        mine = published_sweep()
        mine = mine[mine["shape"] == name].reset_index(drop=True)
        for place, (_, row) in enumerate(mine.iterrows()):
            batch = int(row["batch"])
            two_op = float(row["two_op"] / row["fused"])
            halves = float(row["gain"]) if row["gain"] == row["gain"] else printed[what, batch]
            for over, impl, figure in (("two operations", TWO_OP, two_op), ("FP16", CUBLAS, halves)):
                bar = more(1) if figure > 1 else less(1)
                measure = gain(impl, shape, batch)
                yield _s(
                    f"B{what}-{batch}-{'2op' if impl == TWO_OP else 'fp16'}",
                    str(line + place),
                    "sweep",
                    f"{shape[0]} × {shape[1]}, {batch} token{'s' * (batch > 1)}: "
                    f"{figure:.3g} times the speed of {over}.",
                    "04d_published#The same, here",
                    Asked("by events, warm", _TIMES, about(figure, 0.2), measure),
                    Asked("on the same side of 1", _TIMES, bar, measure),
                )


_RESULTS = (
    _s(
        "B1",
        "18, 60",
        "regime",
        "The gain over two operations shrinks because the loop reads the weights once a token.",
        "04c_batch#Read once, on CUDA cores",
        Asked(
            "loop at 32 tokens over 1, cold kernels",
            _TIMES,
            more(16),
            lambda shelf: (
                _loop(shelf, SOURCE, MLP, 32, "graph", "cold") / _loop(shelf, SOURCE, MLP, 1, "graph", "cold")
            ),
        ),
    ),
    _s(
        "B2",
        "56",
        "figure",
        "7.1 MB instead of 27.5 (FP16) or 62 (two operations): 3.9 and 8.7 times fewer.",
        "04_int4#Predicted, then counted",
        Asked("FP16's bytes over fused", _TIMES, about(3.87, 0.05), _fewer(CUBLAS)),
    ),
    _s(
        "B3",
        "61",
        "regime",
        "When the batch grows, reuse raises the intensity and GEMM becomes the right primitive.",
        "07b_predicting#The map against intensity",
        Asked("lesson 04's points of several tokens, INT4 slower", _SHARE, more(0.5), slower_share),
    ),
    _s(
        "B4",
        "62",
        "regime",
        "The small product is not the fused kernel's even at one token, by events.",
        "04d_published#The same, here",
        Asked("by events, warm", _TIMES, less(1), gain(CUBLAS, SMALL, 1)),
    ),
    _s(
        "B5",
        "66-68",
        "spread",
        "Spreads are wide: up to 90 % of a median between the quartiles.",
        "07_regimes#The sweep",
        None,
        Asked("widest, its kernel by events", _SHARE, more(0.3), widest),
        "Windows on a laptop",
    ),
    _s(
        "B6",
        "68",
        "regime",
        "The gain over two operations falls with every step of the batch (both tables).",
        "07b_predicting#What the sources concluded",
        Asked("steps that fall, MLP", _SHARE, least(1), monotone(TWO_OP, MLP)),
    ),
    _s(
        "B7",
        "68",
        "regime",
        "The gain over FP16 is below 1 for every batch above 1.",
        "04d_published#The same, here",
        Asked(
            "largest gain at 2 to 32 tokens, by events, warm",
            _TIMES,
            less(1),
            lambda shelf: max(gain(CUBLAS, MLP, batch)(shelf) for batch in (2, 4, 8, 16, 32)),
        ),
    ),
)

STATEMENTS: tuple[Statement, ...] = (*_FIGURES, *_REGIMES, *_RULES, *_rows(), *_RESULTS)
