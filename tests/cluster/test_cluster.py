"""Batches and recordings on a real scheduler with workers in processes of their own.

ROOFLAB_CLUSTER_RUNS=200 runs so many lessons of the course in place of a few small ones.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from cluster_workers import Fleet, fleet
from rooflab import cli, cluster, commands, paths
from rooflab.book import batch, lessons
from rooflab.cluster import batches, recordings, workers
from rooflab.errors import MissingTool, OutOfTime, RooflabError, UsageError
from rooflab.records import profiles
from rooflab.records.store import Store
from rooflab.records.validate import validate
from stand_in import Machine

pytest.importorskip("distributed", reason="needs Dask distributed")
RUNS = int(os.environ.get("ROOFLAB_CLUSTER_RUNS", "4"))
COURSE = RUNS > 50


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def jobs(lesson: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list:
    """A batch of RUNS lessons, each with a value of its own."""
    monkeypatch.setattr(batch, "OUTPUT", tmp_path / "batch")
    lesson("00_first", f"open({str(tmp_path / 'ran')!r}, 'a').write(f'{{N}}\\n')", "print('n is', N)")
    folder = None if COURSE else tmp_path / "notebooks"
    many = -(-RUNS // len(lessons.find([], folder)))
    parameters = {} if COURSE else {"parameters": {"N": 0}}
    sets = {f"s{i}": {"mode": "replay", **parameters} for i in range(many)}
    for number, chosen in enumerate(sets.values()):
        if "parameters" in chosen:
            chosen["parameters"] = {"N": number}
    path = tmp_path / "sets.yml"
    path.write_text(yaml.safe_dump({"limit": 30, "sets": sets}))
    return batch.read(path, folder, elsewhere=True)[:RUNS]


@pytest.mark.ci
def test_a_batch_loses_nothing_with_a_worker_and_repeats_nothing(
    machines: Fleet, jobs: list, tmp_path: Path
) -> None:
    while len(machines.workers()) < 2:
        machines.worker()
    chance, lines = random.Random(time.time_ns()), []
    victim, after = chance.choice(machines.workers()), chance.randrange(1, RUNS // 2)

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if line.startswith(f"{after}/"):
            time.sleep(chance.random())
            machines.kill(victim)

    outcomes = batches.run_all(machines.address, jobs, tmp_path / "data", say)
    assert [outcome.job.label for outcome in outcomes] == [job.label for job in jobs]
    assert [(outcome.ending, outcome.message) for outcome in outcomes] == [("ok", "")] * RUNS, (
        f"after {after}"
    )
    for job in jobs:
        assert len([line for line in lines if f" {job.label}: " in line]) == 1
    written = sorted((tmp_path / "batch").rglob("*"))
    assert [path for path in written if path.is_file()] == sorted(job.output for job in jobs)
    if not COURSE:
        for job in jobs:
            assert f"n is {job.values['N']}" in job.output.read_text()
        ran = (tmp_path / "ran").read_text().split()
        assert set(ran) == {str(job.values["N"]) for job in jobs} and RUNS <= len(ran) <= RUNS + 1
    before, lines[:] = [job.output.stat().st_mtime_ns for job in jobs], []
    jobs[0].output.write_text("{}")
    again = batches.run_all(machines.address, jobs, tmp_path / "data", say)
    assert [outcome.ending for outcome in again] == ["ok"] * RUNS
    assert len([line for line in lines if line.startswith("1/1 ")]) == 1, "one was damaged and ran again"
    assert [job.output.stat().st_mtime_ns for job in jobs[1:]] == before[1:]


NAMES = ("environment", "gemv")


def rows(store: Store, study: str) -> list[dict]:
    return store.read(study).drop(columns="run").astype(str).to_dict("records")


def errors(store: Store) -> list[str]:
    return [str(found) for found in validate(store.folder) if found.severity == "error"]


@pytest.mark.ci
def test_a_fleet_gives_each_of_its_gpus_a_recording(machines: Fleet, tmp_path: Path) -> None:
    for gpu in ("rtx-4090", "t4", "rtx-4090"):
        machines.worker(gpu, "GPU", gpu)
    killed: list[str] = []

    def say(line: str, lines: list[str]) -> None:
        lines.append(line)
        print(line, flush=True)
        if line.startswith("rtx-4090 gemv ") and " 3/" in line and not killed:
            killed.append(line.split()[-1])
            machines.kill(killed[0])

    def call(names=NAMES, **more) -> list[str]:
        lines: list[str] = []
        recordings.record(
            machines.address, names, tmp_path / "data", "quick", say=lambda x: say(x, lines), **more
        )
        return lines

    said = call()
    assert len(killed) == 1 and any("is gone, so the rest goes to another" in line for line in said)
    for gpu in ("rtx-4090", "t4"):
        store, direct = Store(tmp_path / "data", gpu), Store(tmp_path / "direct", gpu)
        Machine(gpu).record(tmp_path / "direct", *NAMES, effort="quick")
        for study in NAMES:
            assert rows(store, study) == rows(direct, study)
        for path in (direct.folder / "profiles").glob("*.csv"):
            tables = [profiles.texts(each) for each in (path, store.folder / "profiles" / path.name)]
            assert len(tables[0]) and tables[0].drop(columns="run").equals(tables[1].drop(columns="run"))
            assert set(tables[1]["run"]) <= set(store.runs()["run"])
        assert len(store.runs()) == 1 + (gpu == "rtx-4090") and (store.runs()["finished"] != "").all()
        assert "scheduler" not in " ".join(store.runs()["command"])
        assert errors(store) == errors(direct)
    done = [line for line in said if " on tcp://" in line]
    assert len(done) == len({line.rpartition(":")[0] for line in done}), "no task came back twice"
    again = call()
    assert not [line for line in again if " on tcp://" in line], "nothing is measured a second time"
    with pytest.raises(UsageError, match="There is no study or lesson 'gemm'"):
        call(["gemm"])
    with pytest.raises(OutOfTime, match="what came back is kept"):
        call(seconds=0.0)
    with pytest.raises(RooflabError, match="resource b200 .workers have GPU, rtx-4090, t4.: start one"):
        call(gpus=["b200"])
    assert call(["gemv"], gpus=["t4"])[0].startswith(f"{machines.address}: t4.")


def test_a_value_that_went_with_its_worker_is_made_again(machines: Fleet) -> None:
    while len(machines.workers()) < 2:
        machines.worker()
    with cluster.connected(machines.address) as found:
        given = [cluster.Task(f"task {number}", workers.differing, ({},)) for number in range(12)]
        for task in given:
            found.submit(task)
        answers = []
        for answer in found.answers():
            if not answers:
                time.sleep(2)  # all have ended by now, and their values are at the workers
                machines.kill(machines.workers()[0])
            answers.append(answer)
    assert {answer.task for answer in answers} == set(given) and len(answers) == len(given)
    assert [(answer.value, answer.error) for answer in answers] == [([], "")] * len(given)


def test_what_is_wrong_with_a_cluster_is_a_sentence(
    machines: Fleet, jobs: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 1.0)

    def refused(address: str = machines.address) -> str:
        with pytest.raises(RooflabError) as caught:
            batches.run_all(address, jobs[:1], tmp_path, print)
        return str(caught.value)

    assert "no Dask scheduler answers at tcp://127.0.0.1:9: " in refused("tcp://127.0.0.1:9")
    for worker in machines.workers():
        machines.kill(worker)
    time.sleep(1)
    assert f"start one with `dask worker {machines.address}`" in refused()
    # A worker of another checkout: one whose kernels are elsewhere.
    (tmp_path / "data").mkdir()
    other = machines.worker(ROOFLAB_ROOT=str(tmp_path))
    assert f"worker {other} has another kernels than this machine: bring both to one commit" in refused()
    machines.kill(other)
    machines.worker()

    def say(line: str) -> None:
        print(line)
        machines.kill(machines.address)

    with pytest.raises(
        RooflabError, match=f"the Dask scheduler at {machines.address} is gone. What came back"
    ):
        batches.run_all(machines.address, jobs[:1], tmp_path, say)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["batch", "examples/batch.yml", "--scheduler", "head:8786"], "such as tcp://head:8786, or local:N"),
        (["batch", "examples/batch.yml", "--scheduler", "local:0"], "not 'local:0'"),
        (
            ["batch", "examples/batch.yml", "--scheduler", "tcp://head:8786", "-j", "2"],
            "-j is of this machine",
        ),
        (["record", "--scheduler", "http://head:8786"], "not 'http://head:8786'"),
        (["record", "--gpu", "h200"], "--gpu chooses among a cluster's workers: give --scheduler"),
        (["record", "links", "--scheduler", "tcp://head:8786"], "links measures several GPUs of one host"),
    ],
)
def test_a_wrong_call_is_a_sentence_before_anything_starts(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFLAB_STORE", "")
    monkeypatch.setenv("ROOFLAB_COMMAND", "")
    assert cli.main([str(paths.ROOT / word) if word.endswith(".yml") else word for word in words]) == 2
    assert says in capsys.readouterr().err


def test_without_dask_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingTool, match="pip install -r requirements-cluster.txt"),
        cluster.connected("local:1"),
    ):
        pass


def test_a_recorded_command_names_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--scheduler", "tcp://head:1"], ["--scheduler=tcp://head:1"], ["--sched", "tcp://head:1"]):
        monkeypatch.setattr(sys, "argv", ["rooflab", "record", *words, "gemv", "--effort", "quick"])
        assert commands._command() == "rooflab record gemv --effort quick"


def test_a_set_names_its_gpu_only_on_a_cluster(jobs: list, tmp_path: Path) -> None:
    path = tmp_path / "sets.yml"
    path.write_text("sets: {a: {lessons: [0], mode: live, gpu: rtx-4090}}")
    [job] = batch.read(path, tmp_path / "notebooks", elsewhere=True)
    assert job.gpu == "rtx-4090" and job.values == {"MODE": "live"}
    with pytest.raises(UsageError, match="set 'a': `gpu` chooses among a cluster's workers"):
        batch.read(path, tmp_path / "notebooks")
    path.write_text("sets: {a: {lessons: [0], gpu: 'a b'}}")
    with pytest.raises(UsageError, match="set 'a': `gpu` is the name of a GPU"):
        batch.read(path, tmp_path / "notebooks", elsewhere=True)
