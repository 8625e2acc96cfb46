"""What this machine can do of the course, and what would cure what it cannot: `rooflab doctor`.

Facts come from probes, one small function each, which tests replace. Each check turns facts into one line.
The verdict is GREEN (measures, profiles and replays), AMBER (replays; something to measure or profile with is
missing, and the report says which lessons lose what) or RED (cannot even replay, or a GPU with all its
packages that runs no kernel).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rooflab.doctor.probes import LEAN as LEAN
from rooflab.doctor.probes import PROBES, SITE
from rooflab.errors import MissingTool, RooflabError
from rooflab.hardware import device

CUDA_12 = (
    "pip uninstall -y cupy-cuda13x torch cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime "
    "nvidia-cuda-crt; "
    'pip install cupy-cuda12x==14.2.0 "cuda-bindings==12.*" "nvidia-cuda-nvrtc-cu12==12.9.*" '
    '"nvidia-cuda-runtime-cu12==12.9.*" "nvidia-cuda-nvcc-cu12==12.9.*"; '
    "pip install torch --index-url https://download.pytorch.org/whl/cu126"
)
_GPU_SET = "pip install -r requirements-gpu.txt"
_TORCH = "lessons lose their torch peers and the tensor roofs; some then show the recorded H200, by name"
_MEASURES = "no lesson measures here; all replay"
_BENIGN = {"idle", "application clocks setting", "display clock setting", "sync boost"}
_LOW_DISK, _NO_DISK = 2e9, 2e8


@dataclass(frozen=True)
class Check:
    """One line of the report. `state` is ok, note (no bearing on the verdict), AMBER or RED; `says` is the
    fact, `cure` one sentence on what is wrong and what would cure it, `loses` what the lessons lose
    meanwhile.
    """

    state: str
    name: str
    says: str
    cure: str = ""
    loses: str = ""


@dataclass(frozen=True)
class Report:
    """All checks in order. `exit_code` is 1 for RED, else 0."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        """GREEN, AMBER or RED: the worst state of any check."""
        states = {check.state for check in self.checks}
        return next((worst for worst in ("RED", "AMBER") if worst in states), "GREEN")

    @property
    def exit_code(self) -> int:
        return int(self.verdict == "RED")

    def text(self) -> str:
        """The table, one line per check, the remarks on what is amiss, and the verdict as last line."""
        width = max(len(check.name) for check in self.checks)
        lines = [f"{check.state:<5}  {check.name:<{width}}  {check.says}" for check in self.checks]
        amiss = [check for check in self.checks if check.state in ("AMBER", "RED")]
        for check in amiss:
            loss = f" Until then: {check.loses}." if check.loses else ""
            lines += ["", f"{check.name}: {check.cure}{loss}"]
        names = ", ".join(check.name for check in amiss if check.state == self.verdict)
        verdicts = {
            "GREEN": "GREEN: this machine measures, profiles and replays every lesson.",
            "AMBER": f"AMBER: every lesson replays; see {names}.",
            "RED": f"RED: this has to be cured first: {names}.",
        }
        return "\n".join([*lines, "", verdicts[self.verdict]])


class _Facts:
    """Asks each probe once, when its fact is first needed; an exception is a fact too."""

    def __init__(self, probes: Mapping[str, Callable[..., Any]]):
        self._probes, self._known = probes, {}  # type: ignore[var-annotated]

    def __call__(self, name: str, *arguments: Any) -> Any:
        if name not in self._known:
            try:
                self._known[name] = self._probes[name](*arguments)
            except RooflabError as error:
                self._known[name] = error
            except Exception as error:  # a broken installation may raise anything; the report must still come
                self._known[name] = MissingTool(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return self._known[name]


# --- checks
# ----------------------------------------------------------------------------------------------------------


def examine(probes: Mapping[str, Callable[..., Any]] | None = None) -> Report:
    """Examine this machine. `probes` replaces some of PROBES (for tests, or a fact that is known better)."""
    facts = _Facts({**PROBES, **(probes or {})})
    checks = list(_ground(facts))
    gpu = facts("gpu")
    if isinstance(gpu, Mapping):
        checks += [*_gpu(gpu), *_packages(facts, gpu)]
        checks += [*_profilers(facts, kernels_run=checks[-1].state == "ok"), *_conditions(gpu)]
    else:
        cure = str(gpu) if isinstance(gpu, RooflabError) else "No NVIDIA GPU with a working driver was found."
        checks.append(Check("AMBER", "GPU", "none", cure, _MEASURES))
        checks += [
            _note(name, facts(probe)) for name, probe in (("NVRTC", "nvrtc"), ("CUDA headers", "headers"))
        ]
    return Report(tuple(checks))


def _note(name: str, fact: Any) -> Check:
    return Check("note", name, "not installed" if isinstance(fact, RooflabError) else str(fact))


def _ground(facts: _Facts) -> Iterator[Check]:
    python = facts("python")
    says = f"{'.'.join(map(str, python))} on {facts('system')}"
    if python >= (3, 11):
        yield Check("ok", "Python", says)
    else:
        yield Check("RED", "Python", says, "The course needs Python 3.11 or newer.")
    missing = facts("lean")
    says, cure = f"missing: {', '.join(missing)}", "needs them: pip install -r requirements.txt."
    if not missing:
        yield Check("ok", "Packages", "the lean set is complete")
    elif set(missing) <= set(SITE):
        loses = "rooflab report builds no pages; all lessons run and record"
        yield Check("AMBER", "Packages", says, f"The HTML site {cure}", loses)
    else:
        yield Check("RED", "Packages", says, f"Replay {cure}")
    free = facts("disk")
    state = "RED" if free < _NO_DISK else "AMBER" if free < _LOW_DISK else "ok"
    cure = f"Free some space where the course lies ({_LOW_DISK / 1e9:.0f} GB are enough)."
    yield Check(state, "Disk", f"{free / 1e9:.1f} GB free", cure, "the HTML site may not fit")
    yield Check("note", "C++ compiler", str(facts("host_compiler")))


def _gpu(gpu: Mapping[str, Any]) -> Iterator[Check]:
    yield Check("ok", "GPU", f"{gpu['gpu']}, {gpu['sms']} SMs")
    capability = tuple(gpu["compute_capability"])
    says = f"{capability[0]}.{capability[1]} (sm_{device.sm(capability)})"
    if capability >= (7, 5):
        yield Check("ok", "Capability", says)
    else:
        cure = "The course's kernels, and CUDA 13, start at compute capability 7.5 (Turing)."
        yield Check("AMBER", "Capability", says, cure, _MEASURES)
    yield Check("ok", "L2", f"{gpu['l2_bytes'] / 1e6:.1f} MB")
    total, free = gpu["memory_bytes"], gpu["memory_free_bytes"]
    says = f"{_gb(total)} GB, {_gb(free)} GB free"
    low = free is not None and free < 4e9
    cure = "Less than 4 GB of the GPU's memory are free: end what else uses it."
    yield Check("AMBER" if low else "ok", "Memory", says, cure, "cases that do not fit are skipped by name")


def _gb(size: float | None) -> str:
    return "?" if size is None else f"{size / 1e9:.1f}"


def _packages(facts: _Facts, gpu: Mapping[str, Any]) -> Iterator[Check]:
    line = int(gpu["cuda_driver"].split(".")[0])
    cupy, torch, bindings = facts("cupy"), facts("torch"), facts("bindings")
    nvrtc, headers = facts("nvrtc"), facts("headers")
    install = _GPU_SET if line >= 13 else CUDA_12

    lines = {name: int(found[1]) for name, _ in cupy if (found := re.search(r"cuda(\d+)x", name))}
    for name, version in (
        ("cuda-bindings", bindings),
        ("NVRTC", nvrtc.split()[1] if isinstance(nvrtc, str) else None),
        ("torch", torch[1] if isinstance(torch, tuple) else None),
    ):
        if isinstance(version, str):
            lines[name] = int(version.split(".")[0])
    newer = [name for name, needs in lines.items() if needs > line]
    yield _driver_check(gpu, line, {name: lines[name] for name in newer})

    for name, fact in (("NVRTC", nvrtc), ("CUDA headers", headers)):
        if isinstance(fact, RooflabError):
            cure = f"Kernels are compiled on this machine with it: {install}."
            yield Check("AMBER", name, "not found", cure, _MEASURES)
        else:
            yield Check("ok", name, str(fact))
    yield _cupy_check(cupy, install, "cupy-cuda13x" if line >= 13 else "cupy-cuda12x")
    if isinstance(bindings, str):
        yield Check("ok", "cuda-bindings", bindings)
    else:
        cure = f"Kernels are loaded and launched through it: {install}."
        yield Check("AMBER", "cuda-bindings", "not installed", cure, _MEASURES)
    yield _torch_check(torch, install)
    if (peers := facts("peers")) is not None:
        yield _peers_check(peers)

    installed = (
        bool(cupy) and isinstance(nvrtc, str) and isinstance(headers, str) and isinstance(bindings, str)
    )
    capability = tuple(gpu["compute_capability"])
    if installed and set(newer) <= {"torch"} and capability >= (7, 5):
        yield _kernel_check(facts, device.sm(capability))
    else:
        yield Check("note", "Test kernel", "not tried, see above")


def _driver_check(gpu: Mapping[str, Any], line: int, newer: Mapping[str, int]) -> Check:
    says = f"{gpu['driver']}, for CUDA {gpu['cuda_driver']}"
    if not newer:
        return Check("ok", "Driver", says)
    wanted = max(newer.values())
    release = {12: "R525", 13: "R580"}.get(wanted, f"a driver for CUDA {wanted},")
    older = f", or go to the CUDA 12 line: {CUDA_12}" if line == 12 else ""
    cure = f"This driver is too old for {', '.join(newer)}: update it to {release} or newer{older}."
    only_torch = set(newer) == {"torch"}
    return Check("AMBER" if only_torch else "RED", "Driver", says, cure, _TORCH if only_torch else _MEASURES)


def _cupy_check(cupy: list[tuple[str, str]], install: str, keep: str) -> Check:
    says = ", ".join(f"{name} {version}" for name, version in cupy) or "not installed"
    if not cupy:
        return Check("AMBER", "CuPy", says, f"The kernels' arrays are CuPy's: {install}.", _MEASURES)
    if len(cupy) > 1:
        names = " ".join(name for name, _ in cupy)
        cure = f"They overwrite each other: pip uninstall -y {names}; pip install {keep}==14.2.0."
        return Check("AMBER", "CuPy", says, cure, "measuring may fail at any point")
    return Check("ok", "CuPy", says)


def _torch_check(torch: Any, install: str) -> Check:
    if not isinstance(torch, tuple):
        cure = f"It is the peer that kernels meet: {install}."
        return Check("AMBER", "torch", "not installed", cure, _TORCH)
    version, cuda = torch
    if cuda is None:
        cure = f"This build sees no GPU: pip uninstall -y torch; {install}."
        return Check("AMBER", "torch", f"{version}, a CPU build", cure, _TORCH)
    return Check("ok", "torch", f"{version}, CUDA {cuda}")


def _peers_check(missing: Any) -> Check:
    if not isinstance(missing, Mapping):
        return _note("Peers", missing)
    named = ", ".join(f"{name} ({count} cases)" for name, count in missing.items())
    says = f"a recording will skip those of {named}: pip install them first" if named else "all installed"
    return Check("note" if named else "ok", "Peers", says)


def _kernel_check(facts: _Facts, arch: str) -> Check:
    compiled = facts("compiles", arch)
    if isinstance(compiled, RooflabError):
        return Check("RED", "Test kernel", "does not compile", _sentence(compiled), _MEASURES)
    result = facts("runs", arch)
    if isinstance(result, RooflabError):
        says = f"compiles for sm_{arch}, does not run"
        return Check("RED", "Test kernel", says, _sentence(result), _MEASURES)
    if result != 528:
        cure = f"It should have computed 528 and computed {result:g}: distrust this GPU or driver."
        return Check("RED", "Test kernel", "runs, with a wrong result", cure, _MEASURES)
    return Check("ok", "Test kernel", f"compiles for sm_{arch} and runs")


def _profilers(facts: _Facts, *, kernels_run: bool) -> Iterator[Check]:
    shown = "lessons 01 to 07 show recorded counters"
    ncu, nsys = facts("ncu"), facts("nsys")
    if isinstance(ncu, RooflabError):
        yield Check("AMBER", "ncu", "not usable", _sentence(ncu), shown)
    else:
        yield Check("ok", "ncu", ncu)
    if isinstance(ncu, RooflabError) or not kernels_run:
        yield Check("note", "Counters", "not tried, see above")
    else:
        counters = facts("counters")
        if isinstance(counters, RooflabError):
            yield Check("AMBER", "Counters", "not readable", _sentence(counters), shown)
        elif not counters > 0:  # NaN is not
            cure = "ncu ran and read no DRAM traffic from a kernel that has some; try another version of ncu."
            yield Check("AMBER", "Counters", f"read back {counters:g} bytes", cure, shown)
        else:
            yield Check("ok", "Counters", f"permitted: read back {counters / 1e6:.1f} MB of DRAM traffic")
    if isinstance(nsys, RooflabError):
        loses = "lesson 02 takes its timeline from torch.profiler"
        yield Check("AMBER", "nsys", "not usable", _sentence(nsys), loses)
    else:
        yield Check("ok", "nsys", nsys)


def _conditions(gpu: Mapping[str, Any]) -> Iterator[Check]:
    others = gpu["other_processes"]
    if others:
        says = "; ".join(f"{p['name']} (pid {p['pid']}, {_gb(p['memory_bytes'])} GB)" for p in others)
        cure = "Figures taken while others use the GPU are not the GPU's: end them first."
        yield Check("AMBER", "Other processes", says, cure, "what is measured is not to be trusted")
    else:
        yield Check("ok", "Other processes", "none on this GPU")
    clock = ", ".join(
        f"{kind} {_mhz(gpu[f'{key}_mhz'])} of {_mhz(gpu[f'{key}_max_mhz'])} MHz"
        for kind, key in (("SM", "sm_clock"), ("memory", "memory_clock"))
    )
    yield Check("note", "Clocks", clock)
    heat = gpu["temperature_c"]
    yield Check("note", "Temperature", "unknown" if heat is None else f"{heat:.0f} C")
    watts = ["?" if gpu[key] is None else f"{gpu[key]:.0f}" for key in ("power_w", "power_limit_w")]
    yield Check("note", "Power", f"{watts[0]} of {watts[1]} W")
    reasons = gpu["throttle"]
    harmful = [reason for reason in reasons or [] if reason not in _BENIGN]
    cure = "The GPU holds its clocks back: let it cool, or give it its full power limit, before measuring."
    says = "unknown" if reasons is None else ", ".join(reasons) or "none"
    loses = "figures come out slower than the GPU is"
    yield Check("AMBER" if harmful else "ok", "Throttling", says, cure, loses)


def _mhz(clock: float | None) -> str:
    return "?" if clock is None else f"{clock:.0f}"


def _sentence(error: RooflabError) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith(".") else f"{text}."
