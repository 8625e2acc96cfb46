"""Study `environment` (lesson 00): does the bench work, which clock says what, and what a launch costs.

A saxpy ramp beside torch; one kernel under every clock at three sizes; the same kernel cold and warm; the
probes of launch, grid barrier and latency; and the gate's verdict on every cheating kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import GateError
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.ops import probes
from rooflab.records.case import Case, options, parse_options
from rooflab.studies import buffers, streams
from rooflab.studies.base import Count, Described, Profile, Sized, Study, tunables, turn

RAMP = 1 << 24  # the 16.7 M elements of the attribution source's own ramp
CLOCK_SIZES = (1 << 12, 1 << 20, 1 << 26)
CACHE_SIZES = tuple(1 << shift for shift in range(17, 27, 1))
STEPS = {"warm": 8192, "cold": 32768}
CHASE_WARM = tuple(1 << shift for shift in (14, 16, 18, 20, 22, 23))  # words: 64 KiB .. 32 MiB
CHASE_COLD = tuple(1 << shift for shift in (26, 27, 28))  # 256 MiB .. 1 GiB
FLUSH = 1 << 26  # words written to empty the L2 before a cold chase: 256 MiB
LINE = 32  # words: one 128-byte line
CHEAT_SIZE = 100_003  # ragged, so that a skipped tail shows
EAGER_CHAIN = 100


def ramp(n: int = RAMP) -> list[Case]:
    """saxpy in two rungs beside torch.add, cold."""
    own = [Case("environment", "saxpy", rung.name, n=n) for rung in ops.stream.LADDERS["saxpy"]]
    return [*own, Case("environment", "saxpy", "torch.add", kind="peer", format="float32", n=n)]


def clocks(sizes: Sequence[int] = CLOCK_SIZES) -> list[Case]:
    """saxpy/1_scalar under every clock of the bench, warm (a small array cannot be cold for long)."""
    return [
        Case("environment", "saxpy", "1_scalar", n=n, cache="warm", clock=clock)
        for n in sizes
        for clock in ("graph", "graph_pdl", "event", "wall")
    ]


def dependents(sizes: Sequence[int] = CLOCK_SIZES) -> list[Case]:
    """saxpy/1_scalar with dependent launch taken apart: its instructions compiled in but ordinary edges
    (dependent=1, clock graph), and dependent edges whose successor is let go late (dependent=2)."""
    named = ("environment", "saxpy", "1_scalar")
    return [
        Case(*named, n=n, options=options(dependent=when), cache="warm", clock=clock)
        for n in sizes
        for when, clock in ((1, "graph"), (2, "graph_pdl"))
    ]


PROFILED = ("time_ns", "dram_bytes", "l2_hit_pct", "occupancy_pct")


def profiled_clocks(sizes: Sequence[int] = CLOCK_SIZES) -> list[Case]:
    """The cases of `clocks` that the profilers time: the graph ones, warm."""
    return [case for case in clocks(sizes) if case.clock == "graph"]


def caches(sizes: Sequence[int] = CACHE_SIZES) -> list[Case]:
    """saxpy/2_vector cold and warm over lengths on both sides of the L2's size."""
    return [
        Case("environment", "saxpy", "2_vector", n=n, cache=cache)
        for n in sizes
        for cache in ("cold", "warm")
    ]


def launches(sms: int) -> list[Case]:
    """What handing over from one kernel to the next costs, five ways."""
    touch = [
        Case("environment", "touch", "touch", cache="warm", clock=clock)
        for clock in ("wall", "event", "graph", "graph_pdl")
    ]
    chained = options(chain=EAGER_CHAIN)
    chain = [
        Case("environment", "touch", impl, kind, options=chained, cache="warm", clock="event")
        for impl, kind in (("touch", "own"), ("cuLaunchKernel", "baseline"), ("torch.fill_", "peer"))
    ]
    barrier = [
        Case("environment", "barrier", "barrier", options=options(blocks=sms, rounds=rounds), cache="warm")
        for rounds in (1, 101)
    ]
    return [*touch, *chain, *barrier]


def chases(warm: Sequence[int] = CHASE_WARM, cold: Sequence[int] = CHASE_COLD) -> list[Case]:
    """A pointer chase over n words: the latency of whatever level holds them.

    A warm chase visits every line of its table in each replay. Before a cold one 256 MiB are written
    through the L2, which takes under a hundredth of the chase's own time and is counted with it. Reading
    them would not do: a stream of reads leaves lines that were hit before where they are.
    """
    return [
        Case("environment", "chase", "chase", n=n, options=options(steps=STEPS[cache]), cache=cache)
        for cache, sizes in (("warm", warm), ("cold", cold))
        for n in sizes
    ]


def cheats(n: int = CHEAT_SIZE) -> list[Case]:
    """The kernels that the gate must refuse; they have no clock, because they get no time."""
    return [Case("environment", "cheat", name, n=n, cache="", clock="") for name in probes.CHEATS]


def own_rung(case: Case) -> Described:
    """Rung, macros and launch rule of an own case."""
    if case.operator == "saxpy":
        return streams.own_rung(case)
    if case.operator == "cheat":
        rung = probes.cheat_rung(case.impl)
    elif case.operator == "touch":
        rung = probes.TOUCH_DEPENDENT if case.clock == "graph_pdl" else probes.TOUCH
    else:
        rung = {"barrier": probes.BARRIER, "chase": probes.CHASE}[case.operator]
    return rung, rung.defines, probes.launch_rule(rung)


class Environment(Study):
    """Lesson 00."""

    name, lesson = "environment", "00"

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        quick = effort == "quick"
        found = [
            *ramp(),
            *clocks(CLOCK_SIZES),
            *dependents(CLOCK_SIZES),
            *caches(CACHE_SIZES[::3] if quick else CACHE_SIZES),
            *launches(device.sms if device else 132),
            *(chases(CHASE_WARM[::2], CHASE_COLD[:3:2]) if quick else chases()),
        ]
        return list(dict.fromkeys(found))

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        traced: list[Profile] = [(tool, profiled_clocks(), None) for tool in ("nsys", "cupti")]
        return [("gate", cheats(), None), ("ncu", profiled_clocks(), PROFILED), *traced]

    def verdicts(self, cases: Sequence[Case]) -> pd.DataFrame:
        return verdicts(cases)

    def memory_bytes(self, case: Case) -> int:
        return 4 * (case.n or 0) * streams.copies(case) if case.operator == "saxpy" else 0

    def shared_bytes(self, case: Case) -> int:
        n = case.n or 0
        if case.operator == "saxpy":
            return streams.shared_bytes(case)
        return 4 * n + 4 * FLUSH if case.operator == "chase" else 0

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        if group[0].operator == "saxpy":
            return streams.contestants(group)
        build = {"touch": _touch, "barrier": _barrier, "chase": _chase, "cheat": cheat_work}
        return [build[case.operator](case) for case in group]

    def launch_us(self, case: Case, device: Device) -> float:
        if case.operator == "chase":
            return tunables(case)["steps"] * 0.8  # a slow GPU's DRAM answers within 800 ns
        return super().launch_us(case, device)

    def group(self, case: Case) -> tuple:
        return (case.operator, case.n, case.cache, turn(case))

    def samples(self, case: Case) -> int:
        return 30 if case.clock in ("event", "wall") else super().samples(case)

    def count(self, case: Case) -> Count:
        n = case.n or 0
        if case.operator == "saxpy":
            name = roofline.ROOF_OF["saxpy"] if case.cache == "cold" else ""
            return Count(int(roofline.stream_bytes("saxpy", n)), 2 * n, name)
        return Count(None, None, "")

    own_rung = staticmethod(own_rung)


def verdicts(cases: Sequence[Case]) -> pd.DataFrame:
    """What the gate says to each cheating kernel: case, refused (bool), when, sentence.

    A cheat that passes the gate is timed like any other contestant; `ten_times` is caught there, by the
    check after.
    """
    from rooflab.bench import clock

    rows: list[dict[str, Any]] = []
    for case in cases:
        row: dict[str, Any] = {"case": case.id, "refused": False, "when": "", "sentence": "It passed."}
        try:
            row["when"] = "at the gate"
            admitted = gate.admit(cheat_work(case))
            row["when"] = "after timing"
            clock.measure([admitted], "graph", samples=10)
        except GateError as error:
            row |= {"refused": True, "sentence": str(error).removeprefix(f"{case.id} ")}
        rows.append(row)
    return pd.DataFrame(rows)


def cheat_work(case: Case) -> gate.Work:
    """A cheating saxpy on an output that already holds the right answer of an earlier, honest call."""
    cupy = ops.arrays()
    n = case.n or 0
    generator = cupy.random.default_rng(buffers.SEED)
    x, y = (generator.standard_normal(n, dtype=cupy.float32) + cupy.float32(0.5) for _ in range(2))
    workspace = cupy.zeros(32 + n, cupy.uint32)
    out = ops.stream.saxpy(streams.SCALE, x, y, rung="1_scalar")
    workspace[32:] = (out + cupy.float32(0.125)).view(cupy.uint32)  # the answer to yesterday's question
    expected = streams.SCALE * x.astype(cupy.float64) + y.astype(cupy.float64)
    baseline = cupy.float32(streams.SCALE) * x + y
    budget = gate.error_budget(float(cupy.abs(baseline - expected).max()), expected, "float32")

    def launch(_: int) -> None:
        probes.cheat(case.impl, streams.SCALE, x, y, out, workspace)

    return gate.Work(case.id, launch, [[x, y]], [[out]], lambda: expected, budget)


def _touch(case: Case) -> gate.Work:
    import cupy

    out, chain = cupy.empty(1, cupy.uint32), tunables(case).get("chain", 1)
    dependent = case.clock == "graph_pdl"
    one: Callable[[], object]
    if case.impl == "cuLaunchKernel":  # the driver's call alone, its arguments packed beforehand
        function = ops.loaded(probes.TOUCH, tuple(probes.TOUCH.defines.items()))
        one = function.prepared(1, 32, [out, ctypes.c_uint(7)])
    elif case.kind == "peer":
        import torch

        same = torch.from_dlpack(out.view(cupy.int32))
        one = lambda: same.fill_(7)  # noqa: E731
    else:
        one = lambda: probes.touch(out, 7, dependent=dependent)  # noqa: E731

    def launch(_: int) -> None:
        for _ in range(chain):
            one()

    return gate.Work(case.id, launch, [[]], [[out]], lambda: cupy.full(1, 7, cupy.uint32))


def _barrier(case: Case) -> gate.Work:
    import cupy

    chosen = tunables(case)
    blocks, rounds = chosen["blocks"], chosen["rounds"]
    counter, mail, seen = (cupy.zeros(size, cupy.uint32) for size in (1, blocks, blocks))

    def launch(_: int) -> None:
        # Letters of an earlier launch would hide a barrier that does not hold.
        cupy.cuda.runtime.memsetAsync(mail.data.ptr, 0, mail.nbytes, ops.nvrtc.current_stream())
        probes.barrier(counter, mail, seen, rounds)

    return gate.Work(case.id, launch, [[]], [[seen]], lambda: cupy.full(blocks, rounds, cupy.uint32))


def _chase(case: Case) -> gate.Work:
    """One cycle through all lines in random order; each copy starts where the one before it ended."""
    import cupy
    import numpy as np

    lines, steps = (case.n or 0) // LINE, tunables(case)["steps"]
    order = np.random.default_rng(buffers.SEED).permutation(lines).astype(np.uint32)
    following = np.empty(lines, np.uint32)
    following[order] = np.roll(order, -1)
    table = cupy.zeros((lines, LINE), cupy.uint32)
    table[:, 0] = cupy.asarray(following)
    table = table.reshape(-1)
    cold = case.cache == "cold"
    flush = cupy.zeros(FLUSH, cupy.uint32) if cold else None
    starts = 1 if cold else max(1, lines // steps)
    outputs = [[cupy.empty(1, cupy.uint32)] for _ in range(starts)]
    places = [int(order[(i * steps) % lines]) for i in range(starts)]
    # Every copy has its own right answer: the gate sees the distance from it, which must be zero.
    answers = {id(arrays): int(order[((i + 1) * steps) % lines]) for i, arrays in enumerate(outputs)}

    def launch(i: int) -> None:
        if flush is not None:
            ops.stream.write(flush, i)
        probes.chase(table, outputs[i][0], places[i], steps)

    def distance(arrays: Sequence[Any]) -> Any:
        return arrays[0].astype(cupy.int64) - answers[id(arrays)]

    inputs = [[table] if i == 0 else [] for i in range(starts)]
    return gate.Work(case.id, launch, inputs, outputs, lambda: cupy.zeros(1, cupy.int64), 0.0, distance)


def latency_ns(frame: pd.DataFrame) -> float | None:
    """Nanoseconds a dependent load takes from DRAM, in the smallest cold chase: the TLB covers its pages."""
    rows = frame[(frame["operator"] == "chase") & (frame["cache"] == "cold") & frame["median_us"].notna()]
    if not len(rows):
        return None
    return float(rows.sort_values("n")["median_us"].iloc[0]) * 1e3 / STEPS["cold"]


_PROFILER_NS = {"ncu": "time_ns", "nsys": "duration_ns", "cupti": "duration_ns"}


def by_clock(rows: pd.DataFrame, profiles: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Median microseconds of one launch: a line per length n, a column per clock of `rows` and per profiler.

    `profiles` maps "ncu", "nsys" or "cupti" to what lab.profile returned for cases of `rows`; a clock that
    was not read is NaN.
    """
    table = rows.pivot(index="n", columns="clock", values="median_us").astype(float)
    lengths = dict(zip(rows["case"], rows["n"], strict=True))
    for tool, frame in profiles.items():
        medians = frame.groupby("case")[_PROFILER_NS[tool]].median() / 1e3
        table[tool] = pd.Series({lengths[case]: us for case, us in medians.items()}, dtype=float)
    return table.rename_axis(index="n", columns=None)


BARRIER = "barrier across the whole grid"
_HANDOVERS = {
    "eager call, this course's launcher": ("touch", "own", "event"),
    "eager call, the driver's function from Python": ("cuLaunchKernel", "baseline", "event"),
    "eager call, torch": ("torch.fill_", "peer", "event"),
    "node of a graph": ("touch", "own", "graph"),
    "dependent-launch edge of a graph": ("touch", "own", "graph_pdl"),
}


def handovers(frame: pd.DataFrame) -> pd.DataFrame:
    """What it costs to get from one kernel to the next: columns handover, median_us, q1_us, q3_us, case.

    Eager calls are chains of EAGER_CHAIN launches between two events, divided by their length. A barrier is
    the difference of two kernels that hold few and many, divided by the difference in number; its quartiles
    are the widest that theirs allow. What was not recorded is left out.
    """
    timed, found = frame[frame["median_us"].notna()], []
    for name, (impl, kind, clock) in _HANDOVERS.items():
        chain = EAGER_CHAIN if clock == "event" else 1
        wanted = (timed["operator"] == "touch") & (timed["impl"] == impl) & (timed["kind"] == kind)
        tunable = options(chain=chain) if chain > 1 else ""
        wanted &= (timed["clock"] == clock) & (timed["options"] == tunable)
        rows = timed[wanted]
        found += [{"handover": name, "case": row["case"], **_share(row, chain)} for _, row in rows.iterrows()]
    barriers = timed[timed["operator"] == "barrier"]
    held = {int(parse_options(row["options"])["rounds"]): row for _, row in barriers.iterrows()}
    if len(held) > 1:
        rounds, few, many = max(held) - min(held), held[min(held)], held[max(held)]
        widest = {
            "median_us": many["median_us"] - few["median_us"],
            "q1_us": many["q1_us"] - few["q3_us"],
            "q3_us": many["q3_us"] - few["q1_us"],
        }
        found.append({"handover": BARRIER, "case": many["case"], **_share(widest, rounds)})
    return pd.DataFrame(found, columns=["handover", "median_us", "q1_us", "q3_us", "case"])


def _share(times: Mapping[str, Any] | pd.Series, parts: int) -> dict[str, float]:
    return {name: float(times[name]) / parts for name in ("median_us", "q1_us", "q3_us")}


def latencies(frame: pd.DataFrame) -> pd.DataFrame:
    """The chases of a recording as nanoseconds a load: table_bytes, cache, median_ns, q1_ns, q3_ns, case,
    run.
    """
    rows = frame[(frame["operator"] == "chase") & frame["median_us"].notna()].sort_values(["cache", "n"])
    steps = rows["options"].map(lambda text: int(parse_options(text)["steps"]))
    scaled = {f"{q}_ns": rows[f"{q}_us"] * 1e3 / steps for q in ("median", "q1", "q3")}
    kept = rows[["cache", "case", "run"]].assign(table_bytes=4 * rows["n"].astype(int), **scaled)
    return kept.reset_index(drop=True)


def l2_latency_ns(frame: pd.DataFrame, l2_bytes: int) -> float | None:
    """Nanoseconds a dependent load takes from L2: the median over warm chases of tables up to a quarter of
    it.
    """
    found = latencies(frame)
    rows = found[(found["cache"] == "warm") & (found["table_bytes"] <= l2_bytes / 4)]
    return float(rows["median_ns"].median()) if len(rows) else None
