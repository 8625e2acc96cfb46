"""The course's clocks. Each names what it counts; none takes a contestant that has not passed the gate.

graph      the clock of every kernel figure: a serial chain of launches captured on one stream, with full
           dependencies; time per launch, from events around a replay of the whole chain
graph_pdl  the same chain with programmatic dependent launch between neighbours
event      two events around each eager launch: includes what the launch itself costs the stream
wall       the host's clock around each eager launch and a synchronize: what a caller waits
(`ncu` and `cupti` are the profilers' clocks; rooflab.profile reads them.)

cold: the launches rotate over distinct copies of every operand, more than the L2 holds. warm: one copy.

What a GPU did just before sets its clock rate: a kernel behind a neighbour at the power limit ran up to 34 %
slower on an H200. Where power or clock can hold a kernel, the graph clock, and the wall clock of launches
of milliseconds, therefore measure in a named state:

burst      the GPU rests before every sample, so that no neighbour's heat counts
sustained  the contestant alone runs for 300 ms (by the wall clock: 2 s) before its samples count, so that it
           meets its own heat
after_cool each sample follows 80 ms of copies, which leave the clock high, and
after_hot  80 ms of matrix products at the power limit: what an unfair neighbour costs (study `power`)
(blank)    contestants take turns without a rest: for what power does not hold

In every state the order of contestants is drawn by a seed, and anew for each round of samples.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rooflab.bench.gate import Admitted, Work, synchronize
from rooflab.bench.meter import Meter, Reading
from rooflab.errors import GateError, UsageError
from rooflab.records.case import STATES

CLOCKS = ("graph", "graph_pdl", "event", "wall")
HOST = ("event", "wall")  # clocks of eager launches: they take turns within a pass

CHAIN_US = (
    2000.0  # a replay lasts at least about this long, so that the events' half microsecond does not count
)
_MAX_CHAIN = 4000
_WARM_UP_S = 0.05
SUSTAINED_S = 0.3  # an H200's clock settles within 0.2 s of a kernel's own load
# Of a decoder's steps, which power holds by little, only after a second or two.
SUSTAINED_WALL_S = 2.0
NEIGHBOUR_S = 0.08
# A burst rests so long, or so many replays if they take longer, and at most a tenth of a second. On an H200
# 10 ms before a chain of 2 ms and 35 ms before one of 7 ms give what 200 ms give, within 1 %; a chain of more
# than 20 ms heats the GPU by itself.
_REST_S, _REST_REPLAYS, _REST_MOST_S = 0.01, 5.0, 0.1
_HEATS_US = 50e3  # a launch so long is its own warm-up


@dataclass(frozen=True)
class Timing:
    """Time per launch in microseconds: median, quartiles, number of samples. Never the best one. `reading`
    is the GPU's condition during the samples, where the clock measured in a named state.
    """

    median_us: float
    q1_us: float
    q3_us: float
    samples: int
    reading: Reading | None = None

    @classmethod
    def of(cls, samples_us: Sequence[float], reading: Reading | None = None) -> Timing:
        q1, median, q3 = (float(q) for q in np.percentile(np.asarray(samples_us), [25, 50, 75]))
        return cls(median, q1, q3, len(samples_us), reading)


def faster(a: Timing, b: Timing) -> bool:
    """True if `a` is faster than `b` beyond their spread: a's third quartile lies under b's first."""
    return a.q3_us < b.q1_us


def copies_for(operand_bytes: int, l2_bytes: int) -> int:
    """Copies of the operands for a cold measurement: 2 or more, in all at least max(4 x L2, 2 x operands)."""
    return max(2, math.ceil(max(4 * l2_bytes, 2 * operand_bytes) / max(operand_bytes, 1)))


def rest_s(replay_s: float) -> float:
    """Seconds that a burst rests before a sample whose replay takes `replay_s`."""
    return min(_REST_MOST_S, max(_REST_S, _REST_REPLAYS * replay_s))


def seconds(launch_us: float, samples: int, clock: str, state: str = "") -> float:
    """About how long `measure` takes for one contestant whose launch takes `launch_us` microseconds."""
    if clock in HOST and not state:
        return (samples + 2) * launch_us / 1e6
    # A chain of the graph clock has at least two copies.
    replay_s = launch_us / 1e6 if clock in HOST else max(CHAIN_US, 2 * launch_us) / 1e6
    before_s = {
        "sustained": SUSTAINED_WALL_S if clock in HOST else SUSTAINED_S,
        "burst": samples * (rest_s(replay_s) + replay_s),
        **dict.fromkeys(("after_cool", "after_hot"), samples * NEIGHBOUR_S),
    }
    return before_s.get(state, 0.0) + (samples + 8) * replay_s


def measure(
    contestants: Sequence[Admitted],
    clock: str | Sequence[str],
    *,
    samples: int = 20,
    state: str = "",
    seed: int = 0,
) -> list[Timing]:
    """Time gated contestants by the named clock and check their outputs again afterwards.

    `clock` may name one for each contestant, if all are clocks of the host ("event", "wall"), which then take
    turns. `state` is a state of the GPU, for the graph or the wall clock alone. `seed` draws the order of
    contestants. Whether the result is cold or warm is decided by how many copies the contestants hold. Raises
    GateError for a contestant that has not been admitted, or whose output is wrong after timing: then there
    is no time.
    """
    for contestant in contestants:
        if not isinstance(contestant, Admitted):
            raise GateError(f"{contestant!r} has not passed the gate, and no gate means no time.")
    clocks = [clock] * len(contestants) if isinstance(clock, str) else list(clock)
    for name in clocks:
        if name not in CLOCKS:
            raise UsageError(f"There is no clock {name!r}; the clocks are {', '.join(CLOCKS)}.")
    named = set(clocks)
    if len(named) > 1 and not named <= set(HOST):
        raise UsageError(f"Contestants share one clock, or take turns by {' and '.join(HOST)}.")
    if state and (state not in STATES or named not in ({"graph"}, {"wall"})):
        raise UsageError(
            f"The graph and the wall clock alone have states, {', '.join(STATES[:-1])}, unlike {state!r} by "
            f"{' and '.join(sorted(named))}."
        )
    order = np.random.default_rng(seed)
    if state and named == {"wall"}:
        timings = _wall(contestants, samples, state, order)
    elif named <= set(HOST):
        timings = _host(contestants, clocks, samples, order)
    else:
        timings = _graph(contestants, samples, state, order)
    for contestant in contestants:
        contestant.recheck()
    return timings


def _host(
    contestants: Sequence[Admitted], clocks: Sequence[str], samples: int, order: np.random.Generator
) -> list[Timing]:
    series: list[list[float]] = [[] for _ in contestants]
    with captured_stream() if "event" in clocks else nullcontext() as stream:
        timers: dict[str, Callable[[Work, int], float]] = {"wall": _waited_us}
        if "event" in clocks:
            timers["event"] = _between_events(stream)
        for sample in range(-2, samples):  # the first two warm the path up
            for i in order.permutation(len(contestants)):
                work = contestants[i].work
                us = timers[clocks[i]](work, sample % work.copies)
                if sample >= 0:
                    series[i].append(us)
    return [Timing.of(times) for times in series]


def _wall(
    contestants: Sequence[Admitted], samples: int, state: str, order: np.random.Generator
) -> list[Timing]:
    """By the wall clock in a named state: a chain is one launch, awaited."""

    def replay_us(replay: Callable[[], None]) -> float:
        anywhere = contestants[0].work.outputs[0][0]
        synchronize(anywhere)
        start = time.perf_counter()
        replay()
        synchronize(anywhere)
        return (time.perf_counter() - start) * 1e6

    def chain(work: Work) -> Chain:
        copies = itertools.cycle(range(work.copies))

        def launch() -> None:
            work.launch(next(copies))

        return Chain(launch, 1, [replay_us(launch) for _ in range(2)][-1])

    found = [chain(one.work) for one in contestants]
    return _metered(state, lambda: sampled(found, replay_us, samples, state, order, SUSTAINED_WALL_S))


def _waited_us(work: Work, copy: int) -> float:
    synchronize(work.outputs[copy][0])
    start = time.perf_counter()
    work.launch(copy)
    synchronize(work.outputs[copy][0])
    return (time.perf_counter() - start) * 1e6


def _between_events(stream: Any) -> Callable[[Work, int], float]:
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()

    def us(work: Work, copy: int) -> float:
        start.record(stream)
        work.launch(copy)
        stop.record(stream)
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e3

    return us


class Chain(NamedTuple):
    """A contestant's captured launches: a function that replays them, how many they are, and about how many
    microseconds a replay takes.
    """

    replay: Callable[[], None]
    length: int
    us: float


Replay = Callable[[Callable[[], None]], float]  # replays a chain and gives the microseconds it took
# Of each chain the microseconds of its samples, and when (time.perf_counter) each was taken.
Sampled = tuple[list[list[float]], list[list[tuple[float, float]]]]


def _graph(
    contestants: Sequence[Admitted], samples: int, state: str, order: np.random.Generator
) -> list[Timing]:
    with chains(contestants) as (replay_us, captured):
        return _metered(state, lambda: sampled(captured, replay_us, samples, state, order))


def _metered(state: str, sample: Callable[[], Sampled]) -> list[Timing]:
    """What `sample` gives as timings, with what the meter read meanwhile in a named state."""
    with Meter() if state else nullcontext() as meter:
        series, spans = sample()
        readings = [meter.during(each) if meter else None for each in spans]
    return [Timing.of(*each) for each in zip(series, readings, strict=True)]


def sampled(
    chains: Sequence[Chain],
    replay_us: Replay,
    samples: int,
    state: str,
    order: np.random.Generator,
    alone_s: float = SUSTAINED_S,
) -> Sampled:
    """Samples of each chain, in microseconds a launch. `alone_s`: seconds that each runs before its samples
    where `state` is sustained.
    """
    series: list[list[float]] = [[] for _ in chains]
    spans: list[list[tuple[float, float]]] = [[] for _ in chains]

    def sample(i: int) -> None:
        began = time.perf_counter()
        series[i].append(replay_us(chains[i].replay) / chains[i].length)
        spans[i].append((began, time.perf_counter()))

    if state == "sustained":
        for i in order.permutation(len(chains)):
            load(chains[i], replay_us, alone_s)
            for _ in range(samples):
                sample(i)
        return series, spans
    if not state:
        until = time.perf_counter() + _WARM_UP_S
        while time.perf_counter() < until:
            for chain in chains:
                replay_us(chain.replay)
    neighbour = _neighbour(state) if state.startswith("after_") else None
    for _ in range(samples):
        for i in order.permutation(len(chains)):
            if state == "burst":
                time.sleep(rest_s(chains[i].us / 1e6))
                if chains[i].us < _HEATS_US:
                    replay_us(chains[i].replay)  # an idle GPU takes a moment to raise its clocks
            if neighbour is not None:
                load(Chain(neighbour, 1, 0.0), replay_us, NEIGHBOUR_S)
            sample(i)
    return series, spans


def _neighbour(state: str) -> Callable[[], None]:
    """Some milliseconds of other work: a large copy, or products of random FP16 matrices on tensor cores."""
    import cupy

    if state == "after_cool":
        source = cupy.empty(1 << 30, cupy.uint8)
        target = cupy.empty_like(source)
        return lambda: cupy.copyto(target, source)
    side = 8192
    a, b = (cupy.random.standard_normal((side, side), dtype=cupy.float32).astype("float16") for _ in "ab")
    out = cupy.empty((side, side), cupy.float16)

    def multiply() -> None:
        for _ in range(4):
            cupy.matmul(a, b, out=out)

    return multiply


def load(chain: Chain, replay_us: Replay, seconds: float) -> None:
    """Replay a chain for so many seconds."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        replay_us(chain.replay)


@contextmanager
def chains(contestants: Sequence[Admitted]) -> Iterator[tuple[Replay, list[Chain]]]:
    """Contestants' launches captured on a stream of their own, and the function that replays and times one.

    A chain is some multiple of its contestant's copies and lasts CHAIN_US or longer.
    """
    import cupy

    with captured_stream() as stream:
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()

        def replay_us(replay: Callable[[], None]) -> float:
            start.record(stream)
            replay()
            stop.record(stream)
            stop.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e3

        yield replay_us, [_chain(contestant, replay_us) for contestant in contestants]


def _chain(contestant: Admitted, replay_us: Replay) -> Chain:
    copies = contestant.work.copies
    trial = _capture(contestant, max(copies, 4))
    taken = replay_us(trial)
    if taken < 10 * CHAIN_US:  # a slower one needs no exact count
        taken = min(replay_us(trial) for _ in range(3))
    per_launch = taken / max(copies, 4)
    wanted = min(CHAIN_US / max(per_launch, 0.1), _MAX_CHAIN)
    length = copies * math.ceil(wanted / copies)
    return Chain(_capture(contestant, length), length, per_launch * length)


@contextmanager
def captured(work: Work) -> Iterator[Callable[[], None]]:
    """One launch of `work` over its first copy, captured: a function that replays it and waits for it."""
    with captured_stream() as stream:
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


class captured_stream:
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
