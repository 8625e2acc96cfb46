"""The two tracers' readers: Nsight Systems' SQLite and torch.profiler's Chrome trace give the same table."""

import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from fake_tool import fake_tool
from rooflab.errors import GateError, MissingTool, UsageError
from rooflab.profile import cupti, nsys, trace

KINETO = (Path(__file__).parents[1] / "data" / "kineto" / "trace.json").read_text()

TID = (9 << 24 | 77) << 0  # process 9, thread 77, as nsys packs them
STRINGS = {
    1: "void gemv<(int)8>(const __half *, float *)",
    2: "gemv",
    3: "cudaLaunchKernel_v7000",
    4: "cudaGraphLaunch_v10000",
    5: "cudaMemcpyAsync_v3020",
    6: "layer 0",
    7: "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
}
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
"""
NVTX = """
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
    color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
MEMCPY = """
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
"""


@pytest.fixture
def export(tmp_path):
    """Writes an export: one eager kernel, a graph of two nodes, one copy, in nested ranges of one thread."""

    def write(kernels=True, nvtx=True, memcpy=True, diagnostic=None, name="trace.sqlite"):
        path = tmp_path / name
        database = sqlite3.connect(path)
        database.executescript(SCHEMA)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
        calls = [(100, 110, 31, 3), (200, 220, 32, 4), (300, 307, 33, 5), (400, 410, 34, 3)]
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
            [(start, end, TID, correlation, name) for start, end, correlation, name in calls],
        )
        if kernels:
            database.executemany(
                f"INSERT INTO {KERNEL} VALUES (?, ?, 0, 1, 7, ?, ?, ?, 2, ?, 2, 1, 128, 1, 1, ?)",
                [
                    (1500, 1540, 32, 9 << 24, 7, 16, (5 << 32) | 2),  # out of order, as in real exports
                    (1000, 1250, 31, 9 << 24, 1, 1024, None),
                    (1300, 1500, 32, 9 << 24, 1, 1024, (5 << 32) | 1),
                    (2000, 2010, 34, 9 << 24, 1, 8, None),
                ],
            )
        if nvtx:
            database.executescript(NVTX)
            other = 9 << 24 | 78
            database.executemany(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, NULL, NULL, ?, ?, NULL, ?, ?)",
                [
                    (50, None, 59, "token 0", TID, None, 0),  # never closed
                    (90, 150, 59, None, TID, 6, 0),  # text by reference
                    (90, 500, 59, "elsewhere", other, None, 0),
                    (95, 500, 60, "not a push/pop range", TID, None, 0),
                    (95, 500, 59, "a library's", TID, None, 3),
                ],
            )
        if memcpy:
            database.executescript(MEMCPY)
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1600, 1700, 0, 7, 33, ?, 4096, 1)", (9 << 24,)
            )
        if diagnostic:
            database.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)")
            database.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 3, ?)", (diagnostic,))
        database.commit()
        database.close()
        return path

    return write


EXPECTED = {
    "kind": ["kernel", "kernel", "kernel", "memcpy", "kernel"],
    "short": ["gemv", "gemv", "reduce_kernel", "memcpy HtoD", "gemv"],
    "start_ns": [0, 300, 500, 600, 1000],
    "duration_ns": [250, 200, 40, 100, 10],
    "grid": ["1024x2x1", "1024x2x1", "16x2x1", "", "8x2x1"],
    "block": ["128x1x1", "128x1x1", "128x1x1", "", "128x1x1"],
    "stream": [7] * 5,
    "node": [0, (5 << 32) | 1, (5 << 32) | 2, 0, 0],
    "correlation": [31, 32, 32, 33, 34],
    "bytes": [0, 0, 0, 4096, 0],
    "range": ["token 0 > layer 0", "token 0", "token 0", "token 0", "token 0"],
}


def test_nsys_reads_kernels_copies_graph_nodes_and_ranges(export):
    result = nsys.read(export())
    assert list(result.activities) == list(trace.COLUMNS)
    for column, values in EXPECTED.items():
        assert result.activities[column].tolist() == values, column
    assert result.activities["name"][0] == STRINGS[1]
    assert result.calls.values.tolist() == [
        ["cudaGraphLaunch", 1, 20, 20.0],
        ["cudaLaunchKernel", 2, 20, 10.0],
        ["cudaMemcpyAsync", 1, 7, 7.0],
    ]


def test_cupti_gives_the_same_table():
    result = cupti.parse(KINETO)
    assert list(result.activities) == list(trace.COLUMNS)
    for column, values in EXPECTED.items():
        assert result.activities[column].tolist() == values, column
    assert result.calls["call"].tolist() == ["cudaGraphLaunch", "cudaLaunchKernel", "cudaMemcpyAsync"]
    assert result.calls["total_ns"].tolist() == [20, 20, 7]


def test_both_tables_have_the_same_types(export):
    one, other = nsys.read(export()), cupti.parse(KINETO)
    assert one.activities.dtypes.to_dict() == other.activities.dtypes.to_dict()
    assert one.calls.dtypes.to_dict() == other.calls.dtypes.to_dict()


def test_nsys_tables_that_never_came_to_be_are_empty(export):
    activities = nsys.read(export(nvtx=False, memcpy=False)).activities
    assert activities["kind"].unique().tolist() == ["kernel"]
    assert set(activities["range"]) == {""}


@pytest.mark.parametrize(
    ("diagnostic", "error", "sentence"),
    [
        (None, UsageError, r"trace.sqlite holds no kernel.*left no remark"),
        (
            "Not all CUDA events might have been collected.",
            UsageError,
            "holds no kernel.*Not all CUDA events",
        ),
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: see ERR_NVGPUCTRPERM.", MissingTool, "CAP_SYS_ADMIN"),
        ("Permission denied opening the device.", MissingTool, "not permitted to trace.*Permission denied"),
    ],
)
def test_nsys_without_kernels_says_why(export, diagnostic, error, sentence):
    with pytest.raises(error, match=sentence):
        nsys.read(export(kernels=False, diagnostic=diagnostic))


def test_nsys_exports_that_are_no_whole_databases(export, tmp_path):
    whole = export().read_bytes()
    broken = tmp_path / "broken.sqlite"
    for size in (len(whole) - 1, len(whole) // 2, 4096, 120):
        broken.write_bytes(whole[:size])
        with pytest.raises(
            UsageError, match=f"broken.sqlite is cut off: it has {size} of {len(whole)} bytes"
        ):
            nsys.read(broken)
    broken.write_bytes(whole[:50])
    with pytest.raises(UsageError, match="not a whole SQLite export"):
        nsys.read(broken)
    broken.write_text("this is a text\n" * 20)
    with pytest.raises(UsageError, match="not a whole SQLite export.*not a database"):
        nsys.read(broken)
    broken.write_bytes(b"")
    with pytest.raises(UsageError, match="holds no kernel"):
        nsys.read(broken)
    with pytest.raises(UsageError, match="no export"):
        nsys.read(tmp_path / "absent.sqlite")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (KINETO[: len(KINETO) // 2], "cut off or not JSON"),
        ("", "cut off or not JSON"),
        ("{}", "no list traceEvents"),
        ('{"traceEvents": []}', "holds no kernel"),
        (KINETO.replace('"kernel"', '"cpu_op"'), "holds no kernel"),
        (KINETO.replace('"grid"', '"raster"'), "it lacks 'grid'"),
    ],
)
def test_broken_chrome_traces_are_named_in_a_sentence(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        cupti.parse(text)


def test_times_since_the_epoch_stay_exact_to_the_nanosecond():
    moved = json.loads(KINETO, parse_float=str)
    for event in moved["traceEvents"]:
        if event["ph"] == "X":
            event["ts"] = f"@{1763683200000000 + int(event['ts'].split('.')[0])}.{event['ts'].split('.')[1]}@"
            event["dur"] = f"@{event['dur']}@"
    text = json.dumps(moved).replace('"@', "").replace('@"', "")
    assert "1763683200000001.000" in text
    assert cupti.parse(text).activities["start_ns"].tolist() == EXPECTED["start_ns"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void gemv<(int)8>(const __half *, float *)", "gemv"),
        ("read_vector(const uint4 *, unsigned int *, unsigned long)", "read_vector"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT"),
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::Op<float> >(T1 *, int)",
            "CatArrayBatchedCopy",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, "
            "std::array<char *, 3ul>>(int, T2, T3)",
            "vectorized_elementwise_kernel",
        ),
        ("void (anonymous namespace)::softmax<4>(float*)", "softmax"),
        ("triton_poi_fused_mul_silu_0", "triton_poi_fused_mul_silu_0"),
        ("memcpy DtoD", "memcpy DtoD"),
    ],
)
def test_short_names(name, short):
    assert trace.short_name(name) == short


def test_ranges_of_a_call_are_those_open_on_its_own_thread():
    ranges = [("a", 0, 10, "outer"), ("a", 2, 4, "inner"), ("a", 5, None, "late"), ("b", 0, 10, "other")]
    calls = [("a", 11), ("a", 3), ("b", 3), ("a", 4), ("c", 3), ("a", 6)]
    assert trace.range_paths(calls, ranges) == [
        *("late", "outer > inner", "other", "outer", "", "outer > late"),
    ]
    same_start = [("a", 0, 3, "inner"), ("a", 0, 9, "outer")]
    assert trace.range_paths([("a", 1)], same_start) == ["outer > inner"]


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """Installs an nsys whose export is `database`; it refuses options that a wrapper around nsys may set."""

    def install(database=None, stderr="", code=0):
        fake_tool(
            tmp_path / "nsys",
            "import pathlib, shutil, sys\nargs = sys.argv[1:]\n"
            "assert not any(a.startswith(('--sample', '--cpuctxsw', '--force-overwrite')) for a in args)\n"
            "out = pathlib.Path(next(a for a in args if a.startswith('--output=')).split('=', 1)[1])\n"
            f"database = {str(database) if database else None!r}\n"
            "if args[0] == 'export':\n    shutil.copy(database, out)\n"
            "else:\n"
            "    assert '--cuda-graph-trace=node' in args and '--whole' in args\n"
            "    if database:\n        out.with_suffix('.nsys-rep').touch()\n"
            f"    sys.stderr.write({stderr!r})\n    sys.exit({code})\n",
        )
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_nsys_run_profiles_exports_and_reads(fake_nsys, export):
    fake_nsys(export(name="made.sqlite"))
    result = nsys.run("decode", ["token 0"], repeat=2)
    assert result.activities["case"].tolist() == ["token 0"] * 5
    assert list(result.activities)[1:] == list(trace.COLUMNS)


def test_nsys_run_reports_a_failed_gate_and_a_missing_report(fake_nsys):
    fake_nsys(stderr="rooflab.profile.child: gate: rope: 1 of 9 outputs are wrong.\n", code=3)
    with pytest.raises(GateError, match="^rope: 1 of 9"):
        nsys.run("decode", ["token 0"])
    fake_nsys(stderr="Unrecognized option\n", code=1)
    with pytest.raises(MissingTool, match=r"wrote no report \(exit code 1\): Unrecognized option"):
        nsys.run("decode", ["token 0"])


def test_cupti_run_reads_what_its_child_wrote(monkeypatch, tmp_path):
    def child(study, cases, *options):
        path = options[options.index("--trace") + 1]
        program = (
            f"import pathlib; pathlib.Path({path!r}).write_text(pathlib.Path({str(source)!r}).read_text())"
        )
        return [sys.executable, "-c", program]

    source = tmp_path / "trace.json"
    source.write_text(KINETO)
    monkeypatch.setattr(cupti, "child_command", child)
    assert cupti.run("decode", ["token 0"]).activities["case"].tolist() == ["token 0"] * 5
    denied = "import sys; print('CUPTI_ERROR_INSUFFICIENT_PRIVILEGES', file=sys.stderr)"
    monkeypatch.setattr(cupti, "child_command", lambda *a: [sys.executable, "-c", denied])
    with pytest.raises(MissingTool, match="CAP_SYS_ADMIN"):
        cupti.run("decode", ["token 0"])
    monkeypatch.setattr(cupti, "child_command", lambda *a: [sys.executable, "-c", "raise SystemExit(5)"])
    with pytest.raises(MissingTool, match="exit code 5"):
        cupti.run("decode", ["token 0"])
