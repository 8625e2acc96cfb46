"""A token's products from rows that do not exist."""

import pandas as pd
import pytest
from rooflab.analysis import token_rate
from rooflab.numerics import model_shapes


def rows(name, us=2.0, impl="a"):
    parts = {(p.n, p.k) for p in model_shapes.projections(model_shapes.get(name))}
    return pd.DataFrame([{"impl": impl, "n": n, "k": k, "median_us": us} for n, k in sorted(parts)])


def test_a_token_takes_every_projection_of_every_layer_and_the_head():
    found = token_rate.of_models(rows("llama-2-7b"), ["llama-2-7b"]).iloc[0]
    assert (found["products"], found["us"]) == (32 * 7, pytest.approx((32 * 7 + 1) * 2.0))
    assert found["tok_s"] == pytest.approx(1e6 / found["us"])
    assert found["bytes"] == pytest.approx(
        model_shapes.weight_bytes(model_shapes.get("llama-2-7b"), "fp16"), rel=1e-3
    )


def test_a_model_with_a_shape_nobody_timed_is_left_out():
    some = pd.concat([rows("llama-2-7b"), rows("llama-2-7b", 3.0, "b").iloc[1:]])
    found = token_rate.of_models(some, ["llama-2-7b", "phi-2"])
    assert found[["model", "impl"]].to_numpy().tolist() == [["llama-2-7b", "a"]]


def test_the_source_counts_six_projections_a_layer():
    found = token_rate.counts(["llama-2-7b", "phi-3-mini"]).set_index("model")
    assert found.loc["llama-2-7b", ["products", "source"]].tolist() == [224, 192]
    assert found.loc["phi-3-mini", "products"] == 32 * 4  # qkv and gate_up are one matrix each
