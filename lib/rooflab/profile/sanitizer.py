"""compute-sanitizer and the course's own watcher on faulty kernels: which instrument sees which mistake.

`run` starts compute-sanitizer around this module as a child process, which launches the kernel twice on the
same memory and compares both results with a float64 product.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rooflab.errors import RooflabError, UsageError
from rooflab.ops import faults
from rooflab.profile import execute, require_tool, tail

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_RESULT = "rooflab.profile.sanitizer: "


class Finding(NamedTuple):
    """How many reports an instrument made, the first of them, and whether the first and the second call gave
    the right result (None where the kernel did not live to give one)."""

    reports: int
    says: str
    first_right: bool | None
    second_right: bool | None


def parse(text: str) -> Finding:
    """Read what compute-sanitizer and the child printed; UsageError if a part is missing."""
    summary = re.search(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", text, re.MULTILINE)
    if summary is None:
        raise UsageError(f"compute-sanitizer ended without a summary: {tail(text)}.")
    lines = re.findall(r"^========= (?! )(.+)$", text, re.MULTILINE)
    reports = [
        line for line in lines if not re.match(r"COMPUTE-SANITIZER|.*SUMMARY|Target application", line)
    ]
    result = re.search(rf"^{re.escape(_RESULT)}(.+)$", text, re.MULTILINE)
    right = json.loads(result[1]) if result else []
    right += [None] * (2 - len(right))
    return Finding(int(summary[1]), reports[0].rstrip(".") if reports else "", right[0], right[1])


def run(tool: str, name: str, n: int, k: int, *, timeout_s: float = 20) -> Finding:
    """What `tool` of compute-sanitizer says of the faulty kernel `name` at n x k; "none" only runs it. A
    kernel that hangs is ended, and gives no result; MissingTool if the sanitizer is not installed.
    """
    child = [sys.executable, "-m", "rooflab.profile.sanitizer", name, str(n), str(k)]
    if tool not in ("none", *TOOLS):
        raise UsageError(f"compute-sanitizer has no tool {tool!r} here; there are {', '.join(TOOLS)}.")
    if tool != "none":
        child = [require_tool("compute-sanitizer"), "--report-api-errors", "no", "--tool", tool, *child]
    try:
        text = execute(child, timeout_s).stdout
    except UsageError as error:
        if "was stopped after" not in str(error):
            raise
        return Finding(0, "it did not end", None, None)
    return parse(text if tool != "none" else f"{text}\n========= ERROR SUMMARY: 0 errors\n")


def watched(name: str, n: int, k: int) -> Finding:
    """What the CPU target's watcher says of it; MissingTool without a C++ compiler."""
    from rooflab.simt import watch

    a, x = operands(n, k)
    y = np.zeros(n, np.float32)
    reports, first, right = 0, "", []
    for _ in range(2):
        seen = watch(faults.FAULTS[name], *faults.launch_of(n), faults.arguments(a, x, y))
        reports += len(seen.faults)
        first = first or (seen.faults[0].kind if seen.faults else "")
        right.append(is_right(y, a, x))
    return Finding(reports, first, right[0], right[1])


def operands(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A [k, n] and x [k], random with a fixed seed."""
    generator = np.random.default_rng(20261121)
    a = generator.standard_normal((k, n), dtype=np.float32) + np.float32(0.5)
    return a, generator.standard_normal(k, dtype=np.float32) + np.float32(0.5)


def is_right(y: np.ndarray, a: np.ndarray, x: np.ndarray) -> bool:
    """Whether y is x A within what FP32 sums in any order may lose; NaN is not."""
    bound = 1e-6 * len(x) * float(np.abs(x).max() * np.abs(a).max())
    return bool((np.abs(y - x.astype(np.float64) @ a) <= bound).all())


def _child(name: str, n: int, k: int) -> None:
    import cupy

    from rooflab.ops import loaded

    cupy.cuda.set_allocator(None)  # a pool would hide overruns
    a, x = operands(n, k)
    on_gpu: list[Any] = [cupy.asarray(each) for each in (a, x, np.zeros(n, np.float32))]
    function, right = loaded(faults.FAULTS[name]), []
    try:
        for _ in range(2):
            function.launch(*faults.launch_of(n), faults.arguments(*on_gpu))
            right.append(is_right(cupy.asnumpy(on_gpu[2]), a, x))
    except (RooflabError, cupy.cuda.runtime.CUDARuntimeError):
        pass  # the kernel did not live
    print(f"{_RESULT}{json.dumps(right)}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """The child process."""
    _child(arguments[0], int(arguments[1]), int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
