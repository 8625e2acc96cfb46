// q8_0 1, float: y = W x with every weight turned into a float on its own.
//
// Purpose  the plain reading of the format, and the oracle of the other rungs: no rounding but float's.
// Shapes   w [n][k / 32] Q8_0 blocks, x [k] half, y [n] half; k a multiple of 32.
// Bytes    34/32 n k read; x and y beside.
// Launch   THREADS threads a block, a warp to a row, ceil(n / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung. A lane takes one element of every block: 1-byte loads, and the scale's two bytes.
#include "common/q8.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    q8_0_float(const unsigned char* __restrict__ w, const __half* __restrict__ x, __half* __restrict__ y, int n, int k) {
    const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    const unsigned char* block = w + (size_t)row * (k / Q8_BLOCK) * Q8_0_BYTES;
    float sum = 0.0f;
    for (int first = 0; first < k; first += Q8_BLOCK, block += Q8_0_BYTES) {
        const float quant = static_cast<signed char>(block[2 + lane]);
        sum = fmaf(quant * scale_by_bytes(block), __half2float(x[first + lane]), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = __float2half(sum);
}
