"""Two processes, each on a GPU of its own, that record into one store at the same time."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock, Timeout
from rooflab import paths, studies
from rooflab.errors import UsageError
from rooflab.lab import locks
from rooflab.records import store as stores
from rooflab.records.case import Case
from rooflab.records.store import Store
from rooflab.records.validate import validate

MANY = 40
# A recording without a GPU: studies of few cases that measure nothing really, slowly.
RECORDER = """
import sys, time
from pathlib import Path
import pandas as pd
from rooflab import paths, studies
from rooflab.errors import OutOfTime
from rooflab.hardware import device
from rooflab.lab import announcing, recording, session
from rooflab.studies import base

root, gpu, pause, names = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]
device.uuid = lambda: gpu
device.probe = lambda: {"gpu": "NVIDIA H200", "driver": "580", "compute_capability": (9, 0)}
for module in (announcing, recording, session):
    module.require_gpu, module.this_arch = lambda: None, lambda: None
recording.warm_ahead = lambda wanted, progress: None
paths.BUILD = root / "build"
session.take = lambda study, cases, tool, metrics: pd.DataFrame(
    {"case": [c.id for c in cases], "refused": True, "when": "before", "sentence": "no"})

def shortened(name):
    class Short(type(studies.get(name))):
        def cases(self, effort="full", device=None):
            return super().cases(effort, device)[:MANY]

        after = ("bandwidth",) if name == "attention" else ()

        def profiles(self, effort="full", device=None):
            return [("gate", self.cases(effort, device)[:3], None)]

        def measure_group(self, group, context):
            time.sleep(pause)
            rows = [{**c.row(), "median_us": 2.0, "q1_us": 1.9, "q3_us": 2.1, "samples": 20, "bytes": 9000,
                     "flops": 9000, "roof": self.count(c).roof, "identity": self.identity(c, None),
                     "error": 0.0, "error_budget": 1.0}
                    for c in group]
            return base.Outcome(rows)

    return Short()

studies._STUDIES.update({name: shortened(name) for name in ("bandwidth", "gemv", "attention")})
print("ready", flush=True)
try:
    recording.record(names, "full", lambda line: print(line, flush=True), float(sys.stdin.readline()))
except OutOfTime as error:
    print(error)
""".replace("MANY", str(MANY))


def recorder(root: Path, gpu: str, *names: str, pause: float = 0.02) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(stores.__file__).parents[2])}
    environment["ROOFLAB_STORE"] = str(root)
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(root), gpu, str(pause), *names],
        **{"env": environment, "stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True},
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def start(child: subprocess.Popen, seconds: float = 600) -> None:
    child.stdin.write(f"{seconds}\n")
    child.stdin.flush()


def until(child: subprocess.Popen, words: str) -> str:
    """The first line that a child says from now on in which the pattern is found."""
    return next(line for line in child.stdout if re.search(words, line))


MEASURED = r"^[1-9]\d* of \d+ cases"  # rows are on the disk


def go(*children: subprocess.Popen) -> list[str]:
    for child in children:
        start(child)
    said = [child.communicate(timeout=600) for child in children]
    assert [child.returncode for child in children] == [0] * len(children), [error for _, error in said]
    return [output for output, _ in said]


def sound(store: Store) -> None:
    """Every row is there once, with its share of the roof, in a run that ended; nothing else is found."""
    findings = [str(finding) for finding in validate(store.folder) if "no clean commit" not in str(finding)]
    assert findings == []
    for study in ("bandwidth", "gemv"):
        rows = store.read(study)
        assert len(rows) == MANY and not rows["case"].duplicated().any()
        rated = rows[rows["roof"].isin(["dram_read", "dram_copy"])]
        assert len(rated) and rated["roof_fraction"].notna().all()
        profile = pd.read_csv(store.folder / "profiles" / f"{study}_gate.csv")
        assert set(profile["run"]) <= set(store.runs()["run"]) and len(profile) == 3


def test_two_processes_record_into_one_store(tmp_path):
    first = recorder(tmp_path, "GPU-0", "bandwidth")
    second = recorder(tmp_path, "GPU-1", "gemv")
    for output, study in zip(go(first, second), ("bandwidth", "gemv"), strict=True):
        assert f"{study} took" in output
    store = Store(tmp_path, "h200")
    sound(store)
    assert len(store.runs()) == 2
    runs = [set(store.read(study)["run"]) for study in ("bandwidth", "gemv")]
    assert all(len(each) == 1 for each in runs) and runs[0] != runs[1], "each writes rows of its own run"


def test_one_that_was_killed_goes_on_beside_the_other(tmp_path):
    killed = recorder(tmp_path, "GPU-1", "gemv", pause=0.7)
    start(killed)
    until(killed, MEASURED)
    killed.kill()
    killed.communicate()
    store = Store(tmp_path, "h200")
    done = store.read("gemv")["case"].tolist()
    assert 0 < len(done) < MANY
    go(recorder(tmp_path, "GPU-1", "gemv"), recorder(tmp_path, "GPU-0", "bandwidth"))
    rows = store.read("gemv").set_index("case")["run"]
    assert set(rows[done]) == {store.runs()["run"].iloc[0]}, "what was measured is not measured again"
    assert len(set(rows)) == 2 and not set(rows) & set(store.read("bandwidth")["run"])
    assert (store.runs()["finished"] == "").tolist() == [True, False, False]
    assert len(store.read("bandwidth")) == len(rows) == MANY


def test_a_study_that_another_process_records_is_refused(tmp_path):
    first = recorder(tmp_path, "GPU-0", "gemv", pause=5)
    start(first)
    until(first, "to measure")
    second = recorder(tmp_path, "GPU-1", "bandwidth", "gemv")
    _, error = second.communicate("600\n", timeout=600)
    assert second.returncode == 1
    assert f"UsageError: Another process records gemv into {tmp_path / 'h200'} already: name" in error
    assert "h200/bandwidth.csv" not in error and not (tmp_path / "h200" / "bandwidth.csv").exists()
    first.kill()
    first.communicate()


def test_a_study_waits_for_what_it_is_predicted_from(tmp_path):
    first = recorder(tmp_path, "GPU-0", "bandwidth", pause=0.4)
    second = recorder(tmp_path, "GPU-1", "attention", pause=0)
    start(first)
    until(first, MEASURED)
    start(second)
    waits = until(second, "waits")
    assert waits == "attention waits for bandwidth, which another process records\n"
    until(second, "of .* cases")
    assert len(Store(tmp_path, "h200").read("bandwidth")) == MANY, "its first row came after their last"
    for child in (first, second):
        child.communicate(timeout=600)
        assert child.returncode == 0


def test_what_is_waited_for_has_to_be_complete(tmp_path):
    first = recorder(tmp_path, "GPU-0", "bandwidth", pause=2.0)
    second, third = (recorder(tmp_path, f"GPU-{i}", "attention", pause=0) for i in (1, 2))
    start(first)
    until(first, MEASURED)
    start(third, 0.5)
    assert "not complete; run the same command again" in third.communicate(timeout=600)[0], "its time was up"
    start(second)
    assert until(second, "attention waits for bandwidth")
    first.kill()
    first.communicate()
    output, _ = second.communicate(timeout=600)
    assert "predicted from bandwidth, which is not complete; run the same command again" in output
    assert second.returncode == 0 and Store(tmp_path, "h200").read("attention").empty


def test_nobody_waits_for_one_that_waits_for_him():
    order = studies.names()
    for place, name in enumerate(order):
        assert set(studies.get(name).after) <= set(order[:place]), "what comes before is let go of before"


def test_a_claim_ends_with_its_study(tmp_path):
    store = Store(tmp_path, "h200")
    with locks.claim(store, "gemv"):
        locks.claim(store, "int4").release()
        with pytest.raises(UsageError, match="Another process records gemv"):
            locks.claim(store, "gemv")
    locks.claim(store, "gemv").release()


def test_only_those_on_one_gpu_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.paths, "BUILD", tmp_path)
    gpu, order = threading.local(), []
    monkeypatch.setattr(locks.devices, "uuid", lambda: gpu.name)
    measuring, enough = threading.Event(), threading.Event()

    def measure(name: str, label: str) -> None:
        gpu.name = name
        with locks.alone():
            order.append(label)
            measuring.set()
            if label == "first":
                enough.wait(30)
            order.append(f"{label} ended")

    def start(name: str, label: str) -> threading.Thread:
        thread = threading.Thread(target=measure, args=(name, label))
        thread.start()
        return thread

    first = start("GPU-0", "first")
    assert measuring.wait(30)
    same = start("GPU-0", "same")
    start("GPU-1", "other").join(30)
    enough.set()
    first.join(30)
    same.join(30)
    assert order == ["first", "other", "other ended", "first ended", "same", "same ended"]


def test_nothing_is_measured_while_another_process_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.paths, "BUILD", tmp_path)
    monkeypatch.setattr(locks.devices, "uuid", lambda: None)
    began = threading.Event()

    def measure() -> None:
        with locks.alone():
            began.set()

    with locks.compiling():
        thread = threading.Thread(target=measure)
        thread.start()
        assert not began.wait(0.3)
    assert began.wait(30)
    thread.join()


def test_roofs_are_read_when_nobody_else_writes(tmp_path):
    store = Store(tmp_path, "h200")
    run = store.begin({"gpu": "NVIDIA H200"})
    case = Case("gemv", "gemv", "1", n=4)
    store.add("gemv", [{**case.row(), "median_us": 2.0, "bytes": 4000, "roof": "dram_read"}], run)
    asked = []

    def roofs() -> dict[str, float]:
        with pytest.raises(Timeout):
            FileLock(store.folder / ".lock", timeout=0).acquire()
        asked.append(len(store.read("gemv")))
        return {"dram_read": 4.0}

    store.rederive(roofs)
    assert asked == [1] and store.read("gemv")["roof_fraction"].tolist() == [0.5]
    before = (store.folder / "gemv.csv").stat()
    store.rederive(roofs)
    assert (store.folder / "gemv.csv").stat() == before, "a table that stays as it is is not written"


def test_a_run_without_an_end_is_not_gone_on_from(tmp_path):
    store, facts = Store(tmp_path, "h200"), {"gpu": "NVIDIA H200", "driver": "580"}
    first = store.begin(facts)
    assert store.last_run(facts) is None
    store.finish(first)
    store.begin(facts)  # another process's, still under way
    assert store.last_run(facts) == first
    assert store.last_run({**facts, "driver": "590"}) is None


def test_the_suggested_halves_are_the_whole():
    text = (paths.ROOT / "lib" / "rooflab" / "book" / "add_your_gpu.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES=")]
    named = [word for line in lines for word in line.partition("rooflab record ")[2].strip("& ").split()]
    assert len(lines) == 2 and sorted(named) == sorted(
        name for name in studies.names() if not studies.get(name).everywhere
    )
