// Rows of FP16 between a decoder's products: eight numbers at a time as floats, from halves or from Q8_0 planes.
#pragma once
#include <cuda_fp16.h>

struct Eight {
    float at[8];
};

__device__ inline Eight eight_from(uint4 bits) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    Eight v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(words + i));
        v.at[2 * i] = pair.x;
        v.at[2 * i + 1] = pair.y;
    }
    return v;
}

__device__ inline uint4 eight_halves(const Eight& v) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __half2 pair = __floats2half2_rn(v.at[2 * i], v.at[2 * i + 1]);
        words[i] = *reinterpret_cast<const unsigned*>(&pair);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Numbers 8 i to 8 i + 7 of a table of halves, or, with QUANTISED, of int8 quants with a half of a scale every 32.
template <bool QUANTISED>
__device__ inline Eight eight_of_table(const void* codes, const __half* scales, size_t i) {
    if (!QUANTISED) return eight_from(static_cast<const uint4*>(codes)[i]);
    const uint2 bits = static_cast<const uint2*>(codes)[i];
    const float scale = __half2float(scales[i / 4]);
    Eight v;
#pragma unroll
    for (int j = 0; j < 8; ++j) v.at[j] = scale * (signed char)((j < 4 ? bits.x : bits.y) >> j % 4 * 8);
    return v;
}
