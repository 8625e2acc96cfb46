"""What only a GPU can show: the gate on ragged shapes, the sanitizers, a live lab. Skipped without one."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rooflab.hardware import device

pytestmark = pytest.mark.skipif(not device.has_gpu(), reason="needs an NVIDIA GPU")
SANITIZER = shutil.which("compute-sanitizer")
CHILD = Path(__file__).with_name("sanitize_child.py")


def rungs():
    from rooflab.ops import stream

    return [(operator, rung) for operator, ladder in stream.LADDERS.items() for rung in ladder]


@pytest.mark.parametrize(("operator", "rung"), rungs(), ids=lambda value: getattr(value, "name", value))
def test_a_rung_passes_the_gate_on_friendly_and_ragged_lengths(operator, rung):
    from rooflab.bench import gate
    from rooflab.records.case import Case
    from rooflab.studies import streams

    ragged = (1, 3, 255, 1021, 1_000_003) if rung.words == 1 else ()
    for n in (4, 1020, 4096, 8 * 256 * 4 + 36, 1_000_004, *ragged):
        (work,) = streams.contestants([Case("bandwidth", operator, rung.name, n=n, cache="warm")])
        assert gate.admit(work).error <= work.budget


def gemv_rungs():
    from rooflab.ops import gemv

    return [(operator, rung.name) for operator, ladder in gemv.LADDERS.items() for rung in ladder]


@pytest.mark.parametrize(("operator", "name"), gemv_rungs())
def test_a_matrix_vector_product_passes_the_gate_on_friendly_and_ragged_shapes(operator, name):
    from rooflab import studies
    from rooflab.bench import gate
    from rooflab.records.case import Case

    ragged = ((1, 1), (17, 129), (259, 1000), (4097, 4097))
    any_shape = name in ("1_strided", "2_coalesced", "3_split_k", "1_warp")
    for n, k in ((4, 8), (132, 264), (1536, 1536), (4096, 520), *(ragged if any_shape else ())):
        case = Case("gemv", operator, name, n=n, k=k, cache="warm")
        (work,) = studies.get("gemv").contestants([case])
        assert gate.admit(work).error <= work.budget


def test_split_sums_are_bitwise_equal_250_times():
    import cupy
    from rooflab.ops import gemv

    rng = cupy.random.default_rng(3)
    a, x = rng.standard_normal((4096, 1024), cupy.float32), rng.standard_normal(4096, cupy.float32)
    for name in ("3_split_k", "5_in_flight", "6_column_strips"):
        first = gemv.gemv(a, x, rung=name)
        assert all(bool((gemv.gemv(a, x, rung=name) == first).all()) for _ in range(250))


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256, 512])
@pytest.mark.parametrize(
    ("seq", "heads", "how"),
    [
        (1, (4, 2), {}),
        (7, (4, 4), {}),
        (130, (4, 1), {"window": 33, "options": "start=500"}),
        (257, (2, 2), {"causal": False}),
        (1848, (2, 1), {"window": 512}),
    ],
)
def test_every_rung_of_attention_passes_the_gate(head_dim, seq, heads, how):
    import cupy
    from rooflab.bench import gate
    from rooflab.studies import attention

    study, capability = attention.Attention(), int(cupy.cuda.Device().compute_capability)
    cases = [
        attention._case(name, seq, head_dim, heads, cache="warm", **how)
        for name in attention.rungs_for(head_dim)
    ]
    cases += [
        replace(case, cache="warm")  # cold, one query has a hundred thousand copies
        for case in attention.decode(seq, head_dim, heads, how.get("window"))
        if case.kind == "own" and "causal" not in how
    ]
    for case in cases:
        if study.refuses(case, capability) is None:
            (work,) = study.contestants([case])
            gate.admit(work).recheck()


@pytest.mark.parametrize("head_dim", [128, 512])
def test_attention_is_bitwise_equal_250_times(head_dim):
    import cupy
    from rooflab.ops import attention
    from rooflab.studies.attention import rungs_for

    rng, hopper = cupy.random.default_rng(4), cupy.cuda.Device().compute_capability == "90"
    shapes = ((300, 4, head_dim), (300, 2, head_dim), (300, 2, head_dim))
    q, k, v = (rng.standard_normal(shape, cupy.float32).astype(cupy.float16) for shape in shapes)
    length = cupy.asarray([300], cupy.int32)
    for name in rungs_for(head_dim):
        if name not in attention.HOPPER or hopper:
            first = attention.attention(q, k, v, rung=name)
            assert all(bool((attention.attention(q, k, v, rung=name) == first).all()) for _ in range(250))
    for rung in attention.decode_rungs(head_dim):
        one = [attention.decode_attention(q[0], k, v, length, rung=rung.name) for _ in range(250)]
        assert all(bool((each == one[0]).all()) for each in one)


@pytest.mark.parametrize("question", ["tolerance", "edges", "memory", "words", "replay"])
def test_attention_s_questions_are_answered_by_every_rung(question):
    """What the study asks beside the time, its recorded bars without the recording."""
    from rooflab.studies import attention, attention_checks

    study = attention.Attention()
    cases = [c for c in attention_checks.cases() if c.operator == question and c.kind == "own"]
    found = study.checks(cases).pivot(index="case", columns="quantity", values="value")
    found = found[found["refused"].isna()] if "refused" in found else found
    assert len(found)
    bars = {"worst_rms": 0.02, "blind not zero": 0, "NaN in k lost": 0, "NaN in v lost": 0, "other bits": 0}
    bars |= {"changed though apart": 0, **{f"error {n}": 2.0**-10 for n in attention_checks.REPLAYED}}
    for name, most in bars.items():
        if name in found:
            assert (found[name] <= most).all(), name
    if question == "memory":
        assert (found["bytes"] < found["scores bytes"]).all()


def test_refusals_reach_a_real_array():
    import cupy
    from rooflab.errors import LaunchError
    from rooflab.ops import probes, stream

    x = cupy.zeros(1028, cupy.uint32)
    with pytest.raises(LaunchError, match="x must start at a multiple of 16 bytes"):
        stream.read(x[1:1025], rung="2_vector")
    assert int(stream.read(x[1:1025], rung="1_scalar").sum()) == 0
    with pytest.raises(LaunchError, match="must be contiguous"):
        stream.read(x[::2], rung="1_scalar")
    with pytest.raises(LaunchError, match="all blocks resident"):
        probes.barrier(cupy.zeros(1, cupy.uint32), *(cupy.zeros(10**6, cupy.uint32) for _ in range(2)), 1)


def test_every_cheat_is_refused_on_the_gpu():
    from rooflab.studies import environment

    table = environment.verdicts(environment.cheats())
    assert table["refused"].all()
    assert table.set_index("case").filter(like="ten_times", axis=0)["when"].tolist() == ["after timing"]


def test_250_reads_are_bitwise_equal():
    import cupy
    from rooflab.ops import stream

    x = cupy.asarray(np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, dtype=np.uint32))
    first = stream.read(x)
    assert all(bool((stream.read(x) == first).all()) for _ in range(250))


def test_a_live_lab_measures_once_and_resumes(tmp_path, monkeypatch):
    from rooflab import lab as laboratory
    from rooflab.studies import bandwidth

    monkeypatch.setenv("ROOFLAB_STORE", str(tmp_path))
    cases = bandwidth.sweep([1 << 20], "warm")
    said: list[str] = []
    lab = laboratory.open("live", effort="quick")
    lab.say = said.append
    first = lab.measure("bandwidth", cases)
    lab.close()
    assert len(said) == 1 and first["median_us"].iloc[0] > 0
    again = laboratory.open("live", effort="quick")
    again.say = said.append
    assert again.measure("bandwidth", cases)["run"].tolist() == first["run"].tolist()
    again.close()
    assert len(said) == 1, "a fresh case was measured again"


@pytest.mark.parametrize(("n", "k", "batch"), [(1, 128, 1), (70, 256, 9), (300, 1024, 200), (257, 512, 257)])
def test_every_q8_0_product_passes_the_gate_on_ragged_shapes(n, k, batch):
    import cupy
    from rooflab.bench import gate
    from rooflab.ops import mmq, q8_0
    from rooflab.records.case import Case
    from rooflab.studies import get
    from rooflab.studies.mmq import DECODE

    own = [rung.name for rung in mmq.LADDERS["mmq"]]
    own += [
        DECODE + name for name, (w, x, most, _) in q8_0.TAKES.items() if w == x == "planes" and batch <= most
    ]
    cases = [Case("mmq", "mmq", impl, format="q8_0", n=n, k=k, batch=batch, cache="warm") for impl in own]
    capability = int(cupy.cuda.Device().compute_capability)
    cases = [case for case in cases if get("mmq").refuses(case, capability) is None]
    for work in get("mmq").contestants(cases):
        gate.admit(work).recheck()


@pytest.mark.parametrize(
    ("n", "k", "batch"), [(70, 256, 9), (257, 640, 65), (200, 1152, 150), (300, 1024, 200)]
)
def test_integer_dot_products_are_exact_to_the_last_bit(n, k, batch):
    """Scales that are powers of two and sums below 2^24: each output is the exact product, rounded once."""
    import cupy
    from rooflab.numerics import quant
    from rooflab.ops import mmq, q8_0
    from rooflab.studies.q8_0_operands import blocks_of

    rng = cupy.random.default_rng(n)

    def planes(rows, scale):
        quants = rng.integers(-128, 128, (rows, k), dtype=cupy.int8)
        return quant.Planes(cupy.full((rows, k // 32), scale, cupy.float16), quants)

    w, x = planes(n, 2.0**-4), planes(batch, 2.0**-5)
    exact = (x.quants.astype("float64") @ w.quants.astype("float64").T) * 2.0**-9
    hopper = cupy.cuda.Device().compute_capability == "90"
    for rung in mmq.LADDERS["mmq"]:
        if rung.name not in mmq.HALVES and (rung.archs != ("90a",) or hopper):
            given = blocks_of(w) if int(rung.name[0]) <= 3 else w
            assert bool((mmq.product(x, given, rung=rung.name) == exact.astype("float16")).all()), rung.name
    if hopper and 0 < batch % 128 <= 64:
        last = mmq.product(x, w, rung="6_wgmma", NARROW=1)
        assert bool((last == exact.astype("float16")).all())
    if batch <= 32:
        assert bool((q8_0.matvec(x, w, rung="6_mma") == exact.astype("float16")).all())


def test_every_tile_of_mmqs_halves_passes_the_gate():
    import cupy
    from rooflab.ops import mmq, q8_0, stream_k
    from rooflab.studies import products
    from rooflab.studies.q8_0_operands import widened

    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("wgmma needs compute capability 9.0")
    w, x = q8_0.quantise(products.weights(200, 640)), products.activations(300, 640)
    w32, x32 = widened(w), x.astype("float32")
    expected = products.oracle(w32, x32)
    allowed = products.budget(w32, x32, expected, "float16")
    for tokens in mmq.WIDTHS:
        got = mmq.product(x, w, rung="7_fp16_wgmma", TOKENS=tokens, STAGES=4)
        assert float(abs(got.astype("float64") - expected).max()) <= allowed, tokens
    for name in mmq.STAYING:
        given = q8_0.repack(w) if mmq.order_of(name) == "tiles" else w
        for law in stream_k.laws(f"mmq/{name}"):
            tile = {"ROW_TILES": law.tall, "TOKENS": law.tokens, "STAGES": 3}
            tiles = stream_k.tiles_of(200, 300, law.tall, law.tokens)
            dealt = [(tiles, 0, 0), (1, 0, 0), (tiles + 1, tiles + 1, 0), (2, 2, 0)]
            dealt += [
                (tiles * parts, 0, parts) for parts in (2, 5) if stream_k.FORMATS[f"mmq/{name}"].exchange
            ]
            for blocks, sharers, parts in dealt:
                if sharers and not (law.shares and tiles % blocks and sharers <= tiles % blocks * 5):
                    continue
                how = {"BLOCKS": blocks, "SHARERS": sharers, **({"PARTS": parts} if parts else {})}
                got = mmq.product(x, given, rung=name, **tile, **how)
                off = float(abs(got.astype("float64") - expected).max())
                assert off <= allowed, (name, law, how)
    for cluster in (1, 2, 3, 4):
        given = q8_0.repack(w)
        got = mmq.product(x, given, rung="10_k_groups", TOKENS=80, STAGES=5, CLUSTER=cluster)
        assert float(abs(got.astype("float64") - expected).max()) <= allowed, cluster


@pytest.mark.parametrize(
    ("n", "k", "batch"), [(1, 128, 1), (70, 256, 2), (300, 1152, 9), (257, 512, 64), (300, 1280, 150)]
)
def test_every_int4_rung_passes_the_gate_on_ragged_shapes(n, k, batch):
    import cupy
    from rooflab.bench import gate
    from rooflab.ops import int4, int4_choice, stream_k
    from rooflab.records.case import Case, options
    from rooflab.studies import get

    macros = {
        **{rung.name: {"tokens": min(16 * -(-batch // 16), 64)} for rung in int4.TILED[-5:-2]},
        "12_token_tiles": {m.lower(): v for m, v in int4_choice.tiles_for(n, k, batch).items()},
        "13_stream_k": {
            m.lower(): v for m, v in stream_k.options_for("int4/13_stream_k", n, k, batch).items()
        },
    }
    cases = [
        Case("int4", "int4", rung.name, n=n, k=k, batch=batch, cache="warm", options=options(**more))
        for rung in int4.LADDERS["int4"]
        for more in [macros.get(rung.name, {})]
        if rung not in int4.TILED
        or rung.name in int4.ANY_BATCH
        or batch <= rung.with_defaults({m.upper(): v for m, v in more.items()})["TOKENS"]
    ]
    if batch == 9:  # the blocks of a cluster divide k, unevenly
        split = options(cluster=2, k_groups=2, tall=2, tokens=16)
        cases.append(Case("int4", "int4", "10_wgmma", n=n, k=k, batch=batch, cache="warm", options=split))
        for how in (
            {"units": 3, "row_groups": 2, "k_groups": 2, "tokens": 16},
            {"units": 7, "row_groups": 4, "k_groups": 1, "tokens": 48},
        ):
            dealt = options(cluster=2, **how)
            cases.append(Case("int4", "int4", "11_tma", n=n, k=k, batch=batch, cache="warm", options=dealt))
        widths = ({"tall": tall, "tokens": tokens} for tall, tokens in int4_choice._GROUP_US)
        cases += [
            Case(
                "int4", "int4", "12_token_tiles", n=n, k=k, batch=batch, cache="warm", options=options(**how)
            )
            for width in widths
            for how in ({**width, "stages": 2}, {**width, "cluster": 4, "stages": 3})
        ]
    capability = int(cupy.cuda.Device().compute_capability)
    cases = [case for case in cases if get("int4").refuses(case, capability) is None]
    for work in get("int4").contestants(cases):
        gate.admit(work).recheck()


@pytest.mark.parametrize(
    ("n", "k", "seed"), [(256, 1536, 0), (1536, 1536, 1), (1536, 8960, 2), (8960, 1536, 3)]
)
def test_the_sources_four_projections_agree_with_its_oracle(n, k, seed):
    """decode-roofline's correctness test: its shapes, seeds and tolerance, for every rung at batch 1."""
    import cupy
    from rooflab.numerics import quant
    from rooflab.ops import int4, stream_k

    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
    x = rng.standard_normal((1, k)).astype(np.float16)
    packed = quant.quantise_int4(w)
    expected = (x.astype(np.float32) @ quant.dequantise_int4(packed).T).astype(np.float16)
    rows = int4.Rows(*map(cupy.asarray, packed))
    tiles = int4.repack(*rows)
    for rung in int4.LADDERS["int4"]:
        if rung.archs != ("90a",) or cupy.cuda.Device().compute_capability == "90":
            how = stream_k.options_for("int4/13_stream_k", n, k, 1) if rung.name == "13_stream_k" else {}
            given = tiles if rung in int4.TILED else rows
            got = int4.matmul(cupy.asarray(x), given, rung=rung.name, **how)
            assert np.allclose(got.get(), expected, rtol=2e-3, atol=2e-3), rung.name


def test_a_capture_that_allocates_fails_and_one_with_room_made_before_leaves_the_same_bits():
    import cupy
    from rooflab.ops import q8_0
    from rooflab.studies import products

    x, w = products.activations(1, 4096), q8_0.quantise(products.weights(512, 4096))
    eager, room = q8_0.matvec(q8_0.quantise(x), w), q8_0.quantise(x)
    out, stream = cupy.empty_like(eager), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()

    def captured(launch):
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            try:
                launch()
            finally:
                graph = stream.end_capture()
            graph.launch(stream)
        stream.synchronize()

    cupy.cuda.set_allocator(None)  # cudaMalloc itself, as a scratch buffer that grows on demand would call it
    try:
        with pytest.raises(Exception, match="(?i)captur"):
            captured(lambda: q8_0.matvec(q8_0.quantise(x), w, out=out))
    finally:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    captured(lambda: q8_0.matvec(q8_0.quantise(x, out=room), w, out=out))
    assert bool((out.view("uint16") == eager.view("uint16")).all())


def test_an_int4_engine_takes_a_prompt_by_a_graph_as_it_does_without():
    """Stream-K keeps a workspace for each stream, which exists before a graph is captured on it."""
    from rooflab import engine

    spec = engine.spec("qwen2.5-0.5b")
    one = engine.Engine(spec, engine.random_weights(spec, "int4_g128", capacity=160), capacity=160)
    found = []
    for _ in range(3):  # without, captured, and by the graph
        one.reset()
        one.prefill([7 * i % 1000 for i in range(128)])
        found.append(one.state.logits.cpu().numpy())
    assert one.ran["prompt graph"] == 2 and (found[0] == found[1]).all() and (found[0] == found[2]).all()


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer beside a GPU")
@pytest.mark.parametrize(
    "rungs",
    ["stream", "gemv", "q8_0", "int4", "attention", "trials", "prompt", "drafts", "decode_step"],
)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_sanitizers_find_nothing_in_any_rung(tool, rungs):
    done = sanitize(tool, rungs)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "0 errors" in done.stdout or "0 hazards" in done.stdout


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer beside a GPU")
@pytest.mark.parametrize(
    ("tool", "fault"), [("memcheck", "overrun"), ("racecheck", "race"), ("synccheck", "divergent_barrier")]
)
def test_the_sanitizers_find_a_planted_fault(tool, fault):
    assert sanitize(tool, fault).returncode == 77


@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer beside a GPU")
def test_faulty_kernels_are_seen_by_the_instruments_that_can():
    from rooflab.profile import sanitizer
    from rooflab.studies import faults

    assert sanitizer.run("memcheck", "fixed_tile", *faults.UNFRIENDLY["fixed_tile"]).reports > 0
    assert sanitizer.run("synccheck", "half_barrier", *faults.UNFRIENDLY["half_barrier"]).reports > 0
    found = sanitizer.run("synccheck", "early_exit", *faults.UNFRIENDLY["early_exit"])
    assert (found.reports, found.first_right) == (0, False)  # silent, and wrong
    assert sanitizer.run("none", "not_zeroed", *faults.UNFRIENDLY["not_zeroed"])[2:] == (True, False)


def sanitize(tool, what):
    # cuda-bindings asks the driver for functions that an older driver lacks: refused calls, not our errors.
    options = ["--tool", tool, "--error-exitcode", "77"]
    options += ["--report-api-errors", "no"] if tool == "memcheck" else []
    command = [SANITIZER, *options, sys.executable, str(CHILD), what]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(not shutil.which("ncu"), reason="needs an NVIDIA GPU and ncu")
def test_this_gpu_has_every_counter_that_lessons_name():
    """The names that replace nvprof's and those of lesson 02, looked up by ncu --query-metrics."""
    from rooflab.profile import ncu
    from rooflab.studies import attribution

    assert ncu.unknown([*attribution.METRICS, *ncu.NVPROF.values()]) == []


@pytest.mark.parametrize("operator", ["decode", "prefill"])
def test_a_model_through_transformers_passes_the_gate(operator):
    pytest.importorskip("transformers", reason="needs the GPU set")
    from rooflab.bench import gate
    from rooflab.studies import attribution, get

    made = {"decode": attribution.decode, "prefill": attribution.prefill}[operator]([128])
    for work in get("attribution").contestants([case for case in made if "compile" not in case.impl]):
        assert gate.admit(work).error <= work.budget


@pytest.mark.parametrize("batch", [8, 200])
def test_a_kept_product_by_stream_k_takes_the_workspace_of_its_own_stream(batch):
    """Two streams at once: each has sums of its own, and the second call of either is a kept one."""
    import cupy
    from rooflab.numerics import quant
    from rooflab.ops import int4
    from rooflab.studies import products

    torch = pytest.importorskip("torch")
    n, k = 1152, 8192
    w = products.weights(n, k).get().astype("float32")
    tiles = int4.repack(*map(cupy.asarray, quant.quantise_int4(w)))
    tiles = tiles._replace(blocks=torch.from_dlpack(tiles.blocks.view("int32")))
    xs = [torch.from_dlpack(products.activations(batch, k, seed=seed)) for seed in (1, 2)]
    expected = [int4.matmul(x, tiles, rung="13_stream_k").clone() for x in xs]
    ys = [[torch.empty_like(e) for _ in range(50)] for e in expected]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in xs]
    for i in range(50):
        for stream, x, y in zip(streams, xs, ys, strict=True):
            with torch.cuda.stream(stream):
                int4.matmul(x, tiles, out=y[i], rung="13_stream_k")
    torch.cuda.synchronize()
    assert all(torch.equal(y, e) for several, e in zip(ys, expected, strict=True) for y in several)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_kept_call_launches_on_the_current_stream_is_captured_and_refuses_what_was_refused(library):
    import cupy
    from rooflab.errors import LaunchError
    from rooflab.numerics import quant
    from rooflab.ops import int4
    from rooflab.studies import products

    torch = pytest.importorskip("torch")
    n, k, batch = 300, 1152, 8
    w = products.weights(n, k).get().astype("float32")
    tiles = int4.repack(*map(cupy.asarray, quant.quantise_int4(w)))
    xs = [products.activations(batch, k, seed=seed) for seed in (1, 2)]
    ys = [cupy.zeros((batch, n), "float16") for _ in xs]
    if library == "torch":
        xs, ys = ([torch.from_dlpack(a) for a in arrays] for arrays in (xs, ys))
        tiles = tiles._replace(blocks=torch.from_dlpack(tiles.blocks.view("int32")))
    expected = []
    for x in xs:  # the first call is checked, the second is kept
        got = cupy.asarray(int4.matmul(x, tiles))
        exact = products.oracle(cupy.asarray(quant.dequantise_int4(quant.quantise_int4(w))), cupy.asarray(x))
        assert float(abs(got - exact).max()) < 0.01 * float(abs(exact).max())
        expected.append(got)
    torch.zeros(1, device="cuda")
    side = torch.cuda.Stream()
    for _ in range(2):
        with torch.cuda.stream(side):
            for x, y in zip(xs, ys, strict=True):
                int4.matmul(x, tiles, out=y)
        side.synchronize()
        assert all(bool((cupy.asarray(y) == e).all()) for y, e in zip(ys, expected, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x, y in zip(xs, ys, strict=True):
            int4.matmul(x, tiles, out=y)
    for y in ys:
        cupy.asarray(y)[...] = 0
    graph.replay()
    torch.cuda.synchronize()
    assert all(bool((cupy.asarray(y) == e).all()) for y, e in zip(ys, expected, strict=True))
    flat = xs[0].reshape(-1)
    for wrong, says in (
        (xs[0][:, :128], "contiguous|must hold"),
        (xs[0][:, ::2], "contiguous|must hold"),
        (flat[1 : 1 + (batch - 1) * k].reshape(batch - 1, k), "multiple of 16 bytes|out must hold"),
        (xs[0].float() if library == "torch" else xs[0].astype("float32"), "must hold float16"),
        (xs[0].cpu() if library == "torch" else xs[0].get(), "host memory|CuPy array"),
    ):
        with pytest.raises(LaunchError, match=says):
            int4.matmul(wrong, tiles, out=ys[0])
