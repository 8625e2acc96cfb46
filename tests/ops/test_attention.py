"""Attention on the CPU: every rung through the gate on ragged shapes and every mask, edges, refusals."""

import needs
import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.bench import gate
from rooflab.errors import LaunchError, MissingTool, UsageError
from rooflab.numerics import reference
from rooflab.ops import attention as op
from shares import pairs, thinned

needs.compiler()

LADDER = op.LADDERS["attention"]
NAMES = [rung.name for rung in LADDER if "80" in rung.archs]  # Hopper's own runs on no CPU
TILES = NAMES[3:]


def width(name):
    """A small head that the rung does."""
    return 128 if name == "8_head_dim_slices" else 64


def operands(n, context, heads, kv_heads, head_dim, seed=0, loud=1.0):
    """Random q, k, v with a non-zero mean and outliers; `loud` scales the scores."""
    rng = np.random.default_rng([seed, n, context, head_dim])

    def values(shape, mean):
        spread = np.where(rng.random(shape) < 1 / 64, 4, 1)
        return ((rng.standard_normal(shape) + mean) * spread).astype(np.float16)

    q, k = values((n, heads, head_dim), 0.1), values((context, kv_heads, head_dim), 0.2)
    return (q * np.float16(loud)).astype(np.float16), k, values((context, kv_heads, head_dim), 0.25)


def baseline(q, k, v, **how):
    """The same attention with FP16 operands and an FP16 result, weights rounded to FP16: what a library's
    kernel of the same type is allowed to lose.
    """
    exact = reference.attention(q, k, v, **how)
    noise = np.float64(2.0**-11) * np.sqrt(np.mean(v.astype(np.float64) ** 2))
    return float(np.abs(exact.astype(np.float16) - exact).max()) + noise


def check(name, q, k, v, tolerance=None, shared=False, options=None, **how):
    """Gate one rung on the CPU, two copies of the operands; its largest error."""
    arrays = [[x.copy() for x in (q, k, v)] for _ in range(2)]
    outputs = [[np.empty_like(q)] for _ in range(2)]
    context = how.pop("context", k.shape[0])
    expected = reference.attention(q, k[:context], v[:context], **how)

    def launch(i):
        a, b, c = arrays[i]
        op.attention(
            a, b, b if shared else c, out=outputs[i][0], rung=name, context=context, **how, **(options or {})
        )

    budget = tolerance or 2 * baseline(q, k[:context], v[:context], **how)
    work = gate.Work(name, launch, arrays, outputs, lambda: expected, budget)
    with ops.on("cpu"):
        admitted = gate.admit(work)
        admitted.recheck()
    return admitted.error


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 7, 17, 130])
def test_every_rung_passes_the_gate_on_ragged_lengths(name, n):
    check(name, *operands(n, n, 2, 1, width(name)))


MASKS = {
    "not causal": {"causal": False},
    "chunk": {"start": 40},
    "window": {"window": 9},
    "window of one": {"window": 1},
    "chunk with window": {"start": 61, "window": 32},
    "window past the cache": {"start": 90, "window": 20},  # the last queries see nothing
    "wide window": {"window": 10**6},
    "scaled": {"scale": 0.5},
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", MASKS)
def test_every_rung_sees_what_it_should(name, mask):
    check(name, *operands(34, 85, 3, 3, width(name)), **MASKS[mask])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (3, 3)])
def test_query_heads_share_keys_and_values(name, heads, kv_heads):
    check(name, *operands(18, 18, heads, kv_heads, width(name)))


WIDTHS = (64, 80, 96, 112, 128, 256, 512)


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "head_dim"), thinned([(name, width) for name in NAMES for width in WIDTHS]))
def test_heads_of_every_width(name, head_dim):
    q, k, v = operands(33, 33, 1, 1, head_dim)
    if head_dim > op.WIDEST.get(name, 512) or (name == "8_head_dim_slices" and head_dim % 64):
        with ops.on("cpu"), pytest.raises(LaunchError, match=f"refuses head_dim = {head_dim}: take"):
            op.attention(q, k, v, rung=name)
        return
    check(name, q, k, v)


@pytest.mark.share(3)
@pytest.mark.parametrize("arch", ["75", "80", "89", "90"])
@pytest.mark.parametrize("name", TILES)
def test_every_tile_that_a_chip_is_given_is_right(name, arch):
    rung = next(rung for rung in LADDER if rung.name == name)
    for head_dim in (64, 128, 256, 512):
        if arch in rung.archs and head_dim <= op.WIDEST.get(name, 512):
            check(name, *operands(70, 70, 1, 1, head_dim), options=op.tile_of(rung, head_dim, arch))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
def test_keys_that_are_the_values_too_are_read_from_one_array(name):
    q, k, _ = operands(70, 70, 2, 1, width(name))
    check(name, q, k, k.copy(), shared=True)
    check(name, q, k, k.copy(), shared=True, window=33)


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_past_the_context_is_never_read(name):
    q, k, v = operands(20, 40, 2, 1, width(name))
    k[20:], v[20:] = np.nan, np.nan
    with ops.on("cpu"):
        out = op.attention(q, k, v, context=20, rung=name)
        whole = op.attention(q, k[:20].copy(), v[:20].copy(), rung=name)
    assert (out == whole).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_reaches_whoever_sees_it(name, where):
    """A NaN makes NaN of every query that sees it; in k and v of no other tile's."""
    arrays = dict(zip("qkv", operands(150, 150, 1, 1, width(name)), strict=True))
    arrays[where][140, 0, 3] = np.nan
    expected = reference.attention(**arrays)
    with ops.on("cpu"):
        out = op.attention(**arrays, rung=name)
    assert np.isnan(out)[np.isnan(expected)].all()
    clean = ~np.isnan(expected)
    if where == "v" and name in TILES:
        clean[128:] = False  # the queries of the same tile multiply it by zero
    assert np.isfinite(out[clean]).all()


@pytest.mark.parametrize("name", NAMES)
def test_large_logits_stay_finite(name):
    """Scores of hundreds: exponentials of differences never overflow. FP16 scores lose what FP16 loses."""
    q, k, v = operands(40, 40, 1, 1, width(name), loud=150.0)
    scores = np.abs(np.einsum("nhd,chd->hnc", q.astype(float), k.astype(float))) / np.sqrt(q.shape[2])
    assert scores.max() > 600
    check(name, q, k, v, tolerance=16.0 if name == "3_half2" else None)


@pytest.mark.parametrize("name", NAMES)
def test_a_query_that_sees_nothing_gives_zeros(name):
    q, k, v = operands(5, 8, 2, 1, width(name))
    with ops.on("cpu"):
        assert (op.attention(q, k, v, start=50, window=4, rung=name) == 0).all()
        assert (op.attention(q, k, v, context=0, rung=name) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_repeats_are_bitwise_equal(name):
    q, k, v = operands(60, 60, 2, 2, width(name))
    with ops.on("cpu"):
        first = op.attention(q, k, v, rung=name)
        assert all((op.attention(q, k, v, rung=name) == first).all() for _ in range(3))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "3_half2"])
def test_bfloat16(name):
    """NumPy has no bfloat16: the rung is run on its bits."""
    import ctypes

    rung = next(rung for rung in LADDER if rung.name == name)
    n, heads, head_dim = 40, 2, width(name)

    def bits(x):
        words = x.astype(np.float32).view(np.uint32)
        return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)

    def value(x):
        return (x.astype(np.uint32) << 16).view(np.float32)

    q, k, v = (bits(x) for x in operands(n, n, heads, 1, head_dim))
    out = np.full(q.shape, 0x7FC0, np.uint16)
    macros = rung.with_defaults({**op.tile_of(rung, head_dim, "89"), "BF16": 1})
    launch = op.launch_of(rung, macros)
    sizes = [ctypes.c_int(x) for x in (n, n, 0, heads, 1, 1, 2**31 - 1)]
    grid = op.grid_of(launch, n, heads)
    arguments = [q, k, v, out, *sizes, op.softmax_scale(None, head_dim)]
    simt.run(rung, grid, launch.threads, arguments, macros, shared=launch.shared)
    expected = reference.attention(value(q), value(k), value(v))
    scale = np.abs(expected).max()
    assert np.abs(value(out) - expected).max() < 2 * 2.0**-8 * scale


# --- how memory is used -------------------------------------------------------------------------------------


def watched(name, n=64, head_dim=64, **options):
    rung = next(rung for rung in LADDER if rung.name == name)
    q, k, v = operands(n, n, 1, 1, head_dim)
    macros = rung.with_defaults({**op.tile_of(rung, head_dim, "89"), **options})
    launch = op.launch_of(rung, macros)
    sizes = [op.ctypes.c_int(x) for x in (n, n, 0, 1, 1, 1, 2**31 - 1)]
    grid, out = op.grid_of(launch, n, 1), np.empty_like(q)
    arguments = [q, k, v, out, *sizes, op.softmax_scale(None, head_dim)]
    return simt.watch(rung, grid, launch.threads, arguments, macros, shared=launch.shared)


@pytest.mark.parametrize("name", NAMES)
def test_no_rung_does_what_it_must_not(name):
    """No race, no uninitialised shared memory, no copy used before it was waited for."""
    seen = watched(name, n=70, head_dim=width(name))
    assert not seen.faults, seen.faults[0].sentence


def test_warps_that_share_queries_hand_their_scores_over_in_order():
    seen = watched("13_mbarrier_ring", n=70, head_dim=512)
    assert not seen.faults, seen.faults[0].sentence


def conflicts(name, head_dim):
    """Turns beyond the first of every ldmatrix, on average."""
    rows = watched(name, n=64, head_dim=head_dim).requests()
    matrix = rows[(rows["space"] == "shared") & (rows["access"] == "load") & (rows["bytes"] == 16)]
    return float(matrix["conflicts"].mean())


def test_padding_takes_the_bank_conflicts_away():
    assert conflicts("4_mma", 64) > 20
    for head_dim in (64, 80):
        for name in TILES[1:4]:
            assert conflicts(name, head_dim) == 0, (name, head_dim)


# --- what it refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": np.zeros((4, 3, 64), np.float16)}, "3 query heads do not share 2"),
        ({"q": np.zeros((4, 4, 32), np.float16)}, "q has head_dim = 32 and k has 64"),
        ({"q": np.zeros((4, 64), np.float16)}, "Attention takes q .n, heads, head_dim. and k, v"),
        ({"q": np.zeros((4, 4, 64), np.float32)}, "takes float16 or bfloat16, not float32"),
        ({"k": np.zeros((8, 2, 64), np.float32)}, "k must hold float16, not float32"),
        ({"q": np.zeros((4, 4, 128), np.float16)[:, :, ::2]}, "q must be contiguous"),
        ({"v": np.zeros((7, 2, 64), np.float16)}, "Attention takes q"),
        ({"start": -1}, "start must lie between 0 and"),
        ({"context": 9}, "context must lie between 0 and the 8 keys given, not 9"),
        ({"window": 0}, "A window of 1 to 2.30 keys goes with causal attention"),
        ({"window": 4, "causal": False}, "goes with causal attention"),
        ({"scale": 0.0}, "scale must be a finite number above 0"),
        ({"out": np.zeros((4, 4, 63), np.float16)}, "out must hold 1024 elements"),
        ({"q": [1.0]}, "q must be an array, not list"),
    ],
)
def test_a_launcher_refuses_in_a_sentence(change, says):
    given = {name: np.zeros(shape, np.float16) for name, shape in (("q", (4, 4, 64)), ("k", (8, 2, 64)))}
    with ops.on("cpu"), pytest.raises(LaunchError, match=says):
        op.attention(**{**given, "v": np.zeros((8, 2, 64), np.float16), **change})


def test_the_hopper_rung_is_refused_on_the_cpu_by_what_it_needs():
    with ops.on("cpu"), pytest.raises((LaunchError, UsageError), match="wgmma"):
        op.attention(*operands(2, 2, 1, 1, 64), rung="9_wgmma")
    with ops.on("cpu"), pytest.raises(LaunchError, match="takes heads of 64 or 128 or 256"):
        op.attention(*operands(2, 2, 1, 1, 80), rung="9_wgmma")


def test_heads_beyond_what_any_rung_does_are_refused():
    for head_dim, says in ((24, "multiple of 16 from 16 to 512, not 24"), (528, "not 528")):
        with ops.on("cpu"), pytest.raises(LaunchError, match=says):
            op.attention(*operands(2, 2, 1, 1, head_dim))
    with ops.on("cpu"), pytest.raises(UsageError, match="attention has no rung '9_magic'"):
        op.attention(*operands(2, 2, 1, 1, 64), rung="9_magic")


# --- every tile that the launcher chooses -------------------------------------------------------------------


# A limit of shared memory each: 64, 163, 99 and 227 KiB; the widest heads need the most.
CHIPS = {"75": (64, 112, 256), "80": (512,), "89": (128, 512), "90": (64, 112, 128, 256, 512)}


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("rung", "chip", "shared"),
    thinned(
        pairs(
            (rung, (arch, head_dim), shared)
            for rung in LADDER[3:]
            for arch, widths in CHIPS.items()
            for head_dim in widths
            for shared in sorted({0, int("SHARED_KV" in rung.defines)})
            if head_dim <= op.WIDEST.get(rung.name, 512) and arch in rung.archs
            if rung.name != "8_head_dim_slices" or head_dim % 64 == 0
        ),
        step=5,  # a third of a second each
    ),
    ids=lambda one: getattr(one, "name", None),
)
def test_every_chosen_tile_compiles_unspilled_within_shared_memory(rung, chip, shared):
    """Heads that no rung's defaults cover."""
    try:
        from rooflab.runtime import nvrtc

        nvrtc.compiler_version()
    except MissingTool as error:
        pytest.skip(str(error))
    arch, head_dim = chip
    macros = rung.with_defaults(op.tile_of(rung, head_dim, arch, bool(shared)))
    macros |= {"SHARED_KV": shared} if shared else {}
    report = rung.cubin(arch, macros).resources[rung.entry]
    assert report.spill_bytes == report.stack_bytes == 0, (rung.name, macros)
    assert report.shared_bytes == op.static_shared(rung, macros)
    whole = report.shared_bytes + op.launch_of(rung, macros).shared
    assert whole <= 1024 * ops.SHARED_KIB[arch], (rung.name, macros)
