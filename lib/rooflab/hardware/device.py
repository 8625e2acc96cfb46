"""What a GPU is: the vendor's figures in devices.toml, and what the driver says about this machine's GPU."""

import ctypes
import functools
import math
import os
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rooflab.errors import UsageError


@dataclass(frozen=True)
class Device:
    """Vendor figures of one GPU model. Units: memory_gb in 10^9 bytes as sold, dram_gb_s in GB/s, l2_mb in
    MiB, shared_kb_per_block (the most one block may opt in to) in KiB, dense peaks in TFLOP/s (int8_tensor in
    TOP/s), boost_mhz in MHz. A peak is None where the hardware has no such unit. `reported` lists the names
    nvidia-smi gives this model and `sources` the document of each figure."""

    slug: str
    name: str
    architecture: str
    compute_capability: tuple[int, int]
    sms: int
    memory_gb: float
    dram_gb_s: float
    l2_mb: float
    shared_kb_per_block: int
    fp32: float
    tf32_tensor: float | None
    fp16_tensor: float
    bf16_tensor: float | None
    int8_tensor: float
    fp8_tensor: float | None
    boost_mhz: int
    reported: tuple[str, ...]
    sources: dict[str, str] = field(compare=False)

    @property
    def sm(self) -> str:
        """The architecture as compilers name it, e.g. "90"."""
        return sm(self.compute_capability)

    @property
    def threads_per_sm(self) -> int:
        """Threads that an SM holds at once."""
        return threads_of_an_sm(self.compute_capability)

    @property
    def has_hopper(self) -> bool:
        """Whether sm_90a code (wgmma, tensor memory access) runs on this GPU."""
        return self.compute_capability == (9, 0)


def threads_of_an_sm(capability: tuple[int, ...]) -> int:
    """Threads that an SM holds at once, by the CUDA C++ Programming Guide's table of compute capabilities."""
    fewer: dict[tuple[int, ...], int] = {(7, 5): 1024}
    fewer |= dict.fromkeys(((8, 6), (8, 7), (8, 9), (12, 0)), 1536)
    return fewer.get(capability, 2048)


# GB/s of a lane of PCI Express by generation, after line coding (128b/130b from generation 3 on), from the
# base specifications.
PCIE_LANE_GB_S = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

_PEAKS = ("fp32", "tf32_tensor", "fp16_tensor", "bf16_tensor", "int8_tensor", "fp8_tensor")
_OPTIONAL = ("tf32_tensor", "bf16_tensor", "fp8_tensor")
_FIGURES = ("sms", "memory_gb", "dram_gb_s", "l2_mb", "shared_kb_per_block", "boost_mhz", *_PEAKS)
_WHOLE = ("sms", "shared_kb_per_block", "boost_mhz")


def read(path: Path) -> dict[str, Device]:
    """The GPUs of a table by slug. Raises UsageError for a row that lacks a figure or its source, or holds
    what is no figure.
    """
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}.") from None
    return {slug: _device(f"{path.name}, [{slug}]", slug, row) for slug, row in rows.items()}


def _device(where: str, slug: str, row: Any) -> Device:
    texts = ("name", "architecture")
    known = {*texts, *_FIGURES, "compute_capability", "reported", "sources"}
    if not isinstance(row, dict):
        raise UsageError(f"{where} is not a table; a GPU is a heading like [h200] with its figures below.")
    if unknown := sorted(set(row) - known):
        raise UsageError(f"{where}: {unknown[0]!r} is no figure; there are {', '.join(sorted(known))}.")
    if missing := sorted(known - set(row) - set(_OPTIONAL)):
        raise UsageError(f"{where} lacks {', '.join(missing)}.")
    for key in texts:
        if not isinstance(row[key], str) or not row[key]:
            raise UsageError(f"{where}: {key} is {row[key]!r}; it has to be a text.")
    for key in _FIGURES:
        value, kinds = row.get(key, 1), (int,) if key in _WHOLE else (int, float)
        if type(value) not in kinds or not 0 < value < math.inf:
            kind = "whole number" if key in _WHOLE else "number"
            raise UsageError(f"{where}: {key} is {value!r}; it has to be a {kind} above zero.")
    pair, reported, sources = row["compute_capability"], row["reported"], row["sources"]
    if not isinstance(pair, list) or len(pair) != 2 or any(type(part) is not int for part in pair):
        raise UsageError(f"{where}: compute_capability is {pair!r}; it has to be two numbers like [9, 0].")
    if not isinstance(reported, list) or not reported or any(type(one) is not str for one in reported):
        raise UsageError(f"{where}: reported is {reported!r}; it has to list the names nvidia-smi gives.")
    try:
        origins = [(str(figure), str(entry["from"])) for entry in sources for figure in entry["of"]]
    except (KeyError, TypeError):
        raise UsageError(f"{where}: every source is {{ of = [figures], from = a document }}.") from None
    named = sorted(figure for figure, document in origins if document.strip())
    figures = sorted(set(_FIGURES) & set(row))
    if wrong := [figure for figure in figures if named.count(figure) != 1]:
        raise UsageError(f"{where}: {wrong[0]} has {named.count(wrong[0])} sources; every figure has one.")
    if extra := sorted({figure for figure, _ in origins} - set(figures)):
        raise UsageError(f"{where}: sources name {extra[0]!r}, which the row does not hold.")
    figures_held: dict[str, Any] = {key: row.get(key) for key in _FIGURES}
    return Device(
        slug=slug,
        name=row["name"],
        architecture=row["architecture"],
        compute_capability=(pair[0], pair[1]),
        reported=tuple(reported),
        sources=dict(origins),
        **figures_held,
    )


@functools.cache
def _table() -> dict[str, Device]:
    return read(Path(__file__).with_name("devices.toml"))


def names() -> list[str]:
    """Slugs of every GPU in the table, in the table's order."""
    return list(_table())


def get(name: str) -> Device:
    """The row of one slug, e.g. "h200". Raises UsageError naming the slugs that exist."""
    if name not in _table():
        raise UsageError(f"there is no GPU {name!r} in the table; it holds {', '.join(_table())}.")
    return _table()[name]


def match(gpu_name: str) -> Device | None:
    """The row of a GPU as nvidia-smi names it ("NVIDIA H200"), or None. Only whole names match: an RTX 4090
    Laptop GPU or an A10G is another chip than the RTX 4090 or the A10."""
    wanted = " ".join(gpu_name.split()).casefold()
    found = (row for row in _table().values() if wanted in map(str.casefold, row.reported))
    return next(found, None)


def slug(gpu_name: str) -> str:
    """The folder name for a GPU as nvidia-smi names it, also one outside the table: "NVIDIA RTX A6000" is
    "rtx-a6000"."""
    known = match(gpu_name)
    if known:
        return known.slug
    words = re.findall(r"[a-z0-9]+", gpu_name.casefold())
    kept = [word for word in words if word not in {"nvidia", "geforce", "tesla", "gpu"}]
    if not kept:
        raise UsageError(f"{gpu_name!r} does not name a GPU; a name like 'NVIDIA RTX A6000' does.")
    return "-".join(kept)


def sm(compute_capability: tuple[int, int], specific: bool = False) -> str:
    """The architecture of a compute capability as compilers name it: (9, 0) is "90", and with `specific`
    "90a", the variant with instructions that no other architecture has (sm_90 and later)."""
    major, minor = compute_capability
    if specific and major < 9:
        raise UsageError(f"sm_{major}{minor} has no architecture-specific variant; sm_90 and later do.")
    return f"{major}{minor}{'a' if specific else ''}"


# cuDeviceGetAttribute numbers, CUdevice_attribute in cuda.h.
_ATTRIBUTES = {"sms": 16, "l2_bytes": 38, "memory_bus_bits": 37, "shared_bytes_per_block": 97}
_CAPABILITY = (75, 76)

# nvmlClocksEventReasons bits, nvml.h; idle is no reason to distrust a figure, the others are.
_REASONS = {
    0x001: "idle",
    0x002: "application clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
}


@functools.cache
def _libcuda() -> Any:
    """The CUDA driver library, initialised, or None where there is none or it finds no GPU."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None
    return library


def has_gpu() -> bool:
    """Whether the CUDA driver offers this process a GPU (CUDA_VISIBLE_DEVICES counts)."""
    return _libcuda() is not None


def every() -> list[tuple[str, str]]:
    """UUID and name of each GPU that the CUDA driver offers this process (CUDA_VISIBLE_DEVICES counts); the
    UUID names it in CUDA_VISIBLE_DEVICES."""
    library, found = _libcuda(), []
    name = ctypes.create_string_buffer(256)
    for number in range(count()):
        if library.cuDeviceGetName(name, len(name), number) == 0:
            found.append((uuid(number) or str(number), name.value.decode()))
    return found


def _attribute(library: Any, number: int) -> int:
    value = ctypes.c_int()
    if library.cuDeviceGetAttribute(ctypes.byref(value), number, 0) != 0:
        raise OSError(f"the CUDA driver does not know device attribute {number}")
    return value.value


def uuid(number: int = 0) -> str | None:
    """What tells a GPU of this process, by default the first, from the others of its machine ("GPU-6a8b...",
    the same in every process whatever CUDA_VISIBLE_DEVICES says), or None without a GPU or an answer."""
    library, raw = _libcuda(), (ctypes.c_ubyte * 16)()
    if library is None or library.cuDeviceGetUuid(raw, number) != 0:
        return None
    digits = bytes(raw).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@functools.cache
def _nvml() -> tuple[ModuleType, Any] | None:
    """pynvml and the handle of the GPU that CUDA calls device 0, or None. NVML counts in bus order and
    ignores CUDA_VISIBLE_DEVICES, so the two are matched by UUID."""
    library = _libcuda()
    if library is None:
        return None
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    identifier = uuid()
    try:
        pynvml.nvmlInit()
        if identifier is None:
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        try:
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(identifier)
        except pynvml.NVMLError:
            # A MIG slice or a virtual GPU has a UUID of another form.
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return None


def _asked(nvml: ModuleType, function: str, *arguments: Any) -> Any:
    """The answer of one NVML query, or None where this GPU or driver does not support it."""
    try:
        answer = getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def conditions() -> dict[str, float] | None:
    """Clocks, temperature and power of the GPU right now: sm_clock_mhz, memory_clock_mhz, temperature_c,
    power_w, and power_capped, 1 where the driver lowers the clock to keep the power limit, else 0. A value
    the driver does not give is absent; without a GPU the answer is None. Takes well under a millisecond.

    The driver renews its power reading every 25 to 100 ms; the clock is that of this moment."""
    found = _nvml()
    if found is None:
        return None
    nvml, handle = found
    answers = {
        "sm_clock_mhz": _asked(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _asked(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": _asked(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": _instant_w(nvml, handle),
        "power_capped": _power_capped(nvml, handle),
    }
    return {key: value for key, value in answers.items() if value is not None}


# From nvml.h: NVML_FI_DEV_POWER_INSTANT, and the bits of the power cap and of the external power brake.
_POWER_INSTANT, _POWER_REASONS = 186, 0x4 | 0x80


def _instant_w(nvml: ModuleType, handle: Any) -> float | None:
    """Watts of this moment; the ordinary query of GPUs since Ampere gives the mean of a second."""
    fields = _asked(nvml, "nvmlDeviceGetFieldValues", handle, [_POWER_INSTANT])
    if fields and fields[0].nvmlReturn == nvml.NVML_SUCCESS:
        return _watts(fields[0].value.uiVal)
    return _watts(_asked(nvml, "nvmlDeviceGetPowerUsage", handle))


def _power_capped(nvml: ModuleType, handle: Any) -> float | None:
    reasons = _asked(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    return None if reasons is None else float(bool(reasons & _POWER_REASONS))


def energy_j() -> float | None:
    """Joules that the GPU's board has taken since its driver was loaded, by NVML's counter, or None where it
    has none. The counter moves some ten times a second.
    """
    found = _nvml()
    if found is None:
        return None
    return _watts(_asked(found[0], "nvmlDeviceGetTotalEnergyConsumption", found[1]))  # thousandths, too


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _others(nvml: ModuleType, handle: Any) -> list[dict[str, Any]]:
    """Compute processes on this GPU besides this one: pid, name, memory_bytes."""
    running = _asked(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or []
    return [
        {
            "pid": process.pid,
            "name": _asked(nvml, "nvmlSystemGetProcessName", process.pid) or "unknown",
            "memory_bytes": process.usedGpuMemory,
        }
        for process in running
        if process.pid != os.getpid()
    ]


def count() -> int:
    """GPUs that this process may use."""
    library, found = _libcuda(), ctypes.c_int()
    if library is None or library.cuDeviceGetCount(ctypes.byref(found)):
        return 0
    return found.value


def gpus_of(recording: str) -> int:
    """How many GPUs of one host a recording is of, by its name: 2 of h200-x2, 1 of h200."""
    found = re.search(r"-x(\d+)$", recording)
    return int(found[1]) if found else 1


def links() -> str:
    """What joins the first GPU to others, in words: "18 NVLinks of 26.562 GB/s each way"; "" if unknown."""
    nvml_and_handle = _nvml()
    if nvml_and_handle is None:
        return ""
    nvml, handle = nvml_and_handle
    up = [
        _asked(nvml, "nvmlDeviceGetNvLinkState", handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)
    ]
    field = _asked(nvml, "nvmlDeviceGetFieldValues", handle, [nvml.NVML_FI_DEV_NVLINK_GET_SPEED])
    mb_s = field[0].value.uiVal if field and field[0].nvmlReturn == 0 else 0
    speed = f" of {mb_s / 1e3:g} GB/s each way" if mb_s else ""
    return f"{up.count(1)} NVLinks{speed}" if up.count(1) else ""


def probe() -> dict[str, Any] | None:
    """What the first GPU of this process is and its state now, or None without a GPU or driver. Keys: gpu,
    compute_capability (a pair), sms, l2_bytes, memory_bus_bits, shared_bytes_per_block, memory_bytes,
    memory_free_bytes, driver, cuda_driver ("13.0"), sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz,
    memory_clock_max_mhz, temperature_c, power_w, power_limit_w, throttle (list of reasons),
    pcie_generation, pcie_width, other_processes (list of dicts). A fact that the driver does not give is
    None."""
    library, found = _libcuda(), _nvml()
    if library is None or found is None:
        return None
    nvml, handle = found
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    memory = _asked(nvml, "nvmlDeviceGetMemoryInfo", handle)
    reasons = _asked(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # the name before driver 535
        reasons = _asked(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    facts: dict[str, Any] = {
        "gpu": _asked(nvml, "nvmlDeviceGetName", handle),
        "compute_capability": (_attribute(library, _CAPABILITY[0]), _attribute(library, _CAPABILITY[1])),
        **{key: _attribute(library, number) for key, number in _ATTRIBUTES.items()},
        "memory_bytes": memory.total if memory else None,
        "memory_free_bytes": memory.free if memory else None,
        "driver": _asked(nvml, "nvmlSystemGetDriverVersion"),
        "cuda_driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "sm_clock_max_mhz": _asked(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        "memory_clock_max_mhz": _asked(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
        "power_limit_w": _watts(_asked(nvml, "nvmlDeviceGetPowerManagementLimit", handle)),
        "throttle": None if reasons is None else [text for bit, text in _REASONS.items() if reasons & bit],
        "pcie_generation": _asked(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_width": _asked(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "other_processes": _others(nvml, handle),
    }
    now = conditions() or {}
    return facts | {
        key: now.get(key) for key in ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
    }
