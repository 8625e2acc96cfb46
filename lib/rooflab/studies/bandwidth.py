"""Study `bandwidth` (lesson 01): the roofs of a device, and how a kernel gets there.

Ladders of read, copy, write and triad; a size sweep across the L2 knee; bytes in flight against Little's
law; copies by library and driver; host-to-device transfers; matrix products for the tensor and FP32 peaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from rooflab.bench import gate
from rooflab.hardware import crossover, roofline
from rooflab.hardware.device import Device
from rooflab.ops import stream
from rooflab.records.case import Case, options
from rooflab.studies import buffers, matmul, streams
from rooflab.studies.base import LITTLE, Context, Count, Profile, Sized, Study, from_l2, tunables, turn

LARGE = {"full": 1 << 29, "quick": 1 << 26}  # elements of 4 bytes: 2 GiB and 256 MiB an array
TRANSFER = 1 << 24  # 64 MiB: the matrix of the decoder-throughput source, 4096 x 4096 floats
IN_FLIGHT = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 4), (4, 4), (8, 4))  # (blocks an SM, loads a thread)
_KIB = 1 << 8  # elements
SWEEP = tuple(_KIB << shift for shift in range(8, 23))  # 256 KiB .. 4 GiB
MATRIX = {"full": 8192, "quick": 4096}
_PEERS = {
    "read": (("torch.sum", "peer", "int32"),),
    "copy": (
        ("cudaMemcpyAsync", "baseline", ""),
        ("torch.copy_", "peer", "uint8"),
        ("torch.copy_", "peer", "int32"),
    ),
    "write": (("torch.fill_", "peer", "int32"),),
    "triad": (("torch.add", "peer", "float32"),),
}


def large(effort: str, device: Sized | None = None) -> int:
    """Elements of the ladders' arrays: past any L2, and so many that all rungs of a triad, its oracle in
    float64 beside them, fit the device's memory together.
    """
    n, memory_gb = LARGE[effort], getattr(device, "memory_gb", None)
    while memory_gb and 88 * n > 0.9e9 * memory_gb:
        n //= 2
    return n


def ladder(operator: str, n: int = LARGE["full"]) -> list[Case]:
    """Every rung of a stream with its peers, cold, on arrays of n 4-byte elements."""
    own = [Case("bandwidth", operator, rung.name, n=n) for rung in stream.LADDERS[operator]]
    peers = [
        Case("bandwidth", operator, impl, kind=kind, format=form, n=n)
        for impl, kind, form in _PEERS[operator]
    ]
    return own + peers


def sweep(sizes: Sequence[int] = SWEEP, cache: str = "warm", operator: str = "read") -> list[Case]:
    """The default rung of a stream over many lengths (4-byte elements), warm or cold."""
    impl = stream.DEFAULT[operator]
    return [Case("bandwidth", operator, impl, n=n, cache=cache) for n in sizes]


def in_flight(sms: int, n: int = LARGE["full"] // 2) -> list[Case]:
    """read/4_grid with the bytes in flight per SM as the knob: blocks an SM x 256 threads x loads x 16
    bytes.
    """
    return [
        Case("bandwidth", "read", "4_grid", n=n, options=options(blocks=sms * per_sm, unroll=loads))
        for per_sm, loads in IN_FLIGHT
    ]


def in_flight_bytes(case: Case, sms: int) -> int:
    """Bytes that a read/4_grid case of `in_flight` keeps under way on each SM."""
    chosen = tunables(case)
    return chosen["blocks"] // sms * 256 * chosen["unroll"] * 16


def copies_by_clock(n: int = LARGE["full"]) -> list[Case]:
    """The same copies timed as graph nodes and as eager calls, up to n words and just short of n."""
    contestants = [c for c in ladder("copy", n) if c.impl in ("2_vector", "cudaMemcpyAsync", "torch.copy_")]
    return [
        Case("bandwidth", "copy", c.impl, kind=c.kind, format=c.format, n=size, clock=clock)
        for size in (n // 8, n // 4, n // 2, n - 1024, n)
        for clock in ("graph", "event")
        for c in contestants
        if c.format != "int32"
    ]


def transfers(n: int = TRANSFER) -> list[Case]:
    """One host-to-device copy from pageable and from pinned memory, by the wall clock."""
    return [
        Case("bandwidth", "h2d", impl, kind="baseline", n=n, cache="", clock="wall")
        for impl in ("pageable", "pinned")
    ]


def peaks(n: int = MATRIX["full"]) -> list[Case]:
    """Square matrix products by the vendor's library on random data: each precision in a burst and sustained.

    In a burst the GPU rests before each sample and runs at its boost clock; sustained, power sets the clock
    (rooflab.bench.clock).
    """
    return [
        Case("bandwidth", "gemm", impl, "baseline", form, n=n, k=n, batch=n, cache="warm", state=state)
        for form, impl in matmul.PRODUCTS.items()
        for state in ("burst", "sustained")
    ]


PROFILE_SIZE = 1 << 26  # 256 MiB an array: past any L2, and quick for ncu to save and restore between passes
PROFILED = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_write_bytes", "dram_pct", "dram_peak_bytes_per_s"),
    *("sm_pct", "l2_hit_pct", "occupancy_pct", "load_sectors_per_request", "store_sectors_per_request"),
)


def ceilings(effort: str, device: Sized | None = None) -> list[Case]:
    """The cases that `roofs` is made of: every stream's own rungs, the transfers, the peaks."""
    n = large(effort, device)
    streams = [case for operator in ("read", "write", "copy", "triad") for case in ladder(operator, n)]
    return [case for case in streams if case.kind == "own"] + [*transfers(), *peaks(MATRIX[effort])]


def ceiling(name: str, effort: str, device: Sized | None = None) -> list[Case]:
    """The one case that a roof needs where none of `ceilings` is recorded: of a stream the rung that a caller
    gets, of the transfers the page-locked one. Empty for a roof that this study does not establish.
    """
    count, usual = Bandwidth().count, {*stream.DEFAULT.values(), "pinned"}
    asked = [c for c in ceilings(effort, device) if roofline.in_state(count(c).roof, c.state) == name]
    return [case for case in asked if case.operator == "gemm" or case.impl in usual][:1]


def profiled(n: int = PROFILE_SIZE) -> list[Case]:
    """Every own rung of the four streams: what Nsight Compute counts."""
    streams = (case for operator in ("read", "copy", "write", "triad") for case in ladder(operator, n))
    return [case for case in streams if case.kind == "own"]


def traced(n: int = PROFILE_SIZE) -> list[Case]:
    """The copies, traced by Nsight Systems: which of them are kernels, which the driver's own copies."""
    return [case for case in ladder("copy", n) if case.impl in ("2_vector", "cudaMemcpyAsync", "torch.copy_")]


class Bandwidth(Study):
    """Lesson 01."""

    name, lesson = "bandwidth", "01"
    after = ("environment",)

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        words = large(effort, device)
        sizes = [n for n in SWEEP if n <= 2 * words]
        if effort == "quick":
            sizes = sizes[::2]
        found = [
            *(case for operator in ("read", "copy", "write", "triad") for case in ladder(operator, words)),
            *copies_by_clock(words),
            *sweep(sizes, "warm"),
            *sweep([n for n in sizes if n >= 1 << 18], "cold"),
            *in_flight(device.sms if device else 132, words // 2),
            *transfers(),
            *peaks(MATRIX[effort]),
        ]
        return list(dict.fromkeys(found))

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("ncu", profiled(), PROFILED), ("nsys", traced(), None)]

    def memory_bytes(self, case: Case) -> int:
        if case.operator == "gemm":
            return matmul.memory_bytes(case)
        if case.operator == "h2d":
            return 8 * (case.n or 0)
        return 4 * (case.n or 0) * streams.ARRAYS[case.operator][1] * streams.copies(case)

    def shared_bytes(self, case: Case) -> int:
        return 0 if case.operator in ("gemm", "h2d") else streams.shared_bytes(case)

    def refuses(self, case: Case, capability: int) -> str | None:
        if case.operator == "gemm" and capability < matmul.CAPABILITY[case.format]:
            return f"{case.format} products need compute capability {matmul.CAPABILITY[case.format] / 10}"
        return super().refuses(case, capability)

    def needs(self, case: Case) -> str | None:
        return "torch" if case.operator == "gemm" or case.impl.startswith("torch.") else None

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        build = {"gemm": matmul.contestant, "h2d": _transfer}.get(group[0].operator)
        return [build(case) for case in group] if build else streams.contestants(group)

    def group(self, case: Case) -> tuple:
        # Peers and rungs of one stream are compared whatever their element type, so the format is no key.
        form = case.format if case.operator == "gemm" else ""
        return (case.operator, case.n, case.k, case.cache, turn(case), form)

    def count(self, case: Case) -> Count:
        n = case.n or 0
        if case.operator == "gemm":
            return matmul.count(case)
        if case.operator == "h2d":
            return Count(4 * n, None, "pcie_h2d")
        flops = 2 * n if case.operator == "triad" else None
        # A warm array that fits the L2 is not read from DRAM; its ceiling is the L2's, taken from the sweep
        # itself.
        name = "" if case.cache == "warm" else roofline.ROOF_OF[case.operator]
        return Count(int(roofline.stream_bytes(case.operator, n)), flops, name)

    def predict(self, case: Case, context: Context) -> float | None:
        count, device = self.count(case), context.device
        if case.operator == "h2d":
            return count.bytes / context.pcie_gb_s / 1e3 if context.pcie_gb_s and count.bytes else None
        if device is None:
            return None
        if case.operator == "gemm":
            peak = getattr(device, count.roof)
            return count.flops / peak / 1e6 if peak and count.flops else None
        if from_l2(case, count.bytes or 0, device):
            return None
        gb_s = device.dram_gb_s
        if "unroll" in tunables(case) and context.latency_ns:
            gb_s = roofline.bandwidth(in_flight_bytes(case, device.sms), device.sms, context.latency_ns, gb_s)
        return (count.bytes or 0) / gb_s / 1e3

    def foretold(self, case: Case) -> str:
        return LITTLE if "unroll" in tunables(case) else super().foretold(case)

    own_rung = staticmethod(streams.own_rung)


def _transfer(case: Case) -> gate.Work:
    """A host-to-device copy of n words, from ordinary (pageable) or page-locked memory."""
    import cupy
    import numpy as np

    n = case.n or 0
    host = np.random.default_rng(buffers.SEED).integers(0, 1 << 32, n, dtype=np.uint32)
    expected, target = cupy.asarray(host), cupy.empty(n, cupy.uint32)
    source = buffers.host_copy(expected, case.impl == "pinned")

    def launch(_: int) -> None:
        stream_handle = cupy.cuda.get_current_stream().ptr
        kind = cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpyAsync(target.data.ptr, source.ctypes.data, source.nbytes, kind, stream_handle)

    return gate.Work(case.id, launch, [[source]], [[target]], lambda: expected)


# --- what later lessons take from this study ----------------------------------------------------------------


class Roof(NamedTuple):
    """A measured ceiling: its value, unit, and the case it was measured by."""

    value: float
    unit: str
    case: str


def roofs(frame: pd.DataFrame) -> dict[str, Roof]:
    """The ceilings that rows of this study establish: rooflab.hardware.roofline.ROOFS name -> Roof.

    A stream's roof is the fastest own rung, cold, on the largest array recorded; a transfer's the faster of
    the two; a peak is the matrix product of its precision, in a burst and (under "..._sustained") by itself.
    """
    found: dict[str, Roof] = {}
    timed = frame[frame["median_us"].notna()]
    for operator, name in roofline.ROOF_OF.items():
        if not name.startswith(("dram_", "pcie_")) or operator in ("saxpy", "gemv"):
            continue
        rows = timed[(timed["operator"] == operator) & (timed["clock"].isin(("graph", "wall")))]
        if operator != "h2d":
            rows = rows[(rows["kind"] == "own") & (rows["cache"] == "cold")]
            rows = rows[(rows["n"] == rows["n"].max()) | (rows["n"] == _ladder_size(rows))]
        if len(rows):
            best = rows.sort_values("gb_s").iloc[-1]
            found[name] = Roof(float(best["gb_s"]), roofline.ROOFS[name], str(best["case"]))
    for _, row in timed[timed["operator"] == "gemm"].iterrows():
        found[str(row["roof"])] = Roof(
            float(row["tflop_s"]), roofline.ROOFS[str(row["roof"])], str(row["case"])
        )
    return found


def _ladder_size(rows: pd.DataFrame) -> Any:
    """The length at which the whole ladder stands: the one with the most rungs."""
    return rows.groupby("n")["impl"].nunique().idxmax() if len(rows) else None


# --- what lesson 01 computes from its rows ------------------------------------------------------------------


def little(rows: pd.DataFrame, sms: int, latency_ns: float, gb_s: float) -> pd.DataFrame:
    """Rows of `in_flight` with Little's law beside them, by growing bytes under way on an SM.

    Adds bytes_per_sm; little_gb_s, what the law allows at the unloaded latency, at most gb_s; and
    loaded_ns, the latency that the measured rate implies: all bytes under way over the rate.
    """
    under_way = [in_flight_bytes(Case.from_row(row), sms) for _, row in rows.iterrows()]
    found = rows.assign(bytes_per_sm=under_way)
    found["little_gb_s"] = [roofline.bandwidth(each, sms, latency_ns, gb_s) for each in under_way]
    found["loaded_ns"] = found["bytes_per_sm"] * sms / found["gb_s"]
    return found.sort_values(["bytes_per_sm", "options"], ignore_index=True)


def knee(rows: pd.DataFrame) -> int | None:
    """Bytes of the largest array whose warm row is faster than its cold one beyond spread and 2 %."""
    warm, cold = (rows[rows["cache"] == cache].set_index("n") for cache in ("warm", "cold"))
    faster = [
        int(warm["bytes"][n])
        for n in warm.index.intersection(cold.index)
        if crossover.verdict(warm.loc[n], cold.loc[n]) == crossover.FIRST
    ]
    return max(faster, default=None)


def fixed_us(rows: pd.DataFrame, gb_s: float) -> float:
    """Microseconds that reading the smallest recorded array takes beyond its bytes at gb_s."""
    row = rows.sort_values("bytes").iloc[0]
    return float(row["median_us"]) - float(row["bytes"]) / gb_s / 1e3


def burst_and_sustained(rows: pd.DataFrame, spec: Device | None) -> pd.DataFrame:
    """Rows of `peaks`, one a roof: burst and sustained rate, the datasheet's (NaN if it states none), and in
    percent share, burst of datasheet, and kept, sustained of burst. Of the sustained samples mhz and watts,
    SM clock and power, and capped, the share at which the driver kept the clock down for power.
    """
    names = rows["roof"].str.removesuffix("_sustained")
    found = rows.assign(roof=names).pivot(index="roof", columns="state", values="tflop_s")
    found = found.reindex(index=names.unique(), columns=["burst", "sustained"]).reset_index()
    found["sheet"] = [getattr(spec, name, None) or float("nan") for name in found["roof"]]
    found["share"] = 100 * found["burst"] / found["sheet"]
    found["kept"] = 100 * found["sustained"] / found["burst"]
    loaded = rows[rows["state"] == "sustained"].assign(roof=names).set_index("roof")
    for name, column in (("mhz", "sm_mhz"), ("watts", "power_w"), ("capped", "power_capped")):
        found[name] = loaded[column].reindex(found["roof"]).to_numpy(float)
    return found


def counted(profile: pd.DataFrame) -> pd.DataFrame:
    """A profile of `profiled` cases, its counters as numbers (NaN for what a kernel does not do), with
    operator, impl, the convention's predicted_bytes, and per_predicted: counted bytes per predicted one.
    """
    cases = [Bandwidth().case(name) for name in profile["case"]]
    found = profile.assign(operator=[c.operator for c in cases], impl=[c.impl for c in cases])
    for column in PROFILED:
        found[column] = pd.to_numeric(found[column], errors="coerce")
    found["predicted_bytes"] = [roofline.stream_bytes(c.operator, c.n or 0) for c in cases]
    found["per_predicted"] = found["dram_bytes"] / found["predicted_bytes"]
    return found


def suspects(profile: pd.DataFrame) -> pd.DataFrame:
    """For every rung of `counted` that the profiler too sees slower than its ladder's best by over 3 %, more
    than one counted launch differs from the next: which counter could be why.

    Columns operator, impl, best, and the ratios to the best rung of time, DRAM bytes, sectors a request and
    occupancy; `suspect` names a counter that moved the wrong way far enough, or says that none did.
    """
    found = []
    for operator, rows in profile.groupby("operator", sort=False):
        best = rows.sort_values("time_ns").iloc[0]
        sectors = "store_sectors_per_request" if operator == "write" else "load_sectors_per_request"
        for _, row in rows.iterrows():
            time = row["time_ns"] / best["time_ns"]
            if time <= 1.03:
                continue
            traffic, occupancy = (float(row[c] / best[c]) for c in ("dram_bytes", "occupancy_pct"))
            request = float(row[sectors]) / float(best[sectors])
            named = [
                word
                for word, moved in (
                    ("more traffic", traffic - 1 > 0.5 * (time - 1)),
                    ("small requests", request < 0.9),
                    ("emptier SMs", occupancy < 0.9),
                )
                if moved
            ]
            found.append(
                {
                    "operator": operator,
                    "impl": row["impl"],
                    "best": best["impl"],
                    "time": time,
                    "traffic": traffic,
                    "sectors": request,
                    "occupancy": occupancy,
                    "suspect": " and ".join(named) or "none of these",
                }
            )
    columns = ["operator", "impl", "best", "time", "traffic", "sectors", "occupancy", "suspect"]
    return pd.DataFrame(found, columns=columns)


def fallen_copies(rows: pd.DataFrame, impl: str) -> list[int]:
    """Lengths of `copies_by_clock` rows at which `impl` is slower as a graph's node than as an eager call.

    The event clock adds the launch, so a node that is slower beyond the spread and 2 % runs other code.
    """
    ours = rows[rows["impl"] == impl]
    graph, eager = (ours[ours["clock"] == name].set_index("n") for name in ("graph", "event"))
    return sorted(
        int(n)
        for n in graph.index.intersection(eager.index)
        if crossover.verdict(eager.loc[n], graph.loc[n]) == crossover.FIRST
    )
