"""The graph clock's states, the order of contestants, the host's clocks in turn, and what the meter reads."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from rooflab.bench import clock, gate
from rooflab.bench.meter import Meter, Reading
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.records.case import Case
from rooflab.studies import base, timing

NAMES = "abcde"


class Bench:
    """Chains that take a set time of a clock that only they and sleeping move on, and a log of what ran."""

    def __init__(self, monkeypatch, us=1000.0):
        self.now, self.us, self.log = 0.0, us, []
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(clock.time, "sleep", self.sleep)
        self.chains = [clock.Chain(lambda name=name: self.log.append(name), 4, us) for name in NAMES]

    def sleep(self, seconds):
        self.now += seconds
        self.log.append(seconds)

    def replay_us(self, replay):
        replay()
        self.now += self.us / 1e6
        return self.us

    def run(self, state, samples=6, seed=1):
        self.log.clear()
        order = np.random.default_rng(seed)
        series, spans = clock.sampled(self.chains, self.replay_us, samples, state, order)
        assert [len(each) for each in series] == [len(each) for each in spans] == [samples] * len(NAMES)
        assert set(sum(series, [])) == {self.us / 4}, "a sample is the time of one launch"
        return spans


def rounds(log):
    """The order of contestants in each round, of a log of names."""
    names = [entry for entry in log if isinstance(entry, str)]
    return [tuple(names[i : i + len(NAMES)]) for i in range(0, len(names), len(NAMES))]


def test_a_burst_rests_before_each_sample_and_replays_once_before_it_counts(monkeypatch):
    bench = Bench(monkeypatch, us=5000.0)
    spans = bench.run("burst")
    quiet = clock.rest_s(5e-3)
    assert quiet > 5e-3 and bench.log[0::3] == [quiet] * (6 * len(NAMES))
    assert bench.log[1::3] == bench.log[2::3], "the same chain, unmeasured and then measured"
    assert all(stop - start == pytest.approx(5e-3) for each in spans for start, stop in each)


def test_a_long_chain_rests_longer_up_to_a_limit():
    rests = [clock.rest_s(us / 1e6) for us in (100, 2000, 12_000, 1_000_000)]
    assert rests[0] == pytest.approx(0.01) and rests == sorted(rests) and rests[2] > 0.05 and rests[3] == 0.1


def test_a_sustained_contestant_runs_alone_before_and_while_it_is_sampled(monkeypatch):
    bench = Bench(monkeypatch)
    spans = bench.run("sustained")
    order = list(dict.fromkeys(bench.log))
    assert sorted(order) == sorted(NAMES)
    assert bench.log == [name for name in order for _ in range(bench.log.count(name))], "one after the other"
    began = 0.0
    for name in order:
        mine = spans[NAMES.index(name)]
        assert mine[0][0] - began >= clock.SUSTAINED_S
        began = mine[-1][1]


@pytest.mark.parametrize("state", ["", "burst"])
def test_the_order_is_drawn_anew_for_each_round_by_a_seed(monkeypatch, state):
    bench = Bench(monkeypatch)
    monkeypatch.setattr(clock, "_WARM_UP_S", 0.0)

    def drawn(seed):
        bench.run(state, seed=seed)
        log = bench.log if not state else bench.log[2::3]
        return rounds(log)

    first = drawn(1)
    assert all(sorted(each) == sorted(NAMES) for each in first) and len(set(first)) > 1
    assert drawn(1) == first != drawn(2)


def test_a_neighbour_runs_before_each_sample(monkeypatch):
    bench = Bench(monkeypatch)
    monkeypatch.setattr(clock, "_neighbour", lambda state: lambda: bench.log.append(state))
    for state in ("after_cool", "after_hot"):
        bench.run(state)
        at = [i for i, entry in enumerate(bench.log) if entry in NAMES]
        assert len(at) == 6 * len(NAMES)
        assert all(bench.log[i - 1] == state for i in at)
        assert bench.log.count(state) * bench.us / 1e6 >= len(at) * clock.NEIGHBOUR_S


def entry(launched, name):
    out = np.ones(3)
    work = gate.Work(name, lambda i: launched.append(name), [[np.ones(3)]], [[out]], lambda: np.ones(3))
    return gate.Admitted(work, 0.0, np.ones(3), gate._digests([[np.ones(3)]]))


def test_the_states_are_the_graph_and_the_wall_clock_s_alone(monkeypatch):
    one = entry([], "a")
    with pytest.raises(UsageError, match="graph and the wall clock alone have states"):
        clock.measure([one], "event", state="burst")
    with pytest.raises(UsageError, match="'burst' by event and wall"):
        clock.measure([one, one], ["event", "wall"], state="burst")
    with pytest.raises(UsageError, match="'cold'"):
        clock.measure([one], "graph", state="cold")
    with pytest.raises(UsageError, match="share one clock"):
        clock.measure([one, one], ["graph", "wall"])
    with pytest.raises(UsageError, match="'event' takes no 'burst'"):
        Case("x", "op", "1", clock="event", state="burst")


@pytest.mark.parametrize("takes_s, launches", [(0.001, 2), (0.06, 1)])
def test_the_wall_clock_rests_before_a_burst_and_warms_up_a_short_launch_alone(
    monkeypatch, takes_s, launches
):
    """A launch that heats the GPU by itself is not launched another time before its sample."""
    log = []
    now = iter(np.arange(1, 1000) * takes_s)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(clock.time, "sleep", lambda seconds: log.append(round(seconds, 3)))
    monkeypatch.setattr(clock, "Meter", contextlib.nullcontext)
    one = entry(log, "a")
    monkeypatch.setattr(one.__class__, "recheck", lambda self: None)
    (timing,) = clock.measure([one], "wall", state="burst", samples=3)
    assert log == ["a", "a", *3 * [clock.rest_s(takes_s), *launches * ["a"]]]
    assert timing.median_us == pytest.approx(takes_s * 1e6) and timing.samples == 3


def test_the_wall_clock_samples_one_that_has_run_by_itself(monkeypatch):
    log = []
    entries = [entry(log, "a"), entry(log, "b")]
    monkeypatch.setattr(entries[0].__class__, "recheck", lambda self: None)
    monkeypatch.setattr(clock, "SUSTAINED_WALL_S", 0.01)
    timings = clock.measure(entries, "wall", state="sustained", samples=2)
    after = log[4:]  # each was launched twice to tell how long it takes
    assert len(after) > 8 and after == sorted(after, key=after[0].__ne__), "one after the other"
    assert [each.samples for each in timings] == [2, 2]


def test_contestants_of_the_host_s_clocks_take_turns_in_a_drawn_order(monkeypatch):
    launched = []
    entries = [entry(launched, name) for name in NAMES]
    for each in entries:
        monkeypatch.setattr(each.__class__, "recheck", lambda self: None)
    timings = clock.measure(entries, ["wall"] * len(NAMES), samples=8, seed=3)
    assert [timing.samples for timing in timings] == [8] * len(NAMES)
    drawn = rounds(launched)
    assert len(drawn) == 10 and all(sorted(each) == sorted(NAMES) for each in drawn) and len(set(drawn)) > 1


def pair(n):
    event = Case("regimes", "product", "cublas", n=n, k=1, clock="event")
    return [event, replace(event, clock="wall")]


def test_a_disturbed_pass_of_the_host_s_clocks_is_repeated_and_the_quietest_kept(monkeypatch):
    cases = [*pair(1), *pair(2)]
    passes = [
        {"event": 9.0, "wall": 8.0},  # both pairs disturbed
        {"event": 7.0, "wall": 8.0},
        {"event": 1.0, "wall": 8.0},  # never reached
    ]
    seeds = []

    def measure(entries, clocks, *, samples, state, seed):
        now = passes[len(seeds)]
        seeds.append(seed)
        return [clock.Timing(now[name], now[name], now[name], samples) for name in clocks]

    monkeypatch.setattr(clock, "measure", measure)
    entries = [entry([], case.id) for case in cases]
    timings, skipped = timing.timed(cases, entries, samples=5)
    assert len(seeds) == 2 and len(set(seeds)) == 2 and not skipped
    assert {timings[case.id].median_us for case in cases if case.clock == "event"} == {7.0}
    passes[1]["event"] = 8.5
    passes[2]["event"] = 9.5
    seeds.clear()
    timings, _ = timing.timed(cases, entries, samples=5)
    assert len(seeds) == 3 and timings[cases[0].id].median_us == 9.0, "the first of equally disturbed ones"


def test_event_and_wall_are_one_group_and_states_are_not():
    study = base.Study()
    one = Case("s", "op", "1", n=1)
    event, wall = replace(one, clock="event"), replace(one, clock="wall")
    assert study.groups([event, one, wall]) == [[event, wall], [one]]
    burst, sustained = (replace(one, state=state) for state in ("burst", "sustained"))
    assert len(study.groups([one, burst, sustained])) == 3


def test_the_meter_gives_medians_of_what_it_read_within_the_spans(monkeypatch):
    now = iter(
        [
            {"sm_clock_mhz": 1980, "power_w": 100.0, "temperature_c": 40, "power_capped": 0.0},
            {"sm_clock_mhz": 1500, "power_w": 700.0, "temperature_c": 50, "power_capped": 1.0},
            {"sm_clock_mhz": 1400, "power_w": 690.0, "temperature_c": 52, "power_capped": 0.0},
            {"sm_clock_mhz": 1600, "power_w": 710.0, "temperature_c": 51, "power_capped": 1.0},
        ]
    )
    times = iter(range(10))
    monkeypatch.setattr(device, "conditions", lambda: next(now, None))
    monkeypatch.setattr("rooflab.bench.meter.time.perf_counter", lambda: next(times))
    meter = Meter()
    meter._follow()
    assert meter.during([(1, 3)]) == Reading(1500, 700.0, 51, pytest.approx(2 / 3))
    assert meter.during([(0, 0), (2, 2)]) == Reading(1690, 395.0, 46, 0.0)
    assert meter.during([(8, 9)]) is None


def test_the_meter_reads_nothing_without_nvml(monkeypatch):
    monkeypatch.setattr(device, "conditions", lambda: None)
    with Meter() as meter:
        pass
    assert meter.during([(0.0, float("inf"))]) is None
