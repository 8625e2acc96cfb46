// int4 4, in flight: several rows a warp, their loads under way together.
//
// Purpose  ROWS times the bytes in flight, and x is loaded and widened once for ROWS rows.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales for every token (tokens are blocks of their own), x from L2.
// Launch   THREADS threads, ROWS rows each warp; ceil(n 32 / (THREADS ROWS)) x batch blocks.
// Macros   THREADS = 128: threads a block;
//          ROWS = 2: rows a warp.
// Changed  a warp walks through ROWS rows at once; loads of codes don't ask L1 to keep the line.
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    int4_in_flight(const uint4* __restrict__ qweight, const __half* __restrict__ scales, const uint4* __restrict__ x,
                   __half* __restrict__ y, unsigned n, unsigned groups, unsigned batch) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    const unsigned first = (blockIdx.x * (THREADS / 32) + warp) * ROWS, pieces = groups * 4;
    x += token * (unsigned long long)pieces * 4;
    float sums[ROWS] = {};
    for (unsigned i = lane; i < pieces; i += 32) {
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
        if (lane == 0 && first + r < n) y[token * (unsigned long long)n + first + r] = __float2half(sums[r]);
    }
}
