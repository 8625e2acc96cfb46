// embedding_q8_0 2, batched: every token of a prompt in one launch, each row in its place.
//
// Purpose  a prompt's rows are small, so launches are most of what rung 1 costs.
// Shapes   table [rows][k / 32] Q8_0 blocks, tokens [count] int32, out [count][k] float.
// Bytes    34/32 k read + 4 k written a token.
// Launch   THREADS threads a block, (count, ceil(k / THREADS)) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  from rung 1: the token's number is the block's; what a thread does is the same, so the bits are too.
#include "common/q8.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_q8_0_batched(const unsigned char* __restrict__ table, const int* __restrict__ tokens, float* __restrict__ out,
                  int k) {
    const int i = blockIdx.y * THREADS + threadIdx.x, index = blockIdx.x;
    if (i >= k) return;
    const unsigned char* block = table + ((size_t)tokens[index] * (k / Q8_BLOCK) + i / Q8_BLOCK) * Q8_0_BYTES;
    out[(size_t)index * k + i] = scale_of(block) * static_cast<float>(static_cast<signed char>(block[2 + i % Q8_BLOCK]));
}
