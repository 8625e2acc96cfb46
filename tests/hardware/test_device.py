"""The GPU table against first principles, the matching of names, and the probe against a fake driver."""

import ctypes
import os
import sys
import types

import pytest
from rooflab.errors import UsageError
from rooflab.hardware import device, roofline

# FLOP (or OP) per clock and SM, dense, with FP32 (INT32) accumulation.
GEFORCE_AMPERE = {"fp32": 256, "tf32_tensor": 256, "fp16_tensor": 512, "int8_tensor": 2048}
GEFORCE_ADA = GEFORCE_AMPERE | {"fp8_tensor": 1024}
SERVER_GA102 = {"fp32": 256, "tf32_tensor": 512, "fp16_tensor": 1024, "int8_tensor": 2048}
HOPPER = {"fp32": 256, "tf32_tensor": 2048, "fp16_tensor": 4096, "int8_tensor": 8192, "fp8_tensor": 8192}
RATES = {
    "rtx-3060": GEFORCE_AMPERE,
    "rtx-3090": GEFORCE_AMPERE,
    "rtx-4060-ti": GEFORCE_ADA,
    "rtx-4070": GEFORCE_ADA,
    "rtx-4070-laptop": GEFORCE_ADA,
    "rtx-4070-ti": GEFORCE_ADA,
    "rtx-4080": GEFORCE_ADA,
    "rtx-4090": GEFORCE_ADA,
    "rtx-5090": GEFORCE_ADA,
    "t4": {"fp32": 128, "fp16_tensor": 1024, "int8_tensor": 2048},
    "l4": SERVER_GA102 | {"fp8_tensor": 2048},
    "a10": SERVER_GA102,
    "a100-40gb": {"fp32": 128, "tf32_tensor": 1024, "fp16_tensor": 2048, "int8_tensor": 4096},
    "a100-80gb": {"fp32": 128, "tf32_tensor": 1024, "fp16_tensor": 2048, "int8_tensor": 4096},
    "h100-sxm": HOPPER,
    "h100-pcie": HOPPER,
    "h200": HOPPER,
    "b200": {
        "fp32": 256,
        "tf32_tensor": 4096,
        "fp16_tensor": 8192,
        "int8_tensor": 16384,
        "fp8_tensor": 16384,
    },
}
# The clock at which the vendor counts matrix peaks, where it is not the boost clock.
TENSOR_MHZ = {"h100-sxm": 1830, "h100-pcie": 1620, "h200": 1830, "b200": 1860}
SHARED_KB = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
# Memory data rate in GT/s (Gbit/s per pin) and bus width in bits.
MEMORY = {
    "rtx-3060": (15, 192),
    "rtx-3090": (19.5, 384),
    "rtx-4060-ti": (18, 128),
    "rtx-4070": (21, 192),
    "rtx-4070-laptop": (16, 128),
    "rtx-4070-ti": (21, 192),
    "rtx-4080": (22.4, 256),
    "rtx-4090": (21, 384),
    "rtx-5090": (28, 512),
    "t4": (10, 256),
    "l4": (12.5, 192),
    "a10": (12.5, 384),
    "a100-40gb": (2.43, 5120),
    "a100-80gb": (3.19, 5120),
    "h100-sxm": (5.23, 5120),
    "h100-pcie": (3.13, 5120),
    "h200": (6.25, 6144),
    "b200": (7.8125, 8192),
}


def test_every_gpu_is_checked():
    assert set(RATES) == set(MEMORY) == set(device.names())


@pytest.mark.parametrize("name", device.names())
def test_peaks_follow_from_sms_rate_and_clock(name):
    row = device.get(name)
    for peak in ("fp32", "tf32_tensor", "fp16_tensor", "int8_tensor", "fp8_tensor"):
        stated = getattr(row, peak)
        rate = RATES[name].get(peak)
        assert (stated is None) == (rate is None), peak
        if rate is not None:
            mhz = row.boost_mhz if peak == "fp32" else TENSOR_MHZ.get(name, row.boost_mhz)
            derived = row.sms * rate * mhz / 1e6
            assert stated == pytest.approx(derived, rel=0.015), peak
            given = stated, row.sms, row.boost_mhz / 1e3
            assert roofline.multiply_adds(*given) == rate / 2, peak
            assert roofline.clock_of(*given) == pytest.approx(mhz / 1e3, rel=0.015), peak
    assert row.bf16_tensor in (row.fp16_tensor, None)
    assert (row.bf16_tensor is None) == (row.compute_capability < (8, 0))


@pytest.mark.parametrize("name", device.names())
def test_bandwidth_follows_from_bus_and_data_rate(name):
    gbit_per_pin, bits = MEMORY[name]
    assert device.get(name).dram_gb_s == pytest.approx(gbit_per_pin * bits / 8, rel=0.005)


@pytest.mark.parametrize("name", device.names())
def test_row_is_complete(name):
    row = device.get(name)
    assert row.slug == name
    assert row.shared_kb_per_block == SHARED_KB[row.compute_capability]
    figures = {key for key in device._FIGURES if getattr(row, key) is not None}
    assert set(row.sources) == figures and any("NVIDIA" in source for source in row.sources.values())
    assert all(device.match(reported) is row and device.slug(reported) == name for reported in row.reported)


ROW = (device.Path(device.__file__).with_name("devices.toml")).read_text().partition("[h200]")[2]
ROW = "[h200]" + ROW.partition("[b200]")[0]


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ("sms = 132", "", r"devices.toml, \[h200\] lacks sms\.$"),
        ("sms = 132", "sms = 132.5", "sms is 132.5; it has to be a whole number above zero"),
        (
            "dram_gb_s = 4800",
            'dram_gb_s = "4.8 TB/s"',
            "dram_gb_s is '4.8 TB/s'; it has to be a number",
        ),
        ("dram_gb_s = 4800", "dram_gb_s = nan", "dram_gb_s is nan"),
        ("l2_mb = 60", "l2_mb = 60\nl3_mb = 1", "'l3_mb' is no figure; there are "),
        ('of = ["l2_mb"]', "of = []", "l2_mb has 0 sources; every figure has one"),
        ('of = ["l2_mb"]', 'of = ["l2_mb", "sms"]', "sms has 2 sources"),
        ('of = ["l2_mb"]', 'of = ["l2_mb", "volume"]', "sources name 'volume', which the row does not hold"),
        (', from = "as the driver reports it"', "", "every source is { of = "),
        ("[9, 0]", '"9.0"', "compute_capability is '9.0'; it has to be two numbers"),
        ('reported = ["NVIDIA H200"]', "reported = []", "it has to list the names nvidia-smi gives"),
        ('name = "H200"', "name = 200", "name is 200; it has to be a text"),
        ("[h200]\n", "h200 = 1\n[x]\n", r"\[h200\] is not a table"),
        ("sms = 132", "sms = ", "devices.toml is not TOML"),
    ],
)
def test_a_bad_row_is_refused_in_a_sentence(was, now, sentence, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(ROW)
    assert device.read(path)["h200"] == device.get("h200")
    assert was in ROW
    path.write_text(ROW.replace(was, now, 1))
    with pytest.raises(UsageError, match=sentence):
        device.read(path)


def test_unknown_slug_is_refused():
    with pytest.raises(UsageError, match="'h300'.*h200"):
        device.get("h300")


@pytest.mark.parametrize(
    ("gpu", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("nvidia  h200 ", "h200"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "rtx-4070-laptop"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
    ],
)
def test_known_names_match(gpu, slug):
    assert device.match(gpu) is device.get(slug)


@pytest.mark.parametrize(
    ("gpu", "slug"),
    [
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-sxm4-40gb-mig-1g-5gb"),
    ],
)
def test_near_misses_stay_unknown_and_get_a_folder(gpu, slug):
    assert device.match(gpu) is None
    assert device.slug(gpu) == slug


def test_a_name_without_a_gpu_is_refused():
    with pytest.raises(UsageError, match="does not name a GPU"):
        device.slug("NVIDIA GPU")


def test_architecture_names():
    assert device.sm((9, 0)) == "90"
    assert device.sm((9, 0), specific=True) == "90a"
    assert device.sm((12, 0), specific=True) == "120a"
    with pytest.raises(UsageError, match="sm_89 has no"):
        device.sm((8, 9), specific=True)
    assert device.get("h200").sm == "90" and device.get("h200").has_hopper
    assert not device.get("b200").has_hopper and not device.get("rtx-4090").has_hopper


class FakeCuda:
    """A driver library with two GPUs, the first of which NVML calls number 1."""

    attributes = {16: 132, 37: 6144, 38: 62914560, 75: 9, 76: 0, 97: 232448}

    def cuDeviceGetAttribute(self, out, number, ordinal):
        assert ordinal == 0
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = self.attributes[number]
        return 0

    def cuDriverGetVersion(self, out):
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = 13020
        return 0

    def cuDeviceGetUuid(self, out, ordinal):
        out[:] = bytes(range(16))
        return 0


def fake_nvml():
    class NVMLError(Exception):
        pass

    def refuse(*_):
        raise NVMLError("not supported")

    processes = [
        types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=1),
        types.SimpleNamespace(pid=1, usedGpuMemory=5 << 30),
    ]
    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: f"index {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H200",
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetTemperature=lambda handle, sensor: 41,
        nvmlDeviceGetPowerUsage=lambda handle: 121500,
        nvmlDeviceGetPowerManagementLimit=lambda handle: 700000,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=150 << 30, free=149 << 30),
        nvmlDeviceGetCurrentClocksEventReasons=refuse,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x21,
        nvmlDeviceGetCurrPcieLinkGeneration=refuse,
        nvmlDeviceGetCurrPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
        nvmlSystemGetProcessName=lambda pid: "/usr/bin/other",
        nvmlSystemGetDriverVersion=lambda: "580.159.04",
    )


@pytest.fixture
def fresh_probe(monkeypatch):
    """Forget what the probe found before, and again afterwards."""
    device._nvml.cache_clear()
    yield monkeypatch
    device._nvml.cache_clear()


def test_probe_reads_a_driver(fresh_probe):
    fresh_probe.setattr(device, "_libcuda", lambda: FakeCuda())
    fresh_probe.setitem(sys.modules, "pynvml", fake_nvml())
    assert device.uuid() == device._nvml()[1] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    facts = device.probe()
    assert facts == {
        "gpu": "NVIDIA H200",
        "compute_capability": (9, 0),
        "sms": 132,
        "l2_bytes": 62914560,
        "memory_bus_bits": 6144,
        "shared_bytes_per_block": 232448,
        "memory_bytes": 150 << 30,
        "memory_free_bytes": 149 << 30,
        "driver": "580.159.04",
        "cuda_driver": "13.2",
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_clock_max_mhz": 3201,
        "temperature_c": 41,
        "power_w": 121.5,
        "power_limit_w": 700.0,
        "throttle": ["idle", "software thermal slowdown"],
        "pcie_generation": None,
        "pcie_width": 16,
        "other_processes": [{"pid": 1, "name": "/usr/bin/other", "memory_bytes": 5 << 30}],
    }
    assert device.conditions() == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 41,
        "power_w": 121.5,
    }
    assert device.has_gpu()


def test_slice_uuid_falls_back_to_the_first_gpu(fresh_probe):
    nvml = fake_nvml()

    def refuse(_):
        raise nvml.NVMLError("not found")

    nvml.nvmlDeviceGetHandleByUUID = refuse
    fresh_probe.setattr(device, "_libcuda", lambda: FakeCuda())
    fresh_probe.setitem(sys.modules, "pynvml", nvml)
    assert device._nvml()[1] == "index 0"


def test_no_driver_means_none(fresh_probe):
    fresh_probe.setattr(device, "_libcuda", lambda: None)
    assert device.uuid() is None
    assert device.probe() is None
    assert device.conditions() is None
    assert not device.has_gpu()


def test_gpu_without_nvml_package_means_none(fresh_probe):
    fresh_probe.setattr(device, "_libcuda", lambda: FakeCuda())
    fresh_probe.setitem(sys.modules, "pynvml", None)
    assert device.probe() is None


def test_libcuda_without_a_device_is_no_gpu(fresh_probe):
    class Empty:
        def cuInit(self, flags):
            return 100

    fresh_probe.setattr(device.ctypes, "CDLL", lambda name: Empty())
    assert device._libcuda.__wrapped__() is None


def test_threads_that_an_sm_holds_follow_its_compute_capability():
    held = {device.get(slug).sm: device.get(slug).threads_per_sm for slug in device.names()}
    assert held == {"75": 1024, "80": 2048, "86": 1536, "89": 1536, "90": 2048, "100": 2048, "120": 1536}
