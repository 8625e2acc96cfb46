// rmsnorm 2, in registers: a row stays in registers from its sum to its norm.
//
// Purpose  rung 1 reads what it has just written, and may not load before it has stored: here all loads of a thread are
//          under way before the first is used.
// Shapes   residual [n][width] float, read and, if `add`, written; branch [n][width] half, not read without `add`;
//          weights [width] half; x [n][width] half. width a multiple of 4 and at most 4 THREADS PARTS, all 16-byte aligned.
// Bytes    n width (4 + 2), with `add` n width (4 + 4 + 2 + 2).
// Launch   THREADS threads a block, a block a row, PARTS times 4 numbers a thread.
// Macros   THREADS = 192: threads a block;
//          PARTS = 2: vectors of 4 numbers a thread keeps in registers.
// Changed  registers in the place of the second reading, and loads before all else.
#include <cuda_fp16.h>

#include "common/reduce.cuh"

__device__ inline float4 widened(uint2 bits) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_in_registers(float* residual, const __half* __restrict__ branch, const __half* __restrict__ weights,
                   __half* __restrict__ x, int width, int add, float epsilon) {
    __shared__ float by;
    const size_t row = (size_t)blockIdx.x * width;
    float4 v[PARTS];
    uint2 more[PARTS], factors[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        v[p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        more[p] = factors[p] = make_uint2(0, 0);
        if (k >= width) continue;
        v[p] = *reinterpret_cast<const float4*>(residual + row + k);
        if (add) more[p] = *reinterpret_cast<const uint2*>(branch + row + k);
        factors[p] = *reinterpret_cast<const uint2*>(weights + k);
    }
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        const float4 b = widened(more[p]);
        v[p].x += b.x, v[p].y += b.y, v[p].z += b.z, v[p].w += b.w;
        if (add && k < width) *reinterpret_cast<float4*>(residual + row + k) = v[p];
        squares += v[p].x * v[p].x + v[p].y * v[p].y + v[p].z * v[p].z + v[p].w * v[p].w;
    }
    squares = block_sum<THREADS>(squares);
    if (threadIdx.x == 0) by = rsqrtf(squares / width + epsilon);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        const float4 w = widened(factors[p]);
        const __half2 low = __floats2half2_rn(v[p].x * by * w.x, v[p].y * by * w.y);
        const __half2 high = __floats2half2_rn(v[p].z * by * w.z, v[p].w * by * w.w);
        if (k < width)
            *reinterpret_cast<uint2*>(x + row + k) =
                make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
    }
}
