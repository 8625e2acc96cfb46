// q8_1 2, planes: quants in one plane and scales in another, eight elements a lane.
//
// Purpose  what the products on planes read; and wide loads and stores, which 36-byte blocks don't allow either.
// Shapes   x [count x 32] half, 16-byte aligned; quants [count x 32] int8, 8-byte aligned; scales [count] half.
// Bytes    64 count read + 34 count written.
// Launch   THREADS threads a block, four to a Q8_1 block, ceil(4 count / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  from rung 1: planes, 16-byte loads, 8-byte stores; the sum of the quants, which Q8_0 weights have no use
//          for, is left out.
#include "common/q8.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    q8_1_planes(const uint4* __restrict__ x, uint2* __restrict__ quants, __half* __restrict__ scales, long long count) {
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    const uint4 raw = x[min(i, 4 * count - 1)];  // lanes beyond the end repeat the last one, and store nothing
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    float value[8], largest = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        value[j] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[j / 2] >> 16 * (j % 2))));
        largest = fmaxf(largest, fabsf(value[j]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float scale = largest / 127.0f, inverse = inverse_scale(scale);
    unsigned packed[2] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) packed[j / 4] |= (quant_of(value[j], inverse) & 0xffu) << 8 * (j % 4);
    if (i >= 4 * count) return;
    quants[i] = make_uint2(packed[0], packed[1]);
    if (i % 4 == 0) scales[i / 4] = __float2half(scale);
}
