"""common/ptx on the CPU: matrices against NumPy, copies that come late, planted faults."""

import ctypes
import re

import needs
import numpy as np
import pytest
from rooflab import simt
from rooflab.ops import PORTABLE
from rooflab.paths import ROOT
from rooflab.runtime import nvrtc

needs.compiler()

SOURCE = (ROOT / "tests" / "simt_kernels" / "matrices.cu").read_text()
i32 = ctypes.c_int


def run(entry, arguments, grid=1, block=32):
    """Run a kernel watched and plainly: no fault, and the same bits both times."""
    start = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    seen = simt.watch(SOURCE, grid, block, start, entry=entry)
    assert seen.faults == []
    product = f"mma_{entry}"
    if product in simt.EXECUTED:  # once, and nothing else that is counted
        assert {name: seen.executed(name) for name in simt.EXECUTED if seen.executed(name)} == {product: 1}
    simt.run(SOURCE, grid, block, arguments, entry=entry)
    for watched, plain in zip(start, arguments, strict=True):
        if isinstance(plain, np.ndarray):
            assert (watched.view(np.uint8) == plain.view(np.uint8)).all()
    return seen


def as_bf16(values):
    """Floats cut to bfloat16, as bits."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("k", [16, 8])
def test_products_of_halves(k):
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, k), (k, 8)))
    a[3] *= 900
    c = rng.standard_normal((16, 8)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    run(f"m16n8k{k}_f16", [a.view(np.uint16), b.view(np.uint16), c])
    assert (abs(c - exact) <= np.spacing(abs(exact).astype(np.float32))).all()

    c = rng.standard_normal((16, 8)).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    run(f"m16n8k{k}_f16_sum_f16", [a.view(np.uint16), b.view(np.uint16), c.view(np.uint32)])
    assert (c == exact.astype(np.float16)).all()


def test_products_of_bfloats():
    rng = np.random.default_rng(3)
    a, b = (as_bf16(rng.standard_normal(shape) * 1e6) for shape in ((16, 16), (16, 8)))
    c = rng.standard_normal((16, 8)).astype(np.float32)
    exact = bf16_values(a).astype(np.float64) @ bf16_values(b).astype(np.float64) + c
    run("m16n8k16_bf16", [a, b, c])
    assert (abs(c - exact) <= np.spacing(abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize(("m", "k"), [(16, 32), (8, 16)])
def test_products_of_bytes_are_exact_and_wrap(m, k):
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, 8)))
    a[0], b[:, 0] = -128, -128
    c = rng.integers(-(1 << 31), 1 << 31, (m, 8)).astype(np.int32)
    c[0, 0] = np.iinfo(np.int32).max
    expected = (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32)
    run(f"m{m}n8k{k}_s8", [a.view(np.uint8), b.view(np.uint8), c])
    assert (c == expected).all() and c[0, 0] < 0


def test_ldmatrix_hands_out_rows_and_columns():
    tile = np.random.default_rng(1).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((14, 32), np.uint32)
    seen = run("load_matrices", [tile, out])
    pairs = tile.astype(np.uint32)
    rows = (pairs[:, :, 0::2] | pairs[:, :, 1::2] << 16).reshape(4, 32)
    across = pairs.transpose(0, 2, 1)
    columns = (across[:, :, 0::2] | across[:, :, 1::2] << 16).reshape(4, 32)
    for first, table in ((0, rows), (7, columns)):
        assert (out[first] == table[0]).all()
        assert (out[first + 1 : first + 3] == table[:2]).all()
        assert (out[first + 3 : first + 7] == table).all()
    lines = seen.lines()
    lanes = lines[(lines["space"] == "shared") & (lines["access"] == "load")]["lanes"]
    assert list(lanes) == [8, 16, 32] * 2  # the lanes whose addresses count


@pytest.mark.parametrize("rows", [16, 11])
def test_a_tile_from_memory_to_product(rows):
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((rows, 16)).astype(np.float16), rng.standard_normal((8, 16)).astype(np.float16)
    c = np.full((16, 8), np.nan, np.float32)
    seen = run("tile_product", [a.view(np.uint16), b.view(np.uint16), c, i32(rows)])
    assert np.allclose(c[:rows], a.astype(np.float64) @ b.T.astype(np.float64), rtol=1e-6, atol=1e-6)
    assert (c[rows:] == 0).all()
    table = seen.lines()
    copied = table[(table["buffer"] == "a") & (table["access"] == "load")].iloc[0]
    assert copied["lanes"] == 2 * rows and copied["sectors_per_request"] == rows  # zeros are not read
    # Rows of 32 bytes: the eight rows of a matrix lie in half of the banks.
    loads = table[(table["space"] == "shared") & (table["access"] == "load")]
    assert list(loads["conflicts_per_request"]) == [4, 2]


def test_copies_happen_when_they_are_waited_for():
    x = np.arange(100, 200, dtype=np.uint32)
    out = np.zeros((4, 32), np.uint32)
    simt.run(SOURCE, 1, 32, [x, out], entry="copies_are_late")
    t = np.arange(32)
    assert (out[0] == 7).all() and (out[1] == x[:32] + 7000).all()
    assert (out[2] == np.where(t % 2 == 0, x[32:64], 0)).all()
    assert (out[3] == np.where(t < 5, x[2 * t] + x[2 * t + 1], 0)).all()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_pipeline_of_copies_raises_no_alarm(steps):
    x = np.random.default_rng(steps).integers(0, 1 << 32, (3, steps, 64), dtype=np.uint32)
    out = np.zeros((3, 64), np.uint32)
    run("pipeline", [x, out, i32(steps)], grid=3, block=64)
    assert (out == x.sum(1, dtype=np.uint32)[:, ::-1]).all()


def test_words_and_powers():
    rng = np.random.default_rng(9)
    a, b, c = rng.integers(0, 1 << 32, (3, 64), dtype=np.uint32)
    out = np.zeros((4, 64), np.uint32)
    run("words", [a, b, c, out, i32(64)], block=64)
    assert (out == np.stack([(a & b) | c, (a & b) ^ c, a ^ b ^ c, (a & ~c) | (b & c)])).all()
    x = rng.uniform(-140, 20, 64).astype(np.float32)
    halves = rng.uniform(-30, 15, 128).astype(np.float16)
    y, powers = np.zeros(64, np.float32), np.zeros(128, np.float16)
    run("powers", [x, y, halves.view(np.uint32), powers.view(np.uint32)], block=64)
    assert np.allclose(y, np.where(x < -126, 0, np.exp2(x.astype(np.float64))), rtol=2e-7, atol=0)
    assert (powers == np.exp2(halves.astype(np.float64)).astype(np.float16)).all()


def test_streaming_loads():
    x, out = np.arange(128, dtype=np.uint32), np.zeros((32, 4), np.uint32)
    run("streaming", [x, out])
    t = np.arange(32)
    expected = x.reshape(32, 4) + np.stack([t, 2 * t, 2 * t + 1, 0 * t], 1)
    assert (out == expected).all()


@pytest.mark.parametrize("arch", PORTABLE)
def test_they_compile_for_every_architecture(arch):
    cubin = nvrtc.compile_source(SOURCE, arch=arch, name="matrices.cu")
    assert ("m16n8k16_bf16" in cubin.resources) == (arch != "75")
    assert all(report.spill_bytes == 0 for report in cubin.resources.values())


# entry, threads, and of the fault: kind, a thread, address, what its sentence says
PLANTED = [
    ("read_before_wait", 64, "unfinished copy", 33, "s + 12", "before thread 31's asynchronous copy to it"),
    ("one_group_short", 64, "unfinished copy", 32, "s + 12", "before its own asynchronous copy to it"),
    ("no_barrier_after_wait", 64, "race", 32, "s + 0", "which thread 0 of the same block wrote"),
    ("copied_over_readers", 64, "race", 0, "s + 0", "writes s . 0 bytes, which thread 63 of the same"),
    ("misaligned_copy", 64, "misaligned", 1, "x + 4", "reads 16 bytes at x . 4"),
    ("copy_past_the_end", 64, "out of bounds", 63, "x + 256", "reads 4 bytes at x"),
    ("copy_to_global", 64, "wrong memory", 0, "y + 0", "cp.async writes shared memory alone, not y"),
    ("misaligned_row", 32, "misaligned", 1, "s + 24", "reads 16 bytes at s . 24"),
    ("row_in_global", 32, "wrong memory", 0, "x + 0", "ldmatrix reads shared memory alone, not x"),
    ("row_not_written", 32, "uninitialised", 7, "s + 112", "reads s . 112 bytes, which this block"),
    ("half_a_warp_multiplies", 32, "divergent warp", 0, "", "threads 0-15 wait at mma.sync"),
    ("lane_has_left", 32, "inactive lane", 31, "", "mma.sync needs all 32 lanes .* lane 20 has ended"),
    ("short_warp", 48, "inactive lane", 47, "", "ldmatrix needs all 32 lanes .* lane 16 is none that"),
]


@pytest.mark.parametrize(
    ("entry", "block", "kind", "thread", "address", "says"), PLANTED, ids=[row[0] for row in PLANTED]
)
def test_a_planted_fault_is_found_and_named(entry, block, kind, thread, address, says):
    x, y = np.ones(64, np.uint32), np.zeros(64, np.uint32)
    faults = simt.watch(SOURCE, 1, block, [x, y, i32(0)], entry=entry).faults
    found = [f for f in faults if f.kind == kind and thread in f.threads and f.address.startswith(address)]
    assert found, [str(fault) for fault in faults]
    fault = found[0]
    lines = SOURCE.splitlines()
    line = next(k for k, text in enumerate(lines, 1) if f"// FAULT {entry}" in text)
    assert (fault.kernel, fault.line, fault.block) == (entry, f"kernel.cu:{line}", (0, 0, 0))
    assert re.search(says, str(fault)), str(fault)
    if entry == "read_before_wait":
        assert fault.other_line == f"kernel.cu:{line - 3}"
        assert f"({fault.other_line}) was waited for" in str(fault)


@pytest.mark.parametrize("entry", ["misaligned_row", "copy_to_global", "lane_has_left"])
def test_the_plain_build_ends_what_a_gpu_would_end(entry):
    x, y = np.ones(64, np.uint32), np.zeros(64, np.uint32)
    with pytest.raises(simt.KernelFault, match=f"{entry}, kernel.cu:"):
        simt.run(SOURCE, 1, 32, [x, y, i32(0)], entry=entry)


def test_a_product_without_its_wait_is_wrong_in_the_plain_build_too():
    x, y = np.ones(64, np.uint32), np.zeros(64, np.uint32)
    simt.run(SOURCE, 1, 64, [x, y, i32(0)], entry="read_before_wait")
    assert (y == 0xFFFFFFFF).all()
