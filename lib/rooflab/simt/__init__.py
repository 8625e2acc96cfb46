"""CUDA C++ on the CPU: the course's own kernels, run and watched without a GPU.

    simt.run(rung, grid, block, [x, y, ctypes.c_ulonglong(n)])           # a plain build: for the gate
    seen = simt.watch(rung, grid, block, [x, y, ctypes.c_ulonglong(n)])  # every load and store is looked at
    seen.faults; seen.lines(); seen.requests(); seen.accesses(); seen.executed("__dp4a")
    with simt.watched_launches() as launches:                            # whatever an op launches
        gemv.gemv(a, x, target="cpu")

The very .cu file is compiled by the host's C++ compiler against headers of ours (include/) that give CUDA's
names their meaning, and a runtime (runtime.cpp and its neighbours) runs every CUDA thread as a fibre:
barriers, warp operations and atomics wait for whom they should. It is an instrument for correctness and for
teaching. What it is not:

- It has no times. Nothing here is timed, and how long it takes says nothing about a GPU.
- Threads run in a fixed order, one at a time, a warp as far as it gets, blocks one after another (or all in
  turn, in a cooperative launch). A bug that shows only in another order shows only to the race detector.
- An access past the end of one shared array that lands in another of the same kernel is not found; constant
  memory and a thread's own arrays are not looked at. Nor is a struct that goes by value from memory into a
  function that calls itself, or back: g++ has no hook there.
- There are no caches: hints (__ldcg, __stcs, load_streaming) are plain accesses.
- Memory is simpler than a GPU's: every write is seen at once, fences do nothing, and every atomic access both
  releases and acquires. A missing __threadfence is not found.
- Asynchronous copies are done when their thread waits for them, all at once; one that no thread waits for is
  never done.
- Fast-math functions (__expf, rsqrtf, exp2_approx) are exact here; a product and a sum are fused only where
  fmaf says so. Matrix products are summed exactly and rounded once, where tensor cores cut off digits.
- Clocks, printf from several threads in GPU order, textures, inline PTX outside kernels/common/ptx and
  dynamic parallelism do not exist. What only Hopper has (wgmma, TMA, clusters) is refused by name.
- Linux with g++ or clang++ and binutils.
"""

from rooflab.simt.abi import EXECUTED, TO_HALF
from rooflab.simt.build import load
from rooflab.simt.faults import Fault, KernelFault
from rooflab.simt.run import Function, Limit, run
from rooflab.simt.watching import Watch, watch, watched_launches

__all__ = [
    "EXECUTED",
    "TO_HALF",
    "Fault",
    "Function",
    "KernelFault",
    "Limit",
    "Watch",
    "load",
    "run",
    "watch",
    "watched_launches",
]
