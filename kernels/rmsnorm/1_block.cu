// rmsnorm 1, block: add a branch's output to the residual, then RMSNorm for the next branch.
//
// Purpose  a sum, a norm and a rounding separate two matrix products of a prompt: one kernel for the three reads and
//          writes the residual once.
// Shapes   residual [n][width] float, read and, if `add`, written; branch [n][width] half, not read without `add`;
//          weights [width] half; x [n][width] half. width a multiple of 4, all 16-byte aligned.
// Bytes    n width (4 + 2), with `add` n width (4 + 4 + 2 + 2); the second reading of a row meets the L1.
// Launch   THREADS threads a block, a block a row.
// Macros   THREADS = 256: threads a block.
// Below    nothing: torch's operators, each with a round trip to memory.
#include <cuda_fp16.h>

#include "common/reduce.cuh"

__device__ inline float4 widened(uint2 bits) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_block(float* residual, const __half* __restrict__ branch, const __half* __restrict__ weights,
                    __half* __restrict__ x, int width, int add, float epsilon) {
    __shared__ float by;
    const size_t row = (size_t)blockIdx.x * width;
    float squares = 0.0f;
    for (int k = 4 * threadIdx.x; k < width; k += 4 * THREADS) {
        float4 v = *reinterpret_cast<const float4*>(residual + row + k);
        if (add) {
            const float4 b = widened(*reinterpret_cast<const uint2*>(branch + row + k));
            v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
            *reinterpret_cast<float4*>(residual + row + k) = v;
        }
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    squares = block_sum<THREADS>(squares);
    if (threadIdx.x == 0) by = rsqrtf(squares / width + epsilon);
    __syncthreads();
    for (int k = 4 * threadIdx.x; k < width; k += 4 * THREADS) {
        const float4 v = *reinterpret_cast<const float4*>(residual + row + k);
        const float4 w = widened(*reinterpret_cast<const uint2*>(weights + k));
        const __half2 low = __floats2half2_rn(v.x * by * w.x, v.y * by * w.y);
        const __half2 high = __floats2half2_rn(v.z * by * w.z, v.w * by * w.w);
        *reinterpret_cast<uint2*>(x + row + k) =
            make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
    }
}
