"""Recording, validating and replaying on GPUs that are not here, complete and with an instrument missing.

All of it would take half an hour of CPU time, so CI runs a share: three GPUs, every instrument, and every
second lesson on the shared GPU, whose recording is a quick one; a sixth of the lessons on a GPU with a full
one; on the other GPUs with a quick one a few lessons each; profilers and peers are missing several at once;
of the lessons that read what a missing instrument changes a sixth. `make test` leaves all but the shared GPU
and a missing torch to CI; ROOFLAB_ALL_MACHINES=1 runs every pair.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import replaying
from rooflab import lab, ops, studies
from rooflab.errors import MissingTool
from rooflab.records import csv_table, parsed, profiles
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.store import Store
from shares import CI
from stand_in import INSTRUMENTS, PEERS, REQUIRED, UNLISTED, Machine

ALL = bool(os.environ.get("ROOFLAB_ALL_MACHINES"))
GPUS = (
    "rtx-4090",
    *(("t4", UNLISTED.slug) if CI else ()),
    *(("b200", "rtx-3060", "a100-80gb") if ALL else ()),
)
EFFORTS = {UNLISTED.slug: "full"}  # where most is different; the others with little effort
LESSONS = replaying.lessons()[:: 1 if ALL else 2]
SHARED = "rtx-4090"  # on which instruments are missing
# Peers of one kernel each; without Triton or transformers others lack a part as well.
ASKED = [peer for peer in PEERS if peer not in ("triton", "transformers")]
PROFILERS = ("nsys", "ncu", "compute-sanitizer")
LACKS: list[tuple[str, ...]] = (
    [(tool,) for tool in INSTRUMENTS]
    if ALL
    else [("torch",), *([("transformers", *PROFILERS), ("triton", *ASKED)] if CI else [])]
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@cache
def recording(root: Path, machine: Machine) -> Path:
    """The folder of what `rooflab record` made on the machine."""
    return machine.record(root / "+".join([machine.gpu, *sorted(machine.lacks)]), effort=effort(machine.gpu))


def effort(gpu: str) -> str:
    return "full" if ALL else EFFORTS.get(gpu, "quick")


def unsound(machine: Machine, folder: Path) -> list[str]:
    with machine.present():
        found = lab.freshness(str(folder))
    return [str(finding) for finding in found if finding.severity == "error"]


def failed(machine: Machine, folder: Path, stems: list[str]) -> list[str]:
    replays = replaying.replay(folder, stems, EFFORT=effort(machine.gpu))
    return [str(one) for one in replays if not one.whole]


@contextmanager
def reading() -> Iterator[set[str]]:
    """The names of the tables that are read within it."""
    names: set[str] = set()

    def read(path: Path, *more: object) -> object:
        names.add(path.name)
        return real(path, *more)

    real = csv_table.read_texts
    with (
        mock.patch.dict(parsed._ROWS, clear=True),
        mock.patch.object(csv_table, "read_texts", read),
        mock.patch.object(profiles, "read_texts", read),
    ):
        yield names


@cache
def readers(root: Path) -> dict[str, set[str]]:
    """Which tables each lesson reads on the shared machine."""
    machine, found = Machine(SHARED), {}
    for stem in LESSONS:
        with reading() as names:
            assert failed(machine, recording(root, machine), [stem]) == []
        found[stem] = set(names)
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_records_what_validates_and_replays(gpu: str, root: Path) -> None:
    machine = Machine(gpu)
    folder = recording(root, machine)
    assert unsound(machine, folder) == []
    if gpu == SHARED:
        assert set(readers(root)) == set(LESSONS)
        return
    alike = [one for one in GPUS if one != SHARED and (one in EFFORTS) == (gpu in EFFORTS)]
    share = LESSONS[alike.index(gpu) :: 2 * len(alike) if effort(gpu) == "quick" else 12]
    assert failed(machine, folder, LESSONS if ALL else share) == []


@pytest.mark.parametrize("tools", LACKS, ids="+".join)
@pytest.mark.parametrize("gpu", GPUS if ALL else (SHARED,))
def test_a_missing_instrument_is_named_and_nothing_breaks(
    gpu: str, tools: tuple[str, ...], root: Path
) -> None:
    machine = Machine(gpu, frozenset(tools))
    folder, complete = recording(root, machine), recording(root, Machine(gpu))
    assert unsound(machine, folder) == []
    files = {path.name: path for path in folder.rglob("*.csv")}
    changed = {
        name for name, path in files.items() if path.read_bytes() != next(complete.rglob(name)).read_bytes()
    }
    for tool in tools:
        told = [path for name, path in files.items() if name in changed and tool in _reasons(path)]
        nothing = len(tools) == 1 and changed <= {"runs.csv"}
        assert told or nothing or not _timed(complete, tool), f"no row says that {tool} is missing"
    stems = [stem for stem, names in readers(root).items() if names & (changed - {"runs.csv"})]
    if not ALL:
        stems = stems[LACKS.index(tools) :: 12]
    assert failed(machine, folder, stems) == []


def _timed(folder: Path, peer: str) -> list[str]:
    """The cases of a recording that a peer was timed in."""
    store, found = Store(folder.parent, folder.name), []
    for study in (studies.get(name) for name in studies.names() if peer in ASKED):
        rows = store.read(study.name)
        timed = rows[(rows["kind"] != "own") & rows["median_us"].notna()]
        found += [case for case in timed["case"] if study.needs(study.case(case)) == peer]
    return found


def _reasons(path: Path) -> str:
    return " ".join(word for line in path.read_text().splitlines() if SKIPPED in line for word in [line])


@pytest.mark.parametrize("tool", REQUIRED)
def test_what_is_needed_to_record_is_named_before_anything_is_written(tool: str, root: Path) -> None:
    machine = Machine(SHARED, frozenset({tool}))
    with pytest.raises(MissingTool) as stopped:
        machine.record(root / tool, effort="quick")
    assert {"cupy": "CuPy", "nvrtc": "NVRTC"}.get(tool, tool) in str(stopped.value)
    assert not list((root / tool).rglob("runs.csv"))
    assert unsound(machine, recording(root, Machine(SHARED))) == [], "validating needs none of them"


def test_what_a_t4_cannot_do_is_skipped_by_name(root: Path) -> None:
    store = Store(recording(root, Machine("t4")).parent, "t4")
    for study in ("decode", "prefill"):
        rows = store.read(study)
        own = rows[(rows["kind"] == "own") & (rows["model"] != "gemma-4-e4b")]
        assert len(own) and own["identity"].str.startswith(f"{SKIPPED}No ring of decode_step fits").all()
    attention = store.read("attention")
    assert attention[attention["format"] == "bf16"]["identity"].str.contains("bf16 products need").all()
    assert store.read("gemv")["median_us"].notna().all() and store.read("q8_0")["median_us"].notna().any()


def test_a_launcher_of_ours_that_refuses_is_skipped_and_a_wrong_one_is_not() -> None:
    from rooflab.errors import GateError, LaunchError
    from rooflab.studies import base

    study, machine = studies.get("gemv"), Machine("rtx-3060")
    cases = study.cases("quick")[:1]
    for error, taken in ((LaunchError("n is too large."), True), (GateError("wrong."), False)):
        with machine.present(), mock.patch.object(base.gate, "admit", mock.Mock(side_effect=error)):
            if taken:
                assert list(study.measure_group(cases, base.Context()).skipped.values()) == [str(error)]
            else:
                with pytest.raises(GateError):
                    study.measure_group(cases, base.Context())


def test_the_gpu_at_hand_is_the_recorded_one_while_it_is_judged() -> None:
    with ops.as_on("t4", "75"):
        assert ops.this_arch() == ops.known_arch() == "75" and ops.this_gpu() == ("t4", "75")
        with ops.as_on(None, "89"):
            assert ops.this_gpu() == (None, "89")
        assert ops.this_arch() == "75"
