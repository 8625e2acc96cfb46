"""The doctor on made-up machines: GREEN, each AMBER, each RED, and this very machine."""

import math
import sys
import tomllib

import pytest
from rooflab import doctor, profile, studies
from rooflab.doctor import probes
from rooflab.errors import MissingTool, UsageError
from rooflab.paths import ROOT

H200 = {
    "gpu": "NVIDIA H200",
    "compute_capability": (9, 0),
    "sms": 132,
    "l2_bytes": 62914560,
    "memory_bytes": 150.1e9,
    "memory_free_bytes": 149.5e9,
    "driver": "580.159.04",
    "cuda_driver": "13.0",
    "sm_clock_mhz": 345,
    "sm_clock_max_mhz": 1980,
    "memory_clock_mhz": 3201,
    "memory_clock_max_mhz": 3201,
    "temperature_c": 31,
    "power_w": 76.2,
    "power_limit_w": 700.0,
    "throttle": ["idle"],
    "other_processes": [],
}
HEALTHY = {
    "python": (3, 12, 3),
    "system": "Linux x86_64",
    "lean": [],
    "disk": 50e9,
    "host_compiler": "g++ 12.2.0",
    "gpu": H200,
    "bindings": "13.0.3",
    "cupy": [("cupy-cuda13x", "14.2.0")],
    "torch": ("2.11.0", "13.0"),
    "peers": {},
    "nvrtc": "nvrtc 13.0",
    "headers": "/cuda/include",
    "compiles": object(),
    "runs": 528.0,
    "ncu": "2025.3.1.0",
    "nsys": "2025.3.2",
    "counters": 16.9e6,
}


def machine(**changes):
    """A report on the healthy machine with some facts replaced; an exception is raised by its probe."""

    def probe(value):
        def answer(*arguments):
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    changes["gpu"] = (
        {**H200, **changes["gpu"]} if isinstance(changes.get("gpu"), dict) else changes.get("gpu", H200)
    )
    assert set(changes) <= set(HEALTHY) == set(doctor.PROBES)
    return doctor.examine({name: probe(value) for name, value in {**HEALTHY, **changes}.items()})


def check(report, name):
    (found,) = [c for c in report.checks if c.name == name]
    return found


def test_a_missing_host_compiler_is_noted_with_its_cure_and_changes_no_verdict():
    assert check(machine(), "C++ compiler").says == "g++ 12.2.0"
    missing = "No C++ compiler was found, so kernels cannot run on the CPU here: install one."
    report = machine(host_compiler=MissingTool(missing))
    assert check(report, "C++ compiler").says == missing and report.verdict == "GREEN"
    assert f"note   C++ compiler     {missing}" in report.text()


def test_green():
    report = machine()
    assert (report.verdict, report.exit_code) == ("GREEN", 0)
    text = report.text()
    assert text.splitlines()[-1].startswith("GREEN: ")
    for fact in (
        *("NVIDIA H200, 132 SMs", "9.0 (sm_90)", "62.9 MB", "150.1 GB, 149.5 GB free", "580.159.04"),
        *("SM 345 of 1980 MHz, memory 3201 of 3201 MHz", "31 C", "76 of 700 W", "16.9 MB of DRAM"),
    ):
        assert fact in text
    assert "AMBER" not in text and "RED" not in text


def test_peers_that_a_recording_would_skip_are_named_with_their_cases():
    report = machine(peers={"gemlite": 5, "humming-kernels": 53})
    found = check(report, "Peers")
    assert (found.state, report.verdict) == ("note", "GREEN")
    assert "skip those of gemlite (5 cases), humming-kernels (53 cases): pip install" in found.says
    assert check(machine(), "Peers").says == "all installed"


def test_a_peer_is_asked_for_by_the_package_that_its_cases_need(monkeypatch):
    monkeypatch.setattr(studies, "find_spec", lambda name: None if name == "humming" else object())
    asking = [studies.get(name) for name in ("int4", "power", "unseen")]
    needs = [study.needs(case) for study in asking for case in study.cases()]
    assert studies.missing() == {"humming-kernels": needs.count("humming")} and needs.count("humming") > 9


def test_the_table_is_aligned_one_line_per_check_and_ends_with_the_verdict():
    report = machine(nsys=MissingTool("nsys is not installed."))
    lines = report.text().splitlines()
    table = lines[: len(report.checks)]
    column = table[0].index(report.checks[0].says)
    for line, each in zip(table, report.checks, strict=True):
        assert (
            line[column:] == each.says and line.startswith(each.state) and line[column - 2 : column] == "  "
        )
    assert (
        "nsys: nsys is not installed. Until then: lesson 02 takes its timeline from torch.profiler." in lines
    )
    assert lines[-1] == "AMBER: every lesson replays; see nsys."


DENIED = MissingTool(profile.PERMISSION)


@pytest.mark.parametrize(
    ("changes", "name", "cure", "loses"),
    [
        ({"gpu": None}, "GPU", "No NVIDIA GPU", "all replay"),
        ({"gpu": OSError("the CUDA driver does not know")}, "GPU", "OSError: the CUDA driver", "all replay"),
        ({"gpu": {"compute_capability": (7, 0)}}, "Capability", "7.5", "all replay"),
        ({"gpu": {"memory_free_bytes": 1e9}}, "Memory", "Less than 4 GB", "skipped by name"),
        ({"nvrtc": MissingTool("x")}, "NVRTC", "requirements-gpu.txt", "all replay"),
        ({"headers": MissingTool("x")}, "CUDA headers", "requirements-gpu.txt", "all replay"),
        ({"cupy": []}, "CuPy", "requirements-gpu.txt", "all replay"),
        (
            {"cupy": [("cupy-cuda12x", "14.2.0"), ("cupy-cuda13x", "14.2.0")]},
            "CuPy",
            "pip uninstall -y cupy-cuda12x cupy-cuda13x; pip install cupy-cuda13x==",
            "fail",
        ),
        ({"bindings": None}, "cuda-bindings", "requirements-gpu.txt", "all replay"),
        ({"torch": None}, "torch", "requirements-gpu.txt", "torch peers"),
        ({"torch": ("2.11.0+cpu", None)}, "torch", "pip uninstall -y torch", "torch peers"),
        ({"ncu": MissingTool("ncu is not installed.")}, "ncu", "not installed", "recorded counters"),
        ({"counters": DENIED}, "Counters", "NVreg_RestrictProfilingToAdminUsers=0", "recorded counters"),
        ({"counters": math.nan}, "Counters", "read no DRAM traffic", "recorded counters"),
        ({"counters": 0.0}, "Counters", "read no DRAM traffic", "recorded counters"),
        ({"nsys": MissingTool("nsys is not installed.")}, "nsys", "not installed", "torch.profiler"),
        (
            {"gpu": {"other_processes": [{"pid": 7, "name": "python3", "memory_bytes": None}]}},
            "Other processes",
            "end them",
            "not to be trusted",
        ),
        ({"gpu": {"throttle": ["idle", "hardware slowdown"]}}, "Throttling", "holds its clocks", "slower"),
        ({"disk": 1e9}, "Disk", "Free some space", "may not fit"),
        ({"lean": ["sphinx"]}, "Packages", "pip install -r requirements.txt", "builds no pages"),
    ],
)
def test_each_amber_says_what_is_missing_its_cure_and_what_is_lost(changes, name, cure, loses):
    report = machine(**changes)
    assert (report.verdict, report.exit_code) == ("AMBER", 0)
    found = check(report, name)
    assert found.state == "AMBER" and cure in found.cure and loses in found.loses
    assert [c.name for c in report.checks if c.state != "ok" and c.state != "note"] == [name]
    assert report.text().splitlines()[-1] == f"AMBER: every lesson replays; see {name}."


@pytest.mark.parametrize(
    ("changes", "name", "cure"),
    [
        ({"python": (3, 10, 12)}, "Python", "3.11 or newer"),
        ({"lean": ["papermill", "psutil"]}, "Packages", "pip install -r requirements.txt"),
        ({"disk": 1e8}, "Disk", "Free some space"),
        ({"compiles": UsageError("doctor.cu does not compile for sm_90: x")}, "Test kernel", "sm_90: x."),
        ({"runs": MissingTool("no kernel image")}, "Test kernel", "no kernel image."),
        ({"runs": ValueError("bad handle")}, "Test kernel", "ValueError: bad handle."),
        ({"runs": 527.0}, "Test kernel", "computed 527"),
    ],
)
def test_each_red_says_what_has_to_be_cured_first(changes, name, cure):
    report = machine(**changes)
    assert (report.verdict, report.exit_code) == ("RED", 1)
    assert check(report, name).state == "RED" and cure in check(report, name).cure
    assert report.text().splitlines()[-1] == f"RED: this has to be cured first: {name}."


OLD = {"driver": "550.54.14", "cuda_driver": "12.4"}


def test_a_driver_too_old_for_cuda_13_is_red_with_the_commands_for_cuda_12():
    report = machine(gpu=OLD)
    cure = check(report, "Driver").cure
    assert report.verdict == "RED"
    assert "too old for cupy-cuda13x, cuda-bindings, NVRTC, torch: update it to R580 or newer" in cure
    for command in ("cupy-cuda12x==14.2.0", "whl/cu126", '"cuda-bindings==12.*"', "nvidia-cuda-nvrtc-cu12"):
        assert command in cure
    assert check(report, "Test kernel").state == "note", "what cannot run is not tried"
    assert check(report, "Counters").state == "note"


def test_the_cuda_12_line_on_that_driver_is_green():
    report = machine(
        gpu=OLD,
        cupy=[("cupy-cuda12x", "14.2.0")],
        torch=("2.11.0+cu126", "12.6"),
        nvrtc="nvrtc 12.9",
        bindings="12.9.4",
    )
    assert report.verdict == "GREEN"


def test_only_torch_too_new_costs_only_torch():
    report = machine(gpu=OLD, cupy=[("cupy-cuda12x", "14.2.0")], nvrtc="nvrtc 12.9", bindings="12.9.4")
    driver = check(report, "Driver")
    assert report.verdict == "AMBER" and driver.state == "AMBER" and "torch peers" in driver.loses
    assert check(report, "Test kernel").state == "ok"


def test_a_driver_before_cuda_12_gets_no_command_that_would_not_help():
    cure = check(machine(gpu={"driver": "470.1", "cuda_driver": "11.4"}), "Driver").cure
    assert "update it to R580 or newer." in cure and "pip" not in cure


def test_without_a_gpu_nothing_that_needs_one_is_tried():
    def never(*arguments):
        raise AssertionError("tried without a GPU")

    report = doctor.examine(
        {"gpu": lambda: None, "runs": never, "counters": never, "ncu": never, "lean": list}
    )
    assert report.verdict == "AMBER"


def test_unknown_conditions_are_shown_as_unknown():
    unknown = dict.fromkeys(
        (
            "sm_clock_mhz",
            "sm_clock_max_mhz",
            "temperature_c",
            "power_w",
            "throttle",
            "memory_bytes",
            "memory_free_bytes",
        )
    )
    report = machine(gpu=unknown)
    assert report.verdict == "GREEN"
    assert check(report, "Power").says == "? of 700 W" and check(report, "Temperature").says == "unknown"


def test_the_lean_set_is_the_one_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [requirement.split(">")[0].split("=")[0] for requirement in project["dependencies"]]
    assert sorted(names) == sorted(doctor.LEAN)


def test_torch_is_asked_for_its_cuda_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    info = tmp_path / "torch-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for line, cuda in (("cuda: Optional[str] = '13.0'", "13.0"), ("cuda: Optional[str] = None", None)):
        (package / "version.py").write_text(
            f"__version__ = '2.11.0'\ndebug = False\n{line}\nhip: str = '1'\n"
        )
        assert probes.torch_found() == ("2.11.0", cuda)


def test_two_cupy_distributions_are_both_found(monkeypatch, tmp_path):
    for name in ("cupy-cuda12x", "cupy-cuda13x", "cupyx-tools"):
        info = tmp_path / f"{name.replace('-', '_')}-14.2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [name for name, _ in probes.cupy_found()] == ["cupy-cuda12x", "cupy-cuda13x"]


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        (
            "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)",
            "2025.3.1.0",
        ),
        ("NVIDIA Nsight Systems version 2024.6.2.225-246235244400v0", "2024.6.2.225"),
    ],
)
def test_profiler_versions(monkeypatch, tmp_path, printed, version):
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\necho '{printed}'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(profile, "find_tool", lambda name: str(tool))
    assert probes.tool("ncu") == version
    tool.write_text("#!/bin/sh\necho 'cannot open libcuda' >&2\nexit 1\n")
    with pytest.raises(MissingTool, match="does not start: cannot open libcuda"):
        probes.tool("ncu")


def test_the_small_kernel_compiles_here_for_every_architecture_of_the_course():
    pytest.importorskip("cuda.bindings.nvrtc")
    for arch in ("75", "80", "86", "89", "90"):
        assert "doctor" in probes.compiles(arch).resources


def test_this_very_machine_gets_a_report():
    report = doctor.examine()
    assert report.text().splitlines()[-1].startswith(report.verdict)
    assert {"Python", "Packages", "Disk", "GPU"} <= {c.name for c in report.checks}


def test_importing_doctor_and_readers_brings_in_nothing_of_the_gpu_set():
    program = (
        "import sys, rooflab.doctor, rooflab.profile.cupti, rooflab.profile.ncu, rooflab.profile.nsys\n"
        "print([m for m in ('torch', 'cupy', 'cuda', 'rooflab.runtime.nvrtc') if m in sys.modules])"
    )
    done = profile.execute([sys.executable, "-c", program], 60)
    assert done.stdout == "[]\n", done.stderr


def test_the_worst_state_is_the_verdict():
    report = machine(python=(3, 10, 1), nsys=MissingTool("nsys is not installed."))
    assert (report.verdict, report.exit_code) == ("RED", 1)
    assert report.text().splitlines()[-1] == "RED: this has to be cured first: Python."
