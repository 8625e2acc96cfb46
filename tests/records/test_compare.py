"""Two devices meet on the cases they share."""

import numpy as np
import pytest
from rooflab.records.compare import compare
from rooflab.records.store import Case, Store


def device(root, name, times, study="gemv", fraction=None):
    store = Store(root, name)
    run = store.begin({"gpu": name.upper()})
    rows = [
        {**Case(study, "gemv", "1", n=n).row(), "median_us": us, "roof_fraction": fraction}
        for n, us in times.items()
    ]
    store.add(study, rows, run)
    return store


def test_shared_cases_meet_in_order(tmp_path):
    a = device(tmp_path, "h200", {16384: 8.0, 4096: 2.0, 1024: 1.0}, fraction=0.9)
    b = device(tmp_path, "l4", {4096: 20.0, 16384: 4.0, 99: 1.0}, fraction=0.5)
    table = compare(a, b)
    assert table["case"].tolist() == ["gemv/1 n=4096 cold graph", "gemv/1 n=16384 cold graph"]
    assert table["ratio"].tolist() == [10.0, 0.5]
    assert table["median_us_a"].tolist() == [2.0, 8.0] and table["median_us_b"].tolist() == [20.0, 4.0]
    assert set(table["roof_fraction_a"]) == {0.9} and set(table["roof_fraction_b"]) == {0.5}
    assert table.loc[0, ["kind", "impl", "clock", "cache"]].tolist() == ["own", "1", "graph", "cold"]
    assert np.allclose(compare(b, a)["ratio"] * table["ratio"], 1)


def test_studies_are_those_both_have_or_those_named(tmp_path):
    a, b = device(tmp_path, "h200", {1: 1.0}), device(tmp_path, "l4", {1: 2.0})
    for name, time in (("h200", 3.0), ("l4", 9.0)):
        device(tmp_path, name, {7: time}, study="int4")
    device(tmp_path, "l4", {7: 1.0}, study="q8_0")
    assert compare(a, b)["study"].tolist() == ["gemv", "int4"]
    assert compare(a, b, ["int4"])["ratio"].tolist() == [3.0]


@pytest.mark.parametrize("times", [{5: 1.0}, {1: None}])
def test_nothing_shared_is_an_empty_table_with_the_same_columns(tmp_path, times):
    a = device(tmp_path, "h200", {1: 1.0})
    empty = compare(a, device(tmp_path, "l4", times))
    assert empty.empty and list(empty.columns) == list(compare(a, a).columns)


def test_devices_without_a_shared_case_are_compared_by_their_best_rates():
    from rooflab import paths
    from rooflab.records.compare import best
    from rooflab.records.store import Store

    ours, theirs = Store(paths.DATA, "h200"), Store(paths.DATA, "h200-peers")
    assert compare(ours, theirs).empty
    table = best(ours, theirs).set_index(["operator", "format", "unit"])
    read = table.loc[("read", "", "GB/s")]
    assert read["impl_b"] == "uint4_stream" and read["rate_b"] == 4540
    assert (
        read["rate_a"] == ours.read("bandwidth").query("operator == 'read' and cache == 'cold'")["gb_s"].max()
    )
    assert read["ratio"] == read["rate_b"] / read["rate_a"]
