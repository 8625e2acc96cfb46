"""Anybody's recording replays, and no sentence of a page denies what the page shows.

The committed recording is changed (tests/altered.py), called another GPU's, and replayed: by default every
lesson over an eighth of the recordings and every recording by an eighth of the lessons, with
ROOFLAB_ALL_MACHINES=1 all.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import altered
import claims_read
import pandas as pd
import pytest
import replaying
from claims_read import OPENED, Cell
from IPython.display import publish_display_data
from matplotlib.figure import Figure
from rooflab import lab
from rooflab.records.store import Store

ALL = bool(os.environ.get("ROOFLAB_ALL_MACHINES"))


def lessons(recording: altered.Recording) -> list[str]:
    """Those that are replayed over it: each lesson's share of the recordings begins at another one."""
    here, count = altered.RECORDINGS.index(recording), len(altered.RECORDINGS)
    every = replaying.lessons()
    return [stem for k, stem in enumerate(every) if ALL or (here + 3 * k) % count < -(-count // 8)]


@contextmanager
def _watched(own: str) -> Iterator[None]:
    """Replay without laying figures out, read each table once, and note on the page what other recordings a
    cell reads rows of."""
    real = Store.read

    @cache
    def once(root: Path, device: str, study: str) -> pd.DataFrame:
        return real(Store(root, device), study)

    def read(store: Store, study: str) -> pd.DataFrame:
        rows = once(store.root, store.device, study)
        if store.device != own and len(rows):
            publish_display_data({OPENED: store.device})
        return rows.copy(deep=False)

    real_profile = lab.Lab.profile

    def profile(here: lab.Lab, *given: object, **named: object) -> pd.DataFrame:
        if here.device != own and not (given and given[0] in ("static",)):
            publish_display_data({OPENED: here.device})
        return real_profile(here, *given, **named)  # type: ignore[arg-type]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Store, "read", read))
        stack.enter_context(mock.patch.object(lab.Lab, "profile", profile))
        stack.enter_context(mock.patch.object(Figure, "draw_without_rendering", lambda figure: None))
        yield


def pages(recording: altered.Recording, folder: Path) -> Iterator[tuple[replaying.Replay, list[Cell]]]:
    """The lessons' pages of a recording."""
    path = altered.write(recording, folder)
    with _watched(recording.name):
        for replay in replaying.replay(path, lessons(recording), EFFORT=recording.effort):
            yield replay, [claims_read.cell(s.cell, s.text, s.outputs) for s in replay.shown]


def test_every_lesson_has_its_share_of_the_recordings() -> None:
    held = [lessons(recording) for recording in altered.RECORDINGS]
    assert all(sum(stem in each for each in held) >= len(held) / 8 for stem in replaying.lessons())


@pytest.mark.parametrize("recording", altered.RECORDINGS, ids=lambda recording: recording.name)
def test_every_lesson_replays_and_contradicts_none_of_its_tables(
    recording: altered.Recording, tmp_path: Path
) -> None:
    wrong = []
    for replay, page in pages(recording, tmp_path):
        if not replay.whole:
            wrong.append(str(replay))
            continue
        counted = recording.profiled("ncu")
        found = claims_read.contradictions(page, recording.gpu, counted)
        wrong += [f"{replay.lesson}{line}" for line in found]
    assert not wrong, "\n".join(wrong)


# --- the reader can fail ------------------------------------------------------------------------------------

RUNGS = [["Rung", "Median (µs)", "TFLOP/s"], ["1_scalar", "10.0", "582"], ["2_tiled", "20.0", "291"]]


@pytest.mark.parametrize(
    "said",
    [
        "read once, the weights still win by 0.48 times at batch 32.",
        "A graph removes the waiting and is 0.6 times as fast.",
        "Sharing cut what is read by a factor of 8 and the time by 0.91.",
        "By the wall a call of ours costs -31 µs on top of the kernel.",
        "Our time grows 0.4 times.",
        "One launch is still 0 times as fast as 3,696.",
        "Of them 5 of 4 are met.",
        "INT4 2.1 times llama.cpp, Q8_0 nan times transformers.compile.",
        "The smaller the matrices, the more it weighs: a runs its products at 91% of the roof, b at 87%.",
        "They differ by at most 9.0 %. So the table does not depend on which of the two is installed.",
        "From 6% attention to 6% or less. The bottleneck has moved; measure again.",
        "Here memory is the limit: the fastest keeps DRAM 19 % busy and uses 76 % of the issue slots.",
        "- Then arithmetic counts: tensor cores take it to 582 TFLOP/s.",
        "- 2_tiled runs at 1.90 times the speed of 1_scalar.",
        "- 2_tiled is level with 1_scalar.",
        "The best rung of `attention` is `2_tiled` with **291 TFLOP/s**.",
        "On the NVIDIA H200 rung 2 is the fastest.",
    ],
)
def test_a_planted_contradiction_is_found(said: str) -> None:
    page = [Cell(0, "", [RUNGS]), Cell(1, said)]
    assert claims_read.contradictions(page, "NVIDIA GeForce RTX 4090")


def test_counters_that_were_not_read_and_figures_of_another_gpu_are_found() -> None:
    agree = [Cell(0, "Sectors can be counted on paper; the GPU's counters agree.")]
    assert claims_read.contradictions(agree, "NVIDIA H200", counted=False)
    assert not claims_read.contradictions(agree, "NVIDIA H200")
    silent = [Cell(0, "A token on NVIDIA GeForce RTX 4090.", opened=["h200"])]
    assert claims_read.contradictions(silent, "NVIDIA GeForce RTX 4090")
    told = "The figures that follow are those of a recorded **NVIDIA H200**."
    assert not claims_read.contradictions([Cell(0, told, opened=["h200"])], "NVIDIA GeForce RTX 4090")


@pytest.mark.parametrize(
    "said",
    [
        "- 2_tiled runs at 0.50 times the speed of 1_scalar.",
        "The best rung of `attention` is `1_scalar` with **582 TFLOP/s**.",
        "Read once, INT4 is slower, at 0.48 times the speed at batch 32.",
        "From 67% attention to 6% or less. The bottleneck has moved; measure again.",
        "It saves 26% of the instructions and no time.",
    ],
)
def test_what_the_table_holds_may_be_said(said: str) -> None:
    page = [Cell(0, "", [RUNGS]), Cell(1, said)]
    assert not claims_read.contradictions(page, "NVIDIA GeForce RTX 4090")
