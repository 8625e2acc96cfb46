"""What lesson 07 computes from recordings: sweeps, crossovers by every clock, what a prediction is worth on a
GPU that it has not seen, what lost, and the map of every GPU in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rooflab.errors import UsageError
from rooflab.hardware import crossover, perf_model, roofline
from rooflab.hardware.perf_model import Machine, strategy
from rooflab.studies import regimes

OTHERS = ("gemv", "int4", "mmq")  # studies whose rows are products too
COLUMNS = (  # of the source's own table
    *("shape", "batch", "N", "K", "correctness_max_abs"),
    *("two_op_median_us", "two_op_iqr_us", "two_op_effective_GBps"),
    *("fused_median_us", "fused_iqr_us", "fused_effective_GBps", "fused_pct_roofline"),
    *("fp16_gemm_median_us", "fp16_gemm_iqr_us", "fp16_gemm_effective_GBps"),
    *("speedup_vs_two_op", "speedup_vs_fp16_gemm"),
)


# What figures and tables call a way to multiply; the others by their own name.
_NAMES = {
    "cublas": "cuBLAS",
    "gemv": "GEMV",
    "two_op": "two-op",
    "fused_rows": "fused in rows",
    "mma": "int8 small tiles",
    "mmq": "int8 large tiles",
    "mmq_blocks": "int8 blocks",
    "mmq_wgmma": "int8 wgmma",
    "mmq_fp16_wgmma": "FP16 wgmma",
    "mmq_tiles": "FP16 wgmma in tiles",
}


def label(format: str, name: str) -> str:
    """A way to multiply as figures and tables name it: "INT4 fused", "Q8_0 int8 small tiles"."""
    known = {"fp16": "FP16", "int4_g128": "INT4", "q8_0": "Q8_0"}
    return f"{known.get(format, format)} {_NAMES.get(name, name)}"


def gather(lab: Any, shape: tuple[int, int] | None = None) -> pd.DataFrame:
    """Every cold product that a rooflab.lab.Lab holds or measures, by way and clock (regimes.gathered), with
    `label`; those of `shape` (n, k) among them, also where the study's list lacks it.
    """
    cases = lab.cases("regimes")
    if shape and shape not in {(case.n, case.k) for case in cases}:
        tokens = sorted({case.batch for case in cases if (case.n, case.k) == regimes.SOURCE[0]})
        clocks = regimes.CLOCKS if lab.effort == "full" else regimes.CLOCKS[:1]
        cases += regimes.products_of(shape, tokens, lab.sized, clocks)
    tables = [lab.measure("regimes", cases), *(lab.store.read(name) for name in OTHERS)]
    rows = regimes.gathered(tables)
    return rows.assign(label=[label(f, w) for f, w in zip(rows["format"], rows["impl"], strict=True)])


def machine(lab: Any) -> Machine:
    """The lab's GPU by its measured roofs; what was not measured by the datasheet, if the table of devices
    holds one.
    """
    names = ("dram_read", "fp32", "fp16_tensor", "int8_tensor")
    found = {name: lab.roof[name].value for name in names if name in lab.roof}
    if lab.spec is not None:
        return perf_model.measured(found, lab.spec)
    lacking = [name for name in names if name not in found]
    if lacking:
        raise UsageError(
            f"This GPU is not in the table of devices and its roofs are not measured ({', '.join(lacking)}): "
            "record lesson 01 first."
        )
    peaks = {name: found[name] for name in ("fp32", "fp16_tensor", "int8_tensor")}
    return Machine(int(lab.run["sms"]), found["dram_read"], peaks)


def of(rows: pd.DataFrame, format: str, name: str, shape: tuple[int, int], clock: str) -> pd.DataFrame:
    """One way's rows on one shape by one clock, a row a number of tokens, in order."""
    chosen = (rows["format"] == format) & (rows["impl"] == name) & (rows["clock"] == clock)
    chosen &= (rows["n"] == shape[0]) & (rows["k"] == shape[1])
    return rows[chosen].sort_values("batch")


def fastest_fused(rows: pd.DataFrame, format: str, shape: tuple[int, int]) -> pd.DataFrame:
    """Of the rows of one clock, a format's fastest on a shape at each number of tokens, in order: without
    the two-op product, and without the GEMV, which takes one token alone.
    """
    mine = rows[(rows["format"] == format) & (rows["n"] == shape[0]) & (rows["k"] == shape[1])]
    mine = mine[~mine["impl"].isin(("two_op", "gemv")) & mine["median_us"].notna()]
    return mine.sort_values("median_us").drop_duplicates("batch").sort_values("batch")


def sweep(rows: pd.DataFrame, shape: tuple[int, int], read_gb_s: float, clock: str = "graph") -> pd.DataFrame:
    """The source's table of 17 columns for one shape: fused INT4, the two-op product and FP16 over tokens,
    as far as all three were measured.
    """
    n, k = shape
    ways = {
        "two_op": ("int4_g128", "two_op"),
        "fused": ("int4_g128", "fused"),
        "fp16_gemm": ("fp16", "cublas"),
    }
    found: dict[str, pd.DataFrame] = {}
    for name, (format, impl) in ways.items():
        mine = of(rows, format, impl, shape, clock).set_index("batch")
        moved = [perf_model.moved(strategy(format, impl), n, k, int(b)) for b in mine.index]
        part = pd.DataFrame(index=mine.index)
        part[f"{name}_median_us"] = mine["median_us"]
        part[f"{name}_iqr_us"] = mine["q3_us"] - mine["q1_us"]
        part[f"{name}_effective_GBps"] = moved / mine["median_us"] / 1e3
        found[name] = part.assign(error=mine["error"])
    table = pd.concat([part.drop(columns="error") for part in found.values()], axis=1, join="inner")
    table["fused_pct_roofline"] = 100 * table["fused_effective_GBps"] / read_gb_s
    table["correctness_max_abs"] = found["fused"]["error"]
    for other in ("two_op", "fp16_gemm"):
        table[f"speedup_vs_{other}"] = table[f"{other}_median_us"] / table["fused_median_us"]
    table = table.reset_index().assign(shape=f"{n}x{k}", N=n, K=k)
    return table[list(COLUMNS)]


# --- crossovers ---------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Two ways, the one that should win at few tokens first."""

    first: tuple[str, str]
    second: tuple[str, str]

    @property
    def names(self) -> tuple[str, str]:
        return label(*self.first), label(*self.second)


PAIRS = (
    Pair(("int4_g128", "fused"), ("fp16", "cublas")),
    Pair(("int4_g128", "fused"), ("int4_g128", "two_op")),
    Pair(("q8_0", "dp4a"), ("q8_0", "mma")),
    Pair(("q8_0", "mma"), ("q8_0", "mmq_fp16_wgmma")),
    Pair(("q8_0", "mmq"), ("q8_0", "two_op")),
    Pair(("q8_0", "mmq_fp16_wgmma"), ("q8_0", "two_op")),
    Pair(("q8_0", "mma"), ("fp16", "cublas")),
    Pair(("int4_g128", "two_op"), ("fp16", "cublas")),
)


def crossovers(
    rows: pd.DataFrame,
    shape: tuple[int, int],
    pairs: Iterable[Pair] = PAIRS,
    clocks: Sequence[str] = regimes.CLOCKS,
) -> pd.DataFrame:
    """One row a pair and clock: first, second (labels), clock, kind, low, high, at, noise, tokens (how many
    numbers of tokens both have), tied, at how many of them neither is faster, says, the finding in words,
    and least, the fewest tokens both have.
    """
    found = []
    for pair in pairs:
        for clock in clocks:
            ours, theirs = (of(rows, *each, shape, clock) for each in pair)
            crossing = crossover.between(ours, theirs)
            if not crossing.verdicts:
                continue
            names = pair.names
            facts = (crossing.kind, crossing.low, crossing.high, crossing.at, crossing.noise)
            least = int(ours[ours["batch"].isin(theirs["batch"])]["batch"].min())
            words = [word for _, word in crossing.verdicts]
            tied = words.count(crossover.NEITHER)
            found.append((*names, clock, *facts, len(words), tied, crossing.says(*names), least))
    columns = ["first", "second", "clock", "kind", "low", "high", "at", "noise", "tokens", "tied"]
    return pd.DataFrame(found, columns=[*columns, "says", "least"])


WINS, UNDECIDED = "wins", "ahead or undecided"  # at every number of tokens, and at those that decide


def briefly(crossing: pd.Series) -> str:
    """One finding of `crossovers` in a word or two: from how many tokens on the second is faster."""
    if crossing["kind"] == "crosses":
        return f"{crossing['low']:.0f} to {crossing['high']:.0f}"
    words = {crossover.FIRST: f"first {WINS}", crossover.SECOND: f"second {WINS}", crossover.NEITHER: "level"}
    return words.get(str(crossing["kind"]), "no order")


def by_clock(table: pd.DataFrame) -> pd.DataFrame:
    """`crossovers` with a column a clock, each finding briefly: who wins, or is ahead where decided."""
    brief = [briefly(row) for _, row in table.iterrows()]
    tied = zip(brief, table["tied"], strict=True)
    wide = table.assign(brief=[text.replace(WINS, UNDECIDED) if some else text for text, some in tied])
    wide = wide.pivot_table("brief", ["first", "second"], "clock", aggfunc="first", sort=False)
    return wide.reindex(columns=[c for c in regimes.CLOCKS if c in wide]).reset_index()


def loop_crossovers(rows: pd.DataFrame, shape: tuple[int, int]) -> pd.DataFrame:
    """The source's own experiment in the study int4's rows: its fused kernel launched once a token against
    cuBLAS in FP16, by clock and cache (columns clock, cache, kind, low, high, at, noise, says).
    """
    mine = rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1])]
    found = []
    for (clock, cache), part in mine.groupby(["clock", "cache"], sort=False):
        loops = part[part["options"].astype(str).str.contains("loop=1")]
        halves = part[part["impl"] == "torch.matmul"].drop_duplicates("batch")
        if len(loops) < 3 or halves.empty:
            continue
        crossing = crossover.between(loops, halves)
        facts = (crossing.kind, crossing.low, crossing.high, crossing.at, crossing.noise)
        found.append((clock, cache, *facts, crossing.says("the source's kernel", label("fp16", "cublas"))))
    columns = ["clock", "cache", "kind", "low", "high", "at", "noise", "says"]
    return pd.DataFrame(found, columns=columns)


def gains(rows: pd.DataFrame, format: str, clock: str = "graph") -> pd.DataFrame:
    """How many times as fast as cuBLAS in FP16 the fastest way of a format is: a row a matrix (n, k, mb of
    its FP16 weights), a column a number of tokens.
    """
    mine = rows[(rows["clock"] == clock) & (rows["study"] == "regimes")]
    keys = ["n", "k", "batch"]
    best = mine[mine["format"] == format].groupby(keys)["median_us"].min()
    halves = mine[(mine["format"] == "fp16") & (mine["impl"] == "cublas")].groupby(keys)["median_us"].min()
    wide = (halves / best).dropna().unstack("batch").reset_index()
    wide.insert(2, "mb", (wide["n"] * wide["k"] * 2 / 1e6).astype(float))
    return wide.sort_values("mb", ignore_index=True)


def standings(rows: pd.DataFrame, format: str, batch: int, clock: str = "graph") -> list[str]:
    """How the fastest way of a format stands against cuBLAS in FP16 at a number of tokens, a word of
    `crossover.verdict` a matrix.
    """
    mine = rows[(rows["clock"] == clock) & (rows["study"] == "regimes") & (rows["batch"] == batch)]
    halves = mine[(mine["format"] == "fp16") & (mine["impl"] == "cublas")]
    best, cublas = (
        part.sort_values("median_us").drop_duplicates(["n", "k"]).set_index(["n", "k"])
        for part in (mine[mine["format"] == format].dropna(subset="median_us"), halves)
    )
    return [
        crossover.verdict(best.loc[shape], cublas.loc[shape])
        for shape in best.index.intersection(cublas.index)
    ]


def over_gemv(gain: pd.DataFrame, rows: pd.DataFrame, clock: str = "graph") -> pd.Series:
    """A format's `gains` at one token over the FP16 GEMV instead of cuBLAS, by matrix (n, k), as far as that
    was measured.
    """
    mine = rows[(rows["clock"] == clock) & (rows["study"] == "regimes") & (rows["batch"] == 1)]
    us = mine[mine["format"] == "fp16"].pivot_table("median_us", ["n", "k"], "impl")
    if 1 not in gain.columns or not {"cublas", "gemv"} <= set(us.columns):
        return pd.Series(dtype=float)
    return (gain.set_index(["n", "k"])[1] * us["gemv"] / us["cublas"]).dropna()


def winners(rows: pd.DataFrame, shape: tuple[int, int], clock: str = "graph") -> pd.DataFrame:
    """The fastest way of all formats at every number of tokens (batch, label, median_us), and the fastest of
    each format (a column a format).
    """
    mine = rows[(rows["clock"] == clock) & (rows["n"] == shape[0]) & (rows["k"] == shape[1])]
    mine = mine.sort_values("median_us", kind="stable")
    first = mine.drop_duplicates("batch").set_index("batch")[["label", "median_us"]]
    each = mine.drop_duplicates(["batch", "format"]).pivot(index="batch", columns="format", values="impl")
    return first.join(each).sort_index().reset_index()


def overhead(rows: pd.DataFrame, shape: tuple[int, int]) -> pd.DataFrame:
    """What a call costs beside its kernels: for each way on one shape the median over tokens of each clock,
    and of event and wall less graph (columns label, graph, event, wall, event_more, wall_more), without the
    tokens at which a pass was `disturbed`; empty unless all three clocks were read.
    """
    mine = rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1])]
    columns = ["label", "graph", "event", "wall", "event_more", "wall_more"]
    if not set(regimes.CLOCKS) <= set(mine["clock"]):
        return pd.DataFrame(columns=columns)
    # What kept the host busy in one pass is no cost of a call.
    mine = mine[~mine["batch"].isin(disturbed(rows, shape)["batch"])]
    wide = mine.pivot_table("median_us", ["label", "batch"], "clock").dropna()
    wide["event_more"] = wide["event"] - wide["graph"]
    wide["wall_more"] = wide["wall"] - wide["graph"]
    table = wide.groupby("label").median().reset_index()
    return table[columns].sort_values("wall_more")


def disturbed(rows: pd.DataFrame, shape: tuple[int, int]) -> pd.DataFrame:
    """Tokens at which a way of `shape` (n, k) took clearly longer by `event` than by `wall`, beyond
    their quartiles: columns batch, disturbed, and pairs, among which those are. The host's clock includes
    what the GPU's stamps enclose, so in such a pair one of the two was disturbed.
    """
    mine = rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1]) & (rows["study"] == "regimes")]
    keys = ["format", "impl", "batch"]
    event, wall = (mine[mine["clock"] == clock].set_index(keys) for clock in ("event", "wall"))
    both = event.join(wall[["q3_us"]].rename(columns={"q3_us": "wall_q3_us"}), how="inner").reset_index()
    both["disturbed"] = both["q1_us"] > both["wall_q3_us"]
    found = (
        both.groupby("batch").agg(disturbed=("disturbed", "sum"), pairs=("disturbed", "size")).reset_index()
    )
    return found[found["disturbed"] > 0]


def lost(rows: pd.DataFrame, clock: str = "graph") -> pd.DataFrame:
    """What lost, a row a way of ours: the product (label, n, k, batch) at which it was slowest against the
    fastest way of its format, by how many times, and who won there (columns label, losses, of, n, k, batch,
    times, winner).
    """
    mine = rows[rows["clock"] == clock].copy()
    keys = ["format", "n", "k", "batch"]
    best = mine.sort_values("median_us").drop_duplicates(keys)[[*keys, "median_us", "label"]]
    both = mine.merge(best, on=keys, suffixes=("", "_best"))
    both["times"] = both["median_us"] / both["median_us_best"]
    found = []
    for name, part in both[both["kind"] == "own"].groupby("label", sort=False):
        worst = part.sort_values("times", kind="stable").iloc[-1]
        losses = int((part["times"] > crossover.LEVEL).sum())
        if losses:
            sizes = (int(worst["n"]), int(worst["k"]), int(worst["batch"]))
            found.append((name, losses, len(part), *sizes, float(worst["times"]), worst["label_best"]))
    columns = ["label", "losses", "of", "n", "k", "batch", "times", "winner"]
    return pd.DataFrame(found, columns=columns).sort_values("times", ascending=False, ignore_index=True)


def intensity(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `intensity`, FLOP per byte that a product by its way moves, and tflop_s."""
    found = rows.copy()
    flops, moved = [], []
    for row in found[["format", "impl", "n", "k", "batch"]].itertuples(index=False, name=None):
        n, k, batch = (int(size) for size in row[2:])
        flops.append(roofline.gemm_flops(batch, n, k))
        moved.append(perf_model.moved(strategy(row[0], row[1]), n, k, batch))
    found["intensity"] = [f / b for f, b in zip(flops, moved, strict=True)]
    found["tflop_s"] = flops / found["median_us"] / 1e6
    return found
