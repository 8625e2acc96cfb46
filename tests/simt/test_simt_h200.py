"""The CPU against a GPU's own outputs: what an H200 left of the same launches is kept in data/simt_h200.npz.

Made by tests/simt_launches.py with NVRTC 13.0 under driver 580. Bit for bit: integers, conversions,
arithmetic of half and bfloat16, shuffles, votes, atomics, ldmatrix, copies, products of bytes. Within one
unit of the largest sum: matrix products, whose digits tensor cores cut off. Within one unit in the last
place: what the special function unit approximates.
"""

import needs
import numpy as np
import pytest
import simt_launches
from rooflab import simt
from rooflab.hardware import device

needs.compiler()

LAUNCHES = simt_launches.launches()
# What a GPU approximates, in units of the last place of the result; all else is bit for bit.
APPROXIMATE = {"half_functions": 1, "bfloat_functions": 1}


@pytest.fixture(scope="module")
def kept():
    with np.load(simt_launches.KEPT) as file:
        return dict(file)


def differences(launch, theirs):
    """The CPU's outputs beside those of a GPU: elements that differ by more than is allowed."""
    ours = [launch.arguments[k] for k in launch.outputs]
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in launch.arguments]
    simt.run(
        launch.source, launch.grid, launch.block, launch.arguments, entry=launch.entry, shared=launch.shared
    )
    found = []
    for k, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if launch.entry in APPROXIMATE:
            bits = [np.ascontiguousarray(a).view(np.int16).astype(np.int64) for a in (mine, other)]
            ordered = [np.where(b < 0, -32768 - b, b) for b in bits]
            wrong = np.abs(ordered[0] - ordered[1]) > APPROXIMATE[launch.entry]
        elif np.any(launch.allowed(before)):
            allowed = launch.allowed(before)
            half = "sum_f16" in launch.entry
            mine, other = (a.view(np.float16).reshape(16, 8) if half else a for a in (mine, other))
            wrong = ~(np.abs(mine.astype(np.float64) - other.astype(np.float64)) <= allowed)
        else:
            wrong = mine.view(np.uint8) != other.view(np.uint8)
        found += [(k, *place) for place in np.argwhere(wrong)]
    return found


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.name)
def test_the_cpu_leaves_what_an_h200_left(launch, kept):
    theirs = [kept[f"{launch.name}:{k}"] for k in range(len(launch.outputs))]
    assert differences(launch, theirs) == []


def test_everything_that_is_kept_is_compared(kept):
    assert set(kept) == {f"{one.name}:{k}" for one in LAUNCHES for k in range(len(one.outputs))}


@pytest.mark.skipif(not device.has_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("launch", simt_launches.launches(), ids=lambda launch: launch.name)
def test_the_cpu_leaves_what_this_gpu_leaves(launch):
    theirs = simt_launches.on_gpu(launch)
    assert differences(launch, theirs) == []
