"""What all tests share: an environment without the user's settings, and skips that CI does not forgive."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import shares
import warm_kernels
from hypothesis import HealthCheck, settings
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

# A loaded machine takes its time over an example, or over making one.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")
warm_kernels.use()

_SETTINGS = tuple(f"ROOFLAB_{name}" for name in ("MODE", "EFFORT", "STORE", "PROGRESS", "COMMAND", "WEIGHTS"))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: a process more than there are cores, as one of them often waits, each with a gigabyte."""
    limit, memory = Path("/sys/fs/cgroup/memory.max"), psutil.virtual_memory().total
    if limit.is_file() and (most := limit.read_text().strip()).isdigit():
        memory = min(memory, int(most))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores + 1, memory // 10**9, 16))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `share(n)` an n-th of its cases. Files that take long come first: begun late, one
    would keep its process when the others have ended.
    """
    dropped = [] if shares.ALL else shares.beyond(items)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        left = set(map(id, dropped))
        items[:] = [item for item in items if id(item) not in left]
    long = ("tests/verify/", "tests/lab/", "tests/test_style")
    items.sort(key=lambda item: not item.nodeid.startswith(long))


def pytest_collection() -> None:
    """What collecting makes stays, so nothing is gained by looking through it again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay until the end: collections need not look at them."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)


def _unforgiven(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With ROOFLAB_REQUIRE_ALL set, as .ci/run does, a skip is a failure unless it is for want of a GPU or
    because the test is of another operating system."""
    if not report.skipped or not os.environ.get("ROOFLAB_REQUIRE_ALL") or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "GPU" not in reason and "only on" not in reason:
        report.outcome = "failed"
        report.longrepr = f"{reason} (ROOFLAB_REQUIRE_ALL allows skips for want of a GPU alone)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _unforgiven(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _unforgiven(report)
    return report


@pytest.fixture(scope="module")
def h200() -> Any:
    """The committed recording, replayed."""
    from rooflab import lab

    return lab.open("replay", "h200")


PARAMETERS = """\
MODE: str = "auto"  # measure or replay
DEVICE: str = "h200"
N: int = 3  # how many
SCALE: float = 1.0
SIZES: list[int] = [1, 2]  # elements
FLAG: bool = False
NAME: str | None = None
"""


@pytest.fixture
def lesson(tmp_path: Path) -> Callable[..., Path]:
    """Make a small notebook in tmp_path/notebooks: lesson("00_first", "print(N)", ...)."""

    def make(stem: str, *sources: str, parameters: str = PARAMETERS) -> Path:
        notebook = new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        )
        notebook.cells = [
            new_markdown_cell(f"# Lesson {stem}"),
            new_code_cell(parameters, metadata={"tags": ["parameters"]}),
            *(new_markdown_cell(s[3:]) if s.startswith("md:") else new_code_cell(s) for s in sources),
        ]
        path = tmp_path / "notebooks" / f"{stem}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return make
