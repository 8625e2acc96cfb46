// Multiply a chunk of FP16 weights by x on the tensor cores.
//
// The weights are the first operand (16 rows), x the second one, the same in all 8 columns: rows g and g + 8 of the product
// come to acc[.][0] and acc[.][2] of lanes with t = 0.
#pragma once
#include "common/decoder/model.cuh"
#include "common/ptx/mma.cuh"

// w: this lane's share of a slot, as stream_cp_async.cuh copies it; x: its share of the chunk's x.
__device__ inline void multiply_fp16(float (&acc)[2][4], const uint4* w, const __half* x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 low = w[64 * j], high = w[64 * j + 32];
        const uint4 b = *reinterpret_cast<const uint4*>(x + 32 * j);
        const unsigned first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        const unsigned b0[2] = {b.x, b.y}, b1[2] = {b.z, b.w};
        mma_m16n8k16_f16(acc[0], first, b0);
        mma_m16n8k16_f16(acc[1], second, b1);
    }
}
