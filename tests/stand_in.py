"""Machines with a GPU that is not there, to record on: everything is rooflab's own but the GPU itself.

`Machine(gpu, lacks).record(root)` runs `rooflab record` in this process. CuPy, torch and the peers are empty
modules; contestants pass the gate unseen and take the time that their bytes and FLOPs need at the GPU's
rates; instruments answer what they answered on the committed recording of the most similar case.
"""

import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
from rooflab import errors, lab, ops, paths, profile, studies
from rooflab.bench import clock
from rooflab.hardware import device
from rooflab.lab import compiling, session
from rooflab.ops import Rung
from rooflab.records import store
from rooflab.records.case import SCHEMA, Case
from rooflab.records.csv_table import read_table
from rooflab.runtime import nvrtc
from rooflab.studies import base

SOURCE = paths.DATA / "h200"
UNLISTED = replace(device.get("rtx-4090"), slug="unheard-of", name="Unheard of", sms=70, dram_gb_s=700.0)


def _peers() -> set[str]:
    measured = [studies.get(name) for name in studies.names() if not studies.get(name).everywhere]
    return {str(study.needs(case)) for study in measured for case in study.cases()} - {"None", "torch"}


PEERS = tuple(sorted(_peers() | {"triton"}))
INSTRUMENTS = ("nsys", "ncu", "compute-sanitizer", "torch", *PEERS)
REQUIRED = ("cupy", "nvrtc", "nvidia-ml-py")  # without these nothing is recorded, but all replays


@dataclass(frozen=True)
class Machine:
    """A GPU of the table (its slug), or the unlisted one, and what is not installed beside it."""

    gpu: str
    lacks: frozenset[str] = frozenset()

    @cached_property
    def spec(self) -> device.Device:
        return UNLISTED if self.gpu == UNLISTED.slug else device.get(self.gpu)

    @property
    def reported(self) -> str:
        return "NVIDIA Unheard Of" if self.spec is UNLISTED else self.spec.reported[0]

    def facts(self) -> dict[str, Any]:
        """What device.probe says of it."""
        return {
            **dict.fromkeys(("pcie_generation", "pcie_width")),
            "gpu": self.reported,
            "compute_capability": self.spec.compute_capability,
            "sms": self.spec.sms,
            "l2_bytes": int(self.spec.l2_mb * 2**20),
            "memory_bytes": int(self.spec.memory_gb * 1e9),
            "memory_free_bytes": int(self.spec.memory_gb * 0.97e9),
            "driver": "590.10",
            "cuda_driver": "13.0",
            "throttle": [],
            "other_processes": [],
            **self.conditions(),
        }

    def conditions(self) -> dict[str, float]:
        boost = self.spec.boost_mhz
        return {"sm_clock_mhz": boost, "memory_clock_mhz": 5000, "temperature_c": 50.0, "power_w": 60.0}

    @contextmanager
    def present(self) -> Iterator[None]:
        """Within it this process believes that it runs on the machine."""
        with ExitStack() as stack:

            def put(where: Any, **names: Any) -> None:
                for name, value in names.items():
                    stack.enter_context(mock.patch.object(where, name, value))

            stack.enter_context(_imported(self._modules()))
            ops._gpu.cache_clear()
            stack.callback(ops._gpu.cache_clear)
            asked = "nvidia-ml-py" not in self.lacks
            put(device, has_gpu=lambda: True, uuid=lambda: None, energy_j=lambda: None)
            put(device, probe=lambda: self.facts() if asked else None)
            put(device, conditions=lambda: self.conditions() if asked else None)
            put(nvrtc, compiler_version=self._compiler)
            put(Rung, cubin=self._cubin)
            put(compiling, in_cache=lambda *_: True)
            put(session, take=self._profile)
            put(profile, find_tool=lambda tool: None if tool in self.lacks else f"/usr/bin/{tool}")
            put(store, _version=self._version)
            put(base.gate, admit=lambda work: SimpleNamespace(work=work, error=work.budget / 2))
            put(base, timed=self._timed)
            for study in {type(studies.get(name)) for name in studies.names()}:
                put(study, contestants=lambda study, cases: [_Work(case.id) for case in cases])
            yield

    def record(self, root: Path, *names: str, effort: str = "full") -> Path:
        """Record the named studies (all by default) into a folder of `root`, which is returned."""
        environment = {"ROOFLAB_STORE": str(root), "ROOFLAB_COMMAND": f"rooflab record --effort {effort}"}
        with self.present(), mock.patch.dict("os.environ", environment), mock.patch("os.fsync"):
            lab.record(names, effort, lambda line: None)
        return root / device.slug(self.reported)

    # --- what stands in -------------------------------------------------------------------------------------

    def _modules(self) -> dict[str, ModuleType | None]:
        found: dict[str, ModuleType | None] = dict.fromkeys(("cupy", "torch", *PEERS))
        for name in set(found) - self.lacks:
            module = found[name] = ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        major, minor = self.spec.compute_capability
        if cupy := found["cupy"]:
            shown = {"L2CacheSize": int(self.spec.l2_mb * 2**20), "MultiProcessorCount": self.spec.sms}
            here = SimpleNamespace(id=0, compute_capability=f"{major}{minor}", attributes=shown)
            free = (int(self.spec.memory_gb * 0.97e9), int(self.spec.memory_gb * 1e9))
            runtime = SimpleNamespace(
                memGetInfo=lambda: free, getDeviceProperties=lambda _: {"name": self.reported.encode()}
            )
            pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)
            cuda = SimpleNamespace(Device=lambda: here, runtime=runtime, is_available=lambda: True)
            vars(cupy).update(cuda=cuda, get_default_memory_pool=lambda: pool)
        if torch := found["torch"]:
            vars(torch).update(cuda=SimpleNamespace(memory_allocated=lambda: 0, empty_cache=lambda: None))
        return found

    def _version(self, packages: Sequence[str]) -> str | None:
        return None if packages[0].split("-")[0] in self.lacks else "1.2.3"

    def _compiler(self) -> str:
        if "nvrtc" in self.lacks:
            raise errors.MissingTool("NVRTC is not installed, so nothing can be compiled here.")
        return "nvrtc 13.0"

    @property
    def _cubin(self) -> Any:
        def cubin(rung: Rung, arch: str, options: Any = None) -> Any:
            self._compiler()
            assert rung.runs_on(arch), f"{rung.operator}/{rung.name} is not for sm_{arch}"
            macros = sorted(rung.with_defaults(options or {}).items())
            return _Cubin(f"{rung.operator}/{rung.name} sm_{rung.arch_for(arch)} {macros}".encode())

        return cubin

    def _timed(
        self, cases: Sequence[Case], admitted: Sequence[Any], *, samples: int
    ) -> tuple[dict[str, clock.Timing], dict[str, str]]:
        return {case.id: self.timing(case, samples) for case in cases}, {}

    def timing(self, case: Case, samples: int) -> clock.Timing:
        """What the GPU takes for a case: the share of its roof that the H200 reached, at this GPU's rates."""
        count, held = studies.get(case.study).count(case), _alike(case)
        share = min(float((held or {}).get("roof_fraction") or 0.6), 1.0)
        rates = {"l2_read": 3 * self.spec.dram_gb_s, "pcie_h2d": 12.0}
        if count.bytes and count.roof.startswith(("dram_", "l2_", "pcie_")):
            us = count.bytes / (1e3 * rates.get(count.roof, 0.9 * self.spec.dram_gb_s) * share)
        elif count.flops and count.roof:
            us = count.flops / (0.7e6 * (getattr(self.spec, count.roof) or self.spec.fp32) * share)
        else:
            us = float(held["median_us"]) * 4800 / self.spec.dram_gb_s if held else 25.0
        if "steps=" in case.options and case.study in ("decode", "power"):  # a launch makes several tokens
            us *= int(dict(word.split("=") for word in case.options.split())["steps"])
        return clock.Timing(us, 0.99 * us, 1.01 * us, samples)

    def _profile(
        self, study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None
    ) -> pd.DataFrame:
        if program := {"ncu": "ncu", "nsys": "nsys", "sanitizer": "compute-sanitizer"}.get(tool):
            profile.require_tool(program)
        if tool == "cupti" and "torch" in self.lacks:
            raise errors.MissingTool("CUPTI is read through torch.profiler, and torch is not installed here.")
        held = _profiled(study, tool)
        near = {case.id: _nearest_profiled(study, tool, case.id) for case in cases}
        return pd.concat([held[near[case.id]].assign(case=case.id) for case in cases], ignore_index=True)


@contextmanager
def _imported(modules: dict[str, ModuleType | None]) -> Iterator[None]:
    """Let imports find these. What else is imported meanwhile stays, as there must be one of each class."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


@dataclass(frozen=True)
class _Work:
    name: str
    budget: float = 1e-3


class _Resources:
    def __getitem__(self, entry: str) -> nvrtc.Resources:
        return nvrtc.Resources(registers=40, spill_bytes=0, stack_bytes=0, shared_bytes=1024)


@dataclass(frozen=True)
class _Cubin:
    code: bytes
    resources: _Resources = _Resources()

    def machine_code(self, entry: str) -> bytes:
        return self.code + entry.encode()


@cache
def _rows(study: str) -> dict[str, dict[str, str]]:
    return {row["case"]: row for row in read_table(SOURCE / f"{study}.csv", SCHEMA) if row["median_us"]}


@cache
def _nearest(study: str, case: str) -> str:
    return min(_rows(study), key=lambda name: _distance(case, name))


def _alike(case: Case) -> dict[str, str] | None:
    rows = _rows(case.study)
    near = case.id if case.id in rows else _nearest(case.study, case.id)
    return rows[near] if near.split()[0] == case.id.split()[0] else None


def _distance(one: str, other: str) -> tuple[int, str]:
    a, b = one.split(), other.split()
    asked, answered = (words[0].partition("/")[0] for words in (a, b))
    return len(set(a) ^ set(b)) + 100 * (a[0] != b[0]) + 1000 * (asked != answered), other


@cache
def _nearest_profiled(study: str, tool: str, case: str) -> str:
    return min(_profiled(study, tool), key=lambda name: _distance(case, name))


@cache
def _profiled(study: str, tool: str) -> dict[str, pd.DataFrame]:
    path = SOURCE / "profiles" / f"{study}_{tool}.csv"
    table = pd.read_csv(path, keep_default_na=False, na_values=["nan"]).drop(columns=["identity", "run"])
    return {str(case): rows for case, rows in table.groupby("case", sort=False)}
