"""What one token costs in products: a model's projections, each at the time measured for its shape."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from rooflab.hardware import roofline
from rooflab.numerics import model_shapes

FAULTY_COUNT = 6  # projections a layer by the root-cause source's arithmetic; LLaMA has 7


def of_models(rows: pd.DataFrame, names: Iterable[str], element_bytes: float = 2) -> pd.DataFrame:
    """Tokens a second that products alone allow: one row a model and implementation of `rows` (columns impl,
    n, k, median_us, one row a shape).

    Columns: model, impl, products (a token needs so many, the output head aside), and bytes, us and tok_s of
    all of them, one after another, output head included. A model of which a shape is missing is left out.
    """
    found = []
    for name in names:
        parts = model_shapes.projections(model_shapes.get(name))
        moved = sum(part.times * _bytes(part.n, part.k, element_bytes) for part in parts)
        for impl, timed in rows.groupby("impl", sort=False):
            times = {
                (int(n), int(k)): us for n, k, us in timed[["n", "k", "median_us"]].itertuples(index=False)
            }
            if any((part.n, part.k) not in times for part in parts):
                continue
            us = sum(part.times * times[part.n, part.k] for part in parts)
            products = model_shapes.gemvs(model_shapes.get(name))
            found.append((name, impl, products, moved, us, 1e6 / us))
    return pd.DataFrame(found, columns=["model", "impl", "products", "bytes", "us", "tok_s"])


def _bytes(n: int, k: int, element_bytes: float) -> float:
    return roofline.gemm_bytes(1, n, k, element_bytes, element_bytes, element_bytes)


def counts(names: Iterable[str]) -> pd.DataFrame:
    """One row a model: its layers, products a token as its shape says, and as the source counts them."""
    models = [model_shapes.get(name) for name in names]
    return pd.DataFrame(
        {
            "model": [model.name for model in models],
            "layers": [model.layers for model in models],
            "products": [model_shapes.gemvs(model) for model in models],
            "source": [FAULTY_COUNT * model.layers for model in models],
        }
    )
