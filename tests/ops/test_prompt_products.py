"""A prompt's products for a Hopper: machine code, tiles, and what they refuse. That they are right
is tested on one (tests/engine/test_engine_gpu.py).
"""

import numpy as np
import pytest
from rooflab.errors import LaunchError
from rooflab.ops import prompt_products
from rooflab.runtime import nvrtc
from shares import thinned

BUILDS = [
    (rung, tokens, gate)
    for rung in prompt_products.LADDERS["prompt_product"]
    for gate in (False, True)
    for tokens in prompt_products.TOKENS[rung.name]
]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("rung", "tokens", "gate"), thinned(BUILDS), ids=lambda value: getattr(value, "name", str(value))
)
def test_no_sum_is_touched_before_it_is_there(rung, tokens, gate):
    """Machine code as it came out: nothing is rounded between the last product and the wait for it, sums stay
    in registers, and what a multiprocessor has suffices.
    """
    stages, shared = prompt_products.stages_of(rung, tokens, gate)
    cubin = rung.cubin("90", {"TOKENS": tokens, "STAGES": stages, "GATE": int(gate)})
    assert cubin.resources[rung.entry].spill_bytes == 0 and 2 < stages <= 6 and shared + 1024 <= 227 * 1024
    code = nvrtc.sass(cubin, rung.entry)
    rounded = [i for i, line in enumerate(code) if "F2F" in line]
    waits = [i for i, line in enumerate(code) if "DEPBAR.LE gsb0, 0x0" in line]
    products = [i for i, line in enumerate(code) if "HGMMA" in line]
    # Before a rounding all products of its tile were waited for; rung 2 has begun the next tile's then.
    ahead = 0 if rung is prompt_products.Q8_0 else 8
    assert rounded
    for i in rounded:
        last = max((wait for wait in waits if wait < i), default=None)
        assert last is not None and sum(last < j < i for j in products) <= ahead
    assert not any("LDL" in line or "STL" in line for line in code)


def test_a_tile_leaves_few_multiprocessors_idle():
    """Of 132: the source's prompt by Qwen's gates and ups takes whole tiles, in rounds all but full."""
    assert prompt_products.tile_of(prompt_products.FP16, 17920, 1848, 132) == 168
    for n, batch in ((17920, 512), (28672, 1848), (8960, 8192)):
        for rung in prompt_products.LADDERS["prompt_product"]:
            tokens = prompt_products.tile_of(rung, n, batch, 132)
            blocks, rows = (2, 256) if rung is prompt_products.FP16 else (1, 128)
            tiles = -(-n // rows) * -(-batch // tokens)
            rounds = -(-tiles // (132 // blocks))
            assert n * batch > 0.6 * rounds * (132 // blocks) * rows * tokens


def test_sizes_and_operands_that_do_not_fit_are_refused_in_a_sentence():
    x, w = np.zeros((3, 128), np.float16), np.zeros((32, 128), np.float16)
    for a, b, says in (
        (x[:, :64], w[:, :64], "rows by 16, k by 128"),
        (x, w[:8], "rows by 16, k by 128"),
        (x, w, "x must be a CuPy array"),
    ):
        with pytest.raises(LaunchError, match=says):
            prompt_products.prompt_product(a, b)
