// int4 2, vector: 16-byte loads of codes and of x.
//
// Purpose  a load instruction brings 32 weights instead of 8, and a lane's x comes in 16-byte pieces, not 2-byte ones.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales for every token (tokens are blocks of their own), x from L2.
// Launch   THREADS threads, a row each warp; ceil(n 32 / THREADS) x batch blocks.
// Macros   THREADS = 128: threads a block.
// Changed  a lane takes 32 neighbouring weights at a time, a quarter of a group, with one scale.
#include <cuda_fp16.h>

#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    int4_vector(const uint4* __restrict__ qweight, const __half* __restrict__ scales, const uint4* __restrict__ x,
                __half* __restrict__ y, unsigned n, unsigned groups, unsigned batch) {
    const unsigned row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    if (row >= n) return;
    const unsigned pieces = groups * 4;  // of 32 weights
    qweight += row * (unsigned long long)pieces;
    scales += row * (unsigned long long)groups;
    x += token * (unsigned long long)pieces * 4;
    float sum = 0.0f;
    for (unsigned i = lane; i < pieces; i += 32) {
        const uint4 codes = qweight[i];
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint4 eight = x[4 * i + j];
            const __half2* pairs = reinterpret_cast<const __half2*>(&eight);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const float2 value = __half22float2(pairs[p]);
                part += float(int(words[j] >> 8 * p & 15) - 8) * value.x;
                part += float(int(words[j] >> (8 * p + 4) & 15) - 8) * value.y;
            }
        }
        sum += __half2float(scales[i / 4]) * part;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[token * (unsigned long long)n + row] = __float2half(sum);
}
