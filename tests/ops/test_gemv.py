"""Matrix-vector products: every rung on the CPU target, refusals, launch rules, the study's predictions."""

import ctypes
import itertools

import numpy as np
import pytest
from fake_array import FakeArray
from rooflab import ops, simt, studies
from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import device
from rooflab.numerics import reference
from rooflab.ops import gemv
from rooflab.runtime import nvrtc
from rooflab.studies import base
from rooflab.studies import gemv as study

H200 = device.get("h200")
RUNGS = {(operator, rung.name): rung for operator, ladder in gemv.LADDERS.items() for rung in ladder}
# (n, k): one of everything, ragged in both, whole tiles and a little more, longer than a shared tile.
ANY = ((1, 1), (3, 5), (17, 129), (33, 1000), (259, 40), (5, 4097))
WIDE = ((4, 8), (8, 1000), (36, 136), (132, 264), (260, 24), (4, 4104), (516, 520))
BUDGET = {"gemv": 1e-5, "gemv_rows": 2**-10}  # of the largest magnitudes that a sum could have


def aligned(shape, dtype, shift=0):
    """An array that starts `shift` bytes after a multiple of 16."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + 32, np.uint8)
    start = -room.ctypes.data % 16 + shift
    return room[start : start + size].view(dtype).reshape(shape)


def operands(operator, n, k, seed=7, shift=0):
    """(matrix, x, expected in float64, error that passes) with outliers and non-zero means."""
    rng = np.random.default_rng(seed)
    dtype, shape = ("float32", (k, n)) if operator == "gemv" else ("float16", (n, k))
    matrix, x = aligned(shape, dtype, shift), aligned((k,), dtype, shift)
    matrix[:] = (rng.standard_normal(shape) + 0.1) * (1 + 11 * (rng.random(shape) < 0.02)) / np.sqrt(k)
    x[:] = (rng.standard_normal(k) + 0.25) * (1 + 7 * (rng.random(k) < 0.02))
    rows = matrix.T if operator == "gemv" else matrix
    largest = float((np.abs(rows).astype(np.float64) @ np.abs(x).astype(np.float64)).max())
    return matrix, x, reference.gemv(rows, x), BUDGET[operator] * max(1.0, largest)


def product(operator, matrix, x, **more):
    """The op on the CPU target, its output poisoned first."""
    n = matrix.shape[1] if operator == "gemv" else matrix.shape[0]
    out = aligned((n,), matrix.dtype)
    out[:] = np.nan
    with ops.on("cpu"):
        getattr(gemv, operator)(matrix, x, out=out, **more)
    return out


@pytest.mark.parametrize(("operator", "name"), RUNGS, ids=lambda value: value)
def test_every_rung_is_right_on_friendly_and_ragged_shapes(operator, name):
    shapes = ANY + WIDE if name in gemv._ANY else WIDE
    for n, k in shapes:
        matrix, x, expected, allowed = operands(operator, n, k)
        got = product(operator, matrix, x, rung=name)
        assert np.abs(got - expected).max() <= allowed, (name, n, k)


@pytest.mark.parametrize("operator", gemv.LADDERS)
@pytest.mark.parametrize("shape", ANY + WIDE, ids=str)
def test_the_op_handles_any_shape_by_itself(operator, shape):
    matrix, x, expected, allowed = operands(operator, *shape)
    assert np.abs(product(operator, matrix, x) - expected).max() <= allowed


@pytest.mark.parametrize("operator", gemv.LADDERS)
def test_views_that_are_not_aligned_take_a_slower_rung_or_are_refused(operator):
    matrix, x, expected, allowed = operands(operator, 64, 64, shift=8)
    assert np.abs(product(operator, matrix, x) - expected).max() <= allowed
    wide = "6_column_strips" if operator == "gemv" else "5_split"
    with pytest.raises(LaunchError, match="must start at a multiple of 16 bytes"):
        product(operator, matrix, x, rung=wide)


SPLIT_RUNGS = ("3_split_k", "4_vector", "5_in_flight")


@pytest.mark.parametrize("name", SPLIT_RUNGS)
def test_split_k_gives_the_same_bits_and_leaves_its_counters_at_zero(name):
    matrix, x, expected, allowed = operands("gemv", 512, 64)
    for splits in (1, 3, 7, 64):
        first = product("gemv", matrix, x, rung=name, splits=splits)
        assert np.abs(first - expected).max() <= allowed
        assert (product("gemv", matrix, x, rung=name, splits=splits) == first).all()
    with pytest.raises(UsageError, match="k = 64 rows can be split into 1 to 64 parts, not 65"):
        product("gemv", matrix, x, rung=name, splits=65)
    with pytest.raises(UsageError, match="6_column_strips does not split k over blocks"):
        product("gemv", matrix, x, rung="6_column_strips", splits=2)


@pytest.mark.parametrize("operator", gemv.LADDERS)
def test_the_rungs_have_no_faults_when_watched(operator):
    """Out of bounds, races, uninitialised shared memory, divergent barriers: none, on ragged shapes."""
    for rung in gemv.LADDERS[operator]:
        n, k = (132, 72) if rung.name not in gemv._ANY else (131, 75)
        matrix, x, expected, allowed = operands(operator, n, k)
        macros = {**rung.with_defaults({}), "THREADS": min(rung.defines["THREADS"], 128)}
        out = aligned((n,), matrix.dtype)
        arguments = [matrix, x, out]
        grid = gemv.blocks_of(rung, n, macros)
        if rung.name in SPLIT_RUNGS:
            arguments += [aligned((3 * n,), "float32"), np.zeros(grid, np.uint32)]
            grid = (grid, 3)
        arguments += [ctypes.c_uint(n), ctypes.c_uint(k)]
        seen = simt.watch(rung, grid, macros["THREADS"], arguments, macros)
        assert seen.faults == [], rung.name
        assert np.abs(out - expected).max() <= allowed, rung.name


def test_the_first_request_is_what_watching_counts():
    for (operator, name), rung in RUNGS.items():
        n, k = (256, 64) if operator == "gemv" else (64, 256)
        matrix, x, *_ = operands(operator, n, k)
        macros = gemv.options_for(rung, n, k)
        out = aligned((n,), matrix.dtype)
        arguments, grid = [matrix, x, out], gemv.blocks_of(rung, n, macros)
        if name in SPLIT_RUNGS:
            arguments += [aligned((4 * n,), "float32"), np.zeros(grid, np.uint32)]
            grid = (grid, 4)
        arguments += [ctypes.c_uint(n), ctypes.c_uint(k)]
        requests = simt.watch(rung, grid, macros["THREADS"], arguments, macros).requests()
        buffer = "a" if operator == "gemv" else "w"
        first = requests[(requests["buffer"] == buffer) & (requests["block"] == 0)].iloc[0]
        offsets, width = study.first_request(rung, n, k, macros)
        assert int(first["sectors"]) == study.sectors(offsets, width), name
        assert int(first["bytes_used"]) == 32 * width, name


def test_the_padding_keeps_lanes_out_of_each_others_banks():
    rung = RUNGS["gemv", "6_column_strips"]
    matrix, x, *_ = operands("gemv", 32, 256)
    conflicts = {}
    for pad in (0, 1):
        macros = {**rung.with_defaults({}), "PAD": pad}
        out = aligned((32,), "float32")
        seen = simt.watch(rung, 1, 1024, [matrix, x, out, ctypes.c_uint(32), ctypes.c_uint(256)], macros)
        rows = seen.lines()
        shared = rows[(rows["space"] == "shared") & (rows["access"] == "load")]
        conflicts[pad] = float(shared["conflicts_per_request"].max())
    assert conflicts == {0: 31.0, 1: 0.0}


@pytest.mark.parametrize(
    ("operator", "arguments", "more", "says"),
    [
        (
            "gemv",
            {"m": FakeArray((8, 6))},
            {"rung": "6_column_strips"},
            "so it refuses n = 6: take a multiple of 4",
        ),
        ("gemv", {"m": FakeArray((8,))}, {}, r"a must be a matrix, not of shape \(8,\)"),
        ("gemv", {"x": FakeArray((1, 8))}, {}, r"x must be a vector, not of shape \(1, 8\)"),
        ("gemv", {"m": FakeArray((8, 0))}, {}, "every size lies between 1 and"),
        ("gemv", {"x": FakeArray((9,))}, {}, "x must hold 8 elements, not 9"),
        ("gemv", {"m": FakeArray((8, 8), "float64")}, {}, "a must hold float32, not float64"),
        ("gemv", {"m": FakeArray((8, 8), contiguous=False)}, {}, "a must be contiguous"),
        (
            "gemv_rows",
            {"m": FakeArray((8, 12), "float16")},
            {"rung": "5_split"},
            "refuses k = 12: take a mul",
        ),
        ("gemv_rows", {"x": FakeArray((8,))}, {"rung": "1_warp"}, "x must hold float16, not float32"),
        (
            "gemv_rows",
            {"out": FakeArray((7,), "float16")},
            {"rung": "1_warp"},
            "out must hold 8 elements, not 7",
        ),
    ],
)
def test_a_launcher_refuses_in_a_sentence(operator, arguments, more, says):
    dtype = "float32" if operator == "gemv" else "float16"
    given = {"m": FakeArray((8, 8), dtype), "x": FakeArray((8,), dtype), "out": FakeArray((8,), dtype)}
    given |= arguments
    with pytest.raises(LaunchError, match=says):
        getattr(gemv, operator)(given["m"], given["x"], out=given["out"], **more)


def test_options_that_a_rung_cannot_map_are_refused():
    matrix, x, *_ = operands("gemv_rows", 8, 64)
    for wrong in ({"threads": 100}, {"threads": 2048}, {"threads": 128, "split": 3}):
        macros = {name.upper(): value for name, value in wrong.items()}
        with pytest.raises(UsageError, match="needs whole warps"):
            product("gemv_rows", matrix, x, rung="5_split", **macros)
    matrix, x, *_ = operands("gemv", 64, 8)
    with pytest.raises(UsageError, match="strips of 4 to 128 columns"):
        product("gemv", matrix, x, rung="6_column_strips", COLUMNS=24)


def test_the_launch_rule_covers_every_output_and_fills_the_gpu():
    for (_, name), rung in RUNGS.items():
        for n, k in itertools.product((1, 255, 4096, 8960), (1, 1536, 8192)):
            macros = gemv.options_for(rung, n, k)
            each, blocks = gemv.outputs_of(rung, macros), gemv.blocks_of(rung, n, macros)
            assert (blocks - 1) * each < n <= blocks * each
            if name in SPLIT_RUNGS:
                splits = gemv.splits_of(rung, n, k, macros, 132)
                assert 1 <= splits <= max(1, k // 32)
    rung = RUNGS["gemv", "3_split_k"]
    macros = gemv.options_for(rung, 4096, 4096)
    blocks = gemv.blocks_of(rung, 4096, macros) * gemv.splits_of(rung, 4096, 4096, macros, 132)
    assert blocks >= 132


def test_no_tuned_choice_spills():
    """What the op picks for a shape of the model families, compiled for the GPU that was recorded."""
    chosen = {(case.impl, tuple(sorted(study.own_rung(case)[1].items()))) for case in study.families()[::2]}
    for n in study.SIZES:
        chosen.add(
            (
                "6_column_strips",
                tuple(sorted(gemv.options_for(RUNGS["gemv", "6_column_strips"], n, n).items())),
            )
        )
    for name, macros in chosen:
        rung = RUNGS["gemv" if name == "6_column_strips" else "gemv_rows", name]
        report = rung.cubin("90", dict(macros)).resources[rung.entry]
        assert report.spill_bytes == 0 and report.stack_bytes == 0, (name, macros)


def test_sass_shows_the_loads_that_the_rungs_claim():
    def wide(operator, name):
        rung = RUNGS[operator, name]
        lines = nvrtc.sass(rung.cubin("90", {}), rung.entry)
        return sum("LDG" in line and ".128" in line for line in lines)

    assert wide("gemv", "3_split_k") == wide("gemv_rows", "1_warp") == 0
    assert wide("gemv", "4_vector") > 0 and wide("gemv", "5_in_flight") >= 8
    assert wide("gemv", "6_column_strips") >= 8 and wide("gemv_rows", "3_in_flight") >= 4


# --- the study ----------------------------------------------------------------------------------------------


def test_cases_cover_the_claims_and_the_families():
    cases = studies.get("gemv").cases("full", H200)
    shapes = {(c.n, c.k) for c in cases if c.operator == "gemv_rows"}
    assert {(8960, 1536), (1536, 8960), (1536, 1536), (256, 1536), (151936, 1536)} <= shapes
    assert {(4096, 4096), (14336, 4096), (8192, 8192), (28672, 8192), (128256, 8192)} <= shapes
    for n in (2048, 4096, 8192):
        assert {c.impl for c in study.ladder("gemv", n, n)} >= {
            "1_strided",
            "6_column_strips",
            "torch.matmul",
        }
        assert set(study.ladder("gemv", n, n)) <= set(cases)
    assert [base.tunables(c)["threads"] for c in study.blocks_sweep("2_coalesced")] == [
        64,
        128,
        256,
        512,
        1024,
    ]


def test_counts_and_predictions_follow_the_convention():
    gemvs, context = studies.get("gemv"), base.Context(device=H200, latency_ns=340.0, pcie_gb_s=63.0)

    def find(text):
        return gemvs.case(text)

    tuned = find("gemv/6_column_strips format=fp32 n=4096 k=4096 cold graph")
    moved = 4 * (4096 * 4096 + 2 * 4096)
    assert gemvs.count(tuned) == (moved, 2 * 4096 * 4096, "dram_read")
    assert gemvs.predict(tuned, context) == pytest.approx(moved / H200.dram_gb_s / 1e3)
    rows = find("gemv_rows/5_split format=fp16 n=8960 k=1536 cold graph")
    assert gemvs.count(rows).bytes == 2 * (8960 * 1536 + 8960 + 1536)
    # 16 blocks of 256 threads, four 4-byte loads each: Little's law, not the DRAM, bounds the coalesced rung.
    coalesced = find("gemv/2_coalesced format=fp32 n=4096 k=4096 cold graph")
    assert gemvs.predict(coalesced, context) == pytest.approx(moved / (16 * 256 * 16 / 340.0) / 1e3)
    upload = find("upload/pinned format=fp32 n=4096 k=4096 wall")
    assert gemvs.count(upload).roof == "pcie_h2d" and gemvs.predict(upload, context) > 1000
    warm = find("gemv/6_column_strips format=fp32 n=2048 k=2048 warm graph")
    assert gemvs.predict(warm, context) is None and gemvs.count(warm).roof == ""


def test_sectors_of_the_source_kernels():
    def pattern(operator, name):
        rung = RUNGS[operator, name]
        return study.sectors(*study.first_request(rung, 4096, 4096, gemv.options_for(rung, 4096, 4096)))

    assert pattern("gemv", "1_strided") == 32
    assert pattern("gemv", "2_coalesced") == 4
    assert (
        pattern("gemv", "4_vector")
        == pattern("gemv", "6_column_strips")
        == pattern("gemv_rows", "5_split")
        == 16
    )
    assert pattern("gemv_rows", "1_warp") == 2
