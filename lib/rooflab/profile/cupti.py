"""CUPTI through torch.profiler (Kineto): the Trace of Nsight Systems without Nsight Systems.

Named ranges are torch.profiler.record_function's, since Kineto does not see NVTX. Its clock is the `cupti`
clock.
"""

from __future__ import annotations

import json
import reprlib
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from rooflab.errors import MissingTool, UsageError
from rooflab.profile import PERMISSION, child_command, execute, exported, raise_child_error, tail, trace
from rooflab.profile.trace import Trace

_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_CALLS = ("cuda_runtime", "cuda_driver")


def run(study: str, case_ids: Sequence[str], *, repeat: int = 1, timeout_s: float = 600) -> Trace:
    """Trace cases of a study in a gated child, each launched `repeat` times; activities have the column
    `case`.

    Raises MissingTool (no torch, no permission), GateError, UsageError.
    """
    with tempfile.TemporaryDirectory(prefix="rooflab-cupti-") as folder:
        path = Path(folder) / "trace.json"
        done = execute(
            child_command(study, case_ids, "--trace", str(path), "--repeat", str(repeat)), timeout_s
        )
        said = done.stdout + done.stderr
        raise_child_error(said)
        if "INSUFFICIENT_PRIVILEGES" in said:
            raise MissingTool(PERMISSION)
        if done.returncode != 0 or not path.is_file():
            raise MissingTool(f"torch.profiler wrote no trace (exit code {done.returncode}): {tail(said)}.")
        return parse(path.read_text()).with_cases()


def record(function: Callable[[], object]) -> Trace:
    """Call `function` once in this process under torch.profiler, wait for the GPU, and return its Trace."""
    try:
        import torch
    except ImportError as error:
        raise MissingTool("CUPTI is read through torch.profiler, and torch is not installed here.") from error
    activity = torch.profiler.ProfilerActivity
    with tempfile.TemporaryDirectory(prefix="rooflab-cupti-") as folder:
        path = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profiler:
            function()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(path))
        return parse(path.read_text())


def parse(text: str) -> Trace:
    """Read the Chrome trace (JSON text) that torch.profiler exports into a Trace.

    Times are exact to the nanosecond: they are parsed as decimals, since microseconds since the epoch with
    three decimals do not fit a double. Raises UsageError for text that is cut off, no trace, or without a
    kernel.
    """
    try:
        loaded = json.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"The trace is cut off or not JSON: {error}.") from error
    events = loaded.get("traceEvents") if isinstance(loaded, dict) else loaded
    if not isinstance(events, list):
        raise UsageError("This JSON is not a Chrome trace: it has no list traceEvents.")
    with exported("torch.profiler's trace"):
        return _read([event for event in events if event.get("ph") == "X" and "dur" in event])


def _read(events: list[dict[str, Any]]) -> Trace:
    ranges = [
        ((e["pid"], e["tid"]), _ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]), e["name"])
        for e in events
        if e.get("cat") == "user_annotation"
    ]
    api = [e for e in events if e.get("cat") in _CALLS]
    paths = trace.range_paths([((e["pid"], e["tid"]), _ns(e["ts"])) for e in api], ranges)
    path_of = {
        e["args"]["correlation"]: path
        for e, path in zip(api, paths, strict=True)
        if "correlation" in e.get("args", {})
    }
    rows = [_row(event, path_of) for event in events if event.get("cat") in _KINDS]
    if not any(row["kind"] == "kernel" for row in rows):
        raise UsageError(
            "The trace holds no kernel: nothing was launched, or CUPTI was not permitted to trace the GPU."
        )
    return Trace(trace.activities(rows), trace.calls((e["name"], _ns(e["dur"])) for e in api))


def _row(event: dict[str, Any], path_of: dict[int, str]) -> dict[str, Any]:
    kind, facts = _KINDS[event["cat"]], event["args"]
    name = event["name"]
    if kind == "memcpy":
        words = name.split()  # "Memcpy HtoD (Pageable -> Device)"
        name = f"memcpy {words[1] if len(words) > 1 and words[1] in trace.COPIES.values() else 'other'}"
    return {
        "kind": kind,
        "name": "memset" if kind == "memset" else name,
        "start_ns": _ns(event["ts"]),
        "duration_ns": _ns(event["dur"]),
        "grid": trace.shape(facts["grid"]) if kind == "kernel" else "",
        "block": trace.shape(facts["block"]) if kind == "kernel" else "",
        "stream": facts["stream"],
        "node": facts.get("graph node id", 0),
        "correlation": facts["correlation"],
        "bytes": facts.get("bytes", 0),
        "range": path_of.get(facts["correlation"], ""),
    }


def _ns(microseconds: Decimal | int) -> int:
    if type(microseconds) not in (int, Decimal) or not 0 <= microseconds < 1 << 52:
        raise ValueError(f"a time is {reprlib.repr(microseconds)}, not microseconds")
    return int(microseconds * 1000)
