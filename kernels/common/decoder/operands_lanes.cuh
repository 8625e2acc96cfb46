// Multiply slots that hold each lane's operands side by side, as stream_cp_async.cuh copies them.
#pragma once
#include "common/decoder/product_fp16.cuh"
#include "common/decoder/product_int4.cuh"
#include "common/decoder/product_int4_bytes.cuh"
#include "common/decoder/product_q8_0.cuh"

// What a warp multiplies: this lane's share of a slot, of x and of the sums of x, and the numbers of slot, unit and chunk.
struct Operands {
    uint4* w;
    const __half* x;
    const float* x_sum;
    int slot, unit, chunk;
};

template <int F, int WIDTH>
__device__ inline void multiply_chunk(float (&acc)[2][4], const Operands& o, const Smem& smem, int lane) {
    if constexpr (F == FP16) multiply_fp16(acc, o.w, o.x);
    if constexpr (F == Q8) multiply_q8(acc, o.w, o.x, o.x_sum, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(o.w - lane + 128)[lane / 4 * 2 + o.unit % INT4_UNITS / 2];
        const unsigned scales[2] = {WIDTH == 1 && o.unit % 2 ? both.y : both.x, both.y};
        if constexpr (AS_BYTES<F>) multiply_int4_bytes<WIDTH>(acc, o.w, scales, o.x, o.x_sum);
        else multiply_int4<WIDTH>(acc, o.w, scales, o.x, *o.x_sum);
    }
}

// Where a lane's x starts in a chunk, in halves.
template <int F>
__device__ inline int x_offset(int lane) {
    if (F == Q8) return lane / 4 % 2 * 64 + lane / 16 * 32 + lane % 4 * 8;
    if (F == INT4 && AS_BYTES<F>) return lane / 4 % 2 * 64 + lane % 4 * 8;
    return lane % 4 * (F == FP16 ? 8 : 16);
}

// Whether x of format F is permuted within 64 elements: see x_index.
template <int F>
constexpr bool X_PERMUTED = F == INT4 && !AS_BYTES<F>;
