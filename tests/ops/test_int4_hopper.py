"""INT4's rungs 11 to 13 on the CPU: warpgroup products, copies, barriers emulated (attention_hopper)."""

import ctypes
import re

import needs
import numpy as np
import pytest
from hopper_headers import in_place
from rooflab import ops, simt
from rooflab.ops import int4, stream_k
from rooflab.paths import ROOT
from test_int4 import judged, packed, random

needs.compiler()

EMULATION = "\n".join(
    (ROOT / "tests" / "simt_kernels" / name).read_text() for name in ("hopper.h", "hopper_int4.h")
)
BULK, TILES, SHARED = (
    ops.rung_of(int4.LADDERS["int4"], name, "") for name in ("11_tma", "12_token_tiles", "13_stream_k")
)
WORDS = {
    **{"warpgroup_": "wgm_", "wgmma_": "wgmm_", "mbarrier_": "mbar_", "tma_": "tmm_"},
    "setmaxnreg_": "setmxr_",
    **{
        "const __grid_constant__ TensorMap ": "const long long* __restrict__ ",
        "const TensorMap": "const long long",
    },
}
LONE = {  # a cluster of one block
    "__cluster_dims__(CLUSTER, 1, 1) ": "",
    "cluster_rank()": "0",
    "cluster_wait();": "__syncthreads();",
    "cluster_load(share, c)": "*share",
    "&x,": "x,",
    "uint4 memory[];": "uint4 memory[];\n    emulate(memory);",
}


def emulated(rung):
    source, emulation = rung.path.read_text(), EMULATION
    if rung == SHARED:
        source = in_place(source)
        emulation += (ROOT / "tests" / "simt_kernels" / "hopper_stmatrix.h").read_text()
    for word, ours in WORDS.items():
        source = re.sub(rf"\b{word}", ours, source)
    for words, ours in LONE.items():
        source = source.replace(words, ours)
    head, rest = source.split("\n\n", 1)  # the first blank line follows the includes
    return f"{head}\n{emulation}\n{rest}"


def run(how, n, k, batch, change=lambda source: source, rung=BULK, **options):
    """One launch on random operands: its error, the error allowed, what `how` (simt.run or watch) gave."""
    q, x, macros = packed(n, k), random(batch, k, n), rung.with_defaults(options)
    expected, budget = judged(q, x)
    box = np.frombuffer(
        np.array([batch, k, macros["TOKENS"], 64], np.int64).tobytes() + x.tobytes(), np.int64
    )
    y = np.full((batch, n), np.nan, np.float16)
    sizes = list(map(ctypes.c_uint, (n, k // 128, batch)))
    if rung == SHARED:
        launch = int4.Launch(
            (macros["BLOCKS"], 1), 384, stream_k.shared_bytes(stream_k.FORMATS["int4/13_stream_k"], macros)
        )
        workspace = np.zeros((2 * macros["BLOCKS"], 64 * macros["TALL"] * macros["TOKENS"]), np.uint32)
        sizes.append(workspace)
    else:
        launch = int4.launch_of(rung, n, k, batch, macros)
    given = {"entry": rung.entry, "shared": launch.shared, "cooperative": macros.get("PARTS", 0) > 0}
    seen = how(
        change(emulated(rung)),
        launch.grid,
        launch.threads,
        [int4.repack(*q).blocks, box, y, *sizes],
        macros,
        **given,
    )
    assert rung != SHARED or not workspace.any(), "the workspace is not zero again"
    return float(np.abs(y - expected).max()), budget, seen


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("n", "k", "batch", "options"),
    [
        (130, 1152, 8, {}),
        (1, 128, 1, {"K_GROUPS": 4, "STAGES": 2}),
        (190, 1152, 13, {"UNITS": 3, "ROW_GROUPS": 2, "STAGES": 2, "TOKENS": 16}),
        (190, 1280, 33, {"UNITS": 3, "ROW_GROUPS": 2, "STAGES": 2, "TOKENS": 48}),
        (450, 896, 20, {"UNITS": 7, "ROW_GROUPS": 4, "K_GROUPS": 1, "STAGES": 3, "TOKENS": 32}),
        (130, 384, 70, {"UNITS": 1, "STAGES": 2, "TOKENS": 32}),  # three tiles of tokens
        (70, 512, 17, {"UNITS": 1, "STAGES": 2, "TOKENS": 8}),
        (70, 512, 100, {"UNITS": 1, "STAGES": 3, "TOKENS": 72}),
    ],
)
def test_rung_11_is_right(n, k, batch, options):
    error, budget, _ = run(simt.run, n, k, batch, **options)
    assert error <= budget


@pytest.mark.parametrize(
    ("n", "k", "batch", "options"),
    [
        (300, 384, 70, {"TOKENS": 64, "STAGES": 2}),
        (1, 128, 1, {"TALL": 1, "STAGES": 2}),
        (190, 1152, 130, {"TALL": 1, "TOKENS": 128, "STAGES": 3}),
    ],
)
def test_rung_12_is_right(n, k, batch, options):
    error, budget, _ = run(simt.run, n, k, batch, rung=TILES, **options)
    assert error <= budget


@pytest.mark.parametrize("tokens", [8, 32])
def test_nothing_is_read_before_it_is_there_or_overwritten_before_it_was_used(tokens):
    error, budget, seen = run(simt.watch, 190, 768, 3, UNITS=3, ROW_GROUPS=2, STAGES=2, TOKENS=tokens)
    assert not seen.faults, seen.faults[0].sentence
    assert error <= budget


def test_a_slot_released_too_early_is_seen():
    """The watched run can tell: a slot released before its weights are read is a race."""
    given_back = "        mbar_arrive(ring.empty + slot);  // every thread for what it has read\n"
    waited = "        mbar_wait(ring.full + slot, parity);\n"

    def early(source):
        assert given_back in source and waited in source
        return source.replace(given_back, "").replace(waited, waited + given_back)

    _, _, seen = run(simt.watch, 190, 1152, 3, early, UNITS=3, ROW_GROUPS=2, K_GROUPS=1, STAGES=2)
    assert any(fault.kind == "race" for fault in seen.faults)


def test_rung_12_reads_nothing_too_early_and_lets_nothing_go_too_early():
    given = {"rung": TILES, "TALL": 1, "TOKENS": 64, "STAGES": 2}
    error, budget, seen = run(simt.watch, 60, 384, 3, **given)
    assert not seen.faults, seen.faults[0].sentence
    assert error <= budget
    given_back = (
        "        if (s > 0) mbar_arrive(empty + (s - 1) % STAGES);  // every thread for what it has read\n"
    )

    def early(source):
        assert given_back in source
        at_once = given_back.replace("if (s > 0) ", "").replace("(s - 1)", "s")
        return source.replace(given_back, "").replace(
            "        multiply(even", f"{at_once}        multiply(even"
        )

    _, _, seen = run(simt.watch, 60, 512, 3, early, **given)
    assert any(fault.kind == "race" for fault in seen.faults)


SHARING = [  # by tiles of y: how many are taken whole, and how many blocks share which others
    (300, 384, 70, {"TALL": 1, "TOKENS": 64, "STAGES": 2, "BLOCKS": 6, "SHARERS": 0}),  # 6 whole
    (130, 1152, 40, {"TALL": 1, "TOKENS": 64, "STAGES": 2, "BLOCKS": 7, "SHARERS": 7}),  # 2 among 7
    (260, 384, 70, {"TALL": 1, "TOKENS": 64, "STAGES": 3, "BLOCKS": 4, "SHARERS": 3}),  # 4 whole, 2 among 3
    (190, 640, 20, {"TALL": 2, "TOKENS": 64, "STAGES": 2, "BLOCKS": 3, "SHARERS": 3}),  # 1 among 3
    (130, 640, 40, {"TALL": 1, "TOKENS": 64, "STAGES": 2, "BLOCKS": 6, "SHARERS": 0, "PARTS": 3}),  # 2 in 3
    (190, 384, 70, {"TALL": 2, "TOKENS": 64, "STAGES": 2, "BLOCKS": 4, "SHARERS": 0, "PARTS": 2}),  # 2 in 2
    (
        260,
        384,
        70,
        {"TALL": 1, "TOKENS": 64, "STAGES": 3, "BLOCKS": 4, "SHARERS": 0, "PARTS": 2},
    ),  # 4, 2 in 2
    (70, 256, 71, {"TALL": 1, "TOKENS": 72, "STAGES": 2, "BLOCKS": 1, "SHARERS": 0}),  # odd eights
]


@pytest.mark.share(3)
@pytest.mark.parametrize(("n", "k", "batch", "options"), SHARING)
def test_rung_13_is_right(n, k, batch, options):
    error, budget, _ = run(simt.run, n, k, batch, rung=SHARED, **options)
    assert error <= budget


def test_rung_13_reads_nothing_too_early_and_lets_nothing_go_too_early():
    given = {"rung": SHARED, "TALL": 1, "TOKENS": 64, "STAGES": 2, "BLOCKS": 2, "SHARERS": 2}
    error, budget, seen = run(simt.watch, 60, 384, 3, **given)
    assert not seen.faults, seen.faults[0].sentence
    assert error <= budget
    given_back = "            if (s > 0) mbar_arrive(empty + before);  // every thread for what it has read\n"

    def early(source):
        assert given_back in source
        at_once = "            mbar_arrive(empty + slot.index);\n"
        return source.replace(given_back, "").replace(
            "            multiply(even", f"{at_once}            multiply(even"
        )

    _, _, seen = run(simt.watch, 60, 896, 3, early, **{**given, "BLOCKS": 1, "SHARERS": 0})
    assert any(fault.kind == "race" for fault in seen.faults)


def test_a_block_that_does_not_wait_for_the_others_sums_is_seen():
    def hasty(source):
        assert "if (piece.begin > 0) add_left_sums" in source
        return source.replace("if (piece.begin > 0) add_left_sums", "if (false) add_left_sums")

    given = {"TALL": 1, "TOKENS": 64, "STAGES": 2, "BLOCKS": 2, "SHARERS": 2}
    with pytest.raises(AssertionError, match="not zero again"):
        run(simt.run, 60, 384, 3, hasty, rung=SHARED, **given)


@pytest.mark.parametrize("parts", [2, 3])
def test_blocks_that_add_a_tile_up_together_wait_for_one_another(parts):
    given = {"rung": SHARED, "TALL": 1, "TOKENS": 64, "STAGES": 2, "BLOCKS": parts, "SHARERS": 0}
    given["PARTS"] = parts
    how = simt.watch if parts == 2 else simt.run  # three that wait are more accesses than can be watched
    error, budget, seen = run(how, 60, 384, 3, **given)
    assert parts > 2 or not seen.faults, seen.faults[0].sentence
    assert error <= budget

    def hasty(source):
        assert source.count("while (__any_sync(0xffffffffu, wait));") == 2
        return source.replace("while (__any_sync(0xffffffffu, wait));", "while (false);")

    with pytest.raises(AssertionError, match="not zero again"):
        run(simt.run, 60, 384, 3, hasty, **given)
