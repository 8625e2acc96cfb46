"""A table is parsed once for all stores of a process, and anew when its file has changed."""

import os
import shutil
import time
from pathlib import Path
from unittest import mock

import pytest
from rooflab import paths
from rooflab.records import parsed
from rooflab.records.store import Store


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording with one study, of an hour ago."""
    for name in ("runs.csv", "gemv.csv"):
        path = tmp_path / "h200" / name
        path.parent.mkdir(exist_ok=True)
        shutil.copy(paths.DATA / "h200" / name, path)
        _dated(path, -3600)
    return tmp_path


def _dated(path: Path, seconds: float) -> None:
    now = time.time() + seconds
    os.utime(path, (now, now))


def _damage(path: Path) -> None:
    """Another letter in the middle of a text, in place, so that its size stays."""
    text = path.read_text()
    assert "gemv," in text
    path.write_text(text.replace("gemv,", "gemw,"))


def test_the_next_store_parses_nothing(recording: Path) -> None:
    first = Store(recording, "h200").read("gemv")
    with mock.patch.object(parsed, "read_table", side_effect=AssertionError):
        second = Store(recording, "h200").read("gemv")
    assert second.equals(first)
    second["case"] = "of this frame alone"
    assert Store(recording, "h200").read("gemv").equals(first)


def test_a_changed_file_is_parsed_anew(recording: Path) -> None:
    before = Store(recording, "h200").read("gemv")
    path = recording / "h200" / "gemv.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert len(Store(recording, "h200").read("gemv")) == len(before) - 1


def test_a_file_that_was_just_written_is_not_kept(recording: Path) -> None:
    """Written again at once it may have the same size and, as a clock ticks, the same time."""
    path = recording / "h200" / "gemv.csv"
    _dated(path, 0)
    stamp = path.stat().st_mtime_ns
    assert len(Store(recording, "h200").read("gemv"))
    _damage(path)
    os.utime(path, ns=(stamp, stamp))
    with pytest.raises(Exception, match="gemw"):
        Store(recording, "h200").read("gemv")
