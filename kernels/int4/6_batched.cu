// int4 6, batched: every weight is read and unpacked once for up to TOKENS tokens.
//
// Purpose  rungs 1 to 5 read the weights again for every token; here a token costs arithmetic and its x, not weights.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales for every TOKENS tokens, x from L2.
// Launch   WARPS warps for ROWS rows; ceil(n / ROWS) x ceil(batch / TOKENS) blocks.
// Macros   WARPS = 4: warps a block;
//          ROWS = 4: rows a block;
//          TOKENS = 4: tokens that share a weight.
// Changed  sums [ROWS][TOKENS]; weights are scaled when they are unpacked, once for all tokens.
#include "common/int4.cuh"
#include "common/ptx/cache_hints.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    int4_batched(const uint4* __restrict__ qweight, const __half* __restrict__ scales, const uint4* __restrict__ x,
                 __half* __restrict__ y, unsigned n, unsigned groups, unsigned batch) {
    __shared__ float all[WARPS][ROWS * TOKENS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y * TOKENS;
    const unsigned first = blockIdx.x * ROWS, pieces = groups * 4;
    float sums[ROWS][TOKENS] = {};
    for (unsigned i = threadIdx.x; i < pieces; i += 32 * WARPS) {
        uint4 codes[ROWS];
        float scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {  // beyond the matrix: the last row again, whose sums are not stored
            const unsigned long long row = min(first + r, n - 1);
            codes[r] = load_streaming(qweight + row * pieces + i);
            scale[r] = __half2float(scales[row * groups + i / 4]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float weights[ROWS][8];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const unsigned words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
                unsigned pairs[4];
                int4_to_halves(words[j], pairs);
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const float2 q = __half22float2(as_half2(pairs[s]));
                    weights[r][s] = q.x * scale[r];
                    weights[r][s + 4] = q.y * scale[r];
                }
            }
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) {  // beyond the batch: the last token again
                const uint4 eight = x[min(token + t, batch - 1) * (unsigned long long)pieces * 4 + 4 * i + j];
                const __half* values = reinterpret_cast<const __half*>(&eight);
#pragma unroll
                for (int s = 0; s < 8; ++s) {
                    const float value = __half2float(values[s]);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) sums[r][t] += weights[r][s] * value;
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            sums[r][t] = warp_sum(sums[r][t]);
            if (lane == 0) all[warp][t * ROWS + r] = sums[r][t];
        }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < ROWS * TOKENS; i += 32 * WARPS) {
        const unsigned t = token + i / ROWS, row = first + i % ROWS;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += all[w][i];
        if (t < batch && row < n) y[t * (unsigned long long)n + row] = __float2half(sum);
    }
}
