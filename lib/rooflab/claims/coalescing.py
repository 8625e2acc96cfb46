"""The decoder-throughput specification's hypotheses H1-H5 and tests E1-E12 (lesson 03).

The source traced slow decoding on an RTX 4090 to strided weight reads. It multiplies x [k] by a row-major
matrix A [k, n] of floats, mostly 4096 x 4096. Its bars are numbers for one card; where they ask for more than
that card's memory can give, or where a test cannot tell a good kernel from a bad one, a restatement stands
beside them: in shares of the read roof, which every device can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from rooflab import device, roof, shapes, studies
from rooflab.analysis import token_rate
from rooflab.case import parse_options
from rooflab.claims import Bar, Claim, NoEvidence, less, more
from rooflab.ops.gemv import LADDERS
from rooflab.studies import gemv

SIZE = 4096  # the source's matrix is SIZE x SIZE
SIZES = (2048, 4096, 8192)  # of its tests E1-E3
WARM = 2048  # small enough for any L2 of tens of MiB
GEMVS = 192  # products a token by its count: 32 layers x 6
CARD = device.get("rtx-4090")  # the card it speaks of

STRIDED, COALESCED = "1_strided", "2_coalesced"  # its kernel before, and the one it designs
SCALAR, VECTOR = "3_split_k", "4_vector"  # neighbours that differ in the width of a load
NARROW_ROWS, WIDE_ROWS = "1_warp", "2_vector"  # the same of the FP16 ladder
FILLED = "5_in_flight"  # it keeps as many warps on an SM whatever the size of a block
PADDED = "6_strip"  # it has a padded table in shared memory
BEST = "best"  # whichever own rung is fastest at a size
CUBLAS = "torch.matmul"
BLOCKS = (64, 128, 256, 512, 1024)  # threads a block


def moved(n: int = SIZE) -> float:
    """Bytes of an FP32 product with an n x n matrix."""
    return roof.gemm_bytes(1, n, n, 4, 4, 4)


def share_of_card(us: float, bytes_: float) -> float:
    """The share of the source's card's datasheet bandwidth at which bytes_ take `us` microseconds."""
    return bytes_ / us / 1e3 / CARD.dram_gb_s


FLOOR_US = moved() / CARD.dram_gb_s / 1e3  # reading its matrix takes that card at least so long


@dataclass(frozen=True)
class Evidence:
    """What the claims are judged by: `rows` of FP32 products with [k, n] matrices; `counters` of such cases,
    with columns impl, n, cache, options and the counters as numbers; the read roof in GB/s; `token_shares`,
    the share of the read roof at which one token's products run, by model; `uploads`, rows in which the
    matrix is carried over from the host before the coalesced kernel reads it; and `fp16`, rows of FP16
    products with [n, k] matrices."""

    rows: pd.DataFrame
    counters: pd.DataFrame
    read_gb_s: float
    token_shares: Mapping[str, float] = field(default_factory=dict)
    uploads: pd.DataFrame = field(default_factory=pd.DataFrame)
    fp16: pd.DataFrame = field(default_factory=pd.DataFrame)

    def row(self, impl: str, n: int = SIZE, cache: str = "cold", **wanted: int) -> pd.Series:
        """The row of a rung, a peer or "best" at n x n: of its default options, or one that has those
        wanted; NoEvidence if there is none."""
        rows = self._square(n, cache)
        if impl == BEST:
            rows = rows[rows["kind"] == "own"]
        else:
            rows = rows[rows["impl"] == impl]
            same = [_has(text, wanted) for text in rows["options"]]
            rows = rows.loc[pd.Series(same, index=rows.index, dtype=bool)]
        if rows.empty:
            words = "".join(f" {name}={value}" for name, value in sorted(wanted.items()))
            raise NoEvidence(f"{impl} at {n} x {n}{words}, {cache}, was not measured")
        return rows.sort_values("median_us", kind="stable").iloc[0]

    def _square(self, n: int, cache: str) -> pd.DataFrame:
        rows = self.rows
        chosen = (rows["n"] == n) & (rows["k"] == n) & (rows["cache"] == cache) & (rows["clock"] == "graph")
        return rows[chosen]

    def us(self, impl: str, n: int = SIZE, cache: str = "cold", **wanted: int) -> float:
        """A row's median in microseconds."""
        return float(self.row(impl, n, cache, **wanted)["median_us"])

    def share(self, impl: str, n: int = SIZE) -> float:
        """The share of the read roof at which a contestant reads its matrix, cold."""
        return moved(n) / self.us(impl, n) / 1e3 / self.read_gb_s

    def counter(self, name: str, impl: str, n: int = SIZE, cache: str = "cold") -> float:
        """One of the profiler's counters; NoEvidence if it was not taken."""
        if impl == BEST:
            impl = str(self.row(BEST, n)["impl"])
        rows = self.counters
        if len(rows):
            rows = rows[(rows["impl"] == impl) & (rows["n"] == n) & (rows["cache"] == cache)]
            rows = rows[rows["options"] == ""]
        if rows.empty or name not in rows:
            raise NoEvidence(f"{name} of {impl} at {n} x {n}, {cache}, was not counted")
        return float(rows[name].iloc[0])


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
    """The evidence that a lab holds, or measures: all cases of study gemv at its effort, and the counters."""
    rows = here.measure("gemv", here.cases("gemv"))
    counted_ = counters(here.profile("gemv", gemv.counted(), "ncu", gemv.COUNTERS))
    read = here.roof["dram_read"].value
    models = token_rate.of_models(_tuned(rows), gemv.FAMILIES)
    return Evidence(
        rows[rows["operator"] == "gemv"],
        counted_[counted_["operator"] == "gemv"],
        read,
        dict(zip(models["model"], models["bytes"] / models["us"] / 1e3 / read, strict=True)),
        rows[rows["operator"] == "upload"],
        rows[rows["operator"] == "gemv_rows"],
    )


def _tuned(rows: pd.DataFrame) -> pd.DataFrame:
    """The last rung of the FP16 ladder, cold."""
    last = LADDERS["gemv_rows"][-1].name
    return rows[(rows["operator"] == "gemv_rows") & (rows["impl"] == last) & (rows["cache"] == "cold")]


def _has(text: str, wanted: Mapping[str, int]) -> bool:
    chosen = parse_options(text)
    return all(chosen.get(name) == value for name, value in wanted.items()) if wanted else not chosen


# --- the quantities: each takes the evidence and a contestant -----------------------------------------------

Quantity = Callable[[Evidence, str], float]


def counted(name: str, whole: float = 100) -> Quantity:
    """A counter at SIZE x SIZE, cold, as a share of `whole`."""
    return lambda evidence, subject: evidence.counter(name, subject) / whole


def roof_share(n: int = SIZE) -> Quantity:
    """The share of the read roof at n x n."""
    return lambda evidence, subject: evidence.share(subject, n)


def latency(n: int = SIZE) -> Quantity:
    """Microseconds of one product with an n x n matrix, cold."""
    return lambda evidence, subject: evidence.us(subject, n)


def best_wasteful_share(evidence: Evidence, subject: str) -> float:
    """The best share of the read roof among rungs that use less than half of what they load."""
    rows = evidence.counters
    if rows.empty or "load_efficiency_pct" not in rows:
        raise NoEvidence("load efficiency was not counted")
    wasteful = rows[(rows["n"] == SIZE) & (rows["cache"] == "cold") & (rows["load_efficiency_pct"] < 50)]
    if wasteful.empty:
        raise NoEvidence("no counted rung wastes half of what it loads")
    return max(evidence.share(impl) for impl in wasteful["impl"])


def floors(evidence: Evidence, subject: str) -> float:
    """The time of one product, in units of what its bytes take at the read roof."""
    return 1 / evidence.share(subject)


def rate(evidence: Evidence, subject: str) -> float:
    """Products a second, one after another."""
    return 1e6 / evidence.us(subject)


def over(impl: str) -> Quantity:
    """How many times as fast as another contestant."""
    return lambda evidence, subject: evidence.us(impl) / evidence.us(subject)


def over_narrow_rows(evidence: Evidence, subject: str) -> float:
    """With FP16 rows, how many times as fast as loads of 2 bytes a lane."""
    rows = evidence.fp16
    if len(rows):
        rows = rows[(rows["n"] == SIZE) & (rows["k"] == SIZE) & (rows["cache"] == "cold")]
    times = {} if rows.empty else dict(zip(rows["impl"], rows["median_us"], strict=True))
    if not {NARROW_ROWS, WIDE_ROWS} <= set(times):
        raise NoEvidence(f"the FP16 ladder at {SIZE} x {SIZE} was not measured")
    return float(times[NARROW_ROWS] / times[WIDE_ROWS])


def gain_of_block(evidence: Evidence, subject: str) -> float:
    """The speed with 1024 threads a block, over that with 256."""
    return evidence.us(subject, threads=256) / evidence.us(subject, threads=1024)


def spread_of_blocks(evidence: Evidence, subject: str) -> float:
    """The slowest block size's time, over the fastest's."""
    times = [evidence.us(subject, threads=threads) for threads in BLOCKS]
    return max(times) / min(times)


def shared_efficiency(evidence: Evidence, subject: str) -> float:
    """Used bytes of each shared-memory wavefront, as a share; NoEvidence for a kernel that has none."""
    if not evidence.row(subject)["shared_bytes"] > 0:
        raise NoEvidence(f"{subject} uses no shared memory")
    return evidence.counter("shared_efficiency_pct", subject) / 100


def warm_hits(evidence: Evidence, subject: str) -> float:
    """The L2 hit rate of a product that was just run, as a share; NoEvidence where the profiler's own work
    between two looks has emptied the cache, which the bytes from DRAM tell."""
    if evidence.counter("dram_read_bytes", subject, WARM, "warm") > moved(WARM) / 2:
        raise NoEvidence("nothing was warm: the matrix was read from DRAM")
    return evidence.counter("l2_hit_pct", subject, WARM, "warm") / 100


def cost_of_conflicts(evidence: Evidence, subject: str) -> float:
    """The time without padding, over the time with it."""
    return evidence.us(subject, pad=0) / evidence.us(subject, pad=1)


def bandwidth(evidence: Evidence, subject: str) -> float:
    """GB/s at which the matrix is read."""
    return moved() / evidence.us(subject) / 1e3


def tokens_a_second(evidence: Evidence, subject: str) -> float:
    """Tokens a second by the source's count."""
    return 1e6 / GEMVS / evidence.us(subject)


def of_cublas(evidence: Evidence, subject: str) -> float:
    """The time in units of cuBLAS's, at the worst of the source's three sizes."""
    return max(evidence.us(subject, n) / evidence.us(CUBLAS, n) for n in SIZES)


def whole_decoder(evidence: Evidence, subject: str) -> float:
    """Tokens a second of a decoder: not to be had from products."""
    raise NoEvidence("it takes a whole decoder")


def token_share(model: str) -> Quantity:
    """The share of the read roof at which all products of one token run."""

    def share(evidence: Evidence, subject: str) -> float:
        if model not in evidence.token_shares:
            raise NoEvidence(f"the products of {model} were not all measured")
        return evidence.token_shares[model]

    return share


# --- the claims ---------------------------------------------------------------------------------------------

_HYPOTHESES = "specification v1.3.0, section 3"
_TESTS = "specification v1.3.0, section 7 E, items of v1.2.0"
_MORE_TESTS = "specification v1.3.0, section 10.3"
_SHARE, _TIMES, _MICROSECONDS = "{:.0%}", "{:.2f}x", "{:.1f} µs"
_ROOF = "share of the read roof"


def asks(us: float, n: int = SIZE) -> str:
    """What a time asks of the source's card, in words."""
    gb_s, share = moved(n) / us / 1e3, share_of_card(us, moved(n))
    return f"{us:.4g} µs ask for {gb_s:,.0f} GB/s, {share:.0%} of what its card has"


def _by_the_roof(id: str, says: str, us: float, n: int = SIZE) -> Claim:
    """A bar in microseconds on the source's card, as the share of the roof that it asks for."""
    return Claim(
        id=f"{id} by the roof",
        where=_TESTS,
        says=says,
        quantity=_ROOF if n == SIZE else f"{_ROOF}, {n} x {n}",
        form=_SHARE,
        predicted=more(share_of_card(us, moved(n))),
        measure=roof_share(n),
        subject=BEST,
        restates=id,
        reason=asks(us, n),
    )


HYPOTHESES = (
    Claim(
        id="H1",
        where=_HYPOTHESES,
        says="Reading consecutive addresses raises bandwidth use from 1.4 % to over 90 %.",
        quantity="load efficiency",
        form=_SHARE,
        predicted=more(0.90),
        falsified=less(0.50),
        measure=counted("load_efficiency_pct"),
        subject=COALESCED,
    ),
    Claim(
        id="H1 sufficient",
        where=_HYPOTHESES,
        says="Coalescing brings this kernel to the roof.",
        quantity=_ROOF,
        form=_SHARE,
        predicted=more(0.90),
        falsified=less(0.50),
        measure=roof_share(),
        subject=COALESCED,
        restates="H1",
        reason="the claim speaks of bandwidth, its test of sectors: a kernel can use all it fetches and "
        "fetch little",
    ),
    Claim(
        id="H1 necessary",
        where=_HYPOTHESES,
        says="Without coalescing no kernel comes near the roof.",
        quantity="best share of the roof at under half the load efficiency",
        form=_SHARE,
        predicted=less(0.50),
        falsified=more(0.90),
        measure=best_wasteful_share,
        subject="all rungs",
        restates="H1",
        reason="the other half of the claim, which its test does not touch",
    ),
    Claim(
        id="H2",
        where=_HYPOTHESES,
        says=f"The coalesced kernel takes under 50 µs at {SIZE} x {SIZE}.",
        quantity="time",
        form=_MICROSECONDS,
        predicted=less(50),
        falsified=more(100),
        measure=latency(),
        subject=COALESCED,
    ),
    Claim(
        id="H2 by the floor",
        where=_HYPOTHESES,
        says="A good kernel comes near the time that its bytes take at the roof.",
        quantity="time over floor",
        form="{:.2f}",
        predicted=less(1 / 0.9),
        falsified=more(100 / FLOOR_US),
        measure=floors,
        subject=BEST,
        restates="H2",
        reason=f"reading the matrix takes that card {FLOOR_US:.1f} µs, and {asks(50)}; in units of that "
        "floor the source's own bars are the 90 % of H1 and its 100 µs",
    ),
    Claim(
        id="H3",
        where=_HYPOTHESES,
        says="LLaMA-7B decodes at over 200 tokens a second.",
        quantity="tokens a second",
        form="{:,.0f}",
        predicted=more(200),
        falsified=less(150),
        measure=whole_decoder,
        subject=COALESCED,
    ),
    Claim(
        id="H3 as refined",
        where="specification v1.3.0, section 10.2",
        says=f"The coalesced kernel does over 10,000 products of {SIZE} x {SIZE} a second.",
        quantity="products a second",
        form="{:,.0f}",
        predicted=more(10_000),
        measure=rate,
        subject=COALESCED,
        restates="H3",
        reason="the source's own refinement, since tokens depend on much that it leaves out",
    ),
    Claim(
        id="H4",
        where=_HYPOTHESES,
        says="128-bit loads bring two to four times the bandwidth of 32-bit loads.",
        quantity="speed over 32-bit loads",
        form=_TIMES,
        predicted=more(2.0),
        falsified=less(1.5),
        measure=over(SCALAR),
        subject=VECTOR,
    ),
    Claim(
        id="H4 worth it",
        where=_HYPOTHESES,
        says="128-bit loads are faster than 32-bit loads.",
        quantity="speed over 32-bit loads",
        form=_TIMES,
        predicted=more(1.02),
        falsified=less(1 / 1.02),
        measure=over(SCALAR),
        subject=VECTOR,
        restates="H4",
        reason="H1 and H4 exclude each other: 90 % of the roof with 32-bit loads leaves "
        f"{1 / 0.9:.2f}x to gain",
    ),
    Claim(
        id="H4 in rows",
        where=_HYPOTHESES,
        says="For the rows that models store, 16 bytes a lane are twice as fast as 2.",
        quantity="speed over 2-byte loads, FP16",
        form=_TIMES,
        predicted=more(2.0),
        falsified=less(1.5),
        measure=over_narrow_rows,
        subject=WIDE_ROWS,
        restates="H4",
        reason="a wider load puts more bytes under way for each thread, which helps where no threads are "
        "given up for it",
    ),
    Claim(
        id="H5",
        where=_HYPOTHESES,
        says="More than half occupancy does not help: 1024 threads a block are not 20 % faster than 256.",
        quantity="speed of 1024 threads over 256",
        form=_TIMES,
        predicted=less(1.2),
        measure=gain_of_block,
        subject=COALESCED,
    ),
    Claim(
        id="H5 two-sided",
        where=_HYPOTHESES,
        says="On a grid that fills the GPU, 64 to 1024 threads a block do equally well.",
        quantity="slowest over fastest block size",
        form=_TIMES,
        predicted=less(1.2),
        measure=spread_of_blocks,
        subject=FILLED,
        restates="H5",
        reason="the test sees a gain and is blind to a loss, and it is put to a kernel that leaves most of "
        "the GPU empty at any size",
    ),
)


def _test(
    id: str,
    says: str,
    quantity: str,
    form: str,
    predicted: Bar,
    measure: Quantity,
    points: int | None = None,
) -> Claim:
    where = _MORE_TESTS if points else _TESTS
    return Claim(id, where, says, quantity, form, predicted, measure, COALESCED, points=points)


_TIMED = (("E1", 4096, 100), ("E2", 2048, 30), ("E3", 8192, 300))

TESTS = (
    *(
        _test(id, f"{n} x {n} takes under {us} µs.", f"time, {n} x {n}", _MICROSECONDS, less(us), latency(n))
        for id, n, us in _TIMED
    ),
    _test("E4", "Over 10,000 products a second.", "products a second", "{:,.0f}", more(10_000), rate),
    _test("E5", "The matrix is read at over 800 GB/s.", "GB/s", "{:,.0f}", more(800), bandwidth),
    _test(
        "E6",
        "Loads are over 90 % efficient.",
        "load efficiency",
        _SHARE,
        more(0.9),
        counted("load_efficiency_pct"),
    ),
    _test(
        "E7",
        f"At {GEMVS} products a token, over 50 tokens a second.",
        "tokens a second",
        "{:,.0f}",
        more(50),
        tokens_a_second,
    ),
    _test(
        "E8",
        "Ten times the speed of the strided kernel.",
        "speed over strided",
        _TIMES,
        more(10),
        over(STRIDED),
    ),
    _test(
        "E9", "Within 1.5 times cuBLAS's time.", "time over cuBLAS's", _TIMES, less(1.5), of_cublas, points=3
    ),
    _test(
        "E10",
        "Shared memory is over 90 % efficient.",
        "shared efficiency",
        _SHARE,
        more(0.9),
        shared_efficiency,
        points=2,
    ),
    _test("E11", "L2 serves over half.", "L2 hit rate", _SHARE, more(0.5), counted("l2_hit_pct"), points=2),
    _test(
        "E12",
        "Warps are over 90 % full.",
        "warp efficiency",
        _SHARE,
        more(0.9),
        counted("threads_per_inst", 32),
        points=2,
    ),
)

_TOKEN_US = 1e6 / 50 / GEMVS  # what E7's 50 tokens a second leave each product

RESTATED_TESTS = (
    *(
        _by_the_roof(id, f"{n} x {n} at the share of the roof that it asked of its card.", us, n)
        for id, n, us in _TIMED
    ),
    _by_the_roof("E4", "As many products a second as that asks of its card.", 100),
    _by_the_roof("E5", "The matrix is read at the share that 800 GB/s are of its card.", moved() / 800e3),
    Claim(
        id="E7 by the models",
        where=_TESTS,
        says="LLaMA-2-7B's own products at the share of the roof that 50 tokens a second ask.",
        quantity=_ROOF,
        form=_SHARE,
        predicted=more(share_of_card(_TOKEN_US, moved())),
        measure=token_share("llama-2-7b"),
        subject=BEST,
        restates="E7",
        reason="a layer has 7 projections and not 6, which makes "
        f"{shapes.gemvs(shapes.get('llama-2-7b'))} products a token; {asks(_TOKEN_US)}",
    ),
    Claim(
        id="E8 by the best",
        where=_TESTS,
        says="The best kernel has ten times the speed of the strided one.",
        quantity="speed over strided",
        form=_TIMES,
        predicted=more(10),
        measure=over(STRIDED),
        subject=BEST,
        restates="E8",
        reason="the source's baseline has the size of an upload, not of a kernel",
    ),
    Claim(
        id="E9 by the best",
        where=_MORE_TESTS,
        says="The best kernel is no slower than cuBLAS.",
        quantity="time over cuBLAS's",
        form=_TIMES,
        predicted=less(1.02),
        falsified=more(1.5),
        measure=of_cublas,
        subject=BEST,
        restates="E9",
        reason="whoever writes a kernel of one's own should want more than 1.5 times the library's time",
    ),
    Claim(
        id="E10 by padding",
        where="specification v1.2.0, section 10.6",
        says="Bank conflicts cost a factor of two to four.",
        quantity="time unpadded over padded",
        form=_TIMES,
        predicted=more(2.0),
        measure=cost_of_conflicts,
        subject=PADDED,
        restates="E10",
        reason="what conflicts cost is seen by taking them away",
    ),
    Claim(
        id="E11 cold",
        where=_MORE_TESTS,
        says="A product that reads each weight once finds little of it in L2.",
        quantity="L2 hit rate, cold",
        form=_SHARE,
        predicted=less(0.10),
        falsified=more(0.50),
        measure=counted("l2_hit_pct"),
        subject=BEST,
        restates="E11",
        reason="what is read once cannot be found in a cache, so a hit rate over half means that sectors are "
        "fetched twice, or that nobody emptied the cache",
        opposes=True,
    ),
    Claim(
        id="E11 warm",
        where=_MORE_TESTS,
        says="Run again at once, it finds over half.",
        quantity=f"L2 hit rate, warm, {WARM} x {WARM}",
        form=_SHARE,
        predicted=more(0.50),
        measure=warm_hits,
        subject=COALESCED,
        restates="E11",
        reason="that is what a hit rate over half asks for, though no decoder reads the same weights twice "
        "running",
    ),
)
