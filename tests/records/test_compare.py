"""Devices meet on the cases they share."""

import numpy as np
import pandas as pd
import pytest
from rooflab.errors import RooflabError, UsageError
from rooflab.records.compare import compare, repeats, scaling
from rooflab.records.store import Case, Store
from rooflab.view import comparison


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
    assert table["ratio_b"].tolist() == [10.0, 0.5]
    assert table["median_us_a"].tolist() == [2.0, 8.0] and table["median_us_b"].tolist() == [20.0, 4.0]
    assert set(table["roof_fraction_a"]) == {0.9} and set(table["roof_fraction_b"]) == {0.5}
    assert table.loc[0, ["kind", "impl", "clock", "cache"]].tolist() == ["own", "1", "graph", "cold"]
    assert np.allclose(compare(b, a)["ratio_b"] * table["ratio_b"], 1)


def test_repeats_count_by_clock_what_is_near(tmp_path):
    a = device(tmp_path, "h200", {1: 1.0, 2: 10.0, 3: 4.0, 4: 2.0})
    b = device(tmp_path, "second", {1: 1.0, 2: 10.9, 3: 5.0, 4: None})
    table = compare(a, b)
    wall = table.assign(clock="wall", ratio_b=[2.0, 2.0, 1.0])
    found = repeats(pd.concat([table, wall.assign(clock="graph_pdl"), wall])).set_index("clock")
    assert found["cases"].to_dict() == {"graph": 6, "wall": 3}
    assert found.loc["graph", "within"] == 0.5 and found.loc["wall", "within"] == pytest.approx(1 / 3)
    assert found.loc["wall", "median"] == 2.0


def test_the_second_recording_repeats_by_the_graph_clock():
    from rooflab import paths
    from rooflab.book import readme

    second = Store(paths.SECOND, "h200")
    assert second.runs()["commit"].str.fullmatch("[0-9a-f]{40}").all()
    found = repeats(compare(Store(paths.DATA, "h200"), second)).set_index("clock")
    assert found.loc["graph", "within"] > 0.99 and found.loc["graph", "cases"] > 1000
    assert readme.repeated(Store(paths.DATA, "h200"))["clock"].tolist() == found.index.tolist()
    assert readme.repeated(Store(paths.DATA, "h200-x4")).empty


def test_studies_are_those_both_have_or_those_named(tmp_path):
    a, b = device(tmp_path, "h200", {1: 1.0}), device(tmp_path, "l4", {1: 2.0})
    for name, time in (("h200", 3.0), ("l4", 9.0)):
        device(tmp_path, name, {7: time}, study="int4")
    device(tmp_path, "l4", {7: 1.0}, study="q8_0")
    assert compare(a, b)["study"].tolist() == ["gemv", "int4"]
    assert compare(a, b, studies=["int4"])["ratio_b"].tolist() == [3.0]


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
    assert read["ratio_b"] == read["rate_b"] / read["rate_a"]


def test_any_number_of_devices_scale_from_the_first(tmp_path):
    a = device(tmp_path, "t4", {1: 12.0, 2: 8.0, 3: 6.0, 4: 1.0}, fraction=0.5)
    b = device(tmp_path, "l4", {1: 6.0, 2: 4.0, 3: 1.0, 9: 1.0}, fraction=0.7)
    c = device(tmp_path, "h200", {1: 1.0, 2: 2.0, 4: 0.5}, fraction=0.9)
    table = compare(a, b, c)
    assert table["case"].str.contains("n=[1234] ").all() and len(table) == 4
    assert table["ratio_b"].tolist()[:3] == [0.5, 0.5, 1 / 6] and np.isnan(table["ratio_b"][3])
    assert np.isnan(table["ratio_c"][2]) and table["ratio_c"][3] == 0.5
    [row] = scaling(table).to_dict("records")
    assert row == {
        **{"study": "gemv", "operator": "gemv", "cases": 2, "speed_b": 2.0, "speed_c": 8.0},
        **{"share_a": 0.5, "share_b": 0.7, "share_c": 0.9},
    }
    text, figure = comparison.tables([a, b, c])
    assert "a: t4, b: l4, c: h200" in text and "Scaling: speed as a multiple of a's" in text
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["gemv gemv, l4", "gemv gemv, h200"]


def test_what_cannot_be_compared_is_a_sentence(tmp_path):
    a = device(tmp_path, "h200", {1: 1.0})
    with pytest.raises(UsageError, match="from 2 to 26 recordings are compared, not 1"):
        comparison.tables([a])
    with pytest.raises(RooflabError, match="h200 and l4 share no case and no operator with a rate"):
        comparison.tables([a, device(tmp_path, "l4", {2: 1.0})])
