// Multiply a chunk of Q8_0 weights by x on the int8 tensor cores.
//
// x is a number of 16 bits in a scale of its block of 32: 256 times a high byte plus a low one. Columns 2 b and 2 b + 1 of
// the second operand are these bytes where k belongs to block b of the chunk and zero elsewhere, so that every lane ends
// with the sums of one block, which it scales. Products of bytes are exact, and weights need no unpacking.
#pragma once
#include "common/decoder/model.cuh"
#include "common/ptx/mma.cuh"

// Scale a block's sums of high and of low bytes and add them to rows g and g + 8.
__device__ inline void add_blocks(float (&acc)[2][4], const int (&sums)[4], unsigned low, unsigned high, float x_scale,
                                  int lane) {
    const __half2 lows = as_half2(low), highs = as_half2(high);
    const float scale_low = __half2float(lane % 2 ? __high2half(lows) : __low2half(lows)) * x_scale;
    const float scale_high = __half2float(lane % 2 ? __high2half(highs) : __low2half(highs)) * x_scale;
    acc[0][0] = fmaf(scale_low, __int2float_rn(256 * sums[0] + sums[1]), acc[0][0]);
    acc[0][2] = fmaf(scale_high, __int2float_rn(256 * sums[2] + sums[3]), acc[0][2]);
}

// w: this lane's share of a slot, as stream_cp_async.cuh copies it; x: its share of the chunk's bytes of x.
__device__ inline void multiply_q8(float (&acc)[2][4], const uint4* w, const __half* x, const float* x_scales, int lane) {
    const int g = lane / 4, t = lane % 4;
    uint4 b = make_uint4(0, 0, 0, 0);
    if (g / 2 % 2 == t / 2) b = *reinterpret_cast<const uint4*>(x);
    int parts[2][4] = {};  // two chains of products, because each waits for the one before it
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = w[64 * j], high = w[64 * j + 32];
        const bool own = g / 4 == j;
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        const unsigned b0[2] = {own ? b.x : 0, own ? b.y : 0}, b1[2] = {own ? b.z : 0, own ? b.w : 0};
        mma_m16n8k32_s8(parts[0], first, b0);
        mma_m16n8k32_s8(parts[1], second, b1);
    }
    int sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = parts[0][i] + parts[1][i];
    const unsigned* scales = reinterpret_cast<const unsigned*>(w - lane + 128) + lane / 2;
    add_blocks(acc, sums, scales[0], scales[16], x_scales[t], lane);
}
