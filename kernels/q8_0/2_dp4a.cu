// q8_0 2, dp4a: four products an instruction, on activations that are quantised too.
//
// Purpose  rung 1 spends most of its instructions on turning bytes into floats; __dp4a multiplies the bytes as they are.
// Shapes   w [n][k / 32] Q8_0 blocks, x [k / 32] Q8_1 blocks, y [n] half; k a multiple of 32.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, a warp to a row, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  from rung 1: x comes in Q8_1. Eight lanes share a block, four quants each; the integer dot product is exact,
//          and is scaled by both blocks' scales.
#include "common/q8.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    q8_0_dp4a(const unsigned char* __restrict__ w, const unsigned char* __restrict__ x, __half* __restrict__ y, int n,
              int k) {
    const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    const int blocks = k / Q8_BLOCK, word = lane % 8;
    w += (size_t)row * blocks * Q8_0_BYTES;
    float sum = 0.0f;
#pragma unroll 4
    for (int b = lane / 8; b < blocks; b += 4) {
        const unsigned char* wb = w + (size_t)b * Q8_0_BYTES;
        const unsigned char* xb = x + (size_t)b * Q8_1_BYTES;
        const int dot = __dp4a(word_of(wb + 2 + 4 * word), reinterpret_cast<const int*>(xb + 4)[word], 0);
        sum = fmaf(static_cast<float>(dot), scale_by_bytes(wb) * scale_of(xb), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
