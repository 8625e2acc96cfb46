// int4 1, warp row: one warp a row, as the source has it.
//
// Purpose  the fused kernel at its plainest: codes become floats in registers, the FP16 weights never exist.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; x [batch, k] half; y [batch, n] half.
// Bytes    n k / 2 + n k / 64 weights and scales for every token (tokens are blocks of their own), x from L2.
// Launch   THREADS threads, a row each warp; ceil(n 32 / THREADS) x batch blocks.
// Macros   THREADS = 128: threads a block.
// Below    the two-op product: dequantise to FP16 in DRAM, then multiply.
#include <cuda_fp16.h>

#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    int4_warp_row(const unsigned* __restrict__ qweight, const __half* __restrict__ scales, const __half* __restrict__ x,
                  __half* __restrict__ y, unsigned n, unsigned groups, unsigned batch) {
    const unsigned row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
    if (row >= n) return;
    const unsigned words = groups * 16;
    qweight += row * (unsigned long long)words;
    scales += row * (unsigned long long)groups;
    x += token * (unsigned long long)words * 8;
    float sum = 0.0f;
    for (unsigned i = lane; i < words; i += 32) {
        const unsigned word = qweight[i];
        float part = 0.0f;
#pragma unroll
        for (int t = 0; t < 8; ++t) part += float(int(word >> 4 * t & 15) - 8) * __half2float(x[8 * i + t]);
        sum += __half2float(scales[i / 16]) * part;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[token * (unsigned long long)n + row] = __float2half(sum);
}
