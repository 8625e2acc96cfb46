"""What is said before lessons measure: the cases of their own pages, in the time that these take."""

import contextlib
import json
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import replaying
from IPython.core.interactiveshell import InteractiveShell
from rooflab import paths, studies
from rooflab.bench import clock
from rooflab.book import lessons, rehearsal, run
from rooflab.hardware import device
from rooflab.records.store import Store
from rooflab.studies.base import Outcome, Study
from rooflab.studies.estimates import FIRST_CALLS, Estimate
from stand_in import Machine

TURNS: list[tuple[str, str, dict[str, Any]]] = [
    ("h200", "03d_rows", {"N": 10240, "K": 2560, "MODEL": "mistral-nemo"}),
    ("h200", "06b_wide", {"SEQ": 3001, "WIDTH": 256}),
    ("t4", "07_regimes", {"N": 5120, "K": 5120}),
    ("rtx-3060", "04_int4", {}),
    ("b200", "01_bandwidth", {"N": 1_000_000}),
]


@contextlib.contextmanager
def shell() -> Iterator[None]:
    InteractiveShell.clear_instance()
    try:
        yield
    finally:
        InteractiveShell.instance().restore_sys_module_state()
        InteractiveShell.clear_instance()


def rehearsed(machine: Machine, store: Path, turns: list[tuple[str, dict[str, Any]]]) -> list[Estimate]:
    """What the lessons are said to measure on a machine, into its recording in `store`."""
    named = [
        (paths.NOTEBOOKS / f"{stem}.ipynb", {"MODE": "live", "EFFORT": "quick", **v}) for stem, v in turns
    ]
    with machine.present(), shell():
        return list(rehearsal.rehearsed(named, store / device.slug(machine.reported)))


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The cases that are really measured, and the seconds that their medians, samples and states take."""
    seen: dict[str, Any] = {"cases": set(), "seconds": 0.0, "calls": set()}
    real = Study.measure_group

    def measure_group(study: Study, group: Any, context: Any) -> Outcome:
        outcome = real(study, group, context)
        cases = {case.id: case for case in group}
        seen["cases"] |= {(study.name, name) for name in cases}
        for row in outcome.rows:
            case = cases[row["case"]]
            steps = dict(word.split("=") for word in case.options.split()).get("steps", 1)
            launch_us = row["median_us"] * (int(steps) if study.name == "decode" else 1)
            seen["seconds"] += study.setup_s
            seen["seconds"] += clock.seconds(launch_us, row["samples"], case.clock, case.state)
            first, columns = FIRST_CALLS.get(case.impl, (0.0, ()))
            call = (case.impl, *(getattr(case, column) for column in columns))
            seen["seconds"] += first * (call not in seen["calls"])
            seen["calls"].add(call)
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(Study, "measure_group", measure_group)
        yield seen


@pytest.mark.ci
@pytest.mark.share(3)
@pytest.mark.parametrize(("gpu", "stem", "values"), TURNS)
def test_a_lesson_measures_what_was_said_and_takes_as_long(
    gpu: str, stem: str, values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(gpu)
    [said] = rehearsed(machine, tmp_path, [(stem, values)])
    assert not any(tmp_path.iterdir()), "a rehearsal records nothing"
    with watched(monkeypatch) as seen:
        [page] = replaying.live(machine, tmp_path, [stem], **values)
    assert page.error is None, str(page)
    profiles = {
        key for key in said.parts if key[1] in ("ncu", "nsys", "cupti", "sanitizer", "gate", "checks")
    }
    assert set(said.parts) - profiles == seen["cases"]
    expected = sum(seconds for key, seconds in said.parts.items() if key not in profiles)
    assert seen["seconds"] / 1.5 < expected < 1.5 * seen["seconds"]
    # What is recorded now is not measured, nor counted, again.
    [again] = rehearsed(machine, tmp_path, [(stem, values)])
    assert not set(again.parts) - profiles


@pytest.mark.parametrize("stem", ["03d_rows", "04_int4", "06b_wide"])
def test_a_lesson_measures_no_more_of_the_roofs_than_its_page_needs(stem: str, tmp_path: Path) -> None:
    machine = Machine("rtx-4090")
    [page] = replaying.live(machine, tmp_path, [stem])
    assert page.error is None, str(page)
    store = Store(tmp_path, device.slug(machine.reported))
    rows = store.read("bandwidth")
    asked = 1 if stem == "03d_rows" else 0  # the read of the smallest array, to know what a start takes
    assert len(rows) - asked == rows["roof"].nunique(), "one case a roof"
    others = [store.read(name) for name in studies.names() if name not in ("bandwidth", "static")]
    needed = set().union(*(set(table["roof"].dropna()) for table in others))
    extra = set(rows["roof"]) - needed
    assert extra <= {"dram_read", "fp32", "fp16_tensor"}, "roofs that the page itself draws"


def test_lessons_share_what_one_of_them_measured(tmp_path: Path) -> None:
    first, second = rehearsed(Machine("l4"), tmp_path, [("03_coalescing", {}), ("03b_filling", {})])
    alone, *_ = rehearsed(Machine("l4"), tmp_path, [("03b_filling", {})])
    assert first.parts and set(second.parts) < set(alone.parts)


def test_the_runner_adds_what_the_process_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Estimate(device.get("l4")), Estimate(device.get("l4"))
    study = studies.get("attention")
    cases = study.cases("full")
    one.add(study, cases[:40])
    other.add(study, cases[40:])
    other.add_profile(study, cases[:3], "ncu")
    lines = "".join(json.dumps(each.as_json()) + "\n" for each in (one, other))
    script = f"import sys; sys.stdin.readline(); sys.stdout.write({lines!r})"
    monkeypatch.setattr(sys, "executable", sys.executable)
    real = rehearsal.subprocess.Popen
    monkeypatch.setattr(
        rehearsal.subprocess, "Popen", lambda words, **how: real([words[0], "-c", script], **how)
    )
    found = rehearsal.ask([(Path("a"), {}), (Path("b"), {})], tmp_path, lambda line: None)
    assert found is not None and found.profiled == 3
    assert found.seconds == pytest.approx(one.seconds + other.seconds)
    assert found.libraries["flash_attn_4"] == pytest.approx(
        one.libraries.get("flash_attn_4", 0) + other.libraries.get("flash_attn_4", 0)
    )
    assert rehearsal.ask([(Path("a"), {})] * 3, tmp_path, lambda line: None) is None, (
        "one lesson has no answer"
    )


def test_the_process_answers_a_line_a_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [Estimate(device.get("l4")), Estimate(device.get("l4"))]
    said[0].add_profile(studies.get("gemv"), studies.get("gemv").cases()[:2], "ncu")
    asked: list[Any] = []
    monkeypatch.setattr(rehearsal, "rehearsed", lambda jobs, folder: asked.append((jobs, folder)) or said)
    jobs = [["/a.ipynb", {"N": 3}], ["/b.ipynb", {}]]
    monkeypatch.setattr(sys, "stdin", StringIO(json.dumps({"folder": str(tmp_path), "jobs": jobs})))
    written = StringIO()
    monkeypatch.setattr(rehearsal.os, "dup", lambda number: 99)
    monkeypatch.setattr(rehearsal.os, "dup2", lambda *numbers: None)
    monkeypatch.setattr(rehearsal.os, "fdopen", lambda number, mode: written)
    rehearsal.main()
    assert asked == [([(Path("/a.ipynb"), {"N": 3}), (Path("/b.ipynb"), {})], tmp_path)]
    answers = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [each["profiled"] for each in answers] == [2, 0]


def test_all_lessons_live_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Estimate(device.get("l4"))
    study = studies.get("gemv")
    counted.add(study, study.cases("quick"))
    asked: list[Any] = []
    monkeypatch.setattr(rehearsal, "ask", lambda jobs, folder, say: asked.append(jobs) or counted)
    monkeypatch.setattr(device, "probe", lambda: {"gpu": "NVIDIA L4"})
    found = lessons.all_lessons(paths.NOTEBOOKS)[:3]
    jobs = [run.Job(lesson, Path("x"), {"MODE": mode}) for lesson in found for mode in ("live", "replay")]
    monkeypatch.setattr(run, "_durations", dict)
    measured = counted.seconds
    said = run.estimate(jobs)
    assert said is not None and said.seconds == pytest.approx(measured + 4.0 * len(jobs))
    assert [path for path, _ in asked[0]] == [lesson.path for lesson in found]
    monkeypatch.setattr(rehearsal, "ask", lambda *_: None)
    assert run.estimate(jobs) is None
