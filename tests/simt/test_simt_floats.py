"""half and bfloat16 on the CPU: the functions of CUDA's headers against NumPy."""

import ctypes
import re
import subprocess
from pathlib import Path

import needs
import numpy as np
import pytest
from rooflab import simt
from rooflab.paths import ROOT
from rooflab.runtime import nvrtc

needs.compiler()

SOURCE = (ROOT / "tests" / "simt_kernels" / "small_floats.cu").read_text()
i32 = ctypes.c_int
N = 512
NAN = 0x7FFF
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and infinity are among the inputs


def run(entry, arguments):
    simt.run(SOURCE, 1, N, [*arguments, i32(N)], entry=entry)


class Half:
    """Arithmetic of halves by NumPy: float64 holds sums and products exactly, or exactly enough."""

    entry = "half_pairs"

    @staticmethod
    def bits(values):
        with np.errstate(over="ignore"):
            rounded = np.asarray(values, np.float64).astype(np.float16)
        return np.where(np.isnan(rounded), NAN, rounded.view(np.uint16)).astype(np.uint16)

    @staticmethod
    def values(bits):
        return bits.view(np.float16).astype(np.float64)


class BFloat:
    """The same for bfloat16, rounded to nearest even by hand."""

    entry = "bfloat_pairs"

    @staticmethod
    def bits(values):
        with np.errstate(over="ignore"):
            words = np.asarray(values, np.float64).astype(np.float32)
        bits = words.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
        return np.where(np.isnan(words), NAN, rounded).astype(np.uint16)

    @staticmethod
    def values(bits):
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("kind", [Half, BFloat])
def test_pairs(kind):
    rng = np.random.default_rng(1)
    # Few bits, so that one rounding in FP32 is no second one for bfloat16.
    a, b, c = (kind.bits(rng.integers(-24, 25, 2 * N) / 16.0) for _ in range(3))
    a[:6] = kind.bits([np.nan, 0.0, -0.0, np.inf, 2.0, np.nan])
    b[:6] = kind.bits([1.0, -0.0, 0.0, -np.inf, np.nan, np.nan])
    out = np.zeros((17, N), np.uint32)
    run(kind.entry, [a.view(np.uint32), b.view(np.uint32), c.view(np.uint32), out])
    x, y, z = (kind.values(v) for v in (a, b, c))
    nan = np.isnan(x) | np.isnan(y)
    with np.errstate(invalid="ignore"):
        unit = [np.clip(np.nan_to_num(v, nan=0.0), 0, 1) for v in (x + y, x - y, x * y, x * y + z)]
        fused = x * y + z
        least = np.fmin(x, y) * 1.0
        most = np.fmax(x, y) * 1.0
    least[[1, 2]], most[[1, 2]] = -0.0, 0.0
    relu = np.where(np.isnan(fused), np.nan, np.maximum(fused, 0) + 0.0)
    re, im = slice(0, None, 2), slice(1, None, 2)
    product = np.empty(2 * N)
    # each part is two fused steps, the first one rounded
    step = kind.values(kind.bits(x[re] * y[re] + z[re]))
    product[re] = -x[im] * y[im] + step
    step = kind.values(kind.bits(x[re] * y[im] + z[im]))
    product[im] = x[im] * y[re] + step
    ordered = ~nan
    expected = [
        *unit,
        relu,
        least,
        most,
        np.where(nan, np.nan, least),
        np.where(nan, np.nan, most),
        ordered & (x != y),
        nan | (x != y),
        x > y,
        np.isnan(x),
        product,
    ]
    got = out.view(np.uint16).reshape(17, 2 * N)
    for row, values in enumerate(expected):
        right = kind.bits(values)
        wrong = (got[row] != right) & ~(
            (right & 0x7FFF == 0) & (got[row] & 0x7FFF == 0) & (row not in (5, 6))
        )
        assert not wrong.any(), (row, x[wrong], y[wrong], kind.values(got[row])[wrong], values[wrong])
    assert (got[14] == np.where(x == y, 0xFFFF, 0)).all()
    assert (got[15] == np.where(nan | (x <= y), 0xFFFF, 0)).all()
    both = [np.logical_and(v[re], v[im]).astype(int) for v in (x >= y, ordered & (x != y), nan | (x < y))]
    assert (out[16] == both[0] + 2 * both[1] + 4 * both[2]).all()


def directed(values, way):
    """Doubles to halves toward zero, up or down, from NumPy's nearest."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float16)
    exact = near.astype(np.float64)
    toward = {"rz": np.where(values > 0, -np.inf, np.inf), "ru": np.inf, "rd": -np.inf}[way]
    past = {"rz": abs(exact) > abs(values), "ru": exact < values, "rd": exact > values}[way]
    return np.where(past, np.nextafter(near, np.broadcast_to(toward, near.shape).astype(np.float16)), near)


def test_conversions_to_half_round_every_way():
    rng = np.random.default_rng(2)
    x = (np.exp(rng.uniform(-18, 12, N)) * rng.choice([-1, 1], N)).astype(np.float32)
    x[:3] = [65519.0, 1e-9, -70000.0]
    whole = rng.integers(-80000, 80000, N)
    whole[:2] = [1 << 62, -(1 << 40)]
    out = np.zeros((8, N), np.uint16)
    run("to_half", [x, whole, out])
    got = out.view(np.float16)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        assert (got[0] == wide.astype(np.float16)).all()
        assert (got[4] == whole.astype(np.float64).astype(np.float16)).all()
    assert (got[1] == directed(wide, "rz")).all() and got[1][0] == 65504 and got[1][2] == -65504
    assert (got[2] == directed(wide, "ru")).all() and np.isinf(got[2][0]) and got[2][1] == 2.0**-24
    assert (got[3] == directed(wide, "rd")).all() and np.isinf(got[3][2])
    assert (got[5] == directed(whole.astype(np.float64), "rz")).all()
    assert (got[6] == directed(whole.astype(np.int32).astype(np.float64), "rd")).all()
    assert (got[7] == directed((whole & 0xFFFF).astype(np.float64), "ru")).all()


def test_conversions_from_half_saturate():
    rng = np.random.default_rng(3)
    x = rng.uniform(-300, 300, N).astype(np.float16)
    x[:6] = [np.nan, np.inf, -np.inf, 65504, -65504, 2.5]
    out = np.zeros((10, N), np.int64)
    run("from_half", [x, out])
    wide = x.astype(np.float64)
    nan = np.isnan(wide)

    def expected(rounded, bits, signed):
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        clipped = np.clip(np.nan_to_num(rounded, nan=0.0, posinf=1e30, neginf=-1e30), low, high)
        return [low if not signed and v < 0 else min(int(v), high) for v in clipped]

    rows = [
        (np.rint, 32, True),
        (np.trunc, 32, True),
        (np.ceil, 32, True),
        (np.floor, 32, True),
        (np.rint, 32, False),
        (np.floor, 16, True),
        (np.ceil, 16, False),
        (np.trunc, 8, True),
    ]
    for row, (way, bits, signed) in enumerate(rows):
        assert list(out[row]) == expected(way(wide), bits, signed), row
    assert out[8][0] == -(1 << 63) and out[8][1] == (1 << 63) - 1 and out[8][5] == 2
    finite = ~nan & np.isfinite(wide)
    assert (out[8][finite] == np.rint(wide[finite])).all()
    assert (out[9][finite] == np.maximum(np.trunc(wide[finite]), 0)).all()


def test_bytes():
    rng = np.random.default_rng(4)
    a, b = rng.integers(-(1 << 31), 1 << 31, (2, N)).astype(np.int32)
    out = np.zeros((5, N), np.int32)
    run("bytes", [a, b, out])
    shorts, chars = a.view(np.int16).reshape(N, 2).astype(np.int64), b.view(np.int8).reshape(N, 4)
    assert (out[0] == (shorts * chars[:, :2]).sum(1) + 3).all()
    assert (out[1] == (shorts * chars[:, 2:]).sum(1) + 3).all()
    pu, qu = (v.view(np.uint8).reshape(N, 4).astype(int) for v in (a, b))
    assert (out[2].view(np.uint8).reshape(N, 4) == abs(pu - qu)).all()
    ps = a.view(np.int8).reshape(N, 4)
    assert (out[3].view(np.int8).reshape(N, 4) == np.maximum(ps, chars)).all()
    assert (out[4].view(np.int8).reshape(N, 4) == np.abs(ps)).all()  # -128 stays -128


def test_every_function_of_cudas_headers_is_there():
    folder = Path(nvrtc.include_directory())
    command = [simt.build.compiler(), "-E", "-P", "-x", "c++", "-std=c++17", f"-I{simt.build.INCLUDE}", "-"]
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    ours = set(re.findall(r"\w+", subprocess.run(command, input=text, capture_output=True, text=True).stdout))
    for header in ("cuda_fp16.h", "cuda_bf16.h"):
        declared = re.findall(
            r"^(?:__CUDA_HOSTDEVICE_\w+|__CUDA_\w+_DECL__)[^(\n]*\b(\w+)\(",
            (folder / header).read_text(),
            re.M,
        )
        assert len(declared) > 200
        assert set(declared) - {"__CUDA_FP16_DEPRECATED__"} <= ours


@pytest.mark.parametrize("arch", ["80", "90"])
def test_the_same_source_compiles_for_gpus(arch):
    assert nvrtc.compile_source(SOURCE, arch=arch, name="small_floats.cu").resources["bytes"].spill_bytes == 0
