"""Kernels on the CPU: every rung through the gate, every operation between threads against NumPy."""

import ctypes
import re
import shutil
from collections import Counter
from fractions import Fraction

import needs
import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.bench import gate
from rooflab.errors import GateError, LaunchError, MissingTool, UsageError
from rooflab.numerics import reference
from rooflab.ops import Rung, probes, stream
from rooflab.paths import KERNELS, ROOT
from rooflab.runtime import nvrtc

needs.compiler()

SOURCE = (ROOT / "tests" / "simt_kernels" / "operations.cu").read_text()
u64, u32, f32, i32 = ctypes.c_ulonglong, ctypes.c_uint, ctypes.c_float, ctypes.c_int
A = 1.5


def run(entry, grid, block, arguments, **options):
    simt.run(SOURCE, grid, block, arguments, entry=entry, **options)


# --- the rungs ----------------------------------------------------------------------------------------------


def work(rung, n, options=None):
    """A streaming rung on the CPU as a contestant for the gate: n elements, two copies of the operands."""
    macros = rung.with_defaults(options or {})
    blocks = stream.blocks_of(rung, n, macros, None if rung.grid == "cover" else 3)
    rng = np.random.default_rng(n)
    floats = rung.operator in ("triad", "saxpy")

    def operand():
        if floats:
            return rng.standard_normal(n).astype(np.float32) + np.float32(0.5)
        return rng.integers(0, 1 << 32, n, dtype=np.uint32)

    originals = [operand() for _ in range({"read": 1, "copy": 1, "write": 0}.get(rung.operator, 2))]
    inputs = [[array.copy() for array in originals] for _ in range(2)]
    size, dtype = (blocks if rung.operator == "read" else n), (np.float32 if floats else np.uint32)
    outputs = [[np.empty(size, dtype)] for _ in range(2)]
    scalars = {"write": [u32(77)], "triad": [f32(A)], "saxpy": [f32(A)]}.get(rung.operator, [])

    def launch(i):
        arguments = [*inputs[i], *outputs[i], *scalars, u64(n)]
        simt.run(rung, blocks, macros["THREADS"], arguments, options)

    x = originals[0] if originals else None
    expected = {
        "read": lambda: np.array([reference.read_sum(x)], np.uint64),
        "copy": lambda: reference.copy(x),
        "write": lambda: np.arange(n, dtype=np.uint32) ^ np.uint32(77),
        "triad": lambda: reference.triad(*originals, A),
        "saxpy": lambda: reference.saxpy(A, *originals),
    }[rung.operator]
    budget = 0.0
    if floats:
        scaled, added = originals if rung.operator == "saxpy" else reversed(originals)
        baseline = np.float32(A) * scaled + added
        budget = gate.error_budget(float(abs(baseline - expected()).max()), expected(), "float32")

    def total(arrays):
        return arrays[0].sum(dtype=np.uint64, keepdims=True) % np.uint64(1 << 32)

    result = total if rung.operator == "read" else (lambda arrays: arrays[0])
    return gate.Work(f"{rung.operator}/{rung.name}", launch, inputs, outputs, expected, budget, result)


def test_options_reach_the_source():
    rung = stream.LADDERS["copy"][2]
    gate.admit(work(rung, 4096, {"THREADS": 64, "UNROLL": 2}))
    with pytest.raises(UsageError, match="copy/3_in_flight has no option COLOUR"):
        simt.load(rung, {"COLOUR": 1})


class FakeGpuArray:
    """What a CuPy array looks like to a launch check."""

    data = type("Memory", (), {"ptr": 4096})()


@pytest.mark.parametrize("operator", ["copy", "write", "triad", "saxpy"])
def test_within_on_cpu_an_op_takes_numpy_arrays(operator):
    n, rng = 4 * 257, np.random.default_rng(2)
    b, c = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    words = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    with ops.on("cpu"):
        for rung in stream.LADDERS[operator][:3]:
            if operator == "copy":
                assert (stream.copy(words, rung=rung.name) == words).all()
            elif operator == "write":
                out = stream.write(np.empty(n, np.uint32), 9, rung=rung.name)
                assert (out == (np.arange(n, dtype=np.uint32) ^ np.uint32(9))).all()
            elif operator == "triad":
                assert np.allclose(stream.triad(b, c, A, rung=rung.name), reference.triad(b, c, A), rtol=1e-6)
        if operator == "saxpy":
            assert np.allclose(stream.saxpy(A, b, c), reference.saxpy(A, b, c), rtol=1e-6)
        with pytest.raises(LaunchError, match="A stream takes arrays, not list"):
            stream.copy([1, 2], out=words, rung="1_scalar")
        with pytest.raises(LaunchError, match="out must be a NumPy array on the CPU, not FakeGpuArray"):
            stream.copy(words, out=FakeGpuArray(), rung="1_scalar")
    with pytest.raises(LaunchError, match="must be a CuPy array or a torch CUDA tensor, not ndarray"):
        stream.copy(words, out=words)
    with pytest.raises(UsageError, match="runs on the gpu or the cpu, not on 'tpu'"), ops.on("tpu"):
        pass


def test_an_op_launches_on_the_cpu_through_its_own_rule_and_checks(monkeypatch):
    """The ops' launchers need nothing but a function to launch and a check that takes NumPy arrays."""
    monkeypatch.setattr(stream, "loaded", lambda rung, options: simt.Function(rung, dict(options)))
    monkeypatch.setattr(stream, "check_array", lambda *arguments: None)
    x = np.arange(5000, dtype=np.uint32)
    out, partial = np.empty_like(x), np.zeros(3, np.uint32)
    assert (stream.copy(x, out=out, rung="2_vector") == x).all()
    assert stream.read(x, partial=partial, rung="4_grid", blocks=3, UNROLL=1).sum() == x.sum()
    with pytest.raises(LaunchError, match="refuses n = 4999"):
        stream.copy(x[:4999], out=out[:4999], rung="2_vector")


@pytest.mark.parametrize("dependent", [0, 1])
def test_probes_run(dependent):
    out = np.zeros(1, np.uint32)
    simt.run(probes.TOUCH, 1, 32, [out, u32(7)], {"DEPENDENT": dependent})
    assert out[0] == 7
    lines, stride = 64, 32
    links = np.zeros((lines, stride), np.uint32)
    links[:, 0] = np.roll(np.arange(lines), -1)
    simt.run(probes.CHASE, 1, 1, [links.reshape(-1), out, u32(5), u32(100)])
    assert out[0] == 105 % lines


def test_a_barrier_across_blocks_holds_when_all_are_alive():
    counter, mail, seen = (np.zeros(k, np.uint32) for k in (1, 20, 20))
    simt.run(probes.BARRIER, 20, 64, [counter, mail, seen, u32(6)], {"THREADS": 64}, cooperative=True)
    assert (seen == 6).all() and counter[0] == 0


def test_a_barrier_across_blocks_that_run_in_turn_is_a_named_fault():
    arrays = [np.zeros(k, np.uint32) for k in (1, 3, 3)]
    with pytest.raises(simt.KernelFault, match="wait in a loop for a value that no thread writes") as caught:
        simt.run(probes.BARRIER, 3, 64, [*arrays, u32(2)], {"THREADS": 64})
    fault = caught.value.faults[0]
    assert fault.kind == "endless wait" and fault.block == (0, 0, 0) and fault.threads == [0]
    assert fault.line == f"probes/barrier.cu:{line_of('probes/barrier.cu', 'while (load_acquire')}"


def line_of(path, text):
    lines = (KERNELS / path).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("entry", probes.CHEATS)
def test_the_gate_refuses_every_cheat_on_the_cpu(entry):
    n = 1003
    contestant = work(stream.LADDERS["saxpy"][0], n)
    room = np.zeros(32 + n, np.uint32)
    room[32:] = (1.5 * np.arange(n, dtype=np.float32)).view(np.uint32)

    def launch(i):
        arguments = [*contestant.inputs[i], *contestant.outputs[i], room, f32(A), u64(n)]
        simt.run(probes.cheat_rung(entry), (n + 255) // 256, 256, arguments)

    contestant.launch = launch
    with pytest.raises(GateError):  # ten launches of right answers: two copies at the gate, more afterwards
        admitted = gate.admit(contestant)
        for _ in range(5):
            launch(0)
            launch(1)
        admitted.recheck()


def test_every_function_of_ptx_has_its_cpu_version():
    """Header by header, by name and number of overloads; a header that has none is empty on the CPU."""
    names = Counter()
    for path in (KERNELS / "common" / "ptx").rglob("*.cuh"):
        text, ours = path.read_text(), simt.build.INCLUDE / path.relative_to(KERNELS)
        if ours.is_file():
            own, other = (
                Counter(re.findall(r"inline [\w ]+?\*? ?(\w+)\(", each)) for each in (text, ours.read_text())
            )
            assert own == other, path
            names += own
        else:
            code = text.partition("#pragma once\n")[2]
            assert re.fullmatch(
                r'(?:#include "common/ptx/wgmma.cuh"\n)?\n#if.* __CUDA_ARCH.*\n(?s:.*)\n#endif\n', code
            ), path
    assert len(names) >= 40


# --- between threads ----------------------------------------------------------------------------------------


def test_grids_and_blocks_have_three_dimensions():
    grid, block = (3, 2, 2), (5, 3, 2)
    out = np.zeros(12 * 30, np.uint32)
    run("where_am_i", grid, block, [out])
    bz, by, bx, tz, ty, tx = np.indices((2, 2, 3, 2, 3, 5)).reshape(6, -1)
    assert (out == (bx | by << 4 | bz << 8 | tx << 12 | ty << 16 | tz << 20)).all()


@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(width):
    values = np.random.default_rng(1).integers(-1000, 1000, 32).astype(np.int32)
    out = np.zeros((8, 32), np.int32)
    run("shuffles", 1, 32, [values, out, i32(width)])
    lane = np.arange(32)
    segment = lane // width * width
    up, down, xor = lane - 3, lane + 5, lane ^ 9
    assert (out[0] == values[segment + (lane * 7 + 3) % width]).all()
    assert (out[1] == values[np.where(up >= segment, up, lane)]).all()
    assert (out[2] == values[np.where(down < segment + width, down, lane)]).all()
    assert (out[3] == values[np.where(xor < segment + width, xor, lane)]).all()
    assert (out[4] == np.where(lane % 2, values[lane ^ 2], 0)).all()
    assert (out[5] == 2 * values[lane ^ 1] + 1).all()
    assert (out[6] == np.minimum(lane + 1, 31)).all() and (out[7] == 31 - lane).all()
    wide = 'extern "C" __global__ void f(float4* x) { *x = __shfl_sync(~0u, *x, 0); }'
    with pytest.raises(UsageError, match="a shuffle moves a number of up to 8 bytes"):  # as NVRTC refuses it
        simt.load(wide)


def test_votes_matches_and_reductions():
    values = np.random.default_rng(2).integers(0, 900, 32).astype(np.uint32)
    out = np.zeros((9, 32), np.uint32)
    run("votes", 1, 32, [values, out])
    bit = np.uint64(1) << np.arange(32, dtype=np.uint64)
    assert (out[0] == (bit * (values & 1)).sum()).all() and (out[1] == 3).all()
    assert all(out[2][k] == (bit * (values % 4 == values[k] % 4)).sum() for k in range(32))
    assert (out[3][:16] == 0xFFFF + 1).all() and (out[3][16:] == 0).all()
    assert (out[4] == values.sum()).all() and (out[5] == values.max()).all()
    assert (out[6].view(np.int32) == values.astype(np.int32).min() - 50).all()
    assert (out[7] == 0xFFFFFFFF).all() and (out[8][::3] == sum(1 << k for k in range(0, 32, 3))).all()


def test_barriers_and_shared_memory():
    n = 96
    values = np.random.default_rng(3).integers(-5, 6, n).astype(np.int32)
    out = np.zeros((2, n), np.int32)
    run("barriers", 1, n, [values, out, i32(n)], shared=4 * n)
    t = np.arange(n)
    assert (out[0] == values[(t + 1) % n] + values[t // 2 * 2]).all()
    assert (out[1] == (values > 0).sum() + 10000 + 100000).all()


def test_atomics():
    ints, f, u, wide = (
        np.zeros(7, np.int32),
        np.zeros(1, np.float32),
        np.zeros(3, np.uint32),
        np.zeros(1, np.uint64),
    )
    ints[5] = -1
    run("atomics", 3, 64, [ints, f, u, wide])
    i = np.arange(192)
    spread = i * 37 % 101 - 50
    assert list(ints[:4]) == [i.sum(), -i.sum(), spread.min(), spread.max()]
    assert (ints[4], ints[5], ints[6]) == (0x7FFFFFFF, -32, np.bitwise_xor.reduce(i))
    assert f[0] == 192 and wide[0] == 192 << 33 and u[2] == 576
    counted = down = 0
    for _ in range(192):
        counted = 0 if counted >= 6 else counted + 1
        down = 4 if down == 0 or down > 4 else down - 1
    assert (u[0], u[1]) == (counted, down)


def test_threads_that_wait_for_a_lock_let_each_other_run():
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run("locked", 2, 96, [lock, total])
    assert total[0] == 2 * sum(range(96)) and lock[0] == 0


def test_blocks_that_wait_for_later_ones_need_a_cooperative_launch():
    turn, order = np.zeros(1, np.int32), np.zeros(5, np.int32)
    run("relay", 5, 32, [turn, order], cooperative=True)
    assert list(order) == [4, 3, 2, 1, 0]
    with pytest.raises(simt.KernelFault, match="endless wait: relay, kernel.cu:"):
        run("relay", 5, 32, [np.zeros(1, np.int32), order])


# --- numbers ------------------------------------------------------------------------------------------------


def bf16(values):
    """Numbers (exact ones: Fractions or float64) to the bits of bfloat16, by exact arithmetic."""
    bits = []
    for v in values:
        sign = 0x8000 if v < 0 else 0
        if v == 0 or isinstance(v, float) and np.isinf(v):
            bits.append(sign | (0x7F80 if v else 0))
            continue
        exact = abs(Fraction(v))
        e = exact.numerator.bit_length() - exact.denominator.bit_length()
        e = max(e - (exact < Fraction(2) ** e), -126)
        bits.append(sign | min((e + 126) * 128 + round(exact / Fraction(2) ** (e - 7)), 0x7F80))
    return np.array(bits, np.uint16)


def test_half_is_rounded_as_numpy_rounds_it():
    rng = np.random.default_rng(4)
    wide = np.exp(rng.uniform(-18, 11, (3, 2000))) * rng.choice([-1, 1], (3, 2000))
    values = wide.astype(np.float16).astype(np.float32)
    values[:, :6] = [0.0, -0.0, np.inf, 65504, 6e-8, 2**-24]
    raw = values.copy()
    raw[0, 100:] = wide[0, 100:]  # conversions see numbers that are no halves
    out = np.zeros((6, 2000), np.uint16)
    run("halves", 8, 256, [*raw, out, i32(2000)])
    x, y, z = (v.astype(np.float16) for v in raw)
    with np.errstate(all="ignore"):
        product = x.astype(np.float64) * y.astype(np.float64)
        expected = [
            x,
            x + y,
            x * y,
            x / y,
            (product + z.astype(np.float64)).astype(np.float16),
            np.sqrt(abs(x)),
        ]
    for k, row in enumerate(expected):
        right = (out[k] == row.view(np.uint16)) | (np.isnan(row) & (out[k] == 0x7FFF))
        assert right.all(), (k, raw[:, ~right][:, 0], hex(out[k][~right][0]), row[~right][0])


def test_bfloat16_is_rounded_once_even_where_a_double_cannot_hold_the_sum():
    rng = np.random.default_rng(5)
    values = (np.exp(rng.uniform(-80, 80, (3, 1000))) * rng.choice([-1, 1], (3, 1000))).astype(np.float32)
    values.view(np.uint32)[...] &= 0xFFFF0000
    # 1.0078125 x 1.5 lies half way between two bfloat16 numbers; c, far below a double's reach, decides.
    values[:, 0] = [1.0078125, 1.5, 2.0**-100]
    values[:, 1] = [1.0078125, 1.5, -(2.0**-100)]
    out = np.zeros((6, 1000), np.uint16)
    run("bfloats", 4, 256, [*values, out, i32(1000)])
    x, y, z = ([Fraction(float(v)) for v in row] for row in values)
    pairs = list(zip(x, y, z, strict=True))
    assert (out[0] == bf16(x)).all() and (out[1] == bf16([a + b for a, b, _ in pairs])).all()
    assert (out[2] == bf16([a * b for a, b, _ in pairs])).all()
    assert (out[3] == bf16([a / b for a, b, _ in pairs])).all()
    assert (out[4] == bf16([a * b + c for a, b, c in pairs])).all()
    assert out[4][0] == out[4][1] + 1
    assert (out[5] == bf16(np.sqrt(np.abs(values[0]).astype(np.float64)))).all()


def test_half_pairs_are_vectors():
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal((2, 64)).astype(np.float16)
    out = np.zeros(64, np.float16)
    run("half_pairs", 1, 32, [x, y, out])
    assert (out == (x.astype(np.float64) * y + 0.5).astype(np.float16)).all()


def test_integer_operations():
    rng = np.random.default_rng(7)
    n = 256
    a, b = rng.integers(-(1 << 31), 1 << 31, (2, n)).astype(np.int32)
    a[:3] = [0, 1, -(1 << 31)]
    out = np.zeros((12, n), np.int32)
    run("bits", 1, n, [a, b, out, i32(n)])
    u, v = a.view(np.uint32), b.view(np.uint32)
    p, q = (x.view(np.int8).reshape(n, 4).astype(np.int64) for x in (a, b))
    pu, qu = (x.view(np.uint8).reshape(n, 4).astype(np.int64) for x in (a, b))
    assert (out[0] == (p * q).sum(1) + 5).all() and (out[1] == (pu * qu).sum(1) + 5).all()
    words = [f"{int(x):032b}" for x in u]
    assert list(out[2]) == [w.count("1") for w in words]
    assert list(out[3]) == [w.find("1") if "1" in w else 32 for w in words]
    assert list(out[4]) == [w[::-1].find("1") + 1 for w in words]
    assert list(out[5].view(np.uint32)) == [int(w[::-1], 2) for w in words]
    assert (out[6].view(np.uint32) == (u.astype(np.uint64) * v >> np.uint64(32))).all()
    assert (
        out[7].view(np.uint8).reshape(n, 4) == np.stack([pu[:, 0], qu[:, 0], pu[:, 1], qu[:, 1]], 1)
    ).all()
    both = v.astype(np.uint64) << np.uint64(32) | u
    assert (out[8].view(np.uint32) == (both >> np.uint64(9)).astype(np.uint32)).all()
    floats = a.view(np.float32).astype(np.float64)
    clipped = np.clip(np.rint(np.nan_to_num(floats, nan=0.0)), -(2.0**31), 2.0**31 - 1)
    assert (out[9] == clipped.astype(np.int64)).all()
    assert (out[10] == (np.minimum(a, b) ^ np.maximum(a, 0))).all()
    assert (out[11].view(np.int8).reshape(n, 4) == np.clip(p - q, -128, 127)).all()


def test_constants_and_cache_hints():
    out = np.zeros(8, np.float32)
    run("constants", 1, 8, [out])
    assert list(out) == [0.5, 1.0, 2.0, 4.0] * 2
    values, copied = np.arange(128, dtype=np.float32), np.zeros(132, np.float32)
    run("hints", 1, 32, [values, copied])
    assert (copied[:128] == values).all() and (copied[128:] == values[:4]).all()


# --- what is refused ----------------------------------------------------------------------------------------

EMPTY = 'extern "C" __global__ void f(float* x, int n) { if (n > 1000000) x[0] = x[n]; }'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([np.zeros(4, np.float32)], r"f takes 2 arguments \(x, n\), not 1"),
        ([i32(1), i32(1)], "x is a pointer in the kernel: pass a NumPy array"),
        ([np.zeros(4, "f4"), np.zeros(4)], "n is a number of 4 bytes in the kernel"),
        ([np.zeros(4, "f4"), u64(4)], "n is 4 bytes in the kernel, but c_ulong.* has 8"),
        (
            [np.zeros(4, "f4"), f32(4)],
            "n is an integer in the kernel, but c_float is a floating-point number",
        ),
        ([np.zeros((4, 4), "f4")[:, ::2], i32(1)], "x must be contiguous"),
        (
            [np.zeros(4), i32(1)],
            r"x points to numbers of 4 bytes in the kernel, but the array is float64: .*32",
        ),
        ([[1.0], i32(1)], "x must be a NumPy array or a ctypes number, not list"),
    ],
)
def test_arguments_are_checked_against_the_kernel(arguments, says):
    with pytest.raises(LaunchError, match=says):
        simt.run(EMPTY, 1, 32, arguments)


def test_shared_memory_is_no_larger_than_a_gpu_allows():
    def kernel(floats):
        shared = f"__shared__ float tile[{floats}]; extern __shared__ float more[];"
        text = "tile[int(*x)] = more[0] = *x; *x += tile[1];"
        return f'extern "C" __global__ void f(float* x) {{ {shared} {text} }}'

    x = [np.ones(1, np.float32)]
    with pytest.raises(
        LaunchError, match=r"f declares 49156 bytes of __shared__ .* allows 49152: declare ext"
    ):
        simt.run(kernel(12289), 1, 1, x, shared=4)
    with pytest.raises(LaunchError, match="has at most 232448 bytes of shared memory, and f asks for 232452"):
        simt.run(kernel(12288), 1, 1, x, shared=179 * 1024 + 4)
    simt.run(kernel(12288), 1, 1, x, shared=179 * 1024)
    assert x[0] == 2


def test_launches_are_checked():
    x = [np.zeros(4, np.float32), i32(1)]
    with pytest.raises(LaunchError, match="1 to 1024 threads"):
        simt.run(EMPTY, 1, 1025, x)
    with pytest.raises(LaunchError, match="no dynamic shared memory"):
        simt.run(EMPTY, 1, 32, x, shared=64)
    with pytest.raises(LaunchError, match="at most 131072 here"):
        simt.run(EMPTY, 1000, 256, x, cooperative=True)
    with pytest.raises(UsageError, match="has no kernel g; it has f"):
        simt.run(EMPTY, 1, 32, x, entry="g")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("wgmma_m64n128k16(x);", "wgmma"),
        ("cp_async_bulk(x, n);", "TMA"),
        ("cluster_sync();", "thread block clusters"),
        ('asm volatile("bar.sync 0;");', "inline PTX"),
    ],
)
def test_what_only_a_gpu_has_is_refused_by_name(body, names):
    source = f'extern "C" __global__ void f(float* x, int n) {{ {body} }}'
    with pytest.raises(UsageError, match=names):
        simt.load(source)


UNKNOWN = ["INFINITY", "-INFINITY", "NAN", "M_PI", "std::max(1, 2)", "uint32_t(3)"]


@pytest.mark.parametrize("value", UNKNOWN)
def test_what_the_compiler_for_gpus_does_not_know_is_refused_with_what_to_write(value):
    source = f'extern "C" __global__ void f(float* x) {{ x[0] = {value}; }}'
    with pytest.raises(UsageError, match="does not compile|undefined"):
        nvrtc.compile_source(source, arch="90")
    word = value.strip("-").split("(")[0]
    with pytest.raises(UsageError, match=f"uses {word}, which NVRTC, .* does not know: write "):
        simt.load(source)


def test_a_source_may_define_such_a_word_and_print_it():
    source = """#define INFINITY __int_as_float(0x7f800000)
typedef unsigned uint32_t;
extern "C" __global__ void f(float* x) { x[0] = INFINITY; x[1] = uint32_t(-1); printf("NAN\\n"); }"""
    nvrtc.compile_source(source, arch="90")
    x = np.zeros(2, np.float32)
    simt.run(source.replace('printf("NAN\\n");', ""), 1, 1, [x])
    assert np.isinf(x[0]) and x[1] == 2**32
    simt.load(source)


def test_a_rung_for_hopper_alone_is_refused():
    rung = Rung("read", "2_vector", "read_vector", "", archs=("90a",))
    with pytest.raises(UsageError, match="read/2_vector is for sm_90a alone"):
        simt.load(rung)


def test_a_source_that_does_not_compile_says_where():
    with pytest.raises(UsageError, match=r"mine.cu does not compile for the CPU:\n(.*\n)*mine.cu:2:.*error"):
        simt.load('extern "C" __global__ void f(float* x)\n{ oops; }', name="mine.cu")
    with pytest.raises(UsageError, match="has no kernel: it needs"):
        simt.load("void f() {}")


def test_without_a_compiler_the_reader_is_told_how_to_get_one(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingTool, match=r"No C\+\+ compiler was found.*apt install g\+\+"):
        simt.load(EMPTY)


def test_off_linux_one_sentence_says_where_it_runs(monkeypatch):
    for platform in ("darwin", "win32"):
        monkeypatch.setattr("sys.platform", platform)
        with pytest.raises(MissingTool, match=r"on Linux alone, with g\+\+ or clang\+\+ .*WSL"):
            simt.load(EMPTY)


def test_a_program_is_compiled_once_per_source(monkeypatch, tmp_path):
    runtime = simt.build.runtime_path()
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path))
    (tmp_path / "simt").mkdir()
    shutil.copy(runtime, tmp_path / "simt")
    first = simt.load(EMPTY)
    monkeypatch.setattr(simt.build, "_compile", None)  # a second compilation would fail
    assert simt.load(EMPTY).path == first.path
    with pytest.raises(TypeError):
        simt.load(EMPTY + " ")


# --- faults that the plain build sees -----------------------------------------------------------------------


def test_a_wild_access_does_not_end_the_process():
    source = 'extern "C" __global__ void f(int* x, long long n) { if (threadIdx.x == 3) x[n] = 1; }'
    with pytest.raises(simt.KernelFault, match="crash: f, block .0, 0, 0., thread 3"):
        simt.run(source, 1, 32, [np.zeros(4, np.int32), ctypes.c_longlong(1 << 44)])


def test_the_runtime_works_without_our_own_switch(monkeypatch, tmp_path):
    """Other processors switch fibres by ucontext: the same runtime, compiled so."""
    monkeypatch.setenv("ROOFLAB_CACHE", str(tmp_path))
    flags = (*simt.build._RUNTIME_FLAGS, "-DROOFLAB_UCONTEXT")
    monkeypatch.setattr(simt.build, "_RUNTIME_FLAGS", flags)
    gate.admit(work(stream.LADDERS["read"][0], 1021))
