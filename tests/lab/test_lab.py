"""The lab: which mode, which recording, what replay returns and what it refuses."""

import json
import shlex
import shutil

import pandas as pd
import pytest
from rooflab import lab as laboratory
from rooflab import paths, studies
from rooflab.cli import parser
from rooflab.errors import MissingRecording, MissingTool, OutOfTime, UsageError
from rooflab.hardware.roofline import in_state
from rooflab.lab import compiling, recording, session
from rooflab.lab.progress import Progress
from rooflab.records import seal
from rooflab.records.case import COLUMNS
from rooflab.records.store import Store
from rooflab.records.validate import validate
from rooflab.studies import bandwidth, base, environment


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("rooflab.hardware.device.has_gpu", lambda: False)
    monkeypatch.setattr("rooflab.hardware.device.probe", lambda: None)


def test_an_explicit_mode_wins_then_the_environment_then_the_gpu(monkeypatch, no_gpu):
    monkeypatch.delenv("ROOFLAB_MODE", raising=False)
    assert laboratory.open("auto").mode == "replay"
    monkeypatch.setenv("ROOFLAB_MODE", "live")
    assert laboratory.open("replay").mode == "replay"
    with pytest.raises(MissingTool, match="MODE=live needs an NVIDIA GPU"):
        laboratory.open("auto")
    monkeypatch.setenv("ROOFLAB_MODE", "replay")
    monkeypatch.setattr("rooflab.hardware.device.has_gpu", lambda: True)
    assert laboratory.open("auto").mode == "replay"


def test_words_that_do_not_exist_are_named(monkeypatch):
    with pytest.raises(UsageError, match="MODE is one of auto, live, replay, not 'fast'"):
        laboratory.open("fast")
    monkeypatch.setenv("ROOFLAB_MODE", "dead")
    with pytest.raises(UsageError, match="ROOFLAB_MODE is one of"):
        laboratory.open("auto")
    monkeypatch.delenv("ROOFLAB_MODE")
    with pytest.raises(UsageError, match="EFFORT is one of full, quick, not 'some'"):
        laboratory.open("replay", effort="some")
    known = r"\(h100-sxm-x2, h200, h200-x2, h200-x4\)"
    with pytest.raises(UsageError, match=f"no recording 'h300': name one of data/'s {known}"):
        laboratory.open("replay", "h300")


def test_replay_returns_the_rows_asked_for_in_their_order():
    lab = laboratory.open("replay", "h200")
    cases = bandwidth.ladder("copy")[::-1]
    frame = lab.measure("bandwidth", cases)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["case"].tolist() == [case.id for case in cases]
    pd.testing.assert_frame_equal(frame, laboratory.open("replay", "h200").measure("bandwidth", cases))


def test_a_case_without_a_recording_names_itself_and_the_command():
    lab = laboratory.open("replay", "h200")
    cases = bandwidth.ladder("copy", 12344)
    with pytest.raises(MissingRecording) as error:
        lab.measure("bandwidth", cases)
    text = str(error.value)
    assert "h200/bandwidth lacks `copy/1_scalar n=12344 cold graph` and 6 more; the nearest" in text
    command = text.split("`")[-2]
    assert command.startswith("rooflab measure bandwidth --case 'copy/1_scalar n=12344 cold graph' --case")
    asked = parser().parse_args(shlex.split(command)[1:])
    assert asked.case == [case.id for case in cases]  # the command measures what is missing
    with pytest.raises(MissingRecording, match="environment_nsys lacks `.*` and 1 more"):
        lab.profile("environment", environment.caches((64,)), "nsys")
    with pytest.raises(UsageError, match="no instrument 'gprof'; there are ncu, nsys"):
        lab.profile("environment", [], "gprof")


def test_what_a_recording_holds_of_some_cases_is_told(monkeypatch):
    lab = laboratory.open("replay", "h200")
    held = bandwidth.ladder("copy")[:2]
    assert lab.held("bandwidth", [*bandwidth.ladder("copy", 12344), *held]) == held
    profiled = studies.get("bandwidth").profiles()[0][1]
    assert lab.held("bandwidth", profiled, studies.get("bandwidth").profiles()[0][0]) == profiled
    monkeypatch.setattr(lab, "mode", "live")
    assert lab.held("bandwidth", bandwidth.ladder("copy", 12344)) == bandwidth.ladder("copy", 12344)


def test_profiles_come_back_in_the_order_of_the_cases():
    lab = laboratory.open("replay", "h200")
    cases = bandwidth.profiled()[::-1]
    frame = lab.profile("bandwidth", cases, "ncu")
    assert frame["case"].tolist() == [case.id for case in cases]
    assert (frame["dram_bytes"] > 0).all()


def test_a_recording_may_be_a_folder_anywhere(tmp_path):
    shutil.copytree(paths.DATA / "h200", tmp_path / "my-gpu")
    text = (tmp_path / "my-gpu" / "runs.csv").read_text().replace(",h200,", ",my-gpu,")
    (tmp_path / "my-gpu" / "runs.csv").write_text(text)
    with pytest.raises(UsageError, match="changed after the recording was sealed"):
        laboratory.open("replay", str(tmp_path / "my-gpu"))
    seal.seal(tmp_path / "my-gpu")
    lab = laboratory.open("replay", str(tmp_path / "my-gpu"))
    assert lab.device == "my-gpu"
    assert lab.spec is not None and lab.spec.slug == "h200"
    assert len(lab.measure("bandwidth", bandwidth.ladder("read"))) == 6


def test_the_roof_is_read_from_the_recording():
    roof = laboratory.open("replay", "h200").roof
    assert {"dram_read", "dram_copy", "dram_write", "dram_triad", "pcie_h2d", "fp32", "fp16_tensor"} <= set(
        roof
    )
    assert roof["dram_read"].unit == "GB/s"
    assert roof["dram_read"].case.startswith("read/")


def test_a_published_device_is_a_recording_too():
    lab = laboratory.open("replay", "rtx-4090-published")
    assert len(lab.store.runs()) > 0


def test_record_refuses_a_study_that_does_not_exist():
    with pytest.raises(UsageError, match="no study or lesson 'bandwith'; there are 00, 01, "):
        list(recording.studies_named(["bandwith"]))
    assert [study.name for study in recording.studies_named(["01", "static"])] == [
        "bandwidth",
        "power",
        "static",
    ]


def test_the_committed_recording_is_sound():
    assert [str(finding) for finding in laboratory.freshness("h200") if finding.severity == "error"] == []


class Picky(studies.get("bandwidth").__class__):
    """The study of lesson 01 on a machine where nothing but one rung can run."""

    def measure_group(self, group, context):
        row = {**group[0].row(), "median_us": 2.0, "q1_us": 1.9, "q3_us": 2.1, "samples": 20, "bytes": 4000}
        row |= {"identity": self.identity(group[0], None), "roof": "dram_read"}
        skipped = {case.id: "torch is not installed, alas" for case in group[1:]}
        return base.Outcome([row], skipped)


def test_what_could_not_run_is_recorded_as_skipped_and_left_out_of_replay(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "_STUDIES", {**studies._STUDIES, "bandwidth": Picky()})
    monkeypatch.setattr(session, "require_gpu", lambda: None)
    monkeypatch.setattr(session, "this_arch", lambda: None)
    monkeypatch.setattr(session, "run_facts", lambda *_: {"gpu": "NVIDIA H200", "driver": "580"})
    cases, said = bandwidth.ladder("read", 1000), []
    lab = laboratory.Lab("live", "h200", "full", Store(tmp_path, "h200"), said.append)
    lab.__dict__["spec"] = None
    assert lab.measure("bandwidth", cases)["case"].tolist() == [cases[0].id]
    assert "bandwidth skipped read/torch.sum peer" in said[-1] and "alas" in said[-1]
    replay = laboratory.Lab("replay", "h200", "full", Store(tmp_path, "h200"))
    assert replay.measure("bandwidth", cases)["case"].tolist() == [cases[0].id]
    text = (tmp_path / "h200" / "bandwidth.csv").read_text()
    assert '"skipped: torch is not installed, alas"' in text
    findings = validate(tmp_path / "h200", changed=lambda case, held: Picky().changed(case, held, None))
    assert [f for f in findings if "skipped" in f.sentence or "stale" in f.sentence] == []
    # What was skipped stands as long as its surroundings do; then the whole comparison is measured again.
    lab.measure("bandwidth", cases)
    assert len(said) == len(cases)
    monkeypatch.setattr(session, "find_spec", lambda package: package == "torch")
    lab.measure("bandwidth", cases)
    assert len(said) == 2 * len(cases), "the peer was installed since"
    monkeypatch.setattr(session, "find_spec", lambda package: None)
    lab.measure("bandwidth", cases)
    assert len(said) == 2 * len(cases)
    newer = {"gpu": "NVIDIA H200", "driver": "580", "commit": "0123456789ab"}
    monkeypatch.setattr(session, "run_facts", lambda *_: newer)
    tried = lab.stale(Picky(), cases)
    assert {case.kind for case in cases if case.id in tried} == {"own"}, "a peer's code is not ours"
    lab.measure("bandwidth", cases)
    assert len(said) == 3 * len(cases), "other code may run what could not run before"


def _live(tmp_path, monkeypatch, study=None, **facts):
    """A live lab without a GPU, whose one study measures nothing really."""
    monkeypatch.setattr(studies, "_STUDIES", {**studies._STUDIES, "bandwidth": study or Picky()})
    monkeypatch.setattr(session, "require_gpu", lambda: None)
    monkeypatch.setattr(session, "this_arch", lambda: None)
    found = {"gpu": "NVIDIA H200", "driver": "580", **facts}
    monkeypatch.setattr(session, "run_facts", lambda *_: found)
    lab = laboratory.Lab("live", "h200", "full", Store(tmp_path, "h200"))
    lab.__dict__["spec"] = None
    return lab


def test_a_lab_that_measures_nothing_leaves_no_run(tmp_path, monkeypatch):
    lab, cases = _live(tmp_path, monkeypatch), bandwidth.ladder("read", 1000)
    lab.measure("bandwidth", cases)
    first = lab.run["run"]
    lab.close()
    again = _live(tmp_path, monkeypatch)
    assert again.run["run"] == first and len(again.measure("bandwidth", cases)) == 1
    again.close()
    assert len(again.store.runs()) == 1
    other = _live(tmp_path, monkeypatch, driver="590")
    assert other.run["run"] != first, "another driver is another run"


def test_a_study_s_run_is_the_newest_that_its_rows_come_from(tmp_path, monkeypatch):
    lab = _live(tmp_path, monkeypatch)
    assert lab.run_of("bandwidth")["run"] == lab.run["run"]  # no rows yet
    lab.measure("bandwidth", bandwidth.ladder("read", 1000))
    first = lab.run["run"]
    lab.close()
    later = lab.store.begin({"gpu": "NVIDIA H200", "driver": "580", "started": "2030-01-01T00:00:00Z"})
    replayed = laboratory.Lab("replay", "h200", "full", lab.store)
    assert replayed.run["run"] == later != first == replayed.run_of("bandwidth")["run"]
    assert replayed.run_of("gemv")["run"] == later


def test_a_recording_stops_in_time_and_goes_on_from_there(tmp_path, monkeypatch):
    cases = bandwidth.ladder("read", 1000) + bandwidth.ladder("copy", 1000)
    lab = _live(tmp_path, monkeypatch)
    moments = iter([0.0, 2.0])
    monkeypatch.setattr(session.time, "monotonic", lambda: next(moments))
    lab.until = 1.0
    with pytest.raises(OutOfTime, match="what was measured is kept"):
        lab.measure("bandwidth", cases)
    assert set(lab.store.read("bandwidth")["operator"]) == {"read"}
    assert lab.stale(Picky(), cases) == {case.id for case in cases if case.operator == "copy"}


def test_a_lab_tells_who_watches_what_it_was_asked_for(tmp_path, monkeypatch):
    ledger = tmp_path / "x.ledger"
    monkeypatch.setenv("ROOFLAB_LEDGER", str(ledger))
    cases = bandwidth.ladder("read", 1000)
    _live(tmp_path, monkeypatch).measure("bandwidth", cases)
    _live(tmp_path, monkeypatch).measure("bandwidth", cases)
    first, second = map(json.loads, ledger.read_text().splitlines())
    assert first["asked"] == second["asked"] == [case.id for case in cases]
    assert first["measured"] == [cases[0].id] and first["run"].endswith(".1")
    assert second["measured"] == [] and second["run"] == ""
    assert first["skipped"] == second["skipped"] == [case.id for case in cases[1:]]
    ledger.unlink()
    replay = laboratory.open("replay", "h200")
    replay.profile("bandwidth", bandwidth.profiled(), "ncu")
    entry = json.loads(ledger.read_text())
    assert entry["tool"] == "ncu" and len(entry["asked"]) == len(bandwidth.profiled())


def test_what_cases_launch_is_compiled_on_all_cores_ahead(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling.os, "cpu_count", lambda: 2)
    study, cases = studies.get("bandwidth"), [c for c in bandwidth.ladder("read") if c.kind == "own"]
    built = {build[0].name for case in cases for build in study.builds(case)}
    said: list[str] = []
    compiling.compile_ahead([(study, cases)], "80", Progress(said.append))
    assert said[0].startswith(f"0 of {len(built)} cases, 1 s left: compiling read/")
    assert len(list(tmp_path.glob("*.cubin"))) == len(built) == len(cases) > 3
    monkeypatch.setattr(compiling, "ProcessPoolExecutor", None)
    compiling.compile_ahead([(study, cases)], "80", Progress(said.append))  # all is there


class Streams(studies.get("bandwidth").__class__):
    """The study of lesson 01 where everything takes two microseconds."""

    def measure_group(self, group, context):
        times = {"median_us": 2.0, "q1_us": 1.9, "q3_us": 2.1, "samples": 20, "bytes": 4000, "flops": 4000}
        roofs = {case.id: in_state(self.count(case).roof, case.state) for case in group}
        return base.Outcome([{**c.row(), **times, "identity": "x", "roof": roofs[c.id]} for c in group], {})


def test_a_roof_that_is_missing_is_measured_by_the_one_case_it_needs(tmp_path, monkeypatch):
    lab = _live(tmp_path, monkeypatch, Streams(), sms=60)
    assert not lab.roof and [*lab.roof] == []  # no roof is measured before one is asked for
    for count, name in enumerate(("dram_read", "pcie_h2d", "fp16_tensor", "fp16_tensor_sustained"), 1):
        assert name in lab.roof and lab.roof[name].value > 0
        rows = lab.store.read("bandwidth")
        assert len(rows) == len(lab.roof) == count and rows["roof"].tolist().count(name) == 1
    assert "l2_read" not in lab.roof and lab.roof.get("l2_read") is None  # which no case establishes
    assert set(lab.store.read("bandwidth")["case"]) <= {case.id for case in bandwidth.ceilings("full")}


@pytest.mark.parametrize("effort", laboratory.EFFORTS)
def test_every_ceiling_has_the_case_it_needs(effort):
    count = studies.get("bandwidth").count
    known = {in_state(count(c).roof, c.state) for c in bandwidth.ceilings(effort)} - {""}
    assert {"dram_read", "dram_triad", "pcie_h2d", "int8_tensor", "fp16_tensor_sustained"} <= known
    for name in known:
        [case] = bandwidth.ceiling(name, effort)
        assert case in bandwidth.ceilings(effort)
    listed = studies.get("bandwidth").cases(effort, session.devices.get("h200"))
    assert {case.id for case in bandwidth.ceilings(effort)} <= {case.id for case in listed}
