// batch_rmsnorm 1, pdl: add the parts of a branch to the residual and normalise its rows, a block a row.
//
// Purpose  a product divided along k leaves a sum a part, which are added up where they are read anyway; and the kernel is
//          there when the product ends, its weights in L2.
// Shapes   residual [n][width] float, read and, with SPLITS, written; parts [SPLITS][n][width] float; weights [width] half;
//          x [n][width] half; with LEFT left [n][2] float, what a row was multiplied by and the sum of its squares, as
//          products take it that scale by what their x lacks of its norm. width a multiple of 4 and at most 4 THREADS PARTS, all 16-byte
//          aligned.
// Bytes    n width (4 + 2), with SPLITS n width (4 + 4 + 2 + 4 SPLITS).
// Launch   THREADS threads a block, a block a row. As a dependent of the product.
// Macros   THREADS = 384: threads a block;
//          PARTS = 1: vectors of 4 numbers a thread keeps in registers;
//          SPLITS = 1: parts of the branch, 0 for none;
//          LEFT = 0: 1 to leave roots and squares.
// Below    rmsnorm/2_in_registers, whose branch is one part, rounded to halves.
#include <cuda_fp16.h>

#include "common/ptx/cache_hints.cuh"
#include "common/ptx/dependent_launch.cuh"
#include "common/reduce.cuh"

__device__ inline float4 widened(uint2 bits) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    batch_rmsnorm_pdl(float* residual, const float* parts, const __half* __restrict__ weights, __half* x, float* left, int width,
                      float epsilon) {
    __shared__ float by;
    const size_t row = (size_t)blockIdx.x * width, apart = (size_t)gridDim.x * width;
    let_successor_start();
#pragma unroll 1
    for (int k = 64 * threadIdx.x; k < width; k += 64 * THREADS) prefetch_l2(weights + k);
    wait_for_predecessor();
    float4 v[PARTS], factors[PARTS];
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        v[p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        factors[p] = v[p];
        if (k >= width) continue;
        factors[p] = widened(*reinterpret_cast<const uint2*>(weights + k));
        v[p] = __ldcg(reinterpret_cast<const float4*>(residual + row + k));
        float4 more[SPLITS + 1];
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) more[s] = __ldcg(reinterpret_cast<const float4*>(parts + s * apart + row + k));
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) v[p].x += more[s].x, v[p].y += more[s].y, v[p].z += more[s].z, v[p].w += more[s].w;
        if (SPLITS) *reinterpret_cast<float4*>(residual + row + k) = v[p];
        squares += v[p].x * v[p].x + v[p].y * v[p].y + v[p].z * v[p].z + v[p].w * v[p].w;
    }
    squares = block_sum<THREADS>(squares);
    if (threadIdx.x == 0) {
        by = rsqrtf(squares / width + epsilon);
        if (LEFT) left[2 * blockIdx.x] = by, left[2 * blockIdx.x + 1] = squares;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int k = 4 * (threadIdx.x + p * THREADS);
        const float4 w = factors[p];
        const __half2 low = __floats2half2_rn(v[p].x * by * w.x, v[p].y * by * w.y);
        const __half2 high = __floats2half2_rn(v[p].z * by * w.z, v[p].w * by * w.w);
        if (k < width)
            *reinterpret_cast<uint2*>(x + row + k) =
                make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
    }
}
