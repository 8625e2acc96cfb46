"""Operators: the rung list of each ladder as data, and the checked launchers that a user calls.

A rung is one CUDA file, kernels/<operator>/<rung>.cu, with one kernel. The list below is what the loader,
the tests and the notebooks read, so a rung that is not in it does not exist.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np

from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import device
from rooflab.paths import KERNELS
from rooflab.records.fingerprint import identity
from rooflab.runtime import launch_cache, nvrtc

PORTABLE = ("75", "80", "86", "89", "90", "100", "120")
# Shared memory that a block may have, in KiB, by architecture (CUDA C++ programming guide, technical
# specifications per compute capability).
SHARED_KIB = {"75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}
DEPENDENT = ("90", "100", "120")  # programmatic dependent launch needs sm_90


@dataclass(frozen=True)
class Rung:
    """One step of an operator's ladder.

    `defines` are the macros a caller may set, with their defaults; `words` how many 4-byte words one access
    moves (n must be a multiple of it, and addresses of 4 x words bytes); `grid` how the launch rule counts
    blocks: "cover" (every tile a block) or "resident" (as many as the GPU holds at once). `dynamic_shared` is
    the dynamic shared memory in bytes that a block asks for with the default macros, at most. `changes` names
    the rung that this one changes, where that is not the one before it.
    """

    operator: str
    name: str
    entry: str
    idea: str
    words: int = 4
    grid: str = "cover"
    defines: Mapping[str, int] = field(default_factory=lambda: {"THREADS": 256}, hash=False)
    archs: tuple[str, ...] = PORTABLE
    dynamic_shared: int = 0
    changes: str = ""

    @property
    def key(self) -> str:
        """Operator and name."""
        return f"{self.operator}/{self.name}"

    @property
    def path(self) -> Path:
        """The rung's CUDA source."""
        return KERNELS / self.operator / f"{self.name}.cu"

    def with_defaults(self, options: Mapping[str, int]) -> dict[str, int]:
        """The rung's macros with `options` over their defaults; UsageError names an option it does not
        have.
        """
        unknown = sorted(set(options) - set(self.defines))
        if unknown:
            raise UsageError(
                f"Rung {self.operator}/{self.name} has no option {', '.join(unknown)}; "
                f"it has {', '.join(self.defines) or 'none'}."
            )
        return {**self.defines, **options}

    def arch_for(self, arch: str) -> str:
        """What the rung is compiled for to run on `arch`: "90a" on "90" if it declares only that."""
        specific = f"{arch}a"
        return specific if arch not in self.archs and specific in self.archs else arch

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of `arch` runs it. A chip that is not listed does if it is newer than one that is,
        unless the rung is one generation's alone.
        """
        return self.arch_for(arch) in self.archs or any(
            known.isdigit() and int(known) <= int(arch) for known in self.archs
        )

    def cubin(self, arch: str, options: Mapping[str, int] | None = None) -> nvrtc.Cubin:
        """The rung compiled for `arch`, from the cache if it is there."""
        name = f"{self.operator}/{self.name}.cu"
        return nvrtc.compile_source(
            self.path.read_text(),
            arch=self.arch_for(arch),
            name=name,
            defines=self.with_defaults(options or {}),
        )

    def identity(self, launch_rule: str, options: Mapping[str, int], arch: str | None) -> str:
        """What a record of this rung is a record of; with arch None (no compiler here) the machine part is
        open.
        """
        defines = sorted(self.with_defaults(options).items())
        machine = None if arch is None else self.cubin(arch, options).machine_code(self.entry)
        rule = f"{launch_rule}\n{self.grid} {self.words} {defines}"
        return identity(rule, nvrtc.whole_source(self.path), machine, stripped=True)


@functools.cache
def modules() -> tuple[ModuleType, ...]:
    """Every module of this folder that declares LADDERS and launch_rule(rung), by its PLACE: what the loader,
    the static study and the tests go through. small_cases(operator, rung) lists small cases of a study, whose
    contestants gate a rung; trials(operator, rung) yields (shape in words, gate.Work) where no study has any.
    """
    names = sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]))
    found = [importlib.import_module(f"rooflab.ops.{name}") for name in names]
    return tuple(sorted((m for m in found if hasattr(m, "LADDERS")), key=lambda m: getattr(m, "PLACE", 99)))


def module_of(operator: str) -> ModuleType:
    """The module that declares an operator; UsageError lists what exists."""
    for module in modules():
        if operator in module.LADDERS:
            return module
    known = ", ".join(name for module in modules() for name in module.LADDERS)
    raise UsageError(f"There is no operator {operator!r}; there are {known}.")


def rungs() -> Iterator[tuple[str, Rung]]:
    """Every rung of every ladder with the name of its operator, in the order of the lessons."""
    for module in modules():
        for operator, ladder in module.LADDERS.items():
            for rung in ladder:
                yield operator, rung


_AT_HAND: ContextVar[tuple[str | None, str] | None] = ContextVar("rooflab_at_hand", default=None)


@contextmanager
def as_on(slug: str | None, arch: str) -> Iterator[None]:
    """Within it the GPU at hand is the given one (its name in rooflab.hardware.device, None for a model that
    the table
    lacks, and its architecture), whatever this machine has: how a recording of another GPU is judged.
    """
    token = _AT_HAND.set((slug, arch))
    try:
        yield
    finally:
        _AT_HAND.reset(token)


def this_gpu() -> tuple[str | None, str]:
    """The GPU at hand: its name in rooflab.hardware.device, None for a model that the table lacks, and its
    architecture.
    """
    return _AT_HAND.get() or _gpu()


@functools.cache
def _gpu() -> tuple[str | None, str]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    found = device.match(properties["name"].decode())
    major, minor = divmod(int(cupy.cuda.Device().compute_capability), 10)
    return (found.slug if found else None), device.sm((major, minor))


def this_arch() -> str:
    """The architecture that rungs are compiled for on the GPU at hand."""
    return this_gpu()[1]


def known_arch() -> str:
    """The architecture at hand; that of the course's recording where there is no GPU."""
    if _AT_HAND.get() is None and not device.has_gpu():
        return "90"
    try:
        return this_arch()
    except ImportError:  # no CuPy
        return "90"


def arch_of(array: Any) -> str:
    """The architecture whose limits count: the GPU's, or on the CPU that of most consumer GPUs."""
    return "89" if isinstance(array, np.ndarray) else this_arch()


def sms() -> int:
    """Streaming multiprocessors of the GPU that launches go to."""
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def target() -> str:
    """Where launches go: "gpu" or "cpu", as `on` says."""
    return _TARGET.get()


Launcher = TypeVar("Launcher", bound=Callable[..., Any])
_TARGET: ContextVar[str] = ContextVar("rooflab_target", default="gpu")


@contextmanager
def on(target: str) -> Iterator[None]:
    """Within it, ops launch on the "gpu" (CuPy arrays, torch tensors) or the "cpu" (NumPy arrays), and
    studies make their contestants there.
    """
    if target not in ("gpu", "cpu"):
        raise UsageError(f"A kernel runs on the gpu or the cpu, not on {target!r}.")
    token = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(token)


def with_target(
    on_cpu: Callable[..., Any] | None = None, apart: Mapping[str, Callable[..., Any]] | None = None
) -> Callable[[Launcher], Launcher]:
    """Decorator that gives a launcher the keyword `target`: "gpu" or "cpu", instead of what `on` says.

    On the CPU `on_cpu(launcher, ...)` runs in the launcher's place, if given, and answers what only a GPU
    could be asked. Rungs that `apart` names are launched by its functions instead. The decorator is no part
    of a launcher's identity: on the GPU nothing changes for the other rungs.
    """
    others = apart or {}

    def decorate(function: Launcher) -> Launcher:
        @functools.wraps(function)
        def launch(*arguments: Any, target: str | None = None, **options: Any) -> Any:
            if target is not None:
                with on(target):
                    return launch(*arguments, **options)
            if options.get("rung") in others:
                return others[options["rung"]](*arguments, **options)
            if on_cpu and _TARGET.get() == "cpu":
                return on_cpu(function, *arguments, **options)
            return function(*arguments, **options)

        signature = inspect.signature(function)
        keyword = inspect.Parameter("target", inspect.Parameter.KEYWORD_ONLY, default=None)
        rest = list(signature.parameters.values())
        place = len(rest) - (bool(rest) and rest[-1].kind is inspect.Parameter.VAR_KEYWORD)
        launch.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*rest[:place], keyword, *rest[place:]]
        )
        return cast(Launcher, launch)

    return decorate


remembered = launch_cache.remembered(_TARGET)  # decorator of a launcher whose calls may be kept: see there


def arrays() -> Any:
    """The array library of the target at hand: CuPy, or NumPy with what studies ask of a GPU (simt.host)."""
    if _TARGET.get() == "cpu":
        from rooflab.simt import host

        return host
    import cupy

    return cupy


_SWAPPED: ContextVar[tuple[Rung, str, list[str]] | None] = ContextVar("rooflab_swapped", default=None)


@contextmanager
def swapped(rung: Rung, text: str) -> Iterator[list[str]]:
    """Within it `rung` runs on the CPU from the source `text` instead of its own: how faults are planted. The
    list gets the kernel's name each time that it is loaded so.
    """
    uses: list[str] = []
    token = _SWAPPED.set((rung, text, uses))
    try:
        yield uses
    finally:
        _SWAPPED.reset(token)


def loaded(rung: Rung, options: tuple[tuple[str, int], ...] = ()) -> Any:
    """The rung's kernel, ready to launch on the target at hand: see `on`."""
    swap = _SWAPPED.get()
    if swap and swap[0] == rung and _TARGET.get() == "cpu":
        from rooflab.simt import Function

        swap[2].append(rung.entry)
        return Function(swap[1], rung.with_defaults(dict(options)), rung.entry)
    return launch_cache.watched(_loaded_on(_TARGET.get(), rung, options))


@functools.lru_cache(maxsize=256)
def _loaded_on(target: str, rung: Rung, options: tuple[tuple[str, int], ...]) -> Any:
    if target == "cpu":
        from rooflab.simt import Function

        return Function(rung, dict(options))
    arch = this_arch()
    if not rung.runs_on(arch):
        raise LaunchError(
            f"Rung {rung.operator}/{rung.name} needs sm_{rung.archs[0]}; this GPU is sm_{arch}."
        )
    return nvrtc.Function(rung.cubin(arch, dict(options)), rung.entry)


def check_array(name: str, array: Any, dtype: str, size: int | None = None, align: int = 4) -> None:
    """Refuse, in one sentence, an operand that is not a contiguous GPU array of `dtype` (and size, and
    alignment).
    """
    if _TARGET.get() == "cpu":
        if not isinstance(array, np.ndarray):
            raise LaunchError(f"{name} must be a NumPy array on the CPU, not {type(array).__name__}.")
    elif not (hasattr(array, "data_ptr") or hasattr(getattr(array, "data", None), "ptr")):
        raise LaunchError(f"{name} must be a CuPy array or a torch CUDA tensor, not {type(array).__name__}.")
    if hasattr(array, "data_ptr") and not array.is_cuda:
        raise LaunchError(f"{name} lies in host memory; it must lie on the GPU.")
    got = getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")
    if got != dtype and not (dtype == "uint32" and got == "int32"):
        raise LaunchError(f"{name} must hold {dtype}, not {got}.")
    contiguous = array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous
    if not contiguous:
        raise LaunchError(f"{name} must be contiguous; make it so with .copy() or .contiguous().")
    count = array.numel() if hasattr(array, "numel") else array.size
    if size is not None and count != size:
        raise LaunchError(f"{name} must hold {size} elements, not {count}.")
    if nvrtc.pointer(array) % align:
        raise LaunchError(f"{name} must start at a multiple of {align} bytes; this view does not.")


def sizes_of(name: str, array: Any, dimensions: int) -> tuple[int, ...]:
    """The shape of an operand; LaunchError unless it has so many dimensions, each of 1 to 2^31 - 1."""
    shape = tuple(int(size) for size in getattr(array, "shape", ()))
    if len(shape) != dimensions or not all(0 < size < 1 << 31 for size in shape):
        raise LaunchError(
            f"{name} must have {dimensions} dimensions of 1 to 2^31 - 1, not the shape {shape}."
        )
    return shape


def rung_of(ladder: tuple[Rung, ...], name: str | None, default: str) -> Rung:
    """The rung called `name`, or the default one; UsageError lists what exists."""
    wanted = name or default
    for rung in ladder:
        if rung.name == wanted:
            return rung
    operator = ladder[0].operator
    raise UsageError(f"{operator} has no rung {wanted!r}; it has {', '.join(r.name for r in ladder)}.")
