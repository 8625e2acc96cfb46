// take_token 1, warp: the token that all blocks' candidates come to is written down, and the next place begins.
//
// Purpose  where a step's token and its place are known on the device alone, the host need not hear of either.
// Shapes   bests [count] candidates of a value and a token; tokens [capacity]; position, place, length one int each. The
//          largest value wins, of equal ones the smallest token: it goes to tokens[position], place becomes position, and
//          length and position become position + 1.
// Bytes    8 count.
// Launch   a warp.
// Below    nothing: the host reads a token and sends it back.
struct Best {
    float value;
    int index;
};

__device__ inline bool better(Best a, Best b) { return a.value > b.value || (a.value == b.value && a.index < b.index); }

extern "C" __global__ void __launch_bounds__(32)
    take_token_warp(const Best* __restrict__ bests, int* __restrict__ tokens, int* __restrict__ position,
                    int* __restrict__ place, int* __restrict__ length, int count) {
    Best best = bests[0];
    for (int i = threadIdx.x; i < count; i += 32)
        if (better(bests[i], best)) best = bests[i];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const Best other = {__shfl_xor_sync(0xffffffffu, best.value, offset),
                            __shfl_xor_sync(0xffffffffu, best.index, offset)};
        if (better(other, best)) best = other;
    }
    if (threadIdx.x) return;
    const int here = *position;
    tokens[here] = best.index;
    *place = here;
    *length = here + 1;
    *position = here + 1;
}
