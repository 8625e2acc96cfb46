// Numbers that say that they are there, so that who waits for them needs no counter beside them.
//
// Memory for them is zero. A float is stored with its bits turned over, which are never all zero: all bits set would be a NaN
// that no instruction makes. Who has read them clears them for the next launch.
#pragma once
#include "common/ptx/ordered.cuh"

__device__ inline void store_flagged(uint4* to, float4 v) {
    store_relaxed(to, make_uint4(~__float_as_uint(v.x), ~__float_as_uint(v.y), ~__float_as_uint(v.z), ~__float_as_uint(v.w)));
}

// Whether one of four has not come yet.
__device__ inline bool missing(uint4 v) { return v.x == 0 || v.y == 0 || v.z == 0 || v.w == 0; }

__device__ inline float4 unflagged(uint4 v) {
    return make_float4(__uint_as_float(~v.x), __uint_as_float(~v.y), __uint_as_float(~v.z), __uint_as_float(~v.w));
}
