"""What a GPU is: one table of vendor figures, and what the driver says about the GPU in this machine.

Every peak in the table is the *dense* figure; the with-sparsity column of the vendor's documents (twice as
high) is never used. Matrix peaks are for FP32 accumulation (INT32 for int8): GeForce boards run FP16 and
FP8 products with FP32 accumulation at half the rate they reach with FP16 accumulation, so their rows hold
half of the number on the box.
"""

import ctypes
import functools
import os
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rooflab.errors import UsageError


@dataclass(frozen=True)
class Device:
    """Vendor figures of one GPU model. Units: memory_gb in 10^9 bytes as sold, dram_gb_s in GB/s, l2_mb in
    MiB, shared_kb_per_block (the most one block may opt in to) in KiB, peaks in TFLOP/s (int8_tensor in
    TOP/s), boost_mhz in MHz. A peak is None where the hardware has no such unit. `reported` lists the names
    nvidia-smi gives this model and `source` says where the figures come from."""

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
    source: str

    @property
    def sm(self) -> str:
        """The architecture as compilers name it, e.g. "90"."""
        return sm(self.compute_capability)

    @property
    def has_hopper(self) -> bool:
        """Whether sm_90a code (wgmma, tensor memory access) runs on this GPU."""
        return self.compute_capability == (9, 0)


_TURING = "NVIDIA T4 datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A (RTX 3090); dense columns"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet; dense figures"
_ADA = "NVIDIA Ada GPU architecture whitepaper, appendix A; dense columns"
_HOPPER = "NVIDIA H100 Tensor Core GPU architecture whitepaper; dense figures"
_ADA_RATES = (
    "SMs, clock, memory from NVIDIA's product page; peaks derived: SMs x boost clock x per-SM rate of the Ada"
    " whitepaper (256 FLOP/clk FP32 and TF32, 512 FP16/BF16, 1024 FP8, 2048 INT8)"
)

_TABLE = (
    Device(
        slug="rtx-3060",
        name="GeForce RTX 3060",
        architecture="Ampere",
        compute_capability=(8, 6),
        sms=28,
        memory_gb=12,
        dram_gb_s=360,
        l2_mb=3,
        shared_kb_per_block=99,
        fp32=12.7,
        tf32_tensor=12.7,
        fp16_tensor=25.5,
        bf16_tensor=25.5,
        int8_tensor=101.9,
        fp8_tensor=None,
        boost_mhz=1777,
        reported=("NVIDIA GeForce RTX 3060",),
        source=(
            "SMs, clock, memory from NVIDIA's product page (12 GB model); peaks derived: SMs x boost "
            "clock x per-SM rate of the GA102 whitepaper (256 FLOP/clk FP32 and TF32, 512 FP16/BF16, "
            "2048 INT8); L2 as 512 KiB per 32-bit memory controller, the driver may report less"
        ),
    ),
    Device(
        slug="rtx-3090",
        name="GeForce RTX 3090",
        architecture="Ampere",
        compute_capability=(8, 6),
        sms=82,
        memory_gb=24,
        dram_gb_s=936,
        l2_mb=6,
        shared_kb_per_block=99,
        fp32=35.6,
        tf32_tensor=35.6,
        fp16_tensor=71.0,
        bf16_tensor=71.0,
        int8_tensor=284.0,
        fp8_tensor=None,
        boost_mhz=1695,
        reported=("NVIDIA GeForce RTX 3090",),
        source=_GA102,
    ),
    Device(
        slug="rtx-4060-ti",
        name="GeForce RTX 4060 Ti",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=34,
        memory_gb=16,
        dram_gb_s=288,
        l2_mb=32,
        shared_kb_per_block=99,
        fp32=22.1,
        tf32_tensor=22.1,
        fp16_tensor=44.1,
        bf16_tensor=44.1,
        int8_tensor=176.5,
        fp8_tensor=88.3,
        boost_mhz=2535,
        reported=("NVIDIA GeForce RTX 4060 Ti",),
        source=_ADA_RATES + "; sold with 8 or 16 GB",
    ),
    Device(
        slug="rtx-4070",
        name="GeForce RTX 4070",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=46,
        memory_gb=12,
        dram_gb_s=504.2,
        l2_mb=36,
        shared_kb_per_block=99,
        fp32=29.1,
        tf32_tensor=29.1,
        fp16_tensor=58.3,
        bf16_tensor=58.3,
        int8_tensor=233.2,
        fp8_tensor=116.6,
        boost_mhz=2475,
        reported=("NVIDIA GeForce RTX 4070",),
        source=_ADA_RATES,
    ),
    Device(
        slug="rtx-4070-laptop",
        name="GeForce RTX 4070 Laptop GPU",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=36,
        memory_gb=8,
        dram_gb_s=256,
        l2_mb=32,
        shared_kb_per_block=99,
        fp32=20.0,
        tf32_tensor=20.0,
        fp16_tensor=40.1,
        bf16_tensor=40.1,
        int8_tensor=160.4,
        fp8_tensor=80.2,
        boost_mhz=2175,
        reported=("NVIDIA GeForce RTX 4070 Laptop GPU",),
        source=_ADA_RATES
        + "; boost clock of a laptop depends on its power limit, this is the highest NVIDIA lists",
    ),
    Device(
        slug="rtx-4070-ti",
        name="GeForce RTX 4070 Ti",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=60,
        memory_gb=12,
        dram_gb_s=504.2,
        l2_mb=48,
        shared_kb_per_block=99,
        fp32=40.1,
        tf32_tensor=40.1,
        fp16_tensor=80.2,
        bf16_tensor=80.2,
        int8_tensor=320.7,
        fp8_tensor=160.4,
        boost_mhz=2610,
        reported=("NVIDIA GeForce RTX 4070 Ti",),
        source=_ADA_RATES,
    ),
    Device(
        slug="rtx-4080",
        name="GeForce RTX 4080",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=76,
        memory_gb=16,
        dram_gb_s=716.8,
        l2_mb=64,
        shared_kb_per_block=99,
        fp32=48.7,
        tf32_tensor=48.7,
        fp16_tensor=97.5,
        bf16_tensor=97.5,
        int8_tensor=389.9,
        fp8_tensor=194.9,
        boost_mhz=2505,
        reported=("NVIDIA GeForce RTX 4080",),
        source=_ADA,
    ),
    Device(
        slug="rtx-4090",
        name="GeForce RTX 4090",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=128,
        memory_gb=24,
        dram_gb_s=1008,
        l2_mb=72,
        shared_kb_per_block=99,
        fp32=82.6,
        tf32_tensor=82.6,
        fp16_tensor=165.2,
        bf16_tensor=165.2,
        int8_tensor=660.6,
        fp8_tensor=330.3,
        boost_mhz=2520,
        reported=("NVIDIA GeForce RTX 4090",),
        source=_ADA,
    ),
    Device(
        slug="rtx-5090",
        name="GeForce RTX 5090",
        architecture="Blackwell",
        compute_capability=(12, 0),
        sms=170,
        memory_gb=32,
        dram_gb_s=1792,
        l2_mb=96,
        shared_kb_per_block=99,
        fp32=104.8,
        tf32_tensor=104.8,
        fp16_tensor=209.5,
        bf16_tensor=209.5,
        int8_tensor=838.0,
        fp8_tensor=419.0,
        boost_mhz=2407,
        reported=("NVIDIA GeForce RTX 5090",),
        source="NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A; dense columns",
    ),
    Device(
        slug="t4",
        name="T4",
        architecture="Turing",
        compute_capability=(7, 5),
        sms=40,
        memory_gb=16,
        dram_gb_s=320,
        l2_mb=4,
        shared_kb_per_block=64,
        fp32=8.1,
        tf32_tensor=None,
        fp16_tensor=65.0,
        bf16_tensor=None,
        int8_tensor=130.0,
        fp8_tensor=None,
        boost_mhz=1590,
        reported=("Tesla T4", "NVIDIA T4"),
        source=_TURING,
    ),
    Device(
        slug="l4",
        name="L4",
        architecture="Ada Lovelace",
        compute_capability=(8, 9),
        sms=58,
        memory_gb=24,
        dram_gb_s=300,
        l2_mb=48,
        shared_kb_per_block=99,
        fp32=30.3,
        tf32_tensor=60.0,
        fp16_tensor=121.0,
        bf16_tensor=121.0,
        int8_tensor=242.5,
        fp8_tensor=242.5,
        boost_mhz=2040,
        reported=("NVIDIA L4",),
        source=(
            "NVIDIA L4 Tensor Core GPU datasheet; it prints with-sparsity figures, halved here; full "
            "rate with FP32 accumulation"
        ),
    ),
    Device(
        slug="a10",
        name="A10",
        architecture="Ampere",
        compute_capability=(8, 6),
        sms=72,
        memory_gb=24,
        dram_gb_s=600,
        l2_mb=6,
        shared_kb_per_block=99,
        fp32=31.2,
        tf32_tensor=62.5,
        fp16_tensor=125.0,
        bf16_tensor=125.0,
        int8_tensor=250.0,
        fp8_tensor=None,
        boost_mhz=1695,
        reported=("NVIDIA A10",),
        source="NVIDIA A10 Tensor Core GPU datasheet; dense figures; full rate with FP32 accumulation",
    ),
    Device(
        slug="a100-40gb",
        name="A100 40GB",
        architecture="Ampere",
        compute_capability=(8, 0),
        sms=108,
        memory_gb=40,
        dram_gb_s=1555,
        l2_mb=40,
        shared_kb_per_block=163,
        fp32=19.5,
        tf32_tensor=156.0,
        fp16_tensor=312.0,
        bf16_tensor=312.0,
        int8_tensor=624.0,
        fp8_tensor=None,
        boost_mhz=1410,
        reported=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        source=_A100,
    ),
    Device(
        slug="a100-80gb",
        name="A100 80GB",
        architecture="Ampere",
        compute_capability=(8, 0),
        sms=108,
        memory_gb=80,
        dram_gb_s=2039,
        l2_mb=40,
        shared_kb_per_block=163,
        fp32=19.5,
        tf32_tensor=156.0,
        fp16_tensor=312.0,
        bf16_tensor=312.0,
        int8_tensor=624.0,
        fp8_tensor=None,
        boost_mhz=1410,
        reported=("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
        source=_A100 + "; SXM bandwidth, the PCIe board has 1935 GB/s",
    ),
    Device(
        slug="h100-sxm",
        name="H100 SXM",
        architecture="Hopper",
        compute_capability=(9, 0),
        sms=132,
        memory_gb=80,
        dram_gb_s=3350,
        l2_mb=50,
        shared_kb_per_block=227,
        fp32=66.9,
        tf32_tensor=494.7,
        fp16_tensor=989.4,
        bf16_tensor=989.4,
        int8_tensor=1978.9,
        fp8_tensor=1978.9,
        boost_mhz=1980,
        reported=("NVIDIA H100 80GB HBM3",),
        source=_HOPPER + "; matrix peaks are counted at 1830 MHz, FP32 at 1980 MHz",
    ),
    Device(
        slug="h100-pcie",
        name="H100 PCIe",
        architecture="Hopper",
        compute_capability=(9, 0),
        sms=114,
        memory_gb=80,
        dram_gb_s=2000,
        l2_mb=50,
        shared_kb_per_block=227,
        fp32=51.2,
        tf32_tensor=378.0,
        fp16_tensor=756.0,
        bf16_tensor=756.0,
        int8_tensor=1513.0,
        fp8_tensor=1513.0,
        boost_mhz=1755,
        reported=("NVIDIA H100 PCIe",),
        source=_HOPPER + "; matrix peaks are counted at 1620 MHz, FP32 at 1755 MHz",
    ),
    Device(
        slug="h200",
        name="H200",
        architecture="Hopper",
        compute_capability=(9, 0),
        sms=132,
        memory_gb=141,
        dram_gb_s=4800,
        l2_mb=60,
        shared_kb_per_block=227,
        fp32=66.9,
        tf32_tensor=494.7,
        fp16_tensor=989.4,
        bf16_tensor=989.4,
        int8_tensor=1978.9,
        fp8_tensor=1978.9,
        boost_mhz=1980,
        reported=("NVIDIA H200",),
        source=(
            "NVIDIA H200 Tensor Core GPU datasheet (SXM) for memory and bandwidth; it prints with- "
            "sparsity matrix figures, which halved are those of the H100 SXM whitepaper (matrix peaks "
            "at 1830 MHz, FP32 at 1980 MHz); L2 as the driver reports it"
        ),
    ),
    Device(
        slug="b200",
        name="B200",
        architecture="Blackwell",
        compute_capability=(10, 0),
        sms=148,
        memory_gb=180,
        dram_gb_s=8000,
        l2_mb=126,
        shared_kb_per_block=227,
        fp32=75.0,
        tf32_tensor=1125.0,
        fp16_tensor=2250.0,
        bf16_tensor=2250.0,
        int8_tensor=4500.0,
        fp8_tensor=4500.0,
        boost_mhz=1965,
        reported=("NVIDIA B200",),
        source=(
            "NVIDIA HGX B200 datasheet, an eighth of the eight-GPU board's figures; it prints with- "
            "sparsity matrix figures, halved here; SMs, L2 and clock as the driver reports them"
        ),
    ),
)
_BY_SLUG = {device.slug: device for device in _TABLE}
_BY_REPORTED = {name.casefold(): device for device in _TABLE for name in device.reported}


def names() -> list[str]:
    """Slugs of every GPU in the table, in the table's order."""
    return list(_BY_SLUG)


def get(name: str) -> Device:
    """The row of one slug, e.g. "h200". Raises UsageError naming the slugs that exist."""
    if name not in _BY_SLUG:
        raise UsageError(f"there is no GPU {name!r} in the table; it holds {', '.join(_BY_SLUG)}.")
    return _BY_SLUG[name]


def match(gpu_name: str) -> Device | None:
    """The row of a GPU as nvidia-smi names it ("NVIDIA H200"), or None. Only whole names match: an RTX 4090
    Laptop GPU or an A10G is another chip than the RTX 4090 or the A10."""
    return _BY_REPORTED.get(" ".join(gpu_name.split()).casefold())


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


def _attribute(library: Any, number: int) -> int:
    value = ctypes.c_int()
    if library.cuDeviceGetAttribute(ctypes.byref(value), number, 0) != 0:
        raise OSError(f"the CUDA driver does not know device attribute {number}")
    return value.value


def uuid() -> str | None:
    """What tells the first GPU of this process from the others of its machine ("GPU-6a8b...", the same in
    every process whatever CUDA_VISIBLE_DEVICES says), or None without a GPU or for a driver that keeps it."""
    library, raw = _libcuda(), (ctypes.c_ubyte * 16)()
    if library is None or library.cuDeviceGetUuid(raw, 0) != 0:
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


def probe() -> dict[str, Any] | None:
    """What the first GPU of this process is and how it stands, or None without a GPU or driver. Keys: gpu,
    compute_capability (a pair), sms, l2_bytes, memory_bus_bits, shared_bytes_per_block, memory_bytes,
    memory_free_bytes, driver, cuda_driver ("13.0"), sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz,
    memory_clock_max_mhz, temperature_c, power_w, power_limit_w, throttle (list of reasons),
    pcie_generation, pcie_width, other_processes (list of dicts). A fact that the driver keeps to itself is
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
