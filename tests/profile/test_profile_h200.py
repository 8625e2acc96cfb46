"""The profile readers on real exports of an H200: one read rung and one driver copy, by all three tools."""

import sqlite3
from pathlib import Path

import pytest
from rooflab.profile import cupti, ncu, nsys

DATA = Path(__file__).parents[1] / "data"
READ = "read/5_streaming n=1048576 warm graph"
COPY = "copy/cudaMemcpyAsync baseline n=1048576 warm graph"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "h200.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript((DATA / "nsys" / "h200.sql").read_text())
    database.close()
    return {"nsys": nsys.read(path), "cupti": cupti.parse((DATA / "kineto" / "h200.json").read_text())}


def test_ncu_counts_the_bytes_of_the_rung():
    (row,) = ncu.parse((DATA / "ncu" / "h200.csv").read_text()).to_dict("records")
    assert row["range"] == READ and row["kernel"] == "read_streaming"
    assert row["grid"] == "128x1x1" and row["block"] == "256x1x1"
    assert row["dram_bytes"] == pytest.approx(4 * 1048576, rel=0.01)
    assert 2000 < row["time_ns"] < 20000


@pytest.mark.parametrize("tool", ["nsys", "cupti"])
def test_a_tracer_tells_kernels_from_copies(traces, tool):
    rows = traces[tool].with_cases().activities
    assert rows["kind"].tolist() == ["kernel", "kernel", "memcpy", "memcpy"]
    assert rows["case"].tolist() == [READ, READ, COPY, COPY]
    assert rows["short"].tolist() == ["read_streaming"] * 2 + ["memcpy DtoD"] * 2
    assert rows["bytes"].tolist() == [0, 0, 4 * 1048576, 4 * 1048576]
    assert rows["grid"].tolist()[:2] == ["128x1x1"] * 2


def test_the_two_tracers_agree_on_the_durations(traces):
    ours, theirs = (traces[tool].activities["duration_ns"] for tool in ("nsys", "cupti"))
    assert (abs(ours - theirs) < 0.2 * ours).all()
