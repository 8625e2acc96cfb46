"""Hopper's rungs of attention on the CPU: the sources with the warpgroup products and barriers emulated.

The CPU target refuses these instructions by name. Here their words are changed for functions that do the same
at once (simt_kernels/hopper.h), from descriptors and layouts as documented: indices, hand-overs and barriers
are tested, and what only time brings (a product that still runs) is not.
"""

import ctypes
import re

import needs
import numpy as np
import pytest
from rooflab import simt
from rooflab.errors import MissingTool
from rooflab.numerics import reference
from rooflab.ops import attention as op
from rooflab.paths import ROOT
from shares import pairs, thinned
from test_attention import baseline, operands

needs.compiler()

EMULATION = (ROOT / "tests" / "simt_kernels" / "hopper.h").read_text()
WORDS = {
    **{"warpgroup_": "wgm_", "wgmma_": "wgmm_", "mbarrier_": "mbar_", "setmaxnreg_": "setmxr_"},
    **{"tma_": "tmm_", "cluster_": "clust_", "__cluster_dims__": "__clust_dims__"},
    **{"const __grid_constant__ TensorMap ": "const long long* __restrict__ "},
}
WIDTHS = [(name, width) for name, widths in op.HOPPER.items() for width in widths]


def emulated(rung):
    source = rung.path.read_text()
    for word, ours in WORDS.items():
        source = re.sub(rf"\b{word}", ours, source)
    if rung.name in op.BOXED:
        source = re.sub(r"&([qkv])\b", r"\1", source)
    source = source.replace(") CLUSTER_DIMS\n", ")\n").replace(
        "Element shared[];", "Element shared[];\n    emulate(shared);"
    )
    head, rest = source.split("\n\n", 1)  # the first blank line follows the includes
    return f"{head}\n{EMULATION}\n{rest}"


def run(how, name, q, k, v, start=0, causal=True, window=None, **options):
    """One launch; the output and what `how` (simt.run or simt.watch) gave."""
    rung = next(rung for rung in op.LADDERS["attention"] if rung.name == name)
    (n, heads, head_dim), (context, kv_heads, _) = q.shape, k.shape
    macros = rung.with_defaults({**op.tile_of(rung, head_dim, "90", group=heads // kv_heads), **options})
    if "CLUSTER" in macros:
        macros["CLUSTER"] = 1  # on the CPU blocks run one after another
    launch, out = op.launch_of(rung, macros), np.full(q.shape, np.nan, np.float16)
    three: list[np.ndarray] = [q, k, v]
    grid: tuple[int, ...] | int = op.grid_of(launch, n, heads)
    more = []
    if name in op.BOXED:
        boxes = ((q, n, launch.queries), *((each, context, macros.get("KEYS", 64)) for each in (k, v)))
        three = [
            np.frombuffer(np.array([rows, x[0].size, box, 64], np.int64).tobytes() + x.tobytes(), np.int64)
            for x, rows, box in boxes
        ]
        if name in op.PAIRED:
            box = np.array([*q.shape, launch.queries, macros["PACK"], 64], np.int64)
            three[0] = np.frombuffer(box.tobytes() + q.tobytes(), np.int64)
    if name in op.STANDING:
        standing = op.standing_of(launch, macros, n, context, heads, kv_heads, 3)
        grid, more = standing.blocks, [ctypes.c_int(standing.together)]
    sizes = (n, context, start, heads, kv_heads, int(causal), window or 2**31 - 1)
    arguments = [*three, out, *map(ctypes.c_int, sizes), op.softmax_scale(None, head_dim), *more]
    given = {"entry": rung.entry, "shared": launch.shared}
    return out, how(emulated(rung), grid, launch.threads, arguments, macros, **given)


SHAPES: list[tuple[int, int, tuple[int, int], dict]] = [
    (7, 7, (2, 1), {}),
    (200, 200, (1, 1), {}),
    (70, 330, (2, 2), {"start": 260, "window": 150}),
    (65, 200, (1, 1), {"causal": False}),
    (90, 90, (8, 2), {}),
    (5, 20, (1, 1), {"start": 60, "window": 10}),
    (50, 50, (7, 1), {"window": 20}),
]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("name", "head_dim", "shape"),
    thinned(pairs((*width, shape) for width in WIDTHS for shape in SHAPES), step=3),
)
def test_the_hopper_rungs_are_right(name, head_dim, shape):
    n, context, heads, how = shape
    q, k, v = operands(n, context, *heads, head_dim)
    out, _ = run(simt.run, name, q, k, v, **how)
    error = np.abs(out - reference.attention(q, k, v, **how)).max()
    assert error <= 2 * baseline(q, k, v, **how)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("n", "context", "heads", "how"),
    [
        (7, 7, (2, 1), {}),
        (70, 330, (4, 2), {"start": 260, "window": 150}),
        (200, 200, (3, 1), {"causal": False}),
    ],
)
def test_keys_that_are_the_values_too_are_copied_once(n, context, heads, how):
    q, k, _ = operands(n, context, *heads, 512)
    out, _ = run(simt.run, "12_warp_specialised", q, k, k, SHARED_KV=1, **how)
    assert np.abs(out - reference.attention(q, k, k, **how)).max() <= 2 * baseline(q, k, k, **how)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("name", "head_dim", "options"),
    thinned(
        [
            ("9_wgmma", 64, {"KEYS": 64}),
            ("10_paired_warpgroups", 512, {}),
            *((name, 64, {"KEYS": 64}) for name in ("18_tma_copies", "19_persistent", "20_lazy_rescale")),
            ("11_tma", 64, {"KEYS": 64}),
            ("12_warp_specialised", 512, {}),
            ("12_warp_specialised", 512, {"SHARED_KV": 1}),
            ("11_tma", 64, {"KEYS": 64, "GROUPS": 2, "TURNS": 1}),
            ("14_pack_gqa", 64, {"KEYS": 64, "GROUPS": 2}),
            ("15_warp_vote", 64, {"KEYS": 64, "GROUPS": 2}),
            ("15_warp_vote", 64, {"KEYS": 64, "GROUPS": 1}),
            ("16_wide_stores", 80, {"KEYS": 64, "GROUPS": 2}),
            ("17_short_chain", 64, {"KEYS": 64, "GROUPS": 2, "SECTIONS": 0}),
        ]
    ),
)
def test_nothing_is_read_before_it_is_there_or_overwritten_before_it_was_used(name, head_dim, options):
    tiles = 2 if head_dim == 512 else 3
    q, k, v = operands(64, 64 * tiles, 1, 1, head_dim)
    v = k if options.get("SHARED_KV") else v
    out, seen = run(simt.watch, name, q, k, v, start=64 * (tiles - 1), **options)
    assert not seen.faults, seen.faults[0].sentence
    assert np.isfinite(out).all()


def test_a_slot_released_too_early_is_seen():
    """The watched run can tell: keys freed before their product is waited for are a race."""
    rung = next(rung for rung in op.LADDERS["attention"] if rung.name == "9_wgmma")
    source = emulated(rung)
    early = source.replace("        start_qk(0);", "        release(0);\n        start_qk(0);", 1)
    early = early.replace("        wgm_wait<0>();\n        release(0);", "        wgm_wait<0>();", 1)
    assert early != source
    q, k, v = operands(64, 320, 1, 1, 64)
    macros = rung.with_defaults({"HEAD_DIM": 64, "KEYS": 64})
    launch, out = op.launch_of(rung, macros), np.empty_like(q)
    sizes = map(ctypes.c_int, (64, 320, 256, 1, 1, 1, 2**31 - 1))
    arguments = [q, k, v, out, *sizes, op.softmax_scale(None, 64)]
    seen = simt.watch(
        early, (1, 1), launch.threads, arguments, macros, entry=rung.entry, shared=launch.shared
    )
    assert any(fault.kind == "race" for fault in seen.faults)


def needs_nvrtc():
    try:
        from rooflab.runtime import nvrtc

        nvrtc.compiler_version()
    except MissingTool as error:
        pytest.skip(str(error))


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("name", "head_dim", "window", "brain"),
    thinned(
        pairs((*width, window, brain) for width in WIDTHS for window in (None, 512) for brain in (0, 1)),
        step=5,  # half a second each, as below
    ),
)
def test_every_tile_compiles_unspilled_within_shared_memory(name, head_dim, window, brain):
    needs_nvrtc()
    rung = next(rung for rung in op.LADDERS["attention"] if rung.name == name)
    macros = rung.with_defaults(op.tile_of(rung, head_dim, "90", group=4, window=window))
    if brain and "BF16" in macros:
        macros |= {"BF16": 1}
    report = rung.cubin("90", macros).resources[rung.entry]
    assert report.spill_bytes == report.stack_bytes == 0, macros
    assert report.shared_bytes == op.static_shared(rung, macros)
    assert report.shared_bytes + op.launch_of(rung, macros).shared <= 227 * 1024, macros


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("name", "tile", "numbers"),
    thinned(
        pairs(
            (name, (head_dim, tile.groups, tile.keys), numbers)
            for name in op.LAWFUL
            for head_dim in op.HOPPER["15_warp_vote"]
            for tile in op.tile_laws(head_dim)
            for numbers in ((1, 0), (7, 1))
        ),
        step=5,
    ),
)
def test_every_tile_of_the_law_compiles_unspilled(name, tile, numbers):
    needs_nvrtc()
    rung = next(rung for rung in op.LADDERS["attention"] if rung.name == name)
    given = zip(("HEAD_DIM", "GROUPS", "KEYS", "PACK", "BF16"), (*tile, *numbers), strict=True)
    macros = rung.with_defaults(dict(given))
    report = rung.cubin("90", macros).resources[rung.entry]
    assert report.spill_bytes == report.stack_bytes == 0, macros
    assert report.shared_bytes + op.launch_of(rung, macros).shared <= 227 * 1024, macros


def test_a_prompt_with_little_work_gets_smaller_tiles():
    """By the law: few heads and queries leave multiprocessors idle under 192 rows, long prompts don't."""

    def rows(*prompt, head_dim=64):
        return 64 * op.voted_of(head_dim, op.Prompt(*prompt), 132)["GROUPS"]

    assert rows(520, 520, 0, 2, 2, False, None) == 64
    assert rows(8192, 8192, 0, 32, 8, True, None) == 192
    assert rows(8192, 8192, 0, 32, 8, True, 512) == 192
    assert rows(1470, 1470, 0, 4, 1, True, None, head_dim=192) == 64
    (usual, *_) = op.tile_laws(128)
    one = op.Prompt(192 * 132, 800, 0, 1, 1, False, None)  # 132 pieces of ten tiles, a block each
    assert usual.predicted_us(one, 1, 132) == usual.piece_us + 10 * usual.tile_us
    two = one._replace(n=192 * 133)
    assert usual.predicted_us(two, 1, 132) == 2 * usual.predicted_us(one, 1, 132)


def test_the_fastest_rung_for_a_chip_and_a_width():
    found = {width: op.default_rung(width, "90") for width in (64, 112, 144, 256, 512)}
    assert found == {
        64: "17_short_chain",
        112: "17_short_chain",
        144: "13_mbarrier_ring",
        256: "17_short_chain",
        512: "12_warp_specialised",
    }
    assert {op.default_rung(width) for width in (64, 256, 512)} == {"13_mbarrier_ring"}
    assert [op.default_rung(width, "75") for width in (64, 256, 512)] == [
        "7_mma_32_rows",
        "6_cp_async",
        "2_tiled",
    ]


def test_any_group_is_packed_where_few_keys_are_seen():
    assert [op.pairs_pack_of(group, 777) for group in (1, 3, 7, 8, 10, 12)] == [1, 3, 7, 8, 2, 4]
    assert [op.pairs_pack_of(group, None) for group in (3, 6, 7, 8)] == [1, 2, 1, 8]
    assert op.pairs_pack_of(7, op.seen_of(3001, 3001, 0, True, None)) == 7
    assert op.pairs_pack_of(7, op.seen_of(8192, 8192, 0, True, None)) == 1


def test_standing_blocks_take_heads_whose_keys_stay_in_l2():
    (rung,) = (rung for rung in op.LADDERS["attention"] if rung.name == "11_tma")
    macros = rung.with_defaults({"PACK": 4})
    launch = op.launch_of(rung, macros)
    assert op.standing_of(launch, macros, 16384, 16384, 32, 8, 132) == (132, 4096, 2)
    assert op.standing_of(launch, macros, 32, 32, 32, 8, 132) == (8, 8, 8)


def test_all_heads_come_at_once_where_sections_would_leave_multiprocessors_idle():
    """L2 holds two of these eight heads at a time; cut so, a chunk's pieces end unevenly on 132 blocks."""
    chunk = op.Prompt(3162, 6927, 3765, 8, 8, True, None)
    assert op.kept_together(6927, 8, 256) == 2 and op.voted_of(256, chunk, 132, True)["SECTIONS"] == 0
    long = op.Prompt(65536, 65536, 0, 32, 8, True, None)
    assert op.kept_together(65536, 8, 128) < 8 and op.voted_of(128, long, 132, True)["SECTIONS"] == 1
    assert "SECTIONS" not in op.voted_of(256, chunk, 132)
