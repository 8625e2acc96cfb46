// embedding_q8_0 1, token: one row of an embedding table in Q8_0, as floats.
//
// Purpose  what a decoder does for its one token; a prompt of n tokens makes n launches of it, and a copy after each
//          of them puts the row in its place.
// Shapes   table [rows][k / 32] Q8_0 blocks, tokens [count] int32, out [k] float: row tokens[index].
// Bytes    34/32 k read + 4 k written.
// Launch   THREADS threads a block, ceil(k / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Below    this is the first rung.
#include "common/q8.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_q8_0_token(const unsigned char* __restrict__ table, const int* __restrict__ tokens, float* __restrict__ out, int k,
                int index) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    const unsigned char* block = table + ((size_t)tokens[index] * (k / Q8_BLOCK) + i / Q8_BLOCK) * Q8_0_BYTES;
    out[i] = scale_of(block) * static_cast<float>(static_cast<signed char>(block[2 + i % Q8_BLOCK]));
}
