// Multiply a chunk of INT4 weights by x on the tensor cores.
#pragma once
#include "common/decoder/model.cuh"
#include "common/ptx/mma.cuh"

// Load sixteen halves of x: the two registers of each of four products.
__device__ inline void load_x16(unsigned (&b)[4][2], const __half* x) {
    const uint4 first = reinterpret_cast<const uint4*>(x)[0], second = reinterpret_cast<const uint4*>(x)[1];
    b[0][0] = first.x, b[0][1] = first.y, b[1][0] = first.z, b[1][1] = first.w;
    b[2][0] = second.x, b[2][1] = second.y, b[3][0] = second.z, b[3][1] = second.w;
}

// Multiply UNITS neighbouring units, unit i to acc[i][0] and acc[i][2]. Codes keep the offset that unpacking leaves (264
// and 24, see common/int4.cuh); the offset times the sum of x is subtracted at the end.
template <int UNITS>
__device__ inline void multiply_int4(float (&acc)[2][4], const uint4* w, const unsigned (&scales)[2], const __half* x,
                                     float x_sum) {
    constexpr int CHAINS = UNITS == 1 ? 4 : 2;  // of products a unit, because each waits for the one before it
    float sums[UNITS][CHAINS][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        unsigned b[4][2];
        load_x16(b, x + 64 * j);
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const uint4 codes = w[64 * u + 32 * j];
            const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                unsigned a[4];
                int4_tile_to_offset_halves(words[i], a);
                mma_m16n8k16_f16(sums[u][i % CHAINS], a, b[i]);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const float2 scale = __half22float2(as_half2(scales[u]));
        float low = sums[u][0][0] + sums[u][1][0], high = sums[u][0][2] + sums[u][1][2];
        if constexpr (CHAINS == 4) low += sums[u][2][0] + sums[u][3][0], high += sums[u][2][2] + sums[u][3][2];
        acc[u][0] += scale.x * (low - 264.0f * x_sum);
        acc[u][2] += scale.y * (high - 24.0f * x_sum);
    }
}
