// Queries, keys and values: where a product's rows of them go, and what they are biased and rotated with.
#pragma once
#include <cuda_fp16.h>

// Where rows of queries, keys and values go.
struct Heads {
    const __half* biases;
    const float2* rotary;
    __half *keys, *values;
    int heads, kv_heads, head_dim;
};

// What a lane's rows g and g + 8 of a tile are biased and rotated with: at `position`, or drafts `token` and the one after it
// at their own.
struct Turn {
    unsigned tile, token;
    float low, high;
    float2 cos_sin[1 + DRAFTS];
};

__device__ inline Turn turn_of(unsigned tile, unsigned token, unsigned batch, int position, const Heads& to) {
    const unsigned g = threadIdx.x % 32 / 4, each = to.head_dim / 16, i = tile % each * 8 + g;
    const bool rotated = tile / each < unsigned(to.heads + to.kv_heads);
    Turn found = {tile, token, __half2float(to.biases[16 * tile + g]), __half2float(to.biases[16 * tile + g + 8])};
#pragma unroll
    for (int d = 0; d <= DRAFTS; ++d) {
        const size_t at = position + (DRAFTS ? min(token + d, batch - 1) : 0);
        found.cos_sin[d] = rotated ? to.rotary[at * (to.head_dim / 2) + i] : make_float2(1.0f, 0.0f);
    }
    return found;
}
