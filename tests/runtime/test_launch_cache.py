"""Kept calls: an op called again goes straight to its kernel, and every refusal still stands."""

import threading
import weakref

import needs
import numpy as np
import pytest
from rooflab import dispatch, ops
from rooflab.errors import LaunchError, UsageError
from rooflab.numerics import quant
from rooflab.ops import gemv, int4, mmq, q8_0
from rooflab.runtime import driver as runtime_driver
from rooflab.runtime import launch_cache, nvrtc

needs.compiler()

N, K = 40, 256


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Calls are kept here too, and start from none."""
    monkeypatch.setattr(launch_cache, "TARGETS", {"gpu", "cpu"})
    with ops.on("cpu"):
        yield


def aligned(array):
    """The array at a multiple of 256 bytes, as GPUs' allocators give it."""
    room = np.empty(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    found = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def random(rows, k, seed=0):
    return aligned(np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float16))


def rows_of(n=N, k=K, seed=3):
    return int4.Rows(*map(aligned, quant.quantise_int4(random(n, k, seed).astype(np.float32))))


def planes(w):
    made = q8_0.quantise(w)
    return quant.Planes(*map(aligned, made))


@pytest.fixture
def checked(monkeypatch):
    """How often a launcher's checks have run."""
    seen = []
    for module in (int4, q8_0, gemv, mmq):
        real = module.check_array
        monkeypatch.setattr(
            module, "check_array", lambda *given, real=real: (seen.append(given[0]), real(*given))[1]
        )
    return seen


def test_a_second_call_is_not_checked_and_takes_its_own_operands(checked):
    weights, xs = [rows_of(seed=s) for s in (3, 4)], [random(2, K, s) for s in (1, 2)]
    outs = [aligned(np.zeros((2, N), np.float16)) for _ in range(2)]
    expected = []
    for x, w in zip(xs, weights, strict=True):
        expected.append(int4.matmul(x, w, rung="3_magic").copy())
    checked.clear()
    for x, w, out in zip(xs, weights, outs, strict=True):
        assert int4.matmul(x, w, out=out, rung="3_magic") is out
        if checked:
            assert x is xs[0]
            checked.clear()
    assert all(np.array_equal(a, b) for a, b in zip(outs, expected, strict=True))
    assert not np.array_equal(*outs)


def test_every_launcher_that_is_remembered_gives_the_same_bits_again(checked):
    w, x = random(N, K, 5), random(2, K, 6)
    rows = rows_of()
    tiles = int4.repack(*rows)._replace(blocks=aligned(int4.repack(*rows).blocks))
    q, xq = planes(w), planes(x)
    halves = aligned(np.zeros((2, N), np.float16))
    calls = {
        "int4 rows": (lambda out: int4.matmul(x, rows, out=out), halves),
        "int4 tiles": (lambda out: int4.matmul(x, tiles, out=out), halves),
        "dequantise": (lambda out: int4.dequantise(rows, out=out), aligned(np.zeros((N, K), np.float16))),
        "q8_0": (lambda out: q8_0.matvec(xq, q, out=out, rung="5_batch"), halves),
        "mmq": (lambda out: mmq.product(xq, q, out=out, rung="5_large_tiles"), halves),
        "gemv": (lambda out: gemv.gemv_rows(w, x[0], out=out), aligned(np.zeros(N, np.float16))),
    }
    for name, (call, out) in calls.items():
        call(out)
        first = out.copy()
        out.fill(np.nan)
        checked.clear()
        call(out)
        assert not checked and np.array_equal(out, first), name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": random(2, K).astype(np.float32)}, "x must hold float16, not float32"),
        ({"x": random(2, K + 128)}, "x must hold 512 elements, not 768"),
        ({"x": random(3, K)[:, ::-1]}, "x must be contiguous|out must hold"),
        ({"x": random(K, 2).T}, "x must be contiguous"),
        ({"x": random(3, K).reshape(-1)[1 : 2 * K + 1].reshape(2, K)}, "multiple of 16 bytes"),
        ({"x": random(2, K).tolist()}, "no attribute 'shape'|must be a NumPy array"),
        ({"out": aligned(np.zeros((2, N + 1), np.float16))}, "out must hold 80 elements, not 82"),
        ({"out": aligned(np.zeros((2, N), np.float32))}, "out must hold float16"),
        ({"rung": "9_shared_x"}, "takes weights in tile order"),
        ({"rung": "12_none"}, "has no rung"),
        ({"THREADS": 64, "ROWS": 2}, "has no option ROWS"),
    ],
)
def test_what_is_refused_at_first_is_refused_after_a_call_was_kept(change, says, checked):
    """The kept call's facts differ from these, so they meet the checks."""
    rows, given = rows_of(), {"x": random(2, K), "out": aligned(np.zeros((2, N), np.float16))}
    for _ in range(2):
        int4.matmul(given["x"], rows, out=given["out"], rung="3_magic")
    checked.clear()
    int4.matmul(given["x"], rows, out=given["out"], rung="3_magic")
    assert not checked
    given |= {"rung": "3_magic", **change}
    for _ in range(2):  # a refusal is not kept either
        with pytest.raises((LaunchError, UsageError, AttributeError), match=says):
            int4.matmul(given.pop("x", change.get("x", random(2, K))), rows, **given)


def test_weights_are_looked_at_in_every_call():
    """An array that was changed where it lies is not what was checked."""
    x, out = random(2, K), aligned(np.zeros((2, N), np.float16))
    rows = rows_of()
    for _ in range(2):
        int4.matmul(x, rows, out=out, rung="3_magic")
    for broken in (rows._replace(scales=rows.scales[:, :1]), rows._replace(qweight=rows.qweight[:, ::2])):
        with pytest.raises(LaunchError, match="scales|qweight|x must hold"):
            int4.matmul(x, broken, out=out, rung="3_magic")


def test_a_result_is_made_anew_in_every_call(monkeypatch):
    """Without `out` no two calls share their result."""
    x, rows = random(2, K), rows_of()
    first, second = (int4.matmul(x, rows, rung="3_magic") for _ in range(2))
    assert first is not second and np.array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_a_launch_that_reads_more_than_its_operands_is_not_kept(checked):
    """The split sums of a GEMV lie in a room of their own, whose address is not an operand's."""
    a, x, out = (
        aligned(np.random.default_rng(1).standard_normal(s).astype(np.float32)) for s in ((96, 64), 96, 64)
    )
    gemv.gemv(a, x, out=out, rung="3_split_k", splits=3)
    checked.clear()
    gemv.gemv(a, x, out=out, rung="3_split_k", splits=3)
    assert checked


def test_an_operand_given_twice_is_not_kept(checked):
    x = random(2, K)
    rows = rows_of(2, K)
    for _ in range(2):
        checked.clear()
        with pytest.raises(LaunchError):  # qweight must not be scales
            int4.matmul(x, int4.Rows(rows.qweight, rows.qweight), out=aligned(np.zeros((2, 2), np.float16)))
        assert checked
    w = random(N, N)
    for _ in range(2):
        checked.clear()
        gemv.gemv_rows(w, w[0], out=aligned(np.zeros(N, np.float16)))
        assert checked  # w and its first row have one address


def test_each_thread_keeps_its_own(checked):
    x, rows = random(2, K), rows_of()
    out = aligned(np.zeros((2, N), np.float16))
    for _ in range(2):
        int4.matmul(x, rows, out=out, rung="3_magic")
    checked.clear()

    def other():
        with ops.on("cpu"):
            int4.matmul(x, rows, out=out, rung="3_magic")

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert checked


# --- the dispatcher -----------------------------------------------------------------------------------------


def test_a_product_is_kept_with_its_choice(monkeypatch):
    w = random(N, K, 5)
    held = dispatch.q8_0_weights(planes(w))
    made = []
    real = dispatch._product
    monkeypatch.setattr(dispatch, "_product", lambda *given: (made.append(1), real(*given))[1])
    outs = [aligned(np.zeros((2, N), np.float16)) for _ in range(2)]
    xs = [random(2, K, s) for s in (7, 8)]
    for x, out in zip(xs, outs, strict=True):
        assert dispatch.product(x, held, out=out) is out
        want = x.astype(np.float32) @ w.astype(np.float32).T
        assert np.abs(out - want).max() < 0.05 * np.abs(want).max()
    assert len(made) == 1 and dispatch.last().format == "q8_0"
    with dispatch.reverted("fp16"):  # another switch: chosen anew
        dispatch.product(xs[0], held, out=outs[0])
    assert len(made) == 2
    monkeypatch.setenv(dispatch.PLAIN, "fp16")
    dispatch.product(xs[0], held, out=outs[0])
    assert len(made) == 3
    with pytest.raises(LaunchError, match="x has k = 128"):
        dispatch.product(random(2, 128), held, out=outs[0])


def test_a_library_s_product_is_never_kept(monkeypatch):
    w = random(N, K, 5)
    made = []
    real = dispatch._product
    monkeypatch.setattr(dispatch, "_product", lambda *given: (made.append(1), real(*given))[1])
    rows = rows_of()
    for held, by in ((dispatch.halves(w), "cublas"), (dispatch.int4_weights(rows), "two_op")):
        made.clear()
        out = aligned(np.zeros((2, N), np.float16))
        for _ in range(3):
            dispatch.product(random(2, K, 1), held, out=out, by=by)
        assert len(made) == 3, by


# --- the launch itself --------------------------------------------------------------------------------------


class Driver:
    """The driver's launch, its arguments read back as the driver reads them."""

    class CUresult:
        CUDA_SUCCESS = 0

    def __init__(self):
        self.seen = []

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, where, extra):
        import ctypes

        cells = (ctypes.c_void_p * 3).from_address(where)
        values = [
            ctypes.c_uint64.from_address(cells[0]).value,
            ctypes.c_uint.from_address(cells[1]).value,
            bytes((ctypes.c_uint8 * 128).from_address(cells[2])),
        ]
        self.seen.append(((gx, gy, gz, bx, by, bz, shared, stream), values))
        return (0,)


def test_a_repeated_launch_puts_the_new_addresses_in(monkeypatch):
    import ctypes

    driver, maps = Driver(), []
    monkeypatch.setattr(runtime_driver, "_driver", lambda: driver)
    monkeypatch.setattr(runtime_driver, "current_stream", lambda: 77)

    def array_map(address, *made):
        found = nvrtc.TensorMap()
        found.opaque[0], found.made = address % 251, (address, *made)
        maps.append(found.made)
        return found

    monkeypatch.setattr(runtime_driver, "array_map", array_map)
    function = object.__new__(nvrtc.Function)
    function._function, function._allowed = "f", 48 * 1024
    x, y = random(1, 8), random(1, 8)
    first = nvrtc.tensor_map(nvrtc.pointer(y), 1, 8, "float16", (1, 8), 0)
    launch = function.repeated((3, 2), 64, [x, ctypes.c_uint(5), first], [0, None, 1], 128)
    launch([1 << 40, 999])
    launch([1 << 41, 1000])
    assert [values[0] for _, values in driver.seen] == [1 << 40, 1 << 41]
    assert {values[1] for _, values in driver.seen} == {5}
    assert [values[2][0] for _, values in driver.seen] == [999 % 251, 1000 % 251]
    assert maps[1:] == [(999, (1, 8), "float16", (1, 8), 0), (1000, (1, 8), "float16", (1, 8), 0)]
    assert driver.seen[0][0] == (3, 2, 1, 64, 1, 1, 128, 77)


def test_within_whole_every_call_is_checked(checked):
    x, rows = random(2, K), rows_of()
    out = aligned(np.zeros((2, N), np.float16))
    for _ in range(2):
        int4.matmul(x, rows, out=out, rung="3_magic")
    checked.clear()
    with launch_cache.whole():
        int4.matmul(x, rows, out=out, rung="3_magic")
        assert checked
    checked.clear()
    int4.matmul(x, rows, out=out, rung="3_magic")
    assert not checked


def test_a_prepared_launch_keeps_its_arrays(monkeypatch):
    """It packs their addresses once: freed in between, they would be another's memory."""
    monkeypatch.setattr(runtime_driver, "_driver", lambda: None)
    monkeypatch.setattr(runtime_driver, "_packed", lambda arguments: ())
    function = object.__new__(runtime_driver.Function)
    function._allowed = 0
    array = np.zeros(4)
    alive = weakref.ref(array)
    launch = function.prepared(1, 32, [array])
    del array
    assert launch and alive() is not None
