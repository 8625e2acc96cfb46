"""What `make style` asks, here and not before the tests: types take twenty seconds of one core."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from rooflab.paths import ROOT


@pytest.mark.skipif(
    shutil.which("make") is None or importlib.util.find_spec("mypy") is None,
    reason="needs make and the test set",
)
def test_style_and_types() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "style", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
