// gemv 1, strided: a warp an output column, its lanes one row of the matrix apart.
//
// Purpose  the mapping that comes to mind first, and what the course's root-cause story starts from: easy to write,
//          and every 4-byte load of a warp lies in a sector of its own.
// Shapes   a [k, n] float row-major, x [k] float, y [n] float: y = x a. Any n and k.
// Bytes    4 n k read once in the best case; 32 sectors of 32 bytes a request, of which 4 bytes each are used.
// Launch   THREADS threads a block, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 32: threads a block.
// Below    nothing; every other rung is compared with this one.
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_strided(const float* __restrict__ a, const float* __restrict__ x, float* __restrict__ y, unsigned n, unsigned k) {
    const unsigned lane = threadIdx.x % 32, column = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (column >= n) return;  // a whole warp leaves, and no barrier follows
    float sum = 0.0f;
#pragma unroll 4
    for (unsigned row = lane; row < k; row += 32) sum = fmaf(x[row], a[row * (unsigned long long)n + column], sum);
    sum = warp_sum(sum);
    if (lane == 0) y[column] = sum;
}
