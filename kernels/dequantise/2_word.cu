// dequantise 2, word: rung 1 with the scale in one 16-bit load.
//
// Purpose  a block starts at a multiple of 2 bytes, so its scale need not come as two bytes put together.
// Shapes   w [n][k / 32] Q8_0 blocks, out [n][k] half; k a multiple of 32.
// Bytes    34/32 n k read + 2 n k written.
// Launch   THREADS threads a block, four elements a thread, ceil(n k / 4 / THREADS) blocks.
// Macros   THREADS = 256: threads a block.
// Changed  from rung 1: one load where there were two.
#include "common/q8.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    dequantise_word(const unsigned char* __restrict__ w, uint2* __restrict__ out, int n, int k) {
    const unsigned words = k / 4;  // of four elements in a row
    const size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    if (i >= (size_t)n * words) return;
    const unsigned row = i / words, word = i % words;
    const unsigned char* block = w + ((size_t)row * (k / Q8_BLOCK) + word / 8) * Q8_0_BYTES;
    const float scale = scale_of(block);
    const unsigned quants = word_of(block + 2 + 4 * (word % 8));
    __half2 pair[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
        pair[j] = __floats2half2_rn(scale * static_cast<signed char>(quants >> 16 * j & 0xff),
                                    scale * static_cast<signed char>(quants >> (16 * j + 8) & 0xff));
    out[i] = make_uint2(*reinterpret_cast<unsigned*>(&pair[0]), *reinterpret_cast<unsigned*>(&pair[1]));
}
