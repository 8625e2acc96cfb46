// FP16 products of a chunk.
#pragma once
#include "common/decoder/model.cuh"

__device__ inline void multiply_half(float (&acc)[2][4], const uint4* mine, const __half* x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = mine[64 * j], high = mine[64 * j + 32];
        const uint4 b = *reinterpret_cast<const uint4*>(x + 32 * j);
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        const unsigned b0[2] = {b.x, b.y}, b1[2] = {b.z, b.w};
        mma_m16n8k16_f16(acc[0], first, b0);
        mma_m16n8k16_f16(acc[1], second, b1);
    }
}
