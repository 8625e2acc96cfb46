// q8_1 1, blocks: activations quantised to Q8_1 blocks, an element a lane.
//
// Purpose  __dp4a and the int8 tensor cores need both operands in bytes.
// Shapes   x [count x 32] half, out [count] Q8_1 blocks of 36 bytes: scale, scale times the sum of the quants, quants.
// Bytes    64 count read + 36 count written.
// Launch   THREADS threads a block, a warp to a Q8_1 block, ceil(count / (THREADS / 32)) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung.
#include "common/q8.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    q8_1_blocks(const __half* __restrict__ x, unsigned char* __restrict__ out, long long count) {
    const long long block = blockIdx.x * (long long)(THREADS / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (block >= count) return;
    const float value = __half2float(x[block * Q8_BLOCK + lane]);
    float largest = fabsf(value);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    const float scale = largest / 127.0f;
    const int quant = quant_of(value, inverse_scale(scale));
    const int sum = warp_sum(quant);
    out += block * Q8_1_BYTES;
    out[4 + lane] = static_cast<unsigned char>(quant);
    if (lane == 0) *reinterpret_cast<__half2*>(out) = __floats2half2_rn(scale, static_cast<float>(sum) * scale);
}
