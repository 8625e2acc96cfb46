// Rows
#pragma once
#include "common/decoder/product_int4.cuh"
#include "common/decoder/product_q8_0.cuh"

// The same from rows as they lie in memory; x in the order that put_four gives it for boxes.
__device__ inline void multiply_half_box(float (&acc)[2][4], const uint4* slot, const __half* x, int lane) {
    unsigned b[4][2];
    sixteen(b, x, true);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned a[4];
        load_matrix_x4(a, slot + lane % 16 * 8 + ((2 * i + lane / 16) ^ lane % 8));
        mma_m16n8k16_f16(acc[i % 2], a, b[i]);
    }
}

__device__ inline void multiply_q8_box(float (&acc)[2][4], const uint4* slot, const uint4* scale_rows, const __half* x,
                                       const float* x_scales, int chunk, int lane) {
    const unsigned* b = reinterpret_cast<const unsigned*>(x);
    int sums[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // a block of 32
        unsigned w[4];
        load_matrix_x4(w, slot + lane % 16 * 8 + ((2 * j + lane / 16) ^ lane % 8));
        const bool own = lane / 8 == j;
        const unsigned here[2] = {own ? b[0] : 0, own ? b[4] : 0};
        mma_m16n8k32_s8(sums, w, here);
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(scale_rows) + lane / 4 * 4 + chunk % 2 * 2 + lane % 4 / 2;
    add_blocks(acc, sums, scales[0], scales[32], x_scales[lane % 4], lane);
}

// What the products of a warp are made of: this lane's share of a slot, of x and the sums of x, and which slot, unit and
// chunk it is.
struct Operands {
    uint4* mine;
    const __half* x;
    const float* x_sum;
    int turn, unit, chunk;
};

template <int F, int WIDTH>
__device__ inline void multiply_chunk(float (&acc)[2][4], const Operands& o, const Room& room, int lane) {
    if constexpr (F == HALF) multiply_half_box(acc, o.mine - lane, o.x, lane);
    if constexpr (F == Q8) multiply_q8_box(acc, o.mine - lane, room.scales + o.turn * SCALES, o.x, o.x_sum, o.chunk, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(room.scales + o.turn * SCALES)[lane / 4 * 2 + o.unit % 4 / 2];
        const unsigned scales[2] = {WIDTH == 1 && o.unit % 2 ? both.y : both.x, both.y};
        multiply_int4<WIDTH>(acc, o.mine, scales, o.x, *o.x_sum);
    }
}

template <int F>
__device__ inline int share_of_x(int lane) {
    return F == Q8 ? lane / 4 % 2 * 64 + lane / 8 * 16 + lane % 4 * 2 : lane % 4 * 16;
}

template <int F>
constexpr bool PAIRS_APART = F == INT4 || F == HALF;
