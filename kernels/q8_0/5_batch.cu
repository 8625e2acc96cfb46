// q8_0 5, batch: the weights in a lane's registers serve BATCH tokens, and those of a token ROWS rows.
//
// Purpose  the weights are nearly all the bytes, so more tokens should cost next to nothing.
// Shapes   quants [n][k] int8 and scales [n][k / 32] half, xq [BATCH][k] int8 and xs [BATCH][k / 32] half,
//          y [BATCH][n] half; quants and xq 16-byte aligned, k a multiple of 32.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, ceil(n / ROWS) blocks.
// Macros   THREADS = 128: threads a block;
//          BATCH = 4: tokens;
//          ROWS = 4: rows a block;
//          RESIDENT = 4: blocks an SM that the compiler must leave registers for.
// Changed  from rung 4: a block takes ROWS rows and its warps divide k; their sums meet in shared memory.
#include "common/ptx/cache_hints.cuh"
#include "common/q8.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    q8_0_batch(const uint4* __restrict__ quants, const __half* __restrict__ scales, const uint4* __restrict__ xq,
               const __half* __restrict__ xs, __half* __restrict__ y, int n, int k) {
    __shared__ float sums[THREADS / 32][ROWS * BATCH];
    const int first_row = blockIdx.x * ROWS, chunks = k / 16, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[ROWS][BATCH] = {};
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        uint4 q[ROWS];
        float scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {  // rows beyond the last repeat it, and are not stored
            const size_t row = min(first_row + r, n - 1);
            q[r] = load_streaming(quants + row * chunks + c);
            scale[r] = __half2float(scales[row * (chunks / 2) + c / 2]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const uint4 x = __ldg(xq + (size_t)b * chunks + c);
            const float x_scale = __half2float(xs[(size_t)b * (chunks / 2) + c / 2]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                sum[r][b] = fmaf(static_cast<float>(dot16(q[r], x)), scale[r] * x_scale, sum[r][b]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS * BATCH; ++i) {
        const float total = warp_sum(sum[i / BATCH][i % BATCH]);
        if (lane == 0) sums[warp][i] = total;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * BATCH; i += THREADS) {
        float total = 0.0f;
        for (int part = 0; part < THREADS / 32; ++part) total += sums[part][i];
        if (first_row + i / BATCH < n) y[(size_t)(i % BATCH) * n + first_row + i / BATCH] = __float2half(total);
    }
}
