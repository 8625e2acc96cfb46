// int4_dequantise 1, words: INT4 weights to FP16 ones in DRAM, eight a thread.
//
// Purpose  the first half of the fair two-op product: what unpacking costs when it is a kernel of its own.
// Shapes   row order: qweight [n, k / 8] words, scales [n, k / 128] half; out [n, k] half, 16-byte aligned.
// Bytes    n k / 2 + n k / 64 read, 2 n k written.
// Launch   THREADS threads, a word each; ceil(n k / 8 / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Below    torch's own operations: shift, mask, subtract, widen, multiply, each a pass over DRAM.
#include "common/int4.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    int4_dequantise(const unsigned* __restrict__ qweight, const __half* __restrict__ scales, uint4* __restrict__ out,
                    unsigned long long words) {
    const unsigned long long i = blockIdx.x * (unsigned long long)THREADS + threadIdx.x;
    if (i >= words) return;
    unsigned pairs[4];  // codes s and s + 4
    int4_to_halves(qweight[i], pairs);
    const __half2 scale = __half2half2(scales[i / 16]);
    __half2 halves[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) halves[s] = __hmul2(as_half2(pairs[s]), scale);
    uint4 v;
    v.x = as_word(__lows2half2(halves[0], halves[1]));
    v.y = as_word(__lows2half2(halves[2], halves[3]));
    v.z = as_word(__highs2half2(halves[0], halves[1]));
    v.w = as_word(__highs2half2(halves[2], halves[3]));
    out[i] = v;
}
