"""The process that a profiler watches: `python -m rooflab.profile.child [options] STUDY CASE_ID...`

Every case first passes the gate, unprofiled. Then the profiler's range opens (cudaProfilerStart), each case
is launched inside an NVTX range that bears its id, the device is waited for, and the range closes
(cudaProfilerStop). Exit codes: 0 done; 2 cannot run here, or wrong arguments; 3 a case failed its gate. The
reason is one line on standard error, which the parent turns into the same exception.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from rooflab.errors import GateError, MissingTool, RooflabError, UsageError


class Gpu(Protocol):
    """What the child needs of the GPU's runtime: the profiler's switch, named ranges, and waiting."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def push(self, name: str) -> None: ...
    def pop(self) -> None: ...
    def wait(self) -> None: ...


class Cuda:
    """The real GPU: the switch from cuda-bindings, waiting and NVTX from CuPy (NVTX else from torch)."""

    def __init__(self) -> None:
        try:
            import cupy
            from cuda.bindings import driver
        except ImportError as error:
            raise MissingTool(
                f"Profiling needs the gpu set, and {error.name} is not installed here."
            ) from error
        if not cupy.cuda.is_available():
            raise MissingTool("There is no usable NVIDIA GPU here, so nothing can be profiled.")
        cupy.cuda.runtime.free(0)  # the profiler's switch needs a current context
        self._cupy, self._driver = cupy, driver
        try:
            self._push, self._pop = cupy.cuda.nvtx.RangePush, cupy.cuda.nvtx.RangePop
        except (AttributeError, RuntimeError):
            try:
                from torch.cuda import nvtx
            except ImportError:
                raise MissingTool(
                    "This CuPy was built without NVTX, and torch is not installed either."
                ) from None
            self._push, self._pop = nvtx.range_push, nvtx.range_pop

    def _checked(self, result: tuple) -> None:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise MissingTool(f"The driver refused to switch the profiler: {result[0].name}.")

    def start(self) -> None:
        self._checked(self._driver.cuProfilerStart())

    def stop(self) -> None:
        self._checked(self._driver.cuProfilerStop())

    def push(self, name: str) -> None:
        self._push(name)

    def pop(self) -> None:
        self._pop()

    def wait(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()


class Kineto(Cuda):
    """The same under torch.profiler instead of an outside tool: writes a Chrome trace to `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            import torch
        except ImportError as error:
            raise MissingTool(
                "CUPTI is read through torch.profiler, and torch is not installed here."
            ) from error
        activity = torch.profiler.ProfilerActivity
        self._path, self._torch = path, torch
        self._profile = torch.profiler.profile(activities=[activity.CPU, activity.CUDA])
        self._open: list[AbstractContextManager] = []

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._path))

    def push(self, name: str) -> None:
        self._open.append(self._torch.profiler.record_function(name))
        self._open[-1].__enter__()

    def pop(self) -> None:
        self._open.pop().__exit__(None, None, None)


def profile(study: Any, case_ids: Sequence[str], gpu: Gpu, *, repeat: int = 1, whole: bool = False) -> None:
    """Gate and launch each case `repeat` times under the profiler.

    One profiler range per case (ncu: the case's operands are freed before the next case, and one launch just
    before the range leaves the caches as a warm profile expects), or one around all (`whole`, for tracers,
    which end at the first stop). GateError if a case's output is wrong; then nothing of that case is
    profiled.
    """
    from rooflab.bench import gate

    def admitted(case_id: str) -> Any:
        works = study.contestants([study.case(case_id)])  # one by one: a study orders contestants as it likes
        if len(works) != 1:
            raise UsageError(f"Study {study.name} gave {len(works)} contestants for the case {case_id}.")
        return gate.admit(works[0]).work

    for group in [list(case_ids)] if whole else [[case_id] for case_id in case_ids]:
        works = [admitted(case_id) for case_id in group]
        for work in works:
            work.launch(0)
        gpu.wait()
        with study.watch(gpu, group, whole) as partly:
            if not partly:
                gpu.start()
            for case_id, work in zip(group, works, strict=True):
                for _ in range(repeat):
                    gpu.push(case_id)
                    work.launch(0)
                    gpu.wait()
                    gpu.pop()
            if not partly:
                gpu.stop()


def main(
    argv: Sequence[str] | None = None,
    *,
    get_study: Callable[[str], Any] | None = None,
    get_gpu: Callable[[], Gpu] | None = None,
) -> int:
    """Run the child and return its exit code; tests replace the registry (`get_study`) and the GPU."""
    parser = argparse.ArgumentParser(prog="rooflab.profile.child", description=__doc__)
    parser.add_argument("study")
    parser.add_argument("case", nargs="+", help="case ids, as in the column `case`")
    parser.add_argument("--repeat", type=int, default=1, help="launches per case, each in its own range")
    parser.add_argument("--whole", action="store_true", help="one profiler range around all cases")
    parser.add_argument("--trace", type=Path, help="profile with torch.profiler and write this Chrome trace")
    arguments = parser.parse_args(argv)
    whole = arguments.whole or arguments.trace is not None
    try:
        if arguments.repeat < 1:
            raise UsageError(f"--repeat counts launches: at least 1, not {arguments.repeat}.")
        gpu = get_gpu() if get_gpu else Kineto(arguments.trace) if arguments.trace else Cuda()
        if get_study is None:
            from importlib import (
                import_module,  # studies are a layer above; only this process imports upwards
            )

            get_study = import_module("rooflab.studies").get
        profile(get_study(arguments.study), arguments.case, gpu, repeat=arguments.repeat, whole=whole)
    except RooflabError as error:
        failed_gate = isinstance(error, GateError)
        sentence = " ".join(str(error).split())
        print(f"rooflab.profile.child: {'gate' if failed_gate else 'error'}: {sentence}", file=sys.stderr)
        return 3 if failed_gate else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
