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

// That of the lane whose number differs by `bit`.
__device__ inline Candidate candidate_of_lane(Candidate mine, int bit) {
    return {__shfl_xor_sync(0xffffffffu, mine.value, bit), __shfl_xor_sync(0xffffffffu, mine.index, bit)};
}

__device__ inline Candidate best_of_warp(Candidate mine) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) mine = better(mine, candidate_of_lane(mine, bit));
    return mine;
}
