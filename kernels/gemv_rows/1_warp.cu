// gemv_rows 1, warp: a warp an output row, one weight a lane and load.
//
// Purpose  language models keep W as [n, k], so a row is contiguous and the obvious mapping is coalesced from the
//          start: lanes read neighbouring weights, and the warp adds up by shuffles.
// Shapes   w [n, k] FP16 row-major, x [k] FP16, y [n] FP16: y = w x, summed in FP32. Any n and k.
// Bytes    2 n k + 2 k + 2 n; a request is 64 bytes, 2 sectors.
// Launch   THREADS threads a block, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block.
// Below    nothing; every other rung is compared with this one.
#include <cuda_fp16.h>

#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_rows_warp(const __half* __restrict__ w, const __half* __restrict__ x, __half* __restrict__ y, unsigned n,
                   unsigned k) {
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= n) return;
    const __half* weights = w + row * (unsigned long long)k;
    float sum = 0.0f;
#pragma unroll 4
    for (unsigned i = lane; i < k; i += 32) sum = fmaf(__half2float(weights[i]), __half2float(x[i]), sum);
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
