// q8_0 3, scale: rung 2 with the scale in one 16-bit load.
//
// Purpose  a block starts at a multiple of 2 bytes, so its scale need not come as two bytes put together.
// Shapes   w [n][k / 32] Q8_0 blocks, x [k / 32] Q8_1 blocks, y [n] half; k a multiple of 32.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, a warp to a row, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  from rung 2: one load where there were two, and no shift and or. The quants still come as 16-bit halves.
#include "common/q8.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    q8_0_scale(const unsigned char* __restrict__ w, const unsigned char* __restrict__ x, __half* __restrict__ y, int n,
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
        sum = fmaf(static_cast<float>(dot), scale_of(wb) * scale_of(xb), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
