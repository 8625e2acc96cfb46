"""What a law fitted on one GPU is worth on another: its errors here, published times of a GPU that it has not
seen, crossovers and prompts that it predicts, and the map of every GPU in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rooflab import dispatch
from rooflab.analysis.strategies import Pair, label
from rooflab.hardware import crossover, device, perf_model
from rooflab.hardware.perf_model import Fit, Machine, Strategy, strategy
from rooflab.numerics import model_shapes
from rooflab.ops import mmq, rung_of
from rooflab.studies import regimes

# --- predictions --------------------------------------------------------------------------------------------


def errors(compared: pd.DataFrame) -> pd.DataFrame:
    """How far predictions are off, a row a way: rows, and the median of each prediction's absolute error in
    percent; `worst` is the largest error by the way's own numbers.
    """
    groups = compared.groupby(["format", "impl"], sort=False)
    table = groups.agg(
        rows=("bound_off", "size"),
        bound=("bound_off", lambda off: off.abs().median()),
        one=("one_off", lambda off: off.abs().median()),
        own=("own_off", lambda off: off.abs().median()),
        worst=("own_off", lambda off: off.abs().max()),
    ).reset_index()
    table["label"] = [label(f, w) for f, w in zip(table["format"], table["impl"], strict=True)]
    return table


def _narrow(n: int, batch: int) -> bool:
    rung = rung_of(mmq.LADDERS["mmq"], "6_wgmma", "")
    return bool(mmq.options_for(rung, n, batch)["NARROW"])


def reason(row: Any, sms: int) -> str:
    """Why a prediction may be off, from what it is made of: how many blocks a tile's way launches, how small
    the product is, or that a kernel reaches less than the memory's rate.
    """
    how = strategy(row.format, row.impl)
    if how.tile is not None:
        rows, tokens = how.tile
        blocks = -(-int(row.n) // rows) * -(-int(row.batch) // tokens)
        if row.impl == "mmq_wgmma" and _narrow(int(row.n), int(row.batch)):
            wide, narrow = mmq.wgmma_blocks(int(row.n), int(row.batch))
            return f"{wide} wide tiles and {narrow} narrow ones, counted as {blocks} wide"
        if blocks % sms and blocks < 4 * sms:
            return f"{blocks} tiles for {sms} SMs"
    if row.by == "launch":
        return "the fixed time outweighs its bytes"
    return "compute-bound" if row.by == "compute" else "short of the memory's rate"


class Published(NamedTuple):
    """A published kernel time, and the way that it is of."""

    strategy: Strategy
    n: int
    k: int
    batch: int
    us: float
    clock: str


def laptop_kernels(published: Any) -> list[Published]:
    """The source's kernels on its laptop by Nsight Compute (a Store of the published figures): cuBLAS GEMVs
    and its fused product.
    """
    found = []
    for study, operator, how in (
        ("attribution", "gemv", strategy("fp16", "cublas")),
        ("int4", "int4_gemv", strategy("int4_g128", "loop")),
    ):
        rows = published.read(study)
        rows = rows[(rows["operator"] == operator) & (rows["clock"] == "ncu") & rows["n"].notna()]
        for row in rows[["n", "k", "batch", "median_us", "clock"]].itertuples(index=False, name=None):
            n, k, batch, us, clock = row
            found.append(Published(how, int(n), int(k), int(batch), float(us), str(clock)))
    return found


def laptop_sweep(published: Any) -> list[Published]:
    """The source's sweep on its laptop by events: FP16 and the fused product launched once a token."""
    rows = published.read("regimes")
    names = {"cublas": strategy("fp16", "cublas"), "fused": strategy("int4_g128", "loop")}
    rows = rows[rows["impl"].isin(names)]
    columns = ["impl", "n", "k", "batch", "median_us", "clock"]
    return [
        Published(names[impl], int(n), int(k), int(batch), float(us), str(clock))
        for impl, n, k, batch, us, clock in rows[columns].itertuples(index=False, name=None)
    ]


def unseen(given: Iterable[Published], there: Machine, fit: Fit) -> pd.DataFrame:
    """Published times beside what is predicted for that GPU by a fit that has not seen it: label, n, k,
    batch, clock, us, one_us, off (percent).
    """
    rows = []
    for each in given:
        sizes = (each.n, each.k, each.batch)
        predicted = perf_model.us(each.strategy, *sizes, there, fit, own=False)
        off = 100 * (predicted / each.us - 1)
        rows.append(
            (label(each.strategy.format, each.strategy.name), *sizes, each.clock, each.us, predicted, off)
        )
    return pd.DataFrame(rows, columns=["label", "n", "k", "batch", "clock", "us", "one_us", "off"])


def predicted_crossover(
    pair: Pair, shape: tuple[int, int], machine: Machine, fit: Fit, own: bool = True, most: int = 512
) -> int | None:
    """The least number of tokens at which the pair's second way is predicted to be faster; None up to
    `most`. Numbers beyond what the first way takes are not asked for.
    """
    first, second = (strategy(*each) for each in pair)
    limit = dispatch.most_tokens(first)
    for batch in range(1, min(most, limit) + 1):
        if perf_model.us(second, *shape, batch, machine, fit, own) < perf_model.us(
            first, *shape, batch, machine, fit, own
        ):
            return batch
    return None


def everywhere(
    known: Machine,
    fit: Fit,
    like: device.Device,
    matrices: Iterable[tuple[int, int]],
    batches: Sequence[int] = regimes.BATCHES,
) -> pd.DataFrame:
    """The map: on every GPU of the table, for each format, matrix and number of tokens, the time of the way
    that is predicted to be fastest there (columns gpu, format, matrix, batch, way, median_us, x: times as
    fast as FP16, case).
    """
    rows = []
    for name in device.names():
        gpu = device.get(name)
        there = perf_model.scaled(gpu, known, like)
        for n, k in matrices:
            for batch in batches:
                best = {}
                for format in perf_model.FORMATS:
                    ways = dispatch.candidates(format, n, k, batch, gpu.sm, name, None)
                    best[format] = perf_model.fastest(ways, n, k, batch, there, fit)
                for format, (chosen, us) in best.items():
                    gain = best["fp16"][1] / us
                    rows.append((gpu.name, format, f"{n} x {k}", batch, chosen.name, us, gain))
    columns = ["gpu", "format", "matrix", "batch", "way", "median_us", "x"]
    table = pd.DataFrame(rows, columns=columns)
    table["median_us"] = table["median_us"].map(lambda us: float(f"{us:.3g}"))
    table["x"] = table["x"].round(2)
    words = table["gpu"] + " " + table["format"] + " " + table["matrix"] + " " + table["batch"].astype(str)
    return table.assign(case=words)


def published_lost(swept: pd.DataFrame) -> pd.DataFrame:
    """Of the source's own sweep (`unseen` of laptop_sweep) a row a matrix: where its fused kernel lost most
    against FP16 (n, k, batch), by how many times, and by how many the law has it (columns times, law).
    """
    keys = ["n", "k", "batch"]
    wide = swept.pivot_table(["us", "one_us"], keys, "label").dropna()
    names = label("int4_g128", "loop"), label("fp16", "cublas")
    if wide.empty or not set(names) <= set(swept["label"]):
        return pd.DataFrame(columns=[*keys, "times", "law"])
    found = pd.DataFrame({"times": wide["us"][names[0]] / wide["us"][names[1]]})
    found["law"] = wide["one_us"][names[0]] / wide["one_us"][names[1]]
    found = found.reset_index().sort_values("times", ascending=False)
    return found[found["times"] > crossover.LEVEL].drop_duplicates(["n", "k"]).reset_index(drop=True)


def agrees(crossing: pd.Series, predicted: int | None) -> bool | None:
    """Whether a predicted crossover lies where `crossovers` has it; None where nothing was to be predicted
    (level throughout, or no one order).
    """
    if crossing["kind"] == "crosses":
        return predicted is not None and crossing["low"] < predicted <= crossing["high"]
    if crossing["kind"] == crossover.FIRST:
        return predicted is None
    if crossing["kind"] == crossover.SECOND:
        return predicted is not None and predicted <= crossing["least"]
    return None


# --- prompts ------------------------------------------------------------------------------------------------


def prompt(
    model: model_shapes.Model,
    lengths: Iterable[int],
    there: Machine,
    fit: Fit,
    format: str,
    attention_share: float,
    arch: str,
    slug: str | None,
) -> pd.DataFrame:
    """Predicted microseconds of a prefill's products and attention over prompt lengths: products by the
    fastest way of a format, attention by its FLOPs at a share of the FP16 peak (columns seq, products_us,
    attention_us, pct: attention's share).
    """
    body = [p for p in model_shapes.projections(model) if p.name != "lm_head"]
    rows = []
    for length in lengths:
        us = 0.0
        for part in body:
            ways = dispatch.candidates(format, part.n, part.k, length, arch, slug, None)
            us += part.times * perf_model.fastest(ways, part.n, part.k, length, there, fit)[1]
        flops = model_shapes.prefill_flops(model, length) - 2 * (
            model_shapes.body(model) * length + model_shapes.head(model)
        )
        attention = flops / (there.peak("fp16_tensor") * attention_share) / 1e6
        rows.append((length, us, attention, 100 * attention / (us + attention)))
    return pd.DataFrame(rows, columns=["seq", "products_us", "attention_us", "pct"])


def attention_share(rows: pd.DataFrame, model: model_shapes.Model) -> float | None:
    """The share of the FP16 peak that the best own prefill attention reached, in rows of study attention, at
    the recorded head width nearest to a model's; None if there is none.
    """
    if rows.empty:
        return None
    mine = rows[(rows["operator"] == "attention") & (rows["kind"] == "own") & (rows["roof"] == "fp16_tensor")]
    mine = mine[mine["roof_fraction"].notna() & mine["window"].isna() & (mine["clock"] == "graph")]
    if mine.empty:
        return None
    off = (mine["head_dim"].astype(float) - model.head_dim).abs()
    return float(mine[off == off.min()]["roof_fraction"].max())
