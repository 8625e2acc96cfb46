"""Readers of the profilers: Nsight Compute (ncu), Nsight Systems (nsys), CUPTI by torch.profiler (cupti).

Each runs `rooflab.profile.child`, which passes every case through the gate and then opens the profiler's
range around one NVTX range per case; each turns the tool's own export into a DataFrame. nsys and cupti give
the same columns. This module has what the three share.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rooflab.errors import GateError, MissingTool, UsageError

PERMISSION = (
    "The driver does not permit this user to read the GPU's performance counters (ERR_NVGPUCTRPERM): run as "
    "root (in a container: with CAP_SYS_ADMIN), or let the administrator load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0; without it the course shows recorded profiles instead."
)

_PLACES = {
    "ncu": ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
    "nsys": ("/usr/local/cuda/bin/nsys", "/opt/nvidia/nsight-systems/*/bin/nsys"),
    "compute-sanitizer": ("/usr/local/cuda/bin/compute-sanitizer",),
}
_PRODUCT = {"ncu": "Nsight Compute", "nsys": "Nsight Systems", "compute-sanitizer": "Compute Sanitizer"}


@contextmanager
def exported(what: str) -> Iterator[None]:
    """Turn what reading a tool's export trips over, values of other kinds than it writes, into a sentence."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"{what} is not as its tool writes it: it lacks {error}.") from error
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        raise UsageError(f"{what} is not as its tool writes it: {why}.") from error


def find_tool(name: str) -> str | None:
    """Path of "ncu", "nsys" or "compute-sanitizer": from PATH, else the newest in the usual places, else
    None."""
    found = shutil.which(name)
    for pattern in () if found else _PLACES[name]:
        found = found or next(reversed(sorted(glob.glob(pattern))), None)
    return found


def require_tool(name: str) -> str:
    """Path of a tool that `find_tool` knows, or MissingTool that says how to get it and what happens
    without."""
    found = find_tool(name)
    if found is None:
        product = _PRODUCT[name]
        raise MissingTool(
            f"{name} ({product}) is not installed or not on PATH: it comes with the CUDA toolkit or as the "
            f"package {product.lower().replace(' ', '-')}; without it the course shows recorded profiles."
        )
    return found


def child_command(study: str, case_ids: Sequence[str], *options: str) -> list[str]:
    """The command line of the gated child process for `case_ids` of `study`."""
    return [sys.executable, "-m", "rooflab.profile.child", *options, study, *case_ids]


def execute(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and capture its output; a time-out or Ctrl-C ends all its processes first.

    Raises UsageError when `timeout_s` seconds pass. Numbers are printed in the C locale, and the child finds
    this package wherever it was imported from.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
    process = subprocess.Popen(
        list(argv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C", "PYTHONPATH": path},
        start_new_session=True,  # a profiler starts grandchildren; they are ended as one group
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        raise UsageError(
            f"{Path(argv[0]).name} was stopped after {timeout_s:.0f} s; profile fewer cases or metrics."
        ) from None
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()


def raise_child_error(text: str) -> None:
    """Raise what the child reported on its standard error, as GateError or UsageError, if it did."""
    report = re.search(r"^rooflab\.profile\.child: (gate|error): (.+)$", text, re.MULTILINE)
    if report:
        raise (GateError if report[1] == "gate" else UsageError)(report[2])


def tail(text: str, lines: int = 3) -> str:
    """The last non-empty lines of a tool's output on one line, 200 characters of each, for use inside a
    sentence.
    """
    found = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(line[:200] for line in found[-lines:]) or "no output"
