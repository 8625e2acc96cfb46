"""Facts about this machine, one small function each: a probe returns its fact, or raises RooflabError with a
sentence. Tests replace them.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from rooflab import profile
from rooflab.errors import MissingTool
from rooflab.hardware import device
from rooflab.paths import ROOT

SITE = ("sphinx", "myst-nb", "sphinx-book-theme", "latex2mathml")  # of the lean set, what only pages need
LEAN = (
    *(
        "numpy",
        "pandas",
        "matplotlib",
        "pillow",
        "ipykernel",
        "ipywidgets",
        "papermill",
        "nbformat",
        "nbclient",
    ),
    *(
        "pyyaml",
        "filelock",
        "psutil",
        "tqdm",
        "nvidia-ml-py",
    ),
    *SITE,
)


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cupy_found() -> list[tuple[str, str]]:
    """The installed CuPy distributions as (name, version), sorted; more than one overwrite each other's
    files.
    """
    names = {(d.metadata["Name"] or "", d.version) for d in metadata.distributions()}
    return sorted((n, v) for n, v in names if re.fullmatch(r"cupy(-cuda\d+x|-rocm-.*)?", n))


def torch_found() -> tuple[str, str | None] | None:
    """torch's version and its CUDA version (None: a CPU build), without the seconds that an import takes."""
    found = util.find_spec("torch")
    version = installed("torch")
    if found is None or version is None:
        return None
    source = (Path(found.origin or "").parent / "version.py").read_text()
    cuda = re.search(r"^cuda\b.*?=\s*['\"]([\d.]+)['\"]", source, re.MULTILINE)
    return version, cuda[1] if cuda else None


def tool(name: str) -> str:
    """A profiler's version, or MissingTool."""
    done = profile.execute([profile.require_tool(name), "--version"], 60)
    version = re.search(r"[Vv]ersion (\d[\d.]*\d)", done.stdout)
    if version is None:
        raise MissingTool(
            f"{name} is installed but does not start: {profile.tail(done.stdout + done.stderr)}."
        )
    return version[1]


def nvrtc() -> str:
    from rooflab.runtime import nvrtc

    return nvrtc.compiler_version()


def host_compiler() -> str:
    """The first line of what the host's C++ compiler says of itself: kernels run on the CPU by it."""
    from rooflab.simt import build

    return build.version().splitlines()[0]


def headers() -> str:
    from rooflab.runtime import nvrtc

    return nvrtc.include_directory()


_SOURCE = """
#include <cuda_fp16.h>
extern "C" __global__ void doctor(float* x) {
    x[threadIdx.x] = __half2float(__float2half(threadIdx.x + 1.0f));
}
"""


def compiles(arch: str) -> Any:
    from rooflab.runtime import nvrtc

    return nvrtc.compile_source(_SOURCE, arch=arch, name="doctor.cu")


def runs(arch: str) -> float:
    """Compile a small kernel for `arch`, run it, and return the sum it computes over 32 threads: 528."""
    import cupy

    from rooflab.runtime import nvrtc

    x = cupy.zeros(32, dtype=cupy.float32)
    nvrtc.Function(compiles(arch), "doctor").launch(1, 32, [x])
    return float(x.sum())


_COUNTED = """
import cupy
from cuda.bindings import driver

x = cupy.arange(1 << 22, dtype=cupy.float32)
x + 1
cupy.cuda.runtime.deviceSynchronize()
driver.cuProfilerStart()
x + 1
cupy.cuda.runtime.deviceSynchronize()
driver.cuProfilerStop()
"""


def counters() -> float:
    """DRAM bytes that ncu counts for one addition over 16 MB: proof that counters are permitted."""
    from rooflab.profile import ncu

    frame = ncu.profile([sys.executable, "-c", _COUNTED], ["dram_bytes"], "cold", timeout_s=120)
    return float(frame["dram_bytes"].iloc[0])


PROBES: Mapping[str, Callable[..., Any]] = {
    "python": lambda: sys.version_info[:3],
    "system": lambda: f"{platform.system()} {platform.machine()}",
    "lean": lambda: [name for name in LEAN if installed(name) is None],
    "disk": lambda: shutil.disk_usage(ROOT).free,
    "host_compiler": host_compiler,
    "gpu": device.probe,
    "bindings": lambda: installed("cuda-bindings"),
    "cupy": cupy_found,
    "torch": torch_found,
    "peers": lambda: None,  # asked of the studies by the caller: rooflab.studies.missing
    "nvrtc": nvrtc,
    "headers": headers,
    "compiles": compiles,
    "runs": runs,
    "ncu": lambda: tool("ncu"),
    "nsys": lambda: tool("nsys"),
    "counters": counters,
}
