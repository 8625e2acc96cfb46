// int4 5, split k: the warps of a block share its rows and divide k.
//
// Purpose  a row of 1536 weights is a load and a half for one warp; divided, small matrices have all loads under way.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales for every token (tokens are blocks of their own), x from L2.
// Launch   WARPS warps for ROWS rows; ceil(n / ROWS) x batch blocks.
// Macros   WARPS = 4: warps a block;
//          ROWS = 4: rows a block.
// Changed  warp w takes every WARPS-th stretch of 1024 weights; sums meet in shared memory in a fixed order.
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    int4_split_k(const uint4* __restrict__ qweight, const __half* __restrict__ scales, const uint4* __restrict__ x,
                 __half* __restrict__ y, unsigned n, unsigned groups, unsigned batch) {
    __shared__ float all[WARPS][ROWS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    const unsigned first = blockIdx.x * ROWS, pieces = groups * 4;
    x += token * (unsigned long long)pieces * 4;
    float sums[ROWS] = {};
    for (unsigned i = threadIdx.x; i < pieces; i += 32 * WARPS) {
        uint4 codes[ROWS];
        __half scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {  // beyond the matrix: the last row again, whose sum is not stored
            const unsigned long long row = min(first + r, n - 1);
            codes[r] = load_streaming(qweight + row * pieces + i);
            scale[r] = scales[row * groups + i / 4];
        }
        float parts[ROWS] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint4 eight = x[4 * i + j];
            const __half* values = reinterpret_cast<const __half*>(&eight);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const unsigned words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
                unsigned pairs[4];
                int4_to_halves(words[j], pairs);
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const float2 q = __half22float2(as_half2(pairs[s]));
                    parts[r] += q.x * __half2float(values[s]);
                    parts[r] += q.y * __half2float(values[s + 4]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sums[r] += __half2float(scale[r]) * parts[r];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        sums[r] = warp_sum(sums[r]);
        if (lane == 0) all[warp][r] = sums[r];
    }
    __syncthreads();
    if (threadIdx.x < ROWS && first + threadIdx.x < n) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += all[w][threadIdx.x];
        y[token * (unsigned long long)n + first + threadIdx.x] = __float2half(sum);
    }
}
