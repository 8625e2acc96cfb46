"""Lessons with other parameters than their own: every combination of mode, effort and a recording's effort,
and every parameter over usual, odd and absurd values.

Whole that is minutes of CPU time, so a share of it is drawn by a seed; ROOFLAB_TURNS_SEED names another one,
ROOFLAB_ALL_TURNS=1 runs all.
"""

import os
import random
from pathlib import Path

import pytest
import replaying
from rooflab import lab, paths
from rooflab.book import batch, run
from stand_in import Machine

ALL = bool(os.environ.get("ROOFLAB_ALL_TURNS"))
SEED = os.environ.get("ROOFLAB_TURNS_SEED", "1")


def share(every: list, of: int) -> list:  # type: ignore[type-arg]
    """All of them, or `of` of them by the seed."""
    return every if ALL else random.Random(SEED).sample(every, min(of, len(every)))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording made with little effort."""
    return Machine("rtx-4090").record(tmp_path_factory.mktemp("quick"), effort="quick")


@pytest.mark.parametrize("asked", lab.EFFORTS)
def test_a_replay_shows_what_was_recorded_whatever_effort_is_asked_for(quick: Path, asked: str) -> None:
    assert lab.open("replay", str(quick), asked).effort == "quick"
    assert lab.open("replay", "h200", asked).effort == "full"
    lessons = share(replaying.lessons(), 3)
    for device in (quick, "h200"):
        parts = [str(one) for one in replaying.replay(device, lessons, EFFORT=asked) if not one.whole]
        assert not parts, f"{SEED}: " + "\n".join(parts)


def test_the_batch_that_readme_names_runs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.hardware.device.has_gpu", lambda: False)
    jobs = batch.read(paths.ROOT / "examples" / "batch.yml")
    assert run.other_efforts(jobs) == {("h200", "full")}  # one set asks for little effort
    for job in jobs:
        [page] = replaying.replay("h200", [job.lesson.stem], EFFORT=job.values.get("EFFORT", "full"))
        assert page.whole, str(page)
