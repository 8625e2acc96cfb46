"""The rule that lesson 02 finds in a traced token, and from which later studies predict.

A launch takes a fixed time, and its bytes at the memory's roof on top. Where a model's weights are many
microseconds a launch, as on a GPU with slow memory, its weight products are the bottleneck; where the roof is
high, the fixed times weigh more, and most launches are not products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rooflab.numerics import model_shapes
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


def by_part(profile: pd.DataFrame, model: str, gb_s: float) -> pd.DataFrame:
    """The weight products of one traced case: part, n, k, launches, us a launch, bytes, gb_s, pct of `gb_s`.

    The sum of split-K partial results counts with its product. Bytes are the weights'.
    """
    found = profile[profile["part"].isin(parts.WEIGHTS)]
    sums = found.groupby("part")["us"].sum()
    products = found[found["class"] == "weight"].groupby("part")["launches"].sum()
    rows = []
    for shape in model_shapes.projections(model_shapes.get(model)):
        if shape.name not in products.index:
            continue
        times, size = int(products[shape.name]), 2 * shape.n * shape.k
        us = float(sums[shape.name]) / times
        facts = {"launches": times, "us": us, "bytes": size, "total_us": times * us}
        rows.append({"part": shape.name, "n": shape.n, "k": shape.k, **facts, "gb_s": size / us / 1e3})
    table = pd.DataFrame(rows, columns=["part", "n", "k", "launches", "us", "bytes", "total_us", "gb_s"])
    return table.assign(pct=100 * table["gb_s"] / gb_s)


def part_times(trace: pd.DataFrame) -> dict[str, float]:
    """Microseconds a step of one traced decode case: "weight" with its split-K sums, "attention" with the
    copies made for it, "norm", and "rest".
    """
    weights = trace["part"].isin(parts.WEIGHTS)
    group = trace["class"].where(trace["class"] == "norm", "rest")
    group = group.mask(trace["part"] == "attention", "attention").mask(weights, "weight")
    return {str(name): float(us) for name, us in trace.groupby(group)["us"].sum().items()}


@dataclass(frozen=True)
class Rule:
    """What one GPU does to launches: a weight product takes product_us and its bytes at gb_s, anything else
    other_us. others is the number of other launches for each layer of the model.
    """

    gb_s: float
    product_us: float
    other_us: float
    others: float

    def weights_us(self, model: model_shapes.Model) -> float:
        """Microseconds of a token's weight products in FP16."""
        return (model_shapes.gemvs(model) + 1) * self.product_us + model_shapes.weight_bytes(
            model, "fp16"
        ) / self.gb_s / 1e3

    def others_us(self, model: model_shapes.Model) -> float:
        """Microseconds of a token's other launches."""
        return self.others * model.layers * self.other_us

    def share(self, model: model_shapes.Model) -> float:
        """Share of a token's GPU time that weight products take."""
        weights = self.weights_us(model)
        return weights / (weights + self.others_us(model))


def line(bytes_: Sequence[float], us: Sequence[float], roof_gb_s: float = np.inf) -> tuple[float, float]:
    """(fixed microseconds, GB/s) of the straight line us = fixed + bytes / rate that fits best; relative
    errors count, so that small and large launches weigh the same. No rate beats the roof, and no fixed time
    is below 0.
    """
    x, y = np.asarray(bytes_, float), np.asarray(us, float)
    (fixed, slope), *_ = np.linalg.lstsq(np.column_stack([1 / y, x / y]), np.ones_like(y), rcond=None)
    if slope * roof_gb_s * 1e3 < 1:
        slope = 1 / roof_gb_s / 1e3
        fixed = float(((y - x * slope) / y**2).sum() / (1 / y**2).sum())
    if fixed < 0:
        fixed, slope = 0.0, max(float((x / y).sum() / ((x / y) ** 2).sum()), 1 / roof_gb_s / 1e3)
    return float(fixed), 1 / float(slope) / 1e3


def rule(profile: pd.DataFrame, model: str, roof_gb_s: float) -> Rule:
    """The rule of the GPU that one decode case was traced on, from its products and its other launches."""
    products = by_part(profile, model, roof_gb_s)
    product_us, gb_s = line(list(products["bytes"]), list(products["us"]), roof_gb_s)
    rest = profile[~profile["part"].isin(parts.WEIGHTS)]
    launches = float(rest["launches"].sum())
    return Rule(
        gb_s, product_us, float(rest["us"].sum()) / launches, launches / model_shapes.get(model).layers
    )
