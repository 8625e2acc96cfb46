// Q8_0
#pragma once
#include "common/decoder/model.cuh"

// Of blocks that share a scale, x is a number of 16 bits, 256 times a high byte plus a low one, for which there is a column
// each: products of bytes are exact, and weights need no unpacking.
__device__ inline void add_blocks(float (&acc)[2][4], const int (&sums)[4], unsigned low, unsigned high, float x_scale, int lane) {
    const __half2 lows = as_half2(low), highs = as_half2(high);
    const float by_low = __half2float(lane % 2 ? __high2half(lows) : __low2half(lows)) * x_scale;
    const float by_high = __half2float(lane % 2 ? __high2half(highs) : __low2half(highs)) * x_scale;
    acc[0][0] = fmaf(by_low, __int2float_rn(256 * sums[0] + sums[1]), acc[0][0]);
    acc[0][2] = fmaf(by_high, __int2float_rn(256 * sums[2] + sums[3]), acc[0][2]);
}

__device__ inline void multiply_q8(float (&acc)[2][4], const uint4* mine, const __half* x, const float* x_scales, int lane) {
    const int g = lane / 4, t = lane % 4;
    uint4 b = make_uint4(0, 0, 0, 0);
    if (g / 2 % 2 == t / 2) b = *reinterpret_cast<const uint4*>(x);
    int sums[4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = mine[64 * j], high = mine[64 * j + 32];
        const bool own = g / 4 == j;
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        const unsigned b0[2] = {own ? b.x : 0, own ? b.y : 0}, b1[2] = {own ? b.z : 0, own ? b.w : 0};
        mma_m16n8k32_s8(sums, first, b0);
        mma_m16n8k32_s8(sums, second, b1);
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(mine - lane + 128) + lane;
    add_blocks(acc, sums, scales[0], scales[32], x_scales[t], lane);
}
