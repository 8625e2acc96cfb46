// sample_candidates 1, warp: choose the token among all blocks' candidates, store it, and advance to the next position.
//
// Purpose  where a step's token and its place are known on the device alone, the host need not hear of either.
// Shapes   candidates [count] of a value and a token; tokens [capacity]; position, place, length one int each. The
//          largest value wins, of equal ones the smallest token: it goes to tokens[position], place becomes position, and
//          length and position become position + 1.
// Bytes    8 count.
// Launch   a warp.
// Below    nothing: the host reads a token and sends it back.
struct Candidate {
    float value;
    int index;
};

__device__ inline bool better(Candidate a, Candidate b) { return a.value > b.value || (a.value == b.value && a.index < b.index); }

extern "C" __global__ void __launch_bounds__(32)
    sample_candidates_warp(const Candidate* __restrict__ candidates, int* __restrict__ tokens, int* __restrict__ position,
                    int* __restrict__ place, int* __restrict__ length, int count) {
    Candidate best = candidates[0];
    for (int i = threadIdx.x; i < count; i += 32)
        if (better(candidates[i], best)) best = candidates[i];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const Candidate other = {__shfl_xor_sync(0xffffffffu, best.value, offset),
                            __shfl_xor_sync(0xffffffffu, best.index, offset)};
        if (better(other, best)) best = other;
    }
    if (threadIdx.x) return;
    const int pos = *position;
    tokens[pos] = best.index;
    *place = pos;
    *length = pos + 1;
    *position = pos + 1;
}
