"""What the two tracers, Nsight Systems and CUPTI under torch.profiler, have in common: one table, one way to
fill it.

`Trace.activities` has one row per thing the GPU did, in order of start: kind (kernel, memcpy, memset), name
(as the compiler demangled it), short (no templates, arguments or namespaces), start_ns (after the first),
duration_ns, grid and block ("132x1x1", "" for copies), stream, node (CUDA-graph node id, 0 outside graphs),
correlation (id of the API call that launched it; all nodes of a graph launch share one), bytes (0 for
kernels), range (path of the named ranges that were open where and when that call was made, " > " between
levels).

`Trace.calls` summarises the CUDA API calls on the host: call, count, total_ns, median_ns, longest total
first.
"""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

COLUMNS = {
    **dict.fromkeys(("kind", "name", "short"), "str"),
    **dict.fromkeys(("start_ns", "duration_ns"), "int64"),
    **dict.fromkeys(("grid", "block"), "str"),
    **dict.fromkeys(("stream", "node", "correlation", "bytes"), "int64"),
    "range": "str",
}
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # CUPTI's numbers of the copy kinds that matter here


@dataclass(frozen=True)
class Trace:
    """GPU activities and a summary of the host's API calls; this module's docstring lists the columns."""

    activities: pd.DataFrame
    calls: pd.DataFrame

    def with_cases(self) -> Trace:
        """The same with the column `case` in front: the outermost range, which the child names after it."""
        activities = self.activities.copy()
        activities.insert(0, "case", [path.split(" > ")[0] for path in activities["range"]])
        return Trace(activities, self.calls)


def activities(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The activity table from rows that hold every column but `short`; `start_ns` in any origin. ValueError
    for a value that no tracer means.
    """
    rows = list(rows)
    for row in rows:
        for name, kind in COLUMNS.items():
            if name != "short":
                checked(name, row[name], str if kind == "str" else int)
    frame = pd.DataFrame([{**row, "short": short_name(row["name"])} for row in rows], columns=list(COLUMNS))
    frame = frame.astype(COLUMNS).sort_values("start_ns", kind="stable", ignore_index=True)
    frame["start_ns"] -= frame["start_ns"].min()
    return frame


def checked(name: str, value: Any, kind: Any = int) -> Any:
    """The value, once it is a text, or a whole number of at least 0 that fits 62 bits; else ValueError."""
    if type(value) is not kind or (kind is int and not 0 <= value < 1 << 62):
        what = "a text" if kind is str else "a whole number from 0 on"
        raise ValueError(f"{name} is {reprlib.repr(value)}, not {what}")
    return value


def calls(durations: Iterable[tuple[str, int]]) -> pd.DataFrame:
    """The summary of API calls from (name, duration in ns) pairs; version suffixes such as _v7000 are
    dropped.
    """
    rows = [(checked("a call's name", name, str), checked("a call's time", ns)) for name, ns in durations]
    frame = pd.DataFrame(
        [(re.sub(r"(_ptsz|_ptds|_v\d+)+$", "", name), ns) for name, ns in rows], columns=["call", "ns"]
    )
    table = frame.groupby("call")["ns"].agg(count="count", total_ns="sum", median_ns="median").reset_index()
    return table.sort_values(["total_ns", "call"], ascending=[False, True], ignore_index=True)


def range_paths(
    calls: Sequence[tuple[Any, int]], ranges: Iterable[tuple[Any, int, int | None, str]]
) -> list[str]:
    """For each call (thread, time): the names of the ranges (thread, start, end, name) open then, outermost
    first.

    Times are in ns; an end of None is a range that was still open when the trace ended. Only ranges of the
    call's own thread count.
    """
    ranges = list(ranges)
    for _, start, end, name in ranges:
        checked("a range's name", name, str)
        checked("a range's start", start)
        checked("a range's end", start if end is None else end)
    for _, time in calls:
        checked("a call's start", time)
    waiting = sorted(ranges, key=lambda r: (r[1], -(r[2] if r[2] is not None else 1 << 63)))
    open_ranges: dict[Any, list[tuple[int | None, str]]] = {}
    paths, position = [""] * len(calls), 0
    for index in sorted(range(len(calls)), key=lambda i: calls[i][1]):
        thread, time = calls[index]
        while position < len(waiting) and waiting[position][1] <= time:
            owner, _, end, name = waiting[position]
            open_ranges.setdefault(owner, []).append((end, name))
            position += 1
        still_open = [r for r in open_ranges.get(thread, ()) if r[0] is None or r[0] > time]
        open_ranges[thread] = still_open
        paths[index] = " > ".join(name for _, name in still_open)
    return paths


@functools.lru_cache(maxsize=4096)  # a trace has few names, and each of them thousands of times
def short_name(name: str) -> str:
    """`void at::native::reduce_kernel<512, 1, Op<float>>(Op<float>)` -> "reduce_kernel"."""
    flat, depth = "", 0
    for character in name.replace("(anonymous namespace)::", ""):
        depth += character == "<"
        flat += character if depth == 0 else ""
        depth -= character == ">" and depth > 0
    words = flat.split("(")[0].split()
    return words[-1].split("::")[-1] if words and not name.startswith(("memcpy", "memset")) else name


def shape(sizes: Sequence[int]) -> str:
    """(132, 1, 1) -> "132x1x1"."""
    if len(sizes) != 3:
        raise ValueError(f"a launch has three sizes, not {reprlib.repr(sizes)}")
    return "x".join(str(checked("a launch's size", size)) for size in sizes)
