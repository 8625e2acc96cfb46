// Lanes
#pragma once
#include "common/decoder/product_fp16.cuh"
#include "common/decoder/product_int4.cuh"
#include "common/decoder/product_q8_0.cuh"

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
    if constexpr (F == HALF) multiply_half(acc, o.mine, o.x);
    if constexpr (F == Q8) multiply_q8(acc, o.mine, o.x, o.x_sum, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(o.mine - lane + 128)[lane];
        const unsigned scales[2] = {WIDTH == 1 && o.unit % 2 ? both.y : both.x, both.y};
        multiply_int4<WIDTH>(acc, o.mine, scales, o.x, *o.x_sum);
    }
}

template <int F>
__device__ inline int share_of_x(int lane) {
    if (F == Q8) return lane / 4 % 2 * 64 + lane / 16 * 32 + lane % 4 * 8;
    return lane % 4 * (F == HALF ? 8 : 16);
}

template <int F>
constexpr bool PAIRS_APART = F == INT4;
