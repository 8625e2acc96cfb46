"""Launches as the driver sees them: dependent ones, and the same by plain launches."""

from types import SimpleNamespace

import pytest
from rooflab.runtime import driver


@pytest.fixture
def launched(monkeypatch):
    """How launches reach a driver that only takes notes."""
    seen = []
    ok = SimpleNamespace(CUDA_SUCCESS=0)
    names = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="dependent",
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE="cooperative",
    )
    fake = SimpleNamespace(
        CUresult=ok,
        CUlaunchAttributeID=names,
        CUlaunchConfig=SimpleNamespace,
        CUlaunchAttribute=lambda: SimpleNamespace(value=SimpleNamespace()),
        CUstream=int,
        cuLaunchKernel=lambda *_: (seen.append("plain"), (0,))[1],
        cuLaunchKernelEx=lambda config, *_: (seen.append("+".join(a.id for a in config.attrs)), (0,))[1],
    )
    monkeypatch.setattr(driver, "_driver", lambda: fake)
    monkeypatch.setattr(driver, "current_stream", lambda: 0)
    return seen


def test_a_dependent_launch_is_plain_where_that_is_asked(launched):
    kernel = object.__new__(driver.Function)
    kernel._function, kernel._allowed = None, 48 * 1024
    kernel.launch(1, 32, [], dependent=True)
    with driver.plain_launches():
        kernel.launch(1, 32, [], dependent=True)
        kernel.launch(1, 32, [], dependent=True, cooperative=True)
    kernel.launch(1, 32, [], dependent=True)
    assert launched == ["dependent", "plain", "cooperative", "dependent"]
