// Multiply a chunk of INT4 weights by x on the int8 tensor cores.
//
// x is two bytes a number, a high and a low one, in the scale of its group of 128: columns of the second operand in turn. A word
// of codes makes two operands of four bytes, where it makes four of two halves: three operations on the pipe that unpacks, not
// five, and half the products. Bytes are four times the code, which is the weight and 8: 32 times the sum of x is subtracted.
#pragma once
#include "common/decoder/model.cuh"
#include "common/ptx/mma.cuh"

// Multiply UNITS neighbouring units, unit i to acc[i][0] and acc[i][2]: all lanes of a row get its sum. x: this lane's high (g
// even) or low bytes of the chunk; x_sum: its scale and 32 times its sum, see store_x_bytes.
template <int UNITS>
__device__ inline void multiply_int4_bytes(float (&acc)[2][4], const uint4* w, const unsigned (&scales)[2], const __half* x,
                                           const float* x_sum) {
    constexpr unsigned CODES = 0x3c3c3c3cu;  // a word in tile order begins with the two upper bits of its last code
    const float2 scale_and_sum = *reinterpret_cast<const float2*>(x_sum);
    const int below = -__float_as_int(scale_and_sum.y);
    int sums[UNITS][2][4] = {};  // two chains of products, because each waits for the one before it
#pragma unroll
    for (int u = 0; u < UNITS; ++u) sums[u][0][1] = sums[u][0][3] = below;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 v = reinterpret_cast<const uint4*>(x)[4 * j];
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const uint4 codes = w[64 * u + 32 * j];
            const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w}, b[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                unsigned a[4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const unsigned word = words[2 * h + i];
                    a[2 * i] = word & CODES, a[2 * i + 1] = (word >> 4 | word << 28) & CODES;
                }
                mma_m16n8k32_s8(sums[u][h], a, b[h]);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const float2 scale = __half22float2(as_half2(scales[u]));
        int all[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) all[e] = sums[u][0][e] + sums[u][1][e];
        acc[u][0] = fmaf(scale.x * scale_and_sum.x, __int2float_rn(256 * all[0] + all[1]), acc[u][0]);
        acc[u][2] = fmaf(scale.y * scale_and_sum.x, __int2float_rn(256 * all[2] + all[3]), acc[u][2]);
    }
}
