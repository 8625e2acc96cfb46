"""The sources' own figures: loadable as devices, cited, and the same numbers that the sources print."""

import csv
import re

import pandas as pd
import pytest
from rooflab.hardware import device
from rooflab.numerics import model_shapes
from rooflab.paths import DATA
from rooflab.records.store import Store, derive, published_devices

PUBLISHED = DATA / "published"
DEVICES = published_devices(DATA)


def rows(name, study, **wanted):
    table = Store(DATA, name).read(study)
    for column, value in wanted.items():
        table = table[table[column] == value]
    return table


def test_devices():
    assert set(DEVICES) == {
        "rtx-4070-laptop-published",
        "rtx-4070-ti-published",
        "rtx-4090-published",
        "rtx-4090-peers",
        "h200-peers",
    }


@pytest.mark.parametrize("name", DEVICES)
def test_loads_as_a_device(name):
    store = Store(DATA, name)
    runs = store.runs()
    # A reader's own recording of that GPU has another name, so neither hides the other.
    assert name != device.slug(runs["gpu"].iloc[0])
    assert runs["gpu"].nunique() == 1 and device.match(runs["gpu"].iloc[0])
    used = set()
    for study in store.studies():
        table = store.read(study)
        assert len(table)
        used |= set(table["run"])
        assert (table["kind"] != "own").all()
        assert table["identity"].eq("").all()
        said = table[["median_us", "gb_s", "tflop_s", "tok_s"]].notna().any(axis=1)
        assert said.all(), table.loc[~said, "case"].tolist()
        assert set(table["model"]) - {""} <= set(model_shapes.names())
    assert used == set(runs["run"])


@pytest.mark.parametrize("name", DEVICES)
def test_derived_columns_agree(name):
    store = Store(DATA, name)
    for study in store.studies():
        table = store.read(study)
        again = derive(table, {})
        for column in ("gb_s", "tflop_s"):
            timed = again[column].notna()
            pd.testing.assert_series_equal(table.loc[timed, column], again.loc[timed, column])
            # Elsewhere a rate stands for itself: no time was published.
            assert table.loc[table[column].notna() & ~timed, "median_us"].isna().all()


def test_every_run_is_cited():
    with open(PUBLISHED / "runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    for run in runs:
        assert re.search(r"github\.com/\S+|measured on one H200 on 2026-11-20", run["note"]), run["run"]
    assert len({run["run"] for run in runs}) == len(runs)


def test_sweep_of_the_mlp_projection():
    """decode-roofline docs/03_results.md, lines 37-42: times, ratios and the GB/s that the times imply."""
    table = rows("rtx-4070-laptop-published", "regimes", n=8960)
    us = table.pivot(index="batch", columns="impl", values="median_us")
    assert us.index.tolist() == [1, 2, 4, 8, 16, 32]
    assert us["two_op"].tolist() == [5066, 5181, 4559, 4673, 4622, 4576]
    assert us["fused"].tolist() == [84, 191, 183, 239, 527, 1254]
    ratio = (us["two_op"] / us["fused"]).tolist()
    assert ratio == pytest.approx([60.3, 27.1, 24.9, 19.6, 8.77, 3.65], rel=0.01)
    ratio = (us["cublas"] / us["fused"]).tolist()
    assert ratio == pytest.approx([2.38, 0.59, 0.75, 0.52, 0.15, 0.07], abs=0.006)
    fused = table[table["impl"] == "fused"].sort_values("batch")
    # The source counts the packed weights once per batch row.
    assert (fused["gb_s"] * fused["batch"]).tolist() == pytest.approx([85, 75, 156, 239, 216, 182], rel=0.1)


def test_sweep_of_the_attention_projection():
    """decode-roofline docs/03_results.md, lines 47-52."""
    us = rows("rtx-4070-laptop-published", "regimes", n=1536).pivot(
        index="batch", columns="impl", values="median_us"
    )
    assert us["two_op"].tolist() == [640, 922, 634, 706, 538, 721]
    assert us["fused"].tolist() == [157, 207, 173, 364, 656, 1251]
    ratio = (us["two_op"] / us["fused"]).tolist()
    assert ratio == pytest.approx([4.08, 4.46, 3.68, 1.94, 0.82, 0.58], rel=0.01)


def test_headlines_of_the_laptop():
    """README: 90.8x by events, 223 GB/s under Nsight Compute, 247 GB/s of the FP16 projection."""
    name = "rtx-4070-laptop-published"
    events = rows(name, "int4", clock="event").set_index("impl")["median_us"]
    assert events["two_op"] / events["fused"] == pytest.approx(90.8, abs=0.05)
    assert rows(name, "int4", clock="ncu")["gb_s"].item() == pytest.approx(223, abs=0.5)
    assert rows(name, "attribution", n=8960)["gb_s"].item() == pytest.approx(247, rel=0.01)


def test_headlines_of_the_specification():
    """v1.3.0, lines 30-32: 4.41 ms against a target of 0.023 ms, which is 192x and 1.4 % of 1008 GB/s."""
    row = rows("rtx-4090-published", "gemv", impl="strided").iloc[0]
    assert row["median_us"] / row["predicted_us"] == pytest.approx(192, abs=0.5)
    assert row["gb_s"] / device.get("rtx-4090").dram_gb_s == pytest.approx(0.015, abs=0.001)


def test_ladder_of_the_pull_request():
    """Pull request 143: 1389 to 2920 tokens/s, 2.10x; attention 929 to 245 ms, 3.8x."""
    name = "rtx-4070-ti-published"
    ladder = rows(name, "prefill", operator="prefill", seq=1848)["tok_s"].sort_values().tolist()
    assert ladder == [1389, 2180, 2364, 2847, 2920]
    attention = rows(name, "attention").set_index("impl")["median_us"]
    assert attention["scalar"] / attention["flash_half2"] == pytest.approx(3.8, abs=0.05)


def test_peers_of_the_h200():
    cublas = rows("h200-peers", "regimes", n=28672, batch=1).iloc[0]
    assert cublas["gb_s"] == pytest.approx(4314, rel=1e-3)
    table = rows("h200-peers", "int4", batch=1, n=28672).set_index("impl")["median_us"]
    assert table.to_dict() == {"torch_tinygemm": 62.0, "gemlite": 69.6, "bitsandbytes": 103, "humming": 40.2}
    best = rows("h200-peers", "int4", batch=1, n=28672, impl="humming").iloc[0]
    assert best["gb_s"] / 4540 == pytest.approx(2 / 3, abs=0.02)
