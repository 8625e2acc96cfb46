"""What all tests share: an environment without the user's settings, and skips that CI does not forgive."""

import os
from collections.abc import Iterator

import pytest

_SETTINGS = ("ROOFLAB_MODE", "ROOFLAB_EFFORT", "ROOFLAB_STORE", "ROOFLAB_PROGRESS", "ROOFLAB_COMMAND")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)


def _unforgiven(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With ROOFLAB_REQUIRE_ALL set, as .ci/run does, a skip is a failure unless it is for want of a GPU or because
    the test is of another operating system."""
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
