"""The gate, attacked: NumPy kernels that cheat in every way the course knows."""

import numpy as np
import pytest
from rooflab.bench import clock, gate
from rooflab.errors import GateError, UsageError

N, A = 1003, np.float32(1.5)


def operands(copies=2):
    rng = np.random.default_rng(11)
    x, y = (rng.standard_normal(N).astype(np.float32) + np.float32(0.5) for _ in range(2))
    inputs = [[x.copy(), y.copy()] for _ in range(copies)]
    outputs = [[np.empty(N, np.float32)] for _ in range(copies)]
    return inputs, outputs


def work(kernel, *, copies=2, budget=None, outputs_hold=None):
    """A saxpy contestant whose launch is kernel(x, y, z)."""
    inputs, outputs = operands(copies)
    x, y = inputs[0]
    expected = 1.5 * x.astype(np.float64) + y.astype(np.float64)
    if budget is None:
        budget = gate.error_budget(float(np.abs(A * x + y - expected).max()), expected, "float32")
    if outputs_hold is not None:
        for (z,) in outputs:
            z[:] = outputs_hold(expected)
    return gate.Work(
        "saxpy/test", lambda i: kernel(*inputs[i], outputs[i][0]), inputs, outputs, lambda: expected, budget
    )


def honest(x, y, z):
    z[:] = A * x + y


def test_an_honest_kernel_passes_with_its_error():
    admitted = gate.admit(work(honest))
    assert 0 < admitted.error <= admitted.work.budget < 1e-6
    admitted.recheck()


def writes_nothing(x, y, z):
    pass


def writes_zeros(x, y, z):
    z[:] = 0


def skips_tail(x, y, z):
    end = N // 256 * 256
    z[:end] = A * x[:end] + y[:end]


def one_nan(x, y, z):
    honest(x, y, z)
    z[N // 3] = np.nan


def one_infinity(x, y, z):
    honest(x, y, z)
    z[5] = np.inf


def slightly_off(x, y, z):
    honest(x, y, z)
    z[-1] += np.float32(1e-5)


def changes_inputs(x, y, z):
    honest(x, y, z)
    x[7] += 1


def half_precision(x, y, z):
    z[:] = (np.float16(1.5) * x.astype(np.float16) + y.astype(np.float16)).astype(np.float32)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (writes_nothing, "1003 of 1003 outputs are wrong, the first at index 0: got nan"),
        (writes_zeros, "the first at index 0: got 0"),
        (skips_tail, "235 of 1003 outputs are wrong, the first at index 768"),
        (one_nan, "1 of 1003 outputs are wrong, the first at index 334: got nan"),
        (one_infinity, "the first at index 5: got inf"),
        (slightly_off, "1 of 1003 outputs are wrong, the first at index 1002"),
        (changes_inputs, "changed its input 0"),
        (half_precision, "outputs are wrong"),
    ],
)
def test_a_cheat_is_refused_at_the_gate(kernel, says):
    with pytest.raises(GateError, match=says):
        gate.admit(work(kernel))


def test_a_stale_answer_in_the_output_buffer_does_not_help():
    with pytest.raises(GateError, match="got nan"):
        gate.admit(work(writes_nothing, outputs_hold=lambda expected: expected.astype(np.float32)))


def test_a_kept_answer_to_other_inputs_is_refused():
    kept = {}

    def remembers(x, y, z):
        if "answer" not in kept:
            kept["answer"] = A * x + y + np.float32(0.125)
        z[:] = kept["answer"]

    with pytest.raises(GateError, match="1003 of 1003"):
        gate.admit(work(remembers))


@pytest.mark.parametrize("honest_calls", [3, 10, 20])
def test_a_kernel_that_is_right_only_at_first_is_caught_after_timing(honest_calls):
    calls = []

    def lazy(x, y, z):
        calls.append(1)
        if len(calls) <= honest_calls:
            honest(x, y, z)
        else:
            z[N // 2] = 0

    admitted = gate.admit(work(lazy))
    with pytest.raises(GateError, match="after timing"):
        clock.measure([admitted], "wall", samples=30)


def test_a_kernel_that_stops_writing_after_a_while_is_caught():
    calls = []

    def stops(x, y, z):
        calls.append(1)
        if len(calls) <= 10:
            honest(x, y, z)

    admitted = gate.admit(work(stops))
    with pytest.raises(GateError, match="launched again after timing: .* got nan"):
        clock.measure([admitted], "wall", samples=30)


def test_every_copy_is_judged():
    def second_copy_wrong(x, y, z):
        honest(x, y, z)
        seen.append(1)
        if len(seen) == 2:
            z[0] = 9

    seen = []
    with pytest.raises(GateError, match="index 0: got 9"):
        gate.admit(work(second_copy_wrong))


def test_integers_are_judged_exactly():
    x = np.arange(100, dtype=np.uint32) * np.uint32(40_000_000)
    out = np.empty_like(x)

    def off_by_one():
        out[:] = x
        out[42] += 1

    exact = gate.Work("copy", lambda i: np.copyto(out, x), [[x]], [[out]], lambda: x)
    assert gate.admit(exact).error == 0
    with pytest.raises(GateError, match="index 42"):
        gate.admit(gate.Work("copy", lambda i: off_by_one(), [[x]], [[out]], lambda: x, budget=5.0))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.int32, np.uint64])
def test_an_integer_answer_left_in_the_output_does_not_help(dtype):
    x = np.arange(100).astype(dtype)
    out = x.copy()
    idle = gate.Work("copy", lambda i: None, [[x]], [[out]], lambda: x)
    with pytest.raises(GateError, match="at the gate: 100 of 100 outputs are wrong"):
        gate.admit(idle)

    calls = []

    def stops(i):
        calls.append(1)
        if len(calls) <= 2:
            out[:] = x

    admitted = gate.admit(gate.Work("copy", stops, [[x]], [[out]], lambda: x))
    stops(0)
    with pytest.raises(GateError, match="launched again after timing: 100 of 100"):
        admitted.recheck()


class Tensor:
    """What the gate asks of a torch tensor that it fills."""

    def __init__(self, dtype):
        self.array = np.zeros(3, dtype)

    def data_ptr(self):
        return self.array.ctypes.data

    def is_floating_point(self):
        return self.array.dtype.kind == "f"

    def fill_(self, value):
        self.array[:] = np.asarray(value).astype(self.array.dtype)


def test_a_tensor_is_poisoned_as_an_array_is():
    tensors = [Tensor(np.float16), Tensor(np.int8), Tensor(np.uint8), Tensor(np.int32)]
    gate._poison(tensors)
    assert np.isnan(tensors[0].array).all()
    assert [int(one.array[0]) for one in tensors[1:]] == [-91, 0xA5, -91]


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("copy", [0, 1])
def test_inputs_changed_while_it_is_timed_are_found(operand, copy):
    """The outputs stay right: it computes from what it kept."""
    inputs, outputs = operands()
    kept = [[array.copy() for array in arrays] for arrays in inputs]
    calls = []

    def launch(i):
        calls.append(i)
        honest(*kept[i], outputs[i][0])
        if len(calls) > 2 and i == copy:
            inputs[i][operand][-1] += 1

    expected = 1.5 * kept[0][0].astype(np.float64) + kept[0][1]
    admitted = gate.admit(gate.Work("saxpy", launch, inputs, outputs, lambda: expected, 1e-6))
    with pytest.raises(GateError, match=rf"changed its input {operand} \(copy {copy}\)"):
        clock.measure([admitted], "wall", samples=4)


def test_an_error_of_exactly_the_budget_passes_and_floats_may_stand_for_whole_numbers():
    x = np.arange(8)
    out = np.empty(8, np.float32)

    def off(by):
        return gate.Work("w", lambda i: np.copyto(out, x + by), [[x]], [[out]], lambda: x, budget=0.5)

    assert gate.admit(off(np.float32(0.5))).error == 0.5
    with pytest.raises(GateError, match="8 of 8"):
        gate.admit(off(np.float32(0.625)))


def test_outputs_compared_piece_by_piece_are_counted_and_found_as_a_whole(monkeypatch):
    monkeypatch.setattr(gate, "_CHUNK", 100)

    def wrong_thrice(x, y, z):
        honest(x, y, z)
        z[[250, 260, 850]] = 7

    with pytest.raises(GateError, match="3 of 1003 outputs are wrong, the first at index 250: got 7"):
        gate.admit(work(wrong_thrice))
    assert gate.admit(work(honest)).error > 0


def test_the_error_kept_is_the_largest_seen():
    errors = iter([0.25, 0.5, 0.125, 1.0])
    out = np.empty(4, np.float32)
    one = gate.Work("w", lambda i: out.fill(1 + next(errors)), [[]], [[out]], lambda: np.ones(4), budget=1.0)
    admitted = gate.admit(one)
    assert admitted.error == 0.25
    for largest in (0.5, 0.5, 1.0):
        admitted.recheck()
        assert admitted.error == largest


def test_a_wrong_shape_and_a_bad_oracle_are_refused():
    inputs, outputs = operands(1)
    short = gate.Work("short", lambda i: None, inputs, outputs, lambda: np.zeros(7))
    with pytest.raises(GateError, match=r"shape \(1003,\), expected \(7,\)"):
        gate.admit(short)
    blind = gate.Work("blind", lambda i: None, inputs, outputs, lambda: np.full(N, np.nan))
    with pytest.raises(GateError, match="oracle itself is not finite"):
        gate.admit(blind)


def test_the_budget_is_twice_the_baselines_error_but_at_least_one_ulp():
    expected = np.array([1.0, -3.0])
    assert gate.error_budget(1e-3, expected, "float32") == 2e-3
    assert gate.error_budget(0.0, expected, "float32") == np.spacing(np.float32(3.0))
    assert gate.error_budget(0.0, expected, "float16") == np.spacing(np.float16(3.0))


def test_no_gate_no_time():
    with pytest.raises(GateError, match="no gate means no time"):
        clock.measure([work(honest)], "wall")


def test_the_wall_clock_counts_samples_and_orders_quartiles():
    timing = clock.measure([gate.admit(work(honest))], "wall", samples=12)[0]
    assert timing.samples == 12
    assert 0 < timing.q1_us <= timing.median_us <= timing.q3_us


def test_contestants_are_interleaved():
    order = []

    def named(name):
        def kernel(x, y, z):
            order.append(name)
            honest(x, y, z)

        return kernel

    admitted = [gate.admit(work(named(name), copies=1)) for name in "ab"]
    order.clear()
    clock.measure(admitted, "wall", samples=5)
    turns = ["".join(order[i : i + 2]) for i in range(0, 14, 2)]  # two warm-ups and five samples
    assert set(turns) == {"ab", "ba"}


def test_an_unknown_clock_is_named():
    with pytest.raises(UsageError, match="no clock 'stopwatch'; the clocks are graph"):
        clock.measure([gate.admit(work(honest))], "stopwatch")


def test_quartiles_decide_who_is_faster():
    def timing(q1, median, q3):
        return clock.Timing(median, q1, q3, 20)

    assert clock.faster(timing(1, 2, 3), timing(3.1, 4, 5))
    assert not clock.faster(timing(1, 2, 3), timing(2.9, 4, 5))


@pytest.mark.parametrize(
    ("operand", "l2", "copies"),
    [(1 << 20, 60 << 20, 240), (1 << 30, 60 << 20, 2), (100 << 20, 60 << 20, 3), (7, 7, 4)],
)
def test_copies_exceed_the_cache(operand, l2, copies):
    assert clock.copies_for(operand, l2) == copies
    assert copies >= 2
    assert copies * operand >= max(4 * l2, 2 * operand)
