"""MMQ's rungs 8 to 10 on the CPU: warpgroup products, copies and barriers emulated (see test_int4_hopper)."""

import ctypes
import re

import needs
import numpy as np
import pytest
from hopper_headers import in_place
from rooflab import ops, simt
from rooflab.errors import LaunchError
from rooflab.numerics import quant, reference
from rooflab.ops import mmq, q8_0, stream_k
from rooflab.paths import ROOT
from rooflab.runtime import nvrtc
from test_q8_0 import random

needs.compiler()

RUNGS = [ops.rung_of(mmq.LADDERS["mmq"], name, "") for name in ("8_stream_k", "9_tile_order")]
WORDS = {
    "tma_copy_box(memory": "tmm_copy_box(memory",
    "tma_copy_bytes": "tmm_copy_bytes",
    "uint4 memory[];": "uint4 memory[];\n    emulate(memory);",
    "tma_copy_box(tokens": "tmm_copy_box(tokens",
    "tma_copy_box(rows": "byte_rows(rows",
    "warpgroup_": "wgm_",
    "wgmma_": "wgmm_",
    "mbarrier_": "mbar_",
    "setmaxnreg_": "setmxr_",
    "const __grid_constant__ TensorMap ": "const long long* __restrict__ ",
    "&x,": "x,",
    "&quants,": "quants,",
    "unsigned char ring[];": "unsigned char ring[];\n    emulate(ring);",
    # a cluster of one block
    "__cluster_dims__(CLUSTER, 1, 1) ": "",
    "cluster_rank()": "0",
    "cluster_wait();": "wgm_wait_turn(4, 256);",
    "cluster_load(share, c)": "*share",
}
COPIES = """
// A box of bytes whose rows are 64 long, swizzled by pairs of rows; done at once.
static inline void byte_rows(void* shared, const long long* map, int column, int row, unsigned long long*) {
  const signed char* const from = (const signed char*)(map + 4);
  const unsigned place = unsigned((char*)shared - emulated_base);
  for (int r = 0; r < map[2]; ++r)
    for (int c = 0; c < map[3]; ++c) {
      const unsigned address = place + r * 64 + c;
      const bool inside = row + r < map[0] && column + c < map[1];
      emulated_base[address ^ (address >> 7 & 3) << 4] = inside ? from[(row + r) * map[1] + column + c] : 0;
    }
}
#include "common/ptx/cp_async.cuh"
static inline void mbar_arrive_when_copied(unsigned long long* barrier) {
  copy_async_commit();
  copy_async_wait<0>();
  mbar_arrive(barrier);
}
"""


def emulated(rung):
    source = in_place(rung.path.read_text())
    for word, ours in WORDS.items():
        source = re.sub(rf"(?<!\w){re.escape(word)}", ours, source)
    folder = ROOT / "tests" / "simt_kernels"
    emulation = "\n".join(
        (folder / name).read_text() for name in ("hopper.h", "hopper_int4.h", "hopper_stmatrix.h")
    )
    head, rest = source.split("\n\n", 1)
    return f"{head}\n#include <cuda_fp16.h>\n{emulation}\n{COPIES}\n{rest}"


def mapped(array, box):
    """What the emulation takes for a tensor map: sizes, a box's sizes, and the matrix."""
    return np.frombuffer(np.array([*array.shape, *box], np.int64).tobytes() + array.tobytes(), np.int64)


SHARED = [
    (130, 384, 70, {"TOKENS": 64, "STAGES": 3, "BLOCKS": 3, "SHARERS": 2}),  # 3 whole, 1 among 2
    (70, 640, 20, {"TOKENS": 64, "STAGES": 3, "BLOCKS": 4, "SHARERS": 4}),  # 1 among 4
    (257, 128, 65, {"TOKENS": 96, "STAGES": 4, "BLOCKS": 2, "SHARERS": 0}),  # 2 and 1, whole
    (70, 256, 71, {"TOKENS": 72, "STAGES": 3, "BLOCKS": 1, "SHARERS": 0}),  # an odd number of eights
]
IN_PARTS = [  # of rungs that divide a tile so
    (130, 640, 40, {"TOKENS": 64, "STAGES": 3, "BLOCKS": 6, "SHARERS": 0, "PARTS": 3}),  # 2 in 3 parts
    (300, 384, 65, {"TOKENS": 64, "STAGES": 3, "BLOCKS": 4, "SHARERS": 0, "PARTS": 2}),  # 4, 2 in 2 parts
]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("rung", "n", "k", "batch", "options"),
    [(rung, *shape) for rung in RUNGS for shape in (*SHARED, *(IN_PARTS if "PARTS" in rung.defines else ()))],
    ids=lambda value: getattr(value, "name", None),
)
def test_sums_of_whole_and_of_shared_tiles_are_right(rung, n, k, batch, options):
    planes, x = quant.to_planes(quant.quantise_q8_0(random(n, k, n + k))), random(batch, k, n)
    w = planes.quants.astype(np.float32) * np.repeat(planes.scales.astype(np.float32), 32, axis=1)
    expected = reference.gemm(w, x)
    rounded = (x.astype(np.float32) @ w.astype(np.float16).astype(np.float32).T).astype(np.float16)
    macros = rung.with_defaults({"ROW_TILES": 1, **options})
    y = np.full((batch, n), np.nan, np.float16)
    workspace = np.zeros((2 * macros["BLOCKS"], 64 * macros["TOKENS"]), np.uint32)
    weights = [mapped(planes.quants, (128, 64)), planes.scales]
    if rung.name == "9_tile_order":
        weights = [q8_0.repack(planes).blocks]
    given = [*weights, mapped(x, (macros["TOKENS"], 64)), y]
    sizes = map(ctypes.c_int, (n, k, batch))
    shared = stream_k.shared_bytes(stream_k.FORMATS[rung.key], macros)
    grid = (macros["BLOCKS"], 1)
    given += [*sizes, workspace]
    together = {"cooperative": macros.get("PARTS", 0) > 0}
    simt.run(emulated(rung), grid, 384, given, macros, entry=rung.entry, shared=shared, **together)
    allowed = max(2 * float(np.abs(rounded - expected).max()), 2.0**-10 * float(np.abs(expected).max()))
    assert np.abs(y - expected).max() <= allowed and not workspace.any()


GROUPS = ops.rung_of(mmq.LADDERS["mmq"], "10_k_groups", "")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("n", "k", "batch", "options"),
    [
        (130, 384, 70, {"TOKENS": 64, "STAGES": 3}),  # an odd ring, a third of three steps a warpgroup
        (64, 128, 9, {"TOKENS": 64, "STAGES": 4}),  # one step each
        (100, 640, 85, {"TOKENS": 80, "STAGES": 4}),  # the second warpgroup of a tile ends no token
        (100, 384, 85, {"TOKENS": 64, "STAGES": 5, "CLUSTER": 2}),  # its way out, with a cluster of one block
    ],
)
def test_warpgroups_that_divide_k_are_right(n, k, batch, options):
    planes, x = quant.to_planes(quant.quantise_q8_0(random(n, k, n + k))), random(batch, k, n)
    w = planes.quants.astype(np.float32) * np.repeat(planes.scales.astype(np.float32), 32, axis=1)
    expected = reference.gemm(w, x)
    rounded = (x.astype(np.float32) @ w.astype(np.float16).astype(np.float32).T).astype(np.float16)
    macros, y = GROUPS.with_defaults(options), np.full((batch, n), np.nan, np.float16)
    given = [
        q8_0.repack(planes).blocks,
        mapped(x, (macros["TOKENS"], 64)),
        y,
        *map(ctypes.c_int, (n, k, batch)),
    ]
    grid, threads, shared = mmq.launch_shape(GROUPS, n, batch, {**macros, "CLUSTER": 1})
    source = emulated(GROUPS)
    if macros["CLUSTER"] > 1:  # blocks of the CPU run one after another
        assert "if constexpr (CLUSTER > 1)" in source
        source, macros["CLUSTER"] = source.replace("if constexpr (CLUSTER > 1)", "if constexpr (true)"), 1
    simt.run(source, grid, threads, given, macros, entry=GROUPS.entry, shared=shared)
    allowed = max(2 * float(np.abs(rounded - expected).max()), 2.0**-10 * float(np.abs(expected).max()))
    assert np.abs(y - expected).max() <= allowed


def test_small_matrices_are_divided_along_k_where_the_law_says_so():
    assert mmq.tiles_rung(2048, 2048, 256) == "10_k_groups"
    assert mmq.tiles_rung(8192, 8192, 512) == "9_tile_order", "more tiles than run at once"
    assert mmq.tiles_rung(2048, 8192, 100) == "9_tile_order", "long k is divided among blocks"
    for n, k, batch in ((1024, 1024, 512), (2560, 2560, 150), (4096, 1024, 256), (64, 128, 1)):
        macros = GROUPS.with_defaults(mmq.macros_for(GROUPS, n, k, batch))
        grid, _, shared = mmq.launch_shape(GROUPS, n, batch, macros)
        assert grid[0] * grid[1] <= 132 and shared <= 227 * 1024 and macros["STAGES"] > 2


def test_operands_and_sharing_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(nvrtc, "tensor_map", lambda *_: None)
    planes, x = quant.to_planes(quant.quantise_q8_0(random(64, 256, 1))), random(70, 256, 2)
    with ops.on("cpu"):
        with pytest.raises(LaunchError, match="activations in half"):
            mmq.product(q8_0.quantise(x), planes, rung="8_stream_k")
        with pytest.raises(LaunchError, match="0 steps left for a last turn of 1 blocks, not work for 2"):
            mmq.product(x, planes, rung="8_stream_k", TOKENS=96, BLOCKS=1, SHARERS=2)
        with pytest.raises(LaunchError, match="1 to 132 blocks"):
            mmq.product(x, planes, rung="8_stream_k", TOKENS=96, BLOCKS=133, SHARERS=0)
        with pytest.raises(LaunchError, match="256 sums a row of 64, not 2 x 160"):
            mmq.product(x, planes, rung="8_stream_k", ROW_TILES=2, TOKENS=160)
        tiles, parts = q8_0.repack(planes), {"TOKENS": 96, "BLOCKS": 2, "SHARERS": 0}
        with pytest.raises(LaunchError, match="1 tiles of 2 steps left .* 3 parts of each, with SHARERS = 0"):
            mmq.product(x, tiles, rung="9_tile_order", **parts, PARTS=3)
        with pytest.raises(LaunchError, match="weights in tiles and .* not planes and half"):
            mmq.product(x, planes, rung="9_tile_order")


@pytest.mark.parametrize("rung", stream_k.FORMATS)
def test_the_law_names_tiles_that_fit_and_blocks_that_have_work(rung):
    of = stream_k.FORMATS[rung]
    for n, k, batch in (
        (1, 128, 65),
        (1024, 1024, 65),
        (3072, 8192, 256),
        (28672, 4096, 2048),
        (5000, 640, 333),
        (1792, 10240, 80),
    ):
        macros = stream_k.options_for(rung, n, k, batch)
        tiles = stream_k.tiles_of(n, batch, macros[of.rows], macros["TOKENS"])
        left = tiles % macros["BLOCKS"] * (k // 128)
        assert macros["STAGES"] >= 2 and stream_k.shared_bytes(of, macros) <= 226 * 1024
        assert macros["BLOCKS"] <= 132 and macros["SHARERS"] <= min(left, macros["BLOCKS"])
        parts = macros.get("PARTS", 0)
        assert not parts or 1 < parts <= k // 128 and 0 < tiles % macros["BLOCKS"] * parts <= macros["BLOCKS"]
        assert stream_k.predicted_us(rung, n, k, batch) > 0


def test_where_many_blocks_divide_a_tile_they_add_it_up_together():
    """14 stretches of 128 rows for 132 multiprocessors: a block alone would add eight others' sums."""
    for rung in ("int4/13_stream_k", "mmq/9_tile_order"):
        macros = stream_k.options_for(rung, 1792, 10240, 80)
        assert (macros["BLOCKS"], macros["SHARERS"], macros["PARTS"]) == (126, 0, 9)
    assert "PARTS" not in stream_k.options_for("mmq/8_stream_k", 1792, 10240, 80)
