"""Watching kernels on the CPU: each planted fault is found and named, no rung raises an alarm, and the memory
traffic it counts is what ncu counted on the H200.
"""

import ctypes
import subprocess

import needs
import numpy as np
import pandas as pd
import pytest
from rooflab import simt
from rooflab.errors import LaunchError
from rooflab.ops import probes, stream
from rooflab.paths import DATA, ROOT
from rooflab.simt import build

needs.compiler()

SOURCE = (ROOT / "tests" / "simt_kernels" / "faults.cu").read_text()
u64, u32, f32, i32 = ctypes.c_ulonglong, ctypes.c_uint, ctypes.c_float, ctypes.c_int
RUNGS = [rung for ladder in stream.LADDERS.values() for rung in ladder]


def planted(entry, block=64, n=0, size=64, dtype=np.float32, **options):
    """What watching the fault kernel `entry` finds."""
    x, y = (np.ones(size, dtype) for _ in range(2))
    y[:] = 0
    options = {"grid": 1, **options}
    return simt.watch(SOURCE, options.pop("grid"), block, [x, y, i32(n)], entry=entry, **options).faults


def line_of(entry):
    lines = SOURCE.splitlines()
    return f"kernel.cu:{next(k for k, line in enumerate(lines, 1) if f'// FAULT {entry}' in line)}"


# entry, launch, and of one fault that must be among those found: kind, a thread, address, in its sentence
PLANTED = [
    (
        "overrun",
        {"block": 96, "n": 64},
        "out of bounds",
        64,
        "y + 256",
        "writes 4 bytes at y .* right behind",
    ),
    ("underrun", {}, "out of bounds", 0, "x + -4", "reads 4 bytes at x .* 4 bytes before its start"),
    ("far_away", {}, "out of bounds", 7, "address 0x", "reads 4 bytes at address 0x.* in no buffer"),
    ("vector_overrun", {"n": 64}, "out of bounds", 16, "x + 256", r"reads 16 bytes .* \(256 bytes\)"),
    ("shared_overrun", {"block": 32, "n": 3}, "out of bounds", 29, "tile + 128", "writes 4 bytes at tile"),
    ("dynamic_overrun", {"shared": 192}, "out of bounds", 48, "dynamic shared memory + 192", "192 bytes"),
    ("dynamic_overrun", {}, "out of bounds", 0, "dynamic", "the launch gave 0 bytes: pass shared="),
    ("misaligned", {"block": 32}, "misaligned", 1, "x + 4", "reads 8 bytes at x .* no multiple of 8"),
    ("shared_race", {}, "race", 1, "s + 0", "reads s .* thread 0 of the same block wrote .*kernel.cu"),
    ("write_after_read", {}, "race", 33, "s + 132", "writes s .* thread 32 of the same block read"),
    ("warp_race", {"block": 32}, "race", 1, "s + 0", "no barrier between them"),
    ("global_race", {"grid": 2}, "race", 0, "y + 0", r"thread 0 of block \(0, 0, 0\) wrote"),
    ("lost_update", {}, "race", 1, "y + 0", "reads y .* which thread 0 of the same block wrote"),
    ("byte_race", {"dtype": np.uint8}, "race", 1, "y + 0", "writes y"),
    ("early_arrival", {}, "race", 1, "count + 0", "which thread 0 of the same block wrote"),
    ("uninitialised", {}, "uninitialised", 48, "s + 192", "reads s .* this block has not written"),
    (
        "some_do_not_come",
        {},
        "divergent barrier",
        0,
        "",
        "0-39 wait at __syncthreads; threads 40-63 have ended",
    ),
    ("two_barriers", {}, "divergent barrier", 63, "", "threads 32-63 wait here while thread 0 waits at"),
    (
        "half_a_warp",
        {},
        "divergent warp",
        0,
        "",
        "0-15 wait at __shfl_xor_sync with mask 0xffffffff; threads 16-63",
    ),
    ("not_in_the_mask", {}, "divergent warp", 16, "", "mask 0x0000ffff, which does not name it"),
    ("inactive_lane", {}, "inactive lane", 8, "", "lane 8 reads lane 16, which its mask does not name"),
    ("lane_has_ended", {}, "inactive lane", 0, "", "lane 0 reads lane 25, which has ended"),
    ("waits_for_ever", {}, "endless wait", 0, "", "threads 0-63 wait in a loop"),
    ("trapped", {}, "trap", 9, "", "__trap was called"),
]


@pytest.mark.parametrize(
    ("entry", "launch", "kind", "thread", "address", "says"), PLANTED, ids=[row[0] for row in PLANTED]
)
def test_a_planted_fault_is_found_and_named(entry, launch, kind, thread, address, says):
    faults = planted(entry, **launch)
    found = [f for f in faults if f.kind == kind and thread in f.threads and f.address.startswith(address)]
    assert found, [str(fault) for fault in faults]
    fault = found[0]
    assert fault.kernel == entry and fault.line == line_of(entry)
    assert fault.block == ((1, 0, 0) if entry == "global_race" else (0, 0, 0))
    assert pd.Series(str(fault)).str.contains(says).all(), str(fault)
    assert str(fault).startswith(f"{kind}: {entry}, {fault.line}, block ")
    assert repr([fault]) == f"[{fault}]"
    known = fault.address and "0x" not in fault.address
    assert not known or f"{fault.address} bytes" in str(fault) or "gave 0 bytes" in str(fault)


def test_a_shuffle_in_a_short_warp_names_the_header_it_stands_in():
    (fault,) = planted("no_such_lane", block=40)
    assert fault.kind == "inactive lane" and fault.line.startswith("common/reduce.cuh:")
    assert "which the block does not have" in str(fault)


def test_a_stack_that_overflows_is_named():
    assert planted("too_deep")[0].kind == "stack overflow"


def test_a_variable_of_a_thread_that_nobody_set_is_no_number():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    for chosen in (2, 3):
        simt.run(SOURCE, 1, 64, [x, y, i32(chosen)], entry="never_set")
        assert np.isnan(y).all() if chosen == 3 else (y == 1).all()


def test_the_plain_build_names_what_it_sees_too():
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(simt.KernelFault, match="threads 40-63 have ended") as caught:
        simt.run(SOURCE, 1, 64, [x, y, i32(0)], entry="some_do_not_come")
    assert caught.value.faults[0].line == line_of("some_do_not_come")


def test_what_is_in_order_raises_no_alarm():
    x = np.arange(256, dtype=np.float32)
    y, partial, ticket = np.zeros(1, np.float32), np.zeros(4, np.float32), np.zeros(1, np.uint32)
    seen = simt.watch(SOURCE, 4, 64, [x, y, partial, ticket], entry="last_block_adds")
    assert seen.faults == [] and y[0] == x.sum() and ticket[0] == 0
    y, data = np.zeros(64, np.float32), np.zeros(64, np.uint8)
    seen = simt.watch(SOURCE, 1, 64, [x[:64], y, data], entry="in_order")
    assert seen.faults == [] and (y == (63 - np.arange(64)) ^ 1).all() and (data == np.arange(64)).all()


def watched(rung, n, options=None):
    """A streaming rung, watched over n elements, with what it should have written."""
    macros = rung.with_defaults(options or {})
    blocks = stream.blocks_of(rung, n, macros, None if rung.grid == "cover" else 2)
    x = np.arange(n, dtype=np.uint32)
    b, c = (np.random.default_rng(k).standard_normal(n).astype(np.float32) for k in (1, 2))
    out = np.zeros(n, np.float32 if rung.operator in ("triad", "saxpy") else np.uint32)
    partial = np.zeros(blocks, np.uint32)
    arguments, result, expected = {
        "read": ([x, partial], partial, None),
        "copy": ([x, out], out, x),
        "write": ([out, u32(5)], out, x ^ np.uint32(5)),
        "triad": ([b, c, out, f32(2)], out, b + 2 * c),
        "saxpy": ([b, c, out, f32(2)], out, 2 * b + c),
    }[rung.operator]
    seen = simt.watch(rung, blocks, macros["THREADS"], [*arguments, u64(n)], options)
    if rung.operator == "read":
        assert int(partial.sum(dtype=np.uint64)) % 2**32 == int(x.sum(dtype=np.uint64)) % 2**32
    else:
        assert (result == expected).all()
    return seen


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: f"{rung.operator}/{rung.name}")
def test_no_rung_raises_an_alarm_on_ragged_shapes(rung):
    for n in (4, 1020, 8 * 256 * 4 + 36, *((1, 1021) if rung.words == 1 else ())):
        assert watched(rung, n).faults == []


def test_no_probe_raises_an_alarm():
    out = np.zeros(1, np.uint32)
    for dependent in (0, 1):
        seen = simt.watch(probes.TOUCH, 1, 32, [out, u32(7)], {"DEPENDENT": dependent})
        assert seen.faults == [] and out[0] == 7
    links = np.zeros((64, 32), np.uint32)
    links[:, 0] = np.roll(np.arange(64), -1)
    assert simt.watch(probes.CHASE, 1, 1, [links.reshape(-1), out, u32(5), u32(100)]).faults == []
    counter, mail, seen_mail = (np.zeros(k, np.uint32) for k in (1, 12, 12))
    arguments = [counter, mail, seen_mail, u32(5)]
    seen = simt.watch(probes.BARRIER, 12, 64, arguments, {"THREADS": 64}, cooperative=True)
    assert seen.faults == [] and (seen_mail == 5).all()


# --- how memory is used -------------------------------------------------------------------------------------


def recorded():
    return [row for _, row in pd.read_csv(DATA / "h200" / "profiles" / "bandwidth_ncu.csv").iterrows()]


@pytest.mark.parametrize("row", recorded(), ids=lambda row: row["kernel"])
def test_sectors_per_request_are_what_ncu_counted(row):
    operator, name = row["case"].split(" ")[0].split("/")
    rung = stream.rung_of(stream.LADDERS[operator], name, name)
    lines = watched(rung, 4 * 8192).lines()  # whole tiles, as the recorded length has
    for access, column in (("load", "load_sectors_per_request"), ("store", "store_sectors_per_request")):
        ours = lines[(lines["space"] == "global") & (lines["access"] == access)]
        if pd.isna(row[column]):
            assert ours.empty
            continue
        sectors = (ours["sectors_per_request"] * ours["requests"]).sum() / ours["requests"].sum()
        assert sectors == row[column]


PATTERNS = """
extern "C" __global__ void patterns(const float* x, float* y, int stride) {
  __shared__ float s[32 * 33];
  const int t = threadIdx.x;
  const float strided = x[t * stride];
  const float same = x[0];
  s[t * stride] = strided;
  __syncwarp();
  const float broadcast = s[0];
  __syncwarp();
  if (t % 4 == 0) y[t] = strided + same + broadcast;
  const float4 wide = *reinterpret_cast<const float4*>(x + 4 * t);
  *reinterpret_cast<float4*>(s + 4 * t) = wide;
  for (int k = 0; k < 3; ++k) y[32 * k + t] = wide.x;
}
"""


def patterns(stride, source=PATTERNS):
    x, y = np.zeros(32 * 32, np.float32), np.zeros(96, np.float32)
    seen = simt.watch(source, 1, 32, [x, y, i32(stride)])
    assert seen.faults == []
    table = seen.lines()
    table["line"] = table["line"].str.removeprefix("kernel.cu:").astype(int)
    return seen, table.set_index(["line", "access", "space"])


def test_sectors_and_efficiency_of_access_patterns():
    _, table = patterns(8)
    strided = table.loc[(5, "load", "global")]
    assert strided["sectors_per_request"] == 32 and strided["efficiency"] == 1 / 8
    same = table.loc[(6, "load", "global")]
    assert (same["sectors_per_request"], same["bytes_used"], same["bytes_moved"]) == (1, 4, 32)
    some = table.loc[(11, "store", "global")]
    assert (some["lanes"], some["sectors_per_request"], some["efficiency"]) == (8, 4, 1 / 4)
    wide = table.loc[(12, "load", "global")]
    assert (wide["requests"], wide["sectors_per_request"], wide["efficiency"]) == (1, 16, 1)
    assert table.loc[(14, "store", "global"), "requests"] == 3


@pytest.mark.parametrize(("stride", "conflicts"), [(1, 0), (2, 1), (8, 7), (32, 31), (33, 0)])
def test_bank_conflicts(stride, conflicts):
    _, table = patterns(stride, PATTERNS.replace("x[t * stride]", "x[t]"))
    assert table.loc[(7, "store", "shared"), "conflicts_per_request"] == conflicts
    assert table.loc[(9, "load", "shared"), "conflicts_per_request"] == 0  # one word for all
    assert (
        table.loc[(13, "store", "shared"), "conflicts_per_request"] == 0
    )  # 16 bytes a lane, eight lanes a pass


def test_a_view_that_starts_between_sectors_costs_one_more():
    x, out = np.arange(65, dtype=np.uint32), np.zeros(64, np.uint32)
    arguments = [x[1:], out, u64(64)]
    seen = simt.watch(stream.LADDERS["copy"][0], 1, 64, arguments, {"THREADS": 64})
    assert seen.faults == [] and (out == x[1:]).all()
    lines = seen.lines().set_index("access")["sectors_per_request"]
    assert (lines["load"], lines["store"]) == (5, 4)
    seen = simt.watch(stream.LADDERS["copy"][1], 1, 64, arguments, {"THREADS": 64})
    assert {fault.kind for fault in seen.faults} == {"misaligned"}


def test_one_array_given_twice_is_one_buffer():
    x = np.arange(64, dtype=np.uint32)
    assert simt.watch(stream.LADDERS["copy"][0], 1, 64, [x, x, u64(64)], {"THREADS": 64}).faults == []
    seen = simt.watch(stream.LADDERS["copy"][0], 1, 64, [x[1:], x[:-1], u64(63)], {"THREADS": 64})
    assert seen.faults[0].kind == "race" and seen.faults[0].address.startswith("y/x + ")


BY_VALUE = """#include <cuda_fp16.h>
struct Best { float value; int index; };
__device__ MARK float taken(TYPE v) { return *reinterpret_cast<unsigned char*>(&v); }
__device__ MARK TYPE made(int i) { TYPE v; memset(&v, i, sizeof v); return v; }
extern "C" __global__ void f(const TYPE* x, float* y, TYPE* z) {
  __shared__ TYPE tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = taken(tile[63 - threadIdx.x]);
  z[threadIdx.x + 32] = made(threadIdx.x);
  y[threadIdx.x] = taken(x[threadIdx.x + 32]);
}"""


@pytest.mark.parametrize("mark", ["", "__noinline__", "inline"])
@pytest.mark.parametrize(("kind", "size"), [("__half", 2), ("float3", 12), ("Best", 8), ("float4", 16)])
def test_a_struct_that_goes_by_value_between_memory_and_a_function_is_seen(kind, size, mark):
    x, z = (np.zeros((64, size), np.uint8) for _ in range(2))
    source = BY_VALUE.replace("TYPE", kind).replace("MARK", mark)
    seen = simt.watch(source, 1, 64, [x, np.zeros(64, np.float32), z])
    found = {(f.kind, f.line.removeprefix("kernel.cu:")) for f in seen.faults}
    # One warp runs first: it reads what the other has not written, which writes what was read, and reads too.
    assert found == {
        ("uninitialised", "8"),
        ("race", "7"),
        ("race", "8"),
        ("out of bounds", "9"),
        ("out of bounds", "10"),
    }
    used = seen.lines().groupby(["line", "access", "space"])["bytes_used"].sum()
    assert used["kernel.cu:8", "load", "shared"] == 64 * size
    assert used["kernel.cu:9", "store", "global"] == 32 * size  # the other warp is past the end
    assert used["kernel.cu:10", "load", "global"] == 32 * size


def test_accesses_are_listed_lane_by_lane():
    seen, _ = patterns(2)
    rows = seen.accesses()
    first = rows[(rows["line"] == "kernel.cu:5") & (rows["space"] == "global")]
    assert list(first["lane"]) == list(range(32)) and list(first["address"]) == [8 * k for k in range(32)]
    assert set(first["buffer"]) == {"x"} and set(first["bytes"]) == {4} and set(first["request"]) == {0}
    assert len(seen.requests()) == 10


def test_more_accesses_than_can_be_kept_are_refused(monkeypatch):
    monkeypatch.setattr("rooflab.simt.watching.MOST", 1000)
    with pytest.raises(LaunchError, match="copy_scalar makes more than 1000 accesses"):
        watched(stream.LADDERS["copy"][0], 1024)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles C++ against the runtime's headers in a folder beside clocks.o, and gives the folder."""
    folder = tmp_path_factory.mktemp("known")
    where = [f"-I{build.INCLUDE.parent}", f"-I{build.INCLUDE}"]

    def compiled(*arguments):
        subprocess.run([build.compiler(), "-std=c++17", "-O1", *where, *arguments], check=True, cwd=folder)
        return folder

    clocks = ROOT / "tests" / "simt_kernels" / "known_clocks.cpp"
    compiled("-c", str(clocks), "-o", "clocks.o")
    return compiled


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("", ""),
        ("one.barrier > release.time || time_of", "true || time_of"),
        ("one->time[lane] < other->time[lane] &&", "false &&"),
    ],
)
def test_what_threads_know_of_each_other_is_what_vector_clocks_say(text, becomes, compiled, tmp_path):
    """Shared trees beside whole clocks, over random barriers and atomics; a fault in the trees is seen."""
    source = (build.INCLUDE.parent / "known.cpp").read_text()
    assert text in source
    (tmp_path / "known.cpp").write_text(source.replace(text, becomes) if text else source)
    folder = compiled(str(tmp_path / "known.cpp"), "clocks.o", "-o", "clocks")
    said = subprocess.run([folder / "clocks"], capture_output=True, text=True, check=True).stdout
    asked, known, different = (int(word) for word in said.split())
    assert asked > 100_000 and known / asked > 0.2
    assert (different == 0) == (not text)
