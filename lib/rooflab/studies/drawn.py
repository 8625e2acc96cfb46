"""What the course's drawings are computed from: small launches of its kernels, watched on the CPU.

`rooflab trace drawn` makes four tables in data/cpu, on any machine with a C++ compiler; a test makes them
again and compares. `requests`: what the lanes of a warp asked for in one load or store. `regions`: which rows
and columns of a matrix a block touched, and in which order. `fragments`: which element of a small matrix each
lane holds in a register, as the product of the CPU target executes it. `barriers`: which barrier
the threads of a block come to in lesson 03e's kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops, simt, studies
from rooflab.bench import gate
from rooflab.errors import MissingRecording, UsageError
from rooflab.ops import faults
from rooflab.paths import DATA, KERNELS
from rooflab.profile import sanitizer
from rooflab.records.case import Case, options
from rooflab.studies import faults as faults_study
from rooflab.studies import traces

TABLES = {
    "requests": ("scene", "kernel", "code", "access", "buffer", "bytes", "block", "warp", "request"),
    "regions": ("scene", "kernel", "access", "buffer", "block", "step", "row", "rows", "column", "columns"),
    "fragments": ("product", "operand", "place", "elements"),
    "barriers": ("kernel", "n", "k", "first", "last", "stores", "comes_to", "reads", "identity"),
}
_MORE = {"requests": ("addresses", "identity"), "regions": ("identity",)}


@dataclass(frozen=True)
class Scene:
    """A launch to watch. Of its requests those of `buffers` ("" is shared memory) by blocks below `blocks`
    and warps below `warps` are kept, `requests` of each line. `pitches` gives the bytes of a row of a matrix,
    whose regions are kept then, `tile` rows at a time (0: all rows of a block at once).
    """

    case: Case
    buffers: tuple[str, ...] = ()
    blocks: int = 1
    warps: int = 1
    requests: int = 1
    pitches: tuple[tuple[str, int], ...] = ()
    tile: int = 0


def _gemv(rung: str, n: int, k: int, **more: int) -> Case:
    return Case("gemv", "gemv", rung, format="fp32", n=n, k=k, cache="warm", options=options(**more))


def _attention(rung: str) -> Case:
    shape: dict[str, Any] = {"seq": 256, "heads": 1, "kv_heads": 1, "head_dim": 128, "causal": True}
    return Case("attention", "attention", rung, format="fp16", cache="cold", clock="graph", **shape)


def scenes() -> dict[str, Scene]:
    """Every launch that is watched for a drawing, by the name of what it shows."""
    saxpy = Case("environment", "saxpy", "1_scalar", n=1024, cache="warm", clock="graph")
    keys = (("q", 256), ("k", 256))
    return {
        "saxpy": Scene(saxpy, ("x",), blocks=4, warps=8),
        "strided": Scene(_gemv("1_strided", 32, 64), ("a",), requests=2),
        "coalesced": Scene(_gemv("2_coalesced", 32, 64), ("a",), requests=2),
        "split k": Scene(_gemv("3_split_k", 512, 256, splits=4), pitches=(("a", 2048), ("partial", 2048))),
        "strips": Scene(_gemv("6_column_strips", 512, 256), pitches=(("a", 2048),)),
        "tiles": Scene(_attention("4_mma"), ("",), pitches=keys, tile=64),
        "padded tiles": Scene(_attention("5_padded"), ("",)),
    }


# --- tables -------------------------------------------------------------------------------------------------


def path(table: str, root: Path | None = None) -> Path:
    """Where a table is kept."""
    return (root or DATA) / "cpu" / f"drawn_{table}.csv"


@cache
def _read(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False)


def read(table: str, scene: str = "", root: Path | None = None) -> pd.DataFrame:
    """A recorded table, or its rows of one scene; MissingRecording names the command that makes it."""
    file = path(table, root)
    if not file.is_file():
        raise MissingRecording(f"{file.name} is not recorded: `rooflab trace drawn` makes it.")
    frame = _read(file)
    if not scene:
        return frame.copy()
    key = frame.columns[0]  # the table's subject
    rows = frame[frame[key] == scene].reset_index(drop=True)
    if rows.empty:
        raise UsageError(f"No drawing is of {scene!r}; there are {', '.join(frame[key].unique())}.")
    return rows


def write(root: Path | None = None) -> list[Path]:
    """Make the tables and record them."""
    made = make()
    for table, frame in made.items():
        file = path(table, root)
        file.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(file, index=False, lineterminator="\n")
    _read.cache_clear()
    return [path(table, root) for table in made]


def make(names: tuple[str, ...] = ()) -> dict[str, pd.DataFrame]:
    """Watch the scenes (all, or those named) and tabulate them."""
    found: dict[str, list[pd.DataFrame]] = {"requests": [], "regions": []}
    for name, scene in scenes().items():
        if names and name not in names:
            continue
        for table, frame in watched(name, scene).items():
            found[table].append(frame)
    made = {table: pd.concat(frames, ignore_index=True) for table, frames in found.items()}
    return {**made, "fragments": fragments()} | ({} if names else {"barriers": barriers()})


def identity(scene: Scene) -> str:
    """The identity of a scene's rows: launch rule and source."""
    return traces.current(scene.case.study, scene.case)


# --- watching -----------------------------------------------------------------------------------------------


def watched(name: str, scene: Scene) -> dict[str, pd.DataFrame]:
    """Gate a scene's case on the CPU, watch one launch, and tabulate what the scene keeps."""
    with ops.on("cpu"):
        (work,) = studies.get(scene.case.study).contestants([scene.case])
        gate.admit(work)
        with simt.watched_launches() as launches:
            work.launch(0)
    described = studies.get(scene.case.study).rung(scene.case)
    assert described is not None, scene.case.id
    kernel, seen = described[0].entry, launches[0]
    if seen.faults:
        raise UsageError(f"{scene.case.id} has a fault, so nothing is drawn of it: {seen.faults[0]}")
    accesses, own = seen.accesses(), identity(scene)
    requests = [(name, kernel, *row, own) for row in _requests(accesses, scene) if scene.buffers]
    regions = [(name, kernel, *row, own) for row in _regions(accesses, scene)]
    return {
        "requests": pd.DataFrame(requests, columns=[*TABLES["requests"], *_MORE["requests"]]),
        "regions": pd.DataFrame(regions, columns=[*TABLES["regions"], *_MORE["regions"]]),
    }


def _requests(accesses: pd.DataFrame, scene: Scene) -> Iterator[tuple[object, ...]]:
    """Code, access, buffer, bytes, block, warp, request and addresses of each request that is kept."""
    names = [buffer or "shared" for buffer in scene.buffers]
    kept = accesses[accesses["buffer"].isin(names) & (accesses["request"] < scene.requests)]
    kept = kept[(kept["block"] < scene.blocks) & (kept["warp"] < scene.warps) & (kept["access"] == "load")]
    first = kept.drop_duplicates("line").set_index("line")["place"]  # one access a line
    kept = kept[kept["place"].isin(first)]
    keys = ["line", "access", "buffer", "bytes", "block", "warp", "request"]
    for (line, *key), lanes in kept.groupby(keys, sort=False):
        file, _, number = str(line).rpartition(":")
        code = (KERNELS / file).read_text().splitlines()[int(number) - 1].strip()
        of = dict(zip(lanes["lane"], lanes["address"], strict=True))
        yield code, *key, " ".join(str(of.get(lane, "-")) for lane in range(32))


def _regions(accesses: pd.DataFrame, scene: Scene) -> Iterator[tuple[object, ...]]:
    """Access, buffer, block, step, first row, rows, first column and columns of each region of a matrix;
    columns in elements of the buffer's smallest access or 4 bytes, whichever is less.
    """
    for buffer, pitch in scene.pitches:
        of = accesses[accesses["buffer"] == buffer].copy()
        of["row"], of["byte"] = of["address"] // pitch, of["address"] % pitch
        of["tile"] = of["row"] // scene.tile if scene.tile else 0
        for (block, access), mine in of.groupby(["block", "access"], sort=True):
            for step, tile in enumerate(dict.fromkeys(mine["tile"])):
                part = mine[mine["tile"] == tile]
                row, column = part["row"].min(), part["byte"].min() // 4
                rows = part["row"].max() - row + 1
                columns = (part["byte"] + part["bytes"]).max() // 4 - column
                yield access, buffer, block, step, row, rows, column, columns


# --- barriers -----------------------------------------------------------------------------------------------


def faulty() -> Iterator[tuple[Case, int, int]]:
    """The kernels with a mistake at a barrier, each at the sizes that hide it and that bring it out."""
    for size in (faults_study.FRIENDLY, faults_study.UNFRIENDLY):
        for kernel in ("early_exit", "half_barrier"):
            n, k = size[kernel]
            yield Case("faults", "faults", kernel, n=n, k=k, cache="", clock=""), n, k


def barriers() -> pd.DataFrame:
    """A row a kernel, size and group of neighbouring threads of its first block: the first and last of them,
    whether they have stored to shared memory, and the barrier that they come to, by its number in the source
    (0: none, they have ended). `reads`: how many elements of shared memory the block has read.
    """
    rows = [row for case, n, k in faulty() for row in _barriers(case, n, k)]
    return pd.DataFrame(rows, columns=list(TABLES["barriers"]))


def _barriers(case: Case, n: int, k: int) -> Iterator[tuple[object, ...]]:
    rung = faults.FAULTS[case.impl]
    a, x = sanitizer.operands(n, k)
    blocks, threads = faults.launch_of(n)
    launch = faults.arguments(a, x, np.zeros(n, np.float32))
    seen = simt.watch(rung, blocks, threads, launch)
    source = rung.path.read_text().splitlines()
    lines = [number for number, line in enumerate(source, 1) if "__syncthreads" in line]
    mine = seen.accesses()
    mine = mine[(mine["space"] == "shared") & (mine["block"] == 0)]
    stored = mine[mine["access"] == "store"]
    stores = set(stored["warp"] * 32 + stored["lane"])
    reads = mine[mine["access"] == "load"]["address"].nunique()
    where = _comes_to(seen.faults, threads, lines)
    groups = [(thread in stores, where[thread]) for thread in range(threads)]
    first = 0
    for last in range(threads):
        if last + 1 == threads or groups[last + 1] != groups[last]:
            has, barrier = groups[last]
            yield case.impl, n, k, first, last, int(has), barrier, reads, traces.current("faults", case)
            first = last + 1


def _comes_to(found: list[simt.Fault], threads: int, lines: list[int]) -> list[int]:
    """The barrier of each thread by the first report, if any, of those that wait at different ones: some
    "wait here while" the others wait at another, or the others "have ended".
    """
    if not found:
        return [1] * threads
    words, here = str(found[0]), lines.index(int(found[0].line.rpartition(":")[2])) + 1
    other = re.search(r" while .*:(\d+)\)", words)
    first, last = map(int, re.findall(r"threads (\d+)-(\d+)", words)[-1])
    named, rest = (here, lines.index(int(other[1])) + 1) if other else (0, here)
    return [named if first <= thread <= last else rest for thread in range(threads)]


# --- fragments ----------------------------------------------------------------------------------------------

_BOTH = """
#include "common/half.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

// Two products: of a matrix whose rows hold their number and one of ones, and the other way round; and the
// operands' own registers, loaded by ldmatrix as the kernels do.
extern "C" __global__ void fragments(const __half* a, const __half* b, float* d, __half* registers) {
    __shared__ __align__(128) __half rows[16 * 16], columns[8 * 16];
    const unsigned lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) rows[i] = a[i];
    for (int i = lane; i < 128; i += 32) columns[i] = b[i];
    __syncthreads();
    unsigned left[4], right[2];
    float sums[4] = {};
    load_matrix_x4(left, rows + lane % 16 * 16 + lane / 16 * 8);
    load_matrix_x2(right, columns + lane % 8 * 16 + lane / 8 % 2 * 8);
    mma_m16n8k16_f16(sums, left, right);
    for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
    for (int i = 0; i < 4; ++i) reinterpret_cast<unsigned*>(registers)[lane * 6 + i] = left[i];
    for (int i = 0; i < 2; ++i) reinterpret_cast<unsigned*>(registers)[lane * 6 + 4 + i] = right[i];
}

extern "C" __global__ void fragments_s8(const signed char* a, const signed char* b, int* d) {
    __shared__ __align__(128) signed char rows[16 * 32], columns[8 * 32];
    const unsigned lane = threadIdx.x;
    for (int i = lane; i < 512; i += 32) rows[i] = a[i];
    for (int i = lane; i < 256; i += 32) columns[i] = b[i];
    __syncthreads();
    unsigned left[4], right[2];
    int sums[4] = {};
    load_matrix_x4(left, rows + lane % 16 * 32 + lane / 16 * 16);
    load_matrix_x2(right, columns + lane % 8 * 32 + lane / 8 % 2 * 16);
    mma_m16n8k32_s8(sums, left, right);
    for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
}
"""


def fragments() -> pd.DataFrame:
    """Product, operand, place (an element of the lane's registers) and the elements "row.column" that lanes 0
    to 31 hold there.
    """
    rows: list[tuple[str, str, int, str]] = []
    for product, kind, k in (("m16n8k16_f16", np.float16, 16), ("m16n8k32_s8", np.int8, 32)):
        places = [_sums(kind, k, of_row) for of_row in (True, False)]
        for place in range(4):
            rows.append((product, "d", place, _named(places[0][:, place], places[1][:, place])))
    a = np.arange(256).reshape(16, 16)
    b = np.arange(128).reshape(8, 16)
    held = np.zeros((32, 12), np.float16)
    arrays = [a.astype(np.float16), b.astype(np.float16), np.zeros((32, 4), np.float32), held]
    simt.run(_BOTH, 1, 32, arrays, entry="fragments")
    whole = held.astype(np.int64)
    for place in range(8):
        rows.append(("m16n8k16_f16", "a", place, _named(whole[:, place] // 16, whole[:, place] % 16)))
    for place in range(4):  # stored a column after another
        rows.append(("m16n8k16_f16", "b", place, _named(whole[:, 8 + place] % 16, whole[:, 8 + place] // 16)))
    return pd.DataFrame(rows, columns=list(TABLES["fragments"]))


def _sums(kind: type, k: int, of_row: bool) -> np.ndarray:
    """What each lane's four sums are of a product that gives every element its row, or its column."""
    a: np.ndarray = np.zeros((16, k), kind)
    b: np.ndarray = np.zeros((8, k), kind)
    a[:, 0] = np.arange(16) if of_row else 1
    b[:, 0] = 1 if of_row else np.arange(8)
    if kind is np.int8:
        sums = np.zeros((32, 4), np.int32)
        simt.run(_BOTH, 1, 32, [a, b, sums], entry="fragments_s8")
        return sums
    exact = np.zeros((32, 4), np.float32)
    simt.run(_BOTH, 1, 32, [a, b, exact, np.zeros((32, 12), np.float16)], entry="fragments")
    return exact.astype(np.int64)


def _named(rows: np.ndarray, columns: np.ndarray) -> str:
    return " ".join(f"{row}.{column}" for row, column in zip(rows.tolist(), columns.tolist(), strict=True))
