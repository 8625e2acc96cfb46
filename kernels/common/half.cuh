// FP16 on the device: eight numbers that arrived as 16 bytes, multiplied and summed in FP32.
#pragma once
#include <cuda_fp16.h>

// sum + the products of eight weights with eight activations, each pair multiplied and added with one rounding.
__device__ inline float multiply_add_8(uint4 w, uint4 x, float sum) {
    const unsigned weights[4] = {w.x, w.y, w.z, w.w}, activations[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 a = __half22float2(*reinterpret_cast<const __half2*>(weights + i));
        const float2 b = __half22float2(*reinterpret_cast<const __half2*>(activations + i));
        sum = fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
    }
    return sum;
}
