"""Nsight Compute: hardware counters of single launches, one row per launch.

The counters come from kernel replay: ncu runs each launch several times, restoring memory in between, so its
times are the `ncu` clock and are never compared with a kernel's figure. `--cache-control all` flushes the
caches before every pass (cold), `none` leaves them (warm). A launch is matched with its case by its NVTX
range, not by order: a case may launch more than one kernel.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rooflab.errors import MissingTool, UsageError
from rooflab.profile import (
    PERMISSION,
    child_command,
    execute,
    exported,
    raise_child_error,
    require_tool,
    tail,
)


@dataclass(frozen=True)
class Metric:
    """One quantity: the ncu metrics it is made of, its unit, what it means in one line, how to combine them.

    A single metric is taken as it is; "/" divides the first by the second, "*" multiplies them.
    """

    ncu: tuple[str, ...]
    unit: str
    meaning: str
    combine: str = ""


def _one(name: str, unit: str, meaning: str) -> Metric:
    return Metric((name,), unit, meaning)


def _stall(reason: str, meaning: str) -> Metric:
    return _one(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", "cycle", meaning)


_GLOBAL = "pipe_lsu_mem_global_op_"

METRICS: dict[str, Metric] = {
    "time_ns": _one("gpu__time_duration.sum", "ns", "time of the launch on the GPU, under replay"),
    "dram_bytes": _one("dram__bytes.sum", "byte", "bytes moved between DRAM and L2, both ways"),
    "dram_read_bytes": _one("dram__bytes_read.sum", "byte", "bytes read from DRAM"),
    "dram_write_bytes": _one("dram__bytes_write.sum", "byte", "bytes written to DRAM"),
    "dram_pct": _one(
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "share of the DRAM's peak throughput, over the whole launch",
    ),
    "dram_peak_bytes_per_s": Metric(
        ("dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),
        "byte/s",
        "the profiler's own DRAM peak: bytes per DRAM cycle times DRAM cycles per second",
        "*",
    ),
    "sm_pct": _one(
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "%",
        "busiest unit of the SMs, as a share of its peak",
    ),
    "l2_hit_pct": _one("lts__t_sector_hit_rate.pct", "%", "sectors that L2 served without going to DRAM"),
    "occupancy_pct": _one(
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "%",
        "resident warps, as a share of the SM's limit",
    ),
    "issue_active": _one(
        "smsp__issue_active.avg.per_cycle_active",
        "inst/cycle",
        "warp instructions a scheduler issued per cycle",
    ),
    "inst_executed": _one("smsp__inst_executed.sum", "inst", "instructions that warps executed"),
    "sm_read_bytes": _one(
        "l1tex__m_xbar2l1tex_read_bytes.sum",
        "byte",
        "bytes that the SMs read from L2, by whatever kind of load or copy",
    ),
    "load_sectors_per_request": Metric(
        (f"l1tex__t_sectors_{_GLOBAL}ld.sum", f"l1tex__t_requests_{_GLOBAL}ld.sum"),
        "sector/request",
        "32-byte sectors per warp's global load: 4 if 4-byte and coalesced, 16 if 16-byte, 32 at worst",
        "/",
    ),
    "store_sectors_per_request": Metric(
        (f"l1tex__t_sectors_{_GLOBAL}st.sum", f"l1tex__t_requests_{_GLOBAL}st.sum"),
        "sector/request",
        "32-byte sectors per warp's global store",
        "/",
    ),
    "load_efficiency_pct": _one(
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
        "%",
        "used bytes of each loaded sector",
    ),
    "store_efficiency_pct": _one(
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
        "%",
        "used bytes of each stored sector",
    ),
    "load_requests": _one(
        f"l1tex__t_requests_{_GLOBAL}ld.sum", "request", "global loads that warps executed"
    ),
    "load_sectors": _one(f"l1tex__t_sectors_{_GLOBAL}ld.sum", "sector", "32-byte sectors they asked for"),
    "store_requests": _one(
        f"l1tex__t_requests_{_GLOBAL}st.sum", "request", "global stores that warps executed"
    ),
    "store_sectors": _one(f"l1tex__t_sectors_{_GLOBAL}st.sum", "sector", "32-byte sectors they wrote to"),
    "shared_efficiency_pct": _one(
        "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct",
        "%",
        "used bytes of each shared-memory wavefront (bank conflicts lower it)",
    ),
    "shared_load_conflicts": _one(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "conflict",
        "turns that loads from shared memory waited for a bank that another lane used",
    ),
    "l2_read_sectors": _one(
        "lts__t_sectors_srcunit_tex_op_read.sum",
        "sector",
        "32-byte sectors that SMs read from L2, by any means",
    ),
    "shared_pct": _one(
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
        "%",
        "turns of shared memory in use, while the SM is active",
    ),
    "tensor_pct": _one(
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "%",
        "cycles in which the tensor cores work, while the SM is active",
    ),
    "fma_pct": _one(
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
        "%",
        "instructions of the units that multiply and add, as a share of what they can take",
    ),
    "threads_per_inst": _one(
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "thread",
        "threads active in a warp instruction, of 32",
    ),
    "stall_long_scoreboard": _stall("long_scoreboard", "waiting for data from L2 or DRAM (or local memory)"),
    "stall_short_scoreboard": _stall("short_scoreboard", "waiting for shared memory or special functions"),
    "stall_lg_throttle": _stall("lg_throttle", "the queue for global and local memory instructions is full"),
    "stall_mio_throttle": _stall("mio_throttle", "the queue for shared memory and special functions is full"),
    "stall_math_pipe_throttle": _stall("math_pipe_throttle", "the arithmetic unit it needs is busy"),
    "stall_barrier": _stall("barrier", "waiting for the other warps at __syncthreads()"),
    "stall_membar": _stall("membar", "waiting for a memory fence"),
    "stall_wait": _stall("wait", "the fixed latency of the instruction before"),
    "stall_no_instruction": _stall("no_instruction", "the next instruction is not fetched yet"),
    "stall_branch_resolving": _stall("branch_resolving", "waiting for a branch target"),
    "stall_imc_miss": _stall("imc_miss", "waiting for the constant cache"),
    "stall_drain": _stall("drain", "waiting for its last stores before it exits"),
    "stall_not_selected": _stall("not_selected", "ready, but another warp was issued"),
}

BASIC = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_write_bytes", "dram_pct", "dram_peak_bytes_per_s"),
    *("sm_pct", "l2_hit_pct", "occupancy_pct", "issue_active"),
    *("load_sectors_per_request", "store_sectors_per_request"),
)
CACHES = ("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "l2_hit_pct")  # what warm caches change
STALLS = tuple(name for name in METRICS if name.startswith("stall_"))

# nvprof, which one source profiled with, does not support compute capability 8.0 and above. Its metric ->
# ours.
NVPROF: dict[str, str] = {
    "gld_efficiency": "load_efficiency_pct",
    "gst_efficiency": "store_efficiency_pct",
    "shared_efficiency": "shared_efficiency_pct",
    "warp_execution_efficiency": "threads_per_inst",
    "l2_tex_hit_rate": "l2_hit_pct",
    "achieved_occupancy": "occupancy_pct",
    "dram_utilization": "dram_pct",
    "gld_transactions_per_request": "load_sectors_per_request",
    "gst_transactions_per_request": "store_sectors_per_request",
}

_RANGES = "Push/Pop_Range"
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NANOSECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}


def ncu_names(metrics: Sequence[str]) -> list[str]:
    """The ncu metrics behind short names (or ncu names, which pass through), each once, in order."""
    names: dict[str, None] = {}
    for metric in metrics:
        if metric not in METRICS and "__" not in metric:
            raise UsageError(
                f"There is no metric {metric!r}; there are {', '.join(METRICS)}, and ncu's own names."
            )
        names.update(dict.fromkeys(METRICS[metric].ncu if metric in METRICS else (metric,)))
    return list(names)


def command(
    child: Sequence[str], metrics: Sequence[str], cache: str, out: Path, replay: str = "kernel"
) -> list[str]:
    """The ncu command line that profiles the command `child` and writes its raw page as CSV to the file
    `out`.

    `metrics` are short names of METRICS or ncu's own; `cache` is "cold" or "warm". More counters than fit one
    pass are had by repeating: the launch (`replay` "kernel"), for which ncu saves and restores the memory
    that it writes, through the caches, so that nothing stays warm; or the whole child ("application"), which
    leaves the caches as the child left them. Clocks are left alone, as the course's own timings leave them,
    and only what lies between cudaProfilerStart and Stop is profiled.
    """
    if cache not in ("cold", "warm"):
        raise UsageError(f'The cache state is "cold" or "warm", not {cache!r}.')
    if replay not in ("kernel", "application"):
        raise UsageError(f'What ncu repeats is the "kernel" or the "application", not {replay!r}.')
    return [
        require_tool("ncu"),
        *("--clock-control", "none", "--cache-control", "all" if cache == "cold" else "none"),
        *("--profile-from-start", "off", "--replay-mode", replay, "--nvtx"),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--metrics", ",".join(ncu_names(metrics)), "--log-file", str(out)),
        *child,
    ]


def run(
    study: str,
    case_ids: Sequence[str],
    metrics: Sequence[str] = BASIC,
    cache: str = "cold",
    *,
    replay: str = "kernel",
    timeout_s: float = 600,
) -> pd.DataFrame:
    """Profile cases of a study in a gated child process: `parse`'s table with the column `case` in front;
    `cache` and `replay` as in `command`.

    Raises MissingTool (no ncu, no permission), GateError (a case failed its gate), UsageError (anything else
    that went wrong, in one sentence). Every case appears in the table at least once.
    """
    frame = profile(child_command(study, case_ids), metrics, cache, replay=replay, timeout_s=timeout_s)
    frame.insert(0, "case", [path.split(" > ")[0] for path in frame["range"]])
    lost = [case for case in case_ids if case not in set(frame["case"])]
    if lost:
        raise UsageError(
            f"ncu profiled no launch of {', '.join(lost)}: {len(lost)} of {len(case_ids)} cases."
        )
    return frame


def profile(
    child: Sequence[str],
    metrics: Sequence[str],
    cache: str = "cold",
    *,
    replay: str = "kernel",
    timeout_s: float = 600,
) -> pd.DataFrame:
    """Run the command `child` under ncu and parse what ncu printed. Errors as in `run`."""
    with tempfile.TemporaryDirectory(prefix="rooflab-ncu-") as folder:
        log = Path(folder) / "raw.csv"
        done = execute(command(child, metrics, cache, log, replay), timeout_s)
        text = log.read_text(errors="replace") if log.is_file() else ""
    said = "\n".join((text, done.stdout, done.stderr))
    raise_child_error(said)
    if done.returncode != 0 or "==ERROR==" in text:
        raise_tool_error(said)
        raise MissingTool(f"ncu failed (exit code {done.returncode}): {tail(said)}.")
    frame = parse(text)
    short = [m for m in metrics if m in frame]
    if frame[short].isna().all(axis=None):
        raise MissingTool(
            "ncu ran, but every counter came back empty; its version may not know this GPU or driver."
        )
    return frame


def raise_tool_error(said: str) -> None:
    """Raise the error that ncu's messages name (permission, unknown metric, unsupported GPU), if they name
    one.
    """
    if "ERR_NVGPUCTRPERM" in said:
        raise MissingTool(PERMISSION)
    unknown = re.findall(r"Failed to find metric (?:regex:\^)?([\w.]+)", said)
    if unknown:
        raise UsageError(
            f"This ncu knows no metric {', '.join(unknown)} for this GPU (ncu --query-metrics lists all)."
        )
    error = re.search(r"^==ERROR== (.+)$", said, re.MULTILINE)
    if error:
        raise MissingTool(f"ncu cannot profile here: {error[1].rstrip('.')}.")


def parse(text: str) -> pd.DataFrame:
    """Read the raw page that `ncu --csv --page raw` printed; ncu's own messages around it are skipped.

    One row per launch: id, kernel, range (NVTX path, " > " between levels, "" if none), grid and block
    ("132x1x1"), stream, device, then each short metric name of METRICS whose ingredients are there, then
    other metrics by ncu's own name; floats in base units (bytes, ns, %), NaN where ncu has no value. Raises
    UsageError for an empty or truncated table, MissingTool for a run that was denied the counters.
    """
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise_tool_error(text)
        if "No kernels were profiled" in text:
            raise UsageError("ncu profiled no kernel: nothing was launched between profiler start and stop.")
        raise UsageError(f"This is not a raw page of ncu in CSV: there is no header line ({tail(text, 1)}).")
    table = [line for line in lines[start:] if line.strip() and not line.startswith("==")]
    try:
        header, *rows = list(csv.reader(table, strict=True))
    except csv.Error as error:
        raise UsageError(f"ncu's CSV is cut off inside a quoted value ({error}).") from error
    if not rows:
        raise UsageError("ncu's CSV is cut off after its header: the row of units is missing.")
    short = [number for number, row in enumerate(rows, start=2) if len(row) != len(header)]
    if short:
        raise UsageError(
            f"ncu's CSV is cut off: row {short[0]} has {len(rows[short[0] - 2])} of {len(header)} values."
        )
    units, *launches = rows
    if not launches:
        raise UsageError("ncu's CSV names its columns but holds no launch: no kernel was profiled.")

    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise UsageError(f"ncu's CSV names the column {twice[0]!r} twice.")
    with exported("ncu's CSV"):
        return _table(pd.DataFrame(launches, columns=header), units)


def _table(raw: pd.DataFrame, units: Sequence[str]) -> pd.DataFrame:
    header = list(raw.columns)
    ranges = next((name for name in header if _RANGES in name), None)
    frame = pd.DataFrame({
        "id": raw["ID"].astype(int),
        "kernel": raw["Kernel Name"],
        "range": raw[ranges].map(_range_path) if ranges else "",
        "grid": raw["Grid Size"].map(_shape),
        "block": raw["Block Size"].map(_shape),
        "stream": raw["Stream"],
        "device": raw["Device"],
    })  # fmt: skip
    values = {
        name: raw[name].map(_number).astype(float) * _factor(unit)
        for name, unit in zip(header, units, strict=True)
        if "__" in name
    }
    columns = {}
    for name, metric in METRICS.items():
        if all(n in values for n in metric.ncu):
            first, *rest = (values[n] for n in metric.ncu)
            columns[name] = (
                first * rest[0] if metric.combine == "*" else first / rest[0] if metric.combine else first
            )
    used = {n for name in columns for n in METRICS[name].ncu}
    columns.update({name: series for name, series in values.items() if name not in used})
    return pd.concat([frame, pd.DataFrame(columns)], axis=1)


def unknown(metrics: Sequence[str], chip: str = "") -> list[str]:
    """Those ncu metrics behind `metrics` that `ncu --query-metrics` does not list for this GPU (or `chip`,
    "gh100").
    """
    argv = [require_tool("ncu"), "--query-metrics", *(("--chip", chip) if chip else ())]
    done = execute(argv, 120)
    known = {line.split()[0] for line in done.stdout.splitlines() if re.match(r"\w+__\w+\s", line)}
    if not known:
        raise MissingTool(f"ncu lists no metrics: {tail(done.stdout + done.stderr)}.")
    return [name for name in ncu_names(metrics) if name.split(".")[0] not in known]


def _range_path(cell: str) -> str:
    """`183  "<default domain>:outer:none:none:none:none:none:none" "..."` -> "outer > inner" (libraries'
    domains left out).
    """
    names = []
    for entry in re.findall(r'"([^"]*)"', cell):
        domain, _, rest = entry.partition(":")
        if domain == "<default domain>":
            names.append(rest.rsplit(":", 6)[0])
    return " > ".join(names)


def _shape(cell: str) -> str:
    return "x".join(re.findall(r"\d+", cell))


def _number(cell: str) -> float:
    try:
        return float(cell.replace(",", "").removeprefix("(!)"))
    except ValueError:  # "n/a", "", "nan" with a remark
        return float("nan")


def _factor(unit: str) -> float:
    """What turns a value in ncu's `unit` into base units (byte, ns, hz); 1 for all other units."""
    head, _, per = unit.partition("/")
    factor = 1.0
    if match := re.fullmatch(r"([KMGT]?)(?:bytes?|[hH]z)", head):
        factor = _SCALE[match[1]]
    elif match := re.fullmatch(r"([num]?)s(?:econd)?", head):
        factor = _NANOSECONDS[match[1]]
    if match := re.fullmatch(r"([num]?)s(?:econd)?", per):
        factor *= 1e9 / _NANOSECONDS[match[1]]
    return factor
