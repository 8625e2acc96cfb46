// What the rungs of attention share: their number format, and which keys a query sees. Macro BF16: 1 for bfloat16, FP16 else.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/ptx/exp2.cuh"

#if BF16
typedef __nv_bfloat16 Element;
typedef __nv_bfloat162 Pair;
#else
typedef __half Element;
typedef __half2 Pair;
#endif

#define NOTHING __int_as_float(0xff800000)  // minus infinity: the score of a key that is not seen

// Two floats, each rounded to an Element: the first in the low half.
__device__ inline unsigned rounded_pair(float low, float high) {
#if BF16
    const Pair pair = __floats2bfloat162_rn(low, high);
#else
    const Pair pair = __floats2half2_rn(low, high);
#endif
    return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ inline float2 widened_pair(unsigned bits) {
#if BF16
    return __bfloat1622float2(*reinterpret_cast<const Pair*>(&bits));
#else
    return __half22float2(*reinterpret_cast<const Pair*>(&bits));
#endif
}

// One over the sum of a query's weights, and 0 for a query that saw no key. NaN stays NaN.
__device__ inline float inverse(float row_sum) { return row_sum == 0.0f ? 0.0f : 1.0f / row_sum; }

// The keys [first, last) that the query at `position` sees of `context`: all, or if causal those at its own position
// and before, at most the latest `window` of them.
struct Seen {
    int first, last;
};
__device__ inline Seen seen_from(int position, int context, bool causal, int window) {
    if (!causal) return {0, context};
    return {max(0, position + 1 - window), min(context, position + 1)};
}

// The head of a block where heads come in sections: x in a section, z the section.
__device__ inline int head_of_block() { return blockIdx.z * gridDim.x + blockIdx.x; }

__device__ inline float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// What a part of a context contributes to a head: its largest score and the sum of exp2(score - row_max); its
// unscaled outputs are in another array.
struct Part {
    float row_max, row_sum;
};

// Part i of n of the keys, cut at multiples of 16.
__device__ inline Seen part_of(Seen all, int i, int n) {
    const int each = (max(all.last - all.first, 0) + 16 * n - 1) / (16 * n) * 16;
    return {all.first + i * each, min(all.first + (i + 1) * each, all.last)};
}

// `count` parts as one, by a warp: what they come to, and four of their outputs. In the order of the parts, so that the
// same parts give the same bits. A part without keys weighs 0.
__device__ inline Part merge_stats(const Part* parts, int count) {
    Part all = {-1e30f, 0.0f};
    for (int p = threadIdx.x % 32; p < count; p += 32) all.row_max = fmaxf(all.row_max, parts[p].row_max);
    all.row_max = warp_max(all.row_max);
    for (int p = 0; p < count; ++p) all.row_sum += parts[p].row_sum * exp2_approx(parts[p].row_max - all.row_max);
    return all;
}
template <int WIDTH>
__device__ inline float4 merge_splits(const float* outputs, const Part* parts, int count, float row_max, int d) {
    float4 row_sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int p = 0; p < count; ++p) {
        const float weight = exp2_approx(parts[p].row_max - row_max);
        const float4 o = *reinterpret_cast<const float4*>(outputs + p * WIDTH + d);
        row_sum.x = fmaf(weight, o.x, row_sum.x), row_sum.y = fmaf(weight, o.y, row_sum.y);
        row_sum.z = fmaf(weight, o.z, row_sum.z), row_sum.w = fmaf(weight, o.w, row_sum.w);
    }
    return row_sum;
}

// The output of a head out of all its parts, by a warp; WIDTH is a multiple of 4.
template <int WIDTH>
__device__ inline void combine(Element* out, const float* outputs, const Part* parts, int count) {
    const Part all = merge_stats(parts, count);
    const float by = inverse(all.row_sum);
    for (int d = threadIdx.x % 32 * 4; d < WIDTH; d += 128) {
        const float4 o = merge_splits<WIDTH>(outputs, parts, count, all.row_max, d);
        *reinterpret_cast<uint2*>(out + d) =
            make_uint2(rounded_pair(o.x * by, o.y * by), rounded_pair(o.z * by, o.w * by));
    }
}

// The same to one larger part.
template <int WIDTH>
__device__ inline void combine(float* output, Part* part, const float* outputs, const Part* parts, int count) {
    const Part all = merge_stats(parts, count);
    for (int d = threadIdx.x % 32 * 4; d < WIDTH; d += 128)
        *reinterpret_cast<float4*>(output + d) = merge_splits<WIDTH>(outputs, parts, count, all.row_max, d);
    if (threadIdx.x % 32 == 0) *part = all;
}
