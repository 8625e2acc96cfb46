"""Kernels with one mistake each: right for friendly sizes, and found out on the CPU for others."""

import needs
import numpy as np
import pytest
from rooflab import simt
from rooflab.ops import faults
from rooflab.studies import faults as study

needs.compiler()


def called(name, n, k, y=None):
    """(output, what is expected, faults found) of one watched call; y holds zeros unless given."""
    generator = np.random.default_rng(7)
    a = generator.standard_normal((k, n), dtype=np.float32)
    x = generator.standard_normal(k, dtype=np.float32)
    y = np.zeros(n, np.float32) if y is None else y
    seen = simt.watch(faults.FAULTS[name], *faults.launch_of(n), faults.arguments(a, x, y))
    return y, x.astype(np.float64) @ a, seen.faults


@pytest.mark.parametrize("name", faults.FAULTS)
def test_nobody_notices_on_friendly_sizes(name):
    got, expected, found = called(name, *study.FRIENDLY[name])
    assert found == [] and np.allclose(got, expected, atol=1e-2)


def test_an_early_exit_breaks_the_barrier_and_leaves_a_hole_in_the_tile():
    got, expected, found = called("early_exit", 63, 300)
    assert [fault.kind for fault in found][:1] == ["divergent barrier"]
    assert "threads 0-62 wait at __syncthreads; threads 63-255 have ended" in str(found[0])
    assert not np.allclose(got, expected, atol=1e-2)


def test_a_barrier_inside_a_condition_is_not_everybody_s():
    _, _, found = called("half_barrier", 63, 300)
    assert found[0].kind == "divergent barrier"


def test_a_tile_that_is_too_small_is_written_past_its_end():
    _, _, found = called("fixed_tile", 5, 4100)
    assert found[0].kind == "out of bounds" and found[0].address == "x_tile + 16384"


def test_what_is_not_zeroed_adds_up_from_call_to_call():
    first, expected, _ = called("not_zeroed", 40, 300)
    assert np.allclose(first, expected, atol=1e-2)
    second, _, _ = called("not_zeroed", 40, 300, first.copy())
    assert np.allclose(second, 2 * expected, atol=1e-2)
