// What the rungs of attention share: their number format, and which keys a query sees.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef BF16
#define BF16 0
#endif

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
__device__ inline float inverse(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// The keys [first, last) that the query at `position` sees of `context`: all, or if causal those at its own position
// and before, at most the latest `window` of them.
struct Seen {
    int first, last;
};
__device__ inline Seen seen_from(int position, int context, bool causal, int window) {
    if (!causal) return {0, context};
    return {max(0, position + 1 - window), min(context, position + 1)};
}
