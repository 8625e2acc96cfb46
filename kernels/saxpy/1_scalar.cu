// saxpy 1, scalar: z = a x + y, one element a thread.
//
// Purpose  the course's first kernel: it proves that compiling, launching, gating and timing work.
// Shapes   x, y, z [n] float.
// Bytes    8 n read + 4 n written; 2 n FLOPs.
// Launch   THREADS threads a block, ceil(n / THREADS) blocks. Built with -DDEPENDENT=1 or 2 it may be launched as a
//          programmatic dependent: it then waits for its predecessor itself, and says that its successor may start
//          as soon as it runs (1) or when its own work is done (2).
// Macros   THREADS = 256: threads a block;
//          DEPENDENT = 0: 1 or 2 for a programmatic dependent launch: the successor may start at once (1) or after the
//              stores (2).
// Below    this is the first rung.
#include "common/ptx/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    saxpy_scalar(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z, float a,
                 unsigned long long n) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
#if DEPENDENT == 1
    let_successor_start();
#endif
#if DEPENDENT
    wait_for_predecessor();
#endif
    if (i < n) z[i] = fmaf(a, x[i], y[i]);
#if DEPENDENT == 2
    let_successor_start();
#endif
}
