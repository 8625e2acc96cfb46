"""Lessons with other parameters than their own: every combination of mode, effort and a recording's effort,
and every parameter over usual, odd and absurd values.

Whole that is minutes of CPU time, so a share of it is drawn by a seed; ROOFLAB_TURNS_SEED names another one,
ROOFLAB_ALL_TURNS=1 runs all.
"""

import itertools
import os
import random
import re
from pathlib import Path

import pytest
import replaying
from rooflab import lab, paths
from rooflab.book import batch, lessons, parameters, run
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.records.store import Store
from stand_in import INSTRUMENTS, Machine

ALL = bool(os.environ.get("ROOFLAB_ALL_TURNS"))
SEED = os.environ.get("ROOFLAB_TURNS_SEED", "1")


def share(every: list, of: int) -> list:  # type: ignore[type-arg]
    """All of them, or `of` of them by the seed."""
    return every if ALL else random.Random(SEED).sample(every, min(of, len(every)))


GPUS = ("t4", "rtx-3060", "b200")
OWN = {
    (lesson.stem, one.name): one
    for lesson in lessons.all_lessons()
    for one in parameters.of(lesson)
    if one.name not in ("MODE", "DEVICE", "EFFORT", "WEIGHTS")  # which every lesson has, or takes a path
}


def turns() -> list[tuple[str, str, object]]:
    """(lesson, parameter, value): the edges of what a parameter takes, a usual and an odd value between."""
    found: list[tuple[str, str, object]] = []
    for (stem, name), one in OWN.items():
        takes = one.takes
        assert takes is not None
        values: list[object] = [*takes.choices]
        if not values:
            step, low = takes.step, -(-takes.low // takes.step) * takes.step
            odd = min(takes.high, low + 1237 * step)
            values = [low, odd, min(takes.high // step * step, 4096 * step), takes.high // step * step]
        many = one.type.startswith("list")
        found += [(stem, name, [value] if many else value) for value in dict.fromkeys(values)]
    return found


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording made with little effort."""
    return Machine("rtx-4090").record(tmp_path_factory.mktemp("quick"), effort="quick")


@pytest.mark.parametrize("asked", lab.EFFORTS)
def test_a_replay_shows_what_was_recorded_whatever_effort_is_asked_for(quick: Path, asked: str) -> None:
    assert lab.open("replay", str(quick), asked).effort == "quick"
    assert lab.open("replay", "h200", asked).effort == "full"
    lessons = share(replaying.lessons(), 2)
    for recording in (quick, "h200"):
        parts = [str(one) for one in replaying.replay(recording, lessons, EFFORT=asked) if not one.whole]
        assert not parts, f"{SEED}: " + "\n".join(parts)


def test_the_batch_that_readme_names_runs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.hardware.device.has_gpu", lambda: False)
    jobs = batch.read(paths.ROOT / "examples" / "batch.yml")
    assert run.other_efforts(jobs) == {("h200", "full")}  # one set asks for little effort
    for job in jobs:
        [page] = replaying.replay("h200", [job.lesson.stem], EFFORT=job.values.get("EFFORT", "full"))
        assert page.whole, str(page)


@pytest.mark.parametrize(("stem", "name"), OWN)
def test_a_parameter_says_what_it_takes_and_refuses_the_rest(stem: str, name: str) -> None:
    one = OWN[stem, name]
    assert one.takes is not None, f"the comment of {name} does not say what it takes"
    if one.default is not None:
        assert one.value(one.default) == one.default
    wrong: list[object] = ["", "q4_k", -1]
    if not one.takes.choices:
        wrong += [one.takes.low - 1, one.takes.high + 1, 10**30, 0.5, "many"]
        wrong += [one.takes.low + 1] if one.takes.step > 1 else []
    lesson = lessons.find([stem])
    for value in wrong:
        with pytest.raises(UsageError) as error:
            parameters.assign(lesson, {name: value})
        assert str(error.value).startswith(f"{name} takes") and "\n" not in str(error.value)


@pytest.mark.parametrize(("stem", "name", "value"), share(turns(), 8))
def test_a_replay_says_what_it_lacks_of_any_value(stem: str, name: str, value: object) -> None:
    [page] = replaying.replay("h200", [stem], **{name: value})
    assert page.error is None, str(page)


@pytest.mark.share(3)
@pytest.mark.parametrize(("gpu", "turn"), share(list(itertools.product(GPUS, turns())), 5), ids=str)
def test_a_lesson_measures_any_value_that_it_takes(
    gpu: str, turn: tuple[str, str, object], tmp_path: Path
) -> None:
    """With little effort, from an empty store: cases, record and page are those of a GPU."""
    stem, name, value = turn
    [page] = replaying.live(Machine(gpu), tmp_path, [stem], **{name: value})
    assert page.error is None, str(page)
    assert all("cannot run on" in text or "of a cell above" in text for text in page.lacking), str(page)


def test_a_shape_beyond_the_list_is_measured_and_shown(tmp_path: Path) -> None:
    [page] = replaying.live(Machine("t4"), tmp_path, ["07_regimes"], N=5120, K=5120)
    assert page.whole, str(page)
    rows = Store(tmp_path, device.slug(Machine("t4").reported)).read("regimes")
    mine = rows[(rows["n"] == 5120) & (rows["k"] == 5120)]
    assert {"cublas", "fused"} <= set(mine["impl"]) and mine["median_us"].notna().any()
    assert any(re.search("5,?120 [x×] 5,?120", str(each.outputs)) for each in page.shown)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("stem", "operators"),
    [
        ("01b_roofs", {"read", "copy"}),
        ("04c_batch", {"int4"}),
        ("05d_mmq", {"mmq"}),
        ("06b_wide", {"attention"}),
    ],
)
def test_a_lesson_measures_no_operator_in_states_that_it_does_not_show(
    stem: str, operators: set[str], tmp_path: Path
) -> None:
    [page] = replaying.live(Machine("b200"), tmp_path, [stem])
    assert page.error is None, str(page)
    rows = Store(tmp_path, device.slug(Machine("b200").reported)).read("power")
    assert set(rows["operator"]) == operators


# Lessons that looked at what the ones before them had left, and ended in an error where that was little.
AFTER = ["00a_environment", "00b_clocks", "05d_mmq", "05e_tokens", "06c_trust", "07_regimes", "08b_prefill"]


@pytest.mark.ci
@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("gpu", "lacks"),
    itertools.product(GPUS, ((), INSTRUMENTS)) if ALL else [("t4", ()), ("t4", INSTRUMENTS)],
)
def test_lessons_follow_each_other_on_a_gpu_that_lacks_much(
    gpu: str, lacks: tuple[str, ...], tmp_path: Path
) -> None:
    """Each finds in the store what those before it left, and says in words what this GPU cannot do."""
    machine = Machine(gpu, frozenset(lacks))
    stems = replaying.lessons() if ALL else sorted({*AFTER, *share(replaying.lessons(), 2)})
    for page in replaying.live(machine, tmp_path, stems):
        assert page.whole, f"{SEED}: {page}"


def test_what_an_earlier_lesson_left_unmeasured_is_measured_and_not_borrowed(tmp_path: Path) -> None:
    for page in replaying.live(Machine("rtx-3060"), tmp_path, ["05_q8_0", "05c_around"]):
        assert page.whole, str(page)
        assert not any("figures that follow" in str(each.outputs) for each in page.shown)
