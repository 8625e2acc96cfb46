"""Launches of the kernels in tests/simt_kernels/ whose outputs on a GPU are kept, for the CPU to be held to.

`python tests/simt_launches.py FILE.npz` runs all of them on this machine's GPU and writes what they left.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rooflab.paths import ROOT

KERNELS = ROOT / "tests" / "simt_kernels"
KEPT = ROOT / "tests" / "data" / "simt_h200.npz"
i32 = ctypes.c_int
N = 512


@dataclass(frozen=True)
class Launch:
    """One launch: the arguments, which of them are outputs, and by how much an output may differ from a
    GPU's (0: bit for bit), from the inputs.
    """

    file: str
    entry: str
    grid: Any
    block: Any
    arguments: list[Any]
    outputs: tuple[int, ...]
    allowed: Callable[[list[Any]], Any] = field(default=lambda arguments: 0)
    shared: int = 0
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.entry}{self.label}"

    @property
    def source(self) -> str:
        return (KERNELS / self.file).read_text()


def _halves(rng, size, spread=6.0):
    values = np.exp2(rng.uniform(-spread, spread, size)) * rng.choice([-1, 1], size)
    return values.astype(np.float16)


def _bfloats(rng, size, spread=6.0):
    values = np.exp2(rng.uniform(-spread, spread, size)) * rng.choice([-1, 1], size)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _widened(bits, bfloat):
    if bfloat:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(np.float16).astype(np.float64)


def _product_error(dtype, bfloat=False):
    """One unit in the last place of the largest sum that a product's terms could have: tensor cores align the
    terms to the largest one and cut off what lies below.
    """

    def allowed(arguments):
        a, b, c = arguments
        a, b = (_widened(x, bfloat) for x in (a, b))
        c = c.view(np.float16) if dtype == np.float16 else c
        most = np.abs(a) @ np.abs(b) + np.abs(c.reshape(16, 8).astype(np.float64))
        return np.spacing(most.astype(dtype)).astype(np.float64)

    return allowed


def launches() -> list[Launch]:
    """All of them, with fresh arguments: the same every time."""
    rng = np.random.default_rng(20261121)
    found = []

    def add(file, entry, grid, block, arguments, outputs, **more):
        found.append(Launch(file, entry, grid, block, arguments, outputs, **more))

    ints = rng.integers(-1000, 1000, 32).astype(np.int32)
    file = "operations.cu"
    add(file, "where_am_i", (3, 2, 2), (5, 3, 2), [np.zeros(360, np.uint32)], (0,))
    for width in (32, 8):
        out = np.zeros((8, 32), np.int32)
        add(file, "shuffles", 1, 32, [ints, out, i32(width)], (1,), label=f" of {width}")
    add(
        file, "votes", 1, 32, [rng.integers(0, 900, 32).astype(np.uint32), np.zeros((9, 32), np.uint32)], (1,)
    )
    small = rng.integers(-5, 6, 96).astype(np.int32)
    add(file, "barriers", 1, 96, [small, np.zeros((2, 96), np.int32), i32(96)], (1,), shared=4 * 96)
    counters = [np.array([0, 0, 0, 0, 0, -1, 0], np.int32), np.zeros(1, np.float32), np.zeros(3, np.uint32)]
    add(file, "atomics", 3, 64, [*counters, np.zeros(1, np.uint64)], (0, 1, 2, 3))
    wide = (np.exp2(rng.uniform(-26, 17, (3, N))) * rng.choice([-1, 1], (3, N))).astype(np.float32)
    wide[:, :4] = [[0.0, -0.0, np.inf, 65519.0], [1.0, 0.0, 2.0, 1.0], [-0.0, 0.0, 1.0, 0.0]]
    for entry in ("halves", "bfloats"):
        add(file, entry, 2, 256, [*wide.copy(), np.zeros((6, N), np.uint16), i32(N)], (3,))
    words = rng.integers(-(1 << 31), 1 << 31, (2, 256)).astype(np.int32)
    add(file, "bits", 1, 256, [*words, np.zeros((12, 256), np.int32), i32(256)], (2,))
    add(file, "constants", 1, 8, [np.zeros(8, np.float32)], (0,))

    file = "small_floats.cu"
    near = rng.integers(-24, 25, (3, 2 * N)) / 16.0
    near[:, :8] = [
        [np.nan, 0.0, -0.0, np.inf, 2.0, np.nan, 1.0, -np.inf],
        [1.0, -0.0, 0.0, -np.inf, np.nan, np.nan, 0.0, 3.0],
        [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, -0.0, 1.0],
    ]
    half_pairs = near.astype(np.float16).view(np.uint32)
    add(file, "half_pairs", 1, N, [*half_pairs, np.zeros((17, N), np.uint32), i32(N)], (3,))
    bfloat_pairs = (near.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    add(file, "bfloat_pairs", 1, N, [*bfloat_pairs, np.zeros((17, N), np.uint32), i32(N)], (3,))
    whole = rng.integers(-80000, 80000, N)
    whole[:2] = [1 << 62, -(1 << 40)]
    add(file, "to_half", 1, N, [wide[0].copy(), whole, np.zeros((8, N), np.uint16), i32(N)], (2,))
    fractions = rng.uniform(-300, 300, N).astype(np.float16)
    fractions[:6] = [np.nan, np.inf, -np.inf, 65504, -65504, 2.5]
    add(file, "from_half", 1, N, [fractions, np.zeros((10, N), np.int64), i32(N)], (1,))
    words = rng.integers(-(1 << 31), 1 << 31, (2, N)).astype(np.int32)
    add(file, "bytes", 1, N, [*words, np.zeros((5, N), np.int32), i32(N)], (2,))
    add(file, "half_functions", 1, N, [_halves(rng, N, 3), np.zeros((15, N), np.float16), i32(N)], (1,))
    add(file, "bfloat_functions", 1, N, [_bfloats(rng, N, 3), np.zeros((15, N), np.uint16), i32(N)], (1,))

    file = "matrices.cu"
    for k in (16, 8):
        a, b = _halves(rng, (16, k)).view(np.uint16), _halves(rng, (k, 8)).view(np.uint16)
        c = rng.standard_normal((16, 8)).astype(np.float32)
        error = _product_error(np.float32)
        add(file, f"m16n8k{k}_f16", 1, 32, [a, b, c], (2,), allowed=error)
        c = rng.standard_normal((16, 8)).astype(np.float16).view(np.uint32)
        error = _product_error(np.float16)
        add(file, f"m16n8k{k}_f16_sum_f16", 1, 32, [a.copy(), b.copy(), c], (2,), allowed=error)
    a, b, c = _bfloats(rng, (16, 16)), _bfloats(rng, (16, 8)), rng.standard_normal((16, 8)).astype(np.float32)
    add(file, "m16n8k16_bf16", 1, 32, [a, b, c], (2,), allowed=_product_error(np.float32, bfloat=True))
    for m, k in ((16, 32), (8, 16)):
        a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in ((m, k), (k, 8)))
        a[0], b[:, 0] = 128, 128
        c = rng.integers(-(1 << 31), 1 << 31, (m, 8)).astype(np.int32)
        c[0, 0] = np.iinfo(np.int32).max
        add(file, f"m{m}n8k{k}_s8", 1, 32, [a, b, c], (2,))
    tile = rng.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    add(file, "load_matrices", 1, 32, [tile, np.zeros((14, 32), np.uint32)], (1,))
    add(
        file,
        "pipeline",
        3,
        64,
        [rng.integers(0, 1 << 32, (3, 7, 64), dtype=np.uint32), np.zeros((3, 64), np.uint32), i32(7)],
        (1,),
    )
    words = rng.integers(0, 1 << 32, (3, 64), dtype=np.uint32)
    add(file, "words", 1, 64, [*words, np.zeros((4, 64), np.uint32), i32(64)], (3,))
    add(file, "streaming", 1, 32, [np.arange(128, dtype=np.uint32), np.zeros((32, 4), np.uint32)], (1,))
    return found


def on_gpu(launch: Launch) -> list[np.ndarray]:
    """What a launch leaves in its outputs on this machine's GPU."""
    import cupy
    from rooflab import ops
    from rooflab.runtime import nvrtc

    cubin = nvrtc.compile_source(launch.source, arch=ops.this_arch(), name=launch.file)
    arguments = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in launch.arguments]
    function = nvrtc.Function(cubin, launch.entry)
    function.launch(launch.grid, launch.block, arguments, shared=launch.shared)
    return [cupy.asnumpy(arguments[k]) for k in launch.outputs]


def main(path: str) -> None:
    """Run everything on the GPU and keep it."""
    kept = {f"{one.name}:{k}": out for one in launches() for k, out in enumerate(on_gpu(one))}
    np.savez_compressed(path, **kept)


if __name__ == "__main__":
    main(sys.argv[1])
