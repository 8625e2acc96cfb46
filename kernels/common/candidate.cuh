// A token and what speaks for it; of equals the first is the better.
#pragma once

struct Candidate {
    float value;
    int index;
};

__device__ inline Candidate no_candidate() { return {__int_as_float(0xff800000), 0x7fffffff}; }

__device__ inline Candidate better(Candidate a, Candidate b) {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ inline Candidate best_of_warp(Candidate mine) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const Candidate other = {__shfl_xor_sync(0xffffffffu, mine.value, offset),
                                 __shfl_xor_sync(0xffffffffu, mine.index, offset)};
        mine = better(mine, other);
    }
    return mine;
}
