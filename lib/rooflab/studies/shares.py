"""What lesson 02 computes from its recording: shares, busy time, the rule behind them, possible gains.

The rule: a launch takes a fixed time, and its bytes at the memory's roof on top. Where a model's weights are
many microseconds a launch, as on a GPU with slow memory, its weight products are the bottleneck; where the
roof is high, the fixed times weigh more, and most launches are not products.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rooflab import device, shapes
from rooflab.case import Case
from rooflab.profile import parts
from rooflab.studies.attribution import Attribution

_NUMBERS = ("launches", "us", "q1_us", "q3_us")


def named(profile: pd.DataFrame) -> pd.DataFrame:
    """A traced profile with operator, variant ("eager"), seq and model of its cases, numbers as numbers."""
    cases = [Attribution().case(case) for case in profile["case"]]
    found = profile.assign(
        operator=[case.operator for case in cases],
        variant=[case.impl.removeprefix("transformers.") for case in cases],
        seq=[case.seq or 0 for case in cases],
        model=[case.model for case in cases],
    )
    for name in _NUMBERS:
        found[name] = pd.to_numeric(found[name])
    return found


def by_class(profile: pd.DataFrame, order: Iterable[str] = parts.CLASSES) -> pd.DataFrame:
    """One row a case and class of `named` rows: launches and us a step, pct of the step's GPU time."""
    keys = ["case", "operator", "variant", "seq"]
    found = profile.groupby([*keys, "class"], sort=False)[["launches", "us"]].sum().reset_index()
    found["pct"] = 100 * found["us"] / found.groupby("case", sort=False)["us"].transform("sum")
    rank = {name: i for i, name in enumerate(order)}
    found["rank"] = found["class"].map(rank)
    found = found.sort_values(["operator", "seq", "variant", "rank"], kind="stable", ignore_index=True)
    return found.drop(columns="rank")


def busy(rows: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    """Recorded decode or prefill rows beside the trace: how long the GPU works for what a caller waits.

    Columns: case, operator, variant, seq, launches a step, gpu_us (their time on the GPU, traced), wall_us
    (not traced) with quartiles and run, busy_pct, and wall_per_launch_us.
    """
    found = profile.groupby(["case", "operator", "variant", "seq"], sort=False)
    sums = found.agg(launches=("launches", "sum"), gpu_us=("us", "sum")).reset_index()
    walls = rows[["case", "median_us", "q1_us", "q3_us", "run"]]
    table = sums.merge(walls, on="case").rename(columns={"median_us": "wall_us"})
    table["busy_pct"] = 100 * table["gpu_us"] / table["wall_us"]
    table["wall_per_launch_us"] = table["wall_us"] / table["launches"]
    return table


def by_part(profile: pd.DataFrame, model: str, gb_s: float) -> pd.DataFrame:
    """The weight products of one traced case: part, n, k, launches, us a launch, bytes, gb_s, pct of `gb_s`.

    The sum of split-K partial results counts with its product. Bytes are the weights'.
    """
    found = profile[profile["part"].isin(parts.WEIGHTS)]
    sums = found.groupby("part")["us"].sum()
    products = found[found["class"] == "weight"].groupby("part")["launches"].sum()
    rows = []
    for shape in shapes.projections(shapes.get(model)):
        if shape.name not in products.index:
            continue
        times, size = int(products[shape.name]), 2 * shape.n * shape.k
        us = float(sums[shape.name]) / times
        facts = {"launches": times, "us": us, "bytes": size, "total_us": times * us}
        rows.append({"part": shape.name, "n": shape.n, "k": shape.k, **facts, "gb_s": size / us / 1e3})
    table = pd.DataFrame(rows, columns=["part", "n", "k", "launches", "us", "bytes", "total_us", "gb_s"])
    return table.assign(pct=100 * table["gb_s"] / gb_s)


def timeline(profile: pd.DataFrame) -> pd.DataFrame:
    """Every launch of one traced case in order: start_us since the step began, us (the mean of its kind),
    part, class, kernel.
    """
    rows = [
        (float(start), row["us"] / row["launches"], row["part"], row["class"], row["kernel"])
        for _, row in profile.iterrows()
        for start in str(row["starts"]).split()
    ]
    table = pd.DataFrame(rows, columns=["start_us", "us", "part", "class", "kernel"])
    return table.sort_values("start_us", kind="stable", ignore_index=True)


# --- the rule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What one GPU does to launches: a weight product takes product_us and its bytes at gb_s, anything else
    other_us. others is the number of other launches for each layer of the model.
    """

    gb_s: float
    product_us: float
    other_us: float
    others: float

    def weights_us(self, model: shapes.Model) -> float:
        """Microseconds of a token's weight products in FP16."""
        return (shapes.gemvs(model) + 1) * self.product_us + shapes.weight_bytes(
            model, "fp16"
        ) / self.gb_s / 1e3

    def others_us(self, model: shapes.Model) -> float:
        """Microseconds of a token's other launches."""
        return self.others * model.layers * self.other_us

    def share(self, model: shapes.Model) -> float:
        """Share of a token's GPU time that weight products take."""
        weights = self.weights_us(model)
        return weights / (weights + self.others_us(model))


def line(bytes_: Sequence[float], us: Sequence[float], roof_gb_s: float = np.inf) -> tuple[float, float]:
    """(fixed microseconds, GB/s) of the straight line us = fixed + bytes / rate that fits best; relative
    errors count, so that small and large launches weigh the same. No rate beats the roof.
    """
    x, y = np.asarray(bytes_, float), np.asarray(us, float)
    (fixed, slope), *_ = np.linalg.lstsq(np.column_stack([1 / y, x / y]), np.ones_like(y), rcond=None)
    if slope * roof_gb_s * 1e3 < 1:
        slope = 1 / roof_gb_s / 1e3
        fixed = float(((y - x * slope) / y**2).sum() / (1 / y**2).sum())
    return float(fixed), 1 / float(slope) / 1e3


def rule(profile: pd.DataFrame, model: str, roof_gb_s: float) -> Rule:
    """The rule of the GPU that one decode case was traced on, from its products and its other launches."""
    products = by_part(profile, model, roof_gb_s)
    product_us, gb_s = line(list(products["bytes"]), list(products["us"]), roof_gb_s)
    rest = profile[~profile["part"].isin(parts.WEIGHTS)]
    launches = float(rest["launches"].sum())
    return Rule(gb_s, product_us, float(rest["us"].sum()) / launches, launches / shapes.get(model).layers)


def elsewhere(known: Rule, known_peak: float, other: device.Device) -> Rule:
    """The rule of a GPU that nobody traced: its datasheet's bandwidth, as much of it as here, and the same
    launches at the same fixed times.
    """
    return replace(known, gb_s=known.gb_s / known_peak * other.dram_gb_s)


def everywhere(known: Rule, known_peak: float, launch_us: Sequence[float]) -> pd.DataFrame:
    """The rule for every GPU and model of the tables and several fixed times: columns gpu, model, launch_us
    (of the other launches; a product's in proportion), gb_s, % (share of weight products), case.
    """
    rows = []
    for name in device.names():
        gpu = device.get(name)
        there = elsewhere(known, known_peak, gpu)
        for model in map(shapes.get, shapes.names()):
            for us in launch_us:
                product = known.product_us * us / known.other_us
                share = 100 * replace(there, other_us=us, product_us=product).share(model)
                rows.append((gpu.name, model.name, us, gpu.dram_gb_s, round(share, 1)))
    table = pd.DataFrame(rows, columns=["gpu", "model", "launch_us", "gb_s", "%"])
    words = table["gpu"] + " " + table["model"] + " " + table["launch_us"].astype(str)
    return table.assign(case=words)


# --- what could be gained -----------------------------------------------------------------------------------


def amdahl(
    times: Mapping[str, float], gains: Mapping[str, float], total: float | None = None
) -> pd.DataFrame:
    """What speeding one part up `gains[part]` times does to the whole, by Amdahl's law.

    times are microseconds of the parts; total is what a caller waits, by default their sum: what lies beyond
    them stays. Columns: part, pct of the total, gain, us saved, speedup of the whole; the last row, "all",
    has every gain at once. A gain of infinity does without the part.
    """
    whole = sum(times.values()) if total is None else total
    saved = {name: times[name] * (1 - 1 / gain) for name, gain in gains.items() if name in times}
    rows = [
        {
            "part": name,
            "pct": 100 * times[name] / whole,
            "gain": gains[name],
            "us": us,
            "speedup": whole / (whole - us),
        }
        for name, us in saved.items()
    ]
    together = sum(saved.values())
    touched = 100 * sum(times[name] for name in saved) / whole
    rows.append(
        {"part": "all", "pct": touched, "gain": np.nan, "us": together, "speedup": whole / (whole - together)}
    )
    return pd.DataFrame(rows)


# --- what a lesson asks a lab for ---------------------------------------------------------------------------


def taken(lab: Any, cases: Sequence[Case]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and trace (`named`) of decode or prefill cases from a rooflab.lab.Lab: by nsys, else CUPTI.

    Both are empty where nothing could be measured or traced.
    """
    rows = lab.measure("attribution", cases)
    trace = lab.profile("attribution", cases, "nsys")
    if trace.empty and len(rows):
        trace = lab.profile("attribution", cases, "cupti")
    return rows, named(trace)


def agreement(lab: Any, cases: Sequence[Case]) -> pd.DataFrame:
    """What Nsight Systems and CUPTI say of the same cases: operator, variant, seq, class, us and launches by
    either (us_nsys, us_cupti, launches_nsys, launches_cupti) and apart, how far the times differ in percent.
    """
    keys = ["operator", "variant", "seq", "class"]
    both = [by_class(named(lab.profile("attribution", cases, tool))) for tool in ("nsys", "cupti")]
    table = both[0].merge(both[1], on=["case", *keys], suffixes=("_nsys", "_cupti"))
    table["apart"] = 100 * (table["us_cupti"] / table["us_nsys"] - 1)
    return table[[*keys, "us_nsys", "us_cupti", "launches_nsys", "launches_cupti", "apart"]]


def one_layer(launches: pd.DataFrame, layer: int) -> tuple[float, float]:
    """(start, end) in a `timeline` from the first projection of one layer to that of the next."""
    starts = launches.loc[launches["part"] == "q", "start_us"].tolist()
    return starts[layer], starts[layer + 1]
