// int4 3, magic: codes become numbers without a conversion from integer to float.
//
// Purpose  that conversion is an instruction for each weight, a slow one on sm_75; an OR with the right exponent does the same.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales for every token (tokens are blocks of their own), x from L2.
// Launch   THREADS threads, a row each warp; ceil(n 32 / THREADS) x batch blocks.
// Macros   THREADS = 128: threads a block.
// Changed  int4_to_halves makes two exact halves at a time (codes s and s + 4 of a word); products and sums stay FP32.
#include "common/int4.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    int4_magic(const uint4* __restrict__ qweight, const __half* __restrict__ scales, const uint4* __restrict__ x,
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
            const __half* values = reinterpret_cast<const __half*>(&eight);
            unsigned pairs[4];
            int4_to_halves(words[j], pairs);
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const float2 q = __half22float2(as_half2(pairs[s]));
                part += q.x * __half2float(values[s]);
                part += q.y * __half2float(values[s + 4]);
            }
        }
        sum += __half2float(scales[i / 4]) * part;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[token * (unsigned long long)n + row] = __float2half(sum);
}
