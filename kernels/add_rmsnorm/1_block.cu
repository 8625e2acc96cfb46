// add_rmsnorm 1, block: normalise a branch's output, add it to the residual, and normalise that for the next branch.
//
// Purpose  with norms on both sides of a branch, two norms, a sum and a rounding separate two products; every number
//          is read once and stays in registers.
// Shapes   residual [n][width] float, read and, if `add`, written: (residual + norm(branch) after) factor; branch [n][width]
//          half and after [width] half, not read without `add`; before [width] half, not read without `weighted`; x
//          [n][width] half = norm(residual) before, or without `weighted` norm(residual) alone; roots [n] float, what that
//          norm divided by. width a multiple of 4, 4 THREADS PARTS at most, all 16-byte aligned.
// Bytes    n width (4 + 2), with `add` n width (4 + 4 + 2 + 2).
// Launch   THREADS threads a block, a block a row.
// Macros   THREADS = 512: threads a block;
//          PARTS = 2: vectors of 4 numbers a thread keeps in registers.
// Below    rmsnorm of the plain decoder, which has one norm.
#include "common/reduce.cuh"
#include "common/rows.cuh"

__device__ inline float4 widened(uint2 bits) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ inline float squared(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

extern "C" __global__ void __launch_bounds__(THREADS)
    add_rmsnorm_block(float* __restrict__ residual, const __half* __restrict__ branch, const __half* __restrict__ after,
                    const __half* __restrict__ before, __half* __restrict__ x, float* __restrict__ roots, int width, int add,
                    int weighted, float factor, float epsilon) {
    __shared__ float by;
    const size_t row = (size_t)blockIdx.x * width;
    float4 v[PARTS], b[PARTS], w[PARTS], next[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const int k = 4 * (i * THREADS + threadIdx.x);
        v[i] = b[i] = w[i] = next[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (k >= width) continue;
        v[i] = *reinterpret_cast<const float4*>(residual + row + k);
        if (add) {
            b[i] = widened(*reinterpret_cast<const uint2*>(branch + row + k));
            w[i] = widened(*reinterpret_cast<const uint2*>(after + k));
        }
        next[i] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        if (weighted) next[i] = widened(*reinterpret_cast<const uint2*>(before + k));
    }
    if (add) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) squares += squared(b[i]);
        squares = block_sum<THREADS>(squares);
        if (threadIdx.x == 0) by = rsqrtf(squares / width + epsilon);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const int k = 4 * (i * THREADS + threadIdx.x);
            v[i].x = (v[i].x + b[i].x * by * w[i].x) * factor;
            v[i].y = (v[i].y + b[i].y * by * w[i].y) * factor;
            v[i].z = (v[i].z + b[i].z * by * w[i].z) * factor;
            v[i].w = (v[i].w + b[i].w * by * w[i].w) * factor;
            if (k < width) *reinterpret_cast<float4*>(residual + row + k) = v[i];
        }
        __syncthreads();  // all have read `by`
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) squares += squared(v[i]);
    squares = block_sum<THREADS>(squares);
    if (threadIdx.x == 0) {
        by = rsqrtf(squares / width + epsilon);
        roots[blockIdx.x] = sqrtf(squares / width + epsilon);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const int k = 4 * (i * THREADS + threadIdx.x);
        if (k >= width) continue;
        const __half2 low = __floats2half2_rn(v[i].x * by * next[i].x, v[i].y * by * next[i].y);
        const __half2 high = __floats2half2_rn(v[i].z * by * next[i].z, v[i].w * by * next[i].w);
        *reinterpret_cast<uint2*>(x + row + k) =
            make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
    }
}
