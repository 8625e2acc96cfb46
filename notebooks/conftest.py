"""`pytest --nbval notebooks` replays the recordings with the lean set alone, whatever machine it runs on."""

from rooflab.book.strict import pytest_runtest_call, pytest_runtest_setup

__all__ = ["pytest_runtest_call", "pytest_runtest_setup"]
