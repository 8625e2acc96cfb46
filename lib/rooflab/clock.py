"""The course's clocks. Each names what it counts; none takes a contestant that has not passed the gate.

graph      the clock of every kernel figure: a serial chain of launches captured on one stream, with full
           dependencies; time per launch, from events around a replay of the whole chain
graph_pdl  the same chain with programmatic dependent launch between neighbours
event      two events around each eager launch: includes what the launch itself costs the stream
wall       the host's clock around each eager launch and a synchronize: what a caller waits
(`ncu` and `cupti` are the profilers' clocks; rooflab.profile reads them.)

cold: the launches rotate over distinct copies of every operand, more than the L2 holds. warm: one copy.
Contestants are interleaved, one sample each in turn, so that a drift of clocks or heat meets all of them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .crossover import LEVEL
from .errors import GateError, UsageError
from .gate import Admitted, Work, synchronize

CLOCKS = ("graph", "graph_pdl", "event", "wall")

CHAIN_US = (
    2000.0  # a replay lasts at least about this long, so that the events' half microsecond does not count
)
_MAX_CHAIN = 4000
_WARM_UP_S = 0.05


@dataclass(frozen=True)
class Timing:
    """Time per launch in microseconds: median, quartiles, number of samples. Never the best one."""

    median_us: float
    q1_us: float
    q3_us: float
    samples: int

    @classmethod
    def of(cls, samples_us: Sequence[float]) -> Timing:
        q1, median, q3 = (float(q) for q in np.percentile(np.asarray(samples_us), [25, 50, 75]))
        return cls(median, q1, q3, len(samples_us))


def faster(a: Timing, b: Timing) -> bool:
    """True if `a` is faster than `b` beyond their spread: a's third quartile lies under b's first."""
    return a.q3_us < b.q1_us


def no_slower(a: Timing, b: Timing) -> bool:
    """True if `a`'s median is within the tie rule's factor (crossover.LEVEL) of `b`'s, or under it."""
    return a.median_us <= LEVEL * b.median_us


def copies_for(operand_bytes: int, l2_bytes: int) -> int:
    """Copies of the operands for a cold measurement: 2 or more, in all at least max(4 x L2, 2 x operands)."""
    return max(2, math.ceil(max(4 * l2_bytes, 2 * operand_bytes) / max(operand_bytes, 1)))


def measure(
    contestants: Sequence[Admitted], clock: str, *, samples: int = 20, rest_s: float = 0.0
) -> list[Timing]:
    """Time gated contestants by the named clock and check their outputs again afterwards.

    Whether the result is cold or warm is decided by how many copies the contestants hold. Raises GateError
    for a contestant that has not been admitted, or whose output is wrong after timing: then there is no
    time. With `rest_s` the graph clock lets the GPU idle so long before each sample, so that heat and power
    of the samples before do not set its clock rate: a burst instead of a sustained load.
    """
    for contestant in contestants:
        if not isinstance(contestant, Admitted):
            raise GateError(f"{contestant!r} has not passed the gate, and no gate means no time.")
    if clock not in CLOCKS:
        raise UsageError(f"There is no clock {clock!r}; the clocks are {', '.join(CLOCKS)}.")
    timers = {"graph": _graph, "graph_pdl": _graph, "event": _event, "wall": _wall}
    series = timers[clock](contestants, samples, rest_s)
    for contestant in contestants:
        contestant.recheck()
    return [Timing.of(s) for s in series]


def _wall(contestants: Sequence[Admitted], samples: int, rest_s: float) -> list[list[float]]:
    series: list[list[float]] = [[] for _ in contestants]
    for sample in range(-2, samples):
        for contestant, times in zip(contestants, series, strict=True):
            work = contestant.work
            copy = sample % work.copies
            synchronize(work.outputs[copy][0])
            start = time.perf_counter()
            work.launch(copy)
            synchronize(work.outputs[copy][0])
            if sample >= 0:  # the first two warm the path up
                times.append((time.perf_counter() - start) * 1e6)
    return series


def _event(contestants: Sequence[Admitted], samples: int, rest_s: float) -> list[list[float]]:
    import cupy

    series: list[list[float]] = [[] for _ in contestants]
    with _stream() as stream:
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        for sample in range(-2, samples):
            for contestant, times in zip(contestants, series, strict=True):
                start.record(stream)
                contestant.work.launch(sample % contestant.work.copies)
                stop.record(stream)
                stop.synchronize()
                if sample >= 0:
                    times.append(cupy.cuda.get_elapsed_time(start, stop) * 1e3)
    return series


def _graph(contestants: Sequence[Admitted], samples: int, rest_s: float) -> list[list[float]]:
    import cupy

    series: list[list[float]] = [[] for _ in contestants]
    with _stream() as stream:
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()

        def replay_us(replay: Callable[[], None]) -> float:
            start.record(stream)
            replay()
            stop.record(stream)
            stop.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e3

        chains = []
        for contestant in contestants:
            length = max(contestant.work.copies, 4)
            trial = _capture(contestant, length)
            replay_us(trial)
            per_launch = min(replay_us(trial) for _ in range(3)) / length
            wanted = min(max(CHAIN_US / max(per_launch, 0.1), length), max(_MAX_CHAIN, length))
            length = contestant.work.copies * math.ceil(wanted / contestant.work.copies)
            chains.append((_capture(contestant, length), length))
        until = time.perf_counter() + _WARM_UP_S
        while time.perf_counter() < until:
            for replay, _ in chains:
                replay_us(replay)
        for _ in range(samples):
            for (replay, length), times in zip(chains, series, strict=True):
                if rest_s:
                    time.sleep(rest_s)
                    replay_us(replay)  # an idle GPU takes a moment to raise its clocks
                times.append(replay_us(replay) / length)
    return series


@contextmanager
def captured(work: Work) -> Iterator[Callable[[], None]]:
    """One launch of `work` over its first copy, captured: a function that replays it and waits for it."""
    with _stream() as stream:
        replay = _capture(Admitted(work, 0.0, None, []), 1)

        def again() -> None:
            replay()
            stream.synchronize()

        yield again


def _capture(contestant: Admitted, length: int) -> Callable[[], None]:
    """Capture `length` launches, rotating over the copies, on the current stream; return the replay."""
    work = contestant.work
    work.launch(0)  # whatever a first launch allocates must exist before capture
    synchronize(work.outputs[0][0])
    torch = _torch()
    if torch is not None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for i in range(length):
                work.launch(i % work.copies)
        return graph.replay
    import cupy

    stream = cupy.cuda.get_current_stream()
    stream.begin_capture()
    try:
        for i in range(length):
            work.launch(i % work.copies)
    finally:
        captured = stream.end_capture()
    return lambda: captured.launch(stream)


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class _stream:
    """A fresh non-default stream, current for CuPy and (where it is in play) torch, as a context manager."""

    def __enter__(self) -> Any:
        import cupy

        torch = _torch()
        if torch is None:
            self._contexts = [cupy.cuda.Stream(non_blocking=True)]
            stream = self._contexts[0]
        else:
            own = torch.cuda.Stream()
            stream = cupy.cuda.ExternalStream(own.cuda_stream)
            self._contexts = [torch.cuda.stream(own), stream]
        cupy.cuda.runtime.deviceSynchronize()
        for context in self._contexts:
            context.__enter__()
        return stream

    def __exit__(self, *error: object) -> None:
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        for context in reversed(self._contexts):
            context.__exit__(*error)
