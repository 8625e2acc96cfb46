"""Recorded CPU traces: what is in data/cpu is what watching the rungs gives, and it can be drawn."""

import shutil

import needs
import pandas as pd
import pytest
from rooflab import cli, lab, simt, studies
from rooflab.errors import MissingRecording, UsageError
from rooflab.records.fingerprint import fresh
from rooflab.studies import traces
from rooflab.view import access_diagram, plot

STUDIES = list(traces.TRACED)


@pytest.mark.parametrize("study", STUDIES)
def test_the_recorded_traces_are_what_watching_gives(study):
    needs.compiler()
    if simt.build.family() != "gcc":
        pytest.skip("loads stand where the source has them only on g++")
    recorded, now = traces.read(study), traces.make(study)
    now = now[now["case"].isin(recorded["case"])].reset_index(drop=True)
    assert len(recorded) > 20
    columns = [column for column in traces.COLUMNS if column != "identity"]
    pd.testing.assert_frame_equal(
        recorded[columns], now[columns], check_dtype=False, obj=f"`rooflab trace {study}`: the trace"
    )


@pytest.mark.parametrize("study", STUDIES)
def test_every_trace_is_fresh_and_every_case_is_there(study):
    """Needs no compiler: the launch rule and the source decide."""
    recorded = traces.read(study)
    cases = studies.get(study).recordable(traces.TRACED[study](), recorded["case"])
    cases = {case.id: case for case in cases}
    assert set(recorded["case"]) == set(cases)
    for name, identity in set(zip(recorded["case"], recorded["identity"], strict=True)):
        assert fresh(identity, traces.current(study, cases[name])), f"{name}: run `rooflab trace {study}`"


def test_a_changed_source_is_stale_and_a_comment_is_not(monkeypatch, tmp_path):
    case = traces.TRACED["gemv"]()[0]
    before = traces.current("gemv", case)
    shutil.copytree(traces.KERNELS, tmp_path / "kernels")
    monkeypatch.setattr("rooflab.ops.KERNELS", tmp_path / "kernels")
    file = tmp_path / "kernels" / "gemv" / "1_strided.cu"
    file.write_text("// a remark\n" + file.read_text())
    assert fresh(before, traces.current("gemv", case))
    file.write_text(file.read_text().replace("row += 32", "row += 16"))
    assert not fresh(before, traces.current("gemv", case))


def test_a_trace_counts_and_can_be_drawn():
    rows = traces.read("gemv")
    whole = rows[rows["case"].str.contains("n=512 k=256") & (rows["buffer"] == "a")]
    strided = whole[whole["kernel"] == "gemv_strided"].iloc[0]
    coalesced = whole[whole["kernel"] == "gemv_coalesced"].iloc[0]
    assert strided["sectors"] / strided["requests"] == 32 and strided["bytes_moved"] == 8 * 512 * 256 * 4
    assert coalesced["sectors"] / coalesced["requests"] == 4 and coalesced["bytes_moved"] == 512 * 256 * 4
    for row in (strided, coalesced):
        request = access_diagram.recorded(row)
        assert len(request.sectors()) == row["sectors"] / row["requests"]
        assert len(plot.png(access_diagram.figure(request))) > 2000
    assert access_diagram.caption(access_diagram.recorded(strided)) == (
        "load of a by gemv_strided: 32 lanes, 4 bytes each, 128 bytes in 32 sectors: "
        "12.5% of the 1024 bytes moved are used."
    )


def test_the_lab_hands_them_out_in_replay():
    rows = lab.open("replay", "h200").traces("gemv")
    pd.testing.assert_frame_equal(rows, traces.read("gemv"))


def test_what_is_not_recorded_names_its_command(tmp_path):
    with pytest.raises(MissingRecording, match="`rooflab trace gemv` makes them"):
        traces.read("gemv", tmp_path)
    with pytest.raises(UsageError, match="Study static has no traces; bandwidth, gemv"):
        traces.read("static")


def test_the_command_writes_the_same_bytes(monkeypatch, tmp_path, capsys):
    needs.compiler()
    monkeypatch.setattr(traces, "DATA", tmp_path)
    assert cli.main(["trace", "bandwidth"]) == 0
    assert "bandwidth_traces.csv" in capsys.readouterr().out
    monkeypatch.undo()
    recorded = traces.path("bandwidth").read_bytes().splitlines()
    heads = {line.split()[0] for line in recorded}
    wrote = (tmp_path / "cpu" / "bandwidth_traces.csv").read_bytes().splitlines()
    assert [line for line in wrote if line.split()[0] in heads] == recorded
