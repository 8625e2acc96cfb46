// Multiply slots that hold rows as they lie in memory, swizzled, as stream_tma.cuh copies them.
#pragma once
#include "common/decoder/product_int4.cuh"
#include "common/decoder/product_q8_0.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

__device__ inline void multiply_fp16_rows(float (&acc)[2][4], const uint4* slot, const __half* x, int lane) {
    unsigned b[4][2];
    load_x16(b, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned a[4];
        load_matrix_x4(a, slot + lane % 16 * 8 + ((2 * i + lane / 16) ^ lane % 8));
        mma_m16n8k16_f16(acc[i % 2], a, b[i]);
    }
}

__device__ inline void multiply_q8_rows(float (&acc)[2][4], const uint4* slot, const uint4* scale_rows, const __half* x,
                                        const float* x_scales, int chunk, int lane) {
    const unsigned* b = reinterpret_cast<const unsigned*>(x);
    int sums[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // a block of 32
        unsigned w[4];
        load_matrix_x4(w, slot + lane % 16 * 8 + ((2 * j + lane / 16) ^ lane % 8));
        const bool own = lane / 8 == j;
        const unsigned columns[2] = {own ? b[0] : 0, own ? b[4] : 0};
        mma_m16n8k32_s8(sums, w, columns);
    }
    const unsigned* scales = reinterpret_cast<const unsigned*>(scale_rows) + lane / 4 * 4 + chunk % 2 * 2 + lane % 4 / 2;
    add_blocks(acc, sums, scales[0], scales[32], x_scales[lane % 4], lane);
}

// What a warp multiplies: this lane's share of a slot, of x and of the sums of x, and the numbers of slot, unit and chunk.
struct Operands {
    uint4* w;
    const __half* x;
    const float* x_sum;
    int slot, unit, chunk;
};

template <int F, int WIDTH>
__device__ inline void multiply_chunk(float (&acc)[2][4], const Operands& o, const Smem& smem, int lane) {
    if constexpr (F == FP16) multiply_fp16_rows(acc, o.w - lane, o.x, lane);
    if constexpr (F == Q8) multiply_q8_rows(acc, o.w - lane, smem.scales + o.slot * SCALES, o.x, o.x_sum, o.chunk, lane);
    if constexpr (F == INT4) {
        const uint2 both = reinterpret_cast<const uint2*>(smem.scales + o.slot * SCALES)[lane / 4 * 2 + o.unit % 4 / 2];
        const unsigned scales[2] = {WIDTH == 1 && o.unit % 2 ? both.y : both.x, both.y};
        multiply_int4<WIDTH>(acc, o.w, scales, o.x, *o.x_sum);
    }
}

// Where a lane's x starts in a chunk, in halves.
template <int F>
__device__ inline int x_offset(int lane) {
    return F == Q8 ? lane / 4 % 2 * 64 + lane / 8 * 16 + lane % 4 * 2 : lane % 4 * 16;
}

// Whether x of format F is permuted within 64 elements: see x_index.
template <int F>
constexpr bool X_PERMUTED = F == INT4 || F == FP16;
static_assert(!BYTES_OF_INT4);
