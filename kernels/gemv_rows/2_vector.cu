// gemv_rows 2, vector: eight weights a lane and load.
//
// Purpose  16 bytes a load: an eighth of the load instructions, and a request of 512 bytes.
// Shapes   w [n, k] FP16 row-major, x [k] FP16, both 16-byte aligned, k a multiple of 8; y [n] FP16: y = w x.
// Bytes    2 n k + 2 k + 2 n; 16 sectors a request.
// Launch   THREADS threads a block, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  uint4 for __half.
#include "common/half.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_rows_vector(const uint4* __restrict__ w, const uint4* __restrict__ x, __half* __restrict__ y, unsigned n,
                     unsigned k) {
    const unsigned lane = threadIdx.x % 32, row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, chunks = k / 8;
    if (row >= n) return;
    const uint4* weights = w + row * (unsigned long long)chunks;
    float sum = 0.0f;
#pragma unroll 1
    for (unsigned i = lane; i < chunks; i += 32) sum = multiply_add_8(weights[i], x[i], sum);
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
